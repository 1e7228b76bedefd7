// What happened at one place: its commits, what else the model thought of, how its belief grew.

const HINT = 'Point at a place, here or in the map, to see its history.';

class History {
  constructor(reel) {
    this.reel = reel;
    this.element = make('div', {class: 'history'});
  }

  draw(place, t) {
    const {reel} = this;
    if (place === null || place >= reel.places) {
      this.element.replaceChildren(make('p', {class: 'hint'}, HINT));
      return;
    }
    const event = reel.at(place, t);
    const standing = event && event.text >= 0 ? event.text : -1;
    const head = make('p', {class: 'head'}, make('b', {}, `Place ${place + 1}`), ' ',
      standing < 0 ? make('span', {class: 'soft'}, 'masked') : this.token(standing));
    const left = make('div', {}, head, this.events(place, t));
    const right = make('div', {}, ...this.thoughts(place, t, event));
    this.element.replaceChildren(left, right);
  }

  token(text) {
    return make('code', {}, this.reel.name(text).replaceAll('\n', ''));
  }

  events(place, t) {
    const list = make('ol', {});
    for (const event of this.reel.events[place]) {
      const later = event.step >= t;
      const forward = this.reel.launched[event.step];
      const when = `step ${event.step + 1}` + (forward === event.step + 1 ? '' : `, forward ${forward}`);
      const what = event.text < 0
        ? [make('span', {class: 'taken'}, 'taken back')]
        : [event.hand ? 'written by hand ' : 'committed ', this.token(event.text), ' ',
          make('b', {}, event.hand ? '' : chance(event.p))];
      list.append(make('li', {class: later ? 'later' : null}, make('span', {class: 'when'}, when), ' ', ...what));
    }
    if (!list.children.length) list.append(make('li', {class: 'soft'}, 'never committed'));
    return list;
  }

  /** The alternatives: of this moment while the place is masked, of its commit afterwards. */
  thoughts(place, t, event) {
    const {reel} = this;
    const known = event && event.text >= 0;
    let found = [];
    let words = '';
    if (known && reel.others && !event.hand) {
      found = reel.others[event.index];
      words = 'when it was committed';
    } else if (!known && reel.beliefs && t > 0 && !(event && event.step === t - 1)) {
      found = reel.belief(t - 1, place);
      words = `likeliest at step ${t}`;
    }
    const parts = [];
    if (found.length) {
      const list = make('ul', {class: 'bars', 'aria-label': words});
      for (const [text, p] of found) {
        const bar = make('i', {class: known && text === event.text ? 'taken' : null, 'aria-hidden': 'true'});
        bar.style.width = `${Math.max(100 * p, 0.5)}%`;
        list.append(make('li', {}, this.token(text), make('span', {class: 'track'}, bar), make('span', {}, chance(p))));
      }
      parts.push(make('p', {class: 'soft'}, words), list);
    }
    const line = this.growth(place, t);
    if (line) parts.push(line);
    return parts;
  }

  /** The best probability over the steps for which the place was masked. */
  growth(place, t) {
    const {reel} = this;
    if (!reel.beliefs || reel.steps < 2) return null;
    const [width, height] = [160, 30];
    const x = (step) => (width * step) / (reel.steps - 1);
    const y = (p) => height - 1 - (height - 2) * p;
    const runs = [[]];
    for (let step = 0; step < reel.steps; step++) {
      const before = reel.at(place, step);
      if (before && before.text >= 0) {
        if (runs[runs.length - 1].length) runs.push([]);
      } else {
        runs[runs.length - 1].push(`${x(step).toFixed(1)},${y(reel.belief(step, place)[0][1]).toFixed(1)}`);
      }
    }
    const lines = runs.filter((run) => run.length).map((run) =>
      draw('polyline', {points: run.length > 1 ? run.join(' ') : `${run[0]} ${run[0]}`}));
    const here = x(Math.min(Math.max(t - 1, 0), reel.steps - 1)).toFixed(1);
    return make('div', {class: 'growth'},
      make('span', {class: 'soft'}, 'best probability while masked'),
      draw('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
        draw('line', {class: 'axis', x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5}),
        draw('line', {class: 'here', x1: here, x2: here, y1: 0, y2: height}), ...lines));
  }
}

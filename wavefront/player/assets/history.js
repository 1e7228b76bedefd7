// The history of one position: its commits, the alternatives, and how its best probability grew.

const HINT = 'Point at a position or tap it, here or in the map, to see its history.';

class History {
  constructor(decode) {
    this.decode = decode;
    this.element = make('div', {class: 'history'});
  }

  draw(position, t) {
    const {decode} = this;
    if (position === null || position >= decode.size) {
      this.element.replaceChildren(make('p', {class: 'hint'}, HINT));
      return;
    }
    const entry = decode.at(position, t);
    const standing = entry && entry.token >= 0 ? entry.token : -1;
    const head = make('p', {class: 'head'}, make('b', {}, `Position ${position + 1}`), ' ',
      standing < 0 ? make('span', {class: 'soft'}, 'masked') : this.token(standing));
    const left = make('div', {}, head, this.entries(position, t));
    const right = make('div', {}, ...this.thoughts(position, t, entry));
    this.element.replaceChildren(left, right);
  }

  token(token) {
    return make('code', {}, (this.decode.texts.get(token) || String(token)).replaceAll('\n', ''));
  }

  entries(position, t) {
    const list = make('ol', {});
    for (const {step, token, p} of this.decode.history[position]) {
      let when = 'at the start';
      if (step >= 0) {
        const {forwards} = this.decode.steps[step];
        when = `step ${step + 1}` + (forwards === step + 1 ? '' : `, forward ${forwards}`);
      }
      const what = token < 0
        ? [make('span', {class: 'taken'}, 'remasked')]
        : [p !== null ? 'committed ' : step < 0 ? 'given ' : 'written by hand ', this.token(token), ' ',
          make('b', {}, p === null ? '' : chance(p))];
      list.append(make('li', {class: step >= t ? 'later' : null}, make('span', {class: 'when'}, when), ' ', ...what));
    }
    if (!list.children.length) list.append(make('li', {class: 'soft'}, 'never committed'));
    return list;
  }

  /** The alternatives: at this step while the position is masked, at its commit afterwards. */
  thoughts(position, t, entry) {
    const {decode} = this;
    const known = entry && entry.token >= 0;
    let found = [];
    let words = '';
    if (known) {
      found = entry.others || [];
      words = 'when it was committed';
    } else if (t > 0 && !(entry && entry.step === t - 1)) {
      found = decode.belief(t - 1, position);
      words = `likeliest at step ${t}`;
    }
    const parts = [];
    if (found.length) {
      const list = make('ul', {class: 'bars', 'aria-label': words});
      for (const [token, p] of found) {
        const bar = make('i', {class: known && token === entry.token ? 'taken' : null, 'aria-hidden': 'true'});
        bar.style.width = `${Math.max(100 * p, 0.5)}%`;
        list.append(make('li', {}, this.token(token), make('span', {class: 'track'}, bar), make('span', {}, chance(p))));
      }
      parts.push(make('p', {class: 'soft'}, words), list);
    }
    const line = this.growth(position, t);
    if (line) parts.push(line);
    return parts;
  }

  /** A line of the best probability over the steps at which the position was masked. */
  growth(position, t) {
    const {decode} = this;
    const steps = decode.length;
    const [width, height] = [160, 30];
    const x = (step) => (width * step) / (steps - 1);
    const y = (p) => height - 1 - (height - 2) * p;
    const runs = [[]];
    for (let step = 0; steps > 1 && step < steps; step++) {
      const before = decode.at(position, step);
      const best = before && before.token >= 0 ? null : decode.best(step, position);
      if (best !== null) runs[runs.length - 1].push(`${x(step).toFixed(1)},${y(best).toFixed(1)}`);
      else if (runs[runs.length - 1].length) runs.push([]);
    }
    const lines = runs.filter((run) => run.length).map((run) =>
      makeSvg('polyline', {points: run.length > 1 ? run.join(' ') : `${run[0]} ${run[0]}`}));
    if (!lines.length) return null;
    const here = x(Math.min(Math.max(t - 1, 0), steps - 1)).toFixed(1);
    return make('div', {class: 'growth'},
      make('span', {class: 'soft'}, 'best probability while masked'),
      makeSvg('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
        makeSvg('line', {class: 'axis', x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5}),
        makeSvg('line', {class: 'here', x1: here, x2: here, y1: 0, y2: height}), ...lines));
  }
}

// The canvas as text: a span for every place. A masked place is as wide as what will stand there,
// so that nothing moves while the text appears.

const END = '∎';
const BREAK = '⏎';

class Board {
  constructor(reel, player) {
    this.reel = reel;
    this.player = player;
    this.spans = [];
    this.keys = [];
    this.element = make('div', {class: reel.ids ? 'text ids' : 'text', role: 'group', 'aria-label': `Canvas of ${reel.title}`});
    for (const text of reel.board) {
      const shown = text < 0 ? reel.final[this.spans.length] : text;
      // A sign for a line break does not go to a line of its own.
      if (shown < 0 || !reel.texts[shown].startsWith(BREAK)) this.element.append(make('wbr'));
      this.element.append(text < 0 ? this.span() : make('span', {class: 'given'}, reel.texts[text]));
    }
    this.rest = make('span', {class: 'rest'});
    this.element.append(this.rest);
    if (this.spans.length) this.spans[0].tabIndex = 0;
    this.listen();
  }

  span() {
    const place = this.spans.length;
    const span = make('span', {class: 't', role: 'button', tabindex: -1});
    span.dataset.place = place;
    this.spans.push(span);
    return span;
  }

  listen() {
    const placeOf = (event) => {
      const span = event.target.closest('[data-place]');
      return span ? Number(span.dataset.place) : null;
    };
    this.element.addEventListener('pointerover', (event) => {
      if (event.pointerType !== 'touch') this.player.point(placeOf(event));
    });
    this.element.addEventListener('pointerleave', () => this.player.point(null));
    // Who moves by keyboard may be listening; who moves by mouse is looking.
    this.element.addEventListener('focusin', (event) => {
      this.player.read(true);
      this.player.point(placeOf(event));
    });
    this.element.addEventListener('focusout', () => {
      this.player.read(false);
      this.player.point(null);
    });
    this.element.addEventListener('click', (event) => {
      if (placeOf(event) !== null) this.player.pin(placeOf(event));
    });
    this.element.addEventListener('keydown', (event) => this.key(event, placeOf(event)));
  }

  key(event, place) {
    if (place === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1}[event.key];
    if (by) {
      let next = place + by;
      while (this.spans[next] && !this.spans[next].offsetParent) next += by;
      if (this.spans[next]) this.focus(next);
    } else if (event.key === 'Enter') {
      this.player.pin(place);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focus(place) {
    for (const span of this.spans) span.tabIndex = -1;
    this.spans[place].tabIndex = 0;
    this.spans[place].focus();
  }

  /** What to show at a place, and how. */
  look(place, t, before) {
    const {reel} = this;
    const event = reel.at(place, t);
    const known = event !== undefined && event.text >= 0;
    const names = ['t'];
    let text;
    if (known) {
      text = this.words(place, event.text, t);
      names.push('k', event.hand ? 'hand' : `p${shade(event.p)}`);
      if (event.step >= before) names.push('now');
      if (reel.stops.has(event.text)) names.push('end');
    } else {
      const left = event !== undefined && event.step >= before;
      const stood = left ? reel.at(place, event.step) : undefined;
      text = this.words(place, stood && stood.text >= 0 ? stood.text : reel.final[place], 0);
      names.push('m');
      if (left) names.push('back');
      if (reel.has(reel.front, t - 1, place)) names.push('front');
      if (reel.has(reel.scope, t - 1, place)) names.push('scope');
    }
    if (reel.fill[place]) names.push('fill');
    return {text, names: names.join(' '), known};
  }

  words(place, text, t) {
    const {reel} = this;
    if (text < 0 || reel.stops.has(text)) return END;
    const join = reel.joins.get(place);
    if (join && text === reel.final[place] && this.isWhole(join, t)) return join.k ? '‿' : join.text;
    return reel.texts[text];
  }

  /** Whether every token of a character stands, so that it can be read. */
  isWhole({first, count}, t) {
    for (let place = first; place < first + count; place++) {
      const event = this.reel.at(place, t);
      if (!event || event.text !== this.reel.final[place]) return false;
    }
    return true;
  }

  /** Moment t; what happened from step `before` on is new. */
  draw(t, before) {
    let decided = 0;
    this.spans.forEach((span, place) => {
      const {text, names, known} = this.look(place, t, before);
      if (known && this.reel.fill[place]) decided += 1;
      const key = names + '\n' + text;
      if (this.keys[place] === key) return;
      this.keys[place] = key;
      span.className = names;
      span.textContent = text;
      if (known) span.removeAttribute('aria-label');
      else span.setAttribute('aria-label', names.includes('back') ? 'taken back' : 'masked');
      if (place === this.marked) span.classList.add('held');
    });
    this.rest.textContent = `${END} ${decided} of ${this.reel.filled} after the end`;
    this.rest.hidden = !this.reel.filled;
  }

  /** Mark the place whose history is shown. */
  mark(place) {
    for (const one of [this.marked, place]) {
      if (one !== null && one !== undefined && this.spans[one]) {
        this.spans[one].classList.toggle('held', one === place);
      }
    }
    this.marked = place;
  }
}

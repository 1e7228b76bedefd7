// The canvas as text: one span for each position. A masked position is as wide as its final token,
// so that nothing moves while the text appears.

const END = '∎';
const UNKNOWN = '··';

class Board {
  constructor(decode, player) {
    this.decode = decode;
    this.player = player;
    this.spans = [];
    this.keys = [];
    this.element = make('div', {class: 'text', role: 'group', 'aria-label': `Canvas of ${decode.about.title}`});
    this.rest = make('span', {class: 'rest', hidden: ''});
    this.listen();
  }

  /** Build the spans; a live decode says how many there are in its first event. */
  build() {
    const {decode} = this;
    this.element.classList.toggle('ids', decode.showIds);
    for (const part of decode.around) {
      if (typeof part === 'string') {
        this.element.append(make('span', {class: 'given'}, part));
        continue;
      }
      for (let n = 0; n < part; n++) {
        const position = this.spans.length;
        const span = make('span', {class: 't', role: 'button', tabindex: position ? -1 : 0});
        span.dataset.position = position;
        // The sign of a line break stays at the end of its line.
        const text = decode.texts.get(decode.final[position]);
        if (!text || !text.startsWith(BREAK)) this.element.append(make('wbr'));
        this.spans.push(span);
        this.element.append(span);
      }
    }
    this.element.append(this.rest);
    this.mark(this.player.position);
  }

  listen() {
    const positionOf = (event) => {
      const span = event.target.closest('[data-position]');
      return span ? Number(span.dataset.position) : null;
    };
    this.element.addEventListener('pointerover', (event) => {
      if (event.pointerType !== 'touch') this.player.point(positionOf(event));
    });
    this.element.addEventListener('pointerleave', () => this.player.point(null));
    // Somebody who moves by keyboard may use a screen reader.
    this.element.addEventListener('focusin', (event) => {
      this.player.readAloud(true);
      this.player.point(positionOf(event));
      this.name(positionOf(event));
    });
    this.element.addEventListener('focusout', () => {
      this.player.readAloud(false);
      this.player.point(null);
    });
    this.element.addEventListener('click', (event) => {
      if (positionOf(event) !== null) this.player.pin(positionOf(event));
    });
    this.element.addEventListener('keydown', (event) => this.key(event, positionOf(event)));
  }

  key(event, position) {
    if (position === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1}[event.key];
    if (by) {
      let next = position + by;
      while (this.spans[next] && !this.spans[next].offsetParent) next += by;
      if (this.spans[next]) this.focus(next);
    } else if (event.key === 'Enter') {
      this.player.pin(position);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  focus(position) {
    for (const span of this.spans) span.tabIndex = -1;
    this.spans[position].tabIndex = 0;
    this.spans[position].focus();
  }

  /** Give the focused position a spoken name; it changes at every step. */
  name(position) {
    if (position === null) return;
    const entry = this.decode.at(position, this.moment);
    let words = 'masked';
    if (entry && entry.token >= 0) {
      words = `${this.decode.texts.get(entry.token)}, ${entry.p === null ? 'given' : chance(entry.p)}${this.decode.pinned.has(position) ? ', pinned by the constraint' : ''}`;
    }
    this.spans[position].setAttribute('aria-label', `Position ${position + 1}: ${words}`);
  }

  /** What to show at a position, and how. */
  look(position, t, before) {
    const {decode} = this;
    const entry = decode.at(position, t);
    const known = entry !== undefined && entry.token >= 0;
    const names = ['t'];
    let text;
    if (known) {
      text = this.textOf(position, entry.token, t);
      names.push('k', entry.p === null ? 'hand' : `p${shade(entry.p)}`);
      if (entry.step >= before && t > 0) names.push('now');
      if (decode.stops.has(entry.token)) names.push('end');
      else if (decode.pinned.has(position)) names.push('pinned');
    } else {
      const left = entry !== undefined && entry.step >= before;
      const stood = left ? decode.at(position, entry.step) : undefined;
      text = this.textOf(position, stood && stood.token >= 0 ? stood.token : decode.final[position], 0);
      names.push('m');
      if (left) names.push('back');
      if (decode.isIn('front', t - 1, position)) names.push('front');
      if (decode.isIn('scope', t - 1, position)) names.push('scope');
      if (decode.over && t >= decode.length) names.push('idle');
    }
    if (decode.fill[position]) names.push('fill');
    return {text, names: names.join(' '), known};
  }

  textOf(position, token, t) {
    const {decode} = this;
    if (token < 0) return UNKNOWN;
    if (decode.stops.has(token)) return END;
    const join = decode.joins.get(position);
    if (join && token === decode.final[position] && this.isComplete(join, t)) return join.k ? '‿' : join.text;
    return decode.texts.get(token);
  }

  /** Whether every token of a split character is there, so that it can be read. */
  isComplete({first, count}, t) {
    for (let position = first; position < first + count; position++) {
      const entry = this.decode.at(position, t);
      if (!entry || entry.token !== this.decode.final[position]) return false;
    }
    return true;
  }

  /** Draw moment t; what happened from step `before` on is new. */
  draw(t, before) {
    const {decode} = this;
    this.moment = t;
    if (!decode.size) return;
    if (!this.spans.length) this.build();
    let decided = 0;
    this.spans.forEach((span, position) => {
      const {text, names, known} = this.look(position, t, before);
      if (known && decode.fill[position]) decided += 1;
      const key = names + '\n' + text;
      if (this.keys[position] === key) return;
      this.keys[position] = key;
      span.className = names;
      span.textContent = text;
      if (span === document.activeElement) this.name(position);
      else if (known) span.removeAttribute('aria-label');
      else span.setAttribute('aria-label', names.includes('back') ? 'remasked' : 'masked');
      if (position === this.marked) span.classList.add('held');
    });
    this.rest.textContent = `${END} ${decided} of ${decode.filled} after the end`;
    this.rest.hidden = !decode.filled;
  }

  /** Mark the position whose history is shown. */
  mark(position) {
    for (const one of [this.marked, position]) {
      if (one !== null && one !== undefined && this.spans[one]) {
        this.spans[one].classList.toggle('held', one === position);
      }
    }
    this.marked = position;
  }
}

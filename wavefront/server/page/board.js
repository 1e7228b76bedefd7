// The canvas as text: a span for every place, coloured by how sure the model was of it.

class Board {
  constructor(reel, onPlace) {
    this.reel = reel;
    this.onPlace = onPlace;
    this.element = make('div', {class: 'board', role: 'group', 'aria-label': `Canvas of ${reel.facts.title}`});
    this.spans = [];
    this.picked = null;
    this.element.addEventListener('click', (event) => this.pick(this.placeOf(event)));
    this.element.addEventListener('keydown', (event) => this.key(event));
    this.element.addEventListener('focusin', (event) => this.name(this.placeOf(event)));
  }

  build() {
    const around = this.reel.start.around || [this.reel.places];
    for (const part of around) {
      if (typeof part === 'string') {
        this.element.append(make('span', {class: 'given'}, part));
        continue;
      }
      for (let n = 0; n < part; n++) {
        const span = make('span', {class: 't m', role: 'button', tabindex: this.spans.length ? -1 : 0});
        span.dataset.place = this.spans.length;
        span.textContent = '··';
        this.spans.push(span);
        this.element.append(span, make('wbr'));
      }
    }
  }

  placeOf(event) {
    const span = event.target.closest('[data-place]');
    return span ? Number(span.dataset.place) : null;
  }

  pick(place) {
    if (place === null) return;
    this.picked = this.picked === place ? null : place;
    this.onPlace(this.picked);
    this.draw(this.drawn);
  }

  key(event) {
    const place = this.placeOf(event);
    if (place === null) return;
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1}[event.key];
    if (by && this.spans[place + by]) {
      this.spans[place].tabIndex = -1;
      this.spans[place + by].tabIndex = 0;
      this.spans[place + by].focus();
    } else if (event.key === 'Enter' || event.key === ' ') {
      this.pick(place);
    } else if (!by) {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** Words for those who listen; made when somebody arrives, because they change at every step. */
  name(place) {
    if (place === null) return;
    const entry = this.reel.at(place, this.drawn);
    const words = entry ? `${visible(entry.text)}, ${chance(entry.p)}` : 'masked';
    this.spans[place].setAttribute('aria-label', `Place ${place + 1}: ${words}`);
  }

  draw(step) {
    if (!this.reel.start) return;
    if (!this.spans.length) this.build();
    this.drawn = step;
    const {reel} = this;
    const now = reel.steps[step - 1];
    const front = new Set(now ? now.front : []);
    const back = new Set(now ? now.back : []);
    const finished = reel.end !== null && step >= reel.length;
    const end = reel.endAt(step);
    this.spans.forEach((span, place) => {
      const entry = reel.at(place, step);
      let [kind, text] = ['t', ''];
      if (entry) {
        const hand = entry.p === null;
        const stop = reel.stops.has(entry.token);
        kind += hand ? ' k kept' : ` k p${shade(entry.p)}`;
        if (entry.step === step && step > 0 && !hand) kind += ' now';
        if (place >= end) kind += ' fill';
        text = stop ? '∎' : visible(entry.text);
      } else {
        const future = reel.at(place, Infinity);
        kind += finished ? ' m idle' : ' m';
        if (front.has(place)) kind += ' front';
        if (back.has(place)) kind += ' back';
        text = future && !reel.stops.has(future.token) ? visible(future.text) : '··';
      }
      if (place === this.picked) kind += ' picked';
      if (span.className !== kind) span.className = kind;
      if (span.textContent !== text) span.textContent = text;
      if (span.hasAttribute('aria-label')) span.removeAttribute('aria-label');
    });
  }
}

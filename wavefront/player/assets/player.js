// The player: one or two decodes on one axis, and everything that moves along it.

const NUMBERS = [['step', 'step'], ['forwards', 'forwards'], ['change', 'this'],
  ['tokens', 'decided'], ['rate', 'per forward']];

class Pane {
  constructor(reel, player, side) {
    this.reel = reel;
    this.board = new Board(reel, player);
    this.chart = new Chart(reel, player);
    this.history = new History(reel);
    this.values = {};
    const list = make('dl', {class: 'numbers'});
    for (const [name, words] of NUMBERS) {
      this.values[name] = make('dd', {'data-number': name});
      list.append(make('div', {}, make('dt', {}, words), this.values[name]));
    }
    this.element = make('article', {class: 'pane', 'aria-label': reel.title},
      player.heading(reel, side), player.ownLead(reel), list, this.board.element,
      this.chart.element, this.history.element);
  }

  draw(n, unit, place) {
    const {reel, values} = this;
    const t = reel.moment(n, unit);
    this.element.dataset.moment = t;
    const before = n ? reel.moment(n - 1, unit) : 0;
    this.board.draw(t, before);
    this.chart.draw(n);
    this.history.draw(place, t);
    const forwards = t ? reel.launched[t - 1] : 0;
    const count = (list) => list.slice(before, t).reduce((sum, one) => sum + one, 0);
    const [more, less] = [count(reel.committed), count(reel.takenBack)];
    values.step.replaceChildren(`${t}`, make('small', {}, ` of ${reel.steps}`));
    values.forwards.replaceChildren(`${forwards}`, make('small', {}, ` of ${reel.forwards}`));
    values.change.previousSibling.textContent = `this ${unit}`;
    values.change.textContent = `+${more}` + (less ? ` −${less}` : '');
    values.tokens.replaceChildren(`${reel.known[t]}`, make('small', {}, ` of ${reel.places}`));
    values.rate.textContent = forwards ? (reel.known[t] / forwards).toFixed(2) : '–';
    this.element.classList.toggle('done', t === reel.steps);
  }

  mark(place) {
    this.board.mark(place);
    this.chart.mark(place);
  }
}

class Player {
  constructor(reels) {
    this.reels = reels;
    this.sides = reels.length > 1 ? [0, 1] : [0];
    this.unit = 'step';
    this.pinned = this.reels[0].leastSure();
    this.pointed = null;
    this.timer = null;
    this.listen();
    this.folds();
    this.build();
    // In the middle of things: an empty canvas and a finished one both hide what this is about.
    this.go(Math.round(0.4 * this.length));
  }

  get length() {
    return Math.max(...this.sides.map((side) => this.reels[side].length(this.unit)));
  }

  get place() {
    return this.pointed === null ? this.pinned : this.pointed;
  }

  /** The title of a pane; where there are more decodes than panes, a choice of them. */
  heading(reel, side) {
    const name = make('span', {class: 'file'}, reel.place);
    if (this.reels.length < 3) return make('h2', {}, reel.title, ' ', name);
    const select = make('select', {'aria-label': `Decode ${side + 1}`});
    for (const one of this.reels) {
      select.append(make('option', {value: one.number, selected: one === reel ? '' : null}, `${one.title} · ${one.place}`));
    }
    select.addEventListener('change', () => {
      this.sides[side] = Number(select.value);
      this.build();
      this.go(Math.min(this.n, this.length));
      byId('panes').children[side].querySelector('select').focus();
    });
    return make('h2', {}, select);
  }

  /** The prompt in a pane, where the panes differ in it. */
  ownLead(reel) {
    return make('div', {class: 'prompt', hidden: this.shared ? '' : null}, ...this.turns(reel));
  }

  turns(reel) {
    return reel.lead.map(([role, text]) => {
      const body = make('span', {class: 'said'}, text);
      return make('p', {}, role ? make('span', {class: 'role'}, role) : null, body);
    });
  }

  build() {
    const shown = this.sides.map((side) => this.reels[side]);
    this.shared = shown.every((reel) => JSON.stringify(reel.lead) === JSON.stringify(shown[0].lead));
    const lead = byId('lead');
    lead.replaceChildren(...(this.shared ? this.turns(shown[0]) : []));
    lead.hidden = !lead.children.length;
    this.panes = shown.map((reel, side) => new Pane(reel, this, side));
    byId('panes').replaceChildren(...this.panes.map((pane) => pane.element));
    byId('panes').className = this.panes.length > 1 ? 'two' : 'one';
    const happens = {
      back: shown.some((reel) => reel.takesBack),
      hand: shown.some((reel) => reel.hasHand),
      fill: shown.some((reel) => reel.filled),
      front: shown.some((reel) => reel.front.some((byte) => byte)),
    };
    for (const one of document.querySelectorAll('[data-when]')) one.hidden = !happens[one.dataset.when];
    this.paint();
    this.point(null);
  }

  /** Paint what depends on size, colours or the axis. */
  paint() {
    byId('scrub').max = this.length;
    for (const pane of this.panes) pane.chart.paint(this.unit, this.length);
  }

  go(n) {
    this.n = n;
    const scrub = byId('scrub');
    scrub.value = n;
    scrub.setAttribute('aria-valuetext', `${this.unit} ${n} of ${this.length}`);
    scrub.style.setProperty('--done', `${(100 * n) / Math.max(this.length, 1)}%`);
    byId('moment').textContent = `${this.unit} ${n} / ${this.length}`;
    for (const pane of this.panes) pane.draw(n, this.unit, this.place);
    if (n >= this.length) this.pause();
  }

  step(by) {
    this.pause();
    this.go(Math.min(Math.max(this.n + by, 0), this.length));
  }

  play() {
    if (this.n >= this.length) this.go(0);
    this.pause();
    const turn = () => this.go(Math.min(this.n + 1, this.length));
    this.timer = setInterval(turn, 1000 / Number(byId('speed').value));
    this.showPlaying();
  }

  pause() {
    if (this.timer !== null) clearInterval(this.timer);
    this.timer = null;
    this.showPlaying();
  }

  toggle() {
    if (this.timer === null) this.play();
    else this.pause();
  }

  showPlaying() {
    const on = this.timer !== null;
    byId('play').setAttribute('aria-label', on ? 'Pause' : 'Play');
    byId('play').classList.toggle('playing', on);
  }

  /** Show the history of a place for as long as something points at it. */
  point(place) {
    this.pointed = place;
    for (const pane of this.panes) {
      pane.mark(this.place);
      if (this.n !== undefined) pane.history.draw(this.place, pane.reel.moment(this.n, this.unit));
    }
  }

  /** Have the histories read out, or not. */
  read(aloud) {
    for (const pane of this.panes) pane.history.element.setAttribute('aria-live', aloud ? 'polite' : 'off');
  }

  /** Keep the history of a place, or let go of it. */
  pin(place) {
    this.pinned = this.pinned === place ? null : place;
    this.point(this.pinned);
  }

  setUnit(unit) {
    // Stay where the first decode is.
    const t = this.panes[0].reel.moment(this.n, this.unit);
    this.unit = unit;
    const {launched} = this.panes[0].reel;
    this.paint();
    this.go(Math.min(unit === 'step' ? t : t ? launched[t - 1] : 0, this.length));
  }

  folds() {
    const fold = byId('fold');
    const show = () => byId('panes').toggleAttribute('data-folded', fold.checked);
    fold.checked = this.reels.some((reel) => reel.filled > 64);
    fold.addEventListener('change', show);
    show();
  }

  listen() {
    const on = (id, kind, what) => byId(id).addEventListener(kind, what);
    on('first', 'click', () => this.step(-Infinity));
    on('back', 'click', () => this.step(-1));
    on('play', 'click', () => this.toggle());
    on('on', 'click', () => this.step(1));
    on('last', 'click', () => this.step(Infinity));
    on('scrub', 'input', () => {
      this.pause();
      this.go(Number(byId('scrub').value));
    });
    on('speed', 'change', () => this.timer !== null && this.play());
    for (const radio of document.querySelectorAll('input[name=unit]')) {
      radio.addEventListener('change', () => radio.checked && this.setUnit(radio.value));
    }
    document.addEventListener('keydown', (event) => this.key(event));
    let width = window.innerWidth;
    window.addEventListener('resize', () => {
      if (window.innerWidth !== width) this.paint();
      width = window.innerWidth;
    });
  }

  key(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const {target} = event;
    const inside = byId('player').contains(target);
    const box = byId('bar').getBoundingClientRect();
    const inView = target === document.body && box.bottom > 0 && box.top < window.innerHeight;
    if (!inside && !inView) return;
    const uses = (names) => target.matches(names);
    if (event.key === 'Escape') this.pin(this.pinned);
    else if (event.key === ' ' && !uses('button, select, input[type=checkbox], input[type=radio]')) this.toggle();
    else if (event.key === ',') this.step(-1);
    else if (event.key === '.') this.step(1);
    else if (uses('select, input')) return; // these have arrows of their own
    else if (event.key === 'ArrowLeft') this.step(-1);
    else if (event.key === 'ArrowRight') this.step(1);
    else if (event.key === 'Home') this.step(-Infinity);
    else if (event.key === 'End') this.step(Infinity);
    else return;
    event.preventDefault();
  }
}

// The player: decodes side by side on one axis, and everything that moves along it.

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
// The numbers of a pane: key, label, and the explanation below the panes.
const NUMBERS = [
  ['step', 'steps', 'Steps of the strategy, shown if their number differs from that of the forward passes.'],
  ['forwards', 'forward passes', 'Forward passes of the model. They are the cost of a decode.'],
  ['change', 'this', 'Tokens committed (+) and remasked (−) at the moment shown.'],
  ['tokens', 'decided', 'Positions that hold a token.'],
  ['rate', 'tokens per pass', 'Tokens per forward pass. At the end, only tokens of the answer count.'],
  ['visible', 'answer tokens', 'Tokens before the end of the answer.'],
  ['seconds', 'seconds', 'Time since the decode started. Other requests may share the machine.'],
  ['MHCO', 'MHCO', 'The share of tokens that were committed while a nearby position was more confident but not allowed: a masked position outside the candidates, at most 2 positions away. Lower is better, and 0 % means that the strategy never passed over such a position. “By extent” treats everything from the first to the last candidate as allowed, and for block the whole block. It then counts masked positions at most 2 before or after that stretch. It can be higher or lower.'],
];

class Pane {
  constructor(decode, player, side) {
    this.decode = decode;
    this.player = player;
    this.board = new Board(decode, player);
    this.charts = [new DecodeMap(decode, player)];
    if (player.answers) this.charts.push(new FrontierChart(decode, player));
    this.history = new History(decode);
    this.values = {};
    const list = make('dl', {class: 'numbers'});
    for (const [name, words, title] of NUMBERS) {
      this.values[name] = make('dd', {'data-number': name});
      list.append(make('div', {title}, make('dt', {}, words), this.values[name]));
    }
    this.lead = make('div', {class: 'prompt', hidden: ''});
    this.constraint = make('p', {class: 'constraint-line', hidden: ''});
    this.answer = make('p', {class: 'answer', hidden: player.answers ? null : ''});
    this.tools = make('div', {class: 'tools', hidden: ''});
    this.element = make('article', {class: 'pane', 'aria-label': decode.about.title},
      this.heading(side), this.lead, this.constraint, list, this.board.element, this.answer,
      make('div', {class: 'charts'}, ...this.charts.map((chart) => chart.element)),
      this.history.element, this.tools);
  }

  /** The title; a choice of decodes where there are more of them than panes. */
  heading(side) {
    const {decode, player} = this;
    const {title, file, of} = decode.about;
    this.status = make('span', {class: 'status'});
    if (player.decodes.length <= player.sides) {
      const source = file ? make('span', {class: 'file'}, file) : of ? make('span', {class: 'file'}, `fork of ${of}`) : null;
      return make('h2', {}, make('span', {class: 'spec'}, title), ' ', source, this.status);
    }
    const select = make('select', {'aria-label': `Decode ${side + 1}`});
    player.decodes.forEach(({about}, number) => {
      const chosen = number === player.shown[side] ? '' : null;
      select.append(make('option', {value: number, selected: chosen}, `${about.title} · ${about.file}`));
    });
    select.addEventListener('change', () => player.choose(side, Number(select.value)));
    return make('h2', {}, select);
  }

  draw(n, unit, position) {
    const {decode} = this;
    const t = decode.moment(n, unit);
    this.element.dataset.moment = t;
    const before = n ? decode.moment(n - 1, unit) : 0;
    this.board.draw(t, before);
    for (const chart of this.charts) chart.draw(n);
    this.history.draw(position, t);
    this.showNumbers(t, decode.numbers(t, before), unit);
    const finished = decode.over && t >= decode.length;
    this.status.textContent = decode.over ? '' : ' decoding';
    this.constraint.textContent = visible(decode.constraint);
    this.constraint.hidden = !decode.constraint;
    this.answer.textContent = decode.error ? decode.error.message : finished && decode.end ? decode.end.text : '';
    this.answer.classList.toggle('failed', decode.error !== null);
  }

  showNumbers(t, found, unit) {
    const {decode, values} = this;
    const of = (value, all) => [`${value}`, make('small', {}, ` of ${all}`)];
    const back = found.takenBack ? ` −${found.takenBack}` : '';
    const shown = {
      step: decode.length === decode.forwards ? [] : of(t, decode.length),
      forwards: of(found.forwards, decode.forwards),
      change: [`+${found.committed}${back}`],
      tokens: of(found.known, decode.size),
      rate: [found.rate === null ? '–' : found.rate.toFixed(2)],
      visible: this.player.answers ? [found.visible === null ? '–' : `${found.visible}`] : [],
      seconds: found.seconds === undefined ? [] : [found.seconds.toFixed(found.seconds < 10 ? 2 : 1)],
      MHCO: found.mhco ? [percent(found.mhco.candidates), make('small', {}, ` · ${percent(found.mhco.extent)} by extent`)] : [],
    };
    for (const [name, parts] of Object.entries(shown)) {
      values[name].replaceChildren(...parts);
      values[name].parentElement.hidden = parts.length === 0;
    }
    values.change.previousSibling.textContent = unit === 'step' ? 'this step' : 'this pass';
  }

  mark(position) {
    this.board.mark(position);
    for (const chart of this.charts) chart.mark(position);
  }

  /** Show the tools for the position that the reader keeps, if this page has any. */
  showTools(position) {
    const {tools} = this.player;
    this.tools.hidden = position === null || !tools;
    this.tools.replaceChildren(...(this.tools.hidden ? [] : tools(this, position)));
  }
}

class Player {
  /** `sides`: panes at most; `answers`: show them below; `tools`: what a kept position offers. */
  constructor({sides = 2, answers = false, tools = null} = {}) {
    this.sides = sides;
    this.answers = answers;
    this.tools = tools;
    this.decodes = [];
    this.panes = [];
    this.n = 0;
    this.unit = 'forward'; // the cost of a decode, so strategies are compared at equal cost
    this.pinned = null;
    this.pointed = null;
    this.timer = null;
    this.listen();
    byId('terms').append(...NUMBERS.flatMap(([name, words, meaning]) =>
      [make('dt', {}, name === 'change' ? 'this pass' : words), make('dd', {}, meaning)]));
    byId('swatches').append(...Array.from({length: 10}, (_, k) => make('i', {class: `p${k}`})));
  }

  get length() {
    return Math.max(0, ...this.panes.map((pane) => pane.decode.lengthIn(this.unit)));
  }

  get position() {
    return this.pointed === null ? this.pinned : this.pointed;
  }

  /** Show decodes: recorded ones, or ones that still grow. */
  show(decodes) {
    this.pause();
    this.decodes = decodes;
    this.shown = decodes.slice(0, this.sides).map((_, number) => number);
    this.pinned = this.pointed = null;
    byId('player').hidden = decodes.length === 0;
    byId('fold').checked = decodes.some((decode) => decode.filled > 64);
    this.build();
    this.go(this.length);
  }

  /** Begin in the middle: an empty and a finished canvas both hide what the player is about. */
  openInTheMiddle() {
    this.pin(this.decodes[0].leastSure());
    this.go(Math.round(0.4 * this.length));
  }

  choose(side, number) {
    this.shown[side] = number;
    this.build();
    this.go(Math.min(this.n, this.length));
    byId('panes').children[side].querySelector('select').focus();
  }

  turns(decode) {
    return decode.prompt.map(([role, text]) => {
      const body = make('span', {class: 'said'}, text);
      return make('p', {}, role ? make('span', {class: 'role'}, role) : null, body);
    });
  }

  build() {
    this.panes = this.shown.map((number, side) => new Pane(this.decodes[number], this, side));
    byId('panes').replaceChildren(...this.panes.map((pane) => pane.element));
    byId('panes').className = ['', 'one', 'two', 'three'][this.panes.length];
    // The panes share one prompt above them, or each has its own.
    const prompts = this.panes.map((pane) => JSON.stringify(pane.decode.prompt));
    const common = prompts.every((prompt) => prompt === prompts[0]);
    for (const pane of this.panes) {
      const lead = common ? byId('lead') : pane.lead;
      lead.replaceChildren(...this.turns(pane.decode));
      lead.hidden = !lead.children.length;
    }
    if (!common) byId('lead').hidden = true;
    this.showLegend();
    this.paint();
    this.point(null);
    this.fold();
  }

  /** Take in what was added to a decode. */
  update() {
    const following = this.timer === null && this.n >= this.painted;
    this.showLegend();
    if (this.painted !== this.length) this.paint();
    this.draw(following ? this.length : this.n);
  }

  showLegend() {
    for (const one of document.querySelectorAll('[data-when]')) {
      one.hidden = !this.panes.some((pane) => pane.decode.has[one.dataset.when]);
    }
  }

  /** Paint what depends on the length, the size, the colours or the axis. */
  paint() {
    this.painted = this.length;
    byId('scrub').max = this.length;
    for (const pane of this.panes) for (const chart of pane.charts) chart.paint(this.unit, this.length);
  }

  /** Draw a moment, and stop playing at the end. */
  go(n) {
    this.draw(n);
    if (n >= this.length && this.panes.every((pane) => pane.decode.over)) this.pause();
  }

  draw(n) {
    this.n = n;
    const scrub = byId('scrub');
    scrub.value = n;
    const unit = this.unit === 'step' ? 'step' : 'pass';
    scrub.setAttribute('aria-valuetext', `${unit} ${n} of ${this.length}`);
    scrub.style.setProperty('--done', `${(100 * n) / Math.max(this.length, 1)}%`);
    byId('moment').textContent = `${unit} ${n} / ${this.length}`;
    for (const pane of this.panes) pane.draw(n, this.unit, this.position);
  }

  seek(n) {
    this.pause();
    this.go(Math.min(Math.max(n, 0), this.length));
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

  /** Show the history of a position for as long as something points at it. */
  point(position) {
    this.pointed = position;
    for (const pane of this.panes) {
      pane.mark(this.position);
      pane.history.draw(this.position, pane.decode.moment(this.n, this.unit));
    }
  }

  /** Have the histories read aloud by a screen reader, or not. */
  readAloud(on) {
    for (const pane of this.panes) pane.history.element.setAttribute('aria-live', on ? 'polite' : 'off');
  }

  /** Keep the history of a position, or let go of it. */
  pin(position) {
    this.pinned = this.pinned === position ? null : position;
    this.point(this.pinned);
    for (const pane of this.panes) pane.showTools(this.pinned);
  }

  setUnit(unit) {
    if (!this.panes.length) return;
    // Stay where the first decode is.
    const {decode} = this.panes[0];
    const t = decode.moment(this.n, this.unit);
    this.unit = unit;
    this.paint();
    this.go(Math.min(unit === 'step' ? t : t ? decode.steps[t - 1].forwards : 0, this.length));
  }

  fold() {
    byId('panes').toggleAttribute('data-folded', byId('fold').checked);
  }

  listen() {
    const on = (id, kind, what) => byId(id).addEventListener(kind, what);
    on('first', 'click', () => this.seek(0));
    on('back', 'click', () => this.seek(this.n - 1));
    on('play', 'click', () => this.toggle());
    on('on', 'click', () => this.seek(this.n + 1));
    on('last', 'click', () => this.seek(this.length));
    on('scrub', 'input', () => this.seek(Number(byId('scrub').value)));
    on('speed', 'change', () => this.timer !== null && this.play());
    on('fold', 'change', () => this.fold());
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
    if (uses('input[type=text]')) return;
    if (event.key === 'Escape') this.pin(this.pinned);
    else if (event.key === ' ' && !uses('button, select, input[type=checkbox], input[type=radio]')) this.toggle();
    else if (event.key === ',') this.seek(this.n - 1);
    else if (event.key === '.') this.seek(this.n + 1);
    else if (uses('select, input')) return; // these have arrows of their own
    else if (event.key === 'ArrowLeft') this.seek(this.n - 1);
    else if (event.key === 'ArrowRight') this.seek(this.n + 1);
    else if (event.key === 'Home') this.seek(0);
    else if (event.key === 'End') this.seek(this.length);
    else return;
    event.preventDefault();
  }
}

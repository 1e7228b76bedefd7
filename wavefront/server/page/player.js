// The player: decodes side by side, moved through together.

const SPEEDS = {slow: 4, normal: 12, fast: 40};

class Pane {
  constructor(reel, player) {
    this.reel = reel;
    this.player = player;
    const go = (step) => player.go(step);
    this.board = new Board(reel, (place) => this.inspect(place));
    this.charts = [new HeatMap(reel, go), new Frontier(reel, go)];
    this.numbers = make('dl', {class: 'numbers'});
    this.answer = make('p', {class: 'answer'});
    this.tools = make('div', {class: 'tools', hidden: ''});
    this.status = make('span', {class: 'status'});
    const title = make('h2', {}, make('span', {class: 'spec'}, reel.facts.title), this.status);
    this.element = make(
      'section', {class: 'pane', 'aria-label': reel.facts.title},
      title, this.numbers, this.board.element, this.tools, this.answer,
      ...this.charts.map((chart) => chart.element),
    );
    this.painted = -1;
  }

  inspect(place) {
    this.tools.hidden = place === null;
    this.place = place;
    this.tools.replaceChildren();
    if (place === null) return;
    const list = make('ol', {});
    for (const {step, text, p} of this.reel.history[place]) {
      const what = text === null ? 'taken back' : `“${visible(text)}” ${p === null ? 'given' : chance(p)}`;
      list.append(make('li', {}, step ? `step ${step}: ${what}` : what));
    }
    this.tools.append(make('p', {class: 'head'}, `Place ${place + 1}`), list);
    if (this.player.onFork) this.tools.append(this.player.onFork(this, place));
  }

  show(step) {
    const here = Math.min(step, this.reel.length);
    this.here = here;
    this.board.draw(here);
    const found = this.reel.start ? this.reel.numbers(here) : null;
    this.numbers.replaceChildren(...(found ? this.rows(found) : []));
    const of = this.reel.facts.of ? ` of ${this.reel.facts.of}` : '';
    this.status.textContent = this.reel.over ? of : `${of} decoding`;
    const done = this.reel.end !== null && here >= this.reel.length;
    this.answer.textContent = this.reel.error ? this.reel.error.message : done ? this.reel.end.text : '';
    this.answer.className = this.reel.error ? 'answer failed' : 'answer';
    for (const chart of this.charts) {
      if (this.painted !== this.reel.length) chart.paint();
      chart.draw(here);
    }
    this.painted = this.reel.length;
  }

  rows(found) {
    const row = (name, value, title) => make('div', {title}, make('dt', {}, name), make('dd', {'data-number': name}, value));
    const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
    const rows = [
      row('forwards', String(found.forwards), 'Passes through the model'),
      row('seconds', seconds(found.seconds), 'Since it got a row; others may share the machine'),
      row('tokens per forward', found.rate.toFixed(2), 'Places decided; visible tokens at the end'),
    ];
    if (found.visible !== null) rows.push(row('tokens', String(found.visible), 'Visible, up to the end token'));
    if (found.mhco) {
      const both = `${percent(found.mhco.candidates)} · ${percent(found.mhco.extent)}`;
      rows.push(row('MHCO', both, 'Commits that a surer place within 2 had to wait for: outside the candidates · beyond the extent'));
    }
    return rows;
  }

  paint() {
    this.painted = -1;
    this.show(this.player.step);
  }
}

class Player {
  constructor() {
    this.panes = [];
    this.step = 0;
    this.follow = true; // the newest step is shown
    this.timer = null;
    byId('scrub').addEventListener('input', (event) => this.go(Number(event.target.value)));
    byId('play').addEventListener('click', () => this.toggle());
    byId('back').addEventListener('click', () => this.go(this.step - 1));
    byId('on').addEventListener('click', () => this.go(this.step + 1));
    document.addEventListener('keydown', (event) => this.key(event));
    window.addEventListener('resize', () => this.paint());
  }

  get length() { return Math.max(0, ...this.panes.map((pane) => pane.reel.length)); }

  show(reels) {
    this.stop();
    this.panes = reels.map((reel) => new Pane(reel, this));
    this.step = 0;
    this.follow = true;
    const box = byId('panes');
    box.dataset.count = this.panes.length;
    box.replaceChildren(...this.panes.map((pane) => pane.element));
    byId('stage').hidden = this.panes.length === 0;
    this.update();
  }

  /** Something was added to a reel. */
  update() {
    if (this.follow && !this.timer) this.step = this.length;
    this.draw();
  }

  go(step) {
    this.stop();
    this.step = Math.min(Math.max(step, 0), this.length);
    this.follow = this.step === this.length;
    this.draw();
  }

  draw() {
    const scrub = byId('scrub');
    scrub.max = this.length;
    scrub.value = this.step;
    scrub.style.setProperty('--done', `${(100 * this.step) / Math.max(this.length, 1)}%`);
    scrub.setAttribute('aria-valuetext', `step ${this.step} of ${this.length}`);
    byId('moment').textContent = `step ${this.step} / ${this.length}`;
    for (const pane of this.panes) pane.show(this.step);
  }

  paint() { for (const pane of this.panes) pane.paint(); }

  toggle() {
    if (this.timer) return this.stop();
    if (this.step >= this.length) this.step = 0;
    const play = byId('play');
    play.textContent = 'Pause';
    this.timer = setInterval(() => {
      this.step = Math.min(this.step + 1, this.length);
      if (this.step >= this.length && this.panes.every((pane) => pane.reel.over)) this.stop();
      this.follow = this.step >= this.length;
      this.draw();
    }, 1000 / (SPEEDS[byId('speed').value] || 12));
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId('play').textContent = 'Play';
  }

  key(event) {
    const inside = event.target.closest('input, textarea, select, button, summary, [role=button]');
    const slider = event.target.id === 'scrub';
    if (event.ctrlKey || event.metaKey || event.altKey || !this.panes.length) return;
    if (inside && !(slider && event.key === ' ')) return;
    const to = {ArrowRight: this.step + 1, ArrowLeft: this.step - 1, Home: 0, End: this.length}[event.key];
    if (event.key === ' ') this.toggle();
    else if (to !== undefined) this.go(to);
    else return;
    event.preventDefault();
  }
}

/** The whole page, in a file that was shared. */
function startShared() {
  const data = JSON.parse(byId('data').textContent);
  byId('prompt').textContent = data.prompt;
  byId('model').textContent = data.model;
  const player = new Player();
  player.show(data.reels.map((saved) => Reel.load(saved)));
  watchTheme(() => player.paint());
}

// A decode as a list of steps: made of the events of a server, live or from a file.

class Reel {
  /** `facts`: id, title, and of a fork what it is a fork of. */
  constructor(facts) {
    this.facts = facts;
    this.start = null;
    this.steps = [];
    this.end = null;
    this.error = null;
    this.events = []; // as received, for sharing
    this.history = []; // per place: [{step, text, p, token}], text null where it was taken back
    this.edges = []; // per step: leftmost masked place, furthest committed one
  }

  get places() { return this.start ? this.start.places : 0; }
  get length() { return this.steps.length; }
  get over() { return this.end !== null || this.error !== null; }
  get forwards() { return this.length ? this.steps[this.length - 1].forwards : 0; }

  add(event) {
    this.events.push(event);
    if (event.type === 'start') this.begin(event);
    else if (event.type === 'error') this.error = event.error;
    else if (event.type === 'step') this.step(event);
  }

  begin(event) {
    this.start = event;
    this.stops = new Set(event.stop_ids);
    this.history = Array.from({length: event.places}, () => []);
    for (const [place, token, text] of event.given) {
      this.history[place].push({step: 0, text, p: null, token});
    }
  }

  step(event) {
    this.steps.push(event);
    const number = this.steps.length;
    for (const [place, token, text, p] of event.commits) {
      this.history[place].push({step: number, text, p, token});
    }
    for (const place of event.back) this.history[place].push({step: number, text: null, p: 0, token: -1});
    this.edges.push(this.edge(number));
    if (event.end) this.end = event.end;
  }

  edge(number) {
    let [first, last] = [this.places, -1];
    for (let place = 0; place < this.places; place++) {
      if (this.at(place, number)) last = place;
      else if (first === this.places) first = place;
    }
    return [first, last];
  }

  /** What stands at a place after so many steps: an entry of its history, or null. */
  at(place, step) {
    const list = this.history[place];
    for (let n = list.length - 1; n >= 0; n--) {
      if (list[n].step <= step) return list[n].text === null ? null : list[n];
    }
    return null;
  }

  /** The place of the first end token after so many steps; what follows it is not read. */
  endAt(step) {
    for (let place = 0; place < this.places; place++) {
      const entry = this.at(place, step);
      if (!entry) return Infinity; // not yet settled from the left
      if (this.stops.has(entry.token)) return place;
    }
    return Infinity;
  }

  known(step) {
    let count = 0;
    for (let place = 0; place < this.places; place++) count += this.at(place, step) !== null;
    return count;
  }

  numbers(step) {
    const last = this.steps[step - 1];
    const forwards = last ? last.forwards : 0;
    const done = this.end !== null && step >= this.length;
    let written = 0;
    for (const one of this.steps.slice(0, step)) written += one.commits.length - one.back.length;
    return {
      forwards,
      seconds: last ? last.seconds : 0,
      places: this.known(step),
      rate: forwards ? (done ? this.end.tokens - this.start.given.length : written) / forwards : 0,
      visible: done ? this.end.tokens : null,
      mhco: done ? this.end.mhco : null,
    };
  }

  /** What goes into a shared file. */
  save() {
    return {facts: {title: this.facts.title, of: this.facts.of || null}, events: this.events};
  }

  static load(saved) {
    const reel = new Reel(saved.facts);
    for (const event of saved.events) reel.add(event);
    return reel;
  }
}

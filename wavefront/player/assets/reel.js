// A recorded decode. Moment t is what stands after t steps; steps count from 0.

const unpack = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

class Reel {
  constructor(data, texts, number) {
    this.number = number;
    this.title = data.title;
    this.place = data.place;
    this.ids = data.ids;
    this.lead = data.lead;
    this.board = data.board;
    this.final = data.final;
    this.fill = data.fill;
    this.launched = data.launched;
    this.texts = texts;
    this.steps = data.launched.length;
    this.places = data.final.length;
    this.forwards = this.steps ? data.launched[this.steps - 1] : 0;
    this.others = data.others || null;
    this.stops = new Set(data.stops);
    this.filled = data.fill.reduce((sum, one) => sum + one, 0);
    this.scope = unpack(data.scope);
    this.front = unpack(data.front);
    this.stride = Math.ceil(this.places / 8);
    this.takesBack = data.remasks.length > 0;
    this.hasHand = data.by_hand.length > 0;
    this.joins = new Map();
    for (const [first, count, text] of data.joins) {
      for (let k = 0; k < count; k++) this.joins.set(first + k, {first, count, text, k});
    }
    this.readEvents(data);
    this.readBeliefs(data.beliefs);
  }

  readEvents(data) {
    this.events = Array.from({length: this.places}, () => []);
    this.committed = new Array(this.steps).fill(0);
    this.takenBack = new Array(this.steps).fill(0);
    data.commits.forEach(([step, at, text, p], index) => {
      this.events[at].push({step, text, p, index});
      this.committed[step] += 1;
    });
    for (const [step, at] of data.remasks) {
      this.events[at].push({step, text: -1});
      this.takenBack[step] += 1;
    }
    for (const [step, at, text] of data.by_hand) this.events[at].push({step, text, hand: true});
    // Within a step: what was written by hand, then a commit, which may be taken back at once.
    const order = (event) => (event.hand ? 0 : event.text >= 0 ? 1 : 2);
    const change = new Array(this.steps).fill(0);
    for (const list of this.events) {
      list.sort((a, b) => a.step - b.step || order(a) - order(b));
      let stands = false;
      for (const event of list) {
        if ((event.text >= 0) !== stands) change[event.step] += stands ? -1 : 1;
        stands = event.text >= 0;
      }
    }
    this.known = [0];
    change.forEach((more, step) => this.known.push(this.known[step] + more));
  }

  readBeliefs(found) {
    if (!found) return;
    const tokens = unpack(found.tokens);
    this.beliefs = {
      count: found.count,
      tokens: new Uint32Array(tokens.buffer),
      chance: unpack(found.chance),
    };
  }

  /** The last event of a place before moment t; undefined when nothing has happened. */
  at(place, t) {
    const list = this.events[place];
    for (let k = list.length - 1; k >= 0; k--) if (list[k].step < t) return list[k];
    return undefined;
  }

  has(bits, step, place) {
    if (step < 0 || step >= this.steps) return false;
    return ((bits[step * this.stride + (place >> 3)] >> (7 - (place & 7))) & 1) === 1;
  }

  /** What the model thought of a place at a step: [text, probability], best first. */
  belief(step, place) {
    if (!this.beliefs || step < 0) return [];
    const {count, tokens, chance: chances} = this.beliefs;
    const start = (step * this.places + place) * count;
    return Array.from({length: count}, (_, k) => [tokens[start + k], chances[start + k] / 255]);
  }

  /** The moment that belongs to n on an axis of steps or of forwards. */
  moment(n, unit) {
    if (unit === 'step') return Math.min(n, this.steps);
    let [low, high] = [0, this.steps];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.launched[middle] <= n) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The place of the least probable commit that is read in the end. */
  leastSure() {
    let [found, lowest] = [null, Infinity];
    this.events.forEach((list, place) => {
      for (const {p} of this.fill[place] ? [] : list) if (p < lowest) [found, lowest] = [place, p];
    });
    return found;
  }

  length(unit) {
    return unit === 'step' ? this.steps : this.forwards;
  }

  name(text) {
    return text < 0 ? 'masked' : this.texts[text];
  }
}

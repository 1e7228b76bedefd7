// One decode, built event by event: live from a server or from a recorded file.
// The events are described in `player_data.py`. Moment t is the state after t steps; steps count
// from 0. Tokens are ids, and `texts` holds what they read as.

const BREAK = '⏎';

const unpack = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Replace invisible characters by signs. A text that was treated before stays as it is. */
function visible(text) {
  const shown = text.replace(/[\u0000-\u0009\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)));
  return shown.replace(/⏎?\n/g, `${BREAK}\n`).replace(/\u007f/g, '␡')
    .replace(/(?!\n)[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, '�') || '·';
}

/** The constraint of a decode in one line; empty if there is none. */
function constraintOf(options) {
  if (options.choices) return `choices: ${options.choices.join(', ')}`;
  if (options.regex !== undefined) return `regex: ${options.regex}`;
  return options.schema === undefined ? '' : `schema: ${options.schema}`;
}

class Decode {
  /** `about` has a title and, where known, an id, a file, and the title of the forked decode. */
  constructor(about) {
    this.about = about;
    this.received = []; // the events as they came, for sharing
    this.recorded = false;
    this.end = null;
    this.error = null;
    this.begin({places: 0, given: [], around: null, stop_ids: []});
  }

  static load({events, ...about}) {
    const decode = new Decode(about);
    for (const event of events) decode.add(event);
    decode.recorded = true;
    return decode;
  }

  /** The decode for a shared file. */
  save(prompt) {
    const [start, ...steps] = this.received;
    const {title, of} = this.about;
    return {title, of, events: [{...start, prompt: [['', prompt]]}, ...steps]};
  }

  get length() { return this.steps.length; }
  get forwards() { return this.length ? this.steps[this.length - 1].forwards : 0; }
  get over() { return this.recorded || this.end !== null || this.error !== null; }

  add(event) {
    this.received.push(event);
    if (event.type === 'start') this.begin(event);
    else if (event.type === 'step') this.addStep(event);
    else if (event.type === 'error') this.error = event.error;
  }

  begin(event) {
    this.size = event.places;
    this.around = event.around || [event.places];
    this.stops = new Set(event.stop_ids);
    this.prompt = event.prompt || [];
    this.showIds = Boolean(event.show_ids);
    this.alternatives = event.alternatives || 0;
    this.texts = new Map(Object.entries(event.texts || {}).map(([token, text]) => [Number(token), text]));
    this.joins = new Map();
    for (const [first, count, text] of event.joins || []) {
      for (let k = 0; k < count; k++) this.joins.set(first + k, {first, count, text, k});
    }
    this.steps = [];
    this.history = Array.from({length: this.size}, () => []);
    this.final = new Array(this.size).fill(-1);
    this.known = []; // at each moment: the number of filled positions
    this.edges = []; // at each moment: the leftmost masked and the last filled position
    this.has = {back: false, hand: event.given.length > 0, front: false, fill: false, pinned: false};
    this.pinned = new Set(); // the positions that a constraint leaves no choice about
    this.constraint = constraintOf(event.options || {});
    this.given = event.given.length;
    for (const [position, token, text] of event.given) this.note(position, {step: -1, token, p: null}, text);
    this.finishMoment();
  }

  addStep(event) {
    const step = this.length;
    for (const [position, token, text] of event.written || []) {
      this.note(position, {step, token, p: null}, text);
      this.has.hand = true;
    }
    for (const [position, token, text, p, others] of event.commits) this.note(position, {step, token, p, others}, text);
    for (const position of event.back) this.note(position, {step, token: -1});
    const found = {
      forwards: event.forwards,
      seconds: event.seconds,
      committed: event.commits.length,
      takenBack: event.back.length,
      front: this.board(event.front),
      scope: this.board(event.scope),
      sure: event.sure ? new Map(event.sure) : null,
    };
    if (event.beliefs) {
      found.tokens = new Uint32Array(unpack(event.beliefs.tokens).buffer);
      found.chance = unpack(event.beliefs.chance);
    }
    this.steps.push(found);
    this.has.back ||= event.back.length > 0;
    this.has.front ||= found.front.includes(1);
    if (event.end) {
      this.end = event.end;
      this.pinned = new Set(event.end.pinned || []);
      this.has.pinned = this.pinned.size > 0;
    }
    this.finishMoment();
  }

  note(position, entry, text) {
    if (text !== undefined) this.texts.set(entry.token, visible(text));
    this.history[position].push(entry);
    this.final[position] = entry.token;
  }

  /** Positions, as a list or as base64 bits, as one byte for each position. */
  board(field) {
    const found = new Uint8Array(this.size);
    if (typeof field !== 'string') for (const position of field || []) found[position] = 1;
    else unpack(field).forEach((byte, n) => {
      for (let k = 0; k < 8 && 8 * n + k < this.size; k++) found[8 * n + k] = (byte >> (7 - k)) & 1;
    });
    return found;
  }

  finishMoment() {
    const filled = this.final.map((token) => token >= 0);
    const open = filled.indexOf(false);
    this.known.push(filled.reduce((sum, one) => sum + one, 0));
    this.edges.push([open < 0 ? this.size : open, filled.lastIndexOf(true)]);
    this.fill = []; // positions of a hole from its first stop token on: nobody reads them
    for (const part of this.around) {
      let ended = false;
      for (let n = 0; typeof part === 'number' && n < part; n++) {
        ended = ended || this.stops.has(this.final[this.fill.length]);
        this.fill.push(ended);
      }
    }
    this.filled = this.fill.reduce((sum, one) => sum + one, 0);
    this.has.fill = this.filled > 0;
  }

  /** The last entry of a position before moment t, or undefined. */
  at(position, t) {
    const list = this.history[position];
    for (let k = list.length - 1; k >= 0; k--) if (list[k].step < t) return list[k];
    return undefined;
  }

  isIn(board, step, position) {
    const found = this.steps[step];
    return found !== undefined && found[board][position] === 1;
  }

  /** The best probability of a position at a step; null if it is unknown. */
  best(step, position) {
    const found = this.steps[step];
    if (!found) return null;
    if (found.sure) return found.sure.has(position) ? found.sure.get(position) : null;
    return found.chance ? found.chance[position * this.alternatives] / 255 : null;
  }

  /** The likeliest tokens of a position at a step: [token, probability], best first. */
  belief(step, position) {
    const {tokens, chance: chances} = this.steps[step] || {};
    if (!tokens) return [];
    const start = position * this.alternatives;
    return Array.from({length: this.alternatives}, (_, k) => [tokens[start + k], chances[start + k] / 255]);
  }

  /** The moment that belongs to n on an axis of steps or of forward passes. */
  moment(n, unit) {
    if (unit === 'step') return Math.min(n, this.length);
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle].forwards <= n) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  lengthIn(unit) {
    return unit === 'step' ? this.length : this.forwards;
  }

  /** The position of the least probable commit that is read in the end. */
  leastSure() {
    let [found, lowest] = [null, Infinity];
    this.history.forEach((list, position) => {
      for (const {p} of this.fill[position] ? [] : list) {
        if (p !== null && p < lowest) [found, lowest] = [position, p];
      }
    });
    return found;
  }

  /** The counts at moment t; what happened from step `before` on is new. */
  numbers(t, before) {
    const forwards = t ? this.steps[t - 1].forwards : 0;
    const fresh = this.steps.slice(before, t);
    const count = (key) => fresh.reduce((sum, step) => sum + step[key], 0);
    const end = this.end !== null && t >= this.length ? this.end : null;
    const written = (end ? end.tokens : this.known[t]) - this.given;
    return {
      forwards,
      committed: count('committed'),
      takenBack: count('takenBack'),
      known: this.known[t],
      rate: forwards ? written / forwards : null,
      visible: end ? end.tokens : null,
      seconds: t ? this.steps[t - 1].seconds : undefined,
      mhco: end && end.mhco ? end.mhco : null,
    };
  }
}

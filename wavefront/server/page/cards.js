// The strategies to decode with: one card each, at most three.

// The options with a field of their own: label, and the letter of the paper. All count positions.
const WAVE = {size: ['Wave size', 'F'], radius: ['Radius', 'R']};
const BLOCK = {size: ['Block size', 'B']};
const FIELDS = {wavefront: WAVE, tide: WAVE, block: BLOCK, adablock: BLOCK, dsb: BLOCK};
// The default of the server, until it has sent its own. A test compares it with the package's.
const DEFAULT = 'block(size=32, selector=threshold(tau=0.99, floor=None))';
// The strategies to compare with, in this order, all with one token per step.
const COMPARED = {wavefront: 'wavefront(size=8, radius=2)', block: 'block(size=8)', standard: 'standard()'};
let strategies = COMPARED; // the recommended spec of every strategy, once the server has sent them

const THRESHOLD = /\bselector=threshold\((?:tau=)?([\d.]+)[^()]*\)/;
const SELECTOR = /\bselector=\w+\([^()]*\)/;

/** A spec with one option set to another value. */
function withOption(spec, name, value) {
  const old = new RegExp(`\\b${name}=[\\w.]+`);
  if (old.test(spec)) return spec.replace(old, `${name}=${value}`);
  return spec.replace('(', spec.endsWith('()') ? `(${name}=${value}` : `(${name}=${value}, `);
}

/** A spec with this threshold as its selector; '' stands for none, which is a quota. */
function withThreshold(spec, tau) {
  if (tau !== '' && THRESHOLD.test(spec)) return spec.replace(THRESHOLD, (all, old) => all.replace(old, tau));
  const selector = tau === '' ? 'selector=quota()' : `selector=threshold(tau=${tau})`;
  // Cascade rounds need a threshold.
  const plain = tau === '' ? spec.replace(/\bcascade_rounds=\d+/, 'cascade_rounds=0') : spec;
  if (SELECTOR.test(plain)) return plain.replace(SELECTOR, selector);
  return `${plain.slice(0, -1)}${plain.endsWith('()') ? '' : ', '}${selector})`;
}

/** A number with its name, its letter and its unit. */
function field(label, letter, unit, input) {
  return make('label', {class: 'mini'}, make('span', {}, label, ' ', make('i', {}, letter), ' ', make('small', {}, unit)), input);
}

const cards = () => [...byId('cards').children];

/** The name of a strategy in a spec. */
const nameOf = (spec) => spec.split('(')[0];

/** Add a card for the first strategy to compare with that has none. */
function addCompared() {
  const shown = cards().map((card) => card.querySelector('.spec-input').value);
  const next = Object.values(COMPARED).find((spec) => !shown.includes(spec));
  addCard(nameOf(next), next);
}

/** Add a card: the name of a strategy, its options, a threshold, and the resulting spec string. */
function addCard(name, given) {
  const select = make('select', {'aria-label': 'Strategy'}, ...Object.keys(strategies).map((one) => make('option', {value: one}, one)));
  select.value = name in strategies ? name : Object.keys(strategies)[0];
  const fields = make('span', {class: 'fields'});
  const tau = make('input', {type: 'number', min: 0, max: 1, step: 0.001, placeholder: 'off'});
  const spec = make('input', {class: 'spec-input', type: 'text', spellcheck: 'false', 'aria-label': 'Strategy as a spec string'});
  const away = make('button', {type: 'button', class: 'quiet', 'aria-label': 'Remove this strategy'}, '×');
  /** Show a spec, and fill the fields from it. */
  const show = (text) => {
    const numbers = Object.entries(FIELDS[select.value] || {}).map(([key, [label, letter]]) => {
      const [, value = ''] = text.match(new RegExp(`\\b${key}=(\\d+)`)) || [];
      return field(label, letter, 'positions', make('input', {type: 'number', name: key, min: 1, max: 4096, value}));
    });
    fields.replaceChildren(...numbers);
    [, tau.value = ''] = text.match(THRESHOLD) || [];
    spec.value = text;
  };
  select.addEventListener('change', () => show(strategies[select.value]));
  fields.addEventListener('input', ({target}) => {
    if (target.value !== '') spec.value = withOption(spec.value, target.name, target.value);
  });
  tau.addEventListener('input', () => {
    spec.value = withThreshold(spec.value, tau.value);
  });
  away.addEventListener('click', () => {
    card.remove();
    countCards();
  });
  const threshold = field('Threshold', 'τ', '0 to 1', tau);
  threshold.title = 'Commit every position with at least this probability';
  const card = make('li', {class: 'card'}, make('div', {class: 'line'}, select, fields, threshold, away), spec);
  byId('cards').append(card);
  show(given || strategies[select.value]);
  countCards();
}

function countCards() {
  const count = cards().length;
  byId('add').hidden = count >= 3;
  for (const card of cards()) card.querySelector('button').hidden = count === 1;
}

// The strategies to decode with: one card each, at most three.

// The options with a field of their own: the letter of the paper and the first value.
const PRESETS = {
  wavefront: {size: ['F', 8], radius: ['R', 2]},
  tide: {size: ['F', 8], radius: ['R', 2]},
  block: {size: ['B', 8]},
  adablock: {size: ['B', 16]},
  dsb: {size: ['B', 32]},
};
let strategies = {wavefront: '', block: '', standard: ''};

const cards = () => [...byId('cards').children];

/** Add a card: the name of a strategy, its options, a threshold, and the resulting spec string. */
function addCard(name) {
  const select = make('select', {'aria-label': 'Strategy'}, ...Object.keys(strategies).map((one) => make('option', {value: one}, one)));
  select.value = name in strategies ? name : Object.keys(strategies)[0];
  const fields = make('span', {class: 'fields'});
  const tau = make('input', {type: 'number', min: 0, max: 1, step: 0.05, placeholder: 'off', 'aria-label': 'Threshold: commit every position with at least this probability'});
  const spec = make('input', {class: 'spec-input', type: 'text', spellcheck: 'false', 'aria-label': 'Strategy as a spec string'});
  const away = make('button', {type: 'button', class: 'quiet', 'aria-label': 'Remove this strategy'}, '×');
  const write = () => {
    const parts = [...fields.querySelectorAll('input')].map((one) => `${one.name}=${one.value}`);
    if (tau.value !== '') parts.push(`selector=threshold(tau=${tau.value})`);
    spec.value = `${select.value}(${parts.join(', ')})`;
  };
  const choose = () => {
    const numbers = Object.entries(PRESETS[select.value] || {}).map(([key, [letter, value]]) =>
      make('label', {class: 'mini'}, letter, make('input', {type: 'number', name: key, min: 1, max: 4096, value, 'aria-label': `${letter}: ${key}`})));
    fields.replaceChildren(...numbers);
    write();
  };
  select.addEventListener('change', choose);
  fields.addEventListener('input', write);
  tau.addEventListener('input', write);
  away.addEventListener('click', () => {
    card.remove();
    countCards();
  });
  const card = make('li', {class: 'card'}, make('div', {class: 'line'}, select, fields, make('label', {class: 'mini'}, 'τ', tau), away), spec);
  byId('cards').append(card);
  choose();
  countCards();
}

function countCards() {
  const count = cards().length;
  byId('add').hidden = count >= 3;
  for (const card of cards()) card.querySelector('button').hidden = count === 1;
}

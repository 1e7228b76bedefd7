// The page of a server: it sends requests, follows their events, forks decodes and shares files.

const DECODES = '/v1/wavefront/decodes';
const KEPT = 'wavefront.decodes'; // what this tab shows again after a reload; never the API key
const player = new Player({sides: 3, answers: true, tools: forkTools});
let running = []; // {decode, stop}
let shownPrompt = '';

/** Write to the live region of screen readers. */
function announce(text) {
  byId('announce').textContent = text;
}

/** Fetch with the API key; a failure becomes an Error with the server's message. */
async function ask(path, options = {}) {
  const headers = {...options.headers};
  if (byId('key').value) headers.Authorization = `Bearer ${byId('key').value}`;
  if (options.body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('Cannot reach the server.');
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* the body is not from this server */ }
  const error = new Error(message);
  error.status = response.status;
  throw error;
}

/** Read server-sent events with fetch, because EventSource cannot send a key. */
async function* events(path, signal) {
  const response = await ask(path, {signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  while (true) {
    const {done, value} = await reader.read();
    if (done) throw new Error('The stream ended early.');
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split('\n').find((line) => line.startsWith('data: '));
      if (!data) continue;
      if (data === 'data: [DONE]') return;
      yield JSON.parse(data.slice(6));
    }
  }
}

/** Follow a decode to its end; reconnect where a connection broke. */
async function follow(decode) {
  const control = new AbortController();
  const entry = {decode, stop: () => control.abort()};
  running.push(entry);
  buttons();
  for (let tries = 0; !decode.over && tries < 5; tries++) {
    try {
      for await (const event of events(`${DECODES}/${decode.about.id}/events?from=${decode.received.length}`, control.signal)) {
        decode.add(event);
        tries = 0;
        refresh();
      }
    } catch (error) {
      if (control.signal.aborted) decode.error = {message: 'Stopped.'};
      else if (error.status === 404 || error.status === 401 || tries === 4) decode.error = {message: error.message};
      else await new Promise((resolve) => setTimeout(resolve, 300 * (tries + 1)));
    }
  }
  running = running.filter((one) => one !== entry);
  player.update();
  buttons();
  if (control.signal.aborted) announce('Stopped.');
  else if (decode.error) complain(decode.error.message);
  else announce(`${decode.about.title} is done: ${decode.forwards} forward passes.`);
}

let due = false;
/** Draw once per frame, however many events arrived. */
function refresh() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    player.update();
  });
}

function complain(message) {
  byId('error').textContent = message;
  byId('error').hidden = !message;
}

function buttons() {
  byId('stop').hidden = running.length === 0;
  byId('decode').disabled = running.length > 0;
  byId('share').disabled = running.length > 0 || !player.panes.length;
}

/** The options that all strategies share. */
function common() {
  const number = (id) => (byId(id).value === '' ? null : Number(byId(id).value));
  const said = {
    steps: number('steps'), temperature: number('temperature'), seed: number('seed'),
    eos: byId('eos').value, measure: true,
  };
  return Object.fromEntries(Object.entries(said).filter(([, value]) => value !== null));
}

/** The field of the request that constrains the answer. */
function constraint() {
  const [kind, text] = [byId('constraint').value, byId('language').value];
  if (kind === 'regex') return {regex: text};
  if (kind === 'choices') return {choices: text.split('\n').filter((line) => line !== '')};
  if (kind !== 'schema') return {};
  try {
    return {response_format: {type: 'json_schema', json_schema: {name: 'answer', schema: JSON.parse(text)}}};
  } catch (error) {
    throw new Error(`The schema is not JSON: ${error.message}`);
  }
}

const LANGUAGES = {regex: 'Pattern', choices: 'One choice in each line', schema: 'Schema'};

function showConstraint() {
  const kind = byId('constraint').value;
  byId('language-box').hidden = kind === '';
  byId('language').required = kind !== '';
  byId('language-name').textContent = LANGUAGES[kind] || '';
}

const hasHoles = () => /<mask:\d+>/.test(byId('prompt').value);

async function begin(event) {
  event.preventDefault();
  complain('');
  const prompt = byId('prompt').value;
  const asked = {...common(), prompt};
  try {
    Object.assign(asked, constraint());
  } catch (error) {
    complain(error.message);
    return;
  }
  if (hasHoles()) asked.infill = true;
  else asked.max_new_tokens = Number(byId('length').value);
  announce('Decoding.');
  byId('decode').disabled = byId('share').disabled = true;
  const decodes = [];
  try {
    for (const card of cards()) {
      const strategy = card.querySelector('.spec-input').value;
      const body = JSON.stringify({...asked, strategy});
      const found = await (await ask(DECODES, {method: 'POST', body})).json();
      decodes.push(new Decode({id: found.id, title: strategy}));
    }
  } catch (error) {
    for (const decode of decodes) ask(`${DECODES}/${decode.about.id}`, {method: 'DELETE'}).catch(() => {});
    complain(error.message);
    buttons();
    return;
  }
  start(prompt, decodes);
  showCanvas();
}

/** Scroll to the player if the canvas would be below the fold, as it is on a phone. */
function showCanvas() {
  const room = 8 * parseFloat(getComputedStyle(root).fontSize); // about the height of a canvas
  const {top} = player.panes[0].board.element.getBoundingClientRect();
  const behavior = window.matchMedia('(prefers-reduced-motion: reduce)').matches ? 'auto' : 'smooth';
  if (top + room > window.innerHeight) byId('player').scrollIntoView({block: 'start', behavior});
}

function start(prompt, decodes) {
  for (const one of running) one.stop();
  shownPrompt = prompt;
  player.show(decodes);
  keep();
  for (const decode of decodes) if (!decode.over) follow(decode);
  buttons();
}

function keep() {
  const decodes = player.decodes.map((decode) => decode.about);
  sessionStorage.setItem(KEPT, JSON.stringify({prompt: shownPrompt, decodes}));
}

/** After a reload, show the decodes of this tab that the server still keeps. */
async function resume() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || 'null');
  if (!kept || !kept.decodes.length) return;
  byId('prompt').value = kept.prompt;
  const decodes = [];
  for (const about of kept.decodes) {
    const control = new AbortController();
    try {
      await ask(`${DECODES}/${about.id}/events`, {signal: control.signal});
      decodes.push(new Decode(about));
    } catch { /* the server no longer keeps it */ }
    control.abort();
  }
  if (decodes.length) start(kept.prompt, decodes);
}

/** The form below a kept position: fork the decode from the step shown. */
function forkTools(pane, position) {
  const token = pane.decode.final[position];
  const placeholder = token < 0 ? 'text' : pane.decode.texts.get(token);
  const input = make('input', {type: 'text', 'aria-label': `Text to write at position ${position + 1}`, placeholder});
  const button = make('button', {type: 'submit'}, 'Fork from here');
  const note = make('small', {}, 'Starts a new decode from the step shown. A text is written first.');
  const form = make('form', {class: 'fork'}, input, button, note);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    fork(pane, position, input.value);
  });
  return [make('p', {class: 'head'}, `Fork at position ${position + 1}`), form];
}

async function fork(pane, position, text) {
  complain('');
  const at = pane.decode.moment(player.n, player.unit);
  const put = text ? {[position]: text} : {};
  try {
    const body = JSON.stringify({at, put, measure: true});
    const found = await (await ask(`${DECODES}/${pane.decode.about.id}/fork`, {method: 'POST', body})).json();
    const what = text ? `, “${text}” at ${position + 1}` : '';
    const decode = new Decode({id: found.id, title: `fork at step ${at}${what}`, of: pane.decode.about.title});
    const others = player.panes.map((one) => one.decode).filter((one) => one.over);
    announce(`Forked at step ${at}.`);
    start(shownPrompt, [...others.slice(0, 2), decode]);
    showCanvas();
  } catch (error) {
    complain(error.message);
  }
}

/** Download one HTML file that plays the shown decodes without a server. */
async function share() {
  try {
    const page = await (await ask('/share.html')).text();
    const decodes = player.decodes.map((decode) => decode.save(shownPrompt));
    const options = {sides: 3, answers: true};
    const data = JSON.stringify({options, decodes}).replaceAll('<', '\\u003c');
    const [before, after] = page.split('__DATA__');
    const url = URL.createObjectURL(new Blob([before, data, after], {type: 'text/html'}));
    make('a', {href: url, download: 'wavefront.html'}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    announce('The file is ready.');
  } catch (error) {
    complain(error.message);
  }
}

function showHoles() {
  byId('length').disabled = hasHoles();
  byId('holes').hidden = !hasHoles();
}

let connected = false;

/** Fill the form with the options that the server uses for requests that do not set them. */
function useDefaults({strategy, steps, eos}) {
  // A strategy of the operator's own has no name here.
  const known = nameOf(strategy) in strategies ? strategy : DEFAULT;
  addCard(nameOf(known), known);
  if (steps) byId('steps').placeholder = steps;
  if (eos) byId('eos').value = eos;
}

/** Ask which model is served. If the API key is wrong, say so and wait for another. */
async function connect() {
  try {
    const {data} = await (await ask('/v1/models')).json();
    if (!data.length) throw new Error('The model is still loading.');
    strategies = data[0].wavefront.recommended;
    byId('model').textContent = data[0].id;
    const {summary} = data[0].wavefront;
    byId('about').textContent = summary ? `${data[0].id} is ${summary}. ` : '';
    complain('');
    const chosen = cards().map((card) => [card.querySelector('select').value, card.querySelector('.spec-input').value]);
    byId('cards').replaceChildren();
    if (connected) chosen.forEach(([name, spec]) => addCard(name, spec));
    else useDefaults(data[0].wavefront.defaults);
    connected = true;
    if (!player.panes.length) await resume();
  } catch (error) {
    if (error.status === 401) {
      byId('key-box').open = true;
      complain(byId('key').value ? error.message : 'This server requires an API key. Enter it above.');
    } else {
      complain(error.message);
      setTimeout(connect, 1500);
    }
  }
}

byId('form').addEventListener('submit', begin);
byId('constraint').addEventListener('change', showConstraint);
showConstraint();
byId('stop').addEventListener('click', () => {
  for (const {decode, stop} of running) {
    ask(`${DECODES}/${decode.about.id}`, {method: 'DELETE'}).catch(() => {});
    stop();
  }
});
byId('share').addEventListener('click', share);
byId('add').addEventListener('click', addCompared);
byId('key').addEventListener('change', connect);
byId('key-form').addEventListener('submit', (event) => event.preventDefault());
byId('prompt').addEventListener('input', showHoles);
byId('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) byId('form').requestSubmit();
});
watchTheme(() => player.paint());
addCard(nameOf(DEFAULT), DEFAULT);
showHoles();
buttons();
connect();

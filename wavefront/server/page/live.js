// The page on a server: what is asked, the streams that answer, forks, and files to share.

const DECODES = '/v1/wavefront/decodes';
const KEPT = 'wavefront.decodes'; // of this tab: what a reload shows again. Never the key.
const player = new Player();
let model = {id: '', chat: true};
let running = []; // {reel, stop}

/** fetch with the key; what is not fine becomes an Error with the server's own sentence. */
async function ask(path, options = {}) {
  const headers = {...options.headers};
  if (byId('key').value) headers.Authorization = `Bearer ${byId('key').value}`;
  if (options.body) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {...options, headers});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Error('The server cannot be reached.');
  }
  if (response.ok) return response;
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error.message;
  } catch { /* not one of our answers */ }
  const error = new Error(message);
  error.status = response.status;
  throw error;
}

/** Read server-sent events by fetch, which, unlike EventSource, can carry a key. */
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

/** Follow a decode to its end; a broken connection is taken up where it broke. */
async function follow(reel) {
  const control = new AbortController();
  const entry = {reel, stop: () => control.abort()};
  running.push(entry);
  buttons();
  for (let tries = 0; !reel.over && tries < 5; tries++) {
    try {
      for await (const event of events(`${DECODES}/${reel.facts.id}/events?from=${reel.events.length}`, control.signal)) {
        reel.add(event);
        tries = 0;
        refresh();
      }
    } catch (error) {
      if (control.signal.aborted) reel.error = {message: 'Stopped.'};
      else if (error.status === 404 || error.status === 401 || tries === 4) reel.error = {message: error.message};
      else await new Promise((resolve) => setTimeout(resolve, 300 * (tries + 1)));
    }
  }
  running = running.filter((one) => one !== entry);
  player.update();
  buttons();
  if (control.signal.aborted) announce('Stopped.');
  else if (reel.error) complain(reel.error.message);
  else announce(`${reel.facts.title} is done: ${reel.forwards} forwards.`);
}

let due = false;
/** Draw once a frame, however many events have come. */
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

/** The options that all strategies have in common. */
function common() {
  const number = (id) => (byId(id).value === '' ? null : Number(byId(id).value));
  const said = {
    steps: number('steps'), temperature: number('temperature'), seed: number('seed'),
    eos: byId('eos').value, measure: true,
  };
  return Object.fromEntries(Object.entries(said).filter(([, value]) => value !== null));
}

const hasHoles = () => /<mask:\d+>/.test(byId('prompt').value);

async function begin(event) {
  event.preventDefault();
  complain('');
  const prompt = byId('prompt').value;
  const asked = {...common(), prompt};
  if (hasHoles()) asked.infill = true;
  else asked.max_new_tokens = Number(byId('length').value);
  announce('Decoding.');
  byId('decode').disabled = byId('share').disabled = true;
  const reels = [];
  try {
    for (const card of cards()) {
      const strategy = card.querySelector('.spec-input').value;
      const body = JSON.stringify({...asked, strategy});
      const found = await (await ask(DECODES, {method: 'POST', body})).json();
      reels.push(new Reel({id: found.id, title: strategy}));
    }
  } catch (error) {
    for (const reel of reels) ask(`${DECODES}/${reel.facts.id}`, {method: 'DELETE'}).catch(() => {});
    complain(error.message);
    buttons();
    return;
  }
  start(prompt, reels);
}

function start(prompt, reels) {
  for (const one of running) one.stop();
  shownPrompt = prompt;
  player.show(reels);
  keep();
  for (const reel of reels) if (!reel.over) follow(reel);
  buttons();
}

let shownPrompt = '';

function keep() {
  const facts = player.panes.map((pane) => pane.reel.facts);
  sessionStorage.setItem(KEPT, JSON.stringify({prompt: shownPrompt, facts}));
}

/** After a reload: the decodes that this tab had, as far as the server still has them. */
async function resume() {
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || 'null');
  if (!kept || !kept.facts.length) return;
  byId('prompt').value = kept.prompt;
  const reels = [];
  for (const facts of kept.facts) {
    const control = new AbortController();
    try {
      await ask(`${DECODES}/${facts.id}/events`, {signal: control.signal});
      reels.push(new Reel(facts));
    } catch { /* forgotten there, forgotten here */ }
    control.abort();
  }
  if (reels.length) start(kept.prompt, reels);
}

/** What stands under a place that was picked: another text for it, and a way on from here. */
player.onFork = (pane, place) => {
  const entry = pane.reel.at(place, Infinity);
  const input = make('input', {type: 'text', 'aria-label': `Text to write at place ${place + 1}`, placeholder: entry ? visible(entry.text) : 'text'});
  const button = make('button', {type: 'submit'}, 'Fork from here');
  const form = make('form', {class: 'fork'}, input, button, make('small', {}, 'Goes on from the step shown; with a text, that is written first.'));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    fork(pane, place, input.value);
  });
  return form;
};

async function fork(pane, place, text) {
  complain('');
  const at = pane.here;
  const put = text ? {[place]: text} : {};
  try {
    const body = JSON.stringify({at, put, measure: true});
    const found = await (await ask(`${DECODES}/${pane.reel.facts.id}/fork`, {method: 'POST', body})).json();
    const what = text ? `, “${text}” at ${place + 1}` : '';
    const reel = new Reel({id: found.id, title: `fork at step ${at}${what}`, of: pane.reel.facts.title});
    const others = player.panes.map((one) => one.reel).filter((one) => one.over);
    announce(`Forked at step ${at}.`);
    start(shownPrompt, [...others.slice(0, 2), reel]);
  } catch (error) {
    complain(error.message);
  }
}

/** One HTML file with the player and everything that was shown, and no need of a server. */
async function share() {
  try {
    const page = await (await ask('/share.html')).text();
    const reels = player.panes.map((pane) => pane.reel.save());
    const data = JSON.stringify({prompt: shownPrompt, model: model.id, reels}).replaceAll('<', '\\u003c');
    const [before, after] = page.split('__DATA__');
    const url = URL.createObjectURL(new Blob([before, data, after], {type: 'text/html'}));
    make('a', {href: url, download: 'wavefront.html'}).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    announce('The file was made.');
  } catch (error) {
    complain(error.message);
  }
}

function showHoles() {
  byId('length').disabled = hasHoles();
  byId('holes').hidden = !hasHoles();
}

/** Find out what is served; with a wrong key, say so and wait for another. */
async function connect() {
  try {
    const {data} = await (await ask('/v1/models')).json();
    if (!data.length) throw new Error('The model is being loaded.');
    model = {id: data[0].id, chat: data[0].wavefront.text.chat_template};
    strategies = data[0].wavefront.strategies;
    byId('model').textContent = model.id;
    complain('');
    const chosen = cards().map((card) => card.querySelector('select').value);
    byId('cards').replaceChildren();
    for (const name of chosen.length ? chosen : ['wavefront']) addCard(name);
    if (!player.panes.length) await resume();
  } catch (error) {
    if (error.status === 401) {
      byId('key-box').open = true;
      complain(byId('key').value ? error.message : 'This server wants an API key: write it above.');
    } else {
      complain(error.message);
      setTimeout(connect, 1500);
    }
  }
}

byId('form').addEventListener('submit', begin);
byId('stop').addEventListener('click', () => {
  for (const {reel, stop} of running) {
    ask(`${DECODES}/${reel.facts.id}`, {method: 'DELETE'}).catch(() => {});
    stop();
  }
});
byId('share').addEventListener('click', share);
byId('add').addEventListener('click', () => addCard(['wavefront', 'block', 'standard'][cards().length]));
byId('key').addEventListener('change', connect);
byId('key-form').addEventListener('submit', (event) => event.preventDefault());
byId('prompt').addEventListener('input', showHoles);
byId('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) byId('form').requestSubmit();
});
watchTheme(() => player.paint());
addCard('wavefront');
showHoles();
buttons();
connect();

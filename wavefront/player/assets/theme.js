// Light or dark, as the reader's system says until the button says otherwise; then the start.

const root = document.documentElement;
const system = window.matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : system.matches);

const data = JSON.parse(byId('data').textContent);
const reels = data.reels.map((reel, number) => new Reel(reel, data.texts, number));
let player = null;

function showTheme() {
  byId('theme').lastChild.textContent = isDark() ? 'Light' : 'Dark';
  if (player) player.paint();
}

byId('theme').addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  showTheme();
});
system.addEventListener('change', showTheme);

// Paper is light, and a canvas keeps the colours it was painted in.
let before;
window.addEventListener('beforeprint', () => {
  before = root.dataset.theme;
  root.dataset.theme = 'light';
  showTheme();
});
window.addEventListener('afterprint', () => {
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;
  showTheme();
});

if (reels.length) {
  byId('swatches').append(...Array.from({length: 10}, (_, k) => make('i', {class: `p${k}`})));
  player = new Player(reels);
}
showTheme();

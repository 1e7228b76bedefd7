// Elements built without ever reading text as HTML, number formats, and light or dark.

const byId = (id) => document.getElementById(id);

/** Build an element: make('p', {class: 'note'}, 'text', child, ...). */
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Build an SVG element; the icons of the page tell the namespace. */
function makeSvg(name, attributes, ...children) {
  const element = document.createElementNS(document.querySelector('svg').namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const shade = (p) => Math.min(9, Math.max(0, Math.floor(p * 10)));
const chance = (p) => (p < 0.0005 ? '<.001' : p < 0.01 ? p.toFixed(3) : p.toFixed(2));

const root = document.documentElement;
const system = window.matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : system.matches);

/** Read colours of the palette as the page shows them now, for a canvas. */
function colours(...names) {
  const probe = make('i', {hidden: ''});
  root.append(probe);
  const found = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}

/** Wire the button that switches light and dark; `repaint` runs whenever the colours change. */
function watchTheme(repaint) {
  const show = () => {
    byId('theme').lastElementChild.textContent = isDark() ? 'Light' : 'Dark';
    repaint();
  };
  const use = (theme) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    show();
  };
  byId('theme').addEventListener('click', () => use(isDark() ? 'light' : 'dark'));
  system.addEventListener('change', show);
  // Paper is light, and a canvas keeps the colours that it was painted in.
  let before;
  window.addEventListener('beforeprint', () => {
    before = root.dataset.theme;
    use('light');
  });
  window.addEventListener('afterprint', () => use(before));
  show();
}

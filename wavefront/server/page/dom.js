// Elements, made without ever reading text as HTML; and how things are written.

const byId = (id) => document.getElementById(id);

/** An element: make('p', {class: 'note'}, 'text', child, ...). */
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const shade = (p) => Math.min(9, Math.max(0, Math.floor(p * 10)));
const chance = (p) => (p === null ? 'given' : p < 0.0005 ? '<.001' : p.toFixed(2));
const seconds = (s) => (s < 10 ? `${s.toFixed(2)} s` : `${s.toFixed(1)} s`);

const SIGNS = {'\n': '⏎', '\t': '⇥', '\r': '↵', '\u007f': '␡'};

/** A token's text as one can see it. */
function visible(text) {
  const shown = text.replace(/[\u0000-\u001f\u007f]/g, (c) => SIGNS[c] || String.fromCharCode(0x2400 + c.charCodeAt(0)));
  return shown.replace(/[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, '�') || '∅';
}

/** The words of the live region; the same words twice would not be read. */
function announce(text) {
  const region = byId('announce');
  if (region) region.textContent = text;
}

const root = document.documentElement;
const system = window.matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (root.dataset.theme ? root.dataset.theme === 'dark' : system.matches);

/** The button that changes light and dark, and what to do when they change. */
function watchTheme(repaint) {
  const button = byId('theme');
  const show = () => {
    button.textContent = isDark() ? 'Light' : 'Dark';
    repaint();
  };
  button.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    show();
  });
  system.addEventListener('change', show);
  show();
}

const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

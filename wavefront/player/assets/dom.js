// Elements, made without ever reading text as HTML.

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

/** The same for drawings; the page's own icons know the name of their language. */
function draw(name, attributes, ...children) {
  const element = document.createElementNS(document.querySelector('svg').namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const chance = (p) => (p < 0.0005 ? '<.001' : p < 0.01 ? p.toFixed(3) : p.toFixed(2));
const shade = (p) => Math.min(9, Math.floor(p * 10));

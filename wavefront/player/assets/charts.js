// Two charts of a whole decode over time; a click goes to that moment.

/** Round numbers from 0 to `most`, at most about `count` of them. */
function ticks(most, count) {
  const rough = Math.max(most, 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((one) => one >= rough));
  return Array.from({length: Math.floor(most / step) + 1}, (_, k) => k * step);
}

class Chart {
  /** `label` is the title, `note` explains the marks, `vertical` names the vertical axis. */
  constructor(decode, player, {label, note, vertical}) {
    this.decode = decode;
    this.player = player;
    this.length = 1;
    this.canvas = make('canvas', {role: 'img', 'aria-label': `${label}, ${decode.about.title}`});
    this.now = make('i', {class: 'here', 'aria-hidden': 'true'});
    this.frame = make('div', {class: 'frame'}, this.canvas, this.now);
    this.across = make('div', {class: 'across', 'aria-hidden': 'true'});
    this.down = make('div', {class: 'down', 'aria-hidden': 'true'});
    this.axis = make('span', {class: 'axis-name'});
    this.element = make('figure', {class: 'map'},
      make('figcaption', {}, make('b', {}, label), ' ', ...note),
      make('span', {class: 'axis-name vertical'}, vertical), this.down, this.frame, this.across, this.axis);
    const go = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      player.seek(Math.ceil(share * this.length));
    };
    this.frame.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      this.frame.setPointerCapture(event.pointerId);
      go(event);
    });
    this.frame.addEventListener('pointermove', (event) => {
      if (this.frame.hasPointerCapture(event.pointerId)) go(event);
      else if (event.pointerType !== 'touch') player.point(this.positionAt(event));
    });
    this.frame.addEventListener('pointerleave', () => player.point(null));
  }

  positionAt() { return null; }

  /** Paint everything; needed when the length, the size, the colours or the axis change. */
  paint(unit, length) {
    this.length = Math.max(length, 1);
    const {canvas, decode} = this;
    const height = this.height();
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(Math.max(this.frame.clientWidth, 60) * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext('2d');
    [pen.fillStyle] = colours('map');
    pen.fillRect(0, 0, canvas.width, canvas.height);
    if (decode.size) this.fill(pen, unit, ratio);
    this.axis.textContent = unit === 'step' ? 'steps' : 'forward passes';
    const count = Math.max(3, Math.min(9, Math.floor(this.frame.clientWidth / 55)));
    this.across.replaceChildren(...ticks(this.length, count).map((n) => this.tick(n, 'left', n / this.length)));
    this.down.replaceChildren(...this.heights().map(([n, share]) => this.tick(n, 'top', share)));
  }

  /** A number of an axis, at a share of its length. */
  tick(n, side, share) {
    const element = make('span', {class: share > 0.97 ? 'last' : null}, n);
    element.style[side] = `${100 * share}%`;
    return element;
  }

  draw(n) {
    this.now.style.left = `${(100 * Math.min(n, this.length)) / this.length}%`;
  }

  mark() {}
}

/** Positions downwards, time to the right: when each was committed, and how surely. */
class DecodeMap extends Chart {
  constructor(decode, player) {
    super(decode, player, {
      label: 'Probability of each position',
      note: ['Marks are commits. Pale: still masked.'],
      vertical: 'position',
    });
    this.line = make('i', {class: 'row', 'aria-hidden': 'true', hidden: ''});
    this.frame.append(this.line);
  }

  height() { return Math.round(Math.min(Math.max(this.decode.size * 3, 110), 210)); }

  /** The numbers of the positions, from 1 at the top, each at the middle of its row. */
  heights() {
    const {size} = this.decode;
    const found = ticks(size, 5).slice(1);
    return [1, ...found.filter((n) => n > 2)].map((n) => [n, (n - 0.5) / Math.max(size, 1)]);
  }

  positionAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const position = Math.floor(((event.clientY - box.top) / box.height) * this.decode.size);
    return position >= 0 && position < this.decode.size ? position : null;
  }

  fill(pen, unit, ratio) {
    const {decode, canvas} = this;
    const shades = colours('p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6', 'p7', 'p8', 'p9');
    const [front, scope, end, hand, back, ink] = colours('map-front', 'map-scope', 'map-end', 'hand', 'back', 'ink');
    // A column for every step, or for every pixel when there are more steps than pixels.
    const columns = Math.min(this.length, canvas.width);
    const [w, h] = [canvas.width / columns, canvas.height / decode.size];
    const cell = (column, position, hue, most = Infinity) => {
      const [x, right] = [Math.round((column - 1) * w), Math.round(column * w)];
      const [y, bottom] = [Math.round(position * h), Math.round((position + 1) * h)];
      pen.fillStyle = hue;
      pen.fillRect(x, y, Math.max(Math.min(right - x, most), 1), Math.max(bottom - y, 1));
    };
    for (let column = 1; column <= columns; column++) {
      const n = Math.round((column * this.length) / columns);
      const t = decode.moment(n, unit);
      const ended = decode.moment(n - 1, unit) >= decode.length;
      for (let position = 0; position < decode.size; position++) {
        const entry = decode.at(position, t);
        if (entry !== undefined && entry.token >= 0) {
          cell(column, position, entry.p === null ? hand : decode.fill[position] ? end : shades[shade(entry.p)]);
        } else if (!ended) {
          const best = decode.best(t - 1, position);
          if (decode.isIn('front', t - 1, position)) cell(column, position, front);
          else if (decode.isIn('scope', t - 1, position)) cell(column, position, scope);
          pen.globalAlpha = 0.4;
          if (best !== null) cell(column, position, shades[shade(best)]);
          pen.globalAlpha = 1;
        }
      }
    }
    // The events on top: a mark of a few pixels, however wide the step.
    decode.history.forEach((list, position) => {
      for (const {step, token} of list) {
        if (step < 0) continue;
        const n = unit === 'step' ? step + 1 : decode.steps[step].forwards;
        cell(Math.ceil((n * columns) / this.length), position, token < 0 ? back : ink, Math.min(7 * ratio, Math.max(w / 2, 1)));
      }
    });
  }

  mark(position) {
    this.line.hidden = position === null || position >= this.decode.size;
    if (position === null) return;
    this.line.style.top = `${(100 * position) / this.decode.size}%`;
    this.line.style.height = `${100 / this.decode.size}%`;
  }
}

/** How far the decode has come: the leftmost masked and the last filled position. */
class FrontierChart extends Chart {
  constructor(decode, player) {
    super(decode, player, {
      label: 'Progress',
      note: [make('i', {class: 'line solid'}), 'leftmost masked position ', make('i', {class: 'line dashed'}), 'last filled position'],
      vertical: 'position',
    });
  }

  height() { return 110; }

  heights() {
    const {size} = this.decode;
    return ticks(size, 4).map((n) => [n, 1 - this.share(n / Math.max(size, 1))]);
  }

  /** Lines at the edge are drawn whole: four pixels stay free above and below. */
  share(part) { return (4 + part * (this.height() - 8)) / this.height(); }

  fill(pen, unit, ratio) {
    const {decode, canvas} = this;
    const [band, first, last] = colours('map-scope', 'accent', 'soft');
    const y = (position) => canvas.height * (1 - this.share(position / decode.size));
    const points = [[], []];
    for (let n = 0; n <= decode.lengthIn(unit); n++) {
      const [open, filled] = decode.edges[decode.moment(n, unit)];
      const x = (n / this.length) * canvas.width;
      points[0].push([x, y(open)]);
      points[1].push([x, y(filled + 1)]);
    }
    const path = (list) => {
      pen.beginPath();
      for (const [x, height] of list) pen.lineTo(x, height);
    };
    path([...points[1], ...points[0].toReversed()]);
    pen.fillStyle = band;
    pen.fill();
    pen.lineWidth = 2 * ratio;
    [[points[1], last, [4, 3]], [points[0], first, []]].forEach(([list, hue, dash]) => {
      pen.strokeStyle = hue;
      pen.setLineDash(dash.map((one) => one * ratio));
      path(list);
      pen.stroke();
    });
  }
}

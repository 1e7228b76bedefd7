// Two pictures of a whole decode: places by time, and how far it has come.

class Chart {
  constructor(reel, label, height, go) {
    this.reel = reel;
    this.height = height;
    this.canvas = make('canvas', {role: 'img', 'aria-label': `${label}, ${reel.facts.title}`});
    this.now = make('i', {class: 'cursor', 'aria-hidden': 'true'});
    this.frame = make('div', {class: 'frame'}, this.canvas, this.now);
    this.caption = make('figcaption', {}, label);
    this.element = make('figure', {}, this.frame, this.caption);
    const move = (event) => {
      const box = this.canvas.getBoundingClientRect();
      go(Math.round(((event.clientX - box.left) / box.width) * this.reel.length));
    };
    this.frame.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      this.frame.setPointerCapture(event.pointerId);
      move(event);
    });
    this.frame.addEventListener('pointermove', (event) => {
      if (this.frame.hasPointerCapture(event.pointerId)) move(event);
    });
  }

  /** Everything, anew: needed when there are more steps, another width, other colours. */
  paint() {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(this.frame.clientWidth, 60);
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.height = `${this.height}px`;
    const pen = this.canvas.getContext('2d');
    pen.fillStyle = colour('--map');
    pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
    if (this.reel.length) this.fill(pen, this.canvas.width, this.canvas.height, ratio);
  }

  /** `step` is where the reader is. */
  draw(step) {
    this.now.style.left = `${(100 * Math.min(step, this.reel.length)) / Math.max(this.reel.length, 1)}%`;
  }
}

class HeatMap extends Chart {
  constructor(reel, go) {
    super(reel, 'How sure the model is, place by step', 150, go);
  }

  fill(pen, width, height, ratio) {
    const {reel} = this;
    const shades = Array.from({length: 10}, (_, k) => colour(`--p${k}`));
    const [w, h] = [width / reel.length, height / reel.places];
    const cell = (step, place, hue, most = Infinity) => {
      const [x, y] = [Math.floor((step - 1) * w), Math.floor(place * h)];
      pen.fillStyle = hue;
      pen.fillRect(x, y, Math.max(1, Math.min(Math.ceil(step * w) - x, most)), Math.max(1, Math.ceil((place + 1) * h) - y));
    };
    reel.steps.forEach((event, n) => {
      pen.globalAlpha = 0.45;
      for (const [place, p] of event.sure || []) cell(n + 1, place, shades[shade(p)]);
      pen.globalAlpha = 1;
      for (let place = 0; place < reel.places; place++) {
        const entry = reel.at(place, n + 1);
        if (entry) cell(n + 1, place, entry.p === null ? colour('--hand') : shades[shade(entry.p)]);
      }
      for (const place of event.front) cell(n + 1, place, colour('--accent'), 2 * ratio);
    });
    const [ink, back] = [colour('--ink'), colour('--back')];
    reel.steps.forEach((event, n) => {
      for (const [place] of event.commits) cell(n + 1, place, ink, 3 * ratio);
      for (const place of event.back) cell(n + 1, place, back, 3 * ratio);
    });
  }
}

class Frontier extends Chart {
  constructor(reel, go) {
    super(reel, 'Frontier: leftmost masked and furthest committed place', 110, go);
  }

  fill(pen, width, height, ratio) {
    const {reel} = this;
    const x = (step) => (step / reel.length) * width;
    const y = (place) => height - 4 * ratio - (place / reel.places) * (height - 8 * ratio);
    const line = (which, hue, dash) => {
      pen.strokeStyle = hue;
      pen.lineWidth = 2 * ratio;
      pen.setLineDash(dash.map((one) => one * ratio));
      pen.beginPath();
      pen.moveTo(x(0), y(0));
      reel.edges.forEach((edge, n) => pen.lineTo(x(n + 1), y(which ? edge[1] + 1 : edge[0])));
      pen.stroke();
    };
    pen.fillStyle = colour('--map-band');
    pen.beginPath();
    pen.moveTo(x(0), y(0));
    reel.edges.forEach((edge, n) => pen.lineTo(x(n + 1), y(edge[1] + 1)));
    for (let n = reel.edges.length - 1; n >= 0; n--) pen.lineTo(x(n + 1), y(reel.edges[n][0]));
    pen.fill();
    line(1, colour('--soft'), [4, 3]);
    line(0, colour('--accent'), []);
  }
}

// Places downwards, time to the right: the whole decode at a glance, and a way to a moment.

class Chart {
  constructor(reel, player) {
    this.reel = reel;
    this.player = player;
    this.canvas = make('canvas', {
      role: 'img',
      'aria-label': `Places by time, ${reel.title}: when each place was committed, and how surely`,
    });
    this.now = make('i', {class: 'here', 'aria-hidden': 'true'});
    this.line = make('i', {class: 'row', 'aria-hidden': 'true', hidden: ''});
    this.frame = make('div', {class: 'frame'}, this.canvas, this.line, this.now);
    this.axis = make('figcaption', {}, make('span', {}, 'places ↓'), make('span', {}));
    this.element = make('figure', {class: 'map'}, this.frame, this.axis);
    const go = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      player.go(Math.min(Math.max(Math.ceil(share * this.length), 0), this.length));
    };
    this.frame.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      this.frame.setPointerCapture(event.pointerId);
      go(event);
    });
    this.frame.addEventListener('pointermove', (event) => {
      if (this.frame.hasPointerCapture(event.pointerId)) go(event);
      else if (event.pointerType !== 'touch') player.point(this.placeAt(event));
    });
    this.frame.addEventListener('pointerleave', () => player.point(null));
  }

  placeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const place = Math.floor(((event.clientY - box.top) / box.height) * this.reel.places);
    return place >= 0 && place < this.reel.places ? place : null;
  }

  /** Paint everything; needed when the size, the colours or the axis change. */
  paint(unit, length) {
    this.length = Math.max(length, 1);
    const {reel, canvas} = this;
    const height = Math.round(Math.min(Math.max(reel.places * 3, 110), 210));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(Math.max(this.frame.clientWidth, 60) * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext('2d');
    // A column for every step, or for every pixel when there are more steps than that.
    const columns = Math.min(this.length, canvas.width);
    const [w, h] = [canvas.width / columns, canvas.height / reel.places];
    const cell = (column, place, hue, most) => {
      const [x, right] = [Math.round((column - 1) * w), Math.round(column * w)];
      const [y, bottom] = [Math.round(place * h), Math.round((place + 1) * h)];
      pen.fillStyle = hue;
      pen.fillRect(x, y, Math.max(Math.min(right - x, most), 1), Math.max(bottom - y, 1));
    };
    const hues = this.hues();
    pen.fillStyle = hues.masked;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    for (let column = 1; column <= columns; column++) {
      const n = Math.round((column * this.length) / columns);
      const t = reel.moment(n, unit);
      const ended = reel.moment(n - 1, unit) >= reel.steps;
      for (let place = 0; place < reel.places; place++) {
        const hue = this.state(place, t, ended, hues);
        if (hue !== hues.masked) cell(column, place, hue, Infinity);
      }
    }
    // What happened, over what is: a mark of a few pixels, however long the step.
    reel.events.forEach((list, place) => {
      for (const {step, text} of list) {
        const n = unit === 'step' ? step + 1 : reel.launched[step];
        const column = Math.ceil((n * columns) / this.length);
        cell(column, place, text < 0 ? hues.back : hues.fresh, 7 * ratio);
      }
    });
    this.axis.lastChild.textContent = `${unit}s → ${length}`;
  }

  hues() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    return {
      masked: colour('--map'), scope: colour('--map-scope'), front: colour('--map-front'),
      end: colour('--map-end'), hand: colour('--hand'), back: colour('--back'), fresh: colour('--ink'),
      shades: Array.from({length: 10}, (_, k) => colour(`--p${k}`)),
    };
  }

  /** The colour of a place at moment t; the front of a decode that has ended holds nothing. */
  state(place, t, ended, hues) {
    const {reel} = this;
    const event = reel.at(place, t);
    if (event !== undefined && event.text >= 0) {
      if (event.hand) return hues.hand;
      return reel.fill[place] ? hues.end : hues.shades[shade(event.p)];
    }
    if (ended) return hues.masked;
    if (reel.has(reel.front, t - 1, place)) return hues.front;
    return reel.has(reel.scope, t - 1, place) ? hues.scope : hues.masked;
  }

  draw(n) {
    this.now.style.left = `${(100 * Math.min(n, this.length)) / this.length}%`;
  }

  mark(place) {
    this.line.hidden = place === null || place >= this.reel.places;
    if (place === null) return;
    this.line.style.top = `${(100 * place) / this.reel.places}%`;
    this.line.style.height = `${100 / this.reel.places}%`;
  }
}

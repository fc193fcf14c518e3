/* SPDX-License-Identifier: Apache-2.0 */
// A pad to draw a digit on, and what the network is shown of it: the digits it has learnt from were scanned,
// fitted to 32 x 32 dots and counted in squares of 4 x 4, so a drawing is treated in the same way.

const SIDE = 8, DOTS = 32;
// The data's digits are as high as the field and at most this wide, and hold about the same ink, a 1 as much
// as an 8: the pen is made as thick as that takes, within what pens are.
const WIDEST = 26, INK = 19, THINNEST = 1.9, THICKEST = 4;

/** 64 values 0..1, row by row, of strokes [[x, y], ...] in any unit; null if nothing is drawn. */
export function digitOf(strokes) {
  if (strokes.length === 0) return null;
  for (let radius = THINNEST; ; radius += 0.2) {
    const pixels = count(fit(strokes, radius), radius);
    if (radius >= THICKEST || pixels.reduce((sum, ink) => sum + ink) >= INK) return pixels;
  }
}

/** The lines [from, to] of the strokes, so placed that a pen of this radius just fills the field. */
function fit(strokes, radius) {
  const xs = strokes.flat().map(([x]) => x), ys = strokes.flat().map(([, y]) => y);
  const left = Math.min(...xs), right = Math.max(...xs), top = Math.min(...ys), bottom = Math.max(...ys);
  const scale = Math.min((DOTS - 2 * radius) / Math.max(bottom - top, 1e-6),
                         (WIDEST - 2 * radius) / Math.max(right - left, 1e-6));
  const place = ([x, y]) => [DOTS / 2 + scale * (x - (left + right) / 2),
                             DOTS / 2 + scale * (y - (top + bottom) / 2)];
  return strokes.flatMap((stroke) => {
    const at = stroke.map(place);
    return at.length === 1 ? [[at[0], at[0]]] : at.slice(1).map((end, i) => [at[i], end]);
  });
}

/** The share of each square's dots that the pen has touched. */
function count(lines, radius) {
  const pixels = new Float32Array(SIDE * SIDE);
  for (let y = 0; y < DOTS; y++) {
    for (let x = 0; x < DOTS; x++) {
      if (lines.some(([a, b]) => distance([x + 0.5, y + 0.5], a, b) <= radius))
        pixels[SIDE * Math.floor(y / 4) + Math.floor(x / 4)] += 1 / 16;
    }
  }
  return pixels;
}

/** From a point to the line from a to b. */
function distance([x, y], [ax, ay], [bx, by]) {
  const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy;
  const t = length === 0 ? 0 : Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / length));
  return Math.hypot(x - ax - t * dx, y - ay - t * dy);
}

export class Pad {
  /** `changed(pixels)` is called as the drawing grows, with null when it is cleared. */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = []; // in units of the pad's side
    canvas.addEventListener('pointerdown', (event) => this.begin(event));
    canvas.addEventListener('pointermove', (event) => this.extend(event));
    canvas.addEventListener('keydown', (event) => event.key === 'Escape' && this.clear());
    for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => (this.drawing = false));
    new ResizeObserver(() => this.paint()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.drawing = true;
    this.strokes.push([this.at(event)]);
    this.update();
  }

  extend(event) {
    if (!this.drawing) return;
    const between = event.getCoalescedEvents?.() ?? [];
    for (const part of between.length ? between : [event]) this.strokes.at(-1).push(this.at(part));
    this.update();
  }

  clear() {
    this.strokes = [];
    this.update();
  }

  update() {
    this.paint();
    this.changed(digitOf(this.strokes));
  }

  paint() {
    const {canvas} = this, scale = devicePixelRatio || 1, side = canvas.clientWidth;
    canvas.width = canvas.height = side * scale;
    const pen = canvas.getContext('2d');
    pen.scale(side * scale, side * scale);
    pen.strokeStyle = getComputedStyle(canvas).color;
    pen.lineWidth = 0.075;
    pen.lineCap = pen.lineJoin = 'round';
    for (const [first, ...rest] of this.strokes) {
      pen.beginPath();
      pen.moveTo(...first);
      pen.lineTo(...first);
      for (const point of rest) pen.lineTo(...point);
      pen.stroke();
    }
  }
}

/** Shows 64 pixels on a canvas of 8 x 8, in the colour of its text. */
export function show(canvas, pixels) {
  canvas.pixels = pixels; // to be shown again when the colours change
  canvas.width = canvas.height = SIDE;
  const pen = canvas.getContext('2d');
  pen.fillStyle = getComputedStyle(canvas).color;
  pixels?.forEach((ink, i) => {
    pen.globalAlpha = Math.min(1, ink);
    pen.fillRect(i % SIDE, Math.floor(i / SIDE), 1, 1);
  });
}

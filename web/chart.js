/* SPDX-License-Identifier: Apache-2.0 */
// The loss over the steps, on a logarithmic scale: each batch faintly, and smoothed on top.

const SMOOTHING = 0.12; // weight of the newest batch

export class Chart {
  /** curves: [{name, color (a CSS variable), width}], drawn in this order. */
  constructor(canvas, curves) {
    this.canvas = canvas;
    this.curves = curves.map((curve) => ({...curve, losses: [], smooth: []}));
    this.steps = 1;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  begin(steps) {
    this.steps = steps;
    for (const curve of this.curves) curve.losses = [], curve.smooth = [];
    this.draw();
  }

  add(name, losses) {
    const {losses: all, smooth} = this.curves.find((curve) => curve.name === name);
    for (const loss of losses) {
      const before = smooth.at(-1) ?? loss;
      all.push(loss);
      smooth.push(before + SMOOTHING * (loss - before));
    }
    this.draw();
  }

  /** One drawing a frame, however often it is asked for. */
  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.paint();
    });
  }

  paint() {
    const {canvas} = this, scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== width * scale || canvas.height !== height * scale)
      canvas.width = width * scale, canvas.height = height * scale;
    const pen = canvas.getContext('2d');
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const area = {left: 46, right: width - 8, top: 8, bottom: height - 26};
    const [low, high] = this.range();
    const x = (step) => area.left + (area.right - area.left) * step / Math.max(1, this.steps - 1);
    const y = (loss) => area.bottom - (area.bottom - area.top) * (Math.log10(loss) - low) / (high - low);
    this.axes(pen, area, x, y, low, high);
    pen.save();
    pen.beginPath();
    pen.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    pen.clip();
    for (const curve of this.curves) this.line(pen, curve, curve.losses, 1, 0.22, x, y);
    for (const curve of this.curves) this.line(pen, curve, curve.smooth, curve.width, 1, x, y);
    pen.restore();
  }

  /** Whole powers of ten around the smoothed curves. */
  range() {
    const all = this.curves.flatMap((curve) => curve.smooth).filter((loss) => loss > 0);
    const low = all.reduce((least, loss) => Math.min(least, loss), 0.1);
    const high = all.reduce((most, loss) => Math.max(most, loss), 3);
    return [Math.floor(Math.log10(low)), Math.log10(high) + 0.05];
  }

  axes(pen, area, x, y, low, high) {
    const style = getComputedStyle(this.canvas);
    pen.font = `11px ${style.getPropertyValue('--mono')}`;
    pen.fillStyle = this.color('--soft');
    pen.strokeStyle = this.color('--line');
    pen.lineWidth = 1;
    pen.textAlign = 'right';
    pen.textBaseline = 'middle';
    for (let power = low; power <= high; power++) {
      const at = Math.round(y(10 ** power)) + 0.5;
      pen.beginPath();
      pen.moveTo(area.left, at);
      pen.lineTo(area.right, at);
      pen.stroke();
      pen.fillText(power >= -3 ? String(+(10 ** power).toFixed(4)) : `1e${power}`, area.left - 8, at);
    }
    pen.textBaseline = 'alphabetic';
    for (const part of [0, 0.5, 1]) {
      pen.textAlign = part === 0 ? 'left' : part === 1 ? 'right' : 'center';
      const step = Math.round(this.steps * part), unit = part === 1 ? ' steps' : '';
      if (this.steps > 1) pen.fillText(step + unit, x(Math.min(step, this.steps - 1)), area.bottom + 18);
    }
  }

  line(pen, curve, losses, width, opacity, x, y) {
    if (losses.length === 0) return;
    pen.strokeStyle = this.color(curve.color);
    pen.globalAlpha = opacity;
    pen.lineWidth = width;
    pen.lineJoin = 'round';
    pen.beginPath();
    losses.forEach((loss, step) => pen.lineTo(x(step), y(Math.max(loss, 1e-12))));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /** A canvas does not know light-dark(): an element resolves it. */
  color(variable) {
    this.probe ??= document.head.appendChild(document.createElement('span'));
    this.probe.style.color = `var(${variable})`;
    return getComputedStyle(this.probe).color;
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
// The first layer at a glance: one small picture for each of its units, the weight of every pixel.

const SIDE = 8, UNITS = 256, ACROSS = 16, STEP = SIDE + 1;
const FAINT = 0.02; // weights of this size are never painted in full

/** weights: [64, 256]. Those above zero are painted in one colour, those below in the other. */
export function paintWeights(canvas, weights) {
  canvas.weights = weights; // to be painted again when the colours change
  canvas.width = canvas.height = ACROSS * STEP - 1;
  const pen = canvas.getContext('2d'), style = getComputedStyle(canvas);
  const image = pen.createImageData(canvas.width, canvas.height);
  const above = channels(style.borderTopColor), below = channels(style.borderBottomColor);
  const full = Math.max(FAINT, 2.5 * Math.sqrt(weights.reduce((sum, w) => sum + w * w, 0) / weights.length));
  for (let unit = 0; unit < UNITS; unit++) {
    const left = unit % ACROSS * STEP, top = Math.floor(unit / ACROSS) * STEP;
    for (let pixel = 0; pixel < SIDE * SIDE; pixel++) {
      const w = weights[pixel * UNITS + unit];
      const at = 4 * ((top + Math.floor(pixel / SIDE)) * canvas.width + left + pixel % SIDE);
      image.data.set(w > 0 ? above : below, at);
      image.data[at + 3] = 255 * Math.min(1, Math.abs(w) / full);
    }
  }
  pen.putImageData(image, 0, 0);
}

/** The bytes of a computed colour, rgb(r, g, b). */
const channels = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);

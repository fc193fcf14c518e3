/* SPDX-License-Identifier: Apache-2.0 */
// The page: two engines, one curve each, and a pad. Both engines train in turns, a short while each, so that
// neither slows the other and each is timed alone.

import {Chart} from './chart.js';
import {Pad, show} from './pad.js';
import {paintWeights} from './weights.js';

const EPOCHS = 30, TEST = 360, TURN = 60 /* ms */, RECENT = 16 /* turns */;
const $ = (id) => document.getElementById(id);

// ---- An engine: a worker that answers calls ------------------------------------------------------------

class Engine {
  constructor(backend) {
    this.backend = backend;
    this.worker = new Worker('engine.js', {type: 'module'});
    this.waiting = new Map();
    this.worker.addEventListener('message', ({data: {id, result, error}}) => {
      const {resolve, reject} = this.waiting.get(id);
      this.waiting.delete(id);
      if (error === undefined) resolve(result); else reject(new Error(error));
    });
    this.worker.addEventListener('error', (event) => this.die(event.message ?? 'the worker did not start'));
  }

  call(name, ...args) {
    return new Promise((resolve, reject) => {
      const id = (this.calls = (this.calls ?? 0) + 1);
      this.waiting.set(id, {resolve, reject});
      this.worker.postMessage({id, call: name, args});
    });
  }

  die(message) {
    for (const {reject} of this.waiting.values()) reject(new Error(message));
    this.waiting.clear();
  }
}

// ---- A lane: an engine and its card ----------------------------------------------------------------------

class Lane {
  constructor(backend, name) {
    this.name = name;
    this.backend = backend;
    this.engine = new Engine(backend);
    this.card = $(`lane-${backend}`);
  }

  value(key, text, className = '') {
    const place = this.card.querySelector(`[data-value=${key}]`);
    place.textContent = text;
    place.className = className;
  }

  async open() {
    try {
      const {device, version, activations} = await this.engine.call('open', this.backend);
      this.ready = true;
      if (this.backend === 'webgpu') this.card.querySelector('.device').textContent = device;
      $('version').textContent = version;
      offer(activations);
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    this.ready = false;
    const problem = this.card.querySelector('.problem');
    problem.textContent = this.backend === 'webgpu'
      ? `${sentence(error.message)} The CPU trains without it; everything else on this page works.`
      : sentence(error.message);
    problem.hidden = false;
    if (this.backend === 'webgpu') this.card.querySelector('.device').textContent = 'not used';
    this.card.classList.add('off');
  }

  async begin(activation, seed) {
    this.steps = await this.engine.call('begin', activation, seed, EPOCHS);
    this.taken = 0;
    this.recent = []; // the last turns: what the figures on the card are of
    this.tested = -1;
    for (const key of ['accuracy', 'speed', 'loss', 'check']) this.value(key, '–');
    this.card.querySelector('progress').value = 0;
    $(`plan-${this.backend}`).textContent = `${this.name}\n${await this.engine.call('plan')}`;
  }

  get finished() { return this.taken >= this.steps; }

  /** Trains for a moment, and tests once an epoch. */
  async turn() {
    const {losses, seconds} = await this.engine.call('train', TURN);
    const first = this.taken === 0; // it has compiled the shaders too
    const epoch = Math.floor((this.taken += losses.length) * EPOCHS / this.steps);
    chart.add(this.backend, losses);
    if (!first) this.recent = [...this.recent.slice(1 - RECENT), {losses, seconds}];
    const steps = sum(this.recent.map((turn) => turn.losses.length)), time = sum(this.recent.map((turn) => turn.seconds));
    this.value('loss', (steps ? sum(this.recent.flatMap((turn) => turn.losses)) / steps : losses[0]).toPrecision(2));
    this.value('speed', steps ? rate(steps / time) : '–');
    this.card.querySelector('progress').value = this.taken / this.steps;
    if (epoch !== this.tested) await this.test(epoch);
  }

  async test(epoch) {
    this.tested = epoch;
    const {right, wrong} = await this.engine.call('evaluate');
    this.right = right;
    this.wrong = wrong;
    this.value('accuracy', `${(100 * right / TEST).toFixed(1)} %`);
  }

  async check() {
    this.value('check', 'running …');
    const {good, worst, limit, count, bits, otherWorst} = await this.engine.call('check');
    const errors = bits === 64 ? `${tiny(worst)} in f64, ${tiny(otherWorst)} in f32`
      : `${tiny(worst)} in f32 (limit ${tiny(limit)})`;
    this.value('check', `${good ? '✓' : '✗ WRONG:'} ${count} against finite differences, off by ${errors}`, good ? 'good' : 'bad');
  }
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? '' : '.');
const tiny = (value) => value.toExponential(0);
const rate = (value) => (value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString('en'));

// ---- The page --------------------------------------------------------------------------------------------

const chart = new Chart($('chart'), [{name: 'cpu', color: '--cpu', width: 4.5}, {name: 'webgpu', color: '--gpu', width: 2}]);
const lanes = [new Lane('webgpu', 'WebGPU'), new Lane('cpu', 'WebAssembly on the CPU')];
const usable = () => lanes.filter((lane) => lane.ready);
let running = false, begun = false;

function say(text) { $('status').textContent = text; }

function offer(activations) {
  if ($('activation').options.length) return;
  for (const [i, name] of activations.entries())
    if (name !== 'none') $('activation').add(new Option(name.replace('_', ' '), i, name === 'gelu', name === 'gelu'));
}

function enable() {
  const any = usable().length > 0;
  for (const id of ['reset', 'activation', 'seed']) $(id).disabled = !any || running;
  const done = begun && usable().every((lane) => lane.finished);
  $('train').disabled = !any;
  $('train').textContent = running ? 'Pause' : done ? 'Train again' : begun && usable().some((lane) => lane.taken > 0) ? 'Go on' : 'Train';
}

/** Fresh weights everywhere. */
async function begin() {
  begun = false;
  const seed = Math.max(1, Math.floor(+$('seed').value) || 1);
  $('seed').value = seed;
  await Promise.all(usable().map((lane) => attempt(lane, () => lane.begin(+$('activation').value, seed))));
  chart.begin(usable()[0]?.steps ?? 1);
  $('wrong').replaceChildren(note('Of the 360 digits held out, those that it misreads at the end appear here.'));
  begun = true;
  enable();
  await Promise.all([read(), look()]);
}

/** What the first layer has learnt: its weights, less the random ones it began with. */
async function look() {
  const lane = usable()[0];
  if (lane) await attempt(lane, async () => {
    const weights = await lane.engine.call('weights');
    if (lane.taken === 0) lane.first = weights;
    paintWeights($('weights'), weights.map((weight, i) => weight - lane.first[i]));
  });
}

/** A lane that fails leaves; the other goes on. */
async function attempt(lane, what) {
  try {
    await what();
  } catch (error) {
    lane.fail(error);
  }
}

async function train() {
  if (!begun || usable().every((lane) => lane.finished)) await begin();
  running = true;
  enable();
  say('Training: compiling the shaders …');
  while (running && usable().some((lane) => !lane.finished)) {
    for (const lane of usable()) if (!lane.finished) await attempt(lane, () => lane.turn());
    say('Training …');
    await Promise.all([read(), look()]);
  }
  running = false;
  enable();
  if (usable().length && usable().every((lane) => lane.finished)) await conclude();
  else say(usable().length ? 'Paused.' : 'Nothing is left to train with.');
}

async function conclude() {
  const lane = usable()[0];
  showWrong(lane.wrong);
  say('Trained. Draw a digit; meanwhile the gradients are checked …');
  await read();
  for (const each of usable()) await attempt(each, () => each.check());
  if (!running && usable().every((each) => each.finished)) say('Trained, and the gradients are checked. Now draw a digit.');
}

function note(text) {
  const p = document.createElement('p');
  p.className = 'note';
  p.textContent = text;
  return p;
}

function showWrong(wrong) {
  const figures = wrong.map(({label, said, probability}) => {
    const figure = document.createElement('figure'), canvas = document.createElement('canvas');
    canvas.role = 'img';
    canvas.ariaLabel = `a handwritten ${label}`;
    figure.append(canvas, `${label} read as `, Object.assign(document.createElement('b'), {textContent: said}),
                  document.createElement('br'), `sure: ${Math.round(100 * probability)} %`);
    return figure;
  });
  $('wrong').replaceChildren(...(figures.length ? figures : [note('Nothing: all 360 are read rightly.')]));
  figures.forEach((figure, i) => show(figure.firstChild, wrong[i].pixels));
}

// ---- The pad ---------------------------------------------------------------------------------------------

let drawn = null, reading = null;
const bars = Array.from({length: 10}, (_, digit) => {
  const row = document.createElement('li'), bar = document.createElement('span');
  row.append(bar, String(digit));
  $('bars').append(row);
  return {row, bar};
});

function verdict(digit, probabilities) {
  $('said').textContent = digit ?? '?';
  bars.forEach(({row, bar}, i) => {
    bar.style.setProperty('--p', probabilities?.[i] ?? 0);
    row.className = i === digit ? 'best' : '';
  });
}

/** Reads the drawing as it is; drawings that come meanwhile wait for one more reading. */
async function read() {
  const lane = usable()[0];
  if (reading) return (reading.again = true);
  if (!drawn || !lane || !begun) return verdict();
  reading = {again: false};
  $('said').ariaBusy = 'true';
  await attempt(lane, async () => {
    const {digit, probabilities} = await lane.engine.call('read', drawn);
    if (drawn) verdict(digit, probabilities);
    $('reader').textContent = lane.taken
      ? `Read by the network on ${lane.backend === 'webgpu' ? 'WebGPU' : 'the CPU'} after ${lane.taken} steps.`
      : 'Train first: until then the network guesses.';
  });
  const {again} = reading;
  reading = null;
  if (again) return read();
  $('said').ariaBusy = 'false';
}

const pad = new Pad($('pad'), (pixels) => {
  drawn = pixels;
  $('hint').hidden = !!pixels;
  $('clear').hidden = !pixels;
  show($('seen'), pixels);
  read();
});
$('clear').addEventListener('click', () => pad.clear());

// ---- Start -----------------------------------------------------------------------------------------------

$('controls').addEventListener('submit', (event) => {
  event.preventDefault();
  if (!running) return train();
  running = false;
  $('train').disabled = true; // until the turn that is on its way has ended
});
$('reset').addEventListener('click', () => begin().then(() => say('Ready.')));
$('activation').addEventListener('change', () => begin().then(() => say('Ready.')));
$('seed').addEventListener('change', () => begin().then(() => say('Ready.')));

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  for (const canvas of document.querySelectorAll('canvas')) {
    if (canvas.pixels) show(canvas, canvas.pixels);
    if (canvas.weights) paintWeights(canvas, canvas.weights);
  }
});

await Promise.all(lanes.map((lane) => lane.open()));
if (usable().length) await begin();
say(usable().length ? 'Ready.' : 'The library did not start.');
enable();

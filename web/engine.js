/* SPDX-License-Identifier: Apache-2.0 */
// A worker that holds one instance of epigrad.wasm on one backend, so that the page stays at ease while it
// trains. It answers {id, call, args} with {id, result} or {id, error}; one call at a time.

import {wasi} from './wasi.js';
import {webgpu} from './webgpu.js';

const PIXELS = 64, CLASSES = 10, BACKENDS = {cpu: 0, webgpu: 2};
let instance, run; // run(name, ...numbers) calls an export, and waits if it suspends

const memory = () => instance.exports.memory;
const doubles = (at, count) => [...new Float64Array(memory().buffer, at, count)];
const reply = (count) => doubles(instance.exports.web_reply(), count);

function string(at) {
  const bytes = new Uint8Array(memory().buffer, at);
  return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
}

async function instantiate(backend) {
  const module = await WebAssembly.compileStreaming(fetch('epigrad.wasm'));
  instance = await WebAssembly.instantiate(module, {wasi_snapshot_preview1: wasi(memory), webgpu: webgpu(memory)});
  const exports = {...instance.exports};
  if (backend === 'webgpu')
    for (const name of ['web_open', 'web_begin', 'web_train', 'web_evaluate', 'web_read', 'web_check'])
      exports[name] = WebAssembly.promising(exports[name]);
  run = async (name, ...numbers) => exports[name](...numbers);
  instance.exports._initialize();
}

/** What a visitor can understand, before the library would say it in its own terms. */
async function requireWebgpu() {
  if (!navigator.gpu) throw new Error('This browser has no WebGPU.');
  if (!await navigator.gpu.requestAdapter()) throw new Error('This browser has WebGPU, but no GPU that it would use.');
  if (!WebAssembly.Suspending)
    throw new Error('This browser has WebGPU, but its WebAssembly cannot wait for it yet: Chrome and Edge can from 137, Firefox from 153, Safari from 27.');
}

/** The digits, decompressed into the library's memory. */
async function readDigits() {
  const packed = (await fetch('digits.csv.gz')).body;
  const text = await new Response(packed.pipeThrough(new DecompressionStream('gzip'))).arrayBuffer();
  const at = instance.exports.web_file(text.byteLength);
  new Uint8Array(memory().buffer, at).set(new Uint8Array(text));
}

const calls = {
  async open(backend) {
    if (backend === 'webgpu') await requireWebgpu();
    await instantiate(backend);
    await readDigits();
    await run('web_open', BACKENDS[backend]);
    const activations = [];
    for (let at; (at = instance.exports.web_activation(activations.length));) activations.push(string(at));
    return {device: string(instance.exports.web_device()), version: string(instance.exports.web_version()), activations};
  },

  begin: (activation, seed, epochs) => run('web_begin', activation, seed, epochs),

  /** As many steps as fit into `milliseconds`, at least one: {losses, seconds}. */
  async train(milliseconds) {
    const losses = [], start = performance.now();
    do {
      const taken = await run('web_train', 1);
      if (taken === 0) break;
      losses.push(...reply(1));
    } while (performance.now() - start < milliseconds);
    return {losses, seconds: (performance.now() - start) / 1000};
  },

  /** {right, wrong: [{label, said, probability, pixels}]} of the 360 digits held out. */
  async evaluate() {
    const right = await run('web_evaluate');
    const wrong = Array.from({length: Math.min(360 - right, 12)}, (_, i) => {
      const pixels = [...new Float32Array(memory().buffer, instance.exports.web_wrong(i), PIXELS)];
      const [label, said, probability] = reply(3);
      return {label, said, probability, pixels};
    });
    return {right, wrong};
  },

  async read(pixels) {
    new Float32Array(memory().buffer, instance.exports.web_drawing(), PIXELS).set(pixels);
    const digit = await run('web_read');
    return {digit, probabilities: reply(CLASSES)};
  },

  async check() {
    const good = !!(await run('web_check'));
    const [count, worst, limit, otherWorst, otherLimit, bits] = reply(6);
    return {good, count, worst, limit, otherWorst, otherLimit, bits};
  },

  /** The first layer's weights, [64, 256]. */
  weights: async () => new Float32Array(memory().buffer, instance.exports.web_weights(), PIXELS * 256).slice(),

  plan: async () => string(instance.exports.web_plan()),
};

let last = Promise.resolve();
addEventListener('message', ({data: {id, call, args}}) => {
  last = last.then(() => calls[call](...args))
    .then((result) => postMessage({id, result}), (error) => postMessage({id, error: error.message}));
});

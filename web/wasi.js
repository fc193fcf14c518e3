/* SPDX-License-Identifier: Apache-2.0 */
// The few calls of WASI (wasm's operating system) that wasi-libc makes on the library's behalf. There are no
// files and no environment in a page: what is asked for is politely not found.

const BADF = 8, NOSYS = 52;

export class Exit extends Error {}

/** Imports of a module that uses wasi-libc. `memory()` gives its memory, once it is there; `args` are those of
 *  its main(), and `print` is handed what it writes to stdout. */
export function wasi(memory, args = [], print = () => {}) {
  const words = args.map((arg) => new TextEncoder().encode(arg + '\0'));
  const view = () => new DataView(memory().buffer);
  let said = '';

  /** stderr is kept: it says why the program ends, if it does. */
  function fd_write(fd, parts, count, written) {
    let text = '', total = 0;
    for (let i = 0; i < count; i++) {
      const at = view().getUint32(parts + 8 * i, true), bytes = view().getUint32(parts + 8 * i + 4, true);
      text += new TextDecoder().decode(new Uint8Array(memory().buffer, at, bytes));
      total += bytes;
    }
    if (fd === 1) print(text); else said += text;
    view().setUint32(written, total, true);
    return 0;
  }

  function args_sizes_get(count, bytes) {
    view().setUint32(count, words.length, true);
    view().setUint32(bytes, words.reduce((sum, word) => sum + word.length, 0), true);
    return 0;
  }

  function args_get(pointers, at) {
    for (const word of words) {
      view().setUint32(pointers, at, true);
      new Uint8Array(memory().buffer, at).set(word);
      pointers += 4, at += word.length;
    }
    return 0;
  }

  function clock_time_get(clock, precision, result) {
    view().setBigUint64(result, BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6)), true);
    return 0;
  }

  function environ_sizes_get(count, bytes) {
    view().setUint32(count, 0, true);
    view().setUint32(bytes, 0, true);
    return 0;
  }

  function proc_exit() {
    throw new Exit(said.trim().split('\n').pop().replace(/^digits: /, '') || 'the program ended');
  }

  const known = {fd_write, clock_time_get, environ_sizes_get, proc_exit, args_sizes_get,
                 args_get, environ_get: () => 0, poll_oneoff: () => 0, fd_prestat_get: () => BADF};
  return new Proxy(known, {get: (calls, name) => calls[name] ?? (() => NOSYS)});
}

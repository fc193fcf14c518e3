/* SPDX-License-Identifier: Apache-2.0 */
// WebGPU for web/core/webgpu.c: functions of numbers. An object is known to C by its handle, an index into
// `objects`; 0 is none. What C waits for is in `suspending`: it returns promises.

/** The imports of module "webgpu". `memory()` gives the wasm memory, once it is there. */
export function webgpu(memory) {
  const objects = [null], free = [];
  const errors = []; // {type, message}, as take_error hands them out
  const VALIDATION = 2, OUT_OF_MEMORY = 3, INTERNAL = 4, LOST = 100;
  let constants = {}, entries = [];

  const get = (handle) => objects[handle];
  const bytes = (at, length) => new Uint8Array(memory().buffer, at, length);
  const text = (at, length) => new TextDecoder().decode(bytes(at, length));

  function put(object) {
    const handle = free.pop() ?? objects.length;
    objects[handle] = object;
    return handle;
  }

  /** Writes a string with its NUL, cut to `capacity` bytes. */
  function write(string, at, capacity) {
    const {written} = new TextEncoder().encodeInto(string, bytes(at, capacity - 1));
    bytes(at, capacity)[written] = 0;
  }

  function fail(type, message) {
    if (errors.length < 8) errors.push({type, message});
  }

  function watch(device) {
    device.addEventListener('uncapturederror', ({error}) => {
      const type = error instanceof GPUOutOfMemoryError ? OUT_OF_MEMORY
        : error instanceof GPUValidationError ? VALIDATION : INTERNAL;
      fail(type, error.message);
    });
    device.lost.then(({reason, message}) => {
      if (reason !== 'destroyed') fail(LOST, message || 'no reason given');
    });
  }

  async function request_adapter() {
    const adapter = await navigator.gpu?.requestAdapter({powerPreference: 'high-performance'});
    return adapter ? put(adapter) : 0;
  }

  /** With all the adapter has of what the library makes use of. */
  async function request_device(handle) {
    const adapter = get(handle), requiredLimits = {};
    for (const name of ['maxStorageBuffersPerShaderStage', 'maxStorageBufferBindingSize', 'maxBufferSize',
                        'maxComputeWorkgroupStorageSize', 'maxComputeInvocationsPerWorkgroup',
                        'maxComputeWorkgroupSizeX', 'maxComputeWorkgroupsPerDimension'])
      requiredLimits[name] = adapter.limits[name];
    const requiredFeatures = adapter.features.has('shader-f16') ? ['shader-f16'] : [];
    try {
      const device = await adapter.requestDevice({requiredLimits, requiredFeatures});
      watch(device);
      return put(device);
    } catch (error) {
      fail(VALIDATION, error.message);
      return 0;
    }
  }

  async function map(buffer, offset, size) {
    try {
      await get(buffer).mapAsync(GPUMapMode.READ, offset, size);
      return 1;
    } catch {
      return 0; // a lost device, which `watch` reports
    }
  }

  const functions = {
    take_error(at, capacity) {
      const error = errors.shift();
      if (error) write(error.message, at, capacity);
      return error?.type ?? 0;
    },
    describe(adapter, at, capacity) {
      const {description, device, architecture, vendor} = get(adapter).info;
      const words = [...new Set([vendor, architecture, device, description])].filter(Boolean);
      write(words.join(' ') || 'an adapter without a name', at, capacity);
    },
    is_software: (adapter) =>
      +(get(adapter).info.isFallbackAdapter || get(adapter).info.architecture === 'swiftshader'),
    has_f16: (handle) => +get(handle).features.has('shader-f16'),
    limit: (handle, name, length) => get(handle).limits[text(name, length)] ?? 0,
    queue: (device) => put(get(device).queue),
    release(handle) {
      if (!handle) return;
      objects[handle] = null; // not destroyed: what is recorded may still use it. Garbage collection does the rest
      free.push(handle);
    },

    create_buffer: (device, usage, size) => put(get(device).createBuffer({usage, size})),
    buffer_size: (buffer) => get(buffer).size,
    buffer_usage: (buffer) => get(buffer).usage,
    write_buffer: (queue, buffer, offset, at, size) =>
      get(queue).writeBuffer(get(buffer), offset, memory().buffer, at, size),
    read_mapped: (buffer, offset, size, at) =>
      bytes(at, size).set(new Uint8Array(get(buffer).getMappedRange(offset, size))),
    unmap: (buffer) => get(buffer).unmap(),

    create_module: (device, at, length) => put(get(device).createShaderModule({code: text(at, length)})),
    add_constant(name, length, value) { constants[text(name, length)] = value; },
    create_pipeline(device, module) {
      const compute = {module: get(module), entryPoint: 'main', constants};
      constants = {};
      return put(get(device).createComputePipeline({layout: 'auto', compute}));
    },
    pipeline_layout: (pipeline, group) => put(get(pipeline).getBindGroupLayout(group)),
    add_binding(binding, buffer, offset, size) {
      entries.push({binding, resource: {buffer: get(buffer), offset, size}});
    },
    create_group(device, layout) {
      const group = get(device).createBindGroup({layout: get(layout), entries});
      entries = [];
      return put(group);
    },

    create_encoder: (device) => put(get(device).createCommandEncoder()),
    copy: (encoder, from, at, to, toAt, size) =>
      get(encoder).copyBufferToBuffer(get(from), at, get(to), toAt, size),
    begin_pass: (encoder) => put(get(encoder).beginComputePass()),
    set_pipeline: (pass, pipeline) => get(pass).setPipeline(get(pipeline)),
    set_group: (pass, index, group) => get(pass).setBindGroup(index, get(group)),
    dispatch: (pass, x, y, z) => get(pass).dispatchWorkgroups(x, y, z),
    end_pass: (pass) => get(pass).end(),
    finish: (encoder) => put(get(encoder).finish()),
    submit: (queue, commands) => get(queue).submit([get(commands)]),
  };

  const suspending = {request_adapter, request_device, map};
  for (const [name, call] of Object.entries(suspending))
    functions[name] = WebAssembly.Suspending ? new WebAssembly.Suspending(call) : () => 0;
  return functions;
}

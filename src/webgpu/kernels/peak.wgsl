// SPDX-License-Identifier: Apache-2.0
/* The arithmetic peak: 64 invocations, each 8 independent vec4 sums of 2048 multiply-adds, four
 * rounds at a time, so that the loop itself does not count. */
@group(0) @binding(0) var<storage, read_write> out: array<f32>;

#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define DECLARE(i) var sum_##i = vec4<f32>(start + f32(i));
#define ADD(i) sum_##i = fma(sum_##i, factor, vec4<f32>(0.5));
#define TOTAL(i) total += sum_##i;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let start = f32(id.x) * 0.001;
    let factor = vec4<f32>(0.25, 0.5, 0.375, 0.125);
    EACH(DECLARE)
    for (var i = 0u; i < 512u; i++) { EACH(ADD) EACH(ADD) EACH(ADD) EACH(ADD) }
    var total = vec4<f32>();
    EACH(TOTAL)
    if (total.x + total.y + total.z + total.w == -1.0) { out[0] = total.x; }
}

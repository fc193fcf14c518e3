// SPDX-License-Identifier: Apache-2.0
/* Sums of columns: row r of out is the sum over the terms [r * chunk, r * chunk + depth) of left that exist.
 * EG_LANES lanes take every EG_LANES-th term and their sums are added as a tree: always in the same order. A
 * lane alone needs no barrier: what an adapter wants that is a processor. */
#include "common.wgsl"

@group(0) @binding(1) var<storage, read> left: array<Left>;
@group(0) @binding(4) var<storage, read_write> out: array<Out>;

#if EG_LANES > 1
var<workgroup> sums: array<f32, EG_LANES * EG_COLS>;
#endif

@compute @workgroup_size(EG_COLS, EG_LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let col = group.x * EG_COLS + local.x;
    let row = group.y;
    let terms = min(params.depth, params.limit - min(params.limit, row * params.chunk));
    let at_left = params.left.base + group.z * params.left.item + row * params.left.row + col * params.left.col;
    var sum = 0.0;
    if (col < params.cols) {
        for (var k = local.y; k < terms; k += EG_LANES) { sum += f32(left[at_left + k * params.left.depth]); }
    }
#if EG_LANES > 1
    let mine = local.y * EG_COLS + local.x;
    sums[mine] = sum;
    for (var half = EG_LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (local.y < half) { sums[mine] += sums[mine + half * EG_COLS]; }
    }
    sum = sums[mine];
#endif
    if (local.y == 0u && col < params.cols) {
        let at = params.out.base + group.z * params.out.item + row * params.out.row + col * params.out.col;
        var value = sum;
        if (has(ACCUMULATE)) { value += f32(out[at]); }
        out[at] = Out(value);
    }
}

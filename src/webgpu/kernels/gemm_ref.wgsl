// SPDX-License-Identifier: Apache-2.0
/* The product as it is defined: one invocation an element, terms in order. */
#undef EG_VEC4 /* there is nothing to gain */
#define EG_EPILOGUE
#include "common.wgsl"

@group(0) @binding(1) var<storage, read> left: array<Left>;
@group(0) @binding(2) var<storage, read> right: array<Right>;
@group(0) @binding(4) var<storage, read_write> out: array<Out>;

@compute @workgroup_size(EG_COLS, EG_ROWS)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let item = id.z / params.splits;
    let split = id.z % params.splits;
    if (id.y >= params.rows || id.x >= params.cols) { return; }
    let l = params.left.base + item * params.left.item + id.y * params.left.row;
    let r = params.right.base + item * params.right.item + id.x * params.right.col;
    var sum = 0.0;
    for (var k = split * params.chunk; k < min((split + 1u) * params.chunk, params.depth); k++) {
        sum = fma(f32(left[l + k * params.left.depth]), f32(right[r + k * params.right.depth]), sum);
    }
    let at = params.out.base + item * params.out.item + split * params.out.depth + id.y * params.out.row +
             id.x * params.out.col;
    var value = one_epilogue(sum, item, id.y, id.x);
    if (has(ACCUMULATE)) { value += f32(out[at]); }
    out[at] = Out(value);
}

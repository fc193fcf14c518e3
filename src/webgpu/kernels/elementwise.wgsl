// SPDX-License-Identifier: Apache-2.0
/* Element by element: the sum over the depth of left (the parts of a product; a saved pre or y, which has
 * depth 1), through the epilogue. */
#define EG_EPILOGUE
#include "common.wgsl"

@group(0) @binding(1) var<storage, read> left: array<Left>;
@group(0) @binding(4) var<storage, read_write> out: array<Out>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z;
    let col = group.x * EG_COLS + thread;
    let first = group.y * EG_ROWS;
    if (col >= params.cols) { return; }
    for (var row = first; row < min(first + EG_ROWS, params.rows); row++) {
        let at_left = params.left.base + item * params.left.item + row * params.left.row + col * params.left.col;
        var sum = 0.0;
        for (var k = 0u; k < params.depth; k++) { sum += f32(left[at_left + k * params.left.depth]); }
        let at = params.out.base + item * params.out.item + row * params.out.row + col * params.out.col;
        var value = one_epilogue(sum, item, row, col);
        if (has(ACCUMULATE)) { value += f32(out[at]); }
        out[at] = Out(value);
    }
}

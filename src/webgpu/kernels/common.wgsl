// SPDX-License-Identifier: Apache-2.0
/* What every kernel begins with: its parameters and the epilogue.
 *
 * A pass walks a space of (item, row, col, depth) and each operand has an element stride along each of the
 * four; which ones a kernel uses is said where it is declared. The host writes Left, Right, Extra and Out,
 * the storage types, in front of this text. */
struct Walk { base: u32, row: u32, col: u32, depth: u32, item: u32 }

struct Params {
    rows: u32, cols: u32, depth: u32,
    chunk: u32,      /* of the depth, for each split (gemm) or row (column_sum) */
    splits: u32,
    limit: u32,      /* column_sum: rows there are */
    flags: u32,
    bias_skip: u32,  /* f16 numbers in front of the bias */
    left: Walk, right: Walk, extra: Walk, out: Walk,
    scale: f32,      /* of a product */
    spare: array<u32, 3>,
    bias: array<u32>, /* f32, or pairs of f16 */
}

const HAS_BIAS = 1u;
const BIAS_IS_F16 = 2u;
const HAS_EXTRA = 4u;
const ACCUMULATE = 8u;
const BIAS_BY_ROW = 16u;
const PROPAGATE = 32u;
const SUMS = 64u;
const ADD_SUMS = 128u;

@group(0) @binding(0) var<storage, read> params: Params;

fn has(flag: u32) -> bool { return (params.flags & flag) != 0u; }

#ifdef EG_EPILOGUE
#include "dialect.wgsl"

#ifdef EG_SUMS /* there is nothing else to read */
@group(0) @binding(3) var<storage, read_write> extra: array<f32>;
#elif defined(EG_VEC4)
@group(0) @binding(3) var<storage, read> extra: array<vec4<Extra>>;
#else
@group(0) @binding(3) var<storage, read> extra: array<Extra>;
#endif

override EPILOGUE: u32 = 0u; /* EG_WEBGPU_STORE, ... of the host */
override OF_Y: bool = false; /* act' is taken of y, not of pre */

fn act_grad(x: f32) -> f32 {
    if (ACT == 0u) { return 1.0; }
    if (is_nan(x)) { return select(0.0, x, has(PROPAGATE)); }
    if (OF_Y) { return act_grad_of_y(x); }
    return act_grad_of_pre(x);
}

fn bias_at(i: u32) -> f32 {
    if (!has(BIAS_IS_F16)) { return bitcast<f32>(params.bias[i]); }
    let at = i + params.bias_skip;
    let pair = unpack2x16float(params.bias[at >> 1u]);
    return select(pair.x, pair.y, (at & 1u) != 0u);
}

fn extra_index(item: u32, row: u32, col: u32) -> u32 {
    let walk = params.extra;
    return walk.base + item * walk.item + row * walk.row + col * walk.col;
}

fn epilogue(product: f32, bias: f32, other: f32) -> f32 {
    let value = params.scale * product + bias;
    switch EPILOGUE {
        case 1u: { return select(act_of(value), value, is_nan(value)) + other; }
        case 2u: { return other * act_grad(value); }
        case 3u: { return value * act_grad(other); }
        case 4u: { return select(act_of(value), value, is_nan(value)) * other; }
        default: { return value; }
    }
}

#if !defined(EG_VEC4) && !defined(EG_SUMS)
fn one_epilogue(product: f32, item: u32, row: u32, col: u32) -> f32 {
    var bias = 0.0;
    var other = 0.0;
    if (has(HAS_BIAS)) { bias = bias_at(select(col, row, has(BIAS_BY_ROW))); }
    if (has(HAS_EXTRA)) { other = f32(extra[extra_index(item, row, col)]); }
    return epilogue(product, bias, other);
}
#endif
#endif

// SPDX-License-Identifier: Apache-2.0
/* How the products read and write: by four elements at once (EG_VEC4: every operand is aligned to that and
 * has a multiple of four along its contiguous dimension), or one by one with any strides. Nothing here
 * looks at bounds but store4. */
#ifdef EG_VEC4
@group(0) @binding(1) var<storage, read> left: array<vec4<Left>>;
@group(0) @binding(2) var<storage, read> right: array<vec4<Right>>;
@group(0) @binding(4) var<storage, read_write> out: array<vec4<Out>>;
#else
@group(0) @binding(1) var<storage, read> left: array<Left>;
@group(0) @binding(2) var<storage, read> right: array<Right>;
@group(0) @binding(4) var<storage, read_write> out: array<Out>;
#endif

override LEFT_ALONG_DEPTH: bool = true;   /* left is contiguous along the depth, else along the rows */
override RIGHT_ALONG_DEPTH: bool = false; /* right is contiguous along the depth, else along the columns */

fn left_at(item: u32, row: u32, k: u32) -> u32 {
    return params.left.base + item * params.left.item + row * params.left.row + k * params.left.depth;
}
fn right_at(item: u32, col: u32, k: u32) -> u32 {
    return params.right.base + item * params.right.item + col * params.right.col + k * params.right.depth;
}

#ifdef EG_VEC4
fn left_one(at: u32) -> f32 { return f32(left[at >> 2u][at & 3u]); }
fn right_one(at: u32) -> f32 { return f32(right[at >> 2u][at & 3u]); }
fn left4(at: u32, step: u32) -> vec4<f32> { return vec4<f32>(left[at >> 2u]); }
fn right4(at: u32, step: u32) -> vec4<f32> { return vec4<f32>(right[at >> 2u]); }
#else
fn left_one(at: u32) -> f32 { return f32(left[at]); }
fn right_one(at: u32) -> f32 { return f32(right[at]); }
fn left4(at: u32, step: u32) -> vec4<f32> {
    return vec4<f32>(f32(left[at]), f32(left[at + step]), f32(left[at + 2u * step]), f32(left[at + 3u * step]));
}
fn right4(at: u32, step: u32) -> vec4<f32> {
    return vec4<f32>(f32(right[at]), f32(right[at + step]), f32(right[at + 2u * step]),
                     f32(right[at + 3u * step]));
}
#endif

/* What the epilogue reads beside four sums of one row, from column `col` on; past the end, of the last. */
fn bias4(row: u32, col: u32) -> vec4<f32> {
    if (!has(HAS_BIAS)) { return vec4<f32>(); }
    if (has(BIAS_BY_ROW)) { return vec4<f32>(bias_at(min(row, params.rows - 1u))); }
    let cols = min(vec4<u32>(col, col + 1u, col + 2u, col + 3u), vec4<u32>(params.cols - 1u));
    return vec4<f32>(bias_at(cols.x), bias_at(cols.y), bias_at(cols.z), bias_at(cols.w));
}

#ifdef EG_SUMS
fn extra4(item: u32, row: u32, col: u32) -> vec4<f32> { return vec4<f32>(); }
#else
fn extra4(item: u32, row: u32, col: u32) -> vec4<f32> {
    if (!has(HAS_EXTRA)) { return vec4<f32>(); }
    let at = extra_index(item, min(row, params.rows - 1u), 0u);
    let last = params.cols - 1u;
    let step = params.extra.col;
#ifdef EG_VEC4
    return vec4<f32>(extra[(at + min(col, last - 3u)) >> 2u]);
#else
    return vec4<f32>(f32(extra[at + min(col, last) * step]), f32(extra[at + min(col + 1u, last) * step]),
                     f32(extra[at + min(col + 2u, last) * step]), f32(extra[at + min(col + 3u, last) * step]));
#endif
}
#endif

/* Four sums of one row through the epilogue. Processors compile slowly: for them it is a loop whose end the
 * compiler does not know, with one copy of the epilogue. */
fn epilogue4(sums: vec4<f32>, bias: vec4<f32>, other: vec4<f32>, width: u32) -> vec4<f32> {
#ifdef EG_FOUR_EPILOGUES
    return vec4<f32>(epilogue(sums.x, bias.x, other.x), epilogue(sums.y, bias.y, other.y),
                     epilogue(sums.z, bias.z, other.z), epilogue(sums.w, bias.w, other.w));
#else
    var value = sums;
    for (var i = 0u; i < width; i++) { value[i] = epilogue(sums[i], bias[i], other[i]); }
    return value;
#endif
}

/* Four sums of one row, finished. */
fn store4(sums: vec4<f32>, bias: vec4<f32>, other: vec4<f32>, item: u32, split: u32, row: u32, col: u32) {
    let walk = params.out;
    let at = walk.base + item * walk.item + split * walk.depth + row * walk.row + col * walk.col;
    if (row >= params.rows || col >= params.cols) { return; }
    let width = min(4u, params.cols - col);
    var value = epilogue4(sums, bias, other, width);
#ifdef EG_VEC4
    if (has(ACCUMULATE)) { value += vec4<f32>(out[at >> 2u]); }
    out[at >> 2u] = vec4<Out>(value);
#else
    for (var i = 0u; i < width; i++) {
        let to = at + i * walk.col;
        if (has(ACCUMULATE)) { value[i] += f32(out[to]); }
        out[to] = Out(value[i]);
    }
#endif
}

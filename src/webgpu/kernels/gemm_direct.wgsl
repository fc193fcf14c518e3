/* The product for adapters that are CPUs: no workgroup memory and no barrier, which cost a CPU much and buy
 * it nothing. Each invocation holds EG_ROWS rows by 4 columns in registers; the invocations of a group
 * stand side by side, so that they share every element of left.
 *
 * Rows and columns past the end are read from the last ones and not stored. */
#define EG_EPILOGUE
#include "common.wgsl"
#include "load.wgsl"

/* Terms k..k+3 of one row, and columns col..col+3 of the terms k..k+3. */
fn left_terms(item: u32, row: u32, k: u32) -> vec4<f32> {
    let at = left_at(item, row, k);
#ifdef EG_VEC4
    if (LEFT_ALONG_DEPTH) { return left4(at, 1u); }
    let step = params.left.depth;
    return vec4<f32>(left_one(at), left_one(at + step), left_one(at + 2u * step), left_one(at + 3u * step));
#else
    return left4(at, params.left.depth);
#endif
}

#ifdef EG_VEC4
fn right_block(item: u32, col: u32, k: u32) -> mat4x4<f32> {
    let at = right_at(item, col, k);
    if (RIGHT_ALONG_DEPTH) {
        let step = params.right.col;
        return transpose(mat4x4<f32>(right4(at, 1u), right4(at + step, 1u), right4(at + 2u * step, 1u),
                                     right4(at + 3u * step, 1u)));
    }
    let step = params.right.depth;
    return mat4x4<f32>(right4(at, 1u), right4(at + step, 1u), right4(at + 2u * step, 1u),
                       right4(at + 3u * step, 1u));
}
#endif

fn right_cols(item: u32, cols: vec4<u32>, k: u32) -> vec4<f32> {
    return vec4<f32>(right_one(right_at(item, cols.x, k)), right_one(right_at(item, cols.y, k)),
                     right_one(right_at(item, cols.z, k)), right_one(right_at(item, cols.w, k)));
}

#define EACH_4(X, a, b, c, d) X(a) X(b) X(c) X(d)
#if EG_ROWS == 16
#define EACH_ROW(X) EACH_4(X, 0, 1, 2, 3) EACH_4(X, 4, 5, 6, 7) EACH_4(X, 8, 9, 10, 11) EACH_4(X, 12, 13, 14, 15)
#elif EG_ROWS == 8
#define EACH_ROW(X) EACH_4(X, 0, 1, 2, 3) EACH_4(X, 4, 5, 6, 7)
#else
#define EACH_ROW(X) EACH_4(X, 0, 1, 2, 3)
#endif

#define DECLARE(i) var sum_##i = vec4<f32>();
#define ADD_4(i)                                                     \
    {                                                                \
        let terms = left_terms(item, min(row + i, last_row), k);     \
        sum_##i = fma(vec4<f32>(terms.x), block[0], sum_##i);        \
        sum_##i = fma(vec4<f32>(terms.y), block[1], sum_##i);        \
        sum_##i = fma(vec4<f32>(terms.z), block[2], sum_##i);        \
        sum_##i = fma(vec4<f32>(terms.w), block[3], sum_##i);        \
    }
#define ADD_1(i) \
    sum_##i = fma(vec4<f32>(left_one(left_at(item, min(row + i, last_row), k))), across, sum_##i);
#define LIST(i) sum_##i,

@compute @workgroup_size(EG_COLS / 4)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z / params.splits;
    let split = group.z % params.splits;
    let begin = split * params.chunk;
    let end = min(begin + params.chunk, params.depth);
    let row = group.y * EG_ROWS;
    let col = group.x * EG_COLS + 4u * thread;
    let last_row = params.rows - 1u;
    let cols = min(vec4<u32>(col, col + 1u, col + 2u, col + 3u), vec4<u32>(params.cols - 1u));
    var k = begin;
    EACH_ROW(DECLARE)
    for (; k + 4u <= end; k += 4u) {
#ifdef EG_VEC4
        let block = right_block(item, min(col, params.cols - 4u), k);
#else
        let block = mat4x4<f32>(right_cols(item, cols, k), right_cols(item, cols, k + 1u),
                                right_cols(item, cols, k + 2u), right_cols(item, cols, k + 3u));
#endif
        EACH_ROW(ADD_4)
    }
    for (; k < end; k++) {
        let across = right_cols(item, cols, k);
        EACH_ROW(ADD_1)
    }
    var sums = array<vec4<f32>, EG_ROWS>(EACH_ROW(LIST));
    let height = min(EG_ROWS, params.rows - row);
    for (var i = 0u; i < height; i++) { store4(sums[i], item, split, row + i, col); }
}

// SPDX-License-Identifier: Apache-2.0
/* The product for adapters that are CPUs: no workgroup memory and no barrier, which cost a CPU much and buy
 * it nothing. Each invocation holds 16 rows by 4 EG_WIDE columns; the invocations of a group stand side
 * by side, so that they share every element of left. Loads cost such adapters far more than arithmetic (each is
 * checked and gathered lane by lane), so tiles are as large as the time to compile them allows, and products
 * are added without fma, which some compute by a function call.
 *
 * Rows and columns past the end are read from the last ones and not stored. */
#define EG_EPILOGUE
#include "common.wgsl"
#include "load.wgsl"

#define THREADS (EG_COLS / (4 * EG_WIDE))
#define APART   (4u * THREADS)

/* Terms k..k+3 of the rows row..row+3. */
fn left_block(item: u32, row: u32, k: u32) -> mat4x4<f32> {
    let step = params.left.depth;
#ifdef EG_VEC4
    if (!LEFT_ALONG_DEPTH) {
        let at = left_at(item, min(row, params.rows - 4u), k);
        return transpose(mat4x4<f32>(left4(at, 1u), left4(at + step, 1u), left4(at + 2u * step, 1u),
                                     left4(at + 3u * step, 1u)));
    }
#endif
    let last = params.rows - 1u;
    return mat4x4<f32>(left4(left_at(item, min(row, last), k), step),
                       left4(left_at(item, min(row + 1u, last), k), step),
                       left4(left_at(item, min(row + 2u, last), k), step),
                       left4(left_at(item, min(row + 3u, last), k), step));
}

fn left_rows(item: u32, row: u32, k: u32) -> vec4<f32> {
    let rows = min(vec4<u32>(row, row + 1u, row + 2u, row + 3u), vec4<u32>(params.rows - 1u));
    return vec4<f32>(left_one(left_at(item, rows.x, k)), left_one(left_at(item, rows.y, k)),
                     left_one(left_at(item, rows.z, k)), left_one(left_at(item, rows.w, k)));
}

fn outer(across: vec4<f32>, down: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(across * down.x, across * down.y, across * down.z, across * down.w);
}

/* Columns col..col+3 of one term, and of the terms k..k+3. */
fn right_cols(item: u32, col: u32, k: u32) -> vec4<f32> {
    let cols = min(vec4<u32>(col, col + 1u, col + 2u, col + 3u), vec4<u32>(params.cols - 1u));
    return vec4<f32>(right_one(right_at(item, cols.x, k)), right_one(right_at(item, cols.y, k)),
                     right_one(right_at(item, cols.z, k)), right_one(right_at(item, cols.w, k)));
}

fn right_block(item: u32, col: u32, k: u32) -> mat4x4<f32> {
#ifdef EG_VEC4
    let at = right_at(item, min(col, params.cols - 4u), k);
    if (RIGHT_ALONG_DEPTH) {
        let step = params.right.col;
        return transpose(mat4x4<f32>(right4(at, 1u), right4(at + step, 1u), right4(at + 2u * step, 1u),
                                     right4(at + 3u * step, 1u)));
    }
    let step = params.right.depth;
    return mat4x4<f32>(right4(at, 1u), right4(at + step, 1u), right4(at + 2u * step, 1u),
                       right4(at + 3u * step, 1u));
#else
    return mat4x4<f32>(right_cols(item, col, k), right_cols(item, col, k + 1u), right_cols(item, col, k + 2u),
                       right_cols(item, col, k + 3u));
#endif
}

/* The tile in squares of 4x4: X(i, j) for square i down, j across. The columns of a square are its rows. */
#if EG_WIDE == 4
#define EACH_WIDE(X, i) X(i, 0) X(i, 1) X(i, 2) X(i, 3)
#else
#define EACH_WIDE(X, i) X(i, 0)
#endif
#define EACH_TALL(Y) Y(0) Y(1) Y(2) Y(3)

#define DECLARE(i, j) var sum_##i##_##j = mat4x4<f32>();
#define RIGHT_4(i, j) let right_##j = right_block(item, col + j * APART, k);
#define RIGHT_1(i, j) let right_##j = right_cols(item, col + j * APART, k);
#define ADD_4(i, j)   sum_##i##_##j += right_##j * left;
#define ADD_1(i, j)   sum_##i##_##j += outer(right_##j, left);
#define LIST(i, j)    sum_##i##_##j,
#define DECLARE_ALL(i) EACH_WIDE(DECLARE, i)
#define ADD_ALL_4(i)  { let left = left_block(item, row + 4u * i, k); EACH_WIDE(ADD_4, i) }
#define ADD_ALL_1(i)  { let left = left_rows(item, row + 4u * i, k); EACH_WIDE(ADD_1, i) }
#define LIST_ALL(i)   EACH_WIDE(LIST, i)

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z / params.splits;
    let split = group.z % params.splits;
    let begin = split * params.chunk;
    let end = min(begin + params.chunk, params.depth);
    let row = group.y * EG_ROWS;
    let col = group.x * EG_COLS + 4u * thread;
    var k = begin;
    EACH_TALL(DECLARE_ALL)
    for (; k + 4u <= end; k += 4u) {
        EACH_WIDE(RIGHT_4, 0)
        EACH_TALL(ADD_ALL_4)
    }
    for (; k < end; k++) {
        EACH_WIDE(RIGHT_1, 0)
        EACH_TALL(ADD_ALL_1)
    }
    /* The epilogue is long: a loop whose end the compiler does not know keeps one copy of it. */
    var sums = array<mat4x4<f32>, 4 * EG_WIDE>(EACH_TALL(LIST_ALL));
    let height = min(EG_ROWS, params.rows - row);
    for (var i = 0u; i < height; i++) {
        for (var j = 0u; j < EG_WIDE; j++) {
            let at = col + j * APART;
            store4(sums[(i >> 2u) * EG_WIDE + j][i & 3u], bias4(row + i, at), extra4(item, row + i, at), item,
                   split, row + i, at);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
/* The product for GPUs: tiles of EG_ROWS x EG_COLS, EG_DEPTH = 16 terms at a time in workgroup memory.
 *
 *                    right  EG_DEPTH x EG_COLS            Every thread holds a tile of 4 EG_TALL rows by
 *                  +---------------------+                4 EG_WIDE columns in registers, in blocks of four
 *   left           |      |   |      |   |                that lie half a tile apart: so the threads of a
 *   EG_ROWS        +---------------------+                group read neighbouring vec4.
 *   x EG_DEPTH     |      .       .      |
 *   +---+          |   ty *  tx . *      |                While a tile is multiplied, the next one is on its
 *   |   |          |      .       .      |                way from memory to registers.
 *   +---+          +---------------------+
 *
 * Memory moves in blocks of 4x4, each turned on its way so that four rows (columns) of one term lie
 * together. */
#define EG_FOUR_EPILOGUES
#define EG_EPILOGUE
#include "common.wgsl"
#include "load.wgsl"

#define LEFT_WIDTH   (EG_ROWS / 4)
#define RIGHT_WIDTH  (EG_COLS / 4)
#define THREADS_A_ROW       (EG_COLS / (4 * EG_WIDE)) /* threads */
#define DOWN         (EG_ROWS / (4 * EG_TALL))
#define THREADS      (THREADS_A_ROW * DOWN)
#define DEPTH_4      (EG_DEPTH / 4)
#define LEFT_BLOCKS  (LEFT_WIDTH * DEPTH_4)
#define RIGHT_BLOCKS (RIGHT_WIDTH * DEPTH_4)

var<workgroup> left_tile: array<vec4<f32>, LEFT_WIDTH * EG_DEPTH>;
var<workgroup> right_tile: array<vec4<f32>, RIGHT_WIDTH * EG_DEPTH>;

/* ---- From memory -------------------------------------------------------------------------------- */

/* The four lines of a block are its rows (columns), or its terms. What a line index counts: */
#ifdef EG_VEC4
#define LEFT_BY_ROW  LEFT_ALONG_DEPTH
#define RIGHT_BY_COL RIGHT_ALONG_DEPTH
#define UNIT         4u
fn left_line(at: u32) -> vec4<f32> { return vec4<f32>(left[at]); }
fn right_line(at: u32) -> vec4<f32> { return vec4<f32>(right[at]); }
#else
#define LEFT_BY_ROW  true
#define RIGHT_BY_COL true
#define UNIT         1u
fn left_line(at: u32) -> vec4<f32> { return left4(at, params.left.depth); }
fn right_line(at: u32) -> vec4<f32> { return right4(at, params.right.depth); }
#endif

/* Where they begin. Rows (columns) past the end are read from the last ones, and not stored. */
#define LINES(side, extent, BY_LINE)                                                                         \
    fn side##_lines(item: u32, line: u32, k: u32) -> vec4<u32> {                                             \
        let last = params.extent - 1u;                                                                       \
        if (BY_LINE) {                                                                                       \
            return vec4<u32>(side##_at(item, min(line, last), k), side##_at(item, min(line + 1u, last), k),  \
                             side##_at(item, min(line + 2u, last), k),                                       \
                             side##_at(item, min(line + 3u, last), k)) / UNIT;                               \
        }                                                                                                    \
        return (side##_at(item, min(line, last - 3u), k) +                                                   \
                vec4<u32>(0u, 1u, 2u, 3u) * params.side.depth) / UNIT;                                       \
    }
LINES(left, rows, LEFT_BY_ROW)
LINES(right, cols, RIGHT_BY_COL)

/* Four rows (columns) of four terms, as one vec4 for each term: of a whole tile, and where only the first
 * `terms` are there, with zeros behind. */
#define WHOLE(side, BY_LINE)                                                                                 \
    fn side##_whole(at: vec4<u32>) -> mat4x4<f32> {                                                          \
        let block =                                                                                          \
            mat4x4<f32>(side##_line(at.x), side##_line(at.y), side##_line(at.z), side##_line(at.w));         \
        if (BY_LINE) { return transpose(block); }                                                            \
        return block;                                                                                        \
    }
#ifdef EG_VEC4
#define PART(side, BY_LINE)                                                                                  \
    fn side##_part(at: vec4<u32>, terms: u32) -> mat4x4<f32> {                                               \
        var block = mat4x4<f32>();                                                                           \
        let apart = select(1u, 0u, BY_LINE);                                                                 \
        if (terms > 0u) { block[0] = side##_line(at.x); }                                                    \
        if (terms > apart) { block[1] = side##_line(at.y); }                                                 \
        if (terms > 2u * apart) { block[2] = side##_line(at.z); }                                            \
        if (terms > 3u * apart) { block[3] = side##_line(at.w); }                                            \
        if (BY_LINE) { return transpose(block); }                                                            \
        return block;                                                                                        \
    }
#else
#define PART(side, BY_LINE)                                                                                  \
    fn side##_part(at: vec4<u32>, terms: u32) -> mat4x4<f32> {                                               \
        var block = mat4x4<f32>();                                                                           \
        for (var i = 0u; i < min(4u, terms); i++) {                                                          \
            let k = i * params.side.depth;                                                                   \
            block[i] = vec4<f32>(side##_one(at.x + k), side##_one(at.y + k), side##_one(at.z + k),           \
                                 side##_one(at.w + k));                                                      \
        }                                                                                                    \
        return block;                                                                                        \
    }
#endif
WHOLE(left, LEFT_BY_ROW)
PART(left, LEFT_BY_ROW)
WHOLE(right, RIGHT_BY_COL)
PART(right, RIGHT_BY_COL)

/* ---- To workgroup memory ------------------------------------------------------------------------ */

/* Where block number `b` of a tile `width` blocks wide lies: neighbours in memory are neighbours here. */
fn place(b: u32, width: u32, along_depth: bool) -> vec2<u32> {
    if (along_depth) { return vec2<u32>(b / DEPTH_4, b % DEPTH_4); }
    return vec2<u32>(b % width, b / width);
}

/* Spreads the blocks of a row over the banks. */
fn turn(block: u32, k4: u32) -> u32 { return block ^ (k4 * (8u / DEPTH_4)); }

fn keep_left(to: u32, block: mat4x4<f32>) {
    left_tile[to] = block[0];
    left_tile[to + LEFT_WIDTH] = block[1];
    left_tile[to + 2u * LEFT_WIDTH] = block[2];
    left_tile[to + 3u * LEFT_WIDTH] = block[3];
}
fn keep_right(to: u32, block: mat4x4<f32>) {
    right_tile[to] = block[0];
    right_tile[to + RIGHT_WIDTH] = block[1];
    right_tile[to + 2u * RIGHT_WIDTH] = block[2];
    right_tile[to + 3u * RIGHT_WIDTH] = block[3];
}

/* A thread moves one block of left and one of right; or one block, where that makes a tile. */
#if LEFT_BLOCKS + RIGHT_BLOCKS > THREADS
#define FETCH_WHOLE                                                                                          \
    next_left = left_whole(left_next);                                                                       \
    next_right = right_whole(right_next);
#define FETCH_PART(from_term)                                                                                \
    next_left = left_part(left_next, terms_from(left_term + from_term, end));                                \
    next_right = right_part(right_next, terms_from(right_term + from_term, end));
#define KEEP                                                                                                 \
    keep_left(left_to, next_left);                                                                           \
    keep_right(right_to, next_right);
#define ADVANCE                                                                                              \
    left_next += vec4<u32>(left_step);                                                                       \
    right_next += vec4<u32>(right_step);
#else
#define FETCH_WHOLE                                                                                          \
    if (is_left) {                                                                                           \
        next = left_whole(my_next);                                                                          \
    } else {                                                                                                 \
        next = right_whole(my_next);                                                                         \
    }
#define FETCH_PART(from_term)                                                                                \
    if (is_left) {                                                                                           \
        next = left_part(my_next, terms_from(my_term + from_term, end));                                     \
    } else {                                                                                                 \
        next = right_part(my_next, terms_from(my_term + from_term, end));                                    \
    }
#define KEEP                                                                                                 \
    if (is_left) {                                                                                           \
        keep_left(my_to, next);                                                                              \
    } else {                                                                                                 \
        keep_right(my_to, next);                                                                             \
    }
#define ADVANCE my_next += vec4<u32>(my_step);
#endif

fn terms_from(term: u32, end: u32) -> u32 { return max(end, term) - term; }

/* ---- The sums of an operand --------------------------------------------------------------------- */

#ifdef EG_SUMS
/* Beside the product, what right (left) sums to over the depth goes to extra: [items, splits, columns (rows)].
 * The first groups in that direction add up the blocks that they move. */
override SUMS_BY_ROW: bool = false;

fn add_terms(block: mat4x4<f32>) -> vec4<f32> { return (block[0] + block[1]) + (block[2] + block[3]); }

fn store_sums(total: vec4<f32>, item: u32, split: u32, at: u32) {
    let walk = params.extra;
    let count = select(params.cols, params.rows, SUMS_BY_ROW);
    let apart = select(walk.col, walk.row, SUMS_BY_ROW);
    for (var i = 0u; i < min(4u, max(count, at) - at); i++) {
        let to = walk.base + item * walk.item + split * walk.depth + (at + i) * apart;
        extra[to] = total[i] + select(0.0, extra[to], has(ADD_SUMS));
    }
}

#if LEFT_BLOCKS + RIGHT_BLOCKS > THREADS
#define SUMMED_PLACE select(right_place, left_place, SUMS_BY_ROW)
#define SUMS_MINE    true
#define ADD_UP       if (SUMS_BY_ROW) { total += add_terms(next_left); } else { total += add_terms(next_right); }
#else
#define SUMMED_PLACE my_place
#define SUMS_MINE    (is_left == SUMS_BY_ROW)
#define ADD_UP       total += add_terms(next);
#endif
#endif

/* ---- The tile of a thread ----------------------------------------------------------------------- */

/* Written out: an array indexed in a loop might be put in memory. X(i, j) for line i and block j of four
 * columns. */
#if EG_WIDE == 2
#define EACH_WIDE(X, i) X(i, 0) X(i, 1)
#else
#define EACH_WIDE(X, i) X(i, 0)
#endif
#define EACH_OF_4(X, a, b, c, d) EACH_WIDE(X, a) EACH_WIDE(X, b) EACH_WIDE(X, c) EACH_WIDE(X, d)
#if EG_TALL == 2
#define EACH_SUM(X) EACH_OF_4(X, 0, 1, 2, 3) EACH_OF_4(X, 4, 5, 6, 7)
#else
#define EACH_SUM(X) EACH_OF_4(X, 0, 1, 2, 3)
#endif

#define DECLARE(i, j) var sum_##i##_##j = vec4<f32>();
#define ADD(i, j)     sum_##i##_##j = fma(vec4<f32>(ROW_##i), right_##j, sum_##i##_##j);
#define LIST(i, j)    sum_##i##_##j,
#define STORE(i, j)   store4(sum_##i##_##j, none, none, item, split, row_of(i, first, mine), col_of(j, first, mine));
#define OTHER(i, j)   extra4(item, row_of(i, first, mine), col_of(j, first, mine)),
#define BIAS(i, j)    bias4(0u, col_of(j, first, mine)),
#define ROW_0 left_0.x
#define ROW_1 left_0.y
#define ROW_2 left_0.z
#define ROW_3 left_0.w
#define ROW_4 left_1.x
#define ROW_5 left_1.y
#define ROW_6 left_1.z
#define ROW_7 left_1.w

#define MULTIPLY_TERM(k)                                                 \
    {                                                                    \
        let l = (k) * LEFT_WIDTH + turn(mine.y, (k) / 4u);               \
        let r = (k) * RIGHT_WIDTH + turn(mine.x, (k) / 4u);              \
        let left_0 = left_tile[l];                                       \
        let left_1 = left_tile[l + (EG_TALL - 1) * DOWN];                \
        let right_0 = right_tile[r];                                     \
        let right_1 = right_tile[r + (EG_WIDE - 1) * THREADS_A_ROW];            \
        EACH_SUM(ADD)                                                    \
    }
#define MULTIPLY_4(k) MULTIPLY_TERM(k) MULTIPLY_TERM(k + 1u) MULTIPLY_TERM(k + 2u) MULTIPLY_TERM(k + 3u)

/* The threads that run together, 32 on many devices, stand 4 deep and 8 wide, so that they read few
 * different vec4; every other one beside its neighbour below, which lets some devices serve them at once. */
fn stand(thread: u32) -> vec2<u32> {
    let lane = thread % 32u;
    let team = thread / 32u;
    return vec2<u32>(8u * (team % (THREADS_A_ROW / 8u)) + ((lane >> 1u) & 7u),
                     4u * (team / (THREADS_A_ROW / 8u)) + ((lane & 1u) | ((lane >> 4u) << 1u)));
}

/* Where line i and column block j of a thread's tile lie. */
fn row_of(i: u32, first: vec2<u32>, mine: vec2<u32>) -> u32 {
    return first.y + 4u * (mine.y + (i >> 2u) * DOWN) + (i & 3u);
}
fn col_of(j: u32, first: vec2<u32>, mine: vec2<u32>) -> u32 { return first.x + 4u * (mine.x + j * THREADS_A_ROW); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z / params.splits;
    let split = group.z % params.splits;
    let begin = split * params.chunk;
    let end = min(begin + params.chunk, params.depth);
    let first = vec2<u32>(group.x * EG_COLS, group.y * EG_ROWS);
    let mine = stand(thread);
    EACH_SUM(DECLARE)
#if LEFT_BLOCKS + RIGHT_BLOCKS > THREADS
    let left_place = place(thread, LEFT_WIDTH, LEFT_ALONG_DEPTH);
    let left_to = 4u * left_place.y * LEFT_WIDTH + turn(left_place.x, left_place.y);
    let left_term = begin + 4u * left_place.y;
    let left_step = EG_DEPTH * params.left.depth / UNIT;
    var left_next = left_lines(item, first.y + 4u * left_place.x, left_term);
    let right_place = place(thread, RIGHT_WIDTH, RIGHT_ALONG_DEPTH);
    let right_to = 4u * right_place.y * RIGHT_WIDTH + turn(right_place.x, right_place.y);
    let right_term = begin + 4u * right_place.y;
    let right_step = EG_DEPTH * params.right.depth / UNIT;
    var right_next = right_lines(item, first.x + 4u * right_place.x, right_term);
    var next_left: mat4x4<f32>;
    var next_right: mat4x4<f32>;
#else
    let is_left = thread < LEFT_BLOCKS;
    var my_place = place(thread, LEFT_WIDTH, LEFT_ALONG_DEPTH);
    if (!is_left) { my_place = place(thread - LEFT_BLOCKS, RIGHT_WIDTH, RIGHT_ALONG_DEPTH); }
    let my_to = 4u * my_place.y * select(u32(RIGHT_WIDTH), u32(LEFT_WIDTH), is_left) + turn(my_place.x, my_place.y);
    let my_term = begin + 4u * my_place.y;
    let my_step = EG_DEPTH * select(params.right.depth, params.left.depth, is_left) / UNIT;
    var my_next: vec4<u32>;
    if (is_left) {
        my_next = left_lines(item, first.y + 4u * my_place.x, my_term);
    } else {
        my_next = right_lines(item, first.x + 4u * my_place.x, my_term);
    }
    var next: mat4x4<f32>;
#endif
#ifdef EG_SUMS
    let summing = has(SUMS) && select(group.y, group.x, SUMS_BY_ROW) == 0u && SUMS_MINE;
    var total = vec4<f32>();
#endif
    FETCH_PART(0u)
    for (var k = begin; k < end; k += EG_DEPTH) {
        KEEP
#ifdef EG_SUMS
        if (summing) { ADD_UP }
#endif
        workgroupBarrier();
        ADVANCE
        if (k + 2u * EG_DEPTH <= end) {
            FETCH_WHOLE
        } else {
            let behind = k - begin + EG_DEPTH;
            FETCH_PART(behind)
        }
        MULTIPLY_4(0u)
        MULTIPLY_4(4u)
        MULTIPLY_4(8u)
        MULTIPLY_4(12u)
        workgroupBarrier();
    }
#ifdef EG_SUMS
    let summed = SUMMED_PLACE;
    let width = select(u32(RIGHT_WIDTH), u32(LEFT_WIDTH), SUMS_BY_ROW);
    if (summing) { left_tile[summed.y * width + summed.x] = total; }
    workgroupBarrier();
    if (summing && summed.y == 0u) {
        for (var k4 = 1u; k4 < DEPTH_4; k4++) { total += left_tile[k4 * width + summed.x]; }
        store_sums(total, item, split, select(first.x, first.y, SUMS_BY_ROW) + 4u * summed.x);
    }
#endif
    if (EPILOGUE == 0u && !has(HAS_BIAS)) {
        let none = vec4<f32>();
        EACH_SUM(STORE)
        return;
    }
    /* The epilogue is long: a loop whose end the compiler does not know keeps one copy of it. What it reads
     * is all asked for before, so that the loop does not wait for memory again and again. */
    var sums = array<vec4<f32>, 4 * EG_TALL * EG_WIDE>(EACH_SUM(LIST));
    var others = array<vec4<f32>, 4 * EG_TALL * EG_WIDE>(EACH_SUM(OTHER));
    var biases = array<vec4<f32>, EG_WIDE>(EACH_WIDE(BIAS, 0));
    let count = select(4 * EG_TALL * EG_WIDE, 0u, params.rows == 0u);
    for (var i = 0u; i < count; i++) {
        let row = row_of(i / EG_WIDE, first, mine);
        let col = col_of(i % EG_WIDE, first, mine);
        var bias = biases[i % EG_WIDE];
        if (has(BIAS_BY_ROW)) { bias = bias4(row, col); }
        store4(sums[i], bias, others[i], item, split, row, col);
    }
}

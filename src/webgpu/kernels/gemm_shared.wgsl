/* The product for GPUs: tiles of EG_ROWS x EG_COLS, EG_DEPTH terms at a time in workgroup memory.
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
 * together; `turn` spreads the blocks of a row over the banks. */
#define EG_EPILOGUE
#include "common.wgsl"
#include "load.wgsl"

#define LEFT_WIDTH  (EG_ROWS / 4)
#define RIGHT_WIDTH (EG_COLS / 4)
#define ACROSS      (EG_COLS / (4 * EG_WIDE)) /* threads */
#define DOWN        (EG_ROWS / (4 * EG_TALL))
#define THREADS     (ACROSS * DOWN)
#define LEFT_BLOCKS (LEFT_WIDTH * EG_DEPTH / 4)
#define BLOCKS      (LEFT_BLOCKS + RIGHT_WIDTH * EG_DEPTH / 4) /* a thread moves one or two */

var<workgroup> left_tile: array<vec4<f32>, LEFT_WIDTH * EG_DEPTH>;
var<workgroup> right_tile: array<vec4<f32>, RIGHT_WIDTH * EG_DEPTH>;

/* Rows row..row+3 of the terms k..k+3: one vec4 of rows for each term. */
fn left_block(item: u32, row: u32, k: u32, end: u32) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    let at = left_at(item, row, k);
#ifdef EG_VEC4
    if (LEFT_ALONG_DEPTH) {
        for (var i = 0u; i < 4u; i++) {
            if (row + i < params.rows && k < end) { block[i] = left4(at + i * params.left.row, 1u); }
        }
        return transpose(block);
    }
    for (var i = 0u; i < 4u; i++) {
        if (row < params.rows && k + i < end) { block[i] = left4(at + i * params.left.depth, 1u); }
    }
#else
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if (row + j < params.rows && k + i < end) {
                block[i][j] = left_one(at + j * params.left.row + i * params.left.depth);
            }
        }
    }
#endif
    return block;
}

fn right_block(item: u32, col: u32, k: u32, end: u32) -> mat4x4<f32> {
    var block: mat4x4<f32>;
    let at = right_at(item, col, k);
#ifdef EG_VEC4
    if (RIGHT_ALONG_DEPTH) {
        for (var i = 0u; i < 4u; i++) {
            if (col + i < params.cols && k < end) { block[i] = right4(at + i * params.right.col, 1u); }
        }
        return transpose(block);
    }
    for (var i = 0u; i < 4u; i++) {
        if (col < params.cols && k + i < end) { block[i] = right4(at + i * params.right.depth, 1u); }
    }
#else
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if (col + j < params.cols && k + i < end) {
                block[i][j] = right_one(at + j * params.right.col + i * params.right.depth);
            }
        }
    }
#endif
    return block;
}

/* Where block number `b` of a tile `width` blocks wide lies: neighbours in memory are neighbours here. */
fn place(b: u32, width: u32, along_depth: bool) -> vec2<u32> {
    if (along_depth) { return vec2<u32>(b / (EG_DEPTH / 4u), b % (EG_DEPTH / 4u)); }
    return vec2<u32>(b % width, b / width);
}

fn turn(block: u32, k4: u32) -> u32 { return block ^ ((k4 & 3u) << 1u); }

fn fetch(b: u32, item: u32, first: vec2<u32>, k: u32, end: u32) -> mat4x4<f32> {
    if (b < LEFT_BLOCKS) {
        let at = place(b, LEFT_WIDTH, LEFT_ALONG_DEPTH);
        return left_block(item, first.y + 4u * at.x, k + 4u * at.y, end);
    }
    let at = place(b - LEFT_BLOCKS, RIGHT_WIDTH, RIGHT_ALONG_DEPTH);
    return right_block(item, first.x + 4u * at.x, k + 4u * at.y, end);
}

fn keep(b: u32, block: mat4x4<f32>) {
    if (b < LEFT_BLOCKS) {
        let at = place(b, LEFT_WIDTH, LEFT_ALONG_DEPTH);
        let to = 4u * at.y * LEFT_WIDTH + turn(at.x, at.y);
        left_tile[to] = block[0];
        left_tile[to + LEFT_WIDTH] = block[1];
        left_tile[to + 2u * LEFT_WIDTH] = block[2];
        left_tile[to + 3u * LEFT_WIDTH] = block[3];
    } else {
        let at = place(b - LEFT_BLOCKS, RIGHT_WIDTH, RIGHT_ALONG_DEPTH);
        let to = 4u * at.y * RIGHT_WIDTH + turn(at.x, at.y);
        right_tile[to] = block[0];
        right_tile[to + RIGHT_WIDTH] = block[1];
        right_tile[to + 2u * RIGHT_WIDTH] = block[2];
        right_tile[to + 3u * RIGHT_WIDTH] = block[3];
    }
}

/* The register tile, written out: an array indexed in a loop might be put in memory. */
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
#define ROW_0 left_0.x
#define ROW_1 left_0.y
#define ROW_2 left_0.z
#define ROW_3 left_0.w
#define ROW_4 left_1.x
#define ROW_5 left_1.y
#define ROW_6 left_1.z
#define ROW_7 left_1.w

#define MULTIPLY_TERM(i)                                                     \
    {                                                                        \
        let left_0 = left_tile[(k + i) * LEFT_WIDTH + l];                    \
        let left_1 = left_tile[(k + i) * LEFT_WIDTH + l + (EG_TALL - 1) * DOWN];   \
        let right_0 = right_tile[(k + i) * RIGHT_WIDTH + r];                 \
        let right_1 = right_tile[(k + i) * RIGHT_WIDTH + r + (EG_WIDE - 1) * ACROSS]; \
        EACH_SUM(ADD)                                                        \
    }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z / params.splits;
    let split = group.z % params.splits;
    let begin = split * params.chunk;
    let end = min(begin + params.chunk, params.depth);
    let first = vec2<u32>(group.x * EG_COLS, group.y * EG_ROWS);
    let tx = thread % ACROSS;
    let ty = thread / ACROSS;
    EACH_SUM(DECLARE)
    var next_0 = fetch(thread, item, first, begin, end);
#if BLOCKS > THREADS
    var next_1 = fetch(thread + THREADS, item, first, begin, end);
#endif
    for (var k0 = begin; k0 < end; k0 += EG_DEPTH) {
        keep(thread, next_0);
#if BLOCKS > THREADS
        keep(thread + THREADS, next_1);
#endif
        workgroupBarrier();
        next_0 = fetch(thread, item, first, k0 + EG_DEPTH, end);
#if BLOCKS > THREADS
        next_1 = fetch(thread + THREADS, item, first, k0 + EG_DEPTH, end);
#endif
        for (var k = 0u; k < EG_DEPTH; k += 4u) {
            let l = turn(ty, k >> 2u);
            let r = turn(tx, k >> 2u);
            MULTIPLY_TERM(0u)
            MULTIPLY_TERM(1u)
            MULTIPLY_TERM(2u)
            MULTIPLY_TERM(3u)
        }
        workgroupBarrier();
    }
    /* The epilogue is long: a loop whose end the compiler does not know keeps one copy of it. */
    var sums = array<vec4<f32>, 4 * EG_TALL * EG_WIDE>(EACH_SUM(LIST));
    let count = select(4 * EG_TALL * EG_WIDE, 0u, params.rows == 0u);
    for (var i = 0u; i < count; i++) {
        let line = i / EG_WIDE;
        let row = first.y + 4u * (ty + (line >> 2u) * DOWN) + (line & 3u);
        let col = first.x + 4u * (tx + (i % EG_WIDE) * ACROSS);
        store4(sums[i], item, split, row, col);
    }
}

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
 * together; `turn` spreads the blocks of a row over the banks. */
#define EG_EPILOGUE
#include "common.wgsl"
#include "load.wgsl"

#define LEFT_WIDTH  (EG_ROWS / 4)
#define RIGHT_WIDTH (EG_COLS / 4)
#define ACROSS      (EG_COLS / (4 * EG_WIDE)) /* threads */
#define DOWN        (EG_ROWS / (4 * EG_TALL))
#define THREADS     (ACROSS * DOWN)
#define DEPTH_4     (EG_DEPTH / 4)
#define LEFT_BLOCKS (LEFT_WIDTH * DEPTH_4)
#define BLOCKS      (LEFT_BLOCKS + RIGHT_WIDTH * DEPTH_4) /* a thread moves one or two */

var<workgroup> left_tile: array<vec4<f32>, LEFT_WIDTH * EG_DEPTH>;
var<workgroup> right_tile: array<vec4<f32>, RIGHT_WIDTH * EG_DEPTH>;

/* Four elements where `inside`, else zeros. */
fn left_line(inside: bool, at: u32) -> vec4<f32> {
    if (!inside) { return vec4<f32>(); }
    return left4(at, 1u);
}
fn right_line(inside: bool, at: u32) -> vec4<f32> {
    if (!inside) { return vec4<f32>(); }
    return right4(at, 1u);
}

/* Rows row..row+3 of the terms k..k+3: one vec4 of rows for each term. */
fn left_block(item: u32, row: u32, k: u32, end: u32) -> mat4x4<f32> {
    let at = left_at(item, row, k);
    let down = params.left.row;
    let along = params.left.depth;
#ifdef EG_VEC4
    if (!LEFT_ALONG_DEPTH) {
        let inside = row < params.rows;
        return mat4x4<f32>(left_line(inside && k < end, at), left_line(inside && k + 1u < end, at + along),
                           left_line(inside && k + 2u < end, at + 2u * along),
                           left_line(inside && k + 3u < end, at + 3u * along));
    }
    let inside = k < end;
    return transpose(mat4x4<f32>(left_line(inside && row < params.rows, at),
                                 left_line(inside && row + 1u < params.rows, at + down),
                                 left_line(inside && row + 2u < params.rows, at + 2u * down),
                                 left_line(inside && row + 3u < params.rows, at + 3u * down)));
#else
    var block: mat4x4<f32>;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if (row + j < params.rows && k + i < end) { block[i][j] = left_one(at + j * down + i * along); }
        }
    }
    return block;
#endif
}

fn right_block(item: u32, col: u32, k: u32, end: u32) -> mat4x4<f32> {
    let at = right_at(item, col, k);
    let across = params.right.col;
    let along = params.right.depth;
#ifdef EG_VEC4
    if (!RIGHT_ALONG_DEPTH) {
        let inside = col < params.cols;
        return mat4x4<f32>(right_line(inside && k < end, at), right_line(inside && k + 1u < end, at + along),
                           right_line(inside && k + 2u < end, at + 2u * along),
                           right_line(inside && k + 3u < end, at + 3u * along));
    }
    let inside = k < end;
    return transpose(mat4x4<f32>(right_line(inside && col < params.cols, at),
                                 right_line(inside && col + 1u < params.cols, at + across),
                                 right_line(inside && col + 2u < params.cols, at + 2u * across),
                                 right_line(inside && col + 3u < params.cols, at + 3u * across)));
#else
    var block: mat4x4<f32>;
    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) {
            if (col + j < params.cols && k + i < end) { block[i][j] = right_one(at + j * across + i * along); }
        }
    }
    return block;
#endif
}

/* Where block number `b` of a tile `width` blocks wide lies: neighbours in memory are neighbours here. */
fn place(b: u32, width: u32, along_depth: bool) -> vec2<u32> {
    if (along_depth) { return vec2<u32>(b / DEPTH_4, b % DEPTH_4); }
    return vec2<u32>(b % width, b / width);
}

fn turn(block: u32, k4: u32) -> u32 { return block ^ (k4 * (8u / DEPTH_4)); }

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

/* The register tile, written out: an array indexed in a loop might be put in memory. X(i, j) for line i and
 * block j of four columns. */
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
        let right_1 = right_tile[r + (EG_WIDE - 1) * ACROSS];            \
        EACH_SUM(ADD)                                                    \
    }
#define MULTIPLY_4(k) MULTIPLY_TERM(k) MULTIPLY_TERM(k + 1u) MULTIPLY_TERM(k + 2u) MULTIPLY_TERM(k + 3u)

/* The threads that run together, 32 on many devices, stand 4 deep and 8 wide, so that they read few
 * different vec4; every other one beside its neighbour below, which lets some devices serve them at once. */
fn stand(thread: u32) -> vec2<u32> {
    let lane = thread % 32u;
    let team = thread / 32u;
    return vec2<u32>(8u * (team % (ACROSS / 8u)) + ((lane >> 1u) & 7u),
                     4u * (team / (ACROSS / 8u)) + ((lane & 1u) | ((lane >> 4u) << 1u)));
}

/* Where line i and column block j of a thread's tile lie. */
fn row_of(i: u32, first: vec2<u32>, mine: vec2<u32>) -> u32 {
    return first.y + 4u * (mine.y + (i >> 2u) * DOWN) + (i & 3u);
}
fn col_of(j: u32, first: vec2<u32>, mine: vec2<u32>) -> u32 { return first.x + 4u * (mine.x + j * ACROSS); }

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let item = group.z / params.splits;
    let split = group.z % params.splits;
    let begin = split * params.chunk;
    let end = min(begin + params.chunk, params.depth);
    let first = vec2<u32>(group.x * EG_COLS, group.y * EG_ROWS);
    let mine = stand(thread);
    EACH_SUM(DECLARE)
    var next_0 = fetch(thread, item, first, begin, end);
#if BLOCKS > THREADS
    var next_1 = fetch(thread + THREADS, item, first, begin, end);
#endif
    for (var k = begin; k < end; k += EG_DEPTH) {
        keep(thread, next_0);
#if BLOCKS > THREADS
        keep(thread + THREADS, next_1);
#endif
        workgroupBarrier();
        next_0 = fetch(thread, item, first, k + EG_DEPTH, end);
#if BLOCKS > THREADS
        next_1 = fetch(thread + THREADS, item, first, k + EG_DEPTH, end);
#endif
        MULTIPLY_4(0u)
        MULTIPLY_4(4u)
        MULTIPLY_4(8u)
        MULTIPLY_4(12u)
        workgroupBarrier();
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

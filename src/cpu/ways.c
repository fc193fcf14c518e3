/* SPDX-License-Identifier: Apache-2.0 */
/* How products read their operands and write their results: of all ways that there are, the one of least
 * estimated time. Pure. */
#include "compiler.h"

/* ---- How products read their operands ----------------------------------------------------------- */

/* Where the region of a view's packed layout is noted. One copy of a matrix in micro-panels serves it and its
 * transpose as left operands, and itself as a right one. */
static int8_t *layout_of(eg_cpu_compiler *c, const eg_view *view, bool right) {
    eg_cpu_layouts *x = view->space == EG_TEMPORARY ? &c->made[view->id] : &c->packed[view->id];
    if (!eg_cpu_is_amx(c->kernel)) return right && view->transposed ? &x->right_t : &x->left;
    if (right) return view->transposed ? &x->right_t : &x->right;
    return view->transposed ? &x->left_t : &x->left;
}

/* Notes that a product reads an operand there; packed, it is wanted in a region. */
static int8_t read_at(eg_cpu_compiler *c, const eg_view *view, bool right, int where) {
    if (where != EG_CPU_TO_PACK) return (int8_t)where;
    if (!eg_is_present(view)) return EG_CPU_NOWHERE;
    *layout_of(c, view, right) = EG_CPU_WANTED;
    return EG_CPU_TO_PACK;
}

void eg_cpu_share_layout(eg_cpu_compiler *c, const eg_view *view, bool right, int8_t *where) {
    if (!eg_is_present(view) || (*where != EG_CPU_TO_PACK && *where != EG_CPU_IN_PLACE)) return;
    const int8_t region = *layout_of(c, view, right);
    if (region != EG_CPU_NOWHERE) *where = region;
}

/* Whether the values of a map are those that it reads. */
static bool is_unchanged(const eg_op *map) {
    for (int i = 0; i < map->terms; i++) {
        if (map->term[i].kind != EG_TERM_STORE && map->term[i].kind != EG_TERM_COLUMN_SUMS) return false;
    }
    return true;
}

bool eg_cpu_is_mapped(const eg_op_list *list, int id) {
    const eg_op *map = &list->op[0];
    return list->ops > 0 && map->kind == EG_MAP && map->left.id == id &&
           (map->items == 1 || eg_is_batched(&map->left)) && is_unchanged(map);
}

/* ---- How they are stored ------------------------------------------------------------------------ */

/* Results that are smaller stay in L2 until they are read. Vectors of half a line write a line in two parts,
 * and non-temporal stores of parts are slower than a last-level cache, on some processors slower than memory:
 * for such results the calibration says how large they are. */
enum { KEPT_A_THREAD = 1 << 20 }; /* bytes */

static bool is_whole_matrix(const eg_view *x) { return x->space == EG_OPERAND && eg_cpu_is_whole_lines(x); }

/* Whether the epilogue is an activation of the product, whose stores may bypass the caches, `pre` included.
 * An operand that it reads has brought the lines of memory that the result may share with it. */
static bool is_activation(const eg_op *op) {
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        const bool is_stored = term->kind == EG_TERM_STORE && is_whole_matrix(&term->view);
        if (term->kind != EG_TERM_SCALE && term->kind != EG_TERM_BIAS && term->kind != EG_TERM_ACT &&
            !is_stored)
            return false;
    }
    return is_whole_matrix(&op->out);
}

/* A non-temporal store does not read the line first, and evicts nothing from the caches. */
bool eg_cpu_is_non_temporal(const eg_cpu_compiler *c, const eg_op *op, int streams, int threads) {
    const bool turns = eg_cpu_is_amx(c->kernel) && op->out.row_stride == 1 && op->out.col_stride != 1;
    const eg_view out = turns ? eg_transposed(op->out) : op->out; /* as it is stored: epilogue.c */
    const bool by_lines = eg_cpu_is_amx(c->kernel) || out.dtype == c->kernel->compute;
    const bool is_outer = streams == EG_CPU_STREAMS_RESULT,
               copies = is_outer && eg_cpu_outer_copies(c->kernel, op);
    if (op->accumulate || (!copies && !eg_is_bare(op) && !(by_lines && is_activation(op)))) return false;
    const bool is_long = op->depth < c->kernel->blocking.non_temporal_below;
    const bool in_parts = !eg_cpu_is_amx(c->kernel) && (c->kernel->needs & EG_CPU_AVX512) == 0;
    if (is_outer && op->terms == 0 && out.dtype == EG_F32 && (double)op->depth < c->calibration->cached)
        return false;
    const double never = 1e18, parts = c->calibration->streams;
    const double least = in_parts && (!copies || parts >= never) ? parts : KEPT_A_THREAD;
    return by_lines && (is_long || is_outer) && (copies || eg_cpu_is_whole_lines(&out)) &&
           eg_cpu_bytes_stored(op) >= (double)threads * least;
}

/* ---- Ways --------------------------------------------------------------------------------------- */

/* A way of a product to read its operands, and what follows from it. */
typedef struct way {
    int left, right; /* as in step.h */
    eg_cpu_streams streams;
    eg_cpu_blocks blocks;
    double time; /* microseconds, with what has to be packed for it; below 0: none yet */
} way;

/* Microseconds to pack an operand for a product, beside what is packed of it already, or of the product
 * alone. So many blocks read the same part of it, each on any thread. */
static double packing_time(eg_cpu_compiler *c, const eg_op *op, bool right, int threads, int64_t blocks) {
    const eg_view *view = right ? &op->right : &op->left;
    if (view->space != EG_OPERAND) return 0;
    if (!c->is_alone && *layout_of(c, view, right) != EG_CPU_NOWHERE) return 0;
    const bool transposed = view->transposed && (right || eg_cpu_is_amx(c->kernel));
    const eg_cpu_layouts wanted = {.left = EG_CPU_NOWHERE,
                                   .left_t = EG_CPU_NOWHERE,
                                   .right = transposed ? EG_CPU_NOWHERE : EG_CPU_WANTED,
                                   .right_t = transposed ? EG_CPU_WANTED : EG_CPU_NOWHERE};
    const eg_view x = eg_cpu_as_given(view);
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_pack(c->calibration, c->kernel, &x, eg_cpu_items_of(op, view), &wanted, &counts);
    if (!c->is_alone && (eg_cpu_has_layouts(&c->packed[view->id]) || eg_cpu_is_mapped(c->list, view->id)))
        /* it is read anyway */
        counts.of[EG_CPU_COST_STEP] = counts.of[EG_CPU_COST_READ] = 0;
    const double alone = eg_cpu_estimate(c->costs, &counts) +
                         eg_cpu_sharing_time(c->calibration, c->kernel, &x, eg_cpu_items_of(op, view),
                                             eg_least(threads, blocks));
    return eg_cpu_time_on(c->calibration, threads, alone, INT32_MAX);
}

/* Microseconds of a product by a way on one thread. */
static double product_time(const eg_cpu_compiler *c, const eg_op *op, const way *x) {
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_gemm(c->calibration, c->kernel, op, &x->blocks, x->left, x->right, &eg_cpu_no_layouts,
                      &counts);
    return eg_cpu_estimate(c->costs, &counts);
}

static eg_cpu_blocks blocks_of(const eg_cpu_compiler *c, const eg_op *op, int left, int right, int threads) {
    return eg_cpu_packs_both(c->kernel, left)
               ? eg_cpu_packed_blocks(c->kernel, threads, op)
               : eg_cpu_blocks_of(c->kernel, threads, op, right == EG_CPU_FUSED);
}

static void try_way_on(eg_cpu_compiler *c, const eg_op *op, int left, int right, int threads, way *best) {
    way x = {.left = left, .right = right, .blocks = blocks_of(c, op, left, right, threads)};
    x.time = eg_cpu_time_on(c->calibration, x.blocks.threads, product_time(c, op, &x),
                            eg_cpu_count_blocks(op, &x.blocks));
    const int64_t down = eg_ceil_div(op->rows, x.blocks.mc), across = eg_ceil_div(op->cols, x.blocks.nc);
    if (left == EG_CPU_TO_PACK) x.time += packing_time(c, op, false, x.blocks.threads, across);
    if (right == EG_CPU_TO_PACK) x.time += packing_time(c, op, true, x.blocks.threads, down);
    if (best->time < 0 || x.time < best->time) *best = x;
}

/* The number of threads is chosen by the blocks of one thread. Those of several may be smaller, and cost more
 * than the threads save. */
static void try_way(eg_cpu_compiler *c, const eg_op *op, int left, int right, int most_threads, way *best) {
    const way one = {.left = left, .right = right, .blocks = blocks_of(c, op, left, right, 1)};
    const int threads = eg_cpu_choose_threads(c->calibration, most_threads, product_time(c, op, &one),
                                              eg_cpu_units(c->kernel, op));
    try_way_on(c, op, left, right, 1, best);
    if (threads > 1) try_way_on(c, op, left, right, threads, best);
}

/* Fused packing may refuse a number late, but not when other ranks have begun to add up. A tensor-parallel
 * call can be taken up again. */
static bool refuses_too_late(const eg_cpu_compiler *c) {
    return c->list->exchanged > 0 && c->list->exchange.parallel == EG_DATA_PARALLEL &&
           eg_cpu_may_refuse(c->kernel);
}

/* An operand is packed where nothing else is possible. */
static int ways_of_left(const eg_cpu_compiler *c, const eg_op *op, int ways[3]) {
    const eg_cpu_way only = c->calibration->left;
    int count = 0;
    if (eg_cpu_may_place_left(c->kernel, op) && only != EG_CPU_PACKED && only != EG_CPU_FUSES)
        ways[count++] = EG_CPU_IN_PLACE;
    if (!refuses_too_late(c) && eg_cpu_may_fuse_left(c->kernel, op) &&
        (only == EG_CPU_ANY_WAY || only == EG_CPU_FUSES))
        ways[count++] = EG_CPU_FUSED;
    if (eg_cpu_must_fuse_left(c->kernel, op)) return ways[0] = EG_CPU_FUSED, 1;
    if (count == 0 || (only != EG_CPU_PLACED && only != EG_CPU_FUSES)) ways[count++] = EG_CPU_TO_PACK;
    return count;
}

static int ways_of_right(const eg_cpu_compiler *c, const eg_op *op, int ways[3]) {
    const eg_cpu_way only = c->calibration->right;
    int count = 0;
    if (op->right.space == EG_PACKED_B)
        return ways[0] = eg_cpu_widens_pack(c->kernel, &op->right) ? EG_CPU_FUSED : EG_CPU_FROM_PACK, 1;
    if (eg_cpu_may_place_right(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_PLACED))
        ways[count++] = EG_CPU_IN_PLACE;
    if (!refuses_too_late(c) && eg_cpu_may_fuse(c->kernel, op) &&
        (only == EG_CPU_ANY_WAY || only == EG_CPU_FUSES))
        ways[count++] = EG_CPU_FUSED;
    if (count == 0 || only == EG_CPU_ANY_WAY) ways[count++] = EG_CPU_TO_PACK;
    return count;
}

/* The same where each block packs both. */
static int packed_ways_of_right(const eg_cpu_compiler *c, const eg_op *op, int ways[3]) {
    const eg_cpu_way only = c->calibration->right;
    int count = 0;
    if (op->right.space == EG_PACKED_B)
        return ways[0] = eg_cpu_widens_pack(c->kernel, &op->right) ? EG_CPU_FUSED : EG_CPU_FROM_PACK, 1;
    if (op->right.space == EG_OPERAND && only != EG_CPU_PACKED) ways[count++] = EG_CPU_FUSED;
    if (count == 0 || only == EG_CPU_ANY_WAY) ways[count++] = EG_CPU_TO_PACK;
    return count;
}

/* The kernel for few rows or columns, which reads the other operand once, where it is. */
static double few_time(const eg_cpu_compiler *c, const eg_op *op, const way *x) {
    eg_cpu_counts counts = {{0}};
    eg_cpu_count_few(c->calibration, c->kernel, op, x->streams, &x->blocks, &eg_cpu_no_layouts, &counts);
    return eg_cpu_estimate(c->costs, &counts);
}

static eg_cpu_blocks few_blocks(const eg_cpu_compiler *c, const eg_op *op, eg_cpu_streams streams,
                                int threads) {
    return streams == EG_CPU_STREAMS_LEFT ? eg_cpu_few_columns_blocks(c->kernel, threads, op)
                                          : eg_cpu_few_rows_blocks(c->kernel, threads, op);
}

static void try_few(eg_cpu_compiler *c, const eg_op *op, eg_cpu_streams streams, int most_threads,
                    way *best) {
    const bool in_place = eg_cpu_few_rows_read_in_place(c->kernel, &op->left),
               packs = streams == EG_CPU_STREAMS_LEFT && eg_cpu_packs_few_columns(c->kernel, op);
    way x = {.streams = streams,
             .left = op->left.space == EG_PACKED_B                ? EG_CPU_FROM_PACK
                     : in_place || streams == EG_CPU_STREAMS_LEFT ? EG_CPU_IN_PLACE
                                                                  : EG_CPU_TO_PACK,
             .right = op->right.space == EG_PACKED_B             ? EG_CPU_FROM_PACK
                      : op->right.space == EG_TEMPORARY || packs ? EG_CPU_TO_PACK
                                                                 : EG_CPU_IN_PLACE};
    const eg_cpu_blocks small = few_blocks(c, op, streams, most_threads);
    x.blocks = few_blocks(c, op, streams, 1);
    const int chosen = eg_cpu_choose_threads(c->calibration, most_threads, few_time(c, op, &x),
                                             eg_cpu_count_blocks(op, &small));
    for (int threads = 1; threads <= chosen; threads += chosen > 1 ? chosen - 1 : 1) { /* 1 and `chosen` */
        x.blocks = few_blocks(c, op, streams, threads);
        x.time =
            eg_cpu_time_on(c->calibration, threads, few_time(c, op, &x), eg_cpu_count_blocks(op, &x.blocks));
        if (x.left == EG_CPU_TO_PACK) x.time += packing_time(c, op, false, threads, threads);
        if (packs) x.time += packing_time(c, op, true, threads, threads);
        if (best->time < 0 || x.time < best->time) *best = x;
    }
}

/* The ways that read an operand once. A trial does not know whether b is in rows, which more than a few rows
 * ask for. */
static void try_few_ways(eg_cpu_compiler *c, const eg_op *op, int threads, way *best) {
    const bool knows = !c->is_trial || eg_cpu_is_amx(c->kernel) || op->rows <= EG_CPU_FEW_ROWS;
    if (knows && eg_cpu_has_few_rows(c->kernel, op)) try_few(c, op, EG_CPU_STREAMS_RIGHT, threads, best);
    if (eg_cpu_has_few_columns(c->kernel, op)) try_few(c, op, EG_CPU_STREAMS_LEFT, threads, best);
}

/* Both operands in L1. */
static void try_outer(eg_cpu_compiler *c, const eg_op *op, int most_threads, way *best) {
    way x = {.streams = EG_CPU_STREAMS_RESULT,
             .left = op->left.space == EG_OPERAND           ? EG_CPU_IN_PLACE
                     : eg_cpu_must_fuse_left(c->kernel, op) ? EG_CPU_FUSED
                                                            : EG_CPU_TO_PACK,
             .right = op->right.space == EG_PACKED_B  ? EG_CPU_FROM_PACK
                      : op->right.space == EG_OPERAND ? EG_CPU_IN_PLACE
                                                      : EG_CPU_TO_PACK};
    eg_cpu_counts counts = {{0}};
    x.blocks = eg_cpu_outer_blocks(c->kernel, 1, op);
    eg_cpu_count_outer(c->calibration, c->kernel, op, &x.blocks, eg_cpu_is_non_temporal(c, op, x.streams, 1),
                       &eg_cpu_no_layouts, &counts);
    const double alone = eg_cpu_estimate(c->costs, &counts);
    const eg_cpu_blocks small = eg_cpu_outer_blocks(c->kernel, most_threads, op);
    const int64_t units = eg_cpu_count_blocks(op, &small);
    const int threads = eg_cpu_choose_threads(c->calibration, most_threads, alone, units);
    x.blocks = eg_cpu_outer_blocks(c->kernel, threads, op);
    x.time = eg_cpu_time_on(c->calibration, threads, alone, units);
    if (best->time < 0 || x.time < best->time) *best = x;
}

/* Those of the tile loop, and outer products, which all have the same bits. */
static void try_tile_ways(eg_cpu_compiler *c, const eg_op *op, int threads, way *best) {
    const eg_cpu_way only = c->calibration->left;
    int left[3] = {EG_CPU_TO_PACK}, right[3] = {EG_CPU_TO_PACK}, lefts = 1, rights = 1;
    if (eg_cpu_has_little_depth(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_OUTER)) {
        try_outer(c, op, threads, best);
        if (only == EG_CPU_OUTER) return;
    }
    if (eg_cpu_may_pack_both(c->kernel, op) && (only == EG_CPU_ANY_WAY || only == EG_CPU_FUSES)) {
        rights = packed_ways_of_right(c, op, right);
        for (int i = 0; i < rights; i++) try_way(c, op, EG_CPU_FUSED, right[i], threads, best);
        if (only == EG_CPU_FUSES) return;
    }
    if (op->depth > 0) lefts = ways_of_left(c, op, left), rights = ways_of_right(c, op, right);
    for (int i = 0; i < lefts * rights; i++)
        try_way(c, op, left[i / rights], right[i % rights], threads, best);
}

/* Few rows and a pack larger than L2. The tile loop reads it as one stream of memory, and pads the rows to whole
 * tiles, so the kernel for few rows needs no estimate to be the choice. */
static bool is_few_of_pack(const eg_cpu_compiler *c, const eg_op *op) {
    const double bytes = (double)op->depth * (double)op->cols * (double)eg_size_of(op->right.dtype);
    return op->right.space == EG_PACKED_B && !eg_cpu_is_amx(c->kernel) && op->rows <= EG_CPU_PACK_ROWS &&
           bytes > c->calibration->l2;
}

/* Whether the product reads an operand once. Its sums may then be in another order, so the threads and the
 * other operations of the call have no say in it. */
static bool is_streamed(eg_cpu_compiler *c, const eg_op *op) {
    const eg_cpu_way left = c->calibration->left, right = c->calibration->right;
    const bool is_asked_for = left == EG_CPU_STREAMS || right == EG_CPU_STREAMS;
    way few = {.time = -1}, tiles = few;
    if (op->left.space == EG_PACKED_B) return true; /* a column that is a row: compile.c */
    if (!is_asked_for && (left != EG_CPU_ANY_WAY || right != EG_CPU_ANY_WAY)) return false;
    c->is_alone = true;
    try_few_ways(c, op, 1, &few);
    if (few.time >= 0) try_tile_ways(c, op, 1, &tiles);
    c->is_alone = false;
    return few.time >= 0 && (is_asked_for || is_few_of_pack(c, op) || few.time < tiles.time);
}

/* What an operation makes is written in one layout rather than two, where another product reads that one. */
static bool turns_made(const eg_cpu_compiler *c, const eg_op *op, const way *x) {
    return x->streams == EG_CPU_STREAMS_NONE && x->right == EG_CPU_TO_PACK &&
           eg_cpu_may_turn_made(c->kernel, op, &x->blocks) && c->made[op->right.id].left == EG_CPU_WANTED;
}

static void choose_way(eg_cpu_compiler *c, int index, int threads) {
    const eg_op *op = &c->list->op[index];
    way best = {.time = -1};
    if (is_streamed(c, op)) {
        try_few_ways(c, op, threads, &best);
    } else {
        try_tile_ways(c, op, threads, &best);
    }
    c->blocks[index] = best.blocks;
    if (op->depth == 0) return;
    c->detail[index].streams = (uint8_t)best.streams;
    c->detail[index].packs_both = eg_cpu_packs_both(c->kernel, best.left);
    if (c->detail[index].packs_both)
        best.left = op->left.space == EG_OPERAND ? EG_CPU_IN_PLACE : EG_CPU_TO_PACK;
    c->detail[index].left = read_at(c, &op->left, false, best.left);
    if (turns_made(c, op, &best)) best.right = EG_CPU_FUSED;
    if (best.left == EG_CPU_FUSED && op->left.space == EG_TEMPORARY)
        c->made[op->left.id].left = EG_CPU_WANTED;
    c->detail[index].right = read_at(c, &op->right, true, best.right);
}

/* Other steps take no more threads than the products: what others pack would be in the wrong caches. */
void eg_cpu_choose_ways(eg_cpu_compiler *c, int threads) {
    int most = 0;
    for (int i = 0; i < c->list->ops; i++) {
        c->detail[i] = (eg_cpu_step){.kernel = c->kernel,
                                     .left = EG_CPU_NOWHERE,
                                     .right = EG_CPU_NOWHERE,
                                     .sums = EG_CPU_NOWHERE,
                                     .packs = eg_cpu_no_layouts};
        if (c->list->op[i].kind != EG_GEMM) continue;
        choose_way(c, i, threads);
        if (c->blocks[i].threads > most) most = c->blocks[i].threads;
    }
    c->threads = most > 0 ? most : threads;
}

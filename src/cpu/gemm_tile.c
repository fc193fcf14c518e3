/* SPDX-License-Identifier: Apache-2.0 */
/* Where the sums of one tile go: what the two tile loops, gemm.c and gemm_packed.c, do alike. */
#include "gemm.h"

/* The micro-kernel stores to the caller's memory: whole vectors, with no epilogue but a bias and relu. Of
 * their tiles those that lack rows have an epilogue of their own. Dots of bf16 store parts of both. */
static bool has_direct_tiles(const eg_product *x, const eg_tile *tile) {
    return x->stores_result && (x->rounds || (tile->cols & (x->kernel->micro.lanes - 1)) == 0);
}

bool eg_cpu_stores_tile(const eg_product *x, const eg_tile *tile) {
    return has_direct_tiles(x, tile) && (x->rounds || tile->rows == x->mr);
}

void eg_cpu_place_result(const eg_product *x, const eg_tile *tile, eg_micro_tile *sums) {
    const eg_operand *bias = x->epilogue->bias;
    sums->out = eg_cpu_at(x->out, tile->item, tile->row, tile->col);
    sums->out_stride = x->out->row_stride;
    sums->non_temporal = x->epilogue->non_temporal;
    sums->bias = bias != NULL ? eg_cpu_at(bias, 0, 0, tile->col) : NULL;
    sums->relu = x->relu;
    sums->rounds = x->rounds;
    if (!x->rounds || x->epilogue->pre == NULL) return;
    sums->pre = eg_cpu_at(x->epilogue->pre, tile->item, tile->row, tile->col);
    sums->pre_stride = x->epilogue->pre->row_stride;
}

/* Whether the tile is the last one of an epilogue, which has all of `finished`. */
static bool ends_epilogue(const eg_product *x, const eg_gemm_block *b, const eg_tile *tile,
                          eg_tile *finished) {
    const int64_t end = tile->row + tile->rows, above = tile->row & (x->epilogue_rows - 1);
    const bool alone = has_direct_tiles(x, tile);
    if ((end & (x->epilogue_rows - 1)) != 0 && end < b->row + b->rows && !alone) return false;
    const int64_t before = alone ? 0 : eg_least(above, tile->row - b->row);
    *finished = *tile;
    finished->row -= before, finished->rows += before;
    finished->values = (char *)tile->values - (size_t)(before * x->nr) * x->size;
    return true;
}

void eg_cpu_finish_tile(const eg_product *x, const eg_gemm_block *b, const eg_tile *tile) {
    eg_tile finished;
    if (!ends_epilogue(x, b, tile, &finished)) return;
    eg_cpu_epilogue_finish(b->epilogue);
    eg_cpu_epilogue_begin(b->epilogue, x->epilogue, &finished);
    if (!eg_cpu_has_tiles(x->kernel)) eg_cpu_epilogue_finish(b->epilogue);
}

/* The operand's rows of the tile. */
static eg_prefetch_rows rows_of(const eg_operand *x, const eg_tile *tile) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    return (eg_prefetch_rows){eg_cpu_at(x, tile->item, tile->row, tile->col), eg_times(x->row_stride, size),
                              tile->cols * size};
}

static eg_prefetch_rows rows_of_turned(const eg_operand *x, const eg_tile *tile) {
    eg_tile turned = *tile;
    turned.row = tile->col, turned.col = tile->row, turned.cols = tile->rows;
    return rows_of(x, &turned);
}

/* The rows that the epilogue of the first tile touches. They are for the last pass: prefetched earlier, they
 * would be evicted again, or evict what the passes read. */
void eg_cpu_plan_epilogue(eg_prefetch_plan *plan, const eg_product *x, const eg_gemm_pass *pass,
                          const eg_tile *tile) {
    plan->rows_a_group = eg_ceil_div(x->mr, pass->groups);
    if (x->prefetch_out != NULL) {
        plan->out = x->turns ? rows_of_turned(x->prefetch_out, tile) : rows_of(x->prefetch_out, tile);
    } else if (x->epilogue->micro_panels != NULL) {
        const int64_t size = (int64_t)x->size;
        plan->out =
            (eg_prefetch_rows){eg_cpu_epilogue_panel(x->epilogue, tile), x->nr * size, tile->cols * size};
    }
    if (x->prefetch_in != NULL) plan->in = rows_of(x->prefetch_in, tile);
}

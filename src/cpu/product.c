/* SPDX-License-Identifier: Apache-2.0 */
/* Where the operands of a product lie, and what its blocks need to know: found once a call. */
#include "product.h"

typedef enum role { PLAIN, TRANSPOSED, RIGHT } role;

/* x is read as [index, k], or as a right operand as [k, index]. */
static void place_side(eg_side *s, const eg_operand *x, bool right, int64_t nr) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    const int64_t k = right ? x->row_stride : x->col_stride, index = right ? x->col_stride : x->row_stride;
    s->data = eg_cpu_at(x, 0, 0, 0);
    s->item = eg_times(x->batch_stride, size);
    s->outer = (eg_outer){x->outer.inner, eg_times(x->outer.stride, size)};
    s->k = eg_times(k, size);
    s->index = eg_times(index, size);
    s->in_place = true;
    s->micro = (eg_micro_operand){.index_stride = index, .k_stride = k, .group_stride = eg_times(k, nr)};
}

/* A packed operand of `depth` k and `count` indices; micro-panels have numbers of `size` bytes. */
static void place_packed_side(eg_side *s, const eg_cpu_kernel *kernel, int64_t size, role role, int64_t depth,
                              int64_t count) {
    const int64_t nr = kernel->micro.nr;
    if (eg_cpu_is_amx(kernel)) {
        const eg_amx_grid grid = eg_amx_grid_of(kernel->pack.bf16_terms, count, depth);
        s->k = (int64_t)grid.block_bytes / EG_AMX_BLOCK;
        s->panel = grid.row_pitch * (int64_t)grid.block_bytes;
        s->index = s->panel / EG_AMX_BLOCK;
        s->item = grid.rows * s->panel;
    } else if (role == PLAIN) { /* [count, depth]: rows of nr k, a micro-panel for every nr of them */
        const eg_panels panels = eg_cpu_panels(kernel, count, depth);
        s->k = panels.stride * size; /* exact for multiples of nr, at which passes begin */
        s->index = nr * size;
        s->item = panels.panels * panels.stride * nr * size;
        s->micro = (eg_micro_operand){.index_stride = nr, .k_stride = 1, .group_stride = panels.stride * nr};
    } else { /* [depth, count] */
        const eg_panels panels = eg_cpu_panels(kernel, depth, count);
        s->k = nr * size;
        s->index = size;
        s->panel_width = nr;
        s->panel = panels.stride * nr * size;
        s->item = panels.panels * s->panel;
        s->micro = (eg_micro_operand){.index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
    }
}

/* Fills in `s`. A struct that is returned would be stored by words and copied by longer loads, which have to
 * wait for the stores. */
static void find_side(eg_side *s, const eg_product *x, const eg_view *view, int where, role role,
                      int64_t count) {
    const bool is_pack = view->space == EG_PACKED_B;
    *s = (eg_side){.data = "", .panel_width = INT64_MAX};
    if (where == EG_CPU_NOWHERE) return;
    if (where == EG_CPU_FUSED && role != RIGHT) return; /* of each block: pack_left */
    if (where == EG_CPU_FUSED && view->space == EG_TEMPORARY) return;
    if (where == EG_CPU_FUSED && !is_pack) {
        const eg_operand operand = eg_cpu_bind(x->run->call, view);
        place_side(s, &operand, role == RIGHT, x->nr); /* from where a block packs it */
        s->in_place = x->packs_both;
        s->micro = (eg_micro_operand){.index_stride = 1, .k_stride = x->nr, .group_stride = x->nr * x->nr};
    } else if (where == EG_CPU_IN_PLACE) {
        const eg_operand operand = eg_cpu_bind(x->run->call, view);
        place_side(s, &operand, role == RIGHT, x->nr);
    } else {
        const eg_dtype dtype = is_pack ? view->dtype : x->kernel->compute;
        place_packed_side(s, x->kernel, (int64_t)eg_size_of(dtype), role, x->depth, count);
        if (!eg_is_batched(view)) s->item = 0;
        s->data = is_pack ? eg_cpu_packed_b(x->run, x->kernel, view) : eg_cpu_region(x->run, where);
    }
}

/* What an operation has made as a left operand, [depth, count], from where a block turns it. */
static void find_made(eg_side *s, const eg_product *x, int where, int64_t count) {
    *s = (eg_side){.data = eg_cpu_region(x->run, where), .panel_width = INT64_MAX};
    place_packed_side(s, x->kernel, 0, PLAIN, count, x->depth);
}

/* The micro-kernel prefetches what the epilogue stores to. Where the result is packed to AMX tile blocks, it
 * prefetches the gradient that the epilogue reads instead: both at once would delay the tile loads. */
static const eg_operand *choose_prefetch_out(eg_product *x) {
    const eg_term *grad = eg_term_of(x->op, EG_TERM_GRAD_AT_VALUE);
    if (!eg_cpu_is_amx(x->kernel) || grad == NULL || grad->view.col_stride != 1) return x->out;
    x->grad = eg_cpu_bind(x->run->call, &grad->view);
    return &x->grad;
}

/* And what the epilogue reads, or else `pre`. In the blocks of the step before, what is read was left in L2 by
 * that step, so `pre` comes first. A result that is added to is prefetched as prefetch_out. */
static const eg_operand *choose_prefetch_in(const eg_product *x, const eg_cpu_step *detail) {
    if (eg_cpu_is_amx(x->kernel) || x->op->accumulate) return NULL;
    const eg_operand *reads = eg_cpu_epilogue_reads(x->epilogue),
                     *stores = eg_cpu_epilogue_stores(x->epilogue);
    return reads == NULL || (detail->same_blocks && stores != NULL) ? stores : reads;
}

/* Whether the micro-kernel can store to the caller's memory. */
static bool may_store(const eg_product *x) {
    const eg_operand *bias = x->epilogue->bias;
    const eg_dtype dtype = x->rounds ? x->kernel->dtype : x->kernel->compute;
    if (eg_cpu_is_amx(x->kernel) && !x->rounds) return false;
    return x->out != NULL && (x->rounds ? eg_cpu_outer_stores_sums(x->op) : eg_cpu_stores_sums(x->op)) &&
           x->out->dtype == dtype && (bias == NULL || (bias->dtype == dtype && bias->col_stride == 1));
}

/* Filled in field by field: clearing the whole struct first takes some percent of a small call. */
void eg_cpu_make_product(const eg_cpu_run *run, const eg_step *step, const eg_epilogue *epilogue,
                         eg_product *x) {
    const eg_op *op = &run->list->op[step->op];
    const eg_cpu_step *detail = eg_cpu_detail(step);
    const eg_cpu_kernel *kernel = detail->kernel;
    const bool is_amx = eg_cpu_is_amx(kernel);
    x->run = run;
    x->op = op;
    x->kernel = kernel;
    x->epilogue = epilogue;
    x->size = eg_size_of(kernel->compute);
    x->mr = kernel->micro.mr, x->nr = kernel->micro.nr, x->epilogue_rows = eg_cpu_epilogue_rows(kernel);
    x->mc = step->tile_rows, x->nc = step->tile_cols, x->kc = step->k_block;
    x->first = step->rows.first, x->rows = step->rows.count > 0 ? x->first + step->rows.count : op->rows;
    x->cols = op->cols, x->depth = op->depth;
    x->items = op->items, x->summed = op->summed;
    x->row_blocks = eg_ceil_div(x->rows - x->first, x->mc), x->col_blocks = eg_ceil_div(op->cols, x->nc);
    x->widens = eg_cpu_widens_pack(kernel, &op->right);
    x->turns_made_left = detail->left == EG_CPU_FUSED && op->left.space == EG_TEMPORARY;
    x->turns_made = detail->right == EG_CPU_FUSED && op->right.space == EG_TEMPORARY;
    x->fused = detail->right == EG_CPU_FUSED && !x->widens && !x->turns_made;
    x->single_pass = detail->single_pass;
    x->packs_both = detail->packs_both;
    find_side(&x->left, x, &op->left, detail->left, op->left.transposed ? TRANSPOSED : PLAIN, op->rows);
    find_side(&x->right, x, &op->right, detail->right, RIGHT, x->cols);
    if (x->turns_made) find_made(&x->right, x, detail->made_blocks, x->cols);
    if (x->turns_made_left) find_made(&x->left, x, detail->made_blocks, op->rows);
    if (x->fused || x->right.in_place) x->b = eg_cpu_bind(run->call, &op->right);
    x->packs_left = detail->left == EG_CPU_FUSED;
    if (x->left.in_place || (x->packs_left && !x->turns_made_left)) x->a = eg_cpu_bind(run->call, &op->left);
    x->b_dtype = op->right.dtype;
    x->result = eg_cpu_bind(run->call, &op->out);
    x->out = x->result.data != NULL && x->result.col_stride == 1 ? &x->result : NULL;
    x->turns = is_amx && epilogue->plain_store && x->out == NULL && x->result.row_stride == 1;
    if (x->turns) x->result = eg_cpu_transpose(x->result);
    x->prefetch_out = epilogue->non_temporal ? NULL : x->turns ? &x->result : choose_prefetch_out(x);
    x->prefetch_in = choose_prefetch_in(x, detail);
    x->rounds = eg_cpu_has_dots(kernel);
    x->stores_result = may_store(x);
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    x->relu = act != NULL && act->activation == EG_ACT_RELU;
}

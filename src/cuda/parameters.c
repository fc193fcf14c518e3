/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels are given: a program's views with the addresses of a call. */
#include "parameters.h"

#include "groups.h"
#include "partition.h"

/* ---- Pitches --------------------------------------------------------------------------------------- */

int64_t eg_cuda_pitch_of(int64_t cols, eg_dtype dtype) {
    const int64_t size = (int64_t)eg_dtype_size(dtype), vector = 16 / size, line = EG_CUDA_LINE / size;
    const int64_t in_lines = eg_ceil_div(cols, line) * line;
    return in_lines - cols <= cols / 8 ? in_lines : eg_ceil_div(cols, vector) * vector;
}

/* ---- Addresses ------------------------------------------------------------------------------------ */

uint64_t eg_cuda_region_of(const eg_cuda_binding *binding, int region) {
    if (binding->call == NULL) return EG_MOST_ALIGN;
    const eg_address *workspace = &binding->call->workspace;
    return (uint64_t)(uintptr_t)workspace->data + workspace->offset + binding->program->region[region].offset;
}

static uint64_t operand_at(const eg_cuda_binding *binding, const eg_view *view) {
    if (binding->call == NULL) return binding->aligned ? EG_MOST_ALIGN : (uint64_t)view->align;
    const eg_address *operand = &binding->call->operand[view->id];
    return (uint64_t)(uintptr_t)operand->data + operand->offset +
           (uint64_t)view->offset * eg_size_of(view->dtype);
}

/* Where the operation that makes it stores the same numbers. */
const eg_view *eg_cuda_stored_at(const eg_op_list *list, int temporary) {
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        const eg_term *store = eg_term_of(op, EG_TERM_STORE);
        if (op->out.space == EG_TEMPORARY && op->out.id == temporary && store != NULL) return &store->view;
    }
    const eg_view *same = &list->temporary[temporary].same;
    return eg_is_present(same) ? same : NULL;
}

/* From one item of what the workspace has to the next. The rows of groups are those of one matrix. */
static int64_t item_stride_of(int64_t items, int64_t rows, int64_t ld) { return items > 1 ? rows * ld : 0; }

/* A temporary in rows that begin on 16 bytes, or where its numbers are stored anyway. */
static eg_cuda_matrix temporary_of(const eg_cuda_binding *binding, int id) {
    const eg_op_list *list = &binding->program->list;
    const eg_temporary *x = &list->temporary[id];
    const eg_view *stored = eg_cuda_stored_at(list, id);
    if (stored != NULL) return eg_cuda_matrix_of(binding, stored);
    const int64_t ld = eg_cuda_pitch_of(x->cols, list->dtype);
    return (eg_cuda_matrix){.data = eg_cuda_region_of(binding, id),
                            .row_stride = ld,
                            .col_stride = 1,
                            .item_stride = item_stride_of(x->items, x->rows, ld),
                            .dtype = (int32_t)list->dtype};
}

static eg_cuda_matrix pack_of(const eg_cuda_binding *binding, const eg_view *view) {
    const eg_op_list *list = &binding->program->list;
    const eg_call *call = binding->call;
    const eg_packed *packed =
        call != NULL ? eg_pack_in(call, view->id) : eg_pack_of(list, view); /* which may be gone by then */
    const eg_cuda_pack *pack = (const eg_cuda_pack *)packed->detail;
    uint64_t data = (uint64_t)view->align;
    if (call != NULL)
        data = (uint64_t)(uintptr_t)packed->data +
               (uint64_t)(call->pack_item * pack->item_stride) * eg_size_of(list->dtype);
    return (eg_cuda_matrix){.data = data,
                            .row_stride = pack->ld,
                            .col_stride = 1,
                            .item_stride = pack->item_stride,
                            .dtype = (int32_t)list->dtype};
}

/* ---- Padded copies -------------------------------------------------------------------------------- */

/* The view that an operand has in a product, or a gradient in its epilogue. */
const eg_view *eg_cuda_read_by_product(const eg_op_list *list, int operand) {
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (op->kind != EG_GEMM) continue;
        if (op->left.space == EG_OPERAND && op->left.id == operand) return &op->left;
        if (op->right.space == EG_OPERAND && op->right.id == operand) return &op->right;
        for (int j = 0; j < op->terms; j++) {
            const eg_term_kind kind = op->term[j].kind;
            const bool reads =
                kind == EG_TERM_ADD || kind == EG_TERM_GRAD_AT_VALUE || kind == EG_TERM_GRAD_AT_SAVED;
            if (reads && op->term[j].view.id == operand) return &op->term[j].view;
        }
    }
    return NULL;
}

static eg_view untransposed(const eg_view *view) { return view->transposed ? eg_transposed(*view) : *view; }

static bool is_by_rows(const eg_view *x) { return x->col_stride == 1 || x->row_stride != 1; }

void eg_cuda_padded_shape(const eg_op_list *list, int operand, int64_t *lines, int64_t *pitch,
                          int64_t *items) {
    const eg_view x = untransposed(eg_cuda_read_by_product(list, operand));
    *lines = is_by_rows(&x) ? x.rows : x.cols;
    *pitch = eg_cuda_pitch_of(is_by_rows(&x) ? x.cols : x.rows, x.dtype);
    *items = x.batch_stride != 0 ? list->batch : 1;
}

static int pad_of(const eg_program *program, const eg_view *view) {
    const eg_cuda_program *detail = eg_cuda_program_of(program);
    for (int i = 0; i < detail->pads; i++) {
        if (view->space == EG_OPERAND && detail->pad[i] == view->id) return i;
    }
    return -1;
}

static eg_cuda_matrix turned(eg_cuda_matrix x, bool turn) {
    const int64_t stride = x.row_stride;
    if (!turn) return x;
    x.row_stride = x.col_stride;
    x.col_stride = stride;
    return x;
}

static eg_cuda_matrix operand_of(const eg_cuda_binding *binding, const eg_view *view) {
    return (eg_cuda_matrix){.data = operand_at(binding, view),
                            .row_stride = view->row_stride,
                            .col_stride = view->col_stride,
                            .item_stride = view->batch_stride,
                            .dtype = (int32_t)view->dtype};
}

static eg_cuda_matrix padded_of(const eg_cuda_binding *binding, const eg_view *view) {
    const eg_view x = untransposed(view);
    int64_t lines, pitch, items;
    eg_cuda_padded_shape(&binding->program->list, view->id, &lines, &pitch, &items);
    const eg_cuda_matrix by_rows = {
        .data = eg_cuda_region_of(binding, EG_CUDA_PADDED + pad_of(binding->program, view)),
        .row_stride = pitch,
        .col_stride = 1,
        .item_stride = x.batch_stride != 0 ? lines * pitch : 0,
        .dtype = (int32_t)view->dtype};
    return turned(by_rows, view->transposed == is_by_rows(&x));
}

eg_cuda_matrix eg_cuda_matrix_of(const eg_cuda_binding *binding, const eg_view *view) {
    switch (view->space) {
    case EG_ABSENT:
        break;
    case EG_OPERAND:
        if (pad_of(binding->program, view) >= 0) return padded_of(binding, view);
        return operand_of(binding, view);
    case EG_PACKED_B:
        return turned(pack_of(binding, view), view->transposed);
    case EG_TEMPORARY:
        return turned(temporary_of(binding, view->id), view->transposed);
    }
    return (eg_cuda_matrix){0};
}

static uint64_t ends_of(const eg_cuda_binding *binding) {
    if (binding->call == NULL) return EG_MOST_ALIGN;
    const eg_address *ends = &binding->call->operand[EG_OP_OFFSETS];
    return (uint64_t)(uintptr_t)ends->data + ends->offset;
}

static eg_cuda_matrix matrix_of_term(const eg_cuda_binding *binding, const eg_term *term) {
    return term != NULL ? eg_cuda_matrix_of(binding, &term->view) : (eg_cuda_matrix){0};
}

/* 0: not wanted */
static uint64_t sums_of(const eg_cuda_binding *binding, const eg_op *op) {
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    return sums != NULL ? eg_cuda_region_of(binding, sums->view.id) : 0;
}

eg_cuda_counts eg_cuda_counters_of(const eg_cuda_binding *binding) {
    const eg_region *region = &binding->program->region[EG_CUDA_COUNTERS];
    return (eg_cuda_counts){eg_cuda_region_of(binding, EG_CUDA_COUNTERS),
                            (int64_t)(region->bytes / sizeof(uint32_t))};
}

/* ---- Products ------------------------------------------------------------------------------------- */

static eg_cuda_epilogue epilogue_of(const eg_op *op) {
    if (op->kind == EG_COPY) return EG_CUDA_FORWARD;
    if (eg_term_of(op, EG_TERM_TIMES) != NULL) return EG_CUDA_TIMES;
    if (eg_term_of(op, EG_TERM_GRAD_AT_SAVED) != NULL) return EG_CUDA_CHAIN;
    if (eg_is_forward_map(op)) return EG_CUDA_FORWARD;
    if (op->kind == EG_MAP || eg_term_of(op, EG_TERM_GRAD_AT_VALUE) != NULL) return EG_CUDA_ACT_GRAD;
    return eg_is_bare(op) ? EG_CUDA_STORE : EG_CUDA_FORWARD;
}

static void take_activation(const eg_term *term, eg_cuda_gemm *x) {
    if (term == NULL) return;
    x->activation = (int32_t)term->activation;
    x->source = (int32_t)(term->of_y ? EG_SOURCE_Y : EG_SOURCE_PRE);
    x->propagate = term->propagate;
}

/* What an operation leaves: its result, or else what a term stores of it. */
static eg_cuda_matrix result_of(const eg_cuda_binding *binding, const eg_op *op) {
    if (eg_is_present(&op->out)) return eg_cuda_matrix_of(binding, &op->out);
    return matrix_of_term(binding, eg_term_of(op, EG_TERM_STORE));
}

static void take_terms(const eg_cuda_binding *binding, const eg_op *op, eg_cuda_gemm *x) {
    const eg_term *at_value = eg_term_of(op, EG_TERM_GRAD_AT_VALUE),
                  *at_saved = eg_term_of(op, EG_TERM_GRAD_AT_SAVED);
    x->bias = matrix_of_term(binding, eg_term_of(op, EG_TERM_BIAS));
    x->sums = sums_of(binding, op);
    x->out = result_of(binding, op);
    switch ((eg_cuda_epilogue)x->epilogue) {
    case EG_CUDA_STORE:
        break;
    case EG_CUDA_FORWARD:
        take_activation(eg_term_of(op, EG_TERM_ACT), x);
        x->second = matrix_of_term(binding, eg_term_of(op, EG_TERM_STORE));
        x->in = matrix_of_term(binding, eg_term_of(op, EG_TERM_ADD));
        break;
    case EG_CUDA_TIMES: /* a map stores nothing before its result */
        take_activation(eg_term_of(op, EG_TERM_ACT), x);
        if (op->kind == EG_GEMM) x->second = matrix_of_term(binding, eg_term_of(op, EG_TERM_STORE));
        x->in = matrix_of_term(binding, eg_term_of(op, EG_TERM_TIMES));
        break;
    case EG_CUDA_ACT_GRAD:
        take_activation(at_value, x);
        x->in = matrix_of_term(binding, at_value);
        break;
    case EG_CUDA_CHAIN:
        take_activation(at_saved, x);
        x->in = matrix_of_term(binding, at_saved);
        break;
    }
}

/* Summands that follow each other in both operands are one longer sum. */
static void join_summands(eg_cuda_gemm *x) {
    if (x->summed <= 1 || x->left.item_stride != x->depth * x->left.col_stride ||
        x->right.item_stride != x->depth * x->right.row_stride)
        return;
    x->depth *= x->summed;
    x->summed = 1;
}

/* An operation of a group becomes that of all groups. */
static void take_groups(const eg_cuda_binding *binding, const eg_op *op, eg_cuda_gemm *x) {
    if (!op->ragged) return;
    x->items = binding->program->list.groups;
    x->ragged = op->axis == EG_AXIS_DEPTH ? EG_CUDA_RAGGED_DEPTH : EG_CUDA_RAGGED_ROWS;
    x->ends = ends_of(binding);
}

/* A column-major result of nothing but a product is the row-major one of the transposes: d_b of [N, K]
 * weights. Kernels that store rows make it, too. The rows of groups stay rows. */
static bool is_turned(const eg_cuda_gemm *x) {
    return x->ragged != EG_CUDA_RAGGED_ROWS && x->epilogue == EG_CUDA_STORE && x->out.row_stride == 1 &&
           x->out.col_stride != 1;
}

static eg_cuda_gemm turned_gemm(eg_cuda_gemm x) {
    const eg_cuda_matrix left = turned(x.right, true);
    const int64_t rows = x.cols;
    x.right = turned(x.left, true), x.left = left;
    x.cols = x.rows, x.rows = rows;
    x.out = turned(x.out, true);
    return x;
}

/* A map is left * 1, the gradient at left, or a product of left and another matrix; a copy is nothing with
 * what is added to it, or, where it adds, left and what the result holds. */
eg_cuda_gemm eg_cuda_gemm_of(const eg_cuda_binding *binding, int index) {
    const eg_op *op = &binding->program->list.op[index];
    eg_cuda_gemm x = {.rows = op->rows,
                      .cols = op->cols,
                      .items = op->items,
                      .epilogue = (int32_t)epilogue_of(op),
                      .accumulate = op->accumulate,
                      .scale = eg_scale_of(op)};
    take_terms(binding, op, &x);
    take_groups(binding, op, &x);
    if (op->kind == EG_COPY) {
        x.in = eg_cuda_matrix_of(binding, &op->left);
        if (op->accumulate) x.left = x.in, x.in = x.out;
        x.accumulate = 0;
        x.summed = 1;
        return x;
    }
    x.left = eg_cuda_matrix_of(binding, &op->left);
    if (op->kind == EG_MAP) {
        if (x.epilogue != EG_CUDA_ACT_GRAD || eg_term_of(op, EG_TERM_GRAD_AT_VALUE) != NULL) return x;
        x.in = x.left;
        x.left = (eg_cuda_matrix){0};
        return x;
    }
    x.depth = op->depth;
    x.summed = op->summed;
    x.right = eg_cuda_matrix_of(binding, &op->right);
    join_summands(&x);
    return is_turned(&x) ? turned_gemm(x) : x;
}

/* ---- Parts of an operation ------------------------------------------------------------------------ */

/* y and d_a may be in their residual's memory, and grad_pre in that of grad; pre is in no input's. */
bool eg_cuda_has_unfinished(const eg_op_list *list, const eg_op *op) {
    const bool has_pre = eg_term_of(op, EG_TERM_STORE) != NULL, adds = eg_term_of(op, EG_TERM_ADD) != NULL;
    if (list->dtype != list->compute || eg_term_of(op, EG_TERM_GRAD_AT_VALUE) != NULL) return true;
    return !has_pre && (adds || !eg_is_present(&op->out));
}

int64_t eg_cuda_unfinished_ld(int64_t cols) { return eg_ceil_div(cols, 8) * 8; }

static eg_cuda_matrix unfinished_of(const eg_cuda_binding *binding, int op, const eg_cuda_gemm *x) {
    const eg_op_list *list = &binding->program->list;
    const int64_t ld = eg_cuda_unfinished_ld(x->cols);
    if (!eg_cuda_has_unfinished(list, &list->op[op])) return x->second.data != 0 ? x->second : x->out;
    return (eg_cuda_matrix){.data = eg_cuda_region_of(binding, EG_CUDA_UNFINISHED),
                            .row_stride = ld,
                            .col_stride = 1,
                            .item_stride = item_stride_of(list->op[op].items, x->rows, ld),
                            .dtype = (int32_t)list->compute};
}

/* Whether the product is stored as pre: kernels of f32 add a bias while they store, and what finishes it then
 * writes y alone. The library adds none of f64. */
static bool is_stored_as_pre(const eg_op_list *list, int op, const eg_cuda_gemm *x) {
    return x->epilogue == EG_CUDA_FORWARD && x->second.data != 0 && list->compute == EG_F32 &&
           !eg_cuda_has_unfinished(list, &list->op[op]);
}

/* out = a copy of an operand, whose contiguous dimension is that of rows */
static eg_cuda_gemm pad_of_operand(const eg_cuda_binding *binding, int pad) {
    const eg_op_list *list = &binding->program->list;
    const eg_view x =
        untransposed(eg_cuda_read_by_product(list, eg_cuda_program_of(binding->program)->pad[pad]));
    const bool turns = !is_by_rows(&x);
    return (eg_cuda_gemm){.rows = turns ? x.cols : x.rows,
                          .cols = turns ? x.rows : x.cols,
                          .items = x.batch_stride != 0 ? list->batch : 1,
                          .summed = 1,
                          .scale = 1,
                          .epilogue = EG_CUDA_FORWARD,
                          .in = turned(operand_of(binding, &x), turns),
                          .out = turned(padded_of(binding, &x), turns)};
}

/* Chunks of so many terms, of 16-bit operands, would begin in the middle of a word: kernels read those number
 * by number. */
static bool splits_words(const eg_cuda_gemm *x, int64_t depth) {
    return eg_size_of((eg_dtype)x->left.dtype) == 2 &&
           (depth * x->left.col_stride % 2 != 0 || depth * x->right.row_stride % 2 != 0);
}

/* As many as fill a large device where tiles of 64 x 64 are few, and of one length, so that every kernel can
 * take them for items of a batch; 0: the depth is not cut. */
int64_t eg_cuda_depth_chunks(const eg_cuda_gemm *x) {
    const int64_t least_depth = 64, most_tiles = 32, blocks = 256;
    const int64_t tiles = eg_ceil_div(x->rows, 64) * eg_ceil_div(x->cols, 64);
    const bool one = x->ragged == EG_CUDA_DENSE && x->items == 1 && x->summed == 1,
               dense = x->out.col_stride == 1 && (x->rows == 1 || x->out.row_stride == x->cols);
    if (x->epilogue != EG_CUDA_STORE || !one || !dense || tiles == 0 || tiles > most_tiles) return 0;
    int64_t chunks = eg_least(blocks / tiles, x->depth / least_depth);
    while (chunks > 1 && (x->depth % chunks != 0 || splits_words(x, x->depth / chunks))) chunks--;
    return chunks > 1 ? chunks : 0;
}

static eg_cuda_gemm in_chunks(const eg_cuda_binding *binding, eg_cuda_gemm x) {
    const int64_t chunks = eg_cuda_depth_chunks(&x);
    x.items = chunks > 0 ? chunks : 1;
    x.depth /= x.items;
    x.left.item_stride = x.depth * x.left.col_stride;
    x.right.item_stride = x.depth * x.right.row_stride;
    x.accumulate = 0;
    x.out = (eg_cuda_matrix){.data = eg_cuda_region_of(binding, EG_CUDA_UNFINISHED),
                             .row_stride = x.cols,
                             .col_stride = 1,
                             .item_stride = x.rows * x.cols,
                             .dtype = (int32_t)binding->program->list.compute};
    return x;
}

eg_cuda_gemm eg_cuda_gemm_of_part(const eg_cuda_binding *binding, int op, eg_cuda_part part) {
    const eg_cuda_matrix absent = {0};
    if (part == EG_CUDA_PAD) return pad_of_operand(binding, op);
    eg_cuda_gemm x = eg_cuda_gemm_of(binding, op);
    if (part == EG_CUDA_WHOLE) return x;
    if (part == EG_CUDA_CHUNKS) return in_chunks(binding, x);
    const eg_cuda_matrix product = unfinished_of(binding, op, &x);
    const bool is_pre = is_stored_as_pre(&binding->program->list, op, &x);
    if (part == EG_CUDA_FINISH) {
        x.left = product, x.right = absent;
        if (is_pre) x.second = x.bias = absent;
        x.depth = 0, x.summed = 1;
        x.scale = 1;
        return x;
    }
    x.out = product, x.second = x.in = absent;
    x.sums = 0;
    if (is_pre) {
        x.activation = EG_ACT_NONE;
        return x;
    }
    x.bias = absent;
    x.epilogue = EG_CUDA_STORE;
    return is_turned(&x) ? turned_gemm(x) : x;
}

int64_t eg_cuda_count_tiles(const eg_cuda_kernel *row, eg_cuda_gemm *gemm) {
    const int64_t across = eg_ceil_div(gemm->cols, row->tile_cols);
    if (gemm->ragged == EG_CUDA_RAGGED_ROWS) {
        gemm->chunks = eg_cuda_row_tiles(gemm->rows, gemm->items, eg_cuda_sum_rows(row));
        gemm->tiles = eg_cuda_row_tiles(gemm->rows, gemm->items, row->tile_rows) * across;
        return gemm->tiles;
    }
    gemm->chunks = eg_cuda_sums_of(row, gemm->rows);
    gemm->tiles = gemm->items * eg_ceil_div(gemm->rows, row->tile_rows) * across;
    return gemm->tiles;
}

/* ---- Parts ---------------------------------------------------------------------------------------- */

eg_cuda_matrix eg_cuda_from(eg_cuda_matrix x, int64_t item, int64_t row) {
    if (x.data == 0) return x;
    x.data += (uint64_t)(item * x.item_stride + row * x.row_stride) * eg_size_of((eg_dtype)x.dtype);
    return x;
}

eg_cuda_gemm eg_cuda_part_of(const eg_cuda_gemm *whole, int64_t item, int64_t items, int64_t row,
                             int64_t rows) {
    eg_cuda_gemm x = *whole;
    x.items = items, x.rows = rows;
    x.left = eg_cuda_from(x.left, item, row);
    x.right = eg_cuda_from(x.right, item, 0);
    x.out = eg_cuda_from(x.out, item, row);
    x.second = eg_cuda_from(x.second, item, row);
    x.in = eg_cuda_from(x.in, item, row);
    return x;
}

/* ---- Maps ----------------------------------------------------------------------------------------- */

/* Column sums that are one row need not wait for another kernel. */
void eg_cuda_take_total(const eg_cuda_binding *binding, const eg_cuda_step *detail, eg_cuda_matrix *total,
                        int32_t *adds) {
    if (detail->reduce == 0) return;
    const eg_op *reduce = &binding->program->list.op[detail->reduce];
    *total = eg_cuda_matrix_of(binding, &reduce->out);
    *adds = reduce->accumulate;
}

eg_cuda_act_grad eg_cuda_act_grad_of(const eg_cuda_binding *binding, int op, const eg_cuda_step *detail) {
    const bool finishes = detail->part == EG_CUDA_FINISH;
    const eg_cuda_gemm x = eg_cuda_gemm_of_part(binding, op, (eg_cuda_part)detail->part);
    eg_cuda_act_grad act_grad = {.grad = finishes ? x.left : x.in, /* the product */
                                 .saved = finishes ? x.in : x.left,
                                 .out = x.out,
                                 .sums = x.sums,
                                 .rows = x.rows,
                                 .cols = x.cols,
                                 .items = x.items,
                                 .chunks = detail->map_chunks,
                                 .activation = x.activation,
                                 .source = x.source,
                                 .propagate = x.propagate};
    if (x.ragged != EG_CUDA_DENSE) act_grad.groups = x.items, act_grad.items = 1, act_grad.ends = x.ends;
    eg_cuda_take_total(binding, detail, &act_grad.total, &act_grad.add_to_total);
    if (detail->clears) act_grad.counts = eg_cuda_counters_of(binding);
    return act_grad;
}

/* ---- Column sums ---------------------------------------------------------------------------------- */

eg_cuda_column_sum eg_cuda_column_sum_of(const eg_cuda_binding *binding, int index,
                                         const eg_cuda_step *detail) {
    const eg_op_list *list = &binding->program->list;
    const eg_op *op = &list->op[index];
    const uint64_t skipped = (uint64_t)(detail->portions.total * op->cols) * eg_size_of(list->compute);
    eg_cuda_column_sum sum = {.sums = eg_cuda_region_of(binding, op->left.id) + skipped,
                              .out = eg_cuda_matrix_of(binding, &op->out),
                              .rows = detail->sum_rows,
                              .cols = op->cols,
                              .accumulate = op->accumulate};
    if (!op->ragged) return sum;
    sum.ends = ends_of(binding);
    sum.groups = list->groups;
    sum.all_rows = op->depth;
    sum.chunk_rows = detail->chunk_rows;
    return sum;
}

eg_cuda_column_sum eg_cuda_chunk_sum_of(const eg_cuda_binding *binding, int op) {
    const eg_cuda_gemm x = eg_cuda_gemm_of(binding, op);
    return (eg_cuda_column_sum){.sums = eg_cuda_region_of(binding, EG_CUDA_UNFINISHED),
                                .out = x.out, /* whose rows follow each other */
                                .rows = eg_cuda_depth_chunks(&x),
                                .cols = x.rows * x.cols,
                                .accumulate = x.accumulate};
}

eg_cuda_column_sum eg_cuda_portion_sum_of(uint64_t sums, int64_t cols, int64_t total, eg_dtype compute) {
    const uint64_t to = sums + (uint64_t)(total * cols) * eg_size_of(compute);
    return (eg_cuda_column_sum){
        .sums = sums, .out = {.data = to, .col_stride = 1, .dtype = (int32_t)compute}, .cols = cols};
}

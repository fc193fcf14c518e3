/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel row makes an operation: of those that take it, the one of the least estimated time. Pure: it
 * looks at eg_caps and the operations only. A choice may depend on the alignment of operands. */
#include "choose.h"

#include <string.h>

#include "cluster.h"
#include "core/error.h"
#include "layout.h"
#include "parameters.h"
#include "partition.h"
#include "takes.h"

/* ---- What a call and a device allow ---------------------------------------------------------------- */

/* A copy is a product of nothing. What finishes a product is a map, and so is a copy that adds. */
static eg_op_kind kind_of(const eg_op *op, eg_cuda_part part) {
    if (part == EG_CUDA_FINISH || (op->kind == EG_COPY && op->accumulate)) return EG_MAP;
    return op->kind == EG_COPY ? EG_GEMM : op->kind;
}

/* What a device and a layer allow, whatever the operands are like. */
static bool allows_any(const eg_cuda_compiler *c, const eg_cuda_kernel *row, eg_op_kind kind, bool pairs) {
    const eg_op_list *list = c->list;
    if (row->kind != kind || row->compute != list->compute) return false;
    if (row->family == EG_CUDA_PAIR && !pairs) return false;
    if (row->dtype != EG_DTYPE_DEFAULT && row->dtype != list->dtype) return false;
    if ((row->needs & c->caps->features) != row->needs) return false;
    if (row->shared > ((const eg_cuda_caps *)c->caps->detail)->shared) return false;
    if (row->family == EG_CUDA_LIBRARY && c->caps->refused) return false;
    return list->math != EG_MATH_STRICT || (row->takes & EG_CUDA_MATRIX_UNIT) == 0;
}

static bool allows(const eg_cuda_compiler *c, const eg_cuda_kernel *row, eg_op_kind kind) {
    return allows_any(c, row, kind, false);
}

/* The row that a call asks for by name. */
static const eg_cuda_kernel *row_of_name(const eg_caps *caps) {
    const eg_cuda_kernel *row = NULL;
    for (int i = 0; caps->only_kernel != NULL && (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (strcmp(caps->only_kernel, row->name) == 0) break;
    }
    return row;
}

/* A name restricts the operations that it is a row for. Where the library refuses, its name cannot; that of a
 * row for two products does not restrict those that are one. */
static bool is_named(const eg_caps *caps, const eg_cuda_kernel *row, const eg_op *op) {
    if (caps->only_kernel == NULL || op->kind == EG_COPY || strcmp(caps->only_kernel, row->name) == 0)
        return true;
    const eg_cuda_kernel *other = row_of_name(caps);
    return other != NULL && (other->kind != row->kind || other->family == EG_CUDA_PAIR ||
                             (other->family == EG_CUDA_LIBRARY && caps->refused));
}

/* ---- Which is best -------------------------------------------------------------------------------- */

/* Wherever it is possible, if the row is asked for by name. Not where the workspace has no room, nor in
 * portions, which would all count in the same place: products without sums are judged as if they had some. */
eg_cuda_tail eg_cuda_choose_tail(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                                 double *saved) {
    const bool by_name = c->caps->only_kernel != NULL && strcmp(c->caps->only_kernel, row->name) == 0;
    const eg_temporary sums = {.items = c->list->batch, .rows = c->list->m, .cols = x->cols};
    *saved = 0;
    if ((row->takes & EG_CUDA_STREAM_K) == 0 || c->program->region[EG_CUDA_COUNTERS].bytes == 0 ||
        c->program->region[EG_CUDA_SCRATCH].bytes < eg_cuda_tail_bytes(c->multiprocessors) ||
        eg_cuda_portions_of(c->list, &sums, x->items, x->rows, eg_cuda_sums_of(row, x->rows),
                            eg_cuda_sum_rows(row))
                .total > 0)
        return (eg_cuda_tail){0};
    return eg_cuda_tail_of(c->multiprocessors, row, x, by_name, saved);
}

eg_cuda_machine eg_cuda_machine_of(const eg_cuda_compiler *c) {
    const eg_cuda_caps *caps = c->caps->detail;
    const bool clusters = (c->caps->features & EG_CUDA_SM90A) != 0;
    return (eg_cuda_machine){caps->calibration, caps->multiprocessors, clusters ? EG_MOST_SPLITS : 1};
}

/* Counters are cleared by a map's kernel, or else before the first product. */
double eg_cuda_time_of(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x,
                       int index) {
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    double saved;
    const bool has_tail = eg_cuda_is_persistent(row) && eg_cuda_choose_tail(c, row, x, &saved).tiles > 0;
    return eg_cuda_estimate(&machine, row, x, has_tail ? saved : -1) +
           (has_tail && index == 0 ? machine.calibration->clear : 0);
}

/* A row for split tails is none for a product that has no tail to split, nor is a tile of 64 rows and more
 * one for few rows, whose kernels read the weights as they lie, nor one of 128 for up to 64 rows. Short rows of
 * 16 bits are left to the library where nothing is applied to many of them: it takes 0.5 to 0.9 of the time. Turned
 * tiles are for more rows than the unit has and few tiles down, and for what has its activation or the
 * gradient of the layer below with it: in a backward call other products took longer by them than alone. By
 * name any row is used. */
static bool has_use(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_gemm *x) {
    double saved;
    enum { FEW = 16, UPRIGHT = 64 };
    if (c->caps->only_kernel != NULL) return true;
    if ((row->takes & EG_CUDA_TALL) != 0 && x->epilogue == EG_CUDA_STORE && x->rows >= UPRIGHT) return false;
    if ((row->takes & EG_CUDA_ONE_TYPE) != 0 && x->rows <= FEW) return false;
    if ((row->takes & EG_CUDA_ONE_TYPE) != 0 && x->rows <= UPRIGHT && row->tile_rows > UPRIGHT) return false;
    if ((row->takes & EG_CUDA_TURNED) != 0 &&
        (x->rows <= UPRIGHT || x->rows > (int64_t)EG_TURNED_FEW_TILES * row->tile_rows ||
         x->epilogue == EG_CUDA_STORE || x->epilogue == EG_CUDA_ACT_GRAD))
        return false;
    return (row->takes & EG_CUDA_STREAM_K) == 0 || eg_cuda_choose_tail(c, row, x, &saved).tiles > 0;
}

const eg_cuda_kernel *eg_cuda_pad_row(eg_dtype dtype) {
    const eg_cuda_kernel *row;
    const char *name = eg_size_of(dtype) == 2 ? "pad_16" : "pad_32";
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL && strcmp(row->name, name) != 0;) i++;
    return row;
}

bool eg_cuda_has_product_after(const eg_op_list *list, int op) {
    for (int i = op + 1; i < list->ops; i++) {
        if (list->op[i].kind == EG_GEMM) return true;
    }
    return false;
}

/* Where a kernel leaves several rows of column sums, another one adds them up. Those of a product cost less
 * beside the products that follow. Those of a map do not: it is short, and they begin with what they are
 * beside. */
static double time_of_sums(const eg_cuda_compiler *c, const eg_cuda_kernel *row, int index) {
    const eg_op *op = &c->list->op[index];
    const bool is_hidden = op->kind == EG_GEMM && eg_cuda_has_product_after(c->list, index);
    if (op->items * eg_cuda_sums_left(c->multiprocessors, row, op) == 1) return 0;
    return eg_cuda_machine_of(c).calibration->add_up * (is_hidden ? 0.3 : 1);
}

/* A way to make an operation: by a row, or its product by a row and the rest by another. */
typedef struct way {
    const eg_cuda_kernel *row, *product; /* product NULL: the row makes all of it */
    double time;                         /* estimated microseconds */
    int place;                           /* before those of a greater one, whatever their times */
} way;

enum { MOST_WAYS = 256 };
typedef struct ways {
    int count;
    way at[MOST_WAYS];
} ways;

/* All rows for a part of an operation. What they leave is made by `rest`, NULL: nothing, in `more`
 * microseconds. */
static void add_ways(const eg_cuda_compiler *c, int index, eg_cuda_part part, const eg_cuda_kernel *rest,
                     double more, int place, ways *to) {
    const eg_op *op = &c->list->op[index];
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = c->aligned};
    const eg_op_kind kind = kind_of(op, part);
    const eg_cuda_kernel *row;
    eg_cuda_gemm x = {0};
    if (kind != EG_REDUCE) x = eg_cuda_gemm_of_part(&nowhere, index, part);
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL && to->count < MOST_WAYS; i++) {
        if (!allows(c, row, kind) || !is_named(c->caps, row, op) || !eg_cuda_takes(row, part, &x)) continue;
        if (!has_use(c, row, &x)) continue;
        const bool leaves_sums = kind != EG_REDUCE && x.sums != 0;
        const double time = (kind == EG_REDUCE ? 0 : eg_cuda_time_of(c, row, &x, index)) +
                            (leaves_sums ? time_of_sums(c, row, index) : 0);
        to->at[to->count++] = (way){.row = rest != NULL ? rest : row,
                                    .product = rest != NULL ? row : NULL,
                                    .time = time + more,
                                    .place = place};
    }
}

static bool is_before(const way *a, const way *b) {
    if (a->place != b->place) return a->place < b->place;
    return a->time < b->time || (a->time == b->time && a < b);
}

/* The one before which there are `rank` others; NULL where there are no more. */
static const way *way_of_rank(const ways *all, int rank) {
    const way *found = NULL;
    for (int turn = 0; turn <= rank; turn++) {
        const way *next = NULL;
        for (int i = 0; i < all->count; i++) {
            const way *x = &all->at[i];
            if ((found == NULL || is_before(found, x)) && (next == NULL || is_before(x, next))) next = x;
        }
        if (next == NULL) return NULL;
        found = next;
    }
    return found;
}

static size_t bytes_of_product(size_t bytes, int64_t items, int64_t rows, int64_t cols) {
    if (__builtin_mul_overflow(bytes, items, &bytes) || __builtin_mul_overflow(bytes, rows, &bytes) ||
        __builtin_mul_overflow(bytes, eg_cuda_unfinished_ld(cols), &bytes))
        return SIZE_MAX;
    return bytes;
}

/* A bare product may be made as the one of the transposes, whose rows are padded likewise. */
size_t eg_cuda_unfinished_bytes(const eg_op_list *list, const eg_op *op) {
    const size_t size = eg_size_of(list->compute);
    if (!eg_cuda_has_unfinished(list, op)) return 0;
    const size_t bytes = bytes_of_product(size, op->items, op->rows, op->cols),
                 turned = bytes_of_product(size, op->items, op->cols, op->rows);
    return eg_is_bare(op) && turned > bytes ? turned : bytes;
}

/* Whether its epilogue is one that few kernels have: a factor, or a matrix of another type than the layer's.
 */
static bool has_rare_epilogue(const eg_op_list *list, const eg_op *op) {
    bool rare = eg_is_present(&op->out) && op->out.space == EG_OPERAND && op->out.dtype != list->dtype;
    for (int i = 0; i < op->terms; i++) {
        const eg_term *term = &op->term[i];
        rare = rare || term->kind == EG_TERM_TIMES ||
               (term->kind == EG_TERM_ADD && term->view.dtype != list->dtype);
    }
    return rare;
}

/* Whether a bare product may be made in the compute type, and then rounded: the library splits the depth of
 * one whose result has that type wherever that is profitable. */
static bool may_be_rounded(const eg_op_list *list, const eg_op *op) {
    const bool narrow =
        op->out.space == EG_OPERAND ? eg_size_of(op->out.dtype) == 2 : eg_size_of(list->dtype) == 2;
    return narrow && !op->accumulate && eg_is_present(&op->out);
}

/* Whether a product may be made alone, and finished by a map. One that waits in a region of its own is to
 * fit into L2, or it would cost more than it saves, unless its epilogue keeps the fast kernels away. */
static bool may_be_split(const eg_cuda_compiler *c, const eg_op *op) {
    const size_t most = has_rare_epilogue(c->list, op) ? SIZE_MAX / 4 : 32 << 20,
                 bytes = eg_cuda_unfinished_bytes(c->list, op);
    const bool for_each_group = c->list->groups > 0 && op->axis == EG_AXIS_DEPTH;
    if (op->kind != EG_GEMM || op->depth == 0 || for_each_group ||
        (eg_is_bare(op) && !may_be_rounded(c->list, op)))
        return false;
    return bytes <= (c->aligned ? most : c->program->region[EG_CUDA_UNFINISHED].bytes);
}

/* A row that is asked for by name is used wherever it is possible: one for maps or sums in parts, one for
 * products as a whole. */
static int place_of_parts(const eg_cuda_compiler *c, eg_op_kind rest) {
    const eg_cuda_kernel *named = row_of_name(c->caps);
    if (named == NULL || named->family == EG_CUDA_PAIR) return 0;
    return named->kind == rest ? -1 : 1;
}

/* Sums are made at once: there are few chunks. */
static bool has_room_for_sums(const eg_cuda_compiler *c, const eg_cuda_kernel *row, int index) {
    const eg_op *op = &c->list->op[index];
    const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    const int64_t chunks = eg_cuda_map_chunks(c->multiprocessors, row, op);
    return sums == NULL ||
           eg_cuda_portions_of(c->list, &c->list->temporary[sums->view.id], op->items, chunks, chunks, 1)
                   .total == 0;
}

/* Where an operation is one of three maps that a kernel makes at once, it is always faster. */
static bool choose_gated(eg_cuda_compiler *c, int index) {
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = c->aligned};
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    const eg_cuda_kernel *row;
    eg_cuda_gated_ops ops;
    int first = index - 2;
    while (first <= index && !eg_cuda_find_gated(c->list, first, &ops)) first++;
    if (first > index) return false;
    const eg_cuda_gated x = eg_cuda_gated_of(&nowhere, &ops);
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (row->family != EG_CUDA_GATED || !allows(c, row, EG_MAP) ||
            !is_named(c->caps, row, &c->list->op[index]) || !eg_cuda_takes_gated(row, &x))
            continue;
        if (!has_room_for_sums(c, row, ops.up) || !has_room_for_sums(c, row, ops.gate)) continue;
        c->row[index] = row;
        if (first == index) c->cost[index] = eg_cuda_estimate_gated(&machine, row, &x);
        return true;
    }
    return false;
}

int64_t eg_cuda_chunk_bytes(const eg_cuda_compiler *c, int index) {
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = c->aligned};
    const eg_cuda_gemm x = eg_cuda_gemm_of_part(&nowhere, index, EG_CUDA_WHOLE);
    return eg_cuda_depth_chunks(&x) * x.rows * x.cols * (int64_t)eg_size_of(c->list->compute);
}

static const eg_cuda_kernel *sums_row(const eg_cuda_compiler *c) {
    const eg_cuda_kernel *row = NULL;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL && !allows(c, row, EG_REDUCE);) i++;
    return row;
}

/* A product alone, by any row, and the best map that finishes it; then the best product with other maps. */
static void add_finished(const eg_cuda_compiler *c, int index, ways *to) {
    ways maps, products;
    maps.count = products.count = 0;
    if (!may_be_split(c, &c->list->op[index])) return;
    add_ways(c, index, EG_CUDA_FINISH, NULL, 0, 0, &maps);
    const way *map = way_of_rank(&maps, 0);
    if (map == NULL) return;
    add_ways(c, index, EG_CUDA_PRODUCT, map->row, map->time, place_of_parts(c, EG_MAP), &products);
    const way *best = way_of_rank(&products, 0);
    for (int i = 0; i < products.count && to->count < MOST_WAYS; i++) to->at[to->count++] = products.at[i];
    for (int i = 0; i < maps.count && best != NULL && to->count < MOST_WAYS; i++) {
        way other = *best;
        if (maps.at[i].row == map->row) continue;
        other.row = maps.at[i].row, other.time += maps.at[i].time - map->time;
        to->at[to->count++] = other;
    }
}

/* A product of each chunk of the depth, and their sum: where the depth is long and the result small. */
static void add_chunks(const eg_cuda_compiler *c, int index, ways *to) {
    const eg_op *op = &c->list->op[index];
    const int64_t bytes = op->kind == EG_GEMM && c->list->groups == 0 ? eg_cuda_chunk_bytes(c, index) : 0;
    const eg_cuda_machine machine = eg_cuda_machine_of(c);
    const eg_cuda_kernel *sums = sums_row(c);
    if (bytes == 0 || sums == NULL) return;
    if (!c->aligned && (size_t)bytes > c->program->region[EG_CUDA_UNFINISHED].bytes) return;
    const int64_t each = op->rows * op->cols;
    const int64_t chunks = bytes / (each * (int64_t)eg_size_of(c->list->compute));
    add_ways(c, index, EG_CUDA_CHUNKS, sums, eg_cuda_estimate_sums(&machine, sums, chunks, each),
             place_of_parts(c, EG_REDUCE), to);
}

static eg_status no_row(const eg_cuda_compiler *c) {
    return eg_fail(EG_ERR_UNSUPPORTED, "kernel \"%s\" cannot do a step of this call in %s",
                   c->caps->only_kernel != NULL ? c->caps->only_kernel : "any",
                   eg_dtype_name(c->list->dtype));
}

bool eg_cuda_is_worth_a_trial(double time, double least) {
    enum { LONGER = 2 /* microseconds */ };
    return time <= 1.5 * least + LONGER;
}

/* The way that the choice asks for, or where there is no such way, the first. */
static const way *choose_way(eg_cuda_compiler *c, int index, const ways *all) {
    const int rank = c->choice != NULL ? c->choice->way[index] : 0;
    const way *first = way_of_rank(all, 0), *other = rank > 0 ? way_of_rank(all, rank) : first;
    const bool is_there =
        other != NULL && other->place == first->place && eg_cuda_is_worth_a_trial(other->time, first->time);
    c->program->lacks = c->program->lacks || !is_there;
    return is_there ? other : first;
}

/* The row of an operation, or those of its parts, those before it being decided. */
static eg_status choose_one(eg_cuda_compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    ways all;
    all.count = 0;
    c->row[index] = c->product[index] = NULL;
    c->cost[index] = 0;
    if (op->kind == EG_COLLECTIVE || choose_gated(c, index)) {
        c->program->lacks = c->program->lacks || (c->choice != NULL && c->choice->way[index] > 0);
        return EG_OK;
    }
    add_ways(c, index, EG_CUDA_WHOLE, NULL, 0, 0, &all);
    add_finished(c, index, &all);
    add_chunks(c, index, &all);
    if (all.count == 0) return no_row(c);
    const way *chosen = choose_way(c, index, &all);
    c->row[index] = chosen->row, c->product[index] = chosen->product, c->cost[index] = chosen->time;
    return EG_OK;
}

/* ---- Two products by one kernel --------------------------------------------------------------------- */

double eg_cuda_time_of_pair(const eg_cuda_compiler *c, const eg_cuda_kernel *row, const eg_cuda_pair *x,
                            int index) {
    const eg_cuda_gemm like = eg_cuda_like_pair(x);
    return eg_cuda_time_of(c, row, &like, index);
}

/* Sums of all rows are made at once. */
static bool has_room_for_pair(const eg_cuda_compiler *c, const eg_cuda_kernel *row,
                              const eg_cuda_pair_ops *ops) {
    for (int i = 0; i < c->list->ops; i++) {
        const eg_op *op = &c->list->op[i];
        const eg_term *sums = eg_term_of(op, EG_TERM_COLUMN_SUMS);
        if ((ops->ops >> i & 1U) == 0 || sums == NULL) continue;
        if (eg_cuda_portions_of(c->list, &c->list->temporary[sums->view.id], op->items, op->rows,
                                eg_cuda_sums_of(row, op->rows), eg_cuda_sum_rows(row))
                .total > 0)
            return false;
    }
    return true;
}

/* Of the rows that make operation `first` and some after it at once, the one of least time, if that is less
 * than theirs, or if it is asked for by name. */
static void choose_pair(eg_cuda_compiler *c, int first, const eg_cuda_pair_ops *ops) {
    const eg_cuda_binding nowhere = {.program = c->program, .aligned = c->aligned};
    const eg_cuda_pair x = eg_cuda_pair_of(&nowhere, ops);
    const eg_cuda_gemm like = eg_cuda_like_pair(&x);
    const eg_cuda_kernel *row, *chosen = NULL, *named = row_of_name(c->caps);
    double unpaired = 0, least = 0;
    for (int i = 0; i < c->list->ops; i++) unpaired += (ops->ops >> i & 1U) != 0 ? c->cost[i] : 0;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++) {
        if (!allows_any(c, row, EG_GEMM, true) || (named != NULL && named->kind != EG_REDUCE && row != named))
            continue;
        if (!eg_cuda_takes_pair(row, ops, &x) || !has_use(c, row, &like) || !has_room_for_pair(c, row, ops))
            continue;
        const double time = eg_cuda_time_of_pair(c, row, &x, first);
        if (chosen == NULL || time < least) chosen = row, least = time;
    }
    if (chosen == NULL || (least >= unpaired && chosen != named)) return;
    for (int i = 0; i < c->list->ops; i++) {
        if ((ops->ops >> i & 1U) != 0) c->row[i] = chosen, c->product[i] = NULL, c->cost[i] = 0;
    }
    c->pair[first] = chosen, c->paired |= ops->ops, c->cost[first] = least;
}

eg_status eg_cuda_choose_all(eg_cuda_compiler *c) {
    const eg_cuda_kernel *named = row_of_name(c->caps);
    eg_cuda_pair_ops ops;
    c->microseconds = 0, c->paired = 0;
    c->program->lacks = false;
    memset(c->pair, 0, sizeof c->pair);
    for (int i = 0; i < c->list->ops; i++) EG_TRY(choose_one(c, i));
    for (int i = 0; i < c->list->ops && !(c->choice != NULL && c->choice->unpaired); i++) {
        if ((c->paired >> i & 1U) == 0 && eg_cuda_find_pair(c->list, i, &ops)) choose_pair(c, i, &ops);
    }
    for (int i = 0; i < c->list->ops; i++) c->microseconds += c->cost[i];
    if (named == NULL || named->family != EG_CUDA_PAIR || c->paired != 0 || eg_first_gemm(c->list) == NULL)
        return EG_OK;
    return no_row(c);
}

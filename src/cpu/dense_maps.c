/* SPDX-License-Identifier: Apache-2.0 */
/* What a map makes for narrow products alone, or a product that computes pre again, goes to a buffer, row by
 * row: products of few columns or rows read it once, as it lies. From micro-panels they would read tiles, of
 * whose columns few are real. The layer's shape and type decide, and not what else the call computes: the
 * order of sums depends on it. Pure. */
#include "compiler.h"
#include "core/lower_ops.h"

/* The side of a product's result that is not the operand's. */
static int64_t other_side(const eg_op *op, bool right) { return right ? op->rows : op->cols; }

static bool is_temporary(const eg_view *view, int id) {
    return view->space == EG_TEMPORARY && view->id == id;
}

static bool is_in_terms(const eg_op *op, int id) {
    for (int i = 0; i < op->terms; i++) {
        if (is_temporary(&op->term[i].view, id)) return true;
    }
    return false;
}

/* Whether the operation leaves the temporary alone, or is a product of it that is as narrow. */
static bool suits(const eg_op *op, int id, int64_t narrow) {
    if (is_in_terms(op, id)) return false;
    for (int right = 0; right < 2; right++) {
        if (!is_temporary(right ? &op->right : &op->left, id)) continue;
        if (op->kind != EG_GEMM || other_side(op, right) > narrow) return false;
    }
    return true;
}

/* A row has room for whole micro-panels, of which the last is written to its end. */
static eg_view add_buffer(eg_op_list *list, const eg_cpu_kernel *kernel, const eg_temporary *x) {
    const int64_t nr = kernel->micro.nr;
    eg_view view = eg_buffer_view(list, x->name, x->items, x->rows, eg_ceil_div(x->cols, nr) * nr);
    view.cols = x->cols;
    return view;
}

static void replace(eg_view *view, int id, const eg_view *by) {
    if (is_temporary(view, id)) *view = view->transposed ? eg_transposed(*by) : *by;
}

static bool is_read(const eg_op_list *list, int from, int id) {
    for (int i = from; i < list->ops; i++) {
        if (is_temporary(&list->op[i].left, id) || is_temporary(&list->op[i].right, id)) return true;
    }
    return false;
}

/* A product that computes pre again packs its tiles on their way, which costs less than to store them in rows:
 * its readers have to be narrower still. With bf16's own row, which sums pairs, they are never. */
static int64_t most_of_readers(const eg_op_list *list, const eg_op *op) {
    enum { OF_PRODUCT = 4 };
    if (op->kind == EG_MAP) return EG_CPU_FEW_ROWS;
    return op->kind == EG_GEMM && list->dtype != EG_BF16 ? OF_PRODUCT : 0;
}

static bool may_be_dense(const eg_op_list *list, int map) {
    const eg_op *op = &list->op[map];
    const int64_t narrow = most_of_readers(list, op);
    if (narrow == 0 || op->out.space != EG_TEMPORARY) return false;
    if (list->buffers == EG_MAX_BUFFERS || list->ops == EG_MAX_OPS) return false;
    for (int i = map + 1; i < list->ops; i++) {
        if (!suits(&list->op[i], op->out.id, narrow)) return false;
    }
    return is_read(list, map + 1, op->out.id);
}

static eg_term *stored_term(eg_op *op) {
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind == EG_TERM_STORE) return &op->term[i];
    }
    return NULL;
}

static void remove_term(eg_op *op, eg_term *term) {
    for (; term + 1 < op->term + op->terms; term++) *term = term[1];
    op->terms--;
}

/* A map writes one matrix. Where the caller wants it as products read it, it is the caller's, */
static bool is_as_read(const eg_op_list *list, const eg_view *wanted) {
    return wanted->dtype == list->compute && wanted->col_stride == 1;
}

/* else the caller gets a copy. */
static void copy_for_caller(eg_op_list *list, const eg_op *map, const eg_view *from, const eg_view *to) {
    list->op[list->ops++] = (eg_op){.kind = EG_COPY,
                                    .items = map->items,
                                    .rows = map->rows,
                                    .cols = map->cols,
                                    .summed = 1,
                                    .left = *from,
                                    .out = *to};
}

static bool make_dense(const eg_cpu_kernel *kernel, eg_program *program, int map) {
    eg_op_list *list = &program->list;
    eg_op *op = &list->op[map];
    const int id = op->out.id;
    eg_term *stored = stored_term(op);
    const eg_view wanted = stored != NULL ? stored->view : (eg_view){.space = EG_ABSENT};
    const bool is_callers = stored != NULL && is_as_read(list, &wanted);
    const eg_view dense = is_callers ? wanted : add_buffer(list, kernel, &list->temporary[id]);
    if (!is_callers && !eg_place_buffer(program, list->buffers - 1)) return false;
    for (int i = map; i < list->ops; i++) {
        replace(&list->op[i].left, id, &dense);
        replace(&list->op[i].right, id, &dense);
        replace(&list->op[i].out, id, &dense);
    }
    if (stored == NULL) return true;
    remove_term(op, stored);
    if (!is_callers) copy_for_caller(list, op, &dense, &wanted);
    return true;
}

bool eg_cpu_make_dense(const eg_cpu_kernel *kernel, eg_program *program) {
    const eg_op_list *list = &program->list;
    if (eg_cpu_is_amx(kernel) || list->groups > 0 || list->exchanged > 0) return true;
    for (int map = 0; map < list->ops; map++) {
        if (may_be_dense(list, map) && !make_dense(kernel, program, map)) return false;
    }
    return true;
}

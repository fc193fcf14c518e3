/* SPDX-License-Identifier: Apache-2.0 */
#include "layer.h"

#include <stdio.h>

#include "epigrad/comm.h"

/* "(2, 3)", as Python writes it. */
static const char *put_dims(const int64_t *dims, int count, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < count && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
    }
    if (used < size) snprintf(text + used, size - used, count == 1 ? ",)" : ")");
    return text;
}

static bool fail_shape(const eg_py_view *view, const int64_t *expected, int dims, const char *why) {
    char is[256], wanted[256];
    return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is %s; expected %s%s", view->name,
                      put_dims(view->shape, view->dims, is, sizeof is),
                      put_dims(expected, dims, wanted, sizeof wanted), why);
}

/* ---- What all operands agree in -------------------------------------------------------------------- */

static const char *put_device(const eg_py_view *view, char *text, size_t size) {
    if (view->backend == EG_BACKEND_CPU)
        snprintf(text, size, "the CPU");
    else
        snprintf(text, size, "cuda:%d", view->device);
    return text;
}

static bool has_elements(const eg_py_view *view) {
    for (int i = 0; i < view->dims; i++) {
        if (view->shape[i] == 0) return false;
    }
    return true;
}

static bool check_common(const eg_py_operand *operand, const eg_py_view *x) {
    const eg_py_view *view = operand->view;
    char is[32], wanted[32];
    if (view->data == NULL && has_elements(view))
        return eg_py_fail(EG_ERR_ARGUMENT, "%s has no memory; expected that of its elements, not yet freed",
                          view->name);
    if (view->backend != x->backend || view->device != x->device)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s is on %s; expected %s, where %s is", view->name,
                          put_device(view, is, sizeof is), put_device(x, wanted, sizeof wanted), x->name);
    if (operand->kind == EG_PY_OFFSETS) return true;
    const bool wide = operand->wide && view->dtype == EG_F32 && (x->dtype == EG_F16 || x->dtype == EG_BF16);
    if (view->dtype != x->dtype && !wide)
        return eg_py_fail(EG_PY_TYPE_ERROR, "%s has elements of %s; expected %s, as %s has%s", view->name,
                          eg_dtype_name(view->dtype), eg_dtype_name(x->dtype), x->name,
                          operand->wide && x->dtype != EG_F32 && x->dtype != EG_F64 ? ", or f32" : "");
    if (operand->output && view->read_only)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s is read-only; expected memory that can be written",
                          view->name);
    return true;
}

/* ---- A layer that is divided over processes --------------------------------------------------------- */

static bool is_given(const eg_tensor_parallel *parts) { return parts != NULL && parts->comm != NULL; }

static bool is_divided(const eg_tensor_parallel *parts, eg_py_kind kind) {
    return is_given(parts) && kind == (parts->split == EG_SPLIT_COLUMNS ? EG_PY_X : EG_PY_Y);
}

static int64_t times(int64_t count, int ranks) {
    int64_t product;
    return __builtin_mul_overflow(count, ranks, &product) ? INT64_MAX : product;
}

/* The first size of an array with rows, beside that of x. */
static int64_t first_size(const eg_tensor_parallel *parts, eg_py_kind kind, const eg_py_view *x) {
    const bool x_is = is_divided(parts, EG_PY_X), is = is_divided(parts, kind);
    if (x_is == is) return x->shape[0];
    return x_is ? times(x->shape[0], parts->comm->ranks) : x->shape[0] / parts->comm->ranks;
}

static bool check_parts(const eg_tensor_parallel *parts, const eg_py_view *x) {
    char is[256];
    if (!is_given(parts)) return true;
    put_dims(x->shape, x->dims, is, sizeof is);
    if (x->dims < 2)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is %s; expected (M, ..., K) with split", x->name, is);
    if (is_divided(parts, EG_PY_X) || x->shape[0] % parts->comm->ranks == 0) return true;
    return eg_py_fail(EG_ERR_ARGUMENT,
                      "%s.shape is %s; expected a first size that is a multiple of the %d processes", x->name,
                      is, parts->comm->ranks);
}

/* ---- Shapes ---------------------------------------------------------------------------------------- */

static bool check_x_and_w(const eg_py_view *x, const eg_py_view *w) {
    char is[256];
    if (x->dims < 1) return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is (); expected (..., K)", x->name);
    if (w->dims != 2 && w->dims != 3)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is %s; expected (N, K), or (batch, N, K)", w->name,
                          put_dims(w->shape, w->dims, is, sizeof is));
    const int64_t k = x->shape[x->dims - 1];
    if (w->shape[w->dims - 1] != k)
        return eg_py_fail(EG_ERR_ARGUMENT,
                          "%s.shape is %s; expected (%sN, %lld), since the last size of %s is %lld", w->name,
                          put_dims(w->shape, w->dims, is, sizeof is), w->dims == 3 ? "batch, " : "",
                          (long long)k, x->name, (long long)k);
    if (w->dims == 3 && (x->dims < 2 || x->shape[0] != w->shape[0]))
        return eg_py_fail(EG_ERR_ARGUMENT,
                          "%s.shape is %s; expected (%lld, ..., K), since %s is a batch of %lld", x->name,
                          put_dims(x->shape, x->dims, is, sizeof is), (long long)w->shape[0], w->name,
                          (long long)w->shape[0]);
    return true;
}

/* A grouped layer has a weight a group, of which all rows are one matrix. */
static bool check_grouped(const eg_py_view *x, const eg_py_view *w) {
    char is[256];
    if (w->dims != 3 || w->shape[0] < 1)
        return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is %s; expected (groups, N, K) with offsets", w->name,
                          put_dims(w->shape, w->dims, is, sizeof is));
    if (x->dims != 2 || x->shape[1] != w->shape[2])
        return eg_py_fail(EG_ERR_ARGUMENT, "%s.shape is %s; expected (rows, %lld) with offsets", x->name,
                          put_dims(x->shape, x->dims, is, sizeof is), (long long)w->shape[2]);
    return true;
}

static bool check_shape(const eg_py_operand *operand, bool grouped, const eg_tensor_parallel *parts,
                        const eg_py_view *x, const eg_py_view *w) {
    const eg_py_view *view = operand->view;
    int64_t expected[EG_PY_DIMS];
    int dims = 0;
    const int64_t n = w->shape[w->dims - 2], k = x->shape[x->dims - 1];
    switch (operand->kind) {
    case EG_PY_X:
    case EG_PY_Y:
        for (; dims < x->dims - 1; dims++)
            expected[dims] = dims == 0 ? first_size(parts, operand->kind, x) : x->shape[dims];
        expected[dims++] = operand->kind == EG_PY_X ? k : n;
        break;
    case EG_PY_W:
        for (; dims < w->dims; dims++) expected[dims] = w->shape[dims];
        break;
    case EG_PY_BIAS:
        if (grouped) expected[dims++] = w->shape[0];
        expected[dims++] = n;
        break;
    case EG_PY_OFFSETS:
        expected[dims++] = w->shape[0];
        break;
    }
    bool same = view->dims == dims;
    for (int i = 0; i < dims && same; i++) same = view->shape[i] == expected[i];
    const bool rows = operand->kind == EG_PY_X || operand->kind == EG_PY_Y;
    return same || fail_shape(view, expected, dims,
                              !rows || !is_given(parts)          ? ""
                              : is_divided(parts, operand->kind) ? ", the rows of this process"
                                                                 : ", the rows of all processes");
}

/* ---- Strides --------------------------------------------------------------------------------------- */

/* Dimensions from `first` up to `end` as one: true if one stride walks over all of them. */
static bool collapse(const eg_py_view *view, int first, int end, int64_t *size, int64_t *stride) {
    *size = 1;
    *stride = 0;
    for (int i = end - 1; i >= first; i--) {
        if (view->shape[i] == 1) continue;
        if (*size > 1 && view->strides[i] != *stride * *size) return false;
        if (*size == 1) *stride = view->strides[i];
        *size *= view->shape[i];
    }
    return true;
}

/* Strides of a matrix as a layout. A line of one element has any stride. */
static bool take_layout(int64_t rows, int64_t row_stride, int64_t cols, int64_t col_stride,
                        eg_matrix *matrix) {
    if ((cols <= 1 || col_stride == 1) && (rows <= 1 || row_stride >= cols)) {
        matrix->layout = EG_ROW_MAJOR;
        matrix->ld = rows <= 1 ? cols : row_stride;
        return true;
    }
    if ((rows <= 1 || row_stride == 1) && (cols <= 1 || col_stride >= rows)) {
        matrix->layout = EG_COL_MAJOR;
        matrix->ld = cols <= 1 ? rows : col_stride;
        return true;
    }
    return false;
}

/* [batch, rows, columns] where the first `split` dimensions are the batch. */
static bool take_rows(const eg_py_view *view, int split, int64_t *batch, int64_t *rows, eg_matrix *matrix) {
    const int last = view->dims - 1;
    int64_t row_stride, batch_stride;
    if (!collapse(view, 0, split, batch, &batch_stride)) return false;
    if (!collapse(view, split, last, rows, &row_stride)) return false;
    const int64_t cols = view->shape[last];
    if (*batch == 0 || *rows == 0 || cols == 0) {
        *matrix = (eg_matrix){.dtype = view->dtype}; /* no element: absent */
        return true;
    }
    *matrix =
        (eg_matrix){.data = view->data, .dtype = view->dtype, .batch_stride = *batch > 1 ? batch_stride : 0};
    return matrix->batch_stride >= 0 && take_layout(*rows, row_stride, cols, view->strides[last], matrix);
}

static bool fail_strides(const eg_py_view *view) {
    char strides[256], shape[256];
    return eg_py_fail(
        EG_ERR_ARGUMENT,
        "%s of shape %s has strides %s (elements); expected rows or columns that are contiguous and apart "
        "by one stride, such as a contiguous copy has",
        view->name, put_dims(view->shape, view->dims, shape, sizeof shape),
        put_dims(view->strides, view->dims, strides, sizeof strides));
}

/* An item of a batch that is summed into, or written, has its own memory. */
static bool is_spread(const eg_py_operand *operand, int64_t batch, const eg_matrix *matrix) {
    return !operand->output || batch <= 1 || matrix->batch_stride != 0;
}

/* All operands with rows, with the same dimensions as the batch. The layer's rows are those of all processes.
 */
static bool take_all_rows(const eg_py_operand *operands, int count, int split,
                          const eg_tensor_parallel *parts, eg_layer *layer, const eg_py_operand **failed) {
    for (int i = 0; i < count; i++) {
        const eg_py_operand *operand = &operands[i];
        eg_matrix matrix;
        int64_t rows;
        if ((operand->kind != EG_PY_X && operand->kind != EG_PY_Y) || !operand->view->present) continue;
        if (!take_rows(operand->view, split, &layer->batch, &rows, &matrix) ||
            !is_spread(operand, layer->batch, &matrix)) {
            *failed = operand;
            return false;
        }
        layer->m = is_divided(parts, operand->kind) ? times(rows, parts->comm->ranks) : rows;
        if (operand->place != NULL) *(eg_matrix *)operand->place = matrix;
    }
    return true;
}

/* A weight [N, K] is the column-major B of the library, [K, N]. */
static bool take_weight(const eg_py_operand *operand) {
    const eg_py_view *view = operand->view;
    const int last = view->dims - 1;
    const int64_t n = view->shape[last - 1], k = view->shape[last];
    static _Alignas(64) char no_element;
    eg_matrix matrix = {.dtype = view->dtype};
    const bool none = view->dims == 3 && view->shape[0] == 0, several = view->dims == 3 && view->shape[0] > 1;
    /* w_up is there, if without elements: that makes a gated unit */
    if ((k == 0 || none) && !operand->output) matrix.data = &no_element;
    if (n != 0 && k != 0 && !none) {
        matrix.data = view->data;
        matrix.batch_stride = several ? view->strides[0] : 0;
        if (matrix.batch_stride < 0 || (several && operand->output && matrix.batch_stride == 0) ||
            !take_layout(k, view->strides[last], n, view->strides[last - 1], &matrix))
            return fail_strides(view);
    }
    *(eg_matrix *)operand->place = matrix;
    return true;
}

static bool take_bias(const eg_py_operand *operand) {
    const eg_py_view *view = operand->view;
    int64_t count, stride;
    if (!collapse(view, 0, view->dims, &count, &stride) || (count > 1 && stride != 1))
        return fail_strides(view);
    *(eg_vector *)operand->place = (eg_vector){.data = view->data, .dtype = view->dtype};
    return true;
}

static bool take_offsets(const eg_py_operand *operand, eg_layer *layer) {
    const eg_py_view *view = operand->view;
    if (view->shape[0] > 1 && view->strides[0] != 1) return fail_strides(view);
    *(eg_offsets *)operand->place = (eg_offsets){.data = view->data};
    layer->groups = view->shape[0];
    return true;
}

bool eg_py_lay_out(const eg_py_operand *operands, int count, const eg_tensor_parallel *parts,
                   eg_layer *layer) {
    const eg_py_view *x = operands[0].view, *w = operands[1].view;
    const eg_py_operand *end = &operands[count - 1];
    const bool grouped = end->kind == EG_PY_OFFSETS && end->view->present;
    if (!(grouped ? check_grouped : check_x_and_w)(x, w) || !check_parts(parts, x)) return false;
    for (int i = 0; i < count; i++) {
        if (!operands[i].view->present) continue;
        if (!check_common(&operands[i], x) || !check_shape(&operands[i], grouped, parts, x, w)) return false;
    }
    if (grouped && !take_offsets(end, layer)) return false;
    layer->k = x->shape[x->dims - 1];
    layer->n = w->shape[w->dims - 2];
    layer->dtype = x->dtype;
    const int lead = x->dims - 1, first = w->dims == 3 && !grouped ? 1 : 0,
              last = w->dims == 3 || lead == 0 ? first : lead - 1;
    const eg_py_operand *failed = &operands[0];
    int split = first;
    while (!take_all_rows(operands, count, split, parts, layer, &failed)) {
        if (split++ == last) return fail_strides(failed->view);
    }
    if (layer->batch == 0) { /* in eg_layer 0 means one */
        layer->batch = 1;
        layer->m = 0;
        if (first == 1) layer->k = 0; /* w has no item that could be given: none is asked for */
    }
    for (int i = 0; i < count; i++) {
        if (!operands[i].view->present) continue;
        if (operands[i].kind == EG_PY_W && !take_weight(&operands[i])) return false;
        if (operands[i].kind == EG_PY_BIAS && !take_bias(&operands[i])) return false;
    }
    return true;
}

#include "overlap.h"

typedef struct eg_span {
    uintptr_t first, end; /* bytes, [first, end) */
} eg_span;

static eg_span span_of(const eg_problem *problem, const eg_operand *x) {
    const uintptr_t first = eg_begin(problem, x->data, x->offset);
    if (!eg_has_elements(problem, x)) return (eg_span){first, first};
    const int64_t last = (x->rows - 1) * x->row_stride + (x->cols - 1) * x->col_stride +
                         (problem->batch - 1) * x->batch_stride;
    return (eg_span){first, first + (uintptr_t)(last + 1) * eg_size_of(x->dtype)};
}

/* Both are windows of lines `pitch` bytes apart (batch strides included): their lines are [0, length) and
 * [shift, shift + length') modulo the pitch. */
static bool separate_windows(const eg_problem *problem, const eg_operand *x, const eg_operand *y) {
    const bool row_major = x->col_stride == 1 && x->row_stride > 1;
    if (row_major != (y->col_stride == 1 && y->row_stride > 1)) return false;
    const uintptr_t size_x = eg_size_of(x->dtype), size_y = eg_size_of(y->dtype);
    const uintptr_t pitch = (uintptr_t)(row_major ? x->row_stride : x->col_stride) * size_x;
    if (pitch == 0 || pitch != (uintptr_t)(row_major ? y->row_stride : y->col_stride) * size_y) return false;
    if (problem->batch > 1 && ((uintptr_t)x->batch_stride * size_x % pitch != 0 ||
                               (uintptr_t)y->batch_stride * size_y % pitch != 0)) {
        return false;
    }
    const uintptr_t length_x = (uintptr_t)(row_major ? x->cols : x->rows) * size_x;
    const uintptr_t length_y = (uintptr_t)(row_major ? y->cols : y->rows) * size_y;
    const uintptr_t first_x = eg_begin(problem, x->data, x->offset),
                    first_y = eg_begin(problem, y->data, y->offset);
    const uintptr_t shift =
        first_y >= first_x ? (first_y - first_x) % pitch : (pitch - (first_x - first_y) % pitch) % pitch;
    return shift >= length_x && shift + length_y <= pitch;
}

static bool may_share(const eg_problem *problem, const void *data, const void *other) {
    return problem->addressing == EG_ADDRESSES || (problem->addressing == EG_HANDLES && data == other);
}

static bool meet(eg_span a, eg_span b) {
    return a.first < a.end && b.first < b.end && a.first < b.end && b.first < a.end;
}

bool eg_overlap(const eg_problem *problem, const eg_operand *x, const eg_operand *y) {
    return may_share(problem, x->data, y->data) && meet(span_of(problem, x), span_of(problem, y)) &&
           !separate_windows(problem, x, y);
}

bool eg_overlaps_workspace(const eg_problem *problem, const eg_operand *x, const eg_workspace *workspace,
                           size_t bytes) {
    const uintptr_t first = eg_begin(problem, workspace->data, workspace->offset);
    return may_share(problem, x->data, workspace->data) &&
           meet(span_of(problem, x), (eg_span){first, first + bytes});
}

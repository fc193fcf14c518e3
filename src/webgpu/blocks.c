/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a pass: as large as the device allows by its bindings, its workgroups in a dimension, 32-bit
 * indices, and the time that a submit may take. */
#include "core/error.h"
#include "core/sizes.h"
#include "pass.h"

bool eg_webgpu_writes(const eg_webgpu_pass *pass, int binding) {
    return binding == EG_OUT || (binding == EG_EXTRA && pass->sums);
}

/* The product's splits are the depth of its output; what the epilogue reads has none. */
static int64_t extent_depth(const eg_webgpu_pass *pass, int binding, int64_t depth) {
    return eg_webgpu_writes(pass, binding) ? pass->splits : binding == EG_EXTRA ? 1 : depth;
}

static int64_t span(int64_t count, int64_t stride) { return count > 1 ? (count - 1) * stride : 0; }

int64_t eg_webgpu_window(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block) {
    const eg_webgpu_operand *x = &pass->at[binding];
    const int64_t depth = extent_depth(pass, binding, block->depth);
    if (!eg_webgpu_is_present(x) || block->items < 1 || block->rows < 1 || block->cols < 1 || depth < 1)
        return 0;
    return 1 + span(block->items, x->item) + span(block->rows, x->row) + span(block->cols, x->col) +
           span(depth, x->depth);
}

int64_t eg_webgpu_begin(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block) {
    const eg_webgpu_operand *x = &pass->at[binding];
    return block->item * x->item + block->row * x->row + block->col * x->col +
           (eg_webgpu_writes(pass, binding) ? 0 : block->term * x->depth);
}

/* Elements of an operand that fit in a binding: its first may lie anywhere up to the alignment. */
static int64_t room(const eg_webgpu_caps *caps, const eg_webgpu_operand *x) {
    const int64_t most = (int64_t)1 << 31; /* of an index */
    return eg_least(
        ((int64_t)caps->binding - (int64_t)caps->align) / (int64_t)eg_dtype_size((eg_dtype)x->dtype), most);
}

static bool window_fits(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, int binding,
                        const eg_webgpu_block *block) {
    const int64_t window = eg_webgpu_window(pass, binding, block);
    return window == 0 || window <= room(caps, &pass->at[binding]);
}

/* As many terms as fit beside a tile's rows and columns; beside one row and column where that is few. The
 * same for a pass and its transpose. */
int64_t eg_webgpu_reach(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass) {
    const int64_t enough = 4096;
    int64_t reach = pass->depth;
    for (int binding = EG_LEFT; binding <= EG_RIGHT; binding++) {
        const eg_webgpu_operand *x = &pass->at[binding];
        if (!eg_webgpu_is_present(x) || x->depth == 0) continue;
        const int64_t tile =
            pass->kernel->rows > pass->kernel->cols ? pass->kernel->rows : pass->kernel->cols;
        const int64_t rows = eg_least(pass->rows, tile), cols = eg_least(pass->cols, tile);
        int64_t terms = (room(caps, x) - 1 - span(rows, x->row) - span(cols, x->col)) / x->depth + 1;
        if (terms < eg_least(pass->depth, enough)) terms = (room(caps, x) - 1) / x->depth + 1;
        reach = eg_least(reach, terms);
    }
    return reach < pass->depth && reach > 4 ? reach / 4 * 4 : reach;
}

/* ---- One block ---------------------------------------------------------------------------------- */

static double work_of(const eg_webgpu_block *b) {
    return (double)b->items * (double)b->rows * (double)b->cols * (double)(b->depth > 0 ? b->depth : 1);
}

static bool sums_items(const eg_webgpu_pass *pass) { return pass->at[EG_OUT].item == 0; }

static bool items_fit(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, const eg_webgpu_block *b) {
    if (b->items <= 1) return true;
    if (sums_items(pass) || b->items * pass->splits > caps->groups) return false;
    for (int binding = 0; binding < EG_BINDINGS; binding++) {
        if (!window_fits(caps, pass, binding, b)) return false;
    }
    return work_of(b) <= caps->budget;
}

/* Which side to halve: the one that stretches a window that does not fit, or the dispatch. */
typedef enum side { NEITHER, ROWS, COLS } side;

static side too_large(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, const eg_webgpu_block *b) {
    enum { MOST_BIAS = 1 << 20 };
    for (int binding = 0; binding < EG_BINDINGS; binding++) {
        const eg_webgpu_operand *x = &pass->at[binding];
        if (!window_fits(caps, pass, binding, b))
            return span(b->rows, x->row) >= span(b->cols, x->col) ? ROWS : COLS;
    }
    const int64_t down = eg_ceil_div(b->rows, pass->kernel->rows),
                  across = eg_ceil_div(b->cols, pass->kernel->cols);
    if (down > caps->groups) return ROWS;
    if (across > caps->groups) return COLS;
    if (pass->bias) {
        const int64_t most = eg_least(MOST_BIAS, (int64_t)caps->binding / 8);
        if (pass->bias_by_row ? b->rows > most : b->cols > most) return pass->bias_by_row ? ROWS : COLS;
    }
    if (work_of(b) > caps->budget && (down > 1 || across > 1)) return down >= across ? ROWS : COLS;
    return NEITHER;
}

/* About half, in whole tiles as long as there are some, and in fours for the sake of aligned loads. */
static int64_t half(int64_t count, int64_t tile) {
    const int64_t unit = count > tile ? tile : count > 4 ? 4 : 1;
    return eg_ceil_div(eg_ceil_div(count, 2), unit) * unit;
}

static eg_status visit_area(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, const eg_webgpu_block *b,
                            eg_webgpu_visit visit, void *arg) {
    const side which = too_large(caps, pass, b);
    if (which == NEITHER) return visit(arg, pass, b);
    eg_webgpu_block first = *b, second = *b;
    if (which == ROWS && b->rows > 1) {
        first.rows = half(b->rows, pass->kernel->rows);
        second.row += first.rows, second.rows -= first.rows;
    } else if (which == COLS && b->cols > 1) {
        first.cols = half(b->cols, pass->kernel->cols);
        second.col += first.cols, second.cols -= first.cols;
    } else {
        return eg_fail(EG_ERR_UNSUPPORTED, "a single row of %lld terms is more than the device can bind",
                       (long long)b->depth);
    }
    EG_TRY(visit_area(caps, pass, &first, visit, arg));
    return visit_area(caps, pass, &second, visit, arg);
}

/* ---- The pass ----------------------------------------------------------------------------------- */

/* Parts of the depth after the first, and items after the first where they are summed, are added. */
static eg_status visit_depth(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, eg_webgpu_block block,
                             eg_webgpu_visit visit, void *arg) {
    const bool product = pass->kernel->shape == EG_SHAPE_PRODUCT;
    const int64_t reach = product && pass->splits == 1 ? eg_webgpu_reach(caps, pass) : pass->depth;
    eg_webgpu_pass part = *pass;
    if (sums_items(pass) && block.item > 0) part.accumulate = part.add_sums = true;
    do {
        block.depth = eg_least(reach, pass->depth - block.term);
        if (reach < pass->depth) part.chunk = block.depth;
        EG_TRY(visit_area(caps, &part, &block, visit, arg));
        part.accumulate = part.add_sums = true;
        block.term += block.depth;
    } while (block.term < pass->depth);
    return EG_OK;
}

eg_status eg_webgpu_each_block(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, eg_webgpu_visit visit,
                               void *arg) {
    eg_webgpu_block whole = {
        .items = pass->items, .rows = pass->rows, .cols = pass->cols, .depth = pass->depth};
    if (whole.items == 0 || whole.rows == 0 || whole.cols == 0) return EG_OK;
    const bool deep = pass->kernel->shape == EG_SHAPE_PRODUCT && pass->splits == 1 &&
                      eg_webgpu_reach(caps, pass) < pass->depth;
    int64_t items = whole.items;
    while (items > 1) { /* as many items at a time as go into one dispatch */
        const eg_webgpu_block some = {
            .items = items, .rows = whole.rows, .cols = whole.cols, .depth = whole.depth};
        if (!deep && items_fit(caps, pass, &some)) break;
        items = sums_items(pass) ? 1 : eg_ceil_div(items, 2);
    }
    for (; whole.item < pass->items; whole.item += items) {
        whole.items = eg_least(items, pass->items - whole.item);
        EG_TRY(visit_depth(caps, pass, whole, visit, arg));
    }
    return EG_OK;
}

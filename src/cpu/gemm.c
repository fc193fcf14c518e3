/* The blocked product: every tile of the result is summed by one thread in one order, so that the bits do
 * not depend on the number of threads.
 *
 *   for each block of the result (tile_rows x tile_cols; shared out among the threads)
 *     for each kc terms of the depth (of each item that is summed)
 *       for each panel of the right operand       kc x nr      stays in L1
 *         for each mr rows of the left operand    mr x kc      streams from L2
 *           multiply into the tile                mr x nr      in registers
 *           after the last terms: the epilogue                 in L1
 */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

typedef struct product {
    const eg_cpu_run *run;
    const eg_step *step;
    const eg_cpu_kernel *kernel;
    size_t size; /* bytes of a number */
    int64_t rows, cols, depth;
    int64_t items, summed; /* results, and products summed into each */
    int64_t bands, strips; /* blocks down and across */
    bool transposed;       /* the left operand */
    const char *left, *right;
    int64_t left_panel, right_panel; /* elements from panel to panel */
    int64_t left_item, right_item;   /* elements from item to item; 0: shared */
} product;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- The operands of each product --------------------------------------------------------------- */

typedef struct side {
    const char *data;
    int64_t panel, item;
} side;

static side side_of(const eg_cpu_run *run, const eg_cpu_kernel *kernel, eg_buffer_id id, int64_t rows,
                    int64_t cols) {
    const eg_problem *p = run->problem;
    const eg_panels panels = eg_cpu_panels(kernel, rows, cols);
    side s = {.data = eg_cpu_region(run, id), .panel = panels.rows * kernel->nr};
    bool per_item = true;
    if (id == EG_BUFFER_A) per_item = p->operands[EG_OP_A].batch_stride != 0;
    if (id == EG_BUFFER_B || id == EG_BUFFER_BT) {
        per_item = p->packed_b != NULL ? p->packed_b->batched : p->operands[EG_OP_B].batch_stride != 0;
        if (p->packed_b != NULL) {
            const eg_region *region = id == EG_BUFFER_B ? &p->packed_b->forward : &p->packed_b->transposed;
            s.data = (const char *)p->packed_b->data + region->offset;
        }
    }
    s.item = per_item ? panels.panels * s.panel : 0;
    return s;
}

static product make_product(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    product x = {.run = run, .step = step, .kernel = step->kernel, .items = p->batch, .summed = 1};
    x.size = eg_dtype_size(x.kernel->compute);
    side left = {0}, right = {0};
    const eg_operand *out = NULL;
    switch (step->product) {
    case EG_PRODUCT_PRE:
        x.rows = p->m, x.cols = p->n, x.depth = p->k;
        left = side_of(run, x.kernel, EG_BUFFER_A, p->m, p->k);
        right = side_of(run, x.kernel, EG_BUFFER_B, p->k, p->n);
        break;
    case EG_PRODUCT_D_A:
        x.rows = p->m, x.cols = p->k, x.depth = p->n;
        left = side_of(run, x.kernel, EG_BUFFER_GRAD_PRE, p->m, p->n);
        right = side_of(run, x.kernel, EG_BUFFER_BT, p->n, p->k);
        out = &p->operands[EG_OP_D_A];
        break;
    case EG_PRODUCT_D_B:
        x.rows = p->k, x.cols = p->n, x.depth = p->m;
        x.transposed = true;
        left = side_of(run, x.kernel, EG_BUFFER_A, p->m, p->k);
        right = side_of(run, x.kernel, EG_BUFFER_GRAD_PRE, p->m, p->n);
        out = &p->operands[EG_OP_D_B];
        break;
    }
    if (out != NULL && out->batch_stride == 0) x.items = 1, x.summed = p->batch;
    x.left = left.data, x.left_panel = left.panel, x.left_item = left.item;
    x.right = right.data, x.right_panel = right.panel, x.right_item = right.item;
    x.bands = ceil_div(x.rows, step->tile_rows);
    x.strips = ceil_div(x.cols, step->tile_cols);
    return x;
}

/* The left operand's rows from `row` on, from term `term` on. */
static const char *left_at(const product *x, int64_t item, int64_t row, int64_t term) {
    const int64_t nr = x->kernel->nr;
    const int64_t in_item = x->transposed ? row / nr * x->left_panel + term * nr + row % nr
                                          : term / nr * x->left_panel + row * nr;
    return x->left + (size_t)(item * x->left_item + in_item) * x->size;
}

static const char *right_at(const product *x, int64_t item, int64_t term, int64_t col) {
    const int64_t nr = x->kernel->nr;
    return x->right + (size_t)(item * x->right_item + col / nr * x->right_panel + term * nr) * x->size;
}

/* ---- One block ---------------------------------------------------------------------------------- */

typedef struct block {
    int64_t item, row, col, rows, cols;
    char *tiles; /* the block's tiles, down each panel and then across */
    char *spare; /* scratch for the epilogue */
} block;

/* The terms [term, term + depth) of product number `summand`. */
typedef struct pass {
    int64_t summand, term, depth;
    bool first, last;
} pass;

/* Asks for the lines [from, from + bytes) in L2. */
static inline void prefetch(const char *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

/* One panel of the block: all its rows against `right`. Meanwhile the next panel is fetched, a slice with
 * each tile. */
static char *run_panel(const product *x, const block *b, const pass *pass, int64_t col, char *tile) {
    const eg_cpu_kernel *kernel = x->kernel;
    const int64_t item = x->summed > 1 ? pass->summand : b->item, cols = least(kernel->nr, x->cols - col);
    const char *right = right_at(x, item, pass->term, col), *next = right + (size_t)x->right_panel * x->size;
    const size_t right_bytes = (size_t)(pass->depth * kernel->nr) * x->size;
    const size_t slice =
        col + kernel->nr < b->col + b->cols ? right_bytes / (size_t)ceil_div(b->rows, kernel->mr) : 0;
    const size_t tile_bytes = (size_t)(kernel->mr * kernel->nr) * x->size;
    const char *left = NULL;
    int64_t in_panel =
        kernel->nr; /* transposed: tiles step through a panel's columns, then to the next panel */
    for (int64_t row = b->row; row < b->row + b->rows; row += kernel->mr, tile += tile_bytes, next += slice) {
        if (x->transposed ? in_panel == kernel->nr : left == NULL) {
            left = left_at(x, item, row, pass->term);
            in_panel = row % kernel->nr;
        }
        const eg_tile sum = {.item = b->item,
                             .row = row,
                             .col = col,
                             .rows = least(kernel->mr, x->rows - row),
                             .cols = cols,
                             .values = tile,
                             .spare = b->spare};
        prefetch(next, slice);
        if (pass->last) eg_cpu_epilogue_prefetch(x->run, x->step, &sum);
        kernel->multiply(x->transposed, left, x->left_panel, right, pass->depth, cols, !pass->first, tile);
        if (pass->last) eg_cpu_epilogue(x->run, x->step, &sum);
        left += (size_t)(x->transposed ? kernel->mr : kernel->mr * kernel->nr) * x->size;
        in_panel += kernel->mr;
    }
    return tile;
}

static void run_pass(const product *x, const block *b, const pass *pass) {
    char *tile = b->tiles;
    for (int64_t col = b->col; col < b->col + b->cols; col += x->kernel->nr)
        tile = run_panel(x, b, pass, col, tile);
}

/* A product of no terms is a block of zeros; its epilogue is run all the same. */
static void run_block(void *arg, int64_t index, int thread) {
    const product *x = arg;
    const eg_cpu_kernel *kernel = x->kernel;
    const size_t tile = (size_t)(kernel->mr * kernel->nr) * x->size;
    block b = {.item = index / (x->bands * x->strips),
               .row = index / x->strips % x->bands * x->step->tile_rows,
               .col = index % x->strips * x->step->tile_cols,
               .spare = eg_cpu_scratch(x->run, thread)};
    b.rows = least(x->step->tile_rows, x->rows - b.row);
    b.cols = least(x->step->tile_cols, x->cols - b.col);
    b.tiles = b.spare + 4 * tile;
    const int64_t kc = x->step->depth, passes = ceil_div(x->depth, kc);
    for (int64_t summand = 0; summand < x->summed; summand++) {
        for (int64_t i = 0; i < passes; i++) {
            run_pass(x, &b,
                     &(pass){.summand = summand,
                             .term = i * kc,
                             .depth = least(kc, x->depth - i * kc),
                             .first = summand == 0 && i == 0,
                             .last = summand == x->summed - 1 && i == passes - 1});
        }
    }
    if (x->summed == 0 || passes == 0) run_pass(x, &b, &(pass){.first = true, .last = true});
}

void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step) {
    product x = make_product(run, step);
    if (x.rows == 0 || x.cols == 0 || x.items == 0) return;
    eg_cpu_parallel(step->threads, x.items * x.bands * x.strips, run_block, &x);
}

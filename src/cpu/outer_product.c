/* SPDX-License-Identifier: Apache-2.0 */
/* Products of little depth, such as d_b of few rows: their time is that of writing the result. So it is
 * written row by row, in long pieces; where it is large, by non-temporal stores. Both operands are small.
 * Each block lays out its part of the caller's in L1, and nothing is packed for it beforehand.
 *
 * The sums are those of the tile loop, in the same order: the same bits. */
#include "blocking.h"
#include "cpu.h"
#include "epilogue.h"

/* ---- The product -------------------------------------------------------------------------------- */

/* Where an operand is: the caller's, or packed to micro-panels, beforehand or by the operation that made it.
 */
typedef struct outer_side {
    eg_operand operand;
    const char *panels;  /* NULL: the caller's */
    int64_t panel, item; /* bytes from one to the next, */
    int64_t numbers;     /* and numbers of a micro-panel */
    bool widens;         /* which have the layer's type: each block converts its own */
} outer_side;

typedef struct outer_job {
    const eg_cpu_run *run;
    const eg_cpu_kernel *kernel;
    const eg_op *op;
    eg_epilogue epilogue;
    outer_side a, b;
    eg_operand out;
    const eg_operand *pre; /* NULL: none */
    bool stores_result;    /* from registers: no epilogue */
    bool acts_by_rows;     /* or the epilogue is that of rows in L1: an activation, */
    bool grads_by_rows;    /* or a derivative */
    bool finishes;         /* with a bias, or with relu from registers, */
    bool is_relu;          /* or both */
    bool by_copies;        /* non-temporal stores of rows that begin between cache lines: by way of L1 */
    bool turns_left;       /* the left operand is in micro-panels of its rows */
    int64_t mc, nc, row_blocks, col_blocks;
    int64_t part;       /* columns whose right operand is in L1 at once, */
    int64_t left_bytes; /* and from a row of what is laid out of the left operand to the next */
} outer_job;

typedef struct outer_block {
    int64_t item, col, cols;
    char *spare, *tile, *left, *right, *bias, *copies;
    bool has_left;         /* all rows of the left operand are laid out, for the parts before */
    eg_micro_operand a, b; /* of some rows, and from the first column on */
    int64_t right_panel;   /* bytes from one micro-panel of the right operand to the next */
} outer_block;

/* Whether its micro-panels are read as they are. */
static bool is_packed(const outer_side *side) { return side->panels != NULL && !side->widens; }

/* Rows of nr k; zeros in rows that there are not, which make a last tile whole. */
static void load_left_rows(const outer_job *job, outer_block *x, char *to, int64_t row, int64_t rows) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_operand *a = &job->a.operand;
    const int64_t nr = kernel->micro.nr, depth = job->op->depth;
    const int64_t padded = eg_ceil_div(rows, kernel->micro.mr) * kernel->micro.mr;
    x->a = (eg_micro_operand){.at = to, .index_stride = nr, .k_stride = 1, .group_stride = padded * nr};
    if (x->has_left) return;
    for (int64_t k = 0; k < depth; k += nr, to += (size_t)(padded * nr) * eg_size_of(kernel->compute))
        kernel->pack.load(to, eg_cpu_at(a, x->item, row, k), a->dtype, a->row_stride, a->col_stride, rows,
                          eg_least(nr, depth - k), padded);
}

/* The same transposed, where rows are neighbours: up to nr of them. */
static void load_left_panel(const outer_job *job, outer_block *x, char *to, int64_t row, int64_t rows) {
    const eg_operand *a = &job->a.operand;
    const int64_t nr = job->kernel->micro.nr, depth = job->op->depth;
    x->a = (eg_micro_operand){.at = to, .index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
    if (x->has_left) return;
    job->kernel->pack.load(to, eg_cpu_at(a, x->item, row, 0), a->dtype, a->col_stride, a->row_stride, depth,
                           rows, depth);
}

static const char *right_panels(const outer_job *job, const outer_block *x) {
    return job->b.panels + x->item * job->b.item + eg_div(x->col, job->kernel->micro.nr) * job->b.panel;
}

static void load_right(const outer_job *job, outer_block *x) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_operand *b = &job->b.operand;
    const int64_t nr = kernel->micro.nr, depth = job->op->depth;
    const char *panel = job->b.widens ? right_panels(job, x) : NULL;
    char *to = x->right;
    x->b.at = to;
    x->right_panel = depth * nr * (int64_t)eg_size_of(kernel->compute);
    for (int64_t col = 0; col < x->cols; col += nr, to += x->right_panel) {
        if (panel != NULL) {
            kernel->pack.load(to, panel, job->op->right.dtype, nr, 1, depth, nr, depth);
            panel += job->b.panel;
        } else {
            kernel->pack.load(to, eg_cpu_at(b, x->item, 0, x->col + col), b->dtype, b->row_stride,
                              b->col_stride, depth, eg_least(nr, x->cols - col), depth);
        }
    }
}

/* Where the sums are stored from registers. An absent bias is -0, as in an epilogue. */
static void load_bias(const outer_job *job, const outer_block *x) {
    const eg_operand *bias = job->epilogue.bias;
    const int64_t nr = job->kernel->micro.nr, size = (int64_t)eg_size_of(job->kernel->compute);
    const float absent = -0.0F;
    const double absent_f64 = -0.0;
    const bool is_f64 = job->kernel->compute == EG_F64;
    for (int64_t col = 0; col < x->cols; col += nr) {
        char *to = x->bias + col * size;
        if (bias != NULL) {
            job->kernel->pack.load(to, eg_cpu_at(bias, 0, 0, x->col + col), bias->dtype, bias->row_stride,
                                   bias->col_stride, 1, eg_least(nr, x->cols - col), 1);
        } else {
            job->kernel->pack.load(to, is_f64 ? (const void *)&absent_f64 : &absent, job->kernel->compute, 0,
                                   0, 1, nr, 1);
        }
    }
}

/* Micro-panels of k by nr rows where the operand is a transpose, else of rows by nr k. */
static void find_left(const outer_job *job, outer_block *x, int64_t row) {
    const int64_t nr = job->kernel->micro.nr, number = (int64_t)eg_size_of(job->kernel->compute);
    const char *panels = job->a.panels + x->item * job->a.item;
    if (job->op->left.transposed) {
        x->a = (eg_micro_operand){.index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
        x->a.at = panels + eg_div(row, nr) * job->a.panel + (row - eg_div(row, nr) * nr) * number;
    } else {
        x->a = (eg_micro_operand){.index_stride = nr, .k_stride = 1, .group_stride = job->a.numbers};
        x->a.at = panels + row * nr * number;
    }
}

static void find_right(const outer_job *job, outer_block *x) {
    x->b.at = right_panels(job, x);
    x->right_panel = job->b.panel;
}

/* A tile down the left operand. */
static void next_left(const outer_job *job, eg_micro_operand *a) {
    const int64_t number = (int64_t)eg_size_of(job->kernel->compute);
    a->at = (const char *)a->at + job->kernel->micro.mr * a->index_stride * number;
}

/* Some tiles, one below the other, and their epilogue. */
static void run_tiles(const outer_job *job, const outer_block *x, const eg_tile *tiles) {
    static const eg_prefetch_plan no_plan;
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t mr = kernel->micro.mr, end = tiles->row + tiles->rows;
    const size_t bytes = (size_t)(mr * kernel->micro.nr) * eg_size_of(kernel->compute);
    eg_micro_operand a = x->a;
    char *values = tiles->values;
    for (int64_t row = tiles->row; row < end; row += mr, values += bytes) {
        const eg_micro_tile sums = {
            .out = values, .out_stride = kernel->micro.nr, .rows = eg_least(mr, end - row)};
        kernel->micro.multiply(&a, &x->b, job->op->depth, tiles->cols, &sums, &no_plan);
        next_left(job, &a);
    }
    eg_tile_epilogue t;
    eg_cpu_epilogue_begin(&t, &job->epilogue, tiles);
    eg_cpu_epilogue_finish(&t);
}

/* The right operand stays in L1; each tile's rows are written on where the tile before ended. Of those that
 * bypass the caches few at once, as parts of lines wait for the next tile. */
static void run_rows(const outer_job *job, outer_block *x, int64_t row, int64_t rows) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, mr = kernel->micro.mr;
    const int64_t most = job->epilogue.non_temporal ? mr : eg_cpu_epilogue_rows(kernel);
    const char *const right = x->b.at;
    eg_tile tile = {.item = x->item, .row = row, .values = x->tile, .spare = x->spare};
    while (tile.row < row + rows) {
        tile.rows = eg_least(most, row + rows - tile.row);
        x->b.at = right;
        for (int64_t col = 0; col < x->cols; col += nr) {
            tile.col = x->col + col;
            tile.cols = eg_least(nr, x->cols - col);
            run_tiles(job, x, &tile);
            x->b.at = (const char *)x->b.at + x->right_panel;
        }
        for (int64_t i = 0; i < tile.rows; i += mr) next_left(job, &x->a);
        tile.row += most;
    }
    x->b.at = right;
}

/* What the micro-kernel reads, with all columns of the block's part. */
static eg_little_depth operands_of(const outer_job *job, const outer_block *x) {
    const int64_t depth = job->op->depth;
    return (eg_little_depth){.left = x->a.at,
                             .right = x->b.at,
                             .left_group = x->a.group_stride,
                             .right_panel =
                                 is_packed(&job->b) ? job->b.numbers : depth * job->kernel->micro.nr,
                             .left_is_transposed = x->a.index_stride == 1,
                             .cols = x->cols,
                             .depth = depth};
}

/* Stores a piece of the result, or of `pre`. Short rows that follow each other are stored as one: each end of
 * what is stored shares a cache line, which has to be read first. */
static void stream_piece(const outer_job *job, char *to, int64_t to_step, const char *from, int64_t from_step,
                         int64_t rows, int64_t cols) {
    const int64_t size = (int64_t)eg_size_of(job->kernel->compute);
    if (to_step == from_step && from_step == cols * size) cols *= rows, rows = 1;
    for (int64_t i = 0; i < rows; i++)
        job->kernel->micro.stream_row(to + i * to_step, from + i * from_step, cols);
}

/* The same, by pieces that stay in L1 until each row of them is stored. */
static void copy_rows(const outer_job *job, const outer_block *x, const eg_little_depth *all) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, mr = kernel->micro.mr, size = (int64_t)eg_size_of(kernel->compute),
                  most = nr * EG_CPU_OUTER_PANELS;
    const bool follow = all->cols <= most && all->out_step == all->cols * size;
    const int64_t at_once = follow ? eg_div(most, all->cols) * mr : mr;
    eg_little_depth of = *all;
    of.out_step = of.pre_step = follow ? all->out_step : most * size;
    of.out = x->copies;
    if (all->pre != NULL) of.pre = x->copies + most * mr * size;
    for (int64_t row = 0; row < all->rows; row += at_once) {
        of.left = (const char *)all->left + row * x->a.index_stride * size;
        of.rows = eg_least(at_once, all->rows - row);
        for (int64_t col = 0; col < all->cols; col += most) {
            of.right = (const char *)all->right + eg_div(col, nr) * all->right_panel * size;
            of.cols = eg_least(most, all->cols - col);
            if (all->bias != NULL) of.bias = (const char *)all->bias + col * size;
            kernel->micro.outer(&of);
            stream_piece(job, all->out + row * all->out_step + col * size, all->out_step, of.out, of.out_step,
                         of.rows, of.cols);
            if (of.pre != NULL)
                stream_piece(job, all->pre + row * all->pre_step + col * size, all->pre_step, of.pre,
                             of.pre_step, of.rows, of.cols);
        }
    }
}

/* Of pieces whose sums stay in L1: columns at most, and rows. */
static int64_t piece_cols(const outer_job *job, int64_t cols) {
    const int64_t nr = job->kernel->micro.nr;
    return eg_least(nr * EG_CPU_OUTER_PANELS, eg_ceil_div(cols, nr) * nr);
}

static int64_t piece_rows(const outer_job *job, int64_t width) {
    return eg_div(job->kernel->micro.nr * EG_CPU_OUTER_PANELS, width) * job->kernel->micro.mr;
}

/* Sums of pieces of rows go to L1, from where they are finished and written row by row. As tiles they would be
 * written in many short parts of rows, for each of which a processor waits. */
static void act_rows(const outer_job *job, const outer_block *x, const eg_little_depth *all, int64_t row) {
    const eg_cpu_kernel *kernel = job->kernel;
    const eg_operand *other = job->epilogue.other;
    const int64_t nr = kernel->micro.nr, width = piece_cols(job, all->cols), at_once = piece_rows(job, width);
    const int64_t size = (int64_t)eg_size_of(kernel->compute), out_size = (int64_t)eg_size_of(all->dtype);
    const bool streams = all->non_temporal;
    eg_little_depth sums = *all;
    sums.dtype = kernel->compute, sums.out = x->copies, sums.out_step = width * size;
    sums.pre = NULL, sums.bias = NULL, sums.relu = sums.non_temporal = false;
    eg_elementwise s = {.by_rows = true, .non_temporal = streams};
    s.x = (eg_rows){.at = x->copies, .step = sums.out_step, .dtype = kernel->compute, .scale = 1};
    s.out = (eg_rows){.step = all->out_step, .dtype = all->dtype, .scale = 1};
    s.pre = (eg_rows){.step = all->pre_step, .dtype = all->dtype, .scale = 1};
    if (other != NULL) s.other.step = other->row_stride * out_size;
    for (int64_t i = 0; i < all->rows; i += at_once) {
        sums.left = (const char *)all->left + i * x->a.index_stride * size;
        sums.rows = s.end = eg_least(at_once, all->rows - i);
        for (int64_t col = 0; col < all->cols; col += width) {
            const int64_t at = col * out_size;
            const bool ends = col + width >= all->cols;
            sums.right = (const char *)all->right + eg_div(col, nr) * all->right_panel * size;
            sums.cols = s.cols = eg_least(width, all->cols - col);
            kernel->micro.outer(&sums);
            s.out.at = all->out + i * all->out_step + at;
            s.to_next = ends ? at_once * all->out_step - at : width * out_size;
            s.pre.at = all->pre != NULL ? all->pre + i * all->pre_step + at : NULL;
            s.pre_to_next = ends ? at_once * all->pre_step - at : width * out_size;
            if (all->bias != NULL) s.bias.at = x->bias + col * size;
            if (other != NULL) s.other.at = eg_cpu_at(other, x->item, row + i, x->col + col);
            job->epilogue.elementwise(&s);
        }
    }
}

/* The same for a derivative, whose sums have their bias from registers. */
static void grad_rows(const outer_job *job, const outer_block *x, int64_t row, int64_t rows) {
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, size = (int64_t)eg_size_of(kernel->compute),
                  width = piece_cols(job, x->cols), at_once = piece_rows(job, width);
    const eg_rows from = {.at = x->copies, .step = width * size, .dtype = kernel->compute, .scale = 1};
    eg_little_depth sums = operands_of(job, x);
    sums.dtype = kernel->compute, sums.out = x->copies, sums.out_step = from.step;
    for (int64_t i = 0; i < rows; i += at_once) {
        sums.left = (const char *)x->a.at + i * x->a.index_stride * size;
        sums.rows = eg_least(at_once, rows - i);
        for (int64_t col = 0; col < x->cols; col += width) {
            sums.right = (const char *)x->b.at + eg_div(col, nr) * sums.right_panel * size;
            sums.cols = eg_least(width, x->cols - col);
            if (job->finishes) sums.bias = x->bias + col * size;
            kernel->micro.outer(&sums);
            const eg_tile piece = {
                .item = x->item, .row = row + i, .col = x->col + col, .rows = sums.rows, .cols = sums.cols};
            eg_cpu_epilogue_of_rows(&job->epilogue, &piece, &from);
        }
    }
}

/* Without an epilogue, sums are rounded and stored from registers. */
static void store_rows(const outer_job *job, const outer_block *x, int64_t row, int64_t rows) {
    eg_little_depth of = operands_of(job, x);
    of.bias = job->finishes ? x->bias : NULL;
    of.relu = job->is_relu;
    of.non_temporal = job->epilogue.non_temporal && !job->by_copies;
    of.dtype = job->out.dtype;
    of.out = eg_cpu_at(&job->out, x->item, row, x->col);
    of.out_step = job->out.row_stride * (int64_t)eg_size_of(job->out.dtype);
    of.rows = rows;
    if (job->pre != NULL) {
        of.pre = eg_cpu_at(job->pre, x->item, row, x->col);
        of.pre_step = job->pre->row_stride * (int64_t)eg_size_of(job->pre->dtype);
    }
    if (job->acts_by_rows) {
        act_rows(job, x, &of, row);
    } else if (job->by_copies) {
        copy_rows(job, x, &of);
    } else {
        job->kernel->micro.outer(&of);
    }
}

/* Rows of the left operand that are laid out at once, from `row` on: up to the end of a micro-panel where
 * they are neighbours. */
static int64_t rows_at_once(const outer_job *job, int64_t row) {
    const int64_t nr = job->kernel->micro.nr;
    if (!job->turns_left) return EG_CPU_CHUNK;
    return job->a.panels != NULL ? nr - (row - eg_div(row, nr) * nr) : nr;
}

/* All rows of the block with a part of its columns. What the first part lays out of the left operand, the
 * others find in L2; of one part alone it stays in L1. */
static void run_part(const outer_job *job, outer_block *x, int64_t first, int64_t end) {
    if (job->finishes) load_bias(job, x);
    if (is_packed(&job->b)) {
        find_right(job, x);
    } else {
        load_right(job, x);
    }
    char *left = x->left;
    for (int64_t row = first, rows; row < end; row += rows) {
        rows = eg_least(rows_at_once(job, row), end - row);
        if (job->a.panels != NULL) {
            find_left(job, x, row);
        } else if (job->turns_left) {
            load_left_panel(job, x, left, row, rows);
        } else {
            load_left_rows(job, x, left, row, rows);
        }
        left += rows * job->left_bytes;
        if (job->stores_result || job->acts_by_rows) {
            store_rows(job, x, row, rows);
        } else if (job->grads_by_rows) {
            grad_rows(job, x, row, rows);
        } else {
            run_rows(job, x, row, rows);
        }
    }
    x->has_left = true;
}

static void run_block(void *arg, int64_t index, int thread) {
    const outer_job *job = arg;
    const eg_cpu_kernel *kernel = job->kernel;
    const int64_t nr = kernel->micro.nr, depth = job->op->depth;
    const size_t number = eg_size_of(kernel->compute);
    const int64_t down = eg_div(index, job->col_blocks), item = eg_div(down, job->row_blocks);
    outer_block x = {.item = item, .spare = eg_cpu_scratch(job->run, thread)};
    const int64_t first = (down - item * job->row_blocks) * job->mc,
                  end = eg_least(first + job->mc, job->op->rows);
    const int64_t col = (index - down * job->col_blocks) * job->nc,
                  last = eg_least(col + job->nc, job->op->cols);
    x.tile = x.spare + (size_t)eg_cpu_spare_numbers(kernel) * number;
    x.right = x.tile + (size_t)(eg_cpu_epilogue_rows(kernel) * nr) * number;
    x.bias = x.right + (size_t)(depth * job->part) * number;
    x.copies = x.bias + (size_t)job->part * number;
    x.left = x.copies + (size_t)(2 * kernel->micro.mr * nr * EG_CPU_OUTER_PANELS) * number;
    x.b = (eg_micro_operand){.index_stride = 1, .k_stride = nr, .group_stride = nr * nr};
    for (x.col = col; x.col < last; x.col += job->part) {
        x.cols = eg_least(job->part, last - x.col);
        run_part(job, &x, first, end);
    }
    if (job->epilogue.non_temporal) eg_cpu_order_stores();
}

/* Where the operand of `rows` x `cols` numbers, as it was packed, is. */
static void find_side(outer_side *side, const outer_job *job, const eg_view *view, int where, int64_t rows,
                      int64_t cols) {
    const eg_panels panels = eg_cpu_panels(job->kernel, rows, cols);
    const bool is_pack = view->space == EG_PACKED_B;
    if (!is_pack) side->operand = eg_cpu_bind(job->run->call, view);
    side->panels = is_pack ? eg_cpu_packed_b(job->run, job->kernel, view) : eg_cpu_region(job->run, where);
    side->widens = eg_cpu_widens_pack(job->kernel, view);
    side->numbers = panels.stride * job->kernel->micro.nr;
    side->panel = side->numbers * (int64_t)eg_size_of(is_pack ? view->dtype : job->kernel->compute);
    side->item = eg_is_batched(view) ? panels.panels * side->panel : 0;
}

_Static_assert(sizeof(outer_job) <= EG_CPU_JOB, "a job");

void eg_cpu_outer_product(const eg_cpu_run *run, const eg_step *step) {
    const eg_cpu_step *detail = eg_cpu_detail(step);
    if (eg_cpu_has_dots(detail->kernel)) {
        eg_cpu_outer_dots(run, step);
        return;
    }
    const eg_op *op = &run->list->op[step->op];
    outer_job own, *job = eg_cpu_job(run, &own);
    *job = (outer_job){.run = run,
                       .kernel = detail->kernel,
                       .op = op,
                       .out = eg_cpu_bind(run->call, &op->out),
                       .mc = step->tile_rows,
                       .nc = step->tile_cols,
                       .part = detail->part};
    const bool turned = op->left.transposed;
    find_side(&job->a, job, &op->left, detail->left, turned ? op->depth : op->rows,
              turned ? op->rows : op->depth);
    find_side(&job->b, job, &op->right, detail->right, op->depth, op->cols);
    job->row_blocks = eg_ceil_div(op->rows, job->mc);
    job->col_blocks = eg_ceil_div(op->cols, job->nc);
    job->stores_result = eg_cpu_outer_stores_sums(op) && job->out.data != NULL;
    job->turns_left = job->a.panels != NULL ? turned
                                            : job->stores_result && job->a.operand.row_stride == 1 &&
                                                  job->a.operand.col_stride != 1;
    eg_cpu_prepare_epilogue(run, step, &job->epilogue);
    const eg_term *act = eg_term_of(op, EG_TERM_ACT);
    job->is_relu = act != NULL && act->activation == EG_ACT_RELU;
    job->acts_by_rows =
        !job->stores_result && eg_cpu_outer_acts_by_rows(job->kernel, op) && job->out.data != NULL;
    job->pre = job->stores_result || job->acts_by_rows ? job->epilogue.pre : NULL;
    job->grads_by_rows = eg_cpu_epilogue_takes_rows(&job->epilogue, op->cols);
    job->finishes = (job->stores_result && (job->epilogue.bias != NULL || job->is_relu)) ||
                    ((job->acts_by_rows || job->grads_by_rows) && job->epilogue.bias != NULL);
    job->by_copies = job->epilogue.non_temporal && eg_cpu_outer_copies(job->kernel, op);
    if (job->nc > job->part)
        job->left_bytes =
            eg_cpu_outer_left_numbers(job->kernel, 1, op->depth) * (int64_t)eg_size_of(job->kernel->compute);
    eg_cpu_share(run, step->threads, op->items * job->row_blocks * job->col_blocks, run_block, job);
}

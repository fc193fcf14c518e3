/* The blocked product: every tile of the result is summed by one thread in one order, so that the bits do
 * not depend on the number of threads.
 *
 *   for each block of the result (tile_rows x tile_cols; shared out among the threads)
 *     for each kc terms of the depth (of each item that is summed)
 *       for each panel of the right operand    kc x nr      stays in L2, and in L1 as far as it goes
 *         for each mr rows of the left operand mr x kc      streams from L2
 *           multiply into the tile             mr x nr      in registers
 *           after the last terms: the epilogue              in L1
 */
#include <string.h>

#include "cpu.h"
#include "epilogue.h"

/* Where an operand keeps what a product reads. Bytes: from term to term, and from index to index of the
 * dimension that the result has: `in_panel` within a panel of `panel` indices, `panels` from one panel to
 * the next. */
typedef struct side {
    const char *data;
    int64_t item, term, in_panel, panels, panel;
    bool in_place;    /* where its caller has it, not in a copy */
    eg_factor factor; /* as the kernel reads it, wherever it begins */
} side;

typedef struct product {
    const eg_cpu_run *run;
    const eg_step *step;
    const eg_cpu_kernel *kernel;
    size_t size; /* bytes of a number of the tile */
    int64_t rows, cols, depth;
    int64_t items, summed;   /* results, and products summed into each */
    int64_t bands, strips;   /* blocks down and across */
    const eg_operand *out;   /* the result, row by row; NULL: goes elsewhere */
    const eg_operand *asked; /* rows that the end of a tile will touch, and that are asked for early; NULL:
                                those of a panel, if any */
    const eg_operand *read;  /* and these too, of panels; NULL: none */
    bool sums_are_result;    /* as they leave the kernel */
    side left, right;
    eg_operand b; /* terms x columns, if each block lays it out for itself, panel by panel */
    eg_ending ending;
} product;

/* ---- The operands of each product --------------------------------------------------------------- */

/* How the operand lies in memory, and whether each item of the batch has its own. */
static const char *data_of(const eg_cpu_run *run, const eg_cpu_kernel *kernel, eg_buffer_id id,
                           bool *per_item) {
    const eg_problem *p = run->problem;
    *per_item = true;
    if (id == EG_BUFFER_A || id == EG_BUFFER_AT) *per_item = p->operands[EG_OP_A].batch_stride != 0;
    if (id != EG_BUFFER_B && id != EG_BUFFER_BT) return eg_cpu_region(run, id);
    if (p->packed_b == NULL) {
        *per_item = p->operands[EG_OP_B].batch_stride != 0;
        return eg_cpu_region(run, id);
    }
    *per_item = p->packed_b->batched;
    const eg_packed *packed = p->packed_b;
    const eg_region *panels = id == EG_BUFFER_B ? &packed->forward : &packed->transposed;
    const eg_region *cells = id == EG_BUFFER_B ? &packed->forward_cells : &packed->transposed_cells;
    return (const char *)packed->data + (kernel->terms > 0 ? cells : panels)->offset;
}

typedef enum role { PLAIN, TRANSPOSED, RIGHT } role;

/* A distance that is never gone, of one row or item, may be any number: then so is the product. */
static int64_t times(int64_t distance, int64_t factor) {
    return (int64_t)((uint64_t)distance * (uint64_t)factor);
}

static side side_in_place(const eg_operand *x, bool terms_down, int64_t nr) {
    static const char nothing[1];
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    const int64_t term = terms_down ? x->row_stride : x->col_stride,
                  index = terms_down ? x->col_stride : x->row_stride;
    return (side){.data = x->data != NULL ? eg_cpu_at(x, 0, 0, 0) : nothing,
                  .item = times(x->batch_stride, size),
                  .term = times(term, size),
                  .in_panel = times(index, size),
                  .panel = INT64_MAX,
                  .in_place = true,
                  .factor = {.index = index, .term = term, .group = times(term, nr)}};
}

/* The operand in `id`, of `terms` summed terms and `count` rows (columns) of the result. */
static side side_of(const eg_cpu_run *run, const eg_cpu_kernel *kernel, eg_buffer_id id, role role,
                    int64_t terms, int64_t count) {
    const eg_operand *in_place = eg_cpu_in_place(run->plan, id);
    if (in_place != NULL) return side_in_place(in_place, role == TRANSPOSED || id == EG_BUFFER_B, kernel->nr);
    bool per_item;
    side s = {.data = data_of(run, kernel, id, &per_item)};
    const int64_t size = (int64_t)eg_size_of(kernel->compute), nr = kernel->nr;
    if (kernel->terms > 0) {
        const eg_cell_grid grid = eg_cell_grid_of(kernel->terms, count, terms);
        s.term = (int64_t)grid.cell / EG_CELL;
        s.panels = grid.across * (int64_t)grid.cell;
        s.in_panel = s.panels / EG_CELL;
        s.panel = INT64_MAX;
        s.item = grid.rows * s.panels;
    } else if (role == PLAIN) { /* [count, terms]: rows of nr terms, panel after panel of terms */
        const eg_panels panels = eg_cpu_panels(kernel, count, terms);
        s.term = panels.apart * size; /* terms come by whole panels */
        s.in_panel = nr * size;
        s.panel = INT64_MAX;
        s.item = panels.panels * panels.apart * nr * size;
        s.factor = (eg_factor){.index = nr, .term = 1, .group = panels.apart * nr};
    } else { /* [terms, count] */
        const eg_panels panels = eg_cpu_panels(kernel, terms, count);
        s.term = nr * size;
        s.in_panel = size;
        s.panel = nr;
        s.panels = panels.apart * nr * size;
        s.item = panels.panels * s.panels;
        s.factor = (eg_factor){.index = 1, .term = nr, .group = nr * nr};
    }
    if (!per_item) s.item = 0;
    return s;
}

/* What is summed over, and how wide the result is, decides how a product reads; the buffer, where. */
static void choose_sides(product *x, eg_buffer_id left, role role, eg_buffer_id right) {
    static const side nothing = {.data = "", .panel = INT64_MAX};
    x->left = x->right = nothing;
    if (x->rows == 0 || x->cols == 0 || x->items == 0) return; /* the other sizes may be any */
    x->left = side_of(x->run, x->kernel, left, role, x->depth, x->rows);
    x->right = side_of(x->run, x->kernel, right, RIGHT, x->depth, x->cols);
}

/* What the end of a tile stores to; or grad, where that goes to cells: as many lines at once as a tile has
 * would stand in the way of the tile loads. */
static const eg_operand *asked_operand(const product *x) {
    const eg_operand *grad = &x->run->problem->operands[EG_OP_GRAD];
    const bool reads_grad = x->kernel->terms > 0 && x->step->epilogue == EG_EPILOGUE_ACT_GRAD;
    return reads_grad && grad->col_stride == 1 ? grad : x->out;
}

static product make_product(const eg_cpu_run *run, const eg_step *step) {
    const eg_problem *p = run->problem;
    product x = {.run = run, .step = step, .kernel = step->kernel, .items = p->batch, .summed = 1};
    const bool one_copy = x.kernel->terms == 0; /* of A and of grad_pre, for both of their products */
    const eg_operand *out = &p->operands[EG_OP_Y];
    x.size = eg_size_of(x.kernel->compute);
    x.ending = eg_cpu_ending(run, step);
    if (step->packs) x.b = p->operands[EG_OP_B];
    if (step->packs && step->product == EG_PRODUCT_D_A) x.b = eg_cpu_transpose(x.b);
    switch (step->product) {
    case EG_PRODUCT_PRE:
        x.rows = p->m, x.cols = p->n, x.depth = p->k;
        choose_sides(&x, EG_BUFFER_A, PLAIN, EG_BUFFER_B);
        break;
    case EG_PRODUCT_D_A:
        x.rows = p->m, x.cols = p->k, x.depth = p->n;
        choose_sides(&x, EG_BUFFER_GRAD_PRE, PLAIN, EG_BUFFER_BT);
        out = &p->operands[EG_OP_D_A];
        break;
    case EG_PRODUCT_D_B:
        x.rows = p->k, x.cols = p->n, x.depth = p->m;
        choose_sides(&x, one_copy ? EG_BUFFER_A : EG_BUFFER_AT, TRANSPOSED,
                     one_copy ? EG_BUFFER_GRAD_PRE : EG_BUFFER_GRAD_PRE_T);
        out = &p->operands[EG_OP_D_B];
        break;
    }
    if (step->product != EG_PRODUCT_PRE && out->batch_stride == 0) x.items = 1, x.summed = p->batch;
    const int64_t nr = x.kernel->nr;
    if (step->packs) x.right.factor = (eg_factor){.index = 1, .term = nr, .group = nr * nr};
    if (step->epilogue != EG_EPILOGUE_ACT_GRAD && out->col_stride == 1) x.out = out;
    x.asked = x.ending.past ? NULL : asked_operand(&x);
    if (x.kernel->terms == 0) x.read = eg_cpu_ending_reads(&x.ending);
    if (x.read == x.asked) x.read = NULL; /* d_b, added to */
    x.sums_are_result = x.out != NULL && step->epilogue == EG_EPILOGUE_STORE && x.kernel->terms == 0 &&
                        out->dtype == x.kernel->compute &&
                        !(step->product == EG_PRODUCT_D_B && p->accumulate);
    x.bands = eg_ceil_div(x.rows, step->tile_rows);
    x.strips = eg_ceil_div(x.cols, step->tile_cols);
    return x;
}

/* The operand's index `at` from term `term` on. */
static const char *side_at(const side *s, int64_t item, int64_t at, int64_t term) {
    const int64_t panel = at < s->panel ? 0 : eg_div(at, s->panel);
    return s->data + item * s->item + panel * s->panels + (at - panel * s->panel) * s->in_panel +
           term * s->term;
}

/* ---- One block ---------------------------------------------------------------------------------- */

typedef struct block {
    int64_t item, row, col, rows, cols;
    char *tiles;       /* down each panel and then across, or two that take turns */
    char *spare;       /* scratch for the epilogue */
    char *panel;       /* and for a panel of the right operand */
    eg_held *held;     /* the last tile's sums */
    eg_finish *finish; /* the end of the last tile that is through */
} block;

/* The terms [term, term + depth) of product number `summand`. The last pass has the time to ask for the lines
 * that the end of a tile reads and stores to; asked for before, they would be gone by then, or something else
 * would. */
typedef struct pass {
    int64_t summand, term, depth, slices;
    bool first, last;
} pass;

/* Steps down the left operand tile by tile; the division is for where a panel ends. */
typedef struct walk {
    const side *side;
    const char *at;
    int64_t item, term, in_panel;
} walk;

static void walk_to(walk *w, int64_t row) {
    w->at = side_at(w->side, w->item, row, w->term);
    w->in_panel = row < w->side->panel ? row : row - eg_div(row, w->side->panel) * w->side->panel;
}

static void walk_on(walk *w, int64_t row, int64_t rows) {
    w->at += rows * w->side->in_panel;
    w->in_panel += rows;
    if (w->in_panel >= w->side->panel) walk_to(w, row + rows);
}

/* Whether the sums are the result, and their place is the caller's: a tile of whole rows and vectors. */
static bool ends_in_place(const product *x, const eg_tile *tile) {
    return x->sums_are_result && tile->rows == x->kernel->mr && (tile->cols & (x->kernel->lanes - 1)) == 0;
}

/* One tile: all terms of the pass, and after the last of them the epilogue: at once, or during the next
 * tile. */
static void run_tile(const product *x, const block *b, const pass *pass, const eg_factor *left,
                     const eg_factor *right, eg_ahead *ahead, const eg_tile *tile) {
    if (pass->last && x->read == NULL) eg_cpu_ending_prefetch(&x->ending, tile, x->asked);
    ahead->rows = pass->last ? tile->rows : 0;
    ahead->of = b->finish;
    ahead->meanwhile = eg_cpu_finish_some;
    ahead->steps = b->finish->ending != NULL ? b->finish->steps - b->finish->step : 0;
    const bool in_place = pass->last && ends_in_place(x, tile);
    const eg_sums sums = {.before = pass->first ? NULL : tile->values,
                          .to = in_place ? eg_cpu_at(x->out, tile->item, tile->row, tile->col) : tile->values,
                          .row = in_place ? x->out->row_stride : x->kernel->nr,
                          .past = in_place && x->ending.past,
                          .held = b->held};
    x->kernel->multiply(left, right, pass->depth, tile->cols, &sums, ahead);
    if (!pass->last || in_place) return;
    eg_cpu_finish_rest(b->finish);
    eg_cpu_finish_begin(b->finish, &x->ending, tile);
    if (!x->ending.leisurely) eg_cpu_finish_rest(b->finish);
}

/* What follows the `width` columns at `col` of `item`: as many, or the first of the next pass, summand or
 * block. */
static eg_part part_after(const product *x, const block *b, const pass *pass, int64_t *item, int64_t col,
                          int64_t width) {
    eg_part next = {.term = pass->term, .depth = pass->depth, .col = col + width};
    if (next.col >= b->col + b->cols && !pass->last) {
        next.col = b->col;
        next.term += pass->depth;
        if (next.term >= x->depth) next.term = 0, ++*item;
    } else if (next.col >= b->col + b->cols) {
        next.col = next.col < x->cols ? next.col : 0;
        next.term = 0;
    }
    next.depth = eg_least(x->step->depth, x->depth - next.term);
    next.cols = eg_least(width, x->cols - next.col);
    return next;
}

/* The operand's rows of the tile. */
static eg_asked rows_of(const eg_operand *x, const eg_tile *tile) {
    const int64_t size = (int64_t)eg_size_of(x->dtype);
    return (eg_asked){eg_cpu_at(x, tile->item, tile->row, tile->col), times(x->row_stride, size),
                      tile->cols * size};
}

/* Those of the panel of grad_pre that it goes to. */
static eg_asked panel_rows(const product *x, const eg_tile *tile) {
    return (eg_asked){eg_cpu_ending_panel(&x->ending, tile), x->kernel->nr * (int64_t)x->size,
                      tile->cols * (int64_t)x->size};
}

/* Cells: the rows of B that the next panel will be laid out from, a share of them with each tile. Lines far
 * apart come at half the speed: so of rows that would be a line each, rather those of the next pass, all
 * columns of the block. */
static void ask_for_rows(eg_ahead *ahead, const product *x, const block *b, const pass *pass, int64_t item,
                         int64_t col) {
    enum { LINE = 64 };
    const bool down = x->b.col_stride == 1;
    if (!down && x->b.row_stride != 1) return;
    const int64_t nr = x->kernel->nr, size = (int64_t)eg_size_of(x->b.dtype);
    const bool whole = down && nr * size <= LINE;
    const eg_part part = part_after(x, b, pass, &item, whole ? b->col : col, whole ? b->cols : nr);
    const int64_t rows = down ? part.depth : part.cols, tiles_down = eg_ceil_div(b->rows, x->kernel->mr);
    const int64_t each = eg_ceil_div(rows, tiles_down * (whole ? eg_ceil_div(b->cols, nr) : 1));
    const int64_t before = whole ? eg_div(col - b->col, nr) * tiles_down * each : 0;
    if (part.depth == 0 || before >= rows) return;
    ahead->b_rows = each;
    ahead->b = (eg_asked){eg_cpu_at(&x->b, item, part.term + before, part.col),
                          rows > 1 ? times(down ? x->b.row_stride : x->b.col_stride, size) : 0,
                          (down ? part.cols : part.depth) * size};
}

/* Cells: the next panel, and strips of the left operand, which have no other prefetcher, for the next pass or
 * again for the next block. */
static void ask_for_cells(eg_ahead *ahead, const product *x, const block *b, const pass *pass, int64_t item,
                          int64_t col) {
    const eg_cpu_kernel *kernel = x->kernel;
    const int64_t tiles_down = eg_ceil_div(b->rows, kernel->mr);
    if (x->step->packs) {
        ask_for_rows(ahead, x, b, pass, item, col);
    } else {
        const eg_part next = part_after(x, b, pass, &item, col, kernel->nr);
        ahead->right = side_at(&x->right, item, next.col, next.term);
        ahead->right_bytes = (size_t)eg_div(pass->depth * x->right.term, tiles_down);
    }
    if (!x->step->one_pass) /* which reads the same again */
        ahead->left_bytes = (size_t)(pass->depth * x->left.term / eg_ceil_div(b->cols, kernel->nr));
}

/* What is fetched meanwhile, a slice with each tile: cells, and rows that the end of a tile touches. */
static void look_ahead(eg_ahead *ahead, const product *x, const block *b, const pass *pass, int64_t item,
                       const eg_tile *tile) {
    if (x->kernel->terms > 0) ask_for_cells(ahead, x, b, pass, item, tile->col);
    if (!pass->last) return;
    ahead->row_slice = eg_ceil_div(x->kernel->mr, pass->slices);
    if (x->asked != NULL) {
        ahead->out = rows_of(x->asked, tile);
    } else if (x->ending.panels != NULL) {
        ahead->out = panel_rows(x, tile);
    }
    if (x->read != NULL) ahead->in = rows_of(x->read, tile);
}

/* Panels: what comes next of an operand, as lists of rows that are as long as a panel's. Each of some tiles
 * asks for a share of one list. */
typedef struct wanted {
    const char *list;       /* the first row of this list, */
    int64_t lists, apart;   /* of so many, so many bytes apart */
    int64_t length, stride; /* its rows, and bytes from one to the next; no rows: nothing is wanted */
    const char *at;         /* of this list the next share's, */
    int64_t left;           /* and what is left of it */
    int64_t share, slice;
} wanted;

/* Tiles before `tile`, of so many, have had their shares. As many rows with every slice of a tile: what goes
 * past the share costs less than a branch that is guessed wrong. */
static void share_out(wanted *w, int64_t tile, int64_t tiles, int64_t slices) {
    if (w->length == 0) return;
    const int64_t a_list = tiles > w->lists ? eg_div(tiles, w->lists) : 1, before = eg_div(tile, a_list);
    w->share = eg_ceil_div(w->length, a_list);
    w->slice = eg_ceil_div(w->share, slices);
    w->lists -= before;
    w->list += before * w->apart;
    const int64_t row = eg_least((tile - before * a_list) * w->share, w->length);
    w->at = w->list + row * w->stride;
    w->left = w->length - row;
}

static void next_share(eg_share *share, wanted *w) {
    if (w->length == 0) return;
    share->at = w->at, share->stride = w->stride, share->slice = w->lists > 0 ? w->slice : 0;
    w->at += w->share * w->stride;
    w->left -= w->share;
    if (w->left > 0) return;
    w->lists--;
    w->at = w->list += w->apart;
    w->left = w->length;
}

/* The panel that comes next, or the part of B that it will be laid out from: rows of it, or of its transpose
 * pieces of rows. */
static wanted next_right(const product *x, const block *b, const pass *pass, int64_t item, int64_t col) {
    const eg_part next = part_after(x, b, pass, &item, col, x->kernel->nr);
    const int64_t line = x->kernel->nr * (int64_t)x->size, size = (int64_t)eg_size_of(x->b.dtype);
    if (!x->step->packs && x->right.in_place) return (wanted){.length = 0};
    if (!x->step->packs)
        return (wanted){.list = side_at(&x->right, item, next.col, next.term),
                        .lists = 1,
                        .length = next.depth,
                        .stride = line};
    wanted w = {.list = eg_cpu_at(&x->b, item, next.term, next.col), .lists = 1, .length = next.depth};
    if (x->b.col_stride != 1) {
        w.lists = eg_ceil_div(next.depth * size, line);
        w.apart = line;
        w.length = x->b.row_stride == 1 ? next.cols : 0;
    }
    if (w.length > 1) w.stride = (x->b.col_stride == 1 ? x->b.row_stride : x->b.col_stride) * size;
    return w;
}

/* The left operand of the next pass, of the next summand's first one, or of the next block's; a single pass
 * reads the same again. A prefetcher sees a row or a column of it at a time, of a few lines. */
static wanted next_left(const product *x, const block *b, const pass *pass, int64_t item) {
    const side *left = &x->left;
    if (left->in_place || x->depth <= x->step->depth) return (wanted){.length = 0};
    const int64_t nr = x->kernel->nr, after = pass->term + pass->depth, term = after < x->depth ? after : 0;
    const int64_t depth = eg_least(x->step->depth, x->depth - term);
    const bool transposed = left->panel == nr;
    const int64_t past = transposed ? b->row - eg_div(b->row, nr) * nr : 0; /* of a panel's columns */
    return (wanted){
        .list = side_at(left, term == 0 && !pass->last ? item + 1 : item, b->row - past, term),
        .lists = eg_ceil_div(transposed ? past + b->rows : depth, nr),
        .apart = transposed ? left->panels : nr * left->term,
        .length = transposed ? depth : b->rows,
        .stride = nr * (int64_t)x->size,
    };
}

static void next_rows(eg_ahead *ahead, int64_t rows) {
    if (ahead->out.at != NULL) ahead->out.at += rows * ahead->out.stride;
    if (ahead->in.at != NULL) ahead->in.at += rows * ahead->in.stride;
}

/* The panel at `col`, where it is; or as the block lays it out. */
static const char *right_panel(const product *x, const block *b, const pass *pass, int64_t item,
                               int64_t col) {
    if (!x->step->packs) return side_at(&x->right, item, col, pass->term);
    const eg_part part = {
        .term = pass->term, .depth = pass->depth, .col = col, .cols = eg_least(x->kernel->nr, x->cols - col)};
    eg_cpu_pack_part(x->run, x->kernel, &x->b, item, &part, b->panel);
    return b->panel;
}

/* One panel of the block: all its rows against the panel at `col`. */
static void run_panel(const product *x, const block *b, const pass *pass, int64_t col) {
    const eg_cpu_kernel *kernel = x->kernel;
    const int64_t item = x->summed > 1 ? pass->summand : b->item, nr = kernel->nr, mr = kernel->mr;
    const int64_t tiles_down = eg_ceil_div(b->rows, mr), panel = eg_div(col - b->col, nr);
    const size_t tile_bytes = (size_t)(mr * nr) * x->size;
    eg_factor rows = x->left.factor, right = x->right.factor;
    right.at = right_panel(x, b, pass, item, col);
    walk left = {.side = &x->left, .item = item, .term = pass->term};
    walk_to(&left, b->row);
    const int64_t to_next = pass->last ? -pass->term : pass->depth;
    eg_tile tile = {.item = b->item,
                    .row = b->row,
                    .col = col,
                    .rows = eg_least(mr, b->rows),
                    .cols = eg_least(nr, x->cols - col),
                    .spare = b->spare};
    int64_t place = panel * tiles_down;
    eg_ahead ahead = {.right = right.at};
    look_ahead(&ahead, x, b, pass, item, &tile);
    wanted next = {.length = 0}, next_pass = next;
    if (kernel->terms == 0) {
        next = next_right(x, b, pass, item, col);
        next_pass = next_left(x, b, pass, item);
        share_out(&next, 0, tiles_down, pass->slices);
        share_out(&next_pass, panel * tiles_down, tiles_down * eg_ceil_div(b->cols, nr), pass->slices);
    }
    for (; tile.row < b->row + b->rows; tile.row += mr) {
        tile.rows = eg_least(mr, x->rows - tile.row);
        tile.values = b->tiles + (size_t)(x->step->one_pass ? place & 1 : place) * tile_bytes;
        place++;
        if (tile.row > b->row) next_rows(&ahead, mr);
        ahead.left = left.at + to_next * x->left.term + panel * (int64_t)ahead.left_bytes;
        rows.at = left.at;
        next_share(&ahead.next_right, &next);
        next_share(&ahead.next_left, &next_pass);
        run_tile(x, b, pass, &rows, &right, &ahead, &tile);
        ahead.right += ahead.right_bytes;
        if (ahead.b.at != NULL) ahead.b.at += ahead.b_rows * ahead.b.stride;
        walk_on(&left, tile.row, mr);
    }
}

static void run_pass(const product *x, const block *b, pass *pass) {
    pass->slices = pass->depth > 0 ? eg_ceil_div(pass->depth, x->kernel->nr) : 1;
    for (int64_t col = b->col; col < b->col + b->cols; col += x->kernel->nr) run_panel(x, b, pass, col);
}

/* Stores past the caches keep no order with others. Whoever reads on another thread does so after this one's
 * have arrived. */
static void order_stores(void) {
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* A product of no terms is a block of zeros; its epilogue is run all the same. */
static void run_block(void *arg, int64_t index, int thread) {
    const product *x = arg;
    const eg_cpu_kernel *kernel = x->kernel;
    const size_t tile = (size_t)(kernel->mr * kernel->nr) * x->size;
    eg_finish finish;
    eg_held held;
    finish.ending = NULL;
    held.to = NULL, held.row = EG_CELL;
    const int64_t down = eg_div(index, x->strips), item = eg_div(down, x->bands);
    block b = {.item = item,
               .row = (down - item * x->bands) * x->step->tile_rows,
               .col = (index - down * x->strips) * x->step->tile_cols,
               .spare = eg_cpu_scratch(x->run, thread),
               .held = &held,
               .finish = &finish};
    b.rows = eg_least(x->step->tile_rows, x->rows - b.row);
    b.cols = eg_least(x->step->tile_cols, x->cols - b.col);
    b.tiles = b.spare + EG_CPU_SPARE_TILES * tile;
    b.panel = b.tiles + (size_t)eg_cpu_held_tiles(kernel, x->step) * tile;
    const int64_t kc = x->step->depth, passes = eg_ceil_div(x->depth, kc);
    if (kernel->enter != NULL) kernel->enter();
    for (int64_t summand = 0; summand < x->summed; summand++) {
        for (int64_t i = 0; i < passes; i++) {
            run_pass(x, &b,
                     &(pass){.summand = summand,
                             .term = i * kc,
                             .depth = eg_least(kc, x->depth - i * kc),
                             .first = summand == 0 && i == 0,
                             .last = summand == x->summed - 1 && i == passes - 1});
        }
    }
    if (x->summed == 0 || passes == 0) run_pass(x, &b, &(pass){.first = true, .last = true});
    if (kernel->settle != NULL) kernel->settle(&held);
    eg_cpu_finish_rest(&finish);
    if (x->ending.past) order_stores();
    if (kernel->leave != NULL) kernel->leave();
}

void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step) {
    product x = make_product(run, step);
    if (x.rows == 0 || x.cols == 0 || x.items == 0) return;
    eg_cpu_parallel(run->plan->threads, step->threads, x.items * x.bands * x.strips, run_block, &x);
}

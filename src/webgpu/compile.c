/* SPDX-License-Identifier: Apache-2.0 */
/* From operations to passes, each of them a step of the program. Pure. */
#include <string.h>

#include "core/error.h"
#include "core/sizes.h"
#include "pass.h"

/* The column sums of a matrix, in parts that a REDUCE adds up. */
typedef struct column_sums {
    int op;      /* whose values they are of */
    int product; /* that reads them all and makes the sums on its way; EG_NO_OP: passes of their own */
    bool alone;  /* that operation has no step but this */
    int64_t each, items; /* parts of an item, and items that have parts of their own */
    eg_webgpu_operand at;
} column_sums;

typedef struct compiler {
    const eg_webgpu_caps *device;
    eg_program *program;
    const eg_op_list *list;
    const eg_op *op; /* that is being compiled */
    int index;       /* of it */
    eg_webgpu_choice choice[EG_MAX_OPS];
    eg_webgpu_operand temporary[EG_MAX_TEMPORARIES];
    column_sums sums[EG_MAX_TEMPORARIES];
    int next_region;
    size_t scratch, kept, used; /* bytes: in all; up to where column sums lie; that are taken now */
    eg_status status;           /* the first failure */
} compiler;

/* ---- Operands ----------------------------------------------------------------------------------- */

static const eg_webgpu_operand nowhere = {.space = EG_WEBGPU_NOWHERE};

static eg_webgpu_operand transposed(eg_webgpu_operand x) {
    const int64_t row = x.row;
    x.row = x.col, x.col = row;
    return x;
}

/* The pack is a dense copy of b as it is given. */
static eg_webgpu_operand packed_b(const eg_view *view) {
    const eg_webgpu_operand x = {.space = EG_WEBGPU_PACKED_B,
                                 .id = (uint8_t)view->id,
                                 .dtype = (uint8_t)view->dtype,
                                 .offset = view->offset,
                                 .row = view->transposed ? view->rows : view->cols,
                                 .col = 1,
                                 .item = view->batch_stride != 0 ? view->rows * view->cols : 0};
    return view->transposed ? transposed(x) : x;
}

static eg_webgpu_operand operand_of(const compiler *c, const eg_view *view) {
    switch (view->space) {
    case EG_OPERAND:
        return (eg_webgpu_operand){.space = EG_WEBGPU_OPERAND,
                                   .id = (uint8_t)view->id,
                                   .dtype = (uint8_t)view->dtype,
                                   .offset = view->offset,
                                   .row = view->row_stride,
                                   .col = view->col_stride,
                                   .item = view->batch_stride};
    case EG_PACKED_B:
        return packed_b(view);
    case EG_TEMPORARY:
        return view->transposed ? transposed(c->temporary[view->id]) : c->temporary[view->id];
    case EG_ABSENT:
        break;
    }
    return nowhere;
}

static bool is_same(const eg_webgpu_operand *x, const eg_webgpu_operand *y) {
    return x->space == y->space && x->id == y->id && x->offset == y->offset && x->dtype == y->dtype;
}

/* [rows, cols] read as a left operand (rows, depth) or a right one (depth, cols). */
static eg_webgpu_operand as_left(eg_webgpu_operand x) {
    x.depth = x.col, x.col = 0;
    return x;
}
static eg_webgpu_operand as_right(eg_webgpu_operand x) {
    x.depth = x.row, x.row = 0;
    return x;
}

static void fail(compiler *c, eg_status status) {
    if (c->status == EG_OK) c->status = status;
}

/* What is bound begins at a multiple of this. */
enum { ALIGN = 256 };

static bool add_scratch(compiler *c, int64_t count, int64_t each) {
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes) || __builtin_mul_overflow(bytes, sizeof(float), &bytes) ||
        __builtin_add_overflow(c->used, bytes, &bytes) || bytes > SIZE_MAX / 2 - ALIGN)
        return false;
    c->used = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (c->used > c->scratch) c->scratch = c->used;
    return true;
}

/* Room for dense f32 matrices. That in the scratch is free again after the operation. */
static eg_webgpu_operand reserve(compiler *c, eg_webgpu_space space, const char *name, int64_t items,
                                 int64_t rows, int64_t cols) {
    eg_webgpu_operand x = {.space = (uint8_t)space, .dtype = EG_F32, .row = cols, .col = 1};
    const size_t taken = c->used;
    bool fits = !__builtin_mul_overflow(rows, cols, &x.item);
    if (space == EG_WEBGPU_WORKSPACE) {
        const int region = c->next_region++;
        fits = fits && eg_add_region(c->program, region, name, items, x.item, sizeof(float), ALIGN);
        x.offset = (int64_t)(c->program->region[region].offset / sizeof(float));
    } else {
        fits = fits && add_scratch(c, items, x.item);
        x.offset = (int64_t)(taken / sizeof(float));
    }
    if (!fits) fail(c, eg_too_large(c->list));
    return x;
}

/* ---- Passes ------------------------------------------------------------------------------------- */

/* Outputs are written along their rows; a column-major one is the transpose of the transposed product. */
static void orient(eg_webgpu_pass *pass) {
    eg_webgpu_operand *at = pass->at;
    if (pass->kernel->shape == EG_SHAPE_COLUMN_SUM || at[EG_OUT].col == 1 || at[EG_OUT].row != 1) return;
    const int64_t rows = pass->rows;
    pass->rows = pass->cols, pass->cols = rows;
    pass->bias_by_row = !pass->bias_by_row;
    pass->sums_by_row = !pass->sums_by_row;
    for (int i = 0; i < EG_BINDINGS; i++) at[i] = transposed(at[i]);
    if (pass->kernel->shape != EG_SHAPE_PRODUCT) return;
    const eg_webgpu_operand left = at[EG_LEFT];
    at[EG_LEFT] = at[EG_RIGHT], at[EG_RIGHT] = left;
}

static eg_status count_block(void *arg, const eg_webgpu_pass *pass, const eg_webgpu_block *block) {
    (void)pass, (void)block;
    ++*(int64_t *)arg;
    return EG_OK;
}

/* A pass is a step, with a launch for each of its blocks. */
static void emit(compiler *c, eg_webgpu_pass pass) {
    const eg_webgpu_kernel *kernel = pass.kernel;
    if (c->status != EG_OK) return;
    orient(&pass);
    eg_step *step = eg_add_step(c->program, c->index, kernel->name);
    if (kernel->shape == EG_SHAPE_PRODUCT) {
        step->tile_rows = kernel->rows;
        step->tile_cols = kernel->cols;
        step->k_block = kernel->depth;
    }
    for (int i = 0; i < c->list->temporaries && pass.sums; i++) {
        if (c->sums[i].product == c->index && c->sums[i].alone) step->also |= 1U << c->sums[i].op;
    }
    step->splits = pass.splits;
    step->launches = 0;
    fail(c, eg_webgpu_each_block(c->device, &pass, count_block, &step->launches));
    step->microseconds = eg_webgpu_estimate(c->device, &pass, step->launches);
    memcpy(step->detail, &pass, sizeof pass);
}

static eg_webgpu_pass elementwise_pass(const eg_op *op, eg_webgpu_operand from, eg_webgpu_operand to) {
    return (eg_webgpu_pass){.kernel = &eg_webgpu_elementwise,
                            .items = op->items,
                            .rows = op->rows,
                            .cols = op->cols,
                            .depth = 1,
                            .splits = 1,
                            .at = {[EG_LEFT] = from, [EG_OUT] = to}};
}

/* The epilogue of a product whose parts are in `from`: what was asked of `pass` itself. */
static void emit_epilogue(compiler *c, const eg_webgpu_pass *pass, eg_webgpu_operand from, int64_t parts) {
    eg_webgpu_pass epilogue = *pass;
    epilogue.kernel = &eg_webgpu_elementwise;
    epilogue.at[EG_LEFT] = from;
    epilogue.at[EG_RIGHT] = nowhere;
    epilogue.items = c->op->items;
    epilogue.depth = parts, epilogue.splits = 1, epilogue.chunk = 0;
    epilogue.scaled = false; /* the parts are */
    if (epilogue.sums) epilogue.at[EG_EXTRA] = nowhere;
    epilogue.sums = false;
    emit(c, epilogue);
}

/* The bare product, in f32 parts. */
static eg_webgpu_operand emit_parts(compiler *c, const eg_webgpu_pass *pass) {
    eg_webgpu_pass bare = *pass;
    const int64_t items = c->op->items;
    eg_webgpu_operand parts =
        reserve(c, EG_WEBGPU_SCRATCH, NULL, items * pass->splits, pass->rows, pass->cols);
    parts.depth = parts.item * items;
    if (c->op->summed > 1) parts.item = 0;
    bare.epilogue = EG_WEBGPU_STORE;
    bare.activation = EG_ACT_NONE;
    bare.accumulate = bare.bias = false;
    if (!bare.sums) bare.at[EG_EXTRA] = nowhere;
    bare.at[EG_OUT] = parts;
    emit(c, bare);
    return parts;
}

/* What is summed over matrices, or over more terms than one dispatch reaches, is added up in its output: that
 * takes one in f32, and an epilogue that may be done before it. */
static bool is_one_pass(const compiler *c, const eg_webgpu_pass *pass) {
    if (pass->kernel->shape != EG_SHAPE_PRODUCT) return true;
    const bool plain = pass->epilogue == EG_WEBGPU_STORE && !pass->bias && pass->at[EG_OUT].dtype == EG_F32;
    return pass->splits == 1 &&
           (plain || (c->op->summed == 1 && eg_webgpu_reach(c->device, pass) >= pass->depth));
}

static void emit_values(compiler *c, const eg_webgpu_pass *pass) {
    if (is_one_pass(c, pass)) {
        emit(c, *pass);
    } else {
        emit_epilogue(c, pass, emit_parts(c, pass), pass->splits);
    }
}

/* `to` = `from`, rounded. */
static void emit_copy(compiler *c, eg_webgpu_operand from, eg_webgpu_operand to, bool accumulate) {
    eg_webgpu_pass pass = elementwise_pass(c->op, from, to);
    pass.accumulate = accumulate;
    emit(c, pass);
}

/* ---- Terms -------------------------------------------------------------------------------------- */

static bool changes(const eg_term *term) {
    return term->kind != EG_TERM_STORE && term->kind != EG_TERM_COLUMN_SUMS;
}

/* The values are what `left` has. */
static bool is_unchanged(const eg_op *op) {
    if (op->kind == EG_GEMM) return false;
    for (int i = 0; i < op->terms; i++) {
        if (changes(&op->term[i])) return false;
    }
    return true;
}

/* Whether a value is stored before its last change. */
static bool stores_before(const eg_op *op) {
    bool stored = false;
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind == EG_TERM_STORE) stored = true;
        if (stored && changes(&op->term[i])) return true;
    }
    return false;
}

static void set_act_grad(const compiler *c, eg_webgpu_pass *pass, const eg_term *term, int epilogue) {
    pass->epilogue = (uint8_t)epilogue;
    pass->activation = (uint8_t)term->activation;
    pass->of_y = term->of_y;
    pass->propagate = term->propagate;
    pass->at[EG_EXTRA] = operand_of(c, &term->view);
}

static void set_terms(const compiler *c, eg_webgpu_pass *pass) {
    for (int i = 0; i < c->op->terms; i++) {
        const eg_term *term = &c->op->term[i];
        switch (term->kind) {
        case EG_TERM_SCALE: /* the product has it, and so have its parts */
            break;
        case EG_TERM_BIAS:
            pass->bias = true;
            break;
        case EG_TERM_ACT:
            pass->epilogue = EG_WEBGPU_FORWARD;
            pass->activation = (uint8_t)term->activation;
            break;
        case EG_TERM_ADD:
            pass->epilogue = EG_WEBGPU_FORWARD;
            pass->at[EG_EXTRA] = operand_of(c, &term->view);
            break;
        case EG_TERM_TIMES:
            pass->epilogue = EG_WEBGPU_TIMES;
            pass->at[EG_EXTRA] = operand_of(c, &term->view);
            break;
        case EG_TERM_GRAD_AT_VALUE:
            set_act_grad(c, pass, term, EG_WEBGPU_GRAD_AT_VALUE);
            break;
        case EG_TERM_GRAD_AT_SAVED:
            set_act_grad(c, pass, term, EG_WEBGPU_GRAD_AT_SAVED);
            break;
        case EG_TERM_STORE:
        case EG_TERM_COLUMN_SUMS:
            break;
        }
    }
}

/* ---- Column sums -------------------------------------------------------------------------------- */

/* Room for them in the buffer that the pass which makes them does not read. The parts lie together column by
 * column, so that however many there are can be bound. */
static void place_sums(compiler *c, int id, eg_webgpu_space space, int64_t each, int64_t items) {
    column_sums *sums = &c->sums[id];
    const eg_temporary *x = &c->list->temporary[id];
    int64_t parts = 0;
    if (__builtin_mul_overflow(each, items, &parts)) fail(c, eg_too_large(c->list));
    sums->each = each, sums->items = items;
    sums->at = reserve(c, space, x->name, 1, parts, x->cols);
    sums->at.row = 0, sums->at.col = parts, sums->at.item = each;
    if (space == EG_WEBGPU_SCRATCH) c->kept = c->used;
}

static const eg_webgpu_kernel *column_kernel(const compiler *c) {
    return c->device->cpu ? &eg_webgpu_column_alone : &eg_webgpu_column_sum;
}

/* Rows of a chunk of a matrix whose column sums are taken by chunks. */
static int64_t chunk_of(const compiler *c, int64_t rows, int64_t row_stride) {
    enum { ALONE = 2048, CHUNK = 512, MOST = 256 };
    const int64_t chunks = rows <= ALONE ? 1 : eg_least(MOST, eg_ceil_div(rows, CHUNK));
    const int64_t room = ((int64_t)c->device->binding - (int64_t)c->device->align) / (int64_t)sizeof(float);
    int64_t chunk = eg_ceil_div(rows, chunks);
    if (row_stride > 0) chunk = eg_least(chunk, (room - 1) / row_stride + 1);
    return chunk > 0 ? chunk : 1;
}

static void emit_chunk_sums(compiler *c, const column_sums *sums, eg_webgpu_operand value) {
    const int64_t chunk = chunk_of(c, c->op->rows, value.row);
    eg_webgpu_operand from = value, to = sums->at;
    from.depth = value.row, from.row = value.row * chunk;
    to.row = 1;
    emit(c, (eg_webgpu_pass){.kernel = column_kernel(c),
                             .items = c->op->items,
                             .rows = sums->each,
                             .cols = c->op->cols,
                             .depth = chunk,
                             .splits = 1,
                             .chunk = chunk,
                             .limit = c->op->rows,
                             .at = {[EG_LEFT] = from, [EG_OUT] = to}});
}

static void compile_reduce(compiler *c) {
    const eg_op *op = c->op;
    const column_sums *sums = &c->sums[op->left.id];
    const int64_t parts = op->depth > 0 ? sums->each * sums->items : 0;
    eg_webgpu_operand from = op->depth > 0 ? sums->at : nowhere, to = operand_of(c, &op->out);
    from.depth = 1, from.item = 0;
    to.row = 0, to.item = 0;
    emit(c, (eg_webgpu_pass){.kernel = column_kernel(c),
                             .accumulate = op->accumulate,
                             .items = 1,
                             .rows = 1,
                             .cols = op->cols,
                             .depth = parts,
                             .splits = 1,
                             .limit = parts,
                             .at = {[EG_LEFT] = from, [EG_OUT] = to}});
}

static bool is_same_view(const eg_view *x, const eg_view *y) {
    return x->space == y->space && x->id == y->id && x->transposed == y->transposed && x->rows == y->rows &&
           x->cols == y->cols && x->row_stride == y->row_stride && x->col_stride == y->col_stride &&
           x->batch_stride == y->batch_stride && x->offset == y->offset;
}

/* Whether a product reads the values of an operation as its right operand, all of them and nothing else: then
 * it can sum them over the depth, in the place of what else an epilogue may read. */
static bool sums_on_its_way(const compiler *c, const eg_op *op, int index) {
    const eg_op *product = &c->list->op[index];
    const eg_view *values = is_unchanged(op) ? &op->left : &op->out;
    return product->kind == EG_GEMM && eg_is_bare(product) && eg_is_present(values) &&
           is_same_view(&product->right, values) && product->items * product->summed == op->items &&
           c->choice[index].kernel->sums != NULL;
}

/* Who makes the column sums of an operation. */
static void find_sums(compiler *c, int index) {
    const eg_op *op = &c->list->op[index];
    const eg_term *term = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    if (term == NULL) return;
    column_sums *sums = &c->sums[term->view.id];
    *sums = (column_sums){.op = index, .product = EG_NO_OP};
    for (int i = index + 1; i < c->list->ops && sums->product == EG_NO_OP; i++) {
        if (sums_on_its_way(c, op, i)) sums->product = i;
    }
    sums->alone = is_unchanged(op) && !eg_is_present(&op->out) && eg_term_of(op, EG_TERM_STORE) == NULL;
}

/* ---- Operations --------------------------------------------------------------------------------- */

static eg_webgpu_pass gemm_pass(compiler *c) {
    const eg_op *op = c->op;
    const eg_webgpu_choice *choice = &c->choice[c->index];
    eg_webgpu_pass pass = {
        .kernel = choice->kernel,
        .items = op->items * op->summed,
        .rows = op->rows,
        .cols = op->cols,
        .depth = op->depth,
        .scaled = eg_scale_of(op) != 1,
        .chunk = choice->chunk,
        .at = {
            [EG_LEFT] = as_left(operand_of(c, &op->left)), [EG_RIGHT] = as_right(operand_of(c, &op->right))}};
    pass.splits = op->depth > 0 ? (int32_t)eg_ceil_div(op->depth, pass.chunk) : 1;
    /* Splits are parts of one dispatch: what one cannot reach is done part after part instead. */
    if (eg_webgpu_reach(c->device, &pass) < op->depth) pass.splits = 1, pass.chunk = op->depth;
    return pass;
}

/* The pass of an operation's values, but for where they go. */
static eg_webgpu_pass values_pass(compiler *c) {
    eg_webgpu_pass pass =
        c->op->kind == EG_GEMM ? gemm_pass(c) : elementwise_pass(c->op, operand_of(c, &c->op->left), nowhere);
    set_terms(c, &pass);
    for (int i = 0; i < c->list->temporaries && !pass.sums; i++) {
        column_sums *sums = &c->sums[i];
        if (sums->product != c->index) continue;
        place_sums(c, i, EG_WEBGPU_SCRATCH, pass.splits, c->op->items);
        pass.sums = true;
        pass.at[EG_EXTRA] = sums->at;
        pass.at[EG_EXTRA].depth = 1;
        if (c->op->summed > 1) pass.at[EG_EXTRA].item = 0;
    }
    return pass;
}

static void emit_to(compiler *c, eg_webgpu_pass pass, eg_webgpu_operand out, bool accumulate) {
    pass.at[EG_OUT] = out;
    if (c->op->summed > 1) pass.at[EG_OUT].item = 0;
    pass.accumulate = accumulate;
    emit_values(c, &pass);
}

/* The result: a temporary is where it is stored in full, or in the workspace, in f32. */
static eg_webgpu_operand make_out(compiler *c, const eg_term *store) {
    const eg_view *out = &c->op->out;
    if (out->space != EG_TEMPORARY) return operand_of(c, out);
    const eg_temporary *x = &c->list->temporary[out->id];
    const bool stored = store != NULL && store->view.dtype == EG_F32 && !stores_before(c->op);
    c->temporary[out->id] = stored ? operand_of(c, &store->view)
                                   : reserve(c, EG_WEBGPU_WORKSPACE, x->name, x->items, x->rows, x->cols);
    return operand_of(c, out);
}

/* y = act(pre), and pre: y of the pre just written, or both of the bare product. */
static void compile_stored_before(compiler *c, eg_webgpu_operand out, eg_webgpu_operand stored) {
    eg_webgpu_pass whole = values_pass(c), before = whole;
    before.epilogue = EG_WEBGPU_STORE;
    before.activation = EG_ACT_NONE;
    before.at[EG_EXTRA] = nowhere;
    before.at[EG_OUT] = stored;
    whole.at[EG_OUT] = out;
    whole.accumulate = c->op->accumulate;
    if (!eg_webgpu_is_present(&out)) {
        emit_values(c, &before);
    } else if (c->op->kind != EG_GEMM) {
        emit(c, before);
        emit(c, whole);
    } else if (stored.dtype == EG_F32 && is_one_pass(c, &before)) {
        emit(c, before);
        whole.bias = false;
        emit_epilogue(c, &whole, stored, 1);
    } else {
        const eg_webgpu_operand parts = emit_parts(c, &before);
        emit_epilogue(c, &before, parts, before.splits);
        emit_epilogue(c, &whole, parts, whole.splits);
    }
}

/* Where an operation's values are in full: in its result, in what it stores, or, where those are rounded or
 * added to and there is more to make of the values, in memory of their own. */
typedef enum values_place { IN_LEFT, IN_OUT, IN_STORED, IN_OWN, UNWANTED } values_place;

static values_place place_values(const eg_op *op, const eg_webgpu_operand *out,
                                 const eg_webgpu_operand *stored, bool sums) {
    if (is_unchanged(op)) return IN_LEFT;
    if (eg_webgpu_is_present(out)) {
        const bool rounded = out->dtype != EG_F32;
        const bool stores = eg_webgpu_is_present(stored) && (op->accumulate || stored->dtype != out->dtype);
        return (sums || stores) && (rounded || op->accumulate) ? IN_OWN : IN_OUT;
    }
    if (eg_webgpu_is_present(stored)) return sums && stored->dtype != EG_F32 ? IN_OWN : IN_STORED;
    return sums ? IN_OWN : UNWANTED;
}

/* What a call in chunks keeps over them is in the workspace, too. */
static bool is_in_workspace(const eg_webgpu_operand *x) {
    return x->space == EG_WEBGPU_WORKSPACE || (x->space == EG_WEBGPU_OPERAND && x->id >= EG_OPERANDS);
}

/* Memory of their own: beside a result they are in the scratch, as partial results are. */
static eg_webgpu_space space_for_values(const eg_op *op, const eg_webgpu_pass *pass) {
    bool scratch = eg_is_present(&op->out);
    for (int i = 0; i < EG_OUT; i++) scratch = scratch || is_in_workspace(&pass->at[i]);
    return scratch ? EG_WEBGPU_SCRATCH : EG_WEBGPU_WORKSPACE;
}

/* GEMM, MAP and COPY. */
static void compile_values(compiler *c) {
    const eg_op *op = c->op;
    const eg_term *store = eg_term_of(op, EG_TERM_STORE), *summed = eg_term_of(op, EG_TERM_COLUMN_SUMS);
    const bool sums = summed != NULL && c->sums[summed->view.id].product == EG_NO_OP;
    const eg_webgpu_operand out = make_out(c, store),
                            stored = store != NULL ? operand_of(c, &store->view) : nowhere;
    if (stores_before(op)) {
        compile_stored_before(c, out, stored);
        return;
    }
    const values_place place = place_values(op, &out, &stored, sums);
    if (place == UNWANTED) return;
    const eg_webgpu_pass pass = values_pass(c);
    eg_webgpu_operand value = place == IN_LEFT ? pass.at[EG_LEFT] : place == IN_OUT ? out : stored;
    if (place == IN_OWN)
        value = (eg_webgpu_operand){.space = (uint8_t)space_for_values(op, &pass), .row = op->cols};
    if (sums) {
        const int64_t chunk = chunk_of(c, op->rows, value.row);
        place_sums(c, summed->view.id,
                   value.space == EG_WEBGPU_SCRATCH ? EG_WEBGPU_WORKSPACE : EG_WEBGPU_SCRATCH,
                   eg_ceil_div(op->rows, chunk), op->items);
    }
    if (place == IN_OWN)
        value = reserve(c, (eg_webgpu_space)value.space, "values", op->items, op->rows, op->cols);
    if (place != IN_LEFT) emit_to(c, pass, value, place == IN_OUT && op->accumulate);
    if (eg_webgpu_is_present(&stored) && !is_same(&stored, &value)) emit_copy(c, value, stored, false);
    if (eg_webgpu_is_present(&out) && place != IN_OUT) emit_copy(c, value, out, op->accumulate);
    if (sums) emit_chunk_sums(c, &c->sums[summed->view.id], value);
}

static eg_status check_dtype(const eg_webgpu_caps *device, eg_dtype dtype) {
    if (dtype == EG_F64 || dtype == EG_BF16) {
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "the layer's dtype is %s; WebGPU has f32 and, on some devices, f16",
                       eg_dtype_name(dtype));
    }
    if (dtype == EG_F16 && !device->f16) {
        return eg_fail(EG_ERR_UNSUPPORTED, "the layer's dtype is f16; this device has no shader-f16");
    }
    return EG_OK;
}

/* Whether there is a kernel for each product. */
static bool choose_kernels(compiler *c, const eg_caps *caps) {
    for (int i = 0; i < c->list->ops; i++) {
        if (c->list->op[i].kind != EG_GEMM) continue;
        c->choice[i] = eg_webgpu_choose(caps, &c->list->op[i]);
        if (c->choice[i].kernel == NULL) return false;
    }
    return true;
}

eg_status eg_webgpu_compile(const eg_caps *caps, eg_program *program) {
    compiler c = {.device = caps->detail,
                  .program = program,
                  .list = &program->list,
                  .next_region = EG_WEBGPU_SCRATCH_REGION + 1};
    EG_TRY(check_dtype(c.device, c.list->dtype));
    if (!choose_kernels(&c, caps))
        return eg_fail(EG_ERR_UNSUPPORTED, "no kernel \"%s\" runs on this device",
                       caps->only_kernel != NULL ? caps->only_kernel : "");
    for (int i = 0; i < EG_MAX_TEMPORARIES; i++) c.sums[i].product = EG_NO_OP;
    for (int i = 0; i < c.list->ops; i++) find_sums(&c, i);
    for (int i = 0; i < c.list->ops && c.status == EG_OK; i++) {
        c.index = i, c.op = &c.list->op[i];
        c.used = c.kept;
        if (c.op->kind == EG_REDUCE) {
            compile_reduce(&c);
        } else {
            compile_values(&c);
        }
    }
    program->region[EG_WEBGPU_SCRATCH_REGION] = (eg_region){0, c.scratch, "scratch (context)"};
    return c.status;
}

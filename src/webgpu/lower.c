/* From the steps of the plan to passes. */
#include "pass.h"

#include "../sizes.h"

typedef struct lowering {
    const eg_webgpu_caps *caps;
    const eg_plan *plan;
    const eg_problem *problem;
    const eg_step *step;
    eg_webgpu_passes *out;
    size_t temporary; /* where scratch begins that only this step uses: behind the column sums */
} lowering;

/* ---- Operands ----------------------------------------------------------------------------------- */

static eg_webgpu_operand user(const eg_problem *p, eg_operand_id id) {
    const eg_operand *x = &p->operands[id];
    if (x->data == NULL) return (eg_webgpu_operand){0};
    return (eg_webgpu_operand){.place = EG_PLACE_USER,
                               .data = x->data,
                               .offset = x->offset,
                               .dtype = x->dtype,
                               .row = x->row_stride,
                               .col = x->col_stride,
                               .item = x->batch_stride};
}

static eg_webgpu_operand dense(eg_webgpu_place place, size_t offset, int64_t rows, int64_t cols) {
    return (eg_webgpu_operand){
        .place = place, .offset = offset, .dtype = EG_F32, .row = cols, .col = 1, .item = rows * cols};
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
static eg_webgpu_operand transposed(eg_webgpu_operand x) {
    const int64_t row = x.row;
    x.row = x.col, x.col = row;
    return x;
}

static eg_webgpu_operand operand_b(const eg_problem *p) {
    if (p->packed_b == NULL) return user(p, EG_OP_B);
    return (eg_webgpu_operand){.place = p->packed_b->data != NULL ? EG_PLACE_USER : EG_PLACE_NONE,
                               .data = p->packed_b->data,
                               .dtype = p->dtype,
                               .row = p->n,
                               .col = 1,
                               .item = p->packed_b->batched ? p->k * p->n : 0};
}

static bool uses_grad_pre(const eg_problem *p) {
    return eg_wants(p, EG_OP_D_A) || eg_wants(p, EG_OP_D_B) || eg_wants(p, EG_OP_D_BIAS);
}

/* Where grad_pre is read from by the steps that use it. Without an activation that is grad; an f16 one is
 * kept in f32, so that it is not rounded on its way. */
static eg_webgpu_operand grad_pre_of(const lowering *l) {
    const eg_problem *p = l->problem;
    if (p->activation == EG_ACT_NONE) return user(p, EG_OP_GRAD);
    if (eg_wants(p, EG_OP_GRAD_PRE) && (p->dtype == EG_F32 || !uses_grad_pre(p)))
        return user(p, EG_OP_GRAD_PRE);
    return dense(EG_PLACE_WORKSPACE, l->plan->region[EG_BUFFER_GRAD_PRE].offset, p->m, p->n);
}

/* ---- Passes ------------------------------------------------------------------------------------- */

/* Outputs are written along their rows; a column-major one is the transpose of the transposed product. */
static void turn(eg_webgpu_pass *pass) {
    eg_webgpu_operand *at = pass->at;
    if (at[EG_OUT].col == 1 || at[EG_OUT].row != 1) return;
    const int64_t rows = pass->rows;
    pass->rows = pass->cols, pass->cols = rows;
    pass->bias_by_row = !pass->bias_by_row;
    pass->sums_by_row = !pass->sums_by_row;
    for (int i = 0; i < EG_BINDINGS; i++) at[i] = transposed(at[i]);
    if (pass->kernel->shape != EG_SHAPE_PRODUCT) return;
    const eg_webgpu_operand left = at[EG_LEFT];
    at[EG_LEFT] = at[EG_RIGHT], at[EG_RIGHT] = left;
}

static void emit(lowering *l, eg_webgpu_pass pass) {
    if (pass.kernel->shape != EG_SHAPE_COLUMN_SUM) turn(&pass);
    l->out->pass[l->out->count++] = pass;
}

static size_t reserve(lowering *l, int64_t elements) {
    const size_t at = l->temporary;
    l->temporary += (size_t)eg_ceil_div(elements * 4, 256) * 256;
    if (l->temporary > l->out->scratch) l->out->scratch = l->temporary;
    return at;
}

/* The rest of a product whose parts are in `from`: what was asked of `pass` itself. */
static void emit_finish(lowering *l, const eg_webgpu_pass *pass, eg_webgpu_operand from, int64_t parts) {
    eg_webgpu_pass rest = *pass;
    rest.kernel = &eg_webgpu_finish;
    rest.at[EG_LEFT] = from;
    rest.at[EG_RIGHT] = (eg_webgpu_operand){0};
    rest.depth = parts, rest.splits = 1;
    if (rest.sums) rest.at[EG_EXTRA] = (eg_webgpu_operand){0};
    rest.sums = false;
    if (rest.at[EG_OUT].item == 0 && rest.items > 1) rest.items = 1;
    emit(l, rest);
}

/* The bare product, in f32 parts. */
static eg_webgpu_operand emit_parts(lowering *l, const eg_webgpu_pass *pass, int64_t items) {
    eg_webgpu_pass bare = *pass;
    const int64_t each = pass->rows * pass->cols;
    eg_webgpu_operand parts =
        dense(EG_PLACE_SCRATCH, reserve(l, each * items * pass->splits), pass->rows, pass->cols);
    parts.depth = each * items;
    if (pass->at[EG_OUT].item == 0) parts.item = 0;
    bare.epilogue = EG_EPILOGUE_STORE;
    bare.activation = EG_ACT_NONE;
    bare.accumulate = false;
    bare.bias = (eg_webgpu_operand){0};
    if (!bare.sums) bare.at[EG_EXTRA] = (eg_webgpu_operand){0};
    bare.at[EG_OUT] = parts;
    emit(l, bare);
    return parts;
}

static bool one_pass(const lowering *l, const eg_webgpu_pass *pass) {
    const bool added = pass->at[EG_OUT].item == 0 && pass->items > 1;
    const bool plain = pass->epilogue == EG_EPILOGUE_STORE && pass->bias.place == EG_PLACE_NONE &&
                       pass->at[EG_OUT].dtype == EG_F32;
    return pass->splits == 1 && (plain || (!added && eg_webgpu_reach(l->caps, pass) >= pass->depth));
}

static int64_t items_apart(const eg_webgpu_pass *pass) {
    return pass->at[EG_OUT].item == 0 ? 1 : pass->items;
}

static void emit_product(lowering *l, const eg_webgpu_pass *pass) {
    if (one_pass(l, pass)) {
        emit(l, *pass);
    } else {
        emit_finish(l, pass, emit_parts(l, pass, items_apart(pass)), pass->splits);
    }
}

/* `to` = `from`, rounded. */
static eg_webgpu_pass copy_pass(int64_t items, int64_t rows, int64_t cols, eg_webgpu_operand from,
                                eg_webgpu_operand to) {
    return (eg_webgpu_pass){.kernel = &eg_webgpu_finish,
                            .epilogue = EG_EPILOGUE_STORE,
                            .items = items,
                            .rows = rows,
                            .cols = cols,
                            .depth = 1,
                            .splits = 1,
                            .at = {[EG_LEFT] = from, [EG_OUT] = to}};
}

/* ---- Column sums -------------------------------------------------------------------------------- */

const eg_webgpu_kernel *eg_webgpu_column_kernel(const eg_webgpu_caps *caps) {
    return caps->cpu ? &eg_webgpu_column_alone : &eg_webgpu_column_sum;
}

int64_t eg_webgpu_sum_chunk(const eg_webgpu_caps *caps, int64_t rows, int64_t row_stride) {
    enum { ALONE = 2048, CHUNK = 512, MOST = 256 };
    const int64_t chunks = rows <= ALONE ? 1 : eg_least(MOST, eg_ceil_div(rows, CHUNK));
    const int64_t room = ((int64_t)caps->binding - (int64_t)caps->align) / 4;
    int64_t chunk = eg_ceil_div(rows, chunks);
    if (row_stride > 0) chunk = eg_least(chunk, (room - 1) / row_stride + 1);
    return chunk > 0 ? chunk : 1;
}

/* ---- The products ------------------------------------------------------------------------------- */

static eg_webgpu_pass product_pass(const lowering *l) {
    const eg_problem *p = l->problem;
    eg_webgpu_pass pass = {.kernel = l->step->kernel,
                           .epilogue = l->step->epilogue,
                           .propagate = p->propagate,
                           .items = p->batch};
    switch (l->step->product) {
    case EG_PRODUCT_PRE:
        pass.rows = p->m, pass.cols = p->n, pass.depth = p->k;
        pass.at[EG_LEFT] = as_left(user(p, EG_OP_A));
        pass.at[EG_RIGHT] = as_right(operand_b(p));
        pass.activation = p->activation;
        pass.bias = user(p, EG_OP_BIAS);
        break;
    case EG_PRODUCT_D_A:
        pass.rows = p->m, pass.cols = p->k, pass.depth = p->n;
        pass.at[EG_LEFT] = as_left(grad_pre_of(l));
        pass.at[EG_RIGHT] = as_right(transposed(operand_b(p)));
        pass.at[EG_OUT] = user(p, EG_OP_D_A);
        break;
    case EG_PRODUCT_D_B:
        pass.rows = p->k, pass.cols = p->n, pass.depth = p->m;
        pass.at[EG_LEFT] = as_left(transposed(user(p, EG_OP_A)));
        pass.at[EG_RIGHT] = as_right(grad_pre_of(l));
        pass.at[EG_OUT] = user(p, EG_OP_D_B);
        pass.accumulate = p->accumulate;
        break;
    }
    /* A sum over no items is a product of no terms. */
    if (pass.items == 0 && pass.at[EG_OUT].place != EG_PLACE_NONE && pass.at[EG_OUT].item == 0)
        pass.items = 1, pass.depth = 0;
    pass.chunk = l->step->depth;
    pass.splits = pass.depth > 0 ? eg_ceil_div(pass.depth, pass.chunk) : 1;
    /* Splits are parts of one dispatch: what one cannot reach is done part after part instead. */
    if (eg_webgpu_reach(l->caps, &pass) < pass.depth) pass.splits = 1, pass.chunk = pass.depth;
    return pass;
}

/* ---- Column sums of grad_pre and d_a ------------------------------------------------------------ */

const eg_step *eg_webgpu_sums_beside(const eg_plan *plan) {
    const eg_problem *p = &plan->problem;
    if (!eg_wants(p, EG_OP_D_BIAS) || p->k == 0) return NULL;
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        if (step->kind != EG_STEP_GEMM || step->product != EG_PRODUCT_D_B) continue;
        const eg_webgpu_kernel *kernel = step->kernel;
        return kernel->sums != NULL ? step : NULL;
    }
    return NULL;
}

static int64_t below_stride(const eg_problem *p) {
    const bool wide = p->dtype == EG_F16;
    return wide ? p->k : p->operands[EG_OP_D_A].row_stride;
}

/* How many partial sums an element of d_bias (d_bias_below) is made of: each item's, and how many items. */
typedef struct sum_parts {
    int64_t each, items;
} sum_parts;

static sum_parts parts_of(const lowering *l, eg_buffer_id id) {
    const eg_problem *p = l->problem;
    const bool below = id == EG_BUFFER_SUMS_BELOW;
    const eg_step *beside = below ? NULL : eg_webgpu_sums_beside(l->plan);
    if (beside != NULL) {
        lowering at = *l;
        at.step = beside;
        const eg_webgpu_pass pass = product_pass(&at);
        return (sum_parts){pass.splits, items_apart(&pass)};
    }
    const int64_t stride = below ? below_stride(p) : grad_pre_of(l).row;
    return (sum_parts){eg_ceil_div(p->m, eg_webgpu_sum_chunk(l->caps, p->m, stride)), p->batch};
}

bool eg_webgpu_sum_parts(const eg_webgpu_caps *caps, const eg_plan *plan, eg_buffer_id id, int64_t *count) {
    const lowering l = {.caps = caps, .plan = plan, .problem = &plan->problem};
    const sum_parts parts = parts_of(&l, id);
    return !__builtin_mul_overflow(parts.each, parts.items, count);
}

/* The parts lie together column by column, so that however many there are can be bound. */
static eg_webgpu_operand partial_sums(const lowering *l, eg_buffer_id id, sum_parts parts) {
    return (eg_webgpu_operand){.place = id == EG_BUFFER_SUMS ? EG_PLACE_SCRATCH : EG_PLACE_WORKSPACE,
                               .offset = l->plan->region[id].offset,
                               .dtype = EG_F32,
                               .col = parts.each * parts.items,
                               .item = parts.each};
}

static void emit_chunk_sums(lowering *l, eg_buffer_id id, eg_webgpu_operand x, int64_t cols) {
    const eg_problem *p = l->problem;
    const sum_parts parts = parts_of(l, id);
    const int64_t chunk = eg_webgpu_sum_chunk(l->caps, p->m, x.row);
    eg_webgpu_operand from = x, to = partial_sums(l, id, parts);
    from.depth = x.row, from.row = x.row * chunk;
    to.row = 1;
    emit(l, (eg_webgpu_pass){.kernel = eg_webgpu_column_kernel(l->caps),
                             .items = p->batch,
                             .rows = parts.each,
                             .cols = cols,
                             .depth = chunk,
                             .splits = 1,
                             .chunk = chunk,
                             .limit = p->m,
                             .at = {[EG_LEFT] = from, [EG_OUT] = to}});
}

static void lower_column_sum(lowering *l) {
    const eg_problem *p = l->problem;
    const bool below = l->step->buffer == EG_BUFFER_SUMS_BELOW;
    const sum_parts parts = parts_of(l, l->step->buffer);
    eg_webgpu_operand from = partial_sums(l, l->step->buffer, parts);
    from.depth = 1, from.item = 0;
    eg_webgpu_operand to = user(p, below ? EG_OP_D_BIAS_BELOW : EG_OP_D_BIAS);
    to.row = 0, to.item = 0;
    emit(l, (eg_webgpu_pass){.kernel = eg_webgpu_column_kernel(l->caps),
                             .accumulate = p->accumulate,
                             .items = 1,
                             .rows = 1,
                             .cols = below ? p->k : p->n,
                             .depth = parts.each * parts.items,
                             .splits = 1,
                             .limit = parts.each * parts.items,
                             .at = {[EG_LEFT] = from, [EG_OUT] = to}});
}

/* ---- The steps ---------------------------------------------------------------------------------- */

static void lower_forward(lowering *l) {
    const eg_problem *p = l->problem;
    eg_webgpu_pass pass = product_pass(l), store = pass;
    pass.at[EG_OUT] = user(p, EG_OP_Y);
    pass.at[EG_EXTRA] = user(p, EG_OP_RESIDUAL);
    store.at[EG_OUT] = user(p, EG_OP_PRE);
    store.epilogue = EG_EPILOGUE_STORE;
    store.activation = EG_ACT_NONE;
    if (!eg_wants(p, EG_OP_PRE)) {
        emit_product(l, &pass);
    } else if (p->dtype == EG_F32 && one_pass(l, &store)) { /* y from the pre just written */
        emit(l, store);
        pass.bias = (eg_webgpu_operand){0};
        emit_finish(l, &pass, store.at[EG_OUT], 1);
    } else {
        const eg_webgpu_operand parts = emit_parts(l, &store, pass.items);
        emit_finish(l, &store, parts, pass.splits);
        emit_finish(l, &pass, parts, pass.splits);
    }
}

/* What follows when grad_pre has been made. */
static void after_grad_pre(lowering *l) {
    const eg_problem *p = l->problem;
    const eg_webgpu_operand made = grad_pre_of(l), wanted = user(p, EG_OP_GRAD_PRE);
    const bool there =
        made.data == wanted.data && made.place == EG_PLACE_USER && made.offset == wanted.offset;
    if (eg_wants(p, EG_OP_GRAD_PRE) && !there) emit(l, copy_pass(p->batch, p->m, p->n, made, wanted));
    if (eg_wants(p, EG_OP_D_BIAS) && eg_webgpu_sums_beside(l->plan) == NULL)
        emit_chunk_sums(l, EG_BUFFER_SUMS, made, p->n);
}

static void lower_recompute(lowering *l) {
    eg_webgpu_pass pass = product_pass(l);
    pass.at[EG_OUT] = grad_pre_of(l);
    pass.at[EG_EXTRA] = user(l->problem, EG_OP_GRAD);
    emit_product(l, &pass);
    after_grad_pre(l);
}

static void lower_act_grad(lowering *l) {
    const eg_problem *p = l->problem;
    if (p->activation != EG_ACT_NONE) {
        eg_webgpu_pass pass = copy_pass(p->batch, p->m, p->n, user(p, EG_OP_SAVED), grad_pre_of(l));
        pass.epilogue = EG_EPILOGUE_ACT_GRAD;
        pass.activation = p->activation;
        pass.of_y = p->source == EG_SOURCE_Y;
        pass.propagate = p->propagate;
        pass.at[EG_EXTRA] = user(p, EG_OP_GRAD);
        emit(l, pass);
    }
    after_grad_pre(l);
}

static void lower_d_a(lowering *l) {
    const eg_problem *p = l->problem;
    const eg_webgpu_operand d_a = user(p, EG_OP_D_A);
    const bool sums = eg_wants(p, EG_OP_D_BIAS_BELOW), wide = sums && p->dtype == EG_F16;
    eg_webgpu_pass pass = product_pass(l);
    if (l->step->epilogue == EG_EPILOGUE_CHAIN) {
        pass.activation = p->below_activation;
        pass.of_y = p->below_source == EG_SOURCE_Y;
        pass.at[EG_EXTRA] = user(p, EG_OP_BELOW);
    }
    if (wide) { /* its column sums are of what was not yet rounded */
        pass.at[EG_OUT] = dense(EG_PLACE_SCRATCH, reserve(l, p->m * p->k * p->batch), p->m, p->k);
    }
    emit_product(l, &pass);
    if (wide) emit(l, copy_pass(p->batch, p->m, p->k, pass.at[EG_OUT], d_a));
    if (sums) emit_chunk_sums(l, EG_BUFFER_SUMS_BELOW, pass.at[EG_OUT], p->k);
}

/* Whoever sums grad_pre times A sums grad_pre on the way. */
static void lower_d_b(lowering *l) {
    eg_webgpu_pass pass = product_pass(l);
    if (l->step == eg_webgpu_sums_beside(l->plan)) {
        pass.sums = true;
        pass.at[EG_EXTRA] = partial_sums(l, EG_BUFFER_SUMS, parts_of(l, EG_BUFFER_SUMS));
        pass.at[EG_EXTRA].depth = 1;
        if (pass.at[EG_OUT].item == 0) pass.at[EG_EXTRA].item = 0;
    }
    emit_product(l, &pass);
}

eg_status eg_webgpu_lower(const eg_webgpu_caps *caps, const eg_plan *plan, const eg_step *step,
                          eg_webgpu_passes *passes) {
    *passes = (eg_webgpu_passes){0};
    lowering l = {.caps = caps, .plan = plan, .problem = &plan->problem, .step = step, .out = passes};
    l.temporary = passes->scratch = (plan->region[EG_BUFFER_SUMS].bytes + 255) / 256 * 256;
    switch (step->kind) {
    case EG_STEP_PACK:
        break;
    case EG_STEP_ACT_GRAD:
        lower_act_grad(&l);
        break;
    case EG_STEP_COLUMN_SUM:
        lower_column_sum(&l);
        break;
    case EG_STEP_GEMM:
        if (step->product == EG_PRODUCT_D_A) {
            lower_d_a(&l);
        } else if (step->product == EG_PRODUCT_D_B) {
            lower_d_b(&l);
        } else if (step->epilogue == EG_EPILOGUE_FORWARD) {
            lower_forward(&l);
        } else {
            lower_recompute(&l);
        }
        break;
    }
    return EG_OK;
}

eg_webgpu_pass eg_webgpu_lower_pack(const eg_problem *problem, void *to) {
    const bool batched = problem->operands[EG_OP_B].batch_stride != 0;
    eg_problem packed = *problem;
    const eg_packed made = {.data = to, .batched = batched};
    packed.packed_b = &made;
    return copy_pass(batched ? problem->batch : 1, problem->k, problem->n, user(problem, EG_OP_B),
                     operand_b(&packed));
}

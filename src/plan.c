#include "plan.h"

#include <stdio.h>
#include <string.h>

#include "backend.h"
#include "error.h"
#include "text.h"

/* ---- Folding the batch -------------------------------------------------------------------------- */

/* Operands that carry M rows a batch: with the batch stride of dense rows they are one tall matrix. */
static bool folds(const eg_problem *problem, const eg_operand *x) {
    int64_t dense; /* an empty operand's strides may be anything */
    return x->data == NULL ||
           (x->col_stride == 1 && !__builtin_mul_overflow(problem->m, x->row_stride, &dense) &&
            x->batch_stride == dense);
}

static bool shared(const eg_operand *x) { return x->data == NULL || x->batch_stride == 0; }

/* A batch that shares B (and sums d_b) is one layer of batch*M rows. */
static bool batch_is_rows(const eg_problem *problem) {
    if (problem->batch <= 1 || (problem->packed_b != NULL && problem->packed_b->batched)) return false;
    for (int id = 0; id < EG_OPERANDS; id++) {
        if (eg_operand_has_rows((eg_operand_id)id) && !folds(problem, &problem->operands[id])) return false;
    }
    return shared(&problem->operands[EG_OP_B]) && shared(&problem->operands[EG_OP_D_B]);
}

void eg_plan_fold(eg_problem *problem) {
    int64_t rows;
    if (!batch_is_rows(problem) || __builtin_mul_overflow(problem->m, problem->batch, &rows)) return;
    for (int id = 0; id < EG_OPERANDS; id++) {
        eg_operand *x = &problem->operands[id];
        if (x->batch_stride != 0) x->rows = rows;
        x->batch_stride = 0;
    }
    problem->m = rows;
    problem->batch = 1;
}

/* ---- The steps ---------------------------------------------------------------------------------- */

static void add(eg_plan *plan, eg_step step) { plan->step[plan->steps++] = step; }

/* An operand is read once, and laid out for every product it is in. */
static void add_pack(const eg_caps *caps, eg_plan *plan, eg_operand_id operand, unsigned products) {
    if (!caps->packs || products == 0 || (operand == EG_OP_B && plan->problem.packed_b != NULL)) return;
    add(plan, (eg_step){.kind = EG_STEP_PACK, .operand = operand, .products = products});
}

static void add_gemm(eg_plan *plan, eg_product product, eg_epilogue epilogue) {
    add(plan, (eg_step){.kind = EG_STEP_GEMM, .product = product, .epilogue = epilogue});
}

static void plan_forward(const eg_caps *caps, eg_plan *plan) {
    add_pack(caps, plan, EG_OP_A, EG_FOR(EG_PRODUCT_PRE));
    add_pack(caps, plan, EG_OP_B, EG_FOR(EG_PRODUCT_PRE));
    add_gemm(plan, EG_PRODUCT_PRE, EG_EPILOGUE_FORWARD);
}

static void plan_backward(const eg_caps *caps, eg_plan *plan) {
    const eg_problem *problem = &plan->problem;
    const bool d_a = eg_wants(problem, EG_OP_D_A), d_b = eg_wants(problem, EG_OP_D_B);
    const bool chain = eg_wants(problem, EG_OP_BELOW);
    const bool grad_pre = d_a || d_b || eg_wants(problem, EG_OP_GRAD_PRE) || eg_wants(problem, EG_OP_D_BIAS);
    const bool recompute =
        grad_pre && problem->source == EG_SOURCE_RECOMPUTE && problem->activation != EG_ACT_NONE;
    const unsigned pre = recompute ? EG_FOR(EG_PRODUCT_PRE) : 0;

    add_pack(caps, plan, EG_OP_A, pre | (d_b ? EG_FOR(EG_PRODUCT_D_B) : 0));
    add_pack(caps, plan, EG_OP_B, pre | (d_a ? EG_FOR(EG_PRODUCT_D_A) : 0));
    if (recompute) {
        add_gemm(plan, EG_PRODUCT_PRE, EG_EPILOGUE_ACT_GRAD);
    } else if (grad_pre) {
        add(plan, (eg_step){.kind = EG_STEP_ACT_GRAD});
    }
    if (d_a) add_gemm(plan, EG_PRODUCT_D_A, chain ? EG_EPILOGUE_CHAIN : EG_EPILOGUE_STORE);
    if (d_b) add_gemm(plan, EG_PRODUCT_D_B, EG_EPILOGUE_STORE);
    if (eg_wants(problem, EG_OP_D_BIAS)) {
        add(plan, (eg_step){.kind = EG_STEP_COLUMN_SUM, .buffer = EG_BUFFER_SUMS});
    }
    if (eg_wants(problem, EG_OP_D_BIAS_BELOW)) {
        add(plan, (eg_step){.kind = EG_STEP_COLUMN_SUM, .buffer = EG_BUFFER_SUMS_BELOW});
    }
}

bool eg_plan_region(eg_plan *plan, eg_buffer_id id, int64_t count, int64_t each, size_t element,
                    size_t align) {
    size_t bytes = 0, end = 0;
    const size_t offset = (plan->workspace + align - 1) & ~(align - 1);
    if (__builtin_mul_overflow(count, each, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
        __builtin_add_overflow(offset, bytes, &end) || end > (size_t)INT64_MAX) {
        return false;
    }
    plan->region[id] = (eg_region){offset, bytes};
    plan->workspace = end;
    return true;
}

eg_status eg_plan_too_large(const eg_problem *p) {
    return eg_fail(EG_ERR_OUT_OF_MEMORY,
                   "the workspace of M=%lld K=%lld N=%lld batch=%lld is larger than memory can be",
                   (long long)p->m, (long long)p->k, (long long)p->n, (long long)p->batch);
}

/* Steps are written as they are added; the rest of them is not cleared, which would take as long as a check
 * of all operands. */
eg_status eg_plan_make(const eg_caps *caps, const eg_problem *problem, eg_plan *plan) {
    plan->steps = 0;
    plan->workspace = 0;
    memset(plan->region, 0, sizeof plan->region);
    plan->problem = *problem;
    eg_plan_fold(&plan->problem);
    if (problem->backward) {
        plan_backward(caps, plan);
    } else {
        plan_forward(caps, plan);
    }
    return eg_backend_find(caps->backend)->select(caps, plan);
}

/* ---- The text ----------------------------------------------------------------------------------- */

static const char *const buffer_names[EG_BUFFERS] = {
    [EG_BUFFER_A] = "a",
    [EG_BUFFER_AT] = "a transposed",
    [EG_BUFFER_B] = "b",
    [EG_BUFFER_BT] = "b transposed",
    [EG_BUFFER_GRAD_PRE] = "grad_pre",
    [EG_BUFFER_GRAD_PRE_T] = "grad_pre transposed",
    [EG_BUFFER_SUMS] = "d_bias",
    [EG_BUFFER_SUMS_BELOW] = "chain.d_bias",
    [EG_BUFFER_SCRATCH] = "scratch",
    [EG_BUFFER_COUNTS] = "counts",
};

static const char *step_text(const eg_problem *problem, const eg_step *step, char *text, size_t capacity) {
    static const char *const products[] = {"a.b", "d_a = grad_pre.bT", "d_b = aT.grad_pre"};
    const char *act = eg_activation_name(problem->activation);
    switch (step->kind) {
    case EG_STEP_PACK:
        snprintf(text, capacity, "pack %s", step->operand == EG_OP_A ? "a" : "b");
        break;
    case EG_STEP_ACT_GRAD:
        snprintf(text, capacity, "grad_pre = grad * %s'(%s)", act,
                 problem->source == EG_SOURCE_Y ? "y" : "pre");
        break;
    case EG_STEP_COLUMN_SUM:
        snprintf(text, capacity, "%s = column sums", buffer_names[step->buffer]);
        break;
    case EG_STEP_GEMM:
        switch (step->epilogue) {
        case EG_EPILOGUE_STORE:
            snprintf(text, capacity, "%s", products[step->product]);
            break;
        case EG_EPILOGUE_FORWARD:
            snprintf(text, capacity, "y = %s(%s + bias)", act, products[step->product]);
            break;
        case EG_EPILOGUE_ACT_GRAD:
            snprintf(text, capacity, "grad_pre = grad * %s'(%s + bias)", act, products[step->product]);
            break;
        case EG_EPILOGUE_CHAIN:
            snprintf(text, capacity, "%s * %s'(below)", products[step->product],
                     eg_activation_name(problem->below_activation));
            break;
        }
        break;
    }
    return text;
}

void eg_plan_print(const eg_plan *plan, char *text, size_t capacity) {
    static const char *const kinds[] = {"pack", "gemm", "act_grad", "column_sum"};
    static const char *const sources[] = {"recompute", "pre", "y"};
    const eg_problem *p = &plan->problem;
    eg_text out = {text, capacity};
    eg_put(&out, "%s %s %s%s%s  M=%lld K=%lld N=%lld batch=%lld  workspace %zu bytes\n",
           p->backward ? "backward" : "forward", eg_dtype_name(p->dtype), eg_activation_name(p->activation),
           p->backward ? " " : "", p->backward ? sources[p->source] : "", (long long)p->m, (long long)p->k,
           (long long)p->n, (long long)p->batch, plan->workspace);
    for (int i = 0; i < plan->steps; i++) {
        const eg_step *step = &plan->step[i];
        char what[96];
        eg_put(&out, "%2d  %-10s  %-44s  %s", i + 1, kinds[step->kind], step_text(p, step, what, sizeof what),
               step->name);
        if (step->kind == EG_STEP_GEMM) {
            eg_put(&out, "  block %lldx%lldx%lld", (long long)step->tile_rows, (long long)step->tile_cols,
                   (long long)step->depth);
        }
        if (step->cut > 0) eg_put(&out, "  last %d cut", step->cut);
        if (step->packs) eg_put(&out, "  packs b");
        if (step->threads > 1) eg_put(&out, "  threads %d", step->threads);
        eg_put(&out, "\n");
    }
    for (int id = 0; id < EG_BUFFERS; id++) {
        if (plan->region[id].bytes > 0)
            eg_put(&out, "    %-20s %14zu bytes\n", buffer_names[id], plan->region[id].bytes);
    }
}

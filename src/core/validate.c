/* SPDX-License-Identifier: Apache-2.0 */
#include "validate.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#include "error.h"
#include "overlap.h"

/* ---- The layer ---------------------------------------------------------------------------------- */

static const int64_t most_size = (int64_t)1 << 60; /* so that a size can be rounded up without a thought */

static eg_status check_size(const char *name, int64_t value) {
    if (value >= 0 && value <= most_size) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "layer.%s is %lld; expected 0 to 2^60", name, (long long)value);
}

/* Of all levels. */
static eg_status check_batch(const eg_layer *layer, int64_t *items) {
    const int64_t inner = layer->batch == 0 ? 1 : layer->batch,
                  outer = layer->outer_batch == 0 ? 1 : layer->outer_batch;
    EG_TRY(check_size("batch", layer->batch));
    EG_TRY(check_size("outer_batch", layer->outer_batch));
    if (!__builtin_mul_overflow(outer, inner, items) && *items <= most_size) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "layer.outer_batch is %lld, of %lld items each; expected 2^60 at most",
                   (long long)outer, (long long)inner);
}

static eg_status take_activation(const char *name, eg_activation activation) {
    if (eg_activation_name(activation) != NULL) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s is %d; expected an EG_ACT_ value", name, (int)activation);
}

static eg_status check_from_y(const char *source, eg_activation activation) {
    if (eg_activation_from_y(activation)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "%s is EG_SOURCE_Y with activation %s; expected one whose derivative is a function of y "
                   "(%s)",
                   source, eg_activation_name(activation), EG_NAMES_FROM_Y);
}

/* One that f32 rounds to nothing, or to infinity, would leave nothing of the products. */
static eg_status take_scale(double scale, eg_problem *problem) {
    const double rounded = problem->compute == EG_F64 ? scale : (double)(float)scale;
    const double least = problem->compute == EG_F64 ? DBL_MIN : (double)FLT_MIN;
    problem->scale = scale == 0 ? 1 : rounded;
    if (scale == 0 || (isfinite(rounded) && fabs(rounded) >= least)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "layer.scale is %g; expected a finite number that is normal in %s, or 0 for 1", scale,
                   eg_dtype_name(problem->compute));
}

/* Ends of groups are int32. */
static eg_status check_groups(const eg_layer *layer) {
    if (layer->groups < 0 || layer->groups > INT32_MAX)
        return eg_fail(EG_ERR_ARGUMENT, "layer.groups is %lld; expected 0 to 2^31 - 1",
                       (long long)layer->groups);
    if (layer->groups > 0 && layer->batch > 1)
        return eg_fail(EG_ERR_ARGUMENT, "layer.batch is %lld with layer.groups %lld; expected 0 or 1",
                       (long long)layer->batch, (long long)layer->groups);
    if (layer->groups > 0 && layer->outer_batch > 1)
        return eg_fail(EG_ERR_ARGUMENT, "layer.outer_batch is %lld with layer.groups %lld; expected 0 or 1",
                       (long long)layer->outer_batch, (long long)layer->groups);
    if (layer->groups == 0 || layer->m <= INT32_MAX) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "layer.m is %lld with layer.groups %lld; expected 0 to 2^31 - 1",
                   (long long)layer->m, (long long)layer->groups);
}

static eg_status take_layer(eg_addressing addressing, const eg_layer *given, eg_problem *problem) {
    eg_layer copy;
    const void *known = given;
    if (given == NULL) return eg_fail(EG_ERR_ARGUMENT, "layer is NULL; expected an eg_layer");
    EG_TRY(eg_take_known("layer", &known, given->size, offsetof(eg_layer, scale), sizeof copy, &copy));
    const eg_layer *layer = known;
    int64_t batch = 1;
    EG_TRY(check_size("m", layer->m));
    EG_TRY(check_size("k", layer->k));
    EG_TRY(check_size("n", layer->n));
    EG_TRY(check_batch(layer, &batch));
    EG_TRY(check_groups(layer));
    EG_TRY(eg_validate_enum("layer.dtype", (int)layer->dtype, EG_BF16, "EG_F32, EG_F64, EG_F16 or EG_BF16"));
    EG_TRY(take_activation("layer.activation", layer->activation));
    EG_TRY(eg_validate_enum("layer.math", (int)layer->math, EG_MATH_FAST, "an EG_MATH_ value"));
    EG_TRY(eg_validate_enum("layer.nonfinite", (int)layer->nonfinite, EG_NONFINITE_PROPAGATE,
                            "an EG_NONFINITE_ value"));
    *problem = (eg_problem){
        .addressing = addressing,
        .m = layer->m,
        .k = layer->k,
        .n = layer->n,
        .batch = batch,
        .inner = layer->batch == 0 ? 1 : layer->batch,
        .grouped = layer->groups > 0,
        .dtype = layer->dtype == EG_DTYPE_DEFAULT ? EG_F32 : layer->dtype,
        .math = layer->math,
        .activation = layer->activation,
        .propagate = layer->nonfinite == EG_NONFINITE_PROPAGATE,
    };
    if (problem->grouped) problem->batch = problem->inner = layer->groups;
    problem->compute = problem->dtype == EG_F64 ? EG_F64 : EG_F32;
    return take_scale(layer->scale, problem);
}

/* Their values are looked at when the call runs. */
static eg_status take_offsets(const eg_offsets *offsets, size_t limit, eg_problem *problem) {
    const eg_matrix row = {.data = offsets->data, .offset = offsets->offset, .dtype = EG_F32};
    if (!problem->grouped && offsets->data != NULL)
        return eg_fail(EG_ERR_ARGUMENT, "offsets is given with layer.groups 0; expected groups, or none");
    if (!problem->grouped) return EG_OK;
    if (offsets->data == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "offsets is absent (data is NULL); expected the ends of %lld groups",
                       (long long)problem->batch);
    if (limit != 0)
        return eg_fail(EG_ERR_UNSUPPORTED, "workspace_limit is %zu with layer.groups %lld; expected no limit",
                       limit, (long long)problem->batch);
    return eg_take_matrix(problem, EG_OP_OFFSETS, &row, 0);
}

static eg_status require_b(const eg_problem *problem, const char *why) {
    return problem->packed_b != NULL ? EG_OK : eg_require(problem, EG_OP_B, why);
}

static eg_status require_b_up(const eg_problem *problem, const char *why) {
    return problem->packed_b_up != NULL ? EG_OK : eg_require(problem, EG_OP_B_UP, why);
}

/* ---- Overlaps ----------------------------------------------------------------------------------- */

/* Of two that overlap: they begin at one place, and are as far from row to row, column to column and item to
 * item, where there is more than one. */
static bool same_elements(const eg_problem *problem, const eg_operand *x, const eg_operand *y) {
    return eg_begin(problem, x->data, x->offset) == eg_begin(problem, y->data, y->offset) &&
           x->dtype == y->dtype && (x->rows <= 1 || x->row_stride == y->row_stride) &&
           (x->cols <= 1 || x->col_stride == y->col_stride) &&
           (problem->batch <= 1 || (x->batch_stride == y->batch_stride && x->outer.inner == y->outer.inner &&
                                    x->outer.stride == y->outer.stride));
}

static bool may_alias(eg_operand_id input, eg_operand_id output) {
    return (input == EG_OP_RESIDUAL && output == EG_OP_Y) ||
           (input == EG_OP_GRAD && output == EG_OP_GRAD_PRE) ||
           (input == EG_OP_D_A_RESIDUAL && output == EG_OP_D_A);
}

static eg_status fail_overlap(const eg_problem *problem, int out, int other, eg_overlap_verdict verdict) {
    const eg_operand *written = &problem->operands[out], *touched = &problem->operands[other];
    return eg_fail(
        EG_ERR_ARGUMENT,
        "%s at %p %s %s at %p; expected separate memory (only y and residual, grad_pre and grad, or d_a and "
        "residual, may be the same, element for element)",
        eg_operand_name(problem, (eg_operand_id)out), (void *)((char *)written->data + written->offset),
        verdict == EG_OVERLAP ? "overlaps" : "may overlap (its strides are too irregular to tell)",
        eg_operand_name(problem, (eg_operand_id)other), (void *)((char *)touched->data + touched->offset));
}

static eg_status check_overlaps(const eg_problem *problem) {
    for (int out = EG_OP_Y; out < EG_OPERANDS; out++) {
        const eg_operand *written = &problem->operands[out];
        for (int other = 0; other < out && written->data != NULL; other++) {
            const eg_operand *touched = &problem->operands[other];
            if (touched->data == NULL) continue;
            if (may_alias((eg_operand_id)other, (eg_operand_id)out) &&
                same_elements(problem, written, touched))
                continue;
            const eg_overlap_verdict verdict = eg_overlap(problem, written, touched);
            if (verdict != EG_APART) return fail_overlap(problem, out, other, verdict);
        }
    }
    return EG_OK;
}

static eg_status check_workspace(const eg_problem *problem, const eg_workspace *workspace) {
    if (workspace->data == NULL) return EG_OK;
    if (eg_out_of_range(problem->addressing, workspace->data, workspace->offset, workspace->bytes)) {
        return eg_fail(
            EG_ERR_ARGUMENT,
            "workspace is too large: %zu bytes at %p + offset %zu; expected an end that has an address, "
            "at most 2^62 bytes from its data",
            workspace->bytes, workspace->data, workspace->offset);
    }
    if (eg_begin(problem, workspace->data, workspace->offset) % 64 == 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "workspace at %p + offset %zu is misaligned; expected a multiple of 64 bytes",
                   workspace->data, workspace->offset);
}

/* ---- The calls ---------------------------------------------------------------------------------- */

/* The pair of pre-activations is written or read as one. */
static eg_status check_pair(const eg_problem *problem, eg_operand_id pre, eg_operand_id pre_up) {
    if (eg_wants(problem, pre) == eg_wants(problem, pre_up)) return EG_OK;
    const bool has_pre = eg_wants(problem, pre);
    return eg_fail(EG_ERR_ARGUMENT, "%s is given without %s for a gated unit; expected both or neither",
                   has_pre ? "pre" : "pre_up", has_pre ? "pre_up" : "pre");
}

static eg_status take_gated_forward(const eg_forward_args *args, eg_problem *problem) {
    problem->packed_b_up = args->packed_b_up;
    problem->gated = args->b_up.data != NULL || args->packed_b_up != NULL || args->bias_up.data != NULL ||
                     args->pre_up.data != NULL;
    if (!problem->gated) return EG_OK;
    EG_TRY(eg_take_matrix(problem, EG_OP_B_UP, &args->b_up, args->outer.b_up));
    EG_TRY(eg_take_vector(problem, EG_OP_BIAS_UP, &args->bias_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_PRE_UP, &args->pre_up, args->outer.pre_up));
    EG_TRY(require_b_up(problem, "to multiply"));
    if (!eg_wants(problem, EG_OP_RESIDUAL)) return check_pair(problem, EG_OP_PRE, EG_OP_PRE_UP);
    return eg_fail(EG_ERR_ARGUMENT, "residual is given for a gated unit (b_up); expected none");
}

eg_status eg_validate_forward(eg_addressing addressing, const eg_layer *layer, const eg_forward_args *given,
                              eg_problem *problem) {
    eg_forward_args copy;
    const void *known = given;
    EG_TRY(take_layer(addressing, layer, problem));
    if (given == NULL) return eg_fail(EG_ERR_ARGUMENT, "args is NULL; expected an eg_forward_args");
    EG_TRY(eg_take_known("args", &known, given->size, offsetof(eg_forward_args, b_up), sizeof copy, &copy));
    const eg_forward_args *args = known;
    problem->packed_b = args->packed_b;
    EG_TRY(eg_take_tensor_parallel(&args->tensor_parallel, args->workspace_limit, problem));
    EG_TRY(eg_take_matrix(problem, EG_OP_GATHERED, &args->tensor_parallel.gathered, 0));
    EG_TRY(eg_take_matrix(problem, EG_OP_A, &args->a, args->outer.a));
    EG_TRY(eg_take_matrix(problem, EG_OP_B, &args->b, args->outer.b));
    EG_TRY(eg_take_vector(problem, EG_OP_BIAS, &args->bias));
    EG_TRY(eg_take_matrix(problem, EG_OP_RESIDUAL, &args->residual, args->outer.residual));
    EG_TRY(eg_take_matrix(problem, EG_OP_Y, &args->y, args->outer.y));
    EG_TRY(eg_take_matrix(problem, EG_OP_PRE, &args->pre, args->outer.pre));
    EG_TRY(take_offsets(&args->offsets, args->workspace_limit, problem));
    EG_TRY(check_workspace(problem, &args->workspace));

    EG_TRY(eg_require(problem, EG_OP_Y, "to write"));
    EG_TRY(eg_require(problem, EG_OP_A, "to multiply"));
    EG_TRY(require_b(problem, "to multiply"));
    EG_TRY(take_gated_forward(args, problem));
    if (eg_wants(problem, EG_OP_RESIDUAL) && problem->activation != EG_ACT_NONE) {
        return eg_fail(EG_ERR_ARGUMENT, "residual is given with activation %s; expected EG_ACT_NONE",
                       eg_activation_name(problem->activation));
    }
    EG_TRY(eg_check_tensor_parallel(problem));
    return check_overlaps(problem);
}

/* Of a gated unit below: its gate is `chain`. */
static eg_status take_chain_up(const eg_backward_args *args, eg_problem *problem) {
    const eg_chain_up *chain = &args->chain_up;
    const eg_backward_outer *outer = &args->outer;
    if (chain->saved.data == NULL) {
        const char *given = chain->d_up.data != NULL     ? "d_up"
                            : chain->y.data != NULL      ? "y"
                            : chain->d_bias.data != NULL ? "d_bias"
                                                         : NULL;
        if (given == NULL) return EG_OK;
        return eg_fail(EG_ERR_ARGUMENT, "chain_up.%s is given without chain_up.saved; expected both", given);
    }
    EG_TRY(eg_take_matrix(problem, EG_OP_BELOW_UP, &chain->saved, outer->chain_up_saved));
    EG_TRY(eg_take_matrix(problem, EG_OP_D_UP_BELOW, &chain->d_up, outer->chain_up_d_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_Y_BELOW, &chain->y, outer->chain_up_y));
    EG_TRY(eg_take_vector(problem, EG_OP_D_BIAS_UP_BELOW, &chain->d_bias));
    if (!eg_wants(problem, EG_OP_BELOW))
        return eg_fail(EG_ERR_ARGUMENT, "chain_up.saved is given without chain.saved; expected both");
    if (problem->below_source != EG_SOURCE_PRE)
        return eg_fail(EG_ERR_ARGUMENT, "chain.source is EG_SOURCE_Y with chain_up.saved; expected "
                                        "EG_SOURCE_PRE");
    return eg_require(problem, EG_OP_D_UP_BELOW, "for chain_up");
}

/* Enumerators are looked at in calls that do not use them, too: a wrong one says that the struct was not
 * cleared, or is another one. */
static eg_status take_chain(const eg_backward_args *args, eg_problem *problem) {
    const eg_chain *chain = &args->chain;
    EG_TRY(take_activation("chain.activation", chain->activation));
    EG_TRY(eg_validate_enum("chain.source", (int)chain->source, EG_SOURCE_Y,
                            "EG_SOURCE_PRE or EG_SOURCE_Y, or 0 without chain.saved"));
    if (chain->saved.data == NULL) {
        if (chain->d_bias.data == NULL) return EG_OK;
        return eg_fail(EG_ERR_ARGUMENT, "chain.d_bias is given without chain.saved; expected both");
    }
    if (chain->source == EG_SOURCE_RECOMPUTE)
        return eg_fail(EG_ERR_ARGUMENT, "chain.source is 0; expected EG_SOURCE_PRE or EG_SOURCE_Y");
    if (chain->source == EG_SOURCE_Y) EG_TRY(check_from_y("chain.source", chain->activation));
    problem->below_activation = chain->activation;
    problem->below_source = chain->source;
    EG_TRY(eg_take_matrix(problem, EG_OP_BELOW, &chain->saved, args->outer.chain_saved));
    EG_TRY(eg_take_vector(problem, EG_OP_D_BIAS_BELOW, &chain->d_bias));
    const eg_operand *d_a = &problem->operands[EG_OP_D_A];
    if (d_a->data == NULL) return eg_fail(EG_ERR_ARGUMENT, "chain.saved is given without d_a; expected both");
    if (problem->batch != 1 && !eg_has_items(d_a) && !problem->grouped) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "d_a.batch_stride is 0 with chain.saved and batch %lld; expected a d_a that is "
                       "not summed over the batch",
                       (long long)problem->batch);
    }
    return EG_OK;
}

/* act' of an activation other than none has to come from somewhere. */
static eg_status take_source(const eg_backward_args *args, eg_problem *problem) {
    EG_TRY(eg_validate_enum("source", (int)args->source, EG_SOURCE_Y,
                            "EG_SOURCE_RECOMPUTE, EG_SOURCE_PRE or EG_SOURCE_Y"));
    problem->source = args->source;
    if (args->source == EG_SOURCE_RECOMPUTE) {
        if (args->pre.data == NULL && args->y.data == NULL) return EG_OK;
        const char *name = args->pre.data != NULL ? "pre" : "y";
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s is given, and source is EG_SOURCE_RECOMPUTE (0, its default), which does not read "
                       "it; expected source EG_SOURCE_%s, or no %s",
                       name, args->pre.data != NULL ? "PRE" : "Y", name);
    }
    if (args->source == EG_SOURCE_Y) EG_TRY(check_from_y("source", problem->activation));
    const bool pre = args->source == EG_SOURCE_PRE;
    return eg_take_matrix(problem, EG_OP_SAVED, pre ? &args->pre : &args->y,
                          pre ? args->outer.pre : args->outer.y);
}

/* What makes a layer a gated unit where it is given. */
static bool is_of_up(eg_operand_id id) {
    return id == EG_OP_B_UP || id == EG_OP_BIAS_UP || id == EG_OP_SAVED_UP || id == EG_OP_GRAD_UP ||
           id == EG_OP_D_B_UP || id == EG_OP_D_BIAS_UP || id == EG_OP_GRAD_PRE_UP;
}

/* The other half of a gated unit. */
static eg_status take_gated_backward(const eg_backward_args *args, eg_problem *problem) {
    problem->packed_b_up = args->packed_b_up;
    EG_TRY(eg_take_matrix(problem, EG_OP_B_UP, &args->b_up, args->outer.b_up));
    EG_TRY(eg_take_vector(problem, EG_OP_BIAS_UP, &args->bias_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_SAVED_UP, &args->pre_up, args->outer.pre_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_GRAD_UP, &args->grad_up, args->outer.grad_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_D_B_UP, &args->d_b_up, args->outer.d_b_up));
    EG_TRY(eg_take_vector(problem, EG_OP_D_BIAS_UP, &args->d_bias_up));
    EG_TRY(eg_take_matrix(problem, EG_OP_GRAD_PRE_UP, &args->grad_pre_up, args->outer.grad_pre_up));
    problem->gated = problem->packed_b_up != NULL;
    for (int id = 0; id < EG_OPERANDS; id++)
        problem->gated = problem->gated || (is_of_up((eg_operand_id)id) && eg_wants(problem, id));
    if (!problem->gated) return EG_OK;
    if (eg_wants(problem, EG_OP_GRAD_UP) && problem->activation != EG_ACT_NONE)
        return eg_fail(EG_ERR_ARGUMENT, "grad_up is given with activation %s; expected EG_ACT_NONE",
                       eg_activation_name(problem->activation));
    if (problem->source == EG_SOURCE_Y)
        return eg_fail(EG_ERR_ARGUMENT, "source is EG_SOURCE_Y for a gated unit; expected "
                                        "EG_SOURCE_RECOMPUTE or EG_SOURCE_PRE");
    if (problem->source == EG_SOURCE_RECOMPUTE && eg_wants(problem, EG_OP_SAVED_UP))
        return eg_fail(EG_ERR_ARGUMENT,
                       "pre_up is given, and source is EG_SOURCE_RECOMPUTE (0, its default), "
                       "which does not read it; expected source EG_SOURCE_PRE, or no pre_up");
    return EG_OK;
}

/* What both gradients need: act(pre) is in each, pre_up in that of the gate. */
static eg_status require_gated_inputs(const eg_problem *problem) {
    const bool d_a = eg_wants(problem, EG_OP_D_A), gate = eg_wants_gate(problem);
    if (!gate && !eg_wants_up(problem)) return EG_OK;
    const bool made = eg_wants(problem, EG_OP_GRAD_UP), recompute = problem->source == EG_SOURCE_RECOMPUTE;
    EG_TRY(eg_require(problem, EG_OP_GRAD, "to propagate"));
    if (!made && !recompute) {
        EG_TRY(eg_require(problem, EG_OP_SAVED, "as source says"));
        if (gate) EG_TRY(eg_require(problem, EG_OP_SAVED_UP, "as source says"));
    }
    if (!made && recompute) {
        EG_TRY(eg_require(problem, EG_OP_A, "to recompute pre"));
        EG_TRY(require_b(problem, "to recompute pre"));
        if (gate) EG_TRY(require_b_up(problem, "to recompute pre_up"));
    }
    if (eg_wants(problem, EG_OP_D_B)) EG_TRY(eg_require(problem, EG_OP_A, "for d_b"));
    if (eg_wants(problem, EG_OP_D_B_UP)) EG_TRY(eg_require(problem, EG_OP_A, "for d_b_up"));
    if (!d_a) return EG_OK;
    EG_TRY(require_b(problem, "for d_a"));
    return require_b_up(problem, "for d_a");
}

/* What the wanted outputs need: every one of them needs grad_pre. */
static eg_status require_inputs(const eg_problem *problem) {
    if (problem->gated) return require_gated_inputs(problem);
    const bool d_a = eg_wants(problem, EG_OP_D_A), d_b = eg_wants(problem, EG_OP_D_B);
    if (!d_a && !d_b && !eg_wants(problem, EG_OP_D_BIAS) && !eg_wants(problem, EG_OP_GRAD_PRE)) return EG_OK;
    const bool acts = problem->activation != EG_ACT_NONE, recompute = problem->source == EG_SOURCE_RECOMPUTE;
    EG_TRY(eg_require(problem, EG_OP_GRAD, "to propagate"));
    if (acts && !recompute) EG_TRY(eg_require(problem, EG_OP_SAVED, "as source says"));
    if (acts && recompute) EG_TRY(eg_require(problem, EG_OP_A, "to recompute pre"));
    if (acts && recompute) EG_TRY(require_b(problem, "to recompute pre"));
    if (d_b) EG_TRY(eg_require(problem, EG_OP_A, "for d_b"));
    return d_a ? require_b(problem, "for d_a") : EG_OK;
}

/* ---- What is added ------------------------------------------------------------------------------ */

bool eg_adds_to(const eg_problem *problem, eg_operand_id sum) {
    static const eg_into into[EG_OPERANDS] = {[EG_OP_D_B] = EG_INTO_D_B,
                                              [EG_OP_D_BIAS] = EG_INTO_D_BIAS,
                                              [EG_OP_D_BIAS_BELOW] = EG_INTO_CHAIN_D_BIAS,
                                              [EG_OP_D_B_UP] = EG_INTO_D_B_UP,
                                              [EG_OP_D_BIAS_UP] = EG_INTO_D_BIAS_UP,
                                              [EG_OP_D_BIAS_UP_BELOW] = EG_INTO_CHAIN_UP_D_BIAS};
    return (problem->accumulate & (unsigned)into[sum]) != 0;
}

/* A d_a that accumulates is its own residual. With a chain that would be another thing than to add d_a with
 * act' to what is there, so the caller has to say which is meant. */
static eg_status take_accumulated_d_a(eg_problem *problem) {
    if (eg_wants(problem, EG_OP_BELOW))
        return eg_fail(EG_ERR_ARGUMENT,
                       "accumulate_into has EG_INTO_D_A (%d) with chain.saved; expected d_a as residual, "
                       "which is added before act' of the chain, or no chain",
                       (int)EG_INTO_D_A);
    if (eg_wants(problem, EG_OP_D_A_RESIDUAL))
        return eg_fail(EG_ERR_ARGUMENT,
                       "residual is given with EG_INTO_D_A (%d) in accumulate_into; expected one of them",
                       (int)EG_INTO_D_A);
    problem->operands[EG_OP_D_A_RESIDUAL] = problem->operands[EG_OP_D_A];
    return EG_OK;
}

/* A sum over the batch takes one residual, not one for each item. */
static eg_status take_added(const eg_backward_args *args, eg_problem *problem) {
    const uint64_t all = 2 * (uint64_t)EG_INTO_CHAIN_UP_D_BIAS - 1;
    const eg_operand *residual = &problem->operands[EG_OP_D_A_RESIDUAL], *d_a = &problem->operands[EG_OP_D_A];
    EG_TRY(eg_validate_enum("accumulate", args->accumulate, 1, "0 or 1"));
    if (args->accumulate_into > all)
        return eg_fail(EG_ERR_ARGUMENT, "accumulate_into is %llu; expected EG_INTO_ bits, %llu at most",
                       (unsigned long long)args->accumulate_into, (unsigned long long)all);
    problem->accumulate =
        (unsigned)(args->accumulate_into | (args->accumulate != 0 ? all : 0)) & ~(unsigned)EG_INTO_D_A;
    EG_TRY(eg_take_matrix(problem, EG_OP_D_A_RESIDUAL, &args->residual, args->outer.residual));
    if (residual->data != NULL && d_a->data == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "residual is given without d_a; expected both");
    if (residual->data != NULL && problem->batch > 1 && !eg_has_items(d_a) && eg_has_items(residual))
        return eg_fail(
            EG_ERR_ARGUMENT,
            "residual.batch_stride is %lld, its outer stride %lld, with a d_a that is summed over the "
            "batch; expected 0",
            (long long)residual->batch_stride, (long long)residual->outer.stride);
    return (args->accumulate_into & EG_INTO_D_A) != 0 ? take_accumulated_d_a(problem) : EG_OK;
}

/* With a of all ranks that of this one is not read. */
static eg_status take_backward_a(const eg_backward_args *args, eg_problem *problem) {
    const eg_matrix *gathered = &args->tensor_parallel.gathered;
    if (gathered->data == NULL) return eg_take_matrix(problem, EG_OP_A, &args->a, args->outer.a);
    if (args->a.data != NULL)
        return eg_fail(EG_ERR_ARGUMENT, "a is given with tensor_parallel.gathered; expected one of them");
    problem->exchange.gathered = true;
    return eg_take_matrix(problem, EG_OP_A, gathered, 0);
}

eg_status eg_validate_backward(eg_addressing addressing, const eg_layer *layer, const eg_backward_args *given,
                               eg_problem *problem) {
    eg_backward_args copy;
    const void *known = given;
    EG_TRY(take_layer(addressing, layer, problem));
    if (given == NULL) return eg_fail(EG_ERR_ARGUMENT, "args is NULL; expected an eg_backward_args");
    EG_TRY(eg_take_known("args", &known, given->size, offsetof(eg_backward_args, data_parallel), sizeof copy,
                         &copy));
    const eg_backward_args *args = known;
    problem->backward = true;
    problem->packed_b = args->packed_b;
    EG_TRY(eg_take_tensor_parallel(&args->tensor_parallel, args->workspace_limit, problem));
    EG_TRY(take_backward_a(args, problem));
    EG_TRY(eg_take_matrix(problem, EG_OP_B, &args->b, args->outer.b));
    EG_TRY(eg_take_vector(problem, EG_OP_BIAS, &args->bias));
    EG_TRY(eg_take_matrix(problem, EG_OP_GRAD, &args->grad, args->outer.grad));
    EG_TRY(take_source(args, problem));
    EG_TRY(eg_take_matrix(problem, EG_OP_D_A, &args->d_a, args->outer.d_a));
    EG_TRY(eg_take_matrix(problem, EG_OP_D_B, &args->d_b, args->outer.d_b));
    EG_TRY(eg_take_vector(problem, EG_OP_D_BIAS, &args->d_bias));
    EG_TRY(eg_take_matrix(problem, EG_OP_GRAD_PRE, &args->grad_pre, args->outer.grad_pre));
    EG_TRY(take_gated_backward(args, problem));
    EG_TRY(take_chain(args, problem));
    EG_TRY(take_chain_up(args, problem));
    EG_TRY(take_added(args, problem));
    EG_TRY(eg_take_data_parallel(args, problem));
    EG_TRY(take_offsets(&args->offsets, args->workspace_limit, problem));
    EG_TRY(check_workspace(problem, &args->workspace));

    EG_TRY(require_inputs(problem));
    EG_TRY(eg_check_tensor_parallel(problem));
    return check_overlaps(problem);
}

eg_status eg_validate_pack(eg_addressing addressing, const eg_layer *layer, const eg_matrix *b,
                           eg_problem *problem) {
    EG_TRY(take_layer(addressing, layer, problem));
    if (b == NULL) return eg_fail(EG_ERR_ARGUMENT, "b is NULL; expected an eg_matrix");
    if (problem->inner != problem->batch)
        return eg_fail(EG_ERR_ARGUMENT,
                       "layer.outer_batch is %lld for a pack; expected none: a pack is of one level, "
                       "layer.batch its items",
                       (long long)(problem->batch / problem->inner));
    if (b->batch_stride == 0) problem->batch = problem->inner = 1; /* which then fits any batch */
    EG_TRY(eg_take_matrix(problem, EG_OP_B, b, 0));
    return eg_require(problem, EG_OP_B, "to pack");
}

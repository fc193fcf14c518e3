/* SPDX-License-Identifier: Apache-2.0 */
/* What the oracle expects of a case. */
#include <stdlib.h>

#include "check_job.h"

static oracle_matrix input(const check_job *j, check_operand which) {
    const operand *x = &j->set.of[which];
    return (oracle_matrix){x->present ? x->values : NULL, x->items == 1 && j->c->batch != 1};
}

static oracle_result *output(const check_job *j, check_operand which) {
    return j->set.of[which].present ? j->set.of[which].expected : NULL;
}

static const double *before(const check_job *j, check_operand which) {
    return check_adds_to(j->c, which) ? j->set.of[which].values : NULL;
}

/* Matrix units of CPUs read bf16 so, and f32 and f16 scaled; devices may do so everywhere but in f64. */
static bool reads_subnormals_as_0(const check_job *j) {
    return j->rounds_grad_pre && (j->cpu ? j->c->dtype == EG_BF16 : j->c->dtype != EG_F64);
}

static oracle_layer layer_of(const check_job *j) {
    const check_case *c = j->c;
    const bool half = c->dtype == EG_F16 || c->dtype == EG_BF16;
    return (oracle_layer){
        .m = c->m,
        .k = c->k,
        .n = c->n,
        .batch = c->batch,
        .activation = c->activation,
        .nonfinite = c->nonfinite,
        .scale = c->scale == 0 ? 1 : c->scale,
        .dtype = c->dtype,
        .reduced_products = c->math == EG_MATH_FAST && c->dtype == EG_F32,
        .rounds_grad_pre = j->rounds_grad_pre && half,
        .reads_subnormals_as_0 = reads_subnormals_as_0(j),
        .exact_pre = c->data == CHECK_DATA_INTEGERS,
    };
}

static bool expect_forward(check_job *j, const oracle_layer *layer) {
    oracle_result *pre = output(j, CHECK_PRE), *pre_up = output(j, CHECK_PRE_UP);
    const size_t elements = (size_t)(layer->batch * layer->m * layer->n) + 1;
    oracle_result *own = calloc(2 * elements, sizeof *own);
    if (pre == NULL) pre = own;
    if (pre_up == NULL && own != NULL) pre_up = own + elements;
    const oracle_forward_args args = {.a = input(j, CHECK_A),
                                      .b = input(j, CHECK_B),
                                      .bias = j->set.of[CHECK_BIAS].values,
                                      .residual = input(j, CHECK_RESIDUAL),
                                      .pre = pre,
                                      .y = output(j, CHECK_Y),
                                      .b_up = input(j, CHECK_B_UP),
                                      .bias_up = j->set.of[CHECK_BIAS_UP].values,
                                      .pre_up = pre_up};
    const bool ok = own != NULL && oracle_forward(layer, &args);
    free(own);
    return ok;
}

static bool expect_backward(check_job *j, const oracle_layer *layer) {
    const check_case *c = j->c;
    const check_operand added = check_adds_to(c, CHECK_D_A) ? CHECK_D_A : CHECK_D_A_RESIDUAL;
    return oracle_backward(layer, &(oracle_backward_args){
                                      .a = input(j, CHECK_A),
                                      .b = input(j, CHECK_B),
                                      .bias = j->set.of[CHECK_BIAS].values,
                                      .grad = input(j, CHECK_GRAD),
                                      .source = c->source,
                                      .saved = input(j, CHECK_SAVED),
                                      .below = input(j, CHECK_BELOW),
                                      .below_source = c->below_source,
                                      .below_activation = c->below_activation,
                                      .d_a_shared = j->set.of[CHECK_D_A].batch_stride == 0,
                                      .d_b_shared = j->set.of[CHECK_D_B].batch_stride == 0,
                                      .d_a_before = input(j, added),
                                      .d_b_before = before(j, CHECK_D_B),
                                      .d_bias_before = before(j, CHECK_D_BIAS),
                                      .d_bias_below_before = before(j, CHECK_D_BIAS_BELOW),
                                      .d_a = output(j, CHECK_D_A),
                                      .d_b = output(j, CHECK_D_B),
                                      .d_bias = output(j, CHECK_D_BIAS),
                                      .grad_pre = output(j, CHECK_GRAD_PRE),
                                      .d_bias_below = output(j, CHECK_D_BIAS_BELOW),
                                      .gated = c->gated,
                                      .made = j->set.of[CHECK_GRAD_UP].present,
                                      .b_up = input(j, CHECK_B_UP),
                                      .bias_up = j->set.of[CHECK_BIAS_UP].values,
                                      .saved_up = input(j, CHECK_SAVED_UP),
                                      .grad_up = input(j, CHECK_GRAD_UP),
                                      .d_b_up_shared = j->set.of[CHECK_D_B_UP].batch_stride == 0,
                                      .d_b_up_before = before(j, CHECK_D_B_UP),
                                      .d_bias_up_before = before(j, CHECK_D_BIAS_UP),
                                      .d_b_up = output(j, CHECK_D_B_UP),
                                      .d_bias_up = output(j, CHECK_D_BIAS_UP),
                                      .grad_pre_up = output(j, CHECK_GRAD_PRE_UP),
                                      .below_up = input(j, CHECK_BELOW_UP),
                                      .d_bias_up_below_before = before(j, CHECK_D_BIAS_UP_BELOW),
                                      .d_up_below = output(j, CHECK_D_UP_BELOW),
                                      .y_below = output(j, CHECK_Y_BELOW),
                                      .d_bias_up_below = output(j, CHECK_D_BIAS_UP_BELOW),
                                  });
}

static bool expect_call(check_job *j, const oracle_layer *layer) {
    return j->c->backward ? expect_backward(j, layer) : expect_forward(j, layer);
}

/* A group is a layer of its own. */
static bool expect_group(const check_job *whole, int group) {
    check_job j = *whole;
    const int64_t first = check_end(j.c, group - 1);
    oracle_layer layer = layer_of(&j);
    layer.m = check_end(j.c, group) - first;
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &j.set.of[i];
        if (!x->present) continue;
        const int64_t item = x->items > 1 ? group * x->rows * x->cols : 0;
        const int64_t elements = operand_has_rows((check_operand)i) ? first * x->cols : item;
        x->values += elements;
        x->expected += elements;
    }
    return expect_call(&j, &layer);
}

/* Once a case, and only for what the library took: it is most of the time of a case. */
bool check_expect(check_job *j) {
    const oracle_layer layer = layer_of(j);
    if (!j->expects && j->c->groups == 0) j->expects = expect_call(j, &layer);
    for (int group = 0; !j->expects && group < j->c->groups; group++) {
        if (!expect_group(j, group)) return false;
        j->expects = group + 1 == j->c->groups;
    }
    return j->expects;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One case: the library's results, once for each place that memory can stand in, beside the oracle's. */
#include "check_job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static check_result fail(check_job *j, const char *format, ...) {
    char what[384], how[640];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    check_describe(j->c, how, sizeof how);
    snprintf(j->report->message, sizeof j->report->message, "%s  [%s]", what, how);
    return CHECK_FAILED;
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static check_result open_operands(check_job *j, memory_place place) {
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &j->set.of[i];
        if (!x->present || x->home != (check_operand)i) continue;
        const size_t bytes = x->room + (place == MEMORY_GUARD_BEHIND ? 0 : OPERAND_SPARE);
        if (!memory_open(&x->place, j->context, place, bytes))
            return fail(j, "no memory for %zu bytes", bytes);
        if (memory_write(&x->place, j->context, x->image) != EG_OK)
            return fail(j, "upload: %s", eg_last_error());
    }
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        operand *x = &j->set.of[i];
        if (x->present) x->place = j->set.of[x->home].place;
    }
    return CHECK_PASSED;
}

static check_result open_ends(check_job *j, memory_place place) {
    int32_t ends[64];
    const size_t bytes = (size_t)j->c->groups * sizeof *ends;
    if (j->c->groups == 0) return CHECK_PASSED;
    for (int i = 0; i < j->c->groups; i++) ends[i] = (int32_t)check_end(j->c, i);
    const bool made = memory_open(&j->ends, j->context, place, bytes);
    return made && memory_write(&j->ends, j->context, ends) == EG_OK ? CHECK_PASSED
                                                                     : fail(j, "no memory for offsets");
}

static void close_operands(check_job *j) {
    eg_packed_free(j->context, j->packed);
    eg_packed_free(j->context, j->packed_up);
    j->packed = j->packed_up = NULL;
    memory_close(&j->workspace, j->context);
    memory_close(&j->ends, j->context);
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        if (j->set.of[i].home == (check_operand)i) memory_close(&j->set.of[i].place, j->context);
        j->set.of[i].place.data = NULL;
    }
}

/* ---- The call ----------------------------------------------------------------------------------- */

static check_result refused(check_job *j, const char *call, eg_status status) {
    fail(j, "%s: %s: %s", call, eg_status_name(status), eg_last_error());
    return status == EG_ERR_UNSUPPORTED ? CHECK_UNSUPPORTED : CHECK_FAILED;
}

static eg_layer public_layer(const check_case *c) {
    const int64_t inner = c->outer > 0 ? c->batch / c->outer : c->batch;
    return (eg_layer){.size = sizeof(eg_layer),
                      .m = c->m,
                      .k = c->k,
                      .n = c->n,
                      .batch = inner == 1 && c->seed % 2 == 0 ? 0 : inner, /* 0 means 1 */
                      .dtype = c->dtype,
                      .activation = c->activation,
                      .math = c->math,
                      .nonfinite = c->nonfinite,
                      .scale = c->scale,
                      .outer_batch = c->outer,
                      .groups = c->groups};
}

/* Overwrites b on the device, where it lies alone. */
static eg_status spoil(check_job *j, const operand *b) {
    memset(b->after, 0x3c, b->room + OPERAND_SPARE); /* an ordinary number in every data type */
    return memory_write(&b->place, j->context, b->after);
}

/* What is packed, with the case's b or its b_up. */
static bool is_packed(const check_job *j, int which) {
    if (j->c->pack == CHECK_PACK_NONE) return false;
    return which == CHECK_B || (which == CHECK_B_UP && (check_needed(j->c) & CHECK_BIT(CHECK_B_UP)) != 0);
}

static check_result pack_one(check_job *j, check_operand which, eg_packed **packed) {
    const operand *b = &j->set.of[which];
    eg_layer layer = public_layer(j->c);
    layer.m = j->c->pack_m > 0 ? j->c->pack_m : layer.m + 5;               /* m is free */
    if (j->c->outer > 0) layer.batch = j->c->batch, layer.outer_batch = 0; /* a pack is of one level */
    const eg_matrix matrix = operand_matrix(b, j->c);
    eg_status status = EG_OK;
    if (j->c->pack == CHECK_PACK_UPDATED) status = spoil(j, b);
    if (status == EG_OK) status = eg_pack_b(j->context, &layer, &matrix, packed);
    if (status != EG_OK) return refused(j, "eg_pack_b", status);
    if (j->c->pack == CHECK_PACK_UPDATED) {
        status = eg_sync(j->context);
        if (status == EG_OK) status = memory_write(&b->place, j->context, b->image);
        if (status == EG_OK) status = eg_packed_update(j->context, *packed, &matrix);
    }
    if (j->c->pack == CHECK_PACK_COPY) {
        status = eg_sync(j->context);
        if (status == EG_OK) status = spoil(j, b);
    }
    return status == EG_OK ? CHECK_PASSED : refused(j, "packing b", status);
}

/* Both of a gated unit, where it needs both. */
static check_result pack(check_job *j) {
    if (j->c->pack == CHECK_PACK_NONE) return CHECK_PASSED;
    const check_result packed = pack_one(j, CHECK_B, &j->packed);
    if (packed != CHECK_PASSED || !is_packed(j, CHECK_B_UP)) return packed;
    return pack_one(j, CHECK_B_UP, &j->packed_up);
}

/* The caller's workspace has exactly the bytes asked for, full of NaN, and a tail to watch; and a head, but
 * for where it is to begin after a page that cannot be touched. */
static check_result open_workspace(check_job *j, memory_place place, size_t bytes, eg_workspace *workspace) {
    enum { ALIGN = 64 };
    const size_t offset = place == MEMORY_GUARD_BEFORE ? 0 : ALIGN,
                 whole = offset + (bytes / ALIGN + 1) * ALIGN;
    unsigned char *poison = malloc(whole);
    if (poison == NULL || !memory_open(&j->workspace, j->context, place, whole)) {
        free(poison);
        return fail(j, "no memory for a workspace of %zu bytes", bytes);
    }
    memset(poison, 0xff, whole);
    const eg_status status = memory_write(&j->workspace, j->context, poison);
    free(poison);
    if (status != EG_OK) return fail(j, "upload: %s", eg_last_error());
    *workspace = (eg_workspace){.data = j->workspace.data, .offset = offset, .bytes = bytes};
    j->given = *workspace;
    return CHECK_PASSED;
}

/* ---- The limit ---------------------------------------------------------------------------------- */

/* One call of eg_*_workspace. */
typedef struct question {
    const eg_layer *layer;
    const eg_forward_args *forward; /* or */
    const eg_backward_args *backward;
} question;

static eg_status workspace_of(const check_job *j, const question *q, size_t limit, size_t *bytes) {
    if (q->forward != NULL) {
        eg_forward_args args = *q->forward;
        args.workspace_limit = limit;
        return eg_forward_workspace(j->context, q->layer, &args, bytes);
    }
    eg_backward_args args = *q->backward;
    args.workspace_limit = limit;
    return eg_backward_workspace(j->context, q->layer, &args, bytes);
}

/* The message that refuses a limit of one byte names the least that is enough. */
static size_t least_limit(const check_job *j, const question *q) {
    size_t bytes = 0;
    if (workspace_of(j, q, 1, &bytes) == EG_OK) return 1;
    const char *named = strstr(eg_last_error(), "expected at least ");
    return named != NULL ? (size_t)strtoull(named + strlen("expected at least "), NULL, 10) : 1;
}

static check_result choose_limit(check_job *j, const question *q, size_t *limit) {
    size_t whole = 0, bytes = 0;
    if (j->c->limit == CHECK_LIMIT_NONE) return CHECK_PASSED;
    if (j->run > 0 && j->c->repeated) { /* the same call, also where other threads need more workspace */
        *limit = j->limit;
        return CHECK_PASSED;
    }
    eg_status status = workspace_of(j, q, 0, &whole);
    if (status != EG_OK) return refused(j, "eg_*_workspace", status);
    *limit = least_limit(j, q);
    const size_t part = j->c->limit_part > 0 ? (size_t)j->c->limit_part : 50;
    if (j->c->limit == CHECK_LIMIT_MORE && whole > *limit) *limit += (whole - *limit) / 100 * part;
    j->limit = *limit;
    status = workspace_of(j, q, *limit, &bytes);
    if (status != EG_OK) return refused(j, "eg_*_workspace with a limit", status);
    return bytes <= *limit ? CHECK_PASSED : fail(j, "workspace of %zu with a limit of %zu", bytes, *limit);
}

/* Whether the plan says that it has several chunks, and a d_b whose own memory holds half of its sums. */
static void look_at_chunks(const check_job *j, const question *q) {
    char text[1024] = "";
    if (q->forward != NULL) {
        eg_forward_plan(j->context, q->layer, q->forward, text, sizeof text);
    } else {
        eg_backward_plan(j->context, q->layer, q->backward, text, sizeof text);
    }
    j->report->chunks = strncmp(text, "chunks of", 9) == 0;
    j->report->in_result = strstr(text, "in its own memory") != NULL;
}

/* ---- The two calls ------------------------------------------------------------------------------ */

static eg_matrix matrix_of(const check_job *j, check_operand which) {
    return operand_matrix(&j->set.of[which], j->c);
}
static eg_vector vector_of(const check_job *j, check_operand which) {
    return operand_vector(&j->set.of[which], j->c);
}

static int64_t outer_of(const check_job *j, check_operand which) { return j->set.of[which].outer_stride; }

static check_result call_forward(check_job *j, memory_place place) {
    const eg_layer layer = public_layer(j->c);
    eg_forward_args args = {.size = sizeof args,
                            .a = matrix_of(j, CHECK_A),
                            .b = matrix_of(j, CHECK_B),
                            .bias = vector_of(j, CHECK_BIAS),
                            .residual = matrix_of(j, CHECK_RESIDUAL),
                            .y = matrix_of(j, CHECK_Y),
                            .pre = matrix_of(j, CHECK_PRE),
                            .packed_b = j->packed,
                            .b_up = matrix_of(j, CHECK_B_UP),
                            .bias_up = vector_of(j, CHECK_BIAS_UP),
                            .pre_up = matrix_of(j, CHECK_PRE_UP),
                            .packed_b_up = j->packed_up,
                            .outer = {.a = outer_of(j, CHECK_A),
                                      .b = outer_of(j, CHECK_B),
                                      .residual = outer_of(j, CHECK_RESIDUAL),
                                      .y = outer_of(j, CHECK_Y),
                                      .pre = outer_of(j, CHECK_PRE),
                                      .b_up = outer_of(j, CHECK_B_UP),
                                      .pre_up = outer_of(j, CHECK_PRE_UP)},
                            .offsets = {.data = j->ends.data}};
    if (j->c->pack == CHECK_PACK_ALONE) args.b.data = NULL;
    if (j->c->pack == CHECK_PACK_ALONE && j->packed_up != NULL) args.b_up.data = NULL;
    const question q = {.layer = &layer, .forward = &args};
    const check_result limited = choose_limit(j, &q, &args.workspace_limit);
    if (limited != CHECK_PASSED) return limited;
    look_at_chunks(j, &q);
    if (j->c->own_workspace) {
        size_t bytes = 0;
        const eg_status sized = eg_forward_workspace(j->context, &layer, &args, &bytes);
        if (sized != EG_OK) return refused(j, "eg_forward_workspace", sized);
        bytes += j->c->more_workspace;
        if (open_workspace(j, place, bytes, &args.workspace) != CHECK_PASSED) return CHECK_FAILED;
    }
    const eg_status status = eg_forward(j->context, &layer, &args);
    return status == EG_OK ? CHECK_PASSED : refused(j, "eg_forward", status);
}

static eg_backward_args backward_args(const check_job *j) {
    const check_case *c = j->c;
    eg_backward_args args = {.size = sizeof args,
                             .a = matrix_of(j, CHECK_A),
                             .b = matrix_of(j, CHECK_B),
                             .bias = vector_of(j, CHECK_BIAS),
                             .grad = matrix_of(j, CHECK_GRAD),
                             .source = c->source,
                             .d_a = matrix_of(j, CHECK_D_A),
                             .d_b = matrix_of(j, CHECK_D_B),
                             .d_bias = vector_of(j, CHECK_D_BIAS),
                             .grad_pre = matrix_of(j, CHECK_GRAD_PRE),
                             .accumulate = c->accumulate,
                             .chain = {.saved = matrix_of(j, CHECK_BELOW),
                                       .source = c->below_source,
                                       .activation = c->below_activation,
                                       .d_bias = vector_of(j, CHECK_D_BIAS_BELOW)},
                             .packed_b = j->packed,
                             .b_up = matrix_of(j, CHECK_B_UP),
                             .bias_up = vector_of(j, CHECK_BIAS_UP),
                             .grad_up = matrix_of(j, CHECK_GRAD_UP),
                             .d_b_up = matrix_of(j, CHECK_D_B_UP),
                             .d_bias_up = vector_of(j, CHECK_D_BIAS_UP),
                             .grad_pre_up = matrix_of(j, CHECK_GRAD_PRE_UP),
                             .packed_b_up = j->packed_up,
                             .chain_up = {.saved = matrix_of(j, CHECK_BELOW_UP),
                                          .d_up = matrix_of(j, CHECK_D_UP_BELOW),
                                          .y = matrix_of(j, CHECK_Y_BELOW),
                                          .d_bias = vector_of(j, CHECK_D_BIAS_UP_BELOW)},
                             .residual = matrix_of(j, CHECK_D_A_RESIDUAL),
                             .accumulate_into = c->into,
                             .outer = {.a = outer_of(j, CHECK_A),
                                       .b = outer_of(j, CHECK_B),
                                       .grad = outer_of(j, CHECK_GRAD),
                                       .pre = outer_of(j, CHECK_SAVED),
                                       .y = outer_of(j, CHECK_SAVED),
                                       .d_a = outer_of(j, CHECK_D_A),
                                       .d_b = outer_of(j, CHECK_D_B),
                                       .grad_pre = outer_of(j, CHECK_GRAD_PRE),
                                       .chain_saved = outer_of(j, CHECK_BELOW),
                                       .b_up = outer_of(j, CHECK_B_UP),
                                       .pre_up = outer_of(j, CHECK_SAVED_UP),
                                       .grad_up = outer_of(j, CHECK_GRAD_UP),
                                       .d_b_up = outer_of(j, CHECK_D_B_UP),
                                       .grad_pre_up = outer_of(j, CHECK_GRAD_PRE_UP),
                                       .chain_up_saved = outer_of(j, CHECK_BELOW_UP),
                                       .chain_up_d_up = outer_of(j, CHECK_D_UP_BELOW),
                                       .chain_up_y = outer_of(j, CHECK_Y_BELOW),
                                       .residual = outer_of(j, CHECK_D_A_RESIDUAL)},
                             .offsets = {.data = j->ends.data}};
    if (c->source == EG_SOURCE_PRE) args.pre = matrix_of(j, CHECK_SAVED);
    if (c->source == EG_SOURCE_PRE) args.pre_up = matrix_of(j, CHECK_SAVED_UP);
    if (c->source == EG_SOURCE_Y) args.y = matrix_of(j, CHECK_SAVED);
    if (c->pack == CHECK_PACK_ALONE) args.b.data = NULL;
    if (c->pack == CHECK_PACK_ALONE && j->packed_up != NULL) args.b_up.data = NULL;
    return args;
}

static check_result call_backward(check_job *j, memory_place place) {
    const eg_layer layer = public_layer(j->c);
    eg_backward_args args = backward_args(j);
    const question q = {.layer = &layer, .backward = &args};
    const check_result limited = choose_limit(j, &q, &args.workspace_limit);
    if (limited != CHECK_PASSED) return limited;
    look_at_chunks(j, &q);
    if (j->c->own_workspace) {
        size_t bytes = 0;
        const eg_status sized = eg_backward_workspace(j->context, &layer, &args, &bytes);
        if (sized != EG_OK) return refused(j, "eg_backward_workspace", sized);
        bytes += j->c->more_workspace;
        if (open_workspace(j, place, bytes, &args.workspace) != CHECK_PASSED) return CHECK_FAILED;
    }
    const eg_status status = eg_backward(j->context, &layer, &args);
    return status == EG_OK ? CHECK_PASSED : refused(j, "eg_backward", status);
}

/* ---- The comparison ----------------------------------------------------------------------------- */

static check_result compare_elements(check_job *j, check_operand which) {
    const operand *x = &j->set.of[which];
    const int64_t count = operand_count(x);
    for (operand_walk at = operand_first(x); at.index < count; operand_next(&at)) {
        const int64_t i = at.index;
        const oracle_result expected = x->expected[i];
        const double got = oracle_get(x->after + at.byte, 0, x->dtype);
        if (!at.written) continue;
        const double ratio = oracle_ratio(expected, got, x->dtype);
        if (ratio > j->report->worst) j->report->worst = ratio;
        if (isfinite(ratio)) continue;
        return fail(j, "%s[%lld,%lld,%lld] is %.17g; expected %.17g +- %.2g", operand_name(j->c, which),
                    (long long)(i / x->cols / x->rows), (long long)(i / x->cols % x->rows),
                    (long long)(i % x->cols), got, expected.value, expected.bound);
    }
    return CHECK_PASSED;
}

/* Everything in a home's memory that is no element of an output is what it was. */
static check_result compare_rest(check_job *j, check_operand home) {
    const operand *memory = &j->set.of[home];
    check_operand named = home;
    for (int o = CHECK_Y; o < CHECK_OPERANDS; o++) {
        const operand *x = &j->set.of[o];
        if (!x->present || x->home != home) continue;
        named = (check_operand)o;
        const int64_t count = operand_count(x);
        const size_t bytes = eg_dtype_size(x->dtype);
        for (operand_walk at = operand_first(x); at.index < count; operand_next(&at)) {
            if (at.written) memcpy(x->after + at.byte, x->image + at.byte, bytes);
        }
    }
    if (memcmp(memory->after, memory->image, memory->place.bytes) == 0) return CHECK_PASSED;
    size_t i = 0;
    while (memory->after[i] == memory->image[i]) i++;
    return fail(j, "%s: byte %zu was overwritten, which is %s", operand_name(j->c, named), i,
                operand_is_output(named) ? "no element of it" : "of an input");
}

/* The bits of the first run; of a NaN that it is one. */
static check_result compare_bits(check_job *j, check_operand home) {
    const operand *memory = &j->set.of[home];
    for (int o = CHECK_Y; o < CHECK_OPERANDS; o++) {
        const operand *x = &j->set.of[o];
        if (!x->present || x->home != home) continue;
        const int64_t count = operand_count(x);
        for (operand_walk at = operand_first(x); at.index < count; operand_next(&at)) {
            unsigned char *now = x->after + at.byte, *first = memory->first + at.byte;
            if (!isnan(oracle_get(now, 0, x->dtype)) || !isnan(oracle_get(first, 0, x->dtype))) continue;
            memcpy(now, first, eg_dtype_size(x->dtype));
        }
    }
    if (memcmp(memory->after, memory->first, memory->room) == 0) return CHECK_PASSED;
    size_t i = 0;
    while (memory->after[i] == memory->first[i]) i++;
    return fail(j, "byte %zu of the memory of %s differs from run to run", i, operand_name(j->c, home));
}

static check_result compare_workspace(check_job *j) {
    if (j->workspace.data == NULL) return CHECK_PASSED;
    unsigned char *after = malloc(j->workspace.bytes);
    if (after == NULL || memory_read(&j->workspace, j->context, after) != EG_OK) {
        free(after);
        return fail(j, "downloading the workspace: %s", eg_last_error());
    }
    bool whole = true;
    for (size_t i = 0; i < j->workspace.bytes; i++) {
        const bool inside = i >= j->given.offset && i - j->given.offset < j->given.bytes;
        whole = whole && (inside || after[i] == 0xff);
    }
    free(after);
    return whole ? CHECK_PASSED : fail(j, "bytes around the workspace were overwritten");
}

static check_result compare_home(check_job *j, check_operand home) {
    const operand *memory = &j->set.of[home];
    if (memory_read(&memory->place, j->context, memory->after) != EG_OK)
        return fail(j, "download: %s", eg_last_error());
    if (j->c->repeated && j->run > 0) return compare_bits(j, home);
    if (j->c->repeated) memcpy(memory->first, memory->after, memory->room);
    for (int o = CHECK_Y; o < CHECK_OPERANDS; o++) {
        const operand *x = &j->set.of[o];
        if (!x->present || x->home != home) continue;
        if (compare_elements(j, (check_operand)o) != CHECK_PASSED) return CHECK_FAILED;
    }
    return compare_rest(j, home);
}

static check_result compare(check_job *j) {
    for (int i = 0; i < CHECK_OPERANDS; i++) {
        const operand *x = &j->set.of[i];
        const bool spoilt = is_packed(j, i) && j->c->pack == CHECK_PACK_COPY;
        if (!x->present || spoilt || x->home != (check_operand)i) continue;
        if (compare_home(j, (check_operand)i) != CHECK_PASSED) return CHECK_FAILED;
    }
    return compare_workspace(j);
}

/* ---- The case ----------------------------------------------------------------------------------- */

static check_result run_in(check_job *j, memory_place place) {
    check_result result = open_operands(j, place);
    if (result == CHECK_PASSED) result = open_ends(j, place);
    if (result == CHECK_PASSED) result = pack(j);
    if (result == CHECK_PASSED) result = j->c->backward ? call_backward(j, place) : call_forward(j, place);
    if (result == CHECK_PASSED) {
        const eg_status status = eg_sync(j->context);
        if (status != EG_OK) result = refused(j, "eg_sync", status);
    }
    if (result == CHECK_PASSED && !check_expect(j)) result = fail(j, "no memory for the oracle");
    if (result == CHECK_PASSED) result = compare(j);
    close_operands(j);
    return result;
}

/* Matrix units read grad_pre in the layer's type; multiply-add units in f32. */
static check_result run_everywhere(check_job *j, eg_context *const contexts[2]) {
    eg_device_info info = {.size = sizeof info};
    if (eg_get_device_info(j->context, &info) != EG_OK)
        return fail(j, "eg_get_device_info: %s", eg_last_error());
    const bool cpu = j->cpu = info.backend == EG_BACKEND_CPU;
    j->rounds_grad_pre = !cpu || strstr(info.features, "amx") != NULL ||
                         (j->c->dtype == EG_BF16 && strstr(info.features, "bf16") != NULL);
    check_result result = run_in(j, cpu ? MEMORY_GUARD_BEHIND : MEMORY_DEVICE);
    if (result != CHECK_PASSED || (!cpu && !j->c->repeated)) return result;
    j->context = contexts[1];
    j->run = 1;
    return run_in(j, cpu ? MEMORY_GUARD_BEFORE : MEMORY_DEVICE);
}

check_result check_run_on(eg_context *const contexts[2], const check_case *c, check_report *report) {
    *report = (check_report){.worst = 0};
    check_job j = {.context = contexts[0], .c = c, .report = report};
    const bool made = operands_make(&j.set, c);
    const check_result result = made ? run_everywhere(&j, contexts) : fail(&j, "no memory for the operands");
    operands_free(&j.set);
    return result;
}

check_result check_run(eg_context *context, const check_case *c, check_report *report) {
    return check_run_on((eg_context *const[2]){context, context}, c, report);
}

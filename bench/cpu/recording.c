/* SPDX-License-Identifier: Apache-2.0 */
#include "recording.h"

#include <stdio.h>
#include <string.h>

#include "core/validate.h"

const char *const recorded_operations[] = {"y",         "y+pre",      "d_a",      "chain", "d_b",
                                           "recompute", "map+d_bias", "backward", NULL};

/* ---- Lines -------------------------------------------------------------------------------------- */

static bool dtype_of(const char *name, eg_dtype *dtype) {
    for (int i = EG_F32; i <= EG_BF16; i++) {
        *dtype = (eg_dtype)i;
        if (strcmp(name, eg_dtype_name(*dtype)) == 0) return true;
    }
    return false;
}

static bool activation_of(const char *name, eg_activation *activation) {
    for (int i = 0; i < EG_ACTIVATIONS; i++) {
        *activation = (eg_activation)i;
        if (strcmp(name, eg_activation_name(*activation)) == 0) return true;
    }
    return false;
}

bool recorded_parse(const char *line, recorded_operation *x, const char **times) {
    char dtype[8], weight[8], activation[16];
    long long m, k, n;
    int length;
    if (line[0] == '#' || sscanf(line, "%7s %lldx%lldx%lld %7s %15s %23s%n", dtype, &m, &k, &n, weight,
                                 activation, x->name, &length) != 7)
        return false;
    x->m = m, x->k = k, x->n = n;
    x->nk = strcmp(weight, "nk") == 0;
    *times = line + length;
    return dtype_of(dtype, &x->dtype) && activation_of(activation, &x->activation);
}

bool recorded_next(const char **times, int *row, char way[3], double *microseconds) {
    int length;
    if (sscanf(*times, " %d%2[pifso]:%lf%n", row, way, microseconds, &length) != 3) return false;
    *times += length;
    return true;
}

int recorded_rows(char *line, const char *names[RECORDED_ROWS]) {
    const char begin[] = "# rows: ";
    int rows = 0;
    if (strncmp(line, begin, sizeof begin - 1) != 0) return 0;
    for (char *name = strtok(line + sizeof begin - 1, " \n"); name != NULL && rows < RECORDED_ROWS;
         name = strtok(NULL, " \n"))
        names[rows++] = name;
    return rows;
}

/* ---- Calls -------------------------------------------------------------------------------------- */

typedef struct maker {
    const recorded_operation *x;
    void *(*memory)(void *user, int place, int64_t elements);
    void *user;
    int place;
} maker;

static eg_matrix matrix(maker *m, int64_t rows, int64_t cols, bool col_major) {
    return (eg_matrix){.data = m->memory(m->user, m->place++, rows * cols),
                       .ld = col_major ? rows : cols,
                       .layout = col_major ? EG_COL_MAJOR : EG_ROW_MAJOR};
}

static eg_vector vector(maker *m, int64_t length) {
    return (eg_vector){.data = m->memory(m->user, m->place++, length)};
}

static bool is(const recorded_operation *x, const char *name) { return strcmp(x->name, name) == 0; }

static void make_forward(maker *m, recorded_call *call) {
    const recorded_operation *x = m->x;
    call->forward_args = (eg_forward_args){.size = sizeof(eg_forward_args),
                                           .a = matrix(m, x->m, x->k, false),
                                           .b = matrix(m, x->k, x->n, x->nk),
                                           .bias = vector(m, x->n),
                                           .y = matrix(m, x->m, x->n, false)};
    if (is(x, "y+pre")) call->forward_args.pre = matrix(m, x->m, x->n, false);
}

static void make_backward(maker *m, recorded_call *call) {
    const recorded_operation *x = m->x;
    const bool whole = is(x, "backward"), chain = is(x, "chain"), recompute = is(x, "recompute"),
               map = is(x, "map+d_bias");
    eg_backward_args *args = &call->backward_args;
    *args = (eg_backward_args){.size = sizeof *args, .grad = matrix(m, x->m, x->n, false)};
    if (is(x, "d_a") || chain || whole || recompute) args->b = matrix(m, x->k, x->n, x->nk);
    if (is(x, "d_a") || chain || whole) args->d_a = matrix(m, x->m, x->k, false);
    if (chain)
        args->chain = (eg_chain){matrix(m, x->m, x->k, false), EG_SOURCE_PRE, x->activation, {.data = NULL}};
    if (is(x, "d_b") || whole || recompute) args->a = matrix(m, x->m, x->k, false);
    if (is(x, "d_b") || whole) args->d_b = matrix(m, x->k, x->n, x->nk);
    if (map || whole) {
        args->source = EG_SOURCE_PRE;
        args->pre = matrix(m, x->m, x->n, false);
        args->d_bias = vector(m, x->n);
    }
    if (recompute) args->bias = vector(m, x->n);
    if (map || recompute) args->grad_pre = matrix(m, x->m, x->n, false);
}

void recorded_call_of(const recorded_operation *x, void *(*memory)(void *user, int place, int64_t elements),
                      void *user, recorded_call *call) {
    const bool is_plain = is(x, "d_a") || is(x, "chain") || is(x, "d_b");
    maker m = {x, memory, user, 0};
    *call = (recorded_call){.backward = x->name[0] != 'y',
                            .layer = {.size = sizeof(eg_layer),
                                      .m = x->m,
                                      .k = x->k,
                                      .n = x->n,
                                      .batch = 1,
                                      .dtype = x->dtype,
                                      .activation = is_plain ? EG_ACT_NONE : x->activation}};
    if (call->backward) {
        make_backward(&m, call);
    } else {
        make_forward(&m, call);
    }
}

bool recorded_problem(const recorded_call *call, eg_problem *problem) {
    const eg_status status =
        call->backward ? eg_validate_backward(EG_ADDRESSES, &call->layer, &call->backward_args, problem)
                       : eg_validate_forward(EG_ADDRESSES, &call->layer, &call->forward_args, problem);
    return status == EG_OK;
}

/* ---- Ways --------------------------------------------------------------------------------------- */

static char letter_of(int where) {
    return where == EG_CPU_IN_PLACE ? 'i' : where == EG_CPU_FUSED ? 'f' : 'p';
}

static const eg_op *first_product(const eg_program *program) {
    for (int i = 0; i < program->list.ops; i++) {
        if (program->list.op[i].kind == EG_GEMM) return &program->list.op[i];
    }
    return NULL;
}

bool recorded_is_outdated(const char *first_line, const eg_program *program, const eg_cpu_kernel *row,
                          const char way[3]) {
    const eg_op *op = first_product(program);
    return strstr(first_line, RECORDED_BY_ROWS) == NULL && way[0] == 'o' && op != NULL &&
           !eg_cpu_outer_stores_sums(op) && eg_cpu_outer_acts_by_rows(row, op);
}

bool recorded_lacks(const char *first_line, const eg_program *program) {
    if (strstr(first_line, RECORDED_BY_DOTS) != NULL) return false;
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        if (step->op == EG_NO_OP || program->list.op[step->op].kind != EG_GEMM) continue;
        const eg_cpu_step *detail = eg_cpu_detail(step);
        if (detail->streams == EG_CPU_STREAMS_RESULT && eg_cpu_has_dots(detail->kernel) &&
            program->list.op[step->op].left.transposed)
            return true;
    }
    return false;
}

void recorded_way(const eg_program *program, char way[3]) {
    way[0] = '\0';
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        if (step->op == EG_NO_OP || program->list.op[step->op].kind != EG_GEMM) continue;
        const int streams = eg_cpu_detail(step)->streams;
        way[0] = streams == EG_CPU_STREAMS_LEFT     ? 's'
                 : streams == EG_CPU_STREAMS_RESULT ? 'o'
                 : eg_cpu_detail(step)->packs_both  ? 'f'
                                                    : letter_of(eg_cpu_detail(step)->left);
        way[1] = streams == EG_CPU_STREAMS_RIGHT    ? 's'
                 : streams == EG_CPU_STREAMS_LEFT   ? 'f'
                 : streams == EG_CPU_STREAMS_RESULT ? 'o'
                                                    : letter_of(eg_cpu_detail(step)->right);
        way[2] = '\0';
        return;
    }
}

static eg_cpu_way way_of(char letter) {
    return letter == 's'   ? EG_CPU_STREAMS
           : letter == 'o' ? EG_CPU_OUTER
           : letter == 'i' ? EG_CPU_PLACED
           : letter == 'f' ? EG_CPU_FUSES
                           : EG_CPU_PACKED;
}

eg_cpu_calibration recorded_calibration(const eg_cpu_calibration *from, const char way[3]) {
    eg_cpu_calibration only = *from;
    only.left = way_of(way[0]), only.right = way_of(way[1]);
    return only;
}

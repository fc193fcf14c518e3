/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recording.h"

#include "core/validate.h"
#include "webgpu/webgpu_abi.h"

const char *const recorded_operations[RECORDED_OPERATIONS] = {"y", "d_a", "d_b", "gated"};

/* ---- Calls -------------------------------------------------------------------------------------- */

typedef struct maker {
    void *(*memory)(void *user, int place, int64_t elements);
    void *user;
    int place;
} maker;

static eg_matrix matrix(maker *m, int64_t rows, int64_t cols) {
    return (eg_matrix){.data = m->memory(m->user, m->place++, rows * cols)};
}

void recorded_call_of(const recorded_operation *x, void *(*memory)(void *user, int place, int64_t elements),
                      void *user, recorded_call *call) {
    maker m = {memory, user, 0};
    const bool gated = strcmp(x->name, "gated") == 0, y = strcmp(x->name, "y") == 0;
    *call = (recorded_call){.backward = !y && !gated,
                            .layer = eg_layer_of(x->m, x->k, x->n, EG_ACT_NONE),
                            .forward_args = {.size = sizeof(eg_forward_args)},
                            .backward_args = {.size = sizeof(eg_backward_args)}};
    if (!call->backward) {
        eg_forward_args *args = &call->forward_args;
        call->layer.activation = gated ? EG_ACT_SILU : EG_ACT_GELU;
        args->a = matrix(&m, x->m, x->k);
        args->b = matrix(&m, x->k, x->n);
        args->y = matrix(&m, x->m, x->n);
        if (gated) args->b_up = matrix(&m, x->k, x->n);
        return;
    }
    eg_backward_args *args = &call->backward_args;
    args->grad = matrix(&m, x->m, x->n);
    if (strcmp(x->name, "d_a") == 0) {
        args->b = matrix(&m, x->k, x->n);
        args->d_a = matrix(&m, x->m, x->k);
    } else {
        args->a = matrix(&m, x->m, x->k);
        args->d_b = matrix(&m, x->k, x->n);
    }
}

static void *nowhere(void *user, int place, int64_t elements) {
    (void)user, (void)elements;
    return (void *)((uintptr_t)(place + 1) << 40);
}

bool recorded_compile(const recorded_file *x, const char *only_kernel, eg_program *program) {
    const eg_caps caps = {.backend = EG_BACKEND_WEBGPU,
                          .addressing = EG_HANDLES,
                          .one_level = true,
                          .only_kernel = only_kernel,
                          .detail = &x->device};
    recorded_call call;
    eg_problem problem;
    recorded_call_of(&x->operation, nowhere, NULL, &call);
    const eg_status status =
        call.backward ? eg_validate_backward(EG_HANDLES, &call.layer, &call.backward_args, &problem)
                      : eg_validate_forward(EG_HANDLES, &call.layer, &call.forward_args, &problem);
    return status == EG_OK && eg_program_make(&caps, &problem, program) == EG_OK;
}

const eg_webgpu_pass *recorded_product(const eg_program *program) {
    for (int i = 0; i < program->steps; i++) {
        const eg_webgpu_pass *pass = eg_webgpu_detail(&program->step[i]);
        if (pass->kernel->shape == EG_SHAPE_PRODUCT) return pass;
    }
    return NULL;
}

/* ---- Files -------------------------------------------------------------------------------------- */

int64_t recorded_fill(uint32_t type) {
    return type == WGPUAdapterType_CPU ? 1 : type == WGPUAdapterType_DiscreteGPU ? 20480 : 4096;
}

/* The limits that WebGPU promises, or more where more is of no use. */
static eg_webgpu_caps device_of(const char *name, uint32_t type) {
    return (eg_webgpu_caps){.binding = (uint64_t)1 << 31,
                            .align = 256,
                            .groups = 65535,
                            .invocations = 256,
                            .memory = 16384,
                            .cpu = type == WGPUAdapterType_CPU,
                            .budget = 2.5e11,
                            .fill = recorded_fill(type),
                            .part = 512,
                            .adapter = eg_webgpu_adapter_of(name, type)};
}

static bool rows_fit(char *text) {
    const eg_webgpu_kernel *row;
    for (int i = 0; (row = eg_webgpu_kernel_row(i)) != NULL; i++) {
        const char *name = strtok(i == 0 ? text : NULL, " \n");
        if (name == NULL || strcmp(name, row->name) != 0) return false;
    }
    return strtok(NULL, " \n") == NULL;
}

static bool read_header(recorded_file *x) {
    char line[RECORDED_LINE], name[128];
    unsigned type;
    if (fgets(line, sizeof line, x->file) == NULL ||
        sscanf(line, "# adapter: %u %127[^\n]", &type, name) != 2)
        return false;
    x->device = device_of(name, type);
    if (fgets(line, sizeof line, x->file) == NULL || strncmp(line, "# rows: ", 8) != 0 || !rows_fit(line + 8))
        return false;
    if (fgets(line, sizeof line, x->file) == NULL || strncmp(line, "# first: ", 9) != 0) return false;
    char *at = line + 9;
    for (int i = 0; i < EG_WEBGPU_ROWS; i++) x->first[i] = strtod(at, &at);
    return true;
}

bool recorded_open(recorded_file *x, const char *path) {
    *x = (recorded_file){.file = fopen(path, "r")};
    if (x->file == NULL) return false;
    if (read_header(x)) return true;
    fclose(x->file);
    return false;
}

static bool parse(recorded_file *x, const char *line) {
    long long m, k, n;
    char name[16];
    int length, row;
    double time;
    if (sscanf(line, "%lldx%lldx%lld %15s%n", &m, &k, &n, name, &length) != 4) return false;
    x->operation = (recorded_operation){m, k, n, NULL};
    for (int i = 0; i < RECORDED_OPERATIONS; i++)
        if (strcmp(name, recorded_operations[i]) == 0) x->operation.name = recorded_operations[i];
    memset(x->time, 0, sizeof x->time);
    for (line += length; sscanf(line, " %d:%lf%n", &row, &time, &length) == 2; line += length)
        if (row >= 0 && row < EG_WEBGPU_ROWS) x->time[row] = time;
    return x->operation.name != NULL;
}

bool recorded_next(recorded_file *x) {
    char line[RECORDED_LINE];
    while (fgets(line, sizeof line, x->file) != NULL)
        if (line[0] != '#' && parse(x, line)) return true;
    fclose(x->file);
    return false;
}

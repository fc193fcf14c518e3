/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: validate -> lower -> compile -> run. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "collectives.h"
#include "error.h"
#include "groups.h"
#include "low_memory.h"
#include "overlap.h"
#include "compile_scratch.h"
#include "text.h"
#include "tune.h"
#include "validate.h"

/* ---- Contexts ----------------------------------------------------------------------------------- */

static void dispose(eg_context *context) {
    const eg_allocator allocator = context->allocator;
    eg_host_free(context, context->name);
    eg_host_free(context, context->features);
    eg_host_free(context, context->only_kernel);
    eg_cache_free(context, context->cache);
    eg_host_free(context, context->caps.scratch);
    allocator.free(context, allocator.user);
}

/* EPIGRAD_TUNING speaks where the caller does not. */
static eg_status choose_tuning(eg_context *context, const eg_open_info *info) {
    const char *text = getenv("EPIGRAD_TUNING");
    const bool says = text != NULL && *text != '\0', measured = says && strcmp(text, "measured") == 0;
    if (says && !measured && strcmp(text, "estimated") != 0)
        return eg_fail(EG_ERR_ARGUMENT, "EPIGRAD_TUNING is %s; expected measured or estimated",
                       eg_quote(text).text);
    context->tunes = (measured || info->tuning == EG_TUNING_MEASURED) && context->ops->may_time != NULL &&
                     context->only_kernel == NULL;
    return EG_OK;
}

/* A name that no row has would refuse every call. */
static eg_status check_kernel(const eg_context *context) {
    enum { NAMED = 4 };
    char known[256] = "";
    eg_text text = {known, sizeof known};
    eg_kernel_info row = {.size = sizeof row};
    if (context->only_kernel == NULL) return EG_OK;
    for (int i = 0; context->ops->kernel_info(&context->caps, i, &row); i++) {
        if (strcmp(row.name, context->only_kernel) == 0) return EG_OK;
        if (i < NAMED) eg_put(&text, "%s%s", i > 0 ? ", " : "", row.name);
    }
    return eg_fail(EG_ERR_ARGUMENT, "info.kernel is %s; expected a row of the %s kernel table: %s, ...",
                   eg_quote(context->only_kernel).text, eg_backend_name(context->caps.backend), known);
}

static eg_status open_context(const eg_backend_ops *ops, const eg_open_info *info, eg_context **opened) {
    const eg_allocator allocator = info->allocator.alloc != NULL ? info->allocator : eg_host_allocator();
    eg_context *context = allocator.alloc(sizeof *context, allocator.user);
    if (context == NULL)
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a context of %zu bytes", sizeof *context);
    *context = (eg_context){.ops = ops, .allocator = allocator, .caps = {.backend = info->backend}};
    context->cache = eg_cache_make(context);
    context->caps.scratch = eg_host_alloc(context, sizeof *context->caps.scratch);
    if (context->cache == NULL || context->caps.scratch == NULL) {
        dispose(context);
        return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for the programs of a context's calls");
    }
    if (info->kernel != NULL) {
        context->only_kernel = eg_host_text(context, info->kernel);
        context->caps.only_kernel = context->only_kernel;
        if (context->only_kernel == NULL) {
            dispose(context);
            return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for the name of info.kernel");
        }
    }
    eg_status status = ops->open(context, info);
    if (status == EG_OK) {
        status = check_kernel(context);
        if (status == EG_OK) status = choose_tuning(context, info);
        if (status != EG_OK) ops->close(context);
    }
    if (status != EG_OK) {
        dispose(context);
        return status;
    }
    *opened = context;
    return EG_OK;
}

eg_status eg_open(const eg_open_info *info, eg_context **context) {
    static const eg_open_info defaults = {.size = sizeof(eg_open_info)};
    if (context == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "context is NULL; expected a place for the new context");
    *context = NULL;
    if (info == NULL) info = &defaults;
    eg_open_info copy;
    EG_TRY(eg_validate_open(&info, &copy));
    const eg_backend_ops *ops = eg_backend_find(info->backend);
    if (ops == NULL) {
        return eg_fail(EG_ERR_UNAVAILABLE, "backend %s is not in this build of epigrad",
                       eg_backend_name(info->backend));
    }
    return open_context(ops, info, context);
}

void eg_close(eg_context *context) {
    if (context == NULL) return;
    context->ops->sync(context);
    if (context->workspace != NULL) context->ops->free(context, context->workspace);
    context->ops->close(context);
    dispose(context);
}

static eg_status check_context(const eg_context *context) {
    return context != NULL ? EG_OK : eg_fail(EG_ERR_ARGUMENT, "context is NULL; expected one from eg_open");
}

eg_status eg_sync(eg_context *context) {
    EG_TRY(check_context(context));
    return context->ops->sync(context);
}

eg_status eg_alloc(eg_context *context, size_t bytes, void **memory) {
    EG_TRY(check_context(context));
    if (memory == NULL) return eg_fail(EG_ERR_ARGUMENT, "memory is NULL; expected a place for the address");
    *memory = NULL;
    return context->ops->alloc(context, bytes, memory);
}

void eg_free(eg_context *context, void *memory) {
    if (context != NULL && memory != NULL) context->ops->free(context, memory);
}

/* Where the memory ends is known to few backends; a range that is none is refused on all of them. */
static eg_status check_range(const eg_context *context, const void *memory, size_t offset, size_t bytes) {
    if (memory == NULL)
        return eg_fail(EG_ERR_ARGUMENT, "memory is NULL; expected device memory of %zu bytes", bytes);
    if (!eg_out_of_range(context->caps.addressing, memory, offset, bytes)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "offset is %zu and bytes is %zu; expected a range of the memory", offset,
                   bytes);
}

eg_status eg_upload(eg_context *context, void *memory, size_t offset, const void *host, size_t bytes) {
    EG_TRY(check_context(context));
    if (bytes == 0) return EG_OK;
    EG_TRY(check_range(context, memory, offset, bytes));
    if (host == NULL) return eg_fail(EG_ERR_ARGUMENT, "host is NULL; expected %zu bytes to upload", bytes);
    return context->ops->upload(context, memory, offset, host, bytes);
}

eg_status eg_download(eg_context *context, void *host, const void *memory, size_t offset, size_t bytes) {
    EG_TRY(check_context(context));
    if (bytes == 0) return EG_OK;
    EG_TRY(check_range(context, memory, offset, bytes));
    if (host == NULL) return eg_fail(EG_ERR_ARGUMENT, "host is NULL; expected room for %zu bytes", bytes);
    return context->ops->download(context, host, memory, offset, bytes);
}

/* ---- The operation ------------------------------------------------------------------------------ */

/* A b beside its pack says the same of the batch: one matrix for all items, or one for each. */
static eg_status check_packed_stride(const eg_packed *packed, const eg_problem *problem, eg_operand_id id,
                                     const char *name) {
    const eg_operand *b = &problem->operands[id];
    if (b->data == NULL || problem->batch <= 1 || packed->batched == eg_has_items(b)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s.batch_stride is %lld; expected %s, as when %s was packed",
                   eg_operand_name(problem, id), (long long)b->batch_stride,
                   packed->batched ? "a batch" : "0", name);
}

/* A pack fits a call whose B it could have been made from. */
static eg_status check_pack(const eg_context *context, const eg_problem *problem, const eg_packed *packed,
                            eg_operand_id id, const char *name) {
    if (packed == NULL) return EG_OK;
    if (packed->context != context)
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s belongs to another context; expected one that eg_pack_b made from this context",
                       name);
    static const char *const maths[] = {"default", "strict", "fast"};
    const eg_layer *layer = &packed->layer;
    const eg_dtype dtype = layer->dtype == EG_DTYPE_DEFAULT ? EG_F32 : layer->dtype;
    if (layer->k != problem->k || layer->n != problem->n || dtype != problem->dtype ||
        layer->math != problem->math || (packed->batched && layer->batch != problem->batch)) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s is of a %lld x %lld %s b, batch %lld, math %s; expected %lld x %lld %s, "
                       "batch %lld, math %s",
                       name, (long long)layer->k, (long long)layer->n, eg_dtype_name(dtype),
                       (long long)(packed->batched ? layer->batch : 1), maths[layer->math],
                       (long long)problem->k, (long long)problem->n, eg_dtype_name(problem->dtype),
                       (long long)problem->batch, maths[problem->math]);
    }
    return check_packed_stride(packed, problem, id, name);
}

static eg_status check_packed(const eg_context *context, const eg_problem *problem) {
    EG_TRY(check_pack(context, problem, problem->packed_b, EG_OP_B, "packed_b"));
    return check_pack(context, problem, problem->packed_b_up, EG_OP_B_UP, "packed_b_up");
}

/* A communicator is of a kind: it is advanced by the host, or enqueued on a stream. */
static eg_status check_comm(const eg_context *context, const eg_problem *problem) {
    const char *name = eg_is_tensor_parallel(problem) ? "tensor_parallel" : "data_parallel";
    const eg_comm *comm = problem->comm;
    const eg_backend backend = context->caps.backend;
    if (comm == NULL) return EG_OK;
    if (backend == EG_BACKEND_WEBGPU)
        return eg_fail(EG_ERR_UNSUPPORTED, "%s.comm is given on WebGPU; expected the CPU or CUDA", name);
    if ((comm->progress != NULL) == (backend == EG_BACKEND_CPU)) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s.comm.progress is %s on %s; expected %s", name,
                   comm->progress != NULL ? "set" : "NULL", eg_backend_name(backend),
                   backend == EG_BACKEND_CPU ? "an engine of the host, with one"
                                             : "an engine of a stream, without one");
}

/* Whether a call is one for each group, whose rows the host knows when it runs. */
static bool goes_by_group(const eg_context *context, const eg_problem *problem) {
    return problem->grouped && !context->caps.reads_ends;
}

static eg_status check_grouped(const eg_context *context, const eg_problem *problem) {
    if (!goes_by_group(context, problem) || context->ops->run_groups != NULL) return EG_OK;
    return eg_fail(EG_ERR_UNSUPPORTED, "layer.groups is %lld on %s; expected the CPU or CUDA, or 0",
                   (long long)problem->batch, eg_backend_name(context->caps.backend));
}

/* Whether the context's backend takes what the call asks for. */
static eg_status check_backend(const eg_context *context, const eg_problem *problem) {
    EG_TRY(check_comm(context, problem));
    EG_TRY(check_grouped(context, problem));
    return check_packed(context, problem);
}

/* `query`: the operands are only marked as present. */
static eg_status take_forward(eg_context *context, bool query, const eg_layer *layer,
                              const eg_forward_args *args, eg_problem *problem) {
    EG_TRY(check_context(context));
    EG_TRY(eg_validate_forward(query ? EG_PRESENCE : context->caps.addressing, layer, args, problem));
    return check_backend(context, problem);
}

static eg_status take_backward(eg_context *context, bool query, const eg_layer *layer,
                               const eg_backward_args *args, eg_problem *problem) {
    EG_TRY(check_context(context));
    EG_TRY(eg_validate_backward(query ? EG_PRESENCE : context->caps.addressing, layer, args, problem));
    return check_backend(context, problem);
}

/* The context's own workspace only grows; what is enqueued may still use the old one. */
static eg_status grow_workspace(eg_context *context, size_t bytes) {
    if (bytes <= context->workspace_bytes) return EG_OK;
    EG_TRY(context->ops->sync(context));
    if (context->workspace != NULL) context->ops->free(context, context->workspace);
    context->workspace = NULL;
    context->workspace_bytes = 0;
    EG_TRY(context->ops->alloc(context, bytes, &context->workspace));
    context->workspace_bytes = bytes;
    return EG_OK;
}

static eg_status check_room(const eg_problem *problem, size_t bytes, const eg_workspace *given) {
    if (given->bytes < bytes) {
        return eg_fail(EG_ERR_ARGUMENT, "workspace.bytes is %zu; expected at least %zu", given->bytes, bytes);
    }
    for (int id = 0; id < EG_OPERANDS; id++) {
        const eg_operand *x = &problem->operands[id];
        if (x->data == NULL || !eg_overlaps_workspace(problem, x, given, bytes)) continue;
        return eg_fail(EG_ERR_ARGUMENT,
                       "workspace of %zu bytes at %p overlaps %s at %p; expected separate memory", bytes,
                       (void *)((char *)given->data + given->offset),
                       eg_operand_name(problem, (eg_operand_id)id), (void *)((char *)x->data + x->offset));
    }
    return EG_OK;
}

/* The caller's workspace, or the context's. */
static eg_status take_workspace(eg_context *context, const eg_problem *problem, size_t bytes,
                                const eg_workspace *given, eg_address *workspace) {
    if (given->data != NULL) {
        *workspace = (eg_address){given->data, given->offset};
        return check_room(problem, bytes, given);
    }
    EG_TRY(grow_workspace(context, bytes));
    *workspace = (eg_address){context->workspace, 0};
    return EG_OK;
}

/* Chunks of as much as there is memory for, where the backend needs them. */
static size_t limit_of(const eg_context *context, const eg_problem *problem, size_t limit) {
    return limit == 0 && eg_goes_by_outer(&context->caps, problem) ? SIZE_MAX : limit;
}

static eg_status run_chunks(eg_context *context, const eg_problem *problem, size_t limit,
                            const eg_workspace *given) {
    eg_low_memory *low = &context->caps.scratch->low;
    eg_address workspace;
    EG_TRY(eg_low_memory_find(context, problem, limit, low));
    EG_TRY(take_workspace(context, &low->problem, low->workspace, given, &workspace));
    return eg_low_memory_run(context, low, workspace.data, workspace.offset);
}

static eg_status run_groups(eg_context *context, const eg_problem *problem, const eg_workspace *given) {
    const eg_groups *groups;
    eg_address workspace;
    EG_TRY(eg_groups_check(problem));
    EG_TRY(eg_cache_find_groups(context, problem, &groups));
    EG_TRY(take_workspace(context, problem, groups->workspace, given, &workspace));
    return context->ops->run_groups(context, groups, problem, workspace);
}

/* *begun: the call has been told to other processes, if there are any. */
static eg_status run(eg_context *context, const eg_problem *problem, size_t limit, const eg_workspace *given,
                     bool *begun) {
    const eg_program *program;
    eg_address workspace;
    limit = limit_of(context, problem, limit);
    if (limit != 0) return run_chunks(context, problem, limit, given);
    if (goes_by_group(context, problem)) return run_groups(context, problem, given);
    EG_TRY(eg_cache_find(context, problem, false, &program));
    EG_TRY(take_workspace(context, problem, program->workspace, given, &workspace));
    if (context->tunes && !program->measured) EG_TRY(eg_tune(context, problem, workspace, &program));
    *begun = true;
    return eg_cache_run(context, program, problem, workspace.data, workspace.offset);
}

eg_status eg_forward(eg_context *context, const eg_layer *layer, const eg_forward_args *args) {
    eg_problem problem;
    bool begun = false;
    eg_status status = take_forward(context, false, layer, args, &problem);
    if (status == EG_OK) status = run(context, &problem, args->workspace_limit, &args->workspace, &begun);
    if (status != EG_OK && !begun) eg_collectives_refuse(eg_comm_of_forward(args));
    return status;
}

eg_status eg_backward(eg_context *context, const eg_layer *layer, const eg_backward_args *args) {
    eg_problem problem;
    bool begun = false;
    eg_status status = take_backward(context, false, layer, args, &problem);
    if (status == EG_OK) status = run(context, &problem, args->workspace_limit, &args->workspace, &begun);
    if (status != EG_OK && !begun) eg_collectives_refuse(eg_comm_of_backward(args));
    return status;
}

/* ---- What a call would do -------------------------------------------------------------------------- */

static eg_status workspace_of(eg_context *context, const eg_problem *problem, size_t limit, size_t *bytes) {
    const eg_program *program;
    limit = limit_of(context, problem, limit);
    if (limit != 0) {
        eg_low_memory *low = &context->caps.scratch->low;
        EG_TRY(eg_low_memory_find(context, problem, limit, low));
        *bytes = low->workspace;
        return EG_OK;
    }
    if (goes_by_group(context, problem)) {
        const eg_groups *groups;
        EG_TRY(eg_cache_find_groups(context, problem, &groups));
        *bytes = groups->workspace;
        return EG_OK;
    }
    EG_TRY(eg_cache_find(context, problem, false, &program));
    *bytes = program->workspace;
    return EG_OK;
}

static eg_status check_bytes(const size_t *bytes) {
    return bytes != NULL ? EG_OK : eg_fail(EG_ERR_ARGUMENT, "bytes is NULL; expected a place for the size");
}

eg_status eg_forward_workspace(eg_context *context, const eg_layer *layer, const eg_forward_args *args,
                               size_t *bytes) {
    eg_problem problem;
    EG_TRY(check_bytes(bytes));
    EG_TRY(take_forward(context, true, layer, args, &problem));
    return workspace_of(context, &problem, args->workspace_limit, bytes);
}

eg_status eg_backward_workspace(eg_context *context, const eg_layer *layer, const eg_backward_args *args,
                                size_t *bytes) {
    eg_problem problem;
    EG_TRY(check_bytes(bytes));
    EG_TRY(take_backward(context, true, layer, args, &problem));
    return workspace_of(context, &problem, args->workspace_limit, bytes);
}

static eg_status check_text(const char *text, size_t capacity) {
    if (text != NULL && capacity > 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "text is %p with capacity %zu; expected room for the plan",
                   (const void *)text, capacity);
}

/* The program, and under it the one that runs where that refuses. */
static eg_status print_programs(eg_context *context, const eg_problem *problem, eg_text *out) {
    const eg_program *program, *other = NULL;
    EG_TRY(eg_cache_find(context, problem, false, &program));
    if (program->may_refuse) EG_TRY(eg_cache_find(context, problem, true, &other));
    eg_program_print(program, out);
    if (!program->may_refuse) return EG_OK;
    eg_put(out, "where a number or the library refuses:\n");
    eg_program_print(other, out);
    return EG_OK;
}

static eg_status print_plan(eg_context *context, const eg_problem *problem, size_t limit, char *text,
                            size_t capacity) {
    eg_text out = {text, capacity};
    eg_low_memory *low = &context->caps.scratch->low;
    const eg_groups *groups;
    if (goes_by_group(context, problem)) {
        EG_TRY(eg_cache_find_groups(context, problem, &groups));
        eg_groups_print(groups, &out);
        return EG_OK;
    }
    if (problem->grouped)
        eg_put(&out, "%lld groups of %lld rows in all: ", (long long)problem->batch, (long long)problem->m);
    limit = limit_of(context, problem, limit);
    if (limit == 0) return print_programs(context, problem, &out);
    EG_TRY(eg_low_memory_find(context, problem, limit, low));
    eg_low_memory_print(low, &out);
    return EG_OK;
}

eg_status eg_forward_plan(eg_context *context, const eg_layer *layer, const eg_forward_args *args, char *text,
                          size_t capacity) {
    eg_problem problem;
    EG_TRY(check_text(text, capacity));
    EG_TRY(take_forward(context, true, layer, args, &problem));
    return print_plan(context, &problem, args->workspace_limit, text, capacity);
}

eg_status eg_backward_plan(eg_context *context, const eg_layer *layer, const eg_backward_args *args,
                           char *text, size_t capacity) {
    eg_problem problem;
    EG_TRY(check_text(text, capacity));
    EG_TRY(take_backward(context, true, layer, args, &problem));
    return print_plan(context, &problem, args->workspace_limit, text, capacity);
}

/* ---- Packed operands ---------------------------------------------------------------------------- */

eg_status eg_pack_b(eg_context *context, const eg_layer *layer, const eg_matrix *b, eg_packed **packed) {
    EG_TRY(check_context(context));
    if (packed == NULL) return eg_fail(EG_ERR_ARGUMENT, "packed is NULL; expected a place for the pack");
    *packed = NULL;
    eg_problem problem;
    EG_TRY(eg_validate_pack(context->caps.addressing, layer, b, &problem));
    const int64_t batch = layer->batch == 0 ? 1 : layer->batch;
    eg_packed *made = eg_host_alloc(context, sizeof *made);
    if (made == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a pack of %zu bytes", sizeof *made);
    *made = (eg_packed){.context = context,
                        .layer = {.size = sizeof made->layer,
                                  .m = layer->m,
                                  .k = layer->k,
                                  .n = layer->n,
                                  .batch = problem.grouped ? problem.batch : batch,
                                  .dtype = layer->dtype,
                                  .math = layer->math},
                        .batched = b->batch_stride != 0};
    const eg_status status = context->ops->pack(context, &problem, made);
    if (status != EG_OK) {
        eg_packed_free(context, made);
        return status;
    }
    *packed = made;
    return EG_OK;
}

eg_status eg_packed_update(eg_context *context, eg_packed *packed, const eg_matrix *b) {
    EG_TRY(check_context(context));
    if (packed == NULL) return eg_fail(EG_ERR_ARGUMENT, "packed is NULL; expected one from eg_pack_b");
    if (packed->context != context)
        return eg_fail(
            EG_ERR_ARGUMENT,
            "packed belongs to another context; expected one that eg_pack_b made from this context");
    eg_problem problem;
    EG_TRY(eg_validate_pack(context->caps.addressing, &packed->layer, b, &problem));
    if (packed->layer.batch != 1 && packed->batched != (b->batch_stride != 0)) {
        return eg_fail(EG_ERR_ARGUMENT, "b.batch_stride is %lld; expected %s, as when it was packed",
                       (long long)b->batch_stride, packed->batched ? "a batch" : "0");
    }
    return context->ops->pack(context, &problem, packed);
}

void eg_packed_free(eg_context *context, eg_packed *packed) {
    if (context == NULL || packed == NULL) return;
    if (packed->data != NULL) context->ops->free(context, packed->data);
    eg_host_free(context, packed);
}

/* ---- Looking at the library --------------------------------------------------------------------- */

eg_status eg_get_device_info(eg_context *context, eg_device_info *info) {
    EG_TRY(check_context(context));
    if (info == NULL) return eg_fail(EG_ERR_ARGUMENT, "info is NULL; expected an eg_device_info");
    EG_TRY(eg_validate_size("info", info->size, sizeof *info));
    *info = (eg_device_info){.size = info->size,
                             .backend = context->caps.backend,
                             .name = context->name,
                             .features = context->features,
                             .threads = context->caps.threads};
    return EG_OK;
}

static int count_kernels(const eg_context *context) {
    eg_kernel_info row = {.size = sizeof row};
    int rows = 0;
    while (context->ops->kernel_info(&context->caps, rows, &row)) rows++;
    return rows;
}

eg_status eg_get_kernel_info(eg_context *context, int index, eg_kernel_info *info) {
    EG_TRY(check_context(context));
    if (info == NULL) return eg_fail(EG_ERR_ARGUMENT, "info is NULL; expected an eg_kernel_info");
    EG_TRY(eg_validate_size("info", info->size, sizeof *info));
    const size_t size = info->size;
    if (!context->ops->kernel_info(&context->caps, index, info))
        return eg_fail(EG_ERR_ARGUMENT, "index is %d; expected 0 to %d, the last row of the %s kernel table",
                       index, count_kernels(context) - 1, eg_backend_name(context->caps.backend));
    info->size = size;
    return EG_OK;
}

eg_status eg_measure_peak(eg_context *context, eg_dtype dtype, double *gflops) {
    EG_TRY(check_context(context));
    if (gflops == NULL) return eg_fail(EG_ERR_ARGUMENT, "gflops is NULL; expected a place for the figure");
    if (eg_dtype_size(dtype) == 0) {
        return eg_fail(EG_ERR_ARGUMENT, "dtype is %d; expected EG_F32, EG_F64, EG_F16 or EG_BF16",
                       (int)dtype);
    }
    return context->ops->measure_peak(context, dtype, gflops);
}

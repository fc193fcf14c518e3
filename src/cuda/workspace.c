/* SPDX-License-Identifier: Apache-2.0 */
/* The regions of a CUDA program's workspace. Pure. */
#include "choose.h"
#include "partition.h"
#include "takes.h"

static double flops_of(const eg_op_list *list) {
    return 2.0 * (double)list->m * (double)list->k * (double)list->n * (double)list->batch;
}

/* The library splits long sums of small results: room for that, as far as it gains. With a byte less than 32
 * MiB its heuristics hardly split f32, nor 16 bits in lines that begin anywhere: those it then adds up in
 * place, which takes up to three times as long. Large layers of 16 bits are mostly ours, and have memory to
 * save. */
static int64_t library_scratch(const eg_op_list *list) {
    const double flops = flops_of(list);
    const bool narrow = eg_size_of(list->dtype) == 2, odd = list->k % 8 != 0 || list->n % 8 != 0,
               large = flops >= 2e10 && (double)list->k * (double)list->n >= 1 << 23;
    const int64_t aligning = 256; /* lost where the caller's workspace is not on 256 bytes (lt.c) */
    const bool little = narrow && ((flops < 1e9 && !odd) || large);
    return flops < 1e6 ? 0 : (little ? 4 << 20 : 32 << 20) + aligning;
}

/* Whether products may have tails: partial tiles are not to take more room than the layer's weights, or half
 * of its result's. By name all may. */
static bool may_have_tails(const eg_cuda_compiler *c) {
    const eg_op_list *list = c->list;
    const double result = 2.0 * (double)list->m * (double)list->n * (double)list->batch,
                 weights = 2.0 * (double)list->k * (double)list->n;
    const double room = (double)eg_cuda_tail_bytes(c->multiprocessors);
    if ((c->caps->features & EG_CUDA_SM90A) == 0 || eg_size_of(list->dtype) != 2) return false;
    if (eg_first_gemm(list) == NULL || list->groups > 0) return false;
    return c->caps->only_kernel != NULL || result >= 2 * room || weights >= room;
}

int eg_cuda_products_before(const eg_op_list *list, int op) {
    int count = 0;
    for (int i = 0; i < op; i++) count += list->op[i].kind == EG_GEMM;
    return count;
}

static size_t most_products(const eg_op_list *list) {
    enum { LAYER = 3 };
    const int count = eg_cuda_products_before(list, list->ops);
    return (size_t)(count > LAYER ? count : LAYER);
}

void eg_cuda_promise_tails(const eg_cuda_compiler *c) {
    const bool tails = may_have_tails(c);
    c->program->region[EG_CUDA_SCRATCH].bytes = tails ? eg_cuda_tail_bytes(c->multiprocessors) : 0;
    c->program->region[EG_CUDA_COUNTERS].bytes =
        tails ? most_products(c->list) * (size_t)eg_cuda_tail_counters(c->multiprocessors) * sizeof(uint32_t)
              : 0;
}

static bool is_of_library(const eg_cuda_kernel *row) { return row != NULL && row->family == EG_CUDA_LIBRARY; }

bool eg_cuda_is_in_chunks(const eg_cuda_compiler *c, int op) {
    return c->product[op] != NULL && c->row[op]->kind == EG_REDUCE;
}

/* The scratch memory of kernels that are chosen, products that wait to be finished, and padded copies. */
static bool add_scratch(const eg_cuda_compiler *c) {
    const eg_op_list *list = c->list;
    eg_program *program = c->program;
    const eg_cuda_program *detail = eg_cuda_program_of(program);
    const int64_t counters = (int64_t)(program->region[EG_CUDA_COUNTERS].bytes / sizeof(uint32_t));
    int64_t scratch = (int64_t)program->region[EG_CUDA_SCRATCH].bytes, unfinished = 0;
    for (int i = 0; i < list->ops; i++) {
        const bool library = is_of_library(c->row[i]) || is_of_library(c->product[i]);
        const int64_t wanted = library ? library_scratch(list) : 0;
        if (wanted > scratch) scratch = wanted;
        if (c->product[i] == NULL) continue;
        const int64_t bytes = eg_cuda_is_in_chunks(c, i)
                                  ? eg_cuda_chunk_bytes(c, i)
                                  : (int64_t)eg_cuda_unfinished_bytes(list, &list->op[i]);
        if (bytes > unfinished) unfinished = bytes;
    }
    for (int i = 0; i < detail->pads; i++) {
        int64_t lines, pitch, items;
        eg_cuda_padded_shape(list, detail->pad[i], &lines, &pitch, &items);
        if (__builtin_mul_overflow(lines, items, &lines) ||
            !eg_add_region(program, EG_CUDA_PADDED + i, "padded copy", lines, pitch, eg_size_of(list->dtype),
                           256))
            return false;
    }
    return (scratch == 0 || eg_add_region(program, EG_CUDA_SCRATCH, "scratch", 1, scratch, 1, 256)) &&
           (counters == 0 ||
            eg_add_region(program, EG_CUDA_COUNTERS, "counters", counters, 1, sizeof(uint32_t), 256)) &&
           (unfinished == 0 ||
            eg_add_region(program, EG_CUDA_UNFINISHED, "unfinished product", 1, unfinished, 1, 256));
}

static bool add_result(const eg_cuda_compiler *c, int id) {
    const eg_temporary *x = &c->list->temporary[id];
    int64_t rows;
    if (eg_cuda_stored_at(c->list, id) != NULL) return true;
    return !__builtin_mul_overflow(x->rows, x->items, &rows) &&
           eg_add_region(c->program, id, x->name, rows, eg_cuda_pitch_of(x->cols, c->list->dtype),
                         eg_size_of(c->list->dtype), 256);
}

static bool add_sums(const eg_cuda_compiler *c, int id) {
    const eg_temporary *x = &c->list->temporary[id];
    int64_t rows;
    return eg_cuda_rows_of_sums(c->list, x, &rows) &&
           eg_add_region(c->program, id, x->name, rows, x->cols, eg_size_of(c->list->compute), 256);
}

bool eg_cuda_add_workspace(const eg_cuda_compiler *c) {
    for (int sums = 0; sums < 2; sums++) {
        for (int i = 0; i < c->list->temporaries; i++) {
            if (eg_cuda_is_sums(c->list, i) != sums) continue;
            if (!(sums ? add_sums(c, i) : add_result(c, i))) return false;
        }
    }
    return add_scratch(c);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the CPU backend. */
#ifndef EG_CPU_H
#define EG_CPU_H

#include "step.h"
#include "threads.h"

/* The instruction sets this processor and its operating system offer, capped by EPIGRAD_CPU_ISA. Fails if
 * the variable names none that is known. */
eg_status eg_cpu_detect(uint32_t *features);
/* "avx512 avx2 portable", and "Intel(R) Xeon(R) ...". */
const char *eg_cpu_feature_text(uint32_t features);
/* "avx512": the highest of a kernel's needs. */
const char *eg_cpu_needs_text(uint32_t needs);
void eg_cpu_model(char *name, size_t capacity);

/* The work of a step that is not run at once: that of other groups goes with it, or of other steps. */
enum { EG_CPU_JOB = 2048 }; /* six of them are on the stack at once */
typedef struct eg_cpu_part {
    void (*body)(void *arg, int64_t index, int thread);
    int64_t count;                              /* indices of the body; 0: nothing to do */
    _Alignas(64) unsigned char job[EG_CPU_JOB]; /* its argument */
} eg_cpu_part;

/* One call being run, or one group of a call. */
typedef struct eg_cpu_run {
    const eg_program *program;
    const eg_op_list *list; /* the program's, or that with the group's rows */
    const eg_call *call;
    eg_threads *threads;  /* of the context */
    bool *refused;        /* set by any thread that meets a number its kernel cannot take */
    char *scratch;        /* of the first thread, */
    size_t scratch_bytes; /* and of each */
    eg_cpu_part *part;    /* NULL: steps are run at once */
} eg_cpu_run;

/* Where a step makes its job: `own`, which is as long as the step, or in the part. */
static inline void *eg_cpu_job(const eg_cpu_run *run, void *own) {
    return run->part != NULL ? (void *)run->part->job : own;
}

/* Shares out the work of a step. */
static inline void eg_cpu_share(const eg_cpu_run *run, int threads, int64_t count,
                                void (*body)(void *arg, int64_t index, int thread), void *job) {
    if (run->part == NULL) {
        eg_cpu_parallel(run->threads, threads, count, body, job);
        return;
    }
    run->part->body = body;
    run->part->count = count;
}

static inline void eg_cpu_refuse(const eg_cpu_run *run) {
    __atomic_store_n(run->refused, true, __ATOMIC_RELAXED);
}

/* The region of that index; NULL: there is none. */
static inline char *eg_cpu_region(const eg_cpu_run *run, int index) {
    if (index < 0) return NULL;
    return (char *)run->call->workspace.data + run->call->workspace.offset +
           run->program->region[index].offset;
}

static inline char *eg_cpu_scratch(const eg_cpu_run *run, int thread) {
    return run->scratch + (size_t)thread * run->scratch_bytes;
}

/* Of each thread, for a program. */
static inline size_t eg_cpu_scratch_bytes(const eg_program *program) {
    return ((const eg_cpu_program *)program->detail)->scratch;
}

/* A view of an operand where this call has it. */
static inline eg_operand eg_cpu_bind(const eg_call *call, const eg_view *view) {
    if (view->space != EG_OPERAND) return (eg_operand){.data = NULL};
    const eg_address *at = &call->operand[view->id];
    return (eg_operand){.data = at->data,
                        .offset = at->offset + (size_t)view->offset * eg_size_of(view->dtype),
                        .dtype = view->dtype,
                        .rows = view->rows,
                        .cols = view->cols,
                        .row_stride = view->row_stride,
                        .col_stride = view->col_stride,
                        .batch_stride = view->batch_stride,
                        .outer = view->outer};
}

/* Address of element (row, col) of the operand's batch `item`. */
static inline char *eg_cpu_at(const eg_operand *x, int64_t item, int64_t row, int64_t col) {
    const int64_t element =
        eg_item_at(x->batch_stride, x->outer, item) + row * x->row_stride + col * x->col_stride;
    return (char *)x->data + x->offset + element * (int64_t)eg_size_of(x->dtype);
}

static inline eg_operand eg_cpu_transpose(eg_operand x) {
    const eg_operand was = x;
    x.rows = was.cols;
    x.cols = was.rows;
    x.row_stride = was.col_stride;
    x.col_stride = was.row_stride;
    return x;
}

/* k in [k, k + depth) of columns [col, col + cols) of a right operand. */
typedef struct eg_part {
    int64_t k, depth, col, cols;
} eg_part;

/* Loads a number of each line of rows x cols, row by row, before micro-panels take a line or two of each. The
 * hardware prefetcher does not follow so many streams, and prefetches by software do not start it: loads do.
 */
void eg_cpu_touch(const eg_operand *x, int64_t item, int64_t row, int64_t rows, int64_t col, int64_t cols);

/* Blocks of a left operand of `depth` rows, `step` bytes from one to the next, as those of a right one, or
 * `left`: of its transpose as a left one. */
void eg_cpu_turn_blocks(const eg_cpu_kernel *kernel, const char *from, int64_t step, int64_t depth, bool left,
                        char *to);

/* Packs a part of x [depth, cols] to a micro-panel, or to AMX tile blocks as if x were that part alone. */
void eg_cpu_pack_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item,
                      const eg_part *part, char *to);
/* The same of a left operand's transpose, to AMX tile blocks. */
void eg_cpu_pack_left_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x_t,
                           int64_t item, const eg_part *part, char *to);

/* The numbers of an AMX tile block: where they are, or converted to a tile. */
eg_rows eg_cpu_block_rows(const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item, int64_t row,
                          int64_t rows, int64_t col, int64_t cols, float *tile);

/* In a call's packed b, which has a form for this very kernel: the matrix of the call's group. */
const char *eg_cpu_packed_b(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_view *view);

/* The addresses of packed layouts. */
static inline eg_cpu_packs eg_cpu_packs_of(const eg_cpu_run *run, const eg_cpu_layouts *regions) {
    return (eg_cpu_packs){.left = eg_cpu_region(run, regions->left),
                          .left_t = eg_cpu_region(run, regions->left_t),
                          .right = eg_cpu_region(run, regions->right),
                          .right_t = eg_cpu_region(run, regions->right_t)};
}
/* Packs `items` matrices x, as their caller has them, in micro-panels of that type or in AMX tile blocks. */
void eg_cpu_pack_matrix(const eg_cpu_run *run, const eg_cpu_kernel *kernel, eg_dtype dtype, int threads,
                        eg_operand x, int64_t items, const eg_cpu_packs *to);

/* Non-temporal stores keep no order with others. A thread that reads the result begins after this one has
 * finished, and must see them. */
static inline void eg_cpu_order_stores(void) {
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
}

/* The steps of a program; the first runs any but collectives. */
void eg_cpu_run_step(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_pack(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_few_rows(const eg_cpu_run *run, const eg_step *step);      /* or columns: a GEMM */
void eg_cpu_outer_product(const eg_cpu_run *run, const eg_step *step); /* of little depth */
void eg_cpu_outer_dots(const eg_cpu_run *run, const eg_step *step);    /* of little depth, by dots of bf16 */
void eg_cpu_map(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_reduce(const eg_cpu_run *run, const eg_step *step);

/* Grouped calls, as eg_backend_ops has them. */
eg_status eg_cpu_plan_groups(const eg_caps *caps, eg_groups *groups);
eg_status eg_cpu_run_groups(eg_context *context, const eg_groups *groups, const eg_problem *problem,
                            eg_address workspace);

#endif

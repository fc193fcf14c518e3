/* The parts of the CPU backend. */
#ifndef EG_CPU_H
#define EG_CPU_H

#include "../backend.h"
#include "../sizes.h"
#include "kernel.h"

/* The instruction sets this processor and its operating system offer, capped by EPIGRAD_CPU_ISA. Fails if
 * the variable names none that is known. */
eg_status eg_cpu_detect(uint32_t *features);
/* "avx512 avx2 portable", and "Intel(R) Xeon(R) ...". */
const char *eg_cpu_feature_text(uint32_t features);
/* "avx512": the highest of a kernel's needs. */
const char *eg_cpu_needs_text(uint32_t needs);
void eg_cpu_model(char *name, size_t capacity);

/* Threads: runs body(arg, index, thread) for every index below count, on up to `threads` of the `most`
 * threads that the context has. Which thread gets which index is not fixed; what a body writes must depend on
 * the index alone. */
int eg_cpu_cores(void);
void eg_cpu_parallel(int most, int threads, int64_t count, void (*body)(void *arg, int64_t index, int thread),
                     void *arg);

/* Pure: the kernel row, cache blocks and workspace of each step. */
eg_status eg_cpu_select(const eg_caps *caps, eg_plan *plan);
/* The row that computes the problem's dtype, math and size here; NULL: none. */
const eg_cpu_kernel *eg_cpu_choose(const eg_caps *caps, const eg_problem *problem);

/* X [rows, cols] in panels: `rows` padded so that left-hand tiles may read whole, and `apart` from a panel's
 * first row to the next one's. */
typedef struct eg_panels {
    int64_t rows, apart, panels;
} eg_panels;
static inline eg_panels eg_cpu_panels(const eg_cpu_kernel *kernel, int64_t rows, int64_t cols) {
    const int64_t mr = kernel->mr, tiles = eg_ceil_div(rows, mr);
    const int64_t size = mr * kernel->nr * (int64_t)eg_size_of(kernel->compute);
    return (eg_panels){tiles * mr, eg_units_apart(tiles, size) * mr, eg_ceil_div(cols, kernel->nr)};
}

/* The same processor, as if it had no kernel that splits numbers; for calls whose numbers have no split. */
eg_caps eg_cpu_caps_without_cells(const eg_caps *caps);

/* Column sums are kept for chunks of this many rows, whatever the threads and blocks: a multiple of every
 * mr. Summation order is part of the contract. */
enum { EG_CPU_CHUNK = 64 };
static inline int64_t eg_cpu_chunks(int64_t rows) { return (rows + EG_CPU_CHUNK - 1) / EG_CPU_CHUNK; }

/* The operand that a product reads where its caller has it, as the plan has no region for it; NULL: it has,
 * or there is nothing to read. */
static inline const eg_operand *eg_cpu_in_place(const eg_plan *plan, eg_buffer_id id) {
    const bool a = id == EG_BUFFER_A, b = id == EG_BUFFER_B || id == EG_BUFFER_BT;
    if (plan->region[id].bytes > 0 || !(a || (b && plan->problem.packed_b == NULL))) return NULL;
    const eg_operand *x = &plan->problem.operands[a ? EG_OP_A : EG_OP_B];
    return x->data != NULL ? x : NULL;
}

/* Tiles of each thread's scratch before those of a block: room for an epilogue. */
enum { EG_CPU_SPARE_TILES = 4 };

/* After those, the block's: all of them if their sums wait for the next pass; otherwise two take turns, one
 * at its end while the other is summed, and stay in L1. */
static inline int64_t eg_cpu_held_tiles(const eg_cpu_kernel *kernel, const eg_step *step) {
    return step->one_pass ? 2 : step->tile_rows / kernel->mr * (step->tile_cols / kernel->nr);
}

/* One call being run. */
typedef struct eg_cpu_run {
    const eg_plan *plan;
    const eg_problem *problem;
    char *workspace;
    size_t scratch; /* bytes of EG_BUFFER_SCRATCH for each thread */
    bool *refused;  /* set by any thread that meets a number its kernel cannot take */
} eg_cpu_run;

static inline void eg_cpu_refuse(const eg_cpu_run *run) {
    __atomic_store_n(run->refused, true, __ATOMIC_RELAXED);
}

static inline void *eg_cpu_region(const eg_cpu_run *run, eg_buffer_id id) {
    return run->workspace + run->plan->region[id].offset;
}

/* NULL: the plan does without it. */
static inline char *eg_cpu_region_or_null(const eg_cpu_run *run, eg_buffer_id id) {
    return run->plan->region[id].bytes > 0 ? eg_cpu_region(run, id) : NULL;
}

static inline char *eg_cpu_scratch(const eg_cpu_run *run, int thread) {
    return (char *)eg_cpu_region(run, EG_BUFFER_SCRATCH) + (size_t)thread * run->scratch;
}

/* Address of element (row, col) of the operand's batch `item`. */
static inline char *eg_cpu_at(const eg_operand *x, int64_t item, int64_t row, int64_t col) {
    const int64_t element = item * x->batch_stride + row * x->row_stride + col * x->col_stride;
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

void eg_cpu_pack(const eg_cpu_run *run, const eg_step *step);
/* Terms [term, term + depth) of columns [col, col + cols) of a right operand. */
typedef struct eg_part {
    int64_t term, depth, col, cols;
} eg_part;
/* x, terms x columns: the part of it to a panel, or to cells as they would be of an operand that has no
 * others.
 */
void eg_cpu_pack_part(const eg_cpu_run *run, const eg_cpu_kernel *kernel, const eg_operand *x, int64_t item,
                      const eg_part *part, char *to);
void eg_cpu_gemm(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_act_grad(const eg_cpu_run *run, const eg_step *step);
void eg_cpu_column_sum(const eg_cpu_run *run, const eg_step *step);

#endif

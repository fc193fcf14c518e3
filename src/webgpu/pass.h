/* A pass: one kernel over a space of (item, row, col, depth), the operands strided along all four. Steps of
 * the plan become passes (lower.c), passes are cut into blocks that the device's limits allow (cut.c), and
 * blocks are dispatched (launch.c). The first two are pure.
 *
 * A pass writes one operand of the caller's. WebGPU lets a pass either read or write a buffer, the whole of
 * it: with one output there is one buffer to look out for. (Sums on the way go to scratch, which no product
 * reads.) */
#ifndef EG_WEBGPU_PASS_H
#define EG_WEBGPU_PASS_H

#include "../backend.h"
#include "kernels.h"

/* All a plan depends on: eg_caps.detail. */
typedef struct eg_webgpu_caps {
    uint64_t binding;     /* bytes of a buffer that a pass can see from an aligned offset on */
    uint32_t align;       /* of that offset */
    uint32_t groups;      /* workgroups in one dimension */
    uint32_t invocations; /* in a workgroup */
    uint32_t memory;      /* of a workgroup, bytes */
    bool f16;             /* shader-f16 */
    bool cpu;             /* the adapter is software */
    double budget;        /* multiply-adds that one submit may hold */
    int64_t fill;         /* invocations that keep the device busy */
    int64_t part;         /* fewest terms that are worth a split of the depth */
    int shallow, deep;    /* the tuned kernel rows: deep where there are many terms and whole tiles enough */
} eg_webgpu_caps;

/* Where an operand lies. Scratch is the context's own: the partial results that cannot be in the workspace
 * because the same pass reads from there. */
typedef enum eg_webgpu_place {
    EG_PLACE_NONE,
    EG_PLACE_USER,
    EG_PLACE_WORKSPACE,
    EG_PLACE_SCRATCH
} eg_webgpu_place;

typedef struct eg_webgpu_operand {
    eg_webgpu_place place;
    void *data;                    /* EG_PLACE_USER: the buffer */
    size_t offset;                 /* bytes */
    eg_dtype dtype;                /* f32 or f16 */
    int64_t row, col, depth, item; /* strides in elements; depth of the output: from split to split */
} eg_webgpu_operand;

enum { EG_LEFT, EG_RIGHT, EG_EXTRA, EG_OUT, EG_BINDINGS };

typedef struct eg_webgpu_pass {
    const eg_webgpu_kernel *kernel;
    eg_epilogue epilogue;
    eg_activation activation;
    bool of_y, propagate, accumulate;
    bool sums;        /* also sums `right` over the depth, into EG_EXTRA: [items, splits, cols] */
    bool sums_by_row; /* no, `left`: [items, splits, rows] */
    bool add_sums;    /* to what is there */
    int64_t items, rows, cols, depth;
    int64_t splits, chunk; /* product: the depth in `splits` parts of `chunk`, summed apart */
    int64_t limit;         /* column sum: terms there are; row r starts at r * chunk */
    eg_webgpu_operand at[EG_BINDINGS];
    eg_webgpu_operand bias; /* along the columns, or the rows */
    bool bias_by_row;
} eg_webgpu_pass;

#define EG_MAX_PASSES 6

typedef struct eg_webgpu_passes {
    int count;
    eg_webgpu_pass pass[EG_MAX_PASSES];
    size_t scratch; /* bytes they use of it */
} eg_webgpu_passes;

/* Pure: what a step of the plan comes to. */
eg_status eg_webgpu_lower(const eg_webgpu_caps *caps, const eg_plan *plan, const eg_step *step,
                          eg_webgpu_passes *passes);

/* Pure: the kernel of each step, its splits, and the workspace. */
eg_status eg_webgpu_select(const eg_caps *caps, eg_plan *plan);

/* Copies B as it is asked for into a dense [items, K, N]. */
eg_webgpu_pass eg_webgpu_lower_pack(const eg_problem *problem, void *to);

/* The kernel of column sums on such a device. */
const eg_webgpu_kernel *eg_webgpu_column_kernel(const eg_webgpu_caps *caps);

/* The product step that makes the sums of d_bias on its way, or NULL: then they are passes of their own. */
const eg_step *eg_webgpu_sums_beside(const eg_plan *plan);

/* How many partial sums an element of d_bias (EG_BUFFER_SUMS) or d_bias_below has; false on overflow. */
bool eg_webgpu_sum_parts(const eg_webgpu_caps *caps, const eg_plan *plan, eg_buffer_id id, int64_t *count);

/* Column sums of a batch of [rows, cols] are taken by chunks of rows. */
int64_t eg_webgpu_sum_chunk(const eg_webgpu_caps *caps, int64_t rows, int64_t row_stride);

/* A part of a pass that one dispatch can do. */
typedef struct eg_webgpu_block {
    int64_t item, items, row, rows, col, cols, term, depth;
} eg_webgpu_block;

typedef eg_status (*eg_webgpu_visit)(void *arg, const eg_webgpu_pass *pass, const eg_webgpu_block *block);

/* Pure: visits the blocks of a pass in order. */
eg_status eg_webgpu_cut(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, eg_webgpu_visit visit,
                        void *arg);

/* Terms of a product that one dispatch can reach: deeper ones are added up in an f32 output. */
int64_t eg_webgpu_reach(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass);

/* Whether a pass writes this operand. */
bool eg_webgpu_writes(const eg_webgpu_pass *pass, int binding);

/* Elements from the first to one past the last that a block touches of an operand, and where it begins. */
int64_t eg_webgpu_window(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block);
int64_t eg_webgpu_begin(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block);

#endif

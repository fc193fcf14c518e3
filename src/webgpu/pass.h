/* SPDX-License-Identifier: Apache-2.0 */
/* A pass: one kernel over a space of (item, row, column, depth), the operands strided along all four. The
 * operations of a program become passes (compile.c), each of which is a step of the program; a pass is done
 * in blocks that the device's limits allow (blocks.c), and a block is one dispatch (run.c). The first two are
 * pure.
 *
 * A pass writes one operand of the caller's. WebGPU lets a pass either read or write a buffer, the whole of
 * it: with one output there is one buffer to look out for. (Column sums on the way go to the scratch, which
 * no product reads.) */
#ifndef EG_WEBGPU_PASS_H
#define EG_WEBGPU_PASS_H

#include "core/backend.h"
#include "kernels.h"

/* What is known of a kind of adapter: estimate.c. */
typedef struct eg_webgpu_adapter eg_webgpu_adapter;

/* All a program depends on: eg_caps.detail. */
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
    const eg_webgpu_adapter *adapter;
} eg_webgpu_caps;

/* What an operand lies in. The scratch is the context's own buffer: for what cannot be in the workspace
 * because the same pass reads from there. */
typedef enum eg_webgpu_space {
    EG_WEBGPU_NOWHERE,
    EG_WEBGPU_OPERAND, /* of the call */
    EG_WEBGPU_PACKED_B,
    EG_WEBGPU_WORKSPACE,
    EG_WEBGPU_SCRATCH
} eg_webgpu_space;

typedef struct eg_webgpu_operand {
    uint8_t space;                 /* eg_webgpu_space */
    uint8_t id;                    /* EG_WEBGPU_OPERAND, EG_WEBGPU_PACKED_B: of the view */
    uint8_t dtype;                 /* f32 or f16 */
    int64_t offset;                /* elements */
    int64_t row, col, depth, item; /* strides in elements; depth of the output: from split to split */
} eg_webgpu_operand;

enum { EG_LEFT, EG_RIGHT, EG_EXTRA, EG_OUT, EG_BINDINGS };

/* What happens to a value on its way to the output: EPILOGUE in kernels/common.wgsl. */
enum {
    EG_WEBGPU_STORE,         /* + bias */
    EG_WEBGPU_FORWARD,       /* + bias, act, + extra */
    EG_WEBGPU_GRAD_AT_VALUE, /* + bias, extra * act'(value) */
    EG_WEBGPU_GRAD_AT_SAVED, /* value * act'(extra) */
    EG_WEBGPU_TIMES          /* + bias, act, * extra */
};

/* eg_step.detail. The bias and the scale, where it has them, are those of the step's operation. */
typedef struct eg_webgpu_pass {
    const eg_webgpu_kernel *kernel;
    int64_t items, rows, cols, depth;
    int64_t chunk; /* product: terms of a split; column sums: terms from one row's first to the next one's */
    int64_t limit; /* column sums: terms there are */
    eg_webgpu_operand at[EG_BINDINGS];
    int32_t splits;      /* product: parts that the depth is summed in, each to its own output */
    uint8_t epilogue;    /* EG_WEBGPU_STORE, ... */
    uint8_t activation;  /* eg_activation */
    bool of_y : 1;       /* act' is taken of y */
    bool propagate : 1;  /* act'(NaN) is NaN */
    bool accumulate : 1; /* to what is there */
    bool bias : 1, bias_by_row : 1;
    bool scaled : 1;      /* a product that has its operation's scale */
    bool sums : 1;        /* also sums `right` over the depth, into EG_EXTRA: [items, splits, cols] */
    bool sums_by_row : 1; /* no, `left`: [items, splits, rows] */
    bool add_sums : 1;    /* to what is there */
} eg_webgpu_pass;
_Static_assert(sizeof(eg_webgpu_pass) <= EG_STEP_DETAIL, "the detail of a step");

/* Of the regions of a program the first is in the scratch; the others are in the workspace. */
enum { EG_WEBGPU_SCRATCH_REGION };

static inline const eg_webgpu_pass *eg_webgpu_detail(const eg_step *step) {
    return (const eg_webgpu_pass *)step->detail;
}

static inline bool eg_webgpu_is_present(const eg_webgpu_operand *x) { return x->space != EG_WEBGPU_NOWHERE; }

/* compile.c: a step for each pass of each operation, and the workspace. */
eg_status eg_webgpu_compile(const eg_caps *caps, eg_program *program);

/* ---- Choices: estimate.c ------------------------------------------------------------------------ */

/* The product of an operation, as kernels see it. */
typedef struct eg_webgpu_choice {
    const eg_webgpu_kernel *kernel; /* NULL: none runs here */
    int64_t chunk;                  /* terms of a split; the depth where it is not split */
} eg_webgpu_choice;

/* The kernel row, with its split of the depth, that is estimated to take least time. */
eg_webgpu_choice eg_webgpu_choose(const eg_caps *caps, const eg_op *gemm);

/* Microseconds that a pass takes in so many dispatches; 0: the adapter's constants do not say. Pure. */
double eg_webgpu_estimate(const eg_webgpu_caps *device, const eg_webgpu_pass *pass, int64_t launches);

/* The constants of an adapter, by the name that it gives itself; of its type where it is not known. */
const eg_webgpu_adapter *eg_webgpu_adapter_of(const char *name, uint32_t type);

/* ---- Blocks: blocks.c ------------------------------------------------------------------------------- */

/* A part of a pass that one dispatch can do. */
typedef struct eg_webgpu_block {
    int64_t item, items, row, rows, col, cols, term, depth;
} eg_webgpu_block;

typedef eg_status (*eg_webgpu_visit)(void *arg, const eg_webgpu_pass *pass, const eg_webgpu_block *block);

/* Pure: visits the blocks of a pass in order. */
eg_status eg_webgpu_each_block(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass, eg_webgpu_visit visit,
                               void *arg);

/* Terms of a product that one dispatch can reach: deeper ones are added up in an f32 output. */
int64_t eg_webgpu_reach(const eg_webgpu_caps *caps, const eg_webgpu_pass *pass);

/* Whether a pass writes this operand. */
bool eg_webgpu_writes(const eg_webgpu_pass *pass, int binding);

/* Elements from the first to one past the last that a block touches of an operand, and where it begins. */
int64_t eg_webgpu_window(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block);
int64_t eg_webgpu_begin(const eg_webgpu_pass *pass, int binding, const eg_webgpu_block *block);

#endif

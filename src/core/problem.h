/* SPDX-License-Identifier: Apache-2.0 */
/* A call after validation: every default resolved, every operand a strided matrix. The lowering makes
 * operations of it. */
#ifndef EG_PROBLEM_H
#define EG_PROBLEM_H

#include <stdbool.h>

#include "epigrad/comm.h"

/* The operands of both calls. The table in validate_operand.c says the shape and the name of each. */
typedef enum eg_operand_id {
    EG_OP_A,
    EG_OP_B,
    EG_OP_BIAS,
    EG_OP_RESIDUAL,
    EG_OP_GRAD,
    EG_OP_SAVED, /* pre or y of the forward pass, as `source` says */
    EG_OP_BELOW, /* pre or y of the layer below, as `below_source` says */
    EG_OP_B_UP,  /* the other half of gated units: */
    EG_OP_BIAS_UP,
    EG_OP_GRAD_UP,
    EG_OP_SAVED_UP,
    EG_OP_BELOW_UP,
    EG_OP_D_A_RESIDUAL, /* what d_a gets added; d_a itself where that accumulates */
    EG_OP_OFFSETS,      /* the ends of groups: int32, which is as large as its dtype says, f32 */
    EG_OP_Y,            /* outputs from here on */
    EG_OP_PRE,
    EG_OP_D_A,
    EG_OP_D_B,
    EG_OP_D_BIAS,
    EG_OP_GRAD_PRE,
    EG_OP_D_BIAS_BELOW,
    EG_OP_PRE_UP,
    EG_OP_D_B_UP,
    EG_OP_D_BIAS_UP,
    EG_OP_GRAD_PRE_UP,
    EG_OP_D_UP_BELOW,
    EG_OP_Y_BELOW,
    EG_OP_D_BIAS_UP_BELOW,
    EG_OP_GATHERED, /* a of all ranks */
    EG_OPERANDS
} eg_operand_id;

/* A batch of two levels: `inner` items, `inner` more at `stride` elements from there, and so on. inner 0: one
 * level, and so it is always where one stride says the same. */
typedef struct eg_outer {
    int64_t inner, stride;
} eg_outer;

/* Elements from the first matrix of a batch to that of `item`. */
static inline int64_t eg_item_at(int64_t batch_stride, eg_outer outer, int64_t item) {
    if (outer.inner == 0) return item * batch_stride;
    const int64_t whole = item / outer.inner;
    return whole * outer.stride + (item - whole * outer.inner) * batch_stride;
}

/* Whether items are matrices of their own: else there is one for all of them. */
static inline bool eg_differs(int64_t batch_stride, eg_outer outer) {
    return batch_stride != 0 || outer.inner != 0;
}

/* data == NULL: absent. Strides in elements; a vector is one row. */
typedef struct eg_operand {
    void *data;
    size_t offset; /* bytes */
    eg_dtype dtype;
    int64_t rows, cols;
    int64_t row_stride, col_stride, batch_stride;
    eg_outer outer;
} eg_operand;

/* eg_dtype_size, for where it is asked often. */
static inline size_t eg_size_of(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return 8;
    case EG_F32:
        return 4;
    case EG_F16:
    case EG_BF16:
        return 2;
    case EG_DTYPE_DEFAULT:
        break;
    }
    return 0;
}

/* What eg_matrix.data is. */
typedef enum eg_addressing {
    EG_ADDRESSES, /* memory */
    EG_HANDLES,   /* the name of a buffer (WebGPU), in which `offset` is the place */
    EG_PRESENCE   /* a mark that the operand is there: the workspace and plan queries */
} eg_addressing;

typedef enum eg_parallel { EG_DATA_PARALLEL, EG_BY_COLUMNS, EG_BY_ROWS } eg_parallel;

/* What a call exchanges with other processes, as eg_data_parallel or eg_tensor_parallel says: all of it that
 * a program depends on. */
typedef struct eg_exchange {
    eg_parallel parallel;
    int rank, ranks; /* ranks 0: one process */
    bool streams;    /* the engine is one of a stream */
    bool gathered;   /* the a of a backward call is that of all ranks */
    bool mean, sharded;
    bool d_b_by_columns; /* column-major: its lines are columns */
    eg_dtype sums;
    eg_comm_cost now, begun;
    double busy;
    eg_comm_order order;
} eg_exchange;

/* Lines of a rank's shard, but for the last ranks' */
static inline int64_t eg_shard_lines(const eg_exchange *x, int64_t lines) {
    return (lines + x->ranks - 1) / x->ranks;
}

/* An operand that is elsewhere while a call over processes runs: dense rows of all ranks. */
typedef struct eg_moved {
    int id;         /* eg_operand_id */
    int to;         /* EG_EXCHANGED or EG_GATHERED of op.h */
    int64_t offset; /* elements */
    eg_dtype dtype;
} eg_moved;

enum { EG_MAX_MOVED = 2 };

typedef struct eg_problem {
    bool backward;
    bool gated;
    eg_addressing addressing;
    int64_t m, k, n;
    int64_t batch;    /* items of all levels, at least 1; or the groups, where there are any */
    int64_t inner;    /* of them in an outer one */
    bool grouped;     /* operands with rows lie group after group, and have no batch stride */
    eg_dtype dtype;   /* storage */
    eg_dtype compute; /* f32, or f64 for f64 */
    eg_math math;
    eg_activation activation;
    eg_source source;
    bool propagate;      /* act'(NaN) = NaN */
    double scale;        /* of the products, a number of `compute` */
    unsigned accumulate; /* eg_into bits, but that of d_a */
    eg_activation below_activation;
    eg_source below_source;
    const eg_packed *packed_b, *packed_b_up;
    const eg_comm *comm; /* NULL: one process */
    eg_exchange exchange;
    int moves; /* the lowering's own */
    eg_moved moved[EG_MAX_MOVED];
    eg_operand operands[EG_OPERANDS];
} eg_problem;

static inline bool eg_is_tensor_parallel(const eg_problem *problem) {
    return problem->exchange.parallel != EG_DATA_PARALLEL;
}

static inline bool eg_wants(const eg_problem *problem, eg_operand_id id) {
    return problem->operands[id].data != NULL;
}

/* Of a gated unit: whether outputs are made from the gradient of its gate, or from that of the other half. */
static inline bool eg_wants_gate(const eg_problem *problem) {
    return eg_wants(problem, EG_OP_D_A) || eg_wants(problem, EG_OP_D_B) || eg_wants(problem, EG_OP_D_BIAS) ||
           eg_wants(problem, EG_OP_GRAD_PRE);
}
static inline bool eg_wants_up(const eg_problem *problem) {
    return eg_wants(problem, EG_OP_D_A) || eg_wants(problem, EG_OP_D_B_UP) ||
           eg_wants(problem, EG_OP_D_BIAS_UP) || eg_wants(problem, EG_OP_GRAD_PRE_UP);
}

/* Whether the sum is added to what the operand holds. */
bool eg_adds_to(const eg_problem *problem, eg_operand_id sum);

static inline bool eg_has_items(const eg_operand *x) { return eg_differs(x->batch_stride, x->outer); }

static inline bool eg_has_elements(const eg_operand *x) { return x->rows > 0 && x->cols > 0; }

/* Where the operand begins, in bytes: its address, or the offset in its buffer. */
static inline uintptr_t eg_begin(const eg_problem *problem, const void *data, size_t offset) {
    return (problem->addressing == EG_ADDRESSES ? (uintptr_t)data : 0) + offset;
}

/* The name users know the operand by; and in this call, where a matrix may stand for another. */
const char *eg_name_of_operand(eg_operand_id id);
const char *eg_operand_name(const eg_problem *problem, eg_operand_id id);

/* Whether its rows are the layer's M. */
bool eg_operand_has_rows(eg_operand_id id);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary below the lowering: what a call computes, as a list of generic operations.
 *
 * The lowering (lower*.c) alone knows what a layer is. An operation has no role: it multiplies, maps, reduces
 * or copies strided views, and says what else happens to a result on its way to memory, as a list of terms.
 * Nothing here depends on a device, and nothing is an address: a view names an operand of the call, or a
 * temporary that one operation of the list makes for others. */
#ifndef EG_OP_H
#define EG_OP_H

#include "problem.h"

/* Where a view's elements are. */
typedef enum eg_space {
    EG_ABSENT,   /* nowhere: there is no such view */
    EG_OPERAND,  /* in an operand of the call */
    EG_PACKED_B, /* in the call's packed b of that id, whose layout is the backend's */
    EG_TEMPORARY /* in the workspace. Layout and dtype are the compiler's choice: of
                    the strides only batch_stride is set, to 1 where items differ */
} eg_space;

/* A matrix, or a batch of them. */
typedef struct eg_view {
    eg_space space;
    int id;          /* eg_operand_id or another name below EG_NAMES, or the number of a temporary */
    bool transposed; /* rows and columns are those of the transpose of the operand, pack or temporary */
    eg_dtype dtype;  /* of an operand or pack */
    int64_t rows, cols;
    int64_t row_stride, col_stride; /* elements */
    int64_t batch_stride;           /* elements from matrix to matrix; 0: the same for all */
    eg_outer outer;                 /* of operands: the same at a second level */
    int64_t offset;                 /* elements from the operand's first one to the view's */
    int align; /* bytes: the first element's address is a multiple of it, a power of two up to EG_MOST_ALIGN
                */
} eg_view;

enum { EG_MOST_ALIGN = 256 };

static inline bool eg_is_present(const eg_view *view) { return view->space != EG_ABSENT; }

static inline bool eg_is_batched(const eg_view *view) { return eg_differs(view->batch_stride, view->outer); }

/* Whether they name the same elements. */
static inline bool eg_names_same(const eg_view *a, const eg_view *b) {
    return a->space == b->space && a->id == b->id && a->offset == b->offset && a->transposed == b->transposed;
}

static inline eg_view eg_transposed(eg_view x) {
    const eg_view was = x;
    x.transposed = !was.transposed;
    x.rows = was.cols;
    x.cols = was.rows;
    x.row_stride = was.col_stride;
    x.col_stride = was.row_stride;
    return x;
}

/* What happens to a value v on its way to `out`: terms in the order of the list. */
typedef enum eg_term_kind {
    EG_TERM_SCALE,         /* v *= scale */
    EG_TERM_BIAS,          /* v += view[column] */
    EG_TERM_STORE,         /* view = v, rounded; v itself is not */
    EG_TERM_ACT,           /* v = act(v) */
    EG_TERM_ADD,           /* v += view */
    EG_TERM_TIMES,         /* v *= view */
    EG_TERM_GRAD_AT_VALUE, /* v = view * act'(v) */
    EG_TERM_GRAD_AT_SAVED, /* v = v * act'(view) */
    EG_TERM_COLUMN_SUMS    /* view, a temporary, gets the sums of v down each column, by chunks of rows */
} eg_term_kind;

typedef struct eg_term {
    eg_term_kind kind;
    eg_view view;             /* SCALE, ACT have none */
    double scale;             /* SCALE */
    eg_activation activation; /* ACT, GRAD_AT_VALUE, GRAD_AT_SAVED */
    bool of_y;                /* act' is taken from y: v (GRAD_AT_VALUE) or the view is y, not pre */
    bool propagate;           /* act'(NaN) is NaN, not 0 */
} eg_term;

/* The most terms that the lowering makes: scale, bias, gradient, store, column sums. */
enum { EG_MAX_TERMS = 5 };

/* The terms that change a value come in this order, at most one of each line:
 *
 *     SCALE              of a GEMM
 *     BIAS
 *     ACT
 *     ADD or TIMES
 *     GRAD_AT_VALUE
 *     GRAD_AT_SAVED      which may follow ADD: a residual of d_a, before the act' of a chain
 *
 * STORE and COLUMN_SUMS come after all of them, but for a STORE between BIAS and ACT, ADD or TIMES. */

/* The dimension of an operation that the layer's rows (M) are. COLS: of the transpose of a lowered one. */
typedef enum eg_axis { EG_AXIS_ROWS, EG_AXIS_DEPTH, EG_AXIS_COLS } eg_axis;

typedef enum eg_op_kind {
    EG_GEMM,      /* v = Σ over `summed` matrices, `depth` products of left[row, k] * right[k, column] */
    EG_MAP,       /* v = left */
    EG_REDUCE,    /* out = the sum of all chunks of column sums in left, a temporary, in a fixed order */
    EG_COPY,      /* out = left: converted, transposed or packed */
    EG_COLLECTIVE /* out = what processes have in left, together; both dense */
} eg_op_kind;

typedef enum eg_collective_kind {
    EG_ALL_REDUCE,     /* out, which is left, = the sum or mean over the processes */
    EG_REDUCE_SCATTER, /* out = this rank's lines of it */
    EG_ALL_GATHER,     /* item r of out = rank r's left */
    EG_FINISH          /* all collectives before have finished: no views */
} eg_collective_kind;

/* `items` results of rows x cols: item i reads and writes each view at its eg_item_at. */
typedef struct eg_op {
    eg_op_kind kind;
    eg_axis axis; /* GEMM, MAP */
    int64_t items, rows, cols;
    int64_t depth;  /* GEMM: products a matrix, 0: left and right are absent; REDUCE: rows that were summed */
    int64_t summed; /* GEMM: matrices summed into one result, items of left and right; 1 or more */
    eg_view left, right, out; /* out may be absent where a term stores what is wanted */
    bool accumulate;          /* out += v */
    bool ragged;              /* of a group: the call may have fewer rows, along `axis` */
    eg_collective_kind collective;
    int summing; /* COLLECTIVE: the gradient, an eg_operand_id */
    int groups;  /* ALL_REDUCE: parts of the rows, each of which may go as soon as it is there */
    int terms;
    eg_term term[EG_MAX_TERMS];
} eg_op;

/* A matrix that one operation writes and later ones read; column sums have `cols` only. */
typedef struct eg_temporary {
    const char *name;
    int64_t items, rows, cols;
    eg_view same; /* once made, the same numbers, rounded, are here too; or absent */
} eg_temporary;

/* What outlives a chunk of a call is named like an operand (low_memory.h): the sums of an operation's
 * result, those in the result's own memory, a gradient, lines in transit. So is what a list of operations
 * keeps for itself as a caller would: a buffer. */
enum { EG_LOCAL_OPS = 16 /* of one process: a gated unit with a chain to one */ };
enum { EG_MAX_ROW_GROUPS = 4 }; /* of rows that are exchanged, each under the products of another */
enum { EG_MAX_OPS = EG_LOCAL_OPS + 8 /* with what goes over processes */ };
enum { EG_MAX_BUFFERS = 3 };
enum {
    EG_SUMS = EG_OPERANDS,
    EG_SUMS_IN_RESULT = EG_SUMS + EG_LOCAL_OPS,
    EG_CHUNK_GRADIENT,
    EG_TRANSIT,
    EG_EXCHANGED, /* what is sent to other processes and received, at the beginning of the workspace */
    EG_GATHERED,  /* rows of all ranks: there, or in the caller's memory */
    EG_ROW_GROUP, /* the same place, of which a group each is read as a matrix of its own */
    EG_LAST_ROW_GROUP = EG_ROW_GROUP + EG_MAX_ROW_GROUPS - 1,
    EG_BUFFER,
    EG_NAMES = EG_BUFFER + EG_MAX_BUFFERS
};

enum { EG_MAX_TEMPORARIES = 6, EG_BUFFER_ALIGN = 64 };

/* A dense row-major matrix of the compute type, at the beginning of the workspace: any kernel can read and
 * write it as it does a caller's. Views of it are of EG_OPERAND. */
typedef struct eg_buffer {
    const char *name;
    int64_t items, rows, cols;
} eg_buffer;

typedef struct eg_op_list {
    int64_t m, k, n, batch; /* of the layer, for text */
    /* 0, or of how many groups the operations are those of one, which has m rows at most. An operand without
     * rows is batch_stride elements further for the next group; one with rows begins at the group's first. */
    int64_t groups;
    eg_dtype dtype;   /* storage of the layer */
    eg_dtype compute; /* f32 | f64 */
    eg_math math;
    eg_activation activation; /* for text, as is the next */
    eg_source source;
    const eg_packed *packed_b, *packed_b_up; /* where a view is of it: what it holds, not where */
    int ops, temporaries, buffers;
    eg_op op[EG_MAX_OPS];
    eg_temporary temporary[EG_MAX_TEMPORARIES];
    eg_buffer buffer[EG_MAX_BUFFERS];
    bool backward, gated; /* for text */
    bool in_place; /* an output is in the memory of an input: a call that was begun cannot be made anew */
    eg_exchange exchange;
    int64_t exchanged;         /* bytes of EG_EXCHANGED */
    int row_groups;            /* that rows of a tensor-parallel call are exchanged in */
    bool reads_a_by_row_group; /* EG_ROW_GROUP is in a, not in what is gathered */
} eg_op_list;

/* The operations of a call, in an order in which they may run. Operations without a result element are left
 * out. A batch is folded into rows where that is the same computation. */
void eg_lower(const eg_problem *problem, eg_op_list *list);

/* The one operation of eg_pack_b: a copy of b into the pack. */
void eg_lower_pack(const eg_problem *problem, bool batched, eg_op_list *list);

/* The operations of a group of `rows` rows, from those of one of list->m or more; rows is at least 1. */
void eg_list_of_rows(const eg_op_list *list, int64_t rows, eg_op_list *out);

/* Folds the batch, or one of its two levels, into the rows where that is the same computation: shared B,
 * summed d_b, operands whose items follow each other as rows do. */
void eg_fold(eg_problem *problem);

/* Whether an output is in the memory of an input. */
bool eg_in_place(const eg_problem *problem);

/* The term of a kind, NULL where the operation has none. */
static inline const eg_term *eg_term_of(const eg_op *op, eg_term_kind kind) {
    for (int i = 0; i < op->terms; i++) {
        if (op->term[i].kind == kind) return &op->term[i];
    }
    return NULL;
}

/* EG_EXCHANGED begins with what each rank says of the call: collectives.h. */
enum { EG_EXCHANGED_ALIGN = 64, EG_AGREED_WORDS = 8 };
static inline int64_t eg_agreement_bytes(int ranks) {
    return (int64_t)(ranks + 1) * EG_AGREED_WORDS * (int64_t)sizeof(int64_t);
}

/* Rows of group `group` of a result that is exchanged in `groups`: the same on every rank, whatever its
 * kernels. They begin at a multiple of every tile's rows. */
typedef struct eg_row_range {
    int64_t first, count;
} eg_row_range;
static inline eg_row_range eg_rows_of_group(int64_t rows, int groups, int group) {
    enum { UNIT = 64 };
    const int64_t units = (rows + UNIT - 1) / UNIT, first = units * group / groups * UNIT,
                  next = units * (group + 1) / groups * UNIT;
    return (eg_row_range){first, (next < rows ? next : rows) - first};
}

/* Whether a view is of what other ranks send while the call runs. */
static inline bool eg_arrives(const eg_view *view) {
    return view->space == EG_OPERAND && view->id >= EG_GATHERED && view->id <= EG_LAST_ROW_GROUP;
}

/* The pack that a view of EG_PACKED_B is of. */
static inline const eg_packed *eg_pack_of(const eg_op_list *list, const eg_view *view) {
    return view->id == EG_OP_B_UP ? list->packed_b_up : list->packed_b;
}

/* The number that a product is multiplied by. */
static inline double eg_scale_of(const eg_op *op) {
    return op->terms > 0 && op->term[0].kind == EG_TERM_SCALE ? op->term[0].scale : 1;
}

/* Whether a result is but its product, which may have a scale. */
static inline bool eg_is_bare(const eg_op *op) {
    return op->terms == 0 || (op->terms == 1 && op->term[0].kind == EG_TERM_SCALE);
}

/* Whether a map is the epilogue of a forward product, whose sums are there: bias, act and what is added. */
static inline bool eg_is_forward_map(const eg_op *op) {
    return op->kind == EG_MAP && op->out.space == EG_OPERAND && eg_term_of(op, EG_TERM_TIMES) == NULL &&
           eg_term_of(op, EG_TERM_GRAD_AT_VALUE) == NULL && eg_term_of(op, EG_TERM_GRAD_AT_SAVED) == NULL;
}

/* The first product of a list, NULL where there is none. */
static inline const eg_op *eg_first_gemm(const eg_op_list *list) {
    for (int i = 0; i < list->ops; i++) {
        if (list->op[i].kind == EG_GEMM) return &list->op[i];
    }
    return NULL;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A compiled call: which kernel does each operation, with what parameters, where in the workspace.
 *
 * A program is immutable and has no address in it, so it serves every call of the same signature. It is what
 * `epigrad plan` prints, and all that runs: when a call runs, only addresses are filled in. */
#ifndef EG_PROGRAM_H
#define EG_PROGRAM_H

#include "op.h"
#include "text.h"

/* A part of the workspace; the backend knows its regions by their index. */
typedef struct eg_region {
    size_t offset, bytes; /* 0 bytes: the region is not there */
    const char *name;     /* for text */
} eg_region;

enum { EG_NO_OP = -1, EG_MAX_STEPS = 40, EG_MAX_REGIONS = 32, EG_STEP_DETAIL = 256, EG_PROGRAM_DETAIL = 64 };

/* One kernel, or one that goes over parts of an operation in turn. Steps run in order. */
typedef struct eg_step {
    int op;             /* whose result it makes, in the program's list; EG_NO_OP: only what others need */
    eg_op_kind kind;    /* the operation's; EG_NO_OP: copy, unless it is a part of a product */
    unsigned also;      /* a bit for each further operation that it does at the same time */
    const char *what;   /* EG_NO_OP: what it does, such as "pack a" */
    const char *kernel; /* the name of the row */
    int64_t tile_rows, tile_cols, k_block; /* of a cache block or thread block; 0: it has none */
    int64_t launches;                      /* of the kernel, one after the other; 1 unless there is no room */
    eg_row_range rows;      /* of the operation's result, or of what is sent; a count of 0: all */
    int group;              /* COLLECTIVE: which it is, of the operation's groups */
    const char *after_each; /* NULL, or the row that adds up the sums of each launch */
    int splits;             /* parts that the depth is summed in, 1: one */
    int64_t tail;           /* the last tiles, whose depth several blocks share: stream-K */
    int threads;            /* CPU: that it takes; 0: not the backend's to say */
    const char *note;       /* what else is to be said of it, such as "fused packing"; may be NULL */
    bool beside;            /* the step may still run when the next ones begin, up to the end of the call */
    double microseconds;    /* estimated; 0: there is no estimate */
    _Alignas(8) unsigned char detail[EG_STEP_DETAIL]; /* the backend's own, with nothing left to decide */
} eg_step;

/* Which of the ways to make a call a program takes, where a backend has several: it counts them from 0, the
 * one of the least estimated time. All 0: what the estimates say. */
typedef struct eg_choice {
    uint8_t copies;   /* of operands that kernels would take longer to read as they are */
    uint8_t unpaired; /* 1: no kernel makes two products */
    uint8_t way[EG_MAX_OPS];
    uint8_t algorithm[EG_MAX_OPS]; /* of a library, for the product of an operation */
} eg_choice;

typedef struct eg_program {
    eg_op_list list;
    int steps;
    eg_step step[EG_MAX_STEPS];
    eg_region region[EG_MAX_REGIONS];
    size_t buffer[EG_MAX_BUFFERS]; /* where each begins in the workspace, bytes */
    size_t workspace;              /* bytes */
    uint64_t serial;         /* no two programs of a context have the same; 0: not one of the context's */
    bool overlaps;           /* collectives are worth beginning before the products are through */
    double time, plain_time; /* of a tensor-parallel call with its collectives, estimated microseconds */
    bool lacks;      /* eg_caps.choice asks for a way that there is not, or that is not worth a trial */
    bool measured;   /* nothing is left to be tried: tune.h */
    bool may_refuse; /* its kernels may meet numbers, or a library a product, that they do not take: the
                        program compiled with eg_caps.refused then does the call */
    _Alignas(8) unsigned char detail[EG_PROGRAM_DETAIL]; /* the backend's own */
} eg_program;

/* What is known only when a call runs. */
typedef struct eg_address {
    void *data;    /* as in eg_matrix */
    size_t offset; /* bytes */
} eg_address;

typedef struct eg_collectives eg_collectives;

typedef struct eg_call {
    eg_address operand[EG_NAMES]; /* by the id of a view */
    const eg_packed *packed_b, *packed_b_up;
    int64_t pack_item; /* of a batched pack, the item that the first one reads: a group, or where a chunk
                          begins */
    eg_address workspace;
    eg_collectives *collectives; /* of a call over processes: collectives.h */
} eg_call;

/* The pack that a view of EG_PACKED_B is of. */
static inline const eg_packed *eg_pack_in(const eg_call *call, int id) {
    return id == EG_OP_B_UP ? call->packed_b_up : call->packed_b;
}

typedef struct eg_caps eg_caps;

/* From program->list, which is there, to everything else. Depends on nothing else, but may rewrite the list: an
 * operation as its transpose, or another place for what it makes. */
eg_status eg_compile(const eg_caps *caps, eg_program *program);

/* Lowers and compiles. */
eg_status eg_program_make(const eg_caps *caps, const eg_problem *problem, eg_program *program);

/* Everything but the list as it is before the first step. Steps are cleared as they are added: all of them
 * would take as long as the choice of a kernel. */
void eg_program_begin(eg_program *program);

/* For backends: a new step, cleared, of the operation; a new region at the end of the workspace, aligned to
 * `align` bytes (a power of two), of count * each elements: false where no memory could hold it. */
eg_step *eg_add_step(eg_program *program, int op, const char *kernel);
bool eg_add_region(eg_program *program, int index, const char *name, int64_t count, int64_t each,
                   size_t element, size_t align);

/* Gives list.buffer[index], the last one, its place in the workspace, before any region: for a backend whose
 * program keeps something for itself as a caller would. False where no memory could hold it. */
bool eg_place_buffer(eg_program *program, int index);

/* Fails: what to say where the workspace overflows. */
eg_status eg_too_large(const eg_op_list *list);

/* Text for people, one step a line. */
void eg_program_print(const eg_program *program, eg_text *out);

/* The name of what a view is of, such as "d_b". */
const char *eg_view_name(const eg_op_list *list, const eg_view *view);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of the library as cases: what is computed, and how its operands lie in memory. */
#ifndef ORACLE_CASE_H
#define ORACLE_CASE_H

#include <stdbool.h>

#include "epigrad/epigrad.h"

typedef enum check_operand {
    CHECK_A,
    CHECK_B,
    CHECK_BIAS,
    CHECK_RESIDUAL,
    CHECK_GRAD,
    CHECK_SAVED, /* pre or y, as source says */
    CHECK_BELOW, /* chain.saved */
    CHECK_B_UP,  /* the other half of a gated unit */
    CHECK_BIAS_UP,
    CHECK_GRAD_UP,
    CHECK_SAVED_UP,
    CHECK_BELOW_UP,     /* chain_up.saved */
    CHECK_D_A_RESIDUAL, /* of the backward pass */
    CHECK_Y,            /* outputs from here on */
    CHECK_PRE,
    CHECK_D_A,
    CHECK_D_B,
    CHECK_D_BIAS,
    CHECK_GRAD_PRE,
    CHECK_D_BIAS_BELOW,
    CHECK_PRE_UP,
    CHECK_D_B_UP,
    CHECK_D_BIAS_UP,
    CHECK_GRAD_PRE_UP,
    CHECK_D_UP_BELOW,      /* chain_up.d_up */
    CHECK_Y_BELOW,         /* chain_up.y */
    CHECK_D_BIAS_UP_BELOW, /* chain_up.d_bias */
    CHECK_OPERANDS
} check_operand;

#define CHECK_BIT(operand) (1U << (operand))

typedef enum check_data {
    CHECK_DATA_PLAIN,                 /* pre of a few units, either sign */
    CHECK_DATA_POSITIVE,              /* all terms of one sign: the hardest sums */
    CHECK_DATA_INTEGERS,              /* small integers: pre is exact, and falls on every kink */
    CHECK_DATA_LARGE,                 /* pre far into saturation */
    CHECK_DATA_TINY,                  /* f16 results among the subnormal numbers */
    CHECK_DATA_NONFINITE,             /* plain, with NaN and infinities in some operands */
    CHECK_DATAS,                      /* that the table deals */
    CHECK_DATA_SPECIAL = CHECK_DATAS, /* plain, with zeros of either sign, subnormal, huge and no numbers */
    CHECK_DATA_ZERO                   /* all zeros, or ones */
} check_data;

typedef enum check_pack {
    CHECK_PACK_NONE,
    CHECK_PACK_ALONE,   /* packed_b is given, b is absent */
    CHECK_PACK_COPY,    /* both are given, and b is spoilt after it was packed */
    CHECK_PACK_UPDATED, /* packed from another b, then updated */
    CHECK_PACKS
} check_pack;

typedef enum check_limit {
    CHECK_LIMIT_NONE,
    CHECK_LIMIT_LEAST, /* workspace_limit is what the smallest chunks need */
    CHECK_LIMIT_MORE,  /* between that and the workspace of one chunk */
    CHECK_LIMITS
} check_limit;

/* How rows are shared out among groups. */
typedef enum check_routing {
    CHECK_ROUTING_EVEN,
    CHECK_ROUTING_RANDOM, /* some groups may be empty, and the last rows of none */
    CHECK_ROUTING_SKEWED, /* one has nearly all */
    CHECK_ROUTING_ONES,   /* a row each, as far as there are rows */
    CHECK_ROUTING_NONE,   /* all are empty */
    CHECK_ROUTINGS
} check_routing;

/* Where an operand lies, in cases that say so in numbers. Several may lie in the memory of one, their home:
 * inputs anywhere in it, outputs apart from everything but what they may be written over. */
typedef struct check_place {
    check_operand home; /* itself, or the operand whose memory it lies in */
    eg_dtype dtype;
    eg_layout layout;
    int64_t ld, batch_stride; /* elements; batch_stride 0: shared by the batch */
    int64_t outer_stride;     /* elements, where the case has two levels */
    size_t offset;            /* bytes from the start of the home's memory, */
    size_t in_pointer;        /* of which this many are in `data`, the rest in `offset` (not WebGPU: 0) */
    size_t tail;              /* bytes of the home's memory behind its last operand */
    bool named;               /* dtype and ld are given where they could be left out, too */
} check_place;

typedef struct check_case {
    eg_dtype dtype;
    eg_activation activation;
    eg_source source; /* of the backward pass */
    eg_math math;
    eg_nonfinite nonfinite;
    int64_t m, k, n, batch;
    int64_t outer; /* 0: one level; else the outer items of `batch`, which is a multiple of it */
    int groups;    /* 0, or of a grouped layer; batch is 1 then */
    check_routing routing;
    double scale; /* of the products, a number of f32; 0: none */

    /* Sets of operands, as CHECK_BITs: */
    unsigned present;
    const check_place *places; /* one an operand, instead of the sets below and `aligned`, `wide`; or NULL */
    unsigned col_major;
    unsigned shared;      /* batch_stride 0: broadcast or summed */
    unsigned padded;      /* ld larger than the row */
    unsigned gapped;      /* a gap between the matrices of the batch */
    unsigned interleaved; /* row i of every matrix, then row i + 1 of every matrix */
    unsigned offset;      /* an offset before the first element */
    unsigned crossed;     /* with two levels: the outer items are the ones that lie next to each other */
    unsigned outer_shared, inner_shared; /* inputs: broadcast at that level alone */

    bool backward;
    bool gated;   /* CHECK_GRAD_UP is present: a chain has made the gradients */
    bool aligned; /* distances are multiples of 16 bytes, which the fastest kernels ask for */

    bool accumulate;   /* into all sums but d_a, */
    unsigned into;     /* and into those of eg_into */
    bool wide;         /* d_b and d_bias in f32 for a 16-bit layer */
    bool in_place;     /* y on residual, grad_pre on grad, */
    bool d_a_in_place; /* and d_a on its residual */
    bool repeated;     /* the second run has to leave the bits of the first */
    bool own_workspace;
    size_t more_workspace; /* bytes beyond what own_workspace needs, a multiple of 64 */
    check_limit limit;
    int limit_part; /* of CHECK_LIMIT_MORE: how much of the way, in percent; 0: half of it */
    int64_t pack_m; /* m of the layer that b is packed for; 0: another than the case's */
    check_pack pack;
    eg_source below_source;
    eg_activation below_activation;
    check_data data;
    uint64_t seed;
} check_case;

/* Scales for cases, 0 among them. Those before CHECK_EXACT_SCALES are powers of two, which leave sums of
 * small integers exact. */
enum { CHECK_EXACT_SCALES = 4, CHECK_SCALES = 7 };
double check_scale(int index);

/* How many cases cover a kernel that computes in `compute`, and which is the index-th. A pure function:
 * every value of every field is taken, each within its own round of cases. */
int check_count(eg_dtype compute);
int check_round(eg_dtype compute); /* of them, in which every kind of call comes up once */
void check_make(eg_dtype compute, int index, check_case *out);

/* Rows before the end of that group; of group -1, and of none, 0. */
int64_t check_end(const check_case *c, int group);

/* Whether the output is added to what it holds. */
bool check_adds_to(const check_case *c, check_operand output);

/* The operands without which the case cannot be called, given its wanted gradients: the inputs, and y. Others
 * that are given, chain and residuals excepted, are filled with NaN. */
unsigned check_needed(const check_case *c);

/* "backward f32 gelu recompute 65x7x129 batch 3 ..." */
void check_describe(const check_case *c, char *text, size_t capacity);

#endif

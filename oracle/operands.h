/* SPDX-License-Identifier: Apache-2.0 */
/* The operands of a case: their shape and layout, their numbers, and their bytes in memory. */
#ifndef ORACLE_OPERANDS_H
#define ORACLE_OPERANDS_H

#include "case.h"
#include "memory.h"
#include "oracle.h"

typedef struct operand {
    bool present, vector;
    check_operand home; /* the operand whose memory it lies in: most often itself */
    bool plain;         /* what can be left to its default is: dtype, and ld where it is dense */
    eg_dtype dtype;
    int64_t items, rows, cols; /* items: 1 where the batch shares it, and of a grouped layer's rows */
    int64_t written;           /* rows of an output that the call writes: all, or those of groups */
    int64_t ld, batch_stride;
    int64_t inner, outer_stride; /* of two levels: items before the next outer one */
    eg_layout layout;
    size_t offset;     /* bytes before the first element */
    size_t in_pointer; /* of them, in the address and not in eg_matrix.offset */
    size_t bytes;      /* offset and everything up to the last element */
    size_t room;       /* of a home: the bytes of its memory; behind them, OPERAND_SPARE poisoned ones */

    double *values;          /* inputs, and what an accumulated output holds before; [items, rows, cols] */
    oracle_result *expected; /* outputs; as many */
    /* These are the home's. */
    unsigned char *image; /* the bytes as uploaded */
    unsigned char *after; /* the bytes as downloaded */
    unsigned char *first; /* the bytes as downloaded after the first run */
    memory place;
} operand;

enum { OPERAND_SPARE = 256 };

typedef struct operands {
    const check_case *c;
    operand of[CHECK_OPERANDS];
} operands;

/* Lays out and fills every operand of the case, expected results excepted. False if memory ran out. */
bool operands_make(operands *set, const check_case *c);
void operands_free(operands *set);

/* Whether the operand's rows are the layer's M. */
bool operand_has_rows(check_operand which);

const char *operand_name(const check_case *c, check_operand which);
bool operand_is_output(check_operand which);
int64_t operand_count(const operand *x);

/* The elements of [items, rows, cols] one after the other. Divisions by the sizes for each of them would be a
 * third of a test's time. for (operand_walk at = operand_first(x); at.index < operand_count(x);
 * operand_next(&at)) */
typedef struct operand_walk {
    const operand *of;
    int64_t index, line_end; /* the element, and the first of the next line */
    bool written;            /* the call writes the line of an output */
    size_t byte, step;       /* where the element is in the image, and from it to the next of its line */
} operand_walk;

operand_walk operand_first(const operand *x);
void operand_begin_line(operand_walk *at);
static inline void operand_next(operand_walk *at) {
    at->byte += at->step;
    if (++at->index == at->line_end) operand_begin_line(at);
}

eg_matrix operand_matrix(const operand *x, const check_case *c);
eg_vector operand_vector(const operand *x, const check_case *c);

#endif

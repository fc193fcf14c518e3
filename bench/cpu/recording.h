/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded times of the CPU's kernel rows (bench/recorded/cpu-*.txt): what a line says, and the call that it
 * is of. record.c writes lines; counts.c and tests/test_cpu_regret.c read them.
 *
 *   # rows: NAME NAME ...                                     numbered from 0
 *   DTYPE MxKxN WEIGHT ACTIVATION OPERATION ROWWAY:MICROSECONDS ...
 *
 * WEIGHT is kn (row-major b) or nk (column-major). WAY is how the products read their left and right
 * operands, a letter each: p packed, i in place, f packed by each block (fused), s read once
 * (streamed) by the kernel for few rows, or for few columns, o both by each block for outer products. */
#ifndef EG_RECORDING_H
#define EG_RECORDING_H

#include <stdbool.h>

#include "cpu/estimate.h"
#include "cpu/kernels.h"

enum { RECORDED_NAME = 24, RECORDED_ROWS = EG_CPU_MOST_ROWS, RECORDED_LINE = 4096 };

typedef struct recorded_operation {
    eg_dtype dtype;
    int64_t m, k, n;
    bool nk;
    eg_activation activation;
    char name[RECORDED_NAME];
} recorded_operation;

/* The operations that are recorded of each layer; ends with NULL. */
extern const char *const recorded_operations[];

/* Of a line of times; *times is what follows. */
bool recorded_parse(const char *line, recorded_operation *x, const char **times);
/* The next time of a line; false at its end. */
bool recorded_next(const char **times, int *row, char way[3], double *microseconds);
/* The names of "# rows:", which are kept in `line`; returns how many. */
int recorded_rows(char *line, const char *names[RECORDED_ROWS]);

/* A call, and its problem for eg_program_make. `memory` gives a place of so many elements; there is one for
 * every matrix and vector. */
enum { RECORDED_PLACES = 8 };
typedef struct recorded_call {
    bool backward;
    eg_layer layer;
    eg_forward_args forward_args;
    eg_backward_args backward_args;
} recorded_call;
void recorded_call_of(const recorded_operation *x, void *(*memory)(void *user, int place, int64_t elements),
                      void *user, recorded_call *call);
bool recorded_problem(const recorded_call *call, eg_problem *problem);

/* How a program's first product reads its operands, as a way's letters; "" where there is none. */
void recorded_way(const eg_program *program, char way[3]);
/* In a recording's first line: outer products with an activation finish rows, no longer tiles. */
#define RECORDED_BY_ROWS "activations by rows"
/* There too: d_b of few rows may be outer products by dots of bf16. */
#define RECORDED_BY_DOTS "d_b by dots"
/* Whether a time is of a product as activations by rows have it, but of a recording whose first line does not
 * say so. */
bool recorded_is_outdated(const char *first_line, const eg_program *program, const eg_cpu_kernel *row,
                          const char way[3]);
/* Whether the program makes d_b by dots, which such a recording does not know. */
bool recorded_lacks(const char *first_line, const eg_program *program);
/* A calibration under which a way's letters are the only way, where it is possible. */
eg_cpu_calibration recorded_calibration(const eg_cpu_calibration *from, const char way[3]);

#endif

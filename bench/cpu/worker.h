/* SPDX-License-Identifier: Apache-2.0 */
/* A peer of the comparison: a program that does one library's backward pass when compare.py asks for it.
 *
 * worker.c has main(): it answers one line on stdin with one on stdout, "ok ..." or "no REASON", and owns
 * operands and clock. A peer only fills in the six functions below.
 *
 *     about                           ok NAME AND VERSION
 *     load FILE M K N DTYPE SETS      ok DETAILS              operands of a shape from FILE, SETS copies of
 * them check FILE                      ok                      one run into poisoned outputs, written to FILE
 *     run WARM REPS                   ok SECONDS SECONDS ...  WARM runs not timed, then REPS timed one by one
 *     peak                            ok GFLOP/s              0: this peer has no way to measure it
 */
#ifndef BENCH_CPU_WORKER_H
#define BENCH_CPU_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum dtype { F32, F64, F16, BF16 } dtype;

typedef struct problem {
    int64_t m, k, n;
    dtype type;
} problem;

/* Dense and row-major: a [M, K], b [K, N], bias [N], grad [M, N]; d_a, d_b and d_bias like a, b and bias. */
typedef struct operands {
    void *a, *b, *bias, *grad;
    void *d_a, *d_b, *d_bias;
} operands;

/* What a peer is. */
bool peer_open(int count, char **arguments); /* of the command line; false: peer_refusal says why */
const char *peer_about(void);
bool peer_prepare(const problem *p); /* scratch and plans, outside the clock; false: as above */
void peer_backward(const operands *x);
const char *peer_details(void); /* of the problem prepared: the kernels, the layouts; may be "" */
double peer_peak(void);         /* GFLOP/s for the problem prepared, or 0 */

/* What it may use. */
bool peer_refusal(const char *format, ...) __attribute__((format(printf, 1, 2))); /* always false */
void *
big_alloc(size_t bytes); /* aligned to 2 MiB, huge pages where there are any; ends the program if none */
void big_free(void *memory);
size_t dtype_size(dtype type);
double now(void); /* seconds */

#endif

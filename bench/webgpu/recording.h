/* SPDX-License-Identifier: Apache-2.0 */
/* Recorded times of WebGPU's kernel rows (bench/recorded/webgpu-*.txt): what a line says, and the call that
 * it is of. record.c writes lines; counts.c and tests/webgpu/test_regret.c read them.
 *
 *   # adapter: TYPE NAME                        WGPUAdapterType, and what the context calls the device
 *   # rows: NAME NAME ...                       numbered from 0
 *   # first: MICROSECONDS MICROSECONDS ...      of a row's first call, which makes its pipeline
 *   MxKxN OPERATION ROW:MICROSECONDS ...        f32; y, d_a, d_b: one product each; gated: two of one size
 */
#ifndef EG_WEBGPU_RECORDING_H
#define EG_WEBGPU_RECORDING_H

#include <stdio.h>

#include "webgpu/pass.h"

enum { RECORDED_LINE = 1024, RECORDED_OPERATIONS = 4, RECORDED_PLACES = 6 };

extern const char *const recorded_operations[RECORDED_OPERATIONS];

typedef struct recorded_operation {
    int64_t m, k, n;
    const char *name; /* of recorded_operations */
} recorded_operation;

typedef struct recorded_call {
    bool backward;
    eg_layer layer;
    eg_forward_args forward_args;
    eg_backward_args backward_args;
} recorded_call;

/* A call with operands from `memory`, which gives a place of so many elements. */
void recorded_call_of(const recorded_operation *x, void *(*memory)(void *user, int place, int64_t elements),
                      void *user, recorded_call *call);

/* A file that is read: the adapter, and a line after the other. */
typedef struct recorded_file {
    FILE *file;
    eg_webgpu_caps device;
    double first[EG_WEBGPU_ROWS]; /* by the row's place in the kernel table */
    recorded_operation operation; /* of this line */
    double time[EG_WEBGPU_ROWS];  /* likewise; 0: was not timed */
} recorded_file;

/* eg_webgpu_caps.fill of a type of adapters. */
int64_t recorded_fill(uint32_t type);

/* False where there is none, or it is of other rows. */
bool recorded_open(recorded_file *x, const char *path);
bool recorded_next(recorded_file *x); /* false at the end, when it is closed */

/* The operation's program on the recorded device, by one row or, NULL, by what is chosen. */
bool recorded_compile(const recorded_file *x, const char *only_kernel, eg_program *program);
/* Of a program: its (first) product. */
const eg_webgpu_pass *recorded_product(const eg_program *program);

#endif

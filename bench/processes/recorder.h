/* SPDX-License-Identifier: Apache-2.0 */
/* When the steps of a call and its collectives begin and end, on one rank, without a line for it in the
 * library: the communicator is one around another, and the functions of the CPU's steps are taken over by
 * the linker (RECORDER_WRAPS in CMake). One thread of a process makes recorded calls. */
#ifndef EG_RECORDER_H
#define EG_RECORDER_H

#include "epigrad/comm.h"

typedef enum track {
    TRACK_CALL, /* the call itself */
    TRACK_STEP, /* the calling thread: a step that computes */
    TRACK_WAIT, /* the calling thread: a step that sends, or waits */
    TRACK_SENT  /* a collective, from its beginning to where the engine was seen to have finished it */
} track;

typedef struct moment {
    int track;
    char name[60];
    double begin, end;     /* seconds, of recorder_now */
    double engine;         /* seconds of it in the engine's callbacks */
    long long bytes, asks; /* that are sent; how often the engine was asked for progress */
} moment;

/* A communicator that does what `inner` does, which outlives it, and records. One a process.
 *
 * rate: 0, or that of a slower network, in bytes a microsecond: a collective has then not finished before its
 * bytes would have come over it, one collective after the other; of an all-gather and a reduce-scatter half
 * of them. What ranks agree by takes no time. */
eg_comm recorder_wrap(const eg_comm *inner, double rate);

/* Forgets what was recorded; begins and ends a call. */
void recorder_begin(const char *name);
void recorder_end(void);

/* What was recorded, and how many of them; lost: those that there was no room for. */
const moment *recorder_moments(int *count, int *lost);

double recorder_now(void);

#endif

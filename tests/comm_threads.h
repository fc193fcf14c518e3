/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process, for tests: an engine of the host with faults to order, and with a
 * network whose latency and rate are whatever a test says. */
#ifndef TESTS_COMM_THREADS_H
#define TESTS_COMM_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "epigrad/comm.h"

enum { TEAM_MOST = 8, TEAM_OPS = 64 };

typedef struct team team;

/* A team of `ranks`. A collective that was begun is through so many microseconds after its last rank has
 * come, and one at a time. */
team *team_make(int ranks, double latency, double rate);
void team_free(team *t);
/* The communicator of a rank. */
eg_comm team_comm(team *t, int rank);

/* Runs body(arg, comm of the rank) on a thread for each rank. */
void team_run(team *t, void (*body)(void *arg, const eg_comm *comm), void *arg);

/* The engine fails on this rank from its `collective`th on, from 0. */
void team_fail(team *t, int rank, int collective);
/* Collectives that a rank has begun, those that were begun before it called progress with work left between,
 * and whether it was aborted. */
int team_begun(const team *t, int rank);
bool team_aborted(const team *t, int rank);

#endif

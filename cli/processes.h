/* SPDX-License-Identifier: Apache-2.0 */
/* --mpi: the command as one of several processes under mpirun. */
#ifndef CLI_PROCESSES_H
#define CLI_PROCESSES_H

#include "epigrad/comm.h"

typedef struct processes {
    eg_comm comm;
    void (*free)(eg_comm *comm); /* NULL: not open */
    void *library;
} processes;

/* All processes of mpirun together. libepigrad_mpi is loaded: without it the exit code is CLI_UNAVAILABLE. */
int processes_open(processes *p);
void processes_close(processes *p);

/* The path with the rank in place of each %r, to be freed. One without %r is refused: processes would meet
 * there. `what`: IN or OUT. */
int processes_path(const processes *p, const char *what, const char *path, char **own);

#endif

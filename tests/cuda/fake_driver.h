/* A CUDA driver without a device, for tests of the host's side anywhere: built as libcuda.so.1, it counts
 * what it is asked for and runs no kernel. */
#ifndef TESTS_FAKE_DRIVER_H
#define TESTS_FAKE_DRIVER_H

#include <stdbool.h>

typedef struct fake_cuda {
    int kernels;     /* enqueued on a stream, not captured */
    int clears;      /* of memory, likewise; nothing is written */
    int allocations; /* of device memory */
    int synchronisations;
    int recordings;      /* graphs instantiated */
    int graphs;          /* of them, those not destroyed */
    int replays;         /* graphs launched */
    int streams, events; /* not destroyed */
    int captures;        /* graphs captured and not destroyed */
    int waits;           /* of streams for events, captured or not */
    int pieces;          /* of device memory, not freed */
    char last_kernel[96];
    /* What to pretend. */
    bool caller_captures; /* the default stream is being captured */
    int sync_result;      /* of cuStreamSynchronize: a CUresult */
    int record_result;    /* of cuGraphInstantiate */
} fake_cuda;

#endif

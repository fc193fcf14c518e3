/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a device, for tests of the host's side anywhere: built as libcuda.so.1, it counts
 * what it is asked for and runs no kernel. */
#ifndef TESTS_FAKE_DRIVER_H
#define TESTS_FAKE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

/* A matrix as the copy engine is told of it: bytes of a row, rows, and rows that it moves at once; items;
 * bytes from row to row and from item to item. */
typedef struct fake_map {
    uint64_t address, row_bytes;
    uint32_t rows, box_rows, items;
    uint64_t pitch, item_pitch;
} fake_map;

enum { FAKE_MAPS = 64, FAKE_LAUNCHES = 256, FAKE_LITTLE_MEMORY = 100 };

typedef struct fake_cuda {
    int kernels;     /* enqueued on a stream, not captured */
    int clears;      /* of memory, likewise; nothing is written */
    int allocations; /* of device memory */
    int modules;     /* loaded */
    int synchronisations;
    int recordings;      /* graphs instantiated */
    int graphs;          /* of them, those not destroyed */
    int replays;         /* graphs launched, that were not changed for this launch; */
    int changed;         /* those that were: their kernels count as enqueued */
    int streams, events; /* not destroyed */
    int captures;        /* graphs captured and not destroyed */
    int waits;           /* of streams for events, captured or not; and launches before the first: */
    int launches_before_wait, launches_before_record; /* of an event; the last one before that wait */
    int recorded;                                     /* launches before the last record */
    int pieces;                                       /* of device memory, not freed */
    uint32_t *word; /* of the host's memory, that kernels may write to: the last context's */
    char last_kernel[96];
    uint64_t parameter[512];            /* what some kernels were given, the last of them */
    unsigned last_blocks, last_cluster; /* its grid, and blocks of a cluster */
    int maps;                           /* made; the first FAKE_MAPS of them: */
    fake_map map[FAKE_MAPS];
    int watched_captured; /* how often a captured launch was given the watched address */
    int launches; /* of kernels, memory that is set, products of the library; the first FAKE_LAUNCHES of them:
                   */
    char launch[FAKE_LAUNCHES][64];
    uint64_t library_room;  /* bytes of workspace that the library's heuristics were last told of */
    uint64_t library_parts; /* of the depth, by its algorithm that was taken last, */
    int library_algorithm;  /* and which of its candidates that was */
    /* What to pretend. */
    int library_refuses;  /* fake_lt.c: products of which 1: any, 2: an odd number of rows or columns */
    bool library_splits;  /* a depth into two parts, wherever it has a workspace */
    bool caller_captures; /* the default stream is being captured */
    bool stream_hangs;    /* for cuStreamQuery */
    int sync_result;      /* of cuStreamSynchronize: a CUresult */
    int record_result;    /* of cuGraphInstantiate */
    int change_result;    /* of cuGraphExecKernelNodeSetParams */
    int module_result;    /* of cuModuleLoadData */
    int memory_result;    /* of cuMemAlloc */
    int copy_result;      /* from device memory to device memory */
    uint64_t watched;     /* an address, for watched_captured */
    char quick[64];       /* a kernel that takes a quarter of the time of others; */
    int quick_algorithm;  /* a library's, if it is by this one: FAKE_LITTLE_MEMORY more in a MiB or less */
    int algorithms;       /* that the library knows beside its first */
} fake_cuda;

/* Notes a launch, captured or not. */
void fake_launch(const char *name);

#endif

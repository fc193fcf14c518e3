/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL without a device, built as libnccl.so.2: notes what it is asked for among the launches of the driver
 * that is none. A communicator is a fake_nccl of the test's. */
#include "fake_nccl.h"

#include <stdio.h>
#include <string.h>

#include "fake_driver.h"

enum { WORDS = 8 };

#define EXPORT __attribute__((visibility("default")))

static void note(fake_nccl *comm, const char *name, size_t count, int type, void *stream) {
    comm->calls++;
    comm->count = count, comm->type = type, comm->stream = stream;
    fake_launch(name);
}

EXPORT int ncclCommCount(fake_nccl *comm, int *count) {
    *count = comm->ranks;
    return comm->result;
}

EXPORT int ncclCommUserRank(fake_nccl *comm, int *rank) {
    *rank = comm->rank;
    return 0;
}

EXPORT int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, fake_nccl *comm,
                         void *stream) {
    comm->op = op, comm->send = send, comm->receive = receive;
    note(comm, "all_reduce", count, type, stream);
    return comm->result;
}

EXPORT int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int op, fake_nccl *comm,
                             void *stream) {
    comm->op = op, comm->send = send, comm->receive = receive;
    note(comm, "reduce_scatter", count, type, stream);
    return comm->result;
}

EXPORT int ncclAllGather(const void *send, void *receive, size_t count, int type, fake_nccl *comm,
                         void *stream) {
    comm->send = send, comm->receive = receive;
    note(comm, "all_gather", count, type, stream);
    for (int rank = 0; rank < comm->ranks && comm->gathers; rank++) { /* what ranks say of a call */
        long long *to = (long long *)receive + rank * WORDS;
        memcpy(to, send, WORDS * sizeof *to);
        if (rank == comm->ranks - 1) to[1] += comm->differs;
    }
    comm->gathers = 0;
    return comm->result;
}

/* Of a group, one from each rank. */
EXPORT int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root, fake_nccl *comm,
                         void *stream) {
    if (root == 0) comm->first = receive;
    comm->send = send, comm->receive = receive, comm->root = root;
    note(comm, "broadcast", count, type, stream);
    return comm->result;
}

static int groups;

EXPORT int ncclGroupStart(void) {
    groups++;
    return 0;
}

EXPORT int ncclGroupEnd(void) { return --groups == 0 ? 0 : 5; }

EXPORT int ncclCommGetAsyncError(fake_nccl *comm, int *error) {
    *error = comm->error;
    return 0;
}

EXPORT int ncclCommAbort(fake_nccl *comm) {
    comm->aborts++;
    return 0;
}

EXPORT const char *ncclGetErrorString(int result) {
    return result == 6 ? "remote process exited" : "other error";
}

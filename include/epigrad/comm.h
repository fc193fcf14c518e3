/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: what carries numbers between processes, for eg_data_parallel and eg_tensor_parallel of
 * epigrad.h.
 *
 * A caller who brings one that is ready made (eg_comm_nccl below, eg_comm_mpi of <epigrad/mpi.h>) needs the
 * constructor alone. Whoever has another engine fills in an eg_comm: it is a handful of callbacks. That is
 * why this is a header of its own.
 *
 * An engine is of one of two kinds:
 *
 *     of the host     for the CPU. Its `progress` advances what was begun, and is called often, between
 *                     parts of the products, by the thread that made the call, so that the reduction goes
 *                     on under them.
 *     of a stream     for CUDA: `progress` is NULL. Collectives are enqueued on the CUstream that is passed,
 *                     in the order of the calls, and the library orders streams by events.
 *
 * All ranks make the same calls in the same order: the same k, n, outputs, layouts and eg_data_parallel. M,
 * and all that concerns d_a, may differ. With an engine of the host every call compares this over the ranks
 * first, and where they disagree each rank gets EG_ERR_DEVICE and a message that names the rank and the
 * argument. */
#ifndef EPIGRAD_COMM_H
#define EPIGRAD_COMM_H

#include "epigrad.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a collective is waited for. In either case a callback may return before the collective has finished:
 * progress says when it has, and its memory is left alone until then. One that blocks has no timeout. */
typedef enum eg_comm_when {
    EG_COMM_NOW = 0,  /* the caller does nothing but wait for it */
    EG_COMM_BEGIN = 1 /* products go on under it */
} eg_comm_when;

/* How long a collective takes: latency + bytes / rate. All ranks must have the same figures, so that they
 * decide alike. */
typedef struct eg_comm_cost {
    double latency; /* microseconds */
    double rate;    /* bytes a microsecond; 0: not known */
} eg_comm_cost;

/* Whether collectives go on under products. */
typedef enum eg_comm_order {
    EG_COMM_ORDER_ESTIMATED = 0, /* where it is estimated to gain time on every rank */
    EG_COMM_ORDER_PLAIN = 1,     /* one after the other */
    EG_COMM_ORDER_OVERLAPPED = 2
} eg_comm_order;

/* Filled in by the caller or by a constructor, and constant while calls use it. Callbacks return EG_OK or a
 * failure, of which `failure` then has the text; they are called by the thread that makes the call. */
struct eg_comm {
    size_t size;
    int rank, ranks; /* 0 <= rank < ranks */
    void *user;      /* is passed to each callback */

    /* buffer[i] = the sum (or mean) of the ranks' buffer[i], the same bits on every rank and in every run. */
    eg_status (*all_reduce)(void *user, void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction,
                            eg_comm_when when, void *stream);
    /* receive[i] = the sum (or mean) of the ranks' send[rank * count + i], for i < count. */
    eg_status (*reduce_scatter)(void *user, const void *send, void *receive, size_t count, eg_dtype dtype,
                                eg_reduction reduction, eg_comm_when when, void *stream);
    /* receive[r * stride, r * stride + bytes) = rank r's `send`; stride >= bytes. */
    eg_status (*all_gather)(void *user, const void *send, void *receive, size_t bytes, size_t stride,
                            eg_comm_when when, void *stream);
    /* Host: advances everything that was begun; *pending: how much of it has not finished. Does not wait. */
    eg_status (*progress)(void *user, int *pending);
    /* EG_OK, or the failure that the engine knows of (asked for by eg_sync too); `text` gets it in words. */
    eg_status (*failure)(void *user, char *text, size_t capacity);
    /* After a failure or a timeout: what is under way is given up where the engine can do that, and every
     * later callback fails at once. */
    void (*abort)(void *user);

    double timeout;          /* seconds that a call (with NCCL, eg_sync) waits for the other ranks; 0: 600 */
    eg_comm_cost now, begun; /* of EG_COMM_NOW and EG_COMM_BEGIN */
    /* Of a collective begun: the part of its time for which it needs the calling thread, 0 to 1. */
    double busy;
    eg_comm_order order;
};

/* The caller's ncclComm_t as a communicator for CUDA contexts. libnccl.so.2 is loaded when it is first asked
 * for: EG_ERR_UNAVAILABLE where it is not there. The ncclComm_t stays the caller's and outlives *comm, unless
 * a failure or a timeout of eg_sync gives it up: ncclCommAbort has then been called, which frees it. Calls
 * are compared over ranks with EPIGRAD_CUDA_CHECK=1 only, since that waits for the device. *comm has to stay
 * until the calls with it have been waited for. */
struct ncclComm;
EG_API eg_status eg_comm_nccl(struct ncclComm *nccl, eg_comm *comm);
/* Frees what eg_comm_nccl made, but not the ncclComm_t. One that is NULL or cleared is allowed. */
EG_API void eg_comm_nccl_free(eg_comm *comm);

#ifdef __cplusplus
}
#endif

#endif /* EPIGRAD_COMM_H */

/* SPDX-License-Identifier: Apache-2.0 */
/* eg_comm over NCCL, whose library is loaded when it is first asked for. Of its interface, which is the same
 * from 2.10 on, what is used is declared here: no header of it is needed. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "epigrad/comm.h"

typedef struct ncclComm *nccl_comm;
typedef int nccl_result; /* 0: success; 7: under way, for communicators that do not block */
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
enum { NCCL_INT8 = 0, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_F64 = 8, NCCL_BF16 = 9 };
enum { NCCL_SUM = 0, NCCL_AVG = 4 };

#define EG_NCCL_SYMBOLS(X)                                                                                   \
    X(nccl_result, ncclCommCount, (nccl_comm, int *))                                                        \
    X(nccl_result, ncclCommUserRank, (nccl_comm, int *))                                                     \
    X(nccl_result, ncclAllReduce, (const void *, void *, size_t, int, int, nccl_comm, void *))               \
    X(nccl_result, ncclReduceScatter, (const void *, void *, size_t, int, int, nccl_comm, void *))           \
    X(nccl_result, ncclAllGather, (const void *, void *, size_t, int, nccl_comm, void *))                    \
    X(nccl_result, ncclBroadcast, (const void *, void *, size_t, int, int, nccl_comm, void *))               \
    X(nccl_result, ncclGroupStart, (void))                                                                   \
    X(nccl_result, ncclGroupEnd, (void))                                                                     \
    X(nccl_result, ncclCommGetAsyncError, (nccl_comm, nccl_result *))                                        \
    X(nccl_result, ncclCommAbort, (nccl_comm))                                                               \
    X(const char *, ncclGetErrorString, (nccl_result))

static struct {
#define EG_SYMBOL(result, name, parameters) result(*name) parameters;
    EG_NCCL_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
} nccl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[200]; /* why there is no NCCL; empty: there is */

static void load(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *address;
    if (library == NULL) {
        snprintf(missing, sizeof missing, "NCCL could not be loaded: %s", dlerror());
        return;
    }
#define EG_SYMBOL(result, name, parameters)                                                                  \
    address = dlsym(library, #name);                                                                         \
    if (address == NULL) snprintf(missing, sizeof missing, "libnccl.so.2 has no %s", #name);                 \
    memcpy(&nccl.name, &address, sizeof address);
    EG_NCCL_SYMBOLS(EG_SYMBOL)
#undef EG_SYMBOL
}

/* ---- Callbacks ---------------------------------------------------------------------------------- */

typedef struct state {
    nccl_comm comm; /* NULL: given up */
    nccl_result failed;
} state;

static int type_of(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return NCCL_F64;
    case EG_F16:
        return NCCL_F16;
    case EG_BF16:
        return NCCL_BF16;
    case EG_DTYPE_DEFAULT:
    case EG_F32:
        break;
    }
    return NCCL_F32;
}

static int sum_of(eg_reduction reduction) { return reduction == EG_REDUCTION_MEAN ? NCCL_AVG : NCCL_SUM; }

static eg_status check(state *s, nccl_result result) {
    if (result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS) return EG_OK;
    s->failed = result;
    return EG_ERR_DEVICE;
}

static eg_status all_reduce(void *user, void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction,
                            eg_comm_when when, void *stream) {
    state *s = user;
    (void)when;
    if (s->comm == NULL) return EG_ERR_DEVICE;
    return check(
        s, nccl.ncclAllReduce(buffer, buffer, count, type_of(dtype), sum_of(reduction), s->comm, stream));
}

static eg_status reduce_scatter(void *user, const void *send, void *receive, size_t count, eg_dtype dtype,
                                eg_reduction reduction, eg_comm_when when, void *stream) {
    state *s = user;
    (void)when;
    if (s->comm == NULL) return EG_ERR_DEVICE;
    return check(
        s, nccl.ncclReduceScatter(send, receive, count, type_of(dtype), sum_of(reduction), s->comm, stream));
}

/* NCCL gathers to where ranks' parts are next to each other. Elsewhere each rank broadcasts its own. */
static eg_status broadcast_parts(state *s, const void *send, char *receive, size_t bytes, size_t stride,
                                 void *stream) {
    int ranks = 0;
    nccl_result result = nccl.ncclCommCount(s->comm, &ranks);
    if (result == NCCL_SUCCESS) result = nccl.ncclGroupStart();
    if (result != NCCL_SUCCESS) return check(s, result);
    for (int rank = 0; rank < ranks && result == NCCL_SUCCESS; rank++)
        result = nccl.ncclBroadcast(send, receive + (size_t)rank * stride, bytes, NCCL_INT8, rank, s->comm,
                                    stream);
    const nccl_result ended = nccl.ncclGroupEnd();
    return check(s, result != NCCL_SUCCESS ? result : ended);
}

static eg_status all_gather(void *user, const void *send, void *receive, size_t bytes, size_t stride,
                            eg_comm_when when, void *stream) {
    state *s = user;
    (void)when;
    if (s->comm == NULL) return EG_ERR_DEVICE;
    if (stride != bytes) return broadcast_parts(s, send, receive, bytes, stride, stream);
    return check(s, nccl.ncclAllGather(send, receive, bytes, NCCL_INT8, s->comm, stream));
}

static eg_status failure(void *user, char *text, size_t capacity) {
    state *s = user;
    nccl_result result = s->failed;
    if (s->comm != NULL && result == NCCL_SUCCESS) nccl.ncclCommGetAsyncError(s->comm, &result);
    const bool none = result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS;
    snprintf(text, capacity, "%s",
             !none             ? nccl.ncclGetErrorString(result)
             : s->comm == NULL ? "the communicator was given up after a failure"
                               : "");
    return none && s->comm != NULL ? EG_OK : EG_ERR_DEVICE;
}

/* Ends what is enqueued, so that streams are free again; and with it the caller's communicator. */
static void give_up(void *user) {
    state *s = user;
    if (s->comm != NULL) nccl.ncclCommAbort(s->comm);
    s->comm = NULL;
}

/* ---- Making one --------------------------------------------------------------------------------- */

eg_status eg_comm_nccl(struct ncclComm *comm, eg_comm *made) {
    int rank = 0, ranks = 0;
    if (made == NULL) return eg_fail(EG_ERR_ARGUMENT, "comm is NULL; expected a place for the communicator");
    *made = (eg_comm){.size = 0};
    if (comm == NULL) return eg_fail(EG_ERR_ARGUMENT, "nccl is NULL; expected an ncclComm_t");
    pthread_once(&once, load);
    if (missing[0] != '\0') return eg_fail(EG_ERR_UNAVAILABLE, "%s", missing);
    nccl_result result = nccl.ncclCommCount(comm, &ranks);
    if (result == NCCL_SUCCESS) result = nccl.ncclCommUserRank(comm, &rank);
    if (result != NCCL_SUCCESS)
        return eg_fail(EG_ERR_DEVICE, "nccl does not say its rank: %s", nccl.ncclGetErrorString(result));
    state *s = calloc(1, sizeof *s);
    if (s == NULL) return eg_fail(EG_ERR_OUT_OF_MEMORY, "no memory for a communicator");
    s->comm = comm;
    *made = (eg_comm){.size = sizeof *made,
                      .rank = rank,
                      .ranks = ranks,
                      .user = s,
                      .all_reduce = all_reduce,
                      .reduce_scatter = reduce_scatter,
                      .all_gather = all_gather,
                      .failure = failure,
                      .abort = give_up};
    return EG_OK;
}

void eg_comm_nccl_free(eg_comm *comm) {
    if (comm == NULL) return;
    free(comm->user);
    *comm = (eg_comm){.size = 0};
}

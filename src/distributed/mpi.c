/* SPDX-License-Identifier: Apache-2.0 */
/* eg_comm over MPI: libepigrad_mpi. */
#include "epigrad/mpi.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"
#include "core/problem.h"

enum { PENDING = 64 };

/* What is done at once goes from rank to rank directly: no faster than a blocking collective of MPI, but it
 * can be given up. With many ranks that would be too many messages, and MPI's own collectives, begun, take
 * its place. */
enum { MOST_DIRECT = 16, MOST_ASKED = 256, DIRECT_TAG = 1, ASK_TAG = 2 };

/* What is left to do when a request has finished. */
typedef struct after {
    void *buffer; /* whose numbers are to be divided by the ranks; NULL: nothing */
    size_t count;
    eg_dtype dtype;
} after;

/* Sums of chunk by chunk, one for each rank, and then every rank gets every chunk: either may be all. */
typedef enum direct_kind { DIRECT_ALL, DIRECT_SCATTER, DIRECT_GATHER } direct_kind;

typedef struct direct {
    bool active, gathers; /* gathers: the second part */
    direct_kind kind;
    const char *send;
    char *receive;       /* of an all-reduce both are its buffer */
    size_t chunk, count; /* elements of a rank, and of all */
    size_t stride;       /* bytes from rank to rank of what is gathered */
    eg_dtype dtype;      /* bytes where nothing is summed: EG_DTYPE_DEFAULT */
    eg_reduction reduction;
    int requests, done; /* done: the first ones of them */
    MPI_Request request[2 * MOST_DIRECT];
} direct;

typedef struct state {
    MPI_Comm comm;
    MPI_Op add_f16, add_bf16;
    int rank, ranks;
    int pending;
    MPI_Request request[PENDING];
    after after[PENDING];
    direct direct;
    char *parts; /* what other ranks sent to be summed */
    size_t parts_bytes;
    float *measured; /* while it is summed to know the costs; afterwards NULL */
    bool given_up;
    bool finalizes;             /* MPI was initialised for it */
    int here, word[MOST_ASKED]; /* of ask_around: MPI may come late */
    char text[MPI_MAX_ERROR_STRING + 64];
} state;

/* ---- Numbers ------------------------------------------------------------------------------------ */

/* MPI has no 16-bit floating-point numbers. Each addition is rounded. */
static void add_f16(void *from, void *to, int *count, MPI_Datatype *type) {
    const uint16_t *x = from;
    uint16_t *y = to;
    (void)type;
    for (int i = 0; i < *count; i++) y[i] = eg_f16_of_f32(eg_f32_of_f16(x[i]) + eg_f32_of_f16(y[i]));
}

static void add_bf16(void *from, void *to, int *count, MPI_Datatype *type) {
    const uint16_t *x = from;
    uint16_t *y = to;
    (void)type;
    for (int i = 0; i < *count; i++) y[i] = eg_bf16_of_f32(eg_f32_of_bf16(x[i]) + eg_f32_of_bf16(y[i]));
}

static void divide(const after *x, int ranks) {
    float *f32 = x->buffer;
    double *f64 = x->buffer;
    uint16_t *u16 = x->buffer;
    const float by = (float)ranks;
    for (size_t i = 0; i < x->count; i++) {
        switch (x->dtype) {
        case EG_F64:
            f64[i] /= ranks;
            break;
        case EG_F16:
            u16[i] = eg_f16_of_f32(eg_f32_of_f16(u16[i]) / by);
            break;
        case EG_BF16:
            u16[i] = eg_bf16_of_f32(eg_f32_of_bf16(u16[i]) / by);
            break;
        case EG_DTYPE_DEFAULT:
        case EG_F32:
            f32[i] /= by;
            break;
        }
    }
}

static MPI_Datatype type_of(eg_dtype dtype) {
    return dtype == EG_F64 ? MPI_DOUBLE : dtype == EG_F32 ? MPI_FLOAT : MPI_UINT16_T;
}

static MPI_Op sum_of(const state *s, eg_dtype dtype) {
    return dtype == EG_F16 ? s->add_f16 : dtype == EG_BF16 ? s->add_bf16 : MPI_SUM;
}

static eg_status check(state *s, int result, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length = 0;
    if (result == MPI_SUCCESS) return EG_OK;
    MPI_Error_string(result, text, &length);
    snprintf(s->text, sizeof s->text, "%s: %s", what, text);
    for (char *line = s->text; (line = strchr(line, '\n')) != NULL;) *line = ' '; /* MPICH's "error stack:" */
    return EG_ERR_DEVICE;
}

/* One request at a time: the failures of MPI_Testall and MPI_Testsome are no communicator's, so that MPI may
 * end the process. Each of these advances all that is under way. */
static eg_status test(state *s, MPI_Request *request, int *done) {
    MPI_Status unused;
    return check(s, MPI_Test(request, done, &unused), "MPI_Test");
}

/* ---- Directly ----------------------------------------------------------------------------------- */

static size_t size_of(const direct *d) { return d->dtype == EG_DTYPE_DEFAULT ? 1 : eg_size_of(d->dtype); }

/* Elements of a rank's chunk: the last ones may have fewer, or none. */
static int chunk_of(const direct *d, int rank) {
    const size_t first = d->chunk * (size_t)rank;
    return (int)(first >= d->count ? 0 : d->count - first < d->chunk ? d->count - first : d->chunk);
}

static eg_status talk(state *s, int with, const char *from, int sent, char *to, int received) {
    direct *d = &s->direct;
    MPI_Datatype type = d->dtype == EG_DTYPE_DEFAULT ? MPI_BYTE : type_of(d->dtype);
    eg_status status = EG_OK;
    if (received > 0)
        status =
            check(s, MPI_Irecv(to, received, type, with, DIRECT_TAG, s->comm, &d->request[d->requests++]),
                  "MPI_Irecv");
    if (status == EG_OK && sent > 0)
        status = check(s, MPI_Isend(from, sent, type, with, DIRECT_TAG, s->comm, &d->request[d->requests++]),
                       "MPI_Isend");
    return status;
}

static char *part_of(const state *s, int rank) {
    return s->parts + (size_t)rank * s->direct.chunk * size_of(&s->direct);
}

/* To each rank its chunk. */
static eg_status begin_sums(state *s) {
    const direct *d = &s->direct;
    eg_status status = EG_OK;
    for (int i = 1; i < s->ranks && status == EG_OK; i++) {
        const int with = (s->rank + i) % s->ranks;
        status = talk(s, with, d->send + (size_t)with * d->chunk * size_of(d), chunk_of(d, with),
                      part_of(s, with), chunk_of(d, s->rank));
    }
    return status;
}

/* To each rank this one's chunk. */
static eg_status begin_gathering(state *s) {
    direct *d = &s->direct;
    const char *mine = d->kind == DIRECT_GATHER ? d->send : d->receive + (size_t)s->rank * d->stride;
    eg_status status = EG_OK;
    d->gathers = true;
    for (int i = 1; i < s->ranks && status == EG_OK; i++) {
        const int with = (s->rank + i) % s->ranks;
        status = talk(s, with, mine, chunk_of(d, s->rank), d->receive + (size_t)with * d->stride,
                      chunk_of(d, with));
    }
    return status;
}

static void add(const direct *d, const void *from, void *to, int count) {
    const float *x = from;
    const double *wide = from;
    MPI_Datatype none = MPI_BYTE;
    if (d->dtype == EG_F16) {
        add_f16((void *)(uintptr_t)from, to, &count, &none);
    } else if (d->dtype == EG_BF16) {
        add_bf16((void *)(uintptr_t)from, to, &count, &none);
    } else if (d->dtype == EG_F64) {
        for (int i = 0; i < count; i++) ((double *)to)[i] += wide[i];
    } else {
        for (int i = 0; i < count; i++) ((float *)to)[i] += x[i];
    }
}

/* In the order of the ranks, whoever came first: the sum of rank 0's and rank 1's, of that and rank 2's, ...
 */
static void add_parts(state *s) {
    const direct *d = &s->direct;
    const int count = chunk_of(d, s->rank);
    const size_t bytes = (size_t)count * size_of(d);
    const char *mine = d->send + (size_t)s->rank * d->chunk * size_of(d);
    char *sums = d->kind == DIRECT_ALL ? d->receive + (size_t)s->rank * d->stride : d->receive;
    memcpy(part_of(s, s->rank), mine, bytes);
    memcpy(sums, part_of(s, 0), bytes);
    for (int rank = 1; rank < s->ranks; rank++) add(d, part_of(s, rank), sums, count);
    const after all = {sums, (size_t)count, d->dtype};
    if (d->reduction == EG_REDUCTION_MEAN) divide(&all, s->ranks);
}

static eg_status progress_directly(state *s) {
    direct *d = &s->direct;
    while (d->done < d->requests) {
        int done = 0;
        const eg_status status = test(s, &d->request[d->done], &done);
        if (status != EG_OK || !done) return status;
        d->done++;
    }
    d->requests = d->done = 0;
    if (!d->gathers) add_parts(s);
    if (d->gathers || d->kind == DIRECT_SCATTER) {
        d->active = false;
        return EG_OK;
    }
    return begin_gathering(s);
}

/* False: too many ranks or bytes, or other reasons to leave it to MPI. */
static bool is_for_direct(const state *s, size_t chunk, eg_comm_when when) {
    return when == EG_COMM_NOW && s->ranks > 1 && s->ranks <= MOST_DIRECT && chunk <= INT_MAX;
}

static eg_status begin_directly(state *s, const direct *as) {
    const size_t bytes = as->kind == DIRECT_GATHER ? 0 : as->chunk * (size_t)s->ranks * size_of(as);
    if (s->given_up) return EG_ERR_DEVICE;
    if (bytes > s->parts_bytes) {
        free(s->parts);
        s->parts = malloc(bytes);
        s->parts_bytes = s->parts != NULL ? bytes : 0;
        if (s->parts == NULL) {
            snprintf(s->text, sizeof s->text, "no memory for %zu bytes of other ranks", bytes);
            return EG_ERR_OUT_OF_MEMORY;
        }
    }
    s->direct = *as;
    s->direct.active = true;
    return as->kind == DIRECT_GATHER ? begin_gathering(s) : begin_sums(s);
}

/* ---- Requests ----------------------------------------------------------------------------------- */

static eg_status progress(void *user, int *pending) {
    state *s = user;
    int finished = 0, done = 1;
    *pending = s->pending;
    if (s->given_up) return EG_ERR_DEVICE;
    if (s->direct.active) {
        *pending = 1;
        const eg_status direct = progress_directly(s);
        if (direct != EG_OK || s->direct.active) return direct;
        *pending = s->pending;
    }
    while (finished < s->pending) {
        const eg_status status = test(s, &s->request[finished], &done);
        if (status != EG_OK) return status;
        if (!done) break;
        const after *x = &s->after[finished++];
        if (x->buffer != NULL) divide(x, s->ranks);
    }
    if (finished == 0) return EG_OK;
    *pending = s->pending -= finished;
    for (int i = 0; i < s->pending; i++) {
        s->request[i] = s->request[i + finished];
        s->after[i] = s->after[i + finished];
    }
    return EG_OK;
}

/* Room for one more. */
static eg_status make_room(state *s) {
    int pending = s->pending;
    eg_status status = s->given_up ? EG_ERR_DEVICE : EG_OK;
    while (status == EG_OK && pending == PENDING) status = progress(s, &pending);
    return status;
}

/* Of a request that was begun. */
static eg_status note(state *s, int result, const char *what, after left) {
    const eg_status status = check(s, result, what);
    if (status == EG_OK) s->after[s->pending++] = left;
    return status;
}

/* ---- Collectives -------------------------------------------------------------------------------- */

static after after_sum(void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction) {
    return (after){reduction == EG_REDUCTION_MEAN ? buffer : NULL, count, dtype};
}

static eg_status all_reduce_part(state *s, void *buffer, int count, eg_dtype dtype, eg_reduction reduction) {
    const eg_status status = make_room(s);
    if (status != EG_OK) return status;
    return note(s,
                MPI_Iallreduce(MPI_IN_PLACE, buffer, count, type_of(dtype), sum_of(s, dtype), s->comm,
                               &s->request[s->pending]),
                "MPI_Iallreduce", after_sum(buffer, (size_t)count, dtype, reduction));
}

/* MPI counts in int. */
static eg_status all_reduce(void *user, void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction,
                            eg_comm_when when, void *stream) {
    state *s = user;
    const size_t most = 1 << 30, chunk = (count + (size_t)s->ranks - 1) / (size_t)s->ranks;
    eg_status status = EG_OK;
    (void)stream;
    if (is_for_direct(s, chunk, when))
        return begin_directly(s, &(direct){.kind = DIRECT_ALL,
                                           .send = buffer,
                                           .receive = buffer,
                                           .chunk = chunk,
                                           .count = count,
                                           .stride = chunk * eg_size_of(dtype),
                                           .dtype = dtype,
                                           .reduction = reduction});
    for (size_t at = 0; at < count && status == EG_OK; at += most) {
        const size_t part = count - at < most ? count - at : most;
        status = all_reduce_part(s, (char *)buffer + at * eg_size_of(dtype), (int)part, dtype, reduction);
    }
    return status;
}

static eg_status reduce_scatter(void *user, const void *send, void *receive, size_t count, eg_dtype dtype,
                                eg_reduction reduction, eg_comm_when when, void *stream) {
    state *s = user;
    (void)stream;
    if (is_for_direct(s, count, when))
        return begin_directly(s, &(direct){.kind = DIRECT_SCATTER,
                                           .send = send,
                                           .receive = receive,
                                           .chunk = count,
                                           .count = count * (size_t)s->ranks,
                                           .dtype = dtype,
                                           .reduction = reduction});
    if (count > INT_MAX) {
        snprintf(s->text, sizeof s->text, "a shard of %zu elements; expected at most %d", count, INT_MAX);
        return EG_ERR_UNSUPPORTED;
    }
    const eg_status status = make_room(s);
    if (status != EG_OK) return status;
    return note(s,
                MPI_Ireduce_scatter_block(send, receive, (int)count, type_of(dtype), sum_of(s, dtype),
                                          s->comm, &s->request[s->pending]),
                "MPI_Ireduce_scatter_block", after_sum(receive, count, dtype, reduction));
}

/* One of each rank: `bytes` of them, and the next rank's `stride` further. The request keeps its type alive.
 */
static eg_status type_of_part(state *s, size_t bytes, size_t stride, MPI_Datatype *type) {
    MPI_Datatype dense;
    eg_status status = check(s, MPI_Type_contiguous((int)bytes, MPI_BYTE, &dense), "MPI_Type_contiguous");
    if (status != EG_OK) return status;
    status = check(s, MPI_Type_create_resized(dense, 0, (MPI_Aint)stride, type), "MPI_Type_create_resized");
    MPI_Type_free(&dense);
    return status == EG_OK ? check(s, MPI_Type_commit(type), "MPI_Type_commit") : status;
}

static eg_status all_gather(void *user, const void *send, void *receive, size_t bytes, size_t stride,
                            eg_comm_when when, void *stream) {
    state *s = user;
    MPI_Datatype part = MPI_BYTE;
    (void)stream;
    if (bytes > INT_MAX) {
        snprintf(s->text, sizeof s->text, "%zu bytes of each rank; expected at most %d", bytes, INT_MAX);
        return EG_ERR_UNSUPPORTED;
    }
    if (is_for_direct(s, bytes, when)) {
        memcpy((char *)receive + (size_t)s->rank * stride, send, bytes);
        return begin_directly(s, &(direct){.kind = DIRECT_GATHER,
                                           .send = send,
                                           .receive = receive,
                                           .chunk = bytes,
                                           .count = bytes * (size_t)s->ranks,
                                           .stride = stride});
    }
    eg_status status = make_room(s);
    if (status == EG_OK && stride != bytes) status = type_of_part(s, bytes, stride, &part);
    if (status != EG_OK) return status;
    const int each = (int)bytes, received = stride == bytes ? each : 1;
    const int result =
        MPI_Iallgather(send, each, MPI_BYTE, receive, received, part, s->comm, &s->request[s->pending]);
    if (stride != bytes) MPI_Type_free(&part);
    return note(s, result, "MPI_Iallgather", (after){.buffer = NULL});
}

static eg_status failure(void *user, char *text, size_t capacity) {
    const state *s = user;
    snprintf(text, capacity, "%s", s->text);
    return s->text[0] != '\0' ? EG_ERR_DEVICE : EG_OK;
}

/* Says to all that this rank is here, and waits a moment for the same of them: the text names those who are
 * silent. All give up within moments of each other, those of them that can. An MPI that knows of a death
 * refuses to talk with the dead. Where it has said so to this rank, the others may still wait: it only tells.
 */
static void ask_around(state *s) {
    const double moment = 0.5;
    bool silent[MOST_ASKED] = {false};
    MPI_Request request[MOST_ASKED], sent;
    const bool asks = s->text[0] == '\0';
    int missing = s->ranks - 1;
    size_t used = 0;
    if (s->ranks > MOST_ASKED) return;
    s->here = s->rank;
    for (int rank = 0; rank < s->ranks; rank++) {
        if (rank == s->rank) continue;
        silent[rank] = true;
        if (!asks ||
            MPI_Irecv(&s->word[rank], 1, MPI_INT, rank, ASK_TAG, s->comm, &request[rank]) != MPI_SUCCESS)
            request[rank] = MPI_REQUEST_NULL;
        if (MPI_Isend(&s->here, 1, MPI_INT, rank, ASK_TAG, s->comm, &sent) == MPI_SUCCESS)
            MPI_Request_free(&sent);
    }
    if (!asks) return;
    for (const double begin = MPI_Wtime(); missing > 0 && MPI_Wtime() - begin < moment;) {
        for (int rank = 0; rank < s->ranks; rank++) {
            int done = 0;
            MPI_Status unused;
            if (!silent[rank] || request[rank] == MPI_REQUEST_NULL) continue;
            if (MPI_Test(&request[rank], &done, &unused) != MPI_SUCCESS || !done) continue;
            silent[rank] = false, missing--;
        }
    }
    for (int rank = 0; rank < s->ranks && used < sizeof s->text; rank++) {
        if (!silent[rank]) continue;
        if (request[rank] != MPI_REQUEST_NULL) MPI_Cancel(&request[rank]);
        used += (size_t)snprintf(s->text + used, sizeof s->text - used, "%s %d",
                                 used == 0 ? "no answer from rank" : ",", rank);
    }
}

/* Nothing that is under way can be taken back. */
static void give_up(void *user) {
    state *s = user;
    if (!s->given_up) ask_around(s);
    s->given_up = true;
    if (s->text[0] == '\0')
        snprintf(s->text, sizeof s->text, "the communicator was given up after a failure");
}

/* ---- Measuring ---------------------------------------------------------------------------------- */

/* The shortest of some all-reduces, in microseconds. */
static eg_status measure(state *s, float *buffer, size_t count, eg_comm_when when, double *least) {
    enum { TIMES = 5 };
    eg_status status = EG_OK;
    *least = 1e30;
    for (int i = 0; i < TIMES && status == EG_OK; i++) {
        int pending = 1;
        status = check(s, MPI_Barrier(s->comm), "MPI_Barrier");
        const double begin = MPI_Wtime();
        if (status == EG_OK) status = all_reduce(s, buffer, count, EG_F32, EG_REDUCTION_SUM, when, NULL);
        while (status == EG_OK && pending > 0) status = progress(s, &pending);
        const double time = 1e6 * (MPI_Wtime() - begin);
        if (time < *least) *least = time;
    }
    return status;
}

/* Whether no request is left that may still read or write memory. */
static bool is_idle(const state *s) { return s->pending == 0 && !s->direct.active; }

/* Those of rank 0 are everyone's, because ranks have to decide alike. */
static eg_status measure_costs(state *s, eg_comm *comm) {
    enum { FEW = 16, MANY = 1 << 18 };
    double time[4];
    float *buffer = s->measured = calloc(MANY, sizeof *buffer);
    if (buffer == NULL) return EG_ERR_OUT_OF_MEMORY;
    eg_status status = measure(s, buffer, FEW, EG_COMM_NOW, &time[0]);
    if (status == EG_OK) status = measure(s, buffer, MANY, EG_COMM_NOW, &time[1]);
    if (status == EG_OK) status = measure(s, buffer, FEW, EG_COMM_BEGIN, &time[2]);
    if (status == EG_OK) status = measure(s, buffer, MANY, EG_COMM_BEGIN, &time[3]);
    if (status == EG_OK) status = check(s, MPI_Bcast(time, 4, MPI_DOUBLE, 0, s->comm), "MPI_Bcast");
    if (is_idle(s)) {
        free(buffer);
        s->measured = NULL;
    }
    if (status != EG_OK) return status;
    const double bytes = sizeof *buffer * (double)(MANY - FEW);
    comm->now = (eg_comm_cost){time[0], bytes / (time[1] > time[0] ? time[1] - time[0] : 1)};
    comm->begun = (eg_comm_cost){time[2], bytes / (time[3] > time[2] ? time[3] - time[2] : 1)};
    return EG_OK;
}

/* On one machine a reduction is the processor's work; a network adapter does most of it else. */
static eg_status find_busy(state *s, eg_comm *comm) {
    MPI_Comm near;
    int ranks = 0, least = 0;
    eg_status status = check(s, MPI_Comm_split_type(s->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &near),
                             "MPI_Comm_split_type");
    if (status != EG_OK) return status;
    status = check(s, MPI_Comm_size(near, &ranks), "MPI_Comm_size");
    MPI_Comm_free(&near);
    if (status == EG_OK)
        status = check(s, MPI_Allreduce(&ranks, &least, 1, MPI_INT, MPI_MIN, s->comm), "MPI_Allreduce");
    comm->busy = least == s->ranks ? 1 : 0.1;
    return status;
}

/* ---- Making one --------------------------------------------------------------------------------- */

static eg_status open_state(state *s, MPI_Comm mpi, eg_comm *comm) {
    eg_status status = check(s, MPI_Comm_dup(mpi, &s->comm), "MPI_Comm_dup");
    if (status == EG_OK)
        status = check(s, MPI_Comm_set_errhandler(s->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (status == EG_OK) status = check(s, MPI_Comm_rank(s->comm, &s->rank), "MPI_Comm_rank");
    if (status == EG_OK) status = check(s, MPI_Comm_size(s->comm, &s->ranks), "MPI_Comm_size");
    if (status == EG_OK) status = check(s, MPI_Op_create(add_f16, 1, &s->add_f16), "MPI_Op_create");
    if (status == EG_OK) status = check(s, MPI_Op_create(add_bf16, 1, &s->add_bf16), "MPI_Op_create");
    if (status == EG_OK) status = find_busy(s, comm);
    if (status == EG_OK && s->ranks > 1) status = measure_costs(s, comm);
    return status;
}

static void free_operations(state *s) {
    if (s->add_f16 != MPI_OP_NULL) MPI_Op_free(&s->add_f16);
    if (s->add_bf16 != MPI_OP_NULL) MPI_Op_free(&s->add_bf16);
}

eg_status eg_comm_mpi(MPI_Comm mpi, eg_comm *comm) {
    int begun = 0, ended = 0;
    if (comm == NULL) return EG_ERR_ARGUMENT;
    *comm = (eg_comm){.size = 0};
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    if (!begun || ended || mpi == MPI_COMM_NULL) return EG_ERR_ARGUMENT;
    state *s = calloc(1, sizeof *s);
    if (s == NULL) return EG_ERR_OUT_OF_MEMORY;
    s->add_f16 = s->add_bf16 = MPI_OP_NULL;
    eg_comm made = {.size = sizeof made,
                    .user = s,
                    .all_reduce = all_reduce,
                    .reduce_scatter = reduce_scatter,
                    .all_gather = all_gather,
                    .progress = progress,
                    .failure = failure,
                    .abort = give_up};
    const eg_status status = open_state(s, mpi, &made);
    if (status != EG_OK) {
        /* The duplicate stays MPI's: to free it is a collective call, and other ranks may wait elsewhere. So
         * does the memory of requests, which may still write to it. */
        if (is_idle(s)) {
            free_operations(s);
            free(s->parts);
            free(s);
        }
        return status;
    }
    made.rank = s->rank, made.ranks = s->ranks;
    *comm = made;
    return EG_OK;
}

eg_status eg_comm_mpi_at(const void *mpi, eg_comm *comm) {
    const MPI_Comm *given = mpi;
    return given != NULL ? eg_comm_mpi(*given, comm) : EG_ERR_ARGUMENT;
}

eg_status eg_comm_mpi_world(eg_comm *comm) {
    int begun = 0, provided;
    if (comm == NULL) return EG_ERR_ARGUMENT;
    *comm = (eg_comm){.size = 0};
    MPI_Initialized(&begun);
    if (!begun && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
        return EG_ERR_DEVICE;
    const eg_status status = eg_comm_mpi(MPI_COMM_WORLD, comm);
    if (status == EG_OK) ((state *)comm->user)->finalizes = !begun;
    return status;
}

void eg_comm_mpi_free(eg_comm *comm) {
    if (comm == NULL || comm->user == NULL) return;
    state *s = comm->user;
    if (s->given_up) return; /* requests may still write to it */
    free_operations(s);
    MPI_Comm_free(&s->comm);
    if (s->finalizes) MPI_Finalize();
    free(s->parts);
    free(s);
    *comm = (eg_comm){.size = 0};
}

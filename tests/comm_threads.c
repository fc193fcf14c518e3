/* SPDX-License-Identifier: Apache-2.0 */
/* Each collective is a meeting, in the order of the calls. Every rank puts its addresses there; the one that
 * comes last computes all results, in the order of the ranks. */
#include "comm_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "epigrad/epigrad.h"

enum { AGREEMENT = 64 }; /* bytes of each rank */

typedef enum kind { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER } kind;

typedef struct meeting {
    int came, left;
    kind kind;
    size_t count;  /* of elements, or bytes */
    size_t stride; /* bytes from a rank's part to the next's */
    eg_dtype dtype;
    eg_reduction reduction;
    const void *send[TEAM_MOST];
    void *receive[TEAM_MOST];
    double ready; /* seconds; when the numbers are there */
    bool mismatch;
} meeting;

typedef struct member {
    team *team;
    int rank;
    int begun, done; /* collectives */
    int fails_at;
    bool aborted;
} member;

struct team {
    pthread_mutex_t lock;
    int ranks;
    double latency, rate, free_at;
    meeting meetings[TEAM_OPS];
    member members[TEAM_MOST];
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

team *team_make(int ranks, double latency, double rate) {
    team *t = calloc(1, sizeof *t);
    if (t == NULL) abort();
    pthread_mutex_init(&t->lock, NULL);
    t->ranks = ranks, t->latency = latency, t->rate = rate;
    for (int i = 0; i < ranks; i++) t->members[i] = (member){.team = t, .rank = i, .fails_at = -1};
    return t;
}

void team_free(team *t) {
    pthread_mutex_destroy(&t->lock);
    free(t);
}

void team_fail(team *t, int rank, int collective) { t->members[rank].fails_at = collective; }
int team_begun(const team *t, int rank) { return t->members[rank].begun; }
bool team_aborted(const team *t, int rank) { return t->members[rank].aborted; }

static double number(const void *from, size_t i, eg_dtype dtype) {
    double x;
    const size_t size = eg_dtype_size(dtype);
    eg_convert(&x, EG_F64, (const char *)from + i * size, dtype, 1);
    return x;
}

/* Rounded after every addition, as an engine would. */
static void add_up(const meeting *s, int ranks, size_t from, void *to) {
    const size_t size = eg_dtype_size(s->dtype);
    for (size_t i = 0; i < s->count; i++) {
        double sum = number(s->send[0], from + i, s->dtype);
        char *place = (char *)to + i * size;
        for (int r = 1; r < ranks; r++) {
            sum += number(s->send[r], from + i, s->dtype);
            eg_convert(place, s->dtype, &sum, EG_F64, 1);
            sum = number(place, 0, s->dtype);
        }
        if (s->reduction == EG_REDUCTION_MEAN) sum /= ranks;
        eg_convert(place, s->dtype, &sum, EG_F64, 1);
    }
}

/* As fast as an engine, for measuring. */
static void add_up_f32(const meeting *s, int ranks, size_t first, float *sums) {
    memcpy(sums, (const float *)s->send[0] + first, s->count * sizeof *sums);
    for (int r = 1; r < ranks; r++) {
        const float *from = (const float *)s->send[r] + first;
        for (size_t i = 0; i < s->count; i++) sums[i] += from[i];
    }
}

static void add_up_all(const meeting *s, int ranks, size_t first, void *sums) {
    if (s->dtype == EG_F32 && s->reduction == EG_REDUCTION_SUM) {
        add_up_f32(s, ranks, first, sums);
    } else {
        add_up(s, ranks, first, sums);
    }
}

static void finish_meeting(team *t, meeting *s) {
    const size_t bytes = s->count * (s->kind == ALL_GATHER ? 1 : eg_dtype_size(s->dtype));
    if (s->kind == ALL_REDUCE) {
        void *sums = malloc(bytes + 1);
        if (sums == NULL) abort();
        add_up_all(s, t->ranks, 0, sums);
        for (int r = 0; r < t->ranks; r++) memcpy(s->receive[r], sums, bytes);
        free(sums);
    }
    for (int r = 0; r < t->ranks && s->kind == REDUCE_SCATTER; r++)
        add_up_all(s, t->ranks, (size_t)r * s->count, s->receive[r]);
    for (int r = 0; r < t->ranks && s->kind == ALL_GATHER; r++) {
        for (int q = 0; q < t->ranks; q++)
            memcpy((char *)s->receive[r] + (size_t)q * s->stride, s->send[q], bytes);
    }
    const double begin = seconds() > t->free_at ? seconds() : t->free_at;
    s->ready = begin;
    /* An all-gather or a reduce-scatter is half an all-reduce; what ranks agree on takes no time. */
    const double half = 0.5 * (double)bytes * t->ranks, sent = s->kind == ALL_REDUCE ? (double)bytes : half;
    const bool agrees = s->kind == ALL_GATHER && bytes <= AGREEMENT;
    if (t->rate > 0 && !agrees) s->ready += 1e-6 * (t->latency + sent / t->rate);
    t->free_at = s->ready;
}

static eg_status progress(void *user, int *pending) {
    member *m = user;
    team *t = m->team;
    bool bad = m->aborted;
    pthread_mutex_lock(&t->lock);
    while (m->done < m->begun) {
        meeting *s = &t->meetings[m->done % TEAM_OPS];
        bad = bad || s->mismatch;
        if (s->came < t->ranks || seconds() < s->ready) break;
        m->done++;
        if (++s->left == t->ranks) *s = (meeting){.came = 0};
    }
    *pending = m->begun - m->done;
    pthread_mutex_unlock(&t->lock);
    return bad ? EG_ERR_DEVICE : EG_OK;
}

static bool anyone_aborted(const team *t) {
    bool any = false;
    for (int rank = 0; rank < t->ranks; rank++) any = any || t->members[rank].aborted;
    return any;
}

static eg_status put(member *m, kind kind, const void *send, void *receive, size_t count, size_t stride,
                     eg_dtype dtype, eg_reduction reduction) {
    team *t = m->team;
    if (m->aborted || (m->fails_at >= 0 && m->begun >= m->fails_at)) return EG_ERR_DEVICE;
    pthread_mutex_lock(&t->lock);
    meeting *s = &t->meetings[m->begun++ % TEAM_OPS];
    if (s->came == 0)
        s->kind = kind, s->count = count, s->stride = stride, s->dtype = dtype, s->reduction = reduction;
    if (s->kind != kind || s->count != count || s->dtype != dtype || s->reduction != reduction)
        s->mismatch = true;
    s->send[m->rank] = send, s->receive[m->rank] = receive;
    if (anyone_aborted(t)) s->mismatch = true; /* whose memory may be gone */
    if (++s->came == t->ranks && !s->mismatch) finish_meeting(t, s);
    const bool bad = s->mismatch;
    pthread_mutex_unlock(&t->lock);
    return bad ? EG_ERR_DEVICE : EG_OK;
}

static eg_status all_reduce(void *user, void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction,
                            eg_comm_when when, void *stream) {
    (void)when, (void)stream;
    return put(user, ALL_REDUCE, buffer, buffer, count, 0, dtype, reduction);
}

static eg_status reduce_scatter(void *user, const void *send, void *receive, size_t count, eg_dtype dtype,
                                eg_reduction reduction, eg_comm_when when, void *stream) {
    (void)when, (void)stream;
    return put(user, REDUCE_SCATTER, send, receive, count, 0, dtype, reduction);
}

static eg_status all_gather(void *user, const void *send, void *receive, size_t bytes, size_t stride,
                            eg_comm_when when, void *stream) {
    (void)when, (void)stream;
    return put(user, ALL_GATHER, send, receive, bytes, stride, EG_DTYPE_DEFAULT, EG_REDUCTION_SUM);
}

static eg_status failure(void *user, char *text, size_t capacity) {
    const member *m = user;
    snprintf(text, capacity, "%s", m->aborted ? "it was aborted" : "the engine of the tests does not match");
    return EG_ERR_DEVICE;
}

static void give_up(void *user) {
    member *m = user;
    pthread_mutex_lock(&m->team->lock);
    m->aborted = true;
    pthread_mutex_unlock(&m->team->lock);
}

eg_comm team_comm(team *t, int rank) {
    return (eg_comm){.size = sizeof(eg_comm),
                     .rank = rank,
                     .ranks = t->ranks,
                     .user = &t->members[rank],
                     .all_reduce = all_reduce,
                     .reduce_scatter = reduce_scatter,
                     .all_gather = all_gather,
                     .progress = progress,
                     .failure = failure,
                     .abort = give_up,
                     .timeout = 20,
                     .now = {t->latency, t->rate},
                     .begun = {t->latency, t->rate}};
}

typedef struct job {
    void (*body)(void *, const eg_comm *);
    void *arg;
    eg_comm comm;
} job;

static void *run_job(void *arg) {
    job *j = arg;
    j->body(j->arg, &j->comm);
    return NULL;
}

void team_run(team *t, void (*body)(void *, const eg_comm *), void *arg) {
    pthread_t threads[TEAM_MOST];
    job jobs[TEAM_MOST];
    for (int i = 0; i < t->ranks; i++) {
        jobs[i] = (job){body, arg, team_comm(t, i)};
        if (pthread_create(&threads[i], NULL, run_job, &jobs[i]) != 0) abort();
    }
    for (int i = 0; i < t->ranks; i++) pthread_join(threads[i], NULL);
}

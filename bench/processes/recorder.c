/* SPDX-License-Identifier: Apache-2.0 */
#include "recorder.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/collectives.h"
#include "cpu/cpu.h"

enum { MOST = 512, MOST_OPEN = 64, NONE = -1 };

static struct {
    const eg_comm *inner;
    double rate, free_at; /* of the slower network, and when it has sent all that was begun */
    moment moment[MOST];
    int count, lost;
    int call, step; /* which of them is going on, or NONE */
    struct {
        int moment; /* or NONE */
        double ready;
    } open[MOST_OPEN]; /* collectives that have not finished, in the order in which they were begun */
    int opened;
    const eg_program *program; /* of the step */
    const eg_step *at;
} recorded = {.call = NONE, .step = NONE};

double recorder_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int add(track track, double begin) {
    if (recorded.count == MOST) {
        recorded.lost++;
        return NONE;
    }
    recorded.moment[recorded.count] = (moment){.track = track, .begin = begin};
    return recorded.count++;
}

static void end(int index, double time) {
    if (index != NONE) recorded.moment[index].end = time;
}

void recorder_begin(const char *name) {
    recorded.count = recorded.lost = recorded.opened = 0;
    recorded.call = add(TRACK_CALL, recorder_now());
    snprintf(recorded.moment[recorded.call].name, sizeof recorded.moment[0].name, "%s", name);
}

void recorder_end(void) {
    end(recorded.call, recorder_now());
    recorded.call = NONE;
}

const moment *recorder_moments(int *count, int *lost) {
    *count = recorded.count, *lost = recorded.lost;
    return recorded.moment;
}

/* ---- Steps ------------------------------------------------------------------------------------------ */

/* Such as "d_b rows 0..255": what a step makes. */
static void name_step(const eg_program *program, const eg_step *step, moment *m) {
    const eg_op_list *list = &program->list;
    const eg_op *op = step->op != EG_NO_OP ? &list->op[step->op] : NULL;
    eg_text text = {m->name, sizeof m->name};
    if (op == NULL) {
        eg_put(&text, "%s", step->what);
    } else if (op->kind == EG_COLLECTIVE && op->collective == EG_FINISH) {
        eg_put(&text, "wait for all ranks");
    } else if (op->kind == EG_COLLECTIVE && list->exchange.parallel == EG_DATA_PARALLEL) {
        eg_put(&text, "%s", eg_view_name(list, &(eg_view){.space = EG_OPERAND, .id = op->summing}));
    } else if (eg_is_present(&op->out)) {
        eg_put(&text, "%s", eg_view_name(list, &op->out));
    } else {
        const eg_term *store = eg_term_of(op, EG_TERM_STORE);
        eg_put(&text, "%s", store != NULL ? eg_view_name(list, &store->view) : "column sums");
    }
    if (step->rows.count > 0)
        eg_put(&text, " rows %lld..%lld", (long long)step->rows.first,
               (long long)(step->rows.first + step->rows.count - 1));
}

static void begin_step(track track, const eg_program *program, const eg_step *step) {
    recorded.step = add(track, recorder_now());
    recorded.program = program, recorded.at = step;
    if (recorded.step != NONE) name_step(program, step, &recorded.moment[recorded.step]);
}

static void end_step(void) {
    end(recorded.step, recorder_now());
    recorded.step = NONE, recorded.at = NULL;
}

#define WRAP(name)                                                                                           \
    void __real_##name(const eg_cpu_run *run, const eg_step *step);                                          \
    void __wrap_##name(const eg_cpu_run *run, const eg_step *step);                                          \
    void __wrap_##name(const eg_cpu_run *run, const eg_step *step) {                                         \
        begin_step(TRACK_STEP, run->program, step);                                                          \
        __real_##name(run, step);                                                                            \
        end_step();                                                                                          \
    }
WRAP(eg_cpu_gemm)
WRAP(eg_cpu_few_rows)
WRAP(eg_cpu_outer_product)
WRAP(eg_cpu_pack)
WRAP(eg_cpu_map)
WRAP(eg_cpu_reduce)

eg_status __real_eg_collectives_step(eg_collectives *x, const eg_program *program, const eg_step *step,
                                     void *stream);
eg_status __wrap_eg_collectives_step(eg_collectives *x, const eg_program *program, const eg_step *step,
                                     void *stream);
eg_status __wrap_eg_collectives_step(eg_collectives *x, const eg_program *program, const eg_step *step,
                                     void *stream) {
    begin_step(TRACK_WAIT, program, step);
    const eg_status status = __real_eg_collectives_step(x, program, step, stream);
    end_step();
    return status;
}

/* ---- The communicator ------------------------------------------------------------------------------- */

static void note_engine(double begin, bool asked) {
    if (recorded.step == NONE) return;
    moment *m = &recorded.moment[recorded.step];
    m->engine += recorder_now() - begin;
    m->asks += asked;
}

static double ready_at(double begin, double bytes) {
    if (recorded.rate <= 0) return begin;
    if (recorded.free_at < begin) recorded.free_at = begin;
    return recorded.free_at += 1e-6 * bytes / recorded.rate;
}

/* A collective is begun, of which the slower network would send so many bytes. Of a call the first one, and
 * one before sums that begin late, is what ranks agree by. */
static void open_collective(const char *kind, size_t bytes, double sent, bool agreement) {
    const double begin = recorder_now();
    const int index = add(TRACK_SENT, begin);
    if (recorded.opened == MOST_OPEN) return;
    recorded.open[recorded.opened].moment = index;
    recorded.open[recorded.opened++].ready = agreement ? begin : ready_at(begin, sent);
    if (index == NONE) return;
    moment *m = &recorded.moment[index];
    m->bytes = (long long)bytes;
    const bool named = recorded.at != NULL && recorded.at->kind == EG_COLLECTIVE && !agreement &&
                       recorded.program->list.op[recorded.at->op].collective != EG_FINISH;
    snprintf(m->name, sizeof m->name, "%s%s%.40s", agreement ? "agreement" : kind, named ? " " : "",
             named ? recorded.moment[recorded.step].name : "");
}

static eg_status all_reduce(void *user, void *buffer, size_t count, eg_dtype dtype, eg_reduction reduction,
                            eg_comm_when when, void *stream) {
    const eg_comm *inner = recorded.inner;
    (void)user;
    const size_t bytes = count * eg_dtype_size(dtype);
    open_collective("all-reduce", bytes, (double)bytes, false);
    const double begin = recorder_now();
    const eg_status status = inner->all_reduce(inner->user, buffer, count, dtype, reduction, when, stream);
    note_engine(begin, false);
    return status;
}

static eg_status reduce_scatter(void *user, const void *send, void *receive, size_t count, eg_dtype dtype,
                                eg_reduction reduction, eg_comm_when when, void *stream) {
    const eg_comm *inner = recorded.inner;
    (void)user;
    const size_t bytes = count * eg_dtype_size(dtype) * (size_t)inner->ranks;
    open_collective("reduce-scatter", bytes, 0.5 * (double)bytes, false);
    const double begin = recorder_now();
    const eg_status status =
        inner->reduce_scatter(inner->user, send, receive, count, dtype, reduction, when, stream);
    note_engine(begin, false);
    return status;
}

static eg_status all_gather(void *user, const void *send, void *receive, size_t bytes, size_t stride,
                            eg_comm_when when, void *stream) {
    const eg_comm *inner = recorded.inner;
    (void)user;
    const size_t all = bytes * (size_t)inner->ranks;
    open_collective("all-gather", all, 0.5 * (double)all, bytes == EG_AGREED_WORDS * sizeof(int64_t));
    const double begin = recorder_now();
    const eg_status status = inner->all_gather(inner->user, send, receive, bytes, stride, when, stream);
    note_engine(begin, false);
    return status;
}

/* Engines say how many have not finished, and not which: the oldest are taken to have. */
static eg_status progress(void *user, int *pending) {
    const eg_comm *inner = recorded.inner;
    (void)user;
    const double begin = recorder_now();
    const eg_status status = inner->progress(inner->user, pending);
    const double now = recorder_now();
    note_engine(begin, true);
    const int finished = recorded.opened - *pending;
    int done = 0;
    while (done < finished && recorded.open[done].ready <= now) end(recorded.open[done++].moment, now);
    recorded.opened -= done;
    memmove(recorded.open, recorded.open + done, (size_t)recorded.opened * sizeof recorded.open[0]);
    if (*pending < recorded.opened) *pending = recorded.opened;
    return status;
}

static eg_status failure(void *user, char *text, size_t capacity) {
    (void)user;
    return recorded.inner->failure(recorded.inner->user, text, capacity);
}

static void give_up(void *user) {
    (void)user;
    recorded.inner->abort(recorded.inner->user);
}

eg_comm recorder_wrap(const eg_comm *inner, double rate) {
    eg_comm comm = *inner;
    recorded.inner = inner, recorded.rate = rate;
    comm.user = NULL;
    comm.all_reduce = all_reduce;
    comm.reduce_scatter = reduce_scatter;
    comm.all_gather = all_gather;
    comm.progress = progress;
    comm.failure = failure;
    comm.abort = give_up;
    return comm;
}

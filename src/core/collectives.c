/* SPDX-License-Identifier: Apache-2.0 */
#include "collectives.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "clock.h"
#include "error.h"
#include "lower_exchange.h"
#include "sizes.h"

/* ---- Estimates ---------------------------------------------------------------------------------- */

double eg_comm_time(const eg_comm_cost *cost, double bytes) {
    return cost->rate > 0 ? cost->latency + bytes / cost->rate : 0;
}

/* A collective of a tensor-parallel call is half an all-reduce. */
static double time_of(const eg_exchange *by, const eg_comm_cost *cost, const eg_op *op, int64_t rows) {
    const bool half = by->parallel != EG_DATA_PARALLEL && op->collective != EG_ALL_REDUCE;
    const double bytes =
        (double)op->items * (double)rows * (double)op->cols * (double)eg_size_of(op->left.dtype);
    return eg_comm_time(cost, half ? EG_HALF_OF_ALL_REDUCE * bytes : bytes);
}

/* What is begun takes the calling thread for a part of its time, which the products then lack; the rest of it
 * is hidden under those steps that follow the first collective. */
static bool overlap_is_profitable(const eg_caps *caps, const eg_program *program) {
    const eg_exchange *by = &program->list.exchange;
    double now = 0, begun = 0, under = 0;
    if (by->order != EG_COMM_ORDER_ESTIMATED) return by->order == EG_COMM_ORDER_OVERLAPPED;
    if (by->begun.rate <= 0) return true;
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        const bool sends = step->kind == EG_COLLECTIVE;
        const eg_op *op = sends ? &program->list.op[step->op] : NULL;
        if (sends) begun += step->microseconds;
        if (sends && step->group == 0 && op->collective != EG_FINISH)
            now += time_of(by, &by->now, op, op->rows);
        if (!sends && begun > 0 && step->kind != EG_COPY) under += step->microseconds;
    }
    const int threads = caps->threads > 1 ? caps->threads : 1;
    const double slowed = under + by->busy * begun / threads;
    return (slowed > begun ? slowed : begun) < under + now;
}

/* Products go on until they need what has been sent, collectives one after the other. */
static double time_of_program(const eg_caps *caps, const eg_program *program, bool overlaps) {
    const eg_exchange *by = &program->list.exchange;
    double time = 0, sent = 0, products = 0, begun = 0;
    for (int i = 0; i < program->steps; i++) {
        const eg_step *step = &program->step[i];
        const eg_op *op = step->kind == EG_COLLECTIVE ? &program->list.op[step->op] : NULL;
        if (op == NULL) {
            time += step->microseconds;
            products += step->microseconds;
        } else if (!overlaps && op->collective != EG_FINISH) {
            time += time_of(by, &by->now, op, op->rows);
        } else if (op->collective == EG_FINISH) {
            if (sent > time) time = sent;
        } else {
            sent = (sent > time ? sent : time) + step->microseconds;
            begun += step->microseconds;
        }
    }
    if (!overlaps) return time;
    const double slowed = products + by->busy * begun / (caps->threads > 1 ? caps->threads : 1);
    return time > slowed ? time : slowed;
}

bool eg_collectives_overlap(const eg_program *program) {
    const eg_exchange *by = &program->list.exchange;
    const double worth = 0.95; /* estimates of products differ by a few percent from group to whole */
    if (by->order != EG_COMM_ORDER_ESTIMATED) return by->order == EG_COMM_ORDER_OVERLAPPED;
    return by->streams || by->begun.rate <= 0 || program->time < worth * program->plain_time;
}

void eg_collectives_estimate(const eg_caps *caps, eg_program *program) {
    const eg_exchange *by = &program->list.exchange;
    for (int i = 0; i < program->steps; i++) {
        eg_step *step = &program->step[i];
        if (step->kind != EG_COLLECTIVE) continue;
        const eg_op *op = &program->list.op[step->op];
        if (op->collective != EG_FINISH)
            step->microseconds =
                time_of(by, &by->begun, op, step->rows.count > 0 ? step->rows.count : op->rows);
    }
    if (by->parallel == EG_DATA_PARALLEL) {
        program->overlaps = overlap_is_profitable(caps, program);
    } else {
        program->time = time_of_program(caps, program, true);
        program->plain_time = time_of_program(caps, program, false);
        program->overlaps = eg_collectives_overlap(program);
    }
    for (int i = 0; i < program->steps && !program->overlaps; i++) {
        if (program->step[i].kind == EG_COLLECTIVE) program->step[i].beside = false;
    }
}

/* ---- Failures ----------------------------------------------------------------------------------- */

eg_status eg_collectives_fail(const eg_comm *comm, const char *what) {
    char text[200] = "";
    comm->failure(comm->user, text, sizeof text);
    return eg_fail(EG_ERR_DEVICE, "%s over %d ranks failed on rank %d%s%s", what, comm->ranks, comm->rank,
                   text[0] != '\0' ? ": " : "", text);
}

/* Nothing of the communicator can be relied on after this. */
static eg_status give_up(const eg_comm *comm, eg_status status) {
    comm->abort(comm->user);
    return status;
}

static eg_status check(const eg_comm *comm, eg_status status, const char *what) {
    return status == EG_OK ? EG_OK : give_up(comm, eg_collectives_fail(comm, what));
}

static double timeout_of(const eg_comm *comm) { return comm->timeout > 0 ? comm->timeout : 600; }

/* An engine that gives up may find out who is missing. */
static eg_status fail_waiting(const eg_comm *comm, const char *what) {
    char text[200] = "";
    comm->abort(comm->user);
    comm->failure(comm->user, text, sizeof text);
    return eg_fail(
        EG_ERR_DEVICE,
        "%s: rank %d waited %g s for the other ranks of %d (comm.timeout), one of which has failed or "
        "hangs%s%s",
        what, comm->rank, timeout_of(comm), comm->ranks, text[0] != '\0' ? ": " : "", text);
}

/* Everything that was begun. Ranks may share cores, so a rank that waits for long makes room. */
static eg_status wait_for_all(const eg_comm *comm, const char *what) {
    enum { SPINS = 100 };
    const double begin = eg_seconds();
    for (int64_t turn = 0;; turn++) {
        int pending = 0;
        EG_TRY(check(comm, comm->progress(comm->user, &pending), what));
        if (pending == 0) return EG_OK;
        if (turn < SPINS) continue;
        if (eg_seconds() - begin > timeout_of(comm)) return fail_waiting(comm, what);
        sched_yield();
    }
}

/* ---- The agreement ------------------------------------------------------------------------------ */

enum { SAYS, SAYS_K, SAYS_N, SAYS_BATCH, SAYS_OUTPUTS, SAYS_SUMS, SAYS_GROUPS, SAYS_OVERLAP };
enum { SAYS_M = SAYS_K, SAYS_SIDE = SAYS_N, SAYS_DTYPE = SAYS_BATCH }; /* of tensor-parallel calls */
enum {
    CALLS = 0x65700001,
    CANNOT_CALL = 0x65700002,
    CALLS_BY_COLUMNS = 0x65700003,
    CALLS_BY_ROWS = 0x65700004
};

static const char *const agreed_names[EG_AGREED_WORDS] = {
    [SAYS_K] = "layer.k",
    [SAYS_N] = "layer.n",
    [SAYS_BATCH] = "a batch of d_b of",
    [SAYS_OUTPUTS] = "outputs (d_b 1, d_bias 2, chain.d_bias 4, column-major d_b 8) of",
    [SAYS_SUMS] = "data_parallel (sums, + 16 for the mean, + 32 for shards) of",
    [SAYS_GROUPS] = "groups of d_b by its data_parallel.comm's costs of",
};

static const char *const agreed_names_of_tensors[EG_AGREED_WORDS] = {
    [SAYS_M] = "layer.m",
    [SAYS_DTYPE] = "layer.dtype",
    [SAYS_OUTPUTS] = "collectives (all-gather 1, reduce-scatter 2, all-reduce 4; forward 8) of",
    [SAYS_SUMS] = "tensor_parallel.sums",
    [SAYS_GROUPS] = "row groups by its tensor_parallel.comm's costs of",
};

static const char *name_of(int64_t call, int word) {
    if (call == CALLS) return agreed_names[word];
    if (word == SAYS_SIDE) return call == CALLS_BY_COLUMNS ? "layer.k" : "layer.n";
    return agreed_names_of_tensors[word];
}

static void say_tensors(const eg_program *program, int64_t *words) {
    const eg_op_list *list = &program->list;
    const bool by_columns = list->exchange.parallel == EG_BY_COLUMNS;
    words[SAYS] = by_columns ? CALLS_BY_COLUMNS : CALLS_BY_ROWS;
    words[SAYS_M] = list->m, words[SAYS_SIDE] = by_columns ? list->k : list->n;
    words[SAYS_DTYPE] = list->dtype, words[SAYS_SUMS] = list->exchange.sums;
    words[SAYS_GROUPS] = list->row_groups;
    words[SAYS_OUTPUTS] = list->backward ? 0 : 8;
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (op->kind != EG_COLLECTIVE) continue;
        words[SAYS_OUTPUTS] |= op->collective == EG_ALL_GATHER       ? 1
                               : op->collective == EG_REDUCE_SCATTER ? 2
                               : op->collective == EG_ALL_REDUCE     ? 4
                                                                     : 0;
    }
}

/* What the collectives of a program depend on. */
void eg_collectives_say(const eg_program *program, int64_t *words) {
    const eg_op_list *list = &program->list;
    const eg_exchange *by = &list->exchange;
    memset(words, 0, EG_AGREED_WORDS * sizeof *words);
    words[SAYS_OVERLAP] = program->overlaps;
    if (by->parallel != EG_DATA_PARALLEL) {
        say_tensors(program, words);
        return;
    }
    words[SAYS] = CALLS;
    words[SAYS_K] = list->k, words[SAYS_N] = list->n;
    words[SAYS_SUMS] = (int64_t)by->sums + 16 * by->mean + 32 * by->sharded;
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (op->kind != EG_COLLECTIVE || op->collective == EG_FINISH) continue;
        words[SAYS_OUTPUTS] |= op->summing == EG_OP_D_B ? 1 : op->summing == EG_OP_D_BIAS ? 2 : 4;
        if (op->summing != EG_OP_D_B) continue;
        words[SAYS_OUTPUTS] |= by->d_b_by_columns ? 8 : 0;
        words[SAYS_BATCH] = op->items, words[SAYS_GROUPS] = op->groups;
    }
}

static const char *call_named(int64_t call) {
    return call == CALLS              ? "eg_backward with data_parallel"
           : call == CALLS_BY_COLUMNS ? "a call with EG_SPLIT_COLUMNS"
           : call == CALLS_BY_ROWS    ? "a call with EG_SPLIT_ROWS"
                                      : "something else";
}

static eg_status fail_agreement(const eg_comm *comm, const int64_t *all, int rank, int word) {
    if (word == SAYS && all[rank * EG_AGREED_WORDS] == CANNOT_CALL)
        return eg_fail(EG_ERR_DEVICE, "rank %d could not make its call; its own status says why", rank);
    if (word == SAYS)
        return eg_fail(EG_ERR_DEVICE, "rank %d makes %s, and rank 0 %s; expected the same on all %d ranks",
                       rank, call_named(all[rank * EG_AGREED_WORDS]), call_named(all[0]), comm->ranks);
    return eg_fail(EG_ERR_DEVICE, "rank %d has %s %lld, and rank 0 %lld; expected the same on all %d ranks",
                   rank, name_of(all[0], word), (long long)all[rank * EG_AGREED_WORDS + word],
                   (long long)all[word], comm->ranks);
}

/* Every rank compares the same words, so that all come to the same end. */
eg_status eg_collectives_compare(eg_collectives *x, const int64_t *all) {
    bool overlaps = true;
    for (int rank = 0; rank < x->comm->ranks; rank++) {
        const int64_t *says = &all[(int64_t)rank * EG_AGREED_WORDS];
        if (says[SAYS] == CANNOT_CALL || says[SAYS] != all[SAYS])
            return fail_agreement(x->comm, all, rank, SAYS);
        overlaps = overlaps && says[SAYS_OVERLAP] != 0;
    }
    /* Without overlap a tensor-parallel call has no groups. */
    const int last = all[SAYS] == CALLS || overlaps ? SAYS_OVERLAP : SAYS_GROUPS;
    for (int rank = 1; rank < x->comm->ranks; rank++) {
        for (int word = SAYS_K; word < last; word++) {
            if (all[(int64_t)rank * EG_AGREED_WORDS + word] != all[word])
                return fail_agreement(x->comm, all, rank, word);
        }
    }
    x->overlaps = overlaps;
    return EG_OK;
}

static eg_status begin_agreement(const eg_comm *comm, int64_t *words) {
    return check(comm,
                 comm->all_gather(comm->user, words, words + EG_AGREED_WORDS, EG_AGREED_WORDS * sizeof *words,
                                  EG_AGREED_WORDS * sizeof *words, EG_COMM_BEGIN, NULL),
                 "the agreement on a call");
}

eg_status eg_collectives_agree(eg_collectives *x) {
    if (x->agreed || x->words == NULL) return EG_OK;
    EG_TRY(wait_for_all(x->comm, "the agreement on a call"));
    x->begun = false;
    EG_TRY(eg_collectives_compare(x, x->words + EG_AGREED_WORDS));
    x->agreed = true;
    return EG_OK;
}

void eg_collectives_refuse(const eg_comm *comm) {
    const eg_message message = eg_message_get();
    if (comm == NULL || comm->progress == NULL) return;
    int64_t *words = calloc(1, (size_t)eg_agreement_bytes(comm->ranks));
    if (words == NULL) return;
    words[SAYS] = CANNOT_CALL;
    eg_status status = begin_agreement(comm, words);
    if (status == EG_OK) status = wait_for_all(comm, "the agreement on a call");
    if (status == EG_OK) free(words); /* else an engine may still write to it */
    eg_message_put(&message);
}

/* ---- A call ------------------------------------------------------------------------------------- */

/* Engines of a stream are not waited for: there is nothing to compare, and overlap is the program's to say.
 */
eg_status eg_collectives_begin(eg_collectives *x, const eg_comm *comm, const eg_program *program,
                               const eg_call *call) {
    *x = (eg_collectives){.comm = comm, .program = program, .call = call};
    if (comm->progress == NULL) {
        x->agreed = true, x->overlaps = program->overlaps;
        return EG_OK;
    }
    const eg_address *at = &call->operand[EG_EXCHANGED];
    x->words = (int64_t *)(void *)((char *)at->data + at->offset);
    eg_collectives_say(program, x->words);
    EG_TRY(begin_agreement(comm, x->words));
    x->begun = true;
    return EG_OK;
}

/* What is under way when a call fails would still write to its memory. */
eg_status eg_collectives_end(eg_collectives *x, eg_status status) {
    if (status == EG_OK) return x->status;
    const eg_message message = eg_message_get();
    if (x->begun && x->words != NULL) wait_for_all(x->comm, "a call that failed");
    eg_message_put(&message);
    return status;
}

void eg_collectives_progress(void *collectives) {
    eg_collectives *x = collectives;
    int pending = 0;
    if (x->status != EG_OK || !x->begun) return;
    x->status = check(x->comm, x->comm->progress(x->comm->user, &pending), "a collective");
}

static char *address_of(const eg_call *call, const eg_view *view, int64_t row) {
    const eg_address *at = &call->operand[view->id];
    return (char *)at->data + at->offset +
           (view->offset + row * view->row_stride) * (int64_t)eg_size_of(view->dtype);
}

/* Of a tensor-parallel call: rows of each rank, or sums of rows for each. */
static eg_status send_rows(eg_collectives *x, const eg_op *op, eg_comm_when when, void *stream) {
    const eg_comm *comm = x->comm;
    char *from = address_of(x->call, &op->left, 0), *to = address_of(x->call, &op->out, 0);
    const size_t count = (size_t)(op->rows * op->cols), size = eg_size_of(op->out.dtype);
    if (op->collective == EG_REDUCE_SCATTER)
        return check(
            comm,
            comm->reduce_scatter(comm->user, from, to, count, op->out.dtype, EG_REDUCTION_SUM, when, stream),
            "a reduce-scatter");
    return check(comm,
                 comm->all_gather(comm->user, from, to, count * size, (size_t)op->out.batch_stride * size,
                                  when, stream),
                 "an all-gather");
}

/* All of an operation's collective, or some rows of it. */
static eg_status send(eg_collectives *x, const eg_op *op, eg_row_range rows, eg_comm_when when,
                      void *stream) {
    const eg_comm *comm = x->comm;
    const eg_exchange *by = &x->program->list.exchange;
    const eg_reduction reduction = by->mean ? EG_REDUCTION_MEAN : EG_REDUCTION_SUM;
    if (when == EG_COMM_BEGIN) x->begun = true;
    if (by->parallel != EG_DATA_PARALLEL && op->collective != EG_ALL_REDUCE)
        return send_rows(x, op, when, stream);
    char *from = address_of(x->call, &op->left, rows.first);
    if (op->collective == EG_ALL_REDUCE) {
        const size_t count = (size_t)(op->items * rows.count * op->cols);
        return check(comm, comm->all_reduce(comm->user, from, count, by->sums, reduction, when, stream),
                     "an all-reduce");
    }
    const bool by_rows = op->summing == EG_OP_D_B && !by->d_b_by_columns;
    const int64_t lines = by_rows ? op->rows : op->cols, length = by_rows ? op->cols : op->rows;
    const size_t count = (size_t)(eg_shard_lines(by, lines) * length);
    return check(comm,
                 comm->reduce_scatter(comm->user, from, address_of(x->call, &op->out, 0), count, by->sums,
                                      reduction, when, stream),
                 "a reduce-scatter");
}

static eg_row_range all_rows(const eg_op *op) { return (eg_row_range){0, op->rows}; }

/* An engine may have no timeout for what is done at once: so that begins when every rank has come so far. */
static eg_status meet(eg_collectives *x, const char *what) {
    if (x->words == NULL) return EG_OK;
    EG_TRY(begin_agreement(x->comm, x->words));
    return wait_for_all(x->comm, what);
}

static eg_status send_now(eg_collectives *x, const eg_op *op, void *stream, const char *what) {
    EG_TRY(send(x, op, all_rows(op), EG_COMM_NOW, stream));
    return x->words != NULL ? wait_for_all(x->comm, what) : EG_OK;
}

/* Products, then collectives. */
static eg_status send_all(eg_collectives *x, void *stream) {
    const eg_op_list *list = &x->program->list;
    EG_TRY(meet(x, "the reduction of gradients"));
    for (int i = 0; i < list->ops; i++) {
        const eg_op *op = &list->op[i];
        if (op->kind != EG_COLLECTIVE || op->collective == EG_FINISH) continue;
        EG_TRY(send_now(x, op, stream, "the reduction of gradients"));
    }
    return EG_OK;
}

static eg_status finish(eg_collectives *x, void *stream) {
    EG_TRY(eg_collectives_agree(x));
    if (!x->overlaps) EG_TRY(send_all(x, stream));
    if (x->overlaps && x->words != NULL) EG_TRY(wait_for_all(x->comm, "the reduction of gradients"));
    x->begun = false;
    return EG_OK;
}

/* Of a tensor-parallel call. The agreement was the meeting for what comes first. */
static eg_status step_tensors(eg_collectives *x, const eg_step *step, void *stream) {
    const eg_op *op = &x->program->list.op[step->op];
    if (op->collective == EG_FINISH) {
        if (x->overlaps && x->words != NULL) EG_TRY(wait_for_all(x->comm, "the exchange of rows"));
        x->begun = false;
        return EG_OK;
    }
    if (x->at++ < x->sent) return EG_OK;
    x->sent = x->at;
    if (x->overlaps) return send(x, op, all_rows(op), EG_COMM_BEGIN, stream);
    if (step->op > 0) EG_TRY(meet(x, "the exchange of rows"));
    return send_now(x, op, stream, "the exchange of rows");
}

eg_status eg_collectives_begin_again(eg_collectives *x) {
    if (x->program->list.exchange.parallel == EG_DATA_PARALLEL) return EG_OK;
    EG_TRY(x->status);
    if (x->words != NULL && x->begun) EG_TRY(wait_for_all(x->comm, "the exchange of rows"));
    x->at = 0;
    return EG_OK;
}

/* A program that would not overlap does not wait here: no other rank's word could make it. */
eg_status eg_collectives_step(eg_collectives *x, const eg_program *program, const eg_step *step,
                              void *stream) {
    const eg_op *op = &program->list.op[step->op];
    EG_TRY(x->status);
    x->program = program;
    if (program->list.exchange.parallel != EG_DATA_PARALLEL) return step_tensors(x, step, stream);
    if (op->collective == EG_FINISH) return finish(x, stream);
    if (x->words != NULL && x->words[SAYS_OVERLAP] == 0) return EG_OK;
    EG_TRY(eg_collectives_agree(x));
    if (!x->overlaps) return EG_OK;
    return send(x, op, step->rows.count > 0 ? step->rows : all_rows(op), EG_COMM_BEGIN, stream);
}

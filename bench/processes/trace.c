/* SPDX-License-Identifier: Apache-2.0 */
/* When the steps and the collectives of a call over processes run, under mpirun:
 *
 *     trace CALL MxKxN FILE [THREADS [RUNS [RATE]]]
 *
 * CALL: data, a data-parallel backward call, M the rows of each process; or columns-forward,
 * columns-backward, rows-forward, rows-backward, tensor-parallel ones, M all rows, K and N those of the
 * process. Of f32, without activation.
 *
 * Calls in plain order and overlapped take turns, RUNS of each (20). RATE: MB/s of a slower network, which
 * takes no processor: numbers come when it would have brought them. FILE gets the fastest of each, by its
 * slowest rank, as a trace for chrome://tracing and Perfetto; tools/plot_trace.py says how much was hidden.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "epigrad/mpi.h"
#include "recorder.h"

enum { ORDERS = 2, MOST = 512 };
static const char *const order_names[ORDERS] = {"plain", "overlapped"};
static const eg_comm_order orders[ORDERS] = {EG_COMM_ORDER_PLAIN, EG_COMM_ORDER_OVERLAPPED};

typedef struct traced_call {
    const char *name;
    bool tensors, backward;
    eg_split split;
} traced_call;

static const traced_call calls[] = {
    {"data", false, true, EG_SPLIT_COLUMNS},
    {"columns-forward", true, false, EG_SPLIT_COLUMNS},
    {"columns-backward", true, true, EG_SPLIT_COLUMNS},
    {"rows-forward", true, false, EG_SPLIT_ROWS},
    {"rows-backward", true, true, EG_SPLIT_ROWS},
};

typedef struct run {
    double time; /* of the slowest rank; 0: none yet */
    int count;
    moment moment[MOST];
} run;

static eg_comm comm, recording;

static _Noreturn void stop(const char *what, const char *why) {
    fprintf(stderr, "trace: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

static void must(eg_status status, const char *what) {
    if (status != EG_OK) stop(what, eg_last_error());
}

/* ---- The call --------------------------------------------------------------------------------------- */

typedef struct operands {
    eg_context *context;
    eg_layer layer;
    eg_matrix a, b, y, d_a, d_b; /* y: backward, its gradient */
} operands;

static eg_matrix numbers(int64_t rows, int64_t cols, int seed) {
    const size_t count = (size_t)(rows * cols);
    float *data = malloc(count * sizeof *data + 1);
    if (data == NULL) stop("operands", "no memory");
    for (size_t i = 0; i < count; i++) data[i] = (float)((i * 31 + (size_t)seed) % 17) * 0.125F;
    return eg_row_major(data);
}

/* Whole, where a process has some of the rows only: that is enough. */
static operands make_operands(int64_t m, int64_t k, int64_t n, int threads) {
    operands x = {.layer = eg_layer_of(m, k, n, EG_ACT_NONE),
                  .a = numbers(m, k, comm.rank),
                  .b = numbers(k, n, 1),
                  .y = numbers(m, n, 2),
                  .d_a = numbers(m, k, 3),
                  .d_b = numbers(k, n, 4)};
    const eg_open_info info = {.size = sizeof info, .threads = threads};
    must(eg_open(&info, &x.context), "eg_open");
    return x;
}

static void free_operands(operands *x) {
    eg_close(x->context);
    free(x->a.data), free(x->b.data), free(x->y.data), free(x->d_a.data), free(x->d_b.data);
}

static eg_status make_call(const traced_call *call, const operands *x) {
    const eg_tensor_parallel parts = {.comm = &recording, .split = call->split};
    if (!call->backward) {
        eg_forward_args args = eg_forward_of(x->a, x->b, eg_elements(NULL), x->y);
        args.tensor_parallel = parts;
        return eg_forward(x->context, &x->layer, &args);
    }
    eg_backward_args args = eg_backward_of(x->a, x->b, eg_elements(NULL), x->y);
    args.d_a = x->d_a, args.d_b = x->d_b;
    if (call->tensors) {
        args.tensor_parallel = parts;
    } else {
        args.data_parallel.comm = &recording;
    }
    return eg_backward(x->context, &x->layer, &args);
}

static void record(const traced_call *call, const operands *x, run *best) {
    double time, slowest = 0;
    int count, lost;
    MPI_Barrier(MPI_COMM_WORLD);
    recorder_begin(call->name);
    const eg_status status = make_call(call, x);
    recorder_end();
    must(status, call->name);
    const moment *recorded = recorder_moments(&count, &lost);
    if (lost > 0 || count > MOST) stop(call->name, "more steps than a trace has room for");
    time = recorded[0].end - recorded[0].begin;
    MPI_Allreduce(&time, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (best->time > 0 && slowest >= best->time) return;
    best->time = slowest, best->count = count;
    memcpy(best->moment, recorded, (size_t)count * sizeof *recorded);
}

/* ---- The file --------------------------------------------------------------------------------------- */

/* Ranks' clocks are not one: each rank's call begins at 0, which the barrier before it makes nearly true. */
static void put_run(FILE *file, const run *r, int process, int rank, const char *order) {
    const double begin = r->moment[0].begin;
    fprintf(
        file,
        "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": %d, \"args\": {\"name\": \"%s, rank %d\"}},\n",
        process, order, rank);
    for (int i = 0; i < r->count; i++) {
        static const char *const tracks[] = {"call", "step", "wait", "sent"};
        const moment *m = &r->moment[i];
        fprintf(
            file,
            "{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": %d, \"tid\": \"%s\", \"ts\": %.2f, "
            "\"dur\": %.2f, \"args\": {\"bytes\": %lld, \"engine_us\": %.2f, \"asks\": %lld}},\n",
            m->name, tracks[m->track], process, m->track == TRACK_SENT ? "sent" : "thread",
            1e6 * (m->begin - begin), 1e6 * (m->end - m->begin), m->bytes, 1e6 * m->engine, m->asks);
    }
}

/* Of all ranks, at rank 0. */
static void put_all(FILE *file, const run *mine, int order) {
    run *theirs = malloc(sizeof *theirs);
    if (theirs == NULL) stop("trace", "no memory");
    for (int rank = 0; rank < comm.ranks; rank++) {
        if (comm.rank == 0 && rank == 0) *theirs = *mine;
        if (comm.rank == 0 && rank > 0)
            MPI_Recv(theirs, (int)sizeof *theirs, MPI_BYTE, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (comm.rank == rank && rank > 0) MPI_Send(mine, (int)sizeof *mine, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        if (comm.rank == 0) put_run(file, theirs, order * comm.ranks + rank, rank, order_names[order]);
    }
    free(theirs);
}

static void write_file(const char *path, const run runs[ORDERS], const char *call, const char *shape,
                       double rate) {
    FILE *file = comm.rank == 0 ? fopen(path, "w") : NULL;
    if (comm.rank == 0 && file == NULL) stop(path, "cannot be written");
    if (file != NULL) fprintf(file, "{\"traceEvents\": [\n");
    for (int order = 0; order < ORDERS; order++) put_all(file, &runs[order], order);
    if (file == NULL) return;
    fprintf(file,
            "{\"name\": \"end\", \"ph\": \"M\", \"pid\": 0}],\n"
            "\"call\": \"%s\", \"shape\": \"%s\", \"ranks\": %d, \"rate\": %g}\n",
            call, shape, comm.ranks, rate);
    if (fclose(file) != 0) stop(path, "cannot be written");
}

/* The library divides rows into groups by what a collective costs: that of the slower network. */
static eg_comm wrap(double rate) {
    const double latency = 2, busy = 0.1; /* of a network adapter */
    eg_comm wrapped = recorder_wrap(&comm, rate);
    if (rate <= 0) return wrapped;
    wrapped.now = wrapped.begun = (eg_comm_cost){latency, rate};
    wrapped.busy = busy;
    return wrapped;
}

static const traced_call *find_call(const char *name) {
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (strcmp(calls[i].name, name) == 0) return &calls[i];
    }
    stop(name, "expected data, columns-forward, columns-backward, rows-forward or rows-backward");
}

int main(int argc, char **argv) {
    int64_t m, k, n;
    MPI_Init(&argc, &argv);
    if (argc < 4) stop("usage", "trace CALL MxKxN FILE [THREADS [RUNS [RATE]]]");
    const traced_call *call = find_call(argv[1]);
    if (sscanf(argv[2], "%" SCNd64 "x%" SCNd64 "x%" SCNd64, &m, &k, &n) != 3)
        stop(argv[2], "expected MxKxN, such as 512x1024x1024");
    const int threads = argc > 4 ? atoi(argv[4]) : 1, turns = argc > 5 ? atoi(argv[5]) : 20;
    const double rate = argc > 6 ? strtod(argv[6], NULL) : 0;
    must(eg_comm_mpi(MPI_COMM_WORLD, &comm), "eg_comm_mpi");
    recording = wrap(rate);
    operands x = make_operands(m, k, n, threads);
    run *runs = calloc(ORDERS, sizeof *runs);
    if (runs == NULL) stop("trace", "no memory");
    for (int i = 0; i < ORDERS * (turns + 1); i++) { /* the first of each is not counted */
        recording.order = orders[i % ORDERS];
        record(call, &x, &runs[i % ORDERS]);
        if (i < ORDERS) runs[i % ORDERS].time = 0;
    }
    write_file(argv[3], runs, argv[1], argv[2], rate);
    free(runs);
    free_operands(&x);
    eg_comm_mpi_free(&comm);
    MPI_Finalize();
    return 0;
}

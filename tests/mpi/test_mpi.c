/* SPDX-License-Identifier: Apache-2.0 */
/* Processes under mpirun: test_mpi MODE, of which
 *
 *     table [FIRST COUNT]   makes random calls, whose sums are exact, beside one process's; and faults, of
 *                           which all are told
 *
 *     late                  has rank 1 come when the others have given up
 *
 *     killed SEED           kills a rank at a random point: killed.sh
 *
 *     times, tensor_times   measure orders beside products and collectives by hand */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data_parallel.h"
#include "epigrad/mpi.h"
#include "short.h"
#include "tensor_parallel.h"

static eg_comm comm;

static void must(eg_status status, const char *what) {
    if (status == EG_OK) return;
    printf("FAILED: rank %d: %s: %s\n", comm.rank, what, eg_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ---- Results ------------------------------------------------------------------------------------ */

static int run_table(uint64_t first, uint64_t cases) {
    int wrong = 0, any = 0;
    char text[300];
    for (uint64_t i = first; i < first + cases && any == 0; i++) {
        const parallel_case c = parallel_case_of(i, comm.ranks);
        const tensor_case t = tensor_case_of(i, comm.ranks);
        if (!parallel_check(&c, &comm, text, sizeof text)) {
            wrong = 1;
            printf("FAILED: case %d, rank %d of %d: %s\n", (int)i, comm.rank, comm.ranks, text);
        }
        if (!tensor_check(&t, &comm, text, sizeof text)) {
            wrong = 1;
            printf("FAILED: tensor case %d, rank %d of %d: %s\n", (int)i, comm.rank, comm.ranks, text);
        }
        MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    if (any == 0 && comm.rank == 0) printf("%d calls of %d ranks: passed\n", (int)cases, comm.ranks);
    return any;
}

/* ---- One layer ---------------------------------------------------------------------------------- */

typedef struct layer_call {
    eg_context *context;
    eg_layer layer;
    eg_backward_args args;
    float *memory, *d_b;
} layer_call;

static layer_call make_call(int64_t m, int64_t k, int64_t n) {
    layer_call x = {.layer = eg_layer_of(m, k, n, EG_ACT_GELU)};
    const size_t count = (size_t)(2 * m * k + 2 * k * n + m * n);
    x.memory = malloc(count * sizeof *x.memory);
    if (x.memory == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
        abort();
    }
    for (size_t i = 0; i < count; i++)
        x.memory[i] = (float)((i * 2654435761U + (size_t)comm.rank) % 1000) * 1e-3F;
    float *a = x.memory, *b = a + m * k, *grad = b + k * n, *d_a = grad + m * n;
    x.d_b = d_a + m * k;
    const eg_open_info info = {.size = sizeof info, .threads = 1};
    must(eg_open(&info, &x.context), "eg_open");
    x.args = eg_backward_of(eg_row_major(a), eg_row_major(b), eg_elements(NULL), eg_row_major(grad));
    x.args.d_a = eg_row_major(d_a), x.args.d_b = eg_row_major(x.d_b);
    x.args.data_parallel.comm = &comm;
    return x;
}

static void free_call(layer_call *x) {
    eg_close(x->context);
    free(x->memory);
}

/* Every run of these processes gives the bits of the first, on every rank. */
static int check_bits(void) {
    const size_t count = 512 * 96;
    layer_call x = make_call(24, 512, 96);
    float *first = malloc(count * sizeof *first);
    int wrong = 0, any = 0;
    for (int i = 0; i < 10 && first != NULL; i++) {
        comm.order = i % 2 ? EG_COMM_ORDER_PLAIN : EG_COMM_ORDER_OVERLAPPED;
        must(eg_backward(x.context, &x.layer, &x.args), "eg_backward");
        if (i < 2) {
            memcpy(first, x.d_b, count * sizeof *first);
            MPI_Bcast(first, (int)count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        } else if (i % 2 == 1) {
            wrong |= memcmp((const void *)first, (const void *)x.d_b, count * sizeof *first) != 0;
        }
    }
    comm.order = EG_COMM_ORDER_ESTIMATED;
    MPI_Allreduce(&wrong, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (any) printf("FAILED: rank %d: other bits\n", comm.rank);
    free(first);
    free_call(&x);
    return any;
}

/* ---- Faults ------------------------------------------------------------------------------------- */

static int expect_failure(layer_call *x, eg_status expected, const char *text) {
    const eg_status status = eg_backward(x->context, &x->layer, &x->args);
    if (status == expected && strstr(eg_last_error(), text) != NULL) return 0;
    printf("FAILED: rank %d: %s (%s); expected %s with \"%s\"\n", comm.rank, eg_status_name(status),
           eg_last_error(), eg_status_name(expected), text);
    return 1;
}

static int check_faults(void) {
    const int last = comm.ranks - 1, here = comm.rank;
    char text[80];
    int wrong = 0;
    if (comm.ranks == 1) return 0;
    layer_call x = make_call(8, here == last ? 65 : 64, 16);
    snprintf(text, sizeof text, "rank %d has layer.k 65, and rank 0 64", last);
    wrong |= expect_failure(&x, EG_ERR_DEVICE, text);
    free_call(&x);
    x = make_call(8, 64, 16);
    if (here == last) x.args.d_b.ld = 1;
    snprintf(text, sizeof text, "rank %d could not make its call", last);
    wrong |= here == last ? expect_failure(&x, EG_ERR_ARGUMENT, "d_b.ld is 1")
                          : expect_failure(&x, EG_ERR_DEVICE, text);
    x.args.d_b.ld = 0; /* and all is well again */
    must(eg_backward(x.context, &x.layer, &x.args), "a call after failures");
    free_call(&x);
    return wrong;
}

/* Ends without MPI, of which nothing can be expected any more. */
static void run_late(void) {
    layer_call x = make_call(8, 64, 16);
    comm.timeout = 0.3;
    if (comm.rank == 1) sleep(1);
    if (expect_failure(&x, EG_ERR_DEVICE, "for the other ranks of") == 0 && comm.rank == 1)
        printf("late: every rank was told\n");
    fflush(stdout);
    sleep(comm.rank == 1 ? 0 : 3);
    _exit(0);
}

/* ---- Deaths ------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x ^= x >> 33, x *= 0xff51afd7ed558ccdU, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53U;
    return x ^ x >> 33;
}

static void *die(void *microseconds) {
    usleep((useconds_t)(uintptr_t)microseconds);
    raise(SIGKILL);
    return NULL;
}

/* A rank is killed while all make random calls: each of the others gets a status, soon, and is told who it
 * was. */
static void run_killed(uint64_t seed) {
    const int victim = (int)(mix(seed) % (uint64_t)comm.ranks);
    const useconds_t when = (useconds_t)(mix(seed + 1000) % 30000);
    const double slack = 5; /* more ranks than cores */
    char text[300] = "", name[40];
    pthread_t thread;
    double begin = 0;
    bool right = true;
    comm.timeout = 0.3;
    MPI_Barrier(MPI_COMM_WORLD);
    if (comm.rank == victim && pthread_create(&thread, NULL, die, (void *)(uintptr_t)when) != 0) abort();
    for (uint64_t i = 1000 * seed; right; i++) {
        const parallel_case c = parallel_case_of(i, comm.ranks);
        const tensor_case t = tensor_case_of(i, comm.ranks);
        begin = MPI_Wtime();
        right =
            i % 2 ? parallel_check(&c, &comm, text, sizeof text) : tensor_check(&t, &comm, text, sizeof text);
    }
    const double took = MPI_Wtime() - begin;
    snprintf(name, sizeof name, "no answer from rank %d", victim);
    const bool told = strncmp(text, "EG_ERR_DEVICE: ", 15) == 0 && took < comm.timeout + slack;
    printf("%s: rank %d, %.2f s after the call began%s: %s\n", told ? "told" : "FAILED", comm.rank, took,
           strstr(text, name) != NULL ? ", by name" : "", text);
    fflush(stdout);
    sleep(1); /* so that the others hear of this one */
    _exit(0);
}

/* ---- Times -------------------------------------------------------------------------------------- */

static double time_of(layer_call *x, bool by_hand) {
    const int64_t count = x->layer.k * x->layer.n;
    double least = 1e30, most;
    x->args.data_parallel.comm = by_hand ? NULL : &comm;
    for (int i = 0; i < 12; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        must(eg_backward(x->context, &x->layer, &x->args), "eg_backward");
        if (by_hand) MPI_Allreduce(MPI_IN_PLACE, x->d_b, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        const double time = MPI_Wtime() - begin;
        MPI_Allreduce(&time, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (most < least) least = most;
    }
    return 1e6 * least;
}

static void run_times(void) {
    static const int64_t sizes[][3] = {{64, 64, 64}, {256, 256, 256}, {256, 1024, 1024}, {1024, 1024, 1024}};
    if (comm.rank == 0)
        printf("%d ranks  at once %.3g us + bytes/%.4g  begun %.3g us + bytes/%.4g  busy %g\n"
               "     M    K    N   by hand us   estimated us     plain us   overlapped us\n",
               comm.ranks, comm.now.latency, comm.now.rate, comm.begun.latency, comm.begun.rate, comm.busy);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        layer_call x = make_call(sizes[i][0], sizes[i][1], sizes[i][2]);
        double times[4] = {time_of(&x, true)};
        for (int order = 0; order < 3; order++) {
            comm.order = (eg_comm_order)order;
            times[1 + order] = time_of(&x, false);
        }
        comm.order = EG_COMM_ORDER_ESTIMATED;
        if (comm.rank == 0)
            printf("%6d %4d %4d %12.1f %14.1f %12.1f %15.1f\n", (int)sizes[i][0], (int)sizes[i][1],
                   (int)sizes[i][2], times[0], times[1], times[2], times[3]);
        free_call(&x);
    }
}

/* ---- Times of tensor-parallel calls ------------------------------------------------------------- */

typedef struct part_call {
    eg_context *context;
    eg_layer layer;
    eg_split split;
    bool backward;
    float *mine, *whole, *b, *other, *d_b; /* a of this rank and of all; the other side likewise */
    float *other_mine;
} part_call;

static part_call make_part(eg_split split, bool backward, int64_t m, int64_t k, int64_t n) {
    part_call x = {.split = split, .backward = backward, .layer = eg_layer_of(m, k, n, EG_ACT_NONE)};
    float **const all[] = {&x.mine, &x.whole, &x.b, &x.other, &x.other_mine, &x.d_b};
    const int64_t counts[] = {m * k, m * k, k * n, m * n, m * n, k * n};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i] = malloc((size_t)counts[i] * sizeof(float));
        if (*all[i] == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
        for (int64_t j = 0; *all[i] != NULL && j < counts[i]; j++) (*all[i])[j] = (float)(j % 17) * 0.125F;
    }
    const eg_open_info info = {.size = sizeof info, .threads = 1};
    must(eg_open(&info, &x.context), "eg_open");
    return x;
}

static void free_part(part_call *x) {
    eg_close(x->context);
    free(x->mine), free(x->whole), free(x->b), free(x->other), free(x->other_mine), free(x->d_b);
}

static void gather_by_hand(float *mine, float *whole, int64_t count) {
    MPI_Allgather(mine, (int)(count / comm.ranks), MPI_FLOAT, whole, (int)(count / comm.ranks), MPI_FLOAT,
                  MPI_COMM_WORLD);
}

static void scatter_by_hand(float *whole, float *mine, int64_t count) {
    MPI_Reduce_scatter_block(whole, mine, (int)(count / comm.ranks), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* Forward: a is gathered or y is summed. Backward: a is gathered and d_a summed, or grad gathered. */
static void make_part_call(const part_call *x, bool by_hand) {
    const bool by_rows = x->split == EG_SPLIT_ROWS;
    const int64_t of_a = x->layer.m * x->layer.k, of_y = x->layer.m * x->layer.n;
    float *a = by_hand && !by_rows ? x->whole
               : by_rows           ? x->whole
                                   : x->mine,
          *y = by_hand || !by_rows ? x->other : x->other_mine;
    const eg_tensor_parallel how = {.comm = by_hand ? NULL : &comm, .split = x->split};
    if (by_hand && !by_rows) gather_by_hand(x->mine, x->whole, of_a);
    if (!x->backward) {
        eg_forward_args args =
            eg_forward_of(eg_row_major(a), eg_row_major(x->b), eg_elements(NULL), eg_row_major(y));
        args.tensor_parallel = how;
        must(eg_forward(x->context, &x->layer, &args), "eg_forward");
        if (by_hand && by_rows) scatter_by_hand(x->other, x->other_mine, of_y);
        return;
    }
    if (by_hand && by_rows) gather_by_hand(x->other_mine, x->other, of_y);
    float *d_a = by_rows ? x->mine : by_hand ? x->whole : x->mine; /* a is not needed after d_b */
    float *spare = malloc((size_t)of_a * sizeof *spare);
    if (spare == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    if (d_a == a) d_a = spare;
    eg_backward_args args =
        eg_backward_of(eg_row_major(a), eg_row_major(x->b), eg_elements(NULL), eg_row_major(y));
    args.d_a = eg_row_major(d_a), args.d_b = eg_row_major(x->d_b);
    args.tensor_parallel = how;
    must(eg_backward(x->context, &x->layer, &args), "eg_backward");
    if (by_hand && !by_rows) scatter_by_hand(d_a, x->mine, of_a);
    free(spare);
}

/* All ways in turns, so that what else runs here slows all of them alike. */
static void time_parts(const part_call *x, double least[4]) {
    enum { TURNS = 15 };
    for (int way = 0; way < 4; way++) least[way] = 1e30;
    for (int i = 0; i < 4 * TURNS; i++) {
        double most;
        comm.order = i % 4 > 0 ? (eg_comm_order)(i % 4 - 1) : EG_COMM_ORDER_ESTIMATED;
        MPI_Barrier(MPI_COMM_WORLD);
        const double begin = MPI_Wtime();
        make_part_call(x, i % 4 == 0);
        const double time = 1e6 * (MPI_Wtime() - begin);
        MPI_Allreduce(&time, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (most < least[i % 4]) least[i % 4] = most;
    }
    comm.order = EG_COMM_ORDER_ESTIMATED;
}

static void run_tensor_times(void) {
    static const int64_t sizes[][3] = {
        {64, 64, 64}, {256, 256, 256}, {512, 512, 512}, {256, 1024, 1024}, {1024, 1024, 1024}};
    if (comm.rank == 0)
        printf("split     call           M    K    N   by hand us   estimated us     plain us   overlapped "
               "us\n");
    for (int call = 0; call < 4; call++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            part_call x = make_part(call % 2 ? EG_SPLIT_ROWS : EG_SPLIT_COLUMNS, call > 1, sizes[i][0],
                                    sizes[i][1], sizes[i][2]);
            double times[4];
            time_parts(&x, times);
            if (comm.rank == 0)
                printf("%-9s %-8s %7d %4d %4d %12.1f %14.1f %12.1f %15.1f\n", call % 2 ? "rows" : "columns",
                       call > 1 ? "backward" : "forward", (int)sizes[i][0], (int)sizes[i][1],
                       (int)sizes[i][2], times[0], times[1], times[2], times[3]);
            free_part(&x);
        }
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    const char *what = argc > 1 ? argv[1] : "table";
    must(eg_comm_mpi(MPI_COMM_WORLD, &comm), "eg_comm_mpi");
    comm.timeout = 60;
    int wrong = 0;
    if (strcmp(what, "late") == 0) run_late();
    if (strcmp(what, "killed") == 0) run_killed(argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
    if (strcmp(what, "times") == 0) run_times();
    if (strcmp(what, "tensor_times") == 0) run_tensor_times();
    if (strcmp(what, "table") == 0) {
        const uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
        wrong = run_table(first, argc > 3 ? strtoull(argv[3], NULL, 10) : short_run() ? 40 : 200);
        if (wrong == 0) wrong = check_bits();
        if (wrong == 0) wrong = check_faults();
    }
    eg_comm_mpi_free(&comm);
    MPI_Finalize();
    return wrong;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The same training over several processes: mpirun -n 4 digits_mpi [options of digits]. Each takes its part
 * of every batch, and the gradients are summed over all of them. Rank 0 then trains alone, on whole batches,
 * to show that the loss is the same. */
#include "data.h"
#include "../common/must.h"
#include "nccl.h"
#include "options.h"
#include "training.h"

#include <epigrad/mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEST = 360 };

typedef struct outcome {
    training_result training;
    double accuracy;
} outcome;

static outcome run(eg_context *context, const training_plan *plan, const digits *d, const char *title) {
    network net;
    int train_count = d->count - TEST, *order = must_alloc((size_t)d->count, sizeof *order);
    rng random = {plan->seed};
    for (int i = 0; i < d->count; i++) order[i] = i;
    rng_shuffle(&random, order, d->count);
    outcome o = {.training = train(&net, context, plan, d, order, train_count, title)};
    o.accuracy = (double)evaluate(&net, d, order + train_count, TEST, NULL) / TEST;
    network_close(&net);
    free(order);
    return o;
}

/* Of two losses; rounding grows over the steps, in the precision that the weights have. */
static double limit_of(eg_dtype dtype) {
    return dtype == EG_F64 ? 1e-9 : eg_dtype_size(dtype) == 4 ? 1e-3 : 0.05;
}

static int compare(const options *o, const outcome *together, const outcome *alone, int ranks) {
    double worst = 0, limit = limit_of(o->plan.dtype);
    for (int i = 0; i < alone->training.steps; i++) {
        double difference = fabs(together->training.loss[i] - alone->training.loss[i]);
        if (!(difference <= worst)) worst = difference; /* a NaN too */
    }
    int good = worst <= limit;
    printf("%d processes: test accuracy %.1f%%, %.2f s; alone: %.1f%%, %.2f s\n"
           "loss of %d steps: at most %.1e apart (limit %.0e)%s\n",
           ranks, 100 * together->accuracy, together->training.seconds, 100 * alone->accuracy,
           alone->training.seconds, alone->training.steps, worst, limit, good ? "" : ": WRONG");
    return good;
}

static double sum_over_processes(double x) {
    double sum = 0;
    MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

/* On CUDA numbers go by NCCL, and the device is there before. */
static void join(eg_backend backend, eg_comm *comm) {
    const char *why = NULL;
    if (backend == EG_BACKEND_CUDA) {
        why = nccl_open(MPI_COMM_WORLD, comm);
    } else if (eg_comm_mpi(MPI_COMM_WORLD, comm) != EG_OK) {
        why = "MPI made no communicator";
    }
    if (why == NULL) return;
    fprintf(stderr, "%s\n", why);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
}

static void leave(eg_backend backend, eg_comm *comm) {
    (backend == EG_BACKEND_CUDA ? eg_comm_nccl_free : eg_comm_mpi_free)(comm);
}

int main(int argc, char **argv) {
    eg_comm comm;
    int good = 1;
    MPI_Init(&argc, &argv);
    options o = options_parse(argc, argv);
    eg_open_info info = {.size = sizeof info, .backend = o.backend, .threads = o.threads};
    eg_context *context;
    if (o.backend == EG_BACKEND_CUDA) nccl_take_device(MPI_COMM_WORLD);
    must(eg_open(&info, &context));
    join(o.backend, &comm);
    if (comm.rank != 0 && !freopen("/dev/null", "w", stdout)) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    digits d = digits_load(o.data);

    training_plan plan = o.plan;
    plan.comm = &comm;
    plan.sum = sum_over_processes;
    outcome together = run(context, &plan, &d, "together");
    if (comm.rank == 0) {
        outcome alone = run(context, &o.plan, &d, "alone   ");
        good = compare(&o, &together, &alone, comm.ranks);
        free(alone.training.loss);
    }
    free(together.training.loss);
    eg_close(context);
    digits_free(&d);
    leave(o.backend, &comm);
    MPI_Finalize();
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

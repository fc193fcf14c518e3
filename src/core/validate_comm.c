/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator, and what a call is to sum over its processes. */
#include <stddef.h>

#include "error.h"
#include "validate.h"

static eg_status check_comm(const eg_comm *comm) {
    EG_TRY(eg_validate_struct("data_parallel.comm", comm, comm->size, sizeof *comm));
    if (comm->ranks < 1 || comm->rank < 0 || comm->rank >= comm->ranks) {
        return eg_fail(
            EG_ERR_ARGUMENT,
            "data_parallel.comm is of rank %d of %d ranks; expected 1 or more ranks, and one of them",
            comm->rank, comm->ranks);
    }
    const char *missing = comm->all_reduce == NULL       ? "all_reduce"
                          : comm->reduce_scatter == NULL ? "reduce_scatter"
                          : comm->all_gather == NULL     ? "all_gather"
                          : comm->failure == NULL        ? "failure"
                          : comm->abort == NULL          ? "abort"
                                                         : NULL;
    if (missing != NULL)
        return eg_fail(EG_ERR_ARGUMENT, "data_parallel.comm.%s is NULL; expected a callback", missing);
    EG_TRY(eg_validate_enum("data_parallel.comm.order", (int)comm->order, EG_COMM_ORDER_OVERLAPPED,
                            "an EG_COMM_ORDER_ value"));
    if (comm->timeout >= 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "data_parallel.comm.timeout is %g; expected seconds, or 0",
                   comm->timeout);
}

/* What is added up is f64 in f64; else f32, or the 16 bits of the layer. */
static eg_status take_sums(eg_dtype sums, eg_problem *problem) {
    const bool known = sums == EG_DTYPE_DEFAULT || sums == problem->compute || sums == problem->dtype;
    problem->exchange.sums = sums == EG_DTYPE_DEFAULT ? problem->compute : sums;
    if (known) return EG_OK;
    const bool narrow = problem->dtype != problem->compute;
    return eg_fail(EG_ERR_ARGUMENT, "data_parallel.sums is %s; expected %s%s%s", eg_dtype_name(sums),
                   eg_dtype_name(problem->compute), narrow ? " or the layer's, " : "",
                   narrow ? eg_dtype_name(problem->dtype) : "");
}

/* The operand is this rank's lines of the whole one. */
static void shorten_to_shard(const eg_problem *problem, eg_operand *x, bool by_columns) {
    const eg_exchange *by = &problem->exchange;
    int64_t *lines = by_columns ? &x->cols : &x->rows;
    const int64_t each = eg_shard_lines(by, *lines), before = each * by->rank;
    const int64_t left = *lines > before ? *lines - before : 0;
    *lines = left < each ? left : each;
}

eg_status eg_take_data_parallel(const eg_backward_args *args, eg_problem *problem) {
    const eg_data_parallel *given = &args->data_parallel;
    EG_TRY(eg_validate_enum("data_parallel.reduction", (int)given->reduction, EG_REDUCTION_MEAN,
                            "an EG_REDUCTION_ value"));
    EG_TRY(eg_validate_enum("data_parallel.sharding", (int)given->sharding, EG_SHARDING_LINES,
                            "an EG_SHARDING_ value"));
    if (given->comm == NULL) return EG_OK;
    EG_TRY(check_comm(given->comm));
    problem->exchange = (eg_exchange){.rank = given->comm->rank,
                                      .ranks = given->comm->ranks,
                                      .mean = given->reduction == EG_REDUCTION_MEAN,
                                      .sharded = given->sharding == EG_SHARDING_LINES,
                                      .d_b_by_columns = args->d_b.layout == EG_COL_MAJOR,
                                      .now = given->comm->now,
                                      .begun = given->comm->begun,
                                      .busy = given->comm->busy,
                                      .order = given->comm->order};
    EG_TRY(take_sums(given->sums, problem));
    if (given->comm->ranks > 1) problem->comm = given->comm;
    if (problem->gated || eg_wants(problem, EG_OP_BELOW_UP)) {
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "data_parallel.comm is given for a gated unit; expected one process "
                       "(sum d_b and d_b_up after the call)");
    }
    if (args->workspace_limit != 0) {
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "workspace_limit is %zu with data_parallel.comm; expected no limit",
                       args->workspace_limit);
    }
    if (!problem->exchange.sharded) return EG_OK;
    if (problem->batch != 1 && problem->operands[EG_OP_D_B].batch_stride != 0) {
        return eg_fail(
            EG_ERR_UNSUPPORTED,
            "d_b.batch_stride is %lld with EG_SHARDING_LINES; expected 0, a d_b summed over the batch",
            (long long)problem->operands[EG_OP_D_B].batch_stride);
    }
    shorten_to_shard(problem, &problem->operands[EG_OP_D_B], problem->exchange.d_b_by_columns);
    shorten_to_shard(problem, &problem->operands[EG_OP_D_BIAS], true);
    shorten_to_shard(problem, &problem->operands[EG_OP_D_BIAS_BELOW], true);
    return EG_OK;
}

const eg_comm *eg_comm_of(const eg_backward_args *args) {
    const eg_message message = eg_message_get();
    if (args == NULL || args->size < offsetof(eg_backward_args, b_up) || args->data_parallel.comm == NULL)
        return NULL;
    const bool usable = check_comm(args->data_parallel.comm) == EG_OK && args->data_parallel.comm->ranks > 1;
    eg_message_put(&message);
    return usable ? args->data_parallel.comm : NULL;
}

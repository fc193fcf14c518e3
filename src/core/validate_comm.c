/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator, and what a call is to sum over its processes. */
#include <stddef.h>
#include <stdio.h>

#include "error.h"
#include "validate.h"

/* `name`: data_parallel or tensor_parallel. */
static eg_status check_comm(const char *name, const eg_comm *comm) {
    char field[40];
    snprintf(field, sizeof field, "%s.comm", name);
    EG_TRY(eg_validate_struct(field, comm, comm->size, sizeof *comm));
    if (comm->ranks < 1 || comm->rank < 0 || comm->rank >= comm->ranks) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "%s is of rank %d of %d ranks; expected 1 or more ranks, and one of them", field,
                       comm->rank, comm->ranks);
    }
    const char *missing = comm->all_reduce == NULL       ? "all_reduce"
                          : comm->reduce_scatter == NULL ? "reduce_scatter"
                          : comm->all_gather == NULL     ? "all_gather"
                          : comm->failure == NULL        ? "failure"
                          : comm->abort == NULL          ? "abort"
                                                         : NULL;
    if (missing != NULL)
        return eg_fail(EG_ERR_ARGUMENT, "%s.%s is NULL; expected a callback", field, missing);
    snprintf(field, sizeof field, "%s.comm.order", name);
    EG_TRY(eg_validate_enum(field, (int)comm->order, EG_COMM_ORDER_OVERLAPPED, "an EG_COMM_ORDER_ value"));
    if (comm->timeout >= 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s.comm.timeout is %g; expected seconds, or 0", name, comm->timeout);
}

/* What is added up is f64 in f64; else f32, or the 16 bits of the layer. Without a comm there is no sum. */
static eg_status check_sums(const char *name, eg_dtype sums, const eg_comm *comm, const eg_problem *problem) {
    EG_TRY(eg_validate_enum(name, (int)sums, EG_BF16, "EG_DTYPE_DEFAULT, EG_F32, EG_F64, EG_F16 or EG_BF16"));
    if (comm == NULL || sums == EG_DTYPE_DEFAULT || sums == problem->compute || sums == problem->dtype)
        return EG_OK;
    const bool narrow = problem->dtype != problem->compute;
    return eg_fail(EG_ERR_ARGUMENT, "%s is %s; expected %s%s%s", name, eg_dtype_name(sums),
                   eg_dtype_name(problem->compute), narrow ? " or the layer's, " : "",
                   narrow ? eg_dtype_name(problem->dtype) : "");
}

static eg_dtype sums_of(eg_dtype sums, const eg_problem *problem) {
    return sums == EG_DTYPE_DEFAULT ? problem->compute : sums;
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
    EG_TRY(check_sums("data_parallel.sums", given->sums, given->comm, problem));
    if (given->comm == NULL) return EG_OK;
    if (eg_is_tensor_parallel(problem))
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "data_parallel.comm is given with tensor_parallel.comm; expected one of them (sum d_b "
                       "over the other processes after the call)");
    EG_TRY(check_comm("data_parallel", given->comm));
    problem->exchange = (eg_exchange){.rank = given->comm->rank,
                                      .ranks = given->comm->ranks,
                                      .streams = given->comm->progress == NULL,
                                      .mean = given->reduction == EG_REDUCTION_MEAN,
                                      .sharded = given->sharding == EG_SHARDING_LINES,
                                      .d_b_by_columns = args->d_b.layout == EG_COL_MAJOR,
                                      .sums = sums_of(given->sums, problem),
                                      .now = given->comm->now,
                                      .begun = given->comm->begun,
                                      .busy = given->comm->busy,
                                      .order = given->comm->order};
    if (given->comm->ranks > 1) problem->comm = given->comm;
    if (problem->grouped)
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "data_parallel.comm is given with layer.groups %lld; expected one process",
                       (long long)problem->batch);
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
    if (problem->batch != 1 && eg_has_items(&problem->operands[EG_OP_D_B])) {
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

/* ---- Tensor parallel ---------------------------------------------------------------------------- */

static eg_status check_gathered(const eg_tensor_parallel *given) {
    if (given->gathered.data == NULL) return EG_OK;
    if (given->comm == NULL || given->split != EG_SPLIT_COLUMNS)
        return eg_fail(EG_ERR_ARGUMENT,
                       "tensor_parallel.gathered is given %s; expected it with EG_SPLIT_COLUMNS and a comm",
                       given->comm == NULL ? "without tensor_parallel.comm" : "with EG_SPLIT_ROWS");
    return EG_OK;
}

eg_status eg_take_tensor_parallel(const eg_tensor_parallel *given, size_t limit, eg_problem *problem) {
    EG_TRY(eg_validate_enum("tensor_parallel.split", (int)given->split, EG_SPLIT_ROWS, "an EG_SPLIT_ value"));
    EG_TRY(check_sums("tensor_parallel.sums", given->sums, given->comm, problem));
    EG_TRY(check_gathered(given));
    if (given->comm == NULL) return EG_OK;
    EG_TRY(check_comm("tensor_parallel", given->comm));
    if (given->comm->ranks == 1 && given->gathered.data == NULL) return EG_OK;
    problem->exchange = (eg_exchange){.parallel = given->split == EG_SPLIT_ROWS ? EG_BY_ROWS : EG_BY_COLUMNS,
                                      .sums = sums_of(given->sums, problem),
                                      .rank = given->comm->rank,
                                      .ranks = given->comm->ranks,
                                      .streams = given->comm->progress == NULL,
                                      .now = given->comm->now,
                                      .begun = given->comm->begun,
                                      .busy = given->comm->busy,
                                      .order = given->comm->order};
    problem->comm = given->comm;
    if (problem->grouped)
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "tensor_parallel.comm is given with layer.groups %lld; expected one process",
                       (long long)problem->batch);
    if (problem->inner != problem->batch)
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "layer.outer_batch is %lld with tensor_parallel.comm; expected 1, all rows in m",
                       (long long)(problem->batch / problem->inner));
    if (problem->batch != 1)
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "layer.batch is %lld with tensor_parallel.comm; expected 1, all rows in m",
                       (long long)problem->batch);
    if (limit != 0)
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "workspace_limit is %zu with tensor_parallel.comm; expected no limit", limit);
    if (problem->m % given->comm->ranks == 0) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT,
                   "layer.m is %lld with tensor_parallel.comm; expected a multiple of its %d ranks",
                   (long long)problem->m, given->comm->ranks);
}

static eg_status check_by_columns(const eg_problem *problem) {
    const eg_operand *gathered = &problem->operands[EG_OP_GATHERED];
    if (eg_wants(problem, EG_OP_BELOW))
        return eg_fail(EG_ERR_UNSUPPORTED, "chain.saved is given with EG_SPLIT_COLUMNS; expected no chain");
    if (gathered->data == NULL || !eg_has_elements(gathered)) return EG_OK;
    if (gathered->col_stride == 1 && (gathered->rows == 1 || gathered->row_stride == gathered->cols))
        return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "tensor_parallel.gathered is not dense and row-major; expected ld %lld",
                   (long long)gathered->cols);
}

eg_status eg_check_tensor_parallel(const eg_problem *problem) {
    const bool acts = problem->activation != EG_ACT_NONE;
    if (problem->exchange.parallel == EG_BY_COLUMNS) return check_by_columns(problem);
    if (problem->exchange.parallel != EG_BY_ROWS) return EG_OK;
    if (problem->gated || eg_wants(problem, EG_OP_BELOW_UP))
        return eg_fail(EG_ERR_UNSUPPORTED,
                       "tensor_parallel.split is EG_SPLIT_ROWS for a gated unit; expected "
                       "EG_SPLIT_COLUMNS");
    if (!problem->backward || !acts || problem->source != EG_SOURCE_RECOMPUTE) return EG_OK;
    return eg_fail(
        EG_ERR_UNSUPPORTED,
        "source is EG_SOURCE_RECOMPUTE with EG_SPLIT_ROWS and activation %s; expected a saved pre or y",
        eg_activation_name(problem->activation));
}

/* ---- Calls that are wrong ----------------------------------------------------------------------- */

static const eg_comm *usable(const eg_comm *comm) {
    const eg_message message = eg_message_get();
    if (comm == NULL) return NULL;
    const bool is_usable = check_comm("", comm) == EG_OK && comm->ranks > 1;
    eg_message_put(&message);
    return is_usable ? comm : NULL;
}

const eg_comm *eg_comm_of_forward(const eg_forward_args *args) {
    const size_t end = offsetof(eg_forward_args, tensor_parallel) + sizeof args->tensor_parallel;
    return args != NULL && args->size >= end ? usable(args->tensor_parallel.comm) : NULL;
}

const eg_comm *eg_comm_of_backward(const eg_backward_args *args) {
    if (args == NULL || args->size < offsetof(eg_backward_args, b_up)) return NULL;
    const size_t end = offsetof(eg_backward_args, tensor_parallel) + sizeof args->tensor_parallel;
    if (args->data_parallel.comm != NULL || args->size < end) return usable(args->data_parallel.comm);
    return usable(args->tensor_parallel.comm);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How good the choice of kernel rows is, judged by recorded times of all rows: the regret of an operation is
 * how much longer the chosen row takes than the best one. Over a driver and a library that run nothing. */
#define _DEFAULT_SOURCE
#include "host.h"

enum { MOST_ROWS = 224, MOST_OPERATIONS = 16384, PLAN = 8192, LINE = 8192, WORST = 10 };

typedef struct judged {
    double regret;
    char text[224];
} judged;

typedef struct recording {
    int rows, operations, unjudged;
    const char *row[MOST_ROWS]; /* their names */
    judged operation[MOST_OPERATIONS];
} recording;

/* ---- Calls -------------------------------------------------------------------------------------- */

/* Addresses that nobody reads. */
static eg_matrix matrix(int place, int64_t rows, int64_t cols, bool col_major) {
    return (eg_matrix){.data = (void *)((uintptr_t)(place + 1) << 44),
                       .ld = col_major ? rows : cols,
                       .layout = col_major ? EG_COL_MAJOR : EG_ROW_MAJOR};
}

static eg_vector vector(int place) { return (eg_vector){.data = (void *)((uintptr_t)(place + 1) << 44)}; }

static const eg_workspace workspace = {.data = (void *)((uintptr_t)40 << 44), .bytes = (size_t)1 << 43};

static bool has(const char *operation, const char *part) { return strstr(operation, part) != NULL; }

static bool plan_forward(eg_context *context, const eg_layer *l, bool nk, bool pre, char *plan) {
    eg_forward_args args = {.size = sizeof args, .workspace = workspace, .bias = vector(3)};
    args.a = matrix(0, l->m, l->k, false), args.b = matrix(1, l->k, l->n, nk);
    args.y = matrix(2, l->m, l->n, false);
    if (pre) args.pre = matrix(4, l->m, l->n, false);
    return eg_forward_plan(context, l, &args, plan, PLAN) == EG_OK;
}

/* As bench/cuda/record.py makes them. */
static bool plan_backward(eg_context *context, const eg_layer *l, bool nk, const char *operation,
                          char *plan) {
    const bool whole = has(operation, "backward"), chain = has(operation, "chain"),
               recompute = has(operation, "recompute"), map = has(operation, "map");
    eg_backward_args args = {.size = sizeof args, .workspace = workspace};
    args.grad = matrix(0, l->m, l->n, false);
    if (has(operation, "d_a") || chain || whole) {
        args.b = matrix(1, l->k, l->n, nk), args.d_a = matrix(2, l->m, l->k, false);
    }
    if (chain)
        args.chain = (eg_chain){matrix(3, l->m, l->k, false), EG_SOURCE_PRE, EG_ACT_GELU, {.data = NULL}};
    if (has(operation, "d_b") || has(operation, "accumulate") || whole) {
        args.a = matrix(4, l->m, l->k, false);
        if (!has(operation, "d_bias")) args.d_b = matrix(5, l->k, l->n, nk);
        args.accumulate = has(operation, "accumulate");
        if (args.accumulate) args.d_b.dtype = l->dtype == EG_F64 ? EG_F64 : EG_F32;
    }
    if (map || whole) args.source = EG_SOURCE_PRE, args.pre = matrix(6, l->m, l->n, false);
    if (has(operation, "d_bias") || has(operation, "map+d_a") || whole) args.d_bias = vector(7);
    if (strcmp(operation, "map") == 0 || has(operation, "d_bias") || recompute)
        args.grad_pre = matrix(8, l->m, l->n, false);
    if (recompute) {
        args.a = matrix(4, l->m, l->k, false), args.b = matrix(1, l->k, l->n, nk);
        args.bias = vector(9);
    }
    return eg_backward_plan(context, l, &args, plan, PLAN) == EG_OK;
}

static eg_dtype dtype_of(const char *name) {
    for (int dtype = EG_F32; dtype <= EG_BF16; dtype++) {
        if (strcmp(name, eg_dtype_name((eg_dtype)dtype)) == 0) return (eg_dtype)dtype;
    }
    fail_msg("%s is no dtype", name);
    return EG_F32;
}

/* ---- Judging ------------------------------------------------------------------------------------ */

static bool runs(const char *plan, const char *row) {
    const size_t length = strlen(row);
    for (const char *at = plan; (at = strstr(at, row)) != NULL; at += length) {
        if (at[-1] == ' ' && strchr(" ,\n", at[length]) != NULL) return true;
    }
    return false;
}

/* Whether the plan makes an operation by a row. What is made in parts was recorded by the name of the
 * library, which has no epilogues. */
static bool is_by(const char *plan, const char *row) {
    const bool in_parts = has(plan, "product alone");
    return runs(plan, row) && (!in_parts || strncmp(row, "cublaslt_", 9) == 0);
}

/* The times of a line, and which of them is the plan's. For several operations not all rows are recorded. */
static void judge(recording *r, const char *operation, const char *line, const char *times,
                  const char *plan) {
    double best = 0, chosen = 0, time;
    int row, length, best_row = 0, chosen_row = 0;
    for (; sscanf(times, " %d:%lf%n", &row, &time, &length) == 2; times += length) {
        assert_in_range(row, 0, r->rows - 1);
        if (best == 0 || time < best) best = time, best_row = row;
        if (is_by(plan, r->row[row])) chosen = time, chosen_row = row;
    }
    if (strcmp(operation, "backward") == 0 || strcmp(operation, "map+d_a") == 0)
        return; /* several operations */
    if (has(plan, "product alone") && (strcmp(operation, "d_a") == 0 || strcmp(operation, "d_b") == 0))
        return;                                                         /* recorded as one kernel */
    if (has(plan, "product alone") && !has(plan, " cublaslt_")) return; /* not recorded in parts */
    r->unjudged += chosen == 0;
    if (chosen == 0) return; /* by a row that is newer than the recording */
    assert_in_range(r->operations, 0, MOST_OPERATIONS - 1);
    judged *x = &r->operation[r->operations++];
    x->regret = chosen / best - 1;
    snprintf(x->text, sizeof x->text, "%5.1f%%  %.*s: %s %.4g us, %s %.4g us", 100 * x->regret,
             (int)strcspn(line, ":") - 2, line, r->row[chosen_row], chosen, r->row[best_row], best);
}

static void judge_line(recording *r, eg_context *context, const char *line) {
    static char plan[PLAN];
    char dtype[8], weight[8], activation[16], operation[16];
    long long m, k, n;
    int length;
    assert_int_equal(sscanf(line, "%7s %lldx%lldx%lld %7s %15s %15s%n", dtype, &m, &k, &n, weight, activation,
                            operation, &length),
                     7);
    const bool plain = !has(operation, "map") && (has(operation, "bias") || has(operation, "d_") ||
                                                  has(operation, "chain") || has(operation, "accumulate"));
    const eg_layer layer = {.size = sizeof layer,
                            .m = m,
                            .k = k,
                            .n = n,
                            .batch = 1,
                            .dtype = dtype_of(dtype),
                            .activation = plain                             ? EG_ACT_NONE
                                          : strcmp(activation, "relu") == 0 ? EG_ACT_RELU
                                                                            : EG_ACT_GELU};
    const bool nk = strcmp(weight, "nk") == 0;
    const bool bias = strcmp(operation, "bias") == 0;
    const bool planned = operation[0] == 'y' || bias
                             ? plan_forward(context, &layer, nk, has(operation, "+pre"), plan)
                             : plan_backward(context, &layer, nk, operation, plan);
    if (!planned) fail_msg("%s%s", line, eg_last_error());
    char *refused = strstr(plan, "where a number or the library refuses");
    if (refused != NULL) *refused = '\0';
    judge(r, operation, line, line + length, plan);
}

static void read_rows(recording *r, const char *line) {
    static char names[LINE];
    snprintf(names, sizeof names, "%s", line);
    for (char *name = strtok(names, " \n"); name != NULL; name = strtok(NULL, " \n")) {
        assert_in_range(r->rows, 0, MOST_ROWS - 1);
        r->row[r->rows++] = name;
    }
}

static int by_regret(const void *a, const void *b) {
    const double x = ((const judged *)a)->regret, y = ((const judged *)b)->regret;
    return (x < y) - (x > y);
}

static int count_above(const recording *r, double regret) {
    int count = 0;
    while (count < r->operations && r->operation[count].regret > regret) count++;
    return count;
}

static void the_chosen_rows_are_nearly_the_best(void **state) {
    static recording r;
    static char line[LINE];
    const char rows[] = "# rows: ";
    double sum = 0;
    (void)state;
    session s;
    open_session(&s);
    FILE *file = fopen(RECORDING, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, rows, sizeof rows - 1) == 0) read_rows(&r, line + sizeof rows - 1);
        if (line[0] != '#') judge_line(&r, s.context, line);
    }
    fclose(file);
    close_session(&s);
    assert_true(r.operations > 1000);
    qsort(r.operation, (size_t)r.operations, sizeof r.operation[0], by_regret);
    for (int i = 0; i < r.operations; i++) sum += r.operation[i].regret;
    const int above_2 = count_above(&r, 0.02), above_5 = count_above(&r, 0.05),
              above_15 = count_above(&r, 0.15);
    printf("%d operations, %d by rows that are not recorded: mean regret %.2f%%; above 2%%: %d, 5%%: %d, "
           "15%%: %d. The worst:\n",
           r.operations, r.unjudged, 100 * sum / r.operations, above_2, above_5, above_15);
    for (int i = 0; i < WORST; i++) printf("%s\n", r.operation[i].text);
    assert_true(sum <= 0.0125 * r.operations);
    assert_true(100 * above_2 <= 14 * r.operations);
    assert_true(100 * above_5 <= 8 * r.operations);
    assert_true(100 * above_15 <= 2 * r.operations);
    assert_true(r.unjudged < 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_chosen_rows_are_nearly_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

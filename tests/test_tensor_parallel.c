/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor-parallel calls of ranks that are threads: results, orders, panels and faults. */
#include "comm_threads.h"
#include "fixture.h"
#include "tensor_parallel.h"

typedef struct table {
    tensor_case c;
    atomic_int wrong;
    char text[8][300];
} table;

static void check_rank(void *arg, const eg_comm *comm) {
    table *t = arg;
    if (!tensor_check(&t->c, comm, t->text[comm->rank], sizeof t->text[0])) t->wrong++;
}

static void parts_are_those_of_the_whole_layer(void **state) {
    (void)state;
    const uint64_t cases = short_run() ? 200 : 2000;
    for (uint64_t i = 0; i < cases; i++) {
        const int ranks = 1 + (int)(i % 5);
        table t = {.c = tensor_case_of(i, ranks)};
        /* Costs by which rows go in panels, or not. */
        team *team = team_make(ranks, i % 3 == 0 ? 0.01 : 100, i % 2 == 0 ? 20 : 1e5);
        team_run(team, check_rank, &t);
        team_free(team);
        for (int rank = 0; rank < ranks && t.wrong > 0; rank++)
            print_message("case %d, rank %d of %d: %s\n", (int)i, rank, ranks, t.text[rank]);
        assert_int_equal(t.wrong, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_those_of_the_whole_layer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

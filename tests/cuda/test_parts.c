/* How the last tiles of a product are cut (parts.c), for many products: as kernels/hopper_cut.cuh walks it,
 * every strip of a cut tile is multiplied once, and no two pieces lie in one place; and which products are
 * the library's. Pure: runs anywhere. */
#include "cuda/device.h"
#include "support.h"
#include "validate.h"

enum { MOST_STRIPS = 400 };

static const int devices[] = {132, 114, 78}; /* multiprocessors; clusters are of two */

static const eg_cuda_kernel *row_named(const char *name) {
    const eg_cuda_kernel *row;
    for (int i = 0; (row = eg_cuda_kernel_row(i)) != NULL; i++)
        if (strcmp(row->name, name) == 0) return row;
    fail_msg("no row %s", name);
    return NULL;
}

static eg_cuda_cut cut_of(int multiprocessors, int64_t tiles, int64_t strips, bool always, double *saved) {
    const eg_cuda_kernel *row = row_named("hopper_bf16_cut_rc_128x256");
    const eg_cuda_gemm x = {.rows = tiles * 256, .cols = 256, .depth = strips * 64, .items = 1, .summed = 1};
    return eg_cuda_cut_of(multiprocessors, row, &x, always, saved);
}

/* The line of what the owners leave, strip by strip; helper h has those from ceil(h * line / helpers) on. */
static void walk_the_line(const eg_cuda_cut *cut, int strips, int clusters) {
    const int rest = strips - cut->kept, line = cut->tiles * rest;
    int last_piece = -1, last_tile = -1, last_helper = -1;
    for (int at = 0; at < line; at++) {
        const int tile = at / rest, helper = (int)((int64_t)at * cut->helpers / line);
        const int begin = (int)(((int64_t)helper * line + cut->helpers - 1) / cut->helpers);
        const int end = (int)((((int64_t)helper + 1) * line + cut->helpers - 1) / cut->helpers);
        const int first = tile + tile * cut->helpers / cut->tiles;
        const int last = tile + (int)(((int64_t)(tile + 1) * rest - 1) * cut->helpers / line);
        const int piece = tile + helper;
        assert_in_range(at, begin, end - 1);
        assert_in_range(piece, first, last);
        if (tile != last_tile || helper != last_helper) assert_true(piece > last_piece);
        last_piece = piece, last_tile = tile, last_helper = helper;
    }
    assert_true(last_piece < clusters);
}

static void check_pieces(int multiprocessors, int tiles, int strips) {
    const int clusters = multiprocessors / 2;
    double saved;
    const eg_cuda_cut cut = cut_of(multiprocessors, tiles, strips, true, &saved);
    assert_int_equal(cut.tiles, strips > 1 ? tiles % clusters : 0);
    if (cut.tiles == 0) return;
    assert_in_range(cut.kept, 1, strips - 1);
    assert_in_range(cut.helpers, 1, clusters - cut.tiles);
    walk_the_line(&cut, strips, clusters);
}

static void pieces_are_apart_and_complete(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(devices); i++)
        for (int tiles = 1; tiles <= devices[i]; tiles++)
            for (int strips = 1; strips <= MOST_STRIPS; strips += 1 + strips / 8)
                check_pieces(devices[i], tiles, strips);
}

/* Never more than the idle part of a wave, and nothing is cut for less than a hundredth of the product. */
static void a_cut_pays(void **state) {
    int cuts = 0;
    (void)state;
    for (int tiles = 1; tiles <= 30 * devices[0] / 2; tiles++) {
        for (int strips = 8; strips <= MOST_STRIPS; strips *= 2) {
            double saved;
            const eg_cuda_cut cut = cut_of(devices[0], tiles, strips, false, &saved);
            const int clusters = devices[0] / 2, waves = tiles / clusters + 1;
            const double idle = 1 - (double)(tiles % clusters) / clusters;
            assert_true(cut.tiles > 0 ? saved >= 0.01 * waves && saved < idle : saved == 0);
            cuts += cut.tiles > 0;
        }
    }
    assert_true(cuts > 0);
}

/* Who makes d_a of a bf16 layer on an H200 that has the library. */
static const char *d_a_is_by(int64_t m, int64_t k, int64_t n) {
    static eg_plan plan;
    const eg_cuda_caps detail = {.multiprocessors = 132, .shared = 227 << 10};
    const eg_caps caps = {.backend = EG_BACKEND_CUDA,
                          .rounds_grad_pre = true,
                          .features = EG_CUDA_SM80 | EG_CUDA_SM90A | EG_CUDA_LT,
                          .detail = &detail};
    const eg_layer layer = {.size = sizeof layer,
                            .m = m,
                            .k = k,
                            .n = n,
                            .batch = 1,
                            .dtype = EG_BF16,
                            .activation = EG_ACT_GELU};
    const eg_matrix there = {.data = (void *)(uintptr_t)4096};
    const eg_backward_args args = {
        .size = sizeof args, .a = there, .b = there, .grad = there, .d_a = there, .d_b = there};
    eg_problem problem;
    assert_ok(eg_validate_backward(EG_PRESENCE, &layer, &args, &problem));
    assert_ok(eg_plan_make(&caps, &problem, &plan));
    for (int i = 0; i < plan.steps; i++)
        if (plan.step[i].kind == EG_STEP_GEMM && plan.step[i].product == EG_PRODUCT_D_A)
            return plan.step[i].name;
    return "nobody";
}

/* Tiles of 128 x 128 fill eight waves in all of these, but for the last, which has far more. */
static void the_library_has_what_fills_its_waves_and_is_not_deep(void **state) {
    (void)state;
    assert_string_equal(d_a_is_by(4096, 4096, 4096), "cublaslt_bf16");
    assert_string_equal(d_a_is_by(4096, 4096, 8128), "cublaslt_bf16");
    assert_non_null(strstr(d_a_is_by(4096, 4096, 8192), "hopper_bf16_"));
    assert_non_null(strstr(d_a_is_by(4096, 4096, 14336), "hopper_bf16_"));
    assert_non_null(strstr(d_a_is_by(8192, 8192, 4096), "hopper_bf16_"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_apart_and_complete), cmocka_unit_test(a_cut_pays),
        cmocka_unit_test(the_library_has_what_fills_its_waves_and_is_not_deep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The language model's operations for a GPU beside those for the CPU, with kernels that run on the CPU
 * (emulated_gpu.c): each at sizes that fill no block, warp or chunk; and in the model. */
#include "support.h"

#include "adamw.h"
#include "attention.h"
#include "embedding.h"
#include "experts.h"
#include "gradient_check.h"
#include "loss.h"
#include "norm.h"

#include "common/random.h"

#include <math.h>

enum { MOST = 1 << 19 };

static device cpu, gpu;
static real a[MOST], b[MOST], c[MOST], ours[MOST], theirs[MOST];
static unsigned char letter[MOST];
static rng source;

static void draw(real *x, int count) {
    assert_true(count <= MOST);
    for (int i = 0; i < count; i++) x[i] = (real)rng_normal(&source);
}

/* Of both results the same numbers, to be changed in place. */
static void draw_results(int count) {
    draw(ours, count);
    for (int i = 0; i < count; i++) theirs[i] = ours[i];
}

/* `terms` is the length of the sums, whose rounding grows with it. */
static void assert_same(int count, int terms) {
    const double rounding = sizeof(real) == 8 ? 0x1p-53 : 0x1p-24;
    double largest = 0;
    for (int i = 0; i < count; i++) largest = fmax(largest, fabs((double)ours[i]));
    assert_true(largest > 0);
    for (int i = 0; i < count; i++)
        assert_true(fabs((double)ours[i] - (double)theirs[i]) <= 4 * rounding * (2 + terms) * largest);
}

static void embeddings(void **state) {
    (void)state;
    const int rows = 1100, width = 300, letters = 5, count = letters * width;
    draw(a, count);
    for (int r = 0; r < rows; r++) letter[r] = (unsigned char)rng_below(&source, letters - 1);
    cpu.run->embed(a, letter, ours, rows, width);
    gpu.run->embed(a, letter, theirs, rows, width);
    assert_same(rows * width, 0);
    draw(b, rows * width);
    draw_results(count);
    cpu.run->embed_backward(b, letter, ours, rows, width, letters);
    gpu.run->embed_backward(b, letter, theirs, rows, width, letters);
    assert_same(count, rows);
}

static void norms(void **state) {
    (void)state;
    const int rows = 133, width = 300;
    real gain[2][300];
    draw(a, rows * width), draw(b, width), draw(c, rows * width);
    cpu.run->norm_forward(a, b, ours, rows, width);
    gpu.run->norm_forward(a, b, theirs, rows, width);
    assert_same(rows * width, width);
    draw_results(rows * width);
    cpu.run->norm_backward(a, b, c, ours, gain[0], rows, width);
    gpu.run->norm_backward(a, b, c, theirs, gain[1], rows, width);
    assert_same(rows * width, width);
    for (int i = 0; i < width; i++) ours[i] = gain[0][i], theirs[i] = gain[1][i];
    assert_same(width, rows);
}

static void attentions(void **state) {
    (void)state;
    const attention of = {.time = 45, .batch = 3, .heads = 2, .depth = 6};
    const int count = of.batch * of.heads * of.time * of.time,
              qkv = of.batch * of.time * 3 * of.heads * of.depth;
    draw_results(qkv);
    cpu.run->rotate(&of, ours, -1);
    gpu.run->rotate(&of, theirs, -1);
    assert_same(qkv, 0);
    draw_results(count);
    cpu.run->causal_softmax(&of, ours);
    gpu.run->causal_softmax(&of, theirs);
    assert_same(count, of.time);
    for (int i = 0; i < count; i++) a[i] = ours[i];
    draw_results(count);
    cpu.run->softmax_backward(&of, a, ours);
    gpu.run->softmax_backward(&of, a, theirs);
    assert_same(count, of.time);
}

static void expert_layers(void **state) {
    (void)state;
    enum { ROWS = 601, EXPERTS = 5, WIDTH = 37 };
    static int32_t order[2][ROWS], ends[2][EXPERTS];
    const routing on_cpu = {ROWS, EXPERTS, ours, order[0], ends[0]};
    const routing on_gpu = {ROWS, EXPERTS, theirs, order[1], ends[1]};
    const int count = ROWS * WIDTH;
    draw_results(ROWS * EXPERTS);
    for (int r = 0; r < ROWS; r++) ours[r * EXPERTS + 2] = theirs[r * EXPERTS + 2] = -9; /* has no rows */
    cpu.run->route(&on_cpu);
    gpu.run->route(&on_gpu);
    assert_memory_equal(order[0], order[1], sizeof order[0]);
    assert_memory_equal(ends[0], ends[1], sizeof ends[0]);
    assert_int_equal(ends[0][1], ends[0][2]);
    assert_same(ROWS * EXPERTS, 0);

    real *const p = ours + count, *const q = theirs + count; /* out of the results' way */
    for (int i = 0; i < ROWS * EXPERTS; i++) p[i] = q[i] = ours[i];
    const routing one = {ROWS, EXPERTS, p, order[0], ends[0]}, other = {ROWS, EXPERTS, q, order[0], ends[0]};
    draw(a, count), draw(b, count);
    cpu.run->sort_rows(&one, a, ours, WIDTH);
    gpu.run->sort_rows(&other, a, theirs, WIDTH);
    assert_same(count, 0);
    cpu.run->unsort_rows(&one, b, ours, WIDTH);
    gpu.run->unsort_rows(&other, b, theirs, WIDTH);
    assert_same(count, 0);
    cpu.run->add_results(&one, a, b, ours, WIDTH);
    gpu.run->add_results(&other, a, b, theirs, WIDTH);
    assert_same(count, 0);
    cpu.run->add_results_backward(&one, a, b, ours, WIDTH);
    gpu.run->add_results_backward(&other, a, b, theirs, WIDTH);
    assert_same(count, 0);
    for (int i = 0; i < ROWS * EXPERTS; i++) ours[i] = p[i], theirs[i] = q[i];
    assert_same(ROWS * EXPERTS, WIDTH);
}

static void losses(void **state) {
    (void)state;
    const int rows = 301, letters = 73, count = rows * letters;
    draw_results(count);
    for (int r = 0; r < rows; r++) letter[r] = (unsigned char)rng_below(&source, letters);
    for (int gradient = 0; gradient < 2; gradient++) {
        const double one = cpu.run->cross_entropy(ours, letter, rows, letters, gradient ? ours : NULL);
        const double other = gpu.run->cross_entropy(theirs, letter, rows, letters, gradient ? theirs : NULL);
        assert_true(fabs(one - other) <= 1e-6 * one);
        assert_same(count, letters);
    }
}

static void steps(void **state) {
    (void)state;
    const size_t count = 200001; /* more than all threads of the sum of squares */
    draw(a, (int)count);
    draw_results((int)count);
    adamw one = adamw_new(cpu, count, count / 2), other = adamw_new(gpu, count, count / 2);
    for (int i = 0; i < 2; i++) {
        adamw_step(&one, ours, a, 0.01);
        adamw_step(&other, theirs, a, 0.01);
    }
    assert_same((int)count, 8);
    adamw_free(&one);
    adamw_free(&other);
}

static void the_model(void **state) {
    (void)state;
    assert_true(compare_devices(cpu, gpu, 1, 0));
    assert_true(compare_devices(cpu, gpu, 1, 4));
}

static int open_both(void **state) {
    (void)state;
    cpu.run = &cpu_operations;
    assert_ok(eg_open(NULL, &cpu.context));
    assert_ok(eg_open(NULL, &gpu.context));
    gpu.run = cuda_open(gpu.context);
    return 0;
}

static int close_both(void **state) {
    (void)state;
    cuda_close();
    eg_close(gpu.context);
    eg_close(cpu.context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings),    cmocka_unit_test(norms),  cmocka_unit_test(attentions),
        cmocka_unit_test(expert_layers), cmocka_unit_test(losses), cmocka_unit_test(steps),
        cmocka_unit_test(the_model),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}

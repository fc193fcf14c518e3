/* SPDX-License-Identifier: Apache-2.0 */
/* layer.py in C; docs/tutorial/two-languages.md shows both, part by part, in narrow columns. */
// clang-format off
#include <epigrad/epigrad.h>
#include <stdio.h>

enum { M = 2, K = 3, N = 2 };

static int failed(void) { return fprintf(stderr, "%s\n", eg_last_error()), 1; }

static void print(const char *name, const float *numbers, int count) {
    printf("%-6s", name);
    for (int i = 0; i < count; i++) printf(" %.4f", numbers[i]);
    printf("\n");
}

int main(void) {
    float x[2][3] = {{1, 2, 3}, {4, 5, 6}};
    float w[2][3] = {{.1f, .3f, -.5f},
                     {-.2f, .4f, .6f}};
    float bias[2] = {1, -1};
    float grad[2][2] = {{1, 1}, {1, 1}};
    float y[2][2], pre[2][2], d_x[2][3], d_w[2][3], d_bias[2];

    eg_context *cpu;
    if (eg_open(NULL, &cpu) != EG_OK) return failed();

    eg_layer layer = eg_layer_of(M, K, N, EG_ACT_GELU);
    eg_forward_args forward = eg_forward_of(
        eg_row_major(x), eg_col_major(w),
        eg_elements(bias), eg_row_major(y));
    forward.pre = eg_row_major(pre);
    if (eg_forward(cpu, &layer, &forward) != EG_OK)
        return failed();

    eg_backward_args backward = eg_backward_of(
        eg_row_major(x), eg_col_major(w),
        eg_elements(bias), eg_row_major(grad));
    backward.source = EG_SOURCE_PRE;
    backward.pre = eg_row_major(pre);
    backward.d_a = eg_row_major(d_x);
    backward.d_b = eg_col_major(d_w);
    backward.d_bias = eg_elements(d_bias);
    if (eg_backward(cpu, &layer, &backward) != EG_OK)
        return failed();

    print("y", y[0], M * N);
    print("d_x", d_x[0], M * K);
    print("d_w", d_w[0], N * K);
    print("d_bias", d_bias, N);

    backward.accumulate = 1;
    backward.d_a.data = NULL; /* not this time */
    if (eg_backward(cpu, &layer, &backward) != EG_OK)
        return failed();
    print("twice", d_bias, N);

    layer.k = -1;
    if (eg_forward(cpu, &layer, &forward) != EG_OK)
        puts(eg_last_error());

    eg_close(cpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <epigrad/epigrad.h>
#include <stdio.h>

int main(void) {
    float a[2][3] = {{1, 2, 3}, {4, 5, 6}}, b[3][2] = {{.1f, -.2f}, {.3f, .4f}, {-.5f, .6f}};
    float bias[2] = {1, -1}, grad[2][2] = {{1, 1}, {1, 1}}; /* grad = dLoss/dy */
    float y[2][2], d_b[3][2];

    eg_layer layer = eg_layer_of(2, 3, 2, EG_ACT_GELU); /* m, k, n */
    eg_forward_args forward =
        eg_forward_of(eg_row_major(a), eg_row_major(b), eg_elements(bias), eg_row_major(y));
    eg_backward_args backward =
        eg_backward_of(eg_row_major(a), eg_row_major(b), eg_elements(bias), eg_row_major(grad));
    backward.d_b = eg_row_major(d_b); /* and d_a, d_bias, grad_pre: what is not asked for is not computed */

    eg_context *cpu;
    eg_status status = eg_open(NULL, &cpu);
    if (status == EG_OK) status = eg_forward(cpu, &layer, &forward); /* y = gelu(a·b + bias) */
    if (status == EG_OK) status = eg_backward(cpu, &layer, &backward);
    if (status != EG_OK) return fprintf(stderr, "%s\n", eg_last_error()), 1;

    for (int i = 0; i < 2; i++) printf("y[%d]   %8.4f %8.4f\n", i, y[i][0], y[i][1]);
    for (int i = 0; i < 3; i++) printf("d_b[%d] %8.4f %8.4f\n", i, d_b[i][0], d_b[i][1]);
    eg_close(cpu);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <epigrad/epigrad.h>

int main() {
    float a[2] = {1, 2}, b[2] = {3, 4}, y = 0;
    eg_context *cpu = nullptr;
    eg_layer layer = eg_layer_of(1, 2, 1, EG_ACT_NONE); // m, k, n
    eg_forward_args args =
        eg_forward_of(eg_row_major(a), eg_col_major(b), eg_elements(nullptr), eg_row_major(&y));
    if (eg_open(nullptr, &cpu) != EG_OK || eg_forward(cpu, &layer, &args) != EG_OK) return 2;
    return eg_close(cpu), y == 11 ? 0 : 1;
}

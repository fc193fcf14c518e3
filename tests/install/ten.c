/* SPDX-License-Identifier: Apache-2.0 */
#include <epigrad/epigrad.h>

int main(void) {
    float a[2] = {1, 2}, b[2] = {3, 4}, y = 0;
    eg_context *cpu;
    eg_layer layer = {.size = sizeof layer, .m = 1, .k = 2, .n = 1};
    eg_forward_args args = {.size = sizeof args, .a.data = a, .b.data = b, .y.data = &y};
    if (eg_open(0, &cpu) != EG_OK || eg_forward(cpu, &layer, &args) != EG_OK) return 2;
    return eg_close(cpu), y == 11 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
// The header in C++17: it compiles alone, its functions link as C, and its structs are plain data.
#include "epigrad/epigrad.h"

#include <cstdio>
#include <type_traits>

static_assert(std::is_standard_layout<eg_backward_args>::value && std::is_trivial<eg_backward_args>::value,
              "plain data");

int main() {
    const float a[2] = {1, 2}, b[2] = {3, 4};
    float y[1] = {0}, d_b[2] = {0, 0};
    eg_context *context = nullptr;
    if (eg_open(nullptr, &context) != EG_OK) return 1;
    eg_layer layer{};
    layer.size = sizeof layer;
    layer.m = 1;
    layer.k = 2;
    layer.n = 1;
    layer.batch = 1;
    layer.activation = EG_ACT_RELU;
    eg_forward_args args{};
    args.size = sizeof args;
    args.a = eg_const_row_major(a);
    args.b = eg_const_col_major(b);
    args.y = eg_row_major(y);
    eg_status status = eg_forward(context, &layer, &args);
    eg_backward_args backward = eg_backward_of(args.a, args.b, eg_const_elements(nullptr), args.y);
    backward.d_b = eg_col_major(d_b);
    if (status == EG_OK) status = eg_backward(context, &layer, &backward);
    std::printf("%s, y = %g\n", eg_status_name(status), static_cast<double>(y[0]));
    eg_close(context);
    return status == EG_OK && y[0] == 11 && d_b[0] == 11 && d_b[1] == 22 ? 0 : 1;
}

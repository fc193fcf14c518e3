/* SPDX-License-Identifier: Apache-2.0 */
/* Where every field of every public struct lies, on 64-bit systems: what programs compiled against an older
 * header count on. Fields are only ever appended, to the structs that begin with `size`; then a line is added
 * here and that struct's SIZE changes. Any other line changes with a new SOVERSION only. */
#include <assert.h>
#include <stddef.h>

#include "epigrad/epigrad.h"

#define SIZE(type, bytes)      static_assert(sizeof(type) == (bytes), "sizeof(" #type ")")
#define AT(type, field, bytes) static_assert(offsetof(type, field) == (bytes), #type "." #field)

static_assert(sizeof(void *) == 8, "the numbers are those of 64-bit systems");
static_assert(sizeof(eg_status) == 4 && sizeof(eg_dtype) == 4, "an enum is an int");

SIZE(eg_allocator, 24);
AT(eg_allocator, alloc, 0);
AT(eg_allocator, free, 8);
AT(eg_allocator, user, 16);

SIZE(eg_open_info, 96);
AT(eg_open_info, size, 0);
AT(eg_open_info, backend, 8);
AT(eg_open_info, device, 12);
AT(eg_open_info, threads, 16);
AT(eg_open_info, kernel, 24);
AT(eg_open_info, allocator, 32);
AT(eg_open_info, native_device, 56);
AT(eg_open_info, native_queue, 64);
AT(eg_open_info, parallel_for, 72);
AT(eg_open_info, parallel_user, 80);
AT(eg_open_info, tuning, 88);

SIZE(eg_layer, 80);
AT(eg_layer, size, 0);
AT(eg_layer, m, 8);
AT(eg_layer, k, 16);
AT(eg_layer, n, 24);
AT(eg_layer, batch, 32);
AT(eg_layer, dtype, 40);
AT(eg_layer, activation, 44);
AT(eg_layer, math, 48);
AT(eg_layer, nonfinite, 52);
AT(eg_layer, scale, 56);
AT(eg_layer, outer_batch, 64);
AT(eg_layer, groups, 72);

SIZE(eg_matrix, 40);
AT(eg_matrix, data, 0);
AT(eg_matrix, offset, 8);
AT(eg_matrix, ld, 16);
AT(eg_matrix, batch_stride, 24);
AT(eg_matrix, layout, 32);
AT(eg_matrix, dtype, 36);

SIZE(eg_vector, 24);
AT(eg_vector, data, 0);
AT(eg_vector, offset, 8);
AT(eg_vector, dtype, 16);

SIZE(eg_offsets, 16);
AT(eg_offsets, data, 0);
AT(eg_offsets, offset, 8);

SIZE(eg_workspace, 24);
AT(eg_workspace, data, 0);
AT(eg_workspace, offset, 8);
AT(eg_workspace, bytes, 16);

SIZE(eg_tensor_parallel, 56);
AT(eg_tensor_parallel, comm, 0);
AT(eg_tensor_parallel, split, 8);
AT(eg_tensor_parallel, sums, 12);
AT(eg_tensor_parallel, gathered, 16);

SIZE(eg_forward_outer, 56);
AT(eg_forward_outer, a, 0);
AT(eg_forward_outer, b, 8);
AT(eg_forward_outer, residual, 16);
AT(eg_forward_outer, y, 24);
AT(eg_forward_outer, pre, 32);
AT(eg_forward_outer, b_up, 40);
AT(eg_forward_outer, pre_up, 48);

SIZE(eg_forward_args, 512);
AT(eg_forward_args, size, 0);
AT(eg_forward_args, a, 8);
AT(eg_forward_args, b, 48);
AT(eg_forward_args, bias, 88);
AT(eg_forward_args, residual, 112);
AT(eg_forward_args, y, 152);
AT(eg_forward_args, pre, 192);
AT(eg_forward_args, packed_b, 232);
AT(eg_forward_args, workspace, 240);
AT(eg_forward_args, workspace_limit, 264);
AT(eg_forward_args, b_up, 272);
AT(eg_forward_args, bias_up, 312);
AT(eg_forward_args, pre_up, 336);
AT(eg_forward_args, packed_b_up, 376);
AT(eg_forward_args, tensor_parallel, 384);
AT(eg_forward_args, outer, 440);
AT(eg_forward_args, offsets, 496);

SIZE(eg_chain, 72);
AT(eg_chain, saved, 0);
AT(eg_chain, source, 40);
AT(eg_chain, activation, 44);
AT(eg_chain, d_bias, 48);

SIZE(eg_data_parallel, 24);
AT(eg_data_parallel, comm, 0);
AT(eg_data_parallel, reduction, 8);
AT(eg_data_parallel, sharding, 12);
AT(eg_data_parallel, sums, 16);

SIZE(eg_chain_up, 144);
AT(eg_chain_up, saved, 0);
AT(eg_chain_up, d_up, 40);
AT(eg_chain_up, y, 80);
AT(eg_chain_up, d_bias, 120);

SIZE(eg_backward_outer, 144);
AT(eg_backward_outer, a, 0);
AT(eg_backward_outer, b, 8);
AT(eg_backward_outer, grad, 16);
AT(eg_backward_outer, pre, 24);
AT(eg_backward_outer, y, 32);
AT(eg_backward_outer, d_a, 40);
AT(eg_backward_outer, d_b, 48);
AT(eg_backward_outer, grad_pre, 56);
AT(eg_backward_outer, chain_saved, 64);
AT(eg_backward_outer, b_up, 72);
AT(eg_backward_outer, pre_up, 80);
AT(eg_backward_outer, grad_up, 88);
AT(eg_backward_outer, d_b_up, 96);
AT(eg_backward_outer, grad_pre_up, 104);
AT(eg_backward_outer, chain_up_saved, 112);
AT(eg_backward_outer, chain_up_d_up, 120);
AT(eg_backward_outer, chain_up_y, 128);
AT(eg_backward_outer, residual, 136);

SIZE(eg_backward_args, 1192);
AT(eg_backward_args, size, 0);
AT(eg_backward_args, a, 8);
AT(eg_backward_args, b, 48);
AT(eg_backward_args, bias, 88);
AT(eg_backward_args, grad, 112);
AT(eg_backward_args, source, 152);
AT(eg_backward_args, pre, 160);
AT(eg_backward_args, y, 200);
AT(eg_backward_args, d_a, 240);
AT(eg_backward_args, d_b, 280);
AT(eg_backward_args, d_bias, 320);
AT(eg_backward_args, grad_pre, 344);
AT(eg_backward_args, accumulate, 384);
AT(eg_backward_args, chain, 392);
AT(eg_backward_args, packed_b, 464);
AT(eg_backward_args, workspace, 472);
AT(eg_backward_args, workspace_limit, 496);
AT(eg_backward_args, data_parallel, 504);
AT(eg_backward_args, b_up, 528);
AT(eg_backward_args, bias_up, 568);
AT(eg_backward_args, pre_up, 592);
AT(eg_backward_args, grad_up, 632);
AT(eg_backward_args, d_b_up, 672);
AT(eg_backward_args, d_bias_up, 712);
AT(eg_backward_args, grad_pre_up, 736);
AT(eg_backward_args, packed_b_up, 776);
AT(eg_backward_args, chain_up, 784);
AT(eg_backward_args, residual, 928);
AT(eg_backward_args, accumulate_into, 968);
AT(eg_backward_args, tensor_parallel, 976);
AT(eg_backward_args, outer, 1032);
AT(eg_backward_args, offsets, 1176);

SIZE(eg_device_info, 40);
AT(eg_device_info, size, 0);
AT(eg_device_info, backend, 8);
AT(eg_device_info, name, 16);
AT(eg_device_info, features, 24);
AT(eg_device_info, threads, 32);

SIZE(eg_kernel_info, 40);
AT(eg_kernel_info, size, 0);
AT(eg_kernel_info, name, 8);
AT(eg_kernel_info, compute, 16);
AT(eg_kernel_info, usable, 20);
AT(eg_kernel_info, needs, 24);
AT(eg_kernel_info, tile, 32);

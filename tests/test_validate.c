/* SPDX-License-Identifier: Apache-2.0 */
/* Every documented rule about the arguments of the operation, one row each: what is bent, and what the
 * message must name (the argument, its value, what was expected). A refused call has written nothing, and
 * the workspace and plan queries refuse it in the same words. */
#include <math.h>

#include "fixture.h"

typedef struct rule {
    const char *name;
    void (*bend)(fixture *f);
    const char *argument, *value, *expected;
} rule;

#define SHIFTED(pointer, bytes) ((void *)((char *)(pointer) + (bytes)))

/* The last place of all for a float. */
static void *last_address(void) {
    const uintptr_t address = UINTPTR_MAX - 3;
    void *pointer;
    memcpy(&pointer, &address, sizeof pointer);
    return pointer;
}

/* The same memory as two groups. */
static fixture *as_groups(fixture *f, void *offsets) {
    f->layer.batch = 0, f->layer.groups = 2;
    f->forward.offsets.data = f->backward.offsets.data = offsets;
    return f;
}

/* ---- The layer, in both calls ------------------------------------------------------------------- */

#define LAYER_RULES(X)                                                                                       \
    X(layer_size_0, f->layer.size = 0, "layer.size", "0", "expected sizeof the struct")                      \
    X(layer_size_past, f->layer.size = sizeof(eg_layer) + 4097, "layer.size is", "", "in this library")      \
    X(layer_size_most, f->layer.size = SIZE_MAX, "layer.size is", "18446744073709551615", "in this library") \
    X(layer_size_short, f->layer.size -= 1, "layer.size", "", "expected sizeof the struct")                  \
    X(m_negative, f->layer.m = -3, "layer.m", "-3", "expected 0")                                            \
    X(k_negative, f->layer.k = -1, "layer.k", "-1", "expected 0")                                            \
    X(n_negative, f->layer.n = INT64_MIN, "layer.n", "-9223372036854775808", "expected 0")                   \
    X(batch_negative, f->layer.batch = -2, "layer.batch", "-2", "expected 0")                                \
    X(dtype_negative, f->layer.dtype = (eg_dtype)-1, "layer.dtype", "-1", "EG_F32")                          \
    X(dtype_past, f->layer.dtype = (eg_dtype)5, "layer.dtype", "5", "EG_F32")                                \
    X(activation_past, f->layer.activation = (eg_activation)ACTIVATIONS, "layer.activation", "12",           \
      "EG_ACT_")                                                                                             \
    X(activation_wild, f->layer.activation = (eg_activation)-7, "layer.activation", "-7", "EG_ACT_")         \
    X(math_past, f->layer.math = (eg_math)3, "layer.math", "3", "EG_MATH_")                                  \
    X(nonfinite_past, f->layer.nonfinite = (eg_nonfinite)2, "layer.nonfinite", "2", "EG_NONFINITE_")         \
    X(scale_nan, f->layer.scale = NAN, "layer.scale", "nan", "expected a finite number")                     \
    X(scale_infinite, f->layer.scale = -INFINITY, "layer.scale", "-inf", "expected a finite number")         \
    X(scale_past_f32, f->layer.scale = 1e39, "layer.scale", "1e+39", "normal in f32")                        \
    X(scale_below_f32, f->layer.scale = 1e-40, "layer.scale", "1e-40", "normal in f32")                      \
    X(groups_negative, f->layer.groups = -1, "layer.groups", "-1", "expected 0 to 2^31 - 1")                 \
    X(groups_past, f->layer.groups = (int64_t)1 << 31, "layer.groups", "2147483648", "0 to 2^31 - 1")        \
    X(groups_of_a_batch, f->layer.groups = 3, "layer.batch is 2", "layer.groups 3", "expected 0 or 1")       \
    X(groups_of_levels, as_groups(f, f->memory)->layer.outer_batch = 3, "layer.outer_batch is 3",            \
      "layer.groups 2", "expected 0 or 1")                                                                   \
    X(groups_of_many_rows, as_groups(f, f->memory)->layer.m = (int64_t)1 << 31, "layer.m", "2147483648",     \
      "expected 0 to 2^31 - 1")                                                                              \
    X(groups_alone, as_groups(f, NULL), "offsets is absent", "NULL", "the ends of 2 groups")                 \
    X(groups_misaligned, as_groups(f, f->memory)->forward.offsets.offset = f->backward.offsets.offset = 2,   \
      "offsets at", "misaligned", "a multiple of 4 bytes")                                                   \
    X(offsets_past_memory,                                                                                   \
      as_groups(f, f->memory)->forward.offsets.offset = f->backward.offsets.offset = SIZE_MAX - 3,           \
      "offsets is too large", "1 x 2", "offset 18446744073709551612")                                        \
    X(offsets_alone, as_groups(f, f->memory)->layer.groups = 0, "offsets is given", "layer.groups 0",        \
      "expected groups, or none")

/* ---- Forward ------------------------------------------------------------------------------------ */

#define FORWARD_RULES(X)                                                                                     \
    X(f_args_size, f->forward.size = 8, "args.size", "8", "expected sizeof the struct")                      \
    X(f_args_size_most, f->forward.size = SIZE_MAX, "args.size", "18446744073709551615", "in this library")  \
    X(f_a_absent, f->forward.a.data = NULL, "a is absent", "NULL", "5 x 7")                                  \
    X(f_b_absent, f->forward.b.data = NULL, "b is absent", "NULL", "7 x 6")                                  \
    X(f_y_absent, f->forward.y.data = NULL, "y is absent", "NULL", "5 x 6")                                  \
    X(f_a_dtype, f->forward.a.dtype = EG_F64, "a.dtype", "f64", "expected the layer's, f32")                 \
    X(f_b_dtype_wild, f->forward.b.dtype = (eg_dtype)99, "b.dtype is", "99", "expected EG_DTYPE_DEFAULT")    \
    X(f_y_dtype_negative, f->forward.y.dtype = (eg_dtype)-1, "y.dtype is", "-1",                             \
      "expected EG_DTYPE_DEFAULT")                                                                           \
    X(f_bias_dtype, f->forward.bias.dtype = EG_F16, "bias.dtype", "f16", "expected the layer's, f32")        \
    X(f_y_dtype, f->forward.y.dtype = EG_BF16, "y.dtype", "bf16", "expected the layer's, f32")               \
    X(f_layout, f->forward.b.layout = (eg_layout)2, "b.layout", "2", "EG_ROW_MAJOR or EG_COL_MAJOR")         \
    X(f_a_ld, f->forward.a.ld = 6, "a.ld", "6", "expected at least 7, the number of its columns")            \
    X(f_b_ld_column, (f->forward.b.ld = 6, f->forward.b.layout = EG_COL_MAJOR), "b.ld", "6",                 \
      "expected at least 7, the number of its rows")                                                         \
    X(f_ld_negative, f->forward.y.ld = -6, "y.ld", "-6", "expected at least 6")                              \
    X(f_stride_negative, f->forward.a.batch_stride = -35, "a.batch_stride", "-35", "expected 0 or more")     \
    X(f_stride_minus_1, f->forward.b.batch_stride = -1, "b.batch_stride", "-1", "expected 0 or more")        \
    X(f_y_shared, f->forward.y.batch_stride = 0, "y.batch_stride", "0", "expected at least 30")              \
    X(f_y_stride_short, f->forward.y.batch_stride = 29, "y.batch_stride", "29", "expected at least 30")      \
    X(f_pre_shared, f->forward.pre.batch_stride = 0, "pre.batch_stride", "0", "expected at least 30")        \
    X(f_offset_odd, f->forward.a.offset = 2, "a", "2", "expected a multiple of 4")                           \
    X(f_bias_offset_odd, f->forward.bias.offset = 3, "bias", "3", "expected a multiple of 4")                \
    X(f_residual_and_gelu, f->forward.residual = f->below, "residual", "gelu", "expected EG_ACT_NONE")       \
    X(f_ld_overflow, f->forward.a.ld = INT64_MAX / 4, "a is too large", "5 x 7", "2^62")                     \
    X(f_bytes_overflow, f->forward.a.ld = INT64_MAX / 16, "a is too large", "5 x 7", "2^62")                 \
    X(f_stride_overflow, f->forward.b.batch_stride = INT64_MAX, "b is too large", "9223372036854775807",     \
      "2^62")                                                                                                \
    X(f_offset_overflow, f->forward.y.offset = SIZE_MAX - 3, "y is too large", "18446744073709551612",       \
      "2^62")                                                                                                \
    X(f_offset_past, f->forward.b.offset = (size_t)1 << 62, "b is too large", "4611686018427387904", "2^62") \
    X(f_offset_half, f->forward.a.offset = (size_t)1 << 63, "a is too large", "9223372036854775808", "2^62") \
    X(f_vector_offset_half, f->forward.bias.offset = (size_t)1 << 63, "bias is too large",                   \
      "9223372036854775808", "2^62")                                                                         \
    X(f_workspace_half, (f->forward.workspace = (eg_workspace){f->outputs, (size_t)1 << 63, 64}),            \
      "workspace is too large", "9223372036854775808", "2^62")                                               \
    X(f_workspace_wraps, (f->forward.workspace = (eg_workspace){f->outputs, 64, SIZE_MAX - 63}),             \
      "workspace is too large", "18446744073709551552", "2^62")                                              \
    X(f_sizes_overflow, (f->layer.m = INT64_MAX / 2, f->layer.k = INT64_MAX / 2), "layer.m",                 \
      "4611686018427387903", "expected 0 to 2^60")                                                           \
    X(f_limit, f->forward.workspace_limit = 3, "workspace_limit is", "3", "expected at least")

/* Column by column where y is, but for the strides. */
#define RESIDUAL(column, item)                                                                               \
    (f->layer.activation = EG_ACT_NONE, f->forward.y.layout = EG_COL_MAJOR,                                  \
     f->forward.residual = (eg_matrix){                                                                      \
         .data = f->forward.y.data, .ld = (column), .batch_stride = (item), .layout = EG_COL_MAJOR})

/* These have to do with addresses, which the queries do not look at. */
#define FORWARD_ADDRESS_RULES(X)                                                                             \
    X(f_data_odd, f->forward.y.data = SHIFTED(f->forward.y.data, 1), "y at", "0x",                           \
      "expected a multiple of 4")                                                                            \
    X(f_address_overflow, f->forward.a.data = last_address(), "a is too large", "", "2^62")                  \
    X(f_y_is_a, f->forward.y.data = f->forward.a.data, "y at", "overlaps a", "expected separate memory")     \
    X(f_y_is_a_says_what_may, f->forward.y.data = f->forward.a.data, "only y and residual",                  \
      "grad_pre and grad", "element for element")                                                            \
    X(f_y_is_bias, f->forward.y.data = f->forward.bias.data, "y at", "overlaps bias", "expected separate")   \
    X(f_y_into_b, f->forward.y.data = SHIFTED(f->forward.b.data, 4), "y at", "overlaps b",                   \
      "expected separate")                                                                                   \
    X(f_y_over_padded_residual,                                                                              \
      (f->layer.activation = EG_ACT_NONE, f->forward.residual = f->forward.y, f->forward.residual.ld = 7),   \
      "y at", "overlaps residual", "expected separate")                                                      \
    X(f_y_over_wider_residual, RESIDUAL(7, 30), "y at", "overlaps residual", "expected separate")            \
    X(f_y_over_longer_residual, RESIDUAL(5, 31), "y at", "overlaps residual", "expected separate")           \
    X(f_pre_is_y, f->forward.pre = f->forward.y, "pre at", "overlaps y", "expected separate memory")         \
    X(f_workspace_odd, (f->forward.workspace = (eg_workspace){f->outputs, 32, 1 << 20}), "workspace", "32",  \
      "expected a multiple of 64")                                                                           \
    X(f_workspace_overflow, (f->forward.workspace = (eg_workspace){f->memory, SIZE_MAX - 63, 1 << 20}),      \
      "workspace is too large", "18446744073709551552", "2^62")                                              \
    X(f_workspace_bytes_overflow, (f->forward.workspace = (eg_workspace){f->memory, 0, SIZE_MAX}),           \
      "workspace is too large", "18446744073709551615", "2^62")                                              \
    X(f_workspace_over_a, (f->forward.workspace = (eg_workspace){f->memory, 0, 1 << 20}), "workspace of",    \
      "overlaps a at", "expected separate memory")                                                           \
    X(f_workspace_over_y, (f->forward.workspace = (eg_workspace){f->below.data, 0, 1 << 20}),                \
      "workspace of", "overlaps y at", "expected separate memory")                                           \
    X(f_workspace_small, (f->forward.workspace = (eg_workspace){f->outputs, 0, 1}), "workspace.bytes", "1",  \
      "expected at least")

/* ---- Backward ----------------------------------------------------------------------------------- */

#define CHAIN(...) (f->backward.chain = (eg_chain){.saved = f->below, .d_bias = f->d_bias_below, __VA_ARGS__})

#define BACKWARD_RULES(X)                                                                                    \
    X(b_args_size, f->backward.size = 0, "args.size", "0", "expected sizeof the struct")                     \
    X(b_args_size_most, f->backward.size = SIZE_MAX, "args.size", "18446744073709551615", "in this library") \
    X(b_a_absent, f->backward.a.data = NULL, "a is absent", "NULL", "5 x 7")                                 \
    X(b_b_absent, f->backward.b.data = NULL, "b is absent", "NULL", "7 x 6")                                 \
    X(b_grad_absent, f->backward.grad.data = NULL, "grad is absent", "NULL", "5 x 6")                        \
    X(b_a_absent_for_d_b, (fixture_set_source(f, EG_SOURCE_PRE), f->backward.a.data = NULL), "a is absent",  \
      "NULL", "for d_b")                                                                                     \
    X(b_b_absent_for_d_a, (fixture_set_source(f, EG_SOURCE_PRE), f->backward.b.data = NULL), "b is absent",  \
      "NULL", "for d_a")                                                                                     \
    X(b_source_wild, f->backward.source = (eg_source)3, "source", "3", "EG_SOURCE_RECOMPUTE")                \
    X(b_source_negative, f->backward.source = (eg_source)-1, "source", "-1", "EG_SOURCE_RECOMPUTE")          \
    X(b_pre_absent, f->backward.source = EG_SOURCE_PRE, "pre is absent", "NULL", "5 x 6")                    \
    X(b_y_absent, (f->backward.source = EG_SOURCE_Y, f->layer.activation = EG_ACT_TANH), "y is absent",      \
      "NULL", "5 x 6")                                                                                       \
    X(b_y_of_gelu, fixture_set_source(f, EG_SOURCE_Y), "source", "gelu", "function of y")                    \
    X(b_pre_and_recompute, f->backward.pre = f->saved, "pre is given", "EG_SOURCE_RECOMPUTE",                \
      "expected source EG_SOURCE_PRE")                                                                       \
    X(b_y_and_recompute, f->backward.y = f->saved, "y is given", "EG_SOURCE_RECOMPUTE",                      \
      "expected source EG_SOURCE_Y")                                                                         \
    X(b_pre_of_a_linear_layer, (f->layer.activation = EG_ACT_NONE, f->backward.pre = f->saved),              \
      "pre is given", "EG_SOURCE_RECOMPUTE", "or no pre")                                                    \
    X(b_accumulate, f->backward.accumulate = 2, "accumulate", "2", "expected 0 or 1")                        \
    X(b_accumulate_negative, f->backward.accumulate = -1, "accumulate", "-1", "expected 0 or 1")             \
    X(b_into_wild, f->backward.accumulate_into = 128, "accumulate_into", "128", "expected EG_INTO_ bits")    \
    X(b_into_huge, f->backward.accumulate_into = UINT64_MAX, "accumulate_into", "18446744073709551615",      \
      "127 at most")                                                                                         \
    X(b_into_d_a_and_residual, (f->backward.accumulate_into = EG_INTO_D_A, f->backward.residual = f->below), \
      "residual is given", "EG_INTO_D_A (1)", "expected one of them")                                        \
    X(b_residual_without_d_a, (f->backward.residual = f->below, f->backward.d_a.data = NULL),                \
      "residual is given", "without d_a", "expected both")                                                   \
    X(b_residual_dtype, (f->backward.residual = f->below, f->backward.residual.dtype = EG_F64),              \
      "residual.dtype", "f64", "expected the layer's")                                                       \
    X(b_residual_ld, (f->backward.residual = f->below, f->backward.residual.ld = 6), "residual.ld", "6",     \
      "expected at least 7")                                                                                 \
    X(b_residual_of_a_sum, (f->backward.residual = f->below, f->backward.d_a.batch_stride = 0),              \
      "residual.batch_stride", "summed over the batch", "expected 0")                                        \
    X(c_into_d_a, (CHAIN(.source = EG_SOURCE_PRE), f->backward.accumulate_into = EG_INTO_D_A),               \
      "accumulate_into", "chain.saved", "expected d_a as residual")                                          \
    X(b_d_a_dtype, f->backward.d_a.dtype = EG_F16, "d_a.dtype", "f16", "expected the layer's, f32")          \
    X(b_d_b_dtype, f->backward.d_b.dtype = EG_F64, "d_b.dtype", "f64", "expected the layer's, f32")          \
    X(b_d_bias_dtype, f->backward.d_bias.dtype = EG_BF16, "d_bias.dtype", "bf16", "expected the layer's")    \
    X(b_grad_layout, f->backward.grad.layout = (eg_layout)-1, "grad.layout", "-1", "EG_ROW_MAJOR")           \
    X(b_d_a_ld, f->backward.d_a.ld = 1, "d_a.ld", "1", "expected at least 7")                                \
    X(b_d_b_stride, f->backward.d_b.batch_stride = 5, "d_b.batch_stride", "5", "expected at least 42")       \
    X(b_grad_pre_shared, f->backward.grad_pre.batch_stride = 0, "grad_pre.batch_stride", "0",                \
      "expected at least 30")                                                                                \
    X(b_d_bias_offset, f->backward.d_bias.offset = 1, "d_bias", "1", "expected a multiple of 4")             \
    X(b_d_a_overflow, f->backward.d_a.ld = INT64_MAX / 8, "d_a is too large", "5 x 7", "2^62")               \
    X(b_limit, f->backward.workspace_limit = 63, "workspace_limit is", "63", "expected at least")            \
    X(c_saved_without_d_a, (CHAIN(.source = EG_SOURCE_PRE), f->backward.d_a.data = NULL), "chain.saved",     \
      "without d_a", "expected both")                                                                        \
    X(c_d_bias_alone, (CHAIN(.source = EG_SOURCE_PRE), f->backward.chain.saved.data = NULL), "chain.d_bias", \
      "without chain.saved", "expected both")                                                                \
    X(c_source_recompute, CHAIN(.source = EG_SOURCE_RECOMPUTE), "chain.source", "0", "EG_SOURCE_PRE")        \
    X(c_source_wild, CHAIN(.source = (eg_source)8), "chain.source", "8", "EG_SOURCE_PRE")                    \
    X(c_activation_wild, CHAIN(.source = EG_SOURCE_PRE, .activation = (eg_activation)77),                    \
      "chain.activation", "77", "EG_ACT_")                                                                   \
    X(c_y_of_mish, CHAIN(.source = EG_SOURCE_Y, .activation = EG_ACT_MISH), "chain.source", "mish",          \
      "function of y")                                                                                       \
    X(c_d_a_summed, (CHAIN(.source = EG_SOURCE_PRE), f->backward.d_a.batch_stride = 0), "d_a.batch_stride",  \
      "0", "not summed")                                                                                     \
    X(c_saved_ld, (CHAIN(.source = EG_SOURCE_PRE), f->backward.chain.saved.ld = 3), "chain.saved.ld", "3",   \
      "expected at least 7")                                                                                 \
    X(c_d_bias_dtype, (CHAIN(.source = EG_SOURCE_PRE), f->backward.chain.d_bias.dtype = EG_F64),             \
      "chain.d_bias.dtype", "f64", "expected the layer's")

/* Of what a call does not use: there is no chain, and no communicator. */
#define UNUSED_BACKWARD_RULES(X)                                                                             \
    X(u_chain_source, f->backward.chain.source = (eg_source)3, "chain.source", "3", "EG_SOURCE_PRE")         \
    X(u_chain_activation, f->backward.chain.activation = (eg_activation)-1, "chain.activation", "-1",        \
      "EG_ACT_")                                                                                             \
    X(u_reduction, f->backward.data_parallel.reduction = (eg_reduction)2, "data_parallel.reduction", "2",    \
      "EG_REDUCTION_")                                                                                       \
    X(u_sharding, f->backward.data_parallel.sharding = (eg_sharding)2, "data_parallel.sharding", "2",        \
      "EG_SHARDING_")                                                                                        \
    X(u_data_sums, f->backward.data_parallel.sums = (eg_dtype)5, "data_parallel.sums", "5", "EG_F32")        \
    X(u_split, f->backward.tensor_parallel.split = (eg_split)2, "tensor_parallel.split", "2", "EG_SPLIT_")   \
    X(u_tensor_sums, f->backward.tensor_parallel.sums = (eg_dtype)-1, "tensor_parallel.sums", "-1", "EG_F32")

#define UNUSED_FORWARD_RULES(X)                                                                              \
    X(v_split, f->forward.tensor_parallel.split = (eg_split)-1, "tensor_parallel.split", "-1", "EG_SPLIT_")  \
    X(v_sums, f->forward.tensor_parallel.sums = (eg_dtype)5, "tensor_parallel.sums", "5", "EG_F32")

#define GATED_RULES(X)                                                                                       \
    X(g_b_up_absent, f->backward.b_up.data = NULL, "b_up is absent", "NULL", "to recompute pre_up")          \
    X(g_b_up_ld, f->backward.b_up.ld = 2, "b_up.ld", "2", "expected at least 6")                             \
    X(g_d_b_up_dtype, f->backward.d_b_up.dtype = EG_F64, "d_b_up.dtype", "f64", "expected the layer's")      \
    X(g_source_y, (fixture_set_source(f, EG_SOURCE_Y), f->layer.activation = EG_ACT_TANH), "source is",      \
      "EG_SOURCE_Y", "EG_SOURCE_PRE")                                                                        \
    X(g_pre_up_absent, fixture_set_source(f, EG_SOURCE_PRE), "pre_up is absent", "NULL", "as source says")   \
    X(g_pre_up_and_recompute, f->backward.pre_up = f->saved, "pre_up is given", "EG_SOURCE_RECOMPUTE",       \
      "expected source EG_SOURCE_PRE")                                                                       \
    X(g_grad_up_of_gelu, f->backward.grad_up = f->saved, "grad_up", "gelu", "expected EG_ACT_NONE")          \
    X(g_chain_up_alone, f->backward.chain_up.saved = f->below, "chain_up.saved", "without chain.saved",      \
      "expected both")                                                                                       \
    X(g_chain_up_y_alone, f->backward.chain_up.y = f->below, "chain_up.y", "without chain_up.saved",         \
      "expected both")                                                                                       \
    X(g_chain_up_without_d_up, (CHAIN(.source = EG_SOURCE_PRE), f->backward.chain_up.saved = f->below),      \
      "chain_up.d_up is absent", "NULL", "for chain_up")                                                     \
    X(g_chain_up_of_y,                                                                                       \
      (CHAIN(.source = EG_SOURCE_Y, .activation = EG_ACT_RELU), f->backward.chain_up.saved = f->below),      \
      "chain.source", "EG_SOURCE_Y", "expected EG_SOURCE_PRE")

#define GATED_FORWARD_RULES(X)                                                                               \
    X(h_bias_up_alone, f->forward.b_up.data = NULL, "b_up is absent", "NULL", "7 x 6")                       \
    X(h_pre_alone, f->forward.pre_up.data = NULL, "pre is given", "without pre_up", "both or neither")       \
    X(h_pre_up_alone, f->forward.pre.data = NULL, "pre_up is given", "without pre", "both or neither")       \
    X(h_residual, f->forward.residual = f->saved, "residual is given", "b_up", "expected none")

/* No rows: what is summed over them is written, as 0. */
#define EMPTY_RULES(X)                                                                                       \
    X(e_d_b_overflow, f->backward.d_b.ld = INT64_MAX / 8, "d_b is too large", "7 x 6", "2^62")               \
    X(e_d_bias_overflow, f->backward.d_bias.offset = SIZE_MAX - 3, "d_bias is too large", "1 x 6", "2^62")

#define EMPTY_ADDRESS_RULES(X)                                                                               \
    X(e_d_b_is_b, f->backward.d_b.data = f->backward.b.data, "d_b at", "overlaps b", "expected separate")    \
    X(e_d_bias_in_d_b, f->backward.d_bias.data = f->backward.d_b.data, "d_bias at", "overlaps d_b",          \
      "expected separate")

#define BACKWARD_ADDRESS_RULES(X)                                                                            \
    X(b_d_a_is_a, f->backward.d_a.data = f->backward.a.data, "d_a at", "overlaps a", "expected separate")    \
    X(b_d_b_is_b, f->backward.d_b.data = f->backward.b.data, "d_b at", "overlaps b", "expected separate")    \
    X(b_d_a_is_d_b, f->backward.d_a.data = f->backward.d_b.data, "overlaps", "0x", "expected separate")      \
    X(b_d_bias_in_grad, f->backward.d_bias.data = f->backward.grad.data, "d_bias at", "overlaps grad",       \
      "expected separate")                                                                                   \
    X(b_grad_pre_beside_grad, f->backward.grad_pre.data = SHIFTED(f->backward.grad.data, 4), "grad_pre at",  \
      "overlaps grad", "expected separate")                                                                  \
    X(b_grad_pre_over_grad,                                                                                  \
      (f->backward.grad_pre.data = f->backward.grad.data, f->backward.grad_pre.layout = EG_COL_MAJOR),       \
      "grad_pre at", "overlaps grad", "expected separate")                                                   \
    X(b_residual_shifted_from_d_a,                                                                           \
      (f->backward.residual = f->backward.d_a,                                                               \
       f->backward.residual.data = SHIFTED(f->backward.d_a.data, 4)),                                        \
      "d_a at", "overlaps residual", "d_a and residual, may be the same")                                    \
    X(b_grad_pre_is_pre, (fixture_set_source(f, EG_SOURCE_PRE), f->backward.grad_pre.data = f->saved.data),  \
      "grad_pre at", "overlaps pre", "expected separate")                                                    \
    X(c_d_a_is_saved, (CHAIN(.source = EG_SOURCE_PRE), f->backward.d_a.data = f->below.data), "d_a at",      \
      "overlaps chain.saved", "expected separate")                                                           \
    X(b_workspace_over_d_b, (f->backward.workspace = (eg_workspace){f->backward.d_b.data, 0, 1 << 20}),      \
      "workspace of", "overlaps d_b at", "expected separate memory")                                         \
    X(b_workspace_small, (f->backward.workspace = (eg_workspace){f->outputs, 64, 64}), "workspace.bytes",    \
      "64", "expected at least")

/* ---- Running them ------------------------------------------------------------------------------- */

#define BEND(name, edit, argument, value, expected)                                                          \
    static void name(fixture *f) { edit; }
LAYER_RULES(BEND)
FORWARD_RULES(BEND)
FORWARD_ADDRESS_RULES(BEND)
BACKWARD_RULES(BEND)
BACKWARD_ADDRESS_RULES(BEND)
UNUSED_BACKWARD_RULES(BEND)
UNUSED_FORWARD_RULES(BEND)
GATED_RULES(BEND)
GATED_FORWARD_RULES(BEND)
EMPTY_RULES(BEND)
EMPTY_ADDRESS_RULES(BEND)

#define ROW(name, edit, argument, value, expected) {#name, name, argument, value, expected},
static const rule layer_rules[] = {LAYER_RULES(ROW)};
static const rule forward_rules[] = {FORWARD_RULES(ROW)};
static const rule forward_address_rules[] = {FORWARD_ADDRESS_RULES(ROW)};
static const rule backward_rules[] = {BACKWARD_RULES(ROW)};
static const rule backward_address_rules[] = {BACKWARD_ADDRESS_RULES(ROW)};
static const rule unused_backward_rules[] = {UNUSED_BACKWARD_RULES(ROW)};
static const rule unused_forward_rules[] = {UNUSED_FORWARD_RULES(ROW)};
static const rule gated_rules[] = {GATED_RULES(ROW)};
static const rule gated_forward_rules[] = {GATED_FORWARD_RULES(ROW)};
static const rule empty_rules[] = {EMPTY_RULES(ROW)};
static const rule empty_address_rules[] = {EMPTY_ADDRESS_RULES(ROW)};

static void check_refused(const rule *r, const char *call, eg_status status, const fixture *f) {
    const char *message = eg_last_error();
    if (status != EG_ERR_ARGUMENT)
        fail_msg("%s: %s said %s; expected EG_ERR_ARGUMENT", r->name, call, eg_status_name(status));
    const bool named = strstr(message, r->argument) != NULL && strstr(message, r->value) != NULL;
    if (!named || strstr(message, r->expected) == NULL)
        fail_msg("%s: %s said \"%s\", which lacks one of \"%s\", \"%s\", \"%s\"", r->name, call, message,
                 r->argument, r->value, r->expected);
    if (!fixture_untouched(f)) fail_msg("%s: %s was refused, and has written", r->name, call);
}

static void check_queries_refuse(eg_context *context, const rule *r, bool backward, const fixture *f) {
    size_t bytes = 77;
    char text[256] = "untouched";
    if (backward) {
        check_refused(r, "workspace", eg_backward_workspace(context, &f->layer, &f->backward, &bytes), f);
        check_refused(r, "plan", eg_backward_plan(context, &f->layer, &f->backward, text, sizeof text), f);
    } else {
        check_refused(r, "workspace", eg_forward_workspace(context, &f->layer, &f->forward, &bytes), f);
        check_refused(r, "plan", eg_forward_plan(context, &f->layer, &f->forward, text, sizeof text), f);
    }
    assert_true(bytes == 77);
    assert_string_equal(text, "untouched");
}

static void no_rows(fixture *f) { f->layer.m = 0; }

static void as_it_is(fixture *f) { (void)f; }

static void as_gated_units(fixture *f) {
    f->forward.b_up = f->backward.b_up = f->forward.b;
    f->forward.bias_up = f->backward.bias_up = f->forward.bias;
    f->forward.pre_up = f->backward.grad_pre;
    f->backward.d_b_up = f->backward.d_b;
    f->backward.d_b.data = NULL;
}

static void check_rules(const rule *rules, size_t count, void (*prepare)(fixture *f), bool backward,
                        bool queries) {
    eg_context *context = open_cpu(1);
    for (size_t i = 0; i < count; i++) {
        fixture f;
        fixture_make(&f, small_layer());
        fixture_poison(&f);
        prepare(&f);
        rules[i].bend(&f);
        const eg_status status = backward ? eg_backward(context, &f.layer, &f.backward)
                                          : eg_forward(context, &f.layer, &f.forward);
        check_refused(&rules[i], backward ? "eg_backward" : "eg_forward", status, &f);
        if (queries) check_queries_refuse(context, &rules[i], backward, &f);
        fixture_free(&f);
    }
    eg_close(context);
}

static void rules_of_the_layer(void **state) {
    (void)state;
    check_rules(layer_rules, LENGTH(layer_rules), as_it_is, false, true);
    check_rules(layer_rules, LENGTH(layer_rules), as_it_is, true, true);
}

static void rules_of_forward(void **state) {
    (void)state;
    check_rules(forward_rules, LENGTH(forward_rules), as_it_is, false, true);
    check_rules(forward_address_rules, LENGTH(forward_address_rules), as_it_is, false, false);
}

static void rules_of_backward(void **state) {
    (void)state;
    check_rules(backward_rules, LENGTH(backward_rules), as_it_is, true, true);
    check_rules(backward_address_rules, LENGTH(backward_address_rules), as_it_is, true, false);
}

static void rules_of_what_is_not_used(void **state) {
    (void)state;
    check_rules(unused_forward_rules, LENGTH(unused_forward_rules), as_it_is, false, true);
    check_rules(unused_backward_rules, LENGTH(unused_backward_rules), as_it_is, true, true);
}

static void rules_of_a_gated_unit(void **state) {
    (void)state;
    check_rules(gated_rules, LENGTH(gated_rules), as_gated_units, true, true);
    check_rules(gated_forward_rules, LENGTH(gated_forward_rules), as_gated_units, false, true);
}

static void rules_of_an_empty_layer(void **state) {
    (void)state;
    check_rules(empty_rules, LENGTH(empty_rules), no_rows, true, true);
    check_rules(empty_address_rules, LENGTH(empty_address_rules), no_rows, true, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_of_the_layer),      cmocka_unit_test(rules_of_forward),
        cmocka_unit_test(rules_of_backward),       cmocka_unit_test(rules_of_a_gated_unit),
        cmocka_unit_test(rules_of_an_empty_layer), cmocka_unit_test(rules_of_what_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

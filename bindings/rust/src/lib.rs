// SPDX-License-Identifier: Apache-2.0
//! The C API of epigrad, by hand and name for name. `epigrad/epigrad.h` is the manual: units, ownership, threads and
//! errors are there, and hold here. tests/header.rs compares every name, number and type with it, and tests/layout.rs
//! every offset.
#![allow(non_camel_case_types)]

use std::mem::{size_of, MaybeUninit};
use std::os::raw::{c_char, c_int, c_void};

// ---- Vocabulary: an enum of C is an int, which may hold numbers of a newer library ----

pub type eg_status = c_int;
pub const EG_OK: eg_status = 0;
pub const EG_ERR_ARGUMENT: eg_status = 1;
pub const EG_ERR_UNSUPPORTED: eg_status = 2;
pub const EG_ERR_UNAVAILABLE: eg_status = 3;
pub const EG_ERR_OUT_OF_MEMORY: eg_status = 4;
pub const EG_ERR_DEVICE: eg_status = 5;

pub type eg_backend = c_int;
pub const EG_BACKEND_CPU: eg_backend = 0;
pub const EG_BACKEND_CUDA: eg_backend = 1;
pub const EG_BACKEND_WEBGPU: eg_backend = 2;

pub type eg_dtype = c_int;
pub const EG_DTYPE_DEFAULT: eg_dtype = 0;
pub const EG_F32: eg_dtype = 1;
pub const EG_F64: eg_dtype = 2;
pub const EG_F16: eg_dtype = 3;
pub const EG_BF16: eg_dtype = 4;

pub type eg_activation = c_int;
pub const EG_ACT_NONE: eg_activation = 0;
pub const EG_ACT_RELU: eg_activation = 1;
pub const EG_ACT_GELU: eg_activation = 2;
pub const EG_ACT_SILU: eg_activation = 3;
pub const EG_ACT_SIGMOID: eg_activation = 4;
pub const EG_ACT_TANH: eg_activation = 5;
pub const EG_ACT_GELU_ERF: eg_activation = 6;
pub const EG_ACT_QUICK_GELU: eg_activation = 7;
pub const EG_ACT_RELU2: eg_activation = 8;
pub const EG_ACT_SOFTPLUS: eg_activation = 9;
pub const EG_ACT_HARDSWISH: eg_activation = 10;
pub const EG_ACT_MISH: eg_activation = 11;

pub type eg_layout = c_int;
pub const EG_ROW_MAJOR: eg_layout = 0;
pub const EG_COL_MAJOR: eg_layout = 1;

pub type eg_math = c_int;
pub const EG_MATH_DEFAULT: eg_math = 0;
pub const EG_MATH_STRICT: eg_math = 1;
pub const EG_MATH_FAST: eg_math = 2;

pub type eg_nonfinite = c_int;
pub const EG_NONFINITE_ZERO: eg_nonfinite = 0;
pub const EG_NONFINITE_PROPAGATE: eg_nonfinite = 1;

pub type eg_tuning = c_int;
pub const EG_TUNING_ESTIMATED: eg_tuning = 0;
pub const EG_TUNING_MEASURED: eg_tuning = 1;

pub type eg_source = c_int;
pub const EG_SOURCE_RECOMPUTE: eg_source = 0;
pub const EG_SOURCE_PRE: eg_source = 1;
pub const EG_SOURCE_Y: eg_source = 2;

pub type eg_reduction = c_int;
pub const EG_REDUCTION_SUM: eg_reduction = 0;
pub const EG_REDUCTION_MEAN: eg_reduction = 1;

pub type eg_into = c_int;
pub const EG_INTO_D_A: eg_into = 1;
pub const EG_INTO_D_B: eg_into = 2;
pub const EG_INTO_D_BIAS: eg_into = 4;
pub const EG_INTO_CHAIN_D_BIAS: eg_into = 8;
pub const EG_INTO_D_B_UP: eg_into = 16;
pub const EG_INTO_D_BIAS_UP: eg_into = 32;
pub const EG_INTO_CHAIN_UP_D_BIAS: eg_into = 64;

pub type eg_sharding = c_int;
pub const EG_SHARDING_NONE: eg_sharding = 0;
pub const EG_SHARDING_LINES: eg_sharding = 1;

pub type eg_split = c_int;
pub const EG_SPLIT_COLUMNS: eg_split = 0;
pub const EG_SPLIT_ROWS: eg_split = 1;

// ---- Structs ----

/// A type of which only addresses are known. It is neither sent to nor shared with other threads.
macro_rules! opaque {
    ($($name:ident)*) => { $(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
            _not_send: std::marker::PhantomData<*mut u8>,
        }
    )* };
}
opaque! { eg_context eg_packed eg_comm }

pub type eg_task = Option<unsafe extern "C" fn(*mut c_void, c_int)>;
pub type eg_parallel_for = Option<unsafe extern "C" fn(*mut c_void, c_int, eg_task, *mut c_void)>;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_allocator {
    pub alloc: Option<unsafe extern "C" fn(usize, *mut c_void) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    pub user: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_open_info {
    pub size: usize,
    pub backend: eg_backend,
    pub device: c_int,
    pub threads: c_int,
    pub kernel: *const c_char,
    pub allocator: eg_allocator,
    pub native_device: *mut c_void,
    pub native_queue: *mut c_void,
    pub parallel_for: eg_parallel_for,
    pub parallel_user: *mut c_void,
    pub tuning: eg_tuning,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_layer {
    pub size: usize,
    pub m: i64,
    pub k: i64,
    pub n: i64,
    pub batch: i64,
    pub dtype: eg_dtype,
    pub activation: eg_activation,
    pub math: eg_math,
    pub nonfinite: eg_nonfinite,
    pub scale: f64,
    pub outer_batch: i64,
    pub groups: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_offsets {
    pub data: *mut c_void,
    pub offset: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_matrix {
    pub data: *mut c_void,
    pub offset: usize,
    pub ld: i64,
    pub batch_stride: i64,
    pub layout: eg_layout,
    pub dtype: eg_dtype,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_vector {
    pub data: *mut c_void,
    pub offset: usize,
    pub dtype: eg_dtype,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_workspace {
    pub data: *mut c_void,
    pub offset: usize,
    pub bytes: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_tensor_parallel {
    pub comm: *const eg_comm,
    pub split: eg_split,
    pub sums: eg_dtype,
    pub gathered: eg_matrix,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_forward_outer {
    pub a: i64,
    pub b: i64,
    pub residual: i64,
    pub y: i64,
    pub pre: i64,
    pub b_up: i64,
    pub pre_up: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_backward_outer {
    pub a: i64,
    pub b: i64,
    pub grad: i64,
    pub pre: i64,
    pub y: i64,
    pub d_a: i64,
    pub d_b: i64,
    pub grad_pre: i64,
    pub chain_saved: i64,
    pub b_up: i64,
    pub pre_up: i64,
    pub grad_up: i64,
    pub d_b_up: i64,
    pub grad_pre_up: i64,
    pub chain_up_saved: i64,
    pub chain_up_d_up: i64,
    pub chain_up_y: i64,
    pub residual: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_forward_args {
    pub size: usize,
    pub a: eg_matrix,
    pub b: eg_matrix,
    pub bias: eg_vector,
    pub residual: eg_matrix,
    pub y: eg_matrix,
    pub pre: eg_matrix,
    pub packed_b: *const eg_packed,
    pub workspace: eg_workspace,
    pub workspace_limit: usize,
    pub b_up: eg_matrix,
    pub bias_up: eg_vector,
    pub pre_up: eg_matrix,
    pub packed_b_up: *const eg_packed,
    pub tensor_parallel: eg_tensor_parallel,
    pub outer: eg_forward_outer,
    pub offsets: eg_offsets,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_chain {
    pub saved: eg_matrix,
    pub source: eg_source,
    pub activation: eg_activation,
    pub d_bias: eg_vector,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_data_parallel {
    pub comm: *const eg_comm,
    pub reduction: eg_reduction,
    pub sharding: eg_sharding,
    pub sums: eg_dtype,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_chain_up {
    pub saved: eg_matrix,
    pub d_up: eg_matrix,
    pub y: eg_matrix,
    pub d_bias: eg_vector,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_backward_args {
    pub size: usize,
    pub a: eg_matrix,
    pub b: eg_matrix,
    pub bias: eg_vector,
    pub grad: eg_matrix,
    pub source: eg_source,
    pub pre: eg_matrix,
    pub y: eg_matrix,
    pub d_a: eg_matrix,
    pub d_b: eg_matrix,
    pub d_bias: eg_vector,
    pub grad_pre: eg_matrix,
    pub accumulate: c_int,
    pub chain: eg_chain,
    pub packed_b: *const eg_packed,
    pub workspace: eg_workspace,
    pub workspace_limit: usize,
    pub data_parallel: eg_data_parallel,
    pub b_up: eg_matrix,
    pub bias_up: eg_vector,
    pub pre_up: eg_matrix,
    pub grad_up: eg_matrix,
    pub d_b_up: eg_matrix,
    pub d_bias_up: eg_vector,
    pub grad_pre_up: eg_matrix,
    pub packed_b_up: *const eg_packed,
    pub chain_up: eg_chain_up,
    pub residual: eg_matrix,
    pub accumulate_into: u64,
    pub tensor_parallel: eg_tensor_parallel,
    pub outer: eg_backward_outer,
    pub offsets: eg_offsets,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_device_info {
    pub size: usize,
    pub backend: eg_backend,
    pub name: *const c_char,
    pub features: *const c_char,
    pub threads: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct eg_kernel_info {
    pub size: usize,
    pub name: *const c_char,
    pub compute: eg_dtype,
    pub usable: c_int,
    pub needs: *const c_char,
    pub tile: *const c_char,
}

/// The zero of every field is its default: numbers, null pointers and absent functions are all zero bytes.
macro_rules! default {
    ($($name:ident $(: $size:ident)?),*) => { $(
        impl Default for $name {
            fn default() -> Self {
                #[allow(unused_mut)]
                let mut value = unsafe { MaybeUninit::<Self>::zeroed().assume_init() };
                $(value.$size = size_of::<Self>();)?
                value
            }
        }
    )* };
}
default! { eg_allocator, eg_matrix, eg_vector, eg_workspace, eg_chain, eg_chain_up }
default! { eg_open_info: size, eg_layer: size, eg_forward_args: size, eg_backward_args: size, eg_device_info: size,
eg_kernel_info: size }

// ---- What the header has inline ----

pub fn eg_row_major(data: *mut c_void) -> eg_matrix {
    eg_matrix { data, ..Default::default() }
}
pub fn eg_col_major(data: *mut c_void) -> eg_matrix {
    eg_matrix { data, layout: EG_COL_MAJOR, ..Default::default() }
}
pub fn eg_elements(data: *mut c_void) -> eg_vector {
    eg_vector { data, ..Default::default() }
}
pub fn eg_const_row_major(data: *const c_void) -> eg_matrix {
    eg_row_major(data as *mut c_void)
}
pub fn eg_const_col_major(data: *const c_void) -> eg_matrix {
    eg_col_major(data as *mut c_void)
}
pub fn eg_const_elements(data: *const c_void) -> eg_vector {
    eg_elements(data as *mut c_void)
}
pub fn eg_layer_of(m: i64, k: i64, n: i64, activation: eg_activation) -> eg_layer {
    eg_layer { m, k, n, activation, ..Default::default() }
}
pub fn eg_forward_of(a: eg_matrix, b: eg_matrix, bias: eg_vector, y: eg_matrix) -> eg_forward_args {
    eg_forward_args { a, b, bias, y, ..Default::default() }
}
pub fn eg_backward_of(a: eg_matrix, b: eg_matrix, bias: eg_vector, grad: eg_matrix) -> eg_backward_args {
    eg_backward_args { a, b, bias, grad, ..Default::default() }
}

// ---- Functions ----

extern "C" {
    pub fn eg_status_name(status: eg_status) -> *const c_char;
    pub fn eg_last_error() -> *const c_char;
    pub fn eg_version() -> *const c_char;
    pub fn eg_backend_name(backend: eg_backend) -> *const c_char;
    pub fn eg_dtype_name(dtype: eg_dtype) -> *const c_char;
    pub fn eg_dtype_size(dtype: eg_dtype) -> usize;
    pub fn eg_activation_name(activation: eg_activation) -> *const c_char;
    pub fn eg_activation_from_y(activation: eg_activation) -> c_int;

    pub fn eg_open(info: *const eg_open_info, context: *mut *mut eg_context) -> eg_status;
    pub fn eg_close(context: *mut eg_context);
    pub fn eg_sync(context: *mut eg_context) -> eg_status;
    pub fn eg_alloc(context: *mut eg_context, bytes: usize, memory: *mut *mut c_void) -> eg_status;
    pub fn eg_free(context: *mut eg_context, memory: *mut c_void);
    pub fn eg_upload(
        context: *mut eg_context,
        memory: *mut c_void,
        offset: usize,
        host: *const c_void,
        bytes: usize,
    ) -> eg_status;
    pub fn eg_download(
        context: *mut eg_context,
        host: *mut c_void,
        memory: *const c_void,
        offset: usize,
        bytes: usize,
    ) -> eg_status;

    pub fn eg_forward(context: *mut eg_context, layer: *const eg_layer, args: *const eg_forward_args) -> eg_status;
    pub fn eg_backward(context: *mut eg_context, layer: *const eg_layer, args: *const eg_backward_args) -> eg_status;
    pub fn eg_forward_workspace(
        context: *mut eg_context,
        layer: *const eg_layer,
        args: *const eg_forward_args,
        bytes: *mut usize,
    ) -> eg_status;
    pub fn eg_backward_workspace(
        context: *mut eg_context,
        layer: *const eg_layer,
        args: *const eg_backward_args,
        bytes: *mut usize,
    ) -> eg_status;
    pub fn eg_forward_plan(
        context: *mut eg_context,
        layer: *const eg_layer,
        args: *const eg_forward_args,
        text: *mut c_char,
        capacity: usize,
    ) -> eg_status;
    pub fn eg_backward_plan(
        context: *mut eg_context,
        layer: *const eg_layer,
        args: *const eg_backward_args,
        text: *mut c_char,
        capacity: usize,
    ) -> eg_status;

    pub fn eg_pack_b(
        context: *mut eg_context,
        layer: *const eg_layer,
        b: *const eg_matrix,
        packed: *mut *mut eg_packed,
    ) -> eg_status;
    pub fn eg_packed_update(context: *mut eg_context, packed: *mut eg_packed, b: *const eg_matrix) -> eg_status;
    pub fn eg_packed_free(context: *mut eg_context, packed: *mut eg_packed);

    pub fn eg_get_device_info(context: *mut eg_context, info: *mut eg_device_info) -> eg_status;
    pub fn eg_get_kernel_info(context: *mut eg_context, index: c_int, info: *mut eg_kernel_info) -> eg_status;
    pub fn eg_measure_peak(context: *mut eg_context, dtype: eg_dtype, gflops: *mut f64) -> eg_status;
    pub fn eg_convert(dst: *mut c_void, to: eg_dtype, src: *const c_void, from: eg_dtype, count: usize) -> eg_status;
}

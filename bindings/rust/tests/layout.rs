// SPDX-License-Identifier: Apache-2.0
//! Every struct has the size, and every field the offset, that tests/abi/layout.c asserts of the C header.
#![cfg(target_pointer_width = "64")]
use epigrad_sys::*;
use std::collections::BTreeMap;
use std::mem::{size_of, MaybeUninit};

mod source;

macro_rules! layout {
    ($($name:ident { $($field:ident),* })*) => {{
        let mut numbers = BTreeMap::new();
        $(
            numbers.insert(stringify!($name).to_string(), size_of::<$name>());
            let memory = MaybeUninit::<$name>::uninit();
            let start = memory.as_ptr();
            $(
                let at = unsafe { std::ptr::addr_of!((*start).$field) };
                numbers.insert(concat!(stringify!($name), ".", stringify!($field)).to_string(),
                               at as usize - start as usize);
            )*
        )*
        numbers
    }};
}

/// The lines SIZE(type, bytes) and AT(type, field, bytes).
fn asserted() -> BTreeMap<String, usize> {
    let mut numbers = BTreeMap::new();
    let text = source::read("tests/abi/layout.c");
    for list in text.lines().filter_map(|line| line.strip_prefix("SIZE(").or_else(|| line.strip_prefix("AT("))) {
        let words: Vec<&str> = list.trim_end_matches(");").split(", ").collect();
        let (bytes, name) = words.split_last().unwrap();
        numbers.insert(name.join("."), bytes.parse().unwrap());
    }
    numbers
}

#[test]
fn sizes_and_offsets() {
    let here = layout! {
        eg_allocator { alloc, free, user }
        eg_open_info { size, backend, device, threads, kernel, allocator, native_device, native_queue, parallel_for,
                       parallel_user, tuning }
        eg_layer { size, m, k, n, batch, dtype, activation, math, nonfinite, scale, outer_batch, groups }
        eg_forward_outer { a, b, residual, y, pre, b_up, pre_up }
        eg_backward_outer { a, b, grad, pre, y, d_a, d_b, grad_pre, chain_saved, b_up, pre_up, grad_up, d_b_up,
                            grad_pre_up, chain_up_saved, chain_up_d_up, chain_up_y, residual }
        eg_matrix { data, offset, ld, batch_stride, layout, dtype }
        eg_vector { data, offset, dtype }
        eg_offsets { data, offset }
        eg_workspace { data, offset, bytes }
        eg_forward_args { size, a, b, bias, residual, y, pre, packed_b, workspace, workspace_limit, b_up, bias_up, pre_up,
                          packed_b_up, tensor_parallel, outer, offsets }
        eg_tensor_parallel { comm, split, sums, gathered }
        eg_chain { saved, source, activation, d_bias }
        eg_data_parallel { comm, reduction, sharding, sums }
        eg_backward_args { size, a, b, bias, grad, source, pre, y, d_a, d_b, d_bias, grad_pre, accumulate, chain,
                           packed_b, workspace, workspace_limit, data_parallel, b_up, bias_up, pre_up, grad_up, d_b_up,
                           d_bias_up, grad_pre_up, packed_b_up, chain_up, residual, accumulate_into,
                           tensor_parallel, outer, offsets }
        eg_chain_up { saved, d_up, y, d_bias }
        eg_device_info { size, backend, name, features, threads }
        eg_kernel_info { size, name, compute, usable, needs, tile }
    };
    assert!(here.len() > 80);
    assert_eq!(here, asserted());
}

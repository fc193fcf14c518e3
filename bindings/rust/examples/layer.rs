// SPDX-License-Identifier: Apache-2.0
//! A layer, y = gelu(a·b + bias), forward and backward, beside the same in plain Rust and double precision. b is stored
//! as PyTorch stores a weight, [N, K].
use epigrad_sys::*;
use std::ffi::CStr;
use std::ptr::null;

const M: usize = 5;
const K: usize = 7;
const N: usize = 3;

/// Numbers between -1 and 1 that look random.
fn numbers(count: usize, seed: f64) -> Vec<f32> {
    (0..count).map(|i| (seed + 1.7 * i as f64).sin() as f32).collect()
}

fn check(status: eg_status) -> Result<(), String> {
    if status == EG_OK {
        return Ok(());
    }
    // The message is the library's until the next call: a copy of it is kept.
    Err(unsafe { CStr::from_ptr(eg_last_error()) }.to_string_lossy().into_owned())
}

/// A context that is closed whatever happens.
struct Context(*mut eg_context);

impl Context {
    fn open() -> Result<Self, String> {
        let mut context = std::ptr::null_mut();
        check(unsafe { eg_open(null(), &mut context) })?;
        Ok(Context(context))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        unsafe { eg_close(self.0) }
    }
}

/// gelu and its derivative, by the tanh form.
fn gelu(x: f64) -> (f64, f64) {
    let c = (2.0 / std::f64::consts::PI).sqrt();
    let t = (c * (x + 0.044715 * x * x * x)).tanh();
    let inner = c * (1.0 + 3.0 * 0.044715 * x * x);
    (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
}

fn compare(name: &str, got: &[f32], expected: &[f64]) -> Result<(), String> {
    let errors = got.iter().zip(expected).map(|(&x, &y)| (f64::from(x) - y).abs());
    let worst = errors.fold(0.0, |worst, error| if error <= worst { worst } else { error }); // a NaN stays
    println!("{name:6}  {:>2} elements, the first {:8.5}, worst error {worst:.1e}", got.len(), got[0]);
    // Sums of some 8 terms below 2, each rounded to 24 bits.
    if worst < 1e-5 {
        Ok(())
    } else {
        Err(format!("{name} is off by {worst:e}"))
    }
}

fn main() -> Result<(), String> {
    let (a, b) = (numbers(M * K, 0.1), numbers(N * K, 0.2));
    let (bias, grad) = (numbers(N, 0.3), numbers(M * N, 0.4));
    let (mut y, mut d_a, mut d_b, mut d_bias) =
        (vec![0f32; M * N], vec![0f32; M * K], vec![0f32; K * N], vec![0f32; N]);

    let layer = eg_layer_of(M as i64, K as i64, N as i64, EG_ACT_GELU);
    let inputs = (
        eg_const_row_major(a.as_ptr().cast()),
        eg_const_col_major(b.as_ptr().cast()),
        eg_const_elements(bias.as_ptr().cast()),
    );
    let forward = eg_forward_of(inputs.0, inputs.1, inputs.2, eg_row_major(y.as_mut_ptr().cast()));
    let backward = eg_backward_args {
        d_a: eg_row_major(d_a.as_mut_ptr().cast()),
        d_b: eg_col_major(d_b.as_mut_ptr().cast()),
        d_bias: eg_elements(d_bias.as_mut_ptr().cast()),
        ..eg_backward_of(inputs.0, inputs.1, inputs.2, eg_const_row_major(grad.as_ptr().cast()))
    };
    let context = Context::open()?;
    check(unsafe { eg_forward(context.0, &layer, &forward) })?;
    check(unsafe { eg_backward(context.0, &layer, &backward) })?;

    let (mut y0, mut d_a0, mut d_b0, mut d_bias0) =
        (vec![0f64; M * N], vec![0f64; M * K], vec![0f64; K * N], vec![0f64; N]);
    for i in 0..M {
        for j in 0..N {
            let product = |p: usize| f64::from(a[i * K + p]) * f64::from(b[j * K + p]);
            let (value, derivative) = gelu(f64::from(bias[j]) + (0..K).map(product).sum::<f64>());
            let grad_pre = f64::from(grad[i * N + j]) * derivative;
            y0[i * N + j] = value;
            d_bias0[j] += grad_pre;
            for p in 0..K {
                d_a0[i * K + p] += grad_pre * f64::from(b[j * K + p]);
                d_b0[j * K + p] += grad_pre * f64::from(a[i * K + p]);
            }
        }
    }
    compare("y", &y, &y0)?;
    compare("d_a", &d_a, &d_a0)?;
    compare("d_b", &d_b, &d_b0)?;
    compare("d_bias", &d_bias, &d_bias0)?;

    // What is wrong comes back as a sentence, not as a crash.
    let refused = check(unsafe { eg_forward(context.0, &eg_layer { m: -1, ..layer }, &forward) });
    println!("m = -1: {}", refused.expect_err("a layer of -1 rows was taken"));
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0
/* activation.h in WGSL: each act_NAME, act_grad_NAME and act_grad_y_NAME as a function of one f32, and the
 * three switches over them. ACT is fixed when the pipeline is made, so that one case is left of each. */
#define EG_REAL_BITS 32
#define EG_ACTIVATION_FORMULAS
#define EG_FN(name, x)      fn name(x: f32) -> f32 {
#define EG_END              }
#define EG_CALL(name, x)    name(x)
#define EG_LET(name, value) let name: f32 = value;
#define EG_RETURN(value)    return value;
#define EG_C(number)        f32(number)
#define EG_FMA(a, b, c)     fma(a, b, c)
#define EG_ABS(x)           abs(x)
#define EG_MIN(a, b)        min(a, b)
#define EG_MAX(a, b)        max(a, b)
#define EG_ROUND(x)         round(x)
#define EG_POW2(n)          bitcast<f32>((i32(n) + 127) << 23u)
#define EG_SELECT(c, a, b)  select(b, a, c)
#include "epigrad/activation.h"

override ACT: u32 = 0u;

/* A test of the bits: comparisons that are false for finite numbers only are removed by shader compilers. */
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

fn act_of(x: f32) -> f32 {
    switch ACT {
#define EG_ROW(NAME, name, value, from_y, text) case value##u: { return act_##name(x); }
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
        default: { return x; }
    }
}

fn act_grad_of_pre(x: f32) -> f32 {
    switch ACT {
#define EG_ROW(NAME, name, value, from_y, text) case value##u: { return act_grad_##name(x); }
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
        default: { return 1.0; }
    }
}

/* Rows whose act' is no function of y have no formula to name. */
#define EG_OF_Y_0(name, value)
#define EG_OF_Y_1(name, value) case value##u: { return act_grad_y_##name(x); }
fn act_grad_of_y(x: f32) -> f32 {
    switch ACT {
#define EG_ROW(NAME, name, value, from_y, text) EG_OF_Y_##from_y(name, value)
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
        default: { return 1.0; }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* act and act' from their definitions. The limits far out are reached by arithmetic that
 * saturates (tanh, erfc, exp(-x)), so the only care taken is never to form inf * 0. */
#include "oracle.h"

#include <tgmath.h> /* functions of oracle_real, whichever that is */

/* Past FAR every activation equals its limit. */
#define FAR ((oracle_real)20000)

static const oracle_real sqrt_2_over_pi = 0.797884560802865355879892119868763737L;
static const oracle_real cubic = 0.044715L, quick = 1.702L;
static const oracle_real sqrt_2 = 1.41421356237309504880168872420969807857L;
static const oracle_real density_at_0 = 0.398942280401432677939946059934381868L;

static oracle_real sigmoid(oracle_real x) { return 1 / (1 + exp(-x)); }
static oracle_real sech2(oracle_real x) { return 1 / (cosh(x) * cosh(x)); }
static oracle_real softplus(oracle_real x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static oracle_real normal_cdf(oracle_real x) { return 0.5 * erfc(-x / sqrt_2); }
static oracle_real normal_density(oracle_real x) { return exp(-x * x / 2) * density_at_0; }

static oracle_real value(eg_activation activation, oracle_real x) {
    switch (activation) {
    case EG_ACT_NONE:
        return x;
    case EG_ACT_RELU:
        return x > 0 ? x : 0;
    case EG_ACT_GELU:
        return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + cubic * x * x * x)));
    case EG_ACT_SILU:
        return x * sigmoid(x);
    case EG_ACT_SIGMOID:
        return sigmoid(x);
    case EG_ACT_TANH:
        return tanh(x);
    case EG_ACT_GELU_ERF:
        return x * normal_cdf(x);
    case EG_ACT_QUICK_GELU:
        return x * sigmoid(quick * x);
    case EG_ACT_RELU2:
        return x > 0 ? x * x : 0;
    case EG_ACT_SOFTPLUS:
        return softplus(x);
    case EG_ACT_HARDSWISH:
        return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;
    case EG_ACT_MISH:
        return x * tanh(softplus(x));
    }
    return (oracle_real)NAN;
}

static oracle_real derivative(eg_activation activation, oracle_real x) {
    switch (activation) {
    case EG_ACT_NONE:
        return 1;
    case EG_ACT_RELU:
        return x > 0 ? 1 : 0;
    case EG_ACT_GELU: {
        const oracle_real inner = sqrt_2_over_pi * (x + cubic * x * x * x);
        const oracle_real inner_derivative = sqrt_2_over_pi * (1 + 3 * cubic * x * x);
        return 0.5 * (1 + tanh(inner)) + 0.5 * x * inner_derivative * sech2(inner);
    }
    case EG_ACT_SILU:
        return sigmoid(x) + x * sigmoid(x) * sigmoid(-x);
    case EG_ACT_SIGMOID:
        return sigmoid(x) * sigmoid(-x);
    case EG_ACT_TANH:
        return sech2(x);
    case EG_ACT_GELU_ERF:
        return normal_cdf(x) + x * normal_density(x);
    case EG_ACT_QUICK_GELU:
        return sigmoid(quick * x) + quick * x * sigmoid(quick * x) * sigmoid(-quick * x);
    case EG_ACT_RELU2:
        return x > 0 ? 2 * x : 0;
    case EG_ACT_SOFTPLUS:
        return sigmoid(x);
    case EG_ACT_HARDSWISH:
        return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
    case EG_ACT_MISH:
        return tanh(softplus(x)) + x * sech2(softplus(x)) * sigmoid(x);
    }
    return (oracle_real)NAN;
}

oracle_real oracle_act(eg_activation activation, oracle_real x) {
    if (isnan(x)) return x;
    const bool unbounded_below = activation == EG_ACT_NONE;
    return value(activation, x < -FAR && !unbounded_below ? -FAR : x);
}

oracle_real oracle_act_grad(eg_activation activation, oracle_real x) {
    if (isnan(x)) return x;
    const bool unbounded = activation == EG_ACT_RELU2;
    if (x < -FAR) x = -FAR;
    return derivative(activation, x > FAR && !unbounded ? FAR : x);
}

oracle_real oracle_act_grad_of_y(eg_activation activation, oracle_real y) {
    if (activation == EG_ACT_NONE) return 1;
    if (isnan(y)) return y;
    switch (activation) {
    case EG_ACT_RELU:
        return y > 0 ? 1 : 0;
    case EG_ACT_SIGMOID:
        return y * (1 - y);
    case EG_ACT_TANH:
        return (1 - y) * (1 + y);
    case EG_ACT_NONE:
    case EG_ACT_GELU:
    case EG_ACT_GELU_ERF:
    case EG_ACT_SILU:
    case EG_ACT_QUICK_GELU:
    case EG_ACT_RELU2:
    case EG_ACT_SOFTPLUS:
    case EG_ACT_HARDSWISH:
    case EG_ACT_MISH:
        break; /* y does not tell */
    }
    return (oracle_real)NAN;
}

/* The contract's 4e-7 (f32) and 1e-15 (f64) of max(1, |value|); none and relu are exact. */
double oracle_act_bound(eg_activation activation, eg_dtype compute, double result) {
    if (activation == EG_ACT_NONE || activation == EG_ACT_RELU || !isfinite(result)) return 0;
    return (compute == EG_F64 ? 1e-15 : 4e-7) * fmax(1, fabs(result));
}

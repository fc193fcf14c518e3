/* act and act' from their definitions, in long double. The limits far out are reached by arithmetic that
 * saturates (tanh, erfc, exp(-x)), so the only care taken is never to form inf * 0. */
#include "oracle.h"

#include <math.h>

/* Past FAR every activation equals its limit in long double. */
#define FAR 20000.0L

static const long double sqrt_2_over_pi = 0.797884560802865355879892119868763737L;
static const long double cubic = 0.044715L;

static long double sigmoid(long double x) { return 1 / (1 + expl(-x)); }
static long double sech2(long double x) { return 1 / (coshl(x) * coshl(x)); }
static long double softplus(long double x) { return (x > 0 ? x : 0) + log1pl(expl(-fabsl(x))); }
static long double normal_cdf(long double x) { return 0.5L * erfcl(-x / sqrtl(2)); }
static long double normal_density(long double x) {
    return expl(-x * x / 2) * 0.398942280401432677939946059934381868L;
}

static long double value(eg_activation activation, long double x) {
    switch (activation) {
    case EG_ACT_NONE:
        return x;
    case EG_ACT_RELU:
        return x > 0 ? x : 0;
    case EG_ACT_GELU:
        return 0.5L * x * (1 + tanhl(sqrt_2_over_pi * (x + cubic * x * x * x)));
    case EG_ACT_SILU:
        return x * sigmoid(x);
    case EG_ACT_SIGMOID:
        return sigmoid(x);
    case EG_ACT_TANH:
        return tanhl(x);
    case EG_ACT_GELU_ERF:
        return x * normal_cdf(x);
    case EG_ACT_QUICK_GELU:
        return x * sigmoid(1.702L * x);
    case EG_ACT_RELU2:
        return x > 0 ? x * x : 0;
    case EG_ACT_SOFTPLUS:
        return softplus(x);
    case EG_ACT_HARDSWISH:
        return x <= -3 ? 0 : x >= 3 ? x : x * (x + 3) / 6;
    case EG_ACT_MISH:
        return x * tanhl(softplus(x));
    }
    return (long double)NAN;
}

static long double slope(eg_activation activation, long double x) {
    switch (activation) {
    case EG_ACT_NONE:
        return 1;
    case EG_ACT_RELU:
        return x > 0 ? 1 : 0;
    case EG_ACT_GELU: {
        const long double inner = sqrt_2_over_pi * (x + cubic * x * x * x);
        const long double inner_slope = sqrt_2_over_pi * (1 + 3 * cubic * x * x);
        return 0.5L * (1 + tanhl(inner)) + 0.5L * x * inner_slope * sech2(inner);
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
        return sigmoid(1.702L * x) + 1.702L * x * sigmoid(1.702L * x) * sigmoid(-1.702L * x);
    case EG_ACT_RELU2:
        return x > 0 ? 2 * x : 0;
    case EG_ACT_SOFTPLUS:
        return sigmoid(x);
    case EG_ACT_HARDSWISH:
        return x <= -3 ? 0 : x >= 3 ? 1 : (2 * x + 3) / 6;
    case EG_ACT_MISH:
        return tanhl(softplus(x)) + x * sech2(softplus(x)) * sigmoid(x);
    }
    return (long double)NAN;
}

long double oracle_act(eg_activation activation, long double x) {
    if (isnan(x)) return x;
    const bool unbounded_below = activation == EG_ACT_NONE;
    return value(activation, x < -FAR && !unbounded_below ? -FAR : x);
}

long double oracle_act_grad(eg_activation activation, long double x) {
    if (isnan(x)) return x;
    const bool unbounded = activation == EG_ACT_RELU2;
    if (x < -FAR) x = -FAR;
    return slope(activation, x > FAR && !unbounded ? FAR : x);
}

long double oracle_act_grad_of_y(eg_activation activation, long double y) {
    if (activation == EG_ACT_NONE) return 1;
    if (isnan(y)) return y;
    if (activation == EG_ACT_RELU) return y > 0 ? 1 : 0;
    if (activation == EG_ACT_SIGMOID) return y * (1 - y);
    if (activation == EG_ACT_TANH) return (1 - y) * (1 + y);
    return (long double)NAN;
}

/* The contract's 4e-7 (f32) and 1e-15 (f64) of max(1, |value|); none and relu are exact. */
double oracle_act_bound(eg_activation activation, eg_dtype compute, double result) {
    if (activation == EG_ACT_NONE || activation == EG_ACT_RELU || !isfinite(result)) return 0;
    return (compute == EG_F64 ? 1e-15 : 4e-7) * fmax(1, fabs(result));
}

# SPDX-License-Identifier: Apache-2.0
"""The layer in NumPy's widest float, written from the mathematics, and how far a correct result may be off.

Every function here works on arrays of `Wide`; results come as (value, bound) pairs. A bound is what the
numerical contract allows: rounding errors of a sum of L terms grow like sqrt(L) units in the last place of
the sum of their magnitudes, act and act' are within 4e-7 (f32) or 1e-15 (f64), and results are rounded once."""

import math

import numpy as np

from conftest import DTYPES

Wide = np.longdouble  # with 64 bits on x86, so that its own rounding is nothing beside that of an f64 result

erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


ROOT = np.sqrt(2 / Wide(math.pi))


def gelu_grad(x):
    inner = np.tanh(ROOT * (x + 0.044715 * x**3))
    return 0.5 * (1 + inner) + 0.5 * x * (1 - inner**2) * ROOT * (1 + 3 * 0.044715 * x**2)


def hardswish_grad(x):
    return np.where(x <= -3, 0.0, np.where(x >= 3, 1.0, (2 * x + 3) / 6))


def mish_grad(x):
    t = np.tanh(softplus(x))
    return t + x * (1 - t**2) * sigmoid(x)


# name: act, act', and act' from y where it is a function of y
ACTIVATIONS = {
    "none": (lambda x: x, np.ones_like, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0, lambda y: (y > 0) * 1.0),
    "gelu": (lambda x: 0.5 * x * (1 + np.tanh(ROOT * (x + 0.044715 * x**3))), gelu_grad, None),
    "silu": (lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * (1 - sigmoid(x))), None),
    "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x), lambda y: y * (1 - y)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2, lambda y: 1 - y**2),
    "gelu_erf": (
        lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        lambda x: 0.5 * (1 + erf(x / math.sqrt(2))) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),
        None,
    ),
    "quick_gelu": (
        lambda x: x * sigmoid(1.702 * x),
        lambda x: sigmoid(1.702 * x) * (1 + 1.702 * x * sigmoid(-1.702 * x)),
        None,
    ),
    "relu2": (lambda x: np.maximum(x, 0) ** 2, lambda x: 2 * np.maximum(x, 0), None),
    "softplus": (softplus, sigmoid, None),
    "hardswish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, hardswish_grad, None),
    "mish": (lambda x: x * np.tanh(softplus(x)), mish_grad, None),
}

FROM_Y = [name for name, (_, _, from_y) in ACTIVATIONS.items() if from_y is not None]

UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}  # half an ulp of 1
SMALLEST = {"f64": 2.0**-1074, "f32": 2.0**-149, "f16": 2.0**-24, "bf16": 2.0**-133}


def compute_unit(dtype):
    return UNIT["f64" if dtype == "f64" else "f32"]


def act_error(dtype, value):
    return (1e-15 if dtype == "f64" else 4e-7) * np.maximum(1, np.abs(value))


def product(x, y, dtype):
    """x·y, each a (value, bound) pair, with the error of a sum in the type that `dtype` is computed in."""
    (xv, xb), (yv, yb) = x, y
    magnitude = np.abs(xv) @ np.abs(yv)
    rounding = 3 * math.sqrt(max(xv.shape[-1], 1)) * compute_unit(dtype) * magnitude
    return xv @ yv, rounding + xb @ np.abs(yv) + np.abs(xv) @ yb


def exact(x):
    return x, np.zeros_like(x)


def pre_activation(a, b, bias, dtype):
    value, bound = product(exact(a), exact(b), dtype)
    if bias is not None:
        value, bound = value + bias, bound + compute_unit(dtype) * (np.abs(value) + np.abs(bias))
    return value, bound


def derivative_bound(name, x, change, from_y=False):
    """How far act' moves when its argument does, from its own values around it."""
    grad = ACTIVATIONS[name][2 if from_y else 1]
    return np.maximum(np.abs(grad(x + change) - grad(x)), np.abs(grad(x - change) - grad(x)))


def forward(a, b, bias=None, residual=None, activation="none", dtype="f32"):
    """{"pre": ..., "y": ...}"""
    pre, bound = pre_activation(a, b, bias, dtype)
    act, grad, _ = ACTIVATIONS[activation]
    y = act(pre)
    y_bound = act_error(dtype, y) * (activation != "none") + bound * (1 + np.abs(grad(pre)))
    if residual is not None:
        y, y_bound = y + residual, y_bound + compute_unit(dtype) * (np.abs(y) + np.abs(residual))
    return {"pre": (pre, bound), "y": (y, y_bound)}


def sum_to(pair, shape):
    """Sums a gradient over the levels of the batch that an operand of `shape` was broadcast along."""
    before = pair[0].ndim - len(shape)
    axes = tuple(i for i, size in enumerate(pair[0].shape[:-2]) if i < before or (shape[i - before] == 1 != size))
    return tuple(part.sum(axes, keepdims=True).reshape(shape) for part in pair) if axes or before else pair


def backward(a, b, grad, bias=None, pre=None, y=None, activation="none", dtype="f32"):
    """{"d_a", "d_b", "d_bias", "grad_pre"}, with act' from `pre` or `y` where given."""
    _, act_grad, from_y = ACTIVATIONS[activation]
    if y is not None:
        derivative, derivative_error = from_y(y), 4 * compute_unit(dtype) * (1 + y**2)
    else:
        at, error = exact(pre) if pre is not None else pre_activation(a, b, bias, dtype)
        derivative, derivative_error = act_grad(at), derivative_bound(activation, at, error)
    derivative_error = derivative_error + act_error(dtype, derivative) * (activation != "none")
    value = grad * derivative
    bound = np.abs(grad) * derivative_error + compute_unit(dtype) * np.abs(value)
    # A 16-bit grad_pre may be rounded before it is multiplied.
    fed = value, bound + (UNIT[dtype] * np.abs(value) if dtype in ("f16", "bf16") else 0)
    shape = np.broadcast_shapes((a @ b).shape, value.shape)
    fed = tuple(np.broadcast_to(part, shape) for part in fed)
    turn = lambda pair: tuple(np.swapaxes(part, -1, -2) for part in pair)
    d_a = sum_to(product(fed, turn(exact(b)), dtype), a.shape)
    d_b = sum_to(product(turn(exact(np.broadcast_to(a, shape[:-2] + a.shape[-2:]))), fed, dtype), b.shape)
    rows = int(np.prod(shape[:-1]))
    axes = tuple(range(len(shape) - 1))
    d_bias = fed[0].sum(axes), fed[1].sum(axes) + 3 * math.sqrt(max(rows, 1)) * compute_unit(dtype) * np.abs(fed[0]).sum(axes)
    if len(shape) > 2:  # sums over the batch are sums of batch * M terms
        batch = 3 * math.sqrt(max(rows, 1)) * compute_unit(dtype)
        d_a = d_a[0], d_a[1] + batch * sum_to((np.abs(fed[0]) @ np.abs(np.swapaxes(b, -1, -2)),) * 2, a.shape)[0]
        magnitude = np.swapaxes(np.abs(np.broadcast_to(a, shape[:-2] + a.shape[-2:])), -1, -2) @ np.abs(fed[0])
        d_b = d_b[0], d_b[1] + batch * sum_to((magnitude,) * 2, b.shape)[0]
    return {"d_a": d_a, "d_b": d_b, "d_bias": d_bias, "grad_pre": (np.broadcast_to(value, shape), np.broadcast_to(bound, shape))}


def plus(pair, before, dtype):
    """What `before` holds once the pair is added to it."""
    value, bound = pair
    return value + before, bound + compute_unit(dtype) * (np.abs(value) + np.abs(before))


def check(got, expected, dtype, name=""):
    """`got` is an array as read from a file, of elements of `dtype`."""
    value, bound = expected
    assert got.shape == value.shape, f"{name} has shape {got.shape}, expected {value.shape}"
    allowed = bound + UNIT[dtype] * (np.abs(value) + bound) + SMALLEST[dtype]
    off = np.abs(got.astype(Wide) - value)
    assert np.isfinite(got.astype(Wide)).all(), f"{name} has values that are not finite"
    worst = np.unravel_index(np.argmax(off - allowed), off.shape) if off.size else None
    assert off.size == 0 or off[worst] <= allowed[worst], f"{name}{worst}: {got[worst]}, expected {value[worst]} +- {allowed[worst]}"


def check_all(results, expected, dtype, names):
    assert set(results) == set(names)
    for name in names:
        assert results[name].dtype == DTYPES[dtype]
        check(results[name], expected[name], dtype, name)

# SPDX-License-Identifier: Apache-2.0
"""Gated units and groups of epigrad.jax, beside jax.numpy, on the CPU."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epigrad
import epigrad.jax
from test_jax import ACT, close

ENDS = (4, 4, 9, 10)  # 4, none, 5, 1; and 2 rows of no group
ROWS, K, N, GROUPS = 12, 7, 5, len(ENDS)


def draw(*shapes, dtype=jnp.float64):
    rng = np.random.default_rng(6)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def unit(x, w, w_up, bias, bias_up, activation):
    return ACT[activation](x @ w.T + bias) * (x @ w_up.T + bias_up)


def arrays(lead=(4, 6), dtype=jnp.float64):
    """x, w, w_up, bias, bias_up and the gradient of y."""
    return draw((*lead, K), (N, K), (N, K), (N,), (N,), (*lead, N), dtype=dtype)


# ---- Gated units -----------------------------------------------------------------------------------

@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("activation", ACT)
def test_gated(activation, save, jit):
    *inputs, grad = arrays()
    mine = lambda *a: epigrad.jax.gated_linear(*a, activation, save=save)
    y, pull = jax.vjp(jax.jit(mine) if jit else mine, *inputs)
    expected, expected_pull = jax.vjp(lambda *a: unit(*a, activation), *inputs)
    close(y, expected)
    close(pull(grad), expected_pull(grad))


def test_gated_is_swiglu_without_biases():
    x, w, w_up, bias, bias_up, grad = arrays()
    for b, b_up in ((None, None), (bias, None), (None, bias_up)):
        y, pull = jax.vjp(lambda x, w, w_up: epigrad.jax.gated_linear(x, w, w_up, b, b_up), x, w, w_up)
        expected, expected_pull = jax.vjp(
            lambda x, w, w_up: unit(x, w, w_up, 0 if b is None else b, 0 if b_up is None else b_up, "silu"), x, w, w_up)
        close(y, expected)
        close(pull(grad), expected_pull(grad))


@pytest.mark.parametrize("shape", [((), K, N), ((0,), K, N), ((3,), 0, N), ((3,), K, 0), ((2, 3, 4), K, N)])
def test_gated_shapes(shape):
    lead, k, n = shape
    *inputs, grad = draw((*lead, k), (n, k), (n, k), (n,), (n,), (*lead, n))
    y, pull = jax.vjp(epigrad.jax.gated_linear, *inputs)
    expected, expected_pull = jax.vjp(lambda *a: unit(*a, "silu"), *inputs)
    close(y, expected)
    close(pull(grad), expected_pull(grad))


def test_gated_without_a_depth():
    """A w_up without elements makes a gated unit, too: sigmoid(0) * 0, and not sigmoid(0)."""
    x, w = draw((3, 0), (N, 0))
    assert (epigrad.jax.gated_linear(x, w, w, activation="sigmoid") == 0).all()


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.float16, 2e-2), (jnp.bfloat16, 2e-1)])
def test_gated_dtypes(dtype, tolerance):
    """Beside double precision on the same numbers."""
    *inputs, grad = arrays(dtype=dtype)
    y, pull = jax.vjp(epigrad.jax.gated_linear, *inputs)
    expected, expected_pull = jax.vjp(lambda *a: unit(*a, "silu"), *(a.astype(jnp.float64) for a in inputs))
    assert y.dtype == dtype and all(g.dtype == dtype for g in pull(grad))
    close(y.astype(jnp.float64), expected, tolerance)
    close(tuple(g.astype(jnp.float64) for g in pull(grad)), expected_pull(grad.astype(jnp.float64)), tolerance)


@pytest.mark.parametrize("stacked", [(), (0,), (1,), (2,), (3, 4), (0, 1), (0, 2), (0, 4), (0, 1, 2, 3, 4)])
def test_gated_vmap(stacked):
    """Each of the arguments that are stacked has its own for each item."""
    inputs = [jnp.stack([a, -a, 2 * a]) if i in stacked else a for i, a in enumerate(arrays()[:5])]
    axes = tuple(0 if i in stacked else None for i in range(5))
    if not stacked:  # rows in another dimension than the first
        axes = (1, *axes[1:])
    mine, theirs = (jax.vmap(f, axes) for f in (lambda *a: epigrad.jax.gated_linear(*a, "gelu"),
                                                lambda *a: unit(*a, "gelu")))
    close(mine(*inputs), theirs(*inputs))
    grads = lambda f: jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), tuple(range(5))))(*inputs)
    close(grads(mine), grads(theirs))


def test_a_block_and_a_checkpoint():
    x, w, w_up, *_ = arrays()
    down, = draw((K, N))
    def loss(gated, linear):
        block = lambda x, w, w_up, down: linear(gated(x, w, w_up), down)
        return lambda *a: (block(block(*a), *a[1:]) ** 2).sum()
    mine = loss(epigrad.jax.gated_linear, epigrad.jax.linear)
    theirs = loss(lambda x, w, w_up: unit(x, w, w_up, 0, 0, "silu"), lambda x, w: x @ w.T)
    expected = jax.grad(theirs, (0, 1, 2, 3))(x, w, w_up, down)
    close(jax.jit(jax.grad(mine, (0, 1, 2, 3)))(x, w, w_up, down), expected)
    close(jax.grad(jax.checkpoint(mine), (0, 1, 2, 3))(x, w, w_up, down), expected)


# ---- Groups ----------------------------------------------------------------------------------------

def grouped(f):
    """f(x, w, bias, w_up, bias_up) of one row, over rows of groups that end at `ends`."""
    def over(ends, x, *parameters):
        rows = jnp.arange(x.shape[0])
        group = jnp.minimum(jnp.searchsorted(ends, rows, side="right"), len(ends) - 1)
        y = jax.vmap(lambda row, g: f(row, *(p[g] for p in parameters)))(x, group)
        return jnp.where(rows[:, None] < ends[-1], y, 0)
    return over


def plain_layer(activation, save="auto"):
    return (lambda ends, x, w, b: epigrad.jax.linear(x, w, b, activation, save=save, offsets=ends),
            grouped(lambda x, w, b: ACT[activation](x @ w.T + b)))


def gated_layer(activation, save="auto"):
    return (lambda ends, x, w, w_up, b, b_up: epigrad.jax.gated_linear(x, w, w_up, b, b_up, activation, save=save,
                                                                       offsets=ends),
            grouped(lambda *a: unit(*a, activation)))


def parameters(gated, dtype=jnp.float64):
    """x, the parameters, and the gradient of y."""
    weights = [(GROUPS, N, K)] * (2 if gated else 1) + [(GROUPS, N)] * (2 if gated else 1)
    return draw((ROWS, K), *weights, (ROWS, N), dtype=dtype)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
@pytest.mark.parametrize("layer", [plain_layer, gated_layer])
def test_groups(layer, activation, save, jit):
    """Ends are an argument of the compiled function, too: one program serves all routings."""
    *inputs, grad = parameters(layer is gated_layer)
    mine, theirs = layer(activation, save)
    both = lambda f: lambda ends, grad, *a: (lambda y, pull: (y, pull(grad)))(*jax.vjp(lambda *a: f(ends, *a), *a))
    mine = jax.jit(both(mine)) if jit else both(mine)
    for ends in (ENDS, (0, 0, 0, 0), (12, 12, 12, 12), (0, 3, 3, 12)):
        ends = jnp.array(ends, jnp.int32)
        close(mine(ends, grad, *inputs), both(theirs)(ends, grad, *inputs))


def test_groups_and_the_gradient_of_all_arguments():
    """Offsets are integers: a gradient over the others takes them as they are."""
    x, w, bias, _ = parameters(False)
    mine, theirs = plain_layer("tanh")
    ends = jnp.array(ENDS, jnp.int32)
    grads = lambda f: jax.grad(lambda *a: (f(ends, *a) ** 2).sum(), (0, 1, 2))(x, w, bias)
    close(grads(mine), grads(theirs))
    zero = jax.grad(lambda e: mine(e, x, w, bias).sum(), allow_int=True)(ends)
    assert zero.dtype == jax.dtypes.float0


def test_rows_of_no_group_are_not_read():
    x, w, bias, grad = parameters(False)
    nan = x.at[ENDS[-1]:].set(jnp.nan)
    mine, _ = plain_layer("gelu")
    ends = jnp.array(ENDS, jnp.int32)
    both = lambda x: (lambda y, pull: (y, pull(grad)))(*jax.vjp(lambda *a: mine(ends, *a), x, w, bias))
    close(both(nan), both(x))
    y, (d_x, *_) = both(nan)
    assert (y[ENDS[-1]:] == 0).all() and (d_x[ENDS[-1]:] == 0).all()


def test_rows_of_no_group_are_cleared_on_cuda():
    """Where the handler does not see the ends, the compiled program clears the rows. Nobody reads y here."""
    x, w, bias, _ = parameters(False)
    mine, _ = plain_layer("gelu")
    traced = jax.jit(jax.grad(lambda *a: mine(jnp.array(ENDS, jnp.int32), *a).sum(), (0, 1, 2))).trace(x, w, bias)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("stablehlo.select") == 1


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.float16, 2e-2), (jnp.bfloat16, 2e-1)])
def test_groups_dtypes(dtype, tolerance):
    *inputs, grad = parameters(True, dtype)
    mine, theirs = gated_layer("silu")
    ends = jnp.array(ENDS, jnp.int32)
    y, pull = jax.vjp(lambda *a: mine(ends, *a), *inputs)
    expected, expected_pull = jax.vjp(lambda *a: theirs(ends, *a), *(a.astype(jnp.float64) for a in inputs))
    assert y.dtype == dtype and all(g.dtype == dtype for g in pull(grad))
    close(y.astype(jnp.float64), expected, tolerance)
    close(tuple(g.astype(jnp.float64) for g in pull(grad)), expected_pull(grad.astype(jnp.float64)), tolerance)


@pytest.mark.parametrize("layer", [plain_layer, gated_layer])
def test_groups_vmap(layer):
    """Each item of x has its own ends; weights are one for all, or each item's."""
    x, *weights, _ = parameters(layer is gated_layer)
    x = jnp.stack([x, -x])
    ends = jnp.array([ENDS, (0, 5, 5, 8)], jnp.int32)
    for of_weights in (None, 0):
        chosen = weights if of_weights is None else [jnp.stack([a, 2 * a]) for a in weights]
        axes = (0, 0, *[of_weights] * len(weights))
        mine, theirs = (jax.vmap(f, axes) for f in layer("silu"))
        close(mine(ends, x, *chosen), theirs(ends, x, *chosen))
        grads = lambda f: jax.grad(lambda x, *a: (f(ends, x, *a) ** 2).sum(), tuple(range(1 + len(chosen))))(x, *chosen)
        close(grads(mine), grads(theirs))


def test_groups_beside_ragged_dot():
    x, w, *_ = parameters(False)
    sizes = jnp.array([3, 0, 5, 2], jnp.int32)
    y = jax.jit(lambda x, w, sizes: epigrad.jax.linear(x, w, offsets=jnp.cumsum(sizes, dtype=jnp.int32)))(x, w, sizes)
    close(y, jax.lax.ragged_dot(x, w.swapaxes(1, 2), sizes))


# ---- What is refused -------------------------------------------------------------------------------

def test_refused():
    x, w, w_up, bias, *_ = arrays(lead=(12,))
    xs, ws, biases, _ = parameters(False)
    ends = jnp.array(ENDS, jnp.int32)
    linear, gated = epigrad.jax.linear, epigrad.jax.gated_linear
    for error, match, call in [
            (epigrad.ArgumentError, "activation is 'swish'", lambda: gated(x, w, w_up, activation="swish")),
            (epigrad.ArgumentError, r"w_up.shape is \(4, 7\); expected \(5, 7\)", lambda: gated(x, w, w_up[:4])),
            (epigrad.ArgumentError, r"bias_up.shape is \(4,\); expected \(5,\)",
             lambda: gated(x, w, w_up, bias, bias[:4])),
            (TypeError, "w_up is NoneType", lambda: gated(x, w, None)),
            (TypeError, "w_up has elements of float32", lambda: gated(x, w, w_up.astype(jnp.float32))),
            (TypeError, "offsets is int64; expected an array of int32",
             lambda: linear(xs, ws, offsets=ends.astype(int))),
            (TypeError, "offsets is tuple", lambda: linear(xs, ws, offsets=ENDS)),
            (epigrad.ArgumentError, r"offsets.shape is \(3,\); expected \(4,\)",
             lambda: linear(xs, ws, offsets=ends[:3])),
            (epigrad.ArgumentError, r"w.shape is \(5, 7\); expected \(groups, N, K\) with offsets",
             lambda: linear(x, w, offsets=ends)),
            (epigrad.ArgumentError, r"x.shape is \(3, 4, 7\); expected \(rows, 7\) with offsets",
             lambda: linear(xs.reshape(3, 4, 7), ws, offsets=ends)),
            (epigrad.ArgumentError, r"bias.shape is \(5,\); expected \(4, 5\)",
             lambda: linear(xs, ws, bias, offsets=ends)),
            (epigrad.ArgumentError, r"w.shape is \(4, 5, 7\); expected \(N, 7\)", lambda: linear(xs, ws, biases))]:
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("ends, message", [((4, 3, 9, 10), r"offsets\[1\] is 3"),
                                           ((4, 4, 9, 13), r"offsets\[3\] is 13")])
def test_wrong_ends_fail_when_run(ends, message):
    x, w, *_ = parameters(False)
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.jit(lambda e: epigrad.jax.linear(x, w, offsets=e))(jnp.array(ends, jnp.int32)).block_until_ready()

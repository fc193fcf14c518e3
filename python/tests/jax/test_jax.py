# SPDX-License-Identifier: Apache-2.0
"""epigrad.jax beside JAX's own operators, on the CPU."""
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import epigrad
import epigrad.jax

jax.config.update("jax_enable_x64", True)

ACT = {
    "none": lambda v: v, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh, "gelu_erf": lambda v: jax.nn.gelu(v, approximate=False),
    "quick_gelu": lambda v: v * jax.nn.sigmoid(1.702 * v), "relu2": lambda v: jax.nn.relu(v) ** 2,
    "softplus": jax.nn.softplus, "hardswish": jax.nn.hard_swish, "mish": jax.nn.mish,
}


def arrays(lead=(4, 6), k=7, n=5, dtype=jnp.float64):
    rng = np.random.default_rng(5)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((*lead, k), (n, k), (n,), (*lead, n)))


def reference(x, w, bias, activation):
    return ACT[activation](x @ w.T + (0 if bias is None else bias))


def close(got, expected, tolerance=1e-11):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


def test_every_activation_is_compared():
    assert set(ACT) == set(epigrad.activations)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("activation", ACT)
def test_vjp(activation, save, jit):
    x, w, bias, grad = arrays()
    mine = lambda *a: epigrad.jax.linear(*a, activation, save=save)
    y, pull = jax.vjp(jax.jit(mine) if jit else mine, x, w, bias)
    expected, expected_pull = jax.vjp(lambda *a: reference(*a, activation), x, w, bias)
    close(y, expected)
    close(pull(grad), expected_pull(grad))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 4), (0,)])
def test_shapes(lead):
    x, w, bias, grad = arrays(lead)
    for b in (bias, None):
        y, pull = jax.vjp(lambda x, w: epigrad.jax.linear(x, w, b, "silu"), x, w)
        expected, expected_pull = jax.vjp(lambda x, w: reference(x, w, b, "silu"), x, w)
        close(y, expected)
        close(pull(grad), expected_pull(grad))


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-5), (jnp.float16, 2e-2), (jnp.bfloat16, 2e-1)])
def test_dtypes(dtype, tolerance):
    """Beside double precision on the same numbers; XLA rounds within a chain, and is no reference for 16 bits."""
    x, w, bias, grad = arrays(dtype=dtype)
    y, pull = jax.vjp(lambda *a: epigrad.jax.linear(*a, "gelu"), x, w, bias)
    wide = [a.astype(jnp.float64) for a in (x, w, bias)]
    expected, expected_pull = jax.vjp(lambda *a: reference(*a, "gelu"), *wide)
    assert y.dtype == dtype and all(g.dtype == dtype for g in pull(grad))
    close(y.astype(jnp.float64), expected, tolerance)
    close(tuple(g.astype(jnp.float64) for g in pull(grad)), expected_pull(grad.astype(jnp.float64)), tolerance)


IN_AXES = [(0, None, None), (1, None, None), (None, 0, None), (0, 0, None), (None, None, 0), (0, 0, 0)]


@pytest.mark.parametrize("in_axes", IN_AXES)
def test_vmap(in_axes):
    x, w, bias, _ = arrays(lead=(3, 3))
    w = jnp.stack([w, 2 * w, -w]) if in_axes[1] is not None else w
    bias = jnp.stack([bias, -bias, 3 * bias]) if in_axes[2] is not None else bias
    mine, theirs = (jax.vmap(lambda x, w, b, f=f: f(x, w, b, "gelu"), in_axes)
                    for f in (epigrad.jax.linear, reference))
    close(mine(x, w, bias), theirs(x, w, bias))
    loss = lambda f: lambda *a: (f(*a) ** 2).sum()
    close(jax.grad(loss(mine), (0, 1, 2))(x, w, bias), jax.grad(loss(theirs), (0, 1, 2))(x, w, bias))
    each = lambda f: jax.vmap(jax.grad(lambda x, w, b: (f(x, w, b, "tanh") ** 2).sum(), (0, 1, 2)), in_axes)
    close(jax.jit(each(epigrad.jax.linear))(x, w, bias), each(reference)(x, w, bias))


def test_vmap_twice():
    """Of two dimensions in front, each array has its own."""
    x, w, bias, _ = arrays(lead=(3, 4, 2))
    w = jnp.stack([w, 2 * w, -w])
    bias = jnp.stack([bias, -bias, 3 * bias, bias])
    twice = lambda f: jax.vmap(jax.vmap(lambda x, w, b: f(x, w, b, "silu"), (0, None, 0)), (0, 0, None))
    close(twice(epigrad.jax.linear)(x, w, bias), twice(reference)(x, w, bias))
    grads = lambda f: jax.grad(lambda *a: (twice(f)(*a) ** 2).sum(), (0, 1, 2))(x, w, bias)
    close(grads(epigrad.jax.linear), grads(reference))


def test_two_layers_and_a_checkpoint():
    x, w, bias, _ = arrays(k=5)
    model = lambda f: lambda w, b: (f(f(x, w, b, "gelu"), w, b, "relu") ** 2).sum()
    expected = jax.grad(model(reference), (0, 1))(w, bias)
    close(jax.jit(jax.grad(model(epigrad.jax.linear), (0, 1)))(w, bias), expected)
    close(jax.grad(jax.checkpoint(model(epigrad.jax.linear)), (0, 1))(w, bias), expected)


def test_refused():
    x, w, bias, _ = arrays()
    linear = epigrad.jax.linear
    for error, match, call in [
            (epigrad.ArgumentError, "activation is 'swish'", lambda: linear(x, w, bias, "swish")),
            (epigrad.ArgumentError, r"w.shape is \(5, 6\); expected \(N, 7\)", lambda: linear(x, w[:, :6])),
            (epigrad.ArgumentError, r"bias.shape is \(4,\); expected \(5,\)", lambda: linear(x, w, bias[:4])),
            (TypeError, "w has elements of float32; expected float64", lambda: linear(x, w.astype(jnp.float32))),
            (TypeError, "x is int64", lambda: linear(jnp.ones((2, 7), jnp.int64), w)),
            (TypeError, "w is list", lambda: linear(x, [1]))]:
        with pytest.raises(error, match=match):
            call()


def test_arrays_of_the_plain_functions():
    x, w, bias, grad = arrays(dtype=jnp.bfloat16)
    y, pre = epigrad.linear(x, w, bias, activation="gelu", save="pre")
    assert isinstance(y, jax.Array) and y.dtype == jnp.bfloat16 and isinstance(pre, jax.Array)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="gelu", saved=pre)
    assert d_x.shape == x.shape and d_w.shape == w.shape and d_bias.shape == bias.shape
    with pytest.raises(epigrad.ArgumentError, match="out is read-only"):
        epigrad.linear(x.astype(jnp.float32), w.astype(jnp.float32), out=jnp.zeros((4, 6, 5), jnp.float32))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, epigrad.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("data",))
put = lambda array, *spec: jax.device_put(array, NamedSharding(mesh, P(*spec)))
x, w, b = np.random.rand(8, 7).astype("f"), np.random.rand(5, 7).astype("f"), np.random.rand(5).astype("f")
loss = lambda linear: lambda x, w, b: jnp.sum(linear(x, w, b) ** 2)
mine = jax.jit(jax.value_and_grad(loss(lambda *t: epigrad.jax.linear(*t, "tanh")), (0, 1, 2)))
theirs = jax.value_and_grad(loss(lambda x, w, b: jnp.tanh(x @ w.T + b)), (0, 1, 2))(x, w, b)
for rows in ((), ("data",)):  # x on every device, or its rows shared out
    got = mine(put(x, *rows), put(w), put(b))
    assert len(got[1][1].sharding.device_set) == 2
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, theirs)
print("same")
"""


def test_sharding_by_replication():
    """Over several devices a call is made on each, with whole arrays."""
    run = subprocess.run([sys.executable, "-c", SHARDED], capture_output=True, text=True, check=False,
                         env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"})
    assert run.stdout.strip() == "same", run.stderr

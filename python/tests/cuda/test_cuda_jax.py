# SPDX-License-Identifier: Apache-2.0
"""epigrad.jax on an NVIDIA device, beside jax.vjp of JAX's own operations."""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # other libraries' tests are in this process

import pytest  # noqa: E402

jax = pytest.importorskip("jax")
try:
    jax.devices("cuda")
except RuntimeError:
    pytest.skip("no CUDA device", allow_module_level=True)
import jax.numpy as jnp  # noqa: E402

import epigrad.jax  # noqa: E402

ACT = {"none": lambda v: v, "gelu": jax.nn.gelu, "silu": jax.nn.silu, "tanh": jnp.tanh}


def arrays(dtype):
    keys = jax.random.split(jax.random.key(3), 4)
    make = lambda key, *shape: jax.random.normal(key, shape, jnp.float32).astype(dtype)
    return make(keys[0], 100, 64), make(keys[1], 48, 64) / 8, make(keys[2], 48), make(keys[3], 100, 48)


@pytest.mark.parametrize("save", ["auto", "recompute"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 3e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("name", ACT)
def test_values(name, dtype, tolerance, save):
    x, w, bias, grad = arrays(dtype)
    wide = [array.astype(jnp.float32) for array in (x, w, bias)]
    with jax.default_matmul_precision("highest"):
        wanted, pull = jax.vjp(lambda x, w, b: ACT[name](x @ w.T + b), *wide)
        wanted = (wanted, *pull(grad.astype(jnp.float32)))

    @jax.jit
    def both(x, w, bias, grad):
        y, pull = jax.vjp(lambda *t: epigrad.jax.linear(*t, name, save=save), x, w, bias)
        return (y, *pull(grad))

    for got, expected in zip(both(x, w, bias, grad), wanted):
        assert got.dtype == x.dtype
        assert jnp.abs(got.astype(jnp.float32) - expected).max() <= tolerance * jnp.abs(expected).max()


def test_vmap():
    x, w, bias, _ = arrays("float32")
    xs, ws = jnp.stack([x, 2 * x]), jnp.stack([w, -w])
    with jax.default_matmul_precision("highest"):
        wanted = jnp.stack([jnp.tanh(a @ b.T + bias) for a, b in zip(xs, ws)])
    got = jax.jit(jax.vmap(lambda a, b: epigrad.jax.linear(a, b, bias, "tanh")))(xs, ws)
    assert jnp.abs(got - wanted).max() <= 1e-5


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 3e-3), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("groups", [0, 3])
def test_gated(groups, dtype, tolerance):
    """Of groups, the last rows belong to none: they are 0, whatever memory held."""
    lead = (groups,) if groups else ()
    keys = jax.random.split(jax.random.key(4), 6)
    shapes = (100, 64), (*lead, 48, 64), (*lead, 48, 64), (*lead, 48), (*lead, 48), (100, 48)
    *inputs, grad = (jax.random.normal(key, shape).astype(dtype) / (8 if shape[-2:] == (48, 64) else 1)
                     for key, shape in zip(keys, shapes))
    ends = jnp.array([40, 40, 90], jnp.int32) if groups else None

    def reference(x, w, w_up, bias, bias_up):
        def unit(x, w, w_up, bias, bias_up):
            return jax.nn.silu(x @ w.T + bias) * (x @ w_up.T + bias_up)
        if not groups:
            return unit(x, w, w_up, bias, bias_up)
        rows = jnp.arange(100)
        group = jnp.minimum(jnp.searchsorted(ends, rows, side="right"), groups - 1)
        each = jax.vmap(unit, (None, 0, 0, 0, 0), 1)(x, w, w_up, bias, bias_up)[rows, group]
        return jnp.where(rows[:, None] < ends[-1], each, 0)

    def both(f, grad, *inputs):
        y, pull = jax.vjp(f, *inputs)
        return (y, *pull(grad))

    with jax.default_matmul_precision("highest"):
        wanted = both(reference, *(a.astype(jnp.float32) for a in (grad, *inputs)))
    mine = lambda *a: epigrad.jax.gated_linear(*a, offsets=ends)
    for got, expected in zip(jax.jit(lambda *a: both(mine, *a))(grad, *inputs), wanted):
        assert got.dtype == dtype
        assert jnp.abs(got.astype(jnp.float32) - expected).max() <= tolerance * jnp.abs(expected).max()

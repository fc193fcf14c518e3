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

# SPDX-License-Identifier: Apache-2.0
"""CuPy's arrays in and out, by DLPack, on CuPy's stream."""
import pytest

import epigrad

cupy = pytest.importorskip("cupy")
try:
    cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    pytest.skip("no CUDA device", allow_module_level=True)


def arrays(dtype):
    generator = cupy.random.RandomState(3)
    make = lambda *shape: generator.standard_normal(shape).astype(dtype)
    return make(6, 50, 64), make(48, 64), make(48), make(6, 50, 48)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5), ("float16", 3e-3)])
def test_in_and_out(dtype, tolerance):
    x, w, bias, grad = arrays(dtype)
    y, pre = epigrad.linear(x, w, bias, activation="tanh", save="pre")
    assert type(y) is cupy.ndarray and y.dtype == x.dtype and y.device == x.device
    wide = x.astype("float64") @ w.astype("float64").T + bias
    near = lambda a, b: cupy.abs(a.astype("float64") - b).max() <= tolerance * cupy.abs(b).max()
    assert near(y, cupy.tanh(wide)) and near(pre, wide)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="tanh", saved=pre)
    grad_pre = grad.astype("float64") * (1 - cupy.tanh(wide) ** 2)
    assert near(d_x, grad_pre @ w.astype("float64"))
    assert near(d_w, cupy.einsum("abn,abk->nk", grad_pre, x.astype("float64")))
    assert near(d_bias, grad_pre.sum((0, 1)))


def test_written_in_place():
    x, w, bias, _ = arrays("float32")
    wanted = epigrad.linear(x, w, bias, activation="gelu")
    y = cupy.zeros((6, 50, 48), "float32")
    assert epigrad.linear(x, w, bias, activation="gelu", out=y) is y and bool((y == wanted).all())


def test_current_stream():
    x, w, bias, _ = arrays("float32")
    wanted = epigrad.linear(x, w, bias)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        late = cupy.zeros_like(x)
        for _ in range(200):
            late = late * 0 + x
        y = epigrad.linear(late, w, bias)
    stream.synchronize()
    assert bool((y == wanted).all())


def test_with_torch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA device")
    x, w, bias, _ = arrays("float32")
    mixed = epigrad.linear(x, torch.as_tensor(w, device="cuda"), bias)
    assert type(mixed) is cupy.ndarray and bool((mixed == epigrad.linear(x, w, bias)).all())

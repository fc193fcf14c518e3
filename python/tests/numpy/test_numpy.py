# SPDX-License-Identifier: Apache-2.0
"""The package over NumPy and the buffer protocol: values beside double precision, layouts, and what is refused."""
import array
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

import epigrad

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
# Unit roundoff of the type that is stored; sums are of at most some hundred terms of size 1.
ROUNDOFF = {np.float64: 2.0**-53, np.float32: 2.0**-24, np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}

ACT = {
    "none": (lambda v: v, lambda v: np.ones_like(v)),
    "relu": (lambda v: np.maximum(v, 0), lambda v: (v > 0).astype(v.dtype)),
    "tanh": (np.tanh, lambda v: 1 - np.tanh(v) ** 2),
    "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), lambda v: np.exp(-v) / (1 + np.exp(-v)) ** 2),
    "silu": (lambda v: v / (1 + np.exp(-v)), lambda v: (1 + np.exp(-v) * (1 + v)) / (1 + np.exp(-v)) ** 2),
}


@pytest.fixture(name="rng")
def make_rng():
    return np.random.default_rng(1)


def arrays(rng, dtype, m=5, k=7, n=3):
    """x, w, bias, grad whose values are multiples of 1/4: pre has no rounding in float32, and little in 16 bits."""
    draw = lambda *shape: (rng.integers(-4, 5, shape) / 4).astype(dtype)
    return draw(m, k), draw(n, k), draw(n), draw(m, n)


def reference(x, w, bias, grad, activation):
    x, w, bias, grad = (value.astype(np.float64) for value in (x, w, bias, grad))
    pre = x @ w.T + bias
    act, derivative = ACT[activation]
    grad_pre = grad * derivative(pre)
    return pre, act(pre), grad_pre @ w, grad_pre.T @ x, grad_pre.sum(0)


def near(got, expected, dtype, terms):
    assert got.shape == expected.shape and got.dtype == dtype
    bound = ROUNDOFF[dtype] * (2 + np.abs(expected)) + max(ROUNDOFF[dtype], 2.0**-24) * 4 * terms
    assert np.all(np.abs(got.astype(np.float64) - expected) <= bound)


@pytest.mark.parametrize("activation", ACT)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("save", [None, "pre", "y"])
def test_values(rng, dtype, activation, save):
    x, w, bias, grad = arrays(rng, dtype)
    if save == "y" and activation not in epigrad.from_y:
        with pytest.raises(epigrad.ArgumentError, match="save is 'y'"):
            epigrad.linear(x, w, bias, activation=activation, save="y")
        return
    pre, y, d_x, d_w, d_bias = reference(x, w, bias, grad, activation)
    result = epigrad.linear(x, w, bias, activation=activation, save=save)
    got, saved = result if save else (result, None)
    near(got, y, dtype, 7)
    if save == "pre":
        near(saved, pre, dtype, 7)
    if save == "y":
        assert saved is got
    gradients = epigrad.linear_backward(grad, x, w, bias, activation=activation, saved=saved, save=save or "pre")
    for value, expected in zip(gradients, (d_x, d_w, d_bias)):
        near(value, expected, dtype, 12)


def test_names_of_activations():
    assert epigrad.activations[:3] == ("none", "relu", "gelu")
    x = np.linspace(-3, 3, 7).reshape(7, 1)
    for name in epigrad.activations:
        assert epigrad.linear(x, np.ones((1, 1)), activation=name).shape == (7, 1)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (2, 3, 4)])
def test_leading_dimensions(rng, lead):
    x = rng.standard_normal((*lead, 6))
    w, bias = rng.standard_normal((5, 6)), rng.standard_normal(5)
    y, pre = epigrad.linear(x, w, bias, activation="tanh", save="pre")
    assert np.allclose(y, np.tanh(x @ w.T + bias), atol=1e-14) and pre.shape == (*lead, 5)
    grad = rng.standard_normal(y.shape)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="tanh", saved=pre)
    grad_pre = (grad * (1 - np.tanh(pre) ** 2)).reshape(-1, 5)
    assert np.allclose(d_x, (grad_pre @ w).reshape(x.shape), atol=1e-13)
    assert np.allclose(d_w, grad_pre.T @ x.reshape(-1, 6), atol=1e-13)
    assert np.allclose(d_bias, grad_pre.sum(0), atol=1e-13)


def test_batched_weight(rng):
    x, w = rng.standard_normal((4, 2, 3, 6)), rng.standard_normal((4, 5, 6))
    y = epigrad.linear(x, w)
    assert np.allclose(y, np.einsum("bijk,bnk->bijn", x, w), atol=1e-13)
    grad = rng.standard_normal(y.shape)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w)
    assert d_bias is None
    assert np.allclose(d_x, np.einsum("bijn,bnk->bijk", grad, w), atol=1e-13)
    assert np.allclose(d_w, np.einsum("bijn,bijk->bnk", grad, x), atol=1e-13)


def test_layouts_without_a_copy(rng):
    w = np.ascontiguousarray(rng.standard_normal((6, 5)))
    x = rng.standard_normal((4, 6))
    expected = x @ w
    assert np.allclose(epigrad.linear(x, w.T), expected, atol=1e-14)  # [K, N] as its transpose
    assert np.allclose(epigrad.linear(np.asfortranarray(x), w.T), expected, atol=1e-14)
    wide = rng.standard_normal((4, 11))
    assert np.allclose(epigrad.linear(wide[:, 2:8], w.T), wide[:, 2:8] @ w, atol=1e-14)  # ld 11
    heads = rng.standard_normal((4, 3, 6))  # every second dimension of an interleaved batch
    assert np.allclose(epigrad.linear(heads.swapaxes(0, 1), w.T), heads.swapaxes(0, 1) @ w, atol=1e-14)
    out = np.full((4, 9), np.nan)
    assert epigrad.linear(x, w.T, out=out[:, 1:6]) is not None
    assert np.allclose(out[:, 1:6], expected, atol=1e-14) and np.isnan(out[:, [0, 6, 7, 8]]).all()


def test_out_and_accumulate(rng):
    x, w, bias, grad = arrays(rng, ml_dtypes.bfloat16)
    y, pre = np.empty((5, 3), x.dtype), np.empty((5, 3), x.dtype)
    got = epigrad.linear(x, w, bias, activation="relu", save="pre", out=(y, pre))
    assert got[0] is y and got[1] is pre
    main = np.ones((3, 7), np.float32), np.ones(3, np.float32)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="relu", saved=pre, out=(None, *main),
                                               accumulate=True)
    expected = reference(x, w, bias, grad, "relu")
    assert d_w is main[0] and d_bias is main[1] and d_x.dtype == x.dtype
    assert np.allclose(d_w, 1 + expected[3]) and np.allclose(d_bias, 1 + expected[4])


def test_what_is_added(rng):
    x, w, bias, grad = arrays(rng, np.float32)
    sums = [np.ones((5, 7), "f"), np.ones((3, 7), "f"), np.ones(3, "f")]
    expected = reference(x, w, bias, grad, "relu")[2:]
    for names in (["d_x"], ("d_x", "d_bias"), {"d_w"}, []):
        out = [one.copy() for one in sums]
        got = epigrad.linear_backward(grad, x, w, bias, activation="relu", out=out, accumulate=names)
        for name, one, value in zip(("d_x", "d_w", "d_bias"), got, expected):
            assert np.allclose(one, value + (name in names), atol=1e-5)
    residual = rng.standard_normal((5, 7)).astype("f")
    assert np.allclose(epigrad.linear_backward(grad, x, w, residual=residual)[0], grad @ w + residual, atol=1e-5)
    d_x = residual.copy()
    assert epigrad.linear_backward(grad, x, w, residual=d_x, out=(d_x, None, None))[0] is d_x
    assert np.allclose(d_x, grad @ w + residual, atol=1e-5)


def test_scale(rng):
    x, w, bias, grad = arrays(rng, np.float32)
    assert np.allclose(epigrad.linear(x, w, bias, scale=0.125), 0.125 * (x @ w.T) + bias, atol=1e-6)
    pre, y, *_ = reference(x, 0.5 * w, bias, grad, "relu")
    got = epigrad.linear(x, w, bias, activation="relu", save="pre", scale=0.5)
    assert np.allclose(got[0], y, atol=1e-5) and np.allclose(got[1], pre, atol=1e-5)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, activation="relu", scale=0.5)
    expected = reference(x, 0.5 * w, bias, grad, "relu")[2:]
    assert np.allclose(d_x, expected[0], atol=1e-5) and np.allclose(d_w, 0.5 * expected[1], atol=1e-5)
    assert np.allclose(d_bias, expected[2], atol=1e-5)
    for wrong in (0, float("nan"), 1e60):
        with pytest.raises(epigrad.ArgumentError, match="scale is"):
            epigrad.linear(x, w, scale=wrong)


def test_need(rng):
    x, w, bias, grad = arrays(rng, np.float32)
    d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, bias, need=(False, True, False))
    assert d_x is None and d_bias is None and np.allclose(d_w, grad.T @ x)


def test_residual(rng):
    x, w, bias, residual = arrays(rng, np.float32)
    assert np.allclose(epigrad.linear(x, w, bias, residual=residual), x @ w.T + bias + residual)
    with pytest.raises(epigrad.ArgumentError, match="residual"):
        epigrad.linear(x, w, bias, residual=residual, activation="relu")


@pytest.mark.parametrize("m, k, n", [(0, 4, 3), (3, 0, 2), (3, 4, 0)])
def test_empty(m, k, n):
    x, w, bias = np.ones((m, k)), np.ones((n, k)), np.full(n, 2.0)
    y = epigrad.linear(x, w, bias)
    assert y.shape == (m, n) and np.all(y == k + 2.0)
    d_x, d_w, d_bias = epigrad.linear_backward(np.ones((m, n)), x, w, bias)
    assert np.all(d_x == n) and np.all(d_w == m) and np.all(d_bias == m)


@pytest.mark.parametrize("lead", [(0, 2), (0, 2, 5), (0, 0)])
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_a_batch_of_none(lead, activation):
    """Its results are empty, as those of NumPy's x @ w.mT. Gradients of biases are sums over it, and 0."""
    x, w, grad = np.ones((*lead, 4)), np.ones((0, 3, 4)), np.ones((*lead, 3))
    y, pre = epigrad.linear(x, w, np.ones(3), activation=activation, save="pre")
    assert y.shape == pre.shape == grad.shape
    assert epigrad.linear(x, w).shape == grad.shape
    for saved in (pre, None):
        d_x, d_w, d_bias = epigrad.linear_backward(grad, x, w, np.ones(3), activation=activation, saved=saved)
        assert d_x.shape == x.shape and d_w.shape == w.shape and np.array_equal(d_bias, np.zeros(3))
    d_bias = np.full(3, 5.0)
    epigrad.linear_backward(grad, x, w, out=(None, None, d_bias), need=(False, False, True), accumulate=True)
    assert np.all(d_bias == 5)


def test_an_empty_batch_writes_nothing():
    x, w, guard = np.ones((0, 2, 4)), np.ones((0, 3, 4)), np.full(12, 7.0)
    d_x, d_w, _ = epigrad.linear_backward(np.ones((0, 2, 3)), x, w, out=(None, guard[:0].reshape(0, 3, 4), None))
    assert d_x.shape == (0, 2, 4) and d_w.shape == (0, 3, 4) and np.all(guard == 7)


def test_buffer_protocol():
    flat = array.array("f", range(6))
    x, w = memoryview(flat).cast("B").cast("f", (2, 3)), memoryview(bytes(24)).cast("f", (2, 3))
    y = epigrad.linear(x, w)
    assert isinstance(y, memoryview) and y.shape == (2, 2) and y.tolist() == [[0, 0], [0, 0]]


def test_dlpack_alone():
    """An object that has nothing but __dlpack__, as a library may that this one knows nothing of."""
    class Wrapped:
        def __init__(self, inner):
            self.inner, self.shape = inner, inner.shape

        def __dlpack__(self, **named):
            return self.inner.__dlpack__(**named)

        def __dlpack_device__(self):
            return self.inner.__dlpack_device__()

    class Old(Wrapped):
        def __dlpack__(self, stream=None):
            return self.inner.__dlpack__()

    x, w = np.arange(6.0).reshape(2, 3), np.ones((4, 3))
    for kind in (Wrapped, Old):
        out = np.empty((2, 4))
        references = sys.getrefcount(x)
        epigrad.linear(kind(x), kind(w), out=kind(out))
        assert np.all(out == x @ w.T) and sys.getrefcount(x) == references
        with pytest.raises(epigrad.UnsupportedError, match="expected out="):
            epigrad.linear(kind(x), kind(w))


# ---- What is refused -------------------------------------------------------------------------------

def refused(error, match, *args, **named):
    with pytest.raises(error, match=match):
        epigrad.linear(*args, **named)


def test_refused(rng):
    x, w, bias, grad = arrays(rng, np.float32)
    wrong = epigrad.ArgumentError
    refused(TypeError, r"^x is a list", [1, 2], w)
    refused(TypeError, r"^w is <class 'int'>; expected an array", x, 3, out=grad)
    refused(TypeError, r"^w has elements of f64; expected f32, as x has", x, w.astype(float))
    refused(TypeError, r"^x has elements of format \"l\"", x.astype(int), w)
    refused(TypeError, r"^bias has elements of f16", x, w, bias.astype(np.float16))
    refused(wrong, r"^w.shape is \(3, 6\); expected \(N, 7\)", x, w[:, :6])
    refused(wrong, r"^bias.shape is \(2,\); expected \(3,\)", x, w, bias[:2])
    refused(wrong, r"^out.shape is \(5, 4\); expected \(5, 3\)", x, w, out=np.empty((5, 4), "f"))
    refused(wrong, r"^x.shape is \(\)", np.float32(1), w, out=grad)
    refused(wrong, r"^w.shape is \(7,\)", x, w[0], out=grad)
    refused(wrong, r"^x of shape \(5, 7\) has strides \(28, 2\)", np.empty((5, 14, 2), "f")[:, ::1, 0][:, :7], w)
    refused(wrong, r"^x of shape \(5, 7\) has strides \(0, 1\)", np.broadcast_to(x[0], (5, 7)), w)
    refused(wrong, r"^bias of shape \(3,\) has strides \(2,\)", x, w, np.zeros(6, "f")[::2])
    refused(wrong, r"^activation is 'swish'; expected one of 'none', 'relu'", x, w, activation="swish")
    refused(wrong, r"^math is 'quick'", x, w, math="quick")
    refused(wrong, r"^save is 'all'", x, w, save="all")
    refused(wrong, r"y at .* overlaps a at", x, np.zeros((7, 7), "f"), out=x)
    frozen = np.zeros((5, 3), "f")
    frozen.flags.writeable = False
    refused(wrong, r"^out is read-only", x, w, out=frozen)
    assert np.all(frozen == 0)


# Some fit into the bits that C has for the number, if what is above them is cut off.
NEGATIVE_OR_LARGE = [-1, -2**63, 2**64, 2**64 + 4096, 10**40]
NO_WHOLE_NUMBER = [1.5, "3", None, np.ones(2)]


@pytest.mark.parametrize("name, most, call", [
    ("workspace_limit", 2**64 - 1, lambda x, value: epigrad.linear(x, x, workspace_limit=value)),
    ("workspace_limit", 2**64 - 1, lambda x, value: epigrad.linear_backward(x, x, x, workspace_limit=value)),
    ("stream", 2**63 - 1, lambda x, value: epigrad.linear(x, x, stream=value)),
    ("stream", 2**63 - 1, lambda x, value: epigrad.linear_backward(x, x, x, stream=value)),
    ("threads", 4096, lambda x, value: epigrad.set_num_threads(value)),
    ("device", 2**31 - 1, lambda x, value: epigrad.device_info("cpu", value)),
    ("device", 2**31 - 1, lambda x, value: epigrad.device_info("cuda", value)),
])
def test_refused_numbers(name, most, call):
    x = np.ones((4, 4))
    for value in [*NEGATIVE_OR_LARGE, most + 1]:
        with pytest.raises(epigrad.ArgumentError, match=rf"^{name} is {value}; expected 0 to {most}$"):
            call(x, value)
    for value in NO_WHOLE_NUMBER:
        if value is not None or name != "stream":
            with pytest.raises(TypeError, match=rf"^{name} is <class '.*'>; expected a whole number$"):
                call(x, value)


def test_numbers_of_other_types(rng):
    """Those of NumPy are whole numbers, too, and so is the largest one that C has."""
    x, w, bias, _ = arrays(rng, np.float32)
    expected = epigrad.linear(x, w, bias)
    for limit in (np.int64(1 << 20), np.uint8(0), True << 20, 2**64 - 1):
        assert np.array_equal(epigrad.linear(x, w, bias, workspace_limit=limit, stream=np.int32(0)), expected)
    assert epigrad.device_info("cpu", np.int64(0)) == epigrad.device_info()
    for value, error in (("2", TypeError), (None, TypeError), (10**400, epigrad.ArgumentError)):
        refused(error, "^scale is ", x, w, scale=value)


def test_scratch_of_the_arrays_library(rng):
    """Where the shim is given what makes memory, the workspace is from there, and is not kept."""
    from epigrad import _library
    x, w, bias, grad = arrays(rng, np.float32, 70, 130, 90)
    d_x, d_w, made = np.empty_like(x), np.empty_like(w), []

    def scratch(count):
        made.append(np.empty(count + 16, np.float32))
        start = -made[-1].ctypes.data % 64 // 4
        return made[-1][start:start + count]

    call = lambda scratch: _library.backward(x, w, bias, None, None, grad, None, None, None, d_x, d_w, None, None,
                                             None, None, 0, 0, 2, 0, 0, 1, 0, None, scratch)
    call(scratch)
    wanted = epigrad.linear_backward(grad, x, w, bias, activation="gelu")
    assert made and np.array_equal(d_x, wanted[0]) and np.array_equal(d_w, wanted[1])
    kept = weakref.ref(made.pop())
    assert kept() is None
    with pytest.raises(ZeroDivisionError):
        call(lambda count: 1 // 0)
    with pytest.raises(TypeError, match="the workspace is <class 'int'>"):
        call(lambda count: count)


def test_inputs_may_be_read_only(rng):
    x, w, bias, _ = arrays(rng, np.float32)
    for value in (x, w, bias):
        value.flags.writeable = False
    assert np.allclose(epigrad.linear(x, w, bias), x @ w.T + bias)


def test_refused_backward(rng):
    x, w, bias, grad = arrays(rng, np.float32)
    wrong = epigrad.ArgumentError
    for error, match, args, named in [
            (wrong, r"^grad.shape is \(5, 7\); expected \(5, 3\)", (x, x, w), {}),
            (wrong, r"^saved.shape", (grad, x, w), {"saved": x}),
            (wrong, r"^save is 'y' with activation 'gelu'", (grad, x, w),
             {"saved": grad, "save": "y", "activation": "gelu"}),
            (wrong, r"^out has 2", (grad, x, w), {"out": (None, None)}),
            (wrong, r"^accumulate is True, and out lacks", (grad, x, w), {"accumulate": True}),
            (wrong, r"^accumulate is \('d_x',\), and out lacks d_x", (grad, x, w), {"accumulate": ("d_x",)}),
            (wrong, r"^accumulate has 'd_w_up'; expected names of d_x, d_w, d_bias$", (grad, x, w),
             {"accumulate": ["d_w_up"]}),
            (wrong, r"^accumulate is 'd_x'; expected a truth, or names", (grad, x, w), {"accumulate": "d_x"}),
            (wrong, r"^residual.shape is \(5, 3\)", (grad, x, w), {"residual": grad}),
            (wrong, r"^d_w.shape", (grad, x, w), {"out": (None, np.empty((7, 3), "f"), None)}),
            (TypeError, r"^d_w has elements of f64; expected f32", (grad, x, w),
             {"out": (None, np.empty((3, 7)), None)}),
            (TypeError, r"^grad is None", (None, x, w), {})]:
        with pytest.raises(error, match=match):
            epigrad.linear_backward(*args, **named)


def test_references(rng):
    """Neither success nor failure keeps, or loses, a reference."""
    x, w, bias, grad = arrays(rng, np.float32)
    before = [sys.getrefcount(value) for value in (x, w, bias, None)]
    for _ in range(2000):
        epigrad.linear(x, w, bias)
        epigrad.linear_backward(grad, x, w, bias)
        with pytest.raises(epigrad.ArgumentError):
            epigrad.linear(x, w, bias[:2])
    after = [sys.getrefcount(value) for value in (x, w, bias, None)]
    assert before[:3] == after[:3] and abs(before[3] - after[3]) < 100


def test_threads(rng):
    """Many threads at once: each has the results that it has alone, and its own message."""
    inputs = [arrays(np.random.default_rng(seed), np.float32, 64 + seed, 48, 40) for seed in range(8)]
    alone = [epigrad.linear_backward(grad, x, w, bias, activation="gelu") for x, w, bias, grad in inputs]
    faults = []

    def work(i):
        x, w, bias, grad = inputs[i]
        for _ in range(30):
            got = epigrad.linear_backward(grad, x, w, bias, activation="gelu")
            if not all(np.array_equal(a, b) for a, b in zip(got, alone[i])):
                faults.append(f"thread {i}: other bits")
            try:
                epigrad.linear(x, w, bias[:i])
            except epigrad.ArgumentError as error:
                if f"bias.shape is ({i}," not in str(error):
                    faults.append(f"thread {i}: {error}")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_the_lock_is_given_up():
    """The other thread runs on before the call has ended, though nobody takes the lock from this one."""
    x = np.ones((1500, 1500))
    started, ended = threading.Event(), threading.Event()

    def compute():
        started.set()
        epigrad.linear(x, x)
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        started.wait()
        assert not ended.is_set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_set_num_threads(rng):
    x, w, bias, _ = arrays(rng, np.float32, 70, 90, 110)
    expected = epigrad.linear(x, w, bias)
    try:
        for threads in (1, 3, 2):
            epigrad.set_num_threads(threads)
            assert epigrad.device_info()[2] == threads
            assert np.array_equal(epigrad.linear(x, w, bias), expected)
    finally:
        epigrad.set_num_threads(0)
    with pytest.raises(epigrad.ArgumentError, match="threads is -1"):
        epigrad.set_num_threads(-1)


def test_device_info():
    name, features, threads = epigrad.device_info()
    assert name and "portable" in features and threads >= 1
    with pytest.raises(epigrad.ArgumentError, match="backend is 'tpu'"):
        epigrad.device_info("tpu")
    with pytest.raises(epigrad.UnavailableError, match="device is 1; this machine has one CPU device, 0"):
        epigrad.device_info("cpu", 1)
    with pytest.raises(epigrad.ArgumentError, match="device is -1; expected 0 to"):
        epigrad.device_info("cpu", -1)
    try:
        epigrad.device_info("cuda", 63)
    except (epigrad.UnavailableError, epigrad.ArgumentError) as error:
        assert str(error)
    else:
        pytest.fail("there is no sixty-fourth device")


def test_fork():
    """In a process of its own: other libraries of this one may not bear it."""
    code = """if True:
        import os, numpy as np, epigrad
        x, w = np.ones((300, 200)), np.ones((100, 200))
        epigrad.linear(x, w)
        child = os.fork()
        y = epigrad.linear(x, w)
        good = np.all(y == 200)
        if child == 0:
            os._exit(0 if good else 1)
        raise SystemExit(0 if good and os.waitpid(child, 0)[1] == 0 else 1)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_command():
    run = subprocess.run([sys.executable, "-m", "epigrad", "--version"], text=True, capture_output=True, check=True)
    assert epigrad.__version__ in run.stdout


def test_without_numpy():
    """The package imports no array library."""
    code = "import sys, epigrad; sys.exit(any(name in sys.modules for name in ('numpy', 'torch', 'jax')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

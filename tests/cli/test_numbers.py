# SPDX-License-Identifier: Apache-2.0
"""The results of forward and backward: every activation, mode, type and layout, against the reference."""

import numpy as np
import pytest

from conftest import DTYPES, call, least_limit, read, refuse, succeed, write
from reference import ACTIVATIONS, FROM_Y, Wide, backward, check, check_all, forward, plus

M, K, N = 19, 37, 23


def draw(random, dtype, *shape, scale=1.0):
    return (scale * random.standard_normal(shape)).astype(DTYPES[dtype])


def wide(array):
    return array.astype(Wide)


@pytest.fixture
def inputs(random):
    def make(dtype, m=M, k=K, n=N):
        scale = 2 / np.sqrt(k)
        return {
            "a": draw(random, dtype, m, k),
            "b": draw(random, dtype, k, n, scale=scale),
            "bias": draw(random, dtype, n),
            "grad": draw(random, dtype, m, n),
        }

    return make


# ---- Activations, modes, types ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_forward(tmp_path, inputs, activation, dtype):
    x = inputs(dtype)
    results = call(tmp_path, "forward", x, "--activation", activation, "--save-pre")
    expected = forward(wide(x["a"]), wide(x["b"]), wide(x["bias"]), activation=activation, dtype=dtype)
    check_all(results, expected, dtype, ["y", "pre"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_recomputes(tmp_path, inputs, activation, dtype):
    x = inputs(dtype)
    results = call(tmp_path, "backward", x, "--activation", activation, "--want", "d_a,d_b,d_bias,grad_pre")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation=activation, dtype=dtype)
    check_all(results, expected, dtype, ["d_a", "d_b", "d_bias", "grad_pre"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_backward_from_pre(tmp_path, inputs, random, activation, dtype):
    x = inputs(dtype) | {"pre": draw(random, dtype, M, N, scale=3)}  # no A·B + bias: it must be read
    results = call(tmp_path, "backward", x, "--activation", activation, "--mode", "pre", "--want", "grad_pre,d_a,d_b")
    expected = backward(
        wide(x["a"]), wide(x["b"]), wide(x["grad"]), pre=wide(x["pre"]), activation=activation, dtype=dtype
    )
    check_all(results, expected, dtype, ["grad_pre", "d_a", "d_b"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", FROM_Y)
def test_backward_from_y(tmp_path, inputs, random, activation, dtype):
    y = ACTIVATIONS[activation][0](random.standard_normal((M, N))).astype(DTYPES[dtype])
    x = inputs(dtype) | {"y": y}
    results = call(tmp_path, "backward", x, "--activation", activation, "--mode", "y", "--want", "grad_pre,d_bias")
    expected = backward(wide(x["a"]), wide(x["b"]), wide(x["grad"]), y=wide(y), activation=activation, dtype=dtype)
    check_all(results, expected, dtype, ["grad_pre", "d_bias"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_residual(tmp_path, inputs, random, dtype):
    x = inputs(dtype) | {"residual": draw(random, dtype, M, N)}
    results = call(tmp_path, "forward", x)
    expected = forward(*(wide(x[name]) for name in ("a", "b", "bias", "residual")), dtype=dtype)
    check_all(results, expected, dtype, ["y"])


def test_larger_than_a_cache_block(tmp_path, inputs):
    x = inputs("f32", m=131, k=517, n=263)
    results = call(tmp_path, "backward", x, "--activation", "mish", "--threads", 2)
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="mish")
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])


def test_any_number_of_threads_gives_the_same_bits(tmp_path, inputs):
    x = inputs("f32", m=67, k=129, n=71)
    source = write(tmp_path / "in.safetensors", x)
    files = []
    for threads in (1, 2, 5):
        out = tmp_path / f"out{threads}.safetensors"
        succeed("backward", source, "-o", out, "--activation", "gelu", "--threads", threads)
        files.append(out.read_bytes())
    assert files[0] == files[1] == files[2]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_chunks(tmp_path, inputs, dtype):
    x = inputs(dtype, m=3000, k=40, n=30)
    options = ["--activation", "mish", "--threads", 1, "--workspace-limit", "500K"]
    assert "chunks of" in succeed("plan", write(tmp_path / "in.safetensors", x), "--backward", *options)
    results = call(tmp_path, "backward", x, *options)
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="mish", dtype=dtype)
    check_all(results, expected, dtype, ["d_a", "d_b", "d_bias"])


def test_chunks_with_sums_in_d_b(tmp_path, inputs):
    x = inputs("bf16", m=3000, k=1000, n=30)
    plan = ["plan", write(tmp_path / "in.safetensors", x), "--backward"]
    options = ["--activation", "mish", "--threads", 1]
    options += ["--workspace-limit", least_limit(*plan, *options)]
    assert "its own memory" in succeed(*plan, *options)
    results = call(tmp_path, "backward", x, *options)
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="mish", dtype="bf16")
    check_all(results, expected, "bf16", ["d_a", "d_b", "d_bias"])


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_capped_instruction_sets(tmp_path, inputs, isa):
    x = inputs("f32")
    source = write(tmp_path / "in.safetensors", x)
    succeed("backward", source, "-o", tmp_path / "out.safetensors", "--activation", "tanh", env={"EPIGRAD_CPU_ISA": isa})
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="tanh")
    check_all(read(tmp_path / "out.safetensors"), expected, "f32", ["d_a", "d_b", "d_bias"])


# ---- Outputs ---------------------------------------------------------------------------------------------


def test_default_outputs(tmp_path, inputs):
    x = inputs("f32")
    assert set(call(tmp_path, "backward", x)) == {"d_a", "d_b", "d_bias"}
    del x["bias"]
    assert set(call(tmp_path, "backward", x)) == {"d_a", "d_b"}
    assert set(call(tmp_path, "forward", x)) == {"y"}


@pytest.mark.parametrize("want", ["d_a", "d_b", "d_bias", "grad_pre", "grad_pre,d_bias", "d_b,d_a"])
def test_any_subset(tmp_path, inputs, want):
    x = inputs("f32")
    results = call(tmp_path, "backward", x, "--activation", "silu", "--want", want)
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="silu")
    check_all(results, expected, "f32", want.split(","))


def test_bias_gradient_of_a_layer_without_bias(tmp_path, inputs):
    x = inputs("f32")
    del x["bias"]
    results = call(tmp_path, "backward", x, "--activation", "gelu", "--want", "d_bias")
    expected = backward(wide(x["a"]), wide(x["b"]), wide(x["grad"]), activation="gelu")
    check_all(results, expected, "f32", ["d_bias"])


# ---- Types -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", DTYPES)
@pytest.mark.parametrize("stored", DTYPES)
def test_conversion_of_inputs(tmp_path, inputs, stored, to):
    x = inputs(stored)
    results = call(tmp_path, "backward", x, "--dtype", to, "--activation", "gelu")
    rounded = {name: array.astype(np.float64).astype(DTYPES[to]) for name, array in x.items()}
    expected = backward(*(wide(rounded[name]) for name in ("a", "b", "grad", "bias")), activation="gelu", dtype=to)
    check_all(results, expected, to, ["d_a", "d_b", "d_bias"])


def test_conversion_of_mixed_inputs(tmp_path, inputs):
    x = inputs("f64")
    x |= {"a": x["a"].astype(DTYPES["bf16"]), "bias": x["bias"].astype(np.float32)}
    results = call(tmp_path, "forward", x, "--dtype", "f32")
    expected = forward(wide(x["a"]), wide(x["b"].astype(np.float32)), wide(x["bias"]))
    check_all(results, expected, "f32", ["y"])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_main_gradients_in_f32(tmp_path, inputs, dtype):
    x = inputs(dtype)
    results = call(tmp_path, "backward", x, "--out-dtype", "f32", "--activation", "relu2")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="relu2", dtype=dtype)
    for name, kind in {"d_a": dtype, "d_b": "f32", "d_bias": "f32"}.items():
        assert results[name].dtype == DTYPES[kind]
        check(results[name], expected[name], kind, name)


def test_accumulate(tmp_path, inputs, random):
    x = inputs("f32")
    before = {"d_b": draw(random, "f32", K, N), "d_bias": draw(random, "f32", N)}
    results = call(tmp_path, "backward", x | before, "--accumulate", "--activation", "gelu")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="gelu")
    expected |= {name: plus(expected[name], wide(before[name]), "f32") for name in before}
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])


@pytest.mark.parametrize("options, kind", [([], "f32"), (["--out-dtype", "bf16"], "bf16"), (["--dtype", "bf16"], "bf16")])
def test_accumulate_into_main_gradients(tmp_path, inputs, random, options, kind):
    x = inputs("bf16")
    before = {"d_b": draw(random, "f32", K, N), "d_bias": draw(random, "f32", N)}
    results = call(tmp_path, "backward", x | before, "--accumulate", *options)
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), dtype="bf16")
    for name in before:
        assert results[name].dtype == DTYPES[kind]
        started = wide(before[name].astype(DTYPES[kind]))
        check(results[name], plus(expected[name], started, "bf16"), kind, name)


@pytest.mark.parametrize("names", ["d_a", "d_bias", "d_a,d_b", "d_b,d_bias,d_a"])
def test_accumulate_into(tmp_path, inputs, random, names):
    x = inputs("f32")
    before = {"d_a": draw(random, "f32", *x["a"].shape), "d_b": draw(random, "f32", K, N), "d_bias": draw(random, "f32", N)}
    results = call(tmp_path, "backward", x | before, "--accumulate-into", names, "--activation", "gelu")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="gelu")
    expected |= {name: plus(expected[name], wide(before[name]), "f32") for name in names.split(",")}
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])


def test_a_residual_of_d_a(tmp_path, inputs, random):
    for dtype in DTYPES:
        x = inputs(dtype) | {"d_a_residual": draw(random, dtype, M, K), "residual": draw(random, dtype, M, N)}
        results = call(tmp_path, "backward", x, "--activation", "gelu")  # the residual of y is the forward pass's
        expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="gelu", dtype=dtype)
        expected["d_a"] = plus(expected["d_a"], wide(x["d_a_residual"]), dtype)
        check_all(results, expected, dtype, ["d_a", "d_b", "d_bias"])


@pytest.mark.parametrize("batch, a_batch, residual", [((3,), (3,), (3,)), ((3,), (3,), (1,)), ((3,), (), ()), ((3,), (1,), (1,)), ((2, 3), (2, 3), (3,)),
                                                      ((2, 3), (1, 1), ()), ((0,), (1,), ()), ((2, 0), (2, 1), ()), ((0, 3), (1, 3), (3,))])
def test_a_residual_of_d_a_in_a_batch(tmp_path, random, batch, a_batch, residual):
    x = {"a": draw(random, "f32", *a_batch, M, K), "b": draw(random, "f32", K, N), "grad": draw(random, "f32", *batch, M, N)}
    x["d_a_residual"] = draw(random, "f32", *residual, M, K)
    results = call(tmp_path, "backward", x, "--want", "d_a")
    d_a = backward(*(wide(x[name]) for name in ("a", "b", "grad")))["d_a"]
    check_all(results, {"d_a": plus(d_a, wide(x["d_a_residual"]), "f32")}, "f32", ["d_a"])


def test_a_residual_of_d_a_that_nothing_reads(tmp_path, inputs):
    x = inputs("f32") | {"d_a_residual": np.zeros(3, np.int8)}
    assert set(call(tmp_path, "backward", x, "--want", "d_b,d_bias")) == {"d_b", "d_bias"}
    assert set(call(tmp_path, "forward", x)) == {"y"}


def test_scale(tmp_path, inputs):
    x = inputs("f32")
    results = call(tmp_path, "backward", x, "--scale", "0.5", "--activation", "gelu")
    expected = backward(wide(x["a"]) / 2, *(wide(x[name]) for name in ("b", "grad", "bias")), activation="gelu")
    expected["d_a"] = tuple(part / 2 for part in expected["d_a"])
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])
    results = call(tmp_path, "forward", x, "--scale", "0.5", "--activation", "gelu")
    check_all(results, forward(wide(x["a"]) / 2, wide(x["b"]), wide(x["bias"]), activation="gelu"), "f32", ["y"])


# ---- Layouts and batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_weights_of_pytorch(tmp_path, inputs, random, dtype, batch):
    x = inputs(dtype) | {"b": draw(random, dtype, *batch, K, N, scale=0.3)}
    if batch:
        x |= {"a": draw(random, dtype, *batch, M, K), "grad": draw(random, dtype, *batch, M, N)}
    turned = x | {"b": np.swapaxes(x["b"], -1, -2)}
    results = call(tmp_path, "backward", turned, "--layout-b", "nk", "--activation", "gelu")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="gelu", dtype=dtype)
    expected["d_b"] = tuple(np.swapaxes(part, -1, -2) for part in expected["d_b"])
    check_all(results, expected, dtype, ["d_a", "d_b", "d_bias"])
    y = call(tmp_path, "forward", turned, "--layout-b", "nk")
    check_all(y, forward(wide(x["a"]), wide(x["b"]), wide(x["bias"]), dtype=dtype), dtype, ["y"])


BATCHES = [
    ((4, M, K), (K, N)),
    ((4, M, K), (1, K, N)),
    ((4, M, K), (4, K, N)),
    ((M, K), (4, K, N)),
    ((1, M, K), (4, K, N)),
    ((1, M, K), (K, N)),
    ((1, M, K), (1, K, N)),
    ((M, K), (1, K, N)),
    ((0, M, K), (K, N)),
    ((M, K), (0, K, N)),
    # Two levels: dense ones, which one stride describes, and shared at one of them.
    ((2, 3, M, K), (K, N)),
    ((2, 3, M, K), (1, 1, K, N)),
    ((2, 3, M, K), (2, 3, K, N)),
    ((3, M, K), (1, 1, K, N)),
    ((M, K), (2, 3, K, N)),
    ((2, 1, M, K), (K, N)),
    ((1, 3, M, K), (1, 3, K, N)),
    ((2, 0, M, K), (K, N)),
    ((0, 3, M, K), (0, 3, K, N)),
]


@pytest.mark.parametrize("suffix", [".safetensors", ""])
@pytest.mark.parametrize("a_shape, b_shape", BATCHES)
def test_batches(tmp_path, random, a_shape, b_shape, suffix):
    x = {"a": draw(random, "f32", *a_shape), "b": draw(random, "f32", *b_shape, scale=0.3)}
    x |= {"bias": draw(random, "f32", N), "grad": draw(random, "f32", *(x["a"] @ x["b"]).shape)}
    a, b, grad, bias = (wide(x[name]) for name in ("a", "b", "grad", "bias"))
    results = call(tmp_path, "backward", x, "--activation", "gelu", "--want", "d_a,d_b,d_bias,grad_pre", suffix=suffix)
    check_all(results, backward(a, b, grad, bias, activation="gelu"), "f32", ["d_a", "d_b", "d_bias", "grad_pre"])
    y = call(tmp_path, "forward", x, "--activation", "gelu", suffix=".2.safetensors")
    check_all(y, forward(a, b, bias, activation="gelu"), "f32", ["y"])


@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize(
    "a_shape, b_shape, want",
    [
        ((2, 3, M, K), (3, K, N), "d_a,d_bias"),
        ((2, 3, M, K), (2, 1, K, N), "d_a,grad_pre"),
        ((3, M, K), (2, 3, K, N), "d_b,d_bias"),
        ((2, 1, M, K), (2, 3, K, N), "d_b,grad_pre"),
        ((2, 1, M, K), (1, 3, K, N), "d_bias,grad_pre"),
    ],
)
def test_a_batch_of_two_levels(tmp_path, random, a_shape, b_shape, want, layout):
    x = {"a": draw(random, "f32", *a_shape), "b": draw(random, "f32", *b_shape, scale=0.3)}
    x |= {"bias": draw(random, "f32", N), "grad": draw(random, "f32", *(x["a"] @ x["b"]).shape)}
    a, b, grad, bias = (wide(x[name]) for name in ("a", "b", "grad", "bias"))
    given = x | {"b": np.swapaxes(x["b"], -1, -2)} if layout == "nk" else x
    options = ["--layout-b", layout, "--activation", "gelu"]
    results = call(tmp_path, "backward", given, *options, "--want", want)
    expected = backward(a, b, grad, bias, activation="gelu")
    if layout == "nk":
        expected["d_b"] = tuple(np.swapaxes(part, -1, -2) for part in expected["d_b"])
    check_all(results, expected, "f32", want.split(","))
    y = call(tmp_path, "forward", given, *options, suffix=".2.safetensors")
    check_all(y, forward(a, b, bias, activation="gelu"), "f32", ["y"])
    summed = "d_b" if "d_a" in want else "d_a"
    refuse(2, "backward", write(tmp_path / "in.safetensors", given), "-o", tmp_path / "no", "--want", summed, *options,
           says=[f"{summed} would be a sum over one level of a batch of 2 x 3", "both levels or none"])


def test_accumulate_two_levels(tmp_path, random):
    x = {"a": draw(random, "f32", 2, 3, M, K), "b": draw(random, "f32", 2, 3, K, N), "grad": draw(random, "f32", 2, 3, M, N)}
    before = {"d_a": draw(random, "f32", 2, 3, M, K), "d_b": draw(random, "f32", 2, 3, K, N)}
    results = call(tmp_path, "backward", x | before, "--accumulate-into", "d_a,d_b")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad")))
    check_all(results, {name: plus(expected[name], wide(before[name]), "f32") for name in before}, "f32", ["d_a", "d_b"])


def test_a_batch_of_gradients_only(tmp_path, random):
    x = {"a": draw(random, "f32", M, K), "b": draw(random, "f32", K, N), "grad": draw(random, "f32", 3, M, N)}
    results = call(tmp_path, "backward", x, "--want", "d_a,d_b,grad_pre")
    a, b, grad = (wide(x[name]) for name in ("a", "b", "grad"))
    check_all(results, backward(a, b, grad), "f32", ["d_a", "d_b", "grad_pre"])


def test_a_gradient_shared_by_the_batch(tmp_path, random):
    x = {"a": draw(random, "f32", 3, M, K), "b": draw(random, "f32", K, N), "grad": draw(random, "f32", M, N)}
    results = call(tmp_path, "backward", x, "--activation", "tanh", "--want", "d_a,d_b,grad_pre")
    a, b, grad = (wide(x[name]) for name in ("a", "b", "grad"))
    check_all(results, backward(a, b, grad, activation="tanh"), "f32", ["d_a", "d_b", "grad_pre"])


def test_a_residual_shared_by_the_batch(tmp_path, random):
    x = {"a": draw(random, "f32", 3, M, K), "b": draw(random, "f32", K, N), "residual": draw(random, "f32", 1, M, N)}
    results = call(tmp_path, "forward", x)
    check_all(results, forward(wide(x["a"]), wide(x["b"]), None, wide(x["residual"])), "f32", ["y"])


@pytest.mark.parametrize("bias_shape", [(N,), (1, N)])
def test_the_shape_of_the_bias_is_kept(tmp_path, inputs, random, bias_shape):
    x = inputs("f32") | {"bias": draw(random, "f32", *bias_shape)}
    results = call(tmp_path, "backward", x, "--activation", "gelu")
    flat = wide(x["bias"]).reshape(N)
    expected = backward(wide(x["a"]), wide(x["b"]), wide(x["grad"]), flat, activation="gelu")
    expected["d_bias"] = tuple(part.reshape(bias_shape) for part in expected["d_bias"])
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])


@pytest.mark.parametrize("m, k, n", [(0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_sizes_of_zero(tmp_path, m, k, n):
    shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "grad": (m, n)}
    x = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    results = call(tmp_path, "backward", x, "--activation", "gelu", suffix="")
    expected = backward(*(wide(x[name]) for name in ("a", "b", "grad", "bias")), activation="gelu")
    check_all(results, expected, "f32", ["d_a", "d_b", "d_bias"])
    y = call(tmp_path, "forward", x, "--activation", "gelu", suffix="2")
    check_all(y, forward(*(wide(x[name]) for name in ("a", "b", "bias")), activation="gelu"), "f32", ["y"])


# ---- What is not finite ----------------------------------------------------------------------------------


def test_a_nan_in_pre(tmp_path):
    pre = np.array([[np.nan, 1.0]], np.float32)
    x = {"a": np.ones((1, 1)), "b": np.ones((1, 2)), "grad": np.full((1, 2), 2.0), "pre": pre}
    x = {name: np.asarray(array, np.float32) for name, array in x.items()}
    options = ["--activation", "relu", "--mode", "pre", "--want", "grad_pre"]
    assert call(tmp_path, "backward", x, *options)["grad_pre"].tolist() == [[0.0, 2.0]]
    assert call(tmp_path, "backward", x, *options, "--nonfinite", "zero")["grad_pre"].tolist() == [[0.0, 2.0]]
    got = call(tmp_path, "backward", x, *options, "--nonfinite", "propagate")["grad_pre"]
    assert np.isnan(got[0, 0]) and got[0, 1] == 2.0


def test_a_nan_in_grad_propagates(tmp_path):
    x = {"a": np.ones((1, 1)), "b": np.ones((1, 2)), "grad": np.array([[np.nan, np.inf]])}
    x = {name: np.asarray(array, np.float32) for name, array in x.items()}
    got = call(tmp_path, "backward", x, "--activation", "sigmoid", "--want", "grad_pre")["grad_pre"]
    assert np.isnan(got[0, 0]) and np.isposinf(got[0, 1])

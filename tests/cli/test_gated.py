# SPDX-License-Identifier: Apache-2.0
"""--gated: Y = act(A·B + bias) * (A·B_up + bias_up), against the reference."""

import numpy as np
import pytest

from conftest import call as call_plain
from conftest import DTYPES, least_limit, read, refuse, succeed, write
from reference import (ACTIVATIONS, UNIT, Wide, act_error, check, check_all, compute_unit, derivative_bound, plus, pre_activation,
                       product)

M, K, N = 19, 37, 23
GRADIENTS = ["d_a", "d_b", "d_bias", "grad_pre", "d_b_up", "d_bias_up", "grad_pre_up"]


@pytest.fixture
def unit(random):
    def make(dtype="f32", m=M):
        draw = lambda *shape, scale=1.0: (scale * random.standard_normal(shape)).astype(DTYPES[dtype])
        scale = 2 / np.sqrt(K)
        return {"a": draw(m, K), "b": draw(K, N, scale=scale), "bias": draw(N), "b_up": draw(K, N, scale=scale),
                "bias_up": draw(N), "grad": draw(m, N)}

    return make


def times(x, y, dtype):
    """The product, element by element, of (value, bound) pairs."""
    (xv, xb), (yv, yb) = x, y
    return xv * yv, np.abs(xv) * yb + np.abs(yv) * xb + xb * yb + 2 * compute_unit(dtype) * np.abs(xv * yv)


def act(name, pre, dtype):
    function, derivative, _ = ACTIVATIONS[name]
    value = function(pre[0])
    error = act_error(dtype, value) * (name != "none")
    return value, error + pre[1] * (1 + np.abs(derivative(pre[0])))


def act_grad(name, pre, dtype):
    value = ACTIVATIONS[name][1](pre[0])
    return value, derivative_bound(name, *pre) + act_error(dtype, value) * (name != "none")


def halves(x, dtype):
    """pre and pre_up: those of the file, where it has them."""
    x = {name: array.astype(Wide) for name, array in x.items()}
    if "pre" in x:
        return tuple((x[name], np.zeros_like(x[name])) for name in ("pre", "pre_up"))
    return tuple(pre_activation(x["a"], x["b" + end], x.get("bias" + end), dtype) for end in ("", "_up"))


def forward(x, activation, dtype):
    pre, pre_up = halves(x, dtype)
    return {"y": times(act(activation, pre, dtype), pre_up, dtype), "pre": pre, "pre_up": pre_up}


def backward(x, activation, dtype):
    pre, pre_up = halves(x, dtype)
    a, b, b_up, grad = (x[name].astype(Wide) for name in ("a", "b", "b_up", "grad"))
    grad = grad, np.zeros_like(grad)
    gate = times(times(grad, pre_up, dtype), act_grad(activation, pre, dtype), dtype)
    up = times(grad, act(activation, pre, dtype), dtype)
    expected = {"grad_pre": gate, "grad_pre_up": up}
    # Those of 16 bits may be rounded before they are multiplied.
    rounding = UNIT[dtype] if dtype in ("f16", "bf16") else 0
    gate, up = ((value, bound + rounding * np.abs(value)) for value, bound in (gate, up))
    exact = lambda value: (value, np.zeros_like(value))
    of_gate, of_up = product(gate, exact(b.T), dtype), product(up, exact(b_up.T), dtype)
    expected["d_a"] = tuple(one + other for one, other in zip(of_gate, of_up))
    for end, half in (("", gate), ("_up", up)):
        expected["d_b" + end] = product(exact(a.T), half, dtype)
        expected["d_bias" + end] = tuple(part[0] for part in product(exact(np.ones((1, len(a)), Wide)), half, dtype))
    return expected


def call(tmp_path, which, tensors, *options, **more):
    return call_plain(tmp_path, which, tensors, "--gated", *options, **more)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu", "sigmoid"])
def test_values(tmp_path, unit, activation, dtype):
    x = unit(dtype)
    results = call(tmp_path, "forward", x, "--activation", activation, "--save-pre")
    check_all(results, forward(x, activation, dtype), dtype, ["y", "pre", "pre_up"])
    results = call(tmp_path, "backward", x, "--activation", activation, "--want", ",".join(GRADIENTS))
    check_all(results, backward(x, activation, dtype), dtype, GRADIENTS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_pre(tmp_path, unit, random, dtype):
    x = unit(dtype)
    for name in ("pre", "pre_up"):  # not A·B + bias: they must be read
        x[name] = random.standard_normal((M, N)).astype(DTYPES[dtype])
    results = call(tmp_path, "backward", x, "--activation", "silu", "--mode", "pre", "--want", ",".join(GRADIENTS))
    check_all(results, backward(x, "silu", dtype), dtype, GRADIENTS)


def test_what_is_written(tmp_path, unit):
    x = unit()
    assert set(call(tmp_path, "forward", x)) == {"y"}
    assert set(call(tmp_path, "backward", x)) == {"d_a", "d_b", "d_bias", "d_b_up", "d_bias_up"}
    del x["bias_up"]
    assert set(call(tmp_path, "backward", x)) == {"d_a", "d_b", "d_bias", "d_b_up"}
    check_all(call(tmp_path, "backward", x), backward(x, "none", "f32"), "f32", ["d_a", "d_b", "d_bias", "d_b_up"])
    for name in GRADIENTS:
        check_all(call(tmp_path, "backward", x, "--want", name), backward(x, "none", "f32"), "f32", [name])


def test_without_the_option_they_are_ignored(tmp_path, unit):
    source = write(tmp_path / "in.safetensors", unit())
    succeed("backward", source, "-o", tmp_path / "out.safetensors")
    assert set(read(tmp_path / "out.safetensors")) == {"d_a", "d_b", "d_bias"}


def test_folders_and_pytorch_weights(tmp_path, unit):
    x = unit()
    turned = x | {name: np.ascontiguousarray(x[name].T) for name in ("b", "b_up")}
    results = call(tmp_path, "backward", turned, "--activation", "silu", "--layout-b", "nk", suffix="")
    for name in ("d_b", "d_b_up"):
        results[name] = results[name].T
    check_all(results, backward(x, "silu", "f32"), "f32", ["d_a", "d_b", "d_bias", "d_b_up", "d_bias_up"])


def test_a_folder_is_replaced(tmp_path, unit):
    everything = ("--want", ",".join(GRADIENTS))
    for options in (everything, everything, ()):
        call(tmp_path, "backward", unit(), *options, suffix="")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        f"{name}.npy" for name in ("d_a", "d_b", "d_bias", "d_b_up", "d_bias_up")}
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}  # what was there before is gone


def test_accumulate_in_f32(tmp_path, unit, random):
    x = unit("bf16")
    names = ["d_b", "d_bias", "d_b_up", "d_bias_up"]
    expected = backward(x, "silu", "bf16")
    before = {name: random.standard_normal(expected[name][0].shape).astype(np.float32) for name in names}
    results = call(tmp_path, "backward", x | before, "--activation", "silu", "--accumulate", "--want", ",".join(names))
    expected = {name: plus(expected[name], before[name].astype(Wide), "bf16") for name in names}
    check_all(results, expected, "f32", names)
    results = call(tmp_path, "backward", x, "--activation", "silu", "--out-dtype", "f32", "--want", "d_b_up,d_bias_up")
    check_all(results, backward(x, "silu", "bf16"), "f32", ["d_b_up", "d_bias_up"])


def test_a_residual_of_d_a(tmp_path, unit, random):
    x = unit("bf16")
    x["d_a_residual"] = random.standard_normal((M, K)).astype(DTYPES["bf16"])
    expected = backward(x, "silu", "bf16")
    expected["d_a"] = plus(expected["d_a"], x["d_a_residual"].astype(Wide), "bf16")
    check_all(call(tmp_path, "backward", x, "--activation", "silu", "--want", "d_a,d_b_up"), expected, "bf16", ["d_a", "d_b_up"])


def test_batch(tmp_path, unit):
    """b_up is shared where b is one for each: its gradient is summed."""
    units = [unit() for _ in range(3)]
    x = {name: np.stack([one[name] for one in units]) for name in ("a", "b", "grad")}
    shared = {name: units[0][name] for name in ("bias", "b_up", "bias_up")}
    results = call(tmp_path, "backward", x | shared, "--activation", "silu")
    each = [backward(one | shared, "silu", "f32") for one in units]
    for name in ("d_a", "d_b"):
        for got, expected in zip(results[name], each):
            check(got, expected[name], "f32", name)
    for name in ("d_bias", "d_b_up", "d_bias_up"):
        check(results[name], tuple(sum(one[name][i] for one in each) for i in (0, 1)), "f32", name)


@pytest.mark.parametrize("k, m", [(0, M), (K, 0)])
def test_empty(tmp_path, unit, k, m):
    x = {name: array[:, :k] if name == "a" else array[:k] if name in ("b", "b_up") else array
         for name, array in unit(m=m).items() if name != "bias_up"}
    assert not call(tmp_path, "forward", x)["y"].any()  # A·B_up is 0
    results = call(tmp_path, "backward", x, "--activation", "silu")
    assert results["d_a"].shape == (m, k) and results["d_b_up"].shape == (k, N) and not results["d_bias"].any()


def test_workspace_limit(tmp_path, unit):
    x = unit(m=700)
    source = write(tmp_path / "limited.safetensors", x)
    least = least_limit("backward", source, "-o", tmp_path / "out.safetensors", "--gated", "--activation", "silu")
    results = call(tmp_path, "backward", x, "--activation", "silu", "--workspace-limit", least)
    check_all(results, backward(x, "silu", "f32"), "f32", ["d_a", "d_b", "d_bias", "d_b_up", "d_bias_up"])


def test_plan(tmp_path, unit):
    source = write(tmp_path / "in.safetensors", unit())
    for arguments in ((source,), ("--shape", f"{M}x{K}x{N}")):
        text = succeed("plan", *arguments, "--gated", "--activation", "silu")
        assert "forward f32 silu gated" in text and "backward f32 silu gated recompute" in text
        assert "d_b_up = aT.grad_pre_up" in text and "d_bias_up" in text
        text = succeed("plan", *arguments, "--gated", "--activation", "silu", "--want", "grad_pre_up", "--backward")
        assert "grad_pre_up" in text and "d_b" not in text


def test_refused(tmp_path, unit):
    x = unit()
    out = tmp_path / "out.safetensors"
    case = 0

    def refused(which, tensors, *options, says):
        nonlocal case
        case += 1
        source = write(tmp_path / f"case{case}.safetensors", tensors)
        refuse(2, which, source, "-o", out, *options, says=says)
        assert not out.exists()

    without = {name: array for name, array in x.items() if name != "b_up"}
    refused("forward", without, "--gated", says="has no tensor b_up, which --gated asks for")
    refused("backward", x, "--gated", "--mode", "pre", says="has no tensor pre, which --mode asks for")
    refused("backward", x | {"pre": x["grad"]}, "--gated", "--mode", "pre", says="no tensor pre_up, which --mode asks for")
    refused("backward", x, "--gated", "--mode", "y", says="--mode is y with --gated; expected recompute or pre")
    refused("backward", x, "--want", "d_b_up", says="--want names a result of a gated unit; expected --gated with it")
    refused("forward", x | {"b_up": x["b"][:, :5].copy()}, "--gated", says=["b_up has shape [37, 5]", "[K, N]"])
    refused("forward", x | {"bias_up": x["bias"][:5]}, "--gated", says="bias_up has shape [5]; expected [N]")
    refused("forward", x | {"b_up": x["b_up"].astype("f8")}, "--gated", says="b_up is f64 and a is f32")
    refuse(2, "bench", "--gated", "--mode", "y", says="--mode is y with --gated; expected recompute or pre")
    refused("forward", x | {"residual": x["grad"]}, "--gated", says="residual is given for a gated unit")
    refused("backward", x, "--accumulate-into", "d_b_up", says="--accumulate-into names a result of a gated unit")
    refused("backward", x, "--accumulate-into", "d_a,grad_pre", says=["--accumulate-into", "some of d_a,d_b,d_bias"])
    sums = {"d_b": x["b"], "d_bias": x["bias"], "d_bias_up": x["bias"]}
    refused("backward", x | sums, "--gated", "--accumulate", says="no tensor d_b_up, which --accumulate adds to")
    sums["d_b_up"] = x["b"][None].repeat(2, 0)
    refused("backward", x | sums, "--gated", "--accumulate", says=["d_b_up has shape [2,", "the shape of b_up"])

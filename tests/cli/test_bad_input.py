# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not fit together: exit code 2, and a line that names the tensor and what was expected."""

import numpy as np
import pytest

from conftest import DTYPES, refuse, succeed

OUT = "out.safetensors"


def zeros(*shape, dtype="f32"):
    return np.zeros(shape, DTYPES[dtype])


@pytest.mark.parametrize(
    "replaced, says",
    [
        ({"a": zeros(5)}, ["a has shape [5]", "two, three or four"]),
        ({"a": zeros(1, 1, 1, 5, 7)}, ["a has shape [1, 1, 1, 5, 7]", "two, three or four"]),
        ({"a": zeros()}, ["a has shape []", "two, three or four"]),
        ({"b": zeros(7)}, ["b has shape [7]", "two, three or four"]),
        ({"b": zeros(6, 3)}, ["b has shape [6, 3]", "K = 7", "a has shape [5, 7]"]),
        ({"b": zeros(3, 7)}, ["b has shape [3, 7]", "K = 7", "--layout-b nk"]),
        ({"bias": zeros(4)}, ["bias has shape [4]", "[N]", "N = 3"]),
        ({"bias": zeros(3, 1)}, ["bias has shape [3, 1]", "[N]", "N = 3"]),
        ({"bias": zeros(1, 1, 3)}, ["bias has shape [1, 1, 3]", "one (or two"]),
        ({"grad": zeros(3, 5)}, ["grad has shape [3, 5]", "[M, N]", "M = 5", "N = 3"]),
        ({"grad": zeros(5, 4)}, ["grad has shape [5, 4]", "[M, N]"]),
        ({"grad": zeros(3)}, ["grad has shape [3]", "two, three or four"]),
        ({"a": zeros(2, 5, 7), "grad": zeros(3, 5, 3)}, ["grad has a batch of 3", "2, which a has"]),
        ({"a": zeros(2, 5, 7), "b": zeros(3, 7, 3)}, ["b has a batch of 3", "2, which a has"]),
        ({"a": zeros(2, 1, 5, 7), "grad": zeros(3, 1, 5, 3)}, ["grad has an outer batch of 3", "2, which a has"]),
        ({"a": None}, "has no tensor a"),
        ({"b": None}, "has no tensor b"),
        ({"grad": None}, "has no tensor grad"),
        ({"b": zeros(7, 3, dtype="f16")}, ["b is f16", "a is f32", "--dtype"]),
        ({"bias": zeros(3, dtype="f64")}, ["bias is f64", "a is f32", "--dtype"]),
    ],
)
@pytest.mark.parametrize("name", ["in.safetensors", "in"])
def test_backward(tmp_path, layer, name, replaced, says):
    refuse(2, "backward", layer(name, **replaced), "-o", tmp_path / OUT, says=says)
    refuse(2, "plan", "--backward", layer(name, **replaced), says=says)
    assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize(
    "options, replaced, says",
    [
        (["--mode", "pre"], {}, ["has no tensor pre", "--mode"]),
        (["--mode", "y", "--activation", "tanh"], {}, ["has no tensor y", "--mode"]),
        (["--mode", "pre"], {"pre": zeros(5, 7)}, ["pre has shape [5, 7]", "[M, N]"]),
        (["--mode", "y"], {"y": zeros(4, 3)}, ["y has shape [4, 3]", "[M, N]"]),
        (["--accumulate"], {}, ["has no tensor d_b", "--accumulate"]),
        (["--accumulate-into", "d_a"], {}, "has no tensor d_a, which --accumulate-into adds to"),
        (["--accumulate", "--accumulate-into", "d_a"], {"d_b": zeros(7, 3), "d_bias": zeros(3)}, "d_a, which --accumulate-into adds to"),
        (["--accumulate", "--accumulate-into", "d_a"], {"d_a": zeros(5, 7)}, "has no tensor d_b, which --accumulate adds to"),
        (["--accumulate-into", "d_bias"], {"bias": None}, ["--accumulate-into names d_bias, and IN has no bias for it", "--want"]),
        (["--accumulate-into", "d_a"], {"d_a": zeros(3, 7)}, ["d_a has shape [3, 7]", "[M, K]"]),
        (["--accumulate"], {"d_b": zeros(7, 3)}, ["has no tensor d_bias", "--accumulate"]),
        (["--accumulate"], {"d_b": zeros(3, 7), "d_bias": zeros(3)}, ["d_b has shape [3, 7]", "[K, N]"]),
        (["--accumulate"], {"d_b": zeros(2, 7, 3), "d_bias": zeros(3)}, ["d_b has shape [2, 7, 3]", "shape of b"]),
        (["--accumulate"], {"d_b": zeros(7, 3), "d_bias": zeros(4)}, ["d_bias has shape [4]", "[N]"]),
        ([], {"d_a_residual": zeros(5, 3)}, ["d_a_residual has shape [5, 3]", "[M, K]"]),
        ([], {"d_a_residual": zeros(5, 7, dtype="f16")}, "d_a_residual is f16 and a is f32"),
        ([], {"d_a_residual": zeros(2, 5, 7)}, "d_a_residual has shape [2, 5, 7]; expected [5, 7], the shape of a"),
        (["--accumulate-into", "d_a"], {"d_a": zeros(5, 7), "d_a_residual": zeros(5, 7)}, "has d_a_residual, with --accumulate-into d_a; expected one"),
        (["--layout-b", "nk"], {}, ["b has shape [7, 3]", "[N, K]"]),
        (["--layout-b", "nk", "--accumulate"], {"b": zeros(3, 7), "d_b": zeros(7, 3), "d_bias": zeros(3)}, ["d_b", "[N, K]"]),
        (["--out-dtype", "f64"], {}, "d_b.dtype is f64; expected the layer's, f32"),
        (["--dtype", "f64", "--out-dtype", "f32"], {}, ["d_b", "f32", "f64"]),
        (["--dtype", "bf16", "--out-dtype", "f16"], {}, ["d_b", "f16", "bf16"]),
    ],
)
def test_backward_options(tmp_path, layer, options, replaced, says):
    refuse(2, "backward", layer(**replaced), "-o", tmp_path / OUT, *options, says=says)
    assert not (tmp_path / OUT).exists()


@pytest.mark.parametrize(
    "options, replaced, says",
    [
        ([], {"residual": zeros(5, 7)}, ["residual has shape [5, 7]", "[M, N]"]),
        (["--activation", "relu"], {"residual": zeros(5, 3)}, ["residual", "relu"]),
        ([], {"b": zeros(6, 3)}, ["b has shape [6, 3]"]),
    ],
)
def test_forward(tmp_path, layer, options, replaced, says):
    refuse(2, "forward", layer(**replaced), "-o", tmp_path / OUT, *options, says=says)
    assert not (tmp_path / OUT).exists()


def test_a_type_is_expected_once(tmp_path, layer):
    line = refuse(2, "backward", layer(), "-o", tmp_path / OUT, "--out-dtype", "f64")
    assert line.endswith("expected the layer's, f32")
    line = refuse(2, "backward", layer(dtype="f16"), "-o", tmp_path / OUT, "--out-dtype", "f64")
    assert line.endswith("expected the layer's, f16, or f32")


@pytest.mark.parametrize(
    "options, replaced, says",
    [(["--out-dtype", "f64"], {}, "d_b.dtype is f64"), (["--workspace-limit", "1"], {}, "workspace_limit"),
     (["--activation", "relu"], {"residual": zeros(0, 5, 3)}, "residual")],
)
def test_an_empty_batch_is_checked_like_any(tmp_path, layer, options, replaced, says):
    source = layer(a=zeros(0, 5, 7), grad=zeros(0, 5, 3), **replaced)
    which = "forward" if replaced else "backward"
    refuse(2, which, source, "-o", tmp_path / OUT, *options, says=says)
    refuse(2, "plan", source, f"--{which}", *options, says=says)
    succeed(which, layer(a=zeros(0, 5, 7), grad=zeros(0, 5, 3)), "-o", tmp_path / OUT)


def test_a_forward_plan_needs_no_grad(tmp_path, layer):
    """Nor looks at it, as little as the forward pass does."""
    source = layer("in")
    (source / "grad.npy").write_bytes(b"no array")
    succeed("forward", source, "-o", tmp_path / OUT)
    succeed("plan", "--forward", source)
    refuse(2, "plan", source, says=["grad.npy", "no .npy file"])


@pytest.mark.parametrize("name", ["in.safetensors", "in"])
def test_plan_prints_all_or_nothing(layer, name):
    refuse(2, "plan", layer(name, grad=zeros(5, 4)), says="grad has shape [5, 4]")
    refuse(2, "plan", layer(name, grad=np.zeros((5, 3), np.int8)), says=["grad", "elements of type"])
    refuse(2, "plan", layer(name), "--mode", "pre", says="has no tensor pre")
    refuse(2, "plan", "--shape", "4x5x6,4x4611686018427387904x4611686018427387904", says="b")


def test_tensors_that_are_not_needed_are_not_looked_at(tmp_path, layer):
    extra = {"step": np.zeros((1,) * 9, np.int64), "pre": zeros(1), "residual": zeros(9), "label": np.zeros(0, np.uint8)}
    for name in ("in.safetensors", "in"):
        succeed("backward", layer(name, **extra), "-o", tmp_path / OUT)


@pytest.mark.parametrize("name", ["in.safetensors", "in"])
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint8, np.bool_])
def test_a_needed_tensor_of_another_type(tmp_path, layer, name, kind):
    refuse(2, "backward", layer(name, b=np.zeros((7, 3), kind)), "-o", tmp_path / OUT, says=["b", "elements of type"])


def test_results_too_large_to_address(tmp_path, layer):
    """Sizes whose product overflows take no bytes in a file where K is 0."""
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**40, 0))
    source = layer("in", a=huge, b=huge.T, bias=None, grad=None)
    # NumPy writes b in Fortran order, which an empty array can do without
    header = (source / "b.npy").read_bytes().replace(b"True, ", b"False,")
    (source / "b.npy").write_bytes(header)
    refuse(2, "forward", source, "-o", tmp_path / OUT, says=["y would have shape [1099511627776, 1099511627776]"])
    refuse(2, "plan", source, says="y would have shape")

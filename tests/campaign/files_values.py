# SPDX-License-Identifier: Apache-2.0
"""What a call of the command should have written, from its input as the official readers of the formats read it."""

import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import load_file

from files_mutate import TYPES


# Where the command takes more than that reader: types of tensors that it does not use, numbers such as 4.0, metadata.
LENIENT = ["invalid JSON in header", "invalid shape, data type, or offset"]


class Unknown(Exception):
    """Not refused by the command, and not for this check to judge."""


def read_npy(path):
    with open(path, "rb") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    is_bf16 = array.dtype.kind == "V" and array.dtype.itemsize == 2
    return array.view(ml_dtypes.bfloat16) if is_bf16 else array


def read_inputs(path, names):
    """By name; raises where an official reader does."""
    if path.is_dir():
        return {name: read_npy(path / f"{name}.npy") for name in names if (path / f"{name}.npy").exists()}
    tensors = dict(safetensors.deserialize(path.read_bytes()))
    known = {name: t for name, t in tensors.items() if name in names and t["dtype"] in TYPES}
    return {name: np.frombuffer(t["data"], TYPES[t["dtype"]]).reshape(t["shape"]) for name, t in known.items()}


def read_outputs(path):
    if path.is_dir():
        return {file.stem: read_npy(file) for file in path.iterdir()}
    return load_file(path)


def stack(array, swap=False):
    wide = np.atleast_2d(array.astype(np.float64))
    wide = wide.reshape((1,) * (3 - wide.ndim) + wide.shape)
    return wide.swapaxes(1, 2) if swap else wide


def unstack(array, like, swap=False):
    """The sum over a batch that `like` lacks, in its shape."""
    if like.ndim < 3 or like.shape[0] == 1:
        array = array.sum(0, keepdims=True)
    return (array.swapaxes(1, 2) if swap else array).reshape(like.shape)


def sensible(array):
    size = np.abs(array[array != 0])
    return np.isfinite(size).all() and (size.size == 0 or (size.min() > 1e-3 and size.max() < 50))


def expected_forward(t, options):
    a, b = stack(t["a"]), stack(t["b"], options.is_nk)
    bias = t["bias"].astype(np.float64).reshape(-1) if "bias" in t else np.zeros(b.shape[2])
    residual = stack(t["residual"]) if "residual" in t else np.zeros(1)
    pre, size = a @ b + bias, abs(a) @ abs(b) + abs(bias) + abs(residual)
    if options.activation == "relu":
        return {"y": (np.maximum(pre, 0), size)}
    return {"y": (pre + residual, size)}


def expected_backward(t, options):
    a, b, grad = stack(t["a"]), stack(t["b"], options.is_nk), stack(t["grad"])
    stacked = [a, b, grad, *(stack(t[name]) for name in (options.mode,) if name in t)]
    batch = max([x.shape[0] for x in stacked if x.shape[0] != 1], default=1)
    if any(x.shape[0] == 0 for x in stacked):
        raise Unknown("an empty batch")
    grad = np.broadcast_to(grad, (batch, *grad.shape[1:]))
    make = lambda sign: {
        "d_a": unstack(sign(grad) @ sign(b).swapaxes(1, 2), t["a"]),
        "d_b": unstack(sign(np.broadcast_to(a, (batch, *a.shape[1:]))).swapaxes(1, 2) @ sign(grad), t["b"], options.is_nk),
        "d_bias": sign(grad).sum((0, 1)),
    }
    values, sizes = make(lambda x: x), make(np.abs)
    if options.accumulate:
        for name in ("d_b", "d_bias"):
            if name in t:
                values[name] = values[name] + t[name].astype(np.float64).reshape(values[name].shape)
                sizes[name] = sizes[name] + abs(t[name].astype(np.float64)).reshape(values[name].shape)
    if "d_a_residual" in t:
        residual = t["d_a_residual"].astype(np.float64).reshape(values["d_a"].shape)
        values["d_a"], sizes["d_a"] = values["d_a"] + residual, sizes["d_a"] + abs(residual)
    return {name: (values[name], sizes[name]) for name in values}


def compare(path_in, path_out, options, is_backward):
    """What is wrong with the results, or None; Unknown where that cannot be said."""
    try:
        outputs = read_outputs(path_out)
    except Exception as error:
        return f"OUT cannot be read: {error!r}"
    used = ["a", "b", "bias", *(("grad", options.mode) if is_backward else ("residual",))]
    if is_backward and options.accumulate:
        used += [name for name in ("d_b", "d_bias") if name in outputs]  # without a bias there is no d_bias
    if is_backward and "d_a" in outputs:
        used.append("d_a_residual")
    try:
        t = read_inputs(path_in, used)
    except Exception as error:
        if isinstance(error, safetensors.SafetensorError) and any(part in str(error) for part in LENIENT):
            raise Unknown(str(error)[:200]) from error
        return f"IN was taken, and its format's own reader refuses it: {error}"
    if options.activation not in ("none", "relu") or (is_backward and options.activation != "none"):
        raise Unknown("another activation")
    if any(name in t and not sensible(t[name].astype(np.float64)) for name in used):
        raise Unknown("large or small numbers")
    expected = expected_backward(t, options) if is_backward else expected_forward(t, options)
    for name, (values, sizes) in expected.items():
        if name not in outputs:
            continue
        got = outputs[name].astype(np.float64).reshape(-1)
        values, sizes = np.broadcast_arrays(values, sizes)
        if got.size != values.size:
            return f"{name} has shape {outputs[name].shape}, expected {values.shape}"
        wrong = (abs(got - values.reshape(-1)) > sizes.reshape(-1) / 64) & (sizes.reshape(-1) < 6e4)
        if wrong.any():
            at = int(wrong.argmax())
            return f"{name}[{at}] is {got[at]}, expected {values.reshape(-1)[at]}"
    return None

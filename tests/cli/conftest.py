# SPDX-License-Identifier: Apache-2.0
"""The command under test, and the files that it reads and writes."""

import os
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
EPIGRAD = Path(os.environ.get("EPIGRAD_BIN") or os.environ.get("EPIGRAD") or ROOT / "build" / "epigrad").resolve()

DTYPES = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def run(*arguments, env=None, timeout=120):
    """Runs the command; the result has .returncode, .stdout and .stderr."""
    command = [str(EPIGRAD), *map(str, arguments)]
    environment = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


def succeed(*arguments, **options):
    result = run(*arguments, **options)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def refuse(code, *arguments, says=(), **options):
    """The command must fail with `code` and one line that has all of `says`; returns the line."""
    result = run(*arguments, **options)
    assert result.returncode == code, f"exit code {result.returncode}: {result.stderr}"
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and result.stderr.endswith("\n"), result.stderr
    assert lines[0].startswith("epigrad: ")
    for part in [says] if isinstance(says, str) else says:
        assert part in lines[0], lines[0]
    return lines[0]


def least_limit(*arguments):
    """What the command says the smallest chunk needs, in bytes."""
    line = refuse(2, *arguments, "--workspace-limit", 1, says="expected at least ")
    return int(line.split("expected at least ")[1].split(",")[0])


def write(path, tensors):
    """A .safetensors file, or a folder of .npy files, as the path's name says."""
    if path.suffix == ".safetensors":
        save_file({name: np.asarray(array, order="C") for name, array in tensors.items()}, path)
    else:
        path.mkdir(exist_ok=True)
        for name, array in tensors.items():
            np.save(path / f"{name}.npy", array)
    return path


def read(path):
    """The tensors of either, by NumPy's and safetensors' own readers."""
    if path.suffix == ".safetensors":
        return load_file(path)
    arrays = {file.stem: np.load(file) for file in path.glob("*.npy")}
    is_bf16 = lambda array: array.dtype.kind == "V" and array.dtype.itemsize == 2
    return {name: array.view(ml_dtypes.bfloat16) if is_bf16(array) else array for name, array in arrays.items()}


def pytest_collection_modifyitems(items):
    """Of a short run every fourth: those of one function follow each other."""
    if os.environ.get("EPIGRAD_TEST_SHORT"):
        items[:] = items[::4]


@pytest.fixture
def random():
    return np.random.default_rng(20240607)


@pytest.fixture
def layer(random, tmp_path):
    """A small f32 layer on disk, for tests of something else than its numbers."""

    def make(name="in.safetensors", m=5, k=7, n=3, dtype="f32", **replaced):
        shapes = {"a": (m, k), "b": (k, n), "bias": (n,), "grad": (m, n)}
        tensors = {key: random.standard_normal(shape).astype(DTYPES[dtype]) for key, shape in shapes.items()}
        tensors.update(replaced)
        return write(tmp_path / name, {key: array for key, array in tensors.items() if array is not None})

    return make


def call(tmp_path, which, tensors, *options, suffix=".safetensors"):
    """What the command writes of these tensors."""
    source = write(tmp_path / f"in{suffix}", tensors)
    succeed(which, source, "-o", tmp_path / f"out{suffix}", *options)
    return read(tmp_path / f"out{suffix}")

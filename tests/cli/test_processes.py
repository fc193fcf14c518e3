# SPDX-License-Identifier: Apache-2.0
"""epigrad backward --mpi: processes under mpirun, each with rows of a batch."""

import os
import shutil
import subprocess

import numpy as np
import pytest
from conftest import EPIGRAD, ROOT, refuse, write

LIBRARY = EPIGRAD.parent / "src" / "libepigrad_mpi.so"
LIBRARY = LIBRARY if LIBRARY.exists() else EPIGRAD.parent.parent / "src" / "libepigrad_mpi.so"
needs_mpi = pytest.mark.skipif(not LIBRARY.exists() or shutil.which("mpirun") is None, reason="no MPI in this build")


def processes(count, *arguments):
    command = [ROOT / "tools" / "mpirun.sh", "mpirun", str(count), EPIGRAD, *map(str, arguments)]
    environment = {**os.environ, "EPIGRAD_MPI_LIBRARY": str(LIBRARY)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@needs_mpi
@pytest.mark.parametrize("mean", [False, True])
def test_gradients_are_summed(tmp_path, mean):
    random = np.random.default_rng(1)
    a, b, grad = (random.integers(-2, 3, shape).astype("f4") for shape in ((8, 5), (5, 3), (8, 3)))
    for rank, rows in enumerate((slice(0, 3), slice(3, 8))):
        write(tmp_path / f"in-{rank}", {"a": a[rows], "b": b, "grad": grad[rows], "bias": np.zeros(3, "f4")})
    done = processes(2, "backward", tmp_path / "in-%r", "-o", tmp_path / "out-%r", "--mpi", *["--mean"] * mean)
    assert done.returncode == 0, done.stderr
    for rank, rows in enumerate((slice(0, 3), slice(3, 8))):
        got = {name: np.load(tmp_path / f"out-{rank}" / f"{name}.npy") for name in ("d_a", "d_b", "d_bias")}
        assert np.array_equal(got["d_b"], a.T @ grad / (2 if mean else 1))
        assert np.array_equal(got["d_bias"], grad.sum(0) / (2 if mean else 1))
        assert np.array_equal(got["d_a"], grad[rows] @ b.T)


@needs_mpi
def test_who_disagrees_is_named(tmp_path):
    for rank in (0, 1):
        k = 5 + rank
        write(tmp_path / f"in-{rank}", {"a": np.ones((2, k), "f4"), "b": np.ones((k, 3), "f4"), "grad": np.ones((2, 3), "f4")})
    done = processes(2, "backward", tmp_path / "in-%r", "-o", tmp_path / "out-%r", "--mpi")
    assert done.returncode != 0
    assert "rank 1 has layer.k 6, and rank 0 5" in done.stderr


def test_without_mpi(tmp_path):
    nowhere = {"EPIGRAD_MPI_LIBRARY": "/nowhere/libepigrad_mpi.so"}
    refuse(3, "backward", tmp_path / "in-%r", "-o", tmp_path / "out-%r", "--mpi", env=nowhere, says="/nowhere/libepigrad_mpi.so")
    refuse(2, "backward", tmp_path / "in", "-o", tmp_path / "out", "--mean", says="--mean given without --mpi")


@needs_mpi
def test_paths_that_meet(tmp_path):
    line = "expected %r in it"
    done = processes(1, "backward", tmp_path / "in", "-o", tmp_path / "out-%r", "--mpi")
    assert done.returncode != 0 and line in done.stderr
    done = processes(1, "backward", tmp_path / "in-%r", "-o", tmp_path / "out", "--mpi")
    assert done.returncode != 0 and f"OUT is {tmp_path / 'out'}" in done.stderr


def whole_layer():
    """x, b, bias, residual, grad of a layer of small whole numbers, and its results."""
    random = np.random.default_rng(2)
    a, b, bias, residual, grad = (random.integers(-2, 3, shape).astype("f4")
                                  for shape in ((8, 6), (6, 4), (4,), (8, 4), (8, 4)))
    return a, b, bias, residual, grad


def parts(array, axis):
    return np.split(array, 2, axis)


def run_split(tmp_path, command, split, inputs, *options):
    """The outputs of both processes, a dictionary each."""
    for rank, tensors in enumerate(inputs):
        write(tmp_path / f"in-{rank}", tensors)
    done = processes(2, command, tmp_path / "in-%r", "-o", tmp_path / "out-%r", "--mpi", "--split", split, *options)
    assert done.returncode == 0, done.stderr
    return [{path.stem: np.load(path) for path in (tmp_path / f"out-{rank}").glob("*.npy")} for rank in (0, 1)]


@needs_mpi
def test_columns(tmp_path):
    a, b, bias, _, grad = whole_layer()
    y = a @ b + bias
    inputs = [{"a": parts(a, 0)[r], "b": parts(b, 1)[r], "bias": parts(bias, 0)[r]} for r in (0, 1)]
    for rank, out in enumerate(run_split(tmp_path, "forward", "columns", inputs, "--activation", "relu", "--save-pre")):
        assert np.array_equal(out["pre"], parts(y, 1)[rank])
        assert np.array_equal(out["y"], parts(np.maximum(y, 0), 1)[rank])
    inputs = [{**inputs[r], "grad": parts(grad, 1)[r], "d_a_residual": parts(a + 1, 0)[r]} for r in (0, 1)]
    for rank, out in enumerate(run_split(tmp_path, "backward", "columns", inputs, "--activation", "relu")):
        grad_pre = grad * (y > 0)
        assert np.array_equal(out["d_a"], parts(grad_pre @ b.T + a + 1, 0)[rank])
        assert np.array_equal(out["d_b"], parts(a.T @ grad_pre, 1)[rank])
        assert np.array_equal(out["d_bias"], parts(grad_pre.sum(0), 0)[rank])


@needs_mpi
def test_rows(tmp_path):
    a, b, bias, residual, grad = whole_layer()
    y = a @ b + bias
    inputs = [{"a": parts(a, 1)[r], "b": parts(b, 0)[r], "bias": bias, "residual": parts(residual, 0)[r]} for r in (0, 1)]
    for rank, out in enumerate(run_split(tmp_path, "forward", "rows", inputs)):
        assert np.array_equal(out["y"], parts(y + residual, 0)[rank])
    inputs = [{**inputs[r], "grad": parts(grad, 0)[r], "pre": parts(y, 0)[r], "d_a_residual": parts(a + 1, 1)[r]} for r in (0, 1)]
    options = "--activation", "relu", "--mode", "pre", "--want", "d_a,d_b,d_bias,grad_pre"
    for rank, out in enumerate(run_split(tmp_path, "backward", "rows", inputs, *options)):
        grad_pre = grad * (y > 0)
        assert np.array_equal(out["grad_pre"], parts(grad_pre, 0)[rank])
        assert np.array_equal(out["d_a"], parts(grad_pre @ b.T + a + 1, 1)[rank])
        assert np.array_equal(out["d_b"], parts(a.T @ grad_pre, 0)[rank])
        assert np.array_equal(out["d_bias"], grad_pre.sum(0))


@needs_mpi
def test_split_of_a_weight_that_is_accumulated_to(tmp_path):
    a, b, _, _, grad = whole_layer()
    inputs = [{"a": parts(a, 0)[r], "b": parts(b, 1)[r].T.copy(), "grad": parts(grad, 1)[r], "d_b": np.ones((2, 6), "f4")}
              for r in (0, 1)]
    options = "--layout-b", "nk", "--accumulate-into", "d_b", "--want", "d_a,d_b"
    for rank, out in enumerate(run_split(tmp_path, "backward", "columns", inputs, *options)):
        assert np.array_equal(out["d_a"], parts(grad @ b.T, 0)[rank])
        assert np.array_equal(out["d_b"], parts(a.T @ grad, 1)[rank].T + 1)


@needs_mpi
def test_what_a_split_refuses(tmp_path):
    def tensors(rows, **more):
        return {"a": np.ones((rows, 2), "f4"), "b": np.ones((2, 2), "f4"), **more}

    residual = {"residual": np.ones((4, 2), "f4")}
    for name, inputs in (("odd", tensors(3)), ("all", tensors(4, **residual)), ("part", tensors(2, **residual))):
        for rank in (0, 1):
            write(tmp_path / f"{name}-{rank}", inputs)
    for name, options, says in (
            ("odd", ["rows"], "a has 3 rows with --split rows; expected a multiple of the 2 processes"),
            ("all", ["rows"], "residual has shape [4, 2]; expected [M, N] with M = 2"),
            ("all", ["columns"], "residual has shape [4, 2]; expected [M, N] with M = 8"),
            ("part", ["columns", "--workspace-limit", "1M"], "workspace_limit is 1048576 with tensor_parallel.comm")):
        done = processes(2, "forward", tmp_path / f"{name}-%r", "-o", tmp_path / "out-%r", "--mpi", "--split", *options)
        assert done.returncode != 0 and says in done.stderr


def test_what_goes_together(tmp_path):
    files = tmp_path / "in-%r", "-o", tmp_path / "out-%r"
    refuse(2, "forward", *files, "--mpi", says="forward: --mpi given without --split")
    refuse(2, "backward", *files, "--split", "rows", says="--split given without --mpi")
    refuse(2, "backward", *files, "--mpi", "--split", "rows", "--mean", says="--mean given with --split")
    refuse(2, "backward", *files, "--mpi", "--split", "halves", says="--split is 'halves'; expected columns or rows")

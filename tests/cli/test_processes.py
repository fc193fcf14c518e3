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

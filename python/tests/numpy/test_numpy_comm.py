# SPDX-License-Identifier: Apache-2.0
"""epigrad.Comm: gradients summed over processes under mpirun, and what is refused."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import epigrad

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARY = os.environ.get("EPIGRAD_MPI_LIBRARY") or str(
    pathlib.Path(os.environ.get("EPIGRAD_LIBRARY_DIR", ".")).parent / "src" / "libepigrad_mpi.so")
needs_mpi = pytest.mark.skipif(not os.path.exists(LIBRARY) or shutil.which("mpirun") is None, reason="no MPI here")

RANK = """
import numpy as np, epigrad
random = np.random.default_rng(1)
x, w, grad = (random.integers(-2, 3, shape).astype("f4") for shape in ((8, 5), (3, 5), (8, 3)))
with epigrad.Comm.mpi() as comm:
    assert comm.ranks == 2
    mine = slice(0, 3) if comm.rank == 0 else slice(3, 8)
    for mean in (False, True):
        d_x, d_w, d_bias = epigrad.linear_backward(grad[mine], x[mine], w, np.zeros(3, "f4"), comm=comm, mean=mean)
        parts = 2 if mean else 1
        assert np.array_equal(d_x, grad[mine] @ w)
        assert np.array_equal(d_w, grad.T @ x / parts) and np.array_equal(d_bias, grad.sum(0) / parts)
    k = 5 + comm.rank
    try:
        epigrad.linear_backward(np.ones((2, 3), "f4"), np.ones((2, k), "f4"), np.ones((3, k), "f4"), comm=comm)
    except epigrad.DeviceError as why:
        assert "rank 1 has layer.k 6, and rank 0 5" in str(why)
    else:
        raise AssertionError("sizes that differ")
print("passed")
"""


@needs_mpi
def test_processes():
    command = [ROOT / "tools" / "mpirun.sh", "mpirun", "2", sys.executable, "-c", RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "EPIGRAD_MPI_LIBRARY": LIBRARY})
    assert done.stdout.split() == ["passed"] * 2, done.stderr


def test_what_is_refused(monkeypatch):
    monkeypatch.setenv("EPIGRAD_MPI_LIBRARY", "/nowhere/libepigrad_mpi.so")
    with pytest.raises(epigrad.UnavailableError, match="/nowhere/libepigrad_mpi.so"):
        epigrad.Comm.mpi()
    with pytest.raises(epigrad.ArgumentError, match="expected the address of an ncclComm_t"):
        epigrad.Comm.nccl(object())


@needs_mpi
def test_a_closed_one(monkeypatch):
    code = """
import numpy as np, epigrad
comm = epigrad.Comm.mpi()
comm.close()
comm.close()
one = np.ones((1, 1), "f4")
try:
    epigrad.linear_backward(one, one, one, comm=comm)
except epigrad.ArgumentError as why:
    print(why)
"""
    monkeypatch.setenv("EPIGRAD_MPI_LIBRARY", LIBRARY)
    command = [ROOT / "tools" / "mpirun.sh", "mpirun", "1", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "comm is closed; expected an open one", done.stderr

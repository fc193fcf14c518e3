# SPDX-License-Identifier: Apache-2.0
"""epigrad.Comm: gradients summed over processes under mpirun, layers divided over them, and what is refused."""
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
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


# A layer of small whole numbers, whose sums are exact, on one process and divided over all; and its shapes.
SPLIT = """
import sys
import numpy as np, epigrad
M, K, N = 8, 12, 16
random = np.random.default_rng(2)
draw = lambda *shape: random.integers(-2, 3, shape).astype("f4")
x, w, bias, w_up, bias_up = draw(M, K), draw(N, K), draw(N), draw(N, K), draw(N)
residual, grad, branch = draw(M, N), draw(M, N), draw(M, K)
lead = tuple(map(int, sys.argv[1:]))  # of x, in place of M
same = lambda names, got, expected: [np.testing.assert_array_equal(*pair, err_msg=name)
                                     for name, *pair in zip(names.split(), got, expected, strict=True)]

with epigrad.Comm.mpi() as comm:
    rank, ranks = comm.rank, comm.ranks
    part = lambda array, axis: np.ascontiguousarray(np.split(array, ranks, axis)[rank])
    rows = lambda array, divided: (part(array, 0) if divided else array).reshape(
        lead[0] // ranks if divided else lead[0], *lead[1:], -1)

    columns = {"comm": comm, "split": "columns"}
    for gated in (False, True):
        up = {"w_up": w_up, "bias_up": bias_up} if gated else {}
        up_part = {name: part(value, 0) for name, value in up.items()}
        y, saved = epigrad.linear(x, w, bias, activation="relu", save="pre", **up)
        got, kept = epigrad.linear(rows(x, True), part(w, 0), part(bias, 0), activation="relu", save="pre", **up_part,
                                   **columns)
        pair = lambda saved: saved if gated else (saved,)
        wanted = [rows(part(array, 1), False) for array in (y, *pair(saved))]
        same("y pre pre_up" if gated else "y pre", (got, *pair(kept)), wanted)
        for again in (False, True):
            whole = epigrad.linear_backward(grad, x, w, bias, activation="relu", saved=saved, residual=branch, **up)
            mine = epigrad.linear_backward(rows(part(grad, 1), False), rows(x, True), part(w, 0), part(bias, 0),
                                           activation="relu", saved=None if again else kept,
                                           residual=rows(branch, True), **up_part, **columns)
            same("d_x d_w d_bias d_w_up d_bias_up" if gated else "d_x d_w d_bias", mine,
                 (rows(whole[0], True), *(part(array, 0) for array in whole[1:])))

    by_rows = {"comm": comm, "split": "rows"}
    x_part, w_part = np.ascontiguousarray(part(x, 1)), part(w, 1)
    y = epigrad.linear(x, w, bias, residual=residual)
    out = np.full_like(rows(y, True), 7)
    epigrad.linear(rows(x_part, False), w_part, bias, residual=rows(residual, True), out=out, **by_rows)
    same("y", (out,), (rows(y, True),))
    y, pre = epigrad.linear(x, w, bias, activation="relu", save="pre")
    got = epigrad.linear(rows(x_part, False), w_part, bias, activation="relu", save="pre", **by_rows)
    same("y pre", got, (rows(y, True), rows(pre, True)))
    whole = epigrad.linear_backward(grad, x, w, bias, activation="relu", saved=pre)
    mine = epigrad.linear_backward(rows(grad, True), rows(x_part, False), w_part, bias, activation="relu",
                                   saved=got[1], **by_rows)
    same("d_x d_w d_bias", mine, (rows(part(whole[0], 1), False), part(whole[1], 1), whole[2]))
    whole = epigrad.linear_backward(grad, x, w, need=(True, False, False))
    mine = epigrad.linear_backward(rows(grad, True), rows(x_part, False), w_part, need=(True, False, False), **by_rows)
    same("d_x", mine[:1], (rows(part(whole[0], 1), False),))

    # Each of these is refused on every process, before anything is sent.
    def refused(says, call, *args, **options):
        try:
            call(*args, **options)
        except epigrad.Error as why:
            assert says in str(why), why
        else:
            raise AssertionError(says)
    if ranks > 1:
        refused(f"expected ({lead[0] // ranks},", epigrad.linear, rows(x_part, False), w_part,
                residual=rows(residual, False), **by_rows)
        refused("the rows of this process", epigrad.linear, rows(x_part, False), w_part, out=rows(y, False), **by_rows)
        refused("the rows of all processes", epigrad.linear_backward, rows(part(grad, 1), False)[:1], rows(x, True),
                part(w, 0), **columns)
        refused("the rows of this process", epigrad.linear_backward, rows(part(grad, 1), False), rows(x, True),
                part(w, 0), residual=rows(branch, False), **columns)
        refused(f"a multiple of the {ranks} processes", epigrad.linear, x_part[:ranks + 1], w_part, **by_rows)
        refused("tensor_parallel", epigrad.linear, rows(x, True), part(w, 0), workspace_limit=1 << 20, **columns)
        # One process alone is told why; the others, that it could not; and then all is well again.
        for call in (lambda bad: epigrad.linear(rows(x, True), part(w, 0), out=bad, **columns),
                     lambda bad: epigrad.linear_backward(rows(part(grad, 1), False), rows(x, True), part(w, 0),
                                                         out=(None, bad, None), **columns),
                     lambda bad: epigrad.linear_backward(grad, x, w, out=(None, bad, None), comm=comm),
                     lambda bad: epigrad.linear(rows(x, True), part(w, 0), workspace_limit=0 if bad is None else -1,
                                                **columns),
                     lambda bad: epigrad.linear_backward(grad, x, w, scale=1 if bad is None else 10**400, comm=comm)):
            try:
                call(np.ones((1, 1), "f4") if rank == ranks - 1 else None)
            except epigrad.ArgumentError as why:
                assert rank == ranks - 1 and any(part in str(why) for part in (
                    "shape is (1, 1)", "workspace_limit is -1", "scale is 1000")), why
            except epigrad.DeviceError as why:
                assert rank < ranks - 1 and f"rank {ranks - 1} could not make its call" in str(why), why
            else:
                raise AssertionError("a call of which one process has no part")
            call(None)
    refused("expected (M, ..., K) with split", epigrad.linear, x_part[0], w_part, **by_rows)
    refused("comm is given without split", epigrad.linear, x, w, comm=comm)
    refused("split is 'thirds'; expected one of 'columns', 'rows'", epigrad.linear, x, w, comm=comm, split="thirds")
    refused("mean is given with split", epigrad.linear_backward, grad, x, w, mean=True, **by_rows)
refused("split is 'rows' without comm", epigrad.linear, x, w, split="rows")
refused("split is 'rows' without comm", epigrad.linear_backward, grad, x, w, split="rows")
print("passed")
"""


def run_ranks(count, code, *arguments):
    command = [ROOT / "tools" / "mpirun.sh", "mpirun", str(count), sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "EPIGRAD_MPI_LIBRARY": LIBRARY})
    assert done.returncode == 0 and done.stdout.count("passed") == count, done.stderr


@needs_mpi
def test_processes():
    run_ranks(2, RANK)


@needs_mpi
@pytest.mark.parametrize("ranks, lead", [(1, (8,)), (2, (8,)), (4, (8,)), (4, (4, 2))])
def test_a_divided_layer(ranks, lead):
    run_ranks(ranks, SPLIT, *lead)


def test_what_is_refused(monkeypatch):
    monkeypatch.setenv("EPIGRAD_MPI_LIBRARY", "/nowhere/libepigrad_mpi.so")
    with pytest.raises(epigrad.UnavailableError, match="/nowhere/libepigrad_mpi.so"):
        epigrad.Comm.mpi()
    with pytest.raises(epigrad.ArgumentError, match="expected the address of an ncclComm_t"):
        epigrad.Comm.nccl(object())
    for value in (0, -1, 2**64):
        with pytest.raises(epigrad.ArgumentError, match=f"^comm is {value}; expected"):
            epigrad.Comm.nccl(value)


def test_what_is_no_communicator():
    one = np.ones((1, 1), "f4")
    for wrong in (3, "world", object()):
        for call in (lambda comm: epigrad.linear(one, one, comm=comm),
                     lambda comm: epigrad.linear(one, one, comm=comm, split="rows"),
                     lambda comm: epigrad.linear_backward(one, one, one, comm=comm),
                     lambda comm: epigrad.linear_backward(one, one, one, comm=comm, mean=True),
                     lambda comm: epigrad.linear_backward(one, one, one, comm=comm, split="columns")):
            with pytest.raises(TypeError, match=r"^comm is <class '\w+'>; expected an epigrad.Comm"):
                call(wrong)


def test_a_mean_over_no_processes():
    one = np.ones((1, 1), "f4")
    with pytest.raises(epigrad.ArgumentError, match="^mean is True without comm; expected both"):
        epigrad.linear_backward(one, one, one, mean=True)


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

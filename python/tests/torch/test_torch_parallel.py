# SPDX-License-Identifier: Apache-2.0
"""Layers of torch divided over processes under mpirun, beside the whole ones."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARY = os.environ.get("EPIGRAD_MPI_LIBRARY") or str(
    pathlib.Path(os.environ.get("EPIGRAD_LIBRARY_DIR", ".")).parent / "src" / "libepigrad_mpi.so")
needs_mpi = pytest.mark.skipif(not os.path.exists(LIBRARY) or shutil.which("mpirun") is None, reason="no MPI here")

RANK = """
import torch, epigrad, epigrad.torch
torch.set_num_threads(1)
torch.manual_seed(1)
act = {"none": lambda v: v, "relu": torch.relu, "gelu_erf": torch.nn.functional.gelu, "tanh": torch.tanh}
close = lambda got, wanted: torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)
with epigrad.Comm.mpi() as comm:
    part = lambda tensor, axis: torch.tensor_split(tensor, comm.ranks, axis)[comm.rank]
    for name, bias in ((name, bias) for name in act for bias in (True, False)):
        up, down = (torch.nn.Linear(*sizes, bias=bias, dtype=torch.float64) for sizes in ((6, 9), (9, 6)))
        x = torch.randn(8, 3, 6, dtype=torch.float64, requires_grad=True)
        scale = torch.randn(8, 3, 6, dtype=torch.float64)
        y = down(act[name](up(x)))
        (y * scale).sum().backward()

        first = epigrad.torch.ColumnParallelLinear(up, comm, name)
        second = epigrad.torch.RowParallelLinear(down, comm)
        mine = part(x.detach(), 0).clone().requires_grad_()
        out = second(first(mine))
        close(out, part(y, 0))
        (out * part(scale, 0)).sum().backward()
        close(mine.grad, part(x.grad, 0))
        close(first.weight.grad, part(up.weight.grad, 0))
        close(second.weight.grad, part(down.weight.grad, 1))
        if bias:
            close(first.bias.grad, part(up.bias.grad, 0))
            close(second.bias.grad, down.bias.grad)
        with torch.no_grad():
            close(second(first(mine)), part(y, 0))
        wide = epigrad.torch.RowParallelLinear(down, comm, name)  # an activation behind the sum
        hidden = act[name](up(x)).detach()
        whole = act[name](down(hidden))
        inside = part(hidden, 2).clone().requires_grad_()
        close(wide(inside), part(whole, 0))
        wide(inside).sum().backward()  # of a gradient that is expanded
        hidden.requires_grad_()
        act[name](down(hidden)).sum().backward()
        close(inside.grad, part(hidden.grad, 2))
        assert "rank" in repr(wide)
    for wrong in (lambda: epigrad.torch.RowParallelLinear(down, comm, "none of them"),
                  lambda: epigrad.torch.RowParallelLinear(down.weight, comm)):
        try:
            wrong()
        except epigrad.ArgumentError:
            pass
        else:
            raise AssertionError("not refused")
print("passed")
"""


@needs_mpi
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_block_beside_the_whole_one(ranks):
    command = [ROOT / "tools" / "mpirun.sh", "mpirun", str(ranks), sys.executable, "-c", RANK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False,
                          env={**os.environ, "EPIGRAD_MPI_LIBRARY": LIBRARY})
    assert done.returncode == 0 and done.stdout.count("passed") == ranks, done.stderr

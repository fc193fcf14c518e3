# SPDX-License-Identifier: Apache-2.0
"""Calls on the CPU by the threads of torch's own loops."""
import os
import subprocess
import sys
import threading

import pytest
import torch

import epigrad
import epigrad.torch

if "OpenMP" not in torch.__config__.parallel_info() or not os.path.isdir("/proc/self/task"):
    pytest.skip("torch without OpenMP, or a system without /proc", allow_module_level=True)


@pytest.fixture(name="threads")
def _threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def layer():
    torch.manual_seed(1)
    return torch.randn(300, 200), torch.randn(400, 200), torch.randn(400)


def test_as_many_as_torch_says(threads):
    x, w, bias = layer()
    threads(1)
    alone = epigrad.torch.linear(x, w, bias, "gelu")
    for number in (3, 2, 5):
        threads(number)
        assert epigrad.device_info()[2] == number
        assert torch.equal(epigrad.torch.linear(x, w, bias, "gelu"), alone)
    try:
        epigrad.set_num_threads(7)
        assert epigrad.device_info()[2] == 7
        assert torch.equal(epigrad.torch.linear(x, w, bias, "gelu"), alone)
    finally:
        epigrad.set_num_threads(0)
    assert epigrad.device_info()[2] == 5


def test_no_threads_beside_torchs(threads):
    x, w, bias = layer()
    threads(4)
    torch.tanh(torch.randn(1000, 1000))
    before = set(os.listdir("/proc/self/task"))
    for _ in range(3):
        epigrad.torch.linear(x, w, bias, "gelu")
    assert set(os.listdir("/proc/self/task")) == before


def test_from_several_threads(threads):
    x, w, bias = layer()
    threads(2)
    expected, wrong = epigrad.torch.linear(x, w, bias, "gelu"), []

    def work():
        for _ in range(20):
            if not torch.equal(epigrad.torch.linear(x, w, bias, "gelu"), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_child_has_its_own():
    """GNU's OpenMP hangs in a child of a process that used it, and torch's loops do with it: none is in the child."""
    code = """if True:
        import os, torch, epigrad, epigrad.torch
        torch.set_num_threads(3)
        x, w = torch.ones(300, 200), torch.ones(400, 200)
        torch.tanh(torch.randn(1000, 1000))
        epigrad.torch.linear(x, w)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(2)
            good = epigrad.device_info()[2] == 2
            good &= all(set(epigrad.torch.linear(x, w).flatten().tolist()) == {200} for _ in range(3))
            os._exit(0 if good else 1)
        raise SystemExit(0 if os.waitpid(child, 0)[1] == 0 else 1)
    """
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0

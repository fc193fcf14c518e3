# SPDX-License-Identifier: Apache-2.0
"""Signals that end the command: at every moment OUT is as it was or whole, and nothing lies beside it."""

import ctypes
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import EPIGRAD, read, succeed, write

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
M, N = 3000, 2000  # y and pre have 24 MB each: long enough to write that a signal can come in between


@pytest.fixture
def source(tmp_path):
    tensors = {"a": np.ones((M, 1), np.float32), "b": np.ones((1, N), np.float32)}
    return write(tmp_path / "in.safetensors", tensors)


def start(source, out, ignored=()):
    """What these tests run under may ignore some of the signals, and its children with it."""
    disposition = lambda: [signal.signal(each, signal.SIG_IGN if each in ignored else signal.SIG_DFL) for each in SIGNALS]
    command = [EPIGRAD, "forward", source, "-o", out, "--save-pre", "--threads", "2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=disposition)


def beside(out):
    return [path for path in out.parent.iterdir() if path.name.startswith(out.name + ".")]


def start_and_wait_for_writing(source, out, **options):
    process = start(source, out, **options)
    while process.poll() is None and not beside(out):
        pass
    return process


def check_whole(out):
    results = read(out)
    assert results.keys() == {"y", "pre"} and all(array.shape == (M, N) for array in results.values())


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_while_it_writes(tmp_path, source, name, number):
    out = tmp_path / name
    succeed("backward", write(tmp_path / "old", {"a": np.ones((1, 1)), "b": np.ones((1, 1)), "grad": np.ones((1, 1))}), "-o", out)
    ended = 0
    for _ in range(5):  # on a slow machine this test may come too late now and then
        process = start_and_wait_for_writing(source, out)
        process.send_signal(number)
        printed = process.communicate(timeout=60)
        assert printed == (b"", b"") and not beside(out)
        assert process.returncode in (-number, 0)
        ended += process.returncode == -number
        if process.returncode == 0:
            check_whole(out)
        else:
            assert "d_b" in read(out), "the older result stays"
            break
    assert ended > 0


@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_at_random_moments(tmp_path, source, name):
    out, numbers = tmp_path / name, random.Random(name)
    begin = time.monotonic()
    assert start(source, out).wait(60) == 0
    longest = time.monotonic() - begin
    for _ in range(40):
        process, number = start(source, out), numbers.choice(SIGNALS)
        time.sleep(numbers.uniform(0, longest))
        process.send_signal(number)
        assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode in (-number, 0)
        assert not beside(out)
        check_whole(out)


def test_on_another_thread(tmp_path, source):
    """The kernel may hand a signal to any thread: each must leave the files to the one that makes them."""
    out, libc, ended = tmp_path / "out", ctypes.CDLL(None), 0
    for _ in range(10):
        process = start_and_wait_for_writing(source, out)
        try:
            threads = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
        except FileNotFoundError:
            threads = []
        others = [thread for thread in threads if thread != process.pid]
        if not others:
            process.communicate(timeout=60)
            continue
        libc.tgkill(process.pid, others[0], signal.SIGTERM)
        assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode in (-signal.SIGTERM, 0) and not beside(out)
        ended += process.returncode != 0
    if ended == 0:
        pytest.skip("no thread but the first was there to be interrupted")


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_what_the_caller_ignores(tmp_path, source, number):
    """nohup, and the background jobs of a shell."""
    out = tmp_path / "out.safetensors"
    process = start_and_wait_for_writing(source, out, ignored=[number])
    process.send_signal(number)
    assert process.communicate(timeout=60) == (b"", b"") and process.returncode == 0
    check_whole(out)

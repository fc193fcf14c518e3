# SPDX-License-Identifier: Apache-2.0
"""Progress bars: on a terminal, on what takes over a second, and nowhere else."""

import os
import pty
import subprocess
import time

import pytest

from conftest import EPIGRAD, succeed

SLOW = ["bench", "--shape", "64x64x64,32x32x32", "--seconds", "1.2"]


def on_a_terminal(arguments):
    """What the command writes to stderr where that is a terminal, and to stdout."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([EPIGRAD, *arguments], stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # the terminal is closed
                break
            if not chunk:
                break
            seen += chunk
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    return seen.decode(), out


def test_a_bar_on_a_terminal():
    bar, out = on_a_terminal(SLOW)
    assert "bench [" in bar and "64x64x64" in bar and "1/3" in bar
    assert bar.endswith("\r\x1b[K"), "the bar is taken off the screen"
    assert "\r" not in out and len(out.splitlines()) == 3


def test_no_bar_on_what_is_quick(tmp_path, layer):
    bar, _ = on_a_terminal(["forward", str(layer()), "-o", str(tmp_path / "out.safetensors")])
    assert bar == ""


def test_no_bar_within_the_first_second():
    for _ in range(10):  # on a busy machine half a second's work may take longer
        start = time.monotonic()
        bar, _ = on_a_terminal(["bench", "--shape", "8x8x8", "--seconds", "0.4"])
        if time.monotonic() - start < 1:
            assert bar == ""
            return
    pytest.skip("this machine is too busy")


def test_no_bar_elsewhere():
    assert len(succeed(*SLOW).splitlines()) == 3  # and succeed() wants nothing on stderr

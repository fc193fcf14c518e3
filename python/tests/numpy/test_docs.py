# SPDX-License-Identifier: Apache-2.0
"""The tutorial of the package: every block does what the page says, as tests/docs/check.py has it of the others."""
import importlib.util
import os
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SPEC = importlib.util.spec_from_file_location("check", os.path.join(ROOT, "tests", "docs", "check.py"))
check = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check)


@pytest.mark.parametrize("page", check.PACKAGE)
def test_page(page, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    start = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'  # of this environment, which a link would leave
    (programs / "python3").write_text(start)
    (programs / "python3").chmod(0o755)
    environment = dict(os.environ, PATH=f"{programs}:{os.environ['PATH']}")
    scratch = tmp_path / "work"
    scratch.mkdir()
    assert not list(check.run_page(page, str(scratch), environment))

# SPDX-License-Identifier: Apache-2.0
"""Pages of the package: every block does what the page says, as tests/docs/check.py has it of the others."""
import importlib.util
import os
import sys

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
SPEC = importlib.util.spec_from_file_location("check", os.path.join(ROOT, "tests", "docs", "check.py"))
check = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(check)


def pytest_generate_tests(metafunc):
    for name, pages in (("page", check.PACKAGE), ("torch_page", check.PACKAGE_TORCH),
                        ("jax_page", check.PACKAGE_JAX)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, pages)


@pytest.fixture(name="faults_of")
def make_faults_of(tmp_path):
    """What is wrong in a page, whose programs are of this environment."""
    def faults(page):
        programs, scratch = tmp_path / "bin", tmp_path / "work"
        programs.mkdir()
        scratch.mkdir()
        (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # a link would leave it
        (programs / "python3").chmod(0o755)
        environment = dict(os.environ)
        if "```c\n" in check.read(page):  # a reader's copy of the library
            environment = check.installed(os.path.dirname(os.environ["EPIGRAD"]), str(tmp_path / "installed"))
            (scratch / "examples").symlink_to(os.path.join(ROOT, "examples"))
        environment["PATH"] = f"{programs}:{os.environ['PATH']}"
        return list(check.run_page(page, str(scratch), environment))
    return faults

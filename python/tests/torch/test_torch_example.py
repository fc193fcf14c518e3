# SPDX-License-Identifier: Apache-2.0
"""The character GPT: patched, it has the same loss at every step."""
import os
import re
import subprocess
import sys

PROGRAM = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "python", "char_gpt.py")


def test_same_losses():
    run = subprocess.run([sys.executable, PROGRAM, "--steps", "4", "--dtype", "float64"], text=True, check=True,
                         stdout=subprocess.PIPE, timeout=300)
    assert run.stdout.count("replaced blocks.") == 3
    assert float(re.search(r"losses are (\S+) apart", run.stdout).group(1)) == 0
    first, last = (float(loss) for loss in re.findall(r"epigrad (\d\S+)$", run.stdout, flags=re.M)[:2])
    assert last < first

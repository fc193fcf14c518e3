# SPDX-License-Identifier: Apache-2.0
"""python -m epigrad: the command, as its manual page describes it."""
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    command = os.environ.get("EPIGRAD") or os.path.join(_HERE, "bin", "epigrad")
    if not os.path.exists(command):
        sys.exit(f"epigrad: there is no {command}: this package was built without the command")
    os.execv(command, ["epigrad", *sys.argv[1:]])


if __name__ == "__main__":
    main()

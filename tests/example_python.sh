#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# example_python.sh LINEAR LINEAR_PY LIBRARY: examples/linear.py prints what examples/linear.c does.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" >"$work/c"
python3 "$2" "$3" >"$work/python"
diff "$work/c" "$work/python"

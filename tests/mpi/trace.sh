#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/mpi/trace.sh MPIRUN PROGRAM: traces of calls over two processes, with a network that is slow enough for groups of
# rows. Sums have to lie under products in the overlapped calls, and nowhere in the plain ones.
set -euo pipefail
run=$1 program=$2
root=$(dirname "$0")/../..
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for call in data columns-forward columns-backward rows-forward rows-backward; do
    "$root/tools/mpirun.sh" "$run" 2 "$program" "$call" 512x256x256 "$folder/$call.json" 1 3 1000
done
python3 "$root/tools/plot_trace.py" --check "$folder"/*.json

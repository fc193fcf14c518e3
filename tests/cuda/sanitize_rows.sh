#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every kernel by name, with its first few cases of the table, under compute-sanitizer's four tools.
#
#     tests/cuda/sanitize_rows.sh BUILD_DIRECTORY [CASES [JOBS [TOOL...]]]      4 cases, a job a processor, all tools
#
# One line for each report; the exit status is 1 where there is one. A tool waits a minute for a kernel.
# BUILD_DIRECTORY/rows, a name a line, is taken for the list of kernels where it is there.
set -eu
build=${1:?usage: $0 BUILD_DIRECTORY [CASES [JOBS [TOOL...]]]}
cases=${2:-4}
jobs=${3:-$(nproc)}
[ $# -lt 4 ] && set -- "$build" "$cases" "$jobs" memcheck racecheck initcheck synccheck
shift 3
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not installed" >&2; exit 1; }
rows=$(cat "$build/rows" 2> /dev/null || "$build/cli/epigrad" info --json | python3 -c '
import json, sys
for backend in json.load(sys.stdin)["backends"]:
    for kernel in backend["kernels"] if backend["backend"] == "cuda" else []:
        print(kernel["name"])')

one='
log=$(mktemp)
timeout 60 compute-sanitizer --tool "$2" --report-api-errors no --error-exitcode 9 "$1/tests/test_table" --backend cuda \
    --kernel "$3" > "$log" 2>&1 && code=0 || code=$?
case $code in
    0) echo "clean $2 $3:$(grep -o " *[0-9]* passed" "$log" | head -1)" ;;
    77) echo "skipped $2 $3" ;;
    *) echo "REPORT $2 $3 (exit $code)"; grep -E "FAILED|no case|=========.*(Error|ERROR|Invalid|hazard|Uninit|at eg_|Barrier)" "$log" | head -5 ;;
esac
rm "$log"'
export EPIGRAD_CUBLASLT=off EPIGRAD_TEST_SHORT=1 EPIGRAD_TEST_FEW="$cases"
out=$(mktemp)
for tool in "$@"; do
    for row in $rows; do printf '%s\n' "$tool $row"; done
done | xargs -P "$jobs" -L 1 sh -c "$one" sh "$build" > "$out" 2>&1 || true
for tool in "$@"; do
    echo "$tool: $(grep -c "^clean $tool " "$out") clean, $(grep -c "^skipped $tool " "$out") skipped"
done
! grep -A 5 "^REPORT" "$out"

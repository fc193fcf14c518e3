#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a reduced table of checks on the CUDA backend under compute-sanitizer's four tools, and what the backend
# chooses for large layers only: a pass that two kernels share, one kernel for most of a call, and tiles that
# consumers make in turn.
#
#     tests/cuda/sanitize.sh BUILD_DIRECTORY
#
# cublasLt is switched off, so that every product is a kernel of ours. Driver calls that fail are not reported:
# an entry point is looked for in one module after the other.
set -eu
build=${1:?usage: $0 BUILD_DIRECTORY}
table=$build/tests/test_table
device=$build/tests/cuda/test_cuda_device
exact=$build/tests/cuda/test_cuda_exact
for program in "$table" "$device" "$exact"; do
    test -x "$program" || { echo "$program is not built" >&2; exit 1; }
done
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not installed" >&2; exit 1; }
export EPIGRAD_CUBLASLT=off EPIGRAD_TEST_SHORT=1
for tool in memcheck racecheck initcheck synccheck; do
    echo "== $tool"
    compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 1 "$table" --backend cuda
    compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 1 "$exact" 'tiles_made_in_turn*'
done

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz/run.sh BUILD_DIR SECONDS: runs every fuzz target for that long each, from the committed corpus,
# which is left as it is. Fails on the first crash, whose input is left in BUILD_DIR/fuzz.
set -eu
build=${1:?usage: fuzz/run.sh BUILD_DIR SECONDS}
seconds=${2:?usage: fuzz/run.sh BUILD_DIR SECONDS}
here=$(cd "$(dirname "$0")" && pwd)
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
for target in fuzz_safetensors fuzz_npy fuzz_descriptor; do
    mkdir "$found/$target"
    if ! "$build/fuzz/$target" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=10 \
        -print_final_stats=1 -artifact_prefix="$build/fuzz/" \
        "$found/$target" "$here/corpus/$target" >"$found/log" 2>&1; then
        cat "$found/log"
        exit 1
    fi
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$found/log") inputs in $seconds s, no crash"
done

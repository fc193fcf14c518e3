#!/bin/sh
# fuzz/run.sh BUILD_DIR SECONDS: runs every fuzz target for that long each, from the committed corpus,
# which is left as it is. Fails on the first crash, whose input is left in BUILD_DIR/fuzz.
set -eu
build=${1:?usage: fuzz/run.sh BUILD_DIR SECONDS}
seconds=${2:?usage: fuzz/run.sh BUILD_DIR SECONDS}
here=$(cd "$(dirname "$0")" && pwd)
for target in fuzz_safetensors fuzz_npy fuzz_descriptor; do
    found=$(mktemp -d)
    trap 'rm -rf "$found"' EXIT
    echo "$target: $seconds s"
    "$build/fuzz/$target" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 \
        -verbosity=0 -artifact_prefix="$build/fuzz/" "$found" "$here/corpus/$target"
    rm -rf "$found"
done

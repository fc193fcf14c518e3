#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/install/run.sh BUILD_DIR COMPILER: installs to a scratch prefix, moves that elsewhere, and builds and runs
# a ten-line program against it in each way a user may: CMake (shared, static, C++17) and pkg-config (shared,
# static).
set -euo pipefail
command -v c++ >/dev/null || { echo "skipped: no C++ compiler"; exit 77; }

build=$(cd "$1" && pwd)
compiler=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/first" >"$scratch/install.log"
mv "$scratch/first" "$scratch/prefix" # both packages must follow
prefix=$scratch/prefix

passed() { echo "$1: passed"; }

cmake -S "$here" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$compiler" \
    >"$scratch/configure.log"
cmake --build "$scratch/build" >"$scratch/build.log" || { cat "$scratch/build.log"; exit 1; }
for way in shared static cxx; do
    "$scratch/build/$way"
    passed "CMake, $way"
done

pc=$(find "$prefix" -name epigrad.pc)
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir epigrad)
strict=(-std=c17 -Wall -Wextra -Wpedantic -Werror)

# shellcheck disable=SC2046 # pkg-config prints words
"$compiler" "${strict[@]}" "$here/ten.c" -o "$scratch/shared" $(pkg-config --cflags --libs epigrad)
LD_LIBRARY_PATH=$libdir "$scratch/shared"
passed "pkg-config, shared"

# Every exported name is ours.
foreign=$(nm --dynamic --defined-only "$libdir/libepigrad.so" | awk '$3 !~ /^eg_/ {print $3}')
[[ -z $foreign ]] || { echo "exported, and not ours: $foreign"; exit 1; }
passed "exported names"

# Where only the archive is installed, the same line gives a program that carries the library in itself.
rm "$libdir"/libepigrad.so*
# shellcheck disable=SC2046
"$compiler" "${strict[@]}" "$here/ten.c" -o "$scratch/static" $(pkg-config --cflags --libs --static epigrad)
"$scratch/static"
passed "pkg-config, static"

[[ ! -e $prefix/bin/epigrad ]] || "$prefix/bin/epigrad" info >/dev/null
passed "the installed command"

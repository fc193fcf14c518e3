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
! pkg-config --exists 'epigrad >= 0.2' || { echo "pkg-config takes epigrad for version 0.2"; exit 1; }
said=$(sed -n 's/^#define EG_VERSION_[A-Z]* //p' "$(pkg-config --variable=includedir epigrad)/epigrad/epigrad.h" | paste -sd .)
[[ $(pkg-config --modversion epigrad) == "$said" ]] || { echo "epigrad.pc is not of the header's version, $said"; exit 1; }
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

if [[ -e $prefix/bin/epigrad ]]; then
    PATH=$prefix/bin:$PATH
    epigrad info >/dev/null
    [[ -e $prefix/share/man/man1/epigrad.1 ]] || { echo "no man page is installed"; exit 1; }
    # shellcheck source=cli/epigrad.bash
    source "$prefix/share/bash-completion/completions/epigrad"
    COMP_WORDS=(epigrad bench --backend we) COMP_CWORD=3
    _epigrad epigrad
    [[ ${COMPREPLY[*]} == webgpu ]] || { echo "completed to \"${COMPREPLY[*]}\""; exit 1; }
    passed "the installed command"
fi

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/install/subproject.sh WORK COMPILER: epigrad as a part of another project (tests/install/parent): it leaves the
# parent's build type alone, and what the parent installs is the parent's. Leaves a library with debugging information
# below WORK, for the test of the ABI.
set -euo pipefail

work=$1
compiler=$2
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
rm -rf "$work"
mkdir -p "$work"
unset DESTDIR CMAKE_BUILD_TYPE

fail() { echo "FAILED: $1"; exit 1; }
passed() { echo "$1: passed"; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "$*"; }; }
configure() { # configure BUILD OPTION...
    quietly cmake -S "$here/parent" -B "$work/$1" -G Ninja -DCMAKE_C_COMPILER="$compiler" \
        -DEPIGRAD_SOURCE="$source" -DEPIGRAD_CUDA=OFF -DCMAKE_INSTALL_LIBDIR=lib "${@:2}"
}
build_type() { sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$work/$1/CMakeCache.txt"; }
installed() { (cd "$work/$1" && find . ! -type d | sort | paste -sd ' '); }

# Where the parent sets no build type the cache stays so, and epigrad's own files are optimised all the same.
for way in OFF ON; do
    configure "none-$way" -DBY_FETCH_CONTENT=$way
    [[ -z $(build_type "none-$way") ]] || fail "CMAKE_BUILD_TYPE became $(build_type "none-$way")"
    grep -q '^  FLAGS = .*-O3' "$work/none-$way/build.ninja" || fail "epigrad is not optimised where no type is set"
    passed "no build type, BY_FETCH_CONTENT=$way"
done

configure debug -DCMAKE_BUILD_TYPE=Debug -DEPIGRAD_WEBGPU=OFF
[[ $(build_type debug) == Debug ]] || fail "CMAKE_BUILD_TYPE became $(build_type debug)"
! grep -q '^  FLAGS = .*-O3' "$work/debug/build.ninja" || fail "the parent's build type is not epigrad's"
for way in OFF ON; do
    configure debug -DBY_FETCH_CONTENT=$way
    rm -f "$work/debug/parent" "$work/debug/parent_static"
    quietly cmake --build "$work/debug" --target parent parent_static
    "$work/debug/parent" || fail "the parent's program, BY_FETCH_CONTENT=$way"
    "$work/debug/parent_static" || fail "the parent's program with the static library, BY_FETCH_CONTENT=$way"
    passed "a program, shared and static, BY_FETCH_CONTENT=$way"
done

quietly cmake --install "$work/debug" --prefix "$work/without"
[[ $(installed without) == ./bin/parent ]] || fail "installed with the parent: $(installed without)"
passed "EPIGRAD_INSTALL is off within another project"

configure debug -DEPIGRAD_INSTALL=ON
quietly cmake --build "$work/debug"
quietly cmake --install "$work/debug" --prefix "$work/with"
for file in bin/parent lib/libepigrad.so lib/libepigrad.a include/epigrad/epigrad.h lib/pkgconfig/epigrad.pc; do
    [[ -e $work/with/$file ]] || fail "EPIGRAD_INSTALL=ON installs no $file"
done
passed "EPIGRAD_INSTALL=ON"

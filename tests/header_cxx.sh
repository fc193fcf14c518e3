#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# header_cxx.sh INCLUDE [PROGRAM LIBRARY]: the header as C++17, alone; or PROGRAM built with it against LIBRARY, and
# run. A C++ compiler is looked for here and not by CMake: `make demo` does without one, and what `make check` then
# installs must be used although the build folder is older. Without one the test is skipped (77).
set -eu
include=$1
for cxx in "${CXX:-c++}" g++ clang++ ""; do
    [ -n "$cxx" ] || { echo "skipped: no C++ compiler"; exit 77; }
    ! command -v "$cxx" >/dev/null || break
done
strict="-std=c++17 -Wall -Wextra -Wpedantic -Werror"
if [ $# -eq 1 ]; then
    # shellcheck disable=SC2086 # words
    exec "$cxx" $strict -fsyntax-only -x c++ "$include/epigrad/epigrad.h"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086
"$cxx" $strict "-I$include" "$2" "$3" "-Wl,-rpath,$(dirname "$3")" -o "$work/program"
"$work/program"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes libwebgpu_dawn.so, a webgpu.h library for EPIGRAD_WEBGPU_LIBRARY, out of the Dawn in the PyPI package
# wgpudawn. For tests by hand: Dawn refuses the software driver of Debian 12 (Mesa 22.3) and takes that of its
# backports (25.0).
# Usage: tests/webgpu/dawn.sh [directory], by default build/webgpu.
set -eu
version=0.32.0.4
root=$(cd "$(dirname "$0")/../.." && pwd)
to=${1:-$root/build/webgpu}
mkdir -p "$to"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 \
    --dest "$wheels" "wgpudawn==$version"
python3 -m zipfile -e "$wheels"/wgpudawn-*.whl "$wheels"
cp "$wheels"/wgpudawn/_lib/_wgpu_dawn.abi3.so "$to"
"${CC:-cc}" -std=gnu17 -shared -fPIC -O1 -I "$root/src" -I "$root/include" "$root/tests/webgpu/dawn_library.c" \
    -o "$to/libwebgpu_dawn.so" -L "$to" -l:_wgpu_dawn.abi3.so -Wl,-rpath,'$ORIGIN'
echo "$to/libwebgpu_dawn.so"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts in place what the WebGPU backend needs at run time:
#   build/webgpu/libwgpu_native.so   wgpu-native, from the PyPI package wgpu
#   a Vulkan driver                  where there is none and we are root: Debian's mesa-vulkan-drivers (on the CPU)
# Usage: tools/fetch-webgpu.sh [directory], by default build/webgpu. Running it again changes nothing.
set -eu
version=0.32.0
root=$(cd "$(dirname "$0")/.." && pwd)
to=${1:-$root/build/webgpu}
library=$to/libwgpu_native.so

if [ ! -s "$library" ]; then
    mkdir -p "$to"
    wheels=$(mktemp -d)
    trap 'rm -rf "$wheels"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$wheels" "wgpu==$version"
    python3 - "$wheels" "$library" <<'PYTHON'
import pathlib, sys, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("wgpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if "libwgpu_native" in n and n.endswith((".so", ".dylib"))]
    part = pathlib.Path(sys.argv[2] + ".part")
    part.write_bytes(archive.read(name))
    part.rename(sys.argv[2])
PYTHON
fi

if ! ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json >/dev/null 2>&1 || ! ldconfig -p | grep -q libvulkan.so.1
then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1 >/dev/null ||
            { apt-get update >/dev/null && apt-get install -y --no-install-recommends mesa-vulkan-drivers libvulkan1 >/dev/null; }
    else
        echo "no Vulkan driver found: install one (Debian: mesa-vulkan-drivers and libvulkan1)" >&2
    fi
fi
echo "$library"

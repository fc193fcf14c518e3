#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/aarch64-wheel.sh [BUILD]: the wheel for 64-bit ARM, cross-built in BUILD/wheel-aarch64 (build/...), and the tests
# of the package with NumPy run on it by Debian's own aarch64 Python under qemu-user. The wheel lies in
# BUILD/dist-aarch64; without the CUDA backend. `make wheel-aarch64` sees to what it needs.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mkdir -p "${1:-build}" && cd "${1:-build}" && pwd)
venv=$out/wheel-venv/bin root=$out/aarch64 lib=usr/lib/aarch64-linux-gnu
mkdir -p "$root/lists/partial" "$root/archives/partial" "$root/debs"

# Debian's packages of the other architecture, unpacked beside the system and not into it.
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
    -o Dir::State::Lists="$root/lists" -o Dir::Cache="$root")
if [[ ! -e $root/ready ]]; then
    apt-get "${options[@]}" update
    (cd "$root/debs" && apt-get "${options[@]}" download libc6 libgcc-s1 libstdc++6 python3.11-minimal \
        libpython3.11-minimal libpython3.11-stdlib zlib1g libexpat1 libffi8 libbz2-1.0 liblzma5 libssl3 libcjson1 \
        libcjson-dev)
    for package in "$root"/debs/*.deb; do dpkg-deb -x "$package" "$root/system"; done
    mkdir -p "$root/site"
    "$venv/pip" install -q --disable-pip-version-check --no-compile --only-binary=:all: --python-version 3.11 \
        --implementation cp --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
        --platform manylinux2014_aarch64 --target "$root/site" --upgrade numpy ml_dtypes pytest
    touch "$root/ready"
fi

rm -rf "$out/dist-aarch64" "$root/package"
_PYTHON_HOST_PLATFORM=linux-aarch64 "$venv/pip" wheel -q --no-deps --disable-pip-version-check \
    -w "$out/dist-aarch64/plain" . -C build-dir="$out/wheel-aarch64" \
    -C cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" -C cmake.define.EPIGRAD_CUDA=OFF \
    -C cmake.define.CJSON_INCLUDE_DIR="$root/system/usr/include" \
    -C cmake.define.CJSON_LIBRARY="$root/system/$lib/libcjson.so"
# On another machine auditwheel takes no name of a platform, but finds the oldest system that will do.
PATH=$venv:$PATH auditwheel repair --ldpaths "$root/system/$lib" -w "$out/dist-aarch64" "$out"/dist-aarch64/plain/*.whl
compgen -G "$out/dist-aarch64/*-py3-none-manylinux_2_28_aarch64*.whl" >/dev/null || {
    echo "aarch64-wheel: it needs a newer system than glibc 2.28: $(cd "$out/dist-aarch64" && echo *.whl)" >&2
    exit 1
}
"$venv/python" -m zipfile -e "$out"/dist-aarch64/*.whl "$root/package"
chmod +x "$root/package/epigrad/bin/epigrad"

emulated=(qemu-aarch64-static -L "$root/system" -E LD_LIBRARY_PATH="$root/system/$lib:$root/system/lib/aarch64-linux-gnu")
export PYTHONPATH=$root/package:$root/site PYTHONHOME=$root/system/usr PYTHONDONTWRITEBYTECODE=1
"${emulated[@]}" "$root/package/epigrad/bin/epigrad" info
"${emulated[@]}" "$root/system/usr/bin/python3.11" -c "
import platform, numpy as np, epigrad
assert platform.machine() == 'aarch64' and 'neon' in epigrad.device_info()[1], epigrad.device_info()
x, w, bias = np.random.rand(33, 70), np.random.rand(50, 70), np.random.rand(50)
assert np.allclose(epigrad.linear(x, w, bias, activation='tanh'), np.tanh(x @ w.T + bias))
print('epigrad', epigrad.__version__, 'on', platform.machine(), epigrad.device_info())"
# Those that start programs of their own would start the emulator's host's.
"${emulated[@]}" "$root/system/usr/bin/python3.11" -m pytest -q -p no:cacheprovider --noconftest \
    python/tests/numpy/test_numpy.py -k "not fork and not command and not without_numpy and not lock_is_given_up"
ls -l "$out"/dist-aarch64/*.whl

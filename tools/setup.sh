#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/setup.sh build|web|webgpu|mpi|bench|check|packages|arm|ci: sees to the Debian packages that `make`, `make web`,
# the WebGPU backend, `make demo-distributed`, `make bench`, `make check`, `make deb`, `make wheel-aarch64` or .ci/run
# need. Quick and quiet when all is there. Installs what is missing where it may (as root, or with a sudo that asks no
# password), else prints the line to type.
# docs/reference/dependencies.md tells what each is for.
set -euo pipefail

# Debian 12 names. `check` needs what `build` needs, and `ci` what both do.
build=(gcc libc6-dev make cmake ninja-build pkgconf zlib1g-dev libcjson-dev libcmocka-dev)
web=(cmake ninja-build clang lld wasi-libc libclang-rt-dev libclang-rt-dev-wasm32)
webgpu=(python3 python3-pip libvulkan1 mesa-vulkan-drivers)
mpi=(openmpi-bin libopenmpi-dev)
bench=("${build[@]}" python3 python3-venv libopenblas0-openmp libblis4-openmp libdnnl-dev)
check=("${build[@]}" "${mpi[@]}" mpich libmpich-dev "${web[@]}" "${webgpu[@]}" g++ abigail-tools python3-venv chromium)
packages=("${build[@]}" build-essential debhelper fakeroot lintian)
arm=(make cmake ninja-build pkgconf python3 python3-venv gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static)
ci=("${check[@]}" "${packages[@]}" "${arm[@]}" cargo debootstrap clang-format clang-tidy shellcheck git)

case ${1:-} in
build) wanted=("${build[@]}") ;;
web) wanted=("${web[@]}") ;;
webgpu) wanted=("${webgpu[@]}") ;;
mpi) wanted=("${mpi[@]}") ;;
bench) wanted=("${bench[@]}") ;;
check) wanted=("${check[@]}") ;;
packages) wanted=("${packages[@]}") ;;
arm) wanted=("${arm[@]}") ;;
ci) wanted=("${ci[@]}") ;;
*)
    echo "usage: tools/setup.sh build|web|webgpu|mpi|bench|check|packages|arm|ci" >&2
    exit 2
    ;;
esac

# Where there is no dpkg the names are of no use, but the tools may be there all the same: CMake will say.
if ! command -v dpkg-query >/dev/null; then
    echo "setup: not a Debian system; needed are its equivalents of: ${wanted[*]}" >&2
    exit 0
fi

installed=" $(dpkg-query --show --showformat='${Package}:${db:Status-Status} ' "${wanted[@]}" 2>/dev/null || true)"
missing=()
for package in "${wanted[@]}"; do
    [[ $installed == *" $package:installed "* ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ $(id -u) -eq 0 ]]; then
    as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    echo "setup: some packages are missing; please type" >&2
    echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
    echo "and try again." >&2
    exit 1
fi

echo "setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -qq install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi

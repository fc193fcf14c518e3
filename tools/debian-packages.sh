#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/debian-packages.sh [BUILD]: the Debian packages, built from a copy of this tree in BUILD/debian (build/debian),
# so that the tree stays as it is; then looked over by lintian, unpacked, and used as a stranger would. The packages lie
# in BUILD/debian. DEB_BUILD_OPTIONS=nocheck leaves out the check of every kernel.
# Exits 77, saying why, where it cannot run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "${1:-$root/build}/debian"
out=$(cd "${1:-$root/build}/debian" && pwd)
copy=$out/epigrad unpacked=$out/unpacked

for tool in dpkg-buildpackage dh lintian pkg-config; do
    command -v "$tool" >/dev/null || { echo "skipped: no $tool (tools/setup.sh packages)"; exit 77; }
done
fail() { echo "debian-packages: $1" >&2; exit 1; }

version=$(sed -n 's/^project(epigrad VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
packaged=$(dpkg-parsechangelog -l "$root/debian/changelog" -S Version)
[[ $packaged == "$version" ]] || fail "debian/changelog has version $packaged, CMakeLists.txt $version"

# What is built is not always below build/, and a copy of it in the packages' source would be of no use.
rm -rf "$copy" "$unpacked" "$out/consumer" "$out"/*.deb "$out"/*.changes "$out"/*.buildinfo
mkdir "$copy"
tar -C "$root" -cf - --exclude=./.git --exclude='./build' --exclude='./build-*' --exclude=__pycache__ \
    --exclude=./bindings/rust/target --exclude="./${out#"$root/"}" . | tar -C "$copy" -xf -

(cd "$copy" && dpkg-buildpackage -us -uc -b) >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log"; fail "see $out/build.log"; }
lintian --allow-root --fail-on error,warning "$out"/*.changes || fail "lintian"

# Each package has what the next lines use, and only there.
for package in "$out"/*.deb; do dpkg-deb -x "$package" "$unpacked"; done
triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
export LD_LIBRARY_PATH=$unpacked/usr/lib/$triplet PKG_CONFIG_PATH=$unpacked/usr/lib/$triplet/pkgconfig
library=$(ldd "$unpacked/usr/bin/epigrad" | awk '/libepigrad/ {print $3}')
[[ $library == "$unpacked"/* ]] || fail "the command does not take the library of its package but: $library"
"$unpacked/usr/bin/epigrad" plan --shape 64x128x32 >/dev/null
! grep -qF "$root" "$library" || fail "the library names the folder that it was built in"
cmake -S "$root/tests/install" -B "$out/consumer" -G Ninja -DCMAKE_PREFIX_PATH="$unpacked/usr" >"$out/consumer.log"
cmake --build "$out/consumer" >>"$out/consumer.log" || { cat "$out/consumer.log"; fail "the CMake package"; }
"$out/consumer/shared"
AUTOPKGTEST_TMP=$out sh -c 'cd "$1" && debian/tests/program' sh "$copy"
rm -rf "$copy" "$unpacked" "$out/consumer" "$out/consumer.log" "$out/ten"
ls -l "$out"/*.deb

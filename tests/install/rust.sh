#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/install/rust.sh BUILD_DIR: the crate in bindings/rust, from a copy below BUILD_DIR that cargo may write to: its
# tests against this header, its example with the library of the build, of an installed copy and with the archive.
# Nothing is fetched. Skipped (77) where there is no cargo that runs.
set -euo pipefail
cargo --version >/dev/null 2>&1 || { echo "skipped: no cargo"; exit 77; }

build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
crate=$build/rust
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset EPIGRAD_LIB_DIR EPIGRAD_STATIC LD_LIBRARY_PATH
export EPIGRAD_SOURCE=$root CARGO_TARGET_DIR=$crate/target

mkdir -p "$crate"
rm -rf "$crate"/{src,tests,examples}
cp -r "$root"/bindings/rust/{Cargo.toml,build.rs,src,tests,examples} "$crate"
cd "$crate"

passed() { echo "$1: passed"; }
quietly() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log"; echo "FAILED: $*"; exit 1; }; }
example=$CARGO_TARGET_DIR/debug/examples/layer
shared() { ldd "$example" | awk '/libepigrad/ {print $3}'; } # which shared library it takes

export EPIGRAD_LIB_DIR=$build/src
quietly cargo build --offline
quietly cargo test --offline
quietly "$example"
[[ $(shared) == "$build/src"/* ]] || { echo "EPIGRAD_LIB_DIR's library is not $(shared)"; exit 1; }
passed "tests and example"

if ! grep -q fopenmp "$build/epigrad.pc"; then # its runtime is not the crate's to find
    EPIGRAD_STATIC=1 quietly cargo build --offline --example layer
    [[ -z $(shared) ]] || { echo "EPIGRAD_STATIC=1 links $(shared)"; exit 1; }
    quietly "$example"
    passed "the archive"
fi

unset EPIGRAD_LIB_DIR
if command -v pkg-config >/dev/null; then
    quietly cmake --install "$build" --prefix "$scratch/prefix"
    pc=$(find "$scratch/prefix" -name epigrad.pc)
    PKG_CONFIG_PATH=${pc%/*} quietly cargo build --offline --example layer
    [[ $(shared) == "$scratch/prefix"/* ]] || { echo "pkg-config's library is not $(shared)"; exit 1; }
    quietly "$example"
    passed "pkg-config"
fi

! PKG_CONFIG=false cargo build --offline >"$scratch/log" 2>&1 || { echo "built without a library"; exit 1; }
grep -q "epigrad-sys: false says: nothing; expected an installed epigrad 0.1" "$scratch/log" || { cat "$scratch/log"; exit 1; }
passed "no library"

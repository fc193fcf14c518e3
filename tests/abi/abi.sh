#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi.sh LIBRARY [--write]: is LIBRARY, built with debugging information, binary compatible with the last release of
# its SOVERSION, as tests/abi/epigrad-SOVERSION.abi records it? --write records this library instead: when a new
# SOVERSION is begun, or as long as the first release of one is not out.
set -eu
library=$1
here=$(cd "$(dirname "$0")" && pwd)
for tool in abidw abidiff; do
    command -v $tool >/dev/null || { echo "skipped: no $tool (Debian: abigail-tools)"; exit 77; }
done
[ "$(uname -m)" = x86_64 ] || { echo "skipped: the record is of x86_64"; exit 77; }
real=$(readlink -f "$library")
soversion=${real##*.so.}
case $soversion in 0.*) soversion=${soversion%.*} ;; *) soversion=${soversion%%.*} ;; esac
record=$here/epigrad-$soversion.abi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The public header's types and functions, and nothing that names this machine.
abidw --headers-dir "$here/../../include/epigrad" --drop-private-types --exported-interfaces-only \
    --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --no-parameter-names --no-write-default-sizes \
    --type-id-style hash "$real" | sed "s| path='[^']*/src/| path='src/|" >"$work/abi"
[ "$(grep -c '<function-decl' "$work/abi")" -ge 20 ] || { echo "no debugging information in $library"; exit 1; }

if [ "${2:-}" = --write ]; then
    cp "$work/abi" "$record"
    echo "wrote $record"
    exit 0
fi
[ -e "$record" ] || { echo "no record of SOVERSION $soversion: $0 LIBRARY --write makes one"; exit 1; }
# A field appended to a struct that begins with `size` is no break. abidiff's suppression for those (appended.ini)
# also lets pass whatever else changed in the same struct, so the unsuppressed report has the last word: nothing
# moved, nothing is gone, and the size, by which the library tells, has grown.
if ! abidiff --no-added-syms --leaf-changes-only "$record" "$work/abi" >"$work/report"; then
    if ! abidiff --no-added-syms --suppressions "$here/appended.ini" "$record" "$work/abi" >/dev/null ||
        grep -Eq "data member (change|deletion)|type size hasn't changed" "$work/report"; then
        cat "$work/report"
        echo "not compatible with SOVERSION $soversion: a new minor version (a new major one from 1.0 on) has to begin"
        exit 1
    fi
fi
echo "compatible with SOVERSION $soversion"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test_symbols.sh NM LIBRARY HEADER...: the shared library exports what the headers declare, and nothing else.
set -eu
nm=$1 library=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$nm" -D --defined-only "$library" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort >"$work/exported"
# Every function of the header is on a line that begins with EG_API; its name is the word before the "(".
sed -n 's/^EG_API .*\(eg_[a-z0-9_]*\)(.*/\1/p' "$@" | sort >"$work/declared"

[ "$(wc -l <"$work/declared")" -ge 20 ] || { echo "only $(wc -l <"$work/declared") functions in $*"; exit 1; }
[ "$(wc -l <"$work/declared")" -eq "$(cat "$@" | grep -c '^EG_API ')" ] || { echo "an EG_API line was not read"; exit 1; }
if ! diff "$work/declared" "$work/exported"; then
    echo "declared (<) and exported (>) differ"
    exit 1
fi
echo "$(wc -l <"$work/exported") symbols, all declared"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/install/readme_quotes.sh LINEAR: the README quotes examples/linear.c, and what it prints, as they are.
set -euo pipefail

linear=$1
root=$(cd "$(dirname "$0")/../.." && pwd)

# The fenced block that follows the comment `<!-- quote: NAME -->`.
quoted() {
    awk -v mark="<!-- quote: $1 -->" '
        $0 == mark { near = 1; next }
        near && /^```/ { if (inside) exit; inside = 1; next }
        inside' "$root/README.md"
}

compare() {
    diff -u --label "README.md quotes" <(quoted "$1") --label "$1" <(grep -v SPDX-License-Identifier "$2") || {
        echo "README.md does not quote $1 as it is"
        exit 1
    }
}

compare examples/linear.c "$root/examples/linear.c"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
"$linear" >"$output"
compare "build/examples/linear" "$output"
echo "README.md quotes what is there"

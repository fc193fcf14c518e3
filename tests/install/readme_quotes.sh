#!/usr/bin/env bash
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
    diff -u --label "README.md quotes" <(quoted "$1") --label "$1" "$2" || {
        echo "README.md does not quote $1 as it is"
        exit 1
    }
}

compare examples/linear.c "$root/examples/linear.c"
compare "build/examples/linear" <("$linear")
echo "README.md quotes what is there"

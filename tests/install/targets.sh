#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/install/targets.sh BUILD NINJA: the names that a user builds are targets of their own: `epigrad` is the library,
# not the file that the command is linked to.
set -eu
query() { "$2" -C "$1" -t query "$3"; }
query "$1" "$2" epigrad | grep -q 'src/libepigrad\.so' || {
    echo "\`cmake --build --target epigrad\` does not build the library but:"
    query "$1" "$2" epigrad
    exit 1
}
query "$1" "$2" epigrad_static | grep -q 'src/libepigrad\.a'
echo "epigrad and epigrad_static are the libraries"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# stderr.sh PROGRAM...: succeeds as PROGRAM does, in an environment without a display and its folder, and fails if
# anything was printed on stderr.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
env -u XDG_RUNTIME_DIR -u WAYLAND_DISPLAY -u DISPLAY -u NODEVICE_SELECT "$@" 2>"$work/stderr"
code=$?
if [ -s "$work/stderr" ]; then
    echo "on stderr:"
    cat "$work/stderr"
    exit 1
fi
exit $code

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh SCRIPT ARGUMENTS: a Python program of the project, skipped where there is no python3, or without pkg-config.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
case " $* " in *" tutorials "*) command -v pkg-config >/dev/null || { echo "skipped: no pkg-config"; exit 77; } ;; esac
exec python3 "$@"

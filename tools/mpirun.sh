#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/mpirun.sh MPIRUN RANKS COMMAND...: with the options that Open MPI needs where there are more ranks than cores,
# and for root.
set -euo pipefail
run=$1 ranks=$2
shift 2
options=()
if "$run" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    options+=(--oversubscribe)
    if [[ $(id -u) -eq 0 ]]; then options+=(--allow-run-as-root); fi
fi
exec "$run" "${options[@]}" -n "$ranks" "$@"

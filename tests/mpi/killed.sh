#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/mpi/killed.sh MPIRUN PROGRAM RANKS FIRST COUNT: runs in each of which a rank is killed at a random point. The
# others have to come back with a status, each within seconds.
set -euo pipefail
run=$1 program=$2 ranks=$3 first=$4 count=$5
# mpirun would else end the others. MPICH's does so whatever it is told (4.0): ranks are in sessions of their own, which
# it does not find, and write to files, since it closes what they print to.
if "$run" --version 2>/dev/null | grep -q 'Open MPI\|OpenRTE'; then
    options=(--oversubscribe --allow-run-as-root --enable-recovery)
else
    options=(-disable-auto-cleanup)
    export UCX_TLS=${UCX_TLS:-^cma} # UCX's direct copies abort a rank that reads from one that has died
fi
# shellcheck disable=SC2016 # expanded by the shell of the rank
rank='exec setsid -w timeout -k 5 60 "$0" killed "$1" >"$2/$$" 2>&1'
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

lines_with() { cat "$folder"/[0-9]* 2>/dev/null | grep -c "$1" || true; }

told=0 named=0
for ((seed = first; seed < first + count; seed++)); do
    rm -f "$folder"/*
    timeout -k 5 60 "$run" "${options[@]}" -n "$ranks" sh -c "$rank" "$program" "$seed" "$folder" >"$folder/mpirun" 2>&1 || true
    for ((i = 0; i < 100 && $(lines_with '^told\|^FAILED') < ranks - 1; i++)); do sleep 0.1; done # mpirun may end first
    if [[ $(lines_with '^told') -ne $((ranks - 1)) || $(lines_with FAILED) -ne 0 ]]; then
        printf 'FAILED: seed %d: %d of %d ranks were told\n' "$seed" "$(lines_with '^told')" $((ranks - 1))
        tail -n +1 "$folder"/*
        exit 1
    fi
    told=$((told + ranks - 1))
    named=$((named + $(lines_with 'by name')))
done
echo "$count ranks killed: $told others were told, $named of them who it was"

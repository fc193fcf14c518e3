#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/mpi/killed.sh MPIRUN PROGRAM RANKS FIRST COUNT: runs in each of which a rank is killed at a random point. The
# others have to come back with a status, each within seconds.
set -euo pipefail
run=$1 program=$2 ranks=$3 first=$4 count=$5
options=(--oversubscribe --allow-run-as-root --enable-recovery) # Open MPI's, whose mpirun else ends the others
told=0 named=0
for ((seed = first; seed < first + count; seed++)); do
    text=$(timeout -k 5 60 "$run" "${options[@]}" -n "$ranks" "$program" killed "$seed" 2>&1) || true
    lines=$(grep -c '^told' <<<"$text") || true
    if [[ $lines -ne $((ranks - 1)) ]] || grep -q FAILED <<<"$text"; then
        printf 'FAILED: seed %d: %d of %d ranks were told\n%s\n' "$seed" "$lines" $((ranks - 1)) "$text"
        exit 1
    fi
    told=$((told + lines))
    named=$((named + $(grep -c 'by name' <<<"$text" || true)))
done
echo "$count ranks killed: $told others were told, $named of them who it was"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a test that needs an NVIDIA device and its driver. Without them, or where the device has too little memory
# for the test, it is skipped (77); with them, everything else is a failure, a build that lacks the CUDA backend
# included.
#
#     tests/cuda/on_device.sh PROGRAM [ARGUMENT...]
set -u
device=
for file in /dev/nvidia[0-9]* /dev/dxg; do # as the driver makes them, or as Windows shows the device to Linux
    if [ -e "$file" ]; then device=$file; fi
done
if [ -z "$device" ]; then
    echo "skipped: no NVIDIA device (/dev/nvidia0)"
    exit 77
fi
output=$("$@" 2>&1)
status=$?
echo "$output"
case $status:$output in
*"driver could not be loaded"*) echo "skipped: $device is there, its driver's library is not" && exit 77 ;;
*"too little memory"*) echo "skipped" && exit 77 ;;
77:*) echo "there is $device, and the CUDA backend does not run on it" && exit 1 ;;
esac
exit $status

/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of devices that were measured. A new device's come from tools/calibrate.py, the file to add
 * them to is calibration.def. */
#include <string.h>

#include "estimate.h"

#define CALIBRATION(name, count, to_clear, to_add_up)                                                        \
    {                                                                                                        \
        .device = (name), .multiprocessors = (count), .clear = (to_clear), .add_up = (to_add_up), .costs = {
#define COSTS(kind, ...) [EG_CUDA_KIND_##kind] = {__VA_ARGS__},
#define END_CALIBRATION                                                                                      \
    }                                                                                                        \
    }                                                                                                        \
    ,
static const eg_cuda_calibration calibrations[] = {
#include "calibration.def"
};

const eg_cuda_calibration *eg_cuda_calibration_of(const char *device) {
    for (size_t i = 0; i < sizeof calibrations / sizeof *calibrations; i++) {
        if (strstr(device, calibrations[i].device) != NULL) return &calibrations[i];
    }
    return &calibrations[0];
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a context is opened with. */
#include <stddef.h>

#include "backend.h"
#include "error.h"
#include "validate.h"

eg_status eg_validate_open(const eg_open_info **given, eg_open_info *copy) {
    const void *known = *given;
    EG_TRY(eg_take_known("info", &known, (*given)->size, offsetof(eg_open_info, tuning), sizeof *copy, copy));
    const eg_open_info *info = *given = known;
#define EG_ROW(NAME, name) +1
    const int backends = 0 EG_BACKEND_TABLE(EG_ROW);
#undef EG_ROW
#define EG_ROW(NAME, name) " EG_BACKEND_" #NAME
    EG_TRY(eg_validate_enum("info.backend", (int)info->backend, backends - 1,
                            "one of" EG_BACKEND_TABLE(EG_ROW)));
#undef EG_ROW
    if (info->threads < 0 || info->threads > 4096) {
        return eg_fail(EG_ERR_ARGUMENT, "info.threads is %d; expected 0 (all) to 4096", info->threads);
    }
    if (info->device < 0) {
        return eg_fail(EG_ERR_ARGUMENT, "info.device is %d; expected 0 or more", info->device);
    }
    if ((info->allocator.alloc == NULL) != (info->allocator.free == NULL)) {
        return eg_fail(EG_ERR_ARGUMENT,
                       "info.allocator has only one of alloc and free; expected both or neither");
    }
    if (info->parallel_for == NULL && info->parallel_user != NULL) {
        return eg_fail(EG_ERR_ARGUMENT, "info.parallel_user is set and info.parallel_for is NULL; expected a "
                                        "parallel_for, or neither");
    }
    return eg_validate_enum("info.tuning", (int)info->tuning, EG_TUNING_MEASURED,
                            "EG_TUNING_ESTIMATED or EG_TUNING_MEASURED");
}

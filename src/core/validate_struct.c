/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of public structs, of callers with older and newer headers; and enumerators. */
#include <string.h>

#include "error.h"
#include "validate.h"

eg_status eg_validate_size(const char *name, size_t given, size_t known) {
    enum { PAGE = 4096 }; /* no struct will grow by more, and no more is read past the known one */
    if (given >= known && given - known <= PAGE) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s.size is %zu; expected sizeof the struct, %zu%s", name, given, known,
                   given < known ? "" : " in this library");
}

/* And of one that is read: `given` bytes against the `known` bytes of this library's version of it. */
eg_status eg_validate_struct(const char *name, const void *struct_, size_t given, size_t known) {
    EG_TRY(eg_validate_size(name, given, known));
    for (size_t i = known; i < given; i++) {
        if (((const unsigned char *)struct_)[i] != 0) {
            return eg_fail(EG_ERR_UNSUPPORTED,
                           "%s.size is %zu and byte %zu is set: a field newer than this library, %s", name,
                           given, i, eg_version());
        }
    }
    return EG_OK;
}

/* Fields were added in words of 8 bytes. */
eg_status eg_take_known(const char *name, const void **given, size_t size, size_t oldest, size_t known,
                        void *copy) {
    if (size >= known) return eg_validate_struct(name, *given, size, known);
    if (size < oldest || size % 8 != 0) return eg_validate_size(name, size, known);
    memset(copy, 0, known);
    memcpy(copy, *given, size);
    *given = copy;
    return EG_OK;
}

eg_status eg_validate_enum(const char *name, int value, int last, const char *expected) {
    if (value >= 0 && value <= last) return EG_OK;
    return eg_fail(EG_ERR_ARGUMENT, "%s is %d; expected %s", name, value, expected);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sizes of the vocabulary. */
#include "problem.h"

#define EG_STRING(x)    #x
#define EG_AS_STRING(x) EG_STRING(x)

const char *eg_version(void) {
    return EG_AS_STRING(EG_VERSION_MAJOR) "." EG_AS_STRING(EG_VERSION_MINOR) "." EG_AS_STRING(
        EG_VERSION_PATCH);
}

const char *eg_dtype_name(eg_dtype dtype) {
    switch (dtype) {
    case EG_DTYPE_DEFAULT:
        return "default";
    case EG_F32:
        return "f32";
    case EG_F64:
        return "f64";
    case EG_F16:
        return "f16";
    case EG_BF16:
        return "bf16";
    }
    return "unknown";
}

size_t eg_dtype_size(eg_dtype dtype) { return eg_size_of(dtype); }

const char *eg_activation_name(eg_activation activation) {
    switch (activation) {
#define EG_ROW(NAME, name, value, from_y, text)                                                              \
    case EG_ACT_##NAME:                                                                                      \
        return #name;
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    }
    return NULL;
}

int eg_activation_from_y(eg_activation activation) {
    static const unsigned char of_y[] = {
#define EG_ROW(NAME, name, value, from_y, text) [value] = (from_y),
        EG_ACTIVATION_TABLE(EG_ROW)
#undef EG_ROW
    };
    return (size_t)activation < sizeof of_y ? of_y[activation] : 0;
}

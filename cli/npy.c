/* SPDX-License-Identifier: Apache-2.0 */
#include "npy.h"

#include <stdio.h>
#include <string.h>

#include "failure.h"
#include "file.h"

static const char MAGIC[6] = "\x93NUMPY";
enum { MAX_HEADER = 4096 }; /* a header of plain types and a few dimensions is some hundred bytes */

static const struct {
    const char *descr;
    eg_dtype dtype;
} TYPES[] = {{"<f8", EG_F64},  {"<f4", EG_F32},  {"<f2", EG_F16},
             {"<V2", EG_BF16}, {"|V2", EG_BF16}, {"bfloat16", EG_BF16}};
enum { TYPE_COUNT = sizeof TYPES / sizeof TYPES[0] };

/* ---- The literal -------------------------------------------------------------------------------- */

/* A cursor over NUL-terminated text. */
static void skip_spaces(const char **at) { *at += strspn(*at, " \t\n\r"); }

static bool take(const char **at, char wanted) {
    skip_spaces(at);
    if (**at != wanted) return false;
    *at += 1;
    return true;
}

/* A string without escapes, in either kind of quotes, cut to `capacity`. */
static bool take_string(const char **at, char *text, size_t capacity) {
    skip_spaces(at);
    const char quote = **at;
    if (quote != '\'' && quote != '"') return false;
    const char *begin = *at + 1, *end = strchr(begin, quote);
    if (end == NULL || memchr(begin, '\\', (size_t)(end - begin)) != NULL) return false;
    snprintf(text, capacity, "%.*s", (int)(end - begin), begin);
    *at = end + 1;
    return true;
}

static bool take_bool(const char **at, bool *value) {
    skip_spaces(at);
    *value = strncmp(*at, "True", 4) == 0;
    if (!*value && strncmp(*at, "False", 5) != 0) return false;
    *at += *value ? 4 : 5;
    return true;
}

static bool take_size(const char **at, int64_t *value) {
    skip_spaces(at);
    if (**at < '0' || **at > '9') return false;
    *value = 0;
    for (; **at >= '0' && **at <= '9'; *at += 1) {
        if (__builtin_mul_overflow(*value, 10, value) || __builtin_add_overflow(*value, **at - '0', value))
            return false;
    }
    return true;
}

/* A tuple: (), (2,) or (2, 3). */
static bool take_shape(const char **at, tensor *t) {
    if (!take(at, '(')) return false;
    bool comma = true;
    t->dims = 0;
    while (!take(at, ')')) {
        if (!comma || t->dims == TENSOR_MAX_DIMS || !take_size(at, &t->shape[t->dims])) return false;
        t->dims++;
        comma = take(at, ',');
    }
    return t->dims != 1 || comma; /* (2) is a number */
}

/* Each of the three keys once, and no other. */
static bool take_header(const char *at, tensor *t, bool *fortran) {
    bool descr = false, order = false, shape = false, comma = true;
    if (!take(&at, '{')) return false;
    while (!take(&at, '}')) {
        char key[16];
        if (!comma || !take_string(&at, key, sizeof key) || !take(&at, ':')) return false;
        if (strcmp(key, "descr") == 0 && !descr) {
            descr = take_string(&at, t->type, sizeof t->type);
            if (!descr) return false;
        } else if (strcmp(key, "fortran_order") == 0 && !order) {
            order = take_bool(&at, fortran);
            if (!order) return false;
        } else if (strcmp(key, "shape") == 0 && !shape) {
            shape = take_shape(&at, t);
            if (!shape) return false;
        } else {
            return false;
        }
        comma = take(&at, ',');
    }
    skip_spaces(&at);
    return descr && order && shape && *at == '\0';
}

/* ---- Reading ------------------------------------------------------------------------------------ */

/* Version 1 has a header length of 2 bytes, versions 2 and 3 of 4 bytes. */
static int find_header(int file, const char *path, uint64_t bytes, uint64_t *begin, uint64_t *length) {
    unsigned char start[12] = {0};
    CLI_TRY(file_read(file, path, start, bytes < sizeof start ? (size_t)bytes : sizeof start, 0));
    if (bytes < 10 || memcmp(start, MAGIC, sizeof MAGIC) != 0)
        return cli_fail(CLI_BAD_INPUT, "%s is no .npy file", path);
    const int major = start[6];
    if (major < 1 || major > 3 || start[7] != 0) {
        return cli_fail(CLI_BAD_INPUT, "%s has .npy version %d.%d; expected 1.0, 2.0 or 3.0", path, major,
                        start[7]);
    }
    *begin = major == 1 ? 10 : 12;
    *length = (uint64_t)start[8] | (uint64_t)start[9] << 8;
    if (major > 1) *length |= (uint64_t)start[10] << 16 | (uint64_t)start[11] << 24;
    if (*begin <= bytes && *length <= bytes - *begin && *length <= MAX_HEADER) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "%s: its header would have %llu bytes; expected at most %d, within the file's %llu", path,
                    (unsigned long long)*length, (int)MAX_HEADER, (unsigned long long)bytes);
}

static int check_contents(const char *path, const tensor *t, bool fortran, uint64_t data_bytes) {
    if (t->dtype == EG_DTYPE_DEFAULT) {
        return cli_fail(CLI_BAD_INPUT,
                        "%s has elements of type '%s'; expected '<f8', '<f4', '<f2', or '<V2' for bf16", path,
                        t->type);
    }
    if (fortran) {
        return cli_fail(CLI_BAD_INPUT,
                        "%s is in Fortran order; expected C order (numpy.ascontiguousarray makes it so)",
                        path);
    }
    size_t bytes = 0;
    if (tensor_shape_bytes(t->shape, t->dims, tensor_element_bytes(t->dtype), &bytes) && bytes == data_bytes)
        return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT,
                    "%s has shape %s of %s, which is not the %llu bytes that follow its header", path,
                    tensor_shape_text(t, text), t->type, (unsigned long long)data_bytes);
}

int npy_open(int file, const char *path, uint64_t bytes, tensor *t) {
    uint64_t begin = 0, length = 0;
    CLI_TRY(find_header(file, path, bytes, &begin, &length));
    char header[MAX_HEADER + 1];
    CLI_TRY(file_read(file, path, header, (size_t)length, begin));
    header[length] = '\0';
    bool fortran = false;
    if (memchr(header, '\0', (size_t)length) != NULL || !take_header(header, t, &fortran)) {
        return cli_fail(CLI_BAD_INPUT,
                        "%s: its header is not a dict of a plain 'descr', 'fortran_order' and 'shape'", path);
    }
    t->dtype = EG_DTYPE_DEFAULT;
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (strcmp(t->type, TYPES[i].descr) == 0) t->dtype = TYPES[i].dtype;
    }
    t->offset = begin + length;
    t->bytes = (size_t)(bytes - t->offset);
    return check_contents(path, t, fortran, bytes - t->offset);
}

/* ---- Writing ------------------------------------------------------------------------------------ */

static const char *descr_of(eg_dtype dtype) {
    for (int i = 0; i < TYPE_COUNT; i++) {
        if (TYPES[i].dtype == dtype) return TYPES[i].descr;
    }
    return "";
}

/* Like numpy.save: version 1.0, spaces and a newline up to a multiple of 64 bytes. */
int npy_write(int file, const char *path, const tensor *t) {
    char header[512];
    int used = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                        descr_of(t->dtype));
    for (int i = 0; i < t->dims; i++) {
        const char *after = t->dims == 1 ? "," : i + 1 < t->dims ? ", " : "";
        used +=
            snprintf(header + used, sizeof header - (size_t)used, "%lld%s", (long long)t->shape[i], after);
    }
    used += snprintf(header + used, sizeof header - (size_t)used, "), }");
    const size_t start = sizeof MAGIC + 4, length = ((start + (size_t)used + 64) & ~(size_t)63) - start;
    memset(header + used, ' ', length - (size_t)used);
    header[length - 1] = '\n';
    const unsigned char tail[4] = {1, 0, (unsigned char)length, (unsigned char)(length >> 8)};
    CLI_TRY(file_write(file, path, MAGIC, sizeof MAGIC));
    CLI_TRY(file_write(file, path, tail, sizeof tail));
    CLI_TRY(file_write(file, path, header, length));
    return file_write(file, path, t->data, t->bytes);
}

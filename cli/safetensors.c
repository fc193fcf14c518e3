/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "failure.h"
#include "file.h"
#include "json_guard.h"

static const uint64_t MAX_HEADER = 100000000;         /* as in the reference implementation */
static const double MAX_INTEGER = 9007199254740992.0; /* 2^53: below it a double is exact */

static eg_dtype parse_dtype(const char *name) {
    static const struct {
        const char *name;
        eg_dtype dtype;
    } known[] = {{"F64", EG_F64}, {"F32", EG_F32}, {"F16", EG_F16}, {"BF16", EG_BF16}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) return known[i].dtype;
    }
    return EG_DTYPE_DEFAULT;
}

/* ---- One entry of the header -------------------------------------------------------------------- */

typedef struct entry_context {
    const char *path;
    uint64_t data_start; /* in the file */
    uint64_t data_bytes;
} entry_context;

/* The member, which must be there once and be of the kind that `is_kind` tells. */
static const cJSON *member(const cJSON *object, const char *name, cJSON_bool (*is_kind)(const cJSON *)) {
    const cJSON *found = NULL, *item = NULL;
    if (!cJSON_IsObject(object)) return NULL; /* the members of an array have no names */
    cJSON_ArrayForEach(item, object) {
        if (strcmp(item->string, name) != 0) continue;
        if (found != NULL) return NULL;
        found = item;
    }
    return found != NULL && is_kind(found) ? found : NULL;
}

/* JSON numbers are doubles: only an exact one says which byte it means. */
static bool take_integer(const cJSON *number, int64_t *value) {
    if (!cJSON_IsNumber(number)) return false;
    const double d = number->valuedouble;
    if (!(d >= 0 && d < MAX_INTEGER) || d != (double)(int64_t)d) return false;
    *value = (int64_t)d;
    return true;
}

static int take_shape(const cJSON *shape, const entry_context *context, tensor *t) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, shape) {
        int64_t size = 0;
        if (!take_integer(item, &size)) {
            return cli_fail(CLI_BAD_INPUT, "%s: shape[%d] of %s is not an integer from 0 to 2^53",
                            context->path, t->dims, t->name);
        }
        if (t->dims < TENSOR_MAX_DIMS) t->shape[t->dims] = size;
        t->dims++;
    }
    return CLI_OK;
}

static int take_offsets(const cJSON *offsets, const entry_context *context, tensor *t) {
    int64_t begin = 0, end = 0;
    const bool two = cJSON_GetArraySize(offsets) == 2;
    if (!two || !take_integer(offsets->child, &begin) || !take_integer(offsets->child->next, &end)) {
        return cli_fail(CLI_BAD_INPUT, "%s: data_offsets of %s are not two integers from 0 to 2^53",
                        context->path, t->name);
    }
    if (begin > end || (uint64_t)end > context->data_bytes) {
        return cli_fail(
            CLI_BAD_INPUT,
            "%s: data_offsets of %s are [%lld, %lld]; expected a range of the file's %llu bytes of data",
            context->path, t->name, (long long)begin, (long long)end,
            (unsigned long long)context->data_bytes);
    }
    t->offset = context->data_start + (uint64_t)begin;
    t->bytes = (size_t)(end - begin);
    return CLI_OK;
}

/* The size of a type that is not computed in is not known, nor needed. */
static int check_size(const entry_context *context, const tensor *t) {
    size_t bytes = 0;
    if (t->dtype == EG_DTYPE_DEFAULT || t->dims > TENSOR_MAX_DIMS) return CLI_OK;
    if (tensor_shape_bytes(t->shape, t->dims, tensor_element_bytes(t->dtype), &bytes) && bytes == t->bytes)
        return CLI_OK;
    char text[SHAPE_TEXT];
    return cli_fail(CLI_BAD_INPUT,
                    "%s: %s has shape %s of %s, which is not the %zu bytes that its data_offsets span",
                    context->path, t->name, tensor_shape_text(t, text), t->type, t->bytes);
}

static int take_entry(const cJSON *item, const entry_context *context, tensor *t) {
    t->name = strdup(item->string);
    if (t->name == NULL) return cli_out_of_memory();
    const cJSON *dtype = member(item, "dtype", cJSON_IsString), *shape = member(item, "shape", cJSON_IsArray);
    const cJSON *offsets = member(item, "data_offsets", cJSON_IsArray);
    if (dtype == NULL || shape == NULL || offsets == NULL) {
        return cli_fail(CLI_BAD_INPUT,
                        "%s: %s is not an object with one dtype, one shape and one data_offsets",
                        context->path, t->name);
    }
    t->dtype = parse_dtype(dtype->valuestring);
    strncpy(t->type, dtype->valuestring, sizeof t->type - 1);
    CLI_TRY(take_shape(shape, context, t));
    CLI_TRY(take_offsets(offsets, context, t));
    return check_size(context, t);
}

/* ---- The header --------------------------------------------------------------------------------- */

static int by_name(const void *x, const void *y) {
    return strcmp(((const tensor *)x)->name, ((const tensor *)y)->name);
}

/* By place; an empty tensor before the one that begins where it lies. */
static int by_offset(const void *x, const void *y) {
    const tensor *s = x, *t = y;
    if (s->offset != t->offset) return s->offset < t->offset ? -1 : 1;
    return (s->bytes > t->bytes) - (s->bytes < t->bytes);
}

static int check_names(const entry_context *context, const safetensors *index) {
    qsort(index->tensors, (size_t)index->count, sizeof(tensor), by_name);
    for (int i = 1; i < index->count; i++) {
        const char *name = index->tensors[i].name;
        if (strcmp(index->tensors[i - 1].name, name) == 0) {
            return cli_fail(CLI_BAD_INPUT, "%s: %s is there twice", context->path, name);
        }
    }
    return CLI_OK;
}

static int check_coverage(const entry_context *context, const safetensors *index) {
    qsort(index->tensors, (size_t)index->count, sizeof(tensor), by_offset);
    uint64_t end = context->data_start;
    for (int i = 0; i < index->count; i++) {
        const tensor *t = &index->tensors[i];
        if (t->offset != end) {
            return cli_fail(CLI_BAD_INPUT, "%s: the data of %s %s", context->path, t->name,
                            t->offset < end ? "overlaps that of another tensor" : "comes after a gap");
        }
        end = t->offset + t->bytes;
    }
    const uint64_t left = context->data_start + context->data_bytes - end;
    if (left == 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: %llu bytes at its end belong to no tensor", context->path,
                    (unsigned long long)left);
}

static int take_root(const cJSON *root, const entry_context *context, safetensors *index) {
    if (!cJSON_IsObject(root))
        return cli_fail(CLI_BAD_INPUT, "%s: its header is not a JSON object", context->path);
    const int items = cJSON_GetArraySize(root);
    index->tensors = calloc((size_t)items + 1, sizeof(tensor));
    if (index->tensors == NULL) return cli_out_of_memory();
    bool metadata = false;
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, root) {
        if (strcmp(item->string, "__metadata__") == 0) {
            if (metadata || !cJSON_IsObject(item)) {
                return cli_fail(CLI_BAD_INPUT, "%s: __metadata__ is not one object", context->path);
            }
            metadata = true;
            continue;
        }
        tensor *t = &index->tensors[index->count++];
        CLI_TRY(take_entry(item, context, t));
    }
    CLI_TRY(check_names(context, index));
    return check_coverage(context, index);
}

/* `text` is followed by a NUL, which cJSON must arrive at. */
static int parse_header(const char *text, size_t bytes, const entry_context *context, safetensors *index) {
    const char *wrong = json_guard(text, bytes);
    if (wrong != NULL) return cli_fail(CLI_BAD_INPUT, "%s: its header %s", context->path, wrong);
    cJSON *root = cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, 1);
    if (root == NULL) return cli_fail(CLI_BAD_INPUT, "%s: its header is not valid JSON", context->path);
    const int code = take_root(root, context, index);
    cJSON_Delete(root);
    return code;
}

static int read_header_length(int file, const char *path, uint64_t bytes, uint64_t *header) {
    unsigned char length[8];
    if (bytes < sizeof length) {
        return cli_fail(CLI_BAD_INPUT, "%s is no .safetensors file: it has only %llu bytes", path,
                        (unsigned long long)bytes);
    }
    CLI_TRY(file_read(file, path, length, sizeof length, 0));
    *header = 0;
    for (int i = 0; i < 8; i++) *header |= (uint64_t)length[i] << (8 * i);
    if (*header <= bytes - sizeof length && *header <= MAX_HEADER) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "%s is no .safetensors file: its header would have %llu bytes, and the file has %llu",
                    path, (unsigned long long)*header, (unsigned long long)bytes);
}

int safetensors_open(int file, const char *path, uint64_t bytes, safetensors *index) {
    *index = (safetensors){0};
    uint64_t header = 0;
    CLI_TRY(read_header_length(file, path, bytes, &header));
    char *text = malloc((size_t)header + 1);
    if (text == NULL) return cli_out_of_memory();
    text[header] = '\0';
    const entry_context context = {path, 8 + header, bytes - 8 - header};
    int code = file_read(file, path, text, (size_t)header, 8);
    if (code == CLI_OK) code = parse_header(text, (size_t)header, &context, index);
    free(text);
    if (code != CLI_OK) safetensors_close(index);
    return code;
}

void safetensors_close(safetensors *index) {
    for (int i = 0; i < index->count; i++) tensor_free(&index->tensors[i]);
    free(index->tensors);
    *index = (safetensors){0};
}

/* ---- Writing ------------------------------------------------------------------------------------ */

static const char *dtype_name(eg_dtype dtype) {
    switch (dtype) {
    case EG_F64:
        return "F64";
    case EG_F32:
        return "F32";
    case EG_F16:
        return "F16";
    case EG_BF16:
        return "BF16";
    case EG_DTYPE_DEFAULT:
        break;
    }
    return "";
}

static bool add_number(cJSON *array, double value) {
    return cJSON_AddItemToArray(array, cJSON_CreateNumber(value));
}

static bool add_entry(cJSON *root, const tensor *t, uint64_t begin) {
    cJSON *entry = cJSON_AddObjectToObject(root, t->name);
    bool good = cJSON_AddStringToObject(entry, "dtype", dtype_name(t->dtype)) != NULL;
    cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
    for (int i = 0; i < t->dims; i++) good = good && add_number(shape, (double)t->shape[i]);
    cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
    return good && add_number(offsets, (double)begin) && add_number(offsets, (double)(begin + t->bytes));
}

/* The wider elements first, so that every tensor is aligned to its own. */
static int by_width(const void *x, const void *y) {
    const tensor *s = x, *t = y;
    const size_t a = tensor_element_bytes(s->dtype), b = tensor_element_bytes(t->dtype);
    return a != b ? (a < b) - (a > b) : strcmp(s->name, t->name);
}

static char *print_header(const tensor *tensors, int count) {
    cJSON *root = cJSON_CreateObject();
    uint64_t begin = 0;
    bool good = true;
    for (int i = 0; i < count; i++) {
        good = good && add_entry(root, &tensors[i], begin);
        begin += tensors[i].bytes;
    }
    char *text = good ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* Spaces after the header align the elements to 8 bytes. */
static int write_header(int file, const char *path, const char *text) {
    const size_t length = strlen(text), padding = (8 - length % 8) % 8;
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)(length + padding) >> (8 * i));
    CLI_TRY(file_write(file, path, bytes, sizeof bytes));
    CLI_TRY(file_write(file, path, text, length));
    return file_write(file, path, "        ", padding);
}

enum { MAX_WRITTEN = 8 };

int safetensors_write(int file, const char *path, const tensor *const *tensors, int count) {
    tensor sorted[MAX_WRITTEN];
    if (count > MAX_WRITTEN) return cli_fail(CLI_FAILED, "cannot write %d tensors to %s", count, path);
    for (int i = 0; i < count; i++) sorted[i] = *tensors[i];
    qsort(sorted, (size_t)count, sizeof sorted[0], by_width);
    char *text = print_header(sorted, count);
    if (text == NULL) return cli_out_of_memory();
    int code = write_header(file, path, text);
    cJSON_free(text);
    for (int i = 0; i < count && code == CLI_OK; i++) {
        code = file_write(file, path, sorted[i].data, sorted[i].bytes);
    }
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include "../common/must.h"

#include <string.h>
#include <zlib.h>

static _Noreturn void bad_file(const char *path, int line, const char *what) {
    fprintf(stderr, "digits: %s: line %d: %s\n", path, line, what);
    exit(EXIT_USAGE);
}

/* One line: PIXELS + 1 numbers with commas between them. Returns 0 if it is anything else. */
static int parse_line(const char *text, float *pixel, unsigned char *label) {
    for (int i = 0; i <= PIXELS; i++) {
        char *end;
        long value = strtol(text, &end, 10);
        long largest = i < PIXELS ? 16 : CLASSES - 1;
        if (end == text || value < 0 || value > largest || !strchr(i < PIXELS ? "," : "\r\n", *end)) return 0;
        if (i < PIXELS)
            pixel[i] = (float)value / 16;
        else
            *label = (unsigned char)value;
        text = end + 1;
    }
    return 1;
}

/* Room for one digit more, doubled when full. */
static void reserve(digits *d, int *capacity) {
    if (d->count < *capacity) return;
    *capacity = *capacity ? 2 * *capacity : 2048;
    d->pixel = realloc(d->pixel, (size_t)*capacity * sizeof *d->pixel);
    d->label = realloc(d->label, (size_t)*capacity);
    if (d->pixel && d->label) return;
    fprintf(stderr, "digits: out of memory\n");
    exit(EXIT_FAILURE);
}

digits digits_load(const char *path) {
    gzFile file = gzopen(path, "rb");
    if (!file) {
        fprintf(stderr, "digits: cannot open %s\n", path);
        exit(EXIT_USAGE);
    }
    digits d = {0};
    int capacity = 0, status;
    char line[512];
    while (gzgets(file, line, sizeof line)) {
        reserve(&d, &capacity);
        if (!parse_line(line, d.pixel[d.count], &d.label[d.count]))
            bad_file(path, d.count + 1, "expected 64 pixels 0..16 and a label 0..9");
        d.count++;
    }
    const char *error = gzerror(file, &status);
    if (status != Z_OK && status != Z_STREAM_END) bad_file(path, d.count + 1, error);
    gzclose(file);
    return d;
}

void digits_free(digits *d) {
    free(d->pixel);
    free(d->label);
    *d = (digits){0};
}

image_set image_set_new(eg_context *context, eg_dtype dtype, int count) {
    image_set set = {.context = context, .dtype = dtype, .count = count};
    must(eg_alloc(context, (size_t)count * PIXELS * eg_dtype_size(dtype), &set.pixels));
    set.label = must_alloc((size_t)count, 1);
    return set;
}

void image_set_fill(image_set *set, const digits *d, const int *order) {
    size_t values = (size_t)set->count * PIXELS;
    float(*gathered)[PIXELS] = must_alloc(values, sizeof(float));
    void *converted = must_alloc(values, eg_dtype_size(set->dtype));
    for (int i = 0; i < set->count; i++) {
        memcpy(gathered[i], d->pixel[order[i]], sizeof gathered[i]);
        set->label[i] = d->label[order[i]];
    }
    must(eg_convert(converted, set->dtype, gathered, EG_F32, values));
    must(eg_upload(set->context, set->pixels, 0, converted, values * eg_dtype_size(set->dtype)));
    free(converted);
    free(gathered);
}

void image_set_free(image_set *set) {
    eg_free(set->context, set->pixels);
    free(set->label);
    *set = (image_set){0};
}

eg_matrix image_set_from(const image_set *set, int first) {
    return (eg_matrix){.data = set->pixels, .offset = (size_t)first * PIXELS * eg_dtype_size(set->dtype)};
}

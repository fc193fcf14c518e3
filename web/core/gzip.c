/* SPDX-License-Identifier: Apache-2.0 */
#include "zlib.h"

#include <stdlib.h>
#include <string.h>

#include "page.h"

struct web_text {
    char *text;
    size_t bytes, at;
};

static struct web_text file;

/* Room for the decompressed file, which the page fills before web_open. */
WEB_EXPORT(web_file) char *web_file(size_t bytes) {
    free(file.text);
    file = (struct web_text){.text = malloc(bytes), .bytes = bytes};
    return file.text;
}

gzFile gzopen(const char *path, const char *mode) {
    (void)path, (void)mode;
    file.at = 0;
    return file.text != NULL ? &file : NULL;
}

char *gzgets(gzFile from, char *line, int capacity) {
    const size_t left = from->bytes - from->at, room = (size_t)capacity - 1;
    size_t count = left < room ? left : room;
    if (count == 0) return NULL;
    const char *newline = memchr(from->text + from->at, '\n', count);
    if (newline != NULL) count = (size_t)(newline + 1 - (from->text + from->at));
    memcpy(line, from->text + from->at, count);
    line[count] = '\0';
    from->at += count;
    return line;
}

const char *gzerror(gzFile from, int *status) {
    (void)from;
    *status = Z_OK;
    return "";
}

int gzclose(gzFile from) {
    (void)from;
    return Z_OK;
}

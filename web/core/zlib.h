/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions of zlib that the digits example reads its file with. In a page there is no file: the
 * browser fetches and decompresses it, and gzip.c hands out the lines of that text. */
#ifndef WEB_ZLIB_H
#define WEB_ZLIB_H

enum { Z_OK = 0, Z_STREAM_END = 1 };

typedef struct web_text *gzFile;

gzFile gzopen(const char *path, const char *mode);
char *gzgets(gzFile file, char *line, int capacity);
const char *gzerror(gzFile file, int *status);
int gzclose(gzFile file);

#endif

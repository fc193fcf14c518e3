/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include "../common/must.h"

static _Noreturn void refuse_file(const char *path, const char *why) {
    fprintf(stderr, EXAMPLE ": %s: %s\n", path, why);
    exit(EXIT_USAGE);
}

static void read_all(text *t, const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) refuse_file(path, "cannot be opened");
    size_t capacity = 0;
    do {
        capacity = capacity ? 2 * capacity : 1 << 18;
        unsigned char *more = realloc(t->letter, capacity);
        if (!more) refuse_file(path, "out of memory");
        t->letter = more;
        t->count += fread(t->letter + t->count, 1, capacity - t->count, file);
    } while (t->count == capacity);
    const int failed = ferror(file);
    fclose(file);
    if (failed) refuse_file(path, "cannot be read");
}

/* Lines of a paragraph become one, and a paragraph ends where an empty line was: where a line was broken says
 * nothing about the language. */
static void join_lines(text *t) {
    size_t kept = 0, ends = 0; /* ends of lines since the last letter */
    for (size_t i = 0; i < t->count; i++) {
        const unsigned char c = t->letter[i];
        if (c == '\r') continue;
        if (c == '\n') {
            ends++;
            continue;
        }
        if (ends > 0 && kept > 0) t->letter[kept++] = ends > 1 ? '\n' : ' ';
        ends = 0;
        t->letter[kept++] = c;
    }
    t->count = kept;
}

text text_load(const char *path, size_t smallest) {
    text t = {0};
    read_all(&t, path);
    join_lines(&t);
    t.train = t.count - t.count / 10;
    if (t.count - t.train < smallest) {
        char why[80];
        snprintf(why, sizeof why, "%zu characters, expected at least %zu", t.count, 10 * smallest);
        refuse_file(path, why);
    }
    int seen[256] = {0};
    for (size_t i = 0; i < t.count; i++) seen[t.letter[i]] = 1;
    for (int c = 0; c < 256; c++) {
        if (!seen[c]) continue;
        t.name[t.letters] = (char)c;
        t.number[c] = (unsigned char)t.letters++;
    }
    for (size_t i = 0; i < t.count; i++) t.letter[i] = t.number[t.letter[i]];
    return t;
}

void text_free(text *t) {
    free(t->letter);
    *t = (text){0};
}

void text_draw(const text *t, size_t begin, size_t end, int time, int batch, rng *random,
               unsigned char *input, unsigned char *target) {
    const size_t places = end - begin - (size_t)time;
    for (int b = 0; b < batch; b++) {
        const unsigned char *letter = t->letter + begin + rng_next(random) % places;
        for (int i = 0; i < time; i++) {
            input[b * time + i] = letter[i];
            target[b * time + i] = letter[i + 1];
        }
    }
}

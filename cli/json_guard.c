/* SPDX-License-Identifier: Apache-2.0 */
#include "json_guard.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_DEPTH = 8, MAX_VALUES = 1 << 20 };

/* The length of the UTF-8 sequence at `s`, or 0: overlong forms, surrogates and values past U+10FFFF
 * are refused. */
static size_t utf8_length(const unsigned char *s, size_t left) {
    if (s[0] < 0x80) return 1;
    const size_t length = s[0] >= 0xc2 && s[0] < 0xe0   ? 2
                          : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                          : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                        : 0;
    if (length == 0 || length > left) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    if (s[0] == 0xe0 && s[1] < 0xa0) return 0;
    if (s[0] == 0xed && s[1] > 0x9f) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;
    if (s[0] == 0xf4 && s[1] > 0x8f) return 0;
    return length;
}

/* From the byte after the opening quote to the one after the closing quote. */
static const char *skip_string(const unsigned char *text, size_t bytes, size_t *at) {
    while (*at < bytes && text[*at] != '"') {
        if (text[*at] < 0x20) return "has a control character in a string";
        if (text[*at] == '\\') {
            if (bytes - *at >= 6 && memcmp(text + *at, "\\u0000", 6) == 0) return "has a NUL in a string";
            *at += 1; /* the escaped character is not a closing quote */
            if (*at == bytes) break;
        }
        const size_t length = utf8_length(text + *at, bytes - *at);
        if (length == 0) return "is not UTF-8";
        *at += length;
    }
    if (*at >= bytes) return "has a string without an end";
    *at += 1;
    return NULL;
}

const char *json_guard(const char *text, size_t bytes) {
    const unsigned char *s = (const unsigned char *)text;
    int depth = 0;
    size_t values = 1, at = 0;
    while (at < bytes) {
        const unsigned char byte = s[at++];
        if (byte == '"') {
            const char *wrong = skip_string(s, bytes, &at);
            if (wrong != NULL) return wrong;
            continue;
        }
        if (byte < 0x20 && strchr("\t\n\r", byte) == NULL) return "has a control character";
        if (byte == 0 || byte >= 0x7f) return "has a byte that is not JSON";
        if (byte == '{' || byte == '[') depth++;
        if (byte == '}' || byte == ']') depth--;
        if (depth < 0 || depth > MAX_DEPTH)
            return depth < 0 ? "has unbalanced brackets" : "is nested too deeply";
        if (byte == ',' || byte == '[' || byte == '{') values++;
        if (values > MAX_VALUES) return "has more than a million values";
    }
    return depth == 0 ? NULL : "has unbalanced brackets";
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a JSON text must satisfy before cJSON sees it. */
#ifndef CLI_JSON_GUARD_H
#define CLI_JSON_GUARD_H

#include <stddef.h>

/* NULL, or what is wrong with the text. cJSON takes any bytes for a string, 1000 levels of nesting, and
 * some 80 bytes of memory for a value of two characters; the guard asks for UTF-8 without control
 * characters, at most 8 levels and at most a million values. */
const char *json_guard(const char *text, size_t bytes);

#endif

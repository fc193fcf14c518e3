/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the WebGPU backend on two threads at once, computes on both, and closes it. stderr.sh sees that
 * nothing was printed and the environment is what it was. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "epigrad/epigrad.h"

enum { PASSED = 0, FAILED = 1, SKIPPED = 77 };

extern char **environ;

static void *compute(void *result) {
    const eg_open_info info = {.size = sizeof info, .backend = EG_BACKEND_WEBGPU};
    const float one = 1;
    float y = 0;
    void *memory = NULL;
    eg_context *context;
    int *code = result;
    *code = SKIPPED;
    if (eg_open(&info, &context) != EG_OK) {
        printf("skipped: %s\n", eg_last_error());
        return NULL;
    }
    *code = FAILED;
    const eg_layer layer = {.size = sizeof layer, .m = 1, .k = 1, .n = 1, .batch = 1};
    if (eg_alloc(context, 1024, &memory) == EG_OK) {
        const eg_forward_args args = {
            .size = sizeof args, .a.data = memory, .b.data = memory, .y = {.data = memory, .offset = 512}};
        if (eg_upload(context, memory, 0, &one, sizeof one) == EG_OK &&
            eg_forward(context, &layer, &args) == EG_OK &&
            eg_download(context, &y, memory, 512, sizeof y) == EG_OK && y == 1)
            *code = PASSED;
    }
    if (*code == FAILED) printf("failed: %s\n", eg_last_error());
    eg_free(context, memory);
    eg_close(context);
    return NULL;
}

static size_t environment(char *text, size_t capacity) {
    size_t used = 0;
    for (char **entry = environ; *entry != NULL && used < capacity; entry++)
        used += (size_t)snprintf(text + used, capacity - used, "%s\n", *entry);
    return used;
}

int main(void) {
    static char before[1 << 16], after[1 << 16];
    pthread_t threads[2];
    int codes[2];
    const size_t length = environment(before, sizeof before);
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, compute, &codes[i]) != 0) return FAILED;
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    if (environment(after, sizeof after) != length || memcmp(before, after, sizeof before) != 0) {
        printf("failed: the environment has changed\n");
        return FAILED;
    }
    return codes[0] != PASSED ? codes[0] : codes[1];
}

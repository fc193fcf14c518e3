/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .safetensors file: refused with a message, or every tensor lies within the file. */
#include "failure.h"
#include "memory_file.h"
#include "safetensors.h"

static void require(int condition) {
    if (!condition) abort();
}

static void read_tensor(tensor *t, int file, uint64_t bytes) {
    require(t->name != NULL && t->offset <= bytes && t->bytes <= bytes - t->offset);
    if (t->dtype == EG_DTYPE_DEFAULT) return;
    require(tensor_read(t, file, "fuzz") == CLI_OK);
    char text[SHAPE_TEXT];
    tensor_shape_text(t, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const int file = memory_file(data, bytes);
    safetensors index;
    const int code = safetensors_open(file, "fuzz", bytes, &index);
    require(code == CLI_OK || (code == CLI_BAD_INPUT && cli_failure()[0] != '\0'));
    if (code == CLI_OK) {
        for (int i = 0; i < index.count; i++) read_tensor(&index.tensors[i], file, bytes);
    }
    safetensors_close(&index);
    return 0;
}

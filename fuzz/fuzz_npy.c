/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a .npy file: refused with a message, or a tensor that lies within the file. */
#include "failure.h"
#include "memory_file.h"
#include "npy.h"

static void require(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const int file = memory_file(data, bytes);
    tensor t = {0};
    const int code = npy_open(file, "fuzz", bytes, &t);
    require(code == CLI_OK || (code == CLI_BAD_INPUT && cli_failure()[0] != '\0'));
    if (code == CLI_OK) {
        require(t.dtype != EG_DTYPE_DEFAULT && t.offset + t.bytes == bytes);
        require(tensor_read(&t, file, "fuzz") == CLI_OK);
    }
    tensor_free(&t);
    return 0;
}

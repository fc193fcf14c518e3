/* SPDX-License-Identifier: Apache-2.0 */
/* epigrad info */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "commands.h"
#include "failure.h"

/* The library may be newer than this command, and have more. */
static bool is_backend(int number) { return strcmp(eg_backend_name((eg_backend)number), "unknown") != 0; }

static bool next_kernel(eg_context *context, int index, eg_kernel_info *kernel) {
    *kernel = (eg_kernel_info){.size = sizeof *kernel};
    return eg_get_kernel_info(context, index, kernel) == EG_OK;
}

static const char *header_version(void) {
    static char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", EG_VERSION_MAJOR, EG_VERSION_MINOR, EG_VERSION_PATCH);
    return text;
}

/* ---- For people --------------------------------------------------------------------------------- */

static void print_device(eg_backend backend, eg_context *context) {
    eg_device_info device = {.size = sizeof device};
    if (eg_get_device_info(context, &device) != EG_OK) return;
    printf("\n%s: %s\n", eg_backend_name(backend), device.name);
    if (device.threads > 0) printf("  threads   %d\n", device.threads);
    printf("  features  %s\n", device.features);
    printf("  %-24s  %-8s  %-10s  %-7s  %s\n", "kernel", "computes", "tile", "usable", "needs");
    eg_kernel_info kernel;
    for (int i = 0; next_kernel(context, i, &kernel); i++) {
        printf("  %-24s  %-8s  %-10s  %-7s  %s\n", kernel.name, eg_dtype_name(kernel.compute), kernel.tile,
               kernel.usable ? "yes" : "no", kernel.needs);
    }
}

static void print_backend(eg_backend backend) {
    const eg_open_info info = {.size = sizeof info, .backend = backend};
    eg_context *context = NULL;
    if (eg_open(&info, &context) != EG_OK) {
        printf("\n%s: not available: %s\n", eg_backend_name(backend), eg_last_error());
        return;
    }
    print_device(backend, context);
    eg_close(context);
}

static void print_all(void) {
    printf("epigrad %s (built for %s), cJSON %s\n", eg_version(), header_version(), cJSON_Version());
    for (int i = 0; is_backend(i); i++) print_backend((eg_backend)i);
    printf("\nactivations:");
    for (int i = 0; eg_activation_name((eg_activation)i) != NULL; i++) {
        printf(" %s", eg_activation_name((eg_activation)i));
    }
    printf("\n");
}

/* ---- For programs ------------------------------------------------------------------------------- */

static void add_kernels(cJSON *object, eg_context *context) {
    cJSON *kernels = cJSON_AddArrayToObject(object, "kernels");
    eg_kernel_info kernel;
    for (int i = 0; next_kernel(context, i, &kernel); i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", kernel.name);
        cJSON_AddStringToObject(row, "compute", eg_dtype_name(kernel.compute));
        cJSON_AddStringToObject(row, "tile", kernel.tile);
        cJSON_AddStringToObject(row, "needs", kernel.needs);
        cJSON_AddBoolToObject(row, "usable", kernel.usable);
        cJSON_AddItemToArray(kernels, row);
    }
}

static cJSON *backend_json(eg_backend backend) {
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "backend", eg_backend_name(backend));
    const eg_open_info info = {.size = sizeof info, .backend = backend};
    eg_context *context = NULL;
    const bool available = eg_open(&info, &context) == EG_OK;
    cJSON_AddBoolToObject(object, "available", available);
    if (!available) {
        cJSON_AddStringToObject(object, "reason", eg_last_error());
        return object;
    }
    eg_device_info device = {.size = sizeof device};
    if (eg_get_device_info(context, &device) == EG_OK) {
        cJSON_AddStringToObject(object, "device", device.name);
        cJSON_AddStringToObject(object, "features", device.features);
        cJSON_AddNumberToObject(object, "threads", device.threads);
    }
    add_kernels(object, context);
    eg_close(context);
    return object;
}

static int print_json(void) {
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", eg_version());
    cJSON_AddStringToObject(root, "header_version", header_version());
    cJSON_AddStringToObject(root, "cjson_version", cJSON_Version());
    cJSON *activations = cJSON_AddArrayToObject(root, "activations");
    for (int i = 0; eg_activation_name((eg_activation)i) != NULL; i++) {
        cJSON_AddItemToArray(activations, cJSON_CreateString(eg_activation_name((eg_activation)i)));
    }
    cJSON *backends = cJSON_AddArrayToObject(root, "backends");
    for (int i = 0; is_backend(i); i++) cJSON_AddItemToArray(backends, backend_json((eg_backend)i));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text == NULL) return cli_out_of_memory();
    puts(text);
    cJSON_free(text);
    return CLI_OK;
}

int command_info(const options *o) {
    if (o->json) return print_json();
    print_all();
    return CLI_OK;
}

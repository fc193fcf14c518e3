/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "../common/arguments.h"

#include <string.h>

static const char usage[] =
    "usage: digits [options]\n"
    "Trains a 64-256-128-10 network to read handwritten digits.\n"
    "\n"
    "  --backend NAME     cpu, cuda or webgpu (cpu)\n"
    "  --dtype NAME       f64, f32, f16 or bf16 (f32); the 16-bit types keep f32 master weights\n"
    "  --activation NAME  of the hidden layers, one of those below (gelu)\n"
    "  --gated            hidden layers of gated units, act(x W + b) * (x W_up + b_up): SwiGLU with silu\n"
    "  --threads N        CPU threads, 0 for all (1: layers this small gain nothing from more)\n"
    "  --epochs N         passes over the training digits (30)\n"
    "  --seed N           of the split, the first weights and the order (1)\n"
    "  --data FILE        the digits, gzipped lines of 64 pixels 0..16 and a label\n"
    "\n"
    "activations:";

options options_default(void) {
    return (options){.backend = EG_BACKEND_CPU,
                     .threads = 1,
                     .plan = {.epochs = 30, .seed = 1, .dtype = EG_F32, .hidden.activation = EG_ACT_GELU},
                     .data = DIGITS_FILE};
}

static _Noreturn void help(void) {
    fputs(usage, stdout);
    for (int i = 0; eg_activation_name((eg_activation)i); i++)
        printf(" %s", eg_activation_name((eg_activation)i));
    putchar('\n');
    exit(EXIT_SUCCESS);
}

/* The library knows its own names: no list of them is kept here. */
static eg_backend parse_backend(const char *text) {
    for (int i = 0; strcmp(eg_backend_name((eg_backend)i), "unknown") != 0; i++)
        if (strcmp(eg_backend_name((eg_backend)i), text) == 0) return (eg_backend)i;
    refuse("--backend", text, "cpu, cuda or webgpu");
}

static eg_dtype parse_dtype(const char *text) {
    for (int i = 1; strcmp(eg_dtype_name((eg_dtype)i), "unknown") != 0; i++)
        if (strcmp(eg_dtype_name((eg_dtype)i), text) == 0) return (eg_dtype)i;
    refuse("--dtype", text, "f64, f32, f16 or bf16");
}

static eg_activation parse_activation(const char *text) {
    for (int i = 0; eg_activation_name((eg_activation)i); i++)
        if (strcmp(eg_activation_name((eg_activation)i), text) == 0) return (eg_activation)i;
    refuse("--activation", text, "the name of an activation");
}

options options_parse(int argc, char **argv) {
    options o = options_default();
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) help();
        if (strcmp(name, "--gated") == 0) {
            o.plan.hidden.gated = true;
            continue;
        }
        const char *value = argv[++i]; /* NULL behind the last */
        if (!value) refuse(name, "", "an option and its value");
        if (strcmp(name, "--backend") == 0)
            o.backend = parse_backend(value);
        else if (strcmp(name, "--dtype") == 0)
            o.plan.dtype = parse_dtype(value);
        else if (strcmp(name, "--activation") == 0)
            o.plan.hidden.activation = parse_activation(value);
        else if (strcmp(name, "--threads") == 0)
            o.threads = (int)parse_number(name, value, 0, 1024);
        else if (strcmp(name, "--epochs") == 0)
            o.plan.epochs = (int)parse_number(name, value, 1, 10000);
        else if (strcmp(name, "--seed") == 0)
            o.plan.seed = (uint64_t)parse_number(name, value, 0, 2147483647);
        else if (strcmp(name, "--data") == 0)
            o.data = value;
        else
            refuse(name, value, "a known option");
    }
    return o;
}

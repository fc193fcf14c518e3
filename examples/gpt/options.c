/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "../common/arguments.h"

#include <string.h>

static const char usage[] =
    "usage: " EXAMPLE " [options]\n"
    "Trains a small language model on a book, letter by letter, and lets it write.\n"
    "\n"
    "  --backend B   cpu, or cuda: a larger model on a GPU (cpu)\n"
    "  --steps N     steps of the training (cpu: 1400, about a minute on two cores; cuda: 200)\n"
    "  --letters N   letters to write at the end (600)\n"
    "  --seed N      of the first weights, the order of the text and what is written (1)\n"
    "  --threads N   CPU threads, 0 for all (0); the losses are the same for any number\n"
    "  --experts N   gated units of each block, of which a letter goes through one, 0 for no choice (0)\n"
    "  --text FILE   what to learn (a volume of Jane Austen's)\n"
    "  --check       compares gradients with finite differences on a tiny model, and on a GPU with those of\n"
    "                the CPU; no more\n";

static eg_backend parse_backend(const char *text) {
    if (strcmp(text, "cpu") == 0) return EG_BACKEND_CPU;
    if (strcmp(text, "cuda") == 0) return EG_BACKEND_CUDA;
    refuse("--backend", text, "cpu or cuda");
}

options options_parse(int argc, char **argv) {
    options o = {.letters = 600, .seed = 1, .text = GPT_TEXT};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
            fputs(usage, stdout);
            exit(EXIT_SUCCESS);
        }
        if (strcmp(name, "--check") == 0) {
            o.check = true;
            continue;
        }
        const char *value = argv[++i]; /* NULL past the last one */
        if (!value) refuse(name, "", "an option and its value");
        if (strcmp(name, "--backend") == 0)
            o.backend = parse_backend(value);
        else if (strcmp(name, "--steps") == 0)
            o.steps = (int)parse_number(name, value, 1, 1000000);
        else if (strcmp(name, "--letters") == 0)
            o.letters = (int)parse_number(name, value, 0, 1000000);
        else if (strcmp(name, "--seed") == 0)
            o.seed = (uint64_t)parse_number(name, value, 0, 2147483647);
        else if (strcmp(name, "--threads") == 0)
            o.threads = (int)parse_number(name, value, 0, 1024);
        else if (strcmp(name, "--experts") == 0)
            o.experts = (int)parse_number(name, value, 0, 64);
        else if (strcmp(name, "--text") == 0)
            o.text = value;
        else
            refuse(name, value, "a known option");
    }
    if (o.experts == 1) o.experts = 0; /* no choice */
    if (o.steps == 0) o.steps = o.backend == EG_BACKEND_CPU ? 1400 : 200;
    return o;
}

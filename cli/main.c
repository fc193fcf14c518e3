/* SPDX-License-Identifier: Apache-2.0 */
/* The epigrad command: the way people look into the library, and scripts use it. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "failure.h"

static const struct {
    const char *name;
    command which;
    int (*run)(const options *o);
} COMMANDS[] = {
    {"forward", COMMAND_FORWARD, command_run}, {"backward", COMMAND_BACKWARD, command_run},
    {"plan", COMMAND_PLAN, command_plan},      {"info", COMMAND_INFO, command_info},
    {"check", COMMAND_CHECK, command_check},   {"bench", COMMAND_BENCH, command_bench},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof COMMANDS[0] };

static int no_such_command(const char *name) {
    return cli_fail(CLI_BAD_INPUT, "no command '%s'; expected forward, backward, plan, info, check or bench",
                    name);
}

/* epigrad --complete [COMMAND [OPTION]]: what may stand there, one a line, for a shell (epigrad.bash). */
static int complete(int argc, char **argv) {
    if (argc > 2) return cli_fail(CLI_BAD_INPUT, "--complete: unexpected argument '%s'", argv[2]);
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (argc == 0) puts(COMMANDS[i].name);
        if (argc == 0 || strcmp(argv[0], COMMANDS[i].name) != 0) continue;
        if (argc == 2) return options_print_values(COMMANDS[i].which, argv[0], argv[1]);
        options_print(COMMANDS[i].which);
        return CLI_OK;
    }
    if (argc > 0) return no_such_command(argv[0]);
    puts("--help\n--version");
    return CLI_OK;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) return cli_fail(CLI_BAD_INPUT, "no command given (try 'epigrad --help')");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        fputs(help_text, stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("epigrad %s\n", eg_version());
        return CLI_OK;
    }
    if (strcmp(argv[1], "--complete") == 0) return complete(argc - 2, argv + 2);
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], COMMANDS[i].name) != 0) continue;
        options o;
        CLI_TRY(options_parse(COMMANDS[i].which, argc - 1, argv + 1, &o));
        if (!o.help) return COMMANDS[i].run(&o);
        fputs(help_text, stdout);
        return CLI_OK;
    }
    return no_such_command(argv[1]);
}

int main(int argc, char **argv) {
    signal(SIGXFSZ, SIG_IGN); /* a file that grows too large is a failed write, cleaned up after */
    int code = dispatch(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == CLI_OK) {
        code = cli_fail(CLI_FAILED, "cannot write to standard output");
    }
    if (code != CLI_OK) fprintf(stderr, "epigrad: %s\n", cli_failure());
    return code;
}

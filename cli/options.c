/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

/* ---- Values ------------------------------------------------------------------------------------- */

/* The words that an option takes, in the order of their numbers here. */
static const char *const BACKENDS[] = {"cpu", "cuda", "webgpu", NULL};
static const char *const DTYPES[] = {"f64", "f32", "f16", "bf16", NULL};
static const char *const LAYOUTS[] = {"kn", "nk", NULL};
static const char *const MODES[] = {"recompute", "pre", "y", NULL};
static const char *const NONFINITES[] = {"zero", "propagate", NULL};
static const char *const OUTPUTS[] = {"d_a",    "d_b",       "d_bias",      "grad_pre",
                                      "d_b_up", "d_bias_up", "grad_pre_up", NULL};
static const char *const SUMS[] = {"d_a", "d_b", "d_bias", "d_b_up", "d_bias_up", NULL};
static const char *const SPLITS[] = {"columns", "rows", NULL};
static const char *const ROUTINGS[] = {"even", "random", "zipf", NULL};
#define EG_ROW(NAME, name, value, from_y, text) #name,
static const char *const ACTIVATIONS[] = {EG_ACTIVATION_TABLE(EG_ROW) NULL};
#undef EG_ROW

static int wrong(const char *option, const char *value, const char *expected) {
    return cli_fail(CLI_BAD_INPUT, "--%s is '%s'; expected %s", option, value, expected);
}

/* The place of `value` among `names`; -1, and a failure that lists them, where it is none of them. */
static int find(const char *option, const char *const *names, const char *value) {
    char expected[256] = "";
    size_t used = 0;
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], value) == 0) return i;
        if (used >= sizeof expected) continue;
        const char *before = i == 0 ? "" : names[i + 1] == NULL ? " or " : ", ";
        used += (size_t)snprintf(expected + used, sizeof expected - used, "%s%s", before, names[i]);
    }
    (void)wrong(option, value, expected);
    return -1;
}

static bool parse_integer(const char *text, char **end, int64_t *value) {
    errno = 0;
    *value = strtoll(text, end, 10);
    return text[0] >= '0' && text[0] <= '9' && errno == 0;
}

static int set_backend(options *o, const char *value) {
    const int found = find("backend", BACKENDS, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->backend = (eg_backend)found;
    o->backend_given = true;
    return CLI_OK;
}

static int set_activation(options *o, const char *value) {
    const int found = find("activation", ACTIVATIONS, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->activation = (eg_activation)found;
    o->activation_given = true;
    return CLI_OK;
}

static int take_dtype(const char *option, const char *value, eg_dtype *dtype) {
    static const eg_dtype values[] = {EG_F64, EG_F32, EG_F16, EG_BF16};
    const int found = find(option, DTYPES, value);
    if (found < 0) return CLI_BAD_INPUT;
    *dtype = values[found];
    return CLI_OK;
}

static int set_dtype(options *o, const char *value) { return take_dtype("dtype", value, &o->dtype); }

static int set_out_dtype(options *o, const char *value) {
    return take_dtype("out-dtype", value, &o->out_dtype);
}

static int set_layout_b(options *o, const char *value) {
    const int found = find("layout-b", LAYOUTS, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->b_is_nk = found == 1;
    return CLI_OK;
}

static int set_mode(options *o, const char *value) {
    static const eg_source values[] = {EG_SOURCE_RECOMPUTE, EG_SOURCE_PRE, EG_SOURCE_Y};
    const int found = find("mode", MODES, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->mode = values[found];
    return CLI_OK;
}

static int set_nonfinite(options *o, const char *value) {
    const int found = find("nonfinite", NONFINITES, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->nonfinite = found == 0 ? EG_NONFINITE_ZERO : EG_NONFINITE_PROPAGATE;
    return CLI_OK;
}

static bool is_word(const char *word, const char *at, size_t length) {
    return strlen(word) == length && strncmp(word, at, length) == 0;
}

static operand find_output(const char *at, size_t length) {
    operand op = OP_D_A;
    while (op < OPERANDS && !is_word(cli_operand_name(op), at, length)) op++;
    return op;
}

/* A list of outputs, as a bit each. */
static int parse_outputs(const char *name, const char *value, const char *expected, unsigned *set) {
    unsigned outputs = 0;
    for (const char *at = value;; at++) {
        const size_t length = strcspn(at, ",");
        const operand found = find_output(at, length);
        if (found == OPERANDS) return wrong(name, value, expected);
        outputs |= 1U << found;
        at += length;
        if (*at == '\0') break;
    }
    *set = outputs;
    return CLI_OK;
}

static int set_want(options *o, const char *value) {
    return parse_outputs("want", value, "some of d_a,d_b,d_bias,grad_pre,d_b_up,d_bias_up,grad_pre_up",
                         &o->want);
}

static int set_accumulate_into(options *o, const char *value) {
    const char *const expected = "some of d_a,d_b,d_bias,d_b_up,d_bias_up";
    CLI_TRY(parse_outputs("accumulate-into", value, expected, &o->into));
    const bool sums = (o->into & ~(MAIN_GRADIENTS | 1U << OP_D_A)) == 0;
    return sums ? CLI_OK : wrong("accumulate-into", value, expected);
}

static int set_threads(options *o, const char *value) {
    char *end = NULL;
    int64_t threads = 0;
    if (!parse_integer(value, &end, &threads) || *end != '\0' || threads < 1 || threads > 4096) {
        return wrong("threads", value, "a number from 1 to 4096");
    }
    o->threads = (int)threads;
    return CLI_OK;
}

/* Bytes, or so many KiB, MiB or GiB of them: "256M". */
static int set_workspace_limit(options *o, const char *value) {
    static const char units[] = "KMG";
    char *end = NULL;
    int64_t bytes = 0;
    bool good = parse_integer(value, &end, &bytes) && bytes > 0;
    const char *unit = good && *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        good = !__builtin_mul_overflow(bytes, (int64_t)1 << 10 * (unit - units + 1), &bytes);
        end++;
    }
    if (!good || *end != '\0') return wrong("workspace-limit", value, "a number of bytes, such as 256M");
    o->workspace_limit = (size_t)bytes;
    return CLI_OK;
}

static int set_scale(options *o, const char *value) {
    char *end = NULL;
    o->scale = strtod(value, &end);
    const bool good = end != value && *end == '\0' && isfinite(o->scale) && o->scale != 0;
    return good ? CLI_OK : wrong("scale", value, "a finite number other than 0");
}

/* "12", or the outer level first: "2x12". */
static int set_batch(options *o, const char *value) {
    char *end = NULL;
    bool good = parse_integer(value, &end, &o->batch) && o->batch >= 1;
    o->outer_batch = 0;
    if (good && *end == 'x') {
        o->outer_batch = o->batch;
        good = parse_integer(end + 1, &end, &o->batch) && o->batch >= 1;
    }
    if (!good || *end != '\0')
        return wrong("batch", value, "a number from 1, or two for two levels, such as 2x12");
    return CLI_OK;
}

static int set_groups(options *o, const char *value) {
    char *end = NULL;
    if (!parse_integer(value, &end, &o->groups) || *end != '\0' || o->groups < 1)
        return wrong("groups", value, "a number from 1");
    return CLI_OK;
}

static int set_routing(options *o, const char *value) {
    const int found = find("routing", ROUTINGS, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->routing = (routing)found;
    return CLI_OK;
}

/* "64x128x32,..." */
static int set_shape(options *o, const char *value) {
    char *at = NULL;
    o->shape_count = 0;
    for (const char *text = value; o->shape_count < MAX_SHAPES; text = at + 1) {
        shape *s = &o->shapes[o->shape_count++];
        const bool good = parse_integer(text, &at, &s->m) && *at == 'x' &&
                          parse_integer(at + 1, &at, &s->k) && *at == 'x' &&
                          parse_integer(at + 1, &at, &s->n);
        if (!good || (*at != '\0' && *at != ',')) return wrong("shape", value, "MxKxN, such as 64x128x32");
        if (*at == '\0') return CLI_OK;
    }
    return cli_fail(CLI_BAD_INPUT, "--shape has more than %d shapes", (int)MAX_SHAPES);
}

static int set_seconds(options *o, const char *value) {
    char *end = NULL;
    o->seconds = strtod(value, &end);
    const bool good =
        end != value && *end == '\0' && isfinite(o->seconds) && o->seconds > 0 && o->seconds <= 3600;
    return good ? CLI_OK : wrong("seconds", value, "a number over 0, up to 3600");
}

static int set_output(options *o, const char *value) {
    o->output = value;
    return CLI_OK;
}

/* Options without a value. */
static int set_accumulate(options *o, const char *value) {
    (void)value;
    o->accumulate = true;
    return CLI_OK;
}

static int set_save_pre(options *o, const char *value) {
    (void)value;
    o->save_pre = true;
    return CLI_OK;
}

static int set_gated(options *o, const char *value) {
    (void)value;
    o->gated = true;
    return CLI_OK;
}

static int set_forward(options *o, const char *value) {
    (void)value;
    o->plan_forward = true;
    return CLI_OK;
}

static int set_backward(options *o, const char *value) {
    (void)value;
    o->plan_backward = true;
    return CLI_OK;
}

static int set_mpi(options *o, const char *value) {
    (void)value;
    o->mpi = true;
    return CLI_OK;
}

static int set_split(options *o, const char *value) {
    const int found = find("split", SPLITS, value);
    if (found < 0) return CLI_BAD_INPUT;
    o->split = found == 0 ? EG_SPLIT_COLUMNS : EG_SPLIT_ROWS;
    o->split_given = true;
    return CLI_OK;
}

static int set_mean(options *o, const char *value) {
    (void)value;
    o->mean = true;
    return CLI_OK;
}

static int set_json(options *o, const char *value) {
    (void)value;
    o->json = true;
    return CLI_OK;
}

static int set_help(options *o, const char *value) {
    (void)value;
    o->help = true;
    return CLI_OK;
}

/* ---- The table ---------------------------------------------------------------------------------- */

enum {
    RUNS = COMMAND_FORWARD | COMMAND_BACKWARD,
    CALLS = RUNS | COMMAND_PLAN,
    BACKWARDS = COMMAND_BACKWARD | COMMAND_PLAN,
    FORWARDS = COMMAND_FORWARD | COMMAND_PLAN,
    ALL = CALLS | COMMAND_INFO | COMMAND_CHECK | COMMAND_BENCH
};

static const struct {
    const char *name;
    int has_value;
    int commands;
    int (*set)(options *o, const char *value);
    const char *const *words; /* that the value is one of; NULL: it is a number, a size or a path */
} TABLE[] = {
    {"output", required_argument, RUNS, set_output, NULL}, /* also -o; see below */
    {"activation", required_argument, CALLS | COMMAND_BENCH, set_activation, ACTIVATIONS},
    {"backend", required_argument, CALLS | COMMAND_CHECK | COMMAND_BENCH, set_backend, BACKENDS},
    {"dtype", required_argument, CALLS | COMMAND_BENCH, set_dtype, DTYPES},
    {"out-dtype", required_argument, BACKWARDS | COMMAND_BENCH, set_out_dtype, DTYPES},
    {"layout-b", required_argument, CALLS, set_layout_b, LAYOUTS},
    {"mode", required_argument, BACKWARDS | COMMAND_BENCH, set_mode, MODES},
    {"want", required_argument, BACKWARDS, set_want, OUTPUTS},
    {"accumulate", no_argument, BACKWARDS, set_accumulate, NULL},
    {"accumulate-into", required_argument, BACKWARDS, set_accumulate_into, SUMS},
    {"mpi", no_argument, RUNS, set_mpi, NULL},
    {"split", required_argument, RUNS, set_split, SPLITS},
    {"mean", no_argument, COMMAND_BACKWARD, set_mean, NULL},
    {"save-pre", no_argument, FORWARDS, set_save_pre, NULL},
    {"gated", no_argument, CALLS | COMMAND_BENCH, set_gated, NULL},
    {"nonfinite", required_argument, BACKWARDS, set_nonfinite, NONFINITES},
    {"scale", required_argument, CALLS, set_scale, NULL},
    {"threads", required_argument, CALLS | COMMAND_CHECK | COMMAND_BENCH, set_threads, NULL},
    {"workspace-limit", required_argument, CALLS | COMMAND_BENCH, set_workspace_limit, NULL},
    {"shape", required_argument, COMMAND_PLAN | COMMAND_BENCH, set_shape, NULL},
    {"batch", required_argument, COMMAND_PLAN | COMMAND_BENCH, set_batch, NULL},
    {"groups", required_argument, COMMAND_PLAN | COMMAND_BENCH, set_groups, NULL},
    {"routing", required_argument, COMMAND_BENCH, set_routing, ROUTINGS},
    {"forward", no_argument, COMMAND_PLAN, set_forward, NULL},
    {"backward", no_argument, COMMAND_PLAN, set_backward, NULL},
    {"seconds", required_argument, COMMAND_BENCH, set_seconds, NULL},
    {"json", no_argument, COMMAND_INFO | COMMAND_BENCH, set_json, NULL},
    {"help", no_argument, ALL, set_help, NULL},
};
enum { TABLE_ROWS = sizeof TABLE / sizeof TABLE[0] };

/* getopt_long returns the row of the table, which is no character that it gives a meaning to. */
enum { ROW_BASE = 1000, OUTPUT_ROW = 0, HELP_ROW = TABLE_ROWS - 1 };

static void options_of(command which, struct option list[TABLE_ROWS + 1]) {
    int count = 0;
    for (int i = 0; i < TABLE_ROWS; i++) {
        if ((TABLE[i].commands & (int)which) == 0) continue;
        list[count++] = (struct option){TABLE[i].name, TABLE[i].has_value, NULL, ROW_BASE + i};
    }
    list[count] = (struct option){0};
}

static bool is_given(const options *o, int row) { return (o->given & (uint64_t)1 << row) != 0; }

/* The row of "--name" or "--name=value"; TABLE_ROWS where there is none. */
static int find_row(const char *argument) {
    const size_t length = strcspn(argument, "=");
    int row = 0;
    while (row < TABLE_ROWS && (length < 2 || !is_word(TABLE[row].name, argument + 2, length - 2))) row++;
    return row;
}

const char *options_of_pass(const options *o, command pass) {
    for (int i = 0; i < TABLE_ROWS; i++) {
        if (is_given(o, i) && (TABLE[i].commands & RUNS) == (int)pass) return TABLE[i].name;
    }
    return NULL;
}

unsigned options_sums(const options *o) {
    const unsigned all = o->gated ? MAIN_GRADIENTS : 1U << OP_D_B | 1U << OP_D_BIAS;
    return o->into | (o->accumulate ? all : 0);
}

/* ---- Parsing ------------------------------------------------------------------------------------ */

/* "backward, plan or bench": the commands of these bits. */
static void list_commands(int commands, char text[64]) {
    static const char *const names[] = {"forward", "backward", "plan", "info", "check", "bench"};
    size_t used = 0;
    for (int i = 0; commands != 0; i++) {
        const int bit = 1 << i;
        if ((commands & bit) == 0) continue;
        commands &= ~bit;
        const char *after = commands == 0 ? "" : (commands & (commands - 1)) == 0 ? " or " : ", ";
        used += (size_t)snprintf(text + used, 64 - used, "%s%s", names[i], after);
    }
}

static int refuse(command which, const char *name, int code, const char *argument) {
    if (code == ':') return cli_fail(CLI_BAD_INPUT, "%s: %s needs a value", name, argument);
    const int row = code == 'o' ? OUTPUT_ROW : find_row(argument);
    if (row < TABLE_ROWS && (TABLE[row].commands & (int)which) == 0) {
        char text[64];
        list_commands(TABLE[row].commands, text);
        return cli_fail(CLI_BAD_INPUT, "%s--%s is given with %s; expected it with %s",
                        row == OUTPUT_ROW ? "-o, " : "", TABLE[row].name, name, text);
    }
    return cli_fail(CLI_BAD_INPUT, "%s: no such option, or not in this form: %s (try 'epigrad --help')", name,
                    argument);
}

static int take_input(options *o, const char *name, int argc, char **argv) {
    const bool takes_input = (o->command & CALLS) != 0;
    if (optind < argc && takes_input) o->input = argv[optind++];
    if (optind >= argc) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: unexpected argument '%s'", name, argv[optind]);
}

static int check_mode(const options *o) {
    if (o->mode != EG_SOURCE_Y || eg_activation_from_y(o->activation) || o->command == COMMAND_FORWARD)
        return CLI_OK;
    return cli_fail(
        CLI_BAD_INPUT,
        "--mode is y with --activation %s; expected an activation whose derivative is a function of y: %s",
        eg_activation_name(o->activation), EG_NAMES_FROM_Y);
}

static int check_gated(const options *o) {
    const unsigned up = 1U << OP_D_B_UP | 1U << OP_D_BIAS_UP | 1U << OP_GRAD_PRE_UP;
    if (!o->gated && (o->want & up) != 0)
        return cli_fail(CLI_BAD_INPUT, "--want names a result of a gated unit; expected --gated with it");
    if (!o->gated && (o->into & up) != 0)
        return cli_fail(CLI_BAD_INPUT,
                        "--accumulate-into names a result of a gated unit; expected --gated with it");
    if (o->gated && o->mode == EG_SOURCE_Y)
        return cli_fail(CLI_BAD_INPUT, "--mode is y with --gated; expected recompute or pre");
    return CLI_OK;
}

static bool is_named(const options *o, const char *argument) { return is_given(o, find_row(argument)); }

/* What only the other pass reads. */
static int check_passes(const options *o) {
    if (o->command != COMMAND_PLAN || o->plan_forward == o->plan_backward) return CLI_OK;
    const char *other = options_of_pass(o, o->plan_forward ? COMMAND_BACKWARD : COMMAND_FORWARD);
    if (other == NULL) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "--%s is given with --%s; expected it with --%s", other,
                    o->plan_forward ? "forward" : "backward", o->plan_forward ? "backward" : "forward");
}

/* IN has the batch, and no groups. */
static int check_sizes(const options *o) {
    if (o->input != NULL && (o->groups > 0 || is_named(o, "--batch")))
        return cli_fail(CLI_BAD_INPUT, "--%s is given with IN; expected it with --shape",
                        o->groups > 0 ? "groups" : "batch");
    if (is_named(o, "--routing") && o->groups == 0)
        return cli_fail(CLI_BAD_INPUT, "--routing given without --groups; expected both");
    return CLI_OK;
}

static int check_threads(const options *o) {
    if (o->backend == EG_BACKEND_CPU || !is_named(o, "--threads")) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "--threads is given with --backend %s; expected it with cpu",
                    eg_backend_name(o->backend));
}

/* Options of sums that --want leaves out. */
static int check_sums(const options *o) {
    if (o->want == 0) return CLI_OK;
    for (operand op = OP_D_A; op < OPERANDS; op++) {
        if ((o->into & ~o->want & 1U << op) == 0) continue;
        return cli_fail(CLI_BAD_INPUT, "--accumulate-into names %s, and --want does not; expected it in both",
                        cli_operand_name(op));
    }
    const char *option = o->accumulate ? "accumulate" : o->out_dtype != EG_DTYPE_DEFAULT ? "out-dtype" : NULL;
    if (option == NULL || (o->want & MAIN_GRADIENTS) != 0) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT,
                    "--%s is of d_b, d_bias, d_b_up and d_bias_up; expected --want with one of them", option);
}

static int check_processes(const options *o) {
    if (o->mean && !o->mpi) return cli_fail(CLI_BAD_INPUT, "--mean given without --mpi; expected both");
    if (o->split_given && !o->mpi)
        return cli_fail(CLI_BAD_INPUT, "--split given without --mpi; expected both");
    if (o->split_given && o->mean)
        return cli_fail(CLI_BAD_INPUT, "--mean given with --split; expected one of them");
    if (o->mpi && !o->split_given && o->command == COMMAND_FORWARD)
        return cli_fail(CLI_BAD_INPUT, "forward: --mpi given without --split; expected both");
    return CLI_OK;
}

static int check_files(const options *o, const char *name) {
    const bool runs = (o->command & RUNS) != 0;
    if (runs && o->input == NULL) return cli_fail(CLI_BAD_INPUT, "%s: no IN given", name);
    if (runs && o->output == NULL) return cli_fail(CLI_BAD_INPUT, "%s: no OUT given (-o OUT)", name);
    if (o->command != COMMAND_PLAN) return CLI_OK;
    if (o->input != NULL && o->shape_count > 0)
        return cli_fail(CLI_BAD_INPUT, "plan: both IN and --shape given");
    if (o->input == NULL && o->shape_count == 0)
        return cli_fail(CLI_BAD_INPUT, "plan: no IN and no --shape given");
    return CLI_OK;
}

int options_parse(command which, int argc, char **argv, options *o) {
    *o = (options){.command = which, .batch = 1, .seconds = 1.0};
    struct option list[TABLE_ROWS + 1];
    options_of(which, list);
    opterr = 0;
    for (int code = 0; (code = getopt_long(argc, argv, ":o:h", list, NULL)) != -1;) {
        if (code == 'o' && (which & RUNS) != 0) code = ROW_BASE + OUTPUT_ROW;
        if (code == 'h') code = ROW_BASE + HELP_ROW;
        if (code < ROW_BASE) return refuse(which, argv[0], code, argv[optind - 1]);
        o->given |= (uint64_t)1 << (code - ROW_BASE);
        CLI_TRY(TABLE[code - ROW_BASE].set(o, optarg));
    }
    if (o->help) return CLI_OK;
    CLI_TRY(take_input(o, argv[0], argc, argv));
    CLI_TRY(check_mode(o));
    CLI_TRY(check_gated(o));
    CLI_TRY(check_passes(o));
    CLI_TRY(check_sizes(o));
    CLI_TRY(check_threads(o));
    CLI_TRY(check_sums(o));
    CLI_TRY(check_processes(o));
    return check_files(o, argv[0]);
}

/* ---- Completion --------------------------------------------------------------------------------- */

void options_print(command which) {
    for (int i = 0; i < TABLE_ROWS; i++) {
        if ((TABLE[i].commands & (int)which) != 0) printf("--%s\n", TABLE[i].name);
    }
}

int options_print_values(command which, const char *name, const char *option) {
    for (int i = 0; i < TABLE_ROWS; i++) {
        const bool named = strncmp(option, "--", 2) == 0 && strcmp(option + 2, TABLE[i].name) == 0;
        if (!named || (TABLE[i].commands & (int)which) == 0) continue;
        if (TABLE[i].has_value == no_argument) break;
        for (int j = 0; TABLE[i].words != NULL && TABLE[i].words[j] != NULL; j++) puts(TABLE[i].words[j]);
        return CLI_OK;
    }
    return cli_fail(CLI_BAD_INPUT, "%s: no option '%s' that takes a value", name, option);
}

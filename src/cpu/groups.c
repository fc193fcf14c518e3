/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped calls. Groups run beside each other, as many at a time as give every thread enough to do: a wave. A
 * step of all of its groups is shared out among the threads as one, block by block. So a large group does not
 * hold up the others, small ones cost no fork and join each, and empty ones cost nothing. More groups would
 * only evict from the caches what one step makes for the next. */
#include "core/groups.h"

#include "core/error.h"
#include "cpu.h"
#include "estimate.h"

enum {
    ALIGN = 64,
    MOST_AT_ONCE = 32, /* groups of a wave */
    ENOUGH = 1 << 20   /* bytes of workspace for groups beside each other */
};

/* Microseconds of a wave for each of several threads, beside which a fork and join of a few is little. */
static const double LONG_ENOUGH = 200;

/* A group of a wave, in the workspace. */
typedef struct group_state {
    eg_cpu_run run;
    eg_call call;
    bool refused, done;
    eg_cpu_part part;
    eg_op_list list;
} group_state;

static size_t up_to_align(size_t bytes) { return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1); }

/* ---- The workspace ------------------------------------------------------------------------------ */

/* What a group has for itself. Scratch comes last in every program, and belongs to the threads. */
static size_t own_bytes(const eg_program *program) {
    return program->steps > 0 ? up_to_align(program->region[EG_CPU_SCRATCH].offset) : 0;
}

static size_t own_bytes_of(const eg_row_class *of) {
    const size_t own = own_bytes(of->program), other = of->other != NULL ? own_bytes(of->other) : 0;
    return own > other ? own : other;
}

static int64_t states_of(const eg_groups *groups) { return eg_least(groups->groups, MOST_AT_ONCE); }

/* Groups of a class that there can be in one wave. */
static int64_t most_of_class(const eg_groups *groups, int index) {
    const int64_t rows = index > 0 ? groups->of[index - 1].rows + 1 : 0;
    const int64_t states = states_of(groups);
    return rows > 0 ? eg_least(states, eg_ceil_div(groups->m, rows)) : states;
}

/* For any one group, and for some of those that need little. A program that needs less has no more: in place
 * a call may run by another one than its workspace was asked for. */
static size_t bytes_of_groups(const eg_groups *groups) {
    size_t most = 0;
    for (int i = 0; i < groups->classes; i++) {
        const size_t one = own_bytes_of(&groups->of[i]), count = (size_t)most_of_class(groups, i);
        size_t want = one;
        if (one < ENOUGH) want = one * count < ENOUGH ? one * count : ENOUGH;
        if (want > most) most = want;
    }
    return most;
}

static size_t scratch_of(const eg_groups *groups) {
    size_t most = 0;
    for (int i = 0; i < groups->classes; i++) {
        const eg_program *const programs[2] = {groups->of[i].program, groups->of[i].other};
        for (int j = 0; j < 2; j++) {
            if (programs[j] == NULL || programs[j]->steps == 0) continue;
            const size_t bytes = eg_cpu_scratch_bytes(programs[j]);
            if (bytes > most) most = bytes;
        }
    }
    return up_to_align(most);
}

/* Where the parts of the workspace begin. */
typedef struct layout {
    size_t scratch_bytes, scratch, groups, end; /* states come first */
} layout;

static bool lay_out(const eg_groups *groups, int threads, layout *x) {
    size_t scratch;
    x->scratch_bytes = scratch_of(groups);
    x->scratch = up_to_align((size_t)states_of(groups) * sizeof(group_state));
    return !__builtin_mul_overflow(x->scratch_bytes, (size_t)threads, &scratch) &&
           !__builtin_add_overflow(x->scratch, scratch, &x->groups) &&
           !__builtin_add_overflow(x->groups, bytes_of_groups(groups), &x->end) &&
           x->end <= (size_t)INT64_MAX;
}

eg_status eg_cpu_plan_groups(const eg_caps *caps, eg_groups *groups) {
    layout x;
    if (!lay_out(groups, caps->threads, &x)) return eg_too_large(&groups->of[0].program->list);
    groups->workspace = x.end;
    return EG_OK;
}

/* ---- One step of a wave ------------------------------------------------------------------------- */

typedef struct wave {
    eg_context *context;
    const eg_problem *problem;
    group_state *state;
    char *scratch;
    size_t scratch_bytes;
    int count;    /* groups */
    double alone; /* estimated microseconds on one thread */
} wave;

/* The parts of a step, one after the other. */
typedef struct step_parts {
    int count;
    eg_cpu_part *part[MOST_AT_ONCE];
    int64_t end[MOST_AT_ONCE]; /* the index after the part's last one */
} step_parts;

static void run_index(void *arg, int64_t index, int thread) {
    const step_parts *parts = arg;
    int low = 0, high = parts->count - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (index < parts->end[middle]) high = middle;
        if (index >= parts->end[middle]) low = middle + 1;
    }
    eg_cpu_part *part = parts->part[low];
    part->body(part->job, low > 0 ? index - parts->end[low - 1] : index, thread);
}

static void run_step(const wave *w, int number) {
    const eg_cpu_calibration *calibration = eg_cpu_calibration_of(&w->context->caps);
    step_parts parts = {.count = 0};
    int64_t indices = 0;
    double alone = 0; /* microseconds on one thread */
    for (int i = 0; i < w->count; i++) {
        group_state *group = &w->state[i];
        if (number >= group->run.program->steps || group->refused || group->done) continue;
        const eg_step *step = &group->run.program->step[number];
        group->part.count = 0;
        eg_cpu_run_step(&group->run, step);
        if (group->part.count == 0) continue;
        alone += step->microseconds * step->threads;
        indices += group->part.count;
        parts.part[parts.count] = &group->part;
        parts.end[parts.count++] = indices;
    }
    if (indices == 0) return;
    const int threads = eg_cpu_choose_threads(calibration, w->context->caps.threads, alone, indices);
    eg_cpu_parallel(w->context->device, threads, indices, run_index, &parts);
}

static void run_steps(const wave *w) {
    int steps = 0;
    for (int i = 0; i < w->count; i++) {
        if (w->state[i].run.program->steps > steps) steps = w->state[i].run.program->steps;
    }
    for (int i = 0; i < steps; i++) run_step(w, i);
}

/* ---- Waves -------------------------------------------------------------------------------------- */

static void set_program(const wave *w, group_state *x, int64_t group, const eg_program *program,
                        int64_t rows) {
    eg_group_bind(w->problem, group, program, &x->call);
    x->refused = x->done = false;
    x->run = (eg_cpu_run){.program = program,
                          .list = &program->list,
                          .call = &x->call,
                          .threads = w->context->device,
                          .refused = &x->refused,
                          .scratch = w->scratch,
                          .scratch_bytes = w->scratch_bytes,
                          .part = &x->part};
    if (rows == program->list.m) return;
    eg_list_of_rows(&program->list, rows, &x->list);
    x->run.list = &x->list;
}

/* Groups that met numbers their kernels do not take run once more, by programs that take any. */
static void run_wave(wave *w, const eg_groups *groups) {
    bool again = false;
    run_steps(w);
    for (int i = 0; i < w->count; i++) {
        group_state *x = &w->state[i];
        x->done = !x->refused;
        if (x->done) continue;
        const int64_t rows = x->run.list->m;
        set_program(w, x, x->call.pack_item, eg_class_of_rows(groups, rows)->other, rows);
        again = true;
    }
    if (again) run_steps(w);
    w->count = 0;
    w->alone = 0;
}

static double time_of(const eg_program *program) {
    double alone = 0;
    for (int i = 0; i < program->steps; i++)
        alone += program->step[i].microseconds * program->step[i].threads;
    return alone;
}

static bool is_full(const wave *w, const eg_groups *groups) {
    const int threads = w->context->caps.threads;
    if (w->count == 0) return false;
    return threads == 1 || w->count == states_of(groups) || w->alone > LONG_ENOUGH * threads;
}

/* A group without work has a program without steps. */
eg_status eg_cpu_run_groups(eg_context *context, const eg_groups *groups, const eg_problem *problem,
                            eg_address workspace) {
    layout x;
    if (!lay_out(groups, context->caps.threads, &x)) return eg_too_large(&groups->of[0].program->list);
    char *const begin = (char *)workspace.data + workspace.offset;
    wave w = {.context = context,
              .problem = problem,
              .state = (group_state *)begin,
              .scratch = begin + x.scratch,
              .scratch_bytes = x.scratch_bytes};
    size_t at = x.groups;
    for (int64_t group = 0; group < groups->groups; group++) {
        const int64_t rows = eg_rows_of(problem, group).count;
        const eg_row_class *of = eg_class_of_rows(groups, rows);
        const size_t bytes = own_bytes_of(of);
        if (of->program->steps == 0) continue;
        if (is_full(&w, groups) || x.end - at < bytes) {
            run_wave(&w, groups);
            at = x.groups;
        }
        group_state *state = &w.state[w.count++];
        state->call.workspace = (eg_address){workspace.data, workspace.offset + at};
        set_program(&w, state, group, of->program, rows);
        at += bytes;
        w.alone += time_of(of->program);
    }
    run_wave(&w, groups);
    return EG_OK;
}

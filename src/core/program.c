/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <string.h>

#include "backend.h"
#include "collectives.h"
#include "error.h"
#include "compile_scratch.h"
#include "text.h"

/* ---- Compiling ---------------------------------------------------------------------------------- */

bool eg_place_buffer(eg_program *program, int index) {
    const eg_buffer *x = &program->list.buffer[index];
    const size_t offset = (program->workspace + EG_MOST_ALIGN - 1) & ~(size_t)(EG_MOST_ALIGN - 1);
    size_t bytes, end;
    if (__builtin_mul_overflow(x->items, x->rows, &bytes) || __builtin_mul_overflow(bytes, x->cols, &bytes) ||
        __builtin_mul_overflow(bytes, eg_size_of(program->list.compute), &bytes) ||
        __builtin_add_overflow(offset, bytes, &end) || end > (size_t)INT64_MAX)
        return false;
    program->buffer[index] = offset;
    program->workspace = end;
    return true;
}

/* Buffers come first in the workspace, which backends then add to. */
static bool place_buffers(eg_program *program) {
    for (int i = 0; i < program->list.buffers; i++) {
        if (!eg_place_buffer(program, i)) return false;
    }
    return true;
}

void eg_program_begin(eg_program *program) {
    program->steps = 0;
    program->workspace = 0;
    program->overlaps = false;
    program->time = program->plain_time = 0;
    program->serial = 0;
    program->may_refuse = program->lacks = program->measured = false;
    memset(program->region, 0, sizeof program->region);
    memset(program->buffer, 0, sizeof program->buffer);
    memset(program->detail, 0, sizeof program->detail);
}

static eg_status compile(const eg_caps *caps, eg_program *program) {
    eg_program_begin(program);
    if (program->list.exchanged == INT64_MAX) return eg_too_large(&program->list);
    program->workspace = (size_t)program->list.exchanged; /* comes first */
    if (!place_buffers(program)) return eg_too_large(&program->list);
    EG_TRY(eg_backend_find(caps->backend)->compile(caps, program));
    if (program->list.exchanged > 0) eg_collectives_estimate(caps, program);
    return EG_OK;
}

static eg_status take_room_of(const eg_caps *caps, eg_program *program, eg_program *other) {
    eg_caps any = *caps;
    any.refused = true;
    any.choice = NULL;
    other->list = program->list;
    EG_TRY(compile(&any, other));
    if (other->workspace > program->workspace) program->workspace = other->workspace;
    return EG_OK;
}

/* Not inlined: every caller would have a stack frame with room for a program. */
__attribute__((noinline)) static eg_status take_room_on_stack(const eg_caps *caps, eg_program *program) {
    eg_program other;
    return take_room_of(caps, program, &other);
}

/* The workspace has room for the program that may take this one's place. */
eg_status eg_compile(const eg_caps *caps, eg_program *program) {
    EG_TRY(compile(caps, program));
    if (!program->may_refuse) return EG_OK;
    if (caps->scratch == NULL) return take_room_on_stack(caps, program);
    return take_room_of(caps, program, &caps->scratch->refused);
}

eg_status eg_program_make(const eg_caps *caps, const eg_problem *problem, eg_program *program) {
    eg_lower(problem, &program->list);
    return eg_compile(caps, program);
}

eg_step *eg_add_step(eg_program *program, int op, const char *kernel) {
    eg_step *step = &program->step[program->steps++];
    const eg_op_kind kind = op == EG_NO_OP ? EG_COPY : program->list.op[op].kind;
    *step = (eg_step){.op = op, .kind = kind, .kernel = kernel, .launches = 1, .splits = 1};
    return step;
}

bool eg_add_region(eg_program *program, int index, const char *name, int64_t count, int64_t each,
                   size_t element, size_t align) {
    size_t bytes = 0, end = 0;
    const size_t offset = (program->workspace + align - 1) & ~(align - 1);
    if (__builtin_mul_overflow(count, each, &bytes) || __builtin_mul_overflow(bytes, element, &bytes) ||
        __builtin_add_overflow(offset, bytes, &end) || end > (size_t)INT64_MAX) {
        return false;
    }
    program->region[index] = (eg_region){offset, bytes, name};
    program->workspace = end;
    return true;
}

eg_status eg_too_large(const eg_op_list *list) {
    return eg_fail(EG_ERR_OUT_OF_MEMORY,
                   "the workspace of M=%lld K=%lld N=%lld batch=%lld is larger than memory can be",
                   (long long)list->m, (long long)list->k, (long long)list->n, (long long)list->batch);
}

/* ---- The text ----------------------------------------------------------------------------------- */

static const char *name_of_ours(int id) {
    switch (id) {
    case EG_SUMS_IN_RESULT:
        return "sums in its memory";
    case EG_CHUNK_GRADIENT:
        return "grad_pre";
    case EG_TRANSIT:
        return "lines in transit";
    case EG_GATHERED:
        return "gathered";
    }
    return "sums";
}

const char *eg_view_name(const eg_op_list *list, const eg_view *view) {
    if (view->space == EG_TEMPORARY) return list->temporary[view->id].name;
    if (view->id >= EG_ROW_GROUP && view->id <= EG_LAST_ROW_GROUP)
        return list->reads_a_by_row_group ? "a" : "gathered";
    if (view->id >= EG_BUFFER) return list->buffer[view->id - EG_BUFFER].name;
    if (view->id == EG_OP_SAVED && list->source == EG_SOURCE_Y) return "y";
    return view->id < EG_OPERANDS ? eg_name_of_operand((eg_operand_id)view->id) : name_of_ours(view->id);
}

static void put_view(eg_text *out, const eg_op_list *list, const eg_view *view) {
    eg_put(out, "%s%s", eg_view_name(list, view), view->transposed ? "T" : "");
}

static void put_value(eg_text *out, const eg_op_list *list, const eg_op *op) {
    if (eg_scale_of(op) != 1) eg_put(out, "%g * ", eg_scale_of(op));
    if (eg_is_present(&op->left)) put_view(out, list, &op->left);
    if (!eg_is_present(&op->left)) eg_put(out, "0");
    if (op->kind == EG_GEMM && eg_is_present(&op->right)) {
        eg_put(out, ".");
        put_view(out, list, &op->right);
    }
    const eg_term *bias = eg_term_of(op, EG_TERM_BIAS);
    if (bias != NULL) eg_put(out, " + %s", eg_view_name(list, &bias->view));
}

/* What is written: the result, else what is stored on the way, else the gradient that is only summed. */
static const char *result_name(const eg_op_list *list, const eg_op *op) {
    const eg_term *store = eg_term_of(op, EG_TERM_STORE);
    if (eg_is_present(&op->out)) return eg_view_name(list, &op->out);
    return store != NULL ? eg_view_name(list, &store->view) : "grad_pre";
}

/* Such as "grad_pre = grad * gelu'(a.b + bias)". */
static void put_op(eg_text *out, const eg_op_list *list, const eg_op *op) {
    const eg_term *act = eg_term_of(op, EG_TERM_ACT), *add = eg_term_of(op, EG_TERM_ADD),
                  *times = eg_term_of(op, EG_TERM_TIMES), *at_value = eg_term_of(op, EG_TERM_GRAD_AT_VALUE),
                  *at_saved = eg_term_of(op, EG_TERM_GRAD_AT_SAVED), *store = eg_term_of(op, EG_TERM_STORE);
    if (op->kind == EG_COLLECTIVE && op->collective == EG_FINISH) {
        eg_put(out, "wait for all ranks");
        return;
    }
    eg_put(out, "%s%s %s ", result_name(list, op), op->out.transposed ? "T" : "",
           op->accumulate ? "+=" : "=");
    if (op->kind == EG_COLLECTIVE && op->collective == EG_ALL_GATHER) {
        eg_put(out, "%s of %d ranks", eg_view_name(list, &op->left), list->exchange.ranks);
        return;
    }
    if (op->kind == EG_COLLECTIVE) {
        eg_put(out, "%s of %d ranks", list->exchange.mean ? "mean" : "sum", list->exchange.ranks);
        return;
    }
    if (op->kind == EG_REDUCE) {
        eg_put(out, "column sums");
        return;
    }
    if (at_value != NULL) {
        put_view(out, list, &at_value->view);
        eg_put(out, " * ");
    }
    const eg_term *activation = at_value != NULL ? at_value : act;
    if (activation != NULL)
        eg_put(out, "%s%s(", eg_activation_name(activation->activation), at_value != NULL ? "'" : "");
    put_value(out, list, op);
    if (activation != NULL) eg_put(out, ")");
    if (at_saved != NULL)
        eg_put(out, " * %s'(%s)", eg_activation_name(at_saved->activation),
               eg_view_name(list, &at_saved->view));
    if (add != NULL) eg_put(out, " + %s", eg_view_name(list, &add->view));
    if (times != NULL) eg_put(out, ", * %s", eg_view_name(list, &times->view));
    if (store != NULL && strcmp(eg_view_name(list, &store->view), result_name(list, op)) != 0)
        eg_put(out, ", %s", eg_view_name(list, &store->view));
}

/* What a step does, and with a further operation's result each other thing it makes. */
static void put_work(eg_text *out, const eg_op_list *list, const eg_step *step) {
    if (step->op == EG_NO_OP) eg_put(out, "%s", step->what);
    if (step->op != EG_NO_OP) put_op(out, list, &list->op[step->op]);
    for (int i = 0; i < list->ops; i++) {
        if ((step->also >> i & 1U) != 0) eg_put(out, ", %s", result_name(list, &list->op[i]));
    }
}

static const char *step_kind(const eg_step *step) {
    static const char *const kinds[] = {[EG_GEMM] = "gemm",
                                        [EG_MAP] = "map",
                                        [EG_REDUCE] = "reduce",
                                        [EG_COPY] = "copy",
                                        [EG_COLLECTIVE] = "comm"};
    return kinds[step->kind];
}

static void put_step(eg_text *out, const eg_program *program, int number) {
    const eg_step *step = &program->step[number];
    char what[128];
    put_work(&(eg_text){what, sizeof what}, &program->list, step);
    eg_put(out, "%2d  %-6s  %-48s  %s", number + 1, step_kind(step), what, step->kernel);
    if (step->tile_rows > 0) {
        eg_put(out, "  block %lldx%lld", (long long)step->tile_rows, (long long)step->tile_cols);
        if (step->k_block > 0) eg_put(out, "x%lld", (long long)step->k_block);
    }
    if (step->rows.count > 0)
        eg_put(out, "  rows %lld..%lld", (long long)step->rows.first,
               (long long)(step->rows.first + step->rows.count - 1));
    if (step->splits > 1) eg_put(out, "  split-K %d", step->splits);
    if (step->note != NULL) eg_put(out, "  %s", step->note);
    if (step->tail > 0) eg_put(out, "  stream-K tail of %lld", (long long)step->tail);
    if (step->launches > 1) eg_put(out, "  x %lld", (long long)step->launches);
    if (step->after_each != NULL) eg_put(out, ", each with %s", step->after_each);
    if (step->threads > 1) eg_put(out, "  threads %d", step->threads);
    if (step->beside) eg_put(out, "  beside the next");
    if (step->microseconds > 0) eg_put(out, "  ~%.3g us", step->microseconds);
    eg_put(out, "\n");
}

void eg_program_print(const eg_program *program, eg_text *out) {
    static const char *const sources[] = {"recompute", "pre", "y"};
    const eg_op_list *list = &program->list;
    double total = 0;
    for (int i = 0; i < program->steps; i++) {
        if (program->step[i].kind != EG_COLLECTIVE) total += program->step[i].microseconds;
    }
    eg_put(out, "%s %s %s%s%s%s  M=%lld K=%lld N=%lld batch=%lld  workspace %zu bytes",
           list->backward ? "backward" : "forward", eg_dtype_name(list->dtype),
           eg_activation_name(list->activation), list->gated ? " gated" : "", list->backward ? " " : "",
           list->backward ? sources[list->source] : "", (long long)list->m, (long long)list->k,
           (long long)list->n, (long long)list->batch, program->workspace);
    if (total > 0) eg_put(out, "  ~%.3g us", total);
    eg_put(out, "\n");
    for (int i = 0; i < program->steps; i++) put_step(out, program, i);
    if (list->exchanged > 0) eg_put(out, "    %-20s %14zu bytes\n", "exchanged", (size_t)list->exchanged);
    for (int i = 0; i < list->buffers; i++) {
        const eg_buffer *x = &list->buffer[i];
        eg_put(out, "    %-20s %14zu bytes\n", x->name,
               (size_t)(x->items * x->rows * x->cols) * eg_size_of(list->compute));
    }
    for (int i = 0; i < EG_MAX_REGIONS; i++) {
        const eg_region *region = &program->region[i];
        if (region->bytes > 0) eg_put(out, "    %-20s %14zu bytes\n", region->name, region->bytes);
    }
}

#!/usr/bin/env python3
"""Breaks the library on purpose, one small change at a time, and sees that the tests notice.

    tests/mutate.py [--only WORD] [--work DIR] [--list]

Each mutation is a replacement of one piece of source text, in a scratch copy of the tree. The copy is built
and tested; the table printed at the end (Markdown, for docs/testing.md) names the first test that failed.
Exits with 1 if a mutation survives, or if its text is no longer in the source exactly once.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What is broken, where, the text there, and what it becomes.
MUTATIONS = [
    # The products.
    ("the last row of tiles is skipped when it is one row high", "src/cpu/gemm.c",
     "tile.row < b->row + b->rows; tile.row += mr", "tile.row + 1 < b->row + b->rows; tile.row += mr"),
    ("the last panel is skipped when it is one column wide", "src/cpu/gemm.c",
     "col < b->col + b->cols; col += x->kernel->nr", "col + 1 < b->col + b->cols; col += x->kernel->nr"),
    ("only the last item of a summed batch counts", "src/cpu/gemm.c",
     ".first = summand == 0 && i == 0", ".first = i == 0"),
    ("only the last pass over a long depth counts", "src/cpu/gemm.c",
     ".first = summand == 0 && i == 0", ".first = summand == 0"),
    ("a pass reads past the end of the depth", "src/cpu/gemm.c",
     ".depth = eg_least(kc, x->depth - i * kc)", ".depth = eg_least(kc, x->depth - i * kc + 1)"),
    ("a broadcast a is read as a batch", "src/cpu/gemm.c",
     "*per_item = p->operands[EG_OP_A].batch_stride != 0;", "*per_item = true;"),
    ("every item of a batch in place is the first", "src/cpu/gemm.c",
     ".item = times(x->batch_stride, size),", ".item = 0,"),
    ("b is not transposed for d_a", "src/cpu/pack.c",
     "const eg_operand xt = eg_cpu_transpose(*x);", "const eg_operand xt = *x;"),
    ("b as it is used is laid out from its first term on", "src/cpu/pack.c",
     "eg_cpu_at(x, item, part->term, part->col), x->dtype", "eg_cpu_at(x, item, 0, part->col), x->dtype"),
    ("the workspace has no room between panels", "src/cpu/select.c",
     "__builtin_mul_overflow(panels.apart, panels.panels", "__builtin_mul_overflow(panels.rows, panels.panels"),
    ("all threads share one scratch", "src/cpu/gemm.c",
     "eg_cpu_scratch(x->run, thread)", "eg_cpu_scratch(x->run, 0 * thread)"),
    ("a smaller step ends the threads it does not need", "src/cpu/threads.c",
     "if (last < threads) last = threads;", "last = threads;"),
    ("the depth is cut by the number of threads", "src/cpu/select.c",
     "step->depth = depth_of_passes(kernel, &x, terms_of_pass(kernel, p, &x, step->packs));",
     "step->depth = depth_of_passes(kernel, &x, terms_of_pass(kernel, p, &x, step->packs)) -"
     " (step->threads > 1 ? kernel->run : 0);"),
    ("a pack of b changes where a depth is cut", "src/cpu/select.c",
     "const bool only = kernel->terms > 0 ? packs : has_all_rows(kernel, p);", "const bool only = packs;"),
    ("AMX: runs end with a pass, wherever that is", "src/cpu/kernel_amx.c",
     ".run = (PRODUCTS) == 6 ? RUN_TERMS : EG_CELL,", ".run = EG_CELL,"),
    ("sums that wait for the next pass take turns too", "src/cpu/select.c",
     "step->one_pass = is_one_pass(&x, step->depth);", "step->one_pass = x.summed <= 1;"),
    ("a tile is summed where the one before it ends", "src/cpu/gemm.c",
     "x->step->one_pass ? place & 1 : place", "x->step->one_pass ? 0 : place"),
    ("AMX: one of the six products is left out", "src/cpu/kernel_amx.c",
     "RIGHT(0) DOT LEFT(0) DOT LEFT(2) DOT)", "RIGHT(0) DOT LEFT(0) DOT)"),
    ("AMX: what goes past the caches is not unscaled", "src/cpu/kernel_amx.c",
     "store_sums_of(sums, to, step, dtype, rows, cols, past, UNSCALE(TERMS));",
     "store_sums_of(sums, to, step, dtype, rows, cols, past, past ? 1 : UNSCALE(TERMS));"),
    ("the panel after a summand's last is past its depth", "src/cpu/gemm.c",
     "if (next.term >= x->depth) next.term = 0, ++*item;", ""),
    ("AMX: infinities are split", "src/cpu/kernel_amx.c", "largest = 0x4c800000;", "largest = 0x7fffffff;"),
    ("AMX: rows of grad_pre are not added up", "src/cpu/kernel_amx.c", "sum[j] += x;", ""),
    ("AMX: the first bias of a row is left out", "src/cpu/kernel_amx.c",
     "bias[2] = {EG_V(load)(of->bias), EG_V(load)(of->bias + EG_LANES)};",
     "bias[2] = {{0}, EG_V(load)(of->bias + EG_LANES)};"),
    ("a slope in pieces is the same on both sides of 0", "src/cpu/vector.h",
     "(EG_T)((EG_I)odd ^ ((EG_I)x & ~EG_ABS_MASK))", "odd"),
    ("a slope in pieces lacks its highest power", "src/cpu/vector.h",
     "odd = i == slope->degree ? power :", "odd = i == slope->degree ? (EG_T){0} :"),
    # Layouts and memory.
    ("row and column strides are swapped", "src/validate.c",
     "operand->row_stride = row_major ? stride : 1;", "operand->row_stride = row_major ? 1 : stride;"),
    ("element addresses are computed in 32 bits", "src/cpu/cpu.h",
     "const int64_t element = item * x->batch_stride + row * x->row_stride + col * x->col_stride;",
     "const int element = (int)(item * x->batch_stride + row * x->row_stride + col * x->col_stride);"),
    ("loading reads one element past a row", "src/cpu/rows.h",
     "EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols);",
     "EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols < EG_NR ? cols + 1 : cols);"),
    ("storing writes one element past a row", "src/cpu/rows.h",
     "EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols);",
     "EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols < EG_NR ? cols + 1 : cols);"),
    ("the workspace is one tile short", "src/cpu/select.c",
     "scratch += EG_CPU_SPARE_TILES *", "scratch += (EG_CPU_SPARE_TILES - 1) *"),
    ("a failed growth forgets that the workspace is gone", "src/api.c",
     "    context->workspace_bytes = 0;\n", ""),
    # Epilogues.
    ("recompute leaves out the bias", "src/cpu/epilogue.c",
     "e->bias = e->x == &product ? wanted(p, EG_OP_BIAS) : NULL;", "e->bias = NULL;"),
    ("the saved pre lacks the bias", "src/cpu/sweep.h",
     "EG_V(give)(&s.pre, &g, x);", "EG_V(take)(other, &s.x, &g), EG_V(give)(&s.pre, &g, other);"),
    ("the residual is subtracted", "src/cpu/sweep.h", "x[u] += other[u];", "x[u] -= other[u];"),
    ("d_b does not accumulate", "src/cpu/epilogue.c", "d_b && p->accumulate", "false"),
    ("d_bias does not accumulate", "src/cpu/act_grad.c",
     "if (job->run->problem->accumulate) {", "if (false) {"),
    ("d_bias misses all but the first item's chunks", "src/cpu/act_grad.c",
     ".rows = eg_cpu_chunks(p->m) * p->batch,", ".rows = eg_cpu_chunks(p->m),"),
    ("a chunk's column sums start from what was there", "src/cpu/epilogue.c",
     "if (tile->row % EG_CPU_CHUNK == 0) memset", "if (tile->row == 0) memset"),
    ("the chain's d_bias has the wrong width", "src/cpu/act_grad.c",
     ".cols = below ? p->k : p->n};", ".cols = p->n};"),
    ("a chain from y is treated as one from pre", "src/cpu/epilogue.c",
     "p->below_activation, p->below_source,", "p->below_activation, EG_SOURCE_PRE,"),
    # Activations and numbers.
    ("tanh has the wrong sign", "include/epigrad/activation.h",
     "EG_SELECT(x > EG_C(0.0), -t, t)", "EG_SELECT(x > EG_C(0.0), t, -t)"),
    ("gelu's constant has five digits", "include/epigrad/activation.h",
     "EG_FMA(c2, EG_C(7.1354816272600250e-2 *", "EG_FMA(c2, EG_C(7.1355e-2 *"),
    ("gelu' is not clamped", "include/epigrad/activation.h",
     "EG_LET(c, EG_CLAMP(x, EG_GELU_END))", "EG_LET(c, x)"),
    ("relu'(0) is 1", "include/epigrad/activation.h",
     "EG_FN(act_grad_relu, x) EG_RETURN(EG_SELECT(x > EG_C(0.0), EG_C(1.0), EG_C(0.0)))",
     "EG_FN(act_grad_relu, x) EG_RETURN(EG_SELECT(x < EG_C(0.0), EG_C(0.0), EG_C(1.0)))"),
    ("act'(NaN) is always NaN", "src/cpu/sweep.h",
     "(EG_I){0} - (EG_V(word))sweep->propagate;", "~(EG_I){0};"),
    ("act(NaN) is what the formula gives", "src/cpu/sweep.h",
     "EG_V(unless_nan)(x, EG_V(act_##name)(x), ~(EG_I){0})", "EG_V(act_##name)(x)"),
    ("f64 exponentials lose a term", "include/epigrad/activation.h",
     "EG_STEP(2.0876756987868098979e-9,", "EG_STEP(0.0,"),
    ("bf16 is truncated", "src/half.h", "(bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16", "bits >> 16"),
    ("bf16 ties go up", "src/half.h", "(bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16", "(bits + 0x8000U) >> 16"),
    ("f16 stores truncate", "src/cpu/tile_template.h", "_MM_FROUND_TO_NEAREST_INT", "_MM_FROUND_TO_ZERO"),
    ("f64 to f16 rounds twice", "src/convert.c",
     "eg_f16_of_f32(eg_f32_odd_of_f64(x))", "eg_f16_of_f32((float)x)"),
    # Validation, plans, packs.
    ("overlaps pass", "src/validate.c",
     "if (touched->data == NULL || !eg_overlap(problem, written, touched)) continue;",
     "if (touched->data == NULL || eg_overlap(problem, written, touched)) continue;"),
    ("a leading dimension may be one too small", "src/validate.c", "if (ld < least_ld) {", "if (ld + 1 < least_ld) {"),
    ("a batch with its own d_b is folded into rows", "src/plan.c",
     " && shared(&problem->operands[EG_OP_D_B])", ""),
    ("d_a is computed though nobody wants it", "src/plan.c",
     "if (d_a) add_gemm(", "if (d_a || d_b) add_gemm("),
    # Slabs.
    ("slabs: rows past the last full slab are left out", "src/slabs.c",
     "row < s->whole.m; row += s->rows", "row + s->rows <= s->whole.m; row += s->rows"),
    ("slabs: operands stay at their first row", "src/slabs.c", "(has_rows ? row * x->row_stride : 0)", "0"),
    ("slabs: each one overwrites d_b", "src/slabs.c", "accumulate || carried || row > 0;", "accumulate || carried;"),
    ("slabs: each item of a batch overwrites d_bias", "src/slabs.c", "carried = item > 0 && carries(s);", "carried = false;"),
    ("slabs: d_b of the second item begins with what was there", "src/slabs.c",
     "carried && !accumulate && per_item(s, EG_SUM_D_B)", "false"),
    ("slabs: d_b of 16 bits is rounded after each", "src/slabs.c",
     "out->data != NULL && out->dtype != s->whole.compute && added_to", "added_to && false"),
    ("slabs: what d_b held is lost where it is rounded at the end", "src/slabs.c",
     "    if (s->whole.accumulate) EG_TRY(copy_sums(context, s, false, 0, true));\n", ""),
    ("slabs: d_b of every item is rounded to the first", "src/slabs.c", "advance(&out, false, item, 0);", ""),
    ("slabs: b of the first item is packed for all", "src/slabs.c",
     "(item == 0 || s->whole.operands[EG_OP_B].batch_stride != 0)", "item == 0"),
    ("the last slab may be a short one", "src/slabs_fit.c",
     ": even_out(x, alone, best);", ": EG_OK;"),
    ("slabs: they depend on the number of threads", "src/slabs_fit.c",
     "EG_TRY(choose_slab(x, alone, best));", "EG_TRY(choose_slab(x, x->caps.threads, best));"),
    ("slabs: the limit is passed by a byte", "src/slabs_fit.c",
     "x->slabs->workspace <= x->limit", "x->slabs->workspace <= x->limit + 1"),
    ("slabs: calls seen before are told apart by their limit only", "src/slabs_seen.c",
     "x->limit == limit && memcmp(&x->key, key, sizeof *key) == 0", "x->limit == limit"),
    ("slabs: calls seen before are told apart by all but their limit", "src/slabs_seen.c",
     "x->limit == limit && memcmp", "x->limit > 0 && memcmp"),
    ("slabs: halves seen before are whole", "src/slabs_seen.c", "known->rows, known->halves, slabs", "known->rows, false, slabs"),
    ("slabs: the last one finds no room", "src/slabs.c",
     "    EG_TRY(take_slab(caps, s, last_start(s->whole.batch, s->items), last_start(s->whole.m, s->rows), room));\n", ""),
    ("slabs: later calls have fewer threads", "src/slabs.c",
     "    context->caps.threads = threads;\n    return status;", "    return status;"),
    ("slabs: sums of a batch that stays together have room for one item", "src/slabs.c",
     "per_item(s, sum) ? s->items : 1, &bytes)", "1, &bytes)"),
    ("halves: d_b leaves its memory from the first line on", "src/slabs.c", "(before ? i : pieces - 1 - i)", "i"),
    ("halves: what d_b held is taken from its last line on", "src/slabs.c", "(before ? i : pieces - 1 - i)", "(pieces - 1 - i)"),
    ("halves: what d_b's own half held is lost", "src/slabs.c",
     "        if (halves && before) EG_TRY(move_half(context, s, true));\n", ""),
    ("halves: lines on their way lie where copies work", "src/slabs.c",
     "s->workspace = s->slab.offset + other;", "s->workspace = s->slab.offset;"),
    ("halves: lines on their way have the type of their sums", "src/slabs.c", "    way.dtype = out.dtype;\n", ""),
    ("halves: both are of the first columns", "src/slabs.c", "own ? s->kept : 0, count", "0, count"),
    ("halves: they fit wherever d_b begins", "src/slabs.c", ": (lines - 1) / 2;", ": lines / 2;"),
    ("halves: a query knows where d_b begins", "src/slabs.c",
     "if (s->halves) s->kept = kept_lines(&s->whole.operands[EG_OP_D_B], false);",
     "if (s->halves) s->kept = kept_lines(&s->whole.operands[EG_OP_D_B], unaligned(s) == 0);"),
    ("halves: of a d_b with gaps", "src/slabs.c", "return dense && (", "return (dense || true) && ("),
    ("halves: of each item's d_b", "src/slabs.c",
     "    if (p->batch > 1 && d_b->batch_stride != 0) return false;\n", ""),
    ("halves: products in f32 read a grad_pre of 16 bits", "src/slabs.c",
     "(caps->rounds_grad_pre || !rounds)", "(caps->rounds_grad_pre || !rounds || true)"),
    ("halves: for a few more rows", "src/slabs_fit.c", "rows_of(slab) >= 2 * rows", "rows_of(slab) > rows"),
    ("b is read where it is by the wrong dimension", "src/cpu/select.c",
     "divides(kernel->lanes, pre ? p->n : p->k)", "divides(kernel->lanes, p->n)"),
    ("the work of threads that the system does not give is left undone", "src/cpu/threads.c",
     "for (int i = 0; i < count; i++) {\n        range", "for (int i = 0; i < 1; i++) {\n        range"),
    ("a pack has only what its own layer's height takes", "src/cpu/backend.c",
     "problem->batch > 1 ? EG_CELL_DEEPEST / problem->batch : EG_CELL_DEEPEST", "problem->m"),
    ("column sums of chunks are added one after the other", "src/cpu/act_grad.c",
     "enum { STRAIGHT = 8 };", "enum { STRAIGHT = 1 << 30 };"),
    ("the offset of the workspace is ignored", "src/api.c", "given->data, given->offset);", "given->data, 0);"),
    ("what an empty batch writes is not checked", "src/problem.h",
     "(problem->batch > 0 || x->batch_stride == 0)", "problem->batch > 0"),
    ("windows of one buffer may overlap", "src/overlap.c", "shift >= length_x && shift", "shift > 0 && shift"),
    ("the gaps between a batch's windows do not count", "src/overlap.c",
     "if (problem->batch > 1 && (", "if (false && ("),
    ("updating a pack does nothing", "src/api.c",
     "return context->ops->pack(context, &problem, packed);", "return EG_OK;"),
    ("a pack of another k is taken", "src/api.c", "layer->k != problem->k || ", ""),
]


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)


def copy_tree(to):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split("\n")
    for name in filter(None, listed):
        source = ROOT / name
        if source.is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, to / name)
            shutil.copymode(source, to / name)  # and not its date: the build folder may be older


def configure(tree, build):
    options = ["-DEPIGRAD_CLI=OFF", "-DEPIGRAD_EXAMPLES=OFF", "-DEPIGRAD_CUDA=OFF", "-DEPIGRAD_WEBGPU=OFF",
               "-DEPIGRAD_WERROR=OFF"]
    done = run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", *options])
    if done.returncode != 0:
        sys.exit(done.stdout)


def first_failure(output):
    """The name of the test in a line like  3/20 Test #7: plan ......***Failed."""
    for line in output.splitlines():
        if " Test " in line and "***" in line and "Skipped" not in line:
            return line.split(": ", 1)[1].split()[0]
    return None


def verdict(build):
    """The first test that fails, the cheap and broad ones first; None if all pass."""
    built = run(["cmake", "--build", build, "-j", "2"])
    if built.returncode != 0:
        return "(does not compile)"
    base = ["ctest", "--test-dir", build, "--stop-on-failure", "--timeout", "300"]
    long = "^table_cpu_rows$|^table_emulated|^activation$|^concurrency$"
    for chosen in (["-E", long], ["-R", long]):
        tested = run([*base, *chosen])
        if tested.returncode != 0:
            return first_failure(tested.stdout) or "(ctest failed)"
    return None


def apply(tree, mutation):
    """Changes the source; returns what it was, or None where the text is not there exactly once."""
    _, name, old, new = mutation
    path = tree / name
    was = path.read_text()
    if was.count(old) != 1:
        return None
    path.write_text(was.replace(old, new))
    return was


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="mutations whose description has this text")
    parser.add_argument("--work", help="scratch folder to keep (default: a temporary one)")
    parser.add_argument("--list", action="store_true", help="say which mutations still apply, and build nothing")
    options = parser.parse_args()

    chosen = [m for m in MUTATIONS if options.only in m[0]]
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="epigrad-mutate-"))
    tree, build = work / "tree", work / "build"
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    bad = 0
    if not options.list:
        configure(tree, build)
        clean = verdict(build)
        if clean is not None:
            sys.exit(f"the tests do not pass without a mutation: {clean}")
    print("| mutation | file | caught by |\n|---|---|---|", flush=True)
    for mutation in chosen:
        was = apply(tree, mutation)
        if was is None:
            result = "**its text is gone**"
        elif options.list:
            result = "applies"
        else:
            caught = verdict(build)
            result = caught if caught is not None else "**survived**"
        bad += result.startswith("**")
        print(f"| {mutation[0]} | {mutation[1]} | {result} |", flush=True)
        if was is not None:
            (tree / mutation[1]).write_text(was)
    if not options.work:
        shutil.rmtree(work)
    print(f"\n{len(chosen) - bad} of {len(chosen)} {'apply' if options.list else 'caught'}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

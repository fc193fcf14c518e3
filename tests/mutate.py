#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Breaks the library on purpose, one small change at a time, and sees that the tests notice.

    tests/mutate.py [--only WORD] [--work DIR] [--list] [--campaign CASES]

Each mutation is a replacement of one piece of source text, in a scratch copy of the tree. The copy is built
and tested; the table printed at the end (Markdown, for docs/lab/mutations.md) names the first test that failed.
With --campaign, only the campaign runs: so many cases as it is, at each level of instruction sets and on the
emulated tiles, one after the other; what it does not look at, such as validation, survives.
Exits with 1 if a mutation survives, or if its text is no longer in the source exactly once.
"""
import argparse
import os
import pathlib
import re
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
     "col < b->col + b->cols; col += x->nr", "col + 1 < b->col + b->cols; col += x->nr"),
    ("only the last item of a summed batch counts", "src/cpu/gemm.c",
     ".first = summand == 0 && i == 0", ".first = i == 0"),
    ("only the last pass over a long depth counts", "src/cpu/gemm.c",
     ".first = summand == 0 && i == 0", ".first = summand == 0"),
    ("a pass reads past the end of the depth", "src/cpu/gemm.c",
     ".depth = eg_least(kc, x->depth - i * kc)", ".depth = eg_least(kc, x->depth - i * kc + 1)"),
    ("a broadcast operand is read as a batch", "src/cpu/gemm.c",
     "if (!eg_is_batched(view)) s->item = 0;", ""),
    ("every item of a batch in place is the first", "src/cpu/gemm.c",
     "s->item = times(x->batch_stride, size);", ""),
    ("b is not transposed for d_a", "src/cpu/pack.c",
     "const eg_operand xt = eg_cpu_transpose(*x);", "const eg_operand xt = *x;"),
    ("fused packing begins every pass at the first k", "src/cpu/pack.c",
     "eg_cpu_at(x, item, part->k, part->col), x->dtype", "eg_cpu_at(x, item, 0, part->col), x->dtype"),
    ("the workspace has no room for stride padding", "src/cpu/compile.c",
     "__builtin_mul_overflow(panels.stride, panels.panels", "__builtin_mul_overflow(panels.rows, panels.panels"),
    ("all threads share one scratch", "src/cpu/gemm.c",
     "eg_cpu_scratch(x->run, thread)", "eg_cpu_scratch(x->run, 0 * thread)"),
    ("threads: the caller waits for no worker", "src/cpu/pool_pthread.c",
     "        wait_until_done(pool, threads);\n", ""),
    ("threads: a child counts its parent's as its own", "src/cpu/pool_pthread.c",
     "__atomic_fetch_add(&forks, 1, __ATOMIC_RELAXED)", "(void)forks"),
    ("threads: one that cannot be made is counted", "src/cpu/pool_pthread.c",
     "make_worker(pool, pool->made)) pool->made++", "(make_worker(pool, pool->made), true)) pool->made++"),
    ("threads: a caller's pool that runs no task leaves the work undone", "src/cpu/threads.c",
     "        run_ranges(&work, 0); /* what", "        /* what"),
    ("threads: closing a context leaves them", "src/cpu/pool_pthread.c",
     "if (!is_forked(pool)) join_workers(pool);\n    const eg_allocator allocator = pool->allocator;\n"
     "    allocator.free(pool, allocator.user);", "(void)join_workers;"),
    ("a group that limits others inside of it is not asked", "src/cpu/cores.c",
     "        *slash = '\\0';\n", "        return limit;\n"),
    ("KC depends on the number of threads", "src/cpu/blocking.c",
     "out.kc = even_kc(kernel, x, largest_kc(kernel, x, fused));",
     "out.kc = even_kc(kernel, x, largest_kc(kernel, x, fused)) -"
     " (out.threads > 1 ? kernel->blocking.kc_multiple : 0);"),
    ("a pack of b changes KC", "src/cpu/blocking.c",
     "eg_cpu_is_amx(kernel) ? fused : has_all_rows(kernel, x) && !x->left.transposed;", "fused;"),
    ("AMX: runs end with a pass, wherever that is", "src/cpu/kernel_amx.c",
     ".kc_multiple = RUN_DEPTH,", ".kc_multiple = EG_AMX_BLOCK,"),
    ("with several passes tiles take turns too", "src/cpu/blocking.c",
     "out.single_pass = is_single_pass(x, out.kc);", "out.single_pass = x->summed <= 1;"),
    ("a tile is summed where the epilogue of the one before it runs", "src/cpu/gemm.c",
     "x->single_pass ? place & in_turn : place", "x->single_pass ? 0 : place"),
    ("AMX: one of the six products is left out", "src/cpu/amx_multiply.h",
     "load_left(m, 2, products), dot(m, products, wide);", ""),
    ("AMX: what is stored non-temporally is not unscaled", "src/cpu/kernel_amx.c",
     "non_temporal, UNSCALE(bf16_terms));", "non_temporal, non_temporal ? 1 : UNSCALE(bf16_terms));"),
    ("the micro-panel after a summand's last is beyond its depth", "src/cpu/gemm.c",
     "if (next.k >= x->depth) next.k = 0, ++*item;", ""),
    ("AMX: infinities are split", "src/cpu/amx_split.h", "largest = 0x4c800000;", "largest = 0x7fffffff;"),
    ("AMX: rows of grad_pre are not added up", "src/cpu/kernel_amx.c", "sum[j] += x;", ""),
    ("AMX: the first bias of a row is left out", "src/cpu/kernel_amx.c",
     "of->propagate;\n    const EG_T bias[2] = {EG_V(load)(of->bias), EG",
     "of->propagate;\n    const EG_T bias[2] = {{0}, EG"),
    ("AMX: rows of pre go where those of y do", "src/cpu/kernel_amx.c", "pre += of->pre_step;", "pre += of->out_step;"),
    ("AMX: rows of y are not unscaled", "src/cpu/kernel_amx.c",
     "(bf16_terms > 1 ? x[j] * UNSCALE(bf16_terms) : x[j]) + bias[j]", "x[j] + bias[j]"),
    ("non-temporal: pre is not stored", "src/cpu/epilogue.c",
     "deliver(e, e->pre, &t->tile, t->tile.spare);", "if (!e->non_temporal) deliver(e, e->pre, &t->tile, t->tile.spare);"),
    ("a derivative table is the same on both sides of 0", "src/cpu/vector.h",
     "(EG_T)((EG_I)odd ^ ((EG_I)x & ~EG_ABS_MASK))", "odd"),
    ("a derivative table lacks its highest power", "src/cpu/vector.h",
     "odd = i == table->degree ? power :", "odd = i == table->degree ? (EG_T){0} :"),
    # Layouts and memory.
    ("row and column strides are swapped", "src/core/validate_operand.c",
     "operand->row_stride = row_major ? stride : 1;", "operand->row_stride = row_major ? 1 : stride;"),
    ("element addresses are computed in 32 bits", "src/cpu/cpu.h",
     "eg_item_at(x->batch_stride, x->outer, item) + row * x->row_stride + col * x->col_stride;",
     "(int)(eg_item_at(x->batch_stride, x->outer, item) + row * x->row_stride + col * x->col_stride);"),
    ("loading reads one element past a row", "src/cpu/dense_rows.h",
     "EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols);",
     "EG_V(load_row)(tile + i * EG_NR, src + i * row_bytes, dtype, 1, cols < EG_NR ? cols + 1 : cols);"),
    ("storing writes one element past a row", "src/cpu/dense_rows.h",
     "EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols);",
     "EG_V(store_row)(dst + i * row_bytes, tile + i * EG_NR, dtype, 1, cols < EG_NR ? cols + 1 : cols);"),
    ("the workspace is one tile short", "src/cpu/compile.c",
     "most += eg_cpu_spare_numbers(kernel);",
     "most += eg_cpu_spare_numbers(kernel) - (int64_t)kernel->micro.mr * kernel->micro.nr;"),
    ("a failed growth forgets that the workspace is gone", "src/core/api.c",
     "    context->workspace_bytes = 0;\n", ""),
    # Epilogues.
    ("recompute leaves out the bias", "src/cpu/epilogue.c",
     "e->bias = bind_term(e, op, EG_TERM_BIAS, &e->bias_row);", "e->bias = NULL;"),
    ("the saved pre lacks the bias", "src/cpu/elementwise.h",
     "EG_V(give)(&s.pre, &g, x);", "EG_V(take)(other, &s.x, &g), EG_V(give)(&s.pre, &g, other);"),
    ("the residual is subtracted", "src/cpu/elementwise.h", "x[u] += other[u];", "x[u] -= other[u];"),
    ("a column-major tile of the matrix unit is stored as if it were square", "src/cpu/epilogue.c",
     "tile->cols, tile->rows, e->non_temporal);", "EG_AMX_BLOCK, tile->rows, e->non_temporal);"),
    ("a column-major tile's last rows are those of another column", "src/cpu/tile_template.h",
     "turned[j * EG_NR + i] = tile[i * EG_NR + col + j];", "turned[j * EG_NR + i] = tile[i * EG_NR + col];"),
    ("few columns: every micro-panel of a block has the first one's sums", "src/cpu/few_rows.c",
     "number = panel * tile->cols * nr + (at - panel * nr);", "number = at - panel * nr;"),
    ("few columns: only the first k of a group are laid out", "src/cpu/few_rows.c",
     "const int64_t count = eg_least(nr, end - k);", "const int64_t count = eg_least(4, end - k);"),
    ("few columns: the scratch has no room for the left operand", "src/cpu/blocking.c",
     " + gathered_numbers(kernel, rows, step->k_block);", " + 0 * gathered_numbers(kernel, rows, step->k_block);"),
    ("dot products: of fewer than four columns, some are added twice", "src/cpu/dot_template.h",
     "c < EG_V(dot_cols) && c < cols;", "c < EG_V(dot_cols);"),
    ("dot products: the last k are left out", "src/cpu/dot_template.h", "j * EG_LANES < k;", "j * EG_LANES < k - 1;"),
    ("outer products: every micro-panel has the first one's numbers", "src/cpu/outer_product.c",
     "x->b.at = (const char *)x->b.at + x->right_panel;", ""),
    ("outer products: a transposed left operand is one micro-panel", "src/cpu/outer_product.c",
     "return job->a.panels != NULL ? nr - (row - eg_div(row, nr) * nr) : nr;", "return EG_CPU_CHUNK;"),
    ("outer products: the second micro-panel of a tile has the first one's numbers", "src/cpu/outer_template.h",
     "right + p * panel + k * EG_NR", "right + k * EG_NR"),
    ("outer products: a last tile has all its rows", "src/cpu/outer_template.h",
     "rows_left < rows ? rows_left : rows", "rows"),
    ("a column that is turned has a bias as long as itself", "src/cpu/compile.c",
     "term->view.cols = op->cols, term->view.col_stride = term->view.row_stride = 0;", "term->view.cols = op->cols;"),
    ("AMX, few rows: the last k is left out", "src/cpu/amx_few_rows.h",
     "const __mmask32 some = mask_below(count);", "const __mmask32 some = mask_below(count - 1);"),
    ("AMX, few rows: rows beyond 16 are the first again", "src/cpu/amx_few_rows.h",
     "EG_TILE_LOAD(7, left + TILE_BYTES, PAIRS_STRIDE);", "EG_TILE_LOAD(7, left, PAIRS_STRIDE);"),
    ("dots of bf16: the last of an odd number of k is left out", "src/cpu/bf16_dots.h",
     "dot_pairs(sum, &left, right, (depth + 1) / 2,", "dot_pairs(sum, &left, right, depth / 2,"),
    ("dots of bf16: of five to eight rows four are multiplied", "src/cpu/bf16_dots.h",
     "rows > DOT_LEAST_ROWS; rows -= DOT_ROWS", "rows > DOT_ROWS; rows -= DOT_ROWS"),
    ("dots of bf16: rows in place are as near as packed ones", "src/cpu/bf16_dots.h",
     ".step = in_place != 0 ? in_place : PAIRS_STRIDE,", ".step = PAIRS_STRIDE,"),
    ("dots of bf16, few rows: only the last part of a pack counts", "src/cpu/bf16_dots.h",
     "k > 0 ? to : NULL", "NULL"),
    ("dots of bf16, few rows: four lie as a right operand", "src/cpu/few_rows.c",
     "job->product.rows > job->kernel->micro.rows_along_k", "job->product.rows >= job->kernel->micro.rows_along_k"),
    ("few rows: every micro-panel of a pack is the first", "src/cpu/few_rows.c",
     "job->part.panel_bytes = job->right_panel;", "job->part.panel_bytes = 0;"),
    ("a column of a gradient that a map packs is computed as a row", "src/cpu/compile.c",
     "if (is_gradient(op->left.id) || is_gradient(op->right.id)) return false;", ""),
    ("block fusion: a map has other blocks than the product before it", "src/cpu/map.c",
     "if (step->tile_rows > 0) job->band = step->tile_rows, job->segment = step->tile_cols;", ""),
    ("block fusion: the last step of the same blocks is left out", "src/cpu/backend.c",
     "i < fused->count; i++) fused->part", "i + 1 < fused->count; i++) fused->part"),
    ("block fusion: blocks are larger than their scratch", "src/cpu/block_fusion.c",
     "eg_cpu_detail(step)->single_pass || same", "true || same"),
    ("a map leaves out the last columns of a segment", "src/cpu/map.c",
     "tile.col < col + cols; tile.col += nr", "tile.col + 1 < col + cols; tile.col += nr"),
    ("16-bit packs: rows beyond the first nr are its first again", "src/cpu/pack.c",
     "rows -= nr, from += from_bytes)", "rows -= nr)"),
    ("d_b does not accumulate", "src/cpu/epilogue.c", "e->other = op->accumulate ? e->out : NULL;", "e->other = NULL;"),
    ("d_bias does not accumulate", "src/cpu/map.c", "if (job->accumulate) {", "if (false) {"),
    ("d_bias misses all but the first item's chunks", "src/cpu/map.c",
     ".rows = eg_cpu_chunks(sums->rows) * sums->items,", ".rows = eg_cpu_chunks(sums->rows),"),
    ("a chunk's column sums start from what was there", "src/cpu/epilogue.c",
     "if (tile->row % EG_CPU_CHUNK == 0) memset", "if (tile->row == 0) memset"),
    ("column sums are read without their padding", "src/cpu/map.c",
     ".width = panels * detail->kernel->micro.nr,", ".width = op->cols,"),
    ("a chain from y is treated as one from pre", "src/cpu/epilogue.c",
     "(term->of_y ? e->kernel->epilogue.act_grad_y : e->kernel->epilogue.act_grad)", "(e->kernel->epilogue.act_grad)"),
    # Activations and numbers.
    ("tanh has the wrong sign", "include/epigrad/activation.h",
     "EG_SELECT(x > EG_C(0.0), -t, t)", "EG_SELECT(x > EG_C(0.0), t, -t)"),
    ("gelu's constant has five digits", "include/epigrad/activation.h",
     "EG_FMA(c2, EG_C(7.1354816272600250e-2 *", "EG_FMA(c2, EG_C(7.1355e-2 *"),
    ("gelu' is not clamped", "include/epigrad/activation.h",
     "EG_LET_GELU(EG_CLAMP(x, EG_GELU_END))", "EG_LET_GELU(x)"),
    ("relu'(0) is 1", "include/epigrad/activation.h",
     "EG_FN(act_grad_relu, x) EG_RETURN(EG_SELECT(x > EG_C(0.0), EG_C(1.0), EG_C(0.0)))",
     "EG_FN(act_grad_relu, x) EG_RETURN(EG_SELECT(x < EG_C(0.0), EG_C(0.0), EG_C(1.0)))"),
    ("act'(NaN) is always NaN", "src/cpu/elementwise.h",
     "(EG_I){0} - (EG_V(word))of->propagate;", "~(EG_I){0};"),
    ("act(NaN) is what the formula gives", "src/cpu/elementwise.h",
     "EG_V(unless_nan)(x[u], act(x[u]), ~(EG_I){0})", "act(x[u])"),
    ("f64 exponentials lose a term", "include/epigrad/activation.h",
     "EG_STEP(2.0876756987868098979e-9,", "EG_STEP(0.0,"),
    ("bf16 is truncated", "src/core/half.h", "(bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16", "bits >> 16"),
    ("bf16 ties go up", "src/core/half.h", "(bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16", "(bits + 0x8000U) >> 16"),
    ("f16 stores truncate", "src/cpu/tile_template.h", "_MM_FROUND_TO_NEAREST_INT", "_MM_FROUND_TO_ZERO"),
    ("f64 to f16 rounds twice", "src/core/convert.c",
     "eg_f16_of_f32(eg_f32_odd_of_f64(x))", "eg_f16_of_f32((float)x)"),
    # Validation, plans, packs.
    ("overlaps pass", "src/core/validate.c",
     "if (verdict != EG_APART) return", "if (verdict == EG_APART) return"),
    ("a leading dimension may be one too small", "src/core/validate_operand.c", "if (ld < least_ld) {", "if (ld + 1 < least_ld) {"),
    ("a batch with its own d_b is folded into rows", "src/core/fold.c",
     "{EG_OP_B, EG_OP_D_B, EG_OP_B_UP, EG_OP_D_B_UP}", "{EG_OP_B, EG_OP_B_UP, EG_OP_D_B_UP}"),
    ("a batch with its own b_up is folded into rows", "src/core/fold.c",
     "{EG_OP_B, EG_OP_D_B, EG_OP_B_UP, EG_OP_D_B_UP}", "{EG_OP_B, EG_OP_D_B, EG_OP_D_B_UP}"),
    ("d_a is computed though nobody wants it", "src/core/lower_layer.c",
     "    if (!eg_wants(p, EG_OP_D_A)) return;", "    if (!eg_wants(p, EG_OP_D_A) && !eg_wants(p, EG_OP_D_B)) return;"),
    # What is added.
    ("d_a of a gated unit lacks the residual", "src/core/lower_layer.c",
     "eg_add_view_term(&gate, EG_TERM_ADD, eg_operand_view(p, EG_OP_D_A_RESIDUAL));", ""),
    ("a chain leaves out the residual", "src/core/lower_layer.c",
     "eg_wants(p, EG_OP_BELOW) && eg_wants(p, EG_OP_D_A_RESIDUAL);", "false;"),
    ("f32 on AMX: B may be refused when d_a has been added to", "src/cpu/blocking.c",
     "return !eg_cpu_may_refuse(kernel) || eg_term_of(op, EG_TERM_ADD) == NULL;", "return true;"),
    ("d_bias is added to where d_b is", "src/core/validate.c", "[EG_OP_D_BIAS] = EG_INTO_D_BIAS", "[EG_OP_D_BIAS] = EG_INTO_D_B"),
    ("accumulate adds to d_a, too", "src/core/validate.c",
     "EG_OP_D_A_RESIDUAL, &args->residual, args->outer.residual)",
     "EG_OP_D_A_RESIDUAL, args->accumulate ? &args->d_a : &args->residual, args->outer.residual)"),
    ("one residual is taken for all items where each has its own", "src/core/validate.c",
     "!eg_has_items(d_a) && eg_has_items(residual)", "false"),
    # Two levels of a batch.
    ("the outer stride is not used", "src/core/problem.h", "return whole * outer.stride +", "return whole * 0 +"),
    ("levels that cross are folded", "src/core/fold.c", "(which != ALL || x->outer.inner == 0)", "true"),
    # The scale.
    ("d_b has no scale", "src/core/lower_layer.c", "    op.out = out;\n    add_scale(p, &op);\n", "    op.out = out;\n"),
    ("d_a has no scale", "src/core/lower_layer.c", "    op.right = eg_transposed(eg_view_of_b(p, b));\n    add_scale(p, &op);\n",
     "    op.right = eg_transposed(eg_view_of_b(p, b));\n"),
    ("a recomputed pre has no scale", "src/core/lower_layer.c", "    op.right = eg_view_of_b(p, b);\n    add_scale(p, &op);\n",
     "    op.right = eg_view_of_b(p, b);\n"),
    ("the last rows of a tile are not scaled", "src/cpu/epilogue.c",
     "const int64_t count = tile->rows * e->kernel->micro.nr;", "const int64_t count = (tile->rows - 1) * e->kernel->micro.nr;"),
    ("a tile is scaled before the matrix unit has stored it", "src/cpu/epilogue.c",
     "    t->waits_for_scale = e->scale != 1;\n", "    t->waits_for_scale = e->scale != 1;\n    if (t->waits_for_scale) scale_tile(t);\n"),
    ("a scaled tile is stored past its epilogue", "src/cpu/gemm.c",
     "x->out != NULL && op->terms == 0 && !is_amx", "x->out != NULL && eg_is_bare(op) && !is_amx"),
    ("programs are told apart by all but the scale", "src/core/cache.c", "    add_number(key, p->scale);\n", "    add_number(key, 1);\n"),
    ("WebGPU: parts of a product are scaled again", "src/webgpu/compile.c", "    epilogue.scaled = false; /* the parts are */\n", ""),
    # Gated units.
    ("a gated unit adds its factor", "src/cpu/elementwise.h", "x[u] *= other[u];", "x[u] += other[u];"),
    ("a gated unit's factor is not packed for the products", "src/cpu/elementwise.h",
     "EG_EACH_ROW(u) EG_V(store)(result + (g.alone ? 0 : u * s.tile_row), x[u]);", "(void)result;"),
    ("d_a of a gated unit lacks the other half", "src/core/lower_layer.c",
     "up.accumulate = in_result || chain;", "up.accumulate = false;"),
    ("the gate's gradient lacks act'", "src/core/lower_layer.c",
     ".view = pre,\n                                   .activation = p->activation,",
     ".view = pre,\n                                   .activation = EG_ACT_NONE,"),
    ("the gradient of b_up is that of the gate", "src/core/lower_layer.c",
     "lower_d_b(p, list, x.up, EG_OP_D_B_UP,", "lower_d_b(p, list, x.gate, EG_OP_D_B_UP,"),
    ("grad_pre is written before the other half has read grad", "src/core/lower_layer.c",
     "eg_op op = map_of_gate(p, pre, p->activation, grad);",
     "eg_op op = map_of_gate(p, pre, p->activation, eg_wants(p, EG_OP_GRAD_PRE) ? operand(p, EG_OP_GRAD_PRE) : grad);"),
    ("a chain to a gated unit writes y without its factor", "src/core/lower_layer.c",
     "eg_op y = map_of_gate(p, gate, p->below_activation, up);",
     "eg_op y = map_of_gate(p, gate, p->below_activation, d_y);"),
    ("a chunk's buffers are as long as the call's", "src/core/low_memory_chunk.c",
     "list->buffer[i].rows = c->rows;", ""),
    ("items of a chunk's buffer are apart as in the call", "src/core/low_memory_chunk.c",
     "        x->batch_stride = rows * x->row_stride;\n", "        x->batch_stride += 0;\n"),
    ("buffers lie over what kernels use", "src/core/program.c", "program->workspace = end;\n    }\n    return true;",
     "(void)end;\n    }\n    return true;"),
    ("b_up is read from the pack of b", "src/core/program.h",
     "return id == EG_OP_B_UP ? call->packed_b_up : call->packed_b;", "return (void)id, call->packed_b;"),
    ("fields that an older caller lacks are read", "src/core/validate_struct.c",
     "    memcpy(copy, *given, size);\n    *given = copy;\n", "    memcpy(copy, *given, size);\n"),
    ("what sums nothing reads its operands", "src/core/lower_ops.c",
     "added->left = added->right = (eg_view){.space = EG_ABSENT};", ""),
    ("programs are told apart by all but their leading dimensions", "src/core/cache.c",
     "word[1] = (uint64_t)x->row_stride;", "word[1] = 0;"),
    ("programs are told apart by all but what adds", "src/core/cache.c", "(uint64_t)p->accumulate << 40", "0U"),
    ("chunks' programs are told apart by all but their views", "src/core/cache.c",
     "add(key, (uint64_t)x->rows);", ""),
    ("a refused program's numbers are taken by nothing", "src/core/cache.c", "    refused = false;\n    EG_TRY(find_program", "    EG_TRY(find_program"),
    # Groups.
    ("groups: each begins at the first row", "src/core/groups.c", "? (uint64_t)first *", "? (uint64_t)(first & 0) *"),
    ("groups: all have the b of the first", "src/core/groups.c", ": (uint64_t)group *", ": (uint64_t)0 *"),
    ("groups: all read the first matrix of a pack", "src/core/groups.c", "call->pack_item = group;", "call->pack_item = 0;"),
    ("groups: a pack's matrices lie closer", "src/cpu/packed.c", "(size_t)(grid.rows * grid.row_pitch)", "(size_t)(grid.rows * grid.cols)"),
    ("groups: ends may descend", "src/core/groups.c", "if (end < before || end", "if (end < 0 || end"),
    ("groups: ends may be past the rows", "src/core/groups.c", "end < before || end > problem->m", "end < before"),
    ("groups: one has a row more than its class", "src/core/groups.c", "while (of->rows < rows)", "while (of->rows + 1 < rows)"),
    ("groups: a group has the rows of its class", "src/cpu/groups.c", "    x->run.list = &x->list;\n", ""),
    ("groups: d_b sums as many rows as the class has", "src/core/groups.c", "op->kind == EG_REDUCE || op->axis == EG_AXIS_DEPTH", "op->kind == EG_REDUCE"),
    ("groups: a transposed product keeps the columns of the class", "src/cpu/compile.c", "    if (op->axis == EG_AXIS_ROWS) op->axis = EG_AXIS_COLS;\n", ""),
    ("groups: column sums of the class's rows", "src/core/groups.c", "out->temporary[i].rows = rows;", ";"),
    ("groups: AMX reads rows in place, past their end", "src/cpu/blocking.c", "return !op->ragged && left->space", "return left->space"),
    ("groups: two of a wave share their workspace", "src/cpu/groups.c", "        at += bytes;\n", ""),
    ("groups: scratch is that of the smallest class", "src/cpu/groups.c", "if (bytes > most) most = bytes;", "if (most == 0) most = bytes;"),
    ("groups: a wave is never ended for want of room", "src/cpu/groups.c", " || x.end - at < bytes", ""),
    ("groups: more than there is room for", "src/cpu/groups.c", "w->count == states_of(groups) ||", "w->count == states_of(groups) + 1 ||"),
    ("groups: one that was refused stays so", "src/cpu/groups.c", "if (again) run_steps(w);", "if (again && w->count < 0) run_steps(w);"),
    ("groups: all run again where one was refused", "src/cpu/groups.c", "        x->done = !x->refused;\n", ""),
    ("groups: an index counts from the first part", "src/cpu/groups.c", "low > 0 ? index - parts->end[low - 1] : index", "index"),
    ("groups on CUDA: a row tile is the next group's", "src/cuda/groups.h", "return begin / height + group;", "return begin / height + 0 * group;"),
    ("groups on CUDA: a tile has rows of the next group", "src/cuda/groups.h", "if (rows.end - rows.first > height) rows.end =", "rows.end ="),
    ("groups on CUDA: an end past the rows is taken", "src/cuda/groups.h", "return (uint32_t)begin < ends.rows ? (uint32_t)begin : ends.rows;", "return (uint32_t)begin;"),
    ("groups on CUDA: a group may end before it begins", "src/cuda/groups.h", "next > first ? next : first}", "next}"),
    ("groups on CUDA: ends may descend", "src/cuda/groups.h", "return end < before ||", "return (end < before && before < 0) ||"),
    ("groups on CUDA: too few row tiles", "src/cuda/groups.h", "return rows / height + groups;", "return rows / height + (groups > 0);"),
    ("groups on CUDA: a walk forgets the tiles behind it", "src/cuda/groups.h", "        walk->before += tiles;\n", ""),
    ("groups on CUDA: no room for the sums of few rows", "src/cuda/partition.c", "LEAST_CHUNK) + list->groups;", "LEAST_CHUNK);"),
    ("groups on CUDA: a temporary has an item a group", "src/cuda/parameters.c", "return items > 1 ? rows * ld : 0;", "return (void)items, rows * ld;"),
    ("groups on CUDA: a graph is found by other ends' address", "src/cuda/compile.c", "if (list->groups > 0) detail.names |=", "if (list->groups < 0) detail.names |="),
    ("groups on CUDA: wrong ends are not said", "src/cuda/backend.c", "if (*device->wrong == 0) return EG_OK;", "if (*device->wrong < 2) return EG_OK;"),
    ("CUDA's split tiles: no room to receive", "src/cuda/estimate.c", "EG_CUDA_TMA_SPLIT || splits > 1 ||", "EG_CUDA_TMA_SPLIT || splits > 8 ||"),
    ("CUDA's split tiles: a tile has less room than it takes", "src/cuda/estimate.c", "(int)(stages > tile ? stages : tile)", "(int)(tile > 0 ? stages : tile)"),
    ("CUDA's split tiles: stages of one summand", "src/cuda/estimate.c", "eg_least(eg_ceil_div(x->depth, row->k_block) * x->summed,", "eg_least(eg_ceil_div(x->depth, row->k_block),"),
    ("groups on CUDA: a kernel for plain layers takes groups", "src/cuda/takes.c", "return (row->takes & EG_CUDA_ROW_GROUPS) != 0;", "return true;"),
    ("d_b of groups: a k-block begins at the group's first row", "src/cuda/depth_groups.h", "{whole ? end - after : first,", "{first,"),
    ("d_b of groups: the first k-block has rows of the group before", "src/cuda/depth_groups.h", "whole ? 0 : (int32_t)(end - first) - (int32_t)after}", "0}"),
    ("d_b of groups: as many rows, the same place", "src/cuda/depth_groups.h", "|| (rows == of.end - of.first && i < group)", ""),
    ("d_b of groups: the smallest first", "src/cuda/depth_groups.h", "rank += rows > of.end", "rank += rows < of.end"),
    ("d_b of groups: each turn in the same order", "src/cuda/depth_groups.h", "turn % 2 == 0 ? cluster :", "turn % 2 < 2 ? cluster :"),
    ("d_b of groups: a tensor map has one item", "src/cuda/hopper.c", "sources = by_group ? x->depth :", "sources = by_group ? 1 :"),
    ("d_b of groups: items are of all rows", "src/cuda/hopper.c", "depth = by_group ? row->k_block :", "depth = by_group ? x->depth :"),
    ("d_b of groups: items do not begin at each row", "src/cuda/hopper.c", "x->right.item_stride = x->right.row_stride;", "x->right.item_stride = 2 * x->right.row_stride;"),
    ("groups on CUDA: both blocks load all of left", "src/cuda/hopper.c", "shares_left ? left_lines / 2 : left_lines", "left_lines"),
    ("groups on CUDA: clusters for tiles of two blocks' rows", "src/cuda/hopper.c", "rows = eg_cuda_cluster_rows(row), cols", "rows = 2 * row->tile_rows, cols"),
    ("chunks of a depth leave terms over", "src/cuda/parameters.c", "while (chunks > 1 && x->depth % chunks != 0) chunks--;", "(void)0;"),
    ("chunks are added up to a result with gaps", "src/cuda/parameters.c", "!one || !dense || tiles == 0", "!one || (dense && false) || tiles == 0"),
    ("the library's ReLU for any activation", "src/cuda/takes.c", "x->activation == EG_ACT_RELU &&", "x->activation != EG_ACT_NONE &&"),
    ("gated maps: the first of three is added alone", "src/cuda/compile.c", "} else if (is_first_of_gated(c, op)) {", "} else if (is_first_of_gated(c, op) || op > 0) {"),
    ("pairs: both saved matrices are the gate's", "src/cuda/pairs.c", "pair.up.in = maps.up,", "pair.up.in = maps.gate,"),
    ("pairs: sums of both go to one place", "src/cuda/pairs.c", "pair.up.sums = maps.sums_up;", "pair.up.sums = maps.sums_gate;"),
    ("pairs: rows that end inside a vector", "src/cuda/pairs.c", "return up->cols % 8 == 0 && up->cols <", "return up->cols <"),
    ("pairs: results are as wide as the tiles of both", "src/cuda/compile.c", "detail.tma_cols = eg_cuda_tma_cols(detail.kernel, &x.up);", "(void)0;"),
    ("gated maps: act' is taken from what is not the gate", "src/cuda/gated_maps.c", ".gate = up.left,", ".gate = product.left,"),
    ("gated maps: sums of both go to one place", "src/cuda/gated_maps.c", ".sums_up = up.sums,", ".sums_up = gate.sums,"),
    ("groups: matrices are as aligned as the first", "src/core/lower_ops.c", "    if (p->grouped)\n        at |=", "    if (false)\n        at |="),
    ("groups: an empty one clears a d_b that is added to", "src/core/lower_ops.c", "    if (sums_nothing && op->accumulate && eg_is_bare(op)) return;\n", ""),
    ("groups: d_b of all may be one", "src/core/validate_operand.c", "problem->grouped ? eg_operand_has_rows(id)", "problem->grouped ? true"),
    ("groups: vectors are one for all", "src/core/validate_operand.c", "return table[id].rows == ONE ? dim(problem, table[id].cols) : matrix->batch_stride;", "return matrix->batch_stride;"),
    ("groups: the programs of a context stay", "src/core/cache.c", "        eg_groups_free(context, cache->entries[i / WAYS][i % WAYS].groups);\n", "        (void)i;\n"),
    # Low memory.
    ("chunks: rows past the last full one are left out", "src/core/low_memory_run.c",
     "} while (row < x->problem.m);", "} while (row + x->rows <= x->problem.m);"),
    ("chunks: operands stay at their first row", "src/core/low_memory_run.c",
     "(eg_operand_has_rows((eg_operand_id)id) ? row * operand->row_stride : 0)", "0"),
    ("chunks: each one overwrites d_b", "src/core/low_memory_run.c", "c->row > 0 ? EG_BEGUN_ITEM", "false ? EG_BEGUN_ITEM"),
    ("chunks: each item of a batch overwrites d_bias", "src/core/low_memory_run.c", ": c->item > 0 ? EG_BEGUN_SHARED", ": false ? EG_BEGUN_SHARED"),
    ("chunks: d_b of the second item begins with what was there", "src/core/low_memory_chunk.c",
     "? EG_BEGUN_ITEM : EG_BEGUN_SHARED)", "? EG_BEGUN_SHARED : EG_BEGUN_SHARED)"),
    ("chunks: d_b of 16 bits is rounded after each", "src/core/low_memory_layout.c",
     "if (!sums || op->out.dtype == x->whole.compute) return true;", "return true;"),
    ("chunks: what d_b held is lost where it is rounded at the end", "src/core/low_memory_run.c",
     "    EG_TRY(copy_sums(r, false, 0, true));\n", ""),
    ("chunks: b of the first item is packed for all", "src/core/low_memory_run.c",
     "(item == 0 || eg_has_items(&x->problem.operands[EG_OP_B]))", "item == 0"),
    ("the last chunk may be a short one", "src/core/low_memory_fit.c", ": even_out(x, alone, best);", ": EG_OK;"),
    ("chunks: they depend on the number of threads", "src/core/low_memory_fit.c",
     "EG_TRY(choose_chunk(x, alone, best));", "EG_TRY(choose_chunk(x, x->caps.threads, best));"),
    ("chunks: the limit is passed by a byte", "src/core/low_memory_fit.c",
     "x->call->workspace <= x->limit", "x->call->workspace <= x->limit + 1"),
    ("chunks: they depend on what is in place", "src/core/low_memory_fit.c", "call->whole.in_place = false;", ""),
    ("chunks: calls seen before are told apart by all but their limit", "src/core/cache.c",
     "    add(key, limit);\n", ""),
    ("chunks: a result seen before holds no sums", "src/core/low_memory_fit.c", "if (known.in_result) call", "if (false) call"),
    ("chunks: the last one finds no room", "src/core/low_memory_layout.c",
     "    EG_TRY(take_chunk(caps, x, last_item(x), last_start(x->problem.m, x->rows), room));\n", ""),
    ("chunks: later calls have fewer threads", "src/core/low_memory_run.c",
     "    context->caps.threads = threads;\n    return status;", "    return status;"),
    ("chunks: sums of a batch that stays together have room for one item", "src/core/low_memory_layout.c",
     "bytes_of(per_item ? x->items : 1, out", "bytes_of(1, out"),
    ("two levels: an outer item is aligned like the first", "src/core/low_memory_chunk.c",
     "x->outer.stride * eg_size_of(x->dtype) | (uint64_t)x->align", "x->align"),
    ("cuda: column sums aside do not wait for what came before the call", "src/cuda/run.c",
     "if (beside) EG_TRY(follow(&run, stream, device->side, device->fork));", ""),
    ("few rows: a line that ends inside a vector is streamed", "src/cuda/takes.c",
     "return line % each == 0 && eg_cuda_is_aligned", "return line % each < each && eg_cuda_is_aligned"),
    ("few rows: a single row has a pitch", "src/cuda/takes.c", "if (x->rows == 1) left.row_stride = 0;", ""),
    ("two levels: a chunk reads the first matrix of a pack", "src/core/low_memory_run.c", "x->pack.bytes > 0 ? 0 : item;", "0;"),
    ("two levels: each outer item writes d_a anew", "src/core/low_memory_chunk.c",
     "!eg_sums_rows(op) && !eg_adds_items(x, whole)", "!eg_sums_rows(op)"),
    ("two levels: each outer item adds the residual", "src/core/low_memory_chunk.c",
     "begun >= EG_BEGUN_SHARED) leave_out", "begun > EG_BEGUN_SHARED) leave_out"),
    ("two levels: d_a is rounded after each outer item", "src/core/low_memory_layout.c",
     "eg_sums_rows(op) || eg_adds_items(x, op);", "eg_sums_rows(op);"),
    ("two levels: rows of a chunk add to d_a as if they were items", "src/core/low_memory_fit.c",
     "m > 0 && !all_rows ?", "m > 0 && (!all_rows || m > 1) ?"),
    ("sums in d_b: d_b leaves its memory from the first line on", "src/core/low_memory_run.c", "(before ? i : moves - 1 - i)", "i"),
    ("sums in d_b: what d_b held is taken from its last line on", "src/core/low_memory_run.c", "(before ? i : moves - 1 - i)", "(moves - 1 - i)"),
    ("sums in d_b: what its lines held is lost", "src/core/low_memory_run.c",
     "        if (split && before) EG_TRY(move_part(r, true));\n", ""),
    ("sums in d_b: lines in transit lie where copies work", "src/core/low_memory_layout.c",
     "x->workspace = x->chunk.offset + other;", "x->workspace = x->chunk.offset;"),
    ("sums in d_b: lines in transit have the type of their sums", "src/core/low_memory_chunk.c",
     "dense_at(out, EG_TRANSIT, out.dtype)", "dense_at(out, EG_TRANSIT, sums.dtype)"),
    ("sums in d_b: both are of the first lines", "src/core/low_memory_chunk.c", "first = in_result ? x->workspace_lines : 0", "first = 0"),
    ("sums in d_b: they fit wherever d_b begins", "src/core/low_memory_chunk.c", ": (lines - 1) / 2;", ": lines / 2;"),
    ("sums in d_b: a query knows where d_b begins", "src/core/low_memory_layout.c",
     "x->workspace_lines = eg_workspace_lines(eg_split_result(x), false);",
     "x->workspace_lines = eg_workspace_lines(eg_split_result(x), eg_unaligned(x) == 0);"),
    ("sums in d_b: of a d_b with gaps", "src/core/low_memory_chunk.c", "return dense && eg_work", "return (dense || true) && eg_work"),
    ("sums in d_b: of each item's d_b", "src/core/low_memory_chunk.c", " || op->items > 1) return false;", ") return false;"),
    ("sums in d_b: products in f32 read a grad_pre of 16 bits", "src/core/low_memory_chunk.c",
     "if (caps->rounds_grad_pre || !rounded) return i;", "return i;"),
    ("sums in d_b: for a few more rows", "src/core/low_memory_fit.c", "rows_of(chunk) >= 2 * rows", "rows_of(chunk) > rows"),
    ("a narrow micro-panel in place is read past the matrix", "src/cpu/gemm.c",
     "return x->right.in_place && (cols", "return false && (cols"),
    ("the last rows of a block in place are read past the matrix", "src/cpu/gemm.c",
     "return x->left.in_place && !eg_cpu_is_amx(x->kernel) &&", "return false &&"),
    ("the last rows in place are those of the first pass", "src/cpu/gemm.c",
     "first, pass->k + k), x->a.dtype", "first, k), x->a.dtype"),
    ("the last rows in place have the place of a narrow micro-panel", "src/cpu/gemm.c",
     "x->right.in_place || x->fused || x->widens", "x->fused || x->widens"),
    ("the work of threads that the system does not give is left undone", "src/cpu/threads.c",
     "for (int i = 0; i < work->count; i++) {\n        range", "for (int i = 0; i < 1; i++) {\n        range"),
    ("a pack says that it has a form which it lacks", "src/cpu/packed.c",
     "if (rows[i] == NULL) continue;", "if (rows[i] == NULL || i == 1) { pack->form[i].kernel = rows[i]; continue; }"),
    ("a map packs a gradient for a turned result", "src/cpu/compile.c",
     "|| is_gradient(op->left.id);", "|| (is_gradient(op->left.id) && op->rows < 0);"),
    ("a chunk that overwrites sums has the room of one that adds", "src/core/low_memory_layout.c",
     "for (int begun = 0; begun < EG_BEGUN_STATES; begun++)", "for (int begun = 1; begun < EG_BEGUN_STATES; begun++)"),
    ("a call takes a kernel that its pack has nothing for", "src/cpu/choose.c",
     "if (form == NULL || (right", "if (form != NULL && (right"),
    ("a b of another batch stride than its pack's is taken", "src/core/api.c",
     "packed->batched == eg_has_items(b)", "true"),
    ("column sums of chunks are added one after the other", "src/cpu/map.c",
     "enum { STRAIGHT = 8 };", "enum { STRAIGHT = 1 << 30 };"),
    ("the offset of the workspace is ignored", "src/core/api.c", "{given->data, given->offset};", "{given->data, 0};"),
    ("a batch of 0 is an empty one", "src/core/validate.c", "int64_t inner = layer->batch == 0 ? 1 : layer->batch", "int64_t inner = layer->batch"),
    ("windows of one buffer may overlap", "src/core/overlap.c", "shift >= length_x && shift", "shift > 0 && shift"),
    ("the gaps between a batch's windows do not count", "src/core/overlap.c",
     "if (problem->batch > 1 && (", "if (false && ("),
    ("strides one byte too long are absorbed", "src/core/overlap.c",
     "s->term[done].stride - 1 <= s->high - s->low", "s->term[done].stride - 2 <= s->high - s->low"),
    ("strides that are too far apart are merged", "src/core/overlap.c",
     "ratio - 1 <= inner->count", "ratio - 2 <= inner->count"),
    ("of two strides only the ends are looked at", "src/core/overlap.c",
     "if (first > last) return false;", "if (first <= last) return false;"),
    ("the largest stride is tried once", "src/core/overlap.c", "n <= last && *tries > 0", "n < last && *tries > 0"),
    ("items of a batch may meet", "src/core/overlap.c",
     "add_term(&s, x->row_stride, 2 * (x->rows - 1));", "add_term(&s, x->row_stride, x->rows - 1);"),
    ("an offset of half the address space passes", "src/core/validate_operand.c",
     "if (offset > (uint64_t)furthest || bytes > (uint64_t)furthest - offset) return true;", ""),
    ("a pre that recompute does not read passes", "src/core/validate.c",
     "if (args->pre.data == NULL && args->y.data == NULL) return EG_OK;", "return EG_OK;"),
    ("a kernel that no row is called passes", "src/core/api.c",
     "if (context->only_kernel == NULL) return EG_OK;", "return EG_OK;"),
    ("updating a pack does nothing", "src/core/api.c",
     "return context->ops->pack(context, &problem, packed);", "return EG_OK;"),
    ("a pack of another k is taken", "src/core/api.c", "layer->k != problem->k || ", ""),
    # Several processes.
    ("ranks: a mismatch of sizes is not looked for", "src/distributed/collectives.c",
     "word = SAYS_K; word < last", "word = SAYS_N; word < last"),
    ("ranks: the last one's word is not read", "src/distributed/collectives.c",
     "for (int rank = 1; rank < x->comm->ranks; rank++)", "for (int rank = 1; rank + 1 < x->comm->ranks; rank++)"),
    ("ranks: one overlaps because it would gain itself", "src/distributed/collectives.c",
     "overlaps = overlaps && says[SAYS_OVERLAP] != 0;", "overlaps = x->words[SAYS_OVERLAP] != 0;"),
    ("ranks: a call that is refused tells nobody", "src/core/api.c",
     "if (status != EG_OK && !begun) eg_collectives_refuse(eg_comm_of_backward(args));", ""),
    ("ranks: a forward call that is refused tells nobody", "src/core/api.c",
     "if (status != EG_OK && !begun) eg_collectives_refuse(eg_comm_of_forward(args));", ""),
    ("ranks: a wait has no end", "src/distributed/collectives.c",
     "if (eg_seconds() - begin > timeout_of(comm)) return", "if (eg_seconds() - begin > 1e9) return"),
    ("ranks: what is sent at once is not waited for", "src/distributed/collectives.c",
     "return x->words != NULL ? wait_for_all(x->comm, what) : EG_OK;", "return EG_OK;"),
    ("ranks: the sum is added before it is whole", "src/core/lower_exchange.c",
     "x.result.dtype == by->sums && !eg_adds_to(p, id);", "x.result.dtype == by->sums;"),
    ("ranks: a short shard is written straight", "src/core/lower_exchange.c",
     "(by->sharded && mine < each);", "(by->sharded && mine > each);"),
    ("ranks: a copy does not add", "src/cpu/epilogue.c",
     "e->out = e->other = bind(e, &op->out, &e->result);", "e->out = bind(e, &op->out, &e->result);"),
    ("ranks: groups of rows overlap by one", "src/cpu/gemm.c",
     "x->first = step->rows.first,", "x->first = step->rows.first > 0 ? step->rows.first + 1 : 0,"),
    ("ranks: a group is sent before it is made", "src/core/op.h",
     "units * group / groups * UNIT,", "units * (group > 0 ? 0 : group) / groups * UNIT,"),
    ("ranks: the mean is a sum", "src/distributed/collectives.c",
     "by->mean ? EG_REDUCTION_MEAN : EG_REDUCTION_SUM", "EG_REDUCTION_SUM"),
    ("ranks: programs do not depend on the reduction", "src/core/cache.c",
     "if (p->comm != NULL) sign_exchange(", "if (p->comm == NULL) sign_exchange("),
    ("ranks: d_bias is not sent", "src/core/lower_layer.c",
     "    eg_lower_sum(p, list, &here->gradient);\n", ""),
    ("parts: what arrives is packed before it is there", "src/cpu/compile.c",
     "if (op->kind != EG_GEMM || eg_arrives(right ? &op->right : &op->left)) continue;",
     "if (op->kind != EG_GEMM) continue;"),
    ("parts: all groups are packed as one", "src/core/lower_tensor.c", "op.left.id = EG_ROW_GROUP + group;", ""),
    ("parts: a product does not wait for its group", "src/core/lower_tensor.c",
     "    for (int i = 0; i < list->row_groups; i++) {\n        eg_lower_finish(list);\n        if (i + 1 < list->row_groups) "
     "gather(p, list, &local, &whole, i + 1);", "    for (int i = 0; i < list->row_groups; i++) {\n        if (i + 1 < "
     "list->row_groups) gather(p, list, &local, &whole, i + 1);"),
    ("parts: a group is read at the first rank's rows alone", "src/core/lower_tensor.c",
     "x.batch_stride = times(rows_of_rank(p), x.row_stride);", "x.batch_stride = 0;"),
    ("parts: each rank adds the bias", "src/core/lower_tensor.c",
     "    forget(&q, EG_OP_BIAS), forget(&q, EG_OP_RESIDUAL)", "    forget(&q, EG_OP_RESIDUAL)"),
    ("parts: d_a is sent with its residual", "src/core/lower_tensor.c",
     "        forget(&q, EG_OP_D_A_RESIDUAL);\n", ""),
    ("parts: d_bias is of this rank's rows alone", "src/core/lower_exchange.c",
     " || id == EG_OP_D_BIAS;", ";"),
    ("parts: a is not waited for before d_b", "src/core/lower_tensor.c",
     "    if (gathers && !early) eg_lower_finish(list);\n", ""),
    ("parts: a call that is taken up again sends again", "src/distributed/collectives.c",
     "    if (x->at++ < x->sent) return EG_OK;\n", "    x->at++;\n"),
    ("parts: groups run where a rank gains nothing", "src/core/cache.c",
     "agreed.exchange.order = EG_COMM_ORDER_PLAIN;", ""),
    ("parts: there is no room for the plain program", "src/core/cache.c",
     "if (other.workspace > program->workspace) program->workspace = other.workspace;\n    program->plain", "program->plain"),
    ("parts: rows that do not divide pass", "src/core/validate_comm.c",
     "if (problem->m % given->comm->ranks == 0) return EG_OK;", "return EG_OK;"),
    ("parts: programs do not depend on the split", "src/core/cache.c",
     "add(key, (uint64_t)x->parallel | (uint64_t)x->streams", "add(key, (uint64_t)x->streams"),
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
    long = "^table_cpu_row_|^table_emulated|^activation$|^concurrency$"
    for chosen in (["-E", long], ["-R", long]):
        tested = run([*base, *chosen])
        if tested.returncode != 0:
            return first_failure(tested.stdout) or "(ctest failed)"
    return None


def campaign_verdict(build, cases):
    """The first program of the campaign that fails, and its case; None if all pass."""
    built = run(["cmake", "--build", build, "-j", "2", "--target", "campaign", "campaign_emulated"])
    if built.returncode != 0:
        return "(does not compile)"
    levels = ("", "avx512", "avx2", "portable")
    programs = [("campaign", level) for level in levels] + [("campaign_emulated", "")]
    for program, level in programs:
        environment = {**os.environ, "EPIGRAD_CPU_ISA": level}
        tested = run([build / "tests/campaign" / program, "--cases", str(cases)], env=environment)
        if tested.returncode != 0:
            case = re.search(r"--case (\S+)", tested.stdout)
            return f"{program} {level}".strip() + (f", case {case.group(1)}" if case else "")
    return None


def apply(tree, mutation):
    """Changes the source; returns what it was, or None where the text is not there exactly once."""
    _, name, old, new = mutation
    path = tree / name
    was = path.read_text() if path.is_file() else ""
    if was.count(old) != 1:
        return None
    path.write_text(was.replace(old, new))
    return was


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="mutations whose description has this text")
    parser.add_argument("--work", help="scratch folder to keep (default: a temporary one)")
    parser.add_argument("--list", action="store_true", help="say which mutations still apply, and build nothing")
    parser.add_argument("--campaign", type=int, metavar="CASES", help="run so many cases of the campaign, no other test")
    options = parser.parse_args()

    def verdict_of(build):
        return campaign_verdict(build, options.campaign) if options.campaign else verdict(build)

    chosen = [m for m in MUTATIONS if options.only in m[0]]
    work = pathlib.Path(options.work or tempfile.mkdtemp(prefix="epigrad-mutate-"))
    tree, build = work / "tree", work / "build"
    shutil.rmtree(tree, ignore_errors=True)
    copy_tree(tree)
    bad = 0
    if not options.list:
        configure(tree, build)
        clean = verdict_of(build)
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
            caught = verdict_of(build)
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

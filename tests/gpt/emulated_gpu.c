/* SPDX-License-Identifier: Apache-2.0 */
/* The language model's GPU kernels on the CPU: kernels.cu is compiled as C, and the threads of a block take
 * turns. One goes on until it has to wait for others, at a shuffle or a barrier. What is shared by a block is
 * static, since blocks run one after the other. */
#define _XOPEN_SOURCE 700 /* ucontext */
#include "gpu.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <tgmath.h>
#include <ucontext.h>

typedef struct index2 {
    unsigned x, y;
} index2;

static index2 threadIdx, blockIdx, gridDim;

/* ---- Threads ------------------------------------------------------------------------------------- */

enum { STACK = 1 << 15 };

typedef struct thread {
    ucontext_t context;
    bool done;
    int barriers; /* that it has come to */
} thread;

static thread threads[THREADS];
static char (*stacks)[STACK];
static ucontext_t scheduler;
static void (*running)(const void *args);
static const void *running_args;

/* Lets every other thread go on. */
static void wait_a_turn(void) {
    const unsigned me = threadIdx.x;
    swapcontext(&threads[me].context, &scheduler);
}

static void run_thread(void) {
    running(running_args);
    threads[threadIdx.x].done = true;
    swapcontext(&threads[threadIdx.x].context, &scheduler);
}

static void run_block(void) {
    for (int i = 0; i < THREADS; i++) {
        thread *t = &threads[i];
        *t = (thread){0};
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = stacks[i];
        t->context.uc_stack.ss_size = STACK;
        makecontext(&t->context, run_thread, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (unsigned i = 0; i < THREADS; i++) {
            if (threads[i].done) continue;
            threadIdx.x = i;
            swapcontext(&scheduler, &threads[i].context);
            any = any || !threads[i].done;
        }
    }
}

/* ---- What kernels call --------------------------------------------------------------------------- */

#define KERNEL(name) static void kernel_##name(name##_args a)
#define DEVICE       static
#define __shared__   static

static int min(int a, int b) { return a < b ? a : b; }
static int __popc(unsigned x) { return __builtin_popcount(x); }

static void __syncthreads(void) {
    const int mine = ++threads[threadIdx.x].barriers;
    for (bool all = false; !all;) {
        wait_a_turn();
        all = true;
        for (int i = 0; i < THREADS; i++) all = all && (threads[i].done || threads[i].barriers >= mine);
    }
}

/* The lanes of a warp are at the same place, so that one turn is enough for all of them to have written, and
 * one more for all to have read. */
static real lane_value[THREADS];
static real __shfl_xor_sync(unsigned mask, real x, int distance) {
    (void)mask;
    lane_value[threadIdx.x] = x;
    wait_a_turn();
    const real other = lane_value[threadIdx.x ^ (unsigned)distance];
    wait_a_turn();
    return other;
}

static unsigned __ballot_sync(unsigned mask, int predicate) {
    (void)mask;
    unsigned ballot = 0;
    lane_value[threadIdx.x] = (real)predicate;
    wait_a_turn();
    for (unsigned i = 0; i < LANES; i++)
        ballot |= (unsigned)(lane_value[threadIdx.x / LANES * LANES + i] != 0) << i;
    wait_a_turn();
    return ballot;
}

static int __syncthreads_count(int predicate) {
    static int value[THREADS];
    int count = 0;
    value[threadIdx.x] = predicate;
    __syncthreads();
    for (int i = 0; i < THREADS; i++) count += value[i];
    __syncthreads();
    return count;
}

#include "kernels.cu"

/* ---- Launches ------------------------------------------------------------------------------------ */

#define GPT_KERNEL(name)                                                                                     \
    static void run_##name(const void *args) { kernel_##name(*(const name##_args *)args); }
GPT_KERNELS(GPT_KERNEL)
#undef GPT_KERNEL

void gpu_open(void) {
    stacks = calloc(THREADS, sizeof *stacks);
    if (!stacks) abort();
}

void gpu_close(void) { free(stacks); }

void gpu_launch(kernel kernel, int blocks_x, int blocks_y, void *args) {
    static void (*const run[])(const void *) = {
#define GPT_KERNEL(name) run_##name,
        GPT_KERNELS(GPT_KERNEL)
#undef GPT_KERNEL
    };
    running = run[kernel];
    running_args = args;
    gridDim = (index2){(unsigned)blocks_x, (unsigned)blocks_y};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) run_block();
}

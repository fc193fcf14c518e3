/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the model on a GPU; what each computes stands in the file of its function for the CPU.
 *
 * Where a row has to be summed a warp takes it, and sums of many rows are made of parts, added up in their
 * order: no atomics, so one seed gives one run. It is the subset of CUDA C that is C as well, so that a test
 * can run it on the CPU. */
#include "kernels.h"

#ifdef __CUDACC__
#define KERNEL(name) extern "C" __global__ void name(name##_args a)
#define DEVICE       static __device__ __forceinline__
#endif

/* ---- Threads ------------------------------------------------------------------------------------- */

DEVICE int lane(void) { return (int)threadIdx.x % LANES; }

/* The row of this thread's warp. */
DEVICE int warp_row(void) { return (int)blockIdx.x * WARPS + (int)threadIdx.x / LANES; }

/* The element of this thread. */
DEVICE size_t element(void) { return (size_t)blockIdx.x * THREADS + threadIdx.x; }

DEVICE real warp_sum(real x) {
    for (int i = LANES / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}

DEVICE real warp_max(real x) {
    for (int i = LANES / 2; i > 0; i /= 2) {
        const real other = __shfl_xor_sync(0xffffffffu, x, i);
        x = other > x ? other : x;
    }
    return x;
}

/* Of the whole block, for thread 0. */
DEVICE double block_sum(double x) {
    __shared__ double part[THREADS];
    part[threadIdx.x] = x;
    for (int n = THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    return part[0];
}

KERNEL(clear) {
    if (element() < a.count) a.x[element()] = 0;
}

/* to (+)= the sum of all parts. */
KERNEL(add_parts) {
    const size_t i = element();
    if (i >= (size_t)a.count) return;
    real sum = 0;
    for (int part = 0; part < a.chunks; part++) sum += a.parts[(size_t)part * (size_t)a.count + i];
    a.to[i] = a.add ? a.to[i] + sum : sum;
}

/* ---- Embedding ----------------------------------------------------------------------------------- */

KERNEL(embed) {
    const size_t i = element(), width = (size_t)a.width;
    if (i < (size_t)a.rows * width) a.x[i] = a.table[a.letter[i / width] * width + i % width];
}

/* A block for each letter and chunk of rows. */
KERNEL(embed_parts) {
    const int first = (int)blockIdx.y * a.chunk, end = min(first + a.chunk, a.rows);
    real *part = a.parts + ((size_t)blockIdx.y * (size_t)a.letters + blockIdx.x) * (size_t)a.width;
    for (int c = (int)threadIdx.x; c < a.width; c += THREADS) {
        real sum = 0;
        for (int r = first; r < end; r++)
            if (a.letter[r] == blockIdx.x) sum += a.d_x[(size_t)r * (size_t)a.width + (size_t)c];
        part[c] = sum;
    }
}

/* ---- RMSNorm ------------------------------------------------------------------------------------- */

DEVICE real inverse_rms(const real *x, int width) {
    real sum = 0;
    for (int c = lane(); c < width; c += LANES) sum += x[c] * x[c];
    return 1 / sqrt(warp_sum(sum) / (real)width + (real)1e-6);
}

KERNEL(norm_forward) {
    if (warp_row() >= a.rows) return;
    const real *x = a.x + (size_t)warp_row() * (size_t)a.width;
    real *y = a.y + (size_t)warp_row() * (size_t)a.width;
    const real inverse = inverse_rms(x, a.width);
    for (int c = lane(); c < a.width; c += LANES) y[c] = a.gain[c] * x[c] * inverse;
}

KERNEL(norm_backward) {
    if (warp_row() >= a.rows) return;
    const size_t at = (size_t)warp_row() * (size_t)a.width;
    const real *x = a.x + at, *d_y = a.d_y + at;
    real *d_x = a.d_x + at, dot = 0;
    const real inverse = inverse_rms(x, a.width);
    for (int c = lane(); c < a.width; c += LANES) dot += a.gain[c] * d_y[c] * x[c];
    const real pull = warp_sum(dot) * inverse * inverse * inverse / (real)a.width;
    for (int c = lane(); c < a.width; c += LANES) d_x[c] += inverse * a.gain[c] * d_y[c] - pull * x[c];
    if (lane() == 0) a.inverse[warp_row()] = inverse;
}

/* The gain's gradient: a thread for each column and chunk of rows. */
KERNEL(norm_parts) {
    const size_t c = element(), width = (size_t)a.width;
    const int first = (int)blockIdx.y * a.chunk, end = min(first + a.chunk, a.rows);
    if (c >= width) return;
    real sum = 0;
    for (int r = first; r < end; r++)
        sum += a.d_y[(size_t)r * width + c] * a.x[(size_t)r * width + c] * a.inverse[r];
    a.parts[blockIdx.y * width + c] = sum;
}

/* ---- Attention ----------------------------------------------------------------------------------- */

/* A thread for each pair of each letter of a sequence, in all heads; the sequence is blockIdx.y. */
KERNEL(rotate) {
    const int pairs = a.depth / 2, width = a.heads * a.depth;
    const int t = (int)(element() / (size_t)pairs), i = (int)(element() % (size_t)pairs);
    if (t >= a.time) return;
    const double angle = t * pow(1e4, -(double)i / pairs);
    const real c = (real)cos(angle), s = (real)(a.direction * sin(angle));
    real *x = a.qkv + (blockIdx.y * (size_t)a.time + (size_t)t) * 3 * (size_t)width + 2 * i;
    for (int head = 0; head < 2 * a.heads; head++, x += a.depth) { /* those of q and k */
        const real x0 = x[0], x1 = x[1];
        x[0] = x0 * c - x1 * s;
        x[1] = x0 * s + x1 * c;
    }
}

KERNEL(causal_softmax) {
    if (warp_row() >= a.rows) return;
    real *p = a.p + (size_t)warp_row() * (size_t)a.time;
    const int end = warp_row() % a.time + 1;
    real largest = p[0], sum = 0;
    for (int i = lane(); i < end; i += LANES) largest = p[i] > largest ? p[i] : largest;
    largest = warp_max(largest);
    for (int i = lane(); i < end; i += LANES) sum += p[i] = exp(p[i] - largest);
    sum = warp_sum(sum);
    for (int i = lane(); i < a.time; i += LANES) p[i] = i < end ? p[i] / sum : 0;
}

KERNEL(softmax_backward) {
    if (warp_row() >= a.rows) return;
    const real *p = a.p + (size_t)warp_row() * (size_t)a.time;
    real *d_p = a.d_p + (size_t)warp_row() * (size_t)a.time, dot = 0;
    for (int i = lane(); i < a.time; i += LANES) dot += p[i] * d_p[i];
    dot = warp_sum(dot);
    for (int i = lane(); i < a.time; i += LANES) d_p[i] = p[i] * (d_p[i] - dot);
}

/* ---- Experts ------------------------------------------------------------------------------------- */

DEVICE int expert_of(const real *p, int experts) {
    int best = 0;
    for (int i = 1; i < experts; i++) best = p[i] > p[best] ? i : best;
    return best;
}

/* A thread a row, of which there are few numbers. */
KERNEL(experts_softmax) {
    if (element() >= (size_t)a.rows) return;
    real *p = a.p + element() * (size_t)a.experts;
    const double largest = p[expert_of(p, a.experts)];
    double sum = 0;
    for (int i = 0; i < a.experts; i++) sum += exp(p[i] - largest);
    for (int i = 0; i < a.experts; i++) p[i] = (real)(exp(p[i] - largest) / sum);
}

/* A block an expert: its rows, in their order, are behind those of all experts before it. */
KERNEL(experts_order) {
    __shared__ int count[WARPS];
    const int expert = (int)blockIdx.x, warp = (int)threadIdx.x / LANES;
    int at = 0;
    for (int first = 0; first < a.rows; first += THREADS) {
        const int r = first + (int)threadIdx.x;
        at += __syncthreads_count(r < a.rows &&
                                  expert_of(a.p + (size_t)r * (size_t)a.experts, a.experts) < expert);
    }
    for (int first = 0; first < a.rows; first += THREADS) {
        const int r = first + (int)threadIdx.x;
        const int mine = r < a.rows && expert_of(a.p + (size_t)r * (size_t)a.experts, a.experts) == expert;
        const unsigned lanes = __ballot_sync(0xffffffffu, mine);
        if (lane() == 0) count[warp] = __popc(lanes);
        __syncthreads();
        int before = __popc(lanes & ((1u << lane()) - 1)), all = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) before += count[w];
            all += count[w];
        }
        if (mine) a.order[at + before] = r;
        at += all;
        __syncthreads();
    }
    if (threadIdx.x == 0) a.ends[expert] = at;
}

KERNEL(sort_rows) {
    const size_t i = element(), width = (size_t)a.width;
    if (i < (size_t)a.rows * width) a.to[i] = a.from[(size_t)a.order[i / width] * width + i % width];
}

KERNEL(unsort_rows) {
    const size_t i = element(), width = (size_t)a.width;
    if (i < (size_t)a.rows * width) a.to[(size_t)a.order[i / width] * width + i % width] = a.from[i];
}

KERNEL(add_results) {
    const size_t i = element(), width = (size_t)a.width;
    if (i >= (size_t)a.rows * width) return;
    const size_t row = (size_t)a.order[i / width], at = row * width + i % width;
    const real *p = a.p + row * (size_t)a.experts;
    a.to[at] = a.stream[at] + p[expert_of(p, a.experts)] * a.result[i];
}

KERNEL(add_results_backward) {
    if (warp_row() >= a.rows) return;
    const size_t at = (size_t)warp_row() * (size_t)a.width, row = (size_t)a.order[warp_row()];
    const real *d_to = a.d_to + row * (size_t)a.width;
    real *p = a.p + row * (size_t)a.experts;
    const int expert = expert_of(p, a.experts);
    const real chosen = p[expert];
    real d_p = 0;
    for (int c = lane(); c < a.width; c += LANES) {
        d_p += d_to[c] * a.result[at + (size_t)c];
        a.d_result[at + (size_t)c] = chosen * d_to[c];
    }
    d_p = warp_sum(d_p); /* and every lane has read p */
    for (int i = lane(); i < a.experts; i += LANES) p[i] = d_p * chosen * ((i == expert) - p[i]);
}

/* ---- Loss ---------------------------------------------------------------------------------------- */

KERNEL(cross_entropy) {
    const int r = warp_row();
    if (r >= a.rows) return;
    const real *logits = a.logits + (size_t)r * (size_t)a.letters;
    const real right = logits[a.target[r]];
    real largest = logits[0], sum = 0;
    for (int i = lane(); i < a.letters; i += LANES) largest = logits[i] > largest ? logits[i] : largest;
    largest = warp_max(largest);
    for (int i = lane(); i < a.letters; i += LANES) sum += exp(logits[i] - largest);
    sum = warp_sum(sum);
    if (lane() == 0) a.loss[r] = log(sum) + largest - right;
    if (!a.d_logits) return;
    real *d_logits = a.d_logits + (size_t)r * (size_t)a.letters;
    for (int i = lane(); i < a.letters; i += LANES)
        d_logits[i] = (exp(logits[i] - largest) / sum - (i == a.target[r])) / (real)a.rows;
}

/* ---- AdamW --------------------------------------------------------------------------------------- */

KERNEL(squares) {
    double sum = 0;
    for (size_t i = element(); i < a.count; i += (size_t)gridDim.x * THREADS)
        sum += (double)a.x[i] * (double)a.x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) a.parts[blockIdx.x] = sum;
}

/* One block. */
KERNEL(sum) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < a.count; i += THREADS) sum += a.x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *a.sum = sum;
}

KERNEL(adamw_update) {
    const size_t i = element();
    if (i >= a.count) return;
    const real g = (real)fmin(1.0, a.longest / (sqrt(*a.squares) + 1e-12)) * a.gradient[i];
    const real mean = a.mean[i] + a.new_mean * (g - a.mean[i]);
    const real square = a.square[i] + a.new_square * (g * g - a.square[i]);
    const real kept = i < a.decayed ? a.keep * a.parameter[i] : a.parameter[i];
    a.mean[i] = mean;
    a.square[i] = square;
    a.parameter[i] = kept - a.step_size * mean / (sqrt(square) + (real)1e-8);
}

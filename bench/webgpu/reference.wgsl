// SPDX-License-Identifier: Apache-2.0
/* What the benchmark compares with: a straightforward backward pass in four kernels, PASS 1 to 4. 16x16
 * tiles in workgroup memory, one result a thread; pre is computed again for grad_pre; the operands of d_a
 * and d_b are read across their rows; d_bias has one thread a column. GELU in its tanh form.
 * A gated unit (SwiGLU) has PASS 5, both pre and both gradients at once, PASS 6, the sum of d_a's two products,
 * and PASS 3 for each of the weights. */
struct Sizes { m: u32, k: u32, n: u32, unused: u32 }

@group(0) @binding(0) var<storage, read> sizes: Sizes;
@group(0) @binding(1) var<storage, read> first: array<f32>;
#if PASS != 4
@group(0) @binding(2) var<storage, read> second: array<f32>;
#endif
#if PASS == 1
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read> grad: array<f32>;
#elif PASS == 5
@group(0) @binding(3) var<storage, read> up: array<f32>;
@group(0) @binding(4) var<storage, read> grad: array<f32>;
@group(0) @binding(6) var<storage, read_write> result_up: array<f32>;
#elif PASS == 6
@group(0) @binding(3) var<storage, read> first_up: array<f32>;
@group(0) @binding(4) var<storage, read> second_up: array<f32>;
#endif
@group(0) @binding(5) var<storage, read_write> result: array<f32>;

#if PASS == 1 /* grad_pre[m, n] from A[m, k] B[k, n] */
#define ROWS sizes.m
#define COLS sizes.n
#define DEPTH sizes.k
#define LEFT(row, term)  first[(row) * sizes.k + (term)]
#define RIGHT(term, col) second[(term) * sizes.n + (col)]
#elif PASS == 2 /* d_a[m, k] from grad_pre[m, n] B[k, n] */
#define ROWS sizes.m
#define COLS sizes.k
#define DEPTH sizes.n
#define LEFT(row, term)  first[(row) * sizes.n + (term)]
#define RIGHT(term, col) second[(col) * sizes.n + (term)]
#elif PASS == 3 /* d_b[k, n] from A[m, k] grad_pre[m, n] */
#define ROWS sizes.k
#define COLS sizes.n
#define DEPTH sizes.m
#define LEFT(row, term)  first[(term) * sizes.k + (row)]
#define RIGHT(term, col) second[(term) * sizes.n + (col)]
#elif PASS == 5 /* d_gate[m, n], d_up[m, n] from A[m, k] B[k, n] and A[m, k] B_up[k, n] */
#define ROWS sizes.m
#define COLS sizes.n
#define DEPTH sizes.k
#define LEFT(row, term)     first[(row) * sizes.k + (term)]
#define RIGHT(term, col)    second[(term) * sizes.n + (col)]
#define RIGHT_UP(term, col) up[(term) * sizes.n + (col)]
#elif PASS == 6 /* d_a[m, k] from d_gate[m, n] B[k, n] and d_up[m, n] B_up[k, n] */
#define ROWS sizes.m
#define COLS sizes.k
#define DEPTH sizes.n
#define LEFT(row, term)     first[(row) * sizes.n + (term)]
#define RIGHT(term, col)    second[(col) * sizes.n + (term)]
#define LEFT_UP(row, term)  first_up[(row) * sizes.n + (term)]
#define RIGHT_UP(term, col) second_up[(col) * sizes.n + (term)]
#endif

#if PASS == 4
@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= sizes.n) { return; }
    var sum = 0.0;
    for (var i = 0u; i < sizes.m; i++) { sum += first[i * sizes.n + id.x]; }
    result[id.x] = sum;
}
#else
var<workgroup> left: array<f32, 256>;
var<workgroup> right: array<f32, 256>;
#if PASS >= 5
var<workgroup> right_up: array<f32, 256>;
#endif
#if PASS == 6
var<workgroup> left_up: array<f32, 256>;
#endif

@compute @workgroup_size(16, 16)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let at = local.y * 16u + local.x;
    var sum = 0.0;
#if PASS == 5
    var sum_up = 0.0;
#endif
    for (var k = 0u; k < DEPTH; k += 16u) {
        left[at] = 0.0;
        right[at] = 0.0;
#if PASS >= 5
        right_up[at] = 0.0;
        if (id.x < COLS && k + local.y < DEPTH) { right_up[at] = RIGHT_UP(k + local.y, id.x); }
#endif
#if PASS == 6
        left_up[at] = 0.0;
        if (id.y < ROWS && k + local.x < DEPTH) { left_up[at] = LEFT_UP(id.y, k + local.x); }
#endif
        if (id.y < ROWS && k + local.x < DEPTH) { left[at] = LEFT(id.y, k + local.x); }
        if (id.x < COLS && k + local.y < DEPTH) { right[at] = RIGHT(k + local.y, id.x); }
        workgroupBarrier();
        for (var i = 0u; i < 16u; i++) {
            sum += left[local.y * 16u + i] * right[i * 16u + local.x];
#if PASS == 5
            sum_up += left[local.y * 16u + i] * right_up[i * 16u + local.x];
#elif PASS == 6
            sum += left_up[local.y * 16u + i] * right_up[i * 16u + local.x];
#endif
        }
        workgroupBarrier();
    }
    if (id.y >= ROWS || id.x >= COLS) { return; }
#if PASS == 1
    let x = sum + bias[id.x];
    let inner = clamp(0.7978845608 * (x + 0.044715 * x * x * x), -15.0, 15.0);
    let t = tanh(inner);
    let derivative = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608 * (1.0 + 0.134145 * x * x);
    result[id.y * COLS + id.x] = grad[id.y * COLS + id.x] * derivative;
#elif PASS == 5
    let s = 1.0 / (1.0 + exp(-sum));
    let of_y = grad[id.y * COLS + id.x];
    result[id.y * COLS + id.x] = of_y * sum_up * s * (1.0 + sum * (1.0 - s));
    result_up[id.y * COLS + id.x] = of_y * sum * s;
#else
    result[id.y * COLS + id.x] = sum;
#endif
}
#endif

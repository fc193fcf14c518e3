/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

/* ---- Sums of products, with their bound --------------------------------------------------------- */

/* A strided matrix of numbers, and of how far each may be off (NULL: exact). */
typedef struct view {
    const double *value, *bound;
    int64_t row, col;
} view;

typedef struct sum {
    oracle_real value;
    double magnitude; /* the sum of the absolute values of the terms */
    double bound;     /* errors that the terms came with */
} sum;

static view exact(const double *value, int64_t row, int64_t col) { return (view){value, NULL, row, col}; }

static view of_results(const oracle_result *results, int64_t row, int64_t col) {
    return (view){&results->value, &results->bound, 2 * row, 2 * col};
}

static view item(view matrix, int64_t index, int64_t elements) {
    const int64_t step = index * elements * (matrix.bound != NULL ? 2 : 1);
    return (view){matrix.value + step, matrix.bound != NULL ? matrix.bound + step : NULL, matrix.row,
                  matrix.col};
}

/* What an error makes of a product. An infinite factor leaves an infinity, whatever the error, unless that
 * hides the sign of the value: then it is infinite too, and so is one that comes with such an infinity. */
static double error_of(double value, double bound, double factor) {
    if (bound == 0 || isinf(bound)) return bound;
    if (isinf(factor)) return fabs(value) <= bound ? (double)INFINITY : 0;
    return bound * fabs(factor);
}

/* A factor below `least` may be read as 0. */
static void add_scaled_term(sum *total, double scale, double left, double left_bound, double right,
                            double right_bound, double least) {
    const double size = fabs(left * right * scale);
    total->value += (oracle_real)left * (oracle_real)right * (oracle_real)scale;
    total->magnitude += size;
    if (fabs(left) < least || fabs(right) < least) total->bound += size;
    total->bound += error_of(left, left_bound, right * scale) + error_of(right, right_bound, left * scale);
}

static void add_term(sum *total, double left, double left_bound, double right, double right_bound,
                     double least) {
    add_scaled_term(total, 1, left, left_bound, right, right_bound, least);
}

static double least_of(const oracle_layer *layer) { return layer->reads_subnormals_as_0 ? 0x1p-126 : 0; }

/* The lines of a matrix as they are summed, one after the other, and how far each number may be off. */
typedef struct factors {
    const double *value, *bound;
    bool plain; /* none is infinite or no number or becomes it by the scale, and none may be read as 0 */
    bool exact; /* none may be off */
} factors;

static factors gather(const oracle_layer *layer, view from, int64_t lines, int64_t depth, double *own) {
    double *value = own, *bound = own + lines * depth;
    const double least = least_of(layer);
    factors f = {value, bound, true, true};
    for (int64_t i = 0; i < lines; i++) {
        for (int64_t k = 0; k < depth; k++, value++, bound++) {
            const int64_t at = i * from.row + k * from.col;
            *value = from.value[at];
            *bound = from.bound != NULL ? from.bound[at] : 0;
            f.plain = f.plain && isfinite(*value * layer->scale) && isfinite(*bound) &&
                      (*value == 0 || fabs(*value) >= least);
            f.exact = f.exact && *bound == 0;
        }
    }
    return f;
}

/* add_scaled_term of plain factors: its questions would be most of a test's time. */
static void add_plain_terms(sum *total, double scale, const double *left, const double *right,
                            int64_t depth) {
    oracle_real value = total->value;
    double magnitude = total->magnitude;
    for (int64_t k = 0; k < depth; k++) {
        value += (oracle_real)left[k] * (oracle_real)right[k] * (oracle_real)scale;
        magnitude += fabs(left[k] * right[k] * scale);
    }
    *total = (sum){value, magnitude, total->bound};
}

static void add_plain_bounds(sum *total, double scale, const double *left, const double *left_bound,
                             const double *right, const double *right_bound, int64_t depth) {
    double bound = total->bound;
    for (int64_t k = 0; k < depth; k++)
        bound += left_bound[k] * fabs(right[k] * scale) + right_bound[k] * fabs(left[k] * scale);
    total->bound = bound;
}

/* What the sums of any matrix of a layer are made in. */
typedef struct scratch {
    sum *totals;
    double *left, *right; /* factors, and their bounds */
} scratch;

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

static bool open_scratch(scratch *own, const oracle_layer *layer) {
    const int64_t m = layer->m, k = layer->k, n = layer->n;
    const size_t elements = (size_t)(most(most(m * k, k * n), m * n) + k + n) + 1;
    own->totals = calloc(elements, sizeof *own->totals);
    own->left = calloc(2 * elements, sizeof *own->left);
    own->right = calloc(2 * elements, sizeof *own->right);
    return own->totals != NULL && own->left != NULL && own->right != NULL;
}

static void close_scratch(scratch *own) {
    free(own->totals);
    free(own->left);
    free(own->right);
}

/* totals[rows, cols] += scale · left [rows, depth] · right [depth, cols] */
static void add_product(const oracle_layer *layer, const scratch *own, int64_t rows, int64_t cols,
                        int64_t depth, view left, view right) {
    const double scale = layer->scale, least = least_of(layer);
    const view columns = {right.value, right.bound, right.col, right.row};
    const factors l = gather(layer, left, rows, depth, own->left),
                  r = gather(layer, columns, cols, depth, own->right);
    const bool plain = l.plain && r.plain, exact = l.exact && r.exact;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < cols; j++) {
            const int64_t x = i * depth, y = j * depth;
            sum *total = &own->totals[i * cols + j];
            if (plain) add_plain_terms(total, scale, l.value + x, r.value + y, depth);
            if (plain && !exact)
                add_plain_bounds(total, scale, l.value + x, l.bound + x, r.value + y, r.bound + y, depth);
            for (int64_t k = 0; !plain && k < depth; k++)
                add_scaled_term(total, scale, l.value[x + k], l.bound[x + k], r.value[y + k], r.bound[y + k],
                                least);
        }
    }
}

static double unit(const oracle_layer *layer) {
    return oracle_unit_roundoff(oracle_compute_dtype(layer->dtype));
}

/* What one rounding to a subnormal number is off by at most. */
static double underflow(const oracle_layer *layer) {
    if (layer->reads_subnormals_as_0) return least_of(layer);
    const double least = oracle_spacing(0, oracle_compute_dtype(layer->dtype));
    return layer->dtype == EG_F64 ? least : least / 2; /* of f64 half of it is no double */
}

/* What is lost below the normal numbers is lost before the scale. */
static double above_1(double scale) { return fmax(1, fabs(scale)); }

static oracle_result finish(const oracle_layer *layer, const sum *total, int64_t terms) {
    const double product = layer->reduced_products ? 2 * oracle_unit_roundoff(EG_BF16) : 0;
    const double each = ORACLE_SUM * sqrt((double)terms) * unit(layer) + product;
    const double rounding =
        isfinite(total->magnitude) && (total->magnitude > 0 || total->value != 0)
            ? each * total->magnitude + (double)terms * underflow(layer) * above_1(layer->scale)
            : 0;
    return (oracle_result){(double)total->value, total->bound + rounding};
}

static void finish_all(const oracle_layer *layer, const sum *totals, int64_t count, int64_t terms,
                       oracle_result *results) {
    for (int64_t i = 0; i < count; i++) results[i] = finish(layer, &totals[i], terms);
}

/* ---- pre and its activation --------------------------------------------------------------------- */

static const double *batch_item(oracle_matrix matrix, int64_t index, int64_t elements) {
    return matrix.data + (matrix.shared ? 0 : index * elements);
}

/* One item of the batch. */
static void make_pre(const oracle_layer *layer, const double *a, const double *b, const double *bias,
                     const scratch *own, oracle_result *pre) {
    const int64_t m = layer->m, k = layer->k, n = layer->n;
    for (int64_t i = 0; i < m * n; i++) {
        const double start = bias != NULL ? bias[i % n] : 0;
        own->totals[i] = (sum){(oracle_real)start, fabs(start), 0};
    }
    add_product(layer, own, m, n, k, exact(a, k, 1), exact(b, n, 1));
    finish_all(layer, own->totals, m * n, k + 1 + (layer->scale != 1), pre);
    for (int64_t i = 0; i < m * n && (k == 0 || layer->exact_pre); i++) {
        const bool may_vanish = layer->reads_subnormals_as_0 && fabs(pre[i].value) < least_of(layer);
        pre[i].bound = may_vanish ? fabs(pre[i].value) : 0;
    }
}

/* f(x) where x is known to within a bound: how far f moves over it, and its own error. A kink inside the
 * interval shows at one of its ends. */
typedef oracle_real activation_function(eg_activation activation, oracle_real x);

static oracle_result apply(const oracle_layer *layer, activation_function *f, eg_activation activation,
                           oracle_result x) {
    const double y = (double)f(activation, (oracle_real)x.value);
    oracle_result result = {y, oracle_act_bound(activation, oracle_compute_dtype(layer->dtype), y)};
    if (!isfinite(x.value) || !isfinite(y) || x.bound == 0) return result;
    const double above = fabs((double)f(activation, (oracle_real)(x.value + x.bound)) - y);
    const double below = fabs((double)f(activation, (oracle_real)(x.value - x.bound)) - y);
    result.bound += fmax(above, below);
    return result;
}

/* The product of two numbers that may both be off. */
static oracle_result times(const oracle_layer *layer, oracle_result x, oracle_result y) {
    const double product = x.value * y.value, least = least_of(layer);
    double bound = error_of(x.value, x.bound, y.value) + error_of(y.value, y.bound, x.value);
    if (x.bound > 0 && y.bound > 0) bound += x.bound * y.bound;
    if ((fabs(x.value) < least || fabs(y.value) < least) && !isnan(product)) bound += fabs(product);
    if (isfinite(product) && x.value != 0 && y.value != 0)
        bound += 2 * unit(layer) * fabs(product) + 2 * underflow(layer);
    return (oracle_result){product, bound};
}

static oracle_result exactly(double value) { return (oracle_result){value, 0}; }

static void make_gated_y(const oracle_layer *layer, const oracle_forward_args *args, const scratch *own) {
    const int64_t mk = layer->m * layer->k, kn = layer->k * layer->n, mn = layer->m * layer->n;
    for (int64_t b = 0; b < layer->batch; b++) {
        oracle_result *pre = args->pre + b * mn, *pre_up = args->pre_up + b * mn;
        const double *a = batch_item(args->a, b, mk);
        make_pre(layer, a, batch_item(args->b, b, kn), args->bias, own, pre);
        make_pre(layer, a, batch_item(args->b_up, b, kn), args->bias_up, own, pre_up);
        for (int64_t i = 0; args->y != NULL && i < mn; i++)
            args->y[b * mn + i] =
                times(layer, apply(layer, oracle_act, layer->activation, pre[i]), pre_up[i]);
    }
}

static void make_y(const oracle_layer *layer, const oracle_forward_args *args, const scratch *own) {
    const int64_t mk = layer->m * layer->k, kn = layer->k * layer->n, mn = layer->m * layer->n;
    for (int64_t b = 0; b < layer->batch; b++) {
        oracle_result *pre = args->pre + b * mn;
        make_pre(layer, batch_item(args->a, b, mk), batch_item(args->b, b, kn), args->bias, own, pre);
        for (int64_t i = 0; args->y != NULL && i < mn; i++) {
            oracle_result y = apply(layer, oracle_act, layer->activation, pre[i]);
            if (args->residual.data != NULL) {
                y.value += batch_item(args->residual, b, mn)[i];
                y.bound += isfinite(y.value) ? 2 * unit(layer) * fabs(y.value) : 0;
            }
            args->y[b * mn + i] = y;
        }
    }
}

bool oracle_forward(const oracle_layer *layer, const oracle_forward_args *args) {
    scratch own;
    const bool ok = open_scratch(&own, layer);
    if (ok && args->b_up.data != NULL) make_gated_y(layer, args, &own);
    if (ok && args->b_up.data == NULL) make_y(layer, args, &own);
    close_scratch(&own);
    return ok;
}

/* ---- grad_pre ----------------------------------------------------------------------------------- */

/* value · act'(saved); act' of none is 1 whatever `saved` is. */
static oracle_result times_derivative(const oracle_layer *layer, oracle_result value,
                                      eg_activation activation, eg_source source, oracle_result saved) {
    if (activation == EG_ACT_NONE) {
        if (fabs(value.value) < least_of(layer)) value.bound += fabs(value.value);
        return value;
    }
    oracle_result derivative;
    if (fabs(saved.value) < least_of(layer)) saved.bound += fabs(saved.value);
    if (isnan(saved.value)) {
        derivative = (oracle_result){layer->nonfinite == EG_NONFINITE_PROPAGATE ? (double)NAN : 0, 0};
    } else {
        derivative =
            apply(layer, source == EG_SOURCE_Y ? oracle_act_grad_of_y : oracle_act_grad, activation, saved);
    }
    const double product = value.value * derivative.value;
    const double rounding = isfinite(product) && value.value != 0 && derivative.value != 0
                                ? 2 * unit(layer) * fabs(product) + 2 * underflow(layer)
                                : 0;
    const double both = value.bound > 0 && derivative.bound > 0 ? value.bound * derivative.bound : 0;
    return (oracle_result){product, error_of(value.value, value.bound, derivative.value) +
                                        error_of(derivative.value, derivative.bound, value.value) + both +
                                        rounding};
}

static void make_grad_pre(const oracle_layer *layer, const oracle_backward_args *args, const scratch *own,
                          oracle_result *grad_pre) {
    const int64_t mk = layer->m * layer->k, kn = layer->k * layer->n, mn = layer->m * layer->n;
    const bool recompute = args->source == EG_SOURCE_RECOMPUTE && layer->activation != EG_ACT_NONE;
    for (int64_t b = 0; b < layer->batch; b++) {
        oracle_result *out = grad_pre + b * mn;
        if (recompute) /* `out` holds pre until it is overwritten below */
            make_pre(layer, batch_item(args->a, b, mk), batch_item(args->b, b, kn), args->bias, own, out);
        for (int64_t i = 0; i < mn; i++) {
            oracle_result saved = {0, 0};
            if (recompute) saved = out[i];
            if (!recompute && args->saved.data != NULL) saved.value = batch_item(args->saved, b, mn)[i];
            const oracle_result grad = {batch_item(args->grad, b, mn)[i], 0};
            out[i] = times_derivative(layer, grad, layer->activation, args->source, saved);
        }
    }
}

/* d_up = grad * act(pre); d_gate = grad * pre_up * act'(pre). */
static void make_gated_gradients(const oracle_layer *layer, const oracle_backward_args *args,
                                 const scratch *own, oracle_result *d_gate, oracle_result *d_up) {
    const int64_t mk = layer->m * layer->k, kn = layer->k * layer->n, mn = layer->m * layer->n;
    const bool recompute = args->source == EG_SOURCE_RECOMPUTE && !args->made;
    if (mn == 0) return;
    for (int64_t b = 0; b < layer->batch; b++) {
        oracle_result *gate = d_gate + b * mn, *up = d_up + b * mn; /* which hold pre and pre_up before */
        const double *grad = batch_item(args->grad, b, mn);
        if (recompute)
            make_pre(layer, batch_item(args->a, b, mk), batch_item(args->b, b, kn), args->bias, own, gate);
        if (recompute && args->b_up.data != NULL)
            make_pre(layer, batch_item(args->a, b, mk), batch_item(args->b_up, b, kn), args->bias_up, own,
                     up);
        for (int64_t i = 0; i < mn; i++) {
            if (!recompute && args->saved.data != NULL) gate[i] = exactly(batch_item(args->saved, b, mn)[i]);
            if (!recompute && args->saved_up.data != NULL)
                up[i] = exactly(batch_item(args->saved_up, b, mn)[i]);
            if (args->made) {
                const oracle_result none = {0, 0}, given = exactly(batch_item(args->grad_up, b, mn)[i]);
                gate[i] = times_derivative(layer, exactly(grad[i]), EG_ACT_NONE, EG_SOURCE_PRE, none);
                up[i] = times_derivative(layer, given, EG_ACT_NONE, EG_SOURCE_PRE, none);
                continue;
            }
            const oracle_result pre = gate[i], product = times(layer, up[i], exactly(grad[i]));
            up[i] = times(layer, apply(layer, oracle_act, layer->activation, pre), exactly(grad[i]));
            gate[i] = times_derivative(layer, product, layer->activation, EG_SOURCE_PRE, pre);
        }
    }
}

/* What the products read, where a backend rounds it to the storage type first: an f16 that is larger than all
 * of them may be anything from then on. */
static void round_bounds(const oracle_layer *layer, oracle_result *grad_pre, int64_t count) {
    const double least =
        layer->dtype == EG_F16 ? ldexp(1, -25) : 0; /* half the spacing of f16's subnormals */
    for (int64_t i = 0; i < count; i++) {
        oracle_result *x = &grad_pre[i];
        if (!isfinite(x->value)) continue;
        if (isinf(oracle_round(fabs(x->value) + x->bound, layer->dtype))) x->bound = INFINITY;
        x->bound += oracle_unit_roundoff(layer->dtype) * fabs(x->value) + least;
    }
}

/* ---- The gradients ------------------------------------------------------------------------------ */

static view item_or_shared(oracle_matrix matrix, int64_t index, int64_t elements, int64_t row, int64_t col) {
    return exact(batch_item(matrix, index, elements), row, col);
}

/* What the sum of an item begins with; NULL: nothing. */
static const double *before_of(oracle_matrix matrix, int64_t index, int64_t elements) {
    return matrix.data != NULL ? batch_item(matrix, index, elements) : NULL;
}

static void clear(sum *totals, int64_t count, const double *before) {
    for (int64_t i = 0; i < count; i++) {
        const double start = before != NULL ? before[i] : 0;
        totals[i] = (sum){(oracle_real)start, fabs(start), 0};
    }
}

static void make_d_a(const oracle_layer *layer, const oracle_backward_args *args, const scratch *own,
                     const oracle_result *grad_pre, const oracle_result *grad_pre_up) {
    const int64_t m = layer->m, k = layer->k, n = layer->n;
    const int64_t products = n * (args->d_a_shared ? layer->batch : 1) * (args->gated ? 2 : 1);
    const int64_t terms = products + (args->d_a_before.data != NULL) + (layer->scale != 1);
    clear(own->totals, m * k, before_of(args->d_a_before, 0, m * k));
    if (args->d_a_shared) finish_all(layer, own->totals, m * k, terms, args->d_a); /* for an empty batch */
    for (int64_t b = 0; b < layer->batch; b++) {
        if (!args->d_a_shared) clear(own->totals, m * k, before_of(args->d_a_before, b, m * k));
        add_product(layer, own, m, k, n, item(of_results(grad_pre, n, 1), b, m * n),
                    item_or_shared(args->b, b, k * n, 1, n));
        if (args->gated)
            add_product(layer, own, m, k, n, item(of_results(grad_pre_up, n, 1), b, m * n),
                        item_or_shared(args->b_up, b, k * n, 1, n));
        finish_all(layer, own->totals, m * k, terms, args->d_a + (args->d_a_shared ? 0 : b * m * k));
    }
}

/* One of the two of a gated unit, or the only one. */
typedef struct weight_gradient {
    bool shared;
    const double *before;
    oracle_result *d_b;
} weight_gradient;

static void make_d_b(const oracle_layer *layer, oracle_matrix a, const weight_gradient *x, const scratch *own,
                     const oracle_result *grad_pre) {
    const int64_t m = layer->m, k = layer->k, n = layer->n;
    const int64_t terms = m * (x->shared ? layer->batch : 1) + 1 + (layer->scale != 1);
    if (x->d_b == NULL) return;
    if (x->shared) { /* also what an empty batch leaves */
        clear(own->totals, k * n, x->before);
        finish_all(layer, own->totals, k * n, terms, x->d_b);
    }
    for (int64_t b = 0; b < layer->batch; b++) {
        if (!x->shared) clear(own->totals, k * n, x->before != NULL ? x->before + b * k * n : NULL);
        add_product(layer, own, k, n, m, item_or_shared(a, b, m * k, 1, k),
                    item(of_results(grad_pre, n, 1), b, m * n));
        finish_all(layer, own->totals, k * n, terms, x->d_b + (x->shared ? 0 : b * k * n));
    }
}

/* The column sums of [rows, cols]. */
static void make_sums(const oracle_layer *layer, const oracle_result *values, int64_t rows, int64_t cols,
                      const double *before, const scratch *own, oracle_result *sums) {
    clear(own->totals, cols, before);
    for (int64_t i = 0; i < rows * cols; i++)
        add_term(&own->totals[i % cols], values[i].value, values[i].bound, 1, 0, least_of(layer));
    finish_all(layer, own->totals, cols, rows + 1, sums);
}

/* What a gated unit below takes of d_a: its y again, and the gradient of its other half. Leaves in d_a that
 * of its gate but for act'. */
static void chain_up(const oracle_layer *layer, const oracle_backward_args *args, const scratch *own) {
    const int64_t mk = layer->m * layer->k;
    for (int64_t i = 0; i < layer->batch * mk; i++) {
        const oracle_result pre = exactly(batch_item(args->below, i / mk, mk)[i % mk]),
                            up = exactly(batch_item(args->below_up, i / mk, mk)[i % mk]),
                            act = apply(layer, oracle_act, args->below_activation, pre);
        if (args->y_below != NULL) args->y_below[i] = times(layer, act, up);
        args->d_up_below[i] = times(layer, act, args->d_a[i]);
        args->d_a[i] = times(layer, up, args->d_a[i]);
    }
    if (args->d_bias_up_below != NULL)
        make_sums(layer, args->d_up_below, layer->batch * layer->m, layer->k, args->d_bias_up_below_before,
                  own, args->d_bias_up_below);
}

static void chain(const oracle_layer *layer, const oracle_backward_args *args, const scratch *own) {
    const int64_t mk = layer->m * layer->k;
    if (args->below_up.data != NULL) chain_up(layer, args, own);
    for (int64_t i = 0; i < layer->batch * mk; i++) {
        const oracle_result saved = {batch_item(args->below, i / mk, mk)[i % mk], 0};
        args->d_a[i] =
            times_derivative(layer, args->d_a[i], args->below_activation, args->below_source, saved);
    }
    if (args->d_bias_below != NULL) {
        make_sums(layer, args->d_a, layer->batch * layer->m, layer->k, args->d_bias_below_before, own,
                  args->d_bias_below);
    }
}

static void make_gradients(const oracle_layer *layer, const oracle_backward_args *args, const scratch *own,
                           oracle_result *grad_pre, oracle_result *grad_pre_up) {
    const int64_t rows = layer->batch * layer->m, n = layer->n, elements = rows * n;
    const weight_gradient d_b = {args->d_b_shared, args->d_b_before, args->d_b},
                          d_b_up = {args->d_b_up_shared, args->d_b_up_before, args->d_b_up};
    if (args->gated) make_gated_gradients(layer, args, own, grad_pre, grad_pre_up);
    if (!args->gated) make_grad_pre(layer, args, own, grad_pre);
    if (args->d_bias != NULL) make_sums(layer, grad_pre, rows, n, args->d_bias_before, own, args->d_bias);
    if (args->d_bias_up != NULL)
        make_sums(layer, grad_pre_up, rows, n, args->d_bias_up_before, own, args->d_bias_up);
    for (int64_t i = 0; args->grad_pre != NULL && i < elements; i++) args->grad_pre[i] = grad_pre[i];
    for (int64_t i = 0; args->grad_pre_up != NULL && i < elements; i++) args->grad_pre_up[i] = grad_pre_up[i];
    if (layer->rounds_grad_pre) round_bounds(layer, grad_pre, elements);
    if (layer->rounds_grad_pre) round_bounds(layer, grad_pre_up, elements);
    if (args->d_a != NULL) make_d_a(layer, args, own, grad_pre, grad_pre_up);
    make_d_b(layer, args->a, &d_b, own, grad_pre);
    make_d_b(layer, args->a, &d_b_up, own, grad_pre_up);
    if (args->below.data != NULL && args->d_a != NULL) chain(layer, args, own);
}

bool oracle_backward(const oracle_layer *layer, const oracle_backward_args *args) {
    const size_t elements = (size_t)(layer->batch * layer->m * layer->n) + 1;
    scratch own;
    oracle_result *grad_pre = calloc(elements, sizeof *grad_pre),
                  *grad_pre_up = calloc(elements, sizeof *grad_pre_up);
    const bool ok = open_scratch(&own, layer) && grad_pre != NULL && grad_pre_up != NULL;
    if (ok) make_gradients(layer, args, &own, grad_pre, grad_pre_up);
    close_scratch(&own);
    free(grad_pre);
    free(grad_pre_up);
    return ok;
}

/* ---- Comparison --------------------------------------------------------------------------------- */

bool oracle_accepts(oracle_result expected, double got, eg_dtype dtype) {
    if (!isfinite(expected.value) && isinf(expected.bound)) return !isfinite(got);
    if (isinf(expected.bound)) return true;
    if (isnan(expected.value)) return isnan(got);
    if (isinf(expected.value)) return got == expected.value;
    return got >= oracle_round(expected.value - expected.bound, dtype) &&
           got <= oracle_round(expected.value + expected.bound, dtype);
}

double oracle_ratio(oracle_result expected, double got, eg_dtype dtype) {
    if (!oracle_accepts(expected, got, dtype)) return (double)INFINITY;
    const double rounding = oracle_spacing(expected.value, dtype) / 2;
    const double error = fabs(got - expected.value) - rounding;
    return error > 0 && isfinite(error) ? fmin(error / expected.bound, 1) : 0;
}

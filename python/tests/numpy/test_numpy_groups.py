# SPDX-License-Identifier: Apache-2.0
"""Grouped layers over NumPy: a group is a layer of its own; and what is refused."""
import ml_dtypes
import numpy as np
import pytest

import epigrad

WRONG = epigrad.ArgumentError
ENDS = np.array([4, 4, 9, 10], dtype=np.int32)  # 4, none, 5, 1; and 2 rows of no group
M, K, N, GROUPS = 12, 7, 5, len(ENDS)


def draw(*shape, dtype=np.float32):
    return (np.random.default_rng(sum(shape)).integers(-4, 5, shape) / 4).astype(dtype)


def groups():
    for group, end in enumerate(ENDS):
        yield group, slice(ENDS[group - 1] if group > 0 else 0, end)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("gated", [False, True])
def test_each_group_is_a_layer(dtype, gated):
    x, w, bias, grad = (draw(*shape, dtype=dtype) for shape in ((M, K), (GROUPS, N, K), (GROUPS, N), (M, N)))
    up = {"w_up": draw(GROUPS, N, K, dtype=dtype)[::-1], "bias_up": draw(GROUPS, N, dtype=dtype)} if gated else {}
    up = {name: np.ascontiguousarray(value) for name, value in up.items()}
    out = np.full((M, N), 7, dtype)
    y = epigrad.linear(x, w, bias, activation="relu", out=out, offsets=ENDS, **up)
    gradients = epigrad.linear_backward(grad, x, w, bias, activation="relu", offsets=ENDS, **up)
    assert y is out and (y[ENDS[-1]:] == 7).all()
    assert gradients[1].shape == w.shape and gradients[2].shape == bias.shape
    for group, rows in groups():
        own = {name: value[group] for name, value in up.items()}
        if rows.start == rows.stop:
            assert all((gradient[group] == 0).all() for gradient in gradients[1:])
            continue
        alone = epigrad.linear_backward(grad[rows], x[rows], w[group], bias[group], activation="relu", **own)
        forward = epigrad.linear(x[rows], w[group], bias[group], activation="relu", **own)
        np.testing.assert_array_equal(y[rows], forward)
        np.testing.assert_array_equal(gradients[0][rows], alone[0])
        for all_groups, one in zip(gradients[1:], alone[1:]):
            np.testing.assert_array_equal(all_groups[group], one)


def test_saved_and_accumulated():
    x, w, grad = draw(M, K), draw(GROUPS, N, K), draw(M, N)
    y, pre = epigrad.linear(x, w, activation="gelu", save="pre", offsets=ENDS)
    d_w = np.ones_like(w)
    again = epigrad.linear_backward(grad, x, w, activation="gelu", saved=pre, offsets=ENDS)
    epigrad.linear_backward(grad, x, w, activation="gelu", saved=pre, offsets=ENDS, out=(None, d_w, None),
                            accumulate=True)
    np.testing.assert_allclose(d_w, again[1] + 1, rtol=1e-6, atol=1e-6)
    assert (d_w[1] == 1).all()


@pytest.mark.parametrize("change, message", [
    ({"offsets": ENDS.astype(np.int64)}, "offsets has elements of format \"l\"; expected int32"),
    ({"offsets": ENDS[:3]}, r"offsets.shape is (3,); expected (4,)"),
    ({"offsets": np.array([4, 3, 9, 10], np.int32)}, "offsets[1] is 3; expected the end of that group, 4 to 12"),
    ({"w": draw(N, K)}, "w.shape is (5, 7); expected (groups, N, K) with offsets"),
    ({"x": draw(3, 4, K)}, "x.shape is (3, 4, 7); expected (rows, 7) with offsets"),
    ({"bias": draw(N)}, "bias.shape is (5,); expected (4, 5)"),
])
def test_what_is_refused(change, message):
    arrays = {"x": draw(M, K), "w": draw(GROUPS, N, K), "bias": draw(GROUPS, N), "offsets": ENDS} | change
    with pytest.raises((WRONG, TypeError)) as failure:
        epigrad.linear(**arrays)
    assert message in str(failure.value)

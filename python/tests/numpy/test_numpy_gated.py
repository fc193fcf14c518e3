# SPDX-License-Identifier: Apache-2.0
"""Gated units over NumPy: values beside double precision, views of one weight, subsets, and what is refused."""
import ml_dtypes
import numpy as np
import pytest

import epigrad

DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
# Unit roundoff of the type that is stored.
ROUNDOFF = {np.float64: 2.0**-53, np.float32: 2.0**-24, np.float16: 2.0**-11, ml_dtypes.bfloat16: 2.0**-8}

ACT = {
    "none": (lambda v: v, np.ones_like),
    "relu": (lambda v: np.maximum(v, 0), lambda v: (v > 0).astype(v.dtype)),
    "sigmoid": (lambda v: 1 / (1 + np.exp(-v)), lambda v: np.exp(-v) / (1 + np.exp(-v)) ** 2),
    "silu": (lambda v: v / (1 + np.exp(-v)), lambda v: (1 + np.exp(-v) * (1 + v)) / (1 + np.exp(-v)) ** 2),
}
WRONG = epigrad.ArgumentError


class Unit:
    """Inputs, whose values are multiples of 1/4, so that the products of f32 have no rounding; and what is expected."""

    def __init__(self, dtype=np.float64, activation="silu", lead=(5,), k=7, n=3, batch=(), bias=True):
        rng = np.random.default_rng(7)
        draw = lambda *shape: (rng.integers(-4, 5, shape) / 4).astype(dtype)
        self.dtype, self.activation = dtype, activation
        self.x, self.grad = draw(*batch, *lead, k), draw(*batch, *lead, n)
        self.w, self.w_up = draw(*batch, n, k), draw(*batch, n, k)
        self.bias, self.bias_up = (draw(n), draw(n)) if bias else (None, None)
        self.expect()

    def expect(self):
        wide = lambda value: np.zeros(1) if value is None else value.astype(np.float64)
        x, w, w_up, grad = (wide(value) for value in (self.x, self.w, self.w_up, self.grad))
        act, derivative = ACT[self.activation]
        rows = int(np.prod(x.shape[w.ndim - 2:-1]))
        of_rows = lambda value: value.reshape(*w.shape[:-2], rows, value.shape[-1])
        sums = lambda value: value.sum(tuple(range(value.ndim - 1)))
        x_rows, transposed = of_rows(x), np.swapaxes
        self.pre = (x_rows @ transposed(w, -1, -2)).reshape(grad.shape) + wide(self.bias)
        self.pre_up = (x_rows @ transposed(w_up, -1, -2)).reshape(grad.shape) + wide(self.bias_up)
        self.y = act(self.pre) * self.pre_up
        d_gate, d_up = grad * self.pre_up * derivative(self.pre), grad * act(self.pre)

        def gradients(x_rows, w, w_up, d_gate, d_up):
            d_x = of_rows(d_gate) @ w + of_rows(d_up) @ w_up
            return [d_x.reshape(x.shape), transposed(of_rows(d_gate), -1, -2) @ x_rows, sums(d_gate),
                    transposed(of_rows(d_up), -1, -2) @ x_rows, sums(d_up)]

        self.gradients = gradients(x_rows, w, w_up, d_gate, d_up)
        self.sizes = gradients(*(np.abs(value) for value in (x_rows, w, w_up, d_gate, d_up)))
        if self.bias is None:
            self.gradients[2] = self.gradients[4] = None

    def forward(self, **named):
        return epigrad.linear(self.x, self.w, self.bias, activation=self.activation, w_up=self.w_up,
                              bias_up=self.bias_up, **named)

    def backward(self, saved=None, **named):
        return epigrad.linear_backward(self.grad, self.x, self.w, self.bias, activation=self.activation, saved=saved,
                                       w_up=self.w_up, bias_up=self.bias_up, **named)

    def near(self, got, expected, size=1.0):
        """`size`: of the terms that were summed, each of which has been rounded to the type before."""
        if expected is None:
            assert got is None
            return
        assert got.shape == expected.shape and got.dtype == self.dtype
        roundoff, terms = ROUNDOFF[self.dtype], 4 + self.x.size + self.w.shape[-2]
        computed = 2.0**-53 if self.dtype is np.float64 else 2.0**-24
        bound = roundoff * (1 + np.abs(expected) + 2 * size) + computed * terms * size
        assert np.all(np.abs(got.astype(np.float64) - expected) <= bound)

    def check_gradients(self, got, need=(True,) * 5):
        for value, wanted, expected, size in zip(got, need, self.gradients, self.sizes):
            self.near(value, expected if wanted else None, size)

    def check(self, save):
        result = self.forward(save=save)
        y, saved = result if save else (result, None)
        self.near(y, self.y)
        if save:
            self.near(saved[0], self.pre)
            self.near(saved[1], self.pre_up)
        self.check_gradients(self.backward(saved))


@pytest.mark.parametrize("save", [None, "pre"])
@pytest.mark.parametrize("activation", ACT)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype, activation, save):
    Unit(dtype, activation).check(save)
    Unit(dtype, activation, bias=False).check(save)


@pytest.mark.parametrize("activation", epigrad.activations)
def test_every_activation(activation):
    """The gate is what the layer alone computes."""
    unit = Unit(lead=(9,))
    gate = epigrad.linear(unit.x, unit.w, unit.bias, activation=activation)
    up = epigrad.linear(unit.x, unit.w_up, unit.bias_up)
    y = epigrad.linear(unit.x, unit.w, unit.bias, activation=activation, w_up=unit.w_up, bias_up=unit.bias_up)
    assert np.allclose(y, gate * up, rtol=1e-14, atol=1e-14)
    got = epigrad.linear_backward(unit.grad, unit.x, unit.w, unit.bias, activation=activation, w_up=unit.w_up,
                                  bias_up=unit.bias_up)
    of_gate = epigrad.linear_backward(unit.grad * up, unit.x, unit.w, unit.bias, activation=activation)
    of_up = epigrad.linear_backward(unit.grad * gate, unit.x, unit.w_up, unit.bias_up)
    for value, expected in zip(got, (of_gate[0] + of_up[0], *of_gate[1:], *of_up[1:])):
        assert np.allclose(value, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("lead, batch", [((), ()), ((2, 3), ()), ((3,), (4,)), ((2, 3), (4,)), ((3,), (0,))])
def test_leading_dimensions(lead, batch):
    for save in (None, "pre"):
        Unit(lead=lead, batch=batch).check(save)


@pytest.mark.parametrize("m, k, n", [(0, 4, 3), (3, 0, 2), (3, 4, 0)])
def test_empty(m, k, n):
    for bias in (True, False):
        for save in (None, "pre"):
            Unit(lead=(m,), k=k, n=n, bias=bias).check(save)


def test_views_of_one_weight():
    """Both weights one after the other, rows in turn, and (K, N): read, and written, where they lie."""
    unit = Unit()
    for both in (np.empty((6, 7)), np.empty((7, 6)).T):
        for gate, up in ((slice(0, 3), slice(3, 6)), (slice(0, 6, 2), slice(1, 6, 2))):
            if both.flags.f_contiguous and gate.step == 2:
                continue  # no stride of 1 is left
            both[gate], both[up] = unit.w, unit.w_up
            d_both = np.full_like(both, np.nan)
            got = epigrad.linear(unit.x, both[gate], unit.bias, activation="silu", w_up=both[up], bias_up=unit.bias_up)
            unit.near(got, unit.y)
            epigrad.linear_backward(unit.grad, unit.x, both[gate], unit.bias, activation="silu", w_up=both[up],
                                    bias_up=unit.bias_up, out=(None, d_both[gate], None, d_both[up], None))
            unit.near(d_both[gate], unit.gradients[1], unit.sizes[1])
            unit.near(d_both[up], unit.gradients[3], unit.sizes[3])


def test_subsets():
    unit = Unit()
    for bits in range(1, 32):
        need = [bool(bits >> i & 1) for i in range(5)]
        unit.check_gradients(unit.backward(need=need), need)


def test_out_and_accumulate():
    unit = Unit(ml_dtypes.bfloat16)
    out = tuple(np.empty((5, 3), unit.dtype) for _ in range(3))
    y, saved = unit.forward(save="pre", out=(out[0], out[1:]))
    assert y is out[0] and saved[0] is out[1] and saved[1] is out[2]
    y, saved = unit.forward(save="pre", out=(out[0], None))
    assert y is out[0] and np.array_equal(saved[0], out[1]) and np.array_equal(saved[1], out[2])
    sums = [np.ones(value.shape, np.float32) for value in unit.gradients[1:]]
    d_x, *got = unit.backward(saved, out=(None, *sums), accumulate=True)
    assert all(a is b for a, b in zip(got, sums)) and d_x.dtype == unit.dtype
    for value, expected, size in zip(got, unit.gradients[1:], unit.sizes[1:]):
        assert np.all(np.abs(value - 1 - expected) <= 2.0**-7 * size)  # terms have 8 bits on their way
    with pytest.raises(WRONG, match="^accumulate is True, and out lacks d_w_up and d_bias_up"):
        unit.backward(saved, out=(None, *sums[:2], None, None), accumulate=True)


def test_workspace_limit():
    unit = Unit(np.float32, lead=(900,), k=40, n=30)
    unit.check_gradients(unit.backward(workspace_limit=200 << 10))


def test_refused():
    unit = Unit(np.float32)
    for match, named in [(r"^save is 'y' with w_up", {"save": "y"}), (r"^save is 'all'", {"save": "all"}),
                         (r"residual is given for a gated unit", {"residual": unit.grad}),
                         (r"^out\[1\] is a ndarray; expected the pair \(pre, pre_up\)",
                          {"save": "pre", "out": (None, unit.grad)}),
                         (r"^pre_up.shape is \(5, 7\); expected \(5, 3\)",
                          {"save": "pre", "out": (None, (unit.grad.copy(), unit.x.copy()))})]:
        with pytest.raises(WRONG, match=match):
            unit.forward(**named)
    for match, args, named in [(r"^bias_up is given without w_up", (), {"bias_up": unit.bias}),
                               (r"^w_up.shape is \(3, 6\); expected \(3, 7\)", (), {"w_up": unit.w[:, :6]}),
                               (r"^bias_up.shape is \(2,\); expected \(3,\)", (),
                                {"w_up": unit.w_up, "bias_up": unit.bias[:2]}),
                               (r"^w_up of shape \(3, 7\) has strides", (),
                                {"w_up": np.zeros((3, 14), "f")[:, ::2]})]:
        with pytest.raises(WRONG, match=match):
            epigrad.linear(unit.x, unit.w, *args, **named)
        with pytest.raises(WRONG, match=match):
            epigrad.linear_backward(unit.grad, unit.x, unit.w, *args, **named)
    with pytest.raises(TypeError, match=r"^w_up has elements of f64; expected f32"):
        epigrad.linear(unit.x, unit.w, w_up=unit.w_up.astype(float))
    for match, named in [(r"^saved is a ndarray; expected the pair", {"saved": unit.grad}),
                         (r"^save is 'y' with w_up", {"saved": unit.grad, "save": "y"}),
                         (r"^out has 3 members; expected 5, for d_x, d_w, d_bias, d_w_up, d_bias_up",
                          {"out": (None,) * 3}),
                         (r"^need has 3 members; expected 5", {"need": (True,) * 3}),
                         (r"^saved_up.shape is \(5, 7\)", {"saved": (unit.grad, unit.x)}),
                         (r"^d_w_up.shape is \(7, 3\)", {"out": (None, None, None, np.empty((7, 3), "f"), None)})]:
        with pytest.raises(WRONG, match=match):
            unit.backward(**named)

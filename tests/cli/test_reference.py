# SPDX-License-Identifier: Apache-2.0
"""The reference against finite differences: it must be right before anything is compared with it."""

import numpy as np
import pytest

from reference import ACTIVATIONS, FROM_Y, backward, forward

STEP = 1e-6


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_derivatives(name):
    act, grad, from_y = ACTIVATIONS[name]
    x = np.linspace(-8, 8, 1001) + 0.0137  # away from the kinks at 0 and +-3
    numeric = (act(x + STEP) - act(x - STEP)) / (2 * STEP)
    np.testing.assert_allclose(grad(x), numeric, atol=1e-8)
    if name in FROM_Y:
        np.testing.assert_allclose(from_y(act(x)), numeric, atol=1e-8)


@pytest.mark.parametrize("shapes", [((4, 3), (3, 2)), ((2, 4, 3), (3, 2)), ((4, 3), (2, 3, 2)), ((1, 4, 3), (2, 3, 2))])
def test_gradients(random, shapes):
    a, b = (random.standard_normal(shape) for shape in shapes)
    bias = random.standard_normal(2)
    grad = random.standard_normal((a @ b).shape)
    loss = lambda a, b, bias: (forward(a, b, bias, activation="gelu")["y"][0] * grad).sum()
    found = backward(a, b, grad, bias, activation="gelu", dtype="f64")
    for place, (name, x) in enumerate({"d_a": a, "d_b": b, "d_bias": bias}.items()):
        numeric = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            up, down = [a.copy(), b.copy(), bias.copy()], [a.copy(), b.copy(), bias.copy()]
            up[place][index] += STEP
            down[place][index] -= STEP
            numeric[index] = (loss(*up) - loss(*down)) / (2 * STEP)
        np.testing.assert_allclose(found[name][0], numeric, atol=1e-7)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""layer.c in Python, with NumPy; docs/tutorial/two-languages.md shows both, part by part."""
import numpy as np

import epigrad


def f32(numbers):
    return np.array(numbers, dtype=np.float32)


def show(name, array):
    print(f"{name:6}", *(f"{number:.4f}" for number in array.ravel()))


x = f32([[1, 2, 3], [4, 5, 6]])
w = f32([[.1, .3, -.5],
         [-.2, .4, .6]])
bias = f32([1, -1])
grad = f32([[1, 1], [1, 1]])

y, pre = epigrad.linear(
    x, w, bias,
    activation="gelu", save="pre")

d_x, d_w, d_bias = epigrad.linear_backward(
    grad, x, w, bias,
    activation="gelu", saved=pre)

show("y", y)
show("d_x", d_x)
show("d_w", d_w)
show("d_bias", d_bias)

epigrad.linear_backward(
    grad, x, w, bias,
    activation="gelu", saved=pre,
    need=(False, True, True),
    out=(None, d_w, d_bias), accumulate=True)
show("twice", d_bias)

try:
    epigrad.linear(x, w[:, :2], bias)
except epigrad.ArgumentError as error:
    print(error)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""linear.c from Python, by ctypes: python3 examples/linear.py [build/src/libepigrad.so]

The structs are those of epigrad/epigrad.h, field by field. A field that is not given is 0, its default.
"""
import ctypes as c
import sys


def struct(*fields):
    return type("Struct", (c.Structure,), {"_fields_": fields})


Layer = struct(("size", c.c_size_t), ("m", c.c_int64), ("k", c.c_int64), ("n", c.c_int64), ("batch", c.c_int64),
               ("dtype", c.c_int), ("activation", c.c_int), ("math", c.c_int), ("nonfinite", c.c_int))
Matrix = struct(("data", c.c_void_p), ("offset", c.c_size_t), ("ld", c.c_int64), ("batch_stride", c.c_int64),
                ("layout", c.c_int), ("dtype", c.c_int))
Vector = struct(("data", c.c_void_p), ("offset", c.c_size_t), ("dtype", c.c_int))
Workspace = struct(("data", c.c_void_p), ("offset", c.c_size_t), ("bytes", c.c_size_t))
Chain = struct(("saved", Matrix), ("source", c.c_int), ("activation", c.c_int), ("d_bias", Vector))
ForwardArgs = struct(("size", c.c_size_t), ("a", Matrix), ("b", Matrix), ("bias", Vector), ("residual", Matrix),
                     ("y", Matrix), ("pre", Matrix), ("packed_b", c.c_void_p), ("workspace", Workspace),
                     ("workspace_limit", c.c_size_t))
DataParallel = struct(("comm", c.c_void_p), ("reduction", c.c_int), ("sharding", c.c_int), ("sums", c.c_int))
BackwardArgs = struct(("size", c.c_size_t), ("a", Matrix), ("b", Matrix), ("bias", Vector), ("grad", Matrix),
                      ("source", c.c_int), ("pre", Matrix), ("y", Matrix), ("d_a", Matrix), ("d_b", Matrix),
                      ("d_bias", Vector), ("grad_pre", Matrix), ("accumulate", c.c_int), ("chain", Chain),
                      ("packed_b", c.c_void_p), ("workspace", Workspace), ("workspace_limit", c.c_size_t),
                      ("data_parallel", DataParallel))
GELU = 2  # from the table in epigrad/activation.h

epigrad = c.CDLL(sys.argv[1] if len(sys.argv) > 1 else "libepigrad.so.0.1")
epigrad.eg_last_error.restype = c.c_char_p


def call(function, *arguments):
    if function(*arguments) != 0:
        raise RuntimeError(epigrad.eg_last_error().decode())


def floats(*numbers):
    return (c.c_float * len(numbers))(*numbers)


def at(array):
    return Matrix(data=c.addressof(array))  # dense and row-major; of NumPy's arrays, array.ctypes.data


a, b = floats(1, 2, 3, 4, 5, 6), floats(.1, -.2, .3, .4, -.5, .6)
bias, grad = floats(1, -1), floats(1, 1, 1, 1)
y, d_b = floats(0, 0, 0, 0), floats(0, 0, 0, 0, 0, 0)

layer = Layer(size=c.sizeof(Layer), m=2, k=3, n=2, activation=GELU)
inputs = {"a": at(a), "b": at(b), "bias": Vector(data=c.addressof(bias))}
forward = ForwardArgs(size=c.sizeof(ForwardArgs), y=at(y), **inputs)
backward = BackwardArgs(size=c.sizeof(BackwardArgs), grad=at(grad), d_b=at(d_b), **inputs)

cpu = c.c_void_p()
call(epigrad.eg_open, None, c.byref(cpu))
call(epigrad.eg_forward, cpu, c.byref(layer), c.byref(forward))
call(epigrad.eg_backward, cpu, c.byref(layer), c.byref(backward))
epigrad.eg_close(cpu)

for i in range(2):
    print(f"y[{i}]   {y[2 * i]:8.4f} {y[2 * i + 1]:8.4f}")
for i in range(3):
    print(f"d_b[{i}] {d_b[2 * i]:8.4f} {d_b[2 * i + 1]:8.4f}")

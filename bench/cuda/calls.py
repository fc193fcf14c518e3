# SPDX-License-Identifier: Apache-2.0
"""The calls of a training step by epigrad's C interface."""

import torch

import epigrad_c as eg


class Calls:
    """sets[i]: one call a layer, of one set of operands. All use one workspace, as they follow each other."""

    def __init__(self, library, layers, sets):
        self.library, self.layers, self.calls = library, layers, sets
        size, most = eg.c.c_size_t(), 0
        for layer, call in zip(layers, sets[0]):
            library.check(library.call("_workspace", layer, call, eg.c.byref(size)))
            most = max(most, size.value)
        self.scratch = torch.empty(most + 256, dtype=torch.uint8)
        for call in sum(sets, []):
            call.workspace = eg.Workspace(data=(self.scratch.data_ptr() + 255) // 256 * 256, bytes=most)

    def run(self, i):
        for layer, call in zip(self.layers, self.calls[i]):
            self.library.check(self.library.call("", layer, call))

    def steps(self):
        return sum((self.library.steps(layer, call) for layer, call in zip(self.layers, self.calls[0])), [])


def layer_of(m, k, n, dtype, activation):
    return eg.Layer(size=eg.c.sizeof(eg.Layer), m=m, k=k, n=n, batch=1, dtype=dtype,
                    activation=eg.ACTIVATIONS.index(activation))

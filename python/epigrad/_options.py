# SPDX-License-Identifier: Apache-2.0
"""Names of options as the numbers of the library."""
from ._library import ArgumentError, activations

ACTIVATION = {name: value for name, (value, _) in activations.items()}
FROM_Y = frozenset(name for name, (_, from_y) in activations.items() if from_y)
MATH = {"default": 0, "strict": 1, "fast": 2}
NONFINITE = {"zero": 0, "propagate": 1}
SPLIT = {"columns": 0, "rows": 1}
INTO = {"d_x": 1, "d_w": 2, "d_bias": 4, "d_w_up": 16, "d_bias_up": 32}  # eg_into, by the names of results


def number(table, name, value):
    """The number of an option; an unknown one is an ArgumentError that lists those there are."""
    try:
        return table[value]
    except (KeyError, TypeError):
        raise ArgumentError(f"{name} is {value!r}; expected one of {', '.join(map(repr, table))}") from None

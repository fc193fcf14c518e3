# SPDX-License-Identifier: Apache-2.0
"""On the CPU the library takes the threads of torch's own parallel loops. OpenMP's threads spin for milliseconds after
each of those, and threads beside them would wait for a processor."""
from __future__ import annotations

import ctypes

import torch

from .. import _library

_NEEDED = "GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads"


def share() -> None:
    """Where torch was built without OpenMP, or with a runtime that lacks GNU's entry, the library keeps its own."""
    try:
        loaded = ctypes.CDLL(torch._C.__file__)  # whatever it needs is found through it, torch's OpenMP too
        addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in _NEEDED]
    except (OSError, AttributeError):
        return
    _library.use_openmp(*addresses)

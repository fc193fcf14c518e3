# SPDX-License-Identifier: Apache-2.0
"""What differs between array libraries: making an output of the same kind as an input, and the current CUDA stream.

No array library is imported here that the caller has not imported: an array's own type leads to its module."""
import functools
import sys

from ._library import ArgumentError, UnsupportedError


class NumPy:
    """numpy.ndarray, of ml_dtypes' bfloat16 too."""

    @staticmethod
    def empty(like, shape, name):
        return sys.modules["numpy"].empty(shape, like.dtype)

    @staticmethod
    def stream(like):
        return None

    @staticmethod
    def scratch(like):
        """What makes memory for a call on the current stream, of so many elements like those; None: the context's."""
        return None

    @staticmethod
    def finish(made):
        return made


class Torch(NumPy):
    """torch.Tensor, on the CPU and on CUDA. Gradients are the affair of epigrad.torch."""

    @staticmethod
    def empty(like, shape, name):
        return like.new_empty(shape)

    @staticmethod
    def stream(like):
        return sys.modules["torch"].cuda.current_stream(like.device).cuda_stream if like.is_cuda else None

    @staticmethod
    def scratch(like):
        return like.new_empty if like.is_cuda else None

    @staticmethod
    def plain(arrays):
        """Tensors that require grad, without: `__dlpack__`, which older versions are read by, refuses them."""
        return [array.detach() if getattr(array, "requires_grad", False) else array for array in arrays]


def refuse_grad(**arrays):
    """A gradient that torch expects of a tensor would be lost without a word."""
    for name, array in arrays.items():
        if getattr(array, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
            raise ArgumentError(f"{name} requires grad, which this call does not record; expected epigrad.torch, "
                                f"torch.no_grad() or {name}.detach()")


class CuPy(NumPy):
    @staticmethod
    def empty(like, shape, name):
        return sys.modules["cupy"].empty(shape, like.dtype)

    @staticmethod
    def stream(like):
        return sys.modules["cupy"].cuda.get_current_stream().ptr

    @staticmethod
    def scratch(like):
        return functools.partial(sys.modules["cupy"].empty, dtype=like.dtype)


class Jax(NumPy):
    """jax.Array. It cannot be written: results are made as NumPy arrays, and given to JAX without a copy where JAX
    takes them."""

    @staticmethod
    def empty(like, shape, name):
        if like.device.platform != "cpu":
            raise UnsupportedError(f"{name} is a jax.Array on {like.device}; expected one on the CPU, or epigrad.jax")
        import numpy
        return numpy.empty(shape, like.dtype)

    @staticmethod
    def finish(made):
        return sys.modules["jax"].numpy.asarray(made)


class Buffer(NumPy):
    """Anything else with the buffer protocol, such as memoryview and array.array: results are memoryviews."""

    @staticmethod
    def empty(like, shape, name):
        view = memoryview(like)
        if 0 in shape:
            raise UnsupportedError(f"{name} is a {type(like).__name__}, of which no empty result can be made; "
                                   "expected a NumPy array")
        size = view.itemsize
        for extent in shape:
            size *= extent
        return memoryview(bytearray(size)).cast(view.format, shape)


_BY_MODULE = {"numpy": NumPy, "torch": Torch, "cupy": CuPy, "jax": Jax, "jaxlib": Jax}
_KNOWN = {}


def kind_of(array, name):
    """The class above that an array belongs to."""
    kind = _KNOWN.get(type(array))
    if kind is None:
        for base in type(array).__mro__:
            kind = _BY_MODULE.get(base.__module__.partition(".")[0])
            if kind is not None:
                break
        else:
            try:
                memoryview(array).release()
            except TypeError:
                if not hasattr(array, "__dlpack__"):
                    raise TypeError(f"{name} is a {type(array).__name__}; expected an array: an object with DLPack or "
                                    "the buffer protocol") from None
                kind = Unknown
            else:
                kind = Buffer
        _KNOWN[type(array)] = kind
    return kind


class Unknown(NumPy):
    """Speaks DLPack, and nothing more is known of it: outputs have to be given."""

    @staticmethod
    def empty(like, shape, name):
        raise UnsupportedError(f"{name} is a {type(like).__name__}, of which results cannot be made; expected out=")


def shape_of(array):
    shape = getattr(array, "shape", None)
    return memoryview(array).shape if shape is None else tuple(shape)

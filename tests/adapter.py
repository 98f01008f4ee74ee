"""The library under test, as the tests of clauses see it: dlarray, or what DLPACK_PY_LIBRARY names.

An adapter makes an array and tells its values, pointer, shape, strides and state. All else that the tests use is
common to array libraries: indexing, item assignment, transpose(), weak references, classes derived from Array.
"""

import os
import sys
from types import SimpleNamespace

import pytest

# The condition is a string: pytest evaluates it in the module of the test, and the environments of some libraries have
# no NumPy to import here.
needs_versioned_numpy = pytest.mark.skipif(
    "numpy.lib.NumpyVersion(numpy.__version__) < '2.1.0'", reason="NumPy before 2.1 knows no versioned capsules"
)


def dlarray_library():
    import dlarray

    return SimpleNamespace(
        name="dlarray",
        version=(1, 3),  # what versioned capsules say
        names_values=True,  # error messages show the value that was wrong
        Array=dlarray.Array,
        from_dlpack=dlarray.from_dlpack,
        array=dlarray.array,  # from nested lists and the name of a dtype
        values=lambda a: a.tolist(),
        pointer=lambda a: a.data_ptr,
        shape=lambda a: a.shape,
        strides=lambda a: a.strides,  # in elements
        dtype=lambda a: a.dtype,
        readonly=lambda a: a.readonly,
        references=sys.getrefcount,  # to compare with itself
        set_readonly=lambda a: a.setflags(writeable=False),
        set_writeable=lambda a: a.setflags(writeable=True),
        broadcast_to=lambda a, shape: a.broadcast_to(shape),
        as_class=lambda kind, a: kind(a),  # a view, of a class that is derived from Array
    )


def numpy_library():
    import numpy

    return SimpleNamespace(
        name="numpy",
        version=(1, 0),
        names_values=False,
        Array=numpy.ndarray,
        from_dlpack=numpy.from_dlpack,
        array=lambda values, dtype: numpy.array(values, dtype=dtype),
        values=lambda a: a.tolist(),
        pointer=lambda a: a.__array_interface__["data"][0],
        shape=lambda a: a.shape,
        strides=lambda a: tuple(stride // a.itemsize for stride in a.strides),
        dtype=lambda a: a.dtype.name,
        readonly=lambda a: not a.flags.writeable,
        references=sys.getrefcount,
        set_readonly=lambda a: a.setflags(write=False),
        set_writeable=lambda a: a.setflags(write=True),
        broadcast_to=numpy.broadcast_to,
        as_class=lambda kind, a: a.view(kind),
    )


def torch_library():
    """For tests/peers: many tests of clauses make negative strides, at which PyTorch ends the process (D11)."""
    import torch

    return SimpleNamespace(
        name="torch",
        version=(1, 3),
        names_values=False,
        Array=torch.Tensor,
        from_dlpack=torch.from_dlpack,
        array=lambda values, dtype: torch.tensor(values, dtype=getattr(torch, dtype)),
        values=lambda a: a.tolist(),
        pointer=lambda a: a.data_ptr(),
        shape=lambda a: tuple(a.shape),
        strides=lambda a: a.stride(),
        dtype=lambda a: str(a.dtype).replace("torch.", ""),
        readonly=lambda a: False,  # it knows no such thing
        references=lambda a: a._use_count(),  # all of these are one for Python
        broadcast_to=lambda a, shape: a.expand(shape),
        as_class=lambda kind, a: a.as_subclass(kind),
    )


LIBRARIES = {"dlarray": dlarray_library, "numpy": numpy_library, "torch": torch_library}

library = LIBRARIES[os.environ.get("DLPACK_PY_LIBRARY", "dlarray")]()

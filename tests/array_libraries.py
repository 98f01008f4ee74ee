"""Descriptions of array libraries: `library`, which the tests of clauses test, and the libraries of docs/libraries.md.

`library` is dlarray, or the library that DLPACK_PY_LIBRARY names. Each function below describes a library: how an array
is made, and how its values, pointer, shape, strides and state are read. The tests of clauses also use what all array
libraries have: indexing, item assignment, weak references, classes derived from Array. The other libraries have fewer
fields:

array                    from nested lists and the name of a dtype; fails for a dtype that the library lacks
transpose, broadcast_to
make                     called with a function that makes an array; returns the library's array of it
write                    sets every element to the value, if the library can write
device                   the argument of from_dlpack that means the CPU
export                   the keywords of __dlpack__, if the library warns without them
"""

import importlib.metadata
import importlib.util
import os
import sys
from types import SimpleNamespace

import dltensor
import pytest

# The conditions are strings: pytest evaluates them in the module of the test. Some environments have no NumPy.
needs_versioned_numpy = pytest.mark.skipif(
    "numpy.lib.NumpyVersion(numpy.__version__) < '2.1.0'", reason="NumPy before 2.1 knows no versioned capsules"
)
needs_writable_numpy = pytest.mark.skipif(
    "numpy.lib.NumpyVersion(numpy.__version__) < '2.2.5'",
    reason="NumPy before 2.2.5 makes every imported array read-only",
)

# Not every library can compute with these dtypes, but every library can exchange them.
STORAGE = {"float16": (2, 16, 1), **dltensor.STORED, "float4_e2m1fnx2": (17, 4, 2)}
NAMES = {dtype: name for name, dtype in {**STORAGE, **dltensor.DTYPES}.items()}


def fill(a, value):
    a[...] = value


def dlarray():
    import dlarray

    return SimpleNamespace(
        name="dlarray",
        version=(1, 3),  # in versioned capsules
        names_values=True,  # error messages show the wrong value
        Array=dlarray.Array,
        from_dlpack=dlarray.from_dlpack,
        array=dlarray.array,  # from nested lists and the name of a dtype
        values=lambda a: a.tolist(),
        pointer=lambda a: a.data_ptr,
        shape=lambda a: a.shape,
        strides=lambda a: a.strides,  # in elements
        dtype=lambda a: a.dtype,
        readonly=lambda a: a.readonly,
        references=sys.getrefcount,  # a count that is compared before and after
        set_readonly=lambda a: a.setflags(writeable=False),
        set_writeable=lambda a: a.setflags(writeable=True),
        broadcast_to=lambda a, shape: a.broadcast_to(shape),
        as_class=lambda kind, a: kind(a),  # a view, of a class that is derived from Array
        transpose=lambda a: a.transpose(),
        write=fill,
        device="cpu",
    )


def numpy():
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
        transpose=lambda a: a.T,
        write=fill,
        device="cpu",
    )


def torch():
    """Not for the tests of clauses: many make negative strides, which end the process in PyTorch (D11)."""
    import torch

    def array(values, dtype):
        if dtype == "float4_e2m1fnx2":
            return torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        return torch.tensor(values, dtype=getattr(torch, dtype))

    return SimpleNamespace(
        name="torch",
        version=(1, 3),
        names_values=False,
        Array=torch.Tensor,
        from_dlpack=torch.from_dlpack,
        array=array,
        values=lambda a: a.tolist(),
        pointer=lambda a: a.data_ptr(),
        shape=lambda a: tuple(a.shape),
        strides=lambda a: a.stride(),
        dtype=lambda a: str(a.dtype).replace("torch.", "").replace("_x2", "x2"),
        readonly=lambda a: False,  # PyTorch has no read-only tensors
        references=lambda a: a._use_count(),  # all uses share one Python reference
        broadcast_to=lambda a, shape: a.expand(shape),
        as_class=lambda kind, a: a.as_subclass(kind),
        transpose=lambda a: a.T,
        write=fill,
        device="cpu",
    )


def by_export(**fields):
    """Shape, strides, address and dtype read from the exported tensor, for a library that does not show them."""

    def says(a):
        return dltensor.read(a.__dlpack__(**fields.get("export", {})))

    return SimpleNamespace(
        **{
            "pointer": lambda a: (says(a).data or 0) + says(a).byte_offset,
            "shape": lambda a: says(a).shape or (),
            "strides": lambda a: says(a).strides or dltensor.compact(says(a).shape or ()),
            "dtype": lambda a: NAMES[says(a).dtype],
            "readonly": lambda a: True,
            "device": "cpu",
            **fields,
        }
    )


def by_numpy(wrap, **fields):
    """NumPy makes the arrays; `wrap` makes the library's arrays of them without a copy."""
    from numpy.lib.stride_tricks import as_strided

    maker = numpy()
    maker.name, maker.from_dlpack = fields["name"], fields["from_dlpack"]
    maker.broadcast_to = lambda a, shape: as_strided(a, shape, (0, a.itemsize))  # that of NumPy is read-only

    def make(function):
        a = function(maker)
        return wrap(a) if isinstance(a, maker.Array) else a

    return SimpleNamespace(**{**vars(maker), "make": make, **fields})


def jax():
    import jax
    import numpy

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return by_export(
        name="jax",
        array=lambda values, dtype: jax.numpy.asarray(values, getattr(jax.numpy, dtype)),
        values=lambda a: numpy.asarray(jax.numpy.copy(a)).tolist(),  # a caches the values that it has shown
        transpose=lambda a: a.T,
        broadcast_to=jax.numpy.broadcast_to,
        from_dlpack=jax.dlpack.from_dlpack,
        device=jax.devices("cpu")[0],
    )


def pyarrow_array():
    import pyarrow

    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return by_export(
        name="pyarrow.Array",
        array=lambda values, dtype: pyarrow.array(values, pyarrow.from_numpy_dtype(dtype)),
        values=lambda a: a.to_pylist(),
        dtype=lambda a: names.get(str(a.type), str(a.type)),
        export={"max_version": (1, 3)},
        from_dlpack=pyarrow.Array.from_dlpack,
        device=dltensor.CPU,
    )


def pyarrow_tensor():
    import pyarrow

    return by_numpy(
        pyarrow.Tensor.from_numpy,
        name="pyarrow.Tensor",
        values=lambda a: a.to_numpy().tolist(),
        pointer=lambda a: a.to_numpy().__array_interface__["data"][0],
        shape=lambda a: tuple(a.shape),
        strides=lambda a: tuple(stride // a.to_numpy().itemsize for stride in a.strides),
        dtype=lambda a: a.to_numpy().dtype.name,
        readonly=lambda a: not a.is_mutable,
        write=lambda a, value: fill(a.to_numpy(), value),
        export={"max_version": (1, 3)},
        from_dlpack=pyarrow.Tensor.from_dlpack,
        device=dltensor.CPU,
    )


def tvm_ffi():
    import numpy
    import tvm_ffi

    return by_numpy(
        tvm_ffi.from_dlpack,
        name="tvm_ffi",
        values=lambda a: numpy.from_dlpack(a).tolist(),
        pointer=lambda a: a.data_ptr(),
        shape=lambda a: tuple(a.shape),
        strides=lambda a: tuple(a.strides),
        dtype=lambda a: NAMES[dltensor.read(a.__dlpack__()).dtype],  # a.dtype has no name for complex dtypes
        readonly=lambda a: False,  # the library has no read-only arrays
        write=lambda a, value: fill(numpy.from_dlpack(a), value),
        from_dlpack=tvm_ffi.from_dlpack,
        device=tvm_ffi.device("cpu"),
    )


def array_api_strict():
    import array_api_strict as strict
    import numpy

    return SimpleNamespace(
        name="array_api_strict",
        array=lambda values, dtype: strict.asarray(values, dtype=getattr(strict, dtype)),
        values=lambda a: numpy.asarray(a).tolist(),
        pointer=lambda a: numpy.asarray(a).__array_interface__["data"][0],
        shape=lambda a: a.shape,
        strides=lambda a: tuple(stride // numpy.asarray(a).itemsize for stride in numpy.asarray(a).strides),
        dtype=lambda a: numpy.asarray(a).dtype.name,
        readonly=lambda a: not numpy.asarray(a).flags.writeable,
        set_readonly=lambda a: numpy.asarray(a).setflags(write=False),
        transpose=lambda a: a.T,
        broadcast_to=strict.broadcast_to,
        write=lambda a, value: fill(a, strict.asarray(value, dtype=a.dtype)),
        from_dlpack=strict.from_dlpack,
        device=strict.Device("CPU_DEVICE"),
    )


def tensorflow():
    import tensorflow

    return by_export(
        name="tensorflow",
        array=lambda values, dtype: tensorflow.constant(values, dtype),
        values=lambda a: a.numpy().tolist(),
        dtype=lambda a: a.dtype.name,
        transpose=tensorflow.transpose,
        broadcast_to=tensorflow.broadcast_to,
        # from_dlpack of this library takes capsules only.
        from_dlpack=lambda a, **keywords: tensorflow.experimental.dlpack.from_dlpack(a.__dlpack__(), **keywords),
    )


def paddle():
    import paddle

    paddle.set_device("cpu")

    def array(values, dtype):
        return paddle.to_tensor(values).astype(dtype) if dtype in STORAGE else paddle.to_tensor(values, dtype=dtype)

    return SimpleNamespace(
        name="paddle",
        array=array,
        values=lambda a: a.tolist(),
        pointer=lambda a: a.data_ptr(),
        shape=lambda a: tuple(a.shape),
        strides=lambda a: tuple(a.strides),
        dtype=lambda a: NAMES[dltensor.read(a.__dlpack__()).dtype],  # a.dtype confuses uint16 with bfloat16
        readonly=lambda a: False,  # the library has no read-only arrays
        transpose=lambda a: a.T,
        broadcast_to=lambda a, shape: paddle.as_strided(a, shape, (0, 1)),  # paddle.broadcast_to copies
        write=lambda a, value: a.fill_(value),
        from_dlpack=paddle.from_dlpack,
        device=paddle.CPUPlace(),
    )


def mlx():
    import mlx.core as mlx

    mlx.set_default_device(mlx.cpu)
    names = {"bool": "bool_"}

    def evaluated(function):
        a = function(mlx_library)
        mlx.eval(a)
        return a

    mlx_library = by_export(
        name="mlx",
        array=lambda values, dtype: mlx.array(values, getattr(mlx, names.get(dtype, dtype))),
        values=lambda a: a.tolist(),
        transpose=lambda a: a.T,
        broadcast_to=mlx.broadcast_to,
        make=evaluated,
        from_dlpack=mlx.from_dlpack,
        device=mlx.cpu,
    )
    return mlx_library


# The libraries of docs/libraries.md by name: the function that describes the library, and the package with its version.
LIBRARIES = {
    "numpy": (numpy, "numpy"),
    "torch": (torch, "torch"),
    "jax": (jax, "jax"),
    "pyarrow.Array": (pyarrow_array, "pyarrow"),
    "pyarrow.Tensor": (pyarrow_tensor, "pyarrow"),
    "tensorflow": (tensorflow, "tensorflow-cpu"),
    "paddle": (paddle, "paddlepaddle"),
    "mlx": (mlx, "mlx"),
    "tvm_ffi": (tvm_ffi, "apache-tvm-ffi"),
    "array_api_strict": (array_api_strict, "array-api-strict"),
}


def version(name):
    """The version of a library, or None if it is not installed."""
    try:
        return importlib.metadata.version(LIBRARIES[name][1]).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def installed():
    return [name for name in LIBRARIES if version(name)]


library = {"dlarray": dlarray, "numpy": numpy}[os.environ.get("DLPACK_PY_LIBRARY", "dlarray")]()

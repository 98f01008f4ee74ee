"""The peers as adapters, as in tests/adapter.py, for libraries that have less in common.

What an adapter has beside the fields there:

array          as there; fails for a dtype that the library lacks
transpose, broadcast_to
make           called with a function of the adapter that makes an array: hands over what this library makes of it
write          makes every element the value, where the library can write at all
device         what from_dlpack takes for the CPU
export         the keywords of __dlpack__, where it warns without
"""

import importlib.metadata
import importlib.util
from types import SimpleNamespace

import adapter
import dltensor

# What no library can compute with everywhere, and all the same moves.
STORAGE = {
    "float16": (2, 16, 1),
    "bfloat16": (4, 16, 1),
    "float8_e3m4": (7, 8, 1),
    "float8_e4m3": (8, 8, 1),
    "float8_e4m3b11fnuz": (9, 8, 1),
    "float8_e4m3fn": (10, 8, 1),
    "float8_e4m3fnuz": (11, 8, 1),
    "float8_e5m2": (12, 8, 1),
    "float8_e5m2fnuz": (13, 8, 1),
    "float8_e8m0fnu": (14, 8, 1),
    "float6_e2m3fn": (15, 6, 1),
    "float6_e3m2fn": (16, 6, 1),
    "float4_e2m1fn": (17, 4, 1),
    "float4_e2m1fnx2": (17, 4, 2),
}
NAMES = {dtype: name for name, dtype in {**STORAGE, **dltensor.DTYPES}.items()}


def fill(a, value):
    a[...] = value


def ours():
    return SimpleNamespace(
        **vars(adapter.dlarray_library()), transpose=lambda a: a.transpose(), write=fill, device="cpu"
    )


def numpy():
    return SimpleNamespace(**vars(adapter.numpy_library()), transpose=lambda a: a.T, write=fill, device="cpu")


def torch():
    import torch

    library = vars(adapter.torch_library())

    def array(values, dtype):
        if dtype == "float4_e2m1fnx2":
            return torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
        return library["array"](values, dtype)

    return SimpleNamespace(
        **{**library, "array": array, "dtype": lambda a: library["dtype"](a).replace("_x2", "x2")},
        transpose=lambda a: a.T,
        write=fill,
        device="cpu",
    )


def by_export(**fields):
    """Shape, strides, address and dtype by what an array exports, where the library does not tell."""

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
    """Arrays are made in NumPy, and the library's of these, without a copy."""
    from numpy.lib.stride_tricks import as_strided

    maker = numpy()
    maker.name, maker.from_dlpack = fields["name"], fields["from_dlpack"]
    maker.broadcast_to = lambda a, shape: as_strided(a, shape, (0, a.itemsize))  # NumPy's own is read-only

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
        values=lambda a: numpy.asarray(jax.numpy.copy(a)).tolist(),  # what a itself has shown, it shows again
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
        dtype=lambda a: NAMES[dltensor.read(a.__dlpack__()).dtype],  # its own has no name for complex ones
        readonly=lambda a: False,  # it knows no such thing
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
        # It takes capsules only.
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
        dtype=lambda a: NAMES[dltensor.read(a.__dlpack__()).dtype],  # its own takes uint16 for bfloat16
        readonly=lambda a: False,  # it knows no such thing
        transpose=lambda a: a.T,
        broadcast_to=lambda a, shape: paddle.as_strided(a, shape, (0, 1)),  # its own copies
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


# How each is called in the table, what makes its adapter, and the package whose version that is.
PEERS = {
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


def version(peer):
    """Of what is installed, None where nothing is."""
    try:
        return importlib.metadata.version(PEERS[peer][1]).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def installed():
    return [peer for peer in PEERS if version(peer)]

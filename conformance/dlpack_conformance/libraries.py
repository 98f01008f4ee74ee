"""Adapters of public libraries, and load(), which finds an adapter. Each imports its library when it is made."""

import ctypes
import functools
import importlib
import importlib.util
import inspect
from pathlib import Path

import _dlpack_conformance as native

from .adapter import NAMES, Adapter, compact


class Numpy(Adapter):
    name = "numpy"
    # numpy.from_dlpack: "the returned NumPy array is read-only" for data of unversioned producers.
    choices = {"legacy data": "read-only"}

    def __init__(self):
        import numpy

        self.np = numpy
        self.from_dlpack = numpy.from_dlpack
        self.standard = getattr(numpy, "__array_api_version__", "2021.12")  # 1.26 and older tell none

    def make(self, dtype, shape, data):
        return self.np.frombuffer(bytearray(data), dtype).reshape(shape)

    def readonly(self, dtype, shape, data):
        return self.np.frombuffer(data, dtype).reshape(shape)

    def unexportable(self):
        return {
            "foreign byte order": self.np.arange(3, dtype=self.np.dtype("i4").newbyteorder()),
            "dates": self.np.array(["2000-01-01"], "M8[D]"),
            "objects": self.np.array([None]),
            "a stride that is no multiple of the item size": self.np.zeros(3, "i1, i4")["f1"],
        }

    def describe(self, a):
        strides = tuple(stride // a.itemsize for stride in a.strides)
        return a.__array_interface__["data"][0], a.shape, strides, not a.flags.writeable, a.dtype.name

    def values(self, a):
        return a.tobytes()


class Torch(Adapter):
    name = "torch"
    views = {**Adapter.views, "transposed": lambda a: a.mT, "repeated": lambda a: a[:1].expand(4, -1)}

    def __init__(self):
        import torch

        self.torch = torch
        self.from_dlpack = torch.from_dlpack
        # PyTorch names the standard but no version: the parameters that it documents are those of a version.
        parameters = inspect.signature(torch.Tensor.__dlpack__).parameters
        self.standard = "2023.12" if "dl_device" in parameters else "2022.12"
        self.is_hip = torch.version.hip is not None
        if torch.cuda.is_available():
            self.device = (10 if self.is_hip else 2, 0)

    def make_on_device(self, dtype, shape, data):
        return self.make(dtype, shape, data).cuda()

    def current_stream(self):
        handle = self.torch.cuda.current_stream().cuda_stream
        return handle or (0 if self.is_hip else 1)

    def make(self, dtype, shape, data):
        kind = getattr(self.torch, dtype)
        return (
            self.torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
            if data
            else self.torch.empty(shape, dtype=kind)
        )

    def unexportable(self):
        return {
            "a tensor that requires a gradient": self.torch.ones(3, requires_grad=True),
            "a lazily conjugated tensor": self.torch.tensor([1 + 2j, 3 + 4j]).conj(),
            "a sparse tensor": self.torch.ones(3).to_sparse(),
        }

    def describe(self, a):
        return a.data_ptr(), tuple(a.shape), a.stride(), False, str(a.dtype).replace("torch.", "")

    def values(self, a):
        whole = a.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=self.torch.contiguous_format)
        return ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""


class Jax(Adapter):
    name = "jax"
    views = {}  # a slice is a new array

    def __init__(self):
        import jax
        import numpy

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        self.jax, self.np = jax, numpy
        self.from_dlpack = jax.dlpack.from_dlpack
        self.standard = getattr(jax.numpy, "__array_api_version__", "2022.12")

    def make(self, dtype, shape, data):
        return self.jax.numpy.array(self.np.frombuffer(data, self.jax.numpy.dtype(dtype)).reshape(shape))

    readonly = make  # arrays are immutable

    def describe(self, a):
        return a.unsafe_buffer_pointer(), a.shape, compact(a.shape), True, a.dtype.name

    def values(self, a):
        return self.np.asarray(self.jax.numpy.copy(a)).tobytes()


class TensorFlow(Adapter):
    name = "tensorflow"
    standard = None
    distribution = "tensorflow-cpu"
    takes_objects = False
    views = {}  # a slice is a new tensor

    def __init__(self):
        import numpy
        import tensorflow

        self.np, self.tf = numpy, tensorflow

    def from_dlpack(self, x, **keywords):
        if hasattr(x, "__dlpack__"):
            x = x.__dlpack__()
        return self.tf.experimental.dlpack.from_dlpack(x, **keywords)

    def make(self, dtype, shape, data):
        return self.tf.constant(self.np.frombuffer(data, self.tf.as_dtype(dtype).as_numpy_dtype).reshape(shape))

    readonly = make  # tensors are immutable

    def values(self, a):
        return a.numpy().tobytes()


class Paddle(Adapter):
    name = "paddle"
    standard = "2023.12"  # whose parameters it documents
    distribution = "paddlepaddle"

    def __init__(self):
        import numpy
        import paddle

        paddle.set_device("cpu")
        self.np, self.paddle = numpy, paddle
        self.from_dlpack = paddle.from_dlpack

    def make(self, dtype, shape, data):
        if dtype == "uint16":
            raise TypeError("uint16 of NumPy becomes bfloat16")
        kind = "uint16" if dtype == "bfloat16" else dtype
        return self.paddle.to_tensor(self.np.frombuffer(data, kind).reshape(shape), dtype=dtype)

    def describe(self, a):
        dtype = NAMES.get(native.take(a).says["dtype"])  # its own name of uint16 is bfloat16
        return a.data_ptr(), tuple(a.shape), tuple(a.strides), False, dtype

    def values(self, a):
        return a.numpy().tobytes()


class Mlx(Adapter):
    name = "mlx"
    standard = "2023.12"  # whose parameters it documents
    zero_copy = False  # its arrays are in memory that its own allocator aligns

    def __init__(self):
        import mlx.core

        self.mx = mlx.core
        self.mx.set_default_device(self.mx.cpu)
        self.from_dlpack = self.mx.from_dlpack

    def make(self, dtype, shape, data):
        kind = {"bool": "bool_"}.get(dtype, dtype)
        bytes_ = self.mx.array(memoryview(bytearray(data)) if data else [], self.mx.uint8)
        a = bytes_.view(getattr(self.mx, kind)).reshape(shape)
        self.mx.eval(a)
        return a

    def values(self, a):
        a = self.mx.contiguous(a).reshape(-1)
        return bytes(memoryview(a.view(self.mx.uint8))) if a.size else b""


class TvmFfi(Adapter):
    name = "tvm_ffi"
    standard = None
    distribution = "apache-tvm-ffi"
    views = {}  # its tensor has no operations

    def __init__(self):
        import numpy
        import tvm_ffi

        self.np = numpy
        self.from_dlpack = tvm_ffi.from_dlpack

    def make(self, dtype, shape, data):
        return self.from_dlpack(self.np.frombuffer(bytearray(data), dtype).reshape(shape))

    def describe(self, a):
        says = native.take(a).says["dtype"]  # its own names leave out lanes
        return a.data_ptr(), tuple(a.shape), tuple(a.strides), False, NAMES.get(says, str(says))


class PyarrowTensor(Adapter):
    name = "pyarrow.Tensor"
    standard = None
    distribution = "pyarrow"
    views = {}

    def __init__(self):
        import numpy
        import pyarrow

        self.np, self.pa = numpy, pyarrow
        self.from_dlpack = pyarrow.Tensor.from_dlpack

    def make(self, dtype, shape, data):
        if dtype == "bool":
            raise TypeError("a tensor of bools has the type uint8")
        return self.pa.Tensor.from_numpy(self.np.frombuffer(bytearray(data), dtype).reshape(shape))

    def readonly(self, dtype, shape, data):
        return self.pa.Tensor.from_numpy(self.np.frombuffer(data, dtype).reshape(shape))

    def describe(self, a):
        whole = a.to_numpy()
        strides = tuple(stride // whole.itemsize for stride in a.strides)
        return whole.__array_interface__["data"][0], tuple(a.shape), strides, not a.is_mutable, whole.dtype.name

    def values(self, a):
        return a.to_numpy().tobytes()


class PyarrowArray(Adapter):
    name = "pyarrow.Array"
    standard = None
    distribution = "pyarrow"
    views = {"slice": lambda a: a[1:]}

    def __init__(self):
        import numpy
        import pyarrow

        self.np, self.pa = numpy, pyarrow
        self.from_dlpack = pyarrow.Array.from_dlpack

    def make(self, dtype, shape, data):
        if len(shape) != 1:
            raise TypeError("an array has one dimension")
        return self.pa.array(self.np.frombuffer(data, dtype))

    readonly = make  # arrays are immutable

    def unexportable(self):
        return {"an array with nulls": self.pa.array([1, None]), "strings": self.pa.array(["a"])}

    def values(self, a):
        return a.to_numpy(zero_copy_only=False).tobytes()


class ArrayApiStrict(Adapter):
    name = "array_api_strict"
    distribution = "array-api-strict"
    views = {**Adapter.views, "transposed": lambda a: a.mT}

    def __init__(self):
        import array_api_strict
        import numpy

        self.np, self.xp = numpy, array_api_strict
        self.standard = array_api_strict.__array_api_version__
        self.from_dlpack = array_api_strict.from_dlpack

    def make(self, dtype, shape, data):
        return self.xp.asarray(self.np.frombuffer(bytearray(data), dtype).reshape(shape), copy=False)

    def readonly(self, dtype, shape, data):
        return self.xp.asarray(self.np.frombuffer(data, dtype).reshape(shape), copy=False)

    def describe(self, a):
        return Numpy.describe(self, self.np.asarray(a))

    def values(self, a):
        return self.np.asarray(a).tobytes()


class Mpi4py(Adapter):
    """A consumer of message buffers: MPI.buffer shows the memory that a message would be read from."""

    name = "mpi4py"
    standard = None

    def __init__(self):
        from mpi4py import rc

        rc.initialize = False
        from mpi4py import MPI

        self.MPI = MPI

    def from_dlpack(self, x, **keywords):
        return self.MPI.buffer.frombuffer(x, **keywords)

    def describe(self, a):
        return a.address, None, None, a.readonly, None

    def values(self, a):
        return a.tobytes()


class Warp(Adapter):
    name = "warp"
    standard = None
    distribution = "warp-lang"
    ranks = range(1, 5)
    views = {**Adapter.views, "transposed": lambda a: a.transpose()}

    def __init__(self):
        import numpy
        import warp

        warp.config.quiet = True
        warp.init()
        self.np, self.wp = numpy, warp
        self.from_dlpack = warp.from_dlpack

    def make(self, dtype, shape, data):
        kind = self.wp.dtype_from_numpy(self.np.dtype(dtype))
        return self.wp.array(self.np.frombuffer(data, dtype).reshape(shape), dtype=kind, device="cpu")

    def describe(self, a):
        size = self.wp.types.type_size_in_bytes(a.dtype)
        return a.ptr, tuple(a.shape), tuple(stride // size for stride in a.strides), False, a.dtype.__name__

    def values(self, a):
        return a.numpy().tobytes()


class Drjit(Adapter):
    """Its types on the CPU without LLVM. A type takes one dtype: what is not of Dr.Jit becomes a TensorXf."""

    name = "drjit"
    standard = None
    zero_copy = False
    dtypes_taken = ("float32",)
    dtypes = ("float32", "float64", "int8", "int32", "int64", "uint8", "uint32", "uint64", "float16", "bool")
    views = {}  # a slice is a new tensor

    def __init__(self):
        import drjit.scalar
        import numpy

        self.np, self.scalar = numpy, drjit.scalar

    def from_dlpack(self, x, **keywords):
        own = type(x).__module__.startswith("drjit.")
        return (type(x) if own else self.scalar.TensorXf)(x, **keywords)

    def make(self, dtype, shape, data):
        ending = {"float32": "f", "int32": "i", "uint32": "u", "bool": "b"}.get(dtype)
        ending = ending or dtype.replace("float", "f").replace("uint", "u").replace("int", "i")
        return getattr(self.scalar, f"TensorX{ending}")(self.np.frombuffer(data, dtype).reshape(shape))


class Kornia(Adapter):
    """Pictures: height, width and channels."""

    name = "kornia_rs"
    standard = None
    distribution = "kornia-rs"
    dtypes = ("uint8", "uint16", "float32")
    ranks = (3,)
    shape = (2, 3, 3)
    views = {}

    def __init__(self):
        import numpy
        from kornia_rs.image import Image

        self.np, self.Image = numpy, Image
        self.from_dlpack = Image.from_dlpack

    def make(self, dtype, shape, data):
        return self.from_dlpack(self.np.frombuffer(bytearray(data), dtype).reshape(shape))

    def describe(self, a):
        """A tensor of two dimensions becomes a picture of one channel."""
        told = super().describe(a)
        if told.shape[2:] != (1,):
            return told
        return told._replace(shape=told.shape[:2], strides=told.strides[:2])


class PyAV(Adapter):
    """Planes of a video frame: of one picture of grey bytes, or of three such planes."""

    name = "av"
    standard = None
    dtypes = ("uint8",)
    ranks = (2,)
    shape = (4, 6)
    views = {}

    def __init__(self):
        import av
        import numpy

        self.np, self.Frame = numpy, av.VideoFrame

    def from_dlpack(self, x, **keywords):
        return self.Frame.from_dlpack(x, format="gray", **keywords).planes[0]

    def from_several(self, sources):
        return self.Frame.from_dlpack((*sources, sources[-1])[:3], format="gbrp")

    def make(self, dtype, shape, data):
        return self.Frame.from_ndarray(self.np.frombuffer(data, dtype).reshape(shape), format="gray").planes[0]


class CudaCore(Adapter):
    """StridedMemoryView, which shows the memory of others, also on the CPU."""

    name = "cuda.core"
    standard = None
    distribution = "cuda-core"
    views = {}

    def __init__(self):
        import numpy
        from cuda.core.utils import StridedMemoryView

        self.np, self.View = numpy, StridedMemoryView

    def from_dlpack(self, x, **keywords):
        return self.View.from_dlpack(x, stream_ptr=-1, **keywords)

    def make(self, dtype, shape, data):
        return self.from_dlpack(self.np.frombuffer(bytearray(data), dtype).reshape(shape))

    def readonly(self, dtype, shape, data):
        return self.from_dlpack(self.np.frombuffer(data, dtype).reshape(shape))

    def describe(self, a):
        shape = tuple(a.shape)
        return a.ptr, shape, compact(shape) if a.strides is None else tuple(a.strides), a.readonly, a.dtype.name


class Mxnet(Adapter):
    """Its functions take and give capsules: its arrays have no __dlpack__."""

    name = "mxnet"
    standard = None
    takes_objects = False
    views = {}

    def __init__(self):
        import mxnet

        self.mx = mxnet

    def from_dlpack(self, x, **keywords):
        if hasattr(x, "__dlpack__"):
            x = x.__dlpack__()
        return self.mx.nd.from_dlpack(x, **keywords)

    def describe(self, a):
        pointer = ctypes.c_void_p()
        self.mx.base.check_call(self.mx.base._LIB.MXNDArrayGetData(a.handle, ctypes.byref(pointer)))
        return (
            pointer.value,
            tuple(a.shape),
            compact(a.shape),
            False,
            a.asnumpy().dtype.name.replace("void16", "bfloat16"),
        )

    def values(self, a):
        return a.asnumpy().tobytes()


class Ndonnx(Adapter):
    name = "ndonnx"
    zero_copy = False
    views = {}

    def __init__(self):
        import ndonnx
        import numpy

        self.np, self.nd = numpy, ndonnx
        self.standard = ndonnx.__array_api_version__
        self.from_dlpack = ndonnx.from_dlpack

    def make(self, dtype, shape, data):
        return self.nd.asarray(self.np.frombuffer(data, dtype).reshape(shape))

    def describe(self, a):
        return None, tuple(a.shape), None, None, a.unwrap_numpy().dtype.name

    def values(self, a):
        return a.unwrap_numpy().tobytes()


class Cupy(Adapter):
    name = "cupy"
    distribution = "cupy-cuda13x"

    def __init__(self):
        import cupy

        cupy.cuda.runtime.getDeviceCount()  # raises without a GPU
        self.cupy = cupy
        self.device = (10 if cupy.cuda.runtime.is_hip else 2, 0)
        self.standard = getattr(cupy, "__array_api_version__", "2022.12")
        self.from_dlpack = cupy.from_dlpack

    def make(self, dtype, shape, data):
        import numpy

        return self.cupy.asarray(numpy.frombuffer(data, dtype).reshape(shape))

    make_on_device = make

    def current_stream(self):
        return self.cupy.cuda.get_current_stream().ptr or (0 if self.device[0] == 10 else 1)

    def describe(self, a):
        return a.data.ptr, a.shape, tuple(stride // a.itemsize for stride in a.strides), False, a.dtype.name

    def values(self, a):
        return self.cupy.asnumpy(a).tobytes()


class Numba(Adapter):
    """Numba's device arrays have no __dlpack__ of their own: they are consumers of __cuda_array_interface__ only."""

    name = "numba"
    standard = None
    distribution = "numba-cuda"

    def __init__(self):
        from numba import cuda

        if not cuda.is_available():
            raise ImportError("numba finds no GPU")
        if not hasattr(cuda, "from_dlpack"):
            raise ImportError("this version of numba-cuda has no from_dlpack")
        self.cuda = cuda
        self.from_dlpack = cuda.from_dlpack

    def values(self, a):
        return a.copy_to_host().tobytes()


KINDS = [
    Numpy,
    Torch,
    Jax,
    TensorFlow,
    Paddle,
    Mlx,
    TvmFfi,
    PyarrowTensor,
    PyarrowArray,
    ArrayApiStrict,
    Mpi4py,
    Warp,
    Drjit,
    Kornia,
    PyAV,
    CudaCore,
    Mxnet,
    Ndonnx,
    Cupy,
    Numba,
]
LIBRARIES = {kind.name: kind for kind in KINDS}


def load(name):
    """The adapter that a name tells: a library of this file, else FILE.py, FILE.py:OBJECT, or MODULE:OBJECT. The object
    is an adapter, or what returns one when it is called, such as a class."""
    if name in LIBRARIES:
        return LIBRARIES[name]()
    source, _, wanted = name[2:].partition(":")  # not at the colon of a drive of Windows
    source = name[:2] + source
    if source.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(source).stem, source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            known = ", ".join(LIBRARIES)
            raise SystemExit(f"{name}: no file, no module ({error}), and none of the known libraries: {known}")
    kinds = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Adapter) and kind is not Adapter and kind.name
    ]
    if wanted:
        found = functools.reduce(getattr, wanted.split("."), module)
        return found if isinstance(found, Adapter) else found()
    if len(kinds) != 1:
        raise SystemExit(f"{name}: the module has {len(kinds)} adapters; name one of them, {source}:CLASS")
    return kinds[0]()

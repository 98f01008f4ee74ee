"""Adapters of the libraries that this project builds."""

import sys

import _dlpack_conformance as native
from dlpack_conformance import Adapter
from dlpack_conformance.adapter import DTYPES, NAMES

# The choices of dlarray, which docs/protocol.md explains.
CHOICES = {
    "NULL data with elements": "refused",
    "NULL shape": "refused",
    "NULL strides": "compact",
    "NULL strides since 1.2": "taken",
    "__dlpack__ of an instance": "called",
    "a borrowed tensor of read-only data": "refused",
    "a copy of read-only data": "writable",
    "a legacy capsule for who asks for nothing": "exported",
    "copy=False in a legacy capsule": "shared",
    "copy=False in a versioned capsule": "shared",
    "copy=True in a legacy capsule": "copied",
    "copy=True in a versioned capsule": "copied",
    "stream=-2": "refused",
    "stream=1": "refused",
    "stream=1099511627776": "refused",
    "stream=2": "refused",
    "the flag IS_COPIED": "ignored",
    "the stream of the CPU": "NULL",
    "writable data": "writable",
    "an exception in flight when the deleter is called": "survives",
    "a legacy capsule": "taken",
    "a legacy capsule in place of an object": "taken",
    "a negative extent": "refused",
    "a negative extent among others": "refused",
    "a product that wraps to 0": "refused",
    "a scalar": "taken",
    "a subclass that overrides __dlpack__": "method",
    "a tensor that managed_tensor_to_py_object_no_sync refuses": "deleted",
    "a versioned capsule": "taken",
    "a versioned capsule in place of an object": "taken",
    "an empty tensor with NULL data": "taken",
    "an object of another type for the table": "refused",
    "byte_offset": "added",
    "byte_offset of a slice": "0",
    "calls of a producer that raises TypeError": 2,
    "copy='yes'": "refused",
    "copy=()": "refused",
    "copy=1.0": "refused",
    "copy=2": "refused",
    "device id 1 of the CPU": "taken",
    "dl_device='cpu'": "refused",
    "dl_device=(1, 0, 0)": "refused",
    "dl_device=(1,)": "refused",
    "dl_device=(1.0, 0)": "refused",
    "dl_device=(None, None)": "refused",
    "dl_device=1": "refused",
    "dl_device=[1, 0]": "refused",
    "empty tensors": "taken",
    "exchange tables of other libraries": "used",
    "extents beyond 32 bits": "taken" if sys.maxsize > 2**33 else "refused",
    "legacy data": "read-only",
    "manager_ctx": "set",
    "max_version='10'": "refused",
    "max_version=(1, 0, 0)": "refused",
    "max_version=(1,)": "refused",
    "max_version=(1.0, 0.0)": "refused",
    "max_version=(1180591620717411303424, 0)": "accepted",
    "max_version=(None, None)": "refused",
    "max_version=1": "refused",
    "max_version=[1, 0]": "refused",
    "memory of device type 11": "refused",
    "memory of device type 13": "refused",
    "memory of device type 3": "refused",
    "misaligned data": "refused",
    "more bytes than 2**63": "refused",
    "more elements than memory": "refused",
    "ndim is -1": "refused",
    "ndim is 1000": "refused",
    "ndim is 65": "refused",
    "negative strides": "taken",
    "no __dlpack_device__": "taken",
    "odd strides of an extent of 1": "taken",
    "read-only data": "read-only",
    "read-only data in a legacy capsule": "refused",
    "shape (2, 2), strides (4, 1)": "taken",
    "shape (2, 2, 3), strides (1, 6, 2)": "taken",
    "shape (2, 3), strides (0, 0)": "taken",
    "shape (3, 2), strides (4, 2)": "taken",
    "shape (3, 4), strides (0, 1)": "taken",
    "shape (3, 4), strides (1, 3)": "taken",
    "shape (4, 3), strides (1, 1)": "taken",
    "stream=-1": "accepted",
    "strides that leave the address range": "refused",
    "subinterpreters": "supported",
    "unknown flags": "ignored",
    "version (0, 9) in a versioned capsule": "refused",
    "dtype bfloat16": "taken",
    "a deleter that uses the library": "works",
    "an exchange table that is an integer": "method",
    "dtype (0, 0, 1)": "refused",
    "dtype (2, 32, 0)": "refused",
    "dtype bool": "taken",
    "dtype complex128": "taken",
    "dtype complex64": "taken",
    "dtype float16": "taken",
    "dtype float32": "taken",
    "dtype float64": "taken",
    "dtype int16": "taken",
    "dtype int32": "taken",
    "dtype int64": "taken",
    "dtype int8": "taken",
    "dtype uint16": "taken",
    "dtype uint32": "taken",
    "dtype uint64": "taken",
    "dtype uint8": "taken",
}


class Dlarray(Adapter):
    """The example of this project, which must follow the decisions of docs/protocol.md."""

    name = "dlarray"
    choices = CHOICES

    def __init__(self):
        import dlarray

        self.dlarray = dlarray
        self.from_dlpack = dlarray.from_dlpack
        self.views = {
            **Adapter.views,
            "transposed": lambda a: a.transpose(),
            "repeated": lambda a: a[:1].broadcast_to((4, a.shape[1])),
        }
        # An extent is a Py_ssize_t.
        self.repeat = (lambda a, count: a.broadcast_to((count,))) if sys.maxsize > 2**33 else None

    def make(self, dtype, shape, data):
        if not data:
            return self.dlarray.empty(shape, dtype)
        return self.dlarray.frombuffer(bytearray(data), dtype).reshape(shape)

    def readonly(self, dtype, shape, data):
        return self.dlarray.frombuffer(data, dtype).reshape(shape)

    def describe(self, a):
        return a.data_ptr, a.shape, a.strides, a.readonly, a.dtype

    def values(self, a):
        a = a.copy()  # compact
        return self.read(a)

    def read(self, a):
        import ctypes

        return ctypes.string_at(a.data_ptr, a.nbytes) if a.nbytes else b""

    def version(self):
        return "unreleased"


class ByHand(Dlarray):
    """The protocol in one file, without this project's headers. It has only arrays that it imports."""

    name = "by_hand"
    choices = {}

    def __init__(self):
        import by_hand

        super().__init__()
        self.from_dlpack = by_hand.from_dlpack
        self.views, self.repeat = {}, None

    def make(self, dtype, shape, data):
        return self.from_dlpack(super().make(dtype, shape, data).__dlpack__(), copy=True)

    def readonly(self, dtype, shape, data):
        return self.from_dlpack(super().readonly(dtype, shape, data))

    def describe(self, a):
        says = native.take(a, max_version=(1, 3)).says
        dtype = NAMES.get(says["dtype"], str(says["dtype"]))
        return says["data"], says["shape"], says["strides"], bool(says["flags"] & 1), dtype

    values = Adapter.values


def shifted(a, axes):
    """A view of a wrongarray: for each axis the first element, the number of elements and the step."""
    _, _, strides, _, _ = a.describe()
    first = sum(axis[0] * stride for axis, stride in zip(axes, strides))
    return a.view(
        tuple(axis[1] for axis in axes), tuple(axis[2] * stride for axis, stride in zip(axes, strides)), first
    )


def rows(a, first, count, step):
    _, shape, _, _, _ = a.describe()
    return shifted(a, [(first, count(shape[0]), step), *((0, extent, 1) for extent in shape[1:])])


def transposed(a):
    _, shape, strides, _, _ = a.describe()
    return a.view(shape[::-1], strides[::-1], 0)


class Wrongarray(Adapter):
    """The library with mistakes; the environment variable WRONGARRAY_MISTAKE names one."""

    name = "wrongarray"
    choices = {
        **CHOICES,
        "a forbidden array, by the table": "refused",
        "calls of a producer that raises TypeError": 1,
        "extents beyond 32 bits": "taken",
        "misaligned data": "taken",
        "stream=-1": "refused",
    }

    views = {
        "transposed": transposed,
        "slice": lambda a: rows(a, 1, lambda n: n - 1, 1),
        "steps": lambda a: rows(a, 0, lambda n: (n + 1) // 2, 2),
        "backwards": lambda a: rows(a, a.describe()[1][0] - 1, lambda n: n, -1),
        "repeated": lambda a: rows(a, 0, lambda n: 4, 0),
    }

    def __init__(self):
        import wrongarray

        self.wrongarray = wrongarray
        self.from_dlpack = wrongarray.from_dlpack
        self.repeat = lambda a, count: a.view((count,), (0,), 0)
        self.from_several = wrongarray.from_several

    def make(self, dtype, shape, data):
        return self.wrongarray.array(DTYPES[dtype], shape, data)

    def readonly(self, dtype, shape, data):
        return self.wrongarray.array(DTYPES[dtype], shape, data, True)

    def unexportable(self):
        return {"a forbidden array": self.wrongarray.array(DTYPES["int8"], (3,), bytes(3)).forbid()}

    def describe(self, a):
        pointer, shape, strides, readonly, dtype = a.describe()
        return pointer, shape, strides, readonly, NAMES.get(dtype, str(dtype))

    def values(self, a):
        return a.tobytes()

    def version(self):
        return "0"


def extension(name, source, *flags):
    """Compiles a C++ extension unless it exists, and imports it."""
    import importlib.util
    import os
    import subprocess
    import sysconfig
    from pathlib import Path

    root = Path(__file__).parents[2]
    folder = Path(os.environ["DLPACK_PY_BUILD_DIR"]).parent / "conformance"
    folder.mkdir(exist_ok=True)
    path = folder / (name + sysconfig.get_config_var("EXT_SUFFIX"))
    files = (source, "dlpack_exchange.h", "dlpack_py.h", "dlpack_tensor.h")
    newest = max((root / file).stat().st_mtime for file in files)
    if not path.exists() or path.stat().st_mtime < newest:
        command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-fno-strict-aliasing"]
        command += ["-I", sysconfig.get_path("include"), *flags, str(root / source), "-o", str(path)]
        subprocess.run(command, check=True)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Nanobind(Adapter):
    """nanobind's own DLPack, in an extension of tests/libraries."""

    name = "nanobind"
    standard = None
    views = {}  # nanobind's arrays have no operations

    def __init__(self):
        from pathlib import Path

        import nanobind

        home = Path(nanobind.include_dir())
        include = ["-isystem", str(home), "-isystem", str(home.parent / "ext" / "robin_map" / "include")]
        library = str(Path(nanobind.source_dir()) / "nb_combined.cpp")
        self.module = extension("nanobind_arrays", "tests/libraries/nanobind_arrays.cpp", library, *include)
        self.from_dlpack = self.module.from_dlpack

    def make(self, dtype, shape, data):
        return self.module.array(DTYPES[dtype], list(shape), data)

    def readonly(self, dtype, shape, data):
        return self.module.constant(DTYPES[dtype], list(shape), data)

    def describe(self, a):
        pointer, shape, strides, dtype = self.module.describe(a)
        return pointer, shape, strides, None, NAMES.get(dtype, str(dtype))


class Pybind11(Adapter):
    """A class of pybind11 that uses dlpack_py.h: pybind11_arrays.cpp."""

    name = "pybind11 with dlpack_py.h"
    distribution = "pybind11"
    choices = {}
    views = {}

    def __init__(self):
        from pathlib import Path

        import numpy
        import pybind11
        import tvm_ffi

        here = Path(__file__).parent
        headers = str(Path(tvm_ffi.__file__).parent / "include")
        include = ["-isystem", pybind11.get_include(), "-I", str(here.parents[1]), "-isystem", headers]
        self.module = extension("pybind11_arrays", "tests/conformance/pybind11_arrays.cpp", *include)
        self.np = numpy
        self.from_dlpack = self.module.from_dlpack

    def make(self, dtype, shape, data):
        # A copy is writable, also of what an older NumPy exports in legacy capsules.
        return self.from_dlpack(self.np.frombuffer(bytearray(data), dtype).reshape(shape), copy=True)

    def readonly(self, dtype, shape, data):
        return self.from_dlpack(self.np.frombuffer(data, dtype).reshape(shape))

    def describe(self, a):
        pointer, shape, strides, readonly, dtype = a.describe()
        return pointer, tuple(shape), tuple(strides), readonly, NAMES.get(dtype, str(dtype))

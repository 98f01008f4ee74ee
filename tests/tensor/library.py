"""The functions of tensor_lib.c and the structs of DLPack, for ctypes."""

import ctypes
import os
from pathlib import Path

NUMBERS = ctypes.POINTER(ctypes.c_int64)
ADDRESS_MAX = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1
PADDED = 4  # DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DType),
        ("shape", NUMBERS),
        ("strides", NUMBERS),
        ("byte_offset", ctypes.c_uint64),
    ]


class Stream(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("handle", ctypes.c_size_t)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("copy_helps", ctypes.c_int32), ("text", ctypes.c_char * 248)]


def numbers(values):
    """An array of int64_t. An integer is the address of such an array, None is NULL."""
    if isinstance(values, int):
        return ctypes.cast(values, NUMBERS)
    return values if values is None else (ctypes.c_int64 * len(values))(*values)


def tensor(dtype, shape, strides, data=0, byte_offset=0, device=(1, 0), ndim=None):
    """A DLTensor, by default on the CPU, whose first element is at data + byte_offset."""
    ndim = len(shape) if ndim is None else ndim
    return Tensor(data, device, ndim, dtype, numbers(shape), numbers(strides), byte_offset)


def error_of(function, *arguments):
    """The error of function(*arguments, error): None, or (code, text, whether a copy would meet the requirement)."""
    error = Error(7, 7, b"no error")
    result = function(*arguments, error)
    assert function(*arguments, None) == result  # error may be NULL
    if result == 0:
        assert (error.code, error.copy_helps, error.text) == (7, 7, b"no error")
        return None
    assert result == -1
    names = ["BufferError", "ValueError", "TypeError", "MemoryError", "RuntimeError", "SystemError"]
    return names[error.code - 1], error.text.decode(), bool(error.copy_helps)


def load(name="tensor_lib"):
    folder = Path(os.environ["DLPACK_PY_BUILD_DIR"])
    (path,) = [path for path in folder.glob(f"*{name}.*") if path.suffix in (".so", ".dylib", ".dll")]
    lib = ctypes.CDLL(str(path))
    t, device, stream, error = (ctypes.POINTER(struct) for struct in (Tensor, Device, Stream, Error))
    integer, text, order, flags = ctypes.c_int, ctypes.c_char_p, ctypes.c_char, ctypes.c_uint64
    i32, u32, size = ctypes.c_int32, ctypes.c_uint32, ctypes.c_size_t
    for name, result, *arguments in [
        ("check_dtype", integer, DType, error),
        ("dtype_text", text, u32, text),
        ("device_text", text, Device, text),
        ("size", ctypes.c_int64, t),
        ("nbytes", ctypes.c_int64, t, flags),
        ("itemsize", size, DType, flags),
        ("strides", None, i32, NUMBERS, order, NUMBERS),
        ("byte_range", integer, t, flags, NUMBERS, NUMBERS),
        ("validate", integer, t, flags, error),
        ("is_contiguous", integer, t, order),
        ("overlaps_itself", integer, t),
        ("overlap", integer, t, flags, t, flags),
        ("copy", integer, t, t, flags, error),
        ("check_stream", integer, Device, stream, error),
        ("meets_nothing", integer, t, integer, error),
        (
            "meets",
            integer,
            t,
            integer,
            u32,
            ctypes.POINTER(u32),
            i32,
            i32,
            NUMBERS,
            order,
            integer,
            i32,
            size,
            u32,
            error,
        ),
    ]:
        function = getattr(lib, "tensor_" + name)
        function.restype, function.argtypes = result, arguments
        setattr(lib, name, function)
    return lib


lib = load()
COPIES = {"loops": lib, "dlpack_copy.h": load("tensor_lib_fast"), "portable dlpack_copy.h": load("tensor_lib_portable")}

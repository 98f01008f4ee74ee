"""DLPack's structs in ctypes, written from the specification: a producer and a consumer for tests.

read() and Taken read capsules as a consumer of another library does. Made is a managed tensor with any fields, and
Producer is an object that offers such a tensor. This file does not use the header under test.
"""

import ctypes
import math
import struct
import sys
import threading
import weakref
from types import SimpleNamespace

from collecting import PYPY, collect

LEGACY, VERSIONED = FORMS = "dltensor", "dltensor_versioned"  # the names of unconsumed capsules

READ_ONLY, IS_COPIED, PADDED = 1, 2, 4

CPU, CUDA, CUDA_HOST, ROCM_HOST, CUDA_MANAGED, TPU_HOST = (1, 0), (2, 0), (3, 0), (11, 0), (13, 0), (20, 0)

# All dtypes of the array API, and float16, as (code, bits, lanes).
DTYPES = {
    "bool": (6, 8, 1),
    **{f"int{bits}": (0, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits, 1) for bits in (16, 32, 64)},
    **{f"complex{bits}": (5, bits, 1) for bits in (64, 128)},
}
# How the struct module writes their elements.
FORMATS = dict(zip(DTYPES.values(), "? b h i q B H I Q e f d ff dd".split()))
# The dtypes that are stored and exchanged, but that this project does not compute with, as (code, bits, lanes).
STORED = {
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
}
ALIGNMENT = ctypes.alignment(ctypes.c_double)  # of numbers of 8 bytes, in C: 4 on 32-bit x86
ARRAY_API_DTYPES = [name for name in DTYPES if name != "float16"]


def format_of(view):
    """The format of a buffer. Where C's long is an int, both formats are right: NumPy writes int32 as a long then."""
    same = {"l": "i", "L": "I"} if struct.calcsize("l") == struct.calcsize("i") else {}
    return same.get(view.format, view.format)


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class LegacyManaged(ctypes.Structure):
    _fields_ = [("dl_tensor", Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class VersionedManaged(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", Tensor),
    ]


MANAGED = {LEGACY: LegacyManaged, VERSIONED: VersionedManaged}


def _python(result, name, *arguments):
    """A function of CPython with its own prototype: all users of ctypes.pythonapi share the prototypes there."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # attaches any thread to the interpreter

if PYPY:  # has no ctypes.pythonapi
    import dltensor_capsules

    _name = dltensor_capsules.name
    _pointer = dltensor_capsules.pointer
    _set_name = dltensor_capsules.set_name
    _as_deleter = dltensor_capsules.deleter

    def _capsule(form, where, name):
        return dltensor_capsules.new(where, name, form == VERSIONED)
else:
    # A capsule that is being destroyed is passed by address.
    _name = _python(ctypes.c_void_p, "PyCapsule_GetName", ctypes.py_object)
    _pointer = _python(ctypes.c_void_p, "PyCapsule_GetPointer", ctypes.py_object, ctypes.c_void_p)
    _set_name = _python(ctypes.c_int, "PyCapsule_SetName", ctypes.py_object, ctypes.c_char_p)
    _new = _python(ctypes.py_object, "PyCapsule_New", ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    _dying_is_valid = _python(ctypes.c_int, "PyCapsule_IsValid", ctypes.c_void_p, ctypes.c_char_p)
    _dying_pointer = _python(ctypes.c_void_p, "PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_char_p)
    _DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
    _as_deleter = _DELETER

    def _destructor(form):
        encoded = form.encode()

        @_DESTRUCTOR
        def destroy(capsule):
            if _dying_is_valid(capsule, encoded):
                where = _dying_pointer(capsule, encoded)
                deleter = MANAGED[form].from_address(where).deleter
                if deleter:
                    _DELETER(deleter)(where)

        return destroy

    _destructors = {form: _destructor(form) for form in FORMS}

    def _capsule(form, where, name):
        return _new(where, name, ctypes.cast(_destructors[form], ctypes.c_void_p))


_names = {}  # a capsule's name lives as long as the process


def _static(name):
    return None if name is None else _names.setdefault(name, name if isinstance(name, bytes) else name.encode())


def compact(shape):
    """Row-major strides in elements."""
    return tuple(math.prod(max(extent, 1) for extent in shape[i + 1 :]) for i in range(len(shape)))


def values(address, dtype, shape, strides):
    """The elements from memory, as nested lists; strides in elements."""
    if 0 in shape:  # no memory to read
        return [values(address, dtype, shape[1:], strides[1:]) for _ in range(shape[0])] if shape[0] else []
    item = struct.Struct("=" + FORMATS[dtype])
    if shape:
        step = strides[0] * item.size
        return [values(address + i * step, dtype, shape[1:], strides[1:]) for i in range(shape[0])]
    numbers = item.unpack(ctypes.string_at(address, item.size))
    return complex(*numbers) if len(numbers) == 2 else numbers[0]


def name(capsule):
    address = _name(capsule)
    return None if address is None else ctypes.string_at(address).decode(errors="replace")


def rename(capsule, new):
    _set_name(capsule, _static(new))


def address(capsule):
    """The pointer in the capsule."""
    return _pointer(capsule, _name(capsule))


def read(capsule):
    """The fields of the tensor in an unconsumed capsule, which is not consumed."""
    return _read(name(capsule), address(capsule))


def _read(form, where):
    managed = MANAGED[form].from_address(where)
    t = managed.dl_tensor
    return SimpleNamespace(
        form=form,
        version=(managed.major, managed.minor) if form == VERSIONED else None,
        flags=managed.flags if form == VERSIONED else None,
        manager_ctx=managed.manager_ctx,
        deleter=managed.deleter,
        data=t.data,
        byte_offset=t.byte_offset,
        device=(t.device.device_type, t.device.device_id),
        ndim=t.ndim,
        dtype=(t.dtype.code, t.dtype.bits, t.dtype.lanes),
        shape=tuple(t.shape[: t.ndim]) if t.shape else None,
        strides=tuple(t.strides[: t.ndim]) if t.strides else None,
    )


def run_on(thread, function):
    """Calls the function on "this thread", or on "another thread" and waits for its end."""
    if thread == "this thread":
        function()
        return
    assert thread == "another thread"
    other = threading.Thread(target=function)
    other.start()
    other.join()


class Taken:
    """A tensor that was taken out of its capsule, as consumers do (K4)."""

    def __init__(self, capsule):
        form = name(capsule)
        self.says = read(capsule)
        self._address = address(capsule)
        rename(capsule, "used_" + form)

    def values(self):
        says = self.says
        return values((says.data or 0) + says.byte_offset, says.dtype, says.shape or (), says.strides or ())

    def delete(self):
        """Calls the deleter with the thread detached from the interpreter, as ctypes calls C functions."""
        _DELETER(self.says.deleter)(self._address)

    def delete_on(self, thread):
        """Calls the deleter on a thread of run_on(), or on "a foreign thread"."""
        if thread == "a foreign thread":
            self.delete_on_a_foreign_thread()
        else:
            run_on(thread, self.delete)

    def delete_on_a_foreign_thread(self):
        """Calls the deleter on a thread that has never had a thread state."""
        start, argument = ctypes.c_void_p(self.says.deleter), ctypes.c_void_p(self._address)
        if sys.platform == "win32":
            kernel = ctypes.WinDLL("kernel32")
            kernel.CreateThread.restype = ctypes.c_void_p
            thread = ctypes.c_void_p(kernel.CreateThread(None, 0, start, argument, 0, None))
            assert kernel.WaitForSingleObject(thread, -1) == 0
            assert kernel.CloseHandle(thread)
            return
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        assert libc.pthread_create(ctypes.byref(thread), None, start, argument) == 0
        assert libc.pthread_join(thread, None) == 0


_by_address = weakref.WeakValueDictionary()
_not_deleted = set()  # keeps Made objects alive until their deleter runs


@_as_deleter
def _delete(where):
    made = _by_address[where]
    made.calls += 1
    _not_deleted.discard(made)
    if made.calls == 1:
        ctypes.memset(ctypes.addressof(made.managed.dl_tensor), 0xA5, ctypes.sizeof(Tensor))  # a later read fails
    if made.on_delete is not None:
        made.on_delete()


_unset = object()
_deleter = _delete if PYPY else ctypes.cast(_delete, ctypes.c_void_p)


class Made:
    """A managed tensor made by hand. By default it has three float64 on the CPU: 0.0, 1.0, 2.0.

    shape, strides     None for NULL; then ndim gives the rank
    data               an address; None for NULL
    deleter            False for NULL
    on_delete          called by the deleter

    deleted            how often the deleter was called
    address            data
    memory             the default data, 64 float64 that count up
    """

    def __init__(
        self,
        form=VERSIONED,
        *,
        shape=(3,),
        strides=_unset,
        ndim=_unset,
        dtype="float64",
        data=_unset,
        byte_offset=0,
        device=CPU,
        flags=0,
        version=(1, 3),
        deleter=True,
        on_delete=None,
    ):
        self.form = form
        self.calls = 0  # of the deleter
        self.on_delete = on_delete
        self.managed = MANAGED[form]()
        room = (ctypes.c_double * 72)()
        first = -ctypes.addressof(room) % 64
        self.memory = (ctypes.c_double * 64).from_buffer(room, first)
        self.memory[:] = range(64)

        if strides is _unset:
            strides = compact(shape) if shape is not None else None
        self._extents = [None if x is None else (ctypes.c_int64 * max(len(x), 1))(*x) for x in (shape, strides)]

        t = self.managed.dl_tensor
        t.data = self.address = ctypes.addressof(self.memory) if data is _unset else data
        t.byte_offset = byte_offset
        t.device = Device(*device)
        t.dtype = DataType(*DTYPES.get(dtype, dtype))
        t.ndim = len(shape) if ndim is _unset else ndim
        t.shape, t.strides = self._extents
        self.managed.manager_ctx = 1
        self.managed.deleter = _deleter if deleter else None
        if form == VERSIONED:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        _by_address[ctypes.addressof(self.managed)] = self
        _not_deleted.add(self)

    @property
    def deleted(self):
        collect(2)
        return self.calls

    def bytes(self):
        """The struct, shape and strides as they lie in memory."""
        return [bytes(part) for part in (self.managed, *self._extents) if part is not None]

    def capsule(self, name=_unset):
        """A new capsule, whose destructor follows K1. name: instead of the name of the form.

        ctypes cannot run the destructor while an exception is in flight: keep the capsule in a variable.
        """
        name = self.form if name is _unset else name
        return _capsule(self.form, ctypes.addressof(self.managed), _static(name))

    def poison(self):
        """Overwrites the DLTensor, so that only version and deleter are readable (K6)."""
        ctypes.memset(ctypes.addressof(self.managed.dl_tensor), 0xA5, ctypes.sizeof(Tensor))
        return self


class Offer:
    """An object that offers one managed tensor, once. It does not know the keywords for copies and devices."""

    def __init__(self, made):
        self.made = made

    def __dlpack__(self, *, stream=None, max_version=None):
        return self.made.capsule()


class Kept:
    """An object that returns one capsule on each call."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **keywords):
        return self.capsule

    def __dlpack_device__(self):
        return CPU


class Producer:
    """An object whose __dlpack__ makes a tensor by Made(**fields).

    form       None: chosen by max_version
    answers    fields for each call in turn, which override the other fields; later calls use the last

    calls      the keywords of each call of __dlpack__
    made       the tensors that it returned
    """

    def __init__(self, form=None, answers=({},), **fields):
        self.form = form
        self.fields = fields
        self.answers = list(answers)
        self.calls = []
        self.made = []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        asked = keywords.get("max_version") or (0, 0)
        form = self.form or (VERSIONED if asked[0] >= 1 else LEGACY)
        self.made.append(Made(**{"form": form, **self.fields, **answer}))
        return self.made[-1].capsule()

    def __dlpack_device__(self):
        raise AssertionError("a consumer on the CPU need not ask for the device (C4)")

    @property
    def deleted(self):
        """How often each deleter was called."""
        collect(2)
        return [made.calls for made in self.made]


class Unreadable(type):
    """The metaclass of types whose bases cannot be read."""

    def __getattribute__(cls, name):
        if name == "__mro__":
            raise MemoryError("of the look at the type")
        return super().__getattribute__(name)

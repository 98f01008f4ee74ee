"""What the suite needs to know of a library."""

import ctypes
import importlib.metadata
import itertools
import math
from typing import NamedTuple

import _dlpack_conformance as native

# All dtypes of the array API standard, and float16 and bfloat16, as (code, bits, lanes).
DTYPES = {
    "bool": (6, 8, 1),
    **{f"int{bits}": (0, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (1, bits, 1) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (2, bits, 1) for bits in (32, 64)},
    **{f"complex{bits}": (5, bits, 1) for bits in (64, 128)},
    "float16": (2, 16, 1),
    "bfloat16": (4, 16, 1),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def itemsize(dtype):
    """Bytes of an element of a named dtype."""
    return DTYPES[dtype][1] // 8


def compact(shape):
    """Row-major strides in elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Description(NamedTuple):
    """What a library says of an array. A field may be None if the library does not tell."""

    pointer: int  # of the first element
    shape: tuple
    strides: tuple  # in elements
    readonly: bool
    dtype: str  # one of DTYPES


def read_memory(pointer, shape, strides, size):
    """The elements at an address, in row-major order."""
    places = (sum(map(int.__mul__, index, strides)) for index in itertools.product(*map(range, shape)))
    return b"".join(ctypes.string_at(pointer + place * size, size) for place in places)


class Adapter:
    """The base class of adapters. make, from_dlpack, describe and values are enough for most libraries.

    A library that only produces leaves out from_dlpack, and a library that only consumes leaves out make.
    """

    name = None  # of the library, as the report shows it
    distribution = None  # of which the version is shown; None: the name
    choices = {}  # what the library does where the standard leaves the choice: {"byte offset": "0"}
    standard = "2025.12"  # the version of the array API standard that the library claims, or None: DLPack alone
    dtypes = tuple(
        DTYPES
    )  # of its arrays. A test that any dtype will do for uses float32 if it is here, else the first
    dtypes_taken = None  # by from_dlpack, if it makes one dtype of all; pairs.py asks for no others
    ranks = range(65)  # of its arrays
    shape = (6,)  # of a plain array. If ranks lack its rank, the suite finds another shape
    zero_copy = True  # False: from_dlpack cannot use the memory of others, and copies
    takes_objects = True  # False: from_dlpack of the library takes capsules only
    from_dlpack = None  # from_dlpack(x, **keywords): an array of the library
    from_several = None  # from_several(xs): one object of several tensors, as of the planes of a picture
    make = None  # make(dtype, shape, data): a new array that is writable if the library has such arrays
    readonly = None  # readonly(dtype, shape, data): a read-only array
    # For the tests of streams, --cuda; values(array) and describe(array) take such arrays too.
    device = None  # where make_on_device makes arrays: (2, id) of CUDA, (10, id) of ROCm
    make_on_device = None  # make_on_device(dtype, shape, data): a new array on the device
    current_stream = None  # current_stream(): the number in DLPack of the stream that the library works on
    runtime = None  # the path of the library of CUDA's or HIP's runtime; None: the one that is loaded or found

    unexportable = None  # unexportable(): {description: array that DLPack cannot describe}

    # Views that share the memory of an array, by what they are. What an array cannot do, it has no view of.
    views = {
        "transposed": lambda a: a.T,
        "slice": lambda a: a[1:],
        "steps": lambda a: a[::2],
        "backwards": lambda a: a[::-1],
    }

    def describe(self, array):
        """A Description. This default asks the array's own export, for libraries that tell no pointer."""
        try:
            says = native.take(array, max_version=(1, 3)).says
        except TypeError:
            says = native.take(array).says
        shape = says["shape"] or ()
        strides = says["strides"] or compact(shape)
        return Description(says["data"] + says["byte_offset"], shape, strides, None, NAMES.get(says["dtype"]))

    def values(self, array):
        """The elements in row-major order, as bytes. This default reads the memory that describe() tells."""
        d = Description(*self.describe(array))
        return read_memory(d.pointer, d.shape, d.strides, itemsize(d.dtype))

    def version(self):
        try:
            return importlib.metadata.version(self.distribution or self.name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

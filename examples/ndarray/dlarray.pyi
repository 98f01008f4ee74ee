"""A small n-dimensional array that supports DLPack."""

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Protocol, SupportsComplex, SupportsFloat, SupportsIndex, overload

from typing_extensions import Buffer, CapsuleType, Self, TypeAlias, disjoint_base

if sys.version_info >= (3, 10):
    from types import EllipsisType
else:
    from builtins import ellipsis as EllipsisType

# The dtypes of array() and arange(). Elements of other dtypes can only be stored.
_ValueDType: TypeAlias = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
_DType: TypeAlias = (
    _ValueDType
    | Literal[
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float6_e2m3fn",
        "float6_e3m2fn",
        "float4_e2m1fn",
    ]
)
_Value: TypeAlias = complex | SupportsComplex | SupportsFloat | SupportsIndex
_Values: TypeAlias = _Value | Sequence["_Values"]
_Shape: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
_Pair: TypeAlias = tuple[SupportsIndex, SupportsIndex]
_Part: TypeAlias = slice | EllipsisType | None

# Any producer, also a producer without keyword arguments.
class _SupportsDLPack(Protocol):
    def __dlpack__(self) -> object: ...

@disjoint_base
class Array:
    def __new__(cls, source: _SupportsDLPack | CapsuleType, /) -> Self: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> _DType: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def itemsize(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> tuple[int, int]: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def owner(self) -> Array | None: ...
    @overload
    def __getitem__(self, key: _Part, /) -> Self: ...
    @overload  # a value if the key has an int for each dimension, else Self
    def __getitem__(self, key: SupportsIndex | tuple[SupportsIndex | _Part, ...], /) -> Any: ...
    def __setitem__(self, key: SupportsIndex | _Part | tuple[SupportsIndex | _Part, ...], value: _Value, /) -> None: ...
    def tolist(self) -> Any: ...
    def copy(self) -> Self: ...
    @overload
    def transpose(self, axes: Sequence[SupportsIndex], /) -> Self: ...
    @overload
    def transpose(self, *axes: SupportsIndex) -> Self: ...
    @overload
    def reshape(self, shape: Sequence[SupportsIndex], /) -> Self: ...
    @overload
    def reshape(self, *shape: SupportsIndex) -> Self: ...
    def broadcast_to(self, shape: _Shape, /) -> Self: ...
    def setflags(self, *, writeable: bool) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: SupportsIndex | None = None,
        max_version: _Pair | None = None,
        dl_device: _Pair | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

def from_dlpack(
    x: _SupportsDLPack | CapsuleType, /, *, device: _Pair | str | None = None, copy: bool | None = None
) -> Array: ...
def frombuffer(
    buffer: Buffer, dtype: _DType = "uint8", count: SupportsIndex = -1, offset: SupportsIndex = 0
) -> Array: ...
def empty(shape: _Shape, dtype: _DType = "float64") -> Array: ...
def zeros(shape: _Shape, dtype: _DType = "float64") -> Array: ...
def array(values: _Values, dtype: _ValueDType = "float64") -> Array: ...
@overload
def arange(stop: SupportsIndex, /, *, dtype: _ValueDType = "int64") -> Array: ...
@overload
def arange(
    start: SupportsIndex, stop: SupportsIndex, step: SupportsIndex = 1, /, *, dtype: _ValueDType = "int64"
) -> Array: ...

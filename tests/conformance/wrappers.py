"""Adapters of right libraries that differ from others, made of wrongarray without mistakes; and two that refuse all."""

import ctypes
import enum

import _dlpack_conformance as native
import image
import wrongarray
from adapters import Wrongarray
from dlpack_conformance import Adapter
from dlpack_conformance.adapter import DTYPES


class DeviceType(enum.Enum):
    CPU = 1


class Array:
    """An array that forwards to one of wrongarray."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        return self.inner.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


class Modern(Array):
    """Of versioned capsules only."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if max_version is None or max_version[0] < 1:
            raise BufferError("legacy capsules are not supported")
        return super().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)


class Enum(Array):
    """Whose device type is a member of a plain enum.Enum."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device is not None:
            kind, number = dl_device
            dl_device = (kind.value if isinstance(kind, enum.Enum) else kind, number)
        return super().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self):
        return DeviceType.CPU, 0


class Old(Array):
    """Of the array API standard of 2021."""

    def __dlpack__(self, *, stream=None):
        return self.inner.__dlpack__(stream=stream)


class OfDLPackAlone(Array):
    """Which refuses what only the array API standard asks for."""

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device is not None or copy is not None:
            raise RuntimeError("dl_device and copy are not supported")
        return self.inner.__dlpack__(stream=stream, max_version=max_version)


class Wrapped(Wrongarray):
    name = None
    kind = Array
    choices = {}

    def __init__(self):
        super().__init__()
        self.views = {name: lambda a, view=view: self.kind(view(a.inner)) for name, view in Wrongarray.views.items()}
        self.repeat = lambda a, count: self.kind(a.inner.view((count,), (0,), 0))
        self.from_dlpack = self.take

    def take(self, x, **keywords):
        return self.kind(wrongarray.from_dlpack(x.inner if isinstance(x, Array) else x, **keywords))

    def make(self, dtype, shape, data):
        return self.kind(super().make(dtype, shape, data))

    def readonly(self, dtype, shape, data):
        return self.kind(super().readonly(dtype, shape, data))

    def unexportable(self):
        return {what: self.kind(array) for what, array in super().unexportable().items()}

    def describe(self, a):
        return super().describe(a.inner)

    def values(self, a):
        return a.inner.tobytes()


class ModernOnly(Wrapped):
    name = "versioned capsules only"
    kind = Modern


class EnumDevice(Wrapped):
    name = "a plain enum as device type"
    kind = Enum


class Of2021(Wrapped):
    """Consumer and producer know no keyword but stream."""

    name = "the standard of 2021.12"
    kind = Old
    standard = "2021.12"

    def take(self, x):
        return self.kind(wrongarray.from_dlpack(x.__dlpack__()))


class Of2021ThatClaimsMore(Of2021):
    name = "the standard of 2021.12, which claims 2025.12"
    standard = "2025.12"


class DLPackAlone(Wrapped):
    name = "DLPack alone"
    kind = OfDLPackAlone
    standard = None

    def take(self, x):
        return super().take(x)


class Bytes(Wrapped):
    """Planes of a picture: arrays and imports of uint8 and two dimensions, and nothing else."""

    name = "uint8 in two dimensions only"
    dtypes = ("uint8",)
    ranks = (2,)

    def make(self, dtype, shape, data):
        self.check(dtype, len(shape))
        return super().make(dtype, shape, data)

    def readonly(self, dtype, shape, data):
        self.check(dtype, len(shape))
        return super().readonly(dtype, shape, data)

    def unexportable(self):
        return {}

    def take(self, x, **keywords):
        a = super().take(x, **keywords)
        _, shape, _, _, dtype = a.inner.describe()
        self.check({number: name for name, number in DTYPES.items()}.get(dtype), len(shape))
        return a

    def check(self, dtype, rank):
        if (dtype, rank) != ("uint8", 2):
            raise BufferError(f"{dtype} of rank {rank} is not supported")


class Lazy(Wrapped):
    """Whose consumer looks at a tensor no sooner than the caller does."""

    name = "a consumer that validates late"
    kind = Array

    class Late:
        def __init__(self, source, keywords):
            self.source, self.keywords = source, keywords

        @property
        def inner(self):
            if self.source is not None:
                source, self.source = self.source, None
                self.array = wrongarray.from_dlpack(source, **self.keywords)
            return self.array

        def __dlpack__(self, **keywords):
            return self.inner.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return self.inner.__dlpack_device__()

    def take(self, x, **keywords):
        late = self.Late(x.inner if isinstance(x, (Array, self.Late)) else x, keywords)
        if not isinstance(x, (Array, self.Late)) and not hasattr(x, "__dlpack__"):
            late.inner
        return late


class Refusing(Wrapped):
    """Which takes nothing."""

    name = "a consumer that refuses everything"

    def take(self, x, **keywords):
        raise BufferError("not supported")


class Mute(Array):
    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        raise BufferError("not supported")


class RefusingProducer(Wrapped):
    """Which exports nothing."""

    name = "a producer that refuses everything"
    kind = Mute


class Image(Adapter):
    """examples/minimal/image.c: uint8 of shape (height, width, 3)."""

    name = "image"
    dtypes = ("uint8",)
    ranks = (3,)
    shape = (2, 3, 3)
    views = {}

    def make(self, dtype, shape, data):
        if dtype != "uint8" or len(shape) != 3 or shape[2] != 3:
            raise ValueError("not an image")
        made = image.Image(*shape[:2])
        if data:
            ctypes.memmove(native.take(made).says["data"], bytes(data), len(data))
        return made

    def version(self):
        return "unreleased"

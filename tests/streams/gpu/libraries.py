"""Adapters for array libraries on a GPU.

late(value)          an array of SIZE uint8, 0 at first, that the library's current stream sets to the value late
total(array)         the sum of an array of another library, imported by from_dlpack or as an argument of a kernel
on(stream)           makes a stream the current stream of the library, if the library allows it
alone()              optional: a call without DLPack, which fails if the installed library is broken
"""

import contextlib
import functools
import importlib.util
from types import SimpleNamespace

import pytest
from streams.gpu.device import SIMULATED, SIZE


def filled_late(gpu, empty, pointer, on):
    """on() and late() for a library whose current stream is known."""
    current = []

    @contextlib.contextmanager
    def on_stream(stream):
        with on(stream):
            current.append(stream)
            yield
            current.pop()

    def late(value):
        array = empty()
        gpu.fill(current[-1], pointer(array), 0)
        gpu.synchronize(current[-1])
        gpu.fill_late(current[-1], pointer(array), value)
        return array

    return {"on": on_stream, "late": late}


def cupy(gpu):
    import cupy

    return SimpleNamespace(
        name="cupy",
        devices=cupy.cuda.runtime.getDeviceCount,
        total=lambda array: int(cupy.from_dlpack(array).sum()),
        **filled_late(
            gpu,
            lambda: cupy.empty(SIZE, cupy.uint8),
            lambda a: a.data.ptr,
            lambda stream: cupy.cuda.ExternalStream(stream),
        ),
    )


def torch(gpu):
    import torch

    return SimpleNamespace(
        name="torch",
        devices=torch.cuda.device_count,
        total=lambda array: int(torch.from_dlpack(array).sum()),
        **filled_late(
            gpu,
            lambda: torch.empty(SIZE, dtype=torch.uint8, device="cuda"),
            lambda a: a.data_ptr(),
            lambda stream: torch.cuda.stream(torch.cuda.ExternalStream(stream)),
        ),
    )


def jax(gpu):
    """JAX has its own streams: its late work is a product of large matrices."""
    import jax
    import jax.numpy as numpy

    side = 8192

    @jax.jit
    def product(matrix, value):
        for _ in range(24):
            matrix = matrix @ matrix
        row = matrix.sum(axis=0) * value
        return numpy.tile(row.astype(numpy.uint8), SIZE // side)

    @functools.cache
    def identity():
        matrix = numpy.eye(side, dtype=numpy.float32)
        product(matrix, 0.0).block_until_ready()  # compiles the product
        return matrix

    return SimpleNamespace(
        name="jax",
        devices=lambda: sum(device.platform in ("gpu", "cuda") for device in jax.devices()),
        total=lambda array: int(numpy.sum(jax.dlpack.from_dlpack(array), dtype=numpy.uint32)),
        on=lambda stream: contextlib.nullcontext(),
        late=lambda value: product(identity(), float(value)),
    )


def numba(gpu):
    """Kernels of Numba accept objects with __dlpack__, and pass their stream. Arrays of Numba have no __dlpack__."""
    import numba
    import numpy
    from numba import cuda

    current = [cuda.default_stream()]

    @cuda.jit
    def add_up(array, result):
        part = numba.uint64(0)
        for i in range(cuda.threadIdx.x, array.size, cuda.blockDim.x):
            part += array[i]
        cuda.atomic.add(result, 0, part)

    def total(array):
        result = cuda.to_device(numpy.zeros(1, numpy.uint64), stream=current[-1])
        add_up[1, 256, current[-1]](array, result)
        return int(result.copy_to_host(stream=current[-1])[0])

    @contextlib.contextmanager
    def on(stream):
        current.append(cuda.external_stream(stream))
        yield
        current.pop()

    return SimpleNamespace(
        name="numba",
        devices=lambda: len(cuda.gpus),
        alone=lambda: total(cuda.to_device(numpy.zeros(8, numpy.uint8))),
        total=total,
        **filled_late(
            gpu,
            lambda: cuda.device_array(SIZE, numpy.uint8, stream=current[-1]),
            lambda a: a.__cuda_array_interface__["data"][0],
            on,
        ),
    )


# {name: (the function that describes the library, a module of its package)}
LIBRARIES = {
    "cupy": (cupy, "cupy"),
    "torch": (torch, "torch"),
    "jax": (jax, "jax"),
    "numba": (numba, "numba_cuda"),
}


@functools.cache
def _load(name, gpu):
    """The description of a library, or the reason why it is missing."""
    make, module = LIBRARIES[name]
    if SIMULATED:
        return f"{name}: a simulated GPU is none for libraries"
    if importlib.util.find_spec(module) is None:
        return f"{name}: not installed"
    library = make(gpu)
    if library.devices() == 0:
        return f"{name}: what is installed sees no GPU"
    try:
        if hasattr(library, "alone"):
            library.alone()
    except Exception as error:
        return f"{name}: what is installed does not work by itself: {type(error).__name__}: {error}"
    return library


def load(name, gpu):
    library = _load(name, gpu)
    if isinstance(library, str):
        pytest.skip(library)
    return library

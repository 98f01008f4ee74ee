"""Every test of gpu/ uses a GPU exclusively and leaves no object there. Without a GPU it is skipped with a reason, or
uses the simulated runtime (`make test-simulated-gpu`)."""

import functools
import gc
import importlib
import importlib.util
import os
from pathlib import Path

import pytest
from streams.gpu import libraries
from streams.gpu.device import SIMULATED, Gpu
from streams.gpu.driver import NoGpu, devices_and_version


@functools.cache
def reason_to_skip():
    if importlib.util.find_spec("gpu_probe") is None:
        return "GPU: `make test-gpu` runs these, without one `make test-simulated-gpu`"
    if SIMULATED:
        return None
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # a queue for each stream: work in one queue is in order
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX leaves memory for the other libraries
    try:
        devices_and_version()
    except NoGpu as reason:
        return str(reason)
    return None


def pytest_collection_modifyitems(items):
    """Managed memory comes last: a mistake with it can stop the GPU."""
    own = [item for item in items if Path(__file__).parent in item.path.parents]
    items.sort(key=lambda item: item in own and "managed" in item.name.lower())
    for item in own:
        if reason := reason_to_skip():
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def open_gpu():
    return Gpu(importlib.import_module("gpu_probe"), importlib.import_module("gpu_other"))


@pytest.fixture
def gpu(request):
    gpu = open_gpu()
    gpu.forget_calls()
    gpu.last_error()  # clears the error that a library has left
    gpu.violations()
    yield gpu
    if {"torch", "library"} & set(request.fixturenames):
        gpu.last_error()  # libraries leave their own errors
    gpu.settle()
    gc.collect()
    gpu.settle()
    waiting = gpu.probe.collect(), gpu.other.collect()
    error, device = gpu.last_error(), gpu.device
    gpu.runtime("SetDevice", 0)
    assert (waiting, error, device) == ((0, 0), 0, 0)
    if request.node.get_closest_marker("forbidden") is None:
        assert gpu.violations() == []


@pytest.fixture
def two(gpu):
    if gpu.devices < 2:
        pytest.skip("this machine has one GPU, not two")
    return gpu


@pytest.fixture(params=libraries.LIBRARIES)
def library(request, gpu):
    return libraries.load(request.param, gpu)


@pytest.fixture
def torch(gpu):
    libraries.load("torch", gpu)
    return importlib.import_module("torch")

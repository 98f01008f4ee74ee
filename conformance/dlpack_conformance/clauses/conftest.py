"""The library under test, for each test of a clause."""

import pytest

from dlpack_conformance.kit import Library
from dlpack_conformance.server import adapter_of


@pytest.fixture(scope="session")
def library(request):
    name = request.config.getoption("--dlpack")
    return Library(adapter_of(name), name, request.config.getoption("--dlpack-cuda"))


@pytest.fixture
def lib(request, library):
    library.begin(request.function.clause)
    return library


@pytest.fixture
def runtime(lib):
    """The runtime of the device, which is left as it was."""
    runtime = lib.runtime()
    device = runtime.device()
    yield runtime
    runtime.set_device(device)
    runtime.close()

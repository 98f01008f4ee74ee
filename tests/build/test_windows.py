"""The headers compile for Windows with mingw-w64 without a warning, alone and after windows.h, which defines words such
as interface. make test-windows runs the suite there."""

import shutil

import machine
import pytest

COMPILER = tuple(shutil.which(f"x86_64-w64-mingw32-{name}-posix") for name in ("gcc", "g++"))
PYTHON = machine.ROOT / "build" / "windows" / "python" / "include"
SOURCES = machine.ROOT / "tests" / "build"

pytestmark = [
    pytest.mark.skipif(None in COMPILER, reason="not on this machine: mingw-w64"),
    pytest.mark.parametrize("before", [[], ["-include", "windows.h"]], ids=["alone", "after windows.h"]),
    pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++17"]),
]


def compiles(tmp_path, name, standard, *flags, python=None):
    source = SOURCES / f"{name}.{'cpp' if '+' in standard else 'c'}"
    flags = [f"-std={standard}", *flags, *machine.how_far(standard, tmp_path)]
    done = machine.compile_c(source, *flags, compiler=COMPILER, python=python)
    assert done.returncode == 0, done.stderr


def test_the_tensor_layer_and_the_protocol_compile(tmp_path, standard, before):
    if not PYTHON.exists():
        pytest.skip("`make test-windows` gets it: Windows' Python.h")
    compiles(tmp_path, "uses_all", standard, *before, python=str(PYTHON))


@pytest.mark.parametrize("how", ["linked", "at run time"])
@pytest.mark.parametrize("runtime", machine.runtimes())
def test_the_device_headers_compile(tmp_path, runtime, how, standard, before):
    kind = runtime.split()[0]
    flags = [*before, "-isystem", machine.runtimes()[runtime]]
    flags += ["-include", {"CUDA": "dlpack_cuda.h", "HIP": "dlpack_rocm.h"}[kind], "-DDLPACK_DEVICE_NO_PYTHON"]
    flags += ["-D__HIP_PLATFORM_AMD__"] if kind == "HIP" else []
    flags += [f"-DDLPACK_{'CUDA' if kind == 'CUDA' else 'ROCM'}_AT_RUN_TIME"] if how == "at run time" else []
    compiles(tmp_path, "uses_device", standard, *flags)

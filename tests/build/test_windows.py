"""The headers compile for Windows with mingw-w64 without a warning, alone and after windows.h, which defines words such
as interface. make test-windows runs the suite there."""

import os
import re
import shutil
import subprocess

import machine
import pytest

COMPILER = tuple(shutil.which(f"x86_64-w64-mingw32-{name}-posix") for name in ("gcc", "g++"))
PYTHON = machine.ROOT / "build" / "windows" / "python" / "include"
SOURCES = machine.ROOT / "tests" / "build"

pytestmark = pytest.mark.skipif(None in COMPILER, reason="not on this machine: mingw-w64")
each_order = pytest.mark.parametrize("before", [[], ["-include", "windows.h"]], ids=["alone", "after windows.h"])
each_standard = pytest.mark.parametrize("standard", ["c99", "c11", "c++11", "c++17"])


def compiles(tmp_path, name, standard, *flags, python=None):
    source = SOURCES / f"{name}.{'cpp' if '+' in standard else 'c'}"
    flags = [f"-std={standard}", *flags, *machine.how_far(standard, tmp_path)]
    done = machine.compile_c(source, *flags, compiler=COMPILER, python=python)
    assert done.returncode == 0, done.stderr


@each_order
@each_standard
def test_the_tensor_layer_and_the_protocol_compile(tmp_path, standard, before):
    if not PYTHON.exists():
        pytest.skip("`make test-windows` gets it: Windows' Python.h")
    compiles(tmp_path, "uses_all", standard, *before, python=str(PYTHON))


@each_order
@each_standard
@pytest.mark.parametrize("how", ["linked", "at run time"])
@pytest.mark.parametrize("runtime", machine.runtimes())
def test_the_device_headers_compile(tmp_path, runtime, how, standard, before):
    kind = runtime.split()[0]
    flags = [*before, "-isystem", machine.runtimes()[runtime]]
    flags += ["-include", {"CUDA": "dlpack_cuda.h", "HIP": "dlpack_rocm.h"}[kind], "-DDLPACK_DEVICE_NO_PYTHON"]
    flags += ["-D__HIP_PLATFORM_AMD__"] if kind == "HIP" else []
    flags += [f"-DDLPACK_{'CUDA' if kind == 'CUDA' else 'ROCM'}_AT_RUN_TIME"] if how == "at run time" else []
    compiles(tmp_path, "uses_device", standard, *flags)


FINDS = """
#include <stdint.h>
#include <string.h>
#define DLPACK_PY_VERSION {version}
#define DLPACK_DEVICE_API_LIBRARY "planted.dll"
#include "dlpack_device_library.h"
int
main(void)
{{
    return dlp_device_library() != NULL;
}}
"""


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """A folder with program/finds.exe, planted.dll, and a prefix for wine."""
    if shutil.which("wine") is None:
        pytest.skip("not on this machine: wine")
    folder = tmp_path_factory.mktemp("wine")
    (folder / "program").mkdir()
    version = re.search(r"#define DLPACK_PY_VERSION (\w+)", (machine.ROOT / "dlpack_tensor.h").read_text())[1]
    (folder / "finds.c").write_text(FINDS.format(version=version))
    (folder / "planted.c").write_text("int planted;\n")
    for source, *arguments in (
        ("finds.c", f"-I{machine.ROOT}", "-o", folder / "program" / "finds.exe"),
        ("planted.c", "-shared", "-o", folder / "planted.dll"),
    ):
        subprocess.run([COMPILER[0], folder / source, *arguments], check=True)
    return folder


@pytest.mark.parametrize("place", ["the current folder", "PATH", "the program's folder"])
def test_a_runtime_is_not_loaded_from_the_current_folder_or_path(wine, tmp_path, place):
    """Anybody may have put a file there, such as a download."""
    environment = os.environ | {"WINEPREFIX": str(wine / "prefix"), "WINEDEBUG": "-all"}
    if place == "PATH":
        environment["WINEPATH"] = f"Z:{wine}".replace("/", "\\")
    if place == "the program's folder":
        shutil.copy(wine / "planted.dll", wine / "program")
    done = subprocess.run(
        ["wine", wine / "program" / "finds.exe"],
        cwd=wine if place == "the current folder" else tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    (wine / "program" / "planted.dll").unlink(missing_ok=True)
    assert done.returncode == (place == "the program's folder")

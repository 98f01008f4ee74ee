"""The headers and examples compile for other platforms without a warning. Nothing of it runs: zig cross-compiles.

Python.h is that of this machine, with a pyconfig.h for the sizes of the platform. Windows has another Python.h, which
is not here: only the tensor layer is compiled for it.
"""

import os
import re
import shutil
import subprocess

import machine
import pytest

UNIX = [
    "x86_64-macos",
    "aarch64-macos",
    "x86_64-freebsd",
    "x86_64-linux-musl",
    "aarch64-linux-musl",
    "aarch64-linux-gnu",
]
UNIX_32 = ["x86-linux-musl", "arm-linux-musleabihf"]
WINDOWS = ["x86_64-windows-gnu", "x86-windows-gnu", "aarch64-windows-gnu"]
EXAMPLES = ["minimal/image.c", "growable/samples.c", "table/ring.c", "retrofit/bits.c", "ndarray/dlarray.c"]
USES_ALL = machine.ROOT / "tests" / "build" / "uses_all.c"
SIZES_32 = ["LONG", "VOID_P", "SIZE_T", "UINTPTR_T", "PTHREAD_T", "PTHREAD_KEY_T", "TIME_T", "OFF_T", "FPOS_T"]

pytestmark = pytest.mark.skipif(machine.zig() is None, reason="`tests/build/machine.py fetch` gets it: zig")


def compiles(folder, target, source, *flags):
    command = [*machine.zig(), "-target", target, *machine.WARNINGS, "-O1", "-fPIC", f"-I{machine.ROOT}"]
    command += [
        "-isystem",
        list(machine.dlpack_headers().values())[-1],
        *flags,
        str(source),
        "-c",
        "-o",
        str(folder / "o"),
    ]
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(machine.FETCHED_ZIG / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


def python_headers(folder, target):
    """Flags for Python.h, with a pyconfig.h for the target."""
    if target not in UNIX_32:
        return ["-isystem", machine.python_include()]
    headers = folder / "include"
    shutil.copytree(machine.python_include(), headers)  # Python.h includes the pyconfig.h beside it
    text = (headers / "pyconfig.h").read_text()
    for size in SIZES_32:
        text = re.sub(rf"(#define (?:SIZEOF|ALIGNOF)_{size}) 8", r"\1 4", text)
    (headers / "pyconfig.h").write_text(text)
    return ["-isystem", str(headers)]


@pytest.mark.parametrize("target", UNIX + UNIX_32)
def test_the_headers_compile_for_other_unix_systems(tmp_path, target):
    flags = python_headers(tmp_path, target)
    for source in [USES_ALL, *(machine.ROOT / "examples" / name for name in EXAMPLES)]:
        compiles(tmp_path, target, source, "-std=c17", *flags)


@pytest.mark.parametrize("target", UNIX + UNIX_32 + WINDOWS)
@pytest.mark.parametrize("copy", [[], ["-include", "dlpack_copy.h"]], ids=["loops", "dlpack_copy.h"])
def test_the_tensor_layer_compiles_for_other_platforms(tmp_path, target, copy):
    compiles(tmp_path, target, USES_ALL, "-std=c17", "-DUSES_ALL_TENSORS", *copy)
    compiles(tmp_path, target, USES_ALL.with_suffix(".cpp"), "-std=c++11", "-DUSES_ALL_TENSORS", *copy)

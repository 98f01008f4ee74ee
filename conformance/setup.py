"""Builds the extension with dlpack.h: from the folder that DLPACK_INCLUDE_DIR names, else from apache-tvm-ffi.

The extension uses the limited API of CPython 3.9: one wheel for each platform. PyPy and a CPython without a GIL, which
have no limited API, get a wheel of their own.
"""

import atexit
import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup


def include_dir():
    named = os.environ.get("DLPACK_INCLUDE_DIR")
    if named is None:
        package = importlib.util.find_spec("tvm_ffi")
        named = Path(package.origin).parent / "include" if package else "."
    if not Path(named, "dlpack", "dlpack.h").exists():
        raise SystemExit(f"no dlpack/dlpack.h in {named}: set DLPACK_INCLUDE_DIR to the folder that contains dlpack/")
    return str(named)


def options(is_limited):
    found = {"bdist_wheel": {"py_limited_api": "cp39"}} if is_limited else {}
    if "sdist" not in sys.argv:
        # What a build writes is in a folder of its own: two builds of one tree at once do not meet.
        folder = tempfile.mkdtemp(prefix="dlpack-conformance-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        found |= {"build": {"build_base": folder}, "egg_info": {"egg_base": folder}}
    return found


is_limited = platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
is_posix = os.name == "posix"

setup(
    options=options(is_limited),
    ext_modules=[
        Extension(
            "_dlpack_conformance",
            ["_dlpack_conformance.c"],
            include_dirs=[] if {"sdist", "egg_info", "dist_info"} & set(sys.argv) else [include_dir()],
            define_macros=[("Py_LIMITED_API", "0x03090000")] if is_limited else [],
            py_limited_api=is_limited,
            # A function that the limited API lacks is an error, and not a warning.
            extra_compile_args=["-pthread", "-Werror=implicit-function-declaration"] if is_posix else [],
            extra_link_args=["-pthread"] if is_posix else [],
        )
    ],
)

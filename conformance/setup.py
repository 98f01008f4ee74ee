"""Builds the extension with dlpack.h: from the folder that DLPACK_INCLUDE_DIR names, else from apache-tvm-ffi."""

import importlib.util
import os
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


setup(
    ext_modules=[
        Extension(
            "_dlpack_conformance",
            ["_dlpack_conformance.c"],
            include_dirs=[include_dir()],
            libraries=["pthread"],
            extra_compile_args=["-std=gnu11"],
        )
    ]
)

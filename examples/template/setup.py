import sys

import dlpack_py
from setuptools import Extension, setup

# From C11 on MSVC knows all of C99; C4204 is its warning for a run-time value in an initializer.
flags = ["/std:c11", "/wd4204"] if sys.platform == "win32" else ["-std=c99"]
include = [dlpack_py.get_include()]

setup(py_modules=[], ext_modules=[Extension("myarray", ["myarray.c"], include_dirs=include, extra_compile_args=flags)])

import dlpack_py
from setuptools import Extension, setup

ramp = Extension("ramp", ["ramp.cpp"], include_dirs=[dlpack_py.get_include()])
setup(py_modules=[], ext_modules=[ramp])  # py_modules=[]: no other file here is installed

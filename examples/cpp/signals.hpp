// The declarations that the source files of the module share. This file does not include dlpack_py.h: each source file
// that uses dlpack_py.h includes it.
// SPDX-License-Identifier: MIT
#pragma once

#include <Python.h>

// smooth(x, *, out=None), defined in smooth.cpp
PyObject *
smooth(PyObject *module, PyObject *args, PyObject *kwargs);

// What the source files of the module share. It does not include dlpack_py.h: each file that uses it includes it.
// SPDX-License-Identifier: MIT
#pragma once

#include <Python.h>

// smooth(x, *, out=None), in smooth.cpp
PyObject *
smooth(PyObject *module, PyObject *args, PyObject *kwargs);

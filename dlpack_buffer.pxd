# dlpack_buffer.h for Cython: from dlpack_buffer cimport *, in place of dlpack_py.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_buffer.h. Who needs dlpack_exchange too, cimports dlpack_exchange
# first.
include "dlpack_py.pxd"

cdef extern from "dlpack_buffer.h":
    object dlpack_buffer_dlpack(object self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
    int dlpack_buffer_get(object obj, const dlpack_py_want *want, Py_buffer *buffer, int flags) except -1
    int dlpack_buffer_getbuffer_described(object self, dlpack_py_describe describe, Py_buffer *buffer,
                                          int flags) except -1
    void dlpack_buffer_release(object self, Py_buffer *buffer)
    object dlpack_buffer_memoryview(object obj, const dlpack_py_want *want)
    object dlpack_buffer_memoryview_steal(dlpack_py_view *v)
    object dlpack_buffer_array_interface(object self, dlpack_py_describe describe)
    int dlpack_buffer_fallback(void *py_object, DLManagedTensorVersioned **out) except -1

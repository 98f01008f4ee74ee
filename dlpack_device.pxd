# dlpack_device.h for Cython: what dlpack_cuda.pxd and dlpack_rocm.pxd share. They include this file.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_device.h, which dlpack_cuda.h and dlpack_rocm.h include.
include "dlpack_py.pxd"

cdef extern from *:
    const uintptr_t DLPACK_DEVICE_PER_THREAD_STREAM
    const int DLPACK_DEVICE_COPY_UNFINISHED
    int dlpack_device_order(const dlpack_py_work_stream *before, size_t count, dlpack_py_work_stream after,
                            dlpack_py_error *error) noexcept nogil
    int dlpack_device_synchronize(const dlpack_py_work_stream *streams, size_t count,
                                  dlpack_py_error *error) noexcept nogil
    int dlpack_device_copy_to_host(const DLTensor *dst, const DLTensor *src, uint64_t flags,
                                   const dlpack_py_work_stream *before, size_t count,
                                   dlpack_py_error *error) noexcept nogil
    const dlpack_py_operations *dlpack_device_operations() noexcept nogil
    size_t dlpack_device_collect()
    int dlpack_device_release(dlpack_py_work_stream stream, dlpack_py_view *v, dlpack_py_error *error)
    int dlpack_device_current_work(object obj, dlpack_py_work_stream *work) except -1
    int dlpack_device_consume(object obj, uintptr_t stream, const dlpack_py_want *want, dlpack_py_view *v) except -1
    int dlpack_device_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, uintptr_t stream,
                                  const dlpack_py_want *want, dlpack_py_view *v) except -1

# dlpack_rocm.h for Cython: from dlpack_rocm cimport *, in place of dlpack_py.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_rocm.h.
cdef extern from "dlpack_rocm.h":  # first: it includes the other headers in the right order
    ctypedef void *hipStream_t

include "dlpack_device.pxd"

cdef extern from "dlpack_rocm.h":
    uintptr_t dlpack_rocm_stream(hipStream_t stream) noexcept nogil
    dlpack_py_work_stream dlpack_rocm_work_stream(hipStream_t stream, int32_t device_id) noexcept nogil
    int dlpack_rocm_order(hipStream_t before, int32_t before_device, hipStream_t after, int32_t after_device,
                          dlpack_py_error *error) noexcept nogil
    int dlpack_rocm_find_device(const void *pointer, DLDevice *device, dlpack_py_error *error) noexcept nogil
    DLTensor dlpack_rocm_tensor(void *data, int32_t device_id, uint32_t dtype, int32_t ndim, const int64_t *shape,
                                const int64_t *strides) noexcept nogil
    const dlpack_py_operations *dlpack_rocm_operations() noexcept nogil
    object dlpack_rocm_produce(object owner, const DLTensor *t, uint64_t flags, hipStream_t stream,
                               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
    int dlpack_rocm_consume(object obj, const dlpack_py_want *want, hipStream_t stream, dlpack_py_view *v) except -1
    int dlpack_rocm_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                                hipStream_t stream, dlpack_py_view *v) except -1
    int dlpack_rocm_release(dlpack_py_view *v, hipStream_t stream) except -1
    void dlpack_rocm_release_unraisable(dlpack_py_view *v, hipStream_t stream)

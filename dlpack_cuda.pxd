# dlpack_cuda.h for Cython: from dlpack_cuda cimport *, in place of dlpack_py.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_cuda.h.
cdef extern from "dlpack_cuda.h":  # first: it includes the other headers in the right order
    ctypedef void *cudaStream_t

include "dlpack_device.pxd"

cdef extern from "dlpack_cuda.h":
    uintptr_t dlpack_cuda_stream(cudaStream_t stream) noexcept nogil
    dlpack_py_work_stream dlpack_cuda_work_stream(cudaStream_t stream, int32_t device_id) noexcept nogil
    int dlpack_cuda_order(cudaStream_t before, int32_t before_device, cudaStream_t after, int32_t after_device,
                          dlpack_py_error *error) noexcept nogil
    int dlpack_cuda_find_device(const void *pointer, DLDevice *device, dlpack_py_error *error) noexcept nogil
    DLTensor dlpack_cuda_tensor(void *data, int32_t device_id, uint32_t dtype, int32_t ndim, const int64_t *shape,
                                const int64_t *strides) noexcept nogil
    const dlpack_py_operations *dlpack_cuda_operations() noexcept nogil
    object dlpack_cuda_produce(object owner, const DLTensor *t, uint64_t flags, cudaStream_t stream,
                               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
    int dlpack_cuda_consume(object obj, const dlpack_py_want *want, cudaStream_t stream, dlpack_py_view *v) except -1
    int dlpack_cuda_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                                cudaStream_t stream, dlpack_py_view *v) except -1
    int dlpack_cuda_release(dlpack_py_view *v, cudaStream_t stream) except -1
    void dlpack_cuda_release_unraisable(dlpack_py_view *v, cudaStream_t stream)

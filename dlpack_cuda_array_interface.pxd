# dlpack_cuda_array_interface.h for Cython: from dlpack_cuda_array_interface cimport *, in place of dlpack_cuda.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_cuda_array_interface.h.
cdef extern from "dlpack_cuda_array_interface.h":  # first: it includes the other headers in the right order
    pass

include "dlpack_cuda.pxd"

cdef extern from "dlpack_cuda_array_interface.h":
    object dlpack_device_array_interface(const DLTensor *t, uint64_t flags, uintptr_t stream)
    object dlpack_cuda_array_interface(const DLTensor *t, uint64_t flags, cudaStream_t stream)

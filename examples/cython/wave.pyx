# wave - an extension type in Cython that exports its memory by DLPack
# SPDX-License-Identifier: MIT
#
# It needs only dlpack_tensor.h and dlpack_py.h, each with its .pxd. The lines for DLPack stand between the marks "dlpack: begin" and
# "dlpack: end".
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
# dlpack: begin
from dlpack_py cimport *
# dlpack: end

cdef class Wave:
    """Wave(length): float64 values, 0 at first."""
    cdef double *values
    cdef int64_t length

    def __cinit__(self, Py_ssize_t length):
        self.values = <double *>PyMem_RawCalloc(length, sizeof(double))
        if self.values == NULL:
            raise MemoryError
        self.length = length

    def __dealloc__(self):
        PyMem_RawFree(self.values)

    # dlpack: begin
    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        cdef DLTensor t = dlpack_py_cpu_tensor(self.values, DLPACK_PY_FLOAT64, 1, &self.length, NULL)
        return dlpack_py_produce_obj_args(self, &t, 0, stream, max_version, dl_device, copy)

    def __dlpack_device__(self):
        return 1, 0
    # dlpack: end

# dlpack: begin
def total(x):
    """The sum of any float64 vector."""
    cdef dlpack_py_want want = dlpack_py_want_any()
    cdef dlpack_py_view v
    cdef double result = 0
    want.dtype = DLPACK_PY_FLOAT64
    want.ndim = 1
    want.order = b'C'
    dlpack_py_consume(x, &want, &v)
    for i in range(v.tensor.shape[0]):
        result += (<double *>dlpack_py_data(&v))[i]
    dlpack_py_release(&v)
    return result
# dlpack: end

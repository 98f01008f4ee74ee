# ramp - an array type, and a function that takes the arrays of any library, in Cython
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from dlpack_py cimport *

dlpack_py_init()

cdef class Ramp:
    """The float64 values 0, 1, 2, ..."""
    cdef double *values
    cdef int64_t length

    def __cinit__(self, Py_ssize_t length):
        if length < 0:
            raise ValueError(f"there is no ramp of length {length}")
        self.values = <double *>PyMem_RawMalloc((length + 1) * sizeof(double))
        if self.values == NULL:
            raise MemoryError
        self.length = length
        for i in range(length):
            self.values[i] = i

    def __dealloc__(self):
        PyMem_RawFree(self.values)

    # Other libraries use the memory of a Ramp.
    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        cdef DLTensor t = dlpack_py_cpu_tensor(self.values, DLPACK_PY_FLOAT64, 1, &self.length, NULL)
        return dlpack_py_produce_obj_args(self, &t, 0, stream, max_version, dl_device, copy)

    def __dlpack_device__(self):
        return 1, 0

# This module uses the memory of other libraries.
def total(x):
    """The sum of any float64 vector."""
    cdef dlpack_py_want want = dlpack_py_want_any()
    cdef dlpack_py_view v
    cdef double result = 0
    want.dtype = DLPACK_PY_FLOAT64
    want.ndim = 1
    dlpack_py_consume(x, &want, &v) # BufferError names the requirement that is not met
    for i in range(v.tensor.shape[0]):
        result += (<const double *>dlpack_py_data(&v))[i * v.tensor.strides[0]]
    dlpack_py_release(&v)
    return result

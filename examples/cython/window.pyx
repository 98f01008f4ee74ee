# window - an extension type in Cython that holds an array of another library and exports a part of it by DLPack
# SPDX-License-Identifier: MIT
#
# It needs dlpack_tensor.h, dlpack_py.h and, for sums, dlpack_buffer.h, each with its .pxd. The lines for DLPack stand
# between the marks "dlpack: begin" and "dlpack: end".
# dlpack: begin
from dlpack_buffer cimport *
# dlpack: end

cdef class Window:
    """Window(x, start, stop): the elements start to stop of any float64 vector x, without a copy."""
    # dlpack: begin
    cdef dlpack_py_view view  # of x; all zero, that is empty, before __cinit__
    cdef DLTensor part        # what is exported; its strides are those of the view
    cdef int64_t length       # its shape
    # dlpack: end

    def __cinit__(self, x, int64_t start, int64_t stop):
        # dlpack: begin
        cdef dlpack_py_want want = dlpack_py_want_any()
        want.dtype = DLPACK_PY_FLOAT64
        want.ndim = 1
        want.name = b"x"
        dlpack_py_consume(x, &want, &self.view)
        if not 0 <= start <= stop <= self.view.tensor.shape[0]:
            raise IndexError(f"{start} to {stop} is no part of {self.view.tensor.shape[0]} elements")
        self.length = stop - start
        self.part = self.view.tensor  # dtype, device and strides
        self.part.data = <double *>dlpack_py_data(&self.view) + start * self.view.tensor.strides[0]
        self.part.byte_offset = 0     # dlpack_py_data has added it
        self.part.shape = &self.length
        # dlpack: end

    # dlpack: begin
    def __dealloc__(self):
        dlpack_py_release(&self.view)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        cdef dlpack_py_request request
        cdef dlpack_py_offer offer = dlpack_py_offer_view(self, &self.part, &self.view)  # read-only where x is
        dlpack_py_parse_request_obj_args(stream, max_version, dl_device, copy, &request)
        return dlpack_py_answer(&offer, &request)

    def __dlpack_device__(self):
        return dlpack_py_produce_device(&self.part)
    # dlpack: end

# dlpack: begin
def sums(x):
    """The sums of the rows of any float64 matrix: a DLPack array or a buffer."""
    cdef dlpack_py_want want = dlpack_py_want_any()
    want.dtype = DLPACK_PY_FLOAT64
    want.ndim = 2
    want.name = b"x"
    want.fallback = dlpack_buffer_fallback
    cdef const double[:, :] rows = dlpack_buffer_memoryview(x, &want)  # const: read-only arrays too
    # dlpack: end
    result = [0.0] * rows.shape[0]
    cdef Py_ssize_t i, j
    cdef double total
    for i in range(rows.shape[0]):
        total = 0
        for j in range(rows.shape[1]):
            total += rows[i, j]
        result[i] = total
    return result

# dlpack_copy.h for Cython: from dlpack_copy cimport *, before dlpack_py, whose copies then use it.
# SPDX-License-Identifier: MIT
#
# The contract of the function stands in dlpack_copy.h.
from libc.stdint cimport int64_t

cdef extern from "dlpack_copy.h":
    ctypedef struct dlpack_copy_loop:
        int64_t count
        int64_t to_step
        int64_t from_step

    void dlpack_copy_rows(char *to, const dlpack_copy_loop *rows, const char *source, const dlpack_copy_loop *items,
                          size_t item_size, int64_t total) noexcept nogil

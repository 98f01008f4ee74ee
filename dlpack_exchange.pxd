# dlpack_exchange.h for Cython: from dlpack_exchange cimport *, in place of dlpack_py.
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_exchange.h. The macros that define a table are C: write them into a
# block of C code, as `cdef extern from *:` has it.
cdef extern from "dlpack_exchange.h":  # first: dlpack_py.h uses it
    pass

include "dlpack_py.pxd"

cdef extern from "dlpack_exchange.h":
    const int DLPACK_PY_HAS_EXCHANGE_API

    ctypedef struct dlpack_py_exchange:
        pass

    ctypedef struct dlpack_py_embedded:
        pass

    int dlpack_py_borrow(object obj, const dlpack_py_want *want, dlpack_py_view *v) except -1
    int dlpack_py_exchange_add(type cls, const dlpack_py_exchange *exchange) except -1
    int dlpack_py_embed(dlpack_py_embedded *e, object owner, const DLTensor *t, uint64_t flags) except -1
    dlpack_py_offer dlpack_py_offer_embedded(dlpack_py_embedded *e)
    int dlpack_py_allocate_like(object like, const DLTensor *prototype, dlpack_py_view *v) except -1
    int dlpack_py_check_like(object like) except -1
    object dlpack_py_return_like_steal(object like, dlpack_py_view *v)

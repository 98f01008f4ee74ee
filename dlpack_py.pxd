# dlpack_py.h for Cython. Put this file and dlpack_tensor.pxd where Cython finds them, and write:
# from dlpack_py cimport *
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_py.h.
include "dlpack_tensor.pxd"
from cpython.object cimport PyObject, visitproc

cdef extern from "dlpack_py.h":
    const int DLPACK_PY_AVAILABLE
    int dlpack_py_raise(const dlpack_py_error *error) except -1
    int dlpack_py_init() except -1

    ctypedef struct dlpack_py_counter:
        pass

    size_t dlpack_py_exports_count(const dlpack_py_counter *exports) noexcept nogil
    object dlpack_py_capsule_steal(void *managed, int32_t form)
    object dlpack_py_object_steal(void *managed, int32_t form)

    # The request
    ctypedef struct dlpack_py_request:
        dlpack_py_stream stream
        DLPackVersion max_version
        int32_t has_device
        DLDevice device
        int32_t copy

    const int32_t DLPACK_PY_COPY_AS_NEEDED, DLPACK_PY_COPY_ALWAYS, DLPACK_PY_COPY_NEVER
    const int32_t DLPACK_PY_COPY_NEVER_IF_SUPPORTED
    int dlpack_py_parse_dtype(object obj, uint32_t *dtype) except -1
    int dlpack_py_parse_device(object obj, DLDevice *device) except -1
    int dlpack_py_parse_request_obj_args(object stream, object max_version, object dl_device, object copy,
                                         dlpack_py_request *request) except -1
    int dlpack_py_parse_request(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                                dlpack_py_request *request) except -1

    # Producing
    ctypedef struct dlpack_py_plan:
        int32_t form
        int32_t makes_copy
        DLDevice device
        uint64_t flags

    ctypedef struct dlpack_py_operations:
        int32_t type

    ctypedef struct dlpack_py_offer:
        PyObject *owner
        const DLTensor *tensor
        uint64_t flags
        uint32_t options
        dlpack_py_counter *exports
        int32_t is_copy
        const dlpack_py_operations *operations
        const dlpack_py_work_stream *pending
        size_t pending_count

    ctypedef int (*dlpack_py_describe)(object self, const dlpack_py_request *request, dlpack_py_offer *offer) except -1

    const uint32_t DLPACK_PY_OFFER_READ_ONLY_UNKNOWN, DLPACK_PY_OFFER_REFUSE_NEGATIVE, DLPACK_PY_OFFER_COPY_NEGATIVE
    const uint32_t DLPACK_PY_OFFER_NONE_IS_NO_SYNC, DLPACK_PY_OFFER_COPY_READ_ONLY, DLPACK_PY_OFFER_DO_NOT_LEND
    object dlpack_py_produce(object owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
    object dlpack_py_produce_obj_args(object owner, const DLTensor *t, uint64_t flags, object stream,
                                      object max_version, object dl_device, object copy)
    object dlpack_py_produce_described(object self, dlpack_py_describe describe, PyObject *const *args,
                                       Py_ssize_t nargs, PyObject *kwnames)
    object dlpack_py_produce_device(const DLTensor *t)
    object dlpack_py_cpu_device(object self, object unused)
    object dlpack_py_answer(const dlpack_py_offer *offer, const dlpack_py_request *request)
    dlpack_py_offer dlpack_py_offer_make(object owner, const DLTensor *t, uint64_t flags)
    dlpack_py_offer dlpack_py_offer_view(object owner, const DLTensor *t, const dlpack_py_view *v)

    # Views
    ctypedef struct dlpack_py_view:
        DLTensor tensor
        uint64_t flags
        int32_t readonly
        int32_t overlaps
        int32_t form
        void *managed

    void *dlpack_py_data(const dlpack_py_view *v) noexcept nogil
    void dlpack_py_release(dlpack_py_view *v) noexcept nogil
    void dlpack_py_move(dlpack_py_view *to, dlpack_py_view *source) noexcept nogil
    int dlpack_py_traverse(const dlpack_py_view *v, visitproc visit, void *arg)

    # Consuming
    int dlpack_py_consume(object obj, const dlpack_py_want *want, dlpack_py_view *v) except -1
    int dlpack_py_consume_request(object obj, const dlpack_py_request *request, const dlpack_py_want *want,
                                  dlpack_py_view *v) except -1
    int dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                              dlpack_py_view *v) except -1
    int dlpack_py_from_dlpack_obj_args(object x, object device, object copy, const dlpack_py_want *want,
                                       dlpack_py_view *v) except -1
    bint dlpack_py_has_tensor(object obj)

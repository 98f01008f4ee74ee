# dlpack_py.h for Cython. Put this file where Cython finds it, and write: from dlpack_py cimport *
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_py.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "dlpack_py.h":
    ctypedef struct DLDevice:
        int device_type
        int32_t device_id

    ctypedef struct DLDataType:
        uint8_t code
        uint8_t bits
        uint16_t lanes

    ctypedef struct DLTensor:
        void *data
        DLDevice device
        int32_t ndim
        DLDataType dtype
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset

    ctypedef struct dlpack_py_want:
        uint32_t dtype
        const uint32_t *dtypes
        int32_t ndim
        int32_t max_ndim
        const int64_t *shape
        char order
        char writable
        int32_t device
        size_t alignment
        uint32_t options
        const char *name
        int (*fallback)(void *py_object, void *out) except -1  # dlpack_py_buffer or NULL

    ctypedef struct dlpack_py_view:
        DLTensor tensor
        uint64_t flags
        int32_t readonly
        int32_t overlaps
        void *managed

    ctypedef struct dlpack_py_request:
        pass

    ctypedef struct dlpack_py_exports:
        pass

    ctypedef struct dlpack_py_offer:
        const DLTensor *tensor
        uint64_t flags
        uint32_t options
        dlpack_py_exports *exports
        int32_t is_copy

    const uint32_t DLPACK_PY_BOOL, DLPACK_PY_COMPLEX64, DLPACK_PY_COMPLEX128
    const uint32_t DLPACK_PY_INT8, DLPACK_PY_INT16, DLPACK_PY_INT32, DLPACK_PY_INT64
    const uint32_t DLPACK_PY_UINT8, DLPACK_PY_UINT16, DLPACK_PY_UINT32, DLPACK_PY_UINT64
    const uint32_t DLPACK_PY_FLOAT16, DLPACK_PY_BFLOAT16, DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64
    const uint64_t DLPACK_PY_FLAG_READ_ONLY
    const int32_t DLPACK_PY_SCALAR, DLPACK_PY_ANY_DEVICE
    const int32_t DLPACK_PY_WRITABLE, DLPACK_PY_READONLY, DLPACK_PY_READONLY_UNSAID
    const uint32_t DLPACK_PY_COPY_IF_NEEDED, DLPACK_PY_LEGACY_IS_WRITABLE, DLPACK_PY_NO_TABLE
    const uint32_t DLPACK_PY_OVERLAP_IS_FINE, DLPACK_PY_NOTHING_PENDING
    const uint32_t DLPACK_PY_OFFER_REFUSE_NEGATIVE, DLPACK_PY_OFFER_COPY_NEGATIVE, DLPACK_PY_OFFER_COPY_READ_ONLY

    int dlpack_py_buffer(void *py_object, void *out) except -1

    # Producing
    DLTensor dlpack_py_cpu(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
    object dlpack_py_produce_args(object owner, const DLTensor *t, uint64_t flags, object stream, object max_version,
                                  object dl_device, object copy)
    object dlpack_py_produce_device(const DLTensor *t)
    dlpack_py_offer dlpack_py_offer_make(object owner, const DLTensor *t, uint64_t flags)
    dlpack_py_offer dlpack_py_offer_view(object owner, const DLTensor *t, const dlpack_py_view *v)
    int dlpack_py_parse_request_args(object stream, object max_version, object dl_device, object copy,
                                     dlpack_py_request *request) except -1
    object dlpack_py_answer(const dlpack_py_offer *offer, const dlpack_py_request *request)
    size_t dlpack_py_exports_count(const dlpack_py_exports *exports) nogil

    # Consuming
    dlpack_py_want dlpack_py_want_any()
    dlpack_py_want dlpack_py_want_like(const DLTensor *t)
    int dlpack_py_consume(object obj, const dlpack_py_want *want, dlpack_py_view *v) except -1
    int dlpack_py_from_dlpack_args(object x, object device, object copy, const dlpack_py_want *want,
                                   dlpack_py_view *v) except -1
    void *dlpack_py_data(const dlpack_py_view *v) nogil
    void dlpack_py_release(dlpack_py_view *v) nogil
    void dlpack_py_move(dlpack_py_view *to, dlpack_py_view *source) nogil
    int dlpack_py_allocate_like(object like, const DLTensor *prototype, dlpack_py_view *v) except -1
    object dlpack_py_return_like_steal(object like, dlpack_py_view *v)
    bint dlpack_py_is_contiguous(const DLTensor *t, char order) nogil
    int64_t dlpack_py_size(const DLTensor *t) nogil
    int dlpack_py_overlap(const DLTensor *a, uint64_t flags_a, const DLTensor *b, uint64_t flags_b) nogil
    bint dlpack_py_check(object obj)

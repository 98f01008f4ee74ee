# dlpack_tensor.h for Cython. Put this file where Cython finds it, and write: from dlpack_tensor cimport *
# SPDX-License-Identifier: MIT
#
# The contract of each function stands in dlpack_tensor.h. dlpack_py.pxd includes this file.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

cdef extern from "dlpack_tensor.h":
    # Of dlpack.h
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

    ctypedef struct DLPackVersion:
        uint32_t major
        uint32_t minor

    ctypedef struct DLManagedTensorVersioned:
        DLPackVersion version
        void *manager_ctx
        void (*deleter)(DLManagedTensorVersioned *self) noexcept nogil
        uint64_t flags
        DLTensor dl_tensor

    const int DLPACK_PY_VERSION
    const char *DLPACK_PY_VERSION_STRING
    const char *DLPACK_PY_VERSION_DATE
    const char *DLPACK_PY_URL
    const int DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR
    const uint64_t DLPACK_PY_FLAG_READ_ONLY, DLPACK_PY_FLAG_IS_COPIED, DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED
    const int DLPACK_PY_MAX_NDIM

    # Errors
    ctypedef struct dlpack_py_error:
        int32_t code
        int32_t copy_helps
        char text[248]

    const int32_t DLPACK_PY_BUFFER_ERROR, DLPACK_PY_VALUE_ERROR, DLPACK_PY_TYPE_ERROR
    const int32_t DLPACK_PY_MEMORY_ERROR, DLPACK_PY_RUNTIME_ERROR, DLPACK_PY_SYSTEM_ERROR

    # Dtypes and devices
    uint32_t DLPACK_PY_DTYPE(uint32_t code, uint32_t bits, uint32_t lanes) noexcept nogil
    const uint32_t DLPACK_PY_BOOL, DLPACK_PY_OPAQUE_HANDLE64
    const uint32_t DLPACK_PY_INT8, DLPACK_PY_INT16, DLPACK_PY_INT32, DLPACK_PY_INT64
    const uint32_t DLPACK_PY_UINT8, DLPACK_PY_UINT16, DLPACK_PY_UINT32, DLPACK_PY_UINT64
    const uint32_t DLPACK_PY_FLOAT16, DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64, DLPACK_PY_BFLOAT16
    const uint32_t DLPACK_PY_COMPLEX32, DLPACK_PY_COMPLEX64, DLPACK_PY_COMPLEX128, DLPACK_PY_BCOMPLEX32
    const uint32_t DLPACK_PY_FLOAT8_E3M4, DLPACK_PY_FLOAT8_E4M3, DLPACK_PY_FLOAT8_E4M3B11FNUZ, DLPACK_PY_FLOAT8_E4M3FN
    const uint32_t DLPACK_PY_FLOAT8_E4M3FNUZ, DLPACK_PY_FLOAT8_E5M2, DLPACK_PY_FLOAT8_E5M2FNUZ
    const uint32_t DLPACK_PY_FLOAT8_E8M0FNU
    const uint32_t DLPACK_PY_FLOAT6_E2M3FN, DLPACK_PY_FLOAT6_E3M2FN, DLPACK_PY_FLOAT4_E2M1FN
    const int DLPACK_PY_TEXT_SIZE
    uint32_t dlpack_py_dtype(const DLTensor *t) noexcept nogil
    const char *dlpack_py_dtype_text(uint32_t dtype, char *text) noexcept nogil
    size_t dlpack_py_itemsize(DLDataType dtype, uint64_t flags) noexcept nogil
    bint dlpack_py_is_cpu_readable(DLDevice device) noexcept nogil
    const char *dlpack_py_device_text(DLDevice device, char *text) noexcept nogil

    # Layout. Functions that can fail return -1 and fill the error: raise it with dlpack_py_raise.
    DLTensor dlpack_py_cpu_tensor(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape,
                           const int64_t *strides) noexcept nogil
    int64_t dlpack_py_size(const DLTensor *t) noexcept nogil
    int64_t dlpack_py_nbytes(const DLTensor *t, uint64_t flags) noexcept nogil
    void dlpack_py_compact_strides(int32_t ndim, const int64_t *shape, char order, int64_t *strides) noexcept nogil
    int64_t *dlpack_py_to_int64(int32_t ndim, const void *source, size_t size, int64_t *to) noexcept nogil
    int dlpack_py_strides_from_bytes(DLTensor *t, int64_t *strides, uint64_t flags,
                                     dlpack_py_error *error) noexcept nogil
    bint dlpack_py_is_contiguous(const DLTensor *t, char order) noexcept nogil
    int dlpack_py_validate(const DLTensor *t, uint64_t flags, dlpack_py_error *error) noexcept nogil
    bint dlpack_py_may_overlap(const DLTensor *a, uint64_t flags_a, const DLTensor *b, uint64_t flags_b) noexcept nogil
    int dlpack_py_copy(const DLTensor *dst, const DLTensor *src, uint64_t flags, dlpack_py_error *error) noexcept nogil

    # Managed tensors
    const int32_t DLPACK_PY_VERSIONED, DLPACK_PY_LEGACY
    DLManagedTensorVersioned *dlpack_py_allocate(const DLTensor *prototype, dlpack_py_error *error) noexcept nogil
    DLManagedTensorVersioned *dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context,
                                             void (*free_fn)(void *context) noexcept nogil) noexcept nogil

    # Streams and requirements
    ctypedef struct dlpack_py_stream:
        int32_t kind
        uintptr_t handle

    ctypedef struct dlpack_py_work_stream:
        uintptr_t handle
        int32_t device_id

    ctypedef int (*dlpack_py_fallback)(void *py_object, DLManagedTensorVersioned **out) except -1

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
        dlpack_py_fallback fallback  # dlpack_buffer_fallback of dlpack_buffer.pxd, or NULL

    const int32_t DLPACK_PY_STREAM_NONE, DLPACK_PY_STREAM_NO_SYNC, DLPACK_PY_STREAM_HANDLE
    const int32_t DLPACK_PY_CURRENT_DEVICE, DLPACK_PY_ANY_DEVICE, DLPACK_PY_SCALAR
    const int DLPACK_PY_MAX_PENDING
    const uint32_t DLPACK_PY_WANT_COPY_IF_NEEDED, DLPACK_PY_WANT_LEGACY_IS_WRITABLE, DLPACK_PY_WANT_OVERLAP_IS_FINE
    const uint32_t DLPACK_PY_WANT_NOTHING_PENDING, DLPACK_PY_WANT_NO_TABLE, DLPACK_PY_WANT_ARRAY_INTERFACE_TOO
    const int32_t DLPACK_PY_WRITABLE, DLPACK_PY_READ_ONLY, DLPACK_PY_READ_ONLY_UNKNOWN
    dlpack_py_want dlpack_py_want_any() noexcept nogil
    dlpack_py_want dlpack_py_want_like(const DLTensor *t) noexcept nogil
    int dlpack_py_check_tensor(const DLTensor *t, int readonly, const dlpack_py_want *want,
                        dlpack_py_error *error) noexcept nogil

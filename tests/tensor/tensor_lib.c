/* The inline functions of the tensor layer, as functions that ctypes can call. */

#include "dlpack_tensor.h"

#define EXPORT_AS(name, type, function, parameters, arguments) \
    type tensor_##name parameters                              \
    {                                                          \
        return function arguments;                             \
    }
#define EXPORT(type, name, parameters, arguments) EXPORT_AS(name, type, dlpack_py_##name, parameters, arguments)
#define EXPORT_PRIVATE(type, name, parameters, arguments) EXPORT_AS(name, type, dlp_##name, parameters, arguments)

EXPORT_PRIVATE(int, check_dtype, (DLDataType dtype, dlpack_py_error *error), (dtype, error))
EXPORT(const char *, dtype_text, (uint32_t dtype, char *text), (dtype, text))
EXPORT(const char *, device_text, (DLDevice device, char *text), (device, text))
EXPORT(int64_t, size, (const DLTensor *t), (t))
EXPORT(int64_t, nbytes, (const DLTensor *t, uint64_t flags), (t, flags))
EXPORT(size_t, itemsize, (DLDataType dtype, uint64_t flags), (dtype, flags))
EXPORT_PRIVATE(int, byte_range, (const DLTensor *t, uint64_t flags, int64_t *low, int64_t *high), (t, flags, low, high))
EXPORT(int, validate, (const DLTensor *t, uint64_t flags, dlpack_py_error *error), (t, flags, error))
EXPORT(int, is_contiguous, (const DLTensor *t, char order), (t, order))
EXPORT_AS(overlaps_itself, int, dlp_may_overlap_itself, (const DLTensor *t), (t))
EXPORT_AS(overlap, int, dlpack_py_may_overlap, (const DLTensor *a, uint64_t fa, const DLTensor *b, uint64_t fb),
          (a, fa, b, fb))
EXPORT(int, copy, (const DLTensor *to, const DLTensor *from, uint64_t flags, dlpack_py_error *e), (to, from, flags, e))
EXPORT_AS(meets_nothing, int, dlpack_py_check_tensor, (const DLTensor *t, int readonly, dlpack_py_error *error),
          (t, readonly, NULL, error))
EXPORT_PRIVATE(int, check_stream, (DLDevice device, const dlpack_py_stream *stream, dlpack_py_error *e),
               (device, stream, e))

void
tensor_strides(int32_t ndim, const int64_t *shape, char order, int64_t *strides)
{
    dlpack_py_compact_strides(ndim, shape, order, strides);
}

/* Takes the fields of dlpack_py_want as arguments, so that the struct may grow. */
int
tensor_meets(const DLTensor *t, int readonly, uint32_t dtype, const uint32_t *dtypes, int32_t ndim, int32_t max_ndim,
             const int64_t *shape, char order, int writable, int32_t device, size_t alignment, uint32_t options,
             dlpack_py_error *error)
{
    dlpack_py_want want;
    memset(&want, 0, sizeof(want));
    want.dtype = dtype;
    want.dtypes = dtypes;
    want.ndim = ndim;
    want.max_ndim = max_ndim;
    want.shape = shape;
    want.order = order;
    want.writable = writable != 0;
    want.device = device;
    want.alignment = alignment;
    want.options = options;
    return dlpack_py_check_tensor(t, readonly, &want, error);
}

/* dlpack_cuda_array_interface.h - the CUDA array interface for dlpack_cuda.h and dlpack_rocm.h, both ways
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * Libraries without DLPack, such as Numba, have __cuda_array_interface__. Include this file in place of dlpack_cuda.h
 * or, in a file that HIP's macros make one for HIP, of dlpack_rocm.h: dlpack_cuda_consume and the like take the
 * interface too, with the option DLPACK_PY_WANT_ARRAY_INTERFACE_TOO, and dlpack_cuda_array_interface gives it.
 */

/* Contents
 *
 *   Taking
 *   Giving
 */

#if defined(DLPACK_DEVICE_PROTOCOL_LAYER) && !defined(DLPACK_CUDA_ARRAY_INTERFACE_H)
#  error "include dlpack_cuda_array_interface.h before dlpack_cuda.h and dlpack_rocm.h"
#  include "stop" /* no such file: ends the compilation */
#endif
#define DLPACK_CUDA_ARRAY_INTERFACE_H

#if defined(__HIP__) || defined(__HIPCC__) || defined(__HIP_PLATFORM_AMD__) || defined(__HIP_PLATFORM_NVIDIA__)
#  include "dlpack_rocm.h"
#else
#  include "dlpack_cuda.h"
#endif
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_cuda_array_interface.h and dlpack_py.h are of different versions: put one first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif

#if DLPACK_PY_AVAILABLE && !defined(DLPACK_CUDA_ARRAY_INTERFACE_LAYER)
#define DLPACK_CUDA_ARRAY_INTERFACE_LAYER
#include "dlpack_buffer.h"

DLP_QUIET

/* ---- Taking ------------------------------------------------------------- */

#define DLP_DEVICE_INTERFACE "__cuda_array_interface__"

/* Reads __cuda_array_interface__, version 2 or newer.
 *
 * dims     room for shape and strides, 2 * DLPACK_PY_MAX_NDIM
 * stream   out: kind is DLPACK_PY_STREAM_NO_SYNC where no work is pending
 *
 * Returns 0, or -1 with BufferError, TypeError or ValueError.
 */
static inline int
dlp_device_interface_parse(PyObject *dict, int64_t *dims, DLTensor *t, uint64_t *flags, dlpack_py_stream *stream)
{
    PyObject *data, *pending;
    dlpack_py_error error;

    stream->kind = DLPACK_PY_STREAM_NO_SYNC;
    stream->handle = 0;
    if (dlp_buffer_interface_read(DLP_DEVICE_INTERFACE, dict, 2, dims, t) < 0)
        return -1;
    data = dlp_buffer_interface_get(dict, "data");
    pending = dlp_buffer_interface_get(dict, "stream");
    if (PyErr_Occurred() || dlp_buffer_interface_address(DLP_DEVICE_INTERFACE, data, t, flags) < 0)
        return -1;
    if (pending != NULL) {
        if (dlp_parse_stream(pending, stream) < 0)
            return -1;
        if (stream->kind != DLPACK_PY_STREAM_HANDLE || stream->handle == 0)
            return dlp_raise_value(PyExc_ValueError,
                                   DLP_DEVICE_INTERFACE " has stream %.200U, None, 1, 2 or a handle was wanted",
                                   pending);
    }
    return dlpack_py_validate(t, *flags, &error) < 0 ? dlpack_py_raise(&error) : 0;
}

/* Takes the tensor of __cuda_array_interface__, exported as a producer of that data would. obj owns the memory. */
static inline int
dlp_device_consume_interface(PyObject *obj, PyObject *dict, const dlpack_py_request *asked, const dlpack_py_want *want,
                             dlpack_py_view *v)
{
    dlp_import import = dlp_import_make(want, asked, NULL);
    dlpack_py_request request = *asked;
    dlpack_py_work_stream pending, after;
    dlpack_py_stream stream;
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    dlpack_py_offer offer;
    dlpack_py_error error;
    PyObject *capsule;
    uint64_t flags = 0;
    DLTensor t;
    int result, is_empty;

    if (dlp_device_interface_parse(dict, dims, &t, &flags, &stream) < 0)
        return -1;
    is_empty = dlp_is_empty(&t); /* it may have any address (D3) */
    Py_BEGIN_ALLOW_THREADS
    result = DLPACK_DEVICE_CALL(GetDevice, (&t.device.device_id), &error); /* also tells where there is no runtime */
    if (result == 0 && !is_empty)
        result = DLPACK_DEVICE_API_FIND_DEVICE(t.data, &t.device, &error);
    Py_END_ALLOW_THREADS
    if (result < 0)
        return dlpack_py_raise(&error);
    if (is_empty)
        t.device.device_type = (DLDeviceType)DLPACK_DEVICE_API_TYPE;
    if (t.device.device_type == kDLCPU) {
        PyErr_Format(PyExc_BufferError, DLP_DEVICE_INTERFACE " has data %p, which is no memory of a device", t.data);
        return -1;
    }
    pending.handle = stream.handle == 1 ? DLPACK_DEVICE_API_DEFAULT_STREAM : stream.handle;
    offer = dlpack_py_offer_make(obj, &t, flags);
    offer.operations = dlpack_device_operations();
    pending.device_id = dlp_operates_on(offer.operations, t.device) ? t.device.device_id : DLPACK_PY_CURRENT_DEVICE;
    offer.pending = &pending;
    offer.pending_count = stream.kind == DLPACK_PY_STREAM_HANDLE;
    request.max_version.major = DLPACK_PY_PROTOCOL_MAJOR;
    request.stream.kind = DLPACK_PY_STREAM_NO_SYNC; /* a tensor that is refused below changes no stream */
    capsule = dlpack_py_answer(&offer, &request);
    if (capsule == NULL)
        return -1;
    import.got_keywords = 1; /* dlpack_py_answer makes a copy that is asked for */
    result = dlp_take_capsule(capsule, &import, v);
    Py_DECREF(capsule);
    if (result != 0 || offer.pending_count == 0 || asked->stream.kind != DLPACK_PY_STREAM_HANDLE)
        return result;
    after.handle = asked->stream.handle;
    after.device_id = pending.device_id;
    return dlp_device_order_view(pending, after, v);
}

/* Takes the tensor of an object without __dlpack__ that has __cuda_array_interface__. Returns 0; 1 where it has none;
 * -1 with an exception. */
static inline int
dlp_device_take_interface(PyObject *obj, dlpack_py_request *request, const dlpack_py_want *want, dlpack_py_view *v)
{
    PyObject *method = PyObject_GetAttrString(obj, "__dlpack__"), *dict = NULL;
    int result;

    if (method != NULL || !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        Py_XDECREF(method);
        return method != NULL ? 1 : -1;
    }
    PyErr_Clear(); /* dlp_device_consume_on_stream raises it where there is no interface either */
    if (dlp_buffer_interface_find(obj, DLP_DEVICE_INTERFACE, &dict) < 0)
        return -1;
    if (dict == NULL)
        return 1;
    result = dlp_device_consume_interface(obj, dict, request, want, v);
    Py_DECREF(dict);
    return result;
}

/* ---- Giving ------------------------------------------------------------- */

/* Return the dict of __cuda_array_interface__, version 3, for a getter in one line.
 *
 * t, flags   memory that a device can read; flags: DLPACK_PY_FLAG_READ_ONLY or 0
 * stream     as it crosses the protocol: work on the data may be pending on it; (uintptr_t)-1: nothing is pending
 *
 * Returns a new reference; or NULL with AttributeError, so that the object has no such attribute, for memory of the CPU
 * and for a dtype without a typestr; or NULL with MemoryError. The data must stay where it is while the object lives.
 */
static inline PyObject *
dlpack_device_array_interface(const DLTensor *t, uint64_t flags, uintptr_t stream)
{
    char text[DLPACK_PY_TEXT_SIZE];
    PyObject *dict, *handle;

    if (t->device.device_type == kDLCPU) {
        PyErr_Format(PyExc_AttributeError, "no " DLP_DEVICE_INTERFACE " for %s",
                     dlpack_py_device_text(t->device, text));
        return NULL;
    }
    dict = dlp_buffer_interface_make(DLP_DEVICE_INTERFACE, t, flags, NULL);
    handle = stream == UINTPTR_MAX ? Py_BuildValue("") : PyLong_FromUnsignedLongLong(stream == 0 ? 1 : stream);
    if (dict == NULL || handle == NULL || PyDict_SetItemString(dict, "stream", handle) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(handle);
    return dict;
}

/* dlpack_device_array_interface for a stream of the runtime, on which work on the data may be pending. */
#ifdef DLPACK_ROCM_PROTOCOL_LAYER
static inline PyObject *
dlpack_rocm_array_interface(const DLTensor *t, uint64_t flags, hipStream_t stream)
{
    return dlpack_device_array_interface(t, flags, dlpack_rocm_stream(stream));
}
#else
static inline PyObject *
dlpack_cuda_array_interface(const DLTensor *t, uint64_t flags, cudaStream_t stream)
{
    return dlpack_device_array_interface(t, flags, dlpack_cuda_stream(stream));
}
#endif

DLP_QUIET_END

#endif /* DLPACK_CUDA_ARRAY_INTERFACE_LAYER */

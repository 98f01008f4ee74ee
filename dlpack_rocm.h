/* dlpack_rocm.h - the ROCm side of dlpack_py.h: streams, copies, what device memory is on
 * Copyright (c) 2026 the dlpack_py authors
 * SPDX-License-Identifier: MIT
 * The full licence stands at the end of dlpack_py.h.
 *
 * Needs the headers and the library of the HIP runtime, 5.2 or newer, and no hipcc; HIP's
 * headers want __HIP_PLATFORM_AMD__ defined. With DLPACK_PY_NO_PYTHON it is for C
 * libraries, without its last section. The same as dlpack_cuda.h, but for what ROCm has
 * otherwise: numbers of streams (S3), and no name for managed memory.
 *
 * Synopsis
 *
 *   static PyObject *                                     // a producer: __dlpack__
 *   thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_rocm_tensor(thing->values, thing->device, DLPACK_PY_FLOAT32, 1, &thing->length, NULL);
 *       return dlpack_rocm_produce(self, &t, 0, thing->stream, args, nargs, kwnames);
 *   }
 *
 *   static PyObject *                                     // __dlpack_device__
 *   thing_dlpack_device(PyObject *self, PyObject *unused)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_rocm_tensor(thing->values, thing->device, DLPACK_PY_FLOAT32, 1, &thing->length, NULL);
 *       return dlpack_py_produce_device(&t);
 *   }
 *
 *   static PyMethodDef methods[] = {DLPACK_PY_METHODS(thing_dlpack, thing_dlpack_device), {NULL, NULL, 0, NULL}};
 *
 *   static PyObject *                                     // a consumer
 *   scale(PyObject *module, PyObject *obj)
 *   {
 *       dlpack_py_view v;
 *       (void)module;
 *       if (dlpack_rocm_consume(obj, NULL, stream, &v) < 0)
 *           return NULL;
 *       launch_scale(dlpack_py_data(&v), v.tensor.shape[0], stream);
 *       if (dlpack_rocm_release(&v, stream) < 0) {
 *           if (v.managed != NULL)                            // in a capture: v is still ours
 *               keep_as_long_as_the_graph(module, &v);
 *           return NULL;
 *       }
 *       Py_RETURN_NONE;
 *   }
 */

#define DLPACK_PY_IMPL_IN_ROCM
#include "dlpack_device.h"
#undef DLPACK_PY_IMPL_IN_ROCM

#ifndef DLPACK_ROCM_IMPL_MISSING
#  define DLPACK_ROCM_IMPL_MISSING 0
#  if defined(__has_include)
#    if !__has_include(<hip/hip_runtime_api.h>)
#      undef DLPACK_ROCM_IMPL_MISSING
#      define DLPACK_ROCM_IMPL_MISSING 1
#      error "dlpack_rocm.h needs the headers of the HIP runtime: no <hip/hip_runtime_api.h> on the include path"
#    endif
#  endif
#  if !DLPACK_ROCM_IMPL_MISSING && !defined(__HIP__) && !defined(__HIPCC__) && !defined(__HIP_PLATFORM_AMD__) && \
    !defined(__HIP_PLATFORM_NVIDIA__)
#    undef DLPACK_ROCM_IMPL_MISSING
#    define DLPACK_ROCM_IMPL_MISSING 1
#    error "dlpack_rocm.h: HIP's headers want __HIP_PLATFORM_AMD__ to be defined, where it is not hipcc that compiles"
#  endif
#endif

#if !defined(DLPACK_ROCM_RUNTIME_LAYER) && !DLPACK_ROCM_IMPL_MISSING
#define DLPACK_ROCM_RUNTIME_LAYER

#include <hip/hip_runtime_api.h>

#if HIP_VERSION < 50200000
#  error "dlpack_rocm.h needs HIP 5.2 or newer: hipMallocAsync, hipStreamIsCapturing"
#endif
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM) && !defined(hipStreamLegacy)
#  error \
    "this HIP names no default stream in a file for per-thread default streams: include dlpack_rocm.h in another file"
#endif

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wold-style-cast"
#  pragma GCC diagnostic ignored "-Wzero-as-null-pointer-constant"
#  ifndef __clang__
#    pragma GCC diagnostic ignored "-Wuseless-cast"
#  endif
#endif

/* ---- 1 The runtime's functions ------------------------------------------ */

/* hipErrorStreamCapture...: what a graph capture forbids. */
static inline int
dlpack_rocm_impl_is_capture_error(hipError_t status)
{
    return (int)status >= 900 && (int)status <= 908;
}

/* A failure becomes *error and is read away: the next launch check, of any library in the
 * process, would take it for its own (S9). */
static inline int
dlpack_rocm_impl_check(hipError_t status, const char *call, dlpack_py_error *error)
{
    int32_t code = DLPACK_PY_RUNTIME_ERROR;

    if (status == hipSuccess)
        return 0;
    (void)hipGetLastError();
    if (status == hipErrorOutOfMemory)
        code = DLPACK_PY_MEMORY_ERROR;
    else if (dlpack_rocm_impl_is_capture_error(status))
        code = DLPACK_PY_BUFFER_ERROR;
    return dlpack_py_impl_fail(error, code, "%s: %s, %s", call, hipGetErrorName(status), hipGetErrorString(status));
}

static inline hipStream_t
dlpack_rocm_impl_handle(uintptr_t stream)
{
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM) /* 0 is the thread's */
    if (stream == 0)
        return hipStreamLegacy;
#endif
    return (hipStream_t)stream;
}

static inline int
dlpack_rocm_impl_get_device(int32_t *id, dlpack_py_error *error)
{
    int current = 0;
    const int failed = dlpack_rocm_impl_check(hipGetDevice(&current), "hipGetDevice", error);
    *id = current;
    return failed;
}

static inline int
dlpack_rocm_impl_set_device(int32_t id, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipSetDevice(id), "hipSetDevice", error);
}

static inline int
dlpack_rocm_impl_is_capturing(uintptr_t stream, int *capturing, dlpack_py_error *error)
{
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;

    if (dlpack_rocm_impl_check(hipStreamIsCapturing(dlpack_rocm_impl_handle(stream), &status), "hipStreamIsCapturing",
                               error) < 0)
        return -1;
    *capturing = status != hipStreamCaptureStatusNone;
    return status != hipStreamCaptureStatusInvalidated
               ? 0
               : dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                     "the graph capture of stream %" PRIuPTR " was invalidated before", stream);
}

static inline int
dlpack_rocm_impl_get_capture(uintptr_t stream, uint64_t *id, dlpack_py_error *error)
{
    const hipStream_t handle = dlpack_rocm_impl_handle(stream);
    hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
    unsigned long long capture = 0;
    hipError_t returned;

    returned = hipStreamGetCaptureInfo(handle, &status, &capture);
    *id = capture;
    return dlpack_rocm_impl_check(returned, "hipStreamGetCaptureInfo", error);
}

static inline int
dlpack_rocm_impl_exchange_capture_mode(int *mode, dlpack_py_error *error)
{
    const int wanted = *mode;
    hipStreamCaptureMode exchanged = (hipStreamCaptureMode)wanted;
    const int failed = dlpack_rocm_impl_check(hipThreadExchangeStreamCaptureMode(&exchanged),
                                              "hipThreadExchangeStreamCaptureMode", error);
    *mode = (int)exchanged;
    return failed;
}

/* hipErrorNotReady is an answer, and is read away like an error. */
static inline int
dlpack_rocm_impl_check_query(hipError_t status, const char *call, int *done, dlpack_py_error *error)
{
    *done = status == hipSuccess;
    if (status != hipErrorNotReady)
        return dlpack_rocm_impl_check(status, call, error);
    (void)hipGetLastError();
    return 0;
}

static inline int
dlpack_rocm_impl_is_done(uintptr_t stream, int *done, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check_query(hipStreamQuery(dlpack_rocm_impl_handle(stream)), "hipStreamQuery", done, error);
}

static inline int
dlpack_rocm_impl_event_is_done(void *event, int *done, dlpack_py_error *error)
{
    const hipError_t status = hipEventQuery((hipEvent_t)event);
    const int failed = dlpack_rocm_impl_check_query(status, "hipEventQuery", done, error);
    /* Either the question was wrong (in a capture; in a forked child), or the context is lost. */
    if (failed && !dlpack_rocm_impl_is_capture_error(status) && status != hipErrorNotInitialized)
        *done = 1;
    return failed;
}

static inline int
dlpack_rocm_impl_synchronize(uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipStreamSynchronize(dlpack_rocm_impl_handle(stream)), "hipStreamSynchronize", error);
}

static inline int
dlpack_rocm_impl_event_create(void **event, dlpack_py_error *error)
{
    hipEvent_t made = NULL;
    const int failed =
        dlpack_rocm_impl_check(hipEventCreateWithFlags(&made, hipEventDisableTiming), "hipEventCreateWithFlags", error);
    if (!failed)
        *event = made;
    return failed;
}

static inline void
dlpack_rocm_impl_event_destroy(void *event)
{
    dlpack_py_error error;
    (void)dlpack_rocm_impl_check(hipEventDestroy((hipEvent_t)event), "hipEventDestroy", &error);
}

static inline int
dlpack_rocm_impl_event_record(void *event, uintptr_t stream, dlpack_py_error *error)
{
    const hipError_t status = hipEventRecord((hipEvent_t)event, dlpack_rocm_impl_handle(stream));
    const int failed = dlpack_rocm_impl_check(status, "hipEventRecord", error);
    return status == hipErrorInvalidHandle || status == hipErrorContextIsDestroyed ? 1 : failed;
}

static inline int
dlpack_rocm_impl_wait(uintptr_t stream, void *event, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipStreamWaitEvent(dlpack_rocm_impl_handle(stream), (hipEvent_t)event, 0),
                                  "hipStreamWaitEvent", error);
}

static inline int
dlpack_rocm_impl_allocate(void **data, size_t size, uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipMallocAsync(data, size, dlpack_rocm_impl_handle(stream)), "hipMallocAsync", error);
}

static inline int
dlpack_rocm_impl_copy(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,
                      uintptr_t stream, dlpack_py_error *error)
{
    const hipStream_t handle = dlpack_rocm_impl_handle(stream);
    if (rows == 1)
        return dlpack_rocm_impl_check(hipMemcpyAsync(dst, src, width, hipMemcpyDefault, handle), "hipMemcpyAsync",
                                      error);
    return dlpack_rocm_impl_check(
        hipMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, hipMemcpyDefault, handle), "hipMemcpy2DAsync",
        error);
}

static inline int
dlpack_rocm_impl_free_async(void *data, uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipFreeAsync(data, dlpack_rocm_impl_handle(stream)), "hipFreeAsync", error);
}

static inline int
dlpack_rocm_impl_free_now(void *data, dlpack_py_error *error)
{
    return dlpack_rocm_impl_check(hipFree(data), "hipFree", error);
}

/* The functions of HIP, for the functions of dlpack_device.h: dlpack_device_order, dlpack_device_collect, ...
 * Its events are those of this source file. */
static inline const dlpack_device_runtime *
dlpack_rocm_runtime(void)
{
    static dlpack_device_events events;
    static const dlpack_device_runtime rocm = {
        10, /* kDLROCM */
        0,  /* managed memory has no name of its own */
        0,  /* the default stream */
        2,  /* hipStreamPerThread */
        &events,
        dlpack_rocm_impl_get_device,
        dlpack_rocm_impl_set_device,
        dlpack_rocm_impl_is_capturing,
        dlpack_rocm_impl_get_capture,
        dlpack_rocm_impl_exchange_capture_mode,
        dlpack_rocm_impl_is_done,
        dlpack_rocm_impl_synchronize,
        dlpack_rocm_impl_event_create,
        dlpack_rocm_impl_event_destroy,
        dlpack_rocm_impl_event_record,
        dlpack_rocm_impl_event_is_done,
        dlpack_rocm_impl_wait,
        dlpack_rocm_impl_allocate,
        dlpack_rocm_impl_free_async,
        dlpack_rocm_impl_free_now,
        dlpack_rocm_impl_copy,
    };
    return &rocm;
}

/* ---- 2 Streams and memory ----------------------------------------------- */

/* A stream as it crosses the protocol (S3): the default one is 0, by whatever name. One
 * per thread (2), which is NULL in a file that is compiled for per-thread default streams,
 * orders as a producer's, and is refused as a consumer's. */
static inline uintptr_t
dlpack_rocm_stream(hipStream_t stream)
{
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
    if (stream == NULL)
        return 2;
#endif
    return (uintptr_t)stream == 1 ? 0 : (uintptr_t)stream; /* 1: hipStreamLegacy, of newer versions */
}

/* The same with the number of the device that it is on. */
static inline dlpack_py_work_stream
dlpack_rocm_work_stream(hipStream_t stream, int32_t device_id)
{
    dlpack_py_work_stream work;
    work.handle = dlpack_rocm_stream(stream);
    work.device_id = device_id;
    return work;
}

/* Put what will be queued on one stream after all that was queued on another.
 *
 * before, before_device   a stream and the number of its device
 * after, after_device     likewise
 *
 * Returns 0, or -1 with *error filled, as dlpack_device_order does.
 */
static inline int
dlpack_rocm_order(hipStream_t before, int32_t before_device, hipStream_t after, int32_t after_device,
                  dlpack_py_error *error)
{
    const dlpack_py_work_stream first = dlpack_rocm_work_stream(before, before_device);
    return dlpack_device_order(dlpack_rocm_runtime(), &first, 1, dlpack_rocm_work_stream(after, after_device), error);
}

/* Which device is memory on? Ask once, as an array is made.
 *
 * device   out: kDLROCM with its number, also for managed memory; kDLROCMHost, which has
 *          none (D9); kDLCPU for what the runtime never saw, and where there is no device
 *
 * Returns 0, or -1 with RuntimeError in *error.
 */
static inline int
dlpack_rocm_find_device(const void *pointer, DLDevice *device, dlpack_py_error *error)
{
    hipPointerAttribute_t attributes;
    const hipError_t status = hipPointerGetAttributes(&attributes, pointer);

    *device = dlpack_py_impl_device(1, 0);
    if (status == hipErrorInvalidValue || status == hipErrorInsufficientDriver || status == hipErrorNoDevice ||
        status == hipErrorInvalidDevice) {
        (void)hipGetLastError();
        return 0;
    }
    if (dlpack_rocm_impl_check(status, "hipPointerGetAttributes", error) < 0)
        return -1;
#if HIP_VERSION_MAJOR >= 6
    if (attributes.type == hipMemoryTypeUnregistered)
        return 0;
    if (attributes.type == hipMemoryTypeHost && !attributes.isManaged)
#else
    if (attributes.memoryType == hipMemoryTypeHost && !attributes.isManaged)
#endif
        *device = dlpack_py_impl_device(11, 0);
    else
        *device = dlpack_py_impl_device(10, attributes.device);
    return 0;
}

/* Describes memory of a device, as dlpack_py_cpu does the host's. */
static inline DLTensor
dlpack_rocm_tensor(void *data, int32_t device_id, uint32_t dtype, int32_t ndim, const int64_t *shape,
                   const int64_t *strides)
{
    DLTensor t = dlpack_py_cpu(data, dtype, ndim, shape, strides);
    t.device = dlpack_py_impl_device(10, device_id);
    return t;
}

/* Give the events that this file keeps back to the runtime, while nobody orders, consumes
 * or lets go: see dlpack_device_free_events. */
static inline void
dlpack_rocm_free_events(void)
{
    dlpack_device_free_events(dlpack_rocm_runtime());
}

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

#endif /* DLPACK_ROCM_RUNTIME_LAYER */

/* ---- 3 Producing and consuming ------------------------------------------ */

#if defined(DLPACK_PY_PROTOCOL_LAYER) && !defined(DLPACK_ROCM_PROTOCOL_LAYER) && !DLPACK_ROCM_IMPL_MISSING
#define DLPACK_ROCM_PROTOCOL_LAYER

/* What the device of a dlpack_py_offer is, and dlpack_device_consume takes. */
static inline const dlpack_py_device *
dlpack_rocm_operations(void)
{
    static const dlpack_py_device rocm = DLPACK_DEVICE_OPERATIONS(10, 0, 0, dlpack_rocm_runtime);
    return &rocm;
}

/* dlpack_rocm_produce: answer a call of __dlpack__ for data of a device.
 *
 * t        on a device (dlpack_rocm_tensor), or pinned memory, which has no number (D9):
 *          its device_id then is that of the stream's device
 * stream   where work on the data may be queued, on the data's device. The consumer's stream
 *          is ordered after it, and the host waits only where it will read (P5, S1, S10):
 *          other Python threads run meanwhile, and the data has to stay where it is
 *
 * Otherwise as dlpack_py_produce, and RuntimeError for what the runtime reports. For several
 * streams, none, or stream=None without an order: dlpack_py_offer, with
 * dlpack_rocm_operations() as its device.
 */
static inline PyObject *
dlpack_rocm_produce(PyObject *owner, const DLTensor *t, uint64_t flags, hipStream_t stream, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_request request;
    dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    const dlpack_py_work_stream pending = dlpack_rocm_work_stream(stream, t->device.device_id);

    offer.device = dlpack_rocm_operations();
    offer.pending = &pending;
    offer.pending_count = 1;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

/* dlpack_rocm_consume: take the tensor that obj offers, to work on it on a stream.
 *
 * want     NULL: anything on a ROCm device; a device of 0 is kDLROCM here
 * stream   the consumer's, which is ordered after the producer's work: of the data's device,
 *          as a rule (v->tensor.device.device_id). NULL is the default stream of that device:
 *          make it current to launch there
 *
 * Returns as dlpack_py_consume, and -1 with RuntimeError for what the runtime reports.
 */
static inline int
dlpack_rocm_consume(PyObject *obj, const dlpack_py_want *want, hipStream_t stream, dlpack_py_view *v)
{
    return dlpack_device_consume(obj, dlpack_rocm_operations(), dlpack_rocm_stream(stream), want, v);
}

/* Of the current device, for memory that has no number. */
static inline dlpack_py_work_stream
dlpack_rocm_impl_stream_at(const dlpack_py_view *v, hipStream_t stream)
{
    const int on_device = dlpack_py_impl_is_on(dlpack_rocm_operations(), v->tensor.device);
    return dlpack_rocm_work_stream(stream, on_device ? v->tensor.device.device_id : DLPACK_PY_CURRENT_DEVICE);
}

/* Let go of a view while work on its tensor is queued on a stream of its device; for
 * pinned memory, of the current one. What cannot be remembered is waited for. Needs a
 * thread state. For a stream of another device: dlpack_device_release.
 *
 * Returns 0; -1 with BufferError where the stream captures a graph, and v is the caller's
 * as before; -1 with RuntimeError where the runtime fails, and v is released, for no work
 * of it goes on, unless a capture has begun meanwhile: v->managed tells.
 */
static inline int
dlpack_rocm_release(dlpack_py_view *v, hipStream_t stream)
{
    return dlpack_device_impl_release_or_wait(dlpack_rocm_runtime(), dlpack_rocm_impl_stream_at(v, stream), v);
}

/* The same in tp_dealloc: an exception in flight stays, one of ours is told as unraisable,
 * and where the stream captures a graph the tensor leaks, for the graph will use it. */
static inline void
dlpack_rocm_release_unraisable(dlpack_py_view *v, hipStream_t stream)
{
    dlpack_device_impl_release_unraisable(dlpack_rocm_runtime(), dlpack_rocm_impl_stream_at(v, stream), v);
}

#endif /* DLPACK_ROCM_PROTOCOL_LAYER */

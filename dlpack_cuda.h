/* dlpack_cuda.h - the CUDA side of dlpack_py.h: streams, copies, what device memory is on
 * Copyright (c) 2026 the dlpack_py authors
 * SPDX-License-Identifier: MIT
 * The full licence stands at the end of dlpack_py.h.
 *
 * Needs the headers and the library of the CUDA runtime, 11.2 or newer, and no nvcc. With
 * DLPACK_PY_NO_PYTHON it is for C libraries, without its last section.
 *
 * Synopsis
 *
 *   static PyObject *                                     // a producer: __dlpack__
 *   thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_cuda_tensor(thing->values, thing->device, DLPACK_PY_FLOAT32, 1, &thing->length, NULL);
 *       return dlpack_cuda_produce(self, &t, 0, thing->stream, args, nargs, kwnames);
 *   }
 *
 *   static PyObject *                                     // __dlpack_device__
 *   thing_dlpack_device(PyObject *self, PyObject *unused)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_cuda_tensor(thing->values, thing->device, DLPACK_PY_FLOAT32, 1, &thing->length, NULL);
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
 *       if (dlpack_cuda_consume(obj, NULL, stream, &v) < 0)
 *           return NULL;
 *       launch_scale(dlpack_py_data(&v), v.tensor.shape[0], stream);
 *       if (dlpack_cuda_release(&v, stream) < 0) {
 *           if (v.managed != NULL)                            // in a capture: v is still ours
 *               keep_as_long_as_the_graph(module, &v);
 *           return NULL;
 *       }
 *       Py_RETURN_NONE;
 *   }
 */

#define DLPACK_PY_IMPL_IN_CUDA
#include "dlpack_device.h"
#undef DLPACK_PY_IMPL_IN_CUDA

#ifndef DLPACK_CUDA_IMPL_MISSING
#  define DLPACK_CUDA_IMPL_MISSING 0
#  if defined(__has_include)
#    if !__has_include(<cuda_runtime_api.h>)
#      undef DLPACK_CUDA_IMPL_MISSING
#      define DLPACK_CUDA_IMPL_MISSING 1
#      error "dlpack_cuda.h needs the headers of the CUDA runtime: no <cuda_runtime_api.h> on the include path"
#    endif
#  endif
#endif

#if !defined(DLPACK_CUDA_RUNTIME_LAYER) && !DLPACK_CUDA_IMPL_MISSING
#define DLPACK_CUDA_RUNTIME_LAYER

#include <cuda_runtime_api.h>

#if CUDART_VERSION < 11020
#  error "dlpack_cuda.h needs CUDA 11.2 or newer: cudaMallocAsync, cudaFreeAsync"
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

/* cudaErrorStreamCapture...: what a graph capture forbids. */
static inline int
dlpack_cuda_impl_is_capture_error(cudaError_t status)
{
    return (int)status >= 900 && (int)status <= 908;
}

/* A failure becomes *error and is read away: the next launch check, of any library in the
 * process, would take it for its own (S9). */
static inline int
dlpack_cuda_impl_check(cudaError_t status, const char *call, dlpack_py_error *error)
{
    int32_t code = DLPACK_PY_RUNTIME_ERROR;

    if (status == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation)
        code = DLPACK_PY_MEMORY_ERROR;
    else if (dlpack_cuda_impl_is_capture_error(status))
        code = DLPACK_PY_BUFFER_ERROR;
    return dlpack_py_impl_fail(error, code, "%s: %s, %s", call, cudaGetErrorName(status), cudaGetErrorString(status));
}

static inline cudaStream_t
dlpack_cuda_impl_handle(uintptr_t stream)
{
    return (cudaStream_t)stream;
}

static inline int
dlpack_cuda_impl_get_device(int32_t *id, dlpack_py_error *error)
{
    int current = 0;
    const int failed = dlpack_cuda_impl_check(cudaGetDevice(&current), "cudaGetDevice", error);
    *id = current;
    return failed;
}

static inline int
dlpack_cuda_impl_set_device(int32_t id, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaSetDevice(id), "cudaSetDevice", error);
}

static inline int
dlpack_cuda_impl_is_capturing(uintptr_t stream, int *capturing, dlpack_py_error *error)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (dlpack_cuda_impl_check(cudaStreamIsCapturing(dlpack_cuda_impl_handle(stream), &status), "cudaStreamIsCapturing",
                               error) < 0)
        return -1;
    *capturing = status != cudaStreamCaptureStatusNone;
    return status != cudaStreamCaptureStatusInvalidated
               ? 0
               : dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                     "the graph capture of stream %" PRIuPTR " was invalidated before", stream);
}

static inline int
dlpack_cuda_impl_get_capture(uintptr_t stream, uint64_t *id, dlpack_py_error *error)
{
    const cudaStream_t handle = dlpack_cuda_impl_handle(stream);
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
    cudaError_t returned;

#if CUDART_VERSION >= 13000
    returned = cudaStreamGetCaptureInfo(handle, &status, &capture, NULL, NULL, NULL, NULL);
#elif CUDART_VERSION >= 12000
    returned = cudaStreamGetCaptureInfo(handle, &status, &capture, NULL, NULL, NULL);
#else
    returned = cudaStreamGetCaptureInfo(handle, &status, &capture);
#endif
    *id = capture;
    return dlpack_cuda_impl_check(returned, "cudaStreamGetCaptureInfo", error);
}

static inline int
dlpack_cuda_impl_exchange_capture_mode(int *mode, dlpack_py_error *error)
{
    const int wanted = *mode;
    enum cudaStreamCaptureMode exchanged = (enum cudaStreamCaptureMode)wanted;
    const int failed = dlpack_cuda_impl_check(cudaThreadExchangeStreamCaptureMode(&exchanged),
                                              "cudaThreadExchangeStreamCaptureMode", error);
    *mode = (int)exchanged;
    return failed;
}

/* cudaErrorNotReady is an answer, and is read away like an error. */
static inline int
dlpack_cuda_impl_check_query(cudaError_t status, const char *call, int *done, dlpack_py_error *error)
{
    *done = status == cudaSuccess;
    if (status != cudaErrorNotReady)
        return dlpack_cuda_impl_check(status, call, error);
    (void)cudaGetLastError();
    return 0;
}

static inline int
dlpack_cuda_impl_is_done(uintptr_t stream, int *done, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check_query(cudaStreamQuery(dlpack_cuda_impl_handle(stream)), "cudaStreamQuery", done,
                                        error);
}

static inline int
dlpack_cuda_impl_event_is_done(void *event, int *done, dlpack_py_error *error)
{
    const cudaError_t status = cudaEventQuery((cudaEvent_t)event);
    const int failed = dlpack_cuda_impl_check_query(status, "cudaEventQuery", done, error);
    /* Either the question was wrong (in a capture; in a forked child), or the context is lost. */
    if (failed && !dlpack_cuda_impl_is_capture_error(status) && status != cudaErrorInitializationError)
        *done = 1;
    return failed;
}

static inline int
dlpack_cuda_impl_synchronize(uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaStreamSynchronize(dlpack_cuda_impl_handle(stream)), "cudaStreamSynchronize",
                                  error);
}

static inline int
dlpack_cuda_impl_event_create(void **event, dlpack_py_error *error)
{
    cudaEvent_t made = NULL;
    const int failed = dlpack_cuda_impl_check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                                              "cudaEventCreateWithFlags", error);
    if (!failed)
        *event = made;
    return failed;
}

static inline void
dlpack_cuda_impl_event_destroy(void *event)
{
    dlpack_py_error error;
    (void)dlpack_cuda_impl_check(cudaEventDestroy((cudaEvent_t)event), "cudaEventDestroy", &error);
}

static inline int
dlpack_cuda_impl_event_record(void *event, uintptr_t stream, dlpack_py_error *error)
{
    const cudaError_t status = cudaEventRecord((cudaEvent_t)event, dlpack_cuda_impl_handle(stream));
    const int failed = dlpack_cuda_impl_check(status, "cudaEventRecord", error);
    return status == cudaErrorInvalidResourceHandle || status == cudaErrorContextIsDestroyed ? 1 : failed;
}

static inline int
dlpack_cuda_impl_wait(uintptr_t stream, void *event, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaStreamWaitEvent(dlpack_cuda_impl_handle(stream), (cudaEvent_t)event, 0),
                                  "cudaStreamWaitEvent", error);
}

static inline int
dlpack_cuda_impl_allocate(void **data, size_t size, uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaMallocAsync(data, size, dlpack_cuda_impl_handle(stream)), "cudaMallocAsync",
                                  error);
}

static inline int
dlpack_cuda_impl_copy(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,
                      uintptr_t stream, dlpack_py_error *error)
{
    const cudaStream_t handle = dlpack_cuda_impl_handle(stream);
    if (rows == 1)
        return dlpack_cuda_impl_check(cudaMemcpyAsync(dst, src, width, cudaMemcpyDefault, handle), "cudaMemcpyAsync",
                                      error);
    return dlpack_cuda_impl_check(
        cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, cudaMemcpyDefault, handle), "cudaMemcpy2DAsync",
        error);
}

static inline int
dlpack_cuda_impl_free_async(void *data, uintptr_t stream, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaFreeAsync(data, dlpack_cuda_impl_handle(stream)), "cudaFreeAsync", error);
}

static inline int
dlpack_cuda_impl_free_now(void *data, dlpack_py_error *error)
{
    return dlpack_cuda_impl_check(cudaFree(data), "cudaFree", error);
}

/* The functions of CUDA, for the functions of dlpack_device.h: dlpack_device_order, dlpack_device_collect, ...
 * Its events are those of this source file. */
static inline const dlpack_device_runtime *
dlpack_cuda_runtime(void)
{
    static dlpack_device_events events;
    static const dlpack_device_runtime cuda = {
        2,  /* kDLCUDA */
        13, /* kDLCUDAManaged */
        1,  /* cudaStreamLegacy */
        2,  /* cudaStreamPerThread */
        &events,
        dlpack_cuda_impl_get_device,
        dlpack_cuda_impl_set_device,
        dlpack_cuda_impl_is_capturing,
        dlpack_cuda_impl_get_capture,
        dlpack_cuda_impl_exchange_capture_mode,
        dlpack_cuda_impl_is_done,
        dlpack_cuda_impl_synchronize,
        dlpack_cuda_impl_event_create,
        dlpack_cuda_impl_event_destroy,
        dlpack_cuda_impl_event_record,
        dlpack_cuda_impl_event_is_done,
        dlpack_cuda_impl_wait,
        dlpack_cuda_impl_allocate,
        dlpack_cuda_impl_free_async,
        dlpack_cuda_impl_free_now,
        dlpack_cuda_impl_copy,
    };
    return &cuda;
}

/* ---- 2 Streams and memory ----------------------------------------------- */

/* A stream as it crosses the protocol (S2): never 0, which is 1 (legacy default) or, in a
 * file that is compiled for per-thread default streams, 2. */
static inline uintptr_t
dlpack_cuda_stream(cudaStream_t stream)
{
    if (stream != NULL)
        return (uintptr_t)stream;
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM) || defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)
    return 2;
#else
    return 1;
#endif
}

/* The same with the number of the device that it is on. */
static inline dlpack_py_work_stream
dlpack_cuda_work_stream(cudaStream_t stream, int32_t device_id)
{
    dlpack_py_work_stream work;
    work.handle = dlpack_cuda_stream(stream);
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
dlpack_cuda_order(cudaStream_t before, int32_t before_device, cudaStream_t after, int32_t after_device,
                  dlpack_py_error *error)
{
    const dlpack_py_work_stream first = dlpack_cuda_work_stream(before, before_device);
    return dlpack_device_order(dlpack_cuda_runtime(), &first, 1, dlpack_cuda_work_stream(after, after_device), error);
}

/* Which device is memory on? Ask once, as an array is made.
 *
 * device   out: kDLCUDA with its number; kDLCUDAHost or kDLCUDAManaged, which have none
 *          (D9); kDLCPU for what the runtime never saw, and where there is no driver
 *
 * Returns 0, or -1 with RuntimeError in *error.
 */
static inline int
dlpack_cuda_find_device(const void *pointer, DLDevice *device, dlpack_py_error *error)
{
    struct cudaPointerAttributes attributes;
    const cudaError_t status = cudaPointerGetAttributes(&attributes, pointer);

    *device = dlpack_py_impl_device(1, 0);
    if (status == cudaErrorInvalidValue || status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice) {
        (void)cudaGetLastError();
        return 0;
    }
    if (dlpack_cuda_impl_check(status, "cudaPointerGetAttributes", error) < 0)
        return -1;
    if (attributes.type == cudaMemoryTypeDevice)
        *device = dlpack_py_impl_device(2, attributes.device);
    else if (attributes.type == cudaMemoryTypeHost)
        *device = dlpack_py_impl_device(3, 0);
    else if (attributes.type == cudaMemoryTypeManaged)
        *device = dlpack_py_impl_device(13, 0);
    return 0;
}

/* Describes memory of a device, as dlpack_py_cpu does the host's. */
static inline DLTensor
dlpack_cuda_tensor(void *data, int32_t device_id, uint32_t dtype, int32_t ndim, const int64_t *shape,
                   const int64_t *strides)
{
    DLTensor t = dlpack_py_cpu(data, dtype, ndim, shape, strides);
    t.device = dlpack_py_impl_device(2, device_id);
    return t;
}

/* Give the events that this file keeps back to the runtime, while nobody orders, consumes
 * or lets go: see dlpack_device_free_events. */
static inline void
dlpack_cuda_free_events(void)
{
    dlpack_device_free_events(dlpack_cuda_runtime());
}

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

#endif /* DLPACK_CUDA_RUNTIME_LAYER */

/* ---- 3 Producing and consuming ------------------------------------------ */

#if defined(DLPACK_PY_PROTOCOL_LAYER) && !defined(DLPACK_CUDA_PROTOCOL_LAYER) && !DLPACK_CUDA_IMPL_MISSING
#define DLPACK_CUDA_PROTOCOL_LAYER

/* What the device of a dlpack_py_offer is, and dlpack_device_consume takes. */
static inline const dlpack_py_device *
dlpack_cuda_operations(void)
{
    static const dlpack_py_device cuda = DLPACK_DEVICE_OPERATIONS(2, 13, 1, dlpack_cuda_runtime);
    return &cuda;
}

/* dlpack_cuda_produce: answer a call of __dlpack__ for data of a device.
 *
 * t        on a device (dlpack_cuda_tensor), or pinned or managed memory, which has no number (D9):
 *          its device_id then is that of the stream's device
 * stream   where work on the data may be queued, on the data's device. The consumer's stream
 *          is ordered after it, and the host waits only where it will read (P5, S1, S10):
 *          other Python threads run meanwhile, and the data has to stay where it is
 *
 * Otherwise as dlpack_py_produce, and RuntimeError for what the runtime reports. For several
 * streams, none, or stream=None without an order: dlpack_py_offer, with
 * dlpack_cuda_operations() as its device.
 */
static inline PyObject *
dlpack_cuda_produce(PyObject *owner, const DLTensor *t, uint64_t flags, cudaStream_t stream, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_request request;
    dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    const dlpack_py_work_stream pending = dlpack_cuda_work_stream(stream, t->device.device_id);

    offer.device = dlpack_cuda_operations();
    offer.pending = &pending;
    offer.pending_count = 1;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

/* dlpack_cuda_consume: take the tensor that obj offers, to work on it on a stream.
 *
 * want     NULL: anything on a CUDA device; a device of 0 is kDLCUDA here
 * stream   the consumer's, which is ordered after the producer's work: of the data's device,
 *          as a rule (v->tensor.device.device_id). NULL is the default stream of that device:
 *          make it current to launch there
 *
 * Returns as dlpack_py_consume, and -1 with RuntimeError for what the runtime reports.
 */
static inline int
dlpack_cuda_consume(PyObject *obj, const dlpack_py_want *want, cudaStream_t stream, dlpack_py_view *v)
{
    return dlpack_device_consume(obj, dlpack_cuda_operations(), dlpack_cuda_stream(stream), want, v);
}

/* Of the current device, for memory that has no number. */
static inline dlpack_py_work_stream
dlpack_cuda_impl_stream_at(const dlpack_py_view *v, cudaStream_t stream)
{
    const int on_device = dlpack_py_impl_is_on(dlpack_cuda_operations(), v->tensor.device);
    return dlpack_cuda_work_stream(stream, on_device ? v->tensor.device.device_id : DLPACK_PY_CURRENT_DEVICE);
}

/* Let go of a view while work on its tensor is queued on a stream of its device; for
 * pinned or managed memory, of the current one. What cannot be remembered is waited for. Needs a
 * thread state. For a stream of another device: dlpack_device_release.
 *
 * Returns 0; -1 with BufferError where the stream captures a graph, and v is the caller's
 * as before; -1 with RuntimeError where the runtime fails, and v is released, for no work
 * of it goes on, unless a capture has begun meanwhile: v->managed tells.
 */
static inline int
dlpack_cuda_release(dlpack_py_view *v, cudaStream_t stream)
{
    return dlpack_device_impl_release_or_wait(dlpack_cuda_runtime(), dlpack_cuda_impl_stream_at(v, stream), v);
}

/* The same in tp_dealloc: an exception in flight stays, one of ours is told as unraisable,
 * and where the stream captures a graph the tensor leaks, for the graph will use it. */
static inline void
dlpack_cuda_release_unraisable(dlpack_py_view *v, cudaStream_t stream)
{
    dlpack_device_impl_release_unraisable(dlpack_cuda_runtime(), dlpack_cuda_impl_stream_at(v, stream), v);
}

#endif /* DLPACK_CUDA_PROTOCOL_LAYER */

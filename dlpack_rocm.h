/* dlpack_rocm.h - ROCm for dlpack_py.h: streams, copies to the host, the device of a pointer
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * Needs the headers and the library of the HIP runtime, 5.2 or newer, with __HIP_PLATFORM_AMD__ defined. Needs no
 * hipcc. With DLPACK_DEVICE_NO_PYTHON the file ends after its first section. It is as dlpack_cuda.h, except for the
 * handles of streams (S3) and for managed memory, which has no DLDeviceType of its own.
 *
 * DLPACK_ROCM_AT_RUN_TIME   do not link the library: find its functions when they are first called. The extension then
 *                           works on machines without the library: calls on device data are RuntimeError there. Needs
 *                           clang or gcc. A C++ file must not include hip_runtime.h then
 * DLPACK_ROCM_LIBRARY       the file name of that library, by default "libamdhip64.so.7" for the headers of HIP 7, on
 *                           Windows "amdhip64_7.dll"
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
 *   scale(PyObject *module, PyObject *obj)                  // on the caller's stream: it writes to obj
 *   {
 *       dlpack_py_view v;
 *       (void)module;
 *       if (dlpack_rocm_consume(obj, NULL, stream, &v) < 0)
 *           return NULL;
 *       launch_scale(dlpack_py_data(&v), v.tensor.shape[0], stream);
 *       if (dlpack_rocm_release(&v, stream) < 0) {
 *           if (v.managed != NULL)                            // in a graph capture: v is unchanged
 *               keep_as_long_as_the_graph(module, &v);
 *           return NULL;
 *       }
 *       Py_RETURN_NONE;
 *   }
 */

#include "dlpack_tensor.h"
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_rocm.h and dlpack_py.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif
#ifdef DLPACK_DEVICE_NO_PYTHON
#  define DLPACK_PY_AVAILABLE 0
#elif DLPACK_MINOR_VERSION >= 3
#  include "dlpack_exchange.h"
#else
#  include "dlpack_py.h"
#endif

#if defined(__has_include) && !defined(DLPACK_DEVICE_API)
#  if !__has_include(<hip/hip_runtime_api.h>)
#    error "dlpack_rocm.h needs the headers of the HIP runtime: no <hip/hip_runtime_api.h> on the include path"
#    include "stop" /* no such file: ends the compilation */
#  endif
#endif
#if !defined(__HIP__) && !defined(__HIPCC__) && !defined(__HIP_PLATFORM_AMD__) && !defined(__HIP_PLATFORM_NVIDIA__)
#  error "dlpack_rocm.h: HIP's headers want __HIP_PLATFORM_AMD__ to be defined, where it is not hipcc that compiles"
#  include "stop" /* no such file: ends the compilation */
#endif
#ifndef DLPACK_DEVICE_API
#  include <hip/hip_runtime_api.h>
#  if HIP_VERSION < 50200000
#    error "dlpack_rocm.h needs HIP 5.2 or newer"
#    include "stop" /* no such file: ends the compilation */
#  endif
#  if defined(HIP_API_PER_THREAD_DEFAULT_STREAM) && !defined(hipStreamLegacy)
#    error \
    "this HIP names no default stream in a file for per-thread default streams: include dlpack_rocm.h in another file"
#    include "stop" /* no such file: ends the compilation */
#  endif
#  define DLPACK_DEVICE_API(name) hip##name
#  define DLPACK_DEVICE_API_PREFIX "hip"
#  define DLPACK_DEVICE_API_FIND_DEVICE dlpack_rocm_find_device
#  define DLPACK_DEVICE_API_TYPE 10
#  define DLPACK_DEVICE_API_MANAGED_TYPE 0
#  define DLPACK_DEVICE_API_DEFAULT_STREAM 0
#  define DLPACK_DEVICE_API_CAPTURE_INFO(stream, status, id) (stream, status, id)
#  ifdef DLPACK_ROCM_AT_RUN_TIME
#    if !defined(DLPACK_ROCM_LIBRARY) && defined(_WIN32) && HIP_VERSION_MAJOR < 6
#      define DLPACK_DEVICE_API_LIBRARY "amdhip64.dll"
#    elif !defined(DLPACK_ROCM_LIBRARY) && defined(_WIN32)
#      define DLPACK_DEVICE_API_LIBRARY "amdhip64_" DLP_DEVICE_TEXT_OF(HIP_VERSION_MAJOR) ".dll"
#    else
#      ifndef DLPACK_ROCM_LIBRARY
#        define DLPACK_ROCM_LIBRARY "libamdhip64.so." DLP_DEVICE_TEXT_OF(HIP_VERSION_MAJOR)
#      endif
#      define DLPACK_DEVICE_API_LIBRARY DLPACK_ROCM_LIBRARY
#    endif
#    define DLPACK_DEVICE_API_AT_RUN_TIME
#    ifndef _WIN32
#      define DLPACK_DEVICE_API_LOADED_LIBRARY "libamdhip64.so" /* its name in the wheel of PyTorch */
#    endif
#  endif
#endif

DLP_QUIET
#include "dlpack_device.h"

#if !defined(DLPACK_ROCM_RUNTIME_LAYER)
#define DLPACK_ROCM_RUNTIME_LAYER

#ifdef DLPACK_CUDA_RUNTIME_LAYER
#  error "dlpack_cuda.h and dlpack_rocm.h cannot be in one file: the headers of CUDA and HIP define the same names"
#  include "stop" /* no such file: ends the compilation */
#endif

/* ---- Streams and memory ------------------------------------------------- */

/* The handle of a stream as it crosses the protocol (S3): 0 is the default stream. The per-thread default stream (2;
 * NULL in a file that is compiled for per-thread default streams) can be a producer's; a consumer with it is refused.
 */
static inline uintptr_t
dlpack_rocm_stream(hipStream_t stream)
{
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
    if (stream == NULL)
        return 2;
#endif
    return (uintptr_t)stream == 1 ? 0 : (uintptr_t)stream; /* 1: hipStreamLegacy, of newer versions */
}

/* A stream with the id of its device, as pending work of an offer. */
static inline dlpack_py_work_stream
dlpack_rocm_work_stream(hipStream_t stream, int32_t device_id)
{
    const dlpack_py_work_stream work = {dlpack_rocm_stream(stream), device_id};
    return work;
}

/* Order work that will be queued on a stream after all work that is queued on another stream.
 *
 * before, before_device   the other stream, and the id of its device
 * after, after_device     the stream that waits, and the id of its device
 *
 * Returns as dlpack_device_order. A caller that holds the GIL releases it around the call.
 */
static inline int
dlpack_rocm_order(hipStream_t before, int32_t before_device, hipStream_t after, int32_t after_device,
                  dlpack_py_error *error)
{
    const dlpack_py_work_stream first = dlpack_rocm_work_stream(before, before_device);
    return dlpack_device_order(&first, 1, dlpack_rocm_work_stream(after, after_device), error);
}

/* Find the device of memory. Ask once, when an array is made. A caller that holds the GIL releases it around the call.
 *
 * device   out: kDLROCM with an id, also for managed memory; kDLROCMHost with id 0 (D9); kDLCPU for memory
 *          that the runtime does not know, and where there is no driver or no runtime
 *
 * Returns 0, or -1 with RuntimeError in *error.
 */
static inline int
dlpack_rocm_find_device(const void *pointer, DLDevice *device, dlpack_py_error *error)
{
    hipPointerAttribute_t attributes;
    const hipError_t status = DLP_DEVICE_STATUS(PointerGetAttributes, (&attributes, pointer));
    const int unknown = status == hipErrorInvalidValue || status == hipErrorInsufficientDriver ||
                        status == hipErrorNoDevice || status == hipErrorInvalidDevice ||
                        status == hipErrorSharedObjectSymbolNotFound;

    *device = dlp_make_device(1, 0);
    if (dlp_device_check_status(status, "hipPointerGetAttributes", unknown ? NULL : error) < 0)
        return unknown ? 0 : -1;
#if HIP_VERSION_MAJOR >= 6
    if (attributes.type == hipMemoryTypeUnregistered)
        return 0;
    if (attributes.type == hipMemoryTypeHost && !attributes.isManaged)
#else
    if (attributes.memoryType == hipMemoryTypeHost && !attributes.isManaged)
#endif
        *device = dlp_make_device(11, 0);
    else
        *device = dlp_make_device(10, attributes.device);
    return 0;
}

/* Describe memory of a device, as dlpack_py_cpu_tensor describes memory of the CPU. */
static inline DLTensor
dlpack_rocm_tensor(void *data, int32_t device_id, uint32_t dtype, int32_t ndim, const int64_t *shape,
                   const int64_t *strides)
{
    DLTensor t = dlpack_py_cpu_tensor(data, dtype, ndim, shape, strides);
    t.device = dlp_make_device(10, device_id);
    return t;
}

#endif /* DLPACK_ROCM_RUNTIME_LAYER */

/* ---- Producing and consuming -------------------------------------------- */

#if DLPACK_PY_AVAILABLE && !defined(DLPACK_ROCM_PROTOCOL_LAYER)
#define DLPACK_ROCM_PROTOCOL_LAYER

/* The operations: the device of a dlpack_py_offer. */
static inline const dlpack_py_operations *
dlpack_rocm_operations(void)
{
    return dlpack_device_operations();
}

/* dlpack_rocm_produce: answer a call of __dlpack__ for data of a device.
 *
 * t        on a device (dlpack_rocm_tensor), or pinned or managed memory, whose device_id is the id of the device that
 *          the stream is on
 * stream   work on the data may be pending on it. The consumer's stream is ordered after it. The host waits only where
 *          the CPU will read the data (P5, S1, S10); other threads run meanwhile, and the data must stay where it is
 *
 * Returns as dlpack_py_produce, and NULL with RuntimeError for an error of the runtime. A copy is made on the CPU only:
 * copy=True without dl_device=(1, 0) is BufferError. For several pending streams or none, for stream=None without an
 * order, and for a copy on the device by the author: dlpack_py_answer, with dlpack_rocm_operations() in the offer.
 */
static inline PyObject *
dlpack_rocm_produce(PyObject *owner, const DLTensor *t, uint64_t flags, hipStream_t stream, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    return dlp_device_produce(owner, t, flags, dlpack_rocm_work_stream(stream, t->device.device_id), args, nargs,
                              kwnames);
}

/* dlpack_rocm_consume: take the tensor that obj offers, for work on a stream.
 *
 * want     the requirements, with a device of 0 for kDLROCM; NULL: any tensor on a ROCm device
 * stream   the consumer's. It is ordered after the producer's work. NULL is the default stream of the data's device:
 *          make that device (v->tensor.device.device_id) current to launch work
 *
 * Returns as dlpack_py_consume, and -1 with RuntimeError for an error of the runtime.
 */
static inline DLP_MUST_CHECK int
dlpack_rocm_consume(PyObject *obj, const dlpack_py_want *want, hipStream_t stream, dlpack_py_view *v)
{
    return dlpack_device_consume(obj, dlpack_rocm_stream(stream), want, v);
}

/* dlpack_rocm_from_dlpack: the first half of a library's from_dlpack(x, /, *, device=None, copy=None), from the call's
 * arguments to a view; see dlpack_py_from_dlpack.
 *
 * want     as for dlpack_rocm_consume; with a device of 0, the argument device decides
 * stream   as for dlpack_rocm_consume. With device="cpu" it is not used, and the host waits for the data
 *
 * Returns as dlpack_rocm_consume, and -1 with TypeError or ValueError for malformed arguments.
 */
static inline DLP_MUST_CHECK int
dlpack_rocm_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                        hipStream_t stream, dlpack_py_view *v)
{
    return dlpack_device_from_dlpack(args, nargs, kwnames, dlpack_rocm_stream(stream), want, v);
}

/* Release a view while work on its tensor is queued on a stream of its device, or of the current device for pinned and
 * managed memory. Needs a thread state. For a stream of another device: dlpack_device_release.
 *
 * Returns 0, or -1 with an exception. BufferError: v is unchanged (v->managed is not NULL). The stream captures a
 * graph: keep v as long as the graph; or it is the default stream while a blocking stream captures: try again after
 * that capture. RuntimeError: the runtime failed, and v is released.
 */
static inline int
dlpack_rocm_release(dlpack_py_view *v, hipStream_t stream)
{
    return dlp_device_release_or_raise(v, dlpack_rocm_stream(stream));
}

/* dlpack_rocm_release for tp_dealloc: keeps the exception in flight and reports an error as unraisable. Where
 * dlpack_rocm_release leaves the view unchanged, the tensor is leaked: a graph may use it. */
static inline void
dlpack_rocm_release_unraisable(dlpack_py_view *v, hipStream_t stream)
{
    dlp_device_release_unraisable(v, dlpack_rocm_stream(stream));
}

#endif /* DLPACK_ROCM_PROTOCOL_LAYER */

DLP_QUIET_END

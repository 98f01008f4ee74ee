/* dlpack_device.h - streams, graph captures, copies to the host and releases for devices, for dlpack_py.h
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * dlpack_cuda.h and dlpack_rocm.h include this file; a source file includes one of those.
 *
 *   Calls of the runtime     The order of streams     Copies to the host
 *   The operations of a device     Releasing behind queued work     Consuming on a stream
 *
 * With DLPACK_DEVICE_NO_PYTHON the file has the first three sections alone. A call of the runtime may block, and a host
 * callback may need the GIL while it does. Functions of the first three sections need no thread state: a caller that
 * holds the GIL releases it around them. Functions of the others release the GIL themselves around calls of the runtime
 * (S8), except for releases while the interpreter is ending.
 */

#ifndef DLPACK_DEVICE_API
#  error "include dlpack_cuda.h or dlpack_rocm.h, which include dlpack_device.h"
#  include "stop" /* no such file: ends the compilation */
#endif

#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_device.h and dlpack_py.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif

#ifndef DLPACK_DEVICE_RUNTIME_LAYER
#define DLPACK_DEVICE_RUNTIME_LAYER

/* ---- Calls of the runtime ----------------------------------------------- */

/* dlpack_cuda.h and dlpack_rocm.h define:
 *
 * DLPACK_DEVICE_API(name)            the name of a function, type or constant of the runtime: cuda##name, hip##name
 * DLPACK_DEVICE_API_PREFIX           "cuda" or "hip"
 * DLPACK_DEVICE_API_TYPE             DLDeviceType of its memory
 * DLPACK_DEVICE_API_MANAGED_TYPE     DLDeviceType of memory that devices and CPU share; 0: none
 * DLPACK_DEVICE_API_DEFAULT_STREAM   the handle that stream=None stands for (S2, S3)
 * DLPACK_DEVICE_API_CAPTURE_INFO     the arguments of StreamGetCaptureInfo, from a stream, a status and an id
 * DLPACK_DEVICE_API_FIND_DEVICE      dlpack_cuda_find_device or dlpack_rocm_find_device
 * DLPACK_DEVICE_API_AT_RUN_TIME      find the functions at run time, in the library DLPACK_DEVICE_API_LIBRARY or, where
 *                                    the process has loaded it, DLPACK_DEVICE_API_LOADED_LIBRARY
 */

/* Handle of the per-thread default stream. Handles up to it are relative: they mean a stream of the current device. */
#define DLPACK_DEVICE_PER_THREAD_STREAM 2u

/* DLPACK_DEVICE_CALL: call a function of the runtime, for example DLPACK_DEVICE_CALL(Malloc, (&p, size), &error) for
 * cudaMalloc or hipMalloc. Returns 0, or -1 with *error filled, which may be NULL: MemoryError, BufferError for a graph
 * capture, else RuntimeError with the runtime's name and text of the error. The runtime's last error is cleared (S9).
 * Release the GIL around the call (S8). */
#define DLPACK_DEVICE_CALL(function, arguments, error) \
    dlp_device_check_status(DLP_DEVICE_STATUS(function, arguments), DLPACK_DEVICE_API_PREFIX #function, error)

typedef DLPACK_DEVICE_API(Error_t) dlp_device_status;
typedef DLPACK_DEVICE_API(Stream_t) dlp_device_stream;
typedef DLPACK_DEVICE_API(Event_t) dlp_device_event;
typedef enum DLPACK_DEVICE_API(StreamCaptureMode) dlp_device_capture_mode;

#ifdef DLPACK_DEVICE_API_AT_RUN_TIME
#  include "dlpack_device_library.h"
#else
#  define DLP_DEVICE_FUNCTION(function) DLPACK_DEVICE_API(function)
#  define DLP_DEVICE_STATUS(function, arguments) DLPACK_DEVICE_API(function) arguments
#endif

/* ...ErrorStreamCapture...: errors of a graph capture. */
static inline int
dlp_device_is_capture_error(dlp_device_status status)
{
    return (int)status >= 900 && (int)status <= 908;
}

/* Turns a failed status into *error, which may be NULL, and clears the runtime's last error. */
static inline int
dlp_device_check_status(dlp_device_status status, const char *call, dlpack_py_error *error)
{
    int32_t code = DLPACK_PY_RUNTIME_ERROR;

    if (status == DLPACK_DEVICE_API(Success))
        return 0;
#ifdef DLPACK_DEVICE_API_AT_RUN_TIME
    if (status == DLPACK_DEVICE_API(ErrorSharedObjectSymbolNotFound))
        return dlp_fail(error, code,
                        "%s: there is no " DLPACK_DEVICE_API_LIBRARY
                        " with this function: install the runtime, or import a library that has loaded it",
                        call);
#endif
    (void)DLP_DEVICE_STATUS(GetLastError, ());
    if (status == DLPACK_DEVICE_API(ErrorMemoryAllocation))
        code = DLPACK_PY_MEMORY_ERROR;
    else if (dlp_device_is_capture_error(status))
        code = DLPACK_PY_BUFFER_ERROR;
    return dlp_fail(error, code, "%s: %s, %s", call, DLP_DEVICE_FUNCTION(GetErrorName)(status),
                    DLP_DEVICE_FUNCTION(GetErrorString)(status));
}

/* Reads the status of a query. ...ErrorNotReady means "not done"; it is cleared as an error is. */
static inline int
dlp_device_check_query(dlp_device_status status, int *done, dlpack_py_error *error)
{
    *done = status == DLPACK_DEVICE_API(Success);
    if (status != DLPACK_DEVICE_API(ErrorNotReady))
        return dlp_device_check_status(status, DLPACK_DEVICE_API_PREFIX "StreamQuery", error);
    (void)DLP_DEVICE_STATUS(GetLastError, ());
    return 0;
}

static inline dlp_device_stream
dlp_device_handle(uintptr_t stream)
{
#ifdef HIP_API_PER_THREAD_DEFAULT_STREAM /* NULL would be the per-thread stream */
    if (stream == 0)
        return hipStreamLegacy;
#endif
    return (dlp_device_stream)stream;
}

/* Makes queries, waits and copies legal for this thread while other threads capture. *mode: out, the mode before. */
static inline int
dlp_device_relaxed_begin(dlp_device_capture_mode *mode, dlpack_py_error *error)
{
    *mode = DLPACK_DEVICE_API(StreamCaptureModeRelaxed);
    return DLPACK_DEVICE_CALL(ThreadExchangeStreamCaptureMode, (mode), error);
}

/* Restores the capture mode. result: what the calls in between returned. Returns result; or -1 where result is 0 and
 * the mode cannot be restored. *error keeps the first error. */
static inline int
dlp_device_relaxed_end(dlp_device_capture_mode *mode, int result, dlpack_py_error *error)
{
    const int failed = DLPACK_DEVICE_CALL(ThreadExchangeStreamCaptureMode, (mode), result != 0 ? NULL : error);
    return result != 0 ? result : failed;
}

/* Is an event done? 1 also where the context of the event is lost, and its work with it. */
static inline int
dlp_device_event_is_done(dlp_device_event event)
{
    const dlp_device_status status = DLP_DEVICE_STATUS(EventQuery, (event));
    int done;

    if (dlp_device_check_query(status, &done, NULL) == 0)
        return done;
    /* The query was not allowed (in a capture, or in a forked child), or else the context is lost. */
    return !dlp_device_is_capture_error(status) && status != DLPACK_DEVICE_API(ErrorInitializationError);
}

/* ---- The order of streams ----------------------------------------------- */

/* Remembers which device was current, to make it current again. Starts as {-1, -1}. */
typedef struct dlp_device_guard {
    int32_t original; /* to be restored; -1: not known yet */
    int32_t current;
} dlp_device_guard;

/* Makes a device current; DLPACK_PY_CURRENT_DEVICE: the device that was current at first. */
static inline int
dlp_device_guard_set(dlp_device_guard *guard, int32_t id, dlpack_py_error *error)
{
    if (guard->original < 0) {
        if (id == DLPACK_PY_CURRENT_DEVICE)
            return 0;
        if (DLPACK_DEVICE_CALL(GetDevice, (&guard->current), error) < 0)
            return -1;
        guard->original = guard->current;
    }
    if (id == DLPACK_PY_CURRENT_DEVICE)
        id = guard->original;
    if (id != guard->current && DLPACK_DEVICE_CALL(SetDevice, (id), error) < 0)
        return -1;
    guard->current = id;
    return 0;
}

/* Makes the device of a stream current where the handle is relative, so that the handle means that stream. */
static inline int
dlp_device_guard_stream(dlp_device_guard *guard, dlpack_py_work_stream stream, dlpack_py_error *error)
{
    return stream.handle > DLPACK_DEVICE_PER_THREAD_STREAM ? 0 : dlp_device_guard_set(guard, stream.device_id, error);
}

/* Restores the current device (S5). result: what the calls before returned. Returns result; or -1 where result is 0 and
 * the device cannot be restored. *error keeps the first error. */
static inline int
dlp_device_guard_end(const dlp_device_guard *guard, int result, dlpack_py_error *error)
{
    if (guard->current != guard->original &&
        DLPACK_DEVICE_CALL(SetDevice, (guard->original), result != 0 ? NULL : error) < 0)
        return result != 0 ? result : -1;
    return result;
}

/* Are two handles the same stream, for this thread? */
static inline int
dlp_device_is_same_stream(dlpack_py_work_stream a, dlpack_py_work_stream b)
{
    return a.handle == b.handle && (a.handle > DLPACK_DEVICE_PER_THREAD_STREAM || a.device_id == b.device_id);
}

/* Is work on before done ahead of work on after, whichever thread queued it? */
static inline int
dlp_device_is_ordered(dlpack_py_work_stream before, dlpack_py_work_stream after)
{
    return dlp_device_is_same_stream(before, after) && before.handle != DLPACK_DEVICE_PER_THREAD_STREAM;
}

/* Finds the capture that a stream is in. *id: out, 0 for none. Returns 0, or -1 with BufferError where the capture was
 * invalidated, and for the default stream while a blocking stream captures. */
static inline int
dlp_device_find_capture(dlp_device_guard *guard, dlpack_py_work_stream stream, uint64_t *id, dlpack_py_error *error)
{
    const dlp_device_stream handle = dlp_device_handle(stream.handle);
    enum DLPACK_DEVICE_API(StreamCaptureStatus) status = DLPACK_DEVICE_API(StreamCaptureStatusNone);
    unsigned long long capture = 0;
    int failed;

    *id = 0;
    if (dlp_device_guard_stream(guard, stream, error) < 0 ||
        DLPACK_DEVICE_CALL(StreamIsCapturing, (handle, &status), error) < 0)
        return -1;
    if (status == DLPACK_DEVICE_API(StreamCaptureStatusNone))
        return 0;
    if (status == DLPACK_DEVICE_API(StreamCaptureStatusInvalidated))
        return DLP_REFUSE(error, "the graph capture of stream %" PRIuPTR " was invalidated before", stream.handle);
    failed = DLPACK_DEVICE_CALL(StreamGetCaptureInfo, DLPACK_DEVICE_API_CAPTURE_INFO(handle, &status, &capture), error);
    *id = capture;
    return failed;
}

/* Finds the capture of a stream with pending work. The handle of the per-thread default stream means the stream of the
 * calling thread, but another thread may have queued the work. Unless the stream of the calling thread captures,
 * *stream becomes the default stream, which waits for the per-thread streams of all threads. */
static inline int
dlp_device_find_pending(dlp_device_guard *guard, dlpack_py_work_stream *stream, uint64_t *id, dlpack_py_error *error)
{
    if (dlp_device_find_capture(guard, *stream, id, error) < 0)
        return -1;
    if (stream->handle != DLPACK_DEVICE_PER_THREAD_STREAM || *id != 0)
        return 0;
    stream->handle = DLPACK_DEVICE_API_DEFAULT_STREAM;
    return dlp_device_find_capture(guard, *stream, id, error);
}

/* Checks that all work on a stream is done, for a consumer's stream in a capture. */
static inline int
dlp_device_check_done(dlp_device_guard *guard, dlpack_py_work_stream stream, dlpack_py_error *error)
{
    dlp_device_capture_mode mode;
    int failed, done = 0;

    if (dlp_device_guard_stream(guard, stream, error) < 0 || dlp_device_relaxed_begin(&mode, error) < 0)
        return -1;
    failed = dlp_device_check_query(DLP_DEVICE_STATUS(StreamQuery, (dlp_device_handle(stream.handle))), &done, error);
    if (dlp_device_relaxed_end(&mode, failed, error) < 0)
        return -1;
    return done ? 0
                : DLP_REFUSE(error, "the consumer's stream is in a graph capture, and cannot wait for the producer's "
                                    "work outside of it: finish that work before the capture, or ask with stream=-1");
}

/* Records a new event on before; after waits for it. */
static inline int
dlp_device_order_by_event(dlp_device_guard *guard, dlpack_py_work_stream before, dlpack_py_work_stream after,
                          dlpack_py_error *error)
{
    dlp_device_event event = NULL;
    int failed;

    if (dlp_device_guard_set(guard, before.device_id, error) < 0 ||
        DLPACK_DEVICE_CALL(EventCreateWithFlags, (&event, DLPACK_DEVICE_API(EventDisableTiming)), error) < 0)
        return -1;
    failed = DLPACK_DEVICE_CALL(EventRecord, (event, dlp_device_handle(before.handle)), error) < 0 ||
             dlp_device_guard_stream(guard, after, error) < 0 ||
             DLPACK_DEVICE_CALL(StreamWaitEvent, (dlp_device_handle(after.handle), event, 0), error) < 0;
    (void)DLPACK_DEVICE_CALL(EventDestroy, (event), NULL); /* allowed while it is pending */
    return failed ? -1 : 0;
}

/* The work of dlpack_device_order. before is changed. All streams are asked for captures before the first event is
 * recorded: a request that is refused changes no capture. */
static inline int
dlp_device_order_guarded(dlp_device_guard *guard, dlpack_py_work_stream *before, size_t count,
                         dlpack_py_work_stream after, dlpack_py_error *error)
{
    uint64_t captures[DLPACK_PY_MAX_PENDING]; /* of before[i]; 0: none */
    uint64_t joined;                          /* the capture that after is in, or will join; 0: none */
    size_t i, kept = 0;

    if (dlp_device_find_capture(guard, after, &joined, error) < 0)
        return -1;
    for (i = 0; i < count; i++) {
        if (dlp_device_find_pending(guard, &before[i], &captures[kept], error) < 0)
            return -1;
        if (captures[kept] != 0 && joined != 0 && captures[kept] != joined)
            return DLP_REFUSE(error, "the streams of producer and consumer capture different graphs: neither can "
                                     "wait for the other");
        if (captures[kept] != 0 && after.handle == DLPACK_DEVICE_API_DEFAULT_STREAM)
            return DLP_REFUSE(error, "the producer's stream captures a graph, which the default stream cannot join: "
                                     "ask with another stream, or with stream=-1");
        joined = captures[kept] != 0 ? captures[kept] : joined;
        before[kept] = before[i];
        kept += !dlp_device_is_same_stream(before[i], after);
    }
    for (i = 0; i < kept; i++) {
        if (captures[i] != joined && dlp_device_check_done(guard, before[i], error) < 0)
            return -1;
    }
    for (i = 0; i < kept; i++) {
        if (captures[i] == joined && dlp_device_order_by_event(guard, before[i], after, error) < 0)
            return -1;
    }
    return 0;
}

/* Order work that will be queued on a stream after all work that is queued on other streams (S1).
 *
 * before, count   the other streams, DLPACK_PY_MAX_PENDING at most
 * after           the stream that waits
 *
 * Returns 0, or -1 with BufferError (a graph capture forbids it; the capture stays valid) or RuntimeError (an error of
 * the runtime). The host does not wait. The current device is restored. For equal streams the runtime is not called
 * (S4), except for the per-thread default stream: another thread may have queued the work. Where a stream of before
 * captures a graph, after joins the capture. Needs no thread state; any thread.
 */
static inline int
dlpack_device_order(const dlpack_py_work_stream *before, size_t count, dlpack_py_work_stream after,
                    dlpack_py_error *error)
{
    dlp_device_guard guard = {-1, -1};
    dlpack_py_work_stream others[DLPACK_PY_MAX_PENDING];
    size_t i, others_count = 0;

    if (count > DLPACK_PY_MAX_PENDING)
        return DLP_REFUSE(error, "work is pending on %" PRIuPTR " streams, %d at most were wanted", (uintptr_t)count,
                          DLPACK_PY_MAX_PENDING);
    for (i = 0; i < count; i++) {
        if (!dlp_device_is_ordered(before[i], after))
            others[others_count++] = before[i];
    }
    if (others_count == 0)
        return 0;
    if (after.device_id == DLPACK_PY_CURRENT_DEVICE && after.handle <= DLPACK_DEVICE_PER_THREAD_STREAM) {
        if (DLPACK_DEVICE_CALL(GetDevice, (&after.device_id), error) < 0)
            return -1;
        return dlpack_device_order(others, others_count, after, error); /* compares with the id */
    }
    return dlp_device_guard_end(&guard, dlp_device_order_guarded(&guard, others, others_count, after, error), error);
}

/* Checks that the host may wait for *stream (see dlp_device_find_pending): it must not capture (S6). */
static inline int
dlp_device_check_wait(dlp_device_guard *guard, dlpack_py_work_stream *stream, dlpack_py_error *error)
{
    uint64_t capture;
    if (dlp_device_find_pending(guard, stream, &capture, error) < 0)
        return -1;
    return capture == 0 ? 0 : DLP_REFUSE(error, "the stream captures a graph: the host cannot wait for it");
}

/* Make the host wait for all work that is queued on streams (S10). Returns 0, or -1 with BufferError where a stream
 * captures a graph, or RuntimeError. Needs no thread state. */
static inline int
dlpack_device_synchronize(const dlpack_py_work_stream *streams, size_t count, dlpack_py_error *error)
{
    dlp_device_guard guard = {-1, -1};
    dlpack_py_work_stream stream;
    dlp_device_capture_mode mode;
    int failed = 0;
    size_t i;

    for (i = 0; i < count && !failed; i++) {
        stream = streams[i];
        failed = dlp_device_check_wait(&guard, &stream, error) < 0 || dlp_device_relaxed_begin(&mode, error) < 0;
        if (!failed) { /* other streams may capture */
            failed = DLPACK_DEVICE_CALL(StreamSynchronize, (dlp_device_handle(stream.handle)), error);
            failed = dlp_device_relaxed_end(&mode, failed, error);
        }
    }
    return dlp_device_guard_end(&guard, failed ? -1 : 0, error);
}

/* ---- Copies to the host ------------------------------------------------- */

#define DLPACK_DEVICE_COPY_UNFINISHED (-2) /* the copy may still write to the destination: leak it */

/* Copies to the host on a stream, and waits, in the relaxed mode: a copy to pageable memory may wait, too. A tensor
 * that is not compact is copied whole, from the first to the last element; the host then picks its elements. */
static inline int
dlp_device_copy_and_wait(const DLTensor *dst, const DLTensor *src, uint64_t flags, uintptr_t stream,
                         dlpack_py_error *error)
{
    const int64_t bits = dlp_item_bits(src->dtype, flags), bytes = dlpack_py_nbytes(src, flags);
    const dlp_device_stream handle = dlp_device_handle(stream);
    const enum DLPACK_DEVICE_API(MemcpyKind) kind = DLPACK_DEVICE_API(MemcpyDefault);
    void *to = dlp_first_element(dst);
    char *first = (char *)dlp_first_element(src), *staging = NULL;
    int64_t lowest, highest, width = bytes;
    DLTensor staged = *src;
    int failed, is_unfinished;

    (void)dlp_byte_range(src, flags, &lowest, &highest); /* src was validated */
    if (!dlpack_py_is_contiguous(src, 'C')) {
        width = (int64_t)((uint64_t)highest - (uint64_t)lowest);
        staging = width < 0 ? NULL : (char *)DLPACK_PY_MALLOC((size_t)width); /* below 0: 2^63 bytes or more */
        if (staging == NULL)
            return dlp_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for a copy of %" PRIu64 " bytes",
                            (uint64_t)width);
        to = staging;
        first += lowest;
    }
    failed = DLPACK_DEVICE_CALL(MemcpyAsync, (to, first, (size_t)width, kind, handle), error);
    /* Wait also after a failure: the copy may still write. If waiting fails too, leak the memory. */
    is_unfinished = DLPACK_DEVICE_CALL(StreamSynchronize, (handle), failed ? NULL : error);
    if (is_unfinished)
        return DLPACK_DEVICE_COPY_UNFINISHED;
    if (staging == NULL && !failed && dlpack_py_size(src) * bits % 8 != 0) /* unused bits become 0 */
        ((unsigned char *)to)[bytes - 1] &= (unsigned char)((1u << dlpack_py_size(src) * bits % 8) - 1);
    if (staging != NULL && !failed) {
        staged.data = staging - lowest;
        staged.byte_offset = 0;
        staged.device = dlp_make_device(kDLCPU, 0);
        failed = dlpack_py_copy(dst, &staged, flags, error);
    }
    if (staging != NULL)
        DLPACK_PY_FREE(staging);
    return failed;
}

/* Copy the elements of a tensor on a device to the host, whatever their strides.
 *
 * dst             compact row-major memory of the host, of the dtype and shape of src
 * flags           DLPACK_PY_FLAG_* of src: padded sub-byte dtypes
 * before, count   streams on which work on src is pending. The copy is queued on the first of them, or else on the
 *                 default stream of the device, and the host waits for it
 *
 * Returns 0, or -1 with BufferError where a stream captures a graph, MemoryError or RuntimeError. Returns
 * DLPACK_DEVICE_COPY_UNFINISHED with the error where the host could not wait. Needs no thread state.
 */
static inline int
dlpack_device_copy_to_host(const DLTensor *dst, const DLTensor *src, uint64_t flags,
                           const dlpack_py_work_stream *before, size_t count, dlpack_py_error *error)
{
    dlp_device_guard guard = {-1, -1};
    dlpack_py_work_stream stream = {DLPACK_DEVICE_API_DEFAULT_STREAM, src->device.device_id};
    dlp_device_capture_mode mode;
    int failed;

    if (dlp_is_empty(src))
        return 0;
    if (count > 1 && dlpack_device_synchronize(before + 1, count - 1, error) < 0)
        return -1;
    if (count > 0)
        stream = before[0];
    failed = dlp_device_check_wait(&guard, &stream, error) < 0 || dlp_device_relaxed_begin(&mode, error) < 0 ? -1 : 0;
    if (!failed) {
        failed = dlp_device_copy_and_wait(dst, src, flags, stream.handle, error);
        failed = dlp_device_relaxed_end(&mode, failed, error);
    }
    return dlp_device_guard_end(&guard, failed, error);
}

#endif /* DLPACK_DEVICE_RUNTIME_LAYER */

#if DLPACK_PY_AVAILABLE && !defined(DLPACK_DEVICE_PROTOCOL_LAYER)
#define DLPACK_DEVICE_PROTOCOL_LAYER

/* ---- The operations of a device ----------------------------------------- */

/* Makes data ready that is exported in place: orders the consumer's stream after the pending work (S1), or waits for
 * that work on the host (S10). This is dlpack_py_operations.make_ready. */
static inline int
dlp_device_make_ready(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    const DLDevice device = offer->tensor->device;
    dlpack_py_work_stream stream = {DLPACK_DEVICE_API_DEFAULT_STREAM, DLPACK_PY_CURRENT_DEVICE};
    const int on_host = dlpack_py_is_cpu_readable(plan->device) && request->stream.kind != DLPACK_PY_STREAM_HANDLE;
    const int for_cpu = request->has_device && plan->device.device_type == kDLCPU;
    dlpack_py_work_stream pending[DLPACK_PY_MAX_PENDING]; /* copied: the author may change it meanwhile */
    size_t i, count = 0;
    dlpack_py_error error;
    int failed;

    if ((request->stream.kind == DLPACK_PY_STREAM_NO_SYNC && !for_cpu) ||
        (request->stream.kind == DLPACK_PY_STREAM_NONE && !on_host &&
         (offer->options & DLPACK_PY_OFFER_NONE_IS_NO_SYNC) != 0))
        return 0;
    if (request->stream.kind == DLPACK_PY_STREAM_HANDLE)
        stream.handle = request->stream.handle;
    if (dlp_operates_on(offer->operations, device)) /* pinned and managed memory have no device id */
        stream.device_id = device.device_id;
    for (i = 0; i < offer->pending_count; i++) {
        if (on_host || !dlp_device_is_ordered(offer->pending[i], stream))
            pending[count++] = offer->pending[i];
    }
    if (count == 0)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    failed = on_host ? dlpack_device_synchronize(pending, count, &error)
                     : dlpack_device_order(pending, count, stream, &error);
    Py_END_ALLOW_THREADS
    return failed ? dlpack_py_raise(&error) : 0;
}

/* Copies to compact memory of the CPU, behind the pending work. This is dlpack_py_operations.copy. */
static inline int
dlp_device_copy(const dlpack_py_offer *offer, const DLTensor *to, const DLTensor *from)
{
    const uint64_t padded = offer->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    const size_t count = offer->pending_count;
    dlpack_py_work_stream pending[DLPACK_PY_MAX_PENDING]; /* copied: the author may change it meanwhile */
    dlpack_py_error error;
    int failed;

    if (count > 0)
        memcpy(pending, offer->pending, count * sizeof(*pending));
    Py_BEGIN_ALLOW_THREADS
    if (!dlpack_py_is_cpu_readable(from->device))
        failed = dlpack_device_copy_to_host(to, from, padded, pending, count, &error);
    else if ((failed = dlpack_device_synchronize(pending, count, &error)) == 0)
        dlp_copy_unchecked(to, from, padded);
    Py_END_ALLOW_THREADS
    if (failed)
        (void)dlpack_py_raise(&error);
    return failed;
}

/* get_work_stream of dlpack_py_operations: asks an exchange table for the stream that its library works on (X4). */
static inline int
dlp_device_get_work_stream(const void *table, dlpack_py_work_stream *work)
{
#ifdef DLPACK_EXCHANGE_H
    const DLPackExchangeAPI *exchange = (const DLPackExchangeAPI *)table;
    void *stream = NULL; /* some tables leave it unset (X8) */
    const int returned = exchange->current_work_stream((DLDeviceType)DLPACK_DEVICE_API_TYPE, work->device_id, &stream);
    work->handle = stream == NULL ? DLPACK_DEVICE_API_DEFAULT_STREAM : (uintptr_t)stream;
    return returned == 0 && !PyErr_Occurred() ? 0 : dlp_raise_table_error("current_work_stream");
#else
    (void)table;
    (void)work;
    return -1;
#endif
}

/* The operations: the device of a dlpack_py_offer. */
static inline const dlpack_py_operations *
dlpack_device_operations(void)
{
    static const dlpack_py_operations device = {DLPACK_DEVICE_API_TYPE, dlp_device_make_ready, dlp_device_copy,
                                                dlp_device_get_work_stream};
    return &device;
}

/* Calls __dlpack_device__. Some libraries return None as the id of the CPU: it counts as 0. */
static inline int
dlp_device_get_announced(PyObject *obj, DLDevice *device)
{
    const dlp_state *state = dlp_state_get();
    PyObject *returned = NULL, *with_id;
    int32_t pair[2] = {0, 0};
    int failed;

    if (state != NULL)
        returned = PyObject_VectorcallMethod(state->objects[DLP_STR_DLPACK_DEVICE], &obj, 1, NULL);
    if (returned != NULL && PyTuple_Check(returned) && DLP_TUPLE_SIZE(returned) == 2 &&
        DLP_TUPLE_ITEM(returned, 1) == Py_None) {
        with_id = Py_BuildValue("(Oi)", DLP_TUPLE_ITEM(returned, 0), 0);
        Py_DECREF(returned);
        returned = with_id;
    }
    if (returned == NULL)
        return -1;
    failed =
        dlp_parse_integers("__dlpack_device__ returned %.200U, a tuple of two integers was wanted", returned, pair, 2);
    Py_DECREF(returned);
    *device = dlp_make_device(pair[0], pair[1]);
    return failed;
}

/* May the per-thread default stream of this thread, on the current device, be in a capture? */
static inline int
dlp_device_is_in_capture(void)
{
    dlp_device_guard guard = {-1, -1};
    const dlpack_py_work_stream stream = {DLPACK_DEVICE_PER_THREAD_STREAM, DLPACK_PY_CURRENT_DEVICE};
    uint64_t capture = 0;
    int failed;

    Py_BEGIN_ALLOW_THREADS
    failed = dlp_device_find_capture(&guard, stream, &capture, NULL);
    Py_END_ALLOW_THREADS
    return failed || capture != 0;
}

/* Checks that the tensor in the capsule is on the device that __dlpack_device__ returned, because the keywords of the
 * call depended on it (C4). Pinned memory may be exported as CPU memory, as by PyTorch 2.13. */
static inline int
dlp_device_check_announced(PyObject *returned, DLDevice announced, const dlpack_py_want *want)
{
    char actual_text[DLPACK_PY_TEXT_SIZE], announced_text[DLPACK_PY_TEXT_SIZE];
    dlpack_py_error error;
    DLDevice actual = announced;
    void *managed;
    int32_t form;

    DLP_CRITICAL_SECTION(returned); /* the name changes when the capsule is consumed */
    form = PyCapsule_CheckExact(returned) ? dlp_form_of(PyCapsule_GetName(returned)) : 0;
    managed = form == 0 ? NULL : PyCapsule_GetPointer(returned, DLP_CAPSULE_NAME(form));
    if (managed != NULL && !dlp_is_unknown_major(managed, form)) /* else dlp_take_capsule refuses it */
        actual = dlp_tensor_of(managed, form)->device;
    DLP_CRITICAL_SECTION_END();
    if (announced.device_type == actual.device_type
            ? announced.device_id == actual.device_id || dlpack_py_is_cpu_readable(actual) /* D9 */
            : actual.device_type == kDLCPU && dlpack_py_is_cpu_readable(announced))
        return 0;
    (void)DLP_REFUSE(&error, "device is %s, but __dlpack_device__ returned %s",
                     dlpack_py_device_text(actual, actual_text), dlpack_py_device_text(announced, announced_text));
    return dlp_raise_named(want, &error);
}

/* dlp_call_dlpack for a consumer with a stream: asks for the device of the data, passes the stream of *request for
 * memory of that device alone, and makes the device current for the call (C4, S2, S3, S5). */
DLP_NOINLINE PyObject *
dlp_device_call_on_stream(dlp_import *import, dlpack_py_request *request)
{
    dlp_device_guard guard = {-1, -1};
    dlpack_py_error error;
    DLDevice announced;
    PyObject *returned;
    int is_on, is_managed, failed = 0;

    if (request->has_device)
        announced = request->device; /* the producer has the data there, or copies it there */
    else if (dlp_device_get_announced(import->obj, &announced) < 0)
        return NULL;
    is_on = dlp_operates_on(dlpack_device_operations(), announced);
    is_managed = DLPACK_DEVICE_API_MANAGED_TYPE ? (int32_t)announced.device_type == DLPACK_DEVICE_API_MANAGED_TYPE : 0;
    if (!is_on && !is_managed)
        memset(&request->stream, 0, sizeof(request->stream));
    if (is_on || (is_managed && announced.device_id != 0)) {
        Py_BEGIN_ALLOW_THREADS
        failed = dlp_device_guard_set(&guard, announced.device_id, &error);
        Py_END_ALLOW_THREADS
        if (failed) {
            (void)dlpack_py_raise(&error);
            return NULL;
        }
    }
    returned = dlp_call_dlpack(import);
    if (returned == NULL && request->stream.kind == DLPACK_PY_STREAM_HANDLE &&
        request->stream.handle == DLPACK_DEVICE_PER_THREAD_STREAM && PyErr_ExceptionMatches(PyExc_BufferError) &&
        (import->got_keywords || request->copy != DLPACK_PY_COPY_NEVER) && /* else this header refused (C3) */
        !dlp_device_is_in_capture()) {
        /* PyTorch from 2.9 on refuses the per-thread default stream, which waits for the default stream. */
        PyErr_Clear();
        request->stream.handle = DLPACK_DEVICE_API_DEFAULT_STREAM;
        returned = dlp_call_dlpack(import);
    }
    if (guard.current != guard.original) {
        Py_BEGIN_ALLOW_THREADS
        failed = dlp_device_guard_end(&guard, 0, &error);
        Py_END_ALLOW_THREADS
    }
    if (returned == NULL || (!failed && (request->has_device || /* dlp_take_capsule compares the two */
                                         dlp_device_check_announced(returned, announced, import->want) == 0)))
        return returned;
    if (failed)
        (void)dlpack_py_raise(&error);
    dlp_decref_keeping_error(returned);
    return NULL;
}

/* Releases the GIL where this thread holds it, except while the interpreter is ending: a thread that releases it then
 * may not get it back. Returns the thread state to attach again, or NULL. */
static inline PyThreadState *
dlp_device_detach_thread(void)
{
    return dlp_thread_state() != NULL && !dlp_is_finalizing() ? PyEval_SaveThread() : NULL;
}

static inline void
dlp_device_attach_thread(PyThreadState *state)
{
    if (state != NULL)
        PyEval_RestoreThread(state);
}

/* Exchanges the capture mode of this thread, without the GIL. *mode: in, the new one; out, the one before. */
static inline int
dlp_device_exchange_mode(dlp_device_capture_mode *mode)
{
    PyThreadState *state = dlp_device_detach_thread();
    const int failed = DLPACK_DEVICE_CALL(ThreadExchangeStreamCaptureMode, (mode), NULL);
    dlp_device_attach_thread(state);
    return failed;
}

/* dlpack_py_release in the relaxed capture mode: a deleter that frees device memory invalidates no capture (S6). */
static inline void
dlp_device_release_now(dlpack_py_view *v)
{
    dlp_device_capture_mode mode = DLPACK_DEVICE_API(StreamCaptureModeRelaxed);
    const int failed = dlp_device_exchange_mode(&mode);
    dlpack_py_release(v);
    if (!failed)
        (void)dlp_device_exchange_mode(&mode);
}

/* Orders the stream of a consumer that has taken a view. Returns 0, or -1 and releases v. */
DLP_NOINLINE int
dlp_device_order_view(dlpack_py_work_stream before, dlpack_py_work_stream after, dlpack_py_view *v)
{
    dlpack_py_error error;
    int failed;

    Py_BEGIN_ALLOW_THREADS
    failed = dlpack_device_order(&before, 1, after, &error);
    Py_END_ALLOW_THREADS
    if (failed == 0)
        return 0;
    dlp_device_release_now(v);
    return dlpack_py_raise(&error);
}

/* Answers a call of __dlpack__ for data with one pending stream: dlpack_cuda_produce and dlpack_rocm_produce. */
static inline PyObject *
dlp_device_produce(PyObject *owner, const DLTensor *t, uint64_t flags, dlpack_py_work_stream pending,
                   PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    dlpack_py_request request;

    offer.operations = dlpack_device_operations();
    offer.pending = &pending;
    offer.pending_count = 1;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

/* ---- Releasing behind queued work --------------------------------------- */

/* The id of the interpreter that this thread is attached to; 0, the id of the main interpreter, without a thread state.
 * An id is used again only after Py_Finalize; an address may be used again at any time. */
static inline int64_t
dlp_device_this_interpreter(void)
{
    return dlp_thread_state() == NULL ? 0 : PyInterpreterState_GetID(DLP_INTERPRETER());
}

/* A tensor whose release waits for work on a stream. Tensors of one stream form a chain: its first event is queried. */
typedef struct dlp_device_waiting {
    struct dlp_device_waiting *behind;      /* the next tensor of the chain; NULL: this is the last */
    struct dlp_device_waiting *next, *last; /* in the first of a chain: the next chain; the last of its own chain */
    size_t count;                           /* in the first of a chain: the length of the chain */
    dlpack_py_work_stream stream;
    dlp_device_event event; /* recorded behind the work */
    int64_t interpreter;    /* the id of the interpreter in which the deleter may run; -1: any */
    void *managed;
    int32_t form; /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY: the type of *managed */
} dlp_device_waiting;

/* dlp_device_waiting *: the chains of tensors whose release waits, of this source file; 0: none. */
static dlp_atomic dlp_device_waiting_list;

/* Puts chains, from first to last, into the list. */
static inline void
dlp_device_list_add(dlp_device_waiting *first, dlp_device_waiting *last)
{
    dlp_atomic *list = &dlp_device_waiting_list;
    do
        last->next = (dlp_device_waiting *)DLP_LOAD(list);
    while (!DLP_COMPARE_EXCHANGE(list, (dlp_atomic)last->next, (dlp_atomic)first));
}

/* Joins the chains that have one stream and one interpreter. Returns the list of joined chains. */
static inline dlp_device_waiting *
dlp_device_join_chains(dlp_device_waiting *all)
{
    dlp_device_waiting *joined = NULL, *next, *newer, **place;

    for (; all != NULL; all = next) {
        next = all->next;
        all->next = NULL;
        place = &joined;
        while (*place != NULL &&
               ((*place)->interpreter != all->interpreter || !dlp_device_is_same_stream((*place)->stream, all->stream)))
            place = &(*place)->next;
        newer = *place;
        if (newer != NULL) {
            all->next = newer->next;
            all->last->behind = newer;
            all->last = newer->last;
            all->count += newer->count;
        }
        *place = all;
    }
    return joined;
}

/* Release the tensors of dlpack_device_release whose work is done. Later calls of dlpack_device_release and
 * dlpack_device_consume in this source file do it too. A library that makes no such calls calls this function now and
 * then, and after it has synchronized, before an interpreter or the process ends: tensors that wait then are leaked.
 *
 * Returns how many tensors still wait that this thread may release: those of its interpreter. A thread without a thread
 * state counts as a thread of the main interpreter. Tensors that another thread asks about at this moment are not
 * counted. The host does not wait. The deleters run here, as by dlpack_py_release, in the relaxed capture mode: they
 * invalidate no capture (S6). Any thread. */
static inline size_t
dlpack_device_collect(void)
{
    dlp_atomic *list = &dlp_device_waiting_list;
    const int64_t here = dlp_device_this_interpreter();
    dlp_device_waiting *left, *first, *next, *last = NULL, *done = NULL, **place = &left, **done_end = &done;
    dlp_device_capture_mode mode = DLPACK_DEVICE_API(StreamCaptureModeRelaxed);
    PyThreadState *state;
    size_t count = 0;
    int failed, is_here;

    if (DLP_LOAD(list) == 0)
        return 0;
    failed = dlp_device_exchange_mode(&mode);
    left = dlp_device_join_chains((dlp_device_waiting *)DLP_EXCHANGE(list, 0));
    state = dlp_device_detach_thread();
    while ((first = *place) != NULL) {
        is_here = first->interpreter == -1 || first->interpreter == here;
        if (failed || !is_here || !dlp_device_event_is_done(first->event)) {
            count += is_here ? first->count : 0;
            last = first;
            place = &first->next;
            continue;
        }
        (void)DLPACK_DEVICE_CALL(EventDestroy, (first->event), NULL);
        next = first->behind != NULL ? first->behind : first->next;
        if (first->behind != NULL) {
            next->next = first->next;
            next->last = first->last;
            next->count = first->count - 1;
        }
        *place = next;
        first->next = NULL;
        *done_end = first;
        done_end = &first->next;
    }
    dlp_device_attach_thread(state);
    if (left != NULL)
        dlp_device_list_add(left, last);
    for (; done != NULL; done = next) {
        next = done->next;
        dlp_delete(done->managed, done->form);
        DLPACK_PY_FREE(done);
    }
    if (!failed)
        (void)dlp_device_exchange_mode(&mode);
    return count;
}

/* Records an event behind the work that is queued on waiting->stream. */
static inline int
dlp_device_mark_work(dlp_device_waiting *waiting, dlpack_py_error *error)
{
    const unsigned flags = DLPACK_DEVICE_API(EventDisableTiming);
    dlp_device_guard guard = {-1, -1};
    uint64_t capture;
    int failed = dlp_device_find_pending(&guard, &waiting->stream, &capture, error);

    if (!failed && capture != 0)
        failed = DLP_REFUSE(error, "the stream captures a graph, whose work runs later: keep the view as long as the "
                                   "graph");
    if (!failed)
        failed = dlp_device_guard_set(&guard, waiting->stream.device_id, error) < 0 ||
                 DLPACK_DEVICE_CALL(EventCreateWithFlags, (&waiting->event, flags), error) < 0;
    if (!failed) {
        failed = DLPACK_DEVICE_CALL(EventRecord, (waiting->event, dlp_device_handle(waiting->stream.handle)), error);
        if (failed)
            (void)DLPACK_DEVICE_CALL(EventDestroy, (waiting->event), NULL);
    }
    (void)dlp_device_guard_end(&guard, 0, NULL); /* an error of restoring the device is no error of the release */
    return failed ? -1 : 0;
}

/* Release a view while work on its tensor is queued on a stream.
 *
 * stream   the consumer's, with the id of its device
 * v        empty afterwards; unchanged after BufferError
 *
 * Where the work is done, the tensor is released at once. Otherwise it waits for a later call (dlpack_device_collect).
 * The host waits only where no event can be recorded. Returns 0, or -1 with *error: BufferError (the stream captures a
 * graph, or is the default stream while a blocking stream captures: try again after that capture); or the first failure
 * of the runtime, RuntimeError or MemoryError (S9): then v is released. Any thread. */
static inline int
dlpack_device_release(dlpack_py_work_stream stream, dlpack_py_view *v, dlpack_py_error *error)
{
    dlp_device_waiting *waiting;
    dlpack_py_error why, wait_error;
    PyThreadState *state;
    dlpack_py_view taken; /* while the GIL is released, v is empty: another thread may look at it */
    int failed, is_done = 0;

    if (v->managed == NULL) {
        dlpack_py_release(v); /* a borrowed view may have strides of its own */
        (void)dlpack_device_collect();
        return 0;
    }
    waiting = (dlp_device_waiting *)DLPACK_PY_MALLOC(sizeof(*waiting));
    dlpack_py_move(&taken, v);
    state = dlp_device_detach_thread();
    if (waiting == NULL)
        failed = dlp_fail(&why, DLPACK_PY_MEMORY_ERROR, "no memory for a tensor whose release waits");
    else {
        memset(waiting, 0, sizeof(*waiting));
        waiting->stream = stream;
        failed = dlp_device_mark_work(waiting, &why);
    }
    if (failed && why.code != DLPACK_PY_BUFFER_ERROR) {
        failed = dlpack_device_synchronize(&stream, 1, &wait_error);
        is_done = !failed ||
                  wait_error.code != DLPACK_PY_BUFFER_ERROR; /* any other error: the stream is lost, with its work */
        if (!is_done)                                        /* a capture has begun meanwhile */
            why = wait_error;
    }
    dlp_device_attach_thread(state);
    if (failed || is_done) {
        if (waiting != NULL)
            DLPACK_PY_FREE(waiting);
        if (is_done)
            dlp_device_release_now(&taken);
        else
            dlpack_py_move(v, &taken);
        if (failed && error != NULL)
            *error = why;
        return failed;
    }
    waiting->last = waiting;
    waiting->count = 1;
    waiting->form = taken.form;
    /* A deleter of this source file attaches to its own interpreter. A deleter of another library must run in the
     * interpreter that released the view (G1). */
    waiting->interpreter = dlp_manager_of(taken.managed, taken.form) != NULL ? -1 : dlp_device_this_interpreter();
    waiting->managed = taken.managed;
    taken.managed = NULL;
    dlpack_py_release(&taken); /* the strides that it may have allocated */
    dlp_device_list_add(waiting, waiting);
    (void)dlpack_device_collect();
    return 0;
}

/* dlpack_device_release that raises, for a stream of the view's device. */
static inline int
dlp_device_release_or_raise(dlpack_py_view *v, uintptr_t handle)
{
    dlpack_py_work_stream stream = {handle, v->tensor.device.device_id};
    dlpack_py_error error;

    if (stream.device_id == 0 && !dlp_operates_on(dlpack_device_operations(), v->tensor.device))
        stream.device_id = DLPACK_PY_CURRENT_DEVICE; /* pinned and managed memory have id 0 as a rule */
    return dlpack_device_release(stream, v, &error) < 0 ? dlpack_py_raise(&error) : 0;
}

/* dlpack_device_release for tp_dealloc: keeps the exception in flight, reports an error as unraisable, and leaks the
 * tensor in a capture. */
static inline void
dlp_device_release_unraisable(dlpack_py_view *v, uintptr_t handle)
{
    const dlp_exception saved = dlp_exception_save();
    if (dlp_device_release_or_raise(v, handle) < 0)
        PyErr_WriteUnraisable(NULL);
    v->managed = NULL; /* leaked, where it is still there */
    dlpack_py_release(v);
    dlp_exception_restore(&saved);
}

/* ---- Consuming on a stream ---------------------------------------------- */

#ifdef DLPACK_CUDA_ARRAY_INTERFACE_H /* defines this later: takes the tensor of an array interface; 1: there is none */
static inline int
dlp_device_take_interface(PyObject *obj, dlpack_py_request *request, const dlpack_py_want *want, dlpack_py_view *v);
#else
#  define dlp_device_take_interface(obj, request, want, v) \
    (PyErr_SetString(PyExc_SystemError, "DLPACK_PY_WANT_ARRAY_INTERFACE_TOO needs dlpack_cuda_array_interface.h"), -1)
#endif

/* The stream that a library works on, from the exchange table of an object's type. A consumer that works on that stream
 * needs no order (X4).
 *
 * work   in: device_id; out: handle
 *
 * Returns 1; 0 where the type has no table, or one of this source file without a stream; -1 with the library's
 * exception. */
static inline int
dlpack_device_current_work(PyObject *obj, dlpack_py_work_stream *work)
{
#ifdef DLPACK_EXCHANGE_H
    dlp_type_entry uncached;
    const dlp_type_entry *entry = dlp_type_entry_get(dlp_state_get(), obj, &uncached);

    if (entry == NULL)
        return -1;
    if (entry->table != NULL &&
        (!entry->is_ours || ((const dlpack_py_exchange *)(const void *)entry->table)->work_stream != NULL))
        return dlp_device_get_work_stream(entry->table, work) < 0 ? -1 : 1;
#endif
    (void)obj;
    (void)work;
    return 0;
}

/* dlpack_py_consume_request for a consumer with a stream, which is in *request. The stream is ordered after that of an
 * exchange table that gave the tensor (X4). */
DLP_NOINLINE int
dlp_device_consume_on_stream(PyObject *obj, dlpack_py_request *request, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlp_import import = dlp_import_make(want, request, PyCapsule_CheckExact(obj) ? NULL : obj);
    dlpack_py_work_stream stream, work;
    const void *table = NULL;
    int result;

    if (import.obj == NULL)
        return dlp_take_capsule(obj, &import, v);
    result = dlp_take_by_table(&import, dlpack_device_operations(), &table, v);
    if (result == DLP_CALL_METHOD)
        return dlp_finish_import_steal(dlp_device_call_on_stream(&import, request), &import, v);
    if (result < 0 || !dlp_operates_on(dlpack_device_operations(), v->tensor.device) ||
        request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)
        return result;
    stream.handle = request->stream.handle;
    stream.device_id = v->tensor.device.device_id;
    work = stream;
    if (dlp_device_get_work_stream(table, &work) == 0) /* a table names the stream of this thread */
        return dlp_device_is_same_stream(work, stream) ? 0 : dlp_device_order_view(work, stream, v);
    dlp_device_release_now(v);
    return -1;
}

/* Takes the tensor of obj by a request that names no stream. stream, want: as for dlpack_device_consume. */
static inline int
dlp_device_consume_request(PyObject *obj, uintptr_t stream, dlpack_py_request *request, const dlpack_py_want *want,
                           dlpack_py_view *v)
{
    dlpack_py_want device_want = want != NULL ? *want : dlpack_py_want_any();
    dlpack_py_error error;
    int result;

    if (want == NULL)
        device_want.alignment = 1;
    if (device_want.device == 0)
        device_want.device = request->has_device ? (int32_t)request->device.device_type : DLPACK_DEVICE_API_TYPE;
    dlp_view_clear(v);
    if (!request->has_device || request->device.device_type != kDLCPU) {
        request->stream.kind = DLPACK_PY_STREAM_HANDLE;
        request->stream.handle = stream;
        if (dlp_check_stream(dlp_make_device(DLPACK_DEVICE_API_TYPE, 0), &request->stream, &error) < 0)
            return dlpack_py_raise(&error);
        if ((device_want.options & DLPACK_PY_WANT_NOTHING_PENDING) != 0)
            request->stream.kind = DLPACK_PY_STREAM_NO_SYNC;
    }
    if (dlp_check_want(&device_want, &error) < 0)
        return dlp_raise_named(&device_want, &error);
    if (request->has_device && device_want.device > 0 && device_want.device != (int32_t)request->device.device_type) {
        (void)dlp_refuse_device(request->device, &device_want, &error);
        return dlp_raise_named(&device_want, &error);
    }
    (void)dlpack_device_collect();
    if ((device_want.options & DLPACK_PY_WANT_ARRAY_INTERFACE_TOO) != 0 &&
        (result = dlp_device_take_interface(obj, request, &device_want, v)) <= 0)
        return result;
    return dlp_device_consume_on_stream(obj, request, &device_want, v);
}

/* Take the tensor that obj offers, for work on a stream.
 *
 * stream   the consumer's, as it crosses the protocol: never 0 on CUDA, never 1 or 2 on ROCm (S2, S3). It is ordered
 *          after the producer's work, by the producer (__dlpack__) or here (by an exchange table). The host waits only
 *          for pinned memory: PyTorch 2.13 refuses a stream for it
 * want     the requirements, with a device of 0 for memory of the device; NULL: any such tensor.
 *          DLPACK_PY_WANT_NOTHING_PENDING: no order is asked for, a producer of device memory gets stream=-1, and the
 *          stream may capture. DLPACK_PY_WANT_ARRAY_INTERFACE_TOO: also __cuda_array_interface__, by the header of that
 *          name
 *
 * Returns as dlpack_py_consume, and -1 with RuntimeError for an error of the runtime. A raw capsule is taken without an
 * order.
 */
static inline DLP_MUST_CHECK int
dlpack_device_consume(PyObject *obj, uintptr_t stream, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_request request;
    memset(&request, 0, sizeof(request));
    return dlp_device_consume_request(obj, stream, &request, want, v);
}

/* Reads the name of a device, such as "cpu", "cuda" or "cuda:1". Returns 0, or -1. */
DLP_COLD int
dlp_device_parse_name(const char *text, DLDevice *device)
{
    const char *colon = strchr(text, ':'), *name;
    const long id = colon == NULL ? 0 : strtol(colon + 1, NULL, 10);
    char exact[DLPACK_PY_TEXT_SIZE]; /* the name and id that were read, as text */
    int32_t type;

    for (type = 1; type < 64; type++) { /* DLDeviceType has fewer */
        name = dlp_name_of_device(type);
        snprintf(exact, sizeof(exact), colon == NULL ? "%s" : "%s:%ld", name == NULL ? "-" : name, id);
        if (name != NULL && id >= 0 && id <= INT32_MAX && strcmp(text, exact) == 0) {
            *device = dlp_make_device(type, (int32_t)id);
            return 0;
        }
    }
    return -1;
}

/* The first half of a library's from_dlpack(x, /, *, device=None, copy=None): dlpack_cuda_from_dlpack and
 * dlpack_rocm_from_dlpack. device may be a name, such as "cuda:1". With device="cpu" the data is ready on the CPU. */
static inline DLP_MUST_CHECK int
dlpack_device_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, uintptr_t stream,
                          const dlpack_py_want *want, dlpack_py_view *v)
{
    PyObject *values[2] = {NULL, NULL}; /* copy, device */
    dlpack_py_request request;
    const char *text;
    Py_ssize_t length;
    int is_name;

    dlp_view_clear(v);
    if (dlp_match_keywords("from_dlpack", 1, DLP_STR_COPY, 2, args, nargs, kwnames, values) < 0)
        return -1;
    is_name = values[1] != NULL && PyUnicode_Check(values[1]);
    if (dlp_parse_device_and_copy(is_name ? NULL : values[1], values[0], &request) < 0)
        return -1;
    if (is_name) {
        text = PyUnicode_AsUTF8AndSize(values[1], &length);
        if (text == NULL || strlen(text) != (size_t)length || dlp_device_parse_name(text, &request.device) < 0)
            return dlp_raise_value(PyExc_ValueError, "device is %.200U, a name such as 'cpu' or 'cuda:1' was wanted",
                                   values[1]);
        request.has_device = 1;
    }
    return dlp_device_consume_request(args[0], stream, &request, want, v);
}

#endif /* DLPACK_DEVICE_PROTOCOL_LAYER */

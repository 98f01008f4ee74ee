/* dlpack_device.h - streams, graph captures and copies of devices, for dlpack_py.h
 * Copyright (c) 2026 the dlpack_py authors
 * SPDX-License-Identifier: MIT
 * The full licence stands at the end of dlpack_py.h.
 *
 * dlpack_cuda.h and dlpack_rocm.h include this file: it has what they share, over the functions of a runtime. Include
 * it alone only for a runtime of your own: fill a dlpack_device_runtime, and DLPACK_DEVICE_OPERATIONS makes the
 * dlpack_py_device of it that a dlpack_py_offer points to. With DLPACK_PY_NO_PYTHON it ends after section 3.
 */

/* Contents
 *
 *   1 The functions of a runtime
 *   2 The order of streams
 *   3 Copies to the host
 *   4 Copies on a device
 *   5 The operations of a device
 *   6 Letting go behind queued work
 *   7 Consuming on a stream
 */

#include "dlpack_py.h"

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wold-style-cast"
#  pragma GCC diagnostic ignored "-Wzero-as-null-pointer-constant"
#  ifndef __clang__
#    pragma GCC diagnostic ignored "-Wuseless-cast"
#  endif
#endif

#ifndef DLPACK_DEVICE_RUNTIME_LAYER
#define DLPACK_DEVICE_RUNTIME_LAYER

/* ---- 1 The functions of a runtime --------------------------------------- */

#define DLPACK_DEVICE_IMPL_EVENT_DEVICES 32
#define DLPACK_DEVICE_IMPL_SPARE_EVENTS 64 /* that are kept of tensors that waited */

/* A tensor that was let go of while work of the consumer's is queued, and the event
 * behind that work (section 6). Those of a stream and an interpreter are a queue, of which
 * the first leads to the next queue and to the last of its own. */
typedef struct dlpack_device_impl_waiting {
    struct dlpack_device_impl_waiting *next, *last, *next_queue;
    void *event;
    dlpack_py_work_stream stream; /* that the event was recorded on, and is of the device of */
    int64_t interpreter;          /* in which its deleter may run; -1: any */
    void *managed;
    int32_t form;
} dlpack_device_impl_waiting;

/* The events that a file keeps: one for each device, and one for its graph captures. All
 * zero is none. A wait concerns the record before it, so one event does for all streams,
 * if nobody comes between the two. */
typedef struct dlpack_device_events {
    struct {
        dlpack_py_impl_word lock; /* for the length of a record and a wait */
        void *event[2];
    } of[DLPACK_DEVICE_IMPL_EVENT_DEVICES];
    dlpack_py_impl_word lock;          /* for what follows: the process that has it, or 0 */
    dlpack_py_impl_word collecting;    /* the process of which a thread takes out what is done, or 0 */
    dlpack_py_impl_word waiting_count; /* of the queues and of what is done */
    dlpack_device_impl_waiting *queues;
    dlpack_device_impl_waiting *done, *done_last; /* whose deleters are yet to run */
    dlpack_device_impl_waiting *spare;            /* with an event, to be used again */
    int32_t spare_count;
} dlpack_device_events;

#define DLPACK_DEVICE_CAPTURE_RELAXED 2 /* as CUDA and HIP number it */

/* A kind of devices, and the functions of its runtime. dlpack_cuda.h and dlpack_rocm.h have such a table each; a table
 * for another kind of devices is filled in the same way, whole.
 *
 * Functions that return int return 0, or -1 with *error filled: the runtime's name of the
 * error and its text, which is not left for the next one to ask for it (S9). None needs a
 * thread state; none but synchronize, free_now and a copy to the host makes it wait. */
typedef struct dlpack_device_runtime {
    int32_t type;             /* its DLDeviceType */
    int32_t managed_type;     /* likewise of memory that it shares with the host; 0: none */
    uintptr_t default_stream; /* what stream=None stands for (S2, S3): all blocking streams wait for it */
    uintptr_t last_relative;  /* the thread's default stream, or the default one; up to it handles mean streams of */
                              /* the current device */
    dlpack_device_events *events;

    int (*get_device)(int32_t *id, dlpack_py_error *error);
    int (*set_device)(int32_t id, dlpack_py_error *error);
    int (*is_capturing)(uintptr_t stream, int *capturing, dlpack_py_error *error); /* BufferError if it is unusable */
    int (*get_capture)(uintptr_t stream, uint64_t *id, dlpack_py_error *error);    /* which one, of one that is */
    /* The calling thread's, for what it was: questions and waits are legal in the mode
     * DLPACK_DEVICE_CAPTURE_RELAXED while other threads capture. */
    int (*exchange_capture_mode)(int *mode, dlpack_py_error *error);
    int (*is_done)(uintptr_t stream, int *done, dlpack_py_error *error);
    int (*synchronize)(uintptr_t stream, dlpack_py_error *error);
    int (*event_create)(void **event, dlpack_py_error *error); /* on the current device */
    void (*event_destroy)(void *event);
    /* 1 where the event is of another context than the stream, or of none any more. */
    int (*event_record)(void *event, uintptr_t stream, dlpack_py_error *error);
    /* Done too, besides the error, where the event's context is lost, and its work with it. */
    int (*event_is_done)(void *event, int *done, dlpack_py_error *error);
    int (*wait)(uintptr_t stream, void *event, dlpack_py_error *error);
    int (*allocate)(void **data, size_t size, uintptr_t stream, dlpack_py_error *error);
    int (*free_async)(void *data, uintptr_t stream, dlpack_py_error *error); /* behind what is queued there */
    int (*free_now)(void *data, dlpack_py_error *error);
    /* Rows of width bytes, pitch bytes apart, to and from any memory, queued on the stream. */
    int (*copy)(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width, size_t rows,
                uintptr_t stream, dlpack_py_error *error);
} dlpack_device_runtime;

/* ---- 2 The order of streams --------------------------------------------- */

/* A thread's current device, as something has to be done on others. All -1 at first. */
typedef struct dlpack_device_impl_visit {
    int32_t home; /* what was current; -1: nobody asked yet */
    int32_t here;
} dlpack_device_impl_visit;

/* Makes a device current. */
static inline int
dlpack_device_impl_visit_device(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit, int32_t id,
                                dlpack_py_error *error)
{
    if (visit->home < 0) {
        if (device->get_device(&visit->home, error) < 0) {
            visit->home = -1;
            return -1;
        }
        visit->here = visit->home;
    }
    if (id == DLPACK_PY_CURRENT_DEVICE)
        id = visit->home;
    if (id != visit->here && device->set_device(id, error) < 0)
        return -1;
    visit->here = id;
    return 0;
}

/* Makes a stream's handle mean that stream. Most do anyway. */
static inline int
dlpack_device_impl_visit_stream(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                dlpack_py_work_stream stream, dlpack_py_error *error)
{
    return stream.handle > device->last_relative
               ? 0
               : dlpack_device_impl_visit_device(device, visit, stream.device_id, error);
}

/* Makes current what was (S5), or the runtime does not let us. Returns failed, or -1; the
 * first error is the one that counts. */
static inline int
dlpack_device_impl_visit_end(const dlpack_device_runtime *device, const dlpack_device_impl_visit *visit, int failed,
                             dlpack_py_error *error)
{
    dlpack_py_error another;
    if (visit->here == visit->home)
        return failed;
    if (device->set_device(visit->home, failed ? &another : error) < 0 && !failed)
        failed = -1;
    return failed;
}

static inline int
dlpack_device_impl_same_stream(const dlpack_device_runtime *device, dlpack_py_work_stream a, dlpack_py_work_stream b)
{
    return a.handle == b.handle && (a.handle > device->last_relative || a.device_id == b.device_id);
}

/* A new event on a stream's device. */
static inline int
dlpack_device_impl_event_make(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                              dlpack_py_work_stream stream, void **event, dlpack_py_error *error)
{
    return dlpack_device_impl_visit_device(device, visit, stream.device_id, error) < 0
               ? -1
               : device->event_create(event, error);
}

/* Records the event that is kept, or one that takes its place. */
static inline int
dlpack_device_impl_record(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                          dlpack_py_work_stream stream, void **event, dlpack_py_error *error)
{
    void *fresh = NULL;
    int failed;

    if (*event == NULL && dlpack_device_impl_event_make(device, visit, stream, event, error) < 0)
        return -1;
    failed = device->event_record(*event, stream.handle, error);
    if (failed <= 0)
        return failed;
    /* It is of a context that was reset, or the stream is of one that the author made. */
    if (dlpack_device_impl_event_make(device, visit, stream, &fresh, error) < 0)
        return -1;
    failed = device->event_record(fresh, stream.handle, error);
    device->event_destroy(failed ? fresh : *event);
    if (failed)
        return -1;
    *event = fresh;
    return 0;
}

/* Gives a stream of the current device that device's number. */
static inline int
dlpack_device_impl_name_device(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                               dlpack_py_work_stream *stream, dlpack_py_error *error)
{
    if (stream->device_id != DLPACK_PY_CURRENT_DEVICE)
        return 0;
    if (visit->home < 0 && dlpack_device_impl_visit_device(device, visit, DLPACK_PY_CURRENT_DEVICE, error) < 0)
        return -1;
    stream->device_id = visit->home;
    return 0;
}

static inline void
dlpack_device_impl_event_lock(dlpack_py_impl_word *lock)
{
    while (DLPACK_PY_IMPL_SWAP(lock, 1) != 0)
        continue; /* held for a record and a wait, which only queue something, as a rule */
}

/* Orders by an event: recorded on one stream, waited for on the other. */
static inline int
dlpack_device_impl_order_by_event(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                  dlpack_py_work_stream before, dlpack_py_work_stream after, int in_capture,
                                  dlpack_py_error *error)
{
    void **event, *fresh = NULL;
    dlpack_py_impl_word *lock;
    size_t slot;
    int failed;

    if (dlpack_device_impl_name_device(device, visit, &before, error) < 0 ||
        dlpack_device_impl_visit_stream(device, visit, before, error) < 0)
        return -1;
    slot = (size_t)before.device_id % DLPACK_DEVICE_IMPL_EVENT_DEVICES;
    lock = &device->events->of[slot].lock;
    event = &device->events->of[slot].event[in_capture != 0];
    dlpack_device_impl_event_lock(lock);
    if (*event == NULL) { /* made without the lock: the first one of a device takes its time */
        DLPACK_PY_IMPL_STORE(lock, 0);
        if (dlpack_device_impl_event_make(device, visit, before, &fresh, error) < 0)
            return -1;
        dlpack_device_impl_event_lock(lock);
        if (*event == NULL) {
            *event = fresh;
            fresh = NULL;
        }
    }
    failed = dlpack_device_impl_record(device, visit, before, event, error) < 0 ||
             dlpack_device_impl_visit_stream(device, visit, after, error) < 0 ||
             device->wait(after.handle, *event, error) < 0;
    DLPACK_PY_IMPL_STORE(lock, 0);
    if (fresh != NULL) /* another thread was first */
        device->event_destroy(fresh);
    return failed ? -1 : 0;
}

/* Which of the streams that are to be ordered capture a graph. All zero at first. */
typedef struct dlpack_device_impl_captures {
    uint64_t before; /* bit i: the ith of those before */
    int after;
    int asked; /* the later stream was */
} dlpack_device_impl_captures;

static inline int
dlpack_device_impl_ask_capture(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                               dlpack_py_work_stream stream, int *capturing, dlpack_py_error *error)
{
    return dlpack_device_impl_visit_stream(device, visit, stream, error) < 0
               ? -1
               : device->is_capturing(stream.handle, capturing, error);
}

/* Asks those that differ from the later one, and that one if there are any. In a capture
 * the default stream is not asked: it cannot be waited for there. */
static inline int
dlpack_device_impl_ask_captures(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                const dlpack_py_work_stream *before, size_t count, dlpack_py_work_stream after,
                                dlpack_device_impl_captures *captures, dlpack_py_error *error)
{
    size_t i;
    int one;

    if (count > DLPACK_PY_MAX_PENDING)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "work is pending on %zu streams, at most %d can be",
                                   count, DLPACK_PY_MAX_PENDING);
    for (i = 0; i < count; i++) {
        if (dlpack_device_impl_same_stream(device, before[i], after))
            continue;
        if (!captures->asked && dlpack_device_impl_ask_capture(device, visit, after, &captures->after, error) < 0)
            return -1;
        captures->asked = 1;
        if (captures->after && before[i].handle == device->default_stream)
            continue;
        if (dlpack_device_impl_ask_capture(device, visit, before[i], &one, error) < 0)
            return -1;
        captures->before |= (uint64_t)(one != 0) << i;
    }
    return 0;
}

/* Around what asks or waits. Returns failed, or -1; the first error is the one that counts. */
static inline int
dlpack_device_impl_relax(const dlpack_device_runtime *device, int *mode, dlpack_py_error *error)
{
    *mode = DLPACK_DEVICE_CAPTURE_RELAXED;
    return device->exchange_capture_mode(mode, error);
}

static inline int
dlpack_device_impl_unrelax(const dlpack_device_runtime *device, int *mode, int failed, dlpack_py_error *error)
{
    dlpack_py_error another;
    return device->exchange_capture_mode(mode, failed ? &another : error) < 0 ? -1 : failed;
}

/* Is a stream's work outside of a capture done, so that one in it has nothing to wait for? */
static inline int
dlpack_device_impl_check_outside(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                 dlpack_py_work_stream stream, dlpack_py_error *error)
{
    int mode, done = 0;

    if (stream.handle == device->default_stream)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "the later stream (a consumer's) captures a graph, in which it cannot wait for the "
                                   "default stream: finish that work before the capture, and ask with stream=-1");
    if (dlpack_device_impl_visit_stream(device, visit, stream, error) < 0 ||
        dlpack_device_impl_relax(device, &mode, error) < 0 ||
        dlpack_device_impl_unrelax(device, &mode, device->is_done(stream.handle, &done, error), error) < 0)
        return -1;
    return done ? 0
                : dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                      "the later stream (a consumer's) captures a graph, or joins one, in which it "
                                      "cannot wait for work outside of it: finish that before the capture, or ask "
                                      "with stream=-1");
}

/* What is to be ordered in a capture has to be in that one, or be done (S6). Nothing is
 * queued before this is known, which could not be taken back. */
static inline int
dlpack_device_impl_check_captures(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                  const dlpack_py_work_stream *before, size_t count, dlpack_py_work_stream after,
                                  const dlpack_device_impl_captures *captures, dlpack_py_error *error)
{
    const int compare = captures->after || (captures->before & (captures->before - 1)) != 0;
    uint64_t first = 0, one;
    int known = 0;
    size_t i;

    if (after.handle == device->default_stream)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "the earlier stream (a producer's) captures a graph, which the default stream "
                                   "cannot join: ask with another stream, or with stream=-1");
    for (i = 0; i < count; i++) {
        if (dlpack_device_impl_same_stream(device, before[i], after))
            continue;
        if ((captures->before >> i & 1) == 0) {
            if (dlpack_device_impl_check_outside(device, visit, before[i], error) < 0)
                return -1;
            continue;
        }
        if (!compare)
            continue;
        if (dlpack_device_impl_visit_stream(device, visit, before[i], error) < 0 ||
            device->get_capture(before[i].handle, &one, error) < 0)
            return -1;
        if (!known && captures->after &&
            (dlpack_device_impl_visit_stream(device, visit, after, error) < 0 ||
             device->get_capture(after.handle, &first, error) < 0))
            return -1;
        if (!known && !captures->after)
            first = one;
        known = 1;
        if (one != first)
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                       "the streams of producer and consumer capture different graphs: neither can "
                                       "wait for the other");
    }
    return 0;
}

/* Queues the order that was found to be possible. Streams that are outside of a capture
 * are done by now. */
static inline int
dlpack_device_impl_queue_order(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                               const dlpack_py_work_stream *before, size_t count, dlpack_py_work_stream after,
                               const dlpack_device_impl_captures *captures, dlpack_py_error *error)
{
    const int joins = captures->after || captures->before != 0;
    size_t i;

    for (i = 0; i < count; i++) {
        const int captured = (int)(captures->before >> i & 1);
        if (!dlpack_device_impl_same_stream(device, before[i], after) && captured == joins &&
            dlpack_device_impl_order_by_event(device, visit, before[i], after, captured, error) < 0)
            return -1;
    }
    return 0;
}

/* Put what will be queued on a stream after all that was queued on others (S1).
 *
 * device   whose streams they are
 * before   of these streams, count of them, DLPACK_PY_MAX_PENDING at most
 * after    of this one
 *
 * Returns 0, or -1 with BufferError (a graph capture forbids it, and is not spoiled by
 * having been asked) or RuntimeError (the runtime's own error). The host does not wait,
 * and the current device is what it was. Nothing is asked of the runtime for streams that
 * are the same (S4). Where streams of before capture a graph, the later one joins the
 * capture by this. Needs no thread state, and may be called on any number of threads.
 */
static inline int
dlpack_device_order(const dlpack_device_runtime *device, const dlpack_py_work_stream *before, size_t count,
                    dlpack_py_work_stream after, dlpack_py_error *error)
{
    dlpack_device_impl_visit visit = {-1, -1};
    dlpack_device_impl_captures captures = {0, 0, 0};
    int failed;

    failed = dlpack_device_impl_ask_captures(device, &visit, before, count, after, &captures, error) < 0 ||
             ((captures.after || captures.before != 0) &&
              dlpack_device_impl_check_captures(device, &visit, before, count, after, &captures, error) < 0) ||
             dlpack_device_impl_queue_order(device, &visit, before, count, after, &captures, error) < 0;
    return dlpack_device_impl_visit_end(device, &visit, failed ? -1 : 0, error);
}

/* The host waits for a stream that does not capture, whoever else does. */
static inline int
dlpack_device_impl_host_wait(const dlpack_device_runtime *device, uintptr_t stream, dlpack_py_error *error)
{
    int mode;
    if (dlpack_device_impl_relax(device, &mode, error) < 0)
        return -1;
    return dlpack_device_impl_unrelax(device, &mode, device->synchronize(stream, error), error);
}

/* A stream for which the host will wait: no capture (S6). */
static inline int
dlpack_device_impl_check_wait(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                              dlpack_py_work_stream stream, dlpack_py_error *error)
{
    int capturing = 0;
    if (dlpack_device_impl_ask_capture(device, visit, stream, &capturing, error) < 0)
        return -1;
    return capturing ? dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                           "the stream (a producer's) captures a graph: the host cannot wait for it")
                     : 0;
}

/* Make the host wait until all is done that was queued on streams (S10). Returns 0, or -1
 * with BufferError where one of them captures a graph, or RuntimeError. Needs no thread
 * state; who has one lets go of it. */
static inline int
dlpack_device_synchronize(const dlpack_device_runtime *device, const dlpack_py_work_stream *streams, size_t count,
                          dlpack_py_error *error)
{
    dlpack_device_impl_visit visit = {-1, -1};
    int failed = 0;
    size_t i;

    for (i = 0; i < count && !failed; i++)
        failed = dlpack_device_impl_check_wait(device, &visit, streams[i], error) < 0 ||
                 dlpack_device_impl_host_wait(device, streams[i].handle, error) < 0;
    return dlpack_device_impl_visit_end(device, &visit, failed ? -1 : 0, error);
}

/* Give the kept events back to the runtime, while nobody orders streams by them, consumes
 * or lets go. They are made again when they are needed. What waits to be released still
 * does. */
static inline void
dlpack_device_free_events(const dlpack_device_runtime *device)
{
    dlpack_device_events *events = device->events;
    dlpack_device_impl_waiting *one;
    int i, k;

    for (i = 0; i < DLPACK_DEVICE_IMPL_EVENT_DEVICES; i++) {
        for (k = 0; k < 2; k++) {
            if (events->of[i].event[k] != NULL)
                device->event_destroy(events->of[i].event[k]);
            events->of[i].event[k] = NULL;
        }
    }
    while ((one = events->spare) != NULL) {
        events->spare = one->next;
        device->event_destroy(one->event);
        DLPACK_PY_FREE(one);
    }
    events->spare_count = 0;
}

/* ---- 3 Copies to the host ----------------------------------------------- */

/* How a tensor is copied to another of its dtype and shape: in calls for rows of what is
 * compact on both sides, as many as the outer dimensions have indices. */
typedef struct dlpack_device_impl_rows {
    int64_t run, rows;            /* bytes of a row; rows in a call */
    int64_t pitch_to, pitch_from; /* bytes from one of them to the next */
    int64_t calls;
    int32_t outer; /* dimensions */
} dlpack_device_impl_rows;

static inline dlpack_device_impl_rows
dlpack_device_impl_rows_of(const DLTensor *t, const int64_t *step_to, const int64_t *step_from, int64_t size)
{
    dlpack_device_impl_rows r = {1, 1, 0, 0, 1, 0};
    int32_t i, k;

    for (i = t->ndim; i > 0; i--) {
        if (t->shape[i - 1] != 1 && (step_to[i - 1] != r.run || step_from[i - 1] != r.run))
            break;
        r.run *= t->shape[i - 1];
    }
    r.run *= size;
    /* The next dimension in one call, where its rows lie apart and forwards; a pitch has 31 bits. */
    if (i > 0 && dlpack_py_impl_multiply(step_to[i - 1], size, &r.pitch_to) == 0 &&
        dlpack_py_impl_multiply(step_from[i - 1], size, &r.pitch_from) == 0 && r.pitch_to >= r.run &&
        r.pitch_from >= r.run && r.pitch_to <= INT32_MAX && r.pitch_from <= INT32_MAX)
        r.rows = t->shape[--i];
    if (r.rows == 1)
        r.pitch_to = r.pitch_from = r.run;
    for (k = 0; k < i; k++)
        r.calls *= t->shape[k]; /* no more than there are elements */
    r.outer = i;
    return r;
}

/* Queues a copy of whole bytes between tensors of one dtype and shape. They have elements,
 * and share no memory. */
static inline int
dlpack_device_impl_copy_rows(const dlpack_device_runtime *device, const DLTensor *dst, const DLTensor *src,
                             int64_t size, uintptr_t stream, dlpack_py_error *error)
{
    int64_t room_to[DLPACK_PY_MAX_NDIM], room_from[DLPACK_PY_MAX_NDIM], index[DLPACK_PY_MAX_NDIM] = {0};
    const int64_t *step_to = dlpack_py_impl_strides(dst, room_to), *step_from = dlpack_py_impl_strides(src, room_from);
    const dlpack_device_impl_rows r = dlpack_device_impl_rows_of(src, step_to, step_from, size);
    char *to = (char *)dlpack_py_first(dst);
    const char *from = (const char *)dlpack_py_first(src);
    int64_t k;

    for (;;) {
        if (device->copy(to, (size_t)r.pitch_to, from, (size_t)r.pitch_from, (size_t)r.run, (size_t)r.rows, stream,
                         error) < 0)
            return -1;
        for (k = r.outer - 1; k >= 0; k--) { /* the outer dimensions as an odometer counts */
            if (++index[k] < src->shape[k]) {
                to += step_to[k] * size;
                from += step_from[k] * size;
                break;
            }
            to -= (src->shape[k] - 1) * step_to[k] * size;
            from -= (src->shape[k] - 1) * step_from[k] * size;
            index[k] = 0;
        }
        if (k < 0)
            return 0;
    }
}

/* Are both of the same layout, without gaps? */
static inline int
dlpack_device_impl_copies_as_one(const DLTensor *dst, const DLTensor *src)
{
    return dlpack_py_is_contiguous(src, 'C') ||
           (src->strides != NULL && dst->strides != NULL && dlpack_py_is_contiguous(src, 'K') &&
            memcmp(src->strides, dst->strides, (size_t)src->ndim * sizeof(int64_t)) == 0);
}

/* Queues a copy to compact memory, of whole bytes where that is not as one. */
static inline int
dlpack_device_impl_copy_queued(const dlpack_device_runtime *device, const DLTensor *dst, const DLTensor *src,
                               uint64_t flags, uintptr_t stream, dlpack_py_error *error)
{
    const size_t bytes = (size_t)dlpack_py_nbytes(src, flags);
    return dlpack_device_impl_copies_as_one(dst, src)
               ? device->copy(dlpack_py_first(dst), bytes, dlpack_py_first(src), bytes, bytes, 1, stream, error)
               : dlpack_device_impl_copy_rows(device, dst, src, dlpack_py_impl_item_bits(src->dtype, flags) / 8, stream,
                                              error);
}

static inline int64_t
dlpack_device_impl_count_calls(const DLTensor *dst, const DLTensor *src, int64_t size)
{
    int64_t room_to[DLPACK_PY_MAX_NDIM], room_from[DLPACK_PY_MAX_NDIM];
    return dlpack_device_impl_rows_of(src, dlpack_py_impl_strides(dst, room_to), dlpack_py_impl_strides(src, room_from),
                                      size)
        .calls;
}

#define DLPACK_DEVICE_IMPL_MOST_CALLS 4096 /* that a copy on a device queues */

/* What a device's runtime does not copy, or only in calls without number. */
static inline int
dlpack_device_impl_check_scattered(const DLTensor *dst, const DLTensor *src, uint64_t flags, dlpack_py_error *error)
{
    const int64_t bits = dlpack_py_impl_item_bits(src->dtype, flags);
    int64_t calls;

    if (dlpack_device_impl_copies_as_one(dst, src))
        return 0;
    if (bits % 8 != 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "elements of %" PRId64 " bits are copied on a device only where they are compact",
                                   bits);
    calls = dlpack_device_impl_count_calls(dst, src, bits / 8);
    if (calls > DLPACK_DEVICE_IMPL_MOST_CALLS)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "a copy on the device would take %" PRId64
                                   " calls, so scattered is the data, and %d "
                                   "are made at most: ask with dl_device=(1, 0)",
                                   calls, DLPACK_DEVICE_IMPL_MOST_CALLS);
    return 0;
}

#define DLPACK_DEVICE_COPY_UNFINISHED (-2) /* the destination may still be written to: it is to be leaked */

#define DLPACK_DEVICE_IMPL_BYTES_OF_A_CALL 16384 /* that come to the host in the time that a call takes, about */

/* Is it cheaper to copy all that lies between the elements, too? */
static inline int
dlpack_device_impl_is_staged(const DLTensor *dst, const DLTensor *src, int64_t bits, int64_t bytes, int64_t extent)
{
    if (dlpack_py_is_contiguous(src, 'C'))
        return 0;
    return bits % 8 != 0 || extent / 4 <= bytes ||
           extent / DLPACK_DEVICE_IMPL_BYTES_OF_A_CALL < dlpack_device_impl_count_calls(dst, src, bits / 8) - 1;
}

/* Copies to the host by way of a stream; ready when this returns. What is staged is
 * sorted out by the host; without the memory for that, it is copied row by row. */
static inline int
dlpack_device_impl_copy_by_stream(const dlpack_device_runtime *device, const DLTensor *dst, const DLTensor *src,
                                  uint64_t flags, uintptr_t stream, dlpack_py_error *error)
{
    const int64_t bits = dlpack_py_impl_item_bits(src->dtype, flags), bytes = dlpack_py_nbytes(src, flags);
    DLTensor staged = *src;
    dlpack_py_error another;
    char *stage = NULL;
    int64_t lowest, highest;
    int failed;

    (void)dlpack_py_impl_extent(src, flags, &lowest, &highest); /* src is valid */
    if (dlpack_device_impl_is_staged(dst, src, bits, bytes, highest - lowest)) {
        stage = (char *)DLPACK_PY_MALLOC((size_t)(highest - lowest));
        if (stage == NULL && bits % 8 != 0)
            return dlpack_py_impl_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for a copy of %" PRId64 " bytes",
                                       highest - lowest);
    }
    if (stage != NULL)
        failed = device->copy(stage, (size_t)(highest - lowest), (const char *)dlpack_py_first(src) + lowest,
                              (size_t)(highest - lowest), (size_t)(highest - lowest), 1, stream, error);
    else
        failed = dlpack_device_impl_copy_queued(device, dst, src, flags, stream, error);
    /* In any case, for the runtime may still write there. Where this fails, nobody knows until when. */
    if (dlpack_device_impl_host_wait(device, stream, failed ? &another : error) < 0)
        return DLPACK_DEVICE_COPY_UNFINISHED;
    if (stage != NULL && !failed) {
        staged.data = stage - lowest;
        staged.byte_offset = 0;
        staged.device = dlpack_py_impl_device(kDLCPU, 0);
        failed = dlpack_py_copy(dst, &staged, flags, error);
    }
    DLPACK_PY_FREE(stage);
    return failed;
}

/* The default stream of the device that a tensor is on. */
static inline dlpack_py_work_stream
dlpack_device_impl_default_of(const dlpack_device_runtime *device, const DLTensor *t)
{
    dlpack_py_work_stream stream;
    stream.handle = device->default_stream;
    stream.device_id = t->device.device_id;
    return stream;
}

/* Copy the elements of a tensor on a device to the host, whatever their strides. What is
 * scattered may come with all that lies between.
 *
 * dst      compact row-major memory of the host, of the dtype and shape of src; it is
 *          ready when this returns
 * before   streams on which src is still worked on, count of them; the copy is queued on
 *          the first, or else on the device's default stream
 *
 * Returns 0, or -1 with BufferError where a stream captures a graph, MemoryError or
 * RuntimeError; DLPACK_DEVICE_COPY_UNFINISHED with the error of the wait. Needs no thread
 * state; who has one lets go of it.
 */
static inline int
dlpack_device_copy_to_host(const dlpack_device_runtime *device, const DLTensor *dst, const DLTensor *src,
                           uint64_t flags, const dlpack_py_work_stream *before, size_t count, dlpack_py_error *error)
{
    const dlpack_py_work_stream stream = count > 0 ? before[0] : dlpack_device_impl_default_of(device, src);
    dlpack_device_impl_visit visit = {-1, -1};
    int failed;

    if (dlpack_py_is_empty(src))
        return 0;
    if (count > 1 && dlpack_device_synchronize(device, before + 1, count - 1, error) < 0) /* joins no capture */
        return -1;
    failed = dlpack_device_impl_check_wait(device, &visit, stream, error);
    if (!failed)
        failed = dlpack_device_impl_copy_by_stream(device, dst, src, flags, stream.handle, error);
    return dlpack_device_impl_visit_end(device, &visit, failed, error);
}

#endif /* DLPACK_DEVICE_RUNTIME_LAYER */

#if defined(DLPACK_PY_PROTOCOL_LAYER) && !defined(DLPACK_DEVICE_PROTOCOL_LAYER)
#define DLPACK_DEVICE_PROTOCOL_LAYER

/* ---- 4 Copies on a device ----------------------------------------------- */

/* What a copy on a device hands to its deleter. */
typedef struct dlpack_device_impl_device_memory {
    const dlpack_device_runtime *device;
    void *data;
    void *event; /* behind the copy; NULL: it is done */
    int32_t id;
} dlpack_device_impl_device_memory;

/* Frees at once, if the copy is done. */
static inline void
dlpack_device_impl_free_now(const dlpack_device_impl_device_memory *memory)
{
    const dlpack_device_runtime *device = memory->device;
    dlpack_py_error error;
    int mode, done = 1;

    if (dlpack_device_impl_relax(device, &mode, &error) < 0)
        return;
    if (memory->event != NULL)
        (void)device->event_is_done(memory->event, &done, &error);
    if (done)
        (void)device->free_now(memory->data, &error);
    (void)dlpack_device_impl_unrelax(device, &mode, 0, &error);
}

/* Frees behind the copy, without waiting. The stream that it was made on may be gone: so
 * on the default stream, which comes after what is queued on all but non-blocking ones;
 * while a capture forbids that, on the thread's; or else at once if the copy is done, and
 * if not the memory leaks. */
static inline void
dlpack_device_impl_free_behind(const dlpack_device_impl_device_memory *memory)
{
    const dlpack_device_runtime *device = memory->device;
    const uintptr_t streams[2] = {device->default_stream, device->last_relative};
    dlpack_device_impl_visit visit = {-1, -1};
    dlpack_py_error error;
    int i, freed = 0, captures;

    if (dlpack_device_impl_visit_device(device, &visit, memory->id, &error) < 0)
        return;
    for (i = 0; i < 2 && !freed; i++)
        freed = device->is_capturing(streams[i], &captures, &error) == 0 && !captures &&
                (memory->event == NULL || device->wait(streams[i], memory->event, &error) == 0) &&
                device->free_async(memory->data, streams[i], &error) == 0;
    if (!freed)
        dlpack_device_impl_free_now(memory);
    (void)dlpack_device_impl_visit_end(device, &visit, 0, &error);
}

static inline void
dlpack_device_impl_free_device_memory(void *context)
{
    dlpack_device_impl_device_memory *memory = (dlpack_device_impl_device_memory *)context;
    if (memory->data != NULL)
        dlpack_device_impl_free_behind(memory);
    if (memory->event != NULL)
        memory->device->event_destroy(memory->event);
    DLPACK_PY_FREE(memory);
}

/* The streams of a copy on a device: on which it is made, and those where work on its
 * source may be queued. Memory that a capture allocates would be the graph's. */
static inline int
dlpack_device_impl_check_no_capture(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                    const dlpack_py_work_stream *pending, size_t count, dlpack_py_work_stream stream,
                                    dlpack_py_error *error)
{
    dlpack_device_impl_captures captures = {0, 0, 1};

    if (dlpack_device_impl_ask_capture(device, visit, stream, &captures.after, error) < 0 ||
        (!captures.after &&
         dlpack_device_impl_ask_captures(device, visit, pending, count, stream, &captures, error) < 0))
        return -1;
    return captures.after || captures.before != 0
               ? dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                     "a stream captures a graph, whose memory a copy would be: copy before it")
               : 0;
}

/* Queues a copy between what is queued on the pending streams by now and what will be: it
 * is of the data as it is at this moment, and whose memory that is may free it there. */
static inline int
dlpack_device_impl_copy_between(dlpack_device_impl_device_memory *memory, dlpack_device_impl_visit *visit,
                                const DLTensor *out, const DLTensor *t, uint64_t flags,
                                const dlpack_py_work_stream *pending, size_t count, dlpack_py_work_stream stream,
                                dlpack_py_error *error)
{
    static const dlpack_device_impl_captures none = {0, 0, 0};
    const dlpack_device_runtime *device = memory->device;
    size_t i;

    if (dlpack_device_impl_queue_order(device, visit, pending, count, stream, &none, error) < 0 ||
        dlpack_device_impl_visit_device(device, visit, memory->id, error) < 0 ||
        dlpack_device_impl_copy_queued(device, out, t, flags, stream.handle, error) < 0 ||
        device->event_record(memory->event, stream.handle, error) != 0)
        return -1;
    for (i = 0; i < count; i++) {
        if (!dlpack_device_impl_same_stream(device, pending[i], stream) &&
            (dlpack_device_impl_visit_stream(device, visit, pending[i], error) < 0 ||
             device->wait(pending[i].handle, memory->event, error) < 0))
            return -1;
    }
    return 0;
}

/* Makes the event of a copy. Where the consumer's stream is on another device, *stream
 * becomes the default stream of the data's: memory is of its stream's device. Returns 1 in
 * that case. */
static inline int
dlpack_device_impl_copy_event(dlpack_device_impl_device_memory *memory, dlpack_device_impl_visit *visit,
                              const DLTensor *t, dlpack_py_work_stream *stream, dlpack_py_error *error)
{
    const dlpack_device_runtime *device = memory->device;
    int failed;

    if (dlpack_device_impl_visit_device(device, visit, memory->id, error) < 0 ||
        device->event_create(&memory->event, error) < 0)
        return -1;
    failed = device->event_record(memory->event, stream->handle, error);
    if (failed == 1)
        *stream = dlpack_device_impl_default_of(device, t);
    return failed;
}

/* Allocates for out on a stream, and queues the copy there. Where that fails, what was
 * queued comes before the event still; or memory and event leak, for nobody could tell. */
static inline int
dlpack_device_impl_fill_on_device(dlpack_device_impl_device_memory *memory, DLTensor *out, const DLTensor *t,
                                  uint64_t flags, const dlpack_py_work_stream *pending, size_t count,
                                  dlpack_py_work_stream stream, dlpack_py_error *error)
{
    const dlpack_device_runtime *device = memory->device;
    const dlpack_py_work_stream consumer = stream;
    dlpack_device_impl_visit visit = {-1, -1};
    dlpack_py_error another;
    int failed, elsewhere = 0;

    failed = dlpack_device_impl_check_no_capture(device, &visit, pending, count, stream, error) < 0 ||
             (elsewhere = dlpack_device_impl_copy_event(memory, &visit, t, &stream, error)) < 0 ||
             (elsewhere && dlpack_device_impl_check_no_capture(device, &visit, NULL, 0, stream, error) < 0) ||
             device->allocate(&memory->data, (size_t)dlpack_py_nbytes(t, flags), stream.handle, error) < 0;
    if (!failed) {
        out->data = memory->data;
        out->byte_offset = 0;
        failed = dlpack_device_impl_copy_between(memory, &visit, out, t, flags, pending, count, stream, error) < 0 ||
                 (elsewhere && device->wait(consumer.handle, memory->event, error) < 0);
        if (failed && (dlpack_device_impl_visit_device(device, &visit, memory->id, &another) < 0 ||
                       device->event_record(memory->event, stream.handle, &another) != 0))
            memory->data = memory->event = NULL;
    }
    return dlpack_device_impl_visit_end(device, &visit, failed ? -1 : 0, error);
}

/* A compact copy of t on its own device, queued on a stream (S8).
 *
 * pending, count   as in dlpack_py_offer: the copy comes after what is queued there, and
 *                  before what will be
 *
 * Otherwise the same.
 */
static inline dlpack_py_impl_export *
dlpack_device_impl_export_device_copy(const DLTensor *t, uint64_t flags, int32_t form,
                                      const dlpack_device_runtime *device, const dlpack_py_work_stream *pending,
                                      size_t count, dlpack_py_work_stream stream, dlpack_py_error *error)
{
    const uint64_t kept = flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    dlpack_device_impl_device_memory *memory = (dlpack_device_impl_device_memory *)DLPACK_PY_MALLOC(sizeof(*memory));
    dlpack_py_impl_export *e = NULL;
    DLTensor compact = *t, *out;

    if (!dlpack_py_is_contiguous(t, 'K')) /* else the order of the dimensions stays */
        compact.strides = NULL;
    if (memory != NULL)
        e = dlpack_py_impl_export_new(&compact, kept | DLPACK_PY_FLAG_IS_COPIED, form, 0, 0);
    if (e == NULL) {
        DLPACK_PY_FREE(memory);
        dlpack_py_impl_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory to describe a copy");
        return NULL;
    }
    memory->device = device;
    memory->data = NULL;
    memory->event = NULL;
    memory->id = t->device.device_id;
    e->keeper.context = memory;
    e->keeper.free_fn = dlpack_device_impl_free_device_memory;
    out = dlpack_py_impl_tensor(&e->managed, form);
    if (!dlpack_py_is_empty(t) &&
        (dlpack_device_impl_check_scattered(out, t, kept, error) < 0 ||
         dlpack_device_impl_fill_on_device(memory, out, t, kept, pending, count, stream, error) < 0)) {
        dlpack_py_impl_release_keeper(&e->keeper);
        return NULL;
    }
    return e;
}

/* ---- 5 The operations of a device --------------------------------------- */

/* The stream on which a request's work on a device is to come. */
static inline dlpack_py_work_stream
dlpack_device_impl_stream_of(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    const int managed = (int32_t)offer->tensor->device.device_type == offer->device->managed_type;
    dlpack_py_work_stream stream;
    stream.handle =
        request->stream.kind == DLPACK_PY_STREAM_HANDLE ? request->stream.handle : offer->device->default_stream;
    stream.device_id = managed ? DLPACK_PY_CURRENT_DEVICE : offer->tensor->device.device_id;
    return stream;
}

/* Is no order asked for? */
static inline int
dlpack_device_impl_asks_nothing(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    return request->stream.kind == DLPACK_PY_STREAM_NO_SYNC ||
           (request->stream.kind == DLPACK_PY_STREAM_NONE && (offer->options & DLPACK_PY_OFFER_NONE_IS_NO_SYNC) != 0 &&
            dlpack_py_impl_is_on(offer->device, offer->tensor->device));
}

/* Makes data that is exported as it is safe to be used on the consumer's stream (S1), or by
 * the host (S10). */
static inline int
dlpack_device_make_ready(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    const dlpack_device_runtime *runtime = offer->device->runtime();
    dlpack_py_work_stream pending[DLPACK_PY_MAX_PENDING], stream;
    const size_t count = offer->pending_count;
    dlpack_py_error error;
    int failed = 0;

    if (dlpack_py_is_cpu_readable(plan->device) && request->stream.kind != DLPACK_PY_STREAM_HANDLE) {
        /* Without a stream it is the host that will read. */
        if (request->stream.kind == DLPACK_PY_STREAM_NO_SYNC &&
            !(request->has_device && (int32_t)plan->device.device_type == (int32_t)kDLCPU))
            return 0;
        memcpy(pending, offer->pending, count * sizeof(*pending)); /* others may change the owner meanwhile */
        Py_BEGIN_ALLOW_THREADS
        failed = dlpack_device_synchronize(runtime, pending, count, &error);
        Py_END_ALLOW_THREADS
    }
    else if (dlpack_device_impl_asks_nothing(offer, request))
        return 0;
    else {
        stream = dlpack_device_impl_stream_of(offer, request);
        if (stream.device_id == DLPACK_PY_CURRENT_DEVICE && stream.handle <= runtime->last_relative)
            failed = runtime->get_device(&stream.device_id, &error); /* or it would never be the producer's */
        failed = failed || dlpack_device_order(runtime, offer->pending, count, stream, &error) < 0;
    }
    return failed ? dlpack_py_raise(&error) : 0;
}

/* Makes a copy on the device: on the consumer's stream, which comes after the producer's.
 * Where no order is asked for it would be too early there: on the producer's, or else on
 * the default one; and the host waits, for nobody else could. */
static inline dlpack_py_impl_export *
dlpack_device_impl_copy_for_device(const dlpack_py_offer *offer, const dlpack_py_request *request,
                                   const dlpack_py_plan *plan)
{
    const int waits = dlpack_device_impl_asks_nothing(offer, request);
    const dlpack_device_runtime *device = offer->device->runtime();
    dlpack_py_work_stream stream = dlpack_device_impl_stream_of(offer, request);
    dlpack_py_impl_export *e;
    dlpack_py_error error;
    int failed = 0;

    if (waits && offer->pending_count > 0 && offer->pending[0].device_id == offer->tensor->device.device_id)
        stream = offer->pending[0];
    e = dlpack_device_impl_export_device_copy(offer->tensor, offer->flags, plan->form, device, offer->pending,
                                              offer->pending_count, stream, &error);
    if (e != NULL && waits && !dlpack_py_is_empty(dlpack_py_impl_tensor(&e->managed, plan->form))) {
        Py_BEGIN_ALLOW_THREADS
        failed = dlpack_device_synchronize(device, &stream, 1, &error);
        Py_END_ALLOW_THREADS
    }
    if (e == NULL || failed)
        (void)dlpack_py_raise(&error);
    if (!failed)
        return e;
    dlpack_py_impl_delete(&e->managed, plan->form);
    return NULL;
}

/* What is looked at while other threads run, who may change the owner: a tensor's
 * description, and the streams where work is pending. The data stays. */
typedef struct dlpack_device_impl_snapshot {
    DLTensor tensor;
    int64_t shape[DLPACK_PY_MAX_NDIM], strides[DLPACK_PY_MAX_NDIM];
    dlpack_py_work_stream pending[DLPACK_PY_MAX_PENDING];
} dlpack_device_impl_snapshot;

static inline dlpack_py_offer
dlpack_device_impl_snapshot_take(dlpack_device_impl_snapshot *snapshot, const dlpack_py_offer *offer)
{
    const DLTensor *t = offer->tensor;
    const size_t extents = (size_t)t->ndim * sizeof(int64_t);
    dlpack_py_offer taken = *offer;

    snapshot->tensor = *t;
    if (t->ndim > 0) {
        memcpy(snapshot->shape, t->shape, extents);
        snapshot->tensor.shape = snapshot->shape;
    }
    if (t->ndim > 0 && t->strides != NULL) {
        memcpy(snapshot->strides, t->strides, extents);
        snapshot->tensor.strides = snapshot->strides;
    }
    if (offer->pending_count > 0)
        memcpy(snapshot->pending, offer->pending, offer->pending_count * sizeof(*offer->pending));
    taken.tensor = &snapshot->tensor;
    taken.pending = snapshot->pending;
    return taken;
}

/* A compact copy of device memory on the CPU. Returns NULL with *error filled. Needs no thread state. */
static inline dlpack_py_impl_export *
dlpack_device_impl_export_from_device(const dlpack_py_offer *offer, const dlpack_py_plan *plan,
                                      const dlpack_device_runtime *runtime, dlpack_py_error *error)
{
    const uint64_t kept = offer->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    dlpack_py_impl_export *e = dlpack_py_impl_copy_new(offer->tensor, offer->flags, plan->form, 'C', 0, error);
    int failed;

    if (e == NULL)
        return NULL;
    failed = dlpack_device_copy_to_host(runtime, dlpack_py_impl_tensor(&e->managed, plan->form), offer->tensor, kept,
                                        offer->pending, offer->pending_count, error);
    if (failed && failed != DLPACK_DEVICE_COPY_UNFINISHED) /* an unfinished copy leaks: it may still be written to */
        dlpack_py_impl_release_keeper(&e->keeper);
    return failed ? NULL : e;
}

/* Makes a copy on the CPU. The host waits for the pending work, without the GIL. */
static inline dlpack_py_impl_export *
dlpack_device_impl_copy_for_host(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    const dlpack_device_runtime *runtime = offer->device->runtime();
    dlpack_device_impl_snapshot snapshot;
    const dlpack_py_offer taken = dlpack_device_impl_snapshot_take(&snapshot, offer);
    dlpack_py_impl_export *e = NULL;
    dlpack_py_error error;

    Py_BEGIN_ALLOW_THREADS
    if (!dlpack_py_is_cpu_readable(taken.tensor->device))
        e = dlpack_device_impl_export_from_device(&taken, plan, runtime, &error);
    else if (dlpack_device_synchronize(runtime, taken.pending, taken.pending_count, &error) == 0) {
        e = dlpack_py_impl_copy_new(taken.tensor, taken.flags, plan->form, 'C', 0, &error);
        if (e != NULL)
            (void)dlpack_py_copy(dlpack_py_impl_tensor(&e->managed, plan->form), taken.tensor, taken.flags, NULL);
    }
    Py_END_ALLOW_THREADS
    if (e == NULL)
        (void)dlpack_py_raise(&error);
    return e;
}

/* Make a copy, on the CPU or on the device: what dlpack_py_device.copy is. */
static inline dlpack_py_impl_export *
dlpack_device_copy(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    return (int32_t)plan->device.device_type == (int32_t)kDLCPU
               ? dlpack_device_impl_copy_for_host(offer, plan)
               : dlpack_device_impl_copy_for_device(offer, request, plan);
}

/* Asks __dlpack_device__. An id that is no integer, as some libraries answer for the CPU, is 0. */
static inline int
dlpack_device_impl_ask_device(const dlpack_py_impl_producer *producer, DLDevice *device)
{
    int unbound, failed = 1;
    int32_t type = 0, id = 0;
    PyObject *method = dlpack_py_impl_find_method(producer->obj, producer->cache->names[DLPACK_PY_IMPL_DLPACK_DEVICE],
                                                  &unbound),
             *said;

    if (method == NULL)
        return -1;
    said = unbound ? PyObject_CallFunctionObjArgs(method, producer->obj, NULL)
                   : PyObject_CallFunctionObjArgs(method, NULL);
    Py_DECREF(method);
    if (said == NULL)
        return -1;
    if (PyTuple_Check(said) && PyTuple_Size(said) == 2) {
        failed = dlpack_py_impl_index(PyTuple_GetItem(said, 0), &type);
        if (failed == 0 && PyTuple_GetItem(said, 1) != Py_None)
            failed = dlpack_py_impl_index(PyTuple_GetItem(said, 1), &id);
    }
    if (failed > 0)
        dlpack_py_impl_refuse_value(PyExc_TypeError,
                                    "__dlpack_device__ returned %U, a tuple of two integers was wanted", said);
    Py_DECREF(said);
    *device = dlpack_py_impl_device(type, id);
    return failed ? -1 : 0;
}

/* Calls __dlpack__ for a consumer with a stream: asks where the data is, passes the stream only where it belongs, and
 * makes the data's device current for the call (C4, S2, S3, S5). This is dlpack_py_device.fetch. */
static inline int
dlpack_device_fetch(dlpack_py_impl_producer *producer, const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    const dlpack_device_runtime *runtime = terms->device->runtime();
    dlpack_device_impl_visit visit = {-1, -1};
    dlpack_py_request request = *terms->request;
    dlpack_py_impl_terms there = *terms;
    dlpack_py_error error;
    DLDevice where;
    int result, on_device;

    if (dlpack_device_impl_ask_device(producer, &where) < 0)
        return -1;
    on_device = dlpack_py_impl_is_on(terms->device, where);
    if (!on_device && (int32_t)where.device_type != terms->device->managed_type)
        memset(&request.stream, 0, sizeof(request.stream));
    there.request = &request;
    there.announced = &where;
    if (on_device && dlpack_device_impl_visit_device(runtime, &visit, where.device_id, &error) < 0)
        return dlpack_py_raise(&error);
    result = dlpack_py_impl_fetch(producer, &there, DLPACK_PY_IMPL_CAN_ASK, v);
    if (on_device && dlpack_device_impl_visit_end(runtime, &visit, 0, &error) < 0 && result >= 0) {
        dlpack_py_release(v);
        return dlpack_py_raise(&error);
    }
    return result;
}

/* Asks an exchange table for the stream that its objects are worked on (X4). This is
 * dlpack_py_device.get_work_stream. */
static inline int
dlpack_device_get_work_stream(const void *table, const dlpack_py_device *device, dlpack_py_work_stream *work)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    const DLPackExchangeAPI *exchange = (const DLPackExchangeAPI *)table;
    void *stream = NULL; /* some tables leave it unset (X8) */
    const int returned = exchange->current_work_stream((DLDeviceType)device->type, work->device_id, &stream);
    work->handle = stream == NULL ? device->default_stream : (uintptr_t)stream;
    return dlpack_py_impl_check_table_call(returned, "current_work_stream");
#else
    (void)table;
    (void)device;
    (void)work;
    return -1;
#endif
}

/* Orders the consumer's stream after the stream that the library of an exchange table works on (X4). This is
 * dlpack_py_device.follow. */
static inline int
dlpack_device_follow(const void *table, const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    dlpack_py_offer offer;
    dlpack_py_plan plan;
    dlpack_py_work_stream work = {0, 0};

    if (terms->request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)
        return 0;
    work.device_id = v->tensor.device.device_id;
    memset(&offer, 0, sizeof(offer));
    offer.tensor = &v->tensor;
    offer.device = terms->device;
    offer.pending = &work;
    offer.pending_count = 1;
    memset(&plan, 0, sizeof(plan));
    plan.device = v->tensor.device;
    if (dlpack_device_get_work_stream(table, terms->device, &work) == 0 &&
        dlpack_device_make_ready(&offer, terms->request, &plan) == 0)
        return 0;
    dlpack_py_release(v);
#else
    (void)table;
    (void)terms;
    (void)v;
#endif
    return -1;
}

/* A dlpack_py_device for a runtime, as an initializer of a static.
 *
 * type, managed_type, default_stream   as in the table
 * runtime                              a function that returns the table
 */
#define DLPACK_DEVICE_OPERATIONS(type, managed_type, default_stream, runtime) \
    {                                                                         \
        (type),                                                               \
        (managed_type),                                                       \
        (default_stream),                                                     \
        (runtime),                                                            \
        dlpack_device_make_ready,                                             \
        dlpack_device_copy,                                                   \
        dlpack_device_fetch,                                                  \
        dlpack_device_follow,                                                 \
        dlpack_device_get_work_stream,                                        \
    }

/* ---- 6 Letting go behind queued work ------------------------------------ */

/* A node for an event of a device: one that waited before, or a new one without an event;
 * NULL where there is no memory. */
static inline dlpack_device_impl_waiting *
dlpack_device_impl_list_spare(dlpack_device_events *events, int32_t device_id)
{
    dlpack_device_impl_waiting **link = &events->spare, *one;

    dlpack_py_impl_lock(&events->lock);
    while (*link != NULL && (*link)->stream.device_id != device_id)
        link = &(*link)->next;
    one = *link;
    if (one != NULL) {
        *link = one->next;
        events->spare_count--;
    }
    dlpack_py_impl_unlock(&events->lock);
    if (one != NULL)
        return one;
    one = (dlpack_device_impl_waiting *)DLPACK_PY_MALLOC(sizeof(*one));
    if (one != NULL)
        one->event = NULL;
    return one;
}

/* Keeps a node and its event for the next time, unless there are enough. */
static inline void
dlpack_device_impl_list_keep(const dlpack_device_runtime *device, dlpack_device_impl_waiting *one)
{
    dlpack_device_events *events = device->events;
    int kept;

    dlpack_py_impl_lock(&events->lock);
    kept = one->event != NULL && events->spare_count < DLPACK_DEVICE_IMPL_SPARE_EVENTS;
    if (kept) {
        one->next = events->spare;
        events->spare = one;
        events->spare_count++;
    }
    dlpack_py_impl_unlock(&events->lock);
    if (!kept && one->event != NULL)
        device->event_destroy(one->event);
    if (!kept)
        DLPACK_PY_FREE(one);
}

/* Puts a node behind those of its stream. */
static inline void
dlpack_device_impl_list_append(const dlpack_device_runtime *device, dlpack_device_impl_waiting *one)
{
    dlpack_device_events *events = device->events;
    dlpack_device_impl_waiting **link = &events->queues;
    const int of_a_thread = /* a handle that is another stream on each thread: in a queue of its own */
        one->stream.handle <= device->last_relative && one->stream.handle != device->default_stream;

    one->next = one->next_queue = NULL;
    one->last = one;
    dlpack_py_impl_lock(&events->lock);
    while (*link != NULL && (of_a_thread || (*link)->interpreter != one->interpreter ||
                             !dlpack_device_impl_same_stream(device, (*link)->stream, one->stream)))
        link = &(*link)->next_queue;
    if (*link == NULL)
        *link = one;
    else {
        (*link)->last->next = one;
        (*link)->last = one;
    }
    (void)DLPACK_PY_IMPL_ADD(&events->waiting_count, 1);
    dlpack_py_impl_unlock(&events->lock);
}

/* The interpreter that this thread is attached to, or -1. Its address may come again. */
static inline int64_t
dlpack_device_impl_interpreter_here(void)
{
    return dlpack_py_impl_thread_state() == NULL ? -1 : PyInterpreterState_GetID(PyInterpreterState_Get());
}

/* Where a tensor is to be let go of: a deleter that takes objects of one interpreter apart
 * must not run attached to another (G1). Ours finds its own; of a thread without one, it is
 * the main one's, to which deleters attach by themselves. */
static inline int64_t
dlpack_device_impl_interpreter_of(const dlpack_py_view *v)
{
    const int64_t here = dlpack_device_impl_interpreter_here();
    if (dlpack_py_impl_find_keeper(v->managed, v->form) != NULL)
        return -1;
    return here == -1 ? 0 : here;
}

static inline int
dlpack_device_impl_is_collected_here(const dlpack_device_impl_waiting *one, int64_t here)
{
    return here == -1 || one->interpreter == -1 || one->interpreter == here;
}

/* The first of the next queue from *link on, which becomes its place. Nobody takes nodes
 * out but who is collecting; others append. */
static inline dlpack_device_impl_waiting *
dlpack_device_impl_list_first(dlpack_device_events *events, dlpack_device_impl_waiting ***link, int64_t here)
{
    dlpack_device_impl_waiting *one;

    dlpack_py_impl_lock(&events->lock);
    while (**link != NULL && !dlpack_device_impl_is_collected_here(**link, here))
        *link = &(**link)->next_queue;
    one = **link;
    dlpack_py_impl_unlock(&events->lock);
    return one;
}

/* Moves the first of a queue to those that are done. */
static inline void
dlpack_device_impl_list_move(dlpack_device_events *events, dlpack_device_impl_waiting **link)
{
    dlpack_device_impl_waiting *one, *next;

    dlpack_py_impl_lock(&events->lock);
    one = *link;
    next = one->next;
    if (next != NULL) {
        next->last = one->last;
        next->next_queue = one->next_queue;
    }
    *link = next != NULL ? next : one->next_queue;
    one->next = NULL;
    if (events->done == NULL)
        events->done = one;
    else
        events->done_last->next = one;
    events->done_last = one;
    dlpack_py_impl_unlock(&events->lock);
}

/* Asks about what waits: of each stream up to the first that is not done. */
static inline void
dlpack_device_impl_collect_ask(const dlpack_device_runtime *device, int64_t here)
{
    dlpack_device_impl_waiting **link = &device->events->queues, *one;
    dlpack_py_error error;
    int mode, done;

    if (dlpack_device_impl_relax(device, &mode, &error) < 0)
        return;
    while ((one = dlpack_device_impl_list_first(device->events, &link, here)) != NULL) {
        done = 0;
        (void)device->event_is_done(one->event, &done, &error);
        if (done)
            dlpack_device_impl_list_move(device->events, link);
        else
            link = &one->next_queue;
    }
    (void)dlpack_device_impl_unrelax(device, &mode, 0, &error);
}

/* Lets go of what is done, which is counted until its deleter has run. */
static inline void
dlpack_device_impl_collect_done(const dlpack_device_runtime *device)
{
    dlpack_device_events *events = device->events;
    dlpack_device_impl_waiting *one;

    while ((one = events->done) != NULL) {
        dlpack_py_impl_delete(one->managed, one->form);
        dlpack_py_impl_lock(&events->lock);
        events->done = one->next;
        (void)DLPACK_PY_IMPL_ADD(&events->waiting_count, -1);
        dlpack_py_impl_unlock(&events->lock);
        dlpack_device_impl_list_keep(device, one);
    }
}

/* What dlpack_device_collect does, unless another thread, or a caller of this one, is at it. */
static inline void
dlpack_device_impl_collect(const dlpack_device_runtime *device)
{
    dlpack_device_events *events = device->events;
    dlpack_py_impl_word process, before;

    if (DLPACK_PY_IMPL_LOAD(&events->waiting_count) == 0) /* saves asking for the process */
        return;
    process = (dlpack_py_impl_word)DLPACK_PY_IMPL_PROCESS();
    before = DLPACK_PY_IMPL_SWAP(&events->collecting, process);
    if (before == process)
        return;
    if (before != 0) /* a thread of our parent's was at it: what it had is the parent's to let go of */
        events->done = NULL;
    dlpack_device_impl_collect_ask(device, dlpack_device_impl_interpreter_here());
    dlpack_device_impl_collect_done(device);
    DLPACK_PY_IMPL_STORE(&events->collecting, 0);
}

/* Let go of the tensors whose work is done (dlpack_device_release). Later calls of this
 * file's do it by themselves; who makes none calls this now and then, and after the last
 * work was waited for, before an interpreter or the process ends: what waits then leaks.
 *
 * Returns how many are still waiting that may be let go of here: those of the interpreter
 * that the thread is attached to; without one, all. The host does not wait. Deleters run
 * here, as by dlpack_py_release.
 */
static inline size_t
dlpack_device_collect(const dlpack_device_runtime *device)
{
    dlpack_device_events *events = device->events;
    const int64_t here = dlpack_device_impl_interpreter_here();
    const dlpack_device_impl_waiting *queue, *one;
    size_t left = 0;

    dlpack_device_impl_collect(device);
    dlpack_py_impl_lock(&events->lock);
    for (queue = events->queues; queue != NULL; queue = queue->next_queue) {
        for (one = queue; one != NULL && dlpack_device_impl_is_collected_here(one, here); one = one->next)
            left++;
    }
    for (one = events->done; one != NULL && dlpack_device_impl_is_collected_here(one, here); one = one->next)
        left++;
    dlpack_py_impl_unlock(&events->lock);
    return left;
}

/* Puts a tensor on the list, behind the work that is queued on a stream. */
static inline int
dlpack_device_impl_release_later(const dlpack_device_runtime *device, dlpack_device_impl_visit *visit,
                                 dlpack_py_work_stream stream, dlpack_py_view *v, dlpack_py_error *error)
{
    dlpack_device_impl_waiting *one;

    if (dlpack_device_impl_name_device(device, visit, &stream, error) < 0)
        return -1;
    one = dlpack_device_impl_list_spare(device->events, stream.device_id);
    if (one == NULL)
        return dlpack_py_impl_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory to remember a tensor");
    one->stream = stream;
    if (dlpack_device_impl_record(device, visit, stream, &one->event, error) < 0) {
        dlpack_device_impl_list_keep(device, one);
        return -1;
    }
    one->form = v->form;
    one->interpreter = dlpack_device_impl_interpreter_of(v);
    one->managed = dlpack_py_impl_detach(v);
    dlpack_device_impl_list_append(device, one);
    return 0;
}

/* Let go of a view while work on its tensor is still queued on a stream.
 *
 * stream   the consumer's, with the number of its device
 * v        holds nothing afterwards; when this fails it is the caller's as before, who,
 *          where nothing captures, may synchronize and call dlpack_py_release
 *
 * Returns 0, or -1 with BufferError (the stream captures a graph, or is the default one
 * while another does: keep v as long as the graph), MemoryError or RuntimeError in *error.
 * The deleter waits in a list, behind an event, for a later call (dlpack_device_collect). The
 * host does not wait. Any thread. That the runtime does not give the device back, after v
 * is released, is no failure.
 */
static inline int
dlpack_device_release(const dlpack_device_runtime *device, dlpack_py_work_stream stream, dlpack_py_view *v,
                      dlpack_py_error *error)
{
    dlpack_device_impl_visit visit = {-1, -1};
    dlpack_py_error another;
    int failed, captures = 0;

    dlpack_device_impl_collect(device);
    if (v->managed == NULL)
        return 0;
    failed = dlpack_device_impl_ask_capture(device, &visit, stream, &captures, error);
    if (!failed && captures)
        failed = dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                     "the stream captures a graph, whose work comes later: keep the tensor as long as "
                                     "the graph");
    if (!failed)
        failed = dlpack_device_impl_release_later(device, &visit, stream, v, error);
    (void)dlpack_device_impl_visit_end(device, &visit, 0, &another); /* v is released or not, whatever comes of this */
    return failed;
}

/* The same, and raises; where it cannot be remembered the host waits, other threads with
 * the interpreter do not. Where that fails too, the runtime is lost with all work of it.
 * -1 in that case, and in a capture, where v is still the caller's. */
static inline int
dlpack_device_impl_release_or_wait(const dlpack_device_runtime *device, dlpack_py_work_stream stream, dlpack_py_view *v)
{
    dlpack_py_error error, another;
    int failed = dlpack_device_release(device, stream, v, &error);

    if (failed && error.code != DLPACK_PY_BUFFER_ERROR) {
        Py_BEGIN_ALLOW_THREADS
        failed = dlpack_device_synchronize(device, &stream, 1, &another);
        Py_END_ALLOW_THREADS
        if (!failed || another.code != DLPACK_PY_BUFFER_ERROR)
            dlpack_py_release(v);
    }
    return failed ? dlpack_py_raise(&error) : 0;
}

/* The same where nothing may fail: an exception in flight stays, one of ours is told as
 * unraisable, and in a capture the tensor leaks. */
static inline void
dlpack_device_impl_release_unraisable(const dlpack_device_runtime *device, dlpack_py_work_stream stream,
                                      dlpack_py_view *v)
{
    const dlpack_py_impl_exception saved = dlpack_py_impl_exception_save();
    if (dlpack_device_impl_release_or_wait(device, stream, v) < 0)
        PyErr_WriteUnraisable(NULL);
    (void)dlpack_py_impl_detach(v);
    dlpack_py_impl_exception_restore(saved);
}

/* ---- 7 Consuming on a stream -------------------------------------------- */

/* The stream that a library works on at present, by the exchange table of an object's type:
 * who consumes on that very stream needs no order, and no event (X4).
 *
 * work   in: device_id; out: handle
 *
 * Returns 1; 0 where the type has no table, or one of this file's without a stream; or -1
 * with the library's exception.
 */
static inline int
dlpack_device_current_work(PyObject *obj, const dlpack_py_device *device, dlpack_py_work_stream *work)
{
    dlpack_py_impl_gate *gate = dlpack_py_impl_gate_get();
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type room;

    if (gate == NULL || (type = dlpack_py_impl_type_get(gate, Py_TYPE(obj), &room)) == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL && (!type->own || ((const dlpack_py_exchange *)type->table)->work_stream != NULL))
        return dlpack_device_get_work_stream(type->table, device, work) < 0 ? -1 : 1;
#endif
    (void)device;
    (void)work;
    return 0;
}

/* Take the tensor that obj offers, to work on it on a stream of the consumer's.
 *
 * device   the operations of the stream's device
 * stream   as it crosses the protocol: never 0 on CUDA, never 1 or 2 on ROCm (S2, S3).
 *          It is ordered after the producer's work, by the producer (__dlpack__) or here
 *          (the exchange table of its type), and the host does not wait
 * want     a device of 0 is device->type here; NULL: anything there. With the option
 *          DLPACK_PY_NOTHING_PENDING no order is asked for: the producer is passed -1, and
 *          the stream may capture a graph
 *
 * Otherwise as dlpack_py_consume, and RuntimeError for what the device's runtime reports. A
 * raw capsule is taken as it is: whoever asked for it had a stream in mind.
 */
static inline int
dlpack_device_consume(PyObject *obj, const dlpack_py_device *device, uintptr_t stream, const dlpack_py_want *want,
                      dlpack_py_view *v)
{
    dlpack_py_want there = want != NULL ? *want : dlpack_py_want_any();
    dlpack_py_impl_terms terms = dlpack_py_impl_terms_make(&there, NULL);
    dlpack_py_request request = *terms.request;
    dlpack_py_error error;

    if (want == NULL)
        there.alignment = 1;
    if (there.device == 0)
        there.device = device->type;
    dlpack_py_impl_view_clear(v);
    request.stream.kind = DLPACK_PY_STREAM_HANDLE;
    request.stream.handle = stream;
    if (dlpack_py_impl_check_stream(dlpack_py_impl_device(device->type, 0), &request.stream, &error) < 0)
        return dlpack_py_raise(&error);
    if ((there.options & DLPACK_PY_NOTHING_PENDING) != 0)
        request.stream.kind = DLPACK_PY_STREAM_NO_SYNC;
    dlpack_device_impl_collect(device->runtime());
    terms.request = &request;
    terms.device = device;
    return dlpack_py_impl_obtain(obj, &terms, v);
}

#endif /* DLPACK_DEVICE_PROTOCOL_LAYER */

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

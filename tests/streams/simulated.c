/* A CUDA or HIP runtime without a device: compiled against either platform's own header, this is a library with the
 * functions of the runtime that the stream tests call. It is as strict as a driver, and logs the calls.
 *
 * Every stream is a thread with a queue. Moments define the order: a moment is a vector with one number for each
 * stream, the number of items of this stream that must run before. The moment of a stream grows with its work and with
 * the events that the stream waits for; an event is the moment of the stream that recorded it. An item may run when all
 * items that its moment includes have run. Two uses of memory are in order if the moment of the later use includes the
 * earlier use. A capture is joined if the moment of the stream that began it includes the nodes of all other streams.
 *
 * One mutex guards all data, and one condition variable signals every change. Objects stay until the reset, dead or
 * alive: no handle is used again, so that the use of a dead object is detected, unless simulated_reuse_handles asks for
 * it. Memory that was freed is given again, as allocators do. */
#ifdef __MINGW32__
#define __USE_MINGW_ANSI_STDIO 1 /* for %zu */
#endif
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../aligned.h"
#include "simulated.h"

/* ---- Differences between the platforms --------------------------------------------------------------------------- */

#if defined(__HIP_PLATFORM_AMD__)

#include <hip/hip_runtime_api.h>
#define RUNTIME(name) hip##name
#define RUNTIME_VERSION HIP_VERSION
#define UNKNOWN_ERROR_NAME "hipErrorUnknown"
#define ERROR_INVALID_HANDLE hipErrorInvalidHandle
#define ERROR_OUT_OF_MEMORY hipErrorOutOfMemory
#define ERROR_NOT_PERMITTED hipErrorNotSupported
typedef hipPointerAttribute_t pointer_attributes;
#if HIP_VERSION_MAJOR < 6
#define UNKNOWN_MEMORY_IS_ERROR true
#define TYPE_FIELD memoryType
#define TYPE_UNKNOWN hipMemoryTypeHost
#define TYPE_MANAGED hipMemoryTypeDevice /* and isManaged */
#else
#define UNKNOWN_MEMORY_IS_ERROR false
#define TYPE_FIELD type
#define TYPE_UNKNOWN hipMemoryTypeUnregistered
#define TYPE_MANAGED hipMemoryTypeManaged
#endif
#if defined(hipStreamLegacy)
#define HAS_LEGACY_HANDLE 1
#else
#define HAS_LEGACY_HANDLE 0
#endif
#define PER_THREAD_VARIANT(name) hip##name##_spt
#define PER_THREAD_MEMCPY hipMemcpy_spt

#else

#include <cuda_runtime_api.h>
#define RUNTIME(name) cuda##name
#define RUNTIME_VERSION CUDART_VERSION
#define UNKNOWN_ERROR_NAME "unrecognized error code"
#define ERROR_INVALID_HANDLE cudaErrorInvalidResourceHandle
#define ERROR_OUT_OF_MEMORY cudaErrorMemoryAllocation
#define ERROR_NOT_PERMITTED cudaErrorNotPermitted
typedef struct cudaPointerAttributes pointer_attributes;
#define UNKNOWN_MEMORY_IS_ERROR false
#define TYPE_FIELD type
#define TYPE_UNKNOWN cudaMemoryTypeUnregistered
#define TYPE_MANAGED cudaMemoryTypeManaged
#define HAS_LEGACY_HANDLE 1
#define PER_THREAD_VARIANT(name) cuda##name##_ptsz
#define PER_THREAD_MEMCPY cudaMemcpy_ptds

#endif

typedef RUNTIME(Error_t) result;
typedef RUNTIME(Stream_t) stream_handle;
typedef RUNTIME(Event_t) event_handle;
typedef RUNTIME(Graph_t) graph_handle;
typedef RUNTIME(GraphExec_t) runnable_handle;
typedef RUNTIME(HostFn_t) host_function;
typedef enum RUNTIME(MemcpyKind) copy_kind;
typedef enum RUNTIME(StreamCaptureMode) capture_mode;
typedef enum RUNTIME(StreamCaptureStatus) capture_status;

#define OK RUNTIME(Success)

/* Handles that mean a stream of the current device. The last handle stands for NULL in the functions for files that are
 * compiled with per-thread default streams; it is internal to this file. */
static char for_null_per_thread;
#define LEGACY ((void *)1)
#define PER_THREAD ((void *)2)
#define NULL_PER_THREAD ((void *)&for_null_per_thread)

static const struct {
    result code;
    const char *name, *text;
} errors[] = {
#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)
#define ERROR(code, text) {code, NAME_OF(code), text}
    ERROR(OK, "no error"),
    ERROR(RUNTIME(ErrorInvalidValue), "an argument is not valid"),
    ERROR(ERROR_OUT_OF_MEMORY, "no memory is left"),
    ERROR(RUNTIME(ErrorInvalidPitchValue), "a row does not fit into its pitch"),
    ERROR(RUNTIME(ErrorInvalidMemcpyDirection), "the direction of a copy does not fit its pointers"),
    ERROR(RUNTIME(ErrorInsufficientDriver), "the driver is missing or too old"),
    ERROR(RUNTIME(ErrorNoDevice), "there is no device"),
    ERROR(RUNTIME(ErrorInvalidDevice), "there is no device of this number"),
    ERROR(ERROR_INVALID_HANDLE, "a stream or event is not valid here"),
    ERROR(RUNTIME(ErrorIllegalState), "the object is not in a state for this"),
    ERROR(RUNTIME(ErrorNotReady), "work is pending"),
    ERROR(RUNTIME(ErrorIllegalAddress), "memory was used that is not there"),
    ERROR(RUNTIME(ErrorLaunchFailure), "a kernel failed"),
    ERROR(ERROR_NOT_PERMITTED, "not permitted here"),
    ERROR(RUNTIME(ErrorStreamCaptureUnsupported), "not permitted while a stream captures"),
    ERROR(RUNTIME(ErrorStreamCaptureInvalidated), "the capture was spoiled by an earlier call"),
    ERROR(RUNTIME(ErrorStreamCaptureMerge), "two captures would become one"),
    ERROR(RUNTIME(ErrorStreamCaptureUnmatched), "the capture was begun on another stream"),
    ERROR(RUNTIME(ErrorStreamCaptureUnjoined), "a stream of the capture was not joined"),
    ERROR(RUNTIME(ErrorStreamCaptureIsolation), "captured work would depend on work that is not captured"),
    ERROR(RUNTIME(ErrorStreamCaptureImplicit), "the legacy stream would depend on a capturing stream"),
    ERROR(RUNTIME(ErrorCapturedEvent), "the event was last recorded in a capturing stream"),
    ERROR(RUNTIME(ErrorStreamCaptureWrongThread), "the capture was begun by another thread"),
    {RUNTIME(ErrorUnknown), UNKNOWN_ERROR_NAME, "an error that is not simulated"}, /* for all other errors */
};

/* ---- The state --------------------------------------------------------------------------------------------------- */

enum { MAX_STREAMS = 256, MAX_MEMORY = 1 << 30 };
enum { NEVER_WRITTEN = 0xCD, FREED = 0xDD };
enum { ON_DEVICE, PINNED, MANAGED };

struct moment {
    unsigned at[MAX_STREAMS];
};

static const char STREAM[] = "stream", DEFAULT_STREAM[] = "default stream", EVENT[] = "event", MEMORY[] = "memory",
                  GRAPH[] = "graph", RUNNABLE[] = "runnable graph", CAPTURE[] = "capture";

/* The first member of each struct that has a handle or a number. */
struct object {
    struct object *next;
    const char *kind;
    const void *handle; /* the address of the object, or that of a dead object */
    int number, device;
    bool live;
};

struct capture {
    struct object object; /* alive until the capture ends */
    struct stream *origin;
    int thread;
    capture_mode mode;
    bool spoiled;
    struct item *first, **last; /* the captured work, in the order of the calls */
};

struct stream {
    struct object object;
    int index;   /* in world.streams and in moments */
    int thread;  /* the thread of a per-thread default stream, or 0 */
    int context; /* 0: the primary context of the device */
    bool legacy, blocking, held, running, ended;
    unsigned done;
    struct moment after; /* the items that run before the next item */
    struct item *head, **tail;
    struct capture *capture;
    struct moment captured; /* in a capture: the nodes before the next node */
    pthread_t runner;
};

struct event {
    struct object object;
    int context;
    bool recorded;
    struct moment after;
    struct capture *capture; /* the capture that recorded it, or NULL */
};

struct memory {
    struct object object;
    int type; /* ON_DEVICE, PINNED or MANAGED */
    char *data;
    size_t size;
    struct capture *capture; /* the capture that allocates it, or NULL */
    const struct stream *writer;
    unsigned written; /* the number of the writer's last item that writes */
    struct moment read;
    bool can_reuse;             /* new memory may get the address when item `freed` of stream `freer` has run */
    const struct stream *freer; /* NULL: at once */
    unsigned freed;
};

struct graph { /* also a runnable graph */
    struct object object;
    struct capture *capture;
};

struct item {
    struct item *next;
    unsigned number;
    struct moment after;
    void (*run)(const struct item *);
    const struct stream *stream;
    void (*function)(void *);
    void *argument;
    char *to;         /* the memory to write, or NULL */
    const char *from; /* the memory to read, or NULL */
    size_t to_pitch, from_pitch, width, height;
    int value;
};

struct texts {
    char **text;
    size_t count, capacity, emptied; /* emptied: the number of deleted texts before the first text */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static pthread_mutex_t *
take(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static void
give(pthread_mutex_t **mutex)
{
    pthread_mutex_unlock(*mutex);
}

/* Takes the lock until the end of the block. */
#define WITH_LOCK() pthread_mutex_t *locked __attribute__((cleanup(give), unused)) = take(&lock)

/* If work returns an error, returns this error from the function. */
#define TRY(work)               \
    do {                        \
        result error_ = (work); \
        if (error_ != OK)       \
            return error_;      \
    } while (0)

static struct {
    unsigned generation; /* the number of resets */
    int devices, threads;
    unsigned delay;
    uint32_t random;
    bool unknown_memory_is_error, reuses_handles, managed_is_exclusive;
    int (*holds_lock)(void);
    struct object *objects; /* the newest object first */
    struct stream *streams[MAX_STREAMS];
    int stream_count;
    struct moment host; /* the items that the host has waited for; one moment for all host threads */
    struct texts calls, violations;
    struct {
        char function[40];
        int nth, times, seen, failed;
        result error;
    } fail;
} world = {.devices = 3, .delay = 200, .random = 1, .unknown_memory_is_error = UNKNOWN_MEMORY_IS_ERROR};

static __thread struct thread {
    unsigned generation;
    int number, device, context, begin_device;
    capture_mode mode, begin_mode;
    result last, begin_last;
    size_t call; /* 1 + the number of the call in progress, or 0 */
} self;
static __thread bool on_stream; /* whether this is a stream's thread, which must not call the runtime */

/* The data of this thread for the current machine. */
static struct thread *
me(void)
{
    if (self.number == 0 || self.generation != world.generation) {
        memset(&self, 0, sizeof(self));
        self.generation = world.generation;
        self.number = ++world.threads;
    }
    return &self;
}

static void *
allocate(size_t size)
{
    void *block = calloc(1, size);
    if (block == NULL)
        abort();
    return block;
}

/* ---- Texts: calls and violations --------------------------------------------------------------------------------- */

static void
append(struct texts *texts, const char *text)
{
    if (texts->count == texts->capacity) {
        texts->capacity = 2 * texts->capacity + 16;
        texts->text = realloc(texts->text, texts->capacity * sizeof(*texts->text));
        if (texts->text == NULL)
            abort();
    }
    char *copy = allocate(strlen(text) + 1);
    texts->text[texts->count++] = strcpy(copy, text);
}

static void
empty(struct texts *texts)
{
    for (size_t i = 0; i < texts->count; i++)
        free(texts->text[i]);
    texts->emptied += texts->count;
    texts->count = 0;
}

/* The text of the call in progress on this thread; NULL: there is no call, or the log was emptied during the call. */
static char **
this_call(void)
{
    size_t call = me()->call, emptied = world.calls.emptied;
    return call == 0 || call <= emptied ? NULL : &world.calls.text[call - 1 - emptied];
}

static void
complain(const char *format, ...)
{
    char text[400];
    char **call = this_call();
    int used = call != NULL ? snprintf(text, sizeof(text) / 2, "%s: ", *call) : 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof(text) - (size_t)used, format, arguments);
    va_end(arguments);
    append(&world.violations, text);
}

#define REFUSE(error, ...) (complain(__VA_ARGS__), (result)(error))

static void
lose_copies_to_host(void);

/* Called at the start of each function of the runtime; the text has its name and arguments. If a wait, or the exchange
 * of the capture mode before a wait, is forced to fail, the context is lost. */
static result
begin_call(const char *format, ...)
{
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    append(&world.calls, text);
    me()->call = world.calls.emptied + world.calls.count;

    if (on_stream)
        return REFUSE(ERROR_NOT_PERMITTED, "called by work on a stream");
    if (world.holds_lock != NULL && world.holds_lock())
        complain("called with the GIL held");
    if (world.devices == 0)
        return RUNTIME(ErrorNoDevice);
    size_t length = strlen(world.fail.function);
    bool counted = length == 0 || (strncmp(text, world.fail.function, length) == 0 && text[length] == '(');
    if (counted && world.fail.nth > 0) {
        int past = ++world.fail.seen - world.fail.nth;
        if (past >= 0 && (world.fail.times == 0 || past < world.fail.times)) {
            world.fail.failed++;
            if (strncmp(text, "StreamSynchronize", 17) == 0 || strncmp(text, "ThreadExchange", 14) == 0)
                lose_copies_to_host();
            return world.fail.error;
        }
    }
    return OK;
}

/* Called at the end of each function of the runtime. */
static result
end_call(result error)
{
    char **text = this_call();
    if (error != OK && text != NULL) {
        size_t size = strlen(*text) + 20;
        char *with_error = allocate(size);
        snprintf(with_error, size, "%s -> %d", *text, (int)error);
        free(*text);
        *text = with_error;
    }
    me()->call = 0;
    return error;
}

/* ---- Objects and their names ------------------------------------------------------------------------------------- */

static int
next_number(const char *kind)
{
    for (const struct object *object = world.objects; object != NULL; object = object->next) {
        if (object->kind == kind)
            return object->number + 1;
    }
    return 1;
}

static void *
new_object(const char *kind, size_t size, int device)
{
    struct object *object = allocate(size);
    object->kind = kind;
    object->handle = object;
    object->number = next_number(kind);
    object->device = device;
    object->live = true;
    object->next = world.objects;
    world.objects = object;
    return object;
}

static struct object *
find(const char *kind, const void *handle)
{
    struct object *object = world.objects;
    while (object != NULL && (object->handle != handle || object->kind != kind))
        object = object->next;
    return object;
}

/* The handle of a new object: its own, or that of the newest dead object of its kind (simulated_reuse_handles). */
static void *
handle_of(struct object *made)
{
    struct object *dead = world.reuses_handles ? made->next : NULL;
    while (dead != NULL && (dead->kind != made->kind || dead->live))
        dead = dead->next;
    if (dead != NULL) {
        made->handle = dead->handle;
        dead->handle = made;
    }
    return (void *)(uintptr_t)made->handle;
}

/* The memory that a pointer points into, freed or not; NULL: memory of the host. */
static struct memory *
memory_at(const void *pointer)
{
    for (struct object *object = world.objects; object != NULL; object = object->next) {
        struct memory *memory = (struct memory *)object;
        if (object->kind == MEMORY && (uintptr_t)pointer - (uintptr_t)memory->data < memory->size)
            return memory;
    }
    return NULL;
}

/* Names for the log. A name is valid until three more names were made. */
static const char *
name(const char *format, ...)
{
    static __thread char buffers[4][48];
    static __thread unsigned turn;
    char *buffer = buffers[turn++ % 4];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(buffer, sizeof(buffers[0]), format, arguments);
    va_end(arguments);
    return buffer;
}

static const char *
name_of(const char *kind, const void *handle)
{
    const struct object *object = find(kind, handle);
    return object != NULL ? name("%s %d", kind, object->number) : name("unknown %s", kind);
}

static const char *
name_stream(const void *handle)
{
    return handle == NULL || handle == NULL_PER_THREAD ? "default"
           : handle == LEGACY                          ? "legacy"
           : handle == PER_THREAD                      ? "per-thread"
                                                       : name_of(STREAM, handle);
}

static const char *
name_memory(const void *pointer)
{
    const struct memory *memory = memory_at(pointer);
    if (memory == NULL)
        return pointer == NULL ? "NULL" : "host";
    size_t offset = (size_t)((const char *)pointer - memory->data);
    return offset == 0 ? name("memory %d", memory->object.number)
                       : name("memory %d + %zu", memory->object.number, offset);
}

static const char *
describe(const struct stream *stream)
{
    if (stream->object.kind == STREAM)
        return name("stream %d", stream->object.number);
    return name("the %s stream of device %d", stream->legacy ? "legacy" : "per-thread", stream->object.device);
}

static result
get_event(event_handle handle, struct event **event)
{
    *event = (struct event *)find(EVENT, handle);
    if (*event == NULL)
        return REFUSE(ERROR_INVALID_HANDLE, "not an event");
    if (!(*event)->object.live)
        return REFUSE(ERROR_INVALID_HANDLE, "the event was destroyed");
    return OK;
}

/* ---- Moments and items ------------------------------------------------------------------------------------------- */

static void
merge(struct moment *into, const struct moment *other)
{
    for (int i = 0; i < world.stream_count; i++) {
        if (into->at[i] < other->at[i])
            into->at[i] = other->at[i];
    }
}

static bool
is_reached(const struct moment *moment)
{
    for (int i = 0; i < world.stream_count; i++) {
        if (world.streams[i]->done < moment->at[i])
            return false;
    }
    return true;
}

static bool
can_run(const struct stream *stream)
{
    return stream->head != NULL && !stream->held && is_reached(&stream->head->after);
}

static void *
run_stream(void *argument)
{
    struct stream *stream = argument;
    on_stream = true;
    pthread_mutex_lock(&lock);
    while (stream->head != NULL || !stream->ended) {
        if (!can_run(stream)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        struct item *item = stream->head;
        stream->head = item->next;
        if (stream->head == NULL)
            stream->tail = &stream->head;
        stream->running = true;
        world.random = world.random * 1664525 + 1013904223;
        long delay = (long)((world.random >> 8) % (world.delay + 1)) * 1000;
        pthread_mutex_unlock(&lock);

        struct timespec pause = {delay / 1000000000, delay % 1000000000};
        nanosleep(&pause, NULL);
        if (item->run != NULL)
            item->run(item);

        pthread_mutex_lock(&lock);
        stream->running = false;
        stream->done = item->number;
        free(item);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *
new_stream(const char *kind, int device, bool blocking)
{
    if (world.stream_count == MAX_STREAMS)
        return NULL;
    struct stream *stream = new_object(kind, sizeof(*stream), device);
    stream->context = me()->context;
    stream->blocking = blocking;
    stream->tail = &stream->head;
    stream->index = world.stream_count;
    world.streams[world.stream_count++] = stream;
    if (pthread_create(&stream->runner, NULL, run_stream, stream) != 0)
        abort();
    return stream;
}

static struct stream *
default_stream(int device, int thread)
{
    for (int i = 0; i < world.stream_count; i++) {
        struct stream *stream = world.streams[i];
        if (stream->object.kind == DEFAULT_STREAM && stream->object.live && stream->object.device == device &&
            stream->context == me()->context && stream->thread == thread)
            return stream;
    }
    struct stream *stream = new_stream(DEFAULT_STREAM, device, true);
    if (stream != NULL) {
        stream->thread = thread;
        stream->legacy = thread == 0;
    }
    return stream;
}

static result
get_stream(const void *handle, struct stream **stream)
{
    bool per_thread = handle == PER_THREAD || handle == NULL_PER_THREAD;
    if (per_thread || handle == NULL || (handle == LEGACY && HAS_LEGACY_HANDLE)) {
        *stream = default_stream(me()->device, per_thread ? me()->number : 0);
        return *stream != NULL ? OK : REFUSE(ERROR_OUT_OF_MEMORY, "more streams than are simulated");
    }
    *stream = (struct stream *)find(STREAM, handle);
    if (*stream == NULL)
        return REFUSE(ERROR_INVALID_HANDLE, "not a stream");
    if (!(*stream)->object.live)
        return REFUSE(ERROR_INVALID_HANDLE, "the stream was destroyed");
    return OK;
}

static void
let_go_of_all(void)
{
    for (int i = 0; i < world.stream_count; i++)
        world.streams[i]->held = false;
    pthread_cond_broadcast(&changed);
}

/* Checks whether a moment is reached. If it is, the later work of the host comes after it. */
static result
ask_for(const struct moment *moment)
{
    if (!is_reached(moment))
        return RUNTIME(ErrorNotReady);
    merge(&world.host, moment);
    return OK;
}

/* Blocks the host until the moment is reached. Releases the lock while it waits. */
static result
wait_on_host(struct moment moment)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 1;
    while (!is_reached(&moment)) {
        if (pthread_cond_timedwait(&changed, &lock, &deadline) != ETIMEDOUT)
            continue;
        bool held = false;
        for (int i = 0; i < world.stream_count; i++)
            held = held || world.streams[i]->held;
        if (held)
            complain("blocks the host behind a held stream");
        let_go_of_all();
        deadline.tv_sec += 1;
    }
    return ask_for(&moment);
}

/* The moment at which a device is idle. */
static struct moment
all_of_device(int device)
{
    struct moment all = {{0}};
    for (int i = 0; i < world.stream_count; i++) {
        if (world.streams[i]->object.device == device)
            merge(&all, &world.streams[i]->after);
    }
    return all;
}

/* ---- Capture ----------------------------------------------------------------------------------------------------- */

/* Whether blocking streams of the legacy stream's device capture. spoil: spoils their captures. */
static bool
legacy_is_captured(const struct stream *legacy, bool spoil)
{
    bool captured = false;
    for (int i = 0; legacy->legacy && i < world.stream_count; i++) {
        const struct stream *stream = world.streams[i];
        if (stream->blocking && stream->capture != NULL && stream->object.device == legacy->object.device) {
            captured = true;
            stream->capture->spoiled = stream->capture->spoiled || spoil;
        }
    }
    return captured;
}

/* The checks of functions that enqueue. Adds the implicit order of a stream that does not capture: after all that the
 * host has waited for, and by the rule of the legacy stream. */
static result
touch(struct stream *stream)
{
    if (stream->capture != NULL) {
        if (stream->capture->spoiled)
            return REFUSE(RUNTIME(ErrorStreamCaptureInvalidated), "the capture is spoiled");
        return OK;
    }
    if (legacy_is_captured(stream, true))
        return REFUSE(RUNTIME(ErrorStreamCaptureImplicit), "a blocking stream of the device captures");
    merge(&stream->after, &world.host);
    for (int i = 0; stream->blocking && i < world.stream_count; i++) {
        const struct stream *other = world.streams[i];
        if (other->blocking && other->legacy != stream->legacy && other->object.device == stream->object.device)
            merge(&stream->after, &other->after);
    }
    return OK;
}

/* The check of calls that are unsafe while any stream captures, MallocAsync and FreeAsync included. */
static result
check_unsafe(void)
{
    const struct thread *thread = me();
    bool prohibited = false;
    for (struct object *object = world.objects; object != NULL; object = object->next) {
        struct capture *capture = (struct capture *)object;
        if (object->kind != CAPTURE || !object->live || thread->mode == RUNTIME(StreamCaptureModeRelaxed))
            continue;
        if (capture->thread == thread->number ? capture->mode != RUNTIME(StreamCaptureModeRelaxed)
                                              : thread->mode == RUNTIME(StreamCaptureModeGlobal) &&
                                                    capture->mode == RUNTIME(StreamCaptureModeGlobal)) {
            capture->spoiled = true;
            prohibited = true;
        }
    }
    return prohibited ? REFUSE(RUNTIME(ErrorStreamCaptureUnsupported), "unsafe while a stream captures") : OK;
}

/* The checks of queries and synchronization of streams. */
static result
check_watching(struct stream *stream)
{
    if (stream->capture != NULL) {
        stream->capture->spoiled = true;
        return REFUSE(RUNTIME(ErrorStreamCaptureUnsupported), "%s captures", describe(stream));
    }
    TRY(check_unsafe());
    return touch(stream);
}

static result
begin_capture(stream_handle handle, capture_mode mode)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    if (stream->legacy)
        return REFUSE(RUNTIME(ErrorStreamCaptureUnsupported), "the legacy stream cannot capture");
    if (stream->capture != NULL)
        return REFUSE(RUNTIME(ErrorIllegalState), "%s captures already", describe(stream));
    stream->capture = new_object(CAPTURE, sizeof(*stream->capture), stream->object.device);
    stream->capture->origin = stream;
    stream->capture->thread = me()->number;
    stream->capture->mode = mode;
    stream->capture->last = &stream->capture->first;
    memset(&stream->captured, 0, sizeof(stream->captured));
    return OK;
}

static result
end_capture(stream_handle handle, graph_handle *graph)
{
    *graph = NULL;
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    struct capture *capture = stream->capture;
    if (capture == NULL)
        return REFUSE(RUNTIME(ErrorIllegalState), "%s does not capture", describe(stream));
    if (capture->origin != stream) {
        capture->spoiled = true;
        return REFUSE(RUNTIME(ErrorStreamCaptureUnmatched), "the capture was begun on %s", describe(capture->origin));
    }
    if (capture->mode != RUNTIME(StreamCaptureModeRelaxed) && capture->thread != me()->number)
        return REFUSE(RUNTIME(ErrorStreamCaptureWrongThread), "the capture was begun by another thread");

    result error = capture->spoiled ? RUNTIME(ErrorStreamCaptureInvalidated) : OK;
    for (int i = 0; i < world.stream_count; i++) {
        struct stream *other = world.streams[i];
        if (other->capture != capture)
            continue;
        other->capture = NULL;
        if (error == OK && other->captured.at[i] > stream->captured.at[i])
            error = REFUSE(RUNTIME(ErrorStreamCaptureUnjoined), "%s was not joined", describe(other));
    }
    capture->object.live = false;
    if (error == OK) {
        struct graph *made = new_object(GRAPH, sizeof(*made), stream->object.device);
        made->capture = capture;
        *graph = (graph_handle)made;
    }
    return error;
}

static result
capture_info(stream_handle handle, capture_status *status, unsigned long long *id)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    if (legacy_is_captured(stream, false))
        return RUNTIME(ErrorStreamCaptureImplicit);
    const struct capture *capture = stream->capture;
    *status = capture == NULL    ? RUNTIME(StreamCaptureStatusNone)
              : capture->spoiled ? RUNTIME(StreamCaptureStatusInvalidated)
                                 : RUNTIME(StreamCaptureStatusActive);
    if (capture != NULL && id != NULL)
        *id = (unsigned long long)capture->object.number;
    return OK;
}

/* The graph owns the memory that its capture allocated. */
static result
destroy_graph(graph_handle handle)
{
    struct graph *graph = (struct graph *)find(GRAPH, handle);
    if (graph == NULL || !graph->object.live)
        return REFUSE(RUNTIME(ErrorInvalidValue), "not a graph, or destroyed");
    graph->object.live = false;
    for (struct object *object = world.objects; object != NULL; object = object->next) {
        if (object->kind == MEMORY && ((struct memory *)object)->capture == graph->capture)
            object->live = false;
    }
    return OK;
}

static result
get_runnable(runnable_handle handle, struct graph **runnable)
{
    *runnable = (struct graph *)find(RUNNABLE, handle);
    if (*runnable == NULL || !(*runnable)->object.live)
        return REFUSE(RUNTIME(ErrorInvalidValue), "not a runnable graph, or destroyed");
    return OK;
}

static result
make_runnable(runnable_handle *handle, graph_handle of)
{
    const struct graph *graph = (struct graph *)find(GRAPH, of);
    if (graph == NULL || !graph->object.live)
        return REFUSE(RUNTIME(ErrorInvalidValue), "not a graph, or destroyed");
    struct graph *made = new_object(RUNNABLE, sizeof(*made), graph->object.device);
    made->capture = graph->capture;
    *handle = (runnable_handle)made;
    return OK;
}

static result
destroy_runnable(runnable_handle handle)
{
    struct graph *runnable;
    TRY(get_runnable(handle, &runnable));
    runnable->object.live = false;
    return OK;
}

static result
exchange_mode(capture_mode *mode)
{
    capture_mode old = me()->mode;
    me()->mode = *mode;
    *mode = old;
    return OK;
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

static void
use_memory(const void *pointer, const struct stream *stream, bool write)
{
    struct memory *memory = memory_at(pointer);
    if (memory == NULL)
        return;
    const char *use = write ? "write" : "read";
    int number = memory->object.number;
    if (memory->writer != NULL && stream->after.at[memory->writer->index] < memory->written)
        complain("memory %d: the %s on %s is not after the write on %s", number, use, describe(stream),
                 describe(memory->writer));
    for (int i = 0; write && i < world.stream_count; i++) {
        if (stream->after.at[i] < memory->read.at[i])
            complain("memory %d: the write on %s is not after the read on %s", number, describe(stream),
                     describe(world.streams[i]));
    }
    if (write) {
        memory->writer = stream;
        memory->written = stream->after.at[stream->index];
    }
    else
        memory->read.at[stream->index] = stream->after.at[stream->index];
}

/* Queues work on a stream after touch(). A capture counts the work, and keeps it for the graph. */
static result
enqueue(struct stream *stream, struct item what)
{
    struct item *item = allocate(sizeof(*item));
    *item = what;
    item->next = NULL;
    if (stream->capture != NULL) {
        stream->captured.at[stream->index]++;
        *stream->capture->last = item;
        stream->capture->last = &item->next;
        return OK;
    }
    item->stream = stream;
    item->after = stream->after;
    item->number = ++stream->after.at[stream->index];
    use_memory(item->from, stream, false);
    use_memory(item->to, stream, true);
    *stream->tail = item;
    stream->tail = &item->next;
    pthread_cond_broadcast(&changed);
    return OK;
}

static result
enqueue_on(const void *handle, struct item what)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    TRY(touch(stream));
    return enqueue(stream, what);
}

/* Queues the work of a graph on one stream, in the order in which it was captured. */
static result
launch_graph(runnable_handle handle, stream_handle launching)
{
    struct graph *runnable;
    struct stream *stream;
    TRY(get_runnable(handle, &runnable));
    TRY(get_stream(launching, &stream));
    TRY(touch(stream));
    for (const struct item *item = runnable->capture->first; item != NULL; item = item->next)
        TRY(enqueue(stream, *item));
    return OK;
}

/* After a failed wait, cancels queued copies to the host: the host may free the memory. */
static void
lose_copies_to_host(void)
{
    for (int i = 0; i < world.stream_count; i++) {
        struct stream *stream = world.streams[i];
        while (stream->running)
            pthread_cond_wait(&changed, &lock);
        for (struct item *item = stream->head; item != NULL; item = item->next) {
            if (item->to != NULL && memory_at(item->to) == NULL)
                item->run = NULL;
        }
    }
}

static void
run_function(const struct item *item)
{
    item->function(item->argument);
}

static void
run_fill(const struct item *item)
{
    memset(item->to, item->value, item->width);
}

static void
run_expect(const struct item *item)
{
    size_t i = 0;
    while (i < item->width && (unsigned char)item->from[i] == (unsigned char)item->value)
        i++;
    if (i == item->width)
        return;
    WITH_LOCK();
    complain("%s reads %d at byte %zu of %s, not %d", describe(item->stream), (unsigned char)item->from[i], i,
             name_memory(item->from), item->value);
}

static void
run_copy(const struct item *item)
{
    for (size_t row = 0; row < item->height; row++)
        memcpy(item->to + row * item->to_pitch, item->from + row * item->from_pitch, item->width);
}

/* ---- Devices, streams and events --------------------------------------------------------------------------------- */

static result
set_device(int device)
{
    if (device < 0 || device >= world.devices)
        return RUNTIME(ErrorInvalidDevice);
    me()->device = device;
    me()->context = 0;
    return OK;
}

/* Waits for all work of the current device; refuses while a stream captures. */
static result
synchronize_device(void)
{
    for (int i = 0; i < world.stream_count; i++) {
        if (world.streams[i]->object.device == me()->device && world.streams[i]->capture != NULL)
            return check_watching(world.streams[i]);
    }
    TRY(check_unsafe());
    return wait_on_host(all_of_device(me()->device));
}

static void
end_stream(struct stream *stream)
{
    stream->object.live = false;
    stream->ended = true;
    pthread_cond_broadcast(&changed);
}

static result
reset_device(void)
{
    TRY(synchronize_device());
    for (struct object *object = world.objects; object != NULL; object = object->next) {
        if (object->device != me()->device || !object->live)
            continue;
        object->live = false;
        if (object->kind == STREAM || object->kind == DEFAULT_STREAM)
            end_stream((struct stream *)object);
        if (object->kind == MEMORY)
            memset(((struct memory *)object)->data, FREED, ((struct memory *)object)->size);
    }
    return OK;
}

static result
create_stream(stream_handle *handle, unsigned flags)
{
    struct stream *stream = new_stream(STREAM, me()->device, (flags & RUNTIME(StreamNonBlocking)) == 0);
    if (stream == NULL)
        return REFUSE(ERROR_OUT_OF_MEMORY, "more streams than are simulated");
    *handle = (stream_handle)handle_of(&stream->object);
    return OK;
}

static result
destroy_stream(stream_handle handle)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    if (stream->object.kind != STREAM)
        return REFUSE(ERROR_INVALID_HANDLE, "a default stream is nobody's to destroy");
    if (stream->capture != NULL)
        return check_watching(stream);
    end_stream(stream);
    return OK;
}

static result
query_stream(stream_handle handle)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    TRY(check_watching(stream));
    return ask_for(&stream->after);
}

static result
synchronize_stream(stream_handle handle)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    TRY(check_watching(stream));
    return wait_on_host(stream->after);
}

/* A wait where the stream or the event is in a capture, and not both in one capture. The stream joins the capture of
 * the event, or the wait is refused and spoils the captures of both. */
static result
wait_across_captures(struct stream *stream, const struct event *event)
{
    struct capture *own = stream->capture, *other = event->capture;
    if (other != NULL && other->object.live && other->spoiled)
        return REFUSE(RUNTIME(ErrorStreamCaptureInvalidated), "the event is of a capture that is spoiled");
    if (own == NULL && other->object.live && !stream->legacy) {
        stream->capture = other;
        stream->captured = event->after;
        return OK;
    }
    if (own != NULL)
        own->spoiled = true;
    if (other == NULL)
        return REFUSE(RUNTIME(ErrorStreamCaptureIsolation), "%s captures, the event is outside", describe(stream));
    other->spoiled = true;
    if (!other->object.live)
        return REFUSE(RUNTIME(ErrorCapturedEvent), "the event is of a capture that has ended");
    if (own == NULL)
        return REFUSE(RUNTIME(ErrorStreamCaptureImplicit), "the legacy stream cannot join a capture");
    return REFUSE(RUNTIME(ErrorStreamCaptureMerge), "the event is of another capture than %s", describe(stream));
}

static result
wait_for_event(stream_handle waiting, event_handle awaited, unsigned flags)
{
    struct stream *stream;
    struct event *event;
    TRY(get_stream(waiting, &stream));
    TRY(get_event(awaited, &event));
    if (flags != 0)
        return REFUSE(RUNTIME(ErrorInvalidValue), "flags that are not simulated");
    TRY(touch(stream));
    if (!event->recorded) {
        complain("the event was never recorded");
        return OK;
    }
    if (stream->capture != event->capture)
        return wait_across_captures(stream, event);
    merge(stream->capture != NULL ? &stream->captured : &stream->after, &event->after);
    return OK;
}

static result
create_event(event_handle *handle)
{
    struct event *event = new_object(EVENT, sizeof(*event), me()->device);
    event->context = me()->context;
    *handle = (event_handle)handle_of(&event->object);
    return OK;
}

static result
destroy_event(event_handle handle)
{
    struct event *event;
    TRY(get_event(handle, &event));
    event->object.live = false;
    return OK;
}

static result
record_event(event_handle recorded, stream_handle recording)
{
    struct stream *stream;
    struct event *event;
    TRY(get_event(recorded, &event));
    TRY(get_stream(recording, &stream));
    if (event->object.device != stream->object.device)
        return REFUSE(ERROR_INVALID_HANDLE, "the event is of device %d, the stream of device %d", event->object.device,
                      stream->object.device);
    if (event->context != stream->context)
        return REFUSE(ERROR_INVALID_HANDLE, "the event and %s are of two contexts", describe(stream));
    TRY(touch(stream));
#if defined(__HIP_PLATFORM_AMD__) /* CUDA allows this */
    if (event->recorded && event->capture == NULL && !is_reached(&event->after))
        complain("the event is pending: hipEventRecord is undefined then");
#endif
    event->recorded = true;
    event->capture = stream->capture;
    event->after = stream->capture != NULL ? stream->captured : stream->after;
    return OK;
}

/* The checks of queries and synchronization of events. */
static result
get_watched_event(event_handle handle, struct event **event)
{
    TRY(get_event(handle, event));
    if ((*event)->capture != NULL) {
        (*event)->capture->spoiled = true;
        return REFUSE(RUNTIME(ErrorCapturedEvent), "the event was recorded in a capture");
    }
    return check_unsafe();
}

static result
query_event(event_handle handle)
{
    struct event *event;
    TRY(get_watched_event(handle, &event));
    return ask_for(&event->after);
}

static result
synchronize_event(event_handle handle)
{
    struct event *event;
    TRY(get_watched_event(handle, &event));
    return wait_on_host(event->after);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* The address of freed memory of this kind and size, for new memory; NULL: there is none. Work that frees memory must
 * have run, or come before the next item of `stream` (NULL: none). Memory of a graph is the graph's. */
static char *
reuse_memory(size_t size, int type, int device, const struct stream *stream)
{
    for (struct object *object = world.objects; object != NULL; object = object->next) {
        struct memory *memory = (struct memory *)object;
        if (object->kind != MEMORY || !memory->can_reuse || memory->size != size || memory->type != type ||
            object->device != device)
            continue;
        const struct stream *freer = memory->freer;
        if (freer == NULL || freer->done >= memory->freed ||
            (stream != NULL && stream->capture == NULL && stream->after.at[freer->index] >= memory->freed)) {
            char *data = memory->data;
            memory->can_reuse = false;
            memory->data = NULL; /* memory_at finds the new memory */
            memory->size = 0;
            return data;
        }
    }
    return NULL;
}

/* stream: the stream that allocates, or NULL. New memory has a pattern; memory that is given again is not changed. */
static result
new_memory(void **pointer, size_t size, int type, int device, const struct stream *stream, struct memory **memory)
{
    *pointer = NULL;
    *memory = NULL;
    if (size == 0)
        return OK;
    char *data = reuse_memory(size, type, device, stream);
    if (data == NULL) {
        data = size > MAX_MEMORY ? NULL : aligned_new(256, size);
        if (data == NULL)
            return ERROR_OUT_OF_MEMORY;
        memset(data, NEVER_WRITTEN, size);
    }
    struct memory *made = new_object(MEMORY, sizeof(*made), device);
    made->data = *pointer = data;
    made->size = size;
    made->type = type;
    *memory = made;
    return OK;
}

static result
allocate_memory(void **pointer, size_t size, int type)
{
    struct memory *memory;
    TRY(check_unsafe());
    return new_memory(pointer, size, type, me()->device, NULL, &memory);
}

static result
get_allocated(const void *pointer, struct memory **memory)
{
    *memory = memory_at(pointer);
    if (*memory == NULL || (*memory)->data != pointer)
        return REFUSE(RUNTIME(ErrorInvalidValue), "not what was allocated");
    if (!(*memory)->object.live)
        return REFUSE(RUNTIME(ErrorInvalidValue), "memory %d was freed", (*memory)->object.number);
    return OK;
}

static result
free_memory(void *pointer, bool pinned)
{
    struct memory *memory;
    if (pointer == NULL)
        return OK;
    TRY(get_allocated(pointer, &memory));
    if ((memory->type == PINNED) != pinned)
        return REFUSE(RUNTIME(ErrorInvalidValue), "memory %d is not of this kind", memory->object.number);
    TRY(check_unsafe());
    memory->object.live = false;
    for (int i = 0; i < world.stream_count; i++) { /* the call may wait, but does not guarantee it */
        if (memory->read.at[i] > world.host.at[i] ||
            (memory->writer == world.streams[i] && memory->written > world.host.at[i]))
            complain("%s still uses memory %d", describe(world.streams[i]), memory->object.number);
    }
    wait_on_host(all_of_device(memory->object.device));
    memset(memory->data, FREED, memory->size);
    memory->can_reuse = memory->capture == NULL;
    return OK;
}

static result
allocate_async(void **pointer, size_t size, stream_handle handle)
{
    struct stream *stream;
    struct memory *memory;
    TRY(get_stream(handle, &stream));
    TRY(touch(stream));
    if (stream->capture == NULL)
        TRY(check_unsafe());
    TRY(new_memory(pointer, size, ON_DEVICE, stream->object.device, stream, &memory));
    if (memory == NULL)
        return OK;
    memory->capture = stream->capture;
    return enqueue(stream, (struct item){.to = memory->data});
}

static result
free_async(void *pointer, stream_handle handle)
{
    struct stream *stream;
    struct memory *memory;
    if (pointer == NULL)
        return OK;
    TRY(get_stream(handle, &stream));
    TRY(get_allocated(pointer, &memory));
    TRY(touch(stream));
    if (stream->capture == NULL)
        TRY(check_unsafe());
    if (memory->capture != stream->capture)
        return REFUSE(RUNTIME(ErrorInvalidValue), "memory %d is of another capture, or of none", memory->object.number);
    memory->object.live = false;
    TRY(enqueue(stream, (struct item){.run = run_fill, .to = memory->data, .value = FREED, .width = memory->size}));
    memory->can_reuse = stream->capture == NULL;
    memory->freer = stream;
    memory->freed = stream->after.at[stream->index];
    return OK;
}

/* Memory counts as free when it is freed, before its turn comes. */
static result
memory_info(size_t *free_bytes, size_t *total)
{
    *total = (size_t)MAX_MEMORY;
    *free_bytes = *total;
    for (const struct object *object = world.objects; object != NULL; object = object->next) {
        if (object->kind == MEMORY && object->live && object->device == me()->device)
            *free_bytes -= ((const struct memory *)object)->size;
    }
    return OK;
}

static result
check_range(const void *pointer, size_t size, bool kind_is_known, bool device)
{
    const struct memory *memory = memory_at(pointer);
    if (memory == NULL && !(kind_is_known && device))
        return OK;
    if (memory == NULL || (kind_is_known && memory->type != MANAGED && (memory->type == ON_DEVICE) != device))
        return REFUSE(RUNTIME(ErrorInvalidMemcpyDirection), "%s is on the other side", name_memory(pointer));
    if (!memory->object.live)
        return REFUSE(RUNTIME(ErrorInvalidValue), "memory %d was freed", memory->object.number);
    if (size > memory->size - (size_t)((const char *)pointer - memory->data))
        return REFUSE(RUNTIME(ErrorInvalidValue), "beyond the end of memory %d", memory->object.number);
    return OK;
}

static result
check_copy(const struct item *copy, copy_kind kind)
{
    if (copy->width > copy->to_pitch || copy->width > copy->from_pitch)
        return REFUSE(RUNTIME(ErrorInvalidPitchValue), "rows overlap");
    bool known = kind != RUNTIME(MemcpyDefault);
    bool to_device = kind == RUNTIME(MemcpyHostToDevice) || kind == RUNTIME(MemcpyDeviceToDevice);
    bool from_device = kind == RUNTIME(MemcpyDeviceToHost) || kind == RUNTIME(MemcpyDeviceToDevice);
    TRY(check_range(copy->to, (copy->height - 1) * copy->to_pitch + copy->width, known, to_device));
    return check_range(copy->from, (copy->height - 1) * copy->from_pitch + copy->width, known, from_device);
}

static result
copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, copy_kind kind,
          stream_handle handle)
{
    struct item copy = {.run = run_copy, .to = to, .to_pitch = to_pitch, .from = from, .from_pitch = from_pitch};
    copy.width = width;
    copy.height = height;
    if (width == 0 || height == 0)
        return enqueue_on(handle, (struct item){.run = NULL});
    TRY(check_copy(&copy, kind));
    if (memory_at(to) == NULL || memory_at(from) == NULL) /* pageable: the call may wait */
        TRY(check_unsafe());
    return enqueue_on(handle, copy);
}

static result
copy_and_wait(void *to, const void *from, size_t size, copy_kind kind, stream_handle handle)
{
    struct stream *stream;
    TRY(get_stream(handle, &stream));
    TRY(check_watching(stream));
    TRY(copy_rows(to, size, from, size, size, 1, kind, handle));
    return synchronize_stream(handle);
}

static result
get_attributes(pointer_attributes *attributes, const void *pointer)
{
    static const enum RUNTIME(MemoryType) types[] = {RUNTIME(MemoryTypeDevice), RUNTIME(MemoryTypeHost), TYPE_MANAGED};
    const struct memory *memory = memory_at(pointer);
    bool known = memory != NULL && memory->object.live;
    if (!known && world.unknown_memory_is_error)
        return RUNTIME(ErrorInvalidValue);
    memset(attributes, 0, sizeof(*attributes));
    attributes->TYPE_FIELD = known ? types[memory->type] : TYPE_UNKNOWN;
    attributes->device = known ? memory->object.device : -2;
    attributes->devicePointer = known ? (void *)(uintptr_t)pointer : NULL;
    attributes->hostPointer = known && memory->type == ON_DEVICE ? NULL : (void *)(uintptr_t)pointer;
#if defined(__HIP_PLATFORM_AMD__)
    attributes->isManaged = known && memory->type == MANAGED;
#endif
    return OK;
}

/* ---- The runtime's functions ------------------------------------------------------------------------------------- */

#define PERFORM(logged, work)         \
    WITH_LOCK();                      \
    result error = begin_call logged; \
    if (error == OK)                  \
        error = (work);               \
    if (error != OK)                  \
        me()->last = error;           \
    return end_call(error)

/* Defines a function of the runtime: name, parameters, text for the log, and the work. */
#define FUNCTION(name, parameters, logged, work) \
    result RUNTIME(name) parameters              \
    {                                            \
        PERFORM(logged, work);                   \
    }

/* Defines a function of the runtime and its variant for files that are compiled with per-thread default streams. */
#define STREAM_FUNCTION(name, parameters, logged, work)                    \
    FUNCTION(name, parameters, logged, work)                               \
    result PER_THREAD_VARIANT(name) parameters                             \
    {                                                                      \
        stream = stream != NULL ? stream : (stream_handle)NULL_PER_THREAD; \
        PERFORM(logged, work);                                             \
    }

FUNCTION(GetDeviceCount, (int *count), ("GetDeviceCount()"), (*count = world.devices, OK))
FUNCTION(GetDevice, (int *device), ("GetDevice()"), (*device = me()->device, OK))
FUNCTION(SetDevice, (int device), ("SetDevice(%d)", device), set_device(device))
FUNCTION(DeviceSynchronize, (void), ("DeviceSynchronize()"), synchronize_device())
FUNCTION(DeviceReset, (void), ("DeviceReset()"), reset_device())
FUNCTION(DriverGetVersion, (int *version), ("DriverGetVersion()"), (*version = RUNTIME_VERSION, OK))
FUNCTION(RuntimeGetVersion, (int *version), ("RuntimeGetVersion()"), (*version = RUNTIME_VERSION, OK))

FUNCTION(StreamCreateWithFlags, (stream_handle * stream, unsigned flags),
         ("StreamCreateWithFlags(stream %d, %u)", next_number(STREAM), flags), create_stream(stream, flags))
FUNCTION(StreamDestroy, (stream_handle stream), ("StreamDestroy(%s)", name_stream(stream)), destroy_stream(stream))
STREAM_FUNCTION(StreamQuery, (stream_handle stream), ("StreamQuery(%s)", name_stream(stream)), query_stream(stream))
STREAM_FUNCTION(StreamSynchronize, (stream_handle stream), ("StreamSynchronize(%s)", name_stream(stream)),
                synchronize_stream(stream))
STREAM_FUNCTION(StreamWaitEvent, (stream_handle stream, event_handle event, unsigned flags),
                ("StreamWaitEvent(%s, %s)", name_stream(stream), name_of(EVENT, event)),
                wait_for_event(stream, event, flags))

FUNCTION(EventCreateWithFlags, (event_handle * event, unsigned flags),
         ("EventCreateWithFlags(event %d, %u)", next_number(EVENT), flags), create_event(event))
FUNCTION(EventDestroy, (event_handle event), ("EventDestroy(%s)", name_of(EVENT, event)), destroy_event(event))
FUNCTION(EventQuery, (event_handle event), ("EventQuery(%s)", name_of(EVENT, event)), query_event(event))
FUNCTION(EventSynchronize, (event_handle event), ("EventSynchronize(%s)", name_of(EVENT, event)),
         synchronize_event(event))
STREAM_FUNCTION(EventRecord, (event_handle event, stream_handle stream),
                ("EventRecord(%s, %s)", name_of(EVENT, event), name_stream(stream)), record_event(event, stream))

FUNCTION(ThreadExchangeStreamCaptureMode, (capture_mode * mode), ("ThreadExchangeStreamCaptureMode(%d)", (int)*mode),
         exchange_mode(mode))
STREAM_FUNCTION(StreamBeginCapture, (stream_handle stream, capture_mode mode),
                ("StreamBeginCapture(%s, %d)", name_stream(stream), (int)mode), begin_capture(stream, mode))
STREAM_FUNCTION(StreamEndCapture, (stream_handle stream, graph_handle *graph),
                ("StreamEndCapture(%s)", name_stream(stream)), end_capture(stream, graph))
FUNCTION(GraphDestroy, (graph_handle graph), ("GraphDestroy(%s)", name_of(GRAPH, graph)), destroy_graph(graph))
FUNCTION(GraphInstantiateWithFlags, (runnable_handle * runnable, graph_handle graph, unsigned long long flags),
         ("GraphInstantiateWithFlags(%s, %llu)", name_of(GRAPH, graph), flags), make_runnable(runnable, graph))
FUNCTION(GraphExecDestroy, (runnable_handle runnable), ("GraphExecDestroy(%s)", name_of(RUNNABLE, runnable)),
         destroy_runnable(runnable))
STREAM_FUNCTION(GraphLaunch, (runnable_handle runnable, stream_handle stream),
                ("GraphLaunch(%s, %s)", name_of(RUNNABLE, runnable), name_stream(stream)),
                launch_graph(runnable, stream))
STREAM_FUNCTION(StreamIsCapturing, (stream_handle stream, capture_status *status),
                ("StreamIsCapturing(%s)", name_stream(stream)), capture_info(stream, status, NULL))

/* As name_stream. The runtime does not say what a call that fails leaves in *id: here it is 7. */
static const char *
name_stream_and_spoil(const void *handle, unsigned long long *id)
{
    if (id != NULL)
        *id = 7;
    return name_stream(handle);
}

/* The names of StreamGetCaptureInfo. In CUDA 12 (by a macro) and CUDA 13, the plain name is a function with more
 * parameters. Of an active capture, only state and number are simulated. */
#define CAPTURE_INFO(name, parameters, others)                                                              \
    STREAM_FUNCTION(name, parameters, ("StreamGetCaptureInfo(%s)", name_stream_and_spoil(stream, id)),      \
                    others ? REFUSE(RUNTIME(ErrorInvalidValue), "the nodes of a capture are not simulated") \
                           : capture_info(stream, status, id))
#define NODES graph_handle *graph, const RUNTIME(GraphNode_t) * *nodes
#if defined(__HIP_PLATFORM_AMD__) || CUDART_VERSION < 12000
CAPTURE_INFO(StreamGetCaptureInfo, (stream_handle stream, capture_status *status, unsigned long long *id), false)
#endif
#if defined(__HIP_PLATFORM_AMD__) || CUDART_VERSION < 13000
CAPTURE_INFO(StreamGetCaptureInfo_v2,
             (stream_handle stream, capture_status *status, unsigned long long *id, NODES, size_t *count),
             graph != NULL || nodes != NULL || count != NULL)
#endif
#if !defined(__HIP_PLATFORM_AMD__) && CUDART_VERSION >= 12030
#if CUDART_VERSION < 13000
#define WITH_EDGES StreamGetCaptureInfo_v3
#else
#define WITH_EDGES StreamGetCaptureInfo
#endif
CAPTURE_INFO(WITH_EDGES,
             (stream_handle stream, capture_status *status, unsigned long long *id, NODES,
              const cudaGraphEdgeData **edges, size_t *count),
             graph != NULL || nodes != NULL || edges != NULL || count != NULL)
#endif

#define LOGGED_ALLOCATION(name, size) ("%s(memory %d, %zu)", name, next_number(MEMORY), size)
#define LOGGED_FREE(name, pointer) ("%s(%s)", name, name_memory(pointer))
FUNCTION(Malloc, (void **pointer, size_t size), LOGGED_ALLOCATION("Malloc", size),
         allocate_memory(pointer, size, ON_DEVICE))
FUNCTION(Free, (void *pointer), LOGGED_FREE("Free", pointer), free_memory(pointer, false))
FUNCTION(MallocManaged, (void **pointer, size_t size, unsigned flags),
         ("MallocManaged(memory %d, %zu, %u)", next_number(MEMORY), size, flags),
         allocate_memory(pointer, size, MANAGED))
FUNCTION(MallocHost, (void **pointer, size_t size), LOGGED_ALLOCATION("MallocHost", size),
         allocate_memory(pointer, size, PINNED))
FUNCTION(HostAlloc, (void **pointer, size_t size, unsigned flags),
         ("HostAlloc(memory %d, %zu, %u)", next_number(MEMORY), size, flags), allocate_memory(pointer, size, PINNED))
FUNCTION(FreeHost, (void *pointer), LOGGED_FREE("FreeHost", pointer), free_memory(pointer, true))
#if defined(__HIP_PLATFORM_AMD__)
FUNCTION(HostMalloc, (void **pointer, size_t size, unsigned flags),
         ("HostMalloc(memory %d, %zu, %u)", next_number(MEMORY), size, flags), allocate_memory(pointer, size, PINNED))
FUNCTION(HostFree, (void *pointer), LOGGED_FREE("HostFree", pointer), free_memory(pointer, true))
#endif
STREAM_FUNCTION(MallocAsync, (void **pointer, size_t size, stream_handle stream),
                ("MallocAsync(memory %d, %zu, %s)", next_number(MEMORY), size, name_stream(stream)),
                allocate_async(pointer, size, stream))
STREAM_FUNCTION(FreeAsync, (void *pointer, stream_handle stream),
                ("FreeAsync(%s, %s)", name_memory(pointer), name_stream(stream)), free_async(pointer, stream))
FUNCTION(MemGetInfo, (size_t *free_bytes, size_t *total), ("MemGetInfo()"), memory_info(free_bytes, total))
FUNCTION(PointerGetAttributes, (pointer_attributes * attributes, const void *pointer),
         ("PointerGetAttributes(%s)", name_memory(pointer)), get_attributes(attributes, pointer))

FUNCTION(Memcpy, (void *to, const void *from, size_t size, copy_kind kind),
         ("Memcpy(%s, %s, %zu)", name_memory(to), name_memory(from), size), copy_and_wait(to, from, size, kind, NULL))
result
PER_THREAD_MEMCPY(void *to, const void *from, size_t size, copy_kind kind)
{
    PERFORM(("Memcpy(%s, %s, %zu)", name_memory(to), name_memory(from), size),
            copy_and_wait(to, from, size, kind, (stream_handle)NULL_PER_THREAD));
}
STREAM_FUNCTION(MemcpyAsync, (void *to, const void *from, size_t size, copy_kind kind, stream_handle stream),
                ("MemcpyAsync(%s, %s, %zu, %s)", name_memory(to), name_memory(from), size, name_stream(stream)),
                copy_rows(to, size, from, size, size, 1, kind, stream))
STREAM_FUNCTION(Memcpy2DAsync,
                (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                 copy_kind kind, stream_handle stream),
                ("Memcpy2DAsync(%s, %s, %zu x %zu, %s)", name_memory(to), name_memory(from), height, width,
                 name_stream(stream)),
                copy_rows(to, to_pitch, from, from_pitch, width, height, kind, stream))
STREAM_FUNCTION(LaunchHostFunc, (stream_handle stream, host_function function, void *argument),
                ("LaunchHostFunc(%s)", name_stream(stream)),
                enqueue_on(stream, (struct item){.run = run_function, .function = function, .argument = argument}))

/* The functions that read errors are not counted as calls that may fail. */
static result
read_error(const char *logged, bool forget)
{
    WITH_LOCK();
    append(&world.calls, logged);
    me()->call = world.calls.emptied + world.calls.count;
    result last = me()->last;
    if (forget)
        me()->last = OK;
    return end_call(last);
}

result
RUNTIME(GetLastError)(void)
{
    return read_error("GetLastError()", true);
}

result
RUNTIME(PeekAtLastError)(void)
{
    return read_error("PeekAtLastError()", false);
}

static size_t
find_error(result error)
{
    size_t i = 0;
    while (i < sizeof(errors) / sizeof(errors[0]) - 1 && errors[i].code != error)
        i++;
    return i;
}

const char *
RUNTIME(GetErrorName)(result error)
{
    return errors[find_error(error)].name;
}

const char *
RUNTIME(GetErrorString)(result error)
{
    return errors[find_error(error)].text;
}

/* ---- The controls ------------------------------------------------------------------------------------------------ */

static void
free_items(struct item *item)
{
    while (item != NULL) {
        struct item *next = item->next;
        free(item);
        item = next;
    }
}

void
simulated_reset(int devices)
{
    struct moment all = {{0}};
    pthread_mutex_lock(&lock);
    let_go_of_all();
    for (int i = 0; i < world.stream_count; i++)
        merge(&all, &world.streams[i]->after);
    wait_on_host(all);
    for (int i = 0; i < world.stream_count; i++)
        end_stream(world.streams[i]);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < world.stream_count; i++)
        pthread_join(world.streams[i]->runner, NULL);

    pthread_mutex_lock(&lock);
    while (world.objects != NULL) {
        struct object *object = world.objects;
        world.objects = object->next;
        if (object->kind == MEMORY && ((struct memory *)object)->data != NULL) /* NULL: newer memory has it */
            aligned_free(((struct memory *)object)->data);
        if (object->kind == CAPTURE)
            free_items(((struct capture *)object)->first);
        free(object);
    }
    empty(&world.calls);
    empty(&world.violations);
    free(world.calls.text);
    free(world.violations.text);
    unsigned generation = world.generation + 1;
    memset(&world, 0, sizeof(world));
    world.generation = generation;
    world.devices = devices;
    world.delay = 200;
    world.random = 1;
    world.unknown_memory_is_error = UNKNOWN_MEMORY_IS_ERROR;
    pthread_mutex_unlock(&lock);
}

void
simulated_delay(unsigned most)
{
    WITH_LOCK();
    world.delay = most;
}

void
simulated_hold(void *handle)
{
    WITH_LOCK();
    struct stream *stream;
    if (get_stream(handle, &stream) == OK) {
        stream->held = true;
        while (stream->running)
            pthread_cond_wait(&changed, &lock);
    }
}

void
simulated_let_go(void *handle)
{
    WITH_LOCK();
    struct stream *stream;
    if (get_stream(handle, &stream) == OK)
        stream->held = false;
    pthread_cond_broadcast(&changed);
}

void
simulated_settle(void)
{
    WITH_LOCK();
    for (int i = 0; i < world.stream_count; i++) {
        if (world.streams[i]->running || can_run(world.streams[i])) {
            pthread_cond_wait(&changed, &lock);
            i = -1;
        }
    }
}

size_t
simulated_pending(void *handle)
{
    WITH_LOCK();
    struct stream *stream;
    return get_stream(handle, &stream) == OK ? stream->after.at[stream->index] - stream->done : 0;
}

static int
launch(const void *handle, struct item what)
{
    WITH_LOCK();
    return (int)enqueue_on(handle, what);
}

int
simulated_launch(void *stream, void (*function)(void *), void *argument, const void *reads, void *writes)
{
    struct item what = {.run = run_function, .function = function, .argument = argument, .from = reads, .to = writes};
    return launch(stream, what);
}

int
simulated_fill(void *stream, void *memory, int value, size_t bytes)
{
    return launch(stream, (struct item){.run = run_fill, .to = memory, .value = value, .width = bytes});
}

int
simulated_expect(void *stream, const void *memory, int value, size_t bytes)
{
    return launch(stream, (struct item){.run = run_expect, .from = memory, .value = value, .width = bytes});
}

int
simulated_host_may_read(const void *pointer)
{
    WITH_LOCK();
    const struct memory *memory = memory_at(pointer);
    if (memory != NULL && memory->type == MANAGED && world.managed_is_exclusive) {
        const struct moment idle = all_of_device(memory->object.device);
        return is_reached(&idle);
    }
    return memory == NULL || memory->writer == NULL || memory->written <= world.host.at[memory->writer->index];
}

void
simulated_fail(const char *function, int nth, int times, int error)
{
    WITH_LOCK();
    memset(&world.fail, 0, sizeof(world.fail));
    if (function != NULL)
        snprintf(world.fail.function, sizeof(world.fail.function), "%s", function);
    world.fail.nth = nth;
    world.fail.times = times;
    world.fail.error = (result)error;
}

int
simulated_failed(void)
{
    WITH_LOCK();
    return world.fail.failed;
}

void
simulated_unknown_memory_is_error(int yes)
{
    WITH_LOCK();
    world.unknown_memory_is_error = yes != 0;
}

void
simulated_managed_is_exclusive(int yes)
{
    WITH_LOCK();
    world.managed_is_exclusive = yes != 0;
}

void
simulated_reuse_handles(int yes)
{
    WITH_LOCK();
    world.reuses_handles = yes != 0;
}

void
simulated_set_context(int context)
{
    WITH_LOCK();
    me()->context = context;
}

void
simulated_watch_lock(int (*holds_lock)(void))
{
    WITH_LOCK();
    world.holds_lock = holds_lock;
}

void
simulated_mark(void)
{
    WITH_LOCK();
    empty(&world.calls);
}

void
simulated_forgive(void)
{
    WITH_LOCK();
    empty(&world.violations);
}

size_t
simulated_calls(void)
{
    WITH_LOCK();
    return world.calls.count;
}

const char *
simulated_call(size_t index)
{
    WITH_LOCK();
    return index < world.calls.count ? world.calls.text[index] : NULL;
}

size_t
simulated_violations(void)
{
    WITH_LOCK();
    return world.violations.count;
}

const char *
simulated_violation(size_t index)
{
    WITH_LOCK();
    return index < world.violations.count ? world.violations.text[index] : NULL;
}

void
simulated_begin(void)
{
    WITH_LOCK();
    struct thread *thread = me();
    thread->begin_device = thread->device;
    thread->begin_mode = thread->mode;
    thread->begin_last = thread->last;
}

void
simulated_end(void)
{
    WITH_LOCK();
    const struct thread *thread = me();
    if (thread->device != thread->begin_device)
        complain("the current device was %d, and is %d", thread->begin_device, thread->device);
    if (thread->mode != thread->begin_mode)
        complain("the thread's capture mode was %d, and is %d", (int)thread->begin_mode, (int)thread->mode);
    if (thread->last != thread->begin_last)
        complain("the last error was %d, and is %d", (int)thread->begin_last, (int)thread->last);
}

/* The live object of this kind that `index` newer objects precede, or NULL. Counts the live objects that it passes. */
static const struct object *
live(const char *kind, size_t index, size_t *count)
{
    const struct object *found = NULL;
    *count = 0;
    for (const struct object *object = world.objects; object != NULL; object = object->next) {
        if (object->live && strcmp(object->kind, kind) == 0 && (*count)++ == index)
            found = object;
    }
    return found;
}

size_t
simulated_live(const char *kind)
{
    WITH_LOCK();
    size_t count;
    live(kind, 0, &count);
    return count;
}

const char *
simulated_live_name(const char *kind, size_t index)
{
    WITH_LOCK();
    size_t count;
    const struct object *object = live(kind, index, &count);
    return object != NULL ? name("%s %d", kind, object->number) : NULL;
}

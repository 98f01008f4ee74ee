/* The calls of the runtime by which the first layer orders streams, waits for streams and copies to the host. Each case
 * of the tables below is tested with its exact list of calls, with each call failing, and with work that runs late.
 * Compiled for each platform, and for CUDA's per-thread default streams. --table prints the tables as Markdown, for
 * docs/streams.md. */
#include <pthread.h>
#include <stdlib.h>

/* The memory of the header: the number of blocks, and whether allocations fail. */
static int blocks, no_memory;
static void *last_block;

static void *
take_block(size_t size)
{
    void *block = no_memory ? NULL : malloc(size);
    blocks += block != NULL;
    last_block = block;
    return block;
}

static void
give_block(void *block)
{
    blocks -= block != NULL;
    free(block);
}

#define DLPACK_PY_MALLOC(size) take_block(size)
#define DLPACK_PY_FREE(pointer) give_block(pointer)
#include "../tensor/check.h"

#if defined(__HIP_PLATFORM_AMD__)
#include "dlpack_rocm.h"
#define PLATFORM(name) dlpack_rocm_##name
#define BUILD ROCM
#define DEFAULT_NAME "default"
#define NULL_NAME "default"
#else
#include "dlpack_cuda.h"
#define PLATFORM(name) dlpack_cuda_##name
#define DEFAULT_NAME "legacy"
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define BUILD CUDA_PER_THREAD
#define NULL_NAME "per-thread"
#else
#define BUILD CUDA
#define NULL_NAME "legacy"
#endif
#endif
#include "platform.h"

/* ---- The cases ----------------------------------------------------------------------------------------------------- */

enum build { CUDA = 1, CUDA_PER_THREAD = 2, ROCM = 4 };
enum action { ORDER, SYNCHRONIZE, COPY_TO_HOST };
enum kind {
    NO_STREAM,
    NON_BLOCKING, /* a created stream; the default stream and this stream do not wait for each other */
    BLOCKING,     /* a created stream; the default stream and this stream wait for each other */
    DEFAULT,      /* the number in DLPack: 1 for CUDA, 0 for ROCm */
    OF_THREAD,    /* 2 */
    AUTHORS_NULL, /* NULL in a file of the author */
    SAME,         /* the stream of a producer; `device` is the index of the producer */
};
enum { SPOILED = 9, MOST_BEFORE = 3, MOST_CALLS = 20, BYTES = 64 };

/* A stream of a case: its kind, its device, and the number of its capture. */
struct role {
    enum kind kind;
    int device; /* -1: the current device */
    int capture;
};

/* The calls are written as in the log of the simulation. P, or P1 to P3, is the stream of a producer; C is the stream
 * of the consumer, B a third stream, which captures, D the default stream; E, E1, E2 are events; M is the data. */
struct row {
    const char *what;
    int builds; /* 0: all */
    enum action action;
    int current; /* the current device; the data is on the device of the first stream */
    struct role before[MOST_BEFORE], after, third;
    bool done;        /* the work of the streams `before` is done */
    int32_t code;     /* the error, or 0 */
    const char *says; /* part of its text */
    const char *calls[MOST_CALLS];
};

static const struct row rows[] = {
    {.what = "nothing is pending (P is none), or C is -1", .after = {NON_BLOCKING}},
    {.what = "C is P", .before = {{NON_BLOCKING}}, .after = {SAME, 0}},
    {.what = "C is the default stream, P too (also as the author's `NULL`)",
     .builds = CUDA | ROCM,
     .before = {{AUTHORS_NULL}},
     .after = {DEFAULT}},
    {.what =
         "CUDA: P is `NULL` in a file for per-thread default streams, C is 2: another thread may have queued the work",
     .builds = CUDA_PER_THREAD,
     .before = {{AUTHORS_NULL}},
     .after = {OF_THREAD},
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "StreamIsCapturing(D)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, D)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "C differs",
     .before = {{NON_BLOCKING}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "GetDevice()", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "C differs; another device is current",
     .before = {{NON_BLOCKING, 1}},
     .after = {NON_BLOCKING, 1},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "GetDevice()", "SetDevice(1)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)",
               "SetDevice(0)"}},
    {.what = "C is on another device (2) than P (1)",
     .before = {{NON_BLOCKING, 1}},
     .after = {NON_BLOCKING, 2},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "GetDevice()", "SetDevice(1)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)",
               "SetDevice(0)"}},
    {.what = "the data is pinned or managed: P is on the current device",
     .current = 1,
     .before = {{NON_BLOCKING, -1}},
     .after = {NON_BLOCKING, -1},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "EventCreateWithFlags(E, 2)", "EventRecord(E, P)",
               "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "C is the default stream: `None`, CUDA's 1, ROCm's 0",
     .before = {{NON_BLOCKING}},
     .after = {DEFAULT},
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "the same; another device is current",
     .before = {{NON_BLOCKING, 1}},
     .after = {DEFAULT, 1},
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(C)", "StreamIsCapturing(P)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)",
               "SetDevice(0)"}},
    {.what = "CUDA: C is the thread's default stream: 2",
     .builds = CUDA | CUDA_PER_THREAD,
     .before = {{NON_BLOCKING}},
     .after = {OF_THREAD},
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "P is the default stream",
     .before = {{DEFAULT}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "GetDevice()", "StreamIsCapturing(P)", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "the same; another device is current",
     .before = {{DEFAULT, 1}},
     .after = {NON_BLOCKING, 1},
     .calls = {"StreamIsCapturing(C)", "GetDevice()", "SetDevice(1)", "StreamIsCapturing(P)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)",
               "SetDevice(0)"}},
    {.what = "P is the thread's default stream",
     .before = {{OF_THREAD}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "GetDevice()", "StreamIsCapturing(P)", "StreamIsCapturing(D)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, D)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "P is the author's `NULL`, C another default stream: 2, or 1 in a file for per-thread default streams",
     .builds = CUDA,
     .before = {{AUTHORS_NULL}},
     .after = {OF_THREAD},
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.builds = CUDA_PER_THREAD,
     .before = {{AUTHORS_NULL}},
     .after = {DEFAULT},
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "StreamIsCapturing(D)"}},
    {.what = "both are default streams, P on device 0, C on 1",
     .before = {{DEFAULT, 0}},
     .after = {DEFAULT, 1},
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(C)", "SetDevice(0)", "StreamIsCapturing(P)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "SetDevice(1)", "StreamWaitEvent(C, E)",
               "EventDestroy(E)", "SetDevice(0)"}},
    {.what = "two streams are pending",
     .before = {{NON_BLOCKING}, {BLOCKING}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamIsCapturing(P2)", "GetDevice()",
               "EventCreateWithFlags(E1, 2)", "EventRecord(E1, P1)", "StreamWaitEvent(C, E1)", "EventDestroy(E1)",
               "EventCreateWithFlags(E2, 2)", "EventRecord(E2, P2)", "StreamWaitEvent(C, E2)", "EventDestroy(E2)"}},
    {.what = "three are pending, of which P2 is C",
     .before = {{NON_BLOCKING}, {NON_BLOCKING}, {NON_BLOCKING}},
     .after = {SAME, 1},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamIsCapturing(P3)", "GetDevice()",
               "EventCreateWithFlags(E1, 2)", "EventRecord(E1, P1)", "StreamWaitEvent(C, E1)", "EventDestroy(E1)",
               "EventCreateWithFlags(E2, 2)", "EventRecord(E2, P3)", "StreamWaitEvent(C, E2)", "EventDestroy(E2)"}},
    {.what = "two are pending, on devices 0 and 1",
     .before = {{NON_BLOCKING}, {NON_BLOCKING, 1}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamIsCapturing(P2)", "GetDevice()",
               "EventCreateWithFlags(E1, 2)", "EventRecord(E1, P1)", "StreamWaitEvent(C, E1)", "EventDestroy(E1)",
               "SetDevice(1)", "EventCreateWithFlags(E2, 2)", "EventRecord(E2, P2)", "StreamWaitEvent(C, E2)",
               "EventDestroy(E2)", "SetDevice(0)"}},

    /* Captures (S6). StreamIsCapturing is called for a default stream P too. A default stream never captures; but the
     * call fails, and spoils nothing, if a record on P would spoil the capture of a blocking stream. */
    {.what = "P captures, C does not: it joins the capture",
     .before = {{NON_BLOCKING, 0, 1}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)", "GetDevice()",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "the same, P on device 1, C on 2",
     .before = {{BLOCKING, 1, 1}},
     .after = {BLOCKING, 2},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)", "GetDevice()", "SetDevice(1)",
               "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)",
               "SetDevice(0)"}},
    {.what = "both are in one capture",
     .before = {{NON_BLOCKING, 0, 1}},
     .after = {NON_BLOCKING, 0, 1},
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)",
               "GetDevice()", "EventCreateWithFlags(E, 2)", "EventRecord(E, P)", "StreamWaitEvent(C, E)",
               "EventDestroy(E)"}},
    {.what = "CUDA: the same, each the thread's default stream, P of device 0, C of 1",
     .builds = CUDA | CUDA_PER_THREAD,
     .before = {{OF_THREAD, 0, 1}},
     .after = {OF_THREAD, 1, 1},
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "SetDevice(0)",
               "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)", "EventCreateWithFlags(E, 2)", "EventRecord(E, P)",
               "SetDevice(1)", "StreamWaitEvent(C, E)", "EventDestroy(E)", "SetDevice(0)"}},
    {.what = "two are pending, in one capture: C joins it",
     .before = {{NON_BLOCKING, 0, 1}, {NON_BLOCKING, 0, 1}},
     .after = {NON_BLOCKING},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamGetCaptureInfo(P1)", "StreamIsCapturing(P2)",
               "StreamGetCaptureInfo(P2)", "GetDevice()", "EventCreateWithFlags(E1, 2)", "EventRecord(E1, P1)",
               "StreamWaitEvent(C, E1)", "EventDestroy(E1)", "EventCreateWithFlags(E2, 2)", "EventRecord(E2, P2)",
               "StreamWaitEvent(C, E2)", "EventDestroy(E2)"}},
    {.what = "two are pending, in two captures",
     .before = {{NON_BLOCKING, 0, 1}, {NON_BLOCKING, 0, 2}},
     .after = {NON_BLOCKING},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "capture different graphs",
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamGetCaptureInfo(P1)", "StreamIsCapturing(P2)",
               "StreamGetCaptureInfo(P2)"}},
    {.what = "two are pending: P1 captures, and the work of P2 is done",
     .before = {{NON_BLOCKING, 0, 1}, {NON_BLOCKING}},
     .after = {NON_BLOCKING},
     .done = true,
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamGetCaptureInfo(P1)", "StreamIsCapturing(P2)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P2)", "ThreadExchangeStreamCaptureMode(0)",
               "GetDevice()", "EventCreateWithFlags(E, 2)", "EventRecord(E, P1)", "StreamWaitEvent(C, E)",
               "EventDestroy(E)"}},
    {.what = "two are pending: P1 captures, and the work of P2 is pending; C joins nothing",
     .before = {{NON_BLOCKING, 0, 1}, {NON_BLOCKING}},
     .after = {NON_BLOCKING},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "finish that work before the capture, or ask with stream=-1",
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamGetCaptureInfo(P1)", "StreamIsCapturing(P2)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P2) -> 600", "GetLastError() -> 600",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "the same the other way round",
     .before = {{NON_BLOCKING}, {NON_BLOCKING, 0, 1}},
     .after = {NON_BLOCKING},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "finish that work before the capture, or ask with stream=-1",
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamIsCapturing(P2)", "StreamGetCaptureInfo(P2)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P1) -> 600", "GetLastError() -> 600",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "two are pending: P1 captures, P2 is the default stream",
     .before = {{NON_BLOCKING, 0, 1}, {DEFAULT}},
     .after = {NON_BLOCKING},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "finish that work before the capture, or ask with stream=-1",
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P1)", "StreamGetCaptureInfo(P1)", "GetDevice()",
               "StreamIsCapturing(P2)", "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P2) -> 600",
               "GetLastError() -> 600", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "both capture, different graphs",
     .before = {{NON_BLOCKING, 0, 1}},
     .after = {NON_BLOCKING, 0, 2},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "capture different graphs",
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)"}},
    {.what = "C captures, P does not, and its work is done",
     .before = {{NON_BLOCKING}},
     .after = {NON_BLOCKING, 0, 1},
     .done = true,
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "StreamIsCapturing(P)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "C captures, P does not, and its work is pending",
     .before = {{NON_BLOCKING}},
     .after = {NON_BLOCKING, 0, 1},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "finish that work before the capture, or ask with stream=-1",
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "StreamIsCapturing(P)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P) -> 600", "GetLastError() -> 600",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "C captures, P is the default stream",
     .before = {{DEFAULT}},
     .after = {NON_BLOCKING, 0, 1},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "finish that work before the capture, or ask with stream=-1",
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "GetDevice()", "StreamIsCapturing(P)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P) -> 600", "GetLastError() -> 600",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "C captures, P is the default stream, and its work is done",
     .before = {{DEFAULT}},
     .after = {NON_BLOCKING, 0, 1},
     .done = true,
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "GetDevice()", "StreamIsCapturing(P)",
               "ThreadExchangeStreamCaptureMode(2)", "StreamQuery(P)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "C captures and the default stream P waits for it",
     .before = {{DEFAULT}},
     .after = {BLOCKING, 0, 1},
     .done = true,
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "ErrorStreamCaptureImplicit",
     .calls = {"StreamIsCapturing(C)", "StreamGetCaptureInfo(C)", "GetDevice()", "StreamIsCapturing(P) -> 906",
               "GetLastError() -> 906"}},
    {.what = "P captures, C is the default stream",
     .before = {{NON_BLOCKING, 0, 1}},
     .after = {DEFAULT},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "which the default stream cannot join",
     .calls = {"GetDevice()", "StreamIsCapturing(C)", "StreamIsCapturing(P)", "StreamGetCaptureInfo(P)"}},
    {.what = "P captures, C is the default stream, for which P waits",
     .before = {{BLOCKING, 1, 1}},
     .after = {DEFAULT, 1},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "ErrorStreamCaptureImplicit, the legacy stream would depend on a capturing stream",
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(C) -> 906", "GetLastError() -> 906", "SetDevice(0)"}},
    {.what = "P is the default stream, for which another stream waits that captures",
     .before = {{DEFAULT}},
     .after = {NON_BLOCKING},
     .third = {BLOCKING, 0, 1},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "ErrorStreamCaptureImplicit, the legacy stream would depend on a capturing stream",
     .calls = {"StreamIsCapturing(C)", "GetDevice()", "StreamIsCapturing(P) -> 906", "GetLastError() -> 906"}},
    {.what = "another stream captures, neither P nor C",
     .before = {{NON_BLOCKING}},
     .after = {BLOCKING},
     .third = {BLOCKING, 0, 1},
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)", "GetDevice()", "EventCreateWithFlags(E, 2)",
               "EventRecord(E, P)", "StreamWaitEvent(C, E)", "EventDestroy(E)"}},
    {.what = "the capture of P is spoiled",
     .before = {{NON_BLOCKING, 0, SPOILED}},
     .after = {NON_BLOCKING},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "was invalidated before",
     .calls = {"StreamIsCapturing(C)", "StreamIsCapturing(P)"}},
    {.what = "the capture of C is spoiled",
     .before = {{NON_BLOCKING}},
     .after = {NON_BLOCKING, 0, SPOILED},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "was invalidated before",
     .calls = {"StreamIsCapturing(C)"}},

    {.what = "nothing is pending", .action = SYNCHRONIZE},
    {.what = "work is pending on P",
     .action = SYNCHRONIZE,
     .before = {{NON_BLOCKING, 1}},
     .calls = {"StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)", "StreamSynchronize(P)",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "P is a default stream; another device is current",
     .action = SYNCHRONIZE,
     .before = {{DEFAULT, 1}},
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)",
               "StreamSynchronize(P)", "ThreadExchangeStreamCaptureMode(0)", "SetDevice(0)"}},
    {.what = "two streams are pending",
     .action = SYNCHRONIZE,
     .before = {{NON_BLOCKING}, {OF_THREAD, 2}},
     .calls = {"StreamIsCapturing(P1)", "ThreadExchangeStreamCaptureMode(2)", "StreamSynchronize(P1)",
               "ThreadExchangeStreamCaptureMode(0)", "GetDevice()", "SetDevice(2)", "StreamIsCapturing(P2)",
               "StreamIsCapturing(D)", "ThreadExchangeStreamCaptureMode(2)", "StreamSynchronize(D)",
               "ThreadExchangeStreamCaptureMode(0)", "SetDevice(0)"}},
    {.what = "another stream captures",
     .action = SYNCHRONIZE,
     .before = {{NON_BLOCKING}},
     .third = {NON_BLOCKING, 1, 1},
     .calls = {"StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)", "StreamSynchronize(P)",
               "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "P captures",
     .action = SYNCHRONIZE,
     .before = {{NON_BLOCKING, 0, 1}},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "captures a graph: the host cannot wait for it",
     .calls = {"StreamIsCapturing(P)", "StreamGetCaptureInfo(P)"}},
    {.what = "P is the default stream, for which another stream waits that captures",
     .action = SYNCHRONIZE,
     .before = {{DEFAULT}},
     .third = {BLOCKING, 0, 1},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "ErrorStreamCaptureImplicit, the legacy stream would depend on a capturing stream",
     .calls = {"GetDevice()", "StreamIsCapturing(P) -> 906", "GetLastError() -> 906"}},

    {.what = "nothing is pending: the default stream of the data's device (here 1)",
     .action = COPY_TO_HOST,
     .after = {DEFAULT, 1},
     .calls = {"GetDevice()", "SetDevice(1)", "StreamIsCapturing(D)", "ThreadExchangeStreamCaptureMode(2)",
               "MemcpyAsync(host, M, 64, D)", "StreamSynchronize(D)", "ThreadExchangeStreamCaptureMode(0)",
               "SetDevice(0)"}},
    {.what = "work is pending on P",
     .action = COPY_TO_HOST,
     .before = {{NON_BLOCKING, 1}},
     .calls = {"StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)", "MemcpyAsync(host, M, 64, P)",
               "StreamSynchronize(P)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "work is pending on the default stream",
     .action = COPY_TO_HOST,
     .before = {{DEFAULT}},
     .calls = {"GetDevice()", "StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)",
               "MemcpyAsync(host, M, 64, P)", "StreamSynchronize(P)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "two streams are pending",
     .action = COPY_TO_HOST,
     .before = {{NON_BLOCKING}, {NON_BLOCKING}},
     .calls = {"StreamIsCapturing(P2)", "ThreadExchangeStreamCaptureMode(2)", "StreamSynchronize(P2)",
               "ThreadExchangeStreamCaptureMode(0)", "StreamIsCapturing(P1)", "ThreadExchangeStreamCaptureMode(2)",
               "MemcpyAsync(host, M, 64, P1)", "StreamSynchronize(P1)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "another stream captures",
     .action = COPY_TO_HOST,
     .before = {{NON_BLOCKING}},
     .third = {NON_BLOCKING, 1, 1},
     .calls = {"StreamIsCapturing(P)", "ThreadExchangeStreamCaptureMode(2)", "MemcpyAsync(host, M, 64, P)",
               "StreamSynchronize(P)", "ThreadExchangeStreamCaptureMode(0)"}},
    {.what = "P captures",
     .action = COPY_TO_HOST,
     .before = {{NON_BLOCKING, 0, 1}},
     .code = DLPACK_PY_BUFFER_ERROR,
     .says = "captures a graph: the host cannot wait for it",
     .calls = {"StreamIsCapturing(P)", "StreamGetCaptureInfo(P)"}},
};

/* ---- The scene of a case ------------------------------------------------------------------------------------------- */

enum { P1, P2, P3, C, B, ROLES };

struct member {
    struct role role;
    stream handle; /* the argument; NULL may be a default stream of either kind */
    int device;
    char name[16]; /* the name in the log */
};

static struct scene {
    const struct row *row;
    struct member members[ROLES]; /* NO_STREAM: the case does not have this role */
    size_t count;                 /* of producers */
    unsigned char *data[MOST_BEFORE];
    unsigned char on_host[BYTES];
    char events[2][16]; /* the names of E, or of E1 and E2, in the log */
} scene;

/* Makes the device of a stream current, so that a default handle means this stream. */
static stream
go_to(const struct member *member)
{
    SUCCEEDS(SetDevice(member->device));
    return strcmp(member->name, "per-thread") == 0 ? PER_THREAD : member->handle;
}

static bool
may_capture(const struct member *member)
{
    return member->role.kind == NON_BLOCKING || member->role.kind == BLOCKING || member->role.kind == OF_THREAD;
}

static unsigned long long
capture_of(const struct member *member)
{
    return may_capture(member) ? capture_id(go_to(member)) : 0;
}

static void
join(const struct member *from, const struct member *to)
{
    const stream joined = go_to(from);
    event between = new_event();
    SUCCEEDS(EventRecord(between, joined));
    SUCCEEDS(StreamWaitEvent(go_to(to), between, 0));
    SUCCEEDS(EventDestroy(between));
}

static void
make_stream(struct member *member)
{
    const struct role role = member->role;
    member->device = role.device < 0 ? scene.row->current : role.device;
    SUCCEEDS(SetDevice(member->device));
    if (role.kind == NON_BLOCKING || role.kind == BLOCKING) {
        member->handle = new_stream(role.kind == NON_BLOCKING ? RUNTIME(StreamNonBlocking) : 0);
        snprintf(member->name, sizeof(member->name), "%s", simulated_live_name("stream", 0));
    }
    else {
        member->handle = role.kind == DEFAULT ? LEGACY : role.kind == OF_THREAD ? PER_THREAD : NULL;
        snprintf(member->name, sizeof(member->name), "%s",
                 role.kind == DEFAULT     ? DEFAULT_NAME
                 : role.kind == OF_THREAD ? "per-thread"
                                          : NULL_NAME);
    }
}

/* The first stream of each capture begins the capture, in the strictest mode (global). */
static void
begin_captures(void)
{
    const struct member *first[SPOILED + 1] = {NULL};
    for (int i = 0; i < ROLES; i++) {
        const struct member *member = &scene.members[i];
        const int capture = member->role.kind == NO_STREAM ? 0 : member->role.capture;
        if (capture <= 0)
            continue;
        if (first[capture] != NULL) {
            join(first[capture], member);
            continue;
        }
        first[capture] = member;
        SUCCEEDS(StreamBeginCapture(go_to(member), RUNTIME(StreamCaptureModeGlobal)));
        if (capture == SPOILED) {
            FAILS(StreamQuery(member->handle), RUNTIME(ErrorStreamCaptureUnsupported));
            CAUGHT("captures");
        }
    }
    (void)RUNTIME(GetLastError)();
}

/* Queues work on separate data for each stream that does not capture. If the case orders streams and the work is not
 * done, the stream is held: the host must not wait. */
static void
queue_work(void)
{
    for (size_t i = 0; i < scene.count; i++) {
        const struct member *member = &scene.members[i];
        const bool late = scene.row->action == ORDER && !scene.row->done;
        const stream work = go_to(member);
        scene.data[i] = new_memory(BYTES);
        if (member->role.capture > 0)
            continue;
        if (late)
            simulated_hold(work);
        simulated_fill(work, scene.data[i], 40 + (int)i, BYTES);
        if (!late && scene.row->done)
            SUCCEEDS(StreamSynchronize(work));
    }
}

/* Queues work before captures begin: allocating memory would spoil a capture. */
static void
set_scene(const struct row *row)
{
    scene.row = row;
    scene.count = 0;
    memset(scene.data, 0, sizeof(scene.data));
    memset(scene.on_host, 0, sizeof(scene.on_host));
    for (int i = 0; i < ROLES; i++) {
        struct member *member = &scene.members[i];
        memset(member, 0, sizeof(*member));
        member->role = i < MOST_BEFORE ? row->before[i] : i == C ? row->after : row->third;
        scene.count += i < MOST_BEFORE && member->role.kind != NO_STREAM;
        if (member->role.kind == SAME)
            *member = scene.members[member->role.device];
        else if (member->role.kind != NO_STREAM)
            make_stream(member);
    }
    queue_work();
    if (row->action == COPY_TO_HOST && scene.count == 0) {
        SUCCEEDS(SetDevice(scene.members[C].device));
        scene.data[0] = new_memory(BYTES);
        simulated_fill(LEGACY, scene.data[0], 39, BYTES);
    }
    begin_captures();
    SUCCEEDS(SetDevice(row->current));
    CLEAN();
}

static dlpack_py_work_stream
as_author(const struct member *member)
{
    return PLATFORM(work_stream)(member->handle, member->role.device < 0 ? DLPACK_PY_CURRENT_DEVICE : member->device);
}

static int
act(dlpack_py_error *error)
{
    const struct member *members = scene.members;
    dlpack_py_work_stream before[MOST_BEFORE];
    const int64_t shape = BYTES;
    DLTensor from, to = dlpack_py_cpu_tensor(scene.on_host, DLPACK_PY_UINT8, 1, &shape, NULL);

    for (size_t i = 0; i < scene.count; i++)
        before[i] = as_author(&members[i]);
    if (scene.row->action == SYNCHRONIZE)
        return dlpack_device_synchronize(before, scene.count, error);
    if (scene.row->action == COPY_TO_HOST) {
        const struct member *place = scene.count > 0 ? &members[P1] : &members[C];
        from = PLATFORM(tensor)(scene.data[scene.count > 0 ? scene.count - 1 : 0], place->device, DLPACK_PY_UINT8, 1,
                                &shape, NULL);
        return dlpack_device_copy_to_host(&to, &from, 0, before, scene.count, error);
    }
    if (scene.count == 1 && members[P1].role.device >= 0)
        return PLATFORM(order)(members[P1].handle, members[P1].device, members[C].handle, members[C].device, error);
    return dlpack_device_order(before, scene.count, as_author(&members[C]), error);
}

/* Checks the order: the next kernel of the consumer, or the host, sees the data of each producer. */
static void
check_data(void)
{
    const unsigned long long capture = capture_of(&scene.members[C]);
    for (size_t i = 0; i < scene.count; i++) {
        if (scene.members[i].role.capture > 0) {
            CHECK_NUMBER(capture, capture_of(&scene.members[i]));
            continue;
        }
        if (scene.row->action == ORDER && capture == 0)
            simulated_expect(go_to(&scene.members[C]), scene.data[i], 40 + (int)i, BYTES);
        if (scene.row->action != ORDER)
            CHECK(simulated_host_may_read(scene.data[i]));
    }
    if (scene.row->action == COPY_TO_HOST)
        CHECK_NUMBER(scene.on_host[0], 39 + (int)scene.count);
    simulated_settle();
}

/* Ends the captures, and lets held work finish, without an error or a violation. */
static void
clear_scene(void)
{
    const struct member *origin[SPOILED + 1] = {NULL};
    for (int i = 0; i < ROLES; i++) {
        const struct member *member = &scene.members[i];
        if (member->role.kind != NO_STREAM && member->role.capture > 0 && origin[member->role.capture] == NULL)
            origin[member->role.capture] = member;
    }
    for (int capture = 1; capture <= SPOILED; capture++) {
        const struct member *begun = origin[capture];
        graph made = NULL;
        if (begun == NULL)
            continue;
        for (int i = 0; i < ROLES; i++) {
            const struct member *member = &scene.members[i];
            if (member != begun && capture_of(member) != 0 && capture_of(member) == capture_of(begun))
                join(member, begun);
        }
        FAILS(StreamEndCapture(go_to(begun), &made),
              capture == SPOILED ? RUNTIME(ErrorStreamCaptureInvalidated) : RUNTIME(Success));
        if (made != NULL)
            SUCCEEDS(GraphDestroy(made));
    }
    for (int i = 0; i < ROLES; i++) {
        const struct member *member = &scene.members[i];
        if (member->role.kind != NO_STREAM)
            simulated_let_go(go_to(member));
    }
    for (int device = 0; device < 3; device++) {
        SUCCEEDS(SetDevice(device));
        SUCCEEDS(DeviceSynchronize());
    }
    (void)RUNTIME(GetLastError)();
    CLEAN();
}

/* ---- The calls ----------------------------------------------------------------------------------------------------- */

/* The name in the log for a name in the table. The first use of an event name sets its name in the log. */
static const char *
name_in_log(const char *token, size_t length, const char *log)
{
    const int number = length == 2 ? token[1] - '1' : 0;
    char *kept = scene.events[number];
    switch (token[0]) {
    case 'P': return scene.members[number].name;
    case 'C': return scene.members[C].name;
    case 'B': return scene.members[B].name;
    case 'D': return DEFAULT_NAME;
    case 'M': return strncmp(log, "memory ", 7) == 0 ? "memory" : "none";
    default:
        if (kept[0] == '\0')
            sscanf(log, "%15[event 0-9]", kept);
        return kept;
    }
}

/* Whether a line of the log is equal to a call of the table. */
static bool
is_call(const char *wanted, const char *log)
{
    while (*wanted != '\0') {
        const size_t length = wanted[1] >= '1' && wanted[1] <= '3' ? 2 : 1;
        const bool token = strchr("PCBDEM", *wanted) != NULL && strchr(",)", wanted[length]) != NULL;
        const char *name = token ? name_in_log(wanted, length, log) : wanted;
        const size_t used = token ? strlen(name) : 1;
        if (strncmp(log, name, used) != 0)
            return false;
        log += used;
        wanted += token ? length : 1;
        if (token && strcmp(name, "memory") == 0)
            log += strspn(log, " 0123456789");
    }
    return *log == '\0';
}

static void
check_calls(void)
{
    size_t at = 0, wanted_count = 0;
    while (wanted_count < MOST_CALLS && scene.row->calls[wanted_count] != NULL)
        wanted_count++;
    while (at < wanted_count && simulated_call(at) != NULL && is_call(scene.row->calls[at], simulated_call(at)))
        at++;
    if (at == wanted_count && simulated_calls() == at)
        return;
    printf("%s: of %zu calls %zu were as they should be. P is %s, C is %s; these were made:\n",
           scene.row->what ? scene.row->what : "(as above)", wanted_count, at, scene.members[P1].name,
           scene.members[C].name);
    for (size_t i = 0; i < simulated_calls(); i++)
        printf("    %s\n", simulated_call(i));
    check_failures++;
}

static void
check_outcome(int outcome, const dlpack_py_error *error)
{
    const struct row *row = scene.row;
    CHECK_NUMBER(outcome, row->code == 0 ? 0 : -1);
    CHECK_NUMBER(error->code, row->code);
    if (row->code != 0 && strstr(error->text, row->says) == NULL) {
        printf("%s: the error is '%s', not '%s'\n", row->what, error->text, row->says);
        check_failures++;
    }
}

static void
new_machine(void)
{
    CLEAN();
    simulated_reset(3);
    simulated_delay(20);
    memset(&scene.events, 0, sizeof(scene.events));
}

static void
each_case_makes_its_calls_and_no_others(const struct row *row)
{
    dlpack_py_error error = {0, 0, ""};
    set_scene(row);
    simulated_mark();
    simulated_begin();
    const int outcome = act(&error);
    simulated_end();
    CLEAN();
    check_calls();
    check_outcome(outcome, &error);
    if (outcome == 0)
        check_data();
    else
        CHECK_NUMBER(capture_of(&scene.members[C]) != 0, row->after.capture > 0 && row->after.capture < SPOILED);
    clear_scene();
    CHECK_NUMBER(simulated_live("event"), 0); /* each event is destroyed right after the order is queued */
}

static bool
is_prefix(const char *text, const char *of)
{
    return strncmp(text, of, strlen(text)) == 0;
}

/* The nth call fails (times 1), or all calls from the nth on (times 0): the case fails with this error. Returns false
 * if the case makes fewer than n calls. */
static bool
fail_once(const struct row *row, int nth, int times, RUNTIME(Error_t) failure, int32_t code)
{
    char text[200] = "";
    dlpack_py_error error = {0, 0, ""};
    new_machine();
    set_scene(row);
    simulated_mark();
    simulated_begin();
    simulated_fail(NULL, nth, times, (int)failure);
    const int outcome = act(&error);
    const int failed = simulated_failed();
    simulated_fail(NULL, 0, 0, 0);
    simulated_end();
    if (failed == 0) {
        clear_scene();
        return false;
    }

    size_t at = 0;
    for (int seen = 0; simulated_call(at) != NULL; at++) {
        seen += !is_prefix("GetLastError", simulated_call(at));
        if (seen == nth)
            break;
    }
    char call[100];
    snprintf(call, sizeof(call), "%s", simulated_call(at) != NULL ? simulated_call(at) : "");
    const bool last = simulated_calls() == at + 2; /* GetLastError follows the last call */
    const bool gives_back_device = last && is_prefix("SetDevice(0)", call);
    const bool gives_back_mode = is_prefix("ThreadExchangeStreamCaptureMode(0)", call);
    /* If the case is an error by itself, the device is restored after this error, and the first error is reported. */
    if ((row->code != 0 && gives_back_device) || (times == 1 && is_prefix("EventDestroy", call)))
        check_outcome(outcome, &error); /* an event that cannot be destroyed is no error */
    else if (is_prefix("EventDestroy", call))
        CHECK(outcome == 0 || error.code == code); /* a later call fails, or no call */
    else {
        snprintf(text, sizeof(text), RUNTIME_PREFIX "%.*s: %s, %s", (int)strcspn(call, "("), call,
                 RUNTIME(GetErrorName)(failure), RUNTIME(GetErrorString)(failure));
        /* The host waits for the copy even after an error. If the wait fails too, the memory must not be freed. */
        bool copies = false;
        for (size_t i = 0; i < at; i++)
            copies = copies || is_prefix("MemcpyAsync", simulated_call(i));
        const bool waits = is_prefix("StreamSynchronize", call);
        const bool unfinished = (copies && waits) || (times != 1 && is_prefix("MemcpyAsync", call));
        CHECK_NUMBER(outcome, unfinished ? DLPACK_DEVICE_COPY_UNFINISHED : -1);
        CHECK_NUMBER(error.code, code);
        if (strcmp(error.text, text) != 0) {
            printf("%s: the error is '%s', not '%s'\n", row->what, error.text, text);
            check_failures++;
        }
    }
    if (times != 1) { /* device and mode cannot be restored */
        CHECK(RUNTIME(PeekAtLastError)() == RUNTIME(Success));
        simulated_forgive();
    }
    else if (gives_back_device)
        CAUGHT("the current device was");
    else if (gives_back_mode)
        CAUGHT("the thread's capture mode was");
    else
        CLEAN();

    capture_mode mode = RUNTIME(StreamCaptureModeGlobal);
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&mode));
    SUCCEEDS(SetDevice(row->current));
    CHECK_NUMBER(blocks, 0);
    if (row->after.capture != 0 || row->before[0].capture == 0) { /* otherwise C may have joined the capture */
        error.code = 0;
        check_outcome(act(&error), &error);
    }
    clear_scene();
    return true;
}

static void
each_call_of_a_case_may_fail_and_nothing_stays_of_it(const struct row *row)
{
    const struct {
        RUNTIME(Error_t) error;
        int32_t code;
    } failures[] = {
        {RUNTIME(ErrorLaunchFailure), DLPACK_PY_RUNTIME_ERROR},
        {OUT_OF_MEMORY, DLPACK_PY_MEMORY_ERROR},
        {RUNTIME(ErrorStreamCaptureUnsupported), DLPACK_PY_BUFFER_ERROR},
    };
    int calls = 0;
    for (int i = 0; i < MOST_CALLS && row->calls[i] != NULL; i++)
        calls += strstr(row->calls[i], "GetLastError") == NULL;
    for (int i = 0; i < COUNT(failures); i++) {
        int nth = 1;
        while (fail_once(row, nth, 1, failures[i].error, failures[i].code))
            nth++;
        CHECK_NUMBER(nth - 1, calls);
    }
    for (int nth = 1; nth <= calls; nth++)
        CHECK(fail_once(row, nth, 0, failures[0].error, failures[0].code));
}

/* ---- Copies to the host -------------------------------------------------------------------------------------------- */

/* Copies tensors to the host, and checks the number of copy calls. Offsets begin at the first byte of the memory. */
static void
strided_tensors_come_to_the_host_as_the_host_would_copy_them(void)
{
    enum { MEMORY = 400000 };
    static const struct {
        const char *what;
        uint32_t dtype;
        uint64_t flags;
        int64_t offset; /* of the first element, in bytes */
        int32_t ndim;
        int64_t shape[4], strides[4];
        int copies;
    } cases[] = {
        {"C order", DLPACK_PY_FLOAT32, 0, 0, 2, {6, 5}, {5, 1}, 1},
        {"F order", DLPACK_PY_FLOAT32, 0, 0, 2, {6, 5}, {1, 6}, 1},
        {"transposed", DLPACK_PY_INT16, 0, 8, 3, {3, 4, 5}, {1, 15, 3}, 1},
        {"backwards", DLPACK_PY_FLOAT64, 0, 800, 1, {100}, {-1}, 1},
        {"backwards in one of two", DLPACK_PY_FLOAT64, 0, 800, 2, {4, 10}, {-10, 1}, 1},
        {"every second", DLPACK_PY_UINT8, 0, 1, 1, {50}, {2}, 1},
        {"broadcast", DLPACK_PY_INT32, 0, 16, 2, {7, 3}, {0, 1}, 1},
        {"one element for all", DLPACK_PY_INT32, 0, 16, 2, {7, 3}, {0, 0}, 1},
        {"a column of a wide matrix", DLPACK_PY_FLOAT32, 0, 12, 1, {90}, {100}, 1},
        {"the same backwards", DLPACK_PY_FLOAT32, 0, 36000, 1, {90}, {-100}, 1},
        {"a few backwards, far apart", DLPACK_PY_FLOAT32, 0, 280000, 1, {4}, {-23000}, 1},
        {"two columns, each row as far from the next", DLPACK_PY_FLOAT32, 0, 12, 2, {90, 2}, {100, 50}, 1},
        {"two columns apart", DLPACK_PY_FLOAT32, 0, 12, 2, {90, 2}, {100, 40}, 1},
        {"two columns far apart", DLPACK_PY_FLOAT32, 0, 12, 2, {3, 2}, {33000, 15000}, 1},
        {"a block of a wide matrix", DLPACK_PY_FLOAT32, 0, 12, 2, {90, 4}, {100, 1}, 1},
        {"blocks of several", DLPACK_PY_UINT8, 0, 5, 3, {3, 10, 4}, {70000, 100, 1}, 1},
        {"a block of columns in each plane", DLPACK_PY_UINT8, 0, 5, 3, {3, 10, 4}, {1000, 100, 1}, 1},
        {"blocks of several of several", DLPACK_PY_UINT8, 0, 5, 4, {2, 3, 10, 4}, {200000, 66000, 100, 1}, 1},
        {"rows far apart", DLPACK_PY_COMPLEX64, 0, 0, 2, {2, 10}, {2000, 1}, 1},
        {"an extent of 1 with any stride", DLPACK_PY_INT32, 0, 0, 3, {1, 4, 1}, {77, 1, -5}, 1},
        {"a scalar", DLPACK_PY_FLOAT64, 0, 24, 0, {0}, {0}, 1},
        {"no elements", DLPACK_PY_FLOAT64, 0, 0, 2, {0, 4}, {4, 1}, 0},
        {"4 bits, compact", DLPACK_PY_FLOAT4_E2M1FN, 0, 0, 2, {3, 5}, {5, 1}, 1},
        {"4 bits, every third", DLPACK_PY_FLOAT4_E2M1FN, 0, 2, 1, {9}, {3}, 1},
        {"4 bits, far apart", DLPACK_PY_FLOAT4_E2M1FN, 0, 2, 1, {9}, {301}, 1},
        {"6 bits, backwards", DLPACK_PY_FLOAT6_E3M2FN, 0, 100, 1, {40}, {-1}, 1},
        {"4 bits, padded, far apart",
         DLPACK_PY_FLOAT4_E2M1FN,
         DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED,
         2,
         1,
         {9},
         {301},
         1},
    };
    unsigned char on_host[4096], wanted[4096];
    dlpack_py_error error;

    for (int i = 0; i < COUNT(cases); i++) {
        new_machine();
        unsigned char *data = new_memory(MEMORY), same[MEMORY];
        stream work = new_stream(0);
        for (int k = 0; k < MEMORY; k++)
            same[k] = (unsigned char)(k % 251 ^ k / 251);
        SUCCEEDS(MemcpyAsync(data, same, MEMORY, RUNTIME(MemcpyHostToDevice), work));
        memset(on_host, 0, sizeof(on_host));
        memset(wanted, 0, sizeof(wanted));
        DLTensor from = PLATFORM(tensor)(data, 0, cases[i].dtype, cases[i].ndim, cases[i].shape, cases[i].strides);
        DLTensor as_host = dlpack_py_cpu_tensor(same, cases[i].dtype, cases[i].ndim, cases[i].shape, cases[i].strides);
        from.byte_offset = as_host.byte_offset = (uint64_t)cases[i].offset;
        const DLTensor to = dlpack_py_cpu_tensor(on_host, cases[i].dtype, cases[i].ndim, cases[i].shape, NULL);
        const DLTensor to_wanted = dlpack_py_cpu_tensor(wanted, cases[i].dtype, cases[i].ndim, cases[i].shape, NULL);
        const dlpack_py_work_stream before = PLATFORM(work_stream)(work, 0);

        CHECK_NUMBER(dlpack_py_validate(&from, cases[i].flags, &error), 0);
        CHECK_NUMBER(dlpack_py_copy(&to_wanted, &as_host, cases[i].flags, &error), 0);
        simulated_mark();
        CHECK_NUMBER(dlpack_device_copy_to_host(&to, &from, cases[i].flags, &before, 1, &error), 0);
        int copied = 0;
        for (size_t k = 0; k < simulated_calls(); k++)
            copied += is_prefix("Memcpy", simulated_call(k));
        if (memcmp(on_host, wanted, sizeof(wanted)) != 0 || copied != cases[i].copies) {
            printf("%s: %d copies, the bytes %s\n", cases[i].what, copied,
                   memcmp(on_host, wanted, sizeof(wanted)) == 0 ? "are right" : "differ");
            check_failures++;
        }
        SUCCEEDS(StreamSynchronize(work));
        CHECK_NUMBER(blocks, 0);
        CLEAN();
    }
}

/* The host waits even if a copy fails: the runtime may still write. */
static void
a_copy_that_fails_leaves_nothing_under_way(void)
{
    new_machine();
    float on_host[90];
    const int64_t shape[1] = {90}, far_apart[1] = {-20000}, every_second[1] = {2};
    stream work = new_stream(0);
    const DLTensor tensors[] = {
        PLATFORM(tensor)(new_memory(7120004) + 7120000, 0, DLPACK_PY_FLOAT32, 1, shape, far_apart),
        PLATFORM(tensor)(new_memory(720), 0, DLPACK_PY_FLOAT32, 1, shape, every_second),
        PLATFORM(tensor)(new_memory(90), 0, DLPACK_PY_FLOAT4_E2M1FN, 1, shape, every_second),
    };
    const dlpack_py_work_stream before = PLATFORM(work_stream)(work, 0);
    dlpack_py_error error;

    for (int i = 0; i < COUNT(tensors); i++) {
        const DLTensor *from = &tensors[i], to = dlpack_py_cpu_tensor(on_host, dlpack_py_dtype(from), 1, shape, NULL);
        simulated_fail("MemcpyAsync", 1, 1, RUNTIME(ErrorLaunchFailure));
        CHECK_NUMBER(dlpack_device_copy_to_host(&to, from, 0, &before, 1, &error), -1);
        CHECK(strstr(error.text, "MemcpyAsync: ") != NULL);
        CHECK_NUMBER(simulated_failed(), 1);
        CHECK_NUMBER(simulated_pending(work), 0);
        CHECK_NUMBER(blocks, 0);

        no_memory = 1;
        CHECK_NUMBER(dlpack_device_copy_to_host(&to, from, 0, &before, 1, &error), -1);
        CHECK_NUMBER(error.code, DLPACK_PY_MEMORY_ERROR);
        no_memory = 0;

        simulated_fail("StreamSynchronize", 1, 1, RUNTIME(ErrorLaunchFailure));
        CHECK_NUMBER(dlpack_device_copy_to_host(&to, from, 0, &before, 1, &error), DLPACK_DEVICE_COPY_UNFINISHED);
        CHECK(strstr(error.text, "StreamSynchronize: ") != NULL);
        CHECK_NUMBER(blocks, 1); /* the runtime may still write to it */
        give_block(last_block);
        simulated_fail(NULL, 0, 0, 0);
        CHECK_NUMBER(dlpack_device_copy_to_host(&to, from, 0, &before, 1, &error), 0);
        CHECK_NUMBER(blocks, 0);
    }
    CLEAN();
}

/* 3 elements of 4 bits fill a byte and a half. A copy sets the other half to 0. */
static void
a_compact_copy_that_fails_changes_nothing(void)
{
    new_machine();
    const int64_t shape[1] = {3}, compact[1] = {1};
    const DLTensor from = PLATFORM(tensor)(new_memory(2), 0, DLPACK_PY_FLOAT4_E2M1FN, 1, shape, compact);
    unsigned char on_host[2] = {0xff, 0xff};
    const DLTensor to = dlpack_py_cpu_tensor(on_host, DLPACK_PY_FLOAT4_E2M1FN, 1, shape, NULL);
    dlpack_py_error error;

    simulated_fail("MemcpyAsync", 1, 1, RUNTIME(ErrorLaunchFailure));
    CHECK_NUMBER(dlpack_device_copy_to_host(&to, &from, 0, NULL, 0, &error), -1);
    CHECK_NUMBER(simulated_failed(), 1);
    CHECK(on_host[0] == 0xff && on_host[1] == 0xff);
    simulated_fail(NULL, 0, 0, 0);
    CHECK_NUMBER(dlpack_device_copy_to_host(&to, &from, 0, NULL, 0, &error), 0);
    CHECK(on_host[1] <= 0x0f);
    CLEAN();
}

/* At most eight streams may be pending: the runtime is not called for more. */
static void
nine_streams_are_refused(void)
{
    dlpack_py_work_stream before[DLPACK_PY_MAX_PENDING + 1];
    dlpack_py_error error;

    new_machine();
    for (int i = 0; i < COUNT(before); i++)
        before[i] = PLATFORM(work_stream)(new_stream(0), 0);
    const dlpack_py_work_stream after = PLATFORM(work_stream)(new_stream(0), 0);
    simulated_mark();
    CHECK_NUMBER(dlpack_device_order(before, COUNT(before), after, &error), -1);
    CHECK_NUMBER(error.code, DLPACK_PY_BUFFER_ERROR);
    CHECK_NUMBER(simulated_calls(), 0);
    CHECK_NUMBER(dlpack_device_order(before, COUNT(before) - 1, after, &error), 0);
    CLEAN();
}

/* ---- Streams by their numbers, and the device of a pointer ---------------------------------------------------------- */

static void
streams_cross_the_protocol_by_their_numbers(void)
{
#if defined(__HIP_PLATFORM_AMD__)
    CHECK_NUMBER(dlpack_rocm_stream(NULL), 0);
    CHECK_NUMBER(dlpack_rocm_stream((hipStream_t)1), 0); /* hipStreamLegacy of newer versions */
    CHECK_NUMBER(dlpack_rocm_stream((hipStream_t)2), 2);
#else
    CHECK_NUMBER(dlpack_cuda_stream(NULL), BUILD == CUDA_PER_THREAD ? 2 : 1);
    CHECK_NUMBER(dlpack_cuda_stream(cudaStreamLegacy), 1);
    CHECK_NUMBER(dlpack_cuda_stream(cudaStreamPerThread), 2);
#endif
    CHECK(PLATFORM(stream)((stream)UINTPTR_MAX) == UINTPTR_MAX);
}

static void
check_device(const void *pointer, int type, int id)
{
    DLDevice device;
    dlpack_py_error error;
    simulated_begin();
    CHECK_NUMBER(PLATFORM(find_device)(pointer, &device, &error), 0);
    simulated_end();
    CHECK_NUMBER(device.device_type, type);
    CHECK_NUMBER(device.device_id, id);
}

/* D9 */
static void
the_device_of_a_pointer_is_found(void)
{
    const int own = BUILD == ROCM ? kDLROCM : kDLCUDA;
    void *pinned = NULL, *managed = NULL;
    DLDevice device;
    dlpack_py_error error;
    int host = 0;

    new_machine();
    SUCCEEDS(SetDevice(2));
    unsigned char *memory = new_memory(64);
    SUCCEEDS(MALLOC_PINNED(&pinned, 64));
    SUCCEEDS(MallocManaged(&managed, 64, RUNTIME(MemAttachGlobal)));
    SUCCEEDS(SetDevice(0));
    check_device(memory + 63, own, 2);
    check_device(pinned, own + 1, 0);
    check_device(managed, BUILD == ROCM ? kDLROCM : kDLCUDAManaged, BUILD == ROCM ? 2 : 0);
    check_device(&host, kDLCPU, 0);
#if !defined(__HIP_PLATFORM_AMD__) || HIP_VERSION_MAJOR >= 6
    for (int is_error = 0; is_error < 2; is_error++) {
        simulated_unknown_memory_is_error(is_error);
        check_device(&host, kDLCPU, 0);
    }
#endif
    simulated_fail("PointerGetAttributes", 1, 1, RUNTIME(ErrorInsufficientDriver)); /* the driver is too old */
    check_device(memory, kDLCPU, 0);
    simulated_fail("PointerGetAttributes", 1, 1, RUNTIME(ErrorLaunchFailure));
    CHECK_NUMBER(PLATFORM(find_device)(memory, &device, &error), -1);
    CHECK_NUMBER(error.code, DLPACK_PY_RUNTIME_ERROR);
    CHECK(strstr(error.text, "PointerGetAttributes: ") != NULL);
    CLEAN();
    simulated_reset(0); /* no device */
    check_device(&host, kDLCPU, 0);
    new_machine();
}

/* ---- Threads ------------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 25 };

static void *
hand_over_many_times(void *argument)
{
    const int device = *(int *)argument % 2;
    SUCCEEDS(SetDevice(device));
    stream producer = new_stream(RUNTIME(StreamNonBlocking)), consumer = new_stream(RUNTIME(StreamNonBlocking));
    const dlpack_py_work_stream before = PLATFORM(work_stream)(producer, device);
    const dlpack_py_work_stream after = PLATFORM(work_stream)(consumer, device);
    unsigned char *data = new_memory(BYTES);
    dlpack_py_error error;
    for (int i = 0; i < ROUNDS; i++) {
        simulated_fill(producer, data, i, BYTES);
        CHECK_NUMBER(dlpack_device_order(&before, 1, after, &error), 0);
        simulated_expect(consumer, data, i, BYTES);
        CHECK_NUMBER(dlpack_device_order(&after, 1, before, &error), 0);
    }
    SUCCEEDS(StreamSynchronize(consumer));
    CHECK_NUMBER(data[0], ROUNDS - 1);
    SUCCEEDS(StreamDestroy(producer));
    SUCCEEDS(StreamDestroy(consumer));
    return NULL;
}

static void
threads_order_at_once(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    new_machine();
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, hand_over_many_times, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_NUMBER(simulated_live("stream"), 0);
    CHECK_NUMBER(simulated_live("event"), 0);
    CLEAN();
}

/* ---- The tables as text -------------------------------------------------------------------------------------------- */

static void
print_calls(const struct row *row)
{
    const char *between = "";
    for (int i = 0; i < MOST_CALLS && row->calls[i] != NULL; i++) {
        printf("%s`%s`", between, row->calls[i]);
        between = ", ";
    }
    if (row->calls[0] == NULL)
        printf("none");
    if (row->code != 0)
        printf("; then %s", row->code == DLPACK_PY_BUFFER_ERROR   ? "BufferError"
                            : row->code == DLPACK_PY_MEMORY_ERROR ? "MemoryError"
                                                                  : "RuntimeError");
}

static void
print_tables(void)
{
    static const char *const actions[] = {
        [ORDER] = "The consumer's stream C comes after the producer's P",
        [SYNCHRONIZE] = "The host waits for the producer's stream P",
        [COPY_TO_HOST] = "The data M is copied to the host",
    };
    for (int i = 0; i < COUNT(rows); i++) {
        if (i == 0 || rows[i].action != rows[i - 1].action)
            printf("%s| %s | calls |\n|---|---|\n", i == 0 ? "" : "\n", actions[rows[i].action]);
        if (rows[i].what == NULL)
            continue; /* the row of the other build, printed with the row above */
        printf("| %s | ", rows[i].what);
        print_calls(&rows[i]);
        printf(" |\n");
    }
}

int
main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--table") == 0) {
        print_tables();
        return 0;
    }
    for (int i = 0; i < COUNT(rows); i++) {
        if (rows[i].builds != 0 && (rows[i].builds & BUILD) == 0)
            continue;
        const int before = check_failures;
        new_machine();
        each_case_makes_its_calls_and_no_others(&rows[i]);
        each_call_of_a_case_may_fail_and_nothing_stays_of_it(&rows[i]);
        if (check_failures != before)
            printf("^ row %d: %s\n\n", i, rows[i].what ? rows[i].what : "(as above)");
    }
    strided_tensors_come_to_the_host_as_the_host_would_copy_them();
    a_copy_that_fails_leaves_nothing_under_way();
    a_compact_copy_that_fails_changes_nothing();
    nine_streams_are_refused();
    streams_cross_the_protocol_by_their_numbers();
    the_device_of_a_pointer_is_found();
    threads_order_at_once();
    new_machine();
    return check_failures != 0;
}

/* What the programs of this folder share: the names of a platform's runtime, and checks of what the simulation saw. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include "../tensor/check.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#if defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_runtime_api.h>
#define RUNTIME(name) hip##name
#define RUNTIME_PREFIX "hip"
#define INVALID_HANDLE hipErrorInvalidHandle
#define OUT_OF_MEMORY hipErrorOutOfMemory
#define LEGACY ((stream)NULL)
#define MALLOC_PINNED(pointer, size) HostMalloc(pointer, size, hipHostMallocDefault)
#define FREE_PINNED HostFree
#else
#include <cuda_runtime_api.h>
#define RUNTIME(name) cuda##name
#define RUNTIME_PREFIX "cuda"
#define INVALID_HANDLE cudaErrorInvalidResourceHandle
#define OUT_OF_MEMORY cudaErrorMemoryAllocation
#define LEGACY cudaStreamLegacy
#define MALLOC_PINNED(pointer, size) MallocHost(pointer, size)
#define FREE_PINNED FreeHost
#endif
#include "simulated.h"

#define PER_THREAD ((stream)2)
#define SUCCEEDS(call) CHECK_NUMBER(RUNTIME(call), RUNTIME(Success))
#define FAILS(call, error) CHECK_NUMBER(RUNTIME(call), error)
#define CAUGHT(text) check_caught(text, __func__, __LINE__)
#define CLEAN() check_caught(NULL, __func__, __LINE__)

typedef RUNTIME(Stream_t) stream;
typedef RUNTIME(Event_t) event;
typedef RUNTIME(Graph_t) graph;
typedef enum RUNTIME(StreamCaptureMode) capture_mode;
typedef enum RUNTIME(StreamCaptureStatus) capture_status;

/* Checks the violations since the last check: none, or one that contains the text. */
static inline void
check_caught(const char *text, const char *test, int line)
{
    size_t count = simulated_violations();
    if (count != (text != NULL) || (text != NULL && strstr(simulated_violation(0), text) == NULL)) {
        printf("%s, line %d: %zu violations; one with '%s' was to be there\n", test, line, count, text ? text : "");
        for (size_t i = 0; i < count; i++)
            printf("    %s\n", simulated_violation(i));
        check_failures++;
    }
    simulated_forgive();
}

static inline stream
new_stream(unsigned flags)
{
    stream made = NULL;
    SUCCEEDS(StreamCreateWithFlags(&made, flags));
    return made;
}

static inline event
new_event(void)
{
    event made = NULL;
    SUCCEEDS(EventCreateWithFlags(&made, RUNTIME(EventDisableTiming)));
    return made;
}

static inline unsigned char *
new_memory(size_t size)
{
    void *made = NULL;
    SUCCEEDS(Malloc(&made, size));
    return made;
}

/* The number of the capture of a stream; 0: the stream does not capture, or its capture is spoiled. */
static inline unsigned long long
capture_id(stream of)
{
    unsigned long long id = 0;
    capture_status status = RUNTIME(StreamCaptureStatusNone);
#if defined(__HIP_PLATFORM_AMD__) || CUDART_VERSION < 12000
    SUCCEEDS(StreamGetCaptureInfo(of, &status, &id));
#elif CUDART_VERSION < 13000
    SUCCEEDS(StreamGetCaptureInfo(of, &status, &id, NULL, NULL, NULL));
#else
    SUCCEEDS(StreamGetCaptureInfo(of, &status, &id, NULL, NULL, NULL, NULL));
#endif
    return status == RUNTIME(StreamCaptureStatusActive) ? id : 0;
}

#endif /* PLATFORM_H */

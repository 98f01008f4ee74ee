/* Times copies for copying.py. CMake builds this file with the loops of dlpack_py.h, and again with dlpack_copy.h. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#endif
#include "dlpack_tensor.h"

#include <time.h>
#ifdef __SSE2__
#  include <emmintrin.h>
#endif

static double
now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* The nanoseconds of a copy, as the mean of so many calls. */
double
time_copy(const DLTensor *to, const DLTensor *from, int64_t calls);
double
time_copy(const DLTensor *to, const DLTensor *from, int64_t calls)
{
    const double begin = now();
    int64_t i;
    for (i = 0; i < calls; i++)
        (void)dlpack_py_copy(to, from, 0, NULL);
    return (now() - begin) / (double)calls;
}

/* Like time_copy, for memcpy. The pointer is volatile: otherwise a compiler may remove the copy. */
double
time_memcpy(void *to, const void *from, int64_t size, int64_t calls);
double
time_memcpy(void *to, const void *from, int64_t size, int64_t calls)
{
    void *(*volatile copy)(void *, const void *, size_t) = memcpy;
    const double begin = now();
    int64_t i;
    for (i = 0; i < calls; i++)
        (void)copy(to, from, (size_t)size);
    return (now() - begin) / (double)calls;
}

/* Removes memory from the cache of an x86 processor. */
void
flush(const char *p, int64_t size);
void
flush(const char *p, int64_t size)
{
#ifdef __SSE2__
    int64_t i;
    for (i = 0; i < size; i += 64)
        _mm_clflush(p + i);
    _mm_clflush(p + size - 1);
    _mm_mfence();
#else
    (void)p;
    (void)size;
#endif
}

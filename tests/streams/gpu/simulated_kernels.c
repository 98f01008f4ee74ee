/* libgpu_kernels for the simulated runtime, so that the tests of this folder run without a GPU: the functions of
 * kernels.cu, and the functions of the runtime that these tests call and simulated.c lacks. A kernel takes half of
 * its time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "simulated.h"
#include "trace.h"

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

struct kernel {
    unsigned char *memory;
    size_t value, size, delay;
    unsigned long long *result;
};

static void
pass_time(size_t nanoseconds)
{
    const size_t half = nanoseconds / 2;
    struct timespec pause = {(time_t)(half / 1000000000), (long)(half % 1000000000)};
    nanosleep(&pause, NULL);
}

static void
fill(void *argument)
{
    const struct kernel *kernel = argument;
    pass_time(kernel->delay);
    memset(kernel->memory, (int)kernel->value, kernel->size);
}

static void
sum(void *argument)
{
    const struct kernel *kernel = argument;
    unsigned long long total = 0;

    pass_time(kernel->delay);
    for (size_t i = 0; i < kernel->size; i++)
        total += kernel->memory[i];
    *kernel->result = total;
}

/* The arguments are never freed: a graph may run the kernel at any time. */
static int
launch(cudaStream_t stream, void (*function)(void *), struct kernel arguments, const void *reads, void *writes)
{
    struct kernel *kept = malloc(sizeof(*kept));
    if (kept == NULL)
        return cudaErrorMemoryAllocation;
    *kept = arguments;
    return simulated_launch(stream, function, kept, reads, writes);
}

int
gpu_fill(cudaStream_t stream, void *memory, size_t value, size_t size, size_t delay)
{
    return launch(stream, fill, (struct kernel){memory, value, size, delay, NULL}, NULL, memory);
}

int
gpu_sum(cudaStream_t stream, const void *memory, size_t size, unsigned long long *result, size_t delay)
{
    return launch(stream, sum, (struct kernel){(void *)(size_t)memory, 0, size, delay, result}, memory, NULL);
}

/* ---- Calls, as in kernels.cu ------------------------------------------------------------------------------------- */

enum { MAX_CALLS = 256 };

static struct {
    pthread_mutex_t lock;
    const char *names[MAX_CALLS];
    int errors[MAX_CALLS];
    size_t count;
} calls = {.lock = PTHREAD_MUTEX_INITIALIZER};

cudaError_t
gpu_called(const char *name, cudaError_t error)
{
    pthread_mutex_lock(&calls.lock);
    if (calls.count < MAX_CALLS) {
        calls.names[calls.count] = name;
        calls.errors[calls.count] = error;
    }
    calls.count++;
    pthread_mutex_unlock(&calls.lock);
    return error;
}

const char *
gpu_call(size_t i, int *error)
{
    const char *name = NULL;
    pthread_mutex_lock(&calls.lock);
    if (i < calls.count && i < MAX_CALLS) {
        *error = calls.errors[i];
        name = calls.names[i];
    }
    pthread_mutex_unlock(&calls.lock);
    return name;
}

size_t
gpu_forget_calls(void)
{
    size_t count;
    pthread_mutex_lock(&calls.lock);
    count = calls.count;
    calls.count = 0;
    pthread_mutex_unlock(&calls.lock);
    return count;
}

/* ---- Functions of the runtime ------------------------------------------------------------------------------------ */

cudaError_t
cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    static char pools[16];
    *pool = (cudaMemPool_t)(void *)&pools[device % 16];
    return cudaSuccess;
}

cudaError_t
cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)pool;
    (void)attribute;
    (void)value;
    return cudaSuccess;
}

#undef cudaMemcpyAsync /* trace.h */
cudaError_t
cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream)
{
    (void)to_device;
    (void)from_device;
    return cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, stream);
}

/* The slow kernels that the tests run on a GPU, and the log of the runtime's calls for trace.h. ctypes calls both. A
 * kernel that reads too early reads the old values. */
#include <mutex>

#include "trace.h"

/* ---- Kernels ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 256 };

/* Uses one block, so that another kernel can run at the same time. */
static __device__ void
pass_time(unsigned long long nanoseconds)
{
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - began < nanoseconds);
    __syncthreads();
}

static __global__ void
fill(unsigned char *memory, unsigned char value, size_t size, unsigned long long delay)
{
    pass_time(delay);
    for (size_t i = threadIdx.x; i < size; i += THREADS)
        memory[i] = value;
}

static __global__ void
sum(const unsigned char *memory, size_t size, unsigned long long *result, unsigned long long delay)
{
    __shared__ unsigned long long parts[THREADS];
    unsigned long long part = 0;

    pass_time(delay);
    for (size_t i = threadIdx.x; i < size; i += THREADS)
        part += memory[i];
    parts[threadIdx.x] = part;
    __syncthreads();
    for (unsigned int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *result = parts[0];
}

/* Each kernel first waits for `delay` nanoseconds. These functions return the error of the runtime. */
extern "C" int
gpu_fill(cudaStream_t stream, void *memory, size_t value, size_t size, size_t delay)
{
    fill<<<1, THREADS, 0, stream>>>(static_cast<unsigned char *>(memory), static_cast<unsigned char>(value), size,
                                    delay);
    return cudaGetLastError();
}

extern "C" int
gpu_sum(cudaStream_t stream, const void *memory, size_t size, unsigned long long *result, size_t delay)
{
    sum<<<1, THREADS, 0, stream>>>(static_cast<const unsigned char *>(memory), size, result, delay);
    return cudaGetLastError();
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

enum { MAX_CALLS = 256 };

static struct {
    std::mutex lock; /* libraries release tensors on their own threads */
    const char *names[MAX_CALLS];
    int errors[MAX_CALLS];
    size_t count;
} calls;

extern "C" cudaError_t
gpu_called(const char *name, cudaError_t error)
{
    const std::lock_guard<std::mutex> locked(calls.lock);
    if (calls.count < MAX_CALLS) {
        calls.names[calls.count] = name;
        calls.errors[calls.count] = error;
    }
    calls.count++;
    return error;
}

/* The i-th call since gpu_forget_calls, and its result; NULL: there are fewer calls, or the log is full. */
extern "C" const char *
gpu_call(size_t i, int *error)
{
    const std::lock_guard<std::mutex> locked(calls.lock);
    if (i >= calls.count || i >= MAX_CALLS)
        return nullptr;
    *error = calls.errors[i];
    return calls.names[i];
}

/* Deletes the logged calls. Returns their number. */
extern "C" size_t
gpu_forget_calls(void)
{
    const std::lock_guard<std::mutex> locked(calls.lock);
    const size_t count = calls.count;
    calls.count = 0;
    return count;
}

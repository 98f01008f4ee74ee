/* Compares the host time of dlpack_cuda_order with the calls that it needs: two queries whether a stream captures, a
 * record and a wait. The ratio should be at most 1.2. On one stream, the time should be near zero. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "dlpack_cuda.h"

enum { CALLS = 200 /* fit into the queue of a stream */, ROUNDS = 200, WAYS = 3 };

static cudaStream_t before, after;
static cudaEvent_t event;

static void
succeed(cudaError_t error)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s\n", cudaGetErrorString(error));
        exit(EXIT_FAILURE);
    }
}

static void
bare(void)
{
    enum cudaStreamCaptureStatus status;
    succeed(cudaStreamIsCapturing(after, &status));
    succeed(cudaStreamIsCapturing(before, &status));
    succeed(cudaEventRecord(event, before));
    succeed(cudaStreamWaitEvent(after, event, 0));
}

static void
order(cudaStream_t later)
{
    dlpack_py_error error;
    if (dlpack_cuda_order(before, 0, later, 0, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(EXIT_FAILURE);
    }
}

static void
ordered(void)
{
    order(after);
}

static void
same(void)
{
    order(before);
}

static const struct {
    const char *name;
    void (*function)(void);
} ways[WAYS] = {{"the bare calls", bare}, {"dlpack_cuda_order", ordered}, {"dlpack_cuda_order, one stream", same}};

static double
nanoseconds(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The nanoseconds of one call, on streams without work. */
static double
measure(void (*function)(void))
{
    double began;
    int i;

    succeed(cudaDeviceSynchronize());
    began = nanoseconds();
    for (i = 0; i < CALLS; i++)
        function();
    return (nanoseconds() - began) / CALLS;
}

int
main(void)
{
    double least[WAYS] = {1e9, 1e9, 1e9};
    int round, way;

    succeed(cudaStreamCreateWithFlags(&before, cudaStreamNonBlocking));
    succeed(cudaStreamCreateWithFlags(&after, cudaStreamNonBlocking));
    succeed(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (round = 0; round < ROUNDS; round++) {
        for (way = 0; way < WAYS; way++) {
            const double took = measure(ways[way].function);
            least[way] = took < least[way] ? took : least[way];
        }
    }
    printf("host time of one order, the least of %d rounds of %d\n", ROUNDS, CALLS);
    for (way = 0; way < WAYS; way++)
        printf("%-32s %8.1f ns %6.2f\n", ways[way].name, least[way], least[way] / least[0]);
    return 0;
}

/* Compares the host time of dlpack_cuda_order with the calls that it needs: two queries whether a stream captures, a
 * record and a wait. The ratio should be at most 1.2. On one stream, the time should be near zero. Then the time of each
 * call. The argument is the number of rounds, by default 200. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "dlpack_cuda.h"

enum { CALLS = 200 /* fit into the queue of a stream */, ROUNDS = 200 };

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

static void
to_default(void)
{
    order(NULL);
}

/* The bare calls with an event of their own, which dlpack_cuda_order creates and destroys. */
static void
bare_with_event(void)
{
    enum cudaStreamCaptureStatus status;
    cudaEvent_t own;
    int device;
    succeed(cudaStreamIsCapturing(after, &status));
    succeed(cudaStreamIsCapturing(before, &status));
    succeed(cudaGetDevice(&device));
    succeed(cudaEventCreateWithFlags(&own, cudaEventDisableTiming));
    succeed(cudaEventRecord(own, before));
    succeed(cudaStreamWaitEvent(after, own, 0));
    succeed(cudaEventDestroy(own));
}

static void
is_capturing(void)
{
    enum cudaStreamCaptureStatus status;
    succeed(cudaStreamIsCapturing(before, &status));
}

static void
default_is_capturing(void)
{
    enum cudaStreamCaptureStatus status;
    succeed(cudaStreamIsCapturing(cudaStreamLegacy, &status));
}

static void
create_and_destroy(void)
{
    cudaEvent_t own;
    succeed(cudaEventCreateWithFlags(&own, cudaEventDisableTiming));
    succeed(cudaEventDestroy(own));
}

static void
record_event(void)
{
    succeed(cudaEventRecord(event, before));
}

static void
wait_for_event(void)
{
    succeed(cudaStreamWaitEvent(after, event, 0));
}

static void
exchange_mode_twice(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    succeed(cudaThreadExchangeStreamCaptureMode(&mode));
    succeed(cudaThreadExchangeStreamCaptureMode(&mode));
}

static const struct {
    const char *name;
    void (*function)(void);
} ways[] = {
    {"the bare calls", bare},
    {"dlpack_cuda_order", ordered},
    {"dlpack_cuda_order, one stream", same},
    {"dlpack_cuda_order, default stream", to_default},
    {"the bare calls, with a new event", bare_with_event},
    {"StreamIsCapturing", is_capturing},
    {"StreamIsCapturing(default)", default_is_capturing},
    {"EventCreateWithFlags, EventDestroy", create_and_destroy},
    {"EventRecord", record_event},
    {"StreamWaitEvent", wait_for_event},
    {"ThreadExchangeStreamCaptureMode x 2", exchange_mode_twice},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

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
main(int count, char **arguments)
{
    const int rounds = count > 1 ? atoi(arguments[1]) : ROUNDS;
    double least[WAYS];
    int round, way;

    succeed(cudaStreamCreateWithFlags(&before, cudaStreamNonBlocking));
    succeed(cudaStreamCreateWithFlags(&after, cudaStreamNonBlocking));
    succeed(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    for (round = 0; round < rounds; round++) {
        for (way = 0; way < WAYS; way++) {
            const double took = measure(ways[way].function);
            least[way] = round > 0 && least[way] < took ? least[way] : took;
        }
    }
    printf("host time of one order, the least of %d rounds of %d\n", rounds, CALLS);
    for (way = 0; way < WAYS; way++)
        printf("RESULT %-36s %8.1f ns %6.2f\n", ways[way].name, least[way], least[way] / least[0]);
    return 0;
}

/* Tests the simulated runtime itself: work runs late and in order, and each misuse is detected. Compiled once for each
 * platform, with the header of the platform. */
#include "platform.h"

#define CALLS(...) check_calls((const char *[]){__VA_ARGS__, NULL}, __func__, __LINE__)

static void
check_calls(const char *const *wanted, const char *test, int line)
{
    size_t i = 0;
    while (wanted[i] != NULL && simulated_call(i) != NULL && strcmp(wanted[i], simulated_call(i)) == 0)
        i++;
    if (wanted[i] != NULL || simulated_call(i) != NULL) {
        printf("%s, line %d: call %zu is '%s', not '%s'\n", test, line, i,
               simulated_call(i) != NULL ? simulated_call(i) : "", wanted[i] != NULL ? wanted[i] : "");
        check_failures++;
    }
    simulated_mark();
}

static void
on_thread(void *(*function)(void *), void *argument)
{
    pthread_t thread;
    pthread_create(&thread, NULL, function, argument);
    pthread_join(thread, NULL);
}

/* ---- Order --------------------------------------------------------------------------------------------------------- */

static void
work_of_a_stream_runs_in_order_and_nothing_runs_while_it_is_held(void)
{
    stream work = new_stream(0);
    unsigned char *data = new_memory(8);
    simulated_hold(work);
    simulated_fill(work, data, 1, 8);
    simulated_fill(work, data, 2, 8);
    simulated_settle();
    CHECK_NUMBER(simulated_pending(work), 2);
    FAILS(StreamQuery(work), RUNTIME(ErrorNotReady));
    CHECK_NUMBER(data[7], 0xCD);
    CHECK(!simulated_host_may_read(data));
    simulated_let_go(work);
    SUCCEEDS(StreamSynchronize(work));
    SUCCEEDS(StreamQuery(work));
    CHECK_NUMBER(data[7], 2);
    CHECK(simulated_host_may_read(data));
    CLEAN();
}

static void
a_stream_that_waits_for_an_event_runs_after_the_stream_that_recorded_it(void)
{
    stream producer = new_stream(RUNTIME(StreamNonBlocking)), consumer = new_stream(RUNTIME(StreamNonBlocking));
    event done = new_event();
    unsigned char *data = new_memory(8);
    simulated_hold(producer);
    simulated_fill(producer, data, 5, 8);
    SUCCEEDS(EventRecord(done, producer));
    FAILS(EventQuery(done), RUNTIME(ErrorNotReady));
    SUCCEEDS(StreamWaitEvent(consumer, done, 0));
    FAILS(StreamQuery(consumer), RUNTIME(ErrorNotReady));
    simulated_expect(consumer, data, 5, 8);
    simulated_settle();
    CHECK_NUMBER(simulated_pending(consumer), 1);
    simulated_let_go(producer);
    SUCCEEDS(StreamSynchronize(consumer));
    SUCCEEDS(EventQuery(done));
    SUCCEEDS(EventSynchronize(done));
    CLEAN();
}

/* A kernel that ends when let_kernels_end(1) is called. */
static pthread_mutex_t kernel_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t kernels_may_end = PTHREAD_COND_INITIALIZER;
static int may_end;

static void
waiting_kernel(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&kernel_lock);
    while (!may_end)
        pthread_cond_wait(&kernels_may_end, &kernel_lock);
    pthread_mutex_unlock(&kernel_lock);
}

static void
let_kernels_end(int end)
{
    pthread_mutex_lock(&kernel_lock);
    may_end = end;
    pthread_cond_broadcast(&kernels_may_end);
    pthread_mutex_unlock(&kernel_lock);
}

/* The kernels only declare the memory that they use: real accesses would be a data race. */
static void
work_on_memory_that_is_in_no_order_is_caught_however_it_runs(void)
{
    stream producer = new_stream(RUNTIME(StreamNonBlocking)), consumer = new_stream(RUNTIME(StreamNonBlocking));
    unsigned char *data = new_memory(8);
    simulated_launch(producer, waiting_kernel, NULL, NULL, data);
    simulated_settle();
    simulated_launch(consumer, waiting_kernel, NULL, data + 7, NULL);
    CAUGHT("memory 1: the read on stream 2 is not after the write on stream 1");
    SUCCEEDS(StreamSynchronize(producer));
    simulated_launch(consumer, waiting_kernel, NULL, data, NULL);
    CLEAN();
    simulated_launch(producer, waiting_kernel, NULL, NULL, data);
    CAUGHT("memory 1: the write on stream 1 is not after the read on stream 2");
}

static void
a_kernel_that_reads_what_it_does_not_expect_is_caught(void)
{
    stream work = new_stream(0);
    unsigned char *data = new_memory(8);
    simulated_fill(work, data, 5, 3);
    simulated_expect(work, data, 5, 8);
    SUCCEEDS(StreamSynchronize(work));
    CAUGHT("stream 1 reads 205 at byte 3 of memory 1, not 5");
}

static void
a_wait_uses_the_record_that_is_current_at_the_call(void)
{
    stream producer = new_stream(0), consumer = new_stream(0);
    event done = new_event();
    unsigned char *data = new_memory(8);
    let_kernels_end(0);
    simulated_fill(producer, data, 5, 8);
    SUCCEEDS(EventRecord(done, producer));
    SUCCEEDS(StreamWaitEvent(consumer, done, 0));
#if defined(__HIP_PLATFORM_AMD__)
    SUCCEEDS(EventSynchronize(done)); /* HIP does not allow recording a pending event again */
#endif
    simulated_launch(producer, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(EventRecord(done, producer));
    simulated_expect(consumer, data, 5, 8);
    SUCCEEDS(StreamSynchronize(consumer)); /* hangs if the wait is for the later record */
    FAILS(EventQuery(done), RUNTIME(ErrorNotReady));
    let_kernels_end(1);
    SUCCEEDS(EventSynchronize(done));
    CLEAN();
}

static void
an_event_that_is_pending_may_be_recorded_again_only_with_cuda(void)
{
    stream work = new_stream(0);
    event done = new_event();
    let_kernels_end(0);
    simulated_launch(work, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(EventRecord(done, work));
    SUCCEEDS(EventRecord(done, work));
    let_kernels_end(1);
    SUCCEEDS(EventSynchronize(done));
#if defined(__HIP_PLATFORM_AMD__)
    CAUGHT("the event is pending: hipEventRecord is undefined then");
#else
    CLEAN();
#endif
    SUCCEEDS(EventRecord(done, work)); /* the event is done: legal on both platforms */
    CLEAN();
}

static int lock_is_held;

static int
holds_lock(void)
{
    return lock_is_held;
}

static void
a_call_with_the_watched_lock_held_is_caught(void)
{
    stream work = new_stream(0);
    simulated_watch_lock(holds_lock);
    SUCCEEDS(StreamSynchronize(work));
    CLEAN();
    lock_is_held = 1;
    SUCCEEDS(StreamSynchronize(work));
    lock_is_held = 0;
    CAUGHT("StreamSynchronize(stream 1): called with the GIL held");
    simulated_watch_lock(NULL);
}

static void
the_legacy_stream_and_blocking_streams_wait_for_each_other(void)
{
    stream blocking = new_stream(0), apart = new_stream(RUNTIME(StreamNonBlocking)), *streams[] = {&blocking, &apart};
    unsigned char *data = new_memory(8);
    SUCCEEDS(SetDevice(1));
    stream elsewhere = new_stream(0);
    SUCCEEDS(SetDevice(0));
    for (int i = 0; i < 2; i++) {
        simulated_hold(*streams[i]);
        simulated_fill(*streams[i], data, 1, 8);
        simulated_launch(LEGACY, waiting_kernel, NULL, NULL, NULL);
        simulated_settle();
        CHECK_NUMBER(simulated_pending(LEGACY), i == 0 ? 1 : 0);
        simulated_let_go(*streams[i]);
        SUCCEEDS(DeviceSynchronize());
    }
    simulated_hold(LEGACY);
    simulated_fill(LEGACY, data, 3, 8);
    simulated_launch(blocking, waiting_kernel, NULL, NULL, NULL);
    simulated_launch(apart, waiting_kernel, NULL, NULL, NULL);
    simulated_launch(elsewhere, waiting_kernel, NULL, NULL, NULL);
    simulated_settle();
    CHECK_NUMBER(simulated_pending(blocking), 1);
    CHECK_NUMBER(simulated_pending(apart), 0);
    CHECK_NUMBER(simulated_pending(elsewhere), 0);
    simulated_let_go(LEGACY);
    simulated_expect(blocking, data, 3, 8);
    CLEAN();
    simulated_launch(apart, waiting_kernel, NULL, data, NULL);
    CAUGHT("not after the write on the legacy stream of device 0");
}

static void *
use_own_default_stream(void *data)
{
    simulated_fill(PER_THREAD, data, 4, 8);
    SUCCEEDS(StreamSynchronize(PER_THREAD));
    CHECK_NUMBER(((unsigned char *)data)[0], 4);
    return NULL;
}

static void
per_thread_default_streams_are_of_the_thread_and_its_current_device(void)
{
    unsigned char *data = new_memory(8);
    simulated_hold(PER_THREAD);
    simulated_launch(PER_THREAD, waiting_kernel, NULL, NULL, NULL);
    on_thread(use_own_default_stream, data);
    SUCCEEDS(SetDevice(1));
    CHECK_NUMBER(simulated_pending(PER_THREAD), 0);
    SUCCEEDS(SetDevice(0));
    CHECK_NUMBER(simulated_pending(PER_THREAD), 1);
    simulated_let_go(PER_THREAD);
    CLEAN();
}

#if !defined(__HIP_PLATFORM_AMD__)
/* The functions that such a file calls. The header declares them only there. */
cudaError_t
cudaStreamQuery_ptsz(cudaStream_t handle);
cudaError_t
cudaMemcpy_ptds(void *to, const void *from, size_t size, enum cudaMemcpyKind kind);

static void
null_is_the_per_thread_stream_in_files_compiled_so(void)
{
    unsigned char *data = new_memory(8);
    simulated_hold(PER_THREAD);
    simulated_launch(PER_THREAD, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(SetDevice(1));
    CHECK_NUMBER(cudaStreamQuery_ptsz(NULL), cudaSuccess);
    SUCCEEDS(SetDevice(0));
    CHECK_NUMBER(cudaStreamQuery_ptsz(NULL), cudaErrorNotReady);
    simulated_mark();
    CHECK_NUMBER(cudaStreamQuery_ptsz(cudaStreamPerThread), cudaErrorNotReady);
    CALLS("StreamQuery(per-thread) -> 600");
    simulated_let_go(PER_THREAD);
    simulated_hold(LEGACY);
    CHECK_NUMBER(cudaMemcpy_ptds(data, data + 4, 4, cudaMemcpyDefault), cudaSuccess);
    CLEAN();
}
#endif

static void
a_wait_orders_streams_of_two_devices(void)
{
    stream producer = new_stream(0);
    event done = new_event();
    unsigned char *data = new_memory(8);
    simulated_hold(producer);
    simulated_fill(producer, data, 5, 8);
    SUCCEEDS(SetDevice(2));
    stream consumer = new_stream(0);
    SUCCEEDS(EventRecord(done, producer));
    SUCCEEDS(StreamWaitEvent(consumer, done, 0));
    simulated_expect(consumer, data, 5, 8);
    simulated_settle();
    CHECK_NUMBER(simulated_pending(consumer), 1);
    simulated_let_go(producer);
    SUCCEEDS(StreamSynchronize(consumer));
    CLEAN();
}

static void
a_call_that_blocks_the_host_behind_a_held_stream_is_caught(void)
{
    stream work = new_stream(0);
    simulated_hold(work);
    simulated_launch(work, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(StreamSynchronize(work));
    CAUGHT("StreamSynchronize(stream 1): blocks the host behind a held stream");
}

/* ---- Handles, errors and the log ----------------------------------------------------------------------------------- */

static void
an_event_is_recorded_only_on_streams_of_its_device(void)
{
    event here = new_event();
    SUCCEEDS(SetDevice(1));
    stream there = new_stream(0);
    FAILS(EventRecord(here, there), INVALID_HANDLE);
    CAUGHT("EventRecord(event 1, stream 1): the event is of device 0, the stream of device 1");
    FAILS(EventRecord(here, LEGACY), INVALID_HANDLE);
    CAUGHT("the event is of device 0, the stream of device 1");
    SUCCEEDS(SetDevice(0));
    SUCCEEDS(EventRecord(here, LEGACY));
    CLEAN();
}

static void
handles_that_are_destroyed_or_never_were_are_refused(void)
{
    stream work = new_stream(0);
    event done = new_event();
    SUCCEEDS(EventDestroy(done));
    FAILS(EventRecord(done, work), INVALID_HANDLE);
    CAUGHT("the event was destroyed");
    FAILS(EventDestroy(done), INVALID_HANDLE);
    CAUGHT("the event was destroyed");
    SUCCEEDS(StreamDestroy(work));
    FAILS(StreamQuery(work), INVALID_HANDLE);
    CAUGHT("the stream was destroyed");
    FAILS(StreamDestroy(LEGACY), INVALID_HANDLE);
    CAUGHT("nobody's to destroy");
    FAILS(StreamQuery((stream)&work), INVALID_HANDLE);
    CAUGHT("StreamQuery(unknown stream): not a stream");
    FAILS(StreamQuery((stream)done), INVALID_HANDLE);
    CAUGHT("not a stream");
    FAILS(EventQuery((event)work), INVALID_HANDLE);
    CAUGHT("not an event");
#if defined(__HIP_PLATFORM_AMD__) && !defined(hipStreamLegacy)
    FAILS(StreamQuery((stream)1), INVALID_HANDLE);
    CAUGHT("not a stream");
#endif
}

static void
handles_are_used_again_where_a_test_asks_for_it(void)
{
    stream work = new_stream(0), again;
    event done = new_event();
    unsigned char *data = new_memory(8);
    simulated_reuse_handles(1);
    simulated_hold(work);
    simulated_fill(work, data, 5, 8);
    SUCCEEDS(EventRecord(done, work));
    SUCCEEDS(EventDestroy(done));
    SUCCEEDS(StreamDestroy(work));
    again = new_stream(RUNTIME(StreamNonBlocking));
    CHECK(again == work && new_event() == done);
    CHECK(new_stream(0) != again && new_event() != done);
    SUCCEEDS(StreamQuery(again)); /* the work of the other stream is not on this one */
    SUCCEEDS(EventRecord(done, again));
    SUCCEEDS(EventQuery(done));
    CHECK_NUMBER(simulated_live("event") + simulated_live("stream"), 4);
    CLEAN();
}

static void
a_stream_of_another_context_takes_events_of_that_context_alone(void)
{
    stream here = new_stream(0), there;
    event of_here = new_event(), of_there;
    simulated_set_context(1);
    there = new_stream(0);
    of_there = new_event();
    SUCCEEDS(EventRecord(of_there, there));
    FAILS(EventRecord(of_here, there), INVALID_HANDLE);
    CAUGHT("EventRecord(event 1, stream 2): the event and stream 2 are of two contexts");
    SUCCEEDS(StreamWaitEvent(here, of_there, 0));
    SUCCEEDS(SetDevice(0)); /* makes the primary context current */
    FAILS(EventRecord(new_event(), there), INVALID_HANDLE);
    CAUGHT("are of two contexts");
}

static void
a_destroyed_stream_finishes_its_work(void)
{
    stream work = new_stream(0);
    unsigned char *data = new_memory(8);
    simulated_hold(work);
    simulated_fill(work, data, 5, 8);
    SUCCEEDS(StreamDestroy(work));
    CHECK_NUMBER(simulated_live("stream"), 0);
    simulated_reset(3); /* ends the hold, and waits */
    CLEAN();
}

static void
a_wait_for_an_event_that_was_never_recorded_is_caught(void)
{
    stream work = new_stream(0);
    event never = new_event();
    SUCCEEDS(StreamWaitEvent(work, never, 0));
    CAUGHT("StreamWaitEvent(stream 1, event 1): the event was never recorded");
    SUCCEEDS(EventQuery(never));
    CLEAN();
}

static void
the_log_has_every_call_and_the_errors(void)
{
    int device;
    void *memory;
    capture_status status;
    simulated_mark();
    stream work = new_stream(RUNTIME(StreamNonBlocking));
    event done = new_event();
    SUCCEEDS(GetDevice(&device));
    FAILS(SetDevice(3), RUNTIME(ErrorInvalidDevice));
    SUCCEEDS(EventRecord(done, work));
    SUCCEEDS(StreamWaitEvent(LEGACY, done, 0));
    SUCCEEDS(StreamIsCapturing(NULL, &status));
    SUCCEEDS(MallocAsync(&memory, 64, work));
    SUCCEEDS(MemcpyAsync((char *)memory + 8, &device, sizeof(device), RUNTIME(MemcpyDefault), work));
    CHECK_NUMBER(RUNTIME(PeekAtLastError)(), RUNTIME(ErrorInvalidDevice));
    CHECK_NUMBER(RUNTIME(GetLastError)(), RUNTIME(ErrorInvalidDevice));
    CHECK_NUMBER(RUNTIME(GetLastError)(), RUNTIME(Success));
    CALLS("StreamCreateWithFlags(stream 1, 1)", "EventCreateWithFlags(event 1, 2)", "GetDevice()",
          "SetDevice(3) -> 101", "EventRecord(event 1, stream 1)",
          LEGACY == NULL ? "StreamWaitEvent(default, event 1)" : "StreamWaitEvent(legacy, event 1)",
          "StreamIsCapturing(default)", "MallocAsync(memory 1, 64, stream 1)",
          "MemcpyAsync(memory 1 + 8, host, 4, stream 1)", "PeekAtLastError() -> 101", "GetLastError() -> 101",
          "GetLastError()");
    CHECK_NUMBER(simulated_calls(), 0);
    SUCCEEDS(DeviceSynchronize());
    CLEAN();
}

static void
calls_fail_as_told(void)
{
    int device;
    stream work = new_stream(0);
    simulated_fail("StreamQuery", 2, 1, RUNTIME(ErrorLaunchFailure));
    SUCCEEDS(StreamQuery(work));
    SUCCEEDS(GetDevice(&device));
    FAILS(StreamQuery(work), RUNTIME(ErrorLaunchFailure));
    SUCCEEDS(StreamQuery(work));
    CHECK_NUMBER(simulated_failed(), 1);
    CHECK_NUMBER(RUNTIME(GetLastError)(), RUNTIME(ErrorLaunchFailure));

    simulated_fail(NULL, 2, 0, RUNTIME(ErrorIllegalAddress));
    SUCCEEDS(StreamQuery(work));
    FAILS(SetDevice(1), RUNTIME(ErrorIllegalAddress));
    FAILS(GetDevice(&device), RUNTIME(ErrorIllegalAddress));
    CHECK_NUMBER(simulated_failed(), 2);
    simulated_fail(NULL, 0, 0, 0);
    SUCCEEDS(GetDevice(&device));
    CHECK_NUMBER(device, 0);
    CLEAN();
}

static void
a_wait_that_is_made_to_fail_loses_the_copies_to_the_host(void)
{
    stream work = new_stream(0);
    unsigned char host[8] = {0}, *data = new_memory(8);
    simulated_hold(work); /* the copy has not run when the wait fails */
    simulated_fill(work, data, 5, 8);
    SUCCEEDS(MemcpyAsync(host, data, 8, RUNTIME(MemcpyDefault), work));
    simulated_fail("StreamSynchronize", 1, 1, RUNTIME(ErrorLaunchFailure));
    FAILS(StreamSynchronize(work), RUNTIME(ErrorLaunchFailure));
    simulated_let_go(work);
    SUCCEEDS(StreamSynchronize(work));
    CHECK_NUMBER(host[0], 0);
    CHECK_NUMBER(data[0], 5);
    CLEAN();
}

static void
errors_have_their_names(void)
{
    const char *invalid = RUNTIME(GetErrorName)(INVALID_HANDLE);
    CHECK(strcmp(invalid, "cudaErrorInvalidResourceHandle") == 0 || strcmp(invalid, "hipErrorInvalidHandle") == 0);
    CHECK(strstr(RUNTIME(GetErrorName)(RUNTIME(ErrorStreamCaptureIsolation)), "ErrorStreamCaptureIsolation") != NULL);
    CHECK(
        strcmp(RUNTIME(GetErrorString)(RUNTIME(ErrorStreamCaptureIsolation)), RUNTIME(GetErrorString)(INVALID_HANDLE)));
    CHECK(strcmp(RUNTIME(GetErrorName)((RUNTIME(Error_t))12345), RUNTIME(GetErrorName)(INVALID_HANDLE)) != 0);
}

static void
what_a_call_leaves_changed_is_caught(void)
{
    capture_mode mode = RUNTIME(StreamCaptureModeRelaxed);
    SUCCEEDS(SetDevice(1));
    simulated_begin();
    SUCCEEDS(SetDevice(2));
    SUCCEEDS(SetDevice(1));
    simulated_end();
    CLEAN();
    SUCCEEDS(SetDevice(2));
    simulated_end();
    CAUGHT("the current device was 1, and is 2");
    SUCCEEDS(SetDevice(1));
    FAILS(SetDevice(-1), RUNTIME(ErrorInvalidDevice));
    simulated_end();
    CAUGHT("the last error was 0, and is 101");
    RUNTIME(GetLastError)();
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&mode));
    simulated_end();
    CAUGHT("capture mode was 0, and is 2");
}

static void
what_is_alive_is_counted_and_named(void)
{
    stream work = new_stream(0);
    event first = new_event(), second = new_event();
    void *memory = new_memory(16);
    CHECK_NUMBER(simulated_live("event"), 2);
    CHECK(strcmp(simulated_live_name("event", 0), "event 2") == 0);
    CHECK(strcmp(simulated_live_name("event", 1), "event 1") == 0);
    CHECK(simulated_live_name("event", 2) == NULL);
    CHECK_NUMBER(simulated_live("stream") + simulated_live("memory"), 2);
    SUCCEEDS(EventDestroy(first));
    CHECK(strcmp(simulated_live_name("event", 0), "event 2") == 0);
    SUCCEEDS(EventDestroy(second));
    SUCCEEDS(FreeAsync(memory, work));
    SUCCEEDS(StreamDestroy(work));
    CHECK_NUMBER(simulated_live("event") + simulated_live("stream") + simulated_live("memory"), 0);
    CLEAN();
}

static void
call_the_runtime(void *error)
{
    int device;
    *(RUNTIME(Error_t) *)error = RUNTIME(GetDevice)(&device);
}

static void
a_host_function_may_not_call_the_runtime(void)
{
    stream work = new_stream(0);
    RUNTIME(Error_t) error = RUNTIME(Success);
    SUCCEEDS(LaunchHostFunc(work, call_the_runtime, &error));
    SUCCEEDS(StreamSynchronize(work));
    CHECK(error != RUNTIME(Success));
    CAUGHT("GetDevice(): called by work on a stream");
}

static void
without_devices_every_call_says_so(void)
{
    int number = -1;
    simulated_reset(0);
    FAILS(GetDeviceCount(&number), RUNTIME(ErrorNoDevice));
    FAILS(GetDevice(&number), RUNTIME(ErrorNoDevice));
    CLEAN();
    simulated_reset(3);
    SUCCEEDS(GetDeviceCount(&number));
    CHECK_NUMBER(number, 3);
    SUCCEEDS(RuntimeGetVersion(&number));
    SUCCEEDS(DriverGetVersion(&number));
    CHECK(number > 0);
}

static void
a_device_that_is_reset_loses_its_handles_and_no_others(void)
{
    stream here = new_stream(0);
    event done = new_event();
    SUCCEEDS(SetDevice(1));
    stream there = new_stream(0);
    SUCCEEDS(SetDevice(0));
    SUCCEEDS(DeviceReset());
    SUCCEEDS(StreamQuery(there));
    CLEAN();
    FAILS(StreamQuery(here), INVALID_HANDLE);
    CAUGHT("the stream was destroyed");
    FAILS(EventQuery(done), INVALID_HANDLE);
    CAUGHT("the event was destroyed");
    simulated_launch(LEGACY, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(StreamSynchronize(LEGACY));
}

/* ---- Memory -------------------------------------------------------------------------------------------------------- */

static void
copies_stay_within_what_is_allocated_and_on_the_sides_they_name(void)
{
    stream work = new_stream(0);
    unsigned char host[32] = {0}, *data = new_memory(16);
    SUCCEEDS(MemcpyAsync(data, host, 16, RUNTIME(MemcpyHostToDevice), work));
    SUCCEEDS(Memcpy2DAsync(host, 8, data + 1, 5, 3, 4 - 1, RUNTIME(MemcpyDeviceToHost), work));
    CLEAN();
    FAILS(MemcpyAsync(data, host, 17, RUNTIME(MemcpyHostToDevice), work), RUNTIME(ErrorInvalidValue));
    CAUGHT("beyond the end of memory 1");
    FAILS(MemcpyAsync(host, data + 15, 2, RUNTIME(MemcpyDefault), work), RUNTIME(ErrorInvalidValue));
    CAUGHT("beyond the end of memory 1");
    FAILS(Memcpy2DAsync(host, 8, data + 1, 5, 3, 4, RUNTIME(MemcpyDeviceToHost), work), RUNTIME(ErrorInvalidValue));
    CAUGHT("beyond the end of memory 1");
    FAILS(Memcpy2DAsync(host, 8, data, 2, 3, 1, RUNTIME(MemcpyDeviceToHost), work), RUNTIME(ErrorInvalidPitchValue));
    CAUGHT("rows overlap");
    FAILS(MemcpyAsync(data, host, 8, RUNTIME(MemcpyDeviceToHost), work), RUNTIME(ErrorInvalidMemcpyDirection));
    CAUGHT("is on the other side");
    FAILS(MemcpyAsync(data, host, 8, RUNTIME(MemcpyDeviceToDevice), work), RUNTIME(ErrorInvalidMemcpyDirection));
    CAUGHT("host is on the other side");
    FAILS(MemcpyAsync(data, data + 8, 8, RUNTIME(MemcpyHostToDevice), work), RUNTIME(ErrorInvalidMemcpyDirection));
    CAUGHT("memory 1 + 8 is on the other side");
    SUCCEEDS(StreamSynchronize(work));
}

static void
rows_and_blocks_are_copied_late(void)
{
    stream work = new_stream(0);
    unsigned char from[12], to[12] = {0}, *data = new_memory(12);
    for (int i = 0; i < 12; i++)
        from[i] = (unsigned char)i;
    SUCCEEDS(Memcpy(data, from, 12, RUNTIME(MemcpyDefault)));
    simulated_hold(work);
    SUCCEEDS(Memcpy2DAsync(to, 3, data + 1, 4, 2, 3, RUNTIME(MemcpyDeviceToHost), work));
    CHECK_NUMBER(to[0], 0);
    simulated_let_go(work);
    SUCCEEDS(StreamSynchronize(work));
    CHECK(memcmp(to, (unsigned char[12]){1, 2, 0, 5, 6, 0, 9, 10}, 12) == 0);
    CLEAN();
}

static void
memory_that_is_freed_on_a_stream_goes_when_its_turn_comes(void)
{
    stream work = new_stream(0);
    unsigned char *data = new_memory(8), byte;
    simulated_hold(work);
    simulated_fill(work, data, 5, 8);
    simulated_expect(work, data, 5, 8);
    SUCCEEDS(FreeAsync(data, work));
    FAILS(MemcpyAsync(&byte, data, 1, RUNTIME(MemcpyDefault), work), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 1 was freed");
    FAILS(FreeAsync(data, work), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 1 was freed");
    CHECK_NUMBER(data[0], 0xCD);
    simulated_let_go(work);
    SUCCEEDS(StreamSynchronize(work));
    CHECK_NUMBER(data[0], 0xDD);
    CLEAN();
}

static void
memory_allocated_on_a_stream_is_there_when_its_turn_comes(void)
{
    stream work = new_stream(0), other = new_stream(0);
    void *data = NULL;
    SUCCEEDS(MallocAsync(&data, 8, work));
    simulated_launch(work, waiting_kernel, NULL, data, NULL);
    CLEAN();
    simulated_launch(other, waiting_kernel, NULL, data, NULL);
    CAUGHT("the read on stream 2 is not after the write on stream 1");
}

static void
memory_freed_on_a_stream_that_does_not_wait_for_a_reader_is_caught(void)
{
    stream reader = new_stream(0), other = new_stream(0);
    void *data = new_memory(8);
    simulated_launch(reader, waiting_kernel, NULL, data, NULL);
    CLEAN();
    SUCCEEDS(FreeAsync(data, other));
    CAUGHT("the write on stream 2 is not after the read on stream 1");
}

static void
memory_freed_while_a_stream_uses_it_is_caught_although_the_call_waits(void)
{
    stream here = new_stream(0);
    unsigned char *data = new_memory(8), *more = new_memory(8);
    simulated_expect(here, data, 0xCD, 8);
    SUCCEEDS(Free(data));
    CAUGHT("stream 1 still uses memory 1");
    CHECK_NUMBER(simulated_pending(here), 0);
    CHECK_NUMBER(data[0], 0xDD);
    FAILS(Free(data), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 1 was freed");
    FAILS(Free(more + 1), RUNTIME(ErrorInvalidValue));
    CAUGHT("not what was allocated");
    FAILS(FREE_PINNED(more), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 2 is not of this kind");
    SUCCEEDS(SetDevice(1));
    stream there = new_stream(0);
    simulated_hold(there);
    simulated_launch(there, waiting_kernel, NULL, more, NULL);
    SUCCEEDS(Free(more));
    CAUGHT("stream 2 still uses memory 2");
    SUCCEEDS(Free(NULL));
    CLEAN();
}

static void
memory_that_was_freed_is_given_again_when_its_turn_has_come(void)
{
    stream work = new_stream(RUNTIME(StreamNonBlocking)), other = new_stream(RUNTIME(StreamNonBlocking));
    void *first = NULL, *second = NULL, *third = NULL, *larger = NULL;
    SUCCEEDS(MallocAsync(&first, 64, work));
    simulated_hold(work);
    simulated_fill(work, first, 5, 64);
    SUCCEEDS(FreeAsync(first, work));
    SUCCEEDS(MallocAsync(&second, 64, other));
    SUCCEEDS(MallocAsync(&larger, 65, work));
    CHECK(second != first && larger != first);
    SUCCEEDS(MallocAsync(&third, 64, work)); /* comes after the work that frees it */
    CHECK(third == first);
    simulated_fill(work, third, 6, 64);
    simulated_let_go(work);
    SUCCEEDS(StreamSynchronize(work));
    CHECK_NUMBER(((unsigned char *)third)[63], 6);
    SUCCEEDS(FreeAsync(third, work));
    SUCCEEDS(StreamSynchronize(work));
    SUCCEEDS(SetDevice(1));
    SUCCEEDS(Malloc(&larger, 64));
    SUCCEEDS(SetDevice(0));
    CHECK(larger != first);
    SUCCEEDS(MallocManaged(&larger, 64, RUNTIME(MemAttachGlobal)));
    CHECK(larger != first);
    SUCCEEDS(MallocAsync(&second, 64, other)); /* on any stream, as the memory is free */
    CHECK(second == first);
    CHECK_NUMBER(simulated_live("memory"), 5);
    CLEAN();
}

static void
memory_that_the_host_frees_is_given_again(void)
{
    unsigned char *first = new_memory(16), *second;
    SUCCEEDS(Free(first));
    second = new_memory(16);
    CHECK(second == first);
    CHECK_NUMBER(second[0], 0xDD);
    SUCCEEDS(Free(second));
    FAILS(Free(second), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 2 was freed");
}

static void
free_memory_is_counted(void)
{
    size_t before, after, total;
    unsigned char *data;
    SUCCEEDS(MemGetInfo(&before, &total));
    data = new_memory(4096);
    SUCCEEDS(MemGetInfo(&after, &total));
    CHECK_NUMBER(before - after, 4096);
    SUCCEEDS(Free(data));
    SUCCEEDS(MemGetInfo(&after, &total));
    CHECK_NUMBER(before - after, 0);
}

static void
managed_memory_may_be_readable_while_the_device_is_idle_alone(void)
{
    stream work = new_stream(RUNTIME(StreamNonBlocking)), other = new_stream(RUNTIME(StreamNonBlocking));
    void *managed = NULL;
    SUCCEEDS(MallocManaged(&managed, 8, RUNTIME(MemAttachGlobal)));
    simulated_hold(other);
    simulated_fill(work, managed, 5, 8);
    simulated_launch(other, waiting_kernel, NULL, NULL, NULL);
    SUCCEEDS(StreamSynchronize(work));
    CHECK(simulated_host_may_read(managed));
    simulated_managed_is_exclusive(1);
    CHECK(!simulated_host_may_read(managed));
    simulated_let_go(other);
    SUCCEEDS(DeviceSynchronize());
    CHECK(simulated_host_may_read(managed));
    CLEAN();
}

static int
#if defined(__HIP_PLATFORM_AMD__) && HIP_VERSION_MAJOR < 6
type_of(hipPointerAttribute_t found)
{
    return found.isManaged ? -1 : (int)found.memoryType;
}
#define MANAGED -1
#else
#if defined(__HIP_PLATFORM_AMD__)
type_of(hipPointerAttribute_t found)
#else
type_of(struct cudaPointerAttributes found)
#endif
{
    return (int)found.type;
}
#define MANAGED RUNTIME(MemoryTypeManaged)
#endif

static void
a_pointer_tells_its_kind_and_device(void)
{
#if defined(__HIP_PLATFORM_AMD__)
    hipPointerAttribute_t found;
#else
    struct cudaPointerAttributes found;
#endif
    void *device = NULL, *pinned = NULL, *managed = NULL;
    SUCCEEDS(SetDevice(2));
    SUCCEEDS(Malloc(&device, 64));
    SUCCEEDS(MALLOC_PINNED(&pinned, 64));
    SUCCEEDS(MallocManaged(&managed, 64, RUNTIME(MemAttachGlobal)));
    SUCCEEDS(SetDevice(0));
    SUCCEEDS(PointerGetAttributes(&found, (char *)device + 63));
    CHECK_NUMBER(type_of(found), RUNTIME(MemoryTypeDevice));
    CHECK_NUMBER(found.device, 2);
    SUCCEEDS(PointerGetAttributes(&found, pinned));
    CHECK_NUMBER(type_of(found), RUNTIME(MemoryTypeHost));
    SUCCEEDS(PointerGetAttributes(&found, managed));
    CHECK_NUMBER(type_of(found), MANAGED);
    simulated_unknown_memory_is_error(1);
    FAILS(PointerGetAttributes(&found, &found), RUNTIME(ErrorInvalidValue));
    simulated_unknown_memory_is_error(0);
    SUCCEEDS(PointerGetAttributes(&found, &found));
    CHECK_NUMBER(type_of(found), 0);
    FAILS(Malloc(&device, SIZE_MAX / 2), OUT_OF_MEMORY);
    CLEAN();
}

/* ---- Capture ------------------------------------------------------------------------------------------------------- */

static stream
capturing(unsigned flags, capture_mode mode)
{
    stream made = new_stream(flags);
    SUCCEEDS(StreamBeginCapture(made, mode));
    return made;
}

#define GLOBAL RUNTIME(StreamCaptureModeGlobal)
#define THREAD_LOCAL RUNTIME(StreamCaptureModeThreadLocal)
#define RELAXED RUNTIME(StreamCaptureModeRelaxed)
#define STATUS_IS(of, wanted)                                        \
    do {                                                             \
        capture_status status_;                                      \
        SUCCEEDS(StreamIsCapturing(of, &status_));                   \
        CHECK_NUMBER(status_, RUNTIME(StreamCaptureStatus##wanted)); \
    } while (0)

/* Ends a capture with this error, or with a graph that is then destroyed. */
static void
end(stream work, RUNTIME(Error_t) error)
{
    graph made = NULL;
    FAILS(StreamEndCapture(work, &made), error);
    CHECK((made != NULL) == (error == RUNTIME(Success)));
    if (made != NULL)
        SUCCEEDS(GraphDestroy(made));
    STATUS_IS(work, None);
}

static void
a_capturing_stream_keeps_its_work_and_those_that_join_it_must_be_joined(void)
{
    unsigned char *data = new_memory(8);
    event fork = new_event(), join = new_event();
    stream side = new_stream(0), origin = capturing(0, RELAXED);
    simulated_fill(origin, data, 5, 8);
    SUCCEEDS(EventRecord(fork, origin));
    SUCCEEDS(StreamWaitEvent(side, fork, 0));
    STATUS_IS(side, Active);
    simulated_fill(side, data, 6, 8);
    SUCCEEDS(EventRecord(join, side));
    SUCCEEDS(StreamWaitEvent(origin, join, 0));
    CHECK_NUMBER(simulated_pending(origin) + simulated_pending(side), 0);
    end(origin, RUNTIME(Success));
    STATUS_IS(side, None);
    CHECK_NUMBER(data[0], 0xCD);
    CLEAN();

    SUCCEEDS(StreamBeginCapture(origin, RELAXED));
    SUCCEEDS(EventRecord(fork, origin));
    SUCCEEDS(StreamWaitEvent(side, fork, 0));
    SUCCEEDS(EventRecord(join, side));
    SUCCEEDS(StreamWaitEvent(origin, join, 0));
    simulated_fill(side, data, 6, 8); /* work after the joined work */
    end(origin, RUNTIME(ErrorStreamCaptureUnjoined));
    CAUGHT("StreamEndCapture(stream 2): stream 1 was not joined");
    STATUS_IS(side, None);
    simulated_fill(side, data, 6, 8);
    SUCCEEDS(StreamSynchronize(side));
    CHECK_NUMBER(data[0], 6);

    SUCCEEDS(StreamBeginCapture(origin, RELAXED));
    SUCCEEDS(EventRecord(fork, origin));
    SUCCEEDS(StreamWaitEvent(side, fork, 0)); /* no work follows: there is nothing to join */
    end(origin, RUNTIME(Success));
    STATUS_IS(side, None);
    CLEAN();
}

static void
a_capturing_stream_cannot_wait_for_an_event_outside_nor_of_another_capture(void)
{
    stream plain = new_stream(0), one = capturing(0, RELAXED), two = capturing(0, RELAXED);
    event outside = new_event(), inside = new_event();
    SUCCEEDS(EventRecord(outside, plain));
    SUCCEEDS(EventRecord(inside, two));
    FAILS(StreamWaitEvent(one, outside, 0), RUNTIME(ErrorStreamCaptureIsolation));
    CAUGHT("stream 2 captures, the event is outside");
    STATUS_IS(one, Invalidated);
    STATUS_IS(two, Active);
    FAILS(EventRecord(outside, one), RUNTIME(ErrorStreamCaptureInvalidated));
    CAUGHT("the capture is spoiled");
    end(one, RUNTIME(ErrorStreamCaptureInvalidated));

    SUCCEEDS(StreamBeginCapture(one, RELAXED));
    FAILS(StreamWaitEvent(one, inside, 0), RUNTIME(ErrorStreamCaptureMerge));
    CAUGHT("the event is of another capture than stream 2");
    end(one, RUNTIME(ErrorStreamCaptureInvalidated));
    STATUS_IS(two, Invalidated);
    FAILS(StreamWaitEvent(plain, inside, 0), RUNTIME(ErrorStreamCaptureInvalidated));
    CAUGHT("the event is of a capture that is spoiled");
    end(two, RUNTIME(ErrorStreamCaptureInvalidated));
    FAILS(StreamWaitEvent(plain, inside, 0), RUNTIME(ErrorCapturedEvent));
    CAUGHT("of a capture that has ended");
    SUCCEEDS(EventRecord(inside, plain));
    SUCCEEDS(StreamWaitEvent(one, inside, 0));
    CLEAN();
}

static void
looking_at_a_capturing_stream_or_a_captured_event_spoils_the_capture(void)
{
    event inside = new_event();
    stream work = new_stream(0);
    for (int i = 0; i < 5; i++) {
        SUCCEEDS(StreamBeginCapture(work, RELAXED));
        SUCCEEDS(EventRecord(inside, work));
        if (i == 0)
            FAILS(StreamQuery(work), RUNTIME(ErrorStreamCaptureUnsupported));
        if (i == 1)
            FAILS(StreamSynchronize(work), RUNTIME(ErrorStreamCaptureUnsupported));
        if (i == 2)
            FAILS(DeviceSynchronize(), RUNTIME(ErrorStreamCaptureUnsupported));
        if (i == 3)
            FAILS(EventQuery(inside), RUNTIME(ErrorCapturedEvent));
        if (i == 4)
            FAILS(EventSynchronize(inside), RUNTIME(ErrorCapturedEvent));
        CAUGHT(i < 3 ? "stream 1 captures" : "the event was recorded in a capture");
        STATUS_IS(work, Invalidated);
        end(work, RUNTIME(ErrorStreamCaptureInvalidated));
    }
}

static void
the_legacy_stream_is_not_to_be_used_while_a_blocking_stream_of_its_device_captures(void)
{
    capture_status status;
    event done = new_event(), captured = new_event();
    stream apart = capturing(RUNTIME(StreamNonBlocking), RELAXED);
    SUCCEEDS(EventRecord(done, LEGACY));
    STATUS_IS(LEGACY, None);
    CLEAN();
    SUCCEEDS(EventRecord(captured, apart));
    FAILS(StreamWaitEvent(LEGACY, captured, 0), RUNTIME(ErrorStreamCaptureImplicit));
    CAUGHT("the legacy stream cannot join a capture");
    end(apart, RUNTIME(ErrorStreamCaptureInvalidated));

    stream blocking = capturing(0, RELAXED);
    FAILS(StreamIsCapturing(LEGACY, &status), RUNTIME(ErrorStreamCaptureImplicit));
    CLEAN();
    STATUS_IS(blocking, Active);
    SUCCEEDS(SetDevice(1));
    STATUS_IS(LEGACY, None);
    SUCCEEDS(SetDevice(0));
    FAILS(EventRecord(done, LEGACY), RUNTIME(ErrorStreamCaptureImplicit));
    CAUGHT("EventRecord(event 1, ");
    STATUS_IS(blocking, Invalidated);
    end(blocking, RUNTIME(ErrorStreamCaptureInvalidated));
    SUCCEEDS(EventRecord(done, LEGACY));
    FAILS(StreamBeginCapture(LEGACY, RELAXED), RUNTIME(ErrorStreamCaptureUnsupported));
    CAUGHT("the legacy stream cannot capture");
}

/* Makes one call of each unsafe function, and checks that all return the same result. Returns this result. */
static RUNTIME(Error_t) try_unsafe_calls(capture_mode mode)
{
    void *memory = NULL, *before = NULL;
    capture_mode relaxed = RELAXED;
    stream plain = new_stream(RUNTIME(StreamNonBlocking));
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&relaxed));
    SUCCEEDS(MallocAsync(&before, 8, plain));
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&relaxed));
    simulated_settle();
    event done = new_event();
    SUCCEEDS(EventRecord(done, plain));
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&mode));
    RUNTIME(Error_t) error = RUNTIME(StreamQuery)(plain);
    FAILS(StreamSynchronize(plain), error);
    FAILS(EventQuery(done), error);
    FAILS(EventSynchronize(done), error);
    FAILS(Malloc(&memory, 8), error);
    FAILS(Free(before), error);
    FAILS(MallocAsync(&memory, 8, plain), error);
    FAILS(FreeAsync(error == RUNTIME(Success) ? memory : before, plain), error);
    CHECK_NUMBER(simulated_violations(), error == RUNTIME(Success) ? 0 : 8);
    simulated_forgive();
    SUCCEEDS(ThreadExchangeStreamCaptureMode(&mode));
    SUCCEEDS(EventDestroy(done));
    SUCCEEDS(StreamDestroy(plain));
    CLEAN();
    return error;
}

struct unsafe {
    capture_mode capture, own;
    RUNTIME(Error_t) error;
};

static void *
try_unsafe_calls_elsewhere(void *argument)
{
    struct unsafe *unsafe = argument;
    unsafe->error = try_unsafe_calls(unsafe->own);
    return NULL;
}

static void
calls_are_unsafe_as_the_modes_of_captures_and_threads_have_it(void)
{
    const RUNTIME(Error_t) no = RUNTIME(ErrorStreamCaptureUnsupported), yes = RUNTIME(Success);
    const struct {
        struct unsafe modes;
        RUNTIME(Error_t) here, elsewhere;
    } cases[] = {
        {{GLOBAL, GLOBAL, yes}, no, no},
        {{THREAD_LOCAL, GLOBAL, yes}, no, yes},
        {{RELAXED, GLOBAL, yes}, yes, yes},
        {{GLOBAL, THREAD_LOCAL, yes}, no, yes},
        {{THREAD_LOCAL, THREAD_LOCAL, yes}, no, yes},
        {{GLOBAL, RELAXED, yes}, yes, yes},
        {{THREAD_LOCAL, RELAXED, yes}, yes, yes},
        {{RELAXED, RELAXED, yes}, yes, yes},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
            struct unsafe modes = cases[i].modes;
            RUNTIME(Error_t) wanted = elsewhere ? cases[i].elsewhere : cases[i].here;
            stream work = capturing(RUNTIME(StreamNonBlocking), modes.capture);
            if (elsewhere)
                on_thread(try_unsafe_calls_elsewhere, &modes);
            else
                modes.error = try_unsafe_calls(modes.own);
            CHECK_NUMBER(modes.error, wanted);
            end(work, wanted == yes ? yes : RUNTIME(ErrorStreamCaptureInvalidated));
        }
    }
}

static void *
end_elsewhere(void *work)
{
    graph made = NULL;
    FAILS(StreamEndCapture((stream)work, &made), RUNTIME(ErrorStreamCaptureWrongThread));
    return NULL;
}

static void
a_capture_ends_where_it_was_begun(void)
{
    graph made = NULL;
    event fork = new_event();
    stream side = new_stream(0), work = capturing(0, GLOBAL);
    on_thread(end_elsewhere, work);
    CAUGHT("begun by another thread");
    FAILS(StreamBeginCapture(work, GLOBAL), RUNTIME(ErrorIllegalState));
    CAUGHT("stream 2 captures already");
    SUCCEEDS(EventRecord(fork, work));
    SUCCEEDS(StreamWaitEvent(side, fork, 0));
    FAILS(StreamEndCapture(side, &made), RUNTIME(ErrorStreamCaptureUnmatched));
    CAUGHT("the capture was begun on stream 2");
    end(work, RUNTIME(ErrorStreamCaptureInvalidated));
    FAILS(StreamEndCapture(work, &made), RUNTIME(ErrorIllegalState));
    CAUGHT("stream 2 does not capture");
}

static void
the_number_of_a_capture_tells_its_streams(void)
{
    event fork = new_event();
    stream side = new_stream(0), one = capturing(0, RELAXED), two = capturing(0, RELAXED);
    CHECK_NUMBER(capture_id(side), 0);
    SUCCEEDS(EventRecord(fork, one));
    SUCCEEDS(StreamWaitEvent(side, fork, 0));
    CHECK(capture_id(one) != 0 && capture_id(one) == capture_id(side) && capture_id(one) != capture_id(two));
    CLEAN();
}

static void
memory_allocated_in_a_capture_is_its_graphs(void)
{
    graph made = NULL;
    void *memory = NULL, *before = new_memory(8);
    stream work = capturing(0, RELAXED);
    SUCCEEDS(MallocAsync(&memory, 8, work));
    FAILS(FreeAsync(before, work), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 1 is of another capture, or of none");
    SUCCEEDS(StreamEndCapture(work, &made));
    FAILS(FreeAsync(memory, work), RUNTIME(ErrorInvalidValue));
    CAUGHT("memory 2 is of another capture, or of none");
    CHECK_NUMBER(simulated_live("memory"), 2);
    CHECK_NUMBER(simulated_live("graph"), 1);
    SUCCEEDS(GraphDestroy(made));
    CHECK_NUMBER(simulated_live("memory"), 1);
    CHECK_NUMBER(simulated_live("graph"), 0);
    FAILS(GraphDestroy(made), RUNTIME(ErrorInvalidValue));
    CAUGHT("not a graph, or destroyed");
}

static void
a_graph_does_its_work_each_time_it_is_launched(void)
{
    RUNTIME(GraphExec_t) runnable = NULL;
    unsigned char *data = new_memory(8);
    event fork = new_event(), join = new_event();
    stream side = new_stream(0), origin = capturing(0, RELAXED), work = new_stream(0);
    graph made = NULL;
    simulated_fill(origin, data, 5, 8);
    SUCCEEDS(EventRecord(fork, origin));
    SUCCEEDS(StreamWaitEvent(side, fork, 0));
    simulated_fill(side, data, 6, 8);
    SUCCEEDS(EventRecord(join, side));
    SUCCEEDS(StreamWaitEvent(origin, join, 0));
    simulated_expect(origin, data, 6, 8);
    SUCCEEDS(StreamEndCapture(origin, &made));
    SUCCEEDS(GraphInstantiateWithFlags(&runnable, made, 0));
    SUCCEEDS(GraphDestroy(made));
    CHECK_NUMBER(data[0], 0xCD);
    for (int i = 0; i < 2; i++) {
        let_kernels_end(0);
        simulated_launch(work, waiting_kernel, NULL, NULL, NULL);
        simulated_fill(work, data, 7, 8);
        SUCCEEDS(GraphLaunch(runnable, work));
        CHECK_NUMBER(simulated_pending(work) > 0, 1);
        let_kernels_end(1);
        SUCCEEDS(StreamSynchronize(work));
        CHECK_NUMBER(data[7], 6);
    }
    SUCCEEDS(GraphExecDestroy(runnable));
    CLEAN();
    FAILS(GraphLaunch(runnable, work), RUNTIME(ErrorInvalidValue));
    CAUGHT("not a runnable graph, or destroyed");
    FAILS(GraphInstantiateWithFlags(&runnable, made, 0), RUNTIME(ErrorInvalidValue));
    CAUGHT("not a graph, or destroyed");
}

/* ---- Threads ------------------------------------------------------------------------------------------------------- */

static void *
hand_over_many_times(void *argument)
{
    unsigned char *data = argument;
    stream one = new_stream(RUNTIME(StreamNonBlocking)), two = new_stream(RUNTIME(StreamNonBlocking));
    for (int i = 0; i < 20; i++) {
        event filled = new_event(), expected = new_event();
        simulated_fill(one, data, i, 64);
        SUCCEEDS(EventRecord(filled, one));
        SUCCEEDS(StreamWaitEvent(two, filled, 0));
        simulated_expect(two, data, i, 64);
        SUCCEEDS(EventRecord(expected, two));
        SUCCEEDS(StreamWaitEvent(one, expected, 0));
        SUCCEEDS(EventDestroy(filled));
        SUCCEEDS(EventDestroy(expected));
    }
    SUCCEEDS(StreamSynchronize(two));
    CHECK_NUMBER(data[63], 19);
    SUCCEEDS(StreamDestroy(one));
    SUCCEEDS(StreamDestroy(two));
    return NULL;
}

static void
threads_use_it_at_once(void)
{
    pthread_t threads[4];
    unsigned char *data[4];
    simulated_delay(50);
    for (int i = 0; i < COUNT(threads); i++) {
        data[i] = new_memory(64);
        pthread_create(&threads[i], NULL, hand_over_many_times, data[i]);
    }
    for (int i = 0; i < COUNT(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK_NUMBER(simulated_live("event") + simulated_live("stream"), 0);
    CLEAN();
}

int
main(void)
{
    void (*const tests[])(void) = {
        work_of_a_stream_runs_in_order_and_nothing_runs_while_it_is_held,
        a_stream_that_waits_for_an_event_runs_after_the_stream_that_recorded_it,
        work_on_memory_that_is_in_no_order_is_caught_however_it_runs,
        a_kernel_that_reads_what_it_does_not_expect_is_caught,
        a_wait_uses_the_record_that_is_current_at_the_call,
        an_event_that_is_pending_may_be_recorded_again_only_with_cuda,
        the_legacy_stream_and_blocking_streams_wait_for_each_other,
        per_thread_default_streams_are_of_the_thread_and_its_current_device,
#if !defined(__HIP_PLATFORM_AMD__)
        null_is_the_per_thread_stream_in_files_compiled_so,
#endif
        a_wait_orders_streams_of_two_devices,
        a_call_that_blocks_the_host_behind_a_held_stream_is_caught,
        an_event_is_recorded_only_on_streams_of_its_device,
        handles_that_are_destroyed_or_never_were_are_refused,
        handles_are_used_again_where_a_test_asks_for_it,
        a_stream_of_another_context_takes_events_of_that_context_alone,
        a_destroyed_stream_finishes_its_work,
        a_wait_for_an_event_that_was_never_recorded_is_caught,
        the_log_has_every_call_and_the_errors,
        calls_fail_as_told,
        a_call_with_the_watched_lock_held_is_caught,
        a_wait_that_is_made_to_fail_loses_the_copies_to_the_host,
        errors_have_their_names,
        what_a_call_leaves_changed_is_caught,
        what_is_alive_is_counted_and_named,
        a_host_function_may_not_call_the_runtime,
        without_devices_every_call_says_so,
        a_device_that_is_reset_loses_its_handles_and_no_others,
        copies_stay_within_what_is_allocated_and_on_the_sides_they_name,
        rows_and_blocks_are_copied_late,
        memory_that_is_freed_on_a_stream_goes_when_its_turn_comes,
        memory_allocated_on_a_stream_is_there_when_its_turn_comes,
        memory_freed_on_a_stream_that_does_not_wait_for_a_reader_is_caught,
        memory_freed_while_a_stream_uses_it_is_caught_although_the_call_waits,
        memory_that_was_freed_is_given_again_when_its_turn_has_come,
        memory_that_the_host_frees_is_given_again,
        free_memory_is_counted,
        managed_memory_may_be_readable_while_the_device_is_idle_alone,
        a_pointer_tells_its_kind_and_device,
        a_capturing_stream_keeps_its_work_and_those_that_join_it_must_be_joined,
        a_capturing_stream_cannot_wait_for_an_event_outside_nor_of_another_capture,
        looking_at_a_capturing_stream_or_a_captured_event_spoils_the_capture,
        the_legacy_stream_is_not_to_be_used_while_a_blocking_stream_of_its_device_captures,
        calls_are_unsafe_as_the_modes_of_captures_and_threads_have_it,
        a_capture_ends_where_it_was_begun,
        the_number_of_a_capture_tells_its_streams,
        memory_allocated_in_a_capture_is_its_graphs,
        a_graph_does_its_work_each_time_it_is_launched,
        threads_use_it_at_once,
    };
    let_kernels_end(1);
    for (int i = 0; i < COUNT(tests); i++) {
        simulated_reset(3);
        tests[i]();
    }
    simulated_reset(3);
    return check_failures != 0;
}

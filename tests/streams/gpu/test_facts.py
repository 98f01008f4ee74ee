"""The behaviour of the runtime on which the handshake relies, and which the simulated runtime imitates (S1, S5, S6,
S9). If a test fails here, the header may still be right: check the code that relies on this behaviour."""

import contextlib
import ctypes

import pytest
from dltensor import run_on
from streams.gpu.device import (
    ACTIVE,
    IMPLICIT,
    INVALIDATED,
    ISOLATION,
    LEGACY,
    MERGE,
    NONE,
    POINTER,
    RELAXED,
    SIZE,
    SPOILED,
    UNJOINED,
    UNSUPPORTED,
)

INVALID_DEVICE, INVALID_HANDLE = 101, 400
pytestmark = pytest.mark.forbidden


@pytest.fixture
def stream(gpu):
    return gpu.stream("producer")


@pytest.fixture
def other(gpu):
    return gpu.stream("consumer")


@pytest.fixture
def blocking(gpu):
    return gpu.stream("blocking", flags=0)


@pytest.fixture
def event(gpu):
    event = gpu.event()
    yield event
    gpu.runtime("EventDestroy", event)


@pytest.fixture
def memory(gpu, other):
    """Memory that the test frees."""
    memory = POINTER()
    gpu.runtime("MallocAsync", ctypes.byref(memory), SIZE, other)
    gpu.synchronize(other)
    return memory.value


@contextlib.contextmanager
def failing(gpu, error):
    """A list for the error of a call in the block. The runtime must keep this error until it is read once."""
    returned = []
    yield returned
    assert returned == [error]
    assert gpu.last_error() == error
    assert gpu.last_error() == 0


# ---- Events: S1 ----


def test_a_wait_is_for_the_record_that_is_current_at_the_call_S1(gpu, stream, other, event):
    """Therefore one event is enough for all streams of a device."""
    array, late = gpu.array(stream), gpu.stream("late")
    gpu.fill_late(stream, array.address, 7)
    gpu.runtime("EventRecord", event, stream)
    gpu.runtime("StreamWaitEvent", other, event, 0)
    gpu.sum(late, array.address, delay=1_000_000_000)
    gpu.runtime("EventRecord", event, late)
    gpu.synchronize(other)
    assert (gpu.pending(stream), gpu.pending(late)) == (False, True)
    assert gpu.total(other, array.address) == 7 * SIZE


def test_an_event_and_the_stream_that_records_it_are_of_one_device_S5(two, event):
    with failing(two, INVALID_HANDLE) as errors:
        errors.append(two.call("EventRecord", event, two.stream("producer", 1)))


def test_a_stream_waits_for_an_event_of_another_device_S5(two, event, other):
    two.runtime("EventRecord", event, other)
    two.runtime("StreamWaitEvent", two.stream("producer", 1), event, 0)


def test_default_streams_are_of_the_current_device_S5(two, event):
    """The event belongs to device 0."""
    for handle in (LEGACY, 2):
        two.runtime("EventRecord", event, handle)
        with two.on_device(1), failing(two, INVALID_HANDLE) as errors:
            errors.append(two.call("EventRecord", event, handle))


def test_a_query_of_the_legacy_stream_sees_work_on_the_per_thread_stream_S2(gpu):
    """Therefore a query of the legacy stream tells whether the work of other threads is done."""
    array = gpu.array(gpu.stream("producer"))
    gpu.fill_late(2, array.address, 7)
    assert gpu.pending(LEGACY)
    gpu.synchronize(2)
    assert not gpu.pending(LEGACY)


def test_the_error_of_a_call_stays_until_it_is_read_S9(gpu):
    with failing(gpu, INVALID_DEVICE) as errors:
        errors.append(gpu.call("SetDevice", gpu.devices))


# ---- Capture: S6 ----


def test_a_wait_for_an_event_from_outside_spoils_the_capture_S6(gpu, stream, other, event):
    gpu.runtime("EventRecord", event, other)
    with gpu.capture(stream, ends=INVALIDATED):
        with failing(gpu, ISOLATION) as errors:
            errors.append(gpu.call("StreamWaitEvent", stream, event, 0))
        assert gpu.capturing(stream) == SPOILED


@pytest.mark.parametrize("mode", ["global", "relaxed"])
@pytest.mark.parametrize("function", ["StreamQuery", "StreamSynchronize"])
def test_a_query_or_wait_for_a_capturing_stream_spoils_its_capture_S6(gpu, stream, function, mode):
    with gpu.capture(stream, ends=INVALIDATED):
        with gpu.relaxed() if mode == "relaxed" else contextlib.nullcontext(), failing(gpu, UNSUPPORTED) as errors:
            errors.append(gpu.call(function, stream))
        assert gpu.capturing(stream) == SPOILED


def test_the_default_stream_never_captures_S6(gpu):
    assert gpu.capturing(LEGACY) == NONE
    with failing(gpu, UNSUPPORTED) as errors:
        errors.append(gpu.call("StreamBeginCapture", LEGACY, RELAXED))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_default_stream_cannot_be_asked_while_a_blocking_one_captures_and_spoils_nothing_S6(gpu, blocking, mode):
    state = ctypes.c_int()
    with gpu.capture(blocking, mode):
        with failing(gpu, IMPLICIT) as errors:
            errors.append(gpu.call("StreamIsCapturing", LEGACY, ctypes.byref(state)))
        assert gpu.capturing(blocking) == ACTIVE


def test_the_default_stream_can_be_asked_while_one_captures_that_does_not_wait_for_it_S6(gpu, stream, event):
    with gpu.capture(stream):
        assert gpu.capturing(LEGACY) == NONE
        gpu.runtime("EventRecord", event, LEGACY)
        assert gpu.capturing(stream) == ACTIVE


def test_a_record_on_the_default_stream_spoils_the_capture_of_a_blocking_one_S6(gpu, blocking, event):
    with gpu.capture(blocking, ends=INVALIDATED):
        with failing(gpu, IMPLICIT) as errors:
            errors.append(gpu.call("EventRecord", event, LEGACY))
        assert gpu.capturing(blocking) == SPOILED


def test_freeing_on_the_default_stream_spoils_the_capture_of_a_blocking_one_S6(gpu, other, blocking, memory):
    """Therefore a deleter must not use FreeAsync on the default stream during a capture."""
    with gpu.capture(blocking, ends=INVALIDATED):
        with failing(gpu, IMPLICIT) as errors:
            errors.append(gpu.call("FreeAsync", memory, LEGACY))
        assert gpu.capturing(blocking) == SPOILED
    gpu.runtime("FreeAsync", memory, other)


def test_memory_is_allocated_and_freed_on_a_stream_in_relaxed_mode_while_another_captures_S6(
    gpu, stream, other, memory
):
    allocated = POINTER()
    with gpu.capture(stream):
        with gpu.relaxed():
            gpu.runtime("MallocAsync", ctypes.byref(allocated), SIZE, other)
            gpu.runtime("FreeAsync", memory, other)
        assert gpu.capturing(stream) == ACTIVE
    gpu.runtime("FreeAsync", allocated, other)


@pytest.mark.parametrize("where", ["no capture", "a capture, in relaxed mode"])
def test_cudafree_takes_memory_of_a_stream_S6(gpu, stream, memory, where):
    if where == "no capture":
        gpu.runtime("Free", memory)
        return
    with gpu.capture(stream):
        with gpu.relaxed():
            gpu.runtime("Free", memory)
        assert gpu.capturing(stream) == ACTIVE


@pytest.mark.parametrize("function", ["EventQuery", "Free", "FreeAsync", "MallocAsync"])
@pytest.mark.parametrize("called_on", ["this thread", "another thread"])
def test_an_unsafe_call_spoils_a_capture_outside_of_relaxed_mode_S6(
    gpu, stream, other, event, memory, function, called_on
):
    gpu.runtime("EventRecord", event, other)
    gpu.synchronize(other)
    arguments = {
        "EventQuery": [event],
        "Free": [memory],
        "FreeAsync": [memory, other],
        "MallocAsync": [ctypes.byref(POINTER()), SIZE, other],
    }

    def unsafe():
        errors.append(gpu.call(function, *arguments[function]))

    errors = []
    with gpu.capture(stream, ends=INVALIDATED):
        run_on(called_on, unsafe)
        if called_on == "this thread":
            gpu.last_error()
        assert gpu.capturing(stream) == SPOILED
    assert errors == [UNSUPPORTED]
    gpu.runtime("FreeAsync", memory, other)


@pytest.mark.parametrize("called_on", ["this thread", "another thread"])
def test_the_host_queries_and_waits_in_relaxed_mode_while_another_stream_captures_S6(
    gpu, stream, other, event, called_on
):
    gpu.runtime("EventRecord", event, other)

    def watch():
        with gpu.relaxed():
            gpu.runtime("StreamQuery", other)
            gpu.runtime("EventQuery", event)
            gpu.runtime("StreamSynchronize", other)
        done.append(True)

    done = []
    gpu.synchronize(other)
    with gpu.capture(stream):
        run_on(called_on, watch)
        assert gpu.capturing(stream) == ACTIVE
    assert done == [True]


@pytest.mark.parametrize("works", [False, True])
def test_a_stream_that_waits_for_a_capturing_one_joins_its_capture_S6(gpu, stream, other, event, works):
    """The origin must join the stream again if the stream has work beyond the wait."""
    array = gpu.array(stream)
    with gpu.capture(stream, ends=UNJOINED if works else 0):
        gpu.runtime("EventRecord", event, stream)
        gpu.runtime("StreamWaitEvent", other, event, 0)
        assert gpu.capturing(other) == ACTIVE
        if works:
            gpu.fill(other, array.address, 1)
    assert gpu.capturing(other) == NONE


def test_a_wait_across_two_captures_spoils_both_S6(gpu, stream, other, event):
    with gpu.capture(other, RELAXED, ends=INVALIDATED), gpu.capture(stream, RELAXED, ends=INVALIDATED):
        gpu.runtime("EventRecord", event, stream)
        with failing(gpu, MERGE) as errors:
            errors.append(gpu.call("StreamWaitEvent", other, event, 0))
        assert (gpu.capturing(stream), gpu.capturing(other)) == (SPOILED, SPOILED)


# ---- Memory: D9 ----


def test_memory_that_the_runtime_never_saw_is_not_registered_D9(gpu):
    attributes = (ctypes.c_int * 64)()
    numbers = (ctypes.c_int * 8)()
    gpu.runtime("PointerGetAttributes", attributes, ctypes.addressof(numbers))
    assert attributes[0] == 0


@pytest.mark.parametrize("kind, number", [("PINNED", 1), ("DEVICE", 2), ("MANAGED", 3)])
def test_memory_is_known_by_its_kind_D9(gpu, stream, kind, number):
    array = gpu.array(stream, type=getattr(gpu.probe, kind))
    attributes = (ctypes.c_int * 64)()
    gpu.runtime("PointerGetAttributes", attributes, array.address)
    assert (attributes[0], attributes[1]) == (number, 0)

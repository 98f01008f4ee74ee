"""Requests of another library by __dlpack__ to a producer on a device (S1 to S10, P5, P6, D9)."""

import contextlib
import ctypes
import struct
import sys
import threading
import time

import dltensor
import pytest
from collecting import collect, not_on_pypy
from dltensor import CPU, FORMS, IS_COPIED, READ_ONLY, Taken
from streams.simulation import RELAXED

VERSION = {"max_version": (1, 3)}
PADDED = 4  # the flag


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def waited(stream, *copies):
    """The calls by which the host waits for a stream, and for copies, even while another stream captures."""
    return [
        f"ThreadExchangeStreamCaptureMode({RELAXED})",
        *copies,
        f"StreamSynchronize({stream})",
        "ThreadExchangeStreamCaptureMode(0)",
    ]


def asked(sim, before, after):
    """The calls that query whether two streams capture."""
    return [f"StreamIsCapturing({sim.name(after)})", f"StreamIsCapturing({sim.name(before)})"]


def by_event(sim, before, after, event="event 1"):
    """The calls that order one stream after another stream."""
    return [
        f"EventCreateWithFlags({event}, 2)",
        f"EventRecord({event}, {sim.name(before)})",
        f"StreamWaitEvent({sim.name(after)}, {event})",
        f"EventDestroy({event})",
    ]


def ordered(sim, before, after):
    """All calls that order two streams of the current device."""
    return [*asked(sim, before, after), "GetDevice()", *by_event(sim, before, after)]


@contextlib.contextmanager
def refused(sim, text, error=BufferError):
    """Expects an exception, after which device, capture mode and last error are unchanged."""
    with sim.watched(), pytest.raises(error, match=text):
        yield


# ---- The argument: S2, S3, S7, P6 ----

YES, NO, NOT_AN_INTEGER = None, ValueError, TypeError
HIGHEST = 2 * sys.maxsize + 1  # of a pointer
HIGH = sys.maxsize + 9  # the highest bit of a pointer is set
WIDE = YES if HIGHEST > 2**32 else NO
ARGUMENTS = {  # name: (value, result on CUDA, result on ROCm, result for CPU memory)
    "None": (None, YES, YES, YES),
    "-1": (-1, YES, YES, YES),
    "0": (0, NO, YES, NO),
    "1": (1, YES, NO, NO),
    "2": (2, YES, NO, NO),
    "3": (3, YES, YES, NO),
    "2**31": (2**31, YES, YES, NO),
    "2**32 + 5": (2**32 + 5, WIDE, WIDE, NO),
    "a high handle": (HIGH, YES, YES, NO),
    "the highest handle": (HIGHEST, YES, YES, NO),
    "above all handles": (HIGHEST + 1, NO, NO, NO),
    "2**64": (2**64, NO, NO, NO),
    "-2": (-2, NO, NO, NO),
    "-2**63 - 1": (-(2**63) - 1, NO, NO, NO),
    "True, an integer": (True, YES, NO, NO),
    "False": (False, NO, YES, NO),
    "__index__ gives 1": (Index(1), YES, NO, NO),
    "__index__ gives -1": (Index(-1), YES, YES, YES),
    "1.0": (1.0, NOT_AN_INTEGER, NOT_AN_INTEGER, NOT_AN_INTEGER),
    "text": ("1", NOT_AN_INTEGER, NOT_AN_INTEGER, NOT_AN_INTEGER),
    "a tuple": ((1,), NOT_AN_INTEGER, NOT_AN_INTEGER, NOT_AN_INTEGER),
    "an object": (object(), NOT_AN_INTEGER, NOT_AN_INTEGER, NOT_AN_INTEGER),
}


@pytest.mark.parametrize("value, cuda, rocm, host", ARGUMENTS.values(), ids=ARGUMENTS)
def test_which_streams_are_accepted_S2_S3_S7_P6(sim, platform, value, cuda, rocm, host):
    probe = platform.probe
    on_device = cuda if platform.is_cuda else rocm
    cases = [
        (probe.DEVICE, {}, on_device),
        (probe.DEVICE, {"dl_device": (probe.DEVICE, 0)}, on_device),
        (probe.DEVICE, {"dl_device": CPU}, host),
        (probe.PINNED, {}, on_device),
        (probe.CPU, {}, host),
    ]
    if platform.MANAGED:
        cases += [(probe.MANAGED, {}, on_device), (probe.MANAGED, {"dl_device": CPU}, host)]
    for kind, keywords, error in cases:
        array = probe.Array((8,), type=kind)
        with contextlib.nullcontext() if error is None else refused(sim, "stream is ", error):
            capsule = array.__dlpack__(stream=value, **keywords)
            del capsule


def test_the_message_names_the_valid_streams_S2_S3(sim, platform):
    array = platform.probe.Array((8,))
    wrong, wanted = (0, "1 .legacy default., 2 .per-thread") if platform.is_cuda else (1, "0 .default. or a handle")
    with pytest.raises(ValueError, match=f"stream is {wrong} for data on {platform.name}:0, {wanted}"):
        array.__dlpack__(stream=wrong)


def test_a_handle_whose_highest_bit_is_set_is_the_same_stream_S7(sim, platform):
    array = platform.probe.Array((8,), ((HIGH, 1),))
    with sim.watched():
        array.__dlpack__(stream=HIGH, **VERSION)
        assert sim.calls() == []
    with pytest.raises(RuntimeError, match="StreamIsCapturing"):
        array.__dlpack__(stream=HIGH + 8, **VERSION)
    assert len(sim.violations()) == 1  # the stream does not exist


# ---- The same stream, or none: S4 ----


def test_the_same_stream_takes_no_call_S4(sim, platform):
    stream = sim.stream()
    pairs = [(stream, stream), (0, None), (0, platform.default), ((stream, stream), stream), ((), stream), ((), None)]
    if platform.is_cuda:
        pairs += [(1, None), (1, 1)]
    for pending, consumer in pairs:
        for kind in filter(None, (platform.DEVICE, platform.MANAGED)):
            array = None
            collect()  # PyPy: the release of the last array makes calls
            array = platform.probe.Array((8,), pending, type=kind)
            if kind == platform.MANAGED and consumer is None:
                continue  # with stream=None the host will read (S10)
            # For managed memory, the number of a default stream does not name its device.
            asks = kind == platform.MANAGED and consumer in (1, 2) and pending != ()
            with sim.watched():
                array.__dlpack__(stream=consumer, **VERSION)
                assert sim.calls() == (["GetDevice()"] if asks else [])


def test_an_array_of_a_file_with_per_thread_default_streams_uses_the_per_thread_stream_S2(sim, platform):
    if not platform.is_cuda:
        pytest.skip("a file for HIP is not compiled so: its per-thread stream is named")
    array = platform.other.Array((8,), 0)
    sim.calls()
    array.__dlpack__(stream=2)  # another thread may have queued the work
    assert "EventRecord(event 1, legacy)" in sim.calls()
    with sim.capture(2):  # while this thread captures its stream, no other thread can queue work on it
        array.__dlpack__(stream=2)
        assert not any("Event" in call for call in sim.calls())
    array.__dlpack__(stream=1)
    assert "EventRecord(event 1, per-thread)" not in sim.calls()  # the legacy stream waits for it by itself
    array.__dlpack__(stream=sim.stream())
    assert "EventRecord(event 1, legacy)" in sim.calls()


@pytest.mark.parametrize("copy", [None, False])
def test_minus_one_takes_no_call_S2_S3(sim, platform, copy):
    for kind in filter(None, (platform.DEVICE, platform.MANAGED, platform.PINNED)):
        array = platform.probe.Array((8,), sim.stream(), type=kind)
        with sim.watched():
            array.__dlpack__(stream=-1, copy=copy, **VERSION)
            assert sim.calls() == []


def test_minus_one_with_the_own_device_takes_no_call_S2(sim, platform):
    for kind in filter(None, (platform.DEVICE, platform.MANAGED, platform.PINNED)):
        array = platform.probe.Array((8,), sim.stream(), type=kind)
        with sim.watched():
            array.__dlpack__(stream=-1, dl_device=(kind, 0))
            assert sim.calls() == []


def test_none_with_the_option_none_is_no_sync_takes_no_call_S2_S3(sim, platform):
    array = platform.probe.Array((8,), (sim.stream(),), options=platform.probe.NONE_IS_NO_SYNC)
    with sim.watched():
        array.__dlpack__()
        array.__dlpack__(stream=None, **VERSION)
        assert sim.calls() == []
        array.__dlpack__(stream=sim.stream())
        assert "EventRecord(event 1, stream 1)" in sim.calls()


# ---- Another stream: S1, S5 ----


def test_the_host_waits_for_pinned_memory_whatever_none_means_on_a_device_S10(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((8,), (stream,), type=platform.PINNED, options=platform.probe.NONE_IS_NO_SYNC)
    sim.control("delay", 20_000)
    sim.fill(stream, array.address, 5, 8)
    with sim.watched():
        array.__dlpack__()
    assert sim.control("host_may_read", array.address)


def test_another_stream_is_ordered_by_one_record_and_one_wait_S1(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    with sim.watched():
        array.__dlpack__(stream=consumer)
        assert sim.calls() == ordered(sim, producer, consumer)
        for _ in range(3):
            array.__dlpack__(stream=consumer, **VERSION)
            assert sim.calls() == ordered(sim, producer, consumer)


@pytest.mark.parametrize("form", FORMS)
def test_work_of_the_consumer_runs_after_that_of_the_producer_S1(sim, platform, form):
    keywords = VERSION if form == "dltensor_versioned" else {}
    for kind in filter(None, (platform.DEVICE, platform.MANAGED, platform.PINNED)):
        producer, consumer = sim.stream(), sim.stream()
        array = platform.probe.Array((8,), producer, type=kind)
        with sim.held(producer):
            sim.fill(producer, array.address, 7, 8)
            capsule = array.__dlpack__(stream=consumer, **keywords)
            assert dltensor.read(capsule).data == array.address
            sim.expect(consumer, array.address, 7, 8)
            sim.control("settle")
            assert sim.pending(consumer) == 1
        sim.synchronize(consumer)
        del capsule
        with sim.held(consumer):  # the order excludes later work, and the next fill must come after the read
            array.__dlpack__(stream=consumer)
            sim.control("settle")


def test_none_is_the_default_stream_S2_S3(sim, platform):
    producer = sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.fill(producer, array.address, 7, 8)
    for keywords in ({}, {"stream": None}, {"stream": platform.default}):
        with sim.watched():
            array.__dlpack__(**keywords)
            streams = producer, platform.default
            assert sim.calls() == ["GetDevice()", *asked(sim, *streams), *by_event(sim, *streams)]
    sim.check(platform.default, array.address, 7, 8)


def test_default_streams_are_those_of_the_data_s_device_S5(sim, platform):
    producer, consumer = sim.stream(2), sim.stream(2)
    array = platform.probe.Array((8,), producer, device=2)
    with sim.watched():
        array.__dlpack__()
        calls = asked(sim, producer, platform.default) + by_event(sim, producer, platform.default)
        assert sim.calls() == ["GetDevice()", "SetDevice(2)", *calls, "SetDevice(0)"]

    array = platform.probe.Array((8,), 0, device=2)
    with sim.watched():
        array.__dlpack__(stream=consumer)
        first, second = asked(sim, platform.default, consumer)
        calls = [second, *by_event(sim, platform.default, consumer)]
        assert sim.calls() == [first, "GetDevice()", "SetDevice(2)", *calls, "SetDevice(0)"]


def test_the_event_is_made_on_the_device_of_the_producer_s_stream_S5(sim, platform):
    producer, consumer = sim.stream(2), sim.stream(1)
    array = platform.probe.Array((8,), producer, device=2)
    sim.fill(producer, array.address, 7, 8)
    with sim.watched():
        array.__dlpack__(stream=consumer)
        calls = [*asked(sim, producer, consumer), "GetDevice()", "SetDevice(2)", *by_event(sim, producer, consumer)]
        assert sim.calls() == [*calls, "SetDevice(0)"]
    sim.check(consumer, array.address, 7, 8)


@pytest.mark.parametrize("how", ["stream", "host", "-1"])
def test_a_ready_event_is_exported_by_a_stream_that_waits_for_it_S1(sim, platform, how):
    """As docs/streams.md has it for decoders and cameras, which give an event and no stream."""
    decoder, waiting, own, ready = sim.stream(), sim.stream(), sim.stream(), ctypes.c_void_p()
    array = platform.probe.Array((8,), (waiting,))
    sim.runtime("EventCreateWithFlags", ctypes.byref(ready), 2)
    sim.synchronize(waiting)
    sim.control("delay", 20_000)
    sim.fill(decoder, array.address, 7, 8)
    sim.runtime("EventRecord", ready, decoder)
    sim.runtime("StreamWaitEvent", waiting, ready, 0)
    with sim.watched():
        if how == "stream":
            platform.other.consume(array, own)
            sim.check(own, array.address, 7, 8)
        elif how == "host":
            taken = Taken(array.__dlpack__(dl_device=CPU))
            assert taken.values() == [7] * 8
            taken.delete()
        else:
            array.__dlpack__(stream=-1)
            assert not any("Event" in call for call in sim.calls()[1:])
    sim.synchronize(waiting)
    sim.runtime("EventDestroy", ready)


def test_no_event_is_kept_S1(sim, platform):
    arrays = [platform.probe.Array((8,), sim.stream(device), device=device) for device in range(3)]
    streams = [sim.stream(device) for device in range(3)]
    for array, stream in zip(arrays, streams):
        array.__dlpack__(stream=stream)
        assert sim.live("event") == 0


@pytest.mark.parametrize("several", [False, True])
def test_managed_memory_is_ordered_with_any_current_device_S5(sim, platform, several):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    producer = sim.stream(1)
    managed = platform.probe.Array((8,), (producer,) if several else producer, type=platform.MANAGED, device=1)
    sim.fill(producer, managed.address, 7, 8)
    for current in range(3):
        with sim.on_device(current):
            for consumer in (sim.stream(1), sim.stream(current), platform.default):
                with sim.watched():
                    managed.__dlpack__(stream=consumer)
                sim.check(consumer, managed.address, 7, 8)


def test_for_managed_memory_the_default_streams_of_two_devices_differ_S5(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    managed = platform.probe.Array((8,), 0, type=platform.MANAGED, device=1)
    with sim.on_device(1):
        sim.fill(platform.default, managed.address, 7, 8)
    with sim.watched():
        managed.__dlpack__(stream=platform.default)
    sim.check(platform.default, managed.address, 7, 8)


def test_default_streams_of_another_and_of_the_current_device_are_both_waited_for_S5(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    consumer = sim.stream(2)
    managed = platform.probe.Array((8,), ((0, 1), (0, -1), (0, 2)), type=platform.MANAGED, device=1)
    for worker in (1, 0, 2):
        with sim.on_device(worker), sim.held(0):
            sim.fill(0, managed.address, 7, 8)
            with sim.on_device(0), sim.watched():
                managed.__dlpack__(stream=consumer)
            sim.expect(consumer, managed.address, 7, 8)
            sim.control("settle")
            assert sim.pending(consumer) > 0
        sim.synchronize(consumer)


def test_a_failure_to_ask_for_the_current_device_is_an_error_of_the_order_S9(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    managed = platform.probe.Array((8,), 0, type=platform.MANAGED, device=1)
    with sim.watched(), sim.failing("GetDevice"), pytest.raises(RuntimeError, match="GetDevice"):
        managed.__dlpack__(stream=platform.default)
    managed.__dlpack__(stream=platform.default)


@pytest.mark.parametrize("function", ["SetDevice", "StreamQuery", "ThreadExchangeStreamCaptureMode"])
def test_a_failure_of_the_look_at_work_outside_of_a_capture_is_an_error_S9_S6(sim, platform, function):
    """The default streams of two devices: the device is set for each look."""
    array = platform.probe.Array((8,), ((0, 1), (0, 2)))
    sim.synchronize(0)
    consumer = sim.stream()
    failed = 0
    for nth in range(1, 30):
        with sim.capture(consumer, RELAXED), sim.failing(function, nth):
            try:
                array.__dlpack__(stream=consumer)
            except RuntimeError as error:
                assert function in str(error)
                failed += 1
            except BufferError:
                break
            if sim.failed() == 0:
                break
        sim.runtime("SetDevice", 0)
        sim.runtime("ThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(0)))
        sim.violations()
    assert 0 < failed < 29


def stream_of_this_context(sim):
    handle = ctypes.c_void_p()
    sim.runtime("StreamCreateWithFlags", ctypes.byref(handle), 0)
    return handle.value


def test_streams_of_another_context_are_ordered_while_that_is_current_alone_S1_S5(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm has one context for each device")
    homes = [sim.stream(device) for device in range(2)]
    arrays = [platform.probe.Array((8,), (home,), device=device) for device, home in enumerate(homes)]
    consumer = sim.stream()
    sim.synchronize(homes[0])
    sim.control("set_context", 1)
    own = stream_of_this_context(sim)
    arrays[0].repend(own)
    with sim.watched():
        arrays[0].__dlpack__(stream=consumer)  # a stream may wait for an event of any context
        arrays[0].__dlpack__(dl_device=CPU)
    assert sim.violations() == []
    with sim.watched():
        arrays[1].__dlpack__(stream=consumer)  # makes the primary context of device 0 current when it restores it
    with refused(sim, "cudaEventRecord: cudaErrorInvalidResourceHandle", RuntimeError):
        arrays[0].__dlpack__(stream=consumer)
    assert [violation.split(": ")[1] for violation in sim.violations()] == [
        "the event and stream 4 are of two contexts"
    ]
    arrays[0].repend(homes[0])
    view = platform.probe.consume(arrays[0], own)  # own waits for an event of the primary context
    sim.fill(own, arrays[0].address, 7, 8)
    with sim.watched():
        view.release_on(own)  # by a wait on the host
    assert (view.holds, sim.pending(own), platform.probe.collect()) == (False, 0, 0)
    sim.violations()
    arrays[0].repend(own)
    sim.control("set_context", 1)
    arrays[0].__dlpack__(stream=consumer)


def test_managed_memory_that_needs_an_idle_device_is_not_ready_for_the_cpu_before_it_is_S10(sim, platform):
    """Where ConcurrentManagedAccess is 0. The header waits for the producer's streams alone."""
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    sim.control("managed_is_exclusive", 1)
    own, busy = sim.stream(), sim.stream()
    managed = platform.probe.Array((8,), own, type=platform.MANAGED)
    other = platform.probe.Array((8,), busy)
    sim.fill(own, managed.address, 7, 8)
    with sim.held(busy):
        sim.fill(busy, other.address, 1, 8)
        managed.__dlpack__(dl_device=CPU)
        assert not sim.control("host_may_read", managed.address)
    sim.runtime("DeviceSynchronize")  # the author's, before the export
    managed.__dlpack__(dl_device=CPU)
    assert sim.control("host_may_read", managed.address)


def test_several_streams_are_all_waited_for_S1(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    streams = [producer, consumer, sim.stream(), sim.stream()]
    array = platform.probe.Array((8,), tuple(streams))
    sim.synchronize(producer)  # the stream that allocated the memory
    sim.fill(streams[2], array.address, 7, 8)
    with sim.watched():
        array.__dlpack__(stream=consumer)
        others = [producer, *streams[2:]]
        questions = [asked(sim, stream, consumer)[1] for stream in others]
        events = [call for i, stream in enumerate(others) for call in by_event(sim, stream, consumer, f"event {i + 1}")]
        assert sim.calls() == [asked(sim, producer, consumer)[0], *questions, "GetDevice()", *events]
    sim.check(consumer, array.address, 7, 8)
    sim.synchronize(streams[2])


def test_the_per_thread_stream_is_left_out_among_the_streams_that_the_legacy_stream_waits_for_S1_S4(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    stream = sim.stream()
    array = platform.probe.Array((8,), (2, stream))
    sim.synchronize(2)
    sim.fill(stream, array.address, 7, 8)
    with sim.watched():
        array.__dlpack__(stream=1)
        assert [call for call in sim.calls() if "Event" in call] == by_event(sim, stream, 1)
    sim.check(1, array.address, 7, 8)
    sim.synchronize(2)


def test_negative_strides_that_are_refused_in_place_go_to_the_cpu_as_a_copy_P5_D11(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((3,), (stream,), strides=(-1,), offset=2, options=platform.probe.REFUSE_NEGATIVE)
    sim.fill(stream, array.address, 7, 3)
    with refused(sim, "negative strides are exported only as a copy"):
        array.__dlpack__(stream=stream)
    assert array.__dlpack__(dl_device=(1, 0)) is not None


def test_eight_streams_can_be_pending_S1(sim, platform):
    streams = [sim.stream() for _ in range(9)]
    array = platform.probe.Array((8,), tuple(streams[:8]))
    sim.synchronize(streams[0])
    sim.fill(streams[7], array.address, 7, 8)
    consumer = sim.stream()
    with sim.watched():
        array.__dlpack__(stream=consumer)
        assert sum("EventRecord" in call for call in sim.calls()) == 8
    sim.check(consumer, array.address, 7, 8)
    with refused(sim, "pending_count is 9, at most 8 was wanted", SystemError):
        platform.probe.Array((8,), tuple(streams)).__dlpack__()
    with refused(sim, "pending_count is 1, .*0 without a device", SystemError):
        platform.probe.Array((8,), tuple(streams[:1]), type=platform.PINNED, bare=True).__dlpack__()


def test_streams_of_several_devices_are_waited_for_S1_S5(sim, platform):
    streams, consumer = [sim.stream(device) for device in range(3)], sim.stream(1)
    array = platform.probe.Array((8,), tuple((stream, device) for device, stream in enumerate(streams)))
    for value, stream in enumerate(streams):
        sim.synchronize(streams[0])  # the stream that allocated the memory
        sim.fill(stream, array.address, value, 8)
        with sim.watched():
            array.__dlpack__(stream=consumer)
        sim.check(consumer, array.address, value, 8)


def test_a_veto_comes_before_any_call_of_the_runtime_P7(sim, platform):
    asked = []

    def veto(kind):
        asked.append(kind)
        raise BufferError("lazily conjugated")

    array = platform.probe.Array((8,), (sim.stream(),), veto=veto)
    with refused(sim, "lazily conjugated"):
        array.__dlpack__(stream=sim.stream())
    assert asked == [2]
    assert [call for call in sim.calls() if "Event" in call or "Capturing" in call] == []


# ---- The device: P5, P8, D9 ----


def test_the_capsule_has_the_device_that_dlpack_device_returns_P8_D9(sim, platform):
    for kind, device, says in (
        (platform.DEVICE, 2, (platform.DEVICE, 2)),
        (platform.PINNED, 0, (platform.PINNED, 0)),
        (platform.PINNED, 1, (platform.PINNED, 0)),
        (platform.MANAGED, 1, (platform.MANAGED, 0)),
    ):
        if kind is None:
            continue
        array = platform.probe.Array((8,), type=kind, device=device)
        assert array.__dlpack_device__() == says
        for keywords in ({}, VERSION, {"dl_device": says}, {"dl_device": says, "copy": False}):
            assert dltensor.read(array.__dlpack__(**keywords)).device == says


def test_a_request_for_another_device_is_refused_P5(sim, platform):
    for kind in filter(None, (platform.DEVICE, platform.PINNED, platform.MANAGED)):
        array = platform.probe.Array((8,), sim.stream(), type=kind)
        others = [(other, 0) for other in (platform.DEVICE, platform.PINNED, 13) if other != kind]
        for device in (*others, (platform.DEVICE, 1), (1, 1), (4, 0)):
            for copy in (None, True, False):
                with refused(sim, "dl_device is "):
                    array.__dlpack__(dl_device=device, copy=copy)


# ---- As CPU memory: P5, P6, S10 ----

LAYOUTS = {  # name: (shape, strides, offset, the calls that copy)
    "compact": ((2, 3), None, 0, ["MemcpyAsync(host, memory 1, 6, stream 1)"]),
    "a slice": ((4,), None, 5, ["MemcpyAsync(host, memory 1 + 5, 4, stream 1)"]),
    "steps of two": ((5,), (2,), 1, ["MemcpyAsync(host, memory 1 + 1, 9, stream 1)"]),
    "transposed": ((3, 4), (1, 3), 0, ["MemcpyAsync(host, memory 1, 12, stream 1)"]),
    "backwards": ((6,), (-1,), 5, ["MemcpyAsync(host, memory 1, 6, stream 1)"]),
    "one element many times": ((3, 2), (0, 0), 7, ["MemcpyAsync(host, memory 1 + 7, 1, stream 1)"]),
    "rows far apart": ((3, 4), (50, 1), 2, ["MemcpyAsync(host, memory 1 + 2, 104, stream 1)"]),
    "somewhat apart in three dimensions": (
        (2, 2, 4),
        (120, 30, 1),
        0,
        ["MemcpyAsync(host, memory 1, 154, stream 1)"],
    ),
    "somewhat apart and backwards": ((2, 3), (-100, 1), 100, ["MemcpyAsync(host, memory 1, 103, stream 1)"]),
    "far apart in three dimensions": (
        (2, 2, 4),
        (90_000, 30, 1),
        0,
        ["MemcpyAsync(host, memory 1, 90034, stream 1)"],
    ),
    "far apart and backwards": (
        (2, 3),
        (-90_000, 1),
        90_000,
        ["MemcpyAsync(host, memory 1, 90003, stream 1)"],
    ),
    "a scalar": ((), (), 9, ["MemcpyAsync(host, memory 1 + 9, 1, stream 1)"]),
}


@pytest.mark.parametrize("shape, strides, offset, copies", LAYOUTS.values(), ids=LAYOUTS)
def test_device_memory_is_copied_to_the_host_compactly_P5(sim, platform, shape, strides, offset, copies):
    array = platform.probe.Array(shape, sim.stream(), strides=strides, size=100_000, offset=offset)
    ctypes.memmove(array.address, bytes(range(250)) * 400, 100_000)
    steps = dltensor.compact(shape) if strides is None else strides
    expected = dltensor.values(array.address + offset, (1, 8, 1), shape, steps)
    for copy in (None, True):
        with sim.watched():
            capsule = array.__dlpack__(dl_device=CPU, copy=copy, **VERSION)
            assert sim.calls() == ["StreamIsCapturing(stream 1)", *waited("stream 1", *copies)]
        taken = Taken(capsule)
        assert taken.values() == expected
        assert (taken.says.device, taken.says.flags) == (CPU, IS_COPIED)
        assert (taken.says.strides or ()) == dltensor.compact(shape)
        taken.delete()


@pytest.mark.parametrize("kind", ["DEVICE", "PINNED"])
@pytest.mark.parametrize("padded", [False, True])
def test_elements_of_less_than_a_byte_are_copied_as_they_lie_P5(sim, platform, padded, kind):
    """Five elements of 4 bits: a byte each, or two in a byte, where the bits behind the last one stay behind."""
    array = platform.probe.Array(
        (5,),
        (sim.stream(),),
        size=8,
        dtype=platform.probe.FLOAT4_E2M1FN,
        flags=PADDED if padded else 0,
        type=getattr(platform, kind),
    )
    ctypes.memmove(array.address, bytes(range(0xA1, 0xA9)), 8)
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=True, **VERSION))
    expected = bytes(range(0xA1, 0xA6)) if padded else bytes([0xA1, 0xA2, 0x03])
    assert ctypes.string_at(taken.says.data, len(expected)) == expected
    assert taken.says.flags == IS_COPIED | (PADDED if padded else 0)
    taken.delete()


def test_elements_of_less_than_a_byte_that_fill_the_last_byte_are_all_copied_P5(sim, platform):
    array = platform.probe.Array((6,), (sim.stream(),), size=8, dtype=platform.probe.FLOAT4_E2M1FN)
    ctypes.memmove(array.address, bytes(range(0xA1, 0xA9)), 8)
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=True, **VERSION))
    assert ctypes.string_at(taken.says.data, 3) == bytes([0xA1, 0xA2, 0xA3])
    taken.delete()


INT3X3 = 3 << 16 | 3  # a vector of 9 bits


@pytest.mark.parametrize(
    "dtype, count, strides, expected",
    [
        ("FLOAT4_E2M1FN", 1, None, [0x01]),
        ("FLOAT4_E2M1FN", 3, (3,), [0xA1, 0x04]),  # the halves 0, 3 and 6 of bytes
        (INT3X3, 3, None, [0xA1, 0xA2, 0xA3, 0x04]),
    ],
    ids=["one of 4 bits", "4 bits, every third", "9 bits"],
)
def test_bits_are_cleared_behind_the_last_packed_element_alone_P5(sim, platform, dtype, count, strides, expected):
    dtype = getattr(platform.probe, dtype) if isinstance(dtype, str) else dtype
    array = platform.probe.Array((count,), (sim.stream(),), size=8, strides=strides, dtype=dtype)
    ctypes.memmove(array.address, bytes(range(0xA1, 0xA9)), 8)
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=True, **VERSION))
    assert ctypes.string_at(taken.says.data, len(expected)) == bytes(expected)
    taken.delete()


def test_malformed_arguments_are_refused_before_the_runtime_is_called_P1_P2(sim, platform):
    array = platform.probe.Array((8,), sim.stream())  # dlpack_cuda_produce
    for keywords, error in (({"copy": 5}, TypeError), ({"max_version": "1"}, TypeError), ({"unknown": 1}, TypeError)):
        with sim.watched(), pytest.raises(error):
            array.__dlpack__(**keywords)
        assert sim.calls() == []


@pytest.mark.parametrize("keywords", [{}, {"stream": None}, {"stream": -1}, VERSION, {"copy": True}])
def test_the_copy_is_ready_when_the_call_returns_P6(sim, platform, keywords):
    sim.control("delay", 20_000)
    streams = [sim.stream() for _ in range(3)]
    for pending, worker in ((streams[0], streams[0]), (tuple(streams), streams[0]), (tuple(streams), streams[2])):
        array = platform.probe.Array((8,), pending)
        sim.synchronize(streams[0])  # the stream that allocated the memory
        sim.fill(worker, array.address, 5, 8)
        taken = Taken(array.__dlpack__(dl_device=CPU, **keywords))
        assert taken.values() == [5] * 8
        taken.delete()


@pytest.mark.parametrize("strides", [None, (-1,)])
def test_memory_that_a_copy_may_still_write_to_is_leaked_and_not_freed_S9(sim, platform, strides):
    stream = sim.stream()
    array = platform.probe.Array((8,), stream, strides=strides, offset=7 if strides else 0, size=8)
    before = platform.probe.blocks()
    with sim.failing("MemcpyAsync"), refused(sim, f"MemcpyAsync: {platform.launch_failure}", RuntimeError):
        array.__dlpack__(dl_device=CPU)
    assert platform.probe.blocks() == before
    text = f"StreamSynchronize: {platform.launch_failure}"
    with sim.failing("StreamSynchronize"), refused(sim, text, RuntimeError):
        array.__dlpack__(dl_device=CPU)
    assert platform.probe.blocks() == before + (2 if strides else 1)


def test_a_copy_without_pending_work_is_made_on_the_default_stream_P5(sim, platform):
    array = platform.probe.Array((8,), device=1)
    with sim.watched():
        array.__dlpack__(dl_device=CPU)
        name = sim.name(platform.default)
        copied = [f"StreamIsCapturing({name})", *waited(name, f"MemcpyAsync(host, memory 1, 8, {name})")]
        assert sim.calls() == ["GetDevice()", "SetDevice(1)", *copied, "SetDevice(0)"]


def test_an_array_without_elements_is_not_copied_P5(sim, platform):
    array = platform.probe.Array((3, 0), sim.stream())
    with sim.watched():
        assert dltensor.read(array.__dlpack__(dl_device=CPU)).device == CPU
        assert sim.calls() == []


def test_copy_false_is_refused_for_memory_that_the_host_cannot_read_P4_P5(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    with refused(sim, "from this device to the CPU must be a copy, and copy is False"):
        array.__dlpack__(dl_device=CPU, copy=False)


def wait_for(sim, call):
    """Waits, for at most five seconds, until this call is the last call in the log."""
    deadline = time.monotonic() + 5
    while sim.last_call() != call and time.monotonic() < deadline:
        time.sleep(0.001)


@pytest.mark.parametrize("kind", ["DEVICE", "PINNED"])
def test_other_threads_run_while_a_call_waits_for_the_device_P6_S10(sim, platform, kind):
    stream = sim.stream()
    array = platform.probe.Array((8,), stream, type=getattr(platform, kind))
    sim.control("hold", stream)
    sim.fill(stream, array.address, 5, 8)

    def let_go():
        wait_for(sim, "StreamSynchronize(stream 1)")
        sim.control("let_go", stream)

    thread = threading.Thread(target=let_go)
    thread.start()
    taken = Taken(array.__dlpack__(dl_device=CPU))  # takes a second if the other thread cannot run
    thread.join()
    assert taken.values() == [5] * 8
    taken.delete()


@pytest.mark.parametrize("kind, copy", [("DEVICE", None), ("PINNED", True), ("PINNED", None)])
def test_changes_by_other_threads_during_the_wait_have_no_effect_P6_S10(sim, platform, kind, copy):
    streams = [sim.stream(), sim.stream()]
    array = platform.probe.Array((8,), tuple(streams), type=getattr(platform, kind), size=64)
    sim.synchronize(streams[0])
    sim.control("hold", streams[1])
    sim.fill(streams[1], array.address, 5, 8)

    def resize():
        wait_for(sim, "StreamSynchronize(stream 2)")
        array.resize((64,))
        sim.control("let_go", streams[1])

    thread = threading.Thread(target=resize)
    thread.start()
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=copy))
    thread.join()
    assert (taken.says.shape, taken.values()) == ((8,), [5] * 8)
    taken.delete()


@not_on_pypy("an object at the address id()")
@pytest.mark.parametrize("kind, copy", [("DEVICE", None), ("PINNED", True), ("PINNED", None)])
def test_strides_that_other_threads_change_during_the_wait_are_those_of_the_call_P6_S10(sim, platform, kind, copy):
    streams, strides = [sim.stream(), sim.stream()], struct.pack("2q", 20, 5)
    kind = getattr(platform, kind)
    array = platform.probe.Array((2, 3), tuple(streams), strides=(20, 5), type=kind, size=64)
    place = id(array) + ctypes.string_at(id(array), type(array).__basicsize__).index(strides)
    sim.synchronize(streams[0])
    sim.control("hold", streams[1])
    sim.fill(streams[1], array.address, 5, 31)
    sim.fill(streams[1], array.address + 31, 9, 33)

    def change():
        wait_for(sim, "StreamSynchronize(stream 2)")
        ctypes.memmove(place, struct.pack("2q", 31, 16), 16)
        sim.control("let_go", streams[1])

    thread = threading.Thread(target=change)
    thread.start()
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=copy))
    thread.join()
    assert taken.values() == [[5] * 3] * 2
    taken.delete()


@pytest.mark.parametrize("kind, copy", [("DEVICE", None), ("PINNED", True), ("PINNED", None)])
def test_pending_streams_that_change_during_the_wait_are_those_of_the_call_S8(sim, platform, kind, copy):
    streams = [sim.stream(), sim.stream()]
    array = platform.probe.Array((8,), tuple(streams), type=getattr(platform, kind))
    first = (
        streams[1] if kind == "DEVICE" else streams[0]
    )  # a copy is queued on the first stream, and waits for it last
    if kind == "DEVICE":
        sim.synchronize(streams[0])
    sim.control("hold", first)
    sim.fill(first, array.address, 5, 8)

    def change():
        wait_for(sim, f"StreamSynchronize({sim.name(first)})")
        array.repend(1 << 20)
        sim.control("let_go", first)

    thread = threading.Thread(target=change)
    thread.start()
    taken = Taken(array.__dlpack__(dl_device=CPU, copy=copy))
    thread.join()
    assert taken.values() == [5] * 8
    taken.delete()


@not_on_pypy("_testcapi")
def test_an_export_for_which_there_is_no_memory_orders_no_streams_P7(sim, platform):
    memory = pytest.importorskip("_testcapi", reason="CPython was installed without its test modules")
    array, own = platform.probe.Array((8,), sim.stream()), sim.stream()
    failures = 0
    for start in range(100):
        sim.calls()
        memory.set_nomemory(start, start + 1)
        try:
            capsule = array.__dlpack__(stream=own)
        except MemoryError:
            memory.remove_mem_hooks()
            failures += 1
            assert not any("Event" in call for call in sim.calls())
            continue
        memory.remove_mem_hooks()
        break
    assert dltensor.read(capsule).data == array.address
    assert 0 < failures < 100


@pytest.mark.parametrize("keywords", [{}, VERSION, {"stream": -1}, {"copy": False}])
def test_pinned_and_managed_memory_is_exported_as_cpu_memory_after_a_wait_P5_S10(sim, platform, keywords):
    for kind in filter(None, (platform.PINNED, platform.MANAGED)):
        sim.control("delay", 20_000)
        streams = [sim.stream(), sim.stream()]
        array = platform.probe.Array((8,), tuple(streams), type=kind)
        sim.fill(streams[1], array.address, 5, 8)
        with sim.watched():
            capsule = array.__dlpack__(dl_device=CPU, **keywords)
            one, other = map(sim.name, streams)
            assert sim.calls() == [
                f"StreamIsCapturing({one})",
                *waited(one),
                f"StreamIsCapturing({other})",
                *waited(other),
            ]
        assert sim.control("host_may_read", array.address)
        says = dltensor.read(capsule)
        assert (says.device, says.data, says.flags or 0) == (CPU, array.address, 0)
        sim.control("delay", 200)
        del capsule, array


def test_pinned_memory_is_waited_for_without_a_stream_S10(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((8,), stream, type=platform.PINNED)
    sim.fill(stream, array.address, 5, 8)
    with sim.watched():
        assert dltensor.read(array.__dlpack__()).device == (platform.PINNED, 0)
        assert sim.calls() == ["StreamIsCapturing(stream 1)", *waited("stream 1")]
    assert sim.control("host_may_read", array.address)


def test_pinned_memory_is_waited_for_on_the_default_stream_of_the_current_device_S10(sim, platform):
    array = platform.probe.Array((8,), ((0, -1),), type=platform.PINNED)
    sim.fill(0, array.address, 5, 8)
    with sim.watched():
        array.__dlpack__()
        assert sim.calls() == [f"StreamIsCapturing({platform.default_name})", *waited(platform.default_name)]
    assert sim.control("host_may_read", array.address)


def test_a_copy_of_pinned_and_managed_memory_is_on_the_host_P5(sim, platform):
    for kind in filter(None, (platform.PINNED, platform.MANAGED)):
        stream = sim.stream()
        array = platform.probe.Array((8,), stream, type=kind)
        sim.fill(stream, array.address, 5, 8)
        with refused(sim, "is made on the CPU: ask with dl_device=.1, 0."):
            array.__dlpack__(copy=True)
        taken = Taken(array.__dlpack__(dl_device=CPU, copy=True, **VERSION))
        assert (taken.values(), taken.says.device, taken.says.flags) == ([5] * 8, CPU, IS_COPIED)
        assert taken.says.data != array.address
        taken.delete()


def test_memory_of_the_host_that_a_device_works_on_is_waited_for_S10(sim, platform):
    array = platform.probe.Array((8,), (sim.stream(),), type=platform.probe.CPU)
    with sim.watched():
        assert dltensor.read(array.__dlpack__()).device == CPU
        assert sim.calls() == ["StreamIsCapturing(stream 1)", *waited("stream 1")]
        array.__dlpack__(stream=-1)
        assert sim.calls() == []


# ---- copy=True: S8, P4 ----


def test_a_copy_is_not_made_on_the_device_S8(sim, platform):
    for kind in filter(None, (platform.DEVICE, platform.MANAGED)):
        array = platform.probe.Array((8,), sim.stream(), type=kind)
        sim.calls()
        for keywords in ({}, {"stream": sim.stream()}, {"stream": -1}, {"dl_device": (kind, 0)}):
            with refused(sim, "a copy of data on .* is made on the CPU: ask with dl_device=.1, 0."):
                array.__dlpack__(copy=True, **keywords)
        assert not any("Stream" in call and "Create" not in call for call in sim.calls())


def test_an_author_makes_the_copy_on_the_device_S8_P4(sim, platform):
    """The author allocates and copies on the author's stream; the copy has a flag, and the consumer's stream waits."""
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer, copies=True, flags=READ_ONLY)
    with sim.held(producer):
        sim.fill(producer, array.address, 7, 8)
        taken = Taken(array.__dlpack__(stream=consumer, copy=True, **VERSION))
        assert (taken.says.device, taken.says.flags) == ((platform.DEVICE, 0), IS_COPIED)
        assert taken.says.data != array.address
        sim.expect(consumer, taken.says.data, 7, 8)
        sim.fill(producer, array.address, 8, 8)  # later work does not change the copy
        sim.control("settle")
        assert sim.pending(consumer)
    sim.synchronize(consumer)
    taken.delete()
    taken = Taken(array.__dlpack__(copy=True, dl_device=CPU, **VERSION))
    assert (taken.says.device, taken.values()) == (CPU, [8] * 8)
    taken.delete()
    assert dltensor.read(array.__dlpack__(stream=producer, **VERSION)).data == array.address


@pytest.mark.parametrize("kind", ["CPU", "PINNED"])
def test_a_copy_on_the_host_waits_even_with_stream_minus_1_S10(sim, platform, kind):
    stream = sim.stream()
    kind = getattr(platform.probe, kind)
    keywords = {"dl_device": CPU} if kind == platform.PINNED else {}
    sim.control("delay", 20_000)
    array = platform.probe.Array((8,), (stream,), type=kind)
    sim.fill(stream, array.address, 5, 8)
    with sim.watched():
        taken = Taken(array.__dlpack__(stream=-1, copy=True, **keywords))
    assert taken.values() == [5] * 8
    taken.delete()


# ---- While graphs are captured: S6 ----


def test_a_stream_that_waits_for_a_capturing_one_joins_the_capture_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array, result = platform.probe.Array((8,), producer), platform.probe.Array((8,), consumer)
    with sim.capture(producer), sim.watched():
        sim.fill(producer, array.address, 7, 8)
        array.__dlpack__(stream=consumer)
        sim.fill(consumer, result.address, 8, 8)
        sim.calls()
        result.__dlpack__(stream=producer)  # back: both streams are in one capture
        assert sim.calls() == [
            "StreamIsCapturing(stream 1)",
            "StreamGetCaptureInfo(stream 1)",
            "StreamIsCapturing(stream 2)",
            "StreamGetCaptureInfo(stream 2)",
            "GetDevice()",
            *by_event(sim, consumer, producer),
        ]


def test_in_its_capture_the_per_thread_stream_does_not_wait_for_itself_S4_S6(sim, platform):
    """Managed memory names no device: the consumer's stream is one of the current device."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    array = platform.probe.Array((8,), (2,), type=platform.MANAGED, device=1)
    with sim.on_device(1), sim.capture(2), sim.watched():
        Taken(array.__dlpack__(stream=2, **VERSION)).delete()
        assert not any("Event" in call for call in sim.calls())


def test_a_capturing_stream_waits_for_no_work_outside_its_capture_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    with sim.held(producer):
        sim.fill(producer, array.address, 7, 8)
        with sim.capture(consumer):
            with refused(sim, "cannot wait for the producer's work outside of it"):
                array.__dlpack__(stream=consumer)
            with sim.watched():
                array.__dlpack__(stream=-1)
                assert sim.calls() == []


def test_finished_work_needs_no_wait_in_a_capture_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.fill(producer, array.address, 7, 8)
    sim.synchronize(producer)
    with sim.capture(consumer), sim.watched():
        array.__dlpack__(stream=consumer)
        assert sim.calls() == [
            "StreamIsCapturing(stream 2)",
            "StreamGetCaptureInfo(stream 2)",
            "StreamIsCapturing(stream 1)",
            f"ThreadExchangeStreamCaptureMode({RELAXED})",
            "StreamQuery(stream 1)",
            "ThreadExchangeStreamCaptureMode(0)",
        ]


def test_in_a_capture_each_default_stream_is_asked_on_its_own_device_S5_S6(sim, platform):
    consumer = sim.stream()
    array = platform.probe.Array((8,), ((0, 1), (0, 0)))
    sim.synchronize(platform.default)  # the stream that allocated the memory
    with sim.on_device(1):
        with sim.held(platform.default):
            sim.fill(platform.default, array.address, 7, 8)
            with sim.on_device(0), sim.capture(consumer):
                with refused(sim, "cannot wait for the producer's work outside of it"):
                    array.__dlpack__(stream=consumer)
        sim.synchronize(platform.default)


def test_a_stream_that_is_refused_joins_no_capture_S6(sim, platform):
    one, other, consumer = sim.stream(), sim.stream(), sim.stream()
    for pending in ((one, other), (other, one)):
        array = platform.probe.Array((8,), pending)
        sim.synchronize(pending[0])
        with sim.held(other):
            sim.fill(other, array.address, 7, 8)
            with sim.capture(one):
                with refused(sim, "cannot wait for the producer's work outside of it"):
                    array.__dlpack__(stream=consumer)
                assert not sim.capturing(consumer)
        sim.synchronize(other)
        sim.synchronize(one)
        with sim.capture(one):
            with sim.watched():
                array.__dlpack__(stream=consumer)  # finished work needs no wait
            sim.calls()
            platform.probe.Array((0,), consumer).__dlpack__(stream=one)  # the stream joins again
        del array


def test_without_memory_no_stream_joins_a_capture_S6_P7(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.synchronize(producer)
    platform.probe.no_memory(True)
    try:
        with sim.capture(producer):
            with refused(sim, None, MemoryError):
                array.__dlpack__(stream=consumer)
            assert not sim.capturing(consumer)
    finally:
        platform.probe.no_memory(False)


def test_streams_of_different_captures_cannot_be_ordered_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    with sim.capture(producer), sim.capture(consumer), refused(sim, "capture different graphs"):
        array.__dlpack__(stream=consumer)


def test_the_default_stream_takes_no_part_in_a_capture_S6(sim, platform):
    stream = sim.stream()
    array, on_default = platform.probe.Array((8,), stream), platform.probe.Array((8,), 0)
    quiet = platform.probe.Array((8,), (stream,), options=platform.probe.NONE_IS_NO_SYNC)
    sim.synchronize(platform.default)  # the stream that allocated the memory
    with sim.capture(stream):
        for keywords in ({}, {"stream": platform.default}):
            with refused(sim, "captures a graph, which the default stream cannot join"):
                array.__dlpack__(**keywords)
        with sim.watched():
            on_default.__dlpack__(stream=stream)  # an idle default stream is no reason to refuse
        with sim.held(platform.default):
            sim.fill(platform.default, on_default.address, 7, 8)
            with refused(sim, "cannot wait for the producer's work outside of it"):
                on_default.__dlpack__(stream=stream)
        with sim.watched():
            quiet.__dlpack__()
            assert sim.calls() == []


def test_the_default_stream_is_left_alone_while_a_blocking_one_captures_S6(sim, platform):
    blocking, producer = sim.stream(flags=0), sim.stream()
    array, on_default = platform.probe.Array((8,), producer), platform.probe.Array((8,), 0)
    with sim.capture(blocking):
        for refuse in (
            lambda: array.__dlpack__(),
            lambda: on_default.__dlpack__(stream=producer),
            lambda: on_default.__dlpack__(dl_device=CPU),
        ):
            with refused(sim, f"{platform.runtime}StreamIsCapturing: {platform.runtime}ErrorStreamCaptureImplicit"):
                refuse()


def test_data_of_a_capturing_stream_is_not_copied_to_the_host_S6(sim, platform):
    stream = sim.stream()
    for kind in filter(None, (platform.DEVICE, platform.PINNED, platform.MANAGED)):
        array = platform.probe.Array((8,), stream, type=kind)
        with sim.capture(stream), refused(sim, "captures a graph: the host cannot wait for it"):
            array.__dlpack__(dl_device=CPU)


def test_a_spoiled_capture_is_named_in_the_error_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.runtime("StreamBeginCapture", producer, RELAXED)
    with pytest.raises(AssertionError):
        sim.runtime("StreamQuery", producer)
    with refused(sim, "was invalidated before"):
        array.__dlpack__(stream=consumer)
    with pytest.raises(AssertionError):
        sim.runtime("StreamEndCapture", producer, ctypes.byref(ctypes.c_void_p()))
    assert len(sim.violations()) == 1  # the query

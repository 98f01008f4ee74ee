"""A consumer with a stream: its requests, imports and releases (S1 to S5, C1 to C5, D9, X2, X4, X8, X9)."""

import contextlib
import ctypes
import gc
import sys
import threading

import dlarray
import dltensor
import exchange_probe
import pytest
import table_consumer
from collecting import collect
from dltensor import CPU, FORMS, LEGACY, Made, Taken, Unreadable
from optional import numpy
from streams.simulation import BLOCKING, GLOBAL, THREAD_LOCAL

VERSION = {"max_version": (1, 3)}


class Foreign:
    """A producer on a device, with nothing pending.

    says       the result of __dlpack_device__
    answer     the result of __dlpack__, if not None; an exception is raised
    fields     fields of the tensor; by default it is on the device `says`

    calls      the keywords of each call of __dlpack__
    devices    the current device in each call of __dlpack__
    """

    def __init__(self, sim, says, answer=None, form="dltensor_versioned", **fields):
        self.sim, self.says, self.answer, self.form = sim, says, answer, form
        self.fields = {"device": says, **fields}
        self.calls, self.devices, self.made = [], [], []

    def make(self):
        self.made.append(Made(self.form, **self.fields))
        return self.made[-1]

    def owned(self):
        """The function of the exchange table that returns an owned tensor."""
        return ctypes.addressof(self.make().managed)

    def __dlpack_device__(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        self.devices.append(self.sim.device)
        if isinstance(self.answer, Exception):
            raise self.answer
        if callable(self.answer):
            return self.answer(**keywords)
        return self.make().capsule()

    @property
    def deleted(self):
        return [made.deleted for made in self.made]


def interface_of(array):
    return {**array.__cuda_array_interface__, "stream": 2}


@contextlib.contextmanager
def refused(sim, text, error=BufferError):
    """Expects an exception, after which device, capture mode and last error are unchanged."""
    with sim.watched(), pytest.raises(error, match=text):
        yield


def event_calls(sim):
    return [call for call in sim.calls() if "Event" in call]


# ---- The stream argument: C4, S1 to S3, S7 ----


def test_the_stream_is_passed_as_its_number_in_dlpack_C4_S2_S3(sim, platform):
    stream = sim.stream()
    high = sys.maxsize + 9  # the highest bit of a pointer is set
    streams = {stream: stream, 0: platform.default, high: high}
    if platform.is_cuda:
        streams.update({1: 1, 2: 2})
    for runtime_s, passed in streams.items():
        producer = Foreign(sim, (platform.DEVICE, 0))
        with sim.watched():
            view = platform.probe.consume(producer, runtime_s)
        assert producer.calls == [{**VERSION, "stream": passed}]
        assert (view.device, view.data, view.holds) == ((platform.DEVICE, 0), producer.made[0].address, True)


def test_a_file_with_per_thread_default_streams_passes_the_per_thread_stream_S2(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 0))
    platform.other.consume(producer, 0)
    assert producer.calls == [{**VERSION, "stream": 2 if platform.is_cuda else 0}]


def test_the_stream_is_passed_for_managed_memory_C4(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    for number in (0, 1):  # the id has no meaning (D9), although some producers set it
        producer = Foreign(sim, (13, number), device=(13, 0))
        with sim.watched():
            platform.probe.consume(producer, 3, device=13)
        assert producer.calls == [{**VERSION, "stream": 3}]


def test_an_impossible_requirement_is_refused_with_the_name_of_the_argument_C9(sim, platform):
    with refused(sim, "^x: want: dtype is 2, ", SystemError):
        platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), 0, dtype=2)


def test_no_order_is_requested_with_nothing_pending_C4_S4_S6(sim, platform):
    own = sim.stream()
    options = {"options": platform.probe.NOTHING_PENDING}
    for says in filter(None, (platform.DEVICE, platform.PINNED, platform.MANAGED)):
        producer = Foreign(sim, (says, 0))
        with sim.capture(own), sim.watched():
            view = platform.probe.consume(producer, own, device=says, **options)
        # For memory that the host may read, no stream is passed: NumPy's __dlpack__ accepts None only.
        assert producer.calls == [VERSION if says == platform.PINNED else {**VERSION, "stream": -1}]
        view.release()
    assert platform.probe.consume(numpy.zeros(3), own, device=-1, **options).device == CPU
    on_default = platform.probe.Array((8,), 0)
    with sim.held(platform.default):
        sim.fill(platform.default, on_default.address, 7, 8)
        with sim.capture(own), refused(sim, "ask with stream=-1"):
            platform.probe.consume(on_default, own)
        with sim.capture(own), sim.watched():
            platform.probe.consume(on_default, own, **options)


def test_no_stream_is_passed_for_memory_of_the_host_C4(sim, platform):
    for says, keywords in (
        ((platform.PINNED, 0), {"device": platform.PINNED}),
        ((platform.PINNED, 1), {"device": platform.PINNED}),
        (CPU, {"device": -1}),
        ((1, None), {"device": -1}),  # as Paddle returns it
    ):
        producer = Foreign(sim, says, device=(says[0], 0))
        with sim.watched():
            view = platform.probe.consume(producer, 3, **keywords)
        assert producer.calls == [VERSION]
        assert view.device == (says[0], 0)


def test_requirements_without_a_device_require_the_platform_of_the_stream_C9(sim, platform):
    for says in filter(None, (platform.PINNED, platform.MANAGED, 1)):
        with refused(sim, "was asked for"):
            platform.probe.consume(Foreign(sim, (says, 0), device=(says, 0)), 3, device=0)
    assert platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), 3, device=0).device == (platform.DEVICE, 0)


def test_without_requirements_memory_need_not_be_aligned_C9(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 0), data=0x10001)
    assert platform.probe.consume(producer, 3).data == 0x10001
    with refused(sim, "alignment to 8 bytes"):
        platform.probe.consume(Foreign(sim, (platform.DEVICE, 0), data=0x10001), 3, device=0)


@pytest.mark.parametrize("by_handle", [False, True])
def test_a_stream_without_a_number_in_dlpack_is_refused_first_S2_S3(sim, platform, by_handle):
    refused_handles = ([0] if by_handle else []) if platform.is_cuda else [2] + ([1] if by_handle else [])
    for handle in refused_handles:
        producer = Foreign(sim, (platform.DEVICE, 0))
        with refused(sim, f"stream is {handle} for data on {platform.name}:0", ValueError):
            platform.probe.consume(producer, handle, by_handle=by_handle)
        assert producer.calls == []


def test_a_producer_without_max_version_is_given_the_stream_again_C1(sim, platform):
    def dlpack(*, stream=None):
        return Made(LEGACY, device=(platform.DEVICE, 0)).capsule()

    producer = Foreign(sim, (platform.DEVICE, 0), dlpack)
    platform.probe.consume(producer, 3)
    assert producer.calls == [{**VERSION, "stream": 3}, {"stream": 3}]


def test_a_producer_that_accepts_no_stream_is_never_called_without_a_stream_C1_S1(sim, platform):
    def dlpack(*, max_version=None):
        raise AssertionError("called without a stream")

    producer = Foreign(sim, (platform.DEVICE, 0), dlpack)
    with refused(sim, "unexpected keyword argument 'stream'", TypeError):
        platform.probe.consume(producer, 3)
    assert producer.calls == [{**VERSION, "stream": 3}, {"stream": 3}]


def test_a_capsule_is_imported_without_an_order_C6(sim, platform):
    made = Made(device=(platform.DEVICE, 1))
    capsule = made.capsule()
    with sim.watched():
        view = platform.probe.consume(capsule, sim.stream())
        assert view.device == (platform.DEVICE, 1)
    assert event_calls(sim) == []


# ---- The current device: C4, S5 ----


def test_the_data_s_device_is_current_during_the_call_of_dlpack_C4_S5(sim, platform):
    for device, calls in ((0, []), (2, ["SetDevice(2)"])):
        producer = Foreign(sim, (platform.DEVICE, device))
        with sim.watched():
            platform.probe.consume(producer, 3)
            assert sim.calls() == ["GetDevice()", *calls, "GetDevice()", *["SetDevice(0)" for _ in calls]]
        assert producer.devices == [device]


def test_the_current_device_is_restored_when_the_producer_raises_S5(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 2), KeyError("of the producer"))
    with sim.on_device(1), refused(sim, "of the producer", KeyError):
        platform.probe.consume(producer, 3)
    assert producer.devices == [2]


def test_the_current_device_is_restored_when_a_requirement_is_not_met_S5_C9(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 2))
    with refused(sim, "dtype is float64, uint8 was asked for"):
        platform.probe.consume(producer, 3, dtype=platform.probe.UINT8)
    assert (producer.devices, producer.deleted) == ([2], [1])


def test_for_pinned_memory_the_current_device_stays_C4_D9(sim, platform):
    producer = Foreign(sim, (platform.PINNED, 0))
    with sim.on_device(1), sim.watched():
        platform.probe.consume(producer, 3, device=platform.PINNED)
    assert producer.devices == [1]


def test_the_device_of_managed_memory_is_current_during_the_call_of_dlpack_C4_S5(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    producer = Foreign(sim, (platform.MANAGED, 2))
    with sim.on_device(1), sim.watched():
        platform.probe.consume(producer, 3, device=platform.MANAGED)
    assert producer.devices == [2]


def test_pinned_memory_that_is_exported_as_cpu_memory_is_taken_C4(sim, platform):
    producer = Foreign(sim, (platform.PINNED, 0), device=CPU)
    with sim.watched():
        view = platform.probe.consume(producer, 3, device=-1)
    assert (view.device, producer.calls) == (CPU, [VERSION])


@contextlib.contextmanager
def work_of_another_thread(sim, array, begin=lambda: None):
    """Another thread calls begin, and its per-thread stream holds work on the array until the block ends."""
    queued, ended = threading.Event(), threading.Event()

    def work():
        begin()
        sim.control("hold", 2)
        sim.fill(2, array.address, 7, 8)
        queued.set()
        ended.wait()
        sim.control("let_go", 2)
        sim.synchronize(2)

    thread = threading.Thread(target=work)
    thread.start()
    queued.wait()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("how", ["method", "interface"])
def test_the_per_thread_streams_of_two_threads_are_two_streams_S1_S2(sim, platform, how):
    """The producer's 2 is the stream of the thread that queued the work, the consumer's is that of this thread."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    array = platform.probe.Array((8,), (2,) if how == "method" else 2)
    options = {} if how == "method" else {"options": platform.other.ARRAY_INTERFACE_TOO}
    obj = array if how == "method" else type("Interface", (), {"__cuda_array_interface__": interface_of(array)})()
    sim.synchronize(2)
    with work_of_another_thread(sim, array):
        with sim.watched():
            view = platform.other.consume(obj, 2, **options)
        sim.expect(2, view.data, 7, 8)
        sim.control("settle")
        pending = sim.pending(2)
    assert pending == 1
    sim.synchronize(2)


def test_a_producer_that_refuses_the_per_thread_stream_gets_the_legacy_stream_S2(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    for answer, streams in (
        (lambda stream, max_version: producer.make().capsule() if stream == 1 else refuse(BufferError), [2, 1]),
        (lambda stream, max_version: refuse(BufferError), [2, 1]),
        (lambda stream, max_version: refuse(RuntimeError), [2]),
    ):

        def refuse(error):
            raise error("stream 2 is not supported")

        producer = Foreign(sim, (platform.DEVICE, 1), answer=answer)
        try:
            with sim.watched():
                platform.probe.consume(producer, 2).release()
        except (BufferError, RuntimeError) as error:
            assert "stream 2 is not supported" in str(error)
        assert [call["stream"] for call in producer.calls] == streams
        assert producer.devices == [1] * len(streams)
        assert producer.deleted == ([1] if producer.made else [])


def test_an_old_producer_that_refuses_the_per_thread_stream_gets_the_legacy_stream_C1_S2(sim, platform):
    """It takes no max_version: the answer to the other stream is asked for without it at once."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    for takes in (True, False):

        def answer(takes=takes, **keywords):
            if "max_version" in keywords:
                raise TypeError("unexpected keyword argument 'max_version'")
            if keywords["stream"] == 2 or not takes:
                raise BufferError(f"stream {keywords['stream']} is not supported")
            return producer.make().capsule()

        producer = Foreign(sim, (platform.DEVICE, 1), answer=answer, form="dltensor")
        if takes:
            platform.probe.consume(producer, 2).release()
        else:
            with refused(sim, "stream 1 is not supported"):
                platform.probe.consume(producer, 2)
        assert producer.calls == [{**VERSION, "stream": 2}, {"stream": 2}, {"stream": 1}]
        assert producer.deleted == [1] * takes


def test_a_type_error_for_the_legacy_stream_is_raised_C1_S2(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")

    def answer(stream, **keywords):
        if keywords:
            raise TypeError("unexpected keyword argument 'max_version'")
        raise BufferError("stream 2 is not supported") if stream == 2 else TypeError("stream 1 is not supported")

    producer = Foreign(sim, (platform.DEVICE, 1), answer=answer)
    with refused(sim, "stream 1 is not supported", TypeError):
        platform.probe.consume(producer, 2)
    assert producer.calls == [{**VERSION, "stream": 2}, {"stream": 2}, {"stream": 1}]


def test_the_legacy_stream_is_not_passed_where_a_capture_cannot_be_ruled_out_S6_S9(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    producer = Foreign(sim, (platform.DEVICE, 1), answer=BufferError("stream 2 is not supported"))
    with sim.failing("StreamIsCapturing"), refused(sim, "stream 2 is not supported"):
        platform.probe.consume(producer, 2)
    assert [call["stream"] for call in producer.calls] == [2]


def test_a_producer_that_got_minus_one_is_asked_once_S2_S4(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    producer = Foreign(sim, (platform.DEVICE, 1), answer=BufferError("not now"))
    with refused(sim, "not now"):
        platform.probe.consume(producer, 2, options=platform.probe.NOTHING_PENDING)
    assert producer.calls == [{**VERSION, "stream": -1}]


def used_capsule():
    capsule = Made().capsule()
    Taken(capsule)
    return capsule


ANSWERS = {
    "a number": (lambda **keywords: 7, TypeError, "__dlpack__ returned 7, a capsule was wanted"),
    "a consumed capsule": (lambda **keywords: used_capsule(), ValueError, "'used_dltensor_versioned'"),
    "a capsule of another name": (lambda **keywords: Made().capsule("other"), TypeError, "'other'"),
    "an unknown major version": (lambda **keywords: Made(version=(2, 0)).capsule(), BufferError, r"version 2\.0"),
}


@pytest.mark.parametrize("answer, error, text", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_is_no_tensor_is_refused_K1_K4_K6_C6(sim, platform, answer, error, text):
    producer = Foreign(sim, (platform.DEVICE, 1), answer=answer)
    with refused(sim, text, error):
        platform.probe.consume(producer, sim.stream(1))
    assert len(producer.calls) == 1


def test_a_refused_copy_false_is_not_taken_for_a_refused_per_thread_stream_C3_S2(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")

    def answer(stream):  # knows no other keyword
        return producer.make().capsule()

    for stream in (2, 3):
        producer = Foreign(sim, (platform.DEVICE, 0), answer=answer)
        with pytest.raises(BufferError, match="copy is False"):
            platform.probe.from_dlpack(stream, producer, copy=False)
        assert producer.calls == [{**VERSION, "stream": stream, "copy": False}]


@pytest.mark.parametrize("name", ["stream", "max_version", "dl_device", "__dlpack__", "__dlpack_device__"])
def test_from_dlpack_takes_no_other_keyword_C3(sim, platform, name):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        platform.probe.from_dlpack(sim.stream(), Foreign(sim, (platform.DEVICE, 0)), **{name: None})


def test_copy_false_is_asked_for_with_the_legacy_stream_too_C3_S2(sim, platform):
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")

    def answer(stream, copy, max_version):
        if stream == 2:
            raise BufferError("stream 2 is not supported")
        return producer.make().capsule()

    producer = Foreign(sim, (platform.DEVICE, 0), answer=answer)
    platform.probe.from_dlpack(2, producer, copy=False).release()
    assert producer.calls == [{**VERSION, "stream": stream, "copy": False} for stream in (2, 1)]


@pytest.mark.parametrize("managed", [False, True])
def test_in_a_capture_of_the_per_thread_stream_the_legacy_stream_is_not_passed_S6(sim, platform, managed):
    """Managed memory has id 0, and is worked on by the current device."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")

    def refuse(**keywords):
        raise BufferError("stream 2 is not supported")

    kind = platform.MANAGED if managed else platform.DEVICE
    producer = Foreign(sim, (kind, 0 if managed else 1), answer=refuse)
    with sim.on_device(1), sim.capture(2), pytest.raises(BufferError, match="stream 2 is not supported"):
        platform.probe.consume(producer, 2, device=kind)
    assert [call["stream"] for call in producer.calls] == [2]


def test_a_device_that_is_not_there_is_the_runtime_s_error_S9(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 9))
    text = f"{platform.runtime}SetDevice: {platform.runtime}ErrorInvalidDevice, there is no device of this number"
    with refused(sim, text, RuntimeError):
        platform.probe.consume(producer, 3)
    assert producer.calls == []


# ---- Refused tensors: C5, C6 ----


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("says, comes", [(0, 1), (1, 0), (0, None), (None, 0), (0, "pinned")])
def test_a_producer_whose_two_methods_differ_is_refused_C4(sim, platform, form, says, comes):
    devices = {None: CPU, "pinned": (platform.PINNED, 0)}
    says, comes = (devices.get(number, (platform.DEVICE, number)) for number in (says, comes))
    producer = Foreign(sim, says, form=form, device=comes)
    with refused(sim, "__dlpack_device__ returned "):
        platform.probe.consume(producer, 3)
    assert producer.deleted == [1]


def test_another_device_is_refused_by_its_name_C5(sim, platform):
    foreign = (10, 0) if platform.is_cuda else (2, 0)
    names = {CPU: "cpu", (4, 1): "opencl:1", (14, 0): "oneapi:0", foreign: "(cuda|rocm):0", (99, 3): "device.99, 3."}
    names[0, 0] = "device.0, 0."
    for says, name in names.items():
        producer = Foreign(sim, says)
        with refused(sim, f"device is {name}, .* was asked for"):
            platform.probe.consume(producer, 3)
        assert producer.calls in ([], [VERSION])
        assert producer.deleted in ([], [1])


def test_dlpack_device_must_return_a_device_C4(sim, platform):
    for says in (None, 2, (), (2,), (2, 0, 0), (2, None, 0), [2, 0], ("2", 0), (2.0, 0)):
        producer = Foreign(sim, says, device=(platform.DEVICE, 0))
        with refused(sim, "__dlpack_device__ returned", TypeError):
            platform.probe.consume(producer, 3)
        assert producer.calls == []
    producer = Foreign(sim, KeyError("of the producer"), device=(platform.DEVICE, 0))
    with refused(sim, "of the producer", KeyError):
        platform.probe.consume(producer, 3)
    with refused(sim, "__dlpack_device__", AttributeError):
        platform.probe.consume(dltensor.Offer(Made(device=(platform.DEVICE, 0))), 3)


@pytest.mark.parametrize("number", [0, None])
def test_the_result_of_dlpack_device_is_not_kept_C4(sim, platform, number):
    says = (CPU[0], number)
    producer = Foreign(sim, says, device=CPU)
    before = sys.getrefcount(says)
    platform.probe.consume(producer, 3, device=CPU[0]).release()
    assert sys.getrefcount(says) == before


# ---- By an exchange table: X2, X4, X8, X9 ----


def library(platform, work, **attributes):
    """A class with a table; work(type, number) is the current stream of its library."""
    platform.probe.work(work)
    return type("Array", (Foreign,), {"__dlpack_c_exchange_api__": platform.probe.table(), **attributes})


def test_on_the_library_s_own_stream_no_call_is_made_X4_S4(sim, platform):
    stream = sim.stream()
    streams = [(stream, stream), (None, 0), (platform.default, 0)] + ([(1, 1), (2, 2)] if platform.is_cuda else [])
    for work, own in streams:
        asked = []
        array = library(platform, lambda *device, work=work, asked=asked: asked.append(device) or work)(
            sim, (platform.DEVICE, 2)
        )
        with sim.watched():
            view = platform.probe.consume(array, own)
            assert sim.calls() == []
        assert (asked, array.calls) == ([(platform.DEVICE, 2)], [])
        view.release()


def test_another_stream_is_ordered_after_the_library_s_X4_S1(sim, platform):
    work, own = sim.stream(), sim.stream()
    memory = platform.probe.Array((8,), work)
    Array = library(platform, lambda *device: work)
    array = Array(sim, (platform.DEVICE, 0), data=memory.address, dtype="uint8", shape=(8,))
    with sim.held(work):
        sim.fill(work, memory.address, 7, 8)
        with sim.watched():
            view = platform.probe.consume(array, own)
            assert event_calls(sim)[1:] == [
                "EventRecord(event 1, stream 1)",
                "StreamWaitEvent(stream 2, event 1)",
                "EventDestroy(event 1)",
            ]
        sim.expect(own, view.data, 7, 8)
        sim.control("settle")
        assert sim.pending(own) == 1
    sim.synchronize(own)


def test_no_order_is_made_where_nothing_is_pending_X4_S4(sim, platform):
    own = sim.stream()
    array = library(platform, lambda *device: 1 / 0)(sim, (platform.DEVICE, 0))
    with sim.capture(own), sim.watched():
        platform.probe.consume(array, own, options=platform.probe.NOTHING_PENDING)
        assert sim.calls() == []
    assert array.calls == []


def test_a_library_that_names_no_stream_works_on_the_default_one_X4_X8(sim, platform):
    own = sim.stream(1)
    array = library(platform, lambda *device: None)(sim, (platform.DEVICE, 1))
    with sim.watched():
        platform.probe.consume(array, own)
        assert sim.calls() == [
            f"StreamIsCapturing({sim.name(own)})",
            "GetDevice()",
            "SetDevice(1)",
            f"StreamIsCapturing({platform.default_name})",
            "EventCreateWithFlags(event 1, 2)",
            f"EventRecord(event 1, {platform.default_name})",
            f"StreamWaitEvent({sim.name(own)}, event 1)",
            "EventDestroy(event 1)",
            "SetDevice(0)",
        ]


def test_an_error_of_current_work_stream_ends_the_import_X4(sim, platform):
    def work(*device):
        raise KeyError("of the library")

    array = library(platform, work)(sim, (platform.DEVICE, 0))
    with refused(sim, "of the library", KeyError):
        platform.probe.consume(array, sim.stream())
    assert (array.calls, array.deleted) == ([], [1])


def test_a_capture_mode_that_cannot_be_changed_is_not_restored_S6_S9(sim, platform):
    array = library(platform, lambda *device: 1 / 0)(sim, (platform.DEVICE, 0))
    with sim.failing("ThreadExchangeStreamCaptureMode"), refused(sim, "division by zero", ZeroDivisionError):
        platform.probe.consume(array, sim.stream())
    assert array.deleted == [1]


def test_an_exception_that_current_work_stream_leaves_behind_ends_the_import_X8(sim, platform):
    def work(*device):
        raise KeyError("of the library")

    work.forgets = True
    array = library(platform, work)(sim, (platform.DEVICE, 0))
    with refused(sim, "of the library", KeyError):
        platform.probe.consume(array, 3)
    assert (array.calls, array.deleted) == ([], [1])


def test_an_error_of_current_work_stream_without_an_exception_is_a_runtime_error_X8(sim, platform):
    def work(*device):
        return None

    work.fails = True
    array = library(platform, work)(sim, (platform.DEVICE, 0))
    with refused(sim, "current_work_stream failed without an exception", RuntimeError):
        platform.probe.consume(array, 3)
    assert (array.calls, array.deleted) == ([], [1])


def test_a_tensor_that_cannot_be_ordered_is_released_X4_S6(sim, platform):
    work, own = sim.stream(), sim.stream()
    array = library(platform, lambda *device: work)(sim, (platform.DEVICE, 0))
    with sim.capture(work), sim.capture(own), refused(sim, "capture different graphs"):
        platform.probe.consume(array, own)
    assert array.deleted == [1]


def test_a_tensor_that_does_not_meet_the_requirements_is_released_without_an_order_X4_C9(sim, platform):
    array = library(platform, lambda *device: 1 / 0)(sim, (platform.DEVICE, 0))
    with refused(sim, "dtype is float64, uint8 was asked for"):
        platform.probe.consume(array, 3, dtype=platform.probe.UINT8)
    assert array.deleted == [1]


def test_complex_numbers_are_imported_by_the_method_X9(sim, platform):
    array = library(platform, lambda *device: 1 / 0)(sim, (platform.DEVICE, 0), dtype="complex64")
    platform.probe.consume(array, 3)
    assert (array.calls, array.deleted) == ([{**VERSION, "stream": 3}], [1, 1])


def test_pinned_and_managed_memory_is_imported_by_the_method_X4(sim, platform):
    for kind in filter(None, (platform.PINNED, platform.MANAGED)):
        array = library(platform, lambda *device: 1 / 0)(sim, (kind, 0))
        platform.probe.consume(array, 3, device=kind)
        assert len(array.calls) == 1


def test_where_a_table_refuses_the_method_is_asked_for_any_memory_X4(sim, platform):
    def refuse(self):
        raise BufferError("not by a table")

    for kind in filter(None, (platform.DEVICE, platform.PINNED, platform.MANAGED, platform.probe.CPU)):
        array = library(platform, lambda *device: 1 / 0, owned=refuse)(sim, (kind, 0))
        with sim.watched():
            view = platform.probe.consume(array, 3, device=kind)
        assert (view.device, len(array.calls)) == ((kind, 0), 1)


def test_a_class_that_overrides_the_method_is_asked_by_it_X2(sim, platform):
    def dlpack(self, **keywords):
        return Foreign.__dlpack__(self, **keywords)

    Other = type("Other", (library(platform, lambda *device: 1 / 0),), {"__dlpack__": dlpack})
    array = Other(sim, (platform.DEVICE, 0))
    platform.probe.consume(array, 3)
    assert array.calls == [{**VERSION, "stream": 3}]


def test_a_library_s_current_stream_can_be_queried_X4(sim, platform):
    Array = library(platform, lambda kind, number: 100 + number)
    assert platform.probe.current_work(Array(sim, CPU), 2) == 102
    platform.probe.work(lambda *device: None)
    assert platform.probe.current_work(Array(sim, CPU), 0) == platform.default
    assert platform.probe.current_work(Foreign(sim, CPU), 0) is None
    platform.probe.work(lambda *device: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        platform.probe.current_work(Array(sim, CPU), 0)

    with pytest.raises(MemoryError, match="of the look at the type"):
        platform.probe.current_work(Unreadable("Array", (Array,), {})(sim, CPU), 0)


# ---- By an exchange table of the header: X2, X4, S10 ----


def exchanged(platform, work, *arguments, host=False, **keywords):
    """An array whose type has a table; work(type, number) is the current stream that the table returns."""
    platform.probe.work(work)
    return (platform.probe.HostExchanged if host else platform.probe.Exchanged)((8,), *arguments, **keywords)


def test_an_array_is_counted_as_exported_while_the_table_names_its_stream_P9_X4(sim, platform):
    own, arrays, counts = sim.stream(), [], []
    array = exchanged(platform, lambda *device: (counts.append(arrays[0].exports), own)[1], (own,), strides=(1,))
    arrays.append(array)
    exchange_probe.call_borrowed(type(array).__dlpack_c_exchange_api__, array)
    view = platform.other.consume(array, own)
    assert set(counts) == {1} and array.exports == 1
    view.release()
    assert array.exports == 0
    arrays.clear()  # the function of the table stays


def test_tensors_of_a_table_are_ordered_on_the_stream_that_the_table_names_X4_S1(sim, platform):
    one, other, own = sim.stream(), sim.stream(), sim.stream()
    array = exchanged(platform, lambda *device: one, (one, other))
    for worker in (one, other):
        with sim.held(worker):
            sim.fill(worker, array.address, 7, 8)
            with sim.watched():
                view = platform.other.consume(array, own)
                calls = event_calls(sim)
            sim.expect(own, view.data, 7, 8)
            sim.control("settle")
        sim.synchronize(own)
        records = [call for call in calls if "Wait" in call]
        assert [call.split(",")[0] for call in records] == ["StreamWaitEvent(stream 1", "StreamWaitEvent(stream 3"]
        view.release()


@pytest.mark.parametrize("number", [0, 1])
def test_on_the_stream_that_a_table_names_no_call_is_made_X4_S4(sim, platform, number):
    stream = sim.stream(number)
    asked = []
    array = exchanged(platform, lambda *device: asked.append(device) or stream, (stream,), device=number)
    with sim.watched():
        view = platform.other.consume(array, stream)
        assert sim.calls() == []
    assert set(asked) == {(platform.DEVICE, number)}
    assert platform.other.current_work(array, number) == platform.probe.current_work(array, number) == stream
    view.release()


def test_a_table_makes_objects_of_tensors_that_meet_its_requirements_X6(sim, platform):
    table = platform.probe.Exchanged.__dlpack_c_exchange_api__
    for device, error, text in (
        ((platform.DEVICE, 1), SystemError, "nobody makes a"),
        (CPU, BufferError, "device is cpu, .* was asked for"),
    ):
        made = Made(device=device)
        with refused(sim, text, error):
            exchange_probe.call_make(table, ctypes.addressof(made.managed))
        assert made.deleted == 1


def test_arrays_of_the_own_type_are_ordered_on_the_stream_of_the_consumer_X4(sim, platform):
    stream, work, own = sim.stream(), sim.stream(), sim.stream()
    array = exchanged(platform, lambda *device: work, (stream,))
    sim.fill(stream, array.address, 7, 8)
    with sim.watched():
        view = platform.probe.consume(array, own)
    sim.check(own, view.data, 7, 8)


def test_a_table_makes_no_copy_on_the_device_X4_S8(sim, platform):
    work, options = sim.stream(), platform.probe.COPY_NEGATIVE
    array = exchanged(platform, lambda *device: work, (work,), strides=(-1,), size=8, offset=7, options=options)
    with refused(sim, "a copy of data on .* is made on the CPU"):
        platform.other.consume(array, sim.stream())


def test_the_copy_of_a_table_waits_once_for_pending_work_X4_S10(sim, platform):
    stream, offer = sim.stream(), {"type": platform.probe.CPU, "options": platform.probe.COPY_NEGATIVE}
    array = exchanged(platform, lambda *device: 1 / 0, (stream,), strides=(-1,), size=8, offset=7, **offer)
    with sim.watched():
        copy = exchange_probe.call_owned(type(array).__dlpack_c_exchange_api__, array)
        assert sim.calls().count(f"StreamSynchronize({sim.name(stream)})") == 1
    assert dltensor.read(copy).data != array.address


def test_a_stream_that_a_table_cannot_name_is_an_error_X4(sim, platform):
    array = exchanged(platform, lambda *device: 1 / 0, (sim.stream(),))
    table = type(array).__dlpack_c_exchange_api__
    takes = [
        lambda: platform.other.consume(array, sim.stream()),
        lambda: exchange_probe.call_owned(table, array),
        lambda: exchange_probe.call_borrowed(table, array),
    ]
    for take in takes:
        with refused(sim, "division by zero", ZeroDivisionError):
            take()


@pytest.mark.parametrize("host", [False, True])
def test_a_table_waits_for_work_on_memory_that_the_host_may_read_S10_X4(sim, platform, host):
    for kind in filter(None, (platform.probe.CPU, platform.PINNED, platform.MANAGED)):
        stream = sim.stream()
        array = exchanged(platform, lambda *device: 1 / 0, (stream,), host=host, type=kind, strides=(1,))
        wanted = {"options": 8} if kind != platform.probe.CPU else {}
        table = type(array).__dlpack_c_exchange_api__
        takes = [
            lambda: table_consumer.consume(array, wanted),
            lambda: exchange_probe.borrow(array, **wanted),
            lambda: exchange_probe.call_borrowed(table, array),
            lambda: exchange_probe.call_owned(table, array),
        ]
        if kind != platform.MANAGED:  # managed memory is ordered on the stream
            takes.append(lambda: platform.other.consume(array, sim.stream(), device=kind))
        for take in takes:
            sim.control("delay", 20_000)
            sim.fill(stream, array.address, 5, 8)
            with sim.watched():
                taken = take()
            assert sim.control("host_may_read", array.address)
            del taken


def test_the_host_waits_for_work_on_arrays_of_the_own_type_S10_X4(sim, platform):
    stream = sim.stream()
    array = exchanged(platform, lambda *device: 1 / 0, (stream,), type=platform.probe.CPU, strides=(1,))
    for take in (lambda: platform.probe.consume(array, 3, device=-1), lambda: platform.probe.lends(array)):
        sim.control("delay", 20_000)
        sim.fill(stream, array.address, 5, 8)
        with sim.watched():
            taken = take()
        assert sim.control("host_may_read", array.address)
        assert taken is not False


@pytest.mark.parametrize("named", [False, True])
def test_a_table_for_the_host_exports_no_device_memory_X4(sim, platform, named):
    stream, own = sim.stream(), sim.stream()
    array = exchanged(platform, lambda *device: 1 / 0, stream, host=True, bare=named)  # by the method it is not bare
    why = "is for memory that the CPU can read" if named else "which this producer does not export"
    with refused(sim, why):
        table_consumer.consume(array)
    with sim.watched():
        view = table_consumer.consume(array, {"device": -1})  # by the method, which orders the legacy default stream
    assert view.data == array.address
    view.release()
    sim.fill(stream, array.address, 7, 8)
    with sim.watched():
        view = platform.other.consume(array, own)  # by the method
    sim.check(own, view.data, 7, 8)
    with sim.watched():
        view = platform.probe.consume(array, own)  # the module of the table uses the method too
    sim.check(own, view.data, 7, 8)
    assert platform.probe.current_work(array, 0) is None
    with refused(sim, "is for memory that the CPU can read"):
        platform.other.current_work(array, 0)


def test_a_borrowed_view_with_strides_of_its_own_is_empty_after_its_release_D4(sim, platform):
    before = platform.probe.blocks()
    assert platform.probe.release_borrowed(sim.stream())
    assert platform.probe.blocks() == before


# ---- Release: G14 of the streams' pitfalls, S1, S6 ----


def test_a_tensor_is_released_when_the_work_on_it_is_done_S1(sim, platform):
    own = sim.stream()
    memory, producer = platform.probe.Array((8,), own), Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        with sim.watched():
            view.release_on(own)
            assert event_calls(sim) == [
                "EventCreateWithFlags(event 1, 2)",
                "EventRecord(event 1, stream 1)",
                "EventQuery(event 1) -> 600",
            ]
            assert not view.holds
        for _ in range(2):
            with sim.watched():
                assert platform.probe.collect() == 1
            assert producer.deleted == [0]
    sim.synchronize(own)
    assert producer.deleted == [0]
    assert platform.probe.collect() == 0
    assert producer.deleted == [1]


def test_a_tensor_is_released_without_a_thread_state_and_without_a_place_for_the_error_K5_S6(sim, platform):
    consumer = sim.stream()
    producer = Foreign(sim, (platform.DEVICE, 0))
    views = [platform.probe.consume(producer, consumer) for _ in range(2)]
    with sim.capture(consumer):
        assert views[0].release_detached(consumer) is True  # the capture's work runs later
        assert views[0].holds and producer.deleted == [0, 0]
    assert views[0].release_detached(consumer) is False
    memory = platform.probe.Array((8,), consumer)
    sim.control("hold", consumer)
    sim.fill(consumer, memory.address, 7, 8)
    assert views[1].release_detached(consumer) is False
    assert producer.deleted == [1, 0]
    sim.control("let_go", consumer)
    sim.synchronize(consumer)
    assert platform.probe.collect() == 0
    assert producer.deleted == [1, 1]


def test_a_tensor_whose_work_is_done_is_released_at_once_S1(sim, platform):
    own, producer = sim.stream(), Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    with sim.watched():
        view.release_on(own)
        assert [call.split("(")[0] for call in sim.calls()] == [
            "StreamIsCapturing",
            "GetDevice",
            "EventCreateWithFlags",
            "EventRecord",
            "ThreadExchangeStreamCaptureMode",
            "EventQuery",
            "EventDestroy",
            "ThreadExchangeStreamCaptureMode",
        ]
    assert (view.holds, producer.deleted, sim.live("event")) == (False, [1], 0)


@pytest.mark.parametrize("later", ["consume", "release", "release of a borrowed view"])
def test_later_calls_release_tensors_whose_work_is_done_S1(sim, platform, later):
    own = sim.stream()
    producers = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(3)]
    first, second, third = (platform.probe.consume(producer, own) for producer in producers)
    memory = platform.probe.Array((8,), own)
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        first.release_on(own)
        second.release_on(own)
    sim.synchronize(own)
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        if later == "consume":
            platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), own)
        elif later == "release":
            third.release_on(own)
        else:
            assert platform.probe.release_borrowed(own)
        assert [producer.deleted for producer in producers] == [[1], [1], [0]]
    sim.synchronize(own)
    platform.probe.collect()


def test_tensors_are_released_in_the_order_in_which_their_work_is_done_S1(sim, platform):
    slow, quick = sim.stream(), sim.stream()
    one, other = Foreign(sim, (platform.DEVICE, 0)), Foreign(sim, (platform.DEVICE, 0))
    views = platform.probe.consume(one, slow), platform.probe.consume(other, quick)
    memory = platform.probe.Array((8,), slow)
    with sim.held(slow):
        sim.fill(slow, memory.address, 7, 8)
        views[0].release_on(slow)
        views[1].release_on(quick)
        assert platform.probe.collect() == 1
        assert (one.deleted, other.deleted) == ([0], [1])
    sim.synchronize(slow)


def test_a_tensor_behind_waiting_tensors_is_released_after_them_S1(sim, platform):
    own, one, other, gone = sim.stream(), sim.stream(), sim.stream(), []
    arrays = [platform.probe.Array((8,), stream) for stream in (one, other)]

    def let_go(number):
        producer = Foreign(sim, (platform.DEVICE, 0), on_delete=lambda: gone.append(number))
        platform.probe.consume(producer, own).release_on(own)

    def follow(stream, array):
        """Makes the consumer's stream wait for late work."""
        sim.control("hold", stream)
        sim.fill(stream, array.address, 7, 8)
        platform.probe.consume(array, own).release()

    follow(one, arrays[0])
    let_go(0)
    follow(other, arrays[1])
    let_go(1)
    let_go(2)
    assert (gone, platform.probe.collect()) == ([], 3)
    sim.control("let_go", one)
    sim.control("settle")
    assert (platform.probe.collect(), gone) == (2, [0])
    let_go(3)
    assert (platform.probe.collect(), gone) == (3, [0])
    sim.control("let_go", other)
    sim.synchronize(own)
    assert (platform.probe.collect(), sorted(gone)) == (0, [0, 1, 2, 3])


def test_tensors_of_a_destroyed_stream_wait_beside_those_of_a_new_one_with_its_handle_S1(sim, platform):
    sim.control("reuse_handles", 1)
    blocked, first = sim.stream(), sim.stream()
    memory = platform.probe.Array((8,), blocked)
    producers = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(3)]
    old, new, late = [platform.probe.consume(producer, first) for producer in producers]
    sim.synchronize(blocked)
    with sim.held(blocked):
        sim.fill(blocked, memory.address, 7, 8)
        platform.probe.consume(memory, first).release()  # its work is pending behind that of blocked
        old.release_on(first)
        sim.runtime("StreamDestroy", first)
        assert sim.stream() == first
        new.release_on(first)
        assert (producers[0].deleted, platform.probe.collect()) == ([0], 2)
    sim.synchronize(blocked)
    with sim.held(first):
        sim.fill(first, memory.address, 7, 8)
        late.release_on(first)
        assert platform.probe.collect() == 1
        assert [producer.deleted for producer in producers] == [[1], [1], [0]]
    sim.synchronize(first)
    assert platform.probe.collect() == 0
    sim.check(blocked, memory.address, 7, 8)


def test_memory_is_given_again_only_behind_the_work_of_its_consumer_S1(sim, platform):
    """As allocators do: the next array of a stream has the memory of the last one that was freed there."""
    own, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((64,), own)
    address = array.address
    sim.fill(own, address, 7, 64)
    view = platform.probe.consume(array, consumer)
    with sim.held(consumer):
        sim.expect(consumer, address, 7, 64)
        view.release_on(consumer)
        del array
        other = platform.probe.Array((64,), own)
        sim.fill(own, other.address, 9, 64)
        assert other.address != address
    sim.synchronize(consumer)
    assert platform.probe.collect() == 0
    collect()
    again = platform.probe.Array((64,), own)
    assert again.address == address


def test_a_hundred_tensors_wait_and_are_all_released_S1(sim, platform):
    own = sim.stream()
    memory = platform.probe.Array((8,), own)
    producers = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(100)]
    views = [platform.probe.consume(producer, own) for producer in producers]
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        for view in views:
            view.release_on(own)
        assert (platform.probe.collect(), sim.live("event")) == (100, 100)
    sim.synchronize(own)
    assert (platform.probe.collect(), sim.live("event")) == (0, 0)
    assert [producer.deleted for producer in producers] == 100 * [[1]]


def test_many_waiting_tensors_cost_one_query_a_call_S1(sim, platform):
    streams = [sim.stream() for _ in range(2)]
    memories = [platform.probe.Array((8,), stream) for stream in streams]
    producers = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(200)]
    views = [platform.probe.consume(producer, streams[0]) for producer in producers]
    with sim.held(streams[0]), sim.held(streams[1]):
        for stream, memory in zip(streams, memories):
            sim.fill(stream, memory.address, 7, 8)
        with sim.watched():
            for i, view in enumerate(views):
                view.release_on(streams[i % 2])
            queries = sum("EventQuery" in call for call in sim.calls())
        assert queries <= 2 * len(views)  # one a stream
        assert platform.probe.collect() == 200
    for stream in streams:
        sim.synchronize(stream)
    assert (platform.probe.collect(), sim.live("event")) == (0, 0)
    assert [producer.deleted for producer in producers] == 200 * [[1]]


def test_a_release_on_the_per_thread_stream_waits_for_the_work_of_other_threads_S1(sim, platform):
    """The thread that releases need not be the thread that queued the work."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    memory, producer = platform.probe.Array((8,), 2), Foreign(sim, (platform.DEVICE, 0))
    views = []
    sim.synchronize(2)
    with work_of_another_thread(sim, memory, lambda: views.append(platform.probe.consume(producer, 2))):
        with sim.watched():
            views.pop().release_on(2)
        waiting, deleted = platform.probe.collect(), list(producer.deleted)
    assert (waiting, deleted) == (1, [0])
    sim.synchronize(platform.default)
    assert platform.probe.collect() == 0
    assert producer.deleted == [1]


def test_a_release_on_the_per_thread_stream_is_a_barrier_among_blocking_streams_S1(sim, platform):
    """As docs/streams.md says, and a release on another stream is none."""
    if not platform.is_cuda:
        pytest.skip("ROCm's per-thread streams have no number that crosses the protocol")
    for own, pending in ((2, 1), (sim.stream(), 0)):
        one, other = sim.stream(flags=BLOCKING), sim.stream(flags=BLOCKING)
        memory, further = platform.probe.Array((8,), one), platform.probe.Array((8,), other)
        sim.synchronize(other)
        view = platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), own)
        with sim.held(one):
            sim.fill(one, memory.address, 7, 8)
            view.release_on(own)
            sim.fill(other, further.address, 7, 8)
            sim.control("settle")
            assert sim.pending(other) == pending
        sim.synchronize(one)
        sim.synchronize(other)


def test_strides_that_a_view_has_allocated_are_freed_when_it_waits_D4(sim, platform):
    own = sim.stream()
    memory = platform.probe.Array((8,), own)
    before = platform.probe.blocks()
    producer = Foreign(sim, (platform.DEVICE, 0), shape=9 * (1,), strides=None)  # above rank 8, the view allocates them
    view = platform.probe.consume(producer, own)
    assert platform.probe.blocks() == before + 1
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        view.release_on(own)
        assert platform.probe.blocks() == before + 1  # that of the waiting tensor
    sim.synchronize(own)
    assert (platform.probe.collect(), platform.probe.blocks()) == (0, before)


def test_a_deleter_may_release_further_tensors_S1(sim, platform):
    own = sim.stream()
    memory = platform.probe.Array((8,), own)
    inner = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(inner, own)
    outer = Foreign(sim, (platform.DEVICE, 0), on_delete=lambda: (platform.probe.collect(), view.release_on(own)))
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        platform.probe.consume(outer, own).release_on(own)
    sim.synchronize(own)
    assert platform.probe.collect() == 0
    assert (outer.deleted, inner.deleted) == ([1], [1])


@pytest.mark.parametrize("error, done", {600: False, 900: False, 908: False, 3: False, 709: True, 719: True}.items())
def test_a_failed_query_keeps_the_tensor_unless_the_context_is_lost_S9(sim, platform, error, done):
    own = sim.stream()
    producer, memory = Foreign(sim, (platform.DEVICE, 0)), platform.probe.Array((8,), own)
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        platform.probe.consume(producer, own).release_on(own)
        with sim.watched(), sim.failing("EventQuery", error=error):
            assert platform.probe.collect() == (0 if done else 1)
    assert producer.deleted == [int(done)]
    sim.synchronize(own)


def test_tensors_wait_while_the_capture_mode_cannot_be_changed_S6_S9(sim, platform):
    own = sim.stream()
    producer, memory = Foreign(sim, (platform.DEVICE, 0)), platform.probe.Array((8,), own)
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        platform.probe.consume(producer, own).release_on(own)
    sim.synchronize(own)
    with sim.watched(), sim.failing("ThreadExchangeStreamCaptureMode"):
        assert platform.probe.collect() == 1
    assert producer.deleted == [0]
    assert (platform.probe.collect(), producer.deleted) == (0, [1])


def test_a_view_is_released_even_if_the_current_device_cannot_be_restored_S9(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 1))
    own = sim.stream(1)
    view = platform.probe.consume(producer, own)
    with sim.failing("SetDevice", nth=2):
        view.release_on(own)
    assert not view.holds
    sim.runtime("SetDevice", 0)
    sim.synchronize(own)
    assert platform.probe.collect() == 0
    assert producer.deleted == [1]


def test_a_release_on_the_default_stream_uses_that_of_the_data_s_device_S5(sim, platform):
    view = platform.probe.consume(Foreign(sim, (platform.DEVICE, 2)), 0)
    with sim.watched():
        view.release_on(0)
        assert sim.calls() == [
            "GetDevice()",
            "SetDevice(2)",
            f"StreamIsCapturing({platform.default_name})",
            "EventCreateWithFlags(event 1, 2)",
            f"EventRecord(event 1, {platform.default_name})",
            "SetDevice(0)",
            "ThreadExchangeStreamCaptureMode(2)",
            "EventQuery(event 1)",
            "EventDestroy(event 1)",
            "ThreadExchangeStreamCaptureMode(0)",
        ]


def test_no_tensor_is_released_in_a_capture_S6(sim, platform):
    own = sim.stream()
    producer = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    with sim.capture(own), refused(sim, "keep the view as long as the graph"):
        view.release_on(own)
    assert view.holds and producer.deleted == [0]
    view.release()
    assert producer.deleted == [1]


def test_waiting_tensors_are_checked_while_other_streams_capture_S6(sim, platform):
    own, capturing = sim.stream(), sim.stream()
    producers, memory = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(3)], platform.probe.Array((8,), own)
    views = [platform.probe.consume(producer, own) for producer in producers]
    with sim.held(own):
        sim.fill(own, memory.address, 7, 8)
        views[0].release_on(own)
        with sim.capture(capturing), sim.watched():
            assert platform.probe.collect() == 1
            views[1].release_on(own)
    sim.synchronize(own)
    with sim.capture(capturing), sim.watched():
        assert platform.probe.collect() == 0
        views[2].release_on(own)
    assert [producer.deleted for producer in producers] == [[1], [1], [1]]


def test_a_tensor_of_a_library_waits_for_the_consumer_s_work_on_any_stream_S1(sim, platform):
    made_on, work, own = sim.stream(), sim.stream(), sim.stream()
    memory = ctypes.c_void_p()
    sim.runtime("MallocAsync", ctypes.byref(memory), 64, made_on)
    array = library(platform, lambda *device: work)(
        sim,
        (platform.DEVICE, 0),
        data=memory.value,
        on_delete=lambda: sim.runtime("FreeAsync", memory, made_on),  # an allocator frees on the stream that allocated
    )
    sim.synchronize(made_on)
    view = platform.probe.consume(array, own)
    with sim.held(own):
        sim.expect(own, view.data, 0xCD, 24)
        with sim.watched():
            view.release_on(own)
        assert array.deleted == [0] and not view.holds
        assert platform.probe.collect() == 1
    sim.synchronize(own)
    assert platform.probe.collect() == 0
    assert array.deleted == [1]
    sim.synchronize(made_on)


def allocated(sim, stream):
    """Memory of the device, and a function that frees it, as a deleter may: by Free, or by FreeAsync on a stream."""
    memory = ctypes.c_void_p()
    if stream is None:
        sim.runtime("Malloc", ctypes.byref(memory), 64)
        return lambda: sim.runtime("Free", memory)
    sim.runtime("MallocAsync", ctypes.byref(memory), 64, stream)
    return lambda: sim.runtime("FreeAsync", memory, stream)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
@pytest.mark.parametrize("by_stream", [False, True])
@pytest.mark.parametrize("how", ["consume", "release", "collect", "at once", "failing", "refused"])
def test_a_deleter_that_frees_memory_spoils_no_capture_S6(sim, platform, how, by_stream, mode):
    own, capturing, made_on = sim.stream(), sim.stream(), sim.stream()
    work = platform.probe.Array((8,), own)
    free = allocated(sim, made_on if by_stream else None)
    made = library(platform, lambda *device: own) if how == "refused" else Foreign
    producer, other = made(sim, (platform.DEVICE, 0), on_delete=free), Foreign(sim, (platform.DEVICE, 0))
    further = platform.probe.consume(other, own)
    view = None if how == "refused" else platform.probe.consume(producer, own)
    if how in ("consume", "release", "collect"):
        with sim.held(own):
            sim.fill(own, work.address, 7, 8)
            view.release_on(own)
        assert producer.deleted == [0]
    sim.synchronize(own)
    with sim.capture(capturing, mode), sim.watched():
        if how == "consume":
            platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), own)
        elif how == "release":
            further.release_on(own)
        elif how == "collect":
            assert platform.probe.collect() == 0
        elif how == "at once":
            view.release_on(own)
        elif how == "failing":
            with sim.failing("EventCreateWithFlags"):
                view.release_on(own)
        else:
            with sim.failing("EventCreateWithFlags"), pytest.raises(RuntimeError):
                platform.probe.consume(producer, sim.stream())
    assert producer.deleted == [1]


@pytest.mark.parametrize("same", [True, False])
def test_a_tensor_of_a_library_is_not_released_in_a_capture_S6(sim, platform, same):
    work = sim.stream()
    own = work if same else sim.stream()
    array = library(platform, lambda *device: work)(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(array, own)
    with sim.capture(own), refused(sim, "captures a graph"):
        view.release_on(own)
    assert view.holds and array.deleted == [0]


def test_managed_memory_of_another_library_waits_on_the_current_device_D9(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    own = sim.stream(1)
    producer = Foreign(sim, (13, 0))
    with sim.on_device(1):
        view = platform.probe.consume(producer, own, device=13)
        with sim.watched():
            view.release_on(own)
    sim.synchronize(own)
    assert platform.probe.collect() == 0
    assert producer.deleted == [1]


def test_managed_memory_with_the_id_of_a_device_waits_on_that_device_D9_S5(sim, platform):
    if not platform.MANAGED:
        pytest.skip("ROCm has no type for managed memory")
    own = sim.stream(1)
    view = platform.probe.consume(Foreign(sim, (13, 1)), own, device=13)
    with sim.watched():
        view.release_on(own)
        assert sim.calls()[1:4] == ["GetDevice()", "SetDevice(1)", "EventCreateWithFlags(event 1, 2)"]


def test_no_tensor_is_released_without_a_call_S4(sim, platform):
    view = platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), 3)
    view.release()
    with sim.watched():
        view.release_on(3)
        view.release()
        assert sim.calls() == []


def test_the_host_waits_if_a_tensor_cannot_be_queued_for_release_S9(sim, platform):
    own = sim.stream()
    memory, blocks = platform.probe.Array((8,), own), platform.probe.blocks()
    for failing in ("EventRecord", "EventCreateWithFlags", "memory"):
        platform.probe.collect()
        deleted = []
        producer = Foreign(sim, (platform.DEVICE, 0), on_delete=lambda: deleted.append(sim.pending(own)))
        view = platform.probe.consume(producer, own)
        sim.control("delay", 20_000)
        sim.fill(own, memory.address, 7, 8)
        platform.probe.no_memory(failing == "memory")
        with sim.watched(), sim.failing(failing):
            view.release_on(own)
        platform.probe.no_memory(False)
        sim.control("delay", 200)
        assert deleted == [0] and not view.holds
        assert platform.probe.blocks() == blocks


def test_a_release_that_succeeds_writes_no_error_S9(sim, platform):
    own = sim.stream()
    for failing in ("EventRecord", "EventCreateWithFlags"):
        view = platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), own)
        with sim.failing(failing):
            assert view.release_error(own) == 0
        assert not view.holds
    view = platform.probe.consume(Foreign(sim, (platform.DEVICE, 0)), own)
    with sim.capture(own):
        assert view.release_error(own) != 0


def test_a_lost_context_has_no_running_work_S9(sim, platform):
    own = sim.stream()
    producer = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    text = f"StreamIsCapturing: {platform.launch_failure}"
    with sim.failing("StreamIsCapturing", times=2), refused(sim, text, RuntimeError):
        view.release_on(own)
    assert not view.holds and producer.deleted == [1]


def test_a_capture_that_cannot_be_found_is_a_failure_of_the_runtime_S6_S9(sim, platform):
    own = sim.stream()
    producer = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    text = f"StreamGetCaptureInfo.*: {platform.launch_failure}"
    with sim.capture(own), sim.failing("StreamGetCaptureInfo", times=2), refused(sim, text, RuntimeError):
        view.release_on(own)
    assert not view.holds and producer.deleted == [1]


def test_a_capture_that_begins_during_a_release_leaves_the_view_S6_S9(sim, platform):
    own = sim.stream()
    producer = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, own)
    with sim.capture(own):
        with refused(sim, "keep the view as long as the graph"):
            view.release_on(own)
        with sim.failing("StreamIsCapturing"), refused(sim, "the host cannot wait for it"):  # the view is unchanged
            view.release_on(own)
    assert view.holds and producer.deleted == [0]


def test_a_release_that_must_not_fail_keeps_the_exception_in_flight_K2_S6(sim, platform, monkeypatch):
    own, told = sim.stream(), []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_type))
    producers = [Foreign(sim, (platform.DEVICE, 0)) for _ in range(3)]
    done, captured, lost = (platform.probe.consume(producer, own) for producer in producers)
    with refused(sim, "in flight", KeyError):
        done.release_unraisable(own)
    assert (done.holds, told) == (False, [])
    with sim.capture(own), refused(sim, "in flight", KeyError):
        captured.release_unraisable(own)
    assert (captured.holds, told.pop()) == (False, BufferError)
    with sim.failing("StreamIsCapturing", times=2), refused(sim, "in flight", KeyError):
        lost.release_unraisable(own)
    assert (lost.holds, told.pop()) == (False, RuntimeError)
    sim.synchronize(own)
    assert platform.probe.collect() == 0
    assert [producer.deleted for producer in producers] == [[1], [0], [1]]


def test_a_release_that_must_not_fail_frees_strides_that_the_view_has_allocated_D4_S6(sim, platform, monkeypatch):
    own = sim.stream()
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)
    producer = Foreign(sim, (platform.DEVICE, 0), shape=9 * (1,), strides=None)
    before = platform.probe.blocks()
    view = platform.probe.consume(producer, own)
    with sim.capture(own), refused(sim, "in flight", KeyError):
        view.release_unraisable(own)
    assert (producer.deleted, platform.probe.blocks()) == ([0], before)


# ---- Consumers on the CPU: C4, C5, S10 ----


@pytest.mark.parametrize("keywords", [{}, {"options": 8}, {"options": 1, "order": "F", "ndim": 2}])
def test_the_host_reads_pinned_and_managed_memory_when_the_work_is_done_C5_S10(sim, platform, keywords):
    for kind in filter(None, (platform.PINNED, platform.MANAGED)):
        sim.control("delay", 20_000)
        stream = sim.stream()
        array = platform.probe.Array((2, 4), stream, type=kind)
        sim.fill(stream, array.address, 5, 8)
        with sim.watched():
            view = table_consumer.consume(array, keywords)
        assert sim.control("host_may_read", array.address)
        assert ctypes.string_at(view.data, 8) == b"\5" * 8
        assert (view.data == array.address) == ("order" not in keywords)
        view.release()


def test_numpy_reads_pinned_and_managed_memory_when_the_work_is_done_S10(sim, platform):
    read = numpy.from_dlpack  # without NumPy the test ends here: no work is pending yet
    for kind in filter(None, (platform.PINNED, platform.MANAGED)):
        stream = sim.stream()
        array = platform.probe.Array((8,), stream, type=kind)
        sim.fill(stream, array.address, 5, 8)
        with sim.watched():
            assert read(array).tolist() == [5] * 8
        assert sim.control("host_may_read", array.address)


def test_device_memory_is_not_transferred_unless_asked_for_C5(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((8,), stream)
    sim.fill(stream, array.address, 5, 8)
    with refused(sim, f"device is {platform.name}:0, "):
        table_consumer.consume(array)
    with refused(sim, f"device is {platform.name}:0, "):
        dlarray.from_dlpack(array)
    with sim.watched():
        assert dlarray.from_dlpack(array, device="cpu").tolist() == [5] * 8
        assert dlarray.from_dlpack(array, device=CPU, copy=True).tolist() == [5] * 8
    with refused(sim, "copy is False"):
        dlarray.from_dlpack(array, device="cpu", copy=False)


def test_views_are_released_with_their_objects_A6(sim, platform):
    producer = Foreign(sim, (platform.DEVICE, 0))
    view = platform.probe.consume(producer, 3)
    assert producer.deleted == [0]
    del view
    gc.collect()
    assert producer.deleted == [1]

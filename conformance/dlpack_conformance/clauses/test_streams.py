"""Streams of a GPU, for --cuda: the order of a producer's work before a consumer's."""

import _dlpack_conformance as native
import pytest

from dlpack_conformance import standard
from dlpack_conformance.kit import CHOICE, CPU, MUST, SHOULD, Offer, clause, settled, shown, without_frames
from dlpack_conformance.runtime import CUDA, LATE, ROCM, seconds

DEFAULTS = {CUDA: 1, ROCM: 0}  # the numbers of the default stream
STREAMS = ["None", "default", "per-thread", "handle"]
streams = pytest.mark.parametrize("which", STREAMS)


def attempt(function, *arguments, **keywords):
    """(result, None), or (None, the exception)."""
    try:
        return function(*arguments, **keywords), None
    except Exception as error:
        return None, without_frames(error)


def stream_of(runtime, which):
    """A number of DLPack: the stream of a consumer."""
    if which == "per-thread" and runtime.kind == ROCM:
        pytest.skip("ROCm has no number for the per-thread default stream")
    return {"None": lambda: None, "default": lambda: DEFAULTS[runtime.kind], "per-thread": lambda: 2}.get(
        which, runtime.new_stream
    )()


def address(taken):
    return taken.says["data"] + taken.says["byte_offset"]


def pending(lib, runtime):
    """An array of zeros, into which the library's stream will write the plain data, and the number of that stream."""
    array = lib.make_on_device(bytes(len(lib.data)))
    lib.knows("max_version")  # asks another array, which may take its time
    runtime.settle()
    stream = lib.current_stream()
    runtime.write_late(lib.pointer(array), lib.data, stream)
    return array, stream


class OnDevice(Offer):
    """A producer on the device, whose data is written late by a stream of its own."""

    def __init__(self, lib, runtime, data=None, **fields):
        self.runtime, self.stream = runtime, runtime.new_stream()
        self.late = lib.data if data is None else data
        at = runtime.allocate(bytes(len(self.late)))
        super().__init__(device=lib.adapter.device, **lib.plain(data=at, values=b"", **fields))
        self.fields["device"], self.is_written = self.device, False

    def __dlpack__(self, **keywords):
        if not self.is_written:  # at the last moment: what is late must still be pending afterwards
            self.runtime.write_late(self.fields["data"], self.late, self.stream)
            self.is_written = True
        stream = keywords.get("stream")
        if stream != -1:
            self.runtime.order(self.stream, stream)
        return super().__dlpack__(**keywords)


# ---- Producers ----


@clause("P8", MUST, standard.DEVICE_TUPLE, "an array on a GPU is exported as memory of the CPU")
def test_P8_the_device_of_an_array_on_a_GPU_is_told(lib, runtime):
    """__dlpack_device__ of an array on the device, and its capsule, tell this device."""
    array = lib.make_on_device()
    kind, number = array.__dlpack_device__()
    assert (getattr(kind, "value", kind), number) == lib.adapter.device, f"the method tells {(kind, number)}"
    told = lib.take_any(array).says["device"]
    assert told == lib.adapter.device, f"the capsule tells {told}"


@clause("S2", SHOULD, standard.EXPLICITLY, "a stream that the standard numbers is refused")
@pytest.mark.parametrize("which", [*STREAMS[1:], "-1"])
def test_S2_a_stream_is_accepted(lib, runtime, which):
    """__dlpack__ accepts the default streams by their numbers, a handle, and -1. Support of streams is optional."""
    lib.needs_keyword("stream")
    stream = -1 if which == "-1" else stream_of(runtime, which)
    _, error = attempt(lib.take_any, lib.make_on_device(), stream=stream)
    assert error is None, f"stream={stream} raised {shown(error)}"


@clause("S2", MUST, standard.ASSUME_LEGACY, "None is refused, for which the default stream is meant")
def test_S2_None_is_accepted(lib, runtime):
    """__dlpack__ accepts stream=None for memory of a GPU: the default stream is meant."""
    lib.needs_keyword("stream")
    _, error = attempt(lib.take_any, lib.make_on_device(), stream=None)
    assert error is None, f"stream=None raised {shown(error)}"


@clause("S2", SHOULD, standard.AMBIGUOUS, "0 is taken for one of three streams")
def test_S2_0_is_refused_on_CUDA(lib, runtime):
    """On CUDA stream=0 is refused: it could be the legacy or the per-thread default stream."""
    if runtime.kind != CUDA:
        pytest.skip("0 is the default stream of ROCm")
    taken, _ = attempt(lib.take_any, lib.make_on_device(), stream=0)
    assert taken is None, "stream=0 was accepted"


@clause("S3", SHOULD, standard.NOT_SUPPORTED, "a number of CUDA's is taken for a handle of ROCm's")
@pytest.mark.parametrize("stream", [1, 2])
def test_S3_1_and_2_are_refused_on_ROCm(lib, runtime, stream):
    """On ROCm stream=1 and stream=2 are refused."""
    if runtime.kind != ROCM:
        pytest.skip("1 and 2 are default streams of CUDA")
    taken, _ = attempt(lib.take_any, lib.make_on_device(), stream=stream)
    assert taken is None, f"stream={stream} was accepted"


@clause("S2", SHOULD, standard.FROM_MINUS_ONE, "a negative number is taken for a handle")
@pytest.mark.parametrize("stream", [-2, -(2**31)], ids=str)
def test_S2_a_number_below_minus_1_is_refused(lib, runtime, stream):
    """A stream below -1 is refused."""
    taken, _ = attempt(lib.take_any, lib.make_on_device(), stream=stream)
    assert taken is None, f"stream={stream} was accepted"


@clause("S7", CHOICE, standard.OPEN, "what is no number is read as a handle")
@pytest.mark.parametrize("stream", ["1", 1.0, (1,)], ids=repr)
def test_S7_a_stream_that_is_no_integer(lib, runtime, stream):
    """A stream of CUDA or ROCm that is no integer is refused, or tolerated."""
    taken, error = attempt(lib.take_any, lib.make_on_device(), stream=stream)
    lib.choose(f"stream={stream!r} on a GPU", "refused" if error else "accepted")


@clause("S1", MUST, standard.SAFELY, "the consumer reads before the producer has written")
@streams
def test_S1_the_consumers_stream_runs_after_the_producers_work(lib, runtime, which):
    """What the library's stream has still to write is read by the stream that __dlpack__ was given, None for the
    default stream: this stream waits, or the host did."""
    lib.needs_keyword("stream")
    stream = stream_of(runtime, which)
    array, _ = pending(lib, runtime)
    taken, error = attempt(lib.take_any, array, stream=stream)
    if error is not None and stream is not None:
        pytest.skip(f"stream={stream} is refused, which S2 tests: {shown(error)}")
    assert error is None, f"raised {shown(error)}"
    got = runtime.read(address(taken), len(lib.data), stream)
    assert got == lib.data, "the consumer's stream read what was there before the producer's work"


@clause("S4", MUST, standard.SAFELY, "a stream waits for itself, or work of the same stream is lost")
def test_S4_the_producers_own_stream_may_be_given(lib, runtime):
    """The stream on which the library works may be that of the consumer."""
    lib.needs_keyword("stream")
    array, stream = pending(lib, runtime)
    taken, error = attempt(lib.take_any, array, stream=stream)
    if error is not None:
        pytest.skip(f"stream={stream} is refused, which S2 tests: {shown(error)}")
    assert runtime.read(address(taken), len(lib.data), stream) == lib.data, "the data is not that of the producer"


@clause("S1", CHOICE, standard.OPEN, "the host waits for the GPU at each exchange")
def test_S1_the_host_waits_for_the_producer(lib, runtime):
    """With a stream of the consumer's, __dlpack__ orders the two streams, or the host waits for the producer's."""
    lib.needs_keyword("stream")
    array, stream = pending(lib, runtime)
    _, error = attempt(lib.take_any, array, stream=runtime.new_stream())
    if error is not None:
        pytest.skip(f"a handle is refused, which S2 tests: {shown(error)}")
    lib.choose("an order of two streams", "on the device" if runtime.is_busy(stream) else "the host waits")


@clause("S1", SHOULD, standard.MINUS_ONE, "work is waited for that the consumer has ordered by itself")
def test_S1_minus_1_waits_for_nothing(lib, runtime):
    """With stream=-1 the producer does not synchronize: the call returns before its work is done."""
    lib.needs_keyword("stream")
    array, stream = pending(lib, runtime)
    (taken, error), took = seconds(attempt, lib.take_any, array, stream=-1)
    if error is not None:
        pytest.skip(f"stream=-1 is refused, which S2 tests: {shown(error)}")
    assert runtime.is_busy(stream) or took < LATE / 2, "the host waited for the producer's stream"


@clause("S5", CHOICE, standard.OPEN, "the caller's next work goes to another GPU")
@pytest.mark.parametrize("stream", ["handle", "refused"])
def test_S5_the_current_device_after_an_export(lib, runtime, stream):
    """Of an array on another device than the current one: the call leaves the current device as it was, or not."""
    if runtime.devices() < 2:
        pytest.skip("this machine has one device")
    other = (lib.adapter.device[1] + 1) % runtime.devices()
    number = runtime.new_stream() if stream == "handle" else -2
    array = lib.make_on_device()
    runtime.set_device(other)
    attempt(lib.take_any, array, stream=number)
    lib.choose("the current device after an export", "unchanged" if runtime.device() == other else "changed")


@clause("P5", MUST, standard.ON_THE_HOST, "the host reads before the GPU has written")
def test_P5_data_that_is_asked_for_on_the_CPU_is_ready(lib, runtime):
    """With dl_device=(kDLCPU, 0) the data is there when the call returns. A library may refuse with BufferError."""
    lib.needs_keyword("dl_device", "copy")
    array, _ = pending(lib, runtime)
    taken, error = attempt(lib.take_any, array, dl_device=CPU)
    if isinstance(error, BufferError):
        pytest.skip(f"the library refuses: {shown(error)}")
    assert error is None, f"raised {shown(error)}"
    assert taken.says["device"][0] == 1, f"the device is {taken.says['device']}"
    assert b"".join(taken.elements()) == lib.data, "the data is that from before the producer's work"


@clause("P6", SHOULD, standard.ON_THE_HOST, "a stream is accepted where there is none")
def test_P6_with_the_CPU_as_device_a_stream_is_refused(lib, runtime):
    """With dl_device=(kDLCPU, 0) no stream may be given."""
    lib.needs_keyword("dl_device", "stream")
    array = lib.make_on_device()
    if attempt(lib.take_any, array, dl_device=CPU)[0] is None:
        pytest.skip("the library refuses to move data to the CPU")
    taken, _ = attempt(lib.take_any, array, dl_device=CPU, stream=runtime.new_stream())
    assert taken is None, "a stream was accepted"


@clause("K5", MUST, standard.UNTIL_DELETER, "memory of a GPU is freed with work that still reads it")
def test_K5_the_memory_lives_until_the_deleter_is_called(lib, runtime):
    """The memory of an array that is gone is valid until the deleter is called."""
    array = lib.make_on_device()
    stream = DEFAULTS[runtime.kind]
    taken, error = attempt(lib.take_any, array, stream=stream)
    if error is not None:
        taken = lib.take_any(array)
    del array
    others = [lib.make_on_device(bytes(len(lib.data))) for _ in range(8)]
    assert runtime.read(address(taken), len(lib.data), stream) == lib.data, "the memory was used for something else"
    del taken, others


@clause("X4", SHOULD, standard.WORK_STREAM, "the table tells another stream than that on which the library works")
def test_X4_the_table_tells_the_stream_of_the_library(lib, runtime):
    """current_work_stream of the device is the stream that the library works on."""
    kind = type(lib.make_on_device())
    if getattr(kind, "__dlpack_c_exchange_api__", None) is None:
        pytest.skip("the library's type has no exchange table")
    stream, error = attempt(native.stream_by_table, kind, *lib.adapter.device)
    assert error is None, f"raised {shown(error)}"
    wanted = runtime.handle(lib.current_stream())
    assert stream == wanted or {stream, wanted} == {0, 1}, f"the table tells {stream:#x}, the library {wanted:#x}"


# ---- Consumers ----


def taken(lib, offer):
    """The library's array of memory on the device; skips the test if the library does not take such memory."""
    lib.needs_objects()
    array, error = lib.attempt(offer)
    if error is not None:
        pytest.skip(f"the library does not take memory of the device: {shown(error)}")
    return array


@clause("C4", MUST, standard.AMBIGUOUS, "the producer orders its work before that of another stream")
def test_C4_a_number_of_the_standard_is_passed_as_stream(lib, runtime):
    """from_dlpack of memory on a GPU passes a stream that the standard has: None, -1, a default stream or a handle."""
    offer = OnDevice(lib, runtime)
    taken(lib, offer)
    passed = {call.get("stream") for call in offer.calls}
    forbidden = {0} if runtime.kind == CUDA else {1, 2}
    wrong = [s for s in passed if s is not None and (not hasattr(s, "__index__") or s < -1 or s in forbidden)]
    assert not wrong, f"the stream is {wrong[0]!r}"


@clause("C4", CHOICE, standard.OPEN, "the library's stream does not wait for the producer")
def test_C4_the_stream_that_is_passed(lib, runtime):
    """from_dlpack passes the stream that the library works on, or another one."""
    offer = OnDevice(lib, runtime)
    taken(lib, offer)
    passed, own = offer.calls[-1].get("stream"), lib.current_stream()
    lib.choose("the stream of from_dlpack", "its own" if passed == own else "None" if passed is None else "another")


@clause("S1", MUST, standard.SAFELY, "the consumer reads before the producer has written")
def test_S1_the_library_reads_after_the_producers_work(lib, runtime):
    """What a producer has still to write, and has ordered before the stream that it was given, is what the library
    reads. If no stream was given, that is the default stream."""
    offer = OnDevice(lib, runtime)
    array = taken(lib, offer)
    if offer.calls[-1].get("stream") == -1:
        pytest.skip("the library passes -1, and orders nothing by the producer")
    assert lib.values(array) == lib.data, "the library read what was there before the producer's work"


@clause("D1", MUST, standard.OFFSET, "byte_offset is ignored on a GPU, and the wrong elements are read")
def test_D1_byte_offset_is_added_on_a_GPU(lib, runtime):
    """data + byte_offset is the first element of memory on a GPU too. The library may refuse it."""
    lib.needs_objects()
    offer = OnDevice(lib, runtime, bytes(256) + lib.data, byte_offset=256)
    array, error = lib.attempt(offer)
    if error is not None:
        pytest.skip(f"the library refuses: {shown(error)}")
    runtime.settle()
    assert lib.values(array) == lib.data, "the array has other elements"


@clause("K4", MUST, standard.OWNERSHIP, "memory of a GPU is never freed, or freed twice")
@pytest.mark.parametrize("fields", [{}, {"dtype": (200, 32, 1)}], ids=["taken", "refused"])
def test_K4_the_deleter_of_memory_on_a_GPU_is_called_once(lib, runtime, fields):
    """The deleter is called once when the array is gone, or the tensor was refused."""
    lib.needs_objects()
    offer = OnDevice(lib, runtime)
    offer.fields.update(fields)
    array, error = lib.attempt(offer)
    if error is not None and not fields:
        pytest.skip(f"the library does not take memory of the device: {shown(error)}")
    runtime.settle()
    del array
    for made in offer.made:
        assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
        assert made.deleted == 1, f"the deleter was called {made.deleted} times"

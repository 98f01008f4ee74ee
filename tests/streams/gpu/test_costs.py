"""The costs of an exchange on a GPU: exactly the calls of docs/streams.md, and no memory (S4)."""

from collections import Counter

import pytest
from dltensor import CPU, Taken
from streams.gpu.device import LEGACY, PER_THREAD, SIMULATED

ROUNDS = 1_000 if SIMULATED else 10_000
CHUNK = 1 << 26  # the pools of the runtime grow by less; one array for each round would need 150 times as much
ASK = ["StreamIsCapturing", "StreamIsCapturing"]
EVENT = ["EventCreateWithFlags", "EventRecord", "StreamWaitEvent", "EventDestroy"]
EXCHANGE_MODE = "ThreadExchangeStreamCaptureMode"
COPY = [EXCHANGE_MODE, "MemcpyAsync", "StreamSynchronize", EXCHANGE_MODE]


@pytest.fixture
def streams(gpu):
    return gpu.stream("producer"), gpu.stream("consumer")


def test_the_same_stream_takes_no_call_S4(gpu, streams):
    producer, _ = streams
    for home, numbers in ((producer, (producer,)), (0, (None, LEGACY)), (LEGACY, (None, LEGACY))):
        array = gpu.array(home)
        gpu.calls()
        for number in numbers:
            array.__dlpack__(stream=number)
        assert gpu.calls() == []


def test_the_per_thread_streams_of_two_threads_are_ordered_by_the_default_stream_S2(gpu):
    """Another thread may have queued the work: its stream cannot be named."""
    array = gpu.array(PER_THREAD)
    gpu.calls()
    array.__dlpack__(stream=PER_THREAD)
    assert gpu.calls() == ["GetDevice", *ASK, "StreamIsCapturing", *EVENT]


def test_minus_one_takes_no_call_S4(gpu, streams):
    array = gpu.array(streams[0])
    gpu.calls()
    array.__dlpack__(stream=-1)
    assert gpu.calls() == []


def test_another_stream_is_ordered_by_one_record_and_one_wait_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    gpu.calls()
    array.__dlpack__(stream=consumer)
    assert gpu.calls() == [*ASK, "GetDevice", *EVENT]


def test_a_default_stream_takes_one_look_at_the_current_device_more_S5(gpu, streams):
    producer, consumer = streams
    array, on_default = gpu.array(producer), gpu.array(0)
    array.__dlpack__(stream=consumer)
    gpu.calls()
    for number in (None, LEGACY, PER_THREAD):
        array.__dlpack__(stream=number)
        assert gpu.calls() == ["GetDevice", *ASK, *EVENT]
    on_default.__dlpack__(stream=consumer)
    assert gpu.calls() == [ASK[0], "GetDevice", ASK[1], *EVENT]


def test_a_copy_to_the_host_waits_for_one_stream_P5(gpu, streams):
    array = gpu.array(streams[0])
    gpu.calls()
    taken = Taken(array.__dlpack__(dl_device=CPU))
    assert gpu.calls() == ["StreamIsCapturing", *COPY]
    taken.delete()


def test_capture_takes_the_calls_of_the_table_S6(gpu, streams):
    producer, consumer = streams
    array, result = gpu.array(producer), gpu.array(consumer)
    array.__dlpack__(stream=consumer)
    gpu.calls()
    with gpu.capture(producer):
        array.__dlpack__(stream=consumer)
        assert gpu.calls() == [*ASK, "StreamGetCaptureInfo", "GetDevice", *EVENT]
        result.__dlpack__(stream=producer)
        assert gpu.calls() == [ASK[0], "StreamGetCaptureInfo", ASK[1], "StreamGetCaptureInfo", "GetDevice", *EVENT]
    gpu.synchronize(producer)
    with gpu.capture(consumer):
        array.__dlpack__(stream=consumer)
        query = [EXCHANGE_MODE, "StreamQuery", EXCHANGE_MODE]
        assert gpu.calls() == [ASK[0], "StreamGetCaptureInfo", ASK[1], *query]


def test_the_error_of_the_default_stream_while_a_blocking_stream_captures_is_cleared_S6_S9(gpu, streams):
    array = gpu.array(streams[0])
    with gpu.capture(gpu.stream("blocking", flags=0)):
        gpu.calls()
        with pytest.raises(BufferError):
            array.__dlpack__()
        assert gpu.calls() == ["GetDevice", "StreamIsCapturing -> 906", "GetLastError -> 906"]


def test_memory_and_events_stay_flat_over_many_exchanges_S4(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)

    def exchange(rounds):
        called = Counter()
        for _ in range(rounds):
            taken = Taken(array.__dlpack__(stream=consumer))
            taken.delete()
            called.update(gpu.calls())
        gpu.settle()
        return called

    exchange(100)
    before = gpu.free_memory()
    called = exchange(ROUNDS)
    assert before - gpu.free_memory() < CHUNK
    assert {called[call] for call in EVENT} == {ROUNDS}


def test_memory_and_events_stay_flat_over_many_later_releases_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)

    def exchange(rounds):
        events = Counter()
        for i in range(rounds):
            gpu.probe.consume(array, consumer).release_on(consumer)
            if i % 16 == 15:
                gpu.synchronize(consumer)
            events.update(gpu.calls())
        gpu.settle()
        assert gpu.probe.collect() == 0
        events.update(gpu.calls())
        assert events["EventCreateWithFlags"] == events["EventDestroy"]

    exchange(100)
    before = gpu.free_memory()
    exchange(ROUNDS)
    assert before - gpu.free_memory() < CHUNK

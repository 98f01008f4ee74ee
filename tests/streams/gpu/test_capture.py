"""Exchanges while graphs are captured: each exchange is part of the graph, or a BufferError, and the capture continues
(S6). gpu.capture() runs the graph when the capture ends."""

import contextlib

import pytest
from dltensor import CPU, Taken
from streams.gpu.device import ACTIVE, GLOBAL, LEGACY, NONE, RELAXED, SIZE, THREAD_LOCAL, UNJOINED


@pytest.fixture
def streams(gpu):
    return gpu.stream("producer"), gpu.stream("consumer")


@contextlib.contextmanager
def refused(gpu, capturing, text, by_library=False):
    """A BufferError that spoils no capture and leaves no error in the runtime. Libraries may have left errors."""
    with pytest.raises(BufferError, match=text):
        yield
    assert by_library or gpu.last_error() == 0
    assert [gpu.capturing(stream) for stream in capturing] == [ACTIVE] * len(capturing)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_consumer_joins_the_producer_s_capture_S6(gpu, streams, mode):
    producer, consumer = streams
    array, result = gpu.array(producer), gpu.array(consumer)
    with gpu.capture(producer, mode):
        gpu.fill_late(producer, array.address, 7)
        array.__dlpack__(stream=consumer)
        assert gpu.capturing(consumer) == ACTIVE
        gpu.sum(consumer, array.address)
        result.__dlpack__(stream=producer)  # back: both streams are in one capture
    assert gpu.answer(producer) == 7 * SIZE
    assert gpu.capturing(consumer) == NONE


@pytest.mark.forbidden
def test_a_consumer_that_joined_has_to_be_joined_again_S6(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    with gpu.capture(producer, ends=UNJOINED):
        array.__dlpack__(stream=consumer)
        gpu.sum(consumer, array.address)
    assert gpu.capturing(consumer) == NONE


def test_a_capturing_consumer_waits_for_no_work_outside_its_capture_S6(gpu, streams):
    producer, consumer = streams
    array, result = gpu.array(producer), gpu.array(consumer)
    gpu.fill_late(producer, array.address, 7)
    with gpu.capture(consumer):
        with refused(gpu, [consumer], "cannot wait for the producer's work outside of it"):
            array.__dlpack__(stream=consumer)
        array.__dlpack__(stream=-1)
        assert gpu.pending_in_capture(producer)  # the host has not waited
        gpu.fill(consumer, result.address, 3)
    assert gpu.total(consumer, result.address) == 3 * SIZE


def test_finished_work_needs_no_wait_in_a_capture_S6(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer, 7)
    with gpu.capture(consumer):
        array.__dlpack__(stream=consumer)
        gpu.sum(consumer, array.address)
    assert gpu.answer(consumer) == 7 * SIZE


def test_streams_of_different_captures_cannot_be_ordered_S6(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    with gpu.capture(producer, RELAXED), gpu.capture(consumer, RELAXED):
        with refused(gpu, streams, "capture different graphs"):
            array.__dlpack__(stream=consumer)


def test_the_default_stream_takes_no_part_in_a_capture_S6(gpu, streams):
    producer, _ = streams
    array, on_default = gpu.array(producer), gpu.array(0)
    with gpu.capture(producer):
        for keywords in ({}, {"stream": LEGACY}):
            with refused(gpu, [producer], "captures a graph, which the default stream cannot join"):
                array.__dlpack__(**keywords)
        on_default.__dlpack__(stream=producer)  # an idle default stream is no reason to refuse
        assert gpu.capturing(producer) == ACTIVE


def test_the_default_stream_is_left_alone_while_a_blocking_one_captures_S6(gpu, streams):
    producer, _ = streams
    blocking = gpu.stream("blocking", flags=0)
    array, on_default = gpu.array(producer), gpu.array(0)
    with gpu.capture(blocking):
        for refuse in (
            lambda: array.__dlpack__(),
            lambda: on_default.__dlpack__(stream=producer),
            lambda: on_default.__dlpack__(dl_device=CPU),
        ):
            with refused(gpu, [blocking], "cudaStreamIsCapturing: cudaErrorStreamCaptureImplicit"):
                refuse()


@pytest.mark.parametrize("kind", ["DEVICE", "PINNED", "MANAGED"])
def test_data_of_a_capturing_stream_is_not_copied_to_the_host_S6(gpu, streams, kind):
    producer, _ = streams
    array = gpu.array(producer, type=getattr(gpu.probe, kind))
    with gpu.capture(producer), refused(gpu, [producer], "captures a graph: the host cannot wait for it"):
        array.__dlpack__(dl_device=CPU)


def test_data_of_other_streams_is_copied_to_the_host_while_a_stream_captures_S6(gpu, streams):
    producer, consumer = streams
    array = gpu.probe.Array((64,), producer)
    gpu.fill_late(producer, array.address, 7, 64)
    with gpu.capture(consumer):
        taken = Taken(array.__dlpack__(dl_device=CPU))
        assert taken.values() == [7] * 64
        taken.delete()
        assert gpu.capturing(consumer) == ACTIVE


def test_no_tensor_is_released_on_a_capturing_stream_S6(gpu, streams):
    producer, consumer = streams
    view = gpu.probe.consume(gpu.array(producer), consumer)
    with gpu.capture(consumer), refused(gpu, [consumer], "keep the view as long as the graph"):
        view.release_on(consumer)
    assert view.holds
    view.release_on(consumer)


# ---- Captures by torch ----


def test_torch_captures_work_on_memory_of_the_probe_S6(gpu, torch):
    producer = gpu.stream("producer")
    array = gpu.array(producer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor = torch.from_dlpack(array)  # nothing is pending there
        tensor.add_(7)
    assert gpu.total(producer, array.address) == 0
    for times in (1, 2):
        graph.replay()
        torch.cuda.synchronize()
        assert gpu.total(producer, array.address) == 7 * times * SIZE


def test_torch_s_capture_has_no_wait_for_pending_work_outside_S6(gpu, torch):
    producer = gpu.stream("producer")
    array, counts = gpu.array(producer), torch.zeros(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        with gpu.relaxed():
            gpu.fill_late(producer, array.address, 7)
        with refused(gpu, [stream], "cannot wait for the producer's work outside of it", by_library=True):
            torch.from_dlpack(array)
        counts.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert counts.tolist() == [1.0] * 8


def test_work_of_the_probe_on_torch_s_capturing_stream_is_in_the_graph_S6(gpu, torch):
    """An export and an import on the stream that captures make no call."""
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    array = gpu.array(side.cuda_stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        stream = torch.cuda.current_stream().cuda_stream
        assert stream == side.cuda_stream
        gpu.fill_late(stream, array.address, 5)
        tensor.add_(torch.from_dlpack(array))
        view = gpu.probe.consume(tensor, stream)
        gpu.sum(stream, view.data)
        assert gpu.capturing(stream) == ACTIVE
    for times in (1, 2):
        graph.replay()
        torch.cuda.synchronize()
        assert gpu.answer(stream) == 5 * times * SIZE
    view.release()


def test_torch_s_capture_is_joined_by_a_stream_of_the_probe_and_joins_it_again_S6(gpu, torch):
    consumer = gpu.stream("consumer")
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    result = gpu.array(consumer)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        tensor.add_(5)
        view = gpu.probe.consume(tensor, consumer)
        assert gpu.capturing(consumer) == ACTIVE
        gpu.sum(consumer, view.data)
        result.__dlpack__(stream=stream)
    graph.replay()
    torch.cuda.synchronize()
    assert gpu.answer(stream) == 5 * SIZE
    view.release()


def test_torch_s_allocator_is_left_alone_by_a_capture_that_refused_S6(gpu, torch):
    """After a refusal, torch allocates, captures and launches as usual."""
    on_default = gpu.array(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # waits for the device first
        stream = torch.cuda.current_stream().cuda_stream
        with gpu.relaxed():
            gpu.fill_late(LEGACY, on_default.address, 7)
        with refused(gpu, [stream], "cannot wait for the producer's work outside of it", by_library=True):
            torch.from_dlpack(on_default)
        made = torch.full((16,), 3.0, device="cuda")
    graph.replay()
    torch.cuda.synchronize()
    assert made.sum().item() == 48.0

"""Array libraries and an extension exchange on a GPU, each on its own stream, while slow kernels run (S1, S2, S4,
X4)."""

import importlib

import pytest
from streams.gpu import libraries
from streams.gpu.device import LEGACY, SIZE, Unordered, must_differ


@pytest.fixture
def stream(gpu):
    """The current stream of the library."""
    return gpu.stream("library")


# ---- Arrays of the probe, imported by libraries ----


def test_a_library_reads_after_the_producer_s_work_S1(gpu, library, stream):
    producer = gpu.stream("producer")
    array = gpu.array(producer)
    with library.on(stream):
        assert library.total(array) == 0  # and the library is compiled and loaded
        gpu.fill_late(producer, array.address, 7)
        assert library.total(array) == 7 * SIZE


def test_a_library_reads_too_early_without_the_order_S1(gpu, library, stream):
    """The counterpart of the test above, without the order."""
    producer = gpu.stream("producer")
    array = gpu.array(producer)
    with library.on(stream):
        assert library.total(array) == 0
        gpu.fill_late(producer, array.address, 7)
        total = library.total(Unordered(array))
    must_differ(total, 7 * SIZE)
    assert total < 7 * SIZE


@pytest.mark.parametrize("home", ["another stream", LEGACY])
def test_a_library_on_its_default_stream_reads_after_the_producer_s_work_S2(gpu, library, home):
    producer = gpu.stream("producer") if home != LEGACY else LEGACY
    array = gpu.array(producer)
    assert library.total(array) == 0
    gpu.fill_late(producer, array.address, 7)
    assert library.total(array) == 7 * SIZE


def test_a_library_reads_the_memory_that_it_was_given_P3(gpu, torch):
    array = gpu.array(gpu.stream("producer"))
    assert torch.from_dlpack(array).data_ptr() == array.address


# ---- Arrays of libraries, imported by the probe ----


class Interface:
    """An array of the probe for libraries without DLPack."""

    def __init__(self, array):
        self.__cuda_array_interface__, self.array = array.__cuda_array_interface__, array


def test_an_array_of_a_library_is_read_after_its_work_S1_X4(gpu, library, stream):
    consumer = gpu.stream("consumer")
    with library.on(stream):
        array = library.late(7)  # arrays of Numba have the array interface only
        view = gpu.probe.consume(array, consumer, options=gpu.probe.ARRAY_INTERFACE_TOO)
    assert gpu.total(consumer, view.data) == 7 * SIZE
    view.release_on(consumer)


def test_an_array_of_a_library_is_read_too_early_if_another_stream_waits_S1(gpu, library, stream):
    """The counterpart of the test above, without the order."""
    if library.name == "numba":
        pytest.skip("numba: its arrays have no __dlpack__")
    consumer, bystander = gpu.stream("consumer"), gpu.stream("bystander")
    with library.on(stream):
        view = gpu.probe.consume(library.late(5).__dlpack__(stream=bystander), consumer)
        first = gpu.total(consumer, view.data)
    gpu.settle()
    assert gpu.total(consumer, view.data) == 5 * SIZE
    must_differ(first, 5 * SIZE)


def test_cupy_reads_an_array_interface_after_the_work_of_the_probe_S1(gpu, stream):
    cupy = libraries.load("cupy", gpu) and importlib.import_module("cupy")
    producer = gpu.stream("producer")
    array = gpu.array(producer)
    with cupy.cuda.ExternalStream(stream):
        assert int(cupy.asarray(Interface(array)).sum()) == 0
        gpu.fill_late(producer, array.address, 7)
        assert int(cupy.asarray(Interface(array)).sum()) == 7 * SIZE


def test_a_library_reuses_its_memory_after_the_work_of_the_consumer_S1(gpu, torch):
    """Torch caches memory for each stream: memory that is freed on a stream may be reused there at once."""
    stream, consumer = gpu.stream("library"), gpu.stream("consumer")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        tensor = torch.full((SIZE,), 7, dtype=torch.uint8, device="cuda")
        view = gpu.probe.consume(tensor, consumer)
        gpu.sum(consumer, view.data, delay=100_000_000)
        address = tensor.data_ptr()
        view.release_on(consumer)
        del tensor
        another = torch.full((SIZE,), 9, dtype=torch.uint8, device="cuda")
        assert another.data_ptr() != address  # the memory waits for the work of the consumer
        assert gpu.answer(consumer) == 7 * SIZE
        gpu.probe.collect()
        assert torch.empty(SIZE, dtype=torch.uint8, device="cuda").data_ptr() == address


def test_torch_uses_memory_at_once_that_is_released_without_waiting_S1(gpu, torch):
    """The counterpart of the test above, without the order."""
    stream = gpu.stream("library")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        tensor = torch.full((SIZE,), 7, dtype=torch.uint8, device="cuda")
        view = gpu.probe.consume(tensor, gpu.stream("consumer"))
        address = tensor.data_ptr()
        view.release()
        del tensor
        assert torch.empty(SIZE, dtype=torch.uint8, device="cuda").data_ptr() == address


def test_on_torch_s_own_stream_no_call_is_made_X4_S4(gpu, torch):
    stream = gpu.stream("library")
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
        if not hasattr(type(tensor), "__dlpack_c_exchange_api__"):
            pytest.skip("this torch has no exchange table")
        gpu.fill_late(stream, tensor.data_ptr(), 7)
        assert gpu.probe.current_work(tensor, 0) == stream
        gpu.calls()
        view = gpu.probe.consume(tensor, stream)
        assert [call for call in gpu.calls() if "Device" not in call] == []
        assert gpu.total(stream, view.data) == 7 * SIZE
        view.release_on(stream)


def test_torch_s_default_stream_is_the_legacy_one_X4_X8(gpu, torch):
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    if not hasattr(type(tensor), "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no exchange table")
    assert gpu.probe.current_work(tensor, 0) in (0, LEGACY)
    consumer = gpu.stream("consumer")
    gpu.fill_late(LEGACY, tensor.data_ptr(), 7)
    view = gpu.probe.consume(tensor, consumer)
    assert gpu.total(consumer, view.data) == 7 * SIZE
    view.release_on(consumer)

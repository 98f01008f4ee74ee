"""Two extensions exchange on a GPU, each on its own stream, while slow kernels run: a missing wait gives wrong numbers
(S1, S2, S5, S8, S10, P5)."""

import os
import shutil
import subprocess
import sys
import threading

import pytest
from dltensor import CPU, Taken
from streams.gpu.device import LEGACY, NON_BLOCKING, PER_THREAD, SIMULATED, SIZE, Unordered, must_differ

VERSION = {"max_version": (1, 3)}
SMALL = 64


@pytest.fixture
def streams(gpu):
    return gpu.stream("producer"), gpu.stream("consumer")


# ---- Between two extensions: S1 ----


def test_two_extensions_work_on_one_array_in_turn_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    for value in range(1, 7, 2):
        gpu.fill_late(producer, array.address, value)
        view = gpu.other.consume(array, consumer)
        gpu.sum(consumer, view.data)
        gpu.fill_late(consumer, view.data, value + 1)
        view.release_on(consumer)
        assert gpu.answer(consumer) == value * SIZE  # the host waits, so the next fill comes later


@pytest.mark.forbidden
def test_two_extensions_read_wrong_numbers_without_the_order_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    gpu.fill_late(producer, array.address, 7)
    view = gpu.other.consume(Unordered(array), consumer)
    total = gpu.total(consumer, view.data)
    must_differ(total, 7 * SIZE)
    assert total == 0


def test_two_extensions_never_have_the_host_wait_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer)
    gpu.fill_late(producer, array.address, 7)
    view = gpu.other.consume(array, consumer)
    gpu.sum(consumer, view.data)
    view.release_on(consumer)
    assert (gpu.pending(producer), gpu.pending(consumer), gpu.other.collect()) == (True, True, 1)
    assert gpu.answer(consumer) == 7 * SIZE
    assert gpu.other.collect() == 0


def test_two_extensions_on_one_stream_are_in_its_order_S4(gpu, streams):
    producer, _ = streams
    array = gpu.array(producer)
    gpu.fill_late(producer, array.address, 7)
    view = gpu.other.consume(array, producer)
    assert gpu.total(producer, view.data) == 7 * SIZE


@pytest.mark.forbidden  # for the simulation, two streams that write to two halves of one memory
def test_two_extensions_wait_for_all_pending_streams_S1(gpu, streams):
    producer, consumer = streams
    second = gpu.stream("second")
    array = gpu.array((producer, second))
    gpu.fill_late(second, array.address, 7, SIZE // 2)
    gpu.fill_late(producer, array.address + SIZE // 2, 5, SIZE // 2)
    view = gpu.other.consume(array, consumer)
    assert gpu.total(consumer, view.data) == (7 + 5) * SIZE // 2


def test_two_extensions_reuse_the_memory_only_after_the_work_on_it_S1(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer, 7)
    view = gpu.other.consume(array, consumer)
    gpu.sum(consumer, view.data, delay=100_000_000)
    view.release_on(consumer)
    del array
    assert gpu.other.collect() == 1  # the memory is kept
    another = gpu.probe.Array((SIZE,), producer)
    gpu.fill(producer, another.address, 9)
    gpu.synchronize(producer)
    assert gpu.answer(consumer) == 7 * SIZE


@pytest.mark.forbidden
def test_two_extensions_lose_the_memory_that_is_released_too_early_S1(gpu, streams):
    """The counterpart of the test above: without an order, the kernel reads the values of the other array."""
    producer, consumer = streams
    array = gpu.array(producer, 7)
    view = gpu.other.consume(array, consumer)
    gpu.sum(consumer, view.data, delay=100_000_000)
    view.release()
    del array
    another = gpu.probe.Array((SIZE,), producer)
    gpu.fill(producer, another.address, 9)
    gpu.synchronize(producer)
    total = gpu.answer(consumer)
    must_differ(total, 7 * SIZE)
    assert total == 9 * SIZE


# ---- Default streams: S2 ----


@pytest.mark.parametrize("flags", [NON_BLOCKING, 0])
@pytest.mark.parametrize("number", [None, LEGACY, PER_THREAD])
def test_two_extensions_are_in_order_on_default_streams_S2(gpu, number, flags):
    producer = gpu.stream("of flags", flags=flags)
    array = gpu.array(producer)
    gpu.fill_late(producer, array.address, 7)
    array.__dlpack__(stream=number)
    assert gpu.total(number or LEGACY, array.address) == 7 * SIZE


@pytest.mark.parametrize("home", [0, LEGACY, PER_THREAD])
def test_two_extensions_are_in_order_where_the_producer_is_on_a_default_stream_S2(gpu, streams, home):
    _, consumer = streams
    array = gpu.array(home)
    gpu.fill_late(home, array.address, 7)
    view = gpu.other.consume(array, consumer)
    assert gpu.total(consumer, view.data) == 7 * SIZE


def test_two_extensions_are_in_order_where_another_thread_queued_the_work_S2(gpu, streams):
    """The per-thread default stream of the other thread has no name here."""
    _, consumer = streams
    array, queued, done = gpu.array(PER_THREAD), threading.Event(), threading.Event()

    def work():
        gpu.fill_late(PER_THREAD, array.address, 7)
        queued.set()
        done.wait(60)

    worker = threading.Thread(target=work)
    worker.start()
    queued.wait(60)
    view = gpu.other.consume(array, consumer)
    total = gpu.total(consumer, view.data)
    done.set()
    worker.join()
    assert total == 7 * SIZE


def test_two_extensions_of_which_one_has_per_thread_default_streams_are_in_order_S2(gpu):
    array = gpu.array(gpu.stream("producer"))
    gpu.fill_late(gpu.stream("producer"), array.address, 7)
    view = gpu.other.consume(array, 0)
    assert gpu.total(PER_THREAD, view.data) == 7 * SIZE


# ---- Copies: P5, S8 ----


@pytest.mark.parametrize("keywords", [{}, VERSION, {"copy": True}])
def test_the_host_s_copy_is_ready_when_the_call_returns_P5(gpu, streams, keywords):
    producer, _ = streams
    array = gpu.probe.Array((SMALL,), producer)
    gpu.fill(producer, array.address, 0, SMALL)
    gpu.fill_late(producer, array.address, 7, SMALL)
    taken = Taken(array.__dlpack__(dl_device=CPU, **keywords))
    assert (taken.values(), taken.says.device) == ([7] * SMALL, CPU)
    taken.delete()


def test_rows_that_lie_apart_are_copied_to_the_host_P5(gpu, streams):
    producer, _ = streams
    array = gpu.probe.Array((3, 4), producer, strides=(16, 1), size=SMALL)
    for row in range(3):
        gpu.fill(producer, array.address + 16 * row, row + 1, 4)
    taken = Taken(array.__dlpack__(dl_device=CPU))
    assert taken.values() == [[1] * 4, [2] * 4, [3] * 4]
    taken.delete()


@pytest.mark.parametrize("kind", ["PINNED", "MANAGED"])
def test_the_host_reads_pinned_and_managed_memory_when_the_work_is_done_S10(gpu, streams, kind):
    producer, _ = streams
    array = gpu.probe.Array((SMALL,), producer, type=getattr(gpu.probe, kind))
    gpu.fill(producer, array.address, 0, SMALL)
    gpu.fill_late(producer, array.address, 7, SMALL)
    taken = Taken(array.__dlpack__(dl_device=CPU))
    assert (taken.values(), taken.says.data) == ([7] * SMALL, array.address)
    taken.delete()


def test_managed_memory_is_in_order_on_the_gpu_S1_D9(gpu, streams):
    producer, consumer = streams
    array = gpu.array(producer, type=gpu.probe.MANAGED)
    gpu.fill_late(producer, array.address, 7)
    view = gpu.other.consume(array, consumer, device=gpu.probe.MANAGED)
    assert gpu.total(consumer, view.data) == 7 * SIZE
    view.release_on(consumer)


# ---- Two GPUs: S5 ----


@pytest.mark.parametrize("current", [0, 1])
def test_two_gpus_exchange_whichever_is_current_S5(two, current):
    producer, consumer = two.stream("producer", 1), two.stream("consumer", 1)
    array = two.array(producer, device=1)
    with two.on_device(1):
        two.fill_late(producer, array.address, 7)
    with two.on_device(current):
        view = two.other.consume(array, consumer)
        assert two.device == current
    with two.on_device(1):
        assert two.total(consumer, view.data) == 7 * SIZE


def test_two_gpus_order_a_stream_of_the_one_after_one_of_the_other_S5(two):
    producer, consumer = two.stream("producer", 1), two.stream("consumer", 0)
    array, mine = two.array(producer, device=1), two.array(consumer)
    with two.on_device(1):
        two.fill_late(producer, array.address, 7)
    array.__dlpack__(stream=consumer)
    two.runtime("MemcpyPeerAsync", mine.address, 0, array.address, 1, SIZE, consumer)
    assert two.total(consumer, mine.address) == 7 * SIZE


def test_two_gpus_have_default_streams_each_S5(two):
    producer = two.stream("producer", 1)
    array = two.array(producer, device=1)
    with two.on_device(1):
        two.fill_late(producer, array.address, 7)
    array.__dlpack__()
    with two.on_device(1):
        assert two.total(LEGACY, array.address) == 7 * SIZE


# ---- Under compute-sanitizer ----

# Without managed memory: a mistake with it can stop the GPU, and other tests come after this one.
SANITIZED = "(in_order or in_turn or wait_for_all or copied or host) and not never and not gpus and not managed"


def test_compute_sanitizer_finds_nothing_in_these(gpu):
    """compute-sanitizer may run kernels one after the other: run only the tests of ordered work."""
    if SIMULATED:
        pytest.skip("a simulated GPU has no kernels for compute-sanitizer")
    folders = [os.environ.get("PATH", ""), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")]
    tool = shutil.which("compute-sanitizer", path=os.pathsep.join(folders))
    if tool is None:
        pytest.skip("no compute-sanitizer on the path or in CUDA_HOME")
    call = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); cuda.cuDevicePrimaryCtxReset(0)"
    tried = subprocess.run([tool, sys.executable, "-c", call], capture_output=True, text=True)
    if tried.returncode != 0 or "ERROR SUMMARY: 0 errors" not in tried.stdout or "not supported" in tried.stdout:
        pytest.skip(f"compute-sanitizer does not run on this machine: {tried.stdout.strip().splitlines()[-1:]}")
    done = subprocess.run(
        [tool, "--error-exitcode", "86", sys.executable, "-m", "pytest", "-q", __file__, "-k", SANITIZED],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr

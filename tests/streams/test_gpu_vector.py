"""examples/gpu_vector on the simulated runtimes: a type that owns device memory and finds the runtime at run time (C3,
P5, S1, S8)."""

import gc
import importlib
import subprocess
import sys

import pytest
from array_libraries import needs_versioned_numpy
from dltensor import CPU, Taken
from optional import numpy

FLOAT32 = 2 << 24 | 32 << 16 | 1
VERSION = {"max_version": (1, 3)}


@pytest.fixture
def Vector(platform, sim):
    vector = importlib.import_module(f"{platform.name}_vector").Vector
    yield vector
    gc.collect()
    sim.control("settle")
    vector([])  # releases the waiting tensors


class Interface:
    """An array of a library without DLPack."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        return self.array.__cuda_array_interface__


def stream_of(vector):
    return vector.__cuda_array_interface__["stream"]


def test_values_come_back_S1(sim, Vector):
    assert Vector([1, 2.5, -3]).tolist() == [1, 2.5, -3]
    assert Vector([]).tolist() == []
    assert Vector([4, 5], device=2).__dlpack_device__()[1] == 2


@needs_versioned_numpy
def test_numpy_gets_a_copy_when_the_work_is_done_P5(sim, Vector):
    vector, source = Vector([0] * 5), Vector(range(5))
    vector.assign(source)
    assert numpy.from_dlpack(vector, device="cpu").tolist() == [0, 1, 2, 3, 4]


def test_a_consumer_gets_the_memory_in_place_behind_the_work_S1(sim, platform, Vector):
    vector, ones, consumer = Vector([0] * 64), Vector([1] * 64), sim.stream()
    address = vector.__cuda_array_interface__["data"][0]
    with sim.held(stream_of(vector)):
        vector.assign(ones)
        view = platform.probe.consume(vector, consumer)
        assert view.data == address
    copy = Vector.from_dlpack(vector)
    assert copy.tolist() == [1] * 64
    view.release_on(consumer)


def test_a_copy_on_the_device_has_memory_of_its_own_and_comes_behind_the_work_C3(sim, platform, Vector):
    vector, ones = Vector([0] * 16), Vector([1] * 16)
    consumer = sim.stream()
    with sim.held(stream_of(vector)):
        vector.assign(ones)
        taken = Taken(vector.__dlpack__(copy=True, stream=consumer, **VERSION))
        assert taken.says.data != vector.__cuda_array_interface__["data"][0]
        assert taken.says.flags & 2  # IS_COPIED
        sim.fill(consumer, taken.says.data, 0, 64)  # ordered after the copy
    del vector, ones  # the memory is freed after the copy
    sim.check(consumer, taken.says.data, 0, 64)
    taken.delete()


def test_a_copy_on_the_device_has_the_values_of_the_call_C3_S1(sim, platform, Vector):
    vector, consumer = Vector([0] * 16), sim.stream()
    with sim.held(stream_of(vector)):
        taken = Taken(vector.__dlpack__(copy=True, stream=consumer, **VERSION))
        vector.assign(Vector([1] * 16))
    sim.check(consumer, taken.says.data, 0, 64)
    taken.delete()
    assert vector.tolist() == [1] * 16


def test_a_copy_of_another_librarys_memory_is_made_before_that_is_released_C3_S1(sim, platform, Vector):
    stream, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((16,), stream, dtype=FLOAT32)
    sim.fill(stream, array.address, 0, 64)
    vector = Vector.from_dlpack(array)
    taken = Taken(vector.__dlpack__(copy=True, stream=consumer, **VERSION))
    del vector, array
    sim.check(consumer, taken.says.data, 0, 64)
    taken.delete()


def test_assign_to_another_librarys_memory_is_done_when_it_returns_S1(sim, platform, Vector):
    stream = sim.stream()
    array = platform.probe.Array((4,), stream, dtype=FLOAT32)
    sim.fill(stream, array.address, 9, 16)
    Vector.from_dlpack(array).assign(Vector([0] * 4))
    sim.check(stream, array.address, 0, 16)


def test_a_copy_to_the_cpu_is_the_headers_C3_P5(sim, Vector):
    taken = Taken(Vector([1, 2]).__dlpack__(copy=True, dl_device=CPU, **VERSION))
    assert (taken.says.device, taken.says.flags & 2) == (CPU, 2)
    taken.delete()


def test_from_dlpack_keeps_the_memory_and_its_rights_C7(sim, platform, Vector):
    stream = sim.stream()
    array = platform.probe.Array((3,), stream, dtype=FLOAT32, flags=1)
    sim.fill(stream, array.address, 0, 12)
    vector = Vector.from_dlpack(array)
    assert vector.__cuda_array_interface__["data"] == (array.address, True)
    assert vector.tolist() == [0, 0, 0]
    with pytest.raises(BufferError, match="read-only"):
        vector.assign(Vector([1, 2, 3]))
    again = Vector.from_dlpack(vector)
    del array, vector
    assert again.tolist() == [0, 0, 0]


def test_memory_whose_rights_are_unknown_is_given_as_read_only_C7(sim, platform, Vector):
    array = platform.probe.Array((3,), sim.stream(), dtype=FLOAT32)
    vector = Vector.from_dlpack(array.__dlpack__(stream=-1))  # a legacy capsule
    assert vector.__cuda_array_interface__["data"] == (array.address, True)


def test_from_dlpack_to_the_cpu_is_refused_before_any_copy_C3(sim, platform, Vector):
    array = platform.probe.Array((3,), sim.stream(), dtype=FLOAT32)
    sim.calls()
    with pytest.raises(BufferError, match="device is cpu, (cuda|rocm) was asked for"):
        Vector.from_dlpack(array, device="cpu")
    assert sim.calls() == []


def test_in_a_capture_assign_is_part_of_the_graph_and_keeps_its_argument_S6(sim, platform, Vector, monkeypatch):
    vector, stream, reported = Vector([9] * 4), sim.stream(), []
    array = platform.probe.Array((4,), stream, dtype=FLOAT32)
    sim.synchronize(stream)
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(str(report.exc_value)))
    with sim.capture(stream_of(vector)):
        vector.assign(array)
    assert len(reported) == 1 and "captures a graph" in reported[0]
    address = array.address
    del array
    assert sim.live("memory") == 2  # leaked, for the graph
    sim.runtime("Free", address)


@pytest.mark.parametrize("how", ["DLPack", "the array interface"])
def test_assign_reads_behind_the_producer_and_releases_behind_itself_S1(sim, platform, Vector, how):
    stream = sim.stream()
    array = platform.probe.Array((4,), stream, dtype=FLOAT32)
    vector = Vector([9] * 4)

    with sim.held(stream):
        sim.fill(stream, array.address, 0, 16)
        vector.assign(array if how == "DLPack" else Interface(array))
    assert vector.tolist() == [0] * 4


def test_assign_keeps_the_array_until_its_copy_is_made_S1(sim, platform, Vector):
    vector, stream = Vector([9] * 4), sim.stream()
    array = platform.probe.Array((4,), stream, dtype=FLOAT32)
    sim.fill(stream, array.address, 0, 16)
    sim.synchronize(stream)
    with sim.held(stream_of(vector)):
        vector.assign(array)
        del array
        assert sim.live("memory") == 2
    assert vector.tolist() == [0] * 4
    Vector([])
    sim.synchronize(stream)
    assert sim.live("memory") == 1


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda probe, stream: probe.Array((5,), stream, dtype=FLOAT32), r"x: shape\[0\] is 5, 4 was asked"),
        (lambda probe, stream: probe.Array((4,), stream), "x: dtype is uint8, float32 was asked for"),
        (lambda probe, stream: probe.Array((4,), type=1, dtype=FLOAT32), "x: device is cpu"),
    ],
)
def test_assign_refuses_arrays_that_do_not_fit_C9(sim, platform, Vector, make, text):
    vector, array = Vector([9] * 4), make(platform.probe, sim.stream())
    with pytest.raises(BufferError, match=text):
        vector.assign(array)
    assert vector.tolist() == [9] * 4


def test_assign_refuses_another_device(sim, Vector):
    with pytest.raises(BufferError, match="x is on device 1, device 0 was asked for"):
        Vector([1]).assign(Vector([2], device=1))


def test_memory_is_freed_when_the_work_of_consumers_that_released_early_is_done_S1(sim, platform, Vector):
    """Some consumers call the deleter while their stream still reads."""
    vector, consumer = Vector([0] * 64), sim.stream()
    taken = Taken(vector.__dlpack__(stream=consumer, **VERSION))
    del vector
    sim.control("delay", 20_000)
    sim.expect(consumer, taken.says.data, 0, 256)
    taken.delete()
    assert (sim.live("memory"), sim.pending(consumer)) == (0, 0)


FUNCTIONS = "GetDevice SetDevice StreamCreateWithFlags Malloc MemcpyAsync StreamSynchronize StreamIsCapturing".split()


@pytest.mark.parametrize("function", [*FUNCTIONS, "EventCreateWithFlags", "EventRecord", "StreamWaitEvent"])
@pytest.mark.parametrize("number", range(1, 5))
def test_a_call_that_fails_is_an_exception_and_leaks_nothing_S9(sim, platform, Vector, function, number):
    one, other, kept = Vector([1, 2]), Vector([3, 4]), []
    with sim.failing(function, number):
        try:
            one.assign(other)
            kept.append(Vector.from_dlpack(other))
            kept.append(other.__dlpack__(copy=True, **VERSION))
            kept.append(other.tolist())
        except RuntimeError as error:
            assert "a kernel failed" in str(error)
    assert len(one.tolist()) == 2


def test_a_list_may_change_while_it_is_read(sim, Vector):
    class Number:
        def __float__(self):
            values.clear()
            return 1.0

    values = [Number(), 2, 3]
    assert Vector(values).tolist() == [1, 2, 3]


@pytest.mark.parametrize("what", [[1, "a"], 3])
def test_values_that_are_no_numbers_are_a_type_error(sim, Vector, what):
    with pytest.raises(TypeError):
        Vector(what)


def test_it_imports_without_the_runtime_and_says_what_is_missing_S9(platform):
    code = f"import {platform.name}_vector as m\ntry:\n    m.Vector([1])\nexcept RuntimeError as e:\n    print(e)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{platform.runtime}GetDevice: there is no {platform.library.name}")

"""Adapters of libraries on the simulated runtime of tests/streams, for the conformance suite's tests of streams.

Streams is a small library in Python, which uses no header of this project and makes the mistake that MISTAKE names.
Probe is tests/streams/device_probe.c, which uses the headers. This module is a pytest plugin too: for each mistake it
runs the tests that must catch it, and writes the results to the file of --mistakes as lines of JSON.
"""

import atexit
import ctypes
import os
from pathlib import Path

import _dlpack_conformance as native
import mistakes
import pytest
from dlpack_conformance import Adapter
from dlpack_conformance.adapter import DTYPES, NAMES, compact
from dlpack_conformance.runtime import CUDA, ROCM, TO_HOST, Runtime

CPU = (1, 0)
MISTAKE = ""

# For each mistake, the beginning of the names of the tests that must catch it. "/": on CUDA and on ROCm.
MISTAKES = {
    "0_is_a_handle": "S2_0_is_refused_on_CUDA/",
    "1_is_a_handle": "/S3_1_and_2_are_refused_on_ROCm[1]",
    "2_is_a_handle": "/S3_1_and_2_are_refused_on_ROCm[2]",
    "minus_2_is_a_handle": "S2_a_number_below_minus_1_is_refused",
    "default_is_refused": "S2_a_stream_is_accepted[default]",
    "per_thread_is_refused": "S2_a_stream_is_accepted[per-thread]/",
    "handles_are_refused": "S2_a_stream_is_accepted[handle]",
    "minus_1_is_refused": "S2_a_stream_is_accepted[-1]",
    "None_is_refused": "S2_None_is_accepted",
    "nothing_is_ordered": "S1_the_consumers_stream_runs_after_the_producers_work[handle]",
    "None_orders_nothing": "S1_the_consumers_stream_runs_after_the_producers_work[None]",
    "default_orders_nothing": "S1_the_consumers_stream_runs_after_the_producers_work[default]",
    "per_thread_orders_nothing": "S1_the_consumers_stream_runs_after_the_producers_work[per-thread]/",
    "own_stream_is_another": "S4_the_producers_own_stream_may_be_given",
    "order_is_the_other_way_round": "S1_the_consumers_stream_runs_after_the_producers_work[handle]",
    "the_host_waits": "S1_the_host_waits_for_the_producer",
    "minus_1_waits": "S1_minus_1_waits_for_nothing",
    "device_stays_changed": "S5_the_current_device_after_an_export[handle]",
    "device_stays_changed_if_refused": "S5_the_current_device_after_an_export[refused]",
    "text_is_a_stream": "S7_a_stream_that_is_no_integer",
    "copy_to_the_host_is_early": "P5_data_that_is_asked_for_on_the_CPU_is_ready",
    "copy_to_the_host_takes_a_stream": "P6_with_the_CPU_as_device_a_stream_is_refused",
    "the_method_tells_the_CPU": "P8_the_device_of_an_array_on_a_GPU_is_told",
    "the_capsule_tells_the_CPU": "P8_the_device_of_an_array_on_a_GPU_is_told",
    "memory_is_not_kept": "K5_the_memory_lives_until_the_deleter_is_called",
    "0_is_passed": "C4_a_number_of_the_standard_is_passed_as_stream/",
    "1_is_passed": "/C4_a_number_of_the_standard_is_passed_as_stream",
    "another_stream_is_passed": "C4_the_stream_that_is_passed",
    "the_stream_that_is_passed_is_not_used": "S1_the_library_reads_after_the_producers_work",
    "byte_offset_is_ignored": "D1_byte_offset_is_added_on_a_GPU",
    "taken_is_never_deleted": "K4_the_deleter_of_memory_on_a_GPU_is_called_once[taken]",
    "refused_is_never_deleted": "K4_the_deleter_of_memory_on_a_GPU_is_called_once[refused]",
}


def mistakes_of(kind):
    """The mistakes that a library can make on CUDA or ROCm, and the tests that must catch them."""
    for mistake, tests in MISTAKES.items():
        on_cuda, _, on_rocm = tests.partition("/") if "/" in tests else (tests, "", tests)
        if on_cuda if kind == CUDA else on_rocm:
            yield mistake, on_cuda if kind == CUDA else on_rocm


def pytest_addoption(parser):
    parser.addoption("--mistakes", help="the file that the results of the mistakes are appended to")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    global MISTAKE
    kind = ROCM if session.config.getoption("--dlpack").endswith("ROCm") else CUDA
    for MISTAKE, tests in mistakes_of(kind):
        recorder = mistakes.Failures()
        session.config.pluginmanager.register(recorder)
        for item in session.items:
            if item.name.startswith("test_" + tests):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        session.config.pluginmanager.unregister(recorder)
        mistakes.write(session.config.getoption("--mistakes"), MISTAKE, recorder.failed, recorder.ran)
    return True


class Machine(Adapter):
    """What both libraries share: a new simulated machine, whose violations are written to a file at the end."""

    kind = CUDA
    standard = "2025.12"
    views = {}

    def __init__(self):
        name = "cuda" if self.kind == CUDA else "rocm"
        folder = Path(os.environ["DLPACK_PY_BUILD_DIR"])
        (path,) = (path for path in folder.glob(f"libsimulated_{name}.*") if path.suffix in (".so", ".dylib", ".dll"))
        self.runtime, self.device = str(path), (self.kind, 0)
        self.simulation = ctypes.CDLL(self.runtime)
        self.simulation.simulated_violations.restype = ctypes.c_size_t
        self.simulation.simulated_violation.restype = ctypes.c_char_p
        self.simulation.simulated_reset(3)
        self.gpu = Runtime(self.kind, self.runtime)
        self.stream = self.gpu.new_stream()
        self.choices = {"the stream of from_dlpack": "its own", "an order of two streams": "on the device"}
        self.choices["the current device after an export"] = "unchanged"
        self.choices |= {f"stream={stream!r} on a GPU": "refused" for stream in ("1", 1.0, (1,))}
        if "STREAMS_VIOLATIONS" in os.environ:
            atexit.register(self.write_violations, os.environ["STREAMS_VIOLATIONS"])

    def write_violations(self, path):
        count = self.simulation.simulated_violations()
        found = [self.simulation.simulated_violation(ctypes.c_size_t(i)).decode() for i in range(count)]
        Path(path).write_text("\n".join(found))

    def current_stream(self):
        return self.stream

    def read(self, address, size):
        return self.gpu.read(address, size, self.stream)

    def version(self):
        return "0"


# ---- A library in Python ----


class Memory:
    """Memory of the device, which is freed with its last user."""

    def __init__(self, gpu, data):
        self.gpu, self.address = gpu, gpu.allocate(data)
        gpu.memory.remove(self.address)

    def __del__(self):
        self.gpu.settle()
        self.gpu.call("Free", self.address)


class Array:
    def __init__(self, library, dtype, shape, data):
        self.library, self.dtype, self.shape, self.size = library, dtype, shape, len(data)
        self.memory = Memory(library.gpu, data)

    def __dlpack_device__(self):
        return CPU if MISTAKE == "the_method_tells_the_CPU" else self.library.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        library, gpu = self.library, self.library.gpu
        if dl_device not in (None, library.device, CPU):
            raise BufferError(f"device {dl_device} is not supported")
        fields = {"shape": self.shape, "strides": compact(self.shape), "dtype": DTYPES[self.dtype]}
        before = gpu.device()
        gpu.set_device(library.device[1])
        try:
            self.order(stream, dl_device)
            if dl_device == CPU:
                data = ctypes.create_string_buffer(self.size)
                arguments = (data, self.memory.address, ctypes.c_size_t(self.size), ctypes.c_int(TO_HOST))
                early = MISTAKE == "copy_to_the_host_is_early"
                gpu.call("MemcpyAsync", *arguments, gpu.handle(gpu.new_stream() if early else library.stream))
                gpu.settle() if not early else library.wait_for_copy()
                fields["values"] = data.raw
            else:
                device = CPU if MISTAKE == "the_capsule_tells_the_CPU" else library.device
                keep = None if MISTAKE == "memory_is_not_kept" else [self.memory].clear
                fields |= {"data": self.memory.address, "device": device}
                fields |= {"on_delete": keep} if keep else {}
        except Exception:
            if MISTAKE != "device_stays_changed_if_refused":
                gpu.set_device(before)
            raise
        if MISTAKE != "device_stays_changed":
            gpu.set_device(before)
        return native.Managed(bool(max_version and max_version[0] >= 1), **fields).capsule()

    def order(self, stream, dl_device):
        """Orders the stream of the consumer after that of the library."""
        library, gpu = self.library, self.library.gpu
        if MISTAKE == "text_is_a_stream" and isinstance(stream, str):
            stream = 1 if library.kind == CUDA else 0
        if stream is not None and not isinstance(stream, int):
            raise TypeError("stream is no integer")
        if dl_device == CPU:
            if stream is not None and MISTAKE != "copy_to_the_host_takes_a_stream":
                raise ValueError("no stream goes with the CPU")
            return
        self.refuse(stream)
        name = {None: "None", 2: "per_thread"}.get(stream, "default" if stream in (0, 1) else "")
        if MISTAKE in ("nothing_is_ordered", f"{name}_orders_nothing"):
            return
        if MISTAKE == "the_host_waits" or (MISTAKE == "minus_1_waits" and stream == -1):
            gpu.wait(library.stream)
        elif MISTAKE == "order_is_the_other_way_round":
            gpu.order(stream, library.stream)
        elif library.kind == ROCM and stream in (1, 2):
            pass  # no handle of the runtime
        elif MISTAKE == "own_stream_is_another" and stream == library.stream:
            self.memory = Memory(gpu, bytes(self.size))
        elif stream != -1 and stream != library.stream and not (stream is not None and stream < -1):
            gpu.order(library.stream, stream)

    def refuse(self, stream):
        """Raises an exception for the numbers that the standard does not have."""
        is_cuda = self.library.kind == CUDA
        if stream == 0 and is_cuda and MISTAKE != "0_is_a_handle":
            raise ValueError("stream=0 is ambiguous")
        if stream in (1, 2) and not is_cuda and MISTAKE != f"{stream}_is_a_handle":
            raise ValueError("1 and 2 are no streams of ROCm")
        if stream is not None and stream < -1 and MISTAKE != "minus_2_is_a_handle":
            raise ValueError("negative")
        if (
            (MISTAKE == "default_is_refused" and stream == (1 if is_cuda else 0))
            or (MISTAKE == "per_thread_is_refused" and stream == 2)
            or (MISTAKE == "handles_are_refused" and stream is not None and stream > 2)
            or (MISTAKE == "minus_1_is_refused" and stream == -1)
            or (MISTAKE == "None_is_refused" and stream is None)
        ):
            raise ValueError("not supported")


class View:
    """What the library took."""

    def __init__(self, taken):
        self.taken, says = taken, taken.says
        offset = 0 if MISTAKE == "byte_offset_is_ignored" else says["byte_offset"]
        self.address, self.shape, self.strides = says["data"] + offset, says["shape"], says["strides"]
        self.dtype = NAMES.get(says["dtype"])


leaked = []


class Streams(Machine):
    name = "streams"

    def wait_for_copy(self):
        self.gpu.wait(self.gpu.streams[-1])

    def make_on_device(self, dtype, shape, data):
        return Array(self, dtype, shape, data)

    make = make_on_device

    def from_dlpack(self, x, **keywords):
        passed = {
            "0_is_passed": 0,
            "1_is_passed": 1,
            "another_stream_is_passed": None,
            "the_stream_that_is_passed_is_not_used": -3,
        }.get(MISTAKE, self.stream)
        if passed == -3:
            passed = self.gpu.new_stream()
        elif passed in (0, 1):  # the producer of the suite orders by a handle
            x = Forward(x, passed)
        taken = native.take(x, stream=passed, max_version=(1, 3))
        if NAMES.get(taken.says["dtype"]) is None:
            if MISTAKE == "refused_is_never_deleted":
                leaked.append(taken)
            raise BufferError("the dtype is not supported")
        if MISTAKE == "taken_is_never_deleted":
            leaked.append(taken)
        return View(taken)

    def describe(self, a):
        if isinstance(a, Array):
            return a.memory.address, a.shape, compact(a.shape), False, a.dtype
        return a.address, a.shape, a.strides, False, a.dtype

    def values(self, a):
        return self.read(a.address, self.size_of(a.shape, a.dtype))

    def size_of(self, shape, dtype):
        size = DTYPES[dtype][1] // 8
        for extent in shape:
            size *= extent
        return size


class Forward:
    """A producer that keeps to the number that was passed in what it records, and orders by another."""

    def __init__(self, offer, number):
        self.offer, self.number = offer, number

    def __dlpack__(self, *, stream, **keywords):
        capsule = self.offer.__dlpack__(stream=None, **keywords)
        self.offer.calls[-1]["stream"] = stream
        return capsule


class StreamsOfROCm(Streams):
    kind = ROCM


# ---- The headers of this project ----


class Probe(Machine):
    name = "device_probe"
    dtypes = ("uint8",)
    module = "cuda_probe"

    def __init__(self):
        import importlib

        super().__init__()
        self.probe = importlib.import_module(self.module)
        if hasattr(self.probe, "work"):
            self.probe.work(lambda kind, number: self.stream)

    def make_on_device(self, dtype, shape, data):
        made = getattr(self.probe, "Exchanged", self.probe.Array)(shape, (self.stream,))
        self.gpu.wait(self.stream)
        source = ctypes.create_string_buffer(data, len(data))
        self.gpu.call("Memcpy", made.address, source, ctypes.c_size_t(len(data)), ctypes.c_int(1))
        return made

    make = make_on_device

    def from_dlpack(self, x, **keywords):
        return self.probe.from_dlpack(self.stream, x, **keywords)

    def describe(self, a):
        if hasattr(a, "address"):
            return a.address, (a.size,), (1,), False, "uint8"
        return a.data, a.shape, a.strides, False, "uint8"

    def values(self, a):
        return self.read(a.data, a.shape[0])


class ProbeOfROCm(Probe):
    kind, module = ROCM, "rocm_probe"

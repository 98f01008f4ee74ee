"""A GPU in Python: the functions of the runtime, slow kernels, and the calls that the probe makes."""

import contextlib
import ctypes
import os

import pytest
from streams.simulation import Devices

# Errors, capture modes, and states of a capture, by number.
NOT_READY = 600
UNSUPPORTED, INVALIDATED, MERGE, UNJOINED, ISOLATION, IMPLICIT = 900, 901, 902, 904, 905, 906
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NONE, ACTIVE, SPOILED = 0, 1, 2

LEGACY, PER_THREAD = 1, 2
NON_BLOCKING = 1
RELEASE_THRESHOLD = 4
SIZE = 1 << 20  # the bytes of an array that is filled
LATE = 200_000_000  # the duration of a slow kernel, in nanoseconds

SIMULATED = "DLPACK_PY_SIMULATED_GPU" in os.environ  # the simulated runtime stands in for a GPU

POINTER, COUNT, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p


class Gpu(Devices):
    """The GPUs of this machine. Device 0 is current. A stream is created at its first use by name, and kept."""

    def __init__(self, probe, other):
        self.probe = probe
        self.other = other  # a second extension, with per-thread default streams
        self._library = ctypes.CDLL(probe.__file__)  # and the libraries that it is linked to
        self._library.gpu_call.restype = TEXT
        self._library.gpu_forget_calls.restype = COUNT
        self._streams = {}
        count = ctypes.c_int()
        self.runtime("GetDeviceCount", ctypes.byref(count))
        self.devices = count.value
        result = POINTER()
        self.runtime("MallocHost", ctypes.byref(result), 8)
        self._result = ctypes.c_uint64.from_address(result.value)
        self._warm_up()

    def _warm_up(self):
        """Launches each kernel once, because a first launch may wait for all other kernels. Keeps freed memory mapped:
        some tests free memory too early, and a kernel that uses unmapped memory would end the process."""
        memory, pool, never = POINTER(), POINTER(), ctypes.c_uint64(2**64 - 1)
        for device in range(self.devices):
            with self.on_device(device):
                self.runtime("DeviceGetDefaultMemPool", ctypes.byref(pool), device)
                self.runtime("MemPoolSetAttribute", pool, RELEASE_THRESHOLD, ctypes.byref(never))
                self.runtime("Malloc", ctypes.byref(memory), 8)
                self.fill(LEGACY, memory.value, 1, 8)
                assert self.total(LEGACY, memory.value, 8) == 8
                self.runtime("Free", memory)

    def call(self, function, *arguments):
        """The error of a function of the runtime. Integers are handles, addresses or plain numbers: all fit."""
        converted = [POINTER(x) if isinstance(x, int) else x for x in arguments]
        return getattr(self._library, "cuda" + function)(*converted)

    def runtime(self, function, *arguments):
        """Calls a function of the runtime, which must not fail."""
        error = self.call(function, *arguments)
        assert error == 0, f"cuda{function} fails with {error}"

    def last_error(self):
        return self.call("GetLastError")

    # ---- Streams and their work ----

    def stream(self, name, device=0, flags=NON_BLOCKING):
        """A stream by name. By default (flags), the default stream does not wait for it."""
        key = name, device, flags
        if key not in self._streams:
            handle = POINTER()
            with self.on_device(device):
                self.runtime("StreamCreateWithFlags", ctypes.byref(handle), flags)
            self._streams[key] = handle.value
        return self._streams[key]

    def event(self):
        """An event without timing, like the events of the header."""
        event = POINTER()
        self.runtime("EventCreateWithFlags", ctypes.byref(event), 2)
        return event.value

    def fill(self, stream, address, value, size=SIZE, delay=0):
        """Queues a kernel that waits for `delay` nanoseconds and then writes."""
        assert self._library.gpu_fill(*map(POINTER, (stream, address, value, size, delay))) == 0

    def fill_late(self, stream, address, value, size=SIZE):
        self.fill(stream, address, value, size, LATE)

    def sum(self, stream, address, size=SIZE, delay=0):
        """Queues a kernel that adds up the bytes. answer() waits for the sum."""
        result = ctypes.addressof(self._result)
        assert self._library.gpu_sum(*map(POINTER, (stream, address, size, result, delay))) == 0

    def answer(self, stream):
        self.synchronize(stream)
        return self._result.value

    def total(self, stream, address, size=SIZE):
        self.sum(stream, address, size)
        return self.answer(stream)

    def synchronize(self, stream):
        self.runtime("StreamSynchronize", stream)

    def settle(self):
        for device in range(self.devices):
            with self.on_device(device):
                self.runtime("DeviceSynchronize")

    def pending(self, stream):
        """Whether the stream has pending work."""
        error = self.call("StreamQuery", stream)
        assert error in (0, NOT_READY)
        if error == NOT_READY:
            self.last_error()
        return error == NOT_READY

    def pending_in_capture(self, stream):
        """Whether a stream that does not capture has pending work, while another stream captures."""
        with self.relaxed():
            return self.pending(stream)

    def array(self, stream, value=0, **fields):
        """A filled array of the probe, without pending work."""
        array = self.probe.Array((SIZE,), stream, **fields)
        with self.on_device(fields.get("device", 0)):
            self.fill(array_stream(stream), array.address, value)
            self.synchronize(array_stream(stream))
        return array

    # ---- Memory and captures ----

    def free_memory(self):
        free, total = COUNT(), COUNT()
        self.runtime("MemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    @contextlib.contextmanager
    def capture(self, stream, mode=GLOBAL, ends=0):
        """Captures a stream. The capture must end with the error `ends`. If `ends` is 0, runs the graph and waits."""
        graph, runnable = POINTER(), POINTER()
        self.runtime("StreamBeginCapture", stream, mode)
        try:
            yield
        finally:
            error = self.call("StreamEndCapture", stream, ctypes.byref(graph))
        assert error == ends, f"the capture ends with {error}"
        if error != 0:
            self.last_error()
        else:
            self.runtime("GraphInstantiateWithFlags", ctypes.byref(runnable), graph, ctypes.c_ulonglong(0))
            self.runtime("GraphLaunch", runnable, stream)
            self.synchronize(stream)
            self.runtime("GraphExecDestroy", runnable)
            self.runtime("GraphDestroy", graph)

    @contextlib.contextmanager
    def relaxed(self):
        mode = ctypes.c_int(RELAXED)
        self.runtime("ThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.runtime("ThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    # ---- The log ----

    def violations(self):
        """What the simulated runtime says is forbidden, since the last call of this method. On a GPU: nothing."""
        if not SIMULATED:
            return []
        self._library.simulated_violation.restype = TEXT
        self._library.simulated_violations.restype = COUNT
        numbers = map(COUNT, range(self._library.simulated_violations()))
        found = [self._library.simulated_violation(number).decode() for number in numbers]
        self._library.simulated_forgive()
        return found

    def calls(self):
        """The calls of the runtime by the probe since the last call of this method."""
        found, error = [], ctypes.c_int()
        while (name := self._library.gpu_call(COUNT(len(found)), ctypes.byref(error))) is not None:
            found.append(name.decode() + (f" -> {error.value}" if error.value else ""))
        assert self.forget_calls() == len(found), "too many calls to keep"
        return found

    def forget_calls(self):
        """Deletes the logged calls, and returns their number."""
        return self._library.gpu_forget_calls()


def array_stream(streams):
    """The first stream of the streams that an array is created with."""
    return streams[0] if isinstance(streams, tuple) else streams


class Unordered:
    """An array whose producer orders nothing, whatever stream the consumer passes."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**{**keywords, "stream": -1})

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def must_differ(total, expected):
    """Skips the test if unordered work gave the right sum by chance: then the test shows nothing."""
    if total == expected:
        pytest.skip("inconclusive: the numbers are right without an order, too")

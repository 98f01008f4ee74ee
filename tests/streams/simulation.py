"""The simulated runtime of CUDA or HIP in Python: its controls, the functions of the runtime, and the two probes."""

import contextlib
import ctypes
import importlib
import pathlib
import re

from collecting import PYPY, collect

# Errors of both runtimes, by number; capture modes; flags.
OUT_OF_MEMORY, LAUNCH_FAILURE = 2, 719
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
BLOCKING, NON_BLOCKING = 0, 1

POINTER, SIZE, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p


class Platform:
    """CUDA or ROCm: the differences between them in the specification of DLPack."""

    def __init__(self, name):
        self.name = name
        self.probe = importlib.import_module(f"{name}_probe")
        self.other = importlib.import_module(f"{name}_other")  # CUDA's has per-thread default streams
        folder = pathlib.Path(self.probe.__file__).parent
        self.library = next(p for p in folder.glob(f"libsimulated_{name}.*") if p.suffix in (".so", ".dylib", ".dll"))
        self.is_cuda = name == "cuda"
        self.runtime = "cuda" if self.is_cuda else "hip"
        self.DEVICE, self.PINNED, self.MANAGED = (2, 3, 13) if self.is_cuda else (10, 11, None)
        self.default = 1 if self.is_cuda else 0  # the number in DLPack
        self.default_name = "legacy" if self.is_cuda else "default"  # the name in the log
        self.launch_failure = f"{self.runtime}ErrorLaunchFailure, a kernel failed"


class Devices:
    """Functions of a simulated or a real runtime, by runtime()."""

    @property
    def device(self):
        current = ctypes.c_int()
        self.runtime("GetDevice", ctypes.byref(current))
        return current.value

    @contextlib.contextmanager
    def on_device(self, device):
        before = self.device
        self.runtime("SetDevice", device)
        try:
            yield
        finally:
            self.runtime("SetDevice", before)

    def capturing(self, stream):
        """The state of the capture of a stream, by number; 0: no capture."""
        state = ctypes.c_int()
        self.runtime("StreamIsCapturing", stream, ctypes.byref(state))
        return state.value


class Simulation(Devices):
    """A new machine with three devices.

    Streams and memory are handles and addresses. Objects have their names in the log: "stream 1", "memory 2".
    """

    def __init__(self, platform):
        self.platform = platform
        self._library = ctypes.CDLL(str(platform.library))
        for function, result in (("call", TEXT), ("violation", TEXT), ("calls", SIZE), ("violations", SIZE)):
            getattr(self._library, f"simulated_{function}").restype = result
        self._library.simulated_pending.restype = SIZE
        self._library.simulated_live.restype = SIZE
        self.reset()

    def control(self, function, *arguments):
        """A control of the simulation. Integers are handles, addresses or plain numbers: all fit."""
        converted = [POINTER(x) if isinstance(x, int) else x for x in arguments]
        return getattr(self._library, f"simulated_{function}")(*converted)

    def runtime(self, function, *arguments):
        """Calls a function of the runtime, which must not fail."""
        converted = [POINTER(x) if isinstance(x, int) else x for x in arguments]
        error = getattr(self._library, self.platform.runtime + function)(*converted)
        assert error == 0, f"{function} fails with {error}"

    def reset(self):
        self._names = {}
        self._library.simulated_reset(3)

    def watch_gil(self, yes=True):
        """Calls of the runtime with the GIL held are violations (S8). Works while there is one interpreter."""
        if not yes:
            check = None
        elif PYPY:  # has no ctypes.pythonapi
            import dltensor_capsules

            check = POINTER(dltensor_capsules.gil_check())
        else:
            check = ctypes.cast(ctypes.pythonapi.PyGILState_Check, POINTER)
        self._library.simulated_watch_lock(check)

    # ---- Streams and their work ----

    def stream(self, device=0, flags=NON_BLOCKING):
        """A new stream. By default (flags), the default stream does not wait for it."""
        handle = POINTER()
        with self.on_device(device):
            self.runtime("StreamCreateWithFlags", ctypes.byref(handle), flags)
        self._names[handle.value] = f"stream {len(self._names) + 1}"
        return handle.value

    def name(self, handle):
        """The name of a stream in the log."""
        defaults = {0: "default", 1: "legacy", 2: "per-thread"}
        return defaults.get(handle) or self._names[handle]

    def fill(self, stream, address, value, size):
        """Queues a kernel that writes."""
        assert self.control("fill", stream, address, value, size) == 0

    def expect(self, stream, address, value, size):
        """Queues a kernel that reads; an unexpected byte is a violation."""
        assert self.control("expect", stream, address, value, size) == 0

    def check(self, stream, address, value, size):
        """Runs expect() and waits for it: then the stream that allocated the memory may free it."""
        self.expect(stream, address, value, size)
        self.synchronize(stream)

    @contextlib.contextmanager
    def held(self, stream):
        """No work runs on the stream in the block. A call that blocks the host behind the stream is a violation."""
        self.control("hold", stream)
        yield
        self.control("let_go", stream)

    def synchronize(self, stream):
        self.runtime("StreamSynchronize", stream)

    def pending(self, stream):
        return self.control("pending", stream)

    # ---- Captures ----

    @contextlib.contextmanager
    def capture(self, stream, mode=GLOBAL):
        """Captures a stream, and checks that the block does not spoil the capture."""
        graph = POINTER()
        self.runtime("StreamBeginCapture", stream, mode)
        yield
        self.runtime("StreamEndCapture", stream, ctypes.byref(graph))
        self.runtime("GraphDestroy", graph)

    # ---- The log ----

    def calls(self):
        """The calls of the runtime since the last call of this method. Events are numbered from 1, by first use."""
        calls = [self.control("call", i).decode() for i in range(self._library.simulated_calls())]
        self._library.simulated_mark()
        numbers = {}
        return [re.sub(r"event \d+", lambda m: numbers.setdefault(m[0], f"event {len(numbers) + 1}"), x) for x in calls]

    def last_call(self):
        """The last call, which may be in progress."""
        return self.control("call", self._library.simulated_calls() - 1).decode()

    def violations(self):
        found = [self.control("violation", i).decode() for i in range(self._library.simulated_violations())]
        self._library.simulated_forgive()
        return found

    def live(self, kind):
        """The number of live objects of a kind. On PyPy, a collection frees the memory of dead objects first."""
        if kind == "memory":
            collect()
        return self.control("live", kind.encode())

    @contextlib.contextmanager
    def watched(self):
        """The block must not change the current device, the capture mode and the last error."""
        self._library.simulated_mark()
        self._library.simulated_begin()
        try:
            yield
        finally:
            self._library.simulated_end()

    @contextlib.contextmanager
    def failing(self, function, nth=1, times=1, error=LAUNCH_FAILURE):
        """Calls of a function of the runtime fail in the block; function None: calls of any function."""
        self._library.simulated_fail(function.encode() if function else None, nth, times, error)
        try:
            yield
        finally:
            self._library.simulated_fail(None, 0, 1, 0)

    def failed(self):
        """The number of calls that failed."""
        return self._library.simulated_failed()

"""The simulated runtime of CUDA or HIP from Python: its controls, the runtime's functions, and the two probes on it."""

import contextlib
import ctypes
import importlib
import re

# Errors of both runtimes, by number; capture modes; flags.
OUT_OF_MEMORY, LAUNCH_FAILURE = 2, 719
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
NON_BLOCKING = 1

POINTER, SIZE, TEXT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p


class Platform:
    """CUDA or ROCm: what differs between them, as the specification of DLPack has it."""

    def __init__(self, name):
        self.name = name
        self.probe = importlib.import_module(f"{name}_probe")
        self.other = importlib.import_module(f"{name}_other")  # another extension; CUDA's has per-thread streams
        self.is_cuda = name == "cuda"
        self.runtime = "cuda" if self.is_cuda else "hip"
        self.DEVICE, self.PINNED, self.MANAGED = (2, 3, 13) if self.is_cuda else (10, 11, None)
        self.default = 1 if self.is_cuda else 0  # as it crosses the protocol
        self.default_name = "legacy" if self.is_cuda else "default"  # in the log
        self.launch_failure = f"{self.runtime}ErrorLaunchFailure, a kernel failed"


class Devices:
    """What both a simulated and a real runtime are asked, by runtime()."""

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
        """The state of its capture, by number; 0: none."""
        state = ctypes.c_int()
        self.runtime("StreamIsCapturing", stream, ctypes.byref(state))
        return state.value


class Simulation(Devices):
    """A machine of three devices, in which nothing has happened yet.

    Streams and memory are handles and addresses. Objects have the names that the log has: "stream 1", "memory 2".
    """

    def __init__(self, platform):
        self.platform = platform
        self._library = ctypes.CDLL(platform.probe.__file__)  # and what it is linked to
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
        """A function of the runtime's, which must not fail."""
        converted = [POINTER(x) if isinstance(x, int) else x for x in arguments]
        error = getattr(self._library, self.platform.runtime + function)(*converted)
        assert error == 0, f"{function} fails with {error}"

    def reset(self):
        self._names = {}
        self._library.simulated_reset(3)

    def watch_gil(self):
        """Calls of the runtime with the GIL held are violations (S8). Works while there is one interpreter."""
        self._library.simulated_watch_lock(ctypes.cast(ctypes.pythonapi.PyGILState_Check, POINTER))

    # ---- Streams and their work ----

    def stream(self, device=0, flags=NON_BLOCKING):
        """A stream that is in no order with the default stream, if not told otherwise."""
        handle = POINTER()
        with self.on_device(device):
            self.runtime("StreamCreateWithFlags", ctypes.byref(handle), flags)
        self._names[handle.value] = f"stream {len(self._names) + 1}"
        return handle.value

    def name(self, handle):
        """What the log calls a stream."""
        defaults = {0: "default", 1: "legacy", 2: "per-thread"}
        return defaults.get(handle) or self._names[handle]

    def fill(self, stream, address, value, size):
        """A kernel that writes."""
        assert self.control("fill", stream, address, value, size) == 0

    def expect(self, stream, address, value, size):
        """A kernel that reads; what is not as expected is a violation."""
        assert self.control("expect", stream, address, value, size) == 0

    def check(self, stream, address, value, size):
        """The same, and it is done when this returns: memory that comes and goes in a stream's order may then go."""
        self.expect(stream, address, value, size)
        self.synchronize(stream)

    @contextlib.contextmanager
    def held(self, stream):
        """Nothing runs on the stream meanwhile, and what blocks the host behind it is a violation."""
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
        """A capture, which is spoiled by nothing that is done meanwhile."""
        graph = POINTER()
        self.runtime("StreamBeginCapture", stream, mode)
        yield
        self.runtime("StreamEndCapture", stream, ctypes.byref(graph))
        self.runtime("GraphDestroy", graph)

    # ---- What was done ----

    def calls(self):
        """The runtime's calls since the last look at them. Events are numbered anew, in order of appearance."""
        calls = [self.control("call", i).decode() for i in range(self._library.simulated_calls())]
        self._library.simulated_mark()
        numbers = {}
        return [re.sub(r"event \d+", lambda m: numbers.setdefault(m[0], f"event {len(numbers) + 1}"), x) for x in calls]

    def last_call(self):
        """It may be under way."""
        return self.control("call", self._library.simulated_calls() - 1).decode()

    def violations(self):
        found = [self.control("violation", i).decode() for i in range(self._library.simulated_violations())]
        self._library.simulated_forgive()
        return found

    def live(self, kind):
        """How many there are."""
        return self.control("live", kind.encode())

    @contextlib.contextmanager
    def watched(self):
        """What is done here leaves the current device, the capture mode and the last error as they were."""
        self._library.simulated_mark()
        self._library.simulated_begin()
        try:
            yield
        finally:
            self._library.simulated_end()

    @contextlib.contextmanager
    def failing(self, function, nth=1, times=1, error=LAUNCH_FAILURE):
        """Calls of the runtime's functions fail; function None: of any."""
        self._library.simulated_fail(function.encode() if function else None, nth, times, error)
        try:
            yield
        finally:
            self._library.simulated_fail(None, 0, 1, 0)

    def failed(self):
        """How many calls did."""
        return self._library.simulated_failed()

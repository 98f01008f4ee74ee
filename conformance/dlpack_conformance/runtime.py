"""The runtime of a GPU, CUDA's or HIP's, by ctypes: what the tests of streams need beside the library under test.

Streams have their numbers in DLPack here: of CUDA None and 1 are the legacy default stream and 2 is the per-thread
default stream, of ROCm None and 0 are the default stream. Larger numbers are handles.
"""

import ctypes
import ctypes.util
import os
import time

CUDA, ROCM = 2, 10  # device types
NOT_READY = 600
TO_DEVICE, TO_HOST, IN_DEVICE = 1, 2, 3  # directions of a copy
LATE = 0.2 * float(os.environ.get("DLPACK_PY_PATIENCE", "1"))  # seconds by which late work is late


def find(names):
    """The path of a library: the one that this process has loaded, else one that the system finds."""
    try:
        with open("/proc/self/maps") as maps:
            loaded = [line.split()[-1] for line in maps]
    except OSError:
        loaded = []
    for name in names:
        for path in loaded:
            if f"/lib{name}.so" in path or f"/lib{name}-" in path:
                return path
    for name in names:
        path = ctypes.util.find_library(name)
        if path:
            return path
    raise OSError(f"no library of a runtime is found: {', '.join(names)}")


def sleep_function():
    """A function of C that sleeps for some microseconds or milliseconds, and the number for LATE."""
    if hasattr(ctypes, "windll"):
        return ctypes.cast(ctypes.windll.kernel32.Sleep, ctypes.c_void_p), int(LATE * 1e3)
    return ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), int(LATE * 1e6)


class Runtime:
    def __init__(self, kind, path=None):
        self.kind, self.prefix = kind, "cuda" if kind == CUDA else "hip"
        self.library = ctypes.CDLL(path or find(["cudart"] if kind == CUDA else ["amdhip64"]))
        self.memory, self.streams = [], []

    def call(self, function, *arguments):
        arguments = [ctypes.c_void_p(x) if isinstance(x, int) else x for x in arguments]
        error = getattr(self.library, self.prefix + function)(*arguments)
        if error != 0:
            raise RuntimeError(f"{self.prefix}{function} failed with {error}")

    # -- devices --

    def device(self):
        current = ctypes.c_int()
        self.call("GetDevice", ctypes.byref(current))
        return current.value

    def devices(self):
        count = ctypes.c_int()
        self.call("GetDeviceCount", ctypes.byref(count))
        return count.value

    def set_device(self, number):
        self.call("SetDevice", ctypes.c_int(number))

    # -- streams --

    def handle(self, stream):
        """The handle of the runtime for a number of DLPack."""
        return (1 if self.kind == CUDA else 0) if stream is None else stream

    def new_stream(self):
        """A stream that the default stream does not wait for."""
        made = ctypes.c_void_p()
        self.call("StreamCreateWithFlags", ctypes.byref(made), ctypes.c_uint(1))
        self.streams.append(made.value)
        return made.value

    def is_busy(self, stream):
        error = getattr(self.library, self.prefix + "StreamQuery")(ctypes.c_void_p(self.handle(stream)))
        getattr(self.library, self.prefix + "GetLastError")()  # reads "not ready" away
        return error == NOT_READY

    def wait(self, stream):
        self.call("StreamSynchronize", self.handle(stream))

    def order(self, before, after):
        """What is queued on a stream runs before what will be queued on the other."""
        event = ctypes.c_void_p()
        self.call("EventCreateWithFlags", ctypes.byref(event), ctypes.c_uint(2))
        self.call("EventRecord", event, self.handle(before))
        self.call("StreamWaitEvent", self.handle(after), event, ctypes.c_uint(0))
        self.call("EventDestroy", event)

    # -- memory --

    def allocate(self, data):
        """The address of memory of the device with these bytes."""
        address = ctypes.c_void_p()
        self.call("Malloc", ctypes.byref(address), ctypes.c_size_t(max(len(data), 1)))
        self.memory.append(address.value)
        if data:
            source = ctypes.create_string_buffer(data, len(data))
            self.call("Memcpy", address, source, ctypes.c_size_t(len(data)), ctypes.c_int(TO_DEVICE))
        return address.value

    def write_late(self, address, data, stream):
        """Queues a copy of the bytes to the address that begins LATE seconds from now."""
        source = self.allocate(data)
        function, number = sleep_function()
        self.call("LaunchHostFunc", self.handle(stream), function, number)
        self.call(
            "MemcpyAsync", address, source, ctypes.c_size_t(len(data)), ctypes.c_int(IN_DEVICE), self.handle(stream)
        )

    def read(self, address, size, stream):
        """The bytes at an address, copied by the stream when its turn comes."""
        data = ctypes.create_string_buffer(size)
        self.call("MemcpyAsync", data, address, ctypes.c_size_t(size), ctypes.c_int(TO_HOST), self.handle(stream))
        self.wait(stream)
        return data.raw

    def settle(self):
        """Waits for all streams."""
        self.call("DeviceSynchronize")

    def close(self):
        self.settle()
        for address in self.memory:
            self.call("Free", address)
        for stream in self.streams:
            self.call("StreamDestroy", stream)
        self.memory, self.streams = [], []


def seconds(function, *arguments, **keywords):
    """(result, how long the call took)."""
    begun = time.perf_counter()
    return function(*arguments, **keywords), time.perf_counter() - begun

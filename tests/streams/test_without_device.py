"""Extensions with the real libraries of CUDA and HIP on a machine without a device: they import, exchange arrays of the
CPU, and each call on device data is an exception with the runtime's text (S9)."""

import json
import os
import subprocess
import sys
import sysconfig

import machine
import pytest
from optional import HAS_NUMPY

# Prints what each call returns or raises. The module real_probe is device_probe.c; dlarray is the example,
# compiled with the header of the device.
CHILD = """
import json
import dlarray
import dltensor
import numpy
import real_probe as probe
import VECTOR

said = {}

def ask(name, call):
    try:
        said[name] = str(call())
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"

class Foreign:
    def __dlpack_device__(self):
        return probe.DEVICE, 0
    def __dlpack__(self, **keywords):
        raise SystemError("this is not called")

class Interface:
    __cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3, "stream": 1}

ones = numpy.ones(4, numpy.uint8)
array = probe.Array((4,), type=probe.CPU)
empty = probe.Array((0,), 4096)  # on the device, and without memory there; 4096 and 8192 are streams
view = probe.consume(empty.__dlpack__(stream=-1), 4096)

ask("an array of the CPU to NumPy", lambda: numpy.from_dlpack(array).shape)
ask("an array of NumPy", lambda: probe.consume(ones, 0, device=probe.CPU).data == ones.ctypes.data)
ask("from_dlpack with device='cpu'", lambda: probe.from_dlpack(0, ones, device="cpu").shape)
ask("dlarray", lambda: numpy.from_dlpack(dlarray.from_dlpack(ones)).ctypes.data == ones.ctypes.data)
ask("dlarray for data on a device", lambda: dlarray.from_dlpack(empty.__dlpack__(stream=-1)))
ask("an array of NumPy for a device", lambda: probe.consume(ones, 0))
ask("the device of memory of NumPy", lambda: probe.find_device(ones.ctypes.data) == (probe.CPU, 0))
ask("stream=-1", lambda: dltensor.Taken(empty.__dlpack__(stream=-1)).delete())
ask("the same stream", lambda: dltensor.Taken(empty.__dlpack__(stream=4096)).delete())
ask("an interface", lambda: empty.__cuda_array_interface__["stream"])
ask("another stream", lambda: empty.__dlpack__(stream=8192))
ask("no stream", lambda: empty.__dlpack__())
ask("a consumer", lambda: probe.consume(Foreign(), 4096))
ask("a consumer of an interface", lambda: probe.consume(Interface(), 4096, options=probe.ARRAY_INTERFACE_TOO))
ask("a release", lambda: view.release_on(4096))
ask("the view after it", lambda: view.holds)
ask("tensors that wait", probe.collect)
before = probe.blocks()
for _ in range(100):
    ask("a consumer", lambda: probe.consume(Foreign(), 4096))
    ask("another stream", lambda: empty.__dlpack__(stream=8192))
ask("blocks are left", lambda: probe.blocks() > before)
ask("the example", lambda: VECTOR.Vector([1, 2]))
print(json.dumps(said))
"""


RETURNED = {
    "an array of the CPU to NumPy": "(4,)",
    "an array of NumPy": "True",
    "from_dlpack with device='cpu'": "(4,)",
    "dlarray": "True",
    "dlarray for data on a device": "BufferError: device is {device}:0, memory that the CPU can read was asked for",
    "an array of NumPy for a device": "BufferError: device is cpu, {device} was asked for",
    "the device of memory of NumPy": "True",
    "stream=-1": "None",
    "the same stream": "None",
    "an interface": "4096",
    "another stream": "RuntimeError: {prefix}StreamIsCapturing: {error}",
    "no stream": "RuntimeError: {prefix}GetDevice: {error}",
    "a consumer": "RuntimeError: {prefix}GetDevice: {error}",
    "a consumer of an interface": "RuntimeError: {prefix}GetDevice: {error}",
    "a release": "RuntimeError: {prefix}StreamIsCapturing: {error}",
    "the view after it": "False",
    "tensors that wait": "0",
    "blocks are left": "False",
    "the example": "RuntimeError: {prefix}GetDevice: {error}",
}
PLATFORMS = {
    "CUDA": {
        "prefix": "cuda",
        "device": "cuda",
        "error": "cudaErrorInsufficientDriver, CUDA driver version is insufficient for CUDA runtime version",
        "flags": [],
    },
    "HIP": {
        "prefix": "hip",
        "device": "rocm",
        "error": "hipErrorInvalidDevice, hipErrorInvalidDevice",  # of 5.2
        "flags": ["-D__HIP_PLATFORM_AMD__"],
    },
}
HOW = {
    "linked": lambda name, library: ["-Wl,--no-as-needed", str(library), "-Wl,--allow-shlib-undefined"],
    "found at run time": lambda name, library: [f"-DDLPACK_{name}_AT_RUN_TIME", "-ldl"],
    "not found at run time": lambda name, library: [
        f"-DDLPACK_{name}_AT_RUN_TIME",
        f'-DDLPACK_{name}_LIBRARY="libnowhere.so"',
        "-ldl",
    ],
}
NOWHERE = "there is no libnowhere.so with this function: install the runtime, or import a library that has loaded it"


@pytest.mark.skipif(sys.platform != "linux", reason="the libraries for Linux are tested")
@pytest.mark.skipif(not HAS_NUMPY, reason="NumPy: not installed")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_without_a_device_arrays_of_the_cpu_are_exchanged_and_other_calls_are_exceptions_S9(tmp_path, platform, how):
    found = [pair for name, pair in machine.runtime_libraries().items() if name.startswith(platform)]
    if not found:
        pytest.skip(f"library of {platform} and its headers: not on this machine")
    (include, library), facts = found[0], PLATFORMS[platform]
    device = facts["device"]
    flags = [*facts["flags"], *([] if include == "/usr/include" else ["-isystem", include])]
    header = "-include", "dlpack_copy.h", "-include", f"dlpack_{device}.h"
    for name, source, *others in (
        ("real_probe", machine.ROOT / "tests" / "streams" / "device_probe.c", "-DMODULE=real_probe"),
        ("dlarray", machine.ROOT / "examples" / "ndarray" / "dlarray.c", *header),
        (f"{device}_vector", machine.ROOT / "examples" / "gpu_vector" / "gpu_vector.c"),
    ):
        module = "-shared", "-w", "-O0", "-o", str(tmp_path / (name + sysconfig.get_config_var("EXT_SUFFIX")))
        done = machine.compile_c(source, *module, *flags, *others, *HOW[how](device.upper(), library))
        assert done.returncode == 0, done.stderr
    paths = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(machine.ROOT / "tests")]),
        "LD_LIBRARY_PATH": os.pathsep.join([str(library.parent), os.environ.get("LD_LIBRARY_PATH", "")]),
    }
    child = [sys.executable, "-c", CHILD.replace("VECTOR", f"{device}_vector")]
    done = subprocess.run(child, env={**os.environ, **paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    if said["no stream"].startswith("<capsule"):
        pytest.skip("this machine has a device")
    texts = {**facts, "error": NOWHERE if how.startswith("not") else facts["error"]}
    assert said == {name: text.format_map(texts) for name, text in RETURNED.items()}

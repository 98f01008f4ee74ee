"""examples/c_library: memory of a C library that passes DLManagedTensor *, in Python and by ctypes (P9, K1)."""

import gc
import subprocess
import sys
import threading
from pathlib import Path

import machine
import planes
import pytest
from array_libraries import needs_versioned_numpy, needs_writable_numpy
from dltensor import READ_ONLY, Made, Producer
from optional import numpy

FOLDER = Path(__file__).parents[2] / "examples" / "c_library"

pytestmark = needs_versioned_numpy


@pytest.fixture(autouse=True)
def each_tensor_is_deleted_once():
    gc.collect()
    made, deleted = planes.counts()
    yield
    gc.collect()
    more, gone = planes.counts()
    assert more - made == gone - deleted


@needs_writable_numpy
def test_an_object_is_exported_writable_and_as_often_as_asked_P9():
    decoded = planes.decode(2, 3, 4)
    first, second = numpy.from_dlpack(decoded), numpy.from_dlpack(decoded)
    first[1, 2, 3] = 10
    assert second[1, 2, 3] == 10 and second.shape == (2, 3, 4) and planes.total(decoded) == second.sum()
    capsules = [decoded.__dlpack__(), decoded.__dlpack__(max_version=(1, 0))]
    del decoded, first
    assert planes.total(capsules[0]) == second.sum()


def test_threads_make_and_drop_planes_K5():
    def work():
        for _ in range(100):
            numpy.from_dlpack(planes.decode(1, 2, 2))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_extents_and_memory_are_checked():
    assert numpy.from_dlpack(planes.decode(0, 3, 4)).shape == (0, 3, 4)
    with pytest.raises(ValueError, match="an extent is negative"):
        planes.decode(1, -1, 1)
    with pytest.raises(MemoryError):
        planes.decode(2**31 - 1, 2**31 - 1, 2**31 - 1)


def test_an_array_is_lent_to_the_library_in_place_C9_K4():
    made = Made(dtype="float32", shape=(1, 2, 2), flags=READ_ONLY)
    made.managed.dl_tensor.data = (ones := numpy.ones((1, 2, 2), "f4")).ctypes.data
    assert planes.total(made.capsule()) == ones.sum() and made.deleted == 1
    producer = Producer(shape=(3,))
    for wrong in producer, ones.astype("f8"), ones[0], ones.T[:, :, ::1].swapaxes(0, 2)[:, ::-1]:
        with pytest.raises(BufferError, match="^x: "):
            planes.total(wrong)
    assert producer.deleted == [1]
    with pytest.raises(AttributeError, match="^x: 'list' object has no attribute '__dlpack__'"):
        planes.total([[[1.0]]])


@needs_writable_numpy
def test_the_library_needs_no_python_and_ctypes_uses_the_bridge_P9(tmp_path):
    if not machine.compilers():
        pytest.skip("the C library alone: no compiler here")
    library, bridge = tmp_path / "library.so", tmp_path / "bridge.so"
    flags = ["-std=c11", "-shared"]
    done = machine.compile_c(FOLDER / "planes.c", *flags, "-DPLANES_NO_PYTHON", "-o", str(library))
    assert done.returncode == 0, done.stderr
    done = machine.compile_c(FOLDER / "bridge.c", *flags, "-o", str(bridge))
    assert done.returncode == 0, done.stderr
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert "planes_decode" in symbols and "Py" not in symbols
    code = f"""
import ctypes, gc, numpy
library, bridge = ctypes.CDLL({str(library)!r}), ctypes.PyDLL({str(bridge)!r})
library.planes_decode.restype = ctypes.c_void_p
bridge.object_of.argtypes, bridge.object_of.restype = [ctypes.c_void_p], ctypes.py_object
made = bridge.object_of(library.planes_decode(2, 3, 4))
first, second = numpy.from_dlpack(made), numpy.from_dlpack(made)
first[0, 0, 0] = 9
assert second[0, 0, 0] == 9 and first.flags.writeable
counts = [ctypes.c_int.in_dll(library, "planes_" + name) for name in ("made", "deleted")]
assert [count.value for count in counts] == [1, 0]
del made, first, second
assert [count.value for count in counts] == [1, 1]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""examples/cpp: a module in C++17 with two source files that both include dlpack_py.h (G2, C9, K4)."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import dlarray
import machine
import pytest
from array_libraries import needs_writable_numpy
from optional import numpy

FOLDER = machine.ROOT / "examples" / "cpp"
COMPILERS = {name: pair for name, pair in machine.compilers().items() if pair[1] is not None}
NO_CXX = pytest.mark.skip(reason="C++ compiler: not on this machine")


@pytest.fixture(scope="module", params=list(COMPILERS)[-1:] or [pytest.param(None, marks=NO_CXX)])
def signals(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("cpp")
    compiler, objects = COMPILERS[request.param], []
    for source in sorted(FOLDER.glob("*.cpp")):
        objects.append(str(folder / f"{source.stem}.o"))
        done = machine.compile_c(source, "-std=c++17", "-c", "-o", objects[-1], compiler=compiler)
        assert done.returncode == 0 and done.stderr == "", done.stderr
    assert len(objects) == 2
    subprocess.run(
        [compiler[1], "-shared", *machine.TEST_CFLAGS, *objects, "-o", str(folder / "signals.so")], check=True
    )
    sys.path.insert(0, str(folder))
    import signals

    return signals


def smoothed(values):
    padded = [*values[:1], *values, *values[-1:]]
    return [sum(padded[i : i + 3]) / 3 for i in range(len(values))]


def vector(length):
    return (numpy.arange(length, dtype="float32") % 4) * 3  # whole means


def test_a_signal_is_exported_without_a_copy_P9(signals):
    signal = signals.Signal(4)
    array = dlarray.from_dlpack(signal)
    array[2] = 3
    del signal
    assert array.tolist() == [0, 0, 3, 0]
    assert signals.Signal(0).__dlpack_device__() == (1, 0)
    assert dlarray.from_dlpack(signals.Signal(0)).shape == (0,)


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_result_is_an_array_of_the_library_of_the_argument(signals, length):
    for x in vector(length), vector(2 * length)[::2], vector(length)[::-1], dlarray.array(vector(length).tolist()):
        x = dlarray.array(x.tolist(), "float32") if isinstance(x, dlarray.Array) else x
        result = signals.smooth(x)
        assert type(result) is type(x)
        assert result.tolist() == smoothed(x.tolist())


@needs_writable_numpy
def test_the_result_is_written_into_out_C9(signals):
    x, out = vector(9), numpy.zeros(18, "float32")[::2]
    assert signals.smooth(x, out=out) is out
    assert out.tolist() == smoothed(x)
    expected = smoothed(x)
    assert signals.smooth(x, out=x).tolist() == expected


@needs_writable_numpy
def test_an_invalid_out_is_refused_by_the_name_out_and_no_reference_is_kept_C9(signals):
    x, constant = vector(5), vector(5)
    constant.flags.writeable = False
    for out, text in [
        (vector(4), r"out: shape\[0\] is 4, 5 was asked for"),
        (vector(5).astype("float64"), "out: dtype is float64, float32 was asked for"),
        (constant, "out: data is read-only"),
        (numpy.broadcast_to(numpy.float32(1), 5), "out: data is read-only"),
    ]:
        before = sys.getrefcount(x), sys.getrefcount(out)
        with pytest.raises(BufferError, match=text):
            signals.smooth(x, out=out)
        assert (sys.getrefcount(x), sys.getrefcount(out)) == before
    with pytest.raises(BufferError, match="x: dtype is int64"):
        signals.smooth(numpy.arange(3, dtype="int64"))


@needs_writable_numpy
def test_an_out_that_overlaps_is_refused_D8(signals):
    whole = vector(9)
    with pytest.raises(ValueError, match="x and out overlap"):
        signals.smooth(whole[:-1], out=whole[1:])
    with pytest.raises(ValueError, match="x and out overlap"):
        signals.smooth(whole, out=whole[::-1])
    assert whole.tolist() == vector(9).tolist()
    pairs = vector(8)
    signals.smooth(pairs[::2], out=pairs[1::2])
    assert pairs[1::2].tolist() == smoothed(vector(8)[::2])


def test_views_are_released_on_return_and_on_exceptions_K4(signals):
    x, out = vector(5), vector(5)
    before = sys.getrefcount(x), sys.getrefcount(out)
    threads = [threading.Thread(target=lambda: [signals.smooth(x, out=out) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before


def test_dlpack_takes_at_most_60_lines():
    text = "".join(Path(path).read_text() for path in sorted(FOLDER.glob("*.cpp")))
    regions = re.findall(r"// dlpack: begin\n(.*?)// dlpack: end", text, re.DOTALL)
    lines = [line for line in "".join(regions).splitlines() if line.split("//")[0].strip()]
    assert 20 < len(lines) <= 60

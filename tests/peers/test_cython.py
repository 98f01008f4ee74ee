"""A producer and a consumer in Cython, by dlpack_py.pxd: examples/cython."""

import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "cython" / "wave.pyx"


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    pytest.importorskip("Cython", exc_type=ModuleNotFoundError, reason="cython: make test-peers installs it")
    sys.path.insert(0, str(ROOT / "tests" / "build"))
    import machine

    folder = tmp_path_factory.mktemp("cython")
    for file in (SOURCE, ROOT / "dlpack_py.pxd"):
        (folder / file.name).write_text(file.read_text())
    command = [sys.executable, "-m", "cython", "-3", "--warning-errors", "wave.pyx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    include = ["-isystem", list(machine.dlpack_headers().values())[-1], "-isystem", machine.python_include()]
    command = [list(machine.compilers().values())[-1][0], "-O2", "-shared", "-fPIC", f"-I{ROOT}", *include]
    subprocess.run([*command, "wave.c", "-o", "wave.so"], cwd=folder, check=True)
    sys.path.insert(0, str(folder))
    import wave

    return wave


def test_arrays_go_both_ways_without_a_copy(wave):
    made = wave.Wave(3)
    array = numpy.from_dlpack(made)
    array[:] = 2
    assert (wave.total(made), wave.total(array), wave.total(array[:1])) == (6, 6, 2)
    assert numpy.from_dlpack(made, copy=True).ctypes.data != array.ctypes.data


def test_what_was_not_asked_for_is_refused_and_nothing_is_kept(wave):
    for x, text in (numpy.arange(3), "dtype is int64"), (numpy.zeros((2, 2)), "ndim is 2"):
        before = sys.getrefcount(x)
        with pytest.raises(BufferError, match=text):
            wave.total(x)
        assert sys.getrefcount(x) == before
    with pytest.raises(TypeError, match="max_version is 1"):
        wave.Wave(3).__dlpack__(max_version=1)
    with pytest.raises(AttributeError):
        wave.total(7)


def test_dlpack_takes_at_most_25_lines_and_no_extern_block():
    text = SOURCE.read_text()
    regions = re.findall(r"# dlpack: begin\n(.*?)# dlpack: end", text, re.DOTALL)
    lines = [line for line in "".join(regions).splitlines() if line.strip()]
    assert 10 < len(lines) <= 25
    assert "extern" not in text

"""docs/retrofit_bits.md and docs/retrofit_picture.md: their parts, counts, and blocks of code, with the wheel."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import machine
import pytest
import retrofit_pages
from array_libraries import needs_writable_numpy
from optional import numpy  # noqa: F401  needs_writable_numpy asks it
from test_package import python, run, wheel  # noqa: F401  fixtures

NAMES = pytest.mark.parametrize("name", retrofit_pages.NAMES)
VERSION = re.search(r'define DLPACK_PY_VERSION_STRING "(\d+\.\d+)', (machine.ROOT / "dlpack_tensor.h").read_text())[1]


def blocks(name, *languages):
    """The blocks of code of a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", retrofit_pages.page(name).read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


@NAMES
def test_the_parts_and_counts_of_a_page_are_the_difference_of_the_files(name):
    """After a change of the files, `python tests/build/retrofit_pages.py` writes the page again."""
    text = retrofit_pages.page(name).read_text()
    assert text == retrofit_pages.rendered(name)
    numbers = sorted(int(part[1]) for part in retrofit_pages.PART.findall(text))
    assert numbers == list(range(1, len(retrofit_pages.parts(name)) + 1))
    assert len(retrofit_pages.COUNTS.findall(text)) == 1
    assert f"](docs/retrofit_{name}.md)" in retrofit_pages.README.read_text()


def test_the_readme_has_the_counts():
    counts = re.findall(r"\((\d+) lines(?: for DLPack)?\)", retrofit_pages.readme_row())
    assert counts == [str(retrofit_pages.counts(name)[0]) for name in retrofit_pages.NAMES]


@NAMES
def test_the_code_of_a_page_is_that_of_the_files_and_projects(name):
    before = (retrofit_pages.FOLDER / f"{name}_before.c").read_text()
    for block in blocks(name, "c"):
        assert block in before
    every = blocks(name, "c", "diff", "python", "toml", "sh")
    assert retrofit_pages.page(name).read_text().count("\n```\n") == len(every), "a block that no test looks at"


def module(name, text, folder):
    """Compiles a module, and returns the folder."""
    source = folder / f"{name}.c"
    source.write_text(text)
    done = machine.compile_c(
        source, "-std=c99", "-shared", "-o", str(folder / (name + sysconfig.get_config_var("EXT_SUFFIX")))
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return folder


def run_with(folder, code):
    """Runs code in a process of its own, which finds modules in the folder first."""
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# What a type does without DLPack.
USES = {
    "bits": """
        from bits import Bits
        b = Bits()
        b.extend(b"")
        b.extend(b"\\x05\\x80")
        b.append("yes")
        b.append(0)
        assert list(b) == [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0] and b.count() == 4
        b.extend(b"\\xff")
        assert len(b) == 26 and list(b)[18:] == [1] * 8
        b.resize(19)
        memory = memoryview(b)
        assert memory.tobytes() == bytes([5, 128, 0b00001101 & 0b101 | memory[2] & ~0b101])
        memory[2] = 255
        for change in lambda: b.append(1), lambda: b.extend(b"1"), lambda: b.resize(0), b.freeze, lambda: b.extend(b):
            try:
                change()
            except BufferError as error:
                assert str(error).startswith("the bits are exported, they cannot be ")
            else:
                raise AssertionError("changed")
        assert len(b) == 19 and b.count() == 6
        memory.release()
        b.resize(24)
        assert list(b)[16:] == [1, 1, 1, 0, 0, 0, 0, 0]
        b.resize(0)
        assert b.count() == 0 and memoryview(b).nbytes == 0
        b.freeze()
        b.freeze()
        assert memoryview(b).readonly
        for wrong, kind in ((lambda: b.append(1), TypeError), (lambda: b[0], IndexError),
                            (lambda: b.resize(-1), ValueError), (lambda: b.resize(2**80), OverflowError)):
            try:
                wrong()
            except kind:
                pass
            else:
                raise AssertionError(kind)
    """,
    "picture": """
        from picture import Picture
        for mode, size in dict(L=1, RGB=3, RGBA=4, I=4, F=4).items():
            for height, width in (0, 0), (0, 3), (3, 0), (2, 3), (1000, 100), (3, 70000):
                p = Picture(mode, height, width)
                pixels = bytes(range(250)) * (height * width * size // 250 + 1)
                pixels = pixels[:height * width * size]
                assert p.mode == mode and p.tobytes() == bytes(len(pixels))
                p.frombytes(pixels)
                strips = [p.strip(i) for i in range(p.blocks)]
                assert p.tobytes() == pixels == b"".join(strip.tobytes() for strip in strips)
                del p
                assert strips[-1].blocks == 1 and pixels.endswith(strips[-1].tobytes())
        assert Picture("RGB", 1000, 100).blocks == 5 and Picture("F", 3, 70000).blocks == 3
        p = Picture("L", 1, 2)
        for wrong, kind in ((lambda: p.frombytes(b"1"), ValueError), (lambda: p.frombytes(b"123"), ValueError),
                            (lambda: p.strip(1), IndexError), (lambda: p.strip(-1), IndexError),
                            (lambda: Picture("X", 1, 1), ValueError), (lambda: Picture("L", -1, 1), ValueError),
                            (lambda: Picture("L", 1, 2**30), ValueError)):
            try:
                wrong()
            except kind:
                pass
            else:
                raise AssertionError(kind)
        p.strip(0).frombytes(b"12")
        p.freeze()
        for frozen in p, p.strip(0):
            try:
                frozen.frombytes(b"34")
            except ValueError:
                assert frozen.tobytes() == b"12"
            else:
                raise AssertionError("written")
    """,
}


@NAMES
def test_a_type_does_the_same_before_and_after(tmp_path, name):
    code = re.sub(r"^ {8}", "", USES[name], flags=re.MULTILINE)
    last = f"\nimport {name}\nfor kind in vars({name}).values():\n    if isinstance(kind, type):\n        "
    for version, has in (f"{name}_before", False), (name, True):
        (tmp_path / version).mkdir()
        folder = module(name, (retrofit_pages.FOLDER / f"{version}.c").read_text(), tmp_path / version)
        run_with(folder, f"{code}{last}assert hasattr(kind, '__dlpack__') == {has}")


@needs_writable_numpy
def test_two_lines_are_enough_for_bits(tmp_path):
    """The line of the include and that of the methods, in the file without DLPack."""
    text = (retrofit_pages.FOLDER / "bits_before.c").read_text()
    lines = "#include <Python.h>\n", "static PyMethodDef bits_methods[] = {\n"
    added = '#include "dlpack_buffer.h"\n', "    DLPACK_BUFFER_METHODS,\n"
    parts = "".join(retrofit_pages.parts("bits")).replace("+", "")
    for line, more in zip(lines, added):
        assert text.count(line) == 1 and more.strip() in parts
        text = text.replace(line, line + more)
    seen = blocks("bits", "python")[0].split("\nflags = ")[0]
    assert "cannot be resized" in seen
    run_with(module("bits", text, tmp_path), seen)


@needs_writable_numpy
@NAMES
def test_what_users_see_is_so_and_the_wheel_is_built_by_the_commands_of_the_page(python, tmp_path, name):  # noqa: F811
    seen, setup = blocks(name, "python")
    (project,) = blocks(name, "toml")
    (commands,) = blocks(name, "sh")
    assert project.startswith("# pyproject.toml\n") and setup.startswith("# setup.py\n")
    assert f'"dlpack-py=={VERSION}.*"' in project
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "setup.py").write_text(setup)
    shutil.copy(retrofit_pages.FOLDER / f"{name}.c", tmp_path)
    # pip asks no index: the environment of `python` has the package and the build tools
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    shell = f'python() {{ "{python}" "$@"; }}\nset -e\n'
    said = run("sh", "-c", shell + commands, cwd=tmp_path, env=offline)
    assert said.splitlines()[-1] == "(1, 0)"
    assert len(list((tmp_path / "dist").glob(f"{name}-2.0-*.whl"))) == 1
    tested = tmp_path / "fresh" / "bin" / "python"
    site = run(tested, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    with open(os.path.join(site, "tools.pth"), "w") as paths:
        paths.write(sysconfig.get_path("purelib") + "\n")  # NumPy of this Python
    run(tested, "-c", f"{seen}\nimport {name}\nassert {name}.__file__.startswith({site!r})", cwd=tmp_path / "dist")

"""The projects of docs/start.md, in each language: a wheel by their build requirements, and exchanges with NumPy."""

import re
import shutil
import sys

import machine
import pytest
from array_libraries import needs_writable_numpy
from optional import needs, needs_numpy, numpy  # noqa: F401 (a condition of a mark)
from test_header import needs_cxx
from test_package import VERSION, pip_wheel, python, run, wheel  # noqa: F401  fixtures

START = machine.ROOT / "examples" / "start"
INSTALL = "make test-package"
in_cxx = [needs_cxx, needs("scikit_build_core", INSTALL)]
MARKS = {
    "c": [],
    "cpp": [needs_cxx],
    "cython": [needs("Cython", INSTALL)],
    "nanobind": [*in_cxx, needs("nanobind", INSTALL)],
    "pybind11": [*in_cxx, needs("pybind11", INSTALL)],
}
PROJECTS = [pytest.param(name, marks=marks) for name, marks in MARKS.items()]

USE = """
import numpy, ramp
own = ramp.Ramp(length=4) if sys.argv[1] == "by name" else ramp.Ramp(4)
array = numpy.from_dlpack(own)
assert array.tolist() == [0, 1, 2, 3]
array[0] = 10
assert numpy.from_dlpack(own)[0] == 10 and ramp.total(own) == 16
assert ramp.total(array[::2]) == 12 and ramp.total(numpy.zeros(0)) == 0
assert numpy.from_dlpack(ramp.Ramp(0)).shape == (0,)
del own
assert array.sum() == 16
for wrong in numpy.zeros(3, "int64"), numpy.zeros((2, 2)):
    try:
        ramp.total(wrong)
    except BufferError:
        continue
    raise AssertionError(wrong)
"""


@needs_numpy
@needs_writable_numpy
@pytest.mark.parametrize("name", PROJECTS)
def test_the_project_in_each_language_exchanges_arrays_with_numpy(python, tmp_path, name):  # noqa: F811
    folder = tmp_path / name
    shutil.copytree(START / name, folder)
    installed = pip_wheel(python, folder)
    run(sys.executable, "-c", f"import sys{USE}", "by place" if name == "cpp" else "by name", cwd=installed)

    *lines, refused = page_example().splitlines()
    shown = "\n".join(lines).replace("ramp.total(x[::2])", "assert 12.0 == ramp.total(x[::2])")
    run(sys.executable, "-c", shown, cwd=installed)
    said = run(sys.executable, "-c", f"import numpy, ramp\n{refused}", cwd=installed, status=1)
    assert said.strip().endswith(refused.split("# ")[1])


def page_example():
    """What docs/start.md tries."""
    page = (machine.ROOT / "docs" / "start.md").read_text()
    return re.search(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1].strip()


@pytest.mark.parametrize("name", MARKS)
def test_the_page_shows_all_files_of_the_project(name):
    page = (machine.ROOT / "docs" / "start.md").read_text()
    for path in sorted((START / name).iterdir()):
        if path.is_file():
            assert (
                f"](../examples/start/{name}/{path.name})" in page or f" ../examples/start/{name}/{path.name}\n" in page
            )


@pytest.mark.parametrize("name", MARKS)
def test_the_project_builds_with_the_version_of_the_headers(name):
    wanted = ".".join(VERSION.split(".")[:2])
    assert f'"dlpack-py=={wanted}.*"' in (START / name / "pyproject.toml").read_text()

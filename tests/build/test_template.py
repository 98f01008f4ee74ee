"""examples/template becomes a project of another name, a wheel by the package dlpack-py, and passes its tests."""

import os
import re
import shutil
import sys
import sysconfig

import machine
import pytest
from array_libraries import needs_writable_numpy
from optional import numpy  # noqa: F401  needs_writable_numpy asks it
from test_package import contents, new_environment, python, run, wheel  # noqa: F401  fixtures

TEMPLATE = machine.ROOT / "examples" / "template"


@pytest.fixture
def rainfall(tmp_path):
    folder = tmp_path / "rainfall"
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    run(sys.executable, "rename.py", "rainfall", "Rainfall", cwd=folder)
    (folder / "rename.py").unlink()
    return folder


def test_the_template_is_renamed_whole(rainfall):
    names = sorted(str(path.relative_to(rainfall)) for path in rainfall.rglob("*") if path.is_file())
    assert "rainfall.c" in names and os.path.join("tests", "test_rainfall.py") in names
    for name in names:
        assert "myarray" not in name and re.search("(?i)myarray", (rainfall / name).read_text()) is None, name


@pytest.mark.parametrize(
    "names",
    [["Rain", "Rain"], ["rain-fall", "Rain"], ["rain", "Rain fall"], ["rain"], ["class", "Rain"], ["rain", "double"]],
)
def test_names_that_no_module_or_type_can_have_are_refused(rainfall, names):
    shutil.copy(TEMPLATE / "rename.py", rainfall)
    before = {path: path.read_bytes() for path in rainfall.rglob("*") if path.is_file()}
    run(sys.executable, "rename.py", *names, cwd=rainfall, status=1)
    assert before == {path: path.read_bytes() for path in rainfall.rglob("*") if path.is_file()}


@needs_writable_numpy
def test_the_template_is_built_by_the_package_and_its_wheel_passes_its_tests(rainfall, python, tmp_path):  # noqa: F811
    """In a new environment, which has the wheel, and NumPy and pytest of this Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "wheel"]
    run(*pip, "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", tmp_path, rainfall)
    (made,) = tmp_path.glob("rainfall-0.1.0-*.whl")
    assert not any("dlpack" in name or name.startswith("tests") for name in contents(made))
    tested = new_environment(tmp_path / "environment", made)
    site = run(tested, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    with open(os.path.join(site, "tools.pth"), "w") as paths:
        paths.write(sysconfig.get_path("purelib") + "\n")
    tests = shutil.copytree(rainfall / "tests", tmp_path / "tests")
    said = run(tested, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tests, tests)
    assert re.search(r"^\d+ passed", said, re.MULTILINE) and "skipped" not in said
    code = "import rainfall; print(rainfall.__file__, rainfall.Rainfall)"
    said = run(tested, "-c", code, cwd=tmp_path)
    assert str(tmp_path / "environment") in said and "'rainfall.Rainfall'" in said


def test_the_template_compiles_without_a_warning():
    include = list(machine.dlpack_headers().values())[-1]
    for standard in "c99", "c11":
        flags = [f"-std={standard}", "-fsyntax-only"]
        done = machine.compile_c(TEMPLATE / "myarray.c", *flags, dlpack=include)
        assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_template_builds_with_the_version_of_the_headers():
    version = re.search(r'define DLPACK_PY_VERSION_STRING "(\d+\.\d+)', (machine.ROOT / "dlpack_tensor.h").read_text())[
        1
    ]
    assert f'"dlpack-py=={version}.*"' in (TEMPLATE / "pyproject.toml").read_text()

"""The package dlpack-conformance: one wheel for each platform, and an sdist."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import dlpack_conformance
import machine
import pytest
import test_msvc
from collecting import PYPY
from optional import needs_numpy

TREE = machine.ROOT / "conformance"
VERSION = dlpack_conformance.__version__
IS_LIMITED = not PYPY and not sysconfig.get_config_var("Py_GIL_DISABLED")
MORE = bool(os.environ.get("DLPACK_PY_COMPLETE"))
MINGW = shutil.which("x86_64-w64-mingw32-gcc-posix")
WINDOWS = machine.ROOT / "build" / "windows" / "python"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a compiler that setuptools finds: not on this machine")


def start_build(kind, tree, folder):
    """Starts the build of a "wheel" or an "sdist" of a tree, as pip does it, without a network."""
    if not machine.dlpack_headers():
        pytest.skip("dlpack.h 1.3: not on this machine")
    folder.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; print(); print(b.build_{kind}({str(folder)!r}))"
    environment = {**os.environ, "DLPACK_INCLUDE_DIR": str(list(machine.dlpack_headers().values())[-1])}
    environment.pop("PYTHONPATH", None)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([sys.executable, "-c", code], cwd=tree, env=environment, text=True, **pipes)


def built(process, folder):
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    return folder / told.split()[-1]


def build(kind, tree, folder):
    return built(start_build(kind, tree, folder), folder)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy, since a build must not write into the tree."""
    folder = tmp_path_factory.mktemp("tree") / "conformance"
    shutil.copytree(TREE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build"))
    return folder


@pytest.fixture(scope="module")
def wheels(tree, tmp_path_factory):
    """Two wheels, built from one tree at once."""
    before = files_of(tree)
    folders = [tmp_path_factory.mktemp("wheel") for _ in range(2)]
    started = [start_build("wheel", tree, folder) for folder in folders]
    found = [built(process, folder) for process, folder in zip(started, folders)]
    assert files_of(tree) == before, "a build wrote into the tree"
    return found


@pytest.fixture(scope="module")
def wheel(wheels):
    return wheels[0]


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def files_of(folder):
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def contents(wheel):
    with zipfile.ZipFile(wheel) as packed:
        return {name: packed.read(name) for name in packed.namelist()}


def test_two_builds_of_one_tree_at_once_give_the_same_wheel(wheels):
    one, other = map(contents, wheels)
    assert wheels[0].name == wheels[1].name and set(one) == set(other)
    assert [name for name in one if one[name] != other[name] and not name.endswith(".so")] == []


def test_the_wheel_is_for_each_cpython_of_the_platform(wheel):
    name = f"dlpack_conformance-{VERSION}-"
    assert wheel.name.startswith(name)
    if IS_LIMITED:
        assert wheel.name.startswith(name + "cp39-abi3-"), wheel.name


def test_the_wheel_has_the_suite_and_its_licence_and_nothing_else(wheel):
    found = contents(wheel)
    package = {f"{path.relative_to(TREE).as_posix()}" for path in TREE.glob("dlpack_conformance/**/*.py")}
    extension = [name for name in found if name.startswith("_dlpack_conformance.")]
    info = f"dlpack_conformance-{VERSION}.dist-info/"
    files = {info + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt")}
    data = {f"dlpack_conformance/{name}" for name in ("ids.txt", "report.css")}
    assert set(found) == package | data | set(extension) | files | {info + "licenses/LICENSE"}
    assert len(extension) == 1 and (not IS_LIMITED or extension[0].endswith(".abi3.so"))
    licence = (machine.ROOT / "LICENSE").read_bytes()
    assert found[info + "licenses/LICENSE"] == licence == (TREE / "LICENSE").read_bytes()
    metadata = email.message_from_bytes(found[info + "METADATA"])
    assert (metadata["License-Expression"], metadata["Version"]) == ("MIT", VERSION)


def test_the_sdist_has_the_licence_and_builds_the_same_wheel(tree, wheel, tmp_path):
    sdist = build("sdist", tree, tmp_path)
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path)
    unpacked = tmp_path / f"dlpack_conformance-{VERSION}"
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*")}
    assert {"LICENSE", "README.md", "setup.py", "_dlpack_conformance.c", "xfails/numpy.txt"} <= names
    assert set(contents(build("wheel", unpacked, tmp_path / "again"))) == set(contents(wheel))


def run_plugin(folder, *arguments, environment=None):
    """pytest in an environment that has the wheel, and nothing of this tree."""
    variables = {**os.environ, "PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "", **(environment or {})}
    command = [sys.executable, "-m", "pytest", "--pyargs", "dlpack_conformance", *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@needs_numpy
@pytest.mark.parametrize("more", [[], ["-p", "dlpack_conformance.plugin"]], ids=["entry point", "by name too"])
def test_an_installed_wheel_brings_the_plugin(installed, more):
    status, told = run_plugin(installed, "--dlpack=numpy", "-k", "P8 or K4_the_capsule", *more)
    assert status == 0, told
    assert f"dlpack_conformance {VERSION}: numpy " in told and re.search(r"dlpack_conformance [s.]+ ", told)


CALL = """
import array, sys, _dlpack_conformance as native
assert native.__file__.startswith(sys.argv[1]), native.__file__
deleted = []
made = native.Managed(values=bytes(8), shape=(1,), on_delete=lambda: deleted.append(1))
class Producer:
    def __dlpack__(self, *, max_version=None):
        assert max_version == (1, 3)
        return made.capsule()
taken = native.call(Producer(), ("".join(["max_", "version"]),), ((1, 3),))
assert taken.says["shape"] == (1,) and taken.elements() == [bytes(8)]
taken.delete_on_thread()
assert deleted == [1] and made.deleted == 1
assert native.in_subinterpreter("assert 1 + 1 == 2") and not native.in_subinterpreter("1 / 0")
native.answer_is(lambda: 3)
of = native.Conventions()
assert [of.noargs(), of.fastcall(), of.fastcall_keywords(), of.method()] == [3] * 4
del taken, made
print("works")
"""


@pytest.mark.skipif(not IS_LIMITED, reason="a wheel for one interpreter: the limited API is not here")
@pytest.mark.parametrize("version", [*machine.pythons()])
def test_one_wheel_works_on_each_cpython(installed, version):
    python = machine.pythons()[version][0]
    if not machine.has_gil(python):
        pytest.skip(f"CPython {version} without a GIL: has no limited API")
    done = subprocess.run(
        [python, "-c", CALL, str(installed)],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.endswith("works\n"), done.stderr


@pytest.mark.skipif(MINGW is None, reason="not on this machine: mingw-w64")
def test_the_extension_compiles_for_windows_with_the_limited_api(tmp_path):
    if not WINDOWS.exists():
        pytest.skip("`make test-windows` gets it: Windows' Python.h")
    include = list(machine.dlpack_headers().values())[-1]
    command = [MINGW, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-cast-function-type", "-shared"]
    command += ["-DPy_LIMITED_API=0x03090000", "-isystem", str(WINDOWS / "include"), "-isystem", str(include)]
    command += [
        str(TREE / "_dlpack_conformance.c"),
        "-o",
        str(tmp_path / "it.pyd"),
        str(WINDOWS / "libs" / "python3.lib"),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([MINGW.replace("gcc-posix", "objdump"), "-p", tmp_path / "it.pyd"], capture_output=True)
    libraries = set(re.findall(rb"DLL Name: (\S+)", shown.stdout))
    assert libraries == {b"KERNEL32.dll", b"msvcrt.dll", b"python3.dll"}


# What the extension uses of windows.h, and of the C library beyond tests/build/windows.h.
WINDOWS_H = """
#define WINAPI __stdcall
#define INFINITE 0xFFFFFFFF
#define MEM_COMMIT 0x1000
#define MEM_RESERVE 0x2000
#define MEM_RELEASE 0x8000
#define PAGE_NOACCESS 1
#define PAGE_READWRITE 4
#define SRWLOCK_INIT {0}
typedef void *HANDLE;
typedef void *LPVOID;
typedef unsigned long DWORD;
typedef int BOOL;
typedef DWORD (WINAPI *LPTHREAD_START_ROUTINE)(LPVOID);
typedef struct { void *lock; } SRWLOCK;
typedef struct { DWORD dwPageSize; } SYSTEM_INFO;
void AcquireSRWLockExclusive(SRWLOCK *);
void ReleaseSRWLockExclusive(SRWLOCK *);
HANDLE CreateThread(void *, size_t, LPTHREAD_START_ROUTINE, LPVOID, DWORD, DWORD *);
DWORD WaitForSingleObject(HANDLE, DWORD);
BOOL CloseHandle(HANDLE);
void Sleep(DWORD);
LPVOID VirtualAlloc(LPVOID, size_t, DWORD, DWORD);
BOOL VirtualProtect(LPVOID, size_t, DWORD, DWORD *);
BOOL VirtualFree(LPVOID, size_t, DWORD);
void GetSystemInfo(SYSTEM_INFO *);
long InterlockedExchangeAdd(long volatile *, long);
int atexit(void (*)(void));
#define EAGAIN 11
"""
windows = test_msvc.windows  # a fixture


@pytest.mark.skipif(test_msvc.CLANG is None, reason="clang-cl: not on this machine")
@pytest.mark.parametrize("version", [test_msvc.PYTHONS[0], test_msvc.PYTHONS[-1]])
@pytest.mark.parametrize("mode, architecture", [("C", "x86_64"), ("C17", "aarch64")])
def test_the_extension_compiles_with_the_rules_of_msvc(windows, tmp_path, mode, architecture, version):
    (tmp_path / "windows.h").write_text(WINDOWS_H)
    flags = [*windows(mode, architecture, version), "-imsvc", tmp_path, "-DPy_LIMITED_API=0x03090000", "/W4", "/WX"]
    done = test_msvc.run(test_msvc.CLANG, *flags, test_msvc.PY_UNUSED, "/Zs", "--", TREE / "_dlpack_conformance.c")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not MORE, reason="the index of packages: make test-package asks it")
def test_a_new_environment_with_the_wheel_and_numpy_alone(tree, tmp_path):
    """As a new user does it: pip wheel, pip install, pytest."""
    python = tmp_path / "venv" / "bin" / "python"
    venv.create(tmp_path / "venv", with_pip=True)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout + done.stderr

    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    status, told = run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, tree)
    assert status == 0, told
    (wheel,) = tmp_path.glob("*.whl")
    status, told = run(*pip, "install", "--only-binary=:all:", wheel, "numpy")
    assert status == 0, told
    status, told = run(python, "-m", "pytest", "--pyargs", "dlpack_conformance", "--dlpack=numpy", "--junitxml=it.xml")
    assert status == 0 and "failures by grade: 0 must" in told, told
    status, told = run(python.with_name("dlpack-conformance"), "numpy")
    assert status == 0 and f"dlpack_conformance {VERSION}" in told, told

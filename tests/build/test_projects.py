"""A user's project builds an extension with the header: copied, as a subdirectory, installed, with meson.

test_package.py has the projects that take the headers from the package of pip."""

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import machine
import pytest

HERE = machine.ROOT / "tests" / "build"
ENVIRONMENT = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
needs_tvm_ffi = pytest.mark.skipif(
    not any(importlib.metadata.distributions(name="apache-tvm-ffi")), reason="apache-tvm-ffi: not on this machine"
)


def run(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=ENVIRONMENT, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def project(tmp_path):
    """A copy of a project below projects/, and a folder to build it in."""

    def copy(name):
        folder = tmp_path / name
        shutil.copytree(HERE / "projects" / name, folder)
        shutil.copy(HERE / "uses_all.c", folder)
        return folder, tmp_path / "build"

    return copy


def configure(source, build, *options):
    return run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options)


def check_module(folder):
    run(sys.executable, "-c", "import uses_all; uses_all.run()", cwd=folder)


def install(source, build, prefix):
    configure(source, build, "-DDLPACK_PY_TESTS=OFF", "-DDLPACK_PY_EXAMPLES=OFF")
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """The prefix of an installation."""
    return install(machine.ROOT, tmp_path_factory.mktemp("install"), tmp_path_factory.mktemp("prefix"))


def test_a_project_needs_only_a_copy_of_the_headers(tmp_path):
    for header in ("dlpack_tensor.h", "dlpack_py.h", "dlpack_exchange.h", "dlpack_buffer.h"):
        shutil.copy(machine.ROOT / header, tmp_path)
    shutil.copy(HERE / "uses_all.c", tmp_path)
    compiler = list(machine.compilers().values())[-1][0]
    include = ["-I", list(machine.dlpack_headers().values())[-1], "-I", machine.python_include()]
    run(compiler, "-shared", "-fPIC", *include, "uses_all.c", "-o", "uses_all.so", cwd=tmp_path)
    check_module(tmp_path)


def test_the_tensor_layer_is_one_file_without_python(tmp_path):
    shutil.copy(machine.ROOT / "dlpack_tensor.h", tmp_path)
    (tmp_path / "source.c").write_text('#include "dlpack_tensor.h"\n')
    compiler = list(machine.compilers().values())[-1][0]
    run(compiler, "-fsyntax-only", "-I", list(machine.dlpack_headers().values())[-1], "source.c", cwd=tmp_path)


def test_a_subdirectory_defines_only_the_target(project):
    source, build = project("subdirectory")
    (source / "third_party").mkdir()
    (source / "third_party" / "dlpack_py").symlink_to(machine.ROOT)
    configure(source, build)
    run("cmake", "--build", build)
    check_module(build)
    cache = (build / "CMakeCache.txt").read_text()
    for option in ("TESTS", "EXAMPLES", "INSTALL"):
        assert f"DLPACK_PY_{option}:BOOL=OFF" in cache
    assert "CMAKE_BUILD_TYPE:STRING=\n" in cache
    assert not (build / "install_manifest.txt").exists() and list(build.rglob("*.so")) == list(build.glob("*.so"))


def test_an_archive_is_fetched_by_cmake(project, tmp_path):
    source, build = project("fetched")
    files = [*installed_files(), machine.ROOT / "CMakeLists.txt", *(machine.ROOT / "cmake").iterdir()]
    archive = tmp_path / "dlpack_py.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for file in files:
            tar.add(file, Path("dlpack_py", file.relative_to(machine.ROOT)))
    configure(source, build, f"-DARCHIVE={archive}")
    run("cmake", "--build", build)
    check_module(build)


def installed_files():
    """What a project copies or installs: all headers, and their declarations for Cython."""
    return [path for suffix in ("h", "hpp", "pxd") for path in sorted(machine.ROOT.glob(f"dlpack_*.{suffix}"))]


def test_all_headers_and_declarations_are_installed(installed):
    names = {path.name for path in installed_files()}
    assert len(names) >= 16
    assert {path.name for path in (installed / "include").iterdir()} == names


def test_an_installed_package_is_found(project, installed):
    """The project calls find_package(Python) afterwards: this package has not decided which Python that is."""
    source, build = project("package")
    text = (source / "CMakeLists.txt").read_text()
    assert text.index("find_package(dlpack_py") < text.index("find_package(Python")
    configure(source, build, f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", build)
    check_module(build)


LOOK = """
cmake_minimum_required(VERSION 3.18...4.0)
project(look LANGUAGES C)
if(ALONE)
  unset(ENV{VIRTUAL_ENV})
  set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
  set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
endif()
find_package(dlpack_py REQUIRED)
get_target_property(found dlpack_py::dlpack_py INTERFACE_INCLUDE_DIRECTORIES)
message(NOTICE "include: ${found}")
get_cmake_property(names CACHE_VARIABLES)
list(FILTER names INCLUDE REGEX "[Pp]ython|PYTHON|DLPACK_")
message(NOTICE "variables: ${names}")
"""


def look(folder, prefix, *options):
    """Which folders find_package(dlpack_py) gives in an activated environment, which variables it leaves, and what it
    has said."""
    source = folder / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(LOOK)
    command = ["cmake", "-S", source, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", *options]
    environment = {**ENVIRONMENT, "VIRTUAL_ENV": os.path.dirname(os.path.dirname(sys.executable))}
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, *folders = re.search(r"^include: (.*)$", done.stderr, re.MULTILINE)[1].split(";")
    return folders, re.search(r"^variables: (.*)$", done.stderr, re.MULTILINE)[1], done.stderr


@needs_tvm_ffi
def test_a_package_finds_dlpack_h_without_find_package_python(installed, tmp_path):
    folders, variables, said = look(tmp_path, installed)
    assert Path(folders[0], "dlpack", "dlpack.h").exists() and "tvm_ffi" in folders[0]
    assert variables == "" and "found no dlpack.h" not in said


@pytest.mark.parametrize("version, found", [("DLPACK_MAJOR_VERSION 1", True), ("DLPACK_VERSION 80", False)])
def test_a_package_finds_a_dlpack_h_of_the_system_that_is_new_enough(installed, tmp_path, version, found):
    header = tmp_path / "system" / "include" / "dlpack" / "dlpack.h"
    header.parent.mkdir(parents=True)
    header.write_text(f"#define {version}\n")
    folders, variables, said = look(tmp_path, f"{installed};{tmp_path / 'system'}", "-DALONE=ON")  # and no Python
    assert folders == ([str(tmp_path / "system" / "include")] if found else [])
    assert variables == "" and ("found no dlpack.h 1.0 or newer" in said) != found


def test_a_package_with_a_dlpack_h_beside_the_headers_looks_for_no_other(installed, tmp_path):
    prefix = tmp_path / "prefix"
    shutil.copytree(installed, prefix)
    shutil.copytree(list(machine.dlpack_headers().values())[-1] + "/dlpack", prefix / "include" / "dlpack")
    folders, variables, said = look(tmp_path, prefix)
    assert (folders, variables) == ([], "") and "found no dlpack.h" not in said


@pytest.mark.parametrize("wanted, found", [("0.1", False), ("1.1", True), ("2.0", False)])
def test_an_installed_package_is_found_for_its_major_version(project, tmp_path, wanted, found):
    later = tmp_path / "later"
    shutil.copytree(machine.ROOT / "cmake", later / "cmake")
    shutil.copy(machine.ROOT / "CMakeLists.txt", later)
    for file in installed_files():
        (later / file.name).write_text('#define DLPACK_PY_VERSION_STRING "1.2.0"\n')
    prefix = install(later, tmp_path / "install", tmp_path / "prefix")

    source, build = project("package")
    listfile = source / "CMakeLists.txt"
    text, count = re.subn(r"dlpack_py 0\.\d", f"dlpack_py {wanted}", listfile.read_text())
    assert count == 1
    listfile.write_text(text)
    with contextlib.nullcontext() if found else pytest.raises(AssertionError, match="version: 1.2.0"):
        configure(source, build, f"-DCMAKE_PREFIX_PATH={prefix}")


def test_dlpack_include_dir_takes_precedence(project, installed, tmp_path):
    source, build = project("package")
    (tmp_path / "old" / "dlpack").mkdir(parents=True)
    (tmp_path / "old" / "dlpack" / "dlpack.h").write_text("#define DLPACK_DLPACK_H_\n")
    configure(source, build, f"-DCMAKE_PREFIX_PATH={installed}", f"-DDLPACK_INCLUDE_DIR={tmp_path / 'old'}")
    with pytest.raises(AssertionError, match="needs dlpack.h 1.x"):
        run("cmake", "--build", build)


def build_with_meson(source, build, *options):
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    run(*meson, "setup", source, build, *options)
    run(*meson, "compile", "-C", build)
    check_module(build)


def test_meson_finds_the_installed_package(project, installed):
    source, build = project("meson")
    include = list(machine.dlpack_headers().values())[-1]
    paths = [f"--pkg-config-path={installed / 'share' / 'pkgconfig'}", f"--cmake-prefix-path={installed}"]
    build_with_meson(source, build, *paths, f"-Dc_args=-I{include}")


def subproject(source):
    folder = source / "subprojects" / "dlpack_py"
    folder.mkdir(parents=True)
    for file in [*installed_files(), machine.ROOT / "meson.build"]:
        shutil.copy(file, folder)
    return folder


@needs_tvm_ffi
def test_meson_takes_the_headers_as_a_subproject(project):
    source, build = project("meson_subproject")
    subproject(source)
    build_with_meson(source, build)


def test_meson_takes_a_dlpack_h_beside_the_headers_of_a_subproject(project):
    source, build = project("meson_subproject")
    shutil.copytree(list(machine.dlpack_headers().values())[-1] + "/dlpack", subproject(source) / "dlpack")
    build_with_meson(source, build)
    assert "found no apache-tvm-ffi" not in (build / "meson-logs" / "meson-log.txt").read_text()
    assert "tvm_ffi" not in (build / "compile_commands.json").read_text()


def test_meson_takes_an_absolute_path_into_the_source_tree(project, monkeypatch):
    """As of a virtual environment in the project. include_directories() refuses such a path."""
    source, build = project("meson_include")
    site = source / "venv" / "site-packages"
    include = site / "headers" / "include"
    shutil.copytree(list(machine.dlpack_headers().values())[-1] + "/dlpack", include / "dlpack")
    for file in installed_files():
        shutil.copy(file, include)
    (include.parent / "__init__.py").write_text(f"def get_include():\n    return {str(include)!r}\n")
    monkeypatch.setitem(ENVIRONMENT, "PYTHONPATH", str(site))
    build_with_meson(source, build)
    listfile = source / "meson.build"
    text, count = re.subn(
        r"compile_args: '-I' \+ (.*)\)$",
        r"include_directories: include_directories(\1))",
        listfile.read_text(),
        flags=re.MULTILINE,
    )
    assert count == 1
    listfile.write_text(text)
    shutil.rmtree(build)
    with pytest.raises(AssertionError, match="absolute path"):
        build_with_meson(source, build)


def test_pkg_config_knows_the_installed_header(installed):
    if machine.output("pkg-config", "--version") is None:
        pytest.skip("pkg-config: not on this machine")
    path = {**os.environ, "PKG_CONFIG_PATH": str(installed / "share" / "pkgconfig")}
    ask = ["pkg-config", "--cflags", "dlpack_py >= 0.2"]
    answer = subprocess.run(ask, env=path, capture_output=True, text=True, check=True).stdout
    folder = re.search(r"-I(\S+)", answer)[1]
    assert os.path.samefile(folder, installed / "include")
    version = subprocess.run(["pkg-config", "--modversion", "dlpack_py"], env=path, capture_output=True, text=True)
    text = (machine.ROOT / "dlpack_tensor.h").read_text()
    assert version.stdout.strip() == re.search(r'^#define DLPACK_PY_VERSION_STRING "(.*)"$', text, re.MULTILINE)[1]

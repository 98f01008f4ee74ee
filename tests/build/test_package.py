"""The package dlpack-py: what it contains, and each way in which a user's project builds with it, offline.

`make test-package` installs more build tools, and asks the index of packages: make test leaves these tests out.
"""

import email
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import machine
import pytest
from optional import needs, needs_numpy

HERE = machine.ROOT / "tests" / "build"
HEADERS = sorted(path.name for suffix in ("h", "hpp") for path in machine.ROOT.glob(f"dlpack_*.{suffix}"))
DECLARATIONS = sorted(path.name for path in machine.ROOT.glob("dlpack_*.pxd"))
TEXT = (machine.ROOT / "dlpack_tensor.h").read_text()
VERSION = re.search(r'define DLPACK_PY_VERSION_STRING "(.*?)"', TEXT)[1]
README = (machine.ROOT / "README.md").read_text()

MORE = bool(os.environ.get("DLPACK_PY_COMPLETE"))
needs_index = pytest.mark.skipif(not MORE, reason="the index of packages: make test-package asks it")


def run(*command, status=0, **options):
    """The output of a command. PATH begins with the tools of this Python."""
    environment = {**os.environ, **options.pop("env", {})}
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    environment.pop("PYTHONPATH", None)  # of make: the modules of this tree
    command = list(map(str, command))
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, **options)
    assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr if status else done.stdout


def build(kind, tree, folder, **env):
    """Builds the "wheel" or the "sdist" of a tree, as pip and build do it. Returns the file."""
    pytest.importorskip("hatchling", exc_type=ModuleNotFoundError, reason="hatchling: not on this machine")
    if importlib.util.find_spec("tvm_ffi") is None:
        pytest.skip("apache-tvm-ffi: not on this machine")
    folder.mkdir(exist_ok=True)
    code = f"import hatchling.build as b; print(b.build_{kind}({str(folder)!r}))"
    return folder / run(sys.executable, "-c", code, cwd=tree, env=env).strip()


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    return build("sdist", machine.ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return build("wheel", machine.ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def unpacked(sdist, tmp_path_factory):
    """The tree of the sdist."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as tar:
        tar.extractall(folder)
    (tree,) = folder.iterdir()
    return tree


def new_environment(folder, wheel):
    """A new environment that has nothing but the wheel. Returns its Python."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel)
    return python


@pytest.fixture(scope="session")
def alone(wheel, tmp_path_factory):
    """The Python of an environment that has only the package."""
    return new_environment(tmp_path_factory.mktemp("alone") / "environment", wheel)


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory):
    """The Python of an environment that has the package, and the build tools of this Python."""
    made = new_environment(tmp_path_factory.mktemp("python") / "environment", wheel)
    site = run(made, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "tools.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return made


def ask(python, *options):
    return run(python, "-m", "dlpack_py", *options).strip()


def contents(wheel):
    """{name: content} of the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


# What is in the archives


def test_the_wheel_has_all_headers_declarations_and_files_of_build_tools(wheel):
    files = contents(wheel)
    info = f"dlpack_py-{VERSION}.dist-info/"
    expected = {f"include/{name}" for name in [*HEADERS, *DECLARATIONS, "dlpack/dlpack.h", "dlpack/LICENSE"]}
    expected |= {"__init__.pxd"} | {name for name in DECLARATIONS if name != "dlpack_py.pxd"}
    expected |= {"__init__.py", "__main__.py", "_vendor.py", "py.typed", "source.json", "LICENSE"}
    cmake = ["config", "config-version", "targets"]
    expected |= {f"share/cmake/dlpack_py/{name}.cmake" for name in ["find-dlpack", *(f"dlpack_py-{c}" for c in cmake)]}
    expected |= {"share/pkgconfig/dlpack_py.pc"}
    expected = {f"dlpack_py/{name}" for name in expected}
    expected |= {info + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert files.keys() == expected
    for name in [*HEADERS, *DECLARATIONS]:
        assert files[f"dlpack_py/include/{name}"] == (machine.ROOT / name).read_bytes()
    assert not any(b"@" in content for name, content in files.items() if name.endswith((".cmake", ".pc")))


def test_dlpack_h_is_the_newest_and_has_its_licence(wheel):
    files = contents(wheel)
    text = files["dlpack_py/include/dlpack/dlpack.h"].decode()
    assert re.findall(r"define DLPACK_M\w+_VERSION (\d+)", text) == ["1", "3"] == machine.DLPACKS[-1].split(".")
    licence = files["dlpack_py/include/dlpack/LICENSE"].decode()
    assert "Apache License" in licence.splitlines()[0] and licence.endswith("limitations under the License.\n")
    assert files["dlpack_py/LICENSE"] == (machine.ROOT / "LICENSE").read_bytes()


def test_the_wheel_installs_everywhere_and_needs_nothing(wheel):
    assert wheel.name == f"dlpack_py-{VERSION}-py3-none-any.whl"
    metadata = email.message_from_bytes(contents(wheel)[f"dlpack_py-{VERSION}.dist-info/METADATA"])
    assert (metadata["Name"], metadata["Version"], metadata["Requires-Python"]) == ("dlpack-py", VERSION, ">=3.9")
    assert metadata["Requires-Dist"] is None and metadata["License-Expression"] == "MIT AND Apache-2.0"


def test_the_sdist_is_the_whole_tree_and_dlpack_h(sdist):
    with tarfile.open(sdist) as tar:
        names = {member.name.split("/", 1)[1] for member in tar if member.isfile()}
    added = {"PKG-INFO", *(f"python/dlpack_py/{name}" for name in ("source.json", "include/dlpack/dlpack.h"))}
    added.add("python/dlpack_py/include/dlpack/LICENSE")
    assert names >= added
    tracked = machine.output("git", "-C", str(machine.ROOT), "ls-files")
    if tracked:  # which it is not in the tree of an sdist
        new = machine.output("git", "-C", str(machine.ROOT), "ls-files", "--others", "--exclude-standard").splitlines()
        assert names - added == {name for name in [*tracked.splitlines(), *new] if (machine.ROOT / name).exists()}


def test_a_build_from_the_sdist_needs_no_other_package_and_gives_the_same_wheel(unpacked, wheel, tmp_path):
    code = "import hatchling.build as b; print(b.get_requires_for_build_wheel() + b.get_requires_for_build_sdist())"
    requirement = (machine.ROOT / "requirements" / "dlpack.txt").read_text().split()[0]
    if not (machine.ROOT / "PKG-INFO").exists():
        assert run(sys.executable, "-c", code, cwd=machine.ROOT).strip() == str([requirement] * 2)
    assert run(sys.executable, "-c", code, cwd=unpacked).strip() == "[]"
    hidden = tmp_path / "hidden" / "tvm_ffi"  # another package is found first: a build that looked for it would fail
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(hidden.parent)!r}); import hatchling.build as b"
    run(sys.executable, "-c", f"{code}; b.build_wheel({str(tmp_path)!r})", cwd=unpacked)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_two_builds_have_the_same_bytes(sdist, wheel, tmp_path):
    """Of two trees whose files have different dates and permissions."""
    tree = tmp_path / "tree"
    built = shutil.ignore_patterns("build", ".venv*", ".*_cache", ".hypothesis", "__pycache__")

    def ignored(path, names):
        return built(path, names) if Path(path) == machine.ROOT else []

    shutil.copytree(machine.ROOT, tree, ignore=ignored)
    for path in tree.rglob("*.h"):
        os.utime(path, (10**9, 10**9))
        path.chmod(0o600)
    for kind, first in ("sdist", sdist), ("wheel", wheel):
        assert build(kind, tree, tmp_path / "again").read_bytes() == first.read_bytes()
        dated = [build(kind, tree, tmp_path / f"dated{i}", SOURCE_DATE_EPOCH="1700000000") for i in range(2)]
        assert dated[0].read_bytes() == dated[1].read_bytes() != first.read_bytes()
    assert {info.date_time[:3] for info in zipfile.ZipFile(dated[0]).infolist()} == {(2023, 11, 14)}


def test_dlpack_h_comes_from_a_wheel_where_none_installs(wheel, tmp_path):
    """DLPACK_PY_DLPACK_WHEEL names it; a file that is not the pinned one is refused."""
    package = Path(importlib.util.find_spec("tvm_ffi").submodule_search_locations[0])
    licences = list(package.parent.glob("apache_tvm_ffi-*.dist-info/licenses/LICENSE"))
    if not licences:
        pytest.skip("the licence of apache-tvm-ffi: not on this machine")
    if (machine.ROOT / "PKG-INFO").exists():
        pytest.skip("a clone: this is the tree of an sdist, which has dlpack.h")
    named = tmp_path / "other.whl"
    for changed in False, True:
        with zipfile.ZipFile(named, "w") as archive:
            archive.writestr("apache_tvm_ffi-1.dist-info/licenses/LICENSE", licences[0].read_bytes())
            header = (package / "include" / "dlpack" / "dlpack.h").read_bytes()
            archive.writestr("tvm_ffi/include/dlpack/dlpack.h", header + b"\n" * changed)
        code = "import hatchling.build as b; print(b.get_requires_for_build_wheel()); b.build_wheel('.', {}) and 0"
        code = code.replace("'.'", repr(str(tmp_path)))
        said = run(
            sys.executable,
            "-c",
            code,
            cwd=machine.ROOT,
            env={"DLPACK_PY_DLPACK_WHEEL": str(named)},
            status=int(changed),
        )
        assert said.startswith("[]")
        assert ("the dlpack.h in" in said) == changed
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


# What it says of itself


def test_the_module_tells_the_folder_and_the_version(alone):
    code = "import dlpack_py as d; print(d.get_include(), d.__version__, *sorted(d.__all__))"
    folder, version, *names = run(alone, "-I", "-c", code).split()
    assert (version, names) == (VERSION, ["__version__", "get_include"])
    assert Path(folder, "dlpack_py.h").is_file() and Path(folder, "dlpack", "dlpack.h").is_file()


def test_the_module_prints_what_build_tools_ask_for(alone):
    folder = run(alone, "-c", "import dlpack_py; print(dlpack_py.get_include())").strip()
    assert ask(alone, "--version") == VERSION
    assert ask(alone, "--includes") == f"-I{folder}"
    assert Path(ask(alone, "--cmakedir"), "dlpack_py-config.cmake").is_file()
    assert Path(ask(alone, "--pkgconfigdir"), "dlpack_py.pc").is_file()
    assert ask(alone, "--version", "--cmakedir").splitlines() == [ask(alone, "--cmakedir"), VERSION]


def test_without_an_option_it_says_how_it_is_used(alone):
    for options in [], ["--help"]:
        said = ask(alone, *options)
        for word in ("--includes", "--cmakedir", "--pkgconfigdir", "--version", "vendor", "--check", "--update"):
            assert word in said
    assert "exchange buffer pxd" in ask(alone, "vendor", "--help")


@pytest.mark.parametrize("options", ["--nope", "vendr", "vendor", "vendor . --check --update", "vendor . nothing"])
def test_what_it_does_not_know_is_one_line(alone, options, tmp_path):
    said = run(alone, "-m", "dlpack_py", *options.split(), status=2, cwd=tmp_path)
    assert said.startswith("python -m dlpack_py") and said.count("\n") == 1


def test_a_flag_with_a_blank_is_quoted(alone, tmp_path):
    package = Path(ask(alone, "--cmakedir")).parents[2]
    shutil.copytree(package, tmp_path / "a b" / "dlpack_py")
    said = run(alone, "-m", "dlpack_py", "--includes", cwd=tmp_path / "a b").strip()
    quote = '"' if os.name == "nt" else "'"
    assert said[0] == said[-1] == quote and " b" in said


def test_the_package_has_types(python, tmp_path):
    (tmp_path / "use.py").write_text(
        "import dlpack_py\nfolder: str = dlpack_py.get_include() + dlpack_py.__version__\n"
        "wrong: int = dlpack_py.get_include()\n"
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", f"--python-executable={python}"]
    said = run(*mypy, "use.py", cwd=tmp_path, status=1)
    assert re.findall(r"^use.py:(\d+): error", said, re.MULTILINE) == ["3"]


# Projects that build with it


@pytest.fixture
def project(tmp_path):
    """A copy of a project below projects/."""

    def copy(name):
        folder = tmp_path / name
        shutil.copytree(HERE / "projects" / name, folder)
        shutil.copy(HERE / "uses_all.c", folder)
        return folder

    return copy


def pip_wheel(python, project, *options, **env):
    """Builds a project, and returns the folder of what its wheel has."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "wheel", "--no-deps"]
    run(*pip, *(options or ["--no-index", "--no-build-isolation"]), "--wheel-dir", project / "dist", project, env=env)
    (built,) = (project / "dist").glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(project / "installed")
    return project / "installed"


def check_module(folder):
    """Runs uses_all without the package: nothing of it is needed at run time."""
    run(sys.executable, "-c", "import uses_all; uses_all.run()", cwd=folder)


def block(language):
    """A block of code of the README, which stands in a list."""
    found = re.search(rf"^  ```{language}\n(.*?)^  ```$", README, re.DOTALL | re.MULTILINE)[1]
    return re.sub("^  ", "", found, flags=re.MULTILINE)


@pytest.fixture
def setuptools_project(tmp_path):
    """The project of the README."""
    folder = tmp_path / "image"
    folder.mkdir()
    for name, language in ("pyproject.toml", "toml"), ("setup.py", "python"):
        assert block(language).startswith(f"# {name}\n")
        (folder / name).write_text(block(language))
    shutil.copy(machine.ROOT / "examples" / "minimal" / "image.c", folder)
    return folder


@needs_numpy
def test_setuptools_builds_the_project_of_the_readme(python, setuptools_project):
    installed = pip_wheel(python, setuptools_project)
    code = "import image, numpy; assert numpy.from_dlpack(image.Image(2, 3)).shape == (2, 3, 3)"
    run(sys.executable, "-c", code, cwd=installed)


def test_the_requirement_of_the_readme_is_this_version():
    wanted = re.search(r'"dlpack-py==(.*)\.\*"', block("toml"))[1]
    assert VERSION.startswith(wanted + ".")


@needs_index
def test_setuptools_builds_in_an_environment_of_its_own(index, python, setuptools_project, wheel):
    """As `pip install` does it for users: the build requirements come from the index, and the package from a folder."""
    pip_wheel(python, setuptools_project, "--find-links", wheel.parent)


@needs("scikit_build_core", "make test-package")
def test_scikit_build_core_finds_the_package_by_itself(python, project):
    check_module(pip_wheel(python, project("package")))


def meson_with(project, line):
    """Replaces the line of the dependency."""
    path = project / "meson.build"
    text, count = re.subn(r"^dlpack_py = .*$", lambda _: line, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


@needs("mesonpy", "make test-package")
def test_meson_python_builds_with_the_lines_of_the_readme(python, project):
    folder = project("meson")
    meson_with(folder, block("meson"))
    check_module(pip_wheel(python, folder))


@needs("mesonpy", "make test-package")
@needs("pkgconf", "make test-package")
@pytest.mark.parametrize("how", ["path", "pkgconf"])
def test_meson_python_finds_the_dependency_by_a_path_or_by_the_package_pkgconf(python, project, how):
    """The Python package pkgconf asks the packages that are installed for their paths."""
    env = {"FORCE_PKGCONF_PYPI": "1", "VIRTUAL_ENV": str(python.parents[1])}
    if how == "path":
        env = {"PKG_CONFIG_PATH": ask(python, "--pkgconfigdir")}
    check_module(pip_wheel(python, project("meson"), **env))


def configure(source, folder, *options):
    run("cmake", "-S", source, "-B", folder, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}", *options)
    run("cmake", "--build", folder)


@pytest.mark.parametrize("option", ["-Ddlpack_py_DIR", "-DCMAKE_PREFIX_PATH"])
def test_cmake_finds_the_package(alone, project, tmp_path, option):
    folder = ask(alone, "--cmakedir")
    value = folder if option.endswith("DIR") else Path(folder).parents[2]
    configure(project("package"), tmp_path / "build", f"{option}={value}")
    check_module(tmp_path / "build")
    commands = (tmp_path / "build" / "build.ninja").read_text()
    assert "tvm_ffi" not in commands and str(Path(folder).parents[2] / "include") in commands


def test_cmake_says_that_the_package_uses_its_own_dlpack_h(alone, project, tmp_path):
    """Its headers find the dlpack.h beside them, whatever the include path."""
    options = [f"-Ddlpack_py_DIR={ask(alone, '--cmakedir')}", f"-DDLPACK_INCLUDE_DIR={tmp_path}"]
    done = subprocess.run(
        ["cmake", project("package"), "-G", "Ninja", *options], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "DLPACK_INCLUDE_DIR is not used" in done.stderr


@pytest.mark.parametrize("component, target", [("cuda", "CUDA::cudart"), ("rocm", "hip::host")])
def test_the_targets_of_devices_are_those_of_an_installation(alone, tmp_path, component, target):
    """With a target of the runtime that stands for the real one."""
    (tmp_path / "CMakeLists.txt").write_text(f"""
        cmake_minimum_required(VERSION 3.18...4.0)
        project(device LANGUAGES C)
        find_package(dlpack_py 0.2 REQUIRED)
        add_library({target} INTERFACE IMPORTED)
        target_compile_definitions({target} INTERFACE OF_THE_RUNTIME)
        add_library(device OBJECT device.c)
        target_link_libraries(device PRIVATE dlpack_py::{component})
    """)
    (tmp_path / "device.c").write_text(f"""
        #include "dlpack_tensor.h"
        #if !defined(DLPACK_PY_WITH_{component.upper()}) || !defined(OF_THE_RUNTIME)
        #  error "not linked"
        #endif
    """)
    configure(tmp_path, tmp_path / "build", f"-Ddlpack_py_DIR={ask(alone, '--cmakedir')}")


def test_cmake_accepts_the_versions_that_it_accepts_of_an_installation(alone, tmp_path):
    """The file of the package beside the file that CMake writes; exact versions and ranges."""
    major, minor, patch = map(int, VERSION.split("."))
    asked = [f"{major}", f"{major}.{minor}", VERSION, f"{major}.{minor}.{patch + 1}", f"{major}.{minor + 1}"]
    asked += [f"{major + 1}", f"{major + 1}.0", "0.0.1"]
    ranges = [(low, high, end) for low in asked for high in asked for end in ("INCLUDE", "EXCLUDE")]
    script = f"""
        cmake_minimum_required(VERSION 3.19...4.0)
        include(CMakePackageConfigHelpers)
        set(CMAKE_SIZEOF_VOID_P 8)
        write_basic_package_version_file(theirs.cmake VERSION {VERSION} COMPATIBILITY SameMajorVersion ARCH_INDEPENDENT)
        function(parts name version)
          string(REGEX MATCHALL "[0-9]+" found "${{version}}")
          list(LENGTH found count)
          list(APPEND found 0 0)
          foreach(part MAJOR MINOR PATCH)
            list(POP_FRONT found number)
            set(${{name}}_${{part}} ${{number}} PARENT_SCOPE)
          endforeach()
          set(${{name}} ${{version}} PARENT_SCOPE)
        endfunction()
        function(answer file)
          foreach(name COMPATIBLE EXACT UNSUITABLE)
            set(PACKAGE_VERSION_${{name}})
          endforeach()
          include("${{file}}")
          foreach(name PACKAGE_VERSION_COMPATIBLE PACKAGE_VERSION_EXACT)
            if(${{name}})
              set(${{name}} 1)
            else()
              set(${{name}} 0)
            endif()
          endforeach()
          set(answer "${{PACKAGE_VERSION}} ${{PACKAGE_VERSION_COMPATIBLE}}${{PACKAGE_VERSION_EXACT}}" PARENT_SCOPE)
        endfunction()
        function(compare text)
          answer(${{CMAKE_CURRENT_LIST_DIR}}/theirs.cmake)
          set(theirs ${{answer}})
          answer({ask(alone, "--cmakedir")}/dlpack_py-config-version.cmake)
          message("${{text}}: ${{theirs}} | ${{answer}}")
        endfunction()
    """
    for version in asked:
        script += f"parts(PACKAGE_FIND_VERSION {version})\ncompare({version})\n"
    for low, high, end in ranges:
        script += f"set(PACKAGE_FIND_VERSION_RANGE {low}...{high})\nset(PACKAGE_FIND_VERSION_RANGE_MAX {end})\n"
        script += f"parts(PACKAGE_FIND_VERSION {low})\nparts(PACKAGE_FIND_VERSION_MIN {low})\n"
        script += f"parts(PACKAGE_FIND_VERSION_MAX {high})\ncompare({low}-{high}-{end})\n"
    (tmp_path / "compare.cmake").write_text(script)
    done = subprocess.run(["cmake", "-P", "compare.cmake"], cwd=tmp_path, capture_output=True, text=True, check=True)
    answers = re.findall(r"^(\S+): (.*) \| (.*)$", done.stderr, re.MULTILINE)
    assert len(answers) == len(asked) + len(ranges)
    assert {answer for _, answer, _ in answers} == {f"{VERSION} {answer}" for answer in ("00", "10", "11")}
    assert [row for row in answers if row[1] != row[2]] == []


def test_meson_finds_the_dependency(alone, project, tmp_path):
    if machine.output("pkg-config", "--version") is None:
        pytest.skip("pkg-config: not on this machine")
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    env = {"PKG_CONFIG_PATH": ask(alone, "--pkgconfigdir")}
    run(*meson, "setup", project("meson"), tmp_path / "build", env=env)
    run(*meson, "compile", "-C", tmp_path / "build")
    check_module(tmp_path / "build")


def test_pkg_config_finds_the_headers_where_the_package_was_moved(alone, tmp_path):
    if machine.output("pkg-config", "--version") is None:
        pytest.skip("pkg-config: not on this machine")
    moved = tmp_path / "moved"
    shutil.copytree(Path(ask(alone, "--cmakedir")).parents[2], moved)
    env = {"PKG_CONFIG_PATH": str(moved / "share" / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "dlpack_py >= 0.2", env=env)
    assert os.path.samefile(re.fullmatch(r"-I(\S+)\s*", flags)[1], moved / "include")
    assert run("pkg-config", "--modversion", "dlpack_py", env=env).strip() == VERSION


def test_a_compiler_needs_one_flag(alone, tmp_path):
    shutil.copy(HERE / "uses_all.c", tmp_path)
    compiler = list(machine.compilers().values())[-1][0]
    flags = ["-shared", "-fPIC", ask(alone, "--includes"), "-I", machine.python_include()]
    run(compiler, *flags, "uses_all.c", "-o", "uses_all.so", cwd=tmp_path)
    check_module(tmp_path)


@needs("Cython", "make test-package")
@needs_numpy
def test_cython_finds_the_declarations_of_the_package(python, tmp_path):
    """As the README says, by setuptools: from dlpack_py, and from the modules of the other headers."""
    for name in "wave", "window":
        text = (machine.ROOT / "examples" / "cython" / f"{name}.pyx").read_text()
        (tmp_path / f"{name}.pyx").write_text(text.replace("from dlpack_buffer", "from dlpack_py.dlpack_buffer"))
    toml = block("toml").replace('"setuptools>=61"', '"setuptools>=61", "cython>=3"')
    (tmp_path / "pyproject.toml").write_text(toml)
    setup = block("python").replace('["image.c"]', '["wave.pyx"]').replace('"image"', '"wave"')
    assert setup.count("ext_modules=[image]") == 1
    other = 'Extension("window", ["window.pyx"], include_dirs=[dlpack_py.get_include()])'
    (tmp_path / "setup.py").write_text(setup.replace("ext_modules=[image]", f"ext_modules=[image, {other}]"))
    installed = pip_wheel(python, tmp_path)
    code = """
import numpy, wave, window
array = numpy.from_dlpack(wave.Wave(3))
array[:] = 2
assert wave.total(array) == 6 and numpy.from_dlpack(window.Window(array, 1, 3)).tolist() == [2, 2]
"""
    run(sys.executable, "-c", code, cwd=installed)


@needs("Cython", "make test-package")
@pytest.mark.parametrize("path", ["package", "include path"])
@pytest.mark.parametrize("name", [path.removesuffix(".pxd") for path in DECLARATIONS])
def test_cython_finds_each_declaration(python, tmp_path, name, path):
    """By the package, or with get_include() as include path, where they have the names of copied files."""
    module = "dlpack_py" if name == "dlpack_py" else f"dlpack_py.{name}"
    options = []
    if path == "include path":
        module, options = name, ["-I", Path(ask(python, "--cmakedir")).parents[2] / "include"]
    if path == "package" and name == "dlpack_device":
        module = "dlpack_py.dlpack_cuda"  # which includes it
    (tmp_path / "use.pyx").write_text(f"from {module} cimport *\ndef use():\n    return 1\n")
    run(python, "-m", "cython", "-3", "--warning-errors", *options, "use.pyx", cwd=tmp_path)


# Headers in a project


def vendor(python, *options, status=0, cwd):
    return run(python, "-m", "dlpack_py", "vendor", *options, status=status, cwd=cwd)


def states(said, folder="third_party"):
    """{file: state} of the lines that --check prints."""
    return {line.split(": ")[0].removeprefix(f"{folder}/"): line.split(": ", 1)[1] for line in said.splitlines()}


def folder_of(path):
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())


DEFAULT = ["dlpack/LICENSE", "dlpack/dlpack.h", "dlpack_py.LICENSE", "dlpack_py.h", "dlpack_py.json", "dlpack_tensor.h"]


@pytest.mark.parametrize(
    "names, added",
    [
        ("", []),
        ("py", []),
        ("exchange", ["dlpack_exchange.h"]),
        ("dlpack_buffer.h", ["dlpack_buffer.h"]),
        ("hpp copy", ["dlpack_copy.h", "dlpack_py.hpp"]),
        ("pxd", ["dlpack_py.pxd", "dlpack_tensor.pxd"]),
        ("exchange pxd", ["dlpack_exchange.h"] + [f"dlpack_{n}.pxd" for n in ("exchange", "py", "tensor")]),
        ("cuda", [f"dlpack_{name}.h" for name in ("cuda", "device", "device_library", "exchange")]),
    ],
)
def test_vendor_copies_the_named_headers_and_what_they_include(alone, tmp_path, names, added):
    vendor(alone, "third_party/", *names.split(), cwd=tmp_path)
    folder = tmp_path / "third_party"
    assert folder_of(folder) == sorted(DEFAULT + added)
    assert (folder / "dlpack_py.h").read_bytes() == (machine.ROOT / "dlpack_py.h").read_bytes()
    assert set(states(vendor(alone, "third_party", "--check", cwd=tmp_path)).values()) == {"as in this package"}


def test_vendored_headers_compile_without_another_path(alone, tmp_path):
    vendor(alone, ".", "exchange", "buffer", cwd=tmp_path)
    shutil.copy(HERE / "uses_all.c", tmp_path)
    compiler = list(machine.compilers().values())[-1][0]
    run(compiler, "-shared", "-fPIC", "-I", machine.python_include(), "uses_all.c", "-o", "uses_all.so", cwd=tmp_path)
    check_module(tmp_path)


def test_a_project_of_setuptools_with_copies_has_them_in_its_sdist_and_not_in_its_wheel(alone, python, tmp_path):
    """With py_modules and MANIFEST.in, as the README says."""
    project = tmp_path / "project"
    shutil.copytree(machine.ROOT / "examples" / "minimal", project)
    vendor(alone, "third_party", cwd=project)
    (project / "pyproject.toml").write_text(block("toml").replace(re.search(r', "dlpack-py.*?"', block("toml"))[0], ""))
    lines = ["from setuptools import Extension, setup"]
    lines += ['image = Extension("image", ["image.c"], include_dirs=["third_party"])']
    lines += ["setup(py_modules=[], ext_modules=[image])", ""]
    (project / "setup.py").write_text("\n".join(lines))
    (project / "MANIFEST.in").write_text("graft third_party\n")
    code = "import setuptools.build_meta as build; print(build.build_sdist('dist'))"
    name = run(sys.executable, "-c", code, cwd=project).splitlines()[-1]
    shutil.unpack_archive(project / "dist" / name, tmp_path / "unpacked")
    installed = pip_wheel(python, tmp_path / "unpacked" / name.removesuffix(".tar.gz"))
    assert list(installed.rglob("*third_party*")) == []
    run(sys.executable, "-c", "import image; image.blur", cwd=installed)


def test_the_stamp_has_version_commit_and_files(alone, tmp_path):
    vendor(alone, ".", "tensor", "--no-dlpack-h", cwd=tmp_path)
    stamp = json.loads((tmp_path / "dlpack_py.json").read_text())
    assert folder_of(tmp_path) == ["dlpack_py.LICENSE", "dlpack_py.json", "dlpack_tensor.h"]
    commit = machine.output("git", "-C", str(machine.ROOT), "rev-parse", "HEAD")
    if commit and (machine.ROOT / ".git").exists():
        assert re.fullmatch(rf"{commit}(-dirty)?", stamp["commit"])
    digest = hashlib.sha256((machine.ROOT / "dlpack_tensor.h").read_bytes()).hexdigest()
    assert stamp["version"] == VERSION and stamp["url"].startswith("https://")
    assert stamp["files"].keys() == {"dlpack_py.LICENSE", "dlpack_tensor.h"}
    assert stamp["files"]["dlpack_tensor.h"] == digest


def test_check_says_of_each_file_whether_it_is_changed_or_missing(alone, tmp_path):
    vendor(alone, "third_party", cwd=tmp_path)
    folder = tmp_path / "third_party"
    with (folder / "dlpack_py.h").open("a") as file:
        file.write("/* mine */\n")
    (folder / "dlpack_tensor.h").unlink()
    found = states(vendor(alone, "third_party", "--check", status=1, cwd=tmp_path))
    assert found.pop("dlpack_py.h") == f"changed by hand, was {VERSION}"
    assert found.pop("dlpack_tensor.h") == "missing"
    assert set(found.values()) == {"as in this package"} and len(found) == 3


def test_line_ends_of_windows_are_no_change(alone, tmp_path):
    vendor(alone, ".", cwd=tmp_path)
    path = tmp_path / "dlpack_py.h"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    vendor(alone, ".", "--check", cwd=tmp_path)


@pytest.fixture(scope="session")
def older(unpacked, tmp_path_factory):
    """The Python of an environment with version 0.0.9, whose headers differ in the version only."""
    tree = tmp_path_factory.mktemp("older") / "tree"
    shutil.copytree(unpacked, tree, ignore=shutil.ignore_patterns("tests", "docs", "benchmarks"))
    for path in tree.glob("dlpack_*.h"):
        path.write_text(path.read_text().replace(VERSION, "0.0.9"))
    (tree / "PKG-INFO").unlink()  # which says the version, too
    wheel = build("wheel", tree, tree.parent / "dist")
    assert wheel.name == "dlpack_py-0.0.9-py3-none-any.whl"
    return new_environment(tree.parent / "environment", wheel)


OLD = f"old: 0.0.9, this package has {VERSION}"


@pytest.mark.parametrize("how", ["stamp", "by hand"])
def test_an_older_version_is_found_and_updated(alone, older, tmp_path, how):
    """With the stamp of the older version; and copied by hand, where the headers say their version."""
    vendor(older, "third_party", "buffer", cwd=tmp_path)
    folder = tmp_path / "third_party"
    if how == "by hand":
        for name in "dlpack_py.json", "dlpack_py.LICENSE":
            (folder / name).unlink()
        (folder / "dlpack_buffer.h").write_text("/* an older one, which names no version */\n")
    status = 3 if how == "stamp" else 1  # 1: the licence is missing
    found = states(vendor(alone, "third_party", "--check", status=status, cwd=tmp_path))
    assert found["dlpack_py.h"] == found["dlpack_tensor.h"] == found["dlpack_buffer.h"] == OLD
    said = states(vendor(alone, "third_party", "--update", cwd=tmp_path))
    assert said["dlpack_py.h"] == "updated, was 0.0.9"
    assert said["dlpack_py.LICENSE"] == ("as in this package" if how == "stamp" else "added")
    vendor(alone, "third_party", "--check", cwd=tmp_path)
    assert folder_of(folder) == sorted([*DEFAULT, "dlpack_buffer.h"])
    assert json.loads((folder / "dlpack_py.json").read_text())["version"] == VERSION


def test_an_older_project_of_one_header_gets_those_that_it_needs_now(alone, tmp_path):
    """Version 0.1.0 was one header. dlpack.h, which the project had from elsewhere, is not added."""
    (tmp_path / "dlpack_py.h").write_text("/* dlpack_py.h - DLPack\n * Version 0.1.0, for DLPack 1.0 and newer\n */\n")
    said = vendor(alone, ".", "--check", status=1, cwd=tmp_path)
    missing = dict.fromkeys(["dlpack_py.LICENSE", "dlpack_tensor.h"], "missing")
    assert states(said, ".") == {"dlpack_py.h": f"old: 0.1.0, this package has {VERSION}", **missing}
    vendor(alone, ".", "--update", cwd=tmp_path)
    assert folder_of(tmp_path) == ["dlpack_py.LICENSE", "dlpack_py.h", "dlpack_py.json", "dlpack_tensor.h"]
    vendor(alone, ".", "--check", cwd=tmp_path)


@pytest.mark.parametrize("how", ["stamp", "by hand"])
def test_update_refuses_a_changed_file_unless_forced(alone, older, tmp_path, how):
    """Without a stamp, a file of this version that differs is changed."""
    vendor(older if how == "stamp" else alone, ".", cwd=tmp_path)
    if how == "by hand":
        (tmp_path / "dlpack_py.json").unlink()
    with (tmp_path / "dlpack_py.h").open("a") as file:
        file.write("/* mine */\n")
    before = (tmp_path / "dlpack_tensor.h").read_bytes()
    since = "0.0.9" if how == "stamp" else VERSION
    said = vendor(alone, ".", "--update", status=2, cwd=tmp_path)
    assert said.count("\n") == 1 and f"dlpack_py.h (changed by hand, was {since})" in said
    assert (tmp_path / "dlpack_tensor.h").read_bytes() == before
    vendor(alone, ".", "--update", "--force", cwd=tmp_path)
    vendor(alone, ".", "--check", cwd=tmp_path)


def test_an_older_package_does_not_go_back_unless_forced(alone, older, tmp_path):
    vendor(alone, ".", cwd=tmp_path)
    found = states(vendor(older, ".", "--check", status=3, cwd=tmp_path), ".")
    assert found["dlpack_py.h"] == f"newer: {VERSION}, this package has 0.0.9"
    vendor(older, ".", "--update", status=2, cwd=tmp_path)
    vendor(older, ".", "--update", "--force", cwd=tmp_path)
    vendor(older, ".", "--check", cwd=tmp_path)


def test_an_old_dlpack_h_beside_the_headers_is_updated_there(alone, tmp_path):
    """By the version that its macros say; an older package named no other folder for it."""
    vendor(alone, ".", "--no-dlpack-h", cwd=tmp_path)
    (tmp_path / "dlpack_py.json").unlink()
    (tmp_path / "dlpack.h").write_text("#define DLPACK_MAJOR_VERSION 1\n#define DLPACK_MINOR_VERSION 0\n")
    assert states(vendor(alone, ".", "--check", status=1, cwd=tmp_path), ".")["dlpack.h"].startswith("old: 1.0")
    vendor(alone, ".", "--update", cwd=tmp_path)
    assert "MINOR_VERSION 3" in (tmp_path / "dlpack.h").read_text() and (tmp_path / "dlpack" / "LICENSE").exists()
    vendor(alone, ".", "--check", cwd=tmp_path)


@pytest.mark.parametrize("declarations", [[], ["pxd"]])
def test_update_adds_named_headers(alone, tmp_path, declarations):
    """And their declarations, to a folder that has declarations."""
    vendor(alone, ".", *declarations, cwd=tmp_path)
    vendor(alone, ".", "--update", "buffer", "--no-dlpack-h", cwd=tmp_path)
    assert "dlpack_buffer.h" in json.loads((tmp_path / "dlpack_py.json").read_text())["files"]
    assert "exchange" not in "".join(folder_of(tmp_path))
    assert (tmp_path / "dlpack_buffer.pxd").exists() == bool(declarations)


def test_copying_does_not_overwrite(alone, tmp_path):
    (tmp_path / "dlpack_py.h").write_text("mine\n")
    said = vendor(alone, ".", status=2, cwd=tmp_path)
    assert "dlpack_py.h is there already" in said and folder_of(tmp_path) == ["dlpack_py.h"]
    said = states(vendor(alone, ".", "--force", cwd=tmp_path), ".")
    assert (said["dlpack_py.h"], said["dlpack_tensor.h"]) == ("overwritten", "added")
    assert "is there already: --update" in vendor(alone, ".", "exchange", status=2, cwd=tmp_path)


@pytest.mark.parametrize("stamp", ["", "[]", "{}", '{"version": "x", "files": {}}', '{"version": 1, "files": {}}'])
def test_a_stamp_that_is_none_is_one_line(alone, tmp_path, stamp):
    (tmp_path / "dlpack_py.json").write_text(stamp)
    said = vendor(alone, ".", "--check", status=2, cwd=tmp_path)
    assert "dlpack_py.json is no stamp" in said and said.count("\n") == 1


def test_a_stamp_writes_no_other_files(alone, tmp_path):
    """Names that this package does not have, such as those of another folder, are reported and dropped."""
    folder = tmp_path / "third_party"
    vendor(alone, folder, cwd=tmp_path)
    stamp = json.loads((folder / "dlpack_py.json").read_text())
    stamp["files"].update({"../other.h": "0", "dlpack_gone.h": "0"})
    (folder / "dlpack_py.json").write_text(json.dumps(stamp))
    vendor(alone, "third_party", "--update", cwd=tmp_path)
    assert folder_of(tmp_path) == [f"third_party/{name}" for name in DEFAULT]
    vendor(alone, "third_party", "--check", cwd=tmp_path)


def test_a_file_that_the_package_no_longer_has_is_named_until_it_is_deleted(alone, tmp_path):
    vendor(alone, ".", cwd=tmp_path)
    (tmp_path / "dlpack_gone.h").write_text("/* of an older version */\n")
    stamp = json.loads((tmp_path / "dlpack_py.json").read_text())
    stamp["files"]["dlpack_gone.h"] = hashlib.sha256((tmp_path / "dlpack_gone.h").read_bytes()).hexdigest()
    (tmp_path / "dlpack_py.json").write_text(json.dumps(stamp))
    for option, status in ("--check", 1), ("--update", 0), ("--check", 1):
        found = states(vendor(alone, ".", option, status=status, cwd=tmp_path), ".")
        assert found["dlpack_gone.h"] == f"dropped: {VERSION} has no such file, delete it"
    (tmp_path / "dlpack_gone.h").unlink()
    vendor(alone, ".", "--check", cwd=tmp_path)


def test_the_package_in_a_checkout_says_how_it_is_installed(tmp_path):
    (tmp_path / "dlpack_py").mkdir()
    shutil.copy(machine.ROOT / "python" / "dlpack_py" / "__init__.py", tmp_path / "dlpack_py")
    done = subprocess.run([sys.executable, "-c", "import dlpack_py"], cwd=tmp_path, capture_output=True, text=True)
    assert "ImportError: this is the source of dlpack_py, without headers: `pip install .`" in done.stderr


@pytest.mark.parametrize("folder, said", [("nothing", "is no folder"), (".", "has no headers")])
def test_a_folder_without_headers_is_one_line(alone, tmp_path, folder, said):
    for option in "--check", "--update":
        found = vendor(alone, folder, option, status=2, cwd=tmp_path)
        assert said in found and found.count("\n") == 1


# On other platforms

PLATFORMS = [f"musllinux_1_2_{cpu}" for cpu in ("x86_64", "aarch64", "i686", "ppc64le", "s390x")]
PLATFORMS += [f"manylinux_2_17_{cpu}" for cpu in ("x86_64", "aarch64", "i686", "ppc64le", "s390x", "armv7l")]
PLATFORMS += ["macosx_11_0_x86_64", "macosx_11_0_arm64", "win32", "win_amd64", "win_arm64"]


@pytest.fixture(scope="session")
def index(tmp_path_factory):
    """Skips a test if nothing can be downloaded here."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", tmp_path_factory.mktemp("index")]
    if subprocess.run([*pip, "--only-binary=:all:", "setuptools"], capture_output=True).returncode:
        pytest.skip("the index of packages: not reachable from this machine")


@needs_index
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_build_requirements_of_a_project_exist_on_each_platform(index, wheel, tmp_path, platform):
    """Those of the README, for the oldest and the newest Python."""
    requires = re.search(r"requires = \[(.*?)\]", block("toml"))[1].replace('"', "").split(", ")
    for version in "3.9", "3.14":
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--only-binary=:all:"]
        pip += ["--quiet", "--platform", platform, "--python-version", version, "--find-links", wheel.parent]
        run(*pip, "--dest", tmp_path / version, *requires)
        found = {path.name.split("-")[0] for path in (tmp_path / version).iterdir()}
        assert found == {"dlpack_py", "setuptools"}

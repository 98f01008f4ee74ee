"""What this machine has to build with: compilers, interpreters, versions of dlpack.h.

As a program: `others` prints the interpreters beside the one that runs it, `fetch` gets the older versions of dlpack.h.
"""

import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / "build" / "dlpack"  # VERSION/dlpack/dlpack.h

COMPILERS = ["clang", "gcc"]
C_STANDARDS = ["c99", "c11", "c17", "c2x"]
CXX_STANDARDS = ["c++11", "c++14", "c++17", "c++20", "c++2b"]
PYTHONS = ["3.9", "3.10", "3.11", "3.12", "3.13"]
DLPACKS = ["1.0", "1.1", "1.2", "1.3"]

# Packages that ship an older dlpack.h, and where in them it is.
OLDER_DLPACKS = {
    "1.0": ("cuda-core==0.2.0", "cuda/core/experimental/dlpack.h"),
    "1.1": ("cuda-core==0.3.2", "cuda/core/experimental/dlpack.h"),
    "1.2": ("apache-tvm-ffi==0.1.6", "tvm_ffi/include/dlpack/dlpack.h"),
}

WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wsign-conversion -Wcast-qual -Werror".split()


def output(*command):
    """What a command prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def compilers():
    """The compilers on the path, as {"gcc-12": (C, C++ or None)}; the newest gcc, or else clang, is last."""
    found = {}
    for path in os.environ["PATH"].split(os.pathsep):
        for command in glob.glob(os.path.join(path, "gcc*")) + glob.glob(os.path.join(path, "clang*")):
            match = re.fullmatch(r"(gcc|clang)(-\d+)?", os.path.basename(command))
            version = match and output(command, "-dumpversion")
            if version:
                cxx = shutil.which(match[1].replace("gcc", "g++").replace("clang", "clang++") + (match[2] or ""))
                found.setdefault((match[1], int(version.split(".")[0])), (command, cxx))
    return {f"{family}-{major}": pair for (family, major), pair in sorted(found.items())}


@functools.cache
def pythons():
    """The interpreters that have headers, as {"3.9": (command, folder of Python.h)}."""
    found = {}
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    tell = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))"
    for version in PYTHONS:
        name = f"python{version}"
        for command in [sys.executable, name, *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/{name}"))]:
            is_version, _, include = (output(command, "-c", tell) or "").partition(" ")
            if is_version == version and os.path.exists(os.path.join(include, "Python.h")):
                found[version] = (command, include)
                break
    return found


@functools.cache
def has_gil(python):
    return output(python, "-c", "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'))") != "1"


def python_include():
    """The folder of Python.h for the interpreter that runs the tests."""
    return pythons()["{}.{}".format(*sys.version_info)][1]


@functools.cache
def dlpack_headers():
    """The versions of dlpack.h, as {"1.3": include folder}: the Python package's and those that were fetched."""
    found = {}
    package = importlib.util.find_spec("tvm_ffi").submodule_search_locations[0]
    for folder in [os.path.join(package, "include"), *map(str, FETCHED.glob("*"))]:
        text = Path(folder, "dlpack", "dlpack.h").read_text()
        version = (re.search(rf"define DLPACK_{part}_VERSION (\d+)", text)[1] for part in ("MAJOR", "MINOR"))
        found[".".join(version)] = folder
    return dict(sorted(found.items()))


def compile_c(source, *flags, compiler=None, dlpack=None, python=True, cwd=None):
    """Runs a compiler on a file, with no warning allowed; python is a folder of Python.h, True for ours, or None."""
    c, cxx = compiler or list(compilers().values())[-1]
    command = [cxx if str(source).endswith("cpp") else c, *WARNINGS, "-O2", "-fPIC", f"-I{ROOT}"]
    command += ["-isystem", dlpack or list(dlpack_headers().values())[-1]]
    if python:
        command += ["-isystem", python_include() if python is True else python]
    return subprocess.run([*command, str(source), *flags], capture_output=True, text=True, cwd=cwd)


def fetch_older_dlpacks():
    for version, (package, member) in OLDER_DLPACKS.items():
        target = FETCHED / version / "dlpack" / "dlpack.h"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--dest", folder, package], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                text = wheel.read(member)
        target.parent.mkdir(parents=True)
        target.write_bytes(text)


if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        fetch_older_dlpacks()
    elif sys.argv[1:] == ["others"]:
        print("\n".join(command for command, _ in pythons().values() if command != sys.executable))
    else:
        sys.exit(__doc__)

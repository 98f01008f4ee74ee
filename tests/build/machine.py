"""Finds what this machine builds with: compilers, interpreters, versions of dlpack.h, headers of device runtimes.

As a program: `others` prints all interpreters except the one that runs it; `fetch` downloads the older versions of
dlpack.h, the headers of device runtimes and a compiler for other platforms; `fetch-hip` downloads headers of HIP, or
fails, and the library of HIP if Debian has it.
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
FETCHED_RUNTIMES = ROOT / "build" / "runtimes"  # "CUDA 11.8"/cuda_runtime_api.h, "HIP 5.2"/hip/hip_runtime_api.h
FETCHED_ZIG = ROOT / "build" / "zig"  # ziglang, which compiles for other platforms
ZIG = "ziglang==0.17.1"

TEST_CFLAGS = os.environ.get("DLPACK_PY_TEST_CFLAGS", "").split()

COMPILERS = ["clang", "gcc"]
C_STANDARDS = ["c99", "c11", "c17", "c2x"]
CXX_STANDARDS = ["c++11", "c++14", "c++17", "c++20", "c++2b"]
OPTIMIZED = ["c99", "c++17"]  # the standards to compile with optimization; few, to save time
PYTHONS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"]
DLPACKS = ["1.0", "1.1", "1.2", "1.3"]

# Packages that ship an older dlpack.h, and its path in the package.
OLDER_DLPACKS = {
    "1.0": ("cuda-core==0.2.0", "cuda/core/experimental/dlpack.h"),
    "1.1": ("cuda-core==0.3.2", "cuda/core/experimental/dlpack.h"),
    "1.2": ("apache-tvm-ffi==0.1.6", "tvm_ffi/include/dlpack/dlpack.h"),
}

# Packages of a runtime's headers, and of the headers that they include.
RUNTIME_PACKAGES = {
    "CUDA 11.8": ["nvidia-cuda-runtime-cu11==11.8.89", "nvidia-cuda-nvcc-cu11==11.8.89"],
    "CUDA 12.0": ["nvidia-cuda-runtime-cu12==12.0.107", "nvidia-cuda-nvcc-cu12==12.0.76"],
    "CUDA 12.9": ["nvidia-cuda-runtime-cu12==12.9.79", "nvidia-cuda-nvcc-cu12==12.9.86"],
    "CUDA 13.5": ["nvidia-cuda-runtime==13.5.37", "nvidia-cuda-crt==13.5.37"],
    "HIP 7.1": ["triton==3.9.0"],
}
HIP_PACKAGE = "libamdhip64-dev"  # in Debian; version 5.2 in bookworm
# The library of HIP in bookworm, which works without a device, and the libraries that it needs.
HIP_LIBRARIES = "libamdhip64-5 libamd-comgr2 libhsa-runtime64-1 libhsakmt1 libllvm15 libz3-4 libnuma1 libelf1".split()
HIP_LIBRARIES += ["libdrm2", "libdrm-amdgpu1"]
FETCHED_HIP = ROOT / "build" / "hip-library"
RUNTIMES = [*RUNTIME_PACKAGES, "HIP 5.2"]

WARNINGS = "-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wsign-conversion -Wcast-qual -Werror".split()


def output(*command):
    """The output of a command, or None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@functools.cache
def compilers():
    """The compilers on the path, as {"gcc-12": (C, C++ or None)}. The last is the newest gcc, or clang without gcc."""
    found = {}
    for path in os.environ["PATH"].split(os.pathsep):
        for command in glob.glob(os.path.join(path, "gcc*")) + glob.glob(os.path.join(path, "clang*")):
            match = re.fullmatch(r"(gcc|clang)(-\d+)?", os.path.basename(command))
            version = match and output(command, "-dumpversion")
            if version:
                cxx = shutil.which(match[1].replace("gcc", "g++").replace("clang", "clang++") + (match[2] or ""))
                found.setdefault((match[1], int(version.split(".")[0])), (command, cxx))
    return {f"{family}-{major}": pair for (family, major), pair in sorted(found.items())}


def installed_pythons(version):
    """The interpreters of a version, as (command, folder of its headers)."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    tell = "import sys, sysconfig; print('%d.%d ' % sys.version_info[:2] + sysconfig.get_path('include'))"
    name = f"python{version}"
    for command in [sys.executable, name, *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/{name}"))]:
        is_version, _, include = (output(command, "-c", tell) or "").partition(" ")
        if is_version == version:
            yield command, include


@functools.cache
def pythons():
    """The interpreters that have headers, as {"3.9": (command, folder of Python.h)}."""
    found = {}
    for version in PYTHONS:
        for command, include in installed_pythons(version):
            if os.path.exists(os.path.join(include, "Python.h")):
                found.setdefault(version, (command, include))
    return found


@functools.cache
def has_gil(python):
    return output(python, "-c", "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED'))") != "1"


def python_include():
    """The folder of Python.h for the interpreter that runs the tests."""
    return pythons()["{}.{}".format(*sys.version_info)][1]


@functools.cache
def dlpack_headers():
    """The versions of dlpack.h, as {"1.3": include folder}: of the Python package and fetched versions."""
    found = {}
    package = importlib.util.find_spec("tvm_ffi").submodule_search_locations[0]
    for folder in [os.path.join(package, "include"), *map(str, FETCHED.glob("*"))]:
        text = Path(folder, "dlpack", "dlpack.h").read_text()
        version = (re.search(rf"define DLPACK_{part}_VERSION (\d+)", text)[1] for part in ("MAJOR", "MINOR"))
        found[".".join(version)] = folder
    return dict(sorted(found.items()))


@functools.cache
def runtimes():
    """The headers of device runtimes, as {"CUDA 13.0": include folder}: installed or fetched."""
    installed = [os.environ.get("CUDA_HOME", "/usr/local/cuda"), os.environ.get("ROCM_PATH", "/opt/rocm"), "/usr"]
    found = {}
    for folder in [*(Path(root, "include") for root in installed), *FETCHED_RUNTIMES.glob("*")]:
        cuda, hip = folder / "cuda_runtime_api.h", folder / "hip" / "hip_version.h"
        if cuda.exists():
            version = int(re.search(r"define CUDART_VERSION +(\d+)", cuda.read_text())[1])
            found.setdefault(f"CUDA {version // 1000}.{version % 1000 // 10}", str(folder))
        if hip.exists():
            text = hip.read_text()
            version = (re.search(rf"define HIP_VERSION_{part} +(\d+)", text)[1] for part in ("MAJOR", "MINOR"))
            found.setdefault(f"HIP {'.'.join(version)}", str(folder))
    return dict(sorted(found.items()))


@functools.cache
def runtime_libraries():
    """The libraries of device runtimes, with the headers of their version: {"CUDA 13.0": (include folder, library)}."""
    wheel = Path(os.path.dirname(importlib.util.find_spec("pytest").origin), "..", "nvidia", "cu13").resolve()
    found = {}
    for name, include in {**runtimes(), "CUDA 13 of a wheel": str(wheel / "include")}.items():
        major = name.split()[1].split(".")[0]
        if name.startswith("CUDA"):
            folders, library = sorted(Path(include).resolve().parent.glob("lib*")), f"libcudart.so.{major}"
        else:
            folders, library = (
                [Path("/opt/rocm/lib"), Path("/usr/lib/x86_64-linux-gnu"), FETCHED_HIP],
                "libamdhip64.so." + major,
            )
        for folder in folders:
            if Path(folder, library).exists():
                found.setdefault(name, (include, Path(folder, library)))
    return found


def compile_c(source, *flags, compiler=None, dlpack=None, python=True, cwd=None):
    """Compiles a file with warnings on, and with the flags DLPACK_PY_TEST_CFLAGS, for a sanitizer. python: a folder of
    Python.h, True for the running interpreter, or None."""
    c, cxx = compiler or list(compilers().values())[-1]
    command = [cxx if str(source).endswith("cpp") else c, *WARNINGS, "-O2", "-fPIC", f"-I{ROOT}"]
    command += ["-isystem", dlpack or list(dlpack_headers().values())[-1]]
    if python:
        command += ["-isystem", python_include() if python is True else python]
    return subprocess.run([*command, str(source), *flags, *TEST_CFLAGS], capture_output=True, text=True, cwd=cwd)


def how_far(standard, folder):
    """Flags that end the compilation after the last stage that gives warnings."""
    return ["-c", "-o", str(folder / "o")] if standard in OPTIMIZED else ["-fsyntax-only"]


def copy_project(folder):
    """Copies the project, without what was built, but with the headers of HIP that were fetched, to an empty folder."""
    left_out = {".git", "build", ".venv"}
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder, ignore=lambda path, names: left_out if Path(path) == ROOT else {"__pycache__"})
    if (ROOT / "build" / "runtimes").exists():
        shutil.copytree(ROOT / "build" / "runtimes", folder / "build" / "runtimes")


def open_wheel(package, folder):
    """Downloads a package into its own subfolder of the folder."""
    target = Path(folder, package)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", target, package], check=True)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def fetch_older_dlpacks():
    for version, (package, member) in OLDER_DLPACKS.items():
        target = FETCHED / version / "dlpack" / "dlpack.h"
        if target.exists():
            continue
        with tempfile.TemporaryDirectory() as folder, open_wheel(package, folder) as wheel:
            text = wheel.read(member)
        target.parent.mkdir(parents=True)
        target.write_bytes(text)


def extract_headers(wheel, target):
    for name in wheel.namelist():
        match = re.fullmatch(r"(?:nvidia/(?:cuda_runtime|cuda_nvcc|cu13)|triton/backends/amd)/include/(.+[^/])", name)
        if match:
            (target / match[1]).parent.mkdir(parents=True, exist_ok=True)
            (target / match[1]).write_bytes(wheel.read(name))


def fetch_packages(target, packages):
    with tempfile.TemporaryDirectory() as folder:
        for package in packages:
            with open_wheel(package, folder) as wheel:
                extract_headers(wheel, target)


def fetch_debian_hip(target):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "-qq", HIP_PACKAGE], cwd=folder, check=True)
        subprocess.run(["dpkg", "-x", next(Path(folder).glob("*.deb")), folder], check=True)
        shutil.copytree(Path(folder, "usr", "include"), target)


def fetch_runtime(name):
    """Downloads the headers of a runtime, unless they are here. Returns None, or the reason of a failure."""
    target = FETCHED_RUNTIMES / name
    if target.exists():
        return None
    try:
        packages = RUNTIME_PACKAGES.get(name)
        fetch_packages(target, packages) if packages else fetch_debian_hip(target)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(target, ignore_errors=True)
        return f"not fetched: headers of {name}: {error}"
    return None


def fetch_runtimes():
    """Prints what it cannot download: the tests that need it are skipped."""
    for name in RUNTIMES:
        if reason := fetch_runtime(name):
            print(reason)


def zig():
    """The command of a compiler for other platforms, or None."""
    return [sys.executable, str(FETCHED_ZIG / "ziglang" / "__main__.py"), "cc"] if FETCHED_ZIG.exists() else None


def fetch_zig():
    """Downloads a compiler for other platforms, unless it is here. Prints why it failed."""
    if FETCHED_ZIG.exists():
        return
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
    if subprocess.run([*pip, "--target", FETCHED_ZIG, ZIG]).returncode != 0:
        shutil.rmtree(FETCHED_ZIG, ignore_errors=True)
        print(f"not fetched: {ZIG}")


def fetch_hip_library():
    """Downloads the library of HIP, unless it is here. Prints why it failed: the tests that need it are skipped."""
    if FETCHED_HIP.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(["apt-get", "download", "-qq", *HIP_LIBRARIES], cwd=folder, check=True)
            for package in Path(folder).glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, Path(folder, "all")], check=True)
            lib = next(Path(folder, "all").glob("**/libamdhip64.so.*")).parent
            shutil.copytree(lib, FETCHED_HIP, symlinks=True)
        except (OSError, StopIteration, subprocess.CalledProcessError) as error:
            shutil.rmtree(FETCHED_HIP, ignore_errors=True)
            print(f"not fetched: the library of HIP: {error}")


def fetch_hip():
    """Downloads headers of HIP, from Debian or else from PyPI, unless some are here. Returns why it failed."""
    places = [os.environ.get("ROCM_PATH"), "/opt/rocm", "/usr", *FETCHED_RUNTIMES.glob("HIP *")]
    headers = "include/hip/hip_runtime_api.h", "hip/hip_runtime_api.h"
    if any(Path(place, header).exists() for place in places if place for header in headers):
        return None
    reasons = []
    for name in ("HIP 5.2", "HIP 7.1"):
        reason = fetch_runtime(name)
        if reason is None:
            return None
        reasons.append(reason)
    return "\n".join(reasons)


if __name__ == "__main__":
    if sys.argv[1:] == ["fetch"]:
        fetch_older_dlpacks()
        fetch_runtimes()
        fetch_zig()
    elif sys.argv[1:] == ["fetch-hip"]:
        fetch_hip_library()
        sys.exit(fetch_hip())
    elif sys.argv[1:] == ["others"]:
        print("\n".join(command for command, _ in pythons().values() if command != sys.executable))
    else:
        sys.exit(__doc__)

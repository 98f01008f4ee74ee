"""make test-windows: builds all modules for 64-bit Windows, and runs the suite on Windows' CPython under wine.

    windows.py [ARGUMENT OF PYTEST ...]

build/windows gets Windows' CPython (python), its packages (packages), wine's files (wine) and the modules (cmake).
tests/build and tests/libraries are left out: they compile and compare on this machine. Under wine a process starts in
a second: tests/lifetime runs on the module probe alone, and three files of tests/conformance that start a process for
each test are left out. DLPACK_PY_WINDOWS=all adds both. With DLPACK_PY_WINDOWS=headers, tests/conformance, which uses
no header, and tests/failures, whose failures are the same on each system, are left out.
"""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "build"))
import machine  # noqa: E402

BUILD = ROOT / "build" / "windows"
PYTHON, PACKAGES, CMAKE = BUILD / "python", BUILD / "packages", BUILD / "cmake"
REQUIREMENTS = ROOT / "requirements"
RUN = Path(__file__).with_name("windows_python.sh")
COMPILER = "x86_64-w64-mingw32-gcc-posix"
os.environ.setdefault("DLPACK_PY_PATIENCE", "4")
WINE = dict(os.environ, WINEPREFIX=str(BUILD / "wine"), WINEDEBUG="-all")

# Two processes at a time run these parts of the suite, the longest first.
PARTS = [["tests/conformance"], ["tests/lifetime"], ["tests/failures"], ["tests/streams"]]
PARTS += [[f"tests/{name}" for name in "buffer consumer examples exchange_api producer tensor".split()]]
WHICH = os.environ.get("DLPACK_PY_WINDOWS")
if WHICH != "all":
    PARTS[0] += [f"--ignore=tests/conformance/test_{name}.py" for name in ("plugin", "cuda", "xfails")]
    PARTS[1] += ["-k", "not probe_plain and not probe_limited"]
LIMIT = 3000  # seconds for a part. The last line names a part that hung
if WHICH == "headers":  # the other parts take 70 to 250 seconds on two idle cores, and 400 beside other steps
    PARTS = [part for part in PARTS if part[0] not in ("tests/conformance", "tests/failures")]
    LIMIT = 1200


def reason_to_skip():
    if platform.machine() != "x86_64":
        return f"wine needs an x86-64 processor, this one is {platform.machine()}"
    for command, package in ((COMPILER, "gcc-mingw-w64-x86-64-posix"), ("wine", "wine64"), ("wineserver", "wine64")):
        if shutil.which(command) is None:
            return f"no {command} (Debian: {package})"
    return None


def call(*command, **options):
    subprocess.run([str(part) for part in command], check=True, **options)


def pip(*arguments):
    call(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def fetch(folder, requirements, fill):
    """Fills a folder by fill(), unless an earlier run has filled it from the same requirements."""
    used = folder / "requirements.txt"
    text = (REQUIREMENTS / requirements).read_text()
    if used.exists() and used.read_text() == text:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fill(folder, REQUIREMENTS / requirements)
    used.write_text(text)


def fetch_python(folder, requirements):
    pip("download", "--no-deps", "--no-binary=:all:", "--require-hashes", "-r", requirements, "--dest", folder)
    (source,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(source, folder)
    (data,) = folder.glob("*/*/*/data.zip")
    with zipfile.ZipFile(data) as packed:
        packed.extractall(folder / "unpacked")
    for path in (folder / "unpacked" / "cp313").iterdir():
        path.rename(folder / path.name)
    (folder / "DLLs" / "_wmi.pyd").unlink()  # the module platform does without; wine 8 ends the process in it


def fetch_packages(folder, requirements):
    windows = "--platform=win_amd64", "--python-version=3.13", "--implementation=cp", "--abi=cp313", "--abi=none"
    pip("install", "--no-deps", "--only-binary=:all:", *windows, "--target", folder, "-r", requirements)
    add_complex(folder / "numpy" / "_core")


def add_complex(folder):
    """Gives NumPy's core a math library that has what wine's lacks, and takes all other functions from wine's."""
    name = "api-ms-win-crt-math-l1-1-0.dll"
    (core,) = folder.glob("_multiarray_umath.*.pyd")
    imports = machine.output("x86_64-w64-mingw32-objdump", "-p", str(core))
    functions = re.findall(r"\s\d+\s+(\w+)$", imports.split(f"DLL Name: {name}")[1].split("DLL Name")[0], re.MULTILINE)
    own = {"creal", "crealf", "creall", "cimag", "cimagf", "cimagl"}
    exports = folder / "wine_complex.def"
    exports.write_text("EXPORTS\n" + "".join(f"{f}\n" if f in own else f"{f} = ucrtbase.{f}\n" for f in functions))
    library = folder / "wine_complex.dll"
    source = Path(__file__).with_name("wine_complex.c")
    call(COMPILER, "-fno-builtin", "-shared", "-nostdlib", "-Wl,--entry=0", "-o", library, source, exports)
    core.write_bytes(core.read_bytes().replace(name.encode(), library.name.encode().ljust(len(name), b"\0")))


def newest_headers(kind):
    return [folder for name, folder in machine.runtimes().items() if name.startswith(kind)][-1:]


def build():
    settings = {
        "CMAKE_TOOLCHAIN_FILE": Path(__file__).with_name("windows.cmake"),
        "CMAKE_MAKE_PROGRAM": shutil.which("ninja"),
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_C_FLAGS_DEBUG": "-O1",
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
        "Python_EXECUTABLE": RUN,
        "Python_INCLUDE_DIR": PYTHON / "include",
        "Python_LIBRARY": PYTHON / "libs" / "python313.lib",
        "DLPACK_INCLUDE_DIR": list(machine.dlpack_headers().values())[-1],
    }
    for kind, name in (("CUDA", "DLPACK_PY_CUDA_INCLUDE_DIR"), ("HIP", "DLPACK_PY_HIP_INCLUDE_DIR")):
        for folder in newest_headers(kind):
            settings[name] = folder
    call("cmake", "-S", ROOT, "-B", CMAKE, "-G", "Ninja", *(f"-D{name}={value}" for name, value in settings.items()))
    call("cmake", "--build", CMAKE)


def run_tests(arguments):
    """Runs pytest once for each part. Returns whether all tests have passed."""
    logs = [BUILD / f"pytest-{Path(part[0]).name}.log" for part in PARTS]

    hangs = []

    def run(part, log):
        command = [str(RUN), "-m", "pytest", "-p", "no:cacheprovider", *part, *arguments]
        while hangs.count(part) < 2:  # only a part that has hung before its first test runs once more
            with open(log, "w") as file:
                tests = subprocess.Popen(command, cwd=ROOT, stdout=file, start_new_session=True)
                try:
                    return tests.wait(LIMIT)
                except subprocess.TimeoutExpired:
                    os.killpg(tests.pid, signal.SIGKILL)
            hangs.append(part)
            said = log.read_text(errors="replace")
            print(f"{part[0]} hangs after {LIMIT} s. Its last lines:", said[-800:], sep="\n")
            if "collected" in said:  # in a test
                break
        return 1

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, PARTS, logs))
    counts = Counter()
    for _, log in sorted(zip(results, logs), key=lambda pair: pair[0] not in (0, 5)):  # those that failed are last
        text = log.read_text(encoding="utf-8", errors="replace")
        print(text, end="")
        closing = text.rstrip().rpartition("\n")[2]
        counts.update({what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", closing)})
    failed = any(status not in (0, 5) for status in results)  # 5: no test was selected
    numbers = ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "skipped", "error"))
    print(f"make test-windows: {numbers}", *[f"{part[0]} did hang" for part in hangs], sep=", ")
    return not failed and counts["passed"] > 0


def main():
    reason = reason_to_skip()
    if reason:
        print(f"SKIPPED: {reason}")
        return 0
    fetch(PYTHON, "windows-python.txt", fetch_python)
    fetch(PACKAGES, "windows.txt", fetch_packages)
    (BUILD / "wine").mkdir(exist_ok=True)
    quiet = {"env": WINE, **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)}
    call("wineserver", "-p", **quiet)  # it stays until the end: programs start faster
    try:
        call("wineboot", "-u", **quiet)
        build()
        call("ctest", "--output-on-failure", cwd=CMAKE, env=WINE)
        return 0 if run_tests(sys.argv[1:]) else 1
    finally:
        call("wineserver", "-k", **quiet)


if __name__ == "__main__":
    sys.exit(main())

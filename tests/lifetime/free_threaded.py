"""Runs the tests of threads on Pythons without a GIL, which build_python.sh makes: as it is, and for ThreadSanitizer.

Fails when a test does, and on any race that is reported. Says at the end what ran, and what could not and why.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ["tests/lifetime/test_races.py", "tests/lifetime/test_threads.py"]
VENV = ROOT / "build" / "venv-python3.13t"  # of the one as released; the other takes pytest from it
IMPOSSIBLE = 77  # of build_python.sh, which has said why
MAKING = threading.Lock()


@cache
def python(kind):
    """The path of an interpreter, or what its building said and whether that is a failure."""
    done = subprocess.run([HERE / "build_python.sh", kind], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.strip(), None
    outcome = "skipped" if done.returncode == IMPOSSIBLE else "failed"
    return None, f"{outcome}: {done.stderr.strip().splitlines()[-1]}"


def make(*arguments):
    command = ["make", "-C", ROOT, "build", *arguments, f"VENV={VENV.relative_to(ROOT)}"]
    with MAKING:  # the first one makes the environment
        return subprocess.run(command).returncode == 0


def run_tests(command, modules, **environment):
    environment = {
        "DLPACK_PY_REPEAT": "2",
        **os.environ,
        "PYTHONPATH": str(modules),
        "DLPACK_PY_BUILD_DIR": str(modules),
        "PYTHON_GIL": "0",  # whatever is imported
        **environment,
    }
    # The form without dlpack_exchange.h has no function that the other form lacks.
    pytest = [command, "-m", "pytest", *TESTS, "-k", "not probe_plain"]
    ended = subprocess.run(pytest, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    print(ended.stdout, flush=True)
    return ended.returncode == 0


def free_threaded():
    command, excuse = python("free-threaded")
    if excuse:
        return excuse
    modules = ROOT / "build" / "free-threaded"
    if not make(f"PYTHON={command}", f"BUILD={modules}"):
        return "failed: our modules do not build"
    return "passed" if run_tests(VENV / "bin" / "python", modules / "python") else "failed"


def tsan():
    plain, excuse = python("free-threaded")
    command, excuse = (None, excuse) if excuse else python("tsan")
    if excuse:
        return excuse
    # Configured with the other Python, whose headers are the same and which reports nothing; by the same clang as the
    # interpreter, for the runtimes of two do not mix.
    compiler = subprocess.run(
        [command, "-c", "import sysconfig; print(sysconfig.get_config_var('CC').split()[0])"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TSAN_OPTIONS": "report_bugs=0"},
    ).stdout.strip()
    symbolizer = shutil.which(compiler.replace("clang", "llvm-symbolizer"))
    if symbolizer is None:  # suppressions.txt has names of functions
        return f"skipped: no {compiler.replace('clang', 'llvm-symbolizer')} is on the path"
    modules = ROOT / "build" / "tsan"
    flags = f"-DCMAKE_C_COMPILER={compiler} -DCMAKE_C_FLAGS='-fsanitize=thread -g -O1' -DCMAKE_BUILD_TYPE=None"
    if not make(f"PYTHON={plain}", f"BUILD={modules}", f"CMAKE_ARGS={os.environ.get('CMAKE_ARGS', '')} {flags}"):
        return "failed: our modules do not build"
    with tempfile.TemporaryDirectory() as logs:
        options = f"suppressions={HERE / 'suppressions.txt'}:log_path={logs}/log:exitcode=66:die_after_fork=0"
        options += f":external_symbolizer_path={symbolizer}"
        site_packages = next((VENV / "lib").glob("python*/site-packages"))
        passed = run_tests(
            command,
            modules / "python",
            PYTHONPATH=os.pathsep.join([str(modules / "python"), str(site_packages)]),
            TSAN_OPTIONS=options,
        )
        reports = [log.read_text(errors="replace") for log in sorted(Path(logs).iterdir())]
    print("\n".join(reports))
    return "passed" if passed and not reports else f"failed: {len(reports)} processes reported races"


with ThreadPoolExecutor() as pool:  # side by side: most tests have one thread that works
    list(pool.map(python, ["free-threaded", "tsan"]))
    running = {"free-threaded 3.13": pool.submit(free_threaded), "ThreadSanitizer": pool.submit(tsan)}
outcomes = {name: future.result() for name, future in running.items()}
for name, outcome in outcomes.items():
    print(f"threads on {name}: {outcome}")
sys.exit(any(outcome.startswith("failed") for outcome in outcomes.values()))

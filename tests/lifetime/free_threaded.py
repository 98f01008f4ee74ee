"""Runs the thread tests on two Pythons without a GIL from build_python.sh: a release, and one with ThreadSanitizer.

Fails if a test fails, or if ThreadSanitizer reports a race. Prints at the end which runs passed.
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
VENV = ROOT / "build" / "venv-python3.13t"  # of the release; the Python with ThreadSanitizer uses its pytest
IMPOSSIBLE = 77  # exit status of build_python.sh, which has printed the reason
MAKING = threading.Lock()


@cache
def python(kind):
    """(the path of an interpreter, None), or (None, why there is no interpreter: skipped or failed)."""
    done = subprocess.run([HERE / "build_python.sh", kind], capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.strip(), None
    outcome = "skipped" if done.returncode == IMPOSSIBLE else "failed"
    return None, f"{outcome}: {done.stderr.strip().splitlines()[-1]}"


def make(*arguments):
    command = ["make", "-C", ROOT, "build", *arguments, f"VENV={VENV.relative_to(ROOT)}"]
    with MAKING:  # the first call creates the environment
        return subprocess.run(command).returncode == 0


def run_tests(command, modules, **environment):
    environment = {
        "DLPACK_PY_REPEAT": "2",
        **os.environ,
        "PYTHONPATH": str(modules),
        "DLPACK_PY_BUILD_DIR": str(modules),
        "PYTHON_GIL": "0",  # even if an imported module would enable it
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
    # Configure with the release Python: it has the same headers and no ThreadSanitizer reports. Compile with the clang
    # that compiled the interpreter: the ThreadSanitizer runtimes of two versions of clang do not work together.
    compiler = subprocess.run(
        [command, "-c", "import sysconfig; print(sysconfig.get_config_var('CC').split()[0])"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TSAN_OPTIONS": "report_bugs=0"},
    ).stdout.strip()
    symbolizer = shutil.which(compiler.replace("clang", "llvm-symbolizer"))
    if symbolizer is None:  # suppressions.txt names functions
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


with ThreadPoolExecutor() as pool:  # in parallel: in most tests one thread runs at a time
    list(pool.map(python, ["free-threaded", "tsan"]))
    running = {"free-threaded 3.13": pool.submit(free_threaded), "ThreadSanitizer": pool.submit(tsan)}
outcomes = {name: future.result() for name, future in running.items()}
for name, outcome in outcomes.items():
    print(f"threads on {name}: {outcome}")
sys.exit(any(outcome.startswith("failed") for outcome in outcomes.values()))

"""Runs the tests of the examples by hand, in C++ and in Cython under valgrind's memcheck.

The modules are those of make test, without sanitizers. memcheck also sees what CPython and NumPy read in memory that a
module has freed, which ASan does not see. Fails if a test fails, and on an invalid access whose stacks include a module
of this project: the C library has invalid accesses of its own. Leaks are left to ASan. Values that are not initialized
are not looked for: CPython makes such values.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
modules = Path(importlib.util.find_spec("by_hand").origin).resolve().parent
TESTS = [
    ["tests/examples/test_by_hand.py", "-k", "not long_chain"],  # which takes 40 s here
    ["tests/build/test_cpp.py", "tests/libraries/test_cython.py", "-k", "not declar"],  # some tests only compile
    ["tests/libraries/test_bindings.py"],
]


def errors(report):
    """The errors of a report whose stacks include a module or a source file of this project, as texts."""
    ours = re.compile(rf"{re.escape(str(ROOT))}/(?!\.venv/|build/venv)")
    text = re.sub(r"^==\d+== ?", "", report.read_text(errors="replace"), flags=re.MULTILINE)
    return [error for error in text.split("\n\n") if ours.search(error)]


def run(number, tests):
    """Runs pytest under memcheck. Returns its output, and what is wrong, as texts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        memcheck = ["valgrind", "--quiet", "--leak-check=no", "--undef-value-errors=no", "--num-callers=40"]
        memcheck += ["--error-limit=no", "--child-silent-after-fork=yes", "--fullpath-after=", f"--log-file={report}"]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {
            "DLPACK_PY_BUILD_DIR": str(modules),
            "PYTHONPATH": str(modules),
            "PYTHONMALLOC": "malloc",  # so that memcheck sees each object
            "DLPACK_PY_TEST_CFLAGS": "-O0",  # takes a third of the time to compile
        }
        # The examples that tests compile are then under modules too.
        pytest += [f"--basetemp={modules / f'memcheck-{number}'}"]
        done = subprocess.run([*memcheck, *pytest], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(done.stdout.decode(errors="replace"), flush=True)
        return [f"pytest {' '.join(tests)} ended with {done.returncode}"] * bool(done.returncode) + [*errors(report)]


with ThreadPoolExecutor(os.cpu_count()) as pool:
    complaints = sum(pool.map(run, range(len(TESTS)), TESTS), [])
print("\n".join(complaints))
print(f"memcheck: {len(complaints)} complaints")
sys.exit(bool(complaints))

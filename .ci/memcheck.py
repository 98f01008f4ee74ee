"""Runs the tests of the examples by hand, in C++ and in Cython under valgrind's memcheck.

The modules are those of make test, without sanitizers. memcheck also sees what CPython and NumPy read in memory that a
module has freed, which ASan does not see. Fails if a test fails, and on an invalid access whose stacks include a module
of this project: the C library has invalid accesses of its own. Leaks are left to ASan. Values that are not initialized
are not looked for: CPython makes such values.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

modules = Path(importlib.util.find_spec("by_hand").origin).resolve().parent
TESTS = [
    ["tests/examples/test_by_hand.py"],
    ["tests/build/test_cpp.py", "tests/libraries/test_cython.py", "-k", "not declar"],  # some tests only compile
    ["tests/libraries/test_bindings.py"],
]


def errors(report):
    """The errors of a report that concern a module of this project, as texts."""
    for error in ElementTree.parse(report).iter("error"):
        frames = [{part.tag: part.text for part in frame} for frame in error.iter("frame")]
        ours = any(frame.get("obj", "").startswith(str(modules)) for frame in frames)
        if ours and not error.findtext("kind").startswith("Leak"):
            lines = [f"    {f.get('fn', f['ip'])} ({f.get('file', f.get('obj'))}:{f.get('line', '')})" for f in frames]
            yield "\n".join([error.findtext("what"), *lines])


def run(number, tests):
    """Runs pytest under memcheck. Returns its output, and what is wrong, as texts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        memcheck = ["valgrind", "--quiet", "--undef-value-errors=no", "--num-callers=40"]
        memcheck += ["--error-limit=no", "--child-silent-after-fork=yes", "--xml=yes", f"--xml-file={report}"]
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

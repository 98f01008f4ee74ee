"""Runs the Python tests with modules that are built with ASan and UBSan, in an interpreter that is not.

Fails if a test fails, if a sanitizer reports an error, and on a leak in the process of the tests whose stack includes
one of this project's modules: CPython leaks at its end too. Processes that tests start may leak: some tests check what
a deleter leaks after the end of the interpreter.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

modules = Path(sys.argv[1]).resolve()
LIMIT = 1200  # seconds for one process of pytest, which takes 300 at most


def library(name):
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def run_pytest(*arguments, asan, **variables):
    """Returns the errors, as texts."""
    with tempfile.TemporaryDirectory() as logs:
        environment = {
            **os.environ,
            # libasan must be first. At its start it looks for the exceptions of C++.
            "LD_PRELOAD": " ".join(map(library, ["libasan.so", "libstdc++.so"])),
            "ASAN_OPTIONS": f"log_path={logs}/log:abort_on_error=1:exitcode=0:allocator_may_return_null=1:{asan}:"
            "stack_trace_format='    #%n %F %L (%m)'",
            "UBSAN_OPTIONS": f"log_path={logs}/log:abort_on_error=1:print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(modules),
            "DLPACK_PY_BUILD_DIR": str(modules),
            **variables,
        }
        command = [sys.executable, "-m", "pytest", *arguments]
        tests = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output = tests.communicate(timeout=LIMIT)[0]
        except subprocess.TimeoutExpired:
            tests.kill()
            output = tests.communicate()[0]
        print(output.decode(errors="replace"), flush=True)
        complaints = [f"pytest {' '.join(arguments)} ended with {tests.returncode}"] if tests.returncode else []
        for log in Path(logs).iterdir():
            report = log.read_text(errors="replace")
            if re.search(r"ERROR: AddressSanitizer|runtime error:", report):
                complaints.append(report)
            if log.suffix == f".{tests.pid}":
                leaks = re.findall(r"^(?:Direct|Indirect) leak of .*?\n\n", report, re.DOTALL | re.MULTILINE)
                complaints += [leak for leak in leaks if str(modules) in leak]
    return complaints


# Complete stacks, which show the module that created a Python object, are slow. The tests that reach each exit of a
# function use complete stacks; the tests with hundreds of examples do not. tests/streams has a separate run (make
# test-streams) without leak detection: a copy whose wait fails must leak. tests/conformance has a library that crashes
# and leaks by design. tests/fuzz has sanitizers of its own.
many = "tests/consumer/test_round_trips.py"
whole = ["tests/consumer", "tests/exchange_api", "tests/producer"]
elsewhere = ["tests/build", "tests/conformance", "tests/fuzz", "tests/streams"]
folders = {str(path) for path in Path("tests").glob("[a-z]*/") if list(path.glob("test_*.py"))}
longest = ["tests/tensor", "tests/lifetime", "tests/failures"]  # these folders start first
others = [*longest, *sorted(folders.difference(whole, elsewhere, longest)), many]
# Tests that load none of these modules, or run below with sanitizers in the examples, too; and programs whose libraries
# start processes: Ray reads freed memory there.
names = "mdspan numpy_as_library upstream bindings cython dask engines gloo mpi"
left_out = [f"--ignore=tests/libraries/test_{name}.py" for name in names.split()]
# These tests compile the examples in C++ and Cython: here with sanitizers, without the optimization, which takes three
# times as long, and under the folder of the modules.
flags = "-O0 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
compiled = ["tests/build/test_cpp.py", "tests/libraries/test_bindings.py", "tests/libraries/test_cython.py"]
compiled += [f"--basetemp={modules / 'compiled'}", "-k", "not declar"]  # some tests of test_cython.py only compile
with ThreadPoolExecutor(os.cpu_count()) as pool:
    slow = pool.submit(run_pytest, *whole, f"--ignore={many}", asan="fast_unwind_on_malloc=0:malloc_context_size=8")
    fast = pool.map(lambda tests: run_pytest(tests, *left_out, asan="fast_unwind_on_malloc=1"), others)
    own = pool.submit(run_pytest, *compiled, asan="fast_unwind_on_malloc=1", DLPACK_PY_TEST_CFLAGS=flags)
    complaints = slow.result() + sum(fast, []) + own.result()
print("\n".join(complaints))
print(f"sanitizers: {len(complaints)} complaints")
sys.exit(bool(complaints))

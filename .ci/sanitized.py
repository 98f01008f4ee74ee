"""Runs the Python tests on modules that were built with ASan and UBSan, in an interpreter that was not.

Fails when a test does, on any error that a sanitizer reports, and on a leak in the tests' own process whose stack leads
through one of our modules: CPython leaks at its end too. Processes that tests start may leak: what a deleter leaks when
the interpreter has ended is what some of them look at.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

modules = Path(sys.argv[1]).resolve()


def library(name):
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def run_pytest(*arguments, asan):
    """Returns what is to be complained of, as texts."""
    with tempfile.TemporaryDirectory() as logs:
        environment = {
            **os.environ,
            # The sanitizer has to be first, and looks for the exceptions of C++ when it starts.
            "LD_PRELOAD": " ".join(map(library, ["libasan.so", "libstdc++.so"])),
            "ASAN_OPTIONS": f"log_path={logs}/log:abort_on_error=1:exitcode=0:allocator_may_return_null=1:{asan}:"
            "stack_trace_format='    #%n %F %L (%m)'",
            "UBSAN_OPTIONS": f"log_path={logs}/log:abort_on_error=1:print_stacktrace=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(modules),
            "DLPACK_PY_BUILD_DIR": str(modules),
        }
        command = [sys.executable, "-m", "pytest", *arguments]
        tests = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        print(tests.communicate()[0].decode(errors="replace"), flush=True)
        complaints = [f"pytest {' '.join(arguments)} ended with {tests.returncode}"] if tests.returncode else []
        for log in Path(logs).iterdir():
            report = log.read_text(errors="replace")
            if re.search(r"ERROR: AddressSanitizer|runtime error:", report):
                complaints.append(report)
            if log.suffix == f".{tests.pid}":
                leaks = re.findall(r"^(?:Direct|Indirect) leak of .*?\n\n", report, re.DOTALL | re.MULTILINE)
                complaints += [leak for leak in leaks if str(modules) in leak]
    return complaints


# Whole stacks, which tell whose a Python object is, are slow: they are for the tests that come to each way out, but
# not for those with examples by the hundred. Streams have a run of their own (make test-streams), which looks for no
# leaks: a copy that cannot be waited for has to leak. tests/conformance has a library that crashes and leaks by design.
many = "tests/consumer/test_round_trips.py"
whole = ["tests/consumer", "tests/exchange_api", "tests/producer"]
elsewhere = ["tests/build", "tests/conformance", "tests/streams"]
folders = {str(path) for path in Path("tests").glob("[a-z]*/") if list(path.glob("test_*.py"))}
longest = ["tests/tensor", "tests/lifetime", "tests/failures"]  # begin first
others = [*longest, *sorted(folders.difference(whole, elsewhere, longest)), many]
with ThreadPoolExecutor(os.cpu_count()) as pool:
    slow = pool.submit(run_pytest, *whole, f"--ignore={many}", asan="fast_unwind_on_malloc=0:malloc_context_size=8")
    fast = pool.map(lambda tests: run_pytest(tests, asan="fast_unwind_on_malloc=1"), others)
    complaints = slow.result() + sum(fast, [])
print("\n".join(complaints))
print(f"sanitizers: {len(complaints)} complaints")
sys.exit(bool(complaints))

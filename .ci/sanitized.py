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
from pathlib import Path

modules = Path(sys.argv[1]).resolve()


def library(name):
    found = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


with tempfile.TemporaryDirectory() as logs:
    options = f"log_path={logs}/log:abort_on_error=1:exitcode=0"
    environment = {
        **os.environ,
        # Behind the sanitizer, which has to be first: it looks for the exceptions of C++ when it starts.
        "LD_PRELOAD": " ".join(map(library, ["libasan.so", "libstdc++.so"])),
        "ASAN_OPTIONS": f"{options}:fast_unwind_on_malloc=0:malloc_context_size=30:allocator_may_return_null=1",
        "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(modules),
        "DLPACK_PY_BUILD_DIR": str(modules),
    }
    tests = subprocess.Popen([sys.executable, "-m", "pytest", "--ignore=tests/build", *sys.argv[2:]], env=environment)
    status = tests.wait()
    reports = {path: path.read_text(errors="replace") for path in Path(logs).iterdir()}

bad = []
for path, report in reports.items():
    leaks = re.findall(r"^(?:Direct|Indirect) leak of .*?\n\n", report, re.DOTALL | re.MULTILINE)
    if "ERROR: LeakSanitizer" not in report:
        bad.append(report)
    elif path.suffix == f".{tests.pid}":
        bad += [leak for leak in leaks if str(modules) in leak]

print("\n".join(bad))
print(f"{len(reports)} reports of the sanitizers, {len(bad)} of them ours")
sys.exit(status or bool(bad))

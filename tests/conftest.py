"""Settings for pytest. Without make, the tests use the modules that `make dev` has built."""

import gc
import os
import pathlib
import platform
import struct
import sys
from collections import Counter, defaultdict

import pytest
from collecting import PYPY
from optional import HAS_NUMPY, numpy
from patience import PATIENCE

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # Environments of single libraries and of GPUs lack hypothesis: no test that runs there needs it.
    settings = None

# LeakSanitizer checks this process only: it crashes in child processes that end before they free their memory.
if "ASAN_OPTIONS" in os.environ:
    os.environ["ASAN_OPTIONS"] += ":detect_leaks=0"

if "DLPACK_PY_BUILD_DIR" not in os.environ:
    import dlarray

    os.environ["DLPACK_PY_BUILD_DIR"] = os.path.dirname(dlarray.__file__)

# Each test has a few examples, equal in each run. DLPACK_PY_EXAMPLES=1000 gives each test a thousand random examples.
EXAMPLES = os.environ.get("DLPACK_PY_EXAMPLES")
if settings:
    settings.register_profile(
        "suite",
        deadline=None,
        database=None,
        derandomize=EXAMPLES is None,
        max_examples=int(EXAMPLES or "100"),
        suppress_health_check=[HealthCheck.too_slow] if PATIENCE > 1 else [],
    )
    settings.load_profile("suite")


def pytest_collection_finish():
    freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Freezes all objects after the last test of a file."""
    if nextitem is not None and nextitem.path != item.path:
        freeze()


def freeze():
    """Many tests collect garbage. The collector does not visit frozen objects: freeze the reports of pytest."""
    gc.collect()
    if not PYPY:  # has no gc.freeze
        gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Prints one line for each reason to skip. Tests that share a reason write "what is missing: reason"."""
    missing = defaultdict(Counter)
    for report in terminalreporter.stats.get("skipped", []):
        what, _, reason = report.longrepr[2].removeprefix("Skipped: ").rpartition(": ")
        missing[reason][what] += 1
    for reason, counts in sorted(missing.items()):
        names = ", ".join(f"{what} ({count})" for what, count in sorted(counts.items()) if what)
        terminalreporter.write_line(f"SKIPPED {sum(counts.values())}: {reason}{': ' * bool(names)}{names}")
    terminalreporter.write_line("PLATFORM: " + " | ".join(this_platform()))


def this_platform():
    """The system, the interpreter, the compiler of the modules and NumPy: a row of docs/platforms.md."""
    system = f"{platform.system()} {platform.machine()}, {8 * struct.calcsize('P')} bits, {sys.byteorder}-endian"
    python = f"{platform.python_implementation()} {platform.python_version()}{getattr(sys, 'abiflags', '')}"
    compiler = pathlib.Path(os.environ["DLPACK_PY_BUILD_DIR"], "compiler.txt")
    return (
        system,
        python,
        compiler.read_text() if compiler.exists() else "an unknown compiler",
        f"NumPy {numpy.__version__}" if HAS_NUMPY else "no NumPy",
    )

"""Started by hand, the tests use the modules that `make dev` has built."""

import gc
import os

# Leaks are looked for in this process: in children, which end in the midst of things, LeakSanitizer itself crashes.
if "ASAN_OPTIONS" in os.environ:
    os.environ["ASAN_OPTIONS"] += ":detect_leaks=0"

if "DLPACK_PY_BUILD_DIR" not in os.environ:
    import dlarray

    os.environ["DLPACK_PY_BUILD_DIR"] = os.path.dirname(dlarray.__file__)


def pytest_collection_finish():
    """What pytest has made is not looked through each time that a test collects garbage: without a GIL, all of it."""
    gc.collect()
    gc.freeze()

"""The suite for a GPU, as far as no GPU is needed. `make test-simulated-gpu` runs that suite on the simulated runtime,
and `make gpu-all SIMULATED=1` all that `make gpu-all` does."""

import subprocess
import sys

import machine
import pytest
from streams.gpu import all as gpu_all
from streams.gpu.test_exchanges import SANITIZED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="make gpu-all: needs Linux")
SUITE = machine.ROOT / "tests" / "streams" / "gpu"


def collected(*arguments):
    """The names of the tests that pytest would run, in their order."""
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=machine.ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("number", range(1, len(gpu_all.MUTANTS)))
def test_a_mistake_of_gpu_all_changes_one_place_of_the_header(number):
    _, text, other = gpu_all.MUTANTS[number]
    assert (machine.ROOT / gpu_all.HEADER).read_text().count(text) == 1 and other != text


def test_tests_of_managed_memory_come_last():
    is_managed = ["managed" in name.lower() for name in collected(SUITE)]
    assert any(is_managed) and is_managed == sorted(is_managed)


def test_compute_sanitizer_runs_no_test_of_managed_memory():
    chosen = collected(SUITE / "test_exchanges.py", "-k", SANITIZED)
    assert len(chosen) > 10 and [name for name in chosen if "managed" in name.lower()] == []


def test_gpu_all_runs_each_file_and_has_tests_for_its_mistakes():
    noticing = collected(SUITE / "test_exchanges.py", SUITE / "test_capture.py", "-k", gpu_all.NOTICING)
    assert len(noticing) > 20 and [name for name in noticing if "managed" in name.lower() or "torch" in name] == []
    files = {path.stem.removeprefix("test_") for path in SUITE.glob("test_*.py")}
    assert files == set(gpu_all.FILES)

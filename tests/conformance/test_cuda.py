"""The conformance suite's tests of streams, on the simulated runtime: right libraries pass, and mistakes are caught."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dlpack_conformance import run, runner
from dlpack_conformance.runtime import CUDA, ROCM

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import simulated_gpu  # noqa: E402

KINDS = {"CUDA": (CUDA, "cuda_probe"), "ROCm": (ROCM, "rocm_probe")}


@pytest.fixture(params=KINDS)
def suffix(request):
    """Of the names of adapters."""
    if importlib.util.find_spec(KINDS[request.param][1]) is None:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without(f"headers of {request.param}: not on this machine")
    return "" if request.param == "CUDA" else "OfROCm"


def environment(**more):
    paths = [runner.child_environment()["PYTHONPATH"], str(HERE)]
    return {"PYTHONPATH": os.pathsep.join(paths), **more}


@pytest.mark.parametrize("name, least", [("Streams", 28), ("Probe", 29)])
def test_a_right_library_passes_on_a_simulated_GPU(tmp_path, suffix, name, least):
    violations = tmp_path / "violations"
    found = run(f"simulated_gpu:{name}{suffix}", environment=environment(STREAMS_VIOLATIONS=str(violations)), cuda=True)
    assert {id: test["came"] for id, test in found["tests"].items() if test["outcome"] == "fail"} == {}
    assert sum(test["outcome"] != "skip" for test in found["tests"].values()) >= least
    assert violations.read_text() == "", "the suite uses the runtime against its rules"


def test_each_mistake_is_caught_by_its_test(tmp_path, suffix):
    path = tmp_path / "found"
    command = [sys.executable, "-m", "pytest", str(runner.CLAUSES), "-q", "-c", os.devnull, "--rootdir", str(HERE)]
    for plugin in "no:cacheprovider", "no:xdist", "dlpack_conformance.plugin", "simulated_gpu":
        command += ["-p", plugin]
    command += ["--import-mode=importlib", "--dlpack", f"simulated_gpu:Streams{suffix}", "--dlpack-cuda"]
    command += ["--dlpack-in-process", "--dlpack-grades=all", "--mistakes", str(path)]
    variables = runner.child_environment(environment())
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert path.exists(), ended.stdout + ended.stderr
    found = {line["mistake"]: line for line in map(json.loads, path.read_text().splitlines())}
    wanted = dict(simulated_gpu.mistakes_of(KINDS["ROCm" if suffix else "CUDA"][0]))
    assert set(found) == set(wanted)
    assert {mistake: wanted[mistake] for mistake, line in found.items() if not line["failed"]} == {}


def test_a_library_without_a_GPU_skips_the_tests_of_streams():
    found = run(f"{HERE / 'adapters.py'}:Wrongarray", cuda=True)
    assert {test["outcome"] for test in found["tests"].values()} == {"skip"}

"""Every test of streams runs on the simulated runtime of each platform, and leaves no object there."""

import gc
import importlib.util
import os
import traceback

import pytest
from collecting import collect
from streams.simulation import Platform, Simulation


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call):
    """The objects of a failed test are dropped after the test, not during a later test."""
    yield
    if call.excinfo is not None:
        traceback.clear_frames(call.excinfo.tb)
        for frame, _ in traceback.walk_tb(call.excinfo.tb):
            frame.f_locals  # this access refreshes the cached dict of the frame's variables


NAMES = {"cuda": "CUDA", "rocm": "HIP"}


@pytest.fixture(params=NAMES)
def platform(request):
    if importlib.util.find_spec(f"{request.param}_probe") is None:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without(f"headers of {NAMES[request.param]}: not on this machine")
    return Platform(request.param)


@pytest.fixture
def sim(platform):
    """A new simulated machine. The test fails on a violation, and on objects that it has not destroyed."""
    sim = Simulation(platform)
    sim.watch_gil()
    yield sim
    if sim.live("memory") > 0:  # memory of objects in reference cycles
        gc.collect()
        collect()
    sim.control("settle")
    assert (platform.probe.collect(), platform.other.collect()) == (0, 0)
    left = {kind: sim.live(kind) for kind in ("event", "memory", "graph")}
    violations = sim.violations()
    sim.reset()
    assert violations == []
    assert left == {"event": 0, "memory": 0, "graph": 0}

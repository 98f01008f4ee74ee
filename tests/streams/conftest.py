"""Every test of streams runs on the simulated runtime of each platform, and leaves nothing behind there."""

import gc
import importlib.util
import os
import traceback

import pytest
from streams.simulation import Platform, Simulation


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call):
    """What a test that fails has made goes with it, not in the middle of another one."""
    yield
    if call.excinfo is not None:
        traceback.clear_frames(call.excinfo.tb)
        for frame, _ in traceback.walk_tb(call.excinfo.tb):
            frame.f_locals  # a look makes it forget what it told when it was looked at before


NAMES = {"cuda": "CUDA", "rocm": "HIP"}


@pytest.fixture(params=NAMES)
def platform(request):
    if importlib.util.find_spec(f"{request.param}_probe") is None:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without(f"headers of {NAMES[request.param]}: not on this machine")
    return Platform(request.param)


@pytest.fixture
def sim(platform):
    """A machine without a past. What a driver would object to, and what is left over, fails the test."""
    sim = Simulation(platform)
    sim.watch_gil()
    yield sim
    if sim.live("memory") > 0:  # of what holds itself
        gc.collect()
    sim.control("settle")
    assert (platform.probe.collect(), platform.other.collect()) == (0, 0)
    left = {kind: sim.live(kind) for kind in ("event", "memory", "graph")}
    violations = sim.violations()
    sim.reset()
    assert violations == []
    assert left == {"event": 0, "memory": 0, "graph": 0}

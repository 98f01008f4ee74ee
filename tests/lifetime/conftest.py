"""Each scenario runs in a separate process: it ends interpreters, and may crash, hang or lose a thread."""

import sys
import sysconfig
import textwrap

import pytest
from collecting import PYPY
from lifetime.children import PRELUDE, run

PROBES = ["probe", "probe_plain"]
if sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    PROBES.append("probe_limited")


@pytest.fixture(params=PROBES)
def child(request):
    """Runs a script, in which `probe` is one build of the module probe, and compares the output."""
    if PYPY:  # test_pypy.py has scenarios for PyPy
        pytest.skip("finalizers that run at once, and subinterpreters: not on PyPy")

    def run_script(script, **expected):
        prelude = PRELUDE.replace("PROBE", request.param)
        prelude += f"PRELUDE = {prelude!r}\n"
        python = [sys.executable, "-W", "ignore", "-X", "faulthandler"]
        run([*python, "-c", prelude + textwrap.dedent(script), "TURN"], **expected)

    return run_script


@pytest.fixture(params=[False, True] if sys.version_info >= (3, 12) else [False], ids="own_gil={}".format)
def own_gil(request):
    return request.param

"""Exchange tables in several interpreters. Table functions get no interpreter: each finds its type (X6, G1)."""

import os
import subprocess
import sys

import pytest
from collecting import not_on_pypy
from patience import PATIENCE

own_gil = pytest.mark.parametrize(
    "own_gil", [False, True] if sys.version_info >= (3, 12) else [False], ids="own_gil={}".format
)

SCRIPT = """
import dlarray, echo

class Sub(dlarray.Array):
    pass

a = dlarray.arange(3)
for each in (a, Sub(a)):
    b = echo.echo(each)
    assert type(b) is dlarray.Array, type(b)
    assert b.data_ptr == a.data_ptr and b.tolist() == [0, 1, 2]
    assert dlarray.from_dlpack(b).data_ptr == a.data_ptr
kept = b  # to the end of the interpreter
"""


@not_on_pypy("subinterpreters")
@own_gil
def test_a_table_makes_objects_of_the_type_of_its_interpreter_G1(own_gil):
    script = f"""
import gc, interpreters
inside = {SCRIPT!r}
for turn in range(3):
    interpreters.run(inside, {own_gil})
    exec(inside)
    interpreters.run(inside, {own_gil})
    import sys
    del dlarray, Sub, a, b, each, kept, sys.modules["dlarray"]
    gc.collect()
print("done")
"""
    path = os.pathsep.join([os.environ["DLPACK_PY_BUILD_DIR"], *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=60 * PATIENCE,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)

"""dlarray.pyi describes the module that was built, and typed code runs. `make lint` checks that code with mypy."""

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import dlarray
import pytest
from collecting import not_on_pypy
from optional import needs_numpy
from patience import PATIENCE

HERE = Path(__file__).parent
STUBS = HERE.parents[1] / "examples" / "ndarray"


@not_on_pypy("symtable")
def test_the_stub_describes_the_module_that_was_built(tmp_path):
    command = [sys.executable, "-m", "mypy.stubtest", "dlarray", "--concise"]
    if sys.version_info < (3, 12):  # Python before 3.12 has no __buffer__; type checkers need it
        allowed = tmp_path / "allowed"
        allowed.write_text("dlarray.Array.__buffer__\ndlarray.Array.__release_buffer__\n")
        command += ["--allowlist", str(allowed)]
    how = {"env": {**os.environ, "MYPYPATH": str(STUBS)}, "timeout": 300 * PATIENCE}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, **how)
    assert done.returncode == 0, done.stdout + done.stderr


def names_in(alias):
    """The strings in a type alias of the stub."""
    module = ast.parse((STUBS / "dlarray.pyi").read_text())
    [value] = [node.value for node in module.body if isinstance(node, ast.AnnAssign) and node.target.id == alias]
    return {node.value for node in ast.walk(value) if isinstance(node, ast.Constant)}


def test_the_stub_names_all_dtypes():
    valued, stored = names_in("_ValueDType"), names_in("_DType")
    assert (len(valued), len(stored)) == (14, 12)
    assert {dlarray.array([0], name).dtype for name in valued} == valued
    assert {dlarray.zeros(1, name).dtype for name in stored} == stored
    for name in stored:
        with pytest.raises(TypeError):
            dlarray.array([0], name)


@needs_numpy
def test_typed_code_runs():
    runpy.run_path(str(HERE / "typed_use.py"), run_name="__main__")

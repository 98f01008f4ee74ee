"""Known libraries are green by the plugin: dlarray and by_hand as they are, others with a file in conformance/xfails.

make test-libraries runs the tests of libraries that make test does not install.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dlpack_conformance import __version__, runner

HERE = Path(__file__).parent
SUITE = HERE.parents[1] / "conformance"


def run(tmp_path, name, *arguments):
    """Runs the plugin as an own CI does. Returns the exit status, what it printed, and how many tests passed."""
    command = [sys.executable, "-m", "pytest", "-p", "dlpack_conformance.plugin", "--pyargs", "dlpack_conformance"]
    command += [f"--dlpack={name}", "--dlpack-grades=all", "-p", "no:cacheprovider", *arguments]
    variables = runner.child_environment({"COLUMNS": "200"})
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=1200)
    passed = re.search(r"(\d+) passed", ended.stdout)
    return ended.returncode, ended.stdout + ended.stderr, int(passed[1]) if passed else 0


@pytest.mark.parametrize("name, least", [("Dlarray", 550), ("ByHand", 470)])
def test_our_libraries_pass_everything(tmp_path, name, least):
    status, told, passed = run(tmp_path, f"{HERE / 'adapters.py'}:{name}")
    assert status == 0, told
    assert passed >= least and "xfailed" not in told


@pytest.mark.parametrize("name, least", [("numpy", 800), ("torch", 950), ("jax", 380)])
def test_a_library_is_green_with_its_xfails_file(tmp_path, name, least):
    if name != "numpy" and not os.environ.get("DLPACK_PY_LIBRARIES"):
        pytest.skip(f"`make test-libraries` runs it: {name}")
    xfails = SUITE / "xfails" / f"{name}.txt"
    skips = SUITE / "skips" / f"{name}.txt"
    written = re.match(rf"# {name} (\S+), dlpack_conformance (\S+)\n", xfails.read_text(encoding="utf-8"))
    assert written[2] == __version__
    try:
        here = importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"not on this machine: {name}")
    if here != written[1]:
        pytest.skip(f"{xfails.name} is for {written[1]}: {name} {here}")
    arguments = ["--xfails", str(xfails), *(["--skips", str(skips)] if skips.exists() else [])]
    status, told, passed = run(tmp_path, name, *arguments)
    assert status == 0, told
    assert passed >= least, told


def test_each_line_of_these_files_has_its_reason():
    for path in (*SUITE.glob("xfails/*.txt"), *SUITE.glob("skips/*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not line or line.startswith("#") or "  # " in line, f"{path.name}: {line}"

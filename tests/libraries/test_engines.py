"""The programs of examples/engines run: Dask, MPI, gloo and Ray use the memory of extensions in several processes (P9).

Each program asserts what it prints: results, and the addresses of the memory on both sides.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from open_mpi import OPEN_MPI
from optional import needs
from patience import PATIENCE

FOLDER = Path(__file__).parents[2] / "examples" / "engines"
PAGE = FOLDER.parents[1] / "docs" / "engines.md"
LIMIT = 50 * PATIENCE  # seconds


def test_the_page_has_the_command_of_each_program():
    """That of the program's own docstring, with the Python of the project."""
    block = re.search(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)[1]
    programs = sorted(FOLDER.glob("*.py"))
    told = [re.search(r"^    (.*examples/engines/.*)$", path.read_text(), re.MULTILINE)[1] for path in programs]
    assert sorted(block.replace(".venv/bin/python", "python").splitlines()) == sorted(told)
    assert [path.name in PAGE.read_text() for path in programs] == [True] * 4


def run(name, *launcher, **environment):
    """The output of a program. Ends all its processes, also where it fails or hangs."""
    path = os.pathsep.join(filter(None, sys.path))
    command = [*(launcher or [sys.executable]), FOLDER / name]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    group = {"start_new_session": os.name != "nt"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes, **group) as program:
        try:
            said, errors = program.communicate(timeout=LIMIT)
        finally:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
    assert program.returncode == 0, f"{said}{errors}exit code {program.returncode}"
    return said


@needs("distributed", "make test-libraries")
def test_blocks_of_dask_are_copied_only_from_process_to_process_D5_C9():
    said = run("dask_blocks.py")
    assert len(re.findall(r"^threads: process \d+ made a block", said, re.MULTILINE)) == 4
    assert len(re.findall(r"^processes: process \d+ made a block", said, re.MULTILINE)) == 4
    assert said.count(" has block 0 at ") == 3 and said.endswith("Without a copy in each process that made a block.\n")


@needs("mpi4py", "make test-libraries")
def test_mpi_scatters_and_gathers_rows_in_the_memory_of_images_P8_P3():
    if shutil.which("mpiexec") is None:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without("mpiexec: Debian's package openmpi-bin has it")
    said = run("mpi_rows.py", "mpiexec", "-n", "2", sys.executable, "-m", "mpi4py", **OPEN_MPI)
    assert said.count("MPI has written 300 rows") == said.count("MPI does not receive into a frozen Image") == 2
    assert said.count("rank 0: MPI has gathered 600 blurred rows") == 1


@needs("torch", "make test-libraries")
def test_gloo_adds_in_the_memory_of_samples_which_does_not_move_meanwhile_P9():
    said = run("gloo_sum.py")
    assert said.count("gloo has written 100000 sums") == said.count("it cannot move") == 2
    assert said.count("append after PyTorch has released it: ") == 2


@needs("ray", "make test-libraries")
def test_actors_of_ray_share_one_copy_of_an_array_P3():
    """Ray writes its logs and sockets below RAY_TMPDIR, whose name must be short."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        said = run("ray_actor.py", RAY_TMPDIR=folder)
    assert len(set(re.findall(r"byte (\d+) of the store", said))) == 1 and said.count("sums are at") == 4
    assert said.endswith("The two actors have used one copy of the block, and dlarray has made none.\n")

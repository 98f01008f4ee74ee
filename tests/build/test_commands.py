"""The commands of the README name a tool that the machine lacks. bare_system.sh tests the tools not tested here."""

import os
import subprocess
import sys

import machine
import pytest

CHECK = machine.ROOT / "requirements" / "check.py"


def check(python, *compiler):
    """The exit status and the output."""
    done = subprocess.run([python, CHECK, *compiler], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_complete_machine_gives_no_message():
    assert check(sys.executable, list(machine.compilers().values())[-1][0]) == (0, "")


def test_a_missing_compiler_is_named_in_one_line():
    status, said = check(sys.executable, "no-such-compiler", "-O2")
    assert status == 1
    assert said == "MISSING: no C compiler `no-such-compiler -O2`: install gcc, or name another one, CC=clang\n"


def test_missing_headers_of_the_c_library_have_their_own_message():
    status, said = check(sys.executable, list(machine.compilers().values())[-1][0], "-nostdinc")
    assert status == 1
    assert said.startswith("MISSING: the C compiler finds no <stdlib.h>: install libc6-dev ") and said.count("\n") == 1


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8"])
def test_a_python_that_is_too_old_is_named_in_one_line(version):
    python, _ = next(machine.installed_pythons(version), (None, None))
    if python is None:
        pytest.skip(f"CPython {version}: not on this machine")
    status, said = check(python)
    assert status == 1
    assert f"is Python {version}." in said and ", 3.9 or newer is needed: " in said and said.count("\n") == 1


def test_make_names_a_missing_python(tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}  # of an outer make
    environment["PYTHON"] = "no-such-python"
    done = subprocess.run(["make", "-n", "demo"], capture_output=True, text=True, cwd=machine.ROOT, env=environment)
    assert done.returncode != 0
    assert "MISSING: no Python `no-such-python`: install python3" in done.stderr and done.stderr.count("\n") == 1

"""A public name is deprecated before it goes: each use is then a warning. docs/stability.md has the rules."""

import re

import machine
import pytest

SOURCE = machine.ROOT / "tests" / "build" / "deprecated.c"
INSTEAD = ["use DLPACK_PY_LATER", "use dlpack_py_later", "use extent"]


def warned(text):
    """What the warnings of GCC, clang or clang-cl say to use."""
    return sorted(set(re.findall(r"(?:warning|error): .*deprecated: '?(.*?)(?:'| \[|$)", text, re.MULTILINE)))


@pytest.mark.parametrize("standard", [*machine.C_STANDARDS, *machine.CXX_STANDARDS])
@pytest.mark.parametrize("compiler", machine.compilers())
def test_each_use_of_a_deprecated_name_is_a_warning(tmp_path, compiler, standard):
    commands = machine.compilers()[compiler]
    if "++" in standard and commands[1] is None:
        pytest.skip(f"the C++ compiler of {compiler}: not on this machine")
    source = tmp_path / ("source.cpp" if "++" in standard else "source.c")
    source.write_text(f'#include "{SOURCE}"\n')
    flags = [f"-std={standard}", "-fsyntax-only"]
    done = machine.compile_c(source, *flags, "-DUSES", "-Wno-error", compiler=commands, python=None)
    assert done.returncode == 0 and warned(done.stderr) == INSTEAD, done.stderr
    done = machine.compile_c(source, *flags, compiler=commands, python=None)
    assert done.returncode == 0 and done.stderr == "", done.stderr

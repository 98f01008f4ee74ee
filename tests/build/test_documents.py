"""What is written beside the header says what the header says."""

import os
import re
import subprocess
from pathlib import Path

import machine
import pytest

HEADER = (machine.ROOT / "dlpack_py.h").read_text()
VERSION = re.search(r'define DLPACK_PY_VERSION_STRING "(.*?)"', HEADER)[1]


@pytest.fixture
def added_lines():
    """What the extension in examples/minimal got for DLPack: its marked regions, with a blank line between two."""
    text = (machine.ROOT / "examples" / "minimal" / "image.c").read_text()
    regions = re.findall(r"^ */\* dlpack: begin \*/\n(.*?)^ */\* dlpack: end \*/$", text, re.DOTALL | re.MULTILINE)
    assert len(regions) > 1
    return "\n\n".join(region.strip("\n") for region in regions) + "\n"


def test_the_code_in_the_readme_is_the_example(added_lines):
    readme = (machine.ROOT / "README.md").read_text()
    section = re.split(r"^#+ .*examples/minimal.*$", readme, flags=re.MULTILINE)[1]
    assert re.search(r"^```c\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[1] == added_lines


def test_the_code_for_several_arrays_in_the_readme_compiles(tmp_path):
    section = (machine.ROOT / "README.md").read_text().split("### Several arrays")[1]
    code = re.search(r"^```c\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)[1]
    source = tmp_path / "several.c"
    source.write_text(
        '#include "dlpack_py.h"\nPyObject *use(PyObject *x, PyObject *out);\n'
        f"PyObject *use(PyObject *x, PyObject *out)\n{{\ndlpack_py_view in, to;\n{code}"
        "dlpack_py_release(&in);\ndlpack_py_release(&to);\nPy_RETURN_NONE;\n}\n"
    )
    done = machine.compile_c(source, "-c", "-o", str(tmp_path / "o"))
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_code_for_a_description_in_the_readme_compiles(tmp_path):
    readme = (machine.ROOT / "README.md").read_text()
    code = ""
    for title in "### Describe an object once", "### Your `from_dlpack`":
        block = re.search(r"^```c\n(.*?)^```$", readme.split(title)[1], re.DOTALL | re.MULTILINE)[1]
        code += re.sub(r"^    (DLPACK_PY_METHODS|\{\"from_dlpack\").*$", "", block, flags=re.MULTILINE)
    source = tmp_path / "described.c"
    source.write_text(f"""
        #include "dlpack_py.h"
        typedef struct {{
            PyObject_HEAD
            double *values;
            int64_t length;
            int readonly;
            DLTensor tensor;
            dlpack_py_exports exports;
            dlpack_py_view view;
        }} Samples;
        {code}
        PyMethodDef methods[] = {{
            DLPACK_PY_METHODS(samples_dlpack, samples_dlpack_device),
            {{"from_dlpack", (PyCFunction)(void (*)(void))samples_from_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL}},
            {{NULL, NULL, 0, NULL}},
        }};
    """)
    done = machine.compile_c(source, "-std=c99", "-c", "-o", str(tmp_path / "o"))
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_the_cython_code_in_the_readme_is_the_example():
    readme = (machine.ROOT / "README.md").read_text()
    block = re.search(r"^```cython\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[1]
    example = (machine.ROOT / "examples" / "cython" / "wave.pyx").read_text()
    regions = re.findall(r"# dlpack: begin\n(.*?) *# dlpack: end", example, re.DOTALL)
    assert block.split() == " ".join(regions).split()


def test_every_name_of_the_header_in_the_documents_is_there():
    known = set(re.findall(r"\b(?:dlpack|DLPACK)_\w+", "".join(path.read_text() for path in machine.ROOT.glob("*.h"))))
    known |= {"DLPACK_INCLUDE_DIR", "DLPACK_PY_EXAMPLES", "DLPACK_PY_TESTS"}  # of CMake
    for document in (machine.ROOT / "README.md", machine.ROOT / "docs" / "streams.md"):
        pattern = r"\b(?:dlpack|DLPACK)_(?:PY|py|cuda|CUDA|rocm|ROCM|device|DEVICE)_\w+"
        named = set(re.findall(pattern, document.read_text()))
        assert {name for name in named if name not in known and not name.endswith("_")} == set()


def test_the_example_adds_at_most_thirty_lines(added_lines):
    code = re.sub(r"/\*.*?\*/", "", added_lines, flags=re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert 0 < len(lines) <= 30
    assert max(map(len, lines)) <= 120


HANDSHAKES = sorted(Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob("handshake_*"))
NO_HANDSHAKE = pytest.mark.skip(reason="headers of CUDA or HIP: not on this machine")


@pytest.mark.parametrize(
    "program", HANDSHAKES or [pytest.param(None, marks=NO_HANDSHAKE)], ids=lambda path: getattr(path, "name", None)
)
def test_the_calls_of_each_case_are_those_that_are_tested(program):
    tables = subprocess.run([program, "--table"], capture_output=True, text=True, check=True).stdout
    assert tables.count("\n| ") > 40
    assert (machine.ROOT / "docs" / "streams.md").read_text().endswith(f"\n\n{tables}")


def test_the_changelog_begins_with_the_version_of_the_header():
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", (machine.ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == VERSION


def test_the_version_of_the_header_is_the_same_as_number_and_text():
    number = int(re.search(r"define DLPACK_PY_VERSION (0x\w+)", HEADER)[1], 16)
    assert ".".join(str(number >> shift & 255) for shift in (16, 8, 0)) == VERSION
    assert f"* Version {VERSION}," in HEADER
    assert f"DLPACK_PY_VERSION != 0x{number:06x}" in HEADER


def test_the_licence_in_the_header_is_that_of_the_project():
    def words(text):
        return re.sub(r"[\s*]+", " ", text[text.index("Permission is hereby granted") :]).strip(" /")

    assert words(HEADER) == words((machine.ROOT / "LICENSE").read_text())
    assert "SPDX-License-Identifier: MIT" in HEADER


def test_no_line_is_longer_than_120_columns():
    lines = [line for header in sorted(machine.ROOT.glob("*.h")) for line in header.read_text().splitlines()]
    assert [line for line in lines if len(line) > 120] == []

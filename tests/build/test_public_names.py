"""public_names.txt lists the public names of the headers and their contracts: a change needs a new version."""

import difflib
import re

import machine
import public_names
import pytest


def test_public_names_and_contracts_change_only_with_the_version():
    text, expected = public_names.write_text(), public_names.LIST.read_text()
    changes = "\n".join(
        difflib.unified_diff(expected.splitlines(), text.splitlines(), "committed", "headers", lineterm="")
    )
    assert text == expected, (
        "bump DLPACK_PY_VERSION, write the change into CHANGELOG.md, and run tests/build/public_names.py:\n" + changes
    )


@pytest.mark.parametrize("header", public_names.HEADERS)
def test_no_public_function_or_macro_is_missing_in_the_list(header):
    text = (machine.ROOT / f"dlpack_{header}").read_text()
    found = set(re.findall(r"^(dlpack_\w+)\(", text, re.MULTILINE))
    found |= set(re.findall(r"^ *# *define (DLPACK_\w+)", text, re.MULTILINE))
    found |= set(re.findall(r"^\} (\w+);", text, re.MULTILINE))
    found = {name for name in found if public_names.is_public(name)} - {"DLPACK_PY_AVAILABLE"}
    listed = public_names.names(header)
    assert found - listed.keys() == set()
    assert len(listed) >= {"tensor.h": 80, "py.h": 40, "py.hpp": 1, "copy.h": 2, "cuda_array_interface.h": 3}.get(
        header, 6
    )


CHANGES = {
    "a function": ("dlpack_py_consume(PyObject *obj, const", "dlpack_py_consume(PyObject *obj, int64_t n, const"),
    "a constant": ("#define DLPACK_PY_COPY_NEVER 2", "#define DLPACK_PY_COPY_NEVER 3"),
    "a field": ("    int32_t overlaps;", "    int64_t overlaps;"),
    "a promise": ("or a DLPack capsule of either form (C6)", "or a DLPack capsule of either form, else KeyError"),
}


@pytest.mark.parametrize("change", [*CHANGES, "nothing", "the version too"])
def test_the_list_is_written_only_if_the_version_has_changed_too(tmp_path, monkeypatch, change):
    for header in public_names.HEADERS:
        (tmp_path / f"dlpack_{header}").write_text((machine.ROOT / f"dlpack_{header}").read_text())
    monkeypatch.setattr(public_names, "ROOT", tmp_path)
    monkeypatch.setattr(public_names, "LIST", tmp_path / "public_names.txt")
    monkeypatch.setattr(public_names, "RELEASED", tmp_path / "public_names_released.txt")
    tensor = tmp_path / "dlpack_tensor.h"
    released = re.sub(r'(DLPACK_PY_VERSION_DATE) ".*"', r'\1 "2031-02-28"', tensor.read_text())
    tensor.write_text(released)
    public_names.main()
    before = public_names.LIST.read_text()
    if change == "nothing":
        assert public_names.main() == 0
        return
    old, new = CHANGES.get(change, CHANGES["a constant"])
    header = tmp_path / "dlpack_py.h"
    assert header.read_text().count(old) == 1, f"dlpack_py.h has no such text: {old}"
    header.write_text(header.read_text().replace(old, new))
    if change == "the version too":
        text, count = re.subn(r'(DLPACK_PY_VERSION_STRING) "[\d.]+"', r'\1 "9.9.9"', released)
        assert count == 1
        tensor.write_text(text)
        public_names.main()
        assert "version 9.9.9" in public_names.LIST.read_text()
    else:
        with pytest.raises(SystemExit, match="packaging/version.py sets a new version"):
            public_names.main()
        assert public_names.LIST.read_text() == before


def test_the_list_of_a_version_that_is_not_released_may_change(tmp_path, monkeypatch):
    for header in public_names.HEADERS:
        (tmp_path / f"dlpack_{header}").write_text((machine.ROOT / f"dlpack_{header}").read_text())
    monkeypatch.setattr(public_names, "ROOT", tmp_path)
    monkeypatch.setattr(public_names, "LIST", tmp_path / "public_names.txt")
    monkeypatch.setattr(public_names, "RELEASED", tmp_path / "public_names_released.txt")
    tensor = tmp_path / "dlpack_tensor.h"
    tensor.write_text(re.sub(r'(DLPACK_PY_VERSION_DATE) ".*"', r'\1 "not released"', tensor.read_text()))
    public_names.main()
    tensor.write_text(
        tensor.read_text().replace("#define DLPACK_PY_CURRENT_DEVICE (-1)", "#define DLPACK_PY_OTHER (-1)")
    )
    public_names.main()
    assert "DLPACK_PY_OTHER (-1)" in public_names.LIST.read_text()


OLD_FUNCTION = """
DLP_DEPRECATED("use dlpack_py_size") static inline int64_t
dlpack_py_count(const DLTensor *t)
{
    return dlpack_py_size(t);
}
"""
OLD_CONSTANT = """
DLP_DEPRECATED("use DLPACK_PY_MAX_NDIM") typedef int32_t dlp_max_rank;
#define DLPACK_PY_MAX_RANK ((dlp_max_rank)64)
"""


@pytest.mark.parametrize("before", [OLD_FUNCTION, OLD_CONSTANT], ids=["a function", "a constant"])
@pytest.mark.parametrize("warns", [True, False])
def test_a_name_goes_only_after_a_release_that_warns(tmp_path, monkeypatch, before, warns):
    """docs/stability.md promises it."""
    texts = {header: (machine.ROOT / f"dlpack_{header}").read_text() for header in public_names.HEADERS}
    monkeypatch.setattr(public_names, "ROOT", tmp_path)
    monkeypatch.setattr(public_names, "LIST", tmp_path / "public_names.txt")
    monkeypatch.setattr(public_names, "RELEASED", tmp_path / "public_names_released.txt")

    def write(text, version):
        for header in public_names.HEADERS:
            (tmp_path / f"dlpack_{header}").write_text(texts[header])
        text, count = re.subn(r'(DLPACK_PY_VERSION_STRING) "[\d.]+"', rf'\1 "{version}"', texts["tensor.h"] + text)
        assert count == 1
        (tmp_path / "dlpack_tensor.h").write_text(text)
        return public_names.main()

    write(before if warns else re.sub(r'DLP_DEPRECATED\(".*"\) ', "", before), "9.1.0")
    listed = public_names.LIST.read_text()
    assert listed.count("      deprecated: use ") == warns and ("dlpack_py_count" in listed or "MAX_RANK" in listed)
    for before in "", "#define DLPACK_PY_NEW 1\n", "":  # what is new in the version may go again
        if warns:
            assert write(before, "9.2.0") == 0 and "deprecated" not in public_names.LIST.read_text()
        else:
            with pytest.raises(SystemExit, match="no release has deprecated .*: (dlpack_py_count|DLPACK_PY_MAX_RANK)$"):
                write(before, "9.2.0")


def test_each_name_of_the_list_counts_as_gone_when_it_goes():
    listed = {name for header in public_names.HEADERS for name in public_names.names(header)}
    assert set(public_names.gone("", public_names.LIST.read_text())) == listed

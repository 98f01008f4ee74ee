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
    assert len(listed) >= {"tensor.h": 80, "py.h": 40, "py.hpp": 1, "copy.h": 2}.get(header, 6)


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
    tensor = tmp_path / "dlpack_tensor.h"
    tensor.write_text(re.sub(r'(DLPACK_PY_VERSION_DATE) ".*"', r'\1 "not released"', tensor.read_text()))
    public_names.main()
    tensor.write_text(
        tensor.read_text().replace("#define DLPACK_PY_CURRENT_DEVICE (-1)", "#define DLPACK_PY_OTHER (-1)")
    )
    public_names.main()
    assert "DLPACK_PY_OTHER (-1)" in public_names.LIST.read_text()

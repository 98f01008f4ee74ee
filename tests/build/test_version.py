"""The version, the date and the URL in the headers, and packaging/version.py, which sets them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import machine
import pytest

SCRIPT = Path("packaging", "version.py")


@pytest.fixture
def tree(tmp_path):
    """A copy of the files that name the version."""
    (tmp_path / "packaging").mkdir()
    others = ["CHANGELOG.md", "CITATION.cff", "meson.build", "pyproject.toml"]
    for path in [SCRIPT, *others, *machine.ROOT.glob("dlpack_*.h*")]:
        path = machine.ROOT / path
        shutil.copy(path, tmp_path / path.relative_to(machine.ROOT))
    return tmp_path


def run(tree, *args):
    return subprocess.run([sys.executable, tree / SCRIPT, *args], capture_output=True, text=True)


def contents(tree):
    return {path: path.read_text(encoding="utf-8") for path in sorted(tree.glob("*.*"))}


def heading(tree):
    return re.search("^## .*$", (tree / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]


def test_all_files_say_the_version_of_the_macros():
    result = run(machine.ROOT)
    assert result.returncode == 0, result.stderr
    tensor = (machine.ROOT / "dlpack_tensor.h").read_text()
    version, date, url = re.findall(
        r'^#define DLPACK_PY_(?:VERSION_STRING|VERSION_DATE|URL) "(.*)"$', tensor, re.MULTILINE
    )
    assert result.stdout == f"Version {version}{', ' if date == 'not released' else ' of '}{date}. {url}\n"
    parts = [int(part) for part in version.split(".")]
    assert f"#define DLPACK_PY_VERSION 0x{bytes(parts).hex()} " in tensor


@pytest.mark.parametrize("name", ["dlpack_py.hpp", "dlpack_rocm.h", "dlpack_tensor.h"])
def test_a_header_with_another_version_is_an_error(tree, name):
    path = tree / name
    path.write_text(path.read_text(encoding="utf-8").replace("Version ", "Version 1", 1), encoding="utf-8")
    before = contents(tree)
    result = run(tree, "8.0.0")
    assert result.returncode == 1
    assert re.match(rf"{re.escape(name)} does not contain: Version \d+\.\d+\.\d+", result.stderr)
    assert contents(tree) == before


def test_a_version_begins_and_is_released(tree):
    before = heading(tree)
    assert run(tree, "8.1.0").stdout.startswith("Version 8.1.0, not released. ")
    assert heading(tree) == "## 8.1.0"
    assert before in (tree / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert run(tree, "8.1.0", "2031-02-28").stdout.startswith("Version 8.1.0 of 2031-02-28. ")
    assert heading(tree) == "## 8.1.0 - 2031-02-28"
    for path in tree.glob("dlpack_*"):
        assert "Version 8.1.0 of 2031-02-28. " in path.read_text(encoding="utf-8").splitlines()[1]
        numbers = set(re.findall(r"DLPACK_PY_VERSION (?:!= )?(0x\w+)", path.read_text(encoding="utf-8")))
        assert numbers <= {"0x080100"}, path
    tensor = (tree / "dlpack_tensor.h").read_text(encoding="utf-8")
    assert '#define DLPACK_PY_VERSION_STRING "8.1.0"\n#define DLPACK_PY_VERSION_DATE "2031-02-28"\n' in tensor
    assert "\nversion: 8.1.0\n" in (tree / "CITATION.cff").read_text(encoding="utf-8")
    assert "project('dlpack_py', version: '8.1.0'," in (tree / "meson.build").read_text(encoding="utf-8")
    assert run(tree).stdout.startswith("Version 8.1.0 of 2031-02-28. ")


def test_the_url_is_set_in_all_headers_and_in_the_package(tree):
    run(tree, "--url", "https://example.net/moved")
    assert '\nSource = "https://example.net/moved"' in (tree / "pyproject.toml").read_text(encoding="utf-8")
    for path in tree.glob("dlpack_*"):
        assert path.read_text(encoding="utf-8").splitlines()[1].endswith(". https://example.net/moved")
    assert '#define DLPACK_PY_URL "https://example.net/moved"' in (tree / "dlpack_tensor.h").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "args, text",
    [
        (["1.2"], "the version is 1.2, three numbers with dots were wanted"),
        (["1.2.3", "2031-02-29"], "the date is 2031-02-29, one such as 2027-01-31 was wanted"),
    ],
)
def test_a_malformed_version_or_date_changes_nothing(tree, args, text):
    before = contents(tree)
    result = run(tree, *args)
    assert result.returncode == 2
    assert text in result.stderr
    assert contents(tree) == before

"""make release: what it refuses, and a whole release of a copy of the tree."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import machine
import pytest
from test_package import VERSION, needs_index

pytest.importorskip("hatchling", exc_type=ModuleNotFoundError, reason="hatchling: not on this machine")

TEXT = (machine.ROOT / "dlpack_tensor.h").read_text()
DATE = (re.findall(r"VERSION_DATE \"(.*?)\"", TEXT) or ["2026-01-31"])[0]
OPEN, CLOSED = f"## {VERSION}\n", f"## {VERSION} ({DATE})\n"


def git(tree, *arguments):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *arguments], cwd=tree, check=True, capture_output=True)


def edit(path, pattern, text):
    """Replaces the first match."""
    changed, count = re.subn(pattern, lambda _: text, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, path
    path.write_text(changed)


@pytest.fixture
def tree(tmp_path):
    """A clone of this tree as it is, with one commit in which the changelog is closed."""
    if shutil.which("git") is None:
        pytest.skip("git: not on this machine")
    made = tmp_path / "tree"
    built = shutil.ignore_patterns(".git", "build", ".venv*", ".*_cache", ".hypothesis", "PKG-INFO")

    def ignored(path, names):
        return built(path, names) if Path(path) == machine.ROOT else []

    shutil.copytree(machine.ROOT, made, ignore=ignored)
    edit(made / "CHANGELOG.md", r"^## \d.*\n", CLOSED)
    git(made, "init", "--quiet")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message=A tree")
    return made


def release(tree):
    """The status, the output and the messages of make release, without make."""
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    environment.pop("DLPACK_PY_COMPLETE", None)
    command = [sys.executable, "python/release.py", "release"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_changelog_that_is_not_closed_is_one_line(tree):
    edit(tree / "CHANGELOG.md", r"^## \d.*\n", OPEN)
    git(tree, "commit", "--quiet", "--all", "--message=Open")
    status, said, problem = release(tree)
    assert status == 1 and said == "" and not (tree / "build").exists()
    assert problem.count("\n") == 1
    assert problem.startswith(
        f"not released: the top section of CHANGELOG.md is not closed: `{OPEN.strip()}` has no date"
    )


def test_each_version_that_differs_has_a_line(tree):
    number = re.search(r"define DLPACK_PY_VERSION (0x\w+)", TEXT)[1]
    edit(tree / "dlpack_tensor.h", f"define DLPACK_PY_VERSION {number}", "define DLPACK_PY_VERSION 0x000001")
    edit(tree / "dlpack_py.h", rf"Version {re.escape(VERSION)}", "Version 0.0.1")
    edit(tree / "dlpack_buffer.h", f"DLPACK_PY_VERSION != {number}", "DLPACK_PY_VERSION != 0x000001")
    edit(tree / "dlpack_copy.h", r"\A/\* ", "/* 1999-12-31 ")
    edit(tree / "CMakeLists.txt", r"VERSION \$\{version\}", "VERSION 0.0.1")
    edit(
        tree / "dlpack_tensor.h",
        r"^#define DLPACK_PY_VERSION_STRING",
        '#define DLPACK_PY_URL "x"\n#define DLPACK_PY_VERSION_STRING',
    )
    git(tree, "tag", f"v{VERSION}")
    status, said, lines = release(tree)
    assert status == 1 and said == ""
    lines = [line.removeprefix("not released: ") for line in lines.splitlines()]
    assert lines == [
        "the tree is not clean: 5 files, as CMakeLists.txt",
        f"DLPACK_PY_VERSION is 0x000001, and the text of the version is {VERSION}",
        f"dlpack_buffer.h compares with version 0x000001, and not {number}",
        f"the first lines of dlpack_py.h have version 0.0.1, and not {VERSION}",
        f"the date in the first lines of dlpack_copy.h is 1999-12-31, and CHANGELOG.md has {DATE}",
        "DLPACK_PY_URL is x, and pyproject.toml has https://example.org/dlpack_py",
        f"CMake reads version 0.0.1, and the headers have {VERSION}",
        f"the tag v{VERSION} is there already",
    ]


@pytest.mark.parametrize("top", ["Unreleased", f"{VERSION}.1 (2026-01-31)"])
def test_another_version_in_the_changelog_has_a_line(tree, top):
    edit(tree / "CHANGELOG.md", r"^## \d.*\n", f"## {top}\n")
    git(tree, "commit", "--quiet", "--all", "--message=Other")
    status, _, problem = release(tree)
    assert status == 1
    assert (
        problem
        == f"not released: the top section of CHANGELOG.md is `## {top}`, and the headers have version {VERSION}\n"
    )


@needs_index  # the tests in the tree of the sdist take a minute
def test_a_closed_tree_is_built_and_tested_and_the_tag_is_named(tree):
    status, said, problem = release(tree)
    assert status == 0, said + problem
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tree, capture_output=True, text=True).stdout.strip()
    assert said.endswith(f"\ngit tag -a v{VERSION} -m 'dlpack_py {VERSION}' {commit}\n")
    assert "built again, and from the sdist: the same bytes\n" in said and re.search(r"\d+ passed", said)
    files = sorted((tree / "build" / "release").iterdir())
    assert [path.name for path in files] == [f"dlpack_py-{VERSION}-py3-none-any.whl", f"dlpack_py-{VERSION}.tar.gz"]
    for path in files:
        assert re.search(rf"{path.name}: [\d,]+ bytes, sha256 [0-9a-f]{{64}}\n", said)
    assert f'"commit": "{commit}"'.encode() in zipfile.ZipFile(files[0]).read("dlpack_py/source.json")

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

DATE = "2031-02-28"


def git(tree, *arguments):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *names, *arguments], cwd=tree, check=True, capture_output=True)


def edit(path, pattern, text):
    """Replaces the first match."""
    changed, count = re.subn(pattern, lambda _: text, path.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1, path
    path.write_text(changed)


def close(tree, *date):
    """Sets the date, or with no date "not released"."""
    script = [sys.executable, "packaging/version.py", VERSION, *date]
    subprocess.run(script, cwd=tree, check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path):
    """A clone of this tree as it is, with one commit in which the version is closed."""
    if shutil.which("git") is None:
        pytest.skip("git: not on this machine")
    made = tmp_path / "tree"
    built = shutil.ignore_patterns(".git", "build", ".venv*", ".*_cache", ".hypothesis", "PKG-INFO")

    def ignored(path, names):
        return built(path, names) if Path(path) == machine.ROOT else []

    shutil.copytree(machine.ROOT, made, ignore=ignored)
    close(made, DATE)
    git(made, "init", "--quiet")
    git(made, "add", "--all")
    git(made, "commit", "--quiet", "--message=A tree")
    return made


def release(tree):
    """The status, the output and the messages of make release, without make."""
    environment = {**os.environ, "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}
    environment.pop("DLPACK_PY_COMPLETE", None)
    command = [sys.executable, "packaging/release.py", "release"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_a_version_that_is_not_closed_is_one_line(tree):
    close(tree)
    git(tree, "commit", "--quiet", "--all", "--message=Open")
    status, said, problem = release(tree)
    assert status == 1 and said == "" and not (tree / "build").exists()
    assert problem.count("\n") == 1
    assert problem.startswith(
        f"not released: version {VERSION} is not closed: `packaging/version.py {VERSION} 2026-01-31`"
    )


def test_each_thing_that_stands_against_a_release_has_a_line(tree):
    edit(tree / "dlpack_buffer.h", rf"Version {re.escape(VERSION)} of {DATE}", "Version 0.0.1 of 1999-12-31")
    edit(tree / "CHANGELOG.md", "^## ", "## Unreleased\n\n## ")
    edit(tree / "CMakeLists.txt", r"VERSION \$\{version\}", "VERSION 0.0.1")
    git(tree, "tag", f"v{VERSION}")
    status, said, lines = release(tree)
    assert status == 1 and said == ""
    url = re.search(r'define DLPACK_PY_URL "(.*)"', (machine.ROOT / "dlpack_tensor.h").read_text())[1]
    assert [line.removeprefix("not released: ") for line in lines.splitlines()] == [
        "the tree is not clean: 3 files, as CHANGELOG.md",
        f"CHANGELOG.md begins with `## Unreleased`, and not with `## {VERSION} - {DATE}`",
        f"dlpack_buffer.h does not contain: Version {VERSION} of {DATE}. {url}",
        f"CMake reads version 0.0.1, and the headers have {VERSION}",
        f"the tag v{VERSION} is there already",
    ]


def test_another_url_in_the_package_has_a_line(tree):
    edit(tree / "pyproject.toml", '^Source = ".*?"', 'Source = "https://example.org/other"')
    git(tree, "commit", "--quiet", "--all", "--message=Other")
    status, _, problem = release(tree)
    assert status == 1 and problem.startswith("not released: pyproject.toml does not contain: ")


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

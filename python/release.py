"""Builds the package dlpack-py, and checks what a release needs. make package and make release call it.

    release.py package    builds the sdist and the wheel into build/release
    release.py release    checks the tree, builds, builds again from the sdist, tests there, prints the tag to set

It runs in the root of the tree, in the environment that make has made.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

RELEASE = Path("build", "release")
# What the tree of the sdist is tested with, beside make demo: that it is complete.
TESTS = ["tests/build/test_package.py", "tests/build/test_projects.py", "tests/build/test_documents.py"]
TESTS += ["tests/examples/test_dlarray.py"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def headers():
    return sorted([*Path().glob("dlpack_*.h"), *Path().glob("dlpack_*.hpp")])


def defined(name):
    """The text of a macro of dlpack_tensor.h, or None."""
    found = re.search(rf'define {name} "?([^"\s]+)"?', Path("dlpack_tensor.h").read_text("utf-8"))
    return found and found[1]


def cmake_version():
    """The version that CMake reads."""
    with tempfile.TemporaryDirectory() as folder:
        output("cmake", "-S", ".", "-B", folder, "-G", "Ninja", "-DDLPACK_PY_TESTS=OFF", "-DDLPACK_PY_EXAMPLES=OFF")
        cache = Path(folder, "CMakeCache.txt").read_text("utf-8")
    return re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", cache, re.MULTILINE)[1]


def url():
    """The address in pyproject.toml."""
    return re.search(r'^Source = "(.*?)"', Path("pyproject.toml").read_text("utf-8"), re.MULTILINE)[1]


def problems():
    """What stands against a release of this tree, a line each."""
    version = defined("DLPACK_PY_VERSION_STRING")
    if changed := output("git", "status", "--porcelain"):
        yield f"the tree is not clean: {len(changed.splitlines())} files, as {changed.split()[1]}"
    top = re.search(r"^## .*$", Path("CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    date = re.search(r"\b\d{4}-\d\d-\d\d\b", top)
    if not re.match(rf"## {re.escape(version)}\b(?![.-])", top):
        yield f"the top section of CHANGELOG.md is `{top}`, and the headers have version {version}"
    elif not date:
        yield f"the top section of CHANGELOG.md is not closed: `{top}` has no date, as in `## {version} (2026-01-31)`"
    number = "0x{:02x}{:02x}{:02x}".format(*map(int, version.split(".")))
    if defined("DLPACK_PY_VERSION") != number:
        yield f"DLPACK_PY_VERSION is {defined('DLPACK_PY_VERSION')}, and the text of the version is {version}"
    dates = {"DLPACK_PY_VERSION_DATE": defined("DLPACK_PY_VERSION_DATE")}
    for header in headers():
        text = header.read_text("utf-8")
        first = "\n".join(text.splitlines()[:12])
        for found in re.findall(r"\bVersion (\d+\.\d+\.\d+)", first):
            if found != version:
                yield f"the first lines of {header} have version {found}, and not {version}"
        for found in re.findall(r"DLPACK_PY_VERSION != (0x\w+)", text):
            if found != number:
                yield f"{header} compares with version {found}, and not {number}"
        dates[f"the date in the first lines of {header}"] = (re.findall(r"\b\d{4}-\d\d-\d\d\b", first) or [None])[0]
    for place, found in dates.items():
        if date and found and found != date[0]:
            yield f"{place} is {found}, and CHANGELOG.md has {date[0]}"
    for name in "DLPACK_PY_URL", "DLPACK_PY_VERSION_URL":
        if defined(name) not in (None, url()):
            yield f"{name} is {defined(name)}, and pyproject.toml has {url()}"
    if cmake_version() != version:
        yield f"CMake reads version {cmake_version()}, and the headers have {version}"
    if output("git", "tag", "--list", f"v{version}"):
        yield f"the tag v{version} is there already"


def build(kind, tree, folder):
    """Builds the "wheel" or the "sdist" of a tree."""
    code = f"import hatchling.build as b; print(b.build_{kind}({str(folder.resolve())!r}))"
    try:
        done = subprocess.run([sys.executable, "-c", code], cwd=tree, stdout=subprocess.PIPE, text=True, check=True)
    except subprocess.CalledProcessError:
        sys.exit(1)  # it has said why
    return folder / done.stdout.strip()


def package():
    """Builds both, and prints their sizes and sha256."""
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    built = [build(kind, ".", RELEASE) for kind in ("sdist", "wheel")]
    for path in built:
        print(f"{path}: {path.stat().st_size:,} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")
    version = defined("DLPACK_PY_VERSION_STRING")
    if {path.name for path in built} != {f"dlpack_py-{version}.tar.gz", f"dlpack_py-{version}-py3-none-any.whl"}:
        sys.exit(f"not released: the headers have version {version}")
    return built


def same(path, again):
    if path.read_bytes() != again.read_bytes():
        sys.exit(f"not released: {again} differs from {path}")


def release():
    found = list(problems())
    for line in found:
        print(f"not released: {line}", file=sys.stderr)
    if found:
        sys.exit(1)
    sdist, wheel = package()
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in ("sdist", sdist), ("wheel", wheel):
            same(path, build(kind, ".", Path(folder)))
        with tarfile.open(sdist) as tar:
            tar.extractall(folder)
        tree = Path(folder, sdist.name.removesuffix(".tar.gz"))
        same(wheel, build("wheel", tree, tree.parent))
        print("built again, and from the sdist: the same bytes", flush=True)
        test(tree)
    version = defined("DLPACK_PY_VERSION_STRING")
    if "example.org" in url():
        print(f"note: pyproject.toml has the placeholder {url()}")
    print(f"to release {version}, set the tag, and upload the two files of {RELEASE}:")
    print(f"git tag -a v{version} -m 'dlpack_py {version}' {output('git', 'rev-parse', 'HEAD')}")


def test(tree):
    """make demo, and some tests, in the tree of the sdist, with the environment of this tree."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    commands = [["make", "demo", f"PYTHON={sys.executable}", f"VENV={sys.prefix}", "BUILD=build/demo"]]
    commands += [[sys.executable, "-m", "pytest", "-q", *TESTS]]
    environment["DLPACK_PY_BUILD_DIR"] = environment["PYTHONPATH"] = str(tree / "build" / "demo" / "python")
    for command in commands:
        if subprocess.run(command, cwd=tree, env=environment).returncode:
            sys.exit(f"not released: in the tree of the sdist, `{' '.join(command)}` failed")


if __name__ == "__main__":
    {"package": package, "release": release}[sys.argv[1]]()

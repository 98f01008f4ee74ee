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

sys.path.insert(0, "packaging")
import version as headers  # noqa: E402

RELEASE = Path("build", "release")
# What the sdist has that git does not have.
ADDED = {f"python/dlpack_py/{name}" for name in ("source.json", "include/dlpack/dlpack.h", "include/dlpack/LICENSE")}
ADDED.add("PKG-INFO")
# What the tree of the sdist is tested with, beside make demo: that it is complete.
TESTS = ["tests/build/test_package.py", "tests/build/test_projects.py", "tests/build/test_documents.py"]
TESTS += ["tests/examples/test_dlarray.py"]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def cmake_version():
    """The version that CMake reads."""
    with tempfile.TemporaryDirectory() as folder:
        output("cmake", "-S", ".", "-B", folder, "-G", "Ninja", "-DDLPACK_PY_TESTS=OFF", "-DDLPACK_PY_EXAMPLES=OFF")
        cache = Path(folder, "CMakeCache.txt").read_text("utf-8")
    return re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", cache, re.MULTILINE)[1]


def problems():
    """What stands against a release of this tree, a line each."""
    version, date, url = headers.read()
    if changed := output("git", "status", "--porcelain"):
        yield f"the tree is not clean: {len(changed.splitlines())} files, as {changed.split()[1]}"
    if date == headers.NOT_RELEASED:
        yield f"version {version} is not closed: `packaging/version.py {version} 2026-01-31` gives it a date"
    top = re.search(r"^## .*$", Path("CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    if top != headers.heading(version, date):
        yield f"CHANGELOG.md begins with `{top}`, and not with `{headers.heading(version, date)}`"
    try:
        headers.edited((version, date, url), (version, date, url))
    except SystemExit as error:
        yield str(error)
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
    version = headers.read()[0]
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
            names = {member.name.split("/", 1)[1] for member in tar if member.isfile()}
        if foreign := names - ADDED - set(output("git", "ls-files").splitlines()):
            sys.exit(f"not released: the sdist has files that git does not have, as {min(foreign)}")
        tree = Path(folder, sdist.name.removesuffix(".tar.gz"))
        same(wheel, build("wheel", tree, tree.parent))
        print("built again, and from the sdist: the same bytes", flush=True)
        test(tree)
    version, _, url = headers.read()
    if "example.org" in url:
        print(f"note: the URL is the placeholder {url}; packaging/version.py --url sets another")
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

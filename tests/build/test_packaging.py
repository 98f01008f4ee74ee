"""The recipes of packaging/ make packages of the sdist, as far as that works without a network.

`make test-packaging` installs conan and rattler-build: make test leaves their tests out.
"""

import json
import os
import re
import sys
from pathlib import Path

import machine
import pytest
from test_package import VERSION, sdist  # noqa: F401  a fixture
from test_projects import ENVIRONMENT, build_with_meson, check_module, project, run  # noqa: F401  a fixture

PACKAGING = machine.ROOT / "packaging"
TOOLS = os.environ.get("DLPACK_PY_PACKAGING")
needs_tools = pytest.mark.skipif(TOOLS is None, reason="conan and rattler-build: make test-packaging installs them")


@pytest.fixture(scope="module")
def recipes(sdist, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("recipes")
    run(sys.executable, PACKAGING / "fill.py", sdist, sdist.as_uri(), folder)
    return folder


def test_each_recipe_is_filled(recipes):
    texts = {path: path.read_text() for path in recipes.rglob("*") if path.is_file()}
    names = {str(path.relative_to(recipes)) for path in texts}
    committed = (machine.output("git", "-C", str(PACKAGING), "ls-files") or "").split()
    if committed:  # which they are not in the tree of an sdist
        assert names == {name for name in committed if "/" in name}
    assert not any(re.search(r"@[A-Z]\w*@", text) for text in texts.values())
    assert json.loads(texts[recipes / "vcpkg" / "dlpack-py" / "vcpkg.json"])["version"] == VERSION
    readme = (PACKAGING / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in ("conan", "conda", "meson", "vcpkg"))


@pytest.mark.parametrize("archive", ["right", "wrong"])
def test_a_project_of_meson_takes_the_archive_by_its_wrap(recipes, sdist, project, archive):  # noqa: F811
    source, build = project("meson_subproject")
    (source / "subprojects").mkdir()
    wrap = (recipes / "meson" / "dlpack_py.wrap").read_text()
    if archive == "wrong":
        wrap = re.sub("source_hash = .{8}", "source_hash = 00000000", wrap)
    (source / "subprojects" / "dlpack_py.wrap").write_text(wrap)
    if archive == "wrong":
        with pytest.raises(AssertionError, match="Incorrect hash"):
            build_with_meson(source, build)
        return
    build_with_meson(source, build)
    commands = (build / "compile_commands.json").read_text()
    assert f"subprojects/dlpack_py-{VERSION}" in commands and "tvm_ffi" not in commands


def test_the_portfile_of_vcpkg_installs_what_a_project_finds(recipes, sdist, project, tmp_path):  # noqa: F811
    prefix = tmp_path / "vcpkg" / "prefix"
    settings = {"PORT": recipes / "vcpkg" / "dlpack-py", "ARCHIVE": sdist, "PREFIX": prefix}
    script = machine.ROOT / "tests" / "build" / "vcpkg.cmake"
    run("cmake", *(f"-D{name}={value}" for name, value in settings.items()), "-P", script)
    assert {"LICENSE", "usage"} <= {path.name for path in (prefix / "share" / "dlpack-py").iterdir()}
    source, build = project("package")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    include = f"-DDLPACK_INCLUDE_DIR={list(machine.dlpack_headers().values())[-1]}"  # of the port dlpack
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", python, include, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    check_module(build)
    assert str(prefix) in (build / "CMakeCache.txt").read_text()


@needs_tools
def test_conan_creates_the_package_and_builds_its_test(recipes, tmp_path, monkeypatch):
    """With a package dlpack of the dlpack.h that is here; no remote is asked."""
    monkeypatch.setitem(ENVIRONMENT, "CONAN_HOME", str(tmp_path))
    monkeypatch.setitem(ENVIRONMENT, "DLPACK_INCLUDE_DIR", list(machine.dlpack_headers().values())[-1])
    conan = Path(TOOLS, "conan")
    run(conan, "profile", "detect")
    run(conan, "create", recipes / "conan" / "dlpack", "--no-remote")
    run(conan, "create", recipes / "conan", f"--version={VERSION}", "--no-remote")
    folder = run(conan, "cache", "path", f"dlpack_py/{VERSION}:{package_id(conan)}").strip()
    headers = {path.name for suffix in ("h", "hpp", "pxd") for path in machine.ROOT.glob(f"dlpack_*.{suffix}")}
    assert {path.name for path in Path(folder, "include").iterdir()} == headers
    assert (Path(folder) / "licenses" / "LICENSE").exists()
    run(conan, "remove", "dlpack/*", "--confirm")
    with pytest.raises(AssertionError, match=r"Package 'dlpack/\[>=1\.0 <2\]' not resolved"):
        run(conan, "create", recipes / "conan", f"--version={VERSION}", "--no-remote")


def package_id(conan):
    listed = json.loads(run(conan, "list", f"dlpack_py/{VERSION}:*", "--format=json"))["Local Cache"]
    (revision,) = listed[f"dlpack_py/{VERSION}"]["revisions"].values()
    (found,) = revision["packages"]
    return found


RENDER = """
import json, sys, rattler_build
recipe = rattler_build.Stage0Recipe.from_yaml(open(sys.argv[1]).read())
(variant,) = recipe.render(rattler_build.VariantConfig({"python_min": ["3.10"]}))
print(json.dumps(variant.recipe.to_dict()))
"""


@needs_tools
def test_rattler_build_reads_the_recipe_of_conda(recipes):
    recipe = json.loads(run(Path(TOOLS, "python"), "-c", RENDER, recipes / "conda" / "recipe.yaml"))
    assert recipe["package"] == {"name": "dlpack-py", "version": VERSION} and recipe["build"]["noarch"] == "python"
    assert recipe["requirements"]["run"] == ["python >=3.10"]
    for name in recipe["about"]["license_file"]:
        assert name == "LICENSE" or name.startswith("python/dlpack_py/include/dlpack/")

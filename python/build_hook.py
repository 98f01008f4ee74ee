"""What hatchling puts into the wheel and the sdist beside the files of the tree.

The wheel gets the headers, dlpack.h, the .pxd files, the files of CMake and pkg-config, and source.json, which says of
which version and commit they are. The sdist gets dlpack.h and source.json: a build from it needs no other package.

dlpack.h comes from the package that requirements/dlpack.txt names. It has wheels for some platforms only: elsewhere,
download one of another platform, and name it: DLPACK_PY_DLPACK_WHEEL=apache_tvm_ffi-….whl
"""

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DLPACK_H = "tvm_ffi/include/dlpack/dlpack.h"
DLPACK_LICENCE = "apache_tvm_ffi-*.dist-info/licenses/LICENSE"
SHA256 = {  # Whatever the way on which they came, they are these files.
    "dlpack.h": "62052bef24bd69bb7b52e95428f9e99bd7951783850c36c5f2a41e71fd63c2fc",
    "LICENSE": "b40930bbcf80744c86c46a12bc9da056641d722716c378f5659b9e555ef833e1",
}


class BuildHook(BuildHookInterface):
    def dependencies(self):
        if self.dlpack_of_the_sdist().exists() or "DLPACK_PY_DLPACK_WHEEL" in os.environ:
            return []
        lines = (Path(self.root) / "requirements" / "dlpack.txt").read_text("utf-8").splitlines()
        return [line.split("#")[0].strip() for line in lines]

    def initialize(self, version, build_data):
        if version == "editable":
            raise SystemExit("dlpack-py has no editable form, as headers are copied: pip install .")
        root = Path(self.root)
        self.temporary = Path(tempfile.mkdtemp())
        files = self.dlpack_files() | {"source.json": self.source()}
        if self.target_name == "sdist":
            self.add(build_data, {f"python/dlpack_py/{name}": content for name, content in files.items()})
            return
        for pattern in "*.h", "*.hpp", "*.pxd":
            files.update((f"include/{path.name}", path.read_bytes()) for path in root.glob(f"dlpack_{pattern}"))
        for path in root.glob("dlpack_*.pxd"):
            # cimport dlpack_py finds __init__.pxd, and dlpack_py.dlpack_buffer the file of that name.
            name = "__init__.pxd" if path.stem == "dlpack_py" else path.name
            files[name] = f'include "include/{path.name}"\n'.encode()
        for name in "dlpack_py-config.cmake", "find-dlpack.cmake":
            files[f"share/cmake/dlpack_py/{name}"] = (root / "cmake" / name).read_bytes()
        for name in "dlpack_py-targets.cmake", "dlpack_py-config-version.cmake":
            files[f"share/cmake/dlpack_py/{name}"] = self.filled(f"python/cmake/{name}.in")
        files["LICENSE"] = (root / "LICENSE").read_bytes()
        files["share/pkgconfig/dlpack_py.pc"] = self.filled("cmake/dlpack_py.pc.in")
        self.add(build_data, {f"dlpack_py/{name}": content for name, content in files.items()})

    def finalize(self, version, build_data, artifact_path):
        shutil.rmtree(self.temporary)

    def add(self, build_data, files):
        """Adds files, {path in the archive: bytes}."""
        for i, (name, content) in enumerate(sorted(files.items())):
            path = self.temporary / str(i)
            path.write_bytes(content)
            build_data["force_include"][str(path)] = name

    def filled(self, template):
        values = {"include": "../../include", "PROJECT_VERSION": self.metadata.version}
        values["PROJECT_DESCRIPTION"] = self.metadata.core.description
        text = (Path(self.root) / template).read_text("utf-8")
        return re.sub(r"@(\w+)@", lambda match: values[match[1]], text).encode()

    def dlpack_of_the_sdist(self):
        return Path(self.root) / "python" / "dlpack_py" / "include" / "dlpack" / "dlpack.h"

    def dlpack_files(self):
        """dlpack.h and its licence, which an sdist has in its tree."""
        if self.dlpack_of_the_sdist().exists():
            folder = self.dlpack_of_the_sdist().parent
            return {f"include/dlpack/{name}": (folder / name).read_bytes() for name in SHA256}
        if wheel := os.environ.get("DLPACK_PY_DLPACK_WHEEL"):
            site = zipfile.Path(wheel)
            licences = [path / "licenses" / "LICENSE" for path in site.iterdir() if path.name.endswith(".dist-info")]
        else:
            package = importlib.util.find_spec("tvm_ffi")  # found, not imported: its compiled part need not load
            if package is None:
                raise SystemExit("dlpack-py: no dlpack.h: pip install -r requirements/dlpack.txt")
            site = Path(package.submodule_search_locations[0]).parent
            licences = [*site.glob(DLPACK_LICENCE), *site.glob("tvm_ffi/licenses/LICENSE")]  # the last by the Makefile
        if len(licences) != 1:
            raise SystemExit(f"dlpack-py: {len(licences)} licences of dlpack.h in {site}, and not one")
        # The parts after the licence itself are of the package that dlpack.h is in.
        licence = re.split(rb"\n-{20,}\n", licences[0].read_bytes())[0].rstrip() + b"\n"
        files = {"dlpack.h": (site / DLPACK_H).read_bytes(), "LICENSE": licence}
        for name, content in files.items():
            if hashlib.sha256(content).hexdigest() != SHA256[name]:
                raise SystemExit(f"dlpack-py: the {name} in {site} is not the one that python/build_hook.py names")
        return {f"include/dlpack/{name}": content for name, content in files.items()}

    def source(self):
        """The version, the commit and the address, for python -m dlpack_py vendor."""
        of_the_sdist = Path(self.root) / "python" / "dlpack_py" / "source.json"
        commit = json.loads(of_the_sdist.read_text("utf-8"))["commit"] if of_the_sdist.exists() else self.commit()
        source = {"version": self.metadata.version, "commit": commit, "url": self.metadata.core.urls["Source"]}
        return (json.dumps(source, indent=2) + "\n").encode()

    def commit(self):
        """The commit of the tree, with "-dirty" if files were changed since; None in a tree that is no clone."""
        if not (Path(self.root) / ".git").exists():
            return None
        git = ["git", "-C", self.root, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        try:
            return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

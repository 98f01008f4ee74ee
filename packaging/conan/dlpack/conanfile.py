"""The package dlpack 1.x that dlpack_py needs, while the index has older ones only. DLPACK_INCLUDE_DIR names the folder
with dlpack/dlpack.h, and its version is read from there:

    DLPACK_INCLUDE_DIR=$(tvm-ffi-config --dlpack-includedir) conan create packaging/conan/dlpack
"""

import os
import re

from conan import ConanFile
from conan.tools.files import copy, load


class DlpackConan(ConanFile):
    name = "dlpack"
    license = "Apache-2.0"
    package_type = "header-library"

    def set_version(self):
        text = load(self, os.path.join(os.environ["DLPACK_INCLUDE_DIR"], "dlpack", "dlpack.h"))
        numbers = [re.search(rf"define DLPACK_{part}_VERSION (\d+)", text)[1] for part in ("MAJOR", "MINOR")]
        self.version = ".".join(numbers)

    def export_sources(self):
        copy(self, "dlpack/dlpack.h", os.environ["DLPACK_INCLUDE_DIR"], self.export_sources_folder)

    def package(self):
        copy(self, "dlpack/dlpack.h", self.source_folder, os.path.join(self.package_folder, "include"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []

import os

from conan import ConanFile
from conan.tools.files import copy, get

required_conan_version = ">=2.0"


class DlpackPyConan(ConanFile):
    name = "dlpack_py"
    description = "C headers that give an extension type the DLPack Python protocol, both ways"
    license = "MIT"
    homepage = "@HOME@"
    topics = ("dlpack", "python", "tensor", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def requirements(self):
        self.requires("dlpack/[>=1.0 <2]", transitive_headers=True)

    def package_id(self):
        self.info.clear()

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        for pattern in "dlpack_*.h", "dlpack_*.hpp", "dlpack_*.pxd":
            copy(self, pattern, self.source_folder, os.path.join(self.package_folder, "include"), keep_path=False)

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.set_property("cmake_file_name", "dlpack_py")
        self.cpp_info.set_property("cmake_target_name", "dlpack_py::dlpack_py")
        self.cpp_info.set_property("pkg_config_name", "dlpack_py")

set(VCPKG_BUILD_TYPE release) # headers only

vcpkg_download_distfile(archive
  URLS "@URL@"
  FILENAME "@FILE@"
  SHA512 @SHA512@
)
vcpkg_extract_source_archive(source ARCHIVE "${archive}")

vcpkg_cmake_configure(SOURCE_PATH "${source}" OPTIONS -DDLPACK_PY_EXAMPLES=OFF -DDLPACK_PY_TESTS=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/dlpack_py PACKAGE_NAME dlpack_py)
vcpkg_fixup_pkgconfig()

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${source}/LICENSE")

# Runs a portfile of vcpkg without vcpkg: cmake -DPORT=… -DARCHIVE=… -DPREFIX=… -P vcpkg.cmake. The functions of vcpkg do what
# its documentation says of them, as far as the portfile of this project needs it.
cmake_minimum_required(VERSION 3.18...4.0)
set(CURRENT_PACKAGES_DIR ${PREFIX})
get_filename_component(PORTS ${PORT} DIRECTORY)
get_filename_component(PORT ${PORT} NAME)

function(vcpkg_download_distfile result)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FILENAME;SHA512" "URLS")
  file(SHA512 ${ARCHIVE} found)
  if(NOT found STREQUAL arg_SHA512 OR NOT arg_URLS OR NOT arg_FILENAME)
    message(FATAL_ERROR "vcpkg_download_distfile: ${arg_URLS} has SHA512 ${found}, and not ${arg_SHA512}")
  endif()
  set(${result} ${ARCHIVE} PARENT_SCOPE)
endfunction()

function(vcpkg_extract_source_archive result)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "ARCHIVE" "")
  file(ARCHIVE_EXTRACT INPUT ${arg_ARCHIVE} DESTINATION ${PREFIX}/../source)
  file(GLOB folder ${PREFIX}/../source/*)
  set(${result} ${folder} PARENT_SCOPE)
endfunction()

function(call)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGN}")
  endif()
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  call(${CMAKE_COMMAND} -S ${arg_SOURCE_PATH} -B ${PREFIX}/../build -G Ninja -DCMAKE_INSTALL_PREFIX=${PREFIX} ${arg_OPTIONS})
endfunction()

function(vcpkg_cmake_install)
  call(${CMAKE_COMMAND} --install ${PREFIX}/../build)
endfunction()

# vcpkg finds a package in share/NAME.
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH;PACKAGE_NAME" "")
  file(RENAME ${PREFIX}/${arg_CONFIG_PATH} ${PREFIX}/share/${arg_PACKAGE_NAME})
  file(REMOVE ${PREFIX}/share/cmake)
  # vcpkg corrects the number of folders up to the prefix.
  file(READ ${PREFIX}/share/${arg_PACKAGE_NAME}/dlpack_py-targets.cmake text)
  string(REPLACE "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\nget_filename_component(_IMPORT_PREFIX \"\${_IMPORT_PREFIX}\" PATH)\n"
                 "get_filename_component(_IMPORT_PREFIX \"\${CMAKE_CURRENT_LIST_FILE}\" PATH)\n" text "${text}")
  file(WRITE ${PREFIX}/share/${arg_PACKAGE_NAME}/dlpack_py-targets.cmake "${text}")
endfunction()

function(vcpkg_fixup_pkgconfig)
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION ${PREFIX}/share/${PORT})
endfunction()

include(${PORTS}/${PORT}/portfile.cmake)

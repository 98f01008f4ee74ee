include(${CMAKE_CURRENT_LIST_DIR}/dlpack_py-targets.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/find-dlpack.cmake)
dlpack_py_find_dlpack(_dlpack_py_dlpack_dir)
target_include_directories(dlpack_py::dlpack_py SYSTEM INTERFACE ${_dlpack_py_dlpack_dir})

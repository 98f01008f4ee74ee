# The folder of dlpack.h 1.0 or newer: DLPACK_INCLUDE_DIR where somebody set it, else that of the CMake package dlpack,
# else that of the Python package apache-tvm-ffi. Empty where there is none: then it has to be on the include path.
function(dlpack_py_find_dlpack result)
  set(dir "${DLPACK_INCLUDE_DIR}")
  if(NOT dir)
    find_package(dlpack CONFIG QUIET)
    if(TARGET dlpack::dlpack)
      get_target_property(dir dlpack::dlpack INTERFACE_INCLUDE_DIRECTORIES)
      # The package's own version says nothing: it is 0.1.0 with any header.
      set(version)
      if(EXISTS "${dir}/dlpack/dlpack.h")
        file(STRINGS "${dir}/dlpack/dlpack.h" version REGEX "define DLPACK_MAJOR_VERSION")
      endif()
      if(NOT version)
        set(dir)
      endif()
    endif()
  endif()
  set(python ${Python_EXECUTABLE} ${Python3_EXECUTABLE})
  if(NOT dir AND python)
    # Found, not imported: its compiled part need not load.
    list(GET python 0 python)
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0])"
      OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(package)
      set(dir "${package}/include")
    endif()
  endif()
  if(NOT dir)
    message(NOTICE "dlpack_py: found no dlpack.h, which then has to be on the include path. Set DLPACK_INCLUDE_DIR, or "
            "install the Python package apache-tvm-ffi and call find_package(Python) before.")
  endif()
  set(${result} "${dir}" PARENT_SCOPE)
endfunction()

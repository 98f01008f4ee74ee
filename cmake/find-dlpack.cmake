# The folder of dlpack.h 1.0 or newer: DLPACK_INCLUDE_DIR where somebody set it, else that of the CMake package dlpack,
# else that of the Python package apache-tvm-ffi, in the Python that find_package(Python) has found or in the first one
# on the path, else where CMake finds headers. Empty where there is none, and where dlpack.h lies in the folder `headers`,
# as in the package of pip: the headers find that one first.
function(dlpack_py_find_dlpack result headers)
  set(${result} "" PARENT_SCOPE)
  if(EXISTS "${headers}/dlpack.h" OR EXISTS "${headers}/dlpack/dlpack.h")
    if(DLPACK_INCLUDE_DIR)
      message(NOTICE "dlpack_py: DLPACK_INCLUDE_DIR is not used, as a dlpack.h lies beside the headers, which find that one "
              "first. Source files that need another one include it before dlpack_py.h.")
    endif()
    return()
  endif()
  set(dir "${DLPACK_INCLUDE_DIR}")
  if(NOT dir)
    find_package(dlpack CONFIG QUIET)
    if(TARGET dlpack::dlpack)
      get_target_property(dir dlpack::dlpack INTERFACE_INCLUDE_DIRECTORIES)
      dlpack_py_if_new_enough(dir)
    endif()
  endif()
  if(NOT dir)
    # find_package(Python) here would decide which Python a later find_package(Python) of the project finds.
    find_program(DLPACK_PY_PYTHON NAMES python3 python NAMES_PER_DIR HINTS ENV VIRTUAL_ENV PATH_SUFFIXES bin Scripts)
    foreach(python IN LISTS Python_EXECUTABLE Python3_EXECUTABLE DLPACK_PY_PYTHON)
      # Found, not imported: its compiled part need not load.
      execute_process(
        COMMAND ${python} -c "import importlib.util as u; print(u.find_spec('tvm_ffi').submodule_search_locations[0])"
        OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(package)
        file(TO_CMAKE_PATH "${package}/include" dir)
        break()
      endif()
    endforeach()
    unset(DLPACK_PY_PYTHON CACHE)
  endif()
  if(NOT dir)
    find_path(DLPACK_PY_FOUND dlpack/dlpack.h)
    set(dir "${DLPACK_PY_FOUND}")
    dlpack_py_if_new_enough(dir)
    unset(DLPACK_PY_FOUND CACHE)
  endif()
  if(NOT dir)
    message(NOTICE "dlpack_py: found no dlpack.h 1.0 or newer, which then has to be on the include path. Set "
            "DLPACK_INCLUDE_DIR, or install the Python package apache-tvm-ffi.")
  endif()
  set(${result} "${dir}" PARENT_SCOPE)
endfunction()

# Empties a variable if the dlpack.h in the folder that it names is older than 1.0. The version of the CMake package
# dlpack says nothing: it is 0.1.0 with any header.
function(dlpack_py_if_new_enough variable)
  set(version)
  if(EXISTS "${${variable}}/dlpack/dlpack.h")
    file(STRINGS "${${variable}}/dlpack/dlpack.h" version REGEX "define DLPACK_MAJOR_VERSION")
  endif()
  if(NOT version)
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()

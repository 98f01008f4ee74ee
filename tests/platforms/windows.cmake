# For CMake: builds for 64-bit Windows with mingw-w64, and runs what it has built under wine. make test-windows uses it.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
find_program(DLPACK_PY_MINGW_C x86_64-w64-mingw32-gcc-posix)
set(CMAKE_C_COMPILER ${DLPACK_PY_MINGW_C})
find_program(CMAKE_CROSSCOMPILING_EMULATOR wine)

# Finds no library and no program of this machine: its python-config names libraries that Windows lacks.
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)

# With the threads and the other libraries of the compiler inside: Windows has none of them.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -static)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -static)

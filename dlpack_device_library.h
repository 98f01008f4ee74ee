/* dlpack_device_library.h - finds the runtime of a device at run time, for dlpack_device.h
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * dlpack_device.h includes this file where DLPACK_CUDA_AT_RUN_TIME or DLPACK_ROCM_AT_RUN_TIME is defined. Needs gcc or
 * clang.
 */

#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_device_library.h and dlpack_py.h are of different versions: put one first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif

/* DLP_DEVICE_OPEN: opens a library. DLP_DEVICE_OPEN_LOADED: only one that the process has loaded. */
#ifdef _WIN32 /* as in windows.h, which defines many macros */
struct HINSTANCE__;
#  ifdef __cplusplus
extern "C" {
#  endif
__declspec(dllimport) struct HINSTANCE__ *__stdcall
GetModuleHandleA(const char *name);
__declspec(dllimport) struct HINSTANCE__ *__stdcall
LoadLibraryExA(const char *name, void *file, unsigned long flags);
__declspec(dllimport)
intptr_t(__stdcall *__stdcall
         GetProcAddress(struct HINSTANCE__ *library, const char *name))(void);
#  ifdef __cplusplus
}
#  endif
#  define DLP_DEVICE_OPEN(name) ((void *)LoadLibraryExA(name, NULL, 0x1000)) /* not from the current folder */
#  define DLP_DEVICE_OPEN_LOADED(name) ((void *)GetModuleHandleA(name))
#  define DLP_DEVICE_SYMBOL(library, name) GetProcAddress((struct HINSTANCE__ *)(library), name)
#else
#  include <dlfcn.h>
#  define DLP_DEVICE_OPEN(name) dlopen(name, RTLD_NOW)
#  define DLP_DEVICE_OPEN_LOADED(name) dlopen(name, RTLD_NOW | RTLD_NOLOAD)
#  define DLP_DEVICE_SYMBOL(library, name) dlsym(library, name)
#endif

#define DLP_DEVICE_TEXT(name) #name
#define DLP_DEVICE_TEXT_OF(name) DLP_DEVICE_TEXT(name)

/* Opens the library that the process has loaded, for example with PyTorch's wheel, or else the library of the system.
 * NULL where there is none; then a later call tries again, because a later import may load the library. */
static inline void *
dlp_device_library(void)
{
    static intptr_t kept; /* one library for all functions; never closed */
    void *library = (void *)__atomic_load_n(&kept, __ATOMIC_SEQ_CST), *first;

    if (library != NULL)
        return library;
    library = DLP_DEVICE_OPEN_LOADED(DLPACK_DEVICE_API_LIBRARY);
#ifdef DLPACK_DEVICE_API_LOADED_LIBRARY
    if (library == NULL && (library = DLP_DEVICE_OPEN_LOADED(DLPACK_DEVICE_API_LOADED_LIBRARY)) != NULL) {
        const char *const name = DLP_DEVICE_TEXT_OF(DLPACK_DEVICE_API(RuntimeGetVersion));
        const uintptr_t address = (uintptr_t)DLP_DEVICE_SYMBOL(library, name);
        __typeof__(&DLPACK_DEVICE_API(RuntimeGetVersion)) get_version;
        int version = 0;

        memcpy(&get_version, &address, sizeof(address));
        if (address == 0 || get_version(&version) != DLPACK_DEVICE_API(Success) ||
            version / 10000000 != HIP_VERSION_MAJOR) /* another major version has other structs */
            library = NULL;
    }
#endif
    if (library == NULL)
        library = DLP_DEVICE_OPEN(DLPACK_DEVICE_API_LIBRARY);
    first = (void *)__sync_val_compare_and_swap(&kept, 0, (intptr_t)library); /* not NULL: another thread was first */
    return first != NULL ? first : library;
}

/* The address of a function, which *found keeps; 0 where there is none. */
static inline uintptr_t
dlp_device_find(intptr_t *found, const char *function)
{
    intptr_t address = __atomic_load_n(found, __ATOMIC_SEQ_CST);
    void *library;

    if (address == 0 && (library = dlp_device_library()) != NULL) {
        address = (intptr_t)DLP_DEVICE_SYMBOL(library, function);
        __atomic_store_n(found, address, __ATOMIC_SEQ_CST);
    }
    return (uintptr_t)address;
}

/* clang-format off */
#define DLP_DEVICE_FUNCTION(function) \
      __extension__({ \
          static intptr_t dlpack_device_found; \
          const uintptr_t dlpack_device_address = dlp_device_find( \
              &dlpack_device_found, DLP_DEVICE_TEXT_OF(DLPACK_DEVICE_API(function))); \
          __typeof__(&DLPACK_DEVICE_API(function)) dlpack_device_pointer; \
          memcpy(&dlpack_device_pointer, &dlpack_device_address, sizeof(dlpack_device_pointer)); \
          dlpack_device_pointer; \
      })
#define DLP_DEVICE_STATUS(function, arguments) \
      __extension__({ \
          const __typeof__(&DLPACK_DEVICE_API(function)) dlpack_device_f = DLP_DEVICE_FUNCTION(function); \
          dlpack_device_f != NULL ? dlpack_device_f arguments : DLPACK_DEVICE_API(ErrorSharedObjectSymbolNotFound); \
      })
/* clang-format on */

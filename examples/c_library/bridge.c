/* bridge - object_of(pointer), for ctypes: an object with __dlpack__ of the DLManagedTensor * of any C library
 * SPDX-License-Identifier: MIT
 *
 * Compiled as a shared library, and called by ctypes.PyDLL, which holds the GIL and raises exceptions:
 *   object_of = ctypes.PyDLL("./bridge.so").object_of
 *   object_of.argtypes, object_of.restype = [ctypes.c_void_p], ctypes.py_object
 */
#include "dlpack_py.h"

static void
free_legacy(void *context)
{
    DLManagedTensor *managed = (DLManagedTensor *)context;
    if (managed->deleter != NULL)
        managed->deleter(managed);
}

PyObject *
object_of(DLManagedTensor *managed);

/* Steals a writable tensor whose data is ready. */
PyObject *
object_of(DLManagedTensor *managed)
{
    struct DLManagedTensorVersioned *versioned = dlpack_py_wrap(&managed->dl_tensor, 0, managed, free_legacy);
    if (versioned == NULL)
        free_legacy(managed); /* it was not taken; the next call raises BufferError */
    return dlpack_py_object_steal(versioned, DLPACK_PY_VERSIONED);
}

/* The modules of this folder pass a managed tensor as an integer: the address of a versioned tensor, or the address of
 * a legacy tensor plus 1. */
#ifndef DROP_H
#define DROP_H

#include "dlpack_py.h"

static inline uintptr_t
tensor_take(PyObject *capsule)
{
    const int legacy = PyCapsule_IsValid(capsule, "dltensor");
    void *managed = PyCapsule_GetPointer(capsule, legacy ? "dltensor" : "dltensor_versioned");
    if (managed == NULL || PyCapsule_SetName(capsule, legacy ? "used_dltensor" : "used_dltensor_versioned") < 0)
        return 0;
    return (uintptr_t)managed + (uintptr_t)legacy;
}

static inline void
tensor_drop(uintptr_t tensor)
{
    if ((tensor & 1) != 0) {
        DLManagedTensor *managed = (DLManagedTensor *)(tensor - 1);
        managed->deleter(managed);
    }
    else {
        DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)tensor;
        managed->deleter(managed);
    }
}

#endif

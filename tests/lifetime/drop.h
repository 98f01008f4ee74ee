/* How the modules of this folder hand managed tensors around: as an integer, which is the address, and one more where
 * the tensor is of the legacy form. */
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

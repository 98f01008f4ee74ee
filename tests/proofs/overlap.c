/* Proof about dlpack_py_may_overlap: 0 only where no byte is in both tensors. The ranks, the extents and the strides are
 * constants: all combinations of EXTENTS and STRIDES, for a of rank 0 to RANK and for b of rank 0 to 1. Both addresses,
 * the flags, the indices of an element of each and the bytes in the two elements are unknown. */
#include "any.h"

#ifndef STRIDES
#  define STRIDES -2, 1, 2, 3
#endif

/* The tensor of this number: of EXTENTS and STRIDES, one after the other. */
static DLTensor
numbered_tensor(int32_t ndim, int number, dimensions *d)
{
    static const int64_t extents[] = {EXTENTS}, strides[] = {STRIDES};
    const int n_extents = sizeof(extents) / sizeof(extents[0]), n_strides = sizeof(strides) / sizeof(strides[0]);
    int64_t shape[RANK + 1];
    DLTensor t;
    int32_t i;
    for (i = 0; i < ndim; i++, number /= n_extents)
        shape[i] = extents[number % n_extents];
    t = any_tensor(ndim, shape, d, 1);
    for (i = 0; i < ndim; i++, number /= n_strides)
        d->strides[i] = strides[number % n_strides];
    return t;
}

static int
count_tensors(int32_t ndim)
{
    static const int64_t extents[] = {EXTENTS}, strides[] = {STRIDES};
    int count = 1;
    for (; ndim > 0; ndim--)
        count *= (int)(sizeof(extents) / sizeof(extents[0]) * (sizeof(strides) / sizeof(strides[0])));
    return count;
}

/* The address of the first byte of any element. */
static int64_t
any_element(const DLTensor *t)
{
    int64_t at = 0;
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        const uint8_t index = nondet_uint8();
        int64_t k;
        assume(index < t->shape[i]);
        for (k = 1; k < t->shape[i]; k++)
            at += k <= index ? t->strides[i] * (BITS / 8 * LANES) : 0;
    }
    return at;
}

static void
check_overlap(int32_t ndim_a, int a_number, int32_t ndim_b, int b_number)
{
    dimensions da, db;
    DLTensor a = numbered_tensor(ndim_a, a_number, &da), b = numbered_tensor(ndim_b, b_number, &db);
    wide distance;

    /* Two valid tensors of the CPU: below and above them 4,096 bytes are left. */
    a.device.device_type = b.device.device_type = kDLCPU;
    a.byte_offset = b.byte_offset = 0;
    assume((uintptr_t)a.data > 4096 && (uintptr_t)a.data < UINTPTR_MAX - 4096);
    assume((uintptr_t)b.data > 4096 && (uintptr_t)b.data < UINTPTR_MAX - 4096);
    if (dlpack_py_may_overlap(&a, 0, &b, 0))
        return;
    distance = (wide)(uintptr_t)a.data - (wide)(uintptr_t)b.data + any_element(&a) - any_element(&b);
    prove(distance >= BITS / 8 * LANES || distance <= -(BITS / 8 * LANES), "no byte is in an element of each");
}

void
overlap(void)
{
    int32_t ndim_a, ndim_b;
    int a, b;
    for (ndim_a = 0; ndim_a <= RANK; ndim_a++)
        for (ndim_b = 0; ndim_b <= 1; ndim_b++)
            for (a = 0; a < count_tensors(ndim_a); a++)
                for (b = 0; b < count_tensors(ndim_b); b++)
                    check_overlap(ndim_a, a, ndim_b, b);
}

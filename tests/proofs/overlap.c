/* Proof about dlpack_py_may_overlap: 0 only where no byte is in both tensors. Ranks, extents and strides are constants:
 * all combinations of EXTENTS and STRIDES, for a of rank 0 to RANK and for b of rank 0 to 1. Items of a have BITS bits,
 * those of b BITS_B. Both addresses, flags and byte offsets, and the indices of an element of each are unknown;
 * BYTE_OFFSET, if it is defined, is both byte offsets. Left out: strides that are NULL, packed items. */
#include "any.h"

#ifndef BITS_B
#  define BITS_B BITS
#endif

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

/* The first byte of any element, counted from the first element. size: bytes of an item. */
static int64_t
any_element(const DLTensor *t, int64_t size)
{
    int64_t at = 0;
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        const uint8_t index = nondet_uint8();
        int64_t k;
        assume(index < t->shape[i]);
        for (k = 1; k < t->shape[i]; k++)
            at += k <= index ? t->strides[i] * size : 0;
    }
    return at;
}

/* The address of the first element of a valid tensor of the CPU: below and above it 4,096 bytes are left. */
static wide
first_element(DLTensor *t)
{
    wide at;
#ifdef BYTE_OFFSET
    t->byte_offset = BYTE_OFFSET;
#endif
    at = (wide)(uintptr_t)t->data + (wide)t->byte_offset;
    t->device.device_type = kDLCPU;
    assume(t->data != NULL && at > 4096 && at < UINTPTR_MAX - 4096);
    return at;
}

static void
check_overlap(int32_t ndim_a, int a_number, int32_t ndim_b, int b_number)
{
    const int64_t size_a = BITS / 8 * LANES, size_b = BITS_B / 8 * LANES;
    dimensions da, db;
    DLTensor a = numbered_tensor(ndim_a, a_number, &da), b = numbered_tensor(ndim_b, b_number, &db);
    const wide at_a = first_element(&a), at_b = first_element(&b);
    wide distance;

    b.dtype.bits = BITS_B;
    if (dlpack_py_may_overlap(&a, nondet_uint64(), &b, nondet_uint64()))
        return;
    distance = at_a + any_element(&a, size_a) - at_b - any_element(&b, size_b);
    prove(distance >= size_b || distance <= -size_a, "no byte is in an element of each");
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

/* What the proofs of this folder share: tensors of any strides, addresses and flags, and a definition in wide
 * arithmetic of where an element lies.
 *
 * CBMC gives a function without a body any result: nondet_int64() is every number at once. SAT solvers cannot multiply
 * two unknown 64-bit numbers. The rank and the extents are therefore constants, and each proof calls its check once for
 * each combination of EXTENTS (RANK dimensions). The item size, BITS and LANES, is a constant of the run too. All other
 * fields are unknown. */
#include <stdint.h>
#ifdef WITH_COPY_H
#  define DLPACK_COPY_PORTABLE
#  include "dlpack_copy.h"
#endif
#include "dlpack_tensor.h"

#ifndef RANK
#  define RANK 2
#endif
#ifndef EXTENTS
#  define EXTENTS 0, 1, 2, 3
#endif
#ifndef BITS
#  define BITS 32
#endif
#ifndef LANES
#  define LANES 1
#endif

__extension__ typedef __int128 wide;
typedef struct dimensions {
    int64_t shape[RANK + 1], strides[RANK + 1];
} dimensions;

int64_t
nondet_int64(void);
uint64_t
nondet_uint64(void);
int32_t
nondet_int32(void);
uint16_t
nondet_uint16(void);
uint8_t
nondet_uint8(void);
int
nondet_choice(void);

#define assume(condition) __CPROVER_assume(condition)
#define prove(condition, text) __CPROVER_assert(condition, text)

/* Calls check(ndim, shape) for each combination of EXTENTS, of rank 0 to RANK; or for SHAPE alone, of rank RANK. */
static void
for_all_shapes(void (*check)(int32_t ndim, const int64_t *shape))
{
#ifdef SHAPE
    const int64_t shape[RANK + 1] = {SHAPE};
    check(RANK, shape);
#else
    static const int64_t extents[] = {EXTENTS};
    const int count = sizeof(extents) / sizeof(extents[0]);
    int32_t ndim, i;
    for (ndim = 0; ndim <= RANK; ndim++) {
        int combinations = 1, which;
        for (i = 0; i < ndim; i++)
            combinations *= count;
        for (which = 0; which < combinations; which++) {
            int64_t shape[RANK + 1];
            int rest = which;
            for (i = 0; i < ndim; i++, rest /= count)
                shape[i] = extents[rest % count];
            check(ndim, shape);
        }
    }
#endif
}

/* A tensor of this shape; all else is unknown. with_strides 0: strides are NULL. */
static DLTensor
any_tensor(int32_t ndim, const int64_t *shape, dimensions *d, int with_strides)
{
    DLTensor t;
    int32_t i;
    for (i = 0; i < ndim; i++) {
        d->shape[i] = shape[i];
        d->strides[i] = nondet_int64();
    }
    t.data = (void *)(uintptr_t)nondet_uint64();
    t.device.device_type = (DLDeviceType)nondet_int32();
    t.device.device_id = nondet_int32();
    t.ndim = ndim;
    t.dtype.code = nondet_uint8();
    t.dtype.bits = BITS;
    t.dtype.lanes = LANES;
    t.shape = ndim > 0 ? d->shape : NULL;
    t.strides = with_strides ? d->strides : NULL;
    t.byte_offset = nondet_uint64();
    return t;
}

/* By definition: the bits of an item. */
static wide
item_bits(uint64_t flags)
{
    return (BITS < 8 && (flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? 8 : BITS) * LANES;
}

/* By definition: the stride of a dimension, in elements. */
static wide
stride_of(const DLTensor *t, int32_t i)
{
    wide stride = 1;
    int32_t k;
    if (t->strides != NULL)
        return t->strides[i];
    for (k = i + 1; k < t->ndim; k++)
        stride *= t->shape[k];
    return stride;
}

/* By definition: how far, in elements, one of the corners of the tensor lies from the first element. An index is a
 * linear function of its parts: all elements lie between two corners. */
static wide
any_corner(const DLTensor *t)
{
    wide at = 0;
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        if (nondet_choice())
            at += stride_of(t, i) * (wide)(t->shape[i] - 1);
    }
    return at;
}

static int
has_elements(const DLTensor *t)
{
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
    }
    return 1;
}

static wide
size_of(const DLTensor *t)
{
    wide size = 1;
    int32_t i;
    for (i = 0; i < t->ndim; i++)
        size *= t->shape[i];
    return size;
}

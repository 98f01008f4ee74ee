/* Proofs about the layout and the validation of dlpack_tensor.h. any.h says what is unknown, prove.py the bounds. */
#include "any.h"

/* An accepted tensor: every element lies in the address range, its bytes fit int64_t, size and nbytes are exact. */
static void
check_validate(int32_t ndim, const int64_t *shape)
{
    dimensions d;
    const uint64_t flags = nondet_uint64();
    const DLTensor t = any_tensor(ndim, shape, &d, nondet_choice());
    const wide bits = item_bits(flags), size = size_of(&t);
    wide corner, first, last, base = (wide)(uintptr_t)t.data + (wide)t.byte_offset;

    if (dlpack_py_validate(&t, flags, NULL) != 0)
        return;
    prove(dlpack_py_size(&t) == size, "size");
    prove(dlpack_py_nbytes(&t, flags) == (size * bits + 7) / 8, "nbytes");
    if (!has_elements(&t))
        return;
    prove(t.data != NULL, "data is not NULL");
    corner = any_corner(&t) * bits;
    first = corner >> 3;
    last = (corner + bits - 1) >> 3;
    prove(first > INT64_MIN && last < INT64_MAX, "the bytes of each element fit into int64_t");
    if (dlp_has_address(t.device))
        prove(base + first >= 0 && base + last < UINTPTR_MAX, "each element lies in the address range");
}

void
validate(void)
{
    for_all_shapes(check_validate);
}

/* Any content of the struct, extents included: no access out of bounds, no overflow; what is accepted is well formed.
 * A rank above RANK is unknown only from DLPACK_PY_MAX_NDIM + 1 on. */
void
malformed(void)
{
    dimensions d;
    int64_t shape[RANK];
    const uint64_t flags = nondet_uint64();
    DLTensor t;
    int32_t i;

    for (i = 0; i < RANK; i++)
        shape[i] = nondet_int64();
    t = any_tensor(RANK, shape, &d, nondet_choice());
    t.ndim = nondet_int32();
    t.shape = nondet_choice() ? d.shape : NULL;
    t.dtype.bits = nondet_uint8();
    t.dtype.lanes = nondet_uint16();
    assume(t.ndim <= RANK || t.ndim > DLPACK_PY_MAX_NDIM);
    if (dlpack_py_validate(&t, flags, NULL) != 0)
        return;
    prove(t.ndim >= 0 && t.ndim <= DLPACK_PY_MAX_NDIM, "the rank is from 0 to 64");
    prove(t.ndim == 0 || t.shape != NULL, "shape is not NULL");
    prove(t.dtype.bits > 0 && t.dtype.lanes > 0, "items have bits and lanes");
    for (i = 0; i < t.ndim; i++)
        prove(t.shape[i] >= 0, "no extent is negative");
}

/* The fast path accepts nothing that the general check refuses; its letter is that of the general checks. */
static void
check_simple_layout(int32_t ndim, const int64_t *shape)
{
    dimensions d;
    const DLTensor t = any_tensor(ndim, shape, &d, nondet_choice());
    const uint64_t flags = nondet_uint64();
    const int layout = dlp_simple_layout(&t);

    if (layout == 0)
        return;
    prove(dlp_validate_general(&t, flags, NULL) == 0, "the general check accepts what the fast path accepts");
    prove(layout != 'C' || dlpack_py_is_contiguous(&t, 'C'), "'C' is row-major");
    prove(layout != 'F' || dlpack_py_is_contiguous(&t, 'F'), "'F' is column-major");
    prove(layout != 'S' || !dlpack_py_is_contiguous(&t, 'K'), "'S' has gaps");
    prove(layout == 'C' || layout == 'F' || layout == 'S', "no other letter");
    prove(!dlp_may_overlap_itself(&t), "no two elements share memory");
}

void
simple_layout(void)
{
    for_all_shapes(check_simple_layout);
}

/* lowest and highest are the bounds of all elements, exactly; -1 only where one does not fit. */
static void
check_byte_range(int32_t ndim, const int64_t *shape)
{
    dimensions d;
    const DLTensor t = any_tensor(ndim, shape, &d, nondet_choice());
    const uint64_t flags = nondet_uint64();
    const wide bits = item_bits(flags);
    wide below = 0, above = 0;
    int64_t lowest, highest;
    int32_t i;

    if (t.strides == NULL && size_of(&t) > INT64_MAX)
        return; /* refused before, by the validation */
    for (i = 0; i < ndim; i++) {
        const wide reach = stride_of(&t, i) * (wide)(shape[i] - 1);
        below += reach < 0 ? reach : 0;
        above += reach > 0 ? reach : 0;
    }
    if (dlp_byte_range(&t, flags, &lowest, &highest) != 0) {
        prove(below <= INT64_MIN || above >= INT64_MAX || (below * bits >> 3) <= INT64_MIN ||
                  ((above + 1) * bits + 7) >> 3 > INT64_MAX,
              "a range that fits is found");
        return;
    }
    prove(lowest == (has_elements(&t) ? below * bits >> 3 : 0), "lowest");
    prove(highest == (has_elements(&t) ? ((above + 1) * bits + 7) >> 3 : 0), "highest");
}

void
byte_range(void)
{
    for_all_shapes(check_byte_range);
}

/* A stride is the product of the extents on one side; an extent of 0 counts as 1. No step overflows. */
static void
check_strides_of(int32_t ndim, const int64_t *shape, char order)
{
    int64_t strides[RANK + 1];
    int32_t i, k;

    dlpack_py_compact_strides(ndim, shape, order, strides);
    for (i = 0; i < ndim; i++) {
        wide product = 1;
        for (k = 0; k < ndim; k++) {
            if ((order == 'F' ? k < i : k > i) && shape[k] != 0)
                product *= shape[k];
        }
        prove(product > INT64_MAX || strides[i] == product, "a stride is a product of extents");
        prove(strides[i] >= 1, "a stride is positive");
    }
}

static void
check_strides(int32_t ndim, const int64_t *shape)
{
    check_strides_of(ndim, shape, 'C');
    check_strides_of(ndim, shape, 'F');
    check_strides_of(ndim, shape, 'A');
}

void
strides(void)
{
    for_all_shapes(check_strides);
}

/* 0: each stride that reaches an element is the same number of bytes as before. -1: one is no multiple, or items are
 * packed, and nothing has changed. */
static void
check_byte_strides(int32_t ndim, const int64_t *shape)
{
    dimensions d;
    DLTensor t = any_tensor(ndim, shape, &d, 0);
    const uint64_t flags = nondet_uint64();
    const wide bits = item_bits(flags);
    int64_t given[RANK + 1];
    int32_t i, wrong = 0;
    int result;

    for (i = 0; i < ndim; i++) {
        given[i] = d.strides[i];
        wrong |=
            has_elements(&t) && shape[i] > 1 && (bits % 8 != 0 || given[i] % (int64_t)(bits < 8 ? 1 : bits / 8) != 0);
    }
    result = dlpack_py_strides_from_bytes(&t, d.strides, flags, NULL);
    prove((result == 0) == !wrong, "refused only where a stride is no number of items");
    prove(result == 0 ? t.strides == d.strides : t.strides == NULL, "strides are set on success");
    for (i = 0; i < ndim; i++) {
        prove(result == 0 || d.strides[i] == given[i], "nothing changes on failure");
        prove(result != 0 || !has_elements(&t) || shape[i] <= 1 || (wide)d.strides[i] * bits == (wide)given[i] * 8,
              "a stride in items has the bytes that were given");
    }
}

void
byte_strides(void)
{
    for_all_shapes(check_byte_strides);
}

/* By definition: is the tensor compact, if the dimensions in this order run from the slowest to the fastest? free: the
 * slowest may have any stride. */
static int
is_compact(const DLTensor *t, const int *order, int first)
{
    wide step = 1;
    int k;
    for (k = t->ndim - 1; k >= 0; k--) {
        if (k >= first && t->shape[order[k]] != 1 && stride_of(t, order[k]) != step)
            return 0;
        step *= t->shape[order[k]];
    }
    return 1;
}

/* Each letter says what it should, for each valid tensor. */
static void
check_contiguity(int32_t ndim, const int64_t *shape)
{
    static const int orders[3][6][3] = {
        {{0}, {0}, {0}, {0}, {0}, {0}},
        {{0, 1}, {1, 0}, {1, 0}, {1, 0}, {1, 0}, {1, 0}},
        {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
    };
    dimensions d;
    const DLTensor t = any_tensor(ndim, shape, &d, nondet_choice());
    int k, c = 1, f = 1, any = 1, rows = 1;

    if (dlpack_py_validate(&t, nondet_uint64(), NULL) != 0)
        return;
    if (has_elements(&t) && ndim > 0) {
        const int (*const all)[3] = orders[ndim - 1];
        c = is_compact(&t, all[0], 0);
        f = is_compact(&t, all[5], 0);
        rows = is_compact(&t, all[0], ndim > 1);
        any = 0;
        for (k = 0; k < 6; k++)
            any |= is_compact(&t, all[k], 0);
    }
    prove(dlpack_py_is_contiguous(&t, 'C') == c, "'C'");
    prove(dlpack_py_is_contiguous(&t, 'F') == f, "'F'");
    prove(dlpack_py_is_contiguous(&t, 'A') == (c || f), "'A'");
    prove(dlpack_py_is_contiguous(&t, 'K') == (any || t.strides == NULL), "'K'");
    prove(dlpack_py_is_contiguous(&t, 'R') == rows, "'R'");
}

void
contiguity(void)
{
    for_all_shapes(check_contiguity);
}

/* 0: two different indices never name the same item. Strides are from -2^40 to 2^40. */
static void
check_self_overlap(int32_t ndim, const int64_t *shape)
{
    dimensions d;
    DLTensor t = any_tensor(ndim, shape, &d, 1);
    int64_t distance = 0;
    int32_t i, different = 0;

    t.dtype.code = kDLFloat;
    for (i = 0; i < ndim; i++)
        assume(d.strides[i] >= -(INT64_C(1) << 40) && d.strides[i] <= INT64_C(1) << 40);
    if (!has_elements(&t) || dlp_may_overlap_itself(&t))
        return;
    for (i = 0; i < ndim; i++) { /* the difference of two indices, from 1 - extent to extent - 1 */
        const int8_t difference = (int8_t)nondet_uint8();
        int64_t k;
        assume(difference > -shape[i] && difference < shape[i]);
        for (k = 1; k < shape[i]; k++)
            distance += difference >= k ? d.strides[i] : difference <= -k ? -d.strides[i] : 0;
        different |= difference;
    }
    prove(different == 0 || distance != 0, "different indices name different items");
}

void
self_overlap(void)
{
    for_all_shapes(check_self_overlap);
}

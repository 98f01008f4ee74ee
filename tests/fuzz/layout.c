/* layout: tensors and flags of any content. Compared with exact arithmetic, and with a visit of each element. */
#define FUZZ_TENSOR
#include "fuzz.h"

static int freed; /* contexts that dlpack_py_wrap passed to free_fn */

static void
free_context(void *context)
{
    CHECK(context == &freed);
    freed++;
}

/* The bits that the elements of a tensor have, relative to an address: sorted ranges are not needed, a map is. */
static int
marks(const DLTensor *t, uint64_t flags, uintptr_t start, unsigned char *map, size_t size)
{
    const int64_t bits = (int64_t)slow_bits(t->dtype, flags);
    int64_t offsets[SLOW_MAX], count = slow_offsets(t, 'C', offsets), n, bit;

    for (n = 0; n < count; n++) {
        const Wide first = ((Wide)((uintptr_t)t->data + t->byte_offset) - (Wide)start) * 8 + (Wide)offsets[n] * bits;
        if (first < 0 || first + bits > (Wide)size * 8)
            return -1;
        for (bit = 0; bit < bits; bit++) {
            const size_t at = (size_t)(first + bit);
            map[at / 8] = (unsigned char)(map[at / 8] | 1u << at % 8);
        }
    }
    return count < 0 ? -1 : 0;
}

/* dlpack_py_may_overlap never says no where two elements share a byte; it says no where the ranges are separate. */
static void
check_overlap(const Tensor *a, const Tensor *b)
{
    static unsigned char of_a[sizeof(arena)], of_b[sizeof(arena)];
    const int overlap = dlpack_py_may_overlap(&a->t, a->flags, &b->t, b->flags);
    size_t i;

    memset(of_a, 0, sizeof(of_a));
    memset(of_b, 0, sizeof(of_b));
    if (!overlap && marks(&a->t, a->flags, (uintptr_t)arena, of_a, sizeof(of_a)) == 0 &&
        marks(&b->t, b->flags, (uintptr_t)arena, of_b, sizeof(of_b)) == 0) {
        for (i = 0; i < sizeof(of_a); i++)
            CHECK(of_a[i] == 0 || of_b[i] == 0);
    }
    if (slow_size(&a->t) == 0 || slow_size(&b->t) == 0)
        CHECK(!overlap);
    else {
        const Wide first_a = (Wide)(uintptr_t)a->t.data + a->t.byte_offset;
        const Wide first_b = (Wide)(uintptr_t)b->t.data + b->t.byte_offset;
        Wide below_a, above_a, below_b, above_b;
        slow_reach(&a->t, &below_a, &above_a);
        slow_reach(&b->t, &below_b, &above_b);
        if (first_a + slow_bytes(above_a, a->t.dtype, a->flags) <=
                first_b - slow_bytes(-below_b, b->t.dtype, b->flags) ||
            first_b + slow_bytes(above_b, b->t.dtype, b->flags) <= first_a - slow_bytes(-below_a, a->t.dtype, a->flags))
            CHECK(!overlap);
    }
}

/* Each element is in the range, and one element is at each end of it. */
static void
check_range(const DLTensor *t, uint64_t flags)
{
    const int64_t bits = (int64_t)slow_bits(t->dtype, flags);
    int64_t offsets[SLOW_MAX], count = slow_offsets(t, 'C', offsets), lowest, highest, n;
    Wide least = 0, most = 0;

    CHECK(dlp_byte_range(t, flags, &lowest, &highest) == 0);
    for (n = 0; n < count; n++) {
        const Wide first = (Wide)offsets[n] * bits;
        least = first < least ? first : least;
        most = first + bits > most ? first + bits : most;
        if (slow_has_address(t->device))
            CHECK((Wide)(uintptr_t)t->data + t->byte_offset + (first >> 3) >= 0 &&
                  (Wide)(uintptr_t)t->data + t->byte_offset + ((first + bits + 7) >> 3) <= (Wide)UINTPTR_MAX);
    }
    if (count >= 0)
        CHECK(lowest == least >> 3 && highest == (most + 7) >> 3);
}

static void
check_strides(const DLTensor *t, uint64_t flags)
{
    static const char orders[] = {'C', 'F'};
    int64_t strides[DLPACK_PY_MAX_NDIM], bytes[DLPACK_PY_MAX_NDIM], item = (int64_t)slow_bits(t->dtype, flags);
    dlpack_py_error error;
    DLTensor compact = *t;
    int32_t i, k, exact = 1;
    size_t o;

    for (o = 0; o < COUNT(orders); o++) {
        dlpack_py_compact_strides(t->ndim, t->shape, orders[o], strides);
        compact.strides = strides;
        for (i = 0; i < t->ndim; i++)
            CHECK(strides[i] >= 1);
        if (slow_size(t) != 0) {
            Wide step = 1;
            for (k = 0; k < t->ndim; k++) {
                i = orders[o] == 'F' ? k : t->ndim - 1 - k;
                CHECK(strides[i] == step);
                step *= t->shape[i];
            }
        }
        CHECK(dlpack_py_is_contiguous(&compact, orders[o]) && dlpack_py_is_contiguous(&compact, 'A'));
    }
    if (t->strides == NULL)
        return;
    memcpy(bytes, t->strides, (size_t)t->ndim * sizeof(int64_t)); /* any numbers, as if they were bytes */
    for (i = 0; i < t->ndim; i++)
        exact &= slow_size(t) == 0 || t->shape[i] == 1 || (item % 8 == 0 && bytes[i] % (item / 8) == 0);
    CHECK((dlpack_py_strides_from_bytes(&compact, bytes, flags, &error) == 0) == exact);
    for (i = 0; i < t->ndim; i++) {
        if (!exact)
            CHECK(bytes[i] == t->strides[i]);
        else if (slow_size(t) != 0 && t->shape[i] != 1)
            CHECK((Wide)bytes[i] * (item / 8) == t->strides[i] && compact.strides == bytes);
    }
}

static void
check_wants(Input *in, const Tensor *given)
{
    static const int readonlies[] = {DLPACK_PY_WRITABLE, DLPACK_PY_READ_ONLY, DLPACK_PY_READ_ONLY_UNKNOWN};
    const int readonly = TAKE(in, readonlies);
    const DLTensor *t = &given->t;
    dlpack_py_error error;
    int result, fixed, curable;
    Want want;

    want_take(in, &want, t);
    result = dlpack_py_check_tensor(t, readonly, &want.want, &error);
    if (!slow_is_want(&want.want))
        CHECK(result == -1 && error.code == DLPACK_PY_SYSTEM_ERROR);
    else {
        fixed = slow_meets_fixed(t, &want.want, 1);
        curable = slow_meets_curable(t, readonly, &want.want);
        CHECK(result == 0 ||
              (error.code == DLPACK_PY_BUFFER_ERROR && memchr(error.text, 0, sizeof(error.text)) != NULL));
        CHECK(fixed || (result == -1 && !error.copy_helps));
        CHECK(!fixed || curable < 0 || (result == 0) == curable);
        CHECK(!fixed || result == 0 || error.copy_helps);
        /* The fast path knows the layout. */
        if (fixed && readonly != DLPACK_PY_READ_ONLY_UNKNOWN)
            CHECK(dlp_check_requirements(t, dlp_simple_layout(t), readonly, &want.want, NULL) == result);
    }
    want_free(&want);
}

static void
check_wrap(const Tensor *given)
{
    const DLTensor *t = &given->t, *made;
    struct DLManagedTensorVersioned *managed;
    const int fails = fuzz_fails == 0;
    int32_t i;

    freed = 0;
    managed = dlpack_py_wrap(t, given->flags, &freed, free_context);
    CHECK((managed != NULL) == (slow_is_valid(t, given->flags) && !fails));
    if (managed == NULL) {
        CHECK(freed == 0);
        return;
    }
    made = &managed->dl_tensor;
    CHECK(managed->version.major == 1 && made->ndim == t->ndim && dlpack_py_dtype(made) == dlpack_py_dtype(t));
    CHECK(slow_is_valid(made, managed->flags));
    CHECK((made->shape == NULL) == (t->ndim == 0) && (made->strides == NULL) == (t->ndim == 0));
    for (i = 0; i < t->ndim; i++)
        CHECK(made->shape[i] == t->shape[i] && (t->strides == NULL || made->strides[i] == t->strides[i]));
    if (t->strides == NULL)
        CHECK(dlpack_py_is_contiguous(made, 'C'));
    if (slow_size(t) == 0)
        CHECK(made->data == NULL);
    else
        CHECK((uintptr_t)made->data + made->byte_offset == (uintptr_t)t->data + t->byte_offset);
    CHECK(!slow_has_address(t->device) || made->byte_offset == 0);
    CHECK((managed->flags & 1) == (given->flags & 1));
    managed->deleter(managed);
    CHECK(freed == 1);
}

static void
check_allocate(const Tensor *prototype)
{
    struct DLManagedTensorVersioned *managed;
    dlpack_py_error error;
    const DLTensor *t;

    memset(&error, 0, sizeof(error));
    managed = dlpack_py_allocate(&prototype->t, &error);
    if (managed == NULL) {
        CHECK(error.code == DLPACK_PY_BUFFER_ERROR || error.code == DLPACK_PY_MEMORY_ERROR);
        return;
    }
    t = &managed->dl_tensor;
    CHECK(prototype->t.device.device_type == kDLCPU && managed->flags == 0 && t->byte_offset == 0);
    CHECK(t->ndim == prototype->t.ndim && slow_is_valid(t, 0) && dlpack_py_is_contiguous(t, 'C'));
    CHECK(t->ndim == 0 || memcmp(t->shape, prototype->t.shape, (size_t)t->ndim * sizeof(int64_t)) == 0);
    CHECK((uintptr_t)t->data % 64 == 0);
    memset(t->data == NULL ? arena : t->data, 1, (size_t)dlpack_py_nbytes(t, 0));
    managed->deleter(managed);
}

static void
check_tensor(const Tensor *given)
{
    static const char orders[] = {'C', 'F', 'A', 'K', 'R'};
    const DLTensor *t = &given->t;
    dlpack_py_error error;
    const int layout = dlp_simple_layout(t), general = dlp_validate_general(t, given->flags, &error);
    const int is_valid = slow_is_valid(t, given->flags);
    char text[DLPACK_PY_TEXT_SIZE];
    size_t o;
    int answer;

    CHECK(strlen(dlpack_py_dtype_text(dlpack_py_dtype(t), text)) < sizeof(text));
    CHECK(strlen(dlpack_py_device_text(t->device, text)) < sizeof(text));
    CHECK((general == 0) == is_valid);
    CHECK((dlpack_py_validate(t, given->flags, &error) == 0) == is_valid);
    CHECK(is_valid || (error.code == DLPACK_PY_BUFFER_ERROR && memchr(error.text, 0, sizeof(error.text)) != NULL));
    CHECK(layout == 0 || is_valid);
    if (!is_valid)
        return;
    CHECK((Wide)dlpack_py_size(t) == slow_size(t));
    CHECK((Wide)dlpack_py_nbytes(t, given->flags) == slow_bytes(slow_size(t), t->dtype, given->flags));
    for (o = 0; o < COUNT(orders); o++) {
        answer = slow_has_order(t, orders[o]);
        CHECK(answer < 0 || dlpack_py_is_contiguous(t, orders[o]) == answer);
    }
    CHECK((layout != 'C' && layout != 'F') || dlpack_py_is_contiguous(t, (char)layout));
    answer = slow_overlaps_itself(t);
    if (layout != 0)
        CHECK(answer <= 0 && (t->strides == NULL || slow_size(t) == 0 || dlp_stride_pattern(t) != 0));
    if (answer == 1)
        CHECK(dlp_may_overlap_itself(t));
    check_range(t, given->flags);
    check_strides(t, given->flags);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Input in = {bytes, size};
    const unsigned fails = take(&in);
    Tensor a, b;

    tensor_take(&in, &a);
    check_tensor(&a);
    fuzz_fails = fails < 240 ? -1 : 0;
    check_wrap(&a);
    fuzz_fails = fails < 240 ? -1 : 0;
    check_allocate(&a);
    fuzz_fails = -1;
    if (slow_is_valid(&a.t, a.flags)) {
        check_wants(&in, &a);
        tensor_take(&in, &b);
        if (slow_is_valid(&b.t, b.flags) && slow_has_address(a.t.device) && slow_has_address(b.t.device)) {
            check_overlap(&a, &b);
            check_overlap(&b, &a);
        }
        tensor_free(&b);
    }
    tensor_free(&a);
    CHECK(fuzz_blocks == 0);
    return 0;
}

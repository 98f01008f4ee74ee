/* What the fuzz targets share: the input as numbers, counted memory, tensors of any content, and slow answers to compare
 * with. Include it first: it sets the memory functions of the headers.
 *
 * A target reads its input from the front. At the end of the input each byte is 0, so that a short input is a simple one. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Ends the process: libFuzzer then keeps the input. */
#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #condition); \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* ---- The input ---------------------------------------------------------- */

typedef struct Input {
    const uint8_t *bytes;
    size_t size;
} Input;

static inline unsigned
take(Input *in)
{
    if (in->size == 0)
        return 0;
    in->size--;
    return *in->bytes++;
}

static inline unsigned
take_below(Input *in, unsigned count)
{
    return take(in) % count;
}

/* One of the values of an array. */
#define TAKE(in, array) ((array)[take_below((in), COUNT(array))])

/* Numbers at which arithmetic overflows, and any others. */
static inline int64_t
take_extreme(Input *in)
{
    static const int64_t numbers[] = {-1,
                                      INT64_MIN,
                                      INT64_MAX,
                                      INT64_MIN + 1,
                                      INT64_MAX - 1,
                                      INT32_MAX,
                                      INT64_C(0x80000000),
                                      INT32_MIN,
                                      UINT32_MAX,
                                      INT64_C(1) << 32,
                                      INT64_C(1) << 62,
                                      -(INT64_C(1) << 62),
                                      INT64_C(1) << 61,
                                      INT64_C(1) << 60,
                                      INT64_C(3037000500), /* its square is above 2^63 */
                                      INT64_MAX / 2,
                                      INT64_MAX / 16,
                                      INT64_MAX / 64,
                                      INT64_MAX / 64 + 1,
                                      4096,
                                      65536};
    const unsigned which = take_below(in, COUNT(numbers) + 3);
    uint64_t any = 0;
    int i;

    if (which < COUNT(numbers))
        return numbers[which];
    for (i = 0; i < 8; i++)
        any = any << 8 | take(in);
    return (int64_t)any;
}

/* ---- Memory of the headers ---------------------------------------------- */

static long fuzz_blocks;    /* allocated by the headers, and not freed */
static int fuzz_fails = -1; /* so many allocations succeed, then one fails; -1: none fails */
static int fuzz_refused;    /* how many failed in this run, also because they were large */

static inline void *
fuzz_malloc(size_t size)
{
    void *block;
    if (size > 1 << 20 || (fuzz_fails >= 0 && fuzz_fails-- == 0)) {
        fuzz_refused++;
        return NULL;
    }
    block = malloc(size);
    CHECK(block != NULL);
    fuzz_blocks++;
    return block;
}

static inline void
fuzz_free(void *block)
{
    CHECK(block != NULL);
    fuzz_blocks--;
    free(block);
}

#define DLPACK_PY_MALLOC(size) fuzz_malloc(size)
#define DLPACK_PY_FREE(block) fuzz_free(block)

#ifdef FUZZ_TENSOR /* a target without Python */
#include "dlpack_tensor.h"
#else
#include "dlpack_exchange.h"
#endif

/* ---- Tensors ------------------------------------------------------------ */

static _Alignas(64) unsigned char arena[8192]; /* most tensors are in here */

/* Each byte has its value: a copy that lacks bytes, or has them in another order, is found. */
static inline void
arena_fill(void)
{
    size_t n;
    for (n = 0; n < sizeof(arena); n++)
        arena[n] = (unsigned char)(n * 167 >> 3);
}

/* shape and strides have their own blocks: an access outside of them is found. */
typedef struct Tensor {
    DLTensor t;
    uint64_t flags;
    int64_t *shape, *strides;
} Tensor;

static const uint32_t fuzz_dtypes[] = {
    DLPACK_PY_FLOAT32,   DLPACK_PY_FLOAT64,       DLPACK_PY_INT8,           DLPACK_PY_UINT16, DLPACK_PY_BOOL,
    DLPACK_PY_COMPLEX64, DLPACK_PY_COMPLEX128,    DLPACK_PY_FLOAT4_E2M1FN,  DLPACK_PY_INT64,  DLPACK_PY_FLOAT6_E2M3FN,
    DLPACK_PY_BFLOAT16,  DLPACK_PY_FLOAT8_E4M3FN, DLPACK_PY_OPAQUE_HANDLE64};
static const int32_t fuzz_devices[] = {kDLCPU, kDLCUDA, kDLCUDAHost, kDLROCM, kDLCUDAManaged, kDLOpenCL,
                                       20,     0,       -1,          99,      kDLROCMHost,    kDLOneAPI};

static inline DLDataType
take_dtype(Input *in)
{
    static const uint8_t widths[] = {8, 1, 2, 3, 4, 6, 16, 32, 64, 128, 255, 0, 12, 24};
    static const uint16_t lanes[] = {1, 2, 3, 4, 8, 0, 256, 65535};
    const unsigned which = take_below(in, COUNT(fuzz_dtypes) + 4);
    DLDataType dtype;
    if (which < COUNT(fuzz_dtypes))
        return dlpack_py_cpu_tensor(NULL, fuzz_dtypes[which], 0, NULL, NULL).dtype;
    dtype.code = (uint8_t)take_below(in, 22);
    dtype.bits = TAKE(in, widths);
    dtype.lanes = TAKE(in, lanes);
    return dtype;
}

/* Is most often the compact stride, its negative, a multiple of it, or 0. */
static inline int64_t
take_stride(Input *in, int64_t compact)
{
    const unsigned byte = take(in);
    if (byte >= 240)
        return take_extreme(in);
    switch (byte % 8) {
    case 1: return (int64_t)(0 - (uint64_t)compact);
    case 2: return (int64_t)((uint64_t)compact * 2);
    case 3: return (int64_t)byte / 8 - 15;
    case 4: return 0;
    case 5: return (int64_t)((uint64_t)compact + 1);
    default: return compact;
    }
}

static inline int64_t
take_extent(Input *in)
{
    const unsigned byte = take(in);
    return byte >= 240 ? take_extreme(in) : byte == 7 ? 0 : 1 + byte % 4;
}

/* A tensor: in half of the cases one that a producer could have, else of any content. */
static inline void
tensor_take(Input *in, Tensor *out)
{
    static const int32_t ranks[] = {64, 65, -1, INT32_MAX, INT32_MIN};
    static const uint64_t offsets[] = {0, 1, 4, 64, UINT64_MAX, UINT64_MAX - 64, INT64_MAX};
    const unsigned kind = take(in);
    const int is_odd = kind >= 128;
    unsigned what, oddities = 2;
    const unsigned rank = is_odd ? take_below(in, 12) : kind % 7;
    int32_t i, stored;
    int64_t step = 1;

    memset(out, 0, sizeof(*out));
    out->t.ndim = rank < 7 ? (int32_t)rank : ranks[rank - 7];
    stored = out->t.ndim < 0 || out->t.ndim > DLPACK_PY_MAX_NDIM ? 0 : out->t.ndim;
    out->t.dtype = take_dtype(in);
    out->shape = (int64_t *)malloc((size_t)stored * sizeof(int64_t) + !stored);
    out->strides = (int64_t *)malloc((size_t)stored * sizeof(int64_t) + !stored);
    CHECK(out->shape != NULL && out->strides != NULL);
    for (i = stored; i-- > 0;) {
        out->shape[i] = rank >= 7 && i > 5 ? 1 : take_extent(in);
        out->strides[i] = take_stride(in, step);
        step = (int64_t)((uint64_t)step * (uint64_t)out->shape[i]);
    }
    if (stored > 1 && (kind & 8) != 0) { /* another order of dimensions */
        const int32_t k = (int32_t)take_below(in, (unsigned)stored - 1);
        const int64_t kept[] = {out->shape[k], out->strides[k]};
        out->shape[k] = out->shape[k + 1];
        out->strides[k] = out->strides[k + 1];
        out->shape[k + 1] = kept[0];
        out->strides[k + 1] = kept[1];
    }
    out->t.shape = out->shape;
    out->t.strides = (kind & 16) != 0 ? NULL : out->strides;
    out->t.data = arena + sizeof(arena) / 2 + ((kind & 32) != 0 ? take_below(in, 64) : 0);
    out->t.device = dlp_make_device(kDLCPU, 0);
    if ((kind & 64) != 0) {
        what = take(in);
        out->flags = (what & 15) | (what >= 240 ? UINT64_C(1) << 40 : 0); /* C8: unknown flags */
    }
    do {
        what = !is_odd ? 0 : take(in);
        switch (what % 8) {
        case 1: out->t.data = NULL; break;
        case 2: out->t.data = (void *)(UINTPTR_MAX - take(in)); break;
        case 3: out->t.data = (void *)(uintptr_t)take(in); break;
        case 4: out->t.shape = NULL; break;
        case 5: out->t.byte_offset = TAKE(in, offsets); break;
        case 6: out->t.device = dlp_make_device(TAKE(in, fuzz_devices), (int32_t)take_below(in, 3) - 1); break;
        default: break;
        }
    } while (what >= 192 && --oddities > 0);
}

static inline void
tensor_free(Tensor *tensor)
{
    free(tensor->shape);
    free(tensor->strides);
}

/* ---- Slow answers ------------------------------------------------------- */

typedef signed _BitInt(256) Wide; /* does not overflow here */
#define SLOW_MAX 1024             /* elements that are visited one by one */

static inline Wide
slow_bits(DLDataType dtype, uint64_t flags)
{
    const int padded = (flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 && dtype.bits < 8;
    return (Wide)(padded ? 8 : dtype.bits) * dtype.lanes;
}

/* The flags that an export in place keeps. */
static inline uint64_t
slow_kept_flags(DLDataType dtype, uint64_t flags)
{
    return flags & (DLPACK_PY_FLAG_READ_ONLY | (dtype.bits < 8 ? DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED : 0));
}

/* What a view of a versioned tensor says of writing. */
static inline int
slow_readonly(uint64_t flags)
{
    return (flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? DLPACK_PY_READ_ONLY : DLPACK_PY_WRITABLE;
}

static inline Wide
slow_bytes(Wide elements, DLDataType dtype, uint64_t flags)
{
    return (elements * slow_bits(dtype, flags) + 7) >> 3;
}

static inline int
slow_is_dtype(DLDataType d)
{
    if (d.bits == 0 || d.lanes == 0)
        return 0;
    if ((d.code >= 6 && d.code <= 14 && d.bits != 8) || ((d.code == 15 || d.code == 16) && d.bits != 6) ||
        (d.code == 17 && d.bits != 4))
        return 0;
    return (d.code != kDLComplex && d.code != 18) || d.bits % 2 == 0;
}

static inline int
slow_is_readable(DLDevice device)
{
    const int32_t type = (int32_t)device.device_type;
    return type == 1 || type == 3 || type == 11 || type == 13 || type == 20;
}

static inline int
slow_has_address(DLDevice device)
{
    const int32_t type = (int32_t)device.device_type;
    return slow_is_readable(device) || type == 2 || type == 10 || type == 14;
}

/* The number of elements; 2^65 where there are more. Extents are not negative. */
static inline Wide
slow_size(const DLTensor *t)
{
    Wide size = 1;
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
        size = size > (Wide)1 << 64 ? size : size * t->shape[i];
    }
    return size > (Wide)1 << 64 ? (Wide)1 << 65 : size;
}

/* The offset in elements of the element below which there is none, and the offset behind the last one. Not empty. */
static inline void
slow_reach(const DLTensor *t, Wide *below, Wide *above)
{
    int32_t i;
    *below = 0;
    *above = t->strides == NULL ? slow_size(t) : 1;
    for (i = 0; i < t->ndim && t->strides != NULL; i++) {
        const Wide reach = ((Wide)t->shape[i] - 1) * t->strides[i];
        *(reach < 0 ? below : above) += reach;
    }
}

/* Clause D8. */
static inline int
slow_is_valid(const DLTensor *t, uint64_t flags)
{
    const Wide most = INT64_MAX, end = UINTPTR_MAX;
    Wide below, above, first = (Wide)(uintptr_t)t->data + t->byte_offset;
    int32_t i;

    if (!slow_is_dtype(t->dtype) || t->ndim < 0 || t->ndim > 64 || (t->ndim > 0 && t->shape == NULL))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return 0;
    }
    if (slow_size(t) == 0)
        return 1;
    if (slow_size(t) > most || t->data == NULL || slow_bytes(slow_size(t), t->dtype, flags) > most)
        return 0;
    slow_reach(t, &below, &above);
    if (below < -most || above > most || slow_bytes(-below, t->dtype, flags) > most ||
        slow_bytes(above, t->dtype, flags) > most)
        return 0;
    return !slow_has_address(t->device) || (first <= end && slow_bytes(-below, t->dtype, flags) <= first &&
                                            slow_bytes(above, t->dtype, flags) <= end - first);
}

/* Needs a copy of the tensor more memory than fuzz_malloc gives? Then the header may raise MemoryError without asking. */
static inline int
slow_is_large(const Tensor *tensor)
{
    return slow_is_valid(&tensor->t, tensor->flags) && slow_size(&tensor->t) > 1 << 16;
}

/* Are all elements of a valid tensor in the arena? */
static inline int
slow_is_in_arena(const DLTensor *t, uint64_t flags)
{
    const Wide first = (Wide)(uintptr_t)t->data + t->byte_offset, start = (Wide)(uintptr_t)arena;
    Wide below, above;
    if (slow_size(t) == 0)
        return 1;
    slow_reach(t, &below, &above);
    return first - slow_bytes(-below, t->dtype, flags) >= start &&
           first + slow_bytes(above, t->dtype, flags) <= start + (Wide)sizeof(arena);
}

/* The offsets in elements of all elements of a valid tensor; order 'F': the first index changes fastest. Returns their
 * number, or -1 where there are more than SLOW_MAX. */
static inline int64_t
slow_offsets(const DLTensor *t, char order, int64_t offsets[SLOW_MAX])
{
    int64_t compact[DLPACK_PY_MAX_NDIM], index[DLPACK_PY_MAX_NDIM] = {0}, step = 1, count, n;
    const int64_t *strides = t->strides;
    int32_t i, k;

    if (slow_size(t) == 0 || slow_size(t) > SLOW_MAX)
        return slow_size(t) == 0 ? 0 : -1;
    if (strides == NULL) {
        for (i = t->ndim; i-- > 0; step *= t->shape[i])
            compact[i] = step;
        strides = compact;
    }
    count = (int64_t)slow_size(t);
    for (n = 0; n < count; n++) {
        offsets[n] = 0;
        for (i = 0; i < t->ndim; i++)
            offsets[n] += index[i] == 0 ? 0 : index[i] * strides[i];
        for (k = 0; k < t->ndim; k++) {
            i = order == 'F' ? k : t->ndim - 1 - k;
            if (++index[i] < t->shape[i])
                break;
            index[i] = 0;
        }
    }
    return count;
}

static inline int
slow_compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Has a valid tensor this order? Returns -1 where there are too many elements to tell. */
static inline int
slow_has_order(const DLTensor *t, char order)
{
    int64_t offsets[SLOW_MAX], count = slow_offsets(t, order == 'F' ? 'F' : 'C', offsets), n, row = 0;

    if (count < 0)
        return -1;
    if (order == 'A')
        return slow_has_order(t, 'C') || slow_has_order(t, 'F');
    if (order == 'K')
        qsort(offsets, (size_t)count, sizeof(*offsets), slow_compare);
    if (order == 'R' && t->ndim > 1)
        row = t->shape[0] == 0 ? 0 : count / t->shape[0];
    for (n = 0; n < count; n++) {
        const int64_t start = row == 0 ? 0 : offsets[n - n % row];
        if (offsets[n] - start != (row == 0 ? n : n % row))
            return 0;
    }
    return 1;
}

/* Do two elements of a valid tensor share memory? Returns -1 where there are too many elements to tell. */
static inline int
slow_overlaps_itself(const DLTensor *t)
{
    int64_t offsets[SLOW_MAX], count = slow_offsets(t, 'C', offsets), n;

    qsort(offsets, count < 0 ? 0 : (size_t)count, sizeof(*offsets), slow_compare);
    for (n = 1; n < count; n++) {
        if (offsets[n] == offsets[n - 1])
            return 1;
    }
    return count < 0 ? -1 : 0;
}

/* ---- Requirements ------------------------------------------------------- */

typedef struct Want {
    dlpack_py_want want;
    uint32_t dtypes[16];
    int64_t *shape;
} Want;

/* Requirements of any content; most of them fit to a tensor. */
static inline void
want_take(Input *in, Want *out, const DLTensor *t)
{
    static const char orders[] = {0, 'C', 'F', 'A', 'K', 'R', 'X', 'c'};
    static const int32_t ranks[] = {0, DLPACK_PY_SCALAR, 1, 2, 3, -2, 65, INT32_MAX};
    static const size_t alignments[] = {0, 1, 2, 4, 8, 16, 64, 3, (size_t)1 << 40};
    const unsigned what = take(in);
    unsigned i;

    memset(out, 0, sizeof(*out));
    if (what % 4 == 3 && what < 128) { /* what most consumers want: this dtype, rank and order, and perhaps to write */
        out->want.dtype = dlpack_py_dtype(t);
        out->want.ndim = t->ndim == 0 ? DLPACK_PY_SCALAR : t->ndim;
        out->want.order = orders[what / 4 % 3];
        out->want.writable = what >= 64;
        return;
    }
    if ((what & 1) != 0) {
        i = take(in);
        out->want.dtype = i < 128 ? dlpack_py_dtype(t) : i < 250 ? TAKE(in, fuzz_dtypes) : kDLFloat;
    }
    if ((what & 2) != 0) {
        out->want.dtypes = out->dtypes;
        i = take(in);
        for (i = i < 192 ? i % 4 : i % COUNT(out->dtypes); i-- > 0;) {
            const unsigned kind = take(in);
            out->dtypes[i] = kind < 32 ? dlpack_py_dtype(t) : kind == 255 ? kDLFloat : TAKE(in, fuzz_dtypes);
        }
    }
    if ((what & 4) != 0) {
        i = take(in);
        out->want.ndim = i < 128 ? (t->ndim == 0 ? DLPACK_PY_SCALAR : t->ndim) : TAKE(in, ranks);
        out->want.max_ndim = i % 4 == 0 ? TAKE(in, ranks) : 0;
        if (i % 4 == 1) {
            const int32_t stored = out->want.ndim > 0 && out->want.ndim <= 65 ? out->want.ndim : 0;
            out->want.shape = out->shape = (int64_t *)malloc((size_t)stored * sizeof(int64_t) + !stored);
            CHECK(out->shape != NULL);
            for (i = 0; i < (unsigned)stored; i++) {
                const unsigned kind = take(in);
                const int is_known = stored == t->ndim && t->shape != NULL && stored <= 64;
                out->shape[i] = kind >= 224 ? take_extent(in) : kind < 192 && is_known ? t->shape[i] : -1;
            }
        }
    }
    if ((what & 8) != 0)
        out->want.order = TAKE(in, orders);
    if ((what & 16) != 0)
        out->want.writable = 1;
    if ((what & 32) != 0) {
        i = take_below(in, 2 + COUNT(fuzz_devices));
        out->want.device = i == 0 ? DLPACK_PY_ANY_DEVICE : i == 1 ? -2 : fuzz_devices[i - 2];
    }
    if ((what & 64) != 0)
        out->want.alignment = TAKE(in, alignments);
    if ((what & 128) != 0) {
        i = take(in);
        out->want.options = i & 31;
        out->want.name = (i & 64) != 0 ? "argument" : NULL;
    }
}

static inline void
want_free(Want *want)
{
    free(want->shape);
}

/* Do requirements make sense? */
static inline int
slow_is_want(const dlpack_py_want *want)
{
    const uint32_t *list;
    if (want->dtype != 0 && (want->dtype >> 16 & 0xff) == 0)
        return 0;
    for (list = want->dtypes; list != NULL && *list != 0; list++) {
        if ((*list >> 16 & 0xff) == 0)
            return 0;
    }
    if (want->order != 0 && strchr("CFAKR", want->order) == NULL)
        return 0;
    if (want->device < -1 || (want->alignment & (want->alignment - 1)) != 0 || want->ndim < -1)
        return 0;
    if (want->max_ndim != 0 && (want->max_ndim < 0 || want->max_ndim < want->ndim))
        return 0;
    return want->shape == NULL || (want->ndim != 0 && (want->max_ndim == 0 || want->max_ndim == want->ndim));
}

/* Does a valid tensor meet the requirements that a copy cannot meet? device: is the device one of them? */
static inline int
slow_meets_fixed(const DLTensor *t, const dlpack_py_want *want, int device)
{
    const int32_t lowest = want->ndim < 0 ? 0 : want->ndim, highest = want->max_ndim != 0 ? want->max_ndim : lowest;
    const uint32_t dtype = dlpack_py_dtype(t), *list = want->dtypes;
    int32_t i;

    for (; list != NULL && *list != 0 && *list != dtype;)
        list++;
    if ((want->dtype != 0 || (want->dtypes != NULL && want->dtypes[0] != 0)) && dtype != want->dtype &&
        (list == NULL || *list == 0))
        return 0;
    if ((want->ndim != 0 || want->max_ndim != 0) && (t->ndim < lowest || t->ndim > highest))
        return 0;
    for (i = 0; want->shape != NULL && i < t->ndim; i++) {
        if (want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return 0;
    }
    if (!device || want->device == DLPACK_PY_ANY_DEVICE)
        return 1;
    return want->device == 0 ? slow_is_readable(t->device) : want->device == (int32_t)t->device.device_type;
}

/* Does a valid tensor meet the other requirements? Returns -1 where there are too many elements to tell. */
static inline int
slow_meets_curable(const DLTensor *t, int readonly, const dlpack_py_want *want)
{
    const uintptr_t first = (uintptr_t)t->data + t->byte_offset;
    const unsigned bits = t->dtype.code == kDLComplex || t->dtype.code == 18 ? t->dtype.bits / 2 : t->dtype.bits;
    const size_t natural = bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128 ? bits / 8 : 1;
    const size_t alignment = want->alignment != 0 ? want->alignment : natural;
    int unknown = 0, answer;

    if (slow_size(t) != 0 && slow_has_address(t->device) && first % alignment != 0)
        return 0;
    if (readonly == DLPACK_PY_READ_ONLY_UNKNOWN && (want->options & DLPACK_PY_WANT_LEGACY_IS_WRITABLE) != 0)
        readonly = DLPACK_PY_WRITABLE;
    if (want->writable && readonly != DLPACK_PY_WRITABLE)
        return 0;
    if (want->order != 0) {
        answer = slow_has_order(t, want->order);
        if (answer == 0)
            return 0;
        unknown |= answer < 0;
    }
    if (want->writable && (want->options & DLPACK_PY_WANT_OVERLAP_IS_FINE) == 0) {
        answer = slow_overlaps_itself(t);
        if (answer == 1)
            return 0;
        /* The header may refuse strides that interleave: only what surely shares memory must be refused. */
        unknown |= answer < 0 || dlp_may_overlap_itself(t);
    }
    return unknown ? -1 : 1;
}

#endif /* FUZZ_H */

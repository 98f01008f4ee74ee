/* copy: strided copies of all dtypes, packed ones too, compared with a copy by index. Built twice: as it is, and with
 * dlpack_copy.h included first, whose kernels are then called directly too. */
#define FUZZ_TENSOR
#include "fuzz.h"
#include <sanitizer/asan_interface.h>

#define MAX_BYTES 65536

/* A tensor in a block of its own that ends with its last byte: an access outside of it is found. */
typedef struct Block {
    DLTensor t;
    int64_t shape[6], strides[6];
    unsigned char *bytes, *before; /* before: the bytes as they were before the copy */
    size_t size;
} Block;

/* Strides: of dst such that no two elements share memory; of src any. is_compact: the tensor has none, block->strides
 * are row-major. Returns 0, or -1 where it is too large. */
static int
block_take(Input *in, Block *block, uint64_t flags, int is_dst, int is_compact, unsigned seed)
{
    DLTensor *t = &block->t;
    int32_t order[6], i, k, kept;
    int64_t step = 1;
    Wide below = 0, above = 0;
    size_t n;

    for (i = 0; i < t->ndim; i++)
        order[i] = t->ndim - 1 - i;
    for (i = 0; i < t->ndim; i++) {
        const unsigned byte = take(in);
        k = i + (int32_t)(byte % (unsigned)(t->ndim - i));
        kept = order[i];
        order[i] = order[k];
        order[k] = kept;
        block->strides[order[i]] = (byte & 64) != 0 ? -step : step;
        step *= block->shape[order[i]];
        step += byte >= 192 ? take_below(in, 20) : 0; /* a gap, also one that is no multiple of an extent */
        if (!is_dst && byte >= 128 && byte < 144)
            block->strides[order[i]] = (int64_t)take_below(in, 12) - 5; /* 0, or elements that share memory */
    }
    for (i = t->ndim, step = 1; is_compact && i-- > 0; step *= block->shape[i])
        block->strides[i] = step;
    if (is_compact)
        t->strides = NULL;
    block->bytes = block->before = NULL;
    if (slow_size(t) != 0)
        slow_reach(t, &below, &above);
    below = slow_bytes(-below, t->dtype, flags);
    above = slow_bytes(above, t->dtype, flags);
    if (below + above > MAX_BYTES)
        return -1;
    block->size = (size_t)(below + above) + (is_dst ? 0 : take_below(in, 16)); /* src: at any address */
    block->bytes = (unsigned char *)malloc(block->size + !block->size);
    block->before = (unsigned char *)malloc(block->size + !block->size);
    CHECK(block->bytes != NULL && block->before != NULL);
    for (n = 0; n < block->size; n++)
        block->bytes[n] = block->before[n] = (unsigned char)((n + seed) * 167 >> (n % 3));
    t->data = block->bytes + block->size - (size_t)above;
    return 0;
}

static void
block_free(Block *block)
{
    free(block->bytes);
    free(block->before);
}

/* Copies by index, bit for bit, from the bytes of src to what the bytes of dst were before. Padding is copied, too. */
static void
copy_by_index(const Block *dst, const Block *src, uint64_t flags)
{
    const int64_t bits = (int64_t)slow_bits(dst->t.dtype, flags);
    const int64_t to = (dst->bytes == NULL ? 0 : (unsigned char *)dst->t.data - dst->bytes) * 8;
    const int64_t from = (src->bytes == NULL ? 0 : (unsigned char *)src->t.data - src->bytes) * 8;
    int64_t index[6] = {0}, count = dlpack_py_size(&dst->t), n, bit, at_to, at_from;
    int32_t i;

    for (n = 0; n < count; n++) {
        at_to = to;
        at_from = from;
        for (i = 0; i < dst->t.ndim; i++) {
            at_to += index[i] * dst->strides[i] * bits;
            at_from += index[i] * src->strides[i] * bits;
        }
        if (bits % 8 == 0)
            memcpy(dst->before + at_to / 8, src->bytes + at_from / 8, (size_t)(bits / 8));
        else
            for (bit = 0; bit < bits; bit++, at_to++, at_from++) {
                const unsigned value = src->bytes[at_from / 8] >> at_from % 8 & 1u;
                const unsigned others = dst->before[at_to / 8] & ~(1u << at_to % 8);
                dst->before[at_to / 8] = (unsigned char)(others | value << at_to % 8);
            }
        for (i = dst->t.ndim; i-- > 0;) {
            if (++index[i] < dst->shape[i])
                break;
            index[i] = 0;
        }
    }
}

static void
check_copy(Input *in)
{
    static const uint8_t widths[] = {8, 16, 32, 64, 128, 4, 1, 6, 24, 2, 12};
    static const uint16_t lanes[] = {1, 1, 1, 2, 3, 4};
    static const uint64_t all_flags[] = {0, DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED,
                                         ~DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED, UINT64_MAX};
    const unsigned kind = take(in), wrong = take(in);
    const uint64_t flags = all_flags[wrong / 8 % 4];
    dlpack_py_error error;
    Block dst, src;
    int32_t i;
    int result;

    memset(&dst, 0, sizeof(dst));
    dst.t = dlpack_py_cpu_tensor(NULL, DLPACK_PY_UINT8, (int32_t)(kind % 6), dst.shape, dst.strides);
    dst.t.dtype.bits = TAKE(in, widths);
    dst.t.dtype.lanes = TAKE(in, lanes);
    for (i = 0; i < dst.t.ndim; i++) {
        const unsigned byte = take(in); /* most extents are small; the kernels need some long ones */
        dst.shape[i] = byte == 255                     ? 0
                       : byte >= 192 && dst.t.ndim < 4 ? byte - 150
                                                       : 1 + byte % (dst.t.ndim < 4 ? 20 : 5);
    }
    src = dst;
    src.t.shape = src.shape;
    src.t.strides = src.strides;
    if (block_take(in, &dst, flags, 1, wrong % 8 >= 6, 1) == 0 &&
        block_take(in, &src, flags, 0, wrong % 8 == 5 || wrong % 8 == 7, 77) == 0) {
        if (wrong == 255)
            src.t.dtype.code = kDLInt;
        if (wrong == 254 && src.t.ndim > 0)
            src.shape[0] ^= 1;
        if (wrong == 253)
            src.t.device.device_type = kDLCUDA;
        if (wrong == 252 && src.t.ndim > 0)
            src.t.ndim--;
        result = dlpack_py_copy(&dst.t, &src.t, flags, &error);
        if (memcmp(src.shape, dst.shape, sizeof(src.shape)) != 0 || src.t.ndim != dst.t.ndim || wrong == 255 ||
            wrong == 253)
            CHECK(result == -1 && error.code == DLPACK_PY_BUFFER_ERROR);
        else {
            CHECK(result == 0); /* the blocks are separate */
            copy_by_index(&dst, &src, flags);
        }
        CHECK(memcmp(dst.bytes, dst.before, dst.size) == 0); /* gaps and other bits too */
    }
    block_free(&dst);
    block_free(&src);
}

/* Two tensors in one block: they are copied only if no byte is in both. */
static void
check_in_place(Input *in)
{
    static unsigned char before[sizeof(arena)];
    DLTensor moved, *const dst = &moved;
    Tensor a;
    dlpack_py_error error;
    int64_t lowest, highest, n;

    tensor_take(in, &a);
    if (slow_is_valid(&a.t, a.flags) && a.t.ndim <= 6 && slow_bits(a.t.dtype, a.flags) % 8 == 0 &&
        slow_size(&a.t) > 0 && slow_size(&a.t) <= SLOW_MAX && slow_is_in_arena(&a.t, a.flags) &&
        a.t.device.device_type == kDLCPU && slow_overlaps_itself(&a.t) == 0) {
        *dst = a.t; /* shifted by some bytes */
        dst->data = (char *)a.t.data + (int64_t)take(in) - 128;
        if (slow_is_valid(dst, a.flags) && slow_is_in_arena(dst, a.flags) &&
            dlp_byte_range(dst, a.flags, &lowest, &highest) == 0) {
            arena_fill();
            memcpy(before, arena, sizeof(arena));
            if (dlpack_py_copy(dst, &a.t, a.flags, &error) == 0) {
                int64_t offsets[SLOW_MAX], count = slow_offsets(&a.t, 'C', offsets);
                const int64_t item = (int64_t)slow_bits(dst->dtype, a.flags) / 8;
                for (n = 0; n < count; n++)
                    memcpy(before + ((unsigned char *)dlp_first_element(dst) - arena) + offsets[n] * item,
                           (unsigned char *)dlp_first_element(&a.t) + offsets[n] * item, (size_t)item);
            }
            CHECK(memcmp(arena, before, sizeof(arena)) == 0);
        }
    }
    tensor_free(&a);
}

#ifdef DLPACK_COPY_H
/* A block of exactly this size at a multiple of 64. */
static unsigned char *
lines_new(int64_t bytes)
{
    void *block;
    CHECK(posix_memalign(&block, 64, (size_t)bytes) == 0);
    return (unsigned char *)block;
}

/* How many bytes a loop with a negative step reaches below its first round. */
static int64_t
reach_below(const dlpack_copy_loop *loop, int is_from)
{
    const int64_t step = is_from ? loop->from_step : loop->to_step;
    return step < 0 ? -step * (loop->count - 1) : 0;
}

/* The kernels directly, as a part of a copy that may be large: then they write past the cache. The first bytes of dst
 * and src have any address modulo 64, and their blocks end with their last bytes. */
static void
check_rows(Input *in)
{
    static const unsigned char sizes[] = {1, 2, 4, 8, 16, 3, 12};
    const int64_t size = TAKE(in, sizes), total = take(in) < 128 ? 2097152 : 1;
    dlpack_copy_loop rows, items;
    const unsigned kind = take(in), turned = take_below(in, 4);
    int64_t r, i, read, written, skipped_to, skipped_from, first_to, first_from;
    unsigned char *to, *from, *wanted;
    unsigned signs;

    rows.count = 1 + take(in) % (kind < 64 ? 4 : 140);
    items.count = 1 + take(in) * (kind % 4 == 0 ? 4 : 1) % (kind < 128 ? 1000 : 40);
    items.to_step = size;
    rows.to_step = items.count * size + (turned == 1 ? take_below(in, 70) : 0);
    rows.from_step = size; /* transposed */
    items.from_step = rows.count * size + (turned == 2 ? take_below(in, 70) : 0);
    if (turned == 3) {
        items.from_step = TAKE(in, ((int64_t[]){0, 2 * size, size, 3 * size, 5}));
        rows.from_step = items.count * (items.from_step == 0 ? size : items.from_step);
    }
    skipped_to = take_below(in, 64);
    skipped_from = take_below(in, 64);
    signs = take(in); /* a negative step that no kernel takes is rarer */
    if ((signs & 192) == 192) {
        items.to_step *= 2;
        rows.to_step *= 2;
    }
    read = (rows.count - 1) * rows.from_step + (items.count - 1) * items.from_step + size;
    written = (rows.count - 1) * rows.to_step + (items.count - 1) * items.to_step + size;
    if (read > MAX_BYTES * 4 || written > MAX_BYTES * 4)
        return;
    rows.to_step *= (signs & 1) != 0 ? -1 : 1;
    items.from_step *= (signs & 2) != 0 ? -1 : 1;
    rows.from_step *= (signs & 12) == 12 ? -1 : 1;
    items.to_step *= (signs & 48) == 48 ? -1 : 1;

    to = lines_new(skipped_to + written);
    wanted = lines_new(skipped_to + written);
    from = lines_new(skipped_from + read);
    for (i = 0; i < read; i++)
        from[skipped_from + i] = (unsigned char)(i * 167 >> (i % 5));
    ASAN_POISON_MEMORY_REGION(from, skipped_from / 8 * 8);
    memset(to, 0x5a, (size_t)(skipped_to + written));
    memset(wanted, 0x5a, (size_t)(skipped_to + written));
    first_to = skipped_to + reach_below(&rows, 0) + reach_below(&items, 0);
    first_from = skipped_from + reach_below(&rows, 1) + reach_below(&items, 1);
    for (r = 0; r < rows.count; r++)
        for (i = 0; i < items.count; i++)
            memcpy(wanted + first_to + r * rows.to_step + i * items.to_step,
                   from + first_from + r * rows.from_step + i * items.from_step, (size_t)size);
    dlpack_copy_rows((char *)to + first_to, &rows, (const char *)from + first_from, &items, (size_t)size, total);
    CHECK(memcmp(to, wanted, (size_t)(skipped_to + written)) == 0);
    free(to);
    free(wanted);
    free(from);
}
#endif

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Input in = {bytes, size};
    const unsigned what = take(&in);

#ifdef DLPACK_COPY_H
    if (what >= 160) {
        check_rows(&in);
        return 0;
    }
#endif
    if (what < 112)
        check_copy(&in);
    else
        check_in_place(&in);
    return 0;
}

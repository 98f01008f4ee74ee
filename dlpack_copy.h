/* dlpack_copy.h - copy strided memory at the speed of the memory
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * Optional. Include Python.h, then this file, then dlpack_py.h: its copies then call dlpack_copy_rows.
 * Portable C99 and C++11, and SSE2 on x86, which DLPACK_COPY_PORTABLE leaves out, for tests.
 */

#ifndef DLPACK_COPY_H
#define DLPACK_COPY_H
#define DLP_COPY_VERSION 0x000300 /* that of dlpack_tensor.h */
#ifdef DLPACK_TENSOR_H
#  error "include dlpack_copy.h before dlpack_tensor.h and dlpack_py.h, whose loops are already compiled"
#  include "stop" /* no such file: ends the compilation */
#endif
#include <stdint.h> /* int64_t, uintptr_t */
#include <stdlib.h> /* llabs */
#include <string.h> /* memcpy, memmove, size_t */
#if (defined(__SSE2__) || defined(_M_X64)) && !defined(DLPACK_COPY_PORTABLE)
#  define DLP_COPY_SSE2
#  include <emmintrin.h>
#endif
#ifdef __GNUC__ /* fast, also in a caller that is compiled to be small */
#  define DLP_COPY_HOT static __attribute__((hot, noinline, unused))
#else
#  define DLP_COPY_HOT static inline
#endif
#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wold-style-cast"
#endif

/* One loop of a copy: how often it runs, and the bytes from one round to the next in dst and in src. */
typedef struct dlpack_copy_loop {
    int64_t count, to_step, from_step;
} dlpack_copy_loop;

/* Copies rows of items. The rows are the inner loop if items are fewer and below 16. Constant sizes are fast. */
static inline void
dlp_copy_items(char *to, const dlpack_copy_loop *rows, const char *from, const dlpack_copy_loop *items, int64_t size)
{
    const int turn = items->count < 16 && items->count < rows->count;
    const dlpack_copy_loop *outer = turn ? items : rows, *inner = turn ? rows : items;
    const int64_t step_to = inner->to_step, step_from = inner->from_step;
    int64_t r, i;
#define DLP_COPY_ITEMS(bytes)                                                          \
    for (r = 0; r < outer->count; r++) {                                               \
        char *t = to + r * outer->to_step;                                             \
        const char *f = from + r * outer->from_step;                                   \
        for (i = inner->count; i >= 4; i -= 4, t += 4 * step_to, f += 4 * step_from) { \
            memcpy(t, f, bytes);                                                       \
            memcpy(t + step_to, f + step_from, bytes);                                 \
            memcpy(t + 2 * step_to, f + 2 * step_from, bytes);                         \
            memcpy(t + 3 * step_to, f + 3 * step_from, bytes);                         \
        }                                                                              \
        for (; i > 0; i--, t += step_to, f += step_from)                               \
            memcpy(t, f, bytes);                                                       \
    }                                                                                  \
    break
    switch (size) {
    case 1: DLP_COPY_ITEMS(1);
    case 2: DLP_COPY_ITEMS(2);
    case 4: DLP_COPY_ITEMS(4);
    case 8: DLP_COPY_ITEMS(8);
    case 16: DLP_COPY_ITEMS(16);
    default: DLP_COPY_ITEMS((size_t)size);
    }
}

/* ---- Registers of SSE2 -------------------------------------------------- */

#ifdef DLP_COPY_SSE2
/* a is an array of registers, t is a register. N_2 ... N_16 repeat a macro for the registers from i on. PUT stores past
 * the cache where past is 1. ZIP interleaves two registers; ZIP_N transposes N registers of N items: it interleaves the
 * first half with the second half, and so on in each half. */
#define DLP_COPY_LOAD(i, p, step) a[i] = _mm_loadu_si128((const __m128i *)(const void *)((p) + (i) * (step)))
#define DLP_COPY_STORE(i, p, step) _mm_storeu_si128((__m128i *)(void *)((p) + (i) * (step)), a[i])
#define DLP_COPY_STREAM(i, p, step) _mm_stream_si128((__m128i *)(void *)((p) + (i) * (step)), a[i])
#define DLP_COPY_PUT(i, p, step) past ? DLP_COPY_STREAM(i, p, step) : DLP_COPY_STORE(i, p, step)
#define DLP_COPY_HALF(a, b, places) /* two of four items of a, and two of b */ \
    _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), places))
#define DLP_COPY_REVERSE_BYTES /* of a[0]: pairs, then the bytes in each pair */              \
    (t = _mm_shuffle_epi32(_mm_shufflehi_epi16(_mm_shufflelo_epi16(a[0], 0x1b), 0x1b), 0x4e), \
     _mm_or_si128(_mm_slli_epi16(t, 8), _mm_srli_epi16(t, 8)))
#define DLP_COPY_ZIP(i, d, w) \
    t = a[i], a[i] = _mm_unpacklo_##w(t, a[(i) + (d)]), a[(i) + (d)] = _mm_unpackhi_##w(t, a[(i) + (d)])
#define DLP_COPY_N_1(f, i, x, y) f(i, x, y);
#define DLP_COPY_N_2(f, i, x, y) DLP_COPY_N_1(f, i, x, y) DLP_COPY_N_1(f, (i) + 1, x, y)
#define DLP_COPY_N_3(f, i, x, y) DLP_COPY_N_2(f, i, x, y) DLP_COPY_N_1(f, (i) + 2, x, y)
#define DLP_COPY_N_4(f, i, x, y) DLP_COPY_N_2(f, i, x, y) DLP_COPY_N_2(f, (i) + 2, x, y)
#define DLP_COPY_N_8(f, i, x, y) DLP_COPY_N_4(f, i, x, y) DLP_COPY_N_4(f, (i) + 4, x, y)
#define DLP_COPY_N_16(f, i, x, y) DLP_COPY_N_8(f, i, x, y) DLP_COPY_N_8(f, (i) + 8, x, y)
#define DLP_COPY_ZIP_2(i, w) DLP_COPY_N_1(DLP_COPY_ZIP, i, 1, w)
#define DLP_COPY_ZIP_4(i, w) DLP_COPY_N_2(DLP_COPY_ZIP, i, 2, w) DLP_COPY_ZIP_2(i, w) DLP_COPY_ZIP_2((i) + 2, w)
#define DLP_COPY_ZIP_8(i, w) DLP_COPY_N_4(DLP_COPY_ZIP, i, 4, w) DLP_COPY_ZIP_4(i, w) DLP_COPY_ZIP_4((i) + 4, w)
#define DLP_COPY_ZIP_16(i, w) DLP_COPY_N_8(DLP_COPY_ZIP, i, 8, w) DLP_COPY_ZIP_8(i, w) DLP_COPY_ZIP_8((i) + 8, w)
#define DLP_COPY_SQUARE(n, w)                                                \
    DLP_COPY_N_##n(DLP_COPY_LOAD, 0, from, step_from) DLP_COPY_ZIP_##n(0, w) \
        DLP_COPY_N_##n(DLP_COPY_STORE, 0, to, step_to)

/* One round: interleaves the items of the first half of 2 or 4 registers with those of the other half. */
#define DLP_COPY_ROUND_2(w) DLP_COPY_ZIP(0, 1, w)
#define DLP_COPY_ROUND_4(w)                                                              \
    (t = a[1], a[1] = _mm_unpackhi_##w(a[0], a[2]), a[0] = _mm_unpacklo_##w(a[0], a[2]), \
     a[2] = _mm_unpacklo_##w(t, a[3]), a[3] = _mm_unpackhi_##w(t, a[3]))

/* Takes pixels of 2 or 4 items apart, to planes, or joins planes to pixels. Returns how many of count pixels are done.
 * The registers hold 2^b items. A round rotates the bits of the place of an item to the left by one. log2(planes)
 * rounds join; log2(items in a register) rounds take apart. */
static inline int64_t
dlp_copy_even_pixels(char *to, int64_t step_to, const char *from, int64_t step_from, int64_t count, int64_t size,
                     int64_t planes, int apart, int past)
{
    const int64_t rounds = !apart ? planes / 2 : size == 1 ? 4 : size == 2 ? 3 : size == 4 ? 2 : 1;
    __m128i a[4], t;
    int64_t n = 0, k;
#define DLP_COPY_PIXELS(bytes, n_planes, w)                       \
    for (; n + 16 / bytes <= count; n += 16 / bytes) {            \
        _mm_prefetch(from + 2048, _MM_HINT_T0);                   \
        DLP_COPY_N_##n_planes(DLP_COPY_LOAD, 0, from, step_from); \
        for (k = 0; k < rounds; k++)                              \
            DLP_COPY_ROUND_##n_planes(w);                         \
        DLP_COPY_N_##n_planes(DLP_COPY_PUT, 0, to, step_to);      \
        to += apart ? 16 : 16 * n_planes;                         \
        from += apart ? 16 * n_planes : 16;                       \
    }                                                             \
    break
    past &= ((uintptr_t)to & 15) == 0;
    switch (10 * size + planes) {
    case 12: DLP_COPY_PIXELS(1, 2, epi8);
    case 14: DLP_COPY_PIXELS(1, 4, epi8);
    case 22: DLP_COPY_PIXELS(2, 2, epi16);
    case 24: DLP_COPY_PIXELS(2, 4, epi16);
    case 42: DLP_COPY_PIXELS(4, 2, epi32);
    case 44: DLP_COPY_PIXELS(4, 4, epi32);
    case 82: DLP_COPY_PIXELS(8, 2, epi64);
    }
    return n;
}

/* Is there a kernel for pixels of so many items of so many bytes? */
static inline int
dlp_copy_has_pixels(int64_t planes, int64_t size)
{
    return planes == 3 ? size == 1 || size == 4 : planes == 4 ? size <= 4 : planes == 2;
}

/* Takes pixels of 2, 3 or 4 items apart, or joins them. Returns how many of count pixels are done. Three items have 1
 * or 4 bytes: three registers hold n items, 48 or 12. A round interleaves the first half with the other half, which
 * doubles the places of items modulo n - 1. Four rounds, or two, bring item c of pixel p from place 3 * p + c to place
 * p + n / 3 * c; as many rounds backwards join. */
static inline int64_t
dlp_copy_pixels(char *to, int64_t step_to, const char *from, int64_t step_from, int64_t count, int64_t size,
                int64_t planes, int apart, int past)
{
    const __m128i low = _mm_set1_epi16(255);
    __m128i a[3], t;
    int64_t n, round;
    if (planes != 3)
        return dlp_copy_even_pixels(to, step_to, from, step_from, count, size, planes, apart, past);
    past &= ((uintptr_t)to & 15) == 0;
    for (n = 0; n + 16 / size <= count; n += 16 / size, to += apart ? 16 : 48, from += apart ? 48 : 16) {
        _mm_prefetch(from + 2048, _MM_HINT_T0);
        DLP_COPY_N_3(DLP_COPY_LOAD, 0, from, step_from)
        for (round = 0; size == 1 && round < 4; round++) {
            t = a[1];
            a[1] = apart ? _mm_unpacklo_epi8(_mm_srli_si128(a[0], 8), a[2])
                         : _mm_packus_epi16(_mm_and_si128(a[2], low), _mm_srli_epi16(a[0], 8));
            a[0] = apart ? _mm_unpacklo_epi8(a[0], _mm_srli_si128(t, 8))
                         : _mm_packus_epi16(_mm_and_si128(a[0], low), _mm_and_si128(t, low));
            a[2] = apart ? _mm_unpacklo_epi8(t, _mm_srli_si128(a[2], 8))
                         : _mm_packus_epi16(_mm_srli_epi16(t, 8), _mm_srli_epi16(a[2], 8));
        }
        for (round = 0; size == 4 && round < 2; round++) {
            t = a[1];
            a[1] = apart ? _mm_unpacklo_epi32(_mm_srli_si128(a[0], 8), a[2]) : DLP_COPY_HALF(a[2], a[0], 0xd8);
            a[0] = apart ? _mm_unpacklo_epi32(a[0], _mm_srli_si128(t, 8)) : DLP_COPY_HALF(a[0], t, 0x88);
            a[2] = apart ? _mm_unpacklo_epi32(t, _mm_srli_si128(a[2], 8)) : DLP_COPY_HALF(t, a[2], 0xdd);
        }
        DLP_COPY_N_3(DLP_COPY_PUT, 0, to, step_to)
    }
    return n;
}

/* Copies items that are contiguous in dst: one item of src again and again, or every second or reversed items of 1 or 4
 * bytes. Returns how many items are done: bytes between items are read, nothing behind the last item is. */
static inline int64_t
dlp_copy_line(char *to, const char *from, dlpack_copy_loop items, int64_t size, int past)
{
    const __m128i low = _mm_set1_epi16(255);
    char repeated[16];
    __m128i a[4], t;
    int64_t n = 0;
    past &= ((uintptr_t)to & 15) == 0;
#define DLP_COPY_LINE(size, n_loads, first, result)                                 \
    for (; n + 16 / size < items.count; n += 16 / size) {                           \
        const char *source = from + n * items.from_step;                            \
        _mm_prefetch(source + 2048 / size * items.from_step, _MM_HINT_T0);          \
        DLP_COPY_N_##n_loads(DLP_COPY_LOAD, 0, source + (first), 16) a[0] = result; \
        DLP_COPY_PUT(0, to + n * size, 0);                                          \
    }                                                                               \
    break
    switch (items.from_step) {
    case 0:
        for (; n < 16; n += size)
            memcpy(repeated + n, from, (size_t)size);
        a[0] = a[1] = a[2] = a[3] = _mm_loadu_si128((const __m128i *)(const void *)repeated);
        for (n = 0; n + 64 / size <= items.count; n += 64 / size) {
            DLP_COPY_N_4(DLP_COPY_STORE, 0, to + n * size, 16)
        }
        break;
    case 2: DLP_COPY_LINE(1, 2, 0, _mm_packus_epi16(_mm_and_si128(a[0], low), _mm_and_si128(a[1], low)));
    case 8: DLP_COPY_LINE(4, 2, 0, DLP_COPY_HALF(a[0], a[1], 0x88));
    case -1: DLP_COPY_LINE(1, 1, -15, DLP_COPY_REVERSE_BYTES);
    case -4: DLP_COPY_LINE(4, 1, -12, _mm_shuffle_epi32(a[0], 0x1b));
    }
    return n;
}

/* Writes n bytes of a buffer to dst, in whole lines of 64 bytes, which the processor then need not read. An incomplete
 * line stays in the buffer: its bytes are moved to the end of the 64 bytes before the buffer, and the next call, for
 * the bytes that follow in dst, completes it. first, last: is this the first or last call for a row? Every call but the
 * last has n >= 64. */
static inline void
dlp_copy_write_lines(char *to, char *buffer, int64_t n, int first, int last)
{
    const int64_t past = (int64_t)((uintptr_t)to & 63);
    int64_t at = first ? -past & 63 : -past; /* of the next line, counted from the first of the n bytes */
    __m128i a[4];
    memcpy(to, buffer, (size_t)(!first ? 0 : at < n ? at : n));
    for (; at + 64 <= n; at += 64) {
        DLP_COPY_N_4(DLP_COPY_LOAD, 0, buffer + at, 16)
        DLP_COPY_N_4(DLP_COPY_STREAM, 0, to + at, 16)
    }
    if (at < n)
        memmove(last ? to + at : buffer - (n - at), buffer + at, (size_t)(n - at));
}

/* Transposes a square of 16 / size rows of 16 / size items. */
static inline void
dlp_copy_square(char *to, int64_t step_to, const char *from, int64_t step_from, int64_t size)
{
    __m128i a[16], t;
    switch (size) {
    case 1: DLP_COPY_SQUARE(16, epi8); break;
    case 2: DLP_COPY_SQUARE(8, epi16); break;
    case 4: DLP_COPY_SQUARE(4, epi32); break;
    default: DLP_COPY_SQUARE(2, epi64);
    }
}

/* Transposes a tile: rows is the loop that is contiguous in src, items in dst. ahead: bytes to the next tile, or 0. */
static inline void
dlp_copy_tile(char *to, dlpack_copy_loop rows, const char *from, dlpack_copy_loop items, int64_t size, int64_t ahead)
{
    const int64_t side = 16 / size; /* of a square that fits in registers */
    dlpack_copy_loop high = rows, wide = items;
    int64_t r, i = 0, k;
    high.count -= high.count % side; /* whole squares */
    wide.count -= wide.count % side;
    if (dlp_copy_has_pixels(rows.count, size) && items.from_step == rows.count * size) {
        high.count = rows.count;
        wide.count = i = dlp_copy_pixels(to, rows.to_step, from, 16, items.count, size, rows.count, 1, 0);
    }
    for (; i < wide.count; i += side) {
        for (k = i; ahead != 0 && k < i + side; k++)
            for (r = -(int64_t)((uintptr_t)(from + k * items.from_step + ahead) & 63); r < rows.count * size; r += 64)
                _mm_prefetch(from + k * items.from_step + ahead + r, _MM_HINT_T1);
        for (r = 0; r < high.count; r += side)
            dlp_copy_square(to + r * rows.to_step + i * size, rows.to_step, from + r * size + i * items.from_step,
                            items.from_step, size);
    }
    items.count -= wide.count; /* what is left: the other items, and the other rows */
    dlp_copy_items(to + wide.count * size, &rows, from + wide.count * items.from_step, &items, size);
    rows.count -= high.count;
    dlp_copy_items(to + high.count * rows.to_step, &rows, from + high.count * size, &wide, size);
}

/* Transposes in tiles. Large memory is gathered in a buffer, and written in whole lines; joined: of several rows. */
DLP_COPY_HOT void
dlp_copy_transpose(char *to, dlpack_copy_loop rows, const char *from, dlpack_copy_loop items, int64_t size, int large)
{
    char buffer[64 + 128 * 64 + 16384]; /* up to 128 rows, and 64 bytes before each */
    const int64_t row = items.count * size, most = !large ? 32 / size : size == 8 ? 32 : size == 1 ? 128 : 64;
    const int joined = large && rows.to_step == row && row <= 512, cut = large && !joined && rows.count > most;
    const int64_t high = joined ? 16384 / row / 16 * 16 : rows.count < most ? rows.count : most;
    const int64_t wide = joined ? items.count : large ? 16384 / high / 64 * 64 / size : 512 / size;
    dlpack_copy_loop tile_rows = rows, tile_items = items;
    int64_t r, i, k;
    tile_rows.to_step = joined ? row : large ? 64 + wide * size : rows.to_step;
    for (r = 0; r < rows.count; r += tile_rows.count) {
        const int64_t past = cut ? (int64_t)((uintptr_t)(from + r * size) & 63) / size : 0; /* end with a line of src */
        tile_rows.count = rows.count - r < high - past ? rows.count - r : high - past;
        for (i = 0; i < items.count; i += wide) {
            const int last = items.count - i <= wide;
            const char *source = from + r * size + i * items.from_step;
            char *target = to + r * rows.to_step + i * size;
            const int64_t next = last ? tile_rows.count * size - i * items.from_step : wide * items.from_step;
            tile_items.count = last ? items.count - i : wide;
            dlp_copy_tile(large ? buffer + 64 : target, tile_rows, source, tile_items, size, large ? next : 0);
            for (k = 0; large && k < (joined ? 1 : tile_rows.count); k++)
                dlp_copy_write_lines(target + k * rows.to_step, buffer + 64 + k * tile_rows.to_step,
                                     tile_items.count * size * (joined ? tile_rows.count : 1), (joined ? r : i) == 0,
                                     joined ? r + tile_rows.count == rows.count : last);
        }
    }
}
#endif

/* ---- The copy ----------------------------------------------------------- */

/* Copies rows, the outer loop, of items of item_size bytes, the inner loop. Each count is at least 1.
 *
 * to, from   the first item of dst and of src, which share no byte
 * total      the bytes of the whole copy, of which these rows may be a part: large memory is written past the cache
 *
 * Steps have any sign, and may be 0 in src. Fastest where items->to_step is the shortest step of dst, and
 * rows->from_step the shortest of the other steps of src. Needs 25 KB of stack. Allocates nothing; calls memcpy and
 * memmove only. */
DLP_COPY_HOT void
dlpack_copy_rows(char *to, const dlpack_copy_loop *rows, const char *from, const dlpack_copy_loop *items,
                 size_t item_size, int64_t total)
{
    const int64_t size = (int64_t)item_size, row = items->count * size;
    const int64_t high = items->count < 16 ? 512 : rows->count; /* blocks stay in the cache */
    const int64_t wide = llabs(rows->from_step) < llabs(items->from_step) && rows->count > 1 ? 64 : items->count;
    dlpack_copy_loop block = *rows, part = *items;
    int64_t r = 0, done = 0, i; /* rows, and items of each row, that are done */
#ifdef DLP_COPY_SSE2
    const int large =
        total >= 2097152 && (rows->to_step == row ? row * rows->count : row) >= 128; /* bytes in one piece */
    const int many = row * rows->count >= 256 && items->to_step == size && size <= 16 && (size & (size - 1)) == 0;
    const int transposed = many && rows->from_step == size && items->from_step != 0 && size <= 8;
    const int few = rows->count * size < 16 || row < (size == 8 ? 64 : 16) || (size == 8 && rows->count < 8);
    const int joined = dlp_copy_has_pixels(items->count, size) && rows->to_step == items->count * size;
    const int apart = dlp_copy_has_pixels(rows->count, size) && items->from_step == rows->count * size;
    if (transposed && joined)
        r = dlp_copy_pixels(to, 16, from, items->from_step, rows->count, size, items->count, 0, large);
    else if (transposed && (!few || apart)) {
        dlp_copy_transpose(to, *rows, from, *items, size, large);
        r = rows->count;
    }
    else if (many && (items->from_step == 0 ||
                      ((size == 1 || size == 4) && (items->from_step == 2 * size || items->from_step == -size))))
        for (int64_t k = 0; k < rows->count; k++)
            done = dlp_copy_line(to + k * rows->to_step, from + k * rows->from_step, *items, size, large && row >= 512);
    if (large)
        _mm_sfence(); /* before other memory is written */
#endif
    (void)total, (void)row; /* which only the kernels use */
    for (; r < rows->count; r += block.count) {
        block.count = rows->count - r < high ? rows->count - r : high;
        for (i = done; i < items->count; i += part.count) {
            part.count = items->count - i < wide ? items->count - i : wide;
            dlp_copy_items(to + r * rows->to_step + i * items->to_step, &block,
                           from + r * rows->from_step + i * items->from_step, &part, size);
        }
    }
}

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif
#endif /* DLPACK_COPY_H */

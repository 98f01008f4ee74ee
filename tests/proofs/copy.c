/* Proofs about the loops of the copies: of dlpack_tensor.h; of dlpack_copy.h, without SSE2, where WITH_COPY_H is
 * defined. The contents of the memory are unknown. An access out of the buffers is an error of CBMC. */
#include "any.h"

#define SIZE (BITS / 8)
#ifndef ROOM
#  define ROOM 40
#endif
#ifndef ROWS
#  define ROWS 3
#endif
#ifndef ITEMS
#  define ITEMS 2
#endif

/* One loop over ROWS rows of ITEMS items of SIZE bytes. The steps are unknown, of either sign, and lead to elements
 * inside of two buffers of ROOM bytes; in dst no two elements share a byte. Each element arrives, and no other byte is
 * written. */
void
copy_rows(void)
{
    char source[ROOM], target[ROOM], before[ROOM];
    const int64_t to = nondet_uint8(), from = nondet_uint8(), r = nondet_uint8(), i = nondet_uint8();
    const uint8_t byte = nondet_uint8();
    dlp_loop rows, items;
    int64_t row, item;
    int touched = 0;

    rows.count = ROWS;
    items.count = ITEMS;
    rows.to_step = (int8_t)nondet_uint8();
    rows.from_step = (int8_t)nondet_uint8();
    items.to_step = (int8_t)nondet_uint8();
    items.from_step = (int8_t)nondet_uint8();
    assume(byte < ROOM);
    for (row = 0; row < ROWS; row++) {
        for (item = 0; item < ITEMS; item++) {
            const int64_t at = to + row * rows.to_step + item * items.to_step,
                          was = from + row * rows.from_step + item * items.from_step;
            assume(at >= 0 && at <= ROOM - SIZE && was >= 0 && was <= ROOM - SIZE);
            touched |= byte >= at && byte < at + SIZE;
        }
    }
    for (row = 1 - ROWS; row < ROWS; row++) {
        for (item = 1 - ITEMS; item < ITEMS; item++)
            assume((row == 0 && item == 0) || llabs(row * rows.to_step + item * items.to_step) >= SIZE);
    }
    before[byte] = target[byte];
    dlp_copy_rows(target + to, &rows, source + from, &items, SIZE, ROWS * ITEMS * SIZE);
    assume(r < ROWS && i < ITEMS);
    for (row = 0; row < SIZE; row++)
        prove(target[to + r * rows.to_step + i * items.to_step + row] ==
                  source[from + r * rows.from_step + i * items.from_step + row],
              "each element arrives");
    prove(touched || target[byte] == before[byte], "no other byte is written");
}

/* dlp_copy_bits: count bits from any bit to any bit of 4 bytes; the other bits stay. */
void
copy_bits(void)
{
    char source[4], target[4], before[4];
    const int64_t to = nondet_uint8() & 15, from = nondet_uint8() & 15, count = nondet_uint8() & 15;
    const int bit = nondet_uint8() & 31;
    int i;

    for (i = 0; i < 4; i++) {
        source[i] = (char)nondet_uint8();
        target[i] = before[i] = (char)nondet_uint8();
    }
    dlp_copy_bits(target + 1, to - 8, source + 1, from - 8, count);
    if (bit >= to && bit < to + count) {
        const int was = (int)(bit - to + from);
        prove((target[bit / 8] >> bit % 8 & 1) == (source[was / 8] >> was % 8 & 1), "each bit arrives");
    }
    else
        prove((target[bit / 8] >> bit % 8 & 1) == (before[bit / 8] >> bit % 8 & 1), "the other bits stay");
}

/* Include before dlpack_py.h. Counts the blocks that the header has allocated and not freed. Two kinds are not counted:
 * interpreter states, which the header never frees, and type entries, which live as long as the interpreter. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long blocks; /* relaxed: counting must not synchronize threads */

typedef union counted_block {
    int lasts;
    char room[16]; /* keeps the alignment of malloc */
} counted_block;

static void *
counted_malloc(size_t size, int lasts)
{
    counted_block *block = (counted_block *)malloc(sizeof(*block) + size);
    if (block == NULL)
        return NULL;
    block->lasts = lasts;
    if (!lasts)
        atomic_fetch_add_explicit(&blocks, 1, memory_order_relaxed);
    return block + 1;
}

static void
counted_free(void *pointer)
{
    counted_block *block = (counted_block *)pointer - 1;
    if (!block->lasts)
        atomic_fetch_sub_explicit(&blocks, 1, memory_order_relaxed);
    free(block);
}

#define DLPACK_PY_MALLOC(size) \
    counted_malloc(size, strcmp(#size, "sizeof(*state)") == 0 || strcmp(#size, "sizeof(*record)") == 0)
#define DLPACK_PY_FREE(pointer) counted_free(pointer)

/* Include before dlpack_py.h. Counts the blocks that the header has allocated and not freed. Two kinds are not among
 * them: interpreter states, which the header never frees, and the records of types with a table, which live as long as
 * the interpreter and are counted apart. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_long blocks, records; /* relaxed: counting must not synchronize threads */

typedef union counted_block {
    atomic_long *count; /* NULL: not counted */
    char room[16];      /* keeps the alignment of malloc */
} counted_block;

static void *
counted_malloc(size_t size, atomic_long *count)
{
    counted_block *block = (counted_block *)malloc(sizeof(*block) + size);
    if (block == NULL)
        return NULL;
    block->count = count;
    if (count != NULL)
        atomic_fetch_add_explicit(count, 1, memory_order_relaxed);
    return block + 1;
}

static void
counted_free(void *pointer)
{
    counted_block *block = (counted_block *)pointer - 1;
    if (block->count != NULL)
        atomic_fetch_sub_explicit(block->count, 1, memory_order_relaxed);
    free(block);
}

#define DLPACK_PY_MALLOC(size)                                              \
    counted_malloc(size, strcmp(#size, "sizeof(*state)") == 0    ? NULL     \
                         : strcmp(#size, "sizeof(*record)") == 0 ? &records \
                                                                 : &blocks)
#define DLPACK_PY_FREE(pointer) counted_free(pointer)

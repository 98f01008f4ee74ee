/* Memory at a multiple of an alignment: the C library of Windows has no posix_memalign, and wants a free of its own. */
#include <stdlib.h>
#ifdef _WIN32
#include <malloc.h>
#endif

static inline void *
aligned_new(size_t alignment, size_t size)
{
#ifdef _WIN32
    return _aligned_malloc(size, alignment);
#else
    void *memory;
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
#endif
}

static inline void
aligned_free(void *memory)
{
#ifdef _WIN32
    _aligned_free(memory);
#else
    free(memory);
#endif
}

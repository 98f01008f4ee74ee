/* What the programs of this folder share: checks that no build type turns off. */
#ifndef CHECK_H
#define CHECK_H

#define DLPACK_DEVICE_NO_PYTHON /* for dlpack_cuda.h and dlpack_rocm.h */

#include "dlpack_tensor.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define CHECK(condition) check_number((condition) ? 1 : 0, 1, #condition, __func__, __LINE__)
#define CHECK_NUMBER(number, wanted) check_number((int64_t)(number), (int64_t)(wanted), #number, __func__, __LINE__)

static int check_failures; /* main returns whether a check failed */

static inline void
check_number(int64_t number, int64_t wanted, const char *what, const char *test, int line)
{
    if (number == wanted)
        return;
    printf("%s, line %d: %s is %" PRId64 ", not %" PRId64 "\n", test, line, what, number, wanted);
    check_failures++;
}

/* An address that crashes the program when it is read or written. */
static inline int64_t *
check_unreadable(void)
{
    static volatile uintptr_t address = 64; /* volatile: compilers warn about constant addresses */
    return (int64_t *)address;
}

#endif /* CHECK_H */

/* For probes that are given a dtype as text. */
#include <stdlib.h>

/* The dtype with this name ("float32", "int8x4"), or 0. */
static inline uint32_t
dtype_of(const char *text)
{
    static const uint32_t widths[] = {1, 2, 4, 6, 8, 16, 32, 64, 128};
    const char *x = strrchr(text, 'x');
    char name[DLPACK_PY_TEXT_SIZE];
    uint32_t code;
    size_t i;

    for (code = 0; code <= 18; code++) {
        for (i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
            const uint32_t one = DLPACK_PY_DTYPE(code, widths[i], 1u);
            const uint32_t lanes = DLPACK_PY_DTYPE(code, widths[i], x == NULL ? 1u : (uint32_t)atoi(x + 1));
            if (strcmp(dlpack_py_dtype_text(one, name), text) == 0)
                return one;
            if (strcmp(dlpack_py_dtype_text(lanes, name), text) == 0)
                return lanes;
        }
    }
    return 0;
}

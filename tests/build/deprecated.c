/* A public name of each kind that docs/stability.md calls deprecated, and with USES a use of each. */
#include "dlpack_tensor.h"

typedef struct dlpack_py_thing {
    DLP_DEPRECATED("use extent") int size;
    int extent;
} dlpack_py_thing;

DLP_DEPRECATED("use DLPACK_PY_LATER") typedef uint32_t dlp_earlier;
#define DLPACK_PY_EARLIER ((dlp_earlier)4u)
#define DLPACK_PY_LATER 4u

static inline int
dlpack_py_later(const dlpack_py_thing *thing)
{
    return thing->extent;
}

DLP_DEPRECATED("use dlpack_py_later") static inline int
dlpack_py_earlier(const dlpack_py_thing *thing)
{
    return dlpack_py_later(thing);
}

int
use(dlpack_py_thing *thing);

int
use(dlpack_py_thing *thing)
{
#ifdef USES
    static const uint32_t constant = DLPACK_PY_EARLIER;
    thing->size = (int)constant;
    return dlpack_py_earlier(thing);
#else
    static const uint32_t constant = DLPACK_PY_LATER;
    thing->extent = (int)constant;
    return dlpack_py_later(thing);
#endif
}

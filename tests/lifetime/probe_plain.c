#ifndef DLPACK_PY_PLAIN
#  define DLPACK_PY_PLAIN 1
#endif
#define DLPACK_PY_IMPL_HAS_TYPE_LOOKUP 0
#define PROBE_INIT PyInit_probe_plain
#include "probe.c"

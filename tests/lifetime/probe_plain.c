#ifndef DLPACK_PY_PLAIN
#  define DLPACK_PY_PLAIN 1
#endif
#define PROBE_INIT PyInit_probe_plain
#include "probe.c"

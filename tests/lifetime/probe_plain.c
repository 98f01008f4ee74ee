#define DLPACK_PY_PLAIN 1
#define PROBE_INIT PyInit_probe_plain
#include "probe.c"

#define Py_LIMITED_API 0x030C0000
#define PROBE_INIT PyInit_probe_limited
#include "probe.c"

#include "uses_device.c"

#include "uses_all.c"

/* consumer_probe with dlpack_exchange.h: takes tensors by the exchange tables of other libraries. */
#include "dlpack_exchange.h"

#define PROBE_INIT PyInit_table_consumer
#include "../consumer/consumer_probe.c"

/* Linked into an extension that is compiled with -finstrument-functions: prints each function that it enters between
 * path_start() and path_stop(), as "depth address", with addresses as nm gives them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#define UNTRACED __attribute__((no_instrument_function, visibility("default")))

static int depth = -1; /* -1: not started */

UNTRACED void
path_start(void)
{
    depth = 0;
}

UNTRACED void
path_stop(void)
{
    depth = -1;
}

UNTRACED void
__cyg_profile_func_enter(void *function, void *caller)
{
    Dl_info module;
    (void)caller;
    if (depth < 0 || dladdr(function, &module) == 0)
        return;
    depth++;
    printf("%d %jx\n", depth, (uintmax_t)((uintptr_t)function - (uintptr_t)module.dli_fbase));
}

UNTRACED void
__cyg_profile_func_exit(void *function, void *caller)
{
    (void)function;
    (void)caller;
    if (depth > 0)
        depth--;
}

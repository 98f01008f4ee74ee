/* Compiled with a copy of the headers that has version 255.0.0 and more fields at the start of struct dlp_state. */
#include "one_file.h"

#if DLPACK_PY_VERSION != 0xff0000
#  error "the include path does not begin with the copy that says it is 255.0.0"
#endif

static PyMethodDef functions[] = {
    {"export", file_export, METH_O, NULL},
    {"state", file_state, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyMODINIT_FUNC
PyInit_newer_version(void)
{
    return file_module("newer_version", functions);
}

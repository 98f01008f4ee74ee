/* A module of two source files. Both include the header. */
#include "one_file.h"

PyObject *
two_files_other_export(PyObject *module, PyObject *owner);
PyObject *
two_files_other_state(PyObject *module, PyObject *unused);

static PyMethodDef functions[] = {
    {"export", file_export, METH_O, NULL},
    {"other_export", two_files_other_export, METH_O, NULL},
    {"other_state", two_files_other_state, METH_NOARGS, NULL},
    {"state", file_state, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

PyMODINIT_FUNC
PyInit_two_files(void)
{
    return file_module("two_files", functions);
}

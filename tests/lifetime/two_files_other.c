#include "one_file.h"

PyObject *
two_files_other_export(PyObject *module, PyObject *owner);
PyObject *
two_files_other_state(PyObject *module, PyObject *unused);

PyObject *
two_files_other_export(PyObject *module, PyObject *owner)
{
    return file_export(module, owner);
}

PyObject *
two_files_other_state(PyObject *module, PyObject *unused)
{
    return file_state(module, unused);
}

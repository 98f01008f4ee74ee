/* echo(object): exports an object and makes a new object, by two functions of its type's exchange table, as another
 * library does. Uses plain dlpack.h only, in any interpreter. */

#include <Python.h>

#include <dlpack/dlpack.h>

static PyObject *
echo(PyObject *Py_UNUSED(module), PyObject *object)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)Py_TYPE(object), "__dlpack_c_exchange_api__");
    const DLPackExchangeAPI *table;
    DLManagedTensorVersioned *managed;
    void *made;

    if (capsule == NULL)
        return NULL;
    table = (const DLPackExchangeAPI *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule); /* the table lives as long as the process (X1) */
    if (table == NULL || table->managed_tensor_from_py_object_no_sync(object, &managed) != 0 ||
        table->managed_tensor_to_py_object_no_sync(managed, &made) != 0)
        return NULL;
    return (PyObject *)made;
}

static PyMethodDef functions[] = {
    {"echo", echo, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "echo", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_echo(void)
{
    return PyModuleDef_Init(&module_def);
}

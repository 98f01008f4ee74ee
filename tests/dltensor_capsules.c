/* dltensor_capsules - for PyPy: what dltensor.py calls by ctypes.pythonapi elsewhere, and how many references C code
 * holds. Written from dlpack.h. */
#include <Python.h>

#include <string.h>

#include <dlpack/dlpack.h>

/* A copy of a name; NULL for None. Never freed: a capsule does not copy its name. */
static const char *
name_of(PyObject *bytes)
{
    return bytes == Py_None ? NULL : strdup(PyBytes_AsString(bytes));
}

static void
destroy_legacy(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        DLManagedTensor *managed = (DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
}

static void
destroy_versioned(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *managed =
            (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
}

/* new(address, name, is_versioned): a capsule whose destructor follows K1. */
static PyObject *
new_capsule(PyObject *module, PyObject *args)
{
    PyObject *address, *name;
    int is_versioned;

    (void)module;
    if (!PyArg_ParseTuple(args, "OOp", &address, &name, &is_versioned))
        return NULL;
    return PyCapsule_New(PyLong_AsVoidPtr(address), name_of(name), is_versioned ? destroy_versioned : destroy_legacy);
}

/* name(capsule): the address of its name, or None. */
static PyObject *
get_name(PyObject *module, PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);

    (void)module;
    if (name != NULL)
        return PyLong_FromVoidPtr((void *)(uintptr_t)name);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* pointer(capsule, the address of its name) */
static PyObject *
get_pointer(PyObject *module, PyObject *args)
{
    PyObject *capsule, *name;
    void *pointer;

    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &name))
        return NULL;
    pointer = PyCapsule_GetPointer(capsule, name == Py_None ? NULL : (const char *)PyLong_AsVoidPtr(name));
    return pointer == NULL ? NULL : PyLong_FromVoidPtr(pointer);
}

static PyObject *
set_name(PyObject *module, PyObject *args)
{
    PyObject *capsule, *name;

    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &name) || PyCapsule_SetName(capsule, name_of(name)) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *on_delete;

/* Any thread. Keeps the current exception. */
static void
call_on_delete(void *managed)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *type, *value, *traceback, *result;

    PyErr_Fetch(&type, &value, &traceback);
    result = PyObject_CallFunction(on_delete, "N", PyLong_FromVoidPtr(managed));
    if (result == NULL)
        PyErr_WriteUnraisable(on_delete);
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
    PyGILState_Release(state);
}

/* deleter(function): the address of a deleter that calls function with the address of the managed tensor. */
static PyObject *
set_deleter(PyObject *module, PyObject *function)
{
    (void)module;
    Py_INCREF(function);
    on_delete = function;
    return PyLong_FromVoidPtr((void *)(uintptr_t)call_on_delete);
}

/* references(obj): how many references to it C code holds. Higher bits say what PyPy itself holds. */
static PyObject *
count_references(PyObject *module, PyObject *obj)
{
    (void)module;
    return PyLong_FromSsize_t(Py_REFCNT(obj) & 0xffffffff);
}

/* gil_check(): the address of PyGILState_Check. */
static PyObject *
gil_check(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromVoidPtr((void *)(uintptr_t)PyGILState_Check);
}

static PyMethodDef functions[] = {
    {"references", count_references, METH_O, NULL}, {"gil_check", gil_check, METH_NOARGS, NULL},
    {"new", new_capsule, METH_VARARGS, NULL},       {"name", get_name, METH_O, NULL},
    {"pointer", get_pointer, METH_VARARGS, NULL},   {"set_name", set_name, METH_VARARGS, NULL},
    {"deleter", set_deleter, METH_O, NULL},         {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "dltensor_capsules", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit_dltensor_capsules(void);
PyMODINIT_FUNC
PyInit_dltensor_capsules(void)
{
    return PyModule_Create(&module);
}

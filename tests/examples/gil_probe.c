/* Functions of an Arrow stream that note whether their thread holds the GIL, and then call another function. */

#include <Python.h>

static const char *(*next_last_error)(void *);
static void (*next_release)(void *);
static int calls, calls_with_gil;

static void
note_call(void)
{
    calls++;
    calls_with_gil += PyGILState_Check();
}

static const char *
probe_last_error(void *stream)
{
    note_call();
    return next_last_error(stream);
}

static void
probe_release(void *stream)
{
    note_call();
    next_release(stream);
}

/* watch(get_last_error, release): the addresses of two functions that note the GIL and then call these functions. */
static PyObject *
probe_watch(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long last_error, release;

    if (!PyArg_ParseTuple(args, "KK", &last_error, &release))
        return NULL;
    next_last_error = (const char *(*)(void *))(uintptr_t)last_error;
    next_release = (void (*)(void *))(uintptr_t)release;
    calls = calls_with_gil = 0;
    return Py_BuildValue("KK", (unsigned long long)(uintptr_t)probe_last_error,
                         (unsigned long long)(uintptr_t)probe_release);
}

/* counts(): the number of calls since watch, and the number of calls with the GIL. */
static PyObject *
probe_counts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("ii", calls, calls_with_gil);
}

static PyMethodDef functions[] = {
    {"watch", probe_watch, METH_VARARGS, NULL},
    {"counts", probe_counts, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "gil_probe", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_gil_probe(void)
{
    return PyModule_Create(&module_def);
}

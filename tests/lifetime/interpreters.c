/* Subinterpreters from C: the module of the standard library has another name and other rules in each version. */
#include <Python.h>

#include "drop.h"

static _Thread_local PyThreadState *outer; /* the thread state that called run() on this thread */

/* run(script, own_gil=False): runs the script in a new interpreter, which ends before the call returns. */
static PyObject *
run(PyObject *module, PyObject *args)
{
    PyThreadState *const here = PyThreadState_Get();
    PyThreadState *before = outer, *inside = NULL;
    const char *script;
    int own_gil = 0, status;

    (void)module;
    if (!PyArg_ParseTuple(args, "s|p", &script, &own_gil))
        return NULL;
    if (!own_gil)
        inside = Py_NewInterpreter();
#if PY_VERSION_HEX >= 0x030C0000
    else {
        const PyInterpreterConfig config = {
            .allow_threads = 1,
            .check_multi_interp_extensions = 1,
            .gil = PyInterpreterConfig_OWN_GIL,
        };
        (void)Py_NewInterpreterFromConfig(&inside, &config);
    }
#endif
    if (inside == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "no interpreter could be made");
        return NULL;
    }
    outer = here;
    status = PyRun_SimpleString(script);
    outer = before;
    Py_EndInterpreter(inside);
    if (own_gil) /* Py_EndInterpreter has released the GIL of the ended interpreter */
        PyEval_RestoreThread(here);
    else
        (void)PyThreadState_Swap(here);
    if (status < 0) {
        PyErr_SetString(PyExc_RuntimeError, "the script failed");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Since 3.14 the end of the main interpreter first ends all other interpreters. */
#if PY_VERSION_HEX >= 0x030E0000
#define end_kept NULL
#else
static void
end_kept(PyObject *capsule)
{
    PyThreadState *const inside = (PyThreadState *)PyCapsule_GetPointer(capsule, "interpreter");
    PyThreadState *const here = PyThreadState_Swap(inside);
    Py_EndInterpreter(inside);
    (void)PyThreadState_Swap(here);
}
#endif

/* run_and_keep(script): runs the script in a new interpreter, which ends when the returned capsule is destroyed, or at
 * the end of the main interpreter. */
static PyObject *
run_and_keep(PyObject *module, PyObject *script)
{
    PyThreadState *const here = PyThreadState_Get();
    PyThreadState *const inside = Py_NewInterpreter();
    const int status = PyRun_SimpleString(PyUnicode_AsUTF8(script));

    (void)module;
    (void)PyThreadState_Swap(here);
    if (status == 0)
        return PyCapsule_New(inside, "interpreter", end_kept);
    PyErr_SetString(PyExc_RuntimeError, "the script failed");
    return NULL;
}

/* drop_outside(tensor): calls the deleter attached to the interpreter that called run(), with an exception in flight.
 * Returns whether the exception is still set afterwards. */
static PyObject *
drop_outside(PyObject *module, PyObject *number)
{
    const uintptr_t tensor = PyLong_AsSize_t(number);
    PyThreadState *inside;
    int kept;

    (void)module;
    if (PyErr_Occurred())
        return NULL;
    inside = PyEval_SaveThread();
    PyEval_RestoreThread(outer);
    PyErr_SetString(PyExc_ValueError, "in flight");
    tensor_drop(tensor);
    kept = PyErr_ExceptionMatches(PyExc_ValueError);
    PyErr_Clear();
    (void)PyEval_SaveThread();
    PyEval_RestoreThread(inside);
    return PyBool_FromLong(kept);
}

static PyObject *
current(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromVoidPtr(PyInterpreterState_Get());
}

static PyObject *kept_object;

/* keep(object) keeps an object beyond the end of its interpreter; let_go() drops the object. */
static PyObject *
keep(PyObject *module, PyObject *object)
{
    (void)module;
    Py_INCREF(object);
    kept_object = object;
    Py_RETURN_NONE;
}

static PyObject *
let_go(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    Py_CLEAR(kept_object);
    Py_RETURN_NONE;
}

/* How many thread states this interpreter has. */
static PyObject *
thread_states(PyObject *module, PyObject *unused)
{
    PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    long count = 0;
    (void)module;
    (void)unused;
    for (; state != NULL; state = PyThreadState_Next(state))
        count++;
    return PyLong_FromLong(count);
}

static PyMethodDef functions[] = {
    {"current", current, METH_NOARGS, NULL},
    {"drop_outside", drop_outside, METH_O, NULL},
    {"keep", keep, METH_O, NULL},
    {"let_go", let_go, METH_NOARGS, NULL},
    {"run", run, METH_VARARGS, NULL},
    {"run_and_keep", run_and_keep, METH_O, NULL},
    {"thread_states", thread_states, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "interpreters", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit_interpreters(void)
{
    return PyModuleDef_Init(&module);
}

/* loop - the loop that makes every call that is counted or timed, for all libraries
 *
 * A target is a callable, or the name of a method: then the first argument is the object, and each call looks the
 * method up, as x.m() does. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>

/* Callgrind counts this function by its name. Calls target with args. If is_method is set, target is the name of a
 * method of args[0]. If in_turn is not NULL, calls target with one element of this tuple after the other. fails: each
 * call must raise an exception, which is cleared. */
__attribute__((noinline)) static int
dlpack_py_benchmark_loop(PyObject *target, int is_method, PyObject *in_turn, PyObject *const *args, size_t nargs,
                         PyObject *kwnames, int fails, Py_ssize_t count)
{
    Py_ssize_t i = 0;
    PyObject *result;

    for (; !is_method && !fails && in_turn == NULL && count > 0; count--) { /* most calls use this short loop */
        result = PyObject_Vectorcall(target, args, nargs, kwnames);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    for (; is_method && !fails && count > 0; count--) {
        result = PyObject_VectorcallMethod(target, args, nargs, kwnames);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    for (; fails && count > 0; count--) {
        result = PyObject_Vectorcall(target, args, nargs, kwnames);
        if (result != NULL) {
            Py_DECREF(result);
            PyErr_SetString(PyExc_AssertionError, "the call succeeded, an exception was wanted");
            return -1;
        }
        PyErr_Clear();
    }
    for (; count > 0; count--) {
        result = PyObject_Vectorcall(target, &PyTuple_GET_ITEM(in_turn, i), 1, NULL);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
        i = i + 1 < PyTuple_GET_SIZE(in_turn) ? i + 1 : 0;
    }
    return 0;
}

#define SIZES 30     /* multiples of 16 bytes */
#define MOST_HELD 32 /* blocks of each size */

/* A loop costs more if its block is the last free one of a pool of Python's allocator, which depends on all that
 * happened before. Holds some blocks of each size, and frees as many right before the loop: its pools have free blocks.
 * The number of blocks differs from call to call, because a pool may end among them. */
static void
hold_blocks(void *held[SIZES][MOST_HELD])
{
    static int more;
    const int count = 16 + more;
    int size, i;
    more = (more + 5) % (MOST_HELD - 15);
    memset(held, 0, SIZES * sizeof(held[0]));
    for (size = 0; size < SIZES; size++) {
        for (i = 0; i < count; i++)
            held[size][i] = PyObject_Malloc((size_t)(size + 1) * 16);
        while (i-- > count / 2) {
            PyObject_Free(held[size][i]);
            held[size][i] = NULL;
        }
    }
}

static void
free_blocks(void *held[SIZES][MOST_HELD])
{
    int size, i;
    for (size = 0; size < SIZES; size++) {
        for (i = 0; i < MOST_HELD; i++)
            PyObject_Free(held[size][i]);
    }
}

/* Reads (count, fails, target, *args, **keywords), and runs the loop; where before is set, the loop before it. */
static int
run(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, int before)
{
    const Py_ssize_t count = nargs < 3 ? -1 : PyLong_AsSsize_t(args[0]);
    const int fails = nargs < 3 ? -1 : PyObject_IsTrue(args[1]);

    if (nargs < 3)
        PyErr_SetString(PyExc_TypeError, "count, fails and a target are wanted");
    if (PyErr_Occurred())
        return -1;
    return dlpack_py_benchmark_loop(args[2], PyUnicode_Check(args[2]), NULL, args + 3, (size_t)nargs - 3, kwnames,
                                    fails, before ? count > 1 : count);
}

/* calls(count, fails, target, *args, **keywords). First runs a loop of one call, or of no call if count is 1. Callgrind
 * counts the calls of a function outside of the loop too, and forgets them when it dumps the costs of that function. */
static PyObject *
calls(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    void *held[SIZES][MOST_HELD];
    int failed;
    hold_blocks(held);
    failed = run(args, nargs, kwnames, 1) < 0 || run(args, nargs, kwnames, 0) < 0;
    free_blocks(held);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static int64_t
now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* nanoseconds(count, fails, target, *args, **keywords): the nanoseconds of all calls together. */
static PyObject *
nanoseconds(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const int64_t begin = now();
    if (run(args, nargs, kwnames, 0) < 0)
        return NULL;
    return PyLong_FromLongLong(now() - begin);
}

/* in_turn(count, target, objects): target(objects[0]), target(objects[1]) and so on, count calls. */
static PyObject *
in_turn(PyObject *Py_UNUSED(module), PyObject *args)
{
    void *held[SIZES][MOST_HELD];
    PyObject *target, *objects;
    Py_ssize_t count;
    int failed;
    if (!PyArg_ParseTuple(args, "nOO!", &count, &target, &PyTuple_Type, &objects))
        return NULL;
    hold_blocks(held);
    failed = dlpack_py_benchmark_loop(Py_None, 0, NULL, NULL, 0, NULL, 0, 0) < 0 ||
             dlpack_py_benchmark_loop(target, 0, objects, NULL, 0, NULL, 0, count) < 0;
    free_blocks(held);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"calls", FASTCALL(calls), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"nanoseconds", FASTCALL(nanoseconds), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"in_turn", in_turn, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "loop", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_loop(void)
{
    return PyModuleDef_Init(&module_def);
}

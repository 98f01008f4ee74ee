/* myarray - a vector of float64 values that exchanges its memory with array libraries by DLPack */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "dlpack_py.h"

typedef struct MyArray {
    PyObject_HEAD
    double *values;
    int64_t length;
    int readonly;
    DLTensor tensor;     /* of the values: exports read it */
    dlpack_py_view view; /* the memory of another library; empty: the values are our own */
} MyArray;

/* Describes an object for all who take its memory. The tensor, its shape and strides live in the object. */
static int
myarray_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    static const int64_t one[1] = {1};
    MyArray *a = (MyArray *)self;
    (void)request;
    a->tensor = dlpack_py_cpu_tensor(a->values, DLPACK_PY_FLOAT64, 1, &a->length, one);
    offer->tensor = &a->tensor;
    offer->flags = a->readonly ? DLPACK_PY_FLAG_READ_ONLY : 0;
    return 0;
}

DLPACK_PY_DESCRIBED(myarray, myarray_describe); /* defines myarray_dlpack and myarray_dlpack_device */

static PyObject *
myarray_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"length", NULL};
    Py_ssize_t length;
    MyArray *a;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:MyArray", names, &length))
        return NULL;
    if (length < 0 || length > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(double))
        return PyErr_Format(PyExc_ValueError, "there is no array of length %zd", length);
    a = (MyArray *)type->tp_alloc(type, 0);
    if (a == NULL)
        return NULL;
    a->values = (double *)PyMem_RawCalloc((size_t)length + 1, sizeof(double));
    if (a->values == NULL) {
        Py_DECREF(a);
        return PyErr_NoMemory();
    }
    a->length = length;
    return (PyObject *)a;
}

static PyObject *
myarray_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const dlpack_py_want vector = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .order = 'C'};
    dlpack_py_view v;
    MyArray *a;

    if (dlpack_py_from_dlpack(args, nargs, kwnames, &vector, &v) < 0)
        return NULL;
    a = (MyArray *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (a == NULL) {
        dlpack_py_release(&v);
        return NULL;
    }
    a->values = (double *)dlpack_py_data(&v);
    a->length = v.tensor.shape[0];
    a->readonly = v.readonly != DLPACK_PY_WRITABLE;
    dlpack_py_move(&a->view, &v);
    return (PyObject *)a;
}

static void
myarray_dealloc(PyObject *self)
{
    MyArray *a = (MyArray *)self;
    PyTypeObject *type = Py_TYPE(self);

    if (a->view.managed == NULL)
        PyMem_RawFree(a->values);
    dlpack_py_release(&a->view);
    type->tp_free(self);
    Py_DECREF(type);
}

static Py_ssize_t
myarray_length(PyObject *self)
{
    return (Py_ssize_t)((MyArray *)self)->length;
}

/* The sum of any float64 vector: a function that takes an array of any library, and keeps none. */
static PyObject *
sum(PyObject *module, PyObject *x)
{
    static const dlpack_py_want vector = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .name = "x"};
    dlpack_py_view v;
    const double *values;
    double total = 0;
    int64_t i;

    (void)module;
    if (dlpack_py_consume(x, &vector, &v) < 0)
        return NULL;
    values = (const double *)dlpack_py_data(&v);
    for (i = 0; i < v.tensor.shape[0]; i++)
        total += values[i * v.tensor.strides[0]];
    dlpack_py_release(&v);
    return PyFloat_FromDouble(total);
}

static PyMethodDef myarray_methods[] = {
    DLPACK_PY_METHODS(myarray_dlpack, myarray_dlpack_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))myarray_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nA MyArray over the memory of x.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot myarray_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)"MyArray(length)\n--\n\nFloat64 values, zeros at first."},
    {Py_tp_new, (void *)(uintptr_t)myarray_new},
    {Py_tp_dealloc, (void *)(uintptr_t)myarray_dealloc},
    {Py_tp_methods, myarray_methods},
    {Py_sq_length, (void *)(uintptr_t)myarray_length},
    {0, NULL},
};

static PyType_Spec myarray_spec = {"myarray.MyArray", sizeof(MyArray), 0, Py_TPFLAGS_DEFAULT, myarray_slots};

static int
module_exec(PyObject *module)
{
    PyObject *type;

    if (dlpack_py_init() < 0) /* before threads or an exit callback use DLPack */
        return -1;
    type = PyType_FromSpec(&myarray_spec);
    if (type == NULL || PyModule_AddObject(module, "MyArray", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    return 0;
}

static PyMethodDef module_methods[] = {
    {"sum", sum, METH_O, PyDoc_STR("sum($module, x, /)\n--\n\nThe sum of any float64 vector.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)(uintptr_t)module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "myarray",
                                        .m_doc = "A vector that exchanges its memory with array libraries.",
                                        .m_methods = module_methods, .m_slots = module_slots};

PyMODINIT_FUNC
PyInit_myarray(void)
{
    return PyModuleDef_Init(&module_def);
}

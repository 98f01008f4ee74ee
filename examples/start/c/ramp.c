/* ramp - an array type, and a function that takes the arrays of any library, in C */
#include <Python.h>

#include "dlpack_py.h"

typedef struct {
    PyObject_HEAD
    double *values;
    int64_t length;
} Ramp;

static PyObject *
ramp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {(char *)"length", NULL};
    Py_ssize_t length, i;
    Ramp *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:Ramp", names, &length))
        return NULL;
    if (length < 0 || length >= PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(double))
        return PyErr_Format(PyExc_ValueError, "there is no ramp of length %zd", length);
    self = (Ramp *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->values = (double *)PyMem_RawMalloc(((size_t)length + 1) * sizeof(double));
    if (self->values == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->length = length;
    for (i = 0; i < length; i++)
        self->values[i] = (double)i;
    return (PyObject *)self;
}

static void
ramp_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(((Ramp *)self)->values);
    type->tp_free(self);
    Py_DECREF(type);
}

/* __dlpack__: other libraries use the memory of a Ramp. */
static PyObject *
ramp_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Ramp *ramp = (Ramp *)self;
    DLTensor t = dlpack_py_cpu_tensor(ramp->values, DLPACK_PY_FLOAT64, 1, &ramp->length, NULL);
    return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
}

/* total(x): this module uses the memory of other libraries. */
static PyObject *
total(PyObject *module, PyObject *x)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_view v;
    double sum = 0;
    int64_t i;

    (void)module;
    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 1;
    if (dlpack_py_consume(x, &want, &v) < 0)
        return NULL; /* BufferError names the requirement that is not met */
    for (i = 0; i < v.tensor.shape[0]; i++)
        sum += ((const double *)dlpack_py_data(&v))[i * v.tensor.strides[0]];
    dlpack_py_release(&v);
    return PyFloat_FromDouble(sum);
}

static PyMethodDef ramp_methods[] = {
    DLPACK_PY_METHODS(ramp_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ramp_slots[] = {
    {Py_tp_doc, (void *)(uintptr_t)"Ramp(length)\n--\n\nThe float64 values 0, 1, 2, ..."},
    {Py_tp_new, (void *)(uintptr_t)ramp_new},
    {Py_tp_dealloc, (void *)(uintptr_t)ramp_dealloc},
    {Py_tp_methods, ramp_methods},
    {0, NULL},
};

static PyType_Spec ramp_spec = {"ramp.Ramp", sizeof(Ramp), 0, Py_TPFLAGS_DEFAULT, ramp_slots};

static int
module_exec(PyObject *module)
{
    PyObject *type;
    int failed;

    if (dlpack_py_init() < 0)
        return -1;
    type = PyType_FromSpec(&ramp_spec);
    failed = type == NULL || PyObject_SetAttrString(module, "Ramp", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyMethodDef functions[] = {
    {"total", total, METH_O, PyDoc_STR("total($module, x, /)\n--\n\nThe sum of any float64 vector.")},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, (void *)(uintptr_t)module_exec}, {0, NULL}};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "ramp", NULL, 0, functions, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_ramp(void)
{
    return PyModuleDef_Init(&module_def);
}

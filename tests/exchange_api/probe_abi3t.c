/* Built for abi3t, the stable ABI of CPython 3.15 with and without a GIL, in which PyObject has no known size: exports,
 * objects for memory without a type, memoryviews, and results like an argument. */
#define Py_TARGET_ABI3T 0x030F0000
#include <Python.h>

#include "dlpack_exchange.h"
#include "dlpack_buffer.h"

/* produce(owner, max_version) -> a capsule of three doubles, which owner keeps alive */
static PyObject *
produce(PyObject *module, PyObject *args)
{
    static double values[3] = {0, 1, 2};
    static const int64_t shape[1] = {3};
    const DLTensor t = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, 1, shape, NULL);
    PyObject *owner, *max_version;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &owner, &max_version))
        return NULL;
    return dlpack_py_produce_obj_args(owner, &t, 0, NULL, max_version, NULL, NULL);
}

/* total(x) -> the sum of an array of doubles */
static PyObject *
total(PyObject *module, PyObject *x)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_view v;
    double sum = 0;
    (void)module;
    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 1;
    want.order = 'C';
    if (dlpack_py_consume(x, &want, &v) < 0)
        return NULL;
    for (int64_t i = 0; i < v.tensor.shape[0]; i++)
        sum += ((const double *)dlpack_py_data(&v))[i];
    dlpack_py_release(&v);
    return PyFloat_FromDouble(sum);
}

/* copied(x) -> an object for a copy of an array */
static PyObject *
copied(PyObject *module, PyObject *x)
{
    dlpack_py_request request = {{0, 0}, {0, 0}, 0, {kDLCPU, 0}, DLPACK_PY_COPY_ALWAYS};
    dlpack_py_view v;
    (void)module;
    if (dlpack_py_consume_request(x, &request, NULL, &v) < 0)
        return NULL;
    return dlpack_py_object_steal(dlp_managed_from_view_steal(&v), DLPACK_PY_VERSIONED);
}

/* memory(x) -> a memoryview of an array */
static PyObject *
memory(PyObject *module, PyObject *x)
{
    (void)module;
    return dlpack_buffer_memoryview(x, NULL);
}

/* like(x) -> x's own tensor, as an array of x's library */
static PyObject *
like(PyObject *module, PyObject *x)
{
    dlpack_py_view v;
    (void)module;
    if (dlpack_py_consume(x, NULL, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(x, &v);
}

static PyMethodDef functions[] = {
    {"produce", produce, METH_VARARGS, NULL}, {"total", total, METH_O, NULL}, {"copied", copied, METH_O, NULL},
    {"memory", memory, METH_O, NULL},         {"like", like, METH_O, NULL},   {NULL, NULL, 0, NULL},
};

PyABIInfo_VAR(abi);

PyMODEXPORT_FUNC
PyModExport_probe_abi3t(void)
{
    static PySlot slots[] = {
        PySlot_STATIC_DATA(Py_mod_abi, &abi),
        PySlot_STATIC_DATA(Py_mod_name, "probe_abi3t"),
        PySlot_STATIC_DATA(Py_mod_methods, functions),
        PySlot_DATA(Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED),
        PySlot_DATA(Py_mod_gil, Py_MOD_GIL_NOT_USED),
        PySlot_END,
    };
    return slots;
}

/* The calls that an exchange is made of, to be counted: each function here is as short as an author's can be. The
 * array is float64 (3, 4), row-major, with its managed tensors embedded. */

#include "dlpack_py.h"

/* ---- Own and Plain: with an exchange table, and without -------------------- */

typedef struct {
    PyObject_HEAD
    dlpack_py_embedded embedded;
    int64_t shape[2], strides[2];
    double values[12];
} Own;

static PyObject *
own_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    Own *self = (Own *)type->tp_alloc(type, 0);
    DLTensor t;

    if (self == NULL)
        return NULL;
    self->shape[0] = 3;
    self->shape[1] = self->strides[0] = 4;
    self->strides[1] = 1;
    t = dlpack_py_cpu(self->values, DLPACK_PY_FLOAT64, 2, self->shape, self->strides);
    if (dlpack_py_embed(&self->embedded, (PyObject *)self, &t, 0) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
own_dealloc(PyObject *op)
{
    Py_TYPE(op)->tp_free(op);
}

static int
own_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    (void)request;
    *offer = dlpack_py_offer_embedded(&((Own *)op)->embedded);
    return 0;
}

static PyObject *
own_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return dlpack_py_produce_described(op, own_describe, args, nargs, kwnames);
}

/* The same without what is embedded: each export is allocated. */
static PyObject *
own_dlpack_allocated(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return dlpack_py_produce(op, &((Own *)op)->embedded.versioned.dl_tensor, 0, args, nargs, kwnames);
}

static PyMethodDef own_methods[] = {
    DLPACK_PY_METHODS(own_dlpack, dlpack_py_cpu_device),
    {"dlpack_allocated", (PyCFunction)(void (*)(void))own_dlpack_allocated, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject own_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Own",
    .tp_basicsize = sizeof(Own),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = own_new,
    .tp_dealloc = own_dealloc,
    .tp_methods = own_methods,
};

static PyTypeObject plain_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Plain",
    .tp_basicsize = sizeof(Own),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = own_new,
    .tp_dealloc = own_dealloc,
    .tp_methods = own_methods,
};

static PyObject *
own_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    dlpack_py_release(v); /* what it holds is of no interest here */
    return own_new(type, NULL, NULL);
}

DLPACK_PY_EXCHANGE_API_EMBEDDED(own_exchange, own_describe, own_make_steal, NULL, offsetof(Own, embedded));

/* ---- Consumers ------------------------------------------------------------- */

static const dlpack_py_want matrix = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C'};

static PyObject *
borrow(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    if (dlpack_py_borrow(obj, &matrix, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

static PyObject *
consume(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    if (dlpack_py_consume(obj, &matrix, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

/* Of arrays whose tables run no Python code, so that the first is still there when the last has come. */
static PyObject *
borrow_three(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    dlpack_py_view v[3];
    Py_ssize_t i;
    int failed = 0;
    for (i = 0; i < nargs && i < 3 && !failed; i++)
        failed = dlpack_py_borrow(args[i], &matrix, &v[i]) < 0; /* nothing to release, where it fails */
    while (i-- > 0)
        dlpack_py_release(&v[i]);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
make(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return own_new(&own_type, NULL, NULL);
}

/* make_like(like): a result as an array of the library that like is of. */
static PyObject *
make_like(PyObject *Py_UNUSED(module), PyObject *like)
{
    static const int64_t shape[2] = {3, 4};
    const DLTensor t = dlpack_py_cpu(NULL, DLPACK_PY_FLOAT64, 2, shape, NULL);
    dlpack_py_view v;
    if (dlpack_py_allocate_like(like, &t, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(like, &v);
}

/* ---- Counting -------------------------------------------------------------- */

#define CALLS 200

/* What is counted, and nothing else: its name is given to callgrind. */
__attribute__((noinline)) static int
dlpack_py_benchmark_loop(PyObject *function, PyObject *const *args, size_t nargs, PyObject *kwnames)
{
    int i;
    for (i = 0; i < CALLS; i++) {
        PyObject *result = PyObject_Vectorcall(function, args, nargs, kwnames);
        if (result == NULL)
            return -1;
        Py_DECREF(result);
    }
    return 0;
}

/* repeat(function, *args, **keywords): CALLS times. */
static PyObject *
repeat(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1 || dlpack_py_benchmark_loop(args[0], args + 1, (size_t)nargs - 1, kwnames) < 0)
        return NULL;
    Py_RETURN_NONE;
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"borrow", borrow, METH_O, NULL},
    {"consume", consume, METH_O, NULL},
    {"borrow_three", FASTCALL(borrow_three), METH_FASTCALL, NULL},
    {"make", make, METH_NOARGS, NULL},
    {"make_like", make_like, METH_O, NULL},
    {"repeat", FASTCALL(repeat), METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "calls", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_calls(void)
{
    PyObject *module = PyModule_Create(&module_def);
    Py_INCREF(&own_type);
    Py_INCREF(&plain_type);
    if (module == NULL || PyType_Ready(&own_type) < 0 || PyType_Ready(&plain_type) < 0 ||
        dlpack_py_exchange_add(&own_type, &own_exchange) < 0 ||
        PyModule_AddObject(module, "Own", (PyObject *)&own_type) < 0 ||
        PyModule_AddObject(module, "Plain", (PyObject *)&plain_type) < 0 ||
        PyModule_AddIntConstant(module, "CALLS", CALLS) < 0)
        return NULL;
    return module;
}

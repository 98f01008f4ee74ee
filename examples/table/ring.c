/* ring - a type with an exchange table, and a function whose result is an array of the caller's library
 * SPDX-License-Identifier: MIT
 *
 * Ring holds float64 values; positions are counted modulo its length. It exports itself by __dlpack__, and by the exchange
 * table of its type, which other libraries use without a call of Python code. Ring.from_dlpack makes a Ring over the
 * memory of another library, without a copy; Ring(length) allocates. mix takes vectors of any library, and returns one.
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end".
 */
#include <Python.h>
/* dlpack: begin */
#include "dlpack_exchange.h" /* includes dlpack_py.h */
/* dlpack: end */

typedef struct Ring {
    PyObject_HEAD
    /* dlpack: begin */
    dlpack_py_view view; /* the values, in memory of our own or of another library: the view knows who frees it */
    /* dlpack: end */
} Ring;

/* dlpack: begin */
static const dlpack_py_want ring_wants = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .order = 'C'};

static int
ring_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Ring *self = (Ring *)op;
    (void)request;
    *offer = dlpack_py_offer_view(op, &self->view.tensor, &self->view); /* read-only memory stays read-only */
    return 0;
}

static PyObject *
ring_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    Ring *self = (Ring *)type->tp_alloc(type, 0);
    if (self == NULL)
        dlpack_py_release(v);
    else
        dlpack_py_move(&self->view, v);
    return (PyObject *)self;
}

DLPACK_PY_DESCRIBED(ring, ring_describe);
DLPACK_PY_EXCHANGE_API(ring_table, ring_describe, ring_make_steal, &ring_wants);

static PyObject *
ring_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_view v;
    if (dlpack_py_from_dlpack(args, nargs, kwnames, &ring_wants, &v) < 0)
        return NULL;
    return ring_make_steal((PyTypeObject *)type, &v);
}

static double *
at(const dlpack_py_view *v, int64_t i)
{
    return (double *)dlpack_py_data(v) + i * v->tensor.strides[0]; /* strides count elements */
}

/* Would writing to one vector change elements of the other that are still to be read? Equal memory is fine. */
static int
clashes(const dlpack_py_view *in, const dlpack_py_view *to)
{
    const DLTensor *a = &in->tensor, *b = &to->tensor;
    const int is_equal = at(in, 0) == at(to, 0) && (a->shape[0] < 2 || *a->strides == *b->strides);
    return !is_equal && dlpack_py_may_overlap(a, in->flags, b, to->flags);
}

static PyObject *
mix(PyObject *Py_UNUSED(module), PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"a", "b", "out", NULL};
    PyObject *a, *b, *out = Py_None, *result = NULL;
    dlpack_py_view x = {0}, y = {0}, to = {0}; /* empty: released at the end, whatever was taken */
    dlpack_py_want want = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .name = "a"};
    DLTensor made;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|O:mix", names, &a, &b, &out) ||
        (out == Py_None && dlpack_py_check_like(a) < 0) || dlpack_py_consume(a, &want, &x) < 0)
        return NULL;
    made = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT64, 1, x.tensor.shape, NULL);
    want = dlpack_py_want_like(&x.tensor);
    want.name = "b";
    if (dlpack_py_consume(b, &want, &y) < 0)
        goto done;
    want.name = "out";
    want.writable = 1;
    if ((out != Py_None ? dlpack_py_consume(out, &want, &to) : dlpack_py_allocate_like(a, &made, &to)) < 0)
        goto done;
    if (clashes(&x, &to) || clashes(&y, &to)) {
        PyErr_SetString(PyExc_BufferError, "out: overlaps an input, equal or separate memory was wanted");
        goto done;
    }
    for (int64_t i = 0; i < to.tensor.shape[0]; i++)
        *at(&to, i) = (*at(&x, i) + *at(&y, i)) / 2;
    result = out != Py_None ? out : dlpack_py_return_like_steal(a, &to);
    if (result == out)
        Py_INCREF(out);
done:
    dlpack_py_release(&x);
    dlpack_py_release(&y);
    dlpack_py_release(&to);
    return result;
}
/* dlpack: end */

static PyObject *
ring_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"length", NULL};
    Py_ssize_t length;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:Ring", names, &length))
        return NULL;
    /* dlpack: begin */
    const int64_t shape[1] = {length};
    const DLTensor t = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT64, 1, shape, NULL);
    dlpack_py_view v;
    if (dlpack_py_allocate_like(Py_None, &t, &v) < 0) /* None has no table: CPU memory of our own */
        return NULL;
    if (length > 0)
        memset(dlpack_py_data(&v), 0, (size_t)length * sizeof(double));
    return ring_make_steal(type, &v);
    /* dlpack: end */
}

static PyObject *
ring_at(PyObject *op, PyObject *position)
{
    const dlpack_py_view *v = &((const Ring *)op)->view;
    const int64_t i = PyLong_AsLongLong(position), length = v->tensor.shape[0];

    if (i == -1 && PyErr_Occurred())
        return NULL;
    if (length == 0)
        return PyErr_Format(PyExc_IndexError, "the ring is empty");
    return PyFloat_FromDouble(*at(v, (i % length + length) % length));
}

static void
ring_dealloc(PyObject *op)
{
    /* dlpack: begin */
    dlpack_py_release(&((Ring *)op)->view);
    /* dlpack: end */
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef ring_methods[] = {
    {"at", ring_at, METH_O, PyDoc_STR("at($self, i, /)\n--\n\nThe value at i, modulo the length.")},
    /* dlpack: begin */
    DLPACK_PY_METHODS(ring_dlpack, ring_dlpack_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))ring_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nA Ring over the memory of x.")},
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ring_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "ring.Ring",
    .tp_doc = PyDoc_STR("Ring(length)\n--\n\nFloat64 values, 0 at first."),
    .tp_basicsize = sizeof(Ring),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = ring_new,
    .tp_dealloc = ring_dealloc,
    .tp_methods = ring_methods,
};

static PyMethodDef module_methods[] = {
    /* dlpack: begin */
    {"mix", (PyCFunction)(void (*)(void))mix, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("mix($module, /, a, b, out=None)\n--\n\nThe mean of two vectors: into out, or a new array like a.")},
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "ring", .m_size = -1,
                                        .m_methods = module_methods};

PyMODINIT_FUNC
PyInit_ring(void)
{
    PyObject *module = PyType_Ready(&ring_type) < 0 ? NULL : PyModule_Create(&module_def);
    Py_INCREF(&ring_type);
    if (module != NULL && PyModule_AddObject(module, "Ring", (PyObject *)&ring_type) < 0)
        Py_CLEAR(module);
    /* dlpack: begin */
    if (module != NULL && dlpack_py_exchange_add(&ring_type, &ring_table) < 0) /* after PyType_Ready */
        Py_CLEAR(module);
    /* dlpack: end */
    return module;
}

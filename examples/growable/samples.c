/* samples - a container that grows, and that exports and imports memory by DLPack
 * SPDX-License-Identifier: MIT
 *
 * Samples holds float64 values and can append a value, as bytearray and list can. While an array of another library
 * uses the memory of a Samples object, the memory must not move: Samples counts its exports and refuses to grow.
 * Samples.from_dlpack makes a Samples object over the memory of another library, without a copy.
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end".
 */
#include <Python.h>
/* dlpack: begin */
#include "dlpack_buffer.h" /* includes dlpack_py.h */
/* dlpack: end */

typedef struct Samples {
    PyObject_HEAD
    double *values;
    int64_t length, capacity;
    /* dlpack: begin */
    DLTensor tensor;           /* of the values; exports point to length as the shape */
    dlpack_py_counter exports; /* while it is not 0, the memory stays where it is */
    dlpack_py_view source;     /* the memory of another library; empty: the values are our own */
    /* dlpack: end */
} Samples;

static PyTypeObject samples_type;

/* dlpack: begin */
static int
samples_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Samples *s = (Samples *)self;
    static const int64_t one[1] = {1};
    (void)request;
    if (s->source.managed != NULL) /* read-only memory stays read-only */
        *offer = dlpack_py_offer_view(self, &s->source.tensor, &s->source);
    s->tensor = dlpack_py_cpu_tensor(s->values, DLPACK_PY_FLOAT64, 1, &s->length, one);
    offer->tensor = &s->tensor;
    offer->exports = &s->exports;
    return 0;
}

DLPACK_PY_DESCRIBED(samples, samples_describe);
DLPACK_BUFFER_DESCRIBED(samples, samples_describe);

static PyObject *
samples_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const dlpack_py_want vector = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .order = 'C'};
    dlpack_py_view v;
    Samples *s;

    if (dlpack_py_from_dlpack(args, nargs, kwnames, &vector, &v) < 0)
        return NULL;
    s = (Samples *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (s == NULL) {
        dlpack_py_release(&v);
        return NULL;
    }
    s->values = (double *)dlpack_py_data(&v);
    s->length = s->capacity = v.tensor.shape[0];
    dlpack_py_move(&s->source, &v);
    return (PyObject *)s;
}
/* dlpack: end */

/* Makes room for one more value. Returns 0, or -1 with BufferError or MemoryError. */
static int
samples_grow(Samples *self)
{
    const int64_t capacity = self->capacity < 8 ? 8 : self->capacity * 2;
    double *values;

    if (self->length < self->capacity)
        return 0;
    /* dlpack: begin */
    if (dlpack_py_exports_count(&self->exports) > 0 || self->source.managed != NULL) {
        PyErr_SetString(PyExc_BufferError, "the memory is shared with another array, it cannot move");
        return -1;
    }
    /* dlpack: end */
    values = (double *)PyMem_RawRealloc(self->values, (size_t)capacity * sizeof(double));
    if (values == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    self->values = values;
    self->capacity = capacity;
    return 0;
}

static PyObject *
samples_append(PyObject *op, PyObject *value)
{
    Samples *self = (Samples *)op;
    const double number = PyFloat_AsDouble(value);

    if ((number == -1.0 && PyErr_Occurred()) || samples_grow(self) < 0)
        return NULL;
    self->values[self->length++] = number;
    Py_RETURN_NONE;
}

static Py_ssize_t
samples_length(PyObject *op)
{
    return (Py_ssize_t)((Samples *)op)->length;
}

static PyObject *
samples_item(PyObject *op, Py_ssize_t i)
{
    const Samples *self = (const Samples *)op;
    if (i < 0 || i >= self->length) {
        PyErr_SetString(PyExc_IndexError, "there is no such sample");
        return NULL;
    }
    return PyFloat_FromDouble(self->values[i]);
}

static void
samples_dealloc(PyObject *op)
{
    Samples *self = (Samples *)op;
    /* dlpack: begin */
    if (self->source.managed != NULL)
        self->values = NULL; /* of another library, whose deleter frees it */
    dlpack_py_release(&self->source);
    /* dlpack: end */
    PyMem_RawFree(self->values);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef samples_methods[] = {
    {"append", samples_append, METH_O, PyDoc_STR("append($self, value, /)\n--\n\nAdd a value at the end.")},
    /* dlpack: begin */
    DLPACK_PY_METHODS(samples_dlpack, samples_dlpack_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))samples_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nSamples over the memory of x.")},
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods samples_as_sequence = {.sq_length = samples_length, .sq_item = samples_item};

/* dlpack: begin */
static PyBufferProcs samples_as_buffer = {samples_getbuffer, dlpack_buffer_release};
/* dlpack: end */

static PyTypeObject samples_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "samples.Samples",
    .tp_doc = PyDoc_STR("Samples()\n--\n\nFloat64 values, none at first."),
    .tp_basicsize = sizeof(Samples),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = samples_dealloc,
    .tp_methods = samples_methods,
    .tp_as_sequence = &samples_as_sequence,
    /* dlpack: begin */
    .tp_as_buffer = &samples_as_buffer,
    /* dlpack: end */
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "samples", .m_size = -1};

PyMODINIT_FUNC
PyInit_samples(void)
{
    PyObject *module;

    samples_type.tp_new = PyType_GenericNew; /* in the initializer above, cl.exe warns at /W4 (C4232) */
    module = PyType_Ready(&samples_type) < 0 ? NULL : PyModule_Create(&module_def);
    Py_INCREF(&samples_type);
    if (module != NULL && PyModule_AddObject(module, "Samples", (PyObject *)&samples_type) < 0)
        Py_CLEAR(module);
    return module;
}

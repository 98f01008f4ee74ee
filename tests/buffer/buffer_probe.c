/* Gives Python access to dlpack_buffer.h: types with the protocols that a test chooses, the methods of
 * DLPACK_BUFFER_METHODS on any type, and memoryviews of consumed tensors. */

#include "dlpack_buffer.h"
#include <structmember.h> /* T_OBJECT: PyMemberDef */

/* An object over the tensor of another array. */
typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
    dlpack_py_counter exports;
    PyObject *veto;  /* an exception that describe raises */
    PyObject *owner; /* offer->owner; NULL here means the thing itself, None means NULL */
    int counted;     /* 1: exports are counted, as for memory that can move */
    int pending;     /* 1: work on the data may be pending */
    int change;      /* 1: the offer has no strides, 2: its rank is negative */
    DLTensor changed;
} Thing;

static int
thing_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    static const dlpack_py_work_stream stream = {5, 0};
    Thing *self = (Thing *)op;
    (void)request;

    if (self->veto != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(self->veto), self->veto);
        return -1;
    }
    *offer = dlpack_py_offer_view(op, &self->view.tensor, &self->view);
    if (self->change != 0) {
        self->changed = self->view.tensor;
        self->changed.strides = NULL;
        self->changed.ndim = self->change == 2 ? -1 : self->changed.ndim;
        offer->tensor = &self->changed;
    }
    if (self->counted)
        offer->exports = &self->exports;
    if (self->owner != NULL)
        offer->owner = self->owner != Py_None ? self->owner : NULL;
    offer->pending = &stream;
    offer->pending_count = (size_t)self->pending;
    return 0;
}

DLPACK_PY_DESCRIBED(thing, thing_describe);
DLPACK_BUFFER_DESCRIBED(thing, thing_describe);
DLPACK_BUFFER_ARRAY_INTERFACE(thing, thing_describe);

/* Thing(array, counted=False, pending=False): array is a DLPack array on any device. */
static PyObject *
thing_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"array", "counted", "pending", NULL};
    dlpack_py_want want = dlpack_py_want_any();
    Thing *self = (Thing *)type->tp_alloc(type, 0);
    PyObject *array;

    want.device = -1;
    want.options = DLPACK_PY_WANT_NOTHING_PENDING;
    if (self != NULL &&
        (!PyArg_ParseTupleAndKeywords(args, keywords, "O|pp", names, &array, &self->counted, &self->pending) ||
         dlpack_py_consume(array, &want, &self->view) < 0))
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
thing_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    dlpack_py_release(&((Thing *)op)->view);
    Py_XDECREF(((Thing *)op)->veto);
    Py_XDECREF(((Thing *)op)->owner);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
thing_count(PyObject *op, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(dlpack_py_exports_count(&((Thing *)op)->exports));
}

static PyMemberDef thing_members[] = {
    {"veto", T_OBJECT, offsetof(Thing, veto), 0, NULL},
    {"owner", T_OBJECT, offsetof(Thing, owner), 0, NULL},
    {"change", T_INT, offsetof(Thing, change), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef thing_methods[] = {DLPACK_PY_METHODS(thing_dlpack, thing_dlpack_device), {NULL, NULL, 0, NULL}};
static PyMethodDef no_methods[] = {{NULL, NULL, 0, NULL}};
static PyGetSetDef thing_getters[] = {
    {"count", thing_count, NULL, NULL, NULL},
    {"__array_interface__", thing_array_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyGetSetDef only_count[] = {{"count", thing_count, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

/* kind(dlpack, buffer, interface): a new type with these protocols. */
static PyObject *
probe_kind(PyObject *Py_UNUSED(module), PyObject *args)
{
    int dlpack, buffer, interface;
    if (!PyArg_ParseTuple(args, "ppp", &dlpack, &buffer, &interface))
        return NULL;
    {
        PyType_Slot slots[] = {
            {Py_tp_new, (void *)thing_new},
            {Py_tp_dealloc, (void *)thing_dealloc},
            {Py_tp_members, thing_members},
            {Py_tp_methods, dlpack ? thing_methods : no_methods},
            {Py_tp_getset, interface ? thing_getters : only_count},
            {Py_bf_getbuffer, (void *)thing_getbuffer},
            {Py_bf_releasebuffer, (void *)dlpack_buffer_release},
            {0, NULL},
        };
        PyType_Spec spec = {"buffer_probe.Thing", sizeof(Thing), 0, Py_TPFLAGS_DEFAULT, slots};
        if (!buffer)
            memset(&slots[5], 0, sizeof(slots[5]));
        return PyType_FromSpec(&spec);
    }
}

/* add_methods(type): adds DLPACK_BUFFER_METHODS to the methods of a type. */
static PyObject *
probe_add_methods(PyObject *Py_UNUSED(module), PyObject *type)
{
    static PyMethodDef methods[] = {DLPACK_BUFFER_METHODS, {NULL, NULL, 0, NULL}};
    PyMethodDef *method;

    for (method = methods; method->ml_name != NULL; method++) {
        PyObject *descriptor = PyDescr_NewMethod((PyTypeObject *)type, method);
        if (descriptor == NULL || PyObject_SetAttrString(type, method->ml_name, descriptor) < 0) {
            Py_XDECREF(descriptor);
            return NULL;
        }
        Py_DECREF(descriptor);
    }
    Py_INCREF(type);
    return type;
}

/* view_of(obj, writable=False, any_device=False): a memoryview of the tensor of obj. */
static PyObject *
probe_view_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlpack_py_want want = dlpack_py_want_any();
    PyObject *obj;
    int writable = 0, any_device = 0;

    if (!PyArg_ParseTuple(args, "O|pp", &obj, &writable, &any_device))
        return NULL;
    want.writable = (char)writable;
    if (any_device) {
        want.device = -1;
        want.options = DLPACK_PY_WANT_NOTHING_PENDING;
    }
    return dlpack_buffer_memoryview(obj, &want);
}

/* get(obj, flags, ndim=0): dlpack_buffer_get. Returns a tuple (bytes of a contiguous buffer, itemsize, readonly, ndim,
 * format) after the buffer was released; ndim: the rank that DLPack arrays must have, 0: any. */
static PyObject *
probe_get(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlpack_py_want want = dlpack_py_want_any();
    PyObject *obj, *answer;
    Py_buffer b;
    int flags, ndim = 0;

    memset(&b, 0x55, sizeof(b));
    if (!PyArg_ParseTuple(args, "Oi|i", &obj, &flags, &ndim))
        return NULL;
    want.ndim = ndim;
    if (dlpack_buffer_get(obj, ndim == 0 ? NULL : &want, &b, flags) < 0) {
        if (b.obj != NULL)
            PyErr_SetString(PyExc_SystemError, "obj is not NULL after a failure");
        return NULL;
    }
    answer = Py_BuildValue("NnNiz", PyBytes_FromStringAndSize((const char *)b.buf, b.len), b.itemsize,
                           PyBool_FromLong(b.readonly), b.ndim, b.format);
    PyBuffer_Release(&b);
    return answer;
}

/* fallback(obj): calls dlpack_buffer_fallback, and returns its result, 0; -1 raises. */
static PyObject *
probe_fallback(PyObject *Py_UNUSED(module), PyObject *obj)
{
    DLManagedTensorVersioned *managed = NULL;
    const int result = dlpack_buffer_fallback(obj, &managed);
    if (managed != NULL)
        dlp_delete(managed, DLPACK_PY_VERSIONED);
    return result < 0 ? NULL : PyLong_FromLong(result);
}

/* request(obj, flags): calls bf_getbuffer of obj with PyBUF_ flags. Returns a tuple (address, len, itemsize, readonly,
 * ndim, format, shape, strides). */
static PyObject *
probe_request(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *obj, *shape, *strides, *answer;
    Py_buffer b;
    int flags, i;

    if (!PyArg_ParseTuple(args, "Oi", &obj, &flags) || PyObject_GetBuffer(obj, &b, flags) < 0)
        return NULL;
    shape = PyList_New(0);
    strides = PyList_New(0);
    for (i = 0; b.shape != NULL && i < b.ndim; i++) {
        PyObject *extent = PyLong_FromSsize_t(b.shape[i]);
        (void)PyList_Append(shape, extent);
        Py_XDECREF(extent);
    }
    for (i = 0; b.strides != NULL && i < b.ndim; i++) {
        PyObject *stride = PyLong_FromSsize_t(b.strides[i]);
        (void)PyList_Append(strides, stride);
        Py_XDECREF(stride);
    }
    answer = Py_BuildValue("(NnniisNN)", PyLong_FromVoidPtr(b.buf), b.len, b.itemsize, b.readonly, b.ndim, b.format,
                           b.shape == NULL && b.ndim > 0 ? (Py_DECREF(shape), Py_BuildValue("")) : shape,
                           b.strides == NULL && b.ndim > 0 ? (Py_DECREF(strides), Py_BuildValue("")) : strides);
    PyBuffer_Release(&b);
    if (PyErr_Occurred())
        Py_CLEAR(answer);
    return answer;
}

/* dtype_of(format, itemsize): the dtype of a buffer's format as text, or None. */
static PyObject *
probe_dtype_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    char text[DLPACK_PY_TEXT_SIZE];
    Py_ssize_t itemsize;
    const char *format;
    uint32_t dtype;

    if (!PyArg_ParseTuple(args, "zn", &format, &itemsize))
        return NULL;
    dtype = dlp_buffer_dtype(format, itemsize);
    return Py_BuildValue("z", dtype == 0 ? NULL : dlpack_py_dtype_text(dtype, text));
}

/* ndim_of((rows, columns), (stride, stride), format="d", itemsize=8): the rank of a buffer with strides in bytes. */
static PyObject *
probe_ndim_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    Py_ssize_t shape[2], strides[2], itemsize = 8;
    const char *format = "d";
    double value = 0;
    Py_buffer b;
    DLTensor t;

    if (!PyArg_ParseTuple(args, "(nn)(nn)|zn", &shape[0], &shape[1], &strides[0], &strides[1], &format, &itemsize))
        return NULL;
    memset(&b, 0, sizeof(b));
    b.buf = &value;
    b.itemsize = itemsize;
    b.format = (char *)(uintptr_t)format;
    b.ndim = 2;
    b.shape = shape;
    b.strides = strides;
    return dlp_buffer_tensor(&b, dims, &t) < 0 ? NULL : PyLong_FromLong(t.ndim);
}

static void
rude_destructor(PyObject *capsule)
{
    PyErr_SetString(PyExc_RuntimeError, (const char *)PyCapsule_GetPointer(capsule, NULL));
}

/* rude(): an object whose destructor leaves an exception set. */
static PyObject *
probe_rude(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static char text[] = "left behind";
    return PyCapsule_New(text, NULL, rude_destructor);
}

/* release_raising(obj, flags, exception): raises the exception, and releases a buffer of obj while it is in flight. */
static PyObject *
probe_release_raising(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *obj, *exception;
    Py_buffer buffer;
    int flags;

    if (!PyArg_ParseTuple(args, "OiO", &obj, &flags, &exception) || PyObject_GetBuffer(obj, &buffer, flags) < 0)
        return NULL;
    if (PyObject_SetAttrString(obj, "owner", Py_None) < 0) /* now only the buffer holds the owner */
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    PyBuffer_Release(&buffer);
    return NULL;
}

static PyMethodDef functions[] = {
    {"ndim_of", probe_ndim_of, METH_VARARGS, NULL},
    {"dtype_of", probe_dtype_of, METH_VARARGS, NULL},
    {"kind", probe_kind, METH_VARARGS, NULL},
    {"add_methods", probe_add_methods, METH_O, NULL},
    {"view_of", probe_view_of, METH_VARARGS, NULL},
    {"fallback", probe_fallback, METH_O, NULL},
    {"get", probe_get, METH_VARARGS, NULL},
    {"request", probe_request, METH_VARARGS, NULL},
    {"rude", probe_rude, METH_NOARGS, NULL},
    {"release_raising", probe_release_raising, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "buffer_probe", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_buffer_probe(void)
{
    return dlpack_py_init() < 0 ? NULL : PyModule_Create(&module_def);
}

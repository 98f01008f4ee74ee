/* The producer functions that the examples do not cover. A Thing exports any tensor over memory that the caller keeps,
 * by each export function. wrap and steal make capsules of tensors that no Python object owns. */

#include "dlpack_exchange.h"

/* ---- Thing ---------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    DLTensor tensor;
    int64_t shape[DLPACK_PY_MAX_NDIM], strides[DLPACK_PY_MAX_NDIM];
    uint64_t flags, later; /* later: flags that freeze() adds */
    uint32_t options;
    PyObject *veto;              /* veto(max_version, copy): raises, or returns whether to export; NULL: no veto */
    dlpack_py_embedded embedded; /* filled if is_embedded */
    int is_embedded;
    int is_elsewhere; /* the offer has tensor, although is_embedded is set */
    dlpack_py_counter exports;
    int is_counted, is_copy, has_no_owner, has_no_tensor;
    int has_empty_device; /* the offer names a device whose operations are NULL */
    int pending;          /* the number of pending streams in the offer */
    dlpack_py_operations empty_device;
} Thing;

static int
parse_extents(PyObject *tuple, int64_t *extents)
{
    Py_ssize_t i;
    for (i = 0; i < PyTuple_Size(tuple) && i < DLPACK_PY_MAX_NDIM; i++)
        extents[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* Thing(data, shape, strides=None, *, dtype, device, byte_offset, flags, options, veto, embedded, counted,
 * is_copy, no_owner, no_tensor, empty_device, pending): data is an address; without strides, tensor.strides is NULL. */
static int
thing_init(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"",         "",          "strides",      "dtype",    "device",  "byte_offset",
                               "flags",    "options",   "veto",         "embedded", "counted", "is_copy",
                               "no_owner", "no_tensor", "empty_device", "pending",  NULL};
    Thing *self = (Thing *)op;
    unsigned long long data, byte_offset = 0, flags = 0;
    unsigned int options = 0;
    int code = 2, bits = 64, lanes = 1, type = 1, id = 0;
    PyObject *shape, *strides = Py_None, *veto = NULL;
    DLTensor *t = &self->tensor;

    if (!PyArg_ParseTupleAndKeywords(args, names, "KO!|O$(iii)(ii)KKIOppppppi", keywords, &data, &PyTuple_Type, &shape,
                                     &strides, &code, &bits, &lanes, &type, &id, &byte_offset, &flags, &options, &veto,
                                     &self->is_embedded, &self->is_counted, &self->is_copy, &self->has_no_owner,
                                     &self->has_no_tensor, &self->has_empty_device, &self->pending))
        return -1;
    self->empty_device.type = type;
    if (parse_extents(shape, self->shape) < 0 || (strides != Py_None && parse_extents(strides, self->strides) < 0))
        return -1;
    t->data = (void *)(uintptr_t)data;
    t->device = dlp_make_device(type, id);
    t->ndim = (int32_t)PyTuple_Size(shape);
    t->dtype.code = (uint8_t)code;
    t->dtype.bits = (uint8_t)bits;
    t->dtype.lanes = (uint16_t)lanes;
    t->shape = self->shape;
    t->strides = strides == Py_None ? NULL : self->strides;
    t->byte_offset = byte_offset;
    self->flags = flags;
    self->options = options;
    Py_XINCREF(veto);
    self->veto = veto;
    return self->is_embedded ? dlpack_py_embed(&self->embedded, op, t, flags) : 0;
}

static void
thing_dealloc(PyObject *op)
{
    Thing *self = (Thing *)op;
    Py_XDECREF(self->veto);
    Py_TYPE(op)->tp_free(op);
}

static int
thing_veto(PyObject *owner, const dlpack_py_request *request)
{
    PyObject *go_on = PyObject_CallFunction(((Thing *)owner)->veto, "(II)i", request->max_version.major,
                                            request->max_version.minor, request->copy);
    const int yes = go_on == NULL ? 0 : PyObject_IsTrue(go_on);
    Py_XDECREF(go_on);
    return yes > 0 ? 0 : -1;
}

/* Fills every field of an offer. */
static int
thing_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    static const dlpack_py_work_stream pending[2] = {{0, 1}, {0, 2}};
    Thing *self = (Thing *)op;
    *offer = self->is_embedded ? dlpack_py_offer_embedded(&self->embedded)
                               : dlpack_py_offer_make(op, &self->tensor, self->flags);
    if (self->is_elsewhere)
        offer->tensor = &self->tensor;
    offer->options = self->options;
    offer->flags |= self->later;
    if (self->is_counted)
        offer->exports = &self->exports;
    offer->is_copy = self->is_copy;
    if (self->has_empty_device)
        offer->operations = &self->empty_device;
    offer->pending = pending;
    offer->pending_count = (size_t)self->pending;
    if (self->has_no_owner)
        offer->owner = NULL;
    if (self->has_no_tensor)
        offer->tensor = NULL;
    return request == NULL || self->veto == NULL ? 0 : thing_veto(op, request);
}

DLPACK_PY_DESCRIBED(thing, thing_describe);

/* freeze(): makes the Thing read-only, even if it has an embedded tensor. */
static PyObject *
thing_freeze(PyObject *op, PyObject *Py_UNUSED(unused))
{
    ((Thing *)op)->later = DLPACK_PY_FLAG_READ_ONLY;
    Py_RETURN_NONE;
}

/* move(address): sets the address of the data, even if the Thing has an embedded tensor. */
static PyObject *
thing_move(PyObject *op, PyObject *address)
{
    Thing *self = (Thing *)op;
    self->tensor.data = PyLong_AsVoidPtr(address);
    self->is_elsewhere = 1;
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* exports(): the number of live exports. */
static PyObject *
thing_exports(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(dlpack_py_exports_count(&((Thing *)op)->exports));
}

static PyObject *
thing_produce(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Thing *self = (Thing *)op;
    return dlpack_py_produce(self->has_no_owner ? NULL : op, self->has_no_tensor ? NULL : &self->tensor, self->flags,
                             args, nargs, kwnames);
}

/* produce_flagged(): calls the header as a vectorcallfunc that passes its nargsf on. */
static PyObject *
thing_produce_flagged(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Thing *self = (Thing *)op;
    PyObject *args[2] = {NULL, op};
    return dlpack_py_produce(op, &self->tensor, self->flags, args + 1, (Py_ssize_t)PY_VECTORCALL_ARGUMENTS_OFFSET,
                             NULL);
}

static PyObject *
thing_produce_args(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = NULL, *max_version = NULL, *dl_device = NULL, *copy = NULL;
    Thing *self = (Thing *)op;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|$OOOO", keywords, &stream, &max_version, &dl_device, &copy))
        return NULL;
    return dlpack_py_produce_obj_args(self->has_no_owner ? NULL : op, self->has_no_tensor ? NULL : &self->tensor,
                                      self->flags, stream, max_version, dl_device, copy);
}

/* answer(copy): as __dlpack__(max_version=(1, 3)), with any value of request.copy. */
static PyObject *
thing_answer(PyObject *op, PyObject *copy)
{
    dlpack_py_request request = {.max_version = {1, 3}, .copy = (int32_t)PyLong_AsLong(copy)};
    dlpack_py_offer offer;
    if (PyErr_Occurred() || thing_describe(op, &request, &offer) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

static PyMethodDef thing_methods[] = {
    DLPACK_PY_METHODS(thing_dlpack, thing_dlpack_device),
    {"answer", thing_answer, METH_O, NULL},
    {"freeze", thing_freeze, METH_NOARGS, NULL},
    {"move", thing_move, METH_O, NULL},
    {"exports", thing_exports, METH_NOARGS, NULL},
    {"produce", (PyCFunction)(void (*)(void))thing_produce, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"produce_flagged", thing_produce_flagged, METH_NOARGS, NULL},
    {"produce_args", (PyCFunction)(void (*)(void))thing_produce_args, METH_VARARGS | METH_KEYWORDS, NULL},
    {"cpu_device", dlpack_py_cpu_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject thing_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "producer_probe.Thing",
    .tp_basicsize = sizeof(Thing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = thing_init,
    .tp_dealloc = thing_dealloc,
    .tp_methods = thing_methods,
};

/* ---- Functions ------------------------------------------------------------- */

static void
call_and_drop(void *context)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *callable = (PyObject *)context, *result = PyObject_CallFunctionObjArgs(callable, NULL);
    if (result == NULL)
        PyErr_WriteUnraisable(callable);
    Py_XDECREF(result);
    Py_DECREF(callable);
    PyGILState_Release(state);
}

/* wrap(thing, free=None): a capsule over the memory of the thing; its deleter calls free. A malformed tensor: None. */
static PyObject *
probe_wrap(PyObject *Py_UNUSED(module), PyObject *args)
{
    DLManagedTensorVersioned *managed;
    PyObject *object, *callable = NULL;
    const Thing *thing;

    if (!PyArg_ParseTuple(args, "O!|O", &thing_type, &object, &callable))
        return NULL;
    thing = (const Thing *)object;
    managed = dlpack_py_wrap(&thing->tensor, thing->flags, callable, callable == NULL ? NULL : call_and_drop);
    if (managed == NULL)
        Py_RETURN_NONE;
    Py_XINCREF(callable);
    return dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
}

/* steal(address), steal_legacy(address): a capsule from the header for a managed tensor of the caller. */
static PyObject *
probe_steal(PyObject *Py_UNUSED(module), PyObject *address)
{
    return dlpack_py_capsule_steal(PyLong_AsVoidPtr(address), DLPACK_PY_VERSIONED);
}

static PyObject *
probe_steal_legacy(PyObject *Py_UNUSED(module), PyObject *address)
{
    return dlpack_py_capsule_steal(PyLong_AsVoidPtr(address), DLPACK_PY_LEGACY);
}

/* object_steal(address, legacy=False): an object from the header that owns a managed tensor of the caller. */
static PyObject *
probe_object_steal(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long address;
    int legacy = 0;
    if (!PyArg_ParseTuple(args, "K|p", &address, &legacy))
        return NULL;
    return dlpack_py_object_steal((void *)(uintptr_t)address, legacy ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED);
}

/* export_buffer(object, **keywords of __dlpack__): bytes of an object with the buffer protocol. The owner is
 * a memoryview, so the object counts each export as a buffer. */
static PyObject *
probe_export_buffer(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *capsule = NULL, *memory = PyMemoryView_FromObject(args[0]);
    const Py_buffer *buffer;
    int64_t length;
    DLTensor t;

    if (memory == NULL)
        return NULL;
    buffer = PyMemoryView_GET_BUFFER(memory);
    length = buffer->len;
    t = dlpack_py_cpu_tensor(buffer->buf, DLPACK_PY_UINT8, 1, &length, NULL);
    capsule =
        dlpack_py_produce(memory, &t, buffer->readonly ? DLPACK_PY_FLAG_READ_ONLY : 0, args + 1, nargs - 1, kwnames);
    Py_DECREF(memory);
    return capsule;
}

static PyMethodDef functions[] = {
    {"export_buffer", (PyCFunction)(void (*)(void))probe_export_buffer, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"object_steal", probe_object_steal, METH_VARARGS, NULL},
    {"wrap", probe_wrap, METH_VARARGS, NULL},
    {"steal", probe_steal, METH_O, NULL},
    {"steal_legacy", probe_steal_legacy, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "producer_probe",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_producer_probe(void)
{
    PyObject *self;

    if (PyType_Ready(&thing_type) < 0)
        return NULL;
    self = PyModule_Create(&module);
    if (self == NULL)
        return NULL;
    Py_INCREF(&thing_type);
    if (PyModule_AddObject(self, "Thing", (PyObject *)&thing_type) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_OFFER_READ_ONLY_UNKNOWN) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_OFFER_REFUSE_NEGATIVE) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_OFFER_COPY_NEGATIVE) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_OFFER_COPY_READ_ONLY) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

/* Both ends of the exchange API: Holder has a table of the header. table() makes tables of another library, whose
 * functions call Python callables. borrow, allocate_like and return_like call functions of the header. */

#include "dlpack_exchange.h"
#include "../dtype_of.h"

#if DLPACK_PY_HAS_EXCHANGE_API

/* ---- Holder --------------------------------------------------------------- */

/* Holder(source, *, flags=0, options=0, veto=None, null_strides=False, empty_device=False, ready=None): owns a view and
 * offers it with more flags and options; with empty_device also with a device whose operations are NULL; with ready,
 * for pinned memory, with work that is pending on a stream of CUDA. */
typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
    DLTensor tensor; /* the tensor of the view, or a copy of it without strides */
    uint64_t flags;
    uint32_t options;
    PyObject *veto;  /* called before anything is exported; NULL: none */
    PyObject *ready; /* orders the pending work: raises, or returns False where the tensor becomes invalid */
    dlpack_py_operations device;
    dlpack_py_work_stream pending;
    int has_device;
} Holder;

static PyTypeObject holder_type;

static const dlpack_py_want anywhere = {.device = DLPACK_PY_ANY_DEVICE};

static PyObject *
holder_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    Holder *self = (Holder *)type->tp_alloc(type, 0);
    if (self == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    dlpack_py_move(&self->view, v);
    self->tensor = self->view.tensor;
    return (PyObject *)self;
}

/* make_ready of a Holder. */
static int
holder_make_ready(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    Holder *self = (Holder *)offer->owner;
    PyObject *result = PyObject_CallNoArgs(self->ready);
    (void)request;
    (void)plan;
    if (result == Py_False)
        self->tensor.ndim = -1;
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static PyObject *
holder_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"", "flags", "options", "veto", "null_strides", "empty_device", "ready", NULL};
    unsigned long long flags = 0;
    unsigned int options = 0;
    PyObject *source, *veto = NULL, *ready = NULL;
    int null_strides = 0, empty_device = 0;
    dlpack_py_view v;
    Holder *self;

    if (!PyArg_ParseTupleAndKeywords(args, names, "O|$KIOppO", keywords, &source, &flags, &options, &veto,
                                     &null_strides, &empty_device, &ready) ||
        dlpack_py_consume(source, empty_device || ready != NULL ? &anywhere : NULL, &v) < 0)
        return NULL;
    self = (Holder *)holder_make_steal(type, &v);
    if (self == NULL)
        return NULL;
    self->flags = flags;
    self->options = options;
    self->has_device = empty_device || ready != NULL;
    self->device.type = empty_device ? (int32_t)self->tensor.device.device_type : (int32_t)kDLCUDA;
    self->device.make_ready = ready != NULL ? holder_make_ready : NULL;
    Py_XINCREF(ready);
    self->ready = ready;
    Py_XINCREF(veto);
    self->veto = veto;
    if (null_strides)
        self->tensor.strides = NULL;
    return (PyObject *)self;
}

static void
holder_dealloc(PyObject *op)
{
    dlpack_py_release(&((Holder *)op)->view);
    Py_XDECREF(((Holder *)op)->veto);
    Py_XDECREF(((Holder *)op)->ready);
    Py_TYPE(op)->tp_free(op);
}

static int
holder_veto(PyObject *op, const dlpack_py_request *request)
{
    PyObject *result = request == NULL
                           ? PyObject_CallFunction(((Holder *)op)->veto, NULL)
                           : PyObject_CallFunction(((Holder *)op)->veto, "(II)i", request->max_version.major,
                                                   request->max_version.minor, request->copy);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
holder_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Holder *self = (Holder *)op;
    *offer = dlpack_py_offer_view(op, &self->tensor, &self->view);
    offer->flags |= self->flags;
    offer->options |= self->options;
    if (self->has_device)
        offer->operations = &self->device;
    if (self->ready != NULL) {
        self->pending.handle = 7;
        offer->pending = &self->pending;
        offer->pending_count = 1;
    }
    return self->veto == NULL ? 0 : holder_veto(op, request);
}

static const dlpack_py_want holdable = {.device = DLPACK_PY_ANY_DEVICE, .max_ndim = 4};

DLPACK_PY_EXCHANGE_API(holder_exchange, holder_describe, holder_make_steal, &holdable);

static PyObject *
holder_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return dlpack_py_produce_described(op, holder_describe, args, nargs, kwnames);
}

static PyObject *
holder_device(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return dlpack_py_produce_device(&((Holder *)op)->tensor);
}

static PyMethodDef holder_methods[] = {DLPACK_PY_METHODS(holder_dlpack, holder_device), {NULL, NULL, 0, NULL}};

static PyTypeObject holder_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exchange_probe.Holder",
    .tp_basicsize = sizeof(Holder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = holder_new,
    .tp_dealloc = holder_dealloc,
    .tp_methods = holder_methods,
};

/* ---- Moment ---------------------------------------------------------------- */

/* Moment(address, shape, strides, *, options=0): a type that does not store shape and strides in elements, such as
 * NumPy's: describe writes them into temporary memory, which the next call overwrites. */
typedef struct {
    PyObject_HEAD
    void *data;
    int32_t ndim;
    int32_t shape[4], strides[4];
    uint32_t options;
} Moment;

static PyTypeObject moment_type;

static PyObject *
moment_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"", "", "", "options", NULL};
    PyObject *shape, *strides;
    unsigned long long address;
    unsigned int options = 0;
    Moment *self;
    int32_t i;

    if (!PyArg_ParseTupleAndKeywords(args, names, "KO!O!|$I", keywords, &address, &PyTuple_Type, &shape, &PyTuple_Type,
                                     &strides, &options))
        return NULL;
    self = (Moment *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->data = (void *)(uintptr_t)address;
    self->ndim = (int32_t)PyTuple_Size(shape);
    self->options = options;
    for (i = 0; i < self->ndim; i++) {
        self->shape[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(shape, i));
        self->strides[i] = (int32_t)PyLong_AsLong(PyTuple_GetItem(strides, i));
    }
    return (PyObject *)self;
}

static int
moment_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    static DLTensor t;
    static int64_t shape[4], strides[4];
    const Moment *self = (const Moment *)op;
    int32_t i;

    (void)request;
    for (i = 0; i < self->ndim; i++) {
        shape[i] = self->shape[i];
        strides[i] = self->strides[i];
    }
    t = dlpack_py_cpu_tensor(self->data, DLPACK_PY_FLOAT64, self->ndim, shape, strides);
    offer->tensor = &t;
    offer->options = self->options;
    return 0;
}

static PyObject *
moment_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    (void)type;
    dlpack_py_release(v);
    PyErr_SetString(PyExc_BufferError, "a Moment owns nothing");
    return NULL;
}

DLPACK_PY_DESCRIBED(moment, moment_describe);
DLPACK_PY_EXCHANGE_API(moment_exchange, moment_describe, moment_make_steal, NULL);

static PyMethodDef moment_methods[] = {DLPACK_PY_METHODS(moment_dlpack, moment_dlpack_device), {NULL, NULL, 0, NULL}};

static PyTypeObject moment_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exchange_probe.Moment",
    .tp_basicsize = sizeof(Moment),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = moment_new,
    .tp_methods = moment_methods,
};

/* ---- Tables of another library ------------------------------------------------- */

/* Converts the result of a callable to the result of a table function:
 *
 *   an address (int)   0, and *out is the address
 *   None               0, and *out is unchanged
 *   False              -1, without an exception
 *   ()                 0, with an exception
 *   raised             -1, with an exception
 */
static int
answer(PyObject *result, void **out)
{
    int returned = 0;
    if (result == NULL)
        return -1;
    if (result == Py_False)
        returned = -1;
    else if (PyTuple_Check(result))
        PyErr_SetString(PyExc_KeyError, "beside success");
    else if (result != Py_None)
        *out = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return returned;
}

static int
foreign_owned(void *object, DLManagedTensorVersioned **out)
{
    void *address = *out;
    const int returned = answer(PyObject_CallMethod((PyObject *)object, "owned", NULL), &address);
    *out = (DLManagedTensorVersioned *)address;
    return returned;
}

static int
foreign_borrowed(void *object, DLTensor *out)
{
    void *address = NULL;
    const int returned = answer(PyObject_CallMethod((PyObject *)object, "borrowed", NULL), &address);
    if (address != NULL)
        *out = *(DLTensor *)address;
    return returned;
}

static PyObject *hooks; /* a dict: "allocate", "make" */

/* allocate(ndim, shape, report) may call report(kind, message). */
typedef struct {
    void *context;
    void (*set_error)(void *, const char *, const char *);
} Report;

static PyObject *
report_call(PyObject *capsule, PyObject *args)
{
    const Report *report = (const Report *)PyCapsule_GetPointer(capsule, "report");
    const char *kind, *message;
    if (!PyArg_ParseTuple(args, "zz", &kind, &message))
        return NULL;
    report->set_error(report->context, kind, message);
    Py_RETURN_NONE;
}

static int
foreign_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                 void (*set_error)(void *, const char *, const char *))
{
    static PyMethodDef method = {"report", report_call, METH_VARARGS, NULL};
    Report report = {context, set_error};
    PyObject *capsule = PyCapsule_New(&report, "report", NULL), *call = PyCFunction_New(&method, capsule);
    void *address = *out;
    const int returned = answer(PyObject_CallFunction(PyDict_GetItemString(hooks, "allocate"), "iLO", prototype->ndim,
                                                      (long long)prototype->shape[0], call),
                                &address);
    if (returned == 0 && (prototype->data != NULL || prototype->strides != NULL || prototype->byte_offset != 0))
        PyErr_SetString(PyExc_SystemError, "the prototype has more than a rank, a shape, a dtype and a device");
    Py_DECREF(capsule);
    Py_DECREF(call);
    *out = (DLManagedTensorVersioned *)address;
    prototype->device = dlp_make_device(kDLCUDA, 7); /* the caller must ignore these changes */
    prototype->dtype.bits = 8;
    prototype->shape[0] = -9;
    return returned;
}

/* make(address of the managed tensor) returns the address of an object; foreign_make takes a reference to it. */
static int
foreign_make(DLManagedTensorVersioned *managed, void **out)
{
    const int returned =
        answer(PyObject_CallFunction(PyDict_GetItemString(hooks, "make"), "N", PyLong_FromVoidPtr(managed)), out);
    Py_XINCREF((PyObject *)*out);
    return returned;
}

static int
foreign_stream(DLDeviceType Py_UNUSED(type), int32_t Py_UNUSED(id), void **Py_UNUSED(out))
{
    PyErr_SetString(PyExc_SystemError, "a consumer on the CPU does not ask for a stream (X4)");
    return -1;
}

/* table(*, major=1, prev=None, without=None, name="dlpack_exchange_api", allocator_of=None): a capsule with a table.
 * prev: capsule of prev_api; without: the function that is NULL; allocator_of: a capsule whose allocator is used. */
static PyObject *
probe_table(PyObject *Py_UNUSED(module), PyObject *args, PyObject *names)
{
    static char *keywords[] = {"major", "prev", "without", "name", "allocator_of", NULL};
    static struct Kept { /* a table lives as long as the process */
        DLPackExchangeAPI table;
        struct Kept *others;
    } *all;
    struct Kept *kept;
    DLPackExchangeAPI *table;
    const char *without = "", *name = "dlpack_exchange_api";
    unsigned int major = 1;
    PyObject *prev = NULL, *other = NULL;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|$IOssO", keywords, &major, &prev, &without, &name, &other))
        return NULL;
    kept = (struct Kept *)calloc(1, sizeof(*kept));
    if (kept == NULL)
        return PyErr_NoMemory();
    kept->others = all;
    all = kept;
    table = &kept->table;
    table->header.version.major = major;
    table->header.version.minor = 3;
    if (prev != NULL)
        table->header.prev_api = (DLPackExchangeAPIHeader *)PyCapsule_GetPointer(prev, "dlpack_exchange_api");
    if (strcmp(without, "allocator") != 0)
        table->managed_tensor_allocator =
            other == NULL ? foreign_allocate
                          : ((const DLPackExchangeAPI *)PyCapsule_GetPointer(other, "dlpack_exchange_api"))
                                ->managed_tensor_allocator;
    if (strcmp(without, "owned") != 0)
        table->managed_tensor_from_py_object_no_sync = foreign_owned;
    if (strcmp(without, "make") != 0)
        table->managed_tensor_to_py_object_no_sync = foreign_make;
    if (strcmp(without, "borrowed") != 0)
        table->dltensor_from_py_object_no_sync = foreign_borrowed;
    if (strcmp(without, "stream") != 0)
        table->current_work_stream = foreign_stream;
    return PyCapsule_New(table, strcmp(name, "dlpack_exchange_api") == 0 ? "dlpack_exchange_api" : "dlpack_other_api",
                         NULL);
}

/* set_previous(capsule, previous): sets prev_api of an existing table, so that a chain may be a ring. */
static PyObject *
probe_set_previous(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *previous;
    if (!PyArg_ParseTuple(args, "OO", &capsule, &previous))
        return NULL;
    ((DLPackExchangeAPI *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api"))->header.prev_api =
        (DLPackExchangeAPIHeader *)PyCapsule_GetPointer(previous, "dlpack_exchange_api");
    Py_RETURN_NONE;
}

static PyObject *
probe_hook(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *name, *function;
    if (!PyArg_ParseTuple(args, "OO", &name, &function) || PyDict_SetItem(hooks, name, function) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- A table's functions, called as another library does ------------------------ */

static const DLPackExchangeAPI *
table_of(PyObject *capsule)
{
    return (const DLPackExchangeAPI *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
}

static PyObject *
tuple_of(const int64_t *extents, int32_t ndim)
{
    PyObject *tuple = PyTuple_New(ndim), *extent;
    int32_t i;
    for (i = 0; tuple != NULL && i < ndim; i++) {
        extent = PyLong_FromLongLong(extents[i]);
        if (extent == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, extent);
    }
    return tuple;
}

static PyObject *
describe(const DLTensor *t)
{
    PyObject *shape = tuple_of(t->shape, t->ndim), *strides = tuple_of(t->strides, t->strides == NULL ? 0 : t->ndim);
    return Py_BuildValue("NNN", PyLong_FromVoidPtr((char *)t->data + t->byte_offset), shape, strides);
}

/* call_owned(table, object, out=True): a capsule. *out is garbage before the call, and NULL after a failure. */
static PyObject *
probe_call_owned(PyObject *Py_UNUSED(module), PyObject *args)
{
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)1;
    PyObject *capsule, *object;
    int out = 1;

    if (!PyArg_ParseTuple(args, "OO|p", &capsule, &object, &out))
        return NULL;
    if (table_of(capsule)->managed_tensor_from_py_object_no_sync(object == Py_None ? NULL : object,
                                                                 out ? &managed : NULL) == 0)
        return dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
    if (out && managed != NULL)
        PyErr_SetString(PyExc_SystemError, "*out is not NULL after a failure");
    return NULL;
}

/* call_borrowed(table, object, out=True): (data, shape, strides). */
static PyObject *
probe_call_borrowed(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *object;
    DLTensor t;
    int out = 1;

    if (!PyArg_ParseTuple(args, "OO|p", &capsule, &object, &out) ||
        table_of(capsule)->dltensor_from_py_object_no_sync(object == Py_None ? NULL : object, out ? &t : NULL) != 0)
        return NULL;
    return describe(&t);
}

/* call_make(table, address of a managed tensor, out=True): the object. */
static PyObject *
probe_call_make(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *address;
    void *object = &capsule;
    int out = 1;

    if (!PyArg_ParseTuple(args, "OO|p", &capsule, &address, &out))
        return NULL;
    if (table_of(capsule)->managed_tensor_to_py_object_no_sync((DLManagedTensorVersioned *)PyLong_AsVoidPtr(address),
                                                               out ? &object : NULL) == 0) {
        if (object == NULL)
            PyErr_SetString(PyExc_SystemError, "*out is NULL after a success");
        return (PyObject *)object;
    }
    if (out && object != NULL)
        PyErr_SetString(PyExc_SystemError, "*out is not NULL after a failure");
    return NULL;
}

static PyObject *
probe_call_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule;
    void *stream = &capsule;
    int type, id, out = 1;

    if (!PyArg_ParseTuple(args, "Oii|p", &capsule, &type, &id, &out) ||
        table_of(capsule)->current_work_stream((DLDeviceType)type, id, out ? &stream : NULL) != 0)
        return NULL;
    return PyLong_FromVoidPtr(stream);
}

typedef struct {
    int calls;
    char kind[32], message[200];
} Reported;

static void
note(void *context, const char *kind, const char *message)
{
    Reported *reported = (Reported *)context;
    reported->calls++;
    snprintf(reported->kind, sizeof(reported->kind), "%s", kind);
    snprintf(reported->message, sizeof(reported->message), "%s", message);
}

/* call_allocate(table, shape or None, device type=1, bits=32, out=True, report=True), without the GIL: a capsule, or
 * (calls of SetError, kind, message). */
static PyObject *
probe_call_allocate(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *extents;
    int64_t shape[8];
    int type = 1, bits = 32, out = 1, report = 1, returned, i;
    Reported reported = {0, "", ""};
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)1;
    const DLPackExchangeAPI *table;
    DLTensor t;

    if (!PyArg_ParseTuple(args, "OO|iipp", &capsule, &extents, &type, &bits, &out, &report))
        return NULL;
    memset(&t, 0xa5, sizeof(t)); /* "only the dtype, ndim, shape, and device fields are used" */
    t.ndim = extents == Py_None ? 0 : (int)PyTuple_Size(extents);
    t.shape = shape;
    t.dtype = dlpack_py_cpu_tensor(NULL, DLPACK_PY_DTYPE(2u, (uint32_t)bits, 1u), 0, NULL, NULL).dtype;
    t.device = dlp_make_device(type, 0);
    for (i = 0; i < t.ndim; i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(extents, i));
    table = table_of(capsule);
    Py_BEGIN_ALLOW_THREADS
    returned = table->managed_tensor_allocator(extents == Py_None ? NULL : &t, out ? &managed : NULL, &reported,
                                               report ? note : NULL);
    Py_END_ALLOW_THREADS
    if (returned == 0 && reported.calls == 0)
        return dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
    if (out && managed != NULL)
        PyErr_SetString(PyExc_SystemError, "*out is not NULL after a failure");
    return PyErr_Occurred() ? NULL : Py_BuildValue("iss", reported.calls, reported.kind, reported.message);
}

/* ---- The header's consumer ------------------------------------------------- */

/* borrow(obj, *, writable=False, order="", dtype="", options=0, device=0): (data, shape, strides, readonly, owned). */
static PyObject *
probe_borrow(PyObject *Py_UNUSED(module), PyObject *args, PyObject *names)
{
    static char *keywords[] = {"", "writable", "order", "dtype", "options", "device", NULL};
    const char *order = "", *dtype = "";
    unsigned int options = 0;
    int writable = 0, device = 0;
    dlpack_py_want want = {0};
    dlpack_py_view v;
    PyObject *obj, *result;

    if (!PyArg_ParseTupleAndKeywords(args, names, "O|$pssIi", keywords, &obj, &writable, &order, &dtype, &options,
                                     &device))
        return NULL;
    want.writable = (char)writable;
    want.order = order[0];
    want.dtype = dtype[0] == '\0' ? 0 : dtype_of(dtype);
    want.options = options;
    want.device = device;
    memset(&v, 1, sizeof(v));
    if (dlpack_py_borrow(obj, &want, &v) < 0) {
        if (v.managed != NULL || v.allocated != NULL || v.tensor.ndim != 0)
            PyErr_SetString(PyExc_SystemError, "the view is not empty after a failure");
        return NULL;
    }
    result = Py_BuildValue("NiO", describe(&v.tensor), v.readonly, v.managed != NULL ? Py_True : Py_False);
    dlpack_py_release(&v);
    return result;
}

/* borrow_two(one, other): the result of borrow for each object, read after both were borrowed. */
static PyObject *
probe_borrow_two(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *objects[2], *result = NULL;
    dlpack_py_view views[2];
    int i, count = 0;

    if (!PyArg_ParseTuple(args, "OO", &objects[0], &objects[1]))
        return NULL;
    while (count < 2 && dlpack_py_borrow(objects[count], NULL, &views[count]) == 0)
        count++;
    if (count == 2)
        result = Py_BuildValue("(NO)(NO)", describe(&views[0].tensor), views[0].managed != NULL ? Py_True : Py_False,
                               describe(&views[1].tensor), views[1].managed != NULL ? Py_True : Py_False);
    for (i = 0; i < count; i++)
        dlpack_py_release(&views[i]);
    return result;
}

/* add_to_unready(): adds a table to a static type before PyType_Ready. */
static PyObject *
probe_add_to_unready(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static PyTypeObject unready = {
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "exchange_probe.Unready",
        .tp_basicsize = sizeof(Holder),
        .tp_flags = Py_TPFLAGS_DEFAULT,
    };
    return dlpack_py_exchange_add(&unready, &holder_exchange) < 0 ? NULL : Py_BuildValue("");
}

/* allocate_like(like, shape, dtype="float64", device=1, id=0, byte_offset=0): a Holder. */
static PyObject *
probe_allocate_like(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *dtype = "float64";
    int64_t shape[8];
    PyObject *like, *extents;
    dlpack_py_view v;
    DLTensor t;
    int i, device = 1, id = 0;
    unsigned long long byte_offset = 0;

    if (!PyArg_ParseTuple(args, "OO!|siiK", &like, &PyTuple_Type, &extents, &dtype, &device, &id, &byte_offset))
        return NULL;
    for (i = 0; i < PyTuple_Size(extents); i++)
        shape[i] = PyLong_AsLongLong(PyTuple_GetItem(extents, i));
    t = dlpack_py_cpu_tensor(NULL, dtype_of(dtype), (int32_t)PyTuple_Size(extents), shape, NULL);
    t.device = dlp_make_device(device, id);
    t.byte_offset = byte_offset;
    if (dlpack_py_allocate_like(like, &t, &v) < 0)
        return NULL;
    return holder_make_steal(&holder_type, &v);
}

/* return_like(like, holder, change=False, readonly=False): an object like `like` with the holder's view; the holder is
 * empty afterwards. change: the view has one element less than its managed tensor; readonly: the view is read-only, its
 * managed tensor is not. */
static PyObject *
probe_return_like(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *like, *holder, *result;
    static int64_t less[DLPACK_PY_MAX_NDIM];
    dlpack_py_view *v;
    int change = 0, readonly = 0;

    if (!PyArg_ParseTuple(args, "OO!|pp", &like, &holder_type, &holder, &change, &readonly))
        return NULL;
    v = &((Holder *)holder)->view;
    if (change) {
        memcpy(less, v->tensor.shape, (size_t)v->tensor.ndim * sizeof(int64_t));
        less[0]--;
        v->tensor.shape = less;
    }
    if (readonly)
        v->readonly = DLPACK_PY_READ_ONLY;
    result = dlpack_py_return_like_steal(like, v);
    if (v->managed != NULL)
        PyErr_SetString(PyExc_SystemError, "the view was not taken over");
    return result;
}

/* return_borrowed_like(like, obj) */
static PyObject *
probe_return_borrowed_like(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *like, *obj;
    dlpack_py_view v;
    if (!PyArg_ParseTuple(args, "OO", &like, &obj) || dlpack_py_borrow(obj, NULL, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(like, &v);
}

/* immutable(): a new heap type that Python code cannot change, with Holder's table. */
static PyObject *
probe_immutable(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static PyType_Slot slots[] = {{0, NULL}};
    static PyType_Spec spec = {"exchange_probe.Immutable", sizeof(Holder), 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *type;

#ifdef Py_TPFLAGS_IMMUTABLETYPE
    spec.flags |= Py_TPFLAGS_IMMUTABLETYPE;
#endif
    type = PyType_FromSpec(&spec);
    if (type != NULL && (dlpack_py_exchange_add((PyTypeObject *)type, &holder_exchange) < 0 ||
                         dlpack_py_exchange_add(&holder_type, &holder_exchange) <
                             0)) /* again, so that the table makes Holder objects */
        Py_CLEAR(type);
    return type;
}

/* check_like(like): None, or an exception. */
static PyObject *
probe_check_like(PyObject *Py_UNUSED(module), PyObject *like)
{
    return dlpack_py_check_like(like) < 0 ? NULL : Py_BuildValue("");
}

#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

/* delegate(): a new type, whose __dlpack__ is a C function that calls the method answer of the object. */
static PyObject *
delegate_dlpack(PyObject *self, PyObject *args, PyObject *keywords)
{
    PyObject *method = PyObject_GetAttrString(self, "answer");
    PyObject *answer = method == NULL ? NULL : PyObject_Call(method, args, keywords);
    Py_XDECREF(method);
    return answer;
}

static PyObject *
probe_delegate(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static PyMethodDef methods[] = {{"__dlpack__", KEYWORDS(delegate_dlpack), METH_VARARGS | METH_KEYWORDS, NULL},
                                    {NULL, NULL, 0, NULL}};
    static PyType_Slot slots[] = {{Py_tp_methods, methods}, {0, NULL}};
    static PyType_Spec spec = {"exchange_probe.Delegate", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                               slots};
    return PyType_FromSpec(&spec);
}

static void
rude_destructor(PyObject *Py_UNUSED(capsule))
{
    PyErr_SetString(PyExc_RuntimeError, "left behind");
}

/* rude(address of a managed tensor): a capsule whose destructor leaves an exception set. */
static PyObject *
probe_rude(PyObject *Py_UNUSED(module), PyObject *address)
{
    return PyCapsule_New(PyLong_AsVoidPtr(address), "dltensor_versioned", rude_destructor);
}

/* add_contradictory(type): adds a table whose requirements contradict each other. */
static PyObject *
probe_add_contradictory(PyObject *Py_UNUSED(module), PyObject *type)
{
    static const dlpack_py_want contradictory = {.order = 'Q'};
    static dlpack_py_exchange exchange; /* a table lives as long as the process */

    exchange = holder_exchange;
    exchange.want = &contradictory;
    return dlpack_py_exchange_add((PyTypeObject *)type, &exchange) < 0 ? NULL : Py_BuildValue("");
}

static PyMethodDef functions[] = {
    {"table", KEYWORDS(probe_table), METH_VARARGS | METH_KEYWORDS, NULL},
    {"set_previous", probe_set_previous, METH_VARARGS, NULL},
    {"hook", probe_hook, METH_VARARGS, NULL},
    {"call_owned", probe_call_owned, METH_VARARGS, NULL},
    {"call_borrowed", probe_call_borrowed, METH_VARARGS, NULL},
    {"call_make", probe_call_make, METH_VARARGS, NULL},
    {"call_stream", probe_call_stream, METH_VARARGS, NULL},
    {"call_allocate", probe_call_allocate, METH_VARARGS, NULL},
    {"borrow", KEYWORDS(probe_borrow), METH_VARARGS | METH_KEYWORDS, NULL},
    {"borrow_two", probe_borrow_two, METH_VARARGS, NULL},
    {"add_to_unready", probe_add_to_unready, METH_NOARGS, NULL},
    {"allocate_like", probe_allocate_like, METH_VARARGS, NULL},
    {"return_like", probe_return_like, METH_VARARGS, NULL},
    {"return_borrowed_like", probe_return_borrowed_like, METH_VARARGS, NULL},
    {"immutable", probe_immutable, METH_NOARGS, NULL},
    {"check_like", probe_check_like, METH_O, NULL},
    {"delegate", probe_delegate, METH_NOARGS, NULL},
    {"rude", probe_rude, METH_O, NULL},
    {"add_contradictory", probe_add_contradictory, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
#else
static PyMethodDef functions[] = {{NULL, NULL, 0, NULL}};
#endif

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "exchange_probe", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_exchange_probe(void)
{
    PyObject *module = PyModule_Create(&module_def);
#if DLPACK_PY_HAS_EXCHANGE_API
    hooks = PyDict_New();
    Py_INCREF(&holder_type);
    Py_INCREF(&moment_type);
    if (module == NULL || hooks == NULL || PyType_Ready(&holder_type) < 0 ||
        dlpack_py_exchange_add(&holder_type, &holder_exchange) < 0 ||
        PyModule_AddObject(module, "Holder", (PyObject *)&holder_type) < 0 || PyType_Ready(&moment_type) < 0 ||
        dlpack_py_exchange_add(&moment_type, &moment_exchange) < 0 ||
        PyModule_AddObject(module, "Moment", (PyObject *)&moment_type) < 0 ||
        PyModule_AddIntConstant(module, "DO_NOT_LEND", DLPACK_PY_OFFER_DO_NOT_LEND) < 0 ||
        PyModule_AddIntConstant(module, "COPY_NEGATIVE", DLPACK_PY_OFFER_COPY_NEGATIVE) < 0 ||
        PyModule_AddIntConstant(module, "REFUSE_NEGATIVE", DLPACK_PY_OFFER_REFUSE_NEGATIVE) < 0 ||
        PyModule_AddIntConstant(module, "COPY_IF_NEEDED", DLPACK_PY_WANT_COPY_IF_NEEDED) < 0 ||
        PyModule_AddIntConstant(module, "NO_TABLE", DLPACK_PY_WANT_NO_TABLE) < 0)
        return NULL;
#endif
    return module;
}

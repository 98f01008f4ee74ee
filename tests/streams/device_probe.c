/* Both ends of an exchange on a device, with separate streams: Array is a producer, consume() makes Views, Exchanged
 * and HostExchanged are Arrays with an exchange table, and table() makes the table of another library. This source is
 * compiled twice for the simulated runtime of each platform: two extensions that share only the runtime. The second
 * extension finds the functions of the runtime at run time. */

#include <stdlib.h>

/* The memory of the header: whether allocations fail, and how many blocks are allocated. */
static int no_memory;
static size_t blocks;

#define DLPACK_PY_MALLOC(size) (no_memory ? NULL : (__atomic_add_fetch(&blocks, 1, __ATOMIC_RELAXED), malloc(size)))
#define DLPACK_PY_FREE(pointer) (__atomic_sub_fetch(&blocks, 1, __ATOMIC_RELAXED), free(pointer))

#include "dlpack_cuda_array_interface.h"
#include "../lends.h"

#if defined(__HIP_PLATFORM_AMD__)
#define DLPACK(name) dlpack_rocm_##name
#define MALLOC_PINNED(pointer, size) CALL(HostMalloc, (pointer, size, hipHostMallocDefault))
#define FREE_PINNED(pointer) CALL(HostFree, (pointer))
enum { CPU = 1, DEVICE = 10, PINNED = 11, MANAGED = 0 /* has no type of its own */ };
#else
#define DLPACK(name) dlpack_cuda_##name
#define MALLOC_PINNED(pointer, size) CALL(MallocHost, (pointer, size))
#define FREE_PINNED(pointer) CALL(FreeHost, (pointer))
enum { CPU = 1, DEVICE = 2, PINNED = 3, MANAGED = 13 };
#endif

#include <structmember.h> /* T_PYSSIZET: PyMemberDef */

typedef DLPACK_DEVICE_API(Stream_t) stream_handle;

/* A call of the runtime: 0, or -1. */
#define CALL(function, arguments) DLPACK_DEVICE_CALL(function, arguments, NULL)

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(uintptr_t)(function))
#define KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))

enum { MAX_RANK = 4, MAX_STREAMS = 10 };

static stream_handle
as_stream(PyObject *number)
{
    return (stream_handle)PyLong_AsVoidPtr(number);
}

/* ---- Array --------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    DLTensor tensor;
    int64_t shape[MAX_RANK], strides[MAX_RANK];
    void *memory;
    Py_ssize_t size;
    int type, device;
    stream_handle home; /* the stream that allocates and frees memory of the device */
    int plain;          /* exported by dlpack_cuda_produce */
    int bare;           /* the offer names no device */
    int copies;         /* whether the array makes the copy for copy=True */
    uint64_t flags;
    uint32_t options;
    PyObject *veto; /* called before each export; NULL: none */
    dlpack_py_counter exports;
    size_t pending_count;
    dlpack_py_work_stream pending[MAX_STREAMS];
} Array;

/* Allocates on the current device. */
static int
array_allocate(Array *self)
{
    const size_t size = (size_t)self->size;

    if (self->type == DEVICE)
        return CALL(MallocAsync, (&self->memory, size, self->home));
    if (self->type == PINNED)
        return MALLOC_PINNED(&self->memory, size);
    if (self->type == MANAGED)
        return CALL(MallocManaged, (&self->memory, size, DLPACK_DEVICE_API(MemAttachGlobal)));
    self->memory = malloc(size);
    return 0;
}

static int
array_free(Array *self)
{
    if (self->type == DEVICE)
        return CALL(FreeAsync, (self->memory, self->home));
    if (self->type == PINNED)
        return FREE_PINNED(self->memory);
    if (self->type == MANAGED)
        return CALL(Free, (self->memory));
    free(self->memory);
    return 0;
}

/* Runs a call with the device of the array current, and without the GIL. */
static int
array_on_its_device(Array *self, int (*function)(Array *))
{
    int current = 0, result;

    if (self->type == CPU)
        return function(self);
    Py_BEGIN_ALLOW_THREADS
    result = CALL(GetDevice, (&current));
    if (result == 0)
        result = CALL(SetDevice, (self->device));
    if (result == 0)
        result = function(self);
    if (CALL(SetDevice, (current)) < 0)
        result = -1;
    Py_END_ALLOW_THREADS
    return result;
}

static int
parse_extents(PyObject *tuple, int64_t *extents)
{
    Py_ssize_t i;
    for (i = 0; i < PyTuple_Size(tuple) && i < MAX_RANK; i++)
        extents[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    return PyErr_Occurred() ? -1 : 0;
}

/* A handle, or a handle and the number of its device. */
static int
parse_pending(Array *self, PyObject *item)
{
    dlpack_py_work_stream *work = &self->pending[self->pending_count++];
    PyObject *handle = item;

    work->device_id = self->device;
    if (PyTuple_Check(item) && !PyArg_ParseTuple(item, "Oi", &handle, &work->device_id))
        return -1;
    *work = DLPACK(work_stream)(as_stream(handle), work->device_id);
    return PyErr_Occurred() ? -1 : 0;
}

static int
parse_streams(Array *self, PyObject *streams)
{
    Py_ssize_t i;

    self->plain = PyLong_Check(streams);
    if (self->plain) {
        self->home = as_stream(streams);
        return PyErr_Occurred() ? -1 : 0;
    }
    for (i = 0; i < PyTuple_Size(streams) && i < MAX_STREAMS; i++) {
        if (parse_pending(self, PyTuple_GetItem(streams, i)) < 0)
            return -1;
    }
    if (self->pending_count > 0 && self->pending[0].device_id == self->device)
        self->home = (stream_handle)self->pending[0].handle;
    return PyErr_Occurred() ? -1 : 0;
}

/* Array(shape, streams=(), *, strides=None, size=0, offset=0, dtype=UINT8, type=DEVICE, device=0, options=0, flags=0,
 * veto=None, bare=False, copies=False): size bytes of memory, by default the size of the shape; the first element is at
 * offset.
 *
 * streams   a handle: exported by dlpack_cuda_produce; a tuple of handles or of (handle, number of the device):
 *           exported by an offer */
static PyObject *
array_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"shape",  "streams", "strides", "size", "offset", "dtype",  "type",
                               "device", "options", "flags",   "veto", "bare",   "copies", NULL};
    PyObject *shape, *streams = NULL, *strides = Py_None, *veto = NULL;
    unsigned int dtype = DLPACK_PY_UINT8;
    Py_ssize_t offset = 0;
    Array *self = (Array *)type->tp_alloc(type, 0);

    if (self == NULL)
        return NULL;
    self->type = DEVICE;
    if (!PyArg_ParseTupleAndKeywords(args, names, "O!|O$OnnIiiIKOpp", keywords, &PyTuple_Type, &shape, &streams,
                                     &strides, &self->size, &offset, &dtype, &self->type, &self->device, &self->options,
                                     &self->flags, &veto, &self->bare, &self->copies) ||
        parse_extents(shape, self->shape) < 0 || (strides != Py_None && parse_extents(strides, self->strides) < 0) ||
        (streams != NULL && parse_streams(self, streams) < 0)) {
        Py_DECREF(self);
        return NULL;
    }
    Py_XINCREF(veto);
    self->veto = veto;
    self->tensor = dlpack_py_cpu_tensor(NULL, dtype, (int32_t)PyTuple_Size(shape), self->shape,
                                        strides == Py_None ? NULL : self->strides);
    self->tensor.device = dlp_make_device(self->type, self->device);
    if (self->size == 0)
        self->size = (Py_ssize_t)dlpack_py_nbytes(&self->tensor, 0);
    if (self->size > 0 && array_on_its_device(self, array_allocate) < 0) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->tensor.data = self->memory;
    self->tensor.byte_offset = (uint64_t)offset;
    return (PyObject *)self;
}

static void
array_dealloc(PyObject *op)
{
    Array *self = (Array *)op;
    PyTypeObject *type = Py_TYPE(op);

    if (self->memory != NULL)
        (void)array_on_its_device(self, array_free);
    Py_XDECREF(self->veto);
    type->tp_free(op);
    Py_DECREF(type);
}

static int
array_veto(PyObject *op, const dlpack_py_request *request)
{
    PyObject *result = PyObject_CallFunction(((Array *)op)->veto, "i", request == NULL ? 0 : (int)request->stream.kind);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

static int
array_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Array *self = (Array *)op;

    *offer = dlpack_py_offer_make(op, &self->tensor, self->flags);
    offer->options = self->options;
    if (!self->bare)
        offer->operations = DLPACK(operations)();
    offer->pending = self->pending;
    offer->pending_count = self->pending_count;
    offer->exports = &self->exports;
    return self->veto == NULL ? 0 : array_veto(op, request);
}

/* A new array with a copy of the data, made on the stream of the source; the stream of the copy is pending. */
static PyObject *
array_copy(Array *self)
{
    PyObject *made = PyObject_CallFunction((PyObject *)Py_TYPE(self), "((L)N)", (long long)self->shape[0],
                                           PyLong_FromVoidPtr((void *)self->home));
    int result = 0;

    if (made != NULL) {
        Py_BEGIN_ALLOW_THREADS
        result = CALL(MemcpyAsync, (((Array *)made)->memory, self->memory, (size_t)self->size,
                                    DLPACK_DEVICE_API(MemcpyDeviceToDevice), self->home));
        Py_END_ALLOW_THREADS
    }
    if (result < 0)
        Py_CLEAR(made);
    if (made == NULL && !PyErr_Occurred())
        (void)PyErr_NoMemory();
    return made;
}

/* copy=True on the device, as docs/streams.md shows it. */
static PyObject *
array_dlpack_copy(Array *self, const dlpack_py_request *request)
{
    PyObject *capsule, *copy = array_copy(self);
    const dlpack_py_work_stream pending = DLPACK(work_stream)(self->home, self->device);
    dlpack_py_offer offer;

    if (copy == NULL)
        return NULL;
    offer = dlpack_py_offer_make(copy, &((Array *)copy)->tensor, 0);
    offer.is_copy = 1;
    offer.operations = DLPACK(operations)();
    offer.pending = &pending;
    offer.pending_count = 1;
    capsule = dlpack_py_answer(&offer, request);
    Py_DECREF(copy);
    return capsule;
}

static PyObject *
array_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Array *self = (Array *)op;
    dlpack_py_request request;

    if (self->copies && dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    if (self->copies && request.copy == DLPACK_PY_COPY_ALWAYS && !request.has_device)
        return array_dlpack_copy(self, &request);
    if (self->plain)
        return DLPACK(produce)(op, &self->tensor, self->flags, self->home, args, nargs, kwnames);
    return dlpack_py_produce_described(op, array_describe, args, nargs, kwnames);
}

/* resize(shape): sets a shape of equal rank that fits into the memory. */
static PyObject *
array_resize(PyObject *op, PyObject *shape)
{
    if (parse_extents(shape, ((Array *)op)->shape) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* repend(handle): replaces the handles of all pending streams. */
static PyObject *
array_repend(PyObject *op, PyObject *handle)
{
    Array *self = (Array *)op;
    size_t i;

    for (i = 0; i < self->pending_count; i++)
        self->pending[i].handle = (uintptr_t)as_stream(handle);
    Py_RETURN_NONE;
}

static PyObject *
array_device(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return dlpack_py_produce_device(&((Array *)op)->tensor);
}

static PyObject *
array_interface(PyObject *op, void *Py_UNUSED(unused))
{
    const Array *self = (const Array *)op;
    return DLPACK(array_interface)(&self->tensor, self->flags, self->home);
}

static PyObject *
array_exports(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(dlpack_py_exports_count(&((Array *)op)->exports));
}

static PyGetSetDef array_getset[] = {
    {"exports", array_exports, NULL, NULL, NULL},
    {"__cuda_array_interface__", array_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef array_methods[] = {
    DLPACK_PY_METHODS(array_dlpack, array_device),
    {"resize", array_resize, METH_O, NULL},
    {"repend", array_repend, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef array_members[] = {
    {"address", T_PYSSIZET, offsetof(Array, memory), READONLY, NULL},
    {"size", T_PYSSIZET, offsetof(Array, size), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_new, SLOT(array_new)}, {Py_tp_dealloc, SLOT(array_dealloc)}, {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset}, {Py_tp_members, array_members},       {0, NULL},
};

static PyType_Spec array_spec = {"device_probe.Array", sizeof(Array), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                 array_slots};

/* ---- View ---------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
} View;

static PyObject *
extents(const int64_t *numbers, int32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    int32_t i;
    for (i = 0; tuple != NULL && i < count; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromLongLong(numbers[i]));
    return tuple;
}

static PyObject *
view_shape(PyObject *op, void *Py_UNUSED(unused))
{
    const DLTensor *t = &((View *)op)->view.tensor;
    return extents(t->shape, t->ndim);
}

static PyObject *
view_strides(PyObject *op, void *Py_UNUSED(unused))
{
    const DLTensor *t = &((View *)op)->view.tensor;
    return extents(t->strides, t->ndim);
}

static PyObject *
view_data(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromVoidPtr(dlpack_py_data(&((View *)op)->view));
}

static PyObject *
view_device(PyObject *op, void *Py_UNUSED(unused))
{
    const DLDevice device = ((View *)op)->view.tensor.device;
    return Py_BuildValue("ii", (int)device.device_type, (int)device.device_id);
}

static PyObject *
view_flags(PyObject *op, void *Py_UNUSED(unused))
{
    return PyLong_FromUnsignedLongLong(((View *)op)->view.flags);
}

/* Whether the view holds a tensor. */
static PyObject *
view_holds(PyObject *op, void *Py_UNUSED(unused))
{
    return PyBool_FromLong(((View *)op)->view.managed != NULL);
}

static PyObject *
view_release(PyObject *op, PyObject *Py_UNUSED(unused))
{
    dlpack_py_release(&((View *)op)->view);
    Py_RETURN_NONE;
}

/* release_on(stream) */
static PyObject *
view_release_on(PyObject *op, PyObject *number)
{
    const stream_handle stream = as_stream(number);
    if (PyErr_Occurred() || DLPACK(release)(&((View *)op)->view, stream) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* release_detached(stream): as release_on, without a thread state and without an error. Returns whether it failed. */
static PyObject *
view_release_detached(PyObject *op, PyObject *number)
{
    View *self = (View *)op;
    dlpack_py_work_stream stream = DLPACK(work_stream)(as_stream(number), self->view.tensor.device.device_id);
    int failed;

    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    failed = dlpack_device_release(stream, &self->view, NULL) < 0;
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(failed);
}

/* release_error(stream): as release_on, with an error whose code is 0 before. Returns the code. */
static PyObject *
view_release_error(PyObject *op, PyObject *number)
{
    View *self = (View *)op;
    dlpack_py_work_stream stream = DLPACK(work_stream)(as_stream(number), self->view.tensor.device.device_id);
    dlpack_py_error error = {0, 0, ""};

    if (PyErr_Occurred())
        return NULL;
    (void)dlpack_device_release(stream, &self->view, &error);
    return PyLong_FromLong(error.code);
}

/* release_unraisable(stream): releases as tp_dealloc does, with a KeyError in flight. */
static PyObject *
view_release_unraisable(PyObject *op, PyObject *number)
{
    const stream_handle stream = as_stream(number);
    if (PyErr_Occurred())
        return NULL;
    PyErr_SetString(PyExc_KeyError, "in flight");
    DLPACK(release_unraisable)(&((View *)op)->view, stream);
    return NULL;
}

static void
view_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    dlpack_py_release(&((View *)op)->view);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef view_methods[] = {
    {"release", view_release, METH_NOARGS, NULL},
    {"release_on", view_release_on, METH_O, NULL},
    {"release_detached", view_release_detached, METH_O, NULL},
    {"release_error", view_release_error, METH_O, NULL},
    {"release_unraisable", view_release_unraisable, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef view_getset[] = {
    {"shape", view_shape, NULL, NULL, NULL}, {"strides", view_strides, NULL, NULL, NULL},
    {"data", view_data, NULL, NULL, NULL},   {"device", view_device, NULL, NULL, NULL},
    {"flags", view_flags, NULL, NULL, NULL}, {"holds", view_holds, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot view_slots[] = {
    {Py_tp_dealloc, SLOT(view_dealloc)},
    {Py_tp_methods, view_methods},
    {Py_tp_getset, view_getset},
    {0, NULL},
};

static PyType_Spec view_spec = {"device_probe.View", sizeof(View), 0, Py_TPFLAGS_DEFAULT, view_slots};

static PyObject *
view_make(PyObject *module, dlpack_py_view *v)
{
    PyTypeObject *type = *(PyTypeObject **)PyModule_GetState(module);
    View *self = (View *)type->tp_alloc(type, 0);
    if (self == NULL)
        dlpack_py_release(v);
    else
        dlpack_py_move(&self->view, v);
    return (PyObject *)self;
}

/* consume(obj, stream, *, by_handle=False, device=DEVICE, dtype=0, options=0): a View; without device,
 * dtype and options, of any tensor on a device. stream is a stream of the runtime or, by_handle, a DLPack number. */
static PyObject *
probe_consume(PyObject *module, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"obj", "stream", "by_handle", "device", "dtype", "options", NULL};
    dlpack_py_want want = {.name = "x"};
    const dlpack_py_want *wanted;
    unsigned int dtype = 0, options = 0;
    PyObject *obj, *number;
    int device = DEVICE, by_handle = 0, failed;
    stream_handle stream;
    dlpack_py_view v;

    if (!PyArg_ParseTupleAndKeywords(args, names, "OO|$piII", keywords, &obj, &number, &by_handle, &device, &dtype,
                                     &options))
        return NULL;
    stream = as_stream(number);
    if (PyErr_Occurred())
        return NULL;
    want.device = device;
    want.dtype = dtype;
    want.options = options;
    wanted = device == DEVICE && dtype == 0 && options == 0 ? NULL : &want;
    failed = by_handle ? dlpack_device_consume(obj, (uintptr_t)stream, wanted, &v)
                       : DLPACK(consume)(obj, wanted, stream, &v);
    if (failed)
        return NULL;
    return view_make(module, &v);
}

/* from_dlpack(stream, x, *, device=None, copy=None) */
static PyObject *
probe_from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const stream_handle stream = as_stream(args[0]);
    dlpack_py_view v;

    memset(&v, 0x55, sizeof(v)); /* uninitialized, as on the stack */
    if (PyErr_Occurred())
        return NULL;
    if (DLPACK(from_dlpack)(args + 1, nargs - 1, kwnames, NULL, stream, &v) < 0)
        return v.managed == NULL && v.allocated == NULL
                   ? NULL
                   : PyErr_Format(PyExc_SystemError, "the view is not empty after a failure");
    return view_make(module, &v);
}

/* from_dlpack_too(stream, x, *, device=None, copy=None): also by an array interface, to any device. */
static PyObject *
probe_from_dlpack_too(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const dlpack_py_want want = {
        .device = DLPACK_PY_ANY_DEVICE, .alignment = 1, .options = DLPACK_PY_WANT_ARRAY_INTERFACE_TOO};
    const stream_handle stream = as_stream(args[0]);
    dlpack_py_view v;

    if (PyErr_Occurred() || DLPACK(from_dlpack)(args + 1, nargs - 1, kwnames, &want, stream, &v) < 0)
        return NULL;
    return view_make(module, &v);
}

static char foreign_deleted_in[100];

static void
foreign_delete(DLManagedTensorVersioned *managed)
{
    const size_t at = strlen(foreign_deleted_in);
    (void)snprintf(foreign_deleted_in + at, sizeof(foreign_deleted_in) - at, "%d ",
                   (int)PyInterpreterState_GetID(DLP_INTERPRETER()));
    free(managed);
}

/* release_borrowed(stream): releases a view as dlpack_py_borrow fills it where a table lends no strides. */
static PyObject *
probe_release_borrowed(PyObject *Py_UNUSED(module), PyObject *number)
{
    const stream_handle stream = as_stream(number);
    dlpack_py_view v = {0};

    if (PyErr_Occurred())
        return NULL;
    v.tensor.ndim = 1;
    v.tensor.strides = v.allocated = (int64_t *)DLPACK_PY_MALLOC(sizeof(int64_t));
    if (DLPACK(release)(&v, stream) < 0)
        return NULL;
    return PyBool_FromLong(v.allocated == NULL && v.tensor.ndim == 0);
}

/* collect(): the number of tensors that still wait for their release. */
static PyObject *
probe_collect(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(dlpack_device_collect());
}

/* current_work(obj, device id): the handle of the work stream of the library of obj; None: not known. */
static PyObject *
probe_current_work(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlpack_py_work_stream work = {0, 0};
    PyObject *obj;
    int id, known;

    if (!PyArg_ParseTuple(args, "Oi", &obj, &id))
        return NULL;
    work.device_id = id;
    known = dlpack_device_current_work(obj, &work);
    if (known < 0)
        return NULL;
    return known ? PyLong_FromUnsignedLongLong(work.handle) : Py_BuildValue("");
}

/* foreign(): the capsule of a tensor without an owner, made in plain C. */
static PyObject *
probe_foreign(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static char data;
    static int64_t one = 1;
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)calloc(1, sizeof(*managed));

    managed->version.major = DLPACK_MAJOR_VERSION;
    managed->deleter = foreign_delete;
    managed->dl_tensor = dlpack_py_cpu_tensor(&data, DLPACK_PY_UINT8, 1, &one, &one);
    managed->dl_tensor.device = dlp_make_device(DEVICE, 0);
    return PyCapsule_New(managed, "dltensor_versioned", NULL);
}

/* foreign_deleted(): the ids of the interpreters in which tensors of foreign() were deleted, as a string. */
static PyObject *
probe_foreign_deleted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyUnicode_FromString(foreign_deleted_in);
}

/* interface(view, stream=None): the dict of __cuda_array_interface__ for its tensor. stream: a number of the protocol;
 * None: the default stream of the runtime. */
static PyObject *
probe_interface(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *view, *stream = Py_None;
    const dlpack_py_view *v;

    if (!PyArg_ParseTuple(args, "O|O", &view, &stream))
        return NULL;
    v = &((View *)view)->view;
    return stream == Py_None ? DLPACK(array_interface)(&v->tensor, v->flags, NULL)
                             : dlpack_device_array_interface(&v->tensor, v->flags, (uintptr_t)PyLong_AsVoidPtr(stream));
}

/* find_device(address): the device of the memory. */
static PyObject *
probe_find_device(PyObject *Py_UNUSED(module), PyObject *address)
{
    dlpack_py_error error;
    DLDevice device;

    if (DLPACK(find_device)(PyLong_AsVoidPtr(address), &device, &error) < 0) {
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    return Py_BuildValue("ii", (int)device.device_type, (int)device.device_id);
}

/* blocks(): how many blocks the header has allocated. */
static PyObject *
probe_blocks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromSize_t(__atomic_load_n(&blocks, __ATOMIC_RELAXED));
}

/* no_memory(bool): whether allocations of the header fail. */
static PyObject *
probe_no_memory(PyObject *Py_UNUSED(module), PyObject *yes)
{
    no_memory = PyObject_IsTrue(yes);
    Py_RETURN_NONE;
}

/* ---- An exchange table of another library -------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API

/* Converts the result of a callable: an address is stored in *out; None leaves *out unchanged. Returns 0, or -1 with
 * the exception of the callable. */
static int
answer(PyObject *result, void **out)
{
    if (result == NULL)
        return -1;
    if (result != Py_None)
        *out = PyLong_AsVoidPtr(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : 0;
}

static int
foreign_owned(void *object, DLManagedTensorVersioned **out)
{
    void *address = NULL;
    const int failed = answer(PyObject_CallMethod((PyObject *)object, "owned", NULL), &address);
    *out = (DLManagedTensorVersioned *)address;
    return failed;
}

static PyObject *work_function; /* global: the function of the table gets no object */

/* A function with the attribute `forgets` leaves its exception behind, and no error is returned; for one with the
 * attribute `fails`, an error is returned, and no exception is set. */
static int
foreign_work(DLDeviceType type, int32_t id, void **out)
{
    const int forgets = PyObject_HasAttrString(work_function, "forgets");
    const int fails = PyObject_HasAttrString(work_function, "fails");
    const int failed = answer(PyObject_CallFunction(work_function, "ii", (int)type, (int)id), out);
    return fails ? -1 : forgets ? 0 : failed;
}

static int
foreign_allocate(DLTensor *Py_UNUSED(prototype), DLManagedTensorVersioned **Py_UNUSED(out), void *context,
                 void (*set_error)(void *, const char *, const char *))
{
    set_error(context, "MemoryError", "nobody asks for memory here");
    return -1;
}

static int
foreign_make(DLManagedTensorVersioned *Py_UNUSED(managed), void **Py_UNUSED(out))
{
    PyErr_SetString(PyExc_SystemError, "nobody makes objects here");
    return -1;
}

/* table(): the capsule of a table that calls the method owned() of the object, and whose current_work_stream() calls
 * the function that work(function) has set. */
static PyObject *
probe_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    static DLPackExchangeAPI table = {{{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, NULL},
                                      foreign_allocate,
                                      foreign_owned,
                                      foreign_make,
                                      NULL,
                                      foreign_work};
    return PyCapsule_New(&table, "dlpack_exchange_api", NULL);
}

static PyObject *
probe_work(PyObject *Py_UNUSED(module), PyObject *function)
{
    Py_XDECREF(work_function);
    Py_INCREF(function);
    work_function = function;
    Py_RETURN_NONE;
}

/* ---- Exchange tables of the header --------------------------------------- */

static PyObject *
array_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    dlpack_py_release(v);
    return PyErr_Format(PyExc_SystemError, "nobody makes a %R here", (PyObject *)type);
}

static const dlpack_py_want on_device = {.device = DEVICE};

DLPACK_PY_EXCHANGE_API_WITH_STREAM(exchanged_table, array_describe, array_make_steal, &on_device, foreign_work);
/* For a table of CPU data: the offer names the device of bare arrays only. */
static int
array_host_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Array *self = (Array *)op;

    if (array_describe(op, request, offer) < 0)
        return -1;
    if (self->type == DEVICE && !self->bare) {
        offer->operations = NULL;
        offer->pending_count = 0;
    }
    else if (self->type == DEVICE)
        offer->operations = DLPACK(operations)();
    return 0;
}

DLPACK_PY_EXCHANGE_API(host_exchanged_table, array_host_describe, array_make_steal, NULL);

/* A subclass of Array with an exchange table. */
static int
add_exchanged(PyObject *module, PyObject *array, const char *name, const dlpack_py_exchange *table)
{
    PyObject *type = PyObject_CallFunction((PyObject *)&PyType_Type, "s(O){}", name, array);

    if (type == NULL || dlpack_py_exchange_add((PyTypeObject *)type, table) < 0)
        return -1;
    return PyModule_AddObject(module, name, type);
}
#endif

/* ---- The module ------------------------------------------------------------ */

static PyMethodDef functions[] = {
    {"consume", KEYWORDS(probe_consume), METH_VARARGS | METH_KEYWORDS, NULL},
    {"from_dlpack", DLP_METHOD(probe_from_dlpack), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"from_dlpack_too", DLP_METHOD(probe_from_dlpack_too), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"lends", probe_lends, METH_O, NULL},
    {"release_borrowed", probe_release_borrowed, METH_O, NULL},
    {"collect", probe_collect, METH_NOARGS, NULL},
    {"current_work", probe_current_work, METH_VARARGS, NULL},
    {"interface", probe_interface, METH_VARARGS, NULL},
    {"find_device", probe_find_device, METH_O, NULL},
    {"blocks", probe_blocks, METH_NOARGS, NULL},
    {"no_memory", probe_no_memory, METH_O, NULL},
    {"foreign", probe_foreign, METH_NOARGS, NULL},
    {"foreign_deleted", probe_foreign_deleted, METH_NOARGS, NULL},
#if DLPACK_PY_HAS_EXCHANGE_API
    {"table", probe_table, METH_NOARGS, NULL},
    {"work", probe_work, METH_O, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static const struct {
    const char *name;
    unsigned int value;
} constants[] = {
    {"CPU", CPU},
    {"DEVICE", DEVICE},
    {"PINNED", PINNED},
    {"MANAGED", MANAGED},
    {"UINT8", DLPACK_PY_UINT8},
    {"COMPLEX64", DLPACK_PY_COMPLEX64},
    {"FLOAT4_E2M1FN", DLPACK_PY_FLOAT4_E2M1FN},
    {"NONE_IS_NO_SYNC", DLPACK_PY_OFFER_NONE_IS_NO_SYNC},
    {"COPY_NEGATIVE", DLPACK_PY_OFFER_COPY_NEGATIVE},
    {"REFUSE_NEGATIVE", DLPACK_PY_OFFER_REFUSE_NEGATIVE},
    {"COPY_IF_NEEDED", DLPACK_PY_WANT_COPY_IF_NEEDED},
    {"NOTHING_PENDING", DLPACK_PY_WANT_NOTHING_PENDING},
    {"ARRAY_INTERFACE_TOO", DLPACK_PY_WANT_ARRAY_INTERFACE_TOO},
};

static int
module_exec(PyObject *module)
{
    PyObject *array = PyType_FromSpec(&array_spec), **view = (PyObject **)PyModule_GetState(module);
    size_t i;

    *view = PyType_FromSpec(&view_spec);
    if (*view == NULL || array == NULL || PyModule_AddObject(module, "Array", array) < 0)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (add_exchanged(module, array, "Exchanged", &exchanged_table) < 0 ||
        add_exchanged(module, array, "HostExchanged", &host_exchanged_table) < 0)
        return -1;
#endif
    for (i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
        if (PyModule_AddIntConstant(module, constants[i].name, (long)constants[i].value) < 0)
            return -1;
    }
    return 0;
}

static int
module_clear(PyObject *module)
{
    Py_CLEAR(*(PyObject **)PyModule_GetState(module));
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, SLOT(module_exec)},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

#define TEXT_OF(name) #name
#define NAME_OF(name) TEXT_OF(name)
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, NAME_OF(MODULE), NULL, sizeof(PyObject *), functions, slots, NULL, module_clear, NULL,
};

PyMODINIT_FUNC
INIT(MODULE)(void)
{
    return PyModuleDef_Init(&module_def);
}

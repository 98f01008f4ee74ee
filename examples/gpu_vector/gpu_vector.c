/* cuda_vector and rocm_vector - float32 values in device memory, exported and imported by DLPack
 * SPDX-License-Identifier: MIT
 *
 * One source for both runtimes: with __HIP_PLATFORM_AMD__ it is the module rocm_vector, otherwise cuda_vector. It calls
 * the runtime by DLPACK_DEVICE_CALL, and can be built with DLPACK_CUDA_AT_RUN_TIME or DLPACK_ROCM_AT_RUN_TIME: it then
 * imports on machines without a GPU library.
 *
 * A Vector queues its work on a stream of its own. Functions named ..._step call the runtime: vector_run releases the
 * GIL and makes the device of the vector current around them.
 */
#include <Python.h>

#include "dlpack_cuda_array_interface.h" /* includes dlpack_cuda.h or dlpack_rocm.h */

#ifdef __HIP_PLATFORM_AMD__
#  define GPU(name) dlpack_rocm_##name
#  define MODULE_NAME "rocm_vector"
#  define MODULE_INIT PyInit_rocm_vector
#  define GPU_TYPE kDLROCM
#else
#  define GPU(name) dlpack_cuda_##name
#  define MODULE_NAME "cuda_vector"
#  define MODULE_INIT PyInit_cuda_vector
#  define GPU_TYPE kDLCUDA
#endif

typedef struct Vector {
    PyObject_HEAD
    float *values;
    int64_t length;
    int32_t device;
    DLPACK_DEVICE_API(Stream_t) stream; /* our own; NULL: the default stream of the device */
    int shared;                         /* other streams may have work on values */
    dlpack_py_view source;              /* the memory of another library; empty: values are our own */
} Vector;

static PyTypeObject vector_type;

/* ---- Calls of the runtime ------------------------------------------------ */

typedef struct Transfer {
    void *to;
    const void *from;
    int wait; /* for the copy: to or from is memory of the host, or memory on which another library works */
} Transfer;

typedef int (*Step)(Vector *self, const Transfer *transfer, dlpack_py_error *error);

static int
make_step(Vector *self, const Transfer *unused, dlpack_py_error *error)
{
    const size_t bytes = (size_t)self->length * sizeof(float);
    (void)unused;
    if (DLPACK_DEVICE_CALL(StreamCreateWithFlags, (&self->stream, DLPACK_DEVICE_API(StreamNonBlocking)), error) < 0)
        return -1;
    return bytes == 0 ? 0 : DLPACK_DEVICE_CALL(Malloc, ((void **)&self->values, bytes), error);
}

static int
copy_step(Vector *self, const Transfer *transfer, dlpack_py_error *error)
{
    const size_t bytes = (size_t)self->length * sizeof(float);
    if (bytes == 0)
        return 0;
    if (DLPACK_DEVICE_CALL(MemcpyAsync,
                           (transfer->to, transfer->from, bytes, DLPACK_DEVICE_API(MemcpyDefault), self->stream),
                           error) < 0)
        return -1;
    return transfer->wait ? DLPACK_DEVICE_CALL(StreamSynchronize, (self->stream), error) : 0;
}

/* A consumer may have released the memory while its own stream still reads it: wait before the memory is freed. */
static int
free_step(Vector *self, const Transfer *unused, dlpack_py_error *error)
{
    int failed = 0;
    (void)unused;
    if (self->values != NULL) {
        failed = self->shared ? DLPACK_DEVICE_CALL(DeviceSynchronize, (), error)
                              : DLPACK_DEVICE_CALL(StreamSynchronize, (self->stream), error);
        if (!failed) /* else leak it: it may be in use */
            failed = DLPACK_DEVICE_CALL(Free, (self->values), error);
    }
    if (self->stream != NULL && DLPACK_DEVICE_CALL(StreamDestroy, (self->stream), failed ? NULL : error) < 0)
        failed = -1;
    return failed;
}

static int
vector_run(Vector *self, Step step, const Transfer *transfer)
{
    dlpack_py_error error;
    int before = 0, failed;

    Py_BEGIN_ALLOW_THREADS
    failed = DLPACK_DEVICE_CALL(GetDevice, (&before), &error);
    if (!failed) {
        failed = DLPACK_DEVICE_CALL(SetDevice, (self->device), &error) < 0 || step(self, transfer, &error) < 0;
        if (DLPACK_DEVICE_CALL(SetDevice, (before), failed ? NULL : &error) < 0)
            failed = 1;
    }
    Py_END_ALLOW_THREADS
    return failed ? dlpack_py_raise(&error) : 0;
}

static Vector *
vector_make(int64_t length, int32_t device)
{
    Vector *self = (Vector *)vector_type.tp_alloc(&vector_type, 0);
    if (self == NULL)
        return NULL;
    (void)dlpack_device_collect(); /* frees arrays that assign() has read */
    self->length = length;
    self->device = device;
    if (vector_run(self, make_step, NULL) == 0)
        return self;
    Py_DECREF(self);
    return NULL;
}

/* ---- Exporting ----------------------------------------------------------- */

static DLTensor
vector_tensor(const Vector *self)
{
    return GPU(tensor)(self->values, self->device, DLPACK_PY_FLOAT32, 1, &self->length, NULL);
}

/* A new vector with the same values, copied on this vector's stream. The stream of the copy waits for it. */
static Vector *
vector_copy(Vector *self)
{
    Vector *copy = vector_make(self->length, self->device);
    Transfer transfer = {NULL, self->values, 0};
    dlpack_py_error error;
    int failed;

    if (copy == NULL)
        return NULL;
    transfer.to = copy->values;
    copy->shared = 1; /* this vector's stream writes to it */
    failed = vector_run(self, copy_step, &transfer);
    if (!failed) {
        Py_BEGIN_ALLOW_THREADS
        failed = GPU(order)(self->stream, self->device, copy->stream, copy->device, &error);
        Py_END_ALLOW_THREADS
        if (failed)
            (void)dlpack_py_raise(&error);
    }
    if (failed)
        Py_CLEAR(copy);
    return copy;
}

static PyObject *
vector_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Vector *self = (Vector *)op, *copy = NULL;
    dlpack_py_work_stream pending;
    dlpack_py_request request;
    dlpack_py_offer offer;
    PyObject *capsule;
    DLTensor t;

    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    if (request.copy == DLPACK_PY_COPY_ALWAYS && (!request.has_device || request.device.device_type == GPU_TYPE)) {
        self = copy = vector_copy(self); /* the header copies to the CPU only */
        if (copy == NULL)
            return NULL;
    }
    self->shared = 1;
    t = vector_tensor(self);
    if (self->source.managed != NULL) /* read-only memory stays read-only */
        offer = dlpack_py_offer_view((PyObject *)self, &t, &self->source);
    else
        offer = dlpack_py_offer_make((PyObject *)self, &t, 0);
    pending = GPU(work_stream)(self->stream, self->device);
    offer.is_copy = copy != NULL;
    offer.operations = GPU(operations)();
    offer.pending = &pending;
    offer.pending_count = 1;
    capsule = dlpack_py_answer(&offer, &request);
    Py_XDECREF((PyObject *)copy); /* the capsule owns it */
    return capsule;
}

static PyObject *
vector_dlpack_device(PyObject *op, PyObject *unused)
{
    const DLTensor t = vector_tensor((const Vector *)op);
    (void)unused;
    return dlpack_py_produce_device(&t);
}

/* For libraries without DLPack. */
static PyObject *
vector_array_interface(PyObject *op, void *unused)
{
    Vector *self = (Vector *)op;
    const DLTensor t = vector_tensor(self);
    (void)unused;
    self->shared = 1;
    return GPU(array_interface)(&t, (uint64_t)self->source.readonly & DLPACK_PY_FLAG_READ_ONLY, self->stream);
}

/* ---- Importing ----------------------------------------------------------- */

/* Vector.from_dlpack(x, /, *, device=None, copy=None): over the memory of x. Its work is queued on the default stream,
 * and so is its release: a consumer of this vector that releases it early must not have work on another stream. */
static PyObject *
vector_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const dlpack_py_want vector = {.dtype = DLPACK_PY_FLOAT32,
                                          .ndim = 1,
                                          .order = 'C',
                                          .device = GPU_TYPE,
                                          .options = DLPACK_PY_WANT_ARRAY_INTERFACE_TOO};
    dlpack_py_view v;
    Vector *self;

    if (GPU(from_dlpack)(args, nargs, kwnames, &vector, NULL, &v) < 0)
        return NULL;
    self = (Vector *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (self == NULL) {
        dlpack_py_release(&v); /* no work is queued on it */
        return NULL;
    }
    self->values = (float *)dlpack_py_data(&v);
    self->length = v.tensor.shape[0];
    self->device = v.tensor.device.device_id;
    dlpack_py_move(&self->source, &v);
    return (PyObject *)self;
}

/* assign(x): copies the values of another array of the device, on this vector's stream. The host waits only where the
 * memory is another library's: nothing orders the work of that library after this copy. */
static PyObject *
vector_assign(PyObject *op, PyObject *x)
{
    Vector *self = (Vector *)op;
    dlpack_py_want same = {.dtype = DLPACK_PY_FLOAT32, .ndim = 1, .order = 'C', .device = GPU_TYPE, .name = "x"};
    Transfer transfer = {self->values, NULL, self->source.managed != NULL};
    dlpack_py_view v;
    int failed;

    same.shape = &self->length;
    same.options = DLPACK_PY_WANT_ARRAY_INTERFACE_TOO;
    if (self->source.managed != NULL && self->source.readonly != DLPACK_PY_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "the memory of this vector is read-only");
        return NULL;
    }
    if (GPU(consume)(x, &same, self->stream, &v) < 0)
        return NULL;
    if (v.tensor.device.device_id != self->device) {
        PyErr_Format(PyExc_BufferError, "x is on device %d, device %d was asked for", (int)v.tensor.device.device_id,
                     (int)self->device);
        dlpack_py_release(&v); /* no work is queued on it */
        return NULL;
    }
    transfer.from = dlpack_py_data(&v);
    failed = vector_run(self, copy_step, &transfer);
    GPU(release_unraisable)(&v, self->stream); /* behind the copy */
    return failed ? NULL : Py_BuildValue("");
}

/* ---- The type ------------------------------------------------------------ */

static PyObject *
vector_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"values", "device", NULL};
    Transfer transfer = {NULL, NULL, 1};
    PyObject *values;
    Vector *self;
    float *host;
    int device = 0;
    Py_ssize_t i, n;

    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|i", keywords, &values, &device))
        return NULL;
    values = PySequence_Tuple(values); /* __float__ of an element may change a list */
    if (values == NULL)
        return NULL;
    n = PyTuple_GET_SIZE(values);
    host = (float *)PyMem_Malloc(n > 0 ? (size_t)n * sizeof(float) : 1);
    for (i = 0; host != NULL && i < n && !PyErr_Occurred(); i++)
        host[i] = (float)PyFloat_AsDouble(PyTuple_GET_ITEM(values, i));
    Py_DECREF(values);
    if (host == NULL)
        (void)PyErr_NoMemory();
    self = PyErr_Occurred() ? NULL : vector_make(n, device);
    if (self != NULL) {
        transfer.to = self->values;
        transfer.from = host;
        if (vector_run(self, copy_step, &transfer) < 0)
            Py_CLEAR(self);
    }
    PyMem_Free(host);
    return (PyObject *)self;
}

/* tolist(): waits for the work on the vector's stream. */
static PyObject *
vector_tolist(PyObject *op, PyObject *unused)
{
    Vector *self = (Vector *)op;
    float *host = (float *)PyMem_Malloc(self->length > 0 ? (size_t)self->length * sizeof(float) : 1);
    const Transfer transfer = {host, self->values, 1};
    PyObject *list = NULL, *value;
    int64_t i;

    (void)unused;
    if (host == NULL)
        return PyErr_NoMemory();
    if (vector_run(self, copy_step, &transfer) == 0)
        list = PyList_New((Py_ssize_t)self->length);
    for (i = 0; list != NULL && i < self->length; i++) {
        value = PyFloat_FromDouble(host[i]);
        if (value == NULL || PyList_SetItem(list, (Py_ssize_t)i, value) < 0)
            Py_CLEAR(list);
    }
    PyMem_Free(host);
    return list;
}

static void
vector_dealloc(PyObject *op)
{
    Vector *self = (Vector *)op;
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback);
    if (self->source.managed != NULL)
        GPU(release_unraisable)(&self->source, self->stream);
    else if ((self->values != NULL || self->stream != NULL) && vector_run(self, free_step, NULL) < 0)
        PyErr_WriteUnraisable(NULL);
    PyErr_Restore(type, value, traceback);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef vector_methods[] = {
    DLPACK_PY_METHODS(vector_dlpack, vector_dlpack_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))vector_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nA vector over the memory of x.")},
    {"assign", vector_assign, METH_O, PyDoc_STR("assign($self, x, /)\n--\n\nCopy the values of a device array.")},
    {"tolist", vector_tolist, METH_NOARGS, PyDoc_STR("tolist($self, /)\n--\n\nThe values, when the work is done.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef vector_getset[] = {
    {"__cuda_array_interface__", vector_array_interface, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject vector_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = MODULE_NAME ".Vector",
    .tp_doc = PyDoc_STR("Vector(values, device=0)\n--\n\nFloat32 values in the memory of a device."),
    .tp_basicsize = sizeof(Vector),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = vector_new,
    .tp_dealloc = vector_dealloc,
    .tp_methods = vector_methods,
    .tp_getset = vector_getset,
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = MODULE_NAME, .m_size = -1};

PyMODINIT_FUNC
MODULE_INIT(void)
{
    PyObject *module = PyType_Ready(&vector_type) < 0 ? NULL : PyModule_Create(&module_def);
    Py_INCREF(&vector_type);
    if (module != NULL && PyModule_AddObject(module, "Vector", (PyObject *)&vector_type) < 0)
        Py_CLEAR(module);
    return module;
}

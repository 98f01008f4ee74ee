/* A device that the headers do not know, by docs/devices.md alone: a producer and a consumer with streams. The device
 * is simulated: the work on a queue runs when the host waits for that queue. docs/devices.md repeats the parts of this
 * file that stand between "docs". */
#include "dlpack_tensor.h"
#if DLPACK_MINOR_VERSION >= 3
#  include "dlpack_exchange.h"
#else
#  include "dlpack_py.h"
#endif

enum { QUEUES = 4, MAX_WORK = 64, BYTES = 8 };

/* ---- A runtime ----------------------------------------------------------- */

typedef struct {
    char *target; /* the memory that the work fills with value; NULL: the work waits for another queue */
    int value;
    int other, until; /* the other queue, and how much of its work runs before */
} Work;

typedef struct {
    Work work[MAX_WORK];
    int queued, done;
} Queue;

static Queue queues[QUEUES]; /* the handles of streams are their numbers, from 1 on */
static int orders, copies;

static void
queue_run(int number, int until)
{
    Queue *queue = &queues[number];
    while (queue->done < until) {
        const Work work = queue->work[queue->done++];
        if (work.target == NULL)
            queue_run(work.other, work.until);
        else
            memset(work.target, work.value, BYTES);
    }
}

static int
queue_add(int number, Work work)
{
    Queue *queue = &queues[number];
    if (number <= 0 || number >= QUEUES || queue->queued == MAX_WORK)
        return -1;
    queue->work[queue->queued++] = work;
    return 0;
}

static void
queue_wait(uintptr_t number)
{
    if (number < QUEUES)
        queue_run((int)number, queues[number].queued);
}

/* Work that is queued on `after` from now on runs after all work of `before`. */
static int
queue_order(uintptr_t before, uintptr_t after)
{
    Work wait = {NULL, 0, (int)before, 0};
    if (before >= QUEUES || after >= QUEUES)
        return -1;
    wait.until = queues[before].queued;
    orders++;
    return queue_add((int)after, wait);
}

/* docs: operations */
static int
third_make_ready(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    const int has_stream = request->stream.kind == DLPACK_PY_STREAM_HANDLE;
    const uintptr_t after = has_stream ? request->stream.handle : 1; /* None: the default queue */
    size_t i;

    (void)plan;
    if (request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)
        return 0;
    for (i = 0; i < offer->pending_count; i++) {
        if (offer->pending[i].handle != after && queue_order(offer->pending[i].handle, after) < 0) {
            PyErr_SetString(PyExc_BufferError, "the queues cannot be ordered");
            return -1;
        }
    }
    return 0;
}

static int
third_copy(const dlpack_py_offer *offer, const DLTensor *to, const DLTensor *from)
{
    const uint64_t padded = offer->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    DLTensor readable = *from; /* this device has the memory of the CPU; else copy it to the CPU here */
    dlpack_py_error error;
    size_t i;

    for (i = 0; i < offer->pending_count; i++)
        queue_wait(offer->pending[i].handle);
    readable.device.device_type = kDLCPU;
    readable.device.device_id = 0;
    copies++;
    return dlpack_py_copy(to, &readable, padded, &error) < 0 ? dlpack_py_raise(&error) : 0;
}

static const dlpack_py_operations third_party = {.type = kDLOneAPI, .make_ready = third_make_ready, .copy = third_copy};
/* docs: end */

/* ---- Array: a producer ----------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    char data[BYTES];
    int64_t shape;
    DLTensor tensor;
    dlpack_py_work_stream pending;
    dlpack_py_operations device;
} Array;

/* As third_copy; first changes the array's shape, as another thread can while the host waits for a queue. */
static int
third_copy_of_changed(const dlpack_py_offer *offer, const DLTensor *to, const DLTensor *from)
{
    ((Array *)offer->owner)->shape = 1;
    return third_copy(offer, to, from);
}

static int
third_work_stream(const void *table, dlpack_py_work_stream *work)
{
    (void)table;
    work->handle = 3;
    return 0;
}

/* Array(queue, lacks=0): lacks has a bit for each operation that is NULL: 1 make_ready, 2 copy, 4 get_work_stream. With
 * bit 8, the shape changes during a copy. */
static PyObject *
array_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    Array *self = (Array *)type->tp_alloc(type, 0);
    int queue, lacks = 0;

    (void)names;
    if (self == NULL || !PyArg_ParseTuple(args, "i|i", &queue, &lacks))
        return NULL;
    self->device = third_party;
    self->device.get_work_stream = third_work_stream;
    if ((lacks & 1) != 0)
        self->device.make_ready = NULL;
    if ((lacks & 2) != 0)
        self->device.copy = NULL;
    if ((lacks & 4) != 0)
        self->device.get_work_stream = NULL;
    if ((lacks & 8) != 0)
        self->device.copy = third_copy_of_changed;
    self->shape = BYTES;
    self->tensor = dlpack_py_cpu_tensor(self->data, DLPACK_PY_UINT8, 1, &self->shape, NULL);
    self->tensor.device.device_type = kDLOneAPI;
    self->pending.handle = (uintptr_t)queue;
    return (PyObject *)self;
}

static void
array_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
array_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Array *self = (Array *)op;

    (void)request;
    offer->tensor = &self->tensor;
    offer->operations = &self->device;
    offer->pending = &self->pending;
    offer->pending_count = self->pending.handle != 0;
    return 0;
}

/* docs: objects */
/* The number of a queue that is passed as an object. Returns 0, or -1 with an exception. */
static int
queue_of(PyObject *object, uintptr_t *queue)
{
    PyObject *number = PyObject_GetAttrString(object, "number");

    *queue = number == NULL ? 0 : (uintptr_t)PyLong_AsSize_t(number);
    Py_XDECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* __dlpack__, which takes queue objects as streams, and None, -1 and numbers. */
static PyObject *
array_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None, *max_version = NULL, *dl_device = NULL, *copy = NULL;
    dlpack_py_request request;
    dlpack_py_offer offer;
    int is_object;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO", names, &stream, &max_version, &dl_device, &copy))
        return NULL;
    is_object = stream != Py_None && !PyLong_Check(stream);
    if (dlpack_py_parse_request_obj_args(is_object ? NULL : stream, max_version, dl_device, copy, &request) < 0)
        return NULL;
    if (is_object) {
        request.stream.kind = DLPACK_PY_STREAM_HANDLE;
        if (queue_of(stream, &request.stream.handle) < 0)
            return NULL;
    }
    offer = dlpack_py_offer_make(self, NULL, 0);
    return array_describe(self, &request, &offer) < 0 ? NULL : dlpack_py_answer(&offer, &request);
}
/* docs: end */

static PyObject *
array_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlpack_py_produce_device(&((Array *)self)->tensor);
}

/* fill(value): work on the array's queue. */
static PyObject *
array_fill(PyObject *op, PyObject *value)
{
    Array *self = (Array *)op;
    Work work = {NULL, 0, 0, 0};

    work.target = self->data;
    work.value = (int)PyLong_AsLong(value);
    if (PyErr_Occurred() || queue_add((int)self->pending.handle, work) < 0)
        return NULL;
    Py_RETURN_NONE;
}

#define FUNCTION(function) ((PyCFunction)(void (*)(void))(function))
#define SLOT(function) ((void *)(uintptr_t)(function))

static PyMethodDef array_methods[] = {
    {"__dlpack__", FUNCTION(array_dlpack), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS, NULL},
    {"fill", array_fill, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_new, SLOT(array_new)},
    {Py_tp_dealloc, SLOT(array_dealloc)},
    {Py_tp_methods, array_methods},
    {0, NULL},
};

static PyType_Spec array_spec = {"third_party.Array", sizeof(Array), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                 array_slots};

#if DLPACK_PY_HAS_EXCHANGE_API
static int
current_queue(DLDeviceType type, int32_t id, void **out)
{
    (void)type;
    (void)id;
    *out = (void *)(uintptr_t)3;
    return 0;
}

static PyObject *
array_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    (void)type;
    dlpack_py_release(v);
    PyErr_SetString(PyExc_SystemError, "nobody makes an array here");
    return NULL;
}

static const dlpack_py_want on_device = {.device = kDLOneAPI};

DLPACK_PY_EXCHANGE_API_WITH_STREAM(array_table, array_describe, array_make_steal, &on_device, current_queue);
#endif

/* ---- A consumer -------------------------------------------------------------- */

/* docs: consumer */
/* consume(obj, queue): the first byte of the tensor, as work on the queue reads it. */
static PyObject *
consume(PyObject *module, PyObject *args)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_request request;
    dlpack_py_view v;
    PyObject *obj;
    int queue, first;

    (void)module;
    if (!PyArg_ParseTuple(args, "Oi", &obj, &queue))
        return NULL;
    memset(&request, 0, sizeof(request));
    request.stream.kind = DLPACK_PY_STREAM_HANDLE;
    request.stream.handle = (uintptr_t)queue;
    want.device = kDLOneAPI;
    want.options = DLPACK_PY_WANT_NO_TABLE; /* a table orders its library's stream, not this one */
    if (dlpack_py_consume_request(obj, &request, &want, &v) < 0)
        return NULL;
    queue_wait(request.stream.handle); /* the work of this function is done: the view can be released */
    first = *(unsigned char *)dlpack_py_data(&v);
    dlpack_py_release(&v);
    return PyLong_FromLong(first);
}
/* docs: end */

/* consume_object(obj, queue object): as consume, for producers that take queues as objects. */
static PyObject *
consume_object(PyObject *module, PyObject *args)
{
    dlpack_py_want want = dlpack_py_want_any();
    PyObject *obj, *queue, *capsule, *method, *none, *names;
    dlpack_py_view v;
    uintptr_t number;
    int first;

    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &obj, &queue) || queue_of(queue, &number) < 0)
        return NULL;
    method = PyObject_GetAttrString(obj, "__dlpack__");
    none = PyTuple_New(0);
    names = Py_BuildValue("{sOs(ii)}", "stream", queue, "max_version", 1, 1);
    capsule = method != NULL && none != NULL && names != NULL ? PyObject_Call(method, none, names) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(names);
    if (capsule == NULL)
        return NULL;
    want.device = kDLOneAPI;
    first = dlpack_py_consume(capsule, &want, &v);
    Py_DECREF(capsule);
    if (first < 0)
        return NULL;
    queue_wait(number);
    first = *(unsigned char *)dlpack_py_data(&v);
    dlpack_py_release(&v);
    return PyLong_FromLong(first);
}

/* reset(): nothing is queued. counts(): the number of orders and of copies. */
static PyObject *
reset(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    memset(queues, 0, sizeof(queues));
    orders = copies = 0;
    Py_RETURN_NONE;
}

static PyObject *
counts(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return Py_BuildValue("ii", orders, copies);
}

static PyMethodDef functions[] = {
    {"consume", consume, METH_VARARGS, NULL},
    {"consume_object", consume_object, METH_VARARGS, NULL},
    {"reset", reset, METH_NOARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "third_party", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_third_party(void)
{
    PyObject *module = PyModule_Create(&module_def), *array = PyType_FromSpec(&array_spec);

    if (module == NULL || array == NULL)
        return NULL;
#if DLPACK_PY_HAS_EXCHANGE_API
    {
        PyObject *type = PyObject_CallFunction((PyObject *)&PyType_Type, "s(O){}", "Exchanged", array);
        if (type == NULL || dlpack_py_exchange_add((PyTypeObject *)type, &array_table) < 0 ||
            PyModule_AddObject(module, "Exchanged", type) < 0)
            return NULL;
    }
#endif
    return PyModule_AddObject(module, "Array", array) < 0 ? NULL : module;
}

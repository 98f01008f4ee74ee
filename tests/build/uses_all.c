/* Uses every function of the headers for the CPU, so that a compiler sees each: as C, as C++ and in each build flavour.
 * As a module, run() exports six numbers in each way and consumes them. With USES_ALL_TENSORS it is a program that
 * uses dlpack_tensor.h without Python; with USES_ALL_PLAIN it is a module without dlpack_exchange.h. */
#ifdef USES_ALL_TENSORS
#  include "dlpack_tensor.h"
#else
#  include <Python.h> /* first: it sets feature macros for the C library */
#  include "dlpack_tensor.h"
#  if DLPACK_MINOR_VERSION >= 3 && !defined(USES_ALL_PLAIN)
#    include "dlpack_exchange.h"
#  endif
#  include "dlpack_buffer.h"
#endif

/* A function made of checks returns 0, or the line of the first check that failed. */
#define CHECK(condition)     \
    do {                     \
        if (!(condition))    \
            return __LINE__; \
    } while (0)

static const int64_t shape[2] = {2, 3}, columns[2] = {1, 2};

static int
use_tensor_layer(void)
{
    double values[6] = {0, 1, 2, 3, 4, 5}, compact[6];
    const DLTensor t = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, 2, shape, columns);
    static const size_t bytes[2] = {sizeof(double), 2 * sizeof(double)};
    DLTensor in_bytes = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, 2, shape, NULL);
    const DLTensor to = dlpack_py_cpu_tensor(compact, DLPACK_PY_FLOAT64, 2, shape, NULL);
    char text[DLPACK_PY_TEXT_SIZE];
    int64_t strides[2];
    dlpack_py_want want = dlpack_py_want_any();
    struct DLManagedTensorVersioned *managed;
    dlpack_py_error error;

    CHECK(dlpack_py_validate(&t, 0, &error) == 0);
    CHECK(dlpack_py_size(&t) == 6);
    CHECK(dlpack_py_nbytes(&t, 0) == 48);
    CHECK(dlpack_py_itemsize(t.dtype, 0) == 8);

    CHECK(dlpack_py_dtype(&t) == DLPACK_PY_FLOAT64);
    CHECK(strcmp(dlpack_py_dtype_text(DLPACK_PY_FLOAT8_E4M3FN, text), "float8_e4m3fn") == 0);
    CHECK(dlpack_py_is_cpu_readable(t.device) && strcmp(dlpack_py_device_text(t.device, text), "cpu") == 0);

    CHECK(dlpack_py_is_contiguous(&t, 'F') && !dlpack_py_is_contiguous(&t, 'C'));
    dlpack_py_compact_strides(2, shape, 'F', strides);
    CHECK(memcmp(strides, columns, sizeof(strides)) == 0);
    CHECK(!dlpack_py_may_overlap(&t, 0, &to, 0));
    CHECK(dlpack_py_to_int64(2, bytes, sizeof(*bytes), strides) == strides && strides[0] == 8);
    CHECK(dlpack_py_strides_from_bytes(&in_bytes, strides, 0, &error) == 0 && strides[1] == 2 &&
          in_bytes.strides == strides);
    CHECK(dlpack_py_copy(&to, &t, 0, &error) == 0 && compact[1] >= 2 && compact[1] <= 2);
#ifdef DLPACK_COPY_H
    {
        const dlpack_copy_loop rows = {2, 24, 8}, items = {3, 8, 16};
        memset(compact, 0, sizeof(compact));
        dlpack_copy_rows((char *)compact, &rows, (const char *)values, &items, 8, 48);
        CHECK(compact[1] >= 2 && compact[1] <= 2);
    }
#endif
    CHECK(dlpack_py_check_tensor(&t, DLPACK_PY_WRITABLE, &want, &error) == 0);
    want.order = 'C';
    CHECK(dlpack_py_check_tensor(&t, DLPACK_PY_WRITABLE, &want, &error) < 0 && error.code == DLPACK_PY_BUFFER_ERROR);
    want = dlpack_py_want_like(&t);
    CHECK(dlpack_py_check_tensor(&t, DLPACK_PY_WRITABLE, &want, &error) == 0);
    managed = dlpack_py_allocate(&t, &error);
    CHECK(managed != NULL && dlpack_py_copy(&managed->dl_tensor, &t, 0, &error) == 0);
    managed->deleter(managed);
    managed = dlpack_py_wrap(&t, DLPACK_PY_FLAG_READ_ONLY, NULL, NULL);
    CHECK(managed != NULL && managed->dl_tensor.data == values);
    managed->deleter(managed);
    return 0;
}

#ifdef USES_ALL_TENSORS

int
main(void)
{
    return use_tensor_layer() != 0;
}

#else

typedef struct Numbers {
    PyObject_HEAD
    double values[6];
#if DLPACK_PY_HAS_EXCHANGE_API
    int64_t shape[2], strides[2];
    dlpack_py_embedded embedded;
#endif
} Numbers;

static DLTensor
describe(PyObject *self)
{
    return dlpack_py_cpu_tensor(((Numbers *)self)->values, DLPACK_PY_FLOAT64, 2, shape, columns);
}

static PyObject *
numbers_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const DLTensor t = describe(self);
    return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
}

static PyObject *
numbers_device(PyObject *self, PyObject *unused)
{
    const DLTensor t = describe(self);
    PyObject *device = dlpack_py_produce_device(&t), *same = dlpack_py_cpu_device(self, unused);
    Py_XDECREF(same);
    return device;
}

static PyMethodDef numbers_methods[] = {
    DLPACK_PY_METHODS(numbers_dlpack, numbers_device),
    {NULL, NULL, 0, NULL},
};

static int
numbers_describe_plainly(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    static DLTensor t;
    (void)request;
    t = describe(self);
    *offer = dlpack_py_offer_make(self, &t, 0);
    return 0;
}

DLPACK_BUFFER_DESCRIBED(numbers, numbers_describe_plainly);
DLPACK_BUFFER_ARRAY_INTERFACE(numbers, numbers_describe_plainly);

static PyType_Slot numbers_slots[] = {
    {Py_tp_methods, numbers_methods},
    {0, NULL},
};

static PyType_Spec numbers_spec = {"uses_all.Numbers", sizeof(Numbers), 0, Py_TPFLAGS_DEFAULT, numbers_slots};

static int
visit(PyObject *object, void *expected)
{
    return object == (PyObject *)expected;
}

/* Checks that x offers the memory of owner. Steals the reference to x, so that a capsule is freed too. */
static int
check_taken(PyObject *x, PyObject *owner)
{
    dlpack_py_view first, v;
    CHECK(x != NULL);
    CHECK(dlpack_py_has_tensor(x));
    CHECK(dlpack_py_consume(x, NULL, &first) == 0);
    Py_DECREF(x);
    dlpack_py_move(&v, &first);
    CHECK(dlpack_py_data(&v) == ((Numbers *)owner)->values);
    (void)dlpack_py_traverse(&v, visit, owner);
    dlpack_py_release(&v);
    return 0;
}

static int
use_consumer(PyObject *owner)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_request request;
    PyObject *bytes;
    DLDevice device;
    uint32_t dtype;
    dlpack_py_view v;

    CHECK(dlpack_py_init() == 0);
    CHECK(dlpack_py_consume(owner, NULL, &v) == 0);
    dlpack_py_release(&v);
    CHECK(dlpack_py_from_dlpack(&owner, 1, NULL, NULL, &v) == 0);
    dlpack_py_release(&v);
    CHECK(dlpack_py_from_dlpack_obj_args(owner, NULL, Py_True, NULL, &v) == 0);
    dlpack_py_release(&v);
    CHECK(dlpack_py_parse_dtype(owner, &dtype) < 0 && PyErr_ExceptionMatches(PyExc_AttributeError));
    PyErr_Clear();
    CHECK(dlpack_py_parse_device(owner, &device) == 0 && device.device_type == kDLCPU && device.device_id == 0);
    CHECK(dlpack_py_parse_request_obj_args(NULL, NULL, NULL, Py_False, &request) == 0);
    CHECK(dlpack_py_consume_request(owner, &request, NULL, &v) == 0);
    CHECK(dlpack_py_data(&v) == ((Numbers *)owner)->values);
    dlpack_py_release(&v);
    want.fallback = dlpack_buffer_fallback;
    bytes = PyBytes_FromString("abc");
    CHECK(bytes != NULL && dlpack_py_consume(bytes, &want, &v) == 0);
    CHECK(v.readonly == DLPACK_PY_READ_ONLY);
    dlpack_py_release(&v);
    Py_DECREF(bytes);
    return 0;
}

static int
use_buffer(PyObject *owner)
{
    static PyMethodDef methods[] = {DLPACK_BUFFER_METHODS, {NULL, NULL, 0, NULL}};
    PyObject *bytes = PyBytes_FromString("abc"), *made;
    Py_buffer buffer;

    CHECK(bytes != NULL && methods[0].ml_name != NULL);
    made = dlpack_buffer_dlpack(bytes, NULL, 0, NULL);
    CHECK(made == NULL &&
          PyErr_ExceptionMatches(PyExc_BufferError)); /* read-only memory, but a legacy capsule was asked for */
    PyErr_Clear();
    Py_DECREF(bytes);
    CHECK(numbers_getbuffer(owner, &buffer, PyBUF_FULL_RO) == 0);
    CHECK(buffer.buf == ((Numbers *)owner)->values);
    dlpack_buffer_release(owner, &buffer);
    Py_DECREF(buffer.obj);
    made = numbers_array_interface(owner, NULL);
    CHECK(made != NULL);
    Py_DECREF(made);
    made = dlpack_buffer_memoryview(owner, NULL);
    if (dlpack_buffer_get(owner, NULL, &buffer, PyBUF_FULL_RO) == 0)
        PyBuffer_Release(&buffer);
    CHECK(made != NULL);
    Py_DECREF(made);
    return 0;
}

static int
use_producer(PyObject *owner)
{
    const DLTensor t = describe(owner);
    dlpack_py_counter exports;
    dlpack_py_request request;
    dlpack_py_offer offer;
    dlpack_py_view v;
    int line;

    Py_INCREF(owner);
    line = check_taken(owner, owner);
    CHECK(line == 0);
    line = check_taken(dlpack_py_produce_obj_args(owner, &t, 0, NULL, NULL, NULL, NULL), owner);
    CHECK(line == 0);
    line = check_taken(dlpack_py_capsule_steal(dlpack_py_wrap(&t, 0, NULL, NULL), DLPACK_PY_VERSIONED), owner);
    CHECK(line == 0);
    line = check_taken(dlpack_py_object_steal(dlpack_py_wrap(&t, 0, NULL, NULL), DLPACK_PY_VERSIONED), owner);
    CHECK(line == 0);

    CHECK(dlpack_py_parse_request(NULL, 0, NULL, &request) == 0);
    offer = dlpack_py_offer_make(owner, &t, 0);
    memset(&exports, 0, sizeof(exports));
    offer.exports = &exports;
    line = check_taken(dlpack_py_answer(&offer, &request), owner);
    CHECK(line == 0);
    CHECK(dlpack_py_exports_count(&exports) == 0);
    CHECK(dlpack_py_consume(owner, NULL, &v) == 0);
    offer = dlpack_py_offer_view(owner, &v.tensor, &v);
    line = check_taken(dlpack_py_answer(&offer, &request), owner);
    CHECK(line == 0);
    dlpack_py_release(&v);
    return 0;
}

DLPACK_PY_DESCRIBED(described, numbers_describe_plainly);

static int
use_described(PyObject *owner)
{
    PyObject *device = described_dlpack_device(owner, NULL);
    int line;

    CHECK(device != NULL);
    Py_DECREF(device);
    line = check_taken(described_dlpack(owner, NULL, 0, NULL), owner);
    CHECK(line == 0);
    line = check_taken(dlpack_py_produce_described(owner, numbers_describe_plainly, NULL, 0, NULL), owner);
    CHECK(line == 0);
    return 0;
}

#if DLPACK_PY_HAS_EXCHANGE_API

static int
numbers_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    (void)request;
    *offer = dlpack_py_offer_embedded(&((Numbers *)self)->embedded);
    return 0;
}

static PyObject *
numbers_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    PyObject *self = PyObject_CallObject((PyObject *)type, NULL);
    DLTensor t;
    if (self != NULL) {
        t = describe(self);
        (void)dlpack_py_copy(&t, &v->tensor, v->flags, NULL);
    }
    dlpack_py_release(v);
    return self;
}

DLPACK_PY_EXCHANGE_API(numbers_exchange, numbers_describe, numbers_make_steal, NULL);
#ifdef DLPACK_PY_EXCHANGE_API_EMBEDDED
DLPACK_PY_EXCHANGE_API_EMBEDDED(numbers_embedded_exchange, numbers_describe, numbers_make_steal, NULL,
                                offsetof(Numbers, embedded));
#endif

static int
numbers_stream(DLDeviceType type, int32_t id, void **stream)
{
    (void)type;
    (void)id;
    (void)stream;
    return 0;
}

DLPACK_PY_EXCHANGE_API_WITH_STREAM(numbers_on_stream, numbers_describe, numbers_make_steal, NULL, numbers_stream);

/* The type has an exchange table from here. */
static int
use_exchange(Numbers *owner)
{
    PyObject *like = (PyObject *)owner, *made;
    const DLTensor t = describe(like);
    struct DLManagedTensorVersioned *managed;
    dlpack_py_error error;
    dlpack_py_view v;
    void *none = &v;

    managed = dlpack_py_wrap(&t, 0, NULL, NULL);
    CHECK(numbers_on_stream.api.managed_tensor_to_py_object_no_sync(managed, &none) < 0 && none == NULL);
    CHECK(PyErr_ExceptionMatches(PyExc_RuntimeError)); /* the table was added to no type */
    PyErr_Clear();
#ifdef DLPACK_PY_EXCHANGE_API_EMBEDDED
    CHECK(dlpack_py_exchange_add(Py_TYPE(like), &numbers_embedded_exchange) == 0);
#endif
    CHECK(dlpack_py_exchange_add(Py_TYPE(like), &numbers_exchange) == 0);
    CHECK(numbers_exchange.api.managed_tensor_from_py_object_no_sync(owner, &managed) == 0);
    managed->deleter(managed);
    CHECK(dlpack_py_borrow(like, NULL, &v) == 0 && dlpack_py_data(&v) == owner->values);
    dlpack_py_release(&v);
    CHECK(dlpack_py_allocate_like(like, &t, &v) == 0);
    CHECK(dlpack_py_copy(&v.tensor, &t, 0, &error) == 0);
    CHECK(dlpack_py_check_like(like) == 0);
    made = dlpack_py_return_like_steal(like, &v);
    CHECK(made != NULL && memcmp(((Numbers *)made)->values, owner->values, sizeof(owner->values)) == 0);
    Py_DECREF(made);
    return 0;
}

static int
use_embedded(Numbers *owner)
{
    dlpack_py_embedded *e = &owner->embedded;
    DLTensor t;
    int line;

    memcpy(owner->shape, shape, sizeof(shape));
    memcpy(owner->strides, columns, sizeof(columns));
    t = dlpack_py_cpu_tensor(owner->values, DLPACK_PY_FLOAT64, 2, owner->shape, owner->strides);
    CHECK(dlpack_py_embed(e, (PyObject *)owner, &t, 0) == 0);
    line =
        check_taken(dlpack_py_produce_described((PyObject *)owner, numbers_describe, NULL, 0, NULL), (PyObject *)owner);
    CHECK(line == 0);
    Py_INCREF((PyObject *)owner); /* the reference that an export holds */
    line = check_taken(dlpack_py_capsule_steal(&e->legacy, DLPACK_PY_LEGACY), (PyObject *)owner);
    CHECK(line == 0);
    line = use_exchange(owner);
    CHECK(line == 0);
    return 0;
}

#endif

/* Raises RuntimeError with the line of a check that failed. */
static PyObject *
run(PyObject *module, PyObject *unused)
{
    PyObject *type = PyType_FromSpec(&numbers_spec), *owner;
    dlpack_py_error error;
    int line;
    (void)module;
    (void)unused;

    owner = type == NULL ? NULL : PyObject_CallObject(type, NULL);
    if (owner == NULL)
        return NULL;
    line = use_tensor_layer();
    if (line == 0)
        line = use_consumer(owner);
    if (line == 0)
        line = use_buffer(owner);
    if (line == 0)
        line = use_producer(owner);
    if (line == 0)
        line = use_described(owner);
#if DLPACK_PY_HAS_EXCHANGE_API
    if (line == 0)
        line = use_embedded((Numbers *)owner);
#endif
    if (line == 0 && Py_REFCNT(owner) != 1)
        line = __LINE__;
    Py_DECREF(owner);
    Py_DECREF(type);
    if (line == 0)
        Py_RETURN_NONE;
    if (PyErr_Occurred())
        return NULL;
    error.code = DLPACK_PY_RUNTIME_ERROR;
    snprintf(error.text, sizeof(error.text), "the check in line %d failed", line);
    (void)dlpack_py_raise(&error);
    return NULL;
}

static PyMethodDef functions[] = {
    {"run", run, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "uses_all", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_uses_all(void)
{
    return PyModuleDef_Init(&definition);
}

#endif

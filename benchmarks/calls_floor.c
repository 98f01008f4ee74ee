/* calls_floor - the calls of calls.c, by the floor: C by hand, without this library */

#include "floor/dlpack_py.h"

typedef struct {
    PyObject_HEAD
    floor_export embedded;
    int64_t shape[2], strides[2];
    double values[12];
} Own;

static PyTypeObject own_type, plain_type;

static PyObject *
own_make(PyTypeObject *type)
{
    Own *self = (Own *)type->tp_alloc(type, 0);
    DLTensor t;
    if (self == NULL)
        return NULL;
    self->shape[0] = 3;
    self->shape[1] = self->strides[0] = 4;
    self->strides[1] = 1;
    t = dlpack_py_cpu(self->values, DLPACK_PY_FLOAT64, 2, self->shape, self->strides);
    floor_fill(&self->embedded, (PyObject *)self, &t, 0);
    return (PyObject *)self;
}

static PyObject *
own_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    return own_make(type);
}

static void
own_dealloc(PyObject *op)
{
    Py_TYPE(op)->tp_free(op);
}

static PyObject *
own_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const int versioned = floor_parse(args, nargs, kwnames);
    PyObject *capsule = versioned < 0 ? NULL : floor_capsule(&((Own *)op)->embedded, versioned);
    if (capsule != NULL)
        Py_INCREF(op);
    return capsule;
}

/* The same, but each export is allocated, as in the README. */
static PyObject *
own_dlpack_allocated(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const int64_t shape[2] = {3, 4};
    DLTensor t = dlpack_py_cpu(((Own *)op)->values, DLPACK_PY_FLOAT64, 2, shape, NULL);
    return dlpack_py_produce(op, &t, 0, args, nargs, kwnames);
}

/* A producer from before 2024: its signature refuses the keyword max_version. */
static PyObject *
own_dlpack_old(PyObject *op, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", NULL};
    PyObject *stream = Py_None, *capsule;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O:__dlpack__", names, &stream))
        return NULL;
    capsule = floor_capsule(&((Own *)op)->embedded, 0);
    if (capsule != NULL)
        Py_INCREF(op);
    return capsule;
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef own_methods[] = {
    DLPACK_PY_METHODS(own_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};
static PyMethodDef simple_methods[] = {
    DLPACK_PY_METHODS(own_dlpack_allocated, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};
static PyMethodDef old_methods[] = {
    {"__dlpack__", FASTCALL(own_dlpack_old), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", dlpack_py_cpu_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define ARRAY_TYPE(name, methods)                                     \
    {                                                                 \
        PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls_floor." name, \
        .tp_basicsize = sizeof(Own),                                  \
        .tp_flags = Py_TPFLAGS_DEFAULT,                               \
        .tp_new = own_new,                                            \
        .tp_dealloc = own_dealloc,                                    \
        .tp_methods = methods,                                        \
    }
static PyTypeObject own_type = ARRAY_TYPE("Own", own_methods);
static PyTypeObject plain_type = ARRAY_TYPE("Plain", own_methods);
static PyTypeObject simple_type = ARRAY_TYPE("Simple", simple_methods);
static PyTypeObject old_type = ARRAY_TYPE("Old", old_methods);

/* ---- Consumers ----------------------------------------------------------- */

static const dlpack_py_want matrix = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C'};
static const dlpack_py_want writable_matrix = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C', .writable = 1};

/* The exchange table of the type that was seen last. The type is kept alive, and must not change. */
static const DLPackExchangeAPI *
find_table(PyTypeObject *type)
{
    static PyTypeObject *known;
    static const DLPackExchangeAPI *table;
    if (type != known) {
        PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
        const DLPackExchangeAPI *found = NULL;
        if (capsule != NULL)
            found = (const DLPackExchangeAPI *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_XDECREF(capsule);
        if (found == NULL || found->header.version.major != 1) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_BufferError, "the exchange table has another version");
            return NULL;
        }
        Py_INCREF(type);
        Py_XDECREF(known);
        known = type;
        table = found;
    }
    return table;
}

static int
borrow_one(PyObject *obj, DLTensor *t)
{
    const DLPackExchangeAPI *table;
    if (Py_TYPE(obj) == &own_type)
        *t = ((Own *)obj)->embedded.versioned.dl_tensor;
    else if ((table = find_table(Py_TYPE(obj))) == NULL || table->dltensor_from_py_object_no_sync(obj, t) != 0)
        return -1;
    return floor_check(t, 0, &matrix);
}

static PyObject *
borrow(PyObject *Py_UNUSED(module), PyObject *obj)
{
    DLTensor t;
    if (borrow_one(obj, &t) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
borrow_many(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    DLTensor t[4];
    Py_ssize_t i;
    for (i = 0; i < nargs && i < 4; i++) {
        if (borrow_one(args[i], &t[i]) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* Takes a tensor by the exchange table, and owns it for the call. */
static PyObject *
consume_by_table(PyObject *Py_UNUSED(module), PyObject *obj)
{
    DLManagedTensorVersioned *managed = NULL;
    const DLPackExchangeAPI *table;
    int failed;
    if (Py_TYPE(obj) == &own_type) {
        managed = &((Own *)obj)->embedded.versioned;
        Py_INCREF(obj);
    }
    else if ((table = find_table(Py_TYPE(obj))) == NULL ||
             table->managed_tensor_from_py_object_no_sync(obj, &managed) != 0) {
        return NULL;
    }
    failed = floor_check(&managed->dl_tensor, 0, &matrix) < 0;
    if (managed->deleter != NULL)
        managed->deleter(managed);
    if (failed)
        return NULL;
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

static PyObject *
consume_writable(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    if (dlpack_py_consume(obj, &writable_matrix, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

static PyObject *
consume_many(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    dlpack_py_view v[4];
    Py_ssize_t i;
    int failed = 0;
    for (i = 0; i < nargs && i < 4 && !failed; i++)
        failed = dlpack_py_consume(args[i], &matrix, &v[i]) < 0;
    for (i -= failed; i-- > 0;)
        dlpack_py_release(&v[i]);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- Results, and an array that holds the memory of another library ------- */

typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
} Held;

static void
held_dealloc(PyObject *op)
{
    dlpack_py_release(&((Held *)op)->view);
    Py_TYPE(op)->tp_free(op);
}

static PyTypeObject held_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls_floor.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = held_dealloc,
};

static PyObject *
from_dlpack(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    Held *self;
    if (dlpack_py_consume(obj, &matrix, &v) < 0)
        return NULL;
    self = (Held *)held_type.tp_alloc(&held_type, 0);
    if (self == NULL)
        dlpack_py_release(&v);
    else
        self->view = v;
    return (PyObject *)self;
}

static PyObject *
make(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return own_make(&own_type);
}

static PyObject *
make_through(PyObject *Py_UNUSED(module), PyObject *function)
{
    PyObject *own = own_make(&plain_type), *made = NULL;
    if (own != NULL)
        made = PyObject_CallOneArg(function, own);
    Py_XDECREF(own);
    return made;
}

/* PyTorch destroys a tensor without the GIL. */
static void
delete_detached(DLManagedTensorVersioned *managed)
{
    const PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)managed->manager_ctx);
    PyGILState_Release(state);
}

/* return_by_table(like, own): an array of this module as an array of another library, by its exchange table. */
static PyObject *
return_by_table(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    const DLPackExchangeAPI *table = nargs == 2 ? find_table(Py_TYPE(args[0])) : NULL;
    void *made = NULL;
    DLManagedTensorVersioned *managed;
    if (table == NULL)
        return NULL;
    managed = &((Own *)args[1])->embedded.versioned;
    managed->deleter = delete_detached;
    Py_INCREF(args[1]);
    return table->managed_tensor_to_py_object_no_sync(managed, &made) != 0 ? NULL : (PyObject *)made;
}

static PyMethodDef functions[] = {
    {"borrow", borrow, METH_O, NULL},
    {"borrow_many", FASTCALL(borrow_many), METH_FASTCALL, NULL},
    {"consume_by_table", consume_by_table, METH_O, NULL},
    {"consume", consume, METH_O, NULL},
    {"consume_writable", consume_writable, METH_O, NULL},
    {"consume_many", FASTCALL(consume_many), METH_FASTCALL, NULL},
    {"from_dlpack", from_dlpack, METH_O, NULL},
    {"make", make, METH_NOARGS, NULL},
    {"make_through", make_through, METH_O, NULL},
    {"return_by_table", FASTCALL(return_by_table), METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "calls_floor", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_calls_floor(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL || PyType_Ready(&held_type) < 0 || PyModule_AddType(module, &own_type) < 0 ||
        PyModule_AddType(module, &plain_type) < 0 || PyModule_AddType(module, &simple_type) < 0 ||
        PyModule_AddType(module, &old_type) < 0)
        return NULL;
    return module;
}

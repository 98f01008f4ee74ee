/* A type that exports and imports in each way, and functions that many threads call at once. To start at the same time,
 * the threads wait for each other without a thread state. */
#include <Python.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "../counted_blocks.h"
#include "dlpack_exchange.h"
#include "../lends.h"

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(intptr_t)(function))

/* ---- Threads that wait for each other ------------------------------------- */

/* Returns when `count` threads have called it. Works again for each further group of `count` calls. */
static void
wait_for_all(atomic_int *arrived, int count)
{
    const int ticket = atomic_fetch_add(arrived, 1), last = ticket - ticket % count + count;
    while (atomic_load(arrived) < last)
        sched_yield();
}

/* meet(count): waits until `count` threads have called it. */
static PyObject *
meet(PyObject *Py_UNUSED(module), PyObject *number)
{
    static atomic_int arrived;
    const int count = (int)PyLong_AsLong(number);
    if (PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    wait_for_all(&arrived, count);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* state(): the address of the interpreter's state. */
static PyObject *
state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    dlp_state *found = dlp_state_get();
    return found == NULL ? NULL : PyLong_FromVoidPtr(found);
}

static PyObject *
count_blocks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(atomic_load(&blocks));
}

/* records(): the number of types with a table that the header knows, in all interpreters. */
static PyObject *
count_records(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(atomic_load(&records));
}

/* ---- Things --------------------------------------------------------------- */

/* An object of a type from new_type(). Thing() holds four numbers and exports them in place. Thing(source) imports the
 * memory of source and exports that memory. */
typedef struct {
    PyObject_HEAD
    dlpack_py_embedded tensors;
    _Alignas(8) double numbers[4]; /* describe is skipped only if they are aligned to their size (C9) */
    int64_t shape[2], strides[2];
    dlpack_py_view view;
    int requests;     /* how often __dlpack__ was called */
    int descriptions; /* how often describe was called */
} Thing;

static Thing *
thing_alloc(PyTypeObject *type)
{
    allocfunc alloc = (allocfunc)(intptr_t)PyType_GetSlot(type, Py_tp_alloc);
    return (Thing *)alloc(type, 0);
}

static PyObject *
thing_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    Thing *self = thing_alloc(type);
    if (self == NULL)
        dlpack_py_release(v);
    else
        dlpack_py_move(&self->view, v);
    return (PyObject *)self;
}

static PyObject *
thing_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *source = Py_None;
    unsigned long long flags = 0;
    dlpack_py_view v;
    Thing *self;
    DLTensor t;
    int i;

    if (!PyArg_ParseTuple(args, "|OK", &source, &flags))
        return NULL;
    if (source != Py_None)
        return dlpack_py_consume(source, NULL, &v) < 0 ? NULL : thing_make_steal(type, &v);
    self = thing_alloc(type);
    if (self == NULL)
        return NULL;
    for (i = 0; i < 4; i++)
        self->numbers[i] = i;
    self->shape[0] = 4;
    self->strides[0] = 1;
    t = dlpack_py_cpu_tensor(self->numbers, DLPACK_PY_FLOAT64, 1, self->shape, self->strides);
    if (dlpack_py_embed(&self->tensors, (PyObject *)self, &t, flags) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
thing_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    freefunc release = (freefunc)(intptr_t)PyType_GetSlot(type, Py_tp_free);

    dlpack_py_release(&((Thing *)op)->view);
    release(op);
    Py_DECREF(type);
}

static int
thing_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Thing *self = (Thing *)op;
    self->requests += request != NULL;
    self->descriptions++;
    *offer = self->view.managed != NULL ? dlpack_py_offer_view(op, &self->view.tensor, &self->view)
                                        : dlpack_py_offer_embedded(&self->tensors);
    return 0;
}

static PyObject *
thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return dlpack_py_produce_described(self, thing_describe, args, nargs, kwnames);
}

/* embed_singles(): tries to embed float32 without strides. */
static PyObject *
thing_embed_singles(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Thing *self = (Thing *)op;
    const DLTensor t = dlpack_py_cpu_tensor(self->numbers, DLPACK_PY_FLOAT32, 1, self->shape, NULL);
    if (dlpack_py_embed(&self->tensors, op, &t, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* embed_matrix(first, second): embeds the numbers as a matrix of two rows, with these strides. */
static PyObject *
thing_embed_matrix(PyObject *op, PyObject *args)
{
    Thing *self = (Thing *)op;
    int first, second;
    DLTensor t;

    if (!PyArg_ParseTuple(args, "ii", &first, &second))
        return NULL;
    self->shape[0] = self->shape[1] = 2;
    self->strides[0] = first;
    self->strides[1] = second;
    t = dlpack_py_cpu_tensor(self->numbers, DLPACK_PY_FLOAT64, 2, self->shape, self->strides);
    memset(&self->tensors, 0x55, sizeof(self->tensors)); /* uninitialized, as malloc leaves memory */
    if (dlpack_py_embed(&self->tensors, op, &t, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* embed_misaligned(offset): embeds two numbers that begin at this byte of the memory. */
static PyObject *
thing_embed_misaligned(PyObject *op, PyObject *offset)
{
    static int64_t two[] = {2}, one[] = {1};
    Thing *self = (Thing *)op;
    const DLTensor t =
        dlpack_py_cpu_tensor((char *)self->numbers + PyLong_AsLong(offset), DLPACK_PY_FLOAT64, 1, two, one);
    if (dlpack_py_embed(&self->tensors, op, &t, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* descriptions(): how often describe was called. */
static PyObject *
thing_descriptions(PyObject *op, PyObject *Py_UNUSED(unused))
{
    return PyLong_FromLong(((Thing *)op)->descriptions);
}

static PyMethodDef thing_methods[] = {
    DLPACK_PY_METHODS(thing_dlpack, dlpack_py_cpu_device),
    {"descriptions", thing_descriptions, METH_NOARGS, NULL},
    {"embed_matrix", thing_embed_matrix, METH_VARARGS, NULL},
    {"embed_misaligned", thing_embed_misaligned, METH_O, NULL},
    {"embed_singles", thing_embed_singles, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot thing_slots[] = {
    {Py_tp_new, SLOT(thing_new)},
    {Py_tp_dealloc, SLOT(thing_dealloc)},
    {Py_tp_methods, thing_methods},
    {0, NULL},
};
static PyType_Spec thing_spec = {"race_probe.Thing", sizeof(Thing), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                 thing_slots};

#if DLPACK_PY_HAS_EXCHANGE_API
DLPACK_PY_EXCHANGE_API_EMBEDDED(thing_exchange, thing_describe, thing_make_steal, NULL, offsetof(Thing, tensors));
#endif

/* add_table(type): adds the exchange table that all types of new_type() share. */
static PyObject *
add_table(PyObject *Py_UNUSED(module), PyObject *type)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    if (dlpack_py_exchange_add((PyTypeObject *)type, &thing_exchange) < 0)
        return NULL;
#else
    (void)type;
#endif
    Py_RETURN_NONE;
}

/* new_type_without_table(): a new type. */
static PyObject *
new_type_without_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyType_FromSpec(&thing_spec);
}

/* new_type(): a new type with an exchange table. */
static PyObject *
new_type(PyObject *module, PyObject *unused)
{
    PyObject *type = new_type_without_table(module, unused);
    PyObject *added = type == NULL ? NULL : add_table(module, type);
    if (added == NULL)
        Py_CLEAR(type);
    Py_XDECREF(added);
    return type;
}

/* ---- Consumers ------------------------------------------------------------ */

static const int64_t four[1] = {4};
static const dlpack_py_want any_numbers = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1};
static const dlpack_py_want four_numbers = {.dtype = DLPACK_PY_FLOAT64, .ndim = 1, .shape = four};

static double
add_up(const dlpack_py_view *v)
{
    const double *numbers = (const double *)dlpack_py_data(v);
    double total = 0;
    int64_t i;
    for (i = 0; i < v->tensor.shape[0]; i++)
        total += numbers[i * v->tensor.strides[0]];
    return total;
}

static PyObject *
borrow(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    double total;
    if (dlpack_py_borrow(obj, &four_numbers, &v) < 0)
        return NULL;
    total = add_up(&v);
    dlpack_py_release(&v);
    return PyFloat_FromDouble(total);
}

/* consume(obj), consume_detached(obj): consume_detached releases the view without a thread state. */
static PyObject *
consume_here(PyObject *obj, int detached)
{
    dlpack_py_view v;
    double total;
    if (dlpack_py_consume(obj, &four_numbers, &v) < 0)
        return NULL;
    total = add_up(&v);
    if (detached) {
        Py_BEGIN_ALLOW_THREADS
        dlpack_py_release(&v);
        Py_END_ALLOW_THREADS
    }
    else
        dlpack_py_release(&v);
    return PyFloat_FromDouble(total);
}

static PyObject *
consume(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return consume_here(obj, 0);
}

static PyObject *
consume_detached(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return consume_here(obj, 1);
}

/* from_dlpack(obj): consumes by dlpack_py_from_dlpack, called with one argument. */
static PyObject *
from_dlpack(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    double total;
    if (dlpack_py_from_dlpack(&obj, 1, NULL, &any_numbers, &v) < 0)
        return NULL;
    total = add_up(&v);
    dlpack_py_release(&v);
    return PyFloat_FromDouble(total);
}

/* skips_describe(): whether consumers of this module take an embedded tensor without a call of describe. */
static PyObject *
skips_describe(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
#ifdef Py_GIL_DISABLED
    return PyBool_FromLong(0);
#else
    return PyBool_FromLong(DLP_TYPE_ENTRIES && !DLPACK_PY_PLAIN);
#endif
}

/* look(thing, borrows, writable, options, dtype=float64, max_ndim=0, ndim=1, order='\0'): (readonly, whether the view
 * owns a tensor, calls of __dlpack__). */
static PyObject *
look(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *obj;
    dlpack_py_want want = four_numbers;
    dlpack_py_view v;
    int borrows, writable, readonly, is_owner, before, order = 0;
    unsigned int options;

    if (!PyArg_ParseTuple(args, "OppI|IiiC", &obj, &borrows, &writable, &options, &want.dtype, &want.max_ndim,
                          &want.ndim, &order))
        return NULL;
    want.order = (char)order;
    if (want.dtype == 0 || want.max_ndim != 0 || want.ndim != 1) /* any shape */
        want.shape = NULL;
    want.writable = (char)writable;
    want.options = options;
    before = ((Thing *)obj)->requests;
    if ((borrows ? dlpack_py_borrow(obj, &want, &v) : dlpack_py_consume(obj, &want, &v)) < 0)
        return NULL;
    readonly = v.readonly;
    is_owner = v.managed != NULL;
    dlpack_py_release(&v);
    return Py_BuildValue("(iNi)", readonly, PyBool_FromLong(is_owner), ((Thing *)obj)->requests - before);
}

/* consume_integers(obj): BufferError for float64. */
static PyObject *
consume_integers(PyObject *Py_UNUSED(module), PyObject *obj)
{
    static const dlpack_py_want integers = {.dtype = DLPACK_PY_INT32};
    dlpack_py_view v;
    if (dlpack_py_consume(obj, &integers, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

static PyObject *
check(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return PyBool_FromLong(dlpack_py_has_tensor(obj));
}

/* wait_until_taken(capsule): checks the capsule until it is consumed. */
static PyObject *
wait_until_taken(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    while (dlpack_py_has_tensor(capsule)) {
        Py_BEGIN_ALLOW_THREADS
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* return_like(like, obj): the tensor of obj as an array of the library of like. */
static PyObject *
return_like(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *like, *obj;
    dlpack_py_view v;
    if (!PyArg_ParseTuple(args, "OO", &like, &obj) || dlpack_py_consume(obj, NULL, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(like, &v);
}

/* allocate_like(like): allocates four numbers by the library of like, releases them, and returns their sum. */
static PyObject *
allocate_like(PyObject *Py_UNUSED(module), PyObject *like)
{
    const DLTensor prototype = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT64, 1, four, NULL);
    dlpack_py_view v;
    double total;
    int i;

    if (dlpack_py_allocate_like(like, &prototype, &v) < 0)
        return NULL;
    for (i = 0; i < 4; i++)
        ((double *)dlpack_py_data(&v))[i] = i;
    total = add_up(&v);
    dlpack_py_release(&v);
    return PyFloat_FromDouble(total);
}

/* writable_buffer(obj): requests a writable buffer, and returns whether its field readonly is set. */
static PyObject *
writable_buffer(PyObject *Py_UNUSED(module), PyObject *obj)
{
    Py_buffer buffer;
    int readonly;
    if (PyObject_GetBuffer(obj, &buffer, PyBUF_WRITABLE) < 0)
        return NULL;
    readonly = buffer.readonly;
    PyBuffer_Release(&buffer);
    return PyBool_FromLong(readonly);
}

/* ---- Threads that Python did not create ----------------------------------- */

typedef struct {
    pthread_t id;
    dlpack_py_view view;
    atomic_int *arrived;
    int count, attached;
} Worker;

static void *
release_at_once(void *arg)
{
    Worker *self = (Worker *)arg;
    wait_for_all(self->arrived, self->count);
    if (self->attached) {
        const PyGILState_STATE before = PyGILState_Ensure();
        dlpack_py_release(&self->view);
        PyGILState_Release(before);
    }
    else
        dlpack_py_release(&self->view);
    return NULL;
}

/* release_on_threads(sources, attached=0): consumes each source and empties the list. Then one thread for each source
 * releases its view, all at once. The first `attached` threads have a thread state. */
static PyObject *
release_on_threads(PyObject *Py_UNUSED(module), PyObject *args)
{
    enum { MOST = 16 };
    Worker workers[MOST];
    atomic_int arrived = 0;
    int i, started, count = 0, attached = 0;
    PyObject *list;

    if (!PyArg_ParseTuple(args, "O!|i", &PyList_Type, &list, &attached))
        return NULL;
    for (; count < MOST && count < PyList_Size(list); count++) {
        if (dlpack_py_consume(PyList_GetItem(list, count), &four_numbers, &workers[count].view) < 0)
            return NULL;
        workers[count].attached = count < attached;
    }
    if (PyList_SetSlice(list, 0, PyList_Size(list), NULL) < 0)
        return NULL;
    for (i = 0; i < count; i++) {
        workers[i].arrived = &arrived;
        workers[i].count = count;
    }
    for (started = 0; started < count; started++) {
        if (pthread_create(&workers[started].id, NULL, release_at_once, &workers[started]) != 0)
            Py_FatalError("no thread"); /* the threads that wait already would wait forever */
    }
    Py_BEGIN_ALLOW_THREADS
    for (i = 0; i < started; i++)
        pthread_join(workers[i].id, NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- The module ----------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"add_table", add_table, METH_O, NULL},
    {"allocate_like", allocate_like, METH_O, NULL},
    {"blocks", count_blocks, METH_NOARGS, NULL},
    {"borrow", borrow, METH_O, NULL},
    {"check", check, METH_O, NULL},
    {"consume", consume, METH_O, NULL},
    {"consume_detached", consume_detached, METH_O, NULL},
    {"consume_integers", consume_integers, METH_O, NULL},
    {"from_dlpack", from_dlpack, METH_O, NULL},
    {"lends", probe_lends, METH_O, NULL},
    {"look", look, METH_VARARGS, NULL},
    {"meet", meet, METH_O, NULL},
    {"new_type", new_type, METH_NOARGS, NULL},
    {"new_type_without_table", new_type_without_table, METH_NOARGS, NULL},
    {"records", count_records, METH_NOARGS, NULL},
    {"release_on_threads", release_on_threads, METH_VARARGS, NULL},
    {"return_like", return_like, METH_VARARGS, NULL},
    {"skips_describe", skips_describe, METH_NOARGS, NULL},
    {"state", state, METH_NOARGS, NULL},
    {"wait_until_taken", wait_until_taken, METH_O, NULL},
    {"writable_buffer", writable_buffer, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "race_probe", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_race_probe(void)
{
    return PyModuleDef_Init(&module_def);
}

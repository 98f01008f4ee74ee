/* calls - the calls that are counted: each function is as short as an author's function can be
 *
 * The arrays are float64 and row-major, of shape (3, 4) unless another kind is named. Nothing computes: what is counted
 * is the exchange. With CALLS_PLAIN the module is one that does not include dlpack_exchange.h: it lacks what needs tables
 * and embedded managed tensors. */

#ifndef CALLS_PLAIN
#  include "dlpack_exchange.h"
#endif
#include "dlpack_buffer.h"

/* ---- Arrays -------------------------------------------------------------- */

/* The memory of arrays of ranks other than 2, which have at most 256 elements. */
static double shared_values[256];
static const int64_t shape_of_rank[9][8] = {{0},
                                            {12},
                                            {3, 4},
                                            {3, 2, 2},
                                            {3, 2, 2, 2},
                                            {2, 2, 2, 2, 2},
                                            {2, 2, 2, 2, 2, 2},
                                            {2, 2, 2, 2, 2, 2, 2},
                                            {2, 2, 2, 2, 2, 2, 2, 2}};

static void
plain_dealloc(PyObject *op)
{
    Py_TYPE(op)->tp_free(op);
}

#ifndef CALLS_PLAIN
static int64_t strides_of_rank[9][8];

/* Own and Plain: managed tensors are part of the object. Own also has an exchange table. */
typedef struct {
    PyObject_HEAD
    dlpack_py_embedded embedded;
    int64_t shape[2], strides[2];
    double values[12];
} Own;

static PyObject *
own_of_rank(PyTypeObject *type, int32_t rank)
{
    Own *self = (Own *)type->tp_alloc(type, 0);
    DLTensor t;

    if (self == NULL)
        return NULL;
    self->shape[0] = 3;
    self->shape[1] = self->strides[0] = 4;
    self->strides[1] = 1;
    if (rank == 2)
        t = dlpack_py_cpu_tensor(self->values, DLPACK_PY_FLOAT64, 2, self->shape, self->strides);
    else
        t = dlpack_py_cpu_tensor(shared_values, DLPACK_PY_FLOAT64, rank, shape_of_rank[rank], strides_of_rank[rank]);
    if (dlpack_py_embed(&self->embedded, (PyObject *)self, &t, 0) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *
own_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    int rank = 2;
    if (!PyArg_ParseTuple(args, "|i", &rank))
        return NULL;
    return own_of_rank(type, rank);
}

static int
own_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    (void)request;
    *offer = dlpack_py_offer_embedded(&((Own *)op)->embedded);
    return 0;
}

DLPACK_PY_DESCRIBED(own, own_describe);

static PyMethodDef own_methods[] = {
    DLPACK_PY_METHODS(own_dlpack, own_dlpack_device),
    {NULL, NULL, 0, NULL},
};

static PyTypeObject own_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Own",
    .tp_basicsize = sizeof(Own),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = own_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = own_methods,
};

static PyTypeObject plain_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Plain",
    .tp_basicsize = sizeof(Own),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = own_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = own_methods,
};

static PyObject *
own_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    dlpack_py_release(v); /* no call here makes an Own of a view */
    return own_of_rank(type, 2);
}

DLPACK_PY_EXCHANGE_API_EMBEDDED(own_exchange, own_describe, own_make_steal, NULL, offsetof(Own, embedded));
#endif /* CALLS_PLAIN */

/* Simple: the README's producer. Nothing for DLPack is part of the object. A subclass is another type of the same kind:
 * the class is a base. */
typedef struct {
    PyObject_HEAD
    int32_t rank;
    double values[12];
} Simple;

static PyObject *
simple_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(names))
{
    Simple *self = (Simple *)type->tp_alloc(type, 0);
    int rank = 2;
    if (!PyArg_ParseTuple(args, "|i", &rank))
        Py_CLEAR(self);
    if (self != NULL)
        self->rank = rank;
    return (PyObject *)self;
}

static PyObject *
simple_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Simple *self = (Simple *)op;
    double *values = self->rank == 2 ? self->values : shared_values;
    DLTensor t = dlpack_py_cpu_tensor(values, DLPACK_PY_FLOAT64, self->rank, shape_of_rank[self->rank], NULL);
    return dlpack_py_produce(op, &t, 0, args, nargs, kwnames);
}

static PyMethodDef simple_methods[] = {
    DLPACK_PY_METHODS(simple_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};

static PyTypeObject simple_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Simple",
    .tp_basicsize = sizeof(Simple),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = simple_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = simple_methods,
};

/* Half: the README's producer of bfloat16, which NumPy does not have. */
static PyObject *
half_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const int64_t shape[2] = {3, 4};
    DLTensor t = dlpack_py_cpu_tensor(((Simple *)op)->values, DLPACK_PY_BFLOAT16, 2, shape, NULL);
    return dlpack_py_produce(op, &t, 0, args, nargs, kwnames);
}

static PyMethodDef half_methods[] = {
    DLPACK_PY_METHODS(half_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};

static PyTypeObject half_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Half",
    .tp_basicsize = sizeof(Simple),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = simple_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = half_methods,
};

/* Old: a producer from before 2024, by hand. Its __dlpack__ refuses the keyword max_version, and its capsule is legacy. */
typedef struct {
    PyObject_HEAD
    DLManagedTensor managed; /* shared by all exports */
    int64_t strides[2];
    double values[12];
} Old;

static void
old_delete(DLManagedTensor *managed)
{
    Py_DECREF((PyObject *)managed->manager_ctx);
}

static void
old_destroy_capsule(PyObject *capsule)
{
    if (strcmp(PyCapsule_GetName(capsule), "dltensor") == 0)
        old_delete((DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *
old_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    Old *self = (Old *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->strides[0] = 4;
        self->strides[1] = 1;
        self->managed.dl_tensor =
            dlpack_py_cpu_tensor(self->values, DLPACK_PY_FLOAT64, 2, shape_of_rank[2], self->strides);
        self->managed.manager_ctx = self;
        self->managed.deleter = old_delete;
    }
    return (PyObject *)self;
}

static PyObject *
old_dlpack(PyObject *op, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"stream", NULL};
    PyObject *stream = Py_None, *capsule;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|$O:__dlpack__", names, &stream))
        return NULL;
    capsule = PyCapsule_New(&((Old *)op)->managed, "dltensor", old_destroy_capsule);
    if (capsule != NULL)
        Py_INCREF(op);
    return capsule;
}

static PyMethodDef old_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))old_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", dlpack_py_cpu_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject old_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Old",
    .tp_basicsize = sizeof(Old),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = old_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = old_methods,
};

/* Bytes: a producer as NumPy is one. It has extents of Py_ssize_t and strides in bytes, which each export converts. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t shape[2], strides[2];
    double values[12];
} Bytes;

static PyObject *
bytes_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    Bytes *self = (Bytes *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->shape[0] = 3;
        self->shape[1] = 4;
        self->strides[0] = 4 * sizeof(double);
        self->strides[1] = sizeof(double);
    }
    return (PyObject *)self;
}

static PyObject *
bytes_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Bytes *self = (Bytes *)op;
    int64_t shape[2], strides[2];
    DLTensor t;
    int i;

    for (i = 0; i < 2; i++) {
        shape[i] = self->shape[i];
        strides[i] = self->strides[i] / (Py_ssize_t)sizeof(double);
        if (self->strides[i] % (Py_ssize_t)sizeof(double) != 0) {
            PyErr_SetString(PyExc_BufferError, "a stride is no multiple of the item size");
            return NULL;
        }
    }
    t = dlpack_py_cpu_tensor(self->values, DLPACK_PY_FLOAT64, 2, shape, strides);
    return dlpack_py_produce(op, &t, 0, args, nargs, kwnames);
}

static PyMethodDef bytes_methods[] = {
    DLPACK_PY_METHODS(bytes_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};

static PyTypeObject bytes_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Bytes",
    .tp_basicsize = sizeof(Bytes),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = bytes_new,
    .tp_dealloc = plain_dealloc,
    .tp_methods = bytes_methods,
};

/* Held: an array that holds the memory of another library. */
typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
} Held;

static const dlpack_py_want matrix = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C'};

static PyObject *
held_steal(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want)
{
    dlpack_py_view v;
    Held *self;
    if (dlpack_py_from_dlpack(args, nargs, kwnames, want, &v) < 0)
        return NULL;
    self = (Held *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (self == NULL) {
        dlpack_py_release(&v);
        return NULL;
    }
    dlpack_py_move(&self->view, &v);
    return (PyObject *)self;
}

static PyObject *
held_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return held_steal(type, args, nargs, kwnames, &matrix);
}

/* Accepts what NumPy's from_dlpack accepts: any rank, strides and CPU device, and one of fourteen dtypes. */
static PyObject *
held_from_any(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const uint32_t dtypes[] = {
        DLPACK_PY_BOOL,    DLPACK_PY_INT8,    DLPACK_PY_INT16,     DLPACK_PY_INT32,      DLPACK_PY_INT64,
        DLPACK_PY_UINT8,   DLPACK_PY_UINT16,  DLPACK_PY_UINT32,    DLPACK_PY_UINT64,     DLPACK_PY_FLOAT16,
        DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64, DLPACK_PY_COMPLEX64, DLPACK_PY_COMPLEX128, 0};
    static const dlpack_py_want any = {.dtypes = dtypes};
    return held_steal(type, args, nargs, kwnames, &any);
}

static void
held_dealloc(PyObject *op)
{
    dlpack_py_release(&((Held *)op)->view);
    Py_TYPE(op)->tp_free(op);
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef held_methods[] = {
    {"from_dlpack", FASTCALL(held_from_dlpack), METH_FASTCALL | METH_KEYWORDS | METH_CLASS, NULL},
    {"from_any", FASTCALL(held_from_any), METH_FASTCALL | METH_KEYWORDS | METH_CLASS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject held_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Held",
    .tp_basicsize = sizeof(Held),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = held_dealloc,
    .tp_methods = held_methods,
};

/* ---- Consumers ----------------------------------------------------------- */

static const dlpack_py_want writable_matrix = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C', .writable = 1};
static const dlpack_py_want of_any_rank = {.dtype = DLPACK_PY_FLOAT64, .max_ndim = 8, .order = 'C'};

/* Takes one to four arrays, each for as long as the call. */
static inline PyObject *
consume_each(PyObject *const *args, Py_ssize_t nargs, const dlpack_py_want *want)
{
    dlpack_py_view v[4];
    Py_ssize_t i;
    int failed = 0;
    for (i = 0; i < nargs && i < 4 && !failed; i++)
        failed = dlpack_py_consume(args[i], want, &v[i]) < 0;
    while (i-- > 0)
        dlpack_py_release(&v[i]); /* works for an empty view too */
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}

/* A call that does nothing. */
static PyObject *
nothing(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(obj))
{
    Py_RETURN_NONE;
}

/* A call that takes a reference to its argument. */
static PyObject *
take_reference(PyObject *Py_UNUSED(module), PyObject *obj)
{
    Py_INCREF(obj);
    Py_DECREF(obj);
    Py_RETURN_NONE;
}

/* A call that locks its argument, as an exchange table does while it asks describe. */
static PyObject *
take_lock(PyObject *Py_UNUSED(module), PyObject *obj)
{
    DLP_CRITICAL_SECTION(obj);
    (void)obj;
    DLP_CRITICAL_SECTION_END();
    Py_RETURN_NONE;
}

/* Defines a function that takes an array for as long as the call. */
#define CONSUMER(name, want)                                          \
    static PyObject *name(PyObject *Py_UNUSED(module), PyObject *obj) \
    {                                                                 \
        dlpack_py_view v;                                             \
        if (dlpack_py_consume(obj, want, &v) < 0)                     \
            return NULL;                                              \
        dlpack_py_release(&v);                                        \
        Py_RETURN_NONE;                                               \
    }

static const uint32_t two_dtypes[] = {DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64, 0};
static const uint32_t three_dtypes[] = {DLPACK_PY_INT64, DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64, 0};
static const dlpack_py_want bools = {.dtype = DLPACK_PY_BOOL, .ndim = 2, .order = 'C'};
static const dlpack_py_want bytes = {.dtype = DLPACK_PY_UINT8, .ndim = 1, .order = 'C'};
static const dlpack_py_want halves = {.dtype = DLPACK_PY_BFLOAT16, .ndim = 2, .order = 'C'};
static const dlpack_py_want complexes = {.dtype = DLPACK_PY_COMPLEX128, .ndim = 2, .order = 'C'};
static const dlpack_py_want small_complexes = {.dtype = DLPACK_PY_COMPLEX64, .ndim = 2, .order = 'C'};
static const dlpack_py_want one_of_two = {.dtypes = two_dtypes, .ndim = 2, .order = 'C'};
static const dlpack_py_want one_of_three = {.dtypes = three_dtypes, .ndim = 2, .order = 'C'};
static const dlpack_py_want fortran = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'F'};
static const dlpack_py_want strided = {.dtype = DLPACK_PY_FLOAT64, .ndim = 2};
static const dlpack_py_want scalar = {.dtype = DLPACK_PY_FLOAT64, .ndim = DLPACK_PY_SCALAR, .order = 'C'};
static const dlpack_py_want copied = {
    .dtype = DLPACK_PY_FLOAT64, .ndim = 2, .order = 'C', .options = DLPACK_PY_WANT_COPY_IF_NEEDED};

CONSUMER(consume, &matrix)
CONSUMER(consume_writable, &writable_matrix)
CONSUMER(consume_any_rank, &of_any_rank)
CONSUMER(consume_any, NULL)
CONSUMER(consume_bool, &bools)
CONSUMER(consume_bytes, &bytes)
CONSUMER(consume_half, &halves)
CONSUMER(consume_complex, &complexes)
CONSUMER(consume_small_complex, &small_complexes)
CONSUMER(consume_two_dtypes, &one_of_two)
CONSUMER(consume_three_dtypes, &one_of_three)
CONSUMER(consume_fortran, &fortran)
CONSUMER(consume_strided, &strided)
CONSUMER(consume_scalar, &scalar)
CONSUMER(consume_or_copy, &copied)

/* consume_rank(rank, obj): the rank is fixed. */
static PyObject *
consume_rank(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    dlpack_py_want want = {.dtype = DLPACK_PY_FLOAT64, .order = 'C'};
    dlpack_py_view v;
    if (nargs != 2)
        return NULL;
    want.ndim = (int32_t)PyLong_AsLong(args[0]);
    if (want.ndim == 0)
        want.ndim = DLPACK_PY_SCALAR;
    if (dlpack_py_consume(args[1], &want, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

static PyObject *
consume_many(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    return consume_each(args, nargs, &matrix);
}

#ifndef CALLS_PLAIN
static PyObject *
borrow(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    if (dlpack_py_borrow(obj, &matrix, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

/* Borrows one to four arrays whose tables run no Python code. */
static PyObject *
borrow_many(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    dlpack_py_view v[4];
    Py_ssize_t i;
    int failed = 0;
    for (i = 0; i < nargs && i < 4 && !failed; i++)
        failed = dlpack_py_borrow(args[i], &matrix, &v[i]) < 0;
    while (i-- > 0)
        dlpack_py_release(&v[i]);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
}
#endif

/* ---- Results ------------------------------------------------------------- */

static PyObject *
make_simple(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return simple_type.tp_alloc(&simple_type, 0);
}

#ifndef CALLS_PLAIN
static PyObject *
make(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return own_of_rank(&own_type, 2);
}

/* make_through(from_dlpack): a new array as an array of another library, whose from_dlpack is at hand. */
static PyObject *
make_through(PyObject *Py_UNUSED(module), PyObject *from_dlpack)
{
    PyObject *own = own_of_rank(&plain_type, 2), *made = NULL;
    if (own != NULL)
        made = PyObject_CallOneArg(from_dlpack, own);
    Py_XDECREF(own);
    return made;
}

/* make_like(like): a new array of the library of like, in memory that the library allocates. */
static PyObject *
make_like(PyObject *Py_UNUSED(module), PyObject *like)
{
    static const int64_t shape[2] = {3, 4};
    const DLTensor t = dlpack_py_cpu_tensor(NULL, DLPACK_PY_FLOAT64, 2, shape, NULL);
    dlpack_py_view v;
    if (dlpack_py_allocate_like(like, &t, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(like, &v);
}

/* return_like(like, own): an array of this module as an array of the library of like. */
static PyObject *
return_like(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    dlpack_py_view v;
    if (nargs != 2 || dlpack_py_consume(args[1], &matrix, &v) < 0)
        return NULL;
    return dlpack_py_return_like_steal(args[0], &v);
}
#endif

/* ---- Buffers ------------------------------------------------------------- */

/* A type that has the buffer protocol, with the one line for DLPack. */
static PyMethodDef buffered_methods[] = {DLPACK_BUFFER_METHODS, {NULL, NULL, 0, NULL}};

static PyTypeObject buffered_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "calls.Buffered",
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = buffered_methods,
};

static PyObject *
view_of(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return dlpack_buffer_memoryview(obj, &matrix);
}

static PyMethodDef functions[] = {
    {"view_of", view_of, METH_O, NULL},
    {"consume", consume, METH_O, NULL},
    {"consume_writable", consume_writable, METH_O, NULL},
    {"consume_any_rank", consume_any_rank, METH_O, NULL},
    {"consume_any", consume_any, METH_O, NULL},
    {"consume_bool", consume_bool, METH_O, NULL},
    {"consume_bytes", consume_bytes, METH_O, NULL},
    {"consume_half", consume_half, METH_O, NULL},
    {"consume_complex", consume_complex, METH_O, NULL},
    {"consume_small_complex", consume_small_complex, METH_O, NULL},
    {"consume_two_dtypes", consume_two_dtypes, METH_O, NULL},
    {"consume_three_dtypes", consume_three_dtypes, METH_O, NULL},
    {"consume_fortran", consume_fortran, METH_O, NULL},
    {"consume_strided", consume_strided, METH_O, NULL},
    {"consume_scalar", consume_scalar, METH_O, NULL},
    {"consume_or_copy", consume_or_copy, METH_O, NULL},
    {"nothing", nothing, METH_O, NULL},
    {"take_reference", take_reference, METH_O, NULL},
    {"take_lock", take_lock, METH_O, NULL},
    {"consume_rank", FASTCALL(consume_rank), METH_FASTCALL, NULL},
    {"consume_many", FASTCALL(consume_many), METH_FASTCALL, NULL},
    {"make_simple", make_simple, METH_NOARGS, NULL},
#ifndef CALLS_PLAIN
    {"borrow", borrow, METH_O, NULL},
    {"borrow_many", FASTCALL(borrow_many), METH_FASTCALL, NULL},
    {"make", make, METH_NOARGS, NULL},
    {"make_through", make_through, METH_O, NULL},
    {"make_like", make_like, METH_O, NULL},
    {"return_like", FASTCALL(return_like), METH_FASTCALL, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    PyTypeObject *types[] = {
        &simple_type, &half_type,  &bytes_type, &held_type, &buffered_type, &old_type,
#ifndef CALLS_PLAIN
        &own_type,    &plain_type,
#endif
    };
    size_t i;

    buffered_type.tp_base = &PyByteArray_Type;
    for (i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (PyModule_AddType(module, types[i]) < 0) /* calls PyType_Ready too */
            return -1;
    }
#ifndef CALLS_PLAIN
    for (i = 0; i < 9; i++)
        dlpack_py_compact_strides((int32_t)i, shape_of_rank[i], 'C', strides_of_rank[i]);
    return dlpack_py_exchange_add(&own_type, &own_exchange);
#else
    return 0;
#endif
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "calls", NULL, 0, functions, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_calls(void)
{
    return PyModuleDef_Init(&module_def);
}

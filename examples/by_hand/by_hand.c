/* by_hand.c - an array type that implements the DLPack Python protocol without dlpack_py.h
 * SPDX-License-Identifier: MIT
 *
 * To learn what the protocol asks of an extension, and why. To write an extension, use dlpack_py.h: its end lists
 * the clauses, which this file names by their codes, as (K4). The life of an exchange:
 *   1. The consumer calls x.__dlpack__(max_version=(1, 3)). The producer returns a capsule, a Python object that holds
 *      a pointer to a managed tensor: a struct that says where the data is, and has a function, the deleter. The name
 *      of the capsule is "dltensor_versioned". Without max_version the consumer gets the form from before DLPack 1.0,
 *      which has no version and no flags, in a capsule named "dltensor".
 *   2. The consumer checks the tensor, and renames the capsule to "used_dltensor_versioned". From then on the consumer
 *      owns the managed tensor. A capsule that still has its first name when it is freed calls the deleter.
 *   3. When the consumer no longer needs the data, it calls the deleter once, on any thread: the producer frees all.
 */
#include <Python.h>
#include <dlpack/dlpack.h> /* 1.2 or newer. This file needs C11, and the built-ins of GCC or clang */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LEGACY "dltensor"
#define VERSIONED "dltensor_versioned"
#define READ_ONLY DLPACK_FLAG_BITMASK_READ_ONLY
#define ITEM_SIZE(t) ((size_t)(t)->dtype.bits / 8 * (t)->dtype.lanes) /* in bytes */
#ifndef Py_BEGIN_CRITICAL_SECTION                                     /* CPython before 3.13 always has a GIL */
#  define Py_BEGIN_CRITICAL_SECTION(object) {
#  define Py_END_CRITICAL_SECTION() }
#endif

/* ---- Shape, strides and dtype ------------------------------------------- */

/* Returns NULL for a valid tensor, else why it is refused. Called before shape and data are used: it finds what cannot
 * be true (D8), but cannot know the size of the memory. wants_matrix: only a matrix of aligned doubles (C9). */
static const char *
find_error(const DLTensor *t, int wants_matrix)
{
    const DLDataType dtype = t->dtype;
    const size_t size = ITEM_SIZE(t);
    int64_t begin = 0, end = 1, count = 1, reach; /* begin, end: offsets in elements, then in bytes */
    uintptr_t first;
    int is_empty = 0, overflows = __builtin_add_overflow((uintptr_t)t->data, t->byte_offset, &first);
    if (t->device.device_type != kDLCPU)
        return "CPU memory was wanted";                                                  /* C5 */
    if (t->ndim < 0 || t->ndim > 64 || (t->ndim > 0 && t->shape == NULL) || size == 0 || /* 64 as in NumPy */
        dtype.bits % (dtype.code == kDLComplex ? 16 : 8) != 0 || (dtype.code == kDLBool && dtype.bits != 8) ||
        (dtype.code >= kDLFloat8_e3m4 && dtype.code <= kDLFloat4_e2m1fn &&
         (dtype.bits != 8 || dtype.code >= kDLFloat6_e2m3fn))) /* C8 */
        return "shape is NULL, ndim is not from 0 to 64, or the dtype is impossible or smaller than a byte";
    for (int i = t->ndim; i-- > 0;) {
        const int64_t stride = t->strides == NULL ? count : t->strides[i];
        if (t->shape[i] < 0)
            return "an extent is negative";
        is_empty |= t->shape[i] == 0;
        overflows |= __builtin_mul_overflow(t->shape[i] - 1, stride, &reach);
        overflows |= __builtin_add_overflow(stride < 0 ? begin : end, reach, stride < 0 ? &begin : &end);
        overflows |= __builtin_mul_overflow(count, t->shape[i], &count);
    }
    overflows |= __builtin_mul_overflow(begin, size, &begin) || __builtin_mul_overflow(end, size, &end);
    overflows |= __builtin_mul_overflow(count, size, &count); /* also where stride 0 repeats one element */
    if (!is_empty && (t->data == NULL || overflows || -(uint64_t)begin > first || (uint64_t)end > UINTPTR_MAX - first))
        return "data is NULL, or the elements leave the address space"; /* an empty tensor may have any data (D3) */
    if (wants_matrix && (dtype.code != kDLFloat || size != sizeof(double) || dtype.lanes != 1 || t->ndim != 2 ||
                         (!is_empty && first % sizeof(double) != 0)))
        return "a matrix of aligned float64 was wanted";
    return NULL;
}

/* Copies the elements of a valid tensor in row-major order. Returns the end of the copy. */
static char *
copy_elements(char *to, const char *from, const DLTensor *t, int axis)
{
    const int64_t size = (int64_t)ITEM_SIZE(t);
    if (axis == t->ndim)
        return (char *)memcpy(to, from, (size_t)size) + size;
    for (int64_t i = 0; i < t->shape[axis]; i++)
        to = copy_elements(to, from + i * t->strides[axis] * size, t, axis + 1);
    return to;
}

/* ---- Shared tensors ----------------------------------------------------- */

/* A tensor that an array and its exports share; `references` counts them, atomically. All exports point to the two
 * structs below, which consumers must not write to. The release of an export touches no Python object: it may come on a
 * thread without a thread state, and after the end of the interpreter (K5). */
typedef struct {
    DLManagedTensorVersioned versioned; /* the two forms that capsules point to; manager_ctx is this struct (K8) */
    DLManagedTensor legacy;
    atomic_size_t references;
    void *source;            /* the producer's managed tensor; NULL: the elements are stored behind the strides */
    int source_is_versioned; /* 0: a legacy source, which cannot say read-only, counts as read-only (C7) */
    _Alignas(max_align_t) int64_t shape_and_strides[]; /* kept until the last deleter has run (K7). Data may follow */
} SharedTensor;

/* Calls the deleter of a managed tensor, unless it is NULL (K3). It may run without a thread state (K5). */
static void
managed_delete(void *managed, int is_versioned)
{
    DLManagedTensorVersioned *versioned = managed;
    DLManagedTensor *legacy = managed;
    if (is_versioned && versioned->deleter != NULL)
        versioned->deleter(versioned);
    else if (!is_versioned && legacy->deleter != NULL)
        legacy->deleter(legacy);
}

/* As managed_delete, with a thread state. Keeps the current exception; reports one that the deleter raises (K2). */
static void
managed_delete_attached(void *managed, int is_versioned)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    managed_delete(managed, is_versioned);
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(NULL);
    PyErr_Restore(type, value, traceback);
}

static void
shared_release(SharedTensor *s)
{
    if (atomic_fetch_sub(&s->references, 1) != 1)
        return;
    if (s->source != NULL)
        managed_delete(s->source, s->source_is_versioned);
    free(s);
}

static void
delete_versioned(DLManagedTensorVersioned *managed)
{
    shared_release(managed->manager_ctx);
}

static void
delete_legacy(DLManagedTensor *managed)
{
    shared_release(managed->manager_ctx);
}

/* A SharedTensor for the valid tensor t: byte_offset 0 (D1), strides (D4), device CPU 0 (D9), data NULL if there is no
 * element (D3). source owns the data; if it is NULL, the caller fills the memory. Returns NULL with MemoryError. */
static SharedTensor *
shared_new(const DLTensor *t, uint64_t flags, void *source, int source_is_versioned)
{
    uint64_t count = 1, step = 1; /* unsigned: count may wrap before an extent of 0 makes it 0 (D3) */
    DLTensor to = *t;
    size_t ndim = (size_t)t->ndim, bytes = 0;
    SharedTensor *s = NULL;
    for (int i = 0; i < t->ndim; i++)
        count *= (uint64_t)t->shape[i];
    if (source != NULL || (!__builtin_mul_overflow(count, ITEM_SIZE(t), &bytes) && bytes < PTRDIFF_MAX / 2))
        s = malloc(sizeof(SharedTensor) + 2 * ndim * sizeof(int64_t) + bytes);
    if (s == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    to.shape = s->shape_and_strides;
    to.strides = to.shape + ndim;
    to.data = count == 0 ? NULL : source == NULL ? (char *)(to.strides + ndim) : (char *)t->data + t->byte_offset;
    to.byte_offset = 0;
    to.device = (DLDevice){kDLCPU, 0};
    for (int i = t->ndim; i-- > 0; step *= (uint64_t)t->shape[i]) {
        to.shape[i] = t->shape[i];
        to.strides[i] = t->strides == NULL || source == NULL ? (int64_t)step : t->strides[i];
    }
    atomic_init(&s->references, 1);
    s->versioned = (DLManagedTensorVersioned){{1, 3}, s, delete_versioned, flags, to};
    s->legacy = (DLManagedTensor){to, s, delete_legacy};
    s->source = source;
    s->source_is_versioned = source_is_versioned;
    return s;
}

/* A row-major copy, writable even if the original is not (P4); NULL with MemoryError. Releases the GIL meanwhile. */
static SharedTensor *
shared_copy(const SharedTensor *from, uint64_t flags)
{
    const DLTensor *t = &from->versioned.dl_tensor;
    SharedTensor *s = shared_new(t, flags, NULL, 1);
    Py_BEGIN_ALLOW_THREADS
    if (s != NULL && t->data != NULL)
        (void)copy_elements(s->versioned.dl_tensor.data, t->data, t, 0);
    Py_END_ALLOW_THREADS
    return s;
}

/* ---- Producing ---------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    SharedTensor *shared;
} Array;
/* Made with the module: (1, 0), "__dlpack__", (1, 3), ("copy", "max_version", "dl_device"). */
static PyObject *cpu_device, *dlpack_name, *our_version, *keyword_names;

/* Calls the deleter if the capsule still has its first name: no consumer owns the managed tensor (K1). */
static void
capsule_destructor(PyObject *capsule)
{
    const int is_versioned = PyCapsule_IsValid(capsule, VERSIONED);
    if (is_versioned || PyCapsule_IsValid(capsule, LEGACY))
        managed_delete_attached(PyCapsule_GetPointer(capsule, is_versioned ? VERSIONED : LEGACY), is_versioned);
}

/* Reads a tuple of two integers of any size (P2); None leaves pair as it is. Returns 0, or -1 with TypeError. */
static int
parse_pair(const char *name, PyObject *object, Py_ssize_t pair[2])
{
    if (object != Py_None && (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2))
        PyErr_Format(PyExc_TypeError, "%s is %R, None or a tuple of two integers was wanted", name, object);
    for (int i = 0; i < 2 && object != Py_None && !PyErr_Occurred(); i++)
        pair[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(object, i), NULL); /* a value that is too large is clipped */
    return PyErr_Occurred() ? -1 : 0;
}

/* Returns 0 for None, True and False, or -1 with TypeError (P4). */
static int
check_copy(PyObject *copy)
{
    if (copy != Py_None && copy != Py_True && copy != Py_False)
        PyErr_Format(PyExc_TypeError, "copy is %R, None, True or False was wanted", copy);
    return PyErr_Occurred() ? -1 : 0;
}

/* __dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None). Names are compared by value (P1). Read-only
 * data needs a versioned capsule, which has flags (P3), unless it came in a legacy capsule (C7). */
static PyObject *
array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"stream", "max_version", "dl_device", "copy"};
    PyObject *values[4] = {Py_None, Py_None, Py_None, Py_None}, *capsule;
    SharedTensor *s = ((Array *)self)->shared;
    Py_ssize_t version[2] = {0, 0}, device[2] = {kDLCPU, 0}, stream, k;
    if (nargs != 0)
        return PyErr_Format(PyExc_TypeError, "__dlpack__() takes no positional arguments (%zd given)", nargs);
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        for (k = 0; k < 4 && PyUnicode_CompareWithASCIIString(name, names[k]) != 0; k++)
            ;
        if (k == 4)
            return PyErr_Format(PyExc_TypeError, "__dlpack__() got an unexpected keyword argument '%U'", name);
        values[k] = args[i];
    }
    stream = values[0] == Py_None ? -1 : PyNumber_AsSsize_t(values[0], NULL);
    if (PyErr_Occurred() || parse_pair("max_version", values[1], version) < 0 ||
        parse_pair("dl_device", values[2], device) < 0 || check_copy(values[3]) < 0)
        return NULL;
    if (stream != -1) /* None and -1 ask for no order (P6) */
        return PyErr_Format(PyExc_ValueError, "stream is %R, None was wanted: the data is in CPU memory", values[0]);
    if (device[0] != kDLCPU || device[1] != 0) /* P5 */
        return PyErr_Format(PyExc_BufferError, "dl_device is (%zd, %zd), the data is on (1, 0)", device[0], device[1]);
    if (values[3] != Py_True && version[0] < 1 && s->versioned.flags != 0 && s->source_is_versioned) /* P3 */
        return PyErr_Format(PyExc_BufferError, "read-only data needs a capsule with flags: max_version=(1, 0)");
    if (values[3] == Py_True)
        s = shared_copy(s, DLPACK_FLAG_BITMASK_IS_COPIED);
    else
        atomic_fetch_add(&s->references, 1); /* the data lives until the deleter has run (P9) */
    if (s == NULL)
        return NULL;
    capsule = version[0] < 1 ? PyCapsule_New(&s->legacy, LEGACY, capsule_destructor)
                             : PyCapsule_New(&s->versioned, VERSIONED, capsule_destructor);
    if (capsule == NULL)
        shared_release(s);
    return capsule;
}

static PyObject *
array_dlpack_device(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("O", cpu_device); /* as in the capsule (P8) */
}

static void
array_dealloc(PyObject *self)
{
    managed_delete_attached(&((Array *)self)->shared->versioned, 1);
    PyObject_Free(self);
}

static PyMethodDef array_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject array_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "by_hand.Array",
    .tp_basicsize = sizeof(Array),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = array_dealloc,
    .tp_methods = array_methods,
};

/* ---- Consuming ---------------------------------------------------------- */

/* Calls x.__dlpack__ with only the keywords that are needed (C3, C4). A TypeError may mean that the producer is older
 * than the keywords: then *got_keywords is 0, and unless copy is False, it is called again without them (C1). */
static PyObject *
call_dlpack(PyObject *x, int to_cpu, PyObject *copy, int *got_keywords)
{
    PyObject *with_copy[] = {x, copy, our_version, cpu_device}, *no_copy[] = {x, our_version, cpu_device}, *capsule;
    PyObject *names = PyTuple_GetSlice(keyword_names, copy == Py_None, 2 + to_cpu); /* "copy" is the first of three */
    if (names == NULL)
        return NULL;
    capsule = PyObject_VectorcallMethod(dlpack_name, copy != Py_None ? with_copy : no_copy, 1, names); /* C6 */
    Py_DECREF(names);
    if (capsule != NULL || !PyErr_ExceptionMatches(PyExc_TypeError))
        return capsule;
    *got_keywords = 0;
    PyErr_Clear();
    if (copy == Py_False) /* an old producer may copy (C3) */
        return PyErr_Format(PyExc_BufferError, "copy is False, and __dlpack__ raised TypeError: it may copy");
    return PyObject_VectorcallMethod(dlpack_name, &x, 1, NULL);
}

/* Takes the tensor of a capsule, or returns NULL with an exception. All that can fail comes before the new name: after
 * a failure the capsule still owns the tensor (K4). *may_be_pending becomes 1 for pinned and managed memory. */
static SharedTensor *
take_capsule(PyObject *capsule, int wants_matrix, int *may_be_pending)
{
    SharedTensor *s = NULL;
    void *unknown = NULL;
    Py_BEGIN_CRITICAL_SECTION(capsule); /* of two calls that take one capsule, only one succeeds */
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    const int is_versioned = name != NULL && strcmp(name, VERSIONED) == 0; /* the producer chooses the form (C2) */
    const int is_legacy = name != NULL && strcmp(name, LEGACY) == 0;
    void *managed = is_versioned || is_legacy ? PyCapsule_GetPointer(capsule, name) : NULL;
    DLManagedTensorVersioned *versioned = is_versioned ? managed : NULL;
    if (managed == NULL) {
        const int is_used = name != NULL && (strcmp(name, "used_" LEGACY) == 0 || strcmp(name, "used_" VERSIONED) == 0);
        PyErr_Format(is_used ? PyExc_ValueError : PyExc_TypeError, "%.200s %s", Py_TYPE(capsule)->tp_name,
                     is_used ? "was consumed already" : "is no DLPack capsule");
    }
    else if (is_versioned && versioned->version.major != 1) { /* only its deleter can be used, below (K6) */
        PyErr_Format(PyExc_BufferError, "the tensor has the unknown major version %u", versioned->version.major);
        unknown = managed;
    }
    else {
        const DLTensor *t = is_versioned ? &versioned->dl_tensor : &((DLManagedTensor *)managed)->dl_tensor;
        const DLDeviceType type = t->device.device_type;
        const char *error = find_error(t, wants_matrix);
        if (error != NULL)
            PyErr_Format(PyExc_BufferError, "%s: device is (%d, %d), dtype (%d, %d, %d), ndim %d", error, (int)type,
                         t->device.device_id, t->dtype.code, t->dtype.bits, t->dtype.lanes, t->ndim);
        else if (is_versioned && versioned->deleter == delete_versioned && versioned->flags <= READ_ONLY)
            s = versioned->manager_ctx; /* our own export, not a copy: takes over its reference to the SharedTensor */
        else
            s = shared_new(t, is_versioned ? versioned->flags & READ_ONLY : READ_ONLY, managed, is_versioned); /* C7 */
        *may_be_pending = type == kDLCUDAHost || type == kDLCUDAManaged || type == kDLROCMHost;
    }
    if (s != NULL || unknown != NULL)
        PyCapsule_SetName(capsule, is_versioned ? "used_" VERSIONED : "used_" LEGACY);
    Py_END_CRITICAL_SECTION();
    if (unknown != NULL)
        managed_delete_attached(unknown, 1);
    return s;
}

/* The tensor of an object with __dlpack__, or of a capsule (C6); NULL with an exception. */
static SharedTensor *
consume(PyObject *x, int to_cpu, PyObject *copy, int wants_matrix)
{
    int may_be_pending = 0, got_keywords = !PyCapsule_CheckExact(x); /* 1: the producer got the keywords */
    PyObject *saved[3], *capsule = got_keywords ? call_dlpack(x, to_cpu, copy, &got_keywords) : Py_BuildValue("O", x);
    SharedTensor *s = capsule == NULL ? NULL : take_capsule(capsule, wants_matrix, &may_be_pending);
    PyErr_Fetch(&saved[0], &saved[1], &saved[2]); /* not every destructor keeps the exception (K2) */
    Py_XDECREF(capsule);
    PyErr_Restore(saved[0], saved[1], saved[2]);
    if (s == NULL && may_be_pending && got_keywords && !to_cpu) { /* if asked for CPU memory, a producer waits (C5) */
        PyErr_Clear();
        return consume(x, 1, copy, wants_matrix);
    }
    if (s != NULL && copy == Py_True && (!got_keywords || !s->source_is_versioned)) { /* copy may be ignored (C3) */
        SharedTensor *copied = shared_copy(s, 0);
        managed_delete_attached(&s->versioned, 1);
        return copied;
    }
    return s;
}

/* ---- The module --------------------------------------------------------- */

/* from_dlpack(x, /, *, device=None, copy=None), of the array API standard: an array that shares its data with x. */
static PyObject *
from_dlpack(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    static char *names[] = {"", "device", "copy", NULL};
    PyObject *x, *device = Py_None, *copy = Py_None;
    Py_ssize_t pair[2] = {kDLCPU, 0};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OO:from_dlpack", names, &x, &device, &copy))
        return NULL;
    const int is_cpu = PyUnicode_Check(device) && PyUnicode_CompareWithASCIIString(device, "cpu") == 0; /* C3 */
    if (parse_pair("device", is_cpu ? cpu_device : device, pair) < 0 || check_copy(copy) < 0)
        return NULL;
    if (pair[0] != kDLCPU || pair[1] != 0) /* C5 */
        return PyErr_Format(PyExc_BufferError, "device is (%zd, %zd), CPU memory was wanted", pair[0], pair[1]);
    SharedTensor *s = consume(x, device != Py_None, copy, 0);
    Array *self = s == NULL ? NULL : PyObject_New(Array, &array_type);
    if (self != NULL)
        self->shared = s;
    else if (s != NULL)
        managed_delete_attached(&s->versioned, 1);
    return (PyObject *)self;
}

/* sum(x): of a float64 matrix. */
static PyObject *
sum(PyObject *Py_UNUSED(module), PyObject *x)
{
    SharedTensor *s = consume(x, 0, Py_None, 1);
    double total = 0;
    if (s == NULL)
        return NULL;
    const DLTensor *t = &s->versioned.dl_tensor;
    for (int64_t i = 0; t->data != NULL && i < t->shape[0]; i++) /* NULL: no elements */
        for (int64_t j = 0; j < t->shape[1]; j++)
            total += ((double *)t->data)[i * t->strides[0] + j * t->strides[1]];
    managed_delete_attached(&s->versioned, 1);
    return PyFloat_FromDouble(total);
}

static PyMethodDef functions[] = {
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"sum", sum, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "by_hand", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC
PyInit_by_hand(void)
{
    PyObject *module = PyModule_Create(&definition);
    cpu_device = Py_BuildValue("(ii)", kDLCPU, 0);
    dlpack_name = PyUnicode_InternFromString("__dlpack__");
    our_version = Py_BuildValue("(ii)", 1, 3);
    keyword_names =
        Py_BuildValue("(NNN)", PyUnicode_InternFromString("copy"), PyUnicode_InternFromString("max_version"),
                      PyUnicode_InternFromString("dl_device")); /* interned: compared faster */
    if (PyErr_Occurred() || PyModule_AddType(module, &array_type) < 0)
        Py_CLEAR(module);
#ifdef Py_GIL_DISABLED
    else
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}

/* Left out, and where it is: data that a Python object owns, subinterpreters, contexts of exceptions (C1), exceptions
 * that a foreign deleter loses (K2), device= as an object (C3), other requirements (dlpack_py.h); exchange tables
 * (dlpack_exchange.h); buffers (dlpack_buffer.h); fast copies (dlpack_copy.h); packed elements (dlpack_tensor.h);
 * devices (dlpack_cuda.h). Not handled: an array made of a legacy capsule of an array made of a legacy capsule, and so
 * on, a million times. Its release calls itself as often. */

/* The floor: DLPack written by hand, for comparison
 *
 * It has the names of dlpack_py.h that examples/minimal/image.c uses, so that the same example is built with both.
 * It is a minimum that is still correct for the calls that are measured. It checks dtype, rank, shape, order, device,
 * read-only flag, capsule and version. It does not validate sizes (D8), keeps no exception in a destructor (K2), and
 * its deleter needs the GIL (K5). A producer with an old signature is called again. */
#ifndef FLOOR_DLPACK_PY_H
#define FLOOR_DLPACK_PY_H

#include <Python.h>

#if __has_include("dlpack.h")
#  include "dlpack.h"
#else
#  include <dlpack/dlpack.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DLPACK_PY_UINT8 0x1080001u /* code, bits and lanes, as in dlpack_py.h */
#define DLPACK_PY_FLOAT64 0x2400001u
#define DLPACK_PY_FLAG_READ_ONLY UINT64_C(1)

/* ---- Producing ----------------------------------------------------------- */

/* Both forms of a managed tensor, which are part of the object, or are allocated with their shape and strides. */
typedef struct {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
    int64_t extents[]; /* shape and strides of an allocated export */
} floor_export;

static inline DLTensor
dlpack_py_cpu(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    DLTensor t;
    t.data = data;
    t.device.device_type = kDLCPU;
    t.device.device_id = 0;
    t.ndim = ndim;
    t.dtype.code = (uint8_t)(dtype >> 24);
    t.dtype.bits = (uint8_t)(dtype >> 16);
    t.dtype.lanes = (uint16_t)dtype;
    t.shape = (int64_t *)(uintptr_t)shape;
    t.strides = (int64_t *)(uintptr_t)strides;
    t.byte_offset = 0;
    return t;
}

static inline void
floor_delete_embedded(DLManagedTensorVersioned *managed)
{
    Py_DECREF((PyObject *)managed->manager_ctx);
}

static inline void
floor_delete_embedded_legacy(DLManagedTensor *managed)
{
    Py_DECREF((PyObject *)managed->manager_ctx);
}

static inline void
floor_delete_allocated(DLManagedTensorVersioned *managed)
{
    Py_DECREF((PyObject *)managed->manager_ctx);
    free(managed);
}

static inline void
floor_delete_allocated_legacy(DLManagedTensor *managed)
{
    Py_DECREF((PyObject *)managed->manager_ctx);
    free((char *)managed - offsetof(floor_export, legacy));
}

static inline void
floor_fill(floor_export *e, PyObject *owner, const DLTensor *t, uint64_t flags)
{
    e->versioned.version.major = 1;
    e->versioned.version.minor = 3;
    e->versioned.manager_ctx = e->legacy.manager_ctx = owner;
    e->versioned.flags = flags;
    e->versioned.dl_tensor = e->legacy.dl_tensor = *t;
    e->versioned.deleter = floor_delete_embedded;
    e->legacy.deleter = floor_delete_embedded_legacy;
}

static inline void
floor_drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (strcmp(name, "dltensor_versioned") == 0) {
        DLManagedTensorVersioned *m = (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, name);
        m->deleter(m);
    }
    else if (strcmp(name, "dltensor") == 0) {
        DLManagedTensor *m = (DLManagedTensor *)PyCapsule_GetPointer(capsule, name);
        m->deleter(m);
    }
}

/* Is a keyword this name? Names are interned as a rule: equal pointers save the comparison. */
static inline int
floor_is(PyObject *keyword, PyObject *interned)
{
    return keyword == interned || PyUnicode_Compare(keyword, interned) == 0;
}

/* Reads the keywords of __dlpack__. Returns 1 where a versioned capsule is wanted, 0 where a legacy one is, or -1 with
 * an exception. */
static inline int
floor_parse(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static PyObject *max_version, *dl_device, *copy, *stream;
    const Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    Py_ssize_t i;
    int versioned = 0;

    if (stream == NULL) {
        max_version = PyUnicode_InternFromString("max_version");
        dl_device = PyUnicode_InternFromString("dl_device");
        copy = PyUnicode_InternFromString("copy");
        stream = PyUnicode_InternFromString("stream");
        if (max_version == NULL || dl_device == NULL || copy == NULL || stream == NULL)
            return -1;
    }
    if (nargs != 0) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__ takes keyword arguments only");
        return -1;
    }
    for (i = 0; i < given; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[i];
        if (floor_is(name, max_version)) {
            if (value == Py_None)
                continue;
            if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2) {
                PyErr_SetString(PyExc_TypeError, "max_version must be a tuple of two integers");
                return -1;
            }
            versioned = PyLong_AsLong(PyTuple_GET_ITEM(value, 0)) >= 1;
            if (PyErr_Occurred())
                return -1;
        }
        else if (floor_is(name, dl_device) || floor_is(name, copy) || floor_is(name, stream)) {
            if (value != Py_None) {
                PyErr_SetString(PyExc_BufferError, "only exports in place, on the CPU");
                return -1;
            }
        }
        else {
            PyErr_Format(PyExc_TypeError, "__dlpack__() got an unexpected keyword argument '%U'", name);
            return -1;
        }
    }
    return versioned;
}

static inline PyObject *
floor_capsule(floor_export *e, int versioned)
{
    if (!versioned && (e->versioned.flags & DLPACK_PY_FLAG_READ_ONLY) != 0) {
        PyErr_SetString(PyExc_BufferError, "read-only data needs max_version=(1, 0)");
        return NULL;
    }
    return versioned ? PyCapsule_New(&e->versioned, "dltensor_versioned", floor_drop_capsule)
                     : PyCapsule_New(&e->legacy, "dltensor", floor_drop_capsule);
}

static inline PyObject *
dlpack_py_produce(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    const int versioned = floor_parse(args, nargs, kwnames);
    floor_export *e;
    PyObject *capsule;
    int64_t step = 1;
    int32_t i;

    if (versioned < 0)
        return NULL;
    e = (floor_export *)malloc(sizeof(*e) + 2 * (size_t)t->ndim * sizeof(int64_t));
    if (e == NULL)
        return PyErr_NoMemory();
    floor_fill(e, owner, t, flags);
    e->versioned.deleter = floor_delete_allocated;
    e->legacy.deleter = floor_delete_allocated_legacy;
    for (i = t->ndim; i-- > 0;) {
        e->extents[i] = t->shape[i];
        e->extents[t->ndim + i] = t->strides == NULL ? step : t->strides[i];
        step *= t->shape[i];
    }
    e->versioned.dl_tensor.shape = e->legacy.dl_tensor.shape = e->extents;
    e->versioned.dl_tensor.strides = e->legacy.dl_tensor.strides = e->extents + t->ndim;
    capsule = floor_capsule(e, versioned);
    if (capsule == NULL)
        free(e);
    else
        Py_INCREF(owner);
    return capsule;
}

static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused)
{
    PyObject *device = PyTuple_New(2);
    (void)self;
    (void)unused;
    if (device == NULL)
        return NULL;
    PyTuple_SET_ITEM(device, 0, PyLong_FromLong(kDLCPU)); /* small integers: these calls do not fail */
    PyTuple_SET_ITEM(device, 1, PyLong_FromLong(0));
    return device;
}

#define DLPACK_PY_METHODS(dlpack, device)                                                       \
    {"__dlpack__", (PyCFunction)(void (*)(void))(dlpack), METH_FASTCALL | METH_KEYWORDS, NULL}, \
    {                                                                                           \
        "__dlpack_device__", (device), METH_NOARGS, NULL                                        \
    }

/* ---- Consuming ----------------------------------------------------------- */

typedef struct {
    uint32_t dtype;
    int32_t ndim;
    const int64_t *shape; /* -1: any extent; NULL: any shape */
    char order;           /* 'C', or 0 for any strides */
    char writable;
} dlpack_py_want;

typedef struct {
    DLTensor tensor;
    DLManagedTensorVersioned *versioned; /* what is owned, in one of the two forms */
    DLManagedTensor *legacy;
} dlpack_py_view;

static inline int
floor_refuse(const char *what)
{
    PyErr_Format(PyExc_BufferError, "the array has another %s than was asked for", what);
    return -1;
}

/* Checks the tensor of an array against a want. */
static inline int
floor_check(const DLTensor *t, int readonly, const dlpack_py_want *want)
{
    int64_t step = 1;
    int32_t i;

    if (t->device.device_type != kDLCPU)
        return floor_refuse("device");
    if (t->dtype.code != want->dtype >> 24 || t->dtype.bits != (want->dtype >> 16 & 0xff) ||
        t->dtype.lanes != (want->dtype & 0xffff))
        return floor_refuse("dtype");
    if (t->ndim != want->ndim)
        return floor_refuse("rank");
    if (want->writable && readonly)
        return floor_refuse("access");
    for (i = t->ndim; i-- > 0;) {
        if (want->shape != NULL && want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return floor_refuse("shape");
        if (want->order == 'C' && t->strides != NULL && t->strides[i] != step && t->shape[i] != 1)
            return floor_refuse("order");
        step *= t->shape[i];
    }
    return 0;
}

static inline int
floor_take(PyObject *capsule, const dlpack_py_want *want, dlpack_py_view *v)
{
    v->versioned = (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
    v->legacy = NULL;
    if (v->versioned != NULL) {
        if (v->versioned->version.major != 1)
            return floor_refuse("version");
        v->tensor = v->versioned->dl_tensor;
        if (floor_check(&v->tensor, (v->versioned->flags & DLPACK_PY_FLAG_READ_ONLY) != 0, want) < 0)
            return -1;
        return PyCapsule_SetName(capsule, "used_dltensor_versioned");
    }
    PyErr_Clear();
    v->legacy = (DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor");
    if (v->legacy == NULL)
        return -1;
    v->tensor = v->legacy->dl_tensor;
    return floor_check(&v->tensor, 1, want) < 0 ? -1 : PyCapsule_SetName(capsule, "used_dltensor");
}

static inline void *
dlpack_py_data(const dlpack_py_view *v)
{
    return (char *)v->tensor.data + v->tensor.byte_offset;
}

static inline void
dlpack_py_release(dlpack_py_view *v)
{
    if (v->versioned != NULL && v->versioned->deleter != NULL)
        v->versioned->deleter(v->versioned);
    else if (v->legacy != NULL && v->legacy->deleter != NULL)
        v->legacy->deleter(v->legacy);
}

/* __dlpack__ of the type that was seen last, where it is a method of a type written in C, which does not change. */
static inline PyObject *
floor_find_method(PyTypeObject *type, PyObject *name)
{
    static PyTypeObject *known;
    static PyObject *method;
    if (type != known) {
        PyObject *found = (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0 ? NULL : _PyType_Lookup(type, name);
        if (found == NULL || !PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR))
            return NULL;
        known = type;
        method = found;
    }
    return method;
}

static inline int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    static PyObject *name, *names, *version;
    PyObject *stack[2], *capsule, *method;
    int failed;

    if (names == NULL) {
        name = PyUnicode_InternFromString("__dlpack__");
        version = Py_BuildValue("(ii)", 1, 3);
        names = Py_BuildValue("(N)", PyUnicode_InternFromString("max_version"));
        if (name == NULL || version == NULL || names == NULL)
            return -1;
    }
    stack[0] = obj;
    stack[1] = version;
    method = floor_find_method(Py_TYPE(obj), name);
    capsule = method != NULL ? PyObject_Vectorcall(method, stack, 1, names)
                             : PyObject_VectorcallMethod(name, stack, 1, names);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_VectorcallMethod(name, stack, 1, NULL);
    }
    if (capsule == NULL)
        return -1;
    failed = floor_take(capsule, want, v);
    Py_DECREF(capsule);
    return failed;
}

#endif

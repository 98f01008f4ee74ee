/* What the tests of clauses cannot do in Python: a producer and a consumer in C, written from dlpack.h alone.
 *
 * Managed: a tensor with any content. Struct, shape, strides and values end at pages that cannot be read, and the
 * deleter makes all of them unreadable: code that reads too far, or after the deleter, ends the process.
 * Taken: a tensor that this consumer took from a capsule or from an exchange table. */

#include <Python.h>
#include <structmember.h> /* T_OBJECT_EX: PyMemberDef */

#include <dlpack/dlpack.h>

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#  define WIN32_LEAN_AND_MEAN
#  include <windows.h>
#  define usleep(microseconds) Sleep(((microseconds) + 999) / 1000)
#else
#  include <pthread.h>
#  include <sys/mman.h>
#  include <unistd.h>
#endif

typedef struct DLManagedTensorVersioned Versioned; /* 1.0 and 1.1 have it without a typedef */
typedef DLManagedTensor Legacy;

#define FUNCTION(function) ((PyCFunction)(void (*)(void))(function))
#define SLOT(function) ((void *)(uintptr_t)(function)) /* ISO C has no cast from a function to an object pointer */

/* Python.h has these for the limited API of 3.10. CPython 3.9 knows the same numbers. */
#ifndef METH_FASTCALL
#  define METH_FASTCALL 0x0080
#endif

/* Py_XSETREF, which the limited API lacks. Steals the value. */
static void
replace(PyObject **variable, PyObject *value)
{
    PyObject *before = *variable;
    *variable = value;
    Py_XDECREF(before);
}

/* ---- Differences of systems -------------------------------------------------- */

/* A thread's function: `THREAD_FUNCTION(name) { ... argument ...; return THREAD_END; }` */
#ifdef _WIN32
typedef HANDLE Thread;
typedef LPTHREAD_START_ROUTINE ThreadFunction;
#  define THREAD_FUNCTION(name) static DWORD WINAPI name(void *argument)
#  define THREAD_END 0
static SRWLOCK watches_lock = SRWLOCK_INIT;
#  define LOCK_WATCHES() AcquireSRWLockExclusive(&watches_lock)
#  define UNLOCK_WATCHES() ReleaseSRWLockExclusive(&watches_lock)
#else
typedef pthread_t Thread;
typedef void *(*ThreadFunction)(void *);
#  define THREAD_FUNCTION(name) static void *name(void *argument)
#  define THREAD_END NULL
static pthread_mutex_t watches_lock = PTHREAD_MUTEX_INITIALIZER;
#  define LOCK_WATCHES() (void)pthread_mutex_lock(&watches_lock)
#  define UNLOCK_WATCHES() (void)pthread_mutex_unlock(&watches_lock)
#endif

/* Returns 0, or a number of errno. */
static int
thread_start(Thread *thread, ThreadFunction function, void *argument)
{
#ifdef _WIN32
    *thread = CreateThread(NULL, 0, function, argument, 0, NULL);
    return *thread == NULL ? EAGAIN : 0;
#else
    return pthread_create(thread, NULL, function, argument);
#endif
}

static void
thread_join(Thread thread)
{
#ifdef _WIN32
    (void)WaitForSingleObject(thread, INFINITE);
    (void)CloseHandle(thread);
#else
    (void)pthread_join(thread, NULL);
#endif
}

static void
thread_detach(Thread thread)
{
#ifdef _WIN32
    (void)CloseHandle(thread);
#else
    (void)pthread_detach(thread);
#endif
}

/* Adds 1, and returns the number before. */
static long
add_one(long *number)
{
#if defined(_MSC_VER) && !defined(__clang__)
    return InterlockedExchangeAdd(number, 1);
#else
    return __atomic_fetch_add(number, 1, __ATOMIC_RELAXED);
#endif
}

static size_t page; /* bytes of one */

/* Pages that cannot be read; NULL with MemoryError. */
static char *
pages_new(size_t size)
{
#ifdef _WIN32
    char *pages = (char *)VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_NOACCESS);
#else
    char *pages = (char *)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == (char *)MAP_FAILED)
        pages = NULL;
#endif
    return pages == NULL ? (char *)PyErr_NoMemory() : pages;
}

/* Makes pages readable and writable, or neither. Returns 0, or another number on failure. */
static int
pages_protect(char *pages, size_t size, int readable)
{
#ifdef _WIN32
    DWORD before;
    return !VirtualProtect(pages, size, readable ? PAGE_READWRITE : PAGE_NOACCESS, &before);
#else
    return mprotect(pages, size, readable ? PROT_READ | PROT_WRITE : PROT_NONE);
#endif
}

static void
pages_free(char *pages, size_t size)
{
#ifdef _WIN32
    (void)size;
    (void)VirtualFree(pages, 0, MEM_RELEASE);
#else
    (void)munmap(pages, size);
#endif
}

static size_t
pages_size(void)
{
#ifdef _WIN32
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
#else
    return (size_t)sysconf(_SC_PAGESIZE);
#endif
}

/* ---- What tensors say ------------------------------------------------------- */

static PyObject *
extents(const int64_t *numbers, int32_t count)
{
    PyObject *tuple;
    int32_t i;
    if (numbers == NULL)
        Py_RETURN_NONE;
    tuple = PyTuple_New(count);
    for (i = 0; i < count; i++)
        (void)PyTuple_SetItem(tuple, i, PyLong_FromLongLong(numbers[i]));
    return tuple;
}

/* A dict of what a DLTensor says. */
static PyObject *
describe(const DLTensor *t)
{
    const int32_t count = t->ndim < 0 || t->ndim > 64 ? 0 : t->ndim;
    return Py_BuildValue("{sN s(ii) si s(iii) sN sN sK}", "data", PyLong_FromVoidPtr(t->data), "device",
                         (int)t->device.device_type, (int)t->device.device_id, "ndim", (int)t->ndim, "dtype",
                         (int)t->dtype.code, (int)t->dtype.bits, (int)t->dtype.lanes, "shape", extents(t->shape, count),
                         "strides", extents(t->strides, count), "byte_offset", (unsigned long long)t->byte_offset);
}

static void
set_item(PyObject *dict, const char *name, PyObject *value)
{
    (void)PyDict_SetItemString(dict, name, value);
    Py_DECREF(value);
}

/* A dict of what a managed tensor of either form says. A legacy tensor has None as its flags and version. */
static PyObject *
describe_managed(const Versioned *versioned, const Legacy *legacy)
{
    PyObject *says = describe(versioned != NULL ? &versioned->dl_tensor : &legacy->dl_tensor);
    const int has_context = (versioned != NULL ? versioned->manager_ctx : legacy->manager_ctx) != NULL;
    const int has_deleter = versioned != NULL ? versioned->deleter != NULL : legacy->deleter != NULL;

    set_item(says, "flags", versioned == NULL ? Py_BuildValue("") : PyLong_FromUnsignedLongLong(versioned->flags));
    set_item(says, "version",
             versioned == NULL ? Py_BuildValue("")
                               : Py_BuildValue("(II)", versioned->version.major, versioned->version.minor));
    set_item(says, "has_context", PyBool_FromLong(has_context));
    set_item(says, "has_deleter", PyBool_FromLong(has_deleter));
    return says;
}

/* ---- Managed --------------------------------------------------------------- */

/* Pages, each part at the end of its own and before one that cannot be read: the Managed's address, the struct, shape,
 * strides, values. */
typedef struct {
    PyObject_HEAD
    char *pages;
    size_t size;
    int versioned;
    int handed;   /* 1: exported; the deleter drops a reference */
    long deleted; /* how often its deleter was called */
    void *struct_;
    DLTensor *tensor;
    char *values;
    PyObject *on_delete;
} Managed;

#define ALIGNMENT 256 /* of values, as dlpack.h asks for */

#define MAX_EXTENTS 1024 /* of shape and of strides: 8 KB each, in the 16 pages of a Managed */

static PyTypeObject *managed_type;

/* Puts bytes at the end of the next page, and a page that cannot be read behind it. */
static char *
place(char **next, const void *bytes, size_t size, size_t slack)
{
    const size_t room = (size + slack + page - 1) / page * page;
    char *at = *next + room - size - slack;

    if (room == 0 || pages_protect(*next, room, 1) != 0)
        return *next; /* nothing to place: what cannot be read will do */
    *next += room + page;
    if (bytes != NULL)
        memcpy(at, bytes, size);
    return at;
}

/* Any thread. What is looked for was put before the struct, where it stays readable. */
static void
delete_managed(void *managed)
{
    char *first = (char *)((uintptr_t)managed / page * page) - 2 * page;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *error_type, *error, *traceback, *result;
    Managed *self;

    memcpy(&self, first + page - sizeof(self), sizeof(self));
    PyErr_Fetch(&error_type, &error, &traceback);
    if (add_one(&self->deleted) == 0 && self->handed) {
        (void)pages_protect(self->pages + page, self->size - page, 0);
        if (self->on_delete != NULL) {
            result = PyObject_CallFunctionObjArgs(self->on_delete, NULL);
            if (result == NULL)
                PyErr_WriteUnraisable(self->on_delete);
            Py_XDECREF(result);
        }
        Py_DECREF(self);
    }
    PyErr_Restore(error_type, error, traceback);
    PyGILState_Release(state);
}

static void
delete_versioned(Versioned *managed)
{
    delete_managed(managed);
}

static void
delete_legacy(Legacy *managed)
{
    delete_managed(managed);
}

/* int64_t of a tuple; NULL for None. */
static int64_t *
parse_extents(PyObject *tuple, char **next)
{
    const size_t count = tuple == Py_None ? 0 : (size_t)PyTuple_Size(tuple);
    char *at;
    size_t i;

    if (tuple == Py_None || PyErr_Occurred())
        return NULL;
    if (count > MAX_EXTENTS) {
        (void)PyErr_Format(PyExc_ValueError, "there is room for %d extents", MAX_EXTENTS);
        return NULL;
    }
    at = place(next, NULL, count * sizeof(int64_t), 0);
    for (i = 0; i < count; i++)
        ((int64_t *)(void *)at)[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, (Py_ssize_t)i));
    return (int64_t *)(void *)at;
}

/* Managed(versioned=True, *, values, misalign, shape, strides, ndim, dtype, data, byte_offset, device, flags, version,
 * deleter, on_delete, sealed): values are bytes, aligned to 256 but for misalign; None for NULL; data is an
 * address. Of a sealed versioned tensor dl_tensor cannot be read: only what is in front of it. */
static PyObject *
managed_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"versioned",   "values", "misalign", "shape",   "strides", "ndim",      "dtype",  "data",
                               "byte_offset", "device", "flags",    "version", "deleter", "on_delete", "sealed", NULL};
    PyObject *bytes = NULL, *shape = NULL, *strides = Py_None, *ndim = Py_None, *data = Py_None, *on_delete = NULL;
    unsigned long long byte_offset = 0, flags = 0;
    unsigned int major = 1, minor = 3;
    size_t slack;
    int sealed = 0, versioned = 1, misalign = 0, deleter = 1, code = 2, bits = 64, lanes = 1, device = 1, id = 0;
    char *values = NULL;
    Py_ssize_t size = 0;
    Managed *self;
    DLTensor *t;
    char *next;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|p$OiOOO(iii)OK(ii)K(II)pOp", keywords, &versioned, &bytes,
                                     &misalign, &shape, &strides, &ndim, &code, &bits, &lanes, &data, &byte_offset,
                                     &device, &id, &flags, &major, &minor, &deleter, &on_delete, &sealed) ||
        (bytes != NULL && PyBytes_AsStringAndSize(bytes, &values, &size) < 0))
        return NULL;
    self = (Managed *)PyType_GenericAlloc(type, 0);
    if (self == NULL)
        return NULL;
    self->versioned = versioned;
    Py_XINCREF(on_delete);
    self->on_delete = on_delete;
    self->size = 16 * page + (size_t)size + 2 * ALIGNMENT;
    self->pages = pages_new(self->size);
    if (self->pages == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    next = self->pages;
    (void)place(&next, &self, sizeof(self), 0);
    if (sealed)
        self->struct_ = place(&next, NULL, offsetof(Versioned, dl_tensor), 0);
    else
        self->struct_ = place(&next, NULL, versioned ? sizeof(Versioned) : sizeof(Legacy), 0);
    if (versioned) {
        Versioned *managed = (Versioned *)self->struct_;
        managed->version.major = major;
        managed->version.minor = minor;
        managed->manager_ctx = self;
        managed->deleter = deleter ? delete_versioned : NULL;
        managed->flags = flags;
        if (sealed)
            return (PyObject *)self;
        t = &managed->dl_tensor;
    }
    else {
        Legacy *managed = (Legacy *)self->struct_;
        managed->manager_ctx = self;
        managed->deleter = deleter ? delete_legacy : NULL;
        t = &managed->dl_tensor;
    }
    self->tensor = t;
    t->shape = shape == NULL ? NULL : parse_extents(shape, &next);
    t->strides = parse_extents(strides, &next);
    slack = (ALIGNMENT - (size_t)size % ALIGNMENT) % ALIGNMENT + (size_t)misalign; /* values begin aligned */
    self->values = place(&next, values, (size_t)size, slack);
    t->data = data == Py_None ? self->values : PyLong_AsVoidPtr(data);
    t->ndim = shape == NULL || shape == Py_None ? 0 : (int32_t)PyTuple_Size(shape);
    if (ndim != Py_None)
        t->ndim = (int32_t)PyLong_AsLong(ndim);
    t->dtype.code = (uint8_t)code;
    t->dtype.bits = (uint8_t)bits;
    t->dtype.lanes = (uint16_t)lanes;
    t->device.device_type = (DLDeviceType)device;
    t->device.device_id = id;
    t->byte_offset = byte_offset;
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* The end of tp_dealloc of a type of the heap. */
static void
free_object(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    ((freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free))(op);
    Py_DECREF(type);
}

static void
managed_dealloc(PyObject *op)
{
    Managed *self = (Managed *)op;
    if (self->pages != NULL)
        pages_free(self->pages, self->size);
    Py_XDECREF(self->on_delete);
    free_object(op);
}

/* The struct, whose deleter is due then; NULL with an exception once it was deleted. */
static void *
hand_over(Managed *self)
{
    int has_deleter;
    if (self->deleted) {
        PyErr_SetString(PyExc_ReferenceError, "this tensor was deleted before");
        return NULL;
    }
    has_deleter =
        self->versioned ? ((Versioned *)self->struct_)->deleter != NULL : ((Legacy *)self->struct_)->deleter != NULL;
#ifdef PYPY_VERSION
    has_deleter = 1; /* a collection frees in any order: what is never deleted stays */
#endif
    if (has_deleter && !self->handed) {
        self->handed = 1;
        Py_INCREF(self);
    }
    return self->struct_;
}

static void
delete_if_named(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        Versioned *managed = (Versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
    else if (PyCapsule_IsValid(capsule, "dltensor")) {
        Legacy *managed = (Legacy *)PyCapsule_GetPointer(capsule, "dltensor");
        if (managed->deleter != NULL)
            managed->deleter(managed);
    }
}

/* The context is called with the name that the capsule died by. */
static void
call_and_delete(PyObject *capsule)
{
    PyObject *called = (PyObject *)PyCapsule_GetContext(capsule), *error_type, *error, *traceback, *result;

    PyErr_Fetch(&error_type, &error, &traceback);
    result = PyObject_CallFunction(called, "y", PyCapsule_GetName(capsule));
    if (result == NULL)
        PyErr_WriteUnraisable(called);
    Py_XDECREF(result);
    Py_DECREF(called);
    PyErr_Restore(error_type, error, traceback);
    delete_if_named(capsule);
}

static PyObject *static_names; /* a dict of bytes: names of capsules live as long as the process */

/* Of bytes, or NULL for None. */
static int
static_name(PyObject *wanted, const char **name)
{
    *name = NULL;
    if (wanted == Py_None)
        return 0;
    wanted = PyObject_CallMethod(static_names, "setdefault", "OO", wanted, wanted);
    *name = wanted == NULL ? NULL : PyBytes_AsString(wanted);
    Py_XDECREF(wanted);
    return *name == NULL ? -1 : 0;
}

/* capsule(name=None, *, on_destroy=None, destructor=True): name are bytes, None the right one; on_destroy is in the
 * capsule's context, which is else some address. */
static PyObject *
managed_capsule(PyObject *op, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"name", "on_destroy", "destructor", NULL};
    Managed *self = (Managed *)op;
    const char *name = self->versioned ? "dltensor_versioned" : "dltensor";
    PyObject *wanted = Py_None, *on_destroy = NULL, *capsule;
    int destructor = 1;

    if (!PyArg_ParseTupleAndKeywords(args, names, "|O$Op", keywords, &wanted, &on_destroy, &destructor))
        return NULL;
    if ((wanted != Py_None && static_name(wanted, &name) < 0) || hand_over(self) == NULL)
        return NULL;
    capsule = PyCapsule_New(self->struct_, name,
                            !destructor ? NULL : (on_destroy != NULL ? call_and_delete : delete_if_named));
    if (capsule == NULL)
        return NULL;
    Py_XINCREF(on_destroy);
    (void)PyCapsule_SetContext(capsule, on_destroy != NULL ? (void *)on_destroy : (void *)&page);
    return capsule;
}

static PyObject *
managed_says(PyObject *op, void *Py_UNUSED(closure))
{
    const Managed *self = (const Managed *)op;
    if (self->deleted || self->tensor == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "this tensor was deleted, or cannot be read");
        return NULL;
    }
    return self->versioned ? describe_managed((const Versioned *)self->struct_, NULL)
                           : describe_managed(NULL, (const Legacy *)self->struct_);
}

static PyObject *
managed_address(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(((Managed *)op)->values);
}

static PyObject *
managed_deleted(PyObject *op, void *Py_UNUSED(closure))
{
    const Managed *self = (const Managed *)op;
#ifdef PYPY_VERSION
    int i; /* a collection frees an object, and the next one what that object held */
    for (i = 0; i < 3 && self->handed && !self->deleted; i++) {
        PyObject *gc = PyImport_ImportModule("gc");
        PyObject *result = gc == NULL ? NULL : PyObject_CallMethod(gc, "collect", NULL);
        Py_XDECREF(gc);
        if (result == NULL)
            return NULL;
        Py_DECREF(result);
    }
#endif
    return PyLong_FromLong(self->deleted);
}

static PyMethodDef managed_methods[] = {
    {"capsule", FUNCTION(managed_capsule), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef managed_attributes[] = {
    {"says", managed_says, NULL, NULL, NULL},
    {"address", managed_address, NULL, NULL, NULL}, /* of the values */
    {"deleted", managed_deleted, NULL, NULL, NULL}, /* on PyPy: after a collection, if that is needed */
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot managed_slots[] = {
    {Py_tp_new, SLOT(managed_new)},
    {Py_tp_dealloc, SLOT(managed_dealloc)},
    {Py_tp_methods, managed_methods},
    {Py_tp_getset, managed_attributes},
    {0, NULL},
};

static PyType_Spec managed_spec = {
    "_dlpack_conformance.Managed", sizeof(Managed), 0, Py_TPFLAGS_DEFAULT, managed_slots,
};

/* ---- Taken ------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    Versioned *versioned; /* one of the two, until it is deleted */
    Legacy *legacy;
    PyObject *says; /* as it was taken */
} Taken;

static PyTypeObject *taken_type;

/* The elements in row-major order, each as its bits in as many bytes as they need. */
static PyObject *
read_elements(const DLTensor *t, int padded)
{
    const int64_t bits = (t->dtype.bits < 8 && padded ? 8 : t->dtype.bits) * t->dtype.lanes;
    int64_t index[64] = {0}, compact[64], step = 1, at, k;
    PyObject *list = PyList_New(0), *element;
    int32_t i;

    if (t->ndim < 0 || t->ndim > 64 || (t->ndim > 0 && t->shape == NULL)) {
        Py_XDECREF(list);
        return PyErr_Format(PyExc_AssertionError, "ndim is %d, and shape is %sNULL", (int)t->ndim,
                            t->shape ? "not " : "");
    }
    for (i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0)
            return list;
        compact[i] = step;
        step *= t->shape[i];
    }
    for (;;) {
        const unsigned char *first = (const unsigned char *)t->data + t->byte_offset;
        char *bytes;
        for (i = 0, at = 0; i < t->ndim; i++)
            at += index[i] * (t->strides != NULL ? t->strides[i] : compact[i]);
        element = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((bits + 7) / 8));
        bytes = PyBytes_AsString(element);
        memset(bytes, 0, (size_t)PyBytes_Size(element));
        for (k = 0; k < bits; k++) { /* the lowest bit first */
            const int64_t bit = at * bits + k, place_in_byte = (bit % 8 + 8) % 8;
            if (first[(bit - place_in_byte) / 8] >> place_in_byte & 1)
                bytes[k / 8] = (char)(bytes[k / 8] | 1 << k % 8);
        }
        (void)PyList_Append(list, element);
        Py_XDECREF(element);
        for (i = t->ndim - 1; i >= 0 && ++index[i] == t->shape[i]; i--)
            index[i] = 0;
        if (i < 0)
            return list;
    }
}

static PyObject *
taken_new(Versioned *versioned, Legacy *legacy)
{
    Taken *self = (Taken *)PyType_GenericAlloc(taken_type, 0);

    if (self == NULL)
        return NULL;
    self->versioned = versioned;
    self->legacy = legacy;
    self->says = describe_managed(versioned, legacy);
    return (PyObject *)self;
}

static void
taken_let_go(Taken *self)
{
    Versioned *versioned = self->versioned;
    Legacy *legacy = self->legacy;
    self->versioned = NULL;
    self->legacy = NULL;
    if (versioned != NULL && versioned->deleter != NULL)
        versioned->deleter(versioned);
    if (legacy != NULL && legacy->deleter != NULL)
        legacy->deleter(legacy);
}

static void
taken_dealloc(PyObject *op)
{
    taken_let_go((Taken *)op);
    Py_XDECREF(((Taken *)op)->says);
    free_object(op);
}

/* delete(attached=True) */
static PyObject *
taken_delete(PyObject *op, PyObject *args)
{
    int attached = 1;
    if (!PyArg_ParseTuple(args, "|p", &attached))
        return NULL;
    if (attached) {
        taken_let_go((Taken *)op);
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        taken_let_go((Taken *)op);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

THREAD_FUNCTION(let_go_on_thread)
{
    taken_let_go((Taken *)argument);
    return THREAD_END;
}

/* delete_on_thread(): calls the deleter on a thread that Python has never seen. */
static PyObject *
taken_delete_on_thread(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Thread thread;
    int failed;

    Py_BEGIN_ALLOW_THREADS
    failed = thread_start(&thread, let_go_on_thread, op);
    if (!failed)
        thread_join(thread);
    Py_END_ALLOW_THREADS
    errno = failed;
    if (failed)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

/* What C code holds longer than the interpreter lives. */
typedef struct Held {
    Taken taken;
    struct Held *next;
} Held;

static Held *held;

static void
let_go_of_held(void)
{
    for (; held != NULL; held = held->next)
        taken_let_go(&held->taken);
}

/* keep_until_exit(): the deleter is called by a function of C's atexit, after the interpreter is gone. */
static PyObject *
taken_keep_until_exit(PyObject *op, PyObject *Py_UNUSED(unused))
{
    static int registered;
    Held *entry = (Held *)calloc(1, sizeof(Held));

    if (entry == NULL || (!registered && atexit(let_go_of_held) != 0)) {
        free(entry);
        return PyErr_NoMemory();
    }
    registered = 1;
    entry->taken.versioned = ((Taken *)op)->versioned;
    entry->taken.legacy = ((Taken *)op)->legacy;
    entry->next = held;
    held = entry;
    ((Taken *)op)->versioned = NULL;
    ((Taken *)op)->legacy = NULL;
    Py_RETURN_NONE;
}

THREAD_FUNCTION(let_go_slowly)
{
    Held *entry = (Held *)argument;

    for (; entry != NULL; entry = entry->next) {
        (void)usleep(500);
        taken_let_go(&entry->taken);
    }
    return THREAD_END;
}

/* delete_held_on_thread(): a thread calls the deleters of all that keep_until_exit() holds, one every half
 * millisecond. The call returns at once. */
static PyObject *
delete_held_on_thread(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    Held *entries = held;
    Thread thread;

    held = NULL;
    errno = thread_start(&thread, let_go_slowly, entries);
    if (errno != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    thread_detach(thread);
    Py_RETURN_NONE;
}

static PyObject *
taken_elements(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Taken *self = (const Taken *)op;
    if (self->versioned != NULL)
        return read_elements(&self->versioned->dl_tensor, (self->versioned->flags & 4) != 0);
    return read_elements(&self->legacy->dl_tensor, 0);
}

/* changed(extent): as a consumer may do to what is its own, the first extent is another, in a new capsule. */
static PyObject *
taken_changed(PyObject *op, PyObject *extent)
{
    Taken *self = (Taken *)op;
    Versioned *versioned = self->versioned;
    Legacy *legacy = self->legacy;
    const int64_t number = PyLong_AsLongLong(extent);

    self->versioned = NULL;
    self->legacy = NULL;
    if (versioned != NULL) {
        versioned->dl_tensor.shape[0] = number;
        return PyCapsule_New(versioned, "dltensor_versioned", delete_if_named);
    }
    legacy->dl_tensor.shape[0] = number;
    return PyCapsule_New(legacy, "dltensor", delete_if_named);
}

/* scribble(): over all that is the consumer's, which is all but the context and the deleter. */
static PyObject *
taken_scribble(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Taken *self = (Taken *)op;
    DLTensor *t = self->versioned != NULL ? &self->versioned->dl_tensor : &self->legacy->dl_tensor;

    if (t->ndim > 0) {
        memset(t->shape, 0xa5, (size_t)t->ndim * sizeof(int64_t));
        if (t->strides != NULL)
            memset(t->strides, 0xa5, (size_t)t->ndim * sizeof(int64_t));
    }
    memset(t, 0xa5, sizeof(*t));
    if (self->versioned != NULL) {
        memset(&self->versioned->version, 0xa5, sizeof(self->versioned->version));
        memset(&self->versioned->flags, 0xa5, sizeof(self->versioned->flags));
    }
    Py_RETURN_NONE;
}

static PyMethodDef taken_methods[] = {
    {"delete", taken_delete, METH_VARARGS, NULL},
    {"delete_on_thread", taken_delete_on_thread, METH_NOARGS, NULL},
    {"keep_until_exit", taken_keep_until_exit, METH_NOARGS, NULL},
    {"elements", taken_elements, METH_NOARGS, NULL},
    {"changed", taken_changed, METH_O, NULL},
    {"scribble", taken_scribble, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef taken_members[] = {
    {"says", T_OBJECT_EX, offsetof(Taken, says), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot taken_slots[] = {
    {Py_tp_dealloc, SLOT(taken_dealloc)},
    {Py_tp_methods, taken_methods},
    {Py_tp_members, taken_members},
    {0, NULL},
};

static PyType_Spec taken_spec = {"_dlpack_conformance.Taken", sizeof(Taken), 0, Py_TPFLAGS_DEFAULT, taken_slots};

/* take(obj, **keywords): calls __dlpack__ with them, or takes a capsule. */
static PyObject *
take(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    PyObject *obj, *method, *none, *capsule, *taken = NULL;

    if (!PyArg_ParseTuple(args, "O", &obj))
        return NULL;
    if (PyCapsule_CheckExact(obj)) {
        Py_INCREF(obj);
        capsule = obj;
    }
    else {
        method = PyObject_GetAttrString(obj, "__dlpack__");
        none = PyTuple_New(0);
        capsule = method == NULL ? NULL : PyObject_Call(method, none, keywords);
        Py_XDECREF(method);
        Py_XDECREF(none);
    }
    if (capsule == NULL)
        return NULL;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        Versioned *managed = (Versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (managed->version.major != 1)
            PyErr_SetString(PyExc_BufferError, "another major version");
        else if (PyCapsule_SetName(capsule, "used_dltensor_versioned") == 0)
            taken = taken_new(managed, NULL);
    }
    else if (PyCapsule_IsValid(capsule, "dltensor")) {
        Legacy *managed = (Legacy *)PyCapsule_GetPointer(capsule, "dltensor");
        if (PyCapsule_SetName(capsule, "used_dltensor") == 0)
            taken = taken_new(NULL, managed);
    }
    else {
        PyErr_SetString(PyExc_TypeError, "no capsule of DLPack's");
    }
    Py_DECREF(capsule);
    return taken;
}

/* strip(capsule, name): takes away its destructor, and gives it the name, which may be None. */
static PyObject *
strip(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *wanted;
    const char *given;

    if (!PyArg_ParseTuple(args, "OO", &capsule, &wanted) || static_name(wanted, &given) < 0 ||
        PyCapsule_SetDestructor(capsule, NULL) < 0 || PyCapsule_SetName(capsule, given) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* rename(capsule, name): as a consumer does; name are bytes. */
static PyObject *
rename_capsule(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *wanted;
    const char *given;

    if (!PyArg_ParseTuple(args, "OO", &capsule, &wanted) || static_name(wanted, &given) < 0 ||
        PyCapsule_SetName(capsule, given) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* name(capsule): bytes. */
static PyObject *
name(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    return PyBytes_FromString(PyCapsule_GetName(capsule));
}

/* peek(capsule): what the tensor in an unconsumed capsule says. */
static PyObject *
peek(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        return describe_managed((const Versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned"), NULL);
    if (PyCapsule_IsValid(capsule, "dltensor"))
        return describe_managed(NULL, (const Legacy *)PyCapsule_GetPointer(capsule, "dltensor"));
    PyErr_SetString(PyExc_TypeError, "not an unconsumed DLPack capsule");
    return NULL;
}

/* A deleter that was replaced by one that counts. Entries are never freed: a deleter may be called late. */
typedef struct Watch {
    void *managed;
    void (*versioned)(Versioned *);
    void (*legacy)(Legacy *);
    int calls;
    struct Watch *next;
} Watch;

static Watch *watches;

/* The second call and later calls are counted, but not passed on: the struct is freed. */
static Watch *
count_call(void *managed, int *first)
{
    Watch *watch;
    LOCK_WATCHES();
    for (watch = watches; watch->managed != managed; watch = watch->next)
        ;
    *first = watch->calls++ == 0;
    UNLOCK_WATCHES();
    return watch;
}

static void
count_versioned(Versioned *managed)
{
    int first;
    const Watch *watch = count_call(managed, &first);
    if (first && watch->versioned != NULL)
        watch->versioned(managed);
}

static void
count_legacy(Legacy *managed)
{
    int first;
    const Watch *watch = count_call(managed, &first);
    if (first && watch->legacy != NULL)
        watch->legacy(managed);
}

/* watch(capsule): replaces the deleter in an unconsumed capsule by one that counts its calls; the result is for
 * calls(). */
static PyObject *
watch_capsule(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    Watch *watch = (Watch *)calloc(1, sizeof(Watch));

    if (watch == NULL)
        return PyErr_NoMemory();
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        Versioned *managed = (Versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        watch->managed = managed;
        watch->versioned = managed->deleter;
        managed->deleter = count_versioned;
    }
    else if (PyCapsule_IsValid(capsule, "dltensor")) {
        Legacy *managed = (Legacy *)PyCapsule_GetPointer(capsule, "dltensor");
        watch->managed = managed;
        watch->legacy = managed->deleter;
        managed->deleter = count_legacy;
    }
    else {
        free(watch);
        PyErr_SetString(PyExc_TypeError, "not an unconsumed DLPack capsule");
        return NULL;
    }
    LOCK_WATCHES();
    watch->next = watches;
    watches = watch;
    UNLOCK_WATCHES();
    return PyLong_FromVoidPtr(watch);
}

/* calls(watch): how often the deleter was called. */
static PyObject *
watch_calls(PyObject *Py_UNUSED(module), PyObject *watch)
{
    const Watch *found = (const Watch *)PyLong_AsVoidPtr(watch);
    return found == NULL ? NULL : PyLong_FromLong(found->calls);
}

/* drop_with_error(list): drops the objects of the list while a ValueError is in flight. Returns the exception that is
 * in flight afterwards, or None. */
static PyObject *
drop_with_error(PyObject *Py_UNUSED(module), PyObject *list)
{
    PyObject *error_type, *error, *traceback;

    PyErr_SetString(PyExc_ValueError, "in flight");
    if (PyList_SetSlice(list, 0, PY_SSIZE_T_MAX, NULL) < 0)
        return NULL;
    PyErr_Fetch(&error_type, &error, &traceback);
    if (error_type == NULL)
        Py_RETURN_NONE;
    PyErr_NormalizeException(&error_type, &error, &traceback);
    Py_DECREF(error_type);
    Py_XDECREF(traceback);
    return error;
}

#ifndef PYPY_VERSION
/* PyRun_SimpleString, which the limited API lacks. */
static int
run_code(const char *text)
{
    PyObject *main_module = PyImport_AddModule("__main__"); /* borrowed */
    PyObject *globals = main_module == NULL ? NULL : PyModule_GetDict(main_module);
    PyObject *code = globals == NULL ? NULL : Py_CompileString(text, "<string>", Py_file_input);
    PyObject *result = code == NULL ? NULL : PyEval_EvalCode(code, globals, globals);

    if (result == NULL)
        PyErr_Print();
    Py_XDECREF(code);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}
#endif

/* in_subinterpreter(code): runs code in a new subinterpreter that shares the GIL, and ends it. Returns whether the code
 * raised nothing. */
static PyObject *
in_subinterpreter(PyObject *Py_UNUSED(module), PyObject *code)
{
#ifdef PYPY_VERSION
    (void)code;
    PyErr_SetString(PyExc_RuntimeError, "PyPy has no subinterpreters");
    return NULL;
#else
    PyObject *text = PyUnicode_AsUTF8String(code);
    PyThreadState *main_state = PyThreadState_Get(), *state;
    int result;

    if (text == NULL)
        return NULL;
    state = Py_NewInterpreter();
    if (state == NULL) {
        (void)PyThreadState_Swap(main_state);
        Py_DECREF(text);
        PyErr_SetString(PyExc_RuntimeError, "no new interpreter");
        return NULL;
    }
    result = run_code(PyBytes_AsString(text));
    Py_EndInterpreter(state);
    (void)PyThreadState_Swap(main_state);
    Py_DECREF(text);
    return PyBool_FromLong(result == 0);
#endif
}

/* ---- Exchange tables --------------------------------------------------------- */

#if DLPACK_MINOR_VERSION >= 3

/* How often each function of our own tables was called: owned, lent, to object, allocate, stream. */
static long table_calls[5];

/* What the functions of our own table return when their work is done, and leave in flight: an exception, or NULL. */
static int returned;
static PyObject *beside;

/* outcome(returned=0, exception=None) */
static PyObject *
set_outcome(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *exception = NULL;
    returned = 0;
    if (!PyArg_ParseTuple(args, "|iO", &returned, &exception))
        return NULL;
    if (exception == Py_None)
        exception = NULL;
    Py_XINCREF(exception);
    replace(&beside, exception);
    Py_RETURN_NONE;
}

static int
outcome(void)
{
    if (beside != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(beside), beside);
    return returned;
}

/* What the functions of our own table give: obj.managed. */
static Managed *
managed_of(void *object)
{
    Managed *managed = (Managed *)PyObject_GetAttrString((PyObject *)object, "managed");
    Py_XDECREF(managed); /* the object keeps it */
    if (managed != NULL && (Py_TYPE((PyObject *)managed) != managed_type || managed->deleted)) {
        PyErr_SetString(PyExc_ReferenceError, "this tensor was deleted before");
        return NULL;
    }
    return managed;
}

static int
own_from_object(void *object, Versioned **out)
{
    Managed *managed = managed_of(object);
    table_calls[0]++;
    *out = managed == NULL ? NULL : (Versioned *)hand_over(managed);
    if (*out == NULL)
        return -1;
    if (returned != 0)
        delete_managed(*out); /* and leaves the pointer where it is */
    return outcome();
}

static int
own_borrow(void *object, DLTensor *out)
{
    Managed *managed = managed_of(object);
    table_calls[1]++;
    if (managed != NULL)
        *out = *managed->tensor;
    return managed != NULL ? outcome() : -1;
}

/* The object is a Taken; one that is gone where this fails. */
static int
own_to_object(Versioned *managed, void **out)
{
    table_calls[2]++;
    *out = taken_new(managed, NULL);
    if (*out == NULL)
        return -1;
    if (returned != 0)
        Py_DECREF((PyObject *)*out);
    return outcome();
}

static PyObject *allocator; /* which fails; None at first */

/* allocator_is(callable): called with the address of a prototype, for a Managed. What it raises is reported:
 * Exception(kind, message), both bytes. */
static PyObject *
allocator_is(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_INCREF(callable);
    replace(&allocator, callable);
    Py_RETURN_NONE;
}

static int
own_allocate(DLTensor *prototype, Versioned **out, void *context,
             void (*set_error)(void *context, const char *kind, const char *message))
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *managed = PyObject_CallFunction(allocator, "N", PyLong_FromVoidPtr(prototype));
    PyObject *error_type, *error, *traceback, *said;
    const char *kind = "RuntimeError", *message = "the allocator raised something else";
    int result = -1;

    table_calls[3]++;
    if (managed != NULL) {
        *out = (Versioned *)hand_over((Managed *)managed);
        if (returned != 0)
            delete_managed(*out);
        result = outcome();
        Py_DECREF(managed);
    }
    else {
        PyErr_Fetch(&error_type, &error, &traceback);
        PyErr_NormalizeException(&error_type, &error, &traceback);
        said = PyObject_GetAttrString(error, "args");
        if (!PyArg_ParseTuple(said, "yy", &kind, &message))
            PyErr_Clear();
        set_error(context, kind, message);
        Py_DECREF(said);
        Py_DECREF(error_type);
        Py_DECREF(error);
        Py_XDECREF(traceback);
    }
    PyGILState_Release(state);
    return result;
}

static int
own_stream(DLDeviceType Py_UNUSED(type), int32_t Py_UNUSED(id), void **out)
{
    table_calls[4]++;
    *out = NULL;
    return 0;
}

/* Puts bytes where they stay as long as the process, and a page that cannot be read behind them. */
static void *
keep(const void *bytes, size_t size)
{
    char *next = pages_new(2 * page);
    return next == NULL ? NULL : place(&next, bytes, size, 0);
}

/* calls_of_tables(): the counts since the last call. */
static PyObject *
calls_of_tables(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *counts =
        Py_BuildValue("(lllll)", table_calls[0], table_calls[1], table_calls[2], table_calls[3], table_calls[4]);
    memset(table_calls, 0, sizeof(table_calls));
    return counts;
}

/* table(name=b"dlpack_exchange_api", minor=3, without=0, major=1): a capsule of a table whose functions give
 * obj.managed, and make a Taken. The name may be None. Bit i of `without` makes function i of the table NULL. */
static PyObject *
table(PyObject *Py_UNUSED(module), PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "minor", "without", "major", NULL};
    DLPackExchangeAPI made = {
        {{1, 3}, NULL}, own_allocate, own_from_object, own_to_object, own_borrow, own_stream,
    };
    const char *called = "dlpack_exchange_api";
    PyObject *wanted = NULL;
    unsigned int without = 0;
    void *kept;

    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|OIII", names, &wanted, &made.header.version.minor, &without,
                                     &made.header.version.major) ||
        (wanted != NULL && static_name(wanted, &called) < 0))
        return NULL;
    if (without & 1)
        made.managed_tensor_allocator = NULL;
    if (without & 2)
        made.managed_tensor_from_py_object_no_sync = NULL;
    if (without & 4)
        made.managed_tensor_to_py_object_no_sync = NULL;
    if (without & 8)
        made.dltensor_from_py_object_no_sync = NULL;
    if (without & 16)
        made.current_work_stream = NULL;
    kept = keep(&made, sizeof(made));
    return kept == NULL ? NULL : PyCapsule_New(kept, called, NULL);
}

/* header(major, previous=None): a capsule of a header behind which nobody may look; previous is a capsule. */
static PyObject *
header(PyObject *Py_UNUSED(module), PyObject *args)
{
    DLPackExchangeAPIHeader made = {{1, 3}, NULL};
    PyObject *previous = NULL;
    void *kept;

    if (!PyArg_ParseTuple(args, "I|O", &made.version.major, &previous))
        return NULL;
    if (previous != NULL)
        made.prev_api = (DLPackExchangeAPIHeader *)PyCapsule_GetPointer(previous, "dlpack_exchange_api");
    kept = keep(&made, sizeof(made));
    return kept == NULL ? NULL : PyCapsule_New(kept, "dlpack_exchange_api", NULL);
}

/* The table that a type has, as any consumer finds it. */
static const DLPackExchangeAPI *
table_of(PyTypeObject *type)
{
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const DLPackExchangeAPI *found =
        capsule == NULL ? NULL : (const DLPackExchangeAPI *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    if (found != NULL && found->header.version.major != 1) {
        PyErr_SetString(PyExc_BufferError, "another major version");
        return NULL;
    }
    return found;
}

/* table_facts(type): a dict of what the table of a type says. "lacks" lists the functions that are NULL. */
static PyObject *
table_facts(PyObject *Py_UNUSED(module), PyObject *type)
{
    const DLPackExchangeAPI *found = table_of((PyTypeObject *)type);
    PyObject *facts, *lacks, *address;

    if (found == NULL)
        return NULL;
    lacks = PyList_New(0);
    address = PyLong_FromVoidPtr((void *)(uintptr_t)found);
#define LACKS(function)                                   \
    if (found->function == NULL) {                        \
        PyObject *text = PyUnicode_FromString(#function); \
        (void)PyList_Append(lacks, text);                 \
        Py_DECREF(text);                                  \
    }
    LACKS(managed_tensor_allocator)
    LACKS(managed_tensor_from_py_object_no_sync)
    LACKS(managed_tensor_to_py_object_no_sync)
    LACKS(dltensor_from_py_object_no_sync)
    LACKS(current_work_stream)
#undef LACKS
    facts = Py_BuildValue("{s(II) sN sN}", "version", found->header.version.major, found->header.version.minor, "lacks",
                          lacks, "address", address);
    return facts;
}

/* Checks what a function of a table returned: a failure has set an exception, and a success has not. */
static int
check_result(const char *function, int result)
{
    if (result == 0 && PyErr_Occurred()) {
        PyErr_Clear();
        (void)PyErr_Format(PyExc_AssertionError, "%s returned 0 and left an exception set", function);
        return -1;
    }
    if (result != 0 && !PyErr_Occurred())
        (void)PyErr_Format(PyExc_AssertionError, "%s returned %d and set no exception", function, result);
    return result;
}

static PyObject *
take_by(const DLPackExchangeAPI *found, PyObject *obj)
{
    Versioned *managed = NULL;
    if (found == NULL || check_result("managed_tensor_from_py_object_no_sync",
                                      found->managed_tensor_from_py_object_no_sync(obj, &managed)) != 0)
        return NULL;
    if (managed == NULL) {
        PyErr_SetString(PyExc_AssertionError, "managed_tensor_from_py_object_no_sync returned 0 and gave NULL");
        return NULL;
    }
    return taken_new(managed, NULL);
}

/* take_by_table(obj): a Taken. */
static PyObject *
take_by_table(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return take_by(table_of(Py_TYPE(obj)), obj);
}

/* take_by_table_of(type, obj): a Taken. The table is that of another type than the object's. */
static PyObject *
take_by_table_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *type, *obj;
    if (!PyArg_ParseTuple(args, "OO", &type, &obj))
        return NULL;
    return take_by(table_of((PyTypeObject *)type), obj);
}

/* borrow_by_table(obj): (what the tensor says, its elements). */
static PyObject *
borrow_by_table(PyObject *Py_UNUSED(module), PyObject *obj)
{
    const DLPackExchangeAPI *found = table_of(Py_TYPE(obj));
    DLTensor t;
    if (found == NULL)
        return NULL;
    memset(&t, 0, sizeof(t));
    if (check_result("dltensor_from_py_object_no_sync", found->dltensor_from_py_object_no_sync(obj, &t)) != 0)
        return NULL;
    return Py_BuildValue("NN", describe(&t), read_elements(&t, 0));
}

/* borrow_both_by_table(one, other): what each tensor says and its elements, read when both are lent. */
static PyObject *
borrow_both_by_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    const DLPackExchangeAPI *found;
    PyObject *one, *other;
    DLTensor t, u;

    if (!PyArg_ParseTuple(args, "OO", &one, &other) || (found = table_of(Py_TYPE(one))) == NULL)
        return NULL;
    memset(&t, 0, sizeof(t));
    memset(&u, 0, sizeof(u));
    if (check_result("dltensor_from_py_object_no_sync", found->dltensor_from_py_object_no_sync(one, &t)) != 0 ||
        check_result("dltensor_from_py_object_no_sync", found->dltensor_from_py_object_no_sync(other, &u)) != 0)
        return NULL;
    return Py_BuildValue("NNNN", describe(&t), read_elements(&t, 0), describe(&u), read_elements(&u, 0));
}

/* make_by_table(type, managed): an object of the type. */
static PyObject *
make_by_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    const DLPackExchangeAPI *found;
    PyObject *type, *managed;
    void *made = NULL, *struct_;

    if (!PyArg_ParseTuple(args, "OO!", &type, managed_type, &managed) ||
        (found = table_of((PyTypeObject *)type)) == NULL || (struct_ = hand_over((Managed *)managed)) == NULL ||
        check_result("managed_tensor_to_py_object_no_sync",
                     found->managed_tensor_to_py_object_no_sync((Versioned *)struct_, &made)) != 0)
        return NULL;
    return (PyObject *)made;
}

/* stream_by_table(type, device_type=1, device_id=0): the current work stream of a device, by default of the CPU, as an
 * integer, 0 for NULL; the out parameter is preset to another address. */
static PyObject *
stream_by_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    const DLPackExchangeAPI *found;
    void *stream = (void *)&page;
    int device = kDLCPU, id = 0;
    PyObject *type;

    if (!PyArg_ParseTuple(args, "O|ii", &type, &device, &id) || (found = table_of((PyTypeObject *)type)) == NULL ||
        check_result("current_work_stream", found->current_work_stream((DLDeviceType)device, id, &stream)) != 0)
        return NULL;
    if (stream == (void *)&page)
        return PyErr_Format(PyExc_AssertionError, "current_work_stream returned 0 and left the out parameter unset");
    return PyLong_FromVoidPtr(stream);
}

typedef struct {
    const DLPackExchangeAPI *table;
    DLTensor *prototype;
    Versioned *managed;
    int returned, reports;
    char kind[32], message[200];
} Allocation;

static void
report(void *context, const char *kind, const char *message)
{
    Allocation *a = (Allocation *)context;
    a->reports++;
    (void)snprintf(a->kind, sizeof(a->kind), "%s", kind);
    (void)snprintf(a->message, sizeof(a->message), "%s", message);
}

/* On a thread that Python never saw. */
THREAD_FUNCTION(allocate)
{
    Allocation *a = (Allocation *)argument;
    a->returned = a->table->managed_tensor_allocator(a->prototype, &a->managed, a, report);
    return THREAD_END;
}

/* allocate_by_table(type, prototype): a Taken; the prototype is a Managed. */
static PyObject *
allocate_by_table(PyObject *Py_UNUSED(module), PyObject *args)
{
    Allocation a = {.returned = -1};
    PyObject *type, *prototype;
    Thread thread;

    if (!PyArg_ParseTuple(args, "OO!", &type, managed_type, &prototype) ||
        (a.table = table_of((PyTypeObject *)type)) == NULL)
        return NULL;
    a.prototype = ((Managed *)prototype)->tensor;
    Py_BEGIN_ALLOW_THREADS
    if (thread_start(&thread, allocate, &a) == 0)
        thread_join(thread);
    Py_END_ALLOW_THREADS
    if (a.returned == 0 && a.reports == 0 && a.managed != NULL)
        return taken_new(a.managed, NULL);
    if (a.returned != 0 && a.reports == 1 && a.managed == NULL)
        PyErr_Format(PyExc_RuntimeError, "%s: %s", a.kind, a.message);
    else
        PyErr_Format(PyExc_AssertionError, "returned %d, and reported %d times (X5)", a.returned, a.reports);
    return NULL;
}
#endif

/* ---- Calling conventions ------------------------------------------------------ */

static PyObject *answer; /* called by all of these for what they return */

static PyObject *
answer_is(PyObject *Py_UNUSED(module), PyObject *callable)
{
    Py_INCREF(callable);
    replace(&answer, callable);
    Py_RETURN_NONE;
}

static PyObject *
by_noargs_or_o(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(other))
{
    return PyObject_CallObject(answer, NULL);
}

static PyObject *
by_keywords(PyObject *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    return by_noargs_or_o(self, NULL);
}

static PyObject *
by_fastcall(PyObject *self, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(nargs))
{
    return by_noargs_or_o(self, NULL);
}

static PyObject *
by_fastcall_keywords(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *Py_UNUSED(names))
{
    return by_fastcall(self, args, nargs);
}

static PyObject *
by_method(PyObject *self, PyTypeObject *Py_UNUSED(type), PyObject *const *args, size_t nargs,
          PyObject *Py_UNUSED(names))
{
    return by_fastcall(self, args, (Py_ssize_t)nargs);
}

/* Against the rules of C functions: nothing and no exception, or something and one. */
static PyObject *
by_nothing(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    return NULL;
}

static PyObject *
by_both(PyObject *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(names))
{
    PyObject *capsule = by_noargs_or_o(self, NULL);
    PyErr_SetString(PyExc_KeyError, "beside a result");
    return capsule;
}

static PyMethodDef convention_methods[] = {
    {"noargs", by_noargs_or_o, METH_NOARGS, NULL},
    {"o", by_noargs_or_o, METH_O, NULL},
    {"varargs", by_noargs_or_o, METH_VARARGS, NULL},
    {"keywords", FUNCTION(by_keywords), METH_VARARGS | METH_KEYWORDS, NULL},
    {"fastcall", FUNCTION(by_fastcall), METH_FASTCALL, NULL},
    {"fastcall_keywords", FUNCTION(by_fastcall_keywords), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"method", FUNCTION(by_method), METH_METHOD | METH_FASTCALL | METH_KEYWORDS, NULL},
    {"of_class", FUNCTION(by_keywords), METH_VARARGS | METH_KEYWORDS | METH_CLASS, NULL},
    {"of_nobody", FUNCTION(by_fastcall_keywords), METH_FASTCALL | METH_KEYWORDS | METH_STATIC, NULL},
    {"nothing", FUNCTION(by_nothing), METH_VARARGS | METH_KEYWORDS, NULL},
    {"both", FUNCTION(by_both), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot convention_slots[] = {{Py_tp_methods, convention_methods}, {0, NULL}};

/* METH_METHOD is for types of the heap. */
static PyType_Spec convention_spec = {
    "_dlpack_conformance.Conventions", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, convention_slots,
};

/* Calls with names as they are: not interned, for instance. The limited API of 3.9 has no vectorcall, by which the same
 * name may be given twice. */
static PyObject *
call_with_names(PyObject *method, PyObject *names, PyObject *values)
{
#ifdef Py_LIMITED_API
    PyObject *none = PyTuple_New(0), *keywords = PyDict_New(), *result = NULL;
    Py_ssize_t i;

    for (i = 0; keywords != NULL && i < PyTuple_Size(names); i++) {
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, i), PyTuple_GetItem(values, i)) < 0)
            Py_CLEAR(keywords);
    }
    if (none != NULL && keywords != NULL)
        result = PyObject_Call(method, none, keywords);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return result;
#else
    return PyObject_Vectorcall(method, &PyTuple_GET_ITEM(values, 0), 0, names);
#endif
}

/* call(obj, names, values): calls obj.__dlpack__ with these names, unchanged, and takes the capsule. */
static PyObject *
call(PyObject *module, PyObject *args)
{
    PyObject *obj, *names, *values, *method, *capsule, *one, *nothing, *taken;

    if (!PyArg_ParseTuple(args, "OO!O!", &obj, &PyTuple_Type, &names, &PyTuple_Type, &values) ||
        (method = PyObject_GetAttrString(obj, "__dlpack__")) == NULL)
        return NULL;
    capsule = call_with_names(method, names, values);
    Py_DECREF(method);
    if (capsule == NULL)
        return NULL;
    one = PyTuple_Pack(1, capsule);
    nothing = PyDict_New();
    taken = take(module, one, nothing);
    Py_DECREF(capsule);
    Py_DECREF(one);
    Py_DECREF(nothing);
    return taken;
}

/* ---- The module ---------------------------------------------------------------- */

static PyMethodDef functions[] = {
    {"take", FUNCTION(take), METH_VARARGS | METH_KEYWORDS, NULL},
    {"name", name, METH_O, NULL},
    {"rename", rename_capsule, METH_VARARGS, NULL},
    {"strip", strip, METH_VARARGS, NULL},
    {"peek", peek, METH_O, NULL},
    {"watch", watch_capsule, METH_O, NULL},
    {"calls", watch_calls, METH_O, NULL},
    {"drop_with_error", drop_with_error, METH_O, NULL},
    {"delete_held_on_thread", delete_held_on_thread, METH_NOARGS, NULL},
    {"in_subinterpreter", in_subinterpreter, METH_O, NULL},
    {"call", call, METH_VARARGS, NULL},
    {"answer_is", answer_is, METH_O, NULL},
#if DLPACK_MINOR_VERSION >= 3
    {"table", FUNCTION(table), METH_VARARGS | METH_KEYWORDS, NULL},
    {"calls_of_tables", calls_of_tables, METH_NOARGS, NULL},
    {"table_facts", table_facts, METH_O, NULL},
    {"stream_by_table", stream_by_table, METH_VARARGS, NULL},
    {"take_by_table_of", take_by_table_of, METH_VARARGS, NULL},
    {"header", header, METH_VARARGS, NULL},
    {"outcome", set_outcome, METH_VARARGS, NULL},
    {"allocator_is", allocator_is, METH_O, NULL},
    {"take_by_table", take_by_table, METH_O, NULL},
    {"borrow_both_by_table", borrow_both_by_table, METH_VARARGS, NULL},
    {"borrow_by_table", borrow_by_table, METH_O, NULL},
    {"make_by_table", make_by_table, METH_VARARGS, NULL},
    {"allocate_by_table", allocate_by_table, METH_VARARGS, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "_dlpack_conformance", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__dlpack_conformance(void)
{
    PyObject *module = PyModule_Create(&module_def), *conventions = PyType_FromSpec(&convention_spec);

    page = pages_size();
    allocator = Py_None;
    Py_INCREF(allocator);
    static_names = PyDict_New();
    managed_type = (PyTypeObject *)PyType_FromSpec(&managed_spec);
    taken_type = (PyTypeObject *)PyType_FromSpec(&taken_spec);
    Py_XINCREF((PyObject *)managed_type);
#ifdef Py_GIL_DISABLED
    if (module != NULL)
        (void)PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    if (module == NULL || static_names == NULL || conventions == NULL || managed_type == NULL || taken_type == NULL ||
        PyModule_AddObject(module, "Managed", (PyObject *)managed_type) < 0 ||
        PyModule_AddObject(module, "Conventions", conventions) < 0)
        return NULL;
    return module;
}

/* dlpack_py.h - implement the DLPack Python protocol in a C or C++ extension
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * For DLPack 1.0 and newer, CPython and PyPy 3.9 and newer, C99 and C++11. The clauses (P1, K4) stand at the end.
 */

/* Synopsis
 *
 *   static PyObject *                                     // a producer: __dlpack__
 *   thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_py_cpu_tensor(thing->values, DLPACK_PY_FLOAT64, 1, &thing->length, NULL);
 *       return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
 *   }
 *
 *   static PyMethodDef thing_methods[] = {
 *       DLPACK_PY_METHODS(thing_dlpack, dlpack_py_cpu_device),
 *       {NULL, NULL, 0, NULL}
 *   };
 *
 *   static PyObject *                                     // a consumer
 *   sum(PyObject *module, PyObject *obj)
 *   {
 *       dlpack_py_want want = {0};
 *       dlpack_py_view v;
 *       double total = 0.0;
 *       (void)module;
 *       want.dtype = DLPACK_PY_FLOAT64;
 *       want.ndim = 1;
 *       want.order = 'C';
 *       if (dlpack_py_consume(obj, &want, &v) < 0)
 *           return NULL;
 *       for (int64_t i = 0; i < v.tensor.shape[0]; i++)
 *           total += ((const double *)dlpack_py_data(&v))[i];
 *       dlpack_py_release(&v);
 *       return PyFloat_FromDouble(total);
 *   }
 */

/* Names
 *
 *   dlpack_py_init                    prepares an interpreter: call it when the module is created
 *   dlpack_py_raise                   raises a dlpack_py_error
 * To produce:
 *   dlpack_py_produce                 answers __dlpack__
 *   dlpack_py_produce_obj_args        answers __dlpack__ from four objects
 *   dlpack_py_produce_described       answers __dlpack__ with a dlpack_py_describe; DLPACK_PY_DESCRIBED: both methods
 *   dlpack_py_produce_device          answers __dlpack_device__; dlpack_py_cpu_device for CPU memory
 *   dlpack_py_parse_request           reads the arguments of __dlpack__; dlpack_py_parse_request_obj_args from objects
 *   dlpack_py_offer_make              fills an offer; dlpack_py_offer_view for the tensor of a view
 *   dlpack_py_answer                  answers a request with an offer
 *   dlpack_py_exports_count           tells how many exports of an object live
 *   dlpack_py_capsule_steal           makes a capsule of a managed tensor
 *   dlpack_py_object_steal            makes an object with both methods of a managed tensor
 * To consume:
 *   dlpack_py_consume                 takes the tensor of an object; dlpack_py_consume_request with a request
 *   dlpack_py_from_dlpack             reads the arguments of from_dlpack and consumes; dlpack_py_from_dlpack_obj_args
 *   dlpack_py_parse_dtype             reads a dtype object; dlpack_py_parse_device a device
 *   dlpack_py_has_tensor              tells whether an object offers a tensor; dlpack_py_data: the data of a view
 *   dlpack_py_release                 releases a view; dlpack_py_move moves one, dlpack_py_traverse visits its owner
 *
 * Only Python is linked. A thread state is needed, except by deleters, by functions of dlpack_tensor.h, and by
 * dlpack_py_release, _move, _data, _exports_count, _offer_make and _offer_view: these may run on any thread.
 *
 * Stop here if you only use the header. Sections in reading order; skip "The state of an interpreter" at first:
 *   Switches and includes   Differences of Pythons   Exceptions   Deleters   Capsules   The state of an interpreter
 *   The request   Producing   Views   Calling __dlpack__   Taking a tensor   Consuming
 *   Objects for memory without a type
 *
 * One export, by dlpack_py_produce:
 *   dlpack_py_parse_request    reads the arguments (P1, P2)
 *   dlpack_py_answer           goes through these steps:
 *   dlp_plan                   checks the tensor (D8), and decides how the request is met (P3 to P7)
 *   dlp_export_offer           makes the managed tensor; without a copy, its deleter calls dlp_drop_owner (K5)
 *   dlpack_py_capsule_steal    makes the capsule (K1); after it, dlpack_py_answer lets a device order its streams (S1)
 * One import, by dlpack_py_consume_request:
 *   dlp_call_dlpack            calls __dlpack__ (C3, C4), and again after a TypeError (C1); or a table gives the tensor
 *   dlp_finish_import_steal    takes the capsule; calls again for pinned or managed memory (C5)
 *     dlp_take_capsule         reads the capsule (C2), and calls the next two in a critical section:
 *       dlp_view_prepare       describes the tensor in the view, and lets dlp_view_decide check it (D8, C3 to C5, C9)
 *       PyCapsule_SetName      renames the capsule: from then on the view owns the tensor (K4)
 *   dlpack_py_release          calls the deleter (K3)
 * Who owns what: a capsule owns its managed tensor until a view takes it. manager_ctx of an export is a dlp_manager: it
 * holds a reference to the owner, the producer's object, and points to the dlp_lifetime of the owner's interpreter. A
 * deleter drops the reference in that interpreter. If the interpreter is gone, the deleter leaks the reference. The
 * dlp_lifetime is part of the interpreter's dlp_state, which is not freed: exports may point to it.
 */
#include <patchlevel.h> /* PY_VERSION_HEX */
/* From 3.10 on formats such as "s#" need this macro. Before, it would change the author's lengths to Py_ssize_t. */
#if !defined(PY_SSIZE_T_CLEAN) && PY_VERSION_HEX >= 0x030A0000
#  define PY_SSIZE_T_CLEAN
#endif
#include <Python.h> /* first: it sets feature macros for the C library */

#include "dlpack_tensor.h"
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_py.h and dlpack_tensor.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif

#ifndef DLPACK_PY_H
#define DLPACK_PY_H

/* ---- Switches and includes ---------------------------------------------- */

/* Optional; set them as the switches of dlpack_tensor.h.
 * DLPACK_PY_EXIT_WAIT      how long the end of an interpreter waits for deleters on other threads, in seconds.
 * DLPACK_PY_OPTIONAL       leaves this header out before Python 3.9: DLPACK_PY_AVAILABLE is 0 then, and 1 elsewhere. */
#ifndef DLPACK_PY_EXIT_WAIT
#  define DLPACK_PY_EXIT_WAIT 10
#endif

#if defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x03090000 && \
    (Py_LIMITED_API + 0 < 0x030C0000 || PY_VERSION_HEX < 0x030C0000)
#  error "dlpack_py.h needs Py_LIMITED_API 0x030C0000 or newer: before 3.12 no thread can tell that it has the GIL"
#  include "stop" /* no such file: ends the compilation */
#elif PY_VERSION_HEX >= 0x03090000
#  define DLPACK_PY_AVAILABLE 1
#elif defined(DLPACK_PY_OPTIONAL)
#  define DLPACK_PY_AVAILABLE 0
#else
#  error "dlpack_py.h needs Python 3.9 or newer; define DLPACK_PY_OPTIONAL to build without DLPack on others"
#  include "stop" /* no such file: ends the compilation */
#endif

#if DLPACK_PY_AVAILABLE
DLP_QUIET

/* ---- Differences of Pythons --------------------------------------------- */

/* Sequentially consistent atomics of the compiler: C99 has none. DLP_COMPARE_EXCHANGE: 1 if it stored the value. */
typedef intptr_t dlp_atomic;
#if defined(__GNUC__) || defined(__clang__)
#  define DLP_LOAD(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
#  define DLP_STORE(word, value) __atomic_store_n(word, value, __ATOMIC_SEQ_CST)
#  define DLP_EXCHANGE(word, value) __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST)
#  define DLP_ADD(word, value) __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST)
#  define DLP_OR(word, value) __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST)
#  define DLP_COMPARE_EXCHANGE(word, old, value) __sync_bool_compare_and_swap(word, old, value)
#elif defined(_MSC_VER)
#  include <intrin.h>
#  ifdef _WIN64
#    define DLP_ATOMIC(operation, word, ...) operation##64((volatile __int64 *)(word), __VA_ARGS__)
#  else
#    define DLP_ATOMIC(operation, word, ...) operation((volatile long *)(word), __VA_ARGS__)
#  endif
#  ifdef _M_ARM64
#    define DLP_LOAD(word) ((dlp_atomic)__ldar64((volatile unsigned __int64 *)(word)))
#  else /* a volatile load acquires on x86 and with /volatile:ms; an Interlocked one would write the cache line */
#    define DLP_LOAD(word) (*(const volatile dlp_atomic *)(word))
#  endif
#  define DLP_STORE(word, value) ((void)DLP_EXCHANGE(word, value))
#  define DLP_EXCHANGE(word, value) DLP_ATOMIC(_InterlockedExchange, word, value)
#  define DLP_ADD(word, value) DLP_ATOMIC(_InterlockedExchangeAdd, word, value)
#  define DLP_OR(word, value) DLP_ATOMIC(_InterlockedOr, word, value)
#  define DLP_COMPARE_EXCHANGE(word, old, now) (DLP_ATOMIC(_InterlockedCompareExchange, word, now, old) == (old))
#else
#  error "dlpack_py.h needs the atomic built-ins of GCC, clang or MSVC"
#  include "stop" /* no such file: ends the compilation */
#endif

/* Sizes and items of tuples, unchecked outside of the limited API and PyPy; the trashcan limits recursion. */
#if defined(Py_LIMITED_API) || defined(PYPY_VERSION)
#  define DLP_TUPLE_SIZE(tuple) PyTuple_Size(tuple)
#  define DLP_TUPLE_ITEM(tuple, i) PyTuple_GetItem(tuple, i)
#  define DLP_TRASHCAN_BEGIN(object, dealloc) {
#  define DLP_TRASHCAN_END }
#else
#  define DLP_TUPLE_SIZE(tuple) PyTuple_GET_SIZE(tuple)
#  define DLP_TUPLE_ITEM(tuple, i) PyTuple_GET_ITEM(tuple, i)
#  define DLP_TRASHCAN_BEGIN(object, dealloc) Py_TRASHCAN_BEGIN(object, dealloc)
#  define DLP_TRASHCAN_END Py_TRASHCAN_END
#endif

/* A dlp_object lies behind the PyObject, which in abi3t, the stable ABI of CPython 3.15, has no known size. */
#ifdef _Py_OPAQUE_PYOBJECT
#  define DLP_OBJECT(self) ((dlp_object *)PyObject_GetTypeData(self, Py_TYPE(self)))
#  define DLP_OBJECT_SIZE (-(int)sizeof(dlp_object))
#else
#  define DLP_OBJECT(self) ((dlp_object *)(void *)((self) + 1))
#  define DLP_OBJECT_SIZE ((int)(sizeof(PyObject) + sizeof(dlp_object)))
#endif

/* A critical section on an object; empty in builds with a GIL. */
#ifdef Py_GIL_DISABLED
#  define DLP_CRITICAL_SECTION(object) Py_BEGIN_CRITICAL_SECTION(object)
#  define DLP_CRITICAL_SECTION_END() Py_END_CRITICAL_SECTION()
#else
#  define DLP_CRITICAL_SECTION(object) {
#  define DLP_CRITICAL_SECTION_END() }
#endif

/* DLP_PROCESS: the process id, not 0, another one after a fork; 1 on Windows. DLP_SLEEP: sleeps DLP_SLEEP_MS ms. */
#ifdef _WIN32
#  ifdef __cplusplus
extern "C"
#  endif
    __declspec(dllimport) void __stdcall
    Sleep(unsigned long milliseconds); /* without windows.h and its macros */
#  define DLP_PROCESS() ((dlp_atomic)1)
#  define DLP_SLEEP_MS 15 /* Windows wakes threads every 15.6 ms: a sleep of 1 to 15 ms lasts one period, 16 ms two */
#  define DLP_SLEEP() Sleep(DLP_SLEEP_MS)
#else
#  include <poll.h>
#  include <unistd.h>
#  define DLP_PROCESS() ((dlp_atomic)getpid())
#  define DLP_SLEEP_MS 1
#  define DLP_SLEEP() ((void)poll(NULL, 0, DLP_SLEEP_MS))
#endif

#ifdef PYPY_VERSION /* has one interpreter, and no GIL before PyEval_InitThreads */
#  define DLP_INTERPRETER() PyInterpreterState_Head()
#  define DLP_INTERPRETER_OF(state) ((state)->interp)
#  define DLP_INTERPRETER_DICT(interpreter) (PyEval_InitThreads(), PyModule_GetDict(PyImport_AddModule("sys")))
#else
#  define DLP_INTERPRETER() PyInterpreterState_Get()
#  define DLP_INTERPRETER_OF(state) PyThreadState_GetInterpreter(state)
#  define DLP_INTERPRETER_DICT(interpreter) PyInterpreterState_GetDict(interpreter)
#endif

/* The thread state that this thread is attached with, or NULL. PyGILState_Check knows the main interpreter only. */
static inline PyThreadState *
dlp_thread_state(void)
{
#if defined(PYPY_VERSION)
    return PyGILState_Check() ? PyThreadState_Get() : NULL;
#elif defined(Py_LIMITED_API)
    /* This call makes the thread state's dictionary. Without memory for it a deleter hangs (known limit). */
    return PyThreadState_GetDict() == NULL ? NULL : PyThreadState_Get();
#elif PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#elif PY_VERSION_HEX >= 0x030C0000
    return _PyThreadState_UncheckedGet();
#else
    /* holder: the thread state that holds the GIL, perhaps another thread's. gil_state: this thread's, as PyGILState
     * knows it. If they are equal, this thread is attached. With subinterpreters it may have a second thread state,
     * which PyGILState does not know: then the thread id of holder is compared.
     * Known limits: another thread may free holder meanwhile. A deleter hangs on an attached thread that has no
     * gil_state. If thread A uses the thread state of B (_xxsubinterpreters), a deleter hangs on A, may crash on B. */
    PyThreadState *holder = _PyThreadState_UncheckedGet(), *gil_state = PyGILState_GetThisThreadState();
    return holder == NULL || holder == gil_state ||
                   (gil_state != NULL && PyInterpreterState_Head() != PyInterpreterState_Main() &&
                    holder->thread_id == PyThread_get_thread_ident())
               ? holder
               : NULL;
#endif
}

/* Is the process's main interpreter ending? Any thread. */
static inline int
dlp_is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000 && (!defined(Py_LIMITED_API) || Py_LIMITED_API + 0 >= 0x030D0000)
    return Py_IsFinalizing();
#elif defined(Py_LIMITED_API)
    return !Py_IsInitialized();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/* ---- Exceptions --------------------------------------------------------- */

/* A saved exception; all NULL: none. Not normalized before 3.12, because normalization runs Python code (K2). */
typedef struct dlp_exception {
    PyObject *type, *value, *traceback;
} dlp_exception;

/* Saves the current exception, and clears it. PyErr_Fetch is the one way that all Pythons have. */
DLP_NOINLINE dlp_exception
dlp_exception_save(void)
{
    dlp_exception saved;
    PyErr_Fetch(&saved.type, &saved.value, &saved.traceback);
    return saved;
}

/* Sets a saved exception again. First reports as unraisable an exception that was raised after the save. */
DLP_NOINLINE void
dlp_exception_restore(const dlp_exception *saved)
{
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(NULL);
    if (saved->type != NULL)
        PyErr_Restore(saved->type, saved->value, saved->traceback);
}

/* Drops a saved exception. */
DLP_COLD void
dlp_exception_drop(const dlp_exception *saved)
{
    Py_XDECREF(saved->type);
    Py_XDECREF(saved->value);
    Py_XDECREF(saved->traceback);
}

/* Drops a reference, and keeps the current exception. */
DLP_NOINLINE void
dlp_decref_keeping_error(PyObject *object)
{
    dlp_exception saved;
#ifndef Py_GIL_DISABLED
    if (Py_REFCNT(object) > 1) { /* then nothing is freed: no code runs */
        Py_DECREF(object);
        return;
    }
#endif
    saved = dlp_exception_save();
    Py_DECREF(object);
    dlp_exception_restore(&saved);
}

/* Raises an error of dlpack_tensor.h. Returns -1. */
DLP_COLD int
dlpack_py_raise(const dlpack_py_error *error)
{
    PyObject *const types[] = {PyExc_BufferError, PyExc_ValueError,   PyExc_TypeError,
                               PyExc_MemoryError, PyExc_RuntimeError, PyExc_SystemError};
    const int known = error->code >= DLPACK_PY_BUFFER_ERROR && error->code <= DLPACK_PY_SYSTEM_ERROR;
    /* The text may hold invalid UTF-8, of a foreign name or a cut character: "%s" replaces it. */
    PyErr_Format(known ? types[error->code - 1] : PyExc_BufferError, "%s", error->text);
    return -1;
}

/* Is the value a number, a short text, None, or a short tuple of them? Their repr runs no foreign code. */
DLP_COLD int
dlp_is_showable(PyObject *value)
{
    const int is_tuple = PyTuple_CheckExact(value);
    const Py_ssize_t count = is_tuple ? DLP_TUPLE_SIZE(value) : 1;
    Py_ssize_t i;

    for (i = 0; i < count && count <= 4; i++) {
        PyObject *item = is_tuple ? DLP_TUPLE_ITEM(value, i) : value;
        if (PyUnicode_CheckExact(item)
                ? PyUnicode_GetLength(item) > 60
                : item != Py_None && !PyBool_Check(item) && !PyLong_CheckExact(item) && !PyFloat_CheckExact(item))
            return 0;
    }
    return count <= 4;
}

/* Raises in place of the current exception. %U: the repr of a showable value, or the name of its type. Returns -1. */
DLP_COLD int
dlp_raise_value(PyObject *exception, const char *format, PyObject *value)
{
    PyObject *text;
    PyErr_Clear();
    text = dlp_is_showable(value) ? PyObject_Repr(value) : NULL;
    if (text == NULL || PyUnicode_GetLength(text) > 200) { /* the repr of an integer of 4,301 digits is an error */
        PyErr_Clear();
        Py_XDECREF(text);
#ifdef Py_LIMITED_API
        text = PyType_GetName(Py_TYPE(value));
#else
        text = PyUnicode_FromString(Py_TYPE(value)->tp_name);
#endif
    }
    if (text != NULL)
        PyErr_Format(exception, format, text);
    Py_XDECREF(text);
    return -1;
}

/* Is the current exception, which is set, one that must be passed on: MemoryError, KeyboardInterrupt and the like? */
DLP_COLD int
dlp_is_fatal(void)
{
    return PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception);
}

/* ---- Deleters ----------------------------------------------------------- */

/* A deleter may run on any thread at any time (K5), also when its owner's interpreter is ending or gone. So an export
 * of an object points to a struct that is never freed, one for each interpreter. While the interpreter is open, a
 * thread that is not attached attaches, and drops the owner. From the exit callback on (closing), only an attached
 * thread drops it. After the modules were destroyed (gone), no thread does. An owner that is not dropped leaks. */
typedef struct dlp_lifetime {
    PyInterpreterState *interpreter;
    dlp_atomic closing_and_deleters; /* DLP_CLOSING, and DLP_DELETER for each deleter that is attaching */
    dlp_atomic process;              /* the id of the process whose deleters are counted */
    dlp_atomic gone;                 /* 1: the interpreter's modules have been torn down */
} dlp_lifetime;
enum { DLP_CLOSING = 1, DLP_DELETER = 2 };

/* Counts the exports of an object whose memory can move, as that of a bytearray. A field of the object, 0 at first. */
typedef struct dlpack_py_counter {
    dlp_atomic count; /* changed atomically; read it by dlpack_py_exports_count */
} dlpack_py_counter;

/* The number of exports that hold the object, or more while an export is made: while it is not 0, refuse to move or
 * free the memory. Needs no thread state. Without a GIL, check and move in one critical section on the object:
 * describe and the export run in one, too. */
static inline size_t
dlpack_py_exports_count(const dlpack_py_counter *exports)
{
    return (size_t)DLP_LOAD((dlp_atomic *)(uintptr_t)&exports->count);
}

/* Adds to a count of exports; NULL: there is none. */
static inline void
dlp_exports_add(dlpack_py_counter *exports, dlp_atomic change)
{
    if (exports != NULL)
        (void)DLP_ADD(&exports->count, change);
}

/* In a forked child, subtracts the deleters of the parent: only the parent counts them down. Each thread of the
 * child reads the count, then sets process; the first thread to set it subtracts the count that it read. */
DLP_COLD void
dlp_lifetime_after_fork(dlp_lifetime *lifetime)
{
    const dlp_atomic process = DLP_PROCESS();
    const dlp_atomic inherited = DLP_LOAD(&lifetime->closing_and_deleters) & ~(dlp_atomic)DLP_CLOSING;
    if (DLP_EXCHANGE(&lifetime->process, process) != process)
        (void)DLP_ADD(&lifetime->closing_and_deleters, -inherited);
}

/* Drops an owner, on a thread that is attached to its interpreter. */
static inline void
dlp_drop_attached(const dlp_manager *manager)
{
    dlp_exports_add(manager->exports, -1); /* first: it is part of the owner */
    dlp_decref_keeping_error((PyObject *)manager->owner);
}

/* Attaches this thread to the owner's interpreter and drops the owner; leaks it where the interpreter is closing.
 * current: the thread state of another interpreter, or NULL. Not PyGILState_Ensure: it knows only the main one. */
DLP_COLD void
dlp_attach_and_drop(const dlp_manager *manager, PyThreadState *current)
{
    dlp_lifetime *lifetime = manager->lifetime;
    PyThreadState *detached = NULL;
    const dlp_atomic process = DLP_PROCESS();

    dlp_lifetime_after_fork(lifetime);
    /* A deleter counts itself, then reads DLP_CLOSING. The exit callback sets DLP_CLOSING, then waits until the count
     * is 0. So it waits for each deleter that did not see DLP_CLOSING: none is attached when it returns. */
    if ((DLP_ADD(&lifetime->closing_and_deleters, DLP_DELETER) & DLP_CLOSING) == 0 && !dlp_is_finalizing()) {
        if (current != NULL)
            detached = PyEval_SaveThread();
#ifdef PYPY_VERSION /* has one interpreter */
        const PyGILState_STATE attached = PyGILState_Ensure();
        dlp_drop_attached(manager);
        PyGILState_Release(attached);
#else
        PyThreadState *target = PyGILState_GetThisThreadState(), *made = NULL;
        if (target == NULL || DLP_INTERPRETER_OF(target) != lifetime->interpreter)
            target = made = PyThreadState_New(lifetime->interpreter);
        if (target != NULL) {
            PyEval_RestoreThread(target);
            dlp_drop_attached(manager);
            if (made != NULL)
                PyThreadState_Clear(made);
            (void)PyEval_SaveThread();
            if (made != NULL)
                PyThreadState_Delete(made);
        }
#endif
    }
    if (process == DLP_PROCESS()) /* else the owner's destructor forked: dlp_lifetime_after_fork resets the child's */
        (void)DLP_ADD(&lifetime->closing_and_deleters, -DLP_DELETER);
    if (detached != NULL) /* last: it may wait for the GIL */
        PyEval_RestoreThread(detached);
}

/* free_fn of the export of a Python object; context is its manager. Any thread, at any time (K5). */
DLP_NOINLINE void
dlp_drop_owner(void *context)
{
    const dlp_manager *manager = (const dlp_manager *)context;
    dlp_lifetime *lifetime = manager->lifetime;
    PyThreadState *current = dlp_thread_state();

    if (current == NULL || DLP_INTERPRETER_OF(current) != lifetime->interpreter)
        dlp_attach_and_drop(manager, current);
    else if (!DLP_LOAD(&lifetime->gone)) /* gone: a new interpreter may have the same address */
        dlp_drop_attached(manager);
}

/* Makes a Python object the owner of an export: takes a new reference. */
static inline void
dlp_set_owner(dlp_manager *manager, PyObject *owner, dlp_lifetime *lifetime, dlpack_py_counter *exports)
{
    Py_INCREF(owner);
    dlp_exports_add(exports, 1);
    manager->owner = owner;
    manager->lifetime = lifetime;
    manager->exports = exports;
    manager->context = manager;
    manager->free_fn = dlp_drop_owner;
}

/* The manager of a tensor that this source file exported for a Python object; NULL for any other managed tensor. */
static inline const dlp_manager *
dlp_manager_of(const void *managed, int32_t form)
{
    const struct DLManagedTensorVersioned *versioned = (const struct DLManagedTensorVersioned *)managed;
    const DLManagedTensor *legacy = (const DLManagedTensor *)managed;
    const dlp_manager *manager = NULL;

    if (form == DLPACK_PY_VERSIONED && versioned->deleter == dlp_delete_versioned)
        manager = (const dlp_manager *)versioned->manager_ctx;
    if (form == DLPACK_PY_LEGACY && legacy->deleter == dlp_delete_legacy)
        manager = (const dlp_manager *)legacy->manager_ctx;
    return manager == NULL || manager->owner == NULL ? NULL : manager;
}

/* Deletes a managed tensor of any origin, on any thread (K3). An attached thread keeps its current exception (K2). */
DLP_NOINLINE void
dlp_delete(void *managed, int32_t form)
{
    /* The deleter of an export of this source file keeps the exception itself. */
    const int attached = dlp_manager_of(managed, form) == NULL && dlp_thread_state() != NULL;
    struct DLManagedTensorVersioned *versioned = (struct DLManagedTensorVersioned *)managed;
    DLManagedTensor *legacy = (DLManagedTensor *)managed;
    dlp_exception saved = {NULL, NULL, NULL};

    if (attached && PyErr_Occurred()) /* usually no exception is set: saves a call */
        saved = dlp_exception_save();
    if (form == DLPACK_PY_VERSIONED && versioned->deleter != NULL)
        versioned->deleter(versioned);
    if (form == DLPACK_PY_LEGACY && legacy->deleter != NULL)
        legacy->deleter(legacy);
    if (attached)
        dlp_exception_restore(&saved);
}

/* ---- Capsules ----------------------------------------------------------- */

/* The names of capsules before and after they are consumed (K1, K4). */
#define DLP_CAPSULE_NAME(form) ((form) == DLPACK_PY_VERSIONED ? "dltensor_versioned" : "dltensor")
#define DLP_USED_CAPSULE_NAME(form) ((form) == DLPACK_PY_VERSIONED ? "used_dltensor_versioned" : "used_dltensor")

/* The form of a capsule that was not consumed, by its name; 0 for another name, or NULL. */
static inline int32_t
dlp_form_of(const char *name)
{
    const char *versioned = DLP_CAPSULE_NAME(DLPACK_PY_VERSIONED), *legacy = DLP_CAPSULE_NAME(DLPACK_PY_LEGACY);
    if (name == NULL || *name != 'd') /* the name of a consumed capsule begins with 'u' */
        return 0;
    if (name == versioned || (name != legacy && strcmp(name, versioned) == 0)) /* saves 45 of 734 of x.__dlpack__() */
        return DLPACK_PY_VERSIONED;
    return name == legacy || strcmp(name, legacy) == 0 ? DLPACK_PY_LEGACY : 0;
}

/* A capsule that was not consumed deletes its tensor (K1). */
DLP_NOINLINE void
dlp_capsule_destructor(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    const int32_t form = dlp_form_of(name);
    if (form != 0)
        dlp_delete(PyCapsule_GetPointer(capsule, name), form);
}

/* Put a managed tensor, stolen also on failure, into a new capsule. form: DLPACK_PY_VERSIONED for a
 * DLManagedTensorVersioned, DLPACK_PY_LEGACY for a DLManagedTensor. Returns NULL with MemoryError, or with BufferError
 * where managed is NULL, as dlpack_py_wrap may return it. */
static inline PyObject *
dlpack_py_capsule_steal(void *managed, int32_t form)
{
    PyObject *capsule;
    if (managed == NULL) {
        PyErr_SetString(PyExc_BufferError, "the managed tensor is NULL: the tensor was malformed, or memory ran out");
        return NULL;
    }
    capsule = PyCapsule_New(managed, DLP_CAPSULE_NAME(form), dlp_capsule_destructor);
    if (capsule == NULL)
        dlp_delete(managed, form);
    return capsule;
}

/* ---- The state of an interpreter ---------------------------------------- */

/* The indices of dlp_state.objects: interned names, in the order of dlp_names; then the tuples ("max_version",), (1, 3)
 * and (1, 0). dlp_match_keywords and dlp_call_dlpack_general rely on the order of the keywords. */
/* clang-format off */
enum {
    DLP_STR_STREAM, DLP_STR_MAX_VERSION, DLP_STR_DL_DEVICE, DLP_STR_COPY, DLP_STR_DEVICE, DLP_STR_DLPACK,
    DLP_STR_DLPACK_DEVICE, DLP_STR_ARRAY_NAMESPACE, DLP_STR_EXCHANGE_API, DLP_STR_MODULE, DLP_STR_FROM_DLPACK,
    DLP_STR_IS_CONJ, DLP_STR_COUNT,
    DLP_CONST_KWNAMES = DLP_STR_COUNT, DLP_CONST_VERSION, DLP_CONST_CPU_DEVICE, DLP_CONST_COUNT
};
static const char *const dlp_names[DLP_STR_COUNT] = {
    "stream", "max_version", "dl_device", "copy", "device", "__dlpack__", "__dlpack_device__", "__array_namespace__",
    "__dlpack_c_exchange_api__", "__module__", "from_dlpack", "is_conj"
};
/* clang-format on */
enum { DLP_OBJECT_TYPE, DLP_RESULT_TYPE, DLP_BUFFER_TYPE, DLP_TYPE_COUNT };

/* What a source file keeps for an interpreter, in a capsule in its dictionary. Files share no data (G2). */
typedef struct dlp_state {
    dlp_lifetime lifetime;
    struct dlp_state *next_gone; /* the next in the list of states that are gone */
    int published;               /* 1: in the interpreter's dictionary; exports may point to lifetime */
    PyObject *objects[DLP_CONST_COUNT];
    dlp_atomic types[DLP_TYPE_COUNT]; /* PyTypeObject *; 0: not made yet */
    dlp_atomic type_cache;            /* the cache of dlpack_exchange.h; 0: none */
    void (*type_cache_free)(void *type_cache);
} dlp_state;
#define DLP_STATE_NAME "dlpack_py.state"

/* A cache of dlp_state *: saves look-ups in dictionaries. DLP_STATE_SLOT: an interpreter's entry, by its address. */
static dlp_atomic dlp_states[32];
#define DLP_STATE_SLOT(interpreter) (&dlp_states[((uintptr_t)(interpreter) >> 12) % 32])
static dlp_atomic dlp_gone_states; /* dlp_state *: dead states, kept reachable for leak checkers */

/* The destructor of a state's capsule. For a published state it runs after the modules were torn down. */
DLP_COLD void
dlp_state_destructor(PyObject *capsule)
{
    dlp_state *state = (dlp_state *)PyCapsule_GetPointer(capsule, DLP_STATE_NAME);
    void *type_cache = (void *)DLP_EXCHANGE(&state->type_cache, 0);
    int i;

    (void)DLP_OR(&state->lifetime.closing_and_deleters, DLP_CLOSING);
    DLP_STORE(&state->lifetime.gone, 1);
    (void)DLP_COMPARE_EXCHANGE(DLP_STATE_SLOT(state->lifetime.interpreter), (dlp_atomic)state, 0);
    for (i = 0; i < DLP_CONST_COUNT; i++)
        Py_CLEAR(state->objects[i]);
    for (i = 0; i < DLP_TYPE_COUNT; i++)
        Py_XDECREF((PyObject *)DLP_EXCHANGE(&state->types[i], 0));
    if (type_cache != NULL)
        state->type_cache_free(type_cache);
    if (state->published)
        state->next_gone = (dlp_state *)DLP_EXCHANGE(&dlp_gone_states, (dlp_atomic)state);
    else
        DLPACK_PY_FREE(state);
}

/* The exit callback: sets DLP_CLOSING; waits without the GIL until no deleter attaches, at most DLPACK_PY_EXIT_WAIT. */
DLP_COLD PyObject *
dlp_at_exit(PyObject *self, PyObject *unused)
{
    dlp_state *state = (dlp_state *)PyCapsule_GetPointer(self, DLP_STATE_NAME);
    int waits = (DLPACK_PY_EXIT_WAIT) * 1000 / DLP_SLEEP_MS;

    (void)unused;
    dlp_lifetime_after_fork(&state->lifetime);
    (void)DLP_OR(&state->lifetime.closing_and_deleters, DLP_CLOSING);
    if (DLP_LOAD(&state->lifetime.closing_and_deleters) >= DLP_DELETER &&
        !dlp_is_finalizing()) { /* else CPython stops the threads */
        Py_BEGIN_ALLOW_THREADS
        while (DLP_LOAD(&state->lifetime.closing_and_deleters) >= DLP_DELETER && waits-- > 0)
            DLP_SLEEP();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

/* Registers the exit callback of a state, given its capsule; runs Python code. If that fails, as it does while the
 * interpreter ends, sets DLP_CLOSING and returns 0. Returns -1 with MemoryError, RecursionError or an interrupt: the
 * next use tries again. PyUnstable_AtExit would run too late, after the modules. */
static inline int
dlp_state_register(PyObject *capsule)
{
    static PyMethodDef callback = {"dlpack_py_at_exit", dlp_at_exit, METH_NOARGS, NULL};
    dlp_state *state = (dlp_state *)PyCapsule_GetPointer(capsule, DLP_STATE_NAME);
    PyObject *method = PyCFunction_NewEx(&callback, capsule, NULL);
    PyObject *module = method == NULL ? NULL : PyImport_ImportModule("atexit");
    PyObject *result = module == NULL ? NULL : PyObject_CallMethod(module, "register", "O", method);

    Py_XDECREF(method);
    Py_XDECREF(module);
    Py_XDECREF(result);
    if (!PyErr_Occurred())
        return 0;
    if (dlp_is_fatal() || PyErr_ExceptionMatches(PyExc_RecursionError))
        return -1;
    PyErr_Clear();
    (void)DLP_OR(&state->lifetime.closing_and_deleters, DLP_CLOSING);
    return 0;
}

/* A new state in a capsule, in no dictionary yet; NULL with an exception. */
static inline PyObject *
dlp_state_new(PyInterpreterState *interpreter)
{
    dlp_state *state = (dlp_state *)DLPACK_PY_MALLOC(sizeof(*state));
    PyObject *capsule;
    int i;

    if (state == NULL)
        return PyErr_NoMemory();
    memset(state, 0, sizeof(*state));
    capsule = PyCapsule_New(state, DLP_STATE_NAME, dlp_state_destructor);
    if (capsule == NULL) {
        DLPACK_PY_FREE(state);
        return NULL;
    }
    state->lifetime.interpreter = interpreter;
    for (i = 0; i < DLP_STR_COUNT; i++)
        state->objects[i] = PyUnicode_InternFromString(dlp_names[i]);
    state->objects[DLP_CONST_KWNAMES] = Py_BuildValue("(O)", state->objects[DLP_STR_MAX_VERSION]);
    state->objects[DLP_CONST_VERSION] = Py_BuildValue("(ii)", DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR);
    state->objects[DLP_CONST_CPU_DEVICE] = Py_BuildValue("(ii)", (int)kDLCPU, 0);
    if (PyErr_Occurred())
        Py_CLEAR(capsule); /* frees the state */
    return capsule;
}

/* Finds or makes the state in the interpreter's dictionary. Runs Python code, which may call this function.
 * CPython 3.13t crashes if two threads first use the dictionary or atexit at once: all files lock PyCapsule_Type. */
DLP_COLD dlp_state *
dlp_state_find_or_make(PyInterpreterState *interpreter)
{
    PyObject *dict, *key = NULL, *capsule, *made = NULL;
    dlp_state *state = NULL;

    DLP_CRITICAL_SECTION((PyObject *)&PyCapsule_Type);
    dict = DLP_INTERPRETER_DICT(interpreter);
    if (dict == NULL)
        PyErr_SetString(PyExc_RuntimeError, "the interpreter has no dictionary");
    else
        key = PyUnicode_FromFormat("dlpack_py.%x.%p", DLPACK_PY_VERSION, (void *)dlp_states);
    capsule = key == NULL ? NULL : PyDict_GetItemWithError(dict, key);
    Py_XINCREF(capsule);
    if (capsule == NULL && !PyErr_Occurred())
        made = dlp_state_new(interpreter);
    if (made != NULL && dlp_state_register(made) == 0) /* setdefault: the calls above may have stored a state */
        capsule = PyObject_CallMethod(dict, "setdefault", "OO", key, made);
    if (capsule != NULL) {
        state = (dlp_state *)PyCapsule_GetPointer(capsule, DLP_STATE_NAME);
        state->published = 1;
        if ((DLP_LOAD(&state->lifetime.closing_and_deleters) & DLP_CLOSING) == 0) /* else the slot could stay set */
            DLP_STORE(DLP_STATE_SLOT(interpreter), (dlp_atomic)state);
    }
    Py_XDECREF(capsule); /* the dictionary holds it */
    Py_XDECREF(made);
    Py_XDECREF(key);
    DLP_CRITICAL_SECTION_END();
    return state;
}

/* The state of this source file in this interpreter, borrowed; NULL with MemoryError, RuntimeError or an interrupt. */
DLP_NOINLINE dlp_state *
dlp_state_get(void)
{
    PyInterpreterState *interpreter = DLP_INTERPRETER();
    dlp_state *state = (dlp_state *)DLP_LOAD(DLP_STATE_SLOT(interpreter));
    return state != NULL && state->lifetime.interpreter == interpreter ? state : dlp_state_find_or_make(interpreter);
}

/* Prepare this source file for the current interpreter: call it when the module is created. The first use does it too,
 * but a first use in an exit callback is too late: a deleter on another thread may hang or crash at the end of the
 * interpreter (K5). Returns 0, or -1 with MemoryError, RuntimeError or an interrupt, as every first use may. */
static inline int
dlpack_py_init(void)
{
    return dlp_state_get() == NULL ? -1 : 0;
}

/* ---- The request -------------------------------------------------------- */

/* The arguments of __dlpack__, or of a consumer's request. All zero is a call without arguments. */
typedef struct dlpack_py_request {
    dlpack_py_stream stream;
    DLPackVersion max_version; /* 0.0: not given */
    int32_t has_device;        /* device was given */
    DLDevice device;
    int32_t copy; /* DLPACK_PY_COPY_... */
} dlpack_py_request;

#define DLPACK_PY_COPY_AS_NEEDED 0          /* None. Values below ..._NEVER allow a copy */
#define DLPACK_PY_COPY_ALWAYS 1             /* True */
#define DLPACK_PY_COPY_NEVER 2              /* False */
#define DLPACK_PY_COPY_NEVER_IF_SUPPORTED 3 /* for consumers: False, but a producer without copy is accepted */

/* The form of the capsule that a request asks for (P2). */
static inline int32_t
dlp_requested_form(const dlpack_py_request *request)
{
    return request->max_version.major < 1 ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
}

/* Reads a tuple of count objects with __index__, clamped to int32_t. Returns 0, or -1 with an exception. */
DLP_NOINLINE int
dlp_parse_integers(const char *format, PyObject *object, int32_t *integers, int count)
{
    int i, overflow;

    if (!PyTuple_Check(object) || DLP_TUPLE_SIZE(object) != count)
        return dlp_raise_value(PyExc_TypeError, format, object);
    for (i = 0; i < count; i++) {
        PyObject *part = DLP_TUPLE_ITEM(object, i);
        Py_ssize_t value = PyLong_CheckExact(part) ? PyLong_AsLongAndOverflow(part, &overflow) : -1;
        if (value == -1 && (value = PyNumber_AsSsize_t(part, NULL)) == -1 && PyErr_Occurred()) /* clamps */
            return PyErr_ExceptionMatches(PyExc_TypeError) ? dlp_raise_value(PyExc_TypeError, format, object) : -1;
        integers[i] = value == (int32_t)value ? (int32_t)value : value < 0 ? INT32_MIN : INT32_MAX;
    }
    return 0;
}

/* Reads a stream; a handle has the pointer's full width (S7). */
static inline int
dlp_parse_stream(PyObject *object, dlpack_py_stream *stream)
{
    PyObject *integer = PyNumber_Index(object);
    unsigned long long handle;
    int overflow, failed = 0;

    if (integer == NULL)
        return PyErr_ExceptionMatches(PyExc_TypeError)
                   ? dlp_raise_value(PyExc_TypeError, "stream is %.200U, None or an integer was wanted", object)
                   : -1;
    handle = PyLong_AsUnsignedLongLong(integer);
    stream->kind = DLPACK_PY_STREAM_HANDLE;
    stream->handle = (uintptr_t)handle;
    if (PyErr_Occurred() || handle > UINTPTR_MAX) { /* below 0, or too wide */
        PyErr_Clear();
        stream->kind = DLPACK_PY_STREAM_NO_SYNC;
        if (PyLong_AsLongAndOverflow(integer, &overflow) != -1 || overflow != 0)
            failed = dlp_raise_value(PyExc_ValueError,
                                     "stream is %.200U, None, -1 or a handle of a pointer's width was wanted", integer);
    }
    Py_DECREF(integer);
    return failed;
}

/* Reads max_version (P2). */
static inline int
dlp_parse_version(PyObject *object, dlpack_py_request *request)
{
    int32_t pair[2] = {0, 0};
    if (object != Py_None &&
        dlp_parse_integers("max_version is %.200U, None or a tuple of two integers was wanted", object, pair, 2) < 0)
        return -1;
    request->max_version.major = pair[0] < 0 ? 0 : (uint32_t)pair[0];
    request->max_version.minor = pair[1] < 0 ? 0 : (uint32_t)pair[1];
    return 0;
}

/* Read a request; NULL or None: not given. Returns 0, or -1 as dlpack_py_parse_request. */
DLP_NOINLINE int
dlpack_py_parse_request_obj_args(PyObject *stream, PyObject *max_version, PyObject *dl_device, PyObject *copy,
                                 dlpack_py_request *request)
{
    int32_t pair[2] = {0, 0};

    memset(request, 0, sizeof(*request));
    if (max_version != NULL && dlp_parse_version(max_version, request) < 0)
        return -1;
    if (stream != NULL && stream != Py_None && dlp_parse_stream(stream, &request->stream) < 0)
        return -1;
    if (dl_device != NULL && dl_device != Py_None) {
        if (dlp_parse_integers("dl_device is %.200U, None or a tuple of two integers was wanted", dl_device, pair, 2))
            return -1;
        request->has_device = 1;
        request->device = dlp_make_device(pair[0], pair[1]);
    }
    if (copy == Py_True)
        request->copy = DLPACK_PY_COPY_ALWAYS;
    else if (copy == Py_False)
        request->copy = DLPACK_PY_COPY_NEVER;
    else if (copy != NULL && copy != Py_None)
        return dlp_raise_value(PyExc_TypeError, "copy is %.200U, None, True or False was wanted", copy);
    return 0;
}

/* Sets out[k] to the value of the keyword argument state->objects[first + k], for k < count. args[positional] is the
 * first value. Names are compared by value (P1), at first by address. Returns 0, or -1 with an exception. */
DLP_NOINLINE int
dlp_match_keywords(const char *function, int positional, int first, int count, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames, PyObject **out)
{
    const dlp_state *state = dlp_state_get();
    const Py_ssize_t given = kwnames == NULL ? 0 : DLP_TUPLE_SIZE(kwnames);
    Py_ssize_t i;
    int k;

    if (state == NULL)
        return -1;
    if (nargs < 0) {
        PyErr_Format(PyExc_SystemError, "%s(): nargs is %zd, PyVectorcall_NARGS(nargs) was wanted", function, nargs);
        return -1;
    }
    if (nargs != positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional argument(s) (%zd given)", function, positional, nargs);
        return -1;
    }
    for (i = 0; i < given; i++) {
        PyObject *name = DLP_TUPLE_ITEM(kwnames, i), *const *names = state->objects + first;
        for (k = 0; k < count && names[k] != name; k++) /* saves 700 of 3,400 instructions of np.from_dlpack */
            ;
        if (k == count)
            for (k = 0; k < count && PyUnicode_Compare(names[k], name) != 0; k++)
                ;
        if (k == count) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return -1;
        }
        out[k] = args[positional + i];
    }
    return 0;
}

/* Read a request from the arguments of a fastcall method. Returns 0, or -1 with TypeError or ValueError (P1, P2, P4 to
 * P7), SystemError (nargs is below 0), an error of __index__ or of dlpack_py_init. */
static inline int
dlpack_py_parse_request(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dlpack_py_request *request)
{
    const dlp_state *state = dlp_state_get();
    const Py_ssize_t given = kwnames == NULL ? 0 : DLP_TUPLE_SIZE(kwnames);

    if (state == NULL)
        return -1;
    if (nargs != 0 || given > 1 || (given == 1 && DLP_TUPLE_ITEM(kwnames, 0) != state->objects[DLP_STR_MAX_VERSION])) {
        PyObject *values[4] = {NULL, NULL, NULL, NULL}; /* stream, max_version, dl_device, copy */
        return dlp_match_keywords("__dlpack__", 0, DLP_STR_STREAM, 4, args, nargs, kwnames, values) < 0
                   ? -1
                   : dlpack_py_parse_request_obj_args(values[0], values[1], values[2], values[3], request);
    }
    memset(request, 0, sizeof(*request));
    if (given == 0)
        return 0; /* saves 133 of 818 instructions of x.__dlpack__() */
    if (args[0] != state->objects[DLP_CONST_VERSION])
        return dlp_parse_version(args[0], request);
    request->max_version.major = DLPACK_PY_PROTOCOL_MAJOR; /* the tuple of this source file's consumer */
    request->max_version.minor = DLPACK_PY_PROTOCOL_MINOR;
    return 0;
}

/* ---- Producing ---------------------------------------------------------- */

/* What a producer exports, and how. Zero what is not needed. */
typedef struct dlpack_py_offer {
    PyObject *owner;            /* keeps the data alive; each export holds a reference until its deleter has run */
    const DLTensor *tensor;     /* in memory that the CPU can read, or on the device of `operations` */
    uint64_t flags;             /* DLPACK_PY_FLAG_* that describe the data */
    uint32_t options;           /* DLPACK_PY_OFFER_... */
    dlpack_py_counter *exports; /* a counter in the owner, NULL: not counted; if set, embedded is ignored */
    int32_t is_copy;            /* 1: the tensor is a copy that was made for this request, and is flagged so (P4) */
    struct dlpack_py_embedded *embedded; /* managed tensors in the owner, by dlpack_py_offer_embedded; NULL: none */
    const struct dlpack_py_operations *operations; /* of the device that has the data or uses it; NULL: none */
    /* The streams on which work on the data may be queued. make_ready and copy order the consumer's stream after this
     * work, or make the host wait for it. Other threads run while the host waits: they must not move the data. */
    const dlpack_py_work_stream *pending;
    size_t pending_count; /* DLPACK_PY_MAX_PENDING at most */
} dlpack_py_offer;

#define DLPACK_PY_OFFER_READ_ONLY_UNKNOWN 1u /* data from a legacy capsule: a legacy export is allowed (C7) */
#define DLPACK_PY_OFFER_REFUSE_NEGATIVE 2u   /* refuse a negative stride: PyTorch 2.13 ends the process (D11) */
#define DLPACK_PY_OFFER_COPY_NEGATIVE 4u     /* a negative stride requires a copy */
#define DLPACK_PY_OFFER_NONE_IS_NO_SYNC 8u /* stream=None on a device means -1: nothing is ordered (docs/streams.md) */
#define DLPACK_PY_OFFER_COPY_READ_ONLY 16u /* read-only data requires a copy: PyTorch 2.13 ignores the flag */
#define DLPACK_PY_OFFER_DO_NOT_LEND 32u    /* shape or strides do not live in the object: a table must not lend them */
#define DLP_OFFER_ANY_DEVICE 0x80000000u   /* device data without operations: exported in place, no work pending */

/* An offer of a tensor, with all else zero. */
static inline dlpack_py_offer
dlpack_py_offer_make(PyObject *owner, const DLTensor *t, uint64_t flags)
{
    dlpack_py_offer offer;
    memset(&offer, 0, sizeof(offer));
    offer.owner = owner;
    offer.tensor = t;
    offer.flags = flags;
    return offer;
}

/* How a request is met. */
typedef struct dlpack_py_plan {
    int32_t form;       /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY */
    int32_t makes_copy; /* 1: a copy, 0: in place */
    DLDevice device;    /* of the tensor in the capsule */
    uint64_t flags;     /* of an export in place; dlp_export_new_compact sets those of a copy */
} dlpack_py_plan;

/* The operations of a device: dlpack_device.h has those of CUDA and HIP, docs/devices.md shows how to write others.
 * They need a thread state, and set an exception if they fail. If the needed operation is NULL: BufferError. */
typedef struct dlpack_py_operations {
    int32_t type; /* DLDeviceType of its memory */

    /* Make data that is exported in place ready for the request's stream (S1), or the CPU (S10). Returns 0 or -1. */
    int (*make_ready)(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan);
    /* Copy the offer's tensor to compact memory of the CPU, behind the pending work. Returns 0; or -1; or -2 where the
     * copy may still run: the CPU memory is leaked then, and a later free of the offer's memory waits for the copy. */
    int (*copy)(const dlpack_py_offer *offer, const DLTensor *to, const DLTensor *from);
    /* Ask an exchange table for its work stream (X4). work: device_id is set, handle is out. Returns 0 or -1. */
    int (*get_work_stream)(const void *table, dlpack_py_work_stream *work);
} dlpack_py_operations;

static inline int
dlp_operates_on(const dlpack_py_operations *operations, DLDevice device)
{
    return operations != NULL && (int32_t)device.device_type == operations->type;
}

/* Decides on which device the tensor in the capsule is. Returns 0, or -1 with *error filled (P5, P6). */
static inline int
dlp_plan_device(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan,
                dlpack_py_error *error)
{
    const DLDevice from = offer->tensor->device, asked = request->device;
    char actual[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE];

    if (!dlpack_py_is_cpu_readable(from) && !dlp_operates_on(offer->operations, from) &&
        (offer->options & DLP_OFFER_ANY_DEVICE) == 0)
        return DLP_REFUSE(error, "device is %s, which this producer does not export",
                          dlpack_py_device_text(from, actual));
    plan->device = dlp_exported_device(from);
    if (request->has_device && asked.device_type == kDLCPU && asked.device_id == 0)
        plan->device = asked; /* pinned and managed memory is exported as CPU memory; other memory is copied */
    if (request->has_device &&
        (asked.device_type != plan->device.device_type || asked.device_id != plan->device.device_id))
        return DLP_REFUSE(error, "dl_device is %s, the data is on %s", dlpack_py_device_text(asked, wanted),
                          dlpack_py_device_text(plan->device, actual));
    return dlp_check_stream(plan->device, &request->stream, error);
}

/* Checks what an author offers, and decides how the request is met: in place or by a copy, on which device. Returns 0,
 * or -1 with *error filled (D8, P3 to P7; or the offer makes no sense). plan->form is an input. */
DLP_COLD int
dlp_plan_general(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan,
                 dlpack_py_error *error)
{
    const uint32_t negative = DLPACK_PY_OFFER_REFUSE_NEGATIVE | DLPACK_PY_OFFER_COPY_NEGATIVE;
    const DLTensor *t = offer->tensor;
    const char *why = NULL; /* the reason why the export must be a copy */
    int readable, is_padded, is_read_only;
    int64_t lowest, highest; /* in bytes, from the first element; lowest < 0: a negative stride leads before it */
    char actual[DLPACK_PY_TEXT_SIZE];

    if (offer->owner == NULL || t == NULL)
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR, "the offer has no %s", t == NULL ? "tensor" : "owner");
    if (offer->pending_count > (offer->operations == NULL ? 0 : DLPACK_PY_MAX_PENDING))
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR,
                        "pending_count is %" PRIuPTR ", at most %d was wanted, 0 without a device",
                        (uintptr_t)offer->pending_count, DLPACK_PY_MAX_PENDING);
    if (dlpack_py_validate(t, offer->flags, error) < 0 || dlp_plan_device(offer, request, plan, error) < 0)
        return -1;
    readable = dlpack_py_is_cpu_readable(t->device);
    plan->flags = dlp_export_flags(t, offer->flags);
    is_padded = (plan->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0;
    is_read_only = (plan->flags & DLPACK_PY_FLAG_READ_ONLY) != 0;
    plan->flags |= offer->is_copy ? DLPACK_PY_FLAG_IS_COPIED : 0;
    if (!readable && plan->device.device_type == kDLCPU)
        why = "an export from this device to the CPU must be a copy";
    else if ((offer->options & DLPACK_PY_OFFER_COPY_READ_ONLY) != 0 && is_read_only)
        why = "this producer exports read-only data only as a copy";
    else if ((offer->options & negative) != 0 && dlp_byte_range(t, 0, &lowest, &highest) == 0 && lowest < 0) { /* D11 */
        if ((offer->options & DLPACK_PY_OFFER_COPY_NEGATIVE) == 0 && request->copy != DLPACK_PY_COPY_ALWAYS)
            return DLP_REFUSE(error, "negative strides are exported only as a copy: ask with copy=True");
        why = "this producer exports negative strides only as a copy";
    }
    if (request->copy >= DLPACK_PY_COPY_NEVER && (why != NULL || offer->is_copy))
        return DLP_REFUSE(error, "%s, and copy is False", why != NULL ? why : "this producer made a copy of the data");
    plan->makes_copy = why != NULL || (request->copy == DLPACK_PY_COPY_ALWAYS && !offer->is_copy);
    if (plan->makes_copy && plan->device.device_type != kDLCPU) /* P8 */
        return DLP_REFUSE(error, "a copy of data on %s is made on the CPU: ask with dl_device=(1, 0)",
                          dlpack_py_device_text(plan->device, actual));
    if (plan->makes_copy
            ? (!readable || offer->pending_count > 0) && (offer->operations == NULL || !offer->operations->copy)
            : offer->pending_count > 0 && !offer->operations->make_ready)
        return DLP_REFUSE(error, "the device operations of this producer cannot %s data on %s",
                          plan->makes_copy ? "copy" : "order work on", dlpack_py_device_text(t->device, actual));
    if (plan->form == DLPACK_PY_LEGACY && /* P3 */
        (is_padded || (is_read_only && !plan->makes_copy && (offer->options & DLPACK_PY_OFFER_READ_ONLY_UNKNOWN) == 0)))
        return DLP_REFUSE(error, "data is %s, and a legacy capsule has no flags: ask with max_version=(1, 0)",
                          is_padded ? "padded" : "read-only");
    return 0;
}

/* Plans an export. Returns 0, or -1 with an exception. The if saves 138 of 1,207 instructions of x.__dlpack__(). */
static inline int
dlp_plan(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan)
{
    dlpack_py_error error;

    plan->form = dlp_requested_form(request);
    if (offer->tensor != NULL && dlp_simple_layout(offer->tensor) != 0 &&
        (offer->flags | (offer->options & ~DLPACK_PY_OFFER_DO_NOT_LEND) | (uint64_t)offer->is_copy |
         offer->pending_count) == 0 &&
        !request->has_device && request->copy == DLPACK_PY_COPY_AS_NEEDED &&
        request->stream.kind == DLPACK_PY_STREAM_NONE && offer->owner != NULL) {
        plan->device = dlp_make_device(kDLCPU, 0);
        plan->flags = 0;
        plan->makes_copy = 0;
        return 0;
    }
    return dlp_plan_general(offer, request, plan, &error) < 0 ? dlpack_py_raise(&error) : 0;
}

/* As dlp_copy_unchecked. Releases the GIL from 64 KiB on: such a copy takes longer than a change of threads. */
DLP_COLD void
dlp_copy_detached(const DLTensor *dst, const DLTensor *src, uint64_t flags)
{
    PyThreadState *detached = dlpack_py_nbytes(src, flags) >= 65536 ? PyEval_SaveThread() : NULL;
    dlp_copy_unchecked(dst, src, flags);
    if (detached != NULL)
        PyEval_RestoreThread(detached);
}

/* Makes the copy of a plan, behind the pending work: a managed tensor of the plan's form, or NULL with an exception. */
DLP_COLD void *
dlp_export_copy(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    int64_t strides[DLPACK_PY_MAX_NDIM];
    DLTensor t = *offer->tensor, *dst;
    dlpack_py_error error;
    dlp_export *e = dlp_export_new_compact(&t, offer->flags, plan->form, 'C', 0, &error);
    int failed;

    if (e == NULL) {
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    Py_INCREF(offer->owner); /* other threads may run meanwhile */
    dlp_exports_add(offer->exports, 1);
    dst = dlp_tensor_of(&e->managed, plan->form);
    t.shape = dst->shape; /* the author's shape and strides may change */
    if (t.strides != NULL)
        t.strides = (int64_t *)memcpy(strides, t.strides, (size_t)t.ndim * sizeof(int64_t));
    if (dlpack_py_is_cpu_readable(t.device) && offer->pending_count == 0)
        dlp_copy_detached(dst, &t, offer->flags);
    else if ((failed = offer->operations->copy(offer, dst, &t)) != 0) {
        if (failed == -1)
            dlp_delete(&e->managed, plan->form);
        e = NULL;
    }
    dlp_exports_add(offer->exports, -1);
    dlp_decref_keeping_error(offer->owner);
    return e == NULL ? NULL : &e->managed;
}

/* Makes the managed tensor that a plan describes; NULL with an exception. After an export in place the caller calls
 * make_ready. The caller got state before dlp_plan: the first dlp_state_get runs Python code, which may change data. */
static inline void *
dlp_export_offer(dlp_state *state, const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    dlp_export *e;

    if (plan->makes_copy)
        return dlp_export_copy(offer, plan);
    e = dlp_export_new(offer->tensor, plan->flags, plan->form, 0);
    if (e == NULL)
        return PyErr_NoMemory();
    dlp_tensor_of(&e->managed, plan->form)->device = plan->device;
    dlp_set_owner(&e->manager, offer->owner, &state->lifetime, offer->exports);
    return &e->managed;
}

#ifdef DLPACK_EXCHANGE_H /* dlpack_exchange.h defines it */
DLP_NOINLINE void *
dlp_export_embedded(const dlpack_py_offer *offer, const dlpack_py_request *request);
#else
#  define dlp_export_embedded(offer, request) NULL
#endif

/* Answer a request with an offer: dlpack_py_produce without the reading of arguments. Returns as dlpack_py_produce. */
static inline PyObject *
dlpack_py_answer(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    dlpack_py_plan plan;
    dlp_state *state;
    PyObject *capsule;
    void *managed;

    if (offer->embedded != NULL && (managed = dlp_export_embedded(offer, request)) != NULL)
        return dlpack_py_capsule_steal(managed, dlp_requested_form(request));
    state = dlp_state_get();
    if (state == NULL || dlp_plan(offer, request, &plan) < 0 ||
        (managed = dlp_export_offer(state, offer, &plan)) == NULL)
        return NULL;
    capsule = dlpack_py_capsule_steal(managed, plan.form);
    /* Called last, because the order of streams cannot be undone. */
    if (capsule != NULL && !plan.makes_copy && offer->pending_count > 0 &&
        offer->operations->make_ready(offer, request, &plan) < 0) {
        dlp_decref_keeping_error(capsule);
        return NULL;
    }
    return capsule;
}

/* dlpack_py_produce: answer a call of __dlpack__.
 *
 * owner   keeps the data alive; held until the deleter has run (P9)
 * t       the tensor, in memory that the CPU can read. Struct, shape and strides are copied, data is not. __index__ of
 *         an argument and the first use (dlpack_py_init) run Python code; other threads run during a large copy. Where
 *         these could move or free the memory, use dlpack_py_produce_described and count exports.
 * flags   DLPACK_PY_FLAG_* that describe the data; 0: none
 * args, nargs, kwnames   as METH_FASTCALL | METH_KEYWORDS passes them
 *
 * Returns a new capsule, or NULL with TypeError, ValueError or an __index__'s error (malformed request: P1, P4, P6),
 * BufferError (the request cannot be met: D8, P3, P5, P7), SystemError, MemoryError or an error of dlpack_py_init; then
 * no reference is kept. The deleter needs no thread state (K5). */
static inline PyObject *
dlpack_py_produce(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    const dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    dlpack_py_request request;
    return dlpack_py_parse_request(args, nargs, kwnames, &request) < 0 ? NULL : dlpack_py_answer(&offer, &request);
}

/* As dlpack_py_produce, from four objects, NULL for "not given": for Cython, pybind11 and METH_VARARGS. */
static inline PyObject *
dlpack_py_produce_obj_args(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *stream, PyObject *max_version,
                           PyObject *dl_device, PyObject *copy)
{
    const dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    dlpack_py_request request;
    return dlpack_py_parse_request_obj_args(stream, max_version, dl_device, copy, &request) < 0
               ? NULL
               : dlpack_py_answer(&offer, &request);
}

/* A function of the author, which fills an offer for an object.
 *
 * self      the object
 * request   what a call of __dlpack__ asks for, after its arguments were read; NULL for __dlpack_device__,
 *           exchange tables, buffers and array interfaces
 * offer     out: at first all zero, except for owner, which is self. The DLTensor, shape, strides and pending streams
 *           are stored in self, because an exchange table lends them: a borrower reads them until Python code runs
 *           again. A type without a place for them may point to memory that the next call of describe overwrites,
 *           and sets DLPACK_PY_OFFER_DO_NOT_LEND
 *
 * Returns 0, or -1 to refuse, as a rule with BufferError (P7). Called in a critical section on self. Must not throw. */
typedef int (*dlpack_py_describe)(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer);

/* Asks the author for an offer. Returns 0, or -1 with an exception. */
static inline int
dlp_call_describe(PyObject *self, dlpack_py_describe describe, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    memset(offer, 0, sizeof(*offer));
    offer->owner = self;
    if (describe(self, request, offer) == 0) {
        if (offer->tensor != NULL && offer->owner != NULL)
            return 0;
        PyErr_Format(PyExc_SystemError, "describe returned 0, but offer->%s is NULL",
                     offer->tensor == NULL ? "tensor" : "owner");
    }
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_BufferError, "the data cannot be exported in its present state");
    return -1;
}

/* dlpack_py_produce_described: as dlpack_py_produce, with a function describe in place of owner, t and flags. */
static inline PyObject *
dlpack_py_produce_described(PyObject *self, dlpack_py_describe describe, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    dlpack_py_request request;
    dlpack_py_offer offer;
    PyObject *capsule = NULL;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    DLP_CRITICAL_SECTION(self); /* no other thread moves the memory before it is counted */
    if (dlp_call_describe(self, describe, &request, &offer) == 0) {
        dlp_exports_add(offer.exports, 1); /* dlp_state_get may let other threads run */
        capsule = dlpack_py_answer(&offer, &request);
        dlp_exports_add(offer.exports, -1);
    }
    DLP_CRITICAL_SECTION_END();
    return capsule;
}

/* __dlpack_device__ for a type whose data is always CPU memory: METH_NOARGS. NULL with an error of dlpack_py_init. */
static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused)
{
    const dlp_state *state = dlp_state_get();
    PyObject *device = state == NULL ? NULL : state->objects[DLP_CONST_CPU_DEVICE];
    (void)self;
    (void)unused;
    Py_XINCREF(device);
    return device;
}

/* Answer __dlpack_device__ for the tensor of __dlpack__ (P8). Returns a tuple; NULL with an error of dlpack_py_init. */
static inline PyObject *
dlpack_py_produce_device(const DLTensor *t)
{
    const DLDevice device = dlp_exported_device(t->device);
    return device.device_type == kDLCPU ? dlpack_py_cpu_device(NULL, NULL)
                                        : Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

/* Answer a call of __dlpack_device__ for an object that a function describes (P8). */
static inline PyObject *
dlp_produce_described_device(PyObject *self, dlpack_py_describe describe)
{
    dlpack_py_offer offer;
    PyObject *result = NULL;
    DLP_CRITICAL_SECTION(self); /* as in dlpack_py_produce_described */
    if (dlp_call_describe(self, describe, NULL, &offer) == 0)
        result = dlpack_py_produce_device(offer.tensor);
    DLP_CRITICAL_SECTION_END();
    return result;
}

/* Define the two methods for DLPACK_PY_METHODS, name_dlpack and name_dlpack_device, at file scope, with a semicolon. */
#define DLPACK_PY_DESCRIBED(name, describe)                                                                           \
    static inline PyObject *name##_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) \
    {                                                                                                                 \
        return dlpack_py_produce_described(self, (describe), args, nargs, kwnames);                                   \
    }                                                                                                                 \
    static inline PyObject *name##_dlpack_device(PyObject *self, PyObject *unused)                                    \
    {                                                                                                                 \
        (void)unused;                                                                                                 \
        return dlp_produce_described_device(self, (describe));                                                        \
    }                                                                                                                 \
    struct dlp_semicolon /* takes the caller's semicolon */

/* Casts a METH_FASTCALL | METH_KEYWORDS function; one with another signature is an error or a warning. */
typedef PyObject *(*dlp_method)(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
#ifdef __cplusplus
#  define DLP_METHOD(function) \
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(static_cast<dlp_method>(function)))
#else
#  define DLP_METHOD(function) ((PyCFunction)(void (*)(void))(1 ? (function) : (dlp_method)0))
#endif

/* The two entries of a PyMethodDef table. dlpack: METH_FASTCALL | METH_KEYWORDS; device: METH_NOARGS. */
#define DLPACK_PY_METHODS(dlpack, device)                                                                  \
    {"__dlpack__", DLP_METHOD(dlpack), METH_FASTCALL | METH_KEYWORDS,                                      \
     PyDoc_STR("__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n" \
               "Export the data as a DLPack capsule.")},                                                   \
    {                                                                                                      \
        "__dlpack_device__", (device), METH_NOARGS,                                                        \
            PyDoc_STR("__dlpack_device__($self, /)\n--\n\nThe DLPack device (type, id) of the data.")      \
    }

/* ---- Views -------------------------------------------------------------- */

/* A consumed tensor. A view is empty when it is all zero, after a failed call, and after its release: then it has rank
 * 0, data and shape NULL, nothing to release, and undefined other fields. It may be released again. A view can be moved
 * (dlpack_py_move), not copied: it owns its tensor. For a view in an object, tp_traverse calls dlpack_py_traverse, and
 * tp_dealloc calls dlpack_py_release. tp_clear may release it only if no other code can read the data after that. */
typedef struct dlpack_py_view {
    DLTensor tensor;    /* strides are never NULL where ndim > 0 (C10); add byte_offset, or use dlpack_py_data */
    uint64_t flags;     /* DLPACK_PY_FLAG_* of the producer, unknown flags too (C8); 0 from a legacy capsule */
    int32_t readonly;   /* DLPACK_PY_WRITABLE (0), DLPACK_PY_READ_ONLY or DLPACK_PY_READ_ONLY_UNKNOWN (C7) */
    int32_t overlaps;   /* 1: elements may share memory: writing to one may change others */
    int32_t form;       /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY: the type of *managed */
    void *managed;      /* the managed tensor, owned; NULL: nothing to release */
    int64_t *allocated; /* row-major strides where the producer's are NULL (D4); NULL: none */
} dlpack_py_view;

/* The offer by which the holder of a view exports t, the view's tensor or a part of it, with the view's flags (C7). */
static inline dlpack_py_offer
dlpack_py_offer_view(PyObject *owner, const DLTensor *t, const dlpack_py_view *v)
{
    dlpack_py_offer offer =
        dlpack_py_offer_make(owner, t, v->flags | ((uint32_t)v->readonly & DLPACK_PY_FLAG_READ_ONLY));
    if (v->readonly == DLPACK_PY_READ_ONLY_UNKNOWN)
        offer.options |= DLPACK_PY_OFFER_READ_ONLY_UNKNOWN;
    return offer;
}

/* Makes a view empty. Keeps the device: a dlpack_py.Result whose tensor was taken still returns it (P8). */
static inline void
dlp_view_clear(dlpack_py_view *v)
{
    v->tensor.data = NULL;
    v->tensor.ndim = 0;
    v->tensor.shape = v->tensor.strides = NULL;
    v->managed = NULL;
    v->allocated = NULL;
}

/* The address of the first element: tensor.data + tensor.byte_offset (D1). */
static inline void *
dlpack_py_data(const dlpack_py_view *v)
{
    return dlp_first_element(&v->tensor);
}

/* Release a view: calls the producer's deleter. A second release does nothing. Two threads must not release or use one
 * view at the same time. May be called on any thread, with or without a thread state; keeps the current exception.
 * Without a thread state it may wait for the GIL: the caller must not hold a lock that an attached thread waits for. */
static inline void
dlpack_py_release(dlpack_py_view *v)
{
    void *managed = v->managed;
    int64_t *allocated = v->allocated;

    dlp_view_clear(v);
    if (allocated != NULL)
        DLPACK_PY_FREE(allocated);
    if (managed != NULL)
        dlp_delete(managed, v->form);
}

/* Move a view: afterwards from is empty, and to owns the tensor. to is empty before, or not initialized. */
static inline void
dlpack_py_move(dlpack_py_view *to, dlpack_py_view *from)
{
    if (to == from)
        return;
    *to = *from;
    dlp_view_clear(from);
}

/* For tp_traverse of an object with a view: visits the owner of an export of this source file and interpreter (G1). */
static inline int
dlpack_py_traverse(const dlpack_py_view *v, visitproc visit, void *arg)
{
    const dlp_manager *manager = v->managed == NULL ? NULL : dlp_manager_of(v->managed, v->form);
    dlp_lifetime *lifetime = manager == NULL ? NULL : manager->lifetime;

    if (lifetime == NULL || lifetime->interpreter != DLP_INTERPRETER() || DLP_LOAD(&lifetime->gone))
        return 0;
    return visit((PyObject *)manager->owner, arg);
}

/* ---- Calling __dlpack__ ------------------------------------------------- */

/* One import: its requirements, its request, the object, and how to call it. */
typedef struct dlp_import {
    const dlpack_py_want *want;       /* not NULL */
    const dlpack_py_request *request; /* not NULL */
    PyObject *obj; /* the object whose __dlpack__ is called, borrowed; NULL: a capsule or managed tensor is taken */
    /* 1: the producer got max_version, dl_device and copy; for __cuda_array_interface__ this header is the producer.
     * 0: __dlpack__ raised TypeError for them (C1), or nothing is called: obj is NULL. */
    int got_keywords;
} dlp_import;

/* Fills a dlp_import. want NULL: no requirements. request NULL: a request without arguments. */
static inline dlp_import
dlp_import_make(const dlpack_py_want *want, const dlpack_py_request *request, PyObject *obj)
{
    static const dlpack_py_request none = {{0, 0}, {0, 0}, 0, {(DLDeviceType)0, 0}, 0};
    const dlp_import import = {want != NULL ? want : &dlp_empty_want, request != NULL ? request : &none, obj,
                               obj != NULL};
    return import;
}

/* Raises an error, with the name of the argument. Returns -1. */
DLP_COLD int
dlp_raise_named(const dlpack_py_want *want, const dlpack_py_error *error)
{
    dlpack_py_error named = *error;
    if (want->name != NULL)
        (void)dlp_fail(&named, error->code, "%s: %s", want->name, error->text);
    return dlpack_py_raise(&named);
}

/* Calls __dlpack__ with the keywords of the request that are needed (C4), or only with stream (C1). */
DLP_COLD PyObject *
dlp_call_dlpack_general(const dlp_state *state, const dlp_import *import)
{
    const dlpack_py_request *request = import->request;
    PyObject *const *objects = state->objects;
    PyObject *values[4] = {NULL, NULL, NULL, NULL}; /* stream, max_version, dl_device, copy; NULL: not passed */
    PyObject *stack[5] = {import->obj, NULL, NULL, NULL, NULL}, *kwnames = NULL, *returned = NULL;
    int i, count = 0;

    if (request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)
        values[0] = PyLong_FromLong(-1);
    else if (request->stream.kind == DLPACK_PY_STREAM_HANDLE)
        values[0] = PyLong_FromUnsignedLongLong(request->stream.handle);
    if (import->got_keywords) {
        values[1] = objects[DLP_CONST_VERSION];
        Py_INCREF(values[1]);
        if (request->has_device)
            values[2] = Py_BuildValue("(ii)", (int)request->device.device_type, (int)request->device.device_id);
        if (request->copy != DLPACK_PY_COPY_AS_NEEDED)
            values[3] = PyBool_FromLong(request->copy == DLPACK_PY_COPY_ALWAYS);
    }
    if (!PyErr_Occurred()) /* else a value could not be made */
        kwnames = PyTuple_New((values[0] != NULL) + (values[1] != NULL) + (values[2] != NULL) + (values[3] != NULL));
    for (i = 0; kwnames != NULL && i < 4; i++) {
        if (values[i] == NULL)
            continue;
        Py_INCREF(objects[DLP_STR_STREAM + i]);
        (void)PyTuple_SetItem(kwnames, count, objects[DLP_STR_STREAM + i]); /* steals; cannot fail: kwnames is new */
        stack[++count] = values[i];
    }
    if (kwnames != NULL)
        returned = PyObject_VectorcallMethod(objects[DLP_STR_DLPACK], stack, 1, kwnames);
    for (i = 0; i < 4; i++)
        Py_XDECREF(values[i]);
    Py_XDECREF(kwnames);
    return returned;
}

/* Makes first the __context__ of second, as an except block would (C1), but only if their contexts are equal: none, or
 * what the caller handles. Otherwise a ring could result. */
DLP_COLD void
dlp_exception_link(PyObject *first, PyObject *second)
{
    PyObject *context = PyException_GetContext(first), *other = PyException_GetContext(second);

    if (first != second && context == other) {
        Py_INCREF(first);
        PyException_SetContext(second, first); /* steals */
    }
    Py_XDECREF(context);
    Py_XDECREF(other);
}

/* After __dlpack__ has raised TypeError: calls it again without the keywords that an old signature lacks (C1). If copy
 * is False, raises BufferError in place of the call: an old producer may copy (C3). Returns as dlp_call_dlpack. On
 * failure the TypeError becomes the __context__: not by PyErr_SetExcInfo, which changes a calling generator's state. */
DLP_COLD PyObject *
dlp_call_dlpack_again(const dlp_state *state, dlp_import *import)
{
    dlp_exception first = dlp_exception_save(), second;
    PyObject *returned = NULL;
    dlpack_py_error error;

    import->got_keywords = 0;
    if (import->request->copy == DLPACK_PY_COPY_NEVER) {
        (void)DLP_REFUSE(&error, "copy is False, and __dlpack__ raised TypeError: without this keyword, it may copy");
        (void)dlp_raise_named(import->want, &error);
    }
    else
        returned = dlp_call_dlpack_general(state, import);
    if (returned == NULL) {
        second = dlp_exception_save();
        PyErr_NormalizeException(&first.type, &first.value, &first.traceback);
        PyErr_NormalizeException(&second.type, &second.value, &second.traceback);
        if (first.traceback != NULL)
            (void)PyException_SetTraceback(first.value, first.traceback);
        dlp_exception_link(first.value, second.value);
        PyErr_Restore(second.type, second.value, second.traceback);
    }
    dlp_exception_drop(&first);
    return returned;
}

/* Calls __dlpack__; a second call (C1) sets got_keywords to 0. Returns its result, or NULL with an exception. */
DLP_NOINLINE PyObject *
dlp_call_dlpack(dlp_import *import)
{
    const dlpack_py_request *request = import->request;
    const dlp_state *state = dlp_state_get();
    PyObject *stack[2] = {import->obj, NULL}, *returned;

    if (state == NULL)
        return NULL;
    stack[1] = state->objects[DLP_CONST_VERSION];
    if (!import->got_keywords || request->has_device || request->copy != DLPACK_PY_COPY_AS_NEEDED ||
        request->stream.kind != DLPACK_PY_STREAM_NONE)
        returned = dlp_call_dlpack_general(state, import);
    else /* max_version alone: saves 341 of 2,162 instructions of a call with a NumPy array */
        returned =
            PyObject_VectorcallMethod(state->objects[DLP_STR_DLPACK], stack, 1, state->objects[DLP_CONST_KWNAMES]);
    return returned == NULL && import->got_keywords && PyErr_ExceptionMatches(PyExc_TypeError)
               ? dlp_call_dlpack_again(state, import)
               : returned;
}

/* ---- Taking a tensor ---------------------------------------------------- */

/* Results of the steps of an import, besides 0 and -1. Below 0: refused; *error says why, or an exception is set. */
enum {
    DLP_ASK_FOR_CPU = -3,   /* pinned or managed memory: the object may be asked for CPU memory (C5) */
    DLP_UNKNOWN_MAJOR = -2, /* the tensor must be deleted (K6) */
    DLP_MAKE_COPY = 1,      /* a copy meets what the consumer asks for */
    DLP_CALL_METHOD         /* no table, or one that cannot be used: call __dlpack__ */
};

/* A major version that this header does not know: only the deleter can be relied on (K6). */
static inline int
dlp_is_unknown_major(const void *managed, int32_t form)
{
    return form == DLPACK_PY_VERSIONED &&
           ((const struct DLManagedTensorVersioned *)managed)->version.major != DLPACK_PY_PROTOCOL_MAJOR;
}

/* May the consumer copy the data, from memory that the CPU can read to CPU memory? */
DLP_COLD int
dlp_may_copy(const DLTensor *t, const dlp_import *import)
{
    const dlpack_py_want *want = import->want;
    const dlpack_py_request *request = import->request;

    return request->copy < DLPACK_PY_COPY_NEVER && want->device <= (int32_t)kDLCPU && /* 0, any or the CPU */
           (request->copy == DLPACK_PY_COPY_ALWAYS || (want->options & DLPACK_PY_WANT_COPY_IF_NEEDED) != 0) &&
           (!request->has_device || request->device.device_type == kDLCPU) && dlpack_py_is_cpu_readable(t->device);
}

/* Decides whether the tensor in v, whose strides may be NULL, is taken, copied or refused (D8, C3 to C5, C9). Sets
 * overlaps. Returns 0 or DLP_MAKE_COPY; DLP_ASK_FOR_CPU or -1 with *error filled. */
DLP_NOINLINE int
dlp_view_decide_general(dlpack_py_view *v, const dlp_import *import, dlpack_py_error *error)
{
    const DLTensor *t = &v->tensor;
    const dlpack_py_want *want = import->want;
    const dlpack_py_request *request = import->request;
    const DLDevice asked = request->device;
    const int readable = dlpack_py_is_cpu_readable(t->device);
    const int wants_only_cpu = want->device == (int32_t)kDLCPU;
    const int may_be_pending = (want->options & DLPACK_PY_WANT_NOTHING_PENDING) == 0;
    /* copy=True may have been ignored: copy was not passed, or the capsule is legacy. IS_COPIED is not read (C3). */
    int must_copy = request->copy == DLPACK_PY_COPY_ALWAYS && (v->form == DLPACK_PY_LEGACY || !import->got_keywords);
    char actual[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE];

    if (dlpack_py_validate(t, v->flags, error) < 0)
        return -1;
    if (wants_only_cpu ? !readable : !dlp_is_wanted_device(t, want)) /* device first (C5) */
        return dlp_refuse_device(t->device, want, error);
    if (dlp_check_requirements(t, 0, v->readonly, want, error) < 0) {
        if (!error->copy_helps || !dlp_may_copy(t, import))
            return -1;
        must_copy = 1; /* also after copy=True: the producer's copy does not meet the requirements */
    }
    v->overlaps = dlp_may_overlap_itself(t);
    /* A producer of pinned or managed memory waits for its work if CPU memory is asked for (C5). */
    if (readable && t->device.device_type != kDLCPU &&
        (wants_only_cpu || (may_be_pending && (want->device == 0 || must_copy)))) {
        (void)DLP_REFUSE(error, "device is %s, CPU memory %s%s", dlpack_py_device_text(t->device, actual),
                         wants_only_cpu || asked.device_type == kDLCPU ? "was asked for" : "is needed",
                         may_be_pending ? ": device work may be pending" : "");
        return DLP_ASK_FOR_CPU;
    }
    if (must_copy)
        return dlp_may_copy(t, import) ? DLP_MAKE_COPY
                                       : DLP_REFUSE(error, "device is %s: a copy is made from and to the CPU only",
                                                    dlpack_py_device_text(t->device, actual));
    if (request->has_device &&
        (t->device.device_type != asked.device_type || (!readable && t->device.device_id != asked.device_id))) /* D9 */
        return DLP_REFUSE(error, "device is %s, %s was asked for", dlpack_py_device_text(t->device, actual),
                          dlpack_py_device_text(asked, wanted));
    return 0;
}

/* Fast path, for a simple tensor and no request. Saves 204 of 2,012 instructions of a call with a NumPy array. */
static inline int
dlp_view_decide(dlpack_py_view *v, const dlp_import *import, dlpack_py_error *error)
{
    int layout;

    if (import->want->device > (int32_t)kDLCPU || import->request->has_device ||
        import->request->copy == DLPACK_PY_COPY_ALWAYS || (layout = dlp_simple_layout(&v->tensor)) == 0)
        return dlp_view_decide_general(v, import, error);
    v->overlaps = 0;
    if (dlp_check_requirements(&v->tensor, layout, v->readonly, import->want, error) == 0)
        return 0;
    return error->copy_helps && dlp_may_copy(&v->tensor, import) ? DLP_MAKE_COPY : -1;
}

/* Gives v row-major strides, where the producer's are NULL (D4). Returns 0, or -1 with MemoryError in *error. */
DLP_COLD int
dlp_view_fill_strides(dlpack_py_view *v, dlpack_py_error *error)
{
    v->tensor.strides = v->allocated = (int64_t *)DLPACK_PY_MALLOC((size_t)v->tensor.ndim * sizeof(int64_t));
    if (v->tensor.strides == NULL)
        return dlp_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for %d strides", (int)v->tensor.ndim);
    dlpack_py_compact_strides(v->tensor.ndim, v->tensor.shape, 'C', v->tensor.strides);
    return 0;
}

/* Fills the empty v from a managed tensor, if it meets want and request. Nothing is taken yet (K4): v owns at most its
 * strides. copy: out, new memory for a copy, which dlp_view_copy fills; NULL: none is needed.
 * Returns 0; or, with v empty, DLP_ASK_FOR_CPU, DLP_UNKNOWN_MAJOR or -1. */
static inline int
dlp_view_prepare(dlpack_py_view *v, const void *managed, int32_t form, const dlp_import *import, dlp_export **copy,
                 dlpack_py_error *error)
{
    const struct DLManagedTensorVersioned *versioned = (const struct DLManagedTensorVersioned *)managed;
    const dlpack_py_want *want = import->want;
    int result;

    *copy = NULL;
    if (dlp_is_unknown_major(managed, form)) { /* read nothing else (K6) */
        (void)DLP_REFUSE(error, "DLPack version %" PRIu32 ".%" PRIu32 ", major version %d was wanted",
                         versioned->version.major, versioned->version.minor, DLPACK_PY_PROTOCOL_MAJOR);
        return DLP_UNKNOWN_MAJOR;
    }
    v->form = form;
    if (form == DLPACK_PY_VERSIONED) {
        v->tensor = versioned->dl_tensor;
        v->flags = versioned->flags;
        v->readonly = (v->flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? DLPACK_PY_READ_ONLY : DLPACK_PY_WRITABLE;
    }
    else { /* has no flags (C7) */
        v->tensor = ((const DLManagedTensor *)managed)->dl_tensor;
        v->flags = 0;
        v->readonly =
            want->options & DLPACK_PY_WANT_LEGACY_IS_WRITABLE ? DLPACK_PY_WRITABLE : DLPACK_PY_READ_ONLY_UNKNOWN;
    }
    result = dlp_view_decide(v, import, error);
    if (result == DLP_MAKE_COPY) {
        *copy = dlp_export_new_compact(&v->tensor, v->flags, DLPACK_PY_VERSIONED, want->order == 'F' ? 'F' : 'C',
                                       want->alignment, error);
        result = *copy == NULL ? -1 : 0;
    }
    else if (result == 0 && v->tensor.strides == NULL && v->tensor.ndim > 0)
        result = dlp_view_fill_strides(v, error);
    if (result != 0)
        dlp_view_clear(v);
    return result;
}

/* Copies the data of v to copy, which becomes v's managed tensor. Deletes that of the producer. Cannot fail. */
DLP_COLD void
dlp_view_copy(dlpack_py_view *v, dlp_export *copy)
{
    void *managed = v->managed;
    const int32_t form = v->form;

    dlp_copy_detached(&copy->managed.versioned.dl_tensor, &v->tensor, v->flags);
    v->tensor = copy->managed.versioned.dl_tensor;
    v->flags = copy->managed.versioned.flags;
    v->readonly = DLPACK_PY_WRITABLE;
    v->overlaps = 0;
    v->form = DLPACK_PY_VERSIONED;
    v->managed = &copy->managed.versioned;
    dlp_delete(managed, form); /* last: a deleter may run code that looks at the view */
}

/* Refuses the name of a capsule: ValueError where the capsule was consumed, or else TypeError. Returns -1. */
DLP_COLD int
dlp_refuse_capsule(const char *name, dlpack_py_error *error)
{
    const int is_used = name != NULL && strncmp(name, "used_", 5) == 0 && dlp_form_of(name + 5) != 0;
    return dlp_fail(error, is_used ? DLPACK_PY_VALUE_ERROR : DLPACK_PY_TYPE_ERROR, "the capsule is named '%.60s'%s",
                    name == NULL ? "" : name,
                    is_used ? ": it was consumed already" : ", 'dltensor_versioned' or 'dltensor' was wanted");
}

/* Takes the tensor of a capsule into v, which is empty. Returns 0; DLP_ASK_FOR_CPU to call __dlpack__ again (C5);
 * or -1 with an exception. If not 0, the capsule owns its tensor (K4), unless its major version is unknown (K6). */
DLP_NOINLINE int
dlp_take_capsule(PyObject *capsule, const dlp_import *import, dlpack_py_view *v)
{
    dlp_export *copy = NULL;
    dlpack_py_error error;
    const char *name;
    void *managed = NULL;
    int32_t form;
    int result = -1;

    if (!PyCapsule_CheckExact(capsule))
        return dlp_raise_value(PyExc_TypeError, "__dlpack__ returned %.200U, a capsule was wanted", capsule);
    DLP_CRITICAL_SECTION(capsule); /* Nothing in here runs Python code: no other thread changes the name meanwhile. */
    name = PyCapsule_GetName(capsule);
    form = dlp_form_of(name); /* C2 */
    if (form == 0)
        (void)dlp_refuse_capsule(name, &error);
    else {
        managed = PyCapsule_GetPointer(capsule, name);
        result = dlp_view_prepare(v, managed, form, import, &copy, &error);
        if (result == 0 || result == DLP_UNKNOWN_MAJOR)
            (void)PyCapsule_SetName(capsule, DLP_USED_CAPSULE_NAME(form)); /* commit point: the tensor is ours (K4) */
    }
    DLP_CRITICAL_SECTION_END();
    if (result == 0) {
        v->managed = managed;
        if (copy != NULL)
            dlp_view_copy(v, copy);
        return 0;
    }
    if (result == DLP_UNKNOWN_MAJOR)
        dlp_delete(managed, form);
    if (result == DLP_ASK_FOR_CPU && import->obj != NULL && import->got_keywords && !import->request->has_device)
        return result;
    return dlp_raise_named(import->want, &error);
}

/* Takes a managed tensor, which is stolen, into the empty view v. Returns 0, or -1 with an exception. */
DLP_NOINLINE int
dlp_take_managed_steal(void *managed, int32_t form, const dlpack_py_want *want, const dlpack_py_request *request,
                       dlpack_py_view *v)
{
    const dlp_import import = dlp_import_make(want, request, NULL); /* cannot ask again */
    dlp_export *copy;
    dlpack_py_error error;

    if (dlp_view_prepare(v, managed, form, &import, &copy, &error) < 0) {
        dlp_delete(managed, form);
        return dlp_raise_named(import.want, &error);
    }
    v->managed = managed;
    if (copy != NULL)
        dlp_view_copy(v, copy);
    return 0;
}

/* After __dlpack__ has failed: gives an object without __dlpack__ to want->fallback, or names the argument in the
 * AttributeError (C6). Any other exception stays. Returns 0, or -1 with an exception. */
DLP_COLD int
dlp_take_fallback(const dlp_import *import, dlpack_py_view *v)
{
    const dlpack_py_want *want = import->want;
    struct DLManagedTensorVersioned *managed = NULL;
    dlp_exception missing;
    PyObject *method;
    dlpack_py_error error;

    if ((want->fallback == NULL && want->name == NULL) || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    missing = dlp_exception_save();
    method = PyObject_GetAttrString(import->obj, "__dlpack__");
    if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        if (want->fallback != NULL && want->fallback(import->obj, &managed) != 0) {
            managed = NULL;
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_SystemError, "want->fallback raised no exception");
        }
        if (managed == NULL && !PyErr_Occurred() && want->name != NULL && missing.value != NULL)
            PyErr_Format(PyExc_AttributeError, "%s: %S", want->name, missing.value);
    }
    Py_XDECREF(method);
    if (managed == NULL && !PyErr_Occurred()) { /* the object has __dlpack__, or the fallback does not know it */
        PyErr_Restore(missing.type, missing.value, missing.traceback);
        return -1;
    }
    dlp_exception_drop(&missing);
    if (managed == NULL || dlp_take_managed_steal(managed, DLPACK_PY_VERSIONED, want, import->request, v) < 0)
        return -1;
    if (import->request->copy != DLPACK_PY_COPY_NEVER || (v->flags & DLPACK_PY_FLAG_IS_COPIED) == 0)
        return 0;
    dlpack_py_release(v);
    (void)DLP_REFUSE(&error, "copy is False, and this object only offers a copy"); /* C3 */
    return dlp_raise_named(want, &error);
}

/* Finishes an import after a call of __dlpack__: takes the tensor of its result, returned, which is stolen. For pinned
 * or managed memory, may call once more, and ask for CPU memory (C5). If the call failed, returned is NULL, and
 * want->fallback may make a tensor (C6). Returns 0, or -1 with an exception. */
DLP_NOINLINE int
dlp_finish_import_steal(PyObject *returned, const dlp_import *import, dlpack_py_view *v)
{
    dlpack_py_request for_cpu;
    dlp_import again;
    int result;

    if (returned == NULL)
        return dlp_take_fallback(import, v);
    result = dlp_take_capsule(returned, import, v);
    dlp_decref_keeping_error(returned); /* (K2) */
    if (result != DLP_ASK_FOR_CPU)
        return result;
    for_cpu = *import->request;
    memset(&for_cpu.stream, 0, sizeof(for_cpu.stream));
    for_cpu.has_device = 1; /* then dlp_take_capsule returns 0 or -1 */
    for_cpu.device = dlp_make_device(kDLCPU, 0);
    again = *import;
    again.request = &for_cpu;
    return dlp_finish_import_steal(dlp_call_dlpack(&again), &again, v);
}

/* ---- Consuming ---------------------------------------------------------- */

#ifdef DLPACK_EXCHANGE_H /* dlpack_exchange.h defines these */
static inline int
dlp_take_by_table(const dlp_import *import, const dlpack_py_operations *operations, const void **table,
                  dlpack_py_view *v);
static inline int
dlp_has_table(dlp_state *state, PyObject *obj);
static int
dlp_consume_cached(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);
#else
#  define dlp_take_by_table(import, operations, table, v) DLP_CALL_METHOD
#  define dlp_has_table(state, obj) 0
#  define dlp_consume_cached(obj, want, v) dlpack_py_consume_request(obj, NULL, want, v)
#endif

/* As dlpack_py_consume, with a request. The view meets request->device, where has_device is 1, and request->copy (C3).
 * The stream is only passed to __dlpack__: dlpack_device_consume orders streams. max_version is ignored. */
DLP_NOINLINE DLP_MUST_CHECK int
dlpack_py_consume_request(PyObject *obj, const dlpack_py_request *request, const dlpack_py_want *want,
                          dlpack_py_view *v)
{
    dlp_import import = dlp_import_make(want, request, PyCapsule_CheckExact(obj) ? NULL : obj);
    dlpack_py_error error;
    int result;

    dlp_view_clear(v);
    if (dlp_check_want(import.want, &error) < 0)
        return dlp_raise_named(import.want, &error);
    if (import.obj == NULL)
        return dlp_take_capsule(obj, &import, v);
    result = dlp_take_by_table(&import, NULL, NULL, v);
    if (result != DLP_CALL_METHOD)
        return result;
    return dlp_finish_import_steal(dlp_call_dlpack(&import), &import, v);
}

/* dlpack_py_consume: take the tensor that obj offers, if it meets the requirements.
 *
 * obj     an object with __dlpack__, or a DLPack capsule of either form (C6)
 * want    the requirements; NULL: any tensor that the CPU can read
 * v       out: on success owns the tensor until dlpack_py_release(v)
 *
 * Returns 0, or -1 with BufferError (a requirement is not met: C9), AttributeError (no __dlpack__), TypeError (the
 * method returned no DLPack capsule: C6), ValueError (the capsule was consumed before: K4), SystemError (requirements
 * contradict each other), MemoryError, an error of dlpack_py_init or of the producer. On -1 the view is empty, and a
 * capsule that was not taken still owns its tensor (K1). */
static inline DLP_MUST_CHECK int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    return dlp_consume_cached(obj, want, v);
}

/* Read a dtype object with __dlpack_data_type__ (data-apis/array-api#972), as Paddle and tvm-ffi have. Returns 0, or -1
 * with AttributeError (no such method), BufferError (an impossible dtype: C8), TypeError or the object's exception. */
DLP_COLD int
dlpack_py_parse_dtype(PyObject *obj, uint32_t *dtype)
{
    int32_t n[3] = {0, 0, 0}; /* code, bits, lanes */
    PyObject *triple = PyObject_CallMethod(obj, "__dlpack_data_type__", NULL);
    int result = triple == NULL ? -1 : dlp_parse_integers("dtype is %.200U, three integers were wanted", triple, n, 3);
    dlpack_py_error error;

    if (result == 0 && (((n[0] | n[1]) & ~0xff) != 0 || (n[2] & ~0xffff) != 0))
        result = dlp_raise_value(PyExc_BufferError, "dtype is %.200U, which is no dtype of DLPack", triple);
    Py_XDECREF(triple);
    *dtype = DLPACK_PY_DTYPE((uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2]);
    if (result == 0 && dlp_check_dtype(dlpack_py_cpu_tensor(NULL, *dtype, 0, NULL, NULL).dtype, &error) < 0)
        result = dlpack_py_raise(&error);
    return result;
}

/* Read a device: "cpu", a tuple (type, id), or an object whose __dlpack_device__ returns such a tuple. Returns 0, or
 * -1 with TypeError (also in place of AttributeError), ValueError (another name) or the object's exception. */
DLP_NOINLINE int
dlpack_py_parse_device(PyObject *obj, DLDevice *device)
{
    static const char wanted[] = "device is %.200U, 'cpu', a tuple of two integers or a device was wanted";
    int32_t pair[2] = {kDLCPU, 0};
    PyObject *returned = NULL;
    int result = 0;

    if (PyUnicode_Check(obj) && PyUnicode_CompareWithASCIIString(obj, "cpu") != 0)
        return dlp_raise_value(PyExc_ValueError, "device is %.200U, 'cpu' was wanted", obj);
    if (!PyUnicode_Check(obj) && !PyTuple_Check(obj) &&
        (returned = PyObject_CallMethod(obj, "__dlpack_device__", NULL)) == NULL)
        return PyErr_ExceptionMatches(PyExc_AttributeError) ? dlp_raise_value(PyExc_TypeError, wanted, obj) : -1;
    if (!PyUnicode_Check(obj))
        result = dlp_parse_integers(wanted, returned != NULL ? returned : obj, pair, 2);
    Py_XDECREF(returned);
    *device = dlp_make_device(pair[0], pair[1]);
    return result;
}

/* Reads device= and copy= of from_dlpack; NULL: not given (C3). */
static inline int
dlp_parse_device_and_copy(PyObject *device, PyObject *copy, dlpack_py_request *request)
{
    if (dlpack_py_parse_request_obj_args(NULL, NULL, NULL, copy, request) < 0)
        return -1;
    request->has_device = device != NULL && device != Py_None;
    return request->has_device ? dlpack_py_parse_device(device, &request->device) : 0;
}

/* As dlpack_py_from_dlpack, from objects; device and copy may be NULL for "not given". */
static inline DLP_MUST_CHECK int
dlpack_py_from_dlpack_obj_args(PyObject *x, PyObject *device, PyObject *copy, const dlpack_py_want *want,
                               dlpack_py_view *v)
{
    dlpack_py_request request;
    dlp_view_clear(v);
    return dlp_parse_device_and_copy(device, copy, &request) < 0 ? -1 : dlpack_py_consume_request(x, &request, want, v);
}

/* dlpack_py_from_dlpack: read the arguments of a library's from_dlpack(x, /, *, device=None, copy=None), as
 * METH_FASTCALL | METH_KEYWORDS passes them, and consume x into a view. device: None or as dlpack_py_parse_device reads
 * it (C3). Returns as dlpack_py_consume, and -1 with TypeError or ValueError for malformed arguments. */
static inline DLP_MUST_CHECK int
dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                      dlpack_py_view *v)
{
    PyObject *values[2] = {NULL, NULL}; /* copy, device */
    if (nargs == 1 && kwnames == NULL)  /* the usual call */
        return dlpack_py_consume(args[0], want, v);
    dlp_view_clear(v);
    if (dlp_match_keywords("from_dlpack", 1, DLP_STR_COPY, 2, args, nargs, kwnames, values) < 0)
        return -1;
    return dlpack_py_from_dlpack_obj_args(args[0], values[1], values[0], want, v);
}

/* Does obj offer a tensor? Returns 1 or 0; a request may still be refused. Keeps the current exception; an error of the
 * look-up other than AttributeError is reported as unraisable. */
static inline int
dlpack_py_has_tensor(PyObject *obj)
{
    dlp_exception saved;
    dlp_state *state;
    PyObject *method, *place = PyType_Check(obj) ? (PyObject *)Py_TYPE(obj) : obj; /* not its instances' method */
    int offered;

    if (PyCapsule_CheckExact(obj)) {
        DLP_CRITICAL_SECTION(obj); /* the name changes when the capsule is consumed */
        offered = dlp_form_of(PyCapsule_GetName(obj)) != 0;
        DLP_CRITICAL_SECTION_END();
        return offered;
    }
    saved = dlp_exception_save();
    state = dlp_state_get();
    method = state == NULL ? NULL : PyObject_GetAttr(place, state->objects[DLP_STR_DLPACK]);
    if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    offered = (method != NULL && method != Py_None) || (!PyErr_Occurred() && dlp_has_table(state, obj));
    Py_XDECREF(method);
    dlp_exception_restore(&saved);
    return offered;
}

/* ---- Objects for memory without a type ---------------------------------- */

/* The data of an object that owns a view and has __dlpack__ and __dlpack_device__. */
typedef struct dlp_object {
    dlpack_py_view view;
    int is_exported; /* dlpack_py.Result only: 1: an export holds the object, so its tensor is not given away */
} dlp_object;

static inline int
dlp_object_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    dlp_object *object = DLP_OBJECT(self);
    (void)request;
    *offer = dlpack_py_offer_view(self, &object->view.tensor, &object->view);
    if (object->view.tensor.device.device_type != kDLCPU)
        offer->options |= DLP_OFFER_ANY_DEVICE;
    return 0;
}

static inline int
dlp_object_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return dlpack_py_traverse(&DLP_OBJECT(self)->view, visit, arg);
}

static inline void
dlp_object_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    DLP_TRASHCAN_BEGIN(self, dlp_object_dealloc)
    dlpack_py_release(&DLP_OBJECT(self)->view);
    PyObject_GC_Del(self);
    Py_DECREF(type);
    DLP_TRASHCAN_END
}

DLPACK_PY_DESCRIBED(dlp_object, dlp_object_describe);

/* The first slots of each type of dlp_objects. */
#define DLP_OBJECT_SLOTS                                       \
    {Py_tp_dealloc, (void *)(uintptr_t)dlp_object_dealloc},    \
    {                                                          \
        Py_tp_traverse, (void *)(uintptr_t)dlp_object_traverse \
    }

/* A new type of dlp_objects, which Python code cannot make; NULL with an exception. */
DLP_COLD PyObject *
dlp_object_type_from_slots(const char *name, PyType_Slot *slots)
{
    PyType_Spec spec = {name, DLP_OBJECT_SIZE, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
    spec.flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
    return PyType_FromSpec(&spec);
#else /* before 3.10 */
    PyObject *type = PyType_FromSpec(&spec);
    if (type != NULL)
        ((PyTypeObject *)type)->tp_new = NULL;
    return type;
#endif
}

/* A new dlp_object. The first use makes its type by type_new, and keeps it in *type. Steals v, also where it fails. */
DLP_NOINLINE PyObject *
dlp_object_new_steal(dlp_atomic *type, PyObject *(*type_new)(void), dlpack_py_view *v)
{
    PyObject *made = DLP_LOAD(type) != 0 ? NULL : type_new();
    PyObject *object = NULL;

    if (made != NULL && !DLP_COMPARE_EXCHANGE(type, 0, (dlp_atomic)made))
        Py_DECREF(made);                          /* another thread was first */
    if (DLP_LOAD(type) != 0 && !PyErr_Occurred()) /* else type_new failed, and another thread may have made the type */
        object = PyObject_GC_New(PyObject, (PyTypeObject *)DLP_LOAD(type));
    if (object == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    DLP_OBJECT(object)->is_exported = 0;
    dlpack_py_move(&DLP_OBJECT(object)->view, v);
    PyObject_GC_Track(object);
    return object;
}

/* The type of dlpack_py_object_steal. */
DLP_COLD PyObject *
dlp_object_type_new(void)
{
    static PyMethodDef methods[] = {DLPACK_PY_METHODS(dlp_object_dlpack, dlp_object_dlpack_device),
                                    {NULL, NULL, 0, NULL}};
    PyType_Slot slots[] = {DLP_OBJECT_SLOTS, {Py_tp_methods, methods}, {0, NULL}};
    return dlp_object_type_from_slots("dlpack_py.Object", slots);
}

/* dlpack_py_object_steal: an object with __dlpack__ and __dlpack_device__ for memory that has no type of its own.
 *
 * managed   a DLManagedTensorVersioned or DLManagedTensor, as form says, on any device, whose data is ready: no work is
 *           pending. Stolen, also on failure: its deleter runs after the object and all its exports are gone
 * form      DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY; data of a legacy tensor counts as read-only (C7)
 *
 * Returns a new object, which can be exported as often as asked; NULL with BufferError (managed is NULL, is malformed:
 * D8, or has an unknown major version: K6), MemoryError or an error of dlpack_py_init. */
DLP_NOINLINE PyObject *
dlpack_py_object_steal(void *managed, int32_t form)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlp_state *state;
    dlpack_py_view v;

    if (managed == NULL)
        return dlpack_py_capsule_steal(NULL, form); /* raises BufferError */
    state = dlp_state_get();
    want.device = DLPACK_PY_ANY_DEVICE;
    want.alignment = 1;
    dlp_view_clear(&v);
    if (state == NULL)
        dlp_delete(managed, form);
    if (state == NULL || dlp_take_managed_steal(managed, form, &want, NULL, &v) < 0)
        return NULL;
    return dlp_object_new_steal(&state->types[DLP_OBJECT_TYPE], dlp_object_type_new, &v);
}

DLP_QUIET_END
#endif /* DLPACK_PY_AVAILABLE */
#endif /* DLPACK_PY_H */

/* The clauses that the headers name. *: decided by this library, not by DLPack or the array API standard.
 * D1   data + byte_offset is the first element. Where data is an address, this header exports byte_offset 0. *
 * D2   Consumers must not expect that data is aligned to 256 bytes. This header aligns its own memory to 64 bytes. *
 * D3   Rank 0 is one element. Without elements a producer exports data NULL, and a consumer accepts any data.
 * D4   Strides count elements. A producer fills them; a consumer takes NULL as row-major.
 * D5   Strides of dimensions of size 1, and of tensors without elements, carry no meaning.
 * D6   Sub-byte elements are packed, lowest bit first, unless the flag says that each lane has a byte.
 * D8   Rank (64 at most *), extents, pointers, sizes and strides are checked before anything is read.
 * D9   CPU, pinned and managed memory has device id 0. This header accepts any id. *
 * D10  Only the machine's byte order can be described.
 * D11  Negative strides are exported, unless the author chose that they are refused or copied. *
 * P1   The arguments of __dlpack__ are keyword-only, and are matched by value.
 * P2   max_version 1.0 or newer gets a versioned capsule; an older max_version, or None, gets a legacy capsule.
 * P3   Read-only and padded data are flagged. A legacy capsule gets read-only data only as a copy, padded never.
 * P4   copy=True copies, copy=False never does, None copies where it must. A copy is flagged, compact and writable. *
 * P5   dl_device is the device of the data, or the CPU; another one is BufferError.
 * P6   CPU memory has no streams: None is accepted, and -1. *
 * P7   Data that cannot be exported is BufferError, a bad argument TypeError or ValueError.
 * P8   __dlpack_device__ and the capsule say the same device.
 * P9   The memory lives until the deleter has run.
 * K1   A capsule is named "dltensor_versioned" or "dltensor", then "used_...". Unconsumed, it calls the deleter.
 * K2   Destructors and deleters keep the current exception.
 * K3   A deleter may be NULL.
 * K4   A consumer checks first. Then it renames the capsule, owns the tensor, and later calls the deleter once.
 * K5   A deleter may come on any thread at any time, after the interpreter's end or os.fork. Limits: dlp_thread_state.
 * K6   A tensor of an unknown major version is taken, and deleted unread.
 * K7   A deleter frees its struct, with shape and strides.
 * K8   manager_ctx is set: with NULL, Paddle 3.3 calls no deleter. *
 * C1   After a TypeError, __dlpack__ is called again with stream alone. With copy=False this is BufferError. *
 * C2   The version of the tensor and the name of the capsule are checked: a producer may answer with the other form.
 * C3   copy and dl_device are passed only when asked for. The consumer copies if copy=True may have been ignored. *
 * C4   A keyword is passed only if needed: no stream for the CPU. __dlpack_device__ is asked before a stream is chosen.
 * C5   An unsupported device is BufferError. Pinned and managed memory is asked for as CPU memory. *
 * C6   __dlpack__ is looked up as x.__dlpack__() does, and returns a capsule. A capsule may stand for an object. *
 * C7   Read-only data stays read-only. A legacy capsule has no read-only flag: its data counts as read-only. *
 * C8   Unknown flags and dtype codes are kept; impossible dtypes are refused. *
 * C9   Requirements are checked, and the error names the wrong value and what was wanted. *
 * C10  A view has the same fields for a versioned and for a legacy capsule. *
 * S1   The producer orders its work before the consumer's stream, without blocking the host.
 * S2   On CUDA None or 1 is the legacy default stream, 2 the per-thread default stream, 0 is refused.
 * S3   On ROCm None or 0 is the default stream, 1 and 2 are refused.
 * S4   On one common stream no event is recorded and no stream waits, except on the per-thread default stream. *
 * S5   A call leaves the current device as it was, also where the call fails. *
 * S6   In a graph capture nothing is called that is illegal in one. A wait for work outside of it is BufferError. *
 * S7   A stream handle has the pointer's full width.
 * S8   No function of a device's runtime is called with the GIL held, except while the interpreter is ending. *
 * S9   A failure of the runtime is an exception with the runtime's text. No error is left in the runtime. *
 * S10  The host waits for pending work before it reads pinned or managed memory. *
 * X1   The exchange table is a capsule on the type.
 * X2   A table counts only with major 1 in its chain, with all functions, and where no class overrides __dlpack__. *
 * X3   A borrowed tensor has no read-only and no padded flag. Shape and strides in temporary memory are not lent. *
 * X4   Functions of a table do not synchronize. A consumer orders its stream after the one that the table names.
 * X5   The allocator of a table reports through SetError, and needs no thread state.
 * X6   A table's managed_tensor_to_py_object_no_sync steals its argument; NULL arguments are errors.
 * X7   A table refuses objects of another type, and serves those of derived types. *
 * X8   Results of foreign functions are initialized before the call and validated after it.
 * X9   PyTorch 2.13's table ignores conjugation: is_conj() is asked. Its table and its __dlpack__ ignore negation. *
 * G1   Interpreters share no Python object. *
 * G2   Copies and versions of this header in one process share no data. *
 */

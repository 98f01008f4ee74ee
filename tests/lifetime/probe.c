/* Exports tensors of each kind, calls their deleters on threads at a chosen time, and checks what is left when the
 * process ends. Compiled three times: with the fast paths, without them, and for the limited API. */
#include <Python.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int exit_wait = 10;

#include "../counted_blocks.h"
#define DLPACK_PY_EXIT_WAIT exit_wait
#include "dlpack_exchange.h"

#include "drop.h"

#ifndef PROBE_INIT
#  define PROBE_INIT PyInit_probe
#endif

/* Exit statuses of a child process for errors that Python cannot report. */
#define EXIT_THREAD_ENDED 71 /* a thread was ended while it was in a deleter */
#define EXIT_THREAD_HANGS 72
#define EXIT_NOT_SETTLED 73

/* Windows ends all other threads before it calls the exit functions of a library, and starts no more. */
#ifdef _WIN32
#  define EXIT_ENDS_THREADS 1
#else
#  define EXIT_ENDS_THREADS 0
#endif

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(intptr_t)(function))

static void
stop(int status, const char *text)
{
    const ssize_t written = write(2, text, (unsigned int)strlen(text));
    (void)written;
    _exit(status);
}

static void
pause_for(double seconds)
{
    if (seconds > 0)
        usleep((useconds_t)(seconds * 1e6));
}

/* ---- An owner: an array of one element --------------------------------- */

typedef struct array {
    PyObject_HEAD
    dlpack_py_embedded tensors;
    double value;
    int64_t shape[1], strides[1];
} array;

static atomic_int holds;       /* whether a thread holds the GIL in hold() */
static atomic_long trespasses; /* owners that were deallocated on another thread while hold() held the GIL */
static pthread_t holder;

static PyObject *
array_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc alloc = (allocfunc)(intptr_t)PyType_GetSlot(type, Py_tp_alloc);
    array *self = (array *)alloc(type, 0);
    DLTensor t;

    (void)args;
    (void)kwargs;
    if (self == NULL)
        return NULL;
    self->shape[0] = self->strides[0] = 1;
    t = dlpack_py_cpu_tensor(&self->value, DLPACK_PY_FLOAT64, 1, self->shape, self->strides);
    if (dlpack_py_embed(&self->tensors, (PyObject *)self, &t, 0) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
array_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)(intptr_t)PyType_GetSlot(type, Py_tp_free);

    if (atomic_load(&holds) && !pthread_equal(holder, pthread_self()))
        atomic_fetch_add(&trespasses, 1);
    release(self);
    Py_DECREF(type);
}

static int
array_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    (void)request;
    *offer = dlpack_py_offer_embedded(&((array *)self)->tensors);
    return 0;
}

static PyObject *
array_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return dlpack_py_produce_described(self, array_describe, args, nargs, kwnames);
}

static PyMethodDef array_methods[] = {
    DLPACK_PY_METHODS(array_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};
static PyType_Slot array_slots[] = {
    {Py_tp_new, SLOT(array_new)},
    {Py_tp_dealloc, SLOT(array_dealloc)},
    {Py_tp_methods, array_methods},
    {0, NULL},
};
static PyType_Spec array_spec = {"probe.Array", sizeof(array), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                 array_slots};

/* ---- A consumer --------------------------------------------------------- */

typedef struct consumer {
    PyObject_HEAD
    dlpack_py_view view;
} consumer;

static PyObject *
consumer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc alloc = (allocfunc)(intptr_t)PyType_GetSlot(type, Py_tp_alloc);
    consumer *self;
    PyObject *source;

    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O", &source))
        return NULL;
    self = (consumer *)alloc(type, 0);
    if (self != NULL && dlpack_py_consume(source, NULL, &self->view) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void
consumer_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)(intptr_t)PyType_GetSlot(type, Py_tp_free);

    dlpack_py_release(&((consumer *)self)->view);
    release(self);
    Py_DECREF(type);
}

static PyType_Slot consumer_slots[] = {
    {Py_tp_new, SLOT(consumer_new)},
    {Py_tp_dealloc, SLOT(consumer_dealloc)},
    {0, NULL},
};
static PyType_Spec consumer_spec = {"probe.Consumer", sizeof(consumer), 0, Py_TPFLAGS_DEFAULT, consumer_slots};

/* ---- Tensors ------------------------------------------------------------ */

static const char *const forms[] = {"versioned", "legacy", "embedded", "embedded legacy", NULL};

static int
find(const char *name, const char *const *names)
{
    int i;
    for (i = 0; names[i] != NULL; i++) {
        if (strcmp(name, names[i]) == 0)
            return i;
    }
    PyErr_SetString(PyExc_ValueError, name);
    return -1;
}

/* capsule(owner, form="versioned"): the capsule of a tensor of the owner. For an embedded form, owner is an Array. */
static PyObject *
make_capsule(PyObject *module, PyObject *args)
{
    static double value;
    static const int64_t shape[1] = {1};
    const DLTensor t = dlpack_py_cpu_tensor(&value, DLPACK_PY_FLOAT64, 1, shape, NULL);
    dlpack_py_offer offer;
    dlpack_py_request request;
    const char *form = "versioned";
    PyObject *owner;
    int which;

    (void)module;
    if (!PyArg_ParseTuple(args, "O|s", &owner, &form) || (which = find(form, forms)) < 0)
        return NULL;
    offer = which < 2 ? dlpack_py_offer_make(owner, &t, 0) : dlpack_py_offer_embedded(&((array *)owner)->tensors);
    memset(&request, 0, sizeof(request));
    request.max_version.major = which % 2 == 0;
    return dlpack_py_answer(&offer, &request);
}

static PyObject *
take(PyObject *module, PyObject *capsule)
{
    const uintptr_t tensor = tensor_take(capsule);
    (void)module;
    return tensor == 0 ? NULL : PyLong_FromSize_t(tensor);
}

/* give(tensor): a new capsule that holds the tensor. */
static PyObject *
give(PyObject *module, PyObject *number)
{
    const uintptr_t tensor = PyLong_AsSize_t(number);
    (void)module;
    if (PyErr_Occurred())
        return NULL;
    return (tensor & 1) != 0 ? dlpack_py_capsule_steal((void *)(tensor - 1), DLPACK_PY_LEGACY)
                             : dlpack_py_capsule_steal((void *)tensor, DLPACK_PY_VERSIONED);
}

/* give_object(tensor): an object from dlpack_py_object_steal that owns the tensor. */
static PyObject *
give_object(PyObject *module, PyObject *number)
{
    const uintptr_t tensor = PyLong_AsSize_t(number);
    (void)module;
    if (PyErr_Occurred())
        return NULL;
    return (tensor & 1) != 0 ? dlpack_py_object_steal((void *)(tensor - 1), DLPACK_PY_LEGACY)
                             : dlpack_py_object_steal((void *)tensor, DLPACK_PY_VERSIONED);
}

static atomic_long freed;

static void
count_freed(void *context)
{
    (void)context;
    atomic_fetch_add(&freed, 1);
}

/* wrap(): a tensor without a Python owner. */
static PyObject *
wrap(PyObject *module, PyObject *unused)
{
    static double value;
    static const int64_t shape[1] = {1};
    const DLTensor t = dlpack_py_cpu_tensor(&value, DLPACK_PY_FLOAT64, 1, shape, NULL);
    (void)module;
    (void)unused;
    return PyLong_FromVoidPtr(dlpack_py_wrap(&t, 0, &value, count_freed));
}

static void
rude_deleter(DLManagedTensorVersioned *managed)
{
    PyErr_SetString(PyExc_RuntimeError, "left behind by a deleter");
    free(managed);
}

/* rude_capsule(): a capsule of another library, whose deleter sets an exception. */
static PyObject *
rude_capsule(PyObject *module, PyObject *unused)
{
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)calloc(1, sizeof(*managed));
    (void)module;
    (void)unused;
    if (managed == NULL)
        return PyErr_NoMemory();
    managed->version.major = 1;
    managed->dl_tensor.device.device_type = kDLCPU;
    managed->dl_tensor.dtype = dlpack_py_cpu_tensor(NULL, DLPACK_PY_INT8, 0, NULL, NULL).dtype;
    managed->dl_tensor.data = managed;
    managed->deleter = rude_deleter;
    return dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
}

/* Moves the tensors of a Python list to a C array. */
static uintptr_t *
tensors_take(PyObject *list, size_t *count)
{
    const Py_ssize_t size = PyList_Size(list);
    uintptr_t *tensors;
    Py_ssize_t i;

    if (size < 0)
        return NULL;
    tensors = (uintptr_t *)malloc((size_t)size * sizeof(*tensors) + 1);
    for (i = 0; i < size && tensors != NULL; i++)
        tensors[i] = PyLong_AsSize_t(PyList_GetItem(list, i));
    if (PyErr_Occurred() || PyList_SetSlice(list, 0, size, NULL) < 0) {
        free(tensors);
        return NULL;
    }
    *count = (size_t)size;
    return tensors;
}

/* Calls a deleter on this thread. detached: without the GIL; raising: with an exception in flight. */
static PyObject *
drop_here(PyObject *number, int detached, int raising)
{
    const uintptr_t tensor = PyLong_AsSize_t(number);
    if (PyErr_Occurred())
        return NULL;
    if (raising)
        PyErr_SetString(PyExc_ValueError, "in flight");
    if (detached) {
        Py_BEGIN_ALLOW_THREADS
        tensor_drop(tensor);
        Py_END_ALLOW_THREADS
    }
    else
        tensor_drop(tensor);
    if (raising)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
drop(PyObject *module, PyObject *number)
{
    (void)module;
    return drop_here(number, 0, 0);
}

static PyObject *
drop_detached(PyObject *module, PyObject *number)
{
    (void)module;
    return drop_here(number, 1, 0);
}

static PyObject *
drop_while_raising(PyObject *module, PyObject *number)
{
    (void)module;
    return drop_here(number, 0, 1);
}

static PyObject *
drop_detached_while_raising(PyObject *module, PyObject *number)
{
    (void)module;
    return drop_here(number, 1, 1);
}

/* Removes the only item of a list, and drops the item with an exception in flight. */
static PyObject *
pop_while_raising(PyObject *module, PyObject *list)
{
    PyObject *object = PyList_GetItem(list, 0);
    (void)module;
    if (object == NULL)
        return NULL;
    Py_INCREF(object);
    if (PyList_SetSlice(list, 0, 1, NULL) < 0)
        return NULL;
    PyErr_SetString(PyExc_ValueError, "in flight");
    Py_DECREF(object);
    return NULL;
}

/* ---- Threads that Python did not create -------------------------------- */

/* What a thread has done with Python before it calls the first deleter. */
static const char *const pasts[] = {
    "none",   /* nothing */
    "former", /* PyGILState_Ensure and Release */
    "kept",   /* PyGILState_Ensure, and released the GIL */
    "inside", /* attached to the interpreter that started the thread, until all deleters have run */
    NULL,
};

typedef struct thread {
    struct thread *next;
    pthread_t id;
    PyInterpreterState *interpreter;
    uintptr_t *tensors;
    size_t count;
    double pause;
    long process; /* the process that started the thread: a forked child has none of its parent's threads */
    int past;
    atomic_int ready, done;
} thread;

static thread *threads;
static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long begun, ended; /* calls of deleters on threads */

static void
thread_was_ended(void *unused)
{
    (void)unused;
    stop(EXIT_THREAD_ENDED, "a thread was ended inside of a deleter\n");
}

static PyThreadState *
thread_enter(thread *self)
{
    if (self->past == 1)
        PyGILState_Release(PyGILState_Ensure());
    else if (self->past == 2) {
        (void)PyGILState_Ensure();
        (void)PyEval_SaveThread();
    }
    return self->past == 3 ? PyThreadState_New(self->interpreter) : NULL;
}

static void
thread_drop(thread *self, PyThreadState *inside)
{
    size_t i;
    for (i = 0; i < self->count; i++) {
        pause_for(self->pause);
        atomic_fetch_add(&begun, 1);
        tensor_drop(self->tensors[i]);
        atomic_fetch_add(&ended, 1);
    }
    if (inside != NULL) {
        PyEval_RestoreThread(inside);
        PyThreadState_Clear(inside);
        (void)PyEval_SaveThread();
        PyThreadState_Delete(inside);
    }
}

static void *
thread_main(void *arg)
{
    thread *self = (thread *)arg;
    PyThreadState *const inside = thread_enter(self);

    atomic_store(&self->ready, 1);
    pthread_cleanup_push(thread_was_ended, NULL);
    thread_drop(self, inside);
    pthread_cleanup_pop(0);
    free(self->tensors);
    atomic_store(&self->done, 1);
    return NULL;
}

static thread *
thread_start(uintptr_t *tensors, size_t count, int past, double pause)
{
    thread *self = (thread *)calloc(1, sizeof(*self));
    if (self == NULL)
        return NULL;
    self->interpreter = past == 3 ? DLP_INTERPRETER() : NULL;
    self->tensors = tensors;
    self->count = count;
    self->past = past;
    self->pause = pause;
    self->process = (long)getpid();
    if (pthread_create(&self->id, NULL, thread_main, self) != 0) {
        free(self);
        return NULL;
    }
    return self;
}

static void
thread_join(thread *self, double seconds)
{
    if (self->process == (long)getpid()) {
        for (; seconds > 0 && !atomic_load(&self->done); seconds -= 0.001)
            pause_for(0.001);
        if (!atomic_load(&self->done))
            stop(EXIT_THREAD_HANGS, "a thread hangs in a deleter\n");
        pthread_join(self->id, NULL);
    }
    free(self);
}

/* start(tensors, past="none", pause=0): a thread calls the deleters one by one, with a pause before each call. */
static PyObject *
start(PyObject *module, PyObject *args)
{
    const char *past = "none";
    PyObject *list;
    double pause = 0;
    uintptr_t *tensors;
    size_t count;
    thread *self;
    int which;

    (void)module;
    if (!PyArg_ParseTuple(args, "O|sd", &list, &past, &pause) || (which = find(past, pasts)) < 0 ||
        (tensors = tensors_take(list, &count)) == NULL)
        return NULL;
    self = thread_start(tensors, count, which, pause);
    if (self == NULL)
        return PyErr_NoMemory();
    pthread_mutex_lock(&threads_lock);
    self->next = threads;
    threads = self;
    pthread_mutex_unlock(&threads_lock);
    Py_BEGIN_ALLOW_THREADS
    while (!atomic_load(&self->ready))
        sched_yield();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static void
join_all(void)
{
    thread *first, *next;
    pthread_mutex_lock(&threads_lock);
    first = threads;
    threads = NULL;
    pthread_mutex_unlock(&threads_lock);
    for (; first != NULL; first = next) {
        next = first->next;
        thread_join(first, 20);
    }
}

static PyObject *
join(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    Py_BEGIN_ALLOW_THREADS
    join_all();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* hold(drops, seconds): holds the GIL until `drops` calls of deleters have begun on threads, and `seconds` longer. */
static PyObject *
hold(PyObject *module, PyObject *args)
{
    long drops;
    double seconds, limit = 10;

    (void)module;
    if (!PyArg_ParseTuple(args, "ld", &drops, &seconds))
        return NULL;
    holder = pthread_self();
    atomic_store(&holds, 1);
    for (; atomic_load(&begun) < drops && limit > 0; limit -= 0.0001)
        pause_for(0.0001);
    pause_for(seconds);
    atomic_store(&holds, 0);
    Py_RETURN_NONE;
}

/* ---- After the interpreter --------------------------------------------- */

static uintptr_t *late[2]; /* tensors to drop: when the last interpreter is gone, and when the process exits */
static size_t late_count[2];
static long blocks_allowed = -1, freed_expected;

static void
drop_late(int when)
{
    const int alone = when == 1 && EXIT_ENDS_THREADS;
    const size_t count = late_count[when], here = alone ? count : count - count / 2;
    uintptr_t *tensors = late[when], *rest = (uintptr_t *)malloc(count * sizeof(*rest) + 1);
    thread *other;
    size_t i;

    late_count[when] = 0;
    if (count == 0 || rest == NULL) {
        free(rest);
        return;
    }
    for (i = 0; i < here; i++) /* half of the tensors on this thread, the rest on another thread */
        tensor_drop(tensors[i]);
    memcpy(rest, tensors + here, (count - here) * sizeof(*rest));
    free(tensors);
    if (alone)
        free(rest);
    other = alone ? NULL : thread_start(rest, count - here, 0, 0);
    if (other != NULL)
        thread_join(other, 20);
}

static void
at_gone(void)
{
    drop_late(0);
}

static void
at_exit(void)
{
    char text[80];
    drop_late(1);
    if (blocks_allowed < 0)
        return;
    join_all();
    if (atomic_load(&blocks) > blocks_allowed || atomic_load(&freed) != freed_expected) {
        snprintf(text, sizeof(text), "%ld blocks are left, free_fn was called %ld times\n", atomic_load(&blocks),
                 atomic_load(&freed));
        stop(EXIT_NOT_SETTLED, text);
    }
}

/* later(tensors, when): drops the tensors when the interpreter is "gone", or at the "exit" of the process. */
static PyObject *
later(PyObject *module, PyObject *args)
{
    static const char *const whens[] = {"gone", "exit", NULL};
    const char *name;
    PyObject *list;
    int when;

    (void)module;
    if (!PyArg_ParseTuple(args, "Os", &list, &name) || (when = find(name, whens)) < 0)
        return NULL;
    late[when] = tensors_take(list, &late_count[when]);
    if (late[when] == NULL || (when == 0 && Py_AtExit(at_gone) < 0))
        return NULL;
    Py_RETURN_NONE;
}

/* settle(blocks=0, freed=0): checks at the exit of the process that all threads are done, that at most `blocks` blocks
 * are left, and that `freed` wrapped tensors were freed. */
static PyObject *
settle(PyObject *module, PyObject *args)
{
    blocks_allowed = freed_expected = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "|ll", &blocks_allowed, &freed_expected))
        return NULL;
    if (EXIT_ENDS_THREADS && Py_AtExit(join_all) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* ---- The rest ----------------------------------------------------------- */

static PyObject *
counts(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return Py_BuildValue("{s:l,s:l,s:l,s:l,s:l}", "blocks", atomic_load(&blocks), "begun", atomic_load(&begun), "ended",
                         atomic_load(&ended), "trespasses", atomic_load(&trespasses), "freed", atomic_load(&freed));
}

static PyObject *
state(PyObject *module, PyObject *unused)
{
    dlp_state *found = dlp_state_get();
    (void)module;
    (void)unused;
    return found == NULL ? NULL : PyLong_FromVoidPtr(found);
}

/* displace_state(): empties this interpreter's slot of the cache, as another interpreter with the same slot does. */
static PyObject *
displace_state(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    DLP_STORE(DLP_STATE_SLOT(DLP_INTERPRETER()), 0);
    Py_RETURN_NONE;
}

static PyObject *
set_exit_wait(PyObject *module, PyObject *seconds)
{
    (void)module;
    atomic_store(&exit_wait, (int)PyLong_AsLong(seconds));
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* states(): how many states the cache of this file holds; it drops states of interpreters that have ended. */
static PyObject *
states(PyObject *module, PyObject *unused)
{
    long count = 0;
    size_t i;
    (void)module;
    (void)unused;
    for (i = 0; i < sizeof(dlp_states) / sizeof(dlp_states[0]); i++)
        count += DLP_LOAD(&dlp_states[i]) != 0;
    return PyLong_FromLong(count);
}

#ifndef _WIN32
/* fork_unseen(): calls fork() without the hooks of Python. */
static PyObject *
fork_unseen(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong((long)fork());
}
#endif

static PyMethodDef functions[] = {
    {"capsule", make_capsule, METH_VARARGS, NULL},
    {"counts", counts, METH_NOARGS, NULL},
    {"displace_state", displace_state, METH_NOARGS, NULL},
    {"drop", drop, METH_O, NULL},
    {"drop_detached", drop_detached, METH_O, NULL},
    {"drop_detached_while_raising", drop_detached_while_raising, METH_O, NULL},
    {"drop_while_raising", drop_while_raising, METH_O, NULL},
#ifndef _WIN32
    {"fork_unseen", fork_unseen, METH_NOARGS, NULL},
#endif
    {"give", give, METH_O, NULL},
    {"give_object", give_object, METH_O, NULL},
    {"hold", hold, METH_VARARGS, NULL},
    {"join", join, METH_NOARGS, NULL},
    {"later", later, METH_VARARGS, NULL},
    {"pop_while_raising", pop_while_raising, METH_O, NULL},
    {"rude_capsule", rude_capsule, METH_NOARGS, NULL},
    {"set_exit_wait", set_exit_wait, METH_O, NULL},
    {"settle", settle, METH_VARARGS, NULL},
    {"start", start, METH_VARARGS, NULL},
    {"state", state, METH_NOARGS, NULL},
    {"states", states, METH_NOARGS, NULL},
    {"take", take, METH_O, NULL},
    {"wrap", wrap, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int
fill(PyObject *module)
{
    static atomic_int known;
    PyObject *type;

    if (!atomic_exchange(&known, 1) && atexit(at_exit) != 0)
        return -1;
    type = PyType_FromSpec(&array_spec);
    if (type == NULL || PyModule_AddObject(module, "Array", type) < 0)
        return -1;
    type = PyType_FromSpec(&consumer_spec);
    if (type == NULL || PyModule_AddObject(module, "Consumer", type) < 0)
        return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, SLOT(fill)},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000 && !defined(Py_LIMITED_API)
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "probe", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC
PROBE_INIT(void);
PyMODINIT_FUNC
PROBE_INIT(void)
{
    return PyModuleDef_Init(&module);
}

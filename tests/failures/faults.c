/* Makes the n-th call of an operation fail, or all calls from the n-th on. These are the calls that points.h names, in
 * all files of this module, or calls of Python's allocators; the header's allocator belongs to both kinds.
 *
 * The module also holds the test modules of other folders, compiled with points.h. */

#include <string.h>

#define CALLS 1
#define MEMORY 2

/* The current or the last operation. */
static struct {
    int kind; /* CALLS or MEMORY, 0 when it is over */
    long first;
    int onward;
    PyObject *exception;    /* what calls raise */
    long count;             /* calls that could fail, so far */
    const char *failed;     /* the first call that failed, or NULL */
    int line;               /* of the header; 0 in Python */
    const char *trespasser; /* a call that was made with an exception in flight */
    int unraisable;         /* number of exceptions reported as unraisable */
    unsigned long thread;   /* the thread whose allocations fail: pytest-xdist has other threads */
} now;

static int
fails(int kind, const char *name, int line)
{
    if (now.kind != kind || ++now.count < now.first || (now.count > now.first && !now.onward))
        return 0;
    if (now.failed == NULL) {
        now.failed = name;
        now.line = line;
    }
    return 1;
}

int
point_fails(point *here, enum point_how how)
{
    if (how == RUNNING && now.kind != 0 && now.trespasser == NULL && PyErr_Occurred())
        now.trespasser = here->name;
    if (!fails(CALLS, here->name, (int)here->line) &&
        !(how == ALLOCATING && fails(MEMORY, here->name, (int)here->line)))
        return 0;
    here->failures++;
    if (how == RAISING || how == RUNNING)
        PyErr_Format(now.exception, "%s was made to fail", here->name);
    return 1;
}

void
point_unraisable(void)
{
    now.unraisable++;
    PyErr_Clear();
}

/* ---- Blocks of memory ----------------------------------------------------- */

static long header_blocks, python_blocks; /* allocated and not freed; python_blocks: since hook(True) */

static void *
counted(long *blocks, void *pointer)
{
    if (pointer != NULL)
        (void)__atomic_fetch_add(blocks, 1, __ATOMIC_RELAXED);
    return pointer;
}

typedef union point_block {
    int lasts;
    char room[16]; /* keeps the alignment of malloc */
} point_block;

void *
point_malloc(size_t size, int lasts)
{
    point_block *block = (point_block *)malloc(sizeof(*block) + size);
    if (block == NULL)
        return NULL;
    block->lasts = lasts;
    return lasts ? block + 1 : counted(&header_blocks, block + 1);
}

void
point_free(void *pointer)
{
    point_block *block = (point_block *)pointer - 1;
    if (!block->lasts)
        (void)__atomic_fetch_sub(&header_blocks, 1, __ATOMIC_RELAXED);
    free(block);
}

static const char *const domain_names[] = {"PyMem_RawMalloc", "PyMem_Malloc", "PyObject_Malloc"};
static PyMemAllocatorEx domains[3]; /* the original allocators */
static int hooked;

static int
domain_fails(const PyMemAllocatorEx *domain)
{
    return now.thread == PyThread_get_thread_ident() && fails(MEMORY, domain_names[domain - domains], 0);
}

static void *
domain_malloc(void *context, size_t size)
{
    PyMemAllocatorEx *domain = (PyMemAllocatorEx *)context;
    return domain_fails(domain) ? NULL : counted(&python_blocks, domain->malloc(domain->ctx, size));
}

static void *
domain_calloc(void *context, size_t count, size_t size)
{
    PyMemAllocatorEx *domain = (PyMemAllocatorEx *)context;
    return domain_fails(domain) ? NULL : counted(&python_blocks, domain->calloc(domain->ctx, count, size));
}

static void *
domain_realloc(void *context, void *pointer, size_t size)
{
    PyMemAllocatorEx *domain = (PyMemAllocatorEx *)context;
    if (domain_fails(domain))
        return NULL;
    if (pointer == NULL)
        return counted(&python_blocks, domain->realloc(domain->ctx, NULL, size));
    return domain->realloc(domain->ctx, pointer, size);
}

static void
domain_free(void *context, void *pointer)
{
    PyMemAllocatorEx *domain = (PyMemAllocatorEx *)context;
    if (pointer != NULL)
        (void)__atomic_fetch_sub(&python_blocks, 1, __ATOMIC_RELAXED);
    domain->free(domain->ctx, pointer);
}

/* hook(on): replaces or restores Python's allocators. */
static PyObject *
hook(PyObject *Py_UNUSED(module), PyObject *on)
{
    int i;
    for (i = 0; i < 3 && hooked != (on == Py_True); i++) {
        PyMemAllocatorEx hook = {&domains[i], domain_malloc, domain_calloc, domain_realloc, domain_free};
        if (on == Py_True)
            PyMem_GetAllocator((PyMemAllocatorDomain)i, &domains[i]);
        PyMem_SetAllocator((PyMemAllocatorDomain)i, on == Py_True ? &hook : &domains[i]);
    }
    hooked = on == Py_True;
    Py_RETURN_NONE;
}

/* blocks(): the number of blocks of the header, without the type entries, which it keeps; and of Python. */
static PyObject *
blocks(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("(ll)", header_blocks, python_blocks);
}

/* ---- Operations ------------------------------------------------------------ */

/* run(operation, kind, first, onward, exception): (result or exception, whether it was raised, the failed call, its
 * line, a call that was made with an exception in flight, number of exceptions reported as unraisable). */
static PyObject *
run(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlp_exception exception;
    PyObject *operation, *result;
    int kind, raised;

    memset(&now, 0, sizeof(now));
    if (!PyArg_ParseTuple(args, "OiliO", &operation, &kind, &now.first, &now.onward, &now.exception))
        return NULL;
    now.thread = PyThread_get_thread_ident();
    now.kind = kind;
    result = PyObject_CallNoArgs(operation);
    now.kind = 0;
    raised = result == NULL;
    if (raised) {
        exception = dlp_exception_save();
#if PY_VERSION_HEX < 0x030C0000
        PyErr_NormalizeException(&exception.type, &exception.value, &exception.traceback);
        if (exception.traceback != NULL)
            (void)PyException_SetTraceback(exception.value, exception.traceback);
#endif
        result = exception.value;
        Py_XINCREF(result);
        Py_CLEAR(exception.type);
        Py_CLEAR(exception.value);
        Py_CLEAR(exception.traceback);
    }
    return Py_BuildValue("(NNzizi)", result, PyBool_FromLong(raised), now.failed, now.line, now.trespasser,
                         now.unraisable);
}

/* drop([object], exception): drops the last reference to the object while the exception is in flight, then raises the
 * exception. */
static PyObject *
drop(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *list, *exception, *object;

    if (!PyArg_ParseTuple(args, "OO", &list, &exception))
        return NULL;
    object = PyList_GetItem(list, 0);
    Py_XINCREF(object);
    if (object == NULL || PyList_SetSlice(list, 0, 1, NULL) < 0) {
        Py_XDECREF(object);
        return NULL;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(object);
    return NULL;
}

/* use(object, back): consumes an object by this file's copy of the header, which only use() uses; with back also makes
 * an object like it. */
static PyObject *
use(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *object;
    dlpack_py_view v;
    int back;

    if (!PyArg_ParseTuple(args, "Op", &object, &back) || dlpack_py_consume(object, NULL, &v) < 0)
        return NULL;
    if (back)
        return dlpack_py_return_like_steal(object, &v);
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

/* A managed tensor of one number, which no interpreter keeps. */
static void *
number(void)
{
    static double value = 1.0;
    const DLTensor t = dlpack_py_cpu_tensor(&value, DLPACK_PY_FLOAT64, 0, NULL, NULL);
    void *managed = dlpack_py_wrap(&t, 0, NULL, NULL);
    return managed != NULL ? managed : PyErr_NoMemory();
}

/* start(how, object): one use of this file's copy of the header, which only use() and start() use. */
static PyObject *
start(PyObject *Py_UNUSED(module), PyObject *args)
{
    static const double value = 1.0;
    const DLTensor t = dlpack_py_cpu_tensor((void *)(uintptr_t)&value, DLPACK_PY_FLOAT64, 0, NULL, NULL);
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_request request;
    dlpack_py_view v;
    PyObject *object;
    const char *how;

    memset(&request, 0, sizeof(request));
    memset(&v, 0, sizeof(v));
    if (!PyArg_ParseTuple(args, "sO", &how, &object))
        return NULL;
    if (strcmp(how, "init") == 0)
        return dlpack_py_init() < 0 ? NULL : Py_BuildValue("");
    if (strcmp(how, "cpu_device") == 0)
        return dlpack_py_cpu_device(NULL, NULL);
    if (strcmp(how, "check") == 0)
        return PyBool_FromLong(dlpack_py_has_tensor(object));
    if (strcmp(how, "produce") == 0)
        return dlpack_py_produce(object, &t, 0, NULL, 0, NULL);
    if (strcmp(how, "answer") == 0) {
        const dlpack_py_offer offer = dlpack_py_offer_make(object, &t, DLPACK_PY_FLAG_READ_ONLY);
        request.max_version.major = DLPACK_PY_PROTOCOL_MAJOR;
        return dlpack_py_answer(&offer, &request);
    }
    if (strcmp(how, "object_steal") == 0 || strcmp(how, "memoryview_steal") == 0) {
        v.managed = number();
        v.form = DLPACK_PY_VERSIONED;
        if (v.managed == NULL)
            return NULL;
        if (strcmp(how, "object_steal") == 0) {
            object = dlpack_py_object_steal(v.managed, v.form);
            Py_XDECREF(object);
            return object == NULL ? NULL : Py_BuildValue("");
        }
        v.tensor = ((DLManagedTensorVersioned *)v.managed)->dl_tensor;
        object = dlpack_buffer_memoryview_steal(&v);
        Py_XDECREF(object);
        return object == NULL ? NULL : Py_BuildValue("");
    }
    if (strcmp(how, "memoryview_steal: a borrowed view") == 0)
        return dlpack_buffer_memoryview_steal(&v);
    if (strncmp(how, "fallback", strlen("fallback")) == 0) {
        if (dlpack_buffer_fallback(object, &managed) < 0)
            return NULL;
        dlp_delete(managed, DLPACK_PY_VERSIONED);
        Py_RETURN_NONE;
    }
    if (strcmp(how, "from_dlpack") == 0) {
        PyObject *const both[] = {object, Py_None};
        PyObject *names = Py_BuildValue("(s)", "copy");
        const int failed = names == NULL || dlpack_py_from_dlpack(both, 1, names, NULL, &v) < 0;
        Py_XDECREF(names);
        if (failed)
            return NULL;
        dlpack_py_release(&v);
        Py_RETURN_NONE;
    }
    PyErr_Format(PyExc_ValueError, "no such use: %s", how);
    return NULL;
}

#if DLPACK_PY_HAS_EXCHANGE_API
static PyObject *
make_nothing_steal(PyTypeObject *Py_UNUSED(type), dlpack_py_view *v)
{
    dlpack_py_release(v);
    return Py_BuildValue("");
}

static int
describe_nothing(PyObject *Py_UNUSED(object), const dlpack_py_request *Py_UNUSED(request),
                 dlpack_py_offer *Py_UNUSED(offer))
{
    PyErr_SetString(PyExc_BufferError, "nothing is offered");
    return -1;
}

DLPACK_PY_EXCHANGE_API(nothing_exchange, describe_nothing, make_nothing_steal, NULL);

/* start_exchange(how, object): as start, with a function of dlpack_exchange.h. */
static PyObject *
start_exchange(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlpack_py_embedded embedded;
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_request request;
    dlpack_py_view v;
    PyObject *object;
    const char *how;
    int failed;
    DLTensor t;

    if (!PyArg_ParseTuple(args, "sO", &how, &object))
        return NULL;
    memset(&request, 0, sizeof(request));
    t = dlpack_py_cpu_tensor(&t, DLPACK_PY_FLOAT64, 0, NULL, NULL);
    if (strcmp(how, "add") == 0)
        failed = dlpack_py_exchange_add((PyTypeObject *)object, &nothing_exchange);
    else if (strcmp(how, "embed") == 0)
        failed = dlpack_py_embed(&embedded, object, &t, 0);
    else if (strcmp(how, "check_like") == 0)
        failed = dlpack_py_check_like(object);
    else if (strcmp(how, "make") == 0) {
        void *managed = number(), *made = NULL;
        failed = managed == NULL ||
                 nothing_exchange.api.managed_tensor_to_py_object_no_sync((DLManagedTensorVersioned *)managed, &made);
        Py_XDECREF((PyObject *)made);
    }
    else {
        request.copy = strcmp(how, "consume a copy") == 0 ? DLPACK_PY_COPY_ALWAYS : DLPACK_PY_COPY_AS_NEEDED;
        want.writable = strcmp(how, "borrow, to be written") == 0;
        failed = strncmp(how, "borrow", 6) == 0 ? dlpack_py_borrow(object, &want, &v)
                                                : dlpack_py_consume_request(object, &request, NULL, &v);
        if (!failed)
            dlpack_py_release(&v);
    }
    return failed ? NULL : Py_BuildValue("");
}
#endif

/* forget(): makes the next use by this file the first use in the interpreter. The state is freed with its capsule: now,
 * or with the exit callback that holds the capsule. */
static PyObject *
forget(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    PyObject *names = PyInterpreterState_GetDict(interpreter);
    PyObject *key = PyUnicode_FromFormat("dlpack_py.%x.%p", DLPACK_PY_VERSION, (void *)dlp_states);
    PyObject *capsule = key == NULL ? NULL : PyDict_GetItem(names, key); /* borrowed */
    dlp_state *state = capsule == NULL ? NULL : (dlp_state *)PyCapsule_GetPointer(capsule, DLP_STATE_NAME);
    const int held = capsule != NULL && Py_REFCNT(capsule) > 1;
    const int failed = key == NULL || PyDict_DelItem(names, key) < 0;
    Py_XDECREF(key);
    if (state != NULL && !failed && held)
        (void)DLP_COMPARE_EXCHANGE(DLP_STATE_SLOT(interpreter), (dlp_atomic)state, 0);
    if (state != NULL && !failed && !held) {
        dlp_gone_states = (dlp_atomic)state->next_gone; /* the state that was added to this list last */
        point_free(state);                              /* the header never frees it; no export points to it here */
    }
    if (failed && !PyErr_ExceptionMatches(PyExc_KeyError))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

extern point __start_fault_points[] __attribute__((visibility("hidden")));
extern point __stop_fault_points[] __attribute__((visibility("hidden")));

/* points(): a list of (name, header, line, how often it was made to fail), one for each point and file. */
static PyObject *
points(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *list = PyList_New(0), *item;
    const point *p;
    for (p = __start_fault_points; list != NULL && p < __stop_fault_points; p++) {
        item = Py_BuildValue("(ssLL)", p->name, p->file, p->line, p->failures);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyMethodDef functions[] = {
    {"hook", hook, METH_O, NULL},
    {"blocks", blocks, METH_NOARGS, NULL},
    {"run", run, METH_VARARGS, NULL},
    {"drop", drop, METH_VARARGS, NULL},
    {"use", use, METH_VARARGS, NULL},
    {"forget", forget, METH_NOARGS, NULL},
    {"points", points, METH_NOARGS, NULL},
    {"start", start, METH_VARARGS, NULL},
#if DLPACK_PY_HAS_EXCHANGE_API
    {"start_exchange", start_exchange, METH_VARARGS, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "faults", NULL, -1, functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit_faults(void)
{
    return PyModule_Create(&module);
}

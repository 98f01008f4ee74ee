/* What the targets with Python share: the interpreter, counted objects, exceptions, and the end of each run. A target
 * defines run() and set_up(). Without pymalloc, ASan sees each object: one that is used after it was freed is found. */
#ifndef EMBEDDED_H
#define EMBEDDED_H

#include "fuzz.h"

static void
set_up(void); /* of the target: makes its types, once */
static void
run(Input *in); /* of the target: leaves no exception, no object and no block of the headers behind */

static long live;      /* objects of the target's types that were made and not freed, and managed tensors not deleted */
static int unraisable; /* exceptions that were reported as unraisable in this run */
static int raised;     /* exceptions that deleters have set in this run; the header reports each */

/* ---- Memory of Python --------------------------------------------------- */

static long python_blocks;

static void *
counted_malloc(void *unused, size_t size)
{
    void *block = malloc(size + !size);
    (void)unused;
    python_blocks += block != NULL;
    return block;
}

static void *
counted_calloc(void *unused, size_t count, size_t size)
{
    void *block = calloc(count + !count, size + !size);
    (void)unused;
    python_blocks += block != NULL;
    return block;
}

static void *
counted_realloc(void *unused, void *old, size_t size)
{
    void *block = realloc(old, size + !size);
    (void)unused;
    python_blocks += old == NULL && block != NULL;
    return block;
}

static void
counted_free(void *unused, void *block)
{
    (void)unused;
    python_blocks -= block != NULL;
    free(block);
}

/* ---- Exceptions --------------------------------------------------------- */

enum {
    BUFFER_ERROR = 1,
    VALUE_ERROR = 2,
    TYPE_ERROR = 4,
    MEMORY_ERROR = 8,
    RUNTIME_ERROR = 16,
    SYSTEM_ERROR = 32,
    ATTRIBUTE_ERROR = 64,
    FOREIGN_ERROR = 128, /* ZeroDivisionError: only the targets raise it */
    INTERRUPT = 256,     /* KeyboardInterrupt: only the targets raise it */
    OTHER_ERROR = 512
};

/* Clears the exception, which must be set. Returns its kind. */
static inline int
take_exception(void)
{
    PyObject *const types[] = {PyExc_BufferError,    PyExc_ValueError,        PyExc_TypeError,
                               PyExc_MemoryError,    PyExc_RuntimeError,      PyExc_SystemError,
                               PyExc_AttributeError, PyExc_ZeroDivisionError, PyExc_KeyboardInterrupt};
    int kind = OTHER_ERROR;
    size_t i;
    CHECK(PyErr_Occurred() != NULL);
    if (getenv("FUZZ_SHOW") != NULL) { /* prints the exceptions of a run */
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        Py_XINCREF(type);
        Py_XINCREF(value);
        Py_XINCREF(traceback);
        PyErr_Restore(type, value, traceback);
        PyErr_Print();
        PyErr_Restore(type, value, traceback);
    }
    for (i = 0; i < COUNT(types); i++) {
        if (PyErr_ExceptionMatches(types[i]))
            kind = 1 << i;
    }
    if (kind == OTHER_ERROR)
        PyErr_Print();
    PyErr_Clear();
    return kind;
}

/* Sets one of the exceptions that foreign code may raise. */
static inline void
raise_any(Input *in)
{
    PyObject *const types[] = {PyExc_ZeroDivisionError, PyExc_TypeError,   PyExc_BufferError,
                               PyExc_AttributeError,    PyExc_ValueError,  PyExc_MemoryError,
                               PyExc_KeyboardInterrupt, PyExc_RuntimeError};
    PyErr_SetString(TAKE(in, types), "by the target");
}

static PyObject *
note_unraisable(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    unraisable++;
    Py_RETURN_NONE;
}

/* ---- Types -------------------------------------------------------------- */

#define SLOT(function) ((void *)(uintptr_t)(function))

static inline PyTypeObject *
make_type(const char *name, int size, PyType_Slot *slots)
{
    PyType_Spec spec = {name, size, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    PyObject *type = PyType_FromSpec(&spec);
    CHECK(type != NULL);
    return (PyTypeObject *)type;
}

static inline PyTypeObject *
make_derived_type(const char *name, PyTypeObject *base, PyType_Slot *slots)
{
    PyType_Spec spec = {name, (int)base->tp_basicsize, 0, Py_TPFLAGS_DEFAULT, slots};
    PyObject *bases = PyTuple_Pack(1, base), *type = PyType_FromSpecWithBases(&spec, bases);
    CHECK(type != NULL);
    Py_DECREF(bases);
    return (PyTypeObject *)type;
}

/* Is a value a pair of these ints? */
static inline int
is_pair_of(PyObject *value, long first, long second)
{
    const long wanted[] = {first, second};
    int i, overflow;
    if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != 2)
        return 0;
    for (i = 0; i < 2; i++) {
        PyObject *part = PyTuple_GET_ITEM(value, i);
        if (!PyLong_CheckExact(part) || PyLong_AsLongAndOverflow(part, &overflow) != wanted[i] || overflow != 0)
            return 0;
    }
    return 1;
}

/* An object of a type of the target, all zero; tp_dealloc calls object_free. */
static inline PyObject *
object_new(PyTypeObject *type)
{
    PyObject *self = type->tp_alloc(type, 0);
    CHECK(self != NULL);
    live++;
    return self;
}

static inline void
object_free(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    live--;
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- Managed tensors ---------------------------------------------------- */

/* A managed tensor of the target, of either form. Lives until run() frees it, also after its deleter was called. */
typedef struct Managed {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } as;
    Tensor tensor;
    int32_t form;
    int deleted; /* how often the deleter was called */
    int raises;  /* the deleter sets an exception */
} Managed;

static void
managed_delete(Managed *managed)
{
    managed->deleted++;
    CHECK(managed->deleted == 1);
    live--;
    if (managed->raises) {
        CHECK(!PyErr_Occurred()); /* K2: a deleter is called without an exception */
        PyErr_SetString(PyExc_ZeroDivisionError, "by a deleter");
        raised++;
    }
    memset(&managed->as, 0xaa, sizeof(managed->as)); /* what a freed struct may hold */
}

static void
managed_delete_versioned(DLManagedTensorVersioned *self)
{
    managed_delete((Managed *)(void *)self);
}

static void
managed_delete_legacy(DLManagedTensor *self)
{
    managed_delete((Managed *)(void *)self);
}

/* A new managed tensor of any content. Its data is in the arena if it is valid memory of the CPU: it may be read. */
static inline Managed *
managed_take(Input *in, int32_t form)
{
    static const uint32_t majors[] = {1, 1, 1, 1, 1, 1, 2, 0};
    Managed *managed = (Managed *)calloc(1, sizeof(*managed));
    const unsigned kind = take(in);
    DLManagedTensorVersioned *versioned;

    CHECK(managed != NULL);
    tensor_take(in, &managed->tensor);
    if (slow_is_valid(&managed->tensor.t, managed->tensor.flags) &&
        !slow_is_in_arena(&managed->tensor.t, managed->tensor.flags) && slow_is_readable(managed->tensor.t.device))
        managed->tensor.t = dlpack_py_cpu_tensor(arena + kind, DLPACK_PY_UINT8, 0, NULL, NULL);
    managed->form = form;
    managed->raises = kind >= 224;
    if (form == DLPACK_PY_VERSIONED) {
        versioned = &managed->as.versioned;
        versioned->version.major = majors[kind % 8];
        versioned->version.minor = kind % 5;
        versioned->deleter = kind < 16 ? NULL : managed_delete_versioned;
        versioned->manager_ctx = kind % 3 == 0 ? NULL : managed;
        versioned->flags = managed->tensor.flags;
        versioned->dl_tensor = managed->tensor.t;
        if (versioned->version.major != 1) { /* K6: these fields are not read */
            memset(&versioned->flags, 0xaa, sizeof(versioned->flags));
            memset(&versioned->dl_tensor, 0xaa, sizeof(versioned->dl_tensor));
        }
    }
    else {
        managed->tensor.flags = 0;
        managed->as.legacy.deleter = kind < 16 ? NULL : managed_delete_legacy;
        managed->as.legacy.manager_ctx = kind % 3 == 0 ? NULL : managed;
        managed->as.legacy.dl_tensor = managed->tensor.t;
        if (slow_is_valid(&managed->tensor.t, 0) && !slow_is_in_arena(&managed->tensor.t, 0) &&
            slow_is_readable(managed->tensor.t.device)) /* without the flags it may reach further */
            managed->as.legacy.dl_tensor = managed->tensor.t =
                dlpack_py_cpu_tensor(arena, DLPACK_PY_UINT8, 0, NULL, NULL);
    }
    live += kind >= 16;
    return managed;
}

static inline int
managed_has_deleter(const Managed *managed)
{
    return managed->form == DLPACK_PY_VERSIONED ? managed->as.versioned.deleter != NULL
                                                : managed->as.legacy.deleter != NULL;
}

/* Frees what the header must have deleted. */
static inline void
managed_free(Managed *managed)
{
    tensor_free(&managed->tensor);
    free(managed);
}

/* ---- Views -------------------------------------------------------------- */

static inline void
check_empty(const dlpack_py_view *v)
{
    CHECK(v->managed == NULL && v->allocated == NULL && v->tensor.data == NULL && v->tensor.ndim == 0);
    CHECK(v->tensor.shape == NULL && v->tensor.strides == NULL);
}

/* A view that was accepted is valid, and meets the requirements. */
static inline void
check_view(const dlpack_py_view *v, const dlpack_py_want *want)
{
    const DLTensor *t = &v->tensor;
    const uint64_t flags = v->flags;
    CHECK(!PyErr_Occurred());
    CHECK(slow_is_valid(t, flags));
    CHECK(t->ndim == 0 || t->strides != NULL);
    CHECK(slow_overlaps_itself(t) <= 0 || v->overlaps);
    if (want == NULL) {
        CHECK(slow_is_readable(t->device));
        return;
    }
    CHECK(slow_is_want(want));
    CHECK(slow_meets_fixed(t, want, want->device != kDLCPU || t->device.device_type != kDLCPU));
    CHECK(slow_meets_curable(t, v->readonly, want) != 0);
}

/* A bit of lane `lane` of the element at an offset; of packed elements, the first one is in the lowest bits. */
static inline unsigned
slow_bit(const unsigned char *data, int64_t offset, DLDataType dtype, uint64_t tensor_flags, unsigned lane,
         unsigned bit)
{
    const int64_t bits = (int64_t)slow_bits(dtype, tensor_flags);
    const int64_t at = offset * bits + bits / dtype.lanes * lane + bit;
    return data[at >> 3] >> (at & 7) & 1; /* >> rounds down */
}

/* Has a copy the elements of a valid tensor? */
static inline void
check_copied(const DLTensor *copy, uint64_t copy_flags, const DLTensor *t, uint64_t t_flags)
{
    const unsigned char *to_data = (const unsigned char *)copy->data + copy->byte_offset;
    const unsigned char *from_data = (const unsigned char *)t->data + t->byte_offset;
    const int64_t bits = (int64_t)slow_bits(t->dtype, t_flags);
    const int has_bytes = bits % 8 == 0 && bits == (int64_t)slow_bits(copy->dtype, copy_flags);
    int64_t to[SLOW_MAX], from[SLOW_MAX], n;
    const int64_t count = slow_offsets(copy, 'C', to);
    unsigned lane, bit;

    CHECK(slow_offsets(t, 'C', from) == count);
    for (n = 0; n < count && has_bytes; n++)
        CHECK(memcmp(to_data + to[n] * bits / 8, from_data + from[n] * bits / 8, (size_t)bits / 8) == 0);
    for (n = 0; n < count && !has_bytes; n++) {
        for (lane = 0; lane < t->dtype.lanes; lane++) {
            for (bit = 0; bit < t->dtype.bits; bit++)
                CHECK(slow_bit(to_data, to[n], t->dtype, copy_flags, lane, bit) ==
                      slow_bit(from_data, from[n], t->dtype, t_flags, lane, bit));
        }
    }
}

/* Has a view the tensor that a producer gave? readonly: what it must say, if it is no copy. */
static inline void
check_same(const dlpack_py_view *v, const DLTensor *given, uint64_t given_flags, int readonly)
{
    const DLTensor *t = &v->tensor;
    int64_t step = 1;
    int32_t i;

    CHECK(t->ndim == given->ndim && memcmp(&t->dtype, &given->dtype, sizeof(t->dtype)) == 0);
    for (i = 0; i < t->ndim; i++)
        CHECK(t->shape[i] == given->shape[i]);
    if (slow_size(t) == 0)
        return;
    if ((uintptr_t)dlpack_py_data(v) != (uintptr_t)given->data + given->byte_offset) {
        CHECK(t->device.device_type == kDLCPU && slow_is_readable(given->device));
        CHECK(v->readonly == DLPACK_PY_WRITABLE && (v->flags & DLPACK_PY_FLAG_IS_COPIED) != 0);
        check_copied(t, v->flags, given, given_flags);
        return;
    }
    CHECK(t->device.device_type == given->device.device_type && t->device.device_id == given->device.device_id);
    CHECK(v->flags == given_flags && v->readonly == readonly);
    for (i = t->ndim; i-- > 0; step *= t->shape[i])
        CHECK(t->strides[i] == (given->strides == NULL ? step : given->strides[i]));
}

/* Has a view the tensor of a managed tensor? */
static inline void
check_taken(const dlpack_py_view *v, const Managed *managed, const dlpack_py_want *want)
{
    const int is_legacy = managed->form == DLPACK_PY_LEGACY;
    const int unknown = want != NULL && (want->options & DLPACK_PY_WANT_LEGACY_IS_WRITABLE) != 0
                            ? DLPACK_PY_WRITABLE
                            : DLPACK_PY_READ_ONLY_UNKNOWN;
    check_same(v, &managed->tensor.t, managed->tensor.flags,
               is_legacy ? unknown : slow_readonly(managed->tensor.flags));
}

/* ---- A run -------------------------------------------------------------- */

/* Python is not freed at the end. Leaks of a run are counted. */
const char *
__asan_default_options(void);

const char *
__asan_default_options(void)
{
    return "detect_leaks=0";
}

int
LLVMFuzzerInitialize(int *argc, char ***argv);

static inline void
run_once(const uint8_t *bytes, size_t size)
{
    const long blocks_before = fuzz_blocks, live_before = live;
    Input in = {bytes, size};

    unraisable = raised = 0;
    fuzz_fails = -1;
    fuzz_refused = 0;
    run(&in);
    CHECK(!PyErr_Occurred());
    CHECK(fuzz_blocks == blocks_before);
    CHECK(live == live_before);
    CHECK(unraisable == raised);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    long before = python_blocks;
    int repeated;

    run_once(bytes, size);
    /* Python keeps some freed objects for later: the list of dicts takes 80. It does not keep one of each run. */
    for (repeated = 0; python_blocks > before; repeated++) {
        CHECK(repeated < 256);
        PyType_ClearCache(); /* holds names that were looked up */
        before = python_blocks;
        run_once(bytes, size);
        PyType_ClearCache();
    }
    return 0;
}

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const PyMemAllocatorDomain domains[] = {PYMEM_DOMAIN_RAW, PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    static PyMethodDef hook = {"note_unraisable", note_unraisable, METH_O, NULL};
    PyMemAllocatorEx counted = {NULL, counted_malloc, counted_calloc, counted_realloc, counted_free};
    PyPreConfig first;
    PyConfig config;
    PyStatus status;
    size_t i;

    (void)argc;
    (void)argv;
    arena_fill();
    PyPreConfig_InitIsolatedConfig(&first);
    status = Py_PreInitialize(&first);
    CHECK(!PyStatus_Exception(status));
    for (i = 0; i < COUNT(domains); i++)
        PyMem_SetAllocator(domains[i], &counted);
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.install_signal_handlers = 0;
    status = PyConfig_SetBytesString(&config, &config.home, FUZZ_PYTHON_HOME);
    CHECK(!PyStatus_Exception(status));
    status = Py_InitializeFromConfig(&config);
    CHECK(!PyStatus_Exception(status));
    PyConfig_Clear(&config);
    CHECK(PySys_SetObject("unraisablehook", PyCFunction_New(&hook, NULL)) == 0);
    CHECK(PyRun_SimpleString("import gc; gc.disable()") == 0); /* it would run at any time: runs must be repeatable */
    CHECK(dlpack_py_init() == 0 && dlp_type_cache_get(dlp_state_get()) != NULL);
    set_up();
    return 0;
}

#endif /* EMBEDDED_H */

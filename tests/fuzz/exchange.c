/* exchange: exchange tables of any content: NULL functions, other versions, chains that are rings, functions that fail with
 * and without an exception, or that set one and succeed. Functions of a table that cannot be used are not called; each
 * managed tensor is deleted once; what is taken is valid and meets the requirements. Then a table of the header itself. */
#include "embedded.h"

/* ---- What the functions of a table do ----------------------------------- */

/* Read from the input before each call. */
typedef struct Script {
    int result;  /* what the function returns */
    int raises;  /* sets an exception, whatever it returns */
    int unset;   /* leaves its output as it is */
    int changes; /* changes the type: what is cached of it is forgotten. 2: also fills the cache with other things */
    Input in, raise; /* the tensor, and which exception */
} Script;

static Script script;
static int allowed;      /* kinds of exceptions that the functions have set */
static int is_lent;      /* a tensor was lent in this operation */
static int calls[4];     /* of the functions of each table; 3: of __dlpack__ */
static Managed *made[8]; /* all managed tensors of a run */
static int has_deleter[8];
static size_t made_count;
static Tensor lent[8];
static size_t lent_count;
static PyTypeObject *holder_type, *derived_type, *overriding_type, *box_type;
static PyTypeObject *mine_type, *mine_derived_type, *mine_overriding_type;
static PyObject *holding;     /* the object of the present operation, if its type has the table of capsules[0] */
static PyObject *capsules[3]; /* of the tables; of another name; no capsule */

static void
script_take(Input *in)
{
    static const int results[] = {-1, 1, 7, INT32_MIN};
    const unsigned kind = take(in);
    script.result = kind < 160 ? 0 : TAKE(in, results);
    script.raises = kind >= 200 || kind % 16 == 15;
    script.unset = kind % 8 == 6;
    script.changes = kind % 32 == 5 ? 1 : kind % 32 == 13 ? 2 : 0;
    script.in = *in;
    script.raise = *in;
    (void)take(in);
}

static Managed *
take_managed(Input *in)
{
    Managed *managed = managed_take(in, DLPACK_PY_VERSIONED);
    CHECK(made_count < COUNT(made));
    has_deleter[made_count] = managed_has_deleter(managed);
    made[made_count++] = managed;
    return managed;
}

/* Raises one of the exceptions that foreign code may raise. */
static void
raise_allowed(Input *in)
{
    raise_any(in);
    allowed |= FOREIGN_ERROR | TYPE_ERROR | BUFFER_ERROR | ATTRIBUTE_ERROR | VALUE_ERROR | MEMORY_ERROR | INTERRUPT |
               RUNTIME_ERROR;
}

/* The end of each function of a table. */
static int
finish(void)
{
    if (script.changes)
        PyType_Modified(holder_type);
    if (script.changes == 2 && holding != NULL) {
        PyObject *type = (PyObject *)holder_type;
        CHECK(PyObject_SetAttrString(type, "__dlpack_c_exchange_api__", capsules[1]) == 0);
        CHECK(dlpack_py_has_tensor(holding) == 1);
        CHECK(PyObject_SetAttrString(type, "__dlpack_c_exchange_api__", capsules[0]) == 0);
    }
    if (script.raises) {
        Input in = script.raise;
        raise_allowed(&in);
    }
    else if (script.result != 0 || script.unset)
        allowed |= RUNTIME_ERROR;
    return script.result;
}

static int
from_object(int table, void *object, DLManagedTensorVersioned **out)
{
    CHECK(object != NULL && !PyErr_Occurred());
    calls[table]++;
    if (!script.unset)
        *out = script.result == 0 ? &take_managed(&script.in)->as.versioned : (DLManagedTensorVersioned *)(uintptr_t)16;
    return finish();
}

static int
lend(int table, void *object, DLTensor *out)
{
    Tensor *tensor = &lent[lent_count++];
    CHECK(object != NULL && !PyErr_Occurred() && lent_count <= COUNT(lent));
    calls[table]++;
    tensor_take(&script.in, tensor);
    if (slow_is_valid(&tensor->t, 0) && !slow_is_in_arena(&tensor->t, 0) && slow_is_readable(tensor->t.device))
        tensor->t = dlpack_py_cpu_tensor(arena, DLPACK_PY_UINT8, 0, NULL, NULL);
    if (!script.unset)
        *out = tensor->t;
    is_lent = 1;
    return finish();
}

/* Of the view that is given to a library: rank, flag, and first element. */
static int32_t given_ndim;
static uint64_t given_read_only;
static void *given_data;

static void
expect(const dlpack_py_view *v)
{
    given_ndim = v->tensor.ndim;
    given_read_only = v->readonly != DLPACK_PY_WRITABLE;
    given_data = dlpack_py_data(v);
}

/* An object that owns a managed tensor. */
typedef struct Box {
    PyObject_HEAD
    DLManagedTensorVersioned *managed;
} Box;

static void
delete_managed(DLManagedTensorVersioned *managed)
{
    if (managed->deleter != NULL)
        managed->deleter(managed);
    if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_ZeroDivisionError)) {
        PyErr_Clear(); /* of a deleter of the target */
        raised--;
    }
}

static void
box_dealloc(PyObject *self)
{
    delete_managed(((Box *)self)->managed);
    object_free(self);
}

static int
to_object(int table, DLManagedTensorVersioned *managed, void **out)
{
    Box *box;
    CHECK(managed != NULL && !PyErr_Occurred() && managed->version.major == 1);
    CHECK(managed->dl_tensor.ndim == given_ndim && (managed->flags & DLPACK_PY_FLAG_READ_ONLY) == given_read_only);
    calls[table]++;
    if (script.result != 0 || script.unset)
        delete_managed(managed); /* it is stolen */
    else {
        box = (Box *)object_new(box_type);
        box->managed = managed;
        *out = box;
    }
    return finish();
}

/* The allocator: most often as it was asked, else any tensor. It may write to the prototype, and needs no exception. */
static int
allocate(int table, DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
         void (*set_error)(void *context, const char *kind, const char *message))
{
    static const char *const kinds[] = {"BufferError", "ValueError", "MemoryError", "Unknown", NULL, "SystemError", ""};
    static char longest[400];
    Managed *managed;
    const unsigned how = take(&script.in);

    calls[table]++;
    CHECK(set_error != NULL && prototype->data == NULL);
    if (script.result != 0 || script.unset) {
        memset(longest, 'x', sizeof(longest) - 1);
        if (how % 4 != 0)
            set_error(context, TAKE(&script.in, kinds), how % 4 == 1 ? NULL : how % 4 == 2 ? "no" : longest);
        if (how % 8 == 7)
            set_error(context, "ValueError", "again");
        allowed |= BUFFER_ERROR | VALUE_ERROR | MEMORY_ERROR | RUNTIME_ERROR | TYPE_ERROR;
        return finish();
    }
    managed = take_managed(&script.in);
    if (how < 192 && slow_size(prototype) <= 512) {
        DLTensor *t = &managed->as.versioned.dl_tensor;
        managed->as.versioned.version.major = 1;
        managed->as.versioned.flags = how % 16 == 1 ? DLPACK_PY_FLAG_READ_ONLY : 0;
        free(managed->tensor.shape);
        free(managed->tensor.strides);
        managed->tensor.shape = (int64_t *)malloc((size_t)prototype->ndim * sizeof(int64_t) + 1);
        managed->tensor.strides = (int64_t *)malloc((size_t)prototype->ndim * sizeof(int64_t) + 1);
        memcpy(managed->tensor.shape, prototype->shape, (size_t)prototype->ndim * sizeof(int64_t));
        dlpack_py_compact_strides(prototype->ndim, prototype->shape, 'C', managed->tensor.strides);
        *t = *prototype;
        t->shape = managed->tensor.shape;
        t->strides = how % 2 == 0 ? NULL : managed->tensor.strides;
        t->data = arena;
        t->byte_offset = 0;
        if (how % 16 == 2 && t->ndim > 0)
            t->shape[0]++;
        if (how % 16 == 3)
            t->dtype.code ^= 1;
        managed->tensor.t = *t;
        managed->tensor.flags = managed->as.versioned.flags;
    }
    if (how % 2 != 0 && prototype->ndim > 0)
        prototype->shape[0] = -7;
    *out = &managed->as.versioned;
    return finish();
}

static int
work_stream(DLDeviceType type, int32_t id, void **out)
{
    (void)type;
    (void)id;
    *out = NULL;
    return 0;
}

/* ---- The tables --------------------------------------------------------- */

#define FUNCTIONS(n)                                                                            \
    static int from_##n(void *object, DLManagedTensorVersioned **out)                           \
    {                                                                                           \
        return from_object(n, object, out);                                                     \
    }                                                                                           \
    static int lend_##n(void *object, DLTensor *out)                                            \
    {                                                                                           \
        return lend(n, object, out);                                                            \
    }                                                                                           \
    static int to_##n(DLManagedTensorVersioned *managed, void **out)                            \
    {                                                                                           \
        return to_object(n, managed, out);                                                      \
    }                                                                                           \
    static int allocate_##n(DLTensor *prototype, DLManagedTensorVersioned **out, void *context, \
                            void (*set_error)(void *, const char *, const char *))              \
    {                                                                                           \
        return allocate(n, prototype, out, context, set_error);                                 \
    }                                                                                           \
    struct dlp_semicolon
FUNCTIONS(0);
FUNCTIONS(1);
FUNCTIONS(2);

static DLPackExchangeAPI tables[3];

static void
tables_take(Input *in)
{
    static const DLPackExchangeAPI whole[] = {
        {{{1, 3}, NULL}, allocate_0, from_0, to_0, lend_0, work_stream},
        {{{1, 3}, NULL}, allocate_1, from_1, to_1, lend_1, work_stream},
        {{{1, 3}, NULL}, allocate_2, from_2, to_2, lend_2, work_stream},
    };
    static const uint32_t majors[] = {1, 2, 3, 0, UINT32_MAX};
    size_t i;
    unsigned kind;

    memcpy(tables, whole, sizeof(tables));
    for (i = 0; i < COUNT(tables); i++) {
        kind = take(in);
        if (kind < 128)
            continue;
        tables[i].header.version.major = TAKE(in, majors);
        tables[i].header.version.minor = kind % 6;
        kind = take(in);
        if (kind % 4 != 0)
            tables[i].header.prev_api = &tables[kind % 3].header;
        switch (kind / 8 % 16) {
        case 1: tables[i].managed_tensor_allocator = NULL; break;
        case 2: tables[i].managed_tensor_from_py_object_no_sync = NULL; break;
        case 3: tables[i].managed_tensor_to_py_object_no_sync = NULL; break;
        case 4: tables[i].current_work_stream = NULL; break;
        case 5: tables[i].dltensor_from_py_object_no_sync = NULL; break; /* the only one that may be NULL */
        default: break;
        }
    }
}

/* The index of the table that a consumer of version 1 uses; -1: none (X2). */
static int
find_table(void)
{
    const DLPackExchangeAPI *table = &tables[0];
    while (table != NULL && table->header.version.major > 1) {
        const DLPackExchangeAPIHeader *older = table->header.prev_api;
        table = older == NULL || older->version.major >= table->header.version.major ? NULL : (const void *)older;
    }
    if (table == NULL || table->header.version.major != 1 || table->managed_tensor_allocator == NULL ||
        table->managed_tensor_from_py_object_no_sync == NULL || table->managed_tensor_to_py_object_no_sync == NULL ||
        table->current_work_stream == NULL)
        return -1;
    return (int)(table - tables);
}

/* ---- Objects of types with a table -------------------------------------- */

typedef struct Holder {
    PyObject_HEAD
    Input in;    /* of the capsule of __dlpack__ */
    int mode;    /* raises, or answers */
    int is_conj; /* what is_conj() answers */
} Holder;

static void
capsule_destructor(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_managed((DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

static PyObject *
holder_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Holder *holder = (Holder *)self;
    Input in = holder->in;
    (void)args;
    (void)nargs;
    (void)kwnames;
    CHECK(!PyErr_Occurred());
    calls[3]++;
    if (holder->mode == 0)
        return PyCapsule_New(&take_managed(&in)->as.versioned, "dltensor_versioned", capsule_destructor);
    raise_allowed(&in);
    return NULL;
}

static PyObject *
holder_is_conj(PyObject *self, PyObject *unused)
{
    Holder *holder = (Holder *)self;
    (void)unused;
    if (holder->is_conj < 2)
        return PyBool_FromLong(holder->is_conj);
    PyErr_SetString(holder->is_conj == 2 ? PyExc_KeyboardInterrupt : PyExc_ZeroDivisionError, "by the target");
    allowed |= INTERRUPT;
    return NULL;
}

/* ---- A table of the header ---------------------------------------------- */

typedef struct Mine {
    PyObject_HEAD
    Tensor given;
    dlpack_py_view view; /* of an object that make_steal has made */
    dlpack_py_embedded embedded;
    uint32_t options;
} Mine;

static int mine_fails; /* the next make_steal raises */

static int
mine_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Mine *mine = (Mine *)self;
    (void)request;
    if (mine->view.managed != NULL)
        *offer = dlpack_py_offer_view(self, &mine->view.tensor, &mine->view);
    else if (mine->embedded.manager.owner != NULL)
        *offer = dlpack_py_offer_embedded(&mine->embedded);
    else
        *offer = dlpack_py_offer_make(self, &mine->given.t, mine->given.flags);
    offer->options |= mine->options;
    return 0;
}

static PyObject *
mine_make_steal(PyTypeObject *type, dlpack_py_view *v)
{
    Mine *mine;
    check_view(v, NULL);
    if (mine_fails) {
        mine_fails = 0;
        dlpack_py_release(v);
        PyErr_SetString(PyExc_ZeroDivisionError, "by the target");
        return NULL;
    }
    mine = (Mine *)object_new(type);
    dlpack_py_move(&mine->view, v);
    return (PyObject *)mine;
}

DLPACK_PY_DESCRIBED(mine, mine_describe);
DLPACK_PY_EXCHANGE_API_EMBEDDED(mine_table, mine_describe, mine_make_steal, NULL, offsetof(Mine, embedded));

/* As mine_dlpack, under another name: a class with it overrides __dlpack__. */
static PyObject *
mine_other_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return mine_dlpack(self, args, nargs, kwnames);
}

static void
mine_dealloc(PyObject *self)
{
    Mine *mine = (Mine *)self;
    dlpack_py_release(&mine->view);
    tensor_free(&mine->given);
    object_free(self);
}

/* ---- A library without a table ------------------------------------------ */

/* Calls __dlpack__ with max_version, and one more keyword, or none. */
static PyObject *
ask(PyObject *object, const char *name, PyObject *value)
{
    PyObject *method = PyObject_GetAttrString(object, "__dlpack__"), *none = PyTuple_New(0);
    PyObject *keywords = Py_BuildValue("{s(ii)}", "max_version", 1, 0), *capsule;
    CHECK(method != NULL && none != NULL && keywords != NULL);
    if (name != NULL)
        CHECK(PyDict_SetItemString(keywords, name, value) == 0);
    capsule = PyObject_Call(method, none, keywords);
    Py_DECREF(method);
    Py_DECREF(none);
    Py_DECREF(keywords);
    return capsule;
}

/* from_dlpack of the module fuzz. It may ask for something else first. */
static PyObject *
module_from_dlpack(PyObject *self, PyObject *object)
{
    const unsigned how = take(&script.in) % 8;
    PyObject *device = Py_BuildValue("(ii)", kDLCPU, 0), *legacy, *capsule;
    DLManagedTensorVersioned *managed;
    int is_kept = how >= 1 && how <= 3;
    Box *box;

    (void)self;
    CHECK(!PyErr_Occurred() && device != NULL);
    if (how == 6)
        raise_allowed(&script.in);
    capsule = how == 6 ? NULL : PyLong_FromLong(0);
    if (how == 1 || how == 2)
        Py_XSETREF(capsule, ask(object, how == 1 ? "copy" : "dl_device", how == 1 ? Py_True : device));
    if (how == 3) {
        legacy = PyObject_CallMethod(object, "__dlpack__", NULL);
        if (legacy == NULL) { /* read-only data */
            (void)take_exception();
            is_kept = 0;
        }
        Py_XDECREF(legacy);
    }
    Py_DECREF(device);
    if (how == 5) {
        Py_INCREF(object);
        Py_SETREF(capsule, object);
    }
    if (capsule == NULL || how == 5)
        return capsule;
    Py_SETREF(capsule, ask(object, NULL, NULL));
    if (capsule == NULL) {
        CHECK(!is_kept); /* what was asked before has left the tensor with the result */
        return NULL;
    }
    managed = (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
    CHECK(managed != NULL && slow_is_valid(&managed->dl_tensor, managed->flags));
    CHECK(managed->dl_tensor.ndim == given_ndim && (managed->flags & DLPACK_PY_FLAG_READ_ONLY) == given_read_only);
    CHECK(slow_size(&managed->dl_tensor) == 0 ||
          (uintptr_t)managed->dl_tensor.data + managed->dl_tensor.byte_offset == (uintptr_t)given_data);
    if (how == 4 && managed->dl_tensor.device.device_type == kDLCPU) { /* the tensor is given away once */
        CHECK(ask(object, NULL, NULL) == NULL && take_exception() == BUFFER_ERROR);
        CHECK(ask(object, "copy", Py_True) == NULL && take_exception() == BUFFER_ERROR);
    }
    CHECK(PyCapsule_SetName(capsule, "used_dltensor_versioned") == 0);
    Py_DECREF(capsule);
    box = (Box *)object_new(box_type);
    box->managed = managed;
    return (PyObject *)box;
}

static void
set_up(void)
{
    static PyMethodDef methods[] = {DLPACK_PY_METHODS(holder_dlpack, dlpack_py_cpu_device),
                                    {"is_conj", holder_is_conj, METH_NOARGS, NULL},
                                    {NULL, NULL, 0, NULL}};
    static PyMethodDef overriding[] = {DLPACK_PY_METHODS(holder_dlpack, dlpack_py_cpu_device), {NULL, NULL, 0, NULL}};
    static PyMethodDef mine_methods[] = {DLPACK_PY_METHODS(mine_dlpack, mine_dlpack_device), {NULL, NULL, 0, NULL}};
    PyType_Slot slots[] = {{Py_tp_methods, methods}, {Py_tp_dealloc, SLOT(object_free)}, {0, NULL}};
    PyType_Slot derived_slots[] = {{0, NULL}};
    PyType_Slot overriding_slots[] = {{Py_tp_methods, overriding}, {0, NULL}};
    PyType_Slot box_slots[] = {{Py_tp_dealloc, SLOT(box_dealloc)}, {0, NULL}};
    static PyMethodDef mine_other[] = {DLPACK_PY_METHODS(mine_other_dlpack, mine_dlpack_device), {NULL, NULL, 0, NULL}};
    static PyMethodDef from_dlpack = {"from_dlpack", module_from_dlpack, METH_O, NULL};
    PyType_Slot mine_slots[] = {{Py_tp_methods, mine_methods}, {Py_tp_dealloc, SLOT(mine_dealloc)}, {0, NULL}};
    PyType_Slot mine_other_slots[] = {{Py_tp_methods, mine_other}, {0, NULL}};
    PyObject *module;

    holder_type = make_type("fuzz.Holder", sizeof(Holder), slots);
    derived_type = make_derived_type("fuzz.Derived", holder_type, derived_slots);
    overriding_type = make_derived_type("fuzz.Overriding", holder_type, overriding_slots);
    box_type = make_type("fuzz.Box", sizeof(Box), box_slots);
    mine_type = make_type("fuzz.Mine", sizeof(Mine), mine_slots);
    CHECK(dlpack_py_exchange_add(mine_type, &mine_table) == 0);
    mine_derived_type = make_derived_type("fuzz.MineDerived", mine_type, derived_slots);
    mine_overriding_type = make_derived_type("fuzz.MineOverriding", mine_type, mine_other_slots);
    module = PyImport_AddModule("fuzz"); /* borrowed: where the library's from_dlpack is looked for */
    CHECK(module != NULL && PyObject_SetAttrString(module, "from_dlpack", PyCFunction_New(&from_dlpack, NULL)) == 0);
    capsules[0] = PyCapsule_New(&tables[0], "dlpack_exchange_api", NULL);
    capsules[1] = PyCapsule_New(&tables[0], "dlpack_exchange_apis", NULL);
    capsules[2] = PyLong_FromLong(3);
}

/* ---- Operations --------------------------------------------------------- */

/* Clears the exception of an operation: one that a function has set, or one of the header. */
static void
check_kind(const dlpack_py_want *want)
{
    const int kind = take_exception();
    int is_large = fuzz_refused > 0; /* a copy that needs more memory than there is */
    size_t i;

    for (i = 0; i < made_count; i++)
        is_large |= slow_is_large(&made[i]->tensor);
    CHECK((kind & (allowed | BUFFER_ERROR)) != 0 || (kind == MEMORY_ERROR && is_large) ||
          (kind == SYSTEM_ERROR && want != NULL && !slow_is_want(want)));
}

/* Results of the library of an argument. */
static void
run_like(Input *in, PyObject *like, int table)
{
    const unsigned kind = take(in);
    Tensor prototype;
    dlpack_py_view v;
    PyObject *result;
    int i, before;

    tensor_take(in, &prototype);
    script_take(in);
    if (dlpack_py_check_like(like) < 0)
        CHECK(take_exception() == TYPE_ERROR && table < 0 && like == Py_None);
    memset(&v, 0xaa, sizeof(v));
    if (dlpack_py_allocate_like(like, &prototype.t, &v) < 0) {
        check_empty(&v);
        allowed |= MEMORY_ERROR; /* of a large prototype */
        check_kind(NULL);
    }
    else {
        CHECK(!PyErr_Occurred() && slow_is_valid(&v.tensor, v.flags) && v.readonly == DLPACK_PY_WRITABLE &&
              !v.overlaps);
        CHECK(v.tensor.ndim == prototype.t.ndim && dlpack_py_dtype(&v.tensor) == dlpack_py_dtype(&prototype.t));
        for (i = 0; i < v.tensor.ndim; i++)
            CHECK(v.tensor.shape[i] == prototype.t.shape[i]);
        CHECK(v.tensor.device.device_type == prototype.t.device.device_type);
        CHECK(slow_is_readable(v.tensor.device) || v.tensor.device.device_id == prototype.t.device.device_id);
        CHECK(table >= 0 || prototype.t.device.device_type == kDLCPU);
        script_take(in);
        before = calls[0] + calls[1] + calls[2];
        if ((kind & 1) != 0)
            v.readonly = DLPACK_PY_READ_ONLY; /* then the managed tensor does not fit to the view */
        if ((kind & 2) != 0 && v.tensor.ndim > 0)
            v.tensor.ndim--;
        if ((kind & 4) != 0)
            v.tensor.dtype.lanes = 0; /* refused */
        expect(&v);
        result = dlpack_py_return_like_steal(like, &v);
        check_empty(&v);
        CHECK(table >= 0 || like == Py_None || calls[0] + calls[1] + calls[2] == before);
        if (result == NULL) {
            allowed |= table < 0 && like == Py_None ? TYPE_ERROR : 0; /* no from_dlpack */
            check_kind(NULL);
        }
        CHECK(!PyErr_Occurred());
        Py_XDECREF(result);
    }
    tensor_free(&prototype);
}

static void
run_holder(Input *in)
{
    PyTypeObject *const types[] = {holder_type, holder_type, derived_type, overriding_type};
    const unsigned kind = take(in), which = kind % 8;
    PyTypeObject *const type = TAKE(in, types);
    PyObject *const attribute = capsules[which < 6 ? 0 : which - 5];
    Holder *holder = (Holder *)object_new(type);
    int table, used, round, i;
    const int rounds = 1 + (int)(kind / 8 % 3);

    tables_take(in);
    table = type == overriding_type || attribute != capsules[0] ? -1 : find_table();
    CHECK(PyObject_SetAttrString((PyObject *)holder_type, "__dlpack_c_exchange_api__", attribute) == 0);
    PyType_Modified(holder_type);
    holder->is_conj = (int)take_below(in, 4);
    holding = attribute == capsules[0] ? (PyObject *)holder : NULL;
    for (round = 0; round < rounds; round++) { /* from the second on the type is known */
        const unsigned operation = take(in);
        static int64_t shape[] = {1, 3};
        const DLTensor likely =
            dlpack_py_cpu_tensor(arena, DLPACK_PY_FLOAT32, (int32_t)(operation / 4 % 3), shape, NULL);
        dlpack_py_view v;
        int result;
        Want want;

        memset(calls, 0, sizeof(calls));
        allowed = is_lent = 0;
        holder->mode = operation >= 192;
        CHECK(dlpack_py_has_tensor((PyObject *)holder) == 1 && !PyErr_Occurred());
        want_take(in, &want, &likely);
        holder->in = *in;
        if (operation % 4 == 3)
            run_like(in, operation % 64 == 63 ? Py_None : (PyObject *)holder, operation % 64 == 63 ? -1 : table);
        else {
            script_take(in);
            memset(&v, 0xaa, sizeof(v));
            if (operation % 32 == 5)
                fuzz_fails = 0;
            result = operation % 4 == 2 ? dlpack_py_borrow((PyObject *)holder, &want.want, &v)
                                        : dlpack_py_consume((PyObject *)holder, &want.want, &v);
            fuzz_fails = -1;
            if (result == 0) {
                check_view(&v, &want.want);
                CHECK(!is_lent || !want.want.writable);
                CHECK(calls[3] > 0 || v.tensor.device.device_type == kDLCPU);                     /* X4 */
                CHECK(calls[3] > 0 || holder->is_conj == 0 || v.tensor.dtype.code != kDLComplex); /* X9 */
                if (v.managed == NULL) {
                    CHECK(is_lent && lent_count > 0);
                    check_same(&v, &lent[lent_count - 1].t, 0, DLPACK_PY_READ_ONLY_UNKNOWN);
                }
                else
                    check_taken(&v, made[made_count - 1], &want.want);
                dlpack_py_release(&v);
                check_empty(&v);
            }
            else {
                CHECK(result == -1);
                check_empty(&v);
                check_kind(&want.want);
            }
            if ((want.want.options & DLPACK_PY_WANT_NO_TABLE) != 0)
                CHECK(calls[0] + calls[1] + calls[2] == 0);
        }
        want_free(&want);
        for (i = 0; i < 3; i++)
            CHECK(calls[i] == 0 || i == table);
        used = calls[0] + calls[1] + calls[2];
        CHECK(used <= 2 && calls[3] <= 2);
    }
    holding = NULL;
    Py_DECREF(holder);
}

/* Has a view the tensor of an object? Its table or __dlpack__ exports what is described. */
static void
check_mine(const dlpack_py_view *v, const Mine *mine, const dlpack_py_want *want)
{
    const uint64_t described = slow_kept_flags(v->tensor.dtype, mine->given.flags);
    const int is_lent = v->managed == NULL;
    DLTensor given = mine->given.t;

    check_view(v, want);
    given.device = v->tensor.device; /* it is readable: the CPU where it was asked for, and id 0 (D9) */
    if (is_lent)
        CHECK(described == 0 && !want->writable && (mine->options & DLPACK_PY_OFFER_DO_NOT_LEND) == 0); /* X3 */
    check_same(v, &given, described, is_lent ? DLPACK_PY_READ_ONLY_UNKNOWN : slow_readonly(described));
}

/* The functions of the header's table refuse NULL (X6) and other objects (X7), and give what __dlpack__ would. Returns
 * a managed tensor, or NULL. */
static DLManagedTensorVersioned *
call_table(Mine *mine, unsigned kind, int is_valid)
{
    const int is_overriding = Py_TYPE(mine) == mine_overriding_type;
    DLTensor given = mine->given.t;
    void *const object = kind % 32 == 31 ? NULL : kind % 32 == 30 ? (void *)Py_None : (void *)mine;
    const int has_out = kind % 64 != 60;
    const int refusals = BUFFER_ERROR | (object == mine ? 0 : TYPE_ERROR) | (has_out ? 0 : VALUE_ERROR);
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_view lent;
    int status;

    memset(&lent, 0, sizeof(lent));
    status = mine_table.api.dltensor_from_py_object_no_sync(object, has_out ? &lent.tensor : NULL);
    CHECK((status == 0) == !PyErr_Occurred());
    if (status == 0) {
        lent.readonly = DLPACK_PY_READ_ONLY_UNKNOWN;
        CHECK(object == mine && has_out && is_valid && !is_overriding);
        CHECK(lent.tensor.ndim == 0 || lent.tensor.strides != NULL);
        CHECK((mine->options & DLPACK_PY_OFFER_DO_NOT_LEND) == 0 && (mine->given.flags & 1) == 0); /* X3 */
        given.device.device_id = 0;                                                                /* D9 */
        check_same(&lent, &given, 0, DLPACK_PY_READ_ONLY_UNKNOWN);
    }
    else
        CHECK((take_exception() & refusals) != 0);
    status = mine_table.api.managed_tensor_from_py_object_no_sync(object, has_out ? &managed : NULL);
    CHECK((status == 0) == (managed != NULL) && (status == 0) == !PyErr_Occurred());
    CHECK((status == 0) == (object == mine && has_out && is_valid && !is_overriding));
    if (status != 0)
        CHECK((take_exception() & refusals) != 0);
    return managed;
}

/* An object of a type with a table of the header, which may have embedded tensors. */
static void
run_mine(Input *in)
{
    PyTypeObject *const types[] = {mine_type, mine_type, mine_derived_type, mine_overriding_type};
    const unsigned kind = take(in);
    Mine *mine = (Mine *)object_new(types[kind / 64]);
    const Py_ssize_t before = Py_REFCNT(mine);
    Tensor *given = &mine->given;
    DLManagedTensorVersioned *managed;
    dlpack_py_view v;
    PyObject *result;
    void *out = NULL;
    int round, status, is_valid;
    Want want;

    PyType_Modified(mine_type);
    tensor_take(in, given);
    if (slow_is_valid(&given->t, given->flags) && !slow_is_in_arena(&given->t, given->flags))
        given->t = dlpack_py_cpu_tensor(arena + kind % 8, DLPACK_PY_INT16, 0, NULL, NULL);
    mine->options = take(in) >= 192 ? DLPACK_PY_OFFER_DO_NOT_LEND : 0;
    is_valid = slow_is_valid(&given->t, given->flags) && slow_is_readable(given->t.device);
    if ((kind & 1) != 0 && mine->options == 0 &&
        dlpack_py_embed(&mine->embedded, (PyObject *)mine, &given->t, given->flags) < 0) {
        CHECK((take_exception() & (BUFFER_ERROR | VALUE_ERROR)) != 0);
        CHECK(!slow_is_valid(&given->t, given->flags) || (given->t.strides == NULL && given->t.ndim > 0));
        memset(&mine->embedded, 0, sizeof(mine->embedded));
    }
    for (round = 0; round < 3; round++) {
        want_take(in, &want, &given->t);
        memset(&v, 0xaa, sizeof(v));
        allowed = slow_is_large(given) ? MEMORY_ERROR : 0; /* of a copy */
        status = round == 1 && kind % 8 >= 4 ? dlpack_py_borrow((PyObject *)mine, &want.want, &v)
                                             : dlpack_py_consume((PyObject *)mine, &want.want, &v);
        if (status == 0) {
            CHECK(is_valid);
            check_mine(&v, mine, &want.want);
            CHECK(Py_REFCNT(mine) == before + (v.managed != NULL && (v.flags & DLPACK_PY_FLAG_IS_COPIED) == 0));
            if (v.managed != NULL && kind % 16 == 2) {
                script_take(in);
                expect(&v);
                mine_fails = kind % 32 == 18;
                result = dlpack_py_return_like_steal((PyObject *)mine, &v);
                check_empty(&v);
                if (result == NULL)
                    CHECK((take_exception() & (allowed | BUFFER_ERROR | MEMORY_ERROR | FOREIGN_ERROR)) != 0);
                else if (Py_TYPE(result) == mine_type)
                    CHECK(slow_size(&((Mine *)result)->view.tensor) == 0 ||
                          dlpack_py_data(&((Mine *)result)->view) == given_data);
                else
                    CHECK(Py_TYPE(mine) == mine_overriding_type); /* the module's from_dlpack has made it */
                mine_fails = 0;
                Py_XDECREF(result);
            }
            dlpack_py_release(&v);
        }
        else {
            check_empty(&v);
            check_kind(&want.want);
        }
        CHECK(Py_REFCNT(mine) == before);
        want_free(&want);
    }
    if (kind % 8 == 6) {
        allowed = 0;
        memset(calls, 0, sizeof(calls));
        run_like(in, (PyObject *)mine, Py_TYPE(mine) == mine_overriding_type ? -1 : 0);
    }
    managed = call_table(mine, kind, is_valid);
    if (managed != NULL && kind % 4 == 3) {
        status = mine_table.api.managed_tensor_to_py_object_no_sync(managed, kind % 32 == 3 ? NULL : &out);
        CHECK((status == 0) == (out != NULL) && (status == 0) == !PyErr_Occurred());
        if (status != 0)
            (void)take_exception();
        Py_XDECREF((PyObject *)out);
        managed = NULL;
    }
    CHECK(Py_REFCNT(mine) == before + (managed != NULL && (managed->flags & DLPACK_PY_FLAG_IS_COPIED) == 0));
    Py_DECREF(mine);
    if (managed != NULL) /* often the last reference, of an object that embeds this managed tensor */
        managed->deleter(managed);
}

static void
run(Input *in)
{
    size_t i;
    made_count = lent_count = 0;
    if (take(in) < 192)
        run_holder(in);
    else
        run_mine(in);
    for (i = 0; i < made_count; i++) {
        CHECK(made[i]->deleted == has_deleter[i]);
        managed_free(made[i]);
    }
    for (i = 0; i < lent_count; i++)
        tensor_free(&lent[i]);
}

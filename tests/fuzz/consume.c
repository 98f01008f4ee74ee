/* consume: capsules of any name, and managed tensors of any content, from an object, as a capsule, from a fallback and as
 * an object. Each deleter is called once, by the view or by the capsule; what is taken is valid and meets the
 * requirements; what the fast paths answer for a type that they know, the plain functions answer too. */
#include "embedded.h"

#define VERSIONED "dltensor_versioned"
#define LEGACY "dltensor"

static char versioned_copy[] = VERSIONED, legacy_copy[] = LEGACY; /* equal text at another address */
static const char *const names[] = {VERSIONED, VERSIONED,         versioned_copy, LEGACY, legacy_copy,
                                    "other",   "used_" VERSIONED, "used_" LEGACY, NULL,   "dltensor_"};

/* ---- Capsules ----------------------------------------------------------- */

static int
is_offered(const char *name)
{
    return name != NULL && (strcmp(name, VERSIONED) == 0 || strcmp(name, LEGACY) == 0);
}

static void
call_deleter(Managed *managed)
{
    if (!managed_has_deleter(managed))
        return;
    managed->raises = 0;
    if (managed->form == DLPACK_PY_VERSIONED)
        managed->as.versioned.deleter(&managed->as.versioned);
    else
        managed->as.legacy.deleter(&managed->as.legacy);
}

/* K1: a capsule that was not consumed calls the deleter. */
static void
capsule_destructor(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    if (is_offered(name))
        call_deleter((Managed *)PyCapsule_GetPointer(capsule, name));
}

static PyObject *
make_capsule(Managed *managed, const char *name)
{
    PyObject *capsule = PyCapsule_New(managed, name, capsule_destructor);
    CHECK(capsule != NULL);
    return capsule;
}

/* All managed tensors of a run. */
static struct Made {
    Managed *managed;
    int has_deleter, is_unknown; /* is_unknown: of another major version */
} made[8];
static size_t made_count;

static Managed *
take_managed(Input *in, int32_t form)
{
    Managed *managed = managed_take(in, form);
    CHECK(made_count < COUNT(made));
    made[made_count].managed = managed;
    made[made_count].has_deleter = managed_has_deleter(managed);
    made[made_count++].is_unknown = form == DLPACK_PY_VERSIONED && managed->as.versioned.version.major != 1;
    return managed;
}

/* ---- A producer --------------------------------------------------------- */

enum { PLAIN, OLD_SIGNATURE, RAISES, NO_CAPSULE, NULL_ANSWER, CHANGES_TYPE, RAISES_TYPE_ERROR, GIVES_CPU, MODES };

typedef struct Giver {
    PyObject_HEAD
    Input in; /* what it answers */
    const char *name;
    int mode, calls;
} Giver;

static PyTypeObject *giver_type;
static const dlpack_py_request *asked; /* what the import asks for; NULL: nothing */

/* Do the arguments of __dlpack__ say what the consumer asks for (C1, C3 to C5)? Returns 1 if they ask for the CPU. */
static int
check_arguments(PyObject *const *args, PyObject *kwnames, int call)
{
    static const dlpack_py_request nothing;
    const dlpack_py_request *request = asked != NULL ? asked : &nothing;
    const Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    PyObject *stream = NULL, *version = NULL, *device = NULL, *copy = NULL;
    Py_ssize_t i;
    int to_cpu = 0;

    for (i = 0; i < given; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        PyObject **value = PyUnicode_CompareWithASCIIString(name, "stream") == 0        ? &stream
                           : PyUnicode_CompareWithASCIIString(name, "max_version") == 0 ? &version
                           : PyUnicode_CompareWithASCIIString(name, "dl_device") == 0   ? &device
                           : PyUnicode_CompareWithASCIIString(name, "copy") == 0        ? &copy
                                                                                        : NULL;
        CHECK(value != NULL && *value == NULL);
        *value = args[i];
    }
    if (version != NULL)
        CHECK(is_pair_of(version, DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR));
    else /* an old signature */
        CHECK(call > 1 && device == NULL && copy == NULL);
    if (device != NULL) {
        to_cpu = is_pair_of(device, kDLCPU, 0);
        CHECK((to_cpu && !request->has_device && call > 1) ||
              (request->has_device &&
               is_pair_of(device, (long)(int32_t)request->device.device_type, request->device.device_id)));
    }
    else
        CHECK(version == NULL || !request->has_device);
    if (copy != NULL)
        CHECK(request->copy != DLPACK_PY_COPY_AS_NEEDED &&
              copy == (request->copy == DLPACK_PY_COPY_ALWAYS ? Py_True : Py_False));
    else
        CHECK(version == NULL || request->copy == DLPACK_PY_COPY_AS_NEEDED);
    CHECK(stream == NULL || !to_cpu || request->has_device); /* the second call of C5 has none */
    if (stream != NULL)
        CHECK(request->stream.kind == DLPACK_PY_STREAM_NO_SYNC
                  ? PyLong_AsLong(stream) == -1
                  : request->stream.kind == DLPACK_PY_STREAM_HANDLE &&
                        PyLong_AsUnsignedLongLong(stream) == request->stream.handle);
    else
        CHECK(request->stream.kind == DLPACK_PY_STREAM_NONE || (to_cpu && !request->has_device));
    CHECK(!PyErr_Occurred());
    return to_cpu;
}

static PyObject *
giver_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Giver *giver = (Giver *)self;
    const Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    Input in = giver->in; /* each call gives an equal tensor */
    Managed *managed;
    int to_cpu;

    giver->calls++;
    CHECK(nargs == 0 && !PyErr_Occurred());
    to_cpu = check_arguments(args, kwnames, giver->calls);
    switch (giver->mode) {
    case OLD_SIGNATURE:
        if (given == 0 || (given == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "stream") == 0))
            break;
        PyErr_SetString(PyExc_TypeError, "takes no keyword but stream");
        return NULL;
    case RAISES: raise_any(&in); return NULL;
    case RAISES_TYPE_ERROR: PyErr_SetString(PyExc_TypeError, "by the target"); return NULL;
    case NO_CAPSULE: return PyLong_FromLong(5);
    case CHANGES_TYPE: PyType_Modified(giver_type); break;
    default: break;
    }
    managed = take_managed(&in, giver->name != NULL && strcmp(giver->name, LEGACY) == 0 ? DLPACK_PY_LEGACY
                                                                                        : DLPACK_PY_VERSIONED);
    if (giver->mode == GIVES_CPU && to_cpu && slow_is_readable(managed->tensor.t.device)) { /* C5 */
        managed->tensor.t.device = dlp_make_device(kDLCPU, 0);
        if (managed->form == DLPACK_PY_LEGACY)
            managed->as.legacy.dl_tensor.device = managed->tensor.t.device;
        else if (managed->as.versioned.version.major == 1)
            managed->as.versioned.dl_tensor.device = managed->tensor.t.device;
    }
    return make_capsule(managed, giver->name);
}

static Giver *
make_giver(Input in, const char *name, int mode)
{
    Giver *giver = (Giver *)object_new(giver_type);
    giver->in = in;
    giver->name = name;
    giver->mode = mode;
    return giver;
}

static void
set_up(void)
{
    static PyMethodDef methods[] = {DLPACK_PY_METHODS(giver_dlpack, dlpack_py_cpu_device), {NULL, NULL, 0, NULL}};
    PyType_Slot slots[] = {{Py_tp_methods, methods}, {Py_tp_dealloc, SLOT(object_free)}, {0, NULL}};
    giver_type = make_type("fuzz.Giver", sizeof(Giver), slots);
}

/* ---- What a fallback makes ---------------------------------------------- */

static Input fallback_in;
static int fallback_mode; /* MODES: it must not be called */

static int
fallback(void *object, DLManagedTensorVersioned **out)
{
    (void)object;
    CHECK(!PyErr_Occurred());
    CHECK(fallback_mode != MODES); /* C6: the object has __dlpack__ */
    if (fallback_mode == RAISES) {
        raise_any(&fallback_in);
        return -1;
    }
    if (fallback_mode == NO_CAPSULE)
        return -1; /* without an exception */
    if (fallback_mode == NULL_ANSWER)
        return 0; /* does not know the object */
    *out = &take_managed(&fallback_in, DLPACK_PY_VERSIONED)->as.versioned;
    return 0;
}

/* ---- Imports ------------------------------------------------------------ */

static void
request_take(Input *in, dlpack_py_request *request)
{
    const unsigned kind = take(in);
    memset(request, 0, sizeof(*request));
    request->copy = (int32_t)(kind % 4);
    request->has_device = (kind & 4) != 0;
    if (request->has_device)
        request->device = dlp_make_device(TAKE(in, fuzz_devices), (int32_t)take_below(in, 2));
    if ((kind & 8) != 0)
        request->stream.kind = (int32_t)take_below(in, 3);
    request->stream.handle = take(in);
}

/* Has a run made a tensor whose copy needs more memory than there is? */
static int
is_large(void)
{
    size_t i;
    for (i = 0; i < made_count; i++) {
        if (slow_is_large(&made[i].managed->tensor))
            return 1;
    }
    return 0;
}

/* After an import: the view is right, or empty with an exception of a documented kind. Returns 0 or the kind. */
static int
check_result(int result, const dlpack_py_view *v, const dlpack_py_want *want, int allowed)
{
    int kind;
    if (result == 0) {
        check_view(v, want);
        return 0;
    }
    CHECK(result == -1);
    check_empty(v);
    kind = take_exception();
    CHECK((kind & (allowed | BUFFER_ERROR)) != 0 || (kind == MEMORY_ERROR && (fuzz_refused > 0 || is_large())) ||
          (kind == SYSTEM_ERROR && !slow_is_want(want)));
    return kind;
}

/* After an import: a deleter has run if the tensor was copied or refused; else it runs with the view. */
static void
check_made(void)
{
    size_t i;
    for (i = 0; i < made_count; i++) {
        CHECK(made[i].managed->deleted == made[i].has_deleter);
        managed_free(made[i].managed);
    }
    made_count = 0;
}

/* A tensor that surely is accepted. */
static int
is_met(const Managed *managed, const dlpack_py_want *want)
{
    const DLTensor *t = &managed->tensor.t;
    const int readonly = managed->form == DLPACK_PY_LEGACY                         ? DLPACK_PY_READ_ONLY_UNKNOWN
                         : (managed->tensor.flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? DLPACK_PY_READ_ONLY
                                                                                   : DLPACK_PY_WRITABLE;
    return slow_is_valid(t, managed->tensor.flags) && t->device.device_type == kDLCPU && slow_is_want(want) &&
           slow_meets_fixed(t, want, 1) && slow_meets_curable(t, readonly, want) == 1 && fuzz_refused == 0;
}

/* What was taken is what was asked for. must_copy: for copy=True, as the producer cannot say that it has copied (C3). */
static void
check_request(const dlpack_py_view *v, const dlpack_py_request *request, int is_copy, int must_copy)
{
    if (request == NULL)
        return;
    CHECK(!is_copy || request->copy < DLPACK_PY_COPY_NEVER);
    CHECK(is_copy || request->copy != DLPACK_PY_COPY_ALWAYS || !must_copy);
    CHECK(!request->has_device || v->tensor.device.device_type == request->device.device_type);
}

static int is_raising; /* views are released while an exception is set */

/* A capsule, directly. With request, which may be NULL. Returns the kind of the exception. */
static int
import_capsule(Input *in, const char *name, const dlpack_py_want *want, const dlpack_py_request *request,
               dlpack_py_view *v)
{
    const int32_t form = name != NULL && strcmp(name, LEGACY) == 0 ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
    Managed *managed = take_managed(in, form);
    const struct Made *of = &made[made_count - 1];
    PyObject *capsule = make_capsule(managed, name);
    const char *after;
    int result, kind;

    CHECK(dlpack_py_has_tensor(capsule) == is_offered(name));
    result =
        request == NULL ? dlpack_py_consume(capsule, want, v) : dlpack_py_consume_request(capsule, request, want, v);
    kind = check_result(result, v, want, is_offered(name) ? 0 : TYPE_ERROR | VALUE_ERROR);
    after = PyCapsule_GetName(capsule);
    if (result == 0) {
        CHECK(is_offered(name) && strncmp(after, "used_", 5) == 0 && !of->is_unknown);
        CHECK(managed->deleted == (v->managed != managed && of->has_deleter)); /* a copy: it is not needed any more */
        check_taken(v, managed, want);
        check_request(v, request, v->managed != managed, 1);
    }
    else {
        CHECK(request != NULL || !is_offered(name) || of->is_unknown || !is_met(managed, want));
        if (is_offered(name) && of->is_unknown && slow_is_want(want)) /* K6: taken and deleted, unread */
            CHECK(managed->deleted == of->has_deleter && strncmp(after, "used_", 5) == 0);
        else
            CHECK(managed->deleted == 0 && after == name);
    }
    Py_DECREF(capsule);
    if (!is_offered(name)) /* the capsule's destructor calls no deleter under such a name */
        call_deleter(managed);
    return kind;
}

static int
is_equal(const dlpack_py_view *a, const dlpack_py_view *b)
{
    const DLTensor *s = &a->tensor, *t = &b->tensor;
    int32_t i;
    if (s->ndim != t->ndim || dlpack_py_dtype(s) != dlpack_py_dtype(t) || a->readonly != b->readonly ||
        a->overlaps != b->overlaps || a->flags != b->flags || a->form != b->form ||
        s->device.device_type != t->device.device_type || s->byte_offset != t->byte_offset ||
        (a->allocated == NULL) != (b->allocated == NULL))
        return 0;
    for (i = 0; i < s->ndim; i++) {
        if (s->shape[i] != t->shape[i] || s->strides[i] != t->strides[i])
            return 0;
    }
    return s->data == t->data || (a->flags & b->flags & DLPACK_PY_FLAG_IS_COPIED) != 0; /* two copies */
}

static void
release(dlpack_py_view *v)
{
    if (is_raising)
        PyErr_SetString(PyExc_KeyError, "by the target");
    dlpack_py_release(v);
    check_empty(v);
    dlpack_py_release(v); /* does nothing */
    CHECK((PyErr_Occurred() != NULL) == is_raising);
    if (is_raising) /* K2: the deleter has not replaced it */
        CHECK(PyErr_ExceptionMatches(PyExc_KeyError));
    PyErr_Clear();
}

/* An object, whose type may be known; then an equal capsule without the fast paths. */
static void
run_object(Input *in, const dlpack_py_want *want, const dlpack_py_request *request)
{
    const unsigned first = take(in), how = take(in);
    const char *name = TAKE(in, names);
    const int mode = how < 128 ? PLAIN : (int)(how % MODES);
    const int is_plain = mode == PLAIN || mode == CHANGES_TYPE || mode == GIVES_CPU;
    const int allowed = is_plain || mode == OLD_SIGNATURE ? (is_offered(name) ? 0 : TYPE_ERROR | VALUE_ERROR)
                                                          : TYPE_ERROR | FOREIGN_ERROR | INTERRUPT | ATTRIBUTE_ERROR |
                                                                VALUE_ERROR | MEMORY_ERROR | RUNTIME_ERROR;
    const Input simple = {NULL, 0};
    Input again = *in;
    dlpack_py_view v, other;
    Giver *giver;
    int result, kind, kind_other;

    PyType_Modified(giver_type); /* what earlier runs have cached is forgotten */
    if (first >= 64) {           /* a simple tensor of the same type, which is accepted: now the type is known */
        giver = make_giver(simple, VERSIONED, first >= 224 ? OLD_SIGNATURE : PLAIN);
        made_count = 0;
        CHECK(dlpack_py_consume((PyObject *)giver, NULL, &v) == 0);
        release(&v);
        if (first % 2 != 0) {
            CHECK(dlpack_py_consume((PyObject *)giver, NULL, &v) == 0);
            release(&v);
        }
        Py_DECREF(giver);
        check_made();
    }
    giver = make_giver(*in, name, mode);
    memset(&v, 0xaa, sizeof(v));
    asked = request;
    if (how % 16 == 1)
        fuzz_fails = 0;
    result = request != NULL ? dlpack_py_consume_request((PyObject *)giver, request, want, &v)
             : how % 32 < 28 ? dlpack_py_consume((PyObject *)giver, want, &v)
                             : dlpack_py_borrow((PyObject *)giver, want, &v);
    fuzz_fails = -1;
    kind = check_result(result, &v, want, allowed);
    asked = NULL;
    if (result == 0) {
        const Managed *last = made[made_count - 1].managed;
        const int is_copy =
            (unsigned char *)dlpack_py_data(&v) < arena || (unsigned char *)dlpack_py_data(&v) >= arena + sizeof(arena);
        check_taken(&v, last, want);
        /* An old signature is not asked for a copy: then the consumer copies (C3). */
        if (slow_size(&v.tensor) != 0 && v.tensor.device.device_type == kDLCPU)
            check_request(&v, request, is_copy, strcmp(name, LEGACY) == 0 || mode == OLD_SIGNATURE);
        CHECK(mode != OLD_SIGNATURE || request == NULL || request->copy != DLPACK_PY_COPY_NEVER);
    }
    CHECK(giver->calls <= (first < 224 && is_plain ? 2 : 4));
    if (mode == PLAIN && made_count == 1 && fuzz_refused == 0 && first < 224 && is_offered(name)) {
        kind_other = import_capsule(&again, name, want, request, &other);
        /* With copy, a capsule alone has less to say than the object. */
        if (request == NULL || request->copy == DLPACK_PY_COPY_AS_NEEDED) {
            CHECK(kind == kind_other);
            CHECK(kind != 0 || is_equal(&v, &other));
        }
        if (kind_other == 0)
            release(&other);
    }
    if (result == 0)
        release(&v);
    Py_DECREF(giver);
    if (!is_offered(name))
        for (; made_count > 0; made_count--) {
            call_deleter(made[made_count - 1].managed);
            managed_free(made[made_count - 1].managed);
        }
}

/* A managed tensor as an object, which is consumed. */
static void
run_steal(Input *in, const dlpack_py_want *want)
{
    const int32_t form = take(in) % 4 == 0 ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
    const unsigned how = take(in);
    Managed *managed = how == 255 ? NULL : take_managed(in, form);
    const int is_valid =
        managed != NULL && !made[0].is_unknown && slow_is_valid(&managed->tensor.t, managed->tensor.flags);
    PyObject *object;
    dlpack_py_view v;
    int result;

    fuzz_fails = how < 16 ? 0 : -1;
    object = how % 2 != 0 ? dlpack_py_object_steal(managed, form) : dlpack_py_capsule_steal(managed, form);
    fuzz_fails = -1;
    if (object == NULL) {
        const int kind = take_exception();
        CHECK(kind == BUFFER_ERROR || (kind == MEMORY_ERROR && fuzz_refused > 0));
        CHECK(managed == NULL || (how % 2 != 0 && (!is_valid || fuzz_refused > 0)));
        return;
    }
    CHECK(how % 2 == 0 || is_valid);
    memset(&v, 0xaa, sizeof(v));
    result = dlpack_py_consume(object, want, &v);
    (void)check_result(result, &v, want, 0);
    if (result == 0 && how % 2 == 0)
        check_taken(&v, managed, want);
    else if (result == 0) { /* the object exports the tensor; data of a legacy tensor counts as read-only (C7) */
        const uint64_t flags = form == DLPACK_PY_LEGACY ? DLPACK_PY_FLAG_READ_ONLY
                                                        : slow_kept_flags(v.tensor.dtype, managed->tensor.flags);
        DLTensor given = managed->tensor.t;
        if (slow_is_readable(given.device))
            given.device = v.tensor.device; /* the CPU where it was asked for, and id 0 (D9) */
        check_same(&v, &given, flags, slow_readonly(flags));
    }
    if (how % 3 == 0)
        Py_CLEAR(object); /* the view keeps the memory */
    if (result == 0)
        release(&v);
    Py_XDECREF(object);
}

/* An object without __dlpack__. */
static void
run_fallback(Input *in, dlpack_py_want *want, const dlpack_py_request *request)
{
    static const int modes[] = {PLAIN, PLAIN, PLAIN, RAISES, NO_CAPSULE, NULL_ANSWER};
    const int allowed = ATTRIBUTE_ERROR | SYSTEM_ERROR;
    dlpack_py_view v;
    int result;

    fallback_mode = TAKE(in, modes);
    fallback_in = *in;
    want->fallback = fallback;
    memset(&v, 0xaa, sizeof(v));
    result =
        request != NULL ? dlpack_py_consume_request(Py_None, request, want, &v) : dlpack_py_consume(Py_None, want, &v);
    (void)check_result(result, &v, want, fallback_mode == RAISES ? 1023 : allowed);
    if (result == 0) {
        check_taken(&v, made[0].managed, want);
        release(&v);
    }
}

static void
run(Input *in)
{
    const unsigned what = take(in);
    static int64_t shape[] = {1, 3};
    const DLTensor likely = dlpack_py_cpu_tensor(arena, DLPACK_PY_FLOAT32, (int32_t)(what % 3), shape, NULL);
    dlpack_py_request request;
    dlpack_py_view v;
    const char *name;
    Want want;

    made_count = 0;
    is_raising = what % 8 >= 6;
    want_take(in, &want, &likely);
    request_take(in, &request);
    switch (what / 32) {
    case 0:
    case 1:
        name = TAKE(in, names);
        fuzz_fails = what % 16 == 1 ? 0 : -1;
        memset(&v, 0xaa, sizeof(v));
        if (import_capsule(in, name, &want.want, what % 2 != 0 ? &request : NULL, &v) == 0)
            release(&v);
        break;
    case 2: run_steal(in, &want.want); break;
    case 3: run_fallback(in, &want.want, what % 2 != 0 ? &request : NULL); break;
    default:
        want.want.fallback = what % 8 < 2 ? fallback : NULL;
        fallback_mode = MODES;
        run_object(in, &want.want, what % 4 == 0 ? &request : NULL);
    }
    check_made();
    want_free(&want);
}

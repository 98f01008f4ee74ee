/* request: the arguments of __dlpack__ and of from_dlpack. The answer is a capsule that fits to the arguments, or an
 * exception of a documented type, and no reference is left. */
#include "embedded.h"
#include "thing.h"

/* ---- Objects as arguments ----------------------------------------------- */

/* An object with __index__, __dlpack_device__ and __dlpack_data_type__, which answer or fail. */
typedef struct Odd {
    PyObject_HEAD
    PyObject *answer; /* NULL: raises */
    PyObject *raised;
} Odd;

static PyTypeObject *odd_type, *thing_type;

static PyObject *
odd_answer(PyObject *self)
{
    Odd *odd = (Odd *)self;
    if (odd->answer == NULL)
        PyErr_SetString(odd->raised, "by the target");
    Py_XINCREF(odd->answer);
    return odd->answer;
}

static PyObject *
odd_method(PyObject *self, PyObject *unused)
{
    (void)unused;
    return odd_answer(self);
}

static void
odd_dealloc(PyObject *self)
{
    Py_XDECREF(((Odd *)self)->answer);
    object_free(self);
}

static const char *const names[] = {"stream", "max_version", "dl_device", "copy", "device", "", "other", "Copy"};

/* A new object of any kind that an argument may be. */
static PyObject *
take_object(Input *in, int depth)
{
    PyObject *const exceptions[] = {PyExc_ZeroDivisionError, PyExc_TypeError, PyExc_KeyboardInterrupt,
                                    PyExc_OverflowError};
    PyObject *made = NULL, *bits;
    Odd *odd;
    unsigned i, count;

    switch (depth > 3 ? 0 : take_below(in, 16)) {
    default: Py_RETURN_NONE;
    case 1: Py_RETURN_TRUE;
    case 2: Py_RETURN_FALSE;
    case 3:
    case 4: return PyLong_FromLong((long)take(in) % 8 - 2);
    case 5: return PyLong_FromLongLong(take_extreme(in));
    case 6: /* up to 16,000 bits: its repr is an error from 4,301 digits on */
        made = PyLong_FromLong((take(in) & 1) != 0 ? -1 : 1);
        bits = PyLong_FromLong((long)take(in) * 64);
        odd = (Odd *)PyNumber_Lshift(made, bits);
        Py_DECREF(made);
        Py_DECREF(bits);
        return (PyObject *)odd;
    case 7: return PyUnicode_FromString(TAKE(in, names));
    case 8: /* a pair of numbers */
    case 9: return Py_BuildValue("(ii)", (int)take_below(in, 4), (int)take_below(in, 4) - 1);
    case 10:
    case 11:
        count = take_below(in, 4);
        made = PyTuple_New((Py_ssize_t)count);
        for (i = 0; i < count; i++)
            PyTuple_SET_ITEM(made, (Py_ssize_t)i, take_object(in, depth + 1));
        return made;
    case 12:
    case 13:
        odd = (Odd *)object_new(odd_type);
        odd->answer = take(in) < 192 ? take_object(in, depth + 1) : NULL;
        odd->raised = TAKE(in, exceptions);
        return (PyObject *)odd;
    case 14: return PyFloat_FromDouble((double)take(in));
    case 15: return PyUnicode_FromString(take(in) < 128 ? "cpu" : "cuda:0");
    }
}

/* The value of an int or of an object with __index__; the text of a request is not read by the header's own code. */
static int
is_integer(PyObject *object, long long *value)
{
    PyObject *index = PyNumber_Index(object);
    int overflow = 0;
    if (index == NULL) {
        PyErr_Clear();
        return 0;
    }
    *value = PyLong_AsLongLongAndOverflow(index, &overflow);
    if (overflow != 0)
        *value = overflow < 0 ? INT64_MIN : INT64_MAX;
    Py_DECREF(index);
    return 1;
}

static int
is_pair(PyObject *object, long long pair[2])
{
    return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == 2 &&
           is_integer(PyTuple_GET_ITEM(object, 0), &pair[0]) && is_integer(PyTuple_GET_ITEM(object, 1), &pair[1]);
}

/* ---- A producer --------------------------------------------------------- */

static PyObject *
thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Thing *thing = (Thing *)self;
    return thing->is_described ? dlpack_py_produce_described(self, thing_describe, args, nargs, kwnames)
                               : dlpack_py_produce(self, &thing->given.t, thing->given.flags, args, nargs, kwnames);
}

static PyObject *
thing_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlpack_py_produce_device(&((Thing *)self)->given.t);
}

static void
set_up(void)
{
    static PyMethodDef odd_methods[] = {{"__dlpack_device__", odd_method, METH_NOARGS, NULL},
                                        {"__dlpack_data_type__", odd_method, METH_NOARGS, NULL},
                                        {NULL, NULL, 0, NULL}};
    static PyMethodDef thing_methods[] = {DLPACK_PY_METHODS(thing_dlpack, thing_device), {NULL, NULL, 0, NULL}};
    PyType_Slot odd_slots[] = {
        {Py_nb_index, SLOT(odd_answer)}, {Py_tp_methods, odd_methods}, {Py_tp_dealloc, SLOT(odd_dealloc)}, {0, NULL}};
    PyType_Slot thing_slots[] = {{Py_tp_methods, thing_methods}, {Py_tp_dealloc, SLOT(thing_dealloc)}, {0, NULL}};
    odd_type = make_type("fuzz.Odd", sizeof(Odd), odd_slots);
    thing_type = make_type("fuzz.Thing", sizeof(Thing), thing_slots);
}

static Thing *
take_thing(Input *in)
{
    static const uint32_t options[] = {0, DLPACK_PY_OFFER_REFUSE_NEGATIVE, DLPACK_PY_OFFER_COPY_NEGATIVE,
                                       DLPACK_PY_OFFER_COPY_READ_ONLY, DLPACK_PY_OFFER_READ_ONLY_UNKNOWN};
    Thing *thing = (Thing *)object_new(thing_type);
    Tensor *given = &thing->given;

    thing->is_counted = 1;
    thing->is_described = (int)take_below(in, 2);
    thing->options = thing->is_described ? TAKE(in, options) : 0;
    tensor_take(in, given);
    given->flags &= ~DLPACK_PY_FLAG_IS_COPIED;
    if (slow_is_valid(&given->t, given->flags) && !slow_is_in_arena(&given->t, given->flags) &&
        slow_is_readable(given->t.device)) /* a copy reads it */
        given->t = dlpack_py_cpu_tensor(arena, DLPACK_PY_INT32, 0, NULL, NULL);
    return thing;
}

/* ---- __dlpack__ --------------------------------------------------------- */

/* Has a copy the elements of the tensor? */
static void
check_copied(const DLTensor *copy, const Tensor *given)
{
    const int64_t bits = (int64_t)slow_bits(given->t.dtype, given->flags);
    int64_t to[SLOW_MAX], from[SLOW_MAX], count = slow_offsets(copy, 'C', to), n;

    CHECK(slow_offsets(&given->t, 'C', from) == count);
    CHECK(slow_size(copy) == 0 || (uintptr_t)copy->data % 64 == 0);
    for (n = 0; n < count && bits % 8 == 0; n++)
        CHECK(memcmp((char *)copy->data + to[n] * bits / 8, (char *)dlp_first_element(&given->t) + from[n] * bits / 8,
                     (size_t)bits / 8) == 0);
}

/* A capsule fits to the arguments (NULL: not given) and to the object. */
static void
check_capsule(PyObject *capsule, const Thing *thing, PyObject *const values[4])
{
    const DLTensor *t = &thing->given.t, *made;
    const char *name = PyCapsule_GetName(capsule);
    const int is_versioned = strcmp(name, "dltensor_versioned") == 0;
    const int copies = values[3] == Py_True, never = values[3] == Py_False;
    void *managed = PyCapsule_GetPointer(capsule, name);
    const uint64_t flags = is_versioned ? ((DLManagedTensorVersioned *)managed)->flags : 0;
    long long pair[2] = {0, 0}, stream = -1;
    int is_copy;

    CHECK(is_versioned || strcmp(name, "dltensor") == 0);
    CHECK(slow_is_valid(t, thing->given.flags));
    CHECK(values[1] == NULL || values[1] == Py_None || is_pair(values[1], pair));
    CHECK(is_versioned == (pair[0] >= 1));
    made = is_versioned ? &((DLManagedTensorVersioned *)managed)->dl_tensor : &((DLManagedTensor *)managed)->dl_tensor;
    CHECK(slow_is_valid(made, flags) && made->ndim == t->ndim && slow_size(made) == slow_size(t));
    if (values[0] != NULL && values[0] != Py_None) {
        CHECK(is_integer(values[0], &stream));
        CHECK(made->device.device_type != kDLCPU || stream == -1);
    }
    if (values[2] != NULL && values[2] != Py_None)
        CHECK(is_pair(values[2], pair) && pair[0] == (long long)made->device.device_type &&
              pair[1] == made->device.device_id);
    CHECK(values[3] == NULL || copies || never || values[3] == Py_None);
    is_copy = slow_size(t) != 0 && made->data != (char *)t->data + t->byte_offset;
    CHECK(!is_copy || !never);
    CHECK(!copies || is_copy || slow_size(t) == 0);
    if (is_versioned) {
        CHECK(((flags & DLPACK_PY_FLAG_IS_COPIED) != 0) == is_copy || slow_size(t) == 0);
        CHECK(slow_size(t) == 0 ||
              ((flags & DLPACK_PY_FLAG_READ_ONLY) != 0) == (!is_copy && (thing->given.flags & 1) != 0));
    }
    else /* no flags: read-only data is not exported in place, padded data is not exported */
        CHECK((is_copy || copies || (thing->given.flags & 1) == 0 || thing->options != 0) &&
              ((thing->given.flags & 4) == 0 || t->dtype.bits >= 8));
    if (is_copy)
        check_copied(made, &thing->given);
}

/* Both ways to read the arguments give the same. */
static void
check_parsed(PyObject *const *args, PyObject *kwnames, PyObject *const values[4])
{
    dlpack_py_request fast, slow;
    int kind = 0;

    memset(&fast, 0xaa, sizeof(fast));
    memset(&slow, 0xaa, sizeof(slow));
    if (dlpack_py_parse_request(args, 0, kwnames, &fast) < 0)
        kind = take_exception();
    if (dlpack_py_parse_request_obj_args(values[0], values[1], values[2], values[3], &slow) < 0)
        CHECK(take_exception() == kind);
    else
        CHECK(kind == 0 && memcmp(&fast, &slow, sizeof(fast)) == 0);
}

static void
run_dlpack(Input *in)
{
    Thing *thing = take_thing(in);
    PyObject *args[8] = {NULL}, *values[4] = {NULL, NULL, NULL, NULL}, *kwnames = NULL, *capsule;
    const unsigned kind = take(in), named = take_below(in, 6);
    const Py_ssize_t positional = kind < 16 ? (Py_ssize_t)take_below(in, 3) - 1 : 0;
    const Py_ssize_t before = Py_REFCNT(thing);
    int known = positional == 0;
    unsigned i, k, n = positional > 0 ? (unsigned)positional : 0;
    Py_ssize_t p;

    for (p = 0; p < positional; p++)
        args[p] = take_object(in, 0);
    if (named > 0 || kind % 2 == 0)
        kwnames = PyTuple_New(named);
    for (i = 0; i < named; i++) {
        k = take(in);
        const char *name = k < 224 ? names[k % 4] : names[k % COUNT(names)]; /* most are known */
        PyTuple_SET_ITEM(kwnames, i, (kind & 32) != 0 ? PyUnicode_FromString(name) : PyUnicode_InternFromString(name));
        args[n] = (kind & 128) != 0 && i == 0 && k % 4 == 1 ? Py_BuildValue("(ii)", 1, 3) : take_object(in, 0);
        for (k = 0; k < 4 && strcmp(names[k], name) != 0; k++)
            ;
        known &= k < 4;
        if (k < 4)
            values[k] = args[n];
        n++;
    }
    if (known)
        check_parsed(args, kwnames, values);
    if ((kind & 64) != 0)
        fuzz_fails = (int)take_below(in, 3);
    capsule = thing_dlpack((PyObject *)thing, args, positional, kwnames);
    fuzz_fails = -1;
    if (capsule != NULL) {
        CHECK(!PyErr_Occurred() && known);
        check_capsule(capsule, thing, values);
        CHECK(Py_REFCNT(thing) <= before + 1);
        Py_DECREF(capsule);
    }
    else {
        const int error = take_exception();
        CHECK((error & (BUFFER_ERROR | VALUE_ERROR | TYPE_ERROR | FOREIGN_ERROR | INTERRUPT)) != 0 ||
              (error == MEMORY_ERROR && (fuzz_refused > 0 || slow_is_large(&thing->given))) ||
              (error == SYSTEM_ERROR && positional < 0) || error == OTHER_ERROR);
        /* The simplest request is met. */
        CHECK(positional != 0 || named != 0 || fuzz_refused > 0 ||
              !slow_is_valid(&thing->given.t, thing->given.flags) || thing->given.t.device.device_type != kDLCPU ||
              thing->given.flags != 0 || thing->options != 0);
    }
    CHECK(Py_REFCNT(thing) == before);
    for (i = 0; i < n; i++)
        Py_DECREF(args[i]);
    Py_XDECREF(kwnames);
    Py_DECREF(thing);
}

/* ---- from_dlpack -------------------------------------------------------- */

/* Is a tensor on the device that an argument names? */
static int
is_on(PyObject *device, const DLTensor *t)
{
    long long pair[2] = {0, 0};
    PyObject *answer;
    int is_there;

    if (PyUnicode_Check(device))
        return PyUnicode_CompareWithASCIIString(device, "cpu") == 0 && t->device.device_type == kDLCPU;
    if (PyTuple_Check(device))
        return is_pair(device, pair) && pair[0] == (long long)t->device.device_type;
    answer = PyObject_CallMethod(device, "__dlpack_device__", NULL);
    CHECK(answer != NULL);
    is_there = is_pair(answer, pair) && pair[0] == (long long)t->device.device_type;
    Py_DECREF(answer);
    return is_there;
}

static void
run_from_dlpack(Input *in)
{
    static const char *const keywords[] = {"device", "copy", "dl_device", "x"};
    PyObject *args[6], *kwnames = NULL, *x, *device = NULL;
    const unsigned kind = take(in), named = take_below(in, 4);
    Thing *thing = take_thing(in);
    const Py_ssize_t before = Py_REFCNT(thing);
    Py_ssize_t positional = kind < 240 ? 1 : kind % 3;
    dlpack_py_view v;
    int result, never = 0, always = 0;
    unsigned i, n = 0;
    Want want;

    memset(&v, 0xaa, sizeof(v));
    want_take(in, &want, &thing->given.t);
    x = (kind & 7) == 0 ? take_object(in, 0) : (PyObject *)thing;
    Py_INCREF(x);
    if ((kind & 7) == 1) {
        Py_SETREF(x, PyObject_CallMethod((PyObject *)thing, "__dlpack__", NULL));
        if (x == NULL) {
            PyErr_Clear();
            x = Py_None;
            Py_INCREF(x);
        }
    }
    for (i = 0; i < (unsigned)positional; i++, n++) {
        args[n] = i == 0 ? x : take_object(in, 0);
        if (i == 0)
            Py_INCREF(x);
    }
    if (named > 0)
        kwnames = PyTuple_New(named);
    for (i = 0; i < named; i++, n++) {
        const char *name = TAKE(in, keywords);
        PyTuple_SET_ITEM(kwnames, i, PyUnicode_FromString(name));
        args[n] = take_object(in, 0);
        if (strcmp(name, "device") == 0)
            device = args[n] == Py_None ? NULL : args[n];
        if (strcmp(name, "copy") == 0) {
            never = args[n] == Py_False;
            always = args[n] == Py_True;
        }
    }
    result = dlpack_py_from_dlpack(args, positional, kwnames, (kind & 8) != 0 ? &want.want : NULL, &v);
    if (result == 0) {
        check_view(&v, (kind & 8) != 0 ? &want.want : NULL);
        CHECK(positional == 1 && (device == NULL || is_on(device, &v.tensor)));
        CHECK(!never || x != (PyObject *)thing || dlpack_py_data(&v) == NULL ||
              dlpack_py_data(&v) == dlp_first_element(&thing->given.t));
        CHECK(!always || slow_size(&v.tensor) == 0 || dlpack_py_data(&v) != dlp_first_element(&thing->given.t));
        dlpack_py_release(&v);
        check_empty(&v);
    }
    else {
        CHECK(result == -1);
        (void)take_exception();
        check_empty(&v);
    }
    for (i = 0; i < n; i++)
        Py_DECREF(args[i]);
    Py_XDECREF(kwnames);
    if ((kind & 7) == 0)
        Py_DECREF(x); /* of take_object */
    Py_DECREF(x);
    CHECK(Py_REFCNT(thing) == before);
    Py_DECREF(thing);
    want_free(&want);
}

static void
run_parse(Input *in)
{
    PyObject *object = take_object(in, 0);
    DLDevice device;
    uint32_t dtype;

    if (dlpack_py_parse_device(object, &device) < 0)
        CHECK((take_exception() & (TYPE_ERROR | VALUE_ERROR | FOREIGN_ERROR | INTERRUPT | OTHER_ERROR)) != 0);
    CHECK(!PyErr_Occurred());
    if (dlpack_py_parse_dtype(object, &dtype) < 0)
        CHECK((take_exception() &
               (ATTRIBUTE_ERROR | BUFFER_ERROR | TYPE_ERROR | FOREIGN_ERROR | INTERRUPT | OTHER_ERROR)) != 0);
    else
        CHECK(slow_is_dtype(dlpack_py_cpu_tensor(NULL, dtype, 0, NULL, NULL).dtype));
    Py_DECREF(object);
}

static void
run(Input *in)
{
    switch (take_below(in, 8)) {
    case 7: run_parse(in); break;
    case 5:
    case 6: run_from_dlpack(in); break;
    default: run_dlpack(in);
    }
}

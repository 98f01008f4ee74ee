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
static Thing *moving; /* its shape and strides move when an argument is read; NULL: none */

static void
move(int64_t **block, int64_t **used, size_t size)
{
    int64_t *moved = (int64_t *)malloc(size + !size);
    CHECK(moved != NULL);
    memcpy(moved, *block, size);
    if (*used != NULL)
        *used = moved;
    free(*block);
    *block = moved;
}

static PyObject *
odd_answer(PyObject *self)
{
    Odd *odd = (Odd *)self;
    if (moving != NULL) {
        Tensor *given = &moving->given;
        const int32_t ndim = given->t.ndim < 0 || given->t.ndim > DLPACK_PY_MAX_NDIM ? 0 : given->t.ndim;
        move(&given->shape, &given->t.shape, (size_t)ndim * sizeof(int64_t));
        move(&given->strides, &given->t.strides, (size_t)ndim * sizeof(int64_t));
    }
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
    int64_t number;
    Odd *odd;
    unsigned i, count;

    switch (depth > 3 ? 0 : take_below(in, 16)) {
    default: Py_RETURN_NONE;
    case 1: Py_RETURN_TRUE;
    case 2: Py_RETURN_FALSE;
    case 3:
    case 4: return PyLong_FromLong((long)take(in) % 8 - 2);
    case 5:
        number = take_extreme(in);
        return take(in) >= 192 ? PyLong_FromUnsignedLongLong((uint64_t)number) : PyLong_FromLongLong(number);
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

enum { STREAM, MAX_VERSION, DL_DEVICE, COPY };

/* An argument of __dlpack__: often one that a consumer may pass, else any object. */
static PyObject *
take_argument(Input *in, unsigned which)
{
    static const int versions[][2] = {{1, 0}, {1, 3}, {0, 8}, {2, 0}};
    static const int devices[][2] = {{1, 0}, {1, 0}, {3, 0}, {2, 0}};
    const unsigned kind = take(in), k = kind / 4 % 4;

    if (kind >= 160)
        return take_object(in, 0);
    if (kind % 4 == 3 || which > COPY)
        Py_RETURN_NONE;
    if (which == STREAM)
        return PyLong_FromLong((long)k - 1);
    if (which == COPY)
        return PyBool_FromLong(k < 2);
    return which == MAX_VERSION ? Py_BuildValue("(ii)", versions[k][0], versions[k][1])
                                : Py_BuildValue("(ii)", devices[k][0], devices[k][1]);
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

/* Is an object an int of this value? */
static int
is_index(PyObject *object, long long wanted)
{
    long long value = 0;
    return PyLong_CheckExact(object) && is_integer(object, &value) && value == wanted;
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
    other_owner = PyList_New(0);
    CHECK(other_owner != NULL);
}

/* how: may thing_describe answer in any way? */
static Thing *
take_thing(Input *in, int how)
{
    static const uint32_t options[] = {0, DLPACK_PY_OFFER_REFUSE_NEGATIVE, DLPACK_PY_OFFER_COPY_NEGATIVE,
                                       DLPACK_PY_OFFER_COPY_READ_ONLY, DLPACK_PY_OFFER_READ_ONLY_UNKNOWN};
    Thing *thing = (Thing *)object_new(thing_type);
    Tensor *given = &thing->given;

    thing->is_counted = 1;
    thing->is_described = (int)take_below(in, 2);
    thing->options = thing->is_described ? TAKE(in, options) | TAKE(in, options) : 0;
    thing->how = thing->is_described && how && take(in) >= 128 ? (int)take_below(in, HOW_COUNT) : HOW_USUAL;
    tensor_take(in, given);
    given->flags &= ~DLPACK_PY_FLAG_IS_COPIED;
    if (slow_is_valid(&given->t, given->flags) && !slow_is_in_arena(&given->t, given->flags) &&
        slow_is_readable(given->t.device)) /* a copy reads it */
        given->t = dlpack_py_cpu_tensor(arena, DLPACK_PY_INT32, 0, NULL, NULL);
    return thing;
}

/* ---- What must be answered ---------------------------------------------- */

enum { REFUSED, IN_PLACE, COPIED };

/* Is a thing exported for a request without a stream? copy: as DLPACK_PY_COPY_... */
static int
slow_export(const Thing *thing, int is_versioned, int to_cpu, int copy)
{
    const DLTensor *t = &thing->given.t;
    const uint64_t flags = thing->given.flags;
    const uint32_t options = thing->options;
    const int is_copy = thing->how == HOW_IS_COPY;
    int is_negative = 0, only_copy;
    int32_t i;

    if (!slow_is_valid(t, flags) || !slow_is_readable(t->device) ||
        (thing->how != HOW_USUAL && !is_copy && thing->how != HOW_OTHER_OWNER))
        return REFUSED;
    for (i = 0; i < t->ndim && t->strides != NULL && slow_size(t) != 0; i++)
        is_negative |= t->shape[i] > 1 && t->strides[i] < 0;
    only_copy = (flags & DLPACK_PY_FLAG_READ_ONLY) != 0 && (options & DLPACK_PY_OFFER_COPY_READ_ONLY) != 0;
    if (is_negative && !only_copy) { /* D11 */
        if ((options & DLPACK_PY_OFFER_COPY_NEGATIVE) != 0)
            only_copy = 1;
        else if ((options & DLPACK_PY_OFFER_REFUSE_NEGATIVE) != 0 && copy != DLPACK_PY_COPY_ALWAYS)
            return REFUSED;
        else if ((options & DLPACK_PY_OFFER_REFUSE_NEGATIVE) != 0)
            only_copy = 1;
    }
    if (copy == DLPACK_PY_COPY_NEVER && (only_copy || is_copy))
        return REFUSED;
    only_copy |= copy == DLPACK_PY_COPY_ALWAYS && !is_copy;
    if (only_copy && !to_cpu && t->device.device_type != kDLCPU) /* P8 */
        return REFUSED;
    if (!is_versioned &&
        (((flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 && t->dtype.bits < 8) ||
         ((flags & DLPACK_PY_FLAG_READ_ONLY) != 0 && !only_copy && (options & DLPACK_PY_OFFER_READ_ONLY_UNKNOWN) == 0)))
        return REFUSED;
    return only_copy ? COPIED : IN_PLACE;
}

/* Is an argument of copy plain, and what does it say? */
static int
is_plain_copy(PyObject *value, int *copy)
{
    *copy = value == Py_True ? DLPACK_PY_COPY_ALWAYS : value == Py_False ? DLPACK_PY_COPY_NEVER : 0;
    return value == NULL || value == Py_None || *copy != 0;
}

/* Is an argument plain that names a device, and does it say "the CPU"? */
static int
is_plain_device(PyObject *value, int *to_cpu)
{
    *to_cpu = value != NULL && value != Py_None;
    return !*to_cpu || is_pair_of(value, kDLCPU, 0);
}

/* What __dlpack__ must answer, if all arguments are plain; -1: it is not said here. */
static int
slow_answer(const Thing *thing, PyObject *const values[4], int *is_versioned)
{
    long long pair[2] = {0, 0};
    int copy, to_cpu;

    *is_versioned = 0;
    if (values[0] != NULL && values[0] != Py_None && !is_index(values[0], -1))
        return -1;
    if (values[1] != NULL && values[1] != Py_None) {
        if (!PyTuple_CheckExact(values[1]) || PyTuple_GET_SIZE(values[1]) != 2 ||
            !PyLong_CheckExact(PyTuple_GET_ITEM(values[1], 0)) || !PyLong_CheckExact(PyTuple_GET_ITEM(values[1], 1)) ||
            !is_pair(values[1], pair) || pair[0] < 0 || pair[1] < 0)
            return -1;
        *is_versioned = pair[0] >= 1;
    }
    if (!is_plain_device(values[2], &to_cpu) || !is_plain_copy(values[3], &copy))
        return -1;
    return slow_export(thing, *is_versioned, to_cpu, copy);
}

/* ---- __dlpack__ --------------------------------------------------------- */

/* A capsule fits to the arguments (NULL: not given) and to the object, and is what was expected; -1: unknown. */
static void
check_capsule(PyObject *capsule, const Thing *thing, PyObject *const values[4], int expected)
{
    const DLTensor *t = &thing->given.t, *made;
    const char *name = PyCapsule_GetName(capsule);
    const int is_versioned = strcmp(name, "dltensor_versioned") == 0;
    const int copies = values[3] == Py_True, never = values[3] == Py_False;
    void *managed = PyCapsule_GetPointer(capsule, name);
    const uint64_t flags = is_versioned ? ((DLManagedTensorVersioned *)managed)->flags : 0;
    const uint64_t kept = slow_kept_flags(t->dtype, thing->given.flags);
    const int is_new = thing->how == HOW_IS_COPY; /* the thing's tensor was made for the request */
    long long pair[2] = {0, 0}, stream = -1;
    int64_t step = 1;
    int32_t i;
    int is_copy;

    CHECK(is_versioned || strcmp(name, "dltensor") == 0);
    CHECK(slow_is_valid(t, thing->given.flags));
    CHECK(values[1] == NULL || values[1] == Py_None || is_pair(values[1], pair));
    CHECK(is_versioned == (pair[0] >= 1));
    made = is_versioned ? &((DLManagedTensorVersioned *)managed)->dl_tensor : &((DLManagedTensor *)managed)->dl_tensor;
    CHECK(slow_is_valid(made, flags) && made->ndim == t->ndim &&
          memcmp(&made->dtype, &t->dtype, sizeof(t->dtype)) == 0);
    for (i = t->ndim; i-- > 0;)
        CHECK(made->shape[i] == t->shape[i]);
    if (values[0] != NULL && values[0] != Py_None) {
        CHECK(is_integer(values[0], &stream));
        CHECK(made->device.device_type != kDLCPU || stream == -1);
        CHECK(stream != 0 || (made->device.device_type != kDLCUDAHost && made->device.device_type != kDLCUDAManaged));
        CHECK((stream != 1 && stream != 2) || made->device.device_type != kDLROCMHost);
    }
    if (values[2] != NULL && values[2] != Py_None)
        CHECK(is_pair(values[2], pair) && pair[0] == (long long)made->device.device_type &&
              pair[1] == made->device.device_id);
    CHECK(values[3] == NULL || copies || never || values[3] == Py_None);
    if (slow_size(t) == 0)
        return;
    CHECK(made->byte_offset == 0 || !slow_has_address(t->device)); /* D1 */
    is_copy = made->data != (char *)t->data + t->byte_offset;
    CHECK(expected < 0 || is_copy == (expected == COPIED));
    CHECK(!never || (!is_copy && !is_new));
    CHECK(!copies || is_copy || is_new);
    CHECK(!is_versioned || flags == ((is_copy ? kept & ~DLPACK_PY_FLAG_READ_ONLY : kept) |
                                     (is_copy || is_new ? DLPACK_PY_FLAG_IS_COPIED : 0)));
    for (i = t->ndim; i-- > 0; step *= t->shape[i])
        CHECK(made->strides[i] == (is_copy || t->strides == NULL ? step : t->strides[i]));
    if (is_copy) {
        CHECK((uintptr_t)made->data % 64 == 0);
        check_copied(made, flags, t, thing->given.flags);
    }
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
    Thing *thing = take_thing(in, 1);
    PyObject *args[8] = {NULL}, *values[4] = {NULL, NULL, NULL, NULL}, *kwnames = NULL, *capsule;
    const unsigned kind = take(in), named = take_below(in, 6);
    const Py_ssize_t positional = kind < 16 ? (Py_ssize_t)take_below(in, 3) - 1 : 0;
    const Py_ssize_t before = Py_REFCNT(thing);
    int known = positional == 0, expected = -1, is_versioned;
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
        for (k = 0; k < 4 && strcmp(names[k], name) != 0; k++)
            ;
        args[n] = take_argument(in, k);
        known &= k < 4;
        if (k < 4)
            values[k] = args[n];
        n++;
    }
    if (known) {
        check_parsed(args, kwnames, values);
        expected = slow_answer(thing, values, &is_versioned);
    }
    if ((kind & 64) != 0)
        fuzz_fails = (int)take_below(in, 3);
    moving = thing->is_described && (kind & 8) != 0 ? thing : NULL;
    capsule = thing_dlpack((PyObject *)thing, args, positional, kwnames);
    moving = NULL;
    fuzz_fails = -1;
    if (capsule != NULL) {
        CHECK(!PyErr_Occurred() && known && expected != REFUSED);
        check_capsule(capsule, thing, values, expected);
        CHECK(Py_REFCNT(thing) + Py_REFCNT(other_owner) <= before + 2);
        Py_DECREF(capsule);
    }
    else {
        const int error = take_exception();
        const int no_memory = error == MEMORY_ERROR && (fuzz_refused > 0 || slow_is_large(&thing->given));
        CHECK((error & (BUFFER_ERROR | VALUE_ERROR | TYPE_ERROR | FOREIGN_ERROR | INTERRUPT)) != 0 || no_memory ||
              (error == SYSTEM_ERROR && (positional < 0 || thing->how != HOW_USUAL)) || error == OTHER_ERROR);
        CHECK(expected <= REFUSED || no_memory);
        if (expected == REFUSED)
            CHECK(no_memory || error == (thing->how == HOW_RAISES                                    ? INTERRUPT
                                         : thing->how == HOW_NO_TENSOR || thing->how == HOW_NO_OWNER ? SYSTEM_ERROR
                                                                                                     : BUFFER_ERROR));
    }
    CHECK(Py_REFCNT(other_owner) == 1);
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
    PyObject *args[6], *kwnames = NULL, *x, *device = NULL, *copy_value = NULL;
    const unsigned kind = take(in), named = take_below(in, 4);
    Thing *thing = take_thing(in, 0);
    const Py_ssize_t before = Py_REFCNT(thing);
    Py_ssize_t positional = kind < 240 ? 1 : kind % 3;
    dlpack_py_view v;
    int result, never = 0, always = 0, is_plain, copy, to_cpu, expected = -1;
    unsigned i, n = 0;
    DLTensor given;
    Want want;

    memset(&v, 0xaa, sizeof(v));
    want_take(in, &want, &thing->given.t);
    x = (kind & 7) == 0 ? take_object(in, 0) : (PyObject *)thing;
    is_plain = (kind & 7) > 1 && positional == 1 && (kind & 8) == 0;
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
        args[n] = take_argument(in, strcmp(name, "copy") == 0 ? COPY : DL_DEVICE);
        if (strcmp(name, "device") == 0)
            device = args[n] == Py_None ? NULL : args[n];
        if (strcmp(name, "copy") == 0) {
            never = args[n] == Py_False;
            always = args[n] == Py_True;
            copy_value = args[n];
        }
        is_plain &= strcmp(name, "device") == 0 || strcmp(name, "copy") == 0;
        is_plain &= i == 0 || PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, 0), PyTuple_GET_ITEM(kwnames, i)) != 0;
    }
    is_plain &= is_plain_device(device, &to_cpu) && is_plain_copy(copy_value, &copy);
    if (is_plain) {
        expected = slow_export(thing, 1, to_cpu, copy);
        if (expected != REFUSED && thing->given.t.device.device_type != kDLCPU) /* CPU memory is asked for (C5) */
            expected = slow_export(thing, 1, 1, copy);
        if (expected == IN_PLACE && !slow_meets_curable(&thing->given.t, 0, &dlp_empty_want)) /* not aligned */
            expected = REFUSED;
    }
    result = dlpack_py_from_dlpack(args, positional, kwnames, (kind & 8) != 0 ? &want.want : NULL, &v);
    if (result == 0) {
        check_view(&v, (kind & 8) != 0 ? &want.want : NULL);
        CHECK(positional == 1 && (device == NULL || is_on(device, &v.tensor)) && expected != REFUSED);
        if (x == (PyObject *)thing) {
            given = thing->given.t;
            if (v.tensor.device.device_type == kDLCPU && slow_is_readable(given.device))
                given.device = v.tensor.device; /* it was asked for */
            else
                given.device.device_id = slow_is_readable(given.device) ? 0 : given.device.device_id; /* D9 */
            check_same(&v, &given, slow_kept_flags(given.dtype, thing->given.flags), slow_readonly(thing->given.flags));
        }
        CHECK(expected < 0 || slow_size(&v.tensor) == 0 ||
              (dlpack_py_data(&v) != dlp_first_element(&thing->given.t)) == (expected == COPIED));
        CHECK(!never || x != (PyObject *)thing || dlpack_py_data(&v) == NULL ||
              dlpack_py_data(&v) == dlp_first_element(&thing->given.t));
        CHECK(!always || slow_size(&v.tensor) == 0 || dlpack_py_data(&v) != dlp_first_element(&thing->given.t));
        dlpack_py_release(&v);
        check_empty(&v);
    }
    else {
        const int error = take_exception();
        CHECK(result == -1);
        CHECK(expected < 0 || (error == BUFFER_ERROR && expected == REFUSED) ||
              (error == MEMORY_ERROR && (fuzz_refused > 0 || slow_is_large(&thing->given))));
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

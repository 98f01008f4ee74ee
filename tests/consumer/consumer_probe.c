/* Gives Python access to the consumer functions of the header: consume(obj, want) takes any want and returns a View,
 * which shows all of its fields. CalledFromC gives producers the signatures that C code has. */

#include "dlpack_buffer.h"
#include <structmember.h> /* T_OBJECT: PyMemberDef */
#include "../dtype_of.h"

#ifndef PROBE_INIT
#  define PROBE_INIT PyInit_consumer_probe
#endif

/* ---- A want from a dict ------------------------------------------------- */

typedef struct {
    dlpack_py_want want;
    uint32_t dtypes[8];
    int64_t shape[DLPACK_PY_MAX_NDIM];
} Want;

static int
parse_dtype(PyObject *object, uint32_t *dtype)
{
    const char *text = PyLong_Check(object) ? NULL : PyUnicode_AsUTF8(object);
    if (PyLong_Check(object)) {
        *dtype = (uint32_t)PyLong_AsUnsignedLong(object);
        return 0;
    }
    if (text == NULL)
        return -1;
    *dtype = dtype_of(text);
    if (*dtype != 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "no dtype: %R", object);
    return -1;
}

/* The item of names with the key name (borrowed); NULL without an exception if it has none, or with an exception. */
static PyObject *
item(PyObject *names, const char *name)
{
    PyObject *key = PyUnicode_FromString(name), *object = key == NULL ? NULL : PyDict_GetItemWithError(names, key);
    Py_XDECREF(key);
    return object;
}

/* A fallback that breaks its contract. */
static int
fail_silently(void *object, struct DLManagedTensorVersioned **out)
{
    (void)object;
    (void)out;
    return -1;
}

/* Another one: it sets *out, and fails. */
static int
fail_late(void *object, struct DLManagedTensorVersioned **out)
{
    static struct DLManagedTensorVersioned unused;
    (void)object;
    *out = &unused;
    PyErr_SetString(PyExc_ValueError, "too late");
    return -1;
}

/* A fallback that copies the data: it offers a static number. */
static int
offer_copy(void *object, struct DLManagedTensorVersioned **out)
{
    static double number = 1.0;
    const DLTensor t = dlpack_py_cpu_tensor(&number, DLPACK_PY_FLOAT64, 0, NULL, NULL);
    (void)object;
    *out = dlpack_py_wrap(&t, DLPACK_PY_FLAG_IS_COPIED, NULL, NULL);
    return *out == NULL ? -1 : 0;
}

static const dlpack_py_fallback fallbacks[] = {NULL, dlpack_buffer_fallback, fail_silently, offer_copy, fail_late};

/* The integer in names with the key name; 0 if it has none. */
static long long
integer(PyObject *names, const char *name)
{
    PyObject *object = item(names, name);
    return object == NULL ? 0 : PyLong_AsLongLong(object);
}

static int
parse_want(PyObject *names, Want *out)
{
    PyObject *object;
    Py_ssize_t i;

    memset(out, 0, sizeof(*out));
    if ((object = item(names, "dtype")) != NULL && parse_dtype(object, &out->want.dtype) < 0)
        return -1;
    if ((object = item(names, "dtypes")) != NULL) {
        for (i = 0; i < PyTuple_Size(object); i++) {
            if (parse_dtype(PyTuple_GetItem(object, i), &out->dtypes[i]) < 0)
                return -1;
        }
        out->want.dtypes = out->dtypes;
    }
    if ((object = item(names, "shape")) != NULL) {
        for (i = 0; i < PyTuple_Size(object); i++)
            out->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(object, i));
        out->want.shape = out->shape;
    }
    if ((object = item(names, "order")) != NULL)
        out->want.order = (char)PyUnicode_ReadChar(object, 0);
    out->want.ndim = (int32_t)integer(names, "ndim");
    out->want.max_ndim = (int32_t)integer(names, "max_ndim");
    out->want.writable = (char)integer(names, "writable");
    out->want.device = (int32_t)integer(names, "device");
    out->want.alignment = (size_t)integer(names, "alignment");
    out->want.options = (uint32_t)integer(names, "options");
    out->want.fallback = fallbacks[integer(names, "fallback")];
    if ((object = item(names, "name")) != NULL)
        out->want.name = PyUnicode_AsUTF8(object);
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- View ---------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    dlpack_py_view view;
} View;

static PyTypeObject view_type;

static View *
view_new(void)
{
    View *self = PyObject_New(View, &view_type);
    if (self != NULL)
        memset(&self->view, 0, sizeof(self->view));
    return self;
}

/* Whether a view has rank 0, no data, no shape and nothing to release. */
static int
is_empty(const dlpack_py_view *view)
{
    return view->tensor.ndim == 0 && view->tensor.shape == NULL && dlpack_py_data(view) == NULL &&
           view->managed == NULL && view->allocated == NULL;
}

static void
view_dealloc(PyObject *self)
{
    dlpack_py_release(&((View *)self)->view);
    PyObject_Free(self);
}

static PyObject *
view_release(PyObject *self, PyObject *Py_UNUSED(unused))
{
    dlpack_py_release(&((View *)self)->view);
    Py_RETURN_NONE;
}

/* Releases the view without a thread state, as a consumer that works without the GIL does. */
static PyObject *
view_release_detached(PyObject *self, PyObject *Py_UNUSED(unused))
{
    dlpack_py_view *view = &((View *)self)->view;
    Py_BEGIN_ALLOW_THREADS
    dlpack_py_release(view);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Raises the exception, which may be a class, and releases the view while it is in flight. */
static PyObject *
view_release_raising(PyObject *self, PyObject *exception)
{
    if (PyType_Check(exception))
        PyErr_SetNone(exception); /* before 3.12 no instance is made */
    else
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    dlpack_py_release(&((View *)self)->view);
    return NULL;
}

static PyObject *
view_move(PyObject *self, PyObject *Py_UNUSED(unused))
{
    View *moved = view_new();
    if (moved == NULL)
        return NULL;
    dlpack_py_move(&moved->view, &((View *)self)->view);
    return (PyObject *)moved;
}

/* move_onto_itself(): moves the view to where it is. */
static PyObject *
view_move_onto_itself(PyObject *self, PyObject *Py_UNUSED(unused))
{
    dlpack_py_move(&((View *)self)->view, &((View *)self)->view);
    Py_RETURN_NONE;
}

static int
view_describe(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    dlpack_py_view *view = &((View *)self)->view;
    (void)request;
    *offer = dlpack_py_offer_view(self, &view->tensor, view);
    return 0;
}

DLPACK_PY_DESCRIBED(view, view_describe);

static PyMethodDef view_methods[] = {
    DLPACK_PY_METHODS(view_dlpack, view_dlpack_device),
    {"release", view_release, METH_NOARGS, NULL},
    {"release_detached", view_release_detached, METH_NOARGS, NULL},
    {"release_raising", view_release_raising, METH_O, NULL},
    {"move", view_move, METH_NOARGS, NULL},
    {"move_onto_itself", view_move_onto_itself, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *
tuple_of(const int64_t *extents, int32_t ndim)
{
    PyObject *tuple;
    int32_t i;
    if (extents == NULL && ndim > 0)
        Py_RETURN_NONE;
    tuple = PyTuple_New(ndim);
    for (i = 0; tuple != NULL && i < ndim; i++)
        PyTuple_SetItem(tuple, i, PyLong_FromLongLong(extents[i]));
    return tuple;
}

static PyObject *
view_getattr(PyObject *self, PyObject *name)
{
    const dlpack_py_view *view = &((View *)self)->view;
    const DLTensor *t = &view->tensor;

    if (PyUnicode_CompareWithASCIIString(name, "data") == 0)
        return PyLong_FromVoidPtr(dlpack_py_data(view));
    if (PyUnicode_CompareWithASCIIString(name, "byte_offset") == 0)
        return PyLong_FromUnsignedLongLong(t->byte_offset);
    if (PyUnicode_CompareWithASCIIString(name, "shape") == 0)
        return tuple_of(t->shape, t->ndim);
    if (PyUnicode_CompareWithASCIIString(name, "strides") == 0)
        return tuple_of(t->strides, t->ndim);
    if (PyUnicode_CompareWithASCIIString(name, "ndim") == 0)
        return PyLong_FromLong(t->ndim);
    if (PyUnicode_CompareWithASCIIString(name, "dtype") == 0)
        return Py_BuildValue("(iii)", t->dtype.code, t->dtype.bits, t->dtype.lanes);
    if (PyUnicode_CompareWithASCIIString(name, "device") == 0)
        return Py_BuildValue("(ii)", (int)t->device.device_type, (int)t->device.device_id);
    if (PyUnicode_CompareWithASCIIString(name, "flags") == 0)
        return PyLong_FromUnsignedLongLong(view->flags);
    if (PyUnicode_CompareWithASCIIString(name, "readonly") == 0)
        return PyLong_FromLong(view->readonly);
    if (PyUnicode_CompareWithASCIIString(name, "form") == 0)
        return PyLong_FromLong(view->form);
    if (PyUnicode_CompareWithASCIIString(name, "held") == 0)
        return PyBool_FromLong(view->managed != NULL);
    if (PyUnicode_CompareWithASCIIString(name, "empty") == 0)
        return PyBool_FromLong(is_empty(view));
    if (PyUnicode_CompareWithASCIIString(name, "overlaps") == 0)
        return PyLong_FromLong(view->overlaps);
    return PyObject_GenericGetAttr(self, name);
}

static PyTypeObject view_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "consumer_probe.View",
    .tp_basicsize = sizeof(View),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = view_dealloc,
    .tp_methods = view_methods,
    .tp_getattro = view_getattr,
};

/* ---- Functions ----------------------------------------------------------- */

/* The result of a function of the header that filled the view, which must be empty if the function failed. Steals self. */
static PyObject *
view_or_error(View *self, int failed, const char *function)
{
    if (failed == 0)
        return (PyObject *)self;
    if (!is_empty(&self->view))
        PyErr_Format(PyExc_SystemError, "%s failed, and left something in the view", function);
    Py_DECREF(self);
    return NULL;
}

/* consume(obj, want=None, /, *, device, copy, by_request=False, like, stream): like is a View whose tensor makes the
 * want; stream is that of a request, copy is then a number DLPACK_PY_COPY_... */
static PyObject *
probe_consume(PyObject *Py_UNUSED(module), PyObject *args, PyObject *names)
{
    static char *keywords[] = {"", "", "device", "copy", "by_request", "like", "stream", NULL};
    PyObject *obj, *wanted = NULL, *device = NULL, *copy = NULL, *like = NULL, *stream = NULL;
    int by_request = 0, failed;
    View *self;
    Want want;

    if (!PyArg_ParseTupleAndKeywords(args, names, "O|O!$OOpO!O", keywords, &obj, &PyDict_Type, &wanted, &device, &copy,
                                     &by_request, &view_type, &like, &stream))
        return NULL;
    if (wanted != NULL && parse_want(wanted, &want) < 0)
        return NULL;
    if (like != NULL) {
        want.want = dlpack_py_want_like(&((View *)like)->view.tensor);
        wanted = like;
    }
    self = view_new();
    if (self == NULL)
        return NULL;
    memset(&self->view, 0x55, sizeof(self->view)); /* uninitialized, as on the stack */
    if (!by_request && (device != NULL || copy != NULL))
        failed = dlpack_py_from_dlpack_obj_args(obj, device, copy, wanted == NULL ? NULL : &want.want, &self->view);
    else if (by_request) {
        dlpack_py_request request;
        if (dlpack_py_parse_request_obj_args(stream, NULL, NULL, NULL, &request) < 0) {
            memset(&self->view, 0, sizeof(self->view));
            Py_DECREF(self);
            return NULL;
        }
        if (copy != NULL)
            request.copy = (int32_t)PyLong_AsLong(copy);
        failed = dlpack_py_consume_request(obj, &request, wanted == NULL ? NULL : &want.want, &self->view) < 0;
    }
    else
        failed = dlpack_py_consume(obj, wanted == NULL ? NULL : &want.want, &self->view);
    return view_or_error(self, failed, "dlpack_py_consume");
}

/* from_dlpack(x, /, *, device=None, copy=None): the header parses the arguments of the call. */
static PyObject *
probe_from_dlpack(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    View *self = view_new();
    if (self == NULL)
        return NULL;
    memset(&self->view, 0x55, sizeof(self->view)); /* uninitialized, as on the stack */
    return view_or_error(self, dlpack_py_from_dlpack(args, nargs, kwnames, NULL, &self->view), "dlpack_py_from_dlpack");
}

static PyObject *
probe_check(PyObject *Py_UNUSED(module), PyObject *obj)
{
    return PyBool_FromLong(dlpack_py_has_tensor(obj));
}

/* check_in_flight(obj, exception): calls dlpack_py_has_tensor while the exception is in flight, and raises the exception. */
static PyObject *
probe_check_in_flight(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *obj, *exception;
    if (!PyArg_ParseTuple(args, "OO", &obj, &exception))
        return NULL;
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    (void)dlpack_py_has_tensor(obj);
    return NULL;
}

#ifdef DLPACK_EXCHANGE_H
/* view_of_borrowed(obj): a memoryview of a view that holds no tensor of its own. The view is empty afterwards. */
static PyObject *
probe_view_of_borrowed(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    PyObject *memory;

    if (dlpack_py_borrow(obj, NULL, &v) < 0)
        return NULL;
    memory = dlpack_buffer_memoryview_steal(&v);
    if (v.tensor.data != NULL || v.tensor.shape != NULL)
        PyErr_SetString(PyExc_AssertionError, "the view is not empty");
    return memory;
}
#endif

/* parse_dtype(obj): the dtype of an object as (code, bits, lanes). */
static PyObject *
probe_parse_dtype(PyObject *Py_UNUSED(module), PyObject *obj)
{
    uint32_t dtype = 0;
    if (dlpack_py_parse_dtype(obj, &dtype) < 0)
        return NULL;
    return Py_BuildValue("(III)", dtype >> 24, dtype >> 16 & 0xff, dtype & 0xffff);
}

/* parse_device(obj): the device of an object as (type, id). */
static PyObject *
probe_parse_device(PyObject *Py_UNUSED(module), PyObject *obj)
{
    DLDevice device;
    if (dlpack_py_parse_device(obj, &device) < 0)
        return NULL;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

/* raise_error(code, text): raises an error of dlpack_tensor.h. */
static PyObject *
probe_raise_error(PyObject *Py_UNUSED(module), PyObject *args)
{
    dlpack_py_error error;
    const char *text;
    int code;

    memset(&error, 0, sizeof(error));
    if (!PyArg_ParseTuple(args, "is", &code, &text))
        return NULL;
    error.code = code;
    snprintf(error.text, sizeof(error.text), "%s", text);
    return dlpack_py_raise(&error) < 0 ? NULL : Py_BuildValue("");
}

static PyMethodDef functions[] = {
    {"raise_error", probe_raise_error, METH_VARARGS, NULL},
    {"parse_dtype", probe_parse_dtype, METH_O, NULL},
    {"parse_device", probe_parse_device, METH_O, NULL},
    {"consume", (PyCFunction)(void (*)(void))probe_consume, METH_VARARGS | METH_KEYWORDS, NULL},
    {"from_dlpack", (PyCFunction)(void (*)(void))probe_from_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"check", probe_check, METH_O, NULL},
    {"check_in_flight", probe_check_in_flight, METH_VARARGS, NULL},
#ifdef DLPACK_EXCHANGE_H
    {"view_of_borrowed", probe_view_of_borrowed, METH_O, NULL},
#endif
    {NULL, NULL, 0, NULL},
};

/* ---- CalledFromC ---------------------------------------------------------- */

/* CalledFromC(answer): methods for the __dlpack__ of a subclass that return answer(). */
typedef struct {
    PyObject_HEAD
    PyObject *answer;
} CalledFromC;

static PyObject *
c_noargs(PyObject *self, PyObject *Py_UNUSED(unused))
{
    return PyObject_CallNoArgs(((CalledFromC *)self)->answer);
}

static PyObject *
c_varargs(PyObject *self, PyObject *args)
{
    return PyArg_ParseTuple(args, "") ? c_noargs(self, NULL) : NULL;
}

static PyObject *
c_stream(PyObject *self, PyObject *args, PyObject *names)
{
    static char *keywords[] = {"stream", NULL};
    PyObject *stream = NULL;
    return PyArg_ParseTupleAndKeywords(args, names, "|O", keywords, &stream) ? c_noargs(self, NULL) : NULL;
}

static PyObject *
c_no_keyword(PyObject *self, PyObject *args, PyObject *names)
{
    static char *keywords[] = {NULL};
    return PyArg_ParseTupleAndKeywords(args, names, "", keywords) ? c_noargs(self, NULL) : NULL;
}

static PyMethodDef c_methods[] = {
    {"noargs", c_noargs, METH_NOARGS, NULL},
    {"varargs", c_varargs, METH_VARARGS, NULL},
    {"stream", (PyCFunction)(void (*)(void))c_stream, METH_VARARGS | METH_KEYWORDS, NULL},
    {"no_keyword", (PyCFunction)(void (*)(void))c_no_keyword, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef c_members[] = {
    {"answer", T_OBJECT, offsetof(CalledFromC, answer), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void
c_dealloc(PyObject *self)
{
    Py_XDECREF(((CalledFromC *)self)->answer);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject c_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "consumer_probe.CalledFromC",
    .tp_basicsize = sizeof(CalledFromC),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_dealloc = c_dealloc,
    .tp_methods = c_methods,
    .tp_members = c_members,
    .tp_new = PyType_GenericNew,
};

/* ---- The module ----------------------------------------------------------- */

/* How many types the cache of the module holds. */
#if defined(DLP_TYPE_ENTRIES) && !defined(Py_GIL_DISABLED)
#  define CACHED_TYPES DLP_TYPE_ENTRIES
#else
#  define CACHED_TYPES 0
#endif

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "consumer_probe",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PROBE_INIT(void)
{
    PyObject *self;

    if (PyType_Ready(&view_type) < 0 || PyType_Ready(&c_type) < 0)
        return NULL;
    self = PyModule_Create(&module);
    if (self == NULL)
        return NULL;
    Py_INCREF(&c_type);
    if (PyModule_AddObject(self, "CalledFromC", (PyObject *)&c_type) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_WANT_COPY_IF_NEEDED) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_WANT_LEGACY_IS_WRITABLE) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_WANT_OVERLAP_IS_FINE) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_WANT_NOTHING_PENDING) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_ANY_DEVICE) < 0 || PyModule_AddIntMacro(self, DLPACK_PY_SCALAR) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_WRITABLE) < 0 || PyModule_AddIntMacro(self, DLPACK_PY_READ_ONLY) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_READ_ONLY_UNKNOWN) < 0 ||
        PyModule_AddIntConstant(self, "VIEW_SIZE", sizeof(dlpack_py_view)) < 0 ||
        PyModule_AddIntConstant(self, "CACHED_TYPES", CACHED_TYPES) < 0 ||
        PyModule_AddIntMacro(self, DLPACK_PY_VERSIONED) < 0 || PyModule_AddIntMacro(self, DLPACK_PY_LEGACY) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

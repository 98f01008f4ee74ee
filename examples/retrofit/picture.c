/* picture - an image with modes and a row length in bytes, as Pillow has, that learns DLPack
 * SPDX-License-Identifier: MIT
 *
 * Before DLPack, Picture had pixels of several modes, sizes of type int, and rows of linesize bytes. It exports them
 * without a copy, by dlpack_py_widen and dlpack_py_byte_strides, and imports arrays of each mode, with a copy where the
 * rows of the array are not contiguous.
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end".
 */
#include <Python.h>
/* dlpack: begin */
#include "dlpack_py.h"
/* dlpack: end */

typedef struct {
    const char *name;
    int bands;
    /* dlpack: begin */
    uint32_t dtype; /* of a band */
    /* dlpack: end */
    int band_size; /* in bytes */
} Mode;

static const Mode modes[] = {
    {"L", 1, DLPACK_PY_UINT8, 1}, {"RGB", 3, DLPACK_PY_UINT8, 1}, {"RGBA", 4, DLPACK_PY_UINT8, 1},
    {"I", 1, DLPACK_PY_INT32, 4}, {"F", 1, DLPACK_PY_FLOAT32, 4},
};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

typedef struct {
    PyObject_HEAD
    const Mode *mode;
    int size[3];  /* height, width, bands */
    int linesize; /* bytes from one row to the next */
    char *pixels; /* of our own, or NULL */
    /* dlpack: begin */
    dlpack_py_view source; /* pixels of another library; empty: our own */
    /* dlpack: end */
} Picture;

static PyTypeObject picture_type;

static PyObject *
picture_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(keywords))
{
    const char *name;
    int height, width, i;
    Picture *self;

    if (!PyArg_ParseTuple(args, "sii", &name, &height, &width))
        return NULL;
    for (i = 0; i < MODES && strcmp(modes[i].name, name) != 0; i++)
        ;
    if (i == MODES || height < 0 || width < 0 || width > INT_MAX / 32)
        return PyErr_Format(PyExc_ValueError, "there is no picture of mode %s, %d rows and %d columns", name, height,
                            width);
    self = (Picture *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->mode = &modes[i];
    self->size[0] = height;
    self->size[1] = width;
    self->size[2] = modes[i].bands;
    self->linesize = (width * modes[i].bands * modes[i].band_size + 7) / 8 * 8; /* rows begin at multiples of 8 bytes */
    self->pixels = (char *)PyMem_RawCalloc((size_t)height + 1, (size_t)self->linesize + 1);
    if (self->pixels == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

/* dlpack: begin */
static PyObject *
picture_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const Picture *self = (const Picture *)op;
    const int bytes[3] = {self->linesize, self->mode->bands * self->mode->band_size, self->mode->band_size};
    const int ndim = self->mode->bands > 1 ? 3 : 2;
    int64_t shape[3], strides[3];
    dlpack_py_error error;
    DLTensor t = dlpack_py_cpu(self->pixels, self->mode->dtype, ndim,
                               dlpack_py_widen(ndim, self->size, sizeof(*self->size), shape), NULL);

    if (self->source.managed != NULL) { /* read-only pixels stay read-only */
        dlpack_py_offer offer = dlpack_py_offer_view(op, &self->source.tensor, &self->source);
        dlpack_py_request request;
        return dlpack_py_parse_request(args, nargs, kwnames, &request) < 0 ? NULL : dlpack_py_answer(&offer, &request);
    }
    if (dlpack_py_byte_strides(&t, dlpack_py_widen(ndim, bytes, sizeof(*bytes), strides), 0, &error) < 0) {
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    return dlpack_py_produce(op, &t, 0, args, nargs, kwnames);
}

static PyObject *
picture_from_dlpack(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const uint32_t dtypes[] = {DLPACK_PY_UINT8, DLPACK_PY_INT32, DLPACK_PY_FLOAT32, 0};
    static const dlpack_py_want want = {.dtypes = dtypes,
                                        .ndim = 2,
                                        .max_ndim = 3,
                                        .order = 'R',
                                        .options = DLPACK_PY_WANT_COPY_IF_NEEDED,
                                        .name = "x"};
    dlpack_py_view v;
    Picture *self;
    int64_t bands;
    int i;

    if (dlpack_py_from_dlpack(args, nargs, kwnames, &want, &v) < 0)
        return NULL;
    bands = v.tensor.ndim == 3 ? v.tensor.shape[2] : 1;
    for (i = 0; i < MODES && (modes[i].dtype != dlpack_py_dtype(&v.tensor) || modes[i].bands != bands); i++)
        ;
    if (i == MODES || v.tensor.shape[0] > INT_MAX || v.tensor.shape[1] > INT_MAX / 32) {
        PyErr_Format(PyExc_BufferError, "x: no mode has %lld bands of this dtype, or the picture is too large",
                     (long long)bands);
        dlpack_py_release(&v);
        return NULL;
    }
    self = (Picture *)((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0);
    if (self == NULL) {
        dlpack_py_release(&v);
        return NULL;
    }
    self->mode = &modes[i];
    self->size[0] = (int)v.tensor.shape[0];
    self->size[1] = (int)v.tensor.shape[1];
    self->size[2] = modes[i].bands;
    dlpack_py_move(&self->source, &v);
    return (PyObject *)self;
}
/* dlpack: end */

static PyObject *
picture_get_mode(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((const Picture *)op)->mode->name);
}

static void
picture_dealloc(PyObject *op)
{
    Picture *self = (Picture *)op;
    /* dlpack: begin */
    dlpack_py_release(&self->source);
    /* dlpack: end */
    PyMem_RawFree(self->pixels);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef picture_methods[] = {
    /* dlpack: begin */
    DLPACK_PY_METHODS(picture_dlpack, dlpack_py_cpu_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))picture_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nA picture of the pixels of x.")},
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef picture_getters[] = {{"mode", picture_get_mode, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};

static PyTypeObject picture_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "picture.Picture",
    .tp_doc = PyDoc_STR("Picture(mode, height, width)\n--\n\nBlack pixels of a mode: L, RGB, RGBA, I or F."),
    .tp_basicsize = sizeof(Picture),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = picture_new,
    .tp_dealloc = picture_dealloc,
    .tp_methods = picture_methods,
    .tp_getset = picture_getters,
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "picture", .m_size = -1};

PyMODINIT_FUNC
PyInit_picture(void)
{
    PyObject *module = PyType_Ready(&picture_type) < 0 ? NULL : PyModule_Create(&module_def);
    Py_INCREF(&picture_type);
    if (module != NULL && PyModule_AddObject(module, "Picture", (PyObject *)&picture_type) < 0)
        Py_CLEAR(module);
    return module;
}

/* picture - an image with modes and several blocks of memory, as Pillow has: docs/retrofit_picture.md adds DLPack to
 * picture_before.c
 * SPDX-License-Identifier: MIT
 *
 * A Picture has pixels of several modes, sizes of type int, rows of linesize bytes, and blocks of at most BLOCK bytes
 * with whole rows. A strip is a Picture that shares one block of another.
 */
#include <Python.h>
#include "dlpack_py.h"

enum { BLOCK = 1 << 16 };

typedef struct {
    const char *name;
    int bands;
    int band_size; /* in bytes */
    uint32_t dtype;
} Mode;

static const Mode modes[] = {
    {"L", 1, 1, DLPACK_PY_UINT8}, {"RGB", 3, 1, DLPACK_PY_UINT8}, {"RGBA", 4, 1, DLPACK_PY_UINT8},
    {"I", 1, 4, DLPACK_PY_INT32}, {"F", 1, 4, DLPACK_PY_FLOAT32}, {NULL, 0, 0, 0},
};

typedef struct {
    PyObject_HEAD
    const Mode *mode;
    int size[3];     /* height, width, bands */
    int linesize;    /* bytes from one row to the next in a block */
    int block_rows;  /* in each block; the last block may have fewer */
    int block_count; /* 1 or more */
    char **blocks;
    char borrowed; /* another object owns the one block */
    char readonly;
    PyObject *whole; /* whose block a strip borrows, or NULL */

    /* The memory of another library, which is borrowed; or empty. */
    dlpack_py_view source;
} Picture;

static PyTypeObject picture_type;

static char *
picture_row(const Picture *self, int row)
{
    return self->blocks[row / self->block_rows] + (Py_ssize_t)(row % self->block_rows) * self->linesize;
}

/* Bytes of the pixels of a row, which may be followed by padding. */
static int
picture_rowsize(const Picture *self)
{
    return self->size[1] * self->mode->bands * self->mode->band_size;
}

/* A picture without memory: the caller sets the blocks. */
static Picture *
picture_alloc(const Mode *mode, int height, int width, int linesize, int block_rows)
{
    Picture *self = (Picture *)picture_type.tp_alloc(&picture_type, 0);

    if (self == NULL)
        return NULL;
    self->mode = mode;
    self->size[0] = height;
    self->size[1] = width;
    self->size[2] = mode->bands;
    self->linesize = linesize;
    self->block_rows = block_rows > 0 ? block_rows : 1;
    self->block_count = height > 0 ? (height - 1) / self->block_rows + 1 : 1;
    self->blocks = (char **)PyMem_RawCalloc((size_t)self->block_count, sizeof(char *));
    if (self->blocks == NULL) {
        Py_DECREF(self);
        (void)PyErr_NoMemory();
        return NULL;
    }
    return self;
}

static Picture *
picture_make(const Mode *mode, int height, int width, int block_rows)
{
    const int linesize = (width * mode->bands * mode->band_size + 7) / 8 * 8; /* rows begin at multiples of 8 bytes */
    Picture *self = picture_alloc(mode, height, width, linesize, block_rows);
    int i;

    for (i = 0; self != NULL && i < self->block_count; i++) {
        self->blocks[i] = (char *)PyMem_RawCalloc((size_t)self->block_rows, (size_t)linesize);
        if (self->blocks[i] == NULL) {
            Py_CLEAR(self);
            (void)PyErr_NoMemory();
        }
    }
    return self;
}

static PyObject *
picture_new(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *Py_UNUSED(keywords))
{
    const Mode *mode;
    const char *name;
    int height, width;

    if (!PyArg_ParseTuple(args, "sii", &name, &height, &width))
        return NULL;
    for (mode = modes; mode->name != NULL && strcmp(mode->name, name) != 0; mode++)
        ;
    if (mode->name == NULL || height < 0 || width < 0 || width > INT_MAX / 32)
        return PyErr_Format(PyExc_ValueError, "there is no picture of mode %s, %d rows and %d columns", name, height,
                            width);
    return (PyObject *)picture_make(mode, height, width,
                                    BLOCK / ((width * mode->bands * mode->band_size + 7) / 8 * 8 + 1));
}

static PyObject *
picture_from_dlpack(PyObject *Py_UNUSED(type), PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const uint32_t dtypes[] = {DLPACK_PY_UINT8, DLPACK_PY_INT32, DLPACK_PY_FLOAT32, 0};
    static const dlpack_py_want want = {.dtypes = dtypes,
                                        .ndim = 2,
                                        .max_ndim = 3,
                                        .order = 'R',
                                        .options = DLPACK_PY_WANT_COPY_IF_NEEDED,
                                        .name = "x"};
    const Mode *mode;
    Picture *self;
    dlpack_py_view v;
    int64_t bands, linesize;
    int height;

    if (dlpack_py_from_dlpack(args, nargs, kwnames, &want, &v) < 0)
        return NULL;
    bands = v.tensor.ndim == 3 ? v.tensor.shape[2] : 1;
    for (mode = modes; mode->name != NULL && (mode->dtype != dlpack_py_dtype(&v.tensor) || mode->bands != bands);)
        mode++;
    linesize = v.tensor.strides[0] * mode->band_size;
    if (mode->name == NULL || v.tensor.shape[0] > INT_MAX || v.tensor.shape[1] > INT_MAX / 32 || linesize > INT_MAX ||
        linesize < -INT_MAX) {
        PyErr_Format(PyExc_BufferError, "x: no mode has %lld bands of this dtype, or the picture is too large",
                     (long long)bands);
        dlpack_py_release(&v);
        return NULL;
    }
    height = (int)v.tensor.shape[0];
    self = picture_alloc(mode, height, (int)v.tensor.shape[1], (int)linesize, height);
    if (self == NULL) {
        dlpack_py_release(&v);
        return NULL;
    }
    self->blocks[0] = (char *)dlpack_py_data(&v);
    self->borrowed = 1;
    self->readonly = v.readonly != DLPACK_PY_WRITABLE;
    dlpack_py_move(&self->source, &v);
    return (PyObject *)self;
}

/* frombytes(data, /): sets all pixels, row by row. */
static PyObject *
picture_frombytes(PyObject *op, PyObject *data)
{
    Picture *self = (Picture *)op;
    const Py_ssize_t rowsize = picture_rowsize(self);
    Py_buffer buffer;
    int row;

    if (self->readonly)
        return PyErr_Format(PyExc_ValueError, "the picture is read-only");
    if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (rowsize == 0 ? buffer.len > 0 : buffer.len % rowsize > 0 || buffer.len / rowsize != self->size[0]) {
        PyBuffer_Release(&buffer);
        return PyErr_Format(PyExc_ValueError, "%d rows of %zd bytes were wanted", self->size[0], rowsize);
    }
    for (row = 0; row < self->size[0]; row++)
        memcpy(picture_row(self, row), (const char *)buffer.buf + row * rowsize, (size_t)rowsize);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *
picture_tobytes(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Picture *self = (const Picture *)op;
    const Py_ssize_t rowsize = picture_rowsize(self);
    PyObject *bytes;
    int row;

    if (rowsize > 0 && self->size[0] > PY_SSIZE_T_MAX / rowsize)
        return PyErr_NoMemory();
    bytes = PyBytes_FromStringAndSize(NULL, self->size[0] * rowsize);
    for (row = 0; bytes != NULL && row < self->size[0]; row++)
        memcpy(PyBytes_AS_STRING(bytes) + row * rowsize, picture_row(self, row), (size_t)rowsize);
    return bytes;
}

/* strip(i, /): the rows of block i. */
static PyObject *
picture_strip(PyObject *op, PyObject *index)
{
    const Picture *self = (const Picture *)op;
    const long i = PyLong_AsLong(index);
    Picture *strip;
    int rows;

    if (i == -1 && PyErr_Occurred())
        return NULL;
    if (i < 0 || i >= self->block_count)
        return PyErr_Format(PyExc_IndexError, "there is no block %ld", i);
    rows = i < self->block_count - 1 ? self->block_rows : self->size[0] - (int)i * self->block_rows;
    strip = picture_alloc(self->mode, rows, self->size[1], self->linesize, rows);
    if (strip == NULL)
        return NULL;
    strip->blocks[0] = self->blocks[i];
    strip->readonly = self->readonly;
    strip->borrowed = 1;
    Py_INCREF(op);
    strip->whole = op;
    return (PyObject *)strip;
}

static PyObject *
picture_freeze(PyObject *op, PyObject *Py_UNUSED(unused))
{
    ((Picture *)op)->readonly = 1;
    Py_RETURN_NONE;
}

/* A picture with all pixels in one new block. */
static Picture *
picture_in_one_block(const Picture *self)
{
    Picture *whole = picture_make(self->mode, self->size[0], self->size[1], self->size[0]);
    int row;

    for (row = 0; whole != NULL && row < self->size[0]; row++)
        memcpy(picture_row(whole, row), picture_row(self, row), (size_t)picture_rowsize(self));
    return whole;
}

static PyObject *
picture_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    Picture *self = (Picture *)op, *copy = NULL;
    const int steps[3] = {self->linesize, self->mode->bands * self->mode->band_size, self->mode->band_size};
    const int ndim = self->mode->bands > 1 ? 3 : 2;
    int64_t shape[3], strides[3];
    dlpack_py_request request;
    dlpack_py_offer offer;
    dlpack_py_error error;
    PyObject *capsule;
    DLTensor t;

    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    if (self->block_count > 1) {
        if (request.copy == DLPACK_PY_COPY_NEVER)
            return PyErr_Format(PyExc_BufferError, "the pixels are in %d blocks: export each strip(i), or copy them",
                                self->block_count);
        self = copy = picture_in_one_block(self);
        if (copy == NULL)
            return NULL;
    }
    t = dlpack_py_cpu_tensor(self->blocks[0], self->mode->dtype, ndim,
                             dlpack_py_to_int64(ndim, self->size, sizeof(*self->size), shape), NULL);
    if (dlpack_py_strides_from_bytes(&t, dlpack_py_to_int64(ndim, steps, sizeof(*steps), strides), 0, &error) < 0) {
        (void)dlpack_py_raise(&error);
        Py_XDECREF(copy);
        return NULL;
    }
    offer = dlpack_py_offer_make((PyObject *)self, &t, self->readonly ? DLPACK_PY_FLAG_READ_ONLY : 0);
    offer.is_copy = copy != NULL; /* copy=True needs no second one, and the consumer is told */
    capsule = dlpack_py_answer(&offer, &request);
    Py_XDECREF(copy); /* the capsule holds it */
    return capsule;
}

static PyObject *
picture_get_mode(PyObject *op, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((const Picture *)op)->mode->name);
}

static PyObject *
picture_get_blocks(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((const Picture *)op)->block_count);
}

static void
picture_dealloc(PyObject *op)
{
    Picture *self = (Picture *)op;
    int i;

    for (i = 0; self->blocks != NULL && !self->borrowed && i < self->block_count; i++)
        PyMem_RawFree(self->blocks[i]);
    PyMem_RawFree(self->blocks);
    Py_XDECREF(self->whole);
    dlpack_py_release(&self->source);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef picture_methods[] = {
    {"frombytes", picture_frombytes, METH_O, PyDoc_STR("frombytes($self, data, /)\n--\n\nSet all pixels.")},
    {"tobytes", picture_tobytes, METH_NOARGS, PyDoc_STR("tobytes($self, /)\n--\n\nAll pixels, without padding.")},
    {"strip", picture_strip, METH_O, PyDoc_STR("strip($self, i, /)\n--\n\nThe rows of block i, in the same memory.")},
    {"freeze", picture_freeze, METH_NOARGS, PyDoc_STR("freeze($self, /)\n--\n\nMake the picture read-only, for good.")},
    DLPACK_PY_METHODS(picture_dlpack, dlpack_py_cpu_device),
    {"from_dlpack", (PyCFunction)(void (*)(void))picture_from_dlpack, METH_FASTCALL | METH_KEYWORDS | METH_CLASS,
     PyDoc_STR("from_dlpack($type, x, /, *, device=None, copy=None)\n--\n\nA picture of the pixels of x.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef picture_getters[] = {
    {"mode", picture_get_mode, NULL, NULL, NULL},
    {"blocks", picture_get_blocks, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

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

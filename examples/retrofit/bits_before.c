/* bits - a bit array that can be resized, as bitarray has: docs/retrofit_bits.md adds DLPack to bits_before.c
 * SPDX-License-Identifier: MIT
 *
 * Bits packs eight bits into a byte, the first bit lowest. It has a buffer of its bytes, and takes buffers.
 */
#include <Python.h>

typedef struct {
    PyObject_HEAD
    unsigned char *bytes;
    Py_ssize_t length;   /* in bits: the last byte may have bits after the end */
    Py_ssize_t capacity; /* in bytes */
    Py_ssize_t buffers;  /* while it is not 0, the memory stays where it is */
    char frozen;
} Bits;

static Py_ssize_t
bits_nbytes(const Bits *self)
{
    return self->length / 8 + (self->length % 8 > 0);
}

static void
bits_set(Bits *self, Py_ssize_t i, int value)
{
    const unsigned char bit = (unsigned char)(1 << i % 8);
    self->bytes[i / 8] = (unsigned char)(value ? self->bytes[i / 8] | bit : self->bytes[i / 8] & ~bit);
}

static int
bits_get(const Bits *self, Py_ssize_t i)
{
    return self->bytes[i / 8] >> i % 8 & 1;
}

/* Bits that are added are 0. Returns 0, or -1 with an exception. */
static int
bits_resize(Bits *self, Py_ssize_t length)
{
    const Py_ssize_t old = bits_nbytes(self), nbytes = length / 8 + (length % 8 > 0);
    unsigned char *bytes;

    if (self->frozen) {
        PyErr_SetString(PyExc_TypeError, "the bits are frozen");
        return -1;
    }
    if (self->buffers > 0) {
        PyErr_SetString(PyExc_BufferError, "the bits are exported, they cannot be resized");
        return -1;
    }
    if (nbytes > self->capacity) {
        bytes = (unsigned char *)PyMem_Realloc(self->bytes, (size_t)nbytes + (size_t)nbytes / 2);
        if (bytes == NULL) {
            (void)PyErr_NoMemory();
            return -1;
        }
        self->bytes = bytes;
        self->capacity = nbytes + nbytes / 2;
    }
    for (; self->length < length && self->length % 8 > 0; self->length++)
        bits_set(self, self->length, 0);
    if (nbytes > old)
        memset(self->bytes + old, 0, (size_t)(nbytes - old));
    self->length = length;
    return 0;
}

static int
bits_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    Bits *self = (Bits *)op;
    void *start = self->length > 0 ? (void *)self->bytes : (void *)self;

    if (PyBuffer_FillInfo(buffer, op, start, bits_nbytes(self), self->frozen, flags) < 0)
        return -1;
    self->buffers++;
    return 0;
}

static void
bits_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(buffer))
{
    ((Bits *)op)->buffers--;
}

static PyObject *
bits_append(PyObject *op, PyObject *value)
{
    Bits *self = (Bits *)op;
    const int is_one = PyObject_IsTrue(value);

    if (is_one < 0 || self->length == PY_SSIZE_T_MAX || bits_resize(self, self->length + 1) < 0)
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    bits_set(self, self->length - 1, is_one);
    Py_RETURN_NONE;
}

static PyObject *
bits_extend(PyObject *op, PyObject *source)
{
    Bits *self = (Bits *)op;
    const Py_ssize_t old = self->length;
    const unsigned char *bytes;
    Py_ssize_t i;
    Py_buffer buffer;

    if (PyObject_GetBuffer(source, &buffer, PyBUF_SIMPLE) < 0)
        return NULL;
    if (buffer.len > (PY_SSIZE_T_MAX - old) / 8 || bits_resize(self, old + buffer.len * 8) < 0) {
        PyBuffer_Release(&buffer);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    bytes = (const unsigned char *)buffer.buf;
    for (i = 0; i < buffer.len * 8; i++)
        bits_set(self, old + i, bytes[i / 8] >> i % 8 & 1);
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

static PyObject *
bits_method_resize(PyObject *op, PyObject *value)
{
    const Py_ssize_t length = PyLong_AsSsize_t(value);

    if (length < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "%zd bits were asked for", length);
    if (bits_resize((Bits *)op, length) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *
bits_count(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Bits *self = (const Bits *)op;
    Py_ssize_t i, count = 0;

    for (i = 0; i < self->length; i++) /* not the bits after the end */
        count += bits_get(self, i);
    return PyLong_FromSsize_t(count);
}

static PyObject *
bits_freeze(PyObject *op, PyObject *Py_UNUSED(unused))
{
    Bits *self = (Bits *)op;

    if (self->buffers > 0 && !self->frozen)
        return PyErr_Format(PyExc_BufferError, "the bits are exported, they cannot be frozen");
    self->frozen = 1;
    Py_RETURN_NONE;
}

static Py_ssize_t
bits_length(PyObject *op)
{
    return ((const Bits *)op)->length;
}

static PyObject *
bits_item(PyObject *op, Py_ssize_t i)
{
    const Bits *self = (const Bits *)op;

    if (i < 0 || i >= self->length)
        return PyErr_Format(PyExc_IndexError, "there is no bit %zd", i);
    return PyLong_FromLong(bits_get(self, i));
}

static void
bits_dealloc(PyObject *op)
{
    Bits *self = (Bits *)op;

    PyMem_Free(self->bytes);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef bits_methods[] = {
    {"append", bits_append, METH_O, PyDoc_STR("append($self, value, /)\n--\n\nAdd a bit at the end.")},
    {"extend", bits_extend, METH_O, PyDoc_STR("extend($self, source, /)\n--\n\nAdd the bits of the bytes of source.")},
    {"resize", bits_method_resize, METH_O,
     PyDoc_STR("resize($self, length, /)\n--\n\nAdd bits of 0, or drop the last bits.")},
    {"count", bits_count, METH_NOARGS, PyDoc_STR("count($self, /)\n--\n\nThe number of bits that are 1.")},
    {"freeze", bits_freeze, METH_NOARGS, PyDoc_STR("freeze($self, /)\n--\n\nMake the bits read-only, for good.")},
    {NULL, NULL, 0, NULL},
};

static PyBufferProcs bits_as_buffer = {bits_getbuffer, bits_releasebuffer};

static PySequenceMethods bits_as_sequence = {.sq_length = bits_length, .sq_item = bits_item};

static PyTypeObject bits_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "bits.Bits",
    .tp_doc = PyDoc_STR("Bits()\n--\n\nPacked bits, none at first."),
    .tp_basicsize = sizeof(Bits),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = bits_dealloc,
    .tp_methods = bits_methods,
    .tp_as_buffer = &bits_as_buffer,
    .tp_as_sequence = &bits_as_sequence,
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, .m_name = "bits", .m_size = -1};

PyMODINIT_FUNC
PyInit_bits(void)
{
    PyObject *module;

    bits_type.tp_new = PyType_GenericNew; /* in the initializer above, cl.exe warns at /W4 (C4232) */
    module = PyType_Ready(&bits_type) < 0 ? NULL : PyModule_Create(&module_def);
    Py_INCREF(&bits_type);
    if (module != NULL && PyModule_AddObject(module, "Bits", (PyObject *)&bits_type) < 0)
        Py_CLEAR(module);
    return module;
}

/* bits - a packed bit array, as bitarray has, that learns DLPack through the buffer protocol that it has
 * SPDX-License-Identifier: MIT
 *
 * Before DLPack, Bits had a buffer and took buffers. By DLPACK_BUFFER_METHODS it exports what its buffer shows, and by
 * dlpack_buffer_get it takes the arrays of any library where it took buffers.
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end".
 */
#include <Python.h>
/* dlpack: begin */
#include "dlpack_buffer.h"
/* dlpack: end */

typedef struct {
    PyObject_HEAD
    unsigned char *bytes;
    Py_ssize_t size;    /* in bytes */
    Py_ssize_t buffers; /* while it is not 0, the memory stays where it is */
} Bits;

static int
bits_getbuffer(PyObject *op, Py_buffer *buffer, int flags)
{
    Bits *self = (Bits *)op;
    if (PyBuffer_FillInfo(buffer, op, self->size > 0 ? (void *)self->bytes : (void *)self, self->size, 0, flags) < 0)
        return -1;
    self->buffers++;
    return 0;
}

static void
bits_releasebuffer(PyObject *op, Py_buffer *Py_UNUSED(buffer))
{
    ((Bits *)op)->buffers--;
}

/* extend(source, /): appends the bytes of a buffer or, by DLPack, of an array. */
static PyObject *
bits_extend(PyObject *op, PyObject *source)
{
    Bits *self = (Bits *)op;
    unsigned char *bytes;
    Py_buffer buffer;

    /* dlpack: begin */
    if (dlpack_buffer_get(source, NULL, &buffer, PyBUF_SIMPLE) < 0) /* was PyObject_GetBuffer */
        return NULL;
    /* dlpack: end */
    if (self->buffers > 0) {
        PyBuffer_Release(&buffer);
        return PyErr_Format(PyExc_BufferError, "the bits are exported, they cannot grow");
    }
    bytes = (unsigned char *)PyMem_Realloc(self->bytes, (size_t)(self->size + buffer.len) + 1);
    if (bytes == NULL) {
        PyBuffer_Release(&buffer);
        return PyErr_NoMemory();
    }
    memcpy(bytes + self->size, buffer.buf, (size_t)buffer.len);
    self->bytes = bytes;
    self->size += buffer.len;
    PyBuffer_Release(&buffer);
    Py_RETURN_NONE;
}

/* count(): the number of bits that are 1. */
static PyObject *
bits_count(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Bits *self = (const Bits *)op;
    Py_ssize_t i, count = 0;
    int byte;
    for (i = 0; i < self->size; i++) {
        for (byte = self->bytes[i]; byte != 0; byte &= byte - 1)
            count++;
    }
    return PyLong_FromSsize_t(count);
}

static void
bits_dealloc(PyObject *op)
{
    PyMem_Free(((Bits *)op)->bytes);
    Py_TYPE(op)->tp_free(op);
}

static PyMethodDef bits_methods[] = {
    {"extend", bits_extend, METH_O,
     PyDoc_STR("extend($self, source, /)\n--\n\nAppend the bytes of a buffer or array.")},
    {"count", bits_count, METH_NOARGS, PyDoc_STR("count($self, /)\n--\n\nThe number of bits that are 1.")},
    /* dlpack: begin */
    DLPACK_BUFFER_METHODS,
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static PyBufferProcs bits_as_buffer = {bits_getbuffer, bits_releasebuffer};

static PyTypeObject bits_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "bits.Bits",
    .tp_doc = PyDoc_STR("Bits()\n--\n\nPacked bits, none at first."),
    .tp_basicsize = sizeof(Bits),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = bits_dealloc,
    .tp_methods = bits_methods,
    .tp_as_buffer = &bits_as_buffer,
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

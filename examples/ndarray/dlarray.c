/* dlarray - a small n-dimensional array that supports DLPack
 * SPDX-License-Identifier: MIT
 *
 * An array library has to handle: its own memory and imported memory, views of this
 * memory, read-only memory, elements without a Python value, elements smaller than a
 * byte, derived classes, the garbage collector. This file calls dlpack_py.h to describe
 * and to copy tensors, to import tensors (array_import and its callers), and to export
 * tensors (section 6). It also exports and imports memory by the older protocol, the
 * buffers of Python (section 7).
 *
 * Shape, strides and memory of an array never change: they are read without a lock.
 * The field readonly may change (array_readonly). If a thread writes elements while
 * another thread reads them, both threads must synchronize, as in other libraries.
 *
 *   1 Elements
 *   2 Arrays, and how they are made
 *   3 Attributes
 *   4 Indexing
 *   5 Other shapes
 *   6 DLPack
 *   7 Buffers
 *   8 Values and copies
 *   9 The module
 */
#include <Python.h>
#include <structmember.h> /* T_PYSSIZET */

#include <math.h>   /* isinf */
#include <stdint.h> /* uintptr_t */
#include <stdlib.h> /* malloc, free */
#include <string.h> /* memcpy */
#ifdef __linux__
#  include <sys/mman.h> /* madvise */
#endif

/* Asks Linux for huge pages, if memory is large, not NULL and not yet written. They are mapped faster: the first write
 * takes half the time. Returns memory. */
static void *
with_huge_pages(void *memory, size_t size)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 2097152, begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
    if (memory != NULL && size >= 2 * page) /* an error changes nothing */
        (void)madvise((void *)begin, (uintptr_t)memory + size - begin, MADV_HUGEPAGE);
#else
    (void)size;
#endif
    return memory;
}

#ifndef DLPACK_PY_MALLOC /* tests define it, to let it fail */
#  define DLPACK_PY_MALLOC(size) with_huge_pages(malloc(size), size)
#  define DLPACK_PY_FREE(pointer) free(pointer)
#endif

/* In this order: dlpack_py.h uses the two that are included before it. */
#include "dlpack_copy.h"

#include "dlpack_exchange.h"

#include "dlpack_buffer.h"

#define ALIGNMENT 64 /* of our own memory: some consumers copy data with a smaller alignment */

/* Critical sections lock an object in a Python without a GIL. Python 3.13 added them. */
#ifndef Py_BEGIN_CRITICAL_SECTION
#  define Py_BEGIN_CRITICAL_SECTION(object) {
#  define Py_END_CRITICAL_SECTION() }
#endif

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(uintptr_t)(function))

#if PY_VERSION_HEX < 0x030B0000 /* before 3.11, the functions for float16 are private in CPython, and PyPy has none */
#  ifdef PYPY_VERSION
#    define PyFloat_Pack2(number, bytes, le) float16_pack(number, bytes)
#    define PyFloat_Unpack2(bytes, le) float16_unpack(bytes)

static int
float16_pack(double number, char *bytes)
{
    PyObject *module = PyImport_ImportModule("struct");
    PyObject *packed = module == NULL ? NULL : PyObject_CallMethod(module, "pack", "sd", "=e", number);
    Py_XDECREF(module);
    if (packed == NULL)
        return -1;
    memcpy(bytes, PyBytes_AsString(packed), 2);
    Py_DECREF(packed);
    return 0;
}

static double
float16_unpack(const char *bytes)
{
    PyObject *module = PyImport_ImportModule("struct");
    PyObject *items = module == NULL ? NULL : PyObject_CallMethod(module, "unpack", "sy#", "=e", bytes, (Py_ssize_t)2);
    const double number = items == NULL ? -1.0 : PyFloat_AsDouble(PyTuple_GetItem(items, 0));
    Py_XDECREF(module);
    Py_XDECREF(items);
    return number;
}
#  else
#    define PyFloat_Pack2(number, bytes, le) _PyFloat_Pack2(number, (unsigned char *)(bytes), le)
#    define PyFloat_Unpack2(bytes, le) _PyFloat_Unpack2((const unsigned char *)(bytes), le)
#  endif
#endif
#ifndef Py_TRASHCAN_BEGIN /* PyPy frees a chain of objects without recursion */
#  define Py_TRASHCAN_BEGIN(object, dealloc)
#  define Py_TRASHCAN_END
#endif

/* ---- 1 Elements --------------------------------------------------------- */

/* All dtypes of arrays: first the dtypes whose elements are Python values, then the
 * dtypes that are stored only: their elements can be viewed, copied and exported. */
static const uint32_t dtypes[] = {
    DLPACK_PY_BOOL,
    DLPACK_PY_INT8,
    DLPACK_PY_INT16,
    DLPACK_PY_INT32,
    DLPACK_PY_INT64,
    DLPACK_PY_UINT8,
    DLPACK_PY_UINT16,
    DLPACK_PY_UINT32,
    DLPACK_PY_UINT64,
    DLPACK_PY_FLOAT16,
    DLPACK_PY_FLOAT32,
    DLPACK_PY_FLOAT64,
    DLPACK_PY_COMPLEX64,
    DLPACK_PY_COMPLEX128,

    DLPACK_PY_BFLOAT16,
    DLPACK_PY_FLOAT8_E3M4,
    DLPACK_PY_FLOAT8_E4M3,
    DLPACK_PY_FLOAT8_E4M3B11FNUZ,
    DLPACK_PY_FLOAT8_E4M3FN,
    DLPACK_PY_FLOAT8_E4M3FNUZ,
    DLPACK_PY_FLOAT8_E5M2,
    DLPACK_PY_FLOAT8_E5M2FNUZ,
    DLPACK_PY_FLOAT8_E8M0FNU,
    DLPACK_PY_FLOAT6_E2M3FN,
    DLPACK_PY_FLOAT6_E3M2FN,
    DLPACK_PY_FLOAT4_E2M1FN,
    0,
};

/* The format of elements in the struct module; for complex elements the format of
 * NumPy; NULL for dtypes that are stored only. Not const, because the field format of
 * Py_buffer is not const. */
static char *
element_format(uint32_t dtype)
{
    switch (dtype) {
    case DLPACK_PY_BOOL: return "?";
    case DLPACK_PY_INT8: return "b";
    case DLPACK_PY_INT16: return "h";
    case DLPACK_PY_INT32: return "i";
    case DLPACK_PY_INT64: return "q";
    case DLPACK_PY_UINT8: return "B";
    case DLPACK_PY_UINT16: return "H";
    case DLPACK_PY_UINT32: return "I";
    case DLPACK_PY_UINT64: return "Q";
    case DLPACK_PY_FLOAT16: return "e";
    case DLPACK_PY_FLOAT32: return "f";
    case DLPACK_PY_FLOAT64: return "d";
    case DLPACK_PY_COMPLEX64: return "Zf";
    case DLPACK_PY_COMPLEX128: return "Zd";
    default: return NULL;
    }
}

/* Checks that elements of this dtype have Python values. Returns 0, or -1 with TypeError. */
static int
check_values(uint32_t dtype)
{
    char text[DLPACK_PY_TEXT_SIZE];
    if (element_format(dtype) != NULL)
        return 0;
    PyErr_Format(PyExc_TypeError, "elements of %s are only stored, they cannot be read or written as values",
                 dlpack_py_dtype_text(dtype, text));
    return -1;
}

/* An element that has a Python value. */
typedef union Element {
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    float f32[2];
    double f64[2];
} Element;

/* The address of an element that has a Python value. distance counts elements from the
 * first element. */
static char *
element_at(const DLTensor *t, int64_t distance)
{
    return (char *)t->data + distance * (int64_t)dlpack_py_itemsize(t->dtype, 0);
}

static PyObject *
read_element(const DLTensor *t, int64_t distance)
{
    Element e;
    memcpy(&e, element_at(t, distance), dlpack_py_itemsize(t->dtype, 0));
    switch (dlpack_py_dtype(t)) {
    case DLPACK_PY_BOOL: return PyBool_FromLong(e.u8);
    case DLPACK_PY_INT8: return PyLong_FromLong(e.i8);
    case DLPACK_PY_INT16: return PyLong_FromLong(e.i16);
    case DLPACK_PY_INT32: return PyLong_FromLong(e.i32);
    case DLPACK_PY_INT64: return PyLong_FromLongLong(e.i64);
    case DLPACK_PY_UINT8: return PyLong_FromUnsignedLong(e.u8);
    case DLPACK_PY_UINT16: return PyLong_FromUnsignedLong(e.u16);
    case DLPACK_PY_UINT32: return PyLong_FromUnsignedLong(e.u32);
    case DLPACK_PY_UINT64: return PyLong_FromUnsignedLongLong(e.u64);
    case DLPACK_PY_FLOAT16: return PyFloat_FromDouble(PyFloat_Unpack2((const char *)&e, PY_LITTLE_ENDIAN));
    case DLPACK_PY_FLOAT32: return PyFloat_FromDouble((double)e.f32[0]);
    case DLPACK_PY_FLOAT64: return PyFloat_FromDouble(e.f64[0]);
    case DLPACK_PY_COMPLEX64: return PyComplex_FromDoubles((double)e.f32[0], (double)e.f32[1]);
    default: return PyComplex_FromDoubles(e.f64[0], e.f64[1]); /* complex128 */
    }
}

/* The four functions below return 0 with an exception if a value has the wrong type or
 * does not fit. */
static uint8_t
parse_bool(PyObject *value)
{
    if (!PyNumber_Check(value)) {
        PyErr_Format(PyExc_TypeError, "a bool or another number was wanted, not %.100s", Py_TYPE(value)->tp_name);
        return 0;
    }
    return PyObject_IsTrue(value) > 0;
}

static int64_t
parse_signed(PyObject *value, int64_t lowest, int64_t highest)
{
    PyObject *integer = PyNumber_Index(value);
    const int64_t number = integer == NULL ? 0 : PyLong_AsLongLong(integer);

    Py_XDECREF(integer);
    if (integer == NULL || (number == -1 && PyErr_Occurred()))
        return 0;
    if (number >= lowest && number <= highest)
        return number;
    PyErr_Format(PyExc_OverflowError, "%lld is not from %lld to %lld", (long long)number, (long long)lowest,
                 (long long)highest);
    return 0;
}

static uint64_t
parse_unsigned(PyObject *value, uint64_t highest)
{
    PyObject *integer = PyNumber_Index(value);
    const uint64_t number = integer == NULL ? 0 : PyLong_AsUnsignedLongLong(integer);

    Py_XDECREF(integer);
    if (integer == NULL || (number == UINT64_MAX && PyErr_Occurred()))
        return 0;
    if (number <= highest)
        return number;
    PyErr_Format(PyExc_OverflowError, "%llu is not from 0 to %llu", (unsigned long long)number,
                 (unsigned long long)highest);
    return 0;
}

static float
narrow(double number)
{
    if (fabs(number) != HUGE_VAL && fabsf((float)number) == HUGE_VALF) {
        PyErr_SetString(PyExc_OverflowError, "the number is too large for 32 bits");
        return 0;
    }
    return (float)number;
}

/* Converts a Python value to an element. Returns 0, or -1 with OverflowError (the value
 * does not fit) or TypeError. The caller has no exception set. */
static int
parse_element(PyObject *value, uint32_t dtype, Element *e)
{
    Py_complex complex = {0.0, 0.0};

    if (dtype == DLPACK_PY_COMPLEX64 || dtype == DLPACK_PY_COMPLEX128)
        complex = PyComplex_AsCComplex(value);
    switch (dtype) {
    case DLPACK_PY_BOOL: e->u8 = parse_bool(value); break;
    case DLPACK_PY_INT8: e->i8 = (int8_t)parse_signed(value, INT8_MIN, INT8_MAX); break;
    case DLPACK_PY_INT16: e->i16 = (int16_t)parse_signed(value, INT16_MIN, INT16_MAX); break;
    case DLPACK_PY_INT32: e->i32 = (int32_t)parse_signed(value, INT32_MIN, INT32_MAX); break;
    case DLPACK_PY_INT64: e->i64 = parse_signed(value, INT64_MIN, INT64_MAX); break;
    case DLPACK_PY_UINT8: e->u8 = (uint8_t)parse_unsigned(value, UINT8_MAX); break;
    case DLPACK_PY_UINT16: e->u16 = (uint16_t)parse_unsigned(value, UINT16_MAX); break;
    case DLPACK_PY_UINT32: e->u32 = (uint32_t)parse_unsigned(value, UINT32_MAX); break;
    case DLPACK_PY_UINT64: e->u64 = parse_unsigned(value, UINT64_MAX); break;
    case DLPACK_PY_FLOAT16: (void)PyFloat_Pack2(PyFloat_AsDouble(value), (char *)e, PY_LITTLE_ENDIAN); break;
    case DLPACK_PY_FLOAT32: e->f32[0] = narrow(PyFloat_AsDouble(value)); break;
    case DLPACK_PY_FLOAT64: e->f64[0] = PyFloat_AsDouble(value); break;
    case DLPACK_PY_COMPLEX64:
        e->f32[0] = narrow(complex.real);
        e->f32[1] = narrow(complex.imag);
        break;
    default: /* complex128 */
        e->f64[0] = complex.real;
        e->f64[1] = complex.imag;
        break;
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* ---- 2 Arrays, and how they are made ------------------------------------ */

typedef struct Array {
    PyObject_HEAD
    DLTensor tensor;       /* data is the first element, byte_offset 0; shape and strides are in extents */
    int64_t *extents;      /* shape, then strides; NULL for rank 0 */
    struct Array *owner;   /* of a view: the array that holds the memory, never a view; else NULL */
    void *memory;          /* the array's own memory, else NULL */
    dlpack_py_view source; /* the imported tensor; else all zero, which says writable */
    int readonly;          /* DLPACK_PY_WRITABLE, ..._READ_ONLY or, from a legacy capsule, ..._READ_ONLY_UNKNOWN */
    uint64_t padded;       /* DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED if the elements are padded, else 0 */
    PyObject *weakrefs;
} Array;

/* The tensors that an array can import: any layout, aligned as the elements need. */
static const dlpack_py_want importable = {.dtypes = dtypes};

/* A new array with the layout and the data of t. The array does not own the memory
 * yet. If t has no elements, data is NULL (D3). If the strides are NULL or t has no
 * elements (D5), the strides are row-major. */
static Array *
array_new(PyTypeObject *type, const DLTensor *t, uint64_t padded)
{
    const size_t size = (size_t)t->ndim * sizeof(int64_t);
    Array *self = (Array *)type->tp_alloc(type, 0);

    if (self == NULL)
        return NULL;
    self->padded = padded;
    self->tensor = *t;
    if (dlpack_py_size(t) == 0)
        self->tensor.data = NULL;
    self->tensor.shape = self->tensor.strides = NULL;
    if (t->ndim == 0)
        return self;
    self->extents = (int64_t *)PyMem_Malloc(2 * size);
    if (self->extents == NULL) {
        Py_DECREF(self);
        return (Array *)PyErr_NoMemory();
    }
    self->tensor.shape = self->extents;
    self->tensor.strides = self->extents + t->ndim;
    memcpy(self->tensor.shape, t->shape, size);
    if (t->strides != NULL && dlpack_py_size(t) != 0)
        memcpy(self->tensor.strides, t->strides, size);
    else
        dlpack_py_compact_strides(t->ndim, t->shape, 'C', self->tensor.strides);
    return self;
}

/* Checks that an array can have this layout. Returns 0, or -1 with ValueError. */
static int
check_size(const DLTensor *t, uint64_t padded)
{
    dlpack_py_error error;
    if (dlpack_py_validate(t, padded, &error) == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, error.text);
    return -1;
}

/* A new array with its own row-major memory, which is zero or uninitialized. */
static Array *
array_allocate(PyTypeObject *type, int32_t ndim, const int64_t *shape, uint32_t dtype, uint64_t padded, int zeroed)
{
    DLTensor t = dlpack_py_cpu_tensor((void *)ALIGNMENT, dtype, ndim, shape, NULL); /* any address but NULL is valid */
    void *memory = NULL;
    Array *self;
    size_t size;

    if (check_size(&t, padded) < 0)
        return NULL;
    if (dlpack_py_nbytes(&t, padded) > PY_SSIZE_T_MAX - ALIGNMENT)
        return (Array *)PyErr_NoMemory();
    size = (size_t)dlpack_py_nbytes(&t, padded);
    if (size > 0) {
        memory = zeroed ? PyMem_RawCalloc(1, size + ALIGNMENT) : PyMem_RawMalloc(size + ALIGNMENT);
        if (memory == NULL)
            return (Array *)PyErr_NoMemory();
        t.data = (char *)with_huge_pages(memory, size + ALIGNMENT) + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT);
    }
    self = array_new(type, &t, padded);
    if (self == NULL)
        PyMem_RawFree(memory);
    else
        self->memory = memory;
    return self;
}

/* A new array over a consumed tensor. Takes the view, also on failure. */
static PyObject *
array_import(PyTypeObject *type, dlpack_py_view *v)
{
    DLTensor t = v->tensor;
    Array *self;
    int i;

    for (i = 0; i < t.ndim; i++) {
        if (t.shape[i] != (Py_ssize_t)t.shape[i]) { /* no index reaches it: 32-bit Python */
            PyErr_Format(PyExc_BufferError, "shape[%d] is %lld, %zd at most was wanted", i, (long long)t.shape[i],
                         PY_SSIZE_T_MAX);
            dlpack_py_release(v);
            return NULL;
        }
    }
    t.data = dlpack_py_data(v);
    t.byte_offset = 0;
    self = array_new(type, &t, v->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED);
    if (self == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    dlpack_py_move(&self->source, v);
    self->readonly = self->source.readonly;
    return (PyObject *)self;
}

/* Array(source) */
static PyObject *
array_from_source(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", NULL};
    PyObject *source;
    dlpack_py_view v;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Array", names, &source) ||
        dlpack_py_consume(source, &importable, &v) < 0)
        return NULL;
    return array_import(type, &v);
}

/* The array that holds the memory of self. */
static const Array *
array_root(const Array *self)
{
    return self->owner != NULL ? self->owner : self;
}

/* Read this only once for each result: another thread may call setflags between two
 * reads. */
static int
array_readonly(Array *self)
{
    int readonly;
    Py_BEGIN_CRITICAL_SECTION(self);
    readonly = self->readonly;
    Py_END_CRITICAL_SECTION();
    return readonly;
}

/* A new view of the memory of self, with the layout of t. The view has the class of
 * self; __new__ and __init__ of the class are not called. */
static PyObject *
array_view(Array *self, const DLTensor *t)
{
    Array *view = array_new(Py_TYPE(self), t, self->padded);
    if (view == NULL)
        return NULL;
    view->owner = self->owner != NULL ? self->owner : self;
    Py_INCREF(view->owner);
    view->readonly = array_readonly(self);
    return (PyObject *)view;
}

/* There is no tp_clear; a tuple has no tp_clear either. An array refers only to objects
 * that are older than the array. So a reference cycle needs another reference, usually
 * an attribute of a derived class, and the garbage collector breaks the cycle there. An
 * array never loses its memory while code can still use the array. */
static int
array_traverse(PyObject *op, visitproc visit, void *arg)
{
    const Array *self = (const Array *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->owner);
    return dlpack_py_traverse(&self->source, visit, arg);
}

/* The trashcan frees a long chain of imported arrays without recursion. */
static void
array_dealloc(PyObject *op)
{
    Array *self = (Array *)op;
    PyTypeObject *type = Py_TYPE(op);

    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, array_dealloc);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(op);
    dlpack_py_release(&self->source);
    Py_XDECREF(self->owner);
    PyMem_RawFree(self->memory);
    PyMem_Free(self->extents);
    type->tp_free(op);
    Py_DECREF(type);
    Py_TRASHCAN_END;
}

/* ---- 3 Attributes ------------------------------------------------------- */

static PyObject *
tuple_of(const int64_t *numbers, int32_t count)
{
    PyObject *tuple = PyTuple_New(count);
    int32_t i;
    for (i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *
array_get_shape(PyObject *op, void *Py_UNUSED(closure))
{
    const DLTensor *t = &((const Array *)op)->tensor;
    return tuple_of(t->shape, t->ndim);
}

static PyObject *
array_get_strides(PyObject *op, void *Py_UNUSED(closure))
{
    const DLTensor *t = &((const Array *)op)->tensor;
    return tuple_of(t->strides, t->ndim);
}

static PyObject *
array_get_dtype(PyObject *op, void *Py_UNUSED(closure))
{
    char text[DLPACK_PY_TEXT_SIZE];
    return PyUnicode_FromString(dlpack_py_dtype_text(dlpack_py_dtype(&((const Array *)op)->tensor), text));
}

static PyObject *
array_get_ndim(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((const Array *)op)->tensor.ndim);
}

static PyObject *
array_get_size(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(dlpack_py_size(&((const Array *)op)->tensor));
}

static PyObject *
array_get_itemsize(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(dlpack_py_itemsize(((const Array *)op)->tensor.dtype, 0));
}

static PyObject *
array_get_nbytes(PyObject *op, void *Py_UNUSED(closure))
{
    const Array *self = (const Array *)op;
    return PyLong_FromLongLong(dlpack_py_nbytes(&self->tensor, self->padded));
}

static PyObject *
array_get_device(PyObject *op, void *Py_UNUSED(closure))
{
    return dlpack_py_produce_device(&((const Array *)op)->tensor);
}

static PyObject *
array_get_data_ptr(PyObject *op, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(((const Array *)op)->tensor.data);
}

static PyObject *
array_get_readonly(PyObject *op, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(array_readonly((Array *)op) != DLPACK_PY_WRITABLE);
}

static PyObject *
array_get_owner(PyObject *op, void *Py_UNUSED(closure))
{
    Array *owner = ((const Array *)op)->owner;
    PyObject *object = owner != NULL ? (PyObject *)owner : Py_None;
    Py_INCREF(object);
    return object;
}

static PyObject *
array_setflags(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"writeable", NULL};
    Array *self = (Array *)op;
    int writeable;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$p:setflags", names, &writeable))
        return NULL;
    if (writeable && array_root(self)->source.readonly != DLPACK_PY_WRITABLE) {
        PyErr_SetString(PyExc_ValueError, "the memory came as read-only, it cannot be made writeable");
        return NULL;
    }
    Py_BEGIN_CRITICAL_SECTION(self);
    self->readonly = writeable ? DLPACK_PY_WRITABLE : DLPACK_PY_READ_ONLY;
    Py_END_CRITICAL_SECTION();
    Py_RETURN_NONE;
}

static PyObject *
array_array_interface(PyObject *op, void *unused);

static PyGetSetDef array_attributes[] = {
    {"__array_interface__", array_array_interface, NULL, PyDoc_STR("For libraries without DLPack and buffers."), NULL},
    {"shape", array_get_shape, NULL, PyDoc_STR("The extents, as a tuple."), NULL},
    {"strides", array_get_strides, NULL, PyDoc_STR("The strides, in elements, as a tuple."), NULL},
    {"dtype", array_get_dtype, NULL, PyDoc_STR("The type of the elements, as text."), NULL},
    {"ndim", array_get_ndim, NULL, PyDoc_STR("The rank: the number of dimensions."), NULL},
    {"size", array_get_size, NULL, PyDoc_STR("The number of elements."), NULL},
    {"itemsize", array_get_itemsize, NULL,
     PyDoc_STR("The bytes of an element; 1 if it has fewer than 8 bits, although such elements are packed."), NULL},
    {"nbytes", array_get_nbytes, NULL, PyDoc_STR("The bytes of a copy: the bits of all elements, rounded up."), NULL},
    {"device", array_get_device, NULL, PyDoc_STR("The DLPack device, as a tuple (type, id)."), NULL},
    {"data_ptr", array_get_data_ptr, NULL, PyDoc_STR("The address of the first element; 0 without elements."), NULL},
    {"readonly", array_get_readonly, NULL, PyDoc_STR("Whether elements cannot be assigned."), NULL},
    {"owner", array_get_owner, NULL,
     PyDoc_STR("Of a view: the array whose memory the view uses and keeps alive. Else None."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- 4 Indexing --------------------------------------------------------- */

/* The layout of a new view: a tensor, with room for its shape and strides. */
typedef struct Layout {
    DLTensor tensor; /* data is that of the source, until layout_settle */
    int64_t first;   /* the first element of the view, counted in elements from data */
    int64_t shape[DLPACK_PY_MAX_NDIM];
    int64_t strides[DLPACK_PY_MAX_NDIM];
} Layout;

/* Starts a layout at the first element of t, without dimensions. */
static void
layout_begin(Layout *l, const DLTensor *t)
{
    l->tensor = *t;
    l->first = 0;
    l->tensor.ndim = 0;
    l->tensor.shape = l->shape;
    l->tensor.strides = l->strides;
}

static int
layout_add(Layout *l, int64_t extent, int64_t stride)
{
    if (l->tensor.ndim == DLPACK_PY_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "an array has %d dimensions at most", DLPACK_PY_MAX_NDIM);
        return -1;
    }
    l->shape[l->tensor.ndim] = extent;
    l->strides[l->tensor.ndim++] = stride;
    return 0;
}

/* Moves the first element by index along an axis of t. The axis has elements. */
static void
layout_move(Layout *l, const DLTensor *t, int32_t axis, int64_t index)
{
    if (dlpack_py_size(t) != 0) /* another axis may have extent 0 */
        l->first += index * t->strides[axis];
}

/* Sets data to the address of the first element. Returns 0, or -1 with ValueError if the
 * element begins in the middle of a byte: DLPack cannot describe such a tensor. */
static int
layout_settle(Layout *l, uint64_t padded)
{
    const int64_t bits = padded != 0 && l->tensor.dtype.bits < 8 ? 8 : l->tensor.dtype.bits;
    const int64_t rest = l->first % 8 * bits; /* in bits; eight elements take `bits` bytes */

    if (dlpack_py_size(&l->tensor) == 0)
        return 0;
    if (rest % 8 != 0) {
        PyErr_Format(PyExc_ValueError, "the view would begin with element %lld, in the middle of a byte",
                     (long long)l->first);
        return -1;
    }
    l->tensor.data = (char *)l->tensor.data + l->first / 8 * bits + rest / 8;
    return 0;
}

static int
layout_pick(Layout *l, const DLTensor *t, int32_t axis, PyObject *item)
{
    const int64_t extent = t->shape[axis];
    Py_ssize_t index;

    if (!PyIndex_Check(item)) {
        PyErr_Format(PyExc_TypeError, "an index is an int, a slice, ... or None, not %.100s", Py_TYPE(item)->tp_name);
        return -1;
    }
    index = PyNumber_AsSsize_t(item, PyExc_IndexError);
    if (index == -1 && PyErr_Occurred())
        return -1;
    if (index < -extent || index >= extent) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of range, axis %d has %lld elements", index, (int)axis,
                     (long long)extent);
        return -1;
    }
    layout_move(l, t, axis, index < 0 ? index + extent : index);
    return 0;
}

static int
layout_slice(Layout *l, const DLTensor *t, int32_t axis, PyObject *slice)
{
    int64_t stride = t->strides[axis];
    Py_ssize_t start, stop, step, length;

    if (PySlice_Unpack(slice, &start, &stop, &step) < 0)
        return -1;
    length = PySlice_AdjustIndices((Py_ssize_t)t->shape[axis], &start, &stop, step);
    if (length > 0)
        layout_move(l, t, axis, start);
    if (length > 1 && dlpack_py_size(t) != 0) /* else the stride has no meaning, and step may be huge */
        stride *= step;
    return layout_add(l, length, stride);
}

static int
layout_whole(Layout *l, const DLTensor *t, int32_t axis)
{
    return layout_add(l, t->shape[axis], t->strides[axis]);
}

/* Applies the items of a key. Returns 1 if the key has an int for each dimension of t:
 * then it names a single element. Returns 0 for other keys, or -1 with an exception. */
static int
layout_follow(Layout *l, const DLTensor *t, PyObject *items)
{
    const Py_ssize_t count = PyTuple_GET_SIZE(items);
    Py_ssize_t i, unnamed = t->ndim, ellipses = 0;
    int32_t axis = 0;
    int failed = 0;

    for (i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        ellipses += item == Py_Ellipsis;
        unnamed -= item != Py_Ellipsis && item != Py_None;
    }
    if (unnamed < 0 || ellipses > 1) {
        PyErr_Format(PyExc_IndexError, "%zd indices for %d dimensions, and ... %zd times", t->ndim - unnamed,
                     (int)t->ndim, ellipses);
        return -1;
    }
    for (i = 0; i < count && failed == 0; i++) {
        PyObject *item = PyTuple_GET_ITEM(items, i);
        if (item == Py_None)
            failed = layout_add(l, 1, 0);
        else if (PySlice_Check(item))
            failed = layout_slice(l, t, axis++, item);
        else if (item != Py_Ellipsis)
            failed = layout_pick(l, t, axis++, item);
        else {
            for (; unnamed > 0 && failed == 0; unnamed--)
                failed = layout_whole(l, t, axis++);
        }
    }
    for (; axis < t->ndim && failed == 0; axis++)
        failed = layout_whole(l, t, axis);
    if (failed < 0)
        return -1;
    return l->tensor.ndim == 0 && ellipses == 0;
}

/* Computes the layout of self[key]. Returns 1 if the key names a single element, 0 for
 * other keys, or -1 with an exception. A single element without a Python value is
 * TypeError. */
static int
array_follow(const Array *self, PyObject *key, Layout *l)
{
    PyObject *items = PyTuple_Check(key) ? key : PyTuple_Pack(1, key);
    int single;

    if (items == NULL)
        return -1;
    layout_begin(l, &self->tensor);
    single = layout_follow(l, &self->tensor, items);
    if (items != key)
        Py_DECREF(items);
    if (single < 0 || (single && check_values(dlpack_py_dtype(&self->tensor)) < 0) ||
        layout_settle(l, self->padded) < 0)
        return -1;
    return single;
}

/* self[key]: a Python value if the key has an int for each dimension, else a view. */
static PyObject *
array_subscript(PyObject *op, PyObject *key)
{
    Array *self = (Array *)op;
    Layout l;
    const int single = array_follow(self, key, &l);

    if (single < 0)
        return NULL;
    return single ? read_element(&l.tensor, 0) : array_view(self, &l.tensor);
}

static int
check_writeable(Array *self)
{
    if (array_readonly(self) == DLPACK_PY_WRITABLE)
        return 0;
    PyErr_SetString(PyExc_ValueError, "the array is read-only");
    return -1;
}

/* self[key] = value: sets all elements that the key selects to the value. */
static int
array_assign(PyObject *op, PyObject *key, PyObject *value)
{
    static const int64_t nowhere[DLPACK_PY_MAX_NDIM] = {0};
    Array *self = (Array *)op;
    const uint32_t dtype = dlpack_py_dtype(&self->tensor);
    DLTensor repeated;
    Element e;
    Layout l;

    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "elements of an array cannot be deleted");
        return -1;
    }
    if (check_writeable(self) < 0 || check_values(dtype) < 0 || parse_element(value, dtype, &e) < 0 ||
        array_follow(self, key, &l) < 0 || check_writeable(self) < 0) /* again: value and key may run code */
        return -1;
    repeated = dlpack_py_cpu_tensor(&e, dtype, l.tensor.ndim, l.shape, nowhere);
    return dlpack_py_copy(&l.tensor, &repeated, 0, NULL);
}

/* ---- 5 Other shapes ----------------------------------------------------- */

/* Reads extents or axes from an int, or from a tuple or list of ints. Returns their
 * number, or -1 with TypeError or ValueError. */
static int32_t
parse_numbers(PyObject *object, int64_t numbers[DLPACK_PY_MAX_NDIM])
{
    PyObject *items = PyIndex_Check(object) ? PyTuple_Pack(1, object) : PySequence_Tuple(object);
    Py_ssize_t i, count = items == NULL ? 0 : PyTuple_GET_SIZE(items);

    if (count > DLPACK_PY_MAX_NDIM)
        PyErr_Format(PyExc_ValueError, "%zd dimensions were asked for, an array has %d at most", count,
                     DLPACK_PY_MAX_NDIM);
    for (i = 0; i < count && !PyErr_Occurred(); i++)
        numbers[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(items, i), PyExc_ValueError);
    Py_XDECREF(items);
    return PyErr_Occurred() ? -1 : (int32_t)count;
}

/* Reads extents or axes from the arguments of a method: f(2, 3) is equal to f((2, 3)). */
static int32_t
parse_arguments(PyObject *args, int64_t numbers[DLPACK_PY_MAX_NDIM])
{
    return parse_numbers(PyTuple_GET_SIZE(args) == 1 ? PyTuple_GET_ITEM(args, 0) : args, numbers);
}

static PyObject *
array_transpose(PyObject *op, PyObject *args)
{
    const DLTensor *t = &((const Array *)op)->tensor;
    int64_t axes[DLPACK_PY_MAX_NDIM];
    uint64_t seen = 0; /* a bit for each axis */
    int32_t i, count = parse_arguments(args, axes);
    Layout l;

    if (count < 0)
        return NULL;
    if (PyTuple_GET_SIZE(args) == 0) {
        for (count = 0; count < t->ndim; count++)
            axes[count] = t->ndim - 1 - count;
    }
    layout_begin(&l, t);
    for (i = 0; i < count; i++) {
        const int64_t axis = axes[i] < 0 ? axes[i] + t->ndim : axes[i];
        if (axis < 0 || axis >= t->ndim || (seen >> axis & 1) != 0)
            break;
        seen |= (uint64_t)1 << axis;
        if (layout_whole(&l, t, (int32_t)axis) < 0)
            return NULL;
    }
    if (l.tensor.ndim != t->ndim || count != t->ndim) {
        PyErr_Format(PyExc_ValueError, "each of the axes of %d dimensions is to be named once, not %R", (int)t->ndim,
                     args);
        return NULL;
    }
    return array_view((Array *)op, &l.tensor);
}

/* Replaces an extent of -1 so that the shape has size elements. Returns 1 if the shape
 * then has size elements, else 0. */
static int
complete_shape(int64_t *shape, int32_t ndim, int64_t size)
{
    int64_t known = 1;
    int32_t i, open = -1;

    for (i = 0; i < ndim; i++) {
        if (shape[i] == -1 && open < 0)
            open = i;
        else if (shape[i] < 0 || (shape[i] > 0 && known > INT64_MAX / shape[i]))
            return 0;
        else
            known *= shape[i];
    }
    if (open < 0)
        return known == size;
    if (known == 0 || size % known != 0)
        return 0;
    shape[open] = size / known;
    return 1;
}

/* Computes strides that give the elements of t a new shape. Returns 1, or 0 if no such
 * strides exist. */
static int
reshape_strides(const DLTensor *t, int32_t ndim, const int64_t *shape, int64_t *strides)
{
    int32_t from = t->ndim, to = ndim;

    if (dlpack_py_is_contiguous(t, 'C')) { /* 1 also without elements */
        dlpack_py_compact_strides(ndim, shape, 'C', strides);
        return 1;
    }
    while (from > 0) {
        /* Join dimensions of t that a single stride can describe, and split them as shape does. */
        int64_t extent = t->shape[--from], taken = 1;
        const int64_t stride = t->strides[from];
        if (extent == 1)
            continue;
        while (from > 0 &&
               (t->shape[from - 1] == 1 || (uint64_t)t->strides[from - 1] == (uint64_t)extent * (uint64_t)stride))
            extent *= t->shape[--from];
        while (to > 0 && taken < extent) {
            strides[--to] = taken * stride;
            taken *= shape[to];
        }
        if (taken != extent)
            return 0;
    }
    while (to > 0)
        strides[--to] = 1; /* the extents that are left are 1 */
    return 1;
}

static PyObject *
array_reshape(PyObject *op, PyObject *args)
{
    Layout l;
    const DLTensor *t = &((const Array *)op)->tensor;
    const int32_t ndim = parse_arguments(args, l.shape);

    if (ndim < 0)
        return NULL;
    if (!complete_shape(l.shape, ndim, dlpack_py_size(t))) {
        PyErr_Format(PyExc_ValueError, "%lld elements do not have the shape %R", (long long)dlpack_py_size(t), args);
        return NULL;
    }
    if (!reshape_strides(t, ndim, l.shape, l.strides)) {
        PyErr_Format(PyExc_ValueError, "no strides give these elements the shape %R, reshape a copy()", args);
        return NULL;
    }
    layout_begin(&l, t);
    l.tensor.ndim = ndim;
    return array_view((Array *)op, &l.tensor);
}

static PyObject *
array_broadcast_to(PyObject *op, PyObject *arg)
{
    const DLTensor *t = &((const Array *)op)->tensor;
    int64_t shape[DLPACK_PY_MAX_NDIM];
    const int32_t ndim = parse_numbers(arg, shape);
    int32_t i;
    Layout l;

    if (ndim < 0)
        return NULL;
    layout_begin(&l, t);
    for (i = 0; i < ndim; i++) {
        const int32_t axis = i + t->ndim - ndim; /* below 0: a new dimension, which repeats all elements */
        const int repeats = axis < 0 || (t->shape[axis] == 1 && shape[i] != 1);
        if (!repeats && shape[i] != t->shape[axis])
            break;
        if (layout_add(&l, shape[i], repeats ? 0 : t->strides[axis]) < 0)
            return NULL;
    }
    if (l.tensor.ndim != ndim || ndim < t->ndim) {
        PyErr_Format(PyExc_ValueError, "the array does not repeat to the shape %R", arg);
        return NULL;
    }
    return check_size(&l.tensor, ((const Array *)op)->padded) < 0 ? NULL : array_view((Array *)op, &l.tensor);
}

/* ---- 6 DLPack ----------------------------------------------------------- */

/* Describes the data that is exported, for __dlpack__ and for the exchange table. */
static int
array_describe(PyObject *op, const dlpack_py_request *request, dlpack_py_offer *offer)
{
    Array *self = (Array *)op;

    (void)request;
    *offer = dlpack_py_offer_view(op, &self->tensor, &array_root(self)->source);
    offer->flags |= self->padded;                      /* a copy has no source with this flag */
    if (array_readonly(self) == DLPACK_PY_READ_ONLY) { /* set by setflags, or by the source */
        offer->flags |= DLPACK_PY_FLAG_READ_ONLY;
        offer->options &= ~DLPACK_PY_OFFER_READ_ONLY_UNKNOWN;
    }
    return 0;
}

DLPACK_PY_DESCRIBED(array, array_describe);

#if DLPACK_PY_HAS_EXCHANGE_API
DLPACK_PY_EXCHANGE_API(array_exchange, array_describe, array_import, &importable);
#endif

/* ---- 7 Buffers ---------------------------------------------------------- */

DLPACK_BUFFER_DESCRIBED(array, array_describe);
DLPACK_BUFFER_ARRAY_INTERFACE(array, array_describe);

/* The number of elements in a buffer of this many bytes: count, or all elements if count
 * is -1. Returns -1 with ValueError. */
static Py_ssize_t
count_elements(Py_ssize_t bytes, uint32_t dtype, Py_ssize_t count)
{
    const Py_ssize_t bits = (Py_ssize_t)(dtype >> 16 & 0xff);
    const Py_ssize_t most = bytes / bits * 8 + bytes % bits * 8 / bits; /* eight elements take `bits` bytes */
    char text[DLPACK_PY_TEXT_SIZE];

    if (count >= 0 && count <= most)
        return count;
    if (count < 0 && bytes % bits * 8 % bits == 0)
        return most;
    PyErr_Format(PyExc_ValueError, "%zd bytes hold %zd elements of %s%s", bytes, most,
                 dlpack_py_dtype_text(dtype, text), count < 0 ? " and a part of one" : ", fewer than count");
    return -1;
}

/* A new array over the memory of a memoryview. The function exports this memory by
 * DLPack and imports it at once: so the array is checked like any imported array, is
 * read-only if the buffer is read-only, and can be released on any thread. */
static PyObject *
array_from_memory(PyTypeObject *type, PyObject *memory, uint32_t dtype, Py_ssize_t count, Py_ssize_t offset)
{
    static const dlpack_py_request versioned = {.max_version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    const Py_buffer *buffer = PyMemoryView_GET_BUFFER(memory);
    dlpack_py_offer offer;
    dlpack_py_view v;
    PyObject *capsule;
    int64_t length;
    DLTensor t;
    int failed;

    if (!PyBuffer_IsContiguous((Py_buffer *)(uintptr_t)buffer, 'C')) {
        PyErr_SetString(PyExc_BufferError, "the buffer is not compact");
        return NULL;
    }
    if (offset < 0 || offset > buffer->len) {
        PyErr_Format(PyExc_ValueError, "offset is %zd, the buffer has %zd bytes", offset, buffer->len);
        return NULL;
    }
    length = count_elements(buffer->len - offset, dtype, count);
    if (length < 0)
        return NULL;
    t = dlpack_py_cpu_tensor(buffer->buf, dtype, 1, &length, NULL);
    t.byte_offset = (uint64_t)offset;
    offer = dlpack_py_offer_make(memory, &t, buffer->readonly ? DLPACK_PY_FLAG_READ_ONLY : 0);
    capsule = dlpack_py_answer(&offer, &versioned);
    failed = capsule == NULL ? -1 : dlpack_py_consume(capsule, &importable, &v);
    Py_XDECREF(capsule);
    return failed < 0 ? NULL : (PyObject *)array_import(type, &v);
}

/* ---- 8 Values and copies ------------------------------------------------ */

/* The elements of the dimensions from axis on, as nested lists. */
static PyObject *
list_elements(const DLTensor *t, int32_t axis, int64_t distance)
{
    PyObject *list;
    Py_ssize_t i;

    if (axis == t->ndim)
        return read_element(t, distance);
    list = PyList_New((Py_ssize_t)t->shape[axis]);
    for (i = 0; list != NULL && i < t->shape[axis]; i++) {
        PyObject *item = list_elements(t, axis + 1, distance + i * t->strides[axis]);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static PyObject *
array_tolist(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const DLTensor *t = &((const Array *)op)->tensor;
    return check_values(dlpack_py_dtype(t)) < 0 ? NULL : list_elements(t, 0, 0);
}

static PyObject *
array_copy(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const DLTensor *t = &((const Array *)op)->tensor;
    const uint64_t padded = ((const Array *)op)->padded;
    Array *copy = array_allocate(Py_TYPE(op), t->ndim, t->shape, dlpack_py_dtype(t), padded, 0);

    if (copy != NULL)
        (void)dlpack_py_copy(&copy->tensor, t, padded, NULL); /* cannot fail: shape and dtype are equal */
    return (PyObject *)copy;
}

/* Shows the values of 1 to 100 elements. Otherwise, and for dtypes that are stored only,
 * shows the shape. */
static PyObject *
array_repr(PyObject *op)
{
    const DLTensor *t = &((const Array *)op)->tensor;
    const int valued = element_format(dlpack_py_dtype(t)) != NULL;
    const int few = valued && dlpack_py_size(t) > 0 && dlpack_py_size(t) <= 100;
    PyObject *content = few ? list_elements(t, 0, 0) : tuple_of(t->shape, t->ndim), *text;
    char dtype[DLPACK_PY_TEXT_SIZE];

    if (content == NULL)
        return NULL;
    text = PyUnicode_FromFormat(few ? "%s(%R, dtype='%s')" : "<%s of shape %R, dtype '%s'>", Py_TYPE(op)->tp_name,
                                content, dlpack_py_dtype_text(dlpack_py_dtype(t), dtype));
    Py_DECREF(content);
    return text;
}

static PyMethodDef array_methods[] = {
    DLPACK_PY_METHODS(array_dlpack, array_dlpack_device),
    {"tolist", array_tolist, METH_NOARGS,
     PyDoc_STR("tolist($self, /)\n--\n\nThe elements as Python values, in nested lists.")},
    {"copy", array_copy, METH_NOARGS,
     PyDoc_STR("copy($self, /)\n--\n\nA row-major copy of the array, in its own memory.")},
    {"transpose", array_transpose, METH_VARARGS,
     PyDoc_STR("transpose($self, /, *axes)\n--\n\nA view with the axes in another order; without axes, in reverse.")},
    {"reshape", array_reshape, METH_VARARGS,
     PyDoc_STR("reshape($self, /, *shape)\n--\n\nA view with a new shape. An extent of -1 is computed.\n\n"
               "ValueError if only a copy can have the shape.")},
    {"broadcast_to", array_broadcast_to, METH_O,
     PyDoc_STR(
         "broadcast_to($self, shape, /)\n--\n\nA view with this shape, in which dimensions of extent 1 repeat.\n\n"
         "The view is writable if the array is; writing changes all repetitions of an element.")},
    {"setflags", (PyCFunction)(void (*)(void))array_setflags, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("setflags($self, /, *, writeable)\n--\n\nMake this array read-only or writeable.\n\n"
               "Existing views, exports and buffers of the array do not change.\n"
               "ValueError for memory that was imported as read-only.")},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef array_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Array, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc, (void *)"Array(source, /)\n--\n\nAn array over the memory of source, which is not copied.\n\n"
                        "source is an object that from_dlpack accepts."},
    {Py_tp_new, SLOT(array_from_source)},
    {Py_tp_dealloc, SLOT(array_dealloc)},
    {Py_tp_traverse, SLOT(array_traverse)},
    {Py_tp_repr, SLOT(array_repr)},
    {Py_mp_subscript, SLOT(array_subscript)},
    {Py_mp_ass_subscript, SLOT(array_assign)},
    {Py_bf_getbuffer, SLOT(array_getbuffer)},
    {Py_bf_releasebuffer, SLOT(dlpack_buffer_release)},
    {Py_tp_methods, array_methods},
    {Py_tp_members, array_members},
    {Py_tp_getset, array_attributes},
    {0, NULL},
};

static PyType_Spec array_spec = {
    "dlarray.Array", sizeof(Array), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, array_slots,
};

/* ---- 9 The module ------------------------------------------------------- */

typedef struct ModuleState {
    PyTypeObject *array_type;
} ModuleState;

static PyTypeObject *
array_type(PyObject *module)
{
    return ((const ModuleState *)PyModule_GetState(module))->array_type;
}

static PyObject *
from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_view v;
    if (dlpack_py_from_dlpack(args, nargs, kwnames, &importable, &v) < 0)
        return NULL;
    return array_import(array_type(module), &v);
}

/* The dtype that text names, or 0 with ValueError. */
static uint32_t
parse_dtype(const char *text)
{
    char name[DLPACK_PY_TEXT_SIZE];
    size_t i;
    for (i = 0; dtypes[i] != 0; i++) {
        if (strcmp(dlpack_py_dtype_text(dtypes[i], name), text) == 0)
            return dtypes[i];
    }
    PyErr_Format(PyExc_ValueError, "dtype is '%.40s', a name such as 'float32' was wanted", text);
    return 0;
}

static PyObject *
new_array(PyObject *module, PyObject *args, PyObject *kwargs, const char *format, int zeroed)
{
    static char *names[] = {"shape", "dtype", NULL};
    int64_t extents[DLPACK_PY_MAX_NDIM];
    const char *text = "float64";
    PyObject *shape;
    uint32_t dtype;
    int32_t ndim;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &shape, &text))
        return NULL;
    dtype = parse_dtype(text);
    ndim = dtype == 0 ? -1 : parse_numbers(shape, extents);
    return ndim < 0 ? NULL : (PyObject *)array_allocate(array_type(module), ndim, extents, dtype, 0, zeroed);
}

static PyObject *
empty(PyObject *module, PyObject *args, PyObject *kwargs)
{
    return new_array(module, args, kwargs, "O|s:empty", 0);
}

static PyObject *
zeros(PyObject *module, PyObject *args, PyObject *kwargs)
{
    return new_array(module, args, kwargs, "O|s:zeros", 1);
}

static int
is_nested(PyObject *values)
{
    return PyList_Check(values) || PyTuple_Check(values);
}

/* Reads the shape of nested lists or tuples, from axis on: the first item of each list
 * gives the next extent. Returns the rank, or -1 with an exception. */
static int32_t
nested_shape(PyObject *values, int32_t axis, int64_t shape[DLPACK_PY_MAX_NDIM])
{
    PyObject *first;
    int32_t ndim;

    if (!is_nested(values))
        return axis;
    if (axis == DLPACK_PY_MAX_NDIM) {
        PyErr_Format(PyExc_ValueError, "the lists are nested more than %d deep", DLPACK_PY_MAX_NDIM);
        return -1;
    }
    shape[axis] = PySequence_Size(values);
    if (shape[axis] <= 0)
        return shape[axis] < 0 ? -1 : axis + 1;
    first = PySequence_GetItem(values, 0);
    if (first == NULL)
        return -1;
    ndim = nested_shape(first, axis + 1, shape);
    Py_DECREF(first);
    return ndim;
}

/* Writes the elements of the dimensions from axis on. Nested lists of a different shape
 * are ValueError. */
static int
fill_elements(const DLTensor *t, int32_t axis, int64_t distance, PyObject *values)
{
    const int nested = is_nested(values);
    Py_ssize_t i;
    Element e;

    if (nested != (axis < t->ndim) || (nested && PySequence_Size(values) != t->shape[axis])) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "the nested lists do not all have one shape");
        return -1;
    }
    if (!nested) {
        if (parse_element(values, dlpack_py_dtype(t), &e) < 0)
            return -1;
        memcpy(element_at(t, distance), &e, dlpack_py_itemsize(t->dtype, 0));
        return 0;
    }
    for (i = 0; i < t->shape[axis]; i++) {
        PyObject *item = PySequence_GetItem(values, i);
        const int failed = item == NULL ? -1 : fill_elements(t, axis + 1, distance + i * t->strides[axis], item);
        Py_XDECREF(item);
        if (failed < 0)
            return -1;
    }
    return 0;
}

static PyObject *
array_from_values(PyTypeObject *type, PyObject *values, uint32_t dtype)
{
    int64_t shape[DLPACK_PY_MAX_NDIM];
    const int32_t ndim = check_values(dtype) < 0 ? -1 : nested_shape(values, 0, shape);
    Array *self = ndim < 0 ? NULL : array_allocate(type, ndim, shape, dtype, 0, 0);

    if (self != NULL && fill_elements(&self->tensor, 0, 0, values) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *
array(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"values", "dtype", NULL};
    const char *text = "float64";
    PyObject *values;
    uint32_t dtype;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|s:array", names, &values, &text))
        return NULL;
    dtype = parse_dtype(text);
    return dtype == 0 ? NULL : array_from_values(array_type(module), values, dtype);
}

static PyObject *
arange(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", "", "", "dtype", NULL};
    PyObject *start, *stop = NULL, *step = NULL, *range, *values, *self;
    const char *text = "int64";
    uint32_t dtype;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$s:arange", names, &start, &stop, &step, &text))
        return NULL;
    dtype = parse_dtype(text);
    if (dtype == 0)
        return NULL;
    range = PyObject_CallFunctionObjArgs((PyObject *)&PyRange_Type, start, stop, step, NULL);
    values = range == NULL ? NULL : PySequence_List(range);
    self = values == NULL ? NULL : array_from_values(array_type(module), values, dtype);
    Py_XDECREF(range);
    Py_XDECREF(values);
    return self;
}

static PyObject *
frombuffer(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffer", "dtype", "count", "offset", NULL};
    Py_ssize_t count = -1, offset = 0;
    const char *text = "uint8";
    PyObject *exporter, *memory, *self;
    uint32_t dtype;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|snn:frombuffer", names, &exporter, &text, &count, &offset))
        return NULL;
    dtype = parse_dtype(text);
    memory = dtype == 0 ? NULL : PyMemoryView_FromObject(exporter);
    if (memory == NULL)
        return NULL;
    self = array_from_memory(array_type(module), memory, dtype, count, offset);
    Py_DECREF(memory);
    return self;
}

static PyMethodDef module_methods[] = {
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("from_dlpack($module, x, /, *, device=None, copy=None)\n--\n\n"
               "An array over the memory of x, which has __dlpack__ or is a DLPack capsule.")},
    {"empty", (PyCFunction)(void (*)(void))empty, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("empty($module, /, shape, dtype='float64')\n--\n\nAn array with uninitialized elements.")},
    {"zeros", (PyCFunction)(void (*)(void))zeros, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("zeros($module, /, shape, dtype='float64')\n--\n\nAn array in which all bits are 0.\n\n"
               "The elements are zero, except for 'float8_e8m0fnu', which has no zero.")},
    {"array", (PyCFunction)(void (*)(void))array, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("array($module, /, values, dtype='float64')\n--\n\n"
               "An array of the values in nested lists or tuples, or of a single value.")},
    {"arange", (PyCFunction)(void (*)(void))arange, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("arange(start=0, stop, step=1, /, *, dtype='int64')\n\nAn array of the integers that range() counts.")},
    {"frombuffer", (PyCFunction)(void (*)(void))frombuffer, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("frombuffer($module, /, buffer, dtype='uint8', count=-1, offset=0)\n--\n\n"
               "A one-dimensional array over the bytes of a buffer; the format of the buffer is ignored.\n\n"
               "The array has count elements, or all that fit if count is -1. The first element is\n"
               "offset bytes behind the start of the buffer. Read-only if the buffer is read-only.")},
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    ModuleState *state = (ModuleState *)PyModule_GetState(module);
    state->array_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &array_spec, NULL);
    if (state->array_type == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (dlpack_py_exchange_add(state->array_type, &array_exchange) < 0)
        return -1;
#endif
    return PyModule_AddType(module, state->array_type);
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(array_type(module));
    return 0;
}

static int
module_clear(PyObject *module)
{
    Py_CLEAR(((ModuleState *)PyModule_GetState(module))->array_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, SLOT(module_exec)},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "dlarray",      PyDoc_STR("A small n-dimensional array that supports DLPack."),
    sizeof(ModuleState),   module_methods, module_slots,
    module_traverse,       module_clear,   NULL,
};

PyMODINIT_FUNC
PyInit_dlarray(void)
{
    return PyModuleDef_Init(&module_def);
}

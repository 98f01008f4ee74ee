/* dlpack_buffer.h - the buffer protocol and __array_interface__ beside DLPack, for dlpack_py.h
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * A type that has the buffer protocol gets __dlpack__ and __dlpack_device__ by one line of its methods:
 *
 *   DLPACK_BUFFER_METHODS,
 *
 * A type with a function that describes it (DLPACK_PY_DESCRIBED) gets the buffer protocol and __array_interface__:
 *
 *   DLPACK_BUFFER_DESCRIBED(image, image_describe);               // at file scope
 *   static PyBufferProcs image_as_buffer = {image_getbuffer, dlpack_buffer_release};
 *
 *   DLPACK_BUFFER_ARRAY_INTERFACE(image, image_describe);         // at file scope
 *   {"__array_interface__", image_array_interface, NULL, NULL, NULL},    // into its getters
 *
 * A function whose argument may be a buffer: want.fallback = dlpack_buffer_fallback. Code that takes buffers takes any
 * DLPack array by dlpack_buffer_get in place of PyObject_GetBuffer, or by dlpack_buffer_memoryview(obj, &want).
 *
 * All functions need an attached thread state. Contents:
 *   Formats and dtypes     Buffers as tensors     Tensors as buffers     Array interfaces */
#include "dlpack_py.h"
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_buffer.h and dlpack_py.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif

#if DLPACK_PY_AVAILABLE && !defined(DLPACK_BUFFER_H)
#define DLPACK_BUFFER_H

DLP_QUIET

/* ---- Formats and dtypes ------------------------------------------------- */

/* The formats of buffers that have a dtype. A buffer that this file gives has the first format of its dtype. F and D
 * are Python 3.14's. */
typedef struct dlp_buffer_format {
    const char *text;
    uint8_t code;  /* DLDataTypeCode */
    uint8_t bytes; /* native; "l", "L", "n" and "N" may have 4 or 8 */
} dlp_buffer_format;

static inline const dlp_buffer_format *
dlp_buffer_formats(void)
{
    /* clang-format off */
    static const dlp_buffer_format formats[] = {
        {"?", kDLBool, 1}, {"b", kDLInt, 1}, {"B", kDLUInt, 1}, {"c", kDLUInt, 1}, {"h", kDLInt, 2}, {"H", kDLUInt, 2},
        {"i", kDLInt, 4}, {"I", kDLUInt, 4}, {"l", kDLInt, sizeof(long)}, {"L", kDLUInt, sizeof(long)},
        {"q", kDLInt, 8}, {"Q", kDLUInt, 8}, {"n", kDLInt, sizeof(size_t)}, {"N", kDLUInt, sizeof(size_t)},
        {"e", kDLFloat, 2}, {"f", kDLFloat, 4}, {"d", kDLFloat, 8}, {"Zf", kDLComplex, 8}, {"Zd", kDLComplex, 16},
        {"F", kDLComplex, 8}, {"D", kDLComplex, 16}, {NULL, 0, 0}
    };
    /* clang-format on */
    return formats;
}

static inline int
dlp_buffer_is_little(void)
{
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 1;
}

/* The dtype of a buffer's format; 0 where DLPack has no such dtype, or the byte order is not the machine's (D10). */
DLP_COLD uint32_t
dlp_buffer_dtype(const char *format, Py_ssize_t itemsize)
{
    const dlp_buffer_format *known = dlp_buffer_formats();
    const int little = dlp_buffer_is_little();

    if (format == NULL)
        format = "B";
    if (*format == '@' || *format == '=' || (*format == '<' && (little || itemsize == 1)) ||
        ((*format == '>' || *format == '!') && (!little || itemsize == 1)))
        format++;
    while (known->text != NULL && strcmp(known->text, format) != 0)
        known++;
    if (known->text == NULL ||
        (itemsize != known->bytes && (strchr("lLnN", *format) == NULL || (itemsize != 4 && itemsize != 8))))
        return 0;
    return DLPACK_PY_DTYPE(known->code, (uint32_t)itemsize * 8u, 1u);
}

/* The format of a dtype; NULL where the buffer protocol has none. */
DLP_COLD const char *
dlp_buffer_format_of(const DLTensor *t)
{
    const dlp_buffer_format *known = dlp_buffer_formats();

    while (known->text != NULL &&
           (t->dtype.code != known->code || t->dtype.bits != known->bytes * 8 || t->dtype.lanes != 1))
        known++;
    return known->text;
}

/* ---- Buffers as tensors ------------------------------------------------- */

#ifdef PYPY_VERSION /* PyPy 3.9: the own Py_buffer of a memoryview is a cycle with it; others have a wrong readonly */
static inline PyObject *
dlp_buffer_memoryview_of(PyObject *obj)
{
    PyObject *memory = PyMemoryView_FromObject(obj);
    if (memory != NULL && PyMemoryView_GET_BUFFER(memory)->obj == memory)
        Py_CLEAR(PyMemoryView_GET_BUFFER(memory)->obj);
    return memory;
}
#  define DLP_BUFFER_READONLY(buffer, memory) (PyMemoryView_GET_BUFFER(memory)->readonly)
#else
#  define dlp_buffer_memoryview_of(obj) PyMemoryView_FromObject(obj)
#  define DLP_BUFFER_READONLY(buffer, memory) ((buffer)->readonly)
#endif

/* Describes a buffer; shape and strides are written to dims. Returns 0, or -1 with BufferError. */
DLP_COLD int
dlp_buffer_tensor(const Py_buffer *buffer, int64_t *dims, DLTensor *t)
{
    const uint32_t dtype = dlp_buffer_dtype(buffer->format, buffer->itemsize);
    dlpack_py_error error;
    int i;

    if (dtype == 0) {
        PyErr_Format(PyExc_BufferError,
                     "the buffer's format is '%s' with %zd bytes, "
                     "one of a DLPack dtype in native byte order was wanted",
                     buffer->format == NULL ? "B" : buffer->format, buffer->itemsize);
        return -1;
    }
    for (i = 0; i < buffer->ndim; i++) { /* a memoryview has 64 dimensions at most */
        dims[i] = buffer->shape[i];
        dims[DLPACK_PY_MAX_NDIM + i] = buffer->strides[i];
    }
    *t = dlpack_py_cpu_tensor(buffer->buf, dtype, buffer->ndim, dims, NULL);
    if (dlpack_py_strides_from_bytes(t, dims + DLPACK_PY_MAX_NDIM, 0, &error) < 0 ||
        dlpack_py_validate(t, 0, &error) < 0)
        return dlpack_py_raise(&error);
    return 0;
}

/* Opens the buffer of obj.
 *
 * dims    room for shape and strides, 2 * DLPACK_PY_MAX_NDIM
 * t       out, valid while the memoryview lives; the memoryview counts as an export of obj
 * flags   out, DLPACK_PY_FLAG_READ_ONLY or 0
 *
 * Returns a new memoryview; or NULL with BufferError, TypeError where obj has no buffer protocol, or what bf_getbuffer
 * of obj raises. */
static inline PyObject *
dlp_buffer_open(PyObject *obj, int64_t *dims, DLTensor *t, uint64_t *flags)
{
    PyObject *memory = dlp_buffer_memoryview_of(obj);
    Py_buffer buffer;
    int result = -1;

    *flags = 0;
    if (memory != NULL && (result = PyObject_GetBuffer(memory, &buffer, PyBUF_RECORDS_RO)) == 0) {
        *flags = DLP_BUFFER_READONLY(&buffer, memory) ? DLPACK_PY_FLAG_READ_ONLY : 0;
        result = dlp_buffer_tensor(&buffer, dims, t);
        PyBuffer_Release(&buffer); /* the memoryview keeps the memory */
    }
    if (result < 0 && memory != NULL)
        dlp_decref_keeping_error(memory);
    return result < 0 ? NULL : memory;
}

/* Answer __dlpack__ from the type's own buffer protocol. The export holds a memoryview of self, so that the type sees
 * an exported buffer, and can refuse to resize as long as it lives. Arguments and errors: as for dlpack_py_produce, and
 * what bf_getbuffer raises. */
static inline PyObject *
dlpack_buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    dlpack_py_request request;
    dlpack_py_offer offer;
    PyObject *memory, *capsule;
    uint64_t flags;
    DLTensor t;

    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0 ||
        (memory = dlp_buffer_open(self, dims, &t, &flags)) == NULL)
        return NULL;
    offer = dlpack_py_offer_make(memory, &t, flags);
    capsule = dlpack_py_answer(&offer, &request);
    dlp_decref_keeping_error(memory);
    return capsule;
}

/* Both methods of a type with the buffer protocol, in its PyMethodDef array. */
#define DLPACK_BUFFER_METHODS DLPACK_PY_METHODS(dlpack_buffer_dlpack, dlpack_py_cpu_device)

/* Exports t for a consumer, with owner as the object that keeps its memory. Steals owner, also on failure. Returns 0,
 * or -1 with MemoryError or RuntimeError. */
static inline int
dlp_buffer_export_steal(PyObject *owner, const DLTensor *t, uint64_t flags, struct DLManagedTensorVersioned **out)
{
    dlp_state *state = dlp_state_get();
    dlp_export *e = state == NULL ? NULL : dlp_export_new(t, flags, DLPACK_PY_VERSIONED, 0);

    if (e == NULL) {
        if (state != NULL)
            (void)PyErr_NoMemory();
        dlp_decref_keeping_error(owner);
        return -1;
    }
    dlp_set_owner(&e->manager, owner, &state->lifetime, NULL);
    Py_DECREF(owner);
    *out = &e->managed.versioned;
    return 0;
}

/* ---- Tensors as buffers ------------------------------------------------- */

/* What a Py_buffer of this file holds until its release. */
typedef struct dlp_buffer_hold {
    dlpack_py_counter *exports; /* in owner */
    PyObject *owner;            /* keeps the memory; NULL: the exporter */
#ifdef PYPY_VERSION
    PyObject *exporter; /* bf_releasebuffer gets another Py_buffer: the hold is found by exporter and buf */
    void *buf;
    struct dlp_buffer_hold *next;
} dlp_buffer_hold;
static dlp_buffer_hold *dlp_buffer_holds; /* the list; the GIL guards it */
/* shape and strides are in the Py_buffer, which has room for 36 of each: _strides, then _shape */
#  define DLP_BUFFER_DIMS(buffer, hold) ((Py_ssize_t *)(void *)((char *)(buffer) + offsetof(Py_buffer, _strides)))
#  define DLP_BUFFER_MAX_NDIM ((int)(sizeof(((Py_buffer *)NULL)->_shape) / sizeof(Py_ssize_t)))
#else
} dlp_buffer_hold; /* Py_ssize_t shape[ndim], strides[ndim] follow */
#  define DLP_BUFFER_DIMS(buffer, hold) ((Py_ssize_t *)(void *)((hold) + 1))
#  define DLP_BUFFER_MAX_NDIM DLPACK_PY_MAX_NDIM
#endif

/* Why a buffer with these flags is refused; NULL: it is not. With a Py_ssize_t of 32 bits, an extent, a stride or the
 * length of a broadcast may not fit. */
static inline const char *
dlp_buffer_refusal(const DLTensor *t, int readonly, int flags)
{
    const int64_t bytes = dlpack_py_nbytes(t, 0);
    int64_t lowest = 0, highest = 0;
    int32_t i;
    /* Of constant conditions, MSVC accepts only that of ?: without a warning. */
    int fits = sizeof(Py_ssize_t) < sizeof(int64_t) ? dlp_byte_range(t, 0, &lowest, &highest) == 0 : 1;

    fits &= bytes == (Py_ssize_t)bytes && lowest == (Py_ssize_t)lowest && highest == (Py_ssize_t)highest;
    for (i = 0; i < t->ndim; i++)
        fits &= t->shape[i] == (Py_ssize_t)t->shape[i];
    if (!fits || t->ndim > DLP_BUFFER_MAX_NDIM)
        return "the tensor is too large for a buffer";
    if ((flags & PyBUF_WRITABLE) != 0 && readonly)
        return "the memory is read-only, a writable buffer was asked for";
    if ((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !dlpack_py_is_contiguous(t, 'C'))
        return "the memory is not row-major, a C-contiguous buffer was asked for";
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !dlpack_py_is_contiguous(t, 'F'))
        return "the memory is not column-major, a Fortran-contiguous buffer was asked for";
    if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !dlpack_py_is_contiguous(t, 'A'))
        return "the memory is not contiguous, a contiguous buffer was asked for";
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !dlpack_py_is_contiguous(t, 'C'))
        return "the memory is not row-major, a buffer without strides was asked for";
    return NULL;
}

/* Fills buffer with a validated tensor, as flags (PyBUF_...) ask; its obj is exporter. owner keeps the memory. exports
 * NULL: not counted. Returns 0, or -1 with BufferError or MemoryError. */
DLP_NOINLINE int
dlp_buffer_fill(PyObject *exporter, PyObject *owner, const DLTensor *t, int readonly, dlpack_py_counter *exports,
                Py_buffer *buffer, int flags)
{
    const char *const format = dlp_buffer_format_of(t);
    const Py_ssize_t itemsize = t->dtype.bits / 8;
    const int is_empty = dlp_is_empty(t);
    dlp_buffer_hold *hold;
    char text[DLPACK_PY_TEXT_SIZE];
    const char *refusal;
    Py_ssize_t *dims;
    int64_t step = 1;
    int32_t i;

    buffer->obj = NULL;
    if (!dlpack_py_is_cpu_readable(t->device)) {
        PyErr_Format(PyExc_BufferError, "device is %s, a buffer is memory of the CPU",
                     dlpack_py_device_text(t->device, text));
        return -1;
    }
    if (format == NULL) {
        PyErr_Format(PyExc_BufferError, "dtype is %s, the buffer protocol has no such format",
                     dlpack_py_dtype_text(dlpack_py_dtype(t), text));
        return -1;
    }
    if ((refusal = dlp_buffer_refusal(t, readonly, flags)) != NULL) {
        PyErr_SetString(PyExc_BufferError, refusal);
        return -1;
    }
    hold = (dlp_buffer_hold *)PyMem_Malloc(sizeof(*hold) + 2 * (size_t)t->ndim * sizeof(Py_ssize_t));
    if (hold == NULL) {
        (void)PyErr_NoMemory();
        return -1;
    }
    dims = DLP_BUFFER_DIMS(buffer, hold);
    hold->exports = exports;
    hold->owner = owner != exporter ? owner : NULL;
    Py_XINCREF(hold->owner);
    dlp_exports_add(exports, 1);
    for (i = t->ndim; i-- > 0;) { /* a stride that reaches no element may be any number (D5) */
        const int reaches = !is_empty && t->shape[i] > 1;
        dims[i] = (Py_ssize_t)t->shape[i];
        dims[t->ndim + i] = (Py_ssize_t)(reaches && t->strides != NULL ? t->strides[i] : step) * itemsize;
        step = is_empty ? 1 : step * t->shape[i];
    }
    buffer->buf = is_empty ? (void *)exporter : dlp_first_element(t); /* not NULL: some consumers refuse that */
    buffer->len = is_empty ? 0 : (Py_ssize_t)step * itemsize;
    buffer->itemsize = itemsize;
    buffer->readonly = readonly;
    buffer->format = (flags & PyBUF_FORMAT) != 0 ? (char *)(uintptr_t)format : NULL; /* Py_buffer has no const */
    buffer->ndim = (flags & PyBUF_ND) != 0 ? t->ndim : 1;
    buffer->shape = (flags & PyBUF_ND) != 0 && t->ndim > 0 ? dims : NULL;
    buffer->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES && t->ndim > 0 ? dims + t->ndim : NULL;
    buffer->suboffsets = NULL;
    buffer->internal = hold;
#ifdef PYPY_VERSION
    hold->exporter = exporter;
    hold->buf = buffer->buf;
    hold->next = dlp_buffer_holds;
    dlp_buffer_holds = hold;
#endif
    Py_INCREF(exporter);
    buffer->obj = exporter;
    return 0;
}

/* bf_releasebuffer of all types whose buffers this file gives. */
static inline void
dlpack_buffer_release(PyObject *self, Py_buffer *buffer)
{
#ifdef PYPY_VERSION
    dlp_buffer_hold **link = &dlp_buffer_holds, *hold;
    while ((hold = *link) != NULL && (hold->exporter != self || hold->buf != buffer->buf))
        link = &hold->next;
    if (hold == NULL)
        return;
    *link = hold->next;
#else
    dlp_buffer_hold *hold = (dlp_buffer_hold *)buffer->internal;
    (void)self;
#endif
    dlp_exports_add(hold->exports, -1);
    if (hold->owner != NULL)
        dlp_decref_keeping_error(hold->owner);
    PyMem_Free(hold);
}

/* Returns 0; or -1 with BufferError, where work on the data may be pending. */
static inline int
dlp_buffer_check_idle(const dlpack_py_offer *offer)
{
    if (offer->pending_count == 0)
        return 0;
    PyErr_SetString(PyExc_BufferError, "work on the data may be pending on a stream, which only __dlpack__ can name");
    return -1;
}

/* bf_getbuffer of a type that a function describes. Until its release the buffer is counted by offer.exports and holds
 * self, and offer.owner where this is another object. The garbage collector does not see that the buffer holds
 * offer.owner, so that a cycle through it is not collected.
 *
 * flags   PyBUF_...; all are honoured
 *
 * Returns 0; or -1 with BufferError, MemoryError, SystemError (an offer without owner or tensor), or what describe
 * raises. */
static inline int
dlpack_buffer_getbuffer_described(PyObject *self, dlpack_py_describe describe, Py_buffer *buffer, int flags)
{
    dlpack_py_offer offer;
    dlpack_py_error error;
    int result = -1;

    buffer->obj = NULL;
    DLP_CRITICAL_SECTION(self); /* no other thread moves the memory before the buffer is counted */
    if (dlp_call_describe(self, describe, NULL, &offer) == 0) {
        if (dlpack_py_validate(offer.tensor, offer.flags, &error) < 0)
            (void)dlpack_py_raise(&error);
        else if (dlp_buffer_check_idle(&offer) == 0)
            result = dlp_buffer_fill(self, offer.owner, offer.tensor, (offer.flags & DLPACK_PY_FLAG_READ_ONLY) != 0,
                                     offer.exports, buffer, flags);
    }
    DLP_CRITICAL_SECTION_END();
    return result;
}

static inline int
dlp_buffer_object_get(PyObject *self, Py_buffer *buffer, int flags)
{
    const dlpack_py_view *v = &DLP_OBJECT(self)->view;
    return dlp_buffer_fill(self, self, &v->tensor, v->readonly != DLPACK_PY_WRITABLE, NULL, buffer, flags);
}

/* The type of the objects behind memoryviews. */
DLP_COLD PyObject *
dlp_buffer_object_type_new(void)
{
    PyType_Slot slots[] = {DLP_OBJECT_SLOTS,
                           {Py_bf_getbuffer, (void *)(uintptr_t)dlp_buffer_object_get},
                           {Py_bf_releasebuffer, (void *)(uintptr_t)dlpack_buffer_release},
                           {0, NULL}};
    return dlp_object_type_from_slots("dlpack_buffer.Object", slots);
}

/* Make a memoryview of a view, which is released when the last memoryview, and all that uses it, is gone. The
 * memoryview is read-only, unless v->readonly is DLPACK_PY_WRITABLE.
 *
 * v   memory that the CPU can read; empty afterwards, also on failure
 *
 * Returns a new memoryview, whose obj is not the array; or NULL with BufferError (a dtype without a format: sub-byte,
 * bfloat16, float8, vectors; memory of a device), ValueError (a borrowed view) or MemoryError. */
static inline PyObject *
dlpack_buffer_memoryview_steal(dlpack_py_view *v)
{
    dlp_state *state = dlp_state_get();
    PyObject *object, *memory;

    if (v->managed == NULL)
        PyErr_SetString(PyExc_ValueError, "the view holds no tensor of its own: a borrowed tensor has no memoryview");
    if (v->managed == NULL || state == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    object = dlp_object_new_steal(&state->types[DLP_BUFFER_TYPE], dlp_buffer_object_type_new, v);
    if (object == NULL)
        return NULL;
    memory = dlp_buffer_memoryview_of(object);
    dlp_decref_keeping_error(object);
    return memory;
}

/* Take the tensor of obj as a memoryview, for code that takes buffers.
 *
 * want   as for dlpack_py_consume; with want->fallback = dlpack_buffer_fallback, buffers are taken as well
 *
 * Returns as dlpack_buffer_memoryview_steal, or NULL with what dlpack_py_consume raises. */
static inline PyObject *
dlpack_buffer_memoryview(PyObject *obj, const dlpack_py_want *want)
{
    dlpack_py_view v;
    return dlpack_py_consume(obj, want, &v) < 0 ? NULL : dlpack_buffer_memoryview_steal(&v);
}

/* PyObject_GetBuffer for any object: an object without the buffer protocol is consumed by DLPack.
 *
 * want     requirements on DLPack arrays; NULL: memory that the CPU can read. flags (PyBUF_...) hold for all objects
 * buffer   out; without the buffer protocol, PyBuffer_Release also releases the tensor, and buffer->obj is not obj
 *
 * Returns 0; or -1 with TypeError (neither protocol), BufferError, or what bf_getbuffer or dlpack_py_consume raises. */
static inline DLP_MUST_CHECK int
dlpack_buffer_get(PyObject *obj, const dlpack_py_want *want, Py_buffer *buffer, int flags)
{
    PyObject *memory;
    int result = -1;

    buffer->obj = NULL; /* after a failure, PyBuffer_Release does nothing */
    if (PyObject_CheckBuffer(obj))
        return PyObject_GetBuffer(obj, buffer, flags);
    memory = dlpack_buffer_memoryview(obj, want);
    if (memory != NULL) {
        if ((result = PyObject_GetBuffer(memory, buffer, flags)) == 0)
            buffer->readonly = DLP_BUFFER_READONLY(buffer, memory);
        dlp_decref_keeping_error(memory);
    }
    else if (PyErr_ExceptionMatches(PyExc_AttributeError) && !dlpack_py_has_tensor(obj)) { /* has neither protocol */
        PyErr_Clear();
        result = PyObject_GetBuffer(obj, buffer, flags); /* raises TypeError */
    }
    return result;
}

/* Define name_getbuffer for a type that a function describes, at file scope, with a semicolon. bf_releasebuffer of the
 * type is dlpack_buffer_release. */
#define DLPACK_BUFFER_DESCRIBED(name, describe)                                    \
    static int name##_getbuffer(PyObject *self, Py_buffer *buffer, int flags)      \
    {                                                                              \
        return dlpack_buffer_getbuffer_described(self, (describe), buffer, flags); \
    }                                                                              \
    struct dlp_semicolon

/* ---- Array interfaces --------------------------------------------------- */

/* __array_interface__ and __cuda_array_interface__ are dicts with the same keys. name is the name of the attribute. */

/* The value of a key, borrowed; NULL where it is missing or None, or with MemoryError or the like. Returns NULL at once
 * while an exception is set: a caller may read several keys, and then test once. */
DLP_COLD PyObject *
dlp_buffer_interface_get(PyObject *dict, const char *key)
{
    PyObject *name = PyErr_Occurred() ? NULL : PyUnicode_InternFromString(key);
    PyObject *value = name == NULL ? NULL : PyDict_GetItemWithError(dict, name);
    Py_XDECREF(name);
    return value == Py_None ? NULL : value;
}

/* Refuses the value of a key. An exception such as KeyboardInterrupt stays. Returns -1. */
DLP_COLD int
dlp_buffer_interface_refuse(const char *name, const char *key, PyObject *value, const char *wanted)
{
    char format[192];

    if (PyErr_Occurred() && dlp_is_fatal())
        return -1;
    snprintf(format, sizeof(format), "%s has %s %%.200U, %s was wanted", name, key, wanted);
    return dlp_raise_value(PyExc_BufferError, format, value != NULL ? value : Py_None);
}

/* Reads an integer, or an object with __index__ (P2); -1 with an exception. */
static inline int64_t
dlp_buffer_interface_integer(PyObject *value)
{
    PyObject *index = PyNumber_Index(value);
    const int64_t integer = index == NULL ? -1 : PyLong_AsLongLong(index);
    Py_XDECREF(index);
    return integer;
}

/* Reads a tuple of integers. *count: in: the length that is wanted, -1 for any; out: the length. Returns 0, or -1 with
 * BufferError. */
static inline int
dlp_buffer_interface_tuple(const char *name, const char *key, PyObject *tuple, const char *wanted, int32_t *count,
                           int64_t *values)
{
    const Py_ssize_t n = tuple != NULL && PyTuple_Check(tuple) ? PyTuple_Size(tuple) : -1;
    Py_ssize_t i;

    if (n < 0 || n > DLPACK_PY_MAX_NDIM || (*count >= 0 && n != *count))
        return dlp_buffer_interface_refuse(name, key, tuple, wanted);
    for (i = 0; i < n; i++) {
        values[i] = dlp_buffer_interface_integer(PyTuple_GetItem(tuple, i));
        if (PyErr_Occurred())
            return dlp_buffer_interface_refuse(name, key, tuple, wanted);
    }
    *count = (int32_t)n;
    return 0;
}

/* Reads a typestr such as "<f4"; 0 where it is no dtype of DLPack in the byte order of this machine. */
static inline uint32_t
dlp_buffer_interface_dtype(PyObject *typestr)
{
    static const char kinds[] = "iufcb";
    static const uint32_t codes[] = {kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool};
    static const long least[] = {1, 1, 2, 8, 1}, most[] = {8, 8, 8, 16, 1}; /* f16 is long double */
    Py_ssize_t length = 0;
    const char *text = typestr != NULL && PyUnicode_Check(typestr) ? PyUnicode_AsUTF8AndSize(typestr, &length) : NULL;
    const char *const orders = dlp_buffer_is_little() ? "=<|>" : "=>|<"; /* the first two are the machine's */
    const char *order = length < 3 ? NULL : strchr(orders, text[0]);
    const char *kind = length < 3 ? NULL : strchr(kinds, text[1]);
    char *end = NULL;
    const long bytes = kind == NULL || text[2] < '1' ? 0 : strtol(text + 2, &end, 10);

    if (kind == NULL || *kind == '\0' || bytes < least[kind - kinds] || bytes > most[kind - kinds] ||
        (bytes & (bytes - 1)) != 0 || end != text + length || order == NULL || *order == '\0' ||
        (order > orders + 1 && bytes > 1))
        return 0;
    return DLPACK_PY_DTYPE(codes[kind - kinds], (uint32_t)bytes * 8, 1);
}

/* Reads version, mask, typestr, shape and strides; not data.
 *
 * oldest   the oldest version that is taken
 * dims     room for shape and strides, 2 * DLPACK_PY_MAX_NDIM
 *
 * Returns 0, or -1 with BufferError or TypeError. */
DLP_COLD int
dlp_buffer_interface_read(const char *name, PyObject *dict, int oldest, int64_t *dims, DLTensor *t)
{
    PyObject *version, *mask, *typestr, *shape, *strides;
    char text[64];
    uint32_t dtype;
    int32_t ndim = -1;

    if (!PyDict_Check(dict)) {
        snprintf(text, sizeof(text), "%s is %%.200U, a dict was wanted", name);
        return dlp_raise_value(PyExc_TypeError, text, dict);
    }
    version = dlp_buffer_interface_get(dict, "version");
    mask = dlp_buffer_interface_get(dict, "mask");
    typestr = dlp_buffer_interface_get(dict, "typestr");
    shape = dlp_buffer_interface_get(dict, "shape");
    strides = dlp_buffer_interface_get(dict, "strides");
    if (PyErr_Occurred())
        return -1;
    if (version == NULL || dlp_buffer_interface_integer(version) < oldest) {
        snprintf(text, sizeof(text), "%d or newer", oldest);
        return dlp_buffer_interface_refuse(name, "version", version, text);
    }
    if (mask != NULL)
        return dlp_buffer_interface_refuse(name, "mask", mask, "None (a DLPack tensor has no mask)");
    if ((dtype = dlp_buffer_interface_dtype(typestr)) == 0) {
        snprintf(text, sizeof(text), "one of a DLPack dtype in native byte order, such as '%cf4',",
                 dlp_buffer_is_little() ? '<' : '>');
        return dlp_buffer_interface_refuse(name, "typestr", typestr, text);
    }
    if (dlp_buffer_interface_tuple(name, "shape", shape, "a tuple of at most 64 extents", &ndim, dims) < 0 ||
        (strides != NULL &&
         dlp_buffer_interface_tuple(name, "strides", strides, "a tuple with one stride in bytes for each extent", &ndim,
                                    dims + DLPACK_PY_MAX_NDIM) < 0))
        return -1;
    *t = dlpack_py_cpu_tensor(NULL, dtype, ndim, dims, NULL);
    if (strides != NULL && dlpack_py_strides_from_bytes(t, dims + DLPACK_PY_MAX_NDIM, 0, NULL) < 0) {
        snprintf(text, sizeof(text), "multiples of %d (the item size)", t->dtype.bits / 8);
        return dlp_buffer_interface_refuse(name, "strides", strides, text);
    }
    return 0;
}

/* Reads data as (address, read-only). Returns 0, or -1 with BufferError. */
DLP_COLD int
dlp_buffer_interface_address(const char *name, PyObject *data, DLTensor *t, uint64_t *flags)
{
    PyObject *address;

    if (data == NULL || !PyTuple_Check(data) || PyTuple_Size(data) != 2)
        return dlp_buffer_interface_refuse(name, "data", data, "(address, read-only)");
    address = PyNumber_Index(PyTuple_GetItem(data, 0));
    t->data = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    *flags = PyErr_Occurred() || PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0 ? DLPACK_PY_FLAG_READ_ONLY : 0;
    return PyErr_Occurred() ? dlp_buffer_interface_refuse(name, "data", data, "(address, read-only)") : 0;
}

/* Finds the attribute. A dict is copied: code that runs while it is read may change the original. *dict: out, NULL
 * where there is no attribute. Returns 0, or -1 with the error of a getter. */
static inline int
dlp_buffer_interface_find(PyObject *obj, const char *name, PyObject **dict)
{
    PyObject *found = PyObject_GetAttrString(obj, name);

    *dict = found;
    if (found != NULL && PyDict_Check(found)) {
        *dict = PyDict_Copy(found);
        Py_DECREF(found);
    }
    if (*dict == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return PyErr_Occurred() ? -1 : 0;
}

/* A tuple of integers, each times unit. */
static inline PyObject *
dlp_buffer_interface_make_tuple(const int64_t *values, int32_t count, int64_t unit)
{
    PyObject *tuple = PyTuple_New(count), *value;
    int32_t i;

    for (i = 0; tuple != NULL && i < count; i++) {
        value = PyLong_FromLongLong(values[i] * unit);
        if (value == NULL || PyTuple_SetItem(tuple, i, value) < 0)
            Py_CLEAR(tuple);
    }
    return tuple;
}

/* A new dict, version 3, for a validated tensor. NULL with AttributeError (the dtype has no typestr: the object then
 * lacks the attribute) or MemoryError. empty: the address of a tensor without elements. */
DLP_COLD PyObject *
dlp_buffer_interface_make(const char *name, const DLTensor *t, uint64_t flags, void *empty)
{
    static const char kinds[] = {'i', 'u', 'f', '\0', '\0', 'c', 'b'};
    const int bits = t->dtype.bits;
    const char kind = dlp_buffer_format_of(t) != NULL ? kinds[t->dtype.code] : '\0';
    const char order = dlp_buffer_is_little() ? '<' : '>';
    char typestr[8], text[DLPACK_PY_TEXT_SIZE];
    int64_t reached[DLPACK_PY_MAX_NDIM];
    PyObject *strides = NULL;
    int32_t i;

    if (kind == '\0') {
        PyErr_Format(PyExc_AttributeError, "no %s for %s", name, dlpack_py_dtype_text(dlpack_py_dtype(t), text));
        return NULL;
    }
    snprintf(typestr, sizeof(typestr), "%c%c%d", bits == 8 ? '|' : order, kind, bits / 8);
    if (!dlpack_py_is_contiguous(t, 'C')) {
        for (i = 0; i < t->ndim; i++) /* a stride that reaches no element may be any number (D5) */
            reached[i] = t->shape[i] > 1 ? t->strides[i] : 1;
        if ((strides = dlp_buffer_interface_make_tuple(reached, t->ndim, bits / 8)) == NULL)
            return NULL;
    }
    return Py_BuildValue("{s:N,s:s,s:(NN),s:N,s:i}", "shape", dlp_buffer_interface_make_tuple(t->shape, t->ndim, 1),
                         "typestr", typestr, "data", PyLong_FromVoidPtr(dlp_is_empty(t) ? empty : dlp_first_element(t)),
                         PyBool_FromLong((flags & DLPACK_PY_FLAG_READ_ONLY) != 0), "strides",
                         strides != NULL ? strides : Py_BuildValue(""), "version", 3);
}

/* The getter of __array_interface__ for a type that a function describes: numpy.asarray(x) shares the memory of x, and
 * holds x. Returns a new dict, or NULL with an exception. AttributeError, as if there were no attribute: the memory
 * can move (offer.exports: an array interface is not released), has another owner, which NumPy would not hold, or is on
 * a device, or the dtype has no typestr. BufferError: work may be pending. SystemError: an offer without owner or
 * tensor. describe may raise others. */
static inline PyObject *
dlpack_buffer_array_interface(PyObject *self, dlpack_py_describe describe)
{
    static int64_t nothing; /* NumPy 2.2 takes no NULL */
    dlpack_py_offer offer;
    dlpack_py_error error;
    PyObject *dict = NULL;

    DLP_CRITICAL_SECTION(self);
    if (dlp_call_describe(self, describe, NULL, &offer) == 0) {
        if (offer.exports != NULL)
            PyErr_SetString(PyExc_AttributeError, "memory that can move has no __array_interface__");
        else if (offer.owner != self)
            PyErr_SetString(PyExc_AttributeError, "memory of another owner has no __array_interface__");
        else if (!dlpack_py_is_cpu_readable(offer.tensor->device))
            PyErr_SetString(PyExc_AttributeError, "memory of a device has no __array_interface__");
        else if (dlpack_py_validate(offer.tensor, offer.flags, &error) < 0)
            (void)dlpack_py_raise(&error);
        else
            dict = dlp_buffer_interface_make("__array_interface__", offer.tensor, offer.flags, &nothing);
        if (dict != NULL && dlp_buffer_check_idle(&offer) < 0)
            Py_CLEAR(dict);
    }
    DLP_CRITICAL_SECTION_END();
    return dict;
}

/* Define name_array_interface, a getter, for a type that a function describes, at file scope, with a semicolon. */
#define DLPACK_BUFFER_ARRAY_INTERFACE(name, describe)                     \
    static PyObject *name##_array_interface(PyObject *self, void *unused) \
    {                                                                     \
        (void)unused;                                                     \
        return dlpack_buffer_array_interface(self, (describe));           \
    }                                                                     \
    struct dlp_semicolon

/* Reads data as a buffer of bytes, with an offset. Sets t->data. Returns the memoryview that keeps the bytes, or NULL
 * with BufferError, or what bf_getbuffer of data raises. */
static inline PyObject *
dlp_buffer_interface_bytes(PyObject *data, PyObject *offset, DLTensor *t, uint64_t *flags)
{
    const Py_ssize_t skipped = offset == NULL ? 0 : PyNumber_AsSsize_t(offset, PyExc_BufferError);
    PyObject *memory = PyErr_Occurred() ? NULL : dlp_buffer_memoryview_of(data);
    int64_t lowest = 0, highest = 0;
    Py_buffer buffer;
    int is_inside, fits;

    if (memory == NULL || PyObject_GetBuffer(memory, &buffer, PyBUF_SIMPLE) < 0) {
        if (memory != NULL)
            dlp_decref_keeping_error(memory);
        return NULL;
    }
    is_inside = skipped >= 0 && skipped <= buffer.len;
    t->data = (char *)buffer.buf + (is_inside ? skipped : 0);
    /* an invalid tensor fits: the caller refuses it, and says why */
    fits = dlpack_py_validate(t, 0, NULL) < 0 || (dlp_byte_range(t, 0, &lowest, &highest) == 0 && is_inside &&
                                                  lowest >= -skipped && highest <= buffer.len - skipped);
    *flags = DLP_BUFFER_READONLY(&buffer, memory) ? DLPACK_PY_FLAG_READ_ONLY : 0;
    PyBuffer_Release(&buffer); /* the memoryview keeps the bytes */
    if (fits)
        return memory;
    Py_DECREF(memory);
    PyErr_Format(PyExc_BufferError,
                 "__array_interface__ has %zd bytes of data, and elements from byte %lld to %lld after offset %zd",
                 buffer.len, (long long)lowest, (long long)highest, skipped);
    return NULL;
}

/* Exports the tensor of __array_interface__, whose memory obj or data keeps. Returns as a want.fallback. */
DLP_COLD int
dlp_buffer_interface_take(PyObject *obj, struct DLManagedTensorVersioned **out)
{
    static const char name[] = "__array_interface__";
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    PyObject *dict, *data, *offset, *owner = NULL;
    uint64_t flags = 0;
    DLTensor t;
    int result = -1;

    if (PyType_Check(obj)) /* a class has the attribute of its instances */
        return 0;
    if (dlp_buffer_interface_find(obj, name, &dict) < 0)
        return -1;
    if (dict == NULL)
        return 0;
    if (dlp_buffer_interface_read(name, dict, 3, dims, &t) == 0) {
        data = dlp_buffer_interface_get(dict, "data");
        offset = dlp_buffer_interface_get(dict, "offset");
        if (PyErr_Occurred())
            owner = NULL;
        else if (data == NULL || !(PyTuple_Check(data) || PyObject_CheckBuffer(data)))
            (void)dlp_buffer_interface_refuse(name, "data", data, "(address, read-only) or a buffer");
        else if (offset != NULL && !PyIndex_Check(offset))
            (void)dlp_buffer_interface_refuse(name, "offset", offset, "an integer");
        else if (!PyTuple_Check(data))
            owner = dlp_buffer_interface_bytes(data, offset, &t, &flags);
        else if (dlp_buffer_interface_address(name, data, &t, &flags) == 0) {
            Py_INCREF(obj);
            owner = obj;
        }
    }
    if (owner != NULL)
        result = dlp_buffer_export_steal(owner, &t, flags, out); /* the consumer validates it */
    dlp_decref_keeping_error(dict);
    return result;
}

/* A dlpack_py_want.fallback: takes an object without __dlpack__ by the buffer protocol. An object without a buffer is
 * taken by __array_interface__, version 3 or newer; if a buffer is refused, it is not asked. Read-only memory stays
 * read-only. The owner of the export is the memoryview that holds the buffer. */
static inline int
dlpack_buffer_fallback(void *py_object, struct DLManagedTensorVersioned **out)
{
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    PyObject *memory;
    uint64_t flags;
    DLTensor t;

    if (!PyObject_CheckBuffer((PyObject *)py_object))
        return dlp_buffer_interface_take((PyObject *)py_object, out);
    memory = dlp_buffer_open((PyObject *)py_object, dims, &t, &flags);
    return memory == NULL ? -1 : dlp_buffer_export_steal(memory, &t, flags, out);
}

DLP_QUIET_END

#endif /* DLPACK_BUFFER_H */

/* buffers: buffers of any format, item size, shape, strides and suboffsets; tensors as buffers, for all flags; array
 * interfaces of any content. Where the headers of CUDA are found, __cuda_array_interface__ is read, too. */
#if __has_include(<cuda_runtime_api.h>)
#define DLPACK_CUDA_AT_RUN_TIME
#define HAS_CUDA 1
#else
#define HAS_CUDA 0
#endif
#include "embedded.h"
#include "thing.h"
#if HAS_CUDA
#include "dlpack_cuda_array_interface.h"
#else
#include "dlpack_buffer.h"
#endif

/* ---- What a format means ------------------------------------------------ */

/* The dtype of a format in native byte order; 0: none. */
static uint32_t
slow_dtype(const char *format, Py_ssize_t size)
{
    static const char *const ints = "bhilqn", *const uints = "BcHILQN";
    uint32_t code;
    if (format == NULL)
        format = "B";
    if (*format != 0 && strchr("@=<", *format) != NULL)
        format++;
    else if (*format != 0 && strchr(">!", *format) != NULL && size == 1)
        format++;
    if (strcmp(format, "Zf") == 0 || strcmp(format, "F") == 0)
        return size == 8 ? DLPACK_PY_COMPLEX64 : 0;
    if (strcmp(format, "Zd") == 0 || strcmp(format, "D") == 0)
        return size == 16 ? DLPACK_PY_COMPLEX128 : 0;
    if (strlen(format) != 1)
        return 0;
    if (strchr("lLnN", *format) != NULL ? size != 4 && size != 8
                                        : size != (strchr("?bBc", *format) != NULL  ? 1
                                                   : strchr("hHe", *format) != NULL ? 2
                                                   : strchr("iIf", *format) != NULL ? 4
                                                   : strchr("qQd", *format) != NULL ? 8
                                                                                    : -1))
        return 0;
    code = *format == '?'                   ? kDLBool
           : strchr(ints, *format) != NULL  ? kDLInt
           : strchr(uints, *format) != NULL ? kDLUInt
                                            : kDLFloat;
    return DLPACK_PY_DTYPE(code, (uint32_t)size * 8u, 1u);
}

/* Has a dtype a format of the buffer protocol? Those that have one have a typestr, too. */
static int
slow_has_format(DLDataType dtype)
{
    static const uint8_t widths[][4] = {{8, 16, 32, 64}, {8, 16, 32, 64}, {16, 32, 64}, {0}, {0}, {64, 128}, {8}};
    return dtype.lanes == 1 && dtype.bits != 0 && dtype.code < COUNT(widths) &&
           memchr(widths[dtype.code], dtype.bits, sizeof(widths[0])) != NULL;
}

/* The dtype of a typestr; 0: none. */
static uint32_t
slow_typestr(const char *text, size_t length)
{
    static const char *const known[] = {"i1", "i2", "i4", "i8", "u1", "u2",  "u4",
                                        "u8", "f2", "f4", "f8", "c8", "c16", "b1"};
    static const uint32_t dtypes[] = {DLPACK_PY_INT8,       DLPACK_PY_INT16,   DLPACK_PY_INT32,   DLPACK_PY_INT64,
                                      DLPACK_PY_UINT8,      DLPACK_PY_UINT16,  DLPACK_PY_UINT32,  DLPACK_PY_UINT64,
                                      DLPACK_PY_FLOAT16,    DLPACK_PY_FLOAT32, DLPACK_PY_FLOAT64, DLPACK_PY_COMPLEX64,
                                      DLPACK_PY_COMPLEX128, DLPACK_PY_BOOL};
    size_t i;
    if (strlen(text) != length || length < 3)
        return 0;
    for (i = 0; i < COUNT(known); i++) {
        if (strcmp(known[i], text + 1) == 0 &&
            (strchr("=<", text[0]) != NULL || (strchr("|>", text[0]) != NULL && text[2] == '1' && text[3] == 0)))
            return dtypes[i];
    }
    return 0;
}

/* ---- Buffers as tensors ------------------------------------------------- */

/* An object whose buffer is of any content. */
typedef struct Exporter {
    PyObject_HEAD
    char format[8];
    Py_ssize_t itemsize, len, *shape, *strides, *suboffsets;
    unsigned char *buf;
    int ndim, readonly, has_format, opened;
} Exporter;

static PyTypeObject *exporter_type, *thing_type, *attribute_type;
static PyTypeObject *bare_type; /* things without the buffer protocol */

static int
exporter_get(PyObject *self, Py_buffer *buffer, int flags)
{
    Exporter *exporter = (Exporter *)self;
    if ((flags & PyBUF_WRITABLE) != 0 && exporter->readonly) {
        PyErr_SetString(PyExc_BufferError, "read-only");
        buffer->obj = NULL;
        return -1;
    }
    memset(buffer, 0, sizeof(*buffer));
    buffer->buf = exporter->buf;
    buffer->len = exporter->len;
    buffer->itemsize = exporter->itemsize;
    buffer->readonly = exporter->readonly;
    buffer->format = exporter->has_format ? exporter->format : NULL;
    buffer->ndim = exporter->ndim;
    buffer->shape = exporter->shape;
    buffer->strides = exporter->strides;
    buffer->suboffsets = exporter->suboffsets;
    buffer->obj = self;
    Py_INCREF(self);
    exporter->opened++;
    return 0;
}

static void
exporter_release(PyObject *self, Py_buffer *buffer)
{
    (void)buffer;
    ((Exporter *)self)->opened--;
}

static PyObject *
exporter_dlpack(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlpack_buffer_dlpack(self, NULL, 0, NULL);
}

static void
exporter_dealloc(PyObject *self)
{
    Exporter *exporter = (Exporter *)self;
    CHECK(exporter->opened == 0);
    free(exporter->shape);
    free(exporter->strides);
    free(exporter->suboffsets);
    object_free(self);
}

static Exporter *
take_exporter(Input *in)
{
    static const char *const formats[] = {"f", "B", "b", "?",  "c",  "h", "H", "i", "I", "l", "L", "q",  "Q",  "n",
                                          "N", "e", "d", "Zf", "Zd", "F", "D", "g", "s", "x", "P", "2i", "T{", ""};
    static const char orders[] = {0, 0, 0, '@', '=', '<', '>', '!', '|'};
    static const Py_ssize_t sizes[] = {4, 1, 2, 8, 16, 0, 3, 32, -1};
    Exporter *exporter = (Exporter *)object_new(exporter_type);
    const unsigned kind = take(in);
    const char *format = TAKE(in, formats);
    const char order = TAKE(in, orders);
    uint32_t dtype;
    Py_ssize_t step;
    int i, n;

    exporter->has_format = kind % 16 != 1;
    if (order != 0)
        exporter->format[0] = order;
    strcat(exporter->format, format);
    dtype = 0;
    for (i = 0; i < (int)COUNT(sizes) && dtype == 0; i++) { /* most often the right size */
        exporter->itemsize = sizes[i];
        dtype = slow_dtype(exporter->has_format ? exporter->format : NULL, sizes[i]);
    }
    if (kind >= 200 || dtype == 0)
        exporter->itemsize = TAKE(in, sizes);
    exporter->readonly = kind % 4 == 1;
    n = exporter->ndim = kind == 255 ? 64 : kind == 254 ? 65 : (int)(kind % 5);
    exporter->shape = (Py_ssize_t *)malloc((size_t)n * sizeof(Py_ssize_t) + 1);
    exporter->strides = (Py_ssize_t *)malloc((size_t)n * sizeof(Py_ssize_t) + 1);
    exporter->suboffsets = kind % 32 == 2 ? (Py_ssize_t *)malloc((size_t)n * sizeof(Py_ssize_t) + 1) : NULL;
    step = exporter->itemsize;
    exporter->len = exporter->itemsize;
    for (i = n; i-- > 0;) {
        exporter->shape[i] = i > 5 ? 1 : take_extent(in);
        exporter->strides[i] = take_stride(in, step);
        step = (Py_ssize_t)((size_t)step * (size_t)exporter->shape[i]);
        exporter->len = (Py_ssize_t)((size_t)exporter->len * (size_t)exporter->shape[i]);
        if (exporter->suboffsets != NULL)
            exporter->suboffsets[i] = (int)take_below(in, 3) - 1;
    }
    if (kind % 8 == 3) {
        free(exporter->strides);
        exporter->strides = NULL;
    }
    exporter->buf = arena + sizeof(arena) / 2 + (kind % 16 == 4 ? take(in) : 0);
    return exporter;
}

/* A view of an object's buffer has the elements of the buffer. */
static void
check_exporter_view(const dlpack_py_view *v, const Exporter *exporter)
{
    const DLTensor *t = &v->tensor;
    Py_ssize_t step = exporter->itemsize;
    int32_t i;

    CHECK(dlpack_py_dtype(t) == slow_dtype(exporter->has_format ? exporter->format : NULL, exporter->itemsize));
    CHECK(t->ndim == exporter->ndim && exporter->suboffsets == NULL);
    for (i = t->ndim; i-- > 0; step *= t->shape[i]) {
        CHECK(t->shape[i] == exporter->shape[i]);
        if (slow_size(t) != 0 && t->shape[i] > 1 && (v->flags & DLPACK_PY_FLAG_IS_COPIED) == 0)
            CHECK(t->strides[i] * exporter->itemsize == (exporter->strides != NULL ? exporter->strides[i] : step));
        if (slow_size(t) == 0)
            step = 0;
    }
    if (slow_size(t) != 0 && (v->flags & DLPACK_PY_FLAG_IS_COPIED) == 0)
        CHECK(dlpack_py_data(v) == exporter->buf &&
              v->readonly == (exporter->readonly ? DLPACK_PY_READ_ONLY : DLPACK_PY_WRITABLE));
}

static int
is_in_arena(const Exporter *exporter)
{
    Wide below = 0, above = exporter->itemsize;
    int i;
    if (exporter->strides == NULL)
        return exporter->ndim == 0;
    for (i = 0; i < exporter->ndim; i++) {
        const Wide reach = ((Wide)exporter->shape[i] - 1) * exporter->strides[i];
        *(reach < 0 ? &below : &above) += reach;
    }
    return below > -4000 && above < 3800;
}

/* An object with the buffer protocol fills the buffer itself. */
static void
check_exporter_get(Exporter *exporter, const dlpack_py_want *want, int flags)
{
    PyObject *self = (PyObject *)exporter;
    Py_buffer buffer, given;

    memset(&buffer, 0xaa, sizeof(buffer));
    if (dlpack_buffer_get(self, want, &buffer, flags) < 0) {
        CHECK(take_exception() == BUFFER_ERROR && buffer.obj == NULL);
        CHECK(exporter->readonly && (flags & PyBUF_WRITABLE) != 0);
        return;
    }
    CHECK(exporter_get(self, &given, flags) == 0 && memcmp(&buffer, &given, sizeof(given)) == 0);
    PyBuffer_Release(&given);
    CHECK(exporter->opened == 1 && Py_REFCNT(self) == 2);
    PyBuffer_Release(&buffer);
}

static void
run_exporter(Input *in)
{
    const unsigned kind = take(in);
    Exporter *exporter = take_exporter(in);
    const Tensor likely = {dlpack_py_cpu_tensor(arena, DLPACK_PY_FLOAT32, exporter->ndim % 5, NULL, NULL), 0, NULL,
                           NULL};
    PyObject *self = (PyObject *)exporter, *capsule;
    dlpack_py_view v;
    Want want;

    want_take(in, &want, &likely.t);
    want.want.fallback = dlpack_buffer_fallback;
    if (!is_in_arena(exporter))
        want.want.options &= ~DLPACK_PY_WANT_COPY_IF_NEEDED;
    memset(&v, 0xaa, sizeof(v));
    if (kind % 8 == 1)
        check_exporter_get(exporter, (kind & 8) != 0 ? &want.want : NULL, kind >= 128 ? PyBUF_FULL : PyBUF_FULL_RO);
    else if (kind % 4 == 0) { /* by __dlpack__ */
        capsule = exporter_dlpack(self, NULL);
        if (capsule != NULL && dlpack_py_consume(capsule, &want.want, &v) == 0) {
            check_view(&v, &want.want);
            if (dlpack_py_data(&v) == exporter->buf || slow_size(&v.tensor) == 0) {
                if (exporter->readonly)
                    CHECK(v.readonly != DLPACK_PY_WRITABLE || (v.flags & DLPACK_PY_FLAG_IS_COPIED) != 0 ||
                          (want.want.options & DLPACK_PY_WANT_LEGACY_IS_WRITABLE) != 0);
            }
            dlpack_py_release(&v);
        }
        else
            CHECK((take_exception() & (BUFFER_ERROR | VALUE_ERROR | SYSTEM_ERROR | MEMORY_ERROR)) != 0);
        Py_XDECREF(capsule);
    }
    else if (dlpack_py_consume(self, &want.want, &v) == 0) {
        check_view(&v, &want.want);
        check_exporter_view(&v, exporter);
        CHECK(exporter->opened == ((v.flags & DLPACK_PY_FLAG_IS_COPIED) == 0));
        dlpack_py_release(&v);
    }
    else {
        const int error = take_exception();
        CHECK((error & (BUFFER_ERROR | VALUE_ERROR)) != 0 || (error == MEMORY_ERROR) ||
              (error == SYSTEM_ERROR && !slow_is_want(&want.want)));
        check_empty(&v);
    }
    CHECK(exporter->opened == 0 && Py_REFCNT(self) == 1);
    want_free(&want);
    Py_DECREF(self);
}

/* ---- Tensors as buffers ------------------------------------------------- */

DLPACK_PY_DESCRIBED(thing, thing_describe);
DLPACK_BUFFER_DESCRIBED(thing, thing_describe);
DLPACK_BUFFER_ARRAY_INTERFACE(thing, thing_describe);

/* A buffer has the elements of the tensor, and the fields that the flags ask for, no others. */
static void
check_buffer(const Py_buffer *buffer, int flags, const DLTensor *t, int readonly)
{
    const int64_t item = t->dtype.bits / 8;
    const int has_shape = (flags & PyBUF_ND) != 0, has_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    int64_t offsets[SLOW_MAX], count = slow_offsets(t, 'C', offsets), step = 1, n, k, at;
    int32_t i;

    CHECK(buffer->itemsize == item && buffer->len == (Py_ssize_t)(slow_size(t) * item) && buffer->suboffsets == NULL);
    CHECK(buffer->buf != NULL && buffer->readonly == readonly && !(readonly && (flags & PyBUF_WRITABLE) != 0));
    if ((flags & PyBUF_FORMAT) != 0)
        CHECK(slow_dtype(buffer->format, buffer->itemsize) == dlpack_py_dtype(t));
    else
        CHECK(buffer->format == NULL);
    CHECK(buffer->ndim == (has_shape ? t->ndim : 1));
    CHECK((buffer->shape != NULL) == (has_shape && t->ndim > 0));
    CHECK((buffer->strides != NULL) == (has_strides && t->ndim > 0));
    for (i = 0; i < t->ndim && has_shape; i++)
        CHECK(buffer->shape[i] == t->shape[i]);
    if (slow_size(t) == 0)
        return;
    CHECK(buffer->buf == (char *)t->data + t->byte_offset);
    if (!has_strides || (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS)
        CHECK(slow_has_order(t, 'C') != 0);
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS)
        CHECK(slow_has_order(t, 'F') != 0);
    if ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS)
        CHECK(slow_has_order(t, 'A') != 0);
    if (!has_strides)
        return;
    for (n = 0; n < count; n++) {
        for (i = t->ndim, k = n, at = 0; i-- > 0; k /= t->shape[i])
            at += k % t->shape[i] * buffer->strides[i];
        CHECK(at == offsets[n] * item);
    }
    for (i = t->ndim; i-- > 0 && count < 0; step *= t->shape[i]) /* too many elements to visit */
        CHECK(t->shape[i] == 1 || buffer->strides[i] == (t->strides != NULL ? t->strides[i] : step) * item);
}

/* Has a thing a buffer with these flags? -1: too many elements to tell. */
static int
slow_is_buffer(const Thing *thing, int flags)
{
    static const int asked[] = {PyBUF_C_CONTIGUOUS, PyBUF_F_CONTIGUOUS, PyBUF_ANY_CONTIGUOUS};
    const DLTensor *t = &thing->given.t;
    int unknown = 0, answer, i;

    if (!slow_is_valid(t, thing->given.flags) || !slow_is_readable(t->device) || !slow_has_format(t->dtype))
        return 0;
    if ((flags & PyBUF_WRITABLE) != 0 && (thing->given.flags & DLPACK_PY_FLAG_READ_ONLY) != 0)
        return 0;
    for (i = 0; i < 3; i++) {
        if ((flags & asked[i]) != asked[i] && !(i == 0 && (flags & PyBUF_STRIDES) != PyBUF_STRIDES))
            continue;
        answer = slow_has_order(t, "CFA"[i]);
        if (answer == 0)
            return 0;
        unknown |= answer < 0;
    }
    return unknown ? -1 : 1;
}

/* A new thing; is_turned: its tensor is column-major. */
static Thing *
take_thing(Input *in, PyTypeObject *type, int is_turned)
{
    Thing *thing = (Thing *)object_new(type);
    Tensor *given = &thing->given;
    uint64_t step = 1;
    int32_t i;

    tensor_take(in, given);
    for (i = 0; is_turned && i < given->t.ndim && given->t.ndim <= 6; i++) {
        given->strides[i] = (int64_t)step;
        step *= (uint64_t)given->shape[i];
    }
    thing->is_counted = given->flags % 2 == 0;
    if (slow_is_valid(&given->t, given->flags) && !slow_is_in_arena(&given->t, given->flags) &&
        slow_is_readable(given->t.device) && slow_size(&given->t) < 1000)
        given->t = dlpack_py_cpu_tensor(arena, DLPACK_PY_INT32, 0, NULL, NULL);
    return thing;
}

/* Opens the buffer of a thing; by dlpack_buffer_get, also without the buffer protocol, as a buffer of a memoryview. */
static void
check_get(Thing *thing, int flags, int is_get, const dlpack_py_want *want)
{
    const dlpack_py_want any = dlpack_py_want_any();
    PyObject *self = (PyObject *)thing;
    const DLTensor *t = &thing->given.t;
    const int readonly = (thing->given.flags & DLPACK_PY_FLAG_READ_ONLY) != 0, is_bare = Py_TYPE(self) == bare_type;
    int is_buffer = slow_is_buffer(thing, flags);
    Py_buffer buffer;

    if (is_bare && is_buffer != 0 && slow_meets_curable(t, readonly, want != NULL ? want : &any) == 0)
        is_buffer = 0;
    if (is_bare && (flags & PyBUF_FORMAT) != 0 && (flags & PyBUF_ND) == 0) /* no memoryview has such a buffer */
        is_buffer = 0;
    memset(&buffer, 0xaa, sizeof(buffer));
    if ((is_get ? dlpack_buffer_get(self, want, &buffer, flags) : PyObject_GetBuffer(self, &buffer, flags)) == 0) {
        CHECK(is_buffer != 0 && (buffer.obj != self) == is_bare);
        check_buffer(&buffer, flags, t, readonly);
        CHECK(Py_REFCNT(self) == 2 && dlpack_py_exports_count(&thing->exports) == (size_t)thing->is_counted);
        PyBuffer_Release(&buffer);
    }
    else
        CHECK(is_buffer != 1 && take_exception() == BUFFER_ERROR && buffer.obj == NULL);
}

static void
check_memoryview(Thing *thing)
{
    dlpack_py_want want = dlpack_py_want_any();
    PyObject *memory;
    const int is_buffer = slow_is_buffer(thing, PyBUF_FULL_RO);

    want.alignment = 1;
    memory = dlpack_buffer_memoryview((PyObject *)thing, &want);
    CHECK((memory != NULL) == is_buffer);
    if (memory == NULL)
        CHECK(take_exception() == BUFFER_ERROR);
    else {
        check_buffer(PyMemoryView_GET_BUFFER(memory), PyBUF_FULL_RO, &thing->given.t,
                     (thing->given.flags & DLPACK_PY_FLAG_READ_ONLY) != 0);
        Py_DECREF(memory);
    }
}

/* ---- Tensors as array interfaces ---------------------------------------- */

/* A tensor is what a dict says, which is of a version that is taken. Its address is not looked at. */
static void
check_described(const DLTensor *t, PyObject *dict, long oldest)
{
    PyObject *version = PyDict_GetItemString(dict, "version"), *mask = PyDict_GetItemString(dict, "mask");
    PyObject *shape = PyDict_GetItemString(dict, "shape"), *strides = PyDict_GetItemString(dict, "strides");
    const char *typestr = PyUnicode_AsUTF8(PyDict_GetItemString(dict, "typestr"));
    const int64_t item = t->dtype.bits / 8;
    const int has_strides = strides != NULL && strides != Py_None;
    int64_t step = 1;
    int32_t i;

    CHECK(version != NULL && PyLong_Check(version) && PyLong_AsLong(version) >= oldest);
    CHECK(mask == NULL || mask == Py_None);
    CHECK(dlpack_py_dtype(t) == slow_typestr(typestr, strlen(typestr)) && PyTuple_GET_SIZE(shape) == t->ndim);
    CHECK(!has_strides || PyTuple_GET_SIZE(strides) == t->ndim);
    for (i = t->ndim; i-- > 0;) {
        CHECK(PyLong_AsLongLong(PyTuple_GET_ITEM(shape, i)) == t->shape[i]);
        if (slow_size(t) == 0)
            continue;
        if (t->shape[i] > 1)
            CHECK((has_strides ? PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i)) : step * item) ==
                  (t->strides != NULL ? t->strides[i] : step) * item);
        step *= t->shape[i];
    }
    CHECK(!PyErr_Occurred());
}

/* Have two valid tensors the same elements? */
static void
check_equal(const DLTensor *a, const DLTensor *b)
{
    int64_t of_a[SLOW_MAX], of_b[SLOW_MAX];
    const int64_t count = slow_offsets(a, 'C', of_a);
    int32_t i;

    CHECK(dlpack_py_dtype(a) == dlpack_py_dtype(b) && a->ndim == b->ndim);
    for (i = 0; i < a->ndim; i++)
        CHECK(a->shape[i] == b->shape[i]);
    CHECK(slow_size(a) == 0 || (char *)a->data + a->byte_offset == (char *)b->data + b->byte_offset);
    CHECK(slow_offsets(b, 'C', of_b) == count);
    CHECK(count < 0 || memcmp(of_a, of_b, (size_t)count * sizeof(*of_a)) == 0);
}

/* A thing has an array interface if its memory stays and the dtype has a typestr. The dict is read as this tensor. */
static void
check_array_interface(Thing *thing)
{
    const DLTensor *t = &thing->given.t;
    const int is_valid = slow_is_valid(t, thing->given.flags);
    const int has_it = !thing->is_counted && slow_is_readable(t->device) && slow_has_format(t->dtype);
    PyObject *dict = thing_array_interface((PyObject *)thing, NULL), *memory;
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_view v;

    CHECK((dict != NULL) == (is_valid && has_it));
    if (dict == NULL) {
        const int error = take_exception();
        CHECK((error == ATTRIBUTE_ERROR && !has_it) || (error == BUFFER_ERROR && !is_valid));
        return;
    }
    check_described(t, dict, 3);
    want.fallback = dlpack_buffer_fallback;
    want.alignment = 1;
    memory = attribute_type->tp_alloc(attribute_type, 0); /* reads the dict again */
    live++;
    ((PyObject **)(void *)(memory + 1))[0] = dict;
    CHECK(dlpack_py_consume(memory, &want, &v) == 0);
    CHECK(v.readonly == ((thing->given.flags & DLPACK_PY_FLAG_READ_ONLY) != 0));
    check_equal(&v.tensor, t);
    dlpack_py_release(&v);
    Py_DECREF(memory);
}

#if HAS_CUDA
/* A stream is what a dict says; where it says nothing, no work is pending. */
static void
check_stream(const dlpack_py_stream *stream, PyObject *dict)
{
    PyObject *pending = PyDict_GetItemString(dict, "stream");
    if (pending == NULL || pending == Py_None)
        CHECK(stream->kind == DLPACK_PY_STREAM_NO_SYNC);
    else
        CHECK(PyLong_Check(pending) && PyLong_AsUnsignedLongLong(pending) == stream->handle && !PyErr_Occurred() &&
              stream->kind == DLPACK_PY_STREAM_HANDLE && stream->handle != 0);
}

/* The dict that is given for a tensor of a device is read as this tensor: that needs no device. */
static void
check_device_interface(Thing *thing, unsigned kind)
{
    static const int32_t types[] = {kDLCUDA, kDLCUDAHost, kDLCUDAManaged, kDLCPU};
    static const uintptr_t streams[] = {UINTPTR_MAX, 0, 0, 0x5000, UINTPTR_MAX - 1, 2};
    const unsigned which = kind / 16 % COUNT(streams);
    const uintptr_t given = streams[which];
    DLTensor *t = &thing->given.t, read;
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    dlpack_py_stream stream;
    uint64_t flags;
    PyObject *dict;

    t->device = dlp_make_device(types[kind / 4 % 4], 0);
    if (!slow_is_valid(t, thing->given.flags))
        return;
    dict = which % 2 != 0 ? dlpack_cuda_array_interface(t, thing->given.flags, (cudaStream_t)given)
                          : dlpack_device_array_interface(t, thing->given.flags, given);
    CHECK((dict != NULL) == (t->device.device_type != kDLCPU && slow_has_format(t->dtype)));
    if (dict == NULL) {
        CHECK(take_exception() == ATTRIBUTE_ERROR);
        return;
    }
    check_described(t, dict, 3);
    CHECK(dlp_device_interface_parse(dict, dims, &read, &flags, &stream) == 0);
    check_equal(&read, t);
    CHECK(slow_size(t) != 0 || read.data == NULL);
    CHECK(flags == (thing->given.flags & DLPACK_PY_FLAG_READ_ONLY));
    check_stream(&stream, dict);
    CHECK(given == UINTPTR_MAX ? stream.kind == DLPACK_PY_STREAM_NO_SYNC : stream.handle == (given == 0 ? 1 : given));
    Py_DECREF(dict);
}
#endif

/* Flags that code asks for, or any others. */
static int
take_flags(Input *in)
{
    static const int usual[] = {PyBUF_SIMPLE,
                                PyBUF_WRITABLE,
                                PyBUF_ND,
                                PyBUF_STRIDES,
                                PyBUF_FULL,
                                PyBUF_FULL_RO,
                                PyBUF_C_CONTIGUOUS,
                                PyBUF_F_CONTIGUOUS | PyBUF_FORMAT,
                                PyBUF_ANY_CONTIGUOUS,
                                PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE};
    const unsigned high = take(in), low = take(in);
    if (high >= 128)
        return usual[low % COUNT(usual)];
    return (int)(high << 8 | low) & (PyBUF_FULL | PyBUF_C_CONTIGUOUS | PyBUF_F_CONTIGUOUS | PyBUF_ANY_CONTIGUOUS);
}

static void
run_thing(Input *in)
{
    const unsigned kind = take(in);
    const int flags = take_flags(in);
    const int is_bare = kind % 4 == 2 && kind >= 128;
    const int has_flags = flags != PyBUF_READ && flags != PyBUF_WRITE; /* these are for memoryviews only */
    Thing *thing = take_thing(in, is_bare ? bare_type : thing_type, kind / 32 % 4 == 1);
    dlpack_py_want want = dlpack_py_want_any();

    want.alignment = 1;
    if (has_flags && (is_bare || kind % 4 < 2))
        check_get(thing, flags, is_bare || kind % 4 == 1, (kind & 4) != 0 ? &want : NULL);
    else if (kind % 4 <= 2)
        check_memoryview(thing); /* consumed by DLPack */
#if HAS_CUDA
    else if (kind >= 128)
        check_device_interface(thing, kind);
#endif
    else
        check_array_interface(thing);
    CHECK(Py_REFCNT(thing) == 1);
    Py_DECREF(thing);
}

/* ---- Array interfaces as tensors ---------------------------------------- */

/* An object with __array_interface__. */
typedef struct Attribute {
    PyObject_HEAD
    PyObject *interface; /* NULL: raises */
} Attribute;

static PyObject *
attribute_get(PyObject *self, void *unused)
{
    PyObject *interface = ((Attribute *)self)->interface;
    (void)unused;
    if (interface == NULL)
        PyErr_SetString(PyExc_ZeroDivisionError, "by the target");
    Py_XINCREF(interface);
    return interface;
}

static void
attribute_dealloc(PyObject *self)
{
    Py_XDECREF(((Attribute *)self)->interface);
    object_free(self);
}

static void
set_up(void)
{
    static PyMethodDef exporter_methods[] = {{"exporter_dlpack", exporter_dlpack, METH_NOARGS, NULL},
                                             {NULL, NULL, 0, NULL}};
    static PyMethodDef thing_methods[] = {DLPACK_PY_METHODS(thing_dlpack, thing_dlpack_device), {NULL, NULL, 0, NULL}};
    static PyGetSetDef getters[] = {{"__array_interface__", attribute_get, NULL, NULL, NULL},
                                    {NULL, NULL, NULL, NULL, NULL}};
    PyType_Slot exporter_slots[] = {{Py_bf_getbuffer, SLOT(exporter_get)},
                                    {Py_bf_releasebuffer, SLOT(exporter_release)},
                                    {Py_tp_methods, exporter_methods},
                                    {Py_tp_dealloc, SLOT(exporter_dealloc)},
                                    {0, NULL}};
    PyType_Slot thing_slots[] = {{Py_bf_getbuffer, SLOT(thing_getbuffer)},
                                 {Py_bf_releasebuffer, SLOT(dlpack_buffer_release)},
                                 {Py_tp_methods, thing_methods},
                                 {Py_tp_dealloc, SLOT(thing_dealloc)},
                                 {0, NULL}};
    PyType_Slot bare_slots[] = {{Py_tp_methods, thing_methods}, {Py_tp_dealloc, SLOT(thing_dealloc)}, {0, NULL}};
    PyType_Slot attribute_slots[] = {{Py_tp_getset, getters}, {Py_tp_dealloc, SLOT(attribute_dealloc)}, {0, NULL}};
    exporter_type = make_type("fuzz.Exporter", sizeof(Exporter), exporter_slots);
    thing_type = make_type("fuzz.Thing", sizeof(Thing), thing_slots);
    bare_type = make_type("fuzz.Bare", sizeof(Thing), bare_slots);
    attribute_type = make_type("fuzz.Attribute", sizeof(Attribute), attribute_slots);
}

static PyObject *
take_number(Input *in)
{
    const unsigned kind = take(in);
    if (kind >= 250)
        return PyUnicode_FromString("1");
    if (kind >= 240) {
        PyObject *one = PyLong_FromLong(1), *bits = PyLong_FromLong(take(in)), *made = PyNumber_Lshift(one, bits);
        Py_DECREF(one);
        Py_DECREF(bits);
        return made;
    }
    return PyLong_FromLongLong(kind >= 216 ? take_extreme(in) : kind >= 200 ? 0 : (int64_t)(kind % 24));
}

/* A value of any type that a dict may have. */
static PyObject *
take_value(Input *in)
{
    const unsigned kind = take(in);
    PyObject *tuple, *number;
    unsigned i, count;
    switch (kind % 8) {
    case 0: Py_RETURN_NONE;
    case 1: return take_number(in);
    case 2: return PyUnicode_FromString("<f4");
    case 3: return PyBytes_FromStringAndSize((const char *)arena, take(in));
    case 4: return PyByteArray_FromStringAndSize((const char *)arena, take(in));
    default:
        count = kind == 255 ? 65 : kind / 8 % 5;
        tuple = PyTuple_New((Py_ssize_t)count);
        for (i = 0; i < count; i++) {
            number = take_number(in);
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, number);
        }
        return tuple;
    }
}

static void
put(PyObject *dict, const char *key, PyObject *value)
{
    CHECK(value != NULL && PyDict_SetItemString(dict, key, value) == 0);
    Py_DECREF(value);
}

static PyObject *
take_interface(Input *in)
{
    static const char *const keys[] = {"shape", "typestr", "data",  "strides", "version",
                                       "mask",  "offset",  "descr", "stream"};
    static const char *const typestrs[] = {"<f4", "|u1", "<i8", "<c16", "|b1",  ">f4",  "<f16", "<f2", "|i1",
                                           "=i4", "<i3", "<U4", "f4",   "<f04", "<f4 ", ">i1",  ""};
    PyObject *dict = PyDict_New(), *tuple;
    const unsigned kind = take(in);
    unsigned i, count = kind % 4;
    int64_t size = 4;
    char raw[5] = "";

    put(dict, "version",
        PyLong_FromLong(kind >= 250   ? (long)take(in) - 128
                        : kind >= 240 ? (long)take_below(in, 5)
                                      : 3));
    if (kind % 16 == 9) {
        for (i = 0; i < 4; i++)
            raw[i] = (char)(take(in) & 127);
        put(dict, "typestr", PyUnicode_FromString(raw));
    }
    else
        put(dict, "typestr", PyUnicode_FromString(TAKE(in, typestrs)));
    tuple = PyTuple_New((Py_ssize_t)count);
    for (i = 0; i < count; i++)
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, PyLong_FromLong((long)take(in) % 6));
    put(dict, "shape", tuple);
    if (kind % 8 >= 4) {
        tuple = PyTuple_New((Py_ssize_t)count);
        for (i = count; i-- > 0; size *= 3)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, PyLong_FromLongLong(take_stride(in, size)));
        put(dict, "strides", tuple);
    }
    if (kind % 32 < 16)
        put(dict, "data", PyBytes_FromStringAndSize((const char *)arena, take(in)));
    else
        put(dict, "data", Py_BuildValue("(Ni)", PyLong_FromVoidPtr(arena + take(in)), (int)take_below(in, 2)));
    if (kind % 64 >= 48)
        put(dict, "offset", PyLong_FromLong((long)take(in) - 8));
    for (i = take_below(in, 4); i-- > 0;) { /* then some keys of any content, or none */
        const char *key = TAKE(in, keys);
        if (take(in) < 64) {
            if (PyDict_DelItemString(dict, key) < 0)
                PyErr_Clear();
        }
        else
            put(dict, key, take_value(in));
    }
    return dict;
}

static void
check_interface(const dlpack_py_view *v, PyObject *dict)
{
    const DLTensor *t = &v->tensor;
    PyObject *data = PyDict_GetItemString(dict, "data"), *offset = PyDict_GetItemString(dict, "offset");
    Wide below = 0, above = 0, skipped;
    Py_buffer buffer;

    check_described(t, dict, 3);
    if (slow_size(t) == 0)
        return;
    if (PyTuple_Check(data)) {
        CHECK(PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0)) == dlpack_py_data(v));
        CHECK(v->readonly == PyObject_IsTrue(PyTuple_GET_ITEM(data, 1)));
        return;
    }
    CHECK(PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) == 0);
    skipped = offset == NULL || offset == Py_None ? 0 : PyLong_AsLongLong(offset);
    slow_reach(t, &below, &above);
    CHECK(dlpack_py_data(v) == (char *)buffer.buf + (int64_t)skipped);
    CHECK(skipped + below * (t->dtype.bits / 8) >= 0 && skipped + above * (t->dtype.bits / 8) <= buffer.len);
    CHECK(v->readonly == buffer.readonly);
    PyBuffer_Release(&buffer);
}

/* An object with neither protocol has a buffer by want.fallback only. v: what it is as a tensor; NULL: not asked. */
static void
check_interface_get(Attribute *attribute, const dlpack_py_want *want, const dlpack_py_view *v)
{
    Py_buffer buffer;
    memset(&buffer, 0xaa, sizeof(buffer));
    if (v == NULL) {
        CHECK(dlpack_buffer_get((PyObject *)attribute, NULL, &buffer, PyBUF_FULL_RO) < 0);
        CHECK(take_exception() == TYPE_ERROR && buffer.obj == NULL);
        return;
    }
    fuzz_fails = -1;
    CHECK(dlpack_buffer_get((PyObject *)attribute, want, &buffer, PyBUF_FULL_RO) == 0);
    check_buffer(&buffer, PyBUF_FULL_RO, &v->tensor, v->readonly != DLPACK_PY_WRITABLE);
    PyBuffer_Release(&buffer);
}

static void
run_interface(Input *in)
{
    const unsigned kind = take(in);
    Attribute *attribute = (Attribute *)object_new(attribute_type);
    PyObject *dict = kind == 255 ? NULL : kind == 254 ? take_value(in) : take_interface(in);
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_view v;
    int error;

    attribute->interface = dict;
    if (kind % 16 == 4)
        check_interface_get(attribute, NULL, NULL);
    want.fallback = dlpack_buffer_fallback;
    want.alignment = 1;
    if (kind % 2 == 0 || !HAS_CUDA || dict == NULL) {
        memset(&v, 0xaa, sizeof(v));
        fuzz_fails = kind % 16 == 2 ? 0 : -1;
        if (dlpack_py_consume((PyObject *)attribute, &want, &v) == 0) {
            check_view(&v, NULL);
            check_interface(&v, dict);
            check_interface_get(attribute, &want, &v);
            dlpack_py_release(&v);
        }
        else {
            error = take_exception();
            CHECK((error & (BUFFER_ERROR | TYPE_ERROR)) != 0 || (dict == NULL && error == FOREIGN_ERROR) ||
                  (error == MEMORY_ERROR && fuzz_refused > 0));
            check_empty(&v);
        }
    }
#if HAS_CUDA
    else {
        int64_t dims[2 * DLPACK_PY_MAX_NDIM];
        dlpack_py_stream stream;
        uint64_t flags;
        DLTensor t;
        if (dlp_device_interface_parse(dict, dims, &t, &flags, &stream) == 0) {
            PyObject *data = PyDict_GetItemString(dict, "data");
            CHECK(!PyErr_Occurred() && slow_is_valid(&t, flags));
            check_described(&t, dict, 2);
            CHECK(PyTuple_Check(data) && PyTuple_GET_SIZE(data) == 2 && t.byte_offset == 0);
            CHECK(t.data == PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0)) && !PyErr_Occurred());
            CHECK((int)flags == PyObject_IsTrue(PyTuple_GET_ITEM(data, 1)));
            check_stream(&stream, dict);
        }
        else
            CHECK((take_exception() & (BUFFER_ERROR | TYPE_ERROR | VALUE_ERROR)) != 0);
    }
#endif
    CHECK(Py_REFCNT(attribute) == 1);
    Py_DECREF(attribute);
}

static void
run(Input *in)
{
    switch (take_below(in, 3)) {
    case 0: run_exporter(in); break;
    case 1: run_thing(in); break;
    default: run_interface(in);
    }
}

/* arrow_column - columns of PyArrow, polars, DuckDB, pandas and nanoarrow as DLPack producers
 * SPDX-License-Identifier: MIT
 *
 * Column(obj) takes a column by the Arrow C data interface, from an object with __arrow_c_array__ or __arrow_c_stream__,
 * and exports its memory by DLPack, without a copy. Arrow data is immutable: exports are read-only.
 *
 * Numbers become rank 1, and each level of fixed-size lists adds one dimension. A table with one column is taken as its
 * column, because DuckDB offers tables only. BufferError refuses all other types, nulls, and a stream of several chunks.
 * PyArrow's __dlpack__ refuses the same types, and fixed-size lists and tables too.
 *
 * The functions of a stream run without the GIL, because a producer may compute on threads that need the GIL, or wait
 * for such threads. The release of a schema and of an array runs with the GIL; that of an array when the Column and the
 * last consumer of its memory are gone.
 */
#include <Python.h>
#include <stdint.h> /* int64_t */
#include <stdlib.h> /* strtoll */
#include <string.h> /* memcpy, memset, strcmp, strncmp */
#include "dlpack_py.h"

#ifndef Py_BEGIN_CRITICAL_SECTION
#  define Py_BEGIN_CRITICAL_SECTION(object) {
#  define Py_END_CRITICAL_SECTION() }
#endif

/* ---- The structs of the Arrow specification ------------------------------ */

/* A struct whose release is NULL is empty: it was released, or its content was moved to another struct. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;   /* the type */
    const char *name;     /* of the column, may be NULL */
    const char *metadata; /* pairs of texts, see find_extension; may be NULL */
    int64_t flags;        /* ARROW_FLAG_... */
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary; /* the type of the values; NULL: not encoded by a dictionary */
    void (*release)(struct ArrowSchema *);
    void *private_data; /* of the producer */
};

struct ArrowArray {
    int64_t length;
    int64_t null_count; /* -1: not counted */
    int64_t offset;     /* elements of the buffers before the first element of the array */
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers; /* the first is a bitmap: 0 is null. NULL: there are no nulls */
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *); /* frees the children too */
    void *private_data;                   /* of the producer */
};

#endif
#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

/* The functions return 0 or an errno. After the last array, get_next gives an empty array. */
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *); /* may return NULL */
    void (*release)(struct ArrowArrayStream *);
    void *private_data; /* of the producer */
};

#endif

/* ---- Types --------------------------------------------------------------- */

#define MAX_RANK 8
#define MAX_COUNT (PTRDIFF_MAX / 8) /* numbers of 8 bytes that an address space can hold */

typedef struct Column {
    PyObject_HEAD
    struct ArrowArray array; /* moved out of the producer; empty: the stream had no rows */
    const void *data;        /* in array: the first number */
    uint32_t dtype;
    int32_t ndim;
    int64_t shape[MAX_RANK];
} Column;

static const struct {
    const char *format;
    uint32_t dtype;
} numbers[] = {
    {"c", DLPACK_PY_INT8},    {"C", DLPACK_PY_UINT8},   {"s", DLPACK_PY_INT16},   {"S", DLPACK_PY_UINT16},
    {"i", DLPACK_PY_INT32},   {"I", DLPACK_PY_UINT32},  {"l", DLPACK_PY_INT64},   {"L", DLPACK_PY_UINT64},
    {"e", DLPACK_PY_FLOAT16}, {"f", DLPACK_PY_FLOAT32}, {"g", DLPACK_PY_FLOAT64},
};

/* How the formats of other types begin, what they are, and what a user can do. */
static const struct {
    const char *format, *what, *advice;
} refused[] = {
    {"n", "nulls only", "fill the nulls"},
    {"b", "booleans in single bits", "cast to uint8"},
    {"u", "strings", "cast to numbers"},
    {"U", "strings", "cast to numbers"},
    {"vu", "strings", "cast to numbers"},
    {"z", "binary values", "cast to numbers"},
    {"Z", "binary values", "cast to numbers"},
    {"vz", "binary values", "cast to numbers"},
    {"w:", "binary values of a fixed size", "convert to fixed-size lists of uint8"},
    {"d:", "decimals", "cast to float64 or int64"},
    {"t", "dates or times", "cast to int32 or int64"},
    {"+l", "lists of any length", "cast to fixed-size lists, or export the flattened values"},
    {"+L", "lists of any length", "cast to fixed-size lists, or export the flattened values"},
    {"+vl", "lists of any length", "cast to fixed-size lists, or export the flattened values"},
    {"+vL", "lists of any length", "cast to fixed-size lists, or export the flattened values"},
    {"+s", "structs inside lists or structs", "select one field"},
    {"+m", "maps", "export the keys or the items"},
    {"+u", "unions", "export one of the children"},
    {"+r", "run-end encoded values", "decode the runs"},
};

/* Copies the name of an extension type into text. Returns 1, or 0 where the type is no extension type. Metadata is the
 * number of pairs, then for each pair the length of the key, the key, the length of the value, the value; numbers are
 * int32 without alignment. */
static int
find_extension(const char *metadata, char *text, size_t size)
{
    static const char wanted[] = "ARROW:extension:name";
    int32_t pairs, key, value;

    if (metadata == NULL)
        return 0;
    memcpy(&pairs, metadata, sizeof(pairs));
    for (metadata += 4; pairs > 0; pairs--, metadata += 8 + (size_t)key + (size_t)value) {
        memcpy(&key, metadata, sizeof(key));
        if (key < 0)
            return 0;
        memcpy(&value, metadata + 4 + key, sizeof(value));
        if (value < 0)
            return 0;
        if ((size_t)key == strlen(wanted) && memcmp(metadata + 4, wanted, (size_t)key) == 0) {
            snprintf(text, size, "%.*s", value, metadata + 8 + key);
            return 1;
        }
    }
    return 0;
}

/* Returns -1 with BufferError. */
static int
refuse_format(const char *format)
{
    size_t i;

    for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        if (strncmp(format, refused[i].format, strlen(refused[i].format)) == 0) {
            PyErr_Format(PyExc_BufferError, "Column: %s (Arrow format '%.100s') have no DLPack dtype: %s first",
                         refused[i].what, format, refused[i].advice);
            return -1;
        }
    }
    PyErr_Format(PyExc_BufferError, "Column: Arrow format '%.100s' is not known", format);
    return -1;
}

/* Checks what all types have in common. Returns 0, or -1 with BufferError. */
static int
check_schema(const struct ArrowSchema *schema)
{
    char name[64];

    if (schema == NULL || schema->release == NULL || schema->format == NULL)
        PyErr_SetString(PyExc_BufferError,
                        "Column: the ArrowSchema, or a child of it, is NULL, empty or has no format");
    else if (schema->dictionary != NULL)
        PyErr_SetString(PyExc_BufferError, "Column: values are encoded by a dictionary: decode them first, for example "
                                           "by dictionary_decode() in PyArrow");
    else if (find_extension(schema->metadata, name, sizeof(name)))
        PyErr_Format(PyExc_BufferError, "Column: the extension type '%s' has no DLPack dtype: export its storage",
                     name);
    else
        return 0;
    return -1;
}

/* ---- Arrays -------------------------------------------------------------- */

/* The first bit that is 0 among count bits from first on; -1: none. */
static int64_t
find_zero_bit(const uint8_t *bits, int64_t first, int64_t count)
{
    const int64_t end = first + count;
    int64_t i;

    for (i = first; i < end; i++) {
        if (i % 8 == 0 && bits[i / 8] == 0xff)
            i += 7;
        else if ((bits[i / 8] >> i % 8 & 1) == 0)
            return i;
    }
    return -1;
}

/* Checks the rows of an array from start on: they exist, and none is null. Returns 0, or -1 with BufferError. */
static int
check_rows(const struct ArrowArray *array, int64_t start, int64_t count, int64_t buffers, int64_t children)
{
    int64_t null;

    if (array == NULL || array->release == NULL)
        PyErr_SetString(PyExc_BufferError, "Column: the ArrowArray, or a child of it, is NULL or empty");
    else if (array->n_buffers != buffers || array->n_children != children || array->buffers == NULL ||
             (children > 0 && array->children == NULL))
        PyErr_Format(
            PyExc_BufferError, "Column: the ArrowArray has %lld buffers and %lld children, its type has %lld and %lld",
            (long long)array->n_buffers, (long long)array->n_children, (long long)buffers, (long long)children);
    else if (array->length < 0 || array->offset < 0 || array->offset > MAX_COUNT - array->length ||
             array->null_count < -1)
        PyErr_Format(PyExc_BufferError, "Column: the ArrowArray has length %lld, offset %lld and null_count %lld",
                     (long long)array->length, (long long)array->offset, (long long)array->null_count);
    else if (count > array->length - start)
        PyErr_Format(PyExc_BufferError,
                     "Column: a child ArrowArray has %lld elements, its parent uses %lld from %lld on",
                     (long long)array->length, (long long)count, (long long)start);
    else if (array->null_count == 0 || (array->null_count < 0 && array->buffers[0] == NULL))
        return 0;
    else if (array->buffers[0] == NULL)
        PyErr_Format(PyExc_BufferError, "Column: the ArrowArray has %lld nulls and no bitmap",
                     (long long)array->null_count);
    else {
        null = find_zero_bit((const uint8_t *)array->buffers[0], array->offset + start, count);
        if (null < 0)
            return 0;
        PyErr_Format(PyExc_BufferError,
                     "Column: element %lld is null, and DLPack has no nulls: fill or drop the nulls first",
                     (long long)(null - array->offset - start));
    }
    return -1;
}

/* The number of elements in a fixed-size list; -1 for other types. */
static int64_t
list_size(const char *format)
{
    char *end;
    long long size;

    if (strncmp(format, "+w:", 3) != 0 || format[3] < '0' || format[3] > '9')
        return -1;
    size = strtoll(format + 3, &end, 10);
    return *end == '\0' && size <= MAX_COUNT ? (int64_t)size : -1;
}

/* Sets data, dtype, ndim and shape from an array; array NULL: no rows. Returns 0, or -1 with BufferError. */
static int
column_describe(Column *self, const struct ArrowSchema *schema, const struct ArrowArray *array)
{
    const int has_rows = array != NULL;
    int64_t start = 0, count = has_rows ? array->length : 0, size;
    int level;
    size_t i, skipped;

    self->ndim = 0;
    self->data = NULL;
    self->shape[self->ndim++] = count;
    for (level = 0;; level++) {
        if (check_schema(schema) < 0)
            return -1;
        size = list_size(schema->format);
        if (level == 0 && strcmp(schema->format, "+s") == 0) {
            if (schema->n_children != 1) {
                PyErr_Format(PyExc_BufferError, "Column: a table or struct of %lld columns: select one column first",
                             (long long)schema->n_children);
                return -1;
            }
            size = 1;
        }
        else if (size < 0)
            break;
        else if (self->ndim == MAX_RANK) {
            PyErr_Format(PyExc_BufferError, "Column: nested lists have more than %d dimensions", MAX_RANK);
            return -1;
        }
        else
            self->shape[self->ndim++] = size;
        if (has_rows && check_rows(array, start, count, 1, 1) < 0)
            return -1;
        start = has_rows ? array->offset + start : 0;
        if (size > 0 && start + count > MAX_COUNT / size) {
            PyErr_Format(PyExc_BufferError, "Column: %lld lists of %lld elements are too many", (long long)count,
                         (long long)size);
            return -1;
        }
        if (schema->n_children != 1 || schema->children == NULL) {
            PyErr_SetString(PyExc_BufferError, "Column: the ArrowSchema of lists or of a struct has no child");
            return -1;
        }
        start *= size;
        count *= size;
        schema = schema->children[0];
        array = has_rows ? array->children[0] : NULL;
    }
    for (i = 0; strcmp(schema->format, numbers[i].format) != 0;) {
        if (++i == sizeof(numbers) / sizeof(numbers[0]))
            return refuse_format(schema->format);
    }
    self->dtype = numbers[i].dtype;
    if (has_rows && check_rows(array, start, count, 2, 0) < 0)
        return -1;
    if (count > 0) {
        if (array->buffers[1] == NULL) {
            PyErr_Format(PyExc_BufferError, "Column: the buffer of %lld numbers is NULL", (long long)count);
            return -1;
        }
        skipped = (size_t)(array->offset + start) * (numbers[i].dtype >> 19 & 0x1f); /* bits / 8: bytes of a number */
        if (skipped > UINTPTR_MAX - (uintptr_t)array->buffers[1]) {
            PyErr_Format(PyExc_BufferError, "Column: offset %lld is outside of the address range",
                         (long long)array->offset);
            return -1;
        }
        self->data = (const char *)array->buffers[1] + skipped;
    }
    return 0;
}

/* ---- What an object offers ----------------------------------------------- */

/* What a capsule holds, which must not be empty. Returns NULL with TypeError or ValueError. */
#define GET_STRUCT(type, capsule, name, method) ((struct type *)get_pointer(capsule, name, method))

static void *
get_pointer(PyObject *capsule, const char *name, const char *method)
{
    if (PyCapsule_IsValid(capsule, name))
        return PyCapsule_GetPointer(capsule, name);
    if (PyCapsule_CheckExact(capsule)) {
        const char *other = PyCapsule_GetName(capsule);
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "Column: %s returned a capsule '%.100s', '%s' was wanted", method,
                     other != NULL ? other : "", name);
    }
    else
        PyErr_Format(PyExc_TypeError, "Column: %s returned %.100s, a capsule '%s' was wanted", method,
                     Py_TYPE(capsule)->tp_name, name);
    return NULL;
}

static int
refuse_moved(const char *method)
{
    PyErr_Format(PyExc_ValueError, "Column: what %s returned is empty: another consumer took it before", method);
    return -1;
}

/* Takes a tuple of an ArrowSchema and an ArrowArray. A refused array stays in its capsule. Returns 0, or -1. */
static int
take_array(Column *self, PyObject *given)
{
    static const char method[] = "__arrow_c_array__";
    const struct ArrowSchema *schema;
    struct ArrowArray *array;
    int failed = -1;

    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 2) {
        PyErr_Format(PyExc_TypeError, "Column: %s returned %.100s, a tuple of two capsules was wanted", method,
                     PyTuple_Check(given) ? "a tuple of another length" : Py_TYPE(given)->tp_name);
        return -1;
    }
    schema = GET_STRUCT(ArrowSchema, PyTuple_GET_ITEM(given, 0), "arrow_schema", method);
    if (schema == NULL)
        return -1;
    array = GET_STRUCT(ArrowArray, PyTuple_GET_ITEM(given, 1), "arrow_array", method);
    if (array == NULL)
        return -1;
    Py_BEGIN_CRITICAL_SECTION(PyTuple_GET_ITEM(given, 1));
    if (schema->release == NULL || array->release == NULL)
        failed = refuse_moved(method);
    else if ((failed = column_describe(self, schema, array)) == 0) {
        self->array = *array;
        array->release = NULL; /* moved: the capsule has nothing to release */
    }
    Py_END_CRITICAL_SECTION();
    return failed;
}

/* Returns -1 with RuntimeError. */
static int
refuse_failure(struct ArrowArrayStream *stream, const char *function, int code)
{
    const char *why = NULL;
    char text[1000] = "no reason was given";

    Py_BEGIN_ALLOW_THREADS
    if (stream->get_last_error != NULL)
        why = stream->get_last_error(stream);
    if (why != NULL)
        snprintf(text, sizeof(text), "%s", why);
    Py_END_ALLOW_THREADS
    PyErr_Format(PyExc_RuntimeError, "Column: %s of the Arrow stream failed with errno %d: %s", function, code, text);
    return -1;
}

static void
release_stream(struct ArrowArrayStream *stream)
{
    Py_BEGIN_ALLOW_THREADS
    stream->release(stream);
    Py_END_ALLOW_THREADS
}

/* Reads the only chunk of a stream that is not empty into self->array. Returns 0, or -1 with an exception. */
static int
read_stream(Column *self, struct ArrowArrayStream *stream, struct ArrowSchema *schema)
{
    struct ArrowArray next;
    int code;

    Py_BEGIN_ALLOW_THREADS
    code = stream->get_schema(stream, schema);
    Py_END_ALLOW_THREADS
    if (code != 0)
        return refuse_failure(stream, "get_schema", code);
    if (column_describe(self, schema, NULL) < 0) /* before the producer computes the rows */
        return -1;
    for (;;) {
        if (PyErr_CheckSignals() < 0)
            return -1;
        memset(&next, 0, sizeof(next));
        Py_BEGIN_ALLOW_THREADS
        code = stream->get_next(stream, &next);
        Py_END_ALLOW_THREADS
        if (code != 0)
            return refuse_failure(stream, "get_next", code);
        if (next.release == NULL)
            return self->array.release == NULL ? 0 : column_describe(self, schema, &self->array);
        if (self->array.release == NULL)
            self->array = next;
        else if (next.length == 0)
            next.release(&next);
        else if (self->array.length == 0) {
            self->array.release(&self->array);
            self->array = next;
        }
        else {
            next.release(&next);
            PyErr_SetString(PyExc_BufferError, "Column: the column has several chunks: combine them first, for example "
                                               "by combine_chunks() in PyArrow or rechunk() in polars");
            return -1;
        }
    }
}

/* Takes an ArrowArrayStream. Returns 0, or -1 with an exception. */
static int
take_stream(Column *self, PyObject *given)
{
    static const char method[] = "__arrow_c_stream__";
    struct ArrowArrayStream *source = GET_STRUCT(ArrowArrayStream, given, "arrow_array_stream", method), stream;
    struct ArrowSchema schema;
    PyObject *type, *value, *traceback;
    int failed;

    if (source == NULL)
        return -1;
    Py_BEGIN_CRITICAL_SECTION(given);
    stream = *source;
    source->release = NULL; /* moved, because a stream can be read only once */
    Py_END_CRITICAL_SECTION();
    if (stream.release == NULL)
        return refuse_moved(method);
    if (stream.get_schema == NULL || stream.get_next == NULL) {
        release_stream(&stream);
        PyErr_SetString(PyExc_BufferError, "Column: the ArrowArrayStream has no get_schema or no get_next");
        return -1;
    }
    memset(&schema, 0, sizeof(schema));
    failed = read_stream(self, &stream, &schema);
    PyErr_Fetch(&type, &value, &traceback); /* the callbacks may run Python code */
    if (schema.release != NULL)
        schema.release(&schema);
    release_stream(&stream);
    PyErr_Restore(type, value, traceback);
    return failed;
}

/* Calls a method that an object may lack. Returns 1 with the result in *out, 0 without such a method, or -1. */
static int
call_if_any(PyObject *obj, const char *name, PyObject **out)
{
    PyObject *method = PyObject_GetAttrString(obj, name);

    if (method == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    *out = PyObject_CallObject(method, NULL); /* requested_schema is None: the schema of the data */
    Py_DECREF(method);
    return *out != NULL ? 1 : -1;
}

/* Takes what an object offers. Returns 0, or -1 with an exception. */
static int
take_object(Column *self, PyObject *obj)
{
    PyObject *given = NULL, *type, *value, *traceback;
    int found, failed = -1;

    if ((found = call_if_any(obj, "__arrow_c_array__", &given)) > 0)
        failed = take_array(self, given);
    else if (found == 0 && (found = call_if_any(obj, "__arrow_c_stream__", &given)) > 0)
        failed = take_stream(self, given);
    else if (found == 0)
        PyErr_Format(PyExc_TypeError, "Column: %.100s has no __arrow_c_array__ and no __arrow_c_stream__",
                     Py_TYPE(obj)->tp_name);
    PyErr_Fetch(&type, &value, &traceback); /* the destructors of capsules may run Python code */
    Py_XDECREF(given);
    PyErr_Restore(type, value, traceback);
    return failed;
}

/* ---- Column -------------------------------------------------------------- */

static PyObject *
column_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"", NULL};
    PyObject *obj, *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Column", names, &obj))
        return NULL;
    self = type->tp_alloc(type, 0);
    if (self != NULL && take_object((Column *)self, obj) < 0)
        Py_CLEAR(self);
    return self;
}

static void
column_dealloc(PyObject *self)
{
    struct ArrowArray *array = &((Column *)self)->array;
    PyTypeObject *heap_type = Py_TYPE(self);
    PyObject *type, *value, *traceback;

    PyErr_Fetch(&type, &value, &traceback); /* release may run Python code */
    if (array->release != NULL)
        array->release(array);
    PyErr_Restore(type, value, traceback);
    heap_type->tp_free(self);
    Py_DECREF(heap_type);
}

static PyObject *
column_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const Column *c = (const Column *)self;
    DLTensor t = dlpack_py_cpu_tensor((void *)(uintptr_t)c->data, c->dtype, c->ndim, c->shape, NULL);
    return dlpack_py_produce(self, &t, DLPACK_PY_FLAG_READ_ONLY, args, nargs, kwnames);
}

static PyMethodDef column_methods[] = {
    DLPACK_PY_METHODS(column_dlpack, dlpack_py_cpu_device),
    {NULL, NULL, 0, NULL},
};

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(uintptr_t)(function))

static PyType_Slot column_slots[] = {
    {Py_tp_doc, (void *)"Column(obj, /)\n--\n\nA column of Arrow data, which exports its memory by DLPack."},
    {Py_tp_new, SLOT(column_new)},
    {Py_tp_dealloc, SLOT(column_dealloc)},
    {Py_tp_methods, column_methods},
    {0, NULL},
};

static PyType_Spec column_spec = {"arrow_column.Column", sizeof(Column), 0, Py_TPFLAGS_DEFAULT, column_slots};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &column_spec, NULL);
    int failed;

    if (type == NULL)
        return -1;
    failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
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
    PyModuleDef_HEAD_INIT,
    "arrow_column",
    PyDoc_STR("Columns of Arrow data, exported by DLPack."),
    0,
    NULL,
    module_slots,
    NULL,
    NULL,
    NULL,
};

PyMODINIT_FUNC
PyInit_arrow_column(void)
{
    return PyModuleDef_Init(&module_def);
}

/* arrow: ArrowSchema, ArrowArray and ArrowArrayStream of any content into examples/arrow/arrow_column.c, the only code
 * of this repository that takes Arrow structs. All that is made is released once. An accepted column starts where the
 * offsets of all levels say, and has no nulls in any of them; what has no defect is accepted. Lengths that a buffer
 * cannot have are not backed by memory: nothing may read them. */
#include "embedded.h"
#include "../../examples/arrow/arrow_column.c"

#define MAX_BACKED 1024 /* numbers of a buffer that is really there */

/* ---- Structs of any content --------------------------------------------- */

/* What a struct points to. */
typedef struct Node {
    struct ArrowSchema schema, *schema_children[2];
    struct ArrowArray array, *array_children[2];
    const void *buffers[3];
    void *bitmap, *numbers;
    size_t bytes;  /* of numbers */
    int64_t count; /* of an array: elements of each list; 1 for a struct */
    struct Node *child, *dictionary;
    char format[24];
} Node;

static void
schema_release(struct ArrowSchema *schema)
{
    Node *node = (Node *)schema->private_data;
    CHECK(schema->release == schema_release && live > 0);
    schema->release = NULL;
    live--;
    if (node->child != NULL)
        node->child->schema.release(&node->child->schema);
    free(node->dictionary);
    free(node);
}

static void
array_release(struct ArrowArray *array)
{
    Node *node = (Node *)array->private_data;
    CHECK(array->release == array_release && live > 0);
    array->release = NULL;
    live--;
    if (node->child != NULL)
        node->child->array.release(&node->child->array);
    free(node->bitmap);
    free(node->numbers);
    free(node);
}

/* Pairs of texts, as the Arrow specification wants them: they cannot be checked. */
static const char *
take_metadata(Input *in)
{
    static char text[64];
    static const char *const keys[] = {"ARROW:extension:name", "ARROW:extension:metadata", "", "k"};
    const int32_t wrong = -1;
    const char *key = TAKE(in, keys);
    int32_t pairs = (int32_t)take_below(in, 2), size = (int32_t)strlen(key), value = 3;
    char *at = text;

    memset(text, 0, sizeof(text));
    memcpy(at, &pairs, 4);
    memcpy(at + 4, take(in) < 230 ? &size : &wrong, 4);
    memcpy(at + 8, key, (size_t)size);
    memcpy(at + 8 + size, take(in) < 230 ? &value : &wrong, 4);
    memcpy(at + 12 + size, "abc", 3);
    return text;
}

static const char *const formats[] = {"f",
                                      "i",
                                      "C",
                                      "l",
                                      "g",
                                      "e",
                                      "s",
                                      "+w:2",
                                      "+w:3",
                                      "+w:1",
                                      "+w:0",
                                      "+s",
                                      "c",
                                      "+w:",
                                      "+w:-1",
                                      "+w:2x",
                                      "+w:9223372036854775807",
                                      "+w:99999999999999999999",
                                      "+w:4294967296",
                                      "+w:1152921504606846976",
                                      "n",
                                      "b",
                                      "u",
                                      "+l",
                                      "+vL",
                                      "tdD",
                                      "",
                                      "q",
                                      "+r",
                                      "w:3"};

/* The bytes of a number of this format, 8 for others. */
static size_t
item_bytes(const char *format)
{
    return strchr("cC", *format) != NULL    ? 1
           : strchr("sSe", *format) != NULL ? 2
           : strchr("iIf", *format) != NULL ? 4
                                            : 8;
}

/* The dtype of a format; 0: none. */
static uint32_t
slow_dtype(const char *format)
{
    const uint32_t code = strchr("efg", *format) != NULL    ? kDLFloat
                          : strchr("csil", *format) != NULL ? kDLInt
                                                            : kDLUInt;
    if (strlen(format) != 1 || strchr("cCsSiIlLefg", *format) == NULL)
        return 0;
    return DLPACK_PY_DTYPE(code, (uint32_t)item_bytes(format) * 8u, 1u);
}

/* A schema; lists and structs have a child. The same input makes the array that fits to it. */
static Node *
make_schema(Input *in, int depth)
{
    Node *node = (Node *)calloc(1, sizeof(*node));
    const unsigned kind = take(in), odd = take(in);
    struct ArrowSchema *schema = &node->schema;

    CHECK(node != NULL);
    strcpy(node->format, formats[depth > 9 ? 0 : kind < 128 ? kind % 13 : kind % COUNT(formats)]);
    schema->format = odd == 255 ? NULL : node->format;
    schema->name = odd % 2 != 0 ? "name" : NULL;
    schema->metadata = odd >= 200 && odd < 220 ? take_metadata(in) : NULL;
    schema->flags = odd % 8;
    schema->children = node->schema_children;
    if (node->format[0] == '+' && depth <= 9) {
        node->child = make_schema(in, depth + 1);
        node->schema_children[0] = odd == 254 ? NULL : &node->child->schema;
        node->schema_children[1] = node->schema_children[0];
        schema->n_children = odd == 253 ? 2 : odd == 252 ? 0 : odd == 251 ? -1 : 1;
        if (odd == 250)
            schema->children = NULL;
    }
    if (odd == 249) {
        node->dictionary = (Node *)calloc(1, sizeof(*node));
        schema->dictionary = &node->dictionary->schema;
    }
    schema->release = schema_release;
    schema->private_data = node;
    live++;
    return node;
}

static int64_t
take_length(Input *in, int64_t wanted)
{
    const unsigned kind = take(in);
    return kind < 160 ? wanted : kind < 224 ? (int64_t)(kind % 16) : take_extreme(in);
}

/* An array for a schema; most often it fits, and has the wanted length. */
static Node *
make_array(Input *in, const Node *schema, int64_t wanted, int depth)
{
    Node *node = (Node *)calloc(1, sizeof(*node));
    struct ArrowArray *array = &node->array;
    const unsigned odd = take(in);
    const int is_list = schema->format[0] == '+';
    const size_t item = item_bytes(schema->format);
    Wide end;
    size_t null; /* the only one */

    CHECK(node != NULL);
    strcpy(node->format, schema->format);
    array->length = take_length(in, wanted);
    array->offset = take_length(in, (int64_t)take_below(in, 3));
    array->null_count = odd < 128 ? 0 : odd % 4 == 0 ? -1 : odd % 4 == 1 ? 2 : odd % 4 == 2 ? -2 : 0;
    array->n_buffers = odd == 127 ? 3 : odd == 126 ? -1 : is_list ? 1 : 2;
    array->n_children = odd == 125 ? 2 : is_list ? 1 : 0;
    end = (Wide)array->length + array->offset;
    if (end >= 0 && array->length >= 0 && array->offset >= 0 && end <= MAX_BACKED && !is_list) {
        node->bytes = (size_t)end * item;
        node->numbers = malloc(node->bytes + !node->bytes);
        CHECK(node->numbers != NULL);
        memset(node->numbers, 3, node->bytes);
    }
    if (end >= 0 && end <= MAX_BACKED && array->length >= 0 && array->offset >= 0 && odd % 8 != 7) {
        node->bitmap = malloc(((size_t)end + 7) / 8 + !end);
        CHECK(node->bitmap != NULL);
        memset(node->bitmap, 0xff, ((size_t)end + 7) / 8);
        null = (size_t)take(in) * 5 % ((size_t)end + 2);
        if (odd % 8 <= 1 && null < (size_t)end)
            ((uint8_t *)node->bitmap)[null / 8] ^= (uint8_t)(1 << null % 8);
    }
    node->buffers[0] = node->bitmap;
    node->buffers[1] = odd == 124 ? NULL : node->numbers != NULL ? node->numbers : is_list ? NULL : (void *)arena;
    array->buffers = odd == 123 ? NULL : node->buffers;
    array->children = odd == 122 ? NULL : node->array_children;
    if (is_list && depth <= 9) {
        const int64_t count = strncmp(schema->format, "+w:", 3) == 0 ? strtoll(schema->format + 3, NULL, 10) : 1;
        const Wide length = end * count;
        node->count = count;
        node->child =
            make_array(in, schema->child, length >= 0 && length <= MAX_BACKED ? (int64_t)length : 0, depth + 1);
        node->array_children[0] = odd == 121 ? NULL : &node->child->array;
        node->array_children[1] = node->array_children[0];
    }
    array->release = array_release;
    array->private_data = node;
    live++;
    return node;
}

/* ---- What a column is --------------------------------------------------- */

/* Is one of count elements null, from start on? None is where the count of nulls is 0. */
static int
slow_has_null(const Node *node, Wide start, Wide count)
{
    const Wide first = start + node->array.offset;
    Wide i;
    if (node->array.null_count == 0 || node->bitmap == NULL)
        return 0;
    for (i = first; i < first + count; i++) {
        if ((((uint8_t *)node->bitmap)[(size_t)i / 8] >> (size_t)i % 8 & 1) == 0)
            return 1;
    }
    return 0;
}

/* Has the schema one child, which is there? */
static int
slow_has_child(const Node *node)
{
    return node->child != NULL && node->schema.n_children == 1 && node->schema.children != NULL &&
           node->schema_children[0] != NULL;
}

/* Is an array so as its schema says, and a column: numbers, or lists of a fixed size, of at most 8 dimensions, maybe in
 * a struct, without nulls? -1: unknown, for metadata and for large numbers, for which limits may differ. */
static int
slow_is_column(const Node *schema, const Node *array)
{
    const Wide most = (Wide)1 << 40;
    Wide start = 0, count = array->array.length;
    const struct ArrowArray *a;
    int rank = 1, level, is_number, is_list;

    for (level = 0;; level++, schema = schema->child, array = array->child) {
        a = &array->array;
        is_number = slow_dtype(schema->format) != 0;
        is_list = strncmp(schema->format, "+w:", 3) == 0;
        if (schema->schema.metadata != NULL)
            return -1;
        if (schema->schema.format == NULL || schema->schema.dictionary != NULL)
            return 0;
        if (!is_number && !(level == 0 && strcmp(schema->format, "+s") == 0)) {
            if (!is_list || schema->format[3] == 0 || schema->format[strspn(schema->format, "+w:0123456789")] != 0)
                return 0;
            if (++rank > 8)
                return 0;
        }
        if (a->n_buffers != (is_number ? 2 : 1) || a->n_children != (is_number ? 0 : 1) || a->buffers == NULL)
            return 0;
        if (a->length < 0 || a->offset < 0 || a->null_count < -1 || start + count > a->length)
            return 0;
        if (a->length > most || a->offset > most || array->count > most)
            return -1;
        if (a->null_count > 0 && array->bitmap == NULL)
            return 0;
        if (slow_has_null(array, start, count))
            return 0;
        if (is_number)
            return count == 0 || a->buffers[1] != NULL;
        if (!slow_has_child(schema) || a->children == NULL || array->array_children[0] == NULL)
            return 0;
        start = (start + a->offset) * array->count;
        count *= array->count;
    }
}

/* ---- Capsules and streams ----------------------------------------------- */

static void
schema_destructor(PyObject *capsule)
{
    struct ArrowSchema *schema = (struct ArrowSchema *)PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    if (schema->release != NULL)
        schema->release(schema);
}

static void
array_destructor(PyObject *capsule)
{
    struct ArrowArray *array = (struct ArrowArray *)PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    if (array->release != NULL)
        array->release(array);
    free(array);
}

typedef struct Offer {
    PyObject_HEAD
    Input in;
    int is_column; /* what Column must say; -1: unknown */
} Offer;

static PyTypeObject *offers_array, *offers_stream, *column_type;

static PyObject *
offer_array(PyObject *self, PyObject *unused)
{
    Input in = ((Offer *)self)->in;
    const unsigned kind = take(&in);
    Node *schema, *array;
    struct ArrowArray *moved;
    PyObject *first, *second, *tuple;

    (void)unused;
    if (kind == 255) {
        raise_any(&in);
        return NULL;
    }
    if (kind == 254)
        Py_RETURN_NONE;
    schema = make_schema(&in, 0);
    array = make_array(&in, schema, 1 + (int64_t)take_below(&in, 24), 0);
    ((Offer *)self)->is_column = kind < 248 ? slow_is_column(schema, array) : -1;
    moved = (struct ArrowArray *)malloc(sizeof(*moved));
    CHECK(moved != NULL);
    *moved = array->array;
    first = PyCapsule_New(&schema->schema, kind == 253 ? "arrow_array" : "arrow_schema", schema_destructor);
    second = PyCapsule_New(moved, kind == 252 ? "other" : "arrow_array", array_destructor);
    if (kind == 251)
        schema->schema.release(&schema->schema); /* is freed: put an empty one in its place */
    if (kind == 251) {
        static struct ArrowSchema empty;
        PyCapsule_SetPointer(first, &empty);
    }
    if (kind == 250)
        moved->release(moved);
    tuple = kind == 249   ? PyTuple_Pack(1, first)
            : kind == 248 ? PyTuple_Pack(2, second, first)
                          : PyTuple_Pack(2, first, second);
    Py_DECREF(first);
    Py_DECREF(second);
    return tuple;
}

/* A stream of some arrays of one schema. */
typedef struct Stream {
    Input in, of_schema;
    unsigned kind;
    int chunks;
} Stream;

static int
stream_schema(struct ArrowArrayStream *self, struct ArrowSchema *out)
{
    Stream *stream = (Stream *)self->private_data;
    if (stream->kind == 255)
        return 22;
    stream->of_schema = stream->in;
    *out = make_schema(&stream->in, 0)->schema;
    return 0;
}

static int
stream_next(struct ArrowArrayStream *self, struct ArrowArray *out)
{
    Stream *stream = (Stream *)self->private_data;
    Input in = stream->of_schema;
    Node *schema, *array;
    CHECK(out->release == NULL);
    if (stream->chunks-- == 0)
        return stream->kind == 254 ? 5 : 0;
    if (stream->kind == 253)
        return 12;
    schema = make_schema(&in, 0);
    array = make_array(&stream->in, schema, stream->chunks == 0 ? 20 : 0, 0);
    schema->schema.release(&schema->schema);
    *out = array->array;
    return 0;
}

static const char *
stream_error(struct ArrowArrayStream *self)
{
    return ((Stream *)self->private_data)->kind % 2 != 0 ? "an error of the target" : NULL;
}

static void
stream_release(struct ArrowArrayStream *self)
{
    CHECK(self->release == stream_release);
    free(self->private_data);
    self->release = NULL;
    live--;
}

static void
stream_destructor(PyObject *capsule)
{
    struct ArrowArrayStream *stream =
        (struct ArrowArrayStream *)PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    if (stream->release != NULL)
        stream->release(stream);
    free(stream);
}

static PyObject *
offer_stream(PyObject *self, PyObject *unused)
{
    Input in = ((Offer *)self)->in;
    struct ArrowArrayStream *made = (struct ArrowArrayStream *)calloc(1, sizeof(*made));
    Stream *stream = (Stream *)calloc(1, sizeof(*stream));

    (void)unused;
    CHECK(made != NULL && stream != NULL);
    stream->kind = take(&in);
    stream->chunks = (int)take_below(&in, 4);
    stream->in = in;
    made->get_schema = stream->kind == 252 ? NULL : stream_schema;
    made->get_next = stream->kind == 251 ? NULL : stream_next;
    made->get_last_error = stream->kind == 255 ? NULL : stream_error;
    made->release = stream_release;
    made->private_data = stream;
    live++;
    if (stream->kind == 250)
        stream_release(made);
    return PyCapsule_New(made, stream != NULL && take(&in) == 255 ? "arrow_stream" : "arrow_array_stream",
                         stream_destructor);
}

static void
set_up(void)
{
    static PyMethodDef array_methods[] = {{"__arrow_c_array__", offer_array, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
    static PyMethodDef stream_methods[] = {{"__arrow_c_stream__", offer_stream, METH_NOARGS, NULL},
                                           {NULL, NULL, 0, NULL}};
    PyType_Slot array_slots[] = {{Py_tp_methods, array_methods}, {Py_tp_dealloc, SLOT(object_free)}, {0, NULL}};
    PyType_Slot stream_slots[] = {{Py_tp_methods, stream_methods}, {Py_tp_dealloc, SLOT(object_free)}, {0, NULL}};
    offers_array = make_type("fuzz.Array", sizeof(Offer), array_slots);
    offers_stream = make_type("fuzz.Stream", sizeof(Offer), stream_slots);
    column_type = (PyTypeObject *)PyType_FromSpec(&column_spec);
    CHECK(column_type != NULL);
}

/* A column has an extent for each list, starts where the offsets say, lies in the numbers, and none of it is null. */
static void
check_column(const dlpack_py_view *v, const Node *node)
{
    const DLTensor *t = &v->tensor;
    Wide start = 0, count = node->array.length, item;
    int32_t rank = 1;

    CHECK(v->readonly == DLPACK_PY_READ_ONLY && dlpack_py_is_contiguous(t, 'C'));
    CHECK(t->ndim >= 1 && t->shape[0] == count);
    for (; node->child != NULL; node = node->child) {
        CHECK(start + count <= node->array.length && !slow_has_null(node, start, count));
        if (node->format[1] == 'w')
            CHECK(rank < t->ndim && t->shape[rank++] == node->count);
        start = (start + node->array.offset) * node->count;
        count *= node->count;
    }
    CHECK(rank == t->ndim && dlpack_py_dtype(t) == slow_dtype(node->format));
    CHECK(start + count <= node->array.length && !slow_has_null(node, start, count));
    if (count == 0)
        return;
    item = item_bytes(node->format);
    start = (start + node->array.offset) * item;
    CHECK((Wide)(uintptr_t)dlpack_py_data(v) == (Wide)(uintptr_t)node->buffers[1] + start);
    CHECK(node->numbers == NULL || start + count * item <= (Wide)node->bytes); /* NULL: lengths that are not backed */
}

static void
run(Input *in)
{
    Offer *offer = (Offer *)object_new(take(in) < 128 ? offers_array : offers_stream);
    dlpack_py_want want = dlpack_py_want_any();
    struct ArrowArray *array;
    PyObject *column;
    dlpack_py_view v;
    int error;

    offer->in = *in;
    offer->is_column = -1;
    column = PyObject_CallOneArg((PyObject *)column_type, (PyObject *)offer);
    CHECK(offer->is_column < 0 || offer->is_column == (column != NULL));
    if (column == NULL) {
        error = take_exception();
        CHECK((error & (FOREIGN_ERROR | INTERRUPT | TYPE_ERROR | VALUE_ERROR | BUFFER_ERROR | ATTRIBUTE_ERROR |
                        MEMORY_ERROR | RUNTIME_ERROR)) != 0);
        CHECK(offer->is_column < 0 || error == BUFFER_ERROR);
    }
    else {
        want.alignment = 1;
        if (dlpack_py_consume(column, &want, &v) < 0)
            CHECK(take_exception() == BUFFER_ERROR && offer->is_column < 0); /* too large for a tensor */
        else {
            array = &((Column *)column)->array;
            CHECK(Py_REFCNT(column) == 2); /* the view keeps the column */
            check_view(&v, &want);
            if (array->release != NULL)
                check_column(&v, (Node *)array->private_data);
            else
                CHECK(v.tensor.shape[0] == 0); /* a stream without rows */
            Py_CLEAR(column);
            dlpack_py_release(&v);
        }
        Py_XDECREF(column);
    }
    Py_DECREF(offer);
}

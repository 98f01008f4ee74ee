/* A small array library, written from dlpack.h alone, with a switch for each of many known mistakes. Without a mistake
 * it passes the conformance suite. With a mistake, the test for this mistake fails. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlpack/dlpack.h>

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../aligned.h"

typedef struct DLManagedTensorVersioned Versioned;
typedef DLManagedTensor Legacy;

#define MAX_DIMS 64

/* ---- Mistakes ---------------------------------------------------------------- */

/* clang-format off */
#define MISTAKES(X)                                                                                                   \
    /* The producer. */                                                                                               \
    X(none) X(always_legacy) X(always_versioned) X(version_2_is_exported) X(newer_minor_is_refused)                   \
    X(newer_major_is_refused) X(version_0_gets_a_versioned_capsule) X(keywords_by_identity)                           \
    X(unknown_keywords_are_ignored) X(stream_is_positional) X(copy_keyword_is_unknown)                                \
    X(read_only_is_not_flagged) X(all_data_is_flagged_read_only) X(flags_are_not_initialized)                         \
    X(copy_True_is_ignored) X(copy_True_is_refused) X(copy_is_not_flagged)                                            \
    X(shared_memory_is_flagged_as_a_copy) X(copy_False_copies) X(copy_None_copies)                                    \
    X(copy_of_read_only_is_read_only) X(copy_ignores_strides) X(own_device_is_refused)                                \
    X(device_enum_is_refused) X(dl_device_is_ignored) X(other_device_is_a_ValueError)                                 \
    X(streams_are_accepted_on_the_CPU) X(unexportable_is_a_RuntimeError) X(unexportable_is_exported)                  \
    X(device_is_a_list) X(device_id_is_None) X(device_and_capsule_disagree) X(device_id_is_1)                         \
    X(owner_is_not_kept) X(exports_share_their_shape) X(bool_is_uint8) X(complex_has_two_lanes)                       \
    X(strides_are_NULL) X(strides_are_in_bytes) X(view_begins_at_its_base)                                            \
    X(exported_strides_are_made_positive) X(scalar_has_rank_1) X(empty_array_has_data)                                \
    X(exported_extents_have_32_bits) X(capsule_has_no_destructor) X(destructor_ignores_the_name)                      \
    X(destructor_is_inverted) X(name_is_reused) X(destructor_clears_the_exception)                                    \
    X(deleter_clears_the_exception) X(deleter_needs_the_GIL) X(deleter_needs_the_interpreter) X(struct_leaks)         \
    X(owner_leaks) X(failed_export_leaks) X(manager_ctx_is_NULL)                                                      \
    /* The consumer. */                                                                                               \
    X(no_max_version_is_passed) X(older_producers_are_refused) X(errors_are_swallowed)                                \
    X(TypeErrors_are_swallowed) X(all_TypeErrors_are_retried) X(a_stream_is_passed)                                   \
    X(a_copy_is_always_asked_for) X(copy_True_is_not_passed) X(copy_False_is_not_passed) X(imports_are_copied)        \
    X(legacy_is_read_as_versioned) X(minor_version_is_compared) X(major_version_is_not_checked)                       \
    X(other_major_version_leaks) X(capsule_is_not_renamed) X(deleter_is_never_called)                                 \
    X(deleter_is_called_twice) X(deleter_is_called_at_once) X(view_does_not_keep_the_memory)                          \
    X(empty_tensor_is_not_deleted) X(consumed_capsule_is_taken) X(any_name_is_taken) X(refused_tensor_leaks)          \
    X(refused_tensor_is_deleted_twice) X(NULL_deleter_is_called) X(struct_is_changed) X(byte_offset_is_ignored)       \
    X(NULL_strides_are_followed) X(imported_strides_are_made_positive) X(strides_are_ignored)                         \
    X(stride_of_extent_1_is_judged) X(NULL_shape_of_a_scalar_is_refused) X(NULL_data_is_refused)                      \
    X(data_of_an_empty_tensor_is_read) X(shape_is_read_after_the_deleter) X(lanes_are_ignored)                        \
    X(bits_are_ignored) X(unknown_codes_are_taken_for_uint) X(signs_are_ignored)                                      \
    X(imported_extents_have_32_bits) X(sizes_may_overflow) X(negative_extents_are_taken) X(devices_are_ignored)       \
    X(read_only_flag_is_lost) X(all_imports_are_read_only) X(read_only_flag_is_lost_on_export)                        \
    X(unknown_flags_are_refused) X(export_forgets_byte_offset) X(import_leaks) X(no_method_is_a_TypeError)            \
    X(result_is_not_checked) X(NULL_without_an_exception) X(refusal_loses_its_exception)                              \
    X(copied_tensor_is_not_deleted) X(rename_race)                                                                    \
    /* The exchange table. */                                                                                         \
    X(table_is_an_int) X(table_has_another_name) X(table_says_1_0) X(table_lacks_a_function)                          \
    X(owned_tensor_begins_at_its_base) X(borrowed_tensor_begins_at_its_base) X(table_has_NULL_strides)                \
    X(table_loses_read_only) X(table_exports_what_the_method_refuses) X(stream_is_left_unset)                         \
    X(table_failure_sets_no_exception) X(to_object_never_deletes) X(to_object_ignores_byte_offset)                    \
    X(allocator_does_not_report) X(allocator_reports_twice) X(allocator_ignores_the_shape)                            \
    X(instance_table_is_used) X(table_version_is_not_checked) X(NULL_functions_are_called)                            \
    X(failure_of_a_table_is_ignored) X(table_name_is_not_checked) X(prev_api_is_refused)                              \
    X(table_tensor_is_deleted_twice) X(override_is_ignored)                                                           \
    /* Of public reports about libraries. */                                                                          \
    X(copy_of_a_view_is_shared) X(copy_of_a_view_is_not_flagged) X(name_is_compared_by_address)                       \
    X(destructor_leaves_an_exception) X(destructor_replaces_the_exception) X(lent_tensors_share_their_shape)          \
    X(float16_is_exported_as_bfloat16) X(float16_is_imported_as_bfloat16) X(from_dlpack_has_no_device)                \
    X(copy_False_falls_back_to_a_copy) X(source_is_leaked) X(capsule_is_leaked) X(capsule_is_renamed_otherwise)       \
    X(error_of_the_device_leaks) X(same_memory_is_taken_once) X(first_part_leaks) X(first_part_is_deleted_twice)      \
    X(exported_strides_have_32_bits)
/* clang-format on */

#define NUMBER(name) name,
enum mistake { MISTAKES(NUMBER) MISTAKES_END };
#define NAME(name) #name,
static const char *const mistake_names[] = {MISTAKES(NAME)};

static enum mistake mistake;

/* Mistakes in one field on one path, named "path.field": of exports, and of imports. */
/* clang-format off */
#define EXPORT_PATHS(X)                                                                                               \
    X(legacy) X(versioned) X(legacy_copy) X(versioned_copy) X(legacy_view) X(versioned_view) X(legacy_copy_of_view)   \
    X(versioned_copy_of_view) X(read_only) X(read_only_view) X(legacy_of_import) X(versioned_of_import) X(owned)      \
    X(owned_view) X(owned_read_only) X(owned_of_import) X(lent) X(lent_view) X(allocated)
#define EXPORT_FIELDS(X)                                                                                              \
    X(data) X(byte_offset) X(offset_twice) X(ndim) X(shape) X(strides) X(no_strides) X(code) X(bits) X(lanes)         \
    X(device_type) X(device_id) X(read_only_flag) X(copied_flag) X(unknown_flag) X(major) X(minor) X(no_deleter)      \
    X(leaked_owner) X(leaked_struct) X(owner_not_kept) X(deleter_with_the_GIL)
#define IMPORT_PATHS(X)                                                                                               \
    X(from_versioned) X(from_legacy) X(from_versioned_capsule) X(from_legacy_capsule) X(by_copy) X(by_table)          \
    X(to_object)
#define IMPORT_FIELDS(X)                                                                                              \
    X(late_data) X(no_offset) X(double_offset) X(short_offset) X(short_shape) X(no_strides_read) X(short_strides)     \
    X(positive_strides) X(other_code) X(no_lanes) X(no_device) X(lost_read_only) X(other_major) X(never_deleted)      \
    X(deleted_twice) X(deleted_at_once) X(NULL_called) X(refused_leaks)
/* clang-format on */

#define PATH(name) path_##name,
#define FIELD(name) field_##name,
enum { path_none, EXPORT_PATHS(PATH) IMPORT_PATHS(PATH) };
enum { field_none, EXPORT_FIELDS(FIELD) IMPORT_FIELDS(FIELD) };
#define TEXT(name) #name,
static const char *const export_paths[] = {EXPORT_PATHS(TEXT)}, *const export_fields[] = {EXPORT_FIELDS(TEXT)};
static const char *const import_paths[] = {IMPORT_PATHS(TEXT)}, *const import_fields[] = {IMPORT_FIELDS(TEXT)};
#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static int wrong_path, wrong_field;

static int
is_wrong(int path, int field)
{
    return path == wrong_path && field == wrong_field;
}

/* ---- Memory ------------------------------------------------------------------ */

/* Memory that arrays and exports share. Its functions need no interpreter. */
typedef struct {
    int references;
    void *memory; /* of aligned_new, or NULL */
    size_t size;
    Versioned *versioned; /* an imported tensor, or NULL */
    Legacy *legacy;
    int path;
} Block;

static Block *
block_new(size_t size)
{
    Block *block = (Block *)calloc(1, sizeof(Block));
    if (block == NULL)
        return NULL;
    block->references = 1;
    block->size = size;
    if (size > 0 && (block->memory = aligned_new(64, size)) == NULL) {
        free(block);
        return NULL;
    }
    return block;
}

static void
delete_imported(Versioned *versioned, Legacy *legacy, int path)
{
    int times = mistake == deleter_is_called_twice || is_wrong(path, field_deleted_twice) ? 2 : 1;
    const int calls_NULL = mistake == NULL_deleter_is_called || is_wrong(path, field_NULL_called);
    if (mistake == deleter_is_never_called || is_wrong(path, field_never_deleted))
        return;
    for (; times > 0; times--) {
        if (versioned != NULL && (versioned->deleter != NULL || calls_NULL))
            versioned->deleter(versioned);
        if (legacy != NULL && (legacy->deleter != NULL || calls_NULL))
            legacy->deleter(legacy);
    }
}

static void
block_drop(Block *block)
{
    if (block == NULL || __atomic_sub_fetch(&block->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    delete_imported(block->versioned, block->legacy, block->path);
    if (block->memory != NULL)
        memset(block->memory, 0xdd, block->size);
    aligned_free(block->memory);
    free(block);
}

static Block *
block_keep(Block *block)
{
    (void)__atomic_add_fetch(&block->references, 1, __ATOMIC_ACQ_REL);
    return block;
}

/* ---- Arrays ------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    Block *block;
    char *base;   /* the first byte of the array that this array is a view of */
    int64_t skip; /* bytes from base to the first element */
    DLDataType dtype;
    int ndim;
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    int readonly;
    int unexportable;
    int is_view;
} Array;

static PyTypeObject array_type;

static int64_t
itemsize(const Array *a)
{
    return a->dtype.bits / 8;
}

static int64_t
element_count(const Array *a)
{
    int64_t count = 1;
    int i;
    for (i = 0; i < a->ndim; i++)
        count *= a->shape[i];
    return count;
}

static void
array_dealloc(PyObject *op)
{
    block_drop(((Array *)op)->block);
    Py_TYPE(op)->tp_free(op);
}

static Array *
array_alloc(const DLDataType *dtype, int ndim, const int64_t *shape, Block *block, void *data)
{
    Array *self = (Array *)array_type.tp_alloc(&array_type, 0);
    int64_t stride = 1;
    int i;

    if (self == NULL || block == NULL) {
        Py_XDECREF(self);
        block_drop(block);
        return (Array *)PyErr_NoMemory();
    }
    self->block = block;
    self->base = (char *)data;
    self->dtype = *dtype;
    self->ndim = ndim;
    for (i = ndim - 1; i >= 0; i--) {
        self->shape[i] = shape[i];
        self->strides[i] = stride;
        stride *= shape[i];
    }
    return self;
}

/* Copies the elements of an array in row-major order. */
static void
gather(const Array *a, char *out)
{
    int64_t index[MAX_DIMS] = {0}, at;
    const int64_t size = itemsize(a);
    int i;

    if (element_count(a) == 0)
        return;
    if (mistake == copy_ignores_strides) {
        memcpy(out, a->base + a->skip, (size_t)(element_count(a) * size));
        return;
    }
    for (;;) {
        for (at = 0, i = 0; i < a->ndim; i++)
            at += index[i] * a->strides[i];
        memcpy(out, a->base + a->skip + at * size, (size_t)size);
        out += size;
        for (i = a->ndim - 1; i >= 0 && ++index[i] == a->shape[i]; i--)
            index[i] = 0;
        if (i < 0)
            return;
    }
}

static Array *
array_copy(const Array *a)
{
    Block *block = block_new((size_t)(element_count(a) * itemsize(a)));
    if (block == NULL)
        return (Array *)PyErr_NoMemory();
    gather(a, (char *)block->memory);
    return array_alloc(&a->dtype, a->ndim, a->shape, block, block->memory);
}

static int
parse_extents(PyObject *tuple, int64_t *extents)
{
    Py_ssize_t i, count = PyTuple_Size(tuple);
    if (count < 0 || count > MAX_DIMS)
        return -1;
    for (i = 0; i < count; i++)
        extents[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    return PyErr_Occurred() ? -1 : (int)count;
}

/* array(dtype, shape, data, readonly=False): dtype is (code, bits, lanes). */
static PyObject *
make_array(PyObject *Py_UNUSED(module), PyObject *args)
{
    int64_t shape[MAX_DIMS];
    DLDataType dtype;
    PyObject *extents;
    const char *data;
    Py_ssize_t size;
    int ndim, readonly = 0, code, bits, lanes;
    Block *block;
    Array *self;

    if (!PyArg_ParseTuple(args, "(iii)O!y#|p", &code, &bits, &lanes, &PyTuple_Type, &extents, &data, &size,
                          &readonly) ||
        (ndim = parse_extents(extents, shape)) < 0)
        return NULL;
    dtype.code = (uint8_t)code;
    dtype.bits = (uint8_t)bits;
    dtype.lanes = (uint16_t)lanes;
    block = block_new((size_t)size);
    if (block == NULL)
        return PyErr_NoMemory();
    if (size > 0)
        memcpy(block->memory, data, (size_t)size);
    self = array_alloc(&dtype, ndim, shape, block, block->memory);
    if (self != NULL)
        self->readonly = readonly;
    return (PyObject *)self;
}

/* view(shape, strides, first): first and strides count elements. */
static PyObject *
array_view(PyObject *op, PyObject *args)
{
    const Array *self = (const Array *)op;
    PyObject *shape, *strides;
    long long first;
    Array *view;

    if (!PyArg_ParseTuple(args, "O!O!L", &PyTuple_Type, &shape, &PyTuple_Type, &strides, &first))
        return NULL;
    if (mistake == view_does_not_keep_the_memory) {
        view = array_alloc(&self->dtype, 0, NULL, block_new(0), self->base);
    }
    else {
        view = array_alloc(&self->dtype, 0, NULL, block_keep(self->block), self->base);
    }
    if (view == NULL)
        return NULL;
    view->ndim = parse_extents(shape, view->shape);
    if (view->ndim < 0 || parse_extents(strides, view->strides) < 0)
        Py_CLEAR(view);
    else {
        view->skip = self->skip + first * itemsize(self);
        view->readonly = self->readonly;
        view->is_view = 1;
    }
    return (PyObject *)view;
}

static PyObject *
array_tobytes(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Array *self = (const Array *)op;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(element_count(self) * itemsize(self)));
    const enum mistake before = mistake;
    if (bytes != NULL) {
        mistake = none; /* read the elements of the array correctly */
        gather(self, PyBytes_AS_STRING(bytes));
        mistake = before;
    }
    return bytes;
}

static PyObject *
tuple_of(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    int i;
    for (i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, PyLong_FromLongLong(numbers[i]));
    return tuple;
}

/* describe(): (pointer, shape, strides, readonly, (code, bits, lanes)). */
static PyObject *
array_describe(PyObject *op, PyObject *Py_UNUSED(unused))
{
    const Array *self = (const Array *)op;
    return Py_BuildValue("NNNN(iii)", PyLong_FromVoidPtr(self->base + self->skip), tuple_of(self->shape, self->ndim),
                         tuple_of(self->strides, self->ndim), PyBool_FromLong(self->readonly), (int)self->dtype.code,
                         (int)self->dtype.bits, (int)self->dtype.lanes);
}

/* forbid(): the array cannot be exported from now on. */
static PyObject *
array_forbid(PyObject *op, PyObject *Py_UNUSED(unused))
{
    ((Array *)op)->unexportable = 1;
    Py_INCREF(op);
    return op;
}

/* ---- Export ------------------------------------------------------------------- */

typedef struct {
    union {
        Versioned versioned;
        Legacy legacy;
    } managed;
    Block *block;
    int path;
    int64_t shape[MAX_DIMS + 1], strides[MAX_DIMS + 1];
} Export;

static int64_t shared_shape[MAX_DIMS + 1], shared_strides[MAX_DIMS + 1];

static void
free_export(void *managed)
{
    Export *export_ = (Export *)managed;
    if (mistake == deleter_needs_the_GIL || is_wrong(export_->path, field_deleter_with_the_GIL))
        (void)PyThreadState_Get(); /* ends the process without a thread state */
    if (mistake == deleter_needs_the_interpreter)
        PyGILState_Release(PyGILState_Ensure());
    if (mistake == deleter_clears_the_exception)
        PyErr_Clear();
    if (mistake == exports_share_their_shape)
        memset(shared_shape, 0, sizeof(shared_shape));
    if (mistake != owner_leaks && mistake != owner_is_not_kept && !is_wrong(export_->path, field_leaked_owner) &&
        !is_wrong(export_->path, field_owner_not_kept))
        block_drop(export_->block);
    if (mistake != struct_leaks && !is_wrong(export_->path, field_leaked_struct))
        free(export_);
}

static void
free_versioned(Versioned *managed)
{
    free_export(managed);
}

static void
free_legacy(Legacy *managed)
{
    free_export(managed);
}

/* Allocates memory that nothing frees. */
static void
leak(size_t size)
{
    static void *volatile leaked;
    leaked = malloc(size);
    if (leaked != NULL)
        memset(leaked, 1, size);
}

static int
refuse(const Array *self)
{
    if (!self->unexportable || mistake == unexportable_is_exported)
        return 0;
    if (mistake == failed_export_leaks)
        leak(sizeof(Export));
    PyErr_SetString(mistake == unexportable_is_a_RuntimeError ? PyExc_RuntimeError : PyExc_BufferError,
                    "the array cannot be exported");
    return -1;
}

/* Fills a tensor; shape and strides have room for all dimensions. */
static void
fill(const Array *self, DLTensor *t, int64_t *shape, int64_t *strides)
{
    const int is_empty = element_count(self) == 0;
    int i;

    memset(t, 0, sizeof(*t));
    t->data = mistake == view_begins_at_its_base || mistake == export_forgets_byte_offset ? self->base
                                                                                          : self->base + self->skip;
    if (is_empty && mistake != empty_array_has_data)
        t->data = NULL;
    if (is_empty && mistake == empty_array_has_data)
        t->data = &array_type;
    t->device.device_type = kDLCPU;
    t->device.device_id = mistake == device_id_is_1;
    if (mistake == device_and_capsule_disagree)
        t->device.device_type = kDLCUDAHost;
    t->dtype = self->dtype;
    if (t->dtype.code == kDLFloat && t->dtype.bits == 16 && mistake == float16_is_exported_as_bfloat16)
        t->dtype.code = kDLBfloat;
    if (t->dtype.code == kDLBool && mistake == bool_is_uint8)
        t->dtype.code = kDLUInt;
    if (t->dtype.code == kDLComplex && mistake == complex_has_two_lanes) {
        t->dtype.bits = (uint8_t)(t->dtype.bits / 2);
        t->dtype.lanes = 2;
    }
    t->ndim = self->ndim;
    t->shape = shape;
    t->strides = mistake == strides_are_NULL ? NULL : strides;
    for (i = 0; i < self->ndim; i++) {
        shape[i] = mistake == exported_extents_have_32_bits ? (int32_t)self->shape[i] : self->shape[i];
        strides[i] = self->strides[i];
        if (mistake == strides_are_in_bytes)
            strides[i] *= itemsize(self);
        if (mistake == exported_strides_are_made_positive && strides[i] < 0)
            strides[i] = -strides[i];
        if (mistake == exported_strides_have_32_bits)
            strides[i] = (int32_t)strides[i];
    }
    if (self->ndim == 0 && mistake == scalar_has_rank_1) {
        t->ndim = 1;
        shape[0] = strides[0] = 1;
    }
}

/* Makes the mistakes of a path in a tensor; versioned is NULL if the tensor is of another form. */
static void
spoil(const Array *self, int path, DLTensor *t, Versioned *versioned)
{
    if (path != wrong_path)
        return;
    switch (wrong_field) {
    case field_data: t->data = (char *)t->data + itemsize(self); break;
    case field_byte_offset: t->byte_offset = (uint64_t)itemsize(self); break;
    case field_offset_twice: t->byte_offset = (uint64_t)(self->skip != 0 ? self->skip : itemsize(self)); break;
    case field_ndim:
        t->shape[t->ndim] = t->strides[t->ndim] = 1;
        t->ndim++;
        break;
    case field_shape:
        if (t->ndim > 0)
            t->shape[0]--;
        break;
    case field_strides:
        if (t->ndim > 0)
            t->strides[t->ndim - 1] = 0;
        break;
    case field_no_strides: t->strides = NULL; break;
    case field_code: t->dtype.code = t->dtype.code == kDLFloat ? kDLInt : kDLFloat; break;
    case field_bits: t->dtype.bits = (uint8_t)(t->dtype.bits / 2); break;
    case field_lanes: t->dtype.lanes = 0; break;
    case field_device_type: t->device.device_type = kDLCUDAHost; break;
    case field_device_id: t->device.device_id = 1; break;
    case field_read_only_flag: versioned->flags ^= DLPACK_FLAG_BITMASK_READ_ONLY; break;
    case field_copied_flag: versioned->flags ^= DLPACK_FLAG_BITMASK_IS_COPIED; break;
    case field_unknown_flag: versioned->flags |= UINT64_C(1) << 40; break;
    case field_major: versioned->version.major = 2; break;
    case field_minor: versioned->version.minor = 0xdeadbeef; break;
    default: break;
    }
}

/* The path of an export; form is that of the array itself, and the next paths are those of its copy, ... */
static int
path_of(const Array *self, int is_versioned, int copies)
{
    if (self->block->versioned != NULL || self->block->legacy != NULL)
        return copies ? path_none : is_versioned ? path_versioned_of_import : path_legacy_of_import;
    if (self->readonly && !copies)
        return self->is_view ? path_read_only_view : path_read_only;
    if (self->is_view && copies)
        return is_versioned ? path_versioned_copy_of_view : path_legacy_copy_of_view;
    if (self->is_view)
        return is_versioned ? path_versioned_view : path_legacy_view;
    if (copies)
        return is_versioned ? path_versioned_copy : path_legacy_copy;
    return is_versioned ? path_versioned : path_legacy;
}

/* A managed tensor of either form that shares the array's block. */
static Export *
export_array(Array *self, int is_versioned, uint64_t flags, int path)
{
    Export *export_ = (Export *)calloc(1, sizeof(Export));
    DLTensor *t;

    if (export_ == NULL)
        return (Export *)PyErr_NoMemory();
    export_->path = path;
    export_->block =
        mistake == owner_is_not_kept || is_wrong(path, field_owner_not_kept) ? self->block : block_keep(self->block);
    if (is_versioned) {
        Versioned *managed = &export_->managed.versioned;
        managed->version.major = mistake == version_2_is_exported ? 2 : DLPACK_MAJOR_VERSION;
        managed->version.minor = DLPACK_MINOR_VERSION;
        managed->manager_ctx = mistake == manager_ctx_is_NULL ? NULL : export_;
        managed->deleter = free_versioned;
        if (self->readonly && mistake != read_only_is_not_flagged)
            flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
        if (self->block->versioned != NULL && mistake == read_only_flag_is_lost_on_export)
            flags &= ~(uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
        if (mistake == all_data_is_flagged_read_only)
            flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
        managed->flags = mistake == flags_are_not_initialized ? flags | 0xf0 : flags;
        t = &managed->dl_tensor;
    }
    else {
        Legacy *managed = &export_->managed.legacy;
        managed->manager_ctx = mistake == manager_ctx_is_NULL ? NULL : export_;
        managed->deleter = free_legacy;
        t = &managed->dl_tensor;
    }
    fill(self, t, mistake == exports_share_their_shape ? shared_shape : export_->shape, export_->strides);
    spoil(self, path, t, is_versioned ? &export_->managed.versioned : NULL);
    if (is_wrong(path, field_no_deleter)) {
        export_->managed.versioned.deleter = is_versioned ? NULL : export_->managed.versioned.deleter;
        export_->managed.legacy.deleter = is_versioned ? export_->managed.legacy.deleter : NULL;
    }
    return export_;
}

static const char *const capsule_names[] = {"dltensor", "dltensor_versioned"};

static void
call_deleter(const char *name, void *managed)
{
    if (name != NULL && strstr(name, "_versioned") != NULL) {
        if (((Versioned *)managed)->deleter != NULL)
            ((Versioned *)managed)->deleter((Versioned *)managed);
    }
    else if (((Legacy *)managed)->deleter != NULL) {
        ((Legacy *)managed)->deleter((Legacy *)managed);
    }
}

static void
drop_capsule(PyObject *capsule)
{
    const char *name = PyCapsule_GetName(capsule);
    const int is_used = mistake == name_is_compared_by_address
                            ? name != NULL && name != capsule_names[0] && name != capsule_names[1]
                            : name != NULL && strncmp(name, "used_", 5) == 0;
    void *managed = PyCapsule_GetPointer(capsule, name);

    if (mistake == destructor_clears_the_exception)
        PyErr_Clear();
    if (mistake == destructor_is_inverted ? !is_used : is_used && mistake != destructor_ignores_the_name)
        return;
    call_deleter(name, managed);
    if (mistake == destructor_leaves_an_exception || (mistake == destructor_replaces_the_exception && PyErr_Occurred()))
        PyErr_SetString(PyExc_RuntimeError, "in the destructor");
}

static char reused_name[32];

static int
parse_pair(PyObject *pair, const char *what, long *first, long *second)
{
    PyObject *one, *two;
    int overflow, other;

    if (!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2) {
        (void)PyErr_Format(PyExc_TypeError, "%s must be a tuple of two integers, not %R", what, pair);
        return -1;
    }
    one = PyNumber_Index(PyTuple_GET_ITEM(pair, 0));
    two = one == NULL ? NULL : PyNumber_Index(PyTuple_GET_ITEM(pair, 1));
    if (two == NULL) {
        Py_XDECREF(one);
        return -1;
    }
    *first = PyLong_AsLongAndOverflow(one, &overflow);
    *second = PyLong_AsLongAndOverflow(two, &other);
    if (overflow)
        *first = overflow > 0 ? LONG_MAX : LONG_MIN;
    if (other)
        *second = other > 0 ? LONG_MAX : LONG_MIN;
    Py_DECREF(one);
    Py_DECREF(two);
    return 0;
}

static PyObject *keyword_names[4]; /* interned: stream, max_version, dl_device, copy */

static PyObject *
array_dlpack(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Array *self = (Array *)op, *source = self;
    PyObject *values[4] = {Py_None, Py_None, Py_None, Py_None}, *capsule;
    long major = 0, minor = 0, type = kDLCPU, id = 0;
    int is_versioned, copies;
    Py_ssize_t i, k;
    const char *name;
    Export *export_;

    if (nargs > 0 && mistake != stream_is_positional)
        return PyErr_Format(PyExc_TypeError, "__dlpack__ takes no positional arguments");
    for (i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *given = PyTuple_GET_ITEM(names, i);
        for (k = 0; k < 4; k++) {
            if (mistake == copy_keyword_is_unknown && k == 3)
                continue;
            if (given == keyword_names[k] ||
                (mistake != keywords_by_identity && PyUnicode_Compare(given, keyword_names[k]) == 0)) {
                values[k] = args[nargs + i];
                break;
            }
        }
        if (k == 4 && mistake != unknown_keywords_are_ignored && mistake != keywords_by_identity)
            return PyErr_Format(PyExc_TypeError, "__dlpack__ got an unexpected keyword argument '%U'", given);
    }
    if (values[0] != Py_None && mistake != streams_are_accepted_on_the_CPU)
        return PyErr_Format(PyExc_ValueError, "stream must be None on the CPU, not %R", values[0]);
    if (values[1] != Py_None && parse_pair(values[1], "max_version", &major, &minor) < 0)
        return NULL;
    if (values[2] != Py_None && parse_pair(values[2], "dl_device", &type, &id) < 0)
        return NULL;
    if (values[3] != Py_None && !PyBool_Check(values[3]))
        return PyErr_Format(PyExc_TypeError, "copy must be None or a bool, not %R", values[3]);
    if (values[2] != Py_None && mistake == own_device_is_refused)
        return PyErr_Format(PyExc_BufferError, "dl_device is refused");
    if (values[2] != Py_None && mistake == device_enum_is_refused && !PyLong_CheckExact(PyTuple_GET_ITEM(values[2], 0)))
        return PyErr_Format(PyExc_TypeError, "dl_device must be a tuple of two ints");
    if ((type != kDLCPU || id != 0) && mistake != dl_device_is_ignored)
        return PyErr_Format(mistake == other_device_is_a_ValueError ? PyExc_ValueError : PyExc_BufferError,
                            "the array is on the CPU, dl_device is %R", values[2]);
    if (refuse(self) < 0)
        return NULL;
    if ((major == 1 && minor > 3 && mistake == newer_minor_is_refused) ||
        (major > 1 && mistake == newer_major_is_refused))
        return PyErr_Format(PyExc_BufferError, "max_version %R is unknown", values[1]);
    is_versioned = major >= 1 || (values[1] != Py_None && mistake == version_0_gets_a_versioned_capsule);
    if (mistake == always_legacy || mistake == always_versioned)
        is_versioned = mistake == always_versioned;
    copies = values[3] == Py_True && mistake != copy_True_is_ignored &&
             (mistake != copy_of_a_view_is_shared || !self->is_view);
    if (copies && mistake == copy_True_is_refused)
        return PyErr_Format(PyExc_BufferError, "copy=True is not supported");
    if ((values[3] == Py_False && mistake == copy_False_copies) ||
        (values[3] == Py_None && mistake == copy_None_copies))
        copies = 1;
    if (!is_versioned && self->readonly && !copies)
        return PyErr_Format(PyExc_BufferError, "the array is read-only, and a legacy capsule cannot say so");
    if (copies) {
        source = array_copy(self);
        if (source == NULL)
            return NULL;
        source->readonly = self->readonly && mistake == copy_of_read_only_is_read_only;
    }
    export_ = export_array(source, is_versioned,
                           ((copies || values[3] == Py_True) && mistake != copy_is_not_flagged &&
                            (mistake != copy_of_a_view_is_not_flagged || !self->is_view)) ||
                                   (!copies && mistake == shared_memory_is_flagged_as_a_copy)
                               ? DLPACK_FLAG_BITMASK_IS_COPIED
                               : 0,
                           path_of(self, is_versioned, copies));
    if (copies)
        Py_DECREF(source);
    if (export_ == NULL)
        return NULL;
    name = capsule_names[is_versioned];
    if (mistake == name_is_reused) {
        static int turn;
        strcpy(reused_name, turn++ % 2 ? "a name of something else" : name);
        name = reused_name;
    }
    capsule = PyCapsule_New(export_, name, mistake == capsule_has_no_destructor ? NULL : drop_capsule);
    if (capsule == NULL)
        free_export(export_);
    return capsule;
}

static PyObject *
array_dlpack_device(PyObject *Py_UNUSED(op), PyObject *Py_UNUSED(unused))
{
    if (mistake == device_is_a_list)
        return Py_BuildValue("[ii]", kDLCPU, 0);
    if (mistake == device_id_is_None)
        return Py_BuildValue("(iO)", kDLCPU, Py_None);
    return Py_BuildValue("(ii)", kDLCPU, mistake == device_id_is_1);
}

static PyMethodDef array_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))array_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__dlpack_device__", array_dlpack_device, METH_NOARGS, NULL},
    {"view", array_view, METH_VARARGS, NULL},
    {"tobytes", array_tobytes, METH_NOARGS, NULL},
    {"describe", array_describe, METH_NOARGS, NULL},
    {"forbid", array_forbid, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject array_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "wrongarray.Array",
    .tp_basicsize = sizeof(Array),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_dealloc = array_dealloc,
    .tp_methods = array_methods,
};

/* ---- Import --------------------------------------------------------------------- */

/* Whether the library knows the dtype. */
static int
check_dtype(const DLDataType *dtype)
{
    const uint8_t code = dtype->code, bits = dtype->bits;
    const int is_whole = bits == 8 || bits == 16 || bits == 32 || bits == 64;

    if (dtype->lanes != 1 && mistake != lanes_are_ignored)
        return 0;
    if (mistake == bits_are_ignored && code == kDLBool)
        return 1;
    return ((code == kDLInt || code == kDLUInt) && is_whole) || (code == kDLFloat && is_whole && bits > 8) ||
           (code == kDLBool && bits == 8) || (code == kDLComplex && (bits == 64 || bits == 128)) ||
           (code == kDLBfloat && bits == 16) || (mistake == unknown_codes_are_taken_for_uint && is_whole);
}

/* 0, or -1 with BufferError. Multiplies with overflow checks: the fields of a tensor may have any value. */
static int
check_tensor(const DLTensor *t, uint64_t flags, int path)
{
    int64_t count = 1, reach = 0, low = 0, step;
    int i, is_empty = 0;

    if (t->ndim < 0 || t->ndim > MAX_DIMS || (t->ndim > 0 && t->shape == NULL)) {
        PyErr_SetString(PyExc_BufferError, "ndim or shape is wrong");
        return -1;
    }
    if (t->device.device_type != kDLCPU && mistake != devices_are_ignored && !is_wrong(path, field_no_device)) {
        (void)PyErr_Format(PyExc_BufferError, "device type %d is not supported", (int)t->device.device_type);
        return -1;
    }
    if (!(check_dtype(&t->dtype) || (is_wrong(path, field_no_lanes) && t->dtype.lanes == 2)) ||
        (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED && t->dtype.bits < 8)) {
        (void)PyErr_Format(PyExc_BufferError, "dtype (%d, %d, %d) is not supported", (int)t->dtype.code,
                           (int)t->dtype.bits, (int)t->dtype.lanes);
        return -1;
    }
    if (flags > 7 && mistake == unknown_flags_are_refused) {
        PyErr_SetString(PyExc_BufferError, "unknown flags");
        return -1;
    }
    if (mistake == minor_version_is_compared && flags == UINT64_MAX) /* set by the caller */
        return -1;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0 && mistake != negative_extents_are_taken) {
            PyErr_SetString(PyExc_BufferError, "an extent is negative");
            return -1;
        }
        is_empty |= t->shape[i] == 0;
    }
    if (mistake == NULL_shape_of_a_scalar_is_refused && t->shape == NULL) {
        PyErr_SetString(PyExc_BufferError, "shape is NULL");
        return -1;
    }
    if (is_empty && (mistake != NULL_data_is_refused || t->data != NULL))
        return 0;
    if (t->data == NULL) {
        PyErr_SetString(PyExc_BufferError, "data is NULL");
        return -1;
    }
    if (mistake == sizes_may_overflow)
        return 0;
    for (i = 0; i < t->ndim; i++) {
        const int64_t stride = t->strides == NULL ? 0 : t->strides[i];
        if (__builtin_mul_overflow(count, t->shape[i] < 1 ? 1 : t->shape[i], &count) ||
            __builtin_mul_overflow(t->shape[i] - 1, stride, &step) ||
            __builtin_add_overflow(step < 0 ? low : reach, step, step < 0 ? &low : &reach)) {
            PyErr_SetString(PyExc_BufferError, "the tensor is too large");
            return -1;
        }
        if (mistake == stride_of_extent_1_is_judged && t->shape[i] == 1 && stride != 0 && stride != 1 && stride != 6) {
            PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous");
            return -1;
        }
    }
    if (count > INT64_MAX / 16 || reach > INT64_MAX / 32 || low < INT64_MIN / 32) {
        PyErr_SetString(PyExc_BufferError, "the tensor is too large");
        return -1;
    }
    return 0;
}

/* An array of a tensor that passed check_tensor. The block owns the managed tensor. */
static Array *
array_of(DLTensor *t, uint64_t flags, int is_legacy, Versioned *versioned, Legacy *legacy, int path)
{
    Block *block = block_new(0);
    int64_t compact = 1;
    Array *self;
    int i;

    if (block == NULL)
        return (Array *)PyErr_NoMemory();
    block->versioned = versioned;
    block->legacy = legacy;
    block->path = path;
    self = array_alloc(&t->dtype, 0, NULL, block, t->data);
    if (self == NULL)
        return NULL;
    self->skip = mistake == byte_offset_is_ignored ? 0 : (int64_t)t->byte_offset;
    if (is_wrong(path, field_no_offset))
        self->skip = 0;
    if (is_wrong(path, field_double_offset))
        self->skip *= 2;
    if (is_wrong(path, field_short_offset))
        self->skip = (int32_t)self->skip;
    if (is_wrong(path, field_late_data))
        self->skip += itemsize(self);
    self->ndim = t->ndim;
    if (is_wrong(path, field_no_lanes))
        self->dtype.lanes = 1;
    if (is_wrong(path, field_other_code) && self->dtype.code <= kDLUInt)
        self->dtype.code = (uint8_t)(1 - self->dtype.code);
    if (t->dtype.code == kDLFloat && t->dtype.bits == 16 && mistake == float16_is_imported_as_bfloat16)
        self->dtype.code = kDLBfloat;
    if (mistake == signs_are_ignored && t->dtype.code == kDLUInt)
        self->dtype.code = kDLInt;
    if (mistake == bits_are_ignored || mistake == lanes_are_ignored)
        self->dtype.lanes = 1;
    if (mistake == bits_are_ignored && t->dtype.code == kDLBool)
        self->dtype.bits = 8;
    if (mistake == unknown_codes_are_taken_for_uint && t->dtype.code > kDLBool)
        self->dtype.code = t->dtype.code == kDLBfloat ? kDLBfloat : kDLUInt;
    for (i = t->ndim - 1; i >= 0; i--) {
        const int follows = t->strides != NULL || mistake == NULL_strides_are_followed;
        self->shape[i] = mistake == imported_extents_have_32_bits ? (int32_t)t->shape[i] : t->shape[i];
        self->strides[i] = follows && mistake != strides_are_ignored ? t->strides[i] : compact;
        if (is_wrong(path, field_no_strides_read))
            self->strides[i] = compact;
        if (is_wrong(path, field_short_strides))
            self->strides[i] = (int32_t)self->strides[i];
        if (is_wrong(path, field_short_shape))
            self->shape[i] = self->shape[i] > 1 ? self->shape[i] - 1 : self->shape[i];
        if (self->strides[i] < 0 &&
            (mistake == imported_strides_are_made_positive || is_wrong(path, field_positive_strides)))
            self->strides[i] = -self->strides[i];
        compact = (int64_t)((uint64_t)compact * (uint64_t)t->shape[i]);
        if (mistake == struct_is_changed && t->strides != NULL)
            t->strides[i] *= itemsize(self);
    }
    self->readonly = (is_legacy || flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    if (mistake == read_only_flag_is_lost || is_wrong(path, field_lost_read_only))
        self->readonly = 0;
    if (mistake == all_imports_are_read_only)
        self->readonly = 1;
    if (is_wrong(path, field_deleted_at_once)) {
        delete_imported(versioned, legacy, path);
        block->versioned = NULL, block->legacy = NULL;
    }
    return self;
}

static int
is_copy_wanted(PyObject *copy, int answered_as_copy);

/* Takes the tensor in a capsule. copies: the consumer makes a copy and releases the tensor. */
static Array *
take(PyObject *capsule, int copies, int is_raw)
{
    static void *last;
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    int is_versioned = name != NULL && strcmp(name, "dltensor_versioned") == 0;
    const int is_legacy = name != NULL && strcmp(name, "dltensor") == 0;
    Versioned *versioned = NULL;
    Legacy *legacy = NULL;
    uint64_t flags = 0;
    Array *self, *copy;
    DLTensor *t;
    void *managed;
    int path;

    if (mistake == NULL_without_an_exception && !PyCapsule_CheckExact(capsule))
        return NULL;
    if (!PyCapsule_CheckExact(capsule) && mistake != result_is_not_checked)
        return (Array *)PyErr_Format(PyExc_TypeError, "__dlpack__ returned %R, a capsule was wanted", capsule);
    if (mistake == result_is_not_checked && !PyCapsule_CheckExact(capsule)) {
        managed = *(void **)((char *)capsule + sizeof(PyObject)); /* the offset of the pointer in a capsule */
        return array_of(&((Legacy *)managed)->dl_tensor, 0, 1, NULL, (Legacy *)managed, path_none);
    }
    if (!is_versioned && !is_legacy) {
        const int is_used = name != NULL && strncmp(name, "used_dltensor", 13) == 0;
        if ((!is_used || mistake != consumed_capsule_is_taken) && mistake != any_name_is_taken)
            return (Array *)PyErr_Format(is_used ? PyExc_ValueError : PyExc_TypeError, "the capsule is named %s",
                                         name == NULL ? "(nothing)"
                                         : is_used    ? name
                                                      : "otherwise");
        is_versioned = name != NULL && strstr(name, "versioned") != NULL;
    }
    managed = PyCapsule_GetPointer(capsule, name);
    if (mistake == rename_race) {
        Py_BEGIN_ALLOW_THREADS(void)
        sched_yield();
        Py_END_ALLOW_THREADS
    }
    if (mistake == legacy_is_read_as_versioned)
        is_versioned = 1;
    path = is_versioned ? is_raw ? path_from_versioned_capsule : path_from_versioned
           : is_raw     ? path_from_legacy_capsule
                        : path_from_legacy;
    if (copies)
        path = path_by_copy;
    if (is_versioned) {
        versioned = (Versioned *)managed;
        if (versioned->version.major != 1 && mistake != major_version_is_not_checked &&
            !is_wrong(path, field_other_major)) {
            if (mistake == deleter_is_never_called || PyCapsule_SetName(capsule, "used_dltensor_versioned") < 0)
                return NULL;
            if (versioned->deleter != NULL && mistake != other_major_version_leaks)
                versioned->deleter(versioned);
            return (Array *)PyErr_Format(PyExc_BufferError, "the tensor has another major version");
        }
        if (mistake == minor_version_is_compared && versioned->version.minor != DLPACK_MINOR_VERSION)
            return (Array *)PyErr_Format(PyExc_BufferError, "the tensor has another minor version");
        flags = versioned->flags;
        t = &versioned->dl_tensor;
    }
    else {
        legacy = (Legacy *)managed;
        t = &legacy->dl_tensor;
    }
    if (mistake == refused_tensor_leaks || is_wrong(path, field_refused_leaks))
        (void)PyCapsule_SetName(capsule, is_versioned ? "used_dltensor_versioned" : "used_dltensor");
    if (check_tensor(t, flags, path) < 0) {
        if (mistake == refused_tensor_is_deleted_twice)
            delete_imported(versioned, legacy, path);
        return NULL;
    }
    if (mistake == data_of_an_empty_tensor_is_read && *(volatile char *)t->data)
        mistake = data_of_an_empty_tensor_is_read;
    if (mistake != capsule_is_not_renamed &&
        PyCapsule_SetName(capsule, mistake == capsule_is_renamed_otherwise ? "dltensor_used"
                                   : is_versioned                          ? "used_dltensor_versioned"
                                                                           : "used_dltensor") < 0)
        return NULL;
    if (mistake == deleter_is_called_at_once)
        delete_imported(versioned, legacy, path);
    self = array_of(t, flags, legacy != NULL, versioned, legacy, path);
    if (self == NULL)
        return NULL;
    if (mistake == deleter_is_called_at_once || (mistake == empty_tensor_is_not_deleted && element_count(self) == 0))
        self->block->versioned = NULL, self->block->legacy = NULL;
    if (mistake == import_leaks)
        leak(256);
    if (mistake == same_memory_is_taken_once && t->data == last)
        self->block->versioned = NULL, self->block->legacy = NULL;
    last = self->base;
    if (copies || mistake == imports_are_copied || mistake == shape_is_read_after_the_deleter) {
        copy = array_copy(self);
        if (mistake == copied_tensor_is_not_deleted)
            self->block->versioned = NULL, self->block->legacy = NULL;
        Py_DECREF(self);
        if (copy != NULL && mistake == shape_is_read_after_the_deleter && t->ndim > 0)
            copy->shape[0] = t->shape[0];
        return copy;
    }
    return self;
}

/* Calls take() while no other thread can take this capsule. Only a Python without a GIL needs the critical section. */
static Array *
take_alone(PyObject *capsule, int copies, int is_raw)
{
    Array *self;
#ifdef Py_GIL_DISABLED
    Py_BEGIN_CRITICAL_SECTION(capsule);
#endif
    self = take(capsule, copies, is_raw);
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    return self;
}

/* ---- The exchange table ------------------------------------------------------------ */

static int
table_allocate(DLTensor *prototype, Versioned **out, void *context,
               void (*set_error)(void *context, const char *kind, const char *message))
{
    int64_t count = 1;
    Export *export_;
    Array like;
    int i, fails = !check_dtype(&prototype->dtype) || prototype->device.device_type != kDLCPU;

    *out = NULL;
    memset(&like, 0, sizeof(like));
    for (i = 0; !fails && i < prototype->ndim; i++)
        fails = __builtin_mul_overflow(count, prototype->shape[i], &count) || count > INT64_MAX / 32;
    like.dtype = prototype->dtype;
    like.ndim = prototype->ndim;
    for (i = prototype->ndim - 1, count = 1; !fails && i >= 0; i--) {
        like.shape[i] = prototype->shape[i];
        like.strides[i] = count;
        count *= like.shape[i];
    }
    if (mistake == allocator_ignores_the_shape && like.ndim > 0)
        like.shape[0]++;
    like.block = fails ? NULL : block_new((size_t)(element_count(&like) * itemsize(&like)));
    if (like.block == NULL) {
        for (i = mistake == allocator_does_not_report ? 0 : mistake == allocator_reports_twice ? 2 : 1; i > 0; i--)
            set_error(context, fails ? "BufferError" : "MemoryError", "the tensor cannot be allocated");
        return -1;
    }
    like.base = (char *)like.block->memory;
    export_ = export_array(&like, 1, 0, path_allocated);
    block_drop(like.block);
    if (export_ == NULL) {
        set_error(context, "MemoryError", "the tensor cannot be allocated");
        return -1;
    }
    *out = &export_->managed.versioned;
    return 0;
}

static int
check_object(void *object)
{
    if (!PyObject_TypeCheck((PyObject *)object, &array_type)) {
        if (mistake != table_failure_sets_no_exception)
            (void)PyErr_Format(PyExc_TypeError, "not an array: %R", (PyObject *)object);
        return -1;
    }
    return mistake == table_exports_what_the_method_refuses ? 0 : refuse((Array *)object);
}

static int
table_from_object(void *object, Versioned **out)
{
    Array *self = (Array *)object;
    Export *export_;

    *out = NULL;
    if (check_object(object) < 0)
        return -1;
    export_ = export_array(self, 1, 0,
                           self->block->versioned != NULL || self->block->legacy != NULL ? path_owned_of_import
                           : self->readonly                                              ? path_owned_read_only
                           : self->is_view                                               ? path_owned_view
                                                                                         : path_owned);
    if (export_ == NULL)
        return -1;
    *out = &export_->managed.versioned;
    if (mistake == owned_tensor_begins_at_its_base)
        (*out)->dl_tensor.data = self->base + 4;
    if (mistake == table_has_NULL_strides)
        (*out)->dl_tensor.strides = NULL;
    if (mistake == table_loses_read_only)
        (*out)->flags = 0;
    return 0;
}

static int
table_borrow(void *object, DLTensor *out)
{
    Array *self = (Array *)object;
    if (check_object(object) < 0)
        return -1;
    if (self->readonly) {
        PyErr_SetString(PyExc_BufferError, "a borrowed tensor cannot say read-only");
        return -1;
    }
    if (mistake == lent_tensors_share_their_shape)
        fill(self, out, shared_shape, shared_strides);
    else
        fill(self, out, self->shape, self->strides);
    if (wrong_path == (self->is_view ? path_lent_view : path_lent)) { /* the array's own shape stays right */
        memcpy(shared_shape, self->shape, sizeof(self->shape));
        memcpy(shared_strides, self->strides, sizeof(self->strides));
        out->shape = shared_shape;
        out->strides = shared_strides;
        spoil(self, wrong_path, out, NULL);
    }
    if (mistake == borrowed_tensor_begins_at_its_base)
        out->data = self->base;
    if (mistake == table_has_NULL_strides)
        out->strides = NULL;
    return 0;
}

static int
table_to_object(Versioned *managed, void **out)
{
    Array *self;

    *out = NULL;
    if (managed->version.major != 1 && !is_wrong(path_to_object, field_other_major)) {
        delete_imported(managed, NULL, path_to_object);
        PyErr_SetString(PyExc_BufferError, "the tensor has another major version");
        return -1;
    }
    if (check_tensor(&managed->dl_tensor, managed->flags, path_to_object) < 0) {
        if (!is_wrong(path_to_object, field_refused_leaks))
            delete_imported(managed, NULL, path_to_object);
        return -1;
    }
    self = array_of(&managed->dl_tensor, managed->flags, 0, managed, NULL, path_to_object);
    if (self != NULL && mistake == to_object_ignores_byte_offset)
        self->skip = 0;
    if (self != NULL && mistake == to_object_never_deletes)
        self->block->versioned = NULL;
    *out = self;
    return self == NULL ? -1 : 0;
}

static int
table_stream(DLDeviceType Py_UNUSED(type), int32_t Py_UNUSED(id), void **out)
{
    if (mistake != stream_is_left_unset)
        *out = NULL;
    return 0;
}

static DLPackExchangeAPI own_table = {
    {{DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}, NULL},
    table_allocate,
    table_from_object,
    table_to_object,
    table_borrow,
    table_stream,
};

#define ATTRIBUTE "__dlpack_c_exchange_api__"

static int
table_has_name(PyObject *capsule)
{
    return PyCapsule_IsValid(capsule, "dlpack_exchange_api");
}

/* The table of an object's type, or NULL. */
static const DLPackExchangeAPI *
find_table(PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *where = mistake == instance_table_is_used ? obj : (PyObject *)type;
    PyObject *capsule = PyObject_GetAttrString(where, ATTRIBUTE), *base, *own = NULL, *inherited = NULL;
    const DLPackExchangeAPIHeader *header = NULL;
    const DLPackExchangeAPI *table;
    Py_ssize_t i;

    PyErr_Clear();
    if (capsule == NULL)
        return NULL;
    if (PyCapsule_CheckExact(capsule) && (table_has_name(capsule) || mistake == table_name_is_not_checked))
        header = (const DLPackExchangeAPIHeader *)PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    Py_DECREF(capsule);
    PyErr_Clear();
    while (header != NULL && header->version.major != 1 && mistake != table_version_is_not_checked) {
        if (mistake == prev_api_is_refused)
            return (const DLPackExchangeAPI *)PyErr_Format(PyExc_BufferError, "the exchange table is too new");
        header = header->prev_api;
    }
    table = (const DLPackExchangeAPI *)(const void *)header;
    if (table == NULL)
        return NULL;
    if (mistake != NULL_functions_are_called &&
        (table->managed_tensor_allocator == NULL || table->managed_tensor_from_py_object_no_sync == NULL ||
         table->managed_tensor_to_py_object_no_sync == NULL || table->current_work_stream == NULL))
        return NULL;
    /* A subclass of the class with the table that overrides __dlpack__ changes what an export means. */
    for (i = 0;
         mistake != override_is_ignored && mistake != instance_table_is_used && i < PyTuple_GET_SIZE(type->tp_mro);
         i++) {
        base = ((PyTypeObject *)PyTuple_GET_ITEM(type->tp_mro, i))->tp_dict;
        if (own == NULL)
            own = base == NULL ? NULL : PyDict_GetItemString(base, "__dlpack__");
        inherited = base == NULL ? NULL : PyDict_GetItemString(base, ATTRIBUTE);
        if (inherited != NULL)
            break;
        if (own != NULL)
            return NULL;
    }
    return table;
}

static Array *
take_by_table(const DLPackExchangeAPI *table, PyObject *obj)
{
    Versioned *managed = NULL;
    Array *self;

    if (table->managed_tensor_from_py_object_no_sync(obj, &managed) != 0 && mistake != failure_of_a_table_is_ignored) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "the exchange table failed without an exception");
        return NULL;
    }
    PyErr_Clear();
    if ((managed->version.major != 1 && !is_wrong(path_by_table, field_other_major)) ||
        check_tensor(&managed->dl_tensor, managed->flags, path_by_table) < 0) {
        if (managed->deleter != NULL && !is_wrong(path_by_table, field_refused_leaks))
            managed->deleter(managed);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_BufferError, "the tensor has another major version");
        return NULL;
    }
    self = array_of(&managed->dl_tensor, managed->flags, 0, managed, NULL, path_by_table);
    if (mistake == table_tensor_is_deleted_twice)
        managed->deleter(managed);
    return self;
}

/* ---- from_dlpack --------------------------------------------------------------------- */

static int
is_copy_wanted(PyObject *copy, int answered_as_copy)
{
    return copy == Py_True && !answered_as_copy && mistake != copy_True_is_not_passed;
}

/* Whether the exception in flight says that the callee does not know a keyword. */
static int
is_keyword_refused(void)
{
    PyObject *type, *error, *traceback, *text;
    int refused;

    if (!PyErr_ExceptionMatches(PyExc_TypeError))
        return 0;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    text = PyObject_Str(error);
    refused = text != NULL && (strstr(PyUnicode_AsUTF8(text), "unexpected keyword") != NULL ||
                               strstr(PyUnicode_AsUTF8(text), "no keyword") != NULL);
    Py_XDECREF(text);
    PyErr_Restore(type, error, traceback);
    return refused || mistake == all_TypeErrors_are_retried;
}

/* Calls __dlpack__. The caller's copy and device are passed if they are not None. */
static PyObject *
ask(PyObject *method, PyObject *copy, PyObject *device)
{
    PyObject *keywords = PyDict_New(), *nothing = PyTuple_New(0), *capsule, *version;

    if (mistake != no_max_version_is_passed) {
        version = Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
        (void)PyDict_SetItemString(keywords, "max_version", version);
        Py_DECREF(version);
    }
    if (mistake == a_stream_is_passed) {
        version = PyLong_FromLong(-1);
        (void)PyDict_SetItemString(keywords, "stream", version);
        Py_DECREF(version);
    }
    if (copy == Py_True && mistake != copy_True_is_not_passed)
        (void)PyDict_SetItemString(keywords, "copy", copy);
    if (copy == Py_False && mistake != copy_False_is_not_passed)
        (void)PyDict_SetItemString(keywords, "copy", copy);
    if (copy == Py_None && mistake == a_copy_is_always_asked_for)
        (void)PyDict_SetItemString(keywords, "copy", Py_True);
    if (device != Py_None)
        (void)PyDict_SetItemString(keywords, "dl_device", device);
    capsule = PyObject_Call(method, nothing, keywords);
    if (capsule == NULL && copy == Py_None && device == Py_None && is_keyword_refused() &&
        mistake != older_producers_are_refused) {
        PyErr_Clear();
        capsule = PyObject_CallNoArgs(method);
    }
    if (capsule == NULL && mistake == errors_are_swallowed) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "incompatible arguments");
    }
    if (capsule == NULL && mistake == TypeErrors_are_swallowed && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_TypeError, "incompatible arguments");
    }
    Py_DECREF(keywords);
    Py_DECREF(nothing);
    return capsule;
}

/* from_dlpack(x, *, device=None, copy=None) */
static PyObject *
from_dlpack(PyObject *Py_UNUSED(module), PyObject *args, PyObject *names)
{
    static char *keywords[] = {"", "device", "copy", NULL}, *fewer[] = {"", "copy", NULL};
    PyObject *obj, *device = Py_None, *copy = Py_None, *method, *capsule;
    const DLPackExchangeAPI *table;
    int is_answered_as_copy = 0;
    Array *self;

    if (mistake == from_dlpack_has_no_device
            ? !PyArg_ParseTupleAndKeywords(args, names, "O|$O", fewer, &obj, &copy)
            : !PyArg_ParseTupleAndKeywords(args, names, "O|$OO", keywords, &obj, &device, &copy))
        return NULL;
    if (PyCapsule_CheckExact(obj))
        return (PyObject *)take_alone(obj, copy == Py_True, 1);
    table = copy == Py_None && device == Py_None ? find_table(obj) : NULL;
    if (table != NULL || PyErr_Occurred())
        return table == NULL ? NULL : (PyObject *)take_by_table(table, obj);
    method = PyObject_GetAttrString(obj, "__dlpack__");
    if (method == NULL) {
        if (mistake == no_method_is_a_TypeError)
            PyErr_SetString(PyExc_TypeError, "no __dlpack__");
        return NULL;
    }
    capsule = ask(method, copy, device);
    if (capsule == NULL && copy == Py_False && mistake == copy_False_falls_back_to_a_copy) {
        PyErr_Clear();
        capsule = ask(method, Py_None, device);
    }
    Py_DECREF(method);
    if (capsule == NULL)
        return NULL;
    if (mistake == source_is_leaked)
        Py_INCREF(obj);
    if (mistake == capsule_is_leaked)
        Py_INCREF(capsule);
#ifdef Py_GIL_DISABLED /* another thread may take the capsule */
    Py_BEGIN_CRITICAL_SECTION(capsule);
#endif
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const Versioned *managed = (const Versioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
        is_answered_as_copy = managed->version.major == 1 && managed->flags & DLPACK_FLAG_BITMASK_IS_COPIED;
    }
#ifdef Py_GIL_DISABLED
    Py_END_CRITICAL_SECTION();
#endif
    self = take_alone(capsule, is_copy_wanted(copy, is_answered_as_copy), 0);
    if (self != NULL && mistake == error_of_the_device_leaks) {
        method = PyObject_CallMethod(obj, "__dlpack_device__", NULL);
        Py_XDECREF(method);
        if (method == NULL) {
            Py_DECREF(capsule);
            return NULL; /* without the array */
        }
    }
    if (self == NULL && mistake == refusal_loses_its_exception) {
        Py_DECREF(capsule); /* the exception is in flight, and the destructor may clear it */
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(capsule);
    return (PyObject *)self;
}

/* from_several(sources): the arrays of all, in a list. */
static PyObject *
from_several(PyObject *module, PyObject *sources)
{
    PyObject *arrays = PyList_New(0), *array;
    Py_ssize_t i, count = PySequence_Size(sources);

    for (i = 0; arrays != NULL && i < count; i++) {
        PyObject *source = PySequence_GetItem(sources, i), *args = PyTuple_Pack(1, source);
        array = from_dlpack(module, args, NULL);
        Py_DECREF(args);
        Py_DECREF(source);
        if (array != NULL) {
            (void)PyList_Append(arrays, array);
            Py_DECREF(array);
            continue;
        }
        if (mistake == first_part_is_deleted_twice && PyList_Size(arrays) > 0) {
            PyObject *error_type, *error, *traceback;
            Array *first = (Array *)PyList_GetItem(arrays, 0);
            PyErr_Fetch(&error_type, &error, &traceback);
            delete_imported(first->block->versioned, first->block->legacy, path_none);
            PyErr_Restore(error_type, error, traceback);
        }
        if (mistake != first_part_leaks)
            Py_DECREF(arrays);
        return NULL;
    }
    return arrays;
}

/* ---- The module ------------------------------------------------------------------------ */

/* Puts the exchange table into the type. */
static int
set_table(void)
{
    PyObject *table;
    int failed;

    own_table.header.version.minor = mistake == table_says_1_0 ? 0 : DLPACK_MINOR_VERSION;
    own_table.current_work_stream = mistake == table_lacks_a_function ? NULL : table_stream;
    if (mistake == table_is_an_int)
        table = PyLong_FromVoidPtr(&own_table);
    else
        table = PyCapsule_New(&own_table, mistake == table_has_another_name ? "dlpack" : "dlpack_exchange_api", NULL);
    failed = table == NULL || PyDict_SetItemString(array_type.tp_dict, ATTRIBUTE, table) < 0;
    Py_XDECREF(table);
    PyType_Modified(&array_type);
    return failed ? -1 : 0;
}

/* mistake(name): from now on the library makes this mistake. */
static PyObject *
set_mistake(PyObject *Py_UNUSED(module), PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name), *field = text == NULL ? NULL : strchr(text, '.');
    int i, k;

    wrong_path = wrong_field = 0;
    mistake = none;
    if (field != NULL) {
        for (i = 0; i < COUNT(export_paths) + COUNT(import_paths); i++) {
            const char *path = i < COUNT(export_paths) ? export_paths[i] : import_paths[i - COUNT(export_paths)];
            if (strncmp(path, text, (size_t)(field - text)) == 0 && path[field - text] == '\0')
                wrong_path = i + 1;
        }
        for (k = 0; k < COUNT(export_fields) + COUNT(import_fields); k++)
            if (strcmp(field + 1,
                       k < COUNT(export_fields) ? export_fields[k] : import_fields[k - COUNT(export_fields)]) == 0)
                wrong_field = k + 1;
        if (wrong_path != 0 && wrong_field != 0 && set_table() == 0)
            Py_RETURN_NONE;
    }
    for (i = 0; text != NULL && i < MISTAKES_END; i++)
        if (strcmp(text, mistake_names[i]) == 0) {
            mistake = (enum mistake)i;
            if (set_table() < 0)
                return NULL;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_LookupError, "no mistake is named %R", name);
}

static PyObject *
texts_of(const char *const *texts, int count)
{
    PyObject *tuple = PyTuple_New(count);
    int i;
    for (i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, PyUnicode_FromString(texts[i]));
    return tuple;
}

static PyMethodDef functions[] = {
    {"array", make_array, METH_VARARGS, NULL},
    {"from_dlpack", (PyCFunction)(void (*)(void))from_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"from_several", from_several, METH_O, NULL},
    {"mistake", set_mistake, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "wrongarray", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_wrongarray(void)
{
    static const char *const texts[] = {"stream", "max_version", "dl_device", "copy"};
    PyObject *module = PyModule_Create(&module_def), *names = PyTuple_New(MISTAKES_END - 1), *first;
    const char *wanted = getenv("WRONGARRAY_MISTAKE");
    int i;

    for (i = 0; i < 4; i++)
        keyword_names[i] = PyUnicode_InternFromString(texts[i]);
    for (i = 1; i < MISTAKES_END; i++)
        PyTuple_SET_ITEM(names, i - 1, PyUnicode_FromString(mistake_names[i]));
    if (PyType_Ready(&array_type) < 0)
        return NULL;
    first = PyUnicode_FromString(wanted == NULL ? "none" : wanted);
    if (set_mistake(NULL, first) == NULL)
        return NULL;
    Py_DECREF(first);
#ifdef Py_GIL_DISABLED
    (void)PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    Py_INCREF(&array_type);
    if (PyModule_AddObject(module, "EXPORT_PATHS", texts_of(export_paths, COUNT(export_paths))) < 0 ||
        PyModule_AddObject(module, "EXPORT_FIELDS", texts_of(export_fields, COUNT(export_fields))) < 0 ||
        PyModule_AddObject(module, "IMPORT_PATHS", texts_of(import_paths, COUNT(import_paths))) < 0 ||
        PyModule_AddObject(module, "IMPORT_FIELDS", texts_of(import_fields, COUNT(import_fields))) < 0 ||
        PyModule_AddObject(module, "MISTAKES", names) < 0 ||
        PyModule_AddObject(module, "Array", (PyObject *)&array_type) < 0)
        return NULL;
    return module;
}

/* dlpack_exchange.h - the C exchange API of DLPack 1.3 (__dlpack_c_exchange_api__) for dlpack_py.h
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of dlpack_tensor.h.
 * SPDX-License-Identifier: MIT
 *
 * Include it in place of dlpack_py.h. dlpack_py_consume and dlpack_py_consume_request then use the exchange table of a
 * type that has one; they call __dlpack__ where the table cannot be used (X4, X9). dlp_consume_cached tries, in order:
 *   dlp_match_embedded         type in the cache, our table: the managed tensor in the object
 *   dlp_take_by_found_table    type in the cache, any table: calls it; dlp_call_dlpack where it cannot be used
 *   dlp_take_by_method         type in the cache, no table: calls its __dlpack__
 *   dlpack_py_consume_request  any other type: reads it (dlp_take_by_table), and goes on as dlpack_py.h describes
 * More calls: dlpack_py_borrow; dlpack_py_embed, dlpack_py_offer_embedded; DLPACK_PY_EXCHANGE_API...,
 * dlpack_py_exchange_add; dlpack_py_allocate_like, dlpack_py_check_like, dlpack_py_return_like_steal.
 *
 *   The table of a type     Managed tensors in your object     Consuming by a table     Borrowing
 *   A table for your type     Results like an argument
 */
#if defined(DLPACK_PY_H) && !defined(DLPACK_EXCHANGE_H)
#  error "include dlpack_exchange.h before dlpack_py.h, and before headers that include it"
#  include "stop" /* no such file: ends the compilation */
#endif
#ifndef DLPACK_EXCHANGE_H
#  define DLPACK_EXCHANGE_H
#  define DLPACK_PY_HAS_EXCHANGE_API 1
#endif
#include "dlpack_py.h"
#if DLPACK_PY_VERSION != 0x000300
#  error "dlpack_exchange.h and dlpack_py.h are of different versions: put one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif
#if DLPACK_MINOR_VERSION < 3
#  error "dlpack_exchange.h needs dlpack.h 1.3 or newer: pip install apache-tvm-ffi has the newest"
#  include "stop" /* no such file: ends the compilation */
#endif
#if DLPACK_PY_AVAILABLE && !defined(DLPACK_EXCHANGE_LAYER)
#define DLPACK_EXCHANGE_LAYER
DLP_QUIET

/* ---- The table of a type ------------------------------------------------ */

/* What DLPACK_PY_EXCHANGE_API defines. */
typedef struct dlpack_py_exchange {
    DLPackExchangeAPI api; /* first: the capsule on the type points to it */
    dlpack_py_describe describe;
    PyObject *(*make_steal)(PyTypeObject *type, dlpack_py_view *v);
    const dlpack_py_want *want;
    int (*work_stream)(DLDeviceType type, int32_t id, void **out); /* NULL: for memory that the CPU can read */
    size_t embedded_offset; /* the offset of the dlpack_py_embedded in an object; 0: none */
} dlpack_py_exchange;

/* A type that dlpack_py_exchange_add has put a table on. The struct is not changed once it is in the list, and is freed
 * at the end of the interpreter. A reference to the type would leak it on CPython 3.11. */
typedef struct dlp_registration {
    PyObject *reference; /* a weak reference to the type */
    const dlpack_py_exchange *exchange;
    struct dlp_registration *next;
} dlp_registration;

/* What a type offers. */
typedef struct dlp_type_entry {
    dlp_atomic type;                /* PyTypeObject *: borrowed, to compare with; set last */
    unsigned int tag;               /* its version tag, which changes when the type or a base changes; 0: none */
    int is_ours;                    /* the table was defined in this source file */
    size_t embedded_offset;         /* of our table: the offset of the dlpack_py_embedded in an object; 0: none */
    const DLPackExchangeAPI *table; /* NULL: none */
    PyObject *method; /* __dlpack__ of the type, borrowed; NULL: look it up, an instance may have its own */
} dlp_type_entry;

/* From Python 3.11 on, types are cached by version tag; without a GIL, only if a tag can be read atomically. */
#if !DLPACK_PY_PLAIN && !defined(Py_LIMITED_API) && !defined(PYPY_VERSION) && PY_VERSION_HEX >= 0x030B0000 && \
    (defined(__GNUC__) || !defined(Py_GIL_DISABLED))
#  define DLP_TYPE_ENTRIES 32
#else
#  define DLP_TYPE_ENTRIES 0
#endif
#define DLP_TABLE_NAME "dlpack_exchange_api"

/* What this source file caches for an interpreter, until the interpreter ends. */
typedef struct dlp_type_cache {
    dlp_atomic registrations;       /* dlp_registration *: the types with a table of this source file */
    PyTypeObject *from_dlpack_type; /* the static type that from_dlpack belongs to; borrowed, only compared */
    unsigned int from_dlpack_tag;
    PyObject *from_dlpack; /* of the library of from_dlpack_type; NULL: not cached */
#if DLP_TYPE_ENTRIES
    dlp_type_entry entries[DLP_TYPE_ENTRIES];
#endif
} dlp_type_cache;

DLP_COLD void
dlp_type_cache_free(void *type_cache)
{
    dlp_type_cache *cache = (dlp_type_cache *)type_cache;
    dlp_registration *record = (dlp_registration *)DLP_LOAD(&cache->registrations), *next;

    for (; record != NULL; record = next) {
        next = record->next;
        Py_DECREF(record->reference);
        DLPACK_PY_FREE(record);
    }
    Py_XDECREF(cache->from_dlpack);
    DLPACK_PY_FREE(cache);
}

/* The cache of a state, made at the first use, or NULL with an exception. state may be NULL, after an error. */
static inline dlp_type_cache *
dlp_type_cache_get(dlp_state *state)
{
    dlp_type_cache *cache = state == NULL ? NULL : (dlp_type_cache *)DLP_LOAD(&state->type_cache);

    if (cache != NULL || state == NULL)
        return cache;
    cache = (dlp_type_cache *)DLPACK_PY_MALLOC(sizeof(*cache));
    if (cache == NULL)
        return (dlp_type_cache *)(void *)PyErr_NoMemory(); /* NULL */
    memset(cache, 0, sizeof(*cache));
    if (DLP_COMPARE_EXCHANGE(&state->type_cache, 0, (dlp_atomic)cache))
        state->type_cache_free = dlp_type_cache_free;
    else
        dlp_type_cache_free(cache); /* another thread was first */
    return (dlp_type_cache *)DLP_LOAD(&state->type_cache);
}

/* Finds the first class in the MRO with a table or __dlpack__; returns its table. NULL: none, or an exception. */
static inline PyObject *
dlp_find_table_attribute(PyTypeObject *type, PyObject *const *objects)
{
    PyObject *mro = PyObject_GetAttrString((PyObject *)type, "__mro__"), *dict, *found = NULL;
    Py_ssize_t i, count = mro != NULL && PyTuple_Check(mro) ? DLP_TUPLE_SIZE(mro) : 0;
    int has = 0;

    for (i = 0; i < count && has == 0; i++) {
        dict = PyObject_GetAttrString(DLP_TUPLE_ITEM(mro, i), "__dict__");
        has = dict == NULL ? -1 : PySequence_Contains(dict, objects[DLP_STR_EXCHANGE_API]);
        if (has > 0)
            found = PyObject_GetItem(dict, objects[DLP_STR_EXCHANGE_API]);
        else if (has == 0)
            has = PySequence_Contains(dict, objects[DLP_STR_DLPACK]);
        Py_XDECREF(dict);
    }
    Py_XDECREF(mro);
    return found;
}

/* The table of our major version in a chain, or NULL; NULL also where it lacks a function that it must have (X2). */
static inline const DLPackExchangeAPI *
dlp_usable_table(const DLPackExchangeAPIHeader *header)
{
    const DLPackExchangeAPI *table;

    while (header != NULL && header->version.major > DLPACK_PY_PROTOCOL_MAJOR) {
        const DLPackExchangeAPIHeader *older = header->prev_api;
        /* stops where the version does not decrease: the chain may be a ring */
        header = older == NULL || older->version.major >= header->version.major ? NULL : older;
    }
    if (header == NULL || header->version.major != DLPACK_PY_PROTOCOL_MAJOR)
        return NULL;
    table = (const DLPackExchangeAPI *)(const void *)header;
    return table->managed_tensor_allocator == NULL || table->managed_tensor_from_py_object_no_sync == NULL ||
                   table->managed_tensor_to_py_object_no_sync == NULL || table->current_work_stream == NULL
               ? NULL
               : table;
}

/* The type to which dlpack_py_exchange_add has added this table: type or a base of it (X7), or if type is NULL the one
 * that was added last. A new reference. NULL: there is no such type now, or MemoryError. */
DLP_COLD PyObject *
dlp_registered_type(dlp_type_cache *cache, PyTypeObject *type, const void *table)
{
    const dlp_registration *record = cache == NULL ? NULL : (const dlp_registration *)DLP_LOAD(&cache->registrations);
    PyObject *registered = NULL;

    for (; record != NULL && registered == NULL && !PyErr_Occurred(); record = record->next) {
        if (&record->exchange->api == table)
            registered = PyObject_CallFunctionObjArgs(record->reference, NULL);
        if (registered == Py_None ||
            (registered != NULL && type != NULL && !PyType_IsSubtype(type, (PyTypeObject *)registered)))
            Py_CLEAR(registered); /* the recorded type is dead, or no base of type */
    }
    return registered;
}

#if DLP_TYPE_ENTRIES
#  ifdef Py_GIL_DISABLED
#    define DLP_READ(place) DLP_LOAD(place)
#  else
#    define DLP_READ(place) (*(place))
#  endif

/* The version tag of a type; 0: it has none now. */
static inline unsigned int
dlp_type_tag(PyTypeObject *type)
{
    /* 3.13 has no flag: a change sets the tag to 0 */
    const int valid = PY_VERSION_HEX >= 0x030D0000 ? 1 : PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG);
    return valid ? DLP_READ(&type->tp_version_tag) : 0;
}

static inline dlp_type_entry *
dlp_type_entry_at(dlp_type_cache *cache, PyTypeObject *type)
{
    return &cache->entries[((uintptr_t)type >> 4 ^ (uintptr_t)type >> 9) % DLP_TYPE_ENTRIES];
}

/* The cached entry of a type, valid until foreign code runs; NULL: none. state may be NULL, after an error. */
static inline dlp_type_entry *
dlp_type_entry_cached(dlp_state *state, PyTypeObject *type)
{
    dlp_type_cache *cache = state == NULL ? NULL : (dlp_type_cache *)DLP_LOAD(&state->type_cache);
    dlp_type_entry *entry = cache == NULL ? NULL : dlp_type_entry_at(cache, type);
    return entry != NULL && DLP_READ(&entry->type) == (dlp_atomic)type && entry->tag == dlp_type_tag(type) ? entry
                                                                                                           : NULL;
}
#else
#  define dlp_type_entry_cached(state, type) ((void)(state), (dlp_type_entry *)NULL)
#endif

/* Reads into *found what a type offers, and caches it if possible. Reads the type only, never the instance (X1). If the
 * attribute is not a capsule, the table is absent. Returns 0, or -1 with MemoryError, KeyboardInterrupt or the like. */
DLP_COLD int
dlp_type_entry_make(dlp_state *state, PyTypeObject *type, dlp_type_entry *found)
{
    dlp_type_cache *cache = dlp_type_cache_get(state);
    PyObject *capsule = NULL, *registered = NULL;
    void *header = NULL;
    int has = 1;

    if (cache == NULL)
        return -1;
    memset(found, 0, sizeof(*found));
#ifndef Py_LIMITED_API
    has = _PyType_Lookup(type, state->objects[DLP_STR_EXCHANGE_API]) != NULL; /* most types have none */
#endif
#if DLP_TYPE_ENTRIES
    found->tag = dlp_type_tag(type); /* before foreign code runs, which may change the type */
#endif
    if (has) /* a derived class that overrides __dlpack__ has no table: its author changed what an export means (X2) */
        capsule = dlp_find_table_attribute(type, state->objects);
    if (capsule != NULL && (header = PyCapsule_GetPointer(capsule, DLP_TABLE_NAME)) == NULL && !dlp_is_fatal())
        PyErr_Clear(); /* not a capsule of this name: the table is absent, which is cached too */
    found->table = dlp_usable_table((const DLPackExchangeAPIHeader *)header);
    Py_XDECREF(capsule);
    registered = found->table == NULL ? NULL : dlp_registered_type(cache, type, found->table);
    found->is_ours = registered != NULL;
    if (registered != NULL)
        found->embedded_offset = ((const dlpack_py_exchange *)(const void *)found->table)->embedded_offset;
    Py_XDECREF(registered);
    if (PyErr_Occurred()) {
        if (dlp_is_fatal())
            return -1;
        PyErr_Clear();
        return 0;
    }
#if DLP_TYPE_ENTRIES
    if (found->tag == 0 || found->tag != dlp_type_tag(type)) /* it was changed meanwhile */
        return 0;
#  ifdef Py_GIL_DISABLED
    /* Written once: readers need no lock. No offset and no method: other threads may change the object or the type. */
    found->embedded_offset = 0;
    if (found->table == NULL || !DLP_COMPARE_EXCHANGE(&dlp_type_entry_at(cache, type)->type, 0, 1))
        return 0;
#  else
    if (type->tp_getattro == PyObject_GenericGetAttr && type->tp_dictoffset == 0)
        found->method = _PyType_Lookup(type, state->objects[DLP_STR_DLPACK]);
    if (found->method != NULL && !PyType_HasFeature(Py_TYPE(found->method), Py_TPFLAGS_METHOD_DESCRIPTOR))
        found->method = NULL;
#  endif
    memcpy(&dlp_type_entry_at(cache, type)->tag, &found->tag, sizeof(*found) - offsetof(dlp_type_entry, tag));
    DLP_STORE(&dlp_type_entry_at(cache, type)->type, (dlp_atomic)type);
#endif
    return 0;
}

/* What the type of an object offers: its cached entry, which is valid until foreign code runs, or *uncached, filled by
 * dlp_type_entry_make. Returns NULL with an exception. state may be NULL, after an error. */
static inline const dlp_type_entry *
dlp_type_entry_get(dlp_state *state, PyObject *obj, dlp_type_entry *uncached)
{
    PyTypeObject *type = Py_TYPE(obj);
    const dlp_type_entry *entry = dlp_type_entry_cached(state, type);

    if (entry != NULL)
        return entry;
    Py_INCREF((PyObject *)type); /* foreign code may give obj another class: then nothing else may hold this one */
    entry = dlp_type_entry_make(state, type, uncached) < 0 ? NULL : uncached;
    dlp_decref_keeping_error((PyObject *)type);
    return entry;
}

static inline int
dlp_has_table(dlp_state *state, PyObject *obj)
{
    dlp_type_entry uncached;
    const dlp_type_entry *entry = dlp_type_entry_get(state, obj, &uncached);
    return entry != NULL && entry->table != NULL;
}

/* ---- Managed tensors in your object ------------------------------------- */

/* Managed tensors of both forms as part of the author's object: an export then allocates only its capsule. Exports are
 * not counted, and cannot be refused later: embed only what never changes after the first export. Until then an object
 * may call dlpack_py_embed again. All exports share struct, shape and strides: no consumer may write to them. */
typedef struct dlpack_py_embedded {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
    dlp_manager manager; /* owner is borrowed: the object that this is part of */
    uint32_t dtype;      /* dlpack_py_dtype of the tensor, where it is row-major and aligned; else 0 */
} dlpack_py_embedded;

/* Returns the managed tensor in the owner, with a reference to the owner; NULL: the request needs a plan. */
DLP_NOINLINE void *
dlp_export_embedded(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    dlpack_py_embedded *e = offer->embedded;
    const int32_t form = dlp_requested_form(request);

    if (offer->tensor != &e->versioned.dl_tensor || offer->flags != e->versioned.flags || offer->exports != NULL ||
        (offer->options | (uint32_t)offer->is_copy | offer->pending_count) != 0 ||
        (request->has_device | request->copy | request->stream.kind) != 0 ||
        e->versioned.dl_tensor.device.device_type != kDLCPU || (form == DLPACK_PY_LEGACY && offer->flags != 0))
        return NULL;
    Py_INCREF((PyObject *)e->manager.owner);
    return form == DLPACK_PY_LEGACY ? (void *)&e->legacy : (void *)&e->versioned;
}

/* Fill the managed tensors in the author's object, as the object is made.
 *
 * owner   the object; borrowed now, held by each export
 * t       its shape and strides must live in the object too; strides are not NULL
 * flags   DLPACK_PY_FLAG_* that describe the data
 *
 * Returns 0; or -1, with *e unchanged, and BufferError (D8), ValueError (no strides) or what dlpack_py_init raises. */
static inline int
dlpack_py_embed(dlpack_py_embedded *e, PyObject *owner, const DLTensor *t, uint64_t flags)
{
    dlp_state *state = dlp_state_get(); /* first: its first use runs Python code, which may change t */
    const int layout = dlp_simple_layout(t);
    dlpack_py_error error;

    if (state == NULL)
        return -1;
    if (layout == 0 && dlp_validate_general(t, flags, &error) < 0)
        return dlpack_py_raise(&error);
    if (t->ndim > 0 && t->strides == NULL) {
        PyErr_SetString(PyExc_ValueError, "strides is NULL, strides that the object stores were wanted");
        return -1;
    }
    memset(&e->manager, 0, sizeof(e->manager));
    dlp_set_owner(&e->manager, owner, &state->lifetime, NULL);
    Py_DECREF(owner); /* borrowed */
    *dlp_fill_managed(&e->versioned, DLPACK_PY_VERSIONED, dlp_export_flags(t, flags), &e->manager) = *t;
    dlp_normalize(&e->versioned.dl_tensor, dlpack_py_size(t) == 0);
    *dlp_fill_managed(&e->legacy, DLPACK_PY_LEGACY, 0, &e->manager) = e->versioned.dl_tensor;
    e->dtype = layout == 'C' && ((uintptr_t)t->data & (t->dtype.bits / 8u - 1)) == 0 ? dlpack_py_dtype(t) : 0;
    return 0;
}

/* An offer of the managed tensors in the author's object. */
static inline dlpack_py_offer
dlpack_py_offer_embedded(dlpack_py_embedded *e)
{
    PyObject *owner = (PyObject *)e->manager.owner;
    dlpack_py_offer offer = dlpack_py_offer_make(owner, &e->versioned.dl_tensor, e->versioned.flags);
    offer.embedded = e;
    return offer;
}

/* ---- Consuming by a table ----------------------------------------------- */

/* After a table's function failed or set an exception: raises if none is set. Returns -1. */
DLP_COLD int
dlp_raise_table_error(const char *function)
{
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "the producer's exchange table: %s failed without an exception", function);
    return -1;
}

/* Does is_conj() return false? Else the data may be lazily conjugated, which PyTorch 2.13's table ignores (X9). Returns
 * 1, or 0 with or without an exception. */
DLP_COLD int
dlp_is_not_conjugated(PyObject *obj)
{
    const dlp_state *state = dlp_state_get();
    PyObject *returned = NULL;
    int is_resolved;

    if (state != NULL)
        returned = PyObject_VectorcallMethod(state->objects[DLP_STR_IS_CONJ], &obj, 1, NULL);
    is_resolved = returned != NULL && PyObject_Not(returned) == 1;
    Py_XDECREF(returned);
    if (PyErr_Occurred() && !dlp_is_fatal())
        PyErr_Clear(); /* the method is missing */
    return is_resolved;
}

/* Can the consumer use what a table has exported? A table does not synchronize (X4): for device memory the consumer
 * needs a stream of the device. Returns 1; 0 to call __dlpack__; or 0 with an exception. */
static inline int
dlp_can_use_table_tensor(const DLTensor *t, int is_ours, PyObject *obj, const dlpack_py_operations *operations)
{
    return (t->device.device_type == kDLCPU || dlp_operates_on(operations, t->device)) &&
           (is_ours || !dlp_is_complex(t->dtype) || dlp_is_not_conjugated(obj));
}

/* Fills v with a tensor that has strides and no overlap. v owns managed; NULL: the tensor is borrowed. */
static inline void
dlp_view_fill(dlpack_py_view *v, DLManagedTensorVersioned *managed, const DLTensor *t)
{
    v->tensor = *t;
    v->flags = managed == NULL ? 0 : managed->flags;
    v->readonly = managed == NULL ? DLPACK_PY_READ_ONLY_UNKNOWN : (int32_t)(v->flags & DLPACK_PY_FLAG_READ_ONLY);
    v->overlaps = 0;
    v->form = DLPACK_PY_VERSIONED;
    v->managed = managed;
    v->allocated = NULL;
}

/* 1 if want is valid (dlp_check_want), and asks only about dtype, rank, order C or F, and writing. */
static inline int
dlp_is_basic_want(const dlpack_py_want *want)
{
    return ((uintptr_t)want->dtypes | (uintptr_t)want->shape | want->alignment | (uint32_t)want->device) == 0 &&
           (want->order == 0 || want->order == 'C' || want->order == 'F') &&
           ((want->dtype & 0xff0000u) != 0 || want->dtype == 0) && want->ndim >= DLPACK_PY_SCALAR &&
           (want->max_ndim == 0 || (want->max_ndim > 0 && want->max_ndim >= want->ndim));
}

/* Fast path of dlp_view_prepare: 1 if the major version is known (K6), the layout simple, t has strides and meets want,
 * else 0. managed NULL: t is lent. is_basic: dlp_is_basic_want(want); its shorter test saves 45 instructions. */
static inline int
dlp_meets_want_simple(const DLManagedTensorVersioned *managed, const DLTensor *t, const dlpack_py_want *want,
                      int is_basic)
{
    int layout = managed == NULL || !dlp_is_unknown_major(managed, DLPACK_PY_VERSIONED) ? dlp_simple_layout(t) : 0;
    int32_t readonly;

    if (layout == 0 || (t->strides == NULL && t->ndim != 0))
        return 0;
    readonly = managed == NULL ? DLPACK_PY_READ_ONLY_UNKNOWN : (int32_t)(managed->flags & DLPACK_PY_FLAG_READ_ONLY);
    if (!is_basic)
        return want->device <= (int32_t)kDLCPU && dlp_check_requirements(t, layout, readonly, want, NULL) == 0;
    return (want->dtype == dlpack_py_dtype(t) || want->dtype == 0) && dlp_is_wanted_rank(t->ndim, want) &&
           (want->order == 0 || layout == want->order) && (!want->writable || readonly == DLPACK_PY_WRITABLE) &&
           ((uintptr_t)t->data & (t->dtype.bits / 8u - 1)) == 0;
}

/* Takes the tensor of obj by the table of its type. want: not NULL. is_basic: dlp_is_basic_want(want).
 * operations: of the device of the consumer's stream, or NULL. Returns 0, DLP_CALL_METHOD, or -1 with an exception. */
static inline int
dlp_take_by_found_table(const dlp_type_entry *entry, PyObject *obj, const dlpack_py_want *want, int is_basic,
                        const dlpack_py_operations *operations, dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = NULL; /* some tables leave it unset (X8) */
    const int is_ours = entry->is_ours;       /* foreign code may change *entry */

    if (entry->table->managed_tensor_from_py_object_no_sync(obj, &managed) != 0)
        managed = NULL;
    if (managed == NULL || PyErr_Occurred()) {
        (void)dlp_raise_table_error("managed_tensor_from_py_object_no_sync");
        if (managed != NULL)
            dlp_delete(managed, DLPACK_PY_VERSIONED);
        if ((operations == NULL && (uint32_t)want->device <= (uint32_t)kDLCPU) ||
            !PyErr_ExceptionMatches(PyExc_BufferError))
            return -1;
        PyErr_Clear(); /* device memory: a table may refuse what __dlpack__ exports */
        return DLP_CALL_METHOD;
    }
    if (dlp_meets_want_simple(managed, &managed->dl_tensor, want, is_basic) &&
        (is_ours || !dlp_is_complex(managed->dl_tensor.dtype))) {
        dlp_view_fill(v, managed, &managed->dl_tensor);
        return 0;
    }
    if (!dlp_is_unknown_major(managed, DLPACK_PY_VERSIONED) &&
        !dlp_can_use_table_tensor(&managed->dl_tensor, is_ours, obj, operations)) {
        dlp_delete(managed, DLPACK_PY_VERSIONED);
        return PyErr_Occurred() ? -1 : DLP_CALL_METHOD;
    }
    return dlp_take_managed_steal(managed, DLPACK_PY_VERSIONED, want, NULL, v);
}

/* As dlp_take_by_found_table, for any object: DLP_CALL_METHOD if it has no table. table: out; NULL: not wanted. */
static inline int
dlp_take_by_table(const dlp_import *import, const dlpack_py_operations *operations, const void **table,
                  dlpack_py_view *v)
{
    dlp_type_entry uncached;
    const dlp_type_entry *entry;

    if ((import->want->options & DLPACK_PY_WANT_NO_TABLE) != 0 || import->request->has_device ||
        import->request->copy != DLPACK_PY_COPY_AS_NEEDED) /* a table has no arguments for device and copy */
        return DLP_CALL_METHOD;
    entry = dlp_type_entry_get(dlp_state_get(), import->obj, &uncached);
    if (entry == NULL || entry->table == NULL)
        return entry == NULL ? -1 : DLP_CALL_METHOD;
    if (table != NULL)
        *table = entry->table;
    return dlp_take_by_found_table(entry, import->obj, import->want, dlp_is_basic_want(import->want), operations, v);
}

/* Fast path: returns the managed tensors in an object of a type with a table of this source file, if they are row-major
 * and aligned and meet basic requirements; else NULL. entry: the type's cached entry, or NULL. Runs no foreign code. */
static inline dlpack_py_embedded *
dlp_match_embedded(const dlp_type_entry *entry, PyObject *obj, const dlpack_py_want *want)
{
    dlpack_py_embedded *e;

    if (entry == NULL || entry->embedded_offset == 0 || (want->options & DLPACK_PY_WANT_NO_TABLE) != 0 ||
        !dlp_is_basic_want(want))
        return NULL;
    e = (dlpack_py_embedded *)(void *)((char *)obj + entry->embedded_offset);
    return e->manager.owner == obj && e->dtype != 0 && e->dtype == want->dtype && want->order != 'F' &&
                   e->versioned.dl_tensor.ndim == want->ndim && (!want->writable || e->versioned.flags == 0)
               ? e
               : NULL;
}

#if DLP_TYPE_ENTRIES
/* Takes the tensor of an object by its type's cached __dlpack__. A tensor that dlp_meets_want_simple accepts is taken
 * here, any other by dlp_finish_import_steal. Methods are cached only with a GIL: no critical section is needed.
 * Returns 0, or -1 with an exception. */
DLP_NOINLINE int
dlp_take_by_method(dlp_state *state, const dlp_type_entry *entry, PyObject *obj, const dlpack_py_want *want,
                   int is_basic, dlpack_py_view *v)
{
    PyObject *stack[2] = {obj, state->objects[DLP_CONST_VERSION]}, *method = entry->method, *returned;
    dlp_import import;
    DLManagedTensorVersioned *managed;

    Py_INCREF(method); /* the call may change the type */
    returned = PyObject_Vectorcall(method, stack, 1, state->objects[DLP_CONST_KWNAMES]);
    Py_DECREF(method);
    if (returned != NULL && PyCapsule_CheckExact(returned)) {
        managed = (DLManagedTensorVersioned *)PyCapsule_GetPointer(returned, DLP_CAPSULE_NAME(DLPACK_PY_VERSIONED));
        if (managed == NULL)
            PyErr_Clear(); /* a capsule of another name */
        else if (dlp_meets_want_simple(managed, &managed->dl_tensor, want, is_basic)) {
            dlp_view_fill(v, managed, &managed->dl_tensor);
            (void)PyCapsule_SetName(returned, DLP_USED_CAPSULE_NAME(DLPACK_PY_VERSIONED)); /* commit point (K4) */
            Py_DECREF(returned);
            if (PyErr_Occurred())
                PyErr_WriteUnraisable(NULL); /* of the capsule's destructor */
            return 0;
        }
    }
    import = dlp_import_make(want, NULL, obj);
    if (returned == NULL && PyErr_ExceptionMatches(PyExc_TypeError))
        returned = dlp_call_dlpack_again(state, &import);
    return dlp_finish_import_steal(returned, &import, v);
}
#endif

/* Fast path of dlpack_py_consume, for types in the cache. Instructions of a call without and with it (CPython
 * 3.11, gcc 12, float64 of shape (3, 4)): NumPy array 1810 and 1462, own object with embedded tensors 740 and 366. */
DLP_NOINLINE int
dlp_consume_cached(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
#if DLP_TYPE_ENTRIES
    const dlpack_py_want *required = want != NULL ? want : &dlp_empty_want;
    dlp_state *state = dlp_state_get();
    dlp_type_entry *entry = dlp_type_entry_cached(state, Py_TYPE(obj));
    dlpack_py_embedded *e = dlp_match_embedded(entry, obj, required);
    dlp_import import;
    int is_basic, result;

    if (e != NULL) {
        Py_INCREF(obj);
        dlp_view_fill(v, &e->versioned, &e->versioned.dl_tensor);
        return 0;
    }
    dlp_view_clear(v); /* empty while foreign code runs */
    if (entry != NULL && (required->options & DLPACK_PY_WANT_NO_TABLE) == 0 &&
        ((is_basic = dlp_is_basic_want(required)) != 0 || dlp_check_want(required, NULL) == 0)) {
        if (entry->table != NULL) {
            if ((result = dlp_take_by_found_table(entry, obj, required, is_basic, NULL, v)) != DLP_CALL_METHOD)
                return result;
            import = dlp_import_make(required, NULL, obj);
            return dlp_finish_import_steal(dlp_call_dlpack(&import), &import, v);
        }
        if (entry->method != NULL)
            return dlp_take_by_method(state, entry, obj, required, is_basic, v);
    }
    if (state == NULL)
        return -1;
#endif
    return dlpack_py_consume_request(obj, NULL, want, v);
}

/* ---- Borrowing ---------------------------------------------------------- */

/* dlpack_py_borrow, by the table of the type. entry: the cached entry of the type, or NULL. */
DLP_NOINLINE int
dlp_borrow_by_table(const dlp_type_entry *entry, PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    const dlpack_py_want *required = want != NULL ? want : &dlp_empty_want;
    const int is_basic = dlp_is_basic_want(required);
    dlpack_py_want lent_want; /* *required without options to copy or to write: a lent tensor is read as it is */
    dlp_import import;
    dlp_type_entry uncached;
    dlp_export *copy;
    dlpack_py_error error;
    DLManagedTensor lent; /* only dl_tensor is filled: dlp_view_prepare reads nothing else of a legacy tensor */
    int is_ours, lends;

    if (required->writable || (required->options & DLPACK_PY_WANT_NO_TABLE) != 0 ||
        (!is_basic && dlp_check_want(required, NULL) < 0)) /* dlpack_py_consume raises the error */
        return dlpack_py_consume(obj, want, v);
    if (entry == NULL && (entry = dlp_type_entry_get(dlp_state_get(), obj, &uncached)) == NULL) {
        dlp_view_clear(v);
        return -1;
    }
    if (entry->table == NULL || entry->table->dltensor_from_py_object_no_sync == NULL)
        return dlpack_py_consume(obj, want, v);
    is_ours = entry->is_ours;                           /* foreign code may change *entry */
    memset(&lent.dl_tensor, 0, sizeof(lent.dl_tensor)); /* some tables leave fields unset (X8) */
    lends = entry->table->dltensor_from_py_object_no_sync(obj, &lent.dl_tensor) == 0 && !PyErr_Occurred() &&
            (is_ours || !dlp_is_complex(lent.dl_tensor.dtype)); /* complex: is_conj() may free lent memory (X9) */
    if (lends && dlp_meets_want_simple(NULL, &lent.dl_tensor, required, is_basic)) {
        dlp_view_fill(v, NULL, &lent.dl_tensor);
        return 0;
    }
    dlp_view_clear(v);
    lent_want = *required;
    lent_want.options &= ~(DLPACK_PY_WANT_COPY_IF_NEEDED | DLPACK_PY_WANT_LEGACY_IS_WRITABLE);
    import = dlp_import_make(&lent_want, NULL, NULL);
    if (lends && lent.dl_tensor.dtype.bits >= 8 && /* else may be padded (X3) */
        lent.dl_tensor.device.device_type == kDLCPU &&
        dlp_view_prepare(v, &lent, DLPACK_PY_LEGACY, &import, &copy, &error) == 0)
        return 0;
    if (PyErr_Occurred() && dlp_is_fatal())
        return -1;
    PyErr_Clear(); /* if dlpack_py_consume fails too, it raises its own exception */
    return dlpack_py_consume(obj, want, v);
}

/* dlpack_py_borrow: as dlpack_py_consume, for the length of a call.
 *
 * Release the view before Python code runs and before obj can be freed. Without a GIL, borrow only memory that does not
 * move while obj lives. The call itself may run Python code: of several arguments, borrow only the last one. A type
 * with an exchange table lends its tensor: no reference is taken, no export is made, and v->readonly is
 * DLPACK_PY_READ_ONLY_UNKNOWN: it has no flags (X3). Otherwise, and for want->writable, this is dlpack_py_consume. */
DLP_NOINLINE DLP_MUST_CHECK int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    const dlpack_py_want *required = want != NULL ? want : &dlp_empty_want;
    dlp_state *state = dlp_state_get();
    const dlp_type_entry *entry = dlp_type_entry_cached(state, Py_TYPE(obj));
    dlpack_py_embedded *e = dlp_match_embedded(entry, obj, required);

    if (e != NULL && e->versioned.flags == 0 && !required->writable) { /* saves 400 of 607 instructions */
        dlp_view_fill(v, NULL, &e->versioned.dl_tensor);
        return 0;
    }
    return state == NULL ? (dlp_view_clear(v), -1) : dlp_borrow_by_table(entry, obj, want, v);
}

/* ---- A table for your type ---------------------------------------------- */

/* Plans the export of an offer by a table. For data on a device, puts the table's stream into request (X4). */
static inline int
dlp_table_plan(const dlpack_py_exchange *ours, const dlpack_py_offer *offer, dlpack_py_request *request,
               dlpack_py_plan *plan)
{
    dlpack_py_work_stream work = {0, 0};

    if (dlp_plan(offer, request, plan) < 0)
        return -1;
    if (!dlp_operates_on(offer->operations, plan->device))
        return 0;
    if (offer->operations->get_work_stream == NULL) {
        PyErr_SetString(PyExc_BufferError, "the device operations of this producer name no stream for exchange tables");
        return -1;
    }
    work.device_id = plan->device.device_id;
    if (offer->operations->get_work_stream(&ours->api, &work) < 0)
        return -1;
    request->stream.kind = DLPACK_PY_STREAM_HANDLE;
    request->stream.handle = work.handle;
    return 0;
}

/* Exports an offer by a table. Returns 0, or -1 with an exception. */
static inline int
dlp_table_export(const dlpack_py_exchange *ours, const dlpack_py_offer *offer, dlpack_py_request *request,
                 DLManagedTensorVersioned **out)
{
    dlp_state *state;
    dlpack_py_plan plan;
    void *managed = offer->embedded != NULL ? dlp_export_embedded(offer, request) : NULL;

    if (managed == NULL) {
        if ((state = dlp_state_get()) == NULL || dlp_table_plan(ours, offer, request, &plan) < 0 ||
            (managed = dlp_export_offer(state, offer, &plan)) == NULL)
            return -1;
        if (!plan.makes_copy && offer->pending_count > 0 && offer->operations->make_ready(offer, request, &plan) < 0) {
            dlp_delete(managed, plan.form);
            return -1;
        }
    }
    *out = (DLManagedTensorVersioned *)managed;
    return 0;
}

/* Lends the tensor of an offer. Returns 0, or -1 with an exception. */
static inline int
dlp_table_lend(const dlpack_py_exchange *ours, const dlpack_py_offer *offer, dlpack_py_request *request, DLTensor *out)
{
    const DLTensor *t = offer->tensor;
    const char *why;
    dlpack_py_plan plan;
    dlpack_py_error error;

    if (dlp_table_plan(ours, offer, request, &plan) < 0)
        return -1;
    why = (offer->options & DLPACK_PY_OFFER_DO_NOT_LEND) != 0         ? "has a shape or strides that are temporary"
          : plan.makes_copy                                           ? "is exported as a copy only"
          : (plan.flags & DLPACK_PY_FLAG_READ_ONLY) != 0              ? "is read-only"
          : (plan.flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? "is padded"
                                                                      : NULL;
    if (why == NULL && offer->pending_count > 0) {
        if (offer->operations->make_ready(offer, request, &plan) < 0)
            return -1;
        if (dlpack_py_validate(t, offer->flags, &error) < 0) /* other threads may have changed it meanwhile */
            return dlpack_py_raise(&error);
    }
    if (why == NULL && t->ndim > 0 && t->strides == NULL)
        why = "has no strides in its object";
    if (why != NULL) { /* X3 */
        PyErr_Format(PyExc_BufferError, "the data %s and cannot be borrowed: ask for a managed tensor", why);
        return -1;
    }
    *out = *t;
    dlp_normalize(out, dlp_is_empty(out));
    return 0;
}

/* Raises ValueError where a parameter of a table's function is NULL (X6). */
static inline int
dlp_check_pointer(const void *pointer, const char *text)
{
    if (pointer == NULL)
        PyErr_SetString(PyExc_ValueError, text);
    return pointer == NULL ? -1 : 0;
}
#define DLP_CHECK_OUT(out) dlp_check_pointer(out, "out is NULL, a place for the result was wanted")

/* Raises TypeError for an object of another type (X7), BufferError if its class overrides __dlpack__ or the table. */
static inline int
dlp_table_check_object(const dlpack_py_exchange *ours, PyObject *object)
{
    dlp_state *state = dlp_state_get();
    const dlp_type_entry *entry;
    dlp_type_entry uncached;
    PyObject *type;

    if (object == NULL)
        PyErr_SetString(PyExc_TypeError, "the object is NULL");
    if (object == NULL || (entry = dlp_type_entry_get(state, object, &uncached)) == NULL)
        return -1;
    if (entry->is_ours && entry->table == &ours->api)
        return 0;
    type = dlp_registered_type(dlp_type_cache_get(state), Py_TYPE(object), &ours->api); /* object keeps it alive */
    Py_XDECREF(type);
    if (PyErr_Occurred())
        return -1;
    if (type == NULL)
        return dlp_raise_value(PyExc_TypeError, "%.200U is not of the type that this table belongs to", object);
    return dlp_raise_value(PyExc_BufferError,
                           "%.200U overrides __dlpack__ or the table: its objects are exported by __dlpack__", object);
}

/* The name of the exception of an error code. */
DLP_COLD const char *
dlp_error_kind(int32_t code)
{
    static const char kinds[][13] = {"BufferError", "ValueError",   "TypeError",
                                     "MemoryError", "RuntimeError", "SystemError"};
    return kinds[code - 1];
}

/* managed_tensor_allocator. Needs no thread state (X5). */
static inline int
dlp_table_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                   void (*set_error)(void *context, const char *kind, const char *message))
{
    dlpack_py_error error;

    if (out != NULL)
        *out = NULL;
    if (out == NULL || prototype == NULL)
        (void)dlp_fail(&error, DLPACK_PY_VALUE_ERROR, "%s is NULL", out == NULL ? "out" : "prototype");
    else if ((*out = dlpack_py_allocate(prototype, &error)) != NULL)
        return 0;
    if (set_error != NULL)
        set_error(context, dlp_error_kind(error.code), error.text);
    return -1;
}

/* managed_tensor_from_py_object_no_sync, with out; dltensor_from_py_object_no_sync, with lent. */
static inline int
dlp_table_from_object(const dlpack_py_exchange *ours, void *py_object, DLManagedTensorVersioned **out, DLTensor *lent)
{
    PyObject *const object = (PyObject *)py_object;
    dlpack_py_request request = {{0, 0}, {DLPACK_PY_PROTOCOL_MAJOR, 0}, 0, {kDLCPU, 0}, 0};
    dlpack_py_offer offer;
    int result = -1;

    if (out != NULL)
        *out = NULL;
    if ((out == NULL && DLP_CHECK_OUT(lent) < 0) || dlp_table_check_object(ours, object) < 0)
        return -1;
    DLP_CRITICAL_SECTION(object); /* as in dlpack_py_produce_described */
    if (dlp_call_describe(object, ours->describe, NULL, &offer) == 0) {
        dlp_exports_add(offer.exports, 1); /* the operations of a device may let other threads run */
        result =
            out != NULL ? dlp_table_export(ours, &offer, &request, out) : dlp_table_lend(ours, &offer, &request, lent);
        dlp_exports_add(offer.exports, -1);
    }
    DLP_CRITICAL_SECTION_END();
    return result;
}

/* managed_tensor_to_py_object_no_sync. like: the new object has this type, or the base of it that has the table. like
 * NULL: the new object has the type to which the table was added last. */
static inline int
dlp_table_to_object(const dlpack_py_exchange *ours, PyTypeObject *like, DLManagedTensorVersioned *managed, void **out)
{
    PyObject *type = NULL;
    dlpack_py_view v;

    if (out != NULL)
        *out = NULL;
    if (dlp_check_pointer(managed, "the managed tensor is NULL") < 0)
        return -1;
    if (DLP_CHECK_OUT(out) == 0 &&
        (type = dlp_registered_type(dlp_type_cache_get(dlp_state_get()), like, &ours->api)) == NULL &&
        !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "this interpreter has no type with this exchange table");
    if (type == NULL) {
        dlp_delete(managed, DLPACK_PY_VERSIONED);
        return -1;
    }
    memset(&v, 0, sizeof(v));
    if (dlp_take_managed_steal(managed, DLPACK_PY_VERSIONED, ours->want, NULL, &v) == 0)
        *out = ours->make_steal((PyTypeObject *)type, &v);
    Py_DECREF(type);
    return *out == NULL ? -1 : 0;
}

/* current_work_stream. Work on memory that the CPU can read is done when a call returns: it has no stream (X4). */
static inline int
dlp_table_stream(const dlpack_py_exchange *ours, DLDeviceType type, int32_t id, void **out)
{
    char name[DLPACK_PY_TEXT_SIZE];

    if (DLP_CHECK_OUT(out) < 0)
        return -1;
    *out = NULL;
    if (dlpack_py_is_cpu_readable(dlp_make_device((int32_t)type, id)))
        return 0;
    if (ours->work_stream != NULL)
        return ours->work_stream(type, id, out);
    PyErr_Format(PyExc_BufferError,
                 "device is %s, and the exchange table of the type is for memory that the CPU can read",
                 dlpack_py_device_text(dlp_make_device((int32_t)type, id), name));
    return -1;
}

/* Define the exchange table of a type, at file scope, with a semicolon.
 *
 * name         of the static dlpack_py_exchange, for dlpack_py_exchange_add
 * describe     a dlpack_py_describe that offers the data in place. A tensor without strides cannot be borrowed (X3)
 * make_steal   PyObject *(PyTypeObject *type, dlpack_py_view *v): a new object of the type that owns the view; v is
 *              stolen, also on failure. Export the view by dlpack_py_offer_view: read-only data stays read-only
 * want         const dlpack_py_want *: what make_steal can use; NULL: any tensor that the CPU can read
 * work_stream  of DLPACK_PY_EXCHANGE_API_WITH_STREAM; without it, only __dlpack__ exports memory that the CPU cannot
 *              read. int (DLDeviceType type, int32_t id, void **stream): sets *stream to the stream on which the
 *              calling thread works on such objects, as __dlpack__ takes it: (void *)dlpack_cuda_stream(s), for
 *              example; NULL, too, is the legacy default stream. Returns 0, or -1 with BufferError (unknown device).
 *              describe puts the stream of an object into pending: the header orders the work on it before *stream. The
 *              data that make_steal gets is ready on *stream (X4) */
#define DLPACK_PY_EXCHANGE_API(name, describe, make_steal, want) \
    DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, describe, make_steal, want, NULL)
#define DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, describe, make_steal, want, work_stream) \
    DLP_DEFINE_TABLE(name, describe, make_steal, want, work_stream, 0)

/* As DLPACK_PY_EXCHANGE_API, for objects that have a dlpack_py_embedded at this offset, all zero as tp_alloc makes it.
 * Once dlpack_py_embed has filled it, consumers in this source file skip describe: both must agree. */
#define DLPACK_PY_EXCHANGE_API_EMBEDDED(name, describe, make_steal, want, offset) \
    DLP_DEFINE_TABLE(name, describe, make_steal, want, NULL, offset)

#define DLP_TABLE_HEADER {{DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR}, NULL}
#define DLP_TABLE(name) \
    {DLP_TABLE_HEADER, dlp_table_allocate, name##_from_object, name##_to_object, name##_lend, name##_stream}
#define DLP_DEFINE_TABLE(name, describe, make_steal, want, work_stream, embedded)                                \
    static int name##_from_object(void *object, DLManagedTensorVersioned **out);                                 \
    static int name##_lend(void *object, DLTensor *out);                                                         \
    static int name##_to_object(DLManagedTensorVersioned *managed, void **out);                                  \
    static int name##_stream(DLDeviceType type, int32_t id, void **out);                                         \
    static const dlpack_py_exchange name = {DLP_TABLE(name), describe, make_steal, want, work_stream, embedded}; \
    static int name##_from_object(void *object, DLManagedTensorVersioned **out)                                  \
    {                                                                                                            \
        return dlp_table_from_object(&name, object, out, NULL);                                                  \
    }                                                                                                            \
    static int name##_lend(void *object, DLTensor *out)                                                          \
    {                                                                                                            \
        return dlp_table_from_object(&name, object, NULL, out);                                                  \
    }                                                                                                            \
    static int name##_to_object(DLManagedTensorVersioned *managed, void **out)                                   \
    {                                                                                                            \
        return dlp_table_to_object(&name, NULL, managed, out);                                                   \
    }                                                                                                            \
    static int name##_stream(DLDeviceType type, int32_t id, void **out)                                          \
    {                                                                                                            \
        return dlp_table_stream(&name, type, id, out);                                                           \
    }                                                                                                            \
    struct dlp_semicolon /* takes the caller's semicolon */

/* Sets an attribute of a type; without the limited API also of a static or immutable one. */
DLP_COLD int
dlp_type_set_attribute(PyTypeObject *type, PyObject *name, PyObject *value)
{
    int failed = PyObject_SetAttr((PyObject *)type, name, value);
#ifndef Py_LIMITED_API
    if (failed && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        failed = PyDict_SetItem(type->tp_dict, name, value);
    }
#endif
    return failed;
}

/* Add an exchange table to a new type (a static one: after PyType_Ready). The table makes objects of the type that got
 * it last, and keeps no type alive. Returns 0; -1 with SystemError (not ready; bad want), TypeError or MemoryError. */
DLP_COLD int
dlpack_py_exchange_add(PyTypeObject *type, const dlpack_py_exchange *exchange)
{
    dlp_state *state = dlp_state_get();
    dlp_type_cache *cache = dlp_type_cache_get(state);
    PyObject *reference, *capsule;
    dlp_registration *record;
    dlpack_py_error error;

    if (cache == NULL)
        return -1;
#ifndef Py_LIMITED_API
    if (!PyType_HasFeature(type, Py_TPFLAGS_READY)) {
        PyErr_Format(PyExc_SystemError, "%.200s is not ready: call PyType_Ready before dlpack_py_exchange_add",
                     type->tp_name);
        return -1;
    }
#endif
    if (exchange->want != NULL && dlp_check_want(exchange->want, &error) < 0)
        return dlpack_py_raise(&error);
    record = (dlp_registration *)DLPACK_PY_MALLOC(sizeof(*record));
    reference = record == NULL ? PyErr_NoMemory() : PyWeakref_NewRef((PyObject *)type, NULL);
    capsule = reference == NULL ? NULL : PyCapsule_New((void *)(uintptr_t)&exchange->api, DLP_TABLE_NAME, NULL);
    if (capsule == NULL || dlp_type_set_attribute(type, state->objects[DLP_STR_EXCHANGE_API], capsule) < 0) {
        Py_XDECREF(reference);
        Py_XDECREF(capsule);
        if (record != NULL)
            DLPACK_PY_FREE(record);
        return -1;
    }
    Py_DECREF(capsule);
    record->reference = reference;
    record->exchange = exchange;
    do
        record->next = (dlp_registration *)DLP_LOAD(&cache->registrations);
    while (!DLP_COMPARE_EXCHANGE(&cache->registrations, (dlp_atomic)record->next, (dlp_atomic)record));
    PyType_Modified(type); /* drops what was cached before the attribute and the record were set */
    return 0;
}

/* ---- Results like an argument ------------------------------------------- */

/* SetError of a table's allocator, perhaps without a thread state: keeps the first report, which is raised later. */
DLP_COLD void
dlp_keep_first_error(void *context, const char *kind, const char *message)
{
    dlpack_py_error *error = (dlpack_py_error *)context;
    int32_t code = DLPACK_PY_BUFFER_ERROR;

    if (error->code != 0)
        return;
    while (code < DLPACK_PY_RUNTIME_ERROR && (kind == NULL || strcmp(kind, dlp_error_kind(code)) != 0))
        code++;
    (void)dlp_fail(error, code, "%s", message != NULL ? message : "the allocator of the exchange table failed");
}

/* dlpack_py_allocate_like: memory for a result, from the library of an argument.
 *
 * like        the argument; the exchange table of its type allocates. Without one, and for Py_None: dlpack_py_allocate
 * prototype   its rank, shape, dtype and device are used
 * v           out: as dlpack_py_consume; on any device, writable; in the memory order that the table chooses
 *
 * Returns 0, or -1 with BufferError, MemoryError, the library's exception or an error of dlpack_py_init. */
DLP_NOINLINE DLP_MUST_CHECK int
dlpack_py_allocate_like(PyObject *like, const DLTensor *prototype, dlpack_py_view *v)
{
    dlpack_py_want want;
    dlpack_py_request request;
    int64_t shape[DLPACK_PY_MAX_NDIM]; /* a copy: the table may write to it */
    DLTensor t = *prototype;
    DLManagedTensorVersioned *managed = NULL;
    const dlp_type_entry *entry;
    dlp_type_entry uncached;
    dlpack_py_error error;

    dlp_view_clear(v);
    entry = dlp_type_entry_get(dlp_state_get(), like, &uncached);
    if (entry == NULL)
        return -1;
    if (entry->table == NULL) {
        managed = dlpack_py_allocate(prototype, &error);
        if (managed == NULL)
            return dlpack_py_raise(&error);
        dlp_view_fill(v, managed, &managed->dl_tensor);
        return 0;
    }
    if (dlp_prepare_prototype(&t, &error) < 0)
        return dlpack_py_raise(&error);
    if (t.ndim > 0)
        memcpy(shape, t.shape, (size_t)t.ndim * sizeof(int64_t));
    t.shape = shape;
    t.data = NULL;
    error.code = 0;
    if (entry->table->managed_tensor_allocator(&t, &managed, &error, dlp_keep_first_error) != 0 || managed == NULL) {
        dlp_keep_first_error(&error, NULL, NULL); /* where nothing was reported */
        return PyErr_Occurred() ? -1 : dlpack_py_raise(&error);
    }
    if (PyErr_Occurred()) {
        dlp_delete(managed, DLPACK_PY_VERSIONED);
        return -1;
    }
    memset(&request, 0, sizeof(request));
    request.has_device = prototype->device.device_type != kDLCPU; /* checks the device id, which CPU memory lacks */
    request.device = prototype->device;
    want = dlpack_py_want_like(prototype);
    want.device = (int32_t)prototype->device.device_type;
    want.writable = 1;
    want.alignment = 1;
    want.name = "the exchange table's allocator";
    return dlp_take_managed_steal(managed, DLPACK_PY_VERSIONED, &want, &request, v);
}

DLP_COLD void
dlp_free_view(void *context)
{
    dlpack_py_release((dlpack_py_view *)context);
    DLPACK_PY_FREE(context);
}

/* A versioned managed tensor of v->tensor; NULL with an exception. Steals the view, also on failure. */
DLP_COLD DLManagedTensorVersioned *
dlp_managed_from_view_steal(dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)v->managed;
    const uint64_t readonly = v->readonly != DLPACK_PY_WRITABLE ? DLPACK_PY_FLAG_READ_ONLY : 0;
    const DLTensor *t = &v->tensor;
    dlpack_py_view *moved = NULL;
    dlpack_py_error error;

    if (v->form == DLPACK_PY_VERSIONED && (managed->flags & readonly) == readonly &&
        memcmp(&managed->dl_tensor, t, sizeof(*t)) == 0 && managed->manager_ctx != NULL && t->byte_offset == 0 &&
        !dlp_is_empty(t) && dlp_exported_device(t->device).device_id == t->device.device_id) {
        /* dlp_normalize would change nothing; v->allocated is NULL */
        dlp_view_clear(v);
        return managed;
    }
    if (dlpack_py_validate(t, v->flags, &error) < 0) /* the caller may have changed it */
        (void)dlpack_py_raise(&error);
    else if ((moved = (dlpack_py_view *)DLPACK_PY_MALLOC(sizeof(*moved))) == NULL ||
             (managed = dlpack_py_wrap(t, dlp_export_flags(t, v->flags) | readonly, moved, dlp_free_view)) == NULL)
        (void)PyErr_NoMemory();
    else {
        dlpack_py_move(moved, v);
        return managed;
    }
    if (moved != NULL)
        DLPACK_PY_FREE(moved);
    dlpack_py_release(v);
    return NULL;
}

/* __dlpack__ of a result. Gives the tensor away once; keeps and exports it where a consumer may call again. */
static inline PyObject *
dlp_result_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlp_object *result = DLP_OBJECT(self);
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_request request;

    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    DLP_CRITICAL_SECTION(self); /* of two calls at once, only one gets the tensor */
    if (dlp_requested_form(&request) == DLPACK_PY_LEGACY || request.copy == DLPACK_PY_COPY_ALWAYS ||
        request.has_device || request.stream.kind == DLPACK_PY_STREAM_HANDLE ||
        result->view.tensor.device.device_type != kDLCPU) /* the consumer may ask again (C5) */
        result->is_exported = 1;
    if (result->view.managed == NULL)
        PyErr_SetString(PyExc_BufferError, "the result was exported already: __dlpack__ gives its tensor away once");
    else if (!result->is_exported)
        managed = dlp_managed_from_view_steal(&result->view);
    DLP_CRITICAL_SECTION_END();
    if (managed != NULL)
        return dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
    return PyErr_Occurred() ? NULL : dlp_object_dlpack(self, args, nargs, kwnames);
}

DLP_COLD PyObject *
dlp_result_type_new(void)
{
    static PyMethodDef methods[] = {DLPACK_PY_METHODS(dlp_result_dlpack, dlp_object_dlpack_device),
                                    {NULL, NULL, 0, NULL}};
    PyType_Slot slots[] = {DLP_OBJECT_SLOTS, {Py_tp_methods, methods}, {0, NULL}};
    return dlp_object_type_from_slots("dlpack_py.Result", slots);
}

/* Finds the from_dlpack for obj: of its array namespace, of its type's module, or of a package around that module.
 * Caches that of the last static type until the type changes: saves 3,578 of 6,495 instructions. NULL with an error. */
DLP_COLD PyObject *
dlp_find_from_dlpack(dlp_state *state, PyObject *obj)
{
    PyObject *const *names = state->objects;
    PyObject *module, *found, *name = NULL, *rest;

#if DLP_TYPE_ENTRIES && !defined(Py_GIL_DISABLED)
    dlp_type_cache *cache = dlp_type_cache_get(state); /* not NULL: the caller has read an entry */
    const unsigned int tag = dlp_type_tag(Py_TYPE(obj));
    if (cache->from_dlpack_type == Py_TYPE(obj) && cache->from_dlpack_tag == tag) {
        Py_INCREF(cache->from_dlpack);
        return cache->from_dlpack;
    }
#endif
    module = PyObject_CallMethodObjArgs(obj, names[DLP_STR_ARRAY_NAMESPACE], NULL);
    for (;;) {
        found = module == NULL ? NULL : PyObject_GetAttr(module, names[DLP_STR_FROM_DLPACK]);
        Py_XDECREF(module);
        if (found != NULL ||
            !(PyErr_ExceptionMatches(PyExc_AttributeError) ||
              (name != NULL && (PyErr_ExceptionMatches(PyExc_ImportError) || PyErr_ExceptionMatches(PyExc_TypeError)))))
            break;
        PyErr_Clear();
        if (name == NULL)
            name = PyObject_GetAttr((PyObject *)Py_TYPE(obj), names[DLP_STR_MODULE]);
        else {
            rest = PyObject_CallMethod(name, "rpartition", "s", "."); /* the package that contains the module */
            Py_DECREF(name);
            name = rest == NULL ? NULL : PySequence_GetItem(rest, 0);
            Py_XDECREF(rest);
        }
        if (name == NULL || !PyUnicode_Check(name) || PyUnicode_GetLength(name) == 0)
            break;
        module = PyImport_Import(name);
    }
    Py_XDECREF(name);
    if (found == NULL && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_AttributeError)))
        (void)dlp_raise_value(PyExc_TypeError, "cannot make an object like %.200U: its library has no from_dlpack",
                              obj);
#if DLP_TYPE_ENTRIES && !defined(Py_GIL_DISABLED)
    if (found != NULL && !PyType_HasFeature(Py_TYPE(obj), Py_TPFLAGS_HEAPTYPE) && tag != 0) {
        cache->from_dlpack_type = Py_TYPE(obj);
        cache->from_dlpack_tag = tag;
        Py_INCREF(found);
        Py_XSETREF(cache->from_dlpack, found);
    }
#endif
    return found;
}

/* Ask before a computation whether dlpack_py_return_like_steal knows how to make an array like an argument: by a table,
 * or by a from_dlpack. Returns 0, or -1 with TypeError, or with the exception of an import or of an attribute. */
DLP_COLD int
dlpack_py_check_like(PyObject *like)
{
    dlp_state *state = dlp_state_get();
    dlp_type_entry uncached;
    const dlp_type_entry *entry = dlp_type_entry_get(state, like, &uncached);
    PyObject *from_dlpack;

    if (entry == NULL || entry->table != NULL)
        return entry == NULL ? -1 : 0;
    from_dlpack = dlp_find_from_dlpack(state, like);
    Py_XDECREF(from_dlpack);
    return from_dlpack == NULL ? -1 : 0;
}

/* dlpack_py_return_like_steal: a result as an array of the library of an argument.
 *
 * like   the argument. The exchange table of its type makes the array; a table of this source file makes it of like's
 *        type, or of the base that has the table. Without a table, a from_dlpack makes it: that of the array namespace,
 *        of the type's module, or of a package that contains this module
 * v      the array's data, which is ready, or on the stream that the table names; stolen, also on failure
 *
 * Returns a new reference; NULL with ValueError (v is borrowed), TypeError (no from_dlpack), MemoryError, or others. */
DLP_NOINLINE PyObject *
dlpack_py_return_like_steal(PyObject *like, dlpack_py_view *v)
{
    dlp_state *state = dlp_state_get();
    PyObject *result, *from_dlpack, *made = NULL;
    DLManagedTensorVersioned *managed;
    const DLPackExchangeAPI *table;
    const dlp_type_entry *entry;
    dlp_type_entry uncached;
    void *out = NULL;

    if (v->managed == NULL)
        PyErr_SetString(PyExc_ValueError, "the view is empty or borrowed, a view that owns its tensor was wanted");
    if (v->managed == NULL || (entry = dlp_type_entry_get(state, like, &uncached)) == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    table = entry->table;
    if (table != NULL) {
        managed = dlp_managed_from_view_steal(v); /* runs foreign code only if it fails: entry stays valid */
        if (managed == NULL)
            return NULL;
        if ((entry->is_ours
                 ? dlp_table_to_object((const dlpack_py_exchange *)(const void *)table, Py_TYPE(like), managed, &out)
                 : table->managed_tensor_to_py_object_no_sync(managed, &out)) == 0)
            made = (PyObject *)out;
        if (made != NULL && !PyErr_Occurred())
            return made;
        (void)dlp_raise_table_error("managed_tensor_to_py_object_no_sync");
        if (made != NULL)
            dlp_decref_keeping_error(made);
        return NULL;
    }
    result = dlp_object_new_steal(&state->types[DLP_RESULT_TYPE], dlp_result_type_new, v);
    from_dlpack = result == NULL ? NULL : dlp_find_from_dlpack(state, like);
    if (from_dlpack != NULL)
        made = PyObject_Vectorcall(from_dlpack, &result, 1, NULL);
    Py_XDECREF(from_dlpack);
    Py_XDECREF(result);
    return made;
}

DLP_QUIET_END
#endif /* DLPACK_EXCHANGE_LAYER */

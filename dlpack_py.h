/* dlpack_py.h - implement the DLPack Python protocol in a C or C++ extension
 * Version 0.1.0, for DLPack 1.0 and newer, CPython 3.9 and newer, C99 and C++11
 * Copyright (c) 2026 the dlpack_py authors
 * SPDX-License-Identifier: MIT
 * The full licence stands at the end of this file.
 * The clause ids (P1, K4, ...) name the rules of the protocol that a piece of code
 * serves: docs/protocol.md of the project lists them.
 */

/* Synopsis
 *
 *   static PyObject *                                     // a producer: __dlpack__
 *   thing_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
 *   {
 *       Thing *thing = (Thing *)self;
 *       DLTensor t = dlpack_py_cpu(thing->values, DLPACK_PY_FLOAT64, 1, &thing->length, NULL);
 *       return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
 *   }
 *
 *   static PyMethodDef thing_methods[] = {
 *       DLPACK_PY_METHODS(thing_dlpack, dlpack_py_cpu_device),
 *       {NULL, NULL, 0, NULL}
 *   };
 *
 *   static PyObject *                                     // a consumer
 *   sum(PyObject *module, PyObject *obj)
 *   {
 *       static const int64_t any_length[1] = {-1};
 *       dlpack_py_want want = {0};
 *       dlpack_py_view v;
 *       const double *values;
 *       double total = 0.0;
 *       int64_t i;
 *       (void)module;
 *       want.dtype = DLPACK_PY_FLOAT64;
 *       want.ndim = 1;
 *       want.shape = any_length;
 *       want.order = 'C';
 *       if (dlpack_py_consume(obj, &want, &v) < 0)
 *           return NULL;
 *       values = (const double *)dlpack_py_data(&v);
 *       for (i = 0; i < v.tensor.shape[0]; i++)
 *           total += values[i];
 *       dlpack_py_release(&v);
 *       return PyFloat_FromDouble(total);
 *   }
 *
 * Nothing is linked but Python. Every call of layer 2 needs an attached thread
 * state, but those that say otherwise: dlpack_py_release, dlpack_py_move,
 * dlpack_py_wrap, dlpack_py_allocate and every deleter may run on any thread at any
 * time. Layer 1 needs no Python.
 */

/* Contents
 *
 *   0.1 Switches
 *   0.2 Includes
 *   0.3 Differences of compilers and dlpack.h
 *   1.1 Errors as code and text
 *   1.2 Dtypes
 *   1.3 Devices
 *   1.4 Sizes, strides and validation
 *   1.5 Order
 *   1.6 Extent and overlap
 *   1.7 Strided copy
 *   1.8 Stream arguments
 *   1.9 Pending work
 *   1.10 Requirements
 *   2.1 The one-call functions
 *   2.2 Differences of Pythons
 *   2.3 Exceptions
 *   2.4 State and the end of an interpreter
 *   2.5 Managed tensors and their deleters
 *   2.6 Capsules and their destructors
 *   2.7 Requests
 *   2.8 Producing
 *   2.9 What types offer
 *   2.10 Calling __dlpack__
 *   2.11 Taking a tensor
 *   2.12 Consuming
 *   2.13 Results like an argument
 *   2.14 The exchange table of a type
 */

/* ---- 0.1 Switches ------------------------------------------------------- */

/* All are optional. Define them before the include, the same in every file of
 * one extension; other extensions in the process may choose otherwise.
 *
 * DLPACK_PY_NO_PYTHON      leaves only layer 1, which needs no Python.h.
 * DLPACK_PY_MALLOC(size), DLPACK_PY_FREE(pointer)
 *                          memory of managed tensors, shapes and copies. Called
 *                          on any thread, with no interpreter: never PyMem_*.
 * DLPACK_PY_EXIT_WAIT      how long the end of an interpreter waits for deleters
 *                          that are running on other threads, in seconds.
 * DLPACK_PY_WITH_CUDA, DLPACK_PY_WITH_ROCM
 *                          include dlpack_cuda.h, dlpack_rocm.h as well.
 * DLPACK_PY_PLAIN          1 turns the fast paths off; for tests.
 */
#ifndef DLPACK_PY_EXIT_WAIT
#  define DLPACK_PY_EXIT_WAIT 10
#endif
#ifndef DLPACK_PY_PLAIN
#  define DLPACK_PY_PLAIN 0
#endif

#if defined(DLPACK_PY_VERSION) && DLPACK_PY_VERSION != 0x000100
#  error "two versions of dlpack_py.h meet here: put the newer one first on the include path"
#endif

/* ---- 0.2 Includes ------------------------------------------------------- */

#if !defined(DLPACK_PY_NO_PYTHON) && !defined(DLPACK_PY_PROTOCOL_LAYER)
#  include <Python.h> /* first: it sets feature macros for the C library */
#endif

/* What C++ would call old-style is what C has. */
#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic push
#  pragma GCC diagnostic ignored "-Wold-style-cast"
#  pragma GCC diagnostic ignored "-Wzero-as-null-pointer-constant"
#  ifndef __clang__
#    pragma GCC diagnostic ignored "-Wuseless-cast"
#  endif
#endif

#ifndef DLPACK_PY_TENSOR_LAYER
#define DLPACK_PY_TENSOR_LAYER

#define DLPACK_PY_VERSION 0x000100 /* 0.1.0: a byte for each part */
#define DLPACK_PY_VERSION_STRING "0.1.0"

#ifndef DLPACK_DLPACK_H_ /* dlpack.h was not included yet, from wherever it is */
#  if !defined(__has_include)
#    include <dlpack/dlpack.h>
#  elif __has_include("dlpack.h") /* beside this file, before the system's, which may be old */
#    include "dlpack.h"
#  else
#    include "dlpack/dlpack.h"
#  endif
#endif
#if !defined(DLPACK_MAJOR_VERSION) || DLPACK_MAJOR_VERSION != 1
#  error "dlpack_py.h needs dlpack.h 1.0 or a newer 1.x, and found another: apache-tvm-ffi from pip has the newest"
#endif

#include <inttypes.h> /* PRId64: extents in messages */
#include <stdarg.h>   /* messages */
#include <stddef.h>   /* size_t, NULL */
#include <stdio.h>    /* vsnprintf: messages */
#include <stdlib.h>   /* malloc, free */
#include <string.h>   /* memcpy, memcmp, strcmp */

#if defined(DLPACK_PY_MALLOC) != defined(DLPACK_PY_FREE)
#  error "define both of DLPACK_PY_MALLOC and DLPACK_PY_FREE, or neither"
#endif
#ifndef DLPACK_PY_MALLOC
#  define DLPACK_PY_MALLOC(size) malloc(size)
#  define DLPACK_PY_FREE(pointer) free(pointer)
#endif

/* ---- 0.3 Differences of compilers and dlpack.h -------------------------- */

/* What this header speaks, whatever the dlpack.h it was compiled with. */
#define DLPACK_PY_PROTOCOL_MAJOR 1
#define DLPACK_PY_PROTOCOL_MINOR 3

/* The flags of DLManagedTensorVersioned. dlpack.h gives them as unsigned long,
 * whose complement loses bits where long has 32; 1.0 lacks the last. */
#define DLPACK_PY_FLAG_READ_ONLY UINT64_C(1)
#define DLPACK_PY_FLAG_IS_COPIED UINT64_C(2)
#define DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED UINT64_C(4)

#define DLPACK_PY_MAX_NDIM 64 /* NumPy's maximum (D8) */

/* GCC and clang check formats and overflow; others do without or by hand. */
#ifndef DLPACK_PY_IMPL_HAS_GNU_BUILTINS
#  if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5)
#    define DLPACK_PY_IMPL_HAS_GNU_BUILTINS 1
#  else
#    define DLPACK_PY_IMPL_HAS_GNU_BUILTINS 0
#  endif
#endif
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS
#  define DLPACK_PY_IMPL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#  define DLPACK_PY_IMPL_PRINTF(text, first)
#endif

/* What rarely runs: errors, first use, second tries. Not inlined, so that fast paths stay small. */
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS
#  define DLPACK_PY_IMPL_RARE static __attribute__((cold, noinline, unused))
#else
#  define DLPACK_PY_IMPL_RARE static inline
#endif

/* The C exchange API came with dlpack.h 1.3. */
#ifndef DLPACK_PY_HAS_EXCHANGE_API
#  define DLPACK_PY_HAS_EXCHANGE_API (DLPACK_MINOR_VERSION >= 3)
#endif

#if !defined(__cplusplus) && DLPACK_MINOR_VERSION < 2 /* 1.0 and 1.1 name this struct for C++ only */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;
#endif

/* C99 and C++11 have no atomics in common. All are sequentially consistent. */
typedef intptr_t dlpack_py_impl_word;
#if defined(__GNUC__)
#  define DLPACK_PY_IMPL_LOAD(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_STORE(word, value) __atomic_store_n(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_SWAP(word, value) __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_ADD(word, value) __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_OR(word, value) __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST)
#elif defined(_MSC_VER) && defined(_WIN64)
#  include <intrin.h>
#  define DLPACK_PY_IMPL_LOAD(word) _InterlockedOr64((volatile __int64 *)(word), 0)
#  define DLPACK_PY_IMPL_STORE(word, value) ((void)_InterlockedExchange64((volatile __int64 *)(word), value))
#  define DLPACK_PY_IMPL_SWAP(word, value) _InterlockedExchange64((volatile __int64 *)(word), value)
#  define DLPACK_PY_IMPL_ADD(word, value) _InterlockedExchangeAdd64((volatile __int64 *)(word), value)
#  define DLPACK_PY_IMPL_OR(word, value) _InterlockedOr64((volatile __int64 *)(word), value)
#elif defined(_MSC_VER)
#  include <intrin.h>
#  define DLPACK_PY_IMPL_LOAD(word) _InterlockedOr((volatile long *)(word), 0)
#  define DLPACK_PY_IMPL_STORE(word, value) ((void)_InterlockedExchange((volatile long *)(word), value))
#  define DLPACK_PY_IMPL_SWAP(word, value) _InterlockedExchange((volatile long *)(word), value)
#  define DLPACK_PY_IMPL_ADD(word, value) _InterlockedExchangeAdd((volatile long *)(word), value)
#  define DLPACK_PY_IMPL_OR(word, value) _InterlockedOr((volatile long *)(word), value)
#else
#  error "dlpack_py.h needs the atomic built-ins of GCC, clang or MSVC"
#endif

/* The enums of dlpack.h stand in structs that cross libraries (-fshort-enums). */
typedef char dlpack_py_impl_enum_has_4_bytes[sizeof(DLDeviceType) == 4 ? 1 : -1];
typedef char dlpack_py_impl_device_has_8_bytes[sizeof(DLDevice) == 8 ? 1 : -1];
typedef char dlpack_py_impl_dtype_has_4_bytes[sizeof(DLDataType) == 4 ? 1 : -1];

/* a * b and a + b in *out; -1 where they leave int64_t. */
static inline int
dlpack_py_impl_multiply(int64_t a, int64_t b, int64_t *out)
{
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS
    return __builtin_mul_overflow(a, b, out) ? -1 : 0;
#else
    if ((a > 0 && b > 0 && a > INT64_MAX / b) || (a > 0 && b < 0 && b < INT64_MIN / a) ||
        (a < 0 && b > 0 && a < INT64_MIN / b) || (a < 0 && b < 0 && a < INT64_MAX / b))
        return -1;
    *out = a * b;
    return 0;
#endif
}

static inline int
dlpack_py_impl_add(int64_t a, int64_t b, int64_t *out)
{
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS
    return __builtin_add_overflow(a, b, out) ? -1 : 0;
#else
    if ((b > 0 && a > INT64_MAX - b) || (b < 0 && a < INT64_MIN - b))
        return -1;
    *out = a + b;
    return 0;
#endif
}

/* dlpack.h has no const: what it points to is not written through it here. */
static inline void *
dlpack_py_impl_unconst(const void *pointer)
{
    return (void *)(uintptr_t)pointer;
}

/* ---- 1.1 Errors as code and text ---------------------------------------- */

/* Which Python exception an error of layer 1 becomes. */
#define DLPACK_PY_BUFFER_ERROR 1
#define DLPACK_PY_VALUE_ERROR 2
#define DLPACK_PY_TYPE_ERROR 3
#define DLPACK_PY_MEMORY_ERROR 4
#define DLPACK_PY_RUNTIME_ERROR 5

/* Filled by a function that returned -1; untouched otherwise. */
typedef struct dlpack_py_error {
    int32_t code;    /* DLPACK_PY_..._ERROR */
    int32_t curable; /* 1: a copy of the data would do */
    char text[248];  /* the value that came and what was wanted */
} dlpack_py_error;

/* Fills *error, which may be NULL; returns -1, so that it can be returned. */
DLPACK_PY_IMPL_RARE int DLPACK_PY_IMPL_PRINTF(3, 4)
dlpack_py_impl_fail(dlpack_py_error *error, int32_t code, const char *format, ...)
{
    va_list values;
    if (error != NULL) {
        error->code = code;
        error->curable = 0;
        va_start(values, format);
        vsnprintf(error->text, sizeof(error->text), format, values);
        va_end(values);
    }
    return -1;
}

static inline int
dlpack_py_impl_curable(dlpack_py_error *error)
{
    if (error != NULL)
        error->curable = 1;
    return -1;
}

/* The name of that exception. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_error_kind(int32_t code)
{
    switch (code) {
    case DLPACK_PY_VALUE_ERROR: return "ValueError";
    case DLPACK_PY_TYPE_ERROR: return "TypeError";
    case DLPACK_PY_MEMORY_ERROR: return "MemoryError";
    case DLPACK_PY_RUNTIME_ERROR: return "RuntimeError";
    default: return "BufferError";
    }
}

/* ---- 1.2 Dtypes --------------------------------------------------------- */

/* A dtype as one integer, never 0: for tables, comparison and switch. The codes
 * are the specification's, written out so that all exist with any dlpack.h. */
#define DLPACK_PY_DTYPE(code, bits, lanes) ((code) * 0x1000000u + (bits) * 0x10000u + (lanes))

#define DLPACK_PY_BOOL DLPACK_PY_DTYPE(6u, 8u, 1u)
#define DLPACK_PY_INT8 DLPACK_PY_DTYPE(0u, 8u, 1u)
#define DLPACK_PY_INT16 DLPACK_PY_DTYPE(0u, 16u, 1u)
#define DLPACK_PY_INT32 DLPACK_PY_DTYPE(0u, 32u, 1u)
#define DLPACK_PY_INT64 DLPACK_PY_DTYPE(0u, 64u, 1u)
#define DLPACK_PY_UINT8 DLPACK_PY_DTYPE(1u, 8u, 1u)
#define DLPACK_PY_UINT16 DLPACK_PY_DTYPE(1u, 16u, 1u)
#define DLPACK_PY_UINT32 DLPACK_PY_DTYPE(1u, 32u, 1u)
#define DLPACK_PY_UINT64 DLPACK_PY_DTYPE(1u, 64u, 1u)
#define DLPACK_PY_FLOAT16 DLPACK_PY_DTYPE(2u, 16u, 1u)
#define DLPACK_PY_FLOAT32 DLPACK_PY_DTYPE(2u, 32u, 1u)
#define DLPACK_PY_FLOAT64 DLPACK_PY_DTYPE(2u, 64u, 1u)
#define DLPACK_PY_BFLOAT16 DLPACK_PY_DTYPE(4u, 16u, 1u)
#define DLPACK_PY_COMPLEX32 DLPACK_PY_DTYPE(5u, 32u, 1u)
#define DLPACK_PY_COMPLEX64 DLPACK_PY_DTYPE(5u, 64u, 1u)
#define DLPACK_PY_COMPLEX128 DLPACK_PY_DTYPE(5u, 128u, 1u)
#define DLPACK_PY_FLOAT8_E3M4 DLPACK_PY_DTYPE(7u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E4M3 DLPACK_PY_DTYPE(8u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E4M3B11FNUZ DLPACK_PY_DTYPE(9u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E4M3FN DLPACK_PY_DTYPE(10u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E4M3FNUZ DLPACK_PY_DTYPE(11u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E5M2 DLPACK_PY_DTYPE(12u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E5M2FNUZ DLPACK_PY_DTYPE(13u, 8u, 1u)
#define DLPACK_PY_FLOAT8_E8M0FNU DLPACK_PY_DTYPE(14u, 8u, 1u)
#define DLPACK_PY_FLOAT6_E2M3FN DLPACK_PY_DTYPE(15u, 6u, 1u)
#define DLPACK_PY_FLOAT6_E3M2FN DLPACK_PY_DTYPE(16u, 6u, 1u)
#define DLPACK_PY_FLOAT4_E2M1FN DLPACK_PY_DTYPE(17u, 4u, 1u)
#define DLPACK_PY_BCOMPLEX32 DLPACK_PY_DTYPE(18u, 32u, 1u)
#define DLPACK_PY_OPAQUE_HANDLE64 DLPACK_PY_DTYPE(3u, 64u, 1u)

#define DLPACK_PY_TEXT_SIZE 48 /* holds every dtype and device as text */

static inline uint32_t
dlpack_py_dtype_pack(DLDataType dtype)
{
    return DLPACK_PY_DTYPE((uint32_t)dtype.code, (uint32_t)dtype.bits, (uint32_t)dtype.lanes);
}

static inline DLDataType
dlpack_py_dtype_unpack(uint32_t dtype)
{
    DLDataType out;
    out.code = (uint8_t)(dtype >> 24);
    out.bits = (uint8_t)(dtype >> 16 & 0xff);
    out.lanes = (uint16_t)(dtype & 0xffff);
    return out;
}

/* The tensor's dtype, to compare with or switch over DLPACK_PY_FLOAT32 ... */
static inline uint32_t
dlpack_py_dtype(const DLTensor *t)
{
    return dlpack_py_dtype_pack(t->dtype);
}

/* A name for each code; bits is the only width that it may have, 0 for any. */
typedef struct dlpack_py_impl_dtype_name {
    const char *name;
    uint8_t code, bits;
} dlpack_py_impl_dtype_name;

#define DLPACK_PY_IMPL_DTYPE_NAMES 19

static inline const dlpack_py_impl_dtype_name *
dlpack_py_impl_dtype_names(void)
{
    static const dlpack_py_impl_dtype_name names[DLPACK_PY_IMPL_DTYPE_NAMES] = {
        {"int", 0, 0},
        {"uint", 1, 0},
        {"float", 2, 0},
        {"handle", 3, 0},
        {"bfloat", 4, 0},
        {"complex", 5, 0},
        {"bool", 6, 8},
        {"float8_e3m4", 7, 8},
        {"float8_e4m3", 8, 8},
        {"float8_e4m3b11fnuz", 9, 8},
        {"float8_e4m3fn", 10, 8},
        {"float8_e4m3fnuz", 11, 8},
        {"float8_e5m2", 12, 8},
        {"float8_e5m2fnuz", 13, 8},
        {"float8_e8m0fnu", 14, 8},
        {"float6_e2m3fn", 15, 6},
        {"float6_e3m2fn", 16, 6},
        {"float4_e2m1fn", 17, 4},
        {"bcomplex", 18, 0},
    };
    return names;
}

/* Is the dtype one that the specification allows, or of a code that came after
 * it (C8)? Returns 0, or -1 with BufferError. */
DLPACK_PY_IMPL_RARE int
dlpack_py_check_dtype(DLDataType dtype, dlpack_py_error *error)
{
    int only_bits = 0;
    if (dtype.code < DLPACK_PY_IMPL_DTYPE_NAMES)
        only_bits = dlpack_py_impl_dtype_names()[dtype.code].bits;
    if (dtype.lanes == 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "dtype (%d, %d, 0) has no lanes, it must have 1 or more", dtype.code, dtype.bits);
    if (dtype.bits == 0 || (only_bits != 0 && dtype.bits != only_bits))
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "dtype code %d has %d bits, it must have %s%d",
                                   dtype.code, dtype.bits, only_bits == 0 ? "at least " : "",
                                   only_bits == 0 ? 1 : only_bits);
    if ((dtype.code == 5 || dtype.code == 18) && dtype.bits % 2 != 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "dtype complex has %d bits, its two halves need an even number", dtype.bits);
    return 0;
}

/* A dtype as text: "float32", "float8_e4m3fn", "float32x4" for four lanes;
 * "dtype(200, 8, 1)" for what has no name. Returns text. */
static inline const char *
dlpack_py_dtype_text(uint32_t dtype, char text[DLPACK_PY_TEXT_SIZE])
{
    const DLDataType d = dlpack_py_dtype_unpack(dtype);
    const dlpack_py_impl_dtype_name *known;
    char bits[4] = "", lanes[8] = "";

    if (d.code >= DLPACK_PY_IMPL_DTYPE_NAMES || dlpack_py_check_dtype(d, NULL) < 0) {
        snprintf(text, DLPACK_PY_TEXT_SIZE, "dtype(%d, %d, %d)", d.code, d.bits, d.lanes);
        return text;
    }
    known = &dlpack_py_impl_dtype_names()[d.code];
    if (known->bits == 0)
        snprintf(bits, sizeof(bits), "%d", d.bits);
    if (d.lanes != 1)
        snprintf(lanes, sizeof(lanes), "x%d", d.lanes);
    snprintf(text, DLPACK_PY_TEXT_SIZE, "%s%s%s", known->name, bits, lanes);
    return text;
}

/* Reads a decimal without sign or leading zero, from 1 to highest; moves *text
 * behind it. Returns 0 where there is none. */
DLPACK_PY_IMPL_RARE uint32_t
dlpack_py_impl_parse_number(const char **text, uint32_t highest)
{
    uint32_t number = 0;
    if (**text == '0')
        return 0;
    for (; **text >= '0' && **text <= '9'; ++*text) {
        const uint32_t units = (uint32_t)(**text - '0');
        if (number > (highest - units) / 10)
            return 0;
        number = number * 10 + units;
    }
    return number;
}

/* The dtype that text names, as dlpack_py_dtype_text writes it; 0 if none. */
DLPACK_PY_IMPL_RARE uint32_t
dlpack_py_dtype_parse(const char *text)
{
    int i;
    for (i = 0; i < DLPACK_PY_IMPL_DTYPE_NAMES; i++) {
        const dlpack_py_impl_dtype_name *known = &dlpack_py_impl_dtype_names()[i];
        const size_t length = strlen(known->name);
        const char *rest = text + length;
        uint32_t bits = known->bits, lanes = 1, dtype;

        if (strncmp(text, known->name, length) != 0)
            continue;
        if (bits == 0)
            bits = dlpack_py_impl_parse_number(&rest, 255);
        if (*rest == 'x') {
            rest++;
            lanes = dlpack_py_impl_parse_number(&rest, 65535);
            if (lanes == 1)
                continue;
        }
        dtype = DLPACK_PY_DTYPE((uint32_t)known->code, bits, lanes);
        if (*rest == '\0' && dlpack_py_check_dtype(dlpack_py_dtype_unpack(dtype), NULL) == 0)
            return dtype;
    }
    return 0;
}

/* Bits from one element to the next. Sub-byte elements are packed, unless flags
 * say that each lane has its own byte (D6). */
static inline uint32_t
dlpack_py_item_bits(DLDataType dtype, uint64_t flags)
{
    const uint32_t bits = dtype.bits < 8 && (flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? 8u : dtype.bits;
    return bits * dtype.lanes;
}

/* Bytes of a single element: the next whole number for packed sub-byte types. */
static inline size_t
dlpack_py_itemsize(DLDataType dtype, uint64_t flags)
{
    return (dlpack_py_item_bits(dtype, flags) + 7) / 8;
}

/* ---- 1.3 Devices -------------------------------------------------------- */

typedef struct dlpack_py_impl_device_name {
    const char *name;
    int32_t type;
} dlpack_py_impl_device_name;

#define DLPACK_PY_IMPL_DEVICE_NAMES 16

static inline const dlpack_py_impl_device_name *
dlpack_py_impl_device_names(void)
{
    static const dlpack_py_impl_device_name names[DLPACK_PY_IMPL_DEVICE_NAMES] = {
        {"cpu", 1},     {"cuda", 2},     {"cuda_host", 3},  {"opencl", 4},   {"vulkan", 7},        {"metal", 8},
        {"vpi", 9},     {"rocm", 10},    {"rocm_host", 11}, {"ext_dev", 12}, {"cuda_managed", 13}, {"oneapi", 14},
        {"webgpu", 15}, {"hexagon", 16}, {"maia", 17},      {"trn", 18},
    };
    return names;
}

static inline DLDevice
dlpack_py_device_make(int32_t type, int32_t id)
{
    DLDevice device;
    device.device_type = (DLDeviceType)type;
    device.device_id = id;
    return device;
}

/* Can the host read the memory? CPU, and pinned or managed by CUDA or ROCm. */
static inline int
dlpack_py_is_cpu_readable(DLDevice device)
{
    const int32_t type = (int32_t)device.device_type;
    return type == 1 || type == 3 || type == 11 || type == 13;
}

/* A device as it is said: the host's memory has no numbers (D9). */
static inline DLDevice
dlpack_py_impl_device_said(DLDevice device)
{
    if (dlpack_py_is_cpu_readable(device))
        device.device_id = 0;
    return device;
}

/* Is data an address, so that an offset can be added to it? An OpenCL, Vulkan or
 * Metal handle is not. */
static inline int
dlpack_py_impl_has_address(DLDevice device)
{
    const int32_t type = (int32_t)device.device_type;
    return dlpack_py_is_cpu_readable(device) || type == 2 || type == 10;
}

/* The name of a device type, NULL for one that came after this header. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_device_name_of(int32_t type)
{
    int i;
    for (i = 0; i < DLPACK_PY_IMPL_DEVICE_NAMES; i++) {
        if (dlpack_py_impl_device_names()[i].type == type)
            return dlpack_py_impl_device_names()[i].name;
    }
    return NULL;
}

/* A device as text: "cpu", "cuda:1"; "device(99, 0)" for what has no name. The
 * host has no numbers: "cpu:1" is written only for what wrongly has one (D9). */
static inline const char *
dlpack_py_device_text(DLDevice device, char text[DLPACK_PY_TEXT_SIZE])
{
    const char *name = dlpack_py_impl_device_name_of((int32_t)device.device_type);
    if (name == NULL)
        snprintf(text, DLPACK_PY_TEXT_SIZE, "device(%" PRId32 ", %" PRId32 ")", (int32_t)device.device_type,
                 device.device_id);
    else if (device.device_id == 0 && dlpack_py_is_cpu_readable(device))
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%s", name);
    else
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%s:%" PRId32, name, device.device_id);
    return text;
}

/* The device that text names: "cpu", "cuda" (its number is then 0), "cuda:1".
 * Returns 0, or -1 with ValueError. */
DLPACK_PY_IMPL_RARE int
dlpack_py_device_parse(const char *text, DLDevice *device, dlpack_py_error *error)
{
    int i;
    for (i = 0; i < DLPACK_PY_IMPL_DEVICE_NAMES; i++) {
        const dlpack_py_impl_device_name *known = &dlpack_py_impl_device_names()[i];
        const size_t length = strlen(known->name);
        const char *rest = text + length;
        uint32_t id = 0;

        if (strncmp(text, known->name, length) != 0)
            continue;
        if (rest[0] == ':' && rest[1] == '0') {
            rest += 2;
        }
        else if (rest[0] == ':') {
            rest++;
            id = dlpack_py_impl_parse_number(&rest, INT32_MAX);
            if (id == 0)
                continue;
        }
        if (*rest != '\0')
            continue;
        *device = dlpack_py_device_make(known->type, (int32_t)id);
        return 0;
    }
    return dlpack_py_impl_fail(error, DLPACK_PY_VALUE_ERROR,
                               "device is '%.60s', a name such as 'cpu' or 'cuda:1' was wanted", text);
}

/* ---- 1.4 Sizes, strides and validation ---------------------------------- */

/* Describe memory that the CPU can read; nothing is checked or copied.
 *
 * data      the first element, whatever the signs of the strides
 * dtype     DLPACK_PY_FLOAT32 ...
 * shape     ndim extents, strides: ndim steps in elements, or NULL for row-major;
 *           both are pointed to, and must live as long as the result is used
 */
static inline DLTensor
dlpack_py_cpu(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    DLTensor t;
    t.data = data;
    t.device = dlpack_py_device_make(kDLCPU, 0);
    t.ndim = ndim;
    t.dtype = dlpack_py_dtype_unpack(dtype);
    t.shape = (int64_t *)dlpack_py_impl_unconst(shape);
    t.strides = (int64_t *)dlpack_py_impl_unconst(strides);
    t.byte_offset = 0;
    return t;
}

/* The address of the first element: data + byte_offset (D1). NULL stays NULL. */
static inline void *
dlpack_py_first(const DLTensor *t)
{
    return t->data == NULL ? NULL : (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
}

static inline int
dlpack_py_is_empty(const DLTensor *t)
{
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 1;
    }
    return 0;
}

/* The number of elements of a validated tensor; 1 for rank 0 (D3). */
static inline int64_t
dlpack_py_size(const DLTensor *t)
{
    uint64_t size = 1; /* wraps on the way to 0 where a later extent is 0 */
    int32_t i;
    for (i = 0; i < t->ndim; i++)
        size *= (uint64_t)t->shape[i];
    return (int64_t)size;
}

/* Whole bytes that hold n >= 0 elements side by side; -1 where that leaves int64_t. */
static inline int
dlpack_py_impl_bytes(int64_t n, DLDataType dtype, uint64_t flags, int64_t *bytes)
{
    const int64_t bits = dlpack_py_item_bits(dtype, flags);
    if (bits % 8 == 0)
        return dlpack_py_impl_multiply(n, bits / 8, bytes);
    /* Eight elements fill as many bytes as one has bits. */
    if (dlpack_py_impl_multiply(n / 8, bits, bytes) < 0)
        return -1;
    return dlpack_py_impl_add(*bytes, (n % 8 * bits + 7) / 8, bytes);
}

/* Bytes that a compact copy of a validated tensor takes; packed sub-byte types
 * are rounded up once, for the whole (D6). */
static inline int64_t
dlpack_py_nbytes(const DLTensor *t, uint64_t flags)
{
    int64_t bytes = 0;
    (void)dlpack_py_impl_bytes(dlpack_py_size(t), t->dtype, flags, &bytes);
    return bytes;
}

/* Compact strides in elements for a shape.
 *
 * order     'F': first index fastest; anything else: last
 * strides   out, ndim of them
 *
 * An extent of 0 counts as 1, and what would leave int64_t stays as it is: both
 * only where there are no elements, whose strides carry no meaning (D5).
 */
static inline void
dlpack_py_strides(int32_t ndim, const int64_t *shape, char order, int64_t *strides)
{
    int64_t step = 1, next;
    int32_t k;
    for (k = 0; k < ndim; k++) {
        const int32_t i = order == 'F' ? k : ndim - 1 - k;
        strides[i] = step;
        if (shape[i] > 1 && dlpack_py_impl_multiply(step, shape[i], &next) == 0)
            step = next;
    }
}

/* The tensor's strides, or those that NULL stands for, written to room (D4). */
static inline const int64_t *
dlpack_py_impl_strides(const DLTensor *t, int64_t room[DLPACK_PY_MAX_NDIM])
{
    if (t->strides != NULL)
        return t->strides;
    dlpack_py_strides(t->ndim, t->shape, 'C', room);
    return room;
}

/* How far the elements of a tensor reach, in bytes from the first one.
 *
 * flags     DLPACK_PY_FLAG_*: padded sub-byte types
 * lowest    out: 0 or below, where strides are negative
 * highest   out: one past the last byte; both are 0 without elements
 *
 * Returns 0; -1 where the extent leaves int64_t, never for a validated tensor.
 */
static inline int
dlpack_py_extent(const DLTensor *t, uint64_t flags, int64_t *lowest, int64_t *highest)
{
    int64_t below = 0, above = 1, reach; /* in elements; below counts downwards */
    int32_t i;

    *lowest = *highest = 0;
    if (dlpack_py_is_empty(t))
        return 0;
    if (t->strides == NULL)
        return dlpack_py_impl_bytes(dlpack_py_size(t), t->dtype, flags, highest);
    for (i = 0; i < t->ndim; i++) {
        const int64_t stride = t->strides[i];
        int64_t *side = stride < 0 ? &below : &above;
        if (t->shape[i] == 1)
            continue;
        if (stride == INT64_MIN ||
            dlpack_py_impl_multiply(t->shape[i] - 1, stride < 0 ? -stride : stride, &reach) < 0 ||
            dlpack_py_impl_add(*side, reach, side) < 0)
            return -1;
    }
    if (dlpack_py_impl_bytes(below, t->dtype, flags, lowest) < 0 ||
        dlpack_py_impl_bytes(above, t->dtype, flags, highest) < 0)
        return -1;
    *lowest = -*lowest;
    return 0;
}

/* Rank, extents and the number of elements (D8). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_shape(const DLTensor *t, dlpack_py_error *error)
{
    int64_t size = 1;
    int32_t i;

    if (t->ndim < 0 || t->ndim > DLPACK_PY_MAX_NDIM)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "ndim is %" PRId32 ", it must be from 0 to %d",
                                   t->ndim, DLPACK_PY_MAX_NDIM);
    if (t->ndim > 0 && t->shape == NULL)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "shape is NULL, ndim is %" PRId32, t->ndim);
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                       "shape[%" PRId32 "] is %" PRId64 ", it must not be negative", i, t->shape[i]);
    }
    if (dlpack_py_is_empty(t))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (dlpack_py_impl_multiply(size, t->shape[i], &size) < 0)
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                       "shape has 2^63 elements or more, at shape[%" PRId32 "] = %" PRId64, i,
                                       t->shape[i]);
    }
    return 0;
}

/* The memory that the elements take (D8). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_memory(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    const uint64_t base = (uint64_t)(uintptr_t)t->data;
    int64_t bytes, lowest, highest;

    if (dlpack_py_is_empty(t))
        return 0;
    if (t->data == NULL)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "data is NULL, the tensor has %" PRId64 " elements",
                                   dlpack_py_size(t));
    if (dlpack_py_impl_bytes(dlpack_py_size(t), t->dtype, flags, &bytes) < 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "%" PRId64 " elements take 2^63 bytes or more",
                                   dlpack_py_size(t));
    if (dlpack_py_extent(t, flags, &lowest, &highest) < 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "strides reach 2^63 bytes or further");
    if (!dlpack_py_impl_has_address(t->device))
        return 0;
    if (t->byte_offset > UINTPTR_MAX - base)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "byte_offset is %" PRIu64 ", added to data it leaves the address range",
                                   t->byte_offset);
    if ((uint64_t)-lowest > base + t->byte_offset || (uint64_t)highest > UINTPTR_MAX - (base + t->byte_offset))
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "strides reach from byte %" PRId64 " to %" PRId64 ", which leaves the address range",
                                   lowest, highest);
    return 0;
}

/* All of clause D8. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_all(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    if (dlpack_py_check_dtype(t->dtype, error) < 0 || dlpack_py_impl_check_shape(t, error) < 0)
        return -1;
    return dlpack_py_impl_check_memory(t, flags, error);
}

/* Is the tensor plainly in order? One pass over shape and strides for the dtypes in
 * daily use; what it does not pass, dlpack_py_validate judges. Saves 180 of the 250
 * instructions that (3, 4) takes there. */
static inline int
dlpack_py_impl_is_plain(const DLTensor *t)
{
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS && !DLPACK_PY_PLAIN
    const uint64_t first = (uint64_t)(uintptr_t)t->data + t->byte_offset;
    const int64_t itemsize = t->dtype.bits / 8;
    int64_t size = 1, below = 0, above = 1, reach; /* in elements, as in dlpack_py_extent */
    int32_t i;

    if (t->dtype.code > 2 || t->dtype.lanes != 1 || t->dtype.bits % 8 != 0 || itemsize == 0 || t->data == NULL ||
        first < t->byte_offset || first > UINTPTR_MAX || t->ndim > DLPACK_PY_MAX_NDIM ||
        (t->ndim > 0 && t->shape == NULL))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] <= 0 || __builtin_mul_overflow(size, t->shape[i], &size))
            return 0;
        if (t->strides == NULL)
            above = size;
        else if (t->strides[i] == INT64_MIN || __builtin_mul_overflow(t->shape[i] - 1, t->strides[i], &reach) ||
                 (reach < 0 ? __builtin_sub_overflow(below, reach, &below)
                            : __builtin_add_overflow(above, reach, &above)))
            return 0;
    }
    return t->ndim >= 0 && !__builtin_mul_overflow(size, itemsize, &size) &&
           !__builtin_mul_overflow(below, itemsize, &below) && !__builtin_mul_overflow(above, itemsize, &above) &&
           (uint64_t)below <= first && (uint64_t)above <= UINTPTR_MAX - first;
#else
    (void)t;
    return 0;
#endif
}

/* Is the tensor one that can be worked on? All of clause D8, before anything is
 * read; the functions below expect it.
 *
 * flags   DLPACK_PY_FLAG_*: padded sub-byte types
 * error   out, on failure; may be NULL
 *
 * Returns 0, or -1 with BufferError. Needs no thread state.
 */
static inline int
dlpack_py_validate(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    return dlpack_py_impl_is_plain(t) ? 0 : dlpack_py_impl_check_all(t, flags, error);
}

/* ---- 1.5 Order ---------------------------------------------------------- */

/* Compact, in order of ever larger strides, whichever dimension they are of? */
static inline int
dlpack_py_impl_is_permuted(const DLTensor *t, const int64_t *strides)
{
    uint64_t left = 0, step = 1; /* left: one bit for each dimension to be placed */
    int32_t i, found;

    for (i = 0; i < t->ndim; i++)
        left |= (uint64_t)(t->shape[i] != 1) << i;
    while (left != 0) {
        for (found = -1, i = 0; i < t->ndim && found < 0; i++) {
            if ((left >> i & 1) != 0 && strides[i] > 0 && (uint64_t)strides[i] == step)
                found = i;
        }
        if (found < 0)
            return 0;
        left &= ~((uint64_t)1 << found);
        step *= (uint64_t)t->shape[found];
    }
    return 1;
}

/* Is the tensor compact in the given order?
 *
 * order   'C': last index fastest; 'F': first; 'A': either; 'K': in any order of
 *         the dimensions, as a transposed array is
 *
 * Returns 1 or 0, cannot fail. Strides count elements; those of dimensions of
 * size 1, and all of a tensor without elements, do not matter (D5); NULL is
 * row-major (D4). t has been validated. Needs no thread state.
 */
static inline int
dlpack_py_is_contiguous(const DLTensor *t, char order)
{
    int64_t row_major[DLPACK_PY_MAX_NDIM];
    const int64_t *strides = dlpack_py_impl_strides(t, row_major);
    uint64_t step = 1; /* wraps where there are no elements */
    int32_t k;

    if (order == 'A')
        return dlpack_py_is_contiguous(t, 'C') || dlpack_py_is_contiguous(t, 'F');
    if (order == 'K')
        return dlpack_py_is_empty(t) || dlpack_py_impl_is_permuted(t, strides);
    for (k = 0; k < t->ndim; k++) {
        const int32_t i = order == 'F' ? k : t->ndim - 1 - k;
        if (t->shape[i] == 1)
            continue;
        if ((uint64_t)strides[i] != step)
            return dlpack_py_is_empty(t);
        step *= (uint64_t)t->shape[i];
    }
    return 1;
}

/* ---- 1.6 Extent and overlap --------------------------------------------- */

/* A dimension of one tensor, or of two with equal strides: the distance of two elements in it is a multiple of step
 * from -below * step to above * step. */
typedef struct dlpack_py_impl_distance {
    int64_t step; /* > 0 */
    int64_t below, above;
} dlpack_py_impl_distance;

/* Inserts a dimension before those of a larger step. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_add_distance(dlpack_py_impl_distance *sorted, int32_t count, int64_t step, int64_t below, int64_t above)
{
    int32_t k;
    for (k = count; k > 0 && sorted[k - 1].step > step; k--)
        sorted[k] = sorted[k - 1];
    sorted[k].step = step;
    sorted[k].below = below;
    sorted[k].above = above;
}

/* Is each step longer than all dimensions of shorter steps together? 0 also where their sum leaves int64_t. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_nested(const dlpack_py_impl_distance *sorted, int32_t count)
{
    int64_t reach = 0, longest, next;
    int32_t k;
    for (k = 0; k < count; k++) {
        longest = sorted[k].below > sorted[k].above ? sorted[k].below : sorted[k].above;
        if (sorted[k].step <= reach)
            return 0;
        if (dlpack_py_impl_multiply(sorted[k].step, longest, &next) < 0 || dlpack_py_impl_add(reach, next, &reach) < 0)
            return 0;
    }
    return 1;
}

/* May two elements of the tensor share memory?
 *
 * Returns 0 where each stride is longer than the dimensions of shorter strides reach, as in slices, transposed and
 * reversed arrays; 1 otherwise: the strides repeat elements, or interleave them in a way that is not looked into.
 * t has been validated.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_overlaps_itself(const DLTensor *t)
{
    dlpack_py_impl_distance sorted[DLPACK_PY_MAX_NDIM];
    int32_t i, count = 0;

    if (t->strides == NULL || dlpack_py_is_empty(t))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] != 1)
            dlpack_py_impl_add_distance(sorted, count++, t->strides[i] < 0 ? -t->strides[i] : t->strides[i],
                                        t->shape[i] - 1, t->shape[i] - 1);
    }
    return !dlpack_py_impl_is_nested(sorted, count);
}

/* Are two elements of size bytes, which lie in nested dimensions, ever closer than size to the distance given? Looks at
 * the two multiples of the longest step that are near. effort: how many may be looked at; 1 when it is used up. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_may_meet(const dlpack_py_impl_distance *sorted, int32_t count, int64_t size, int64_t distance,
                        int32_t *effort)
{
    int64_t n, last;
    if (count == 0)
        return distance > -size && distance < size;
    n = distance / sorted[count - 1].step;
    if (distance < 0 && distance % sorted[count - 1].step != 0)
        n--; /* rounds down */
    for (last = n + 1; n <= last; n++) {
        if (n < -sorted[count - 1].below || n > sorted[count - 1].above)
            continue;
        if (--*effort <= 0 ||
            dlpack_py_impl_may_meet(sorted, count - 1, size, distance - n * sorted[count - 1].step, effort))
            return 1;
    }
    return 0;
}

/* Fills sorted with the dimensions of two tensors of equal strides, in bytes. Returns how many they are; -1 where the
 * strides differ, or bytes leave int64_t. */
DLPACK_PY_IMPL_RARE int32_t
dlpack_py_impl_common_distances(const DLTensor *a, const DLTensor *b, int64_t size, dlpack_py_impl_distance *sorted)
{
    int64_t room_a[DLPACK_PY_MAX_NDIM], room_b[DLPACK_PY_MAX_NDIM], step;
    const int64_t *strides_a = dlpack_py_impl_strides(a, room_a), *strides_b = dlpack_py_impl_strides(b, room_b);
    int32_t i, count = 0;

    if (a->ndim != b->ndim)
        return -1;
    for (i = 0; i < a->ndim; i++) {
        const int64_t stride = a->shape[i] == 1 ? strides_b[i] : strides_a[i];
        if ((a->shape[i] == 1 && b->shape[i] == 1) || stride == 0)
            continue;
        if ((a->shape[i] != 1 && b->shape[i] != 1 && strides_a[i] != strides_b[i]) || stride == INT64_MIN ||
            dlpack_py_impl_multiply(stride < 0 ? -stride : stride, size, &step) < 0)
            return -1;
        /* from an element of b to one of a */
        dlpack_py_impl_add_distance(sorted, count++, step, (stride < 0 ? a : b)->shape[i] - 1,
                                    (stride < 0 ? b : a)->shape[i] - 1);
    }
    return count;
}

/* May two tensors share memory?
 *
 * flags_a, flags_b   DLPACK_PY_FLAG_*: padded sub-byte types
 *
 * Returns 0 where their extents do not meet, and where tensors of equal strides interleave, as a[..., 0] and a[..., 1]
 * do; 1 otherwise. Both have been validated and have addresses on one device.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_overlap(const DLTensor *a, uint64_t flags_a, const DLTensor *b, uint64_t flags_b)
{
    const uint64_t first_a = (uint64_t)(uintptr_t)dlpack_py_first(a), first_b = (uint64_t)(uintptr_t)dlpack_py_first(b);
    const int64_t size = (int64_t)dlpack_py_itemsize(a->dtype, flags_a);
    int64_t lowest_a, highest_a, lowest_b, highest_b;
    dlpack_py_impl_distance sorted[DLPACK_PY_MAX_NDIM];
    int32_t count, effort = 1000;

    if (dlpack_py_is_empty(a) || dlpack_py_is_empty(b))
        return 0;
    if (dlpack_py_extent(a, flags_a, &lowest_a, &highest_a) < 0 ||
        dlpack_py_extent(b, flags_b, &lowest_b, &highest_b) < 0)
        return 1;
    if (first_a + (uint64_t)highest_a <= first_b - (uint64_t)-lowest_b ||
        first_b + (uint64_t)highest_b <= first_a - (uint64_t)-lowest_a)
        return 0;
    if (dlpack_py_item_bits(a->dtype, flags_a) % 8 != 0 || (int64_t)dlpack_py_itemsize(b->dtype, flags_b) != size ||
        dlpack_py_item_bits(b->dtype, flags_b) % 8 != 0)
        return 1;
    count = dlpack_py_impl_common_distances(a, b, size, sorted);
    if (count < 0 || !dlpack_py_impl_is_nested(sorted, count) ||
        (first_a < first_b ? first_b - first_a : first_a - first_b) > INT64_MAX)
        return 1;
    return dlpack_py_impl_may_meet(sorted, count, size, (int64_t)(first_b - first_a), &effort);
}

/* ---- 1.7 Strided copy --------------------------------------------------- */

/* Copies bits of a packed sub-byte type, lowest bit first (D6). Offsets in bits. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_copy_bits(char *to, int64_t to_bit, const char *from, int64_t from_bit, int64_t count)
{
    for (; count > 0; count--, to_bit++, from_bit++) {
        const int64_t to_byte = to_bit >> 3, from_byte = from_bit >> 3; /* rounds down, below 0 too */
        const unsigned bit = (unsigned)(unsigned char)from[from_byte] >> (from_bit & 7) & 1u;
        const unsigned kept = (unsigned)(unsigned char)to[to_byte] & ~(1u << (to_bit & 7));
        to[to_byte] = (char)(unsigned char)(kept | bit << (to_bit & 7));
    }
}

/* Copy the elements of src to dst, whatever their strides.
 *
 * dst, src   of one dtype and shape, on memory that the CPU can read, validated;
 *            they share no memory
 * flags      DLPACK_PY_FLAG_* of both: padded sub-byte types
 *
 * Returns 0, or -1 with BufferError when dtype or shape differ; then nothing is
 * written. Needs no thread state, allocates nothing.
 */
static inline int
dlpack_py_copy(const DLTensor *dst, const DLTensor *src, uint64_t flags, dlpack_py_error *error)
{
    const int64_t bits = dlpack_py_item_bits(src->dtype, flags);
    int64_t room_to[DLPACK_PY_MAX_NDIM], room_from[DLPACK_PY_MAX_NDIM], index[DLPACK_PY_MAX_NDIM] = {0};
    const int64_t *step_to, *step_from;
    int64_t to = 0, from = 0, row, run = 1, k; /* offsets in elements; run: elements moved at once */
    const char *first_from;
    char *first_to;
    int32_t i;

    if (dlpack_py_dtype(dst) != dlpack_py_dtype(src) || dst->ndim != src->ndim ||
        (src->ndim > 0 && memcmp(dst->shape, src->shape, (size_t)src->ndim * sizeof(int64_t)) != 0))
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "a copy needs source and destination of one dtype and shape");
    if (dlpack_py_is_empty(src))
        return 0;
    first_to = (char *)dlpack_py_first(dst);
    first_from = (const char *)dlpack_py_first(src);
    step_to = dlpack_py_impl_strides(dst, room_to);
    step_from = dlpack_py_impl_strides(src, room_from);
    /* Inner dimensions that are compact on both sides move as one run. */
    for (i = src->ndim; i > 0; i--) {
        if (src->shape[i - 1] != 1 && (step_to[i - 1] != run || step_from[i - 1] != run))
            break;
        run *= src->shape[i - 1];
    }
    row = i > 0 ? src->shape[--i] : 1; /* the innermost loop */
    for (;;) {
        for (k = 0; k < row; k++) {
            const int64_t at = k == 0 ? to : to + k * step_to[i], out_of = k == 0 ? from : from + k * step_from[i];
            if (bits % 8 == 0)
                memcpy(first_to + at * (bits / 8), first_from + out_of * (bits / 8), (size_t)(run * (bits / 8)));
            else if ((at * bits % 8 | out_of * bits % 8 | run * bits % 8) == 0) /* whole bytes */
                memcpy(first_to + at * bits / 8, first_from + out_of * bits / 8, (size_t)(run * bits / 8));
            else
                dlpack_py_impl_copy_bits(first_to, at * bits, first_from, out_of * bits, run * bits);
        }
        /* The next row: count up as an odometer does. */
        for (k = i - 1; k >= 0; k--) {
            if (++index[k] < src->shape[k]) {
                to += step_to[k];
                from += step_from[k];
                break;
            }
            to -= (src->shape[k] - 1) * step_to[k];
            from -= (src->shape[k] - 1) * step_from[k];
            index[k] = 0;
        }
        if (k < 0)
            return 0;
    }
}

/* ---- 1.8 Stream arguments ----------------------------------------------- */

#define DLPACK_PY_STREAM_NONE 0    /* None, or not given */
#define DLPACK_PY_STREAM_NO_SYNC 1 /* -1: do not synchronize */
#define DLPACK_PY_STREAM_HANDLE 2  /* an integer from 0 to the pointer's width */

/* The argument stream of __dlpack__ (S1). */
typedef struct dlpack_py_stream {
    int32_t kind;     /* DLPACK_PY_STREAM_... */
    uintptr_t handle; /* of DLPACK_PY_STREAM_HANDLE */
} dlpack_py_stream;

/* May a consumer ask for this stream with data on this device? The rules of P6,
 * S2 and S3; other devices take any handle. Returns 0, or -1 with ValueError. */
DLPACK_PY_IMPL_RARE int
dlpack_py_check_stream(DLDevice device, const dlpack_py_stream *stream, dlpack_py_error *error)
{
    const int32_t type = (int32_t)device.device_type;
    const char *wanted = NULL;
    char name[DLPACK_PY_TEXT_SIZE];

    if (stream->kind != DLPACK_PY_STREAM_HANDLE)
        return 0;
    if (type == 1 || type == 3 || type == 11)
        wanted = "None (or -1)";
    else if ((type == 2 || type == 13) && stream->handle == 0)
        wanted = "1 (legacy default), 2 (per-thread default) or a handle";
    else if (type == 10 && (stream->handle == 1 || stream->handle == 2))
        wanted = "0 (default) or a handle";
    if (wanted == NULL)
        return 0;
    return dlpack_py_impl_fail(error, DLPACK_PY_VALUE_ERROR, "stream is %" PRIuPTR " for data on %s, %s was wanted",
                               stream->handle, dlpack_py_device_text(device, name), wanted);
}

/* ---- 1.9 Pending work --------------------------------------------------- */

/* A stream of a device, on which work on a tensor may be pending. */
typedef struct dlpack_py_work_stream {
    uintptr_t handle;  /* the runtime's handle, as it crosses the protocol (S2, S3) */
    int32_t device_id; /* the device that the stream is on, or DLPACK_PY_CURRENT_DEVICE */
} dlpack_py_work_stream;

#define DLPACK_PY_CURRENT_DEVICE (-1) /* the device that is current on the calling thread */

#define DLPACK_PY_MAX_PENDING 64 /* pending streams of one tensor, at most */

/* ---- 1.10 Requirements -------------------------------------------------- */

#define DLPACK_PY_ANY_DEVICE (-1)
#define DLPACK_PY_SCALAR (-1)

/* What a caller of dlpack_py_consume takes. All zero takes any CPU array; a field
 * added at the end of the struct breaks nobody. */
typedef struct dlpack_py_want {
    uint32_t dtype;         /* DLPACK_PY_FLOAT32...; 0: any */
    const uint32_t *dtypes; /* or any of these, ended by 0 */
    int32_t ndim;           /* this rank, or the lower end of a range; DLPACK_PY_SCALAR for rank 0; 0: any */
    int32_t max_ndim;       /* upper end of the range; 0: ndim itself (ndim 0 with max_ndim n: 0...n) */
    const int64_t *shape;   /* ndim extents, -1 free, with a fixed rank only; NULL: any */
    char order;             /* as dlpack_py_is_contiguous: 'C', 'F', 'A', 'K'; 0: any strides */
    char writable;          /* refuses read-only, unsaid, and memory that overlaps itself */
    int32_t device;         /* a DLDeviceType; 0: what the CPU can read; DLPACK_PY_ANY_DEVICE */
    size_t alignment;       /* of the first element, in bytes; 0: that of its numbers; 1: any */
    uint32_t options;       /* of the following */
} dlpack_py_want;

#define DLPACK_PY_COPY_IF_NEEDED 1u     /* where a copy would do, make one rather than refuse: writes stay in it */
#define DLPACK_PY_LEGACY_IS_WRITABLE 2u /* take what cannot say read-only as writable (C7) */
#define DLPACK_PY_OVERLAP_IS_FINE 4u    /* writable takes memory that overlaps itself */
#define DLPACK_PY_BUFFER_TOO 8u         /* an object without __dlpack__ may offer the buffer protocol (C6) */
#define DLPACK_PY_NOTHING_PENDING 16u   /* what comes is taken as it is; on a stream, no order is asked for (C5, S4) */

/* May memory be written? The third answer comes from legacy capsules (C7). */
#define DLPACK_PY_WRITABLE 0
#define DLPACK_PY_READONLY 1
#define DLPACK_PY_READONLY_UNSAID 2

static inline int
dlpack_py_impl_wants_dtype(const dlpack_py_want *want, uint32_t dtype)
{
    const uint32_t *other;
    if (want->dtype == 0 && (want->dtypes == NULL || want->dtypes[0] == 0))
        return 1;
    if (want->dtype == dtype)
        return 1;
    for (other = want->dtypes; other != NULL && *other != 0; other++) {
        if (*other == dtype)
            return 1;
    }
    return 0;
}

/* What dtype was asked for, as text for a message. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_wanted_dtypes(const dlpack_py_want *want, char *text, size_t size)
{
    char name[DLPACK_PY_TEXT_SIZE];
    const uint32_t *other;
    size_t length = 0;

    text[0] = '\0';
    if (want->dtype != 0)
        length = (size_t)snprintf(text, size, "%s", dlpack_py_dtype_text(want->dtype, name));
    for (other = want->dtypes; other != NULL && *other != 0; other++) {
        if (length + DLPACK_PY_TEXT_SIZE + 8 > size) {
            snprintf(text + length, size - length, " or ...");
            break;
        }
        length += (size_t)snprintf(text + length, size - length, "%s%s", length > 0 ? " or " : "",
                                   dlpack_py_dtype_text(*other, name));
    }
    return text;
}

static inline int
dlpack_py_impl_check_rank(const DLTensor *t, const dlpack_py_want *want, dlpack_py_error *error)
{
    const int32_t lowest = want->ndim < 0 ? 0 : want->ndim;
    const int32_t highest = want->max_ndim != 0 ? want->max_ndim : lowest;
    int32_t i;

    if (want->ndim == 0 && want->max_ndim == 0)
        return 0;
    if (t->ndim < lowest || t->ndim > highest) {
        if (lowest == highest)
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "ndim is %" PRId32 ", %" PRId32 " was asked for",
                                       t->ndim, lowest);
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "ndim is %" PRId32 ", %" PRId32 " to %" PRId32 " was asked for", t->ndim, lowest,
                                   highest);
    }
    for (i = 0; want->shape != NULL && lowest == highest && i < t->ndim; i++) {
        if (want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                       "shape[%" PRId32 "] is %" PRId64 ", %" PRId64 " was asked for", i, t->shape[i],
                                       want->shape[i]);
    }
    return 0;
}

/* The alignment of one number: a complex has two, lanes have many. */
static inline size_t
dlpack_py_impl_number_alignment(DLDataType dtype)
{
    const size_t bits = dtype.code == 5 || dtype.code == 18 ? dtype.bits / 2u : dtype.bits;
    return bits % 8 == 0 && (bits & (bits - 1)) == 0 ? bits / 8 : 1;
}

/* Does a tensor meet what was asked for? What a copy would mend comes last, and
 * is marked so in the error.
 *
 * t          has been validated
 * readonly   DLPACK_PY_WRITABLE, DLPACK_PY_READONLY or DLPACK_PY_READONLY_UNSAID
 * want       what is asked for; NULL: {0}
 *
 * Returns 0, or -1 with BufferError that names what came and what was wanted (C9).
 * Needs no thread state.
 */
static inline int
dlpack_py_meets(const DLTensor *t, int readonly, const dlpack_py_want *want, dlpack_py_error *error)
{
    static const dlpack_py_want nothing = {0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0};
    char came[DLPACK_PY_TEXT_SIZE], wanted[120];
    size_t alignment;

    if (want == NULL)
        want = &nothing;
    if (want->device == 0 ? !dlpack_py_is_cpu_readable(t->device)
                          : want->device != DLPACK_PY_ANY_DEVICE && want->device != (int32_t)t->device.device_type) {
        const char *name =
            want->device == 0 ? "memory that the CPU can read" : dlpack_py_impl_device_name_of(want->device);
        if (name == NULL)
            snprintf(wanted, sizeof(wanted), "device type %" PRId32, want->device);
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "device is %s, %s was asked for",
                                   dlpack_py_device_text(t->device, came), name != NULL ? name : wanted);
    }
    if (!dlpack_py_impl_wants_dtype(want, dlpack_py_dtype(t)))
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "dtype is %s, %s was asked for",
                                   dlpack_py_dtype_text(dlpack_py_dtype(t), came),
                                   dlpack_py_impl_wanted_dtypes(want, wanted, sizeof(wanted)));
    if (dlpack_py_impl_check_rank(t, want, error) < 0)
        return -1;

    if (want->order != 0 && !dlpack_py_is_contiguous(t, want->order)) {
        dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "strides are not compact, order '%c' was asked for",
                            want->order);
        return dlpack_py_impl_curable(error);
    }
    alignment = want->alignment != 0 ? want->alignment : dlpack_py_impl_number_alignment(t->dtype);
    if (alignment > 1 && (uintptr_t)dlpack_py_first(t) % alignment != 0 && !dlpack_py_is_empty(t) &&
        dlpack_py_impl_has_address(t->device)) {
        dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                            "data is at 0x%" PRIxPTR ", which is no multiple of the %lu bytes that were asked for",
                            (uintptr_t)dlpack_py_first(t), (unsigned long)alignment);
        return dlpack_py_impl_curable(error);
    }
    if (readonly == DLPACK_PY_READONLY_UNSAID && (want->options & DLPACK_PY_LEGACY_IS_WRITABLE) != 0)
        readonly = DLPACK_PY_WRITABLE;
    if (want->writable && readonly != DLPACK_PY_WRITABLE) {
        dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "data is read-only, writable memory was asked for%s",
                            readonly == DLPACK_PY_READONLY
                                ? ""
                                : " (a legacy capsule cannot say: "
                                  "the option DLPACK_PY_LEGACY_IS_WRITABLE takes it as writable)");
        return dlpack_py_impl_curable(error);
    }
    if (want->writable && (want->options & DLPACK_PY_OVERLAP_IS_FINE) == 0 && dlpack_py_overlaps_itself(t)) {
        dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                            "data overlaps itself (strides repeat elements), writable memory was asked for");
        return dlpack_py_impl_curable(error);
    }
    return 0;
}

#endif /* DLPACK_PY_TENSOR_LAYER */

#if !defined(DLPACK_PY_NO_PYTHON) && !defined(DLPACK_PY_PROTOCOL_LAYER)
#define DLPACK_PY_PROTOCOL_LAYER

#if PY_VERSION_HEX < 0x03090000
#  error "dlpack_py.h needs Python 3.9 or newer"
#endif
#if defined(Py_LIMITED_API) && (Py_LIMITED_API + 0 < 0x030C0000 || PY_VERSION_HEX < 0x030C0000)
#  error "dlpack_py.h needs Py_LIMITED_API 0x030C0000 or newer, built with Python 3.12 or newer, for vectorcalls"
#endif

/* ---- 2.1 The one-call functions ----------------------------------------- */

/* What is cached for one interpreter; see 2.4. */
typedef struct dlpack_py_state dlpack_py_state;

/* A tensor that was consumed: read it, then release it once. All zero is a view of
 * nothing, with nothing to release.
 *
 * May be moved (dlpack_py_move), not copied: tensor.strides may point into it.
 * In an object, tp_traverse calls dlpack_py_traverse, and tp_dealloc releases;
 * tp_clear only where nobody else can look into the data by then. */
typedef struct dlpack_py_view {
    DLTensor tensor;  /* strides are never NULL where ndim > 0 (C10); add byte_offset, or use dlpack_py_data */
    uint64_t flags;   /* DLPACK_PY_FLAG_* as they came, unknown ones too (C8); 0 from a legacy capsule */
    int32_t readonly; /* DLPACK_PY_WRITABLE (0): may be written; else DLPACK_PY_READONLY or ..._UNSAID (C7) */
    int32_t form;     /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY: what managed is; 0: nothing to release */
    void *managed;    /* the managed tensor, owned */
    int64_t strides[DLPACK_PY_MAX_NDIM]; /* for a producer that gave NULL (D4) */
} dlpack_py_view;

#define DLPACK_PY_VERSIONED 1 /* DLManagedTensorVersioned */
#define DLPACK_PY_LEGACY 2    /* DLManagedTensor */

/* dlpack_py_produce: answer a call of __dlpack__.
 *
 * owner   what keeps the data alive: held until the deleter has run (P9)
 * t       what is exported; struct, shape and strides are copied, data is not.
 *         On memory that the CPU can read, with nothing pending on it. Arguments may be
 *         objects whose __index__ runs Python code: where that could move the memory,
 *         parse first (dlpack_py_parse_request), describe, then call dlpack_py_answer.
 * flags   DLPACK_PY_FLAG_* that describe the data (dlpack.h's DLPACK_FLAG_BITMASK_*); 0
 *         for none
 * args, nargs, kwnames   as METH_FASTCALL | METH_KEYWORDS gives them
 *
 * Returns a new capsule, or NULL with TypeError or ValueError (malformed
 * request: P1, P4, P6), BufferError (cannot be met: D8, P3, P5, P7) or
 * MemoryError; then nothing is kept. The deleter needs no thread state (K5).
 */
static inline PyObject *
dlpack_py_produce(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames);

/* The same from four objects, each of which may be NULL for "not given": for
 * Cython, pybind11, METH_VARARGS and generated code. */
static inline PyObject *
dlpack_py_produce_args(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *stream, PyObject *max_version,
                       PyObject *dl_device, PyObject *copy);

/* Answer a call of __dlpack_device__ from the DLTensor that __dlpack__ exports
 * (P8). Returns a new reference to a tuple of two ints, or NULL with an exception. */
static inline PyObject *
dlpack_py_produce_device(const DLTensor *t);

/* __dlpack_device__ for a type whose data is always CPU memory, METH_NOARGS. */
static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused);

#ifdef __cplusplus
#  define DLPACK_PY_IMPL_METHOD(function) reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(function))
#else
#  define DLPACK_PY_IMPL_METHOD(function) ((PyCFunction)(void (*)(void))(function))
#endif

/* The two entries of a PyMethodDef table. dlpack has METH_FASTCALL's signature
 * with keywords, device that of METH_NOARGS. */
#define DLPACK_PY_METHODS(dlpack, device)                                                                  \
    {"__dlpack__", DLPACK_PY_IMPL_METHOD(dlpack), METH_FASTCALL | METH_KEYWORDS,                           \
     PyDoc_STR("__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n" \
               "Export the data as a DLPack capsule.")},                                                   \
    {                                                                                                      \
        "__dlpack_device__", (device), METH_NOARGS,                                                        \
            PyDoc_STR("__dlpack_device__($self, /)\n--\n\nThe DLPack device (type, id) of the data.")      \
    }

/* dlpack_py_wrap: a managed tensor over memory whose owner is no Python object.
 *
 * t         what is exported; struct, shape and strides are copied, data is not
 * flags     DLPACK_PY_FLAG_* that describe the data
 * context   handed to free_fn once, when the consumer lets go, on any thread, with
 *           or without an interpreter; free_fn may be NULL
 *
 * Returns a managed tensor, the caller's until its deleter is called or
 * dlpack_py_capsule_steal takes it; NULL when there is no memory or t is malformed
 * (dlpack_py_validate says how), and context stays the caller's. Needs no thread
 * state and sets no exception.
 */
static inline DLManagedTensorVersioned *
dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context, void (*free_fn)(void *context));

/* dlpack_py_consume: take the tensor that obj offers, if it is as wanted.
 *
 * obj     has __dlpack__, or is a capsule of either form (C6)
 * want    what to insist on; NULL: any tensor that the CPU can read
 * v       out: on success the caller's, until one dlpack_py_release(v)
 *
 * Returns 0, or -1 with BufferError naming what was wanted and what came (C9),
 * AttributeError (no __dlpack__), TypeError (it returns no DLPack capsule: C6),
 * ValueError (a capsule that was consumed before: K4) or the producer's own
 * exception. After -1 there is nothing to release; a capsule that was not taken
 * frees itself (K1).
 */
static inline int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);

/* dlpack_py_borrow: as dlpack_py_consume, for the length of a call.
 *
 * What the view shows is good until Python code may run or obj may go, whichever is
 * first; then release it. Without a GIL other threads run Python code at any time: there
 * it is for memory that stays where it is while obj lives. Borrowing may itself run code: of several arguments, consume
 * all but the last. Where the type has an exchange table nothing is allocated
 * and no reference taken; otherwise this is dlpack_py_consume. A borrowed tensor
 * cannot say whether it is read-only (X3), and is DLPACK_PY_READONLY_UNSAID: who
 * wants it writable is given an owned one.
 */
static inline int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);

/* dlpack_py_from_dlpack: the first half of a library's from_dlpack(x, /, *,
 * device=None, copy=None), from the call's arguments to a view; the second half
 * puts the view into an array of the library's.
 *
 * args, nargs, kwnames   as METH_FASTCALL | METH_KEYWORDS gives them
 * want, v                as for dlpack_py_consume
 *
 * Returns as dlpack_py_consume does, and -1 with TypeError or ValueError for
 * malformed arguments. device is a tuple (type, id) or text such as "cpu" (C3).
 */
static inline int
dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                      dlpack_py_view *v);

/* The same from objects; device and copy may be NULL for "not given". */
static inline int
dlpack_py_from_dlpack_args(PyObject *x, PyObject *device, PyObject *copy, const dlpack_py_want *want,
                           dlpack_py_view *v);

/* dlpack_py_allocate_like: memory for a result, from the library that an argument is of.
 *
 * like        an argument; its type's exchange table allocates, or else dlpack_py_allocate
 * prototype   its rank, shape, dtype and device are looked at
 * v           out: the caller's, as of dlpack_py_consume; on any device
 *
 * Returns 0, or -1 with BufferError, MemoryError or what the library reported.
 */
static inline int
dlpack_py_allocate_like(PyObject *like, const DLTensor *prototype, dlpack_py_view *v);

/* dlpack_py_return_like_steal: a result as an array of the library that an argument is of.
 *
 * like   an argument; its type's exchange table makes the array, or else the from_dlpack
 *        of its array namespace, of the module of its type, or of the package of that
 * v      what the array shows; taken over, also when this fails
 *
 * Returns a new reference; NULL with ValueError (a borrowed view), TypeError (no such
 * from_dlpack), MemoryError, or the library's exception.
 */
static inline PyObject *
dlpack_py_return_like_steal(PyObject *like, dlpack_py_view *v);

/* The first element: tensor.data + tensor.byte_offset (D1). */
static inline void *
dlpack_py_data(const dlpack_py_view *v)
{
    return dlpack_py_first(&v->tensor);
}

/* Let go of a view: calls the producer's deleter. A second call does nothing, after the
 * first; of two at once, as of any two uses of a view, the caller keeps one waiting.
 * Any thread, with or without a thread state; an exception in flight is kept.
 * Without one it may wait for the GIL: hold no lock then that an attached thread
 * may wait for. */
static inline void
dlpack_py_release(dlpack_py_view *v);

/* Move a view: afterwards from holds nothing, and to is to be released. */
static inline void
dlpack_py_move(dlpack_py_view *to, dlpack_py_view *from);

/* Does obj offer a tensor at all, as PyObject_CheckBuffer asks for buffers? 1 or
 * 0, no exception: what looking for it raised, but for AttributeError, is reported as
 * unraisable, and one in flight is kept. The offer may still be refused. */
static inline int
dlpack_py_check(PyObject *obj);

/* ---- 2.2 Differences of Pythons ----------------------------------------- */

/* Private functions of CPython that save time; without them it is slower. */
#ifndef DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
#  if defined(Py_LIMITED_API) || defined(PYPY_VERSION) || DLPACK_PY_PLAIN
#    define DLPACK_PY_IMPL_HAS_TYPE_LOOKUP 0
#  else
#    define DLPACK_PY_IMPL_HAS_TYPE_LOOKUP 1
#  endif
#endif

/* What was learnt of a type is kept for as long as its version tag stays, where an
 * interpreter has one GIL to guard that. Before 3.11 tags are given out anew. */
#ifndef DLPACK_PY_IMPL_HAS_TYPE_SLOTS
#  if defined(Py_GIL_DISABLED) || PY_VERSION_HEX < 0x030B0000
#    define DLPACK_PY_IMPL_HAS_TYPE_SLOTS 0
#  else
#    define DLPACK_PY_IMPL_HAS_TYPE_SLOTS DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
#  endif
#endif

/* Critical sections guard a capsule where there is no GIL. */
#ifdef Py_GIL_DISABLED
#  define DLPACK_PY_IMPL_LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#  define DLPACK_PY_IMPL_UNLOCK() Py_END_CRITICAL_SECTION()
#else
#  define DLPACK_PY_IMPL_LOCK(object) {
#  define DLPACK_PY_IMPL_UNLOCK() }
#endif

/* The process, to notice a fork that Python was not told of; never 0. */
#ifdef _WIN32
#  define DLPACK_PY_IMPL_PROCESS() 1L
#else
#  include <unistd.h>
#  define DLPACK_PY_IMPL_PROCESS() ((long)getpid())
#endif

/* Takes the exception in flight, normalized; NULL if there is none. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL)
        return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        (void)PyException_SetTraceback(value, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
#endif
}

/* Puts one back, in place of any other; steals it. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_put_exception(PyObject *exception)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exception);
#else
    PyObject *type = (PyObject *)Py_TYPE(exception);
    Py_INCREF(type);
    PyErr_Restore(type, exception, PyException_GetTraceback(exception));
#endif
}

/* The thread state that this thread is attached with, NULL if none. Any thread,
 * also without an interpreter; PyGILState_Check would answer for no more than the
 * main interpreter. */
static inline PyThreadState *
dlpack_py_impl_thread_state(void)
{
#if defined(Py_LIMITED_API)
    PyThreadState *current = PyThreadState_Swap(NULL);
    if (current != NULL)
        (void)PyThreadState_Swap(current);
    return current;
#elif PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#elif PY_VERSION_HEX >= 0x030C0000
    return _PyThreadState_UncheckedGet();
#else
    /* Before 3.12 this is the state that holds the GIL, whichever thread's it is.
     * A thread's own is known to PyGILState, but for those of subinterpreters: where
     * there are any, the holder is looked at, which may end meanwhile. */
    PyThreadState *holder = _PyThreadState_UncheckedGet(), *own = PyGILState_GetThisThreadState();
    if (holder == NULL || holder == own)
        return holder;
    if (own == NULL || PyInterpreterState_Head() == PyInterpreterState_Main())
        return NULL;
    return holder->thread_id == PyThread_get_thread_ident() ? holder : NULL;
#endif
}

/* Is the process's main interpreter ending? Any thread. */
static inline int
dlpack_py_impl_is_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000 && (!defined(Py_LIMITED_API) || Py_LIMITED_API + 0 >= 0x030D0000)
    return Py_IsFinalizing();
#elif defined(Py_LIMITED_API)
    return !Py_IsInitialized();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

#if !DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
/* What CPython's type lookup does, by public means: a new reference, or NULL with
 * or without an exception. */
static inline PyObject *
dlpack_py_impl_type_lookup(PyTypeObject *type, PyObject *name)
{
    PyObject *bases = PyObject_GetAttrString((PyObject *)type, "__mro__"), *found = NULL;
    Py_ssize_t i, count = bases == NULL ? 0 : PyTuple_Size(bases);
    for (i = 0; i < count && found == NULL && !PyErr_Occurred(); i++) {
        PyObject *names = PyObject_GetAttrString(PyTuple_GetItem(bases, i), "__dict__");
        if (names == NULL)
            break;
        found = PyObject_GetItem(names, name);
        if (found == NULL && PyErr_ExceptionMatches(PyExc_KeyError))
            PyErr_Clear();
        Py_DECREF(names);
    }
    Py_XDECREF(bases);
    return found;
}
#else
static inline PyObject *
dlpack_py_impl_type_lookup(PyTypeObject *type, PyObject *name)
{
#  if PY_VERSION_HEX >= 0x030D0000
    return _PyType_LookupRef(type, name);
#  else
    PyObject *found = _PyType_Lookup(type, name);
    Py_XINCREF(found);
    return found;
#  endif
}
#endif

/* Sets an attribute of a type, of a static or immutable one too. */
static inline int
dlpack_py_impl_type_set(PyTypeObject *type, PyObject *name, PyObject *value)
{
    int failed;
#ifdef Py_LIMITED_API
    failed = PyObject_SetAttr((PyObject *)type, name, value); /* all are heap types */
#else
    int is_mutable = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
#  ifdef Py_TPFLAGS_IMMUTABLETYPE
    is_mutable = is_mutable && !PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE);
#  endif
    if (is_mutable) {
        failed = PyObject_SetAttr((PyObject *)type, name, value);
    }
    else {
        failed = PyDict_SetItem(type->tp_dict, name, value);
        PyType_Modified(type);
    }
#endif
    return failed;
}

/* A new reference; NULL with or without an exception. */
static inline PyObject *
dlpack_py_impl_dict_get(PyObject *dict, PyObject *key)
{
#ifdef Py_GIL_DISABLED
    PyObject *found;
    (void)PyDict_GetItemRef(dict, key, &found);
    return found;
#else
    PyObject *found = PyDict_GetItemWithError(dict, key);
    Py_XINCREF(found);
    return found;
#endif
}

#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
/* Changes whenever the type or a base of it does, and is given to no other type; 0
 * where there is none. */
static inline unsigned int
dlpack_py_impl_type_tag(PyTypeObject *type)
{
#  if PY_VERSION_HEX < 0x030D0000 /* from then on the tag alone says it */
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#  endif
    return type->tp_version_tag;
}
#endif

/* ---- 2.3 Exceptions ----------------------------------------------------- */

/* Raises what layer 1 reported; returns -1. */
DLPACK_PY_IMPL_RARE int
dlpack_py_raise(const dlpack_py_error *error)
{
    PyObject *type = PyExc_BufferError, *text;
    switch (error->code) {
    case DLPACK_PY_VALUE_ERROR: type = PyExc_ValueError; break;
    case DLPACK_PY_TYPE_ERROR: type = PyExc_TypeError; break;
    case DLPACK_PY_MEMORY_ERROR: type = PyExc_MemoryError; break;
    case DLPACK_PY_RUNTIME_ERROR: type = PyExc_RuntimeError; break;
    default: break;
    }
    /* A name from outside may be no UTF-8, or have been cut within a character. */
    text = PyUnicode_DecodeUTF8(error->text, (Py_ssize_t)strlen(error->text), "replace");
    if (text != NULL)
        PyErr_SetObject(type, text);
    Py_XDECREF(text);
    return -1;
}

/* An exception in flight, set aside as it is: to normalize it would run code (K2). */
typedef struct dlpack_py_impl_shelf {
    PyObject *type, *value, *traceback;
} dlpack_py_impl_shelf;

/* Before and after foreign code runs: what was in flight is so again, and what the
 * foreign code left is reported. */
static inline dlpack_py_impl_shelf
dlpack_py_impl_shelve_exception(void)
{
    dlpack_py_impl_shelf shelf = {NULL, NULL, NULL};
    if (!PyErr_Occurred())
        return shelf;
#if PY_VERSION_HEX >= 0x030C0000
    shelf.value = PyErr_GetRaisedException();
#else
    PyErr_Fetch(&shelf.type, &shelf.value, &shelf.traceback);
#endif
    return shelf;
}

static inline void
dlpack_py_impl_unshelve_exception(dlpack_py_impl_shelf shelf)
{
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(NULL);
#if PY_VERSION_HEX >= 0x030C0000
    if (shelf.value != NULL)
        PyErr_SetRaisedException(shelf.value);
#else
    if (shelf.type != NULL)
        PyErr_Restore(shelf.type, shelf.value, shelf.traceback);
#endif
}

/* Raises, in place of any other, with a text that shows a value: as its repr() or,
 * where that fails, its type. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_refuse_value(PyObject *exception, const char *format, PyObject *value)
{
    PyObject *text;
    PyErr_Clear();
    text = PyObject_Repr(value);
    if (text == NULL) {
        PyErr_Clear();
        text = PyObject_Repr((PyObject *)Py_TYPE(value));
    }
    if (text != NULL)
        PyErr_Format(exception, format, text);
    Py_XDECREF(text);
}

/* Is the exception in flight one that nobody may take for an answer: no memory, or no
 * error at all (KeyboardInterrupt)? */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_fatal(void)
{
    return PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception);
}

/* Drops a reference, and keeps the exception in flight. */
static inline void
dlpack_py_impl_decref(PyObject *object)
{
    dlpack_py_impl_shelf shelved;
#ifndef Py_GIL_DISABLED
    if (Py_REFCNT(object) > 1) { /* no code will run: saves looking for exceptions */
        Py_DECREF(object);
        return;
    }
#endif
    shelved = dlpack_py_impl_shelve_exception();
    Py_DECREF(object);
    dlpack_py_impl_unshelve_exception(shelved);
}

/* ---- 2.4 State and the end of an interpreter ---------------------------- */

/* What was learnt of a type. */
typedef struct dlpack_py_impl_type {
    PyTypeObject *type; /* borrowed, to compare with */
    unsigned int tag;   /* its version as this was learnt; 0: not to be kept */
    PyObject *method;   /* its __dlpack__, if that takes the object as an argument; borrowed from the type */
    const void *table;  /* its DLPackExchangeAPI, if there is one to be used */
    int own;            /* 1: that is a dlpack_py_exchange of this file, and put on this type or a base of it */
} dlpack_py_impl_type;

#define DLPACK_PY_IMPL_TYPES 16

/* A record for each source file and interpreter: what is cached there, and how a
 * deleter, which may run on any thread at any time (K5), learns whether it may
 * still touch the interpreter. Nothing is shared between files, so that versions
 * and builds never meet (G2).
 *
 * Open: a deleter drops its owner, attached to the interpreter for it if need be.
 * Closing, from the interpreter's exit callbacks on: only a thread that is attached
 * does; the others leak the owner. Gone, after modules were torn down: all leak. */
struct dlpack_py_state {
    dlpack_py_impl_word references; /* of exports, callbacks and the interpreter's dictionary */
    dlpack_py_impl_word deleters;   /* bit 0: closing; above it, how many are attaching */
    dlpack_py_impl_word gone;
    dlpack_py_impl_word forks;   /* how often this process is a forked child */
    dlpack_py_impl_word process; /* that counts the deleters */
    PyInterpreterState *interpreter;
    PyObject *dlpack;        /* "__dlpack__" */
    PyObject *dlpack_device; /* "__dlpack_device__" */
    PyObject *exchange;      /* "__dlpack_c_exchange_api__" */
    PyObject *on_demand;     /* a dict: address of a dlpack_py_exchange to weak references to its types (2.14);
                                None to the carriers' type (2.14) */
    PyObject *names[4];      /* of its keywords: bit i of DLPACK_PY_IMPL_PASS_... is names[i] */
    PyObject *only_version;  /* the tuple ("max_version",) */
    PyObject *version;       /* its max_version */
    PyObject *cpu;           /* (1, 0) */
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    dlpack_py_impl_type types[DLPACK_PY_IMPL_TYPES];
#endif
};

#define DLPACK_PY_IMPL_PASS_VERSION 1u
#define DLPACK_PY_IMPL_PASS_DEVICE 2u
#define DLPACK_PY_IMPL_PASS_COPY 4u
#define DLPACK_PY_IMPL_PASS_STREAM 8u

#define DLPACK_PY_IMPL_STATE_NAME "dlpack_py.state"

/* What the file itself remembers: the first interpreter's record. */
typedef struct dlpack_py_impl_file {
    dlpack_py_impl_word lock; /* for writing the other two: the process that has it, or 0 */
    dlpack_py_impl_word interpreter;
    dlpack_py_impl_word state;
} dlpack_py_impl_file;

static inline dlpack_py_impl_file *
dlpack_py_impl_this_file(void)
{
    static dlpack_py_impl_file file;
    return &file;
}

/* Of a file's: held for a few lines, which call nothing. What a parent's thread held as we
 * were forked, nobody holds. */
static inline void
dlpack_py_impl_lock(dlpack_py_impl_word *lock)
{
    const dlpack_py_impl_word process = (dlpack_py_impl_word)DLPACK_PY_IMPL_PROCESS();
    while (DLPACK_PY_IMPL_SWAP(lock, process) == process)
        continue;
}

static inline void
dlpack_py_impl_unlock(dlpack_py_impl_word *lock)
{
    DLPACK_PY_IMPL_STORE(lock, 0);
}

/* Remembers the state, if it is the first; forgets it, once it is closing. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_file_update(dlpack_py_state *state)
{
    dlpack_py_impl_file *file = dlpack_py_impl_this_file();
    dlpack_py_impl_lock(&file->lock);
    if ((DLPACK_PY_IMPL_LOAD(&state->deleters) & 1) != 0) {
        if (DLPACK_PY_IMPL_LOAD(&file->state) == (dlpack_py_impl_word)state) {
            DLPACK_PY_IMPL_STORE(&file->interpreter, 0);
            DLPACK_PY_IMPL_STORE(&file->state, 0);
        }
    }
    else if (DLPACK_PY_IMPL_LOAD(&file->interpreter) == 0) {
        DLPACK_PY_IMPL_STORE(&file->state, (dlpack_py_impl_word)state);
        DLPACK_PY_IMPL_STORE(&file->interpreter, (dlpack_py_impl_word)state->interpreter);
    }
    dlpack_py_impl_unlock(&file->lock);
}

/* In a forked child no other thread is left, and so none is attaching. Noticed before
 * anything is counted there, whether or not Python was told of the fork. */
static inline void
dlpack_py_impl_notice_fork(dlpack_py_state *state)
{
    dlpack_py_impl_word *lock = &dlpack_py_impl_this_file()->lock;
    const dlpack_py_impl_word process = (dlpack_py_impl_word)DLPACK_PY_IMPL_PROCESS();
    if (DLPACK_PY_IMPL_LOAD(&state->process) == process)
        return;
    dlpack_py_impl_lock(lock);
    if (DLPACK_PY_IMPL_LOAD(&state->process) != process) { /* else another thread of the child was first */
        (void)DLPACK_PY_IMPL_ADD(&state->forks, 1);
        DLPACK_PY_IMPL_STORE(&state->deleters, DLPACK_PY_IMPL_LOAD(&state->deleters) & 1);
        DLPACK_PY_IMPL_STORE(&state->process, process);
    }
    dlpack_py_impl_unlock(lock);
}

/* Drops a reference to the record; any thread. */
static inline void
dlpack_py_impl_state_release(dlpack_py_state *state)
{
    if (DLPACK_PY_IMPL_ADD(&state->references, -1) == 1)
        DLPACK_PY_FREE(state);
}

DLPACK_PY_IMPL_RARE void
dlpack_py_impl_state_clear(dlpack_py_state *state)
{
    unsigned i;
    Py_CLEAR(state->dlpack);
    Py_CLEAR(state->dlpack_device);
    Py_CLEAR(state->exchange);
    Py_CLEAR(state->on_demand);
    Py_CLEAR(state->version);
    Py_CLEAR(state->cpu);
    Py_CLEAR(state->only_version);
    for (i = 0; i < 4; i++)
        Py_CLEAR(state->names[i]);
}

/* Gone: the destructor of the capsule in the interpreter's dictionary, which runs
 * after module teardown, and so also where the exit callback was never run. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_state_destructor(PyObject *capsule)
{
    dlpack_py_state *state = (dlpack_py_state *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_STATE_NAME);
    (void)DLPACK_PY_IMPL_OR(&state->deleters, 1);
    DLPACK_PY_IMPL_STORE(&state->gone, 1);
    dlpack_py_impl_file_update(state);
    dlpack_py_impl_state_clear(state);
    dlpack_py_impl_state_release(state);
}

/* Closing: lets go of the GIL until the deleters that are attaching are through,
 * or until DLPACK_PY_EXIT_WAIT is over, so that it never hangs. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_state_close(dlpack_py_state *state)
{
    int waits = (DLPACK_PY_EXIT_WAIT) * 1000;
    PyThread_type_lock timer;

    dlpack_py_impl_notice_fork(state);
    (void)DLPACK_PY_IMPL_OR(&state->deleters, 1);
    dlpack_py_impl_file_update(state);
    timer = PyThread_allocate_lock(); /* nobody releases it: waiting for it is a portable sleep */
    if (timer != NULL) {
        (void)PyThread_acquire_lock(timer, WAIT_LOCK);
        Py_BEGIN_ALLOW_THREADS
        while (DLPACK_PY_IMPL_LOAD(&state->deleters) > 1 && waits-- > 0)
            (void)PyThread_acquire_lock_timed(timer, 1000, 0);
        Py_END_ALLOW_THREADS
        PyThread_release_lock(timer);
        PyThread_free_lock(timer);
    }
}

DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_after_fork(PyObject *self, PyObject *unused)
{
    dlpack_py_state *state = (dlpack_py_state *)PyCapsule_GetPointer(self, DLPACK_PY_IMPL_STATE_NAME);
    (void)unused;
    dlpack_py_impl_notice_fork(state);
    Py_RETURN_NONE;
}

DLPACK_PY_IMPL_RARE void
dlpack_py_impl_callback_destructor(PyObject *capsule)
{
    dlpack_py_impl_state_release((dlpack_py_state *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_STATE_NAME));
}

/* Hands a callback that refers to the record to module.function, as its argument
 * or by keyword. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_register(dlpack_py_state *state, PyMethodDef *callback, const char *module_name, const char *function,
                        const char *keyword)
{
    PyObject *capsule, *method, *module, *registrar = NULL, *positional, *named, *result = NULL;

    capsule = PyCapsule_New(state, DLPACK_PY_IMPL_STATE_NAME, dlpack_py_impl_callback_destructor);
    if (capsule == NULL)
        return -1;
    (void)DLPACK_PY_IMPL_ADD(&state->references, 1);
    method = PyCFunction_NewEx(callback, capsule, NULL);
    Py_DECREF(capsule);
    if (method == NULL)
        return -1;
    module = PyImport_ImportModule(module_name);
    if (module != NULL)
        registrar = PyObject_GetAttrString(module, function);
    positional = keyword == NULL ? Py_BuildValue("(O)", method) : PyTuple_New(0);
    named = keyword == NULL ? PyDict_New() : Py_BuildValue("{sO}", keyword, method);
    if (registrar != NULL && positional != NULL && named != NULL)
        result = PyObject_Call(registrar, positional, named);
    Py_DECREF(method);
    Py_XDECREF(module);
    Py_XDECREF(registrar);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* PyUnstable_AtExit would come too late: its callbacks run after modules are gone. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_at_exit(PyObject *self, PyObject *unused)
{
    (void)unused;
    dlpack_py_impl_state_close((dlpack_py_state *)PyCapsule_GetPointer(self, DLPACK_PY_IMPL_STATE_NAME));
    Py_RETURN_NONE;
}

DLPACK_PY_IMPL_RARE int
dlpack_py_impl_register_exit(dlpack_py_state *state)
{
    static PyMethodDef callback = {"dlpack_py_at_exit", dlpack_py_impl_at_exit, METH_NOARGS, NULL};
    return dlpack_py_impl_register(state, &callback, "atexit", "register", NULL);
}

/* 1 or 0; -1 with an exception, which PyObject_HasAttrString loses. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_has_attribute(PyObject *object, const char *name)
{
    PyObject *found = PyObject_GetAttrString(object, name);
    if (found != NULL) {
        Py_DECREF(found);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    PyErr_Clear();
    return 0;
}

/* Where there is no such function, nothing forks. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_register_fork(dlpack_py_state *state)
{
    static PyMethodDef callback = {"dlpack_py_after_fork", dlpack_py_impl_after_fork, METH_NOARGS, NULL};
    PyObject *os = PyImport_ImportModule("os");
    const int forks = os == NULL ? -1 : dlpack_py_impl_has_attribute(os, "register_at_fork");
    Py_XDECREF(os);
    if (forks < 0)
        return -1;
    return forks ? dlpack_py_impl_register(state, &callback, "os", "register_at_fork", "after_in_child") : 0;
}

/* Names and tuples that calls would else make anew. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_state_fill(dlpack_py_state *state)
{
    static const char *const names[4] = {"max_version", "dl_device", "copy", "stream"};
    unsigned i;

    for (i = 0; i < 4; i++) {
        state->names[i] = PyUnicode_InternFromString(names[i]);
        if (state->names[i] == NULL)
            return -1;
    }
    state->dlpack = PyUnicode_InternFromString("__dlpack__");
    state->dlpack_device = PyUnicode_InternFromString("__dlpack_device__");
    state->exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    state->on_demand = PyDict_New();
    state->only_version = Py_BuildValue("(O)", state->names[0]);
    state->version = Py_BuildValue("(ii)", DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR);
    state->cpu = Py_BuildValue("(ii)", 1, 0);
    return state->dlpack == NULL || state->dlpack_device == NULL || state->exchange == NULL ||
                   state->on_demand == NULL || state->only_version == NULL || state->version == NULL ||
                   state->cpu == NULL
               ? -1
               : 0;
}

/* A new record, with its callbacks registered, in a new capsule. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_state_new(PyInterpreterState *interpreter)
{
    dlpack_py_state *state = (dlpack_py_state *)DLPACK_PY_MALLOC(sizeof(*state));
    PyObject *capsule;

    if (state == NULL)
        return PyErr_NoMemory();
    memset(state, 0, sizeof(*state));
    state->references = 1;
    state->process = (dlpack_py_impl_word)DLPACK_PY_IMPL_PROCESS();
    state->interpreter = interpreter;
    capsule = PyCapsule_New(state, DLPACK_PY_IMPL_STATE_NAME, dlpack_py_impl_state_destructor);
    if (capsule == NULL) {
        dlpack_py_impl_state_release(state);
        return NULL;
    }
    if (dlpack_py_impl_state_fill(state) < 0) {
        Py_DECREF(capsule);
        return NULL;
    }
    if (dlpack_py_impl_register_fork(state) < 0 || dlpack_py_impl_register_exit(state) < 0) {
        if (dlpack_py_impl_is_fatal()) {
            Py_DECREF(capsule);
            return NULL;
        }
        PyErr_Clear(); /* an interpreter that ends imports nothing any more: closing from the start */
        (void)DLPACK_PY_IMPL_OR(&state->deleters, 1);
    }
    return capsule;
}

/* The record by way of the interpreter's dictionary, made where there is none. */
DLPACK_PY_IMPL_RARE dlpack_py_state *
dlpack_py_impl_state_find_locked(PyInterpreterState *interpreter)
{
    PyObject *names = PyInterpreterState_GetDict(interpreter), *key, *capsule, *made; /* names is borrowed */
    dlpack_py_state *state = NULL;

    if (names == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "dlpack_py: the interpreter has no dictionary for its state");
        return NULL;
    }
    key = PyUnicode_FromFormat("dlpack_py.%x.%p", DLPACK_PY_VERSION, (void *)dlpack_py_impl_this_file());
    if (key == NULL)
        return NULL;
    capsule = dlpack_py_impl_dict_get(names, key);
    if (capsule == NULL && !PyErr_Occurred()) {
        made = dlpack_py_impl_state_new(interpreter);
        if (made != NULL) /* another thread may have been first: its record it is */
            capsule = PyObject_CallMethod(names, "setdefault", "OO", key, made);
        Py_XDECREF(made);
    }
    Py_DECREF(key);
    if (capsule == NULL)
        return NULL;
    state = (dlpack_py_state *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_STATE_NAME);
    Py_DECREF(capsule);
    if (state != NULL)
        dlpack_py_impl_file_update(state);
    return state;
}

/* Without a GIL, neither the interpreter's dictionary nor atexit nor os guard what they
 * make at first use (3.13): all files and versions of this header meet at one lock. One
 * that lets go where a thread waits, for finalizers may come back here. */
DLPACK_PY_IMPL_RARE dlpack_py_state *
dlpack_py_impl_state_find(PyInterpreterState *interpreter)
{
    dlpack_py_state *state;
    DLPACK_PY_IMPL_LOCK((PyObject *)&PyCapsule_Type);
    state = dlpack_py_impl_state_find_locked(interpreter);
    DLPACK_PY_IMPL_UNLOCK();
    return state;
}

/* The state of this source file in the current interpreter.
 *
 * Returns a borrowed pointer, good as long as the interpreter is, to be kept in a
 * module, a type or an object of it; NULL with MemoryError or RuntimeError, or
 * what an interrupt raised. Called as a module is made, it learns of the end of a
 * subinterpreter even if exports come first in an exit callback.
 */
static inline dlpack_py_state *
dlpack_py_state_get(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
#if !DLPACK_PY_PLAIN
    dlpack_py_impl_file *file = dlpack_py_impl_this_file();
    dlpack_py_impl_word state;
    if (DLPACK_PY_IMPL_LOAD(&file->interpreter) == (dlpack_py_impl_word)interpreter) {
        state = DLPACK_PY_IMPL_LOAD(&file->state);
        /* Still ours: then it was all along, for a closing one does not come back. */
        if (DLPACK_PY_IMPL_LOAD(&file->interpreter) == (dlpack_py_impl_word)interpreter)
            return (dlpack_py_state *)state;
    }
#endif
    return dlpack_py_impl_state_find(interpreter);
}

/* Drops an owner on a thread that is not attached to its interpreter. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_drop_attaching(dlpack_py_state *state, PyObject *owner, PyThreadState *elsewhere)
{
    PyThreadState *own, *made = NULL;

    if (elsewhere != NULL) /* attached to another interpreter */
        (void)PyEval_SaveThread();
    own = PyGILState_GetThisThreadState();
    if (own == NULL || PyThreadState_GetInterpreter(own) != state->interpreter)
        own = made = PyThreadState_New(state->interpreter);
    if (own != NULL) {
        PyEval_RestoreThread(own);
        dlpack_py_impl_decref(owner);
        if (made != NULL)
            PyThreadState_Clear(made);
        (void)PyEval_SaveThread();
        if (made != NULL)
            PyThreadState_Delete(made);
    }
    if (elsewhere != NULL)
        PyEval_RestoreThread(elsewhere);
}

/* What a deleter does with its owner, on any thread at any time (K5). */
static inline void
dlpack_py_impl_drop(dlpack_py_state *state, PyObject *owner)
{
    PyThreadState *current = dlpack_py_impl_thread_state();
    dlpack_py_impl_word forks;

    if (current != NULL && PyThreadState_GetInterpreter(current) == state->interpreter) {
        if (!DLPACK_PY_IMPL_LOAD(&state->gone)) /* else its address has come back */
            dlpack_py_impl_decref(owner);
        return;
    }
    (void)DLPACK_PY_IMPL_ADD(&state->references, 1); /* an embedded tensor's goes with its owner */
    dlpack_py_impl_notice_fork(state);
    forks = DLPACK_PY_IMPL_LOAD(&state->forks);
    /* Counted before closing is looked at, and until detached again: the end of the
     * interpreter waits for who came before it, and who came after it leaks. */
    if ((DLPACK_PY_IMPL_ADD(&state->deleters, 2) & 1) == 0 && !dlpack_py_impl_is_finalizing())
        dlpack_py_impl_drop_attaching(state, owner, current);
    dlpack_py_impl_notice_fork(state);
    if (DLPACK_PY_IMPL_LOAD(&state->forks) == forks) /* else the owner forked, and the child begins at 0 */
        (void)DLPACK_PY_IMPL_ADD(&state->deleters, -2);
    dlpack_py_impl_state_release(state);
}

/* ---- 2.5 Managed tensors and their deleters ----------------------------- */

/* What is exported: the managed tensor, its owner, its shape and strides and, if
 * it is a copy, its data, in one allocation. */
typedef struct dlpack_py_impl_export {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } managed;
    PyObject *owner; /* with state: a reference to drop */
    dlpack_py_state *state;
    void *context; /* with free_fn: what to hand to it */
    void (*free_fn)(void *context);
    /* int64_t shape[ndim], strides[ndim], then data */
} dlpack_py_impl_export;

static inline void
dlpack_py_impl_export_free(dlpack_py_impl_export *e)
{
    if (e->owner != NULL)
        dlpack_py_impl_drop(e->state, e->owner);
    if (e->state != NULL)
        dlpack_py_impl_state_release(e->state);
    if (e->free_fn != NULL)
        e->free_fn(e->context);
    DLPACK_PY_FREE(e);
}

static inline void
dlpack_py_impl_delete_versioned(DLManagedTensorVersioned *managed)
{
    dlpack_py_impl_export_free((dlpack_py_impl_export *)managed->manager_ctx);
}

static inline void
dlpack_py_impl_delete_legacy(DLManagedTensor *managed)
{
    dlpack_py_impl_export_free((dlpack_py_impl_export *)managed->manager_ctx);
}

/* The flags that an export in place has from its memory. IS_COPIED speaks of the
 * export that the memory came with (P4), unknown ones of what nobody here knows, and
 * padded says nothing of whole bytes (D6). */
static inline uint64_t
dlpack_py_impl_lasting(const DLTensor *t, uint64_t flags)
{
    return flags & (DLPACK_PY_FLAG_READ_ONLY | (t->dtype.bits < 8 ? DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED : 0));
}

static inline void
dlpack_py_impl_fill_versioned(DLManagedTensorVersioned *managed, void *context, uint64_t flags,
                              void (*deleter)(DLManagedTensorVersioned *))
{
    managed->version.major = DLPACK_PY_PROTOCOL_MAJOR;
    managed->version.minor = DLPACK_PY_PROTOCOL_MINOR;
    managed->manager_ctx = context; /* never NULL: Paddle calls no deleter then (K8) */
    managed->deleter = deleter;
    managed->flags = flags;
}

/* The tensor as it is exported: data is the first element wherever there are
 * addresses, since some consumers ignore byte_offset (D1), and NULL without
 * elements (D3). */
static inline void
dlpack_py_impl_fold_offset(DLTensor *t)
{
    t->device = dlpack_py_impl_device_said(t->device);
    if (dlpack_py_impl_has_address(t->device)) {
        t->data = dlpack_py_is_empty(t) ? NULL : dlpack_py_first(t);
        t->byte_offset = 0;
    }
}

/* A managed tensor over the memory of t, or over new memory for a copy of it.
 *
 * order   0: the memory of t, as it is. 'C' or 'F': new memory for a compact copy,
 *         on the CPU, aligned to 64 bytes (D2) or, where that does not do, to alignment;
 *         the caller fills it
 * form    DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY
 *
 * Returns NULL where there is no memory, without an exception. Owner and context
 * are for the caller to put in. t has been validated. Needs no thread state.
 */
static inline dlpack_py_impl_export *
dlpack_py_impl_export_new(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment)
{
    const size_t extents = (size_t)t->ndim * sizeof(int64_t);
    const size_t head = sizeof(dlpack_py_impl_export) + 2 * extents;
    const int64_t bytes = order != 0 ? dlpack_py_nbytes(t, flags) : 0;
    dlpack_py_impl_export *e;
    DLTensor *out;
    size_t slack = 0;

    if (order != 0)
        slack = alignment == 0 || 64 % alignment == 0 ? 64 : alignment;
    if (slack > PTRDIFF_MAX - head || (uint64_t)bytes > (uint64_t)PTRDIFF_MAX - head - slack)
        return NULL;
    e = (dlpack_py_impl_export *)DLPACK_PY_MALLOC(head + slack + (size_t)bytes);
    if (e == NULL)
        return NULL;
    e->owner = NULL;
    e->state = NULL;
    e->context = NULL;
    e->free_fn = NULL;
    if (form == DLPACK_PY_VERSIONED) {
        dlpack_py_impl_fill_versioned(&e->managed.versioned, e, flags, dlpack_py_impl_delete_versioned);
        out = &e->managed.versioned.dl_tensor;
    }
    else {
        e->managed.legacy.manager_ctx = e;
        e->managed.legacy.deleter = dlpack_py_impl_delete_legacy;
        out = &e->managed.legacy.dl_tensor;
    }
    *out = *t;
    out->shape = out->strides = NULL;
    if (t->ndim > 0) {
        out->shape = (int64_t *)(void *)(e + 1);
        out->strides = out->shape + t->ndim;
        memcpy(out->shape, t->shape, extents);
        if (order == 0 && t->strides != NULL)
            memcpy(out->strides, t->strides, extents);
        else /* never NULL (D4) */
            dlpack_py_strides(t->ndim, t->shape, order, out->strides);
    }
    if (order != 0) {
        const uintptr_t end = (uintptr_t)e + head;
        out->data = (char *)e + head + (slack - end % slack) % slack;
        out->byte_offset = 0;
        out->device = dlpack_py_device_make(kDLCPU, 0);
    }
    dlpack_py_impl_fold_offset(out);
    return e;
}

static inline DLTensor *
dlpack_py_impl_export_tensor(dlpack_py_impl_export *e, int32_t form)
{
    return form == DLPACK_PY_VERSIONED ? &e->managed.versioned.dl_tensor : &e->managed.legacy.dl_tensor;
}

/* New memory on the CPU for a compact copy of t (P4), which the caller fills. Returns NULL with MemoryError in
 * *error. */
DLPACK_PY_IMPL_RARE dlpack_py_impl_export *
dlpack_py_impl_copy_new(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment,
                        dlpack_py_error *error)
{
    const uint64_t kept = flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    dlpack_py_impl_export *e = dlpack_py_impl_export_new(t, kept | DLPACK_PY_FLAG_IS_COPIED, form, order, alignment);

    if (e == NULL)
        dlpack_py_impl_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for a copy of %" PRId64 " bytes",
                            dlpack_py_nbytes(t, flags));
    else if (dlpack_py_item_bits(t->dtype, kept) % 8 != 0 && !dlpack_py_is_empty(t)) /* bits behind the last element */
        ((char *)dlpack_py_impl_export_tensor(e, form)->data)[dlpack_py_nbytes(t, kept) - 1] = 0;
    return e;
}

/* A compact copy of t, which the CPU can read, in new memory (P4). It may be written, whatever flags say of t.
 * Returns NULL with *error filled. Needs no thread state. */
DLPACK_PY_IMPL_RARE dlpack_py_impl_export *
dlpack_py_impl_export_copy(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment,
                           dlpack_py_error *error)
{
    const uint64_t kept = flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    dlpack_py_impl_export *e = dlpack_py_impl_copy_new(t, flags, form, order, alignment, error);

    if (e == NULL || dlpack_py_copy(dlpack_py_impl_export_tensor(e, form), t, kept, error) == 0)
        return e;
    dlpack_py_impl_export_free(e);
    return NULL;
}

/* New memory of the CPU's for a tensor.
 *
 * prototype   its rank, shape, dtype and device are looked at
 *
 * Returns a managed tensor, row-major, writable and aligned to 64 bytes, the caller's
 * until its deleter is called; NULL with BufferError or MemoryError in *error. Needs
 * no thread state.
 */
static inline DLManagedTensorVersioned *
dlpack_py_allocate(const DLTensor *prototype, dlpack_py_error *error)
{
    dlpack_py_impl_export *e;
    DLTensor t = *prototype;
    char name[DLPACK_PY_TEXT_SIZE];

    t.data = (void *)(uintptr_t)64; /* anywhere but NULL, to be valid */
    t.strides = NULL;
    t.byte_offset = 0;
    if ((int32_t)t.device.device_type != (int32_t)kDLCPU) {
        dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "device is %s, memory is allocated on the CPU only",
                            dlpack_py_device_text(t.device, name));
        return NULL;
    }
    if (dlpack_py_validate(&t, 0, error) < 0)
        return NULL;
    e = dlpack_py_impl_export_new(&t, 0, DLPACK_PY_VERSIONED, 'C', 0);
    if (e != NULL)
        return &e->managed.versioned;
    dlpack_py_impl_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for %" PRId64 " bytes", dlpack_py_nbytes(&t, 0));
    return NULL;
}

static inline DLManagedTensorVersioned *
dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context, void (*free_fn)(void *context))
{
    dlpack_py_impl_export *e;
    if (dlpack_py_validate(t, flags, NULL) < 0)
        return NULL;
    e = dlpack_py_impl_export_new(t, flags, DLPACK_PY_VERSIONED, 0, 0);
    if (e == NULL)
        return NULL;
    e->context = context;
    e->free_fn = free_fn;
    return &e->managed.versioned;
}

/* Managed tensors of both forms as part of the author's own object: an export then
 * allocates nothing but its capsule. The object must not change shape, strides,
 * memory or flags while an export of it lives. All exports share struct, shape and
 * strides: a consumer that writes to them, as it may to what it alone was given, changes
 * the others and later ones, unchecked. Known ones only read; else do not embed. */
typedef struct dlpack_py_embedded {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
    PyObject *owner; /* borrowed: the object that this is part of */
    dlpack_py_state *state;
} dlpack_py_embedded;

static inline void
dlpack_py_impl_delete_embedded(DLManagedTensorVersioned *managed)
{
    dlpack_py_embedded *e = (dlpack_py_embedded *)managed->manager_ctx;
    dlpack_py_impl_drop(e->state, e->owner); /* last: e may go with its owner */
}

static inline void
dlpack_py_impl_delete_embedded_legacy(DLManagedTensor *managed)
{
    dlpack_py_embedded *e = (dlpack_py_embedded *)managed->manager_ctx;
    dlpack_py_impl_drop(e->state, e->owner);
}

/* Fill the managed tensors in the author's object, as it is made.
 *
 * e       in the object, until dlpack_py_embed_clear(e)
 * owner   the object itself; borrowed now, held by each export
 * t       shape and strides are pointed to: they live in the object too, and
 *         strides are given
 * flags   DLPACK_PY_FLAG_* that describe the data
 *
 * Returns 0, or -1 with BufferError (D8), ValueError (no strides) or MemoryError;
 * then there is nothing to clear.
 */
static inline int
dlpack_py_embed(dlpack_py_embedded *e, PyObject *owner, const DLTensor *t, uint64_t flags)
{
    dlpack_py_error error;

    e->state = NULL;
    if (dlpack_py_validate(t, flags, &error) < 0)
        return dlpack_py_raise(&error);
    if (t->ndim > 0 && t->strides == NULL) {
        PyErr_SetString(PyExc_ValueError, "strides is NULL, an embedded tensor points to strides in its object");
        return -1;
    }
    e->state = dlpack_py_state_get();
    if (e->state == NULL)
        return -1;
    (void)DLPACK_PY_IMPL_ADD(&e->state->references, 1);
    e->owner = owner;
    dlpack_py_impl_fill_versioned(&e->versioned, e, dlpack_py_impl_lasting(t, flags), dlpack_py_impl_delete_embedded);
    e->versioned.dl_tensor = *t;
    dlpack_py_impl_fold_offset(&e->versioned.dl_tensor);
    e->legacy.manager_ctx = e;
    e->legacy.deleter = dlpack_py_impl_delete_embedded_legacy;
    e->legacy.dl_tensor = e->versioned.dl_tensor;
    return 0;
}

/* For the object's tp_dealloc; zeroed memory that was never filled is fine. */
static inline void
dlpack_py_embed_clear(dlpack_py_embedded *e)
{
    if (e->state != NULL)
        dlpack_py_impl_state_release(e->state);
    e->state = NULL;
}

/* ---- 2.6 Capsules and their destructors --------------------------------- */

/* Calls the deleter, if there is one (K3). */
static inline void
dlpack_py_impl_call_deleter(void *managed, int32_t form)
{
    if (form == DLPACK_PY_VERSIONED) {
        DLManagedTensorVersioned *versioned = (DLManagedTensorVersioned *)managed;
        if (versioned->deleter != NULL)
            versioned->deleter(versioned);
    }
    else {
        DLManagedTensor *legacy = (DLManagedTensor *)managed;
        if (legacy->deleter != NULL)
            legacy->deleter(legacy);
    }
}

/* The owner of what this file exported for a Python object; NULL for all else. */
static inline PyObject *
dlpack_py_impl_owner(const void *managed, int32_t form)
{
    const DLManagedTensorVersioned *versioned = (const DLManagedTensorVersioned *)managed;
    const DLManagedTensor *legacy = (const DLManagedTensor *)managed;

    if (form == DLPACK_PY_VERSIONED ? versioned->deleter == dlpack_py_impl_delete_versioned
                                    : legacy->deleter == dlpack_py_impl_delete_legacy)
        return ((const dlpack_py_impl_export *)(form == DLPACK_PY_VERSIONED ? versioned->manager_ctx
                                                                            : legacy->manager_ctx))
            ->owner;
    if (form == DLPACK_PY_VERSIONED && versioned->deleter == dlpack_py_impl_delete_embedded)
        return ((const dlpack_py_embedded *)versioned->manager_ctx)->owner;
    if (form == DLPACK_PY_LEGACY && legacy->deleter == dlpack_py_impl_delete_embedded_legacy)
        return ((const dlpack_py_embedded *)legacy->manager_ctx)->owner;
    return NULL;
}

/* The same on any thread. Deleters of others may run Python code: where this thread
 * may see an exception, that is kept. Ours keep it themselves. */
static inline void
dlpack_py_impl_delete(void *managed, int32_t form)
{
    dlpack_py_impl_shelf shelved;
    if (dlpack_py_impl_owner(managed, form) != NULL || dlpack_py_impl_thread_state() == NULL) {
        dlpack_py_impl_call_deleter(managed, form);
        return;
    }
    shelved = dlpack_py_impl_shelve_exception();
    dlpack_py_impl_call_deleter(managed, form);
    dlpack_py_impl_unshelve_exception(shelved);
}

/* What unconsumed capsules are called, and consumed ones. */
static inline const char *
dlpack_py_impl_capsule_name(int32_t form)
{
    return form == DLPACK_PY_VERSIONED ? "dltensor_versioned" : "dltensor";
}

static inline const char *
dlpack_py_impl_used_name(int32_t form)
{
    return form == DLPACK_PY_VERSIONED ? "used_dltensor_versioned" : "used_dltensor";
}

/* An unconsumed capsule that dies takes its tensor with it (K1). */
static inline void
dlpack_py_impl_capsule_destructor(PyObject *capsule, int32_t form)
{
    const char *name = PyCapsule_GetName(capsule), *unconsumed = dlpack_py_impl_capsule_name(form);
    if (name == unconsumed || (name != NULL && strcmp(name, unconsumed) == 0)) /* the first saves the call */
        dlpack_py_impl_delete(PyCapsule_GetPointer(capsule, name), form);
}

static inline void
dlpack_py_impl_destroy_versioned(PyObject *capsule)
{
    dlpack_py_impl_capsule_destructor(capsule, DLPACK_PY_VERSIONED);
}

static inline void
dlpack_py_impl_destroy_legacy(PyObject *capsule)
{
    dlpack_py_impl_capsule_destructor(capsule, DLPACK_PY_LEGACY);
}

/* A new capsule, unconsumed; on failure the tensor is deleted. */
static inline PyObject *
dlpack_py_impl_capsule_new(void *managed, int32_t form)
{
    PyObject *capsule;
    if (managed == NULL) {
        PyErr_SetString(PyExc_BufferError,
                        "there is no managed tensor: it is malformed, or there was no memory for it");
        return NULL;
    }
    capsule =
        PyCapsule_New(managed, dlpack_py_impl_capsule_name(form),
                      form == DLPACK_PY_VERSIONED ? dlpack_py_impl_destroy_versioned : dlpack_py_impl_destroy_legacy);
    if (capsule == NULL)
        dlpack_py_impl_delete(managed, form);
    return capsule;
}

/* Put a managed tensor into a new capsule, which owns it from now on; steals it,
 * also when it returns NULL with MemoryError. NULL, as dlpack_py_wrap may return it, is
 * BufferError. */
static inline PyObject *
dlpack_py_capsule_steal(DLManagedTensorVersioned *managed)
{
    return dlpack_py_impl_capsule_new(managed, DLPACK_PY_VERSIONED);
}

/* The same for the legacy form. */
static inline PyObject *
dlpack_py_capsule_legacy_steal(DLManagedTensor *managed)
{
    return dlpack_py_impl_capsule_new(managed, DLPACK_PY_LEGACY);
}

/* ---- 2.7 Requests ------------------------------------------------------- */

#define DLPACK_PY_COPY_AS_NEEDED 0 /* None */
#define DLPACK_PY_COPY_ALWAYS 1    /* True */
#define DLPACK_PY_COPY_NEVER 2     /* False */

/* The arguments of __dlpack__, or what a consumer asks for. All zero is a call
 * without arguments. */
typedef struct dlpack_py_request {
    dlpack_py_stream stream;
    DLPackVersion max_version; /* 0.0: not given */
    int32_t has_device;        /* device was given */
    DLDevice device;
    int32_t copy; /* DLPACK_PY_COPY_... */
} dlpack_py_request;

/* A call without arguments. */
static inline const dlpack_py_request *
dlpack_py_impl_no_request(void)
{
    static const dlpack_py_request nothing = {{0, 0}, {0, 0}, 0, {kDLCPU, 0}, 0};
    return &nothing;
}

/* The call of one who takes this library's newest version, and whatever there is. */
static inline const dlpack_py_request *
dlpack_py_impl_newest_request(void)
{
    static const dlpack_py_request newest = {
        {0, 0}, {DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR}, 0, {kDLCPU, 0}, 0};
    return &newest;
}

/* An integer is whatever has __index__. Returns 0, 1 where the object is none, -1
 * with an exception. What leaves int64_t is cut off at its ends. */
static inline int
dlpack_py_impl_integer(PyObject *object, int64_t *value)
{
    PyObject *integer = NULL;
    int overflow;
    if (!PyLong_CheckExact(object)) {
        object = integer = PyNumber_Index(object);
        if (integer == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_TypeError))
                return -1;
            PyErr_Clear();
            return 1;
        }
    }
    *value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0)
        *value = overflow < 0 ? INT64_MIN : INT64_MAX;
    Py_XDECREF(integer);
    return 0;
}

/* A 2-tuple of integers. Returns 0, or -1 with TypeError of the format given. */
static inline int
dlpack_py_impl_pair(const char *format, PyObject *object, int64_t *first, int64_t *second)
{
    *first = *second = 0;
    if (PyTuple_Check(object) && PyTuple_Size(object) == 2) {
        int failed = dlpack_py_impl_integer(PyTuple_GetItem(object, 0), first);
        if (failed == 0)
            failed = dlpack_py_impl_integer(PyTuple_GetItem(object, 1), second);
        if (failed <= 0)
            return failed;
    }
    dlpack_py_impl_refuse_value(PyExc_TypeError, format, object);
    return -1;
}

static inline int32_t
dlpack_py_impl_clip(int64_t value)
{
    if (value > INT32_MAX)
        return INT32_MAX;
    return value < INT32_MIN ? INT32_MIN : (int32_t)value;
}

/* A handle has the pointer's full width (S7). */
static inline int
dlpack_py_impl_parse_stream(PyObject *object, dlpack_py_stream *stream)
{
    PyObject *integer = PyNumber_Index(object);
    unsigned long long handle;

    if (integer == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            dlpack_py_impl_refuse_value(PyExc_TypeError, "stream is %U, None or an integer was wanted", object);
        return -1;
    }
    handle = PyLong_AsUnsignedLongLong(integer);
    stream->kind = DLPACK_PY_STREAM_HANDLE;
    stream->handle = (uintptr_t)handle;
    if (PyErr_Occurred() || handle > UINTPTR_MAX) { /* below 0, or too wide */
        PyErr_Clear();
        stream->kind = DLPACK_PY_STREAM_NO_SYNC;
        if (PyLong_AsLong(integer) != -1 || PyErr_Occurred())
            dlpack_py_impl_refuse_value(PyExc_ValueError,
                                        "stream is %U, None, -1 or a handle of a pointer's width was wanted", object);
    }
    Py_DECREF(integer);
    return PyErr_Occurred() ? -1 : 0;
}

static inline int
dlpack_py_impl_parse_version(PyObject *object, DLPackVersion *version)
{
    int64_t major, minor;
    if (dlpack_py_impl_pair("max_version is %U, None or a tuple of two integers was wanted", object, &major, &minor) <
        0)
        return -1;
    version->major = major < 0 ? 0 : (uint32_t)dlpack_py_impl_clip(major);
    version->minor = minor < 0 ? 0 : (uint32_t)dlpack_py_impl_clip(minor);
    return 0;
}

static inline int
dlpack_py_impl_parse_copy(PyObject *object, int32_t *copy)
{
    if (object == Py_True)
        *copy = DLPACK_PY_COPY_ALWAYS;
    else if (object == Py_False)
        *copy = DLPACK_PY_COPY_NEVER;
    else if (object != Py_None) {
        dlpack_py_impl_refuse_value(PyExc_TypeError, "copy is %U, None, True or False was wanted", object);
        return -1;
    }
    return 0;
}

/* Understand a request from four objects, each of which may be NULL or None for
 * "not given". Returns 0, or -1 with TypeError (P1, P2, P4, P5). */
static inline int
dlpack_py_parse_request_args(PyObject *stream, PyObject *max_version, PyObject *dl_device, PyObject *copy,
                             dlpack_py_request *request)
{
    int64_t type, id;

    memset(request, 0, sizeof(*request));
    if (max_version != NULL && max_version != Py_None &&
        dlpack_py_impl_parse_version(max_version, &request->max_version) < 0)
        return -1;
    if (stream != NULL && stream != Py_None && dlpack_py_impl_parse_stream(stream, &request->stream) < 0)
        return -1;
    if (dl_device != NULL && dl_device != Py_None) {
        if (dlpack_py_impl_pair("dl_device is %U, None or a tuple of two integers was wanted", dl_device, &type, &id) <
            0)
            return -1;
        request->has_device = 1;
        request->device = dlpack_py_device_make(dlpack_py_impl_clip(type), dlpack_py_impl_clip(id));
    }
    return copy == NULL ? 0 : dlpack_py_impl_parse_copy(copy, &request->copy);
}

typedef struct dlpack_py_impl_keyword {
    const char *name;
    Py_ssize_t length;
} dlpack_py_impl_keyword;

/* Sorts the keyword arguments of a call by names, of which there are count, into
 * out. By value: names need not be interned (P1). */
static inline int
dlpack_py_impl_match_keywords(const char *function, const dlpack_py_impl_keyword *names, int count,
                              PyObject *const *values, PyObject *kwnames, PyObject **out)
{
    const Py_ssize_t given = kwnames == NULL ? 0 : PyTuple_Size(kwnames);
    Py_ssize_t i, length;
    int k;

    for (i = 0; i < given; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        const char *text = PyUnicode_AsUTF8AndSize(name, &length);
        for (k = 0; k < count; k++) {
            if (text != NULL && length == names[k].length && memcmp(text, names[k].name, (size_t)length) == 0)
                break;
        }
        if (k == count) { /* replaces the error of a name that has no UTF-8 */
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return -1;
        }
        out[k] = values[i];
    }
    return 0;
}

/* Understand a request from the arguments of a METH_FASTCALL | METH_KEYWORDS
 * method. Returns 0, or -1 with TypeError. */
static inline int
dlpack_py_parse_request(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dlpack_py_request *request)
{
    static const dlpack_py_impl_keyword names[4] = {{"stream", 6}, {"max_version", 11}, {"dl_device", 9}, {"copy", 4}};
    PyObject *values[4] = {NULL, NULL, NULL, NULL};

    if (nargs != 0) {
        PyErr_Format(PyExc_TypeError, "__dlpack__() takes no positional arguments, %zd were given", nargs);
        return -1;
    }
    if (dlpack_py_impl_match_keywords("__dlpack__", names, 4, args, kwnames, values) < 0)
        return -1;
    return dlpack_py_parse_request_args(values[0], values[1], values[2], values[3], request);
}

/* ---- 2.8 Producing ------------------------------------------------------ */

typedef struct dlpack_py_offer dlpack_py_offer;
typedef struct dlpack_py_plan dlpack_py_plan;
typedef struct dlpack_py_device dlpack_py_device;
struct dlpack_device_runtime;

/* What this file asks of a device. dlpack_device.h implements each operation over the functions of a runtime, and
 * DLPACK_DEVICE_OPERATIONS fills this struct. Operations need a thread state; those that fail set an exception. */
struct dlpack_py_device {
    int32_t type;             /* DLDeviceType of its memory */
    int32_t managed_type;     /* DLDeviceType of memory that it shares with the CPU; 0: none */
    uintptr_t default_stream; /* what stream=None, and NULL in an exchange table, stand for (S2, S3, X4) */
    const struct dlpack_device_runtime *(*runtime)(void);

    /* Make data that is exported in place ready: for the stream of the request (S1), or for the host (S10).
     * Returns 0 or -1. */
    int (*make_ready)(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan);
    /* Make the copy that the plan asks for, behind the work that is pending. Returns an export of the plan's form, or
     * NULL. */
    dlpack_py_impl_export *(*copy)(const dlpack_py_offer *offer, const dlpack_py_request *request,
                                   const dlpack_py_plan *plan);
    /* Call function(argument) with device id current, and make the device current again that was so before. Returns
     * what the function returned, or -1. */
    int (*call_on)(const dlpack_py_device *device, int32_t id, int (*function)(void *argument), void *argument);
};

/* What is exported, by whom and how. Zero what is not needed. */
struct dlpack_py_offer {
    PyObject *owner;        /* keeps the data alive; held until the deleter has run */
    const DLTensor *tensor; /* on memory that the CPU can read, or of device */
    uint64_t flags;         /* DLPACK_PY_FLAG_* that describe the data */
    uint32_t options;       /* DLPACK_PY_OFFER_... */
    /* Asked before anything is exported: -1 with an exception, BufferError as a rule,
     * where the data's bytes are not its values, or the like (P7). May be NULL. */
    int (*veto)(PyObject *owner, const dlpack_py_request *request);
    dlpack_py_embedded *embedded;   /* exported in place without an allocation; NULL: allocate */
    dlpack_py_state *state;         /* NULL: looked up */
    const dlpack_py_device *device; /* on whose memory the data is, or whose streams work on it; NULL: none */
    /* Where work on the data may be queued: it is done before the consumer's, or before the host reads, for which
     * other threads run meanwhile; the data stays where it is. With copy=True, what is queued there later comes after
     * the copy. With none, memory of a device is to be freed by a call that waits for the device. */
    const dlpack_py_work_stream *pending;
    size_t pending_count; /* DLPACK_PY_MAX_PENDING at most */
};

#define DLPACK_PY_OFFER_UNSAID 1u          /* imported from a legacy capsule: may be so exported again (C7) */
#define DLPACK_PY_OFFER_REFUSE_NEGATIVE 2u /* a negative stride is BufferError: PyTorch ends the process (D11) */
#define DLPACK_PY_OFFER_COPY_NEGATIVE 4u   /* a negative stride asks for a copy */
#define DLPACK_PY_OFFER_NONE_IS_NO_SYNC 8u /* stream=None asks for no order on a device, as PyTorch has it */

/* What is done with a request. */
struct dlpack_py_plan {
    int32_t form;    /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY */
    int32_t copy;    /* 1: a copy, 0: in place */
    DLDevice device; /* what the capsule says */
    uint64_t flags;  /* likewise */
};

static inline int
dlpack_py_impl_has_negative_stride(const DLTensor *t)
{
    int32_t i;
    for (i = 0; t->strides != NULL && i < t->ndim; i++) {
        if (t->strides[i] < 0 && t->shape[i] > 1)
            return !dlpack_py_is_empty(t);
    }
    return 0;
}

static inline int
dlpack_py_impl_same_device(DLDevice a, DLDevice b)
{
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

static inline int
dlpack_py_impl_is_on(const dlpack_py_device *device, DLDevice where)
{
    return device != NULL && (int32_t)where.device_type == device->type;
}

/* Device and stream of a request (P5, P6): where the capsule will say the data is. */
static inline int
dlpack_py_impl_plan_device(const dlpack_py_offer *offer, const dlpack_py_request *request, DLDevice *device,
                           dlpack_py_error *error)
{
    const DLTensor *t = offer->tensor;
    char came[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE];

    *device = dlpack_py_impl_device_said(t->device);
    if (t->device.device_type == kDLCPU && !request->has_device && request->stream.kind != DLPACK_PY_STREAM_HANDLE)
        return 0; /* nothing is asked: saves the questions below */
    if (!dlpack_py_is_cpu_readable(t->device) && !dlpack_py_impl_is_on(offer->device, t->device))
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "device is %s, memory that the CPU can read was to be exported",
                                   dlpack_py_device_text(t->device, came));
    if (request->has_device && !dlpack_py_impl_same_device(request->device, *device)) {
        if (!dlpack_py_impl_same_device(request->device, dlpack_py_device_make(kDLCPU, 0)))
            return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "dl_device is %s, the data is on %s%s",
                                       dlpack_py_device_text(request->device, wanted),
                                       dlpack_py_device_text(t->device, came),
                                       t->device.device_type == kDLCPU ? "" : " and goes there or to cpu");
        *device = request->device; /* pinned and managed memory, as the host's that was asked for; else a copy */
    }
    return dlpack_py_check_stream(*device, &request->stream, error);
}

/* Is the copy that a request needs refused by it, or made where nobody asked for it? */
static inline int
dlpack_py_impl_plan_copy(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan,
                         dlpack_py_error *error)
{
    const DLTensor *t = offer->tensor;
    const int negative = (offer->options & (DLPACK_PY_OFFER_REFUSE_NEGATIVE | DLPACK_PY_OFFER_COPY_NEGATIVE)) != 0 &&
                         dlpack_py_impl_has_negative_stride(t);
    const int leaves = !dlpack_py_is_cpu_readable(t->device) && (int32_t)plan->device.device_type == (int32_t)kDLCPU;
    const char *why = NULL;
    char name[DLPACK_PY_TEXT_SIZE];

    plan->copy = request->copy == DLPACK_PY_COPY_ALWAYS;
    if (negative && !plan->copy && (offer->options & DLPACK_PY_OFFER_COPY_NEGATIVE) == 0)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "a stride is negative, which is not exported; copy=True would be");
    if (negative)
        why = "a stride is negative, which is exported as a copy only";
    if (leaves)
        why = "the data is on a device that the CPU cannot read, and goes to the CPU as a copy only";
    if (why != NULL && request->copy == DLPACK_PY_COPY_NEVER)
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "%s, and copy is False", why);
    plan->copy = plan->copy || why != NULL;
    if (plan->copy && (int32_t)plan->device.device_type != (int32_t)kDLCPU &&
        !dlpack_py_impl_is_on(offer->device, plan->device)) /* the capsule would not say so (P8) */
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "a copy of data on %s is made on the CPU: ask with dl_device=(1, 0)",
                                   dlpack_py_device_text(plan->device, name));
    return 0;
}

/* Decide how a request is met: in place or by a copy, on which device, in which form.
 *
 * offer   its tensor has been validated; tensor, flags, options and device are looked at
 * plan    out
 *
 * Returns 0, or -1 with BufferError (P3, P4, P5, P7) or ValueError (P6). Needs no
 * thread state, looks at no data and asks no device.
 */
static inline int
dlpack_py_decide(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan,
                 dlpack_py_error *error)
{
    const uint64_t flags = offer->flags;

    plan->form = request->max_version.major < 1 ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
    plan->flags = dlpack_py_impl_lasting(offer->tensor, flags);
    if (dlpack_py_impl_plan_device(offer, request, &plan->device, error) < 0 ||
        dlpack_py_impl_plan_copy(offer, request, plan, error) < 0)
        return -1;
    if (plan->form == DLPACK_PY_LEGACY) {
        if ((flags & DLPACK_PY_FLAG_READ_ONLY) != 0 && !plan->copy && (offer->options & DLPACK_PY_OFFER_UNSAID) == 0)
            return dlpack_py_impl_fail(
                error, DLPACK_PY_BUFFER_ERROR,
                "data is read-only, which a legacy capsule cannot say: ask with max_version=(1, 0)");
        if ((plan->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0)
            return dlpack_py_impl_fail(
                error, DLPACK_PY_BUFFER_ERROR,
                "sub-byte data is padded, which a legacy capsule cannot say: ask with max_version=(1, 0)");
    }
    return 0;
}

/* A managed tensor for an export in place, which holds the owner. */
static inline void *
dlpack_py_impl_answer_in_place(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    dlpack_py_state *state = offer->state != NULL ? offer->state : dlpack_py_state_get();
    dlpack_py_impl_export *e;

    if (state == NULL)
        return NULL;
    e = dlpack_py_impl_export_new(offer->tensor, plan->flags, plan->form, 0, 0);
    if (e == NULL)
        return PyErr_NoMemory();
    dlpack_py_impl_export_tensor(e, plan->form)->device = plan->device;
    Py_INCREF(offer->owner);
    e->owner = offer->owner;
    (void)DLPACK_PY_IMPL_ADD(&state->references, 1);
    e->state = state;
    return &e->managed;
}

/* The same with the managed tensors in the owner, which saves the allocation. */
static inline void *
dlpack_py_impl_answer_embedded(dlpack_py_embedded *e, const dlpack_py_plan *plan)
{
    Py_INCREF(e->owner);
    return plan->form == DLPACK_PY_VERSIONED ? (void *)&e->versioned : (void *)&e->legacy;
}

/* A copy, behind the work that is pending. */
DLPACK_PY_IMPL_RARE void *
dlpack_py_impl_answer_copy(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    dlpack_py_impl_export *e;
    dlpack_py_error error;

    if (!dlpack_py_is_cpu_readable(offer->tensor->device) || offer->pending_count > 0) {
        e = offer->device->copy(offer, request, plan);
    }
    else {
        e = dlpack_py_impl_export_copy(offer->tensor, offer->flags, plan->form, 'C', 0, &error);
        if (e == NULL)
            (void)dlpack_py_raise(&error);
    }
    return e == NULL ? NULL : &e->managed;
}

/* May this be exported, and how? Returns 0, or -1 with an exception. */
static inline int
dlpack_py_impl_plan(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan)
{
    dlpack_py_error error;

    if (offer->veto != NULL && offer->veto(offer->owner, request) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_BufferError, "the data cannot be exported in its present state");
        return -1;
    }
    if (offer->pending_count > DLPACK_PY_MAX_PENDING) {
        PyErr_Format(PyExc_SystemError, "the offer has %zu pending streams, at most %d were wanted",
                     offer->pending_count, DLPACK_PY_MAX_PENDING);
        return -1;
    }
    if (offer->pending_count > 0 && offer->device == NULL) {
        PyErr_SetString(PyExc_SystemError, "the offer has pending streams, and its device is NULL");
        return -1;
    }
    if (((offer->embedded == NULL || offer->tensor != &offer->embedded->versioned.dl_tensor) &&
         dlpack_py_validate(offer->tensor, offer->flags, &error) < 0) ||
        dlpack_py_decide(offer, request, plan, &error) < 0)
        return dlpack_py_raise(&error);
    return 0;
}

/* Export what is offered, as it was planned; in place, before what is pending was seen to.
 * Returns a managed tensor of the plan's form, the caller's; NULL with MemoryError,
 * BufferError or RuntimeError. */
static inline void *
dlpack_py_impl_export_offer(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan)
{
    if (plan->copy)
        return dlpack_py_impl_answer_copy(offer, request, plan);
    if (offer->embedded != NULL && offer->tensor == &offer->embedded->versioned.dl_tensor &&
        plan->flags == offer->embedded->versioned.flags &&
        dlpack_py_impl_same_device(plan->device, offer->tensor->device)) /* else the author changed the offer */
        return dlpack_py_impl_answer_embedded(offer->embedded, plan);
    return dlpack_py_impl_answer_in_place(offer, plan);
}

/* Answer a request that was understood: what dlpack_py_produce does after parsing.
 * Returns as it does. */
static inline PyObject *
dlpack_py_answer(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    dlpack_py_plan plan;
    PyObject *capsule;
    void *managed;

    if (dlpack_py_impl_plan(offer, request, &plan) < 0)
        return NULL;
    managed = dlpack_py_impl_export_offer(offer, request, &plan);
    capsule = managed == NULL ? NULL : dlpack_py_impl_capsule_new(managed, plan.form);
    /* Last, for an order cannot be taken back: nothing fails after it. */
    if (capsule != NULL && !plan.copy && offer->pending_count > 0 &&
        offer->device->make_ready(offer, request, &plan) < 0) {
        dlpack_py_impl_decref(capsule);
        return NULL;
    }
    return capsule;
}

/* Answer a call of __dlpack__ with all that an offer can say. */
static inline PyObject *
dlpack_py_produce_offer(const dlpack_py_offer *offer, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_request request;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    return dlpack_py_answer(offer, &request);
}

/* An offer of what most objects have. */
static inline dlpack_py_offer
dlpack_py_offer_make(PyObject *owner, const DLTensor *t, uint64_t flags)
{
    dlpack_py_offer offer;
    memset(&offer, 0, sizeof(offer));
    offer.owner = owner;
    offer.tensor = t;
    offer.flags = flags;
    return offer;
}

/* An offer of the managed tensors in the author's object. */
static inline dlpack_py_offer
dlpack_py_offer_embedded(dlpack_py_embedded *e)
{
    dlpack_py_offer offer = dlpack_py_offer_make(e->owner, &e->versioned.dl_tensor, e->versioned.flags);
    offer.embedded = e;
    offer.state = e->state;
    return offer;
}

/* An offer of what was consumed, by the object that holds the view: read-only and
 * padded stay said (C7). t is the view's tensor or one that looks into it. */
static inline dlpack_py_offer
dlpack_py_offer_view(PyObject *owner, const DLTensor *t, const dlpack_py_view *v)
{
    dlpack_py_offer offer = dlpack_py_offer_make(owner, t, v->flags);
    if (v->readonly != DLPACK_PY_WRITABLE)
        offer.flags |= DLPACK_PY_FLAG_READ_ONLY;
    if (v->readonly == DLPACK_PY_READONLY_UNSAID)
        offer.options |= DLPACK_PY_OFFER_UNSAID;
    return offer;
}

static inline PyObject *
dlpack_py_produce(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    const dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    return dlpack_py_produce_offer(&offer, args, nargs, kwnames);
}

static inline PyObject *
dlpack_py_produce_args(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *stream, PyObject *max_version,
                       PyObject *dl_device, PyObject *copy)
{
    dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    dlpack_py_request request;
    if (dlpack_py_parse_request_args(stream, max_version, dl_device, copy, &request) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

static inline PyObject *
dlpack_py_impl_device_tuple(DLDevice device)
{
    dlpack_py_state *state;
    if (!dlpack_py_impl_same_device(device, dlpack_py_device_make(kDLCPU, 0)))
        return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
    state = dlpack_py_state_get();
    if (state != NULL)
        Py_INCREF(state->cpu);
    return state == NULL ? NULL : state->cpu;
}

static inline PyObject *
dlpack_py_produce_device(const DLTensor *t)
{
    return dlpack_py_impl_device_tuple(dlpack_py_impl_device_said(t->device));
}

static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return dlpack_py_impl_device_tuple(dlpack_py_device_make(kDLCPU, 0));
}

/* ---- 2.9 What types offer ----------------------------------------------- */

/* Finds a method as Python finds special ones, on the type; where the type has
 * none, on the instance (C6: proxies).
 *
 * unbound   out: 1 where obj is to be passed as the first argument
 *
 * Returns a new reference; NULL with AttributeError or the error of a descriptor.
 */
static inline PyObject *
dlpack_py_impl_find_method(PyObject *obj, PyObject *name, int *unbound)
{
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *found = dlpack_py_impl_type_lookup(type, name), *bound;
    descrgetfunc get;
#ifdef Py_LIMITED_API
    void *slot;
#endif

    *unbound = 0;
    if (found == NULL && !PyErr_Occurred() && PyType_Check(obj)) /* its attributes are for its instances */
        dlpack_py_impl_refuse_value(PyExc_AttributeError, "%U has no __dlpack__, its instances may have", obj);
    if (found == NULL)
        return PyErr_Occurred() ? NULL : PyObject_GetAttr(obj, name);
#if DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
    if (PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR)) {
        *unbound = 1; /* saves the bound method */
        return found;
    }
#endif
#ifndef Py_LIMITED_API
    get = Py_TYPE(found)->tp_descr_get;
#else
    slot = PyType_GetSlot(Py_TYPE(found), Py_tp_descr_get);
    memcpy(&get, &slot, sizeof(get)); /* ISO C has no cast from an object's pointer to a function's */
#endif
    if (get == NULL)
        return found;
    bound = get(found, obj, (PyObject *)type);
    Py_DECREF(found);
    return bound;
}

#if DLPACK_PY_HAS_EXCHANGE_API
#define DLPACK_PY_IMPL_EXCHANGE_NAME "dlpack_exchange_api"

/* The allocator in every table that this file makes. Whoever calls it may have no
 * thread state (X5). */
static inline int
dlpack_py_impl_table_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                              void (*set_error)(void *context, const char *kind, const char *message))
{
    dlpack_py_error error;

    if (out != NULL)
        *out = NULL;
    if (out == NULL || prototype == NULL)
        dlpack_py_impl_fail(&error, DLPACK_PY_VALUE_ERROR, "%s is NULL", out == NULL ? "out" : "prototype");
    else
        *out = dlpack_py_allocate(prototype, &error);
    if (out != NULL && *out != NULL)
        return 0;
    if (set_error != NULL)
        set_error(context, dlpack_py_impl_error_kind(error.code), error.text);
    return -1;
}

/* What DLPACK_PY_EXCHANGE_API defines (2.14). */
typedef struct dlpack_py_exchange {
    DLPackExchangeAPI api; /* first: what the capsule on the type points to */
    int (*offer)(PyObject *self, dlpack_py_offer *offer);
    PyObject *(*make_steal)(PyTypeObject *type, dlpack_py_view *v);
    const dlpack_py_want *want;
    int (*work_stream)(DLDeviceType type, int32_t id, void **out); /* NULL: the CPU's, which has none */
} dlpack_py_exchange;

/* The weak references to types that a table of this file's was put on in the
 * interpreter, the last one last: a list, a new reference; NULL, with or without an
 * exception, where it is another's table. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_own_types(dlpack_py_state *state, const void *table)
{
    PyObject *key = PyLong_FromVoidPtr(dlpack_py_impl_unconst(table));
    PyObject *types = key == NULL ? NULL : dlpack_py_impl_dict_get(state->on_demand, key);
    Py_XDECREF(key);
    return types;
}

/* The type of the last reference before place *i, which becomes its place; a new reference,
 * None for a type that died, NULL at the front or with an exception. Backwards none is
 * missed as others come, or take themselves out: any allocation may collect garbage. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_own_type_before(PyObject *types, Py_ssize_t *i)
{
    PyObject *reference = NULL, *type;

    while (reference == NULL && (*i)-- > 0) {
#ifdef Py_GIL_DISABLED
        reference = PyList_GetItemRef(types, *i);
#else
        reference = PyList_GetItem(types, *i);
        Py_XINCREF(reference);
#endif
        if (reference == NULL) /* it is shorter by now */
            PyErr_Clear();
    }
    type = reference == NULL ? NULL : PyObject_CallFunctionObjArgs(reference, NULL);
    Py_XDECREF(reference);
    return type;
}

/* Is the table this file's, and the type one of those that it was put on, or derived
 * from one (X7)? Any class may carry the capsule of another. -1 with an exception. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_own(dlpack_py_state *state, PyTypeObject *type, const void *table)
{
    PyObject *types = dlpack_py_impl_own_types(state, table), *owner;
    Py_ssize_t i = types == NULL ? 0 : PyList_Size(types);
    int own = 0;

    while (own == 0 && (owner = dlpack_py_impl_own_type_before(types, &i)) != NULL) {
        own = owner != Py_None && PyType_IsSubtype(type, (PyTypeObject *)owner);
        Py_DECREF(owner);
    }
    Py_XDECREF(types);
    return PyErr_Occurred() ? -1 : own;
}

/* What the author of a table offers of an object, and how it is exported. */
static inline int
dlpack_py_impl_exchange_plan(const dlpack_py_exchange *x, dlpack_py_state *state, PyObject *object,
                             dlpack_py_offer *offer, dlpack_py_plan *plan)
{
    memset(offer, 0, sizeof(*offer));
    offer->owner = object;
    if (x->offer(object, offer) < 0)
        return -1;
    offer->state = state; /* whatever the author put there */
    return dlpack_py_impl_plan(offer, dlpack_py_impl_newest_request(), plan);
}

/* 0 from a function of a table, and no exception? Else there will be one; returns -1. */
static inline int
dlpack_py_impl_check_table_call(int returned, const char *function)
{
    if (returned == 0 && !PyErr_Occurred())
        return 0;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "the producer's exchange table: %s failed without an exception", function);
    return -1;
}

/* The stream that a table's objects are worked on (X4). */
static inline int
dlpack_py_impl_ask_work(const DLPackExchangeAPI *table, const dlpack_py_device *device, dlpack_py_work_stream *work)
{
    void *stream = NULL; /* X8 */
    const int returned = table->current_work_stream((DLDeviceType)device->type, work->device_id, &stream);
    work->handle = stream == NULL ? device->default_stream : (uintptr_t)stream;
    return dlpack_py_impl_check_table_call(returned, "current_work_stream");
}

/* The request that a table answers (X4): the host asks no stream, and so data that the CPU
 * can read is waited for; other data comes in the order of the stream that the table names. */
static inline int
dlpack_py_impl_exchange_request(const dlpack_py_exchange *x, const dlpack_py_offer *offer, const dlpack_py_plan *plan,
                                dlpack_py_request *request)
{
    dlpack_py_work_stream work = {0, plan->device.device_id};

    *request = *dlpack_py_impl_newest_request();
    if (dlpack_py_is_cpu_readable(plan->device))
        return 0;
    if (dlpack_py_impl_ask_work(&x->api, offer->device, &work) < 0)
        return -1;
    request->stream.kind = DLPACK_PY_STREAM_HANDLE;
    request->stream.handle = work.handle;
    return 0;
}

/* Sees to what is pending on data that is exported as it is. */
static inline int
dlpack_py_impl_exchange_settle(const dlpack_py_offer *offer, const dlpack_py_request *request,
                               const dlpack_py_plan *plan)
{
    return offer->pending_count == 0 ? 0 : offer->device->make_ready(offer, request, plan);
}

/* Exports what was planned. */
static inline void *
dlpack_py_impl_exchange_export(const dlpack_py_exchange *x, const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    dlpack_py_request request;
    void *managed = NULL;

    if (dlpack_py_impl_exchange_request(x, offer, plan, &request) == 0)
        managed = dlpack_py_impl_export_offer(offer, &request, plan);
    if (managed == NULL || plan->copy || dlpack_py_impl_exchange_settle(offer, &request, plan) == 0)
        return managed;
    dlpack_py_impl_delete(managed, plan->form);
    return NULL;
}

/* What a bare DLTensor cannot say is not lent (X3). */
static inline int
dlpack_py_impl_may_lend(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    return !plan->copy && plan->flags == 0 && (offer->tensor->ndim == 0 || offer->tensor->strides != NULL);
}

/* Sees to what is pending on data that is lent, and to what others changed meanwhile.
 * Returns 0, or -1 with an exception. */
static inline int
dlpack_py_impl_exchange_settle_lent(const dlpack_py_exchange *x, const dlpack_py_offer *offer,
                                    const dlpack_py_plan *plan)
{
    dlpack_py_request request;
    dlpack_py_error error;

    if (dlpack_py_impl_exchange_request(x, offer, plan, &request) < 0 ||
        dlpack_py_impl_exchange_settle(offer, &request, plan) < 0)
        return -1;
    if (offer->pending_count > 0 && dlpack_py_validate(offer->tensor, offer->flags, &error) < 0)
        return dlpack_py_raise(&error);
    return 0;
}

/* The table of our major version, or the newest before that in the chain, if it has
 * all functions that it must have (X2). */
DLPACK_PY_IMPL_RARE const DLPackExchangeAPI *
dlpack_py_impl_usable_table(const DLPackExchangeAPIHeader *header)
{
    const DLPackExchangeAPI *table;

    while (header != NULL && header->version.major > DLPACK_PY_PROTOCOL_MAJOR) {
        const DLPackExchangeAPIHeader *older = header->prev_api;
        header =
            older == NULL || older->version.major >= header->version.major ? NULL : older; /* ends, whatever comes */
    }
    if (header == NULL || header->version.major != DLPACK_PY_PROTOCOL_MAJOR)
        return NULL;
    table = (const DLPackExchangeAPI *)(const void *)header;
    if (table->managed_tensor_allocator == NULL || table->managed_tensor_from_py_object_no_sync == NULL ||
        table->managed_tensor_to_py_object_no_sync == NULL || table->current_work_stream == NULL)
        return NULL;
    return table;
}

/* Does a class override __dlpack__ that is derived from the one which has the table?
 * Then its author changed what an export means (X2). -1 with an exception. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_overridden(dlpack_py_state *state, PyTypeObject *type)
{
    PyObject *bases = PyObject_GetAttrString((PyObject *)type, "__mro__"), *names;
    Py_ssize_t i, count = bases == NULL ? -1 : PyTuple_Size(bases);
    int has_table = count < 0 ? -1 : 0, has_method = 0;

    for (i = 0; i < count && has_table == 0 && has_method == 0; i++) {
        names = PyObject_GetAttrString(PyTuple_GetItem(bases, i), "__dict__");
        has_table = names == NULL ? -1 : PySequence_Contains(names, state->exchange);
        has_method = has_table < 0 ? -1 : PySequence_Contains(names, state->dlpack);
        Py_XDECREF(names);
    }
    Py_XDECREF(bases);
    return has_table < 0 || has_method < 0 ? -1 : !has_table;
}
#endif

/* The exchange table of a type that is to be used, if there is one. Looked for on the
 * type, never on the instance (X1); all but a capsule counts as absent, and so does what
 * cannot be looked at now. Returns -1 in that case, with an exception only where
 * that is no answer (MemoryError, KeyboardInterrupt), else 0. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_find_table(dlpack_py_state *state, PyTypeObject *type, dlpack_py_impl_type *room)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    PyObject *capsule = dlpack_py_impl_type_lookup(type, state->exchange);
    const void *table;

    if (capsule != NULL && PyCapsule_IsValid(capsule, DLPACK_PY_IMPL_EXCHANGE_NAME) &&
        dlpack_py_impl_is_overridden(state, type) == 0) {
        table = dlpack_py_impl_usable_table(
            (const DLPackExchangeAPIHeader *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_EXCHANGE_NAME));
        room->own = table == NULL ? 0 : dlpack_py_impl_is_own(state, type, table);
        if (room->own >= 0)
            room->table = table;
    }
    Py_XDECREF(capsule);
#else
    (void)state;
    (void)type;
    (void)room;
#endif
    if (!PyErr_Occurred())
        return 0;
    if (!dlpack_py_impl_is_fatal())
        PyErr_Clear();
    return -1;
}

#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
/* Where what was learnt of a type is kept. */
static inline dlpack_py_impl_type *
dlpack_py_impl_type_slot(dlpack_py_state *state, PyTypeObject *type)
{
    const uintptr_t address = (uintptr_t)type;
    return &state->types[(address >> 4 ^ address >> 9) % DLPACK_PY_IMPL_TYPES];
}

/* Learns anew. */
DLPACK_PY_IMPL_RARE const dlpack_py_impl_type *
dlpack_py_impl_type_learn(dlpack_py_state *state, PyTypeObject *type, dlpack_py_impl_type *room)
{
    PyObject *method = dlpack_py_impl_type_lookup(type, state->dlpack);
    dlpack_py_impl_type *slot;
    int failed;

    memset(room, 0, sizeof(*room));
    room->type = type;
    room->tag = dlpack_py_impl_type_tag(type);
    if (method != NULL && PyType_HasFeature(Py_TYPE(method), Py_TPFLAGS_METHOD_DESCRIPTOR))
        room->method = method; /* the type has it for as long as its tag stays */
    Py_XDECREF(method);
    failed = dlpack_py_impl_find_table(state, type, room);
    if (failed && PyErr_Occurred())
        return NULL;
    if (failed || room->tag == 0 || room->tag != dlpack_py_impl_type_tag(type)) { /* a metaclass's code changed it */
        room->method = NULL;
        return room;
    }
    slot = dlpack_py_impl_type_slot(state, type);
    *slot = *room;
    return slot;
}

#endif

/* What a type offers, remembered where that is possible. Good until other code runs;
 * room is where it may be put. NULL where an interrupt came as a metaclass was asked. */
static inline const dlpack_py_impl_type *
dlpack_py_impl_type_get(dlpack_py_state *state, PyTypeObject *type, dlpack_py_impl_type *room)
{
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    const dlpack_py_impl_type *known = dlpack_py_impl_type_slot(state, type);
    if (known->type == type && known->tag == dlpack_py_impl_type_tag(type))
        return known;
    return dlpack_py_impl_type_learn(state, type, room);
#else
    memset(room, 0, sizeof(*room));
    room->type = type;
    return dlpack_py_impl_find_table(state, type, room) < 0 && PyErr_Occurred() ? NULL : room;
#endif
}

/* ---- 2.10 Calling __dlpack__ -------------------------------------------- */

/* A new tuple of the names of the keywords of pass, for a vectorcall. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_keyword_names(dlpack_py_state *state, unsigned pass)
{
    PyObject *names[4] = {NULL, NULL, NULL, NULL}; /* PyTuple_Pack reads as many as its first argument says */
    Py_ssize_t n = 0;
    unsigned i;

    for (i = 0; i < 4; i++) {
        if ((pass >> i & 1) != 0)
            names[n++] = state->names[i];
    }
    return PyTuple_Pack(n, names[0], names[1], names[2], names[3]);
}

/* One call of __dlpack__, with the keywords of pass (C4: none that is not needed). */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_call_with(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound, unsigned pass,
                         const dlpack_py_request *request)
{
    PyObject *stack[5], *names = dlpack_py_impl_keyword_names(state, pass), *device = NULL, *stream = NULL;
    PyObject *capsule = NULL;
    size_t n = 1;
    int failed = names == NULL;

    stack[0] = obj;
    if ((pass & DLPACK_PY_IMPL_PASS_VERSION) != 0)
        stack[n++] = state->version;
    if ((pass & DLPACK_PY_IMPL_PASS_DEVICE) != 0 && !failed) {
        stack[n++] = device = dlpack_py_impl_device_tuple(request->device);
        failed = device == NULL;
    }
    if ((pass & DLPACK_PY_IMPL_PASS_COPY) != 0)
        stack[n++] = request->copy == DLPACK_PY_COPY_ALWAYS ? Py_True : Py_False;
    if ((pass & DLPACK_PY_IMPL_PASS_STREAM) != 0 && !failed) {
        stack[n++] = stream = request->stream.kind == DLPACK_PY_STREAM_NO_SYNC
                                  ? PyLong_FromLong(-1)
                                  : PyLong_FromUnsignedLongLong(request->stream.handle);
        failed = stream == NULL;
    }
    if (!failed)
        capsule = unbound ? PyObject_Vectorcall(method, stack, 1, names)
                          : PyObject_Vectorcall(method, stack + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    Py_XDECREF(names);
    Py_XDECREF(device);
    Py_XDECREF(stream);
    return capsule;
}

/* The call that nearly all consumers make: with max_version alone, or without a keyword. */
static inline PyObject *
dlpack_py_impl_call(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound, unsigned pass,
                    const dlpack_py_request *request)
{
    PyObject *stack[2], *names = pass == 0 ? NULL : state->only_version;
    if ((pass & ~DLPACK_PY_IMPL_PASS_VERSION) != 0)
        return dlpack_py_impl_call_with(state, obj, method, unbound, pass, request);
    stack[0] = obj;
    stack[1] = state->version;
    return unbound ? PyObject_Vectorcall(method, stack, 1, names)
                   : PyObject_Vectorcall(method, stack + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names);
}

/* Which of the keywords that were passed does this TypeError refuse (C1)? Python,
 * Cython, PyArg_Parse..., pybind11 and nanobind word it differently. 0, with or
 * without an exception: it speaks of something else. A stream is not one of them: it was
 * in the first version, and the call without it would mean another one. */
DLPACK_PY_IMPL_RARE unsigned
dlpack_py_impl_refused(PyObject *exception, unsigned passed)
{
    static const char *const all[] = {"no keyword argument", "incompatible function arguments"};
    static const char *const one[] = {"unexpected keyword", "invalid keyword", "not supported", "unsupported"};
    PyObject *string = PyObject_Str(exception);
    const char *text = string == NULL ? NULL : PyUnicode_AsUTF8AndSize(string, NULL);
    unsigned refused = 0;
    size_t i;

    if (text == NULL && !dlpack_py_impl_is_fatal())
        PyErr_Clear();
    for (i = 0; text != NULL && i < sizeof(all) / sizeof(all[0]); i++) {
        if (strstr(text, all[i]) != NULL)
            refused = passed;
    }
    if (text != NULL && strstr(text, "takes at most") != NULL && strstr(text, "keyword argument") != NULL)
        refused = passed;
    for (i = 0; text != NULL && i < sizeof(one) / sizeof(one[0]); i++) {
        if (strstr(text, one[i]) == NULL)
            continue;
        if (strstr(text, "max_version") != NULL)
            refused |= passed; /* older than all of them */
        if (strstr(text, "dl_device") != NULL)
            refused |= passed & DLPACK_PY_IMPL_PASS_DEVICE;
        if (strstr(text, "copy") != NULL)
            refused |= passed & DLPACK_PY_IMPL_PASS_COPY;
    }
    Py_XDECREF(string);
    return refused & ~DLPACK_PY_IMPL_PASS_STREAM;
}

/* Puts an earlier exception at the end of the chain of contexts of another one; leaves it out where the chain is long,
 * or has it already. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_add_context(PyObject *exception, PyObject *earlier)
{
    PyObject *last = exception, *next;
    int left = 100;

    while (last != earlier && --left > 0 && (next = PyException_GetContext(last)) != NULL) {
        Py_DECREF(next); /* last holds it */
        last = next;
    }
    if (last != earlier && left > 0) {
        Py_INCREF(earlier);
        PyException_SetContext(last, earlier); /* steals */
    }
}

/* Calls __dlpack__ with what is needed, and again without the keywords that the
 * producer's signature refuses (C1, C3).
 *
 * refused   in and out: keywords that it does not know
 *
 * Returns what the producer did, or NULL with its exception, or with BufferError
 * where copy=False was refused: nobody can promise it then.
 */
static inline PyObject *
dlpack_py_impl_ask(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound,
                   const dlpack_py_request *request, unsigned *refused)
{
    const unsigned needed = DLPACK_PY_IMPL_PASS_VERSION | (request->has_device ? DLPACK_PY_IMPL_PASS_DEVICE : 0u) |
                            (request->stream.kind != DLPACK_PY_STREAM_NONE ? DLPACK_PY_IMPL_PASS_STREAM : 0u) |
                            (request->copy != DLPACK_PY_COPY_AS_NEEDED ? DLPACK_PY_IMPL_PASS_COPY : 0u);
    PyObject *capsule = NULL, *refusal, *first = NULL;
    unsigned named;

    for (;;) {
        const unsigned pass = needed & ~*refused;
        if (request->copy == DLPACK_PY_COPY_NEVER && (*refused & DLPACK_PY_IMPL_PASS_COPY) != 0) {
            PyErr_SetString(PyExc_BufferError,
                            "copy is False, and the producer's __dlpack__ does not know the keyword: "
                            "it cannot promise not to copy");
            break;
        }
        capsule = dlpack_py_impl_call(state, obj, method, unbound, pass, request);
        if (capsule != NULL || pass == 0 || !PyErr_ExceptionMatches(PyExc_TypeError))
            break;
        refusal = dlpack_py_impl_take_exception();
        named = dlpack_py_impl_refused(refusal, pass);
        if (named == 0) {
            if (PyErr_Occurred())
                Py_DECREF(refusal);
            else
                dlpack_py_impl_put_exception(refusal);
            break;
        }
        *refused |= named;
        if (first == NULL)
            first = refusal;
        else
            Py_DECREF(refusal);
    }
    if (capsule == NULL && first != NULL) {
        PyObject *last = dlpack_py_impl_take_exception();
        dlpack_py_impl_add_context(last, first);
        dlpack_py_impl_put_exception(last);
    }
    Py_XDECREF(first);
    return capsule;
}

/* ---- 2.11 Taking a tensor ----------------------------------------------- */

static inline void
dlpack_py_impl_view_clear(dlpack_py_view *v)
{
    v->managed = NULL;
    v->form = 0;
}

/* On what terms a tensor is taken, and what is still to be done with it. */
typedef struct dlpack_py_impl_terms {
    const dlpack_py_want *want; /* NULL: anything */
    const dlpack_py_request *request;
    int can_ask;                    /* the producer can be asked for the data as the CPU's */
    int ask;                        /* out: do so, this is not ready to be read */
    unsigned refused;               /* DLPACK_PY_IMPL_PASS_...: keywords that its __dlpack__ does not know */
    int copy;                       /* a copy will be made in any case; out: is to be made */
    int ours;                       /* exported by this file just now, which validated it: saves doing so again */
    dlpack_py_impl_export *made;    /* out: that copy */
    const dlpack_py_device *device; /* of the consumer's stream, that of request; NULL: it has none */
    const DLDevice *announced;      /* what the producer's __dlpack_device__ said; NULL: not asked */
} dlpack_py_impl_terms;

/* Those of a caller who asks for nothing but what want says. */
static inline dlpack_py_impl_terms
dlpack_py_impl_terms_of(const dlpack_py_want *want, const dlpack_py_request *request)
{
    const dlpack_py_impl_terms terms = {want, request, 0, 0, 0, 0, 0, NULL, NULL, NULL};
    return terms;
}

static inline int
dlpack_py_impl_terms_allow(const dlpack_py_impl_terms *terms, uint32_t option)
{
    return terms->want != NULL && (terms->want->options & option) != 0;
}

/* Pinned and managed memory came, of whose producer nobody asked it for the host to
 * read: work may be pending on it. It is to be asked for as the CPU's (C5). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_pending(const DLTensor *t, dlpack_py_impl_terms *terms, dlpack_py_error *error)
{
    const int host_reads = terms->copy || terms->want == NULL || terms->want->device == 0;
    char came[DLPACK_PY_TEXT_SIZE];

    if (t->device.device_type == kDLCPU || !dlpack_py_is_cpu_readable(t->device) || !host_reads ||
        dlpack_py_impl_terms_allow(terms, DLPACK_PY_NOTHING_PENDING))
        return 0;
    terms->ask = terms->can_ask && !terms->request->has_device;
    if (terms->ask)
        return 0;
    return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                               "device is %s, and nobody hands it over as the CPU's: work may be pending on it "
                               "(the option DLPACK_PY_NOTHING_PENDING takes it as it is)",
                               dlpack_py_device_text(t->device, came));
}

/* Is the data where it was asked for, whether the producer knew dl_device or not (C3)?
 * A copy is made from and to the CPU. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_place(const DLTensor *t, const dlpack_py_impl_terms *terms, dlpack_py_error *error)
{
    const dlpack_py_request *request = terms->request;
    const int32_t came = (int32_t)t->device.device_type;
    const int32_t asked = request->has_device ? (int32_t)request->device.device_type : came;
    const int32_t wanted = terms->want != NULL && terms->want->device > 0 ? terms->want->device : (int32_t)kDLCPU;
    char text[DLPACK_PY_TEXT_SIZE], other[DLPACK_PY_TEXT_SIZE];

    if (terms->copy) {
        if (dlpack_py_is_cpu_readable(t->device) && wanted == (int32_t)kDLCPU &&
            (!request->has_device || asked == (int32_t)kDLCPU))
            return 0;
        return dlpack_py_impl_fail(
            error, DLPACK_PY_BUFFER_ERROR, "device is %s, %s was asked for: a copy is made from and to the CPU only",
            dlpack_py_device_text(t->device, text),
            dlpack_py_device_text(request->has_device ? request->device : dlpack_py_device_make(wanted, 0), other));
    }
    if (came == asked && (dlpack_py_is_cpu_readable(t->device) || !request->has_device ||
                          t->device.device_id == request->device.device_id))
        return 0; /* the host's memory has no numbers, whatever some say (D9) */
    return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "device is %s, %s was asked for",
                               dlpack_py_device_text(t->device, text), dlpack_py_device_text(request->device, other));
}

/* Is the tensor on the device that its producer named before? What was passed to it
 * depended on that (C4). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_announced(const DLTensor *t, const DLDevice *announced, dlpack_py_error *error)
{
    const DLDevice came = dlpack_py_impl_device_said(t->device), said = dlpack_py_impl_device_said(*announced);
    char came_text[DLPACK_PY_TEXT_SIZE], said_text[DLPACK_PY_TEXT_SIZE];

    if (came.device_type == said.device_type && came.device_id == said.device_id)
        return 0;
    return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR, "device is %s, and __dlpack_device__ said %s",
                               dlpack_py_device_text(came, came_text), dlpack_py_device_text(said, said_text));
}

/* Describes a tensor in v, if it is right and meets the terms: before it is taken, for
 * what is refused stays whose it was (K4). */
static inline int
dlpack_py_impl_view_fill(dlpack_py_view *v, const DLTensor *t, uint64_t flags, int32_t readonly,
                         dlpack_py_impl_terms *terms, dlpack_py_error *error)
{
    if (!terms->ours && dlpack_py_validate(t, flags, error) < 0)
        return -1;
    if (terms->announced != NULL && dlpack_py_impl_check_announced(t, terms->announced, error) < 0)
        return -1;
    if (dlpack_py_meets(t, readonly, terms->want, error) < 0) {
        if (!error->curable || !(terms->copy || (dlpack_py_impl_terms_allow(terms, DLPACK_PY_COPY_IF_NEEDED) &&
                                                 terms->request->copy != DLPACK_PY_COPY_NEVER)))
            return -1;
        terms->copy = 1;
    }
    if (t->device.device_type != kDLCPU || terms->copy || terms->request->has_device) {
        if (dlpack_py_impl_check_pending(t, terms, error) < 0 ||
            (!terms->ask && dlpack_py_impl_check_place(t, terms, error) < 0))
            return -1;
    }
    v->tensor = *t;
    if (t->ndim > 0)
        v->tensor.strides = (int64_t *)dlpack_py_impl_unconst(dlpack_py_impl_strides(t, v->strides));
    v->flags = flags;
    v->readonly = readonly;
    return 0;
}

/* Which form does a capsule have? 0 with *error filled, where it is none to take. */
static inline int32_t
dlpack_py_impl_capsule_form(const char *name, dlpack_py_error *error)
{
    int32_t form;
    for (form = DLPACK_PY_VERSIONED; name != NULL && form <= DLPACK_PY_LEGACY; form++) {
        const char *unconsumed = dlpack_py_impl_capsule_name(form);
        if (name == unconsumed || strcmp(name, unconsumed) == 0) /* by value: the first saves the call (K1) */
            return form;
        if (strcmp(name, dlpack_py_impl_used_name(form)) == 0) {
            dlpack_py_impl_fail(error, DLPACK_PY_VALUE_ERROR, "the capsule is named '%s': it was consumed already",
                                name);
            return 0;
        }
    }
    dlpack_py_impl_fail(error, DLPACK_PY_TYPE_ERROR,
                        "the capsule is named '%.60s', 'dltensor_versioned' or 'dltensor' was wanted",
                        name == NULL ? "NULL" : name);
    return 0;
}

/* Of a major version that we do not know: nothing but the deleter is known to be there (K6). */
static inline int
dlpack_py_impl_is_unknown(const void *managed, int32_t form)
{
    return form == DLPACK_PY_VERSIONED &&
           ((const DLManagedTensorVersioned *)managed)->version.major != DLPACK_PY_PROTOCOL_MAJOR;
}

/* Describes in v what a managed tensor of either form holds, if it meets the terms. */
static inline int
dlpack_py_impl_view_managed(dlpack_py_view *v, const void *managed, int32_t form, dlpack_py_impl_terms *terms,
                            dlpack_py_error *error)
{
    const DLManagedTensorVersioned *versioned = (const DLManagedTensorVersioned *)managed;
    const DLTensor *t = &versioned->dl_tensor;
    uint64_t flags = 0;
    int32_t readonly;

    if (form == DLPACK_PY_LEGACY) {
        t = &((const DLManagedTensor *)managed)->dl_tensor;
        readonly = dlpack_py_impl_terms_allow(terms, DLPACK_PY_LEGACY_IS_WRITABLE) ? DLPACK_PY_WRITABLE
                                                                                   : DLPACK_PY_READONLY_UNSAID;
    }
    else if (dlpack_py_impl_is_unknown(managed, form)) {
        return dlpack_py_impl_fail(error, DLPACK_PY_BUFFER_ERROR,
                                   "the tensor has DLPack version %" PRIu32 ".%" PRIu32 ", major version %d was wanted",
                                   versioned->version.major, versioned->version.minor, DLPACK_PY_PROTOCOL_MAJOR);
    }
    else {
        flags = versioned->flags;
        readonly = (flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? DLPACK_PY_READONLY : DLPACK_PY_WRITABLE;
    }
    return dlpack_py_impl_view_fill(v, t, flags, readonly, terms, error);
}

/* The same, and makes the copy that the terms ask for. All that can fail is done then. */
static inline int
dlpack_py_impl_examine(dlpack_py_view *v, const void *managed, int32_t form, dlpack_py_impl_terms *terms,
                       dlpack_py_error *error)
{
    const dlpack_py_want *want = terms->want;
    const char order = want != NULL && want->order == 'F' ? 'F' : 'C';

    if (dlpack_py_impl_view_managed(v, managed, form, terms, error) < 0)
        return -1;
    if (!terms->copy || terms->ask)
        return 0;
    terms->made = dlpack_py_impl_export_copy(&v->tensor, v->flags, DLPACK_PY_VERSIONED, order,
                                             want != NULL ? want->alignment : 0, error);
    return terms->made == NULL ? -1 : 0;
}

/* Where a copy was made: lets go of what v holds, and v shows the copy. */
static inline void
dlpack_py_impl_view_exchange(dlpack_py_view *v, dlpack_py_impl_terms *terms)
{
    void *managed = v->managed;
    const int32_t form = v->form;

    if (terms->made == NULL)
        return;
    v->managed = &terms->made->managed.versioned;
    v->form = DLPACK_PY_VERSIONED;
    v->tensor = terms->made->managed.versioned.dl_tensor;
    v->flags = terms->made->managed.versioned.flags;
    v->readonly = DLPACK_PY_WRITABLE;
    terms->made = NULL;
    dlpack_py_impl_delete(managed, form); /* last: whose code it is may look at the view */
}

/* Takes what a capsule holds, if it meets the terms: v->managed says whether. Runs no
 * Python code, so that nobody comes between the check of the name and its change. */
static inline int
dlpack_py_impl_take_locked(PyObject *capsule, dlpack_py_impl_terms *terms, dlpack_py_view *v, dlpack_py_error *error)
{
    const char *name = PyCapsule_GetName(capsule);
    const int32_t form = dlpack_py_impl_capsule_form(name, error);
    void *managed;
    int failed;

    if (form == 0)
        return -1;
    managed = PyCapsule_GetPointer(capsule, name);
    failed = dlpack_py_impl_examine(v, managed, form, terms, error);
    if (failed && !dlpack_py_impl_is_unknown(managed, form)) /* which is the one refusal that consumes */
        return -1;
    /* Commit point (K4): from here on the tensor is ours; nothing below may fail. */
    (void)PyCapsule_SetName(capsule, dlpack_py_impl_used_name(form));
    v->managed = managed;
    v->form = form;
    return failed;
}

/* The same with exceptions, and with the capsule to ourselves. */
static inline int
dlpack_py_impl_take(PyObject *capsule, dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_error error;
    int failed;

    dlpack_py_impl_view_clear(v);
    if (!PyCapsule_CheckExact(capsule)) {
        dlpack_py_impl_refuse_value(PyExc_TypeError, "__dlpack__ returned %U, a capsule was wanted", capsule);
        return -1;
    }
    DLPACK_PY_IMPL_LOCK(capsule);
    failed = dlpack_py_impl_take_locked(capsule, terms, v, &error);
    DLPACK_PY_IMPL_UNLOCK();
    if (failed == 0) {
        dlpack_py_impl_view_exchange(v, terms);
        return 0;
    }
    dlpack_py_release(v);
    return dlpack_py_raise(&error);
}

/* Takes a versioned managed tensor that is ours already: what does not meet the terms
 * is deleted. */
static inline int
dlpack_py_impl_take_managed(DLManagedTensorVersioned *managed, dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_error error;

    dlpack_py_impl_view_clear(v);
    if (dlpack_py_impl_examine(v, managed, DLPACK_PY_VERSIONED, terms, &error) < 0) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return dlpack_py_raise(&error);
    }
    v->managed = managed;
    v->form = DLPACK_PY_VERSIONED;
    dlpack_py_impl_view_exchange(v, terms);
    return 0;
}

/* The same, of a table's or our own making: nobody is left to be asked for it otherwise. */
static inline int
dlpack_py_impl_take_wanted(DLManagedTensorVersioned *managed, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_impl_terms terms = dlpack_py_impl_terms_of(want, dlpack_py_impl_no_request());
    return dlpack_py_impl_take_managed(managed, &terms, v);
}

static inline void
dlpack_py_release(dlpack_py_view *v)
{
    void *managed = v->managed;
    const int32_t form = v->form;
    dlpack_py_impl_view_clear(v);
    if (managed != NULL)
        dlpack_py_impl_delete(managed, form);
}

static inline void
dlpack_py_move(dlpack_py_view *to, dlpack_py_view *from)
{
    if (to == from)
        return;
    *to = *from;
    if (from->tensor.strides == from->strides)
        to->tensor.strides = to->strides;
    dlpack_py_impl_view_clear(from);
}

/* For the tp_traverse of an object that holds a view: visits the owner, where this
 * file exported it, so that a cycle through both can be collected. */
static inline int
dlpack_py_traverse(const dlpack_py_view *v, visitproc visit, void *arg)
{
    PyObject *owner = v->managed == NULL ? NULL : dlpack_py_impl_owner(v->managed, v->form);
    return owner == NULL ? 0 : visit(owner, arg);
}

/* ---- 2.12 Consuming ----------------------------------------------------- */

/* One round: ask, take, drop the capsule. */
static inline int
dlpack_py_impl_fetch(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound, dlpack_py_impl_terms *terms,
                     dlpack_py_view *v)
{
    PyObject *capsule = dlpack_py_impl_ask(state, obj, method, unbound, terms->request, &terms->refused);
    int failed;

    if (capsule == NULL)
        return -1;
    /* Where the producer does not know how, we copy (C3). */
    terms->copy = terms->request->copy == DLPACK_PY_COPY_ALWAYS && (terms->refused & DLPACK_PY_IMPL_PASS_COPY) != 0;
    failed = dlpack_py_impl_take(capsule, terms, v);
    dlpack_py_impl_decref(capsule);
    return failed;
}

/* A second round for what was not ready: let go of it, and ask for it as the CPU's. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_fetch_for_host(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound,
                              dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_request request = *terms->request;
    int failed;

    dlpack_py_release(v);
    request.has_device = 1;
    request.device = dlpack_py_device_make(kDLCPU, 0);
    terms->request = &request;
    terms->can_ask = terms->ask = 0;
    failed = dlpack_py_impl_fetch(state, obj, method, unbound, terms, v);
    terms->request = dlpack_py_impl_no_request(); /* the other is gone */
    return failed;
}

/* What __dlpack_device__ says. A number that is none, as some answer for the host, is 0. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_ask_device(dlpack_py_state *state, PyObject *obj, DLDevice *device)
{
    int unbound, failed = 1;
    int64_t type = 0, id = 0;
    PyObject *method = dlpack_py_impl_find_method(obj, state->dlpack_device, &unbound), *said;

    if (method == NULL)
        return -1;
    said = unbound ? PyObject_CallFunctionObjArgs(method, obj, NULL) : PyObject_CallFunctionObjArgs(method, NULL);
    Py_DECREF(method);
    if (said == NULL)
        return -1;
    if (PyTuple_Check(said) && PyTuple_Size(said) == 2) {
        failed = dlpack_py_impl_integer(PyTuple_GetItem(said, 0), &type);
        if (failed == 0 && PyTuple_GetItem(said, 1) != Py_None)
            failed = dlpack_py_impl_integer(PyTuple_GetItem(said, 1), &id);
    }
    if (failed > 0)
        dlpack_py_impl_refuse_value(PyExc_TypeError,
                                    "__dlpack_device__ returned %U, a tuple of two integers was wanted", said);
    Py_DECREF(said);
    *device = dlpack_py_device_make(dlpack_py_impl_clip(type), dlpack_py_impl_clip(id));
    return failed ? -1 : 0;
}

/* The arguments of dlpack_py_impl_fetch, for a call with a device current. */
typedef struct dlpack_py_impl_fetch_call {
    dlpack_py_state *state;
    PyObject *obj, *method;
    int unbound;
    dlpack_py_impl_terms *terms;
    dlpack_py_view *v;
} dlpack_py_impl_fetch_call;

DLPACK_PY_IMPL_RARE int
dlpack_py_impl_fetch_called(void *argument)
{
    const dlpack_py_impl_fetch_call *call = (const dlpack_py_impl_fetch_call *)argument;
    return dlpack_py_impl_fetch(call->state, call->obj, call->method, call->unbound, call->terms, call->v);
}

/* A round for a consumer with a stream: asks where the data is, passes the stream only
 * where it belongs, with the data's device current (C4, S2, S3). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_fetch_on(dlpack_py_state *state, PyObject *obj, PyObject *method, int unbound,
                        dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    const dlpack_py_device *device = terms->device;
    dlpack_py_request request = *terms->request;
    dlpack_py_impl_fetch_call call;
    DLDevice where;
    int failed;

    if (dlpack_py_impl_ask_device(state, obj, &where) < 0)
        return -1;
    if (!dlpack_py_impl_is_on(device, where) && (int32_t)where.device_type != device->managed_type)
        memset(&request.stream, 0, sizeof(request.stream));
    terms->request = &request;
    terms->announced = &where;
    call.state = state;
    call.obj = obj;
    call.method = method;
    call.unbound = unbound;
    call.terms = terms;
    call.v = v;
    failed = dlpack_py_impl_is_on(device, where)
                 ? device->call_on(device, where.device_id, dlpack_py_impl_fetch_called, &call)
                 : dlpack_py_impl_fetch_called(&call);
    terms->announced = NULL;
    terms->request = dlpack_py_impl_no_request(); /* a second round asks for the host */
    if (failed)
        dlpack_py_release(v); /* taken, and then the device could not be made current again */
    return failed;
}

#if DLPACK_PY_HAS_EXCHANGE_API
/* What is not the CPU's, for a table synchronizes nothing (X4) and only a consumer with a
 * stream of that device can; and complex numbers of another library's, for PyTorch's gives
 * lazily conjugated ones as they lie in memory (X9). Then __dlpack__ is asked. */
static inline int
dlpack_py_impl_table_may_mislead(const DLTensor *t, const dlpack_py_device *device)
{
    return (t->device.device_type != kDLCPU && !dlpack_py_impl_is_on(device, t->device)) || t->dtype.code == 5 ||
           t->dtype.code == 18;
}

/* After a failure of a table: 1 where the method is to be asked, for it refused what may
 * be a device's, and is for the CPU's; -1 with the exception otherwise. */
static inline int
dlpack_py_impl_ask_method(const dlpack_py_impl_terms *terms)
{
    if (terms->device == NULL || !PyErr_ExceptionMatches(PyExc_BufferError))
        return -1;
    PyErr_Clear();
    return 1;
}

/* Takes an owned tensor by a table of this file's: saves looking up what is known. Returns
 * 0, -1 with an exception, or 1 where the table cannot say what has to be known. */
static inline int
dlpack_py_impl_fetch_own(dlpack_py_state *state, const dlpack_py_exchange *x, PyObject *obj,
                         dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_offer offer;
    dlpack_py_plan plan;
    void *managed;

    if (dlpack_py_impl_exchange_plan(x, state, obj, &offer, &plan) < 0)
        return dlpack_py_impl_ask_method(terms);
    if (plan.device.device_type != kDLCPU)
        return 1;
    managed = dlpack_py_impl_exchange_export(x, &offer, &plan);
    if (managed == NULL)
        return -1;
    terms->ours = !DLPACK_PY_PLAIN; /* a capsule's may have been changed by a consumer before us */
    return dlpack_py_impl_take_managed((DLManagedTensorVersioned *)managed, terms, v);
}

/* Orders the consumer's stream after the stream that the table's library works on (X4). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_follow_work(const DLPackExchangeAPI *table, const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_offer offer;
    dlpack_py_plan plan;
    dlpack_py_work_stream work;

    if (terms->request->stream.kind == DLPACK_PY_STREAM_NO_SYNC)
        return 0;
    work.device_id = v->tensor.device.device_id;
    memset(&offer, 0, sizeof(offer));
    offer.tensor = &v->tensor;
    offer.device = terms->device;
    offer.pending = &work;
    offer.pending_count = 1;
    memset(&plan, 0, sizeof(plan));
    plan.device = v->tensor.device;
    if (dlpack_py_impl_ask_work(table, terms->device, &work) == 0 &&
        terms->device->make_ready(&offer, terms->request, &plan) == 0)
        return 0;
    dlpack_py_release(v);
    return -1;
}

/* The same by another's. */
static inline int
dlpack_py_impl_fetch_by_table(const DLPackExchangeAPI *table, PyObject *obj, dlpack_py_impl_terms *terms,
                              dlpack_py_view *v)
{
    static const char *const function = "managed_tensor_from_py_object_no_sync";
    DLManagedTensorVersioned *managed = NULL; /* some leave it unset (X8) */
    const int returned = table->managed_tensor_from_py_object_no_sync(obj, &managed);

    if (dlpack_py_impl_check_table_call(returned != 0 || managed == NULL, function) < 0) {
        if (returned == 0 && managed != NULL)
            dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return dlpack_py_impl_ask_method(terms);
    }
    if (!dlpack_py_impl_is_unknown(managed, DLPACK_PY_VERSIONED) &&
        dlpack_py_impl_table_may_mislead(&managed->dl_tensor, terms->device)) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return 1;
    }
    if (dlpack_py_impl_take_managed(managed, terms, v) < 0)
        return -1;
    return dlpack_py_impl_is_on(terms->device, v->tensor.device) ? dlpack_py_impl_follow_work(table, terms, v) : 0;
}
#endif

/* The dtype of a buffer's format; 0 where it has none, or not the machine's byte
 * order (D10). */
DLPACK_PY_IMPL_RARE uint32_t
dlpack_py_impl_buffer_dtype(const char *format, Py_ssize_t itemsize)
{
    const uint16_t one = 1;
    const int little = *(const unsigned char *)&one == 1;
    uint32_t code;

    if (format == NULL)
        format = "B";
    if (*format == '@' || *format == '=' || (*format == '<' && (little || itemsize == 1)) ||
        ((*format == '>' || *format == '!') && (!little || itemsize == 1)))
        format++;
    if (format[0] == 'Z' && format[1] != '\0') { /* complex, as NumPy writes it */
        format++;
        code = strchr("fd", *format) != NULL ? 5u : 255u;
    }
    else if (*format == '?')
        code = 6;
    else if (*format != '\0' && strchr("bhilqn", *format) != NULL)
        code = 0;
    else if (*format != '\0' && strchr("BHILQNc", *format) != NULL)
        code = 1;
    else if (*format != '\0' && strchr("efd", *format) != NULL)
        code = 2;
    else if (*format != '\0' && strchr("FD", *format) != NULL) /* complex, as Python 3.14 writes it */
        code = 5;
    else
        code = 255;
    if (code == 255 || format[1] != '\0' || itemsize < 1 || itemsize > 16)
        return 0;
    return DLPACK_PY_DTYPE(code, (uint32_t)itemsize * 8u, 1u);
}

/* Describes a buffer; shape and strides are written to dims. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_buffer_tensor(const Py_buffer *buffer, int64_t *dims, DLTensor *t)
{
    const uint32_t dtype = dlpack_py_impl_buffer_dtype(buffer->format, buffer->itemsize);
    int i;

    if (dtype == 0) {
        PyErr_Format(PyExc_BufferError, "the buffer's format is '%s' with %zd bytes, DLPack has no such dtype",
                     buffer->format == NULL ? "B" : buffer->format, buffer->itemsize);
        return -1;
    }
    for (i = 0; i < buffer->ndim; i++) { /* 64 at most: memoryview sees to it */
        dims[i] = buffer->shape[i];
        dims[DLPACK_PY_MAX_NDIM + i] = buffer->strides[i] / buffer->itemsize;
        if (buffer->strides[i] % buffer->itemsize != 0 && buffer->shape[i] > 1) {
            PyErr_Format(PyExc_BufferError,
                         "the buffer's strides[%d] is %zd bytes, no multiple of the %zd of an element", i,
                         buffer->strides[i], buffer->itemsize);
            return -1;
        }
    }
    *t = dlpack_py_cpu(buffer->buf, dtype, buffer->ndim, dims, dims + DLPACK_PY_MAX_NDIM);
    return 0;
}

/* Takes what the buffer protocol offers. The memoryview that holds the buffer is
 * the owner, so that it is let go as any other owner is, on any thread. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_consume_buffer(dlpack_py_state *state, PyObject *obj, dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    int64_t dims[2 * DLPACK_PY_MAX_NDIM];
    PyObject *memory = PyMemoryView_FromObject(obj);
    dlpack_py_impl_export *e = NULL;
    dlpack_py_error error;
    uint64_t flags;
    Py_buffer buffer;
    DLTensor t;

    if (memory == NULL)
        return -1;
    if (PyObject_GetBuffer(memory, &buffer, PyBUF_RECORDS_RO) < 0) {
        Py_DECREF(memory);
        return -1;
    }
    flags = buffer.readonly ? DLPACK_PY_FLAG_READ_ONLY : 0;
    if (dlpack_py_impl_buffer_tensor(&buffer, dims, &t) == 0) {
        if (dlpack_py_validate(&t, flags, &error) < 0)
            (void)dlpack_py_raise(&error);
        else if ((e = dlpack_py_impl_export_new(&t, flags, DLPACK_PY_VERSIONED, 0, 0)) == NULL)
            (void)PyErr_NoMemory();
    }
    PyBuffer_Release(&buffer);
    if (e == NULL) {
        Py_DECREF(memory);
        return -1;
    }
    e->owner = memory;
    e->state = state;
    (void)DLPACK_PY_IMPL_ADD(&state->references, 1);
    return dlpack_py_impl_take_managed(&e->managed.versioned, terms, v);
}

/* Takes what __dlpack__ offers, or the buffer protocol where that is allowed. */
static inline int
dlpack_py_impl_obtain_by_method(dlpack_py_state *state, PyObject *obj, const dlpack_py_impl_type *type,
                                dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    PyObject *method = type->method;
    int unbound = 1, failed;

    if (method != NULL)
        Py_INCREF(method);
    else
        method = dlpack_py_impl_find_method(obj, state->dlpack, &unbound);
    if (method == NULL) {
        if (!dlpack_py_impl_terms_allow(terms, DLPACK_PY_BUFFER_TOO) || !PyObject_CheckBuffer(obj) ||
            !PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return dlpack_py_impl_consume_buffer(state, obj, terms, v);
    }
    terms->can_ask = 1;
    failed = terms->device == NULL ? dlpack_py_impl_fetch(state, obj, method, unbound, terms, v)
                                   : dlpack_py_impl_fetch_on(state, obj, method, unbound, terms, v);
    if (failed == 0 && terms->ask)
        failed = dlpack_py_impl_fetch_for_host(state, obj, method, unbound, terms, v);
    Py_DECREF(method);
    return failed;
}

/* Whatever obj is: a capsule, of a type with an exchange table, or one that has
 * __dlpack__. A table knows nothing of devices and copies that are asked for. */
static inline int
dlpack_py_impl_obtain(dlpack_py_state *state, PyObject *obj, dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_impl_type room;
    const dlpack_py_impl_type *type;

    if (PyCapsule_CheckExact(obj))
        return dlpack_py_impl_take(obj, terms, v);
    if (state == NULL && (state = dlpack_py_state_get()) == NULL)
        return -1;
    type = dlpack_py_impl_type_get(state, Py_TYPE(obj), &room);
    if (type == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL && !terms->request->has_device && terms->request->copy == DLPACK_PY_COPY_AS_NEEDED) {
        const int result = type->own
                               ? dlpack_py_impl_fetch_own(state, (const dlpack_py_exchange *)type->table, obj, terms, v)
                               : dlpack_py_impl_fetch_by_table((const DLPackExchangeAPI *)type->table, obj, terms, v);
        if (result <= 0)
            return result;
        type = dlpack_py_impl_type_get(state, Py_TYPE(obj), &room); /* foreign code ran */
        if (type == NULL)
            return -1;
    }
#endif
    return dlpack_py_impl_obtain_by_method(state, obj, type, terms, v);
}

/* Take the tensor that obj offers, on a device or as a copy if asked for.
 *
 * state     NULL: looked up
 * request   has_device with device, and copy, are honoured (C3); a stream is passed on, for
 *           which there is dlpack_device_consume; the version is not looked at
 *
 * Otherwise as dlpack_py_consume.
 */
static inline int
dlpack_py_consume_request(dlpack_py_state *state, PyObject *obj, const dlpack_py_request *request,
                          const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_impl_terms terms = dlpack_py_impl_terms_of(want, request);

    terms.copy = request->copy == DLPACK_PY_COPY_ALWAYS;
    dlpack_py_impl_view_clear(v);
    return dlpack_py_impl_obtain(state, obj, &terms, v);
}

static inline int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    return dlpack_py_consume_request(NULL, obj, dlpack_py_impl_no_request(), want, v);
}

#if DLPACK_PY_HAS_EXCHANGE_API
/* Borrows by a table of this file's: saves looking up what is known. Returns 1 or 0. */
static inline int
dlpack_py_impl_lend_own(dlpack_py_state *state, const dlpack_py_exchange *x, PyObject *obj, DLTensor *t)
{
    dlpack_py_offer offer;
    dlpack_py_plan plan;

    if (dlpack_py_impl_exchange_plan(x, state, obj, &offer, &plan) < 0 || !dlpack_py_impl_may_lend(&offer, &plan) ||
        plan.device.device_type != kDLCPU ||
        (offer.pending_count > 0 && dlpack_py_impl_exchange_settle_lent(x, &offer, &plan) < 0))
        return 0;
    *t = *offer.tensor;
    return 1;
}

/* Borrows by another's. */
static inline int
dlpack_py_impl_lend(const DLPackExchangeAPI *table, PyObject *obj, DLTensor *t)
{
    memset(t, 0, sizeof(*t)); /* what is left unset is no tensor (X8) */
    return table->dltensor_from_py_object_no_sync != NULL && table->dltensor_from_py_object_no_sync(obj, t) == 0 &&
           !PyErr_Occurred() && !dlpack_py_impl_table_may_mislead(t, NULL) && t->dtype.bits >= 8;
}

/* Borrows by the table of a type. Returns 1; 0 where the tensor is to be consumed, for a
 * borrowed one cannot say read-only or padded (X3), and does not meet each wish; or -1
 * with an exception that is no error of the tensor's, KeyboardInterrupt or the like. */
static inline int
dlpack_py_impl_borrow_by_table(dlpack_py_state *state, const dlpack_py_impl_type *type, PyObject *obj,
                               const dlpack_py_want *want, dlpack_py_view *v)
{
    const int own = type->own;
    dlpack_py_impl_terms terms;
    dlpack_py_error error;
    DLTensor t;

    if (want != NULL && want->writable)
        return 0;
    if (!(own ? dlpack_py_impl_lend_own(state, (const dlpack_py_exchange *)type->table, obj, &t)
              : dlpack_py_impl_lend((const DLPackExchangeAPI *)type->table, obj, &t))) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear(); /* if it refuses the owned form too, that is what will be said */
        return 0;
    }
    terms = dlpack_py_impl_terms_of(want, dlpack_py_impl_no_request());
    terms.ours = own && !DLPACK_PY_PLAIN;
    return dlpack_py_impl_view_fill(v, &t, 0, DLPACK_PY_READONLY_UNSAID, &terms, &error) == 0 && !terms.copy;
}
#endif

static inline int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type room;
    dlpack_py_state *state = NULL;
    int borrowed;

    dlpack_py_impl_view_clear(v);
    if (!PyCapsule_CheckExact(obj)) {
        state = dlpack_py_state_get();
        if (state == NULL)
            return -1;
        type = dlpack_py_impl_type_get(state, Py_TYPE(obj), &room);
        if (type == NULL)
            return -1;
        borrowed = type->table == NULL ? 0 : dlpack_py_impl_borrow_by_table(state, type, obj, want, v);
        if (borrowed != 0)
            return borrowed > 0 ? 0 : -1;
    }
    return dlpack_py_consume_request(state, obj, dlpack_py_impl_no_request(), want, v);
#else
    return dlpack_py_consume(obj, want, v);
#endif
}

/* device= of from_dlpack: None, a tuple (type, id) or text (C3). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_parse_device(PyObject *object, dlpack_py_request *request)
{
    Py_ssize_t length = 0;
    const char *text;
    int64_t type, id;

    if (object == NULL || object == Py_None)
        return 0;
    request->has_device = 1;
    if (!PyUnicode_Check(object)) {
        if (dlpack_py_impl_pair("device is %U, None, a tuple of two integers or a name was wanted", object, &type,
                                &id) < 0)
            return -1;
        request->device = dlpack_py_device_make(dlpack_py_impl_clip(type), dlpack_py_impl_clip(id));
        return 0;
    }
    text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text != NULL && strlen(text) == (size_t)length && dlpack_py_device_parse(text, &request->device, NULL) == 0)
        return 0;
    dlpack_py_impl_refuse_value(PyExc_ValueError, "device is %U, a name such as 'cpu' or 'cuda:1' was wanted", object);
    return -1;
}

static inline int
dlpack_py_from_dlpack_args(PyObject *x, PyObject *device, PyObject *copy, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_request request;

    dlpack_py_impl_view_clear(v);
    if (dlpack_py_parse_request_args(NULL, NULL, NULL, copy, &request) < 0 ||
        dlpack_py_impl_parse_device(device, &request) < 0)
        return -1;
    return dlpack_py_consume_request(NULL, x, &request, want, v);
}

static inline int
dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                      dlpack_py_view *v)
{
    static const dlpack_py_impl_keyword names[2] = {{"device", 6}, {"copy", 4}};
    PyObject *values[2] = {NULL, NULL};

    dlpack_py_impl_view_clear(v);
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "from_dlpack() takes one positional argument, %zd were given", nargs);
        return -1;
    }
    if (dlpack_py_impl_match_keywords("from_dlpack", names, 2, args + nargs, kwnames, values) < 0)
        return -1;
    return dlpack_py_from_dlpack_args(args[0], values[0], values[1], want, v);
}

static inline int
dlpack_py_check(PyObject *obj)
{
    dlpack_py_error error;
    dlpack_py_state *state;
    dlpack_py_impl_shelf shelved;
    dlpack_py_impl_type room;
    const dlpack_py_impl_type *type;
    PyObject *method = NULL;
    int unbound, offered;

    if (PyCapsule_CheckExact(obj)) {
        DLPACK_PY_IMPL_LOCK(obj); /* its name changes as it is taken */
        offered = dlpack_py_impl_capsule_form(PyCapsule_GetName(obj), &error) != 0;
        DLPACK_PY_IMPL_UNLOCK();
        return offered;
    }
    shelved = dlpack_py_impl_shelve_exception();
    state = dlpack_py_state_get();
    type = state == NULL ? NULL : dlpack_py_impl_type_get(state, Py_TYPE(obj), &room);
    offered = type != NULL && type->table != NULL;
    if (type != NULL && !offered) {
        method = dlpack_py_impl_find_method(obj, state->dlpack, &unbound);
        if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        offered = method != NULL && method != Py_None;
    }
    dlpack_py_impl_unshelve_exception(shelved);
    Py_XDECREF(method);
    return offered;
}

/* ---- 2.13 Results like an argument -------------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API
/* SetError of a table's allocator. It may come without a thread state: the first report
 * is kept, and raised when the allocator has returned. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_note_error(void *context, const char *kind, const char *message)
{
    dlpack_py_error *error = (dlpack_py_error *)context;
    int32_t code = DLPACK_PY_RUNTIME_ERROR;

    if (error->code != 0)
        return;
    while (kind != NULL && code > 0 && strcmp(kind, dlpack_py_impl_error_kind(code)) != 0)
        code--;
    dlpack_py_impl_fail(error, code > 0 ? code : DLPACK_PY_RUNTIME_ERROR, "%s",
                        message != NULL ? message : "the allocator of the exchange table failed");
}

/* Asks a table for memory; NULL with an exception. */
static inline DLManagedTensorVersioned *
dlpack_py_impl_allocate_by_table(const DLPackExchangeAPI *table, const DLTensor *prototype)
{
    DLManagedTensorVersioned *managed = NULL;
    int64_t shape[DLPACK_PY_MAX_NDIM]; /* its own: it may write to it */
    DLTensor t = *prototype;
    dlpack_py_error error;

    if (t.ndim < 0 || t.ndim > DLPACK_PY_MAX_NDIM || (t.ndim > 0 && t.shape == NULL)) {
        PyErr_Format(PyExc_BufferError, "the prototype has ndim %d and %s shape, 0 to %d with one was wanted",
                     (int)t.ndim, t.shape == NULL ? "no" : "a", DLPACK_PY_MAX_NDIM);
        return NULL;
    }
    if (t.ndim > 0)
        memcpy(shape, t.shape, (size_t)t.ndim * sizeof(int64_t));
    t.shape = shape;
    t.strides = NULL;
    t.data = NULL;
    t.byte_offset = 0;
    error.code = 0;
    if (table->managed_tensor_allocator(&t, &managed, &error, dlpack_py_impl_note_error) == 0 && managed != NULL) {
        if (!PyErr_Occurred())
            return managed;
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
    }
    if (!PyErr_Occurred()) { /* as it should be */
        dlpack_py_impl_note_error(&error, NULL, NULL);
        (void)dlpack_py_raise(&error);
    }
    return NULL;
}
#endif

#if DLPACK_PY_HAS_EXCHANGE_API
/* Is what an allocator gave what it was asked for, and to be written? Else lets go of it. */
static inline int
dlpack_py_impl_check_allocated(const DLTensor *prototype, dlpack_py_view *v)
{
    const DLTensor *t = &v->tensor;
    if (t->ndim == prototype->ndim && dlpack_py_dtype(t) == dlpack_py_dtype(prototype) &&
        t->device.device_type == prototype->device.device_type && v->readonly == DLPACK_PY_WRITABLE &&
        (t->ndim == 0 || memcmp(t->shape, prototype->shape, (size_t)t->ndim * sizeof(int64_t)) == 0))
        return 0;
    dlpack_py_release(v);
    PyErr_SetString(PyExc_BufferError, "the allocator of the exchange table gave another tensor than it was asked for");
    return -1;
}
#endif

static inline int
dlpack_py_allocate_like(PyObject *like, const DLTensor *prototype, dlpack_py_view *v)
{
    static const dlpack_py_want anywhere = {0, NULL, 0, 0, NULL, 0, 0, DLPACK_PY_ANY_DEVICE, 1, 0};
    dlpack_py_state *state = dlpack_py_state_get();
    DLManagedTensorVersioned *managed;
    dlpack_py_impl_type room;
    const dlpack_py_impl_type *type;
    dlpack_py_error error;

    dlpack_py_impl_view_clear(v);
    type = state == NULL ? NULL : dlpack_py_impl_type_get(state, Py_TYPE(like), &room);
    if (type == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL) {
        managed = dlpack_py_impl_allocate_by_table((const DLPackExchangeAPI *)type->table, prototype);
        if (managed == NULL || dlpack_py_impl_take_wanted(managed, &anywhere, v) < 0)
            return -1;
        return dlpack_py_impl_check_allocated(prototype, v);
    }
#endif
    managed = dlpack_py_allocate(prototype, &error);
    return managed == NULL ? dlpack_py_raise(&error) : dlpack_py_impl_take_wanted(managed, &anywhere, v);
}

/* An object that holds a view and has the two methods: what a from_dlpack takes. */
typedef struct dlpack_py_impl_carrier {
    PyObject_HEAD
    dlpack_py_view view;
} dlpack_py_impl_carrier;

static inline dlpack_py_view *
dlpack_py_impl_carried(PyObject *carrier)
{
    return &((dlpack_py_impl_carrier *)(void *)carrier)->view;
}

static inline PyObject *
dlpack_py_impl_carrier_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const dlpack_py_view *v = dlpack_py_impl_carried(self);
    dlpack_py_offer offer = dlpack_py_offer_view(self, &v->tensor, v);
    return dlpack_py_produce_offer(&offer, args, nargs, kwnames);
}

static inline PyObject *
dlpack_py_impl_carrier_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlpack_py_produce_device(&dlpack_py_impl_carried(self)->tensor);
}

static inline void
dlpack_py_impl_carrier_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    dlpack_py_release(dlpack_py_impl_carried(self));
    PyObject_Free(self);
    Py_DECREF(type);
}

DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_carrier_type_new(void)
{
    static PyMethodDef methods[] = {
        DLPACK_PY_METHODS(dlpack_py_impl_carrier_dlpack, dlpack_py_impl_carrier_device),
        {NULL, NULL, 0, NULL},
    };
    PyType_Slot slots[3];
    PyType_Spec spec;
    void (*const dealloc)(PyObject *) = dlpack_py_impl_carrier_dealloc;

    memset(slots, 0, sizeof(slots));
    slots[0].slot = Py_tp_dealloc;
    memcpy(&slots[0].pfunc, &dealloc, sizeof(dealloc)); /* ISO C has no such cast */
    slots[1].slot = Py_tp_methods;
    slots[1].pfunc = methods;
    memset(&spec, 0, sizeof(spec));
    spec.name = "dlpack_py.carrier";
    spec.basicsize = (int)sizeof(dlpack_py_impl_carrier);
    spec.flags = Py_TPFLAGS_DEFAULT;
    spec.slots = slots;
    return PyType_FromSpec(&spec);
}

/* Puts a view into a new carrier; takes it over, also when it fails. */
static inline PyObject *
dlpack_py_impl_carrier_steal(dlpack_py_state *state, dlpack_py_view *v)
{
    PyObject *type = dlpack_py_impl_dict_get(state->on_demand, Py_None), *made, *carrier = NULL;

    if (type == NULL && !PyErr_Occurred()) {
        made = dlpack_py_impl_carrier_type_new();
        if (made != NULL) /* another thread may have been first */
            type = PyObject_CallMethod(state->on_demand, "setdefault", "OO", Py_None, made);
        Py_XDECREF(made);
    }
    if (type != NULL)
        carrier = (PyObject *)PyObject_New(dlpack_py_impl_carrier, (PyTypeObject *)type);
    Py_XDECREF(type);
    if (carrier != NULL)
        dlpack_py_move(dlpack_py_impl_carried(carrier), v);
    else
        dlpack_py_release(v);
    return carrier;
}

/* The from_dlpack of the library that obj comes from: of its array namespace, or else of
 * the module of its type, or of the package around that. A new reference, or NULL with
 * an exception. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_find_from_dlpack(PyObject *obj)
{
    PyObject *type = (PyObject *)Py_TYPE(obj), *module, *found = NULL, *name;
    Py_ssize_t dot = 1;
    const int has_namespace = dlpack_py_impl_has_attribute(type, "__array_namespace__");

    if (has_namespace < 0)
        return NULL;
    if (has_namespace) {
        module = PyObject_CallMethod(obj, "__array_namespace__", NULL);
        found = module == NULL ? NULL : PyObject_GetAttrString(module, "from_dlpack");
        Py_XDECREF(module);
        if (found == NULL && module != NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            dlpack_py_impl_refuse_value(PyExc_TypeError, "no %U can be made: its array namespace has no from_dlpack",
                                        type);
        return found;
    }
    name = PyObject_GetAttrString(type, "__module__");
    while (name != NULL && PyUnicode_Check(name) && dot > 0) {
        PyObject *whole = name;
        module = PyImport_Import(whole);
        found = module == NULL ? NULL : PyObject_GetAttrString(module, "from_dlpack");
        Py_XDECREF(module);
        dot = PyUnicode_FindChar(whole, '.', 0, PyUnicode_GetLength(whole), -1);
        if (found != NULL ||
            (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_ImportError)))
            break;
        PyErr_Clear();
        name = dot > 0 ? PyUnicode_Substring(whole, 0, dot) : NULL;
        Py_DECREF(whole);
    }
    Py_XDECREF(name);
    if (found == NULL && !PyErr_Occurred())
        dlpack_py_impl_refuse_value(
            PyExc_TypeError, "no %U can be made: its library has neither an exchange table nor a from_dlpack", type);
    return found;
}

/* A view that was moved here, as what a managed tensor over it has to free. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_free_view(void *context)
{
    dlpack_py_release((dlpack_py_view *)context);
    DLPACK_PY_FREE(context);
}

/* What a view holds, as a versioned managed tensor that shows what the view shows. Takes
 * the view over, also when it returns NULL with BufferError or MemoryError. */
static inline DLManagedTensorVersioned *
dlpack_py_impl_view_managed_steal(dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)v->managed;
    const uint64_t readonly = v->readonly != DLPACK_PY_WRITABLE ? DLPACK_PY_FLAG_READ_ONLY : 0;
    dlpack_py_view *moved;
    dlpack_py_error error;

    if (v->form == DLPACK_PY_VERSIONED && (managed->flags & readonly) == readonly &&
        memcmp(&managed->dl_tensor, &v->tensor, sizeof(v->tensor)) == 0) {
        dlpack_py_impl_view_clear(v);
        return managed;
    }
    if (dlpack_py_validate(&v->tensor, v->flags, &error) < 0) { /* what the caller made of it */
        dlpack_py_release(v);
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    moved = (dlpack_py_view *)DLPACK_PY_MALLOC(sizeof(*moved));
    if (moved != NULL) {
        dlpack_py_move(moved, v);
        managed = dlpack_py_wrap(&moved->tensor, dlpack_py_impl_lasting(&moved->tensor, moved->flags) | readonly, moved,
                                 dlpack_py_impl_free_view);
        if (managed != NULL)
            return managed;
        dlpack_py_impl_free_view(moved);
    }
    dlpack_py_release(v);
    (void)PyErr_NoMemory();
    return NULL;
}

#if DLPACK_PY_HAS_EXCHANGE_API
static inline PyObject *
dlpack_py_impl_return_by_table(const DLPackExchangeAPI *table, dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = dlpack_py_impl_view_managed_steal(v);
    void *out = NULL;
    int failed;

    if (managed == NULL)
        return NULL;
    failed = table->managed_tensor_to_py_object_no_sync(managed, &out) != 0;
    if (dlpack_py_impl_check_table_call(failed || out == NULL, "managed_tensor_to_py_object_no_sync") == 0)
        return (PyObject *)out;
    if (!failed)
        Py_XDECREF((PyObject *)out);
    return NULL;
}
#endif

static inline PyObject *
dlpack_py_return_like_steal(PyObject *like, dlpack_py_view *v)
{
    dlpack_py_state *state = dlpack_py_state_get();
    PyObject *from_dlpack, *carrier, *made = NULL;
    const dlpack_py_impl_type *type = NULL;
    dlpack_py_impl_type room;

    if (v->managed == NULL)
        PyErr_SetString(PyExc_ValueError, "the view owns nothing, a borrowed tensor cannot be returned");
    else if (state != NULL)
        type = dlpack_py_impl_type_get(state, Py_TYPE(like), &room);
    if (type == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL)
        return dlpack_py_impl_return_by_table((const DLPackExchangeAPI *)type->table, v);
#endif
    carrier = dlpack_py_impl_carrier_steal(state, v);
    from_dlpack = carrier == NULL ? NULL : dlpack_py_impl_find_from_dlpack(like);
    if (from_dlpack != NULL)
        made = PyObject_CallFunctionObjArgs(from_dlpack, carrier, NULL);
    Py_XDECREF(from_dlpack);
    Py_XDECREF(carrier);
    return made;
}

/* ---- 2.14 The exchange table of a type ---------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API
/* The exchange table of a type, from what its author has for __dlpack__ and from_dlpack
 * already. To be written at file scope, with a semicolon.
 *
 * name         of a static dlpack_py_exchange, for dlpack_py_exchange_add
 * offer        int (PyObject *self, dlpack_py_offer *offer): fills in what is not zero, of
 *              an offer whose owner is self; 0, or -1 with an exception. The tensor, its
 *              shape, its strides and what is pending are not on the stack, but live as long
 *              as self. Without strides it cannot be lent (X3): consumers take it, which is
 *              slower.
 * make_steal   PyObject *(PyTypeObject *type, dlpack_py_view *v): a new object of the type
 *              that holds the view, which it takes over, also when it fails. Read-only is to
 *              be said again as it is exported (dlpack_py_offer_view)
 * want         const dlpack_py_want *: what make_steal can use; NULL: any CPU tensor
 *
 * Objects in memory that the CPU cannot read are for __dlpack__ alone; or else
 * DLPACK_PY_EXCHANGE_API_WITH_STREAM has one argument more:
 *
 * work_stream   int (DLDeviceType type, int32_t id, void **stream): on which stream of device
 *               id the calling thread works on such objects. 0 with *stream as it crosses the
 *               protocol, (void *)dlpack_cuda_stream(s); left NULL, the legacy default stream.
 *               -1 with BufferError for a device that you do not know. Where each object has a
 *               stream of its own, that is pending in its offer, and is ordered before this
 *               one as it is exported (X4). make_steal gets what is ordered on this one alone.
 */
#define DLPACK_PY_EXCHANGE_API(name, offer, make_steal, want) \
    DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, offer, make_steal, want, NULL)
#define DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, offer, make_steal, want, work_stream)                     \
    static int name##_from_object(void *object, DLManagedTensorVersioned **out);                           \
    static int name##_borrow(void *object, DLTensor *out);                                                 \
    static int name##_to_object(DLManagedTensorVersioned *managed, void **out);                            \
    static int name##_stream(DLDeviceType type, int32_t id, void **out);                                   \
    static const dlpack_py_exchange name = {{{{DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR}, NULL}, \
                                             dlpack_py_impl_table_allocate,                                \
                                             name##_from_object,                                           \
                                             name##_to_object,                                             \
                                             name##_borrow,                                                \
                                             name##_stream},                                               \
                                            (offer),                                                       \
                                            (make_steal),                                                  \
                                            (want),                                                        \
                                            (work_stream)};                                                \
    static int name##_from_object(void *object, DLManagedTensorVersioned **out)                            \
    {                                                                                                      \
        return dlpack_py_impl_table_from_object(&name, object, out);                                       \
    }                                                                                                      \
    static int name##_borrow(void *object, DLTensor *out)                                                  \
    {                                                                                                      \
        return dlpack_py_impl_table_borrow(&name, object, out);                                            \
    }                                                                                                      \
    static int name##_to_object(DLManagedTensorVersioned *managed, void **out)                             \
    {                                                                                                      \
        return dlpack_py_impl_table_to_object(&name, managed, out);                                        \
    }                                                                                                      \
    static int name##_stream(DLDeviceType type, int32_t id, void **out)                                    \
    {                                                                                                      \
        return dlpack_py_impl_table_stream(&name, type, id, out);                                          \
    }                                                                                                      \
    struct dlpack_py_impl_semicolon

/* Raises for an out parameter that is NULL (X6). */
static inline int
dlpack_py_impl_check_out(const void *out)
{
    if (out == NULL)
        PyErr_SetString(PyExc_ValueError, "out is NULL, a place for the result was wanted");
    return out == NULL ? -1 : 0;
}

/* current_work_stream. What the CPU can read is done when a call returns: there is no
 * stream (X4). */
static inline int
dlpack_py_impl_table_stream(const dlpack_py_exchange *x, DLDeviceType type, int32_t id, void **out)
{
    char name[DLPACK_PY_TEXT_SIZE];

    if (dlpack_py_impl_check_out(out) < 0)
        return -1;
    *out = NULL;
    if (dlpack_py_is_cpu_readable(dlpack_py_device_make((int32_t)type, id)))
        return 0;
    if (x->work_stream != NULL)
        return x->work_stream(type, id, out);
    PyErr_Format(PyExc_BufferError,
                 "device is %s, and the exchange table of the type is for memory that the CPU can read "
                 "(DLPACK_PY_EXCHANGE_API_WITH_STREAM makes one for devices)",
                 dlpack_py_device_text(dlpack_py_device_make((int32_t)type, id), name));
    return -1;
}

/* Is an object of another type than the table's (X7), or of a class derived from it that
 * exports in its own way? Raises. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_refuse_object(const dlpack_py_exchange *x, dlpack_py_state *state, PyTypeObject *type)
{
    const int derived = dlpack_py_impl_is_own(state, type, &x->api);

    if (derived < 0)
        return -1;
    if (derived)
        dlpack_py_impl_refuse_value(
            PyExc_BufferError, "%U overrides __dlpack__: its objects are exported by that alone", (PyObject *)type);
    else
        dlpack_py_impl_refuse_value(PyExc_TypeError, "%U is not the type that this exchange table belongs to",
                                    (PyObject *)type);
    return -1;
}

/* What the author offers of an object, and how it is exported. */
static inline int
dlpack_py_impl_table_offer(const dlpack_py_exchange *x, PyObject *object, dlpack_py_offer *offer, dlpack_py_plan *plan)
{
    dlpack_py_state *state = dlpack_py_state_get();
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type room;

    if (state == NULL)
        return -1;
    if (object == NULL) {
        PyErr_SetString(PyExc_TypeError, "the object is NULL");
        return -1;
    }
    type = dlpack_py_impl_type_get(state, Py_TYPE(object), &room);
    if (type == NULL)
        return -1;
    if (!type->own || type->table != (const void *)&x->api)
        return dlpack_py_impl_refuse_object(x, state, Py_TYPE(object));
    return dlpack_py_impl_exchange_plan(x, state, object, offer, plan);
}

/* managed_tensor_from_py_object_no_sync */
static inline int
dlpack_py_impl_table_from_object(const dlpack_py_exchange *x, void *object, DLManagedTensorVersioned **out)
{
    dlpack_py_offer offer;
    dlpack_py_plan plan;

    if (dlpack_py_impl_check_out(out) < 0)
        return -1;
    *out = NULL;
    if (dlpack_py_impl_table_offer(x, (PyObject *)object, &offer, &plan) < 0)
        return -1;
    *out = (DLManagedTensorVersioned *)dlpack_py_impl_exchange_export(x, &offer, &plan);
    return *out == NULL ? -1 : 0;
}

/* dltensor_from_py_object_no_sync: what a bare DLTensor cannot say is refused (X3). */
static inline int
dlpack_py_impl_table_borrow(const dlpack_py_exchange *x, void *object, DLTensor *out)
{
    dlpack_py_offer offer;
    dlpack_py_plan plan;

    if (dlpack_py_impl_check_out(out) < 0 || dlpack_py_impl_table_offer(x, (PyObject *)object, &offer, &plan) < 0)
        return -1;
    if (!dlpack_py_impl_may_lend(&offer, &plan)) {
        PyErr_Format(PyExc_BufferError, "the data %s, which a borrowed tensor cannot be: ask for an owned one",
                     plan.copy                                      ? "is exported as a copy only"
                     : (plan.flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? "is read-only"
                     : plan.flags != 0                              ? "is padded"
                                                                    : "has no strides in its object");
        return -1;
    }
    if (dlpack_py_impl_exchange_settle_lent(x, &offer, &plan) < 0)
        return -1;
    *out = *offer.tensor;
    dlpack_py_impl_fold_offset(out);
    return 0;
}

/* The type of the interpreter that a table was put on; a new reference. */
static inline PyObject *
dlpack_py_impl_table_type(const dlpack_py_exchange *x)
{
    dlpack_py_state *state = dlpack_py_state_get();
    PyObject *types = state == NULL ? NULL : dlpack_py_impl_own_types(state, x), *type = NULL;
    Py_ssize_t i = types == NULL ? 0 : PyList_Size(types);

    while (types != NULL && (type = dlpack_py_impl_own_type_before(types, &i)) == Py_None)
        Py_DECREF(type);
    Py_XDECREF(types);
    if (type == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "this interpreter has no type with this exchange table");
    return type;
}

/* managed_tensor_to_py_object_no_sync */
static inline int
dlpack_py_impl_table_to_object(const dlpack_py_exchange *x, DLManagedTensorVersioned *managed, void **out)
{
    PyObject *type = NULL;
    dlpack_py_view v;

    if (out != NULL)
        *out = NULL;
    if (managed == NULL) {
        PyErr_SetString(PyExc_ValueError, "the managed tensor is NULL");
        return -1;
    }
    if (dlpack_py_impl_check_out(out) == 0)
        type = dlpack_py_impl_table_type(x);
    if (type == NULL) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return -1;
    }
    if (dlpack_py_impl_take_wanted(managed, x->want, &v) == 0)
        *out = x->make_steal((PyTypeObject *)type, &v);
    Py_DECREF(type);
    return *out == NULL ? -1 : 0;
}

/* Remembers that a type has a table, for as long as the type lives: its weak reference
 * takes itself out of the list. Each step is one of the list's or the dictionary's own, so
 * that types may come and go on several threads. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_own_add(dlpack_py_state *state, const void *table, PyTypeObject *type)
{
    PyObject *key = PyLong_FromVoidPtr(dlpack_py_impl_unconst(table)), *fresh = PyList_New(0);
    PyObject *types = NULL, *removed = NULL, *reference = NULL;
    int failed = -1;

    if (key != NULL && fresh != NULL)
        types = PyObject_CallMethod(state->on_demand, "setdefault", "OO", key, fresh);
    if (types != NULL)
        removed = PyObject_GetAttrString(types, "remove");
    if (removed != NULL)
        reference = PyWeakref_NewRef((PyObject *)type, removed);
    if (reference != NULL)
        failed = PyList_Append(types, reference);
    Py_XDECREF(key);
    Py_XDECREF(fresh);
    Py_XDECREF(types);
    Py_XDECREF(removed);
    Py_XDECREF(reference);
    return failed;
}

/* Put an exchange table on a type, as the type is made; a static one is ready by then.
 *
 * Returns 0, or -1 with an exception. The table's objects are of the type that it was
 * put on last in an interpreter, which is not kept alive by that.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_exchange_add(PyTypeObject *type, const dlpack_py_exchange *exchange)
{
    dlpack_py_state *state = dlpack_py_state_get();
    PyObject *capsule;
    int failed = -1;

    if (state == NULL)
        return -1;
    capsule = PyCapsule_New(dlpack_py_impl_unconst(&exchange->api), DLPACK_PY_IMPL_EXCHANGE_NAME, NULL);
    if (capsule == NULL)
        return -1;
    if (dlpack_py_impl_own_add(state, &exchange->api, type) == 0) /* first: it is asked as soon as it is there */
        failed = dlpack_py_impl_type_set(type, state->exchange, capsule);
    Py_DECREF(capsule);
    return failed;
}
#endif

#endif /* DLPACK_PY_PROTOCOL_LAYER */

#if defined(__cplusplus) && defined(__GNUC__)
#  pragma GCC diagnostic pop
#endif

#if defined(DLPACK_PY_WITH_CUDA) && !defined(DLPACK_PY_IMPL_IN_CUDA)
#  include "dlpack_cuda.h"
#endif
#if defined(DLPACK_PY_WITH_ROCM) && !defined(DLPACK_PY_IMPL_IN_ROCM)
#  include "dlpack_rocm.h"
#endif

/* Licence (MIT)
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of
 * this software and associated documentation files (the "Software"), to deal in
 * the Software without restriction, including without limitation the rights to
 * use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of
 * the Software, and to permit persons to whom the Software is furnished to do so,
 * subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS
 * FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER
 * IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
 * CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */

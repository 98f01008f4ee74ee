/* dlpack_py.h - implement the DLPack Python protocol in a C or C++ extension
 * Version 0.1.0, for DLPack 1.0 and newer, CPython 3.9 and newer, C99 and C++11
 * Copyright (c) 2026 the dlpack_py authors
 * SPDX-License-Identifier: MIT
 * The full licence stands at the end of this file, and one line for each clause id
 * (P1, K4, ...) that the comments name.
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
 * Only Python is linked. Layer 1 is sections 1.1 to 1.6, layer 2 sections 2.1 to 2.5, layer 3 sections 3.1 to 3.8.
 * Functions of layers 2 and 3 need an attached thread state; dlpack_py_release, dlpack_py_move, dlpack_py_wrap,
 * dlpack_py_allocate and every deleter do not, and may run on any thread at any time. Layer 1 needs no Python.
 */

/* Contents
 *
 *   0.1 Switches
 *   0.2 Includes
 *   0.3 Differences of compilers and dlpack.h
 *   1.1 Errors as code and text
 *   1.2 Dtypes and devices
 *   1.3 Layout and validation
 *   1.4 Overlap
 *   1.5 Strided copy
 *   1.6 Streams and requirements
 *   2.1 The structs and the one-call functions
 *   2.2 Differences of Pythons, and exceptions
 *   2.3 Managed tensors and capsules
 *   2.4 Producing
 *   2.5 Consuming
 *   3.1 Managed tensors in the author's object
 *   3.2 The end of an interpreter
 *   3.3 What is remembered of a type
 *   3.4 The exchange table of a type
 *   3.5 Consuming by an exchange table
 *   3.6 Results like an argument
 *   3.7 Fast paths
 *   3.8 A view for C++
 */

/* ---- 0.1 Switches ------------------------------------------------------- */

/* All switches are optional. Define them before the include, with equal values in every file of an extension. Other
 * extensions in the process may use other values.
 *
 * DLPACK_PY_NO_PYTHON      leaves only layer 1, which needs no Python.h.
 * DLPACK_PY_MALLOC(size), DLPACK_PY_FREE(pointer)
 *                          memory of managed tensors, shapes and copies. Called on any thread, also without an
 *                          interpreter: do not use PyMem_*.
 * DLPACK_PY_EXIT_WAIT      how long the end of an interpreter waits for deleters on other threads, in seconds.
 * DLPACK_PY_WITH_CUDA, DLPACK_PY_WITH_ROCM
 *                          include dlpack_cuda.h, dlpack_rocm.h as well.
 * DLPACK_PY_OPTIONAL       on PyPy and CPython before 3.9, leaves out layers 2 and 3, without an #error.
 *                          DLPACK_PY_AVAILABLE is 0 there, and 1 on other Pythons.
 * DLPACK_PY_PLAIN          1 turns the fast paths off; for tests.
 */
#ifndef DLPACK_PY_EXIT_WAIT
#  define DLPACK_PY_EXIT_WAIT 10
#endif
#ifndef DLPACK_PY_PLAIN
#  define DLPACK_PY_PLAIN 0
#endif

#if defined(DLPACK_PY_VERSION) && DLPACK_PY_VERSION != 0x000100
#  error "this file includes two versions of dlpack_py.h: put the newer version first on the include path"
#endif

/* ---- 0.2 Includes ------------------------------------------------------- */

#if !defined(DLPACK_PY_NO_PYTHON) && !defined(DLPACK_PY_PROTOCOL_LAYER)
#  include <patchlevel.h> /* PY_VERSION_HEX */
/* Without this macro, "#" in the formats of PyArg_ParseTuple is an error from 3.10 on, and an int before. */
#  if !defined(PY_SSIZE_T_CLEAN) && defined(PY_VERSION_HEX) && PY_VERSION_HEX >= 0x030A0000
#    define PY_SSIZE_T_CLEAN
#  endif
#  include <Python.h> /* first: it sets feature macros for the C library */
#endif

/* C casts and NULL are C++ warnings of style. */
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

#ifndef DLPACK_DLPACK_H_ /* dlpack.h was not included yet */
#  if !defined(__has_include)
#    include <dlpack/dlpack.h>
#  elif __has_include("dlpack.h") /* beside this file: before the system's, which may be old */
#    include "dlpack.h"
#  elif __has_include("dlpack/dlpack.h")
#    include "dlpack/dlpack.h"
#  else
#    error "dlpack.h is missing: pip install apache-tvm-ffi, and compile with -I$(tvm-ffi-config --dlpack-includedir)"
#  endif
#endif
#if !defined(DLPACK_MAJOR_VERSION) || DLPACK_MAJOR_VERSION != 1
#  error "dlpack_py.h needs dlpack.h 1.x, and another dlpack.h was included: pip install apache-tvm-ffi has the newest"
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

/* The version that this header implements, whichever dlpack.h it is compiled with. */
#define DLPACK_PY_PROTOCOL_MAJOR 1
#define DLPACK_PY_PROTOCOL_MINOR 3

/* The flags of DLManagedTensorVersioned. dlpack.h has them as unsigned long, which may have 32 bits; 1.0 lacks the
 * last. */
#define DLPACK_PY_FLAG_READ_ONLY UINT64_C(1)
#define DLPACK_PY_FLAG_IS_COPIED UINT64_C(2)
#define DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED UINT64_C(4)

#define DLPACK_PY_MAX_NDIM 64 /* NumPy's maximum (D8) */

/* GCC and clang check formats and overflow, and know rarely used functions: errors, first uses, second tries, and
 * what stands behind a fast path. */
#ifndef DLPACK_PY_IMPL_HAS_GNU_BUILTINS
#  if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5)
#    define DLPACK_PY_IMPL_HAS_GNU_BUILTINS 1
#  else
#    define DLPACK_PY_IMPL_HAS_GNU_BUILTINS 0
#  endif
#endif
#if DLPACK_PY_IMPL_HAS_GNU_BUILTINS
#  define DLPACK_PY_IMPL_PRINTF(text, first) __attribute__((format(printf, text, first)))
#  define DLPACK_PY_IMPL_RARE static __attribute__((cold, noinline, unused)) /* small, not fast */
#  define DLPACK_PY_IMPL_SHARED static __attribute__((noinline, unused))     /* one copy for all calls in a file */
#  define DLPACK_PY_IMPL_HOT static __attribute__((hot, noinline, unused))   /* has callers that are small, not fast */
#  define DLPACK_PY_IMPL_INLINE static inline __attribute__((always_inline)) /* a call would cost too much */
#  define DLPACK_PY_IMPL_UNLIKELY(condition) __builtin_expect(condition, 0)
#else
#  define DLPACK_PY_IMPL_PRINTF(text, first)
#  define DLPACK_PY_IMPL_RARE static inline
#  define DLPACK_PY_IMPL_HOT static inline
#  define DLPACK_PY_IMPL_INLINE static inline
#  define DLPACK_PY_IMPL_UNLIKELY(condition) (condition)
#  define DLPACK_PY_IMPL_SHARED static inline
#endif

/* The C exchange API came with dlpack.h 1.3. */
#ifndef DLPACK_PY_HAS_EXCHANGE_API
#  define DLPACK_PY_HAS_EXCHANGE_API (DLPACK_MINOR_VERSION >= 3)
#endif

#if !defined(__cplusplus) && DLPACK_MINOR_VERSION < 2 /* 1.0 and 1.1 name this struct for C++ only */
typedef struct DLManagedTensorVersioned DLManagedTensorVersioned;
#endif

/* What dlpack.h 1.0 lacks. */
#define DLPACK_PY_IMPL_LAST_DEVICE 18 /* kDLTrn */
#define DLPACK_PY_IMPL_BCOMPLEX 18    /* kDLBComplex */

/* C99 and C++11 have no atomics in common. All of these are sequentially consistent. */
typedef intptr_t dlpack_py_impl_word;
#if defined(__GNUC__)
#  define DLPACK_PY_IMPL_LOAD(word) __atomic_load_n(word, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_STORE(word, value) __atomic_store_n(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_SWAP(word, value) __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_ADD(word, value) __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST)
#  define DLPACK_PY_IMPL_OR(word, value) __atomic_fetch_or(word, value, __ATOMIC_SEQ_CST)
#elif defined(_MSC_VER)
#  include <intrin.h>
#  ifdef _WIN64
#    define DLPACK_PY_IMPL_ATOMIC(operation, word, value) operation##64((volatile __int64 *)(word), value)
#  else
#    define DLPACK_PY_IMPL_ATOMIC(operation, word, value) operation((volatile long *)(word), value)
#  endif
#  define DLPACK_PY_IMPL_LOAD(word) DLPACK_PY_IMPL_ATOMIC(_InterlockedOr, word, 0)
#  define DLPACK_PY_IMPL_STORE(word, value) ((void)DLPACK_PY_IMPL_ATOMIC(_InterlockedExchange, word, value))
#  define DLPACK_PY_IMPL_SWAP(word, value) DLPACK_PY_IMPL_ATOMIC(_InterlockedExchange, word, value)
#  define DLPACK_PY_IMPL_ADD(word, value) DLPACK_PY_IMPL_ATOMIC(_InterlockedExchangeAdd, word, value)
#  define DLPACK_PY_IMPL_OR(word, value) DLPACK_PY_IMPL_ATOMIC(_InterlockedOr, word, value)
#else
#  error "dlpack_py.h needs the atomic built-ins of GCC, clang or MSVC"
#endif

/* The structs of dlpack.h cross libraries: -fshort-enums would change them. */
typedef char dlpack_py_impl_enum_has_4_bytes[sizeof(DLDeviceType) == 4 ? 1 : -1];
typedef char dlpack_py_impl_device_has_8_bytes[sizeof(DLDevice) == 8 ? 1 : -1];
typedef char dlpack_py_impl_dtype_has_4_bytes[sizeof(DLDataType) == 4 ? 1 : -1];

/* Sets *out to a * b, or returns -1 where a * b overflows int64_t. */
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

/* Sets *out to a + b, or returns -1 where a + b overflows int64_t. */
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

/* ---- 1.1 Errors as code and text ---------------------------------------- */

/* Which Python exception an error of layer 1 becomes. */
#define DLPACK_PY_BUFFER_ERROR 1
#define DLPACK_PY_VALUE_ERROR 2
#define DLPACK_PY_TYPE_ERROR 3
#define DLPACK_PY_MEMORY_ERROR 4
#define DLPACK_PY_RUNTIME_ERROR 5
#define DLPACK_PY_SYSTEM_ERROR 6

/* Filled by a function that returned -1; untouched otherwise. */
typedef struct dlpack_py_error {
    int32_t code;       /* DLPACK_PY_..._ERROR */
    int32_t copy_helps; /* 1: a copy of the data would meet the requirement */
    char text[248];     /* the wrong value and what was wanted */
} dlpack_py_error;

/* Fills *error, which may be NULL, with BufferError. Returns -1. */
DLPACK_PY_IMPL_RARE int DLPACK_PY_IMPL_PRINTF(2, 3)
dlpack_py_impl_refuse(dlpack_py_error *error, const char *format, ...)
{
    va_list values;
    if (error != NULL) {
        error->code = DLPACK_PY_BUFFER_ERROR;
        error->copy_helps = 0;
        va_start(values, format);
        vsnprintf(error->text, sizeof(error->text), format, values);
        va_end(values);
    }
    return -1;
}

static inline int
dlpack_py_impl_set_code(dlpack_py_error *error, int32_t code)
{
    if (error != NULL)
        error->code = code;
    return -1;
}

/* As dlpack_py_impl_refuse, for another exception. */
#define DLPACK_PY_IMPL_FAIL(error, code, ...) \
    ((void)dlpack_py_impl_refuse(error, __VA_ARGS__), dlpack_py_impl_set_code(error, code))

/* The name of the exception of an error code. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_error_kind(int32_t code)
{
    static const char *const kinds[] = {"BufferError", "ValueError",   "TypeError",
                                        "MemoryError", "RuntimeError", "SystemError"};
    return kinds[code - 1];
}

/* ---- 1.2 Dtypes and devices --------------------------------------------- */

/* A dtype as one integer, never 0: for tables, comparison and switch. The codes are the specification's, as numbers,
 * because older versions of dlpack.h lack some names. */
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

/* The tensor's dtype, to compare with or switch over DLPACK_PY_FLOAT32 ... */
static inline uint32_t
dlpack_py_dtype(const DLTensor *t)
{
    return DLPACK_PY_DTYPE((uint32_t)t->dtype.code, (uint32_t)t->dtype.bits, (uint32_t)t->dtype.lanes);
}

static inline int
dlpack_py_impl_is_complex(DLDataType dtype)
{
    return dtype.code == kDLComplex || dtype.code == DLPACK_PY_IMPL_BCOMPLEX;
}

/* The word of a list that stands at a place, from 0; *length is 0 where the list is shorter. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_word_at(const char *list, int32_t place, int *length)
{
    while (place > 0 && *list != '\0')
        place -= *list++ == ' ';
    *length = place == 0 ? (int)strcspn(list, " ") : 0;
    return list;
}

/* The only width that a dtype code may have, in bits; 0: any. */
static inline int
dlpack_py_impl_dtype_width(uint8_t code)
{
    static const uint8_t widths[] = {0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 6, 6, 4};
    return code < sizeof(widths) ? widths[code] : 0;
}

/* The name of a dtype code, without its bits; *length is 0 for a code without a name. */
static inline const char *
dlpack_py_impl_dtype_name(uint8_t code, int *length)
{
    return dlpack_py_impl_word_at("int uint float handle bfloat complex bool float8_e3m4 float8_e4m3 "
                                  "float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
                                  "float8_e8m0fnu float6_e2m3fn float6_e3m2fn float4_e2m1fn bcomplex",
                                  code, length);
}

/* Checks that the specification allows the dtype; unknown dtype codes are accepted (C8). Returns 0, or -1 with
 * BufferError. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_dtype(DLDataType dtype, dlpack_py_error *error)
{
    const int only = dlpack_py_impl_dtype_width(dtype.code);
    int length;
    const char *name, *wish = NULL;

    if (dtype.lanes == 0)
        wish = "at least 1 lane";
    else if (dtype.bits == 0)
        wish = "at least 1 bit (pass DLPACK_PY_FLOAT32, not kDLFloat)";
    else if (only != 0 && dtype.bits != only)
        wish = only == 8 ? "8 bits" : only == 6 ? "6 bits" : "4 bits";
    else if (dlpack_py_impl_is_complex(dtype) && dtype.bits % 2 != 0)
        wish = "an even number of bits";
    if (wish == NULL)
        return 0;
    name = dlpack_py_impl_dtype_name(dtype.code, &length);
    return dlpack_py_impl_refuse(error, "dtype code %d (%.*s) has %d bits and %d lanes, %s was wanted", dtype.code,
                                 length == 0 ? 7 : length, length == 0 ? "unknown" : name, dtype.bits, dtype.lanes,
                                 wish);
}

/* Writes a dtype as text: "float32", "float8_e4m3fn", "float32x4" for four lanes; "dtype(200, 8, 1)" for a dtype
 * without a name. Returns text. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_dtype_text(uint32_t dtype, char text[DLPACK_PY_TEXT_SIZE])
{
    DLDataType d;
    char bits[4] = "", lanes[8] = "";
    int length;
    const char *name = dlpack_py_impl_dtype_name((uint8_t)(dtype >> 24), &length);

    d.code = (uint8_t)(dtype >> 24);
    d.bits = (uint8_t)(dtype >> 16);
    d.lanes = (uint16_t)dtype;
    if (length == 0 || dlpack_py_impl_check_dtype(d, NULL) < 0) {
        snprintf(text, DLPACK_PY_TEXT_SIZE, "dtype(%d, %d, %d)", d.code, d.bits, d.lanes);
        return text;
    }
    if (dlpack_py_impl_dtype_width(d.code) == 0)
        snprintf(bits, sizeof(bits), "%d", d.bits);
    if (d.lanes != 1)
        snprintf(lanes, sizeof(lanes), "x%d", d.lanes);
    snprintf(text, DLPACK_PY_TEXT_SIZE, "%.*s%s%s", length, name, bits, lanes);
    return text;
}

/* Bits from one element to the next. Sub-byte elements are packed, unless flags say that each lane has a byte (D6). */
static inline uint32_t
dlpack_py_impl_item_bits(DLDataType dtype, uint64_t flags)
{
    const uint32_t bits = dtype.bits < 8 && (flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? 8u : dtype.bits;
    return bits * dtype.lanes;
}

/* Bytes of a single element, rounded up for packed sub-byte dtypes. flags: DLPACK_PY_FLAG_* of the tensor. */
static inline size_t
dlpack_py_itemsize(DLDataType dtype, uint64_t flags)
{
    return (dlpack_py_impl_item_bits(dtype, flags) + 7) / 8;
}

static inline DLDevice
dlpack_py_impl_device(int32_t type, int32_t id)
{
    DLDevice device;
    device.device_type = (DLDeviceType)type;
    device.device_id = id;
    return device;
}

/* Can the CPU read the memory? It can read CPU memory, and pinned or managed memory of CUDA or ROCm. */
static inline int
dlpack_py_is_cpu_readable(DLDevice device)
{
    switch ((int32_t)device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost:
    case kDLCUDAManaged: return 1;
    default: return 0;
    }
}

/* Is data an address, to which an offset can be added? Data of OpenCL, Vulkan or Metal is a handle, not an address. */
static inline int
dlpack_py_impl_has_address(DLDevice device)
{
    const int32_t type = (int32_t)device.device_type;
    return type == (int32_t)kDLCUDA || type == (int32_t)kDLROCM || dlpack_py_is_cpu_readable(device);
}

/* The name of a device type; *length is 0 for a type without a name. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_impl_device_name(int32_t type, int *length)
{
    static const char *const names = "- cpu cuda cuda_host opencl - - vulkan metal vpi rocm rocm_host ext_dev "
                                     "cuda_managed oneapi webgpu hexagon maia trn"; /* by DLDeviceType */
    const char *name = dlpack_py_impl_word_at(names, type < 0 ? 0 : type, length);
    if (*name == '-')
        *length = 0;
    return name;
}

/* Writes a device as text: "cpu", "cuda:1"; "device(99, 0)" for a type without a name. Returns text. CPU memory has
 * id 0 (D9); "cpu:1" shows a wrong id. */
DLPACK_PY_IMPL_RARE const char *
dlpack_py_device_text(DLDevice device, char text[DLPACK_PY_TEXT_SIZE])
{
    const int32_t type = (int32_t)device.device_type, id = device.device_id;
    int length;
    const char *name = dlpack_py_impl_device_name(type, &length);
    if (length == 0)
        snprintf(text, DLPACK_PY_TEXT_SIZE, "device(%" PRId32 ", %" PRId32 ")", type, id);
    else if (id == 0 && dlpack_py_is_cpu_readable(device))
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%.*s", length, name);
    else
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%.*s:%" PRId32, length, name, id);
    return text;
}

/* Reads a device from text: "cpu", "cuda" (id 0), "cuda:1". Returns 0, or -1 where text names none. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_parse_device_text(const char *text, DLDevice *device)
{
    int32_t type;
    int length;
    for (type = kDLCPU; type <= DLPACK_PY_IMPL_LAST_DEVICE; type++) {
        const char *name = dlpack_py_impl_device_name(type, &length), *rest;
        int64_t id = 0;

        if (length == 0 || strncmp(text, name, (size_t)length) != 0)
            continue;
        rest = text + length;
        if (*rest != '\0' && *rest != ':')
            continue;
        if (*rest == ':') {
            rest++;
            if (*rest == '\0' || (*rest == '0' && rest[1] != '\0'))
                return -1;
            for (; *rest >= '0' && *rest <= '9' && id <= INT32_MAX; rest++)
                id = id * 10 + (*rest - '0');
            if (*rest != '\0' || id > INT32_MAX)
                return -1;
        }
        *device = dlpack_py_impl_device(type, (int32_t)id);
        return 0;
    }
    return -1;
}

/* ---- 1.3 Layout and validation ------------------------------------------ */

/* Describe memory that the CPU can read. Nothing is checked or copied.
 *
 * data      the first element, also where strides are negative
 * dtype     DLPACK_PY_FLOAT32 ...
 * shape     ndim extents
 * strides   ndim steps in elements; NULL: row-major
 *
 * The result points to shape and strides: they must live as long as it is used.
 */
static inline DLTensor
dlpack_py_cpu(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    DLTensor t;
    t.data = data;
    t.device.device_type = kDLCPU;
    t.device.device_id = 0;
    t.ndim = ndim;
    t.dtype.code = (uint8_t)(dtype >> 24);
    t.dtype.bits = (uint8_t)(dtype >> 16 & 0xff);
    t.dtype.lanes = (uint16_t)(dtype & 0xffff);
    t.shape = (int64_t *)(uintptr_t)shape; /* dlpack.h has no const; nothing is written */
    t.strides = (int64_t *)(uintptr_t)strides;
    t.byte_offset = 0;
    return t;
}

/* The address of the first element: data + byte_offset (D1). NULL stays NULL. */
static inline void *
dlpack_py_impl_first(const DLTensor *t)
{
    return t->data == NULL ? NULL : (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
}

/* Has the tensor no elements? */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_empty(const DLTensor *t)
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
    uint64_t size = 1; /* may wrap before an extent of 0 */
    int32_t i;
    for (i = 0; i < t->ndim; i++)
        size *= (uint64_t)t->shape[i];
    return (int64_t)size;
}

/* Sets *bytes to the bytes of n >= 0 contiguous elements, rounded up, or returns -1 where they overflow int64_t. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_bytes(int64_t n, DLDataType dtype, uint64_t flags, int64_t *bytes)
{
    const int64_t bits = dlpack_py_impl_item_bits(dtype, flags);
    if (bits % 8 == 0)
        return dlpack_py_impl_multiply(n, bits / 8, bytes);
    /* Eight elements fill as many bytes as an element has bits. */
    if (dlpack_py_impl_multiply(n / 8, bits, bytes) < 0)
        return -1;
    return dlpack_py_impl_add(*bytes, (n % 8 * bits + 7) / 8, bytes);
}

/* The bytes of a compact copy of a validated tensor. Packed sub-byte dtypes are rounded up once, for the whole (D6). */
DLPACK_PY_IMPL_RARE int64_t
dlpack_py_nbytes(const DLTensor *t, uint64_t flags)
{
    int64_t bytes = 0;
    (void)dlpack_py_impl_bytes(dlpack_py_size(t), t->dtype, flags, &bytes);
    return bytes;
}

/* Compact strides in elements for a shape.
 *
 * order     'F': first index fastest; anything else: last index fastest
 * strides   out: ndim strides
 *
 * An extent of 0 counts as 1: strides of a tensor without elements carry no meaning (D5).
 */
DLPACK_PY_IMPL_SHARED void
dlpack_py_strides(int32_t ndim, const int64_t *shape, char order, int64_t *strides)
{
    uint64_t step = 1;
    int32_t k;
    for (k = 0; k < ndim; k++) {
        const int32_t i = order == 'F' ? k : ndim - 1 - k;
        strides[i] = (int64_t)step;
        if (shape[i] > 1 && (uint64_t)shape[i] <= INT64_MAX / step) /* may be larger only without elements */
            step *= (uint64_t)shape[i];
    }
}

/* The tensor's strides; where they are NULL, row-major strides written to storage (D4). */
DLPACK_PY_IMPL_RARE const int64_t *
dlpack_py_impl_strides(const DLTensor *t, int64_t storage[DLPACK_PY_MAX_NDIM])
{
    if (t->strides != NULL)
        return t->strides;
    dlpack_py_strides(t->ndim, t->shape, 'C', storage);
    return storage;
}

/* How far the elements of a tensor reach from the first one, in bytes. *lowest is 0, or below where strides are
 * negative; *highest is one past the last byte; both are 0 without elements. Returns 0, or -1 where lowest or highest
 * does not fit into int64_t, in elements or in bytes; that never happens for a validated tensor. */
static inline int
dlpack_py_impl_extent(const DLTensor *t, uint64_t flags, int64_t *lowest, int64_t *highest)
{
    int64_t below = 0, above = 1, reach; /* in elements; below counts downwards */
    int32_t i;

    *lowest = *highest = 0;
    if (dlpack_py_impl_is_empty(t))
        return 0;
    if (t->strides == NULL)
        return dlpack_py_impl_bytes(dlpack_py_size(t), t->dtype, flags, highest);
    for (i = 0; i < t->ndim; i++) {
        const int64_t last = t->shape[i] - 1;
        if (last > 0 &&
            (dlpack_py_impl_multiply(last, t->strides[i], &reach) < 0 ||
             (reach < 0 ? dlpack_py_impl_add(below, reach, &below) : dlpack_py_impl_add(above, reach, &above)) < 0))
            return -1;
    }
    if (below == INT64_MIN || (below != 0 && dlpack_py_impl_bytes(-below, t->dtype, flags, lowest) < 0) ||
        dlpack_py_impl_bytes(above, t->dtype, flags, highest) < 0)
        return -1;
    *lowest = -*lowest;
    return 0;
}

/* Checks all of clause D8. Returns 0, or -1 with *error filled. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_check_all(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    const uint64_t base = (uint64_t)(uintptr_t)t->data;
    int64_t size = 1, bytes, lowest, highest;
    int32_t i;

    if (dlpack_py_impl_check_dtype(t->dtype, error) < 0)
        return -1;
    if (t->ndim < 0 || t->ndim > DLPACK_PY_MAX_NDIM)
        return dlpack_py_impl_refuse(error, "ndim is %" PRId32 ", it must be from 0 to %d", t->ndim,
                                     DLPACK_PY_MAX_NDIM);
    if (t->ndim > 0 && t->shape == NULL)
        return dlpack_py_impl_refuse(error, "shape is NULL, ndim is %" PRId32, t->ndim);
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return dlpack_py_impl_refuse(error, "shape[%" PRId32 "] is %" PRId64 ", it must not be negative", i,
                                         t->shape[i]);
    }
    if (dlpack_py_impl_is_empty(t))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (dlpack_py_impl_multiply(size, t->shape[i], &size) < 0)
            return dlpack_py_impl_refuse(error, "shape has 2^63 elements or more, at shape[%" PRId32 "] = %" PRId64, i,
                                         t->shape[i]);
    }
    if (t->data == NULL)
        return dlpack_py_impl_refuse(error, "data is NULL, the tensor has %" PRId64 " elements", size);
    if (dlpack_py_impl_bytes(size, t->dtype, flags, &bytes) < 0)
        return dlpack_py_impl_refuse(error, "%" PRId64 " elements take 2^63 bytes or more", size);
    if (dlpack_py_impl_extent(t, flags, &lowest, &highest) < 0)
        return dlpack_py_impl_refuse(error, "strides reach 2^63 bytes or further");
    if (!dlpack_py_impl_has_address(t->device))
        return 0;
    if (t->byte_offset > UINTPTR_MAX - base)
        return dlpack_py_impl_refuse(error, "byte_offset is %" PRIu64 ", added to data it leaves the address range",
                                     t->byte_offset);
    if ((uint64_t)-lowest > base + t->byte_offset || (uint64_t)highest > UINTPTR_MAX - (base + t->byte_offset))
        return dlpack_py_impl_refuse(
            error, "strides reach from byte %" PRId64 " to %" PRId64 ", which leaves the address range", lowest,
            highest);
    return 0;
}

/* Fast path of dlpack_py_validate: is the tensor certainly valid? One pass over shape and strides, for whole-byte
 * numbers with elements, of extents and strides below 2^31. 0: use dlpack_py_impl_check_all. Saves 250
 * instructions for shape (3, 4). */
DLPACK_PY_IMPL_SHARED int
dlpack_py_impl_is_plain(const DLTensor *t)
{
    const uintptr_t first = (uintptr_t)t->data;
    const int64_t *shape = t->shape, *strides = t->strides;
    uint64_t size = 1, reach = 1; /* in elements; no element is further from the first one, in either direction */
    int32_t i;

    if (DLPACK_PY_IMPL_UNLIKELY(DLPACK_PY_PLAIN || (dlpack_py_dtype(t) & 0xfc07ffffu) != 1 || t->dtype.bits == 0 ||
                                first == 0 || t->byte_offset != 0 || (uint32_t)t->ndim > DLPACK_PY_MAX_NDIM ||
                                (t->ndim > 0 && shape == NULL)))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        const uint64_t last = (uint64_t)shape[i] - 1; /* 2^64 - 1 for an extent of 0 */
        uint64_t step = size;
        if (strides != NULL)
            step = strides[i] < 0 ? 0 - (uint64_t)strides[i] : (uint64_t)strides[i];
        if (DLPACK_PY_IMPL_UNLIKELY((last | step) >> 31 != 0))
            return 0;
        reach += last * step;
        size *= last + 1;
        if (DLPACK_PY_IMPL_UNLIKELY((size | reach) >> 31 != 0))
            return 0;
    }
    reach *= 32; /* bytes; an element has less than 32 */
    return reach <= first && reach <= UINTPTR_MAX - first;
}

/* Check a tensor before anything is read: rank, extents, dtype, strides and addresses (D8). The functions below
 * expect a validated tensor.
 *
 * flags   DLPACK_PY_FLAG_* of the tensor: padded sub-byte dtypes
 * error   out, on failure; may be NULL
 *
 * Returns 0, or -1 with BufferError. Needs no thread state.
 */
static inline int
dlpack_py_validate(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    return dlpack_py_impl_is_plain(t) ? 0 : dlpack_py_impl_check_all(t, flags, error);
}

#define DLPACK_PY_IMPL_MAY_OVERLAP 0 /* strides repeat or interleave elements */
#define DLPACK_PY_IMPL_SEPARATE 1    /* no two elements share memory */
#define DLPACK_PY_IMPL_COMPACT 2     /* and there is no gap between elements */

/* Looks at the dimensions by increasing stride. Elements are separate where each stride is larger than the reach of
 * all dimensions with smaller strides: in slices, transposed and reversed arrays. t has elements; its strides are not
 * NULL. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_layout(const DLTensor *t)
{
    uint64_t left = 0, reach = 0, step, next; /* left: a bit for each dimension that was not looked at yet */
    int32_t i, found, layout = DLPACK_PY_IMPL_COMPACT;

    for (i = 0; i < t->ndim; i++)
        left |= (uint64_t)(t->shape[i] != 1) << i;
    while (left != 0) {
        for (step = UINT64_MAX, found = i = 0; i < t->ndim; i++) {
            next = t->strides[i] < 0 ? 0 - (uint64_t)t->strides[i] : (uint64_t)t->strides[i];
            if ((left >> i & 1) != 0 && next < step) {
                step = next;
                found = i;
            }
        }
        next = (uint64_t)(t->shape[found] - 1) * step;
        if (step <= reach || next > INT64_MAX - reach)
            return DLPACK_PY_IMPL_MAY_OVERLAP;
        if (t->strides[found] != (int64_t)reach + 1)
            layout = DLPACK_PY_IMPL_SEPARATE;
        reach += next;
        left &= ~((uint64_t)1 << found);
    }
    return layout;
}

/* The first dimension whose stride is not that of a compact tensor in the given order, which is put into *wanted; -1:
 * none. order: 'C', 'F' or 'R' */
DLPACK_PY_IMPL_RARE int32_t
dlpack_py_impl_wrong_stride(const DLTensor *t, const int64_t *strides, char order, int64_t *wanted)
{
    const int32_t count = order == 'R' && t->ndim > 1 ? t->ndim - 1 : t->ndim; /* of dimensions to look at */
    uint64_t step = 1;
    int32_t k;

    for (k = 0; k < count; k++) {
        const int32_t i = order == 'F' ? k : t->ndim - 1 - k;
        if (t->shape[i] == 1)
            continue;
        *wanted = (int64_t)step;
        if (strides[i] != *wanted)
            return dlpack_py_impl_is_empty(t) ? -1 : i;
        step *= (uint64_t)t->shape[i]; /* wraps only without elements */
    }
    return -1;
}

/* Is the tensor compact in the given order?
 *
 * order   'C': last index fastest; 'F': first index fastest; 'A': 'C' or 'F'; 'K': any order of the dimensions, as a
 *         transposed array has; 'R': as 'C', but with two or more dimensions the first stride is not checked: for
 *         example an image whose rows have a pitch
 *
 * Returns 1 or 0. Strides of dimensions of size 1, and all strides of a tensor without elements, do not matter (D5);
 * NULL is row-major (D4). t has been validated. Needs no thread state.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_is_contiguous(const DLTensor *t, char order)
{
    int64_t storage[DLPACK_PY_MAX_NDIM], wanted;
    const int64_t *strides = dlpack_py_impl_strides(t, storage);

    if (order == 'K')
        return t->strides == NULL || dlpack_py_impl_is_empty(t) || dlpack_py_impl_layout(t) == DLPACK_PY_IMPL_COMPACT;
    if (order == 'A' && dlpack_py_impl_wrong_stride(t, strides, 'F', &wanted) < 0)
        return 1;
    return dlpack_py_impl_wrong_stride(t, strides, order, &wanted) < 0;
}

/* ---- 1.4 Overlap -------------------------------------------------------- */

/* May two elements of the tensor share memory? Returns 1 where strides repeat or interleave elements. t must be
 * validated. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_overlaps_itself(const DLTensor *t)
{
    return !dlpack_py_is_contiguous(t, 'C') && dlpack_py_impl_layout(t) == DLPACK_PY_IMPL_MAY_OVERLAP;
}

/* Can an element of tensor a and an element of tensor b share a byte? Compares indices in the dimension with the
 * largest stride below limit, then in the dimensions with smaller strides.
 *
 * strides    common to a and b; dlpack_py_impl_layout has found them separate
 * size       bytes of an element
 * distance   bytes from the first element of a to the first element of b
 * effort     how many differences of indices may be tried; returns 1 at 0
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_may_meet(const DLTensor *a, const DLTensor *b, const int64_t *strides, int64_t limit, int64_t size,
                        int64_t distance, int32_t *effort)
{
    int64_t stride = 0, n, last;
    const DLTensor *above = a, *below = b; /* n, an index in a minus the index in b, is from -below to above */
    int32_t i, k = 0;

    for (i = 0; i < a->ndim; i++) {
        n = strides[i] < 0 ? -strides[i] : strides[i];
        if (n > stride && n < limit) {
            stride = n;
            k = i;
        }
    }
    if (stride == 0)
        return distance > -size && distance < size;
    if (strides[k] < 0) {
        above = b;
        below = a;
    }
    n = distance / (stride * size) - (distance < 0 && distance % (stride * size) != 0); /* rounds down */
    for (last = n + 1; n <= last; n++) { /* the two multiples of the stride nearest to distance */
        if (n > -below->shape[k] && n < above->shape[k] &&
            (--*effort <= 0 ||
             dlpack_py_impl_may_meet(a, b, strides, stride, size, distance - n * stride * size, effort)))
            return 1;
    }
    return 0;
}

/* May two tensors share memory?
 *
 * flags_a, flags_b   DLPACK_PY_FLAG_* of each: padded sub-byte dtypes
 *
 * Returns 0 where the memory ranges of a and b are separate, and where a and b have equal strides and interleave
 * without a common byte, such as x[..., 0] and x[..., 1]. Returns 1 otherwise. a and b must be validated, and their
 * data must be addresses on one device.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_overlap(const DLTensor *a, uint64_t flags_a, const DLTensor *b, uint64_t flags_b)
{
    const uint64_t first_a = (uint64_t)(uintptr_t)dlpack_py_impl_first(a),
                   first_b = (uint64_t)(uintptr_t)dlpack_py_impl_first(b);
    const uint32_t bits = dlpack_py_impl_item_bits(a->dtype, flags_a);
    int64_t lowest_a, highest_a, lowest_b, highest_b;
    int64_t compact_a[DLPACK_PY_MAX_NDIM], compact_b[DLPACK_PY_MAX_NDIM], shape[DLPACK_PY_MAX_NDIM];
    const int64_t *strides_a, *strides_b;
    int64_t strides[DLPACK_PY_MAX_NDIM]; /* of both tensors; 0: a dimension in which no index changes the address */
    DLTensor both;
    int32_t i, effort = 1000;

    if (dlpack_py_impl_extent(a, flags_a, &lowest_a, &highest_a) < 0 ||
        dlpack_py_impl_extent(b, flags_b, &lowest_b, &highest_b) < 0)
        return 1;
    if (highest_a == 0 || highest_b == 0 || /* no elements */
        first_a + (uint64_t)highest_a <= first_b - (uint64_t)-lowest_b ||
        first_b + (uint64_t)highest_b <= first_a - (uint64_t)-lowest_a)
        return 0;
    if (bits % 8 != 0 || bits != dlpack_py_impl_item_bits(b->dtype, flags_b) || a->ndim != b->ndim ||
        (first_a < first_b ? first_b - first_a : first_a - first_b) > INT64_MAX)
        return 1;
    both = *a;
    strides_a = dlpack_py_impl_strides(a, compact_a);
    strides_b = dlpack_py_impl_strides(b, compact_b);
    for (i = 0; i < a->ndim; i++) {
        if (a->shape[i] != 1 && b->shape[i] != 1 && strides_a[i] != strides_b[i])
            return 1;
        shape[i] = a->shape[i] > b->shape[i] ? a->shape[i] : b->shape[i];
        strides[i] = shape[i] == 1 ? 0 : a->shape[i] == 1 ? strides_b[i] : strides_a[i];
        if (strides[i] == 0)
            shape[i] = 1;
    }
    both.shape = shape;
    both.strides = strides;
    return dlpack_py_impl_layout(&both) == DLPACK_PY_IMPL_MAY_OVERLAP ||
           dlpack_py_impl_may_meet(a, b, strides, INT64_MAX, bits / 8, (int64_t)(first_b - first_a), &effort);
}

/* ---- 1.5 Strided copy --------------------------------------------------- */

/* Copies count bits, lowest bit of a byte first (D6). Offsets are in bits. */
static inline void
dlpack_py_impl_copy_bits(char *to, int64_t to_bit, const char *from, int64_t from_bit, int64_t count)
{
    if (((to_bit | from_bit) & 7) == 0) { /* whole bytes */
        memcpy(to + (to_bit >> 3), from + (from_bit >> 3), (size_t)(count >> 3));
        to_bit += count & ~INT64_C(7);
        from_bit += count & ~INT64_C(7);
        count &= 7;
    }
    for (; count > 0; count--, to_bit++, from_bit++) {
        const int64_t to_byte = to_bit >> 3, from_byte = from_bit >> 3; /* rounds down, below 0 too */
        const unsigned bit = (unsigned)(unsigned char)from[from_byte] >> (from_bit & 7) & 1u;
        const unsigned kept = (unsigned)(unsigned char)to[to_byte] & ~(1u << (to_bit & 7));
        to[to_byte] = (char)(unsigned char)(kept | bit << (to_bit & 7));
    }
}

#ifdef DLPACK_COPY_H /* a file that includes dlpack_copy.h first */
typedef dlpack_copy_loop dlpack_py_impl_loop;
#  define dlpack_py_impl_copy_rows dlpack_copy_rows
#else
/* One loop of a copy: how often it runs, and the bytes from one round to the next in dst and in src. For packed
 * sub-byte dtypes to and from are bits. */
typedef struct dlpack_py_impl_loop {
    int64_t count, to, from;
} dlpack_py_impl_loop;

/* Copies count items of size bytes. A step is the bytes from one item to the next. Constant sizes are fast, and two
 * items in a round are faster than one. */
DLPACK_PY_IMPL_HOT void
dlpack_py_impl_copy_items(char *to, int64_t step_to, const char *from, int64_t step_from, int64_t count, size_t size)
{
#define DLPACK_PY_IMPL_COPY_ITEMS(bytes)                                       \
    for (; count >= 2; count -= 2, to += 2 * step_to, from += 2 * step_from) { \
        memcpy(to, from, bytes);                                               \
        memcpy(to + step_to, from + step_from, bytes);                         \
    }
    if (size == 1)
        DLPACK_PY_IMPL_COPY_ITEMS(1)
    else if (size == 2)
        DLPACK_PY_IMPL_COPY_ITEMS(2)
    else if (size == 4)
        DLPACK_PY_IMPL_COPY_ITEMS(4)
    else if (size == 8)
        DLPACK_PY_IMPL_COPY_ITEMS(8)
    else if (size == 16)
        DLPACK_PY_IMPL_COPY_ITEMS(16)
    for (; count > 0; count--, to += step_to, from += step_from)
        memcpy(to, from, size);
#undef DLPACK_PY_IMPL_COPY_ITEMS
}

/* Copies rows of items of size bytes. Where the rows are nearer to each other in src than the items are, as in a
 * transposed matrix, the order is that of blocks, which fit into the cache. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_copy_rows(char *to, const dlpack_py_impl_loop *rows, const char *from, const dlpack_py_impl_loop *items,
                         size_t size, int64_t total)
{
    const int in_blocks = llabs(rows->from) < llabs(items->from), turn = in_blocks && items->count < 16;
    const dlpack_py_impl_loop *outer = turn ? items : rows, *inner = turn ? rows : items;
    int64_t row, item, i, n;

    (void)total;
    for (row = 0; row < outer->count; row += 64) {
        for (item = 0; item < inner->count; item += n) {
            n = in_blocks && inner->count - item > 56 ? 56 : inner->count - item;
            for (i = row; i < outer->count && i < row + 64; i++)
                dlpack_py_impl_copy_items(to + i * outer->to + item * inner->to, inner->to,
                                          from + i * outer->from + item * inner->from, inner->from, n, size);
        }
    }
}
#endif

/* dlpack_py_copy, for tensors that were checked. The loops are ordered by their strides in dst, the shortest first.
 * Dimensions that are contiguous on both sides are one loop. loops[0] is an item: its bytes, or its bits. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_copy(const DLTensor *dst, const DLTensor *src, uint64_t flags)
{
    const int64_t bits = dlpack_py_impl_item_bits(src->dtype, flags);
    const int packed = bits % 8 != 0;
    const int64_t size = packed ? bits : bits / 8;
    int64_t compact_to[DLPACK_PY_MAX_NDIM], compact_from[DLPACK_PY_MAX_NDIM], total = size, to = 0, from = 0;
    const int64_t *step_to = dlpack_py_impl_strides(dst, compact_to);
    const int64_t *step_from = dlpack_py_impl_strides(src, compact_from);
    char *first_to = (char *)dlpack_py_impl_first(dst);
    const char *first_from = (const char *)dlpack_py_impl_first(src);
    static const dlpack_py_impl_loop once = {1, 0, INT64_MAX}; /* items or rows, where there are none: not in blocks */
    dlpack_py_impl_loop loops[DLPACK_PY_MAX_NDIM + 1], *next;
    int64_t done[DLPACK_PY_MAX_NDIM + 1]; /* rounds */
    int64_t rows = 2;                     /* of the loops from 2 on, that with the shortest stride in src */
    int64_t i, k, count = 0, last = 0;

    if (dlpack_py_impl_is_empty(src))
        return;
    for (i = src->ndim - 1; i >= 0; i--) {
        dlpack_py_impl_loop loop;
        loop.count = src->shape[i];
        if (loop.count == 1)
            continue;
        loop.to = step_to[i] * size;
        loop.from = step_from[i] * size;
        total *= loop.count;
        for (next = &loops[++count]; next > &loops[1] && llabs(next[-1].to) > llabs(loop.to); next--)
            *next = next[-1];
        *next = loop;
    }
    loops[0].count = size;
    loops[0].to = loops[0].from = 1;
    for (i = 1; i <= count; i++) {
        next = &loops[last];
        if (loops[i].to == next->to * next->count && loops[i].from == next->from * next->count)
            next->count *= loops[i].count;
        else {
            loops[++last] = loops[i];
            done[last] = 0;
            if (last > 2 && llabs(loops[last].from) < llabs(loops[rows].from))
                rows = last;
        }
    }
    do {
        if (packed)
            dlpack_py_impl_copy_bits(first_to, to, first_from, from, loops[0].count);
        else
            dlpack_py_impl_copy_rows(first_to + to, last > 1 ? &loops[rows] : &once, first_from + from,
                                     last > 0 ? &loops[1] : &once, (size_t)loops[0].count, total);
        for (k = 1; k <= last; k++) { /* to the next item, or the next rows */
            if (!packed && (k == 1 || k == rows))
                continue;
            next = &loops[k];
            to += next->to;
            from += next->from;
            if (++done[k] < next->count)
                break;
            to -= next->count * next->to;
            from -= next->count * next->from;
            done[k] = 0;
        }
    } while (k <= last);
}

/* Copy the elements of src to dst, whatever their strides.
 *
 * dst, src   of equal dtype and shape, in memory that the CPU can read, validated
 * flags      DLPACK_PY_FLAG_* of both: padded sub-byte dtypes
 *
 * Returns 0; or -1 with BufferError where dtype or shape differ, where the CPU cannot read a tensor, or where
 * dlpack_py_overlap says that they may share memory (C9); then nothing is written. Where elements of dst share memory,
 * it is not defined which one is written last. Needs no thread state, allocates nothing.
 */
DLPACK_PY_IMPL_RARE int
dlpack_py_copy(const DLTensor *dst, const DLTensor *src, uint64_t flags, dlpack_py_error *error)
{
    char to[DLPACK_PY_TEXT_SIZE], from[DLPACK_PY_TEXT_SIZE];
    int32_t i = 0;

    if (!dlpack_py_is_cpu_readable(dst->device) || !dlpack_py_is_cpu_readable(src->device))
        return dlpack_py_impl_refuse(error, "cannot copy from %s to %s, memory that the CPU can read was wanted",
                                     dlpack_py_device_text(src->device, from), dlpack_py_device_text(dst->device, to));
    if (dlpack_py_dtype(dst) != dlpack_py_dtype(src))
        return dlpack_py_impl_refuse(error, "cannot copy dtype %s to dtype %s, equal dtypes were wanted",
                                     dlpack_py_dtype_text(dlpack_py_dtype(src), from),
                                     dlpack_py_dtype_text(dlpack_py_dtype(dst), to));
    if (dst->ndim != src->ndim)
        return dlpack_py_impl_refuse(error, "cannot copy ndim %" PRId32 " to %" PRId32 ", equal shapes were wanted",
                                     src->ndim, dst->ndim);
    while (i < src->ndim && dst->shape[i] == src->shape[i])
        i++;
    if (i < src->ndim)
        return dlpack_py_impl_refuse(
            error, "cannot copy shape[%" PRId32 "] %" PRId64 " to %" PRId64 ", equal shapes were wanted", i,
            src->shape[i], dst->shape[i]);
    if (dlpack_py_overlap(dst, flags, src, flags))
        return dlpack_py_impl_refuse(error,
                                     "cannot copy from address 0x%" PRIxPTR " to 0x%" PRIxPTR
                                     ": the tensors may share memory, separate memory was wanted",
                                     (uintptr_t)dlpack_py_impl_first(src), (uintptr_t)dlpack_py_impl_first(dst));
    dlpack_py_impl_copy(dst, src, flags);
    return 0;
}

/* ---- 1.6 Streams and requirements --------------------------------------- */

#define DLPACK_PY_STREAM_NONE 0    /* None, or not given */
#define DLPACK_PY_STREAM_NO_SYNC 1 /* -1: do not synchronize */
#define DLPACK_PY_STREAM_HANDLE 2  /* an integer from 0 to the pointer's width */

/* The argument stream of __dlpack__ (S1). */
typedef struct dlpack_py_stream {
    int32_t kind;     /* DLPACK_PY_STREAM_... */
    uintptr_t handle; /* of DLPACK_PY_STREAM_HANDLE */
} dlpack_py_stream;

/* Checks that a consumer may ask for this stream with data on this device (P6, S2, S3). CPU memory accepts no handle;
 * devices other than CUDA and ROCm accept any handle. Returns 0, or -1 with ValueError. */
static inline int
dlpack_py_impl_check_stream(DLDevice device, const dlpack_py_stream *stream, dlpack_py_error *error)
{
    const char *wanted = NULL;
    char name[DLPACK_PY_TEXT_SIZE];

    if (stream->kind != DLPACK_PY_STREAM_HANDLE)
        return 0;
    switch ((int32_t)device.device_type) {
    case kDLCPU: wanted = "None (or -1)"; break;
    case kDLCUDA:
    case kDLCUDAHost:
    case kDLCUDAManaged:
        if (stream->handle == 0)
            wanted = "1 (legacy default), 2 (per-thread default) or a handle";
        break;
    case kDLROCM:
    case kDLROCMHost:
        if (stream->handle == 1 || stream->handle == 2)
            wanted = "0 (default) or a handle";
        break;
    default: break;
    }
    if (wanted == NULL)
        return 0;
    return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_VALUE_ERROR, "stream is %" PRIuPTR " for data on %s, %s was wanted",
                               stream->handle, dlpack_py_device_text(device, name), wanted);
}

/* A stream of a device, on which work on a tensor may be pending. */
typedef struct dlpack_py_work_stream {
    uintptr_t handle;  /* the runtime's handle, as it crosses the protocol (S2, S3) */
    int32_t device_id; /* the device that the stream is on, or DLPACK_PY_CURRENT_DEVICE */
} dlpack_py_work_stream;

#define DLPACK_PY_CURRENT_DEVICE (-1) /* the device that is current on the calling thread */

#define DLPACK_PY_MAX_PENDING 8 /* pending streams of a tensor, at most */

#define DLPACK_PY_ANY_DEVICE (-1)
#define DLPACK_PY_SCALAR (-1)

/* Makes a managed tensor of an object that has no __dlpack__. Returns 0 and sets *out, which is owned by the caller;
 * returns 0 and leaves *out NULL where it knows no such object; or returns -1 with an exception, which the consumer
 * raises as it is. */
typedef int (*dlpack_py_fallback)(void *py_object, DLManagedTensorVersioned **out);

/* What a caller of dlpack_py_consume requires. All zero accepts any tensor that the CPU can read; dlpack_py_want_any
 * returns that. Requirements that contradict each other are SystemError at every call. */
typedef struct dlpack_py_want {
    uint32_t dtype;         /* DLPACK_PY_FLOAT32...; 0: any */
    const uint32_t *dtypes; /* or any of these, ended by 0 */
    int32_t ndim;           /* this rank, or the lower end of a range; DLPACK_PY_SCALAR for rank 0; 0: any */
    int32_t max_ndim;       /* upper end of the range; 0: ndim itself (ndim 0 with max_ndim n: 0 to n) */
    const int64_t *shape;   /* ndim extents, -1 free; needs a fixed rank; NULL: any */
    char order;             /* as dlpack_py_is_contiguous: 'C', 'F', 'A', 'K', 'R'; 0: any strides */
    char writable;          /* refuse memory that is read-only, may be read-only, or may overlap itself */
    int32_t device;         /* a DLDeviceType; 0: memory that the CPU can read; DLPACK_PY_ANY_DEVICE */
    size_t alignment;       /* of the first element, in bytes, a power of two; 0: the size of a number; 1: any */
    uint32_t options;       /* DLPACK_PY_COPY_IF_NEEDED ... */
    const char *name;       /* of the argument, put before messages: "out: dtype is ..."; NULL: none */
    dlpack_py_fallback
        fallback; /* takes an object without __dlpack__: dlpack_buffer_fallback, for example; NULL: none */
} dlpack_py_want;

#define DLPACK_PY_COPY_IF_NEEDED 1u     /* copy where a copy meets the requirement; writes do not reach the producer */
#define DLPACK_PY_LEGACY_IS_WRITABLE 2u /* accept a legacy capsule, which cannot say read-only, as writable (C7) */
#define DLPACK_PY_OVERLAP_IS_FINE 4u    /* writable accepts memory that may overlap itself */
#define DLPACK_PY_NOTHING_PENDING 8u    /* the caller promises: no work is pending; streams are not ordered (C5, S4) */
#define DLPACK_PY_NO_TABLE 16u          /* ask __dlpack__, also where the type has an exchange table (X9) */
#define DLPACK_PY_ARRAY_INTERFACE_TOO 32u /* dlpack_device_consume: accept __cuda_array_interface__ as well */

/* The values of dlpack_py_view.readonly. DLPACK_PY_READONLY_UNSAID: a legacy capsule does not say whether its memory is
 * writable (C7). Bit 0 of each value is the bit DLPACK_PY_FLAG_READ_ONLY: a value can be passed as flags of an export.
 */
#define DLPACK_PY_WRITABLE 0
#define DLPACK_PY_READONLY 1
#define DLPACK_PY_READONLY_UNSAID 0x101

/* No requirements: any tensor that the CPU can read. */
static inline dlpack_py_want
dlpack_py_want_any(void)
{
    dlpack_py_want want;
    memset(&want, 0, sizeof(want));
    return want;
}

/* Returns a want for the dtype, rank, shape and device type of t: for example for out=, where t is the tensor of x.
 * want.shape points to t->shape. Where the CPU can read t, want accepts all memory that the CPU can read. */
static inline dlpack_py_want
dlpack_py_want_like(const DLTensor *t)
{
    dlpack_py_want want = dlpack_py_want_any();
    want.dtype = dlpack_py_dtype(t);
    want.ndim = t->ndim == 0 ? DLPACK_PY_SCALAR : t->ndim;
    want.shape = t->shape;
    want.device = dlpack_py_is_cpu_readable(t->device) ? 0 : (int32_t)t->device.device_type;
    return want;
}

/* Checks requirements with a range of ranks or a list of dtypes, and refuses those that make no sense. */
static inline int
dlpack_py_impl_check_range(const dlpack_py_want *want, dlpack_py_error *error)
{
    const char *field, *wish;
    const uint32_t *list = want->dtypes;
    uint32_t dtype = want->dtype;
    long value;

    while (list != NULL && *list != 0 && (dtype == 0 || (dtype & 0xff0000u) != 0))
        dtype = *list++;
    if (want->order != 0 && strchr("CFAKR", want->order) == NULL)
        return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_SYSTEM_ERROR,
                                   "want: order is '%c', 'C', 'F', 'A', 'K' or 'R' was wanted", want->order);
    if (dtype != 0 && (dtype & 0xff0000u) == 0) {
        field = "dtype";
        wish = "a dtype such as DLPACK_PY_FLOAT32";
        value = (long)dtype;
    }
    else if ((want->alignment & (want->alignment - 1)) != 0) {
        field = "alignment";
        wish = "a power of two";
        value = (long)want->alignment;
    }
    else if (want->max_ndim < 0 || (want->max_ndim > 0 && want->max_ndim < want->ndim)) {
        field = "max_ndim";
        wish = "ndim or more";
        value = want->max_ndim;
    }
    else if (want->ndim < DLPACK_PY_SCALAR ||
             (want->shape != NULL && (want->ndim == 0 || (want->max_ndim != 0 && want->max_ndim != want->ndim)))) {
        field = "ndim";
        wish = "a rank (one fixed rank where shape is set)";
        value = want->ndim;
    }
    else {
        return 0;
    }
    return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_SYSTEM_ERROR, "want: %s is %ld, %s was wanted", field, value, wish);
}

/* Checks that the requirements are valid and consistent (C9). Returns 0, or -1 with SystemError. */
static inline int
dlpack_py_impl_check_want(const dlpack_py_want *want, dlpack_py_error *error)
{
    switch (want->order) {
    case 0:
    case 'A':
    case 'C':
    case 'F':
    case 'K':
    case 'R':
        if (want->max_ndim == 0 && want->dtypes == NULL && want->ndim >= DLPACK_PY_SCALAR &&
            (want->shape == NULL || want->ndim != 0) && (want->alignment & (want->alignment - 1)) == 0 &&
            (want->dtype == 0 || (want->dtype & 0xff0000u) != 0))
            return 0;
        break;
    default: break;
    }
    return dlpack_py_impl_check_range(want, error);
}

/* Checks that want accepts the dtype of a tensor. Returns 0, or -1 with BufferError that lists the wanted dtypes. */
static inline int
dlpack_py_impl_check_wanted_dtype(const DLTensor *t, const dlpack_py_want *want, dlpack_py_error *error)
{
    const uint32_t one[2] = {want->dtype, 0}, *lists[2];
    char came[DLPACK_PY_TEXT_SIZE], name[DLPACK_PY_TEXT_SIZE], wanted[120] = "";
    size_t length = 0;
    int k;

    lists[0] = one;
    lists[1] = want->dtypes != NULL ? want->dtypes : one + 1;
    for (k = 0; k < 2; k++) {
        for (; *lists[k] != 0; lists[k]++) {
            if (*lists[k] == dlpack_py_dtype(t))
                return 0;
            if (length < sizeof(wanted) - DLPACK_PY_TEXT_SIZE)
                length += (size_t)snprintf(wanted + length, sizeof(wanted) - length, "%s%s", length > 0 ? " or " : "",
                                           dlpack_py_dtype_text(*lists[k], name));
            else if (strchr(wanted, '.') == NULL)
                snprintf(wanted + length, sizeof(wanted) - length, " or ...");
        }
    }
    if (length == 0)
        return 0;
    return dlpack_py_impl_refuse(error, "dtype is %s, %s was asked for", dlpack_py_dtype_text(dlpack_py_dtype(t), came),
                                 wanted);
}

/* Refuses the device of a tensor. Returns -1. */
static inline int
dlpack_py_impl_refuse_device(const DLTensor *t, const dlpack_py_want *want, dlpack_py_error *error)
{
    char came[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE] = "memory that the CPU can read";
    int length;
    const char *name = dlpack_py_impl_device_name(want->device, &length);

    if (want->device != 0 && length > 0)
        snprintf(wanted, sizeof(wanted), "%.*s", length, name);
    else if (want->device != 0)
        snprintf(wanted, sizeof(wanted), "device type %" PRId32, want->device);
    return dlpack_py_impl_refuse(error, "device is %s, %s was asked for", dlpack_py_device_text(t->device, came),
                                 wanted);
}

/* Checks rank and extents. */
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
            return dlpack_py_impl_refuse(error, "ndim is %" PRId32 ", %" PRId32 " was asked for", t->ndim, lowest);
        return dlpack_py_impl_refuse(error, "ndim is %" PRId32 ", %" PRId32 " to %" PRId32 " was asked for", t->ndim,
                                     lowest, highest);
    }
    for (i = 0; want->shape != NULL && lowest == highest && i < t->ndim; i++) {
        if (want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return dlpack_py_impl_refuse(error, "shape[%" PRId32 "] is %" PRId64 ", %" PRId64 " was asked for", i,
                                         t->shape[i], want->shape[i]);
    }
    return 0;
}

/* Refuses the strides of a tensor, and names the first that is wrong. Returns -1. */
static inline int
dlpack_py_impl_refuse_strides(const DLTensor *t, char order, dlpack_py_error *error)
{
    int64_t storage[DLPACK_PY_MAX_NDIM], wanted;
    const int64_t *strides = dlpack_py_impl_strides(t, storage);
    int32_t i;

    if (order == 'K')
        return dlpack_py_impl_refuse(error,
                                     "strides are not compact in any order of the dimensions, order 'K' was asked for");
    i = dlpack_py_impl_wrong_stride(t, strides, order, &wanted);
    return dlpack_py_impl_refuse(error, "strides[%" PRId32 "] is %" PRId64 ", %" PRId64 " was asked for by order '%c'",
                                 i, strides[i], wanted, order);
}

/* dlpack_py_meets, for requirements that were checked. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_meets(const DLTensor *t, int readonly, const dlpack_py_want *want, dlpack_py_error *error)
{
    const int32_t device = (int32_t)t->device.device_type;
    const uint32_t dtype = DLPACK_PY_DTYPE((uint32_t)t->dtype.code, (uint32_t)t->dtype.bits, (uint32_t)t->dtype.lanes);
    const uintptr_t first = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
    size_t alignment;
    unsigned bits;

    if (want->device == 0 ? device != (int32_t)kDLCPU && !dlpack_py_is_cpu_readable(t->device)
                          : want->device != DLPACK_PY_ANY_DEVICE && want->device != device)
        return dlpack_py_impl_refuse_device(t, want, error);
    if ((want->dtype != dtype && dlpack_py_impl_check_wanted_dtype(t, want, error) < 0) ||
        dlpack_py_impl_check_rank(t, want, error) < 0)
        return -1;

    alignment = want->alignment;
    if (alignment == 0 && first % 16 != 0) { /* the size of one number; complex elements and lanes have several */
        bits = dlpack_py_impl_is_complex(t->dtype) ? t->dtype.bits / 2u : t->dtype.bits;
        alignment = bits % 8 == 0 && (bits & (bits - 1)) == 0 ? bits / 8 : 1;
    }
    if (readonly == DLPACK_PY_READONLY_UNSAID && (want->options & DLPACK_PY_LEGACY_IS_WRITABLE) != 0)
        readonly = DLPACK_PY_WRITABLE;
    if (want->order != 0 && !dlpack_py_is_contiguous(t, want->order))
        dlpack_py_impl_refuse_strides(t, want->order, error);
    else if (alignment > 1 && first % alignment != 0 && !dlpack_py_impl_is_empty(t) &&
             dlpack_py_impl_has_address(t->device))
        dlpack_py_impl_refuse(error, "data is at address 0x%" PRIxPTR ", alignment to %lu bytes was asked for", first,
                              (unsigned long)alignment);
    else if (want->writable && readonly != DLPACK_PY_WRITABLE)
        dlpack_py_impl_refuse(error, "data is read-only, writable memory was asked for%s",
                              readonly == DLPACK_PY_READONLY ? ""
                                                             : " (a legacy capsule has no read-only flag: "
                                                               "DLPACK_PY_LEGACY_IS_WRITABLE accepts it)");
    else if (want->writable && (want->order == 0 || want->order == 'R') && /* else the tensor is compact */
             (want->options & DLPACK_PY_OVERLAP_IS_FINE) == 0 && dlpack_py_impl_overlaps_itself(t))
        dlpack_py_impl_refuse(error, "elements may share memory, writable memory without overlap was asked for");
    else
        return 0;
    if (error != NULL)
        error->copy_helps = 1;
    return -1;
}

/* Checks that a tensor meets the requirements (C9). The requirements that a copy of the data can meet are checked last:
 * where such a requirement fails, error->copy_helps is 1.
 *
 * t          has been validated
 * readonly   DLPACK_PY_WRITABLE, DLPACK_PY_READONLY or DLPACK_PY_READONLY_UNSAID
 * want       the requirements; NULL: {0}
 *
 * Returns 0, or -1 with BufferError that names the wrong value and what was wanted, or with SystemError where the
 * requirements contradict each other. Needs no thread state.
 */
static inline int
dlpack_py_meets(const DLTensor *t, int readonly, const dlpack_py_want *want, dlpack_py_error *error)
{
    const dlpack_py_want any = dlpack_py_want_any();
    if (want == NULL)
        want = &any;
    return dlpack_py_impl_check_want(want, error) < 0 ? -1 : dlpack_py_impl_meets(t, readonly, want, error);
}

#endif /* DLPACK_PY_TENSOR_LAYER */

#if !defined(DLPACK_PY_NO_PYTHON) && !defined(DLPACK_PY_AVAILABLE)
#  if !defined(PYPY_VERSION) && PY_VERSION_HEX >= 0x03090000
#    define DLPACK_PY_AVAILABLE 1
#  elif defined(DLPACK_PY_OPTIONAL)
#    define DLPACK_PY_AVAILABLE 0
#  else
#    error "dlpack_py.h needs CPython 3.9 or newer; define DLPACK_PY_OPTIONAL to compile without DLPack elsewhere"
#  endif
#endif

#if !defined(DLPACK_PY_NO_PYTHON) && !defined(DLPACK_PY_PROTOCOL_LAYER) && DLPACK_PY_AVAILABLE
#define DLPACK_PY_PROTOCOL_LAYER

#if defined(Py_LIMITED_API) && (Py_LIMITED_API + 0 < 0x030C0000 || PY_VERSION_HEX < 0x030C0000)
#  error "dlpack_py.h needs Py_LIMITED_API 0x030C0000 or newer, built with Python 3.12 or newer, for vectorcalls"
#endif

/* ---- 2.1 The structs and the one-call functions ------------------------- */

/* A consumed tensor. Read it, then release it. An empty view has rank 0, data and shape NULL, and nothing to release.
 * A view is empty when it is all zero, after a failed call, and after its release: releasing it again is harmless.
 *
 * A view can be moved (dlpack_py_move), not copied: tensor.strides may point into the view. For a view in an object,
 * tp_traverse calls dlpack_py_traverse, and tp_dealloc calls dlpack_py_release. tp_clear may release the view only if
 * no other code can read the data after tp_clear. */
typedef struct dlpack_py_view {
    DLTensor tensor;    /* strides are never NULL where ndim > 0 (C10); add byte_offset, or use dlpack_py_data */
    uint64_t flags;     /* DLPACK_PY_FLAG_* of the producer, unknown flags too (C8); 0 from a legacy capsule */
    int32_t readonly;   /* DLPACK_PY_WRITABLE (0), DLPACK_PY_READONLY or DLPACK_PY_READONLY_UNSAID (C7) */
    int32_t overlaps;   /* 1: writing to one element may change others, as dlpack_py_impl_overlaps_itself says */
    int32_t form;       /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY: the type of *managed */
    void *managed;      /* the managed tensor, owned; NULL: nothing to release */
    int64_t *allocated; /* row-major strides where the producer's are NULL (D4) and the rank is above 8; NULL: none */
    int64_t strides[8]; /* row-major strides where the producer's are NULL and the rank is 8 or less */
} dlpack_py_view;

#define DLPACK_PY_VERSIONED 1 /* DLManagedTensorVersioned */
#define DLPACK_PY_LEGACY 2    /* DLManagedTensor */

/* The arguments of __dlpack__, or of a consumer's request. All zero is a call without arguments. */
typedef struct dlpack_py_request {
    dlpack_py_stream stream;
    DLPackVersion max_version; /* 0.0: not given */
    int32_t has_device;        /* device was given */
    DLDevice device;
    int32_t copy; /* DLPACK_PY_COPY_... */
} dlpack_py_request;

#define DLPACK_PY_COPY_AS_NEEDED 0 /* None */
#define DLPACK_PY_COPY_ALWAYS 1    /* True */
#define DLPACK_PY_COPY_NEVER 2     /* False */

typedef struct dlpack_py_embedded dlpack_py_embedded; /* 3.1 */
typedef struct dlpack_py_device dlpack_py_device;     /* 2.4 */

/* How many exports of an object live: for an object that can move or free its memory, as bytearray does. Part of the
 * object, zero at first. */
typedef struct dlpack_py_exports {
    dlpack_py_impl_word count; /* changed atomically; read it by dlpack_py_exports_count */
} dlpack_py_exports;

/* The number of exports whose deleter has not run, and of copies that are being made. Needs no thread state. While the
 * number is not 0, refuse to move or free the memory. Without a GIL, do the check and the move in one critical section
 * on the object that describe gets as self: the header calls describe, and makes the export, inside this critical
 * section. */
static inline size_t
dlpack_py_exports_count(const dlpack_py_exports *exports)
{
    return (size_t)DLPACK_PY_IMPL_LOAD((dlpack_py_impl_word *)(uintptr_t)&exports->count);
}

/* What a producer exports, and how. Zero what is not needed. */
typedef struct dlpack_py_offer {
    PyObject *owner;                /* keeps the data alive; each export holds a reference until its deleter has run */
    const DLTensor *tensor;         /* in memory that the CPU can read, or of device */
    uint64_t flags;                 /* DLPACK_PY_FLAG_* that describe the data */
    uint32_t options;               /* DLPACK_PY_OFFER_... */
    dlpack_py_exports *exports;     /* in the owner, counts its exports; then embedded is not used; NULL: not counted */
    int32_t is_copy;                /* 1: the tensor is a copy that was made for this request, and is flagged so (P4) */
    dlpack_py_embedded *embedded;   /* managed tensors in the owner, exported without an allocation; NULL: allocate */
    const dlpack_py_device *device; /* whose memory the data is in, or whose streams work on it; NULL: none */
    /* The streams on which work on the data may be queued. This work is done before the consumer's work, or before
     * the host reads. Other threads run while the host waits: they must not move the data. */
    const dlpack_py_work_stream *pending;
    size_t pending_count; /* DLPACK_PY_MAX_PENDING at most */
} dlpack_py_offer;

#define DLPACK_PY_OFFER_UNSAID 1u          /* the data came from a legacy capsule: a legacy export is allowed (C7) */
#define DLPACK_PY_OFFER_REFUSE_NEGATIVE 2u /* refuse a negative stride: PyTorch would end the process (D11) */
#define DLPACK_PY_OFFER_COPY_NEGATIVE 4u   /* a negative stride requires a copy */
#define DLPACK_PY_OFFER_NONE_IS_NO_SYNC 8u /* stream=None on a device means -1: order no streams, as in PyTorch */
#define DLPACK_PY_OFFER_COPY_READ_ONLY 16u /* read-only data requires a copy: PyTorch writes to read-only data */

/* dlpack_py_produce: answer a call of __dlpack__.
 *
 * owner   keeps the data alive; held until the deleter has run (P9)
 * t       the tensor, in memory that the CPU can read. Struct, shape and strides are copied, data is not. An argument
 *         may be an object whose __index__ runs Python code, and other threads run while a large copy is made: where
 *         they could move or free the memory, use dlpack_py_produce_described and count exports.
 * flags   DLPACK_PY_FLAG_* that describe the data; 0: none
 * args, nargs, kwnames   as METH_FASTCALL | METH_KEYWORDS passes them
 *
 * Returns a new capsule, or NULL with TypeError or ValueError (malformed request: P1, P4, P6), BufferError (the request
 * cannot be met: D8, P3, P5, P7) or MemoryError; then no reference is kept. The deleter needs no thread state (K5).
 */
static inline PyObject *
dlpack_py_produce(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames);

/* As dlpack_py_produce, from four objects, each of which may be NULL for "not given": for Cython, pybind11 and
 * METH_VARARGS. */
static inline PyObject *
dlpack_py_produce_args(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *stream, PyObject *max_version,
                       PyObject *dl_device, PyObject *copy);

/* A function of the author, which fills an offer for an object.
 *
 * self      the object
 * request   what a call of __dlpack__ asks for, after its arguments were read; NULL for __dlpack_device__, for an
 *           exchange table, and for what dlpack_buffer.h gives
 * offer     out: at first all zero, except for owner, which is self. The tensor, shape, strides and pending streams of
 *           the offer must live until the function that called describe returns: store them in self, not on the stack
 *
 * Returns 0, or -1 to refuse, as a rule with BufferError (P7).
 */
typedef int (*dlpack_py_describe)(PyObject *self, const dlpack_py_request *request, dlpack_py_offer *offer);

/* dlpack_py_produce_described: as dlpack_py_produce, with a function describe in place of owner, t and flags. */
static inline PyObject *
dlpack_py_produce_described(PyObject *self, dlpack_py_describe describe, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames);

/* Answer a call of __dlpack_device__ for an object that a function describes (P8). */
static inline PyObject *
dlpack_py_impl_produce_described_device(PyObject *self, dlpack_py_describe describe);

/* Define the two methods for DLPACK_PY_METHODS, name_dlpack and name_dlpack_device, at file scope, with a semicolon. */
#define DLPACK_PY_DESCRIBED(name, describe)                                                                    \
    static PyObject *name##_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames) \
    {                                                                                                          \
        return dlpack_py_produce_described(self, (describe), args, nargs, kwnames);                            \
    }                                                                                                          \
    static PyObject *name##_dlpack_device(PyObject *self, PyObject *unused)                                    \
    {                                                                                                          \
        (void)unused;                                                                                          \
        return dlpack_py_impl_produce_described_device(self, (describe));                                      \
    }                                                                                                          \
    struct dlpack_py_impl_semicolon

/* Answer a call of __dlpack_device__ from the tensor that __dlpack__ exports (P8). Returns a new tuple of two ints,
 * or NULL with an exception. */
static inline PyObject *
dlpack_py_produce_device(const DLTensor *t);

/* __dlpack_device__ for a type whose data is always CPU memory: METH_NOARGS. */
static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused);

/* Casts a METH_FASTCALL | METH_KEYWORDS function; one with another signature is an error or a warning. */
typedef PyObject *(*dlpack_py_impl_method)(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
#ifdef __cplusplus
#  define DLPACK_PY_IMPL_METHOD(function) \
    reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)(void)>(static_cast<dlpack_py_impl_method>(function)))
#else
#  define DLPACK_PY_IMPL_METHOD(function) ((PyCFunction)(void (*)(void))(1 ? (function) : (dlpack_py_impl_method)0))
#endif

/* The two entries of a PyMethodDef table. dlpack: METH_FASTCALL | METH_KEYWORDS; device: METH_NOARGS. */
#define DLPACK_PY_METHODS(dlpack, device)                                                                  \
    {"__dlpack__", DLPACK_PY_IMPL_METHOD(dlpack), METH_FASTCALL | METH_KEYWORDS,                           \
     PyDoc_STR("__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n" \
               "Export the data as a DLPack capsule.")},                                                   \
    {                                                                                                      \
        "__dlpack_device__", (device), METH_NOARGS,                                                        \
            PyDoc_STR("__dlpack_device__($self, /)\n--\n\nThe DLPack device (type, id) of the data.")      \
    }

/* dlpack_py_wrap: a managed tensor over memory that no Python object owns.
 *
 * t         the tensor; struct, shape and strides are copied, data is not
 * flags     DLPACK_PY_FLAG_* that describe the data
 * context   passed to free_fn once, when the consumer releases the tensor, on any thread, also without an interpreter;
 *           free_fn may be NULL
 *
 * Returns a managed tensor, owned by the caller until its deleter is called or dlpack_py_capsule_steal takes it.
 * Returns NULL where there is no memory or t is malformed (dlpack_py_validate says how); then the caller keeps
 * context. Needs no thread state and sets no exception.
 */
static inline DLManagedTensorVersioned *
dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context, void (*free_fn)(void *context));

/* dlpack_py_consume: take the tensor that obj offers, if it meets the requirements.
 *
 * obj     an object with __dlpack__, or a DLPack capsule of either form (C6)
 * want    the requirements; NULL: any tensor that the CPU can read
 * v       out: on success owns the tensor until dlpack_py_release(v)
 *
 * Returns 0, or -1 with BufferError (a requirement is not met: C9), AttributeError (no __dlpack__), TypeError (the
 * method returned no DLPack capsule: C6), ValueError (the capsule was consumed before: K4), or the producer's
 * exception. On -1 the view is empty, and a capsule that was not taken still owns its tensor (K1).
 */
static inline int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);

/* As dlpack_py_consume, with a request. The view meets request->device, where has_device is 1, and request->copy (C3).
 * request->stream is only passed to __dlpack__: to order streams, use dlpack_device_consume. request->max_version is
 * ignored. */
static inline int
dlpack_py_consume_request(PyObject *obj, const dlpack_py_request *request, const dlpack_py_want *want,
                          dlpack_py_view *v);

/* dlpack_py_borrow: as dlpack_py_consume, for the length of a call.
 *
 * Release the view before Python code runs and before obj can be freed. Without a GIL, other threads run Python code at
 * any time: there, borrow only memory that does not move while obj lives. dlpack_py_borrow may run Python code: where a
 * function has several arguments, call dlpack_py_consume for all but the last, and borrow only the last. Where the type
 * has an exchange table, the call allocates nothing and takes no reference; otherwise the call is dlpack_py_consume. A
 * borrowed tensor has no read-only flag (X3): v->readonly is DLPACK_PY_READONLY_UNSAID. Where want->writable is set,
 * the call is dlpack_py_consume.
 */
DLPACK_PY_IMPL_SHARED int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);

/* dlpack_py_from_dlpack: the first half of a library's from_dlpack(x, /, *, device=None, copy=None), from the call's
 * arguments to a view. The second half puts the view into an array of the library.
 *
 * args, nargs, kwnames   as METH_FASTCALL | METH_KEYWORDS passes them
 *
 * Returns as dlpack_py_consume, and -1 with TypeError or ValueError for malformed arguments. device is None, a tuple
 * (type, id) or text such as "cpu" (C3).
 */
static inline int
dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                      dlpack_py_view *v);

/* As dlpack_py_from_dlpack, from objects; device and copy may be NULL for "not given". */
static inline int
dlpack_py_from_dlpack_args(PyObject *x, PyObject *device, PyObject *copy, const dlpack_py_want *want,
                           dlpack_py_view *v);

/* dlpack_py_allocate_like: memory for a result, from the library of an argument.
 *
 * like        the argument; the exchange table of its type allocates, or else dlpack_py_allocate
 * prototype   its rank, shape, dtype and device are used
 * v           out: as dlpack_py_consume; on any device
 *
 * Returns 0, or -1 with BufferError, MemoryError or the library's exception.
 */
DLPACK_PY_IMPL_SHARED int
dlpack_py_allocate_like(PyObject *like, const DLTensor *prototype, dlpack_py_view *v);

/* dlpack_py_return_like_steal: a result as an array of the library of an argument.
 *
 * like   the argument; the exchange table of its type makes the array, or else the from_dlpack of its array
 *        namespace, of the module of its type, or of the package around that
 * v      the array's data; stolen, also on failure
 *
 * Returns a new reference; NULL with ValueError (a borrowed view), TypeError (no such from_dlpack), MemoryError, or the
 * library's exception.
 */
DLPACK_PY_IMPL_SHARED PyObject *
dlpack_py_return_like_steal(PyObject *like, dlpack_py_view *v);

/* The address of the first element: tensor.data + tensor.byte_offset (D1). */
static inline void *
dlpack_py_data(const dlpack_py_view *v);

/* Release a view: calls the producer's deleter. A second release does nothing. Two threads must not release or use one
 * view at the same time. May be called on any thread, with or without a thread state; keeps the current exception. A
 * call without a thread state may wait for the GIL: the caller must not hold a lock that an attached thread waits for.
 */
static inline void
dlpack_py_release(dlpack_py_view *v);

/* Move a view: afterwards from is empty, and to owns the tensor. to is empty before, or not initialized. */
static inline void
dlpack_py_move(dlpack_py_view *to, dlpack_py_view *from);

/* Does obj offer a tensor, as PyObject_CheckBuffer asks for buffers? Returns 1 or 0. Sets no exception, and keeps the
 * current exception; an error of the look-up other than AttributeError is reported as unraisable. A request may still
 * be refused. */
static inline int
dlpack_py_check(PyObject *obj);

/* ---- 2.2 Differences of Pythons, and exceptions ------------------------- */

/* Private functions of CPython that save time. 0 replaces them by public ones. */
#ifndef DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
#  ifdef Py_LIMITED_API
#    define DLPACK_PY_IMPL_HAS_TYPE_LOOKUP 0
#  else
#    define DLPACK_PY_IMPL_HAS_TYPE_LOOKUP 1
#  endif
#endif

/* Facts about a type are remembered while its version tag does not change, from 3.11 on: older Pythons reuse tags. A
 * GIL guards them; without a GIL they are written once and then only read. */
#define DLPACK_PY_IMPL_HAS_TYPE_TAGS (DLPACK_PY_IMPL_HAS_TYPE_LOOKUP && PY_VERSION_HEX >= 0x030B0000)
#ifndef DLPACK_PY_IMPL_HAS_TYPE_SLOTS
#  ifdef Py_GIL_DISABLED
#    define DLPACK_PY_IMPL_HAS_TYPE_SLOTS 0
#  else
#    define DLPACK_PY_IMPL_HAS_TYPE_SLOTS DLPACK_PY_IMPL_HAS_TYPE_TAGS
#  endif
#endif

/* The fast paths of section 3.7. The functions that they replace for most calls are compiled for small size. */
#define DLPACK_PY_IMPL_HAS_FAST_PATHS (DLPACK_PY_IMPL_HAS_TYPE_SLOTS && !DLPACK_PY_PLAIN)
#if DLPACK_PY_IMPL_HAS_FAST_PATHS
#  define DLPACK_PY_IMPL_GENERAL DLPACK_PY_IMPL_RARE
#else
#  define DLPACK_PY_IMPL_GENERAL DLPACK_PY_IMPL_SHARED
#endif

/* Size and items of a tuple; the type is not checked. */
#ifdef Py_LIMITED_API
#  define DLPACK_PY_IMPL_TUPLE_SIZE(tuple) PyTuple_Size(tuple)
#  define DLPACK_PY_IMPL_TUPLE_ITEM(tuple, i) PyTuple_GetItem(tuple, i)
#else
#  define DLPACK_PY_IMPL_TUPLE_SIZE(tuple) (((PyVarObject *)(tuple))->ob_size)
#  define DLPACK_PY_IMPL_TUPLE_ITEM(tuple, i) (((PyTupleObject *)(tuple))->ob_item[i])
#endif

/* The text of a str as UTF-8; NULL with an exception. The bytes of an ASCII str follow its struct. */
#ifdef Py_LIMITED_API
#  define DLPACK_PY_IMPL_TEXT(string, bytes) PyUnicode_AsUTF8AndSize(string, bytes)
#else
#  define DLPACK_PY_IMPL_TEXT(string, bytes)                                                               \
    (((PyASCIIObject *)(string))->state.compact && ((PyASCIIObject *)(string))->state.ascii                \
         ? (*(bytes) = ((PyASCIIObject *)(string))->length, (const char *)((PyASCIIObject *)(string) + 1)) \
         : PyUnicode_AsUTF8AndSize(string, bytes))
#endif

/* Without a GIL a critical section guards a capsule. */
#ifdef Py_GIL_DISABLED
#  define DLPACK_PY_IMPL_LOCK(object) Py_BEGIN_CRITICAL_SECTION(object)
#  define DLPACK_PY_IMPL_UNLOCK() Py_END_CRITICAL_SECTION()
#else
#  define DLPACK_PY_IMPL_LOCK(object) {
#  define DLPACK_PY_IMPL_UNLOCK() }
#endif

/* The id of the process, never 0: a different one shows a fork. And a sleep of a millisecond. */
#ifdef _WIN32
#  ifdef __cplusplus
extern "C"
#  endif
    __declspec(dllimport) void __stdcall
    Sleep(unsigned long milliseconds); /* without windows.h and its macros */
#  define DLPACK_PY_IMPL_PROCESS() ((dlpack_py_impl_word)1)
#  define DLPACK_PY_IMPL_SLEEP() Sleep(1)
#else
#  include <poll.h>
#  include <unistd.h>
#  define DLPACK_PY_IMPL_PROCESS() ((dlpack_py_impl_word)getpid())
#  define DLPACK_PY_IMPL_SLEEP() ((void)poll(NULL, 0, 1))
#endif

#if PY_VERSION_HEX < 0x030C0000
/* Before 3.12: is holder, the thread state that holds the GIL, the one that this thread is attached with? holder may
 * belong to another thread, and PyGILState may not know the state of this thread in a subinterpreter. Where
 * subinterpreters exist, the thread id of holder is compared. Known limit: holder may be freed while its thread id is
 * read. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_attached_with(const PyThreadState *holder, const PyThreadState *own)
{
    return own != NULL && PyInterpreterState_Head() != PyInterpreterState_Main() &&
           holder->thread_id == PyThread_get_thread_ident();
}
#endif

/* The thread state that this thread is attached with; NULL: none. Any thread, also without an interpreter.
 * PyGILState_Check would answer for the main interpreter only. */
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
    PyThreadState *holder = _PyThreadState_UncheckedGet(), *own = PyGILState_GetThisThreadState();
    return holder == NULL || holder == own || dlpack_py_impl_is_attached_with(holder, own) ? holder : NULL;
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

/* Py_XDECREF as a function, for functions that are compiled for small size. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_xdecref(PyObject *object)
{
    Py_XDECREF(object);
}

/* The dictionary of the first class in a type's MRO that has one of two names. Returns a new reference, or NULL with or
 * without an exception. */
static inline PyObject *
dlpack_py_impl_first_with(PyTypeObject *type, PyObject *name, PyObject *other)
{
    PyObject *bases = PyObject_GetAttrString((PyObject *)type, "__mro__"), *names = NULL;
    Py_ssize_t i, count = bases != NULL && PyTuple_Check(bases) ? DLPACK_PY_IMPL_TUPLE_SIZE(bases) : 0;
    int has = 0;

    for (i = 0; i < count && has == 0; i++) {
        dlpack_py_impl_xdecref(names);
        names = PyObject_GetAttrString(DLPACK_PY_IMPL_TUPLE_ITEM(bases, i), "__dict__");
        has = names == NULL ? -1 : PySequence_Contains(names, name);
        if (has == 0)
            has = PySequence_Contains(names, other);
    }
    dlpack_py_impl_xdecref(bases);
    if (has <= 0)
        Py_CLEAR(names);
    return names;
}

/* Looks a name up on a type and its bases, as CPython does for special methods. Returns a new reference, or NULL with
 * or without an exception. */
static inline PyObject *
dlpack_py_impl_type_lookup(PyTypeObject *type, PyObject *name)
{
#if !DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
    PyObject *names = dlpack_py_impl_first_with(type, name, name);
    PyObject *found = names == NULL ? NULL : PyObject_GetItem(names, name);
    Py_XDECREF(names);
    return found;
#elif PY_VERSION_HEX >= 0x030D0000
    return _PyType_LookupRef(type, name);
#else
    PyObject *found = _PyType_Lookup(type, name);
    Py_XINCREF(found);
    return found;
#endif
}

/* Sets an attribute of a type, also of a static or immutable one. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_type_set(PyTypeObject *type, PyObject *name, PyObject *value)
{
#ifndef Py_LIMITED_API
    int is_mutable = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
    int failed;
#  ifdef Py_TPFLAGS_IMMUTABLETYPE
    is_mutable = is_mutable && !PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE);
#  endif
    if (!is_mutable) {
        failed = PyDict_SetItem(type->tp_dict, name, value);
        PyType_Modified(type);
        return failed;
    }
#endif
    return PyObject_SetAttr((PyObject *)type, name, value);
}

#if DLPACK_PY_IMPL_HAS_TYPE_TAGS
/* The version tag of a type. Changes when the type or a base changes; no other type gets this tag; 0: no tag. */
static inline unsigned int
dlpack_py_impl_type_tag(PyTypeObject *type)
{
#  if PY_VERSION_HEX < 0x030D0000 /* from 3.13 on an invalid tag is 0 */
    if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG))
        return 0;
#  endif
#  ifdef Py_GIL_DISABLED
    return _Py_atomic_load_uint_relaxed(&type->tp_version_tag);
#  else
    return type->tp_version_tag;
#  endif
}
#endif

/* A saved exception. Before 3.12 it is not normalized, because normalization runs Python code (K2); from 3.12 on only
 * value is used. */
typedef struct dlpack_py_impl_exception {
    PyObject *type, *value, *traceback;
} dlpack_py_impl_exception;

/* Saves the current exception, and clears it; all NULL where there is no exception. */
DLPACK_PY_IMPL_GENERAL dlpack_py_impl_exception
dlpack_py_impl_exception_save(void)
{
    dlpack_py_impl_exception e = {NULL, NULL, NULL};
    if (PyErr_Occurred()) {
#if PY_VERSION_HEX >= 0x030C0000
        e.value = PyErr_GetRaisedException();
#else
        PyErr_Fetch(&e.type, &e.value, &e.traceback);
#endif
    }
    return e;
}

/* Sets a saved exception as the current exception. Does nothing for all NULL. */
static inline void
dlpack_py_impl_exception_raise(dlpack_py_impl_exception e)
{
#if PY_VERSION_HEX >= 0x030C0000
    if (e.value != NULL)
        PyErr_SetRaisedException(e.value);
#else
    if (e.type != NULL)
        PyErr_Restore(e.type, e.value, e.traceback);
#endif
}

/* Normalizes an exception that is set aside. Returns its value, borrowed. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_exception_value(dlpack_py_impl_exception *e)
{
#if PY_VERSION_HEX < 0x030C0000
    PyErr_NormalizeException(&e->type, &e->value, &e->traceback);
    if (e->traceback != NULL)
        (void)PyException_SetTraceback(e->value, e->traceback);
#endif
    return e->value;
}

/* Drops an exception that is set aside. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_exception_clear(dlpack_py_impl_exception *e)
{
    Py_CLEAR(e->type);
    Py_CLEAR(e->value);
    Py_CLEAR(e->traceback);
}

/* After foreign code has run: reports an exception of the foreign code as unraisable, and restores the saved exception.
 */
DLPACK_PY_IMPL_SHARED void
dlpack_py_impl_exception_restore(dlpack_py_impl_exception e)
{
    if (PyErr_Occurred())
        PyErr_WriteUnraisable(NULL);
    dlpack_py_impl_exception_raise(e);
}

/* Drops a reference, and keeps the current exception. */
DLPACK_PY_IMPL_GENERAL void
dlpack_py_impl_decref(PyObject *object)
{
    dlpack_py_impl_exception saved;
#ifndef Py_GIL_DISABLED
    if (Py_REFCNT(object) > 1) { /* runs no code: no exception has to be looked for */
        Py_DECREF(object);
        return;
    }
#endif
    saved = dlpack_py_impl_exception_save();
    Py_DECREF(object);
    dlpack_py_impl_exception_restore(saved);
}

/* Raises an error of layer 1. Returns -1. */
DLPACK_PY_IMPL_RARE int
dlpack_py_raise(const dlpack_py_error *error)
{
    PyObject *const types[] = {PyExc_BufferError, PyExc_ValueError,   PyExc_TypeError,
                               PyExc_MemoryError, PyExc_RuntimeError, PyExc_SystemError};
    const int known = error->code >= DLPACK_PY_BUFFER_ERROR && error->code <= DLPACK_PY_SYSTEM_ERROR;
    /* "%s" replaces what is no UTF-8: a foreign name may be none, or may be cut within a character. */
    PyErr_Format(known ? types[error->code - 1] : PyExc_BufferError, "%s", error->text);
    return -1;
}

/* Raises in place of the current exception. %.200U in format is the repr() of value, cut off at 200 characters, or that
 * of its type where repr() fails. Returns -1. */
DLPACK_PY_IMPL_RARE int
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
    dlpack_py_impl_xdecref(text);
    return -1;
}

/* Is the current exception one that must be passed on: MemoryError, KeyboardInterrupt and the like? */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_is_fatal(void)
{
    return PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception);
}

/* ---- 2.3 Managed tensors and capsules ----------------------------------- */

/* Declarations for sections 2.3 to 2.5. The two functions are defined in section 3.2. */
typedef struct dlpack_py_plan dlpack_py_plan;
typedef struct dlpack_py_impl_gate dlpack_py_impl_gate;
typedef struct dlpack_py_impl_type dlpack_py_impl_type;
DLPACK_PY_IMPL_GENERAL dlpack_py_impl_gate *
dlpack_py_impl_gate_get(void);
static inline PyObject *
dlpack_py_impl_device_tuple(DLDevice device);

/* The state of one source file for one interpreter. Never freed (3.2). */
struct dlpack_py_impl_gate {
    PyInterpreterState *interpreter;
    dlpack_py_impl_word next;           /* dlpack_py_impl_gate *, in the list of this file */
    dlpack_py_impl_gate *retired;       /* in the list of gates that are gone, where leak checkers find them */
    dlpack_py_impl_word deleters;       /* bit 0: closing; above it, the count of deleters that are attaching */
    dlpack_py_impl_word gone;           /* the interpreter's modules have been torn down */
    dlpack_py_impl_word process;        /* the id of the process whose threads deleters counts */
    int registered;                     /* the exit callback is registered, or is being registered */
    struct dlpack_py_impl_cache *cache; /* freed when the interpreter is gone */
};

/* What a deleter of this file releases: an owner, or a context. manager_ctx of its managed tensors points to it. */
typedef struct dlpack_py_impl_keeper {
    PyObject *owner; /* a reference to drop through gate; NULL: none */
    dlpack_py_impl_gate *gate;
    dlpack_py_exports *exports; /* in the owner, counts this export; NULL: not counted */
    void *context;              /* passed to free_fn */
    void (*free_fn)(void *context);
    void *block; /* to be freed; NULL: embedded in the owner (3.1) */
} dlpack_py_impl_keeper;

/* Managed tensors of both forms as part of the author's object: an export then allocates only its capsule. The object
 * must not change shape, strides, memory or flags while an export lives. All exports share one struct, one shape array
 * and one strides array. A consumer may write to these three, because it owns its managed tensor: the write changes all
 * other and later exports. Embed only where no consumer writes to struct, shape or strides. */
struct dlpack_py_embedded {
    DLManagedTensorVersioned versioned;
    DLManagedTensor legacy;
    dlpack_py_impl_keeper keeper; /* owner is borrowed: the object that this is part of */
    uint32_t common;              /* the dtype, of a tensor that dlpack_py_impl_is_common accepts; 0: another */
};

/* An export: a managed tensor with its keeper, its shape and strides and, for a copy, its data, in one allocation. */
typedef struct dlpack_py_impl_export {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } managed;
    dlpack_py_impl_keeper keeper;
    /* int64_t shape[ndim], strides[ndim], then data */
} dlpack_py_impl_export;

/* Adds to a count of exports; NULL: there is none. */
static inline void
dlpack_py_impl_count(dlpack_py_exports *exports, dlpack_py_impl_word change)
{
    if (exports != NULL)
        (void)DLPACK_PY_IMPL_ADD(&exports->count, change);
}

/* Drops an owner, on a thread that is attached to its interpreter. */
static inline void
dlpack_py_impl_drop_attached(PyObject *owner, dlpack_py_exports *exports)
{
    dlpack_py_impl_count(exports, -1);
    dlpack_py_impl_decref(owner);
}

/* Drops an owner, or leaks it, on a thread that is not attached to its interpreter. current: the state that the thread
 * is attached with; NULL: none (3.2). */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_drop_unattached(dlpack_py_impl_gate *gate, PyObject *owner, dlpack_py_exports *exports,
                               PyThreadState *current);

/* Drops the owner, or frees the context, on any thread at any time (K5). */
DLPACK_PY_IMPL_SHARED void
dlpack_py_impl_release_keeper(const dlpack_py_impl_keeper *keeper)
{
    void *block = keeper->block; /* read first: an embedded keeper may be freed with the owner */
    PyThreadState *current;

    if (keeper->owner != NULL) {
        current = dlpack_py_impl_thread_state();
        if (current == NULL || PyThreadState_GetInterpreter(current) != keeper->gate->interpreter)
            dlpack_py_impl_drop_unattached(keeper->gate, keeper->owner, keeper->exports, current);
        else if (!DLPACK_PY_IMPL_LOAD(&keeper->gate->gone)) /* gone: a new interpreter may have the same address */
            dlpack_py_impl_drop_attached(keeper->owner, keeper->exports);
    }
    else if (keeper->free_fn != NULL) {
        keeper->free_fn(keeper->context);
    }
    if (block != NULL)
        DLPACK_PY_FREE(block); /* K7 */
}

static inline void
dlpack_py_impl_delete_versioned(DLManagedTensorVersioned *managed)
{
    dlpack_py_impl_release_keeper((const dlpack_py_impl_keeper *)managed->manager_ctx);
}

static inline void
dlpack_py_impl_delete_legacy(DLManagedTensor *managed)
{
    dlpack_py_impl_release_keeper((const dlpack_py_impl_keeper *)managed->manager_ctx);
}

/* The keeper of what this file exported for a Python object; NULL for any other managed tensor. */
static inline const dlpack_py_impl_keeper *
dlpack_py_impl_find_keeper(const void *managed, int32_t form)
{
    const DLManagedTensorVersioned *versioned = (const DLManagedTensorVersioned *)managed;
    const DLManagedTensor *legacy = (const DLManagedTensor *)managed;
    const dlpack_py_impl_keeper *keeper = NULL;

    if (form == DLPACK_PY_VERSIONED && versioned->deleter == dlpack_py_impl_delete_versioned)
        keeper = (const dlpack_py_impl_keeper *)versioned->manager_ctx;
    if (form == DLPACK_PY_LEGACY && legacy->deleter == dlpack_py_impl_delete_legacy)
        keeper = (const dlpack_py_impl_keeper *)legacy->manager_ctx;
    return keeper != NULL && keeper->owner != NULL ? keeper : NULL;
}

static inline DLTensor *
dlpack_py_impl_tensor(void *managed, int32_t form)
{
    return form == DLPACK_PY_VERSIONED ? &((DLManagedTensorVersioned *)managed)->dl_tensor
                                       : &((DLManagedTensor *)managed)->dl_tensor;
}

/* The tensor as it is exported. data is the first element wherever there are addresses, since some consumers ignore
 * byte_offset (D1), and NULL without elements (D3). Memory that the CPU can read has id 0 (D9). */
static inline void
dlpack_py_impl_fold_offset(DLTensor *t)
{
    int32_t i;
    if (t->device.device_type == kDLCPU || dlpack_py_is_cpu_readable(t->device))
        t->device.device_id = 0;
    else if (!dlpack_py_impl_has_address(t->device))
        return;
    t->data = t->data == NULL ? NULL : (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
    t->byte_offset = 0;
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            t->data = NULL;
    }
}

/* A new export of t, which has been validated.
 *
 * order   0: the export uses the memory of t. 'C' or 'F': the export has new CPU memory for a compact copy, aligned to
 *         64 bytes (D2) and to alignment; the caller fills the memory
 * form    DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY
 *
 * Returns NULL where there is no memory, without an exception. The caller sets owner and gate, or context and free_fn.
 * Needs no thread state.
 */
DLPACK_PY_IMPL_SHARED dlpack_py_impl_export *
dlpack_py_impl_export_new(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment)
{
    const size_t extents = (size_t)t->ndim * sizeof(int64_t), head = sizeof(dlpack_py_impl_export) + 2 * extents;
    size_t slack = 0;
    uint64_t bytes = 0;
    dlpack_py_impl_export *e;
    DLTensor *out;

    if (order != 0) {
        slack = alignment == 0 || 64 % alignment == 0 ? 64 : alignment;
        bytes = (uint64_t)dlpack_py_nbytes(t, flags);
        if (slack > PTRDIFF_MAX - head || bytes > (uint64_t)PTRDIFF_MAX - head - slack)
            return NULL;
    }
    e = (dlpack_py_impl_export *)DLPACK_PY_MALLOC(head + slack + (size_t)bytes);
    if (e == NULL)
        return NULL;
    if (form == DLPACK_PY_VERSIONED) {
        e->managed.versioned.version.major = DLPACK_PY_PROTOCOL_MAJOR;
        e->managed.versioned.version.minor = DLPACK_PY_PROTOCOL_MINOR;
        e->managed.versioned.manager_ctx = &e->keeper; /* not NULL: with NULL, Paddle calls no deleter (K8) */
        e->managed.versioned.deleter = dlpack_py_impl_delete_versioned;
        e->managed.versioned.flags = flags;
        out = &e->managed.versioned.dl_tensor;
    }
    else {
        e->managed.legacy.manager_ctx = &e->keeper;
        e->managed.legacy.deleter = dlpack_py_impl_delete_legacy;
        out = &e->managed.legacy.dl_tensor;
    }
    memset(&e->keeper, 0, sizeof(e->keeper));
    e->keeper.block = e;
    *out = *t;
    out->shape = out->strides = NULL;
    if (t->ndim > 0) {
        out->shape = (int64_t *)(void *)(e + 1);
        out->strides = out->shape + t->ndim;
        memcpy(out->shape, t->shape, extents);
        if (order == 0 && t->strides != NULL)
            memcpy(out->strides, t->strides, extents);
        else /* strides are never NULL (D4) */
            dlpack_py_strides(t->ndim, t->shape, order, out->strides);
    }
    if (order != 0) {
        out->data = (char *)e + head + (slack - ((uintptr_t)e + head) % slack) % slack;
        out->byte_offset = 0;
        out->device.device_type = kDLCPU;
    }
    dlpack_py_impl_fold_offset(out);
    return e;
}

/* A new export of memory for a compact copy of t, which the caller fills. The copy is writable (P4). Returns NULL
 * with MemoryError in *error. Needs no thread state. */
static inline dlpack_py_impl_export *
dlpack_py_impl_copy_new(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment,
                        dlpack_py_error *error)
{
    const uint64_t padded = flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    const int64_t bytes = dlpack_py_nbytes(t, padded);
    dlpack_py_impl_export *e = dlpack_py_impl_export_new(t, padded | DLPACK_PY_FLAG_IS_COPIED, form, order, alignment);

    if (e == NULL)
        (void)DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_MEMORY_ERROR, "no memory for a copy of %" PRId64 " bytes", bytes);
    else if (bytes > 0) /* packed sub-byte elements may not fill the last byte */
        ((char *)dlpack_py_impl_tensor(&e->managed, form)->data)[bytes - 1] = 0;
    return e;
}

/* dlpack_py_copy, which cannot fail here. Other threads run during a copy of many bytes: it takes longer than a change
 * of threads. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_copy_detached(const DLTensor *to, const DLTensor *from, uint64_t flags)
{
    PyThreadState *state = dlpack_py_nbytes(from, flags) >= 65536 ? PyEval_SaveThread() : NULL;
    dlpack_py_impl_copy(to, from, flags);
    if (state != NULL)
        PyEval_RestoreThread(state);
}

/* New CPU memory for a tensor.
 *
 * prototype   its rank, shape, dtype and device are used
 *
 * Returns a managed tensor, row-major, writable and aligned to 64 bytes, owned by the caller until its deleter is
 * called; NULL with BufferError or MemoryError in *error. Needs no thread state.
 */
DLPACK_PY_IMPL_RARE DLManagedTensorVersioned *
dlpack_py_allocate(const DLTensor *prototype, dlpack_py_error *error)
{
    dlpack_py_impl_export *e;
    DLTensor t = *prototype;
    char name[DLPACK_PY_TEXT_SIZE];

    t.data = (void *)(UINTPTR_MAX / 2 + 1); /* an address that is valid, and not read */
    t.strides = NULL;
    t.byte_offset = 0;
    if (t.device.device_type != kDLCPU) {
        dlpack_py_impl_refuse(error, "device is %s, memory is allocated on the CPU only",
                              dlpack_py_device_text(t.device, name));
        return NULL;
    }
    if (dlpack_py_validate(&t, 0, error) < 0)
        return NULL;
    e = dlpack_py_impl_export_new(&t, 0, DLPACK_PY_VERSIONED, 'C', 0);
    if (e != NULL)
        return &e->managed.versioned;
    (void)DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_MEMORY_ERROR, "no memory for %" PRId64 " bytes",
                              dlpack_py_nbytes(&t, 0));
    return NULL;
}

static inline DLManagedTensorVersioned *
dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context, void (*free_fn)(void *context))
{
    const uint64_t known = DLPACK_PY_FLAG_READ_ONLY | DLPACK_PY_FLAG_IS_COPIED | DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    dlpack_py_impl_export *e = NULL;
    if (dlpack_py_validate(t, flags, NULL) == 0)
        e = dlpack_py_impl_export_new(t, flags & known, DLPACK_PY_VERSIONED, 0, 0);
    if (e == NULL)
        return NULL;
    e->keeper.context = context;
    e->keeper.free_fn = free_fn;
    return &e->managed.versioned;
}

/* Calls the deleter of another library, if there is one (K3). The deleter may run Python code: where this thread is
 * attached, the current exception is kept (K2). */
DLPACK_PY_IMPL_SHARED void
dlpack_py_impl_delete_foreign(void *managed, int32_t form)
{
    const int attached = dlpack_py_impl_thread_state() != NULL;
    const DLManagedTensorVersioned *versioned = (const DLManagedTensorVersioned *)managed;
    const DLManagedTensor *legacy = (const DLManagedTensor *)managed;
    dlpack_py_impl_exception saved = {NULL, NULL, NULL};

    if (attached && PyErr_Occurred())
        saved = dlpack_py_impl_exception_save();
    if (form == DLPACK_PY_VERSIONED && versioned->deleter != NULL)
        versioned->deleter((DLManagedTensorVersioned *)managed);
    if (form == DLPACK_PY_LEGACY && legacy->deleter != NULL)
        legacy->deleter((DLManagedTensor *)managed);
    if (attached)
        dlpack_py_impl_exception_restore(saved);
}

/* Deletes a managed tensor of any origin, on any thread. Keeps the current exception. */
DLPACK_PY_IMPL_SHARED void
dlpack_py_impl_delete(void *managed, int32_t form)
{
    const dlpack_py_impl_keeper *keeper = dlpack_py_impl_find_keeper(managed, form);
    if (keeper != NULL)
        dlpack_py_impl_release_keeper(keeper);
    else
        dlpack_py_impl_delete_foreign(managed, form);
}

/* The names of capsules before and after they are consumed (K1, K4). */
#define DLPACK_PY_IMPL_UNUSED_NAME(form) ((form) == DLPACK_PY_VERSIONED ? "dltensor_versioned" : "dltensor")
#define DLPACK_PY_IMPL_USED_NAME(form) ((form) == DLPACK_PY_VERSIONED ? "used_dltensor_versioned" : "used_dltensor")

/* A capsule that was not consumed deletes its tensor (K1). */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_capsule_destructor(PyObject *capsule)
{
    const char *const versioned = DLPACK_PY_IMPL_UNUSED_NAME(DLPACK_PY_VERSIONED);
    const char *const legacy = DLPACK_PY_IMPL_UNUSED_NAME(DLPACK_PY_LEGACY), *name = PyCapsule_GetName(capsule);
    int32_t form;
    if (name == NULL || name[0] == 'u') /* "used_dltensor" */
        return;
    /* equal pointers save the calls of strcmp */
    form = name == legacy || (name != versioned && strcmp(name, legacy) == 0) ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
    if (form == DLPACK_PY_LEGACY || name == versioned || strcmp(name, versioned) == 0)
        dlpack_py_impl_delete(PyCapsule_GetPointer(capsule, name), form);
}

/* Put a managed tensor into a new capsule, which owns it.
 *
 * managed   a DLManagedTensorVersioned or DLManagedTensor, as form says; stolen, also on failure
 * form      DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY
 *
 * Returns NULL with MemoryError, or with BufferError where managed is NULL, as dlpack_py_wrap may return it.
 */
static inline PyObject *
dlpack_py_capsule_steal(void *managed, int32_t form)
{
    PyObject *capsule;
    if (managed == NULL) {
        PyErr_SetString(PyExc_BufferError,
                        "the managed tensor is NULL: the tensor was malformed, or there was no memory");
        return NULL;
    }
    capsule = PyCapsule_New(managed, DLPACK_PY_IMPL_UNUSED_NAME(form), dlpack_py_impl_capsule_destructor);
    if (capsule == NULL)
        dlpack_py_impl_delete(managed, form);
    return capsule;
}

/* ---- 2.4 Producing ------------------------------------------------------ */

typedef struct dlpack_py_impl_producer dlpack_py_impl_producer; /* 2.5 */
typedef struct dlpack_py_impl_terms dlpack_py_impl_terms;       /* 2.5 */

/* What this file asks of a device; dlpack_device.h fills this struct for CUDA and ROCm. Operations need a thread state;
 * those that fail set an exception. */
struct dlpack_py_device {
    int32_t type; /* DLDeviceType of its memory */

    /* Make data that is exported in place ready: for the stream of the request (S1), or for the CPU (S10). Returns 0
     * or -1. */
    int (*make_ready)(const dlpack_py_offer *offer, const dlpack_py_request *request, const dlpack_py_plan *plan);
    /* Copy from, the tensor of an offer, to compact memory of the CPU, behind the pending work. Returns 0; or -1, or
     * -2 where the copy may still write to the memory, which is leaked then. */
    int (*copy)(const dlpack_py_offer *offer, const DLTensor *to, const DLTensor *from);
    /* dlpack_py_impl_fetch for a consumer with a stream of this device (C4). */
    int (*fetch)(dlpack_py_impl_producer *producer, const dlpack_py_impl_terms *terms, dlpack_py_view *v);
    /* Check that t is on the device that __dlpack_device__ returned (C4). Returns 0, or -1 with *error filled. */
    int (*check_announced)(const DLTensor *t, const DLDevice *announced, dlpack_py_error *error);
    /* Order the consumer's stream after the stream of an exchange table, for a view that was taken by it (X4).
     * Returns 0, or -1 and releases v. */
    int (*follow)(const void *table, const dlpack_py_impl_terms *terms, dlpack_py_view *v);
    /* Ask an exchange table for the stream that its objects are worked on (X4). work: device_id is set; handle is out.
     * Returns 0 or -1. */
    int (*get_work_stream)(const void *table, dlpack_py_work_stream *work);
};

/* How a request is met. */
struct dlpack_py_plan {
    int32_t form;    /* DLPACK_PY_VERSIONED or DLPACK_PY_LEGACY */
    int32_t copy;    /* 1: a copy, 0: in place */
    DLDevice device; /* of the tensor in the capsule */
    uint64_t flags;  /* of an export in place; a copy takes its flags from the offer */
};

/* Reads an int; a value outside of int32_t becomes INT32_MIN or INT32_MAX. */
static inline int32_t
dlpack_py_impl_clamp(PyObject *integer)
{
    int overflow;
    const long value = PyLong_AsLongAndOverflow(integer, &overflow);
    if (overflow != 0)
        return overflow < 0 ? INT32_MIN : INT32_MAX;
    return value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

/* Reads a 2-tuple of integers, that is, of objects with __index__. Returns 0, or -1 with TypeError of the given
 * format. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_pair(const char *format, PyObject *object, int32_t pair[2])
{
    const int is_pair = PyTuple_Check(object) && DLPACK_PY_IMPL_TUPLE_SIZE(object) == 2;
    PyObject *part;
    int i;
    for (i = 0; i < 2; i++) {
        part = is_pair ? DLPACK_PY_IMPL_TUPLE_ITEM(object, i) : NULL;
        if (part != NULL && PyLong_CheckExact(part))
            Py_INCREF(part);
        else if (part != NULL)
            part = PyNumber_Index(part);
        if (part == NULL)
            return PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError)
                       ? -1
                       : dlpack_py_impl_refuse_value(PyExc_TypeError, format, object);
        pair[i] = dlpack_py_impl_clamp(part);
        Py_DECREF(part);
    }
    return 0;
}

/* Reads a stream; a handle has the pointer's full width (S7). */
static inline int
dlpack_py_impl_parse_stream(PyObject *object, dlpack_py_stream *stream)
{
    PyObject *integer = PyNumber_Index(object);
    unsigned long long handle;
    int overflow;

    if (integer == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            dlpack_py_impl_refuse_value(PyExc_TypeError, "stream is %.200U, None or an integer was wanted", object);
        return -1;
    }
    handle = PyLong_AsUnsignedLongLong(integer);
    stream->kind = DLPACK_PY_STREAM_HANDLE;
    stream->handle = (uintptr_t)handle;
    if (PyErr_Occurred() || handle > UINTPTR_MAX) { /* below 0, or too wide */
        PyErr_Clear();
        stream->kind = DLPACK_PY_STREAM_NO_SYNC;
        if (PyLong_AsLongAndOverflow(integer, &overflow) != -1 || overflow != 0)
            dlpack_py_impl_refuse_value(
                PyExc_ValueError, "stream is %.200U, None, -1 or a handle of a pointer's width was wanted", object);
    }
    Py_DECREF(integer);
    return PyErr_Occurred() ? -1 : 0;
}

/* Read a request from four objects, each of which may be NULL or None for "not given". Returns 0, or -1 with
 * TypeError or ValueError (P1, P2, P4, P5). */
static inline int
dlpack_py_parse_request_args(PyObject *stream, PyObject *max_version, PyObject *dl_device, PyObject *copy,
                             dlpack_py_request *request)
{
    int32_t pair[2] = {0, 0};

    memset(request, 0, sizeof(*request));
    if (max_version != NULL && max_version != Py_None) {
        if (dlpack_py_impl_pair("max_version is %.200U, None or a tuple of two integers was wanted", max_version,
                                pair) < 0)
            return -1;
        request->max_version.major = pair[0] < 0 ? 0 : (uint32_t)pair[0];
        request->max_version.minor = pair[1] < 0 ? 0 : (uint32_t)pair[1];
    }
    if (stream != NULL && stream != Py_None && dlpack_py_impl_parse_stream(stream, &request->stream) < 0)
        return -1;
    if (dl_device != NULL && dl_device != Py_None) {
        if (dlpack_py_impl_pair("dl_device is %.200U, None or a tuple of two integers was wanted", dl_device, pair) < 0)
            return -1;
        request->has_device = 1;
        request->device = dlpack_py_impl_device(pair[0], pair[1]);
    }
    if (copy == Py_True)
        request->copy = DLPACK_PY_COPY_ALWAYS;
    else if (copy == Py_False)
        request->copy = DLPACK_PY_COPY_NEVER;
    else if (copy != NULL && copy != Py_None)
        return dlpack_py_impl_refuse_value(PyExc_TypeError, "copy is %.200U, None, True or False was wanted", copy);
    return 0;
}

/* The keywords of __dlpack__ and from_dlpack: places in an array of values, and bits of a set. */
#define DLPACK_PY_IMPL_MAX_VERSION 0
#define DLPACK_PY_IMPL_DL_DEVICE 1
#define DLPACK_PY_IMPL_COPY 2
#define DLPACK_PY_IMPL_STREAM 3
#define DLPACK_PY_IMPL_DEVICE 4
#define DLPACK_PY_IMPL_KEYWORDS 5

/* The place of a keyword, by value: the names of a call need not be interned (P1). 5: it is no
 * keyword of these functions. */
static inline int
dlpack_py_impl_find_keyword(const char *name, Py_ssize_t length)
{
    switch (length) { /* compilers compare constant lengths without a call */
    case 11: return memcmp(name, "max_version", 11) == 0 ? DLPACK_PY_IMPL_MAX_VERSION : DLPACK_PY_IMPL_KEYWORDS;
    case 9: return memcmp(name, "dl_device", 9) == 0 ? DLPACK_PY_IMPL_DL_DEVICE : DLPACK_PY_IMPL_KEYWORDS;
    case 4: return memcmp(name, "copy", 4) == 0 ? DLPACK_PY_IMPL_COPY : DLPACK_PY_IMPL_KEYWORDS;
    case 6:
        return memcmp(name, "stream", 6) == 0   ? DLPACK_PY_IMPL_STREAM
               : memcmp(name, "device", 6) == 0 ? DLPACK_PY_IMPL_DEVICE
                                                : DLPACK_PY_IMPL_KEYWORDS;
    default: return DLPACK_PY_IMPL_KEYWORDS;
    }
}

/* Puts the keyword arguments of a call into out, by their places. allowed: a bit for each keyword of the function. */
static inline int
dlpack_py_impl_match_keywords(const char *function, unsigned allowed, PyObject *const *values, PyObject *kwnames,
                              PyObject *out[DLPACK_PY_IMPL_KEYWORDS])
{
    const Py_ssize_t given = kwnames == NULL ? 0 : DLPACK_PY_IMPL_TUPLE_SIZE(kwnames);
    Py_ssize_t i, length = 0;

    for (i = 0; i < given; i++) {
        PyObject *name = DLPACK_PY_IMPL_TUPLE_ITEM(kwnames, i);
        const char *text = DLPACK_PY_IMPL_TEXT(name, &length);
        const int place = text == NULL ? DLPACK_PY_IMPL_KEYWORDS : dlpack_py_impl_find_keyword(text, length);
        if ((allowed >> place & 1) == 0) { /* replaces the error of a name without UTF-8 */
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function, name);
            return -1;
        }
        out[place] = values[i];
    }
    return 0;
}

/* Raises TypeError for a wrong number of positional arguments, SystemError for a negative nargs: the caller passed the
 * flag PY_VECTORCALL_ARGUMENTS_OFFSET. Returns -1. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_refuse_nargs(const char *function, Py_ssize_t nargs, int wanted)
{
    if (nargs < 0)
        PyErr_Format(PyExc_SystemError, "%s(): nargs is %zd, PyVectorcall_NARGS(nargs) was wanted", function, nargs);
    else
        PyErr_Format(PyExc_TypeError, "%s() takes %d positional argument%s (%zd given)", function, wanted,
                     wanted == 1 ? "" : "s", nargs);
    return -1;
}

/* dlpack_py_parse_request, for any arguments. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_parse_all(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dlpack_py_request *request)
{
    PyObject *values[DLPACK_PY_IMPL_KEYWORDS] = {NULL, NULL, NULL, NULL, NULL};

    if ((nargs != 0 && dlpack_py_impl_refuse_nargs("__dlpack__", nargs, 0) < 0) ||
        dlpack_py_impl_match_keywords("__dlpack__", 0xf, args, kwnames, values) < 0)
        return -1;
    return dlpack_py_parse_request_args(values[DLPACK_PY_IMPL_STREAM], values[DLPACK_PY_IMPL_MAX_VERSION],
                                        values[DLPACK_PY_IMPL_DL_DEVICE], values[DLPACK_PY_IMPL_COPY], request);
}

#if !DLPACK_PY_PLAIN
/* Are the arguments max_version alone, as a tuple of two small integers? Most calls are. */
static inline int
dlpack_py_impl_parse_common(PyObject *const *args, PyObject *kwnames, dlpack_py_request *request)
{
    Py_ssize_t length;
    const char *name = DLPACK_PY_IMPL_TEXT(DLPACK_PY_IMPL_TUPLE_ITEM(kwnames, 0), &length);
    PyObject *first, *second;
    long major, minor;
    int overflow; /* then the value is -1 */

    if (name == NULL)
        PyErr_Clear();
    if (name == NULL || length != 11 || memcmp(name, "max_version", 11) != 0 || !PyTuple_Check(args[0]) ||
        DLPACK_PY_IMPL_TUPLE_SIZE(args[0]) != 2)
        return 0;
    first = DLPACK_PY_IMPL_TUPLE_ITEM(args[0], 0);
    second = DLPACK_PY_IMPL_TUPLE_ITEM(args[0], 1);
    if (!PyLong_CheckExact(first) || !PyLong_CheckExact(second))
        return 0;
    major = PyLong_AsLongAndOverflow(first, &overflow);
    minor = PyLong_AsLongAndOverflow(second, &overflow);
    request->max_version.major = (uint32_t)major;
    request->max_version.minor = (uint32_t)minor;
    return ((unsigned long)major | (unsigned long)minor) <= 0xffff;
}
#endif

/* Read a request from the arguments of a METH_FASTCALL | METH_KEYWORDS method. Returns 0, or -1 with TypeError or
 * ValueError. */
static inline int
dlpack_py_parse_request(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dlpack_py_request *request)
{
    memset(request, 0, sizeof(*request));
#if !DLPACK_PY_PLAIN
    if (nargs == 0 && (kwnames == NULL || (DLPACK_PY_IMPL_TUPLE_SIZE(kwnames) == 1 &&
                                           dlpack_py_impl_parse_common(args, kwnames, request))))
        return 0;
#endif
    return dlpack_py_impl_parse_all(args, nargs, kwnames, request);
}

/* The flags of an export in place: READ_ONLY, and for sub-byte dtypes IS_SUBBYTE_TYPE_PADDED (D6). IS_COPIED is
 * removed, because it describes another export (P4). Unknown flags are removed: they describe another producer. */
static inline uint64_t
dlpack_py_impl_kept_flags(const DLTensor *t, uint64_t flags)
{
    return flags & (DLPACK_PY_FLAG_READ_ONLY | (t->dtype.bits < 8 ? DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED : 0));
}

/* Is the tensor of the offer the embedded one, which was validated when it was embedded (3.1)? */
static inline int
dlpack_py_impl_is_embedded(const dlpack_py_offer *offer)
{
    return offer->embedded != NULL && offer->tensor == &offer->embedded->versioned.dl_tensor;
}

static inline int
dlpack_py_impl_is_on(const dlpack_py_device *device, DLDevice where)
{
    return device != NULL && (int32_t)where.device_type == device->type;
}

/* dlpack_py_impl_plan, for every offer and every request; plan has the form. Fills *error; SystemError where the offer
 * makes no sense. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_plan_general(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan,
                            dlpack_py_error *error)
{
    const DLTensor *t = offer->tensor;
    const DLDevice asked = request->device;
    const int readable = dlpack_py_is_cpu_readable(t->device);
    const int for_cpu = request->has_device && asked.device_type == kDLCPU && asked.device_id == 0;
    const uint32_t negative = DLPACK_PY_OFFER_REFUSE_NEGATIVE | DLPACK_PY_OFFER_COPY_NEGATIVE;
    const char *why = NULL; /* the reason why the export must be a copy, or why it is refused */
    char came[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE];
    int32_t i;

    if (offer->owner == NULL)
        return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_SYSTEM_ERROR, "owner is NULL, an object was wanted");
    if (offer->pending_count > (offer->device == NULL ? 0 : DLPACK_PY_MAX_PENDING))
        return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_SYSTEM_ERROR,
                                   "the offer has %lu pending streams, at most %d were wanted (0 without a device)",
                                   (unsigned long)offer->pending_count, DLPACK_PY_MAX_PENDING);
    if (!dlpack_py_impl_is_embedded(offer) && dlpack_py_validate(t, offer->flags, error) < 0)
        return -1;
    plan->device = t->device;
    plan->flags = dlpack_py_impl_kept_flags(t, offer->flags) | (offer->is_copy ? DLPACK_PY_FLAG_IS_COPIED : 0);
    plan->copy = request->copy == DLPACK_PY_COPY_ALWAYS && !offer->is_copy;
    if (!readable && !dlpack_py_impl_is_on(offer->device, t->device))
        return dlpack_py_impl_refuse(error, "device is %s, this producer does not export memory of this device",
                                     dlpack_py_device_text(t->device, came));
    if (readable)
        plan->device.device_id = 0; /* D9 */
    if (for_cpu) /* pinned and managed memory is exported as CPU memory; other memory is copied (P5) */
        plan->device = asked;
    if (request->has_device &&
        (asked.device_type != plan->device.device_type || asked.device_id != plan->device.device_id))
        return dlpack_py_impl_refuse(error, "dl_device is %s, the data is on %s%s",
                                     dlpack_py_device_text(asked, wanted), dlpack_py_device_text(t->device, came),
                                     t->device.device_type == kDLCPU ? "" : ": only this device or cpu is possible");
    if (dlpack_py_impl_check_stream(plan->device, &request->stream, error) < 0) /* P6 */
        return -1;
    if (for_cpu && !readable)
        why = "an export from this device to the CPU must be a copy";
    for (i = 0; (offer->options & negative) != 0 && t->strides != NULL && i < t->ndim; i++) {
        if (t->strides[i] >= 0 || t->shape[i] <= 1 || why != NULL || dlpack_py_impl_is_empty(t))
            continue;
        if ((offer->options & DLPACK_PY_OFFER_COPY_NEGATIVE) != 0)
            why = "this producer exports negative strides only as a copy"; /* D11 */
        else if (request->copy != DLPACK_PY_COPY_ALWAYS)
            return dlpack_py_impl_refuse(error, "negative strides are exported only as a copy: ask with copy=True");
        else
            plan->copy = 1; /* also where the author's tensor is itself a copy */
    }
    if (why == NULL && (offer->options & DLPACK_PY_OFFER_COPY_READ_ONLY) != 0 && !plan->copy &&
        (plan->flags & DLPACK_PY_FLAG_READ_ONLY) != 0)
        why = "this producer exports read-only data only as a copy";
    if (offer->is_copy && request->copy == DLPACK_PY_COPY_NEVER)
        why = "this producer made a copy of the data";
    if (why != NULL && request->copy == DLPACK_PY_COPY_NEVER)
        return dlpack_py_impl_refuse(error, "%s, and copy is False", why);
    plan->copy = plan->copy || why != NULL;
    if (plan->copy && plan->device.device_type != kDLCPU) /* P8 */
        return dlpack_py_impl_refuse(error, "a copy of data on %s is made on the CPU: ask with dl_device=(1, 0)",
                                     dlpack_py_device_text(plan->device, came));
    if (plan->form == DLPACK_PY_VERSIONED)
        return 0;
    if ((plan->flags & DLPACK_PY_FLAG_READ_ONLY) != 0 && !plan->copy && (offer->options & DLPACK_PY_OFFER_UNSAID) == 0)
        why = "data is read-only";
    else
        why = (plan->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? "sub-byte data is padded" : NULL;
    if (why == NULL)
        return 0;
    return dlpack_py_impl_refuse(error, "%s, and a legacy capsule has no flags: ask with max_version=(1, 0)", why);
}

/* Checks what an author offers, and decides how the request is met: in place or by a copy, on which device, in which
 * form. Reads no data. Returns 0, or -1 with BufferError (D8, P3, P4, P5, P7), ValueError (P6), or SystemError where
 * the offer makes no sense. */
static inline int
dlpack_py_impl_plan(const dlpack_py_offer *offer, const dlpack_py_request *request, dlpack_py_plan *plan)
{
    const DLTensor *t = offer->tensor;
    dlpack_py_error error;

    plan->form = request->max_version.major < 1 ? DLPACK_PY_LEGACY : DLPACK_PY_VERSIONED;
    /* most exports: in place, of memory of the CPU, without conditions */
    if (!DLPACK_PY_PLAIN && t->device.device_type == kDLCPU && t->device.device_id == 0 && !request->has_device &&
        request->copy != DLPACK_PY_COPY_ALWAYS && request->stream.kind != DLPACK_PY_STREAM_HANDLE &&
        offer->owner != NULL && offer->options == 0 && !offer->is_copy && offer->pending_count == 0 &&
        (offer->flags == 0 || (offer->flags == DLPACK_PY_FLAG_READ_ONLY && plan->form == DLPACK_PY_VERSIONED)) &&
        (dlpack_py_impl_is_embedded(offer) || dlpack_py_impl_is_plain(t))) {
        plan->copy = 0;
        plan->device = t->device;
        plan->flags = offer->flags;
        return 0;
    }
    return dlpack_py_impl_plan_general(offer, request, plan, &error) < 0 ? dlpack_py_raise(&error) : 0;
}

/* Makes the copy of a plan, behind the pending work. Returns a managed tensor of the plan's form, or NULL with an
 * exception. */
DLPACK_PY_IMPL_RARE void *
dlpack_py_impl_export_copy(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    int64_t strides[DLPACK_PY_MAX_NDIM];
    DLTensor t = *offer->tensor, *to;
    dlpack_py_error error;
    dlpack_py_impl_export *e = dlpack_py_impl_copy_new(&t, offer->flags, plan->form, 'C', 0, &error);
    int failed;

    if (e == NULL) {
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    Py_INCREF(offer->owner); /* other threads may run meanwhile */
    dlpack_py_impl_count(offer->exports, 1);
    to = dlpack_py_impl_tensor(&e->managed, plan->form);
    t.shape = to->shape; /* the author's shape and strides may change */
    if (t.strides != NULL)
        t.strides = (int64_t *)memcpy(strides, t.strides, (size_t)t.ndim * sizeof(int64_t));
    if (dlpack_py_is_cpu_readable(t.device) && offer->pending_count == 0)
        dlpack_py_impl_copy_detached(to, &t, offer->flags);
    else if ((failed = offer->device->copy(offer, to, &t)) != 0) {
        if (failed == -1)
            dlpack_py_impl_delete(&e->managed, plan->form);
        e = NULL;
    }
    dlpack_py_impl_count(offer->exports, -1);
    dlpack_py_impl_decref(offer->owner);
    return e == NULL ? NULL : &e->managed;
}

/* The embedded managed tensor of a plan, with a new reference to its owner; NULL: it does not fit the plan. */
static inline void *
dlpack_py_impl_export_embedded(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    dlpack_py_embedded *e = offer->embedded;
    const DLDevice device = e->versioned.dl_tensor.device;

    if (!dlpack_py_impl_is_embedded(offer) || offer->exports != NULL || plan->flags != e->versioned.flags ||
        plan->device.device_type != device.device_type || plan->device.device_id != device.device_id)
        return NULL; /* the author changed the offer, or the request names another device */
    Py_INCREF(e->keeper.owner);
    return plan->form == DLPACK_PY_VERSIONED ? (void *)&e->versioned : (void *)&e->legacy;
}

/* Exports an offer as planned. For data in place, the caller then calls dlpack_py_device.make_ready. Returns a managed
 * tensor of the plan's form, owned by the caller, or NULL with MemoryError, BufferError or RuntimeError. */
static inline void *
dlpack_py_impl_export_offer(const dlpack_py_offer *offer, const dlpack_py_plan *plan)
{
    dlpack_py_impl_export *e;
    dlpack_py_impl_gate *gate;
    void *embedded;

    if (plan->copy)
        return dlpack_py_impl_export_copy(offer, plan);
    if (offer->embedded != NULL && (embedded = dlpack_py_impl_export_embedded(offer, plan)) != NULL)
        return embedded;
    gate = dlpack_py_impl_gate_get();
    if (gate == NULL)
        return NULL;
    e = dlpack_py_impl_export_new(offer->tensor, plan->flags, plan->form, 0, 0);
    if (e == NULL)
        return PyErr_NoMemory();
    dlpack_py_impl_tensor(&e->managed, plan->form)->device = plan->device;
    Py_INCREF(offer->owner);
    e->keeper.owner = offer->owner;
    e->keeper.gate = gate;
    e->keeper.exports = offer->exports;
    if (offer->exports != NULL)
        (void)DLPACK_PY_IMPL_ADD(&offer->exports->count, 1);
    return &e->managed;
}

/* Answer a request that has been read: what dlpack_py_produce does after it has read its arguments. Returns as
 * dlpack_py_produce. */
static inline PyObject *
dlpack_py_answer(const dlpack_py_offer *offer, const dlpack_py_request *request)
{
    dlpack_py_plan plan;
    PyObject *capsule;
    void *managed;

    if (dlpack_py_impl_plan(offer, request, &plan) < 0 || (managed = dlpack_py_impl_export_offer(offer, &plan)) == NULL)
        return NULL;
    capsule = dlpack_py_capsule_steal(managed, plan.form);
    /* Called last, because the order of streams cannot be undone. */
    if (capsule != NULL && !plan.copy && offer->pending_count > 0 &&
        offer->device->make_ready(offer, request, &plan) < 0) {
        dlpack_py_impl_decref(capsule);
        return NULL;
    }
    return capsule;
}

/* Asks the author for an offer. Returns 0, or -1 with an exception. */
static inline int
dlpack_py_impl_ask_author(PyObject *self, dlpack_py_describe describe, const dlpack_py_request *request,
                          dlpack_py_offer *offer)
{
    memset(offer, 0, sizeof(*offer));
    offer->owner = self;
    if (describe(self, request, offer) == 0) {
        if (offer->tensor != NULL)
            return 0;
        PyErr_SetString(PyExc_SystemError, "describe returned 0, but offer->tensor is NULL");
    }
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_BufferError, "the data cannot be exported in its present state");
    return -1;
}

static inline PyObject *
dlpack_py_produce_described(PyObject *self, dlpack_py_describe describe, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    dlpack_py_request request;
    dlpack_py_offer offer;
    PyObject *capsule = NULL;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    DLPACK_PY_IMPL_LOCK(self); /* no other thread moves the memory before the export is counted */
    if (dlpack_py_impl_ask_author(self, describe, &request, &offer) == 0)
        capsule = dlpack_py_answer(&offer, &request);
    DLPACK_PY_IMPL_UNLOCK();
    return capsule;
}

static inline PyObject *
dlpack_py_impl_produce_described_device(PyObject *self, dlpack_py_describe describe)
{
    dlpack_py_offer offer;
    return dlpack_py_impl_ask_author(self, describe, NULL, &offer) < 0 ? NULL : dlpack_py_produce_device(offer.tensor);
}

/* An offer of a tensor, with all else zero. */
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

/* The offer with which the object that holds a view exports the view's tensor: its read-only and padded flags are kept
 * (C7). t is the view's tensor, or a tensor over a part of its memory. */
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
    dlpack_py_offer offer;
    dlpack_py_request request;
    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    memset(&offer, 0, sizeof(offer));
    offer.owner = owner;
    offer.tensor = t;
    offer.flags = flags;
    return dlpack_py_answer(&offer, &request);
}

static inline PyObject *
dlpack_py_produce_args(PyObject *owner, const DLTensor *t, uint64_t flags, PyObject *stream, PyObject *max_version,
                       PyObject *dl_device, PyObject *copy)
{
    const dlpack_py_offer offer = dlpack_py_offer_make(owner, t, flags);
    dlpack_py_request request;
    if (dlpack_py_parse_request_args(stream, max_version, dl_device, copy, &request) < 0)
        return NULL;
    return dlpack_py_answer(&offer, &request);
}

static inline PyObject *
dlpack_py_produce_device(const DLTensor *t)
{
    DLDevice device = t->device;
    if (dlpack_py_is_cpu_readable(device))
        device.device_id = 0; /* D9 */
    return dlpack_py_impl_device_tuple(device);
}

static inline PyObject *
dlpack_py_cpu_device(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    return dlpack_py_impl_device_tuple(dlpack_py_impl_device(kDLCPU, 0));
}

/* ---- 2.5 Consuming ------------------------------------------------------ */

/* A type that dlpack_py_exchange_add has put a table on (3.4). Published once, never changed, freed when the
 * interpreter is gone. It does not keep the type alive: a type that lives as long as the interpreter dictionary leaks
 * memory at the end of a subinterpreter (CPython 3.11). */
typedef struct dlpack_py_impl_own dlpack_py_impl_own;
struct dlpack_py_impl_own {
    PyTypeObject *type;  /* borrowed, valid while reference is alive */
    PyObject *reference; /* a weak reference to it */
    const void *table;
    size_t embedded; /* the offset of the dlpack_py_embedded in an object; 0: none */
    struct dlpack_py_impl_own *next;
    /* Functions of section 3.4: by pointers, so that a file without a table links none of them. The last two take an
     * object of the type: consume returns 0, -1 with an exception, or 1 where __dlpack__ is to be asked; borrow returns
     * 0, or 1 with or without an exception. */
    const dlpack_py_impl_own *(*find)(const dlpack_py_impl_own *own, PyTypeObject *type, const void *table);
    int (*consume)(const dlpack_py_impl_own *own, PyObject *obj, const dlpack_py_impl_terms *terms, dlpack_py_view *v);
    int (*borrow)(const dlpack_py_impl_own *own, PyObject *obj, const dlpack_py_impl_terms *terms, dlpack_py_view *v);
};

/* What is learnt of a type (3.3). */
struct dlpack_py_impl_type {
    PyTypeObject *type;            /* borrowed, to compare with */
    unsigned int tag;              /* the type's version when this was learnt; 0: not to be kept */
    PyObject *method;              /* its __dlpack__, if that takes the object as an argument; borrowed from the type */
    const void *table;             /* its DLPackExchangeAPI, if there is one to be used */
    const dlpack_py_impl_own *own; /* not NULL: this file put table on the type, or on a base of it (3.4) */
};

/* What this file caches for an interpreter, from the first use until the interpreter is gone (3.2). */
#define DLPACK_PY_IMPL_TYPES 16
#define DLPACK_PY_IMPL_DLPACK 4        /* "__dlpack__" */
#define DLPACK_PY_IMPL_DLPACK_DEVICE 5 /* "__dlpack_device__" */
#define DLPACK_PY_IMPL_EXCHANGE 6      /* "__dlpack_c_exchange_api__" */
#define DLPACK_PY_IMPL_NAMESPACE 7     /* "__array_namespace__" */
#define DLPACK_PY_IMPL_MODULE 8        /* "__module__" */
#define DLPACK_PY_IMPL_FROM_DLPACK 9   /* "from_dlpack" */
#define DLPACK_PY_IMPL_NAMES 10
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
typedef dlpack_py_impl_type dlpack_py_impl_slot;
#else
typedef dlpack_py_impl_word dlpack_py_impl_slot; /* const dlpack_py_impl_type * */
#endif
typedef struct dlpack_py_impl_cache {
    PyObject *names[DLPACK_PY_IMPL_NAMES]; /* DLPACK_PY_IMPL_DLPACK ...; bit i of DLPACK_PY_IMPL_PASS_... is names[i] */
    PyObject *only_version;                /* the tuple ("max_version",) */
    PyObject *version;                     /* the tuple that is passed as max_version */
    PyObject *cpu;                         /* the tuple (1, 0) */
    dlpack_py_impl_word carrier;           /* PyTypeObject *, made at its first use (3.6) */
    dlpack_py_impl_word buffer_carrier;    /* PyTypeObject *, made at its first use (dlpack_buffer.h) */
    dlpack_py_impl_word own;               /* dlpack_py_impl_own *: the types with a table of this file (3.4) */
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    dlpack_py_impl_type types[DLPACK_PY_IMPL_TYPES + 1];
    PyTypeObject *like; /* a static type (3.6), with its version tag and the from_dlpack of its library; NULL: none */
    unsigned int like_tag;
    PyObject *from_dlpack;
#elif DLPACK_PY_IMPL_HAS_TYPE_TAGS
    dlpack_py_impl_slot types[DLPACK_PY_IMPL_TYPES]; /* the last that was learnt in each place */
    dlpack_py_impl_type learnt[256];                 /* each is written once, because other threads read it */
    dlpack_py_impl_word learnt_count;
#endif
} dlpack_py_impl_cache;

/* The keywords of __dlpack__. */
#define DLPACK_PY_IMPL_PASS_VERSION 1u
#define DLPACK_PY_IMPL_PASS_DEVICE 2u
#define DLPACK_PY_IMPL_PASS_COPY 4u
#define DLPACK_PY_IMPL_PASS_STREAM 8u

/* An object whose __dlpack__ is called. */
struct dlpack_py_impl_producer {
    dlpack_py_impl_cache *cache;
    PyObject *obj;
    PyObject *method;
    int unbound;      /* obj is passed as the first argument */
    int asked;        /* the fast path has called it, with max_version */
    PyObject *answer; /* what that call returned; NULL: an exception is set */
    int answered;     /* it returned an object */
    unsigned refused; /* DLPACK_PY_IMPL_PASS_...: keywords that its signature refused */
};

/* What a consumer asks for. Never changed: a step with other values makes a new struct. */
struct dlpack_py_impl_terms {
    const dlpack_py_want *want; /* not NULL */
    const dlpack_py_request *request;
    const dlpack_py_device *device; /* of the consumer's stream, which is in request; NULL: none */
    const DLDevice *announced;      /* the answer of __dlpack_device__; NULL: not asked */
    int use_table;                  /* an exchange table may be used: it knows neither devices nor copies */
};

/* want; where it is NULL, no requirements. */
static inline const dlpack_py_want *
dlpack_py_impl_want_or_any(const dlpack_py_want *want)
{
    static const dlpack_py_want any = {0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, NULL, NULL};
    return want != NULL ? want : &any;
}

/* Makes terms. want NULL: no requirements. request NULL: a request without arguments. */
DLPACK_PY_IMPL_GENERAL dlpack_py_impl_terms
dlpack_py_impl_terms_make(const dlpack_py_want *want, const dlpack_py_request *request)
{
    static const dlpack_py_request none = {{0, 0}, {0, 0}, 0, {kDLCPU, 0}, 0};
    dlpack_py_impl_terms terms;
    terms.want = dlpack_py_impl_want_or_any(want);
    terms.request = request != NULL ? request : &none;
    terms.device = NULL;
    terms.announced = NULL;
    terms.use_table = (terms.want->options & DLPACK_PY_NO_TABLE) == 0 && !terms.request->has_device &&
                      terms.request->copy == DLPACK_PY_COPY_AS_NEEDED;
    return terms;
}

/* Makes a view empty. */
static inline void
dlpack_py_impl_view_clear(dlpack_py_view *v)
{
    v->tensor.data = NULL;
    v->tensor.ndim = 0;
    v->tensor.shape = v->tensor.strides = NULL;
    v->managed = NULL;
    v->allocated = NULL;
}

/* Fills a view of a row-major tensor. */
static inline void
dlpack_py_impl_view_set(dlpack_py_view *v, const DLTensor *t, uint64_t flags, int32_t readonly, void *managed)
{
    v->tensor = *t;
    v->flags = flags;
    v->readonly = readonly;
    v->overlaps = 0;
    v->form = DLPACK_PY_VERSIONED;
    v->managed = managed;
    v->allocated = NULL;
}

/* Bits of the parameter known. */
#define DLPACK_PY_IMPL_MUST_COPY 1u /* the producer cannot copy, and copy=True was asked for */
#define DLPACK_PY_IMPL_CAN_ASK 2u   /* the producer can be asked again for data that the CPU reads */

/* Functions of sections 3.3, 3.5 and 3.7. */
#if DLPACK_PY_IMPL_HAS_FAST_PATHS
DLPACK_PY_IMPL_HOT int
dlpack_py_impl_consume_fast(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v);
static inline int
dlpack_py_impl_is_common_want(const dlpack_py_want *want);
DLPACK_PY_IMPL_INLINE int
dlpack_py_impl_is_common(const DLTensor *t, int32_t readonly, const dlpack_py_want *want);
DLPACK_PY_IMPL_INLINE int
dlpack_py_impl_is_common_managed(const DLManagedTensorVersioned *managed, const dlpack_py_want *want);
#endif
static inline const dlpack_py_impl_type *
dlpack_py_impl_type_get(dlpack_py_impl_gate *gate, PyTypeObject *type, dlpack_py_impl_type *storage);
#if DLPACK_PY_HAS_EXCHANGE_API
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_take_by_other(const DLPackExchangeAPI *table, int returned, DLManagedTensorVersioned *managed,
                             const dlpack_py_impl_terms *terms, dlpack_py_view *v);
#endif

/* Finds a method as Python finds special methods, on the type; where the type has none, on the instance (C6:
 * proxies). Sets *unbound to 1 where obj is to be passed as the first argument. Returns a new reference; NULL with
 * AttributeError or the error of a descriptor. */
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
    if (found == NULL && !PyErr_Occurred() && PyType_Check(obj)) /* the attributes of a class are for its instances */
        dlpack_py_impl_refuse_value(PyExc_AttributeError, "%.200U is a class, an instance with __dlpack__ was wanted",
                                    obj);
    if (found == NULL)
        return PyErr_Occurred() ? NULL : PyObject_GetAttr(obj, name);
#if DLPACK_PY_IMPL_HAS_TYPE_LOOKUP
    if (PyType_HasFeature(Py_TYPE(found), Py_TPFLAGS_METHOD_DESCRIPTOR)) {
        *unbound = 1; /* no bound method has to be made */
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

/* Calls __dlpack__ with the keywords of pass. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_call_with(const dlpack_py_impl_producer *producer, unsigned pass, const dlpack_py_request *request)
{
    PyObject *keywords[4] = {NULL, NULL, NULL, NULL}, *stack[5], *values[4], *names, *capsule = NULL;
    Py_ssize_t n = 0, i;

    values[0] = producer->cache->version;
    values[1] = (pass & DLPACK_PY_IMPL_PASS_DEVICE) != 0 ? dlpack_py_impl_device_tuple(request->device) : NULL;
    values[2] = request->copy == DLPACK_PY_COPY_ALWAYS ? Py_True : Py_False;
    values[3] = NULL;
    if ((pass & DLPACK_PY_IMPL_PASS_STREAM) != 0)
        values[3] = request->stream.kind == DLPACK_PY_STREAM_NO_SYNC
                        ? Py_BuildValue("i", -1)
                        : Py_BuildValue("K", (unsigned long long)request->stream.handle);
    stack[0] = producer->obj;
    for (i = 0; i < 4; i++) {
        if ((pass >> i & 1) != 0) {
            keywords[n++] = producer->cache->names[i];
            stack[n] = values[i];
        }
    }
    /* PyTuple_Pack reads as many names as its first argument says. */
    names = PyErr_Occurred() ? NULL : PyTuple_Pack(n, keywords[0], keywords[1], keywords[2], keywords[3]);
    if (names != NULL)
        capsule = producer->unbound
                      ? PyObject_Vectorcall(producer->method, stack, 1, names)
                      : PyObject_Vectorcall(producer->method, stack + 1, PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    dlpack_py_impl_xdecref(names);
    dlpack_py_impl_xdecref(values[1]);
    dlpack_py_impl_xdecref(values[3]);
    return capsule;
}

/* Which of the passed keywords does the text of a TypeError refuse (C1)? Only texts count that say that the signature
 * has no such keyword. Python, Cython, PyArg_Parse..., pybind11 and nanobind write such texts differently. Returns 0,
 * with or without an exception, where the text refuses no keyword. stream is never refused: a call without it would
 * mean another stream. */
static inline unsigned
dlpack_py_impl_find_refused(PyObject *exception, unsigned passed)
{
    static const char quoted[3][14] = {"'max_version'", "'dl_device'", "'copy'"}; /* bits 0, 1, 2 */
    PyObject *string = exception == NULL ? NULL : PyObject_Str(exception);
    const char *text = string == NULL ? NULL : PyUnicode_AsUTF8AndSize(string, NULL);
    unsigned refused = 0, i;

    if (text == NULL) {
        if (PyErr_Occurred() && !dlpack_py_impl_is_fatal())
            PyErr_Clear();
    }
    else if (strstr(text, "no keyword argument") != NULL || strstr(text, "incompatible function arguments") != NULL ||
             (strstr(text, "takes at most") != NULL && strstr(text, "keyword argument") != NULL)) {
        refused = passed;
    }
    else if (strstr(text, "unexpected keyword") != NULL || strstr(text, "invalid keyword") != NULL) {
        for (i = 0; i < 3; i++)
            refused |= strstr(text, quoted[i]) != NULL ? passed & 1u << i : 0;
        if ((refused & DLPACK_PY_IMPL_PASS_VERSION) != 0)
            refused = passed; /* the producer is older than all keywords but stream */
    }
    dlpack_py_impl_xdecref(string);
    return refused & ~DLPACK_PY_IMPL_PASS_STREAM;
}

/* After a call of __dlpack__ with the keywords of pass has failed: calls it again without those that its signature
 * refuses (C1). Returns the producer's answer, or NULL with the exception of the last call, or with BufferError where
 * the signature refuses the keyword copy and copy is False (C3). The exception of the first call is put into the
 * context chain of that exception. */
static inline PyObject *
dlpack_py_impl_call_again(dlpack_py_impl_producer *producer, unsigned pass, const dlpack_py_request *request)
{
    dlpack_py_impl_exception first = {NULL, NULL, NULL}, last;
    PyObject *capsule = NULL, *end, *earlier, *next;
    unsigned refused;
    int left = 100; /* contexts to be looked at */

    while (capsule == NULL && pass != 0 && PyErr_ExceptionMatches(PyExc_TypeError)) {
        last = dlpack_py_impl_exception_save();
        refused = dlpack_py_impl_find_refused(last.value, pass);
        if (refused == 0) {
            if (PyErr_Occurred())
                dlpack_py_impl_exception_clear(&last);
            dlpack_py_impl_exception_raise(last);
            break;
        }
        if (first.value == NULL)
            first = last;
        else
            dlpack_py_impl_exception_clear(&last);
        pass &= ~refused;
        producer->refused |= refused;
        if (request->copy == DLPACK_PY_COPY_NEVER && (refused & DLPACK_PY_IMPL_PASS_COPY) != 0)
            PyErr_SetString(PyExc_BufferError, "copy is False, but the producer's __dlpack__ has no keyword copy: "
                                               "it may copy");
        else
            capsule = dlpack_py_impl_call_with(producer, pass, request);
    }
    if (capsule == NULL && first.value != NULL) {
        last = dlpack_py_impl_exception_save();
        end = dlpack_py_impl_exception_value(&last);
        earlier = dlpack_py_impl_exception_value(&first);
        while (end != earlier && --left > 0 && (next = PyException_GetContext(end)) != NULL) {
            Py_DECREF(next); /* end holds a reference */
            end = next;
        }
        if (end != earlier && left > 0) { /* else the chain is long, or contains it */
            Py_INCREF(earlier);
            PyException_SetContext(end, earlier); /* steals the reference */
        }
        dlpack_py_impl_exception_raise(last);
    }
    dlpack_py_impl_exception_clear(&first);
    return capsule;
}

/* Checks where the data is, for a request that names a device, for a copy, and for memory that is not the CPU's.
 * Returns 0; 1 where the producer is to be asked again for data that the CPU reads (C5); -1 with BufferError (C3, C4,
 * C5). */
static inline int
dlpack_py_impl_check_place(const DLTensor *t, const dlpack_py_impl_terms *terms, unsigned known, dlpack_py_error *error)
{
    const dlpack_py_want *want = terms->want;
    const dlpack_py_request *request = terms->request;
    const int readable = dlpack_py_is_cpu_readable(t->device), copies = (known & DLPACK_PY_IMPL_MUST_COPY) != 0;
    const int32_t came = (int32_t)t->device.device_type;
    const DLDevice cpu = dlpack_py_impl_device(kDLCPU, 0);
    DLDevice asked = request->has_device ? request->device : t->device;
    char came_text[DLPACK_PY_TEXT_SIZE], asked_text[DLPACK_PY_TEXT_SIZE];

    /* Device work may be pending on pinned or managed memory. The producer waits for this work only if it is asked for
     * CPU memory. */
    if (readable && came != (int32_t)kDLCPU && (copies || want->device == 0) &&
        (want->options & DLPACK_PY_NOTHING_PENDING) == 0) {
        if ((known & DLPACK_PY_IMPL_CAN_ASK) != 0 && !request->has_device)
            return 1;
        return dlpack_py_impl_refuse(error,
                                     "device is %s: device work may be pending on the data "
                                     "(DLPACK_PY_NOTHING_PENDING accepts it)",
                                     dlpack_py_device_text(t->device, came_text));
    }
    if (copies && !request->has_device)
        asked = want->device > 0 ? dlpack_py_impl_device(want->device, 0) : cpu;
    if (copies ? readable && asked.device_type == kDLCPU && want->device <= (int32_t)kDLCPU
               : came == (int32_t)asked.device_type && (readable || t->device.device_id == asked.device_id)) /* D9 */
        return 0;
    return dlpack_py_impl_refuse(error, "device is %s, %s was asked for%s", dlpack_py_device_text(t->device, came_text),
                                 dlpack_py_device_text(asked, asked_text),
                                 copies ? ": a copy is made from and to the CPU only" : "");
}

/* A major version that this file does not know: only the deleter can be relied on (K6). */
static inline int
dlpack_py_impl_is_unknown(const void *managed, int32_t form)
{
    return form == DLPACK_PY_VERSIONED &&
           ((const DLManagedTensorVersioned *)managed)->version.major != DLPACK_PY_PROTOCOL_MAJOR;
}

/* Checks all that a tensor must meet, and describes it in v; nothing is taken yet (K4).
 *
 * managed   a managed tensor of a form or, where form is 0, a borrowed DLTensor
 * known     DLPACK_PY_IMPL_...
 * copy      out: memory for the copy that is to be made; NULL: none
 *
 * Returns 0; 1 where the producer is to be asked again for data that the CPU reads (C5), and where a borrowed tensor
 * needs a copy; or -1 with *error filled.
 */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_examine(const void *managed, int32_t form, const dlpack_py_impl_terms *terms, unsigned known,
                       dlpack_py_view *v, dlpack_py_impl_export **copy, dlpack_py_error *error)
{
    const DLManagedTensorVersioned *versioned = (const DLManagedTensorVersioned *)managed;
    const DLTensor *t =
        form == DLPACK_PY_VERSIONED ? &versioned->dl_tensor : (const DLTensor *)managed; /* first member */
    const dlpack_py_want *want = terms->want;
    int64_t *strides;
    int32_t readonly = DLPACK_PY_READONLY_UNSAID; /* C7 */
    uint64_t flags = 0;
    int result;

    *copy = NULL;
    if (form == DLPACK_PY_LEGACY && (want->options & DLPACK_PY_LEGACY_IS_WRITABLE) != 0)
        readonly = DLPACK_PY_WRITABLE;
    if (form == DLPACK_PY_LEGACY && terms->request->copy == DLPACK_PY_COPY_ALWAYS) /* it cannot say IS_COPIED (C3) */
        known |= DLPACK_PY_IMPL_MUST_COPY;
    if (form == DLPACK_PY_VERSIONED) {
        if (versioned->version.major != DLPACK_PY_PROTOCOL_MAJOR)
            return dlpack_py_impl_refuse(
                error, "the tensor has DLPack version %" PRIu32 ".%" PRIu32 ", major version %d was wanted",
                versioned->version.major, versioned->version.minor, DLPACK_PY_PROTOCOL_MAJOR);
        flags = versioned->flags;
        readonly = (flags & DLPACK_PY_FLAG_READ_ONLY) != 0 ? DLPACK_PY_READONLY : DLPACK_PY_WRITABLE;
    }
    strides = t->strides; /* not before: of an unknown major version nothing is read (K6) */
    if (dlpack_py_validate(t, flags, error) < 0)
        return -1;
    if (terms->announced != NULL && terms->device->check_announced(t, terms->announced, error) < 0)
        return -1;
    if (dlpack_py_impl_meets(t, readonly, want, error) < 0) {
        if (!error->copy_helps ||
            ((known & DLPACK_PY_IMPL_MUST_COPY) == 0 &&
             ((want->options & DLPACK_PY_COPY_IF_NEEDED) == 0 || terms->request->copy == DLPACK_PY_COPY_NEVER)))
            return -1;
        known |= DLPACK_PY_IMPL_MUST_COPY;
    }
    if (t->device.device_type != kDLCPU || (known & DLPACK_PY_IMPL_MUST_COPY) != 0 || terms->request->has_device) {
        result = dlpack_py_impl_check_place(t, terms, known, error);
        if (result != 0)
            return result;
    }
    if ((known & DLPACK_PY_IMPL_MUST_COPY) != 0) {
        if (form == 0)
            return 1;
        *copy = dlpack_py_impl_copy_new(t, flags, DLPACK_PY_VERSIONED, want->order == 'F' ? 'F' : 'C', want->alignment,
                                        error);
        if (*copy == NULL)
            return -1;
    }
    else if (t->ndim > 0 && t->strides == NULL) {
        if (t->ndim > (int32_t)(sizeof(v->strides) / sizeof(v->strides[0])) &&
            (v->allocated = (int64_t *)DLPACK_PY_MALLOC((size_t)t->ndim * sizeof(int64_t))) == NULL)
            return DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_MEMORY_ERROR, "no memory for %" PRId32 " strides", t->ndim);
        strides = v->allocated != NULL ? v->allocated : v->strides;
        dlpack_py_strides(t->ndim, t->shape, 'C', strides);
    }
    v->tensor = *t;
    v->tensor.strides = strides;
    v->flags = flags;
    v->readonly = readonly;
    v->overlaps = (want->order == 0 || want->order == 'R') &&                              /* else t is compact */
                  (!want->writable || (want->options & DLPACK_PY_OVERLAP_IS_FINE) != 0) && /* else it was refused */
                  dlpack_py_impl_overlaps_itself(t);                                       /* else t is compact */
    return 0;
}

/* Makes v the owner of a copy of the tensor that it describes, and deletes that tensor. Cannot fail. */
static inline void
dlpack_py_impl_view_copy(dlpack_py_view *v, dlpack_py_impl_export *copy)
{
    void *managed = v->managed;
    const int32_t form = v->form;

    dlpack_py_impl_copy_detached(&copy->managed.versioned.dl_tensor, &v->tensor, v->flags);
    v->managed = &copy->managed.versioned;
    v->form = DLPACK_PY_VERSIONED;
    v->tensor = copy->managed.versioned.dl_tensor;
    v->flags = copy->managed.versioned.flags;
    v->readonly = DLPACK_PY_WRITABLE;
    v->overlaps = 0;
    dlpack_py_impl_delete(managed, form); /* last: a deleter may run code that looks at the view */
}

/* The form of a capsule, by its name; 0 with *error filled where the capsule cannot be consumed (K1, K4). */
static inline int32_t
dlpack_py_impl_capsule_form(const char *name, dlpack_py_error *error)
{
    int32_t form;
    for (form = DLPACK_PY_VERSIONED; name != NULL && form <= DLPACK_PY_LEGACY; form++) {
        const char *unused = DLPACK_PY_IMPL_UNUSED_NAME(form);
        if (name == unused || strcmp(name, unused) == 0) /* equal pointers save the call */
            return form;
        if (strcmp(name, DLPACK_PY_IMPL_USED_NAME(form)) == 0) {
            (void)DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_VALUE_ERROR,
                                      "the capsule is named '%s': it was consumed already", name);
            return 0;
        }
    }
    (void)DLPACK_PY_IMPL_FAIL(error, DLPACK_PY_TYPE_ERROR,
                              "the capsule is named '%.60s', 'dltensor_versioned' or 'dltensor' was wanted",
                              name == NULL ? "NULL" : name);
    return 0;
}

/* Raises an error of layer 1, with the name of the argument. Returns -1. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_raise_for(const dlpack_py_want *want, const dlpack_py_error *error)
{
    dlpack_py_error named = *error;
    if (want->name != NULL)
        (void)DLPACK_PY_IMPL_FAIL(&named, error->code, "%s: %s", want->name, error->text);
    return dlpack_py_raise(&named);
}

/* Takes the tensor of a capsule. Returns as dlpack_py_impl_examine, with an exception. On -1 the capsule keeps its
 * tensor (K4), except for a tensor of an unknown major version (K6). */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_take(PyObject *capsule, const dlpack_py_impl_terms *terms, unsigned known, dlpack_py_view *v)
{
    dlpack_py_impl_export *copy = NULL;
    dlpack_py_error error;
    const char *name;
    void *managed = NULL;
    int32_t form;
    int result = -1;

    if (!PyCapsule_CheckExact(capsule))
        return dlpack_py_impl_refuse_value(PyExc_TypeError, "__dlpack__ returned %.200U, a capsule was wanted",
                                           capsule);
    DLPACK_PY_IMPL_LOCK(capsule); /* Nothing in here runs Python code: no other thread changes the name meanwhile. */
    name = PyCapsule_GetName(capsule);
    form = dlpack_py_impl_capsule_form(name, &error);
    if (form != 0) {
        managed = PyCapsule_GetPointer(capsule, name);
        result = dlpack_py_impl_examine(managed, form, terms, known, v, &copy, &error);
        /* Commit point (K4): the tensor is ours from here. A tensor that is asked for again is deleted first (C5). */
        if (result >= 0 || dlpack_py_impl_is_unknown(managed, form))
            (void)PyCapsule_SetName(capsule, DLPACK_PY_IMPL_USED_NAME(form));
        else
            managed = NULL;
    }
    DLPACK_PY_IMPL_UNLOCK();
    if (result == 0) {
        v->managed = managed;
        v->form = form;
        if (copy != NULL)
            dlpack_py_impl_view_copy(v, copy);
        return 0;
    }
    if (managed != NULL)
        dlpack_py_impl_delete(managed, form);
    return result > 0 ? result : dlpack_py_impl_raise_for(terms->want, &error);
}

/* Takes a versioned managed tensor that this file owns already, into an empty view. On failure it is deleted; -1 with
 * an exception. */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_take_managed(DLManagedTensorVersioned *managed, const dlpack_py_impl_terms *terms, unsigned known,
                            dlpack_py_view *v)
{
    dlpack_py_impl_export *copy;
    dlpack_py_error error;

    if (dlpack_py_impl_examine(managed, DLPACK_PY_VERSIONED, terms, known, v, &copy, &error) < 0) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return dlpack_py_impl_raise_for(terms->want, &error);
    }
    v->managed = managed;
    v->form = DLPACK_PY_VERSIONED;
    if (copy != NULL)
        dlpack_py_impl_view_copy(v, copy);
    return 0;
}

/* Calls __dlpack__ with the keywords that are needed, and no other (C4), and takes the tensor of the capsule. Returns
 * as dlpack_py_impl_take. */
static inline int
dlpack_py_impl_fetch(dlpack_py_impl_producer *producer, const dlpack_py_impl_terms *terms, unsigned known,
                     dlpack_py_view *v)
{
    const dlpack_py_request *request = terms->request;
    const unsigned pass = (DLPACK_PY_IMPL_PASS_VERSION | (request->has_device ? DLPACK_PY_IMPL_PASS_DEVICE : 0u) |
                           (request->stream.kind != DLPACK_PY_STREAM_NONE ? DLPACK_PY_IMPL_PASS_STREAM : 0u) |
                           (request->copy != DLPACK_PY_COPY_AS_NEEDED ? DLPACK_PY_IMPL_PASS_COPY : 0u)) &
                          ~producer->refused;
    PyObject *stack[2], *capsule;
    int result;

    stack[0] = producer->obj;
    stack[1] = producer->cache->version;
    if (producer->asked)
        capsule = producer->answer;
    else if (pass != DLPACK_PY_IMPL_PASS_VERSION)
        capsule = dlpack_py_impl_call_with(producer, pass, request);
    else
        capsule = producer->unbound ? PyObject_Vectorcall(producer->method, stack, 1, producer->cache->only_version)
                                    : PyObject_Vectorcall(producer->method, stack + 1, PY_VECTORCALL_ARGUMENTS_OFFSET,
                                                          producer->cache->only_version);
    if (capsule == NULL && (capsule = dlpack_py_impl_call_again(producer, pass, request)) == NULL)
        return -1;
    producer->asked = 0;
    producer->answered = 1;
    if (request->copy == DLPACK_PY_COPY_ALWAYS && (producer->refused & DLPACK_PY_IMPL_PASS_COPY) != 0)
        known |= DLPACK_PY_IMPL_MUST_COPY; /* C3 */
    result = dlpack_py_impl_take(capsule, terms, known, v);
    dlpack_py_impl_decref(capsule);
    return result;
}

/* After __dlpack__ was not found: takes what want->fallback makes of the object (C6). */
static inline int
dlpack_py_impl_consume_fallback(PyObject *obj, const dlpack_py_impl_terms *terms, unsigned known, dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_impl_exception missing;
    int failed;

    if (terms->want->fallback == NULL || !PyErr_ExceptionMatches(PyExc_AttributeError))
        return -1;
    missing = dlpack_py_impl_exception_save();
    failed = terms->want->fallback(obj, &managed) != 0;
    if (!failed && managed == NULL) {
        dlpack_py_impl_exception_raise(missing);
        return -1;
    }
    dlpack_py_impl_exception_clear(&missing);
    return failed ? -1 : dlpack_py_impl_take_managed(managed, terms, known, v);
}

/* Asks a producer, whose method is stolen, and takes the tensor. */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_ask(dlpack_py_impl_producer *producer, const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    dlpack_py_request request;
    dlpack_py_impl_terms for_cpu;
    int result = terms->device == NULL ? dlpack_py_impl_fetch(producer, terms, DLPACK_PY_IMPL_CAN_ASK, v)
                                       : terms->device->fetch(producer, terms, v);

    if (result == 1) { /* ask a second time, for memory that the CPU reads (C5) */
        request = *terms->request;
        memset(&request.stream, 0, sizeof(request.stream));
        request.has_device = 1;
        request.device = dlpack_py_impl_device(kDLCPU, 0);
        for_cpu = dlpack_py_impl_terms_make(terms->want, &request);
        result = dlpack_py_impl_fetch(producer, &for_cpu, 0, v);
    }
    Py_DECREF(producer->method);
    return result;
}

/* Takes a tensor from any object: a capsule, an object whose type has an exchange table, an object with __dlpack__,
 * or an object that want->fallback knows. */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_obtain(PyObject *obj, const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    const unsigned known = terms->request->copy == DLPACK_PY_COPY_ALWAYS ? DLPACK_PY_IMPL_MUST_COPY : 0u;
    dlpack_py_impl_producer producer = {NULL, NULL, NULL, 1, 0, NULL, 0, 0};
    dlpack_py_impl_gate *gate;
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type storage;
    dlpack_py_error error;
#if DLPACK_PY_HAS_EXCHANGE_API
    const DLPackExchangeAPI *table;
    DLManagedTensorVersioned *managed = NULL; /* some tables leave it unset (X8) */
    int result;
#endif

    dlpack_py_impl_view_clear(v);
    if (dlpack_py_impl_check_want(terms->want, &error) < 0)
        return dlpack_py_raise(&error);
    if (PyCapsule_CheckExact(obj))
        return dlpack_py_impl_take(obj, terms, known, v);
    gate = dlpack_py_impl_gate_get();
    if (gate == NULL || (type = dlpack_py_impl_type_get(gate, Py_TYPE(obj), &storage)) == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL && terms->use_table) {
        if (type->own != NULL) {
            result = type->own->consume(type->own, obj, terms, v);
        }
        else {
            table = (const DLPackExchangeAPI *)type->table;
            result = table->managed_tensor_from_py_object_no_sync(obj, &managed);
            result = dlpack_py_impl_take_by_other(table, result, managed, terms, v);
        }
        if (result <= 0)
            return result;
        type = dlpack_py_impl_type_get(gate, Py_TYPE(obj), &storage); /* the table may have run code */
        if (type == NULL)
            return -1;
    }
#endif
    producer.cache = gate->cache;
    producer.obj = obj;
    producer.method = type->method;
    if (producer.method != NULL)
        Py_INCREF(producer.method);
    else
        producer.method = dlpack_py_impl_find_method(obj, gate->cache->names[DLPACK_PY_IMPL_DLPACK], &producer.unbound);
    if (producer.method == NULL)
        return dlpack_py_impl_consume_fallback(obj, terms, known, v);
    return dlpack_py_impl_ask(&producer, terms, v);
}

static inline int
dlpack_py_consume_request(PyObject *obj, const dlpack_py_request *request, const dlpack_py_want *want,
                          dlpack_py_view *v)
{
    dlpack_py_impl_terms terms;
#if DLPACK_PY_IMPL_HAS_FAST_PATHS
    if (request == NULL || (request->copy == DLPACK_PY_COPY_AS_NEEDED && !request->has_device &&
                            request->stream.kind == DLPACK_PY_STREAM_NONE))
        return dlpack_py_impl_consume_fast(obj, want, v);
#endif
    terms = dlpack_py_impl_terms_make(want, request);
    return dlpack_py_impl_obtain(obj, &terms, v);
}

static inline int
dlpack_py_consume(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    return dlpack_py_consume_request(obj, NULL, want, v);
}

static inline void *
dlpack_py_data(const dlpack_py_view *v)
{
    const DLTensor *t = &v->tensor;
    return t->data == NULL ? NULL : (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
}

static inline void
dlpack_py_release(dlpack_py_view *v)
{
    void *managed = v->managed;
    int64_t *allocated = v->allocated;
    const int32_t form = v->form;

    dlpack_py_impl_view_clear(v);
    if (allocated != NULL)
        DLPACK_PY_FREE(allocated);
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

/* For the tp_traverse of an object that holds a view: visits the owner of the tensor, where this file exported it, so
 * that a cycle through both can be collected. */
static inline int
dlpack_py_traverse(const dlpack_py_view *v, visitproc visit, void *arg)
{
    const dlpack_py_impl_keeper *keeper = v->managed == NULL ? NULL : dlpack_py_impl_find_keeper(v->managed, v->form);
    return keeper == NULL ? 0 : visit(keeper->owner, arg);
}

/* Reads device= of from_dlpack: None, a tuple (type, id) or text (C3). */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_parse_device(PyObject *object, dlpack_py_request *request)
{
    int32_t pair[2] = {0, 0};
    Py_ssize_t length = 0;
    const char *text;

    request->has_device = 1;
    if (!PyUnicode_Check(object)) {
        if (dlpack_py_impl_pair("device is %.200U, None, a tuple of two integers or a name was wanted", object, pair) <
            0)
            return -1;
        request->device = dlpack_py_impl_device(pair[0], pair[1]);
        return 0;
    }
    text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text != NULL && strlen(text) == (size_t)length && dlpack_py_impl_parse_device_text(text, &request->device) == 0)
        return 0;
    return dlpack_py_impl_refuse_value(PyExc_ValueError,
                                       "device is %.200U, a name such as 'cpu' or 'cuda:1' was wanted", object);
}

/* Reads device= and copy= of from_dlpack; NULL: not given. */
static inline int
dlpack_py_impl_parse_place(PyObject *device, PyObject *copy, dlpack_py_request *request)
{
    if (dlpack_py_parse_request_args(NULL, NULL, NULL, copy, request) < 0)
        return -1;
    return device == NULL || device == Py_None ? 0 : dlpack_py_impl_parse_device(device, request);
}

/* Reads the arguments of a call of from_dlpack; args[0] is x. */
static inline int
dlpack_py_impl_parse_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, dlpack_py_request *request)
{
    PyObject *values[DLPACK_PY_IMPL_KEYWORDS] = {NULL, NULL, NULL, NULL, NULL};
    const unsigned allowed = 1u << DLPACK_PY_IMPL_DEVICE | 1u << DLPACK_PY_IMPL_COPY;

    if ((nargs != 1 && dlpack_py_impl_refuse_nargs("from_dlpack", nargs, 1) < 0) ||
        dlpack_py_impl_match_keywords("from_dlpack", allowed, args + nargs, kwnames, values) < 0)
        return -1;
    return dlpack_py_impl_parse_place(values[DLPACK_PY_IMPL_DEVICE], values[DLPACK_PY_IMPL_COPY], request);
}

static inline int
dlpack_py_from_dlpack_args(PyObject *x, PyObject *device, PyObject *copy, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_request request;
    dlpack_py_impl_view_clear(v);
    if (dlpack_py_impl_parse_place(device, copy, &request) < 0)
        return -1;
    return dlpack_py_consume_request(x, &request, want, v);
}

static inline int
dlpack_py_from_dlpack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, const dlpack_py_want *want,
                      dlpack_py_view *v)
{
    dlpack_py_request request;
    dlpack_py_impl_view_clear(v);
    if (dlpack_py_impl_parse_from_dlpack(args, nargs, kwnames, &request) < 0)
        return -1;
    return dlpack_py_consume_request(args[0], &request, want, v);
}

static inline int
dlpack_py_check(PyObject *obj)
{
    dlpack_py_impl_exception saved;
    dlpack_py_impl_gate *gate;
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type storage;
    dlpack_py_error error;
    PyObject *method = NULL;
    int unbound, offered;

    if (PyCapsule_CheckExact(obj)) {
        DLPACK_PY_IMPL_LOCK(obj); /* the name changes when the capsule is consumed */
        offered = dlpack_py_impl_capsule_form(PyCapsule_GetName(obj), &error) != 0;
        DLPACK_PY_IMPL_UNLOCK();
        return offered;
    }
    saved = dlpack_py_impl_exception_save();
    gate = dlpack_py_impl_gate_get();
    type = gate == NULL ? NULL : dlpack_py_impl_type_get(gate, Py_TYPE(obj), &storage);
    offered = type != NULL && type->table != NULL;
    if (type != NULL && !offered) {
        method = dlpack_py_impl_find_method(obj, gate->cache->names[DLPACK_PY_IMPL_DLPACK], &unbound);
        if (method == NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            PyErr_Clear();
        offered = method != NULL && method != Py_None;
    }
    Py_XDECREF(method);
    dlpack_py_impl_exception_restore(saved);
    return offered;
}

/* ---- 3.1 Managed tensors in the author's object ------------------------- */

/* Fill the managed tensors in the author's object, as the object is made.
 *
 * owner   the object; borrowed now, held by each export
 * t       its shape and strides must live in the object too; strides are not NULL
 * flags   DLPACK_PY_FLAG_* that describe the data
 *
 * Returns 0, or -1 with BufferError (D8), ValueError (no strides) or MemoryError.
 */
static inline int
dlpack_py_embed(dlpack_py_embedded *e, PyObject *owner, const DLTensor *t, uint64_t flags)
{
    dlpack_py_error error;

    e->common = 0;
#if DLPACK_PY_IMPL_HAS_FAST_PATHS
    if (dlpack_py_impl_is_common(t, DLPACK_PY_WRITABLE, dlpack_py_impl_want_or_any(NULL)))
        e->common = dlpack_py_dtype(t);
#endif
    if (e->common == 0 && dlpack_py_validate(t, flags, &error) < 0)
        return dlpack_py_raise(&error);
    if (t->ndim > 0 && t->strides == NULL) {
        PyErr_SetString(PyExc_ValueError, "strides is NULL, dlpack_py_embed needs strides that the object stores");
        return -1;
    }
    memset(&e->keeper, 0, sizeof(e->keeper));
    e->keeper.gate = dlpack_py_impl_gate_get();
    if (e->keeper.gate == NULL)
        return -1;
    e->keeper.owner = owner;
    e->versioned.version.major = DLPACK_PY_PROTOCOL_MAJOR;
    e->versioned.version.minor = DLPACK_PY_PROTOCOL_MINOR;
    e->versioned.manager_ctx = e->legacy.manager_ctx = &e->keeper;
    e->versioned.deleter = dlpack_py_impl_delete_versioned;
    e->versioned.flags = dlpack_py_impl_kept_flags(t, flags);
    e->versioned.dl_tensor = *t;
    dlpack_py_impl_fold_offset(&e->versioned.dl_tensor);
    e->legacy.deleter = dlpack_py_impl_delete_legacy;
    e->legacy.dl_tensor = e->versioned.dl_tensor;
    return 0;
}

/* An offer of the managed tensors in the author's object. */
static inline dlpack_py_offer
dlpack_py_offer_embedded(dlpack_py_embedded *e)
{
    dlpack_py_offer offer = dlpack_py_offer_make(e->keeper.owner, &e->versioned.dl_tensor, e->versioned.flags);
    offer.embedded = e;
    return offer;
}

/* ---- 3.2 The end of an interpreter -------------------------------------- */

/* Each source file has a gate for each interpreter, made at the first use and never freed, because exports point to the
 * gate. A deleter may run on any thread at any time (K5): the gate tells it whether the interpreter can still be used.
 *
 * Open: a deleter drops its owner; a thread that is not attached attaches first. Closing, from the exit callback on: an
 * attached thread drops the owner, another thread leaks the owner. Gone, after the modules were destroyed: every thread
 * leaks the owner. The struct of the export is freed in every state. Files share no data: different versions and builds
 * of this header do not depend on each other (G2). */
#define DLPACK_PY_IMPL_GATE_NAME "dlpack_py.gate"

typedef struct dlpack_py_impl_file {
    dlpack_py_impl_word lock;  /* guards writes to lists, gates and caches; the id of the process that holds it, or 0 */
    dlpack_py_impl_word gates; /* dlpack_py_impl_gate *, the first of the list */
    dlpack_py_impl_gate *retired;
} dlpack_py_impl_file;

static inline dlpack_py_impl_file *
dlpack_py_impl_this_file(void)
{
    static dlpack_py_impl_file file;
    return &file;
}

/* Spin lock, held for a few instructions. Stores the owner's process, so that a forked child can take over a lock
 * that a thread of its parent held. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_lock(dlpack_py_impl_word *lock)
{
    const dlpack_py_impl_word process = DLPACK_PY_IMPL_PROCESS();
    while (DLPACK_PY_IMPL_SWAP(lock, process) == process)
        continue;
}

static inline void
dlpack_py_impl_unlock(dlpack_py_impl_word *lock)
{
    DLPACK_PY_IMPL_STORE(lock, 0);
}

/* In a forked child no deleter is attaching: the count is set to 0. Called before each use of the count. process: the
 * id of this process. */
static inline void
dlpack_py_impl_reset_after_fork(dlpack_py_impl_gate *gate, dlpack_py_impl_word process)
{
    dlpack_py_impl_file *file = dlpack_py_impl_this_file();

    if (DLPACK_PY_IMPL_LOAD(&gate->process) == process)
        return;
    dlpack_py_impl_lock(&file->lock);
    if (DLPACK_PY_IMPL_LOAD(&gate->process) != process) { /* two threads of the child may come here at once */
        DLPACK_PY_IMPL_STORE(&gate->deleters, DLPACK_PY_IMPL_LOAD(&gate->deleters) & 1);
        DLPACK_PY_IMPL_STORE(&gate->process, process);
    }
    dlpack_py_impl_unlock(&file->lock);
}

DLPACK_PY_IMPL_RARE void
dlpack_py_impl_drop_unattached(dlpack_py_impl_gate *gate, PyObject *owner, dlpack_py_exports *exports,
                               PyThreadState *current)
{
    const dlpack_py_impl_word process = DLPACK_PY_IMPL_PROCESS();
    PyThreadState *own, *made = NULL;

    dlpack_py_impl_reset_after_fork(gate, process);
    /* The exit callback waits until each deleter that was counted before the gate closed is detached. */
    if ((DLPACK_PY_IMPL_ADD(&gate->deleters, 2) & 1) == 0 && !dlpack_py_impl_is_finalizing()) {
        if (current != NULL)
            (void)PyEval_SaveThread();
        own = PyGILState_GetThisThreadState();
        if (own == NULL || PyThreadState_GetInterpreter(own) != gate->interpreter)
            own = made = PyThreadState_New(gate->interpreter);
        if (own != NULL) {
            PyEval_RestoreThread(own);
            dlpack_py_impl_drop_attached(owner, exports);
            if (made != NULL)
                PyThreadState_Clear(made);
            (void)PyEval_SaveThread();
            if (made != NULL)
                PyThreadState_Delete(made);
        }
        if (current != NULL)
            PyEval_RestoreThread(current);
    }
    if (DLPACK_PY_IMPL_PROCESS() == process) /* else the owner's destructor forked, and this is the child */
        (void)DLPACK_PY_IMPL_ADD(&gate->deleters, -2);
}

DLPACK_PY_IMPL_RARE void
dlpack_py_impl_cache_free(dlpack_py_impl_cache *cache)
{
    dlpack_py_impl_own *own = (dlpack_py_impl_own *)DLPACK_PY_IMPL_LOAD(&cache->own), *next;
    unsigned i;

    for (; own != NULL; own = next) {
        next = own->next;
        Py_DECREF(own->reference);
        DLPACK_PY_FREE(own);
    }
    dlpack_py_impl_xdecref((PyObject *)DLPACK_PY_IMPL_LOAD(&cache->carrier));
    dlpack_py_impl_xdecref((PyObject *)DLPACK_PY_IMPL_LOAD(&cache->buffer_carrier));
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    dlpack_py_impl_xdecref(cache->from_dlpack);
#endif
    for (i = 0; i < DLPACK_PY_IMPL_NAMES; i++)
        dlpack_py_impl_xdecref(cache->names[i]);
    dlpack_py_impl_xdecref(cache->only_version);
    dlpack_py_impl_xdecref(cache->version);
    dlpack_py_impl_xdecref(cache->cpu);
    DLPACK_PY_FREE(cache);
}

/* The destructor of the capsule in the interpreter's dictionary. It runs after the modules were torn down, also where
 * the exit callback was never run. A thread without the lock may still read gate->next: it stays valid. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_gate_gone(PyObject *capsule)
{
    dlpack_py_impl_gate *gate = (dlpack_py_impl_gate *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_GATE_NAME);
    dlpack_py_impl_cache *cache = gate->cache;
    dlpack_py_impl_file *file = dlpack_py_impl_this_file();
    dlpack_py_impl_word *link = &file->gates;

    if (!gate->registered) { /* no caller got it */
        dlpack_py_impl_cache_free(cache);
        DLPACK_PY_FREE(gate);
        return;
    }
    (void)DLPACK_PY_IMPL_OR(&gate->deleters, 1);
    DLPACK_PY_IMPL_STORE(&gate->gone, 1);
    dlpack_py_impl_lock(&file->lock);
    while (DLPACK_PY_IMPL_LOAD(link) != 0 && DLPACK_PY_IMPL_LOAD(link) != (dlpack_py_impl_word)gate)
        link = &((dlpack_py_impl_gate *)DLPACK_PY_IMPL_LOAD(link))->next;
    if (DLPACK_PY_IMPL_LOAD(link) != 0)
        DLPACK_PY_IMPL_STORE(link, DLPACK_PY_IMPL_LOAD(&gate->next));
    gate->retired = file->retired;
    file->retired = gate;
    dlpack_py_impl_unlock(&file->lock);
    gate->cache = NULL;
    dlpack_py_impl_cache_free(cache);
}

/* The exit callback: closes the gate, and lets go of the GIL until the deleters that are attaching are done, or until
 * DLPACK_PY_EXIT_WAIT is over. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_at_exit(PyObject *self, PyObject *unused)
{
    dlpack_py_impl_gate *gate = (dlpack_py_impl_gate *)PyCapsule_GetPointer(self, DLPACK_PY_IMPL_GATE_NAME);
    int waits = (DLPACK_PY_EXIT_WAIT) * 1000;

    (void)unused;
    dlpack_py_impl_reset_after_fork(gate, DLPACK_PY_IMPL_PROCESS());
    (void)DLPACK_PY_IMPL_OR(&gate->deleters, 1);
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    gate->cache->like = NULL;
    Py_CLEAR(gate->cache->from_dlpack); /* the modules end before the cache */
#endif
    Py_BEGIN_ALLOW_THREADS
    while (DLPACK_PY_IMPL_LOAD(&gate->deleters) > 1 && waits-- > 0)
        DLPACK_PY_IMPL_SLEEP();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Registers the exit callback, and then enters the gate into the list: a gate in the list will be closed and taken
 * out. An interpreter that is ending registers nothing: there the gate is closing from the start, and is not in the
 * list. Returns 0; -1 with MemoryError, KeyboardInterrupt or the like, and the next use tries again.
 * PyUnstable_AtExit would be too late: its callbacks run after the modules are gone. */
static inline int
dlpack_py_impl_gate_register(dlpack_py_impl_gate *gate)
{
    static PyMethodDef callback = {"dlpack_py_at_exit", dlpack_py_impl_at_exit, METH_NOARGS, NULL};
    dlpack_py_impl_file *file = dlpack_py_impl_this_file();
    PyObject *self, *method = NULL, *module = NULL, *result = NULL;

    if (gate->registered)
        return 0;
    gate->registered = 1; /* first: registering runs Python code, which may call this function */
    self = PyCapsule_New(gate, DLPACK_PY_IMPL_GATE_NAME, NULL);
    if (self != NULL)
        method = PyCFunction_NewEx(&callback, self, NULL);
    if (method != NULL)
        module = PyImport_ImportModule("atexit");
    if (module != NULL)
        result = PyObject_CallMethod(module, "register", "O", method);
    dlpack_py_impl_xdecref(self);
    dlpack_py_impl_xdecref(method);
    dlpack_py_impl_xdecref(module);
    if (result == NULL) {
        if (dlpack_py_impl_is_fatal() || PyErr_ExceptionMatches(PyExc_RecursionError)) {
            gate->registered = 0;
            return -1;
        }
        PyErr_Clear();
        (void)DLPACK_PY_IMPL_OR(&gate->deleters, 1);
        return 0;
    }
    dlpack_py_impl_xdecref(result);
    dlpack_py_impl_lock(&file->lock);
    DLPACK_PY_IMPL_STORE(&gate->next, DLPACK_PY_IMPL_LOAD(&file->gates));
    DLPACK_PY_IMPL_STORE(&file->gates, (dlpack_py_impl_word)gate);
    dlpack_py_impl_unlock(&file->lock);
    return 0;
}

/* A new gate with its cache, in a capsule that owns both, in no dictionary and no list yet; NULL with an exception. */
static inline PyObject *
dlpack_py_impl_gate_new(PyInterpreterState *interpreter)
{
    static const char names[] = "max_version\0dl_device\0copy\0stream\0__dlpack__\0__dlpack_device__\0"
                                "__dlpack_c_exchange_api__\0__array_namespace__\0__module__\0from_dlpack";
    const char *name = names;
    dlpack_py_impl_gate *gate = (dlpack_py_impl_gate *)DLPACK_PY_MALLOC(sizeof(*gate));
    dlpack_py_impl_cache *cache = gate == NULL ? NULL : (dlpack_py_impl_cache *)DLPACK_PY_MALLOC(sizeof(*cache));
    PyObject *capsule = NULL;
    int i = 0;

    if (cache == NULL) {
        if (gate != NULL)
            DLPACK_PY_FREE(gate);
        (void)PyErr_NoMemory();
        return NULL;
    }
    memset(gate, 0, sizeof(*gate));
    memset(cache, 0, sizeof(*cache));
    gate->interpreter = interpreter;
    gate->process = DLPACK_PY_IMPL_PROCESS();
    gate->cache = cache;
    for (; i < DLPACK_PY_IMPL_NAMES && (cache->names[i] = PyUnicode_InternFromString(name)) != NULL; i++)
        name += strlen(name) + 1;
    if (i == DLPACK_PY_IMPL_NAMES && (cache->only_version = PyTuple_Pack(1, cache->names[0])) != NULL &&
        (cache->version = Py_BuildValue("(ii)", DLPACK_PY_PROTOCOL_MAJOR, DLPACK_PY_PROTOCOL_MINOR)) != NULL &&
        (cache->cpu = Py_BuildValue("(ii)", (int)kDLCPU, 0)) != NULL)
        capsule = PyCapsule_New(gate, DLPACK_PY_IMPL_GATE_NAME, dlpack_py_impl_gate_gone);
    if (capsule == NULL) {
        dlpack_py_impl_cache_free(cache);
        DLPACK_PY_FREE(gate);
    }
    return capsule;
}

/* Finds the gate in the interpreter's dictionary, or makes the gate. Without a GIL, the first use of the dictionary and
 * of atexit is not safe on two threads at once (3.13): all files and versions of this header lock PyCapsule_Type. A
 * critical section is right: it is released while a thread waits, and finalizers may call this function. */
DLPACK_PY_IMPL_RARE dlpack_py_impl_gate *
dlpack_py_impl_gate_find(PyInterpreterState *interpreter)
{
    PyObject *names, *key = NULL, *capsule = NULL, *made = NULL;
    dlpack_py_impl_gate *gate = NULL;
    char text[DLPACK_PY_TEXT_SIZE];

    snprintf(text, sizeof(text), "dlpack_py.%x.%p", DLPACK_PY_VERSION, (void *)dlpack_py_impl_this_file());
    DLPACK_PY_IMPL_LOCK((PyObject *)&PyCapsule_Type);
    names = PyInterpreterState_GetDict(interpreter); /* borrowed */
    if (names == NULL)
        PyErr_SetString(PyExc_RuntimeError, "the interpreter has no dictionary");
    else
        key = Py_BuildValue("s", text);
    if (key != NULL)
        capsule = PyDict_GetItemWithError(names, key); /* borrowed: the entry is never removed */
    Py_XINCREF(capsule);
    if (key != NULL && capsule == NULL && !PyErr_Occurred()) {
        made = dlpack_py_impl_gate_new(interpreter);
        if (made != NULL) /* a finalizer, or another thread, may have made one meanwhile: setdefault returns that */
            capsule = PyObject_CallMethod(names, "setdefault", "OO", key, made);
        dlpack_py_impl_xdecref(made);
    }
    gate = capsule == NULL ? NULL : (dlpack_py_impl_gate *)PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_GATE_NAME);
    dlpack_py_impl_xdecref(key);
    dlpack_py_impl_xdecref(capsule); /* the dictionary holds it */
    if (gate != NULL && dlpack_py_impl_gate_register(gate) < 0)
        gate = NULL;
    DLPACK_PY_IMPL_UNLOCK();
    return gate;
}

/* The gate of this file in the current interpreter, borrowed; NULL with MemoryError or RuntimeError, or the exception
 * of an interrupt. */
DLPACK_PY_IMPL_GENERAL dlpack_py_impl_gate *
dlpack_py_impl_gate_get(void)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    dlpack_py_impl_gate *gate = (dlpack_py_impl_gate *)DLPACK_PY_IMPL_LOAD(&dlpack_py_impl_this_file()->gates);
    while (gate != NULL && gate->interpreter != interpreter)
        gate = (dlpack_py_impl_gate *)DLPACK_PY_IMPL_LOAD(&gate->next);
    return gate != NULL ? gate : dlpack_py_impl_gate_find(interpreter);
}

/* Prepare this file for the current interpreter: call it when the module is created. Optional: the first use of the
 * header prepares the file too. If the first use is in an exit callback, the interpreter ends without waiting for
 * deleters on other threads. Returns 0, or -1 with MemoryError or RuntimeError. */
static inline int
dlpack_py_init(void)
{
    return dlpack_py_impl_gate_get() == NULL ? -1 : 0;
}

/* A new tuple (type, id). */
static inline PyObject *
dlpack_py_impl_device_tuple(DLDevice device)
{
    dlpack_py_impl_gate *gate;
    if (device.device_type != kDLCPU || device.device_id != 0)
        return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
    gate = dlpack_py_impl_gate_get();
    if (gate == NULL)
        return NULL;
    Py_INCREF(gate->cache->cpu);
    return gate->cache->cpu;
}

/* ---- 3.3 What is remembered of a type ----------------------------------- */

#define DLPACK_PY_IMPL_EXCHANGE_NAME "dlpack_exchange_api"

#if DLPACK_PY_HAS_EXCHANGE_API
/* The table of our major version in a chain, or NULL; NULL also where it lacks a function that it must have (X2). */
static inline const DLPackExchangeAPI *
dlpack_py_impl_usable_table(const DLPackExchangeAPIHeader *header)
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
    if (table->managed_tensor_allocator == NULL || table->managed_tensor_from_py_object_no_sync == NULL ||
        table->managed_tensor_to_py_object_no_sync == NULL || table->current_work_stream == NULL)
        return NULL;
    return table;
}
#endif

/* Finds the exchange table to use for a type. Looks on the type only, never on the instance (X1). Anything but a
 * capsule counts as absent. Returns 0; -1 where the type cannot be looked at now, with an exception only if that must
 * be passed on (MemoryError, KeyboardInterrupt). */
static inline int
dlpack_py_impl_find_table(dlpack_py_impl_cache *cache, PyTypeObject *type, dlpack_py_impl_type *storage)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    PyObject *const name = cache->names[DLPACK_PY_IMPL_EXCHANGE];
    PyObject *capsule = dlpack_py_impl_type_lookup(type, name), *names = NULL;
    const dlpack_py_impl_own *own;
    void *header;

    /* A derived class that overrides __dlpack__ has no table: its author changed what an export means (X2). */
    if (capsule != NULL && (header = PyCapsule_GetPointer(capsule, DLPACK_PY_IMPL_EXCHANGE_NAME)) != NULL &&
        (names = dlpack_py_impl_first_with(type, name, cache->names[DLPACK_PY_IMPL_DLPACK])) != NULL &&
        PySequence_Contains(names, name) > 0) {
        storage->table = dlpack_py_impl_usable_table((const DLPackExchangeAPIHeader *)header);
        own = (const dlpack_py_impl_own *)DLPACK_PY_IMPL_LOAD(&cache->own);
        storage->own = storage->table == NULL || own == NULL ? NULL : own->find(own, type, storage->table);
    }
    dlpack_py_impl_xdecref(names);
    dlpack_py_impl_xdecref(capsule);
#else
    (void)cache;
    (void)type;
    (void)storage;
#endif
    if (!PyErr_Occurred())
        return 0;
    if (!dlpack_py_impl_is_fatal())
        PyErr_Clear();
    return -1;
}

#if DLPACK_PY_IMPL_HAS_TYPE_TAGS
/* Where a type is remembered: in its place or, where another type has the place, in the next one. */
static inline dlpack_py_impl_slot *
dlpack_py_impl_type_slot(dlpack_py_impl_cache *cache, PyTypeObject *type)
{
    const uintptr_t address = (uintptr_t)type;
    dlpack_py_impl_slot *slot = &cache->types[(address >> 4 ^ address >> 9) % DLPACK_PY_IMPL_TYPES];
#  if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    return slot->type == type || slot->type == NULL ? slot : slot + 1;
#  else
    return slot;
#  endif
}

/* Learns what a type offers, into slot where it can be kept, or else into storage. */
DLPACK_PY_IMPL_RARE const dlpack_py_impl_type *
dlpack_py_impl_type_learn(dlpack_py_impl_cache *cache, PyTypeObject *type, dlpack_py_impl_slot *slot,
                          dlpack_py_impl_type *storage)
{
    PyObject *method = dlpack_py_impl_type_lookup(type, cache->names[DLPACK_PY_IMPL_DLPACK]);
    int failed;
#  if !DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    dlpack_py_impl_word place;
#  endif

    memset(storage, 0, sizeof(*storage));
    storage->type = type;
    storage->tag = dlpack_py_impl_type_tag(type);
    if (method != NULL && PyType_HasFeature(Py_TYPE(method), Py_TPFLAGS_METHOD_DESCRIPTOR))
        storage->method = method; /* the type holds it for as long as its tag stays */
    dlpack_py_impl_xdecref(method);
    failed = dlpack_py_impl_find_table(cache, type, storage);
    if (failed && PyErr_Occurred())
        return NULL;
    if (failed || storage->tag == 0 ||
        storage->tag != dlpack_py_impl_type_tag(type)) { /* a metaclass may have changed it */
        storage->method = NULL;
        return storage;
    }
#  if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    *slot = *storage;
    return slot;
#  else
    storage->method = NULL; /* another thread may change the type before this one has a reference */
    place = DLPACK_PY_IMPL_ADD(&cache->learnt_count, 1);
    if (place >= (dlpack_py_impl_word)(sizeof(cache->learnt) / sizeof(cache->learnt[0])))
        return storage;
    cache->learnt[place] = *storage;
    DLPACK_PY_IMPL_STORE(slot, (dlpack_py_impl_word)&cache->learnt[place]);
    return &cache->learnt[place];
#  endif
}
#endif

/* What a type offers, valid until other code runs. storage: where it is put if it cannot be remembered. Returns NULL
 * with MemoryError, KeyboardInterrupt or the like. */
static inline const dlpack_py_impl_type *
dlpack_py_impl_type_get(dlpack_py_impl_gate *gate, PyTypeObject *type, dlpack_py_impl_type *storage)
{
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    dlpack_py_impl_type *slot = dlpack_py_impl_type_slot(gate->cache, type);
    if (slot->type == type && slot->tag == dlpack_py_impl_type_tag(type))
        return slot;
    return dlpack_py_impl_type_learn(gate->cache, type, slot, storage);
#elif DLPACK_PY_IMPL_HAS_TYPE_TAGS
    dlpack_py_impl_slot *slot = dlpack_py_impl_type_slot(gate->cache, type);
    const dlpack_py_impl_type *learnt = (const dlpack_py_impl_type *)DLPACK_PY_IMPL_LOAD(slot);
    if (learnt != NULL && learnt->type == type && learnt->tag == dlpack_py_impl_type_tag(type))
        return learnt;
    return dlpack_py_impl_type_learn(gate->cache, type, slot, storage);
#else
    memset(storage, 0, sizeof(*storage));
    return dlpack_py_impl_find_table(gate->cache, type, storage) < 0 && PyErr_Occurred() ? NULL : storage;
#endif
}

/* ---- 3.4 The exchange table of a type ----------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API
/* What DLPACK_PY_EXCHANGE_API defines. */
typedef struct dlpack_py_exchange {
    DLPackExchangeAPI api; /* first: the capsule on the type points to it */
    dlpack_py_describe describe;
    PyObject *(*make_steal)(PyTypeObject *type, dlpack_py_view *v);
    const dlpack_py_want *want;
    int (*work_stream)(DLDeviceType type, int32_t id, void **out); /* NULL: for memory that the CPU can read */
    size_t embedded; /* the offset of the dlpack_py_embedded in an object; 0: none */
} dlpack_py_exchange;

/* Define the exchange table of a type, at file scope, with a semicolon.
 *
 * name         of the static dlpack_py_exchange, for dlpack_py_exchange_add
 * describe     a dlpack_py_describe that offers the data in place. The tensor, shape and strides of the offer must live
 *              as long as self. A tensor whose strides are NULL cannot be borrowed (X3): consumers take a slower way
 * make_steal   PyObject *(PyTypeObject *type, dlpack_py_view *v): a new object of the type that owns the view; v is
 *              stolen, also on failure. Export the view by dlpack_py_offer_view: read-only data stays read-only
 * want         const dlpack_py_want *: what make_steal can use; NULL: any tensor that the CPU can read
 *
 * Objects in memory that the CPU cannot read are exported by __dlpack__ alone, unless the table is defined by
 * DLPACK_PY_EXCHANGE_API_WITH_STREAM, with one argument more:
 *
 * work_stream   int (DLDeviceType type, int32_t id, void **stream): the stream of device id on which the calling thread
 *               works on such objects. Returns 0 and sets *stream to the value that __dlpack__ takes as stream, for
 *               example (void *)dlpack_cuda_stream(s); NULL is the legacy default stream. Returns -1 with BufferError
 *               for an unknown device. Where each object has its own stream, describe puts that stream into pending,
 *               and the header orders it before *stream (X4). make_steal gets tensors that are ordered on *stream.
 */
#define DLPACK_PY_EXCHANGE_API(name, describe, make_steal, want) \
    DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, describe, make_steal, want, NULL)
#define DLPACK_PY_EXCHANGE_API_WITH_STREAM(name, describe, make_steal, want, work_stream) \
    DLPACK_PY_IMPL_DEFINE_TABLE(name, describe, make_steal, want, work_stream, 0)

/* As DLPACK_PY_EXCHANGE_API, for objects with embedded managed tensors (3.1): a consumer in this file takes an object
 * on the CPU by them, where dlpack_py_embed has filled them, without a call of describe, which must offer the same.
 * Before that call the dlpack_py_embedded of an object must be all zero, as tp_alloc makes it.
 *
 * offset   of the dlpack_py_embedded in an object: offsetof(Thing, embedded)
 */
#define DLPACK_PY_EXCHANGE_API_EMBEDDED(name, describe, make_steal, want, offset) \
    DLPACK_PY_IMPL_DEFINE_TABLE(name, describe, make_steal, want, NULL, offset)

#define DLPACK_PY_IMPL_DEFINE_TABLE(name, describe, make_steal, want, work_stream, embedded)               \
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
                                            (describe),                                                    \
                                            (make_steal),                                                  \
                                            (want),                                                        \
                                            (work_stream),                                                 \
                                            (embedded)};                                                   \
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

/* After a call of a table's function: returns 0 where it succeeded and set no exception. Otherwise makes sure that
 * there is an exception, and returns -1. */
DLPACK_PY_IMPL_SHARED int
dlpack_py_impl_check_table_call(int returned, const char *function)
{
    if (returned == 0 && !PyErr_Occurred())
        return 0;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_RuntimeError, "the producer's exchange table: %s failed without an exception", function);
    return -1;
}

/* After a failure of a table. Returns 1 where __dlpack__ is to be asked: a table may refuse data of a device that
 * __dlpack__ exports. Returns -1 with the exception otherwise. */
static inline int
dlpack_py_impl_table_failed(const dlpack_py_impl_terms *terms)
{
    if (terms->device == NULL || !PyErr_ExceptionMatches(PyExc_BufferError))
        return -1;
    PyErr_Clear();
    return 1;
}

/* Plans the export of an offer by a table. Data on a device is ordered on the table's stream; other data has no
 * stream, and its pending work is waited for (X4). */
static inline int
dlpack_py_impl_table_plan(const dlpack_py_exchange *x, const dlpack_py_offer *offer, dlpack_py_request *request,
                          dlpack_py_plan *plan)
{
    dlpack_py_work_stream work = {0, 0};

    memset(request, 0, sizeof(*request));
    request->max_version.major = DLPACK_PY_PROTOCOL_MAJOR;
    if (dlpack_py_impl_plan(offer, request, plan) < 0)
        return -1;
    if (offer->device == NULL || !dlpack_py_impl_is_on(offer->device, plan->device))
        return 0;
    work.device_id = plan->device.device_id;
    if (offer->device->get_work_stream(&x->api, &work) < 0)
        return -1;
    request->stream.kind = DLPACK_PY_STREAM_HANDLE;
    request->stream.handle = work.handle;
    return 0;
}

/* Exports an offer by a table. Returns a managed tensor, owned by the caller, or NULL with an exception. */
static inline DLManagedTensorVersioned *
dlpack_py_impl_table_export(const dlpack_py_exchange *x, const dlpack_py_offer *offer)
{
    dlpack_py_request request;
    dlpack_py_plan plan;
    void *managed = NULL;

    if (dlpack_py_impl_table_plan(x, offer, &request, &plan) == 0)
        managed = dlpack_py_impl_export_offer(offer, &plan);
    if (managed == NULL || plan.copy || offer->pending_count == 0 ||
        offer->device->make_ready(offer, &request, &plan) == 0)
        return (DLManagedTensorVersioned *)managed;
    dlpack_py_impl_delete(managed, plan.form);
    return NULL;
}

/* Lends the tensor of an object. Returns 0; 1 where the tensor cannot be lent (X3), with the reason in *why; or -1 with
 * an exception. */
static inline int
dlpack_py_impl_table_lend(const dlpack_py_exchange *x, const dlpack_py_offer *offer, DLTensor *out, const char **why)
{
    const DLTensor *t = offer->tensor;
    dlpack_py_request request;
    dlpack_py_plan plan;
    dlpack_py_error error;
    int failed;

    if (dlpack_py_impl_table_plan(x, offer, &request, &plan) < 0)
        return -1;
    *why = plan.copy                                                   ? "is exported as a copy only"
           : (plan.flags & DLPACK_PY_FLAG_READ_ONLY) != 0              ? "is read-only"
           : (plan.flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? "is padded"
           : t->ndim > 0 && t->strides == NULL                         ? "has no strides in its object"
                                                                       : NULL;
    if (*why != NULL)
        return 1;
    if (offer->pending_count > 0) {
        dlpack_py_impl_count(offer->exports, 1);
        failed = offer->device->make_ready(offer, &request, &plan);
        dlpack_py_impl_count(offer->exports, -1);
        if (failed < 0)
            return -1;
        /* Other threads may have changed the tensor while this one waited. */
        if (dlpack_py_validate(t, offer->flags, &error) < 0)
            return dlpack_py_raise(&error);
    }
    *out = *t;
    return 0;
}

/* Raises ValueError where the out parameter of a table's function is NULL (X6). */
static inline int
dlpack_py_impl_check_out(const void *out)
{
    if (out == NULL)
        PyErr_SetString(PyExc_ValueError, "out is NULL, a place for the result was wanted");
    return out == NULL ? -1 : 0;
}

/* The referent of a weak reference, a new reference; NULL where it is dead. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_referent(PyObject *reference)
{
    PyObject *referent = NULL;
#if PY_VERSION_HEX >= 0x030D0000 && (!defined(Py_LIMITED_API) || Py_LIMITED_API + 0 >= 0x030D0000)
    (void)PyWeakref_GetRef(reference, &referent);
#elif defined(Py_LIMITED_API) /* 3.12 has no PyWeakref_GetRef, and 3.13 deprecates PyWeakref_GetObject */
    referent = PyObject_CallFunctionObjArgs(reference, NULL);
    if (referent == NULL)
        PyErr_Clear();
    if (referent == Py_None)
        Py_CLEAR(referent);
#else
    referent = PyWeakref_GetObject(reference);
    referent = referent == Py_None ? NULL : referent;
    Py_XINCREF(referent);
#endif
    return referent;
}

/* dlpack_py_impl_own.find: the record, in a list, of a table that this file has put on the type, or on a base of it
 * (X7); NULL: none. The capsule alone proves nothing: any class may carry the capsule of another class. */
DLPACK_PY_IMPL_RARE const dlpack_py_impl_own *
dlpack_py_impl_find_own(const dlpack_py_impl_own *own, PyTypeObject *type, const void *table)
{
    PyObject *referent;
    for (; own != NULL; own = own->next) {
        if (own->table != table || !PyType_IsSubtype(type, own->type))
            continue;
        referent = dlpack_py_impl_referent(own->reference);
        Py_XDECREF(referent);
        if (referent != NULL) /* else a dead type had that address */
            return own;
    }
    return NULL;
}
/* Raises TypeError for an object of another type than the table's (X7), BufferError for one of a derived class that
 * overrides __dlpack__. */
static inline int
dlpack_py_impl_table_check_object(const dlpack_py_exchange *x, PyObject *object)
{
    dlpack_py_impl_gate *gate = dlpack_py_impl_gate_get();
    const dlpack_py_impl_own *own;
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type storage;

    if (gate == NULL)
        return -1;
    if (object == NULL) {
        PyErr_SetString(PyExc_TypeError, "the object is NULL");
        return -1;
    }
    type = dlpack_py_impl_type_get(gate, Py_TYPE(object), &storage);
    if (type == NULL)
        return -1;
    if (type->own != NULL && type->table == (const void *)&x->api)
        return 0;
    own = (const dlpack_py_impl_own *)DLPACK_PY_IMPL_LOAD(&gate->cache->own);
    if (dlpack_py_impl_find_own(own, Py_TYPE(object), &x->api) != NULL)
        return dlpack_py_impl_refuse_value(PyExc_BufferError,
                                           "%.200U overrides __dlpack__: its objects are exported only by __dlpack__",
                                           (PyObject *)Py_TYPE(object));
    return dlpack_py_impl_refuse_value(PyExc_TypeError, "%.200U is not the type that this exchange table belongs to",
                                       (PyObject *)Py_TYPE(object));
}

/* managed_tensor_allocator. Needs no thread state (X5). */
static inline int
dlpack_py_impl_table_allocate(DLTensor *prototype, DLManagedTensorVersioned **out, void *context,
                              void (*set_error)(void *context, const char *kind, const char *message))
{
    dlpack_py_error error;

    if (out == NULL || prototype == NULL)
        (void)DLPACK_PY_IMPL_FAIL(&error, DLPACK_PY_VALUE_ERROR, "%s is NULL", out == NULL ? "out" : "prototype");
    if (out != NULL)
        *out = prototype == NULL ? NULL : dlpack_py_allocate(prototype, &error);
    if (out != NULL && *out != NULL)
        return 0;
    if (set_error != NULL)
        set_error(context, dlpack_py_impl_error_kind(error.code), error.text);
    return -1;
}

/* managed_tensor_from_py_object_no_sync */
static inline int
dlpack_py_impl_table_from_object(const dlpack_py_exchange *x, void *object, DLManagedTensorVersioned **out)
{
    dlpack_py_offer offer;

    if (dlpack_py_impl_check_out(out) < 0)
        return -1;
    *out = NULL;
    if (dlpack_py_impl_table_check_object(x, (PyObject *)object) < 0)
        return -1;
    DLPACK_PY_IMPL_LOCK((PyObject *)object); /* as in dlpack_py_produce_described */
    if (dlpack_py_impl_ask_author((PyObject *)object, x->describe, NULL, &offer) == 0)
        *out = dlpack_py_impl_table_export(x, &offer);
    DLPACK_PY_IMPL_UNLOCK();
    return *out == NULL ? -1 : 0;
}

/* dltensor_from_py_object_no_sync */
static inline int
dlpack_py_impl_table_borrow(const dlpack_py_exchange *x, void *object, DLTensor *out)
{
    dlpack_py_offer offer;
    const char *why;
    int result;

    if (dlpack_py_impl_check_out(out) < 0 || dlpack_py_impl_table_check_object(x, (PyObject *)object) < 0 ||
        dlpack_py_impl_ask_author((PyObject *)object, x->describe, NULL, &offer) < 0)
        return -1;
    result = dlpack_py_impl_table_lend(x, &offer, out, &why);
    if (result > 0)
        PyErr_Format(PyExc_BufferError, "the data %s and cannot be borrowed: ask for a managed tensor", why);
    if (result == 0)
        dlpack_py_impl_fold_offset(out);
    return result == 0 ? 0 : -1;
}

/* managed_tensor_to_py_object_no_sync. Makes an object of the type to which the table was added last. */
static inline int
dlpack_py_impl_table_to_object(const dlpack_py_exchange *x, DLManagedTensorVersioned *managed, void **out)
{
    const dlpack_py_impl_terms terms = dlpack_py_impl_terms_make(x->want, NULL);
    const dlpack_py_impl_own *own;
    PyObject *type = NULL;
    dlpack_py_impl_gate *gate;
    dlpack_py_view v;

    if (out != NULL)
        *out = NULL;
    if (managed == NULL) {
        PyErr_SetString(PyExc_ValueError, "the managed tensor is NULL");
        return -1;
    }
    if (dlpack_py_impl_check_out(out) == 0 && (gate = dlpack_py_impl_gate_get()) != NULL) {
        own = (const dlpack_py_impl_own *)DLPACK_PY_IMPL_LOAD(&gate->cache->own);
        for (; own != NULL && type == NULL; own = own->next) {
            if (own->table == (const void *)&x->api)
                type = dlpack_py_impl_referent(own->reference);
        }
        if (type == NULL)
            PyErr_SetString(PyExc_RuntimeError, "this interpreter has no type with this exchange table");
    }
    if (type == NULL) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return -1;
    }
    memset(&v, 0, sizeof(v));
    if (dlpack_py_impl_take_managed(managed, &terms, 0, &v) == 0)
        *out = x->make_steal((PyTypeObject *)type, &v);
    Py_DECREF(type);
    return *out == NULL ? -1 : 0;
}

/* current_work_stream. Work on memory that the CPU can read is done when a call returns: it has no stream (X4). */
static inline int
dlpack_py_impl_table_stream(const dlpack_py_exchange *x, DLDeviceType type, int32_t id, void **out)
{
    char name[DLPACK_PY_TEXT_SIZE];

    if (dlpack_py_impl_check_out(out) < 0)
        return -1;
    *out = NULL;
    if (dlpack_py_is_cpu_readable(dlpack_py_impl_device((int32_t)type, id)))
        return 0;
    if (x->work_stream != NULL)
        return x->work_stream(type, id, out);
    PyErr_Format(PyExc_BufferError,
                 "device is %s, and the exchange table of the type is for memory that the CPU can read "
                 "(DLPACK_PY_EXCHANGE_API_WITH_STREAM makes one for devices)",
                 dlpack_py_device_text(dlpack_py_impl_device((int32_t)type, id), name));
    return -1;
}

/* dlpack_py_impl_own.consume */
static inline int
dlpack_py_impl_consume_own(const dlpack_py_impl_own *own, PyObject *obj, const dlpack_py_impl_terms *terms,
                           dlpack_py_view *v)
{
    const dlpack_py_exchange *x = (const dlpack_py_exchange *)own->table;
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_offer offer;
    int described, on_device;

    DLPACK_PY_IMPL_LOCK(obj); /* as in dlpack_py_produce_described */
    described = dlpack_py_impl_ask_author(obj, x->describe, NULL, &offer) == 0;
    on_device = described && offer.tensor->device.device_type != kDLCPU;
    if (described && !on_device)
        managed = dlpack_py_impl_table_export(x, &offer);
    DLPACK_PY_IMPL_UNLOCK();
    if (on_device)
        return 1;
    if (managed == NULL)
        return dlpack_py_impl_table_failed(terms);
    return dlpack_py_impl_take_managed(managed, terms, 0, v);
}

/* dlpack_py_impl_own.borrow. Returns 1 with or without an exception: dlpack_py_consume raises it again. */
static inline int
dlpack_py_impl_borrow_own(const dlpack_py_impl_own *own, PyObject *obj, const dlpack_py_impl_terms *terms,
                          dlpack_py_view *v)
{
    const dlpack_py_exchange *x = (const dlpack_py_exchange *)own->table;
    dlpack_py_impl_export *copy;
    dlpack_py_offer offer;
    dlpack_py_error error;
    const char *why;
    DLTensor t;

    if (dlpack_py_impl_ask_author(obj, x->describe, NULL, &offer) < 0 || offer.tensor->device.device_type != kDLCPU ||
        dlpack_py_impl_table_lend(x, &offer, &t, &why) != 0)
        return 1;
    return dlpack_py_impl_examine(&t, 0, terms, 0, v, &copy, &error) != 0;
}

/* Add an exchange table to a type, when the type is created; for a static type, call PyType_Ready before. The table
 * makes objects of the type to which the table was added last in the interpreter. It does not keep the type alive.
 * Returns 0, or -1 with an exception. */
DLPACK_PY_IMPL_RARE int
dlpack_py_exchange_add(PyTypeObject *type, const dlpack_py_exchange *exchange)
{
    dlpack_py_impl_gate *gate = dlpack_py_impl_gate_get();
    dlpack_py_impl_word *lock = &dlpack_py_impl_this_file()->lock;
    void *table = (void *)(uintptr_t)&exchange->api;
    PyObject *reference, *capsule = NULL;
    dlpack_py_impl_own *own;
    dlpack_py_error error;

    if (gate == NULL)
        return -1;
    if (exchange->want != NULL && dlpack_py_impl_check_want(exchange->want, &error) < 0)
        return dlpack_py_raise(&error);
    reference = PyWeakref_NewRef((PyObject *)type, NULL);
    if (reference != NULL)
        capsule = PyCapsule_New(table, DLPACK_PY_IMPL_EXCHANGE_NAME, NULL);
    own = capsule == NULL ? NULL : (dlpack_py_impl_own *)DLPACK_PY_MALLOC(sizeof(*own));
    if (own == NULL || dlpack_py_impl_type_set(type, gate->cache->names[DLPACK_PY_IMPL_EXCHANGE], capsule) < 0) {
        if (own != NULL)
            DLPACK_PY_FREE(own);
        else if (capsule != NULL)
            (void)PyErr_NoMemory();
        Py_XDECREF(reference);
        Py_XDECREF(capsule);
        return -1;
    }
    Py_DECREF(capsule);
    own->type = type;
    own->reference = reference;
    own->table = table;
    own->embedded = exchange->embedded;
    own->find = dlpack_py_impl_find_own;
    own->consume = dlpack_py_impl_consume_own;
    own->borrow = dlpack_py_impl_borrow_own;
    dlpack_py_impl_lock(lock);
    own->next = (dlpack_py_impl_own *)DLPACK_PY_IMPL_LOAD(&gate->cache->own);
    DLPACK_PY_IMPL_STORE(&gate->cache->own, (dlpack_py_impl_word)own);
    dlpack_py_impl_unlock(lock);
    PyType_Modified(type); /* invalidates cached entries for the type */
    return 0;
}
#endif

/* ---- 3.5 Consuming by an exchange table --------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API
/* Must the consumer call __dlpack__ instead of a table? A table does not synchronize (X4): only a consumer with a
 * stream of the device can use a table for device memory. PyTorch's table ignores the lazy conjugation of a complex
 * tensor and exports the memory as it is (X9). */
static inline int
dlpack_py_impl_must_ask_dlpack(const DLTensor *t, const dlpack_py_device *device)
{
    return (t->device.device_type != kDLCPU && !dlpack_py_impl_is_on(device, t->device)) ||
           dlpack_py_impl_is_complex(t->dtype);
}

/* Takes the tensor that a table of another library has returned. Returns 0; 1 where __dlpack__ is to be asked; or -1
 * with an exception. */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_take_by_other(const DLPackExchangeAPI *table, int returned, DLManagedTensorVersioned *managed,
                             const dlpack_py_impl_terms *terms, dlpack_py_view *v)
{
    static const char *const function = "managed_tensor_from_py_object_no_sync";

    if (dlpack_py_impl_check_table_call(returned != 0 || managed == NULL, function) < 0) {
        if (returned == 0 && managed != NULL)
            dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return dlpack_py_impl_table_failed(terms);
    }
    if (!dlpack_py_impl_is_unknown(managed, DLPACK_PY_VERSIONED) &&
        dlpack_py_impl_must_ask_dlpack(&managed->dl_tensor, terms->device)) {
        dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return 1;
    }
    if (dlpack_py_impl_take_managed(managed, terms, 0, v) < 0)
        return -1;
    return dlpack_py_impl_is_on(terms->device, v->tensor.device) ? terms->device->follow(table, terms, v) : 0;
}

/* Borrows a tensor by the table of another library. Returns 0 and fills *t; or 1, with or without an exception. */
static inline int
dlpack_py_impl_borrow_by_other(const DLPackExchangeAPI *table, PyObject *obj, DLTensor *t)
{
    memset(t, 0, sizeof(*t)); /* some tables leave fields unset (X8) */
    return table->dltensor_from_py_object_no_sync == NULL || table->dltensor_from_py_object_no_sync(obj, t) != 0 ||
           PyErr_Occurred();
}
#endif

/* dlpack_py_borrow, for every object and every requirement. asked: 1 after the table of another library was asked,
 * which has lent t; t NULL: has refused, with or without an exception. */
DLPACK_PY_IMPL_GENERAL int
dlpack_py_impl_borrow_general(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v, int asked,
                              const DLTensor *t)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    const dlpack_py_impl_terms terms = dlpack_py_impl_terms_make(want, NULL);
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type storage;
    dlpack_py_impl_gate *gate;
    dlpack_py_impl_export *copy;
    dlpack_py_error error;
    DLTensor lent;

    dlpack_py_impl_view_clear(v);
    if (!asked) {
        if (PyCapsule_CheckExact(obj) || terms.want->writable || !terms.use_table ||
            dlpack_py_impl_check_want(terms.want, &error) < 0) /* dlpack_py_consume raises the error */
            return dlpack_py_consume(obj, want, v);
        gate = dlpack_py_impl_gate_get();
        if (gate == NULL || (type = dlpack_py_impl_type_get(gate, Py_TYPE(obj), &storage)) == NULL)
            return -1;
        if (type->own != NULL && type->own->borrow(type->own, obj, &terms, v) == 0)
            return 0;
        if (type->own == NULL && type->table != NULL &&
            dlpack_py_impl_borrow_by_other((const DLPackExchangeAPI *)type->table, obj, &lent) == 0)
            t = &lent;
    }
    if (t != NULL && !dlpack_py_impl_must_ask_dlpack(t, NULL) && t->dtype.bits >= 8 && /* else may be padded (X3) */
        dlpack_py_impl_examine(t, 0, &terms, 0, v, &copy, &error) == 0)
        return 0;
    if (PyErr_Occurred()) {
        if (dlpack_py_impl_is_fatal())
            return -1;
        PyErr_Clear(); /* dlpack_py_consume raises the exception again, where it occurs there too */
    }
#else
    (void)asked;
    (void)t;
#endif
    return dlpack_py_consume(obj, want, v);
}

#if !DLPACK_PY_IMPL_HAS_FAST_PATHS
DLPACK_PY_IMPL_SHARED int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    return dlpack_py_impl_borrow_general(obj, want, v, 0, NULL);
}
#endif

/* ---- 3.6 Results like an argument --------------------------------------- */

#if DLPACK_PY_HAS_EXCHANGE_API
/* SetError of a table's allocator, called perhaps without a thread state: keeps the first report, to be raised when
 * the allocator has returned. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_note_error(void *context, const char *kind, const char *message)
{
    dlpack_py_error *error = (dlpack_py_error *)context;
    int32_t code = DLPACK_PY_BUFFER_ERROR;

    if (error->code != 0)
        return;
    while (code < DLPACK_PY_RUNTIME_ERROR && (kind == NULL || strcmp(kind, dlpack_py_impl_error_kind(code)) != 0))
        code++;
    (void)DLPACK_PY_IMPL_FAIL(error, code, "%s",
                              message != NULL ? message : "the allocator of the exchange table failed");
}

/* dlpack_py_allocate_like, by a table. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_allocate_by_table(const DLPackExchangeAPI *table, const DLTensor *prototype, dlpack_py_view *v)
{
    dlpack_py_want want = dlpack_py_want_like(prototype);
    dlpack_py_impl_terms terms;
    DLManagedTensorVersioned *managed = NULL;
    int failed;
    int64_t shape[DLPACK_PY_MAX_NDIM]; /* a copy: the table may write to it */
    DLTensor t = *prototype;
    dlpack_py_error error;

    if (t.ndim < 0 || t.ndim > DLPACK_PY_MAX_NDIM || (t.ndim > 0 && t.shape == NULL)) {
        PyErr_Format(PyExc_BufferError, "the prototype has ndim %d and %s shape, ndim 0 to %d and a shape were wanted",
                     (int)t.ndim, t.shape == NULL ? "no" : "a", DLPACK_PY_MAX_NDIM);
        return -1;
    }
    if (t.ndim > 0)
        memcpy(shape, t.shape, (size_t)t.ndim * sizeof(int64_t));
    t.shape = shape;
    t.strides = NULL;
    t.data = NULL;
    t.byte_offset = 0;
    error.code = 0;
    failed = table->managed_tensor_allocator(&t, &managed, &error, dlpack_py_impl_note_error) != 0 || managed == NULL;
    if (PyErr_Occurred()) {
        if (!failed)
            dlpack_py_impl_delete(managed, DLPACK_PY_VERSIONED);
        return -1;
    }
    if (failed) {
        dlpack_py_impl_note_error(&error, NULL, NULL);
        return dlpack_py_raise(&error);
    }
    want.device = (int32_t)prototype->device.device_type;
    want.writable = 1;
    want.alignment = 1;
    want.name = "the exchange table's allocator";
#if DLPACK_PY_IMPL_HAS_FAST_PATHS
    if (dlpack_py_impl_is_common_want(&want) && dlpack_py_impl_is_common_managed(managed, &want)) {
        dlpack_py_impl_view_set(v, &managed->dl_tensor, managed->flags, DLPACK_PY_WRITABLE, managed);
        return 0;
    }
#endif
    terms = dlpack_py_impl_terms_make(&want, NULL);
    return dlpack_py_impl_take_managed(managed, &terms, 0, v);
}
#endif

DLPACK_PY_IMPL_SHARED int
dlpack_py_allocate_like(PyObject *like, const DLTensor *prototype, dlpack_py_view *v)
{
    dlpack_py_impl_gate *gate = dlpack_py_impl_gate_get();
    DLManagedTensorVersioned *managed;
    const dlpack_py_impl_type *type;
    dlpack_py_impl_type storage;
    dlpack_py_error error;

    dlpack_py_impl_view_clear(v);
    if (gate == NULL || (type = dlpack_py_impl_type_get(gate, Py_TYPE(like), &storage)) == NULL)
        return -1;
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL)
        return dlpack_py_impl_allocate_by_table((const DLPackExchangeAPI *)type->table, prototype, v);
#endif
    managed = dlpack_py_allocate(prototype, &error);
    if (managed == NULL)
        return dlpack_py_raise(&error);
    dlpack_py_impl_view_set(v, &managed->dl_tensor, 0, DLPACK_PY_WRITABLE, managed);
    return 0;
}

/* free_fn of a managed tensor over a view. */
DLPACK_PY_IMPL_RARE void
dlpack_py_impl_free_view(void *context)
{
    dlpack_py_release((dlpack_py_view *)context);
    DLPACK_PY_FREE(context);
}

/* A versioned managed tensor of what a view shows. Steals the view, also where it returns NULL with BufferError or
 * MemoryError. */
DLPACK_PY_IMPL_RARE DLManagedTensorVersioned *
dlpack_py_impl_view_managed_steal(dlpack_py_view *v)
{
    DLManagedTensorVersioned *managed = (DLManagedTensorVersioned *)v->managed;
    const uint64_t readonly = v->readonly != DLPACK_PY_WRITABLE ? DLPACK_PY_FLAG_READ_ONLY : 0;
    dlpack_py_view *moved;
    dlpack_py_error error;

    if (v->form == DLPACK_PY_VERSIONED && (managed->flags & readonly) == readonly &&
        memcmp(&managed->dl_tensor, &v->tensor, sizeof(v->tensor)) == 0) {
        v->managed = NULL;
        dlpack_py_release(v);
        return managed;
    }
    if (dlpack_py_validate(&v->tensor, v->flags, &error) < 0) { /* the caller may have changed it */
        dlpack_py_release(v);
        (void)dlpack_py_raise(&error);
        return NULL;
    }
    moved = (dlpack_py_view *)DLPACK_PY_MALLOC(sizeof(*moved));
    if (moved != NULL) {
        dlpack_py_move(moved, v);
        managed = dlpack_py_wrap(&moved->tensor, dlpack_py_impl_kept_flags(&moved->tensor, moved->flags) | readonly,
                                 moved, dlpack_py_impl_free_view);
        if (managed != NULL)
            return managed;
        dlpack_py_impl_free_view(moved);
    }
    dlpack_py_release(v);
    (void)PyErr_NoMemory();
    return NULL;
}

/* An object that owns a view and has __dlpack__ and __dlpack_device__: the argument for from_dlpack. */
typedef struct dlpack_py_impl_carrier {
    PyObject_HEAD
    dlpack_py_view view; /* empty after its tensor was handed on */
    DLDevice device;
} dlpack_py_impl_carrier;

/* Hands the tensor of the view on, without an export of its own, where the request allows it: the first call takes the
 * tensor. */
static inline PyObject *
dlpack_py_impl_carrier_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_view *v = &((dlpack_py_impl_carrier *)(void *)self)->view;
    DLManagedTensorVersioned *managed;
    dlpack_py_request request;
    dlpack_py_offer offer;

    if (dlpack_py_parse_request(args, nargs, kwnames, &request) < 0)
        return NULL;
    if (v->managed == NULL) {
        PyErr_SetString(PyExc_BufferError, "the result was exported already: __dlpack__ hands its tensor on once");
        return NULL;
    }
    if (request.max_version.major >= DLPACK_PY_PROTOCOL_MAJOR && request.copy != DLPACK_PY_COPY_ALWAYS &&
        !request.has_device && request.stream.kind != DLPACK_PY_STREAM_HANDLE) {
        managed = dlpack_py_impl_view_managed_steal(v);
        return managed == NULL ? NULL : dlpack_py_capsule_steal(managed, DLPACK_PY_VERSIONED);
    }
    offer = dlpack_py_offer_view(self, &v->tensor, v);
    return dlpack_py_answer(&offer, &request);
}

static inline PyObject *
dlpack_py_impl_carrier_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return dlpack_py_impl_device_tuple(((dlpack_py_impl_carrier *)(void *)self)->device);
}

static inline void
dlpack_py_impl_carrier_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    dlpack_py_release(&((dlpack_py_impl_carrier *)(void *)self)->view);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* A type of carriers in this interpreter, borrowed; made at its first use, and kept in place.
 *
 * slots, count   slots of the type, with room for two more
 */
DLPACK_PY_IMPL_RARE PyTypeObject *
dlpack_py_impl_carrier_type(dlpack_py_impl_word *place, const char *name, PyType_Slot *slots, int count)
{
    void (*const dealloc)(PyObject *) = dlpack_py_impl_carrier_dealloc;
    dlpack_py_impl_word *lock = &dlpack_py_impl_this_file()->lock;
    PyObject *made;
    PyType_Spec spec;

    if (DLPACK_PY_IMPL_LOAD(place) == 0) {
        slots[count].slot = Py_tp_dealloc;
        memcpy(&slots[count].pfunc, &dealloc, sizeof(dealloc)); /* ISO C has no such cast */
        memset(&slots[count + 1], 0, sizeof(slots[0]));
        memset(&spec, 0, sizeof(spec));
        spec.name = name;
        spec.basicsize = (int)sizeof(dlpack_py_impl_carrier);
        spec.flags = Py_TPFLAGS_DEFAULT;
        spec.slots = slots;
        made = PyType_FromSpec(&spec);
        if (made == NULL)
            return NULL;
        dlpack_py_impl_lock(lock);
        if (DLPACK_PY_IMPL_LOAD(place) == 0) { /* else another thread was first */
            DLPACK_PY_IMPL_STORE(place, (dlpack_py_impl_word)made);
            made = NULL;
        }
        dlpack_py_impl_unlock(lock);
        Py_XDECREF(made);
    }
    return (PyTypeObject *)DLPACK_PY_IMPL_LOAD(place);
}

/* Finds the from_dlpack of the library of obj: of its array namespace, or else of the module of its type, or of the
 * package around that. Remembers it for one static type, while the version tag of the type stays: an object of another
 * type may have an array namespace of its own. Returns a new reference, or NULL with an exception. */
DLPACK_PY_IMPL_RARE PyObject *
dlpack_py_impl_find_from_dlpack(dlpack_py_impl_cache *cache, PyObject *obj)
{
    PyObject *type = (PyObject *)Py_TYPE(obj), *const *names = cache->names, *module, *found, *name = NULL;
    Py_ssize_t dot = 1;

#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    if (cache->like == Py_TYPE(obj) && cache->like_tag == dlpack_py_impl_type_tag(cache->like)) {
        Py_INCREF(cache->from_dlpack);
        return cache->from_dlpack;
    }
#endif
    found = PyObject_GetAttr(type, names[DLPACK_PY_IMPL_NAMESPACE]);
    if (found != NULL) {
        Py_DECREF(found);
        module = PyObject_CallMethodObjArgs(obj, names[DLPACK_PY_IMPL_NAMESPACE], NULL);
        found = module == NULL ? NULL : PyObject_GetAttr(module, names[DLPACK_PY_IMPL_FROM_DLPACK]);
        Py_XDECREF(module);
        if (found == NULL && module != NULL && PyErr_ExceptionMatches(PyExc_AttributeError))
            dlpack_py_impl_refuse_value(
                PyExc_TypeError, "cannot make an object of %.200U: its array namespace has no from_dlpack", type);
    }
    else if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        name = PyObject_GetAttr(type, names[DLPACK_PY_IMPL_MODULE]);
    }
    while (name != NULL && PyUnicode_Check(name) && dot > 0) {
        PyObject *whole = name;
        module = PyImport_Import(whole);
        found = module == NULL ? NULL : PyObject_GetAttr(module, names[DLPACK_PY_IMPL_FROM_DLPACK]);
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
            PyExc_TypeError, "cannot make an object of %.200U: its library has no exchange table and no from_dlpack",
            type);
#if DLPACK_PY_IMPL_HAS_TYPE_SLOTS
    if (found != NULL && !PyType_HasFeature(Py_TYPE(obj), Py_TPFLAGS_HEAPTYPE) &&
        dlpack_py_impl_type_tag(Py_TYPE(obj)) != 0) {
        name = cache->from_dlpack;
        Py_INCREF(found);
        cache->from_dlpack = found;
        cache->like = Py_TYPE(obj);
        cache->like_tag = dlpack_py_impl_type_tag(cache->like);
        Py_XDECREF(name);
    }
#endif
    return found;
}

DLPACK_PY_IMPL_SHARED PyObject *
dlpack_py_return_like_steal(PyObject *like, dlpack_py_view *v)
{
    static PyMethodDef methods[] = {
        DLPACK_PY_METHODS(dlpack_py_impl_carrier_dlpack, dlpack_py_impl_carrier_device),
        {NULL, NULL, 0, NULL},
    };
    dlpack_py_impl_gate *gate = NULL;
    const dlpack_py_impl_type *type = NULL;
    dlpack_py_impl_type storage;
    PyObject *carrier = NULL, *from_dlpack, *made = NULL, *stack[2] = {NULL, NULL};
    PyTypeObject *carrier_type;
    PyType_Slot slots[3];
#if DLPACK_PY_HAS_EXCHANGE_API
    const DLPackExchangeAPI *table;
    DLManagedTensorVersioned *managed;
    void *out = NULL;
    int failed;
#endif

    if (v->managed == NULL)
        PyErr_SetString(PyExc_ValueError, "the view is empty or borrowed, a view that owns its tensor was wanted");
    else
        gate = dlpack_py_impl_gate_get();
    if (gate != NULL)
        type = dlpack_py_impl_type_get(gate, Py_TYPE(like), &storage);
    if (type == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
#if DLPACK_PY_HAS_EXCHANGE_API
    if (type->table != NULL) {
        table = (const DLPackExchangeAPI *)type->table;
        managed = dlpack_py_impl_view_managed_steal(v);
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
    slots[0].slot = Py_tp_methods;
    slots[0].pfunc = methods;
    carrier_type = dlpack_py_impl_carrier_type(&gate->cache->carrier, "dlpack_py.carrier", slots, 1);
    if (carrier_type != NULL)
        carrier = (PyObject *)PyObject_New(dlpack_py_impl_carrier, carrier_type);
    if (carrier == NULL) {
        dlpack_py_release(v);
        return NULL;
    }
    ((dlpack_py_impl_carrier *)(void *)carrier)->device = v->tensor.device;
    dlpack_py_move(&((dlpack_py_impl_carrier *)(void *)carrier)->view, v);
    from_dlpack = dlpack_py_impl_find_from_dlpack(gate->cache, like);
    stack[1] = carrier;
    if (from_dlpack != NULL)
        made = PyObject_Vectorcall(from_dlpack, stack + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_XDECREF(from_dlpack);
    Py_DECREF(carrier);
    return made;
}

/* ---- 3.7 Fast paths ----------------------------------------------------- */

/* dlpack_py_consume and dlpack_py_borrow for most calls: the facts of the type are remembered, the tensor is
 * row-major, of whole bytes, on the CPU, and the requirements are for such tensors. Other calls use the general
 * functions (2.5, 3.5), which define what is right. With DLPACK_PY_PLAIN all calls use them. Instructions of a
 * call without and with this section (CPython 3.11, gcc 12, float64 of shape (3, 4)): own object borrowed 378 and
 * 198, NumPy array 1677 and 1407. */
#if DLPACK_PY_IMPL_HAS_FAST_PATHS

/* Do the requirements make sense, and does dlpack_py_impl_is_common check all that they ask for? */
static inline int
dlpack_py_impl_is_common_want(const dlpack_py_want *want)
{
    return want->dtypes == NULL && (want->dtype == 0 || (want->dtype & 0xff0000u) != 0) && want->ndim >= 0 &&
           (want->max_ndim == 0 ? want->shape == NULL || want->ndim != 0
                                : want->shape == NULL && want->max_ndim >= want->ndim) &&
           want->options == 0 && (uint32_t)want->device <= (uint32_t)kDLCPU &&
           (want->alignment & (want->alignment - 1)) == 0 &&
           (want->order == 'C' || want->order == 0 || want->order == 'A' || want->order == 'K' || want->order == 'R');
}

/* Are rank and extents those that are wanted? */
static inline int
dlpack_py_impl_has_shape(const DLTensor *t, const dlpack_py_want *want)
{
    int32_t i = t->ndim;
    if (i != want->ndim && (want->max_ndim == 0 ? want->ndim != 0 : i < want->ndim || i > want->max_ndim))
        return 0;
    while (want->shape != NULL && i-- > 0) {
        if (want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return 0;
    }
    return 1;
}

/* Is the tensor valid, on the CPU, row-major, made of whole bytes, and does it meet the requirements? Looks once at
 * each dimension. 0: examine the tensor in full. */
DLPACK_PY_IMPL_INLINE int
dlpack_py_impl_is_common(const DLTensor *t, int32_t readonly, const dlpack_py_want *want)
{
    const uint32_t dtype = dlpack_py_dtype(t);
    const unsigned bits = t->dtype.bits;
    const uintptr_t first = (uintptr_t)t->data, alignment = want->alignment != 0 ? want->alignment : bits / 8;
    const int64_t *shape = t->shape, *strides = t->strides;
    int32_t i = t->ndim;
    uint64_t step = 1; /* below 2^62 */

    if (DLPACK_PY_IMPL_UNLIKELY((want->dtype != dtype && want->dtype != 0) || (dtype & 0xfc07ffffu) != 1 ||
                                (bits & (bits - 1)) != 0 || bits == 0 || /* codes 0 to 3, one lane */
                                t->device.device_type != kDLCPU || t->byte_offset != 0 ||
                                (uint32_t)i > DLPACK_PY_MAX_NDIM || first == 0 ||
                                ((shape == NULL || strides == NULL) && i != 0) || (first & (alignment - 1)) != 0 ||
                                (want->writable && readonly != DLPACK_PY_WRITABLE)))
        return 0;
    while (i-- > 0) {
        const uint64_t last = (uint64_t)shape[i] - 1; /* 2^64 - 1 for an extent of 0 */
        if (DLPACK_PY_IMPL_UNLIKELY((uint64_t)strides[i] != step && last != 0))
            return 0;
        step *= last + 1;
        if (DLPACK_PY_IMPL_UNLIKELY((last | step) >> 31 != 0))
            return 0;
    }
    return step * 16 <= UINTPTR_MAX - first && dlpack_py_impl_has_shape(t, want); /* an element has at most 16 bytes */
}

/* What is remembered of the type of obj, and the gate; NULL where nothing is. */
static inline const dlpack_py_impl_type *
dlpack_py_impl_find_type(PyObject *obj, dlpack_py_impl_gate **gate)
{
    PyTypeObject *type = Py_TYPE(obj);
    const dlpack_py_impl_type *slot;

    *gate = (dlpack_py_impl_gate *)DLPACK_PY_IMPL_LOAD(&dlpack_py_impl_this_file()->gates);
    if (*gate == NULL || (*gate)->interpreter != PyInterpreterState_Get())
        return NULL;
    slot = dlpack_py_impl_type_slot((*gate)->cache, type);
    return slot->type == type && slot->tag == dlpack_py_impl_type_tag(type) ? slot : NULL;
}

/* The managed tensor in an object of a type with a table of this file, where it meets the requirements; else NULL. */
static inline dlpack_py_embedded *
dlpack_py_impl_find_embedded(const dlpack_py_impl_own *own, PyObject *obj, const dlpack_py_want *want)
{
    dlpack_py_embedded *e = (dlpack_py_embedded *)(void *)((char *)obj + own->embedded);
    const DLTensor *t = &e->versioned.dl_tensor;

    return own->embedded != 0 && e->keeper.owner == obj && e->common != 0 &&
                   (want->dtype == e->common || want->dtype == 0) && dlpack_py_impl_has_shape(t, want) &&
                   (!want->writable || e->versioned.flags == 0) &&
                   (want->alignment == 0 || ((uintptr_t)t->data & (want->alignment - 1)) == 0)
               ? e
               : NULL;
}

/* Is a versioned managed tensor common? */
DLPACK_PY_IMPL_INLINE int
dlpack_py_impl_is_common_managed(const DLManagedTensorVersioned *managed, const dlpack_py_want *want)
{
    return managed->version.major == DLPACK_PY_PROTOCOL_MAJOR &&
           dlpack_py_impl_is_common(&managed->dl_tensor, (int32_t)(managed->flags & DLPACK_PY_FLAG_READ_ONLY), want);
}

/* Goes on the general way after __dlpack__ has answered; answer NULL: with an exception. Steals method and answer. */
DLPACK_PY_IMPL_RARE int
dlpack_py_impl_consume_answer(dlpack_py_impl_cache *cache, PyObject *obj, PyObject *method, PyObject *answer,
                              const dlpack_py_want *want, dlpack_py_view *v)
{
    const dlpack_py_impl_terms terms = dlpack_py_impl_terms_make(want, NULL);
    dlpack_py_impl_producer producer = {NULL, NULL, NULL, 1, 1, NULL, 0, 0};

    producer.cache = cache;
    producer.obj = obj;
    producer.method = method;
    producer.answer = answer;
    dlpack_py_impl_view_clear(v);
    return dlpack_py_impl_ask(&producer, &terms, v);
}

#if DLPACK_PY_HAS_EXCHANGE_API
/* Goes on the general way after the table of another library was asked. */
static inline int
dlpack_py_impl_consume_returned(const DLPackExchangeAPI *table, PyObject *obj, int returned,
                                DLManagedTensorVersioned *managed, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_impl_terms terms = dlpack_py_impl_terms_make(want, NULL);
    int result;

    dlpack_py_impl_view_clear(v);
    result = dlpack_py_impl_take_by_other(table, returned, managed, &terms, v);
    terms.use_table = 0;
    return result <= 0 ? result : dlpack_py_impl_obtain(obj, &terms, v);
}
#endif

DLPACK_PY_IMPL_HOT int
dlpack_py_impl_consume_fast(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
    dlpack_py_impl_gate *gate;
    const dlpack_py_impl_type *type;
    dlpack_py_impl_terms terms;
    PyObject *stack[2], *method, *capsule;
    DLManagedTensorVersioned *managed = NULL;
    dlpack_py_embedded *embedded;
    const char *const name = DLPACK_PY_IMPL_UNUSED_NAME(DLPACK_PY_VERSIONED);
#if DLPACK_PY_HAS_EXCHANGE_API
    const DLPackExchangeAPI *table;
    int returned;
#endif

    v->managed = NULL; /* empty while foreign code runs */
    want = dlpack_py_impl_want_or_any(want);
    type = dlpack_py_impl_is_common_want(want) ? dlpack_py_impl_find_type(obj, &gate) : NULL;
    if (type != NULL && type->own != NULL) {
        embedded = dlpack_py_impl_find_embedded(type->own, obj, want);
        if (embedded != NULL) {
            Py_INCREF(obj);
            managed = &embedded->versioned;
        }
    }
#if DLPACK_PY_HAS_EXCHANGE_API
    else if (type != NULL && (table = (const DLPackExchangeAPI *)type->table) != NULL) {
        returned = table->managed_tensor_from_py_object_no_sync(obj, &managed);
        if (returned != 0 || managed == NULL || PyErr_Occurred() || !dlpack_py_impl_is_common_managed(managed, want))
            return dlpack_py_impl_consume_returned(table, obj, returned, managed, want, v);
    }
#endif
    else if (type != NULL && (method = type->method) != NULL) {
        Py_INCREF(method);
        stack[0] = obj;
        stack[1] = gate->cache->version;
        capsule = PyObject_Vectorcall(method, stack, 1, gate->cache->only_version);
        if (capsule != NULL && PyCapsule_CheckExact(capsule)) {
            managed = (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, name);
            if (managed == NULL)
                PyErr_Clear(); /* another capsule */
        }
        if (managed == NULL || !dlpack_py_impl_is_common_managed(managed, want))
            return dlpack_py_impl_consume_answer(gate->cache, obj, method, capsule, want, v);
        (void)PyCapsule_SetName(capsule, DLPACK_PY_IMPL_USED_NAME(DLPACK_PY_VERSIONED)); /* commit point (K4) */
        Py_DECREF(method);
        Py_DECREF(capsule);
        if (PyErr_Occurred())
            PyErr_WriteUnraisable(NULL); /* of the capsule's destructor */
    }
    if (managed == NULL) {
        terms = dlpack_py_impl_terms_make(want, NULL);
        return dlpack_py_impl_obtain(obj, &terms, v);
    }
    dlpack_py_impl_view_set(v, &managed->dl_tensor, managed->flags,
                            (int32_t)(managed->flags & DLPACK_PY_FLAG_READ_ONLY), managed);
    return 0;
}

DLPACK_PY_IMPL_SHARED int
dlpack_py_borrow(PyObject *obj, const dlpack_py_want *want, dlpack_py_view *v)
{
#if DLPACK_PY_HAS_EXCHANGE_API
    dlpack_py_impl_gate *gate;
    const dlpack_py_impl_type *type;
    const DLPackExchangeAPI *table;
    dlpack_py_embedded *embedded;
    DLTensor t;
    int refused;

    v->managed = NULL; /* empty while foreign code runs */
    want = dlpack_py_impl_want_or_any(want);
    if (want->writable || !dlpack_py_impl_is_common_want(want) || (type = dlpack_py_impl_find_type(obj, &gate)) == NULL)
        return dlpack_py_impl_borrow_general(obj, want, v, 0, NULL);
    if (type->own != NULL) {
        embedded = dlpack_py_impl_find_embedded(type->own, obj, want);
        if (embedded == NULL || embedded->versioned.flags != 0) /* a borrowed tensor has no flags (X3) */
            return dlpack_py_impl_borrow_general(obj, want, v, 0, NULL);
        dlpack_py_impl_view_set(v, &embedded->versioned.dl_tensor, 0, DLPACK_PY_READONLY_UNSAID, NULL);
        return 0;
    }
    table = (const DLPackExchangeAPI *)type->table;
    if (table == NULL || table->dltensor_from_py_object_no_sync == NULL)
        return dlpack_py_impl_consume_fast(obj, want, v);
    refused = dlpack_py_impl_borrow_by_other(table, obj, &t);
    if (!refused && dlpack_py_impl_is_common(&t, DLPACK_PY_READONLY_UNSAID, want)) {
        dlpack_py_impl_view_set(v, &t, 0, DLPACK_PY_READONLY_UNSAID, NULL);
        return 0;
    }
    return dlpack_py_impl_borrow_general(obj, want, v, 1, refused ? NULL : &t);
#else
    return dlpack_py_impl_consume_fast(obj, want, v);
#endif
}
#endif

/* ---- 3.8 A view for C++ ------------------------------------------------- */

#ifdef __cplusplus
/* A view that releases itself. It can be moved, not copied:
 *
 *     dlpack_py_unique_view v;
 *     if (dlpack_py_consume(x, &want, v.reset()) < 0)
 *         return nullptr;
 *     auto values = static_cast<const float *>(v.data());
 */
#  ifdef __GNUC__ /* visible in this module only: no other module ever uses these functions (G2) */
#    define DLPACK_PY_IMPL_HIDDEN __attribute__((visibility("hidden")))
#  else
#    define DLPACK_PY_IMPL_HIDDEN
#  endif
class dlpack_py_unique_view {
  public:
    DLPACK_PY_IMPL_HIDDEN dlpack_py_unique_view() noexcept : view()
    {
    }
    dlpack_py_unique_view(const dlpack_py_unique_view &) = delete;
    DLPACK_PY_IMPL_HIDDEN dlpack_py_unique_view(dlpack_py_unique_view &&other) noexcept : view()
    {
        dlpack_py_move(&view, &other.view);
    }
    dlpack_py_unique_view &operator=(const dlpack_py_unique_view &) = delete;
    DLPACK_PY_IMPL_HIDDEN dlpack_py_unique_view &operator=(dlpack_py_unique_view &&other) noexcept
    {
        if (this != &other) {
            dlpack_py_release(&view);
            dlpack_py_move(&view, &other.view);
        }
        return *this;
    }
    DLPACK_PY_IMPL_HIDDEN ~dlpack_py_unique_view()
    {
        dlpack_py_release(&view);
    }

    DLPACK_PY_IMPL_HIDDEN void *data() const noexcept
    {
        return dlpack_py_data(&view);
    }
    DLPACK_PY_IMPL_HIDDEN const dlpack_py_view *operator->() const noexcept
    {
        return &view;
    }
    /* For functions that take the tensor of a view: dlpack_py_return_like_steal, dlpack_py_move. */
    DLPACK_PY_IMPL_HIDDEN dlpack_py_view *get() noexcept
    {
        return &view;
    }
    /* For functions that fill an empty view. Releases the tensor that this view has. */
    DLPACK_PY_IMPL_HIDDEN dlpack_py_view *reset() noexcept
    {
        dlpack_py_release(&view);
        return &view;
    }

  private:
    dlpack_py_view view;
};
#endif

/* The private macros that remain are used by dlpack_device.h, by public macros, or by a second include. */
#undef DLPACK_PY_IMPL_EXCHANGE
#undef DLPACK_PY_IMPL_EXCHANGE_NAME
#undef DLPACK_PY_IMPL_FROM_DLPACK
#undef DLPACK_PY_IMPL_GATE_NAME
#undef DLPACK_PY_IMPL_HIDDEN
#undef DLPACK_PY_IMPL_MODULE
#undef DLPACK_PY_IMPL_MUST_COPY
#undef DLPACK_PY_IMPL_NAMES
#undef DLPACK_PY_IMPL_NAMESPACE
#undef DLPACK_PY_IMPL_PASS_COPY
#undef DLPACK_PY_IMPL_PASS_DEVICE
#undef DLPACK_PY_IMPL_PASS_STREAM
#undef DLPACK_PY_IMPL_PASS_VERSION
#undef DLPACK_PY_IMPL_TEXT
#undef DLPACK_PY_IMPL_TYPES
#undef DLPACK_PY_IMPL_UNLIKELY
#undef DLPACK_PY_IMPL_UNUSED_NAME
#undef DLPACK_PY_IMPL_USED_NAME

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

/* The clauses that the comments name: what the DLPack specification and the Python array API standard ask for.
 *
 * D1   data + byte_offset is the first element. A producer exports byte_offset 0 where data is an address.
 * D2   Consumers must not expect that data is aligned to 256 bytes. This header aligns its own memory to 64 bytes.
 * D3   Rank 0 is one element. Without elements a producer exports data NULL, and a consumer accepts any data.
 * D4   Strides count elements. A producer fills them; a consumer takes NULL as row-major.
 * D5   Strides of dimensions of size 1, and of tensors without elements, carry no meaning.
 * D6   Sub-byte elements are packed, lowest bit first, unless the flag says that each has a byte.
 * D8   Rank, extents, pointers, sizes and strides are checked before anything is read.
 * D9   CPU, pinned and managed memory is exported with device id 0; a consumer accepts any id.
 * D10  Only the machine's byte order can be described.
 * D11  Negative strides are exported, unless the author chose that they are refused or copied.
 * P1   The arguments of __dlpack__ are keyword-only, and are matched by value.
 * P2   max_version 1.0 or newer gets a versioned capsule; an older max_version, or None, gets a legacy capsule.
 * P3   Read-only and padded data are flagged. A request for a legacy capsule, which has no flags, is BufferError.
 * P4   copy=True copies, copy=False never does, copy=None copies where it must. A copy is compact and writable.
 * P5   dl_device is the device of the data, or the CPU; another one is BufferError.
 * P6   CPU memory has no streams: only None and -1 are accepted.
 * P7   Data that cannot be exported is BufferError, a bad argument TypeError or ValueError.
 * P8   __dlpack_device__ and the capsule say the same device.
 * P9   The memory lives until the deleter has run.
 * K1   A capsule that is not consumed calls the deleter when it is destroyed. Its name says whether it was consumed.
 * K2   Destructors and deleters keep the current exception.
 * K3   A deleter may be NULL.
 * K4   A consumer checks everything, renames the capsule, owns the tensor, and calls the deleter once.
 * K5   A deleter may be called on any thread at any time, also when the interpreter is gone.
 * K6   A tensor of an unknown major version is deleted, and not read.
 * K7   A deleter frees its struct, with shape and strides.
 * K8   manager_ctx is never NULL.
 * C1   A keyword that the producer's signature refuses is left out of a second call.
 * C3   copy and dl_device are passed only when asked for. The consumer copies where the producer cannot.
 * C4   No keyword is passed that is not needed. __dlpack_device__ is asked before a stream is chosen.
 * C5   An unsupported device is BufferError. Pinned and managed memory is asked for as CPU memory.
 * C6   __dlpack__ is looked for on the type, then on the instance. A capsule is accepted in place of an object.
 * C7   Read-only data stays read-only. A legacy capsule has no read-only flag: its data counts as read-only.
 * C8   Unknown flags and dtype codes are kept; impossible dtypes are refused.
 * C9   Requirements are checked, and the error names the wrong value and what was wanted.
 * C10  A view has the same fields for a versioned and for a legacy capsule.
 * S1   The producer orders its work before the consumer's stream, without blocking the host.
 * S2   On CUDA 1 is the legacy default stream, 2 the per-thread default stream, 0 is refused.
 * S3   On ROCm 0 is the default stream, 1 and 2 are refused.
 * S4   Where producer and consumer use one stream, no event is recorded and no stream waits.
 * S7   A stream handle has the pointer's full width.
 * S10  The host waits for pending work before it reads pinned or managed memory.
 * X1   The exchange table is a capsule on the type.
 * X2   A table counts as absent if its major version is not 1, if it lacks a function, or if __dlpack__ is overridden.
 * X3   A borrowed tensor cannot say read-only or padded.
 * X4   The functions of a table do not synchronize: the table names the stream to work on.
 * X5   The allocator of a table reports through SetError, and needs no thread state.
 * X6   A table's managed_tensor_to_py_object_no_sync steals its argument; NULL arguments are errors.
 * X7   A table refuses objects of another type, and serves those of derived types.
 * X8   Results of foreign functions are initialized before the call and validated after it.
 * X9   PyTorch's table exports lazily conjugated tensors as they lie in memory: __dlpack__ is asked instead.
 * G2   Copies and versions of this header in one process do not share anything.
 */

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

/* dlpack_tensor.h - describe, check and copy the tensors of DLPack, in C or C++, without Python
 * Version 0.3.0, not released. https://example.org/dlpack_py
 * Copyright (c) 2026 the dlpack_py authors. The licence stands at the end of this file.
 * SPDX-License-Identifier: MIT
 * For DLPack 1.0 and newer, C99 and C++11. The clauses in comments (D4, K5) are listed at the end of dlpack_py.h.
 *
 *   Switches      Compilers and dlpack.h    Errors as code and text    Dtypes and devices    Layout
 *   Validation    Requirements              Copies and overlap         Managed tensors       Streams
 *
 * No function here needs an interpreter or a thread state. The callback want.fallback needs both.
 */
#if (defined(DLPACK_PY_VERSION) && DLPACK_PY_VERSION != 0x000300) || \
    (defined(DLPACK_COPY_H) && DLP_COPY_VERSION != 0x000300)
#  error "two versions of dlpack_py.h meet here: put the files of one version first on the include path"
#  include "stop" /* no such file: ends the compilation */
#endif
#ifndef DLPACK_TENSOR_H
#define DLPACK_TENSOR_H

#define DLPACK_PY_VERSION 0x000300 /* 0.3.0: a byte for each part */
#define DLPACK_PY_VERSION_STRING "0.3.0"
#define DLPACK_PY_VERSION_DATE "not released"
#define DLPACK_PY_URL "https://example.org/dlpack_py"

/* ---- Switches ----------------------------------------------------------- */

/* Optional. Define them before the include, with equal values in every file of an extension. Other extensions in the
 * process may use other values.
 *
 * DLPACK_PY_MALLOC(size), DLPACK_PY_FREE(pointer)
 *                     memory of managed tensors, shapes and copies. Called on any thread, also without an interpreter:
 *                     do not use PyMem_*.
 * DLPACK_PY_PLAIN     1, for tests: dlp_simple_layout returns 0, and dlpack_exchange.h caches no types. */
#if defined(DLPACK_PY_MALLOC) != defined(DLPACK_PY_FREE)
#  error "define both of DLPACK_PY_MALLOC and DLPACK_PY_FREE, or neither"
#  include "stop" /* no such file: ends the compilation */
#endif
#ifndef DLPACK_PY_MALLOC
#  define DLPACK_PY_MALLOC(size) malloc(size)
#  define DLPACK_PY_FREE(pointer) free(pointer)
#endif
#ifndef DLPACK_PY_PLAIN
#  define DLPACK_PY_PLAIN 0
#endif

/* ---- Compilers and dlpack.h --------------------------------------------- */

#ifndef DLPACK_DLPACK_H_ /* dlpack.h was not included yet */
#  if !defined(__has_include)
#    include <dlpack/dlpack.h>
#  elif __has_include("dlpack.h") /* beside this file: before the system's, which may be old */
#    include "dlpack.h"
#  elif __has_include("dlpack/dlpack.h")
#    include "dlpack/dlpack.h"
#  else
#    error "dlpack.h is missing: pip install apache-tvm-ffi, and compile with -I$(tvm-ffi-config --dlpack-includedir)"
#    include "stop" /* no such file: ends the compilation */
#  endif
#endif
#if !defined(DLPACK_MAJOR_VERSION) || DLPACK_MAJOR_VERSION != 1
#  error "dlpack_py.h needs dlpack.h 1.x, and another dlpack.h was included: pip install apache-tvm-ffi has the newest"
#  include "stop" /* no such file: ends the compilation */
#endif

#include <inttypes.h> /* PRId64: extents in messages */
#include <stdarg.h>   /* messages */
#include <stddef.h>   /* size_t, NULL */
#include <stdio.h>    /* vsnprintf: messages */
#include <stdlib.h>   /* malloc, free, llabs */
#include <string.h>   /* memcpy, memset, strchr; in dlpack_py.h strcmp, strncmp */

/* Between DLP_QUIET and DLP_QUIET_END: no C++ warnings about C casts and NULL, no MSVC warnings about C99. */
#if defined(__cplusplus) && defined(__GNUC__)
#  define DLP_QUIET                                                                \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wpragmas\"") \
        _Pragma("GCC diagnostic ignored \"-Wunknown-warning-option\"")             \
            _Pragma("GCC diagnostic ignored \"-Wuseless-cast\"")                   \
                _Pragma("GCC diagnostic ignored \"-Wold-style-cast\"")             \
                    _Pragma("GCC diagnostic ignored \"-Wzero-as-null-pointer-constant\"")
#  define DLP_QUIET_END _Pragma("GCC diagnostic pop")
#elif defined(_MSC_VER) /* run-time values and addresses of locals in initializers */
#  define DLP_QUIET __pragma(warning(push)) __pragma(warning(disable : 4204 4221))
#  define DLP_QUIET_END __pragma(warning(pop))
#else
#  define DLP_QUIET
#  define DLP_QUIET_END
#endif
DLP_QUIET

/* The version that this header implements, whichever dlpack.h it is compiled with. */
#define DLPACK_PY_PROTOCOL_MAJOR 1
#define DLPACK_PY_PROTOCOL_MINOR 3

/* Flags of DLManagedTensorVersioned, with 64 bits: dlpack.h has unsigned long (Windows: 32). 1.0 has no PADDED flag. */
#define DLPACK_PY_FLAG_READ_ONLY UINT64_C(1)
#define DLPACK_PY_FLAG_IS_COPIED UINT64_C(2)
#define DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED UINT64_C(4)

#define DLPACK_PY_MAX_NDIM 64 /* NumPy's maximum (D8) */

/* DLP_PRINTF checks formats. DLP_NOINLINE: not inlined by GCC and clang. DLP_COLD: the same, rarely called.
 * DLP_MUST_CHECK: an unused result warns. DLP_DEPRECATED, before a function, field or typedef: each use warns. */
#if defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 5)
#  define DLP_HAS_OVERFLOW_BUILTINS
#  define DLP_PRINTF(text, first) __attribute__((format(printf, text, first)))
#  define DLP_COLD static __attribute__((cold, noinline, unused))
#  define DLP_NOINLINE static __attribute__((noinline, unused))
#  define DLP_MUST_CHECK __attribute__((warn_unused_result))
#  define DLP_DEPRECATED(text) __attribute__((deprecated(text)))
#else
#  ifdef _MSC_VER
#    define DLP_DEPRECATED(text) __declspec(deprecated(text))
#  else
#    define DLP_DEPRECATED(text)
#  endif
#  define DLP_PRINTF(text, first)
#  define DLP_MUST_CHECK
#  define DLP_COLD static inline
#  define DLP_NOINLINE static inline
#endif

/* The structs of dlpack.h cross libraries: -fshort-enums would change them. */
typedef char dlp_enum_has_4_bytes[sizeof(DLDeviceType) == 4 ? 1 : -1];

/* Sets *out to a * b, or returns -1 where a * b overflows int64_t; *out is undefined then. */
static inline int
dlp_checked_multiply(int64_t a, int64_t b, int64_t *out)
{
#ifdef DLP_HAS_OVERFLOW_BUILTINS
    return __builtin_mul_overflow(a, b, out) ? -1 : 0;
#else
    if ((a > 0 && b > 0 && a > INT64_MAX / b) || (a > 0 && b < 0 && b < INT64_MIN / a) ||
        (a < 0 && b > 0 && a < INT64_MIN / b) || (a < 0 && b < 0 && a < INT64_MAX / b))
        return -1;
    *out = a * b;
    return 0;
#endif
}

/* Sets *out to a + b, or returns -1 where a + b overflows int64_t; *out is undefined then. */
static inline int
dlp_checked_add(int64_t a, int64_t b, int64_t *out)
{
    *out = (int64_t)((uint64_t)a + (uint64_t)b);
    return (*out < a) != (b < 0) ? -1 : 0;
}

/* ---- Errors as code and text -------------------------------------------- */

/* Which Python exception a dlpack_py_error becomes. */
#define DLPACK_PY_BUFFER_ERROR 1
#define DLPACK_PY_VALUE_ERROR 2
#define DLPACK_PY_TYPE_ERROR 3
#define DLPACK_PY_MEMORY_ERROR 4
#define DLPACK_PY_RUNTIME_ERROR 5
#define DLPACK_PY_SYSTEM_ERROR 6

/* Filled by a function that fails. */
typedef struct dlpack_py_error {
    int32_t code;       /* DLPACK_PY_..._ERROR */
    int32_t copy_helps; /* 1: a copy of the data would meet the requirement */
    char text[248];     /* the wrong value and what was wanted */
} dlpack_py_error;

/* Fills *error, which may be NULL. Returns -1. */
DLP_COLD int DLP_PRINTF(3, 4)
dlp_fail(dlpack_py_error *error, int32_t code, const char *format, ...)
{
    va_list values;
    if (error != NULL) {
        error->code = code;
        error->copy_helps = 0;
        va_start(values, format);
        vsnprintf(error->text, sizeof(error->text), format, values);
        va_end(values);
    }
    return -1;
}

/* A macro, so that the compiler checks the format. Returns -1. */
#define DLP_REFUSE(error, ...) dlp_fail(error, DLPACK_PY_BUFFER_ERROR, __VA_ARGS__)

/* ---- Dtypes and devices ------------------------------------------------- */

/* A dtype as one integer: for tables, comparison and switch. The codes are the specification's, as numbers,
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
dlp_is_complex(DLDataType dtype)
{
    return dtype.code == kDLComplex || dtype.code == 18; /* complex bfloat16, which dlpack.h 1.3 does not name */
}

/* The only width that a dtype code may have, in bits; 0: any. */
static inline int
dlp_dtype_width(uint8_t code)
{
    static const uint8_t widths[] = {0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 6, 6, 4};
    return code < sizeof(widths) ? widths[code] : 0;
}

/* The name of a dtype code, without its bits; NULL: none. */
static inline const char *
dlp_name_of_dtype(uint8_t code)
{
    /* clang-format off */
    static const char *const names[] = {
        "int", "uint", "float", "handle", "bfloat", "complex", "bool", "float8_e3m4", "float8_e4m3",
        "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
        "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "bcomplex"
    };
    /* clang-format on */
    return code < sizeof(names) / sizeof(names[0]) ? names[code] : NULL;
}

/* Checks that the specification allows a dtype; unknown codes are accepted (C8). Returns 0, or -1 with BufferError. */
DLP_COLD int
dlp_check_dtype(DLDataType dtype, dlpack_py_error *error)
{
    const int width = dlp_dtype_width(dtype.code);
    const char *name = dlp_name_of_dtype(dtype.code), *wanted = NULL;

    if (dtype.lanes == 0)
        wanted = "at least 1 lane";
    else if (dtype.bits == 0)
        wanted = "at least 1 bit";
    else if (width != 0 && dtype.bits != width)
        wanted = width == 8 ? "8 bits" : width == 6 ? "6 bits" : "4 bits";
    else if (dlp_is_complex(dtype) && dtype.bits % 2 != 0)
        wanted = "an even number of bits";
    if (wanted == NULL)
        return 0;
    return DLP_REFUSE(error, "dtype code %d (%s) has %d bits and %d lanes, %s was wanted", dtype.code,
                      name == NULL ? "unknown" : name, dtype.bits, dtype.lanes, wanted);
}

/* Writes a dtype as text: "float32", "float8_e4m3fn", "float32x4" for four lanes; "dtype(200, 8, 1)" for a dtype
 * that has no name, or is not allowed. Returns text. */
DLP_COLD const char *
dlpack_py_dtype_text(uint32_t dtype, char text[DLPACK_PY_TEXT_SIZE])
{
    const DLDataType d = {(uint8_t)(dtype >> 24), (uint8_t)(dtype >> 16), (uint16_t)dtype};
    const char *name = dlp_name_of_dtype(d.code);
    size_t length;

    if (name == NULL || dlp_check_dtype(d, NULL) < 0) {
        snprintf(text, DLPACK_PY_TEXT_SIZE, "dtype(%d, %d, %d)", d.code, d.bits, d.lanes);
        return text;
    }
    length = strlen(name);
    memcpy(text, name, length + 1);
    if (dlp_dtype_width(d.code) == 0) { /* digits by hand: snprintf takes 1,400 instructions, more with libquadmath */
        if (d.bits >= 100)
            text[length++] = (char)('0' + d.bits / 100);
        if (d.bits >= 10)
            text[length++] = (char)('0' + d.bits / 10 % 10);
        text[length++] = (char)('0' + d.bits % 10);
        text[length] = 0;
    }
    if (d.lanes != 1)
        snprintf(text + length, DLPACK_PY_TEXT_SIZE - length, "x%d", d.lanes);
    return text;
}

/* Bits from one element to the next. Sub-byte elements are packed, unless flags say that each lane has a byte (D6). */
static inline uint32_t
dlp_item_bits(DLDataType dtype, uint64_t flags)
{
    const uint32_t bits = dtype.bits < 8 && (flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) != 0 ? 8u : dtype.bits;
    return bits * dtype.lanes;
}

/* Bytes of a single element, rounded up for packed sub-byte dtypes. flags: DLPACK_PY_FLAG_* of the tensor. */
static inline size_t
dlpack_py_itemsize(DLDataType dtype, uint64_t flags)
{
    return (dlp_item_bits(dtype, flags) + 7) / 8;
}

static inline DLDevice
dlp_make_device(int32_t type, int32_t id)
{
    const DLDevice device = {(DLDeviceType)type, id};
    return device;
}

/* Can the CPU read the memory? It reads CPU memory, pinned memory of CUDA, ROCm and TPUs, managed memory of CUDA. */
static inline int
dlpack_py_is_cpu_readable(DLDevice device)
{
    const uint32_t type = (uint32_t)device.device_type, tpu_host = 20; /* kDLTPUHost, which dlpack.h 1.3 lacks */
    return type < 32 &&
           ((1u << kDLCPU | 1u << kDLCUDAHost | 1u << kDLROCMHost | 1u << kDLCUDAManaged | 1u << tpu_host) >> type & 1);
}

/* Is data an address, to which an offset can be added? On any other device it may be a handle, as on OpenCL. */
static inline int
dlp_has_address(DLDevice device)
{
    return device.device_type == kDLCUDA || device.device_type == kDLROCM || device.device_type == kDLOneAPI ||
           dlpack_py_is_cpu_readable(device);
}

/* The name of a device type; NULL: none. */
DLP_COLD const char *
dlp_name_of_device(int32_t type)
{
    static const char *const names[] = {NULL,      "cpu",          "cuda",     "cuda_host", "opencl",  NULL,
                                        NULL,      "vulkan",       "metal",    "vpi",       "rocm",    "rocm_host",
                                        "ext_dev", "cuda_managed", "oneapi",   "webgpu",    "hexagon", "maia",
                                        "trn",     "tpu",          "tpu_host", "ascend"}; /* by DLDeviceType */
    return type >= 0 && type < (int32_t)(sizeof(names) / sizeof(names[0])) ? names[type] : NULL;
}

/* Writes a device as text: "cpu" for id 0 (D9), "cuda:1"; "device(99, 0)" for a type without a name. Returns text. */
DLP_COLD const char *
dlpack_py_device_text(DLDevice device, char text[DLPACK_PY_TEXT_SIZE])
{
    const int32_t type = (int32_t)device.device_type, id = device.device_id;
    const char *name = dlp_name_of_device(type);
    if (name == NULL)
        snprintf(text, DLPACK_PY_TEXT_SIZE, "device(%" PRId32 ", %" PRId32 ")", type, id);
    else if (id == 0 && dlpack_py_is_cpu_readable(device))
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%s", name);
    else
        snprintf(text, DLPACK_PY_TEXT_SIZE, "%s:%" PRId32, name, id);
    return text;
}

/* ---- Layout ------------------------------------------------------------- */

/* Describe memory that the CPU can read. Nothing is checked or copied.
 *
 * data      the first element, also where strides are negative
 * dtype     DLPACK_PY_FLOAT32 ...
 * shape     ndim extents
 * strides   ndim steps in elements; NULL: row-major
 *
 * The result points to shape and strides: they must live as long as it is used. */
static inline DLTensor
dlpack_py_cpu_tensor(void *data, uint32_t dtype, int32_t ndim, const int64_t *shape, const int64_t *strides)
{
    const DLDataType d = {(uint8_t)(dtype >> 24), (uint8_t)(dtype >> 16), (uint16_t)dtype};
    DLTensor t;
    t.data = data;
    t.device = dlp_make_device(kDLCPU, 0);
    t.ndim = ndim;
    t.dtype = d;
    t.shape = (int64_t *)(uintptr_t)shape; /* dlpack.h has no const; nothing is written */
    t.strides = (int64_t *)(uintptr_t)strides;
    t.byte_offset = 0;
    return t;
}

/* The address of the first element: data + byte_offset (D1). NULL stays NULL. */
static inline void *
dlp_first_element(const DLTensor *t)
{
    return t->data == NULL ? NULL : (void *)((uintptr_t)t->data + (uintptr_t)t->byte_offset);
}

/* Has the tensor no elements? */
DLP_NOINLINE int
dlp_is_empty(const DLTensor *t)
{
    int32_t i = 0;
    while (i < t->ndim && t->shape[i] != 0)
        i++;
    return i < t->ndim;
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
DLP_COLD int
dlp_checked_bytes(int64_t n, DLDataType dtype, uint64_t flags, int64_t *bytes)
{
    const int64_t bits = dlp_item_bits(dtype, flags);
    /* 8 elements have as many bytes as one element has bits. */
    return dlp_checked_multiply(n / 8, bits, bytes) < 0 ? -1 : dlp_checked_add(*bytes, (n % 8 * bits + 7) / 8, bytes);
}

/* The bytes of a compact copy of a validated tensor. Packed sub-byte dtypes are rounded up once, for the whole (D6). */
DLP_NOINLINE int64_t
dlpack_py_nbytes(const DLTensor *t, uint64_t flags)
{
    int64_t bytes = 0;
    (void)dlp_checked_bytes(dlpack_py_size(t), t->dtype, flags, &bytes);
    return bytes;
}

/* Compact strides in elements for a shape.
 *
 * order     'F': first index fastest; anything else: last index fastest
 * strides   out: ndim strides. With an extent of 0 they carry no meaning (D5) */
DLP_NOINLINE void
dlpack_py_compact_strides(int32_t ndim, const int64_t *shape, char order, int64_t *strides)
{
    uint64_t step = 1;
    int32_t k;
    for (k = 0; k < ndim; k++) {
        const int32_t i = order == 'F' ? k : ndim - 1 - k;
        strides[i] = (int64_t)step;
        if (shape[i] > 1 && (uint64_t)shape[i] <= INT64_MAX / step) /* it overflows only if an extent is 0 */
            step *= (uint64_t)shape[i];
    }
}

/* Read extents or strides of another integer type: int, size_t, Py_ssize_t.
 *
 * source   ndim integers of 4 or 8 bytes (size: sizeof(*source)), none above the signed maximum; NULL: returns NULL
 * to       out: ndim numbers. Returns to */
static inline int64_t *
dlpack_py_to_int64(int32_t ndim, const void *source, size_t size, int64_t *to)
{
    int32_t i, narrow;

    for (i = 0; source != NULL && i < ndim; i++) {
        memcpy(&narrow, (const char *)source + (size_t)i * size, sizeof(narrow));
        to[i] = narrow;
        if (size == sizeof(int64_t))
            memcpy(&to[i], (const char *)source + (size_t)i * size, size);
    }
    return source == NULL ? NULL : to;
}

/* Set t->strides from strides in bytes, as NumPy, OpenCV and Pillow have them.
 *
 * t         has its dtype, ndim and shape; out: strides
 * strides   ndim numbers in bytes; out: in elements. t points to them
 * flags     DLPACK_PY_FLAG_* of the tensor: packed sub-byte elements have no strides in bytes, padded ones have
 *
 * Returns 0; or -1 with BufferError and no change: a stride is no multiple of the item size, or items are packed. */
static inline int
dlpack_py_strides_from_bytes(DLTensor *t, int64_t *strides, uint64_t flags, dlpack_py_error *error)
{
    const int64_t bits = dlp_item_bits(t->dtype, flags), size = bits < 8 ? 1 : bits / 8;
    int32_t i, ndim = dlp_is_empty(t) ? 0 : t->ndim; /* a stride that reaches no element may be any number (D5) */

    for (i = 0; i < ndim; i++) {
        if (t->shape[i] > 1 && (bits % 8 != 0 || bits == 0))
            return DLP_REFUSE(error, "elements of %" PRId64 " bits are packed, and have no strides in bytes", bits);
        if (t->shape[i] > 1 && strides[i] % size != 0)
            return DLP_REFUSE(error, "strides[%" PRId32 "] is %" PRId64 " bytes, a multiple of %" PRId64 " was wanted",
                              i, strides[i], size);
    }
    for (i = 0; i < t->ndim; i++)
        strides[i] /= size;
    t->strides = strides;
    return 0;
}

/* The tensor's strides; where they are NULL, row-major strides written to storage (D4). */
DLP_COLD const int64_t *
dlp_strides_or_compact(const DLTensor *t, int64_t storage[DLPACK_PY_MAX_NDIM])
{
    if (t->strides != NULL)
        return t->strides;
    dlpack_py_compact_strides(t->ndim, t->shape, 'C', storage);
    return storage;
}

/* How far the elements of a tensor reach from the first one, in bytes. *lowest is negative if a stride is, else 0;
 * *highest is one past the last byte; both are 0 without elements. Returns 0, or -1 where lowest or highest does not
 * fit into int64_t, in elements or in bytes; that never happens for a validated tensor. */
static inline int
dlp_byte_range(const DLTensor *t, uint64_t flags, int64_t *lowest, int64_t *highest)
{
    int64_t below = 0, above = 1, reach; /* in elements; below is 0 or negative */
    int32_t i;

    *lowest = *highest = 0;
    if (dlp_is_empty(t))
        return 0;
    if (t->strides == NULL)
        return dlp_checked_bytes(dlpack_py_size(t), t->dtype, flags, highest);
    for (i = 0; i < t->ndim; i++) {
        const int64_t last = t->shape[i] - 1;
        if (dlp_checked_multiply(last, t->strides[i], &reach) < 0 ||
            (reach < 0 ? dlp_checked_add(below, reach, &below) : dlp_checked_add(above, reach, &above)) < 0)
            return -1;
    }
    if (below == INT64_MIN || dlp_checked_bytes(-below, t->dtype, flags, lowest) < 0 ||
        dlp_checked_bytes(above, t->dtype, flags, highest) < 0)
        return -1;
    *lowest = -*lowest;
    return 0;
}

/* 'K': the elements fill memory without gaps, in any order of dimensions. 'S': there are gaps or negative strides, but
 * each stride steps over all elements that smaller strides reach. 0: elements may share memory. t has strides. */
DLP_COLD int
dlp_stride_pattern(const DLTensor *t)
{
    int32_t i, k, pattern = 'K';

    for (i = 0; i < t->ndim; i++) {
        uint64_t step, reach = 0;
        if (t->shape[i] == 1)
            continue;
        step = (uint64_t)llabs(t->strides[i]);
        for (k = 0; k < t->ndim; k++) {
            if (k != i && t->shape[k] != 1 && (uint64_t)llabs(t->strides[k]) <= step)
                reach += (uint64_t)((t->shape[k] - 1) * llabs(t->strides[k]));
        }
        if (step <= reach)
            return 0;
        if (t->strides[i] != (int64_t)reach + 1)
            pattern = 'S';
    }
    return pattern;
}

/* Checks that t has this order; dlpack_py_is_contiguous lists the orders. Returns 0, or -1 with BufferError. */
DLP_COLD int
dlp_check_order(const DLTensor *t, char order, dlpack_py_error *error)
{
    const int32_t count = order == 'R' && t->ndim > 1 ? t->ndim - 1 : t->ndim; /* dimensions to check */
    int64_t storage[DLPACK_PY_MAX_NDIM];
    const int64_t *strides = dlp_strides_or_compact(t, storage);
    uint64_t step = 1;
    int32_t k;

    if (order == 'A' && dlp_check_order(t, 'F', NULL) == 0)
        return 0;
    if (order == 'K') {
        if (t->strides == NULL || dlp_is_empty(t) || dlp_stride_pattern(t) == 'K')
            return 0;
        return DLP_REFUSE(error, "strides are not compact in any order of the dimensions, order 'K' was asked for");
    }
    for (k = 0; k < count; k++) {
        const int32_t i = order == 'F' ? k : t->ndim - 1 - k;
        if (t->shape[i] != 1 && strides[i] != (int64_t)step && !dlp_is_empty(t))
            return DLP_REFUSE(error, "strides[%" PRId32 "] is %" PRId64 ", %" PRId64 " was asked for by order '%c'", i,
                              strides[i], (int64_t)step, order);
        step *= (uint64_t)t->shape[i]; /* wraps only if an extent is 0 */
    }
    return 0;
}

/* Is the tensor compact in the given order?
 *
 * order   'C': last index fastest; 'F': first index fastest; 'A': 'C' or 'F'; 'K': any order of the dimensions, as a
 *         transposed array has; 'R': as 'C', but with two or more dimensions the first stride is not checked: for
 *         example an image whose rows have a pitch
 *
 * Returns 1 or 0. Strides of dimensions of size 1, and all strides of a tensor without elements, do not matter (D5);
 * NULL is row-major (D4). t has been validated. Needs no thread state. */
DLP_NOINLINE int
dlpack_py_is_contiguous(const DLTensor *t, char order)
{
    return dlp_check_order(t, order, NULL) == 0;
}

/* May two elements of a validated tensor share memory? 0 is certain; 1 also where strides only interleave. */
DLP_COLD int
dlp_may_overlap_itself(const DLTensor *t)
{
    return !dlpack_py_is_contiguous(t, 'C') && dlp_stride_pattern(t) == 0;
}

/* ---- Validation --------------------------------------------------------- */

/* Checks all of clause D8. Returns 0, or -1 with *error filled. */
DLP_COLD int
dlp_validate_general(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    const uint64_t base = (uint64_t)(uintptr_t)t->data;
    int64_t size = 1, bytes, lowest, highest;
    int32_t i;

    if (dlp_check_dtype(t->dtype, error) < 0)
        return -1;
    if (t->ndim < 0 || t->ndim > DLPACK_PY_MAX_NDIM)
        return DLP_REFUSE(error, "ndim is %" PRId32 ", it must be from 0 to %d", t->ndim, DLPACK_PY_MAX_NDIM);
    if (t->ndim > 0 && t->shape == NULL)
        return DLP_REFUSE(error, "shape is NULL, ndim is %" PRId32, t->ndim);
    for (i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return DLP_REFUSE(error, "shape[%" PRId32 "] is %" PRId64 ", it must not be negative", i, t->shape[i]);
    }
    if (dlp_is_empty(t))
        return 0;
    for (i = 0; i < t->ndim; i++) {
        if (dlp_checked_multiply(size, t->shape[i], &size) < 0)
            return DLP_REFUSE(error, "shape has 2^63 elements or more, at shape[%" PRId32 "] = %" PRId64, i,
                              t->shape[i]);
    }
    if (t->data == NULL)
        return DLP_REFUSE(error, "data is NULL, the tensor has %" PRId64 " elements", size);
    if (dlp_checked_bytes(size, t->dtype, flags, &bytes) < 0)
        return DLP_REFUSE(error, "%" PRId64 " elements take 2^63 bytes or more", size);
    if (dlp_byte_range(t, flags, &lowest, &highest) < 0)
        return DLP_REFUSE(error, "strides reach 2^63 bytes or further");
    if (!dlp_has_address(t->device))
        return 0;
    if (t->byte_offset > UINTPTR_MAX - base)
        return DLP_REFUSE(error, "byte_offset is %" PRIu64 ", added to data it leaves the address range",
                          t->byte_offset);
    if ((uint64_t)-lowest > base + t->byte_offset || (uint64_t)highest > UINTPTR_MAX - (base + t->byte_offset))
        return DLP_REFUSE(error, "strides reach from byte %" PRId64 " to %" PRId64 ", which leaves the address range",
                          lowest, highest);
    return 0;
}

/* The rest of dlp_simple_layout: tensors that are not row-major, are large, or have no elements or no data. Saves 870
 * of the 2,500 instructions of an import of x.T. */
DLP_NOINLINE int
dlp_simple_layout_rest(const DLTensor *t)
{
    int order = t->strides != NULL && t->ndim > 1 && t->strides[0] < t->strides[t->ndim - 1] ? 'F' : 'C';
    int64_t step, reach, smallest = 1; /* in elements; step: stride, then stride * (extent - 1); reach: sum of these */
    int tries, i, k, has_gaps;

    for (i = 0; i < t->ndim; i++)
        smallest = t->shape[i] < smallest ? t->shape[i] : smallest;
    if (smallest <= 0 || t->data == NULL)
        return smallest == 0 ? 'C' : 0; /* D5 */
    for (tries = 0; tries < 2; tries++, order = order == 'C' ? 'F' : 'C') {
        reach = has_gaps = 0;
        for (k = 0; k < t->ndim; k++) {
            i = order == 'F' ? k : t->ndim - 1 - k;
            if (t->shape[i] == 1)
                continue;
            step = t->strides == NULL ? reach + 1 : t->strides[i];
            if (step <= reach)
                break;
            has_gaps |= step != reach + 1;
            if (dlp_checked_multiply(t->shape[i] - 1, step, &step) < 0 || step > INT64_MAX / 64 - reach)
                return 0;
            reach += step;
        }
        if (k == t->ndim)
            return (uint64_t)(reach + 1) * 16 > UINTPTR_MAX - (uintptr_t)t->data ? 0 : has_gaps ? 'S' : order;
    }
    return 0;
}

/* Recognizes a simple tensor: CPU memory, byte_offset 0, one lane of 1 to 16 bytes, strides that grow in one direction.
 * It is valid (D8), and no two of its elements share memory. Returns 'C' if it is row-major, 'F' if column-major, 'S'
 * if there are gaps; 0 for any other tensor, valid or not. Saves 859 of the 2,510 instructions of one export and
 * import (all such figures: CPython 3.11, gcc 12 -O2). */
DLP_NOINLINE int
dlp_simple_layout(const DLTensor *t)
{
    const uint32_t bits = t->dtype.bits;
    uint64_t size = 1; /* below 2^31 */
    int32_t i = t->ndim;

    if (DLPACK_PY_PLAIN || t->device.device_type != kDLCPU || t->byte_offset != 0 || t->dtype.code > kDLBool ||
        t->dtype.lanes != 1 || bits < 8 || (bits & (bits - 1)) != 0 || (t->dtype.code == kDLBool && bits != 8) ||
        (uint32_t)i > DLPACK_PY_MAX_NDIM || (t->shape == NULL && i != 0))
        return 0;
    while (i-- > 0) {
        const uint64_t last = (uint64_t)t->shape[i] - 1; /* 2^64 - 1 for an extent of 0 */
        if (t->strides != NULL && (uint64_t)t->strides[i] != size && last != 0)
            return dlp_simple_layout_rest(t);
        size *= last + 1;
        if ((last | size) >> 31 != 0)
            return dlp_simple_layout_rest(t);
    }
    return t->data != NULL && size * 16 <= UINTPTR_MAX - (uintptr_t)t->data ? 'C' : dlp_simple_layout_rest(t);
}

/* Check a tensor before anything is read: rank, extents, dtype, strides and addresses (D8). Functions that want a
 * "validated" tensor rely on it.
 *
 * flags   DLPACK_PY_FLAG_* of the tensor: padded sub-byte dtypes
 * error   out, on failure; may be NULL
 *
 * Returns 0, or -1 with BufferError. Needs no thread state. */
static inline int
dlpack_py_validate(const DLTensor *t, uint64_t flags, dlpack_py_error *error)
{
    return dlp_simple_layout(t) != 0 ? 0 : dlp_validate_general(t, flags, error);
}

/* ---- Requirements ------------------------------------------------------- */

/* Makes a managed tensor of an object that has no __dlpack__. Returns 0 and sets *out, which is owned by the caller;
 * returns 0 and leaves *out NULL if it does not know the object; or returns -1 with an exception for the caller. */
typedef int (*dlpack_py_fallback)(void *py_object, struct DLManagedTensorVersioned **out);

/* What a caller of dlpack_py_consume requires. All zero, which dlpack_py_want_any returns, accepts any tensor that the
 * CPU can read, if its data is aligned as C aligns a number. A want that contradicts itself raises SystemError. */
typedef struct dlpack_py_want {
    uint32_t dtype;              /* DLPACK_PY_FLOAT32...; 0: any */
    const uint32_t *dtypes;      /* further accepted dtypes, ended by 0; NULL: no further ones */
    int32_t ndim;                /* the rank; with max_ndim the lowest one. DLPACK_PY_SCALAR: rank 0; 0: any rank */
    int32_t max_ndim;            /* the highest rank; 0: ndim is the only one. With ndim 0: ranks 0 to max_ndim */
    const int64_t *shape;        /* ndim extents, -1 free; needs a fixed rank; NULL: any */
    char order;                  /* as dlpack_py_is_contiguous: 'C', 'F', 'A', 'K', 'R'; 0: any strides */
    char writable;               /* refuse memory that is read-only, may be read-only, or may overlap itself */
    int32_t device;              /* a DLDeviceType; 0: memory that the CPU can read; DLPACK_PY_ANY_DEVICE */
    size_t alignment;            /* of an address, in bytes, a power of two; 0: as C aligns a number; 1: any */
    uint32_t options;            /* DLPACK_PY_WANT_COPY_IF_NEEDED ... */
    const char *name;            /* the argument's name, put before refusals: "out: dtype is ..."; NULL: none */
    dlpack_py_fallback fallback; /* for objects without __dlpack__: dlpack_buffer_fallback, for example; NULL: none */
} dlpack_py_want;

#define DLPACK_PY_SCALAR (-1)     /* want.ndim: rank 0 */
#define DLPACK_PY_ANY_DEVICE (-1) /* want.device: memory of any device */

#define DLPACK_PY_WANT_COPY_IF_NEEDED 1u /* copy where a copy meets the requirement; writes do not reach the producer */
#define DLPACK_PY_WANT_LEGACY_IS_WRITABLE 2u /* accept a legacy capsule, which cannot say read-only, as writable (C7) */
#define DLPACK_PY_WANT_OVERLAP_IS_FINE 4u    /* writable accepts memory that may overlap itself */
#define DLPACK_PY_WANT_NOTHING_PENDING 8u    /* the caller knows that no work is pending: no stream is ordered (C5) */
#define DLPACK_PY_WANT_NO_TABLE 16u          /* ask __dlpack__, also where the type has an exchange table (X9) */
#define DLPACK_PY_WANT_ARRAY_INTERFACE_TOO 32u /* dlpack_device_consume: accept __cuda_array_interface__ as well */

/* The values of dlpack_py_view.readonly. DLPACK_PY_READ_ONLY_UNKNOWN: a legacy capsule cannot say whether memory is
 * writable (C7). Bit 0 of each value is DLPACK_PY_FLAG_READ_ONLY: a value can be passed as flags of an export. */
#define DLPACK_PY_WRITABLE 0
#define DLPACK_PY_READ_ONLY 1
#define DLPACK_PY_READ_ONLY_UNKNOWN 0x101

/* No requirements: any tensor that the CPU can read, if its data is aligned as C aligns a number. For want NULL. */
static const dlpack_py_want dlp_empty_want = {0, NULL, 0, 0, NULL, 0, 0, 0, 0, 0, NULL, NULL};

/* Returns a want without requirements, for the caller to fill. */
static inline dlpack_py_want
dlpack_py_want_any(void)
{
    return dlp_empty_want;
}

/* Returns a want for the dtype, rank, shape and device type of t: for example for out=, with t the input's tensor.
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

/* Checks that the requirements make sense (C9). Returns 0, or -1 with SystemError. */
static inline int
dlp_check_want(const dlpack_py_want *want, dlpack_py_error *error)
{
    const uint32_t *list = want->dtypes;
    uint32_t wrong = (want->dtype & 0xff0000u) == 0 ? want->dtype : 0; /* a code, such as kDLFloat, has no bits */

    for (; list != NULL && *list != 0 && wrong == 0; list++)
        wrong = (*list & 0xff0000u) == 0 ? *list : 0;
    if (wrong != 0)
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR,
                        "want: dtype is %" PRIu32 ", a dtype such as DLPACK_PY_FLOAT32 was wanted", wrong);
    if (want->device < DLPACK_PY_ANY_DEVICE)
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR,
                        "want: device is %" PRId32 ", a DLDeviceType or DLPACK_PY_ANY_DEVICE was wanted", want->device);
    if (want->order != 0 && want->order != 'C' && strchr("FAKR", want->order) == NULL)
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR, "want: order is '%c', 'C', 'F', 'A', 'K' or 'R' was wanted",
                        want->order);
    if ((want->alignment & (want->alignment - 1)) != 0)
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR, "want: alignment is %" PRIuPTR ", a power of two was wanted",
                        (uintptr_t)want->alignment); /* not %zu: MinGW's C library lacks it */
    if (want->ndim < DLPACK_PY_SCALAR || (want->max_ndim != 0 && want->max_ndim < (want->ndim > 0 ? want->ndim : 0)) ||
        (want->shape != NULL && (want->ndim == 0 || (want->max_ndim != 0 && want->max_ndim != want->ndim))))
        return dlp_fail(error, DLPACK_PY_SYSTEM_ERROR,
                        "want: ndim is %d and max_ndim is %d, a range was wanted (one rank where shape is set)",
                        (int)want->ndim, (int)want->max_ndim);
    return 0;
}

/* Is the rank wanted? DLPACK_PY_SCALAR is -1: the second test then accepts 0 to max_ndim. */
static inline int
dlp_is_wanted_rank(int32_t ndim, const dlpack_py_want *want)
{
    return ndim == want->ndim || (ndim > want->ndim && ndim <= want->max_ndim) || (want->ndim | want->max_ndim) == 0;
}

/* Is the dtype wanted? */
static inline int
dlp_is_wanted_dtype(uint32_t dtype, const dlpack_py_want *want)
{
    const uint32_t *list = want->dtypes;
    if (dtype == want->dtype || (want->dtype == 0 && (list == NULL || *list == 0)))
        return 1;
    while (list != NULL && *list != 0 && *list != dtype)
        list++;
    return list != NULL && *list == dtype;
}

/* Appends a text and the name of a dtype to a text of this length. Returns the new length. */
DLP_COLD size_t
dlp_append_dtype(char *text, size_t length, const char *before, uint32_t dtype)
{
    const size_t size = strlen(before);
    memcpy(text + length, before, size);
    return length + size + strlen(dlpack_py_dtype_text(dtype, text + length + size));
}

/* Refuses the dtype of a tensor, and lists the wanted dtypes. Returns -1. */
DLP_COLD int
dlp_refuse_dtype(const DLTensor *t, const dlpack_py_want *want, dlpack_py_error *error)
{
    char text[128 + DLPACK_PY_TEXT_SIZE];
    size_t length = dlp_append_dtype(text, 0, "dtype is ", dlpack_py_dtype(t));
    const uint32_t *list = want->dtypes;

    if (want->dtype != 0)
        length = dlp_append_dtype(text, length, ", ", want->dtype);
    for (; list != NULL && *list != 0 && length <= 90; list++)
        length = dlp_append_dtype(text, length, want->dtype != 0 || list != want->dtypes ? " or " : ", ", *list);
    return DLP_REFUSE(error, "%s%s was asked for", text, list != NULL && *list != 0 ? " or ..." : "");
}

/* Is the device wanted? */
static inline int
dlp_is_wanted_device(const DLTensor *t, const dlpack_py_want *want)
{
    return want->device == 0 ? dlpack_py_is_cpu_readable(t->device)
                             : want->device == DLPACK_PY_ANY_DEVICE || want->device == (int32_t)t->device.device_type;
}

/* Refuses a device that is not the wanted one. Returns -1. */
DLP_COLD int
dlp_refuse_device(DLDevice device, const dlpack_py_want *want, dlpack_py_error *error)
{
    char actual[DLPACK_PY_TEXT_SIZE], wanted[DLPACK_PY_TEXT_SIZE] = "memory that the CPU can read";
    const char *name = dlp_name_of_device(want->device);

    if (name != NULL)
        snprintf(wanted, sizeof(wanted), "%s", name);
    else if (want->device != 0)
        snprintf(wanted, sizeof(wanted), "device type %" PRId32, want->device);
    return DLP_REFUSE(error, "device is %s, %s was asked for", dlpack_py_device_text(device, actual), wanted);
}

/* The checks of dlpack_py_check_tensor, except dlp_check_want and the device. layout: of dlp_simple_layout; 0: not
 * known. readonly: the caller has applied DLPACK_PY_WANT_LEGACY_IS_WRITABLE. */
DLP_NOINLINE int
dlp_check_requirements(const DLTensor *t, int layout, int readonly, const dlpack_py_want *want, dlpack_py_error *error)
{
    const int32_t lowest = want->ndim == DLPACK_PY_SCALAR ? 0 : want->ndim;
    const int32_t highest = want->max_ndim != 0 ? want->max_ndim : lowest;
    const uintptr_t first = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
    size_t alignment = want->alignment;
    unsigned bits;
    int32_t i;
    int result = 0;

    if (!dlp_is_wanted_dtype(dlpack_py_dtype(t), want))
        return dlp_refuse_dtype(t, want, error);
    if (!dlp_is_wanted_rank(t->ndim, want))
        return lowest == highest ? DLP_REFUSE(error, "ndim is %" PRId32 ", %" PRId32 " was asked for", t->ndim, lowest)
                                 : DLP_REFUSE(error, "ndim is %" PRId32 ", %" PRId32 " to %" PRId32 " was asked for",
                                              t->ndim, lowest, highest);
    for (i = 0; want->shape != NULL && i < t->ndim; i++) {
        if (want->shape[i] != -1 && want->shape[i] != t->shape[i])
            return DLP_REFUSE(error, "shape[%" PRId32 "] is %" PRId64 ", %" PRId64 " was asked for", i, t->shape[i],
                              want->shape[i]);
    }
    /* The alignment of one lane, or of half of a complex lane. A multiple of 16 suits each dtype. */
    if (alignment == 0 && first % 16 != 0) {
        bits = dlp_is_complex(t->dtype) ? t->dtype.bits / 2u : t->dtype.bits;
        bits = bits != 64 ? bits : sizeof(DLTensor) % 8 == 0 ? 64 : 32; /* i386 aligns int64_t to 4: sizeof is 36 */
        alignment = (bits & (bits - 1)) == 0 ? bits / 8 : 1;
    }
    if (want->order != 0 && want->order != layout)
        result = dlp_check_order(t, want->order, error);
    if (result == 0 && alignment > 1 && first % alignment != 0 && !dlp_is_empty(t) && dlp_has_address(t->device))
        result = DLP_REFUSE(error, "data is at address 0x%" PRIxPTR ", alignment to %" PRIuPTR " bytes was asked for",
                            first, (uintptr_t)alignment);
    if (result == 0 && want->writable && readonly != DLPACK_PY_WRITABLE)
        result = DLP_REFUSE(error, "data is read-only, writable memory was asked for%s",
                            readonly == DLPACK_PY_READ_ONLY ? "" : " (a legacy capsule has no read-only flag)");
    if (result == 0 && want->writable && layout == 0 && (want->order == 0 || want->order == 'R') && /* may overlap */
        (want->options & DLPACK_PY_WANT_OVERLAP_IS_FINE) == 0 && dlp_may_overlap_itself(t))
        result = DLP_REFUSE(error, "elements may share memory, writable memory without overlap was asked for");
    if (result < 0 && error != NULL)
        error->copy_helps = 1;
    return result;
}

/* Checks that a tensor meets the requirements (C9). The requirements that a copy of the data can meet are checked last:
 * where such a requirement fails, error->copy_helps is 1.
 *
 * t          has been validated
 * readonly   DLPACK_PY_WRITABLE, DLPACK_PY_READ_ONLY or DLPACK_PY_READ_ONLY_UNKNOWN
 * want       the requirements; NULL: {0}
 *
 * Returns 0, or -1 with BufferError that names the wrong value and what was wanted, or with SystemError where the
 * requirements contradict each other. Needs no thread state. */
DLP_NOINLINE int
dlpack_py_check_tensor(const DLTensor *t, int readonly, const dlpack_py_want *want, dlpack_py_error *error)
{
    want = want != NULL ? want : &dlp_empty_want;
    if (readonly == DLPACK_PY_READ_ONLY_UNKNOWN && (want->options & DLPACK_PY_WANT_LEGACY_IS_WRITABLE) != 0)
        readonly = DLPACK_PY_WRITABLE;
    if (dlp_check_want(want, error) < 0)
        return -1;
    if (!dlp_is_wanted_device(t, want))
        return dlp_refuse_device(t->device, want, error);
    return dlp_check_requirements(t, 0, readonly, want, error);
}

/* ---- Copies and overlap ------------------------------------------------- */

#ifdef DLPACK_COPY_H /* a file that includes dlpack_copy.h first */
typedef dlpack_copy_loop dlp_loop;
#  define dlp_copy_rows dlpack_copy_rows
#else
/* One loop of a copy: how often it runs, and the bytes from one round to the next in dst and in src. */
typedef struct dlp_loop {
    int64_t count, to_step, from_step;
} dlp_loop;

/* Copies rows of items of size bytes. Constant sizes are fast. */
DLP_NOINLINE void
dlp_copy_rows(char *to, const dlp_loop *rows, const char *from, const dlp_loop *items, size_t size, int64_t total)
{
    int64_t row, i;

    (void)total;
    for (row = 0; row < rows->count; row++) {
        char *out = to + row * rows->to_step;
        const char *in = from + row * rows->from_step;
#define DLP_COPY_ITEMS(bytes)          \
    for (i = 0; i < items->count; i++) \
    memcpy(out + i * items->to_step, in + i * items->from_step, bytes)
        switch (size) {
        case 1: DLP_COPY_ITEMS(1); break;
        case 2: DLP_COPY_ITEMS(2); break;
        case 4: DLP_COPY_ITEMS(4); break;
        case 8: DLP_COPY_ITEMS(8); break;
        case 16: DLP_COPY_ITEMS(16); break;
        default: DLP_COPY_ITEMS(size); break;
        }
#undef DLP_COPY_ITEMS
    }
}
#endif

/* Copies count bits, lowest bit of a byte first (D6). Offsets are in bits. */
static inline void
dlp_copy_bits(char *to, int64_t to_bit, const char *from, int64_t from_bit, int64_t count)
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

/* Copies src to dst. The caller has checked both. loops[0] runs over the bytes (packed: bits) of an item, the others
 * over dimensions, the shortest stride in dst first. Loops that continue each other in dst and in src become one. */
DLP_NOINLINE void
dlp_copy_unchecked(const DLTensor *dst, const DLTensor *src, uint64_t flags)
{
    const int64_t bits = dlp_item_bits(src->dtype, flags);
    const int packed = bits % 8 != 0;
    const int64_t size = packed ? bits : bits / 8;
    int64_t compact_to[DLPACK_PY_MAX_NDIM], compact_from[DLPACK_PY_MAX_NDIM], total = size, to = 0, from = 0;
    const int64_t *step_to = dlp_strides_or_compact(dst, compact_to);
    const int64_t *step_from = dlp_strides_or_compact(src, compact_from);
    char *first_to = (char *)dlp_first_element(dst);
    const char *first_from = (const char *)dlp_first_element(src);
    static const dlp_loop once = {1, 0, 0}; /* a loop that runs once */
    dlp_loop loops[DLPACK_PY_MAX_NDIM + 1], *next;
    int64_t done[DLPACK_PY_MAX_NDIM + 1]; /* rounds */
    int64_t rows = 2;                     /* the index, 2 or more, of the loop with the shortest stride in src */
    int64_t i, k, count = 0, last = 0;

    if (dlp_is_empty(src))
        return;
    for (i = src->ndim - 1; i >= 0; i--) {
        dlp_loop loop;
        loop.count = src->shape[i];
        if (loop.count == 1)
            continue;
        loop.to_step = step_to[i] * size;
        loop.from_step = step_from[i] * size;
        total *= loop.count;
        for (next = &loops[++count]; next > &loops[1] && llabs(next[-1].to_step) > llabs(loop.to_step); next--)
            *next = next[-1];
        *next = loop;
    }
    loops[0].count = size;
    loops[0].to_step = loops[0].from_step = 1;
    for (i = 1; i <= count; i++) {
        next = &loops[last];
        if (loops[i].to_step == next->to_step * next->count && loops[i].from_step == next->from_step * next->count)
            next->count *= loops[i].count;
        else {
            loops[++last] = loops[i];
            done[last] = 0;
            if (last > 2 && llabs(loops[last].from_step) < llabs(loops[rows].from_step))
                rows = last;
        }
    }
    do {
        if (packed)
            dlp_copy_bits(first_to, to, first_from, from, loops[0].count);
        else
            dlp_copy_rows(first_to + to, last > 1 ? &loops[rows] : &once, first_from + from,
                          last > 0 ? &loops[1] : &once, (size_t)loops[0].count, total);
        for (k = 1; k <= last; k++) { /* to the next item, or the next rows */
            if (!packed && (k == 1 || k == rows))
                continue;
            next = &loops[k];
            to += next->to_step;
            from += next->from_step;
            if (++done[k] < next->count)
                break;
            to -= next->count * next->to_step;
            from -= next->count * next->from_step;
            done[k] = 0;
        }
    } while (k <= last);
}

/* The greatest common divisor of a and b. */
static inline uint64_t
dlp_common_divisor(uint64_t a, uint64_t b)
{
    return b == 0 ? a : dlp_common_divisor(b, a % b);
}

/* Looks for the largest stride of t, in bytes, that is below limit and at least *step. Sets *step to it, and *count to
 * the sum of extent - 1 of the dimensions with this stride. If it is the given *step, adds the sum to *count. */
DLP_COLD void
dlp_largest_step(const DLTensor *t, uint64_t flags, uint64_t limit, uint64_t *step, uint64_t *count)
{
    int64_t storage[DLPACK_PY_MAX_NDIM];
    const int64_t *strides = dlp_strides_or_compact(t, storage);
    int32_t i;
    for (i = 0; i < t->ndim; i++) {
        const uint64_t stride = t->shape[i] == 1 ? 0 : (uint64_t)llabs(strides[i]);
        const uint64_t bytes = stride * (dlp_item_bits(t->dtype, flags) / 8);
        if (bytes < *step || bytes >= limit)
            continue;
        *count = (bytes == *step ? *count : 0) + (uint64_t)t->shape[i] - 1;
        *step = bytes;
    }
}

/* May two tensors share memory? Both are validated, on one device. flags_a, flags_b: DLPACK_PY_FLAG_* of each.
 *
 * Returns 0 if one tensor has no elements, or if their ranges do not meet. If no dtype is packed, it also returns 0 if
 * the elements of one tensor lie between those of the other at equal distances, as in x[..., 0] and x[..., 1], or if
 * the strides show that no byte is in both, as in two halves of each row of an image. Otherwise it returns 1. */
DLP_NOINLINE int
dlpack_py_may_overlap(const DLTensor *a, uint64_t flags_a, const DLTensor *b, uint64_t flags_b)
{
    const uint64_t data_a = (uint64_t)(uintptr_t)dlp_first_element(a);
    const uint64_t data_b = (uint64_t)(uintptr_t)dlp_first_element(b);
    int64_t lowest_a, highest_a, lowest_b, highest_b;
    uint64_t reach_a, reach, rest, step, count, times, divisor = 0, limit = UINT64_MAX; /* reach: the largest sum */
    int is_unclear = 0;

    if (dlp_byte_range(a, flags_a, &lowest_a, &highest_a) < 0 || dlp_byte_range(b, flags_b, &lowest_b, &highest_b) < 0)
        return 1;
    if (highest_a == 0 || highest_b == 0) /* no elements */
        return 0;
    /* rest: from the first byte of b to the last byte of a. They share a byte only if rest is a sum of strides (each
     * stride of a and of b, in bytes, 0 to extent - 1 times) plus at most (item size of a - 1) + (that of b - 1). */
    rest = data_a + (uint64_t)highest_a - 1 - data_b - (uint64_t)lowest_b;
    reach_a = (uint64_t)highest_a - 1 - (uint64_t)lowest_a;
    reach = reach_a + (uint64_t)highest_b - 1 - (uint64_t)lowest_b;
    if (reach >= reach_a && rest > reach) /* the ranges are separate; a negative rest has wrapped: b is behind a */
        return 0;
    if (reach < reach_a || ((dlp_item_bits(a->dtype, flags_a) | dlp_item_bits(b->dtype, flags_b)) & 7) != 0)
        return 1;           /* reach wrapped, or items are packed */
    for (;; limit = step) { /* subtracts steps from rest, the largest first; reach: largest sum of the later steps */
        step = count = 0;
        dlp_largest_step(a, flags_a, limit, &step, &count);
        dlp_largest_step(b, flags_b, limit, &step, &count);
        if (step == 0)
            return (is_unclear ? rest % divisor : rest) <= reach;
        times = rest / step < count ? rest / step : count;
        rest -= times * step;
        reach -= count * step;
        if (times > 0 && rest + step <= reach) /* later steps may cover step: from now on only rest % divisor counts */
            is_unclear = 1;
        divisor = dlp_common_divisor(divisor, step);
    }
}

/* Copy the elements of src to dst, whatever their strides.
 *
 * dst, src   of equal dtype and shape, in memory that the CPU can read, validated
 * flags      DLPACK_PY_FLAG_* of both: padded sub-byte dtypes
 *
 * Returns 0; or -1 with BufferError where dtype or shape differ, where the CPU cannot read a tensor, or where
 * dlpack_py_may_overlap says that they may share memory; then nothing is written. Where elements of dst share memory,
 * it is not defined which one is written last. Needs no thread state, allocates nothing. */
DLP_NOINLINE int
dlpack_py_copy(const DLTensor *dst, const DLTensor *src, uint64_t flags, dlpack_py_error *error)
{
    char to[DLPACK_PY_TEXT_SIZE], from[DLPACK_PY_TEXT_SIZE];
    int32_t i = 0;

    if (!dlpack_py_is_cpu_readable(dst->device) || !dlpack_py_is_cpu_readable(src->device))
        return DLP_REFUSE(error, "cannot copy from %s to %s, memory that the CPU can read was wanted",
                          dlpack_py_device_text(src->device, from), dlpack_py_device_text(dst->device, to));
    if (dlpack_py_dtype(dst) != dlpack_py_dtype(src))
        return DLP_REFUSE(error, "cannot copy dtype %s to dtype %s, equal dtypes were wanted",
                          dlpack_py_dtype_text(dlpack_py_dtype(src), from),
                          dlpack_py_dtype_text(dlpack_py_dtype(dst), to));
    if (dst->ndim != src->ndim)
        return DLP_REFUSE(error, "cannot copy ndim %" PRId32 " to %" PRId32 ", equal shapes were wanted", src->ndim,
                          dst->ndim);
    while (i < src->ndim && dst->shape[i] == src->shape[i])
        i++;
    if (i < src->ndim)
        return DLP_REFUSE(error, "cannot copy shape[%" PRId32 "] %" PRId64 " to %" PRId64 ", equal shapes were wanted",
                          i, src->shape[i], dst->shape[i]);
    if (dlpack_py_may_overlap(dst, flags, src, flags))
        return DLP_REFUSE(error,
                          "cannot copy from address 0x%" PRIxPTR " to 0x%" PRIxPTR
                          ": the tensors may share memory, separate memory was wanted",
                          (uintptr_t)dlp_first_element(src), (uintptr_t)dlp_first_element(dst));
    dlp_copy_unchecked(dst, src, flags);
    return 0;
}

/* ---- Managed tensors ---------------------------------------------------- */

#define DLPACK_PY_VERSIONED 1 /* DLManagedTensorVersioned */
#define DLPACK_PY_LEGACY 2    /* DLManagedTensor */

/* manager_ctx of an export points to this struct. The deleter calls free_fn(context). For exports of a Python object,
 * dlpack_py.h fills owner, lifetime and exports, and context is the manager itself. */
typedef struct dlp_manager {
    void *context;
    void (*free_fn)(void *context); /* NULL: nothing to be called */
    void *block;                    /* to be freed; NULL: embedded in the owner */
    void *owner;                    /* PyObject * */
    struct dlp_lifetime *lifetime;  /* of the owner's interpreter */
    struct dlpack_py_counter *exports;
} dlp_manager;

/* An export: a managed tensor with its manager, its shape and strides and, for a copy, its data, in one allocation. */
typedef struct dlp_export {
    union {
        struct DLManagedTensorVersioned versioned;
        DLManagedTensor legacy;
    } managed;
    dlp_manager manager;
    /* int64_t shape[ndim], strides[ndim], then data */
} dlp_export;

/* Releases what an export holds, and frees it. Any thread, at any time (K5). */
DLP_NOINLINE void
dlp_release_manager(const dlp_manager *manager)
{
    void *block = manager->block; /* read first: an embedded manager may be freed with the owner */
    if (manager->free_fn != NULL)
        manager->free_fn(manager->context);
    if (block != NULL)
        DLPACK_PY_FREE(block); /* K7 */
}

static inline void
dlp_delete_versioned(struct DLManagedTensorVersioned *managed)
{
    dlp_release_manager((const dlp_manager *)managed->manager_ctx);
}

static inline void
dlp_delete_legacy(DLManagedTensor *managed)
{
    dlp_release_manager((const dlp_manager *)managed->manager_ctx);
}

static inline DLTensor *
dlp_tensor_of(void *managed, int32_t form)
{
    return form == DLPACK_PY_VERSIONED ? &((struct DLManagedTensorVersioned *)managed)->dl_tensor
                                       : &((DLManagedTensor *)managed)->dl_tensor;
}

/* Fills a managed tensor except for its tensor. Returns the address of the tensor. */
static inline DLTensor *
dlp_fill_managed(void *managed, int32_t form, uint64_t flags, dlp_manager *manager)
{
    struct DLManagedTensorVersioned *versioned = (struct DLManagedTensorVersioned *)managed;
    if (form == DLPACK_PY_VERSIONED) {
        versioned->version.major = DLPACK_PY_PROTOCOL_MAJOR;
        versioned->version.minor = DLPACK_PY_PROTOCOL_MINOR;
        versioned->manager_ctx = manager; /* not NULL: with NULL, Paddle calls no deleter (K8) */
        versioned->deleter = dlp_delete_versioned;
        versioned->flags = flags;
    }
    else {
        ((DLManagedTensor *)managed)->manager_ctx = manager;
        ((DLManagedTensor *)managed)->deleter = dlp_delete_legacy;
    }
    return dlp_tensor_of(managed, form);
}

/* The device as it is exported: memory that the CPU can read has id 0 (D9). */
static inline DLDevice
dlp_exported_device(DLDevice device)
{
    if (dlpack_py_is_cpu_readable(device))
        device.device_id = 0;
    return device;
}

/* For export: byte_offset 0 (some consumers ignore it: D1), device id 0 (D9), and data NULL if is_empty (D3). */
static inline void
dlp_normalize(DLTensor *t, int is_empty)
{
    if (((uint32_t)t->device.device_id | t->byte_offset | (uint32_t)is_empty) == 0)
        return; /* nothing to change in most tensors */
    t->data = is_empty ? NULL : t->data;
    t->device = dlp_exported_device(t->device);
    if (!dlp_has_address(t->device))
        return;
    t->data = dlp_first_element(t);
    t->byte_offset = 0;
}

/* The flags that an export keeps: READ_ONLY, and PADDED for a sub-byte dtype (D6). */
static inline uint64_t
dlp_export_flags(const DLTensor *t, uint64_t flags)
{
    return flags & (DLPACK_PY_FLAG_READ_ONLY | (t->dtype.bits < 8 ? DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED : 0));
}

/* Allocates an export of t, which is validated, in this form and with these flags. data_size: bytes for data, after the
 * shape and strides. The caller fills the manager. Returns NULL if there is no memory, without an exception. */
DLP_NOINLINE dlp_export *
dlp_export_new(const DLTensor *t, uint64_t flags, int32_t form, size_t data_size)
{
    dlp_export *e = (dlp_export *)DLPACK_PY_MALLOC(sizeof(*e) + 2 * (size_t)t->ndim * sizeof(int64_t) + data_size);
    uint64_t step = 1; /* 0 without elements, even if it overflows first */
    int64_t *shape;
    DLTensor *out;
    int32_t i;

    if (e == NULL)
        return NULL;
    out = dlp_fill_managed(&e->managed, form, flags, &e->manager);
    memset(&e->manager, 0, sizeof(e->manager));
    e->manager.block = e;
    shape = (int64_t *)(void *)(e + 1);
    *out = *t;
    out->shape = t->ndim == 0 ? NULL : shape;
    out->strides = t->ndim == 0 ? NULL : shape + t->ndim; /* not NULL here (D4) */
    for (i = t->ndim; i-- > 0; step *= (uint64_t)shape[i]) {
        shape[i] = t->shape[i];
        out->strides[i] = t->strides != NULL ? t->strides[i] : (int64_t)step;
    }
    if (step == 0 && t->strides == NULL)
        dlpack_py_compact_strides(t->ndim, shape, 'C', out->strides);
    dlp_normalize(out, step == 0);
    return e;
}

/* A new export of CPU memory for a compact copy of t, which the caller fills. order 'F': first index fastest; another
 * order: last index fastest. The memory is writable (P4), and aligned to alignment, a power of two, and to 64 bytes
 * (D2). Returns NULL with *error filled. */
DLP_COLD dlp_export *
dlp_export_new_compact(const DLTensor *t, uint64_t flags, int32_t form, char order, size_t alignment,
                       dlpack_py_error *error)
{
    const uint64_t padded = dlp_export_flags(t, flags) & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED;
    const size_t head = sizeof(dlp_export) + 2 * (size_t)t->ndim * sizeof(int64_t);
    const size_t boundary = alignment > 64 ? alignment : 64;
    const uint64_t bytes = (uint64_t)dlpack_py_nbytes(t, padded);
    const DLTensor compact = dlpack_py_cpu_tensor(t->data, dlpack_py_dtype(t), t->ndim, t->shape, NULL);
    dlp_export *e = NULL;
    DLTensor *out;

    if (boundary <= PTRDIFF_MAX - head && bytes <= (uint64_t)PTRDIFF_MAX - head - boundary)
        e = dlp_export_new(&compact, padded | DLPACK_PY_FLAG_IS_COPIED, form, boundary + (size_t)bytes);
    if (e == NULL) {
        (void)dlp_fail(error, DLPACK_PY_MEMORY_ERROR, "no memory for %" PRIu64 " bytes", bytes);
        return NULL;
    }
    out = dlp_tensor_of(&e->managed, form);
    if (order == 'F')
        dlpack_py_compact_strides(t->ndim, t->shape, 'F', out->strides);
    if (bytes > 0) {
        char *data = (char *)e + head;
        data += (boundary - (uintptr_t)data % boundary) % boundary;
        data[bytes - 1] = 0; /* packed sub-byte elements may not fill the last byte */
        out->data = data;
    }
    return e;
}

/* Sets strides NULL, byte_offset 0 and a dummy address in *t, then checks *t. Returns 0, or -1 with *error filled. */
DLP_COLD int
dlp_prepare_prototype(DLTensor *t, dlpack_py_error *error)
{
    DLTensor checked;
    t->data = (void *)(UINTPTR_MAX / 2 + 1); /* an address that is valid, and not read */
    t->strides = NULL;
    t->byte_offset = 0;
    checked = *t;
    checked.device = dlp_make_device(kDLOpenCL, 0); /* data is a handle: the number of bytes is checked, no address */
    return dlp_simple_layout(t) != 0 ? 0 : dlp_validate_general(&checked, 0, error);
}

/* New CPU memory for a tensor.
 *
 * prototype   its rank, shape, dtype and device are used
 *
 * Returns a managed tensor, row-major, writable, aligned to 64 bytes and not initialized, owned by the caller until its
 * deleter is called; NULL with BufferError or MemoryError in *error. Needs no thread state. */
DLP_NOINLINE struct DLManagedTensorVersioned *
dlpack_py_allocate(const DLTensor *prototype, dlpack_py_error *error)
{
    dlp_export *e;
    DLTensor t = *prototype;
    char name[DLPACK_PY_TEXT_SIZE];

    if (t.device.device_type != kDLCPU) {
        DLP_REFUSE(error, "device is %s, memory is allocated on the CPU only", dlpack_py_device_text(t.device, name));
        return NULL;
    }
    e = dlp_prepare_prototype(&t, error) < 0 ? NULL : dlp_export_new_compact(&t, 0, DLPACK_PY_VERSIONED, 'C', 0, error);
    if (e == NULL)
        return NULL;
    e->managed.versioned.flags = 0; /* the memory is new, not a copy */
    return &e->managed.versioned;
}

/* dlpack_py_wrap: a managed tensor over memory that no Python object owns.
 *
 * t         the tensor; struct, shape and strides are copied, data is not
 * flags     DLPACK_PY_FLAG_* that describe the data
 * context   passed to free_fn once, when the consumer releases the tensor, on any thread, also without an interpreter;
 *           free_fn may be NULL
 *
 * Returns a managed tensor, owned by the caller until its deleter is called, or a function ..._steal takes it.
 * Returns NULL where there is no memory or t is malformed (dlpack_py_validate says how); then the caller keeps context.
 * Needs no thread state and sets no exception. */
static inline struct DLManagedTensorVersioned *
dlpack_py_wrap(const DLTensor *t, uint64_t flags, void *context, void (*free_fn)(void *context))
{
    dlp_export *e = NULL;
    if (dlpack_py_validate(t, flags, NULL) == 0)
        e = dlp_export_new(t, dlp_export_flags(t, flags) | (flags & DLPACK_PY_FLAG_IS_COPIED), DLPACK_PY_VERSIONED, 0);
    if (e == NULL)
        return NULL;
    e->manager.context = context;
    e->manager.free_fn = free_fn;
    return &e->managed.versioned;
}

/* ---- Streams ------------------------------------------------------------ */

#define DLPACK_PY_STREAM_NONE 0    /* None, or not given */
#define DLPACK_PY_STREAM_NO_SYNC 1 /* -1: do not synchronize */
#define DLPACK_PY_STREAM_HANDLE 2  /* an integer from 0 to UINTPTR_MAX */

/* The argument stream of __dlpack__ (S1). */
typedef struct dlpack_py_stream {
    int32_t kind;     /* DLPACK_PY_STREAM_... */
    uintptr_t handle; /* of DLPACK_PY_STREAM_HANDLE */
} dlpack_py_stream;

/* Checks that a consumer may ask for this stream with data on this device (P6, S2, S3). CPU memory accepts no handle;
 * devices other than CUDA and ROCm accept any handle. Returns 0, or -1 with ValueError. */
static inline int
dlp_check_stream(DLDevice device, const dlpack_py_stream *stream, dlpack_py_error *error)
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
        wanted = stream->handle == 0 ? "1 (legacy default), 2 (per-thread default) or a handle" : NULL;
        break;
    case kDLROCM:
    case kDLROCMHost: wanted = stream->handle == 1 || stream->handle == 2 ? "0 (default) or a handle" : NULL; break;
    default: break;
    }
    if (wanted == NULL)
        return 0;
    return dlp_fail(error, DLPACK_PY_VALUE_ERROR, "stream is %" PRIuPTR " for data on %s, %s was wanted",
                    stream->handle, dlpack_py_device_text(device, name), wanted);
}

/* A stream of a device, on which work on a tensor may be pending. dlpack_device.h uses it without Python, too. */
typedef struct dlpack_py_work_stream {
    uintptr_t handle;  /* the runtime's handle, as it crosses the protocol (S2, S3) */
    int32_t device_id; /* the device that the stream is on, or DLPACK_PY_CURRENT_DEVICE */
} dlpack_py_work_stream;

#define DLPACK_PY_CURRENT_DEVICE (-1) /* the device that is current on the calling thread */
#define DLPACK_PY_MAX_PENDING 8       /* pending streams of a tensor, at most */

DLP_QUIET_END

/* Licence (MIT)
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
 * documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
 * permit persons to whom the Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
 * Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
 * WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
 * COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
 * OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */

#endif /* DLPACK_TENSOR_H */

/* The headers of Windows that Python.h, the headers of this project and the examples need: test_msvc.py writes each part
 * between two banners into a file of that name. They declare only functions that Microsoft's C library has, as it does:
 * imported, and deprecated where cl.exe would give C4996. A function of POSIX alone is an error. */

/* ---- pyconfig.h ---- */
#ifndef _MSC_VER
#  error "this is the pyconfig.h of Windows"
#endif
#include <basetsd.h>
#include <stdio.h>
#define MS_WIN32
#define MS_WINDOWS
#define NT_THREADS
#define WITH_THREAD
#define HAVE_DECLSPEC_DLL
#define HAVE_DYNAMIC_LOADING
#define HAVE_PY_SSIZE_T 1
#define HAVE_LONG_LONG 1
#define HAVE_PROTOTYPES 1
#define HAVE_STDARG_PROTOTYPES 1
#define HAVE_ERRNO_H
#define HAVE_STDDEF_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_WCHAR_H 1
#define STDC_HEADERS 1
#define Py_ENABLE_SHARED 1
#define PLATLIBDIR "lib"
#define PY_LONG_LONG __int64
#define PY_LLONG_MAX _I64_MAX
#define PY_LLONG_MIN _I64_MIN
#define PY_ULLONG_MAX _UI64_MAX
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define ALIGNOF_LONG 4
#define SIZEOF_FLOAT 4
#define SIZEOF_DOUBLE 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_FPOS_T 8
#define SIZEOF_OFF_T 4
#define SIZEOF_TIME_T 8
#define SIZEOF_PID_T 4
#define ALIGNOF_MAX_ALIGN_T 8
#ifdef _WIN64
#  define MS_WIN64
#  define SIZEOF_VOID_P 8
#  define SIZEOF_HKEY 8
#  define SIZEOF_SIZE_T 8
#  define ALIGNOF_SIZE_T 8
#  define PY_SSIZE_T_MAX _I64_MAX
typedef __int64 Py_ssize_t;
#else
#  define SIZEOF_VOID_P 4
#  define SIZEOF_HKEY 4
#  define SIZEOF_SIZE_T 4
#  define ALIGNOF_SIZE_T 4
#  define PY_SSIZE_T_MAX INT_MAX
typedef int Py_ssize_t;
#endif
#define SIZEOF_UINTPTR_T SIZEOF_VOID_P
#define COMPILER "[MSC v." Py_STRINGIFY(_MSC_VER) "]"
typedef int pid_t;

/* ---- corecrt.h ---- */
#pragma once
#include <stddef.h>
#ifdef __cplusplus
#  define CRT extern "C" __declspec(dllimport)
#else
#  define CRT __declspec(dllimport)
#endif
#define CRT_DEPRECATED(text) __declspec(deprecated(text))
typedef __int64 time_t;
#ifdef _M_ARM64 /* which the intrin.h of clang 19 lacks */
CRT unsigned char __cdecl
__ldar8(unsigned char volatile *value);
CRT unsigned short __cdecl
__ldar16(unsigned short volatile *value);
CRT unsigned __cdecl
__ldar32(unsigned volatile *value);
CRT unsigned __int64 __cdecl
__ldar64(unsigned __int64 volatile *value);
CRT void __cdecl
__stlr32(unsigned volatile *value, unsigned to);
CRT void __cdecl
__stlr64(unsigned __int64 volatile *value, unsigned __int64 to);
#endif

/* ---- vcruntime.h ---- */
#include <corecrt.h>

/* ---- basetsd.h ---- */
#pragma once
#include <corecrt.h>
typedef long LONG;
typedef unsigned long DWORD;

/* ---- limits.h ---- */
#pragma once
#define _I64_MAX 9223372036854775807i64
#define _I64_MIN (-_I64_MAX - 1)
#define _UI64_MAX 0xffffffffffffffffui64

/* ---- stdio.h ---- */
#pragma once
#include <corecrt.h>
#include <stdarg.h>
typedef struct _iobuf FILE;
typedef __int64 fpos_t;
#define EOF (-1)
#define stdin __acrt_iob_func(0)
#define stdout __acrt_iob_func(1)
#define stderr __acrt_iob_func(2)
CRT FILE *__cdecl
__acrt_iob_func(unsigned index);
CRT int __cdecl
printf(const char *format, ...);
CRT int __cdecl
fprintf(FILE *file, const char *format, ...);
CRT int __cdecl
snprintf(char *text, size_t size, const char *format, ...);
CRT int __cdecl
vsnprintf(char *text, size_t size, const char *format, va_list values);
CRT int __cdecl
fputs(const char *text, FILE *file);
CRT int __cdecl
puts(const char *text);
CRT int __cdecl
fflush(FILE *file);
CRT_DEPRECATED("C4996")
CRT int __cdecl
sprintf(char *text, const char *format, ...);
CRT_DEPRECATED("C4996")
CRT int __cdecl
vsprintf(char *text, const char *format, va_list values);
CRT_DEPRECATED("C4996")
CRT int __cdecl
sscanf(const char *text, const char *format, ...);
CRT_DEPRECATED("C4996")
CRT FILE *__cdecl
fopen(const char *name, const char *mode);

/* ---- stdlib.h ---- */
#pragma once
#include <corecrt.h>
#include <limits.h>
CRT __declspec(noreturn) void __cdecl
abort(void);
CRT __declspec(noreturn) void __cdecl
exit(int status);
CRT void *__cdecl
malloc(size_t size);
CRT void *__cdecl
calloc(size_t count, size_t size);
CRT void *__cdecl
realloc(void *pointer, size_t size);
CRT void __cdecl
free(void *pointer);
CRT int __cdecl
abs(int value);
CRT long __cdecl
labs(long value);
CRT __int64 __cdecl
llabs(__int64 value);
CRT int __cdecl
atoi(const char *text);
CRT double __cdecl
strtod(const char *text, char **end);
CRT long __cdecl
strtol(const char *text, char **end, int base);
CRT unsigned long __cdecl
strtoul(const char *text, char **end, int base);
CRT __int64 __cdecl
strtoll(const char *text, char **end, int base);
CRT void __cdecl
qsort(void *items, size_t count, size_t size, int(__cdecl *compare)(const void *, const void *));
CRT_DEPRECATED("C4996")
CRT char *__cdecl
getenv(const char *name);

/* ---- malloc.h ---- */
#pragma once
#include <stdlib.h>
CRT void *__cdecl
_aligned_malloc(size_t size, size_t alignment);
CRT void __cdecl
_aligned_free(void *pointer);

/* ---- string.h ---- */
#pragma once
#include <corecrt.h>
CRT void *__cdecl
memcpy(void *to, const void *from, size_t size);
CRT void *__cdecl
memmove(void *to, const void *from, size_t size);
CRT void *__cdecl
memset(void *to, int value, size_t size);
CRT int __cdecl
memcmp(const void *a, const void *b, size_t size);
CRT size_t __cdecl
strlen(const char *text);
CRT int __cdecl
strcmp(const char *a, const char *b);
CRT int __cdecl
strncmp(const char *a, const char *b, size_t size);
#ifdef __cplusplus
CRT const char *__cdecl
strchr(const char *text, int character);
CRT const char *__cdecl
strrchr(const char *text, int character);
CRT const char *__cdecl
strstr(const char *text, const char *part);
#else
CRT char *__cdecl
strchr(const char *text, int character);
CRT char *__cdecl
strrchr(const char *text, int character);
CRT char *__cdecl
strstr(const char *text, const char *part);
#endif
CRT_DEPRECATED("C4996")
CRT char *__cdecl
strcpy(char *to, const char *from);
CRT_DEPRECATED("C4996")
CRT char *__cdecl
strcat(char *to, const char *from);
CRT_DEPRECATED("C4996")
CRT char *__cdecl
strncpy(char *to, const char *from, size_t size);
CRT_DEPRECATED("C4996")
CRT char *__cdecl
strerror(int error);

/* ---- errno.h ---- */
#pragma once
#include <corecrt.h>
#define errno (*_errno())
#define EINTR 4
#define ENOMEM 12
#define EINVAL 22
#define ERANGE 34
CRT int *__cdecl
_errno(void);

/* ---- inttypes.h ---- */
#pragma once
#include <stdint.h>
#define PRId8 "hhd"
#define PRIu8 "hhu"
#define PRId16 "hd"
#define PRIu16 "hu"
#define PRId32 "d"
#define PRIu32 "u"
#define PRIx32 "x"
#define PRId64 "lld"
#define PRIu64 "llu"
#define PRIx64 "llx"
#ifdef _WIN64
#  define PRIdPTR "lld"
#  define PRIuPTR "llu"
#  define PRIxPTR "llx"
#else
#  define PRIdPTR "d"
#  define PRIuPTR "u"
#  define PRIxPTR "x"
#endif

/* ---- ctype.h ---- */
#pragma once
#include <corecrt.h>
CRT int __cdecl
isalnum(int character);
CRT int __cdecl
isalpha(int character);
CRT int __cdecl
isdigit(int character);
CRT int __cdecl
isspace(int character);
CRT int __cdecl
isupper(int character);
CRT int __cdecl
tolower(int character);
CRT int __cdecl
toupper(int character);

/* ---- math.h ---- */
#pragma once
#include <corecrt.h>
#define INFINITY ((float)(1e300 * 1e300))
#define HUGE_VAL ((double)INFINITY)
#define HUGE_VALF INFINITY
#define NAN (-(float)(INFINITY * 0.0F))
#define isnan(value) _isnan(value)
#define isinf(value) (!_isnan(value) && !_finite(value))
#define isfinite(value) _finite(value)
CRT int __cdecl
_isnan(double value);
CRT int __cdecl
_finite(double value);
CRT double __cdecl
sqrt(double value);
CRT double __cdecl
pow(double value, double power);
CRT double __cdecl
fabs(double value);
CRT float __cdecl
fabsf(float value);
CRT double __cdecl
floor(double value);
CRT double __cdecl
ceil(double value);
CRT double __cdecl
fmod(double value, double by);
CRT double __cdecl
sin(double value);
CRT double __cdecl
cos(double value);
CRT double __cdecl
hypot(double x, double y);
CRT double __cdecl
copysign(double value, double sign);
CRT double __cdecl
round(double value);
CRT float __cdecl
sqrtf(float value);

/* ---- wchar.h ---- */
#pragma once
#include <corecrt.h>
typedef unsigned short wint_t;
CRT size_t __cdecl
wcslen(const wchar_t *text);

/* ---- time.h ---- */
#pragma once
#include <corecrt.h>
struct tm {
    int tm_sec, tm_min, tm_hour, tm_mday, tm_mon, tm_year, tm_wday, tm_yday, tm_isdst;
};
struct timespec {
    time_t tv_sec;
    long tv_nsec;
};
CRT time_t __cdecl
time(time_t *now);

/* ---- assert.h ---- */
#include <corecrt.h>
#undef assert
#ifdef NDEBUG
#  define assert(condition) ((void)0)
#else
CRT void __cdecl
_assert(const char *condition, const char *file, unsigned line);
#  define assert(condition) (void)(!!(condition) || (_assert(#condition, __FILE__, (unsigned)__LINE__), 0))
#endif

/* ---- locale.h ---- */
#pragma once
#include <corecrt.h>

/* ---- io.h ---- */
#pragma once
#include <corecrt.h>

/* ---- sys/types.h ---- */
#pragma once
#include <corecrt.h>
typedef long off_t;

/* ---- sys/stat.h ---- */
#pragma once
#include <sys/types.h>
struct stat {
    unsigned short st_mode;
    off_t st_size;
    time_t st_mtime;
};

/* ---- setjmp.h ---- */
#pragma once
#include <corecrt.h>
typedef int jmp_buf[64];

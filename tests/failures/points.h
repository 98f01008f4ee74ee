/* Include first in a source file. Includes the headers so that each call in their text that can fail is a point, and
 * fails when faults.c says so. Calls in the text of the source file are unchanged. */

#include <Python.h>

#include <stdlib.h>
#include <string.h>

/* One point for each call in the text, even if the call is inlined several times. The points form an array in a
 * section: the size is a power of two, as the compiler aligns them. */
typedef struct point {
    const char *name, *file;
    long long line; /* in file, a header */
    long long failures;
} point;

/* How a call fails. SILENT: without an exception. RAISING: with an exception. RUNNING: with an exception; no exception
 * may be in flight before the call, which may run Python code. ALLOCATING: as an allocator. */
enum point_how { SILENT, RAISING, RUNNING, ALLOCATING };

int
point_fails(point *here, enum point_how how);
void *
point_malloc(size_t size, int lasts);
void
point_free(void *pointer);
void
point_unraisable(void);

#define AT_POINT(name, how)                                                                               \
    __extension__({                                                                                       \
        static point here __attribute__((section("fault_points"), used)) = {name, __FILE__, __LINE__, 0}; \
        point_fails(&here, how);                                                                          \
    })
#define FAILS(function, failure, arguments) (AT_POINT(#function, SILENT) ? failure : function arguments)
#define RAISES(function, failure, arguments) (AT_POINT(#function, RAISING) ? failure : function arguments)
#define RUNS(function, failure, arguments) (AT_POINT(#function, RUNNING) ? failure : function arguments)

#define PyInterpreterState_GetDict(...) FAILS(PyInterpreterState_GetDict, NULL, (__VA_ARGS__))
#define PyThreadState_New(...) FAILS(PyThreadState_New, NULL, (__VA_ARGS__))

/* PyCFunction_NewEx and PyObject_GC_New call PyCMethod_New and _PyObject_GC_New. */
#define Py_BuildValue(...) RAISES(Py_BuildValue, NULL, (__VA_ARGS__))
#define PyCapsule_New(...) RAISES(PyCapsule_New, NULL, (__VA_ARGS__))
#define PyCMethod_New(...) RAISES(PyCMethod_New, NULL, (__VA_ARGS__))
#define PyDict_Copy(...) RAISES(PyDict_Copy, NULL, (__VA_ARGS__))
#define PyDict_GetItemWithError(...) RUNS(PyDict_GetItemWithError, NULL, (__VA_ARGS__))
#define PyDict_SetItem(...) RUNS(PyDict_SetItem, -1, (__VA_ARGS__))
#define PyImport_Import(...) RUNS(PyImport_Import, NULL, (__VA_ARGS__))
#define PyImport_ImportModule(...) RUNS(PyImport_ImportModule, NULL, (__VA_ARGS__))
#define PyLong_FromVoidPtr(...) RAISES(PyLong_FromVoidPtr, NULL, (__VA_ARGS__))
#define PyMemoryView_FromObject(...) RUNS(PyMemoryView_FromObject, NULL, (__VA_ARGS__))
#define PyNumber_AsSsize_t(...) RUNS(PyNumber_AsSsize_t, -1, (__VA_ARGS__))
#define PyNumber_Index(...) RUNS(PyNumber_Index, NULL, (__VA_ARGS__))
#define PyObject_CallFunctionObjArgs(...) RUNS(PyObject_CallFunctionObjArgs, NULL, (__VA_ARGS__))
#define PyObject_CallMethod(...) RUNS(PyObject_CallMethod, NULL, (__VA_ARGS__))
#define PyObject_CallMethodObjArgs(...) RUNS(PyObject_CallMethodObjArgs, NULL, (__VA_ARGS__))
#define PyObject_GetAttr(...) RUNS(PyObject_GetAttr, NULL, (__VA_ARGS__))
#define PyObject_GetAttrString(...) RUNS(PyObject_GetAttrString, NULL, (__VA_ARGS__))
#define PyObject_GetBuffer(...) RUNS(PyObject_GetBuffer, -1, (__VA_ARGS__))
#define PyObject_GetItem(...) RUNS(PyObject_GetItem, NULL, (__VA_ARGS__))
#define _PyObject_GC_New(...) RAISES(_PyObject_GC_New, NULL, (__VA_ARGS__))
#define PyObject_IsTrue(...) RUNS(PyObject_IsTrue, -1, (__VA_ARGS__))
#define PyObject_Not(...) RUNS(PyObject_Not, -1, (__VA_ARGS__))
#define PyObject_Repr(...) RUNS(PyObject_Repr, NULL, (__VA_ARGS__))
#define PyObject_SetAttr(...) RUNS(PyObject_SetAttr, -1, (__VA_ARGS__))
#define PyObject_Vectorcall(...) RUNS(PyObject_Vectorcall, NULL, (__VA_ARGS__))
#define PyObject_VectorcallMethod(...) RUNS(PyObject_VectorcallMethod, NULL, (__VA_ARGS__))
#define PySequence_Contains(...) RUNS(PySequence_Contains, -1, (__VA_ARGS__))
#define PySequence_GetItem(...) RUNS(PySequence_GetItem, NULL, (__VA_ARGS__))
#define PyTuple_New(...) RAISES(PyTuple_New, NULL, (__VA_ARGS__))
#define PyType_FromSpec(...) RAISES(PyType_FromSpec, NULL, (__VA_ARGS__))
#define PyUnicode_FromFormat(...) RAISES(PyUnicode_FromFormat, NULL, (__VA_ARGS__))
#define PyUnicode_FromString(...) RAISES(PyUnicode_FromString, NULL, (__VA_ARGS__))
#define PyUnicode_InternFromString(...) RAISES(PyUnicode_InternFromString, NULL, (__VA_ARGS__))
#define PyWeakref_NewRef(...) RAISES(PyWeakref_NewRef, NULL, (__VA_ARGS__))

/* ASCII text is stored as UTF-8: the call cannot fail. */
#define PyUnicode_AsUTF8AndSize(text, size)                         \
    (PyUnicode_IS_ASCII(text) ? PyUnicode_AsUTF8AndSize(text, size) \
                              : RAISES(PyUnicode_AsUTF8AndSize, NULL, (text, size)))

#define PyErr_WriteUnraisable(where) ((void)(where), point_unraisable())
#define DLPACK_PY_MALLOC(size)                \
    (AT_POINT("DLPACK_PY_MALLOC", ALLOCATING) \
         ? NULL                               \
         : point_malloc(size, strcmp(#size, "sizeof(*record)") == 0 || strcmp(#size, "sizeof(*cache)") == 0))
#define DLPACK_PY_FREE(pointer) point_free(pointer)

#define inline __attribute__((used)) inline /* keeps functions that have no caller */
#ifdef FAULTS_LIMITED                       /* the code of the header under the limited API */
#  define Py_LIMITED_API 0x030C0000
#endif
#include "dlpack_copy.h"     /* dlarray.c includes it, and it must be first */
#include "dlpack_exchange.h" /* before dlpack_py.h and dlpack_buffer.h */
#include "dlpack_buffer.h"
#undef inline
#undef Py_LIMITED_API

#undef FAILS
#undef RAISES
#undef RUNS
#undef PyErr_WriteUnraisable
#define FAILS(function, failure, arguments) function arguments
#define RAISES(function, failure, arguments) function arguments
#define RUNS(function, failure, arguments) function arguments

"""points.h and counted_blocks.h name calls and texts of the headers: each name exists, and no call is missing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POINTS = (ROOT / "tests" / "failures" / "points.h").read_text()
HEADERS = ["dlpack_py.h", "dlpack_exchange.h", "dlpack_buffer.h"]

# Functions that macros of Python call.
WITHIN = {
    "PyCMethod_New": "PyCFunction_NewEx",
    "_PyObject_GC_New": "PyObject_GC_New",
}

# Calls that cannot fail, or fail only without memory, which faults.c tests by Python's allocators, or with an argument
# that the headers do not pass.
NOT_A_POINT = """
    PyBool_Check PyBool_FromLong PyBuffer_Release PyCapsule_CheckExact PyCapsule_GetName PyCapsule_GetPointer
    PyCapsule_SetName PyDict_Check PyDoc_STR PyErr_Clear PyErr_ExceptionMatches PyErr_Fetch PyErr_Format
    PyErr_GetExcInfo PyErr_GetHandledException PyErr_GetRaisedException PyErr_NoMemory PyErr_NormalizeException
    PyErr_Occurred PyErr_Restore PyErr_SetRaisedException PyErr_SetString PyErr_WriteUnraisable PyEval_InitThreads
    PyEval_RestoreThread PyEval_SaveThread PyException_GetContext PyException_SetContext PyException_SetTraceback
    PyFloat_CheckExact PyGILState_Check PyGILState_Ensure PyGILState_GetThisThreadState PyGILState_Release
    PyImport_AddModule PyIndex_Check PyInterpreterState_Get PyInterpreterState_Head PyInterpreterState_Main
    PyLong_AsDouble PyLong_AsLongAndOverflow PyLong_AsLongLong PyLong_AsUnsignedLongLong PyLong_AsVoidPtr
    PyLong_CheckExact PyLong_FromLong PyLong_FromLongLong PyLong_FromUnsignedLongLong PyMem_Free PyMem_Malloc
    PyMemoryView_GET_BUFFER PyModule_GetDict PyObject_CheckBuffer PyObject_Free PyObject_GC_Del PyObject_GC_Track
    PyObject_GC_UnTrack PyObject_GetTypeData PyThreadState_Clear PyThreadState_Delete PyThreadState_Get
    PyThreadState_GetDict PyThreadState_GetInterpreter PyThreadState_GetUnchecked PyThread_get_thread_ident
    PyTuple_Check PyTuple_CheckExact PyTuple_GET_ITEM PyTuple_GET_SIZE PyTuple_GetItem PyTuple_SetItem PyTuple_Size
    PyType_Check PyType_GetName PyType_HasFeature PyType_IsSubtype PyType_Modified PyUnicode_Check
    PyUnicode_CheckExact PyUnicode_Compare PyUnicode_CompareWithASCIIString PyUnicode_GetLength PyVectorcall_NARGS
    PyWeakref_GetObject PyWeakref_GetRef Py_BEGIN_CRITICAL_SECTION Py_CLEAR Py_DECREF Py_END_CRITICAL_SECTION
    Py_INCREF Py_IsFinalizing Py_IsInitialized Py_REFCNT Py_TRASHCAN_BEGIN Py_TYPE Py_VISIT Py_XDECREF Py_XINCREF
    Py_XSETREF _PyThreadState_UncheckedGet _PyType_Lookup _Py_IsFinalizing
""".split()


def code(*headers):
    return re.sub(r"/\*.*?\*/", "", "".join((ROOT / header).read_text() for header in headers), flags=re.DOTALL)


def test_each_point_is_a_call_of_the_headers_and_each_call_that_can_fail_is_a_point():
    calls = set(re.findall(r"\b(_?Py[A-Za-z]*_\w+)\s*\(", code(*HEADERS)))
    points = set(re.findall(r"^#define (_?Py\w+)\(", POINTS, re.MULTILINE))
    points = {WITHIN.get(point, point) for point in points}
    assert points - calls == set(), "points.h names what the headers do not call"
    assert calls - points - set(NOT_A_POINT) == set(), "write it into points.h, or into the list above"


@pytest.mark.parametrize("file", ["failures/points.h", "counted_blocks.h"])
def test_the_headers_allocate_the_blocks_that_are_not_counted(file):
    sizes = re.findall(r'"(sizeof\(\*\w+\))"', (ROOT / "tests" / file).read_text())
    assert sizes
    for size in sizes:
        assert f"DLPACK_PY_MALLOC({size})" in code(*HEADERS), f"{file}: no block of {size} is allocated"


def test_faults_c_uses_the_headers_key_of_the_interpreter_state():
    key = '"dlpack_py.%x.%p"'
    assert key in (ROOT / "tests" / "failures" / "faults.c").read_text() and key in code("dlpack_py.h")

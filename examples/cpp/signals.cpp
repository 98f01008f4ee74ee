// signals - a type in C++17 that exports its memory by DLPack, and a function over the arrays of any library
// SPDX-License-Identifier: MIT
//
// The module has two source files, and both include dlpack_py.h. The lines for DLPack stand between the marks
// "dlpack: begin" and "dlpack: end".
#include "signals.hpp"
// dlpack: begin
#include "dlpack_py.h"
// dlpack: end

#include <exception>
#include <vector>

namespace {

struct Signal {
    PyObject_HEAD
    std::vector<float> *values;
};

// dlpack: begin
PyObject *
signal_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    std::vector<float> &values = *reinterpret_cast<Signal *>(self)->values;
    const int64_t length = static_cast<int64_t>(values.size());
    const DLTensor t = dlpack_py_cpu_tensor(values.data(), DLPACK_PY_FLOAT32, 1, &length, nullptr);
    return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
}
// dlpack: end

PyObject *
signal_new(PyTypeObject *type, PyObject *args, PyObject *)
{
    Py_ssize_t length = 0;
    if (!PyArg_ParseTuple(args, "n:Signal", &length))
        return nullptr;
    if (length < 0) {
        PyErr_Format(PyExc_ValueError, "length is %zd, it must not be negative", length);
        return nullptr;
    }
    PyObject *self = type->tp_alloc(type, 0);
    if (self == nullptr)
        return nullptr;
    try {
        reinterpret_cast<Signal *>(self)->values = new std::vector<float>(static_cast<std::size_t>(length));
    } catch (const std::exception &) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

void
signal_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    delete reinterpret_cast<Signal *>(self)->values;
    type->tp_free(self);
    Py_DECREF(type);
}

PyMethodDef signal_methods[] = {
    // dlpack: begin
    DLPACK_PY_METHODS(signal_dlpack, dlpack_py_cpu_device),
    // dlpack: end
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot signal_slots[] = {
    {Py_tp_doc, const_cast<char *>("Signal(length, /)\n--\n\nFloat32 values, 0 at first.")},
    {Py_tp_new, reinterpret_cast<void *>(signal_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(signal_dealloc)},
    {Py_tp_methods, signal_methods},
    {0, nullptr},
};

PyType_Spec signal_spec = {"signals.Signal", sizeof(Signal), 0, Py_TPFLAGS_DEFAULT, signal_slots};

PyMethodDef functions[] = {
    {"smooth", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(smooth)), METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("smooth($module, x, /, *, out=None)\n--\n\nThe mean of each value of a float32 vector and its two "
               "neighbours: in out, or in a new array of the library of x.")},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "signals", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC
PyInit_signals()
{
    PyObject *module = PyModule_Create(&module_def), *type = PyType_FromSpec(&signal_spec);
    if (module != nullptr && (type == nullptr || PyObject_SetAttrString(module, "Signal", type) < 0))
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}

// ramp - an array type, and a function that takes the arrays of any library, in C++
#include <Python.h>

#include "dlpack_py.hpp"

#include <new>
#include <vector>

namespace {

struct Ramp {
    PyObject_HEAD
    std::vector<double> *values;
};

PyObject *
ramp_new(PyTypeObject *type, PyObject *args, PyObject *)
{
    Py_ssize_t length = 0;
    if (!PyArg_ParseTuple(args, "n:Ramp", &length))
        return nullptr;
    if (length < 0)
        return PyErr_Format(PyExc_ValueError, "there is no ramp of length %zd", length);
    PyObject *self = type->tp_alloc(type, 0);
    if (self == nullptr)
        return nullptr;
    try {
        auto *values = new std::vector<double>;
        reinterpret_cast<Ramp *>(self)->values = values;
        for (Py_ssize_t i = 0; i < length; i++)
            values->push_back(static_cast<double>(i));
    } catch (const std::bad_alloc &) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return self;
}

void
ramp_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    delete reinterpret_cast<Ramp *>(self)->values;
    type->tp_free(self);
    Py_DECREF(type);
}

// __dlpack__: other libraries use the memory of a Ramp.
PyObject *
ramp_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    std::vector<double> &values = *reinterpret_cast<Ramp *>(self)->values;
    const int64_t length = static_cast<int64_t>(values.size());
    const DLTensor t = dlpack_py_cpu_tensor(values.data(), DLPACK_PY_FLOAT64, 1, &length, nullptr);
    return dlpack_py_produce(self, &t, 0, args, nargs, kwnames);
}

// total(x): this module uses the memory of other libraries.
PyObject *
total(PyObject *, PyObject *x)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_unique_view v; // releases the tensor at the end of the function
    double sum = 0;

    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 1;
    if (dlpack_py_consume(x, &want, v.reset()) < 0)
        return nullptr; // BufferError names the requirement that is not met
    for (int64_t i = 0; i < v->tensor.shape[0]; i++)
        sum += static_cast<const double *>(v.data())[i * v->tensor.strides[0]];
    return PyFloat_FromDouble(sum);
}

PyMethodDef ramp_methods[] = {
    DLPACK_PY_METHODS(ramp_dlpack, dlpack_py_cpu_device),
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot ramp_slots[] = {
    {Py_tp_doc, const_cast<char *>("Ramp(length, /)\n--\n\nThe float64 values 0, 1, 2, ...")},
    {Py_tp_new, reinterpret_cast<void *>(ramp_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(ramp_dealloc)},
    {Py_tp_methods, ramp_methods},
    {0, nullptr},
};

PyType_Spec ramp_spec = {"ramp.Ramp", sizeof(Ramp), 0, Py_TPFLAGS_DEFAULT, ramp_slots};

int
module_exec(PyObject *module)
{
    if (dlpack_py_init() < 0)
        return -1;
    PyObject *type = PyType_FromSpec(&ramp_spec);
    const int failed = type == nullptr || PyObject_SetAttrString(module, "Ramp", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

PyMethodDef functions[] = {
    {"total", total, METH_O, PyDoc_STR("total($module, x, /)\n--\n\nThe sum of any float64 vector.")},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot module_slots[] = {{Py_mod_exec, reinterpret_cast<void *>(module_exec)}, {0, nullptr}};

PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "ramp", nullptr, 0, functions, module_slots, nullptr, nullptr, nullptr,
};

} // namespace

PyMODINIT_FUNC
PyInit_ramp()
{
    return PyModuleDef_Init(&module_def);
}

/* The functions that the tests call in each file that includes the header. Each file has its own interpreter states. */
#include <Python.h>

#include "drop.h"

static inline PyObject *
file_export(PyObject *module, PyObject *owner)
{
    static double value;
    static const int64_t shape[1] = {1};
    const DLTensor t = dlpack_py_cpu_tensor(&value, DLPACK_PY_FLOAT64, 1, shape, NULL);
    PyObject *capsule = dlpack_py_produce_obj_args(owner, &t, 0, NULL, NULL, NULL, NULL), *tensor;

    (void)module;
    if (capsule == NULL)
        return NULL;
    tensor = PyLong_FromSize_t(tensor_take(capsule));
    Py_DECREF(capsule);
    return tensor;
}

static inline PyObject *
file_state(PyObject *module, PyObject *unused)
{
    dlp_state *state = dlp_state_get();
    (void)module;
    (void)unused;
    return state == NULL ? NULL : PyLong_FromVoidPtr(state);
}

static inline PyObject *
file_module(const char *name, PyMethodDef *functions)
{
    static PyModuleDef_Slot slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
        {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
        {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
        {0, NULL},
    };
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, NULL, NULL, 0, NULL, slots, NULL, NULL, NULL};
    module.m_name = name;
    module.m_methods = functions;
    return PyModuleDef_Init(&module);
}

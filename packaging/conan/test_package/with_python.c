#include "dlpack_py.h"

PyObject *
sum_of_nothing(PyObject *x);

PyObject *
sum_of_nothing(PyObject *x)
{
    dlpack_py_view v;

    if (dlpack_py_consume(x, NULL, &v) < 0)
        return NULL;
    dlpack_py_release(&v);
    return PyFloat_FromDouble(0);
}

/* Include after a header of the project that has dlpack_py_borrow. */

/* lends(obj): whether dlpack_py_borrow without requirements takes no tensor of its own. */
static PyObject *
probe_lends(PyObject *Py_UNUSED(module), PyObject *obj)
{
    dlpack_py_view v;
    int lent;

    if (dlpack_py_borrow(obj, NULL, &v) < 0)
        return NULL;
    lent = v.managed == NULL;
    dlpack_py_release(&v);
    return PyBool_FromLong(lent);
}

// A C++ extension that keeps arrays after the end of the interpreter. The destructors that release the arrays are
// noexcept, and run when a thread or the process ends.
#include "dlpack_py.h"

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

struct Release {
    void operator()(dlpack_py_view *view) const noexcept
    {
        dlpack_py_release(view);
        delete view;
    }
};
using Array = std::unique_ptr<dlpack_py_view, Release>;

std::vector<Array> of_the_process;
thread_local std::vector<Array> of_the_thread;

std::vector<Array> &
of_a_function()
{
    static std::vector<Array> arrays; // created at its first use, after of_the_process, and so destroyed first
    return arrays;
}

// keep(array) and keep_in_function(array): keep to the end of the process; keep_on_thread(array): to the end of this
// thread.
PyObject *
keep_in(std::vector<Array> &arrays, PyObject *object)
{
    Array array(new dlpack_py_view());
    if (dlpack_py_consume(object, nullptr, array.get()) < 0)
        return nullptr;
    arrays.push_back(std::move(array));
    Py_RETURN_NONE;
}

PyObject *
keep(PyObject *, PyObject *object)
{
    return keep_in(of_the_process, object);
}

PyObject *
keep_in_function(PyObject *, PyObject *object)
{
    return keep_in(of_a_function(), object);
}

PyObject *
keep_on_thread(PyObject *, PyObject *object)
{
    return keep_in(of_the_thread, object);
}

// Moves the arrays that are kept on this thread to a thread that Python did not create. That thread then ends.
PyObject *
end_thread(PyObject *, PyObject *)
{
    std::vector<Array> arrays = std::move(of_the_thread);
    std::thread thread([&arrays] { of_the_thread = std::move(arrays); });
    Py_BEGIN_ALLOW_THREADS
    thread.join();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

// The three functions end the process while the interpreter lives: with the GIL, without it, or from another thread.
PyObject *
exit_attached(PyObject *, PyObject *)
{
    std::exit(0);
}

PyObject *
exit_detached(PyObject *, PyObject *)
{
    Py_BEGIN_ALLOW_THREADS
    std::exit(0);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
exit_on_thread(PyObject *, PyObject *)
{
    std::thread([] { std::exit(0); }).detach();
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"end_thread", end_thread, METH_NOARGS, nullptr},
    {"exit_attached", exit_attached, METH_NOARGS, nullptr},
    {"exit_detached", exit_detached, METH_NOARGS, nullptr},
    {"exit_on_thread", exit_on_thread, METH_NOARGS, nullptr},
    {"keep", keep, METH_O, nullptr},
    {"keep_in_function", keep_in_function, METH_O, nullptr},
    {"keep_on_thread", keep_on_thread, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "late_release", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC
PyInit_late_release()
{
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}

/* Uses every function of dlpack_cuda.h or dlpack_rocm.h, and of dlpack_cuda_array_interface.h, which the command line includes, so that a compiler sees each.
 * With DLPACK_DEVICE_NO_PYTHON it is a program that calls each function and prints the result on this machine. */
#ifndef DLPACK_DEVICE_NO_PYTHON
#  include "dlpack_py.h"
#endif

#if defined(DLPACK_ROCM_RUNTIME_LAYER)
#define DEVICE(name) dlpack_rocm_##name
typedef hipStream_t stream_handle;
#else
#define DEVICE(name) dlpack_cuda_##name
typedef cudaStream_t stream_handle;
#endif

static float values[6];
static const int64_t shape[2] = {2, 3};

#ifdef DLPACK_DEVICE_NO_PYTHON

static int
print(const char *call, int failed, const dlpack_py_error *error)
{
    static const char *const kinds[] = {"", "BufferError", "ValueError", "TypeError", "MemoryError", "RuntimeError"};
    if (failed)
        printf("%s: %s: %s\n", call, kinds[error->code], error->text);
    else
        printf("%s: done\n", call);
    return failed;
}

int
main(void)
{
    const stream_handle own = NULL;
    const dlpack_py_work_stream work = DEVICE(work_stream)(own, 0);
    const DLTensor t = DEVICE(tensor)(values, 0, DLPACK_PY_FLOAT32, 2, shape, NULL);
    float copied[6];
    const DLTensor to = dlpack_py_cpu_tensor(copied, DLPACK_PY_FLOAT32, 2, shape, NULL);
    char text[DLPACK_PY_TEXT_SIZE];
    dlpack_py_error error;
    DLDevice device;

    if (work.handle != DEVICE(stream)(own))
        return 1;
    (void)print("order", DEVICE(order)(own, 0, own, 1, &error), &error);
    (void)print("synchronize", dlpack_device_synchronize(&work, 1, &error), &error);
    (void)print("copy_to_host", dlpack_device_copy_to_host(&to, &t, 0, &work, 1, &error), &error);
    if (!print("find_device", DEVICE(find_device)(values, &device, &error), &error))
        printf("on %s\n", dlpack_py_device_text(device, text));
    return 0;
}

#else

PyObject *
use_producer(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const DLTensor t = DEVICE(tensor)(values, 0, DLPACK_PY_FLOAT32, 2, shape, NULL);
    return DEVICE(produce)(self, &t, 0, NULL, args, nargs, kwnames);
}

PyObject *
use_interface(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dlpack_py_view v;
    PyObject *made;
    if (DEVICE(from_dlpack)(args, nargs, kwnames, NULL, NULL, &v) < 0)
        return NULL;
#ifdef DLPACK_CUDA_ARRAY_INTERFACE_H
    made = DEVICE(array_interface)(&v.tensor, v.flags, NULL);
#else
    made = PyLong_FromLong(0);
#endif
    dlpack_py_release(&v);
    return made;
}

int
use_consumer(PyObject *obj)
{
    dlpack_py_work_stream work = {0, 0};
    dlpack_py_view v;
    if (DEVICE(operations)() != dlpack_device_operations())
        return -1;
    if (DEVICE(consume)(obj, NULL, NULL, &v) < 0)
        return -1;
    if (dlpack_device_current_work(obj, &work) < 0 || dlpack_device_release(work, &v, NULL) < 0)
        return -1;
    if (DEVICE(release)(&v, NULL) < 0 || dlpack_device_collect() > 0)
        return -1;
    DEVICE(release_unraisable)(&v, NULL);
    return 0;
}

#endif

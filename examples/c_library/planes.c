/* planes - memory without a Python type: a C library whose functions pass DLManagedTensor *, and its Python module
 * SPDX-License-Identifier: MIT
 *
 * The first half is a plain C library: it uses dlpack.h and no Python. The second half, left out by PLANES_NO_PYTHON, is
 * the module: decode returns an object that any array library takes, as often as asked, writable and without a copy;
 * total lends an array of any library to planes_sum.
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end".
 */
#ifndef PLANES_NO_PYTHON
#  include "dlpack_py.h" /* includes Python.h, which must come before the C library's headers */
#endif
#include <dlpack/dlpack.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef _WIN32 /* has no aligned_alloc */
#  include <malloc.h>
#  define aligned_alloc(alignment, size) _aligned_malloc(size, alignment)
#  define free _aligned_free
#endif

typedef struct Planes {
    DLManagedTensor managed; /* first: its address is that of the whole */
    int64_t shape[3], strides[3];
    _Alignas(64) float values[]; /* (planes, height, width), row-major */
} Planes;

atomic_int planes_made, planes_deleted; /* for tests. Atomic: any thread may call a deleter */

DLManagedTensor *
planes_decode(int count, int height, int width);
double
planes_sum(const DLManagedTensor *managed);

static void
planes_delete(DLManagedTensor *managed)
{
    planes_deleted++;
    free(managed);
}

/* A writable float32 tensor (count, height, width); plane i is filled with i + 1. The caller owns it until it calls the
 * deleter. NULL: an extent is negative, or there is no memory. */
DLManagedTensor *
planes_decode(int count, int height, int width)
{
    const int64_t plane = (int64_t)height * width;
    int64_t size;

    if (count < 0 || height < 0 || width < 0 || __builtin_mul_overflow(count, plane, &size) || size > INT64_MAX / 8)
        return NULL;
    Planes *p = aligned_alloc(64, (sizeof(Planes) + (size_t)size * sizeof(float) + 63) / 64 * 64);
    if (p == NULL)
        return NULL;
    *p = (Planes){.shape = {count, height, width}, .strides = {plane, width, 1}};
    p->managed.dl_tensor = (DLTensor){p->values, {kDLCPU, 0}, 3, {kDLFloat, 32, 1}, p->shape, p->strides, 0};
    p->managed.deleter = planes_delete;
    for (int64_t i = 0; i < size; i++)
        p->values[i] = (float)(i / plane + 1);
    planes_made++;
    return &p->managed;
}

/* The sum of a row-major float32 tensor (planes, height, width) of the CPU; the caller has checked that it is one. */
double
planes_sum(const DLManagedTensor *managed)
{
    const DLTensor *t = &managed->dl_tensor;
    const float *values = (const float *)(const void *)((const char *)t->data + t->byte_offset);
    double sum = 0.0;

    for (int64_t i = 0, size = t->shape[0] * t->shape[1] * t->shape[2]; i < size; i++)
        sum += values[i];
    return sum;
}

#ifndef PLANES_NO_PYTHON
/* dlpack: begin */
static void
free_legacy(void *context) /* on any thread, also without an interpreter */
{
    ((DLManagedTensor *)context)->deleter((DLManagedTensor *)context);
}

static PyObject *
decode(PyObject *Py_UNUSED(module), PyObject *args)
{
    int count, height, width;
    DLManagedTensor *legacy;

    if (!PyArg_ParseTuple(args, "iii:decode", &count, &height, &width))
        return NULL;
    if (count < 0 || height < 0 || width < 0)
        return PyErr_Format(PyExc_ValueError, "(%d, %d, %d): an extent is negative", count, height, width);
    if ((legacy = planes_decode(count, height, width)) == NULL)
        return PyErr_NoMemory();
    /* As DLPACK_PY_LEGACY it would count as read-only: a versioned tensor around it says that it is writable. */
    struct DLManagedTensorVersioned *managed = dlpack_py_wrap(&legacy->dl_tensor, 0, legacy, free_legacy);
    if (managed == NULL)
        free_legacy(legacy); /* it was not taken; the next call raises BufferError */
    return dlpack_py_object_steal(managed, DLPACK_PY_VERSIONED);
}

static PyObject *
total(PyObject *Py_UNUSED(module), PyObject *x)
{
    static const dlpack_py_want planes = {.dtype = DLPACK_PY_FLOAT32, .ndim = 3, .order = 'C', .name = "x"};
    dlpack_py_view v;

    if (dlpack_py_consume(x, &planes, &v) < 0)
        return NULL;
    const double sum = planes_sum(&(DLManagedTensor){v.tensor, NULL, NULL}); /* lent: planes_sum calls no deleter */
    dlpack_py_release(&v);
    return PyFloat_FromDouble(sum);
}

static int
planes_exec(PyObject *Py_UNUSED(module))
{
    return dlpack_py_init();
}
/* dlpack: end */

static PyObject *
counts(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("ii", (int)planes_made, (int)planes_deleted);
}

static PyMethodDef methods[] = {{"decode", decode, METH_VARARGS, PyDoc_STR("Decode (count, height, width) planes.")},
                                {"total", total, METH_O, PyDoc_STR("The sum of any float32 array of planes.")},
                                {"counts", counts, METH_NOARGS, PyDoc_STR("Tensors made, and deleted.")},
                                {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)(uintptr_t)planes_exec}, {0, NULL}};
static PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "planes", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC
PyInit_planes(void)
{
    return PyModuleDef_Init(&def);
}
#endif

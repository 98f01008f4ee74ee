/* image - a plain extension type that exports and imports arrays by DLPack
 * SPDX-License-Identifier: MIT
 *
 * The lines for DLPack stand between the marks "dlpack: begin" and "dlpack: end"; all
 * other lines are those of a type without DLPack. With DLPack, NumPy, PyTorch, JAX and
 * others use the memory of an image, and this module uses their memory, without a copy.
 */
#include <Python.h>
#include <structmember.h> /* T_BOOL, T_PYSSIZET */
#include <stdint.h>       /* uint8_t */
#include <string.h>       /* memcpy */
/* dlpack: begin */
#include "dlpack_py.h"
/* dlpack: end */

typedef struct Image {
    PyObject_HEAD
    Py_ssize_t height, width;
    uint8_t *pixels; /* rows of red, green, blue */
    char readonly;
} Image;

/* ---- Pixels ------------------------------------------------------------- */

/* Sets each pixel to the mean of the pixel and its neighbours in the row. */
static void
blur_rows(uint8_t *pixels, int64_t height, int64_t width)
{
    int64_t row, column, part;

    for (row = 0; row < height; row++, pixels += width * 3) {
        for (part = 0; part < 3; part++) {
            int left = width > 0 ? pixels[part] : 0;
            for (column = 0; column < width; column++) {
                uint8_t *here = &pixels[column * 3 + part];
                const int middle = *here, right = column + 1 < width ? here[3] : middle;
                *here = (uint8_t)((left + middle + right) / 3);
                left = middle;
            }
        }
    }
}

/* ---- Image -------------------------------------------------------------- */

static PyObject *
image_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"height", "width", NULL};
    Py_ssize_t height, width;
    Image *im;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nn:Image", names, &height, &width))
        return NULL;
    if (height < 0 || width < 0) {
        PyErr_Format(PyExc_ValueError, "an image of %zd by %zd pixels was asked for", height, width);
        return NULL;
    }
    if (width > PY_SSIZE_T_MAX / 3 || (width > 0 && height > PY_SSIZE_T_MAX / 3 / width))
        return PyErr_NoMemory();
    im = (Image *)type->tp_alloc(type, 0);
    if (im == NULL)
        return NULL;
    im->height = height;
    im->width = width;
    im->pixels = (uint8_t *)PyMem_RawCalloc((size_t)height, (size_t)width * 3);
    if (im->pixels == NULL) {
        Py_DECREF(im);
        return PyErr_NoMemory();
    }
    return (PyObject *)im;
}

static void
image_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_RawFree(((Image *)self)->pixels);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
image_check_writable(const Image *im)
{
    if (im->readonly)
        PyErr_SetString(PyExc_ValueError, "the image is read-only");
    return im->readonly ? -1 : 0;
}

static PyObject *
image_fill(PyObject *self, PyObject *args)
{
    Image *im = (Image *)self;
    const Py_ssize_t count = im->height * im->width;
    uint8_t colour[3];
    Py_ssize_t i;

    if (!PyArg_ParseTuple(args, "bbb:fill", &colour[0], &colour[1], &colour[2]) || image_check_writable(im) < 0)
        return NULL;
    for (i = 0; i < count; i++)
        memcpy(im->pixels + i * 3, colour, 3);
    Py_RETURN_NONE;
}

static PyObject *
image_pixel(PyObject *self, PyObject *args)
{
    const Image *im = (const Image *)self;
    const uint8_t *pixel;
    Py_ssize_t row, column;

    if (!PyArg_ParseTuple(args, "nn:pixel", &row, &column))
        return NULL;
    if (row < 0 || row >= im->height || column < 0 || column >= im->width) {
        PyErr_Format(PyExc_IndexError, "the image of %zd by %zd pixels has none at (%zd, %zd)", im->height, im->width,
                     row, column);
        return NULL;
    }
    pixel = im->pixels + (row * im->width + column) * 3;
    return Py_BuildValue("(iii)", pixel[0], pixel[1], pixel[2]);
}

static PyObject *
image_blur(PyObject *self, PyObject *Py_UNUSED(unused))
{
    Image *im = (Image *)self;
    if (image_check_writable(im) < 0)
        return NULL;
    blur_rows(im->pixels, im->height, im->width);
    Py_RETURN_NONE;
}

static PyObject *
image_freeze(PyObject *self, PyObject *Py_UNUSED(unused))
{
    ((Image *)self)->readonly = 1;
    Py_RETURN_NONE;
}

/* dlpack: begin */
static PyObject *
image_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const Image *im = (const Image *)self;
    const int64_t shape[3] = {im->height, im->width, 3};
    DLTensor t = dlpack_py_cpu_tensor(im->pixels, DLPACK_PY_UINT8, 3, shape, NULL); /* NULL: row-major */
    return dlpack_py_produce(self, &t, im->readonly ? DLPACK_PY_FLAG_READ_ONLY : 0, args, nargs, kwnames);
}

/* dlpack: end */
static PyMethodDef image_methods[] = {
    {"fill", image_fill, METH_VARARGS,
     PyDoc_STR("fill($self, red, green, blue, /)\n--\n\nGive all pixels one colour, each part from 0 to 255.")},
    {"pixel", image_pixel, METH_VARARGS,
     PyDoc_STR("pixel($self, row, column, /)\n--\n\nThe pixel there, as a tuple (red, green, blue).")},
    {"blur", image_blur, METH_NOARGS, PyDoc_STR("blur($self, /)\n--\n\nBlur the image to both sides, in place.")},
    {"freeze", image_freeze, METH_NOARGS, PyDoc_STR("freeze($self, /)\n--\n\nMake the image read-only, for good.")},
    /* dlpack: begin */
    DLPACK_PY_METHODS(image_dlpack, dlpack_py_cpu_device), /* two entries of image_methods */
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static PyMemberDef image_members[] = {
    {"height", T_PYSSIZET, offsetof(Image, height), READONLY, PyDoc_STR("Rows.")},
    {"width", T_PYSSIZET, offsetof(Image, width), READONLY, PyDoc_STR("Pixels in a row.")},
    {"readonly", T_BOOL, offsetof(Image, readonly), READONLY, PyDoc_STR("Whether the image was frozen.")},
    {NULL, 0, 0, 0, NULL},
};

/* ISO C has no cast from a function pointer to an object pointer. */
#define SLOT(function) ((void *)(uintptr_t)(function))

static PyType_Slot image_slots[] = {
    {Py_tp_doc, (void *)"Image(height, width)\n--\n\nAn RGB image, black at first."},
    {Py_tp_new, SLOT(image_new)},
    {Py_tp_dealloc, SLOT(image_dealloc)},
    {Py_tp_methods, image_methods},
    {Py_tp_members, image_members},
    {0, NULL},
};

static PyType_Spec image_spec = {"image.Image", sizeof(Image), 0, Py_TPFLAGS_DEFAULT, image_slots};

/* ---- The module --------------------------------------------------------- */

static PyObject *
brightness(PyObject *Py_UNUSED(module), PyObject *args)
{
    uint8_t red, green, blue;
    if (!PyArg_ParseTuple(args, "bbb:brightness", &red, &green, &blue))
        return NULL;
    return PyLong_FromLong((red * 299L + green * 587L + blue * 114L) / 1000);
}

/* dlpack: begin */
static PyObject *
blur(PyObject *Py_UNUSED(module), PyObject *obj)
{
    static const int64_t any_rgb[3] = {-1, -1, 3}; /* -1: any extent */
    static const dlpack_py_want rgb8 = {
        .dtype = DLPACK_PY_UINT8, .ndim = 3, .shape = any_rgb, .order = 'C', .writable = 1};
    dlpack_py_view v;

    if (dlpack_py_consume(obj, &rgb8, &v) < 0)
        return NULL; /* BufferError names the requirement that is not met */
    blur_rows(dlpack_py_data(&v), v.tensor.shape[0], v.tensor.shape[1]);
    dlpack_py_release(&v);
    Py_RETURN_NONE;
}

/* dlpack: end */
static PyMethodDef module_methods[] = {
    {"brightness", brightness, METH_VARARGS,
     PyDoc_STR("brightness(red, green, blue, /)\n--\n\nHow bright a colour looks, from 0 to 255.")},
    /* dlpack: begin */
    {"blur", blur, METH_O, PyDoc_STR("Blur any uint8 array (height, width, 3), in place.")}, /* into module_methods */
    /* dlpack: end */
    {NULL, NULL, 0, NULL},
};

static int
module_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &image_spec, NULL);
    int failed;

    if (type == NULL)
        return -1;
    failed = PyModule_AddType(module, (PyTypeObject *)type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, SLOT(module_exec)},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT, "image", PyDoc_STR("RGB images."), 0, module_methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit_image(void)
{
    return PyModuleDef_Init(&module_def);
}

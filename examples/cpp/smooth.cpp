// smooth - a function over float32 vectors of any library, with an argument out=
// SPDX-License-Identifier: MIT
#include "signals.hpp"
// dlpack: begin
#include "dlpack_exchange.h" // first: dlpack_py.h uses it

#include "dlpack_py.hpp"
// dlpack: end

namespace {

// Sets to[i] to the mean of from[i] and its neighbours. to and from share no memory, or are the same vector.
void
smooth_values(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t length)
{
    float before = length > 0 ? from[0] : 0, here = before;
    for (int64_t i = 0; i < length; i++) {
        const float after = i + 1 < length ? from[(i + 1) * from_stride] : here;
        to[i * to_stride] = (before + here + after) / 3;
        before = here;
        here = after;
    }
}

} // namespace

PyObject *
smooth(PyObject *, PyObject *args, PyObject *kwargs)
{
    static const char *const names[] = {"", "out", nullptr};
    PyObject *x = nullptr, *out = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:smooth", const_cast<char **>(names), &x, &out))
        return nullptr;

    // dlpack: begin
    dlpack_py_unique_view in, to; // each view releases its tensor at the end of the function
    dlpack_py_want want_in = dlpack_py_want_any();
    want_in.dtype = DLPACK_PY_FLOAT32;
    want_in.ndim = 1;
    want_in.name = "x";
    if (dlpack_py_consume(x, &want_in, in.reset()) < 0)
        return nullptr;

    if (out == Py_None) {
        if (dlpack_py_allocate_like(x, &in->tensor, to.reset()) < 0)
            return nullptr;
    }
    else {
        dlpack_py_want want_out = dlpack_py_want_like(&in->tensor);
        want_out.writable = 1;
        want_out.name = "out";
        if (dlpack_py_consume(out, &want_out, to.reset()) < 0)
            return nullptr;
        const bool is_same = in.data() == to.data() && in->tensor.strides[0] == to->tensor.strides[0];
        if (!is_same && dlpack_py_may_overlap(&in->tensor, in->flags, &to->tensor, to->flags)) {
            PyErr_SetString(PyExc_ValueError, "x and out overlap, they must be the same array or share no memory");
            return nullptr;
        }
    }
    smooth_values(static_cast<float *>(to.data()), to->tensor.strides[0], static_cast<const float *>(in.data()),
                  in->tensor.strides[0], in->tensor.shape[0]);
    if (out == Py_None)
        return dlpack_py_return_like_steal(x, to.get()); // the library of x makes the array
    // dlpack: end
    Py_INCREF(out);
    return out;
}

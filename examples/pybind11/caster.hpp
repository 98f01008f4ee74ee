// caster - arrays of any library as arguments of C++ functions, for pybind11
// SPDX-License-Identifier: MIT
//
// void scale(dlpack_array<double, 1> values, double factor); takes a float64 vector that the CPU can read, with any
// stride, and refuses read-only memory. dlpack_array<const double, 1> takes read-only memory as well.
//
// An array that does not fit raises BufferError. Its text names the requirement that is not met. An exception of the
// producer stays as it is. In a function with overloads mark the arrays py::arg("x").noconvert(): then the exception is
// dropped, the next overload is tried, and where none fits, pybind11's TypeError lists them. Without the mark, an
// overload is still found where the other arguments need no conversion; else the first array that does not fit hides
// the overloads after it. An object that is no array is always pybind11's TypeError.
#pragma once
#include <pybind11/numpy.h> // names of dtypes; NumPy itself is not needed

#include "dlpack_py.hpp"

#include <cstdint>
#include <type_traits>

// Owns the view of an array; can be moved. Strides count elements. Moving or destroying it needs no GIL.
template <typename T, int Ndim> struct dlpack_array : dlpack_py_unique_view {
    T *data() const
    {
        return static_cast<T *>(dlpack_py_unique_view::data());
    }
    int64_t shape(int i) const
    {
        return (*this)->tensor.shape[i];
    }
    int64_t stride(int i) const
    {
        return (*this)->tensor.strides[i];
    }
};

template <typename T, int Ndim> struct pybind11::detail::type_caster<dlpack_array<T, Ndim>> {
    using Number = std::remove_const_t<T>;
    PYBIND11_TYPE_CASTER(PYBIND11_TYPE(dlpack_array<T, Ndim>),
                         const_name("dlpack_array[") + npy_format_descriptor<Number>::name + const_name(", ") +
                             const_name<Ndim>() + const_name<std::is_const_v<T>>("]", ", writable]"));

    bool load(handle source, bool convert)
    {
        static_assert(std::is_arithmetic_v<Number> || is_complex<Number>::value, "T has no dtype");
        constexpr unsigned code = std::is_same_v<Number, bool>       ? kDLBool
                                  : is_complex<Number>::value        ? kDLComplex
                                  : std::is_floating_point_v<Number> ? kDLFloat
                                  : std::is_signed_v<Number>         ? kDLInt
                                                                     : kDLUInt;
        dlpack_py_want want = dlpack_py_want_any();
        want.dtype = DLPACK_PY_DTYPE(code, 8u * uint32_t{sizeof(T)}, 1u);
        want.ndim = Ndim == 0 ? DLPACK_PY_SCALAR : Ndim; // 0 requires nothing
        want.writable = !std::is_const_v<T>;
        if (dlpack_py_consume(source.ptr(), &want, value.reset()) < 0 && convert && dlpack_py_has_tensor(source.ptr()))
            throw error_already_set();
        PyErr_Clear();
        return value->managed != nullptr;
    }
};

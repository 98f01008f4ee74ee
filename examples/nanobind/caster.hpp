// caster - arrays of any library as arguments of C++ functions, for nanobind
// SPDX-License-Identifier: MIT
//
// void scale(dlpack_array<double, 1> values, double factor); takes a float64 vector that the CPU can read, with any
// stride, and refuses read-only memory. dlpack_array<const double, 1> takes read-only memory as well.
//
// An array that does not fit raises BufferError. Its text names the requirement that is not met. An exception of the
// producer stays as it is. In a function with overloads mark the arrays nb::arg("x").noconvert(): then the exception is
// dropped, the next overload is tried, and where none fits, nanobind's TypeError lists them. Without the mark, an
// overload is still found where the other arguments need no conversion; else the first array that does not fit hides
// the overloads after it. An object that is no array is always nanobind's TypeError.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h> // dtypes, and their names

#include "dlpack_py.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

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

template <typename T, int Ndim> struct nanobind::detail::type_caster<dlpack_array<T, Ndim>> {
    template <typename> using Cast = dlpack_array<T, Ndim> &&;
    static constexpr auto Name = make_caster<ndarray<T, ndim<std::size_t{Ndim}>>>::Name;
    dlpack_array<T, Ndim> value;
    std::exception_ptr refusal; // from_python must not throw: the conversion to the argument does

    bool from_python(handle source, uint32_t flags, cleanup_list *) noexcept
    {
        dlpack_py_want want = dlpack_py_want_any();
        want.dtype = DLPACK_PY_DTYPE(dtype<T>().code, dtype<T>().bits, 1u);
        want.ndim = Ndim == 0 ? DLPACK_PY_SCALAR : Ndim; // 0 requires nothing
        want.writable = !std::is_const_v<T>;
        if (dlpack_py_consume(source.ptr(), &want, value.reset()) < 0)
            refusal = std::make_exception_ptr(python_error()); // takes the exception that is set
        return !refusal || ((flags & cast_flags::convert) != 0 && dlpack_py_has_tensor(source.ptr()));
    }
    template <typename> bool can_cast() const noexcept // nanobind asks this before it converts in a noexcept function
    {
        return !refusal;
    }
    operator dlpack_array<T, Ndim> &&()
    {
        if (refusal)
            std::rethrow_exception(refusal);
        return std::move(value);
    }
};

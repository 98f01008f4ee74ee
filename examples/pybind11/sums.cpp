// sums - functions over the arrays of any library, bound with pybind11
// SPDX-License-Identifier: MIT
#include "caster.hpp"

namespace py = pybind11;

template <typename T>
static T
total(const dlpack_array<const T, 2> &array)
{
    T sum = 0;
    for (int64_t i = 0; i < array.shape(0); i++)
        for (int64_t j = 0; j < array.shape(1); j++)
            sum += array.data()[i * array.stride(0) + j * array.stride(1)];
    return sum;
}

static void
scale(dlpack_array<double, 1> array, double factor)
{
    const py::gil_scoped_release other_threads_run;
    for (int64_t i = 0; i < array.shape(0); i++)
        array.data()[i * array.stride(0)] *= factor;
}

PYBIND11_MODULE(sums, module)
{
    if (dlpack_py_init() < 0)
        throw py::error_already_set();
    // noconvert(): an array that does not fit is left to the next overload
    module.def("total", total<double>, py::arg("array").noconvert(), "The sum of any float64 or int64 matrix.");
    module.def("total", total<int64_t>, py::arg("array").noconvert());
    module.def("scale", scale, py::arg("array"), py::arg("factor"), "Multiply any float64 vector, in place.");
}

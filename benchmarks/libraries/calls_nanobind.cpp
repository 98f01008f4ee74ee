/* calls_nanobind - the calls of calls.c, by nanobind's own ndarray */
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/complex.h>

#include <complex>
#include <cstddef>
#include <cstdint>

namespace nb = nanobind;

using Matrix = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyRank = nb::ndarray<double, nb::c_contig, nb::device::cpu>;
using Any = nb::ndarray<nb::ro, nb::device::cpu>;
using Fortran = nb::ndarray<const double, nb::ndim<2>, nb::f_contig, nb::device::cpu>;
using Strided = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;
using Scalar = nb::ndarray<const double, nb::ndim<0>, nb::c_contig, nb::device::cpu>;
template <typename Item, std::size_t rank = 2>
using Of = nb::ndarray<const Item, nb::ndim<rank>, nb::c_contig, nb::device::cpu>;

static double values[256];
static nb::handle owner; /* keeps values alive: an existing object, so that nanobind makes no capsule */

/* An array of nanobind's own type, or of another library. */
template <typename Library>
static nb::ndarray<Library, double, nb::ndim<2>>
make()
{
    return nb::ndarray<Library, double, nb::ndim<2>>(values, {3, 4}, owner);
}

static nb::ndarray<nb::array_api, double>
of_rank(std::size_t rank)
{
    static const std::size_t shapes[9][8] = {{},
                                             {12},
                                             {3, 4},
                                             {3, 2, 2},
                                             {3, 2, 2, 2},
                                             {2, 2, 2, 2, 2},
                                             {2, 2, 2, 2, 2, 2},
                                             {2, 2, 2, 2, 2, 2, 2},
                                             {2, 2, 2, 2, 2, 2, 2, 2}};
    return nb::ndarray<nb::array_api, double>(values, rank, shapes[rank], owner);
}

/* Of nanobind's own type, in the memory of the argument. */
using Own = nb::ndarray<nb::array_api, const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

static Own
from_dlpack(Own array)
{
    return array;
}

NB_MODULE(calls_nanobind, module)
{
    owner = PyList_New(0); /* lives as long as the process */
    module.def("from_dlpack", from_dlpack, nb::arg().noconvert());
    module.def("consume", [](const Matrix &) {}, nb::arg().noconvert());
    module.def("consume_const", [](const ConstMatrix &) {}, nb::arg().noconvert());
    module.def("consume_any_rank", [](const AnyRank &) {}, nb::arg().noconvert());
    module.def("consume_any", [](const Any &) {}, nb::arg().noconvert());
    module.def("consume_bool", [](const Of<bool> &) {}, nb::arg().noconvert());
    module.def("consume_bytes", [](const Of<std::uint8_t, 1> &) {}, nb::arg().noconvert());
    module.def("consume_complex", [](const Of<std::complex<double>> &) {}, nb::arg().noconvert());
    module.def("consume_small_complex", [](const Of<std::complex<float>> &) {}, nb::arg().noconvert());
    module.def("consume_fortran", [](const Fortran &) {}, nb::arg().noconvert());
    module.def("consume_strided", [](const Strided &) {}, nb::arg().noconvert());
    module.def("consume_scalar", [](const Scalar &) {}, nb::arg().noconvert());
    module.def("consume_two_dtypes", [](const Of<float> &) {}, nb::arg().noconvert());
    module.def("consume_two_dtypes", [](const Of<double> &) {}, nb::arg().noconvert());
    module.def("consume_three_dtypes", [](const Of<std::int64_t> &) {}, nb::arg().noconvert());
    module.def("consume_three_dtypes", [](const Of<float> &) {}, nb::arg().noconvert());
    module.def("consume_three_dtypes", [](const Of<double> &) {}, nb::arg().noconvert());
    module.def("nothing", [](nb::handle) {});
    module.def("consume_two", [](const Matrix &, const Matrix &) {}, nb::arg().noconvert(), nb::arg().noconvert());
    module.def(
        "consume_three", [](const Matrix &, const Matrix &, const Matrix &) {}, nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg().noconvert());
    module.def(
        "consume_four", [](const Matrix &, const Matrix &, const Matrix &, const Matrix &) {}, nb::arg().noconvert(),
        nb::arg().noconvert(), nb::arg().noconvert(), nb::arg().noconvert());
    module.def("make", make<nb::array_api>);
    module.def("make_numpy", make<nb::numpy>);
    module.def("make_torch", make<nb::pytorch>);
    module.def("of_rank", of_rank);
}

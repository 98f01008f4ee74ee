/* calls_nanobind - the calls of calls.c, by nanobind's own ndarray */
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>

namespace nb = nanobind;

using Matrix = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyRank = nb::ndarray<double, nb::c_contig, nb::device::cpu>;

static double values[256];
static nb::handle owner; /* keeps values alive: an object that exists already, so that no capsule is made for it */

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

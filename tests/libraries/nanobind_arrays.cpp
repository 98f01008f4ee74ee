/* nanobind_arrays - imports and exports of nanobind's ndarray
 * SPDX-License-Identifier: MIT
 *
 * nanobind has DLPack built in: this file exchanges arrays with users of dlpack_py.h, but does not use it.
 */
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace nb = nanobind;

template <typename Scalar> using Vector = nb::ndarray<nb::array_api, Scalar, nb::ndim<1>>;
using AnyWritable = nb::ndarray<nb::array_api, nb::device::cpu>;
using AnyConstant = nb::ndarray<nb::array_api, nb::ro, nb::device::cpu>;
using AnyReadable = nb::ndarray<nb::ro, nb::device::cpu>;
using Matrix = nb::ndarray<double, nb::ndim<2>, nb::device::cpu>;
using CompactMatrix = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ReadableMatrix = nb::ndarray<const double, nb::ndim<2>, nb::device::cpu>;

static int freed = 0;
static AnyReadable kept;

/* The numbers from 0 to count, in memory that counts when it is freed. */
template <typename Scalar>
static Vector<Scalar>
numbers(std::size_t count)
{
    double *values = new double[count];
    for (std::size_t i = 0; i < count; i++)
        values[i] = static_cast<double>(i);
    nb::capsule owner(values, [](void *memory) noexcept {
        delete[] static_cast<double *>(memory);
        freed++;
    });
    return Vector<Scalar>(values, {count}, owner);
}

/* Address, shape, strides, and the dtype as code, bits and lanes. */
static nb::tuple
describe(const AnyReadable &a)
{
    nb::list shape, strides;
    for (std::size_t i = 0; i < a.ndim(); i++) {
        shape.append(a.shape(i));
        strides.append(a.stride(i));
    }
    return nb::make_tuple(reinterpret_cast<uintptr_t>(a.data()), nb::tuple(shape), nb::tuple(strides),
                          nb::make_tuple(a.dtype().code, a.dtype().bits, a.dtype().lanes));
}

/* An array of any dtype and shape, in its own memory. */
template <typename Array>
static Array
array(std::tuple<uint8_t, uint8_t, uint16_t> dtype, const std::vector<std::size_t> &shape, const nb::bytes &values)
{
    char *memory = new char[values.size() + 1];
    std::memcpy(memory, values.c_str(), values.size());
    nb::capsule owner(memory, [](void *owned) noexcept { delete[] static_cast<char *>(owned); });
    const nb::dlpack::dtype of{std::get<0>(dtype), std::get<1>(dtype), std::get<2>(dtype)};
    return Array(memory, shape.size(), shape.data(), owner, nullptr, of, nb::device::cpu::value, 0);
}

/* Keeps an array of another library: nanobind returns the object from which it imported an array. */
struct Holder {
    AnyReadable array;
};

/* A view into the array, which it keeps alive. */
static Vector<double>
row(Matrix a, std::size_t i)
{
    return Vector<double>(&a(i, 0), {a.shape(1)}, a.cast(), {a.stride(1)});
}

template <typename Array>
static void
fill(const Array &a, double value)
{
    for (std::size_t i = 0; i < a.shape(0); i++) {
        for (std::size_t j = 0; j < a.shape(1); j++)
            a(i, j) = value;
    }
}

static double
total(const ReadableMatrix &a)
{
    double sum = 0.0;
    for (std::size_t i = 0; i < a.shape(0); i++) {
        for (std::size_t j = 0; j < a.shape(1); j++)
            sum += a(i, j);
    }
    return sum;
}

NB_MODULE(nanobind_arrays, module)
{
    module.def("numbers", numbers<double>);
    module.def("constants", numbers<const double>);
    module.def("array", array<AnyWritable>);
    module.def("constant", array<AnyConstant>);
    nb::class_<Holder>(module, "Holder");
    module.def("from_dlpack", [](const AnyReadable &a) { return Holder{a}; }, nb::arg("a").noconvert());
    module.def("describe", [](const Holder &a) { return describe(a.array); });
    module.def("freed", [] { return freed; });
    module.def("describe", describe);
    module.def("row", row, nb::arg("a").noconvert(), nb::arg("i"));
    module.def("keep", [](const AnyReadable &a) { kept = a; });
    module.def("drop", [] { kept = AnyReadable(); });
    module.def("fill", fill<Matrix>, nb::arg("a").noconvert(), nb::arg("value"));
    module.def("fill_compact", fill<CompactMatrix>, nb::arg("a").noconvert(), nb::arg("value"));
    module.def("fill_compact_or_copy", fill<CompactMatrix>, nb::arg("a"), nb::arg("value"));
    module.def("total", total, nb::arg("a").noconvert());
}

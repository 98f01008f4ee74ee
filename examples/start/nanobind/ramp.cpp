// ramp - an array type, and a function that takes the arrays of any library, with nanobind
#include <nanobind/nanobind.h>

#include "dlpack_py.hpp"

#include <cstddef>
#include <numeric>
#include <vector>

namespace nb = nanobind;

struct Ramp {
    explicit Ramp(std::size_t length) : values(length)
    {
        std::iota(values.begin(), values.end(), 0.0);
    }
    std::vector<double> values;
};

// __dlpack__: other libraries use the memory of a Ramp.
static nb::object
ramp_dlpack(nb::handle self, nb::handle stream, nb::handle max_version, nb::handle dl_device, nb::handle copy)
{
    std::vector<double> &values = nb::cast<Ramp &>(self).values;
    const int64_t length = static_cast<int64_t>(values.size());
    const DLTensor t = dlpack_py_cpu_tensor(values.data(), DLPACK_PY_FLOAT64, 1, &length, nullptr);
    PyObject *result =
        dlpack_py_produce_obj_args(self.ptr(), &t, 0, stream.ptr(), max_version.ptr(), dl_device.ptr(), copy.ptr());
    if (result == nullptr)
        throw nb::python_error();
    return nb::steal(result);
}

// total(x): this module uses the memory of other libraries.
static double
total(nb::handle x)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_unique_view v; // releases the tensor at the end of the function
    double sum = 0;

    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 1;
    if (dlpack_py_consume(x.ptr(), &want, v.reset()) < 0)
        throw nb::python_error(); // BufferError names the requirement that is not met
    for (int64_t i = 0; i < v->tensor.shape[0]; i++)
        sum += static_cast<const double *>(v.data())[i * v->tensor.strides[0]];
    return sum;
}

NB_MODULE(ramp, module)
{
    if (dlpack_py_init() < 0)
        throw nb::python_error();
    nb::class_<Ramp>(module, "Ramp")
        .def(nb::init<std::size_t>(), nb::arg("length"))
        .def("__dlpack__", ramp_dlpack, nb::kw_only(), nb::arg("stream") = nb::none(),
             nb::arg("max_version") = nb::none(), nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none())
        .def("__dlpack_device__", [](nb::handle) { return nb::make_tuple(1, 0); });
    module.def("total", total, nb::arg("x"), "The sum of any float64 vector.");
}

// ramp - an array type, and a function that takes the arrays of any library, with pybind11
#include <pybind11/pybind11.h>

#include "dlpack_py.hpp"

#include <cstddef>
#include <numeric>
#include <vector>

namespace py = pybind11;

struct Ramp {
    explicit Ramp(std::size_t length) : values(length)
    {
        std::iota(values.begin(), values.end(), 0.0);
    }
    std::vector<double> values;
};

// __dlpack__: other libraries use the memory of a Ramp.
static py::object
ramp_dlpack(const py::object &self, const py::object &stream, const py::object &max_version,
            const py::object &dl_device, const py::object &copy)
{
    std::vector<double> &values = self.cast<Ramp &>().values;
    const int64_t length = static_cast<int64_t>(values.size());
    const DLTensor t = dlpack_py_cpu_tensor(values.data(), DLPACK_PY_FLOAT64, 1, &length, nullptr);
    PyObject *result =
        dlpack_py_produce_obj_args(self.ptr(), &t, 0, stream.ptr(), max_version.ptr(), dl_device.ptr(), copy.ptr());
    if (result == nullptr)
        throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

// total(x): this module uses the memory of other libraries.
static double
total(const py::object &x)
{
    dlpack_py_want want = dlpack_py_want_any();
    dlpack_py_unique_view v; // releases the tensor at the end of the function
    double sum = 0;

    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 1;
    if (dlpack_py_consume(x.ptr(), &want, v.reset()) < 0)
        throw py::error_already_set(); // BufferError names the requirement that is not met
    for (int64_t i = 0; i < v->tensor.shape[0]; i++)
        sum += static_cast<const double *>(v.data())[i * v->tensor.strides[0]];
    return sum;
}

PYBIND11_MODULE(ramp, module)
{
    if (dlpack_py_init() < 0)
        throw py::error_already_set();
    py::class_<Ramp>(module, "Ramp")
        .def(py::init<std::size_t>(), py::arg("length"))
        .def("__dlpack__", ramp_dlpack, py::kw_only(), py::arg("stream") = py::none(),
             py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
        .def("__dlpack_device__", [](const py::object &) { return py::make_tuple(1, 0); });
    module.def("total", total, py::arg("x"), "The sum of any float64 vector.");
}

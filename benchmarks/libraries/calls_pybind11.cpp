/* calls_pybind11 - the calls of calls.c by pybind11, which has no DLPack: the capsules are handled by hand */
#include "pybind11_by_hand.hpp"

namespace py = pybind11;

namespace {

struct Own {
    std::int64_t shape[2] = {3, 4}, strides[2] = {4, 1};
    double values[12] = {};
};

struct Held {
    by_hand::Array array;
};

const by_hand::Wanted matrix = {kDLFloat, 64, 2, false};

} // namespace

PYBIND11_MODULE(calls_pybind11, module)
{
    py::class_<Own>(module, "Own")
        .def(py::init<>())
        .def(
            "__dlpack__",
            [](py::object self, py::object stream, py::object max_version, py::object dl_device, py::object copy) {
                Own &own = self.cast<Own &>();
                return by_hand::produce(self, own.values, {kDLFloat, 64, 1}, 2, own.shape, own.strides, false, stream,
                                        max_version, dl_device, copy);
            },
            py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
            py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
        .def("__dlpack_device__", [](const Own &) { return py::make_tuple(int(kDLCPU), 0); });
    py::class_<Held>(module, "Held").def_static("from_dlpack", [](py::object x) {
        return Held{by_hand::Array(x, matrix)};
    });
    module.def("consume", [](py::object x) { by_hand::Array a(x, matrix); });
    module.def("consume_three", [](py::object x, py::object y, py::object z) {
        by_hand::Array a(x, matrix), b(y, matrix), c(z, matrix);
    });
    module.def("make", [] { return Own(); });
}

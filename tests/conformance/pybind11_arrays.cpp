// Arrays of any dtype and rank in a class of pybind11, which exports and imports them with dlpack_py.h.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "dlpack_exchange.h"
#include "dlpack_py.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace py = pybind11;

static py::object
checked(PyObject *result)
{
    if (result == nullptr)
        throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

class Array {
  public:
    explicit Array(dlpack_py_unique_view &&view) : view_(std::move(view))
    {
    }

    DLTensor tensor() const
    {
        return view_->tensor;
    }

    uint64_t flags() const
    {
        return (view_->flags & DLPACK_PY_FLAG_IS_SUBBYTE_TYPE_PADDED) |
               (view_->readonly != DLPACK_PY_WRITABLE ? DLPACK_PY_FLAG_READ_ONLY : 0);
    }

    // Address, shape, strides, whether it is read-only, and the dtype as code, bits and lanes.
    py::tuple describe() const
    {
        const DLTensor t = tensor();
        return py::make_tuple(
            reinterpret_cast<uintptr_t>(view_.data()), std::vector<int64_t>(t.shape, t.shape + t.ndim),
            std::vector<int64_t>(t.strides, t.strides + t.ndim), view_->readonly != DLPACK_PY_WRITABLE,
            py::make_tuple(t.dtype.code, t.dtype.bits, t.dtype.lanes));
    }

  private:
    dlpack_py_unique_view view_;
};

static std::unique_ptr<Array>
from_dlpack(const py::object &source, const py::object &device, const py::object &copy)
{
    dlpack_py_unique_view view;
    const dlpack_py_want want = dlpack_py_want_any();
    if (dlpack_py_from_dlpack_obj_args(source.ptr(), device.ptr(), copy.ptr(), &want, view.reset()) < 0)
        throw py::error_already_set();
    return std::unique_ptr<Array>(new Array(std::move(view)));
}

static py::object
dlpack(const py::object &self, const py::object &stream, const py::object &max_version, const py::object &dl_device,
       const py::object &copy)
{
    const Array &exported = self.cast<const Array &>();
    const DLTensor t = exported.tensor();
    return checked(dlpack_py_produce_obj_args(self.ptr(), &t, exported.flags(), stream.ptr(), max_version.ptr(),
                                              dl_device.ptr(), copy.ptr()));
}

PYBIND11_MODULE(pybind11_arrays, module)
{
    py::class_<Array>(module, "Array")
        .def("__dlpack__", dlpack, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
             py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
        .def("__dlpack_device__",
             [](const Array &self) {
                 const DLTensor t = self.tensor();
                 return checked(dlpack_py_produce_device(&t));
             })
        .def("describe", &Array::describe);
    module.def("from_dlpack", from_dlpack, py::arg("x"), py::pos_only(), py::kw_only(), py::arg("device") = py::none(),
               py::arg("copy") = py::none());
}

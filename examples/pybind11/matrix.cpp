// matrix - a class written with pybind11 that exports and imports its memory by DLPack
// SPDX-License-Identifier: MIT
//
// pybind11 has no functions for DLPack. The first section connects pybind11 with dlpack_py.h. The first section does
// not depend on the class: copy it unchanged. All lines for DLPack stand between the marks "dlpack: begin" and
// "dlpack: end".
#include <pybind11/pybind11.h>
// dlpack: begin
#include "dlpack_py.hpp"
// dlpack: end

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace py = pybind11;

// ---- DLPack for pybind11 ---------------------------------------------------

// dlpack: begin
// Takes a new reference. If the reference is NULL, throws the Python exception that is set.
static py::object
checked(PyObject *result)
{
    if (result == nullptr)
        throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

// Takes the tensor of an array of any library. The view releases the tensor. Moving or destroying a view needs no GIL.
static dlpack_py_unique_view
consume(const py::object &array, const dlpack_py_want &want)
{
    dlpack_py_unique_view view;
    if (dlpack_py_consume(array.ptr(), &want, view.reset()) < 0)
        throw py::error_already_set();
    return view;
}

// Gives a class the methods __dlpack__ and __dlpack_device__. The class has tensor(), whose result may point into the
// object, and readonly().
template <typename Class, typename... Options>
static void
def_dlpack(py::class_<Class, Options...> &type)
{
    type.def(
        "__dlpack__",
        [](const py::object &self, const py::object &stream, const py::object &max_version, const py::object &dl_device,
           const py::object &copy) {
            const Class &exported = self.cast<const Class &>();
            const DLTensor t = exported.tensor();
            return checked(dlpack_py_produce_obj_args(self.ptr(), &t,
                                                      exported.readonly() ? DLPACK_PY_FLAG_READ_ONLY : 0, stream.ptr(),
                                                      max_version.ptr(), dl_device.ptr(), copy.ptr()));
        },
        py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
        py::arg("dl_device") = py::none(), py::arg("copy") = py::none());
    type.def("__dlpack_device__", [](const Class &self) {
        const DLTensor t = self.tensor();
        return checked(dlpack_py_produce_device(&t));
    });
}
// dlpack: end

// ---- The class -------------------------------------------------------------

// A matrix of float64, in its own memory or in the memory of another library.
class Matrix {
  public:
    Matrix(int64_t rows, int64_t columns) : own_(count(rows, columns)), layout_{rows, columns, columns, 1}
    {
        data_ = own_.data();
    }

    // dlpack: begin
    explicit Matrix(dlpack_py_unique_view &&source)
        : source_(std::move(source)), layout_{source_->tensor.shape[0], source_->tensor.shape[1],
                                              source_->tensor.strides[0], source_->tensor.strides[1]},
          data_(static_cast<double *>(source_.data()))
    {
    }

    DLTensor tensor() const
    {
        return dlpack_py_cpu_tensor(data_, DLPACK_PY_FLOAT64, 2, layout_, layout_ + 2);
    }
    bool readonly() const
    {
        return source_->readonly != DLPACK_PY_WRITABLE;
    }
    // dlpack: end

    double &at(std::pair<int64_t, int64_t> index) const
    {
        if (index.first < 0 || index.first >= layout_[0] || index.second < 0 || index.second >= layout_[1])
            throw py::index_error("the index is outside of the matrix");
        return data_[index.first * layout_[2] + index.second * layout_[3]];
    }

    void set(std::pair<int64_t, int64_t> index, double value)
    {
        if (readonly())
            throw py::value_error("the matrix is read-only");
        at(index) = value;
    }

    std::pair<int64_t, int64_t> shape() const
    {
        return {layout_[0], layout_[1]};
    }
    uintptr_t address() const
    {
        return reinterpret_cast<uintptr_t>(data_);
    }

  private:
    static std::size_t count(int64_t rows, int64_t columns)
    {
        if (rows < 0 || columns < 0 || (columns > 0 && rows > PTRDIFF_MAX / 8 / columns))
            throw py::value_error("there is no matrix of this shape");
        return static_cast<std::size_t>(rows * columns);
    }

    // dlpack: begin
    dlpack_py_unique_view source_; // empty: the memory is that of own_
    // dlpack: end
    std::vector<double> own_;
    int64_t layout_[4]; // shape, then strides
    double *data_;
};

// dlpack: begin
static std::unique_ptr<Matrix>
from_dlpack(const py::object &source, const py::object &device, const py::object &copy)
{
    dlpack_py_unique_view view;
    dlpack_py_want want = dlpack_py_want_any();
    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 2;
    if (dlpack_py_from_dlpack_obj_args(source.ptr(), device.ptr(), copy.ptr(), &want, view.reset()) < 0)
        throw py::error_already_set();
    return std::unique_ptr<Matrix>(new Matrix(std::move(view)));
}

// ---- Functions over the arrays of any library ------------------------------

static void
scale(const py::object &array, double factor)
{
    dlpack_py_want want = dlpack_py_want_any();
    want.dtype = DLPACK_PY_FLOAT64;
    want.order = 'K'; // compact, in any order of the dimensions
    want.writable = 1;
    const dlpack_py_unique_view view = consume(array, want);
    double *values = static_cast<double *>(view.data());
    const int64_t size = dlpack_py_size(&view->tensor);

    const py::gil_scoped_release other_threads_run;
    for (int64_t i = 0; i < size; i++)
        values[i] *= factor;
}

static double
trace(const py::object &array)
{
    dlpack_py_want want = dlpack_py_want_any();
    want.dtype = DLPACK_PY_FLOAT64;
    want.ndim = 2;
    const dlpack_py_unique_view view = consume(array, want);
    const int64_t *shape = view->tensor.shape, *strides = view->tensor.strides;
    const double *values = static_cast<const double *>(view.data());
    double sum = 0.0;

    for (int64_t i = 0; i < shape[0] && i < shape[1]; i++)
        sum += values[i * (strides[0] + strides[1])];
    return sum;
}
// dlpack: end

PYBIND11_MODULE(matrix, module)
{
    py::class_<Matrix> type(module, "Matrix");
    type.def(py::init<int64_t, int64_t>(), py::arg("rows"), py::arg("columns"))
        .def("__getitem__", &Matrix::at)
        .def("__setitem__", &Matrix::set)
        .def_property_readonly("shape", &Matrix::shape)
        .def_property_readonly("address", &Matrix::address)
        .def_property_readonly("readonly", &Matrix::readonly);
    // dlpack: begin
    type.def_static("from_dlpack", from_dlpack, py::arg("x"), py::pos_only(), py::kw_only(),
                    py::arg("device") = py::none(), py::arg("copy") = py::none());
    def_dlpack(type);
    // dlpack: end
    module.def("scale", scale, py::arg("array"), py::arg("factor"), "Multiply any float64 array, in place.");
    module.def("trace", trace, py::arg("array"), "The sum of the diagonal of any float64 matrix.");
}

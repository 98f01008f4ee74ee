/* DLPack by hand for pybind11, which has none: what an author writes who needs no more than this. It checks dtype, rank,
 * order, device, read-only flag, capsule and version. */
#pragma once

#include <pybind11/pybind11.h>

#if __has_include("dlpack.h")
#  include "dlpack.h"
#else
#  include <dlpack/dlpack.h>
#endif

#include <cstdint>
#include <memory>
#include <vector>

namespace by_hand {

namespace py = pybind11;

/* ---- Producing ----------------------------------------------------------- */

struct Export {
    DLManagedTensorVersioned versioned{};
    DLManagedTensor legacy{};
    std::vector<std::int64_t> shape, strides;
    py::object owner;
};

template <typename Managed>
void
free_export(Managed *managed)
{
    py::gil_scoped_acquire gil;
    delete static_cast<Export *>(managed->manager_ctx);
}

template <typename Managed>
void
drop(PyObject *capsule, const char *name)
{
    if (PyCapsule_IsValid(capsule, name)) {
        auto *managed = static_cast<Managed *>(PyCapsule_GetPointer(capsule, name));
        managed->deleter(managed);
    }
}

inline py::object
produce(py::object owner, void *data, DLDataType dtype, int ndim, const std::int64_t *shape,
        const std::int64_t *strides, bool readonly, py::object stream, py::object max_version, py::object dl_device,
        py::object copy)
{
    if (!stream.is_none() || !dl_device.is_none() || (!copy.is_none() && copy.cast<bool>()))
        throw py::buffer_error("only exports in place, on the CPU");
    const bool is_versioned = !max_version.is_none() && max_version.cast<py::tuple>()[0].cast<int>() >= 1;
    if (readonly && !is_versioned)
        throw py::buffer_error("read-only data needs max_version=(1, 0)");
    auto e = std::make_unique<Export>();
    e->shape.assign(shape, shape + ndim);
    e->strides.assign(strides, strides + ndim);
    e->owner = std::move(owner);
    DLTensor t{data, {kDLCPU, 0}, ndim, dtype, e->shape.data(), e->strides.data(), 0};
    e->versioned.version = {1, 3};
    e->versioned.flags = readonly ? 1 : 0;
    e->versioned.dl_tensor = e->legacy.dl_tensor = t;
    e->versioned.manager_ctx = e->legacy.manager_ctx = e.get();
    e->versioned.deleter = free_export<DLManagedTensorVersioned>;
    e->legacy.deleter = free_export<DLManagedTensor>;
    PyObject *capsule =
        is_versioned ? PyCapsule_New(&e->versioned, "dltensor_versioned",
                                     [](PyObject *c) { drop<DLManagedTensorVersioned>(c, "dltensor_versioned"); })
                     : PyCapsule_New(&e->legacy, "dltensor", [](PyObject *c) { drop<DLManagedTensor>(c, "dltensor"); });
    if (capsule == nullptr)
        throw py::error_already_set();
    e.release();
    return py::reinterpret_steal<py::object>(capsule);
}

/* ---- Consuming ----------------------------------------------------------- */

struct Wanted {
    int code, bits, ndim;
    bool writable;
};

/* A row-major array, owned for as long as this lives. */
class Array {
  public:
    Array(py::handle x, const Wanted &want)
    {
        py::object capsule;
        try {
            capsule = x.attr("__dlpack__")(py::arg("max_version") = py::make_tuple(1, 3));
        } catch (py::error_already_set &error) {
            if (!error.matches(PyExc_TypeError))
                throw;
            capsule = x.attr("__dlpack__")();
        }
        if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
            auto *m =
                static_cast<DLManagedTensorVersioned *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
            if (m->version.major != 1)
                throw py::buffer_error("the capsule has another version");
            check(m->dl_tensor, (m->flags & 1) != 0, want);
            PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
            versioned = m;
            tensor = m->dl_tensor;
        }
        else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
            auto *m = static_cast<DLManagedTensor *>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
            check(m->dl_tensor, true, want);
            PyCapsule_SetName(capsule.ptr(), "used_dltensor");
            legacy = m;
            tensor = m->dl_tensor;
        }
        else {
            throw py::type_error("a DLPack capsule was wanted");
        }
    }
    Array(Array &&other) noexcept : tensor(other.tensor), versioned(other.versioned), legacy(other.legacy)
    {
        other.versioned = nullptr;
        other.legacy = nullptr;
    }
    Array(const Array &) = delete;
    ~Array()
    {
        if (versioned != nullptr && versioned->deleter != nullptr)
            versioned->deleter(versioned);
        if (legacy != nullptr && legacy->deleter != nullptr)
            legacy->deleter(legacy);
    }

    DLTensor tensor{};

  private:
    static void check(const DLTensor &t, bool readonly, const Wanted &want)
    {
        std::int64_t step = 1;
        if (t.device.device_type != kDLCPU)
            throw py::buffer_error("the array is on another device");
        if (t.dtype.code != want.code || t.dtype.bits != want.bits || t.dtype.lanes != 1)
            throw py::buffer_error("the array has another dtype");
        if (t.ndim != want.ndim)
            throw py::buffer_error("the array has another rank");
        if (want.writable && readonly)
            throw py::buffer_error("the array is read-only");
        for (int i = t.ndim; i-- > 0; step *= t.shape[i]) {
            if (t.strides != nullptr && t.strides[i] != step && t.shape[i] != 1)
                throw py::buffer_error("the array is not row-major");
        }
    }

    DLManagedTensorVersioned *versioned = nullptr;
    DLManagedTensor *legacy = nullptr;
};

} // namespace by_hand

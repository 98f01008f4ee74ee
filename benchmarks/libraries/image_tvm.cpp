/* image - examples/minimal/image.c by apache-tvm-ffi: Image is an object of tvm-ffi, whose pixels are a Tensor */
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/object.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstdint>
#include <cstdlib>

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

static void
blur_rows(std::uint8_t *pixels, std::int64_t height, std::int64_t width)
{
    for (std::int64_t row = 0; row < height; row++, pixels += width * 3) {
        for (std::int64_t part = 0; part < 3; part++) {
            int left = width > 0 ? pixels[part] : 0;
            for (std::int64_t column = 0; column < width; column++) {
                std::uint8_t *here = &pixels[column * 3 + part];
                const int middle = *here, right = column + 1 < width ? here[3] : middle;
                *here = static_cast<std::uint8_t>((left + middle + right) / 3);
                left = middle;
            }
        }
    }
}

struct Memory {
    void AllocData(DLTensor *t)
    {
        t->data = std::calloc(1, tvm::ffi::GetDataSize(*t));
    }
    void FreeData(DLTensor *t)
    {
        std::free(t->data);
    }
};

class ImageObj : public tvm::ffi::Object {
  public:
    ImageObj(std::int64_t height, std::int64_t width)
        : height(height), width(width),
          pixels(Tensor::FromNDAlloc(Memory(), {height, width, 3}, DLDataType{kDLUInt, 8, 1}, DLDevice{kDLCPU, 0}))
    {
    }
    std::uint8_t *data()
    {
        return static_cast<std::uint8_t *>(pixels.data_ptr());
    }
    void check_writable() const
    {
        TVM_FFI_CHECK(!readonly, ValueError) << "the image is read-only";
    }
    void fill(int red, int green, int blue)
    {
        check_writable();
        for (std::int64_t i = 0; i < height * width; i++) {
            data()[i * 3] = static_cast<std::uint8_t>(red);
            data()[i * 3 + 1] = static_cast<std::uint8_t>(green);
            data()[i * 3 + 2] = static_cast<std::uint8_t>(blue);
        }
    }
    tvm::ffi::Tuple<int, int, int> pixel(std::int64_t row, std::int64_t column)
    {
        TVM_FFI_CHECK(row >= 0 && row < height && column >= 0 && column < width, IndexError)
            << "the image has no such pixel";
        const std::uint8_t *at = data() + (row * width + column) * 3;
        return tvm::ffi::Tuple<int, int, int>(at[0], at[1], at[2]);
    }
    void blur()
    {
        check_writable();
        blur_rows(data(), height, width);
    }
    void freeze()
    {
        readonly = true;
    }

    std::int64_t height, width;
    bool readonly = false;
    Tensor pixels; /* Python exports it: image.pixels.__dlpack__() */
    static constexpr bool _type_mutable = true;
    TVM_FFI_DECLARE_OBJECT_INFO_FINAL("image.Image", ImageObj, tvm::ffi::Object);
};

static std::int64_t
brightness(int red, int green, int blue)
{
    return (red * 299 + green * 587 + blue * 114) / 1000;
}

static void
blur(TensorView t)
{
    TVM_FFI_CHECK(t.dtype().code == kDLUInt && t.dtype().bits == 8 && t.dtype().lanes == 1, TypeError)
        << "uint8 was asked for";
    TVM_FFI_CHECK(t.device().device_type == kDLCPU, ValueError) << "CPU memory was asked for";
    TVM_FFI_CHECK(t.ndim() == 3 && t.size(2) == 3 && t.IsContiguous(), ValueError)
        << "a row-major array of shape (height, width, 3) was asked for";
    blur_rows(static_cast<std::uint8_t *>(t.data_ptr()) + t.byte_offset(), t.size(0), t.size(1));
}

TVM_FFI_STATIC_INIT_BLOCK()
{
    namespace refl = tvm::ffi::reflection;
    refl::ObjectDef<ImageObj>()
        .def(refl::init<std::int64_t, std::int64_t>())
        .def_ro("height", &ImageObj::height)
        .def_ro("width", &ImageObj::width)
        .def_ro("readonly", &ImageObj::readonly)
        .def_ro("pixels", &ImageObj::pixels)
        .def("fill", &ImageObj::fill)
        .def("pixel", &ImageObj::pixel)
        .def("blur", &ImageObj::blur)
        .def("freeze", &ImageObj::freeze);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(brightness, brightness);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(blur, blur);

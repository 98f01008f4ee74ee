/* image - examples/minimal/image.c by pybind11, with DLPack by hand */
#include "pybind11_by_hand.hpp"

#include <cstddef>

namespace py = pybind11;

static void
blur_rows(std::uint8_t *pixels, std::size_t height, std::size_t width)
{
    for (std::size_t row = 0; row < height; row++, pixels += width * 3) {
        for (std::size_t part = 0; part < 3; part++) {
            int left = width > 0 ? pixels[part] : 0;
            for (std::size_t column = 0; column < width; column++) {
                std::uint8_t *here = &pixels[column * 3 + part];
                const int middle = *here, right = column + 1 < width ? here[3] : middle;
                *here = static_cast<std::uint8_t>((left + middle + right) / 3);
                left = middle;
            }
        }
    }
}

struct Image {
    Image(std::size_t height, std::size_t width)
        : height(height), width(width), pixels(std::make_unique<std::uint8_t[]>(height * width * 3))
    {
    }
    void check_writable() const
    {
        if (readonly)
            throw py::value_error("the image is read-only");
    }
    std::size_t height, width;
    std::unique_ptr<std::uint8_t[]> pixels;
    bool readonly = false;
};

PYBIND11_MODULE(image, module)
{
    py::class_<Image>(module, "Image")
        .def(py::init<std::size_t, std::size_t>(), py::arg("height"), py::arg("width"))
        .def("fill",
             [](Image &im, std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
                 im.check_writable();
                 for (std::size_t i = 0; i < im.height * im.width; i++) {
                     im.pixels[i * 3] = red;
                     im.pixels[i * 3 + 1] = green;
                     im.pixels[i * 3 + 2] = blue;
                 }
             })
        .def("pixel",
             [](const Image &im, std::size_t row, std::size_t column) {
                 if (row >= im.height || column >= im.width)
                     throw py::index_error("the image has no such pixel");
                 const std::uint8_t *pixel = &im.pixels[(row * im.width + column) * 3];
                 return py::make_tuple(pixel[0], pixel[1], pixel[2]);
             })
        .def("blur",
             [](Image &im) {
                 im.check_writable();
                 blur_rows(im.pixels.get(), im.height, im.width);
             })
        .def("freeze", [](Image &im) { im.readonly = true; })
        .def(
            "__dlpack__",
            [](py::object self, py::object stream, py::object max_version, py::object dl_device, py::object copy) {
                Image &im = self.cast<Image &>();
                const std::int64_t shape[3] = {std::int64_t(im.height), std::int64_t(im.width), 3};
                const std::int64_t strides[3] = {std::int64_t(im.width) * 3, 3, 1};
                return by_hand::produce(self, im.pixels.get(), {kDLUInt, 8, 1}, 3, shape, strides, im.readonly, stream,
                                        max_version, dl_device, copy);
            },
            py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
            py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
        .def("__dlpack_device__", [](const Image &) { return py::make_tuple(int(kDLCPU), 0); })
        .def_readonly("height", &Image::height)
        .def_readonly("width", &Image::width)
        .def_readonly("readonly", &Image::readonly);
    module.def("brightness", [](std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
        return (red * 299 + green * 587 + blue * 114) / 1000;
    });
    module.def("blur", [](py::object x) {
        by_hand::Array a(x, {kDLUInt, 8, 3, true});
        if (a.tensor.shape[2] != 3)
            throw py::buffer_error("an array of shape (height, width, 3) was wanted");
        blur_rows(static_cast<std::uint8_t *>(a.tensor.data) + a.tensor.byte_offset, std::size_t(a.tensor.shape[0]),
                  std::size_t(a.tensor.shape[1]));
    });
}

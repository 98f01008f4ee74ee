/* image - examples/minimal/image.c by nanobind */
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>

namespace nb = nanobind;

using Rgb = nb::ndarray<std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;

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
            throw nb::value_error("the image is read-only");
    }
    std::size_t height, width;
    std::unique_ptr<std::uint8_t[]> pixels;
    bool readonly = false;
};

/* A capsule, made by an ndarray that lives for the call. */
static nb::object
image_dlpack(nb::handle self, nb::kwargs keywords)
{
    Image &im = nb::cast<Image &>(self);
    nb::object array;
    if (im.readonly)
        array =
            nb::cast(nb::ndarray<nb::array_api, const std::uint8_t>(im.pixels.get(), {im.height, im.width, 3}, self));
    else
        array = nb::cast(nb::ndarray<nb::array_api, std::uint8_t>(im.pixels.get(), {im.height, im.width, 3}, self));
    return array.attr("__dlpack__")(**keywords);
}

NB_MODULE(image, module)
{
    nb::class_<Image>(module, "Image")
        .def(nb::init<std::size_t, std::size_t>(), nb::arg("height"), nb::arg("width"))
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
                     throw nb::index_error("the image has no such pixel");
                 const std::uint8_t *pixel = &im.pixels[(row * im.width + column) * 3];
                 return nb::make_tuple(pixel[0], pixel[1], pixel[2]);
             })
        .def("blur",
             [](Image &im) {
                 im.check_writable();
                 blur_rows(im.pixels.get(), im.height, im.width);
             })
        .def("freeze", [](Image &im) { im.readonly = true; })
        .def("__dlpack__", image_dlpack)
        .def("__dlpack_device__", [](const Image &) { return nb::make_tuple(1, 0); })
        .def_ro("height", &Image::height)
        .def_ro("width", &Image::width)
        .def_ro("readonly", &Image::readonly);
    module.def("brightness", [](std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
        return (red * 299 + green * 587 + blue * 114) / 1000;
    });
    module.def(
        "blur", [](Rgb array) { blur_rows(array.data(), array.shape(0), array.shape(1)); }, nb::arg().noconvert());
}

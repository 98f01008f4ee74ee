"""Exchanges arrays between NumPy and two extensions, without a copy.

dlarray (ndarray/dlarray.c) is a small array library. image (minimal/image.c) is an image type, with a few lines for
DLPack. The program checks every line before it prints the line. If a line is false, the program prints NOT SO, and
fails at the end.
"""

import sys

import dlarray
import image
import numpy as np

wrong = []


def title(text):
    print(f"\n{text}")


def say(text, is_so):
    print(f"  {text}" if is_so else f"  NOT SO: {text}")
    if not is_so:
        wrong.append(text)


def say_refused(text, error, action, *arguments):
    """Prints how the action fails. The action must fail with this type of error."""
    try:
        action(*arguments)
    except error as refusal:
        say(f"{text}: {type(refusal).__name__}: {refusal}", True)
    else:
        say(f"{text}: refused", False)


def the_same_memory():
    title("NumPy -> dlarray")
    x = np.arange(12, dtype="float32").reshape(3, 4)
    a = dlarray.from_dlpack(x)
    say(f"NumPy's array is at   {x.ctypes.data:#x}", x.ctypes.data != 0)
    say(f"dlarray's array is at {a.data_ptr:#x}: the same memory", a.data_ptr == x.ctypes.data)
    say(f"shape {a.shape}, dtype {a.dtype}", (a.shape, a.dtype) == (x.shape, str(x.dtype)))
    columns = dlarray.from_dlpack(x.T[::2])
    say(f"transposed, every other row: strides {columns.strides}, the same memory", columns.data_ptr == a.data_ptr)
    x[2, 3] = -1
    say(f"NumPy writes -1, dlarray reads {a[2, 3]:g}", a[2, 3] == -1)
    del x
    say(f"NumPy's array has no name any more, dlarray still reads {a[2, 3]:g}", a[2, 3] == -1)

    title("dlarray -> NumPy")
    b = dlarray.arange(6).reshape(2, 3)
    y = np.from_dlpack(b)
    say(f"dlarray's array is at {b.data_ptr:#x}", b.data_ptr != 0)
    say(f"NumPy's array is at   {y.ctypes.data:#x}: the same memory", y.ctypes.data == b.data_ptr)
    b[1] = 7
    say(f"dlarray writes 7s, NumPy reads {y.tolist()}", y.tolist() == [[0, 1, 2], [7, 7, 7]])

    title("image -> NumPy and dlarray")
    picture = image.Image(2, 3)
    pixels = np.from_dlpack(picture)
    say(f"an image of 2 by 3 pixels is an array of shape {pixels.shape}", pixels.shape == (2, 3, 3))
    picture.fill(30, 60, 90)
    say(f"the image is filled, NumPy reads {pixels[1, 2].tolist()}", pixels[1, 2].tolist() == [30, 60, 90])
    say("dlarray sees the same memory", dlarray.from_dlpack(picture).data_ptr == pixels.ctypes.data)


def writing():
    title("Who receives an array may write to it")
    x = np.zeros(3)
    dlarray.from_dlpack(x)[1] = 42
    say(f"dlarray writes 42, NumPy reads {x.tolist()}", x.tolist() == [0, 42, 0])
    b = dlarray.arange(3)
    np.multiply(np.from_dlpack(b), 10, out=np.from_dlpack(b))
    say(f"NumPy multiplies by 10, dlarray reads {b.tolist()}", b.tolist() == [0, 10, 20])
    back = dlarray.from_dlpack(np.from_dlpack(b))
    say("from dlarray to NumPy and back: the same memory", back.data_ptr == b.data_ptr)
    picture = image.Image(1, 3)
    pixels = np.from_dlpack(picture)
    pixels[0, 1] = (30, 60, 90)
    say(f"NumPy paints a pixel, the image has {picture.pixel(0, 1)}", picture.pixel(0, 1) == (30, 60, 90))
    image.blur(pixels)
    say(f"image.blur works on NumPy's array: {pixels[0, 0].tolist()}", pixels[0, 0].tolist() == [10, 20, 30])
    ours = dlarray.array([[[0, 0, 0], [30, 60, 90]]], "uint8")
    image.blur(ours)
    say(f"and on dlarray's: {ours.tolist()[0]}", ours.tolist() == [[[10, 20, 30], [20, 40, 60]]])

    title("Read-only stays read-only")
    constant = np.arange(3)
    constant.flags.writeable = False
    c = dlarray.from_dlpack(constant)
    say("NumPy's read-only array is read-only in dlarray", c.readonly and c.data_ptr == constant.ctypes.data)
    say_refused("writing to it", ValueError, c.__setitem__, 0, 1)
    picture.freeze()
    frozen = np.from_dlpack(picture)
    say("a frozen image is a read-only array in NumPy", not frozen.flags.writeable)
    say_refused("writing to it", ValueError, frozen.fill, 0)
    say_refused("blurring the frozen image", BufferError, image.blur, picture)


def refusals():
    title("What cannot be taken is refused, and the error says why")
    say_refused("dates", BufferError, dlarray.from_dlpack, np.zeros(3, "datetime64[s]"))
    say_refused("another byte order", BufferError, dlarray.from_dlpack, np.zeros(3, np.dtype("f4").newbyteorder()))
    say_refused("another device", BufferError, lambda: dlarray.from_dlpack(dlarray.zeros(3), device=(2, 0)))
    say_refused("blurring what are no bytes", BufferError, image.blur, np.zeros((2, 3, 3), "float32"))
    say_refused("blurring gray pixels", BufferError, image.blur, np.zeros((2, 3), "uint8"))
    say_refused("blurring upside down", BufferError, image.blur, np.zeros((2, 3, 3), "uint8")[::-1])


def copies():
    title("A copy is made where one is asked for")
    b = dlarray.arange(3)
    d = dlarray.from_dlpack(b, copy=True)
    d[:] = 0
    say(f"copy=True: new memory, the source keeps {b.tolist()}", d.data_ptr != b.data_ptr and b.tolist() == [0, 1, 2])


def main():
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}")
    the_same_memory()
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1):
        writing()
    else:
        title("NumPy before 2.1 cannot say whether its memory may be written")
        say("so what comes from it is read-only", dlarray.from_dlpack(np.zeros(1)).readonly)
    refusals()
    copies()
    print(f"\n{len(wrong)} of these lines are NOT SO." if wrong else "\nEvery line was checked.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

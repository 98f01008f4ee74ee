"""Finds an NVIDIA GPU and the version of CUDA of its driver. As a program: prints 12 or 13, or what is missing."""

import ctypes
import sys


class NoGpu(Exception):
    pass


def devices_and_version():
    """The number of GPUs, and the newest version of CUDA that the driver runs, as (13, 0)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise NoGpu("no NVIDIA driver: no libcuda.so.1") from None
    version, count = ctypes.c_int(), ctypes.c_int()
    for function, *arguments in (
        ("cuInit", 0),
        ("cuDriverGetVersion", ctypes.byref(version)),
        ("cuDeviceGetCount", ctypes.byref(count)),
    ):
        error = getattr(driver, function)(*arguments)
        if error != 0:
            raise NoGpu(f"the NVIDIA driver finds no GPU ({function} fails with {error})")
    if count.value == 0:
        raise NoGpu("the NVIDIA driver finds no GPU")
    if version.value < 12000:
        raise NoGpu(f"the NVIDIA driver runs CUDA {version.value // 1000}, which is older than 12")
    return count.value, (version.value // 1000, version.value % 1000 // 10)


if __name__ == "__main__":
    try:
        print(min(devices_and_version()[1][0], 13))
    except NoGpu as reason:
        sys.exit(str(reason))

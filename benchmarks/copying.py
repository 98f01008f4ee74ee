"""Times strided copies: memcpy, NumPy, PyTorch, the loops of dlpack_py.h, and dlpack_copy.h. Run by `make bench-copy`.

All copies run in one process and on one core, in turns. On x86, large memory is removed from the cache before each
copy: else the figure would depend on what another copy left there. A figure is the best of many. Rows are measured
again, later, if memcpy was slower than in rows of like size: then something else used the memory. Writes the figures to
a JSON file, and the tables and the chart of docs/copying.md.
"""

import ctypes
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from dltensor import CPU, DataType, Device, Tensor  # noqa: E402

try:
    import torch

    torch.set_num_threads(1)
except ImportError:
    torch = None

SECONDS = float(os.environ.get("DLPACK_PY_BENCH_SECONDS", "0.5"))  # the time for a row in a round
ROUNDS = 3
F32, U8, F64 = np.dtype("f4"), np.dtype("u1"), np.dtype("f8")


def array(dtype, *shape):
    return np.resize(np.arange(251, dtype=np.uint8), np.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def transposed(dtype, *shape):
    return lambda: array(dtype, *shape).T


def permuted(dtype, shape, order):
    return lambda: array(dtype, *shape).transpose(order)


def sliced(dtype, shape, *slices):
    return lambda: array(dtype, *shape)[slices]


def repeated(dtype, count, shape):
    items = array(dtype, *count)
    return lambda: np.lib.stride_tricks.as_strided(items, shape, np.broadcast_to(items, shape).strides)


def windows(dtype, count, length):
    """All windows of an array that begin at one of `count` items."""
    return lambda: np.lib.stride_tricks.sliding_window_view(array(dtype, count + length - 1), length, writeable=True)


EVEN, BACK, CROP = slice(None, None, 2), slice(None, None, -1), slice(100, -100)
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # the axes of images, with the channels last or first
LARGE = {
    "float32 256² transposed (in cache)": transposed(F32, 256, 256),
    "uint8 256² transposed (in cache)": transposed(U8, 256, 256),
    "float32 4096² transposed": transposed(F32, 4096, 4096),
    "float32 4097² transposed": transposed(F32, 4097, 4097),
    "uint8 4096² transposed": transposed(U8, 4096, 4096),
    "uint8 4097² transposed": transposed(U8, 4097, 4097),
    "float64 2048² transposed": transposed(F64, 2048, 2048),
    "float32 NCHW to NHWC, 8×64×112×112": permuted(F32, (8, 64, 112, 112), TO_LAST),
    "float32 NHWC to NCHW": permuted(F32, (8, 112, 112, 64), TO_FIRST),
    "uint8 RGB planes to pixels, 8×3×512×512": permuted(U8, (8, 3, 512, 512), TO_LAST),
    "uint8 RGB pixels to planes": permuted(U8, (8, 512, 512, 3), TO_FIRST),
    "float32 RGB planes to pixels, 8×3×512×512": permuted(F32, (8, 3, 512, 512), TO_LAST),
    "float32 RGB pixels to planes": permuted(F32, (8, 512, 512, 3), TO_FIRST),
    "uint8 RGBA planes to pixels, 8×4×512×512": permuted(U8, (8, 4, 512, 512), TO_LAST),
    "uint8 RGBA pixels to planes": permuted(U8, (8, 512, 512, 4), TO_FIRST),
    "float32 two planes to pairs": transposed(F32, 2, 2**22),
    "float32 pairs to two planes": transposed(F32, 2**22, 2),
    "float64 three planes to pixels, 8×3×512×512": permuted(F64, (8, 3, 512, 512), TO_LAST),
    "float32 step 2": sliced(F32, (2**25,), EVEN),
    "uint8 step 2": sliced(U8, (2**26,), EVEN),
    "float32 step 2 (in cache)": sliced(F32, (2**14,), EVEN),
    "uint8 step 2 (in cache)": sliced(U8, (2**16,), EVEN),
    "float32 reversed": sliced(F32, (2**24,), BACK),
    "uint8 reversed": sliced(U8, (2**25,), BACK),
    "float32 reversed (in cache)": sliced(F32, (2**13,), BACK),
    "uint8 reversed (in cache)": sliced(U8, (2**15,), BACK),
    "uint8 one item repeated 2²⁴ times": repeated(U8, (1,), (2**24,)),
    "uint8 one item repeated 2¹⁶ times (in cache)": repeated(U8, (1,), (2**16,)),
    "float32 4096² from a column": repeated(F32, (4096, 1), (4096, 4096)),
    "float32 4096² from a row": repeated(F32, (1, 4096), (4096, 4096)),
    "float32 2¹⁸ windows of 64": windows(F32, 2**18, 64),
    "float32 192×256×320 (2, 0, 1)": permuted(F32, (192, 256, 320), (2, 0, 1)),
    "float32 192×256×320 (1, 0, 2)": permuted(F32, (192, 256, 320), (1, 0, 2)),
    "float32 192×256×320 (0, 2, 1)": permuted(F32, (192, 256, 320), (0, 2, 1)),
    "float32 192×256×320 (2, 1, 0)": permuted(F32, (192, 256, 320), (2, 1, 0)),
    "uint8 192×256×320 (2, 1, 0)": permuted(U8, (192, 256, 320), (2, 1, 0)),
    "float32 4096², every second row": sliced(F32, (8192, 4096), EVEN),
    "float32 4096², crop": sliced(F32, (4096, 4096), CROP, CROP),
    "float32 4096² contiguous": sliced(F32, (4096, 4096)),
}
SMALL = {
    "float64 (3, 4) contiguous": sliced(F64, (3, 4)),
    "float64 (3, 4) transposed": transposed(F64, 4, 3),
    "float32 (16, 16) transposed": transposed(F32, 16, 16),
    "float32 (32, 32) transposed": transposed(F32, 32, 32),
    "float32 1000, step 2": sliced(F32, (2000,), EVEN),
    "uint8 (4, 4, 4) transposed": transposed(U8, 4, 4, 4),
}
WHOLE = {
    name: LARGE[name]
    for name in LARGE
    if re.search(r"(256|4096)² transposed|NCHW to|step 2$|reversed$|RGB pixels|4096² contig", name)
}
NAMES = ["memcpy", "NumPy", "PyTorch", "loops", "dlpack_copy.h"]


def library(name):
    (path,) = Path(os.environ["DLPACK_PY_BUILD_DIR"]).glob(f"*{name}.*")
    found = ctypes.CDLL(str(path))
    found.time_copy.restype = found.time_memcpy.restype = ctypes.c_double
    found.time_copy.argtypes = [ctypes.POINTER(Tensor)] * 2 + [ctypes.c_int64]
    found.time_memcpy.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 2
    found.flush.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    found.flush.restype = None
    return found


def described(x):
    """A DLTensor. It uses its numbers as long as it lives."""
    numbers = ctypes.c_int64 * x.ndim
    t = Tensor()
    t.data, t.device, t.ndim, t.byte_offset = x.ctypes.data, Device(*CPU), x.ndim, 0
    t.dtype = DataType({"f": 2, "u": 1}[x.dtype.kind], 8 * x.itemsize, 1)
    t.shape, t.strides = numbers(*x.shape), numbers(*(step // x.itemsize for step in x.strides))
    return t


def timed(function, calls):
    """For a function of Python: a function that returns the nanoseconds of a call."""

    def run():
        begin = time.perf_counter_ns()
        for _ in range(calls):
            function()
        return (time.perf_counter_ns() - begin) / calls

    return run


def copies(src, libraries):
    """The copies of an array, {name: function that returns nanoseconds}; each has given the right result once."""
    loops, fast = libraries
    dst, whole = np.zeros(src.shape, src.dtype), src
    while whole.base is not None:
        whole = whole.base
    if whole.nbytes < src.nbytes:  # src repeats its items: memcpy reads other memory
        whole = np.ones_like(dst)
    to, from_ = described(dst), described(src)
    calls = max(1, min(20000, 2000000 // (src.nbytes + 50)))
    functions = {
        "memcpy": lambda: fast.time_memcpy(dst.ctypes.data, whole.ctypes.data, src.nbytes, calls),
        "NumPy": timed(lambda: np.copyto(dst, src), calls),
        "loops": lambda: loops.time_copy(to, from_, calls),
        "dlpack_copy.h": lambda: fast.time_copy(to, from_, calls),
    }
    if torch and min(src.strides) >= 0:
        target, source = torch.from_numpy(dst), torch.from_numpy(src)
        functions["PyTorch"] = timed(lambda: target.copy_(source), calls)
    for name, function in functions.items():
        dst[...] = 0
        function()
        assert name == "memcpy" or np.array_equal(dst, src), name

    def out_of_cache(function):
        def run():
            for x in (dst, whole):
                fast.flush(x.ctypes.data, x.nbytes)
            return function()

        return run

    return {name: out_of_cache(function) if calls == 1 else function for name, function in functions.items()}


def wholes(src, _):
    """Copies into new memory: what a user calls."""
    import dlarray

    ours = dlarray.from_dlpack(src)
    calls = max(1, 2000000 // src.nbytes)
    return {
        'np.copy(x, order="C")': timed(lambda: np.copy(src, order="C"), calls),
        "dlarray.copy()": timed(ours.copy, calls),
        "dlarray.from_dlpack(copy=True)": timed(lambda: dlarray.from_dlpack(ours, copy=True), calls),
    }


def measure(functions, best):
    end, rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < end or rounds < 3:
        for name, function in functions.items():
            best[name] = min(best.get(name, float("inf")), function(), function())
        rounds += 1


def run(rows, make, *arguments):
    """{row: (bytes, {name: nanoseconds})}"""
    figures = {name: {} for name in rows}
    sizes = {}

    def again(names):
        for name in names:
            src = rows[name]()
            sizes[name] = src.nbytes
            measure(make(src, *arguments), figures[name])
            print(f"{name}: {figures[name]}", file=sys.stderr)

    def is_disturbed(name):
        speed = {n: sizes[n] / figures[n]["memcpy"] for n in rows if "memcpy" in figures[n] and sizes[n] > 4000000}
        return name in speed and speed[name] < 0.85 * max(speed.values())

    for _ in range(ROUNDS):
        again(rows)
    for _ in range(ROUNDS):
        again(name for name in rows if is_disturbed(name))
    return {name: (sizes[name], figures[name]) for name in rows}


def table(head, lines):
    rows = ["| " + " | ".join(line) + " |" for line in [head, ["---"] + ["---:"] * (len(head) - 1), *lines]]
    return "\n".join(rows) + "\n"


def text(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def speeds(size, best):
    """In GB/s, read and written."""
    return [2 * size / best[name] if name in best else None for name in NAMES]


def environment():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    compiler = subprocess.run([os.environ.get("CC", "cc"), "--version"], capture_output=True, text=True).stdout
    versions = f"NumPy {np.__version__}, " + (f"PyTorch {torch.__version__}" if torch else "without PyTorch")
    return f"{cpu[1] if cpu else platform.machine()}, {compiler.splitlines()[0]} -O2, {versions}"


def document(large, small, whole):
    lines, behind = [], []
    for name, (size, best) in large.items():
        memcpy, *others = speeds(size, best)
        faster = max(speed for speed in others[:2] if speed)
        ratios = [f"{others[3] / memcpy:.2f}", f"{others[3] / faster:.1f}"]
        lines.append([name, *(text(speed, 1) for speed in (memcpy, *others)), *ratios])
        if others[3] < 0.97 * faster:
            behind.append(f"{name} ({100 - 100 * others[3] / faster:.0f} %)")
    in_ns = [[name, *(text(best.get(n), 0) for n in NAMES)] for name, (_, best) in small.items()]
    calls = next(iter(whole.values()))[1]
    in_us = [[name, *(text(best[call] / 1e3, 1) for call in calls)] for name, (_, best) in whole.items()]
    return f"""# Copying

```c
#include <Python.h>
#include "dlpack_copy.h" /* before dlpack_py.h, whose copies are faster then */
#include "dlpack_py.h"

dlpack_py_error error;
if (dlpack_py_copy(&to.tensor, &from.tensor, from.flags, &error) < 0) /* two views, any strides */
    dlpack_py_raise(&error); /* nothing was written */
```

What one thread copies, in GB/s, bytes read and bytes written together. Written by `make bench-copy`; the figures of
another machine differ. Each row copies to a contiguous array. Before each copy both arrays are removed from the cache
(on x86), but for the rows "in cache". "loops" is what `dlpack_py.h` does alone. In the last two columns `dlpack_copy.h`
is compared with memcpy of as many bytes in the same memory, and with the faster of NumPy and PyTorch.

{environment()}

![What part of memcpy's speed each copy reaches](copying.svg)

{table(["", *NAMES, "of memcpy", "of the faster"], lines)}
`dlpack_copy.h` is slower than the faster of NumPy and PyTorch, by more than 3 %, in: {"; ".join(behind) or "no row"}.

Small arrays, in nanoseconds. NumPy and PyTorch are called from Python, the others from C. `dlpack_py_copy` first looks
whether the tensors may share memory, which takes about 20 of them; copies into new memory need not.

{table(["", *NAMES], in_ns)}
Copies into new memory, called from Python, in microseconds. `dlarray` (`examples/ndarray`) includes `dlpack_copy.h`.
The system maps large new memory page by page when it is written, which costs more than the copy. NumPy and `dlarray`
(by `DLPACK_PY_MALLOC`) ask for huge pages, which are mapped faster; with plain malloc these copies take about twice as
long.

{table(["x", *calls], in_us)}"""


COLOURS = {"NumPy": "#9db8d2", "PyTorch": "#e0a458", "loops": "#7a8b99", "dlpack_copy.h": "#c0392b"}


def chart(large):
    left, width, bar = 330, 520, 7
    row = bar * len(COLOURS) + 9
    height = 60 + row * len(large)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 60} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    ]
    for i, (name, colour) in enumerate(COLOURS.items()):
        x = left + 125 * i
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="22">{name}</text>')
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = left + width * share
        parts.append(f'<line x1="{x}" y1="48" x2="{x}" y2="{height - 5}" stroke="#ccc"/>')
        label = "memcpy" if share == 1 else f"{share:g}"
        parts.append(f'<text x="{x}" y="43" text-anchor="middle" fill="#555">{label}</text>')
    for i, (name, (size, best)) in enumerate(large.items()):
        y = 54 + row * i
        parts.append(f'<text x="{left - 8}" y="{y + row / 2 + 2}" text-anchor="end">{name}</text>')
        memcpy, *others = speeds(size, best)
        for k, (speed, colour) in enumerate(zip(others, COLOURS.values())):
            if speed:
                place = f'x="{left}" y="{y + bar * k}" width="{min(speed / memcpy, 1.08) * width:.1f}"'
                parts.append(f'<rect {place} height="{bar - 1}" fill="{colour}"/>')
    return "\n".join([*parts, "</svg>", ""])


def main(figures, folder):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    libraries = library("copy_loops"), library("copy_fast")
    large, small = run(LARGE, copies, libraries), run(SMALL, copies, libraries)
    whole = run(WHOLE, wholes, None)
    results = {"machine": environment(), "large": large, "small": small, "whole": whole}
    Path(figures).write_text(json.dumps(results, indent=1))
    Path(folder, "copying.svg").write_text(chart(large))
    Path(folder, "copying.md").write_text(document(large, small, whole))
    print(document(large, small, whole))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Exchanges arrays of one library with dlarray: `exchanges.py LIBRARY [CELL ...]` prints each cell and its outcome.

A cell is "DIRECTION: ROW". An outcome is one of the following kinds and, for some kinds, a text:

exchanged             memory, values, shape, strides and dtype are equal; both sides see what the other side writes
exchanged, writable   as exchanged, without the read-only flag; "exchanged, read-only": with that flag added;
                      "exchanged, not copied": although copy=True was asked for
copied                values, shape and dtype are equal; "copied as DTYPE": the values are equal, in another dtype
unreadable            the consumer took the array, but cannot read it; the text is the error
refused by NAME       the library NAME raised an exception; the text is its type and message
none                  the producer has no such array, or its type has no exchange table
used, not used        the exchange table of the producer's type
ends the process      a signal ended the process; the text is its name and message
WRONG                 anything else

A library may end the process: run() then starts a new process for the remaining cells.
"""

import ctypes
import json
import math
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import array_libraries
import dltensor

# ---- What is exchanged ----


def vector(lib, dtype="float32", n=6):
    kind = {"b": bool, "f": float, "c": complex}.get(dtype[0], int)
    return lib.array([kind(i * 7 % 5) for i in range(n)], dtype)


def matrix(lib, dtype="float32"):
    return lib.array([[float(10 * i + j) for j in range(4)] for i in range(3)], dtype)


def stored(lib, dtype):
    """Four elements of a dtype that not every library knows."""
    if lib.name in ("dlarray", "tvm_ffi"):  # these libraries make no arrays of such dtypes from values
        return lib.from_dlpack(dltensor.Producer(dtype=array_libraries.STORAGE[dtype], shape=(4,)))
    return lib.array([0.5, 1.0, 2.0, 4.0], dtype)


def extent_of_1(lib):
    """An array with an extent of 1 whose stride is not that of a compact array."""
    if lib.name == "dlarray":
        return lib.from_dlpack(dltensor.Producer(dtype="float32", shape=(1, 3), strides=(77, 1)))
    return lib.transpose(matrix(lib)[1:2, :])


def nested(rank):
    return 7.0 if rank == 0 else [nested(rank - 1)]


def writable(lib):
    a = vector(lib)
    lib.write(a, 3)
    return a


def readonly(lib):
    a = vector(lib)
    if not lib.readonly(a):
        lib.set_readonly(a)
    return a


def content(lib, a, dtype):
    """The content of an array to compare: the values, or for storage-only dtypes the bytes."""
    if dtype not in array_libraries.STORAGE:
        return lib.values(a)
    _, bits, lanes = array_libraries.STORAGE[dtype]
    return ctypes.string_at(lib.pointer(a), (math.prod(lib.shape(a)) * bits * lanes + 7) // 8)


def steps(lib, a):
    """The strides that have a meaning (D5)."""
    return [stride for extent, stride in zip(lib.shape(a), lib.strides(a)) if extent > 1]


# ---- What happens ----


def words(error):
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    text = re.sub(r" \(at /.*", "", re.sub(r"0x[0-9a-f]+", "0x…", text))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def who(source, target, a, error):
    """The name of the library that raised the error: the source, if it raises the error without the target too."""
    for keywords in (
        {"max_version": max_version, **more}
        for max_version in (None, (1, 3))
        for more in ({}, {"copy": True}, {"copy": False}, {"dl_device": dltensor.CPU}, {"stream": None})
    ):
        try:
            a.__dlpack__(**{keyword: value for keyword, value in keywords.items() if value is not None})
        except Exception as own:
            if words(own) == words(error):
                return source.name
    return target.name


def compare(source, a, target, b):
    """Is b what a is? Returns the kind."""
    dtype = source.dtype(a)
    if target.shape(b) != source.shape(a):
        return "WRONG", f"shape is {target.shape(b)}, not {source.shape(a)}"
    try:
        values = content(target, b, dtype)
    except Exception as error:
        return "unreadable", words(error)
    if values != content(source, a, dtype):
        return "WRONG", "other values"
    moved = 0 not in source.shape(a) and source.pointer(a) != target.pointer(b)
    if target.dtype(b) != dtype:
        return f"copied as {target.dtype(b)}" if moved else "WRONG", None
    if moved or 0 in source.shape(a):
        return "copied" if moved else "exchanged", None
    if steps(source, a) != steps(target, b):
        return "WRONG", f"strides are {target.strides(b)}, not {source.strides(a)}"
    if dtype in array_libraries.STORAGE or 0 in steps(source, a):  # PyTorch does not write to repeated elements
        return "exchanged", None
    for lib, array, value in ((source, a, 1), (target, b, 0)):
        if not lib.readonly(array):
            before = content(lib, array, dtype)
            lib.write(array, value)
            if not before != content(source, a, dtype) == content(target, b, dtype):
                return "WRONG", f"what {lib.name} writes is not seen"
    return "exchanged", None


def taken(source, target, a, **keywords):
    """(the array that target makes of a, None), or (None, the refusal with the library's name and error)."""
    try:
        return target.from_dlpack(a, **keywords), None
    except Exception as error:
        return None, (f"refused by {who(source, target, a, error)}", words(error))


def exchange(source, target, a, **keywords):
    b, refused = taken(source, target, a, **keywords)
    return refused or compare(source, a, target, b)


def exchange_dtype(source, target, a, dtype):
    if source.dtype(a) != dtype:
        return "none", None  # the library chose a different dtype
    return exchange(source, target, a)


def exchange_strided(source, target, a):
    if source.strides(a) == dltensor.compact(source.shape(a)):
        return "none", None  # the library made a compact array
    return exchange(source, target, a)


def exchange_flagged(source, target, a):
    """Compares the read-only flag before and after the exchange."""
    b, refused = taken(source, target, a)
    kind = refused or compare(source, a, target, b)
    if kind[0] == "exchanged" and target.readonly(b) != source.readonly(a):
        return "exchanged, " + ("read-only" if target.readonly(b) else "writable"), None
    return kind


def exchange_copy(source, target, a):
    kind = exchange(source, target, a, copy=True)
    return ("exchanged, not copied", None) if kind[0] == "exchanged" else kind


def exchange_back(source, target, a):
    """There and back: compares the result with the original array."""
    b, refused = taken(source, target, a)
    if refused:
        return refused
    c, refused = taken(target, source, b)
    return refused or compare(source, a, source, c)


# ---- The exchange API: X ----

TABLE = "__dlpack_c_exchange_api__"


class ExchangeTable(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("managed_tensor_allocator", ctypes.c_void_p),
        ("managed_tensor_from_py_object_no_sync", ctypes.c_void_p),
        ("managed_tensor_to_py_object_no_sync", ctypes.c_void_p),
        ("dltensor_from_py_object_no_sync", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    ]


FROM_PY_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@contextmanager
def counted(kind):
    """Counts the successful calls of the export functions of a type's table, while the context is active.

    The table may lie in constant memory.
    """
    start, calls, kept = dltensor.address(getattr(kind, TABLE)), [], []
    table = ExchangeTable.from_buffer_copy(ctypes.string_at(start, ctypes.sizeof(ExchangeTable)))

    def counting(address):
        function = FROM_PY_OBJECT(address)
        kept.append(FROM_PY_OBJECT(lambda *arguments: (calls.append(function), function(*arguments))[1]))
        return ctypes.cast(kept[-1], ctypes.c_void_p).value

    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for field in ("managed_tensor_from_py_object_no_sync", "dltensor_from_py_object_no_sync"):
            memory.seek(start + getattr(ExchangeTable, field).offset)
            memory.write(ctypes.c_void_p(counting(getattr(table, field))))
        yield calls
        memory.seek(start)
        memory.write(table)


def exchange_by_table(source, target, a):
    """Whether the target uses the table of the source's type or __dlpack__."""
    if not hasattr(type(a), TABLE):
        return "none", None
    with counted(type(a)) as calls:
        kind = exchange(source, target, a)
    return ("used" if calls else "not used", None) if kind[0] in ("exchanged", "copied") else kind


# ---- All cells ----


def dtype_row(make, dtype):
    return lambda lib: make(lib, dtype), lambda source, target, a: exchange_dtype(source, target, a, dtype)


# For each row the function that makes the array, and the function that exchanges it.
ROWS = {
    **{dtype: dtype_row(vector, dtype) for dtype in dltensor.ARRAY_API_DTYPES},
    **{dtype: dtype_row(stored, dtype) for dtype in array_libraries.STORAGE},
    "C order": (matrix, exchange),
    "F order": (lambda lib: lib.transpose(matrix(lib)), exchange_strided),
    "a slice": (lambda lib: vector(lib)[2:5], exchange),
    "steps": (lambda lib: matrix(lib)[::2, ::2], exchange_strided),
    "negative steps": (lambda lib: matrix(lib)[::-1, :], exchange_strided),
    "broadcast": (lambda lib: lib.broadcast_to(vector(lib), (2, 6)), exchange_strided),
    "odd stride of an extent of 1": (extent_of_1, exchange_strided),
    **{f"rank {n}": (lambda lib, n=n: lib.array(nested(n), "float32"), exchange) for n in (0, 8, 32, 64)},
    "empty vector": (lambda lib: lib.array([], "float32"), exchange),
    "empty matrix": (lambda lib: lib.array([[], [], []], "float32"), exchange),
    "writable": (writable, exchange_flagged),
    "read-only": (readonly, exchange_flagged),
    "copy=True": (vector, exchange_copy),
    "copy=False": (vector, lambda source, target, a: exchange(source, target, a, copy=False)),
    "device=": (vector, lambda source, target, a: exchange(source, target, a, device=target.device)),
    "there and back": (vector, exchange_back),
    "exchange API": (vector, exchange_by_table),
}
DIRECTIONS = ("to dlarray", "from dlarray")
CELLS = [f"{direction}: {row}" for direction in DIRECTIONS for row in ROWS]


def outcome(library, cell):
    direction, _, row = cell.partition(": ")
    source, target = library, array_libraries.dlarray()
    if direction == "from dlarray":
        source, target = target, source
    make, cell = ROWS[row]
    try:
        a = source.make(make) if hasattr(source, "make") else make(source)
    except Exception:
        return "none", None
    return cell(source, target, a)


def main(name, cells):
    library = array_libraries.LIBRARIES[name][0]()
    for cell in cells:
        print(cell, flush=True)
        print(json.dumps(outcome(library, cell)), flush=True)


def run(name):
    """The outcome of each cell, by name."""
    outcomes = {}
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(sys.path)}
    while len(outcomes) < len(CELLS):
        command = [sys.executable, __file__, name, *(cell for cell in CELLS if cell not in outcomes)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        lines = done.stdout.splitlines()
        outcomes.update(zip(lines[0::2], map(json.loads, lines[1::2])))
        if done.returncode < 0 and len(lines) % 2 == 1:
            said = re.findall(r"what\(\): *(.*)", done.stderr)
            ended = signal.Signals(-done.returncode).name
            outcomes[lines[-1]] = ["ends the process", ": ".join([ended, *said[:1]])]
        elif done.returncode != 0:
            raise RuntimeError(done.stderr)
    return outcomes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or CELLS)

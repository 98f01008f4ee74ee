"""The calls that are counted and timed: the rows of docs/performance.md, and the lines of its chart.

A row is the same work by each library. Each library consumes and returns arrays of its own type ("own"): Own, Plain and
Simple of calls.c, Array of examples/by_hand, nanobind's ndarray, tvm_ffi.Tensor, and Own of calls_pybind11.cpp. tvm-ffi
has no own array with a table or a capsule only: there it takes those of calls.c.
"""

import importlib
import importlib.util
import sys
from dataclasses import dataclass, field

COLUMNS = {
    "ours": "dlpack_py",
    "by_hand": "by hand",
    "nanobind": "nanobind",
    "tvm": "tvm-ffi",
    "pybind11": "pybind11 by hand",
    "itself": "NumPy, PyTorch",
}


@dataclass
class Call:
    """A call of the loop. target: a callable, or the name of a method of the first argument."""

    target: object
    arguments: tuple = ()
    keywords: dict = field(default_factory=dict)
    fails: bool = False

    def __call__(self, function, count):
        return function(count, self.fails, self.target, *self.arguments, **self.keywords)


# The rows: (name, what the libraries do and do not do). The last row is a call in a process that has made no other.
ROWS = {
    "f(own), exchange table, borrowed": "tvm-ffi: Own of calls.c. The others have no exchange table.",
    "f(own), exchange table, owned": "As above, with a reference to the array; tvm-ffi makes a Tensor.",
    "f(own), capsule": "The managed tensors are part of the object: only the capsule is allocated. By hand: they are "
    "shared, also with what the consumer makes; nanobind: its ndarray object; tvm-ffi: Plain of calls.c; pybind11: "
    "allocates each export.",
    "f(own), capsule, README's producer": "Each export is allocated. By hand and nanobind allocate none: see above.",
    "f(numpy)": "Read access. nanobind: `ndarray<const double>`, which asks for a legacy capsule, without a keyword: "
    "then NumPy does less. dlpack_py asks for a versioned one (C1), which says whether the data is read-only.",
    "f(numpy), writable": "nanobind: `ndarray<double>`, which asks for a versioned capsule, as dlpack_py does.",
    "f(numpy), any rank": "dlpack_py: max_ndim = 8; nanobind: no rank; tvm-ffi: no check of the rank.",
    "f(numpy), bool": "",
    "f(numpy), complex128": "",
    "f(numpy), second of two dtypes": "float32 or float64. nanobind: the second overload of the function.",
    "f(numpy), third of three dtypes": "int64, float32 or float64. nanobind: the third overload.",
    "f(numpy), F order": "Column-major, as asked for.",
    "f(numpy), x.T": "Any strides are asked for.",
    "f(numpy), x[:, ::2]": "Any strides are asked for.",
    "f(numpy), rank 0": "",
    "f(numpy), empty": "Shape (0, 4).",
    "f(numpy), 2^31 bytes": "uint8, of rank 1.",
    "f(numpy), no requirements": "A bool array.",
    "f(numpy), or a copy": "dlpack_py: DLPACK_PY_WANT_COPY_IF_NEEDED, and no copy is needed.",
    "f(own), bfloat16, README's producer": "NumPy has no bfloat16.",
    "f(torch), borrowed": "By PyTorch's exchange table. nanobind and pybind11 call __dlpack__, which is Python code.",
    "f(torch), owned": "By PyTorch's exchange table; tvm-ffi makes a Tensor.",
    "f(torch), complex64": "PyTorch's exchange table exports lazily conjugated tensors wrongly: dlpack_py asks "
    "the tensor (X9).",
    "f(tvm_ffi.Tensor)": "By capsule; tvm-ffi takes its own object.",
    "f(own ×3)": "dlpack_py and tvm-ffi: by exchange table, borrowed. nanobind and pybind11: by capsule.",
    "f(numpy ×3)": "Three capsules.",
    "f(torch ×3)": "dlpack_py and tvm-ffi: by exchange table, borrowed.",
    "from_dlpack(numpy)": "To an own array that holds NumPy's memory. dlpack_py reads device= and copy= as well, as "
    "NumPy and PyTorch do; the others take one argument. Last column: np.from_dlpack.",
    "from_dlpack(numpy) of 14 dtypes": "As NumPy does it: any rank and any strides.",
    "from_dlpack(numpy[:, ::2]) of 14 dtypes": "",
    "from_dlpack(numpy, copy=True) of 14 dtypes": "NumPy copies.",
    "dlarray.from_dlpack(numpy)": "examples/ndarray: an array of any dtype and rank, in Python's class.",
    "return own array": "tvm-ffi allocates the memory of the array apart. nanobind: memory that exists already.",
    "return own array, README's producer": "",
    "return to NumPy by np.from_dlpack": "A new own array, passed to np.from_dlpack, which the author holds. nanobind: "
    "`ndarray<numpy>` of memory that exists already.",
    "return to NumPy, as the argument's type": "An own array that exists is returned as an array of the library of an "
    "argument. nanobind: the library is fixed: `ndarray<numpy>`.",
    "return to PyTorch, as the argument's type": "As above. nanobind: `ndarray<pytorch>`.",
    "return a new NumPy array": "Memory is allocated for a result like an argument.",
    "return a new PyTorch tensor": "As above; dlpack_py and tvm-ffi: in memory of PyTorch's allocator.",
    "np.from_dlpack of a type by its buffer": "The export holds a memoryview. Last column: np.frombuffer.",
    "memoryview of a NumPy array": "By its capsule. Last column: memoryview(x), by the buffer protocol.",
    "x.__dlpack__()": "With the look-up of the method. A legacy capsule, not consumed. nanobind: its ndarray object.",
    "x.__dlpack__(max_version=(1, 3))": "nanobind compares interned names first, and allocates only the capsule.",
    "x.__dlpack__(), README's producer": "Each export is allocated.",
    "x.__dlpack__(max_version=(1, 3)), README's producer": "",
    "x.__dlpack__(), strides in bytes": "As NumPy does it: extents of Py_ssize_t and strides in bytes are converted in "
    "each call. Each export is allocated.",
    "x.__dlpack__(max_version=(1, 3)), strides in bytes": "",
    "x.__dlpack_device__()": "",
    "x.__dlpack_device__(), described": "By DLPACK_PY_DESCRIBED.",
    "f(numpy) refused: dtype": "int64 where float64 is wanted. dlpack_py names both; nanobind lists the signatures.",
    "f(object()) refused": "An object that has no __dlpack__.",
    "f(old producer)": "A producer in C whose __dlpack__ has no keyword but stream: it raises TypeError first.",
    "f(x) that does nothing": "This is part of every call of a function.",
    "first f(numpy) in a process": "After the import of the modules. dlpack_py: examples/minimal/image.c.",
}

# Why another library costs less in a row. A row in which one does and that is not here is an error of `make bench`.
LEGACY = (
    "It asks for a legacy capsule, without a keyword, for which NumPy does about 190 instructions less. dlpack_py asks "
    "for a versioned one (C1), which says whether the data is read-only."
)
STRIDED = (
    LEGACY
    + " Where strides are not row-major, dlpack_py also proves that no two elements share memory (C9): about 130."
)
EXPORT = (
    "The deleter of dlpack_py asks whether its thread is attached and its interpreter lives (K5): 75. Names are "
    "compared by value (P1): 30. Both numbers of max_version are read (P2): 18."
)
AHEAD = {
    "f(numpy)": LEGACY,
    **dict.fromkeys(
        [f"f(numpy), {kind}" for kind in ("bool", "complex128", "rank 0", "empty", "2^31 bytes", "no requirements")],
        LEGACY,
    ),
    **dict.fromkeys([f"f(numpy), {kind}" for kind in ("F order", "x.T", "x[:, ::2]")], STRIDED),
    "f(tvm_ffi.Tensor)": "It takes its own object, without a capsule.",
    "from_dlpack(numpy)": LEGACY + " It takes one argument.",
    "from_dlpack(numpy, copy=True) of 14 dtypes": "NumPy copies into an array of its own. dlpack_py copies into a "
    "managed tensor, which the array holds.",
    "return a new NumPy array": "NumPy allocates an array. dlpack_py allocates memory, and NumPy imports a capsule.",
    "np.from_dlpack of a type by its buffer": "np.frombuffer needs no capsule.",
    "memoryview of a NumPy array": "NumPy's own buffer protocol needs no capsule.",
    "x.__dlpack__(max_version=(1, 3))": EXPORT,
    "x.__dlpack__(), strides in bytes": EXPORT + " The tensor is validated (D8): 60.",
    "x.__dlpack__(max_version=(1, 3)), strides in bytes": EXPORT + " The tensor is validated (D8): 60.",
    "x.__dlpack_device__()": "dlpack_py looks for the tuple that it keeps for the interpreter: 15.",
    "f(object()) refused": "dlpack_py also looks for an exchange table.",
    "f(old producer)": "dlpack_py keeps the TypeError: it becomes the context of an error of the second call (C1).",
    "first f(numpy) in a process": "dlpack_py makes the objects that later calls need.",
}

# Lines of the chart: name, and the horizontal axis.
RANKS, ARGUMENTS, TYPES = range(9), range(1, 5), (1, 4, 8, 16, 32, 64)
EXCHANGES = (0, 1_000, 10_000, 100_000)
LONG_LIVED = {
    "exchanges, f(own), dlpack_py": "f(own), exchange table, borrowed",
    "exchanges, f(own), README's producer": "f(own), capsule, README's producer",
    "exchanges, f(numpy), dlpack_py": "f(numpy)",
    "exchanges, f(torch), dlpack_py": "f(torch), borrowed",
}


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class Libraries:
    """The modules that are there. folder: has the modules of the other libraries; None: only this library. If
    the module calls is built with CALLS_PLAIN, its calls are those without tables and embedded managed tensors."""

    def __init__(self, folder=None):
        import by_hand
        import calls
        import image
        import numpy

        self.ours, self.by_hand, self.image, self.numpy = calls, by_hand, image, numpy
        self.dlarray = self.optional("dlarray")
        self.torch = self.optional("torch")
        self.tvm_ffi = self.optional("tvm_ffi")
        self.nanobind = self.tvm = self.pybind11 = None
        self.with_others = folder is not None
        self.with_tables = hasattr(calls, "Own")
        if folder is not None:
            self.nanobind = load(next(folder.glob("calls_nanobind.*.so")), "calls_nanobind")
            self.pybind11 = load(next(folder.glob("calls_pybind11.*.so")), "calls_pybind11")
            self.tvm = self.tvm_ffi.load_module(str(folder / "calls_tvm.so"))

    def optional(self, name):
        try:
            return importlib.import_module(name)
        except ImportError:
            return None

    def first(self):
        """{column: Call} of calls that must be the first ones in the process."""
        array = self.numpy.zeros((3, 4))
        self.numpy.from_dlpack(array)  # what NumPy does once is not counted
        cells = {"ours": Call(self.image.blur, (self.numpy.zeros((1, 1, 3), self.numpy.uint8),))}
        if self.with_others:
            cells["by_hand"] = Call(self.by_hand.sum, (array,))
            cells["nanobind"] = Call(self.nanobind.consume_const, (array,))
            cells["tvm"] = Call(self.tvm.consume, (array,))
            cells["pybind11"] = Call(self.pybind11.consume, (array,))
        return cells

    def rows(self):
        """{row: {column: Call}}, without what is missing here."""
        ours, np = self.ours, self.numpy
        simple, array = ours.Simple(), np.zeros((3, 4))
        integers, nothing = np.zeros((3, 4), np.int64), object()
        old = ours.Old()
        version = {"max_version": (1, 3)}
        kinds = self.kinds()
        table = {
            "f(own), capsule, README's producer": {"ours": Call(ours.consume, (simple,))},
            **{name: {"ours": Call(getattr(ours, function), (kind,))} for name, (function, kind) in kinds.items()},
            "f(numpy), or a copy": {"ours": Call(ours.consume_or_copy, (array,))},
            "f(own), bfloat16, README's producer": {"ours": Call(ours.consume_half, (ours.Half(),))},
            "from_dlpack(numpy) of 14 dtypes": {"ours": Call(ours.Held.from_any, (array,))},
            "from_dlpack(numpy[:, ::2]) of 14 dtypes": {"ours": Call(ours.Held.from_any, (array[:, ::2],))},
            "from_dlpack(numpy, copy=True) of 14 dtypes": {"ours": Call(ours.Held.from_any, (array,), {"copy": True})},
            "x.__dlpack__(), strides in bytes": {"ours": Call("__dlpack__", (ours.Bytes(),))},
            "x.__dlpack__(max_version=(1, 3)), strides in bytes": {
                "ours": Call("__dlpack__", (ours.Bytes(),), version)
            },
            "f(x) that does nothing": {"ours": Call(ours.nothing, (nothing,))},
            "f(numpy)": {"ours": Call(ours.consume, (array,))},
            "f(numpy), writable": {"ours": Call(ours.consume_writable, (array,))},
            "f(numpy), any rank": {"ours": Call(ours.consume_any_rank, (array,))},
            "f(numpy ×3)": {"ours": Call(ours.consume_many, (array, array, array))},
            "from_dlpack(numpy)": {"ours": Call(ours.Held.from_dlpack, (array,))},
            "return own array, README's producer": {"ours": Call(ours.make_simple)},
            "np.from_dlpack of a type by its buffer": {"ours": Call(np.from_dlpack, (ours.Buffered(96),))},
            "memoryview of a NumPy array": {"ours": Call(ours.view_of, (array,))},
            "x.__dlpack__(), README's producer": {"ours": Call("__dlpack__", (simple,))},
            "x.__dlpack__(max_version=(1, 3)), README's producer": {"ours": Call("__dlpack__", (simple,), version)},
            "x.__dlpack_device__()": {"ours": Call("__dlpack_device__", (simple,))},
            "f(numpy) refused: dtype": {"ours": Call(ours.consume, (integers,), fails=True)},
            "f(object()) refused": {"ours": Call(ours.consume, (nothing,), fails=True)},
            "f(old producer)": {"ours": Call(ours.consume, (old,))},
        }
        if self.dlarray is not None:
            table["dlarray.from_dlpack(numpy)"] = {"ours": Call(self.dlarray.from_dlpack, (array,))}
        tensor = tvm_tensor = None
        if self.torch is not None:
            tensor = self.torch.zeros((3, 4), dtype=self.torch.float64)
        if self.tvm_ffi is not None:
            tvm_tensor = self.tvm_ffi.from_dlpack(array)
            table["f(tvm_ffi.Tensor)"] = {"ours": Call(ours.consume, (tvm_tensor,))}
        if self.with_tables:
            table |= self.of_tables(array, tensor)
        if self.with_others:
            others = [self.of_by_hand, self.of_nanobind, self.of_tvm, self.of_pybind11, self.of_libraries_themselves]
            for column, of_library in zip(["by_hand", "nanobind", "tvm", "pybind11", "itself"], others):
                for name, call in of_library(array, integers, nothing, old, tensor, tvm_tensor).items():
                    table[name][column] = call
        return {name: table[name] for name in ROWS if name in table}

    def kinds(self):
        """{row: (name of the function, NumPy array)} of the arrays that users have besides float64 in C order."""
        np = self.numpy
        array = np.zeros((3, 4))
        return {
            "f(numpy), bool": ("consume_bool", np.zeros((3, 4), bool)),
            "f(numpy), complex128": ("consume_complex", np.zeros((3, 4), complex)),
            "f(numpy), second of two dtypes": ("consume_two_dtypes", array),
            "f(numpy), third of three dtypes": ("consume_three_dtypes", array),
            "f(numpy), F order": ("consume_fortran", np.zeros((3, 4), order="F")),
            "f(numpy), x.T": ("consume_strided", array.T),
            "f(numpy), x[:, ::2]": ("consume_strided", array[:, ::2]),
            "f(numpy), rank 0": ("consume_scalar", np.zeros(())),
            "f(numpy), empty": ("consume", np.zeros((0, 4))),
            "f(numpy), 2^31 bytes": ("consume_bytes", np.zeros(2**31, np.uint8)),
            "f(numpy), no requirements": ("consume_any", np.zeros((3, 4), bool)),
        }

    def of_tables(self, array, tensor):
        """{row: {column: Call}} of what needs tables or embedded managed tensors."""
        ours = self.ours
        own, plain = ours.Own(), ours.Plain()
        table = {
            "f(own), exchange table, borrowed": Call(ours.borrow, (own,)),
            "f(own), exchange table, owned": Call(ours.consume, (own,)),
            "f(own), capsule": Call(ours.consume, (plain,)),
            "f(own ×3)": Call(ours.borrow_many, (own, own, own)),
            "return own array": Call(ours.make),
            "return to NumPy by np.from_dlpack": Call(ours.make_through, (self.numpy.from_dlpack,)),
            "return to NumPy, as the argument's type": Call(ours.return_like, (array, own)),
            "return a new NumPy array": Call(ours.make_like, (array,)),
            "x.__dlpack__()": Call("__dlpack__", (plain,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (plain,), {"max_version": (1, 3)}),
            "x.__dlpack_device__(), described": Call("__dlpack_device__", (plain,)),
        }
        if tensor is not None:
            small_complex = self.torch.zeros((3, 4), dtype=self.torch.complex64)
            table["f(torch), complex64"] = Call(ours.consume_small_complex, (small_complex,))
            table["f(torch), borrowed"] = Call(ours.borrow, (tensor,))
            table["f(torch), owned"] = Call(ours.consume, (tensor,))
            table["f(torch ×3)"] = Call(ours.borrow_many, (tensor,) * 3)
            table["return to PyTorch, as the argument's type"] = Call(ours.return_like, (tensor, own))
            table["return a new PyTorch tensor"] = Call(ours.make_like, (tensor,))
        return {name: {"ours": call} for name, call in table.items()}

    def of_by_hand(self, array, integers, nothing, old, tensor, tvm_tensor):
        consume, own = self.by_hand.sum, self.by_hand.from_dlpack(array, copy=True)
        return {
            "f(own), capsule": Call(consume, (own,)),
            "f(numpy)": Call(consume, (array,)),
            "f(numpy), x.T": Call(consume, (array.T,)),
            "f(numpy), x[:, ::2]": Call(consume, (array[:, ::2],)),
            "f(numpy), empty": Call(consume, (self.numpy.zeros((0, 4)),)),
            "f(tvm_ffi.Tensor)": Call(consume, (tvm_tensor,)),
            "from_dlpack(numpy)": Call(self.by_hand.from_dlpack, (array,)),
            "from_dlpack(numpy[:, ::2]) of 14 dtypes": Call(self.by_hand.from_dlpack, (array[:, ::2],)),
            "from_dlpack(numpy, copy=True) of 14 dtypes": Call(self.by_hand.from_dlpack, (array,), {"copy": True}),
            "x.__dlpack__()": Call("__dlpack__", (own,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (own,), {"max_version": (1, 3)}),
            "x.__dlpack_device__()": Call("__dlpack_device__", (own,)),
            "f(numpy) refused: dtype": Call(consume, (integers,), fails=True),
            "f(object()) refused": Call(consume, (nothing,), fails=True),
            "f(old producer)": Call(consume, (old,)),
        }

    def of_nanobind(self, array, integers, nothing, old, tensor, tvm_tensor):
        nano, own, version = self.nanobind, self.nanobind.make(), {"max_version": (1, 3)}
        return {
            "f(own), capsule": Call(nano.consume, (own,)),
            "f(numpy)": Call(nano.consume_const, (array,)),
            "f(numpy), writable": Call(nano.consume, (array,)),
            "f(numpy), any rank": Call(nano.consume_any_rank, (array,)),
            **{
                name: Call(nano.consume_const if function == "consume" else getattr(nano, function), (kind,))
                for name, (function, kind) in self.kinds().items()
            },
            "f(x) that does nothing": Call(nano.nothing, (nothing,)),
            "f(torch), owned": Call(nano.consume, (tensor,)),
            "f(torch), complex64": Call(nano.consume_small_complex, (tensor.to(self.torch.complex64),)),
            "f(tvm_ffi.Tensor)": Call(nano.consume, (tvm_tensor,)),
            "f(own ×3)": Call(nano.consume_three, (own, own, own)),
            "f(numpy ×3)": Call(nano.consume_three, (array, array, array)),
            "f(torch ×3)": Call(nano.consume_three, (tensor, tensor, tensor)),
            "from_dlpack(numpy)": Call(nano.from_dlpack, (array,)),
            "return own array": Call(nano.make),
            "return to NumPy by np.from_dlpack": Call(nano.make_numpy),
            "return to NumPy, as the argument's type": Call(nano.make_numpy),
            "return to PyTorch, as the argument's type": Call(nano.make_torch),
            "x.__dlpack__()": Call("__dlpack__", (own,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (own,), version),
            "x.__dlpack_device__()": Call("__dlpack_device__", (own,)),
            "f(numpy) refused: dtype": Call(nano.consume, (integers,), fails=True),
            "f(object()) refused": Call(nano.consume, (nothing,), fails=True),
            "f(old producer)": Call(nano.consume, (old,)),
        }

    def of_tvm(self, array, integers, nothing, old, tensor, tvm_tensor):
        tvm, own, plain = self.tvm, self.ours.Own(), self.ours.Plain()
        return {
            "f(own), exchange table, borrowed": Call(tvm.consume, (own,)),
            "f(own), exchange table, owned": Call(tvm.consume_owned, (own,)),
            "f(own), capsule": Call(tvm.consume, (plain,)),
            "f(numpy)": Call(tvm.consume, (array,)),
            "f(numpy), any rank": Call(tvm.consume_any_rank, (array,)),
            "f(torch), borrowed": Call(tvm.consume, (tensor,)),
            "f(torch), owned": Call(tvm.consume_owned, (tensor,)),
            "f(tvm_ffi.Tensor)": Call(tvm.consume, (tvm_tensor,)),
            "f(own ×3)": Call(tvm.consume_three, (own, own, own)),
            "f(numpy ×3)": Call(tvm.consume_three, (array, array, array)),
            "f(torch ×3)": Call(tvm.consume_three, (tensor, tensor, tensor)),
            "from_dlpack(numpy)": Call(self.tvm_ffi.from_dlpack, (array,)),
            "return own array": Call(tvm.make),
            "return a new PyTorch tensor": Call(tvm.make_like, (tensor,)),
            "x.__dlpack__()": Call("__dlpack__", (tvm_tensor,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (tvm_tensor,), {"max_version": (1, 3)}),
            "x.__dlpack_device__()": Call("__dlpack_device__", (tvm_tensor,)),
            "f(numpy) refused: dtype": Call(tvm.consume, (integers,), fails=True),
            "f(object()) refused": Call(tvm.consume, (nothing,), fails=True),
            "f(old producer)": Call(tvm.consume, (old,)),
        }

    def of_pybind11(self, array, integers, nothing, old, tensor, tvm_tensor):
        hand, own = self.pybind11, self.pybind11.Own()
        return {
            "f(own), capsule": Call(hand.consume, (own,)),
            "f(numpy)": Call(hand.consume, (array,)),
            "f(torch), owned": Call(hand.consume, (tensor,)),
            "f(tvm_ffi.Tensor)": Call(hand.consume, (tvm_tensor,)),
            "f(own ×3)": Call(hand.consume_three, (own, own, own)),
            "f(numpy ×3)": Call(hand.consume_three, (array, array, array)),
            "f(torch ×3)": Call(hand.consume_three, (tensor, tensor, tensor)),
            "from_dlpack(numpy)": Call(hand.Held.from_dlpack, (array,)),
            "return own array": Call(hand.make),
            "x.__dlpack__()": Call("__dlpack__", (own,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (own,), {"max_version": (1, 3)}),
            "x.__dlpack_device__()": Call("__dlpack_device__", (own,)),
            "f(numpy) refused: dtype": Call(hand.consume, (integers,), fails=True),
            "f(object()) refused": Call(hand.consume, (nothing,), fails=True),
            "f(old producer)": Call(hand.consume, (old,)),
        }

    def of_libraries_themselves(self, array, integers, nothing, old, tensor, tvm_tensor):
        np, torch = self.numpy, self.torch
        plain = self.ours.Plain()
        return {
            "f(own), capsule": Call(np.from_dlpack, (plain,)),
            "f(torch), owned": Call(torch.from_dlpack, (tensor,)),
            "from_dlpack(numpy)": Call(np.from_dlpack, (array,)),
            "from_dlpack(numpy) of 14 dtypes": Call(np.from_dlpack, (array,)),
            "from_dlpack(numpy[:, ::2]) of 14 dtypes": Call(np.from_dlpack, (array[:, ::2],)),
            "from_dlpack(numpy, copy=True) of 14 dtypes": Call(np.from_dlpack, (array,), {"copy": True}),
            "x.__dlpack__(), strides in bytes": Call("__dlpack__", (array,)),
            "x.__dlpack__(max_version=(1, 3)), strides in bytes": Call("__dlpack__", (array,), {"max_version": (1, 3)}),
            "return a new NumPy array": Call(np.empty, ((3, 4),)),
            "np.from_dlpack of a type by its buffer": Call(np.frombuffer, (bytearray(96),)),
            "memoryview of a NumPy array": Call(memoryview, (array,)),
            "x.__dlpack__()": Call("__dlpack__", (array,)),
            "x.__dlpack__(max_version=(1, 3))": Call("__dlpack__", (array,), {"max_version": (1, 3)}),
            "x.__dlpack_device__()": Call("__dlpack_device__", (array,)),
            "f(object()) refused": Call(np.from_dlpack, (nothing,), fails=True),
            "f(old producer)": Call(np.from_dlpack, (old,)),
        }

    def lines(self):
        """{line: {place on the axis: Call}} of the chart: what must not grow."""
        ours, np = self.ours, self.numpy
        array = np.zeros((3, 4))
        shapes = [(), (12,), (3, 4), (3, 2, 2), (3, 2, 2, 2), *((2,) * rank for rank in range(5, 9))]
        arrays = [np.zeros(shape) for shape in shapes]
        lines = {
            "rank, f(own), README's producer": {r: Call(ours.consume_rank, (r, ours.Simple(r))) for r in RANKS},
            "rank, f(numpy), dlpack_py": {r: Call(ours.consume_rank, (r, arrays[r])) for r in RANKS},
            "arguments, f(numpy), dlpack_py": {n: Call(ours.consume_many, (array,) * n) for n in ARGUMENTS},
        }
        if self.with_tables:
            own, plain = ours.Own(), ours.Plain
            lines["rank, f(own), dlpack_py"] = {r: Call(ours.consume_rank, (r, plain(r))) for r in RANKS}
            lines["arguments, f(own), dlpack_py"] = {n: Call(ours.borrow_many, (own,) * n) for n in ARGUMENTS}
        if self.nanobind is not None:
            nano = self.nanobind
            functions = [None, nano.consume, nano.consume_two, nano.consume_three, nano.consume_four]
            any_rank = nano.consume_any_rank
            lines["rank, f(own), nanobind"] = {r: Call(any_rank, (nano.of_rank(r),)) for r in RANKS}
            lines["rank, f(numpy), nanobind"] = {r: Call(any_rank, (arrays[r],)) for r in RANKS}
            lines["arguments, f(own), nanobind"] = {n: Call(functions[n], (nano.make(),) * n) for n in ARGUMENTS}
            lines["arguments, f(numpy), nanobind"] = {n: Call(functions[n], (array,) * n) for n in ARGUMENTS}
        return lines

    def types(self, count):
        """Objects of as many types."""
        return tuple(type(f"Type{i}", (self.ours.Simple,), {})() for i in range(count))

"""Lifetime of exchanged memory with every installed array library (P9, K1, K4), and tests of single libraries."""

import ctypes
import gc
import sys

import array_libraries
import dlarray
import dltensor
import exchanges
import pytest

COPIES = {"mlx"}  # libraries that copy imports on the CPU
NO_FROM_DLPACK = {"pyarrow.Array", "pyarrow.Tensor", "tensorflow"}  # in the module of the type
KEEPS = {"paddle": 1}  # never frees this many of two imports of one memory that live at once


@pytest.fixture(params=array_libraries.installed())
def lib(request):
    return array_libraries.LIBRARIES[request.param][0]()


def of(name):
    """Marks a test for one library."""
    installed = pytest.mark.skipif(
        name not in array_libraries.installed(), reason=f"{name}: make test-libraries installs it"
    )
    return lambda test: installed(pytest.mark.parametrize("lib", [name], indirect=True)(test))


@pytest.fixture
def exporting(lib):
    """A library that exports what it has imported."""
    if lib.name == "numpy" and array_libraries.version("numpy").startswith("2.0."):
        pytest.skip("NumPy before 2.1 takes all as read-only, and will not export that in the legacy form")
    return lib


def ours(n=16):
    return dlarray.arange(n, dtype="int32")


def theirs(lib, values=(3, 1, 4, 1, 5, 9, 2, 6)):
    def make(maker):
        return maker.array(list(values), "int32")

    return lib.make(make) if hasattr(lib, "make") else make(lib)


class Counted:
    """Offers a library's export and counts the calls of its deleter, which still runs."""

    def __init__(self, lib, a):
        self.capsule = a.__dlpack__(**getattr(lib, "export", {}))
        self.calls = []
        managed = dltensor.MANAGED[dltensor.name(self.capsule)].from_address(dltensor.address(self.capsule))
        self.address = ctypes.addressof(managed)
        deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
        self.counting = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda *it: (self.calls.append(it), deleter(*it))[0])
        managed.deleter = ctypes.cast(self.counting, ctypes.c_void_p)

    def __dlpack__(self, **keywords):
        return self.capsule


# ---- From each library to dlarray ----


def test_the_deleter_of_each_library_is_called_once_K4(lib):
    a = theirs(lib)
    counted = Counted(lib, a)
    b = dlarray.from_dlpack(counted)
    views = [b[1:], b[None]]
    del b
    assert counted.calls == []
    assert views[1].tolist() == [lib.values(a)]
    del views
    assert counted.calls == [(counted.address,)]


def test_a_refused_or_dropped_capsule_of_each_library_is_released_once_K1(exporting):
    """Counts references to memory of dlarray: a library's destructor need not call the deleter in the struct."""
    a = ours()
    before, held = sys.getrefcount(a), exporting.name not in COPIES
    capsule = exporting.from_dlpack(a).__dlpack__(**getattr(exporting, "export", {}))
    with pytest.raises(BufferError):
        dlarray.from_dlpack(capsule, device=(2, 0))
    gc.collect()
    assert sys.getrefcount(a) == before + held
    del capsule
    gc.collect()
    assert sys.getrefcount(a) == before


def test_the_memory_of_each_library_outlives_its_array_P9(lib):
    wanted = lib.values(theirs(lib))
    b = dlarray.from_dlpack(theirs(lib))
    gc.collect()
    others = [theirs(lib, range(i, i + 8)) for i in range(20)]
    assert b.tolist() == wanted
    assert len(others) == 20


def test_the_array_of_each_library_outlives_its_import_P9(lib):
    a = theirs(lib)
    wanted = lib.values(a)
    for _ in range(20):
        dlarray.from_dlpack(a)
    assert lib.values(a) == wanted


def test_a_chain_through_each_library_is_released_once_in_either_order_P9(exporting):
    a = ours()
    before, held = sys.getrefcount(a), exporting.name not in COPIES
    for intermediate_first in (True, False):
        b = exporting.from_dlpack(a)
        c = dlarray.from_dlpack(b)
        assert c.tolist() == a.tolist()
        assert (c.data_ptr == a.data_ptr) == held
        if intermediate_first:
            del b
        else:
            del c
        gc.collect()
        assert sys.getrefcount(a) == before + held
        b = c = None
        gc.collect()
        assert sys.getrefcount(a) == before


# ---- From dlarray to each library ----


def test_each_library_calls_the_deleter_of_dlarray_once_K4(lib):
    a = ours()
    before, held = sys.getrefcount(a), lib.name not in COPIES
    b = lib.from_dlpack(a)
    assert sys.getrefcount(a) == before + held
    assert lib.values(b) == a.tolist()
    del b
    gc.collect()
    assert sys.getrefcount(a) == before


def test_each_library_keeps_memory_of_dlarray_after_its_array_is_freed_P9(lib):
    b = lib.from_dlpack(ours())
    gc.collect()
    others = [dlarray.zeros(16, "int32") for _ in range(20)]
    assert lib.values(b) == list(range(16))
    assert len(others) == 20


def test_a_thousand_rounds_with_each_library_leave_no_reference_K4(lib):
    a, b = ours(), theirs(lib)
    before = sys.getrefcount(a)
    for _ in range(1000):
        lib.from_dlpack(a)
        dlarray.from_dlpack(b)
    gc.collect()
    assert sys.getrefcount(a) == before


def test_an_array_that_each_library_refuses_is_unchanged_K4(lib):
    """A dtype that no library but dlarray and tvm-ffi knows."""
    a = dlarray.from_dlpack(dltensor.Producer(dtype=array_libraries.STORAGE["float6_e2m3fn"], shape=(4,)))
    before = sys.getrefcount(a)
    for _ in range(10):
        try:
            lib.from_dlpack(a)
        except Exception:
            assert lib.name != "tvm_ffi"
        else:
            assert lib.name == "tvm_ffi"
    gc.collect()
    assert sys.getrefcount(a) == before


def test_two_imports_of_one_array_by_each_library_are_independent_P9(lib):
    a = ours()
    before, held = sys.getrefcount(a), lib.name not in COPIES
    first, second = lib.from_dlpack(a), lib.from_dlpack(a)
    assert sys.getrefcount(a) == before + 2 * held
    del first
    gc.collect()
    assert lib.values(second) == a.tolist()
    assert sys.getrefcount(a) == before + held
    del second
    gc.collect()
    assert sys.getrefcount(a) == before + KEEPS.get(lib.name, 0)


# ---- One library ----


@of("jax")
def test_immutable_arrays_of_jax_are_imported_as_legacy_and_read_only_and_return_P2_C7(lib):
    a = theirs(lib)
    assert dltensor.read(a.__dlpack__(max_version=(1, 3))).form == dltensor.LEGACY
    b = dlarray.from_dlpack(a)
    assert b.readonly
    with pytest.raises(ValueError):
        b[0] = 1
    with pytest.raises(ValueError):
        b.setflags(writeable=True)
    c = lib.from_dlpack(b)
    assert lib.pointer(a) == b.data_ptr == lib.pointer(c)
    del a, b
    gc.collect()
    assert lib.values(c) == lib.values(theirs(lib))


@of("tensorflow")
def test_tensorflow_exchanges_only_the_legacy_form_P2_C7(lib):
    a = theirs(lib)
    assert dltensor.read(a.__dlpack__()).form == dltensor.LEGACY
    b = dlarray.from_dlpack(a)
    assert b.readonly
    assert dltensor.read(b.__dlpack__(max_version=(1, 3))).flags == dltensor.READ_ONLY
    c = lib.from_dlpack(b)
    assert lib.pointer(a) == b.data_ptr == lib.pointer(c)
    del a, b
    gc.collect()
    assert lib.values(c) == lib.values(theirs(lib))
    with pytest.raises(Exception, match="versioned|dltensor"):
        import tensorflow

        tensorflow.experimental.dlpack.from_dlpack(ours().__dlpack__(max_version=(1, 3)))


@of("pyarrow.Array")
def test_arrays_of_pyarrow_are_read_only_in_dlarray_C7(lib):
    a = theirs(lib)
    b = dlarray.from_dlpack(a)
    assert b.readonly
    with pytest.raises(ValueError):
        b[0] = 1
    with pytest.raises(ValueError):
        b.setflags(writeable=True)
    with pytest.raises(BufferError, match="read-only"):
        b.__dlpack__()
    assert lib.values(lib.from_dlpack(b)) == lib.values(a)


@of("pyarrow.Array")
def test_nulls_of_pyarrow_are_refused_by_pyarrow_P7(lib):
    with pytest.raises(Exception, match="null") as raised:
        dlarray.from_dlpack(lib.array([1, None], "int32"))
    assert type(raised.value).__module__.startswith("pyarrow")


@of("pyarrow.Tensor")
def test_tensors_of_pyarrow_are_as_writable_as_their_buffer_C7(lib):
    import numpy
    import pyarrow

    memory = numpy.arange(3)
    assert not dlarray.from_dlpack(pyarrow.Tensor.from_numpy(memory)).readonly
    memory.flags.writeable = False
    assert dlarray.from_dlpack(pyarrow.Tensor.from_numpy(memory)).readonly


@of("mlx")
def test_the_byte_offset_of_slices_of_mlx_is_added_to_the_address_D1(lib):
    def block(maker):
        return maker.array([[1, 2, 3, 4], [5, 6, 7, 8]], "int32")[1:, 1:3]

    a = lib.make(block)
    says = dltensor.read(a.__dlpack__())
    assert says.byte_offset == 20
    b = dlarray.from_dlpack(a)
    assert b.data_ptr == says.data + 20
    assert b.tolist() == [[6, 7]]
    again = dltensor.read(b.__dlpack__())
    assert (again.data, again.byte_offset) == (says.data + 20, 0)


@of("mlx")
def test_many_rounds_do_not_increase_the_memory_of_mlx_K4(lib):
    import mlx.core

    def rounds(count):
        for _ in range(count):
            b = dlarray.from_dlpack(theirs(lib, range(1000)))
            lib.from_dlpack(b)
            del b
        return mlx.core.get_active_memory()

    assert rounds(20) == rounds(500)


@of("paddle")
def test_the_byte_offset_that_paddle_ignores_is_never_exported_D1(lib):
    a = ours()[5:]
    assert dltensor.read(a.__dlpack__()).byte_offset == 0
    assert lib.values(lib.from_dlpack(a)) == a.tolist()


@of("paddle")
def test_a_device_of_paddle_without_a_number_is_accepted_C4(lib):
    a = theirs(lib)
    assert tuple(a.__dlpack_device__()) == (1, None)
    assert dlarray.from_dlpack(a, device=(1, 0)).data_ptr == lib.pointer(a)


@of("torch")
def test_torch_counts_the_uses_of_its_memory_and_each_import_is_one_K4(lib):
    a = theirs(lib)
    before = a._use_count()
    imports = [dlarray.from_dlpack(a) for _ in range(100)]
    assert a._use_count() == before + 100
    del imports[:50]
    assert a._use_count() == before + 50
    imports.clear()
    assert a._use_count() == before


@of("torch")
def test_a_lazily_conjugated_tensor_of_torch_is_refused_by_torch_X9(lib):
    import torch

    a = torch.tensor([1 + 2j, 3 - 4j]).conj()
    with pytest.raises(BufferError, match="conjugate"):
        dlarray.from_dlpack(a)
    assert dlarray.from_dlpack(a.resolve_conj()).tolist() == [1 - 2j, 3 + 4j]


@of("torch")
def test_parameters_and_tensors_of_torch_with_a_gradient_are_imported_by_its_table_X9(lib):
    import torch

    for a in (torch.ones(3, requires_grad=True), torch.nn.Parameter(torch.ones(3))):
        with pytest.raises(BufferError, match="grad"):
            a.__dlpack__()
        assert dlarray.from_dlpack(a).data_ptr == a.data_ptr()


# ---- The exchange API: imports and exports by a table ----


@of("torch")
def test_a_tensor_of_torch_is_borrowed_and_owned_by_its_table_once_each_X3(lib):
    import torch
    from exchange_probe import borrow

    class Sub(torch.Tensor):
        pass

    for a in (theirs(lib), torch.nn.Parameter(torch.ones(3)), torch.ones(3).as_subclass(Sub), torch.ones(2, 3).T):
        with exchanges.counted(torch.Tensor) as calls:
            (data, shape, strides), readonly, owned = borrow(a)
            assert (len(calls), owned) == (1, False)
            assert (data, shape, strides) == (a.data_ptr(), tuple(a.shape), a.stride())
            before = a._use_count()
            b = dlarray.from_dlpack(a)
            assert len(calls) == 2
        assert (b.data_ptr, a._use_count()) == (a.data_ptr(), before + 1)
        del b
        assert a._use_count() == before


@of("torch")
def test_a_lazily_conjugated_tensor_of_torch_is_not_borrowed_X9(lib):
    import torch
    from exchange_probe import borrow

    with pytest.raises(BufferError, match="conjugate"):
        borrow(torch.tensor([1 + 2j]).conj())
    a = torch.tensor([1 + 2j])
    with exchanges.counted(torch.Tensor):
        assert borrow(a)[2] is True  # is_conj() may free what a table lends: the tensor is taken instead


@of("torch")
def test_memory_and_results_like_a_tensor_of_torch_are_made_by_torch(lib):
    import torch
    from exchange_probe import Holder, allocate_like, return_like

    with exchanges.counted(torch.Tensor):
        result = return_like(torch.ones(1), allocate_like(torch.ones(1), (2, 3), "float32"))
    assert type(result) is torch.Tensor
    assert (tuple(result.shape), result.dtype, result.is_contiguous()) == ((2, 3), torch.float32, True)
    ours = dlarray.array([1.0, 2.0], "float64")
    result = return_like(torch.ones(1), Holder(ours))
    assert result.data_ptr() == ours.data_ptr


@of("tvm_ffi")
def test_tvm_ffi_exchanges_arrays_of_dlarray_by_their_table_alone_X1_X6(lib, monkeypatch):
    import tvm_ffi.testing

    a = dlarray.array([[1, 2, 3], [4, 5, 6]], "int64")
    before = sys.getrefcount(a)
    for name in ("__dlpack__", "__dlpack_device__"):
        monkeypatch.setattr(dlarray.Array, name, lambda self, **keywords: pytest.fail("it was called"))
    with exchanges.counted(dlarray.Array) as calls:
        b = tvm_ffi.from_dlpack(a)
        assert len(calls) == 1
        c = tvm_ffi.testing.echo(a)
        assert len(calls) == 2
    assert sys.getrefcount(a) == before + 2
    assert (tuple(b.shape), type(c), c.tolist(), c.data_ptr) == ((2, 3), dlarray.Array, a.tolist(), a.data_ptr)
    del b, c
    assert sys.getrefcount(a) == before


@of("tvm_ffi")
def test_tvm_ffi_calls_the_method_of_a_class_that_overrides_it_X2(lib):
    class Own(dlarray.Array):
        def __dlpack__(self, **keywords):
            return dlarray.array([7], "int64").__dlpack__(**keywords)

    assert lib.values(lib.from_dlpack(Own(dlarray.arange(3)))) == [7]


def test_a_result_is_an_array_of_the_arguments_library(lib):
    from exchange_probe import Holder, allocate_like, return_like

    like, a = theirs(lib), dlarray.array([1.0, 2.0, 3.0], "float32")
    if lib.name in NO_FROM_DLPACK:
        with pytest.raises(TypeError, match="its library has no from_dlpack"):
            return_like(like, Holder(a))
        return
    result = return_like(like, Holder(a))
    assert type(result) is type(like)
    assert lib.values(result) == [1.0, 2.0, 3.0]
    assert lib.values(return_like(like, allocate_like(like, (0,), "float32"))) == []

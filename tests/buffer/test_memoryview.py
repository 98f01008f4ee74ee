"""A memoryview of a consumed tensor (dlpack_buffer_memoryview): C7, C9, D6, K4."""

import gc
import subprocess
import sys
import threading

import dlarray
import dltensor
import pytest
from array_libraries import needs_versioned_numpy
from buffer_probe import view_of
from collecting import collect, not_on_pypy
from dltensor import CUDA, FORMS, LEGACY, PADDED, READ_ONLY, VERSIONED, Made
from hypothesis import given
from hypothesis import strategies as st
from optional import numpy
from table_consumer import view_of_borrowed


@pytest.mark.parametrize("dtype", dltensor.DTYPES)
def test_each_dtype_of_the_buffer_protocol_has_its_format_D7(dtype):
    source = numpy.arange(6).reshape(2, 3).astype(dtype)
    view = view_of(source)
    assert (view.itemsize, view.shape) == (source.itemsize, (2, 3))
    assert dltensor.format_of(view) == dltensor.format_of(memoryview(source))
    seen = numpy.asarray(view)
    assert seen.dtype == source.dtype and seen.tolist() == source.tolist() and numpy.shares_memory(seen, source)


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float8_e4m3fn", "float4_e2m1fn", (0, 4, 1), (2, 32, 4), (5, 32, 1), (2, 128, 1)]
)
def test_a_dtype_without_a_format_is_refused_and_the_tensor_released_D6(dtype):
    source = dltensor.Producer(dtype=dtype) if isinstance(dtype, tuple) else dlarray.zeros(4, dtype)
    with pytest.raises(BufferError, match="the buffer protocol has no such format|dtype is"):
        view_of(source)
    assert dlarray.Array in type(source).__mro__ or source.deleted == [1]


@pytest.mark.parametrize(
    "shape, strides, data",
    [
        ((2**33,), (0,), 4096),
        ((2**33, 0), (0, 0), 4096),
        ((2**16, 2**16), (0, 0), 4096),
        ((2,), (2**31 + 8,), 4096),
        ((2,), (-(2**31) - 8,), 2**32 - 4096),
    ],
)
def test_what_a_buffer_cannot_count_is_refused_D8(shape, strides, data):
    source = dltensor.Producer(dtype="uint8", shape=shape, strides=strides, data=data)  # no element is read
    if sys.maxsize > 2**33:
        view = view_of(source)
        assert view.shape == shape and (0 in shape or view.strides == strides)
        del view
    else:
        with pytest.raises(BufferError, match="the tensor is too large for a buffer"):
            view_of(source)
    assert source.deleted == [1]


@not_on_pypy("tobytes of a memoryview with any strides")
@given(st.data())
def test_a_memoryview_has_shape_strides_and_values_of_the_array_D11(data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = data.draw(st.sampled_from(["i1", "f4", "c16"]))
    source = numpy.arange(int(numpy.prod(shape))).astype(dtype).reshape(shape)
    cut = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1, -2]))) for _ in shape)
    source = source.transpose(data.draw(st.permutations(range(len(shape)))))[(*cut, ...)]
    view = view_of(source)
    assert (view.shape, view.ndim, view.nbytes) == (source.shape, source.ndim, source.nbytes)
    assert numpy.asarray(view).tolist() == source.tolist()
    assert view.tobytes() == source.tobytes()
    assert (view.c_contiguous, view.f_contiguous) == (source.flags.c_contiguous, source.flags.f_contiguous)


@needs_versioned_numpy
def test_a_memoryview_writes_to_the_array_unless_the_array_is_read_only_C7():
    source = numpy.zeros(3)
    view = view_of(source)
    view[1] = 5.0
    assert source[1] == 5.0 and not view.readonly
    source.flags.writeable = False
    assert view_of(source).readonly
    with pytest.raises(TypeError, match="read-only"):
        view_of(source)[0] = 1.0
    with pytest.raises(BufferError, match="read-only"):
        view_of(source, True)


@pytest.mark.parametrize(
    "form, flags, readonly", [(VERSIONED, 0, False), (VERSIONED, READ_ONLY, True), (LEGACY, 0, True)]
)
def test_a_capsule_without_a_flag_gives_a_read_only_memoryview_C7(form, flags, readonly):
    made = Made(form, flags=flags) if form is VERSIONED else Made(form)
    view = view_of(made.capsule())
    assert view.readonly is readonly
    del view
    assert made.deleted == 1


@not_on_pypy("a buffer that ends with its last reference")
@pytest.mark.parametrize("form", FORMS)
def test_the_tensor_is_released_once_with_the_last_view_on_it_K4(form):
    made = Made(form)
    view = view_of(made.capsule())
    part = view[1:]
    cast = view.cast("B")
    array = numpy.asarray(cast)
    view.release()
    collect()
    del view
    collect()
    assert made.deleted == 0
    part.release()
    collect()
    del part, cast
    collect()
    assert made.deleted == 0
    del array
    collect()
    gc.collect()
    assert made.deleted == 1


def test_the_tensor_is_released_on_the_thread_that_drops_the_last_view_K5():
    made = Made(VERSIONED)
    held = [view_of(made.capsule())]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert made.deleted == 1


def test_the_array_lives_as_long_as_the_view_P9():
    source = numpy.zeros(3)
    before = sys.getrefcount(source)
    view = view_of(source)
    assert sys.getrefcount(source) == before + 1
    del view
    assert sys.getrefcount(source) == before


def test_memory_of_a_device_is_refused_and_released_C5():
    source = dltensor.Producer(device=CUDA)
    with pytest.raises(BufferError, match="device is cuda:0, a buffer is memory of the CPU"):
        view_of(source, False, True)
    assert source.deleted == [1]


def test_padded_elements_of_a_byte_have_no_format_D6():
    source = dltensor.Producer(dtype=(0, 4, 1), flags=PADDED)
    with pytest.raises(BufferError, match="dtype is int4, the buffer protocol has no such format"):
        view_of(source)
    assert source.deleted == [1]


def test_a_borrowed_tensor_has_no_memoryview_X3():
    with pytest.raises(ValueError, match="a borrowed tensor has no memoryview"):
        view_of_borrowed(dlarray.zeros(3))


def test_an_exporter_that_python_code_makes_holds_no_tensor():
    kind = type(view_of(numpy.zeros(3)).obj)
    try:
        empty = kind()
    except TypeError:
        return
    with pytest.raises(BufferError, match="this object holds no tensor|a buffer is memory of the CPU"):
        memoryview(empty)


@not_on_pypy("_testcapi")
def test_memory_that_runs_out_at_any_step_is_a_memory_error_P7():
    pytest.importorskip("_testcapi", reason="CPython was installed without its test modules")
    script = """if 1:
        import sys
        import _testcapi as memory
        import dlarray

        sys.modules["atexit"] = None  # then the state of the header is not cached: each use looks for it
        from buffer_probe import view_of

        def succeeds(start):
            memory.set_nomemory(start, start + 1)
            try:
                return view_of(array) is not None
            except MemoryError:
                return False
            finally:
                memory.remove_mem_hooks()

        array = dlarray.zeros(3)
        view_of(array)  # makes the type, for which CPython 3.11 may raise nothing
        results = [succeeds(start) for start in range(50)]
        assert (results[0], results[-1]) == (False, True)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_tensors_of_rank_0_or_without_elements_have_memoryviews_D3():
    assert view_of(numpy.array(3.0))[()] == 3.0
    assert view_of(numpy.zeros((0, 3))).shape == (0, 3)
    assert view_of(numpy.zeros((0, 3))).tobytes() == b""

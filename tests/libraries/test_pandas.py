"""Columns of pandas over memory of NumPy or Arrow: numbers are shared without a copy, the rest is refused (P, K, C).

A Series has no __dlpack__. to_numpy() returns memory of NumPy, read-only since pandas 3;
pyarrow.array(series.array) returns memory of Arrow, always read-only.
"""

import gc
import weakref

import dlarray
import pytest
from dltensor import ARRAY_API_DTYPES
from optional import numpy

missing = {"reason": "pandas and pyarrow: make test-libraries installs it", "exc_type": ModuleNotFoundError}
pandas = pytest.importorskip("pandas", **missing)
pyarrow = pytest.importorskip("pyarrow", **missing)

NULLABLE = {name: name.replace("int", "Int").replace("u", "U").replace("float", "Float") for name in ARRAY_API_DTYPES}
NUMBERS = [
    name for name in ARRAY_API_DTYPES if name[0] in "iuf"
]  # dtypes that nullable columns and columns of Arrow have


def address(a):
    return a.__array_interface__["data"][0]


def arrow_column(values, dtype):
    return pandas.Series(values, dtype=pandas.ArrowDtype(getattr(pyarrow, dtype)()))


# ---- Columns over memory of NumPy ----


@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_a_column_is_imported_without_a_copy_and_read_only_C7(dtype):
    series = pandas.Series([0, 1, 1], dtype=dtype)
    a = dlarray.from_dlpack(series.to_numpy())
    assert (a.dtype, a.tolist()) == (dtype, series.tolist())
    assert a.data_ptr == address(series.array.to_numpy())
    assert a.readonly
    with pytest.raises(ValueError, match="read-only"):
        a[0] = 1
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()


def test_memory_that_pandas_gives_for_writing_is_writable_C7():
    series = pandas.Series([1.0, 2.0, 3.0])
    a = dlarray.from_dlpack(series.array.to_numpy())
    a[1] = 9
    assert series.tolist() == [1, 9, 3]
    dlarray.from_dlpack(series.to_numpy(), copy=True)[0] = 9
    dlarray.from_dlpack(series.to_numpy(copy=True))[0] = 9
    assert series.tolist() == [1, 9, 3]


@pytest.mark.parametrize("key", [slice(1, 4), slice(None, None, 2), slice(None, None, -2)], ids=str)
def test_a_slice_of_a_column_keeps_its_step_D5(key):
    series = pandas.Series(range(6))
    a = dlarray.from_dlpack(series[key].to_numpy())
    assert (a.tolist(), a.strides) == (list(range(6))[key], (key.step or 1,))
    assert a.data_ptr == address(series.to_numpy()[key])


def test_columns_of_one_frame_lie_in_one_matrix_D4():
    matrix = dlarray.arange(6).reshape(3, 2)
    frame = pandas.DataFrame(numpy.from_dlpack(matrix), columns=["a", "b"], copy=False)
    column = dlarray.from_dlpack(frame["b"].to_numpy())
    assert (column.tolist(), column.strides) == ([1, 3, 5], (2,))
    assert column.data_ptr == matrix[:, 1].data_ptr
    assert dlarray.from_dlpack(frame.to_numpy()).data_ptr == matrix.data_ptr


def test_codes_of_a_categorical_column_are_imported_C8():
    codes = pandas.Series(["x", "y", "x"], dtype="category").cat.codes
    a = dlarray.from_dlpack(codes.to_numpy())
    assert (a.dtype, a.tolist()) == ("int8", [0, 1, 0])


@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_an_array_becomes_a_column_without_a_copy_P3(dtype):
    a = dlarray.array([0, 1, 1], dtype)
    series = pandas.Series(numpy.from_dlpack(a), copy=False)
    assert (series.dtype.name, series.tolist()) == (dtype, a.tolist())
    assert address(series.to_numpy()) == a.data_ptr
    a[0] = 1
    series.iloc[1] = numpy.zeros((), dtype)[()]
    assert series.tolist() == a.tolist() == [1, 0, 1]


def test_a_read_only_array_becomes_a_column_that_cannot_be_assigned_P3():
    a = dlarray.arange(3)
    a.setflags(writeable=False)
    series = pandas.Series(numpy.from_dlpack(a), copy=False)
    assert address(series.to_numpy()) == a.data_ptr
    with pytest.raises(ValueError, match="read-only"):
        series.iloc[0] = 7
    assert a.tolist() == series.tolist() == [0, 1, 2]


def test_pandas_copies_by_default():
    a = dlarray.arange(3)
    series = pandas.Series(numpy.from_dlpack(a))
    a[0] = 7
    assert series.tolist() == [0, 1, 2]


# ---- Lifetime ----


def test_a_column_keeps_the_array_alive_P9():
    a = dlarray.arange(3)
    gone = weakref.ref(a)
    series = pandas.Series(numpy.from_dlpack(a), copy=False)
    del a
    gc.collect()
    assert gone() is not None
    assert (series + 1).tolist() == [1, 2, 3]
    del series
    gc.collect()
    assert gone() is None


def test_an_array_keeps_the_memory_of_a_column_alive_K4():
    memory = numpy.arange(3.0)
    series = pandas.Series(memory, copy=False)
    gone = weakref.ref(memory)
    a = dlarray.from_dlpack(series.to_numpy())
    del memory, series
    gc.collect()
    assert gone() is not None
    assert a.tolist() == [0, 1, 2]
    del a
    assert gone() is None


def test_an_array_keeps_the_memory_of_an_arrow_column_alive_K4():
    gc.collect()
    before = pyarrow.total_allocated_bytes()
    series = pandas.Series(pandas.arrays.ArrowExtensionArray(pyarrow.array(range(1000))))
    a = dlarray.from_dlpack(pyarrow.array(series.array))
    del series
    gc.collect()
    assert pyarrow.total_allocated_bytes() > before
    assert a.tolist() == list(range(1000))
    del a
    assert pyarrow.total_allocated_bytes() == before


# ---- Nullable columns, and columns of Arrow ----


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_nullable_column_without_nulls_is_imported_without_a_copy_C7(dtype):
    series = pandas.Series([0, 1, 2], dtype=NULLABLE[dtype])
    by_numpy = dlarray.from_dlpack(series.to_numpy(dtype=dtype))
    by_arrow = dlarray.from_dlpack(pyarrow.array(series.array))
    for a in (by_numpy, by_arrow):
        assert (a.dtype, a.tolist()) == (dtype, [0, 1, 2])
    assert by_numpy.data_ptr == by_arrow.data_ptr
    assert (by_numpy.readonly, by_arrow.readonly) == (False, True)
    by_numpy[0] = 5
    assert series.tolist() == by_arrow.tolist() == [5, 1, 2]


def test_an_array_becomes_a_nullable_column_without_a_copy():
    a = dlarray.arange(3)
    column = pandas.arrays.IntegerArray(numpy.from_dlpack(a), numpy.zeros(3, bool))
    series = pandas.Series(column, copy=False)
    a[0] = 7
    assert (series.dtype, series.tolist()) == ("Int64", [7, 1, 2])
    series.iloc[1] = pandas.NA
    assert dlarray.from_dlpack(series.to_numpy(dtype="int64", na_value=-1)).tolist() == [7, -1, 2]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_a_column_of_arrow_is_imported_without_a_copy_and_read_only_C7(dtype):
    series = arrow_column([0, 1, 2], dtype)
    chunk = pyarrow.array(series.array)
    a = dlarray.from_dlpack(chunk)
    assert (a.dtype, a.tolist()) == (dtype, [0, 1, 2])
    assert a.data_ptr == chunk.buffers()[1].address == address(series.to_numpy())
    assert a.readonly
    with pytest.raises(ValueError):
        a.setflags(writeable=True)
    with pytest.raises(BufferError, match="read-only"):
        a.__dlpack__()
    assert numpy.from_dlpack(a).flags.writeable is False
    assert not dlarray.from_dlpack(chunk, copy=True).readonly


def test_a_slice_of_an_arrow_column_begins_at_its_offset_D1():
    series = arrow_column(range(6), "int64")
    a = dlarray.from_dlpack(pyarrow.array(series[2:5].array))
    assert a.tolist() == [2, 3, 4]
    assert a.data_ptr == address(series.to_numpy()) + 16


def test_a_column_in_chunks_is_imported_chunk_by_chunk_C6():
    column = pandas.arrays.ArrowExtensionArray(pyarrow.chunked_array([[0, 1], [2]]))
    chunks = pyarrow.array(pandas.Series(column).array)
    with pytest.raises(AttributeError, match="'pyarrow.lib.ChunkedArray' object has no attribute '__dlpack__'"):
        dlarray.from_dlpack(chunks)
    assert [dlarray.from_dlpack(chunk).tolist() for chunk in chunks.chunks] == [[0, 1], [2]]


def test_an_array_becomes_a_column_of_arrow_without_a_copy():
    a = dlarray.arange(3)
    series = pandas.Series(pandas.arrays.ArrowExtensionArray(pyarrow.array(numpy.from_dlpack(a))), copy=False)
    assert series.dtype == "int64[pyarrow]"
    assert address(series.to_numpy()) == a.data_ptr
    assert dlarray.from_dlpack(pyarrow.array(series.array)).data_ptr == a.data_ptr


# ---- Refusals, and the library that refuses ----


@pytest.mark.parametrize("column", [arrow_column, lambda values, dtype: pandas.Series(values, dtype=NULLABLE[dtype])])
def test_nulls_are_refused_by_name_C1_P7(column):
    series = column([1, None, 3], "int64")
    chunk = pyarrow.array(series.array)
    with pytest.raises(TypeError, match="arrays with no nulls") as raised:
        dlarray.from_dlpack(chunk)
    assert "arrays with no nulls" in str(raised.value.__context__)  # a TypeError: __dlpack__ was called a second time
    assert raised.value.__context__.__context__ is None
    assert dlarray.from_dlpack(series.to_numpy(dtype="int64", na_value=0)).tolist() == [1, 0, 3]


@pytest.mark.parametrize("dtype", ["str", "object", "string[pyarrow]", "category"])
def test_strings_are_refused_by_numpy_and_pyarrow_P7(dtype):
    series = pandas.Series(["x", "y"], dtype=dtype)
    with pytest.raises(BufferError, match="only supports"):
        dlarray.from_dlpack(series.to_numpy())
    with pytest.raises(TypeError, match="not compatible with DLPack spec: .*string"):
        dlarray.from_dlpack(pyarrow.array(series.array))


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[s]", "timestamp[us][pyarrow]"])
def test_times_are_refused_and_their_counts_are_imported_P7(dtype):
    series = pandas.Series([1000, 2000], dtype="int64").astype(dtype)
    with pytest.raises(BufferError, match="only supports"):
        dlarray.from_dlpack(series.to_numpy())
    with pytest.raises(TypeError, match="not compatible with DLPack"):
        dlarray.from_dlpack(pyarrow.array(series.array))
    assert dlarray.from_dlpack(series.to_numpy().view("int64")).tolist() == [1000, 2000]


@pytest.mark.parametrize("dtype", ["bool", "boolean", "bool[pyarrow]"])
def test_bools_of_numpy_are_imported_and_bools_as_bits_are_refused_D6(dtype):
    series = pandas.Series([True, False], dtype=dtype)
    assert dlarray.from_dlpack(series.to_numpy(dtype=bool)).tolist() == [True, False]
    with pytest.raises(TypeError, match="Bit-packed boolean"):
        dlarray.from_dlpack(pyarrow.array(series.array))


def test_a_series_itself_is_no_producer_C6():
    for thing in (pandas.Series([1]), pandas.DataFrame([1]), pandas.Index([1]), pandas.array([1])):
        with pytest.raises(AttributeError, match="__dlpack__"):
            dlarray.from_dlpack(thing)

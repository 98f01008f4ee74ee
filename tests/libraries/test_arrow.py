"""Columns of Arrow libraries exported by examples/arrow, compared with PyArrow's __dlpack__ (P7, C7, P9).

Column refuses what PyArrow refuses, except lists of a fixed size and tables of one column. It also refuses the
extension type fixed_shape_tensor, whose shape and permutation it does not read.
"""

import gc
import os

import dltensor
import pytest
from arrow_column import Column
from optional import numpy

NUMBERS = [name for name in dltensor.DTYPES if name[0] in "iuf"]


def library(name):
    try:
        return __import__(name)
    except ModuleNotFoundError:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        return without(f"{name}: make test-libraries installs it")


@pytest.fixture
def pyarrow():
    return library("pyarrow")


def exported(a):
    return dltensor.read(a.__dlpack__(max_version=(1, 3)))


# ---- Compared with PyArrow's __dlpack__ ----


def columns(pyarrow):
    """Objects of PyArrow by name. "+": only Column takes it. "-": only PyArrow exports it."""
    numbers = {name: pyarrow.array([1, 2, 3, 4], pyarrow.from_numpy_dtype(name)) for name in NUMBERS}
    integers = pyarrow.array(range(6))
    times = [pyarrow.date32(), pyarrow.date64(), pyarrow.time32("s"), pyarrow.time64("us"), pyarrow.timestamp("ns")]
    texts = ["string", "large_string", "string_view", "binary", "large_binary", "binary_view"]
    lists = ["list_", "large_list", "list_view", "large_list_view"]
    return {
        **numbers,
        **{f"slice of {name}": a[1:3] for name, a in numbers.items()},
        **{f"no rows of {name}": a[4:] for name, a in numbers.items()},
        "no nulls in the slice": pyarrow.array([1, None, 3, 4])[2:],
        "a null in the slice": pyarrow.array([1, None, 3, 4])[1:],
        "a null": pyarrow.array([1, None]),
        "nulls": pyarrow.nulls(2),
        "bool": pyarrow.array([True]),
        **{str(time): pyarrow.array([0], time) for time in times},
        **{text: pyarrow.array(["x"], getattr(pyarrow, text)()) for text in texts},
        "fixed-size binary": pyarrow.array([b"xy"], pyarrow.binary(2)),
        "decimal": pyarrow.array([1], pyarrow.decimal128(10, 2)),
        "dictionary": pyarrow.array(["x"]).dictionary_encode(),
        **{name: pyarrow.array([[1]], getattr(pyarrow, name)(pyarrow.int8())) for name in lists},
        "map": pyarrow.array([[(1, 2)]], pyarrow.map_("int8", "int8")),
        "union": pyarrow.UnionArray.from_dense(pyarrow.array([0], "int8"), pyarrow.array([0], "int32"), [integers]),
        "run-end encoded": pyarrow.RunEndEncodedArray.from_arrays([2], [1]),
        "extension": pyarrow.ExtensionArray.from_storage(pyarrow.bool8(), pyarrow.array([1], "int8")),
        "fixed_shape_tensor -": pyarrow.FixedShapeTensorArray.from_numpy_ndarray(numpy.zeros((2, 3))),
        "struct of two": pyarrow.StructArray.from_arrays([integers, integers], ["x", "y"]),
        "fixed-size lists +": pyarrow.FixedSizeListArray.from_arrays(integers, 2)[1:],
        "struct of one +": pyarrow.StructArray.from_arrays([integers], ["x"])[1:],
    }


def test_column_takes_and_refuses_the_columns_that_pyarrow_does_P7(pyarrow):
    taken, refused = 0, 0
    for name, a in columns(pyarrow).items():
        try:
            theirs = exported(a)
        except TypeError:
            if name.endswith("+"):
                assert numpy.from_dlpack(Column(a)).tolist() in ([[2, 3], [4, 5]], [1, 2, 3, 4, 5])
            else:
                with pytest.raises(BufferError):
                    Column(a)
                refused += 1
            continue
        assert not name.endswith("+")
        if name.endswith("-"):
            with pytest.raises(BufferError, match="extension type"):
                Column(a)
            continue
        c = Column(a)
        ours = exported(c)
        assert (ours.dtype, ours.shape, ours.flags) == (theirs.dtype, theirs.shape, theirs.flags), name
        assert ours.shape == (0,) or ours.data + ours.byte_offset == theirs.data + theirs.byte_offset, name
        assert numpy.from_dlpack(c).tolist() == a.to_pylist()
        taken += 1
    assert (taken, refused) == (34, 27)


def test_the_memory_of_pyarrow_is_freed_with_the_last_consumer_P9(pyarrow):
    gc.collect()
    before = pyarrow.total_allocated_bytes()
    a = numpy.from_dlpack(Column(pyarrow.array(range(1000))))
    assert pyarrow.total_allocated_bytes() > before
    assert a.sum() == 499500
    del a
    gc.collect()
    assert pyarrow.total_allocated_bytes() == before


# ---- All libraries ----

# For each library: code that makes a column of four rows, and code that makes objects that are refused.
MADE = {
    "pyarrow": {
        "numbers": "pyarrow.array([1, 2, 3, 4])",
        "chunked": "pyarrow.chunked_array([[1, 2], [3, 4], []]).combine_chunks()",
        "stream": "pyarrow.chunked_array([[], [1, 2, 3, 4]], 'int64')",
        "table": "pyarrow.table({'x': [1, 2, 3, 4]})",
        "batch": "pyarrow.record_batch({'x': [1, 2, 3, 4]})",
        "slice": "pyarrow.array([0, 1, 2, 3, 4, 5])[1:5]",
    },
    "polars": {
        "numbers": "polars.Series([1, 2, 3, 4])",
        "chunked": "polars.Series([1, 2]).append(polars.Series([3, 4])).rechunk()",
        "table": "polars.DataFrame({'x': [1, 2, 3, 4]})",
        "slice": "polars.Series([0, 1, 2, 3, 4, 5])[1:5]",
        "nulls outside": "polars.Series([None, 1, 2, 3, 4])[1:]",
    },
    "duckdb": {
        "numbers": "duckdb.sql('SELECT range AS x FROM range(1, 5)')",
        "threads": "CONNECTION.sql('SELECT python_function(range) AS x FROM range(1, 5)')",
    },
    "pandas": {
        "numbers": "pandas.Series([1, 2, 3, 4])",
        "of Arrow": "pandas.Series([1, 2, 3, 4], dtype='int64[pyarrow]')",
        "table": "pandas.DataFrame({'x': [1, 2, 3, 4]})",
    },
    "nanoarrow": {
        "numbers": "nanoarrow.Array([1, 2, 3, 4], nanoarrow.int64())",
        "c_array": "nanoarrow.c_array([1, 2, 3, 4], nanoarrow.int64())",
        "stream": "nanoarrow.ArrayStream([1, 2, 3, 4], nanoarrow.int64())",
    },
}
LISTS = {
    "pyarrow": "pyarrow.array([[1, 2], [3, 4]], pyarrow.list_(pyarrow.int16(), 2))",
    "polars": "polars.Series([[1, 2], [3, 4]], dtype=polars.Array(polars.Int16, 2))",
    "duckdb": "duckdb.sql('SELECT [1 + 2 * range, 2 + 2 * range]::SMALLINT[2] AS x FROM range(2)')",
}
NO_ROWS = {
    "pyarrow": "pyarrow.chunked_array([], 'int16')",
    "polars": "polars.Series([], dtype=polars.Int16)",
    "duckdb": "duckdb.sql('SELECT 1::SMALLINT AS x WHERE false')",
    "pandas": "pandas.Series([], dtype='int16')",
}
REFUSED = {
    "pyarrow": [
        ("is null", "pyarrow.chunked_array([[1, None]])"),
        ("several chunks", "pyarrow.chunked_array([[1], [2]])"),
        ("2 columns", "pyarrow.table({'x': [1], 'y': [2]})"),
    ],
    "polars": [
        ("null", "polars.Series([1, None])"),
        ("several chunks", "polars.Series([1, 2]).append(polars.Series([3]))"),
        ("2 columns", "polars.DataFrame({'x': [1], 'y': [2]})"),
        ("booleans", "polars.Series([True])"),
        ("strings", "polars.Series(['x'])"),
        ("dictionary", "polars.Series(['x'], dtype=polars.Categorical)"),
        ("dates", "polars.Series([1]).cast(polars.Date)"),
    ],
    "duckdb": [
        ("null", "duckdb.sql('SELECT NULL::INT AS x')"),
        ("2 columns", "duckdb.sql('SELECT 1 AS x, 2 AS y')"),
        ("booleans", "duckdb.sql('SELECT true AS x')"),
        ("strings", "duckdb.sql(\"SELECT 'x' AS x\")"),
    ],
    "pandas": [
        ("null", "pandas.Series([1, None], dtype='Int64')"),
        ("2 columns", "pandas.DataFrame({'x': [1], 'y': [2]})"),
        ("strings", "pandas.Series(['x'])"),
        ("dates", "pandas.Series(['2000-01-01'], dtype='datetime64[ns]')"),
    ],
    "nanoarrow": [
        ("booleans", "nanoarrow.c_array([True], nanoarrow.bool_())"),
        ("null", "nanoarrow.c_array([1, None], nanoarrow.int64())"),
    ],
}


def make(name, program):
    names = {name: library(name)}
    if name == "pandas":
        library("pyarrow")  # pandas makes its stream with PyArrow
    if "CONNECTION" in program:
        names["CONNECTION"] = names[name].connect()
        names["CONNECTION"].create_function("python_function", lambda x: x, ["BIGINT"], "BIGINT")
    return eval(program, names), names


def each(programs):
    return [pytest.param(name, text, id=f"{name}-{what}") for name in programs for what, text in programs[name].items()]


@pytest.mark.parametrize("name, program", each(MADE))
def test_a_column_of_each_library_is_taken(name, program):
    source, names = make(name, program)
    a = numpy.from_dlpack(Column(source))
    del source, names
    gc.collect()
    assert (a.dtype, a.tolist(), a.flags.writeable) == ("int64", [1, 2, 3, 4], False)


@pytest.mark.parametrize("name", LISTS)
def test_fixed_size_lists_of_each_library_are_rank_2(name):
    source, _ = make(name, LISTS[name])
    a = numpy.from_dlpack(Column(source))
    assert (a.dtype, a.tolist()) == ("int16", [[1, 2], [3, 4]])


@pytest.mark.parametrize("name", NO_ROWS)
def test_a_column_without_rows_of_each_library_is_taken(name):
    source, _ = make(name, NO_ROWS[name])
    tensor = exported(Column(source))
    assert (tensor.dtype, tensor.shape) == (dltensor.DTYPES["int16"], (0,))


@pytest.mark.parametrize("name, text, program", [(name, *case) for name in REFUSED for case in REFUSED[name]])
def test_unsupported_objects_of_each_library_are_refused_P7(name, text, program):
    source, _ = make(name, program)
    with pytest.raises(BufferError, match=text):
        Column(source)


@pytest.mark.parametrize("name", ["pyarrow", "polars"])
def test_a_column_shares_the_memory_of_the_library(name):
    source, _ = make(name, MADE[name]["numbers"])
    theirs = source.to_numpy(**({"zero_copy_only": True} if name == "pyarrow" else {"allow_copy": False}))
    assert numpy.from_dlpack(Column(source)).ctypes.data == theirs.ctypes.data

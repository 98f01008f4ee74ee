"""Each array is exchanged or refused between dlarray and each library as expected here (D, P, C, X)."""

import fnmatch
import json
import os
import sys
from pathlib import Path

import array_libraries
import exchanges
import pytest

# For each library and direction the rows that are not exchanged, as patterns: the last matching pattern counts.
# After the colon stands the type of the exception. "none": the producer has no such array.
ALL = {"to dlarray": {"exchange API": "none"}, "from dlarray": {"exchange API": "not used"}}
STORED = "bfloat16, float[468]_*"
LACKING = {"float4_e2m1fnx2": "none"}  # in dlarray
LEGACY = "refused by dlarray: BufferError"  # asked for a legacy capsule, which cannot say read-only (P3)
UNLIKE = {
    "numpy": {
        "to dlarray": {STORED: "none"},
        "from dlarray": {STORED: "refused by numpy: RuntimeError"},
    },
    "torch": {
        "to dlarray": {
            "float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float6_*, float4_e2m1fn": "none",
            "float4_e2m1fnx2": "refused by dlarray: BufferError",
            "negative steps, read-only": "none",
            "exchange API": "used",
        },
        "from dlarray": {
            "float8_e3m4, float8_e4m3, float8_e4m3b11fnuz, float6_*, float4_*": "refused by torch: BufferError",
            "negative steps": "ends the process: SIGABRT",  # D11
            "read-only": "exchanged, writable",
        },
    },
    "jax": {
        "to dlarray": {
            "float6_*, float4_e2m1fnx2": "none",
            "F order, *steps, broadcast, odd stride*, writable": "none",
        },
        "from dlarray": {
            "float6_*, float4_*": "refused by jax: JaxRuntimeError",
            "a slice": "copied",  # not aligned to 64 bytes
            "steps, negative steps, broadcast": "refused by jax: JaxRuntimeError",
            "writable": "exchanged, read-only",
            "read-only": LEGACY,
            "copy=True": "exchanged, not copied",
        },
    },
    "pyarrow.Array": {
        "to dlarray": {
            "complex*": "none",
            STORED: "none",
            "bool": "refused by pyarrow.Array: ArrowTypeError",
            "? order, *steps, broadcast, odd stride*, rank*, empty matrix, writable": "none",
        },
        "from dlarray": {
            "bool, complex*": "refused by pyarrow.Array: ArrowInvalid",
            STORED: "refused by pyarrow.Array: ArrowInvalid",
            "? order, *steps, broadcast, odd stride*, rank*, empty matrix": "refused by pyarrow.Array: ArrowInvalid",
            "writable": "exchanged, read-only",
        },
    },
    "pyarrow.Tensor": {
        "to dlarray": {"bool, complex*": "none", STORED: "none", "negative steps": "none"},
        "from dlarray": {
            "bool, complex*": "refused by pyarrow.Tensor: ArrowInvalid",
            STORED: "refused by pyarrow.Tensor: ArrowInvalid",
            "negative steps": "refused by pyarrow.Tensor: ArrowInvalid",
        },
    },
    "tensorflow": {
        "to dlarray": {
            "float[468]_*": "none",
            "float8_e4m3fn, float8_e5m2": "refused by tensorflow: InvalidArgumentError",
            "F order, *steps, broadcast, odd stride*, writable": "none",
            "copy=True, device=": "refused by tensorflow: RuntimeError",
        },
        "from dlarray": {
            "float[468]_*": "refused by tensorflow: InvalidArgumentError",
            "F order, *steps, broadcast": "refused by tensorflow: InvalidArgumentError",
            "writable": "exchanged, read-only",
            "read-only": LEGACY,
            "copy=*, device=": "refused by tensorflow: TypeError",
        },
    },
    "paddle": {
        "to dlarray": {
            "uint16, uint32, uint64, float[468]_*": "none",
            "float8_e4m3fn, float8_e5m2": "exchanged",
            "rank 32, rank 64, read-only": "none",
            "exchange API": "used",
        },
        "from dlarray": {
            "float[468]_*": "refused by paddle: NotImplementedError",
            "float8_e4m3fn, float8_e5m2": "exchanged",
            "negative steps": "unreadable: MemoryError",
            "rank 32, rank 64": "refused by paddle: RuntimeError",
            "read-only": "exchanged, writable",
        },
    },
    "mlx": {
        "to dlarray": {
            "complex128, float[468]_*": "none",
            "writable": "none",
            "there and back": "copied",  # the import back into the library copies
        },
        "from dlarray": {
            "*": "copied",
            "float64": "copied as float32",
            "complex128": "copied as complex64",
            "float[468]_*": "refused by mlx: ValueError",
            "empty*": "exchanged",
            "negative steps, copy=False": "refused by mlx: ValueError",
            "device=": "refused by mlx: TypeError",
            "exchange API": "not used",
        },
    },
    "tvm_ffi": {
        "to dlarray": {
            "float4_e2m1fnx2": "refused by dlarray: BufferError",
            "read-only": "none",
            "copy=True": "refused by tvm_ffi: BufferError",
        },
        "from dlarray": {
            "read-only": "exchanged, writable",
            "copy=*, device=": "refused by tvm_ffi: TypeError",
            "exchange API": "used",
        },
    },
    "array_api_strict": {
        "to dlarray": {"float16": "none", STORED: "none"},
        "from dlarray": {
            "float16": "refused by array_api_strict: TypeError",
            STORED: "refused by array_api_strict: RuntimeError",
        },
    },
}


def expected(name, direction):
    """The expected outcome of each row."""
    kinds = {**dict.fromkeys(exchanges.ROWS, "exchanged"), "copy=True": "copied"}
    for patterns in (ALL[direction], UNLIKE[name][direction], LACKING if direction == "from dlarray" else {}):
        for alternatives, kind in patterns.items():
            for pattern in alternatives.split(", "):
                fitting = fnmatch.filter(exchanges.ROWS, pattern)
                assert fitting, f"no row is called {pattern}"
                kinds.update(dict.fromkeys(fitting, kind))
    return kinds


HERE = array_libraries.installed()


@pytest.fixture(scope="module")
def outcome():
    """Returns the outcome of a library's cell, and writes all outcomes of the library into a file for table.py."""
    folder = Path(os.environ["DLPACK_PY_BUILD_DIR"]).parent / "libraries"
    folder.mkdir(exist_ok=True)
    happened = {}

    def find(name, cell):
        if name not in happened:
            happened[name] = exchanges.run(name)
            result = {"version": array_libraries.version(name), "cells": happened[name]}
            (folder / f"{name}.json").write_text(json.dumps(result))
        return happened[name][cell]

    return find


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the table is that of the versions which run on 3.11 and newer")
@pytest.mark.parametrize("cell", exchanges.CELLS)
@pytest.mark.parametrize("name", HERE)
def test_each_array_is_exchanged_or_refused_as_the_table_says(outcome, name, cell):
    direction, _, row = cell.partition(": ")
    kind, words = outcome(name, cell)
    if words:
        kind += ": " + words.partition(":")[0]
    assert kind == expected(name, direction)[row], words


def test_every_library_has_its_expectations():
    assert list(UNLIKE) == list(array_libraries.LIBRARIES)


@pytest.mark.skipif("torch" not in HERE, reason="torch: make test-libraries installs it")
def test_the_counter_counts_calls_of_torchs_table_by_tvm_ffi_X3():
    torch, tvm_ffi = array_libraries.torch(), array_libraries.tvm_ffi()
    a = exchanges.vector(torch)
    with exchanges.counted(torch.Array) as calls:
        b = tvm_ffi.from_dlpack(a)
    assert len(calls) == 1
    tvm_ffi.from_dlpack(a)
    assert len(calls) == 1
    assert tvm_ffi.values(b) == torch.values(a)

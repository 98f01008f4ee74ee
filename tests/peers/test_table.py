"""What becomes of each array between dlarray and each peer: a change on either side is a failing test (D, P, C, X)."""

import fnmatch
import json
import os
import sys
from pathlib import Path

import exchanges
import peers
import pytest

# By peer and direction, what is not exchanged: rows as patterns, of which the last that fits counts; the type of the
# exception stands behind the colon. "none": the side that gives has no such array.
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
            "a slice": "copied",  # it is not aligned to 64 bytes
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
            "there and back": "copied",  # on the way back
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


def expected(peer, direction):
    """By row."""
    kinds = {**dict.fromkeys(exchanges.ROWS, "exchanged"), "copy=True": "copied"}
    for patterns in (ALL[direction], UNLIKE[peer][direction], LACKING if direction == "from dlarray" else {}):
        for alternatives, kind in patterns.items():
            for pattern in alternatives.split(", "):
                fitting = fnmatch.filter(exchanges.ROWS, pattern)
                assert fitting, f"no row is called {pattern}"
                kinds.update(dict.fromkeys(fitting, kind))
    return kinds


HERE = peers.installed()


@pytest.fixture(scope="module")
def outcome():
    """Of a peer's cell. What happened in all of them is left where the table is drawn from."""
    folder = Path(os.environ["DLPACK_PY_BUILD_DIR"]).parent / "peers"
    folder.mkdir(exist_ok=True)
    happened = {}

    def find(peer, cell):
        if peer not in happened:
            happened[peer] = exchanges.run(peer)
            result = {"version": peers.version(peer), "cells": happened[peer]}
            (folder / f"{peer}.json").write_text(json.dumps(result))
        return happened[peer][cell]

    return find


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the table is that of the versions which run on 3.11 and newer")
@pytest.mark.parametrize("cell", exchanges.CELLS)
@pytest.mark.parametrize("peer", HERE)
def test_each_array_is_traded_or_refused_as_the_table_says(outcome, peer, cell):
    direction, _, row = cell.partition(": ")
    kind, words = outcome(peer, cell)
    if words:
        kind += ": " + words.partition(":")[0]
    assert kind == expected(peer, direction)[row], words


def test_every_peer_has_its_expectations():
    assert list(UNLIKE) == list(peers.PEERS)


@pytest.mark.skipif("torch" not in HERE, reason="torch: make test-peers installs it")
def test_the_count_of_the_table_sees_what_tvm_ffi_takes_from_torch_by_it_X3():
    torch, tvm_ffi = peers.torch(), peers.tvm_ffi()
    a = exchanges.vector(torch)
    with exchanges.counted(torch.Array) as calls:
        b = tvm_ffi.from_dlpack(a)
    assert len(calls) == 1
    tvm_ffi.from_dlpack(a)
    assert len(calls) == 1
    assert tvm_ffi.values(b) == torch.values(a)

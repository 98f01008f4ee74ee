"""A module for abi3t, the stable ABI of CPython 3.15 with and without a GIL (probe_abi3t.c)."""

import gc
import sys

import dlarray
import pytest
from dltensor import FORMS, VERSIONED, Made, name, read

if sys.version_info < (3, 15):
    pytest.skip("needs CPython 3.15: abi3t", allow_module_level=True)

import probe_abi3t


class Owner:
    pass


@pytest.mark.parametrize("form", FORMS)
def test_an_export_holds_its_owner_P2_P9(form):
    owner = Owner()
    before = sys.getrefcount(owner)
    capsule = probe_abi3t.produce(owner, (1, 0) if form == VERSIONED else None)
    assert name(capsule) == form
    assert probe_abi3t.total(capsule) == 3.0
    assert sys.getrefcount(owner) == before


def test_a_tensor_that_is_not_as_wanted_is_refused_C9():
    with pytest.raises(BufferError, match="dtype is int32, float64 was asked for"):
        probe_abi3t.total(dlarray.array([1, 2], "int32"))


def test_an_object_for_memory_without_a_type_is_exported_and_freed_P9():
    made = Made()
    thing = probe_abi3t.copied(made.capsule())
    gc.collect()
    assert made.deleted == 1
    assert type(thing).__name__ == "Object"
    assert thing.__dlpack_device__() == (1, 0)
    assert read(thing.__dlpack__(max_version=(1, 3))).shape == (3,)
    exports = [thing.__dlpack__(max_version=(1, 3)) for _ in range(3)]
    del thing
    assert [probe_abi3t.total(capsule) for capsule in exports] == [3.0, 3.0, 3.0]


def test_a_memoryview_holds_the_tensor_P9():
    made = Made()
    memory = probe_abi3t.memory(made.capsule())
    assert memory.tolist() == [0.0, 1.0, 2.0]
    assert made.deleted == 0
    del memory
    assert made.deleted == 1


@pytest.mark.parametrize("library", ["dlarray", "numpy"])
def test_a_result_is_an_array_of_the_arguments_library_X6(library):
    if library == "numpy":
        x = pytest.importorskip("numpy").arange(3.0)
    else:
        x = dlarray.array([0.0, 1.0, 2.0], "float64")
    result = probe_abi3t.like(x)
    assert type(result) is type(x)
    assert probe_abi3t.total(result) == 3.0

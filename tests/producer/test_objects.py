"""dlpack_py_object_steal: an object with __dlpack__ and __dlpack_device__ for memory that has no Python type."""

import copy
import ctypes
import gc
import pickle
import sys
import threading
import weakref

import dlarray
import dltensor
import producer_probe
import pytest
from array_libraries import needs_writable_numpy
from collecting import PYPY, collect, not_on_pypy
from dltensor import CPU, CUDA, CUDA_HOST, FORMS, IS_COPIED, LEGACY, PADDED, READ_ONLY, VERSIONED, Made
from optional import numpy

NOW = {"max_version": (1, 3)}
both_forms = pytest.mark.parametrize("form", FORMS)


def object_of(made):
    return producer_probe.object_steal(ctypes.addressof(made.managed), made.form == LEGACY)


def taken_from(obj, **keywords):
    """Consumes the capsule that obj exports: (address of the managed tensor, form)."""
    capsule = obj.__dlpack__(**keywords)
    form, address = dltensor.name(capsule), dltensor.address(capsule)
    dltensor.rename(capsule, "used_" + form)
    return address, form == LEGACY


@both_forms
def test_an_object_is_exported_repeatedly_and_its_tensor_deleted_once_at_the_end_P9_K4(form):
    made = Made(form, shape=(2, 3))
    obj = object_of(made)
    for _ in range(3):
        arrays = [dlarray.from_dlpack(obj, copy=copy) for copy in (None, False)]
        assert [a.data_ptr for a in arrays] == [made.address] * 2
        assert arrays[0].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    capsule = obj.__dlpack__(**NOW)
    alone = object()
    count, count_alone = sys.getrefcount(obj), sys.getrefcount(alone)
    assert count == count_alone + len(arrays) + 1
    del obj, arrays
    assert made.deleted == 0
    assert dltensor.read(capsule).data == made.address
    del capsule
    assert made.deleted == 1


@both_forms
def test_an_object_without_exports_deletes_its_tensor_when_it_dies_K3(form):
    made = Made(form)
    obj = object_of(made)
    assert made.deleted == 0
    del obj
    assert made.deleted == 1
    obj = object_of(Made(form, deleter=False))
    del obj


@both_forms
@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (9, 9)])
def test_an_object_of_either_form_is_exported_in_either_form_P2(form, max_version):
    made = Made(form)
    says = dltensor.read(object_of(made).__dlpack__(max_version=max_version))
    assert says.form == (VERSIONED if max_version and max_version[0] >= 1 else LEGACY)
    assert (says.data, says.shape, says.strides, says.dtype) == (made.address, (3,), (1,), (2, 64, 1))
    assert says.version == ((1, 3) if says.form == VERSIONED else None)


def types_of_objects():
    """How many types of the header's objects there are, garbage included."""
    return sum((t.__module__, t.__name__) == ("dlpack_py", "Object") for t in object.__subclasses__())


@not_on_pypy("a list of all types of C code")
def test_all_objects_share_a_type_that_is_made_once():
    first = object_of(Made())
    gc.disable()  # a type is a cycle
    try:
        before = types_of_objects()
        assert {type(object_of(Made())) for _ in range(10)} == {type(first)}
        assert before > 0 and types_of_objects() == before
    finally:
        gc.enable()


def test_an_object_keeps_the_read_only_and_padded_flags_P3_P4_C7():
    for flags, kept in [(0, 0), (READ_ONLY, READ_ONLY), (IS_COPIED, 0), (READ_ONLY | IS_COPIED | 1 << 40, READ_ONLY)]:
        obj = object_of(Made(flags=flags))
        assert dltensor.read(obj.__dlpack__(**NOW)).flags == kept
        if kept:
            with pytest.raises(BufferError, match="read-only"):
                obj.__dlpack__()
        assert dltensor.read(obj.__dlpack__(**NOW, copy=True)).flags == IS_COPIED
    obj = object_of(Made(flags=PADDED, dtype=(17, 4, 1)))
    assert dltensor.read(obj.__dlpack__(**NOW)).flags == PADDED


def test_a_legacy_tensor_counts_as_read_only_and_can_be_exported_in_the_legacy_form_C7():
    obj = object_of(Made(LEGACY))
    assert dltensor.read(obj.__dlpack__(**NOW)).flags == READ_ONLY
    assert dltensor.read(obj.__dlpack__()).form == LEGACY


@pytest.mark.parametrize(
    "device, shown", [(CPU, CPU), ((1, 7), CPU), (CUDA_HOST, CUDA_HOST), (CUDA, CUDA), ((10, 3), (10, 3))]
)
def test_an_object_returns_its_device_P8(device, shown):
    made = Made(device=device)
    obj = object_of(made)
    assert obj.__dlpack_device__() == shown
    assert dltensor.read(obj.__dlpack__(**NOW)).device == shown
    assert dltensor.read(obj.__dlpack__(**NOW, dl_device=shown, copy=False)).device == shown
    with pytest.raises(BufferError, match="dl_device is vulkan:0"):
        obj.__dlpack__(dl_device=(7, 0))


@pytest.mark.parametrize("device", [CUDA, (10, 3), (99, 0)])
def test_memory_that_the_cpu_cannot_read_is_not_copied_and_has_no_streams_P4_P5(device):
    made = Made(device=device)
    obj = object_of(made)
    for keywords in [{"copy": True}, {"dl_device": CPU}, {"dl_device": CPU, "copy": True}]:
        with pytest.raises(BufferError):
            obj.__dlpack__(**NOW, **keywords)
    assert made.deleted == 0
    assert dltensor.read(obj.__dlpack__(**NOW)).data == made.address  # no operation of the device is called


def test_an_object_accepts_the_arguments_of_dlpack_P1_P6():
    obj = object_of(Made())
    for keywords, error in [
        ({"stream": 3}, ValueError),
        ({"stream": "x"}, TypeError),
        ({"copy": 1}, TypeError),
        ({"max_version": 1}, TypeError),
        ({"unknown": 1}, TypeError),
    ]:
        with pytest.raises(error):
            obj.__dlpack__(**keywords)
    with pytest.raises(TypeError):
        obj.__dlpack__((1, 0))
    assert dltensor.read(obj.__dlpack__(stream=-1)).shape == (3,)


@both_forms
def test_null_strides_are_filled_in_and_a_byte_offset_is_folded_D1_D4(form):
    for ndim in (1, 3, 12):
        made = Made(form, shape=(2,) * ndim if ndim < 6 else (1,) * ndim, strides=None, byte_offset=16)
        obj = object_of(made)
        says = dltensor.read(obj.__dlpack__(max_version=(1, 0)))
        assert (says.data, says.byte_offset) == (made.address + 16, 0)
        assert says.strides == dltensor.compact(says.shape)
        del obj
        assert made.deleted == 1


def test_a_scalar_and_a_tensor_without_elements_are_exported_D3():
    assert dlarray.from_dlpack(object_of(Made(shape=()))).tolist() == 0.0
    assert dlarray.from_dlpack(object_of(Made(shape=(0, 3), data=None))).shape == (0, 3)


# ---- Refused tensors ----


@pytest.mark.parametrize("legacy", [False, True])
def test_null_is_a_buffer_error(legacy):
    with pytest.raises(BufferError, match="the managed tensor is NULL"):
        producer_probe.object_steal(0, legacy)


@pytest.mark.parametrize("version", [(0, 9), (2, 0), (2**32 - 1, 0)])
def test_an_unknown_major_version_is_deleted_and_not_read_K6(version):
    made = Made(version=version).poison()
    with pytest.raises(BufferError, match=f"DLPack version {version[0]}.{version[1]}, major version 1 was wanted"):
        object_of(made)
    assert made.deleted == 1


@both_forms
@pytest.mark.parametrize(
    "fields",
    [{"shape": (-1,)}, {"ndim": -1}, {"ndim": 65}, {"data": None}, {"shape": None, "ndim": 2}, {"dtype": (2, 0, 1)}],
    ids=str,
)
def test_a_malformed_tensor_is_deleted_and_refused_D8(form, fields):
    made = Made(form, **fields)
    with pytest.raises(BufferError):
        object_of(made)
    assert made.deleted == 1


@both_forms
def test_a_deleter_of_the_same_file_counts_only_in_its_own_field_K4(form):
    """Other fields of the struct have the address of the file's deleter, where the other form has its field."""
    deleter = dltensor.read(producer_probe.Thing(8, (0,)).__dlpack__(**({} if form == VERSIONED else NOW))).deleter
    if form == LEGACY:
        dtype = deleter >> 32 & 0xFF, deleter >> 40 & 0xFF, deleter >> 48 & 0xFFFF
        made = Made(form, ndim=ctypes.c_int32(deleter).value, dtype=dtype)
        with pytest.raises(BufferError):
            object_of(made)
    else:
        made = Made(form, ndim=0, shape=None, strides=None)
        made.managed.dl_tensor.shape = ctypes.cast(deleter, ctypes.POINTER(ctypes.c_int64))
        assert made.deleted == 0
        object_of(made)
    assert made.deleted == 1


def test_misaligned_memory_and_negative_strides_are_fine_D2_D5():
    made = Made(byte_offset=4)
    assert dltensor.read(object_of(made).__dlpack__(**NOW)).data == made.address + 4
    made = Made(strides=(-1,), byte_offset=16)
    assert dlarray.from_dlpack(object_of(made)).tolist() == [2.0, 1.0, 0.0]


@not_on_pypy("a type that Python code cannot call")
def test_python_code_cannot_create_such_an_object():
    obj = object_of(Made())
    kind = type(obj)
    for make in [
        kind,
        lambda: kind(obj),
        lambda: object.__new__(kind),
        lambda: kind.__new__(kind),
        lambda: type("Derived", (kind,), {}),
        lambda: copy.copy(obj),
        lambda: copy.deepcopy(obj),
        lambda: pickle.loads(pickle.dumps(obj)),
    ]:
        with pytest.raises(TypeError):
            make()
    with pytest.raises(TypeError):
        producer_probe.Thing.__class__ = kind
    with pytest.raises((AttributeError, TypeError)):
        obj.attribute = 1
    assert type(object_of(Made())) is kind


# ---- Owners, cycles, threads ----


class Owner(producer_probe.Thing):
    """An owner with attributes, which the garbage collector traverses."""


def owner_of_zeros():
    memory = (ctypes.c_double * 3)()
    owner = Owner(ctypes.addressof(memory), (3,), (1,), dtype=(2, 64, 1))
    owner.memory = memory
    return owner


@not_on_pypy("cycles through objects of extensions")
@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_cycle_through_the_owner_of_the_tensor_is_collected_P9(max_version):
    gc.collect()
    owner = owner_of_zeros()
    reference = weakref.ref(owner)
    owner.obj = producer_probe.object_steal(*taken_from(owner, max_version=max_version))
    assert gc.is_tracked(owner.obj)
    assert any(x is owner for x in gc.get_referents(owner.obj))
    del owner
    assert reference() is not None
    gc.collect()
    assert reference() is None


@not_on_pypy("cycles through objects of extensions")
def test_the_collector_finds_an_object_from_its_type_and_its_owner_P9():
    owner = owner_of_zeros()
    obj = producer_probe.object_steal(*taken_from(owner, **NOW))
    for referent in (owner, type(obj)):
        assert any(x is obj for x in gc.get_referrers(referent))


@not_on_pypy("cycles through objects of extensions")
def test_an_owner_in_use_is_not_collected_with_the_object_P9():
    owner = owner_of_zeros()
    owner.obj = producer_probe.object_steal(*taken_from(owner, **NOW))
    capsule, reference = owner.obj.__dlpack__(**NOW), weakref.ref(owner)
    del owner
    gc.collect()
    assert reference() is not None and dltensor.read(capsule).shape == (3,)
    del capsule
    gc.collect()
    assert reference() is None


def test_an_object_over_an_export_of_an_object_keeps_that_object_alive_P9():
    made = Made()
    obj = object_of(made)
    for _ in range(5):
        obj = producer_probe.object_steal(*taken_from(obj, **NOW))
    assert dlarray.from_dlpack(obj).data_ptr == made.address
    assert made.deleted == 0
    del obj
    collect(8)
    assert made.deleted == 1


def test_a_deleter_may_run_the_garbage_collector_K2():
    seen = []
    made = Made(on_delete=lambda: seen.append(gc.collect()))
    obj = object_of(made)
    del obj
    assert made.deleted == 1 and len(seen) == 1


def test_the_last_export_may_die_on_another_thread_K5():
    for where in ("this thread", "another thread", "a foreign thread"):
        made = Made()
        taken = dltensor.Taken(object_of(made).__dlpack__(**NOW))
        assert (taken.values(), made.deleted) == ([0.0, 1.0, 2.0], 0)
        taken.delete_on(where)
        assert made.deleted == 1


def test_threads_may_export_an_object_at_once():
    made = Made()
    objects, failed = [object_of(made)], []

    def export():
        for _ in range(500):
            if dlarray.from_dlpack(objects[0]).tolist() != [0.0, 1.0, 2.0]:
                failed.append(1)

    threads = [threading.Thread(target=export) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    count = sys.getrefcount(objects[0])
    assert count == (1 if PYPY else 2)
    objects.clear()
    assert made.deleted == 1


@needs_writable_numpy
def test_numpy_imports_an_object_without_a_copy():
    made = Made(shape=(2, 3))
    array = numpy.from_dlpack(object_of(made))
    array[1, 2] = 50.0
    assert made.memory[5] == 50.0
    assert not numpy.from_dlpack(object_of(Made(LEGACY))).flags.writeable
    copied = numpy.from_dlpack(object_of(made := Made()), copy=True)
    assert copied.tolist() == [0.0, 1.0, 2.0] and copied.flags.writeable and made.deleted == 1


@not_on_pypy("a trashcan")
def test_a_chain_of_100000_objects_is_freed_within_the_c_stack_P9():
    made = Made()
    obj = object_of(made)
    for _ in range(100_000):  # each object keeps the object before it alive
        obj = producer_probe.object_steal(*taken_from(obj, **NOW))
    assert made.deleted == 0
    del obj
    assert made.deleted == 1

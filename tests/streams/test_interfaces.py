"""The interfaces of array libraries for devices: from_dlpack with its arguments (C3, C4), and __cuda_array_interface__,
imported and exported (S1, S2)."""

import ctypes
import importlib
import sys

import pytest
from collecting import not_on_pypy
from dltensor import CPU, Made, Offer


class Recorder:
    """Passes calls of __dlpack__ on to an array, without one keyword; keeps their keywords and the current device.

    At module level: on a Python without a GIL, a class in a test may outlive the test and keep its objects alive.
    """

    def __init__(self, sim, array, says, without=None):
        self.sim, self.array, self.says, self.without, self.calls = sim, array, says, without, []

    def __dlpack_device__(self):
        return self.says

    def __dlpack__(self, **keywords):
        self.calls.append((keywords, self.sim.device))
        return self.array.__dlpack__(**{name: keywords[name] for name in keywords if name != self.without})


def address_bytes(view):
    return ctypes.string_at(view.data, view.shape[0])


# ---- from_dlpack(x, /, *, device=None, copy=None): C3, C4 ----


def test_from_dlpack_imports_the_data_in_place_on_the_consumers_stream_C3_S1(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.synchronize(producer)
    with sim.held(producer):
        sim.fill(producer, array.address, 7, 8)
        view = platform.other.from_dlpack(consumer, array)
    assert (view.data, view.device) == (array.address, (platform.DEVICE, 0))
    sim.check(consumer, view.data, 7, 8)
    view.release_on(consumer)


BAD_DEVICES = """nowhere - -:1 gpu CPU cpu: cuda: cuda:01 cuda:00 cuda:-1 cuda:+1 cuda1 cuda:x cuda:2147483648
    cuda:4294967296 cuda:4294967297 cuda:99999999999 cuda:18446744073709551617 cuda:1:1 cuda_ device(2,0)""".split()
BAD_DEVICES += [
    "",
    "cpu ",
    " cpu",
    "cuda: 1",
    "cuda:1 ",
    "cuda:1\n",
    "cuda:1\0",
    "cpu\0",
    "\ud800",
    "x" + "é" * 100,
    "cpu" * 4000,
]


@pytest.mark.parametrize("text", ["vulkan:3", "cuda_host", "cuda_managed:1", "metal", "trn:2147483647", "oneapi:0"])
def test_the_name_of_any_device_is_read_and_asked_for_C3(sim, platform, text):
    array = platform.probe.Array((8,), sim.stream())
    with pytest.raises(BufferError, match=f"device|{text}"):
        platform.other.from_dlpack(sim.stream(), array, device=text)


@pytest.mark.parametrize("device", ["the tuple", "the name"])
def test_from_dlpack_with_the_device_of_the_data_passes_the_device_and_the_stream_C3_C4(sim, platform, device):
    consumer = sim.stream(1)
    asked = (platform.DEVICE, 1) if device == "the tuple" else {"cuda": "cuda:1", "rocm": "rocm:1"}[platform.name]
    array = platform.probe.Array((8,), sim.stream(1), device=1)
    producer = Recorder(sim, array, (platform.DEVICE, 1))
    view = platform.other.from_dlpack(consumer, producer, device=asked, copy=False)
    assert view.device == (platform.DEVICE, 1)
    keywords = {"max_version": (1, 3), "dl_device": (platform.DEVICE, 1), "stream": consumer, "copy": False}
    assert producer.calls == [(keywords, 1)]
    view.release_on(consumer)


def test_from_dlpack_to_the_cpu_passes_no_stream_and_the_data_is_ready_C3_C4_P5(sim, platform):
    producer = sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.fill(producer, array.address, 7, 8)
    with sim.watched():
        view = platform.other.from_dlpack(sim.stream(), array, device="cpu")
    assert (view.device, address_bytes(view)) == (CPU, bytes([7] * 8))


def test_from_dlpack_to_the_cpu_does_not_ask_for_the_device_C3_C4(sim, platform):
    made = Made(device=CPU)
    view = platform.other.from_dlpack(sim.stream(), Offer(made), device="cpu")  # which has no __dlpack_device__
    assert (view.device, view.data) == (CPU, made.address)


def test_from_dlpack_of_an_array_of_the_cpu_is_refused_unless_the_cpu_is_asked_for_C3_C5(sim, platform):
    values = platform.probe.Array((8,), type=CPU[0])
    with pytest.raises(BufferError, match="device is cpu"):
        platform.other.from_dlpack(sim.stream(), values)
    assert platform.other.from_dlpack(sim.stream(), values, device="cpu").device == CPU


def test_from_dlpack_to_another_device_passes_the_device_to_the_producer_C3_C4(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    with sim.watched(), pytest.raises(BufferError, match="dl_device|device"):
        platform.other.from_dlpack(sim.stream(1), array, device=(platform.DEVICE, 1))
    moved = platform.probe.Array((8,), sim.stream(1), device=1)
    producer = Recorder(sim, moved, (platform.DEVICE, 0), without="dl_device")
    consumer = sim.stream(1)
    with sim.watched():
        view = platform.other.from_dlpack(consumer, producer, device=(platform.DEVICE, 1))
    assert view.device == (platform.DEVICE, 1)
    ((keywords, current),) = producer.calls
    assert (keywords["dl_device"], current) == ((platform.DEVICE, 1), 1)  # the stream is on the current device
    view.release_on(consumer)


@pytest.mark.parametrize("asked", ["cuda:1", "cpu"])
def test_a_producer_that_ignores_the_device_is_refused_with_the_names_of_both_C3_C9(sim, platform, asked):
    """__dlpack_device__ is not called: the text does not name it."""
    asked = asked.replace("cuda", platform.name)
    made = Made(device=(platform.DEVICE, 0))
    with pytest.raises(BufferError, match=f"^device is {platform.name}:0, {asked} was asked for$"):
        platform.other.from_dlpack(sim.stream(), Offer(made), device=asked)
    assert made.deleted == 1


def test_from_dlpack_to_the_cpu_uses_no_stream_whatever_its_number_C3(sim, platform):
    """The per-thread default stream has no number on ROCm."""
    array = platform.probe.Array((8,), sim.stream())
    assert platform.other.from_dlpack(2, array, device="cpu").device == CPU


@pytest.mark.parametrize(
    "arguments, error",
    [
        *(({"device": name}, ValueError) for name in BAD_DEVICES),
        ({"device": 3}, TypeError),
        ({"copy": 3}, TypeError),
        ({"stream": 3}, TypeError),
    ],
    ids=ascii,
)
def test_malformed_arguments_of_from_dlpack_are_refused_first_C3(sim, platform, arguments, error):
    array = platform.probe.Array((8,), sim.stream())
    sim.calls()
    with pytest.raises(error, match="device|copy|stream"):
        platform.other.from_dlpack(sim.stream(), array, **arguments)
    assert not any("Event" in call for call in sim.calls())


def test_a_copy_on_the_device_that_the_producer_does_not_make_is_refused_C3(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    with sim.watched(), pytest.raises(BufferError, match="copy"):
        platform.other.from_dlpack(sim.stream(), array, copy=True)


# ---- __cuda_array_interface__, imported ----


class Interface:
    """An object without __dlpack__, as Numba's arrays are."""

    def __init__(self, array, **changes):
        self.array, self.changes = array, changes

    @property
    def __cuda_array_interface__(self):
        found = {**self.array.__cuda_array_interface__, **self.changes}
        return {key: value for key, value in found.items() if value is not ...}


def consume(platform, obj, stream, **keywords):
    return platform.other.consume(obj, stream, options=platform.other.ARRAY_INTERFACE_TOO, **keywords)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_tensor_of_an_array_interface_is_taken_behind_its_stream_S1(sim, platform, version):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.synchronize(producer)
    with sim.held(producer):
        sim.fill(producer, array.address, 7, 8)
        with sim.watched():
            view = consume(platform, Interface(array, version=version), consumer)
    assert (view.data, view.shape, view.strides) == (array.address, (8,), (1,))
    assert (view.device, view.flags) == ((platform.DEVICE, 0), 0)
    sim.check(consumer, view.data, 7, 8)
    view.release_on(consumer)


def test_the_dict_of_an_array_interface_is_not_kept(sim, platform):
    array, value = platform.probe.Array((8,), sim.stream()), Number(0)
    obj = Interface(array, stream=None, unknown=value)
    before = sys.getrefcount(value)
    consume(platform, obj, sim.stream()).release()
    assert sys.getrefcount(value) == before


def test_the_view_of_an_array_interface_keeps_its_object(sim, platform):
    consumer = sim.stream()
    array = platform.probe.Array((8,), consumer)
    view = consume(platform, Interface(array), consumer)
    del array
    sim.fill(consumer, view.data, 1, 8)
    sim.synchronize(consumer)
    assert sim.live("memory") == 1
    view.release_on(consumer)
    sim.synchronize(consumer)
    assert sim.live("memory") == 0


@pytest.mark.parametrize("stream", [None, ...], ids=["None", "missing"])
def test_without_a_stream_an_array_interface_asks_for_no_order_S4(sim, platform, stream):
    array = platform.probe.Array((8,), sim.stream())
    sim.calls()
    view = consume(platform, Interface(array, stream=stream), sim.stream())
    assert not any("Event" in call for call in sim.calls())
    view.release()


def test_stream_1_of_an_array_interface_is_the_default_stream_S2(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    consumer = sim.stream()
    sim.calls()
    view = consume(platform, Interface(array, stream=1), consumer)
    assert any(f"EventRecord(event 1, {platform.default_name}" in call for call in sim.calls())
    view.release_on(consumer)


def test_the_default_stream_of_an_array_interface_is_that_of_the_data_s_device_S2_S5(sim, platform):
    array, own = platform.probe.Array((8,), 0, device=1), sim.stream(1)
    sim.synchronize(own)
    with sim.on_device(1), sim.held(0):
        sim.fill(0, array.address, 7, 8)
        with sim.on_device(0), sim.watched():
            view = consume(platform, Interface(array), own)
        sim.expect(own, view.data, 7, 8)
        sim.control("settle")
        assert sim.pending(own) == 1
    sim.synchronize(own)
    view.release_on(own)


def test_strides_and_dtypes_of_an_array_interface_D2(sim, platform):
    array = platform.probe.Array((64,), sim.stream())
    changes = {"shape": (2, 3), "strides": (4, 16), "typestr": "<f4", "stream": None}
    view = consume(platform, Interface(array, **changes), sim.stream())
    assert (view.shape, view.strides) == ((2, 3), (1, 4))
    view.release()
    sizes = {"|b1": 1, "|i1": 1, "|u1": 1, "<i2": 2, "<u4": 4, "<f2": 2, "<f8": 8, "<c8": 8, "<c16": 16}
    for typestr, size in sizes.items():
        changes = {"shape": (2,), "typestr": typestr, "stream": None}
        view = consume(platform, Interface(array, **changes), sim.stream())
        again = platform.probe.interface(view)
        assert (again["typestr"], again["shape"], again["strides"]) == (typestr, (2,), None), size
        view.release()


def test_read_only_memory_of_an_array_interface_is_read_only(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    view = consume(platform, Interface(array, data=(array.address, True), stream=None), sim.stream())
    assert view.flags == 1
    view.release()


def test_an_empty_array_interface_has_no_address(sim, platform):
    with sim.on_device(1):
        empty = {"shape": (0, 3), "typestr": "<f4", "data": (0, False), "version": 3}
        array = platform.probe.Array((8,), sim.stream())
        changes = {**empty, "strides": None, "stream": None}
        view = consume(platform, Interface(array, **changes), sim.stream(1))
    assert (view.shape, view.device) == ((0, 3), (platform.DEVICE, 1))
    view.release()


def test_pinned_memory_of_an_array_interface_is_named_as_such_D9(sim, platform):
    array = platform.probe.Array((8,), sim.stream(), type=platform.PINNED)
    consumer = sim.stream()
    with pytest.raises(BufferError, match="was asked for"):
        consume(platform, Interface(array), consumer)
    view = consume(platform, Interface(array), consumer, device=platform.PINNED)
    assert view.device == (platform.PINNED, 0)
    view.release_on(consumer)


def test_pinned_memory_of_an_array_interface_is_ordered_on_the_current_device_S5_D9(sim, platform):
    producer, consumer = sim.stream(1), sim.stream(1)
    array = platform.probe.Array((8,), producer, type=platform.PINNED)
    sim.fill(producer, array.address, 7, 8)
    with sim.on_device(1), sim.watched():
        view = consume(platform, Interface(array), consumer, device=platform.PINNED)
        assert not any("SetDevice" in call for call in sim.calls())
    sim.check(consumer, view.data, 7, 8)
    with sim.on_device(1):
        view.release_on(consumer)


def test_pinned_memory_of_an_array_interface_is_refused_as_cpu_memory_C5(sim, platform):
    array = platform.probe.Array((8,), sim.stream(), type=platform.PINNED)
    with pytest.raises(BufferError, match="_host, CPU memory was asked for"):
        consume(platform, Interface(array), sim.stream(), device=CPU[0])


@pytest.mark.parametrize(
    "changes, error, text",
    [
        ({"version": 1}, BufferError, "version 1, 2 or newer was wanted"),
        ({"version": ...}, BufferError, "version None"),
        ({"mask": "a mask"}, BufferError, "mask 'a mask'"),
        ({"typestr": ">f4"}, BufferError, "typestr '>f4'"),
        ({"typestr": "<V2"}, BufferError, "typestr '<V2'"),
        ({"typestr": "<f3"}, BufferError, "typestr '<f3'"),
        ({"typestr": "<f"}, BufferError, "typestr '<f'"),
        ({"typestr": "<f4junk"}, BufferError, "typestr '<f4junk'"),
        ({"typestr": "<f 4"}, BufferError, "typestr '<f 4'"),
        ({"typestr": ""}, BufferError, "typestr ''"),
        ({"typestr": None}, BufferError, "typestr None"),
        ({"shape": [8]}, BufferError, "shape list"),
        ({"shape": ("8",)}, BufferError, "shape"),
        ({"shape": (2**64,)}, BufferError, "shape"),
        ({"shape": (-1,)}, BufferError, "negative"),
        ({"shape": (1,) * 65}, BufferError, "shape"),
        ({"strides": (1, 1)}, BufferError, "strides"),
        ({"strides": (6,), "typestr": "<f4"}, BufferError, "strides"),
        ({"data": None}, BufferError, "data None"),
        ({"data": (1,)}, BufferError, "data"),
        ({"data": (0, False)}, BufferError, "data is NULL, the tensor has 8 elements"),
        ({"data": 4096}, BufferError, "data 4096, .address, read-only. was wanted"),
        ({"data": b"12345678"}, BufferError, "data bytes|data b'12345678'"),
        ({"data": ("1", False)}, BufferError, "data"),
        ({"stream": 0}, ValueError, "stream 0"),
        ({"stream": -1}, ValueError, "stream -1, None, 1, 2 or a handle"),
        ({"stream": "1"}, TypeError, "stream is '1'"),
    ],
    ids=str,
)
def test_an_invalid_array_interface_is_refused(sim, platform, changes, error, text):
    array = platform.probe.Array((8,), sim.stream())
    with sim.watched(), pytest.raises(error, match=text):
        consume(platform, Interface(array, **changes), sim.stream())


class Number:
    """An integer that runs code when it is read."""

    def __init__(self, value, run=lambda: None):
        self.value, self.run = value, run

    def __index__(self):
        self.run()
        return self.value


def test_an_array_interface_may_change_while_it_is_read(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    found = {**array.__cuda_array_interface__, "stream": None}

    class Changes:
        __cuda_array_interface__ = found

    found["shape"] = (Number(8, found.clear),)
    view = consume(platform, Changes(), sim.stream())
    assert (view.shape, found) == ((8,), {})
    view.release()


def test_addresses_and_extents_may_be_any_object_with_index_P2(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    changes = {"data": (Number(array.address), Number(0)), "shape": (Number(8),), "stream": None}
    changes["data"] = (Number(array.address), False)
    view = consume(platform, Interface(array, **changes), sim.stream())
    assert (view.data, view.shape) == (array.address, (8,))
    view.release()


@pytest.mark.parametrize("key", ["shape", "data"])
def test_an_interrupt_while_an_array_interface_is_read_is_passed_on(sim, platform, key):
    def interrupt():
        raise KeyboardInterrupt

    array = platform.probe.Array((8,), sim.stream())
    changes = {"shape": (Number(8, interrupt),)} if key == "shape" else {"data": (Number(8, interrupt), False)}
    with pytest.raises(KeyboardInterrupt):
        consume(platform, Interface(array, **changes), sim.stream())


def test_an_empty_array_interface_may_have_any_address_and_extents_of_1_any_stride_D3_D5(sim, platform):
    array = platform.probe.Array((64,), sim.stream())
    view = consume(platform, Interface(array, shape=(0,), data=(4096, False), stream=None), sim.stream())
    assert view.shape == (0,)
    view.release()
    changes = {"shape": (1, 3), "strides": (5, 4), "typestr": "<f4", "stream": None}
    view = consume(platform, Interface(array, **changes), sim.stream())
    assert view.strides[1] == 1
    view.release()


def test_a_refused_tensor_makes_no_stream_join_a_capture_S6(sim, platform):
    producer, consumer = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.synchronize(producer)
    with sim.capture(producer):
        with pytest.raises(BufferError, match="dtype is uint8"):
            consume(platform, Interface(array), consumer, dtype=platform.probe.COMPLEX64)
        assert sim.capturing(consumer) == 0


def test_a_refused_tensor_of_a_device_that_is_asked_for_is_not_ordered_C3_S6(sim, platform):
    """The default stream, on which a Vector works, cannot join a capture: that would be another error."""
    Vector = importlib.import_module(f"{platform.name}_vector").Vector
    producer = sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.synchronize(producer)
    with sim.capture(producer), pytest.raises(BufferError, match="dtype is uint8, float32 was asked for"):
        Vector.from_dlpack(Interface(array), device=(platform.DEVICE, 0))


def test_an_array_interface_is_copied_to_the_cpu_behind_its_stream_C3_P5(sim, platform):
    producer = sim.stream()
    array = platform.probe.Array((8,), producer)
    sim.fill(producer, array.address, 7, 8)
    for keywords in ({"device": CPU}, {"device": "cpu", "copy": True}):
        with sim.watched():
            view = platform.other.from_dlpack_too(sim.stream(), Interface(array), **keywords)
            assert not [call for call in sim.calls() if "StreamWaitEvent" in call]  # the copy is complete
        assert (view.device, address_bytes(view)) == (CPU, b"\7" * 8)
        assert view.data != array.address
        view.release()


def test_an_array_interface_is_taken_with_its_own_device_and_no_copy_C3(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    for keywords in ({}, {"device": (platform.DEVICE, 0)}, {"copy": False}):
        view = platform.other.from_dlpack_too(sim.stream(), Interface(array), **keywords)
        assert (view.device, view.data) == ((platform.DEVICE, 0), array.address)
        view.release()


@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"copy": True}, "copy"),
        ({"device": CPU, "copy": False}, "copy is False"),
        ({"device": "other"}, "dl_device is .*:1, the data is on .*:0"),
    ],
    ids=str,
)
def test_what_cannot_be_made_of_an_array_interface_is_refused_C3_P4_P5(sim, platform, keywords, text):
    array = platform.probe.Array((8,), sim.stream())
    keywords = {**keywords, **({"device": (platform.DEVICE, 1)} if "other" in keywords.values() else {})}
    with sim.watched(), pytest.raises(BufferError, match=text):
        platform.other.from_dlpack_too(sim.stream(), Interface(array), **keywords)


def test_an_array_interface_is_not_ordered_where_nothing_is_pending_S4(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    options = platform.other.ARRAY_INTERFACE_TOO | platform.other.NOTHING_PENDING
    sim.calls()
    view = platform.other.consume(Interface(array), sim.stream(), options=options)
    assert view.data == array.address and not any("Event" in call for call in sim.calls())
    view.release()


class Rude:
    """A key with the hash of a name, whose comparison raises."""

    def __init__(self, name):
        self.hash = hash(name)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        raise KeyError("not comparable")


@pytest.mark.parametrize("key", ["shape", "data", "stream"])
def test_an_error_of_a_key_of_an_array_interface_is_raised(sim, platform, key):
    array = platform.probe.Array((8,), sim.stream())
    found = array.__cuda_array_interface__
    obj = type("Interface", (), {})()
    obj.__cuda_array_interface__ = {Rude(key): 0, **{name: found[name] for name in found if name != key}}
    with sim.watched(), pytest.raises(KeyError, match="not comparable"):
        consume(platform, obj, sim.stream())


def test_an_error_of_the_look_up_of_dlpack_is_raised_C6(sim, platform):
    asked = []

    class Raises(Interface):
        @property
        def __dlpack__(self):
            asked.append(self)
            raise KeyError("nobody")

    array = platform.probe.Array((8,), sim.stream())
    with sim.watched(), pytest.raises(KeyError, match="nobody"):
        consume(platform, Raises(array), sim.stream())
    assert len(asked) == 1
    asked.clear()


def test_requirements_that_contradict_each_other_are_a_system_error_C9(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    sim.calls()
    with pytest.raises(SystemError, match="want: dtype is 5"):
        consume(platform, Interface(array), sim.stream(), dtype=5)
    assert not any("Event" in call for call in sim.calls())


def test_memory_of_the_cpu_has_no_array_interface_to_take(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    memory = ctypes.create_string_buffer(8)
    with pytest.raises(BufferError, match="no memory of a device"):
        consume(platform, Interface(array, data=(ctypes.addressof(memory), False)), sim.stream())


def test_an_array_interface_is_taken_only_with_the_option_and_without_dlpack(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    with pytest.raises(AttributeError, match="__dlpack_"):
        platform.other.consume(Interface(array), sim.stream())
    asked = []

    class Both(Interface):
        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

        def __dlpack__(self, **keywords):
            asked.append(keywords)
            return self.array.__dlpack__(**keywords)

    consume(platform, Both(array), sim.stream()).release()
    assert len(asked) == 1
    with pytest.raises(AttributeError, match="__dlpack_"):
        consume(platform, object(), sim.stream())


def test_an_array_interface_that_is_no_dict_or_raises_is_refused(sim, platform):
    class Text:
        __cuda_array_interface__ = "text"

    class Raises:
        @property
        def __cuda_array_interface__(self):
            raise KeyError("nobody")

    with pytest.raises(TypeError, match="is 'text', a dict was wanted"):
        consume(platform, Text(), sim.stream())
    with pytest.raises(KeyError, match="nobody"):
        consume(platform, Raises(), sim.stream())


@pytest.mark.parametrize("number", range(1, 8))
def test_a_call_that_fails_leaves_nothing_of_an_array_interface_S9(sim, platform, number):
    array = platform.probe.Array((8,), sim.stream())
    obj, consumer = Interface(array), sim.stream()
    with sim.watched(), sim.failing(None, number), pytest.raises(RuntimeError, match="a kernel failed"):
        consume(platform, obj, consumer)
    consume(platform, obj, consumer).release_on(consumer)


# ---- __cuda_array_interface__, exported ----


def test_an_array_interface_is_given_in_version_3_with_its_stream(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((2, 3), stream, dtype=platform.probe.COMPLEX64)
    assert array.__cuda_array_interface__ == {
        "shape": (2, 3),
        "typestr": "<c8",
        "data": (array.address, False),
        "strides": None,
        "version": 3,
        "stream": stream,
    }


def test_strides_of_a_given_array_interface_are_in_bytes(sim, platform):
    fields = {"dtype": platform.probe.COMPLEX64, "offset": 16, "size": 99}
    array = platform.probe.Array((2, 3), sim.stream(), strides=(1, 2), **fields)
    given = array.__cuda_array_interface__
    assert (given["strides"], given["data"]) == ((8, 16), (array.address + 16, False))


def test_the_default_stream_of_a_given_array_interface_is_never_0_S2(sim, platform):
    given = platform.probe.Array((3,), 0).__cuda_array_interface__
    assert given["stream"] == 1
    assert platform.probe.Array((3,), sim.stream(), flags=1).__cuda_array_interface__["data"][1] is True


HIGHEST = 2 * sys.maxsize + 1  # -1 as an unsigned number


def test_memory_has_no_device_where_the_runtime_has_none_S9(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    sim.watch_gil(False)  # find_device() of the probe holds the GIL
    errors = [1, 35, 100] + ([34] if platform.is_cuda else [101])  # 34: the library is a stub, for linking alone
    for error in errors:
        with sim.watched(), sim.failing("PointerGetAttributes", error=error):
            assert platform.probe.find_device(array.address) == CPU
    with sim.failing("PointerGetAttributes"), pytest.raises(RuntimeError):
        platform.probe.find_device(array.address)
    assert platform.probe.find_device(array.address) == (platform.DEVICE, 0)


def test_a_given_array_interface_can_say_that_nothing_is_pending_S4(sim, platform):
    array, own = platform.probe.Array((8,), sim.stream()), sim.stream()
    view = platform.probe.consume(array, own)
    given = platform.probe.interface(view, HIGHEST)
    assert (given["stream"], given["version"]) == (None, 3)
    assert platform.probe.interface(view)["stream"] == 1
    assert [platform.probe.interface(view, stream)["stream"] for stream in (0, 1, 2, own)] == [1, 1, 2, own]
    obj = type("Interface", (), {"__cuda_array_interface__": given})()
    with sim.watched():
        consume(platform, obj, sim.stream()).release()
        assert not any("Event" in call for call in sim.calls())


def test_the_stream_of_a_given_array_interface_is_held_by_its_dict_alone(sim, platform):
    array = platform.probe.Array((8,), sim.stream())
    stream = array.__cuda_array_interface__["stream"]  # the dict is gone
    alone = int(str(stream))
    assert sys.getrefcount(stream) == sys.getrefcount(alone)


def test_an_array_without_array_interface_has_no_such_attribute(sim, platform):
    bfloat16 = 4 << 24 | 16 << 16 | 1
    arrays = {"cpu": platform.probe.Array((3,), type=1), "bfloat16": platform.probe.Array((3,), 0, dtype=bfloat16)}
    for what, array in arrays.items():
        assert not hasattr(array, "__cuda_array_interface__")
        with pytest.raises(AttributeError, match=f"no __cuda_array_interface__ for {what}"):
            array.__cuda_array_interface__


@not_on_pypy("_testcapi")
def test_an_array_interface_for_which_there_is_no_memory_is_a_memory_error_P7(sim, platform):
    memory = pytest.importorskip("_testcapi", reason="CPython was installed without its test modules")
    array, own = platform.probe.Array((300, 2), sim.stream(), strides=(600, 2), size=200000), sim.stream()
    view = platform.probe.consume(array, own)
    expected = platform.probe.interface(view, own)
    failures = 0
    for start in range(100):
        memory.set_nomemory(start, start + 1)
        try:
            given = platform.probe.interface(view, own)
        except MemoryError:
            memory.remove_mem_hooks()
            failures += 1
            continue
        memory.remove_mem_hooks()
        assert given == expected
        break
    assert 5 < failures < 100


def test_an_empty_array_exports_no_address(sim, platform):
    for size in (0, 8):  # bytes of memory
        given = platform.probe.Array((0, 3), sim.stream(), size=size).__cuda_array_interface__
        assert (given["shape"], given["data"], given["strides"]) == ((0, 3), (0, False), None)


def test_numba_s_order_of_events_both_ways_S1(sim, platform):
    """Two extensions exchange by the array interface only."""
    one, other = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), one)
    for turn in range(3):
        sim.fill(one, array.address, turn, 8)
        view = consume(platform, Interface(array), other)
        sim.expect(other, view.data, turn, 8)
        view.release_on(other)
        sim.synchronize(other)

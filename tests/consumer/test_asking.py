"""How a consumer calls __dlpack__: which method, with which keywords, and when a second time (C1, C3, C4, C5, C6)."""

import sys

import dltensor
import pytest
from collecting import collect, not_on_pypy
from consumer_probe import (
    DLPACK_PY_ANY_DEVICE,
    DLPACK_PY_WANT_COPY_IF_NEEDED,
    DLPACK_PY_WANT_NOTHING_PENDING,
    CalledFromC,
    check,
    check_in_flight,
    consume,
    from_dlpack,
)
from dltensor import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, LEGACY, ROCM_HOST, TPU_HOST, VERSIONED, Made, Producer

VERSION = {"max_version": (1, 3)}
both_forms = pytest.mark.parametrize("form", [VERSIONED, LEGACY])


class Scripted:
    """Each call of __dlpack__ uses the next answer: raises it, calls it, or returns it."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        answer = self.answers.pop(0)
        try:
            if isinstance(answer, BaseException):
                raise answer
            return answer() if callable(answer) else answer
        finally:
            del answer  # no cycle of exception, traceback and frame


# ---- Keywords: C1, C3, C4 ----


def test_a_cpu_consumer_passes_only_max_version_and_does_not_call_dlpack_device_C4():
    producer = Producer()
    consume(producer)
    assert producer.calls == [VERSION]


def test_a_request_for_the_cpu_passes_max_version_only_C4():
    producer = Producer()
    consume(producer, by_request=True)
    assert producer.calls == [VERSION]


@pytest.mark.parametrize("device", [None, CPU, "cpu"])
@pytest.mark.parametrize("copy", [None, True, False])
def test_copy_and_dl_device_are_passed_only_when_asked_for_C3(device, copy):
    producer = Producer()
    from_dlpack(producer, device=device, copy=copy)
    wanted = dict(VERSION)
    if device is not None:
        wanted["dl_device"] = CPU
    if copy is not None:
        wanted["copy"] = copy
    assert producer.calls == [wanted]


def old_python(make):
    class Old:
        def __dlpack__(self, stream=None):
            return make()

    return Old()


def older_python(make):
    class Old:
        def __dlpack__(self):
            return make()

    return Old()


def called_from_c(method):
    def old(make):
        producer = type("Old", (CalledFromC,), {"__dlpack__": getattr(CalledFromC, method)})()
        producer.answer = make
        return producer

    old.__name__ = "c_" + method
    return old


OLD_PRODUCERS = [old_python, older_python, *map(called_from_c, ["noargs", "varargs", "stream", "no_keyword"])]


@pytest.mark.parametrize("old", OLD_PRODUCERS, ids=lambda old: old.__name__)
def test_a_producer_whose_signature_lacks_max_version_is_called_without_it_C1(old):
    made = Made(LEGACY)
    view = consume(old(made.capsule))
    assert view.data == made.address
    view.release()
    assert made.deleted == 1


PYBIND11 = """__dlpack__(): incompatible function arguments. The following argument types are supported:
    1. (self: image.Image) -> capsule

Invoked with: <image.Image object at 0x7f0000000000>; kwargs: max_version=(1, 3)"""

BOOST = """Python argument types in
    Image.__dlpack__(Image)
did not match C++ signature:
    __dlpack__(Image {lvalue})"""

REFUSALS = [
    "Old.__dlpack__() got an unexpected keyword argument 'max_version'",  # Python, Cython, PyArg_ since 3.13
    "__dlpack__() got an unexpected keyword argument 'max_version'. Did you mean 'version'?",
    "'max_version' is an invalid keyword argument for __dlpack__()",  # PyArg_ before 3.13
    "__dlpack__() takes no keyword arguments",  # METH_NOARGS, Cython
    "this function takes no keyword arguments",
    "__dlpack__() accepts no keywords",
    "__dlpack__() takes at most 0 keyword arguments (1 given)",
    "__dlpack__() takes at most 1 keyword argument (3 given)",
    PYBIND11,
    PYBIND11.replace("image.Image) -> capsule", "image.Image, stream: object | None = None) -> object"),  # nanobind
    BOOST,
    "__dlpack__(self): 'max_version' is not a valid keyword argument",  # sip
    "",
    "boom",
    "'NoneType' object is not callable",
]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_type_error_of_any_text_is_followed_by_one_call_without_the_keyword_C1(text):
    made = Made(LEGACY)
    producer = Scripted(TypeError(text), made.capsule)
    assert consume(producer).data == made.address
    assert producer.calls == [VERSION, {}]


def test_a_class_derived_from_type_error_counts_as_a_type_error_C1():
    class Refusal(TypeError):
        pass

    producer = Scripted(Refusal("no"), Made(LEGACY).capsule)
    consume(producer)
    assert producer.calls == [VERSION, {}]


def test_the_second_call_keeps_no_keyword_that_an_old_signature_lacks_C1():
    made = Made(LEGACY)
    producer = Scripted(TypeError("no"), made.capsule)
    view = from_dlpack(producer, device="cpu", copy=True)
    assert producer.calls == [{**VERSION, "dl_device": CPU, "copy": True}, {}]
    assert view.data != made.address


def test_the_type_error_of_the_first_call_keeps_its_traceback_C1():
    class Failing:
        def __dlpack__(self, **keywords):
            raise TypeError("no keywords") if keywords else KeyError("not now")

    with pytest.raises(KeyError) as raised:
        consume(Failing())
    assert raised.value.__context__.__traceback__.tb_frame.f_code.co_name == "__dlpack__"


def test_there_is_no_third_call_C1():
    first, second = TypeError("no keywords"), TypeError("no")
    producer = Scripted(first, second)
    with pytest.raises(TypeError) as raised:
        consume(producer)
    assert raised.value is second
    assert second.__context__ is first
    assert producer.calls == [VERSION, {}]


def test_a_type_error_with_a_traceback_counts_as_a_refusal_C1():
    def refuse():  # keyword errors of Cython have the line of the def
        raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")

    producer = Scripted(refuse, Made(LEGACY).capsule)
    consume(producer)
    assert producer.calls == [VERSION, {}]


def test_the_text_of_a_type_error_is_not_read_C1():
    class Unprintable(TypeError):
        def __str__(self):
            raise KeyboardInterrupt

        __repr__ = __str__

    errors = [Unprintable(), Unprintable()]
    with pytest.raises(Unprintable) as raised:
        consume(Scripted(*errors))
    assert raised.value is errors[1]
    assert errors[1].__context__ is errors[0]


@pytest.mark.parametrize(
    "error", [BufferError, ValueError, RuntimeError, MemoryError, KeyboardInterrupt, AttributeError]
)
def test_any_other_error_of_the_producer_is_raised_after_one_call_C1(error):
    raised = error("max_version is an unexpected keyword argument")
    producer = Scripted(raised)
    with pytest.raises(error) as caught:
        consume(producer)
    assert caught.value is raised
    assert producer.calls == [VERSION]


@pytest.mark.parametrize("second", [TypeError("still boom"), BufferError("not now"), ValueError("boom")])
def test_when_the_second_call_fails_too_the_first_error_is_its_context_C1(second):
    first = TypeError(REFUSALS[0])
    producer = Scripted(first, second)
    with pytest.raises(type(second)) as raised:
        consume(producer)
    assert raised.value is second
    assert raised.value.__context__ is first
    assert producer.calls == [VERSION, {}]


def test_one_error_raised_by_both_calls_is_not_its_own_context_C1():
    error = TypeError(REFUSALS[3])
    with pytest.raises(TypeError) as raised:
        consume(Scripted(error, error))
    assert raised.value is error
    assert error.__context__ is None


def test_a_second_error_that_is_a_context_of_the_first_makes_no_ring_C1():
    first, second = TypeError(REFUSALS[0]), KeyError("second")
    first.__context__ = second
    with pytest.raises(KeyError) as raised:
        consume(Scripted(first, second))
    assert raised.value is second
    assert first.__context__ is second
    assert second.__context__ is None


def test_a_second_error_with_a_context_of_its_own_keeps_it_C1():
    first = TypeError(REFUSALS[0])
    with pytest.raises(BufferError) as raised:
        consume(Scripted(first, fail_with_a_cause))
    assert chain(raised.value) == [BufferError, KeyError]


def chain(error, limit=10):
    """The types of an error and its contexts; of at most `limit` errors, since contexts may be a ring."""
    types = []
    while error is not None and len(types) < limit:
        types.append(type(error))
        error = error.__context__
    return types


def fail_with_a_cause():
    try:
        raise KeyError("cause")
    except KeyError:
        raise BufferError("not now")  # noqa: B904


@not_on_pypy("the context of an exception of a method that C code calls")
def test_inside_an_except_block_the_contexts_end_in_the_handled_error_C1():
    handled = ZeroDivisionError()
    for second, types in [
        (BufferError("not now"), [BufferError, TypeError]),
        (fail_with_a_cause, [BufferError, KeyError]),
        (TypeError("still no"), [TypeError, TypeError]),
    ]:
        first = TypeError("no keywords")
        try:
            raise handled
        except ZeroDivisionError:
            with pytest.raises(types[0]) as raised:
                consume(Scripted(first, second))
        assert chain(raised.value) == [*types, ZeroDivisionError]
        assert handled.__context__ is None


def test_a_handled_error_that_is_raised_again_makes_no_ring_of_contexts_C1():
    handled = KeyError("handled")

    def fail():
        raise handled

    try:
        raise handled
    except KeyError:
        with pytest.raises(KeyError) as raised:
            consume(Scripted(TypeError("no keywords"), fail))
    assert raised.value is handled
    assert len(chain(handled)) < 10


def test_the_first_error_in_the_chain_of_the_second_makes_no_ring_C1():
    first = TypeError("no keywords")

    def fail():
        raise BufferError("not now") from first

    def fail_again():
        try:
            raise first
        except TypeError:
            raise BufferError("not now")  # noqa: B904

    for again in (fail, fail_again):
        first.__context__ = None
        with pytest.raises(BufferError) as raised:
            consume(Scripted(first, again))
        assert chain(raised.value) == [BufferError, TypeError]


@not_on_pypy("the context of an exception of a method that C code calls")
def test_deeply_nested_handlers_keep_the_first_error_C1():
    handled = error = KeyError("handled")
    for _ in range(100):
        error.__context__ = KeyError("around")
        error = error.__context__
    try:
        raise handled
    except KeyError:
        with pytest.raises(BufferError) as raised:
            consume(Scripted(TypeError("no keywords"), BufferError("not now")))
    assert chain(raised.value, 3) == [BufferError, TypeError, KeyError]


@not_on_pypy("counts of references")
def test_the_exception_that_the_caller_handles_is_not_leaked_C1():
    handled = KeyError("handled")
    try:
        raise handled
    except KeyError:
        before = sys.getrefcount(handled)
        for _ in range(3):
            with pytest.raises(BufferError):
                consume(Scripted(TypeError("no keywords"), BufferError("not now")))
        assert sys.getrefcount(handled) == before


@not_on_pypy("counts of references")
def test_the_class_of_the_first_error_is_not_leaked_C1():
    class Refusal(TypeError):
        pass

    made = [Made(LEGACY) for _ in range(3)]
    before = sys.getrefcount(Refusal)
    for each in made:
        consume(Scripted(Refusal(REFUSALS[0]), each.capsule)).release()
        with pytest.raises(BufferError):
            consume(Scripted(Refusal(REFUSALS[0]), BufferError("not now")))
    collect()
    assert sys.getrefcount(Refusal) == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_in_a_generator_leaves_no_exception_for_the_next_step_C1(fails):
    second = BufferError("not now") if fails else Made(LEGACY).capsule
    seen = []

    def generate():
        try:
            raise KeyError("handled")
        except KeyError:
            try:
                consume(Scripted(TypeError("no keywords"), second))
            except BufferError:
                pass
            yield sys.exc_info()[0]
        yield sys.exc_info()[0]
        try:
            raise ValueError("of the generator")
        except ValueError as error:
            seen.append(error.__context__)
        yield sys.exc_info()[0]

    steps = generate()
    assert next(steps) is KeyError
    assert sys.exc_info()[0] is None
    assert [*steps] == [None, None]
    assert seen == [None]


def test_a_call_in_a_generator_resumed_in_an_except_block_leaves_no_exception_C1():
    def generate():
        while True:
            consume(Scripted(TypeError("no keywords"), Made(LEGACY).capsule))
            yield sys.exc_info()[0]

    steps = generate()
    try:
        raise KeyError("handled")
    except KeyError:
        assert next(steps) is KeyError
    assert next(steps) is None  # not KeyError: its handler has ended
    assert sys.exc_info() == (None, None, None)


def test_no_trace_of_the_refusal_is_left_after_success_C1():
    class Refusal(TypeError):
        pass

    producer = Scripted(Refusal(REFUSALS[0]), Made(LEGACY).capsule)
    view = consume(producer)
    assert sys.exc_info() == (None, None, None)
    assert view.held


def test_a_refusal_or_failure_leaves_the_producers_refcount_unchanged_C1():
    producer = old_python(Made(LEGACY).capsule)
    before = sys.getrefcount(producer)
    consume(producer).release()
    assert sys.getrefcount(producer) == before

    failing = Scripted(TypeError(REFUSALS[0]), BufferError("not now"))
    before = sys.getrefcount(failing)
    with pytest.raises(BufferError):
        consume(failing)
    assert sys.getrefcount(failing) == before


class NoCopy(Producer):
    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None):
        return super().__dlpack__(max_version=max_version)


class NoDevice(Producer):
    def __dlpack__(self, *, stream=None, max_version=None, copy=None):
        return super().__dlpack__(max_version=max_version)


class NoKeyword(Producer):
    def __dlpack__(self, stream=None):
        return super().__dlpack__()


@pytest.mark.parametrize("kind", [NoCopy, NoKeyword])
def test_the_consumer_copies_if_the_producer_does_not_know_copy_C3(kind):
    producer = kind()
    view = from_dlpack(producer, copy=True)
    assert view.data != producer.made[0].address
    assert dltensor.values(view.data, view.dtype, view.shape, view.strides) == [0.0, 1.0, 2.0]
    assert view.readonly == 0
    assert view.data % 64 == 0
    assert producer.deleted == [1]


@pytest.mark.parametrize("kind", [NoCopy, NoKeyword])
def test_copy_false_is_refused_if_the_producer_does_not_know_copy_C3(kind):
    producer = kind()
    before = sys.getrefcount(producer)
    with pytest.raises(BufferError, match="copy is False"):
        from_dlpack(producer, copy=False)
    assert producer.made == []
    assert sys.getrefcount(producer) == before


def test_a_request_may_accept_a_producer_that_does_not_know_copy_C3():
    not_if_known = 3  # DLPACK_PY_COPY_NEVER_IF_SUPPORTED
    producer = Producer()
    consume(producer, by_request=True, copy=not_if_known)
    assert producer.calls == [{**VERSION, "copy": False}]
    old = NoCopy()
    assert consume(old, by_request=True, copy=not_if_known).data == old.made[0].address
    with pytest.raises(BufferError, match="order"):  # the consumer makes no copy either
        consume(
            Producer(shape=(2, 2), strides=(1, 2)),
            {"order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED},
            by_request=True,
            copy=not_if_known,
        )


def test_the_message_for_copy_false_names_the_type_error_of_the_producer_C3():
    """The producer may know the keyword and raise TypeError for another reason."""

    class Busy:
        def __dlpack__(self, **keywords):
            raise TypeError("stream 3 belongs to another device")

    with pytest.raises(BufferError, match="copy is False, and __dlpack__ raised TypeError: without") as refused:
        from_dlpack(Busy(), copy=False)
    assert str(refused.value.__context__) == "stream 3 belongs to another device"


@pytest.mark.parametrize("kind", [NoDevice, NoKeyword])
def test_a_producer_that_does_not_know_dl_device_may_have_data_on_that_device_C3(kind):
    producer = kind()
    assert from_dlpack(producer, device="cpu").data == producer.made[0].address


@pytest.mark.parametrize("kind", [NoDevice, NoKeyword])
@pytest.mark.parametrize("there, asked", [(CPU, CUDA), (CUDA, CPU), (CUDA, (2, 1))])
def test_a_producer_that_does_not_know_dl_device_is_refused_with_data_on_another_device_C3(kind, there, asked):
    producer = kind(device=there)
    with pytest.raises(BufferError, match="device is"):
        consume(producer, {"device": DLPACK_PY_ANY_DEVICE}, device=asked)
    assert producer.deleted == [1]


def test_a_copy_that_the_producer_made_is_not_made_again_C3():
    producer = Producer(flags=dltensor.IS_COPIED)
    view = from_dlpack(producer, copy=True)
    assert view.data == producer.made[0].address
    assert view.flags == dltensor.IS_COPIED


def test_with_copy_true_a_versioned_capsule_is_trusted_and_a_legacy_capsule_is_copied_C3():
    producer = Producer(VERSIONED)
    assert from_dlpack(producer, copy=True).data == producer.made[0].address  # PyTorch sets no flag
    producer = Producer(LEGACY)
    view = from_dlpack(producer, copy=True)
    assert view.data != producer.made[0].address
    assert dltensor.values(view.data, view.dtype, view.shape, view.strides) == [0.0, 1.0, 2.0]
    assert (view.readonly, view.flags, producer.deleted) == (0, dltensor.IS_COPIED, [1])


def test_a_raw_capsule_is_copied_by_the_consumer_C3():
    made = Made()
    view = from_dlpack(made.capsule(), copy=True)
    assert view.data != made.address
    assert dltensor.values(view.data, view.dtype, view.shape, view.strides) == [0.0, 1.0, 2.0]
    assert made.deleted == 1


# ---- The arguments of from_dlpack: C3 ----


@pytest.mark.parametrize(
    "device, error",
    [
        ("gpu", ValueError),
        ("cpu:0", ValueError),  # dlpack_device.h parses such names
        ("cuda:1", ValueError),
        ("CPU", ValueError),
        ("", ValueError),
        ("cpu\0", ValueError),
        ("\ud800", ValueError),
        ("x" + "é" * 100, ValueError),
        (1, TypeError),
        ([1, 0], TypeError),
        ((1,), TypeError),
        ((1, 0, 0), TypeError),
        ((1, None), TypeError),
        ((1.0, 0), TypeError),
        (b"cpu", TypeError),
        (Ellipsis, TypeError),
    ],
    ids=ascii,
)
def test_a_malformed_device_is_refused_before_the_producer_is_called_C3(device, error):
    producer = Producer()
    with pytest.raises(error, match="device is"):
        from_dlpack(producer, device=device)
    assert producer.calls == []


@pytest.mark.parametrize("copy", [0, 1, "yes", 1.0, [], Ellipsis], ids=repr)
def test_a_copy_that_is_not_none_true_or_false_is_refused_before_the_producer_is_called_C3(copy):
    producer = Producer()
    with pytest.raises(TypeError, match="copy is "):
        from_dlpack(producer, copy=copy)
    assert producer.calls == []


@pytest.mark.parametrize(
    "call",
    [
        lambda x: from_dlpack(),
        lambda x: from_dlpack(x, x),
        lambda x: from_dlpack(x=x),
        lambda x: from_dlpack(x, dl_device=(1, 0)),
        lambda x: from_dlpack(x, **{"\ud800": 1}),
        lambda x: from_dlpack(x, **{"copy\0": True}),
    ],
)
def test_from_dlpack_takes_one_positional_argument_and_two_keywords_C3(call):
    producer = Producer()
    with pytest.raises(TypeError):
        call(producer)
    assert producer.calls == []


def test_the_device_may_be_a_pair_of_objects_with_index_C3():
    class Index:
        def __init__(self, value):
            self.value = value

        def __index__(self):
            return self.value

    producer = Producer()
    from_dlpack(producer, device=(Index(1), Index(0)))
    assert producer.calls == [{**VERSION, "dl_device": CPU}]
    assert [type(x) for x in producer.calls[0]["dl_device"]] == [int, int]


def test_a_device_with_a_number_is_passed_unchanged_C3():
    producer = Producer(device=(2, 1))
    view = consume(producer, {"device": DLPACK_PY_ANY_DEVICE}, device=(2, 1))
    assert producer.calls == [{**VERSION, "dl_device": (2, 1)}]
    assert view.device == (2, 1)


@pytest.mark.parametrize("kind", [CPU, CUDA_HOST, ROCM_HOST, CUDA_MANAGED])
def test_the_number_of_memory_that_the_cpu_can_read_has_no_meaning_D9(kind):
    producer = Producer(device=(kind[0], 3))
    assert consume(producer, {"device": kind[0]}, device=kind).device == (kind[0], 3)
    assert producer.calls == [{**VERSION, "dl_device": kind}]


# ---- Devices: C5 ----

HOST_READABLE = pytest.mark.parametrize(
    "device", [CUDA_HOST, ROCM_HOST, CUDA_MANAGED, TPU_HOST], ids=["pinned", "rocm", "managed", "tpu"]
)


@pytest.mark.parametrize("device, name", [(CUDA, "cuda:0"), ((2, 3), "cuda:3"), ((10, 0), "rocm:0"), ((99, 1), "99")])
def test_a_device_that_the_cpu_cannot_read_is_refused_by_name_C5(device, name):
    producer = Producer(device=device)
    with pytest.raises(BufferError, match=name):
        consume(producer)
    assert producer.calls == [VERSION]
    assert producer.deleted == [1]


@HOST_READABLE
@pytest.mark.parametrize(
    "want", [{}, {"device": CPU[0]}, {"device": CPU[0], "options": DLPACK_PY_WANT_NOTHING_PENDING}]
)
def test_pinned_and_managed_memory_is_released_and_requested_again_as_cpu_memory_C5(device, want):
    producer = Producer(device=device, answers=[{}, {"device": CPU}])
    view = consume(producer, want)
    assert producer.calls == [VERSION, {**VERSION, "dl_device": CPU}]
    assert producer.deleted == [1, 0]
    assert (view.data, view.device) == (producer.made[1].address, CPU)
    view.release()
    assert producer.deleted == [1, 1]


@HOST_READABLE
def test_with_device_cpu_the_producer_is_called_once_C5(device):
    producer = Producer(device=device, answers=[{"device": CPU}])
    from_dlpack(producer, device="cpu")
    assert producer.calls == [{**VERSION, "dl_device": CPU}]


@HOST_READABLE
@pytest.mark.parametrize("kind", [Producer, NoDevice, NoKeyword])
def test_memory_that_stays_pinned_after_the_second_call_is_refused_C5(device, kind):
    producer = kind(device=device)
    with pytest.raises(BufferError, match="CPU memory (was asked for|is needed): device work may be pending"):
        consume(producer)
    assert set(producer.deleted) == {1}


@HOST_READABLE
def test_a_request_for_pinned_memory_does_not_ask_for_the_cpu_C5(device):
    """The consumer reads on the CPU, but the producer was not asked to wait for the work on the data."""
    producer = Producer(device=device)
    with pytest.raises(BufferError, match="CPU memory is needed: device work may be pending"):
        from_dlpack(producer, device=device)
    assert producer.calls == [{**VERSION, "dl_device": device}] and producer.deleted == [1]


@HOST_READABLE
def test_a_refusal_does_not_name_pending_work_with_nothing_pending_C5(device):
    with pytest.raises(BufferError, match="CPU memory was asked for$"):
        consume(Producer(device=device), {"device": CPU[0], "options": DLPACK_PY_WANT_NOTHING_PENDING})


@HOST_READABLE
def test_a_producer_without_keywords_is_not_called_again_for_cpu_memory_C1_C5(device):
    """The producer was called twice, with keywords and without. A third call could not pass dl_device either."""
    producer = NoKeyword(device=device)
    with pytest.raises(BufferError, match="device work may be pending"):
        consume(producer)
    assert (producer.calls, producer.deleted) == ([{}], [1])


@HOST_READABLE
def test_the_second_call_for_cpu_memory_passes_no_stream_C4_C5(device):
    producer = Producer(device=device, answers=[{}, {"device": CPU}])
    consume(producer, by_request=True, stream=7)
    assert producer.calls == [{**VERSION, "stream": 7}, {**VERSION, "dl_device": CPU}]


@HOST_READABLE
def test_the_error_of_the_second_call_for_cpu_memory_is_raised_C5(device):
    made, refusal = Made(device=device), BufferError("not now")
    with pytest.raises(BufferError) as raised:
        consume(Scripted(made.capsule, refusal))
    assert raised.value is refusal
    assert made.deleted == 1


@HOST_READABLE
def test_memory_requested_on_another_device_is_not_taken_as_cpu_memory_C5(device):
    producer = Producer(device=device, answers=[{}, {"device": CPU}])
    with pytest.raises(BufferError, match="device is "):
        consume(producer, device=device)
    assert set(producer.deleted) == {1}


@HOST_READABLE
@both_forms
def test_a_raw_capsule_of_pinned_memory_is_refused_and_unchanged_C5(device, form):
    made = Made(form, device=device)
    capsule = made.capsule()
    with pytest.raises(BufferError, match="device work may be pending"):
        consume(capsule)
    assert (dltensor.name(capsule), made.deleted) == (form, 0)
    del capsule
    assert made.deleted == 1


@both_forms
@pytest.mark.parametrize("device", [CUDA, (2, 1), CUDA_HOST])
def test_a_raw_capsule_of_another_device_is_refused_and_unchanged_C3_K4(form, device):
    made = Made(form)
    capsule = made.capsule()
    with pytest.raises(BufferError, match="device is cpu"):
        consume(capsule, device=device)
    assert (dltensor.name(capsule), made.deleted) == (form, 0)


@HOST_READABLE
@pytest.mark.parametrize("want", [{"options": DLPACK_PY_WANT_NOTHING_PENDING}, {"device": DLPACK_PY_ANY_DEVICE}])
def test_pinned_memory_is_taken_unchanged_if_the_caller_allows_it_C5(device, want):
    producer = Producer(device=device)
    assert consume(producer, want).device == device
    assert producer.calls == [VERSION]


@HOST_READABLE
def test_memory_of_the_wanted_device_type_is_taken_unchanged_C5(device):
    assert consume(Producer(device=device), {"device": device[0]}).device == device


@HOST_READABLE
def test_pinned_memory_is_not_copied_if_the_producer_cannot_be_called_for_cpu_memory_C1_C5(device):
    made = Made(device=device)
    refusal = TypeError("__dlpack__() got an unexpected keyword argument 'copy'")
    producer = Scripted(refusal, made.capsule)
    with pytest.raises(BufferError, match="device work may be pending"):
        from_dlpack(producer, copy=True)
    assert ([sorted(call) for call in producer.calls], made.deleted) == ([["copy", "max_version"], []], 1)


@HOST_READABLE
def test_memory_with_pending_work_is_not_copied_C5(device):
    made = [Made(device=device, shape=(2, 2), strides=(1, 2)), Made(device=CPU, shape=(2, 2), strides=(1, 2))]
    producer = Scripted(made[0].capsule, made[1].capsule)
    want = {"device": DLPACK_PY_ANY_DEVICE, "order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED}
    view = consume(producer, want)
    assert [call.get("dl_device") for call in producer.calls] == [None, CPU]
    assert (view.device, view.strides, [m.deleted for m in made]) == (CPU, (2, 1), [1, 1])


@HOST_READABLE
def test_a_copy_for_a_device_other_than_the_cpu_is_refused_C3(device):
    refusal = TypeError("__dlpack__() got an unexpected keyword argument 'copy'")
    made = Made(device=device)
    with pytest.raises(BufferError, match="a copy is made from and to the CPU only"):
        consume(
            Scripted(refusal, made.capsule),
            {"device": DLPACK_PY_ANY_DEVICE, "options": DLPACK_PY_WANT_NOTHING_PENDING},
            device=device,
            copy=True,
        )
    assert made.deleted == 1


@HOST_READABLE
def test_pinned_memory_from_a_call_for_cpu_memory_is_refused_after_one_call_C5(device):
    producer = Producer(device=device)
    with pytest.raises(BufferError, match="device work may be pending"):
        consume(producer, device="cpu")
    assert producer.calls == [{**VERSION, "dl_device": CPU}]


@both_forms
@pytest.mark.parametrize(
    "device, want, copy, text",
    [
        (
            CUDA,
            {"device": DLPACK_PY_ANY_DEVICE, "order": "C", "options": DLPACK_PY_WANT_COPY_IF_NEEDED},
            None,
            "strides",
        ),
        (CUDA, {"device": DLPACK_PY_ANY_DEVICE}, True, "cuda:0: a copy is made"),
        (CUDA_HOST, {"device": CUDA_HOST[0]}, True, "device work may be pending"),
        (
            CUDA_HOST,
            {"device": CUDA_HOST[0], "options": DLPACK_PY_WANT_NOTHING_PENDING},
            True,
            "cuda_host: a copy is made",
        ),
    ],
)
def test_a_raw_capsule_that_cannot_be_copied_is_unchanged_K4(form, device, want, copy, text):
    made = Made(form, device=device, shape=(2, 2), strides=(1, 2))
    capsule = made.capsule()
    with pytest.raises(BufferError, match=text):
        consume(capsule, want, copy=copy)
    assert (dltensor.name(capsule), made.deleted) == (form, 0)


@both_forms
def test_a_raw_capsule_without_memory_for_its_copy_is_unchanged_K4(form):
    made = Made(form, shape=(2**59,), strides=(0,))
    capsule = made.capsule()
    with pytest.raises(MemoryError):
        consume(capsule, copy=True)
    assert (dltensor.name(capsule), made.deleted) == (form, 0)


# ---- Looking the method up: C6 ----


def test_the_instances_method_comes_before_the_types_C6():
    producer, made = Producer(), Made()
    producer.__dlpack__ = lambda **keywords: made.capsule()
    assert consume(producer).data == made.address
    assert producer.calls == []


def test_an_instances_method_is_called_if_the_type_has_none_C6():
    class Empty:
        pass

    proxy, made = Empty(), Made()
    proxy.__dlpack__ = lambda **keywords: made.capsule()
    assert consume(proxy).data == made.address
    assert check(proxy)


def test_a_class_is_consumed_as_any_object_and_raises_the_error_of_python_C6():
    assert not check(Producer)  # it has the attribute for its instances
    with pytest.raises(TypeError, match="__dlpack__.* missing 1 required positional argument: 'self'"):
        consume(Producer)


def test_a_class_may_offer_a_tensor_by_its_metaclass_C6():
    made = Made()

    class Meta(type):
        def __dlpack__(cls, **keywords):
            return made.capsule()

    thing = Meta("Thing", (), {})
    assert check(thing) and not check(Meta)
    assert consume(thing).data == made.address


class Proxy:
    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return getattr(self.target, name)


def test_a_proxy_with_getattr_is_a_producer_C6():
    producer = Producer()
    assert consume(Proxy(producer)).data == producer.made[0].address
    assert check(Proxy(producer))


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property])
def test_descriptors_are_bound_as_in_python_C6(wrap):
    made = Made()

    class Described:
        @wrap
        def __dlpack__(*args, **keywords):
            if wrap is property:
                return lambda **keywords: made.capsule()
            assert args == {staticmethod: (), classmethod: (Described,)}[wrap]
            return made.capsule()

    assert consume(Described()).data == made.address


def test_a_slot_of_the_type_is_called_C6():
    made = Made()

    class Slotted:
        __slots__ = ("__dlpack__",)

    slotted = Slotted()
    slotted.__dlpack__ = lambda **keywords: made.capsule()
    assert consume(slotted).data == made.address


def test_a_callable_attribute_of_the_type_is_called_without_the_object_C6():
    made = Made()

    class Callable:
        def __call__(self, **keywords):
            return made.capsule()

    called = type("Called", (), {"__dlpack__": Callable()})()
    assert consume(called).data == made.address


@pytest.mark.parametrize(  # "a text": other code may hold a text of one word
    "thing", [object(), None, 10**30, "a text", b"bytes", [1.0], memoryview(b"x")], ids=lambda x: type(x).__name__
)
def test_an_object_without_the_method_is_an_attribute_error_C6(thing):
    before = sys.getrefcount(thing)
    with pytest.raises(AttributeError, match="__dlpack__"):
        consume(thing)
    if thing is not None:  # other code changes the reference count of None
        assert sys.getrefcount(thing) == before
    assert not check(thing)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("how", ["property", "getattr", "descriptor"])
def test_an_error_while_looking_up_is_passed_on_C6(error, how, monkeypatch):
    raised, unraisable = error("no"), []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: unraisable.append(what.exc_value))

    def fail(*args):
        raise raised

    body = {
        "property": {"__dlpack__": property(fail)},
        "getattr": {"__getattr__": fail},
        "descriptor": {"__dlpack__": type("Descriptor", (), {"__get__": fail})()},
    }[how]
    thing = type("Thing", (), body)()
    with pytest.raises(error) as caught:
        consume(thing)
    assert caught.value is raised
    assert check(thing) is False  # check returns False for any error
    assert unraisable == ([] if error is AttributeError else [raised])


@pytest.mark.parametrize("error, want", [(AttributeError, {}), (KeyError, {}), (KeyError, {"name": "out"})])
def test_a_method_that_cannot_be_looked_up_is_looked_up_once_C6(error, want):
    asked = []

    class Thing:
        def __getattr__(self, name):
            asked.append(name)
            raise error(name)

    with pytest.raises(error):
        consume(Thing(), want)
    assert asked == ["__dlpack__"]


@pytest.mark.parametrize("value", [None, 3, "text", NotImplemented], ids=repr)
def test_a_method_that_is_not_callable_is_a_type_error_C6(value):
    thing = type("Thing", (), {"__dlpack__": value})()
    with pytest.raises(TypeError, match="not callable"):
        consume(thing)


def test_a_method_set_to_none_is_no_producer_for_check_C6():
    assert not check(type("Thing", (), {"__dlpack__": None})())


@pytest.mark.parametrize(
    "answer, shown",
    [
        (None, "None"),
        (3, "3"),
        (2.5, "2.5"),
        ("text", "'text'"),
        ((1, 0), "(1, 0)"),
        (object(), "object"),
        ([1], "list"),
        (memoryview(b"abc"), "memoryview"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_an_answer_that_is_no_capsule_is_a_type_error_that_shows_it_C6(answer, shown):
    producer = Scripted(answer)
    with pytest.raises(TypeError) as raised:
        consume(producer)
    assert str(raised.value) == f"__dlpack__ returned {shown}, a capsule was wanted"
    assert producer.calls == [VERSION]


def test_repr_of_a_returned_object_is_not_called_C6():
    class Answer:
        def __repr__(self):
            return "repr"

        __str__ = __repr__

    for answer, shown in [(Answer(), "Answer"), ([Answer()], "list")]:
        with pytest.raises(TypeError, match=f"returned {shown}, a capsule was wanted"):
            consume(Scripted(answer))


def test_a_returned_object_that_is_no_capsule_is_released_C6():
    answer = object()
    before = sys.getrefcount(answer)
    with pytest.raises(TypeError):
        consume(Scripted(answer))
    assert sys.getrefcount(answer) == before


@both_forms
@pytest.mark.parametrize(
    "name",
    ["DLTENSOR", "dltensor_versioned2", "dltensor ", "mine_dltensor", "", "arrow_array", b"\xff\xfe", "é" * 200, None],
)
def test_a_capsule_of_a_foreign_name_is_a_type_error_and_unchanged_C6(name, form):
    made = Made(form)
    capsule = made.capsule(name)
    for offered in (capsule, Scripted(capsule)):
        with pytest.raises(TypeError, match="is named .*, 'dltensor_versioned' or 'dltensor' was wanted$") as refused:
            consume(offered)
        assert name or "is named ''," in str(refused.value)
        assert not check(capsule)
    if isinstance(name, str):
        assert dltensor.name(capsule) == name
    dltensor.rename(capsule, form)
    assert consume(capsule).data == made.address


@both_forms
def test_a_raw_capsule_is_accepted_C6(form):
    made = Made(form)
    capsule = made.capsule()
    assert check(capsule)
    view = consume(capsule)
    assert view.data == made.address
    assert dltensor.name(capsule) == "used_" + form
    assert not check(capsule)
    del capsule
    assert made.deleted == 0
    view.release()
    assert made.deleted == 1


def test_check_tells_if_an_object_is_a_producer_without_a_call_C6():
    producer = Producer()
    assert check(producer)
    assert producer.calls == []


def test_an_error_with_a_ring_of_contexts_is_raised_C1():
    class Ring:
        def __dlpack__(self, **keywords):
            if keywords:
                raise TypeError("unexpected keyword argument 'max_version'")
            one, other = ValueError("one"), ValueError("other")
            one.__context__, other.__context__ = other, one
            raise one

    with pytest.raises(ValueError, match="one"):
        consume(Ring())


def test_check_reports_its_errors_and_keeps_an_exception_in_flight_C6(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: seen.append(unraisable.exc_type))

    class Bad:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    assert not check(Bad())
    assert seen == [KeyboardInterrupt]
    with pytest.raises(KeyError, match="in flight"):
        check_in_flight(object(), KeyError("in flight"))

"""from_dlpack of the library, fed with tensors of the suite."""

import ctypes
import gc
import threading

import _dlpack_conformance as native
import pytest

from dlpack_conformance import standard
from dlpack_conformance.adapter import DTYPES, itemsize
from dlpack_conformance.kit import (
    CHOICE,
    CPU,
    MUST,
    PADDED,
    READ_ONLY,
    SHOULD,
    Offer,
    clause,
    data_of,
    elements_of,
    leaked,
    settled,
    shown,
    tensor,
    without_frames,
)

both_forms = pytest.mark.parametrize("form", [True, False], ids=["versioned", "legacy"])
NAMES = {True: b"dltensor_versioned", False: b"dltensor"}


@pytest.fixture(autouse=True)
def consumes(lib, request):
    """Skips where the library does not take a plain tensor on the CPU: then no answer would mean anything, and
    C2_a_plain_tensor_is_taken has failed."""
    if lib.adapter.from_dlpack is None:
        pytest.skip("the library does not consume")
    if not hasattr(lib, "baseline"):
        _, lib.baseline = lib.attempt(lib.offer())
    if lib.baseline is not None and request.function is not test_C2_a_plain_tensor_is_taken:
        pytest.skip(f"the library takes no plain tensor on the CPU: {shown(lib.baseline)}")


@clause("C2", MUST, standard.ACCEPTS, "nothing is taken")
def test_C2_a_plain_tensor_is_taken(lib):
    """A plain tensor on the CPU is taken, in the form that the library asks for, of a dtype and rank that the adapter
    declares."""
    outcome = lib.exchange(lib.offer(), lib.data, lib.shape)
    assert outcome != "refused", f"a tensor of {lib.dtype} and shape {lib.shape}: raised {shown(lib.refusal)}"


class Recorded(Offer):
    """An Offer whose capsules are kept."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.capsules = []

    def __dlpack__(self, **keywords):
        self.capsules.append(super().__dlpack__(**keywords))
        return self.capsules[-1]


def accepts(lib, form):
    """Skips where the library takes no capsule of this form."""
    _, error = lib.attempt(lib.offer(form))
    if error is not None:
        pytest.skip(f"the library takes no {'versioned' if form else 'legacy'} capsule: {shown(error)}")


def leaves_capsules(lib, form):
    """Whether the library copies, and does not take the tensor from its capsule."""
    offer = Recorded(form, **lib.plain())
    array = lib.from_dlpack(offer)
    copied = lib.described(array).pointer not in (None, offer.made[-1].address)
    return copied and native.name(offer.capsules[-1]) == NAMES[form]


def renames(lib, form):
    """Skips where the library does not rename capsules: K4_the_capsule_is_renamed tells it once."""
    accepts(lib, form)
    offer = Recorded(form, **lib.plain())
    lib.from_dlpack(offer)
    if native.name(offer.capsules[-1]) != b"used_" + NAMES[form]:
        pytest.skip("the library does not rename the capsule, which another clause tests, or copies")


def choose_plain(lib, what, form, **fields):
    """Offers a plain tensor of which the fields are odd: it is taken with its values, or refused."""
    offer = lib.offer(form, **fields)
    lib.choose(what, lib.exchange(offer, lib.data, lib.shape))


# ---- C1: how the producer is asked ----


@clause(
    "C1",
    SHOULD,
    standard.CONSUMER_LOGIC,
    "the consumer never asks for a versioned capsule, and read-only data is lost to it",
)
def test_C1_max_version_is_passed(lib):
    """A consumer asks with max_version of major version 1 or higher."""
    lib.needs_objects()
    offer = lib.offer()
    lib.from_dlpack(offer)
    asked = [keywords.get("max_version") for keywords in offer.calls]
    assert any(version and version[0] >= 1 for version in asked), f"max_version is {asked}"


@clause("C1", SHOULD, standard.CONSUMER_LOGIC, "older producers, which know no max_version, are refused")
def test_C1_an_older_producer_is_asked_without_new_keywords(lib):
    """If __dlpack__ refuses max_version with a TypeError, the consumer calls it without new keywords."""
    lib.needs_objects()
    accepts(lib, False)

    class Older(Offer):
        def __dlpack__(self, stream=None):
            return super().__dlpack__()

    offer = Older(**lib.plain())
    array, error = lib.attempt(offer)
    assert error is None, f"raised {shown(error)}"
    assert lib.values(array) == lib.data


@clause("C1", MUST, standard.PROPAGATE, "the producer's error is swallowed, and an unrelated one appears")
@pytest.mark.parametrize("kind", [BufferError, MemoryError])
def test_C1_an_error_of_the_producer_is_propagated(lib, kind):
    """from_dlpack propagates exceptions of __dlpack__."""
    lib.needs_objects()

    class Failing(Offer):
        def __dlpack__(self, **keywords):
            raise kind("cannot export this")

    _, error = lib.attempt(Failing())
    assert isinstance(error, kind), f"__dlpack__ raised {kind.__name__}, from_dlpack raised {error!r}"
    assert "cannot export this" in str(error), f"the text is {shown(error)}"


@clause("C1", SHOULD, standard.PROPAGATE, "a TypeError of the producer's own is taken for a refused keyword")
def test_C1_a_TypeError_of_the_producer_reaches_the_caller(lib):
    """A TypeError that __dlpack__ raises for another reason than its keywords reaches the caller."""
    lib.needs_objects()

    class Failing(Offer):
        def __dlpack__(self, **keywords):
            raise TypeError("boom")

    _, error = lib.attempt(Failing())
    assert isinstance(error, TypeError) and "boom" in str(error), f"raised {error!r}"


@clause("C1", CHOICE, standard.OPEN, "the producer runs twice")
def test_C1_calls_of_a_producer_that_raises_a_TypeError(lib):
    """After a TypeError that says nothing of keywords, the producer is called again, or not."""
    lib.needs_objects()

    class Failing(Offer):
        def __dlpack__(self, **keywords):
            self.calls.append(keywords)
            raise TypeError("boom")

    offer = Failing()
    lib.attempt(offer)
    lib.choose("calls of a producer that raises TypeError", len(offer.calls))


@clause("C4", MUST, standard.ONLY_NONE, "a stream is passed for memory of the CPU, and the producer refuses it")
def test_C4_no_stream_is_passed_for_memory_of_the_CPU(lib):
    """For memory of the CPU the stream is None or not passed."""
    lib.needs_objects()
    offer = lib.offer()
    lib.from_dlpack(offer)
    streams = [keywords.get("stream") for keywords in offer.calls]
    assert set(streams) == {None}, f"streams are {streams}"


@clause("C3", MUST, standard.FROM_NONE, "a copy or a move is asked for that the caller did not want")
def test_C3_copy_and_dl_device_are_None_unless_the_caller_asks(lib):
    """Without copy and device of from_dlpack, copy and dl_device are None or the device of the data, or not passed."""
    lib.needs_objects()
    offer = lib.offer()
    lib.from_dlpack(offer)
    for keywords in offer.calls:
        assert keywords.get("copy") is None, f"copy is {keywords['copy']}"
        assert keywords.get("dl_device") in (None, CPU), f"dl_device is {keywords['dl_device']}"
        unknown = set(keywords) - {"stream", "max_version", "dl_device", "copy"}
        assert not unknown, f"unknown keywords {unknown}"


def with_keywords(lib, offer, **keywords):
    """An attempt with keywords of the standard's from_dlpack."""
    lib.needs_objects()
    if not lib.claims_version("2023.12"):
        pytest.skip("from_dlpack has copy from 2023.12 of the array API standard on, which the library does not claim")
    return lib.attempt(offer, **keywords)


@clause("C3", MUST, standard.FROM_TRUE, "copy=True is ignored")
def test_C3_copy_True_gives_a_copy(lib):
    """from_dlpack(copy=True) always copies: the array has other memory, whether the producer or the consumer copies."""

    class Honest(Offer):
        def __dlpack__(self, **keywords):
            capsule = super().__dlpack__(**{k: v for k, v in keywords.items() if k != "copy"})
            self.calls[-1] = keywords
            return capsule

    offer = Honest(**lib.plain())
    array, error = with_keywords(lib, offer, copy=True)
    assert error is None, f"raised {shown(error)}"
    # A consumer that passed copy=True may trust the producer.
    if not any(keywords.get("copy") is True for keywords in offer.calls):
        assert lib.described(array).pointer != offer.made[-1].address, "copy was not passed, and no copy was made"
    assert lib.values(array) == lib.data


@clause("K4", MUST, standard.DELETER_CALLED, "the tensor behind a copy is not released")
@both_forms
def test_K4_the_tensor_behind_a_copy_is_deleted(lib, form):
    """If the consumer copies a tensor, it calls the deleter once."""
    offer = lib.offer(form)
    array, error = with_keywords(lib, offer, copy=True)
    if error is not None:
        pytest.skip(f"copy=True is refused: {shown(error)}")
    assert lib.values(array) == lib.data
    del array
    for made in offer.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"


@clause("C3", MUST, standard.FROM_FALSE, "copy=False is not passed on, and the producer copies")
def test_C3_copy_False_never_copies(lib):
    """from_dlpack(copy=False) never copies: the producer is asked with copy=False, and the memory is shared."""
    offer = lib.offer()
    array, error = with_keywords(lib, offer, copy=False)
    if error is not None:
        assert isinstance(error, (BufferError, ValueError)), f"raised {shown(error)}"
        return
    assert lib.described(array).pointer in (None, offer.made[-1].address), "the array has other memory"
    asked = [keywords.get("copy") for keywords in offer.calls]
    assert False in asked, f"copy=False is not passed, and the producer may copy: it was asked with copy={asked}"


@clause("C3", MUST, standard.ZERO_COPY, "memory is copied without need")
@both_forms
def test_C3_the_array_shares_the_memory_if_possible(lib, form):
    """If possible, from_dlpack is zero-copy. The memory offered here is aligned to 256 bytes."""
    if not lib.adapter.zero_copy:
        pytest.skip("the library cannot use the memory of others")
    accepts(lib, form)
    offer = lib.offer(form)
    array = lib.from_dlpack(offer)
    pointer = lib.described(array).pointer
    if pointer is None:
        pytest.skip("the library does not tell its pointer")
    assert offer.made[-1].address % 256 == 0
    assert pointer == offer.made[-1].address, "the array has other memory"


@clause("C3", MUST, standard.FROM_FALSE, "a copy is made where the producer refused to share its memory")
def test_C3_copy_False_is_not_replaced_by_a_copy(lib):
    """If the producer cannot export without a copy, from_dlpack(copy=False) raises an exception, and makes no copy."""

    class Copying(Offer):
        def __dlpack__(self, **keywords):
            self.calls.append(keywords)
            if keywords.get("copy") is False:
                raise BufferError("a copy is needed")
            return super().__dlpack__(**{k: v for k, v in keywords.items() if k != "copy"})

    offer = Copying(**lib.plain())
    array, error = with_keywords(lib, offer, copy=False)
    if not any(keywords.get("copy") is False for keywords in offer.calls):
        pytest.skip("copy=False is not passed on, which another clause tests")
    assert error is not None, "a copy was made"
    assert isinstance(error, (BufferError, ValueError)), f"raised {shown(error)}"


@clause("C3", MUST, standard.FROM_DEVICE, "from_dlpack has no keyword device")
def test_C3_the_keywords_of_from_dlpack_may_be_None(lib):
    """from_dlpack has the keywords device and copy, each with the default None."""
    for keywords in {"device": None}, {"copy": None}, {"device": None, "copy": None}:
        array, error = with_keywords(lib, lib.offer(), **keywords)
        assert error is None, f"from_dlpack(x, {', '.join(f'{k}=None' for k in keywords)}) raised {shown(error)}"
        assert lib.values(array) == lib.data, "the array has other values"


# ---- C2: the object that __dlpack__ returns ----


@clause("C2", CHOICE, standard.VERIFY, "the form is assumed from the request")
@both_forms
def test_C2_either_form_may_come(lib, form):
    """The producer may answer with the other form than the consumer asked for: it is taken or refused, but not
    misread."""
    lib.needs_objects()
    name = "a versioned capsule" if form else "a legacy capsule"
    choose_plain(lib, name, form)


@clause("C2", SHOULD, standard.MINOR, "a newer minor version is refused")
@pytest.mark.parametrize("minor", [0, 1, 2, 4, 99, 2**32 - 1])
def test_C2_any_minor_version_is_taken(lib, minor):
    """Minor versions are compatible: a capsule of version (1, x) is taken."""
    accepts(lib, True)
    outcome = lib.exchange(lib.offer(True, version=(1, minor)), lib.data, lib.shape)
    assert outcome != "refused", f"version (1, {minor}) was refused: {shown(lib.refusal)}"


@clause("K6", MUST, standard.MAJOR, "a struct of another major version is read")
@pytest.mark.parametrize("version", [(2, 0), (3, 7), (2**32 - 1, 0)], ids=str)
def test_K6_another_major_version_is_refused_and_deleted_unread(lib, version):
    """If the major version is unknown, the consumer calls the deleter and reads nothing else. Here dl_tensor cannot be
    read."""
    accepts(lib, True)
    offer = Offer(True, version=version, sealed=True)
    array, error = lib.attempt(offer)
    assert error is not None, f"a tensor of version {version} was taken"
    made = offer.made[-1]
    assert settled(lambda: made.deleted >= 1), "the deleter was not called"
    assert made.deleted == 1, f"the deleter was called {made.deleted} times"


@clause("K6", CHOICE, standard.OPEN, "a struct of version 0 is read as version 1")
def test_K6_major_version_0_in_a_versioned_capsule(lib):
    """A versioned capsule of major version 0 is refused or taken."""
    accepts(lib, True)
    choose_plain(lib, "version (0, 9) in a versioned capsule", True, version=(0, 9))


# ---- K: ownership ----


@clause("K4", MUST, standard.RENAMING, "the capsule is not renamed, and both sides call the deleter")
@both_forms
def test_K4_the_capsule_is_renamed(lib, form):
    """The consumer renames the capsule that it took to "used_dltensor" or "used_dltensor_versioned". A consumer that
    copies may leave the tensor to the capsule."""
    accepts(lib, form)
    offer = Recorded(form, **lib.plain())
    array = lib.from_dlpack(offer)
    if leaves_capsules(lib, form):
        assert lib.described(array).pointer not in (None, offer.made[-1].address), "the array uses the memory"
        pytest.skip("the library copies, and leaves the tensor to the capsule")
    assert native.name(offer.capsules[-1]) == b"used_" + NAMES[form], f"it is {native.name(offer.capsules[-1])!r}"
    del array


@clause("K4", MUST, standard.DELETER_CALLED, "the deleter is called never, twice or too early")
@both_forms
def test_K4_the_deleter_is_called_once_when_the_array_is_gone(lib, form):
    """The deleter is called once, when the library no longer needs the memory."""
    accepts(lib, form)
    outcome = lib.exchange(lib.offer(form), lib.data, lib.shape)
    assert outcome != "refused"


@clause("K4", MUST, standard.UNTIL_DELETER, "the deleter is called as soon as the pointer was read")
@both_forms
def test_K4_the_memory_is_used_until_the_array_is_gone(lib, form):
    """While the array lives, its memory is not given back. Memory here cannot be read after the deleter."""
    accepts(lib, form)
    offer = lib.offer(form)
    array = lib.from_dlpack(offer)
    offer.fields = {}
    gc.collect()
    for _ in range(3):
        assert lib.values(array) == lib.data
    copied = lib.described(array).pointer not in (None, offer.made[-1].address)
    assert copied or offer.made[-1].deleted == 0, "the deleter was called while the array lives"


@clause("K4", MUST, standard.LIKE_OTHERS, "a view of the array does not keep the memory")
@both_forms
@pytest.mark.parametrize("view", ["slice", "steps", "transposed"])
def test_K4_a_view_of_the_array_keeps_the_memory(lib, view, form):
    """The memory lives as long as a view of the array. Memory here cannot be read after the deleter."""
    accepts(lib, form)
    offer = lib.offer(form, shape=(4, 3))
    array, error = lib.attempt(offer)
    if error is not None:
        pytest.skip(f"refused: {shown(error)}")
    part = lib.view(view, array)
    wanted = lib.values(part)
    del array
    gc.collect()
    assert lib.values(part) == wanted
    del part
    assert settled(lambda: offer.made[-1].deleted == 1), f"the deleter was called {offer.made[-1].deleted} times"


@clause("K4", MUST, standard.DELETER_CALLED, "the deleter is not called for a tensor without elements")
@both_forms
def test_K4_the_deleter_of_an_empty_tensor_is_called(lib, form):
    """The deleter of a tensor without elements, whose data is NULL, is called once."""
    accepts(lib, form)
    shape = (0, *lib.shape[1:])
    outcome = lib.exchange(lib.offer(form, shape=shape, data=0, values=b""), b"", shape)
    lib.choose("an empty tensor with NULL data", outcome)


@clause("K4", MUST, standard.ONCE, "a consumed capsule is taken again, and its memory freed twice")
@both_forms
def test_K4_a_consumed_capsule_is_refused(lib, form):
    """A capsule whose name begins with "used_" belongs to another consumer, and is refused."""
    accepts(lib, form)
    made = tensor(versioned=form, **lib.plain())
    capsule = made.capsule()
    taken = native.take(capsule)

    class Spent:
        def __dlpack__(self, **keywords):
            return capsule

        def __dlpack_device__(self):
            return CPU

    array, error = lib.attempt(Spent())
    assert error is not None, "the capsule was taken"
    assert made.deleted == 0, "the deleter was called, though the capsule belongs to another consumer"
    taken.delete()
    assert made.deleted == 1


WRONG_NAMES = [None, b"", b"dltensor_", b"used_", b"DLTENSOR", b"numpy_dltensor", b"dltensor_versioned_", b"\xff" * 9]


@clause("K4", MUST, standard.NAMED, "a capsule is read whatever its name is")
@pytest.mark.parametrize("name", WRONG_NAMES, ids=repr)
def test_K4_a_capsule_of_another_name_is_refused(lib, name):
    """A capsule whose name is not one of DLPack's is refused, and stays as it is."""
    made = tensor(versioned=False, **lib.plain())
    capsule = made.capsule()
    native.strip(capsule, name)

    class Misnamed:
        def __dlpack__(self, **keywords):
            return capsule

        def __dlpack_device__(self):
            return CPU

    array, error = lib.attempt(Misnamed())
    assert error is not None, "the capsule was taken"
    assert made.deleted == 0, "the deleter was called"


@clause("K4", MUST, standard.OWNERSHIP, "an error after the rename leaks the tensor, or frees it twice")
@both_forms
@pytest.mark.parametrize("dtype", [(200, 32, 1), (3, 64, 1)], ids=["unknown code", "opaque handle"])
def test_K4_a_tensor_that_is_refused_is_deleted_once(lib, dtype, form):
    """If the consumer refuses a tensor, the deleter is called once: by the capsule, or by the consumer."""
    accepts(lib, form)
    offer = lib.offer(form, dtype=dtype)
    array, error = lib.attempt(offer)
    if error is None:
        pytest.skip("the tensor is taken")
    for made in offer.made:
        assert settled(lambda made=made: made.deleted >= 1), "the deleter was not called"
        assert made.deleted == 1, f"the deleter was called {made.deleted} times"


@clause("K4", MUST, standard.RENAMING, "the name does not change, and the destructor frees the consumer's memory")
@both_forms
def test_K4_a_foreign_destructor_finds_the_used_name(lib, form):
    """The destructor of a consumed capsule may run: it finds the name that begins with "used_"."""
    renames(lib, form)
    names = []
    offer = lib.offer(form, capsule={"on_destroy": names.append})
    array = lib.from_dlpack(offer)
    del array
    assert settled(lambda: offer.made[-1].deleted == 1), f"the deleter was called {offer.made[-1].deleted} times"
    assert all(name.startswith(b"used_") for name in names), f"the capsule died as {names}"


@clause("K3", MUST, standard.NO_DELETER, "a NULL deleter is called")
@both_forms
def test_K3_a_NULL_deleter_is_not_called(lib, form):
    """The deleter can be NULL: the tensor is taken, and nothing is called."""
    accepts(lib, form)
    offer = lib.offer(form, deleter=False)
    array, error = lib.attempt(offer)
    assert error is None, f"raised {shown(error)}"
    assert lib.values(array) == lib.data
    del array
    gc.collect()


@clause("K4", SHOULD, standard.BORROWING, "the producer's struct is changed")
@both_forms
def test_K4_the_struct_of_the_producer_is_not_changed(lib, form):
    """The consumer does not write to the tensor of the producer, nor to shape and strides."""
    accepts(lib, form)
    offer = lib.offer(form, shape=(1, 6))
    array, error = lib.attempt(offer)
    if error is not None:
        offer = lib.offer(form)
        array = lib.from_dlpack(offer)
    made = offer.made[-1]
    if made.deleted:
        pytest.skip("the library copies")
    wanted = tensor(versioned=form, **offer.fields)
    changed = {key: made.says[key] for key in made.says if key != "data" and made.says[key] != wanted.says[key]}
    assert not changed, f"the consumer changed {changed}"
    del array


@clause("K2", CHOICE, standard.OPEN, "the consumer's error is lost when a destructor runs Python code")
@both_forms
def test_K2_a_destructor_that_runs_Python_code_leaves_the_error(lib, form):
    """If the consumer refuses a tensor, its exception survives the destructor of the capsule, which may run Python
    code."""
    accepts(lib, form)
    ran = []

    def on_destroy(name):
        try:
            raise LookupError("in the destructor")
        except LookupError:
            ran.append(name)

    offer = lib.offer(form, dtype=(200, 32, 1), capsule={"on_destroy": on_destroy})
    array, error = lib.attempt(offer)
    if error is None:
        pytest.skip("the tensor is taken")
    assert not isinstance(error, (LookupError, SystemError)), f"raised {error!r}"


@clause("K5", MUST, standard.LIKE_OTHERS, "the array can be freed on the thread that made it only")
@both_forms
def test_K5_the_array_may_die_on_another_thread(lib, form):
    """The array may be freed on another thread: the deleter is called once."""
    accepts(lib, form)
    offer = lib.offer(form)
    held = [lib.from_dlpack(offer)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert settled(lambda: offer.made[-1].deleted == 1), f"the deleter was called {offer.made[-1].deleted} times"


@clause("G1", MUST, standard.ONCE, "two threads take one capsule, and its memory is freed twice")
@both_forms
def test_G1_one_of_eight_threads_gets_a_capsule(lib, form):
    """A capsule is consumed once: of eight threads that are offered one capsule, one takes it."""
    renames(lib, form)
    for _ in range(30):
        made = tensor(versioned=form, **lib.plain())
        capsule = made.capsule()

        class Shared:
            def __dlpack__(self, **keywords):
                return capsule  # noqa: B023

            def __dlpack_device__(self):
                return CPU

        barrier, arrays = threading.Barrier(8), []

        def work():
            barrier.wait()  # noqa: B023
            array, error = lib.attempt(Shared())  # noqa: B023
            if error is None:
                arrays.append(array)  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(arrays) == 1, f"{len(arrays)} threads took the capsule"
        arrays.clear()
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"


@clause("G1", CHOICE, standard.OPEN, "imports on several threads damage each other")
def test_G1_eight_threads_import_at_once(lib):
    """Several threads may import tensors at once."""
    barrier, offers, wrong = threading.Barrier(8), [], []

    def work(i):
        barrier.wait()
        for _ in range(60):
            offer = lib.offer()
            offers.append(offer)
            if lib.values(lib.from_dlpack(offer)) != lib.data:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"threads {wrong} read other values"
    counts = {made.deleted for offer in offers for made in offer.made}
    assert settled(lambda: {made.deleted for o in offers for made in o.made} == {1}), (
        f"the deleters were called {counts} times"
    )


# ---- D: tensors ----


@clause("D1", MUST, standard.OFFSET, "byte_offset is ignored, and the wrong elements are read")
@both_forms
@pytest.mark.parametrize("offset", [16, 256])
def test_D1_byte_offset_is_added(lib, offset, form):
    """data + byte_offset is the first element: a tensor with a byte_offset is read from there, or refused."""
    accepts(lib, form)
    offer = lib.offer(form, values=bytes(offset) + lib.data, byte_offset=offset)
    outcome = lib.exchange(offer, lib.data, lib.shape)
    lib.choose("byte_offset", "refused" if outcome == "refused" else "added")


@clause("D4", MUST, standard.STRIDES_NULL, "NULL strides are followed")
@pytest.mark.parametrize("version", [None, (1, 0), (1, 1)], ids=["legacy", "1.0", "1.1"])
@pytest.mark.parametrize("shape", [None, (2, 3)], ids=str)
def test_D4_NULL_strides_are_compact_row_major(lib, shape, version):
    """Before version 1.2, NULL strides mean a compact row-major tensor: it is read so, or refused."""
    accepts(lib, version is not None)
    fields = {"version": version} if version else {}
    shape = shape or lib.shape
    offer = lib.offer(version is not None, shape=shape, strides=None, **fields)
    outcome = lib.exchange(offer, data_of(lib.dtype, shape), shape)
    lib.choose("NULL strides", "refused" if outcome == "refused" else "compact")


@clause("D4", CHOICE, standard.STRIDES_SET, "NULL strides of a producer of 1.2 crash")
def test_D4_NULL_strides_since_1_2(lib):
    """NULL strides in a versioned capsule of 1.2 or newer are against dlpack.h: the tensor is refused or read as
    compact."""
    accepts(lib, True)
    choose_plain(lib, "NULL strides since 1.2", True, strides=None)


# Shape, strides and the first element of tensors in 12 elements.
LAYOUTS = {
    "columns": ((3, 4), (1, 3), 0),
    "axes moved": ((2, 2, 3), (1, 6, 2), 0),
    "every other": ((3, 2), (4, 2), 0),
    "a slice of rows": ((2, 2), (4, 1), 5),
    "broadcast": ((3, 4), (0, 1), 0),
    "one element, repeated": ((2, 3), (0, 0), 8),
    "windows": ((4, 3), (1, 1), 0),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


@clause("D5", MUST, standard.STRIDES, "strides are ignored")
@both_forms
@layouts
def test_D5_strides_lead_to_the_elements(lib, layout, form):
    """A tensor with any strides is read with its elements, or refused."""
    accepts(lib, form)
    shape, strides, first = layout
    size = itemsize(lib.dtype)
    data = data_of(lib.dtype, (12,))
    offer = lib.offer(form, values=data[size * first :], shape=shape, strides=strides)
    if lib.described(lib.from_dlpack(lib.offer(form))).shape is None:
        pytest.skip("the library has no shapes: it tells the bytes in the order of memory")
    outcome = lib.exchange(offer, elements_of(data, size, shape, strides, first), shape)
    lib.choose(f"shape {shape}, strides {strides}", outcome)


@clause("D5", MUST, standard.STRIDES, "negative strides end the process, or are made positive")
@both_forms
@pytest.mark.parametrize(
    "layout", [((6,), (-1,), 5), ((2, 3), (-3, 1), 3), ((2, 3), (3, -1), 2)], ids=["vector", "rows", "columns"]
)
def test_D5_negative_strides(lib, layout, form):
    """Strides may be negative: the tensor is read with its elements, or refused."""
    accepts(lib, form)
    shape, strides, first = layout
    size = itemsize(lib.dtype)
    data = data_of(lib.dtype, (6,))
    offer = Backwards(form, size * first, data, **lib.plain(shape=shape, strides=strides))
    outcome = lib.exchange(offer, elements_of(data, size, shape, strides, first), shape)
    lib.choose("negative strides", outcome)


class Backwards(Offer):
    """An Offer whose data is byte `first` of the values, which are in the memory of another tensor."""

    def __init__(self, form, first, values, **fields):
        super().__init__(form, **fields, values=b"")
        self.memory = tensor(values=bytes(256 - first) + values)
        self.first = self.memory.address + 256
        self.fields["data"] = self.first

    def __dlpack__(self, **keywords):
        capsule = super().__dlpack__(**keywords)
        self.made[-1] = Placed(self.made[-1], self.first)
        return capsule


class Placed:
    """A Managed whose address is that of its first element."""

    def __init__(self, made, address):
        self.made, self.address = made, address

    deleted = property(lambda self: self.made.deleted)
    says = property(lambda self: self.made.says)


@clause("D5", MUST, standard.STRIDES, "the stride of an extent of 1 makes a tensor non-contiguous, or is followed")
@both_forms
@pytest.mark.parametrize("strides", [(1, 1), (6, 1), (1000, 1), (0, 1), (-5, 1), (2**40, 1)], ids=str)
def test_D5_the_stride_of_an_extent_of_1_has_no_meaning(lib, strides, form):
    """The stride of an extent of 1 carries no meaning: the tensor is read, or refused."""
    accepts(lib, form)
    data = data_of(lib.dtype, (1, 6))
    outcome = lib.exchange(lib.offer(form, shape=(1, 6), strides=strides), data, (1, 6))
    lib.choose("odd strides of an extent of 1", "refused" if outcome == "refused" else "taken")


@clause("D3", MUST, standard.NO_SHAPE, "NULL shape and strides of a scalar are followed")
@both_forms
@pytest.mark.parametrize("null", [True, False], ids=["NULL", "not NULL"])
def test_D3_a_scalar_is_taken(lib, null, form):
    """If ndim is 0, shape and strides can be NULL: the tensor has one element."""
    accepts(lib, form)
    fields = {"shape": None, "strides": None, "ndim": 0} if null else {"shape": (), "strides": ()}
    data = data_of(lib.dtype, (1,))
    outcome = lib.exchange(lib.offer(form, values=data, **fields), data, ())
    lib.choose("a scalar", outcome)


@clause("D3", MUST, standard.EMPTY, "data of a tensor without elements is read, or NULL refused")
@both_forms
@pytest.mark.parametrize("data", [0, 4096], ids=["NULL", "unreadable"])
@pytest.mark.parametrize("shape, strides", [((0,), (1,)), ((2, 0, 3), (0, 3, 1)), ((0, 3), (-7, 2**40))], ids=str)
def test_D3_data_of_a_tensor_without_elements_is_not_read(lib, shape, strides, data, form):
    """A tensor without elements has any data pointer, also NULL, and any strides."""
    accepts(lib, form)
    outcome = lib.exchange(lib.offer(form, shape=shape, strides=strides, data=data, values=b""), b"", shape)
    lib.choose("empty tensors", "refused" if outcome == "refused" else "taken")


@clause("D6", MUST, standard.DTYPE, "a dtype is taken for another")
@both_forms
@pytest.mark.parametrize("dtype", DTYPES)
def test_D6_each_dtype_is_read(lib, dtype, form):
    """A tensor of each dtype is read with its dtype and values, or refused."""
    accepts(lib, form)
    offer = lib.offer(form, dtype=dtype)
    array, error = lib.attempt(offer)
    if error is None:
        name = lib.described(array).dtype
        assert name in (None, dtype), f"the array has the dtype {name}"
        del array
    outcome = lib.exchange(lib.offer(form, dtype=dtype), data_of(dtype, lib.shape), lib.shape)
    lib.choose(f"dtype {dtype}", "refused" if outcome == "refused" else "taken")


ODD_DTYPES = {
    "unknown code": (200, 32, 1),
    "opaque handle": (3, 64, 1),
    "two lanes": (2, 32, 2),
    "65535 lanes": (0, 8, 65535),
    "bool of 1 bit": (6, 1, 1),
    "uint of 1 bit": (1, 1, 1),
    "int of 24 bits": (0, 24, 1),
    "float of 8 bits": (2, 8, 1),
    "float of 128 bits": (2, 128, 1),
    "complex of 32 bits": (5, 32, 1),
    "complex of 2 lanes": (5, 32, 2),
    "bfloat of 8 bits": (4, 8, 1),
    "float8_e4m3fn of 16 bits": (10, 16, 1),
    "float4_e2m1fn": (17, 4, 1),
    "float6_e2m3fn": (15, 6, 1),
    "complex bfloat16": (18, 32, 1),
}


@clause("D6", MUST, standard.LANES, "a dtype that the library does not know is taken for another")
@both_forms
@pytest.mark.parametrize("dtype", ODD_DTYPES.values(), ids=ODD_DTYPES)
def test_D6_a_dtype_that_the_library_lacks_is_not_taken_for_another(lib, dtype, form):
    """A dtype that the library lacks is refused, and not taken for a dtype of the array API."""
    accepts(lib, form)
    offer = Offer(form, shape=(3,), dtype=dtype, values=bytes(range(1, 4)) * 65535)
    array, error = lib.attempt(offer)
    if error is None:
        says = lib.described(array)
        assert says.dtype is None or says.dtype not in DTYPES, f"{dtype} is read as {says.dtype}"
        if says.dtype is None:
            size = -(-dtype[1] * dtype[2] * 3 // 8)
            assert len(lib.values(array)) == size, f"{dtype} is read as {len(lib.values(array)) // 3} bytes an element"
        del array, says
    for made in offer.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"


@clause("D6", CHOICE, standard.OPEN, "a size of 0 is divided by, or multiplied with")
@both_forms
@pytest.mark.parametrize("dtype", [(2, 32, 0), (0, 0, 1)], ids=["no lanes", "no bits"])
def test_D6_a_dtype_that_cannot_be(lib, dtype, form):
    """A dtype without lanes or bits is refused or taken; its elements are not read."""
    accepts(lib, form)
    offer = lib.offer(form, dtype=dtype)
    array, error = lib.attempt(offer)
    lib.choose(f"dtype {dtype}", "refused" if error else "taken")


# ---- D8: what cannot be ----

IMPOSSIBLE = {
    "a negative extent": {"shape": (-1,), "strides": (1,)},
    "a negative extent among others": {"shape": (2, -3), "strides": (3, 1)},
    "ndim is -1": {"ndim": -1, "shape": (6,), "strides": (1,)},
    "ndim is 65": {"shape": (1,) * 65, "strides": (1,) * 65},
    "ndim is 1000": {"shape": (1,) * 1000, "strides": (1,) * 1000},
    "NULL shape": {"shape": None, "ndim": 1, "strides": (1,)},
    "more elements than memory": {"shape": (2**62, 4), "strides": (4, 1)},
    "more bytes than 2**63": {"shape": (2**62,), "strides": (1,)},
    "a product that wraps to 0": {"shape": (2**32, 2**32), "strides": (2**32, 1)},
    "strides that leave the address range": {"shape": (3, 3), "strides": (2**62, 1)},
}


@clause("D8", CHOICE, standard.OPEN, "extents that cannot be are read")
@both_forms
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_D8_a_tensor_that_cannot_be(lib, name, form):
    """A tensor with a negative extent or rank, without a shape, or larger than the address range is against dlpack.h.
    It is refused or taken; its elements are not read."""
    accepts(lib, form)
    offer = Offer(form, **lib.plain(**{"values": bytes(64), **IMPOSSIBLE[name]}))
    array, error = lib.attempt(offer)
    refused = error is not None
    del array, error
    for made in offer.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"
    lib.choose(name, "refused" if refused else "taken")


@clause("D8", CHOICE, standard.OPEN, "NULL is read")
def test_D8_NULL_data_with_elements(lib):
    """A tensor with elements and NULL data is refused or taken; its elements are not read."""
    offer = lib.offer(data=0)
    array, error = lib.attempt(offer)
    lib.choose("NULL data with elements", "refused" if error else "taken")


@clause("D8", MUST, standard.SHAPE_64, "extents are cut to 32 bits")
@both_forms
@pytest.mark.parametrize("extent", [2**31, 2**32 + 3, 2**33], ids=str)
def test_D8_an_extent_beyond_32_bits_is_read_whole(lib, extent, form):
    """Extents are 64-bit integers: an extent beyond 32 bits is read whole, or refused."""
    accepts(lib, form)
    offer = lib.offer(form, values=data_of(lib.dtype, (1,)), shape=(extent,), strides=(0,))
    array, error = lib.attempt(offer)
    if error is None:
        says = lib.described(array)
        assert says.shape in (None, (extent,)), f"the shape is {says.shape}"
    lib.choose("extents beyond 32 bits", "refused" if error else "taken")


@clause("D2", CHOICE, standard.ALIGNED, "data that is not aligned to the element is read in words")
@pytest.mark.parametrize("misalign", [n for n in (1, 2, 4) if n % ctypes.alignment(ctypes.c_int64)])
def test_D2_data_that_is_not_aligned_to_the_element(lib, misalign):
    """Data that is not aligned to its element is read with its values, copied, or refused."""
    dtype = "int64" if "int64" in lib.adapter.dtypes else lib.dtype
    if misalign % itemsize(dtype) == 0:
        pytest.skip(f"an element of {dtype} has {itemsize(dtype)} bytes")
    outcome = lib.exchange(lib.offer(dtype=dtype, misalign=misalign), data_of(dtype, lib.shape), lib.shape)
    lib.choose("misaligned data", outcome)


# ---- C5: devices ----


@clause("C5", SHOULD, standard.UNSUPPORTED, "memory of a device is read as memory of the CPU")
@both_forms
@pytest.mark.parametrize("device", [(4, 0), (7, 3), (16, 0), (99, 0), (-1, 0)], ids=str)
def test_C5_a_device_that_the_library_lacks_is_refused(lib, device, form):
    """A device that the library does not support is refused, recommended with BufferError. The data here cannot be
    read."""
    accepts(lib, form)
    offer = lib.offer(form, device=device, data=4096)
    offer.fields["device"] = device
    array, error = lib.attempt(offer)
    assert error is not None, f"a tensor on the device {device} was taken"
    for made in offer.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"
    assert isinstance(error, BufferError) or not lib.adapter.takes_objects, f"raised {shown(error)}"


@clause("C5", SHOULD, standard.UNSUPPORTED, "memory of a device is read as memory of the CPU, and the process ends")
@both_forms
@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("device", [(2, 0), (10, 0), (8, 0)], ids=["CUDA", "ROCm", "Metal"])
def test_C5_memory_of_a_GPU_is_not_read_as_memory_of_the_CPU(lib, device, told, form):
    """Memory of a GPU is refused by a library that has no GPU, also where __dlpack_device__ tells the CPU. The data
    here cannot be read."""
    accepts(lib, form)
    offer = lib.offer(form, device=device if told else CPU, data=4096)
    offer.fields["device"] = device
    array, error = lib.attempt(offer)
    assert error is not None, f"a tensor on the device {device} was taken"
    for made in offer.made:
        assert settled(lambda made=made: made.deleted == 1), f"the deleter was called {made.deleted} times"


@clause("C5", CHOICE, standard.OPEN, "the id of the CPU is used as an index")
def test_C5_a_device_id_of_the_CPU_other_than_0(lib):
    """A tensor of the CPU with a device id other than 0 is taken or refused."""
    offer = lib.offer(device=(1, 1))
    offer.fields["device"] = (1, 1)
    lib.choose(
        "device id 1 of the CPU",
        "refused" if lib.exchange(offer, lib.data, lib.shape) == "refused" else "taken",
    )


@clause("C5", CHOICE, standard.OPEN, "pinned memory is taken for memory of a GPU")
@pytest.mark.parametrize("device", [(3, 0), (11, 0), (13, 0)], ids=["CUDA host", "ROCm host", "CUDA managed"])
def test_C5_pinned_and_managed_memory(lib, device):
    """Pinned and managed memory, which the CPU can read, is taken or refused."""
    offer = lib.offer(device=device)
    offer.fields["device"] = device
    outcome = lib.exchange(offer, lib.data, lib.shape)
    lib.choose(f"memory of device type {device[0]}", "refused" if outcome == "refused" else "taken")


# ---- C6: what has no tensor ----


@clause("C6", SHOULD, standard.ATTRIBUTE_ERROR, "an object without the protocol is an unrelated error")
def test_C6_an_object_without_the_protocol_is_an_AttributeError(lib):
    """from_dlpack of an object without __dlpack__ raises AttributeError."""
    lib.needs_objects()
    array, error = lib.attempt(object())
    assert isinstance(error, AttributeError), f"raised {error!r}"


ANSWERS = {"None": None, "an int": 3, "a tuple": (1, 2), "a list": [], "the object": ..., "bytes": b"dltensor"}


@clause("C6", CHOICE, standard.OPEN, "a result that is no capsule is read as one")
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_C6_a_result_that_is_no_capsule_is_refused(lib, answer):
    """If __dlpack__ returns something else than a capsule, from_dlpack raises an exception."""

    class Odd:
        def __dlpack__(self, **keywords):
            return self if answer is ... else answer

        def __dlpack_device__(self):
            return CPU

    array, error = lib.attempt(Odd())
    assert error is not None, "it was taken"
    assert not isinstance(error, SystemError), f"raised {error!r}"


@clause("C6", CHOICE, standard.OPEN, "older code passes a capsule in place of an object")
@both_forms
def test_C6_a_capsule_in_place_of_an_object(lib, form):
    """A capsule in place of an object is taken or refused."""
    made = tensor(versioned=form, **lib.plain())
    array, error = lib.attempt(made.capsule())
    if error is None:
        assert lib.values(array) == lib.data
    refused = error is not None
    del array, error  # an AttributeError keeps the capsule
    assert settled(lambda: made.deleted == 1), f"the deleter was called {made.deleted} times"
    lib.choose(
        f"a {'versioned' if form else 'legacy'} capsule in place of an object", "refused" if refused else "taken"
    )


@clause("C6", CHOICE, standard.OPEN, "a proxy forwards __dlpack__ from its instance")
def test_C6_a_method_of_the_instance(lib):
    """__dlpack__ of an instance, which the type lacks, is called or not."""
    lib.needs_objects()
    offer = lib.offer()

    class Proxy:
        pass

    proxy = Proxy()
    proxy.__dlpack__, proxy.__dlpack_device__ = offer.__dlpack__, offer.__dlpack_device__
    array, error = lib.attempt(proxy)
    lib.choose("__dlpack__ of an instance", "refused" if error else "called")


@clause("C4", CHOICE, standard.OPEN, "a producer without __dlpack_device__ is refused")
def test_C4_a_producer_without_dlpack_device(lib):
    """A producer without __dlpack_device__ is taken or refused."""
    lib.needs_objects()

    class Bare:
        def __dlpack__(self, **keywords):
            return lib.offer().__dlpack__(**keywords)

    array, error = lib.attempt(Bare())
    lib.choose("no __dlpack_device__", "refused" if error else "taken")


@clause("C4", CHOICE, standard.OPEN, "an id that is None, or an enum, ends the process")
@pytest.mark.parametrize("device", [(1, None), "junk", None, (1,), (1, 0, 0), 3], ids=repr)
def test_C4_an_odd_device_is_tolerated_or_refused(lib, device):
    """Whatever __dlpack_device__ returns, from_dlpack takes the tensor or raises an exception."""
    lib.needs_objects()
    offer = lib.offer(device=device)
    lib.exchange(offer, lib.data, lib.shape)


# ---- C7: read-only data, flags ----


def is_writable(lib, array):
    readonly = lib.described(array).readonly
    if readonly is None:
        pytest.skip("the library does not tell whether an array is read-only")
    return not readonly


@clause("C7", MUST, standard.READ_ONLY_FLAG, "the read-only flag is lost, and constant memory is written")
def test_C7_read_only_data_stays_read_only(lib):
    """A library that has read-only arrays honours DLPACK_FLAG_BITMASK_READ_ONLY: the array is read-only, or a copy, or
    the tensor is refused. A library without such arrays should ignore the flag."""
    accepts(lib, True)
    offer = lib.offer(True, flags=READ_ONLY)
    array, error = lib.attempt(offer)
    if error is not None:
        lib.choose("read-only data", "refused")
        return
    if lib.described(array).pointer not in (None, offer.made[-1].address):
        lib.choose("read-only data", "copied")
        return
    if lib.adapter.readonly is None and is_writable(lib, array):
        lib.choose("read-only data", "flag ignored, the library has no read-only arrays")
        return
    assert not is_writable(lib, array), "the array is writable"
    lib.choose("read-only data", "read-only")


@clause("C7", CHOICE, standard.OPEN, "all imported data becomes read-only")
def test_C7_writable_data_stays_writable(lib):
    """A versioned tensor without DLPACK_FLAG_BITMASK_READ_ONLY becomes writable or read-only in a library that has
    writable arrays."""
    accepts(lib, True)
    if is_writable(lib, lib.some()) is False:
        pytest.skip("the library's arrays are read-only")
    array = lib.from_dlpack(lib.offer(True))
    lib.choose("writable data", "writable" if is_writable(lib, array) else "read-only")


@clause("C7", CHOICE, standard.OPEN, "a legacy capsule cannot say read-only")
def test_C7_data_of_a_legacy_capsule(lib):
    """Data of a legacy capsule, which cannot say read-only, becomes writable or read-only."""
    accepts(lib, False)
    array = lib.from_dlpack(lib.offer(False))
    lib.choose("legacy data", "writable" if is_writable(lib, array) else "read-only")


@clause("C7", MUST, standard.READ_ONLY_FLAG, "read-only data becomes writable on its way through a library")
def test_C7_read_only_data_is_exported_as_read_only(lib):
    """A library that honours the read-only flag exports such an array with the flag, or not at all."""
    accepts(lib, True)
    offer = lib.offer(True, flags=READ_ONLY)
    array, error = lib.attempt(offer)
    if error is not None or is_writable(lib, array):
        pytest.skip("the library does not take read-only data as read-only")
    if not hasattr(array, "__dlpack__"):
        pytest.skip("the library does not produce")
    try:
        taken = lib.take(array, max_version=(1, 3))
    except Exception as error:
        without_frames(error)
        return
    if taken.says["version"] is None or taken.says["data"] != offer.made[-1].address:
        pytest.skip("the export is legacy, or a copy")
    assert taken.says["flags"] & READ_ONLY, f"flags are {taken.says['flags']}"


@clause("C8", MUST, standard.MINOR, "a flag of a later version is refused or misread")
@pytest.mark.parametrize("flags", [2**40, 2**63, 8, 2], ids=["bit 40", "bit 63", "bit 3", "IS_COPIED"])
def test_C8_other_flags_do_not_change_the_values(lib, flags):
    """Flags that the consumer does not know are compatible additions: the values are right, or the tensor is
    refused."""
    accepts(lib, True)
    outcome = lib.exchange(lib.offer(True, flags=flags), lib.data, lib.shape)
    lib.choose(
        "the flag IS_COPIED" if flags == 2 else "unknown flags", "refused" if outcome == "refused" else "ignored"
    )


@clause("C8", MUST, standard.PADDED_FLAG, "padded sub-byte data is read as packed")
def test_C8_padded_data_is_not_read_as_packed(lib):
    """A tensor of 4-bit elements with the flag of padded data has a byte for each element: it is read so, or
    refused."""
    accepts(lib, True)
    offer = Offer(True, shape=(4,), dtype=(1, 4, 1), values=b"\1\2\3\4", flags=PADDED)
    array, error = lib.attempt(offer)
    if error is not None or not hasattr(array, "__dlpack__"):
        pytest.skip("the library takes no padded data")
    taken = lib.take(array, max_version=(1, 3))
    assert taken.elements() == [b"\1", b"\2", b"\3", b"\4"], f"the elements are {taken.elements()}"


@clause("D9", MUST, standard.LIKE_OTHERS, "a tensor changes on its way through the library")
@both_forms
@pytest.mark.parametrize(
    "fields", [{}, {"byte_offset": 32}, {"strides": (2,), "shape": (3,)}], ids=["plain", "byte_offset", "strides"]
)
def test_D9_an_imported_tensor_is_exported_as_it_came(lib, fields, form):
    """An array that came from a tensor is exported with the values of this tensor, and keeps its memory."""
    accepts(lib, form)
    size = itemsize(lib.dtype)
    fields = lib.plain(**{"shape": (4,), "strides": (1,), "values": data_of(lib.dtype, (40,)), **fields})
    data = elements_of(fields["values"], size, fields["shape"], fields["strides"], fields.get("byte_offset", 0) // size)
    offer = Offer(form, **fields)
    array, error = lib.attempt(offer)
    if error is not None:
        pytest.skip(f"refused: {shown(error)}")
    if not hasattr(array, "__dlpack__"):
        pytest.skip("the library does not produce")
    try:
        taken = lib.take_any(array)
    except Exception as refusal:
        pytest.skip(f"the array is not exported: {shown(without_frames(refusal))}")
    del array
    gc.collect()
    assert b"".join(taken.elements()) == data, "the export has other values"
    taken.delete()
    assert settled(lambda: offer.made[-1].deleted == 1), f"the deleter was called {offer.made[-1].deleted} times"


@clause("D9", MUST, standard.ACCEPTS, "a library cannot read its own export")
@pytest.mark.parametrize("dtype", [name for name in DTYPES])
def test_D9_the_library_reads_its_own_export(lib, dtype):
    """from_dlpack of an array of the same library has the values of the array."""
    array = lib.make(dtype)
    try:
        lib.take_any(array)
    except Exception as refusal:
        pytest.skip(f"{dtype} is not exported: {shown(without_frames(refusal))}")
    other, error = lib.attempt(array)
    assert error is None, f"raised {shown(error)}"
    name = lib.described(other).dtype
    assert name in (None, dtype), f"the array has the dtype {name}"
    assert lib.values(other) == data_of(dtype, lib.shape), "the array has other values"


@clause("K4", CHOICE, standard.OPEN, "an import leaves a struct or a reference behind")
@pytest.mark.parametrize("fields", [{}, {"dtype": (200, 32, 1)}], ids=["taken", "refused"])
def test_K4_an_import_leaves_no_memory_behind(lib, fields):
    """After the array is gone, or the tensor was refused, nothing is left."""

    class Lasting:
        """Offers the array of the library itself, or a tensor with a NULL deleter that lives on."""

        def __dlpack__(self, **keywords):
            version = keywords.get("max_version")
            return made[bool(version and version[0] >= 1)].capsule()

        def __dlpack_device__(self):
            return CPU

    made = [tensor(versioned=form, deleter=False, **lib.plain(**fields)) for form in (False, True)]
    offer = Lasting()
    grown = leaked(lambda: lib.attempt(offer), 10000, 1 << 20)
    assert not grown, f"10000 imports left {grown >> 10} KB"


@clause("C6", CHOICE, standard.OPEN, "a method that uses the library itself disturbs it")
def test_C6_the_producer_may_use_the_library(lib):
    """__dlpack__ of a producer may import tensors with the same library before it answers."""
    inner = []

    class Nested(Offer):
        def __dlpack__(self, **keywords):
            inner.append(lib.values(lib.from_dlpack(lib.offer())))
            return super().__dlpack__(**keywords)

    assert lib.exchange(Nested(**lib.plain()), lib.data, lib.shape) != "refused"
    assert set(inner) == {lib.data}

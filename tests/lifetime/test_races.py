"""Eight threads use the same objects at once (G1, K1, K4, K5), with and without a GIL.

Each scenario runs in a separate process: it tests the first use of the header, and may crash.
"""

import sys
import textwrap

import pytest
from collecting import not_on_pypy
from lifetime.children import run

PRELUDE = """
import gc, sys, threading
from functools import partial
import race_probe as probe

sys.setswitchinterval(1e-6)  # where there is a GIL
THREADS = 8
ended = []  # the numbers of the threads that have finished

def together(*works):
    "Calls each work on a thread, and the last work on all other threads. Returns their results or exceptions."
    works += works[-1:] * (THREADS - len(works))
    results = [None] * THREADS
    ended.clear()
    def run(i):
        probe.meet(THREADS)
        try:
            results[i] = works[i]()
        except Exception as error:
            results[i] = error.with_traceback(None)  # a traceback keeps all objects alive
        ended.append(i)
    threads = [threading.Thread(target=run, args=[i]) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results

def done(results):
    "Raises the first exception in results."
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results

"""

THINGS = """
Thing = probe.new_type()

class Mortal(Thing):
    "Appends to a list when it dies."
    def __new__(cls, died):
        return super().__new__(cls)
    def __init__(self, died):
        self.died = died
    def __del__(self):
        self.died.append(1)

def settle():
    "Checks that the header has freed all counted blocks but the dlp_type_cache."
    gc.collect()
    assert probe.blocks() == 1, probe.blocks()
"""


def child(script, prelude=PRELUDE + THINGS, **expected):
    run([sys.executable, "-X", "faulthandler", "-c", prelude + textwrap.dedent(script)], **expected)


# ---- First use ----------------------------------------------------------------


def test_first_use_by_eight_threads_at_once_creates_one_state_G1():
    child(
        """
        found = done(together(probe.state))
        assert found == [probe.state()] * THREADS
        """,
        prelude=PRELUDE,
        times=8,
    )


def test_no_thread_gets_a_state_whose_exit_callback_is_not_registered_yet_G1():
    child(
        """
        import atexit, time
        registered = []
        def register(function, register=atexit.register):
            time.sleep(0.05)  # the other threads call state() meanwhile
            result = register(function)
            registered.append(function)
            return result
        atexit.register = register
        def work():
            return probe.state(), len(registered) > 0
        assert done(together(work)) == [(probe.state(), True)] * THREADS
        """,
        prelude=PRELUDE,
        times=8,
    )


def test_a_module_is_imported_by_eight_threads_at_once_G1():
    child(
        """
        def work():
            import dlarray, image
            return dlarray, dlarray.arange(3).tolist(), dlarray.Array, image.Image
        results = done(together(work))
        assert results == [work()] * THREADS
        """,
        prelude=PRELUDE,
        times=4,
    )


def test_eight_threads_make_the_first_exchange_of_a_type_at_once_G1_X1():
    child("""
        things = []
        for turn in range(40):  # more types than the cache holds
            things += [kind() for kind in [Thing, type("Sub", (Thing,), {}), probe.new_type()]]
        def work(use, answer):
            for thing in things:
                assert use(thing) == answer
        done(together(partial(work, probe.borrow, 6.0), partial(work, probe.check, True),
                      partial(work, probe.consume, 6.0)))
    """)


# ---- The same arrays ----------------------------------------------------------


@not_on_pypy("objects that die with their last reference")
def test_eight_threads_exchange_share_and_drop_the_same_arrays_K4():
    child("""
        import dlarray
        died = []
        shared = [Mortal(died), Thing(Mortal(died)), dlarray.from_dlpack(Mortal(died)),
                  dlarray.array([0.0, 1.0, 2.0, 3.0])]
        def work():
            mine = []
            for turn in range(60):
                for source in shared:
                    mine += [dlarray.from_dlpack(source), Thing(source), source.__dlpack__()]
                    mine += [dlarray.from_dlpack(source.__dlpack__(max_version=(1, 0))), dlarray.Array(mine[-3])]
                    assert probe.consume(source) == probe.consume_detached(source) == probe.borrow(source) == 6.0
                    assert probe.allocate_like(source) == 6.0
                if turn % 8 == 7:
                    for each in mine:
                        assert type(each).__name__ == "PyCapsule" or probe.consume(each) == 6.0
                    mine.clear()
        done(together(work))
        assert not died
        shared.clear()
        gc.collect()
        assert len(died) == 3
        settle()
    """)


@not_on_pypy("objects that die with their last reference")
def test_an_array_imported_by_one_thread_is_dropped_by_another_thread_K5():
    child("""
        import queue, dlarray
        died, passed = [], queue.SimpleQueue()
        def give():
            for turn in range(100):
                passed.put(dlarray.from_dlpack(Mortal(died)))
                passed.put(Thing(Mortal(died)).__dlpack__())
                passed.put(Thing(dlarray.from_dlpack(Mortal(died).__dlpack__())))
        def drop():
            for turn in range(300):
                passed.get()
        done(together(*[give] * 4, drop))
        gc.collect()
        assert len(died) == 4 * 300
        settle()
    """)


def test_one_exchange_table_serves_eight_threads_while_types_with_it_come_and_go_X1_X7():
    child("""
        import dlarray, echo
        thing, array = Thing(), dlarray.arange(4)
        def work():
            kept = []
            for turn in range(60):
                kept.append(probe.new_type()())
                assert probe.borrow(probe.new_type()()) == 6.0
                assert probe.borrow(thing) == probe.consume(thing) == 6.0
                assert probe.borrow(type(echo.echo(thing))()) == 6.0
                assert type(echo.echo(array)) is dlarray.Array
                assert probe.consume(probe.return_like(thing, thing)) == 6.0
            for each in kept:
                assert probe.borrow(each) == probe.consume(each) == 6.0
        done(together(work))
    """)


@not_on_pypy("objects that die with their last reference")
def test_results_are_made_like_an_argument_by_eight_threads_at_once():
    child("""
        import dlarray, types
        module = types.ModuleType("plain")
        class Plain:  # has no exchange table; its module has from_dlpack
            def __init__(self, source):
                self.array = dlarray.from_dlpack(source)
            def __dlpack__(self, **kwargs):
                return self.array.__dlpack__(**kwargs)
        Plain.__module__, module.from_dlpack = "plain", Plain
        sys.modules["plain"] = module
        likes = [dlarray.arange(1), Thing(), Plain(Thing())]
        died = []
        def work():
            for turn in range(60):
                for like in likes:
                    made = probe.return_like(like, Mortal(died))
                    assert probe.consume(made) == 6.0 and type(made).__name__ == type(like).__name__
        done(together(work))
        del likes
        gc.collect()
        assert len(died) == THREADS * 60 * 3
    """)


def test_a_class_is_changed_while_eight_threads_consume_its_objects_C6():
    child("""
        import dlarray
        ones, sixes = dlarray.array([1.0, 0, 0, 0]), dlarray.array([0.0, 1, 2, 3])
        answers = [lambda self, **kwargs: ones.__dlpack__(**kwargs), lambda self, **kwargs: sixes.__dlpack__(**kwargs)]
        class Source:
            __dlpack__ = answers[0]
        class Derived(Source):
            pass
        def change():
            while len(ended) < THREADS - 1:
                Source.__dlpack__ = answers[0]
                Source.__dlpack__ = answers[1]
                Derived.__dlpack__ = answers[0]
                del Derived.__dlpack__
        def use():
            for turn in range(200):
                assert probe.consume(Source()) in (1.0, 6.0)
                assert probe.borrow(Derived()) in (1.0, 6.0)
                assert probe.check(Derived())
        done(together(change, use))
        # CPython 3.13 without a GIL may still find the old method, here too: use the method that it finds.
        assert probe.consume(Derived()) == {answers[0]: 1.0, answers[1]: 6.0}[Derived.__dlpack__]
    """)


def test_a_class_with_a_table_is_changed_while_eight_threads_consume_its_objects_X2():
    child("""
        import dlarray
        ones = dlarray.array([1.0, 0, 0, 0])
        override = lambda self, **kwargs: ones.__dlpack__(**kwargs)
        class Derived(Thing):
            pass
        def change():
            while len(ended) < THREADS - 1:
                Derived.__dlpack__ = override  # the class has no table until the override is deleted
                del Derived.__dlpack__
        def use():
            for turn in range(200):
                try:
                    assert probe.consume(Derived()) in (1.0, 6.0)
                    assert probe.borrow(Derived()) in (1.0, 6.0)
                except BufferError as error:  # the class changed after its table was found and before the call
                    assert "Derived overrides __dlpack__ or the table" in str(error)
        for turn in range(20):
            done(together(change, use))
            assert probe.consume(Derived()) == probe.borrow(Derived()) == 6.0
            Derived.__dlpack__ = override
            assert probe.consume(Derived()) == probe.borrow(Derived()) == 1.0
            del Derived.__dlpack__
    """)


# ---- The same capsules --------------------------------------------------------


@not_on_pypy("objects that die with their last reference")
@pytest.mark.parametrize("version", [None, (1, 0)], ids=["legacy", "versioned"])
@pytest.mark.parametrize("source", ["Mortal(died)", "Thing(Mortal(died))"], ids=["embedded", "allocated"])
def test_of_eight_threads_exactly_one_takes_a_capsule_K4(version, source):
    child(f"""
        import dlarray
        died = []
        capsules = [({source}).__dlpack__(max_version={version}) for turn in range(200)]
        def work(take):
            taken = []
            for i, capsule in enumerate(capsules):
                try:
                    take(capsule)
                    taken.append(i)
                except ValueError as error:
                    assert "it was consumed already" in str(error), error
            return taken
        results = done(together(*[partial(work, take) for take in (dlarray.from_dlpack, probe.consume,
                                                                   probe.consume_detached, Thing)] * 2))
        assert sorted(sum(results, [])) == list(range(200))
        gc.collect()
        assert len(died) == 200
        assert not any(map(probe.check, capsules))
        del capsules
        assert len(died) == 200
        settle()
    """)


def test_of_eight_threads_exactly_one_gets_the_tensor_of_a_result_K4():
    child("""
        died, got = [], []
        class Library(Mortal):
            def __array_namespace__(self):
                return Library
            def from_dlpack(result):
                def work():
                    try:
                        return result.__dlpack__(max_version=(1, 0))
                    except BufferError as error:
                        assert "was exported already" in str(error)
                capsules = [capsule for capsule in done(together(work)) if capsule is not None]
                got.append(len(capsules))
                return probe.consume(capsules[0])
        like = type("Like", (), {"__array_namespace__": lambda self: Library})()
        for turn in range(40):
            assert probe.return_like(like, Mortal(died)) == 6.0
        assert got == [1] * 40
        gc.collect()
        assert len(died) == 40
        settle()
    """)


def test_a_capsule_that_some_threads_refuse_is_taken_by_one_of_the_others_K4():
    child("""
        died = []
        capsules = [Mortal(died).__dlpack__(max_version=(1, 0)) for turn in range(200)]
        def refuse():
            for capsule in capsules:
                try:
                    probe.consume_integers(capsule)
                except BufferError as error:
                    assert "int32" in str(error)
                except ValueError as error:
                    assert "it was consumed already" in str(error)
        def look():
            for capsule in capsules:
                probe.wait_until_taken(capsule)
        def take():
            taken = 0
            for capsule in capsules:
                try:
                    taken += probe.consume(capsule) == 6.0
                except ValueError as error:
                    assert "it was consumed already" in str(error)
            return taken
        results = done(together(refuse, refuse, look, look, take))
        assert sum(results[4:]) == 200
        gc.collect()
        assert len(died) == 200
        settle()
    """)


@not_on_pypy("objects that die with their last reference")
def test_a_capsule_that_eight_threads_drop_calls_its_deleter_once_K1():
    child("""
        died = []
        capsules = [Thing(Mortal(died)).__dlpack__() for turn in range(200)]
        mine = [capsules[:] for i in range(THREADS)]
        del capsules
        def drop(mine):
            while mine:
                mine.pop()
        done(together(*[partial(drop, each) for each in mine]))
        gc.collect()
        assert len(died) == 200
        settle()
    """)


# ---- Deleters on threads that Python did not create ---------------------------


@not_on_pypy("objects that die with their last reference")
@pytest.mark.parametrize("attached", [0, 3, 6])
def test_deleters_of_one_owner_run_at_once_on_foreign_threads_K5(attached):
    child(f"""
        died = []
        for turn in range(40):
            owner = Mortal(died)
            sources = [owner, owner, Thing(owner), owner.__dlpack__(), owner.__dlpack__(max_version=(1, 0)), owner]
            del owner
            probe.release_on_threads(sources, {attached})
            assert len(died) == turn + 1, (turn, died)
        settle()
    """)


@not_on_pypy("objects that die with their last reference")
def test_eight_threads_export_while_foreign_threads_release_K5():
    child("""
        import dlarray
        died, shared = [], dlarray.array([0.0, 1.0, 2.0, 3.0])
        def work():
            for turn in range(20):
                probe.release_on_threads([Mortal(died), shared, Mortal(died).__dlpack__(), Thing(shared)], 2)
        done(together(work))
        assert len(died) == THREADS * 20 * 2
        settle()
    """)


@not_on_pypy("objects that die with their last reference")
def test_cycles_through_exports_are_collected_while_eight_threads_make_them():
    child("""
        import dlarray
        died = []
        class Ring(dlarray.Array):
            def __del__(self):
                died.append(1)
        def work():
            for turn in range(80):
                owner = Ring(dlarray.zeros(4))
                owner.itself = dlarray.from_dlpack(owner)
        def collect():
            for turn in range(20):
                gc.collect()
        done(together(collect, work))
        gc.collect()
        assert len(died) == (THREADS - 1) * 80, len(died)
    """)


# ---- dlarray -------------------------------------------------------------------


def test_each_operation_of_an_array_works_on_eight_threads_at_once():
    child("""
        import dlarray
        a = dlarray.arange(24, dtype="float64").reshape(2, 3, 4)
        expected = a.tolist()
        def work():
            for turn in range(40):
                assert a.transpose().transpose().tolist() == expected
                assert a.reshape(24)[::-1][0] == 23.0
                assert a[1, ..., None].broadcast_to((2, 3, 4, 2)).shape == (2, 3, 4, 2)
                assert a.copy().tolist() == expected and repr(a)
                assert a.strides == (12, 4, 1) and a.owner.size == 24 and a.nbytes == 192
                assert memoryview(a).nbytes == 192 and a.__dlpack_device__() == (1, 0)
                assert dlarray.frombuffer(a.reshape(24), "float64").readonly is False
                b = dlarray.zeros(4, "int32")
                b[:] = turn
                assert dlarray.from_dlpack(b, copy=True).tolist() == [turn] * 4
        done(together(work))
    """)


def test_an_array_is_made_read_only_while_other_threads_export_it_C7():
    child("""
        import dlarray
        a = dlarray.array([0.0, 1.0, 2.0, 3.0])
        def change():
            while len(ended) < THREADS - 1:
                a.setflags(writeable=False)
                a.setflags(writeable=True)
        def write():
            for turn in range(2000):
                try:
                    assert probe.writable_buffer(a) is False  # a read-only buffer would break the request
                except BufferError as error:
                    assert "read-only" in str(error)
        def use():
            for turn in range(100):
                assert dlarray.from_dlpack(a).readonly in (False, True)
                assert a[1:].readonly in (False, True)
                assert memoryview(a).readonly in (False, True)
                assert probe.borrow(a) == 6.0
                try:
                    dlarray.from_dlpack(a.__dlpack__())
                except BufferError as error:  # the legacy form has no read-only flag
                    assert "read-only" in str(error)
                try:
                    a[4:] = 0.0  # an empty slice: writing elements would race with the readers
                except ValueError as error:
                    assert "read-only" in str(error)
        done(together(change, write, use))
        assert a.readonly is False and dlarray.from_dlpack(a).readonly is False
    """)

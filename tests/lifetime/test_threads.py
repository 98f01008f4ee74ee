"""Deleters on threads of every kind while the interpreter runs (K5), and exceptions in flight (K2)."""

import sysconfig

import pytest

needs_gil = pytest.mark.skipif(bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="needs a GIL to hold")


def test_a_deleter_on_a_foreign_thread_drops_the_owner_on_that_thread_K5(child):
    child("""
        import _thread
        for past in PASTS:
            died = []
            states = interpreters.thread_states()
            probe.start(elsewhere(exports, lambda: died.append(_thread.get_ident())), past)
            probe.join()
            assert len(died) == 4 and _thread.get_ident() not in died
            assert interpreters.thread_states() == states + (past == "kept")
            assert probe.counts()["blocks"] == 0  # no export is left, and no dlp_type_cache was allocated
        probe.settle()
    """)


def test_a_deleter_on_an_attached_thread_drops_the_owner_before_it_returns_K5(child):
    child(
        """
        for tensor in exports(partial(say, "owner died")):
            say("deleter")
            probe.drop(tensor)
        assert probe.counts()["blocks"] == 0
        probe.settle()
        """,
        out="deleter\nowner died\n" * 4,
    )


def test_a_deleter_on_a_python_thread_that_released_the_gil_drops_the_owner_K5(child):
    child("""
        import threading
        died = []
        states = interpreters.thread_states()
        for tensor in exports(partial(died.append, 1)):
            probe.drop_detached(tensor)
        assert len(died) == 4
        for tensor in exports(partial(died.append, 1)):
            thread = threading.Thread(target=probe.drop_detached, args=[tensor])
            thread.start()
            thread.join()
        assert len(died) == 8
        wait_for(lambda: interpreters.thread_states() == states)
        probe.settle()
    """)


@needs_gil
def test_no_owner_is_touched_by_a_foreign_thread_while_another_holds_the_gil_K5(child):
    child("""
        sys.setswitchinterval(100)
        for past in PASTS:
            drops = probe.counts()["begun"]
            probe.start(exports(forms=EMBEDDED * 4), past)
            for i in range(1, 9):
                probe.hold(drops + i, 0.003)
                wait_for(lambda: probe.counts()["ended"] >= drops + i)
            probe.join()
        assert probe.counts()["trespasses"] == 0
    """)


@needs_gil
def test_no_owner_is_touched_by_a_python_thread_that_has_not_got_the_gil_K5(child):
    child("""
        import threading
        sys.setswitchinterval(100)
        tensors = exports(forms=EMBEDDED * 10)
        def work():
            for tensor in tensors:
                probe.drop_detached(tensor)
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            probe.hold(0, 0.002)
            time.sleep(0)
        assert probe.counts()["trespasses"] == 0
    """)


def test_many_threads_at_first_use_create_one_state_G1(child):
    child("""
        import atexit, threading
        def register(function, atexit_register=atexit.register):
            time.sleep(0.05)  # so that all threads create a state
            return atexit_register(function)
        atexit.register = register
        found = []
        workers = [threading.Thread(target=lambda: found.append(probe.state())) for i in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert found == [probe.state()] * 8
        probe.settle()
    """)


KEPT = """
def kept(function, *args):
    "Returns whether the exception in flight survives the call unchanged."
    try:
        function(*args)
    except ValueError as error:
        return str(error) == "in flight" and error.__context__ is None
    return False
"""


def test_an_exception_in_flight_survives_a_deleter_and_the_owner_s_code_K2(child):
    child(
        KEPT
        + """
died = []
def owner_dies():
    assert sys.exc_info() == (None, None, None)
    try:
        raise KeyError
    except KeyError:
        died.append(1)
for tensor in exports(owner_dies):
    assert kept(probe.drop_while_raising, tensor)
for tensor in exports(owner_dies):
    assert kept(probe.drop_detached_while_raising, tensor)
assert len(died) == 8
"""
    )


def test_an_exception_in_flight_survives_a_capsule_that_dies_K1_K2(child):
    child(
        KEPT
        + """
for form in FORMS:
    died = []
    items = [capsule(partial(died.append, 1), form)]
    assert kept(probe.pop_while_raising, items) and died == [1]
    items = [capsule(partial(died.append, 2), form)]
    tensor = probe.take(items[0])
    assert kept(probe.pop_while_raising, items) and died == [1]
    probe.drop(tensor)
    assert died == [1, 2]
"""
    )


def test_an_exception_in_flight_survives_the_release_of_a_view_K2(child):
    child(
        KEPT
        + """
for form in FORMS:
    died = []
    assert kept(probe.pop_while_raising, [probe.Consumer(capsule(partial(died.append, 1), form))]) and died == [1]
"""
    )


def test_an_exception_of_an_owner_s_finalizer_is_unraisable_K2(child):
    child(
        KEPT
        + """
unraisable = []
sys.unraisablehook = lambda args: unraisable.append(args.exc_type)
def owner_dies():
    raise KeyError
for form in FORMS:
    probe.drop(export(owner_dies, form))
    probe.drop_detached(export(owner_dies, form))
    probe.start([export(owner_dies, form)])
    probe.join()
    assert kept(probe.drop_while_raising, export(owner_dies, form))
    assert kept(probe.drop_detached_while_raising, export(owner_dies, form))
assert unraisable == [KeyError] * 20
"""
    )


def test_an_exception_of_another_library_s_deleter_is_unraisable_K2(child):
    child(
        KEPT
        + """
unraisable = []
sys.unraisablehook = lambda args: unraisable.append(str(args.exc_value))
probe.rude_capsule()
probe.Consumer(probe.rude_capsule())
assert kept(probe.pop_while_raising, [probe.rude_capsule()])
assert kept(probe.pop_while_raising, [probe.Consumer(probe.rude_capsule())])
assert unraisable == ["left behind by a deleter"] * 4
"""
    )


def test_a_tensor_without_an_owner_is_freed_once_on_any_thread_K5(child):
    child("""
        probe.drop(probe.wrap())
        probe.drop_detached(probe.wrap())
        for past in PASTS:
            probe.start([probe.wrap(), probe.wrap()], past)
        probe.join()
        assert probe.counts()["freed"] == 8
        assert probe.counts()["blocks"] == 0  # no dlp_type_cache was allocated either
    """)


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python")
def test_many_threads_make_and_drop_at_once_without_a_gil_G1(child):
    child("""
        import threading
        died = []
        def work():
            for i in range(50):
                probe.start(exports(partial(died.append, 1)))
                for tensor in exports(partial(died.append, 1)):
                    probe.drop(tensor)
        workers = [threading.Thread(target=work) for i in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        probe.join()
        assert len(died) == 4 * 50 * 8
        probe.settle()
    """)

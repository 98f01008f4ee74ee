"""Deleters while the main interpreter ends and after it is gone (K5)."""

import os

import pytest
from lifetime.children import RACE


@pytest.mark.parametrize("forms", ["['versioned', 'legacy']", "EMBEDDED"])
def test_threads_that_drop_while_the_interpreter_ends_are_neither_ended_nor_stuck_K5(child, forms):
    child(
        f"""
        probe.settle()
        for past in PASTS:
            probe.start(exports(forms={forms} * 40), past, 0.0001)
        time.sleep(0.0005 * (turn % 20))
        """,
        times=RACE,
    )


def test_the_end_waits_for_an_owner_s_finalizer_on_another_thread_K5(child):
    child(
        """
        probe.settle()
        for past in PASTS:
            for form in FORMS:
                slow = Slow(1.2)  # seconds; DLPACK_PY_EXIT_WAIT is 10 seconds, not milliseconds
                probe.start([export(slow, form)], past)
                wait_for(lambda: slow.entered)
        """,
        out="finalizer ends\n" * 12,
    )


@pytest.mark.parametrize("past", ["none", "former", "kept"])
def test_the_end_releases_the_gil_for_a_deleter_that_waits_for_it_K5(child, past):
    child(
        f"""
        probe.settle()
        sys.setswitchinterval(100)
        for tensor in exports(partial(say, "owner died")):
            probe.start([tensor], {past!r}, 0.05)
        probe.hold(4, 0.005)
        """,
        out="owner died\n" * 4,
    )


def test_the_end_waits_no_longer_than_it_was_told_to_K5(child):
    child(
        """
        def hang(sleep=time.sleep):
            entered.append(1)
            sleep(1000)
        probe.set_exit_wait(1)
        entered = []
        for form in FORMS:
            probe.start([elsewhere(export, hang, form)])
        wait_for(lambda: len(entered) == 4)
        """,
        limit=8,
    )


def test_a_subinterpreter_that_the_end_of_the_main_one_ends_does_not_stop_it_K5(child):
    child(
        """
        import threading
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        sys.first = interpreters.run_and_keep(PRELUDE + "probe.drop(export())")
        sys.last = Owner(partial(say, "the end went on"))
        """,
        out="the end went on\n",
        limit=20,
    )


@pytest.mark.parametrize("place", ["holder.kept", "__main__.kept", "builtins.kept", "sys.kept"])
def test_an_array_in_a_module_at_the_end_dies_and_its_owner_s_finalizer_runs_K5(child, place):
    child(
        f"""
        import builtins, types, __main__
        sys.modules["holder"] = holder = types.ModuleType("holder")
        probe.settle()
        owner_dies = partial(say, "owner died")
        {place} = [probe.Consumer(capsule(owner_dies, form)) for form in FORMS]
        {place} += [capsule(owner_dies, form) for form in FORMS]
        """,
        out="owner died\n" * 8,
    )


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="functions that outlive all modules: no fork here")
def test_an_array_that_dies_after_all_modules_does_no_harm_K5(child):
    child("""
        # The interpreter drops the registered functions when it clears its state.
        for form in FORMS:
            os.register_at_fork(before=partial(id, capsule(partial(len, ""), form)))
            os.register_at_fork(before=partial(id, probe.Consumer(capsule(partial(len, ""), form))))
        probe.settle(1)
    """)


def test_an_exit_callback_registered_before_the_headers_may_drop_on_threads_which_leaks_the_owners_K5(child):
    child(
        """
        import atexit
        tensors, died = [], []
        @atexit.register  # registered before the callback of the header, and so called after it
        def late():
            for past in PASTS:
                probe.start(tensors.pop(), past)
            probe.join()
            say(f"on threads: {len(died)}")
            for tensor in tensors.pop():
                probe.drop(tensor)
            say(f"attached: {len(died)}")
        for i in range(4):
            tensors.append(exports(partial(died.append, i)))
        probe.settle(1)
        """,
        out="on threads: 0\nattached: 4\n",
    )


def test_a_module_that_prepares_the_interpreter_has_its_exit_callback_at_once_K5(child):
    child("""
        import atexit
        before = atexit._ncallbacks()
        import buffer_probe  # calls dlpack_py_init, and no other function of the header
        assert atexit._ncallbacks() == before + 1
    """)


def test_a_state_that_is_no_longer_cached_is_found_and_its_exit_callback_stays_the_only_one_K5(child):
    child("""
        import atexit
        before = atexit._ncallbacks()
        state = probe.state()
        for _ in range(3):
            probe.displace_state()
            assert probe.state() == state
        assert atexit._ncallbacks() == before + 1
    """)


def test_the_first_use_of_the_header_in_an_exit_callback_works_K5(child):
    child(
        """
        import atexit
        @atexit.register
        def late():
            died = []
            for past in PASTS:
                probe.start(exports(partial(died.append, 1)), past)
            probe.join()
            say(str(len(died)))
            probe.settle()
        """,
        out="12\n",
    )


def test_tensors_first_exported_in_an_exit_callback_may_die_after_the_interpreter_K5(child):
    child("""
        import atexit
        @atexit.register
        def late():
            probe.later(exports(partial(say, "owner died")), "gone")
            probe.later(exports(partial(say, "owner died")), "exit")
            probe.settle(1)
    """)


# Calls a function while modules are torn down. The function uses only its arguments.
LATE = """
class Late:
    def __init__(self, function, *args):
        self.function, self.args = function, args
    def __del__(self):
        self.function(*self.args)
"""


def test_tensors_first_exported_while_modules_are_torn_down_leak_on_threads_only_K5(child):
    child(
        LATE
        + """
def late(owners, capsule, take, drop, start, join):
    for owner, form in owners[:2]:
        drop(take(capsule(owner, form)))
    start([take(capsule(owner, form)) for owner, form in owners[2:]])
    join()
    owners.clear()
owners = [(Owner(partial(say, where)), form) for where in ("attached", "on a thread") for form in FORMS[:2]]
probe.settle()
sys.late = Late(late, owners, probe.capsule, probe.take, probe.drop, probe.start, probe.join)
""",
        out="attached\n" * 2,
    )


def test_without_its_exit_callback_a_deleter_on_a_thread_sees_that_the_interpreter_ends_K5(child):
    child(
        LATE
        + """
import atexit
def late(tensors, start, join):
    start(tensors)
    join()
probe.settle(1)
sys.late = Late(late, exports(partial(say, "owner died")), probe.start, probe.join)
atexit._clear()
"""
    )


def test_without_its_exit_callback_the_state_still_learns_that_the_interpreter_is_gone_K5(child):
    child("""
        import atexit
        probe.later(exports(partial(say, "owner died")), "gone")
        probe.later(exports(partial(say, "owner died")), "exit")
        atexit._clear()
        probe.settle(1)
    """)


@pytest.mark.parametrize("when", ["gone", "exit"])
@pytest.mark.parametrize("forms", ["['versioned', 'legacy']", "EMBEDDED"])
def test_a_deleter_leaks_the_owner_and_frees_its_own_memory_when_the_interpreter_is_gone_K5(child, forms, when):
    child(f"""
        probe.settle()
        probe.later(exports(partial(say, "owner died"), {forms} * 5), {when!r})
    """)


@pytest.mark.parametrize("when", ["gone", "exit"])
def test_a_tensor_without_an_owner_is_freed_when_the_interpreter_is_gone_K5(child, when):
    child(f"""
        probe.settle(0, 10)
        probe.later([probe.wrap() for i in range(10)], {when!r})
    """)


@pytest.mark.parametrize("place", ["main", "deleter"])
def test_a_process_that_exits_while_deleters_run_exits_K5(child, place):
    child(
        f"""
        for past in PASTS:
            probe.start(exports(forms=FORMS * 50), past, 0.0001)
        time.sleep(0.0005 * (turn % 20))
        if {place!r} == "deleter":
            probe.start([elsewhere(export, partial(os._exit, 0))])
            time.sleep(1000)
        os._exit(0)
        """,
        times=RACE,
    )

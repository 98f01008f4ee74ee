"""Forks of each kind, with deleters in flight (K5)."""

import os
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

IN_FLIGHT = """
probe.set_exit_wait(int(10 * patience))
def in_flight(seconds):
    for past in PASTS:
        for form in FORMS:
            slow = Slow(seconds)
            probe.start([export(slow, form)], past)
            wait_for(lambda: slow.entered)

def wait_for_child(child):
    "The child exits with 0, long before the time limit for deleters."
    begin = time.monotonic()
    assert os.waitpid(child, 0)[1] == 0
    assert time.monotonic() - begin < 5 * patience
"""


def test_a_forked_child_does_not_wait_for_the_deleters_of_its_parent_K5(child):
    child(
        IN_FLIGHT
        + """
in_flight(0.5)
child = os.fork()
if child != 0:
    wait_for_child(child)
for past in PASTS:
    probe.start(exports(partial(say, "child" if child == 0 else "parent")), past)
    probe.join()
""",
        out="child\n" * 12 + "finalizer ends\n" * 12 + "parent\n" * 12,
        sort=True,
    )


def test_a_forked_child_waits_for_deleters_of_its_own_K5(child):
    child(
        IN_FLIGHT
        + """
probe.drop(export())
child = os.fork()
if child == 0:
    in_flight(0.1)
else:
    wait_for_child(child)
    say("child ended")
probe.settle()
""",
        out="finalizer ends\n" * 12 + "child ended\n",
    )


def test_a_fork_without_the_hooks_of_python_does_not_wait_for_the_deleters_of_its_parent_K5(child):
    child(
        IN_FLIGHT
        + """
import atexit
in_flight(0.5)
child = probe.fork_unseen()
if child == 0:
    for tensor in exports(partial(say, "child")):
        probe.drop(tensor)
    atexit._run_exitfuncs()
    os._exit(0)
wait_for_child(child)
""",
        out="child\n" * 4 + "finalizer ends\n" * 12,
        sort=True,
    )


@pytest.mark.parametrize("fork", ["os.fork()", "probe.fork_unseen()"])
@pytest.mark.parametrize("generations", [1, 2, 3])
def test_a_child_that_inherited_a_count_waits_for_its_own_deleters_alone_K5(child, fork, generations):
    """The child waits for a __del__ of 0.4 s on another thread, even if deleters of the parent were counted."""
    child(
        IN_FLIGHT
        + f"""
import atexit
in_flight(0.2)
begin = time.monotonic()
for generation in range({generations}):
    child = {fork}
    if child != 0:
        break
    for past in PASTS:
        slow = Slow(0.4)
        slow.say = lambda text, generation=generation: say(f"generation {{generation}} {{text}}")
        probe.start([export(slow)], past)
        wait_for(lambda: slow.entered)
if child != 0:
    wait_for_child(child)
if child == 0 or generation > 0:
    atexit._run_exitfuncs()
    os._exit(0)
""",
        out="finalizer ends\n" * 12
        + "".join(f"generation {number} finalizer ends\n" * 3 for number in range(generations)),
        sort=True,
    )


def test_a_child_drops_tensors_while_deleters_of_its_parent_ran_at_the_fork_K5(child):
    """The inherited count is subtracted once: by the first deleter, and not again by the exit callback."""
    child(
        IN_FLIGHT
        + """
in_flight(0.3)
child = os.fork()
if child == 0:
    for past in PASTS:
        probe.start(exports(partial(say, "child")), past)
        probe.join()
    begin = time.monotonic()
    slow = Slow(0.4)
    probe.start([export(slow)], "none")
    wait_for(lambda: slow.entered)
else:
    wait_for_child(child)
""",
        out="child\n" * 12 + "finalizer ends\n" * 13,
        sort=True,
    )


def test_a_fork_without_the_hooks_of_python_may_happen_at_any_time_G1_K5(child):
    child(
        IN_FLIGHT
        + """
import atexit
tensor = export(partial(say, "owner died"))
child = probe.fork_unseen()
if child != 0:
    wait_for_child(child)
probe.drop(tensor)
atexit._run_exitfuncs()
probe.drop(export(partial(say, "later owner died")))
os._exit(0)
""",
        out="owner died\nlater owner died\n" * 2,
    )


def test_a_fork_without_the_hooks_of_python_waits_for_deleters_of_its_own_K5(child):
    child(
        IN_FLIGHT
        + """
probe.drop(export())
child = probe.fork_unseen()
if child == 0:
    in_flight(0.1)
else:
    wait_for_child(child)
    say("child ended")
""",
        out="finalizer ends\n" * 12 + "child ended\n",
    )


@pytest.mark.parametrize("cleared", [False, True])
def test_a_child_of_multiprocessing_drops_on_threads_and_ends_K5(child, cleared):
    child(
        IN_FLIGHT
        + f"""
import atexit, multiprocessing
def work():
    if {cleared}:
        atexit._clear()
    for past in PASTS:
        probe.start(exports(partial(say, "child")), past)
        probe.join()
in_flight(0.5)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
begin = time.monotonic()
process.join()
assert process.exitcode == 0 and time.monotonic() - begin < 5 * patience
""",
        out="child\n" * 12 + "finalizer ends\n" * 12,
        sort=True,
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_new_process_of_multiprocessing_drops_on_threads_and_at_its_end_K5(child, method):
    """A forked process does not finalize its interpreter. Before 3.13 it also runs no exit callbacks."""
    ends = method == "spawn"
    waits = ends or sys.version_info >= (3, 13)
    child(
        IN_FLIGHT
        + f"""
import multiprocessing
work = PRELUDE + '''
for past in PASTS:
    probe.start(exports(partial(say, "child")), past)
    probe.join()
sys.kept = [probe.Consumer(capsule(partial(say, "at the end"), form)) for form in FORMS]
slow = Slow({0.1 if waits else 100})
probe.start([export(slow)])
wait_for(lambda: slow.entered)
'''
context = multiprocessing.get_context({method!r})
context.set_forkserver_preload(["probe"])
in_flight(0.1)
processes = [context.Process(target=exec, args=(work, {{}})) for i in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
    assert process.exitcode == 0
""",
        out="at the end\n" * 8 * ends + "child\n" * 24 + "finalizer ends\n" * (12 + 2 * waits),
        sort=True,
    )


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12 refuses to fork in exit callbacks")
def test_a_child_that_is_forked_after_the_exit_callback_still_leaks_on_threads_K5(child):
    child(
        IN_FLIGHT
        + """
import atexit
tensors, died = [], []
@atexit.register  # registered before the callback of the header, and so called after it
def late():
    child = os.fork()
    probe.start(tensors)
    probe.join()
    if child != 0:
        wait_for_child(child)
    say(str(len(died)))
tensors += exports(partial(died.append, 1))
probe.settle(1)
""",
        out="0\n0\n",
    )


@pytest.mark.parametrize("then", ["pass", "probe.drop_detached(export())"])
def test_an_owner_that_forks_in_a_deleter_leaves_the_count_right_in_both_processes_K5(child, then):
    """The child counts from 0. If the count fell below 0, the child would end without waiting for the next deleter."""
    child(
        IN_FLIGHT
        + f"""
def fork():
    children.append(os.fork())
    if children == [0]:
        {then}
for form in FORMS:
    children = []
    probe.drop_detached(export(fork, form))
    child = children.pop()
    if child == 0:
        break
    wait_for_child(child)
slow = Slow()
probe.start([export(slow)])
wait_for(lambda: slow.entered)
""",
        out="finalizer ends\n" * 5,
    )


def test_an_owner_that_forks_in_a_deleter_on_a_foreign_thread_lets_both_processes_end_K5(child):
    child(
        IN_FLIGHT
        + """
for past in PASTS:
    for form in FORMS:
        children = []
        probe.start([elsewhere(export, lambda: children.append(os.fork()), form)], past)
        probe.join()
        wait_for_child(children.pop())
"""
    )


def test_arrays_are_exported_without_os_register_at_fork_K5(child):
    child(
        """
del os.register_at_fork
for form in FORMS:
    capsule(partial(say, "owner ends"), form)
""",
        out="owner ends\n" * 4,
    )


@pytest.mark.parametrize("error", ["RecursionError", "MemoryError", "KeyboardInterrupt"])
def test_a_first_use_that_fails_for_lack_of_room_can_be_repeated_K5(child, error):
    child(f"""
import atexit, builtins
real, before = builtins.__import__, atexit._ncallbacks()
def no_room(name, *rest):
    if name == "atexit":
        raise {error}
    return real(name, *rest)
builtins.__import__ = no_room
try:
    probe.state()
except {error}:
    builtins.__import__ = real
assert builtins.__import__ is real and atexit._ncallbacks() == before
probe.state()
assert atexit._ncallbacks() == before + 1
""")

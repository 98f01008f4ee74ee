"""Subinterpreters with the main GIL and with their own: states, running deleters, and objects that outlive them."""

import os

import pytest
from lifetime.children import RACE


def test_each_interpreter_has_a_state_of_its_own_G1(child, own_gil):
    child(f"""
        probe.settle()
        here = probe.state()
        inside(f"assert probe.state() != {{here}} and probe.state() == probe.state()", {own_gil})
        assert probe.state() == here and probe.counts()["blocks"] == 0
    """)


def test_a_state_is_found_if_an_interpreter_has_the_address_of_an_earlier_one_G1(child, own_gil):
    child(f"""
        probe.settle()
        for i in range(10):  # the main interpreter has no state yet
            inside("probe.drop(export())", {own_gil})
            assert probe.counts()["blocks"] == 0
        probe.drop(export())
        for i in range(10):  # the main interpreter has a state
            inside("probe.drop(export())", {own_gil})
            assert probe.counts()["blocks"] == 0
    """)


def test_more_interpreters_than_the_cache_holds_keep_their_states_G1(child, own_gil):
    """40 nested interpreters live at once; the cache holds at most 32 states."""
    child(
        f"""
        os.environ["INNER"] = PRELUDE + '''if 1:
            here = probe.state()
            outer = os.environ["OUTER"].split()
            assert str(here) not in outer
            os.environ["OUTER"] = " ".join(outer + [str(here)])
            depth = int(os.environ["DEPTH"])
            if depth > 0:
                os.environ["DEPTH"] = str(depth - 1)
                interpreters.run(os.environ["INNER"], {own_gil})
            assert probe.state() == here
            died = []
            probe.drop(export(partial(died.append, here)))
            assert died == [here]
        '''
        os.environ["DEPTH"] = "40"
        here = probe.state()
        os.environ["OUTER"] = str(here)
        interpreters.run(os.environ["INNER"], {own_gil})
        assert probe.state() == here
        assert probe.states() == 1, probe.states()
        """,
    )


def test_the_end_of_a_subinterpreter_waits_for_a_deleter_in_flight_K5(child, own_gil):
    child(
        f"""
        probe.settle()
        inside('''if 1:
            for past in PASTS:
                for form in FORMS:
                    slow = Slow()
                    probe.start([export(slow, form)], past)
                    wait_for(lambda: slow.entered)
        ''', {own_gil})
        say("subinterpreter ended")
        """,
        out="finalizer ends\n" * 12 + "subinterpreter ended\n",
    )


@pytest.mark.parametrize("forms", ["['versioned', 'legacy']", "EMBEDDED"])
def test_threads_that_drop_while_a_subinterpreter_ends_do_no_harm_K5(child, forms, own_gil):
    child(
        f"""
        probe.settle()
        for i in range(3):
            inside(f'''if 1:
                for past in PASTS:
                    probe.start(exports(forms={forms} * 20), past, 0.0001)
                time.sleep(0.0005 * {{(turn + i) % 20}})
            ''', {own_gil})
        """,
        times=RACE,
    )


@pytest.mark.parametrize("place", ["sys.modules['holder'].kept", "sys.kept"])
def test_an_array_in_a_module_and_its_owner_die_with_the_subinterpreter_K5(child, place, own_gil):
    child(
        f"""
        probe.settle()
        inside('''if 1:
            import types
            sys.modules["holder"] = types.ModuleType("holder")
            owner_dies = partial(say, "owner died")
            {place} = [probe.Consumer(capsule(owner_dies, form)) for form in FORMS]
            {place} += [capsule(owner_dies, form) for form in FORMS]
        ''', {own_gil})
        say("subinterpreter ended")
        """,
        out="owner died\n" * 8 + "subinterpreter ended\n",
    )


# A script for a subinterpreter: sends the addresses of its tensors through a pipe.
SEND = "os.write({write}, repr(exports(partial(say, 'owner died'))).encode())"


def test_a_tensor_may_outlive_its_subinterpreter_K5(child, own_gil):
    child(f"""
        read, write = os.pipe()
        def orphans():
            inside({SEND!r}.format(write=write), {own_gil})
            return eval(os.read(read, 1000))
        for tensor in orphans():
            probe.drop(tensor)
        for tensor in orphans():
            probe.drop_detached(tensor)
        for past in PASTS:
            probe.start(orphans(), past)
            probe.join()
        # A new interpreter may have the address of an earlier one.
        inside(f"probe.drop(export()); [probe.drop(tensor) for tensor in {{orphans()}}]", {own_gil})
        probe.settle()
    """)


def test_without_its_exit_callback_the_state_still_learns_that_the_subinterpreter_is_gone_K5(child, own_gil):
    child(f"""
        read, write = os.pipe()
        inside({SEND!r}.format(write=write) + "; import atexit; atexit._clear()", {own_gil})
        probe.start(eval(os.read(read, 1000)))
        probe.join()
        probe.settle(1)
    """)


def test_an_array_may_outlive_the_subinterpreter_that_owns_its_memory_K5(child, own_gil):
    child(f"""
        import dlarray
        read, write = os.pipe()
        arrays = []
        for i in range(3):
            inside({SEND!r}.format(write=write), {own_gil})
            tensors = eval(os.read(read, 1000))
            arrays += [probe.Consumer(probe.give(tensor)) for tensor in tensors[:2]]
            arrays += [dlarray.from_dlpack(probe.give(tensor)) for tensor in tensors[2:]]
        assert [a.tolist() for a in arrays if isinstance(a, dlarray.Array)] == [[0.0]] * 6
        views = [dlarray.from_dlpack(a) for a in arrays if isinstance(a, dlarray.Array)]
        del arrays[::2]
        probe.settle()
    """)


def test_an_array_that_dies_with_its_subinterpreter_drops_an_owner_of_the_main_interpreter_K5(child, own_gil):
    child(
        f"""
        probe.settle()
        died, here = [], interpreters.current()
        def owner_dies():
            died.append(interpreters.current() == here)
        inside(f'''if 1:
            import dlarray
            versioned, legacy, embedded, embedded_legacy = map(probe.give, {{exports(owner_dies)}})
            sys.kept = [probe.Consumer(versioned), dlarray.from_dlpack(legacy), embedded]
            kept = probe.Consumer(embedded_legacy)
        ''', {own_gil})
        assert died == [True] * 4
        """
    )


def test_an_array_object_may_outlive_its_subinterpreter_K5(child):
    child("""
        import dlarray
        for make in "probe.Consumer(capsule(partial(say, 'owner died')))", "dlarray.arange(3)":
            inside(f"import dlarray; interpreters.keep({make})")
            interpreters.let_go()
    """)


def test_a_capsule_may_outlive_its_subinterpreter_K5(child):
    child("""
        for form in FORMS:
            inside(f"interpreters.keep(capsule(partial(say, 'owner died'), {form!r}))")
            interpreters.let_go()
        probe.settle(2)
    """)


def test_a_deleter_in_a_subinterpreter_drops_an_owner_in_the_main_interpreter_K5(child, own_gil):
    child(
        f"""
        probe.settle()
        died, here = [], interpreters.current()
        def owner_dies():
            died.append(interpreters.current() == here)
        for drop in "drop", "drop_detached":
            inside(f"for tensor in {{exports(owner_dies)}}: probe.{{drop}}(tensor)", {own_gil})
        assert died == [True] * 8
    """
    )


def test_the_collector_visits_an_owner_only_in_its_own_interpreter_G1(child, own_gil):
    """The collectors of two interpreters may run at once: each would count the references to the owner."""
    child(
        f"""
        probe.settle()
        count = "import gc; found = [len(gc.get_referents(probe.give_object(tensor))) for tensor in {{}}]"
        here = dict(probe=probe)
        exec(count.format(exports()), here)
        assert here["found"] == [2] * 4, here["found"]  # the type and the owner
        inside(count.format(exports()) + "; assert found == [1] * 4, found", {own_gil})
        """
    )


def test_the_collector_does_not_visit_an_owner_of_an_earlier_interpreter_at_the_same_address_G1(child, own_gil):
    child(f"""
        read, write = os.pipe()
        for i in range(3):
            inside({SEND!r}.format(write=write), {own_gil})
            tensors = os.read(read, 1000).decode()
            inside(f'''if 1:
                import gc
                found = [len(gc.get_referents(probe.give_object(tensor))) for tensor in {{tensors}}]
                assert found == [1] * 4, found
            ''', {own_gil})
    """)


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="functions that outlive all modules: no fork here")
def test_a_state_of_a_dying_interpreter_is_not_found_by_a_later_one_at_the_same_address_G1(child):
    """The first interpreter drops its functions for a fork after its dictionary, in which its first state lives."""
    child("""
        read, write = os.pipe()
        for i in range(3):
            inside('''if 1:
                def late(state, write, to, text, encode):
                    write(to, encode(text(state())))
                owner = Owner(partial(late, probe.state, os.write, WRITE, str, str.encode))
                os.register_at_fork(before=partial(id, owner))
            '''.replace("WRITE", str(write)))
            os.write(write, b" ")
            state = os.read(read, 100).strip().decode()
            inside(f"assert probe.state() != {state or None}")
    """)


def test_a_deleter_in_the_main_interpreter_drops_an_owner_in_its_subinterpreter_K2_K5(child, own_gil):
    child(
        f"""
        probe.settle()
        inside('''if 1:
            died, here = [], interpreters.current()
            def owner_dies():
                died.append(interpreters.current() == here)
                raise KeyError
            sys.unraisablehook = lambda args: died.append(args.exc_type)
            for tensor in exports(owner_dies):
                assert interpreters.drop_outside(tensor) is True
            assert died == [True, KeyError] * 4
        ''', {own_gil})
        """
    )


def test_a_thread_of_one_interpreter_drops_an_owner_of_another_interpreter_K5(child, own_gil):
    child(f"""
        probe.settle()
        died, here = [], interpreters.current()
        def owner_dies():
            died.append(interpreters.current() == here)
        inside(f"probe.start({{exports(owner_dies)}}, 'inside'); probe.join()", {own_gil})
        assert died == [True] * 4
    """)


def test_two_interpreters_drop_owners_of_the_main_interpreter_at_once_K5(child, own_gil):
    child(f"""
        import threading
        probe.settle()
        died = []
        tensors = exports(partial(died.append, 1), FORMS * 50)
        script = f"for tensor in {{tensors}}: probe.drop(tensor); probe.drop(export())"
        thread = threading.Thread(target=inside, args=[script, {own_gil}])
        thread.start()
        count = 0
        while thread.is_alive():
            probe.drop_detached(export(partial(died.append, 1)))
            count += 1
        thread.join()
        assert len(died) == 200 + count
    """)


# Starts one interpreter for each script. The scripts run when all interpreters have started. They start one after
# another: CPython 3.12 counts the version tags of static types without a lock, so that two types can get one tag when
# two interpreters with a GIL of their own start at once. A method of the other type is then found.
TOGETHER = """
import threading
def together(scripts, own_gil):
    ready, go = os.pipe(), os.pipe()
    wait = f"import os; os.write({ready[1]}, b'.'); os.read({go[0]}, 1)\\n" + PRELUDE
    failed = []
    def work(script):
        try:
            interpreters.run(wait + script, own_gil)
        except RuntimeError:
            failed.append(script)
            os.write(ready[1], b".")
    threads = [threading.Thread(target=work, args=[script]) for script in scripts]
    for thread in threads:
        thread.start()
        os.read(ready[0], 1)
    os.write(go[1], b"." * len(scripts))
    for thread in threads:
        thread.join()
    assert not failed
"""

EXCHANGE = """
import dlarray, echo, two_files
for i in range(100):
    a = dlarray.arange(i + 1)
    others = [dlarray.from_dlpack(a), echo.echo(a), dlarray.from_dlpack(a.__dlpack__()), dlarray.Array(probe.give(
        probe.take(a.__dlpack__(max_version=(1, 0))))), dlarray.from_dlpack(probe.give_object(probe.take(
        a.__dlpack__(max_version=(1, 0)))))]
    for other in others:
        assert type(other) is dlarray.Array and other.data_ptr == a.data_ptr and len(other.tolist()) == i + 1
    died = []
    kept = [probe.Consumer(capsule(partial(died.append, 1), form)) for form in FORMS]
    for tensor in exports(partial(died.append, 1)):
        probe.drop_detached(tensor)
    del kept
    assert len(died) == 8
    probe.drop(two_files.other_export(a))
    try:
        dlarray.from_dlpack(a, device=(2, 0))
        raise SystemExit("not refused")
    except BufferError:
        pass
died = []
for past in PASTS:
    probe.start(exports(partial(died.append, 1)), past)
wait_for(lambda: len(died) == 12)
"""


def test_what_belongs_to_ended_interpreters_is_not_searched_G1(child, own_gil):
    """After many interpreters have ended, an export still looks at one state only. make test-long ends 10,000
    interpreters."""
    many = max(40, int(os.environ.get("DLPACK_PY_ROUNDS", "0")) // 100)
    child(
        f"""
probe.drop(export())
before = probe.states()
for i in range({many}):
    inside("probe.drop(export())", {own_gil})
    assert probe.states() <= before + 1, probe.states()
probe.drop(export())
assert probe.states() == before == 1
""",
        limit=100 + many // 10,
    )


def test_only_states_of_living_interpreters_are_searched_G1(child, own_gil):
    child(
        TOGETHER
        + f"""
probe.drop(export())
for i in range(5):
    together(["probe.drop(export()); import time; time.sleep(0.02 * " + str(k) + ")" for k in range(6)], {own_gil})
inside("probe.drop(export())", {own_gil})
assert probe.states() <= 2, probe.states()
"""
    )


def test_two_interpreters_import_the_module_and_exchange_at_once_G1_X6(child, own_gil):
    child(
        TOGETHER
        + f"""
probe.settle(1)
together([{EXCHANGE!r}] * 2, {own_gil})  # no interpreter has a state before
inside({EXCHANGE!r}, {own_gil})
probe.drop(export())
together([{EXCHANGE!r}] * 3, {own_gil})
assert probe.counts()["blocks"] == 0
""",
        times=RACE,
    )


def test_two_interpreters_exchange_their_tensors_at_once_K5_G1(child, own_gil):
    """Each interpreter takes the tensors of the other, and drops them while the other runs."""
    script = """
import dlarray
died = []
for i in range(30):
    os.write({write}, (repr(exports(partial(died.append, 1))) + chr(10)).encode())
    text = b""
    while not text.endswith(b"]" + bytes([10])):
        text += os.read({read}, 1)
    tensors = eval(text)
    arrays = [dlarray.from_dlpack(probe.give(tensor)) for tensor in tensors[:2]]
    arrays += [probe.Consumer(probe.give(tensors[2]))]
    probe.drop_detached(tensors[3])
    del arrays
    time.sleep(0)
os.write({write}, b"x")
os.read({read}, 1)
wait_for(lambda: len(died) == 120)
"""
    child(
        TOGETHER
        + f"""
pipes = os.pipe(), os.pipe()
script = {script!r}
probe.settle()
together([script.format(read=pipes[0][0], write=pipes[1][1]), script.format(read=pipes[1][0], write=pipes[0][1])],
         {own_gil})
""",
        times=RACE,
    )


def test_exports_in_an_exit_callback_of_a_subinterpreter_use_the_existing_state_K5(child, own_gil):
    child(
        f"""
        probe.settle()
        inside('''if 1:
            import atexit
            probe.state()
            @atexit.register  # registered after the callback of the header, and so called before it
            def late():
                for past in PASTS:
                    for form in FORMS:
                        slow = Slow()
                        probe.start([export(slow, form)], past)
                        wait_for(lambda: slow.entered)
        ''', {own_gil})
        """,
        out="finalizer ends\n" * 12,
    )

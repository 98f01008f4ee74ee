"""Subinterpreters, with the main one's GIL and with their own: records, deleters in flight, and what outlives them."""

import pytest
from lifetime.children import RACE


def test_each_interpreter_has_a_record_of_its_own_G1(child, own_gil):
    child(f"""
        probe.settle()
        here = probe.state()
        inside(f"assert probe.state() != {{here}} and probe.state() == probe.state()", {own_gil})
        assert probe.state() == here and probe.counts()["blocks"] == 1
    """)


def test_a_record_is_found_anew_where_an_interpreter_may_have_the_address_of_one_before_G1(child, own_gil):
    child(f"""
        probe.settle()
        for i in range(10):  # nothing is remembered but of subinterpreters
            inside("probe.drop(export())", {own_gil})
            assert probe.counts()["blocks"] == 0
        probe.drop(export())
        for i in range(10):  # the main one's record is
            inside("probe.drop(export())", {own_gil})
            assert probe.counts()["blocks"] == 1
    """)


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
        probe.settle({3 * (forms == "EMBEDDED")})
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
def test_an_array_in_a_module_of_a_subinterpreter_dies_with_it_and_so_does_its_owner_K5(child, place, own_gil):
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


# In a subinterpreter: its tensors go through a pipe, then it ends.
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
        # One may have the address that the first had.
        inside(f"probe.drop(export()); [probe.drop(tensor) for tensor in {{orphans()}}]", {own_gil})
        probe.settle(6)  # the records that embedding owners keep
    """)


def test_without_its_exit_callback_the_record_still_learns_that_the_subinterpreter_is_gone_K5(child, own_gil):
    child(f"""
        read, write = os.pipe()
        inside({SEND!r}.format(write=write) + "; import atexit; atexit._clear()", {own_gil})
        probe.start(eval(os.read(read, 1000)))
        probe.join()
        probe.settle(1)
    """)


def test_a_capsule_may_outlive_its_subinterpreter_K5(child):
    child("""
        for form in FORMS:
            inside(f"interpreters.keep(capsule(partial(say, 'owner died'), {form!r}))")
            interpreters.let_go()
        probe.settle(2)
    """)


def test_a_deleter_in_a_subinterpreter_drops_an_owner_of_the_main_one_there_K5(child, own_gil):
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


def test_a_deleter_in_the_main_interpreter_drops_an_owner_of_a_subinterpreter_there_K2_K5(child, own_gil):
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


def test_a_thread_of_one_interpreter_drops_what_another_owns_K5(child, own_gil):
    child(f"""
        probe.settle()
        died, here = [], interpreters.current()
        def owner_dies():
            died.append(interpreters.current() == here)
        inside(f"probe.start({{exports(owner_dies)}}, 'inside'); probe.join()", {own_gil})
        assert died == [True] * 4
    """)


def test_two_interpreters_drop_at_once_what_the_main_one_owns_K5(child, own_gil):
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

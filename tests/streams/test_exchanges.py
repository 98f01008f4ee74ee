"""Complete exchanges on a device: two extensions and another library, each on its own stream, on several threads and in
several interpreters. Then each exchange with every call of the runtime failing in turn (S1 to S9, K5, G1)."""

import ctypes
import gc
import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import threading

import pytest
from collecting import collect, not_on_pypy
from dltensor import CPU, Made, Taken
from streams.simulation import GLOBAL, LAUNCH_FAILURE, OUT_OF_MEMORY, RELAXED

VERSION = {"max_version": (1, 3)}


class Foreign:
    """A producer and consumer in Python, written from the specification: works on memory of a device, on a stream."""

    def __init__(self, sim, device, stream):
        self.sim, self.device, self.stream = sim, device, stream
        self.event = ctypes.c_void_p()
        with sim.on_device(device[1]):
            sim.runtime("EventCreateWithFlags", ctypes.byref(self.event), 2)

    def take(self, producer):
        assert producer.__dlpack_device__() == self.device
        with self.sim.on_device(self.device[1]):
            self.taken = Taken(producer.__dlpack__(stream=self.stream, **VERSION))
        return self.taken.says.data

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream, max_version):
        if stream != self.stream:
            self.sim.runtime("EventRecord", self.event, self.stream)
            self.sim.runtime("StreamWaitEvent", stream, self.event, 0)
        says = self.taken.says
        return Made(device=says.device, data=says.data, shape=says.shape, dtype=says.dtype).capsule()

    def end(self):
        self.taken.delete()
        self.sim.runtime("EventDestroy", self.event)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_two_extensions_and_another_library_work_on_one_array_in_turn_S1_S5(sim, platform, device, current):
    one, other, third = (sim.stream(device) for _ in range(3))
    array = platform.probe.Array((64,), one, device=device)
    with sim.on_device(current):
        for turn in range(0, 9, 3):
            sim.fill(one, array.address, turn, 64)
            with sim.watched():
                view = platform.other.consume(array, other)
            sim.expect(other, view.data, turn, 64)
            with sim.watched():
                view.release_on(other)

            foreign = Foreign(sim, (platform.DEVICE, device), third)
            with sim.watched():
                address = foreign.take(array)
            sim.expect(third, address, turn, 64)
            sim.synchronize(other)  # the producer does not know of this read: wait for it
            sim.fill(third, address, turn + 1, 64)
            with sim.watched():
                view = platform.other.consume(foreign, other)
            sim.expect(other, view.data, turn + 1, 64)
            sim.fill(other, view.data, turn + 2, 64)
            with sim.watched():
                view.release_on(other)
            sim.synchronize(other)
            foreign.end()
            sim.check(one, array.address, turn + 2, 64)


@pytest.mark.parametrize("devices", [(0, 1), (2, 0)])
def test_streams_of_two_devices_are_ordered_S1_S5(sim, platform, devices):
    one, other = map(sim.stream, devices)
    array = platform.probe.Array((64,), one, device=devices[0])
    for current in range(3):
        with sim.on_device(current):
            sim.fill(one, array.address, current, 64)
            with sim.watched():
                capsule = array.__dlpack__(stream=other)
            sim.check(other, array.address, current, 64)
        del capsule


def test_the_same_stream_on_both_sides_takes_no_event_S4(sim, platform):
    stream = sim.stream()
    array = platform.probe.Array((64,), stream)
    with sim.watched():
        view = platform.other.consume(array, stream)
        assert sim.calls() == ["GetDevice()"]  # the consumer makes the data's device current
    sim.fill(stream, view.data, 7, 64)


def test_a_view_keeps_the_memory_when_the_array_is_gone_P9(sim, platform):
    one, other = sim.stream(), sim.stream()
    array = platform.probe.Array((64,), one)
    sim.fill(one, array.address, 7, 64)
    view = platform.other.consume(array, other)
    del array
    gc.collect()
    assert sim.live("memory") == 1
    sim.check(other, view.data, 7, 64)
    del view
    assert sim.live("memory") == 0


# ---- Threads and interpreters: K5, G1 ----


def test_a_deleter_runs_on_a_foreign_thread_K5(sim, platform):
    stream = sim.stream()
    for keywords in ({}, {"dl_device": CPU}):
        taken = Taken(platform.probe.Array((64,), stream, device=0).__dlpack__(**keywords))
        sim.synchronize(stream)
        gc.collect()
        assert sim.live("memory") == ("dl_device" not in keywords)
        taken.delete_on_a_foreign_thread()
        assert sim.live("memory") == 0
        sim.synchronize(platform.default)


def test_eight_threads_exchange_at_once_G1(sim, platform):
    sim.control("delay", 50)
    streams = [(sim.stream(turn % 3), sim.stream(turn % 3)) for turn in range(8)]
    start, failures = threading.Barrier(8), []

    def exchange(device, one, other):
        try:
            array = platform.probe.Array((64,), one, device=device)
            start.wait()
            for turn in range(10):
                sim.fill(one, array.address, turn, 64)
                view = platform.other.consume(array, other)
                sim.expect(other, view.data, turn, 64)
                view.release_on(other)
                taken = Taken(array.__dlpack__(dl_device=CPU))
                assert taken.values() == [turn] * 64
                taken.delete()
                sim.synchronize(other)
                platform.other.collect()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=exchange, args=(turn % 3, *pair)) for turn, pair in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (platform.other.collect(), sim.live("event")) == (0, 0)


@pytest.mark.parametrize("own_gil", [False, True] if sys.version_info >= (3, 12) else [False], ids="own_gil={}".format)
@not_on_pypy("subinterpreters")
def test_interpreters_exchange_and_end_while_their_tensors_wait_K5_G1(platform, own_gil):
    inside = f"""
        import {platform.name}_other as other, {platform.name}_probe as probe
        array = probe.Array((64,), ONE)
        for turn in range(3):
            view = other.consume(array, OTHER)
            view.release_on(OTHER)
            array.__dlpack__(dl_device=(1, 0))
        assert other.collect() == 3  # of this interpreter
    """
    script = f"""
        import interpreters
        from streams.simulation import Platform, Simulation

        platform = Platform({platform.name!r})
        sim = Simulation(platform)
        for turn in range(3):
            one, other = sim.stream(), sim.stream()
            memory = platform.probe.Array((64,), other)
            with sim.held(other):
                sim.fill(other, memory.address, 7, 64)
                inside = {textwrap.dedent(inside)!r}.replace("ONE", str(one)).replace("OTHER", str(other))
                interpreters.run(inside, {own_gil})
                if turn:
                    exec(inside, {{}})
            sim.synchronize(other)
            assert platform.other.collect() == 0
            assert sim.violations() == []
        print("done")
    """
    run_alone(script)


@pytest.mark.parametrize("own_gil", [False, True] if sys.version_info >= (3, 12) else [False], ids="own_gil={}".format)
@not_on_pypy("subinterpreters")
def test_another_library_s_deleter_runs_in_the_interpreter_that_released_G1(platform, own_gil):
    script = f"""
        import threading
        import interpreters
        from streams.simulation import Platform, Simulation

        platform = Platform({platform.name!r})
        sim, probe = Simulation(platform), platform.probe
        stream = sim.stream()

        memory = probe.Array((64,), stream)

        def let_go():
            sim.control("hold", stream)
            sim.fill(stream, memory.address, 7, 64)
            probe.consume(probe.foreign(), stream).release_on(stream)
            sim.control("let_go", stream)

        def inside(*lines):
            lines = ("import {platform.name}_probe as probe", *lines)
            interpreters.run("\\n".join(lines).replace("STREAM", str(stream)), {own_gil})

        let_go()
        sim.synchronize(stream)
        inside("assert probe.collect() == 0")
        assert probe.foreign_deleted() == ""
        thread = threading.Thread(target=probe.collect)
        thread.start()
        thread.join()
        assert probe.foreign_deleted() == "0 "

        # A tensor that waits when its interpreter ends is released in no other interpreter.
        sim.control("hold", stream)
        sim.fill(stream, memory.address, 7, 64)
        inside("probe.consume(probe.foreign(), STREAM).release_on(STREAM)", "assert probe.collect() == 1")
        let_go()
        sim.synchronize(stream)
        for turn in range(3):
            inside("assert probe.collect() == 0")
        assert probe.foreign_deleted() == "0 "
        assert probe.collect() == 0
        assert probe.foreign_deleted() == "0 0 "
        print("done")
    """
    run_alone(script)


@pytest.mark.parametrize("own_gil", [False, True] if sys.version_info >= (3, 12) else [False], ids="own_gil={}".format)
@not_on_pypy("subinterpreters")
def test_the_own_deleter_runs_in_any_interpreter_that_collects_G1_K5(platform, own_gil):
    script = f"""
        import interpreters
        from streams.simulation import Platform, Simulation

        platform = Platform({platform.name!r})
        sim, probe = Simulation(platform), platform.probe
        stream = sim.stream()
        array = probe.Array((64,), (stream,))
        view = probe.consume(array, stream)
        sim.control("hold", stream)
        sim.fill(stream, array.address, 7, 64)
        view.release_on(stream)
        assert (probe.collect(), array.exports) == (1, 1)
        sim.control("let_go", stream)
        sim.synchronize(stream)
        interpreters.run("import {platform.name}_probe as probe; assert probe.collect() == 0", {own_gil})
        assert array.exports == 0
        print("done")
    """
    run_alone(script)


def test_a_host_callback_may_need_the_gil_while_a_call_waits_for_it_S8(sim, platform):
    stream, ran = sim.stream(), []
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda argument: ran.append(threading.get_ident()))
    for kind, keywords in ((platform.PINNED, {}), (platform.DEVICE, {"dl_device": CPU})):
        array = platform.probe.Array((64,), stream, type=kind)
        assert sim.control("launch", stream, callback, None, None, None) == 0
        Taken(array.__dlpack__(**keywords)).delete()
        assert ran and ran.pop() != threading.get_ident()


def test_deleters_call_the_runtime_while_the_interpreter_ends_K5_S8(platform):
    """Objects in modules are released at the end: arrays free their memory, and a waiting view leaks."""
    script = f"""
        import sys
        from dltensor import Taken
        from streams.simulation import Platform, Simulation

        platform = Platform({platform.name!r})
        sim = Simulation(platform)
        one, other = sim.stream(), sim.stream()
        sys.kept = platform.probe.Array((64,), one)
        sys.capsule = platform.probe.Array((64,), one).__dlpack__(max_version=(1, 0))
        sys.view = platform.other.consume(platform.probe.Array((64,), one), other)
        waits = platform.other.consume(platform.probe.Array((64,), one), other)
        sim.control("hold", other)
        sim.expect(other, waits.data, 0xCD, 64)
        waits.release_on(other)
        assert platform.other.collect() == 1
        sim.control("let_go", other)
        print("done")
    """
    run_alone(script)


@not_on_pypy("objects that are freed as the interpreter ends")
def test_tensors_are_collected_while_the_interpreter_ends_K5_S8(platform):
    """The GIL stays held then: a thread that gives it away may not get it back."""
    script = f"""
        import os, sys
        from dltensor import Made
        from streams.simulation import Platform, Simulation

        class Foreign:
            def __dlpack_device__(self):
                return (platform.DEVICE, 0)

            def __dlpack__(self, **keywords):
                return made.capsule()

        class Last:
            def __init__(self, sim):
                self.collect, self.calls_with_the_gil = platform.other.collect, sim._library.simulated_violations
                self.write = os.write  # print() does not work so late

            def __del__(self):
                self.write(1, b"%d %d\\n" % (self.collect(), self.calls_with_the_gil() > 0))

        platform = Platform({platform.name!r})
        sim = Simulation(platform)
        stream = sim.stream()
        memory = platform.probe.Array((64,), stream)
        made = Made(device=(platform.DEVICE, 0))
        view = platform.other.consume(Foreign(), stream)
        sim.control("hold", stream)
        sim.fill(stream, memory.address, 7, 64)
        view.release_on(stream)
        assert platform.other.collect() == 1
        sim.watch_gil()
        sys.last = Last(sim)
        print("done", flush=True)
    """
    run_alone(script, "done\n1 1\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_during_a_collection_collects_K5(platform):
    script = f"""
        import os
        import threading
        import warnings
        from dltensor import Made
        from streams.simulation import Platform, Simulation

        platform = Platform({platform.name!r})
        sim, probe = Simulation(platform), platform.probe
        stream, entered, leave = sim.stream(), threading.Event(), threading.Event()

        class Foreign:
            def __dlpack_device__(self):
                return (platform.DEVICE, 0)

            def __dlpack__(self, **keywords):
                self.made = Made(device=(platform.DEVICE, 0), on_delete=self.wait)
                return self.made.capsule()

            def wait(self):
                entered.set()
                leave.wait()

        memory = probe.Array((64,), stream)

        def release_behind_work(obj):
            sim.control("hold", stream)
            sim.fill(stream, memory.address, 7, 64)
            probe.consume(obj, stream).release_on(stream)
            sim.control("let_go", stream)
            sim.synchronize(stream)

        release_behind_work(Foreign())
        thread = threading.Thread(target=probe.collect)
        thread.start()
        entered.wait()
        release_behind_work(probe.foreign())
        warnings.simplefilter("ignore")  # 3.12 warns of threads
        child = os.fork()
        if child == 0:
            # The tensor that the parent's thread was releasing stays with the parent.
            os._exit(0 if (probe.collect(), probe.foreign_deleted()) == (0, "0 ") else 1)
        assert os.waitpid(child, 0)[1] == 0
        leave.set()
        thread.join()
        assert (probe.foreign_deleted(), probe.collect()) == ("", 0)
        assert probe.foreign_deleted() == "0 "
        print("done")
    """
    run_alone(script)


@not_on_pypy("_testcapi")
def test_memory_that_runs_out_at_any_step_of_an_import_is_a_memory_error_P7(platform):
    pytest.importorskip("_testcapi", reason="CPython was installed without its test modules")
    script = """
        import sys
        import _testcapi as memory

        sys.modules["atexit"] = None  # then the state of the header is not cached: each use looks for it
        import MODULE as probe

        def error(start):
            memory.set_nomemory(start, start + 1)
            try:
                probe.consume(obj, 3, device=1, options=NO_TABLE)
            except (MemoryError, AttributeError) as raised:
                return type(raised)
            finally:
                memory.remove_mem_hooks()

        obj, NO_TABLE = object(), 16
        errors = [error(start) for start in range(50)]
        assert (errors[0], errors[-1]) == (MemoryError, AttributeError)
        print("done")
    """
    run_alone(script.replace("MODULE", platform.probe.__name__))


def run_alone(script, says="done\n"):
    path = [os.environ["DLPACK_PY_BUILD_DIR"], os.path.dirname(os.path.dirname(__file__)), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == (says, "", 0), done.stderr


# ---- Every call fails in turn: S9, S5 ----


class Scene:
    """Streams, and an array with pending work, on a device that is not current."""

    def __init__(self, sim, platform):
        self.sim, self.platform, self.probe = sim, platform, platform.probe
        self.one, self.other = sim.stream(1), sim.stream(1)
        self.array = self.probe.Array((3, 4), self.one, strides=(50, 1), size=200, device=1)
        self.on_default = self.probe.Array((8,), 0, device=1)
        self.pinned = self.probe.Array((8,), 0, type=platform.PINNED)
        self.probe.work(lambda *device, one=self.one: one)
        self.tabled = type("Array", (Tabled,), {"__dlpack_c_exchange_api__": self.probe.table()})(platform.DEVICE)

    def view(self):
        return self.probe.consume(self.array, self.other)


class Tabled:
    def __init__(self, kind):
        self.kind = kind

    def owned(self):
        return ctypes.addressof(Made(device=(self.kind, 1)).managed)

    def __dlpack__(self):
        raise AssertionError("the table is there to be used")


# {name: prepare}. prepare(scene) returns the operation, whose result keeps the created objects alive.
OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__.replace("_", " ")] = function
    return function


@operation
def order_two_streams(scene):
    return lambda: scene.array.__dlpack__(stream=scene.other)


@operation
def order_the_default_stream_before(scene):
    return lambda: scene.on_default.__dlpack__(stream=scene.other)


@operation
def order_the_default_stream_after(scene):
    return lambda: scene.array.__dlpack__()


@operation
def copy_to_the_host(scene):
    return lambda: scene.array.__dlpack__(dl_device=CPU)


@operation
def copy_to_the_host_by_the_default_stream(scene):
    return lambda: scene.on_default.__dlpack__(dl_device=CPU)


@operation
def hand_over_pinned_memory(scene):
    return lambda: scene.pinned.__dlpack__(dl_device=CPU)


@operation
def copy_pinned_memory(scene):
    return lambda: scene.pinned.__dlpack__(dl_device=CPU, copy=True)


@operation
def consume_by_the_method(scene):
    return lambda: scene.probe.consume(scene.array, scene.other)


@operation
def consume_by_the_table(scene):
    return lambda: scene.probe.consume(scene.tabled, 0)


@operation
def let_go_of_a_view(scene):
    view = scene.view()
    return lambda: view.release_on(scene.other)


@operation
def let_go_of_a_view_behind_the_default_stream(scene):
    view = scene.view()
    return lambda: view.release_on(0)


def put_back(sim, failed):
    """Restores what a failed call could not restore. Returns the text of the violation that this call causes."""
    if failed.startswith("SetDevice(0)"):
        sim.runtime("SetDevice", 0)
        return "the current device was 0, and is 1"
    if failed.startswith("ThreadExchangeStreamCaptureMode(0)"):
        sim.runtime("ThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(GLOBAL)))
        return f"the thread's capture mode was {GLOBAL}, and is {RELAXED}"
    return None


def fail_once(sim, platform, prepare, nth):
    """Runs an operation whose nth call fails. Returns this call, or None, and the violations."""
    scene = Scene(sim, platform)
    perform = prepare(scene)
    memory, result, error = sim.live("memory"), None, None
    with sim.watched(), sim.failing(None, nth):
        try:
            result = perform()
        except RuntimeError as raised:
            error = str(raised)
    failed = [call for call in sim.calls() if call.endswith(f"-> {LAUNCH_FAILURE}") and "GetLastError" not in call]
    violations = sim.violations()
    if failed:
        name = re.match(r"\w+", failed[0])[0]
        if "view" in prepare.__name__ or name == "EventDestroy":  # a view waits instead; an event leaks
            assert error is None
        else:
            assert error == f"{platform.runtime}{name}: {platform.launch_failure}"
        left = put_back(sim, failed[0])
        violations = [violation for violation in violations if violation != left]
        assert sim.live("memory") == memory
        if "view" not in prepare.__name__:
            result = perform()  # the operation works again
    sim.synchronize(scene.one)
    sim.synchronize(scene.other)
    del result, perform
    with sim.on_device(1):
        sim.runtime("DeviceSynchronize")
    platform.probe.collect()
    if failed and name == "EventDestroy":
        assert sim.live("event") == 1
        del scene
        collect()
        sim.reset()
    assert sim.live("event") == 0
    return failed[0] if failed else None, violations


@pytest.mark.parametrize("prepare", OPERATIONS.values(), ids=OPERATIONS)
def test_a_call_that_fails_is_an_exception_and_leaks_nothing_S9_S5(sim, platform, prepare):
    calls = []
    while not calls or calls[-1] is not None:
        failed, violations = fail_once(sim, platform, prepare, len(calls) + 1)
        assert violations == []
        calls.append(failed)
    assert len(calls) > 2


def test_a_tensor_waits_if_the_query_of_its_work_fails_S9(sim, platform):
    one, other = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), one)
    view = platform.other.consume(array, other)
    with sim.held(other):
        sim.expect(other, view.data, 0xCD, 8)
        view.release_on(other)
        with sim.watched(), sim.failing("ThreadExchangeStreamCaptureMode"):
            waiting = platform.other.collect()
    sim.synchronize(other)
    assert waiting == 1


@pytest.mark.parametrize("prepare", OPERATIONS.values(), ids=OPERATIONS)
def test_the_first_of_several_failures_is_reported_S9(sim, platform, prepare):
    scene = Scene(sim, platform)
    perform = prepare(scene)
    with sim.failing(None, 2, 0), pytest.raises(RuntimeError) as raised:
        sim.calls()
        perform()
    failed = next(call for call in sim.calls() if call.endswith(f"-> {LAUNCH_FAILURE}"))
    assert str(raised.value).startswith(platform.runtime + re.match(r"\w+", failed)[0])
    sim.runtime("SetDevice", 0)


@pytest.mark.parametrize("function", ["EventCreateWithFlags", "MemcpyAsync"])
def test_no_memory_is_a_memory_error_S9_P7(sim, platform, function):
    scene = Scene(sim, platform)
    keywords = {"stream": scene.other} if function == "EventCreateWithFlags" else {"dl_device": CPU}
    failing = sim.failing(function, error=OUT_OF_MEMORY)
    with sim.watched(), failing, pytest.raises(MemoryError, match="no memory is left"):
        (scene.array if "stream" in keywords else scene.on_default).__dlpack__(**keywords)


@pytest.mark.parametrize("error", [900, 901, 905, 906])
def test_an_error_of_a_capture_is_a_buffer_error_S9_S6(sim, platform, error):
    scene = Scene(sim, platform)
    text = f"EventRecord: {platform.runtime}Error(StreamCapture|Captured)"
    with sim.watched(), sim.failing("EventRecord", error=error), pytest.raises(BufferError, match=text):
        scene.array.__dlpack__(stream=scene.other)


@pytest.mark.parametrize("error", [899, 909, 999])
def test_an_error_beside_those_of_captures_is_a_runtime_error_S9(sim, platform, error):
    array = platform.probe.Array((8,), sim.stream())
    with sim.watched(), sim.failing("EventCreateWithFlags", error=error), pytest.raises(RuntimeError):
        array.__dlpack__(stream=sim.stream())


def test_a_device_works_after_its_reset_S9(sim, platform):
    one, other = sim.stream(), sim.stream()
    platform.probe.Array((8,), one).__dlpack__(stream=other)
    collect()  # PyPy ends the export only now
    sim.runtime("DeviceReset")
    one, other = sim.stream(), sim.stream()
    array = platform.probe.Array((8,), one)
    sim.fill(one, array.address, 7, 8)
    with sim.watched():
        array.__dlpack__(stream=other)
    sim.check(other, array.address, 7, 8)


def test_each_module_is_of_this_build(platform):
    """Under a sanitizer, modules of another build would hide errors."""
    folder = os.environ.get("DLPACK_PY_BUILD_DIR") or os.path.dirname(platform.probe.__file__)
    for name in ("probe", "other", "vector"):
        assert os.path.dirname(importlib.util.find_spec(f"{platform.name}_{name}").origin) == folder
    for name in ("consumer_probe", "dlarray", "exchange_probe"):
        assert os.path.dirname(importlib.util.find_spec(name).origin) == folder


# ---- A runtime that is found at run time: the second extension ----

WITHOUT = """
import ctypes, sys
import {probe} as other

class OnDevice:
    def __dlpack_device__(self):
        return other.DEVICE, 0

    def __dlpack__(self, **keywords):
        raise NotImplementedError

def error():
    try:
        other.consume(OnDevice(), 1 if other.DEVICE == 2 else 0, by_handle=True)
    except (RuntimeError, NotImplementedError) as raised:
        return f"{{type(raised).__name__}}: {{raised}}"

class Interface:
    __cuda_array_interface__ = {{"shape": (1,), "typestr": "|u1", "data": (4096, False), "version": 3}}

try:
    other.consume(Interface(), 5, options=other.ARRAY_INTERFACE_TOO)
except RuntimeError as raised:
    print(str(raised)[:40])
view = other.consume(other.Array((3,), type=other.CPU), 1 if other.DEVICE == 2 else 0, by_handle=True, device=other.CPU)
print(view.shape, other.find_device(view.data), other.collect())
print(error())
ctypes.CDLL(sys.argv[1])  # as the import of a library that brings the runtime
print(error())
"""


def test_an_extension_works_without_the_runtime_and_finds_it_when_another_library_has_loaded_it_S9(platform):
    code = WITHOUT.format(probe=platform.other.__name__)
    command = [sys.executable, "-c", code, str(platform.library)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    get_device = f"{platform.runtime}GetDevice"
    assert done.stdout.splitlines() == [
        f"{get_device}: there is no {platform.library.name}"[:40],
        "(3,) (1, 0) 0",
        f"RuntimeError: {get_device}: there is no {platform.library.name} with this function: install the "
        "runtime, or import a library that has loaded it",
        "NotImplementedError: ",
    ]

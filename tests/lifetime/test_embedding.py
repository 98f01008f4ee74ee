"""Python embedded in a program: the interpreter ends and begins again in one process (K5)."""

import os

import pytest
from lifetime.children import MODULES, PRELUDE, run


@pytest.fixture(params=["probe", "probe_plain"])
def host(request):
    program = MODULES / ("embed_host.exe" if os.name == "nt" else "embed_host")
    if not program.exists():
        pytest.skip("libpython: not on this machine")

    def run_scripts(*scripts, **expected):
        prelude = "import sys; sys.argv = ['', '0']\n" + PRELUDE.replace("PROBE", request.param)
        run([str(program), *[prelude + script for script in scripts]], **expected)

    return run_scripts


def test_the_library_works_in_each_interpreter_of_a_process_in_turn_G1(host):
    work = """
died = []
for past in PASTS:
    probe.start(exports(partial(died.append, 1)), past)
probe.join()
for tensor in exports(partial(died.append, 1)):
    probe.drop(tensor)
assert len(died) == 16 and probe.counts()["blocks"] == 0
slow = Slow()
probe.start([export(slow)])
wait_for(lambda: slow.entered)
probe.settle()
"""
    host(*[work] * 5, out="finalizer ends\n" * 5)


def test_a_tensor_of_an_earlier_interpreter_dies_in_a_later_one_at_the_same_address_K5(host, tmp_path):
    make = f"open({str(tmp_path / 'tensors')!r}, 'w').write(repr(exports(partial(say, 'owner died'), FORMS * 3)))"
    drop = f"""
tensors = eval(open({str(tmp_path / "tensors")!r}).read())
probe.drop(export())
for i in range(4):
    probe.drop(tensors.pop())
    probe.drop_detached(tensors.pop())
probe.start(tensors)
probe.join()
probe.settle(1)
"""
    host(make, drop)


def test_a_tensor_dies_between_two_interpreters_K5(host):
    make = "probe.later(exports(partial(say, 'owner died')), 'gone')"
    host(make, make, make + "\nprobe.settle(3)")


def test_the_exchange_table_of_a_type_works_in_each_interpreter_of_a_process_in_turn_X6_G1(host):
    """The exchange table is static; each interpreter creates a new type."""
    work = """
import dlarray, echo
a = dlarray.arange(3)
kept = [echo.echo(a), dlarray.from_dlpack(a), dlarray.from_dlpack(a.__dlpack__()), dlarray.from_dlpack(capsule())]
assert all(type(b) is dlarray.Array for b in kept)
assert [b.data_ptr == a.data_ptr for b in kept] == [True] * 3 + [False]
"""
    host(*[work] * 5)

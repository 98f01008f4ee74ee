"""Deleters on threads, at the end and in forked children of PyPy, which frees objects by collections (K5, K2, P9)."""

import sys

import pytest
from collecting import PYPY
from lifetime.children import run

pytestmark = pytest.mark.skipif(not PYPY, reason="needs PyPy")

PRELUDE = """
import gc, os, sys, time, weakref
import PROBE as probe

class Owner:
    pass

def export(form="versioned"):
    "A tensor, whose owner nothing else holds, and a weak reference to the owner."
    owner = Owner()
    return probe.take(probe.capsule(owner, form)), weakref.ref(owner)

def exports(count=4):
    made = [export(form) for form in ("versioned", "legacy") * count]
    return [tensor for tensor, _ in made], [gone for _, gone in made]

def living(owners):
    for _ in range(4):
        gc.collect()
    return sum(owner() is not None for owner in owners)
"""


@pytest.fixture(params=["probe", "probe_plain"])
def child(request):
    def run_script(script, **expected):
        lines = PRELUDE.replace("PROBE", request.param) + script.replace("\n        ", "\n")
        run([sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", lines], **expected)

    return run_script


def test_a_deleter_on_the_thread_itself_drops_the_owner_K5(child):
    child("""
        tensors, owners = exports()
        assert living(owners) == 8
        for tensor in tensors:
            probe.drop(tensor)
        assert living(owners) == 0 and probe.counts()["blocks"] == 0
        """)


def test_a_deleter_on_a_thread_that_released_the_gil_drops_the_owner_K5(child):
    child("""
        tensors, owners = exports()
        for tensor in tensors:
            probe.drop_detached(tensor)
        assert living(owners) == 0 and probe.counts()["blocks"] == 0
        """)


@pytest.mark.parametrize("past", ["none", "former"])
def test_a_deleter_on_a_foreign_thread_drops_the_owner_K5(child, past):
    """Also where Python has never started a thread."""
    child(f"""
        tensors, owners = exports()
        probe.start(tensors, "{past}")
        probe.join()
        assert living(owners) == 0 and probe.counts()["blocks"] == 0
        """)


def test_capsules_that_are_collected_drop_their_owners_K1(child):
    child("""
        capsules = [probe.capsule(Owner(), form) for form in ("versioned", "legacy") * 4]
        assert probe.counts()["blocks"] > 0
        del capsules
        for _ in range(4):
            gc.collect()
        assert probe.counts()["blocks"] == 0
        """)


def test_a_process_whose_threads_drop_at_the_end_ends_K5(child):
    child("""
        tensors, owners = exports(200)
        probe.start(tensors, "none")
        """)


def test_a_forked_child_drops_on_a_thread_and_ends_K5(child):
    child("""
        tensors, owners = exports()
        pid = os.fork()
        probe.start(tensors, "none")
        probe.join()
        assert living(owners) == 0 and probe.counts()["blocks"] == 0
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
        """)

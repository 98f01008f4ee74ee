"""What happens at the end of a process, of a thread and of an interpreter. Each test starts a process."""

import sysconfig

import pytest

from dlpack_conformance import standard
from dlpack_conformance.kit import (
    CHOICE,
    MUST,
    SHOULD,
    clause,
)


def produces(lib):
    lib.some()


def consumes(lib):
    if lib.adapter.from_dlpack is None:
        pytest.skip("the library does not consume")


@clause("K5", SHOULD, standard.LEAK, "a deleter that is called after the interpreter is gone ends the process")
def test_K5_a_deleter_after_the_interpreter_is_gone(lib):
    """A deleter may be called after the interpreter is gone, as by a static object of C++: it leaks, or frees; the
    process ends with 0."""
    produces(lib)
    lib.run("for _ in range(2): lib.take_any(lib.some()).keep_until_exit()")


@clause("K5", CHOICE, standard.OPEN, "a deleter on a thread ends or blocks the process while the interpreter ends")
def test_K5_deleters_on_a_thread_while_the_interpreter_ends(lib):
    """Deleters may be called on a thread while the interpreter ends: they leak rather than end or block the process."""
    produces(lib)
    lib.run(
        "taken = [lib.take_any(lib.make()) for i in range(400)]\n"
        "for each in taken: each.keep_until_exit()\n"
        "native.delete_held_on_thread()\n",
    )


@clause("K5", MUST, standard.LIKE_OTHERS, "objects that live until the interpreter ends are freed in a wrong order")
def test_K5_arrays_that_live_until_the_interpreter_ends(lib):
    """Arrays and capsules may live until the interpreter ends: the process ends with 0."""
    produces(lib)
    lib.run(
        "import atexit\n"
        "array = lib.make()\n"
        "keywords = VERSIONED if lib.knows('max_version') else {}\n"
        "capsules = [array.__dlpack__(**keywords), array.__dlpack__(**keywords)]\n"
        "taken = native.take(capsules[0])\n"
        "sys.modules['kept'] = [array, capsules]\n"
        "atexit.register(lambda: lib.take_any(lib.make()).delete())\n"
    )


@clause("K5", MUST, standard.LIKE_OTHERS, "an imported array that lives until the interpreter ends ends the process")
def test_K5_imported_arrays_that_live_until_the_interpreter_ends(lib):
    """Imported arrays may live until the interpreter ends: the process ends with 0."""
    consumes(lib)
    lib.run(
        "offers = [lib.offer() for _ in range(3)]\n"
        "arrays = [lib.attempt(offer)[0] for offer in offers]\n"
        "sys.modules['kept'] = arrays\n"
        "import builtins\n"
        "builtins.kept = arrays\n"
    )


@clause("G1", CHOICE, standard.OPEN, "objects of one interpreter are used in another")
def test_G1_a_subinterpreter(lib):
    """A subinterpreter exports arrays, or refuses to import the library; a library without support may end the
    process."""
    produces(lib)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("a Python without a GIL does not load the extension of the suite in a subinterpreter")
    code = (
        "import _dlpack_conformance as native\n"
        "from dlpack_conformance import load\n"
        "from dlpack_conformance.kit import *\n"
        f"lib = Library(load({lib.spec!r}), {lib.spec!r})\n"
        f"array = lib.make()\n"
        "assert b''.join(lib.take_any(array).elements()) == lib.data\n"
        "lib.take_any(array).delete_on_thread()\n"
        "lib.take_any(array).delete(False)\n"
        "array.__dlpack__(**(VERSIONED if lib.knows('max_version') else {}))\n"
    )
    try:
        told = lib.run(f"print([native.in_subinterpreter({code!r}) for _ in range(2)])")
    except AssertionError:
        lib.choose("subinterpreters", "end the process")
    else:
        lib.choose("subinterpreters", "supported" if told.strip().endswith("[True, True]") else "refused")


@clause("K4", CHOICE, standard.OPEN, "the deleter is called while the library holds a lock, which the deleter needs")
def test_K4_a_deleter_that_uses_the_library(lib):
    """The deleter of a producer runs Python code that uses the library: this works, or ends or blocks the process."""
    consumes(lib)
    code = (
        "inner = []\n"
        "def on_delete():\n"
        "    inner.append(lib.values(lib.from_dlpack(lib.offer())))\n"
        "offer = lib.offer(on_delete=on_delete)\n"
        "array = lib.from_dlpack(offer)\n"
        "del array\n"
        "assert settled(lambda: offer.made[-1].deleted == 1)\n"
        "assert inner == [lib.data]\n"
    )
    try:
        lib.run(code, timeout=20)
    except AssertionError:
        lib.choose("a deleter that uses the library", "ends or blocks the process")
    else:
        lib.choose("a deleter that uses the library", "works")

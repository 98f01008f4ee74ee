"""collect(): frees the objects that no variable holds."""

import gc
import sys

PYPY = sys.implementation.name == "pypy"


def collect():
    """Frees what CPython frees at once: on PyPy, objects of extensions and what they hold are freed by a few
    collections. Does nothing on CPython, whose reference counts the tests rely on.
    """
    if PYPY:
        for _ in range(3):
            gc.collect()

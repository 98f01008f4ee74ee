"""On PyPy, objects are freed by collections, and have no count of references from Python.

collect()          frees what no variable holds
not_on_pypy(what)  skips a test that needs it
sys.getrefcount    on PyPy: the references that C code holds, to compare before and after
weakref.ref        on PyPy: collects before it says whether the object lives
"""

import gc
import sys
import weakref

import pytest

PYPY = sys.implementation.name == "pypy"
OLD_PYPY = PYPY and sys.version_info < (3, 10)


def not_on_pypy(what):
    return pytest.mark.skipif(PYPY, reason=f"{what}: not on PyPy")


if PYPY:
    import dltensor_capsules

    def collect(times=3):
        """A collection frees an object of an extension; the next one frees what that object held."""
        for _ in range(times):
            gc.collect()

    def getrefcount(obj):
        collect(2)
        return dltensor_capsules.references(obj)

    class Reference(weakref.ref):
        def __call__(self):
            by_weakref = sys._getframe(1).f_globals is vars(weakref)  # a dictionary looks at its own references
            for _ in range(0 if by_weakref else 3):
                if super().__call__() is not None:
                    gc.collect()
            return super().__call__()

    sys.getrefcount = getrefcount
    weakref.ref = Reference
else:

    def collect(times=3):
        """Does nothing: the tests find an object that is not freed at once."""

"""NumPy and other modules where they are installed. Elsewhere a test that uses NumPy is skipped; so is a file that uses
it when imported."""

import importlib.util
import os

import pytest


class Missing:
    """Stands for a library that is not installed."""

    def __init__(self, name):
        self.name = name

    def __getattr__(self, attribute):
        if attribute.startswith("_") and attribute != "__version__":  # pytest looks for its own marks
            raise AttributeError(attribute)
        pytest.skip(f"{self.name}: not on this machine", allow_module_level=True)


try:
    import numpy
except ModuleNotFoundError:
    numpy = Missing("NumPy")

HAS_NUMPY = not isinstance(numpy, Missing)
needs_numpy = pytest.mark.skipif(not HAS_NUMPY, reason="NumPy: not on this machine")


def needs(module, command):
    """Marks a test that needs a module, which a make command installs: where that one runs, none may be missing."""
    missing = importlib.util.find_spec(module) is None and not os.environ.get("DLPACK_PY_COMPLETE")
    return pytest.mark.skipif(missing, reason=f"{module}: {command} installs it")

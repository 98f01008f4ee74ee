"""Tests that any DLPack library can run on itself: `pytest --pyargs dlpack_conformance --dlpack=numpy`."""

__version__ = "0.1.0"
__all__ = ["Adapter", "load", "run"]


def __getattr__(name):
    """Imports what is asked for: pytest imports this package at each start, for its plugin."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import adapter, libraries, runner

    return {"Adapter": adapter.Adapter, "load": libraries.load, "run": runner.run}[name]

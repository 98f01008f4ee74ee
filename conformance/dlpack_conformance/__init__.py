"""A conformance suite that any DLPack library can run on itself: `python -m dlpack_conformance numpy`."""

from .adapter import Adapter
from .libraries import load
from .runner import run

__version__ = "0.1.0"
__all__ = ["Adapter", "load", "run"]

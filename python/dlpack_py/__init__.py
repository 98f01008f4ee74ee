"""The headers of dlpack_py, for builds: a package lists dlpack-py as a build requirement, not as one of run time.

get_include()   the folder to compile with: "dlpack_py.h" and "dlpack/dlpack.h" are found there
__version__     the version of the headers

`python -m dlpack_py` prints the folders for other build tools, and copies headers into a project.
"""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["__version__", "get_include"]


def get_include() -> str:
    """The folder of the headers, for include_dirs. For Cython, it is also an include path of the .pxd files."""
    return str(Path(__file__).parent / "include")


try:
    __version__: str = json.loads((Path(__file__).parent / "source.json").read_text("utf-8"))["version"]
except FileNotFoundError:
    raise ImportError("this is the source of dlpack_py, without headers: `pip install .` in the checkout") from None

"""Started by hand, the tests use the modules that `make dev` has built."""

import os

if "DLPACK_PY_BUILD_DIR" not in os.environ:
    import dlarray

    os.environ["DLPACK_PY_BUILD_DIR"] = os.path.dirname(dlarray.__file__)

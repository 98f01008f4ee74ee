"""DLPACK_PY_PATIENCE multiplies the time limits of the tests, for slow machines. Under an emulator, 20 is enough."""

import os

PATIENCE = float(os.environ.get("DLPACK_PY_PATIENCE", "1"))

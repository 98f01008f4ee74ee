"""How much longer than on a usual machine the time limits are. An emulator needs DLPACK_PY_PATIENCE=10 or more."""

import os

PATIENCE = float(os.environ.get("DLPACK_PY_PATIENCE", "1"))

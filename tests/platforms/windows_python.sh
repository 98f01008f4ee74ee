#!/usr/bin/env bash
# The CPython for Windows of make test-windows, under wine, with the modules that were built for it:
#   tests/platforms/windows_python.sh -m pytest tests/producer
set -o pipefail
build=$(cd "$(dirname "$0")/../.." && pwd)/build/windows
windows=Z:${build//\//\\}
export WINEPREFIX=$build/wine WINEDEBUG=-all WINEDLLOVERRIDES=winedbg.exe=d # a crash ends the process
export WINEPATH="$windows\\python" # embed_host.exe finds python313.dll there
export DLPACK_PY_BUILD_DIR="$windows\\cmake\\python"
export PYTHONPATH="$DLPACK_PY_BUILD_DIR;$windows\\packages" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
wine "$build/python/python.exe" "$@" < /dev/null 2>&1 | sed -u 's,\r$,,' # through a pipe: on a terminal wine may hang

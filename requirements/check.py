"""Says in one line what this machine lacks to build the examples and the tests, and which package has it.

    check.py [C COMPILER ...]

It runs in the Python that the headers are built for, however old that is, before anything is built.
"""

import os
import subprocess
import sys
import sysconfig


def compiles(command):
    """Whether a C compiler is there, and has the headers of the C library."""
    try:
        compiler = subprocess.Popen(
            command + ["-fsyntax-only", "-x", "c", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError:
        return False, False
    compiler.communicate(b"#include <stdlib.h>\n")
    return True, compiler.returncode == 0


def has_venv():
    try:
        import venv  # noqa: F401
        from ensurepip import version  # noqa: F401  Debian splits it off
    except ImportError:
        return False
    return True


def missing():
    """The first thing that is missing, or None."""
    python = "python%d.%d" % sys.version_info[:2]
    if sys.version_info < (3, 9):
        version = "%d.%d.%d" % sys.version_info[:3]
        python = "%s is Python %s" % (sys.executable, version)
        return python + ", 3.9 or newer is needed: name another one, PYTHON=python3.11"
    found, works = compiles(sys.argv[1:] or ["cc"])
    if not found:
        return "no C compiler `%s`: install gcc, or name another one, CC=clang" % " ".join(sys.argv[1:])
    if not works:
        return "the C compiler finds no <stdlib.h>: install libc6-dev (Debian, Ubuntu) or glibc-devel (Fedora)"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        packages = "%s-dev or python3-dev (Debian, Ubuntu), python3-devel (Fedora)" % python
        return "no Python.h for %s: install %s" % (sys.executable, packages)
    if not has_venv():
        return "%s has no venv: install %s-venv or python3-venv (Debian, Ubuntu)" % (sys.executable, python)
    return None


reason = missing()
if reason:
    sys.exit("MISSING: " + reason)

"""Counts the instructions of the commonest calls with callgrind, and holds them to their limits.

Run by `make instructions`. The limits are those of one interpreter and compiler, CPython 3.11 built without profile
and gcc 12 at -O2: others only print. aim is what a call may cost at last; limit is what it costs today and two in a
hundred, so that nobody makes it dearer unseen. Whoever makes a call cheaper, lowers its limit.
"""

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

# what is called: (aim, limit)
CALLS = {
    "f(own), borrowed by its exchange table": (240, 385),
    "f(own, own, own), borrowed": (450, 1003),
    "f(own), owned by its exchange table": (240, 542),
    "f(own without a table), capsule": (640, 1433),
    "f(numpy), capsule": (1200, 1702),
    "f(torch), borrowed by its exchange table": (830, 954),
    "f(torch), owned by its exchange table": (1070, 1393),
    "return own object": (380, 460),
    "return to NumPy": (2300, 3421),
    "return to torch by its exchange table": (3800, 7181),
    "__dlpack__(), embedded, capsule dropped": (560, 636),
    "__dlpack__(max_version=(1, 3)), embedded": (620, 832),
    "__dlpack__(), allocated": (560, 999),
    "__dlpack_device__()": (250, 106),
}


def scenarios():
    """Calls in the order of CALLS; None for what this environment lacks."""
    import calls
    import numpy

    try:
        import torch
    except ImportError:
        torch = None

    own, plain, array = calls.Own(), calls.Plain(), numpy.zeros((3, 4))
    tensor = None if torch is None else torch.zeros((3, 4), dtype=torch.float64)

    def of_torch(function):
        return None if torch is None else (function, tensor)

    return [
        (calls.borrow, own),
        (calls.borrow_three, own, own, own),
        (calls.consume, own),
        (calls.consume, plain),
        (calls.consume, array),
        of_torch(calls.borrow),
        of_torch(calls.consume),
        (calls.make,),
        (calls.make_like, array),
        of_torch(calls.make_like),
        (own.__dlpack__,),
        ((own.__dlpack__,), {"max_version": (1, 3)}),
        (own.dlpack_allocated,),
        (own.__dlpack_device__,),
    ]


def run():
    """Under callgrind: each loop is one dump of its counters."""
    import calls

    for name, scenario in zip(CALLS, scenarios()):
        if scenario is None:
            continue
        arguments, keywords = scenario if isinstance(scenario[0], tuple) else (scenario, {})
        arguments[0](*arguments[1:], **keywords)  # the first call fills what is remembered
        calls.repeat(*arguments, **keywords)
        print(name, flush=True)


def count():
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is needed, and is not there")
    with tempfile.TemporaryDirectory() as folder:
        loop = "dlpack_py_benchmark_loop"
        valgrind = ["valgrind", "--tool=callgrind", f"--toggle-collect={loop}", f"--dump-after={loop}"]
        out = f"--callgrind-out-file={folder}/counts"
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*valgrind, out, sys.executable, __file__, "run"], capture_output=True, text=True, env=environment
        )
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        names = done.stdout.splitlines()
        import calls

        counts = {}
        for i, name in enumerate(names, 1):
            with open(f"{folder}/counts.{i}") as file:
                counts[name] = int(re.search(r"^(?:totals|summary): (\d+)", file.read(), re.M)[1]) // calls.CALLS
        assert len(names) <= len(glob.glob(f"{folder}/counts.*"))
        return counts


def is_reference():
    return (
        sys.version_info[:2] == (3, 11)
        and platform.machine() == "x86_64"
        and "-fprofile" not in (sysconfig.get_config_var("PY_CFLAGS") or "")
    )


def main():
    counts, dearer = count(), []
    print(f"instructions of a call, CPython {platform.python_version()}, float64 (3, 4)\n")
    print(f"{'':44}{'counted':>8}{'limit':>8}{'aim':>8}")
    for name, (aim, limit) in CALLS.items():
        if name not in counts:
            print(f"{name:44}{'-':>8}{limit:8}{aim:8}  PyTorch is not installed")
            continue
        over = counts[name] > limit
        print(f"{name:44}{counts[name]:8}{limit:8}{aim:8}{'  dearer than it was' if over else ''}")
        if over:
            dearer.append(name)
    if dearer and is_reference():
        sys.exit(f"dearer: {', '.join(dearer)}")


if __name__ == "__main__":
    run() if sys.argv[1:] == ["run"] else main()

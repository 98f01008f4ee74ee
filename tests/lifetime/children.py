"""How the scenarios of this folder are run."""

import os
import pathlib
import subprocess

import pytest
from patience import PATIENCE

# How often each scenario runs. Without DLPACK_PY_REPEAT, a scenario runs once, and a race several times.
REPEAT = int(os.environ.get("DLPACK_PY_REPEAT", "0"))
RACE = 2 if os.name == "nt" else 8  # processes start slowly on Windows

MODULES = pathlib.Path(os.environ["DLPACK_PY_BUILD_DIR"])
# The folder of probe_limited. It may hold a module that was built for an older Python.
LIMITED_MODULES = os.environ.get("DLPACK_PY_LIMITED_DIR", str(MODULES))

PRELUDE = """
import os, sys, time
from functools import partial
import interpreters, PROBE as probe

turn = int(sys.argv[1])  # the number of this run
patience = PATIENCE  # multiplies each time limit

def say(text, write=os.write):
    write(1, text.encode() + b"\\n")

class Owner:
    "Calls a function when it dies."
    def __init__(self, function=None):
        self.function = function
    def __del__(self):
        if self.function is not None:
            self.function()

class EmbeddingOwner(Owner, probe.Array):
    pass

EMBEDDED = ["embedded", "embedded legacy"]
FORMS = ["versioned", "legacy"] + EMBEDDED
PASTS = ["none", "former", "kept"]  # of the threads that call deleters: see probe.c

def capsule(function=None, form="versioned"):
    owner = EmbeddingOwner(function) if form in EMBEDDED else Owner(function)
    return probe.capsule(owner, form)

def export(function=None, form="versioned"):
    return probe.take(capsule(function, form))

def exports(function=None, forms=FORMS):
    return [export(function, form) for form in forms]

def elsewhere(make, *args):
    "Calls make on a thread that then ends, and returns the result."
    # Without a GIL, an owner is deallocated on the thread that created it, even if another thread drops the last
    # reference. If the creating thread has ended, the thread that drops the last reference deallocates the owner.
    import threading
    made = []
    thread = threading.Thread(target=lambda: made.append(make(*args)))
    thread.start()
    thread.join()
    # join returns before the thread of the system has ended. At its end, this thread takes locks of ASan's allocator:
    # a process that is forked meanwhile waits for them forever.
    wait_for(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    return made[0]

def wait_for(condition):
    deadline = time.monotonic() + 20 * patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)

class Slow:
    "A slow finalizer of an owner, which lets other threads run."
    def __init__(self, seconds=0.1, sleep=time.sleep, say=say):
        self.entered = False
        self.seconds, self.sleep, self.say = seconds, sleep, say
    def __call__(self):
        self.entered = True
        self.sleep(self.seconds)
        self.say("finalizer ends")

def inside(script, own_gil=False):
    return interpreters.run(PRELUDE + script, own_gil)
""".replace("PATIENCE", str(PATIENCE))


def run(command, out="", times=1, sort=False, limit=120):
    """Checks that a command exits with 0 and prints `out` in each run. With sort, the order of the lines is free."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([LIMITED_MODULES, str(MODULES)]))
    for turn in range(REPEAT or times):
        done = subprocess.run(
            [part.replace("TURN", str(turn)) for part in command],
            env=environment,
            capture_output=True,
            timeout=limit * PATIENCE,
            text=True,
        )
        said = "".join(sorted(done.stdout.splitlines(True))) if sort else done.stdout
        if (done.returncode, said, done.stderr) != (0, out, ""):
            pytest.fail(f"in turn {turn} the child said\n{said}{done.stderr}exit code {done.returncode}", pytrace=False)

"""How the scenarios of this folder are run."""

import os
import pathlib
import subprocess

import pytest

# How often each scenario runs; without it once, and a race a few times.
REPEAT = int(os.environ.get("DLPACK_PY_REPEAT", "0"))
RACE = 8

MODULES = pathlib.Path(os.environ["DLPACK_PY_BUILD_DIR"])
# Where probe_limited is taken from: to run what was built for an older Python.
LIMITED_MODULES = os.environ.get("DLPACK_PY_LIMITED_DIR", str(MODULES))

PRELUDE = """
import os, sys, time
from functools import partial
import interpreters, PROBE as probe

turn = int(sys.argv[1])  # of a race

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
PASTS = ["none", "former", "kept"]  # of threads that drop: see probe.c

def capsule(function=None, form="versioned"):
    owner = EmbeddingOwner(function) if form in EMBEDDED else Owner(function)
    return probe.capsule(owner, form)

def export(function=None, form="versioned"):
    return probe.take(capsule(function, form))

def exports(function=None, forms=FORMS):
    return [export(function, form) for form in forms]

def elsewhere(make, *args):
    "What make returns on a thread, which then ends."
    # Without a GIL, an owner dies on the thread that made it, whoever drops it; where that thread has ended, on the
    # thread that drops it, as with a GIL.
    import threading
    made = []
    thread = threading.Thread(target=lambda: made.append(make(*args)))
    thread.start()
    thread.join()
    return made[0]

def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)

class Slow:
    "An owner's function that takes its time; other threads run meanwhile."
    def __init__(self, seconds=0.1, sleep=time.sleep, say=say):
        self.entered = False
        self.seconds, self.sleep, self.say = seconds, sleep, say
    def __call__(self):
        self.entered = True
        self.sleep(self.seconds)
        self.say("finalizer ends")

def inside(script, own_gil=False):
    return interpreters.run(PRELUDE + script, own_gil)
"""


def run(command, out="", times=1, sort=False, limit=120):
    """Expects a command to end well each time and to say `out`; sorted, where the order of lines is open."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([LIMITED_MODULES, str(MODULES)]))
    for turn in range(REPEAT or times):
        done = subprocess.run(
            [part.replace("TURN", str(turn)) for part in command],
            env=environment,
            capture_output=True,
            timeout=limit,
            text=True,
        )
        said = "".join(sorted(done.stdout.splitlines(True))) if sort else done.stdout
        if (done.returncode, said, done.stderr) != (0, out, ""):
            pytest.fail(f"in turn {turn} the child said\n{said}{done.stderr}exit code {done.returncode}", pytrace=False)

"""Runs the tests in a process of their own, and goes on after a test that ended this process."""

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .kit import PATIENCE, how_ended, last_line

CLAUSES = Path(__file__).with_name("clauses")
LIMIT = 45 * PATIENCE  # seconds for one test
START = 120 * PATIENCE  # seconds until the first test begins


def run(name, select=None, environment=None, limit=LIMIT):
    """The results of an adapter: a dict of the library's name and version, and of all tests by name.

    select: the beginnings of the names of tests; None runs all.
    environment: variables for the processes of the tests.
    limit: seconds for one test.
    """
    begun = time.time()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        record, done = Path(folder, "record"), Path(folder, "done")
        record.touch()
        fails = 0
        while True:
            done.write_text(json.dumps(sorted(results)))
            before = len(results)
            ended, messages = run_child(name, record, done, select, environment, limit)
            read(record, results)
            unfinished = [test for test, result in results.items() if "outcome" not in result]
            for test in unfinished:
                results[test].update(outcome="fail", came=f"the process {ended}: {last_line(messages)}")
            record.write_text("")
            if not unfinished:
                if ended is not None and (before == len(results) or not results):
                    raise SystemExit(f"{name}: pytest {ended}:\n{messages[-3000:]}")
                if ended is None:
                    break
                fails += 1
                if fails > 3:
                    raise SystemExit(f"{name}: pytest {ended}:\n{messages[-3000:]}")
        about = json.loads(about_library(name, environment))
    return {**about, "seconds": round(time.time() - begun, 1), "tests": results}


def child_environment(more=None):
    """The environment of a process that imports this package, wherever it was imported from."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTEST_ADDOPTS": "", **(more or {})}


def about_library(name, environment):
    code = (
        "import json, sys; from dlpack_conformance import load; a = load(sys.argv[1]);"
        "print(); print(json.dumps({'library': a.name, 'version': a.version(), 'choices': a.choices}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, name], capture_output=True, text=True, env=child_environment(environment)
    )
    if told.returncode:
        raise SystemExit(f"{name}: the adapter cannot be made:\n{told.stderr[-2000:]}")
    return json.dumps({**json.loads(told.stdout.strip().splitlines()[-1]), "python": platform.python_version()})


def run_child(name, record, done, select, environment, limit):
    """How the process ended, None for well, and what it wrote."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", str(CLAUSES), "-q", "--no-header", "--tb=no"]
    command += [
        "-p",
        "no:cacheprovider",
        "-p",
        "dlpack_conformance.plugin",
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
        "-p",
        "no:warnings",
        "-s",
    ]
    command += ["-c", os.devnull, "--rootdir", str(CLAUSES), "--import-mode=importlib"]
    command += ["--adapter", name, "--record", str(record)]
    env = {**child_environment(environment), "DLPACK_CONFORMANCE_DONE": str(done)}
    env["DLPACK_CONFORMANCE_SELECT"] = json.dumps(select)
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would forbid a fork
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        size, since, ended = 0, time.time(), None
        while process.poll() is None:
            time.sleep(0.02)
            if record.stat().st_size != size:
                size, since = record.stat().st_size, time.time()
            elif time.time() - since > (limit if size else START):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                process.wait()
                ended = f"did not go on within {limit} s"
        output.seek(0)
        messages = output.read()
    if ended is None and process.returncode not in (0, 1, 5):
        ended = how_ended(process.returncode)
    return ended, messages


def read(record, results):
    """Reads what a process recorded. A test that has begun but not ended has an empty result."""
    for line in record.read_text().splitlines():
        line = json.loads(line)
        results.setdefault(line.pop("test"), {}).update(line)

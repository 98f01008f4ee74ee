"""Runs the tests in a process of their own, and goes on after a test that ended this process."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from .kit import OWN_PATH, PATIENCE, how_ended, last_line

CLAUSES = Path(__file__).with_name("clauses")
LIMIT = 45 * PATIENCE  # seconds for one test
START = 120 * PATIENCE  # seconds until the first test begins


# The current folder may have the sources of the library: they count only if they count for this process.
PYTEST = f"{OWN_PATH}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


class NoLibrary(Exception):
    """The process of the tests did not start: the adapter cannot be loaded, for instance."""


def run(name, select=None, environment=None, limit=LIMIT, cuda=False):
    """The results of an adapter: a dict of the library's name and version, and of all tests by name.

    select: the beginnings of the names of tests; None runs all.
    environment: variables for the processes of the tests.
    limit: seconds for one test.
    cuda: the tests of streams, in place of all others.
    """
    begun = time.time()
    try:
        with Worker(name, environment, limit, cuda) as worker:
            about = dict(worker.wait_for_library())
            tests = [test for test in about.pop("tests") if test.startswith(tuple(select or ("",)))]
            results = {test: worker.run(test) for test in tests}
    except NoLibrary as error:
        raise SystemExit(str(error)) from None
    return {**about, "seconds": round(time.time() - begun, 1), "tests": results}


def child_environment(more=None):
    """The environment of a process that imports what this process can import."""
    paths = [path for path in sys.path if path]
    here = str(Path(__file__).parents[1])
    if here not in paths:
        paths.append(here)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_ADDOPTS": "", **(more or {})}


def command_of(name, cuda=False):
    """The command of a pytest that has this package's tests and plugins, and no others."""
    command = [sys.executable, "-X", "faulthandler", "-c", PYTEST, str(CLAUSES), "-s", "-c", os.devnull]
    # Without --confcutdir, pytest looks through all folders above.
    command += ["--rootdir", str(CLAUSES), "--confcutdir", str(CLAUSES), "--import-mode=importlib"]
    for plugin in "no:cacheprovider", "no:warnings", "dlpack_conformance.plugin":
        command += ["-p", plugin]
    return [*command, "-p", "dlpack_conformance.server", "--dlpack", name, *(["--dlpack-cuda"] if cuda else [])]


class Worker:
    """A process that runs tests, one at a time, as they are asked for. If it ends, another takes over."""

    def __init__(self, name, environment=None, limit=LIMIT, cuda=False):
        self.name, self.limit, self.about = name, limit, None
        self.command = command_of(name, cuda)
        self.environment = {**child_environment(environment), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.environment.pop("PYTEST_PLUGINS", None)
        self.environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads would forbid a fork
        self.folder = tempfile.TemporaryDirectory()
        self.messages = Path(self.folder.name, "messages")
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def start(self):
        with open(self.messages, "wb") as output:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=self.environment,
                start_new_session=True,
            )
        self.lines = queue.Queue()
        threading.Thread(target=listen, args=(self.process.stdout, self.lines), daemon=True).start()
        self.is_ready = False

    def wait_for_library(self):
        """Returns a dict of library, version, choices, python, suite, and tests, which are ids. Raises NoLibrary."""
        if self.is_ready:
            return self.about
        try:
            hello = self.lines.get(timeout=START)
        except queue.Empty:
            self.kill()
            raise NoLibrary(f"{self.name}: no test began within {START} s: {last_line(self.told())}") from None
        if hello is None:
            raise NoLibrary(f"{self.name}: pytest {how_ended(self.wait())}:\n{self.told()[-3000:]}")
        if "error" in hello:
            raise NoLibrary(f"{self.name}: {hello['error']}")
        self.about, self.is_ready = hello, True
        return hello

    def run(self, test):
        """The result of a test: a dict of outcome, came, chosen."""
        for _ in range(3):
            result = self.attempt(test)
            if "outcome" in result:
                return result
        return {"outcome": "fail", "came": f"before the test began, {result['came']}"}

    def attempt(self, test):
        """The result of a test. Without an outcome, if the process ended before the test began."""
        if self.process is None:
            self.start()
        self.wait_for_library()
        before, has_begun, forks = self.messages.stat().st_size, False, 0
        try:
            self.process.stdin.write((test + "\n").encode())
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, which the next line tells
        while True:
            try:
                line = self.lines.get(timeout=self.limit)
            except queue.Empty:
                self.kill()
                return {
                    "outcome": "fail",
                    "came": f"the process did not go on within {self.limit} s: {self.last(before)}",
                }
            if line is not None and "begun" in line:
                has_begun = True
            elif line is not None and "ended" not in line:
                return line
            elif line is not None and not has_begun and forks < 3:
                forks += 1  # it ended before it read the request, which is left for the next one
            else:
                ended = how_ended(self.wait()) if line is None else line["ended"]
                result = {"came": f"the process {ended}: {self.last(before)}"}
                return {"outcome": "fail", **result} if has_begun or line is not None else result

    def told(self, begin=0):
        """What the process and the library printed."""
        return self.messages.read_bytes()[begin:].decode(errors="replace")

    def last(self, begin):
        return last_line(self.told(begin))

    def wait(self):
        """The exit status of a process that ends."""
        process, self.process = self.process, None
        process.stdin.close()
        try:
            return process.wait(timeout=START)
        except subprocess.TimeoutExpired:
            self.process = process
            self.kill()
            return process.returncode

    def kill(self):
        process, self.process = self.process, None
        if hasattr(os, "killpg"):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        else:
            process.kill()
        process.wait()

    def close(self):
        if self.process is not None:
            try:
                self.process.stdin.close()
                self.process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                self.kill()
        self.folder.cleanup()


def listen(stdout, lines):
    """Puts what the process answers into a queue, and None at the end."""
    with stdout:
        for line in stdout:
            lines.put(json.loads(line))
    lines.put(None)

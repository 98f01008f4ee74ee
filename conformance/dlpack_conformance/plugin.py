"""The pytest plugin of a run: it writes what each test found to a file, one line of JSON each."""

import functools
import gc
import json
import os
import tempfile
from pathlib import Path

import pytest

from .kit import Library, how_ended, last_line
from .libraries import load


def pytest_addoption(parser):
    group = parser.getgroup("dlpack_conformance")
    group.addoption("--adapter", help="a known library, FILE.py, FILE.py:CLASS or MODULE:CLASS")
    group.addoption("--record", help="the file that the results are appended to")


GO_ON = 77  # the exit status of a process in which a test failed


class Recorder:
    def __init__(self, path):
        self.file, self.failed = open(path, "a"), False
        done = os.environ.get("DLPACK_CONFORMANCE_DONE")
        self.done = set(json.loads(Path(done).read_text())) if done else set()
        self.select = json.loads(os.environ.get("DLPACK_CONFORMANCE_SELECT", "null"))

    def write(self, **line):
        self.failed |= line.get("outcome") == "fail"
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_collection_modifyitems(self, items):
        wanted = tuple(self.select or ("",))
        items[:] = [item for item in items if test_id(item) not in self.done and test_id(item).startswith(wanted)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Imports the library once, then runs the tests in a fork.

        After a failure or a crash, which may leave a damaged library behind, another fork goes on.

        A process with several threads cannot be forked safely: there the runner starts new processes.
        """
        if session.config.option.collectonly or not session.items:
            return None
        adapter_of(session.config.getoption("--adapter"))
        gc.collect()
        gc.freeze()
        if not can_fork():
            return None
        items = list(session.items)
        while items:
            self.failed = False
            with tempfile.TemporaryFile("w+") as messages:
                child = os.fork()
                if child == 0:
                    os.dup2(messages.fileno(), 1)
                    os.dup2(messages.fileno(), 2)
                    # What is told afterwards is the library's words alone.
                    session.config.get_terminal_writer()._file = open(os.devnull, "w")
                    for item in items:
                        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
                        if self.failed:
                            os._exit(GO_ON)
                    os._exit(0)
                _, status = os.waitpid(child, 0)
                messages.seek(0)
                told = last_line(messages.read())
            if status == 0:
                break
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == GO_ON:
                _, done = self.progress()
                items = [item for item in items if test_id(item) not in done]
                continue
            ended = how_ended(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
            test, done = self.progress()
            if test is None:
                raise RuntimeError(f"between two tests, the process {ended}: {told}")
            self.write(test=test, outcome="fail", came=f"the process {ended}: {told}")
            items = [item for item in items if test_id(item) not in done and test_id(item) != test]
        return True

    def progress(self):
        """The test that has begun but not ended, and the tests that ended."""
        begun, done = None, set()
        for line in Path(self.file.name).read_text().splitlines():
            line = json.loads(line)
            if "outcome" in line:
                done.add(line["test"])
            else:
                begun = line["test"]
        return (None if begun in done else begun), done

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.write(test=test_id(item))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            self.write(test=test_id(item), **outcome(item, call, report))
        elif report.failed:
            self.write(test=test_id(item), outcome="fail", came=message(call.excinfo))


def can_fork():
    """Whether the system can, and this process has a single thread."""
    try:
        return hasattr(os, "fork") and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


def outcome(item, call, report):
    if report.skipped or report.failed:
        return {"outcome": "skip" if report.skipped else "fail", "came": message(call.excinfo)}
    chosen = item.funcargs["lib"].chosen
    if not chosen:
        return {"outcome": "pass"}
    return {"outcome": "choice" if item.function.clause.grade == "choice" else "pass", "chosen": dict(chosen)}


def message(excinfo):
    text = str(excinfo.value).strip().split("\nassert ")[0].split("\n")[0]
    kind = excinfo.type.__name__
    if kind in ("Skipped", "AssertionError"):
        return text or kind
    return f"{kind}: {text}" if text else kind


def test_id(item):
    """The name of the test without its file."""
    return item.nodeid.rpartition("/")[2].partition("::")[2].replace("test_", "", 1)


def pytest_configure(config):
    if config.getoption("--record"):
        config.pluginmanager.register(Recorder(config.getoption("--record")))


@functools.cache
def adapter_of(name):
    return load(name)


@pytest.fixture(scope="session")
def library(request):
    name = request.config.getoption("--adapter")
    return Library(adapter_of(name), name)


@pytest.fixture
def lib(request, library):
    library.begin(request.function.clause)
    return library

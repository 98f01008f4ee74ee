"""The process that runs the tests for runner.Worker. It is a pytest without plugins of others.

It reads the id of a test, one in a line, and answers with lines of JSON: {"begun": id}, then the result of the test; or
{"ended": how} if the process that ran the test ended.
"""

import faulthandler
import functools
import gc
import json
import os
import platform
import sys

import pytest

from . import __version__
from .kit import how_ended, shown
from .libraries import load

GO_ON = 77  # the exit status of a process in which a test failed

adapter_of = functools.cache(load)


def test_id(item):
    """The name of a test, without its file and `test_`."""
    return item.name.replace("test_", "", 1)


def message(excinfo):
    text = str(excinfo.value).strip().split("\nassert ")[0].split("\n")[0]
    kind = excinfo.type.__name__
    if kind in ("Skipped", "AssertionError"):
        return text or kind
    return f"{kind}: {text}" if text else kind


def result_of(item, call, report):
    """What a report says of a test; None for the reports of a setup or teardown that did not fail."""
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return {"outcome": "fail", "came": message(call.excinfo)} if report.failed else None
    if report.skipped or report.failed:
        return {"outcome": "skip" if report.skipped else "fail", "came": message(call.excinfo)}
    chosen = item.funcargs["lib"].chosen
    if not chosen:
        return {"outcome": "pass"}
    return {"outcome": "choice" if item.function.clause.grade == "choice" else "pass", "chosen": dict(chosen)}


def can_fork():
    """Whether the system can, and this process has a single thread."""
    try:
        return hasattr(os, "fork") and len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if config.getoption("--dlpack") is not None:
        config.pluginmanager.register(Server(), "dlpack_conformance_server")
        # What stands in stderr are the words of the library. The messages of asserts need the plugin terminal.
        config.get_terminal_writer()._file = open(os.devnull, "w")


class Server:
    def __init__(self):
        # What a library prints goes to stderr, and not between the answers.
        self.requests, self.answers, self.result = os.dup(0), os.dup(1), None
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def tell(self, **answer):
        line = (json.dumps(answer) + "\n").encode()
        while line:
            line = line[os.write(self.answers, line) :]

    def ask(self):
        """The id of the next test; None at the end."""
        line = b""
        while not line.endswith(b"\n"):
            came = os.read(self.requests, 4096)  # never more than one line: the next one follows the answer
            if not came:
                return None
            line += came
        return line.decode().strip()

    def pytest_collectreport(self, report):
        if report.failed:
            print(report.longrepr, file=sys.stderr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Imports the library once, then runs the tests in a fork.

        After a failure or a crash, which may leave a damaged library behind, another fork goes on.

        A process with several threads cannot be forked safely, and a runtime of a GPU not at all: there the tests run
        in this process, and after a crash Worker starts another.
        """
        if session.testsfailed:  # some file could not be imported
            return None
        name = session.config.getoption("--dlpack")
        try:
            adapter = adapter_of(name)
            about = {"library": adapter.name, "version": adapter.version(), "choices": adapter.choices}
        except (Exception, SystemExit) as error:
            self.tell(error=str(error) if isinstance(error, SystemExit) else shown(error))
            return True
        items = {test_id(item): item for item in session.items}
        gc.collect()
        if hasattr(gc, "freeze"):
            gc.freeze()
        self.tell(**about, python=platform.python_version(), suite=__version__, tests=list(items))
        if session.config.getoption("--dlpack-cuda") or not can_fork():
            self.serve(items)
            return True
        while True:
            child = os.fork()
            if child == 0:
                faulthandler.disable()  # how the process ended says enough
                os._exit(GO_ON if self.serve(items, until_failure=True) else 0)
            _, status = os.waitpid(child, 0)
            if status == 0:
                return True
            if not os.WIFEXITED(status) or os.WEXITSTATUS(status) != GO_ON:
                self.tell(ended=how_ended(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)))

    def serve(self, items, until_failure=False):
        """Runs the tests that are asked for. Returns whether one failed; False at the end of the requests."""
        while True:
            test = self.ask()
            if test is None:
                return False
            self.tell(begun=test)
            self.result = {}
            items[test].ihook.pytest_runtest_protocol(item=items[test], nextitem=None)
            self.tell(**self.result)
            if until_failure and self.result["outcome"] == "fail":
                return True

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        self.result = result_of(item, call, report) or self.result

"""The pytest plugin of a run: it writes what each test found to a file, one line of JSON each."""

import json
import os
from pathlib import Path

import pytest

from .adapter import load
from .kit import Library


def pytest_addoption(parser):
    group = parser.getgroup("dlpack_conformance")
    group.addoption("--adapter", help="a known library, FILE.py, FILE.py:CLASS or MODULE:CLASS")
    group.addoption("--record", help="the file that the results are appended to")


class Recorder:
    def __init__(self, path):
        self.file = open(path, "a")
        done = os.environ.get("DLPACK_CONFORMANCE_DONE")
        self.done = set(json.loads(Path(done).read_text())) if done else set()
        self.select = json.loads(os.environ.get("DLPACK_CONFORMANCE_SELECT", "null"))

    def write(self, **line):
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def pytest_collection_modifyitems(self, items):
        wanted = tuple(self.select or ("",))
        items[:] = [item for item in items if test_id(item) not in self.done and test_id(item).startswith(wanted)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.write(test=test_id(item), clause=item.function.clause._asdict())

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
            self.write(test=test_id(item), **outcome(item, call, report))
        elif report.failed:
            self.write(test=test_id(item), outcome="fail", came=message(call.excinfo))


def outcome(item, call, report):
    lib = item.funcargs.get("lib") if hasattr(item, "funcargs") else None
    chosen = list(lib.chosen) if lib is not None else []
    if report.skipped:
        return {"outcome": "skip", "came": message(call.excinfo)}
    if report.failed:
        return {"outcome": "fail", "came": message(call.excinfo)}
    if chosen and item.function.clause.grade == "choice":
        return {"outcome": "choice", "came": "; ".join(chosen)}
    return {"outcome": "pass", "came": "; ".join(chosen)}


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


@pytest.fixture(scope="session")
def library(request):
    name = request.config.getoption("--adapter")
    return Library(load(name), name)


@pytest.fixture
def lib(library):
    library.chosen.clear()
    return library

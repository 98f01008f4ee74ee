"""The pytest plugin: `pytest --pyargs dlpack_conformance --dlpack=numpy`.

pytest collects the tests here, and runner.Worker runs each of them in another process, so that a test that ends its
process is one failure. All pytests of an environment load this module: it imports the suite only for --dlpack.
"""

import fnmatch
import time
from collections import Counter
from pathlib import Path

import pytest

from . import __version__

CLAUSES = Path(__file__).with_name("clauses").resolve()
GRADES = ("must", "should", "choice")


def pytest_addoption(parser, pluginmanager):
    config = pluginmanager.get_plugin("pytestconfig")
    arguments = config.invocation_params.args if config is not None else ()
    # The short names may be those of other plugins or projects: they exist in a command that has --dlpack.
    is_asked = any(str(argument).startswith("--dlpack") for argument in arguments)
    group = parser.getgroup("dlpack_conformance", "conformance with DLPack")

    def add(name, short=None, **keywords):
        names = [f"--dlpack-{name}"] + ([short] if short and is_asked else [])
        group.addoption(*names, dest=f"dlpack_{name.replace('-', '_')}", **keywords)

    group.addoption("--dlpack", metavar="LIBRARY", help="a known library, FILE.py, FILE.py:OBJECT or MODULE:OBJECT")
    add("xfails", "--xfails", metavar="FILE", help="ids of tests that fail; such a test that passes is a failure")
    add("skips", "--skips", metavar="FILE", help="ids of tests that do not run")
    add("grades", metavar="must,should,choice", default="must", help="grades whose failures are failures: must")
    add("cuda", "--cuda", action="store_true", help="the tests of streams, on a GPU, in place of all others")
    add("in-process", action="store_true", help="runs the tests in this process, for a debugger")


def pytest_configure(config):
    if config.getoption("--dlpack") is not None and not config.pluginmanager.hasplugin("dlpack_conformance.server"):
        config.pluginmanager.register(Suite(config), "dlpack_conformance_suite")


def clause_of(item):
    """The clause that an item tests; None for the tests of others."""
    clause = getattr(getattr(item, "function", None), "clause", None)
    return clause if hasattr(clause, "pitfall") else None


def id_of(item):
    return item.name.replace("test_", "", 1)


def pytest_collect_file(file_path, parent):
    """Collects the tests of this package also for an ini file that gives the files of tests other names."""
    patterns = parent.config.getini("python_files")
    if file_path.parent == CLAUSES and file_path.match("test_*.py"):
        if not any(fnmatch.fnmatch(file_path.name, pattern) for pattern in patterns):
            return pytest.Module.from_parent(parent, path=file_path)
    return None


def pytest_itemcollected(item):
    """Names a test by its id, wherever this package lies."""
    if clause_of(item) is None:
        return
    name = f"dlpack_conformance::{id_of(item)}"
    if hasattr(item, "_nodeid"):
        item._nodeid = name
    elif hasattr(item, "_id"):  # pytest 9.2
        from _pytest.nodeid import coerce_node_id

        item._id = coerce_node_id(name)


def pytest_collection_modifyitems(config, items):
    ours = [item for item in items if clause_of(item) is not None]
    if ours and config.getoption("--dlpack") is None and not config.getoption("--collect-only"):
        from .libraries import LIBRARIES

        raise pytest.UsageError(f"--dlpack names the library under test: {', '.join(LIBRARIES)}, or an adapter")
    cuda = config.getoption("--dlpack-cuda")
    others = [item for item in ours if (item.path.name == "test_streams.py") != cuda]
    if others and not config.getoption("--collect-only"):
        items[:] = [item for item in items if item not in others]


def properties(clause, result):
    """What the report of a test has beside its outcome."""
    return [("dlpack_clause", clause.id), ("dlpack_grade", clause.grade), ("dlpack_result", result["outcome"])]


class Suite:
    """A run with --dlpack."""

    def __init__(self, config):
        from . import expected

        self.config, self.worker, self.about, self.counts = config, None, None, Counter()
        self.grades = config.getoption("--dlpack-grades").split(",")
        if self.grades == ["all"]:
            self.grades = GRADES
        for grade in self.grades:
            if grade not in GRADES:
                raise pytest.UsageError(f"--dlpack-grades: {grade} is none of {', '.join(GRADES)}")
        ids = expected.all_ids()
        self.xfails, self.skips, errors = {}, {}, []
        for name, lines in ("--dlpack-xfails", self.xfails), ("--dlpack-skips", self.skips):
            path = config.getoption(name)
            if path is None:
                continue
            try:
                found, unknown = expected.read(path, ids)
            except OSError as error:
                raise pytest.UsageError(f"{name}: {error}") from None
            errors += [f"{name}: {line}: no test has this id" for line in unknown]
            lines.update(found)
        if errors:
            raise pytest.UsageError("\n".join(errors))
        self.in_process = config.getoption("--dlpack-in-process")
        self.is_controller = not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"

    # -- the run --

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self):
        if self.config.getoption("--collect-only"):
            return
        self.add_junit_property("dlpack_conformance", __version__)
        if self.in_process:
            return
        from . import runner

        # It imports the library while this process collects the tests.
        self.worker = runner.Worker(self.config.getoption("--dlpack"), cuda=self.config.getoption("--dlpack-cuda"))
        if self.is_controller:  # the processes of pytest-xdist collect and run
            self.wait_for_library()
            self.pytest_unconfigure()

    def pytest_collection_modifyitems(self):
        if self.worker is not None:
            self.wait_for_library()

    def wait_for_library(self):
        from .runner import NoLibrary

        try:
            about = self.worker.wait_for_library()
        except NoLibrary as error:
            raise pytest.UsageError(str(error)) from None
        self.about = f"{about['library']} {about['version']}"
        self.add_junit_property("dlpack_library", self.about)

    def pytest_unconfigure(self):
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def add_junit_property(self, name, value):
        try:
            from _pytest.junitxml import xml_key
        except ImportError:
            return
        xml = self.config.stash.get(xml_key, None)
        if xml is not None:
            xml.add_global_property(name, value)

    def pytest_report_header(self):
        library = self.about or self.config.getoption("--dlpack")
        return f"dlpack_conformance {__version__}: {library}, grades that fail: {', '.join(self.grades)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        clause = clause_of(item)
        if clause is None or self.in_process:
            return None
        hook, id, begun = item.ihook, id_of(item), time.time()
        location = ("dlpack_conformance", item.location[1], id)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=location)
        if id in self.skips:
            result = {"outcome": "skip", "came": self.skips[id].reason or str(self.skips[id])}
        else:
            result = self.worker.run(id)
        duration = time.time() - begun
        for when in "setup", "call", "teardown":
            report = pytest.TestReport(
                item.nodeid,
                location,
                dict.fromkeys(item.keywords, 1),
                "passed",
                None,
                when,
                duration=duration if when == "call" else 0,
                user_properties=properties(clause, result),
            )
            if when == "call":
                self.judge(report, id, clause, result)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=location)
        return True

    def pytest_runtest_setup(self, item):
        line = self.skips.get(id_of(item)) if clause_of(item) is not None else None
        if line is not None:  # in this process
            pytest.skip(line.reason or str(line))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """In this process: the failure of a clause keeps its traceback."""
        report = (yield).get_result()
        clause = clause_of(item)
        if clause is None:
            return
        from .server import result_of

        result = result_of(item, call, report)
        if result is not None:
            item.user_properties[:] = report.user_properties = properties(clause, result)
            self.judge(report, id_of(item), clause, result)

    # -- what a result means --

    def judge(self, report, id, clause, result):
        """Makes a report say whether the result fails the run."""
        came, line = result.get("came", ""), self.xfails.get(id)
        if result["outcome"] == "skip":
            report.outcome = "skipped"
            report.longrepr = (report.location[0], report.location[1], f"Skipped: {came}")
        elif result["outcome"] != "fail":
            if line is not None:
                what = "remove" if line.is_exact else "it names a test that passes: narrow or remove"
                report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {id} passes: {what} {line}"
        elif line is not None:
            report.outcome, report.wasxfail = "skipped", line.reason or came
        elif clause.grade not in self.grades:
            report.outcome, report.wasxfail = "skipped", f"grade {clause.grade}: {came}"
        else:
            report.outcome = "failed"
            report.longrepr = report.longrepr or "\n".join(
                [
                    f"{id} ({clause.grade})",
                    f"  came:     {came}",
                    f"  asks:     {clause.asks}",
                    f"  pitfall:  {clause.pitfall}",
                    f"  standard: {clause.standard}",
                ]
            )

    # -- the summary --

    def pytest_runtest_logreport(self, report):
        found = dict(report.user_properties)
        if report.when == "call" and found.get("dlpack_result") == "fail":
            self.counts[found["dlpack_grade"]] += 1

    def pytest_terminal_summary(self, terminalreporter):
        failed = ", ".join(f"{self.counts[grade]} {grade}" for grade in GRADES)
        library = self.about or self.config.getoption("--dlpack")
        terminalreporter.write_line(f"dlpack_conformance {__version__}: {library}: failures by grade: {failed}")

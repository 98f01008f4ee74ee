"""The pytest plugin: a library that takes up the conformance suite runs it so."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import dlpack_conformance
import pytest
from dlpack_conformance import expected, load, runner

HERE = Path(__file__).parent
PYTEST = [sys.executable, "-m", "pytest"]
ADAPTER = "adapters:Wrongarray"
ALL = ("--pyargs", "dlpack_conformance")
CONSUMER, PRODUCER = (
    f"dlpack_conformance.clauses.test_{name}" for name in ("consumer", "producer")
)  # fewer to collect
CRASHING = {"WRONGARRAY_MISTAKE": "NULL_deleter_is_called"}
K3 = [f"K3_a_NULL_deleter_is_not_called[{form}]" for form in ("versioned", "legacy")]
PASSING = "K4_the_capsule_is_renamed[legacy]"
FEW = "K3_a or K4_the_capsule"
needs_xdist = pytest.mark.skipif(importlib.util.find_spec("xdist") is None, reason="not on this machine: pytest-xdist")
two_workers = pytest.param(["-n", "2"], marks=needs_xdist)
SHOULD = "P2_a_consumer_of_version_1_gets_a_versioned_capsule[(1, 0)]"


@pytest.fixture
def run(tmp_path):
    """Runs pytest in an empty folder. Returns the exit status, what it printed, and the outcomes by id."""

    def run(*arguments, adapter=ADAPTER, tests=("--pyargs", CONSUMER), environment=None, command=PYTEST):
        command = [*command, "-p", "dlpack_conformance.plugin", "--junitxml=junit.xml", *tests]
        command += [*arguments, *([f"--dlpack={adapter}"] if adapter else [])]
        variables = runner.child_environment({"COLUMNS": "200", **(environment or {})})
        variables["PYTHONPATH"] += os.pathsep + str(HERE)
        ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300)
        run.xml = tmp_path / "junit.xml"
        outcomes = {}
        if run.xml.exists():
            for case in ElementTree.parse(run.xml).iter("testcase"):
                found = [child for child in case if child.tag in ("failure", "skipped", "error")]
                kind = found[0].get("type") if found else None
                what = "xfailed" if kind == "pytest.xfail" else found[0].tag if found else "passed"
                outcomes[case.get("name")] = (what, found[0].get("message") + (found[0].text or "") if found else "")
        return ended.returncode, ended.stdout + ended.stderr, outcomes

    return run


def all_passed(outcomes):
    return {what for what, _ in outcomes.values()} <= {"passed", "skipped"} and outcomes


def test_a_right_library_passes(run):
    status, told, outcomes = run("-k", FEW + " or P8", tests=ALL)
    assert status == 0, told
    assert all_passed(outcomes) and set(K3) < set(outcomes)


def test_a_crash_is_the_failure_of_one_test(run):
    status, told, outcomes = run("-k", FEW, environment=CRASHING)
    assert status == 1, told
    failed = {id: told for id, (what, told) in outcomes.items() if what == "failure"}
    assert sorted(failed) == sorted(K3)
    for text in failed.values():
        assert "the process was ended by" in text and "asks:" in text and "standard: dlpack.h 1.3" in text
    assert outcomes[PASSING] == ("passed", "")
    assert f"dlpack_conformance {dlpack_conformance.__version__}: wrongarray 0: failures by grade: 2 must" in told


@needs_xdist
def test_two_workers_find_the_same(run, tmp_path):
    (tmp_path / "xfails.txt").write_text(f"{K3[0]}  # ends the process\n{PASSING}\n")
    status, told, outcomes = run("-k", FEW, "-n", "2", "--xfails=xfails.txt", environment=CRASHING)
    assert status == 1, told
    failed = {id for id, (what, _) in outcomes.items() if what == "failure"}
    assert (failed, outcomes[K3[0]]) == ({K3[1], PASSING}, ("xfailed", "ends the process"))
    assert f"[XPASS(strict)] {PASSING} passes: remove line 2 of xfails.txt" in outcomes[PASSING][1]
    version = dlpack_conformance.__version__
    assert f"\ndlpack_conformance {version}: wrongarray 0, grades that fail: must\n" in told
    assert f"dlpack_conformance {version}: wrongarray 0: failures by grade: 2 must" in told


def test_the_version_of_the_suite_and_of_the_library_stand_in_each_report(run):
    _, told, _ = run("-k", "K3_a")
    version = dlpack_conformance.__version__
    assert f"\ndlpack_conformance {version}: adapters:Wrongarray, grades that fail: must\n" in told
    suite = ElementTree.parse(run.xml).find("testsuite/properties")
    properties = {entry.get("name"): entry.get("value") for entry in suite}
    assert properties == {"dlpack_conformance": version, "dlpack_library": "wrongarray 0"}
    case = ElementTree.parse(run.xml).find("testsuite/testcase/properties")
    assert [entry.get("name") for entry in case] == ["dlpack_clause", "dlpack_grade", "dlpack_result"]


def test_a_failure_of_another_grade_is_shown_and_fails_only_if_asked(run):
    mistake, producer = {"WRONGARRAY_MISTAKE": "always_legacy"}, ("--pyargs", PRODUCER)
    status, told, outcomes = run("-k", "P2_a_consumer_of_version_1", environment=mistake, tests=producer)
    assert (status, outcomes[SHOULD][0]) == (0, "xfailed"), told
    assert outcomes[SHOULD][1] == "grade should: a legacy capsule came"
    assert "failures by grade: 0 must, 2 should, 0 choice" in told
    arguments = ("-k", "P2_a_consumer_of_version_1", "--dlpack-grades=must,should")
    status, _, outcomes = run(*arguments, environment=mistake, tests=producer)
    assert (status, outcomes[SHOULD][0]) == (1, "failure")
    status, told, _ = run("--dlpack-grades=most")
    assert status == 4 and "--dlpack-grades: most is none of must, should, choice" in told


@pytest.mark.parametrize("how", [[], ["--dlpack-in-process"]], ids=["isolated", "in process"])
def test_a_test_of_the_xfails_file_must_fail(run, tmp_path, how):
    mistake = {"WRONGARRAY_MISTAKE": "byte_offset_is_ignored"}
    failing = "D1_byte_offset_is_added[16-versioned]"
    file = tmp_path / "xfails.txt"
    file.write_text(f"# wrongarray 0\n\n{failing}  # no offset yet\nD1_byte_offset_is_added[16-legacy]\n")
    arguments = ("-k", "D1_byte_offset_is_added and 16", "--xfails", "xfails.txt", *how)
    status, told, outcomes = run(*arguments, environment=mistake)
    assert status == 0, told
    assert outcomes[failing] == ("xfailed", "no offset yet")
    status, told, outcomes = run(*arguments)
    assert status == 1, told
    text = f"[XPASS(strict)] {failing} passes: remove line 3 of xfails.txt, {failing}"
    assert outcomes[failing][0] == "failure" and text in outcomes[failing][1]


def test_a_line_of_several_tests_must_not_name_one_that_passes(run, tmp_path):
    (tmp_path / "xfails.txt").write_text("K3_a\n")
    status, _, outcomes = run("-k", "K3_a", "--xfails=xfails.txt")
    assert status == 1
    assert "it names a test that passes: narrow or remove line 1 of xfails.txt, K3_a" in outcomes[K3[0]][1]


@pytest.mark.parametrize("how", [[], ["--dlpack-in-process"]], ids=["isolated", "in process"])
def test_a_test_of_the_skips_file_does_not_run(run, tmp_path, how):
    (tmp_path / "skips.txt").write_text("K3_a*  # ends the process\n")
    status, told, outcomes = run("-k", FEW, "--skips", "skips.txt", *how, environment=CRASHING)
    assert status == 0, told
    assert [outcomes[id][0] for id in K3] == ["skipped", "skipped"]
    assert "ends the process" in outcomes[K3[0]][1]


@pytest.mark.parametrize("how", [[], two_workers], ids=["alone", "two workers"])
def test_an_id_that_no_test_has_is_an_error(run, tmp_path, how):
    (tmp_path / "ids.txt").write_text("P8\nK3_a_NULL_deleter_is_called # gone\n")
    status, told, outcomes = run("--xfails=ids.txt", "--skips=ids.txt", *how)
    assert (status, outcomes) == (4, {})
    for option in "xfails", "skips":
        line = f"--dlpack-{option}: line 2 of ids.txt, K3_a_NULL_deleter_is_called: no test has this id"
        assert line in told


def test_a_file_that_is_not_there_is_an_error(run):
    status, told, _ = run("--skips", "missing.txt")
    assert status == 4 and "missing.txt" in told


def test_what_a_line_of_these_files_names():
    ids = ["A1_x", "A1_x_y[1]", "A1_x_y[2]", "A1_xy", "A10_x", "B1_[a*b]"]
    for text, named in {
        "A1_x": ["A1_x"],
        "A1_x_y": ["A1_x_y[1]", "A1_x_y[2]"],
        "A1_x_y[2]": ["A1_x_y[2]"],
        "dlpack_conformance::A1_x_y[2]": ["A1_x_y[2]"],
        "dlpack_conformance/clauses/test_a.py::test_A1_xy": ["A1_xy"],
        "A1": ["A1_x", "A1_x_y[1]", "A1_x_y[2]", "A1_xy"],
        "A1_": [],
        "A1_x*": ["A1_x", "A1_x_y[1]", "A1_x_y[2]", "A1_xy"],
        "*[2]": ["A1_x_y[2]"],
        "A": [],
    }.items():
        assert expected.matching(text, ids) == named, text


def test_ids_txt_has_the_ids_of_all_tests():
    """An id that changes or goes is one that stands in files of others: CHANGELOG.md names it."""
    ids = expected.all_ids()
    found = []
    for cuda in False, True:
        with runner.Worker(f"{HERE / 'adapters.py'}:Wrongarray", cuda=cuda) as worker:
            found += worker.wait_for_library()["tests"]
    if sys.maxsize < 2**33:
        pytest.skip("alignments of 64 bits: some tests have fewer parameters here")
    text = "\n".join(found)
    assert found == ids, f"{Path(expected.__file__).with_name('ids.txt')} must be:\n{text}"
    assert len(set(ids)) == len(ids)
    assert not [id for id in ids if "#" in id or "::" in id or not id.isascii() or id != id.strip()]


def test_without_a_library_nothing_runs(run):
    status, told, outcomes = run(adapter=None)
    assert (status, outcomes) == (4, {})
    assert "--dlpack names the library under test: numpy, torch" in told


@pytest.mark.parametrize("how", [[], two_workers], ids=["alone", "two workers"])
def test_a_library_that_is_not_there_is_an_error(run, how):
    status, told, _ = run(*how, adapter="no_such_library")
    assert status == 4 and "no_such_library: no file, no module" in told, told


def test_in_process_a_failure_has_its_traceback(run):
    mistake = {"WRONGARRAY_MISTAKE": "byte_offset_is_ignored"}
    status, told, outcomes = run("-k", "D1_byte_offset_is_added", "--dlpack-in-process", environment=mistake)
    assert status == 1
    assert "outcome = lib.exchange(" in outcomes["D1_byte_offset_is_added[16-legacy]"][1], told


FOREIGN = """
import sys

def pytest_addoption(parser):
    for name in "--xfails", "--skips", "--cuda":
        parser.addoption(name)

def pytest_sessionfinish(session):
    assert "_dlpack_conformance" not in sys.modules and "dlpack_conformance.kit" not in sys.modules
    print("nothing is imported")
"""


def test_other_projects_notice_nothing_of_the_plugin(run, tmp_path):
    (tmp_path / "conftest.py").write_text(FOREIGN)
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n")
    status, told, outcomes = run("-s", adapter=None, tests=[str(tmp_path)])
    assert (status, outcomes) == (0, {"test_other": ("passed", "")}), told
    assert "nothing is imported" in told


def test_the_sources_in_the_current_folder_are_not_the_library(run, tmp_path):
    """As `pytest`, in contrast to `python -m pytest`: a module is the installed one."""
    (tmp_path / "wrongarray.py").write_text("raise ImportError('these are the sources')")
    command = "import sys; del sys.path[0]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    status, told, outcomes = run("-k", FEW, command=[sys.executable, "-c", command])
    assert status == 0 and all_passed(outcomes), told
    status, told, _ = run("-k", FEW)
    assert status == 4 and "these are the sources" in told


def test_the_settings_of_the_users_project_do_not_matter(run, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_files = check_*.py\nfilterwarnings = error\n")
    (tmp_path / "conftest.py").write_text("import pytest\n@pytest.fixture(autouse=True)\ndef fails(): assert 0\n")
    status, told, outcomes = run("-k", FEW, tests=ALL)
    assert status == 0 and all_passed(outcomes), told


ADAPTERS = """
import adapters

class Outer:
    Inner = adapters.Wrongarray

instance = adapters.Wrongarray()

def make():
    return adapters.Wrongarray()
"""


@pytest.mark.parametrize("name", ["Outer.Inner", "instance", "make"])
@pytest.mark.parametrize("source", ["own_adapters", "own_adapters.py"])
def test_an_adapter_is_a_module_or_file_and_an_object(tmp_path, monkeypatch, source, name):
    (tmp_path / "own_adapters.py").write_text(ADAPTERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(HERE))
    assert load(f"{source}:{name}").name == "wrongarray"


def test_the_command_writes_an_xfails_file_that_the_plugin_takes(run, tmp_path):
    mistake = {"WRONGARRAY_MISTAKE": "byte_offset_is_ignored"}
    variables = runner.child_environment(mistake)
    variables["PYTHONPATH"] += os.pathsep + str(HERE)
    command = [sys.executable, "-m", "dlpack_conformance", ADAPTER, "--select=D1_byte", "--write-xfails=xfails.txt"]
    subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, timeout=300)
    lines = (tmp_path / "xfails.txt").read_text().splitlines()
    assert lines[0] == f"# wrongarray 0, dlpack_conformance {dlpack_conformance.__version__}"
    assert any(line.startswith("D1_byte_offset_is_added[16-legacy]  # the array has other bytes") for line in lines)
    status, told, outcomes = run("-k", "D1_byte", "--xfails", "xfails.txt", environment=mistake)
    assert status == 0, told
    assert {what for what, _ in outcomes.values()} == {"xfailed"}

"""The conformance suite passes a correct library and dlarray, and the test for a mistake fails with that mistake."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import dlpack_conformance
import pytest
import wrongarray
from dlpack_conformance import __main__, report, run, runner, standard

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import document  # noqa: E402
from mistakes import EXPORT_FIELDS, EXPORTS, IMPORT_FIELDS, IMPORTS, MEANT  # noqa: E402

ADAPTERS = HERE / "adapters.py"
WRAPPERS = HERE / "wrappers.py"


HELP = {
    "PYTHONPATH": os.pathsep.join([runner.child_environment()["PYTHONPATH"], str(HERE)])
}  # wrappers import adapters


def failures(result):
    return {name: test["came"] for name, test in result["tests"].items() if test["outcome"] == "fail"}


def test_a_correct_library_fails_no_test():
    """test_xfails.py has others."""
    result = run(f"{ADAPTERS}:Wrongarray")
    assert failures(result) == {}
    assert sum(test["outcome"] != "skip" for test in result["tests"].values()) >= 570


# ---- Libraries that are right and unlike others ----


def ran(result):
    return sum(test["outcome"] != "skip" for test in result["tests"].values())


def failed_clauses(result, grade="must"):
    return {name.partition("[")[0] for name in failures(result) if report.clause_of(name).grade == grade}


@pytest.mark.parametrize(
    "name, least",
    [("ModernOnly", 250), ("EnumDevice", 450), ("Of2021", 180), ("DLPackAlone", 400), ("Bytes", 280), ("Lazy", 400)],
)
def test_a_right_library_that_is_unlike_others_fails_no_must(name, least):
    result = run(f"{WRAPPERS}:{name}", environment=HELP)
    assert failed_clauses(result) == set(), failures(result)
    assert ran(result) >= least


def test_the_minimal_example_of_uint8_alone_fails_no_must():
    result = run(f"{WRAPPERS}:Image", environment=HELP)
    assert failed_clauses(result) == set(), failures(result)
    assert ran(result) >= 125


def test_a_consumer_that_refuses_everything_fails():
    result = run(f"{WRAPPERS}:Refusing", environment=HELP)
    assert failed_clauses(result) == {"C2_a_plain_tensor_is_taken"}
    assert "not supported" in failures(result)["C2_a_plain_tensor_is_taken"]


def test_a_producer_that_refuses_everything_fails():
    assert "P2_a_plain_array_is_exported" in failed_clauses(run(f"{WRAPPERS}:RefusingProducer", ["P"], HELP))


def test_an_unknown_keyword_fails_one_clause():
    result = run(f"{WRAPPERS}:Of2021ThatClaimsMore", ["P", "D", "K"], HELP)
    assert failed_clauses(result) == {"P1_each_keyword_may_be_given_as_None"}
    assert set(failures(result)) & {"P1_each_keyword_may_be_given_as_None[stream]"} == set()


@pytest.fixture(scope="module")
def caught(tmp_path_factory):
    """The failed tests of each mistake. One process collects the suite and forks a process for each mistake."""
    if not hasattr(os, "fork"):
        pytest.skip("a process for each mistake: no fork here")
    path = tmp_path_factory.mktemp("mistakes") / "found"
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(runner.CLAUSES),
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(runner.CLAUSES),
    ]
    command += [
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "dlpack_conformance.plugin",
    ]
    command += ["-p", "mistakes", "--dlpack", f"{ADAPTERS}:Wrongarray", "--dlpack-in-process", "--dlpack-grades", "all"]
    command += ["--mistakes", str(path)]
    environment = runner.child_environment()
    environment["PYTHONPATH"] += os.pathsep + str(HERE)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert path.exists(), ended.stdout + ended.stderr
    return {line["mistake"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_each_mistake_has_a_test():
    assert set(wrongarray.MISTAKES) <= set(MEANT)
    assert set(EXPORTS) | {"allocated"} == set(wrongarray.EXPORT_PATHS)
    assert set(EXPORT_FIELDS) == set(wrongarray.EXPORT_FIELDS)
    assert (set(IMPORTS), set(IMPORT_FIELDS)) == (set(wrongarray.IMPORT_PATHS), set(wrongarray.IMPORT_FIELDS))


@pytest.mark.parametrize("mistake", MEANT)
def test_each_mistake_is_caught_by_its_test(mistake, caught):
    if sys.maxsize < 2**33 and mistake.endswith(("short_offset", "short_strides", "strides_have_32_bits")):
        pytest.skip("addresses of 64 bits: numbers of 32 bits are enough here")
    assert caught[mistake]["ran"] > 0, f"no test is named {MEANT[mistake]}"
    assert caught[mistake]["failed"]


def test_a_crash_fails_its_test_and_the_run_goes_on():
    result = run(f"{ADAPTERS}:Wrongarray", ["K3_a", "K4_the_capsule"], {"WRONGARRAY_MISTAKE": "NULL_deleter_is_called"})
    assert set(failures(result)) == {f"K3_a_NULL_deleter_is_not_called[{form}]" for form in ("versioned", "legacy")}
    crash = "exception 0xC0000005" if os.name == "nt" else "SIGSEGV"
    assert {came.partition(":")[0] for came in failures(result).values()} == {f"the process was ended by {crash}"}
    assert result["tests"]["K4_the_capsule_is_renamed[legacy]"]["outcome"] == "pass"


HANGING = """
import time
from dlpack_conformance import Adapter

class Hanging(Adapter):
    name = "hanging"
    hangs = False

    def from_dlpack(self, x, **keywords):
        capsule = x.__dlpack__()
        if x.fields.get("deleter") is False:
            time.sleep(1000)
        return capsule
    def describe(self, a): return None, None, None, None, None
    def values(self, a): return b""
"""


def test_a_test_that_does_not_end_fails_and_the_run_goes_on(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text(HANGING)
    result = run(str(adapter), ["K3_a_NULL_deleter_is_not_called[legacy", "C4_no_stream"], limit=2)
    assert failures(result)["K3_a_NULL_deleter_is_not_called[legacy]"].startswith(
        "the process did not go on within 2 s"
    )
    assert result["tests"]["C4_no_stream_is_passed_for_memory_of_the_CPU"]["outcome"] == "pass"


def test_a_library_must_follow_the_choices_that_its_adapter_declares(tmp_path):
    adapter = tmp_path / "adapter.py"
    adapter.write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "import adapters\n"
        "class Held(adapters.Wrongarray):\n"
        "    name = 'held'\n"
        "    choices = {'negative strides': 'refused', 'byte_offset': 'added'}\n"
    )
    result = run(f"{adapter}:Held", ["D5_negative_strides[vector", "D1_byte_offset_is_added", "P6_on_the_CPU"])
    assert set(failures(result).values()) == {"negative strides: taken; the adapter declares 'refused'"}
    assert result["tests"]["D1_byte_offset_is_added[16-legacy]"]["outcome"] == "pass"
    assert result["tests"]["P6_on_the_CPU_a_stream_is_refused[1]"]["outcome"] == "choice"


# ---- Reports ----


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Runs the command with all reports."""
    folder = tmp_path_factory.mktemp("reports")
    mistake = {"WRONGARRAY_MISTAKE": "byte_offset_is_ignored"}
    command = [sys.executable, "-m", "dlpack_conformance", f"{ADAPTERS}:Wrongarray"]
    command += ["--select", "D1_byte_offset_is_added[16", "--select", "D3"]
    command += [f"--{name}={folder}/{name}" for name in ("json", "junit", "markdown", "html")]
    ended = subprocess.run(command, env=runner.child_environment(mistake), capture_output=True, text=True, timeout=100)
    return folder, ended


def test_the_command_prints_clause_outcome_pitfall_and_standard(results):
    folder, ended = results
    assert ended.returncode == 1, ended.stderr
    assert f", dlpack_conformance {dlpack_conformance.__version__}, " in ended.stdout.splitlines()[0]
    begin = ended.stdout.index("FAIL D1_byte_offset_is_added (must)")
    told = ended.stdout[begin : ended.stdout.index("\n\n", begin)].splitlines()
    assert [line.split(":")[0].strip() for line in told[1:]] == ["asks", "came", "pitfall", "standard"]
    assert "the array has the bytes" in told[2] and "[16-versioned, 16-legacy]" in told[2]
    assert told[4].strip() == (
        'standard: dlpack.h 1.3, DLTensor, since 0.8: "The offset in bytes to the beginning pointer to data"'
    )


def test_the_exit_status_is_0_if_nothing_fails_and_the_results_can_be_read_again(tmp_path):
    path = tmp_path / "{}.json"
    assert not __main__.main([f"{ADAPTERS}:Wrongarray", "--select", "P8", "--strict", "--json", str(path)])
    page = tmp_path / "page.html"
    assert not __main__.main(["--results", str(tmp_path / "wrongarray.json"), "--html", str(page)])
    assert "wrongarray" in page.read_text()


def test_junit_xml_counts_what_failed(results):
    folder, _ = results
    found = json.loads((folder / "json").read_text())
    suite = ElementTree.parse(folder / "junit").getroot()[0]
    number = report.counts(found)
    assert int(suite.get("tests")) == len(found["tests"]) == len(suite.findall("testcase"))
    assert int(suite.get("failures")) == number["fail"] == len(suite.findall("*/failure")) > 0
    assert "standard: dlpack.h 1.3, DLTensor, since" in suite.find("*/failure").text
    assert suite.find("properties/property[@name='dlpack_conformance']").get("value") == dlpack_conformance.__version__


def test_markdown_has_a_row_for_each_library(results):
    folder, _ = results
    lines = (folder / "markdown").read_text().splitlines()
    found = json.loads((folder / "json").read_text())
    assert lines[2].startswith(f"| wrongarray | 0 | {report.counts(found)['pass']} | 2 | 0 | 0 |")


def test_the_page_shows_each_clause_with_the_reason_of_its_failure(results):
    folder, _ = results
    page = (folder / "html").read_text()
    assert page.count("<tr data-grade=") == len(report.rows(json.loads((folder / "json").read_text())))
    assert 'class="fail must"' in page and "data + byte_offset is the first element" in page


def test_every_clause_has_a_grade_a_standard_and_a_pitfall():
    assert len(report.clauses()) > 150 and len(report.all_clauses()) > len(report.clauses()) + 20
    for name, clause in report.all_clauses().items():
        assert name.startswith(f"{clause.id}_")
        assert clause.grade in report.GRADES and clause.asks.endswith(".") and clause.pitfall, name


def test_each_grade_rests_on_a_sentence_of_one_line_and_is_a_choice_without_one():
    for name, clause in report.all_clauses().items():
        if clause.sentence is standard.OPEN:
            assert clause.grade == "choice", name
        else:
            assert clause.sentence.document and clause.sentence.section and clause.sentence.since, name
            assert 0 < len(clause.sentence.words) <= 90 and "\n" not in clause.sentence.words, name
        if clause.sentence.is_array_api:
            assert clause.sentence.since in standard.VERSIONS, name


def test_the_sentences_of_dlpack_h_stand_in_it():
    package = importlib.util.find_spec("tvm_ffi")
    if package is None:
        pytest.skip("apache-tvm-ffi: has dlpack.h 1.3")
    header = Path(package.origin).parent / "include" / "dlpack" / "dlpack.h"
    text = re.sub(r"[\s*`]+", " ", header.read_text(encoding="utf-8"))
    for sentence in vars(standard).values():
        if isinstance(sentence, standard.Sentence) and sentence.document == "dlpack.h 1.3":
            for words in sentence.words.split("[...]"):
                assert re.sub(r"[\s*`]+", " ", words).strip() in text, words


def test_the_version_is_that_of_the_package():
    text = Path(dlpack_conformance.__file__).parents[1].joinpath("pyproject.toml").read_text()
    assert f'version = "{dlpack_conformance.__version__}"' in text


def test_failures_md_has_all_failures_of_grade_must_and_no_others():
    root = HERE.parents[1]
    text = (root / "docs" / "failures.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+) [^\n]*\n(.*?)(?=^## |\Z)", text, re.S | re.M))
    names = {"PyTorch": "torch", "apache-tvm-ffi": "tvm_ffi"}
    written = {
        names.get(name, name.lower()): set(
            re.findall(r"\b[PDKCXG][1-9]\b", " ".join(re.findall(r"\*\*(.*?)\*\*", body)))
        )
        for name, body in sections.items()
    }
    found = {}
    for versions in document.newest(root / "conformance" / "results").values():
        result = versions[-1]
        clauses = {report.clause_of(name).id for name in failed_clauses(result)}
        if clauses:
            found[result["library"]] = clauses
    assert written == found

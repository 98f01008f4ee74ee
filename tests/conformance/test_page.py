"""The page of results: its matrix says what was measured, its totals count clauses, and its links lead somewhere."""

import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from dlpack_conformance import page, pairs, report, runner

HERE = Path(__file__).parent
CONFORMANCE = HERE.parents[1] / "conformance"
sys.path.insert(0, str(HERE))
import document  # noqa: E402

MEASURED = json.loads((CONFORMANCE / "pairs.json").read_text(encoding="utf-8"))


class Parsed(HTMLParser):
    """Ids, links, and the rows of each table with an id."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.elsewhere, self.tables = Counter(), [], [], {}
        self.table = self.cell = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(filter(None, [attributes.get("id")]))
        link = attributes.get("href", "#")
        self.elsewhere += [link] * (not link.startswith("#")) + [
            attributes[k] for k in ("src", "action") if k in attributes
        ]
        if tag == "a":
            self.links.append(link[1:])
            if self.cell is not None:
                self.cell.update(link=link[1:], title=attributes.get("title"))
        elif tag == "table":
            self.table = self.tables.setdefault(attributes.get("id"), [])
        elif tag == "tr":
            self.table.append([])
        elif tag in ("td", "th"):
            self.cell = {"tag": tag, "text": "", "class": attributes.get("class", "")}
            self.table[-1].append(self.cell)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell["text"] += data


@pytest.fixture(scope="module")
def text():
    return document.page(CONFORMANCE)


@pytest.fixture(scope="module")
def parsed(text):
    return Parsed(text)


@pytest.fixture(scope="module")
def results():
    return [result for versions in document.newest(CONFORMANCE / "results").values() for result in versions]


def test_each_link_leads_to_one_reason(parsed):
    assert len(parsed.links) > 5000
    assert set(parsed.links) - {"!"} <= set(parsed.ids)
    assert [id for id, count in parsed.ids.items() if count > 1] == []


def test_each_cell_has_a_link(parsed):
    for table in ("matrix", "clauses"):
        rows = [row for row in parsed.tables[table][1:] if not row[0]["text"].startswith("Clauses: ")]
        cells = [cell for row in rows for cell in row if cell["tag"] == "td"]
        assert len(cells) > 300
        assert [cell for cell in cells if "link" not in cell] == []


def test_the_page_asks_for_nothing_from_elsewhere(text, parsed):
    assert parsed.elsewhere == []
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|<link|<iframe|<img", text)


def test_the_filters_name_what_the_page_has(text):
    assert set(re.findall(r"form\.(\w+)\.", page.SCRIPT)) <= set(re.findall(r'name="(\w+)"', page.FILTERS)) | {"reset"}
    for id in re.findall(r'getElementById\("(\w+)"\)', page.SCRIPT):
        assert f'id="{id}"' in text
    for attribute in ("data-name", "data-older", "data-l", "data-p", "data-c", "data-grade"):
        assert f" {attribute}=" in text and (attribute in page.SCRIPT or f"dataset.{attribute[5:]}" in page.SCRIPT)


def test_all_libraries_with_results_are_measured_or_have_a_reason(results):
    labels = {page.label(result) for result in results}
    assert set(MEASURED["libraries"]) == labels
    told = [(pair["producer"], pair["consumer"]) for pair in MEASURED["pairs"]]
    assert len(told) == len(set(told)) and set(told) == {(a, b) for a in labels for b in labels}
    assert all(pair.get("outcomes") or pair.get("unmeasured") for pair in MEASURED["pairs"])
    assert sum("outcomes" in pair for pair in MEASURED["pairs"]) > 0.7 * len(told)


def test_each_cell_of_the_matrix_says_what_was_measured(parsed):
    outcomes = {(pair["producer"], pair["consumer"]): pair.get("outcomes") for pair in MEASURED["pairs"]}
    head, *rows = parsed.tables["matrix"]
    consumers = [cell["text"] for cell in head[1:]]
    assert len(consumers) > 20 and len(rows) > 20
    for row in rows:
        producer = row[0]["text"]
        assert len(row) == len(head)
        for consumer, cell in zip(consumers, row[1:]):
            assert cell["title"].startswith(f"{producer} to {consumer}: ")
            measured = outcomes[producer, consumer]
            assert ("guess" in cell["class"]) == (measured is None)
            if measured:
                letters = page.losses(measured)
                assert cell["text"] == {"": "✓", "x": "✗", "-": "–"}.get(letters, letters)


def works(**steps):
    found = {"plain": "shared", "copy=True": "copied", "copy=False": "shared", **steps}
    grouped = {}
    for step, outcome in found.items():
        grouped.setdefault(outcome, []).append(step.replace("_", " "))
    return grouped


@pytest.mark.parametrize(
    "outcomes, letters",
    [
        (works(), ""),
        (works(steps="none: no such view", dtype_bool="none: no such dtype", writable="shared: writable"), ""),
        ({"none: the library does not produce": ["plain"]}, "-"),
        ({"refused: TypeError": ["plain"]}, "x"),
        ({"ended: SIGSEGV": ["plain"]}, "x"),
        (works(**{"read-only": "shared: writable"}), "r"),
        (works(**{"read-only": "refused: BufferError: no flags"}), "r"),
        (works(**{"read-only": "shared: read-only"}), ""),
        (works(**{"read-only": "copied: writable"}), ""),
        (works(writable="shared: read-only"), "w"),
        (works(transposed="refused: strides"), "s"),
        (works(slice="copied"), "s"),
        (works(dtype_bool="refused: bool"), "d"),
        (works(dtype_float64="wrong: float64 becomes float32"), "d!"),
        (works(backwards="ended: SIGABRT"), "s!"),
        (works(backwards="wrong: other values"), "s!"),
        (works(plain="copied", slice="copied"), "c"),
        (works(**{"copy=True": "shared"}), "c"),
        (works(**{"copy=True": "refused: TypeError"}), "c"),
        (works(**{"copy=False": "copied"}), "c"),
        (works(plain="taken", **{"copy=True": "taken", "copy=False": "taken"}), ""),
    ],
)
def test_what_is_lost(outcomes, letters):
    assert page.losses(outcomes) == letters


def test_what_is_expected_of_two_libraries_agrees_with_what_was_measured(results):
    """Of the pairs that were measured, the clauses of each side tell the same in most cases whether it works."""
    by_label = {page.label(result): result for result in results}
    same = []
    for pair in MEASURED["pairs"]:
        if "outcomes" in pair:
            letters, _ = page.expected(by_label[pair["producer"]], by_label[pair["consumer"]])
            same.append((letters in "-x") == (page.losses(pair["outcomes"]) in "-x") or letters == "")
    assert sum(same) / len(same) > 0.9


ADAPTERS = HERE / "adapters.py"


@pytest.mark.parametrize(
    "mistake, changes",
    [
        (None, {}),
        ("strides_are_ignored", {"transposed": "wrong: other values", "backwards": "wrong: other values"}),
        ("read_only_flag_is_lost", {"read-only": "shared: writable"}),
        ("all_imports_are_read_only", {"writable": "shared: read-only"}),
        ("copy_True_is_not_passed", {"copy=True": "shared"}),
        ("imports_are_copied", {"copy=False": "copied"}),
        ("float16_is_imported_as_bfloat16", {"dtype float16": "wrong: float16 becomes bfloat16"}),
    ],
)
def test_what_two_libraries_exchange_is_measured(mistake, changes):
    wanted = {
        "plain": "shared",
        "read-only": "shared: read-only",
        "writable": "shared: writable",
        "copy=True": "copied",
        "copy=False": "shared",
        "backwards": "shared",
        "dtype bool": "taken",
        **changes,
    }
    command = [sys.executable, "-m", "dlpack_conformance.pairs", f"{ADAPTERS}:Dlarray", f"{ADAPTERS}:Wrongarray"]
    environment = runner.child_environment({"WRONGARRAY_MISTAKE": mistake} if mistake else {})
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    came = {step: outcome.strip() for step, outcome in re.findall(r"^(.+?): {2,}(.+)$", ended.stdout, re.M)}
    assert {step: came[step] for step in wanted} == wanted, ended.stdout + ended.stderr


def test_a_pair_without_one_side_is_told():
    class Nothing(pairs.load(f"{ADAPTERS}:Dlarray").__class__):
        make = None

    exchange = pairs.Exchange(Nothing(), pairs.load(f"{ADAPTERS}:Wrongarray"))
    assert [exchange.run(step) for step in exchange.steps()] == ["none: the library does not produce"]


# ---- Clauses ----


def test_totals_count_each_clause_once(results, parsed):
    for result in results:
        assert sum(page.totals(result).values()) == len(report.clauses())
        must = {
            name.partition("[")[0]
            for name, test in result["tests"].items()
            if test["outcome"] == "fail" and report.clause_of(name).grade == "must"
        }
        assert page.totals(result)["must"] == len(must), page.label(result)
    rows = {row[0]["text"]: [cell["text"] for cell in row[1:]] for row in parsed.tables["clauses"][1:]}
    names = [cell["text"] for cell in parsed.tables["clauses"][0][1:]]
    shown = dict(zip(names, map(int, rows["Clauses: not kept, of grade must"])))
    assert shown == {page.label(result): page.totals(result)["must"] for result in results}


@pytest.mark.parametrize(
    "reason, outcome",
    [
        ("the library does not produce", "none"),
        ("the library has no such view: slice", "none"),
        ("the library exports legacy capsules only", "none"),
        ("the library makes no array of bool and shape (6,): TypeError", "none"),
        ("from 2023.12 of the array API standard on; the library claims DLPack alone", "none"),
        ("byte_offset is not added, which another clause tests", "untested"),
        ("the library takes no plain tensor on the CPU: BufferError", "untested"),
        ("the library exports no plain array: BufferError", "untested"),
        ("the adapter has no repeat(array, count)", "untested"),
        ("the memory of a process is known on Linux only", "untested"),
        ("the library does not tell its pointer", "untested"),
    ],
)
def test_what_could_not_be_tested_is_apart_from_what_does_not_apply(reason, outcome):
    assert page.verdict([("", {"outcome": "skip", "came": reason})]) == outcome
    assert page.verdict([("", {"outcome": "skip", "came": reason}), ("", {"outcome": "pass"})]) == "pass"


def test_a_report_for_a_library_is_shown_with_the_clause(text):
    found = document.reproductions(CONFORMANCE.parent / "docs" / "upstream")
    assert len(found) > 15
    assert found["paddle", "D1_byte_offset_is_added"] in text.replace("&quot;", '"').replace("&#x27;", "'")


def test_the_document_is_what_the_command_writes():
    drawn, _ = document.draw(document.newest(CONFORMANCE / "results"))
    assert (CONFORMANCE.parent / "docs" / "conformance.md").read_text(encoding="utf-8") == drawn

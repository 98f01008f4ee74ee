"""Writes docs/conformance.md from the results in conformance/results: `document.py RESULTS DOCUMENT PAGE`.

Writes the page of all results too. Fails if this changed the document.
"""

import json
import re
import sys
from pathlib import Path

from dlpack_conformance import page as draw_page
from dlpack_conformance import report

TEXT = """\
# Which clauses of DLPack the libraries keep

Made by `make conformance` from `conformance/results`, on the CPU. [conformance/README.md](../conformance/README.md)
explains the suite, its grades, and how to run it on another library. The command writes a page too,
`build/conformance.html`: first what each library does with the arrays of each other, which
`make conformance-pairs` measures, and then the clauses, where each cell leads to its reason.
[failures.md](failures.md) reproduces the failures of grade must in a few lines each, and
[upstream/](upstream/README.md) has reports for the libraries. Each library has its newest version here that runs on
CPython 3.11 and without a GPU; what older versions did is told at the end.

The numbers are of clauses. One clause may have many tests.

{table}
Each row of the table below is a clause.

| cell | |
|---|---|
| ✓ | all tests of the clause passed |
| **✗** | a test failed, against dlpack.h or the array API standard (grade must) |
| ✗ | a test failed, of grade should or choice |
| ○ | the standard leaves a choice; the page shows which choice the library takes |
| ? | it could not be tested |
| – | the clause does not apply: the library has no such side, array or capsule |

"""


def escaped(text):
    """Markdown of a text: two underscores would begin bold letters."""
    return text.replace("__", r"\_\_")


def sign(base, tests):
    outcome = draw_page.verdict(tests)
    if outcome == "fail":
        return "**✗**" if report.clauses()[base].grade == "must" else "✗"
    return draw_page.OUTCOMES[outcome][0]


HEADS = ["kept", "fail: must", "fail: should", "fail: choice", "choice", "not tested", "does not apply"]
COUNTED = ["pass", "must", "should", "crash", "choice", "untested", "none"]


def table(results):
    """The number of clauses by outcome, a row for each library."""
    lines = [f"| library | version | {' | '.join(HEADS)} |", "|---|---|" + "---|" * len(HEADS)]
    for result in results:
        counted = draw_page.totals(result)
        numbers = " | ".join(str(counted[name]) for name in COUNTED)
        lines.append(f"| {result['library']} | {result['version']} | {numbers} |")
    return "\n".join(lines) + "\n"


def newest(folder):
    """The results of each library, sorted by version."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(result["library"], []).append(result)
    for results in found.values():
        results.sort(key=lambda result: [int(part) if part.isdigit() else 0 for part in result["version"].split(".")])
    return found


def changes(before, after):
    """The clauses of which the outcome differs between two versions of a library."""
    old, new = report.rows(before), report.rows(after)
    for base in new:
        was, is_ = sign(base, old.get(base)), sign(base, new[base])
        if was != is_:
            yield f"- `{base}`: {was} → {is_}"


def draw(found):
    results = [versions[-1] for versions in found.values()]
    grouped = [report.rows(result) for result in results]
    lines = [TEXT.format(table=table(results))]
    for letter, (name, _) in report.GROUPS.items():
        lines += [f"## {name}", "", "| clause | grade | " + " | ".join(r["library"] for r in results) + " |"]
        lines.append("|---|---|" + "---|" * len(results))
        for base, clause in sorted(report.clauses().items(), key=lambda item: int(item[1].id[1:])):
            if clause.id[0] == letter:
                id, text = report.title(base)
                cells = " | ".join(sign(base, group.get(base)) for group in grouped)
                lines.append(f"| {id} {escaped(text)} | {clause.grade} | {cells} |")
        lines.append("")
    lines += ["## Failures, and the answers of the libraries", ""]
    for result, group in zip(results, grouped):
        failed = {base: tests for base, tests in group.items() if report.verdict(tests) == "fail"}
        if not failed:
            continue
        lines += [f"### {result['library']} {result['version']}", ""]
        for grade in report.GRADES:
            for base, tests in failed.items():
                clause = report.clauses()[base]
                if clause.grade == grade:
                    lines += [f"- `{base}` ({grade}). {escaped(f'{clause.asks} _{clause.standard}_')}"]
                    for came, parameters in report.reasons(tests, "fail")[:3]:
                        lines.append(f"  - `{came.replace('`', chr(39))[:160]}`{report.named(parameters)}")
        lines.append("")
    for versions in found.values():
        for before, after in zip(versions, versions[1:]):
            lines += [
                f"## {after['library']}: from {before['version']} to {after['version']}",
                "",
                *changes(before, after),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n", results


SPECS = {
    name: f"tests/conformance/adapters.py:{kind}"
    for name, kind in {
        "dlarray": "Dlarray",
        "by_hand": "ByHand",
        "nanobind": "Nanobind",
        "pybind11 with dlpack_py.h": "Pybind11",
    }.items()
}
PACKAGES = {  # the library of a package, as results name it
    "apache-tvm-ffi": "tvm_ffi",
    "cuda-core": "cuda.core",
    "kornia-rs": "kornia_rs",
    "paddlepaddle": "paddle",
    "tensorflow-cpu": "tensorflow",
    "warp-lang": "warp",
}


def reproductions(folder):
    """The code of the reports in docs/upstream, by library and clause."""
    found = {}
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        facts = dict(re.findall(r"^- (\w+): (.+)$", text, re.M))
        if "clause" in facts:
            library = PACKAGES.get(facts["package"], facts["package"])
            found[library, facts["clause"]] = re.search(r"^```python\n(.*?)^```$", text, re.M | re.S)[1]
    return found


def page(folder):
    """The page of all results."""
    results = [result for versions in newest(folder / "results").values() for result in versions]
    results.sort(key=lambda result: result["library"].lower())  # which keeps the order of versions
    pairs = json.loads((folder / "pairs.json").read_text(encoding="utf-8"))
    return draw_page.html(results, pairs, SPECS, reproductions(folder.parent / "docs" / "upstream"))


def main(folder, document, path):
    drawn, results = draw(newest(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(folder.parent), encoding="utf-8")
    print(f"{path}: {len(results)} libraries")
    if document.exists() and document.read_text(encoding="utf-8") == drawn:
        return 0
    document.write_text(drawn, encoding="utf-8")
    print(f"{document} said something else, and is rewritten: look at the difference, and commit it")
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

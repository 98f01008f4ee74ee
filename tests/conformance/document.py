"""Writes docs/conformance.md from the results in conformance/results: `document.py RESULTS DOCUMENT PAGE`.

Writes the page of all results too. Fails if this changed the document.
"""

import json
import sys
from pathlib import Path

from dlpack_conformance import report

TEXT = """\
# Which clauses of DLPack the libraries keep

Made by `make conformance` from `conformance/results`, on the CPU. [conformance/README.md](../conformance/README.md)
explains the suite, its grades, and how to run it on another library. The command writes the same results as one page,
`build/conformance.html`, where each cell shows its reason. [failures.md](failures.md) reproduces the failures of grade
must in a few lines each.

{table}
Each row of the table below is a clause, which one or more tests test.

| cell | |
|---|---|
| ✓ | all tests of the clause passed |
| **✗** | a test failed, against dlpack.h or the array API standard (grade must) |
| ✗ | a test failed, of grade should or choice |
| ○ | the standard leaves a choice; the page shows which choice the library takes |
| – | the clause does not apply: the library has no such side, array or capsule |

"""

SIGNS = {"pass": "✓", "choice": "○", "skip": "–"}


def sign(base, tests):
    if not tests:
        return "–"
    outcome = report.verdict(tests)
    if outcome == "fail":
        return "**✗**" if report.clauses()[base].grade == "must" else "✗"
    return SIGNS[outcome]


def newest(folder):
    """The results of each library, sorted by version."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
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
    lines = [TEXT.format(table=report.markdown(results))]
    for letter, (name, _) in report.GROUPS.items():
        lines += [f"## {name}", "", "| clause | grade | " + " | ".join(r["library"] for r in results) + " |"]
        lines.append("|---|---|" + "---|" * len(results))
        for base, clause in sorted(report.clauses().items(), key=lambda item: int(item[1].id[1:])):
            if clause.id[0] == letter:
                id, text = report.title(base)
                cells = " | ".join(sign(base, group.get(base)) for group in grouped)
                lines.append(f"| {id} {text} | {clause.grade} | {cells} |")
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
                    lines += [f"- `{base}` ({grade}). {clause.asks} _{clause.standard}_"]
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


def main(folder, document, page):
    drawn, results = draw(newest(folder))
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(report.html(results), encoding="utf-8")
    print(f"{page}: {len(results)} libraries")
    if document.exists() and document.read_text(encoding="utf-8") == drawn:
        return 0
    document.write_text(drawn, encoding="utf-8")
    print(f"{document} said something else, and is rewritten: look at the difference, and commit it")
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))

"""Which lines and branches of the headers do the tests run?

    coverage.py BUILD      reads what a build with --coverage has noted in this folder

Prints a row for each header, and the lines of which no test runs a branch, unless uncovered.txt lists them with a
reason. A listed line that is covered is printed as well, unless its reason begins with "By chance", or with "With HIP",
whose headers a machine may lack. The exit status is 1 if a line is not listed, or is listed in vain.

A branch is one outcome of one condition, as GCC makes them: `a || b` has four. A function of a header that several
modules contain counts as covered where one of them runs it. Where macros or options give a line several forms, with
different numbers of branches, the form counts that misses the fewest.
"""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import reasons  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
LIST = Path(__file__).with_name("uncovered.txt")


def measure(build):
    """Of each header: [(line, function, how often it was run, how often each of its branches was taken)]."""
    notes = [str(path.resolve()) for path in Path(build).rglob("*.gcda")]
    command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", *notes]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    forms = defaultdict(Counter)  # of a line with a number of branches
    for module in map(json.loads, said.splitlines()):
        for file in module["files"]:
            path = Path(module["current_working_directory"], file["file"]).resolve()
            for line in file["lines"] if path.parent == ROOT and path.match("dlpack_*.h") else ():
                counts = [branch["count"] for branch in line["branches"] if not branch["throw"]]
                form = path.name, line["line_number"], line.get("function_name", ""), len(counts)
                forms[form].update(dict(enumerate([line["count"], *counts], -1)))
    headers = defaultdict(dict)
    for (name, number, function, n), counts in forms.items():
        run, taken = counts[-1], [counts[i] for i in range(n)]
        other = headers[name].get((number, function), (0, ()))
        best = max([(run, taken), other], key=lambda form: (form[0] > 0, -form[1].count(0), len(form[1])))
        headers[name][number, function] = (run + other[0], best[1])
    return {name: [(*where, *counts) for where, counts in sorted(lines.items())] for name, lines in headers.items()}


def main(build):
    explained, found = reasons.read(LIST), Counter()
    rows, missing = [], []
    for name, lines in sorted(measure(build).items()):
        text = (ROOT / name).read_text().splitlines()
        counts = Counter()
        for number, function, run, taken in lines:
            missed = taken.count(0)
            counts.update(lines=1, run=run > 0, branches=len(taken), taken=len(taken) - missed)
            if run and not missed:
                continue
            source = re.sub(r"\s*/\*.*?\*/", "", text[number - 1]).strip()
            key = f"{name} {function}: {source}"
            found[key] += 1
            if key not in explained:
                what = f"{missed} of {len(taken)} branches not taken" if run else "not run"
                missing.append(f"line {number}, {what}:\n  {key}")
        rows.append((name, counts))
    print(f"{'':32}{'lines':>8}{'run':>8}{'':>7}{'branches':>10}{'taken':>8}")
    total = sum((counts for _, counts in rows), Counter())
    for name, c in [*rows, ("all", total)]:
        lines, branches = 100 * c["run"] / c["lines"], 100 * c["taken"] / max(c["branches"], 1)
        print(f"{name:32}{c['lines']:8}{c['run']:8}{lines:6.1f}%{c['branches']:10}{c['taken']:8}{branches:6.1f}%")
    perhaps = ("By chance", "With HIP")
    vain = [key for key, reason in explained.items() if key not in found and not reason.startswith(perhaps)]
    print(f"\n{sum(found.values())} lines have a branch that no test takes; uncovered.txt explains {len(explained)}")
    if missing:
        print(f"\nnot explained, {len(missing)}:", *missing, sep="\n")
    if vain:
        print("\nexplained, but covered or gone:", *vain, sep="\n  ")
    return len(missing) + len(vain)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)

"""Which lines and branches of the headers do the tests run?

    coverage.py BUILD      reads what a build with --coverage has noted in this folder

Prints a row for each header, and the lines of which no test runs a branch, unless uncovered.txt lists them with a
reason. A listed line that is covered is printed as well. The exit status is 1 if a line is not listed, or is listed in
vain.

A branch is one outcome of one condition, as GCC makes them: `a || b` has four. A function of a header that several
modules contain counts as covered where one of them runs it.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LIST = Path(__file__).with_name("uncovered.txt")


def measure(build):
    """Of each header: the lines of functions, as gcovr describes them."""
    result = Path(build, "coverage.json")
    merge = ["--merge-mode-functions=merge-use-line-min", "--exclude-throw-branches"]
    command = [sys.executable, "-m", "gcovr", "--root", ROOT, "--filter", r"dlpack_.*\.h$", *merge, "--json", result]
    subprocess.run([*command, "-j", "2", build], check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    return {file["file"]: file["lines"] for file in json.loads(result.read_text())["files"]}


def listed():
    """uncovered.txt: a reason, then the lines that it explains, each with two spaces in front."""
    reason, lines = None, {}
    for line in LIST.read_text().splitlines():
        if line.startswith("  "):
            lines[line.strip()] = reason
        elif line and not line.startswith("#"):
            reason = line
    return lines


def main(build):
    reasons, found = listed(), Counter()
    rows, missing = [], []
    for name, lines in sorted(measure(build).items()):
        text = (ROOT / name).read_text().splitlines()
        counts = Counter()
        for line in lines:
            taken = [branch["count"] > 0 for branch in line["branches"]]
            counts.update(lines=1, run=line["count"] > 0, branches=len(taken), taken=sum(taken))
            if line["count"] > 0 and all(taken):
                continue
            source = re.sub(r"\s*/\*.*?\*/", "", text[line["line_number"] - 1]).strip()
            key = f"{name} {line.get('function_name', '')}: {source}"
            found[key] += 1
            if key not in reasons:
                what = "not run" if line["count"] == 0 else f"{taken.count(False)} of {len(taken)} branches not taken"
                missing.append(f"line {line['line_number']}, {what}:\n  {key}")
        rows.append((name, counts))
    print(f"{'':32}{'lines':>8}{'run':>8}{'':>7}{'branches':>10}{'taken':>8}")
    total = sum((counts for _, counts in rows), Counter())
    for name, c in [*rows, ("all", total)]:
        lines, branches = 100 * c["run"] / c["lines"], 100 * c["taken"] / max(c["branches"], 1)
        print(f"{name:32}{c['lines']:8}{c['run']:8}{lines:6.1f}%{c['branches']:10}{c['taken']:8}{branches:6.1f}%")
    vain = [key for key in reasons if key not in found]
    print(f"\n{sum(found.values())} lines have a branch that no test takes; uncovered.txt explains {len(reasons)}")
    if missing:
        print(f"\nnot explained, {len(missing)}:", *missing, sep="\n")
    if vain:
        print("\nexplained, but covered or gone:", *vain, sep="\n  ")
    return len(missing) + len(vain)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)

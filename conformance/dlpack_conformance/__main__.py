"""python -m dlpack_conformance LIBRARY: runs the suite on a library, and writes reports."""

import argparse
import json
import sys
from pathlib import Path

from . import __version__, expected, libraries, report
from .runner import run


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m dlpack_conformance",
        description="Runs the conformance suite on a library. The exit status is 1 if a clause of grade must fails.",
    )
    known = ", ".join(libraries.LIBRARIES)
    parser.add_argument("adapter", nargs="*", help=f"{known}; or FILE.py, FILE.py:OBJECT, MODULE:OBJECT of an adapter")
    parser.add_argument("--version", action="version", version=f"dlpack_conformance {__version__}")
    parser.add_argument("--list", action="store_true", help="prints the ids of all tests")
    parser.add_argument("--select", action="append", help="runs the tests whose names begin so, as K4 or P2_without")
    parser.add_argument("--strict", action="store_true", help="the exit status is 1 if any clause fails")
    parser.add_argument("--results", action="append", default=[], help="reads a JSON file of an earlier run too")
    parser.add_argument("--json", help="writes the results, one file for each library: {} is the library's name")
    parser.add_argument("--junit", help="writes JUnit XML")
    parser.add_argument("--markdown", help="writes a table in Markdown, a row for each library")
    parser.add_argument("--html", help="writes one page: clauses and libraries, with the reasons")
    parser.add_argument("--write-xfails", metavar="FILE", help="writes the tests that fail, for the plugin's --xfails")
    parser.add_argument("--cuda", action="store_true", help="runs the tests of streams, on a GPU, and no others")
    parser.add_argument("--choices", action="store_true", help="prints the choices of the library, for its adapter")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="prints each test that did not pass, with its reason"
    )
    options = parser.parse_args(arguments)
    if options.cuda and options.html:
        parser.error("the page has no clauses of streams: --html without --cuda")
    return options


def main(arguments=None):
    options = parse(arguments)
    if options.list:
        print("\n".join(expected.all_ids()))
        return False
    if not options.adapter and not options.results:
        parse(["--help"])
    found = [json.loads(Path(path).read_text(encoding="utf-8")) for path in options.results]
    failed = False
    for name in options.adapter:
        result = run(name, options.select, cuda=options.cuda)
        found.append(result)
        print(report.text(result, options.verbose))
        if options.choices:
            print("    choices = " + report.choices(result))
        if options.json:
            path = Path(options.json.replace("{}", result["library"]))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(report.to_json(result), encoding="utf-8")
        if options.write_xfails:
            text = report.xfails(result, report.GRADES if options.strict else ["must"])
            Path(options.write_xfails).write_text(text, encoding="utf-8")
        grades = report.failed(result)
        failed |= bool(grades) if options.strict else "must" in grades
    for path, draw in (options.junit, report.junit), (options.markdown, report.markdown), (options.html, report.html):
        if path:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(draw(found), encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main())

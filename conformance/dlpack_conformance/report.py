"""Reports of results: text, choices, JSON, JUnit XML, Markdown and HTML."""

import functools
import importlib
import json
import re
from collections import Counter
from xml.etree import ElementTree

OUTCOMES = ["pass", "fail", "choice", "skip"]
GRADES = ["must", "should", "choice"]


def tests_of(*files):
    found = {}
    for file in files:
        tests = vars(importlib.import_module(f".clauses.test_{file}", __package__))
        found.update((name[5:], test.clause) for name, test in tests.items() if name.startswith("test_"))
    return found


@functools.cache
def clauses():
    """The clauses by the names of their tests, without those of streams."""
    return tests_of("producer", "consumer", "exchange_api", "lifetime", "paths")


@functools.cache
def all_clauses():
    return {**clauses(), **tests_of("streams")}


def clause_of(test):
    return all_clauses()[test.partition("[")[0]]


def failed(result):
    """The number of failures by grade."""
    return Counter(clause_of(name).grade for name, test in result["tests"].items() if test["outcome"] == "fail")


def came(test):
    """The answer of the library, as text."""
    return test.get("came") or "; ".join(f"{name}: {value}" for name, value in test.get("chosen", {}).items())


def title(test):
    """The name of a test without its parameters, as text."""
    id, _, name = test.partition("[")[0].partition("_")
    return id, name.replace("_", " ")


def counts(result):
    return Counter(test["outcome"] for test in result["tests"].values())


def rows(result):
    """The tests of a result by what they ask: {name without parameters: [(parameters, test)]}.

    Results of an older suite may have tests that are no more.
    """
    grouped = {}
    for name, test in result["tests"].items():
        base, _, parameters = name.partition("[")
        if base not in all_clauses():
            continue
        grouped.setdefault(base, []).append((parameters.rstrip("]"), test))
    return grouped


def verdict(tests):
    """One outcome for the tests of one row: any failure fails the row."""
    outcomes = {test["outcome"] for _, test in tests}
    return next(outcome for outcome in ("fail", "choice", "pass", "skip") if outcome in outcomes)


def reasons(tests, outcome):
    """The answers of the library, each text once, with the parameters of the tests that got it."""
    texts = {}
    for parameters, test in tests:
        if test["outcome"] == outcome and came(test):
            texts.setdefault(came(test), []).append(parameters)
    return [(text, [p for p in parameters if p]) for text, parameters in texts.items()]


def named(parameters, limit=4):
    if not parameters:
        return ""
    more = f", and {len(parameters) - limit} more" if len(parameters) > limit else ""
    return f" [{', '.join(parameters[:limit])}{more}]"


def text(result, verbose=False):
    """The report of one library, for a terminal."""
    about = f"{result['library']} {result['version']}, Python {result['python']}"
    lines = [f"{about}, dlpack_conformance {result['suite']}, {result['seconds']} s", ""]
    for grade in GRADES:
        for base, tests in rows(result).items():
            clause = clause_of(base)
            if clause.grade != grade:
                continue
            if verdict(tests) == "fail":
                id, _ = title(base)
                lines += [f"FAIL {base} ({grade})", f"  asks:     {clause.asks}"]
                lines += [f"  came:     {text}{named(parameters)}" for text, parameters in reasons(tests, "fail")]
                lines += [f"  pitfall:  {clause.pitfall}", f"  standard: {clause.standard}", ""]
            elif verbose:
                for outcome in "choice", "skip":
                    lines += [f"{outcome} {base}: {text}{named(p)}" for text, p in reasons(tests, outcome)]
    number = failed(result)
    total = ", ".join(f"{counts(result)[outcome]} {outcome}" for outcome in OUTCOMES)
    of = ", ".join(f"{number[grade]} {grade}" for grade in GRADES if number[grade])
    lines.append(
        f"{len(result['tests'])} tests of {len(rows(result))} clauses: {total}" + (f" (failed: {of})" if of else "")
    )
    return "\n".join(lines)


def choices(result):
    """The choices that were found, as the source of a dict for an adapter."""
    found = {}
    for test in result["tests"].values():
        found.update(test.get("chosen", {}))
    lines = [f"        {json.dumps(name)}: {json.dumps(value)}," for name, value in sorted(found.items())]
    return "\n".join(["{", *lines, "    }"])


def stable(text):
    """The answer of a library without what differs from run to run, as addresses."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    return re.sub(r"has the bytes [0-9a-f]*", "has other bytes", text)


def to_json(result):
    """The results without what differs from run to run. One line for each test."""

    def written(test):
        return json.dumps({**test, **({"came": stable(test["came"])} if "came" in test else {})}, ensure_ascii=False)

    tests = ",\n".join(f"  {json.dumps(name)}: {written(test)}" for name, test in sorted(result["tests"].items()))
    about = "".join(
        f" {json.dumps(key)}: {json.dumps(result[key])},\n"
        for key in ("library", "version", "python", "suite", "choices")
        if key in result  # those of an older suite have no suite
    )
    return f'{{\n{about} "tests": {{\n{tests}\n }}\n}}\n'


def xfails(result, grades):
    """The tests that failed, of these grades, as a file for --xfails. Each line has its reason."""
    lines = [f"# {result['library']} {result['version']}, dlpack_conformance {result['suite']}"]
    for grade in grades:
        for base, tests in rows(result).items():
            clause = clause_of(base)
            failed = [(name, test) for name, test in result["tests"].items() if name.partition("[")[0] == base]
            failed = [(name, test) for name, test in failed if test["outcome"] == "fail"]
            if clause.grade == grade and failed:
                lines += ["", f"# {grade}: {clause.asks}"]
                lines += [f"{name}  # {one_line(stable(came(test)))}" for name, test in failed]
    return "\n".join(lines) + "\n"


def one_line(text):
    return " ".join(printable(text).split())


def junit(results):
    """JUnit XML of one or more libraries."""
    suites = ElementTree.Element("testsuites")
    for result in results:
        number = counts(result)
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=f"dlpack_conformance.{result['library']}",
            tests=str(len(result["tests"])),
            failures=str(number["fail"]),
            skipped=str(number["skip"]),
            errors="0",
        )
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="dlpack_conformance", value=result.get("suite", ""))
        ElementTree.SubElement(
            properties, "property", name="dlpack_library", value=f"{result['library']} {result['version']}"
        )
        for name, test in result["tests"].items():
            clause = clause_of(name)
            case = ElementTree.SubElement(suite, "testcase", classname=f"{clause.id}.{clause.grade}", name=name)
            if test["outcome"] == "fail":
                told = (
                    f"asks: {clause.asks}\ncame: {came(test)}\npitfall: {clause.pitfall}\nstandard: {clause.standard}"
                )
                ElementTree.SubElement(case, "failure", message=printable(came(test))).text = printable(told)
            elif test["outcome"] == "skip":
                ElementTree.SubElement(case, "skipped", message=printable(came(test)))
            elif came(test):
                ElementTree.SubElement(case, "system-out").text = printable(came(test))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def printable(text):
    """Without the characters that XML cannot have."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)


def markdown(results):
    """A table with a row for each library: tests by outcome, and failures by grade."""
    lines = [
        "| library | version | pass | fail: must | fail: should | fail: choice | choice | skip |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        number = counts(result)
        cells = [result["library"], result["version"], number["pass"], *(failed(result)[grade] for grade in GRADES)]
        lines.append("| " + " | ".join(map(str, [*cells, number["choice"], number["skip"]])) + " |")
    return "\n".join(lines) + "\n"


# ---- The page ----

GROUPS = {
    "P": ("Producers", "__dlpack__ and __dlpack_device__"),
    "D": ("Tensors", "dtype, shape, strides, data"),
    "K": ("Capsules and deleters", "who owns a tensor, and when it is released"),
    "C": ("Consumers", "from_dlpack"),
    "X": ("The C exchange API", "__dlpack_c_exchange_api__"),
    "G": ("Threads and interpreters", "several threads, subinterpreters"),
}


def html(results):
    """One page: a table of clauses and libraries, each cell with its reason."""
    from . import page

    return page.html(results)

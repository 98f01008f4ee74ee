"""The page: what works between each two libraries, and which clauses each library keeps."""

import itertools
import re
from collections import Counter
from html import escape
from pathlib import Path

from . import report

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")

# The filters: each change writes rules that hide columns and rows. Without JavaScript all is shown.
SCRIPT = """
const form = document.getElementById("filters"), hidden = document.getElementById("hidden");
const words = input => input.value.toLowerCase().split(/[\\s,]+/).filter(Boolean);
const named = (name, list) => !list.length || list.some(word => name.includes(word));
function apply() {
  const from = words(form.from), to = words(form.to), rules = [], shown = new Set();
  for (const th of document.querySelectorAll("th[data-name]")) {
    const name = th.dataset.name, l = th.dataset.l, older = th.dataset.older && !form.older.checked;
    if (older || !named(name, from)) rules.push(`#matrix [data-p="${l}"]`);
    if (older || !named(name, to)) rules.push(`#matrix [data-c="${l}"]`);
    if (older || !named(name, from.concat(to))) rules.push(`#clauses [data-l="${l}"]`);
    else shown.add(l);
  }
  if (form.grade.value) rules.push(`#clauses [data-grade]:not([data-grade="${form.grade.value}"])`);
  for (const tr of document.querySelectorAll("#clauses tr[data-grade]"))
    tr.hidden = form.failures.checked && ![...tr.querySelectorAll("td.fail")].some(td => shown.has(td.dataset.l));
  hidden.textContent = rules.join(",") + (rules.length ? "{display:none}" : "");
}
form.addEventListener("input", apply);
form.addEventListener("reset", () => setTimeout(apply));
"""

# ---- Clauses ----

OUTCOMES = {
    "pass": ("✓", "kept"),
    "fail": ("✗", "not kept"),
    "choice": ("○", "a choice that the standard leaves open"),
    "untested": ("?", "could not be tested"),
    "none": ("–", "does not apply"),
}

# Reasons for which the suite could not look. Of all other tests that did not run, the library has no such side, array,
# view or capsule, or refuses the tensor, as it may.
UNTESTED = re.compile(
    "which another clause tests|which D5_negative_strides tests|takes no plain tensor|exports no plain"
    "|does not tell|the adapter |is known on Linux|does not count references|without a GIL|no memory that is so large"
    "|address of memory is less|is not honoured|is not passed on"
)


def verdict(tests):
    """One of OUTCOMES for the tests of a clause: any failure fails it."""
    if not tests:
        return "none"
    outcome = report.verdict(tests)
    if outcome != "skip":
        return outcome
    return "untested" if any(UNTESTED.search(report.came(test)) for _, test in tests) else "none"


def totals(result):
    """The number of clauses by outcome: those that are not kept have their grade, or "crash" in place of "choice"."""
    grouped = report.rows(result)
    found = Counter()
    for base, clause in report.clauses().items():
        outcome = verdict(grouped.get(base))
        failed = "crash" if clause.grade == "choice" else clause.grade
        found[failed if outcome == "fail" else outcome] += 1
    return found


TOTALS = {
    "must": "not kept, of grade must",
    "should": "not kept, of grade should",
    "crash": "crashes and leaks beyond the standard",
    "pass": "kept",
    "choice": "choices that the standard leaves open",
    "untested": "could not be tested",
    "none": "do not apply",
}


def label(result):
    return f"{result['library']} {result['version']}"


def slug(text):
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)


# ---- What a library does with the arrays of another ----

LOSSES = {
    "r": "read-only arrays arrive writable, or are refused",
    "w": "writable arrays arrive read-only",
    "s": "some strides are refused or copied",
    "d": "some dtypes are refused",
    "c": "memory is copied without need, or copy= is not followed",
    "!": "other values come, or the process ends",
}
VIEWS = ("slice", "transposed", "steps", "backwards")


def came(outcomes):
    """{step: (kind, reason)}."""
    return {step: tuple(outcome.partition(": ")[::2]) for outcome, steps in outcomes.items() for step in steps}


def losses(outcomes):
    """The letters of what a measured pair loses; "-" if one has no such side, "x" if nothing is exchanged."""
    steps = came(outcomes)
    plain, why = steps["plain"]
    if plain == "none" and ("does not produce" in why or "does not consume" in why):
        return "-"
    if plain not in ("shared", "copied", "taken"):
        return "x"
    found = ""
    kind, flag = steps.get("read-only", ("none", ""))
    if kind in ("refused", "wrong", "ended") or (kind in ("shared", "taken") and flag == "writable"):
        found += "r"
    if steps.get("writable") == ("shared", "read-only"):
        found += "w"
    views = [steps[view][0] for view in VIEWS if view in steps]
    if any(kind in ("refused", "wrong", "ended") or (kind, plain) == ("copied", "shared") for kind in views):
        found += "s"
    if any(step.startswith("dtype ") and kind in ("refused", "wrong", "ended") for step, (kind, _) in steps.items()):
        found += "d"
    if plain == "copied" or steps["copy=True"][0] not in ("copied", "taken") or steps["copy=False"][0] == "copied":
        found += "c"
    if any(kind in ("wrong", "ended") for kind, _ in steps.values()):
        found += "!"
    return found


def expected(producer, consumer):
    """(letters as of losses(), the reasons) of two libraries that do not load together, by what each does alone."""
    out, into = producer["tests"], consumer["tests"]

    def outcome(tests, name):
        found = [test["outcome"] for key, test in tests.items() if key.partition("[")[0] == name]
        return next((o for o in ("fail", "choice", "pass", "skip") if o in found), "skip")

    def chosen(name):
        return [test["chosen"][name] for test in into.values() if name in test.get("chosen", {})]

    def alone(tests, name, side):
        why = tests.get(name, {}).get("came", "")
        return outcome(tests, name), f"{side}: {name}: {why}" if why else ""

    exports, no_export = alone(out, "P2_a_plain_array_is_exported", producer["library"])
    takes, no_import = alone(into, "C2_a_plain_tensor_is_taken", consumer["library"])
    if "skip" in (exports, takes):
        return "-", [text for text in (no_export, no_import) if text]
    if "fail" in (exports, takes):
        return "x", [text for text in (no_export, no_import) if text]
    found, why = "", []
    flagged = outcome(out, "P3_a_versioned_capsule_of_read_only_data_is_flagged")
    legacy = [test["chosen"] for test in out.values() if "read-only data in a legacy capsule" in test.get("chosen", {})]
    if (flagged != "skip" or legacy) and not (flagged == "pass" == outcome(into, "C7_read_only_data_stays_read_only")):
        found += "r"
        why.append("P3 and C7: the producer does not flag read-only data, or the consumer does not keep the flag")
    strides = {name for test in into.values() for name in test.get("chosen", {}) if ", strides (" in name}
    refused = sorted(name for name in strides | {"negative strides"} if "refused" in chosen(name))
    if refused and outcome(out, "D1_a_view_is_exported_with_its_own_elements") != "skip":
        found += "s"
        why.append(f"D5: the consumer refuses {'; '.join(refused[:3])}")
    dtypes = {
        key.partition("[")[2].split("-")[0]
        for key, test in out.items()
        if key.startswith("D6_each_dtype_has") and test["outcome"] == "pass"
    }
    lacking = sorted(dtype for dtype in dtypes if "refused" in chosen(f"dtype {dtype}"))
    if lacking:
        found += "d"
        why.append(f"D6: the consumer refuses {', '.join(lacking)}")
    if (
        outcome(into, "C3_copy_True_gives_a_copy") != "pass"
        or outcome(into, "C3_the_array_shares_the_memory_if_possible") != "pass"
    ):
        found += "c"
        why.append("C3: the consumer copies without need, or has no copy=True")
    return found, why


# ---- HTML ----


def link(id, text, title=""):
    told = f' title="{escape(title[:300])}"' if title else ""
    return f'<a href="#{escape(id)}"{told}>{escape(text)}</a>'


def newest(results):
    """Whether a result is the last of its library: results of a library are sorted by version."""
    last = {result["library"]: i for i, result in enumerate(results)}
    return [last[result["library"]] == i for i, result in enumerate(results)]


def spec(result, specs):
    """How a command names the library."""
    return specs.get(result["library"], result["library"])


def column(result, letter, number, more=""):
    """The name of a library above its column."""
    return (
        f'<th class="name" title="{escape(label(result))}" data-{letter}="{number}"{more}>'
        f"<span>{escape(result['library'])} <small>{escape(result['version'])}</small></span></th>"
    )


def named(steps):
    """The steps of one outcome, the dtypes together."""
    dtypes = [step[6:] for step in steps if step.startswith("dtype ")]
    others = [step for step in steps if not step.startswith("dtype ")]
    return "; ".join(filter(None, [", ".join(others), "dtypes " * bool(dtypes) + ", ".join(dtypes)]))


def matrix(results, pairs, specs):
    """(the table of producers and consumers, the sheets of its reasons)."""
    known = {(pair["producer"], pair["consumer"]): pair for pair in pairs["pairs"]}
    rows, sheets = [], []
    sides = {}
    for (producer, consumer), pair in known.items():
        if "outcomes" in pair:
            plain = came(pair["outcomes"])["plain"]
            sides.setdefault(("produces", producer), []).append("does not produce" not in plain[1])
            sides.setdefault(("consumes", consumer), []).append("does not consume" not in plain[1])

    def has(side, result):
        return any(sides.get((side, label(result)), [True]))

    consumers = [(i, result) for i, result in enumerate(results) if has("consumes", result)]
    for i, producer in enumerate(results):
        if not has("produces", producer):
            continue
        cells, entries = [], []
        for j, consumer in consumers:
            pair = known.get((label(producer), label(consumer)), {"unmeasured": "not measured"})
            id = f"{slug(label(producer))}--{slug(label(consumer))}"
            if "outcomes" in pair:
                letters, guess = losses(pair["outcomes"]), ""
            else:
                letters, reasons = expected(producer, consumer)
                guess = " guess"
            long = " long" * (len(letters) > 4)
            tone = {"": "pass", "-": "none", "x": "fail"}.get(letters, "fail" if "!" in letters else "should")
            sign = {"": "✓", "-": "–", "x": "✗"}.get(letters, letters)
            lost = [LOSSES[letter] for letter in letters if letter in LOSSES]
            words = {"": "works", "-": "has no such side", "x": "does not work"}.get(
                letters, "works; " + "; ".join(lost)
            )
            title = f"{label(producer)} to {label(consumer)}: {words}" + (", by clauses" if guess else "")
            cells.append(f'<td class="{tone}{guess}{long}" data-c="{j}">{link(id, sign, title)}</td>')
            if guess:
                told = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
                body = f"<p>Not measured: {escape(pair['unmeasured'])}. By what each does alone:</p><ul>{told}</ul>"
            else:
                told = "".join(
                    f"<tr><th>{escape(named(steps))}</th><td>{escape(outcome)}</td></tr>"
                    for outcome, steps in pair["outcomes"].items()
                )
                body = f'<table class="steps">{told}</table>'
            ask = f"python -m dlpack_conformance.pairs {spec(producer, specs)} {spec(consumer, specs)}"
            entries.append(
                f'<section id="{id}"><h4>{escape(label(consumer))}: {escape(words)}</h4>{body}'
                f"<pre>{escape(ask)}</pre></section>"
            )
        rows.append(
            f'<tr data-p="{i}"><th>{escape(producer["library"])} <small>{escape(producer["version"])}</small></th>'
            f"{''.join(cells)}</tr>"
        )
        sheets.append(sheet(f"From {label(producer)}", "", entries))
    head = "".join(column(consumer, "c", j) for j, consumer in consumers)
    table = (
        f'<table id="matrix"><thead><tr><th>from ↓ to →</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )
    return table, sheets


def sheet(title, about, entries):
    """Reasons, which are shown when a link leads to one of them."""
    return (
        f'<article><header><h3>{escape(title)}</h3><a class="close" href="#!" title="close">×</a></header>{about}'
        f"{''.join(entries)}</article>"
    )


def entry(base, clause, result, tests, outcome, specs, reproductions):
    """The reason of one cell, and how to see it again."""
    body = []
    shown = {"untested": "skip", "none": "skip"}.get(outcome, outcome)
    texts = report.reasons(tests or [], shown)
    if outcome == "pass":
        texts = []
        if any(test["outcome"] == "skip" for _, test in tests):
            body.append("<p class=faint>Tests that did not run:</p>")
            texts = report.reasons(tests, "skip")
    listed = "".join(f"<li>{escape(text + report.named(parameters))}</li>" for text, parameters in texts[:8])
    body.append(f"<ul>{listed}</ul>" if listed else "")
    body.append(f"<pre>python -m dlpack_conformance {escape(spec(result, specs))} --select {base}</pre>")
    if outcome == "fail" and (result["library"], base) in reproductions:
        body.append(f"<p>In a few lines:</p><pre>{escape(reproductions[result['library'], base])}</pre>")
    word = OUTCOMES[outcome][1]
    id = f"{base}--{slug(label(result))}"
    return f'<section id="{id}"><h4>{escape(label(result))}: {word}</h4>{"".join(body)}</section>'


def clause_table(results, specs, reproductions):
    """(the table of clauses and libraries, the sheets of its reasons)."""
    grouped = [report.rows(result) for result in results]
    names = list(dict.fromkeys(itertools.chain(*grouped)))
    body, sheets = [], []
    counted = [totals(result) for result in results]
    for key, text in TOTALS.items():
        cells = "".join(f'<td data-l="{i}">{count[key]}</td>' for i, count in enumerate(counted))
        body.append(f'<tr class="total"><th>Clauses: {text}</th>{cells}</tr>')
    for letter, (name, note) in report.GROUPS.items():
        members = sorted(
            (n for n in names if report.clauses()[n].id[0] == letter),
            key=lambda n: (int(report.clauses()[n].id[1:]), names.index(n)),
        )
        if not members:
            continue
        body.append(f'<tr class="group"><th>{name}<small>{note}</small></th></tr>')
        for base in members:
            clause = report.clauses()[base]
            cells, entries = [], []
            for i, (result, group) in enumerate(zip(results, grouped)):
                outcome = verdict(group.get(base))
                tone = clause.grade if outcome == "fail" else outcome
                sign = link(f"{base}--{slug(label(result))}", OUTCOMES[outcome][0], OUTCOMES[outcome][1])
                cells.append(f'<td class="{outcome} {tone}" data-l="{i}">{sign}</td>')
                entries.append(entry(base, clause, result, group.get(base), outcome, specs, reproductions))
            text = escape(report.title(base)[1])
            head = f'<span class="id">{clause.id}</span>{text} <span class="grade">{clause.grade}</span>'
            row = f'<th title="{escape(clause.asks)}">{head}</th>{"".join(cells)}'
            body.append(f'<tr data-grade="{clause.grade}">{row}</tr>')
            about = f"<p>{escape(clause.asks)}</p><p class=faint>{escape(clause.standard)}. Where it goes wrong: "
            about += f"{escape(clause.pitfall)}.</p>"
            sheets.append(sheet(base, about, entries))
    latest = newest(results)
    head = "".join(
        column(result, "l", i, f' data-name="{escape(label(result).lower())}"' + " data-older=1" * (not latest[i]))
        for i, result in enumerate(results)
    )
    table = f'<table id="clauses"><thead><tr><th>clause</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return table, sheets, len(names)


FILTERS = """<form id="filters"><label>From <input name="from" placeholder="torch, numpy"></label>
<label>to <input name="to" placeholder="all libraries"></label>
<label><input type="checkbox" name="older" checked> older versions too</label>
<label>Clauses of grade <select name="grade"><option value="">all</option><option>must</option><option>should</option>
<option>choice</option></select></label>
<label><input type="checkbox" name="failures"> only those that a library does not keep</label>
<button type="reset">Show all</button></form>"""


def key(*rows):
    """A legend: (tone, sign, text)."""
    told = (f'<li><span class="{tone}">{escape(sign)}</span>{escape(text)}</li>' for tone, sign, text in rows)
    return f'<ul class="legend">{"".join(told)}</ul>'


def html(results, pairs=None, specs=None, reproductions=None):
    """One page. pairs is what measure.py writes; specs the adapters of libraries that this package does not know;
    reproductions a text for a library and the name of a clause."""
    specs = specs or {}
    table, sheets, number = clause_table(results, specs, reproductions or {})
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f'<title>DLPack conformance</title><style>{STYLE}</style><style id="hidden"></style>',
        '<header class="top"><h1>DLPack between Python libraries</h1>',
        f"<p>{len(results)} libraries and versions on the CPU, {number} clauses of DLPack 1.3 and of the Python array "
        "API standard 2025.12. Each cell leads to its reason, and to how to see it again.</p></header>",
        FILTERS,
    ]
    if pairs:
        drawn, more = matrix(results, pairs, specs)
        sheets = more + sheets
        parts += [
            "<h2>Does it work, and what is lost?</h2>",
            key(
                ("pass", "✓", "works, and nothing is lost"),
                *(("fail" if letter == "!" else "should", letter, text) for letter, text in LOSSES.items()),
                ("fail", "✗", "does not work"),
                ("none", "–", "has no such side"),
                ("should guess", "s", "not measured, as the two do not load together: by what each does alone"),
            ),
            f'<div class="scroll">{drawn}</div>',
        ]
    parts += [
        "<h2>Which clauses are kept?</h2>",
        key(
            ("pass", "✓", "kept"),
            ("must", "✗", "against a sentence of the standard (must)"),
            ("should", "✗", "against a recommendation (should)"),
            ("fail choice", "✗", "a crash or a leak that no sentence forbids"),
            ("choice", "○", "a choice that the standard leaves open"),
            ("untested", "?", "could not be tested"),
            ("none", "–", "does not apply"),
        ),
        f'<div class="scroll">{table}</div>',
        *sheets,
        f"<script>{SCRIPT}</script></html>",
    ]
    return "\n".join(parts) + "\n"

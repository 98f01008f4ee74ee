"""Draws the table of the outcomes: `table.py RESULTS DOCUMENT` writes the document. Fails if the document differed."""

import json
import re
import sys
from pathlib import Path

import array_libraries
import exchanges

TEXT = """\
# What array libraries do with arrays of dlpack_py.h, and dlpack_py.h with theirs

Made by `make test-libraries`, which exchanges arrays between `dlarray` (`examples/ndarray`) and each library on the
CPU: {versions}. [conformance.md](conformance.md) tells which clauses of DLPack each library keeps.

| cell | |
|---|---|
| ✓ | exchanged: memory, values, shape, strides and dtype are equal; both sides see what the other side writes |
| ✓, … | exchanged, with a difference: the read-only flag was lost or added, or copy=True made no copy |
| copied | values, shape and dtype are equal, in other memory; or the values in another dtype, which is named |
| unreadable, ends the process [n] | the consumer took the array, and then failed; note n has its error |
| – | the producer has no such array, or its type has no exchange table |
| used, not used | the exchange table of the producer's type |
| refused [n] | the library of the column raised the exception in note n |
| refused by dlarray [n] | `dlarray` raised the exception in note n |
"""


def notes(outcomes):
    """Returns the number of a note by outcome, and the notes. Outcomes whose texts differ only in numbers share one."""
    alike = {}
    for kind, words in outcomes:
        if words:
            alike.setdefault((kind, *re.split(r"\d+", words)), []).append(re.findall(r"\d+", words))
    texts = []
    for (kind, *parts), numbers in alike.items():
        shown = [each[0] if len(set(each)) == 1 else "…" for each in zip(*numbers)]
        texts.append(f"{kind}: `{''.join(part + number for part, number in zip(parts, [*shown, '']))}`")
    order = {key: number for number, key in enumerate(alike, 1)}
    return lambda kind, words: order[(kind, *re.split(r"\d+", words))], texts


def aligned(lines):
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]


def draw(results):
    """The document, from each library's version and outcomes by cell."""
    versions = ", ".join(f"{name} {result['version']}" for name, result in results.items())
    document = [TEXT.format(versions=versions)]
    for direction in exchanges.DIRECTIONS:
        rows = {row: [result["cells"][f"{direction}: {row}"] for result in results.values()] for row in exchanges.ROWS}
        number, texts = notes(outcome for outcomes in rows.values() for outcome in outcomes)

        def cell(name, kind, words):
            text = kind.replace(f"refused by {name}", "refused").replace("exchanged", "✓").replace("none", "–")
            return f"{text} [{number(kind, words)}]" if words else text

        table = [[row, *map(cell, results, *zip(*outcomes))] for row, outcomes in rows.items()]
        document += [f"## {direction.capitalize()}", "", *aligned([["", *results], *table]), ""]
        document += [*(f"{n}. {text}" for n, text in enumerate(texts, 1)), ""]
    return "\n".join(document)


def main(folder, document):
    results = {name: json.loads((folder / f"{name}.json").read_text()) for name in array_libraries.LIBRARIES}
    drawn = draw(results)
    print(drawn)
    if document.exists() and document.read_text() == drawn:
        return 0
    document.write_text(drawn)
    print(f"{document} differed from the table above, and is rewritten: look at the difference, and commit it")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

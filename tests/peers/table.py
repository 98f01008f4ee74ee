"""Draws the table of what the tests have found: `table.py RESULTS DOCUMENT` writes the document, and fails if it was
another before."""

import json
import re
import sys
from pathlib import Path

import exchanges
import peers

TEXT = """\
# What the peers do with our arrays, and we with theirs

Made by `make test-peers`, which exchanges arrays between `dlarray` (`examples/ndarray`) and each library, on the CPU:
{versions}. [conformance.md](conformance.md) tells which clauses of DLPack each library keeps.

| cell | |
|---|---|
| ✓ | exchanged: the same memory, values, shape, strides and dtype; what one side writes, the other sees |
| ✓, … | exchanged, with a difference: the read-only flag was lost, or a copy was asked for and not made |
| copied | the same elsewhere, or in another dtype, which is named |
| unreadable, ends the process [n] | taken, and then the library fails, in the words of note n |
| – | the side that gives has no such array; of the exchange API: its type has no table; _used_ or not where it has |
| refused [n] | by the library of the column, with the exception in note n |
| refused by dlarray [n] | by ours |
"""


def notes(outcomes):
    """Outcomes whose words differ in numbers only share a note: the number of that, by outcome, and the notes."""
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
    """The document, of each peer's version and outcomes by cell."""
    versions = ", ".join(f"{name} {result['version']}" for name, result in results.items())
    document = [TEXT.format(versions=versions)]
    for direction in exchanges.DIRECTIONS:
        rows = {row: [result["cells"][f"{direction}: {row}"] for result in results.values()] for row in exchanges.ROWS}
        number, texts = notes(outcome for outcomes in rows.values() for outcome in outcomes)

        def cell(peer, kind, words):
            text = kind.replace(f"refused by {peer}", "refused").replace("exchanged", "✓").replace("none", "–")
            return f"{text} [{number(kind, words)}]" if words else text

        table = [[row, *map(cell, results, *zip(*outcomes))] for row, outcomes in rows.items()]
        document += [f"## {direction.capitalize()}", "", *aligned([["", *results], *table]), ""]
        document += [*(f"{n}. {text}" for n, text in enumerate(texts, 1)), ""]
    return "\n".join(document)


def main(folder, document):
    results = {name: json.loads((folder / f"{name}.json").read_text()) for name in peers.PEERS}
    drawn = draw(results)
    print(drawn)
    if document.exists() and document.read_text() == drawn:
        return 0
    document.write_text(drawn)
    print(f"{document} said something else, and is now what stands above: look at the difference, and commit it")
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))

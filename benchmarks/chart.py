"""Draws docs/performance.svg: bars for the commonest calls, and lines for what must not grow."""

from html import escape

INK, PALE, GRID = "#222222", "#666666", "#dddddd"
COLOURS = {
    "ours": "#1f5fa8",
    "by_hand": "#9a9a9a",
    "nanobind": "#d1742f",
    "tvm": "#4f8f46",
}
BARS = [
    "f(own), exchange table, borrowed",
    "f(own), capsule",
    "f(own), capsule, README's producer",
    "f(numpy)",
    "f(numpy), writable",
    "f(torch), borrowed",
    "f(numpy ×3)",
    "from_dlpack(numpy)",
    "return own array",
    "return to NumPy by np.from_dlpack",
    "x.__dlpack__(max_version=(1, 3))",
]
WIDTH = 960
LONGEST = 5000  # instructions; a longer bar is cut


class Drawing:
    def __init__(self):
        self.parts = []

    def text(self, x, y, text, anchor="start", size=12, colour=INK, weight="normal"):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(text)}</text>'
        )

    def box(self, x, y, width, height, colour):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def line(self, points, colour, width=1.0, dashes=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def dot(self, x, y, colour):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')

    def svg(self, height):
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
                f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
                f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


def bars(drawing, rows, columns, top):
    """One group for each call, one bar for each library. Returns the lower end."""
    left, scale, thick = 270, (WIDTH - 270 - 90) / LONGEST, 12
    drawing.text(20, top, "Instructions of a call", size=15, weight="bold")
    x = left
    for column, colour in COLOURS.items():
        drawing.box(x, top - 10, 12, 12, colour)
        drawing.text(x + 17, top, columns[column])
        x += 30 + 8 * len(columns[column])
    begin = y = top + 16
    for name in [name for name in BARS if name in rows]:
        cells = [(column, rows[name][column]) for column in COLOURS if column in rows[name]]
        drawing.text(left - 10, y + thick * len(cells) / 2 + 4, name, anchor="end")
        for column, value in cells:
            width = min(value, LONGEST) * scale
            drawing.box(left, y, width, thick - 1, COLOURS[column])
            cut = " →" if value > LONGEST else ""
            drawing.text(left + width + 4, y + thick - 2, f"{value:,.0f}{cut}", size=10, colour=PALE)
            y += thick
        y += 9
    drawing.line([(left, begin - 4), (left, y - 5)], INK)
    return y


def panel(drawing, x, y, width, height, title, axis, lines):
    """Lines over an axis. lines: {name: (colour, dashes, {place: value})}."""
    places = sorted({place for _, _, values in lines.values() for place in values})
    highest = max(value for _, _, values in lines.values() for value in values.values())
    step = 500 if highest > 1000 else 100
    highest = (int(highest * 1.02 / step) + 1) * step
    at_x = {place: x + 44 + i * (width - 60) / (len(places) - 1) for i, place in enumerate(places)}

    def at_y(value):
        return y + 30 + (height - 60) * (1 - value / highest)

    drawing.text(x, y + 10, title, size=13, weight="bold")
    for value in range(0, highest + 1, step):
        drawing.line([(x + 40, at_y(value)), (x + width - 10, at_y(value))], GRID)
        drawing.text(x + 36, at_y(value) + 4, f"{value:,}", anchor="end", size=10, colour=PALE)
    for place in places:
        drawing.text(at_x[place], y + height - 14, f"{place:,}", anchor="middle", size=10, colour=PALE)
    drawing.text(x + 40 + (width - 50) / 2, y + height, axis, anchor="middle", size=11)
    for colour, dashes, values in lines.values():
        drawing.line([(at_x[place], at_y(value)) for place, value in sorted(values.items())], colour, 2, dashes)
        for place, value in values.items():
            drawing.dot(at_x[place], at_y(value), colour)
    legend = y + height + 20
    for name, (colour, dashes, _) in lines.items():
        drawing.line([(x + 40, legend - 4), (x + 66, legend - 4)], colour, 2, dashes)
        drawing.text(x + 72, legend, name, size=11)
        legend += 16
    return legend


def draw(rows, lines, columns):
    """rows: {row: {column: instructions}}; lines: {line: {place: instructions}}. Returns the text of the SVG file."""
    drawing = Drawing()
    top = bars(drawing, rows, columns, 28) + 30
    looks = {
        "f(own), dlpack_py": (COLOURS["ours"], ""),
        "f(own), README's producer": (COLOURS["ours"], "2 3"),
        "f(numpy), dlpack_py": (COLOURS["ours"], "7 3"),
        "f(own), nanobind": (COLOURS["nanobind"], ""),
        "f(numpy), nanobind": (COLOURS["nanobind"], "7 3"),
        "f(torch), dlpack_py": ("#7a4fa0", ""),
    }
    panels = [
        ("rank", "A further dimension", "dimensions", 1),
        ("arguments", "A further argument: each", "arguments", 0),
        ("types", "Many types", "types, whose objects are passed in turn", 1),
        ("exchanges", "A long-lived process", "exchanges before", 1),
    ]
    width, bottom = (WIDTH - 40) / 2, top
    for i, (key, title, axis, is_whole) in enumerate(panels):
        shown = {}
        for name, values in lines.items():
            kind, _, call = name.partition(", ")
            if kind == key:
                values = {place: value if is_whole else value / place for place, value in values.items()}
                shown[call] = (*looks[call], values)
        if i == 2:
            top = bottom + 16
        bottom = max(bottom, panel(drawing, 20 + i % 2 * width, top, width, 240, title, axis, shown))
    return drawing.svg(round(bottom + 10))

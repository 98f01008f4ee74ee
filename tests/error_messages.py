"""The messages of docs/errors.md."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"
KIND = re.compile(r"^\w+(?:Error|Warning): ")


def sections():
    """{title: [(kind or "", message)]} of the tables."""
    found = {}
    for title, text in re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        for row in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE):
            for span in re.findall(r"``(.+?)``|`([^`]+)`", row):
                text = "".join(span)
                kind = KIND.match(text)
                found.setdefault(title, []).append((kind[0][:-2] if kind else "", KIND.sub("", text)))
    return found

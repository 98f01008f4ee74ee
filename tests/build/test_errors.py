"""docs/errors.md has the messages of the headers, and no others.

tests/libraries/test_errors.py has those of the libraries.
"""

import re

import machine
import pytest
from error_messages import sections

OURS = {title: found for title, found in sections().items() if not title.startswith("Messages of ")}
MESSAGES = [message for found in OURS.values() for _, message in found]
HEADERS = sorted(machine.ROOT.glob("dlpack_*.h"))
CALLS = r"\b(?:DLP_REFUSE|dlp_fail|PyErr_Format|PyErr_SetString|dlp_raise_value)\((.*?)\);"
# Adjacent strings, the macros of inttypes.h between them, and other macros that stand for a text.
TEXT = r'(?:"(?:[^"\\]|\\.)*"|\b(?:PRI[a-zA-Z]+\d*|DLP\w*_(?:LIBRARY|INTERFACE))\b)'
# Texts that an author never sees: what stands before the colon is the name of an argument, and the like.
LEFT_OUT = {"%s", "%s: %s"}
# Of the runtime, and of Python: the headers put the argument's name before it (tests/consumer/test_names.py).
OF_OTHERS = [
    "cudaEventRecord: cudaErrorNoDevice, no CUDA-capable device is detected",
    "'list' object has no attribute '__dlpack__'",
]


def code(header):
    """The text of a header without its comments."""
    return re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)


def joined(text):
    """One format of several adjacent strings."""
    parts = []
    for part in re.findall(TEXT, text):
        is_string = part.startswith('"')
        parts.append(part[1:-1] if is_string else "d" if part.startswith("PRI") else "%s")
    return "".join(parts)


def formats(text):
    return [joined(found) for found in re.findall(rf"{TEXT}(?:\s*{TEXT})*", text)]


def pattern(text):
    parts = re.split(r"%[-.\d]*(?:ll?|z)?[a-zA-Z]", text.replace("%%", "%"))
    return ".*".join(re.escape(part.replace('\\"', '"')) for part in parts)


def is_telling(text):
    return len(re.findall(r"[a-zA-Z]", re.sub(r"%[-.\d]*(?:ll?|z)?[a-zA-Z]", "", text))) >= 5


@pytest.mark.parametrize("title", OURS)
def test_each_message_of_the_page_is_in_the_headers(title):
    patterns = [pattern(text) for header in HEADERS for text in formats(code(header)) if is_telling(text)]
    for _, message in OURS[title]:
        assert message in OF_OTHERS or any(re.fullmatch(known, message) for known in patterns), message


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: path.name)
def test_each_message_of_a_header_is_on_the_page(header):
    for call in re.findall(CALLS, code(header), re.DOTALL):
        told = [text for text in formats(call) if text not in LEFT_OUT and is_telling(text)]
        if told:
            assert any(re.fullmatch(pattern(told[0]), message) for message in MESSAGES), told[0]

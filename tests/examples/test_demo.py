"""docs/demo.txt, which docs/start.md shows, is what `make demo` prints: `make demo RECORD=docs/demo.txt` writes it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from optional import numpy

ROOT = Path(__file__).resolve().parents[2]


def without_addresses(text):
    """Addresses in the order in which they come first, and no versions: these differ from run to run."""
    found = list(dict.fromkeys(re.findall(r"\b0x[0-9a-f]+", text)))
    return re.sub(r"\b0x[0-9a-f]+", lambda address: f"address {found.index(address[0])}", text).split("\n", 1)[1]


def test_the_recorded_demo_is_what_the_demo_prints():
    recorded = (ROOT / "docs" / "demo.txt").read_text(encoding="utf-8")
    version = re.match(r"Python \S+, NumPy (\d+\.\d+)", recorded)[1]
    if not numpy.__version__.startswith(f"{version}."):  # the texts of its exceptions
        pytest.skip(f"NumPy {version}: not on this machine")
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert without_addresses(done.stdout) == without_addresses(recorded)

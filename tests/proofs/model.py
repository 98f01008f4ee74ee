"""Verifies ownership.pml with Spin: each variant has no error, and each mistake of BREAKS is found."""

import concurrent.futures
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent

VARIANTS = [
    "",
    "FREE_THREADED",
    "PATIENT",
    "FREE_THREADED PATIENT",
    "FORKED",
    "FREE_THREADED FORKED",
    "PATIENT FORKED",
    "FREE_THREADED PATIENT FORKED",
    "TWO_GILS",
    "TWO_GILS PATIENT",
    "EMBEDDED",
    "FREE_THREADED EMBEDDED",
]

# The mistake, and a variant in which it must be found.
BREAKS = {
    "BREAK_RENAME_LATE": "",  # the capsule is renamed after Python code could run
    "BREAK_NO_RENAME": "",  # the capsule is not renamed
    "BREAK_NO_SECTION": "FREE_THREADED",  # no critical section on the capsule
    "BREAK_NO_DESTRUCTOR": "",  # a capsule that was not consumed does not delete
    "BREAK_COUNT_AFTER_READ": "",  # a deleter reads DLP_CLOSING, then counts itself
    "BREAK_UNCOUNT_EARLY": "",  # a deleter subtracts itself before it has dropped the owner
    "BREAK_NO_GONE": "",  # an attached deleter does not read gone
    "BREAK_NO_CLOSING": "",  # the exit callback does not set DLP_CLOSING
    "BREAK_NO_WAIT": "",  # the exit callback does not wait
    "BREAK_WAIT_ATTACHED": "PATIENT",  # the exit callback waits with the GIL
    "BREAK_EXPORTS_LAST": "",  # the count of exports, part of the owner, is lowered after the owner was dropped
    "BREAK_FORK_READ_LATE": "FREE_THREADED PATIENT FORKED",  # the inherited count is read after process is set
    "BREAK_FORK_UNCOUNT": "FORKED",  # a deleter of the parent that goes on in the child subtracts itself
    "BREAK_NO_SAVE": "TWO_GILS PATIENT",  # a deleter keeps the GIL of another interpreter while it attaches
    "BREAK_BLOCK_LATE": "EMBEDDED",  # the manager's block is read after the owner was dropped
    "BREAK_LIFETIME_LATE": "EMBEDDED",  # the manager's lifetime is read after the owner was dropped
}


def verify(macros):
    """Returns (errors, states, depth, seconds, what was violated)."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        spin = ["spin", "-a", *(f"-D{macro}" for macro in macros.split()), str(HERE / "ownership.pml")]
        made = subprocess.run(spin, cwd=folder, capture_output=True, text=True)
        if made.returncode != 0 or "Error" in made.stdout:
            sys.exit(made.stdout + made.stderr)
        subprocess.run(["cc", "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=folder, check=True)
        done = subprocess.run(["./pan", "-m10000"], cwd=folder, capture_output=True, text=True, timeout=300).stdout
    found = re.search(r"depth reached (\d+), errors: (\d+)", done)
    if not found or "max search depth too small" in done or "Search not completed" in done and found[2] == "0":
        sys.exit(done)
    states = int(re.search(r"(\d+) states, stored", done)[1])
    violated = re.search(r"pan:1: (.*?) \(at depth", done)
    return int(found[2]), states, int(found[1]), time.monotonic() - begin, violated[1] if violated else ""


def main():
    if not shutil.which("spin"):
        print("SKIPPED: the model of ownership is not verified, no spin: apt-get install spin")
        return 0
    wrong, begin = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for variant, (errors, states, depth, seconds, violated) in zip(VARIANTS, pool.map(verify, VARIANTS)):
            wrong += errors != 0
            figures = f"{states} states, depth {depth}, {seconds:.1f} s"
            print(f"{errors} errors: {variant or 'with a GIL'}: {figures} {violated}")
        broken = [f"{name} {variant}" for name, variant in BREAKS.items()]
        for name, (errors, _, depth, _, violated) in zip(broken, pool.map(verify, broken)):
            wrong += errors == 0
            print(f"{'found' if errors else 'NOT FOUND'}: {name}: {violated} at depth {depth}")
    print(f"{len(VARIANTS)} variants, {len(BREAKS)} mistakes in {time.monotonic() - begin:.0f} s: {wrong} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

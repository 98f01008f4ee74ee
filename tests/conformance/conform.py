"""Runs the suite on one library and keeps its results: `conform.py LIBRARY RESULTS`.

Fails if a library of this project fails a clause. A clause that another library fails is a result, not a failure of the
command. A library that is not installed is named. A race that failed once is kept as failed until the version changes,
and so is the signal of a crash: otherwise the results would differ from run to run.
"""

import json
import os
import sys
from pathlib import Path

from dlpack_conformance import load, report, run

ADAPTERS = Path(__file__).with_name("adapters.py")
RACES = [
    "G1_one_of_eight_threads_gets_a_capsule[legacy]",
    "G1_one_of_eight_threads_gets_a_capsule[versioned]",
    "K5_deleters_on_a_thread_while_the_interpreter_ends",
]
OURS = {"dlarray": "Dlarray", "by_hand": "ByHand", "nanobind": "Nanobind", "pybind11": "Pybind11"}


def crashed(test):
    return test.get("came", "").startswith("the process was ended by SIG")


def main(name, folder):
    spec = f"{ADAPTERS}:{OURS[name]}" if name in OURS else name
    try:
        found = load(spec)
    except Exception as error:
        print(f"SKIPPED: {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        needed = name not in ("cupy", "numba") and os.environ.get("DLPACK_PY_COMPLETE")
        return bool(needed)
    result = run(spec)
    print(report.text(result).splitlines()[0], "-", report.text(result).splitlines()[-1], flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{found.name.replace(' ', '-')}-{result['version']}.json"
    before = json.loads(kept.read_text(encoding="utf-8"))["tests"] if kept.exists() else {}
    for test, came in result["tests"].items():
        was = before.get(test, {})
        if was.get("outcome") == "fail":
            if test in RACES or crashed(was) and crashed(came):
                result["tests"][test] = was
    kept.write_text(report.to_json(result), encoding="utf-8")
    if name in ("dlarray", "by_hand", "pybind11") and report.failed(result):
        print(report.text(result))
        return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

"""Measures what each library does with the arrays of each other: `measure.py PAIRS.json NAME=ENVIRONMENT ...`.

Two libraries of one environment run in one process. For libraries of two environments, the packages of the second are
put behind those of the first, in either order; where a library then does not load, or is another version, the reason is
kept, and the page tells what follows from the clauses of the two. A crash ends the process, and another goes on.
"""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ADAPTERS = Path(__file__).with_name("adapters.py")
SPECS = {"dlarray": "Dlarray", "by_hand": "ByHand", "nanobind": "Nanobind", "pybind11": "Pybind11"}
CODE = """
import runpy, site, sys
for folder in sys.argv[4:]:
    site.addsitedir(folder)
sys.argv = ["pairs"] + sys.argv[1:4]
runpy.run_module("dlpack_conformance.pairs", run_name="__main__")
"""
LIMIT = 120  # seconds without a step


def packages(environment):
    return str(next(Path(environment).glob("lib/python3.*/site-packages")).absolute())


def spec_of(name):
    return f"{ADAPTERS}:{SPECS[name]}" if name in SPECS else name


def run(environments, pairs, done):
    """(the lines that a process wrote, how it ended: None for well)."""
    first, *others = environments
    with tempfile.TemporaryDirectory() as folder:
        wanted, record = Path(folder, "pairs.json"), Path(folder, "record")
        wanted.write_text(json.dumps(pairs))
        record.touch()
        command = [f"{first}/bin/python", "-c", CODE, str(wanted), str(record), json.dumps(done)]
        command += [packages(other) for other in others]
        with tempfile.TemporaryFile() as messages:
            process = subprocess.Popen(
                command, stdout=messages, stderr=messages, stdin=subprocess.DEVNULL, start_new_session=True
            )
            size = -1
            while True:
                try:
                    process.wait(LIMIT)
                    break
                except subprocess.TimeoutExpired:
                    if record.stat().st_size == size:
                        os.killpg(process.pid, signal.SIGKILL)
                    size = record.stat().st_size
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    status = process.returncode
    if status == 0:
        return lines, None
    return lines, signal.Signals(-status).name if status < 0 else f"status {status}"


def measure(environments, pairs, versions):
    """{pair: {step: outcome}}, and {pair: why it was not measured}."""
    found, loaded, done = collections.defaultdict(dict), {}, []
    while True:
        lines, ended = run(environments, pairs, done)
        begun = None
        for line in lines:
            if "spec" in line:
                loaded[line["spec"]] = line
            elif "outcome" in line:
                found[tuple(line["pair"])][line["step"]] = line["outcome"]
                done.append([*line["pair"], line["step"]])
                begun = None
            else:
                begun = line
        if ended is None:
            break
        if begun is None:  # it ended while a library was loaded, or after the last step
            if len(lines) == 0 or "spec" in lines[-1]:
                return {}, {tuple(pair): f"the process ended: {ended}" for pair in pairs}
            break
        found[tuple(begun["pair"])][begun["step"]] = f"ended: {ended}"
        done.append([*begun["pair"], begun["step"]])
    reasons = {}
    for pair in map(tuple, pairs):
        for spec in pair:
            told = loaded.get(spec, {"fails": "not loaded"})
            if "fails" in told:
                reasons[pair] = f"{spec.rpartition(':')[2]}: {told['fails']}"
            elif told["version"] != versions[spec]:
                reasons[pair] = f"{spec}: {told['version']} is loaded in place of {versions[spec]}"
            if pair in reasons:
                found.pop(pair, None)
                break
    return found, reasons


def alone(environment, specs):
    """The names and versions of the libraries of an environment: {spec: (name, version)}."""
    code = (
        "import json, sys\nfrom dlpack_conformance import load\n"
        "for spec in sys.argv[1:]:\n"
        "    try:\n        a = load(spec)\n"
        "    except Exception:\n        continue\n"
        "    print(); print('FOUND', json.dumps([spec, a.name, a.version()]), flush=True)\n"
    )
    told = subprocess.run(
        [f"{environment}/bin/python", "-c", code, *specs], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    lines = [json.loads(line[6:]) for line in told.stdout.splitlines() if line.startswith("FOUND ")]
    return {spec: (name, version) for spec, name, version in lines}


def shown(text):
    """An outcome without what differs from run to run."""
    return re.sub(r"0x[0-9a-f]+", "0x…", text)


def main(path, *arguments):
    wanted = collections.defaultdict(list)
    for argument in arguments:
        name, _, environment = argument.partition("=")
        wanted[environment].append(spec_of(name))
    libraries = {environment: alone(environment, specs) for environment, specs in wanted.items()}
    labels, pairs, reasons = {}, {}, {}
    for environment, found in libraries.items():
        for spec, (name, version) in found.items():
            labels[environment, spec] = f"{name} {version}"
    order = list(libraries)
    for i, one in enumerate(order):
        for other in order[i:]:
            for environments in [(one, other), (other, one)] if one != other else [(one,)]:
                left = [
                    (producer, consumer)
                    for producer, consumer in both_ways(libraries, one, other)
                    if (labels[producer], labels[consumer]) not in pairs
                    and (producer[1] != consumer[1] or producer == consumer)
                ]
                if not left:
                    continue
                versions = {spec: version for e in (one, other) for spec, (_, version) in libraries[e].items()}
                came, why = measure(environments, [[p[1], c[1]] for p, c in left], versions)
                for producer, consumer in left:
                    key, pair = (labels[producer], labels[consumer]), (producer[1], consumer[1])
                    if pair in came:
                        pairs[key] = {step: shown(outcome) for step, outcome in came[pair].items()}
                        reasons.pop(key, None)
                    elif pair in why:
                        reasons[key] = shown(why[pair])
            print(f"{one} and {other}: {len(pairs)} pairs, {len(reasons)} not measured", flush=True)
    for producer in labels.values():
        for consumer in labels.values():
            if (producer, consumer) not in pairs:
                reasons.setdefault((producer, consumer), "two versions of one library do not load in one process")
    write(Path(path), sorted(labels.values(), key=str.lower), pairs, reasons)


def both_ways(libraries, one, other):
    for a in libraries[one]:
        for b in libraries[other]:
            yield (one, a), (other, b)
            if one != other:
                yield (other, b), (one, a)


def write(path, labels, pairs, reasons):
    """One line for each pair. Steps with the same outcome are together."""
    lines = []
    for producer, consumer in sorted({*pairs, *reasons}, key=lambda pair: tuple(map(str.lower, pair))):
        told = {"producer": producer, "consumer": consumer}
        if (producer, consumer) in pairs:
            outcomes = collections.defaultdict(list)
            for step, outcome in pairs[producer, consumer].items():
                outcomes[outcome].append(step)
            told["outcomes"] = outcomes
        else:
            told["unmeasured"] = reasons[producer, consumer]
        lines.append("  " + json.dumps(told, ensure_ascii=False))
    text = json.dumps(labels) + ",\n"
    path.write_text('{\n "libraries": ' + text + ' "pairs": [\n' + ",\n".join(lines) + "\n ]\n}\n", encoding="utf-8")
    print(f"{path}: {len(pairs)} pairs, {len(reasons)} not measured")


if __name__ == "__main__":
    main(*sys.argv[1:])

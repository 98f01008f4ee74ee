"""Proves with CBMC, for all inputs within bounds, what the C files of this folder say about the headers.

prove.py [sample | all | mutants | NAME ...]

Without an argument: every proof, in about 4 minutes on two cores. sample: smaller bounds, in about 60 seconds. all:
larger bounds, which may take hours: a run not decided in an hour counts as a failure. mutants: the proof of each
mistake of MUTANTS must hold without the mistake and fail with it. NAME: these proofs.

Each proof is one or more runs of CBMC. All have these checks: array bounds, pointers, signed overflow, shifts, division
by zero, and that no loop runs more often than it is unwound. Checks of unsigned overflow and of conversions are on
where a proof says so: elsewhere the headers wrap on purpose (dlp_checked_add, dlpack_py_size and rest in
dlpack_py_may_overlap), and the proofs compare with 128-bit arithmetic instead.

CBMC 6 comes from Debian trixie. Where it is not installed, its package and the libraries that it needs are downloaded
with apt-get and unpacked into build/cbmc; nothing is installed.
"""

import concurrent.futures
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build"
CBMC = BUILD / "cbmc"
PACKAGES = ["cbmc", "libc6", "libgcc-s1", "libstdc++6", "minisat"]
CHECKS = [
    "--bounds-check",
    "--pointer-check",
    "--signed-overflow-check",
    "--undefined-shift-check",
    "--div-by-zero-check",
    "--unwinding-assertions",
]
HOW = ["--object-bits", "11", "--drop-unused-functions", "--slice-formula", "--trace"]
NO_WRAP = ["--unsigned-overflow-check", "--conversion-check"]
LARGE = ["(INT64_C(1)<<31)+1", "(INT64_C(1)<<62)+1"]  # extents: their products overflow 2^63


class Proof:
    """name: of the function in file. runs: the macros of each run of CBMC; sample, more: of a sample, and of `all`."""

    def __init__(self, name, file, bounds, runs, unwind=4000, flags=(), sample=None, more=None, stop=True):
        self.name, self.file, self.bounds, self.runs = name, file, bounds, runs
        self.unwind, self.flags = unwind, [*flags, *(["--stop-on-fail"] if stop else [])]  # which is usually faster
        self.sample = runs[:1] if sample is None else sample
        self.more = more or []


ITEM = {"BITS": 32, "LANES": 1}  # unless a run has another item


def shapes(rank, extents, **macros):
    """A run for each combination of extents of this rank."""
    return [
        {"RANK": rank, "SHAPE": ",".join(shape), **ITEM, **macros} for shape in itertools.product(extents, repeat=rank)
    ]


def of(rank, *extents, **macros):
    """One run for all combinations of the extents, of each rank up to this one."""
    return {"RANK": rank, "EXTENTS": ",".join(map(str, extents)), **ITEM, **macros}


LINES = [of(1, 0, 1, 3, *LARGE, BITS=bits) for bits in (8, 32, 128)]
COPY = {"ROWS": 2, "ITEMS": 2, "BITS": 8, "ROOM": 40}
COPY_H = {"ROWS": 1, "ITEMS": 4, "BITS": 8, "ROOM": 12, "WITH_COPY_H": 1}  # two rows are not decided in two minutes

PROOFS = [
    Proof(
        "validate",
        "tensor.c",
        "any strides, address, offset, device, code and flags",
        [of(1, 0, 1, 2, *LARGE), of(2, 0, 3, LARGE[1], BITS=4), *shapes(2, [LARGE[0]])],
        sample=[of(1, 0, 1, 2, *LARGE)],
        stop=False,
        more=[of(2, 0, 1, 3, *LARGE, BITS=bits) for bits in (1, 6, 8, 64, 128)] + shapes(3, ["1", "3", LARGE[0]]),
    ),
    Proof(
        "malformed",
        "tensor.c",
        "any extents, rank, pointers and dtype",
        [{"RANK": 1}],
        3,
        more=[{"RANK": 2}],
        sample=[],
    ),
    Proof(
        "simple_layout",
        "tensor.c",
        "any strides, address, offset, device, code and flags",
        [*LINES, *shapes(2, ["1", "3", LARGE[0]])],
        sample=[*LINES, *shapes(2, ["3"])],
        more=shapes(2, ["0", "2", LARGE[1]]) + shapes(2, ["3"], BITS=128) + shapes(3, ["3"]),
    ),
    Proof(
        "byte_range",
        "tensor.c",
        "any strides and flags",
        [of(1, 0, 1, 3, *LARGE), *shapes(2, ["3", LARGE[0]]), of(1, 3, LARGE[0], BITS=6, LANES=3)],
        sample=[of(1, 0, 1, 3, *LARGE), of(1, 0, 1, 3, *LARGE, BITS=4)],
        more=[of(2, 0, 1, 3, *LARGE), of(2, 0, 3, LARGE[0], BITS=4)],
    ),
    Proof(
        "strides",
        "tensor.c",
        "orders C, F and another; unsigned overflow and conversions are checked too",
        [of(3, 0, 1, 2, 3, *LARGE)],
        flags=NO_WRAP,
        more=[of(4, 0, 1, 3, *LARGE)],
    ),
    Proof(
        "byte_strides",
        "tensor.c",
        "any strides and flags",
        [of(1, 0, 1, 3, BITS=32), of(1, 0, 1, 3, BITS=4), of(2, 0, 1, 3, BITS=16)],
        more=[of(2, 0, 1, 3, BITS=bits) for bits in (4, 8, 64, 128)] + [of(1, 0, 1, 3, BITS=8, LANES=3)],
    ),
    Proof(
        "contiguity",
        "tensor.c",
        "any strides",
        [of(1, 0, 1, 3, *LARGE), *shapes(2, ["1", "3", LARGE[0]])],
        sample=[of(1, 0, 1, 3, *LARGE), *shapes(2, ["3"])],
        more=shapes(2, ["0", "2", LARGE[1]]) + shapes(3, ["1", "3"]),
    ),
    Proof(
        "self_overlap",
        "tensor.c",
        "strides from -2^40 to 2^40, every pair of indices",
        [of(2, 0, 1, 2, 3)],
        more=shapes(3, ["2", "3"]),
    ),
    Proof(
        "overlap",
        "overlap.c",
        "any flags, byte offsets (or BYTE_OFFSET) and addresses 4,096 bytes from 0 and 2^64, every pair of elements; "
        "strides are not NULL; b of rank 0 or 1",
        [
            of(1, 2, 3, STRIDES="-2,3", BITS=16, BITS_B=8, BYTE_OFFSET=0),
            *(of(1, 2, STRIDES="-2,3", BITS=16, BITS_B=bits) for bits in (8, 16)),
        ],
        sample=[of(1, 2, STRIDES="-2,3", BITS=16, BITS_B=8)],
        more=[
            of(1, 2, 3, STRIDES="-2,3", BITS=16, BITS_B=8),
            of(1, 2, 3, STRIDES="-2,1,3", BITS=16, BITS_B=16, BYTE_OFFSET=0),
            of(2, 2, STRIDES="-2,3", BITS=8, BITS_B=8, BYTE_OFFSET=0),
        ],
    ),
    Proof(
        "copy_rows",
        "copy.c",
        "any steps in ROOM bytes, any contents; WITH_COPY_H: of dlpack_copy.h, without SSE2",
        [COPY, COPY_H],
        9,
        more=[{**COPY, "BITS": 24}, {**COPY, "ROWS": 3, "BITS": 16}],
    ),
    Proof("copy_bits", "copy.c", "up to 15 bits, any bit offsets from -8 to 7, any contents", [{}], 18),
]

# Mistakes: (proof, macros of the run that must fail, header, text, wrong text).
T = "dlpack_tensor.h"
ONE, TWO = of(1, 2, 3), of(2, 2)
MUTANTS = [
    (
        "validate",
        ONE,
        T,
        "if ((uint64_t)-lowest > base + t->byte_offset || (uint64_t)highest > UINTPTR_MAX - (base + t->byte_offset))",
        "if ((uint64_t)-lowest > base + t->byte_offset)",
    ),
    ("validate", ONE, T, "if (t->byte_offset > UINTPTR_MAX - base)", "if (0)"),
    ("malformed", {"RANK": 1}, T, "if (t->shape[i] < 0)", "if (t->shape[i] < -1)"),
    ("simple_layout", ONE, T, "size * 16 <= UINTPTR_MAX", "size <= UINTPTR_MAX"),
    ("simple_layout", of(1, 2, 3, BITS=128), T, "size * 16 <= UINTPTR_MAX", "size * 4 <= UINTPTR_MAX"),
    ("simple_layout", of(1, 2, 3, BITS=128), T, "(reach + 1) * 16 > UINTPTR_MAX", "(reach + 1) * 4 > UINTPTR_MAX"),
    ("simple_layout", ONE, T, " || step > INT64_MAX / 64 - reach)", ")"),
    ("byte_range", ONE, T, "int64_t below = 0, above = 1, reach;", "int64_t below = 0, above = 0, reach;"),
    ("byte_range", ONE, T, "*lowest = -*lowest;", ""),
    ("strides", TWO, T, "const int32_t i = order == 'F' ? k : ndim - 1 - k;", "const int32_t i = k;"),
    ("strides", of(2, LARGE[1]), T, " && (uint64_t)shape[i] <= INT64_MAX / step)", ")"),
    ("byte_strides", ONE, T, "if (t->shape[i] > 1 && strides[i] % size != 0)", "if (0)"),
    ("contiguity", ONE, T, "order == 'R' && t->ndim > 1 ?", "order == 'R' ?"),
    ("contiguity", ONE, T, "if (t->strides[i] != (int64_t)reach + 1)", "if (step != reach + 1)"),
    (
        "self_overlap",
        TWO,
        T,
        "        if (step <= reach)\n            return 0;",
        "        if (step < reach)\n            return 0;",
    ),
    (
        "overlap",
        of(1, 2, STRIDES="-2,3", BITS=16, BITS_B=8),
        T,
        "rest % divisor : rest) <= reach",
        "rest % divisor : rest) < reach",
    ),
    (
        "copy_rows",
        COPY,
        T,
        "memcpy(out + i * items->to_step,",
        "memcpy(out + i * items->from_step,",
    ),
    ("copy_rows", COPY, T, "row < rows->count", "row <= rows->count"),
    ("copy_rows", COPY_H, "dlpack_copy.h", "f + 3 * step_from, bytes", "f + 2 * step_from, bytes"),
    ("copy_bits", {}, T, "kept | bit << (to_bit & 7)", "kept | bit << (from_bit & 7)"),
]


class Missing(Exception):
    """CBMC cannot be had here."""


def apt_world(folder):
    """A configuration of apt with the packages of trixie, which changes nothing of the machine."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Label: Debian"],
        capture_output=True,
        text=True,
    )
    if not listed.stdout.strip():
        raise Missing("apt knows no Debian mirror")
    for name in ("parts", "state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "parts" / "trixie.sources").write_text(
        f"Types: deb\nURIs: {listed.stdout.split()[0]}\nSuites: trixie\nComponents: main\nCheck-Valid-Until: no\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    (folder / "apt.conf").write_text(
        f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{folder}/parts";\nDir::State "{folder}/state";\n'
        f'Dir::State::status "{folder}/status";\nDir::Cache "{folder}/cache";\n'
        f'APT::Sandbox::User "{os.environ.get("USER", "root")}";\n'
    )
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}


def fetch():
    """Unpacks CBMC into build/cbmc."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Missing("it is not installed, and without apt-get it cannot be downloaded")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = apt_world(folder)
        for command in (["apt-get", "update", "-qq"], ["apt-get", "download", "-qq", *PACKAGES]):
            done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
            if done.returncode != 0:
                raise Missing(f"{' '.join(command[:2])} failed: {done.stderr.strip().splitlines()[-1:]}")
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, folder / "all"], check=True)
        shutil.rmtree(CBMC, ignore_errors=True)
        shutil.copytree(folder / "all", CBMC, symlinks=True)


def cbmc():
    """The command of CBMC 6: installed, or in build/cbmc with its own C library."""
    installed = shutil.which("cbmc")
    if installed and subprocess.run([installed, "--version"], capture_output=True, text=True).stdout.startswith("6."):
        return [installed]
    if not (CBMC / "usr" / "bin" / "cbmc").exists():
        fetch()
    folders = [*sorted((CBMC / "usr" / "lib").glob("*-linux-gnu")), CBMC / "usr" / "lib"]
    library = ":".join(map(str, folders))
    loader = next(CBMC.glob("usr/lib*/**/ld-linux-*"))
    return [str(loader), "--library-path", library, str(CBMC / "usr" / "bin" / "cbmc")]


def dlpack_include():
    import tvm_ffi.libinfo

    return tvm_ffi.libinfo.find_dlpack_include_path()


def run(command, proof, macros, headers=ROOT, limit=3600):
    """One run of CBMC. Returns (result, seconds, output); result is "proved", "FAILED" or what went wrong."""
    begin = time.monotonic()
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    unwind = ["--unwind", str(proof.unwind)]
    include = [f"-I{headers}", f"-I{HERE}", f"-I{dlpack_include()}"]
    arguments = [*include, *defines, "--function", proof.name, *unwind, *CHECKS, *proof.flags, *HOW, HERE / proof.file]
    try:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=limit)
        text = done.stdout + done.stderr
        result = {0: "proved", 10: "FAILED"}.get(done.returncode, f"ERROR {done.returncode}")
    except subprocess.TimeoutExpired:
        text, result = "", f"not decided in {limit} s"
    return result, time.monotonic() - begin, text


def counterexample(text):
    """The violated property and the values of the harness that lead to it, at most 30 lines."""
    parts = text.split("Violated property:")
    values = {}
    for name, value in re.findall(r"^  ([\w.\[\]>-]+)=(.+?)(?: \([01 ]+\))?$", parts[0], re.M):
        if not name.startswith(("__CPROVER", "goto_symex", "return_value")):
            values[name] = value
    lines = [f"    {name} = {value}" for name, value in list(values.items())[-24:]]
    return "\n".join(lines + [f"    {line.strip()}" for line in parts[-1].splitlines() if line.strip()][:6])


def text_of(macros):
    return " ".join(f"{name}={value}" for name, value in macros.items()) or "-"


def bounds_of(runs):
    """The bounds of all runs on one line: runs that differ in SHAPE alone are put together."""
    grouped = {}
    for macros in runs:
        rest = text_of({name: value for name, value in macros.items() if name != "SHAPE"})
        grouped.setdefault(rest, []).append(macros.get("SHAPE"))
    return "; ".join(
        rest + (f" SHAPE={' | '.join(group)}" if group[0] is not None else "") for rest, group in grouped.items()
    ).replace("INT64_C(1)<<", "2^")


def prove(command, proofs):
    """proofs: (proof, runs). Prints a line for each; returns how many failed."""
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [
            (proof, runs, [pool.submit(run, command, proof, macros) for macros in runs]) for proof, runs in proofs
        ]
        for proof, runs, pending in futures:
            results = [future.result() for future in pending]
            wrong = [(macros, result) for macros, result in zip(runs, results) if result[0] != "proved"]
            seconds = sum(result[1] for result in results)
            state = "proved" if not wrong else "FAILED"
            print(
                f"{state} {proof.name:14} {seconds:5.0f} s, {len(runs)} runs: {proof.bounds}; {bounds_of(runs)}",
                flush=True,
            )
            for macros, (result, _, text) in wrong:
                failures += 1
                print(f"  {result}: {text_of(macros)}\n{counterexample(text) if result == 'FAILED' else text[-2000:]}")
    return failures


def mutate(command):
    """Each mistake, in a copy of its header, must make its proof fail. Returns how many did not."""

    def one(mutant):
        name, macros, header, right, wrong = mutant
        proof = next(proof for proof in PROOFS if proof.name == name)
        with tempfile.TemporaryDirectory() as folder:
            for file in ROOT.glob("dlpack*.h"):
                shutil.copy(file, folder)
            text = (ROOT / header).read_text()
            if text.count(right) != 1:
                return f"{text.count(right)} places, 1 was wanted", 0, ""
            result = run(command, proof, macros, headers=folder, limit=300)
            if result[0] != "proved":
                return f"without the mistake: {result[0]}", *result[1:]
            (Path(folder) / header).write_text(text.replace(right, wrong))
            return run(command, proof, macros, headers=folder, limit=300)

    survivors = 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for mutant, (result, seconds, _) in zip(MUTANTS, pool.map(one, MUTANTS)):
            survivors += result != "FAILED"
            state = "found" if result == "FAILED" else f"NOT FOUND ({result})"
            print(f"{state} by {mutant[0]}, {seconds:.0f} s: {mutant[3]!r} -> {mutant[4]!r}", flush=True)
    return survivors


def main(arguments):
    try:
        command = cbmc()
    except Missing as missing:
        print(f"SKIPPED: nothing is proved, no CBMC 6: {missing}")
        return 0
    if arguments == ["mutants"]:
        return 1 if mutate(command) else 0
    known = {proof.name: proof for proof in PROOFS}
    if arguments == ["sample"]:
        chosen = [(proof, proof.sample) for proof in PROOFS if proof.sample]
    elif arguments == ["all"]:
        chosen = [(proof, proof.runs + proof.more) for proof in PROOFS]
    else:
        chosen = [(known[name], known[name].runs) for name in arguments or known]
    begin = time.monotonic()
    failures = prove(command, chosen)
    print(f"{len(chosen)} proofs in {time.monotonic() - begin:.0f} s, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

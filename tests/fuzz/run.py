"""Builds the fuzz targets with clang and libFuzzer, and runs them: see CONTRIBUTING.md.

run.py [--seconds 60] [TARGET ...]    fuzzes: a line for each target; the status is 1 if one has failed
run.py --replay [TARGET ...]          runs each input of the corpora once
run.py --choose [TARGET ...]          writes the corpora again: of the inputs that were found, the 20 that reach most

Two targets run at a time. All that is written is in build/fuzz: programs, logs, inputs that were found, and crashes.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "fuzz"
BUILD = ROOT / "build" / "fuzz"
MAX_SEEDS = 20
MAX_BYTES = 300

# The source file and the flags of each target; which have a Python is seen from what they include.
TARGETS = {
    "layout": ("layout.c",),
    "copy": ("copy.c",),
    "copy_fast": ("copy.c", "-include", "dlpack_copy.h"),
    "request": ("request.c",),
    "consume": ("consume.c",),
    "exchange": ("exchange.c",),
    "buffers": ("buffers.c",),
    "arrow": ("arrow.c",),
}
FLAGS = "-std=gnu11 -g -Wall -Wextra -Werror -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all".split()


class Missing(Exception):
    """Something that the machine lacks."""


@functools.cache
def find_clang():
    """The first clang that has libFuzzer, and the wide integers of fuzz.h."""
    names = [os.environ.get("FUZZ_CLANG"), "clang-19", "clang"]
    BUILD.mkdir(parents=True, exist_ok=True)
    for clang in filter(None, map(shutil.which, filter(None, names))):
        program = (
            "int LLVMFuzzerTestOneInput(const char *bytes, long size) { return bytes == 0 && (_BitInt(256))size < 0; }"
        )
        command = [clang, "-fsanitize=fuzzer,address,undefined", "-x", "c", "-", "-o", str(BUILD / "has-libfuzzer")]
        if subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0:
            return clang
    raise Missing("clang with libFuzzer: not on this machine")


def find_dlpack():
    """The folder of dlpack.h, in the package of this Python."""
    import importlib.util

    found = importlib.util.find_spec("tvm_ffi")
    if found is None:
        raise Missing("the package apache-tvm-ffi: not on this machine")
    return pathlib.Path(found.submodule_search_locations[0], "include")


def find_cuda():
    """Flags for the headers of CUDA: those of the package, or of a toolkit; none where there are none."""
    import sysconfig

    folders = [
        pathlib.Path(sysconfig.get_path("purelib"), "nvidia/cu13/include"),
        pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include"),
    ]
    return next((["-isystem", str(f)] for f in folders if (f / "cuda_runtime_api.h").exists()), [])


def find_python():
    """Flags to embed this Python, or that of the system, whichever has a shared library."""
    script = (
        "import json, sys, sysconfig as s; print(json.dumps([sys.implementation.name, sys.base_prefix, "
        "s.get_path('include'), s.get_config_var('LIBDIR'), s.get_config_var('LDLIBRARY')]))"
    )
    for python in (sys.executable, "/usr/bin/python3"):
        if not os.path.exists(python):
            continue
        answer = subprocess.run([python, "-c", script], text=True, capture_output=True, check=True).stdout
        name, home, include, folder, library = json.loads(answer)
        if name != "cpython" or not library or not library.endswith(".so"):
            continue
        if os.path.exists(f"{include}/Python.h") and os.path.exists(f"{folder}/{library}"):
            return [
                *["-isystem", include, f'-DFUZZ_PYTHON_HOME="{home}"', f"{folder}/{library}", f"-Wl,-rpath,{folder}"],
                "-ldl",
            ]
    raise Missing("libpython: not on this machine")


def has_python(target):
    return "embedded.h" in (HERE / TARGETS[target][0]).read_text()


def build(target, clang, level="-O1"):
    """Builds a target, if one of its files is newer than the program. -O0 compiles in a quarter of the time."""
    program = BUILD / (target if level == "-O1" else f"{target}-quick")
    sources = [*ROOT.glob("*.h"), *HERE.glob("*.[ch]"), *ROOT.glob("examples/arrow/*.c"), pathlib.Path(__file__)]
    if program.exists() and program.stat().st_mtime > max(s.stat().st_mtime for s in sources):
        return program
    source, *flags = TARGETS[target]
    python = [*find_cuda(), *find_python()] if has_python(target) else []
    command = [clang, level, *FLAGS, "-I.", "-isystem", str(find_dlpack()), *flags, f"tests/fuzz/{source}", *python]
    subprocess.run([*command, "-o", str(program)], cwd=ROOT, check=True)
    return program


def fuzz(target, program, arguments, folders):
    """Runs the program of a target. Returns the lines to print, and whether it has failed."""
    crashes = BUILD / "crashes"
    crashes.mkdir(exist_ok=True)
    earlier = set(crashes.iterdir())
    begin = time.monotonic()
    done = subprocess.run(
        [
            str(program),
            *["-print_final_stats=1", f"-max_len={MAX_BYTES}", "-len_control=20", "-timeout=20", "-rss_limit_mb=2048"],
            *[f"-artifact_prefix={crashes}/{target}-", *arguments, *map(str, folders)],
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    seconds = time.monotonic() - begin
    log = done.stdout.decode(errors="replace")
    (BUILD / f"{target}.log").write_text(log)
    executions = re.findall(r"^stat::number_of_executed_units:\s+(\d+)", log, re.M) or ["0"]
    reached = re.findall(r"cov: (\d+) ft: (\d+)", log) or [("0", "0")]
    lines = [
        f"{target:<10}{int(executions[-1]):>12,} executions  cov: {reached[-1][0]:>5}  ft: {reached[-1][1]:>6}"
        f"{seconds:>7.0f} s  crashes: {int(done.returncode != 0)}"
    ]
    if done.returncode != 0:
        lines += re.findall(r"^.*(?: not true: |runtime error: |^==\d+== ?ERROR: |^SUMMARY: ).*$", log, re.M)
        for path in sorted(set(crashes.glob(f"{target}-*")) - earlier):
            lines.append(f"again: {program} {path}".replace(f"{ROOT}/", ""))
        lines.append(f"log: build/fuzz/{target}.log")
    return "\n    ".join(lines), done.returncode != 0


def start(target, clang, seconds):
    """Fuzzes a target from its corpus, and from what earlier runs have found."""
    corpus = BUILD / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in (HERE / "corpus" / target).glob("*"):
        shutil.copy(seed, corpus / f"seed-{seed.name}")
    return fuzz(target, build(target, clang), [f"-max_total_time={seconds}"], [corpus])


def replay(target, clang):
    return fuzz(target, build(target, clang, "-O0"), ["-runs=0"], [HERE / "corpus" / target])


def choose(target, clang):
    """Writes the corpus of a target: at each step the input that reaches most of what none has reached yet."""
    to, control, merged = HERE / "corpus" / target, BUILD / f"{target}.merge", BUILD / "merged" / target
    control.unlink(missing_ok=True)
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    folders = [str(merged), str(BUILD / "corpus" / target)]
    subprocess.run(
        [str(build(target, clang)), "-set_cover_merge=1", "-timeout=20", f"-merge_control_file={control}", *folders],
        capture_output=True,
        check=True,
    )
    shutil.rmtree(merged)
    count, _, *lines = control.read_text().splitlines()
    names, lines = lines[: int(count)], lines[int(count) :]
    features = {}
    for line in lines:
        kind, index, *numbers = line.split()
        if kind == "FT" and os.path.getsize(names[int(index)]) <= MAX_BYTES:
            features[names[int(index)]] = set(numbers)
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    reached = set()
    for number in range(1, MAX_SEEDS + 1):
        best = max(sorted(features), key=lambda name: (len(features[name] - reached), -os.path.getsize(name)))
        if features[best] <= reached:
            break
        reached |= features[best]
        shutil.copyfile(best, to / f"{number:02}")
    everything = len(set().union(*features.values()))
    return (
        f"{target:<10} {len(list(to.iterdir()))} of {len(features)} inputs reach {len(reached)} of {everything}",
        False,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    unknown = set(options.targets) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}: there are {', '.join(TARGETS)}")
    targets = options.targets or list(TARGETS)
    try:
        clang = find_clang()
    except Missing as missing:
        print(f"SKIPPED: {missing}")
        return 0
    try:
        find_python()
    except Missing as missing:
        print(f"SKIPPED: {', '.join(filter(has_python, targets))}: {missing}")
        targets = [target for target in targets if not has_python(target)]

    def work(target):
        try:
            if options.replay:
                return replay(target, clang)
            return choose(target, clang) if options.choose else start(target, clang, options.seconds)
        except subprocess.CalledProcessError as error:
            return f"{target:<10} {pathlib.Path(error.cmd[0]).name} failed", True

    any_failed = False
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for future in [pool.submit(work, target) for target in targets]:
            line, failed = future.result()
            any_failed |= failed
            print(line, flush=True)
    return any_failed


if __name__ == "__main__":
    sys.exit(main())

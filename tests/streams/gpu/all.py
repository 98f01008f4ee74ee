"""All that this project wants of one NVIDIA GPU, in one command that ends in time: `make gpu-all` runs it.

    all.py [--seconds 570] [--to FOLDER]

Works in a copy of the project, FOLDER/tree. Writes summary.txt (what is printed), log.txt (all output), machine.txt and
measures.json into FOLDER. Each stage has a limit; what is most wanted comes first, what can stop a GPU last. With
DLPACK_PY_SIMULATED_GPU the simulated runtime stands in for the GPU: a dry run. No network is needed: dlpack.h, pytest
and pytest-timeout may be in build/gpu-packages (`make gpu-packages`).
"""

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SIMULATED = "DLPACK_PY_SIMULATED_GPU" in os.environ
PACKAGES = ROOT / "build" / "gpu-packages"
CUDA = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
SHOWN = re.compile(r"(FAILED|ERROR|SKIPPED|RESULT|MISSING)")
FILES = ["exchanges", "capture", "facts", "costs", "example", "libraries"]
LAST = "sanitizer or managed"  # these can stop a GPU
LATE = ["managed and not sanitizer", "sanitizer"]

# Mistakes in dlpack_device.h: what is wrong, a text that the file has once, and its replacement. The suite must fail
# with each, except with the first, which is none.
HEADER = "dlpack_device.h"
MUTANTS = [
    ("no mistake", "#define DLPACK_DEVICE_PER_THREAD_STREAM 2u", "#define DLPACK_DEVICE_PER_THREAD_STREAM 2u"),
    (
        "the consumer's stream does not wait",
        "DLPACK_DEVICE_CALL(StreamWaitEvent, (dlp_device_handle(after.handle), event, 0), error) < 0;",
        "0;",
    ),
    (
        "work of another thread's per-thread stream is not ordered",
        "stream->handle != DLPACK_DEVICE_PER_THREAD_STREAM || *id != 0)",
        "1)",
    ),
    (
        "a tensor is released before the work on it is done",
        "if (failed || !is_here || !dlp_device_event_is_done(first->event)) {",
        "if (failed || !is_here) {",
    ),
    (
        "a query is not in the relaxed mode",
        "    *mode = DLPACK_DEVICE_API(StreamCaptureModeRelaxed);\n",
        "    *mode = DLPACK_DEVICE_API(StreamCaptureModeGlobal);\n",
    ),
    (
        "the host does not wait for a copy",
        "is_unfinished = DLPACK_DEVICE_CALL(StreamSynchronize, (handle), failed ? NULL : error);",
        "is_unfinished = 0;",
    ),
    (
        "a consumer in a capture does not look at work outside of it",
        "if (captures[i] != joined && dlp_device_check_done(guard, before[i], error) < 0)",
        "if (0)",
    ),
]
# The tests that must notice a mistake.
NOTICING = f"(two_extensions or host_s_copy or S6) and not torch and not gpus and not ({LAST})"


class Stages:
    """Runs commands one after the other, each with a limit, all within a number of seconds."""

    def __init__(self, folder, seconds):
        self.began, self.seconds, self.failed = time.monotonic(), seconds, []
        self.summary = (folder / "summary.txt").open("w")
        self.log = (folder / "log.txt").open("w")

    def say(self, text):
        line = f"[{time.monotonic() - self.began:3.0f} s] {text}"
        print(line, flush=True)
        print(line, file=self.summary, flush=True)

    def run(self, name, seconds, *command, show=True, **environment):
        """Returns the exit status of the command, or None: it was stopped at its limit, or there was no time."""
        left = self.seconds - (time.monotonic() - self.began)
        if left < 5:
            self.say(f"{name}: NO TIME LEFT")
            self.failed.append(name)
            return None, ""
        child = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=min(seconds, left))
            status = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, status = child.communicate()[0], None
        print(f"==== {name}\n{output}", file=self.log, flush=True)
        if show:
            last = (output.strip().splitlines() or [""])[-1].strip("= ")[:160]
            self.say(f"{name}: {'STOPPED AT ITS LIMIT' if status is None else f'status {status}'}; {last}")
            for line in filter(SHOWN.match, output.splitlines()):
                self.say(f"    {line[:240]}")
            if status != 0:
                self.failed.append(name)
        return status, output


def copy_tree(tree):
    shutil.rmtree(tree, ignore_errors=True)
    left_out = {".git", ".venv", "build"}
    shutil.copytree(ROOT, tree, ignore=lambda path, names: left_out if Path(path) == ROOT else {"__pycache__"})


def first_lines(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return done.stdout.strip()


def describe_machine(path):
    query = "--query-gpu=name,driver_version,memory.total,clocks.sm"
    path.write_text(
        "\n".join(
            [
                first_lines("nvidia-smi", query, "--format=csv,noheader"),
                first_lines("nvcc", "--version"),
                first_lines("uname", "-a"),
                sys.version,
                first_lines(sys.executable, "-m", "pip", "list"),
            ]
        )
    )
    return path.read_text().splitlines()[0]


def main(folder, seconds):
    folder.mkdir(parents=True, exist_ok=True)
    stages, tree = Stages(folder, seconds), folder / "tree"
    os.environ["PATH"] += f"{os.pathsep}{CUDA / 'bin'}"
    stages.say(f"machine: {'simulated' if SIMULATED else describe_machine(folder / 'machine.txt')}")
    found = subprocess.run([sys.executable, Path(__file__).with_name("driver.py")], capture_output=True, text=True)
    if not SIMULATED and found.returncode != 0:
        stages.say(f"MISSING: {found.stderr.strip()}. SIMULATED=1 is a dry run")
        return 1
    copy_tree(tree)
    build = tree / "build"
    modules = [build / "simulated_gpu", build / "python"] if SIMULATED else [build / "python"]
    os.environ.update(
        PYTHONPATH=os.pathsep.join(map(str, [*modules, PACKAGES, tree / "tests"])),
        DLPACK_PY_BUILD_DIR=str(build / "python"),
        PYTHONUNBUFFERED="1",
        PYTHONDONTWRITEBYTECODE="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        CUDA_DEVICE_MAX_CONNECTIONS="32",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    sys.path.append(str(PACKAGES))
    limit = ["-p", "pytest_timeout", "--timeout", "60", "--timeout-method", "thread"]
    if importlib.util.find_spec("pytest_timeout") is None:
        stages.say("MISSING: pytest-timeout: a test that hangs ends its stage: `make gpu-packages` gets it")
        limit = []
    tests = tree / "tests" / "streams" / "gpu"
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rfE", "-c", tree / "pytest.ini"]
    pytest += ["--rootdir", tree, *limit]

    if importlib.util.find_spec("tvm_ffi") is None:
        stages.say("MISSING: dlpack.h: `make gpu-packages` gets it, on a machine with a network")

    # The build
    target = "simulated_gpu" if SIMULATED else "gpu"
    probes = [f"{'simulated_' if SIMULATED else ''}gpu_{name}" for name in ("probe", "other")]
    options = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DCMAKE_BUILD_TYPE={'Debug' if SIMULATED else 'RelWithDebInfo'}",
    ]
    if not SIMULATED:
        architectures = os.environ.get("DLPACK_PY_GPU_ARCHITECTURES", "90")
        options += ["-DDLPACK_PY_GPU_TESTS=ON", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"]
    configured, _ = stages.run("configure", 60, "cmake", "-S", tree, "-B", build, "-G", "Ninja", *options)
    built, output = stages.run("build", 150, "cmake", "--build", build, "--target", target)
    if configured != 0 or built != 0:
        print(output[-3000:])
        stages.say("without a build nothing else runs")
        return 1

    # What the handshake costs the host, beside the bare calls
    handshake = build / ("simulated_gpu" if SIMULATED else "benchmarks") / "handshake"
    for number in range(1 if SIMULATED else 3):
        stages.run(f"handshake {number + 1}", 30, handshake, 2 if SIMULATED else 200)

    # Order under long kernels, a soak, captures, latencies
    stages.run("measures", 150, sys.executable, tests / "measure.py", folder / "measures.json")

    # The suite, a process for each file: a test that hangs ends the tests of its file alone
    for file in FILES:
        stages.run(f"test_{file}", 90, *pytest, "-v", tests / f"test_{file}.py", "-k", f"not ({LAST})")

    # Mistakes
    header = tree / HEADER
    original = header.read_text()
    for number, (wrong, text, other) in enumerate(MUTANTS):
        assert original.count(text) == 1, f"{HEADER} has this text {original.count(text)} times: {text}"
        header.write_text(original.replace(text, other))
        status, output = stages.run("build", 60, "cmake", "--build", build, "--target", *probes, show=False)
        if status == 0:
            files = [tests / f"test_{name}.py" for name in ("exchanges", "capture")]
            status, output = stages.run("mutant", 40, *pytest, "-q", "-x", *files, "-k", NOTICING, show=False)
        by = re.search(r"^(?:FAILED|ERROR) \S*::(\S+)", output, re.MULTILINE)
        right = status == 0 if number == 0 else by is not None
        stages.failed += [] if right else [f"mutant {number}"]
        stages.say(
            f"    {'RESULT' if right else 'FAILED'} mutant {number}, {wrong}: {by[1] if by else f'status {status}'}"
        )
    header.write_text(original)

    # What can stop a GPU
    stages.run("build again", 60, "cmake", "--build", build, "--target", *probes)
    for name, chosen in zip(("managed memory", "sanitizer"), LATE):
        stages.run(name, 90, *pytest, "-v", tests, "-k", chosen)
    stages.say(f"done; failed: {', '.join(stages.failed) or 'nothing'}")
    return 1 if stages.failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=570)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "gpu-all")
    given = parser.parse_args()
    sys.exit(main(given.to.resolve(), given.seconds))

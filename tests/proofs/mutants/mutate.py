"""Makes mistakes in a copy of the headers, and lists those that no test notices.

    mutate.py FOLDER COUNT TESTS ...    works in a copy of the project in FOLDER; tries COUNT mutants, 0: all of them

make.py puts all mutants into one copy of the headers, which is built once. One process of pytest collects the tests of
the folders TESTS and forks. Its children run all tests without a mutant: so it is known which tests reach which mutant,
and how long a test takes. Then pytest forks for each mutant. The child runs the tests that reach the mutant until one
fails, the fastest first. A crash, or a child that takes too long, counts as a failure. COUNT mutants are always the
same ones, as long as their text is the same.

explained.txt lists mutants that no test can notice, each with its reason. The exit status is 1 if another one survives.
With MUTANTS_KEEP=1 in the environment, the copy of an earlier run is used again.
"""

import ctypes
import hashlib
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = map(str, (HERE, HERE.parent, HERE.parents[1] / "build"))
import machine  # noqa: E402
import make  # noqa: E402
import reasons  # noqa: E402

# A source that is compiled with the flags of these headers, the headers that get mutants, and how to include them.
PARTS = (
    (
        "consumer_probe.c",
        ["dlpack_tensor.h", "dlpack_py.h", "dlpack_exchange.h", "dlpack_buffer.h"],
        '#include "dlpack_exchange.h"\n#include "dlpack_buffer.h"\n',
    ),
    ("copying.c", ["dlpack_copy.h"], '#define DLPACK_COPY_PORTABLE\n#include "dlpack_copy.h"\n'),
    (
        "device_probe.c",
        ["dlpack_device.h", "dlpack_cuda_array_interface.h"],
        '#include "dlpack_exchange.h"\n#include "dlpack_cuda_array_interface.h"\n#include "dlpack_cuda.h"\n',
    ),
)
LIMIT = 60  # seconds of tests for a mutant, at most: the tests that are left out are counted
AT_ONCE = os.cpu_count()


# ---- The copy with all mutants ----


def run(*command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def prepare(folder):
    """Writes and builds the copy. Returns the mutants, as dictionaries."""
    machine.copy_project(folder)
    configure = ["-S", ".", "-B", "build/mutants", "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
    flags = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS=-w -O0 -D_GNU_SOURCE", "-DCMAKE_CXX_FLAGS=-w -O0"]
    run("cmake", *configure, *flags, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", cwd=folder)
    commands = json.loads((folder / "build" / "mutants" / "compile_commands.json").read_text())
    mutants = []
    for source, headers, includes in PARTS:
        command = [c["command"].split() for c in commands if c["file"].endswith(source)][-1]
        mutants += make.instrument(folder, headers, includes, include_flags(command), len(mutants))
    run("cmake", "--build", "build/mutants", "--target", "all", "streams", cwd=folder)
    return [vars(mutant) for mutant in mutants]


def include_flags(command):
    """The flags of a compile command that name folders and macros, and the folder of the compiler's own headers."""
    flags = [flag for flag in command if flag.startswith(("-I", "-D"))]
    for flag, value in zip(command, command[1:]):
        if flag == "-isystem":
            flags += [flag, value]
    gcc = run("gcc", "-print-file-name=include", cwd=HERE).strip()
    return [*flags, "-isystem", gcc, "-std=gnu11"]


# ---- Inside pytest ----


class Map:
    """The file that the modules of this process map."""

    def __init__(self, name):
        self.path = Path(os.environ["MUTANTS_FOLDER"], f"{name}.map")
        self.path.write_bytes(bytes(make.SIZE))
        os.environ["DLPACK_PY_MUTANT"] = str(self.path)
        with open(self.path, "r+b") as file:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            at = ctypes.c_void_p(make.ADDRESS)
            protection, fixed = mmap.PROT_READ | mmap.PROT_WRITE, 0x10
            flags = mmap.MAP_SHARED | fixed
            where = libc.mmap(at, ctypes.c_size_t(make.SIZE), protection, flags, file.fileno(), ctypes.c_long(0))
            assert where == make.ADDRESS, "the file is not mapped at its address"
            self.bytes = mmap.mmap(file.fileno(), make.SIZE)

    def choose(self, number):
        self.bytes[:4] = number.to_bytes(4, sys.byteorder)

    def take_reached(self):
        notes = self.bytes[4:]
        self.bytes[4:] = bytes(len(notes))
        return {number for number, note in enumerate(notes) if note}


class Plugin:
    """Runs all tests without a mutant, then some tests with each mutant."""

    def __init__(self):
        self.failed = None
        Map("parent")

    def pytest_runtest_logreport(self, report):
        if report.failed and self.failed is None:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session):
        programs = [json.loads(line) for line in os.environ["MUTANTS_PROGRAMS"].splitlines()]
        mutants = json.loads(Path(os.environ["MUTANTS_FOLDER"], "chosen.json").read_text())
        everything = [*programs, *session.items]
        reach, seconds = self.measure(session, everything)
        tests = [test for test in everything if id(test) in reach]
        print(
            f"\nwithout a mutant: {len(tests)} of {len(everything)} tests pass, {sum(seconds.values()):.0f} s",
            flush=True,
        )
        waiting, running = list(reversed(mutants)), {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                mutant = waiting.pop()
                able = [test for test in tests if mutant["number"] in reach[id(test)]]
                able.sort(key=lambda test: seconds[id(test)])
                total, used = 0.0, []
                for test in able:
                    total += seconds[id(test)]
                    if total < LIMIT or not used:
                        used.append(test)
                pid = self.fork(session, mutant, used)
                limit = 30 + 4 * sum(seconds[id(test)] for test in used)
                running[pid] = mutant, time.monotonic() + limit, len(used), len(able)
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                for pid, (_, end, _, _) in running.items():
                    if time.monotonic() > end:
                        os.killpg(pid, signal.SIGKILL)
                time.sleep(0.01)
            elif pid in running:
                self.report(status, *running.pop(pid))
        return True

    def measure(self, session, tests):
        """Runs the tests without a mutant, a file at a time, in AT_ONCE processes. Returns two dictionaries, whose keys
        are the id() of a test: the mutants that each passing test reaches, and the seconds of each test."""
        files = {}
        for number, test in enumerate(tests):
            files.setdefault(number if isinstance(test, list) else str(test.path), []).append(number)
        files = list(files.values())
        queue, writer = os.pipe()  # of the numbers of files
        os.write(writer, b"".join(number.to_bytes(4, "little") for number in range(len(files))))  # a pipe holds 64 KiB
        os.close(writer)
        folder = Path(os.environ["MUTANTS_FOLDER"])
        results = [folder / f"measured-{process}.json" for process in range(AT_ONCE)]
        for process, result in enumerate(results):
            if os.fork() == 0:
                self.close_streams()
                self.map = Map(f"measured-{process}")
                with open(result, "w", buffering=1) as file:
                    while number := os.read(queue, 4):
                        for test in files[int.from_bytes(number, "little")]:
                            began = time.perf_counter()
                            failed = self.fails(session, tests[test], None)
                            reached = sorted(self.map.take_reached())
                            print(json.dumps([test, failed, time.perf_counter() - began, reached]), file=file)
                os._exit(0)
        for _ in range(AT_ONCE):
            os.wait()
        os.close(queue)
        lines = [json.loads(line) for result in results for line in result.read_text().splitlines()]
        reach = {id(tests[test]): set(reached) for test, failed, _, reached in lines if not failed}
        return reach, {id(tests[test]): seconds for test, _, seconds, _ in lines}

    def close_streams(self):
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)

    def fails(self, session, test, following):
        if isinstance(test, list):
            return subprocess.run(test, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0
        self.failed = None
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        return self.failed is not None

    def fork(self, session, mutant, tests):
        sys.stdout.flush()
        pid = os.fork()
        if pid != 0:
            return pid
        os.setsid()
        name = f"{mutant['number']}"
        try:
            self.close_streams()
            Map(name).choose(mutant["number"])
            said = Path(os.environ["MUTANTS_FOLDER"], f"{name}.said")
            for test, following in zip(tests, [*tests[1:], None]):
                following = following if not isinstance(following, list) else None
                if self.fails(session, test, following):
                    said.write_text(self.failed if not isinstance(test, list) else Path(test[0]).name)
                    os._exit(1)
            os._exit(0)
        except BaseException as error:
            Path(os.environ["MUTANTS_FOLDER"], f"{name}.said").write_text(repr(error))
            os._exit(1)

    def report(self, status, mutant, end, used, able):
        said = Path(os.environ["MUTANTS_FOLDER"], f"{mutant['number']}.said")
        if os.WIFSIGNALED(status):
            by = "no end" if time.monotonic() > end else f"signal {os.WTERMSIG(status)}"
        elif os.WEXITSTATUS(status) != 0:
            by = said.read_text() if said.exists() else f"exit status {os.WEXITSTATUS(status)}"
        else:
            by = None
        said.unlink(missing_ok=True)
        Path(os.environ["MUTANTS_FOLDER"], f"{mutant['number']}.map").unlink(missing_ok=True)
        result = {"number": mutant["number"], "by": by, "used": used, "able": able}
        with open(Path(os.environ["MUTANTS_FOLDER"], "results.json"), "a") as file:
            file.write(json.dumps(result) + "\n")


def pytest_configure(config):
    config.pluginmanager.register(Plugin(), "mutants")


# ---- The command ----


def add_keys(mutants):
    """A key stays as long as the text of a mutant stays. The second equal mutant of a function gets #2."""
    counts = Counter()
    for mutant in mutants:
        key = f"{mutant['file']} {mutant['function']}: `{mutant['old']}` is `{mutant['new']}`"
        counts[key] += 1
        mutant["key"] = key if counts[key] == 1 else f"{key} #{counts[key]}"


def main(folder, count, *tests):
    folder = Path(folder).resolve()
    state = folder / "build" / "state"
    if os.environ.get("MUTANTS_KEEP"):  # the copy of an earlier run
        mutants = json.loads((state / "mutants.json").read_text())
        (state / "results.json").unlink(missing_ok=True)
    else:
        mutants = prepare(folder)
        state.mkdir()
        (state / "mutants.json").write_text(json.dumps(mutants))
    add_keys(mutants)
    chosen = sorted(mutants, key=lambda mutant: hashlib.sha256(mutant["key"].encode()).digest())
    chosen = chosen[: int(count) or None]
    random.Random(0).shuffle(chosen)
    (state / "chosen.json").write_text(json.dumps(chosen))
    build = folder / "build" / "mutants"
    listed = json.loads(run("ctest", "--show-only=json-v1", cwd=build))["tests"]
    programs = [test["command"] for test in listed]
    print(f"{len(mutants)} mutants are built, {len(chosen)} are tried", flush=True)
    environment = os.environ | {
        "DLPACK_PY_BUILD_DIR": str(build / "python"),
        "PYTHONPATH": os.pathsep.join([str(build / "python"), str(HERE)]),
        "MUTANTS_FOLDER": str(state),
        "MUTANTS_PROGRAMS": "\n".join(map(json.dumps, programs)),
    }
    options = ["-q", "-p", "mutate", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=folder, env=environment)
    lines = (state / "results.json").read_text().splitlines() if (state / "results.json").exists() else []
    results = {result["number"]: result for result in map(json.loads, lines)}
    assert len(results) == len(chosen), f"{len(results)} of {len(chosen)} mutants have a result"
    explained, unexplained = reasons.read(HERE / "explained.txt"), 0
    for mutant in sorted(chosen, key=lambda mutant: mutant["number"]):
        result = results[mutant["number"]]
        if result["by"] is not None:
            continue
        reason = explained.get(mutant["key"])
        unexplained += reason is None
        by = "no test reaches it" if result["able"] == 0 else f"{result['used']} of {result['able']} tests"
        print(f"{'SURVIVES' if reason is None else 'explained'}: line {mutant['line']}, {by}: {mutant['key']}")
    survivors = sum(result["by"] is None for result in results.values())
    killed = len(chosen) - survivors
    print(f"{len(chosen)} mutants: {killed} killed, {survivors - unexplained} explained, {unexplained} survive")
    return unexplained


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)

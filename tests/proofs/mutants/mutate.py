"""Makes mistakes in a copy of the headers, and lists those that no test notices.

    mutate.py FOLDER WHICH TESTS ...    works in a copy of the project in FOLDER. WHICH: a number of mutants, 0 for all
                                        of them; the name of a header; or "explained", the mutants of explained.txt.
                                        TESTS: folders, and options of pytest

make.py puts all mutants into one copy of the headers, which is built once. One process of pytest collects the tests of
the folders TESTS and forks. Its children run all tests without a mutant: so it is known which tests reach which mutant,
and how long a test takes. Then pytest forks for each mutant. The child runs the tests that reach the mutant until one
fails: first those that noticed another mutant of the function, then the fast ones. A crash, and a test that takes far
longer than without the mutant, count as failures. A number of mutants are always the same ones, as long as their text
is the same.

explained.txt lists mutants that no test can notice, each with its reason: they are not tried. The exit status is 1 if
another one survives, and if a test notices an explained one that is tried. A number of mutants is a sample, which may
have some that TESTS do not reach. In the environment: MUTANTS_SECONDS, the seconds of tests for a mutant, at most;
MUTANTS_EXPLAINED=1 tries explained mutants, too; with MUTANTS_KEEP=1 the copy of an earlier run is used again, and its
results are kept: only mutants that have no result, or survived fewer seconds of tests, are tried.
"""

import contextlib
import ctypes
import gc
import hashlib
import json
import mmap
import os
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
LIMIT = float(os.environ.get("MUTANTS_SECONDS", "60"))  # the tests that are left out are counted
KEEP = bool(os.environ.get("MUTANTS_KEEP"))
TRY_EXPLAINED = bool(os.environ.get("MUTANTS_EXPLAINED"))
AT_ONCE = os.cpu_count()


def read_lines(path):
    """What each line of a file of JSON holds; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


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
        gc.freeze()  # a collection in a fork visits, and so copies, none of what is here now
        reach, seconds = self.measure(session, everything)
        tests = [test for test in everything if self.name(test) in reach]
        print(
            f"\nwithout a mutant: {len(tests)} of {len(everything)} tests pass, {sum(seconds.values()):.0f} s",
            flush=True,
        )
        self.killers = {}
        waiting, running = list(reversed(mutants)), {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                mutant = waiting.pop()
                able = [test for test in tests if mutant["number"] in reach[self.name(test)]]
                total, used = 0.0, []
                for test in self.order(mutant, able, seconds):
                    total += seconds[self.name(test)]
                    if total < LIMIT or not used:
                        used.append(test)
                pid = self.fork(session, mutant, used, seconds)
                running[pid] = mutant, len(used), len(able)
            pid, status = os.waitpid(-1, 0)
            if pid in running:
                self.report(pid, status, *running.pop(pid))
        return True

    def order(self, mutant, tests, seconds):
        """The tests that noticed another mutant of the function, the last one first; then the tests of at most 0.05 s:
        of each test function the fastest, of each the second fastest, and so on; then all others in this order."""
        killers, counts, ranks = self.killers.get((mutant["file"], mutant["function"]), []), Counter(), {}
        tests = sorted(tests, key=lambda test: seconds[self.name(test)])
        for test in tests:
            name = self.name(test)
            function = name.partition("[")[0]
            counts[function] += 1
            ranks[name] = (1 + (seconds[name] > 0.05), counts[function])
            if name in killers:
                ranks[name] = (0, -killers.index(name))
        return sorted(tests, key=lambda test: ranks[self.name(test)])

    @staticmethod
    def name(test):
        return " ".join(test) if isinstance(test, list) else test.nodeid

    def measure(self, session, tests):
        """Runs the tests without a mutant in AT_ONCE processes, which fork for each test: so each one reaches what a
        process does once. Returns two dictionaries, whose keys are names of tests: the mutants that each passing test
        reaches, and the seconds of each test."""
        results = [Path(os.environ["MUTANTS_FOLDER"], f"measured-{process}.json") for process in range(AT_ONCE)]
        known = {line[0] for result in results for line in read_lines(result)}  # of an earlier run
        missing = [test for test in tests if self.name(test) not in known]
        for process, result in enumerate(results):
            if os.fork() == 0:
                self.close_streams()
                self.map = Map(f"measured-{process}")
                with open(result, "a", buffering=1) as file:
                    for test in missing[process::AT_ONCE]:
                        if os.fork() != 0:
                            os.wait()
                            continue
                        try:  # a test that ends the process has no line: it is left out
                            began = time.perf_counter()
                            failed = self.fails(session, test, None)
                            reached = sorted(self.map.take_reached())
                            line = [self.name(test), failed, time.perf_counter() - began, reached]
                            print(json.dumps(line), file=file)
                        finally:
                            os._exit(0)
                os._exit(0)
        for _ in results:
            os.wait()
        lines = [line for result in results for line in read_lines(result)]
        reach = {name: set(reached) for name, failed, _, reached in lines if not failed}
        return reach, {name: seconds for name, _, seconds, _ in lines}

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

    def fork(self, session, mutant, tests, seconds):
        sys.stdout.flush()
        pid = os.fork()
        if pid != 0:
            return pid
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        name = f"{mutant['number']}"
        try:
            self.close_streams()
            Map(name).choose(mutant["number"])
            said = Path(os.environ["MUTANTS_FOLDER"], f"{name}.said")
            for test, following in zip(tests, [*tests[1:], None]):
                following = following if not isinstance(following, list) else None
                signal.alarm(3 + int(10 * seconds[self.name(test)]))
                said.write_text(self.name(test))
                if self.fails(session, test, following):
                    os._exit(1)
            os._exit(0)
        except BaseException:
            os._exit(1)

    def report(self, pid, status, mutant, used, able):
        said = Path(os.environ["MUTANTS_FOLDER"], f"{mutant['number']}.said")
        by = None if status == 0 else said.read_text() if said.exists() else f"status {status}"
        if status != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # processes that the test has started
            killers = self.killers.setdefault((mutant["file"], mutant["function"]), [])
            killers[:] = [name for name in killers if name != by] + [by]
        said.unlink(missing_ok=True)
        Path(os.environ["MUTANTS_FOLDER"], f"{mutant['number']}.map").unlink(missing_ok=True)
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        result = {"number": mutant["number"], "by": by, "how": how, "used": used, "able": able, "limit": LIMIT}
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


def read_results(path):
    """{number of a mutant: its last result}"""
    return {result["number"]: result for result in read_lines(path)}


def main(folder, which, *tests):
    folder = Path(folder).resolve()
    state = folder / "build" / "state"
    if KEEP and (state / "mutants.json").exists():
        mutants = json.loads((state / "mutants.json").read_text())
    else:
        mutants = prepare(folder)
        state.mkdir()
        (state / "mutants.json").write_text(json.dumps(mutants))
    add_keys(mutants)
    explained = reasons.read(HERE / "explained.txt")
    all_explained = explained if which == "explained" else ()
    chosen = [m for m in mutants if which.isdigit() or m["file"] == which or m["key"] in all_explained]
    chosen.sort(key=lambda mutant: hashlib.sha256(mutant["key"].encode()).digest())
    chosen = chosen[: int(which) or None] if which.isdigit() else chosen
    results = read_results(state / "results.json")
    tried = {n for n, r in results.items() if r["by"] is not None or r["limit"] >= LIMIT}
    is_sample = which.isdigit() and int(which) > 0
    if not TRY_EXPLAINED and which != "explained":
        wanted, chosen = chosen, [mutant for mutant in chosen if mutant["key"] not in explained]
        print(f"{len(wanted) - len(chosen)} of {len(wanted)} mutants are explained: they are not tried")
    (state / "chosen.json").write_text(json.dumps([mutant for mutant in chosen if mutant["number"] not in tried]))
    build = folder / "build" / "mutants"
    listed = json.loads(run("ctest", "--show-only=json-v1", cwd=build))["tests"]
    programs = [test["command"] for test in listed]
    print(f"{len(mutants)} mutants are built, {len(chosen)} are tried", flush=True)
    environment = os.environ | {
        "DLPACK_PY_BUILD_DIR": str(build / "python"),
        "PYTHONPATH": os.pathsep.join([str(build / "python"), str(HERE)]),
        "MALLOC_PERTURB_": "85",  # what is read after its free is wrong
        "MUTANTS_FOLDER": str(state),
        "MUTANTS_PROGRAMS": "\n".join(map(json.dumps, programs)),
    }
    options = ["-q", "-p", "mutate", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler"]
    subprocess.run([sys.executable, "-m", "pytest", *options, *tests], cwd=folder, env=environment)
    results = read_results(state / "results.json")
    assert all(mutant["number"] in results for mutant in chosen), "the tests ended before all mutants had a result"
    stale = explained.keys() - {mutant["key"] for mutant in mutants}
    for key in sorted(stale):
        print(f"NOT FOUND: explained.txt explains what is no mutant: {key}")
    surviving = unreached = noticed = 0
    for mutant in sorted(chosen, key=lambda mutant: mutant["number"]):
        result = results[mutant["number"]]
        if result["by"] is not None:
            if mutant["key"] in explained:
                noticed += 1
                print(f"NOTICED: explained.txt says that no test can: {result['by']} {result['how']}: {mutant['key']}")
            continue
        if is_sample and result["able"] == 0:
            unreached += 1
            continue
        reason = explained.get(mutant["key"])
        surviving += reason is None
        by = "no test reaches it" if result["able"] == 0 else f"{result['used']} of {result['able']} tests"
        print(f"{'SURVIVES' if reason is None else 'explained'}: line {mutant['line']}, {by}: {mutant['key']}")
    survivors = sum(results[mutant["number"]]["by"] is None for mutant in chosen)
    killed = len(chosen) - survivors
    print(
        f"{len(chosen)} mutants: {killed} killed, {survivors - surviving - unreached} explained, "
        f"{unreached} not reached by these tests, {surviving} survive"
    )
    return surviving + noticed + len(stale)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)

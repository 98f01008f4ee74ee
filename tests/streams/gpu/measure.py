"""Measures exchanges on a GPU, and checks what takes long: measure.py FILE.json. all.py runs it.

Each part prints a line that begins with RESULT, and adds to the file. A part that fails is printed, and the others run.
Libraries that are not installed are left out. On the simulated runtime all is short, and the times say nothing of a
GPU.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import traceback

from streams.gpu.device import LEGACY, SIMULATED, SIZE, Gpu, Unordered

ROUNDS = 3 if SIMULATED else 15
PENDING = 600_000_000 if SIMULATED else 300_000_000  # nanoseconds: 300 ms, as simulated kernels take half
SOAK_SECONDS = 2 if SIMULATED else 20
VERSION = {"max_version": (1, 3)}
CPU = (1, 0)

gpu = Gpu(importlib.import_module("gpu_probe"), importlib.import_module("gpu_other"))
P, C = gpu.stream("producer"), gpu.stream("consumer")
times, parts, libraries = {}, {}, {}


def installed(name):
    with contextlib.suppress(ImportError):
        return not SIMULATED and importlib.util.find_spec(name) is not None
    return False


def clock(name, call, calls=100):
    """Stores the least and the median time of a call in nanoseconds, over rounds that begin with an idle GPU."""
    found = []
    call()
    for _ in range(ROUNDS):
        gpu.settle()
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        found.append((time.perf_counter_ns() - began) / calls)
    times[name] = round(min(found)), round(statistics.median(found))
    print(f"RESULT {name:58} {times[name][0]:9} ns, median {times[name][1]:9}", flush=True)


# ---- Order ----


def host_does_not_wait():
    """Exchanges while work is pending: the time of the host, and the sum, which has to be right."""
    array, found = gpu.array(P), {}
    gpu.fill(P, array.address, 7, delay=PENDING)
    began = time.perf_counter()
    view = gpu.other.consume(array, C)
    gpu.sum(C, view.data)
    view.release_on(C)
    found["extension, ms"] = round((time.perf_counter() - began) * 1e3, 3)
    assert gpu.answer(C) == 7 * SIZE
    if installed("torch"):
        torch = importlib.import_module("torch")
        torch.from_dlpack(array).sum()
        gpu.fill(P, array.address, 9, delay=PENDING)
        began = time.perf_counter()
        total = torch.from_dlpack(array).sum()
        found["torch, ms"] = round((time.perf_counter() - began) * 1e3, 3)
        assert int(total) == 9 * SIZE
    assert max(found.values()) < 100, found
    return found


def total_by(taker, source, stream):
    """The sum of an array, by an extension or a library that works on the stream."""
    if taker == "extension":
        view = gpu.other.consume(source, stream)
        gpu.sum(stream, view.data)
        view.release_on(stream)
        return gpu.answer(stream)
    module = importlib.import_module(taker)
    external = module.cuda.ExternalStream(stream)
    with module.cuda.stream(external) if taker == "torch" else external:
        return int(module.from_dlpack(source).sum())


def exchange_at_random(seconds, wrap=lambda array: array):
    """Exchanges between eight streams with kernels of 0 to 3 ms. Returns the number of rounds and of wrong sums."""
    rng = random.Random(1)
    takers = ["extension", *filter(installed, ("torch", "cupy"))]
    streams = [gpu.stream(f"soak {i}") for i in range(8)]
    arrays = {stream: gpu.array(stream) for stream in streams}
    rounds = wrong = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        producer, consumer = rng.sample(streams, 2)
        value = rng.randrange(1, 255)
        gpu.fill(producer, arrays[producer].address, value, delay=rng.randrange(3_000_000))
        total = total_by(rng.choice(takers), wrap(arrays[producer]), consumer)
        wrong += total != value * SIZE
        rounds += 1
        gpu.synchronize(producer)
        if rounds % 7 == 0:  # the memory is freed while releases wait
            arrays[producer] = gpu.array(producer)
    gpu.settle()
    assert (gpu.other.collect(), gpu.probe.collect()) == (0, 0)
    return {"rounds": rounds, "wrong": wrong}


def soak():
    found = exchange_at_random(SOAK_SECONDS)
    assert found["wrong"] == 0 and found["rounds"] > 20, found
    return found


def soak_without_order():
    """The counterpart: the numbers must be wrong, else the soak shows nothing."""
    found = exchange_at_random(SOAK_SECONDS / 4, Unordered)
    assert found["wrong"] > 0, found
    gpu.violations()  # of the simulated runtime
    return found


def captures():
    """A captured exchange between two streams, and one that is part of a graph of torch."""
    array, result, found = gpu.array(P), gpu.array(C), {}
    with gpu.capture(P):
        gpu.fill(P, array.address, 5)
        array.__dlpack__(stream=C)
        gpu.sum(C, array.address)
        result.__dlpack__(stream=P)
    assert gpu.answer(P) == 5 * SIZE
    if installed("torch"):
        torch = importlib.import_module("torch")
        tensor, graph = torch.zeros(SIZE, dtype=torch.uint8, device="cuda"), torch.cuda.CUDAGraph()
        torch.from_dlpack(array).add_(0)
        gpu.settle()
        with torch.cuda.graph(graph):
            tensor.add_(torch.from_dlpack(array))
        began = time.perf_counter()
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        found["torch, 10 replays, ms"] = round((time.perf_counter() - began) * 1e3, 2)
        assert int(tensor.long().sum()) == 50 * SIZE
    return found or "right"


def threads():
    """Four threads consume one array and release it, each on its own stream."""
    array, errors, rounds = gpu.array(P, 7), [], 50 if SIMULATED else 500
    streams = [gpu.stream(f"thread {i}") for i in range(4)]

    def work(stream):
        try:
            for _ in range(rounds):
                gpu.other.consume(array, stream).release_on(stream)
        except Exception as error:
            errors.append(repr(error))

    workers = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gpu.settle()
    assert (errors, gpu.other.collect()) == ([], 0)
    return f"{4 * rounds} exchanges"


def ends():
    """Processes that fork, exit or reset the device: how they end, and what they print."""
    head = (
        "import os, sys, gpu_probe, gpu_other\n"
        "from streams.gpu.device import *\n"
        "g = Gpu(gpu_probe, gpu_other); p, c = g.stream('p'), g.stream('c'); a = g.array(p)\n"
    )
    waits = "w = g.array(c); g.fill(c, w.address, 1, delay=200_000_000); g.other.consume(a, c).release_on(c)\n"
    bodies = {
        "exit with a tensor that waits": waits,
        "reset, then collect": waits + "g.call('DeviceReset'); print(g.other.collect())\n",
        "fork": "if os.fork() == 0:\n"
        "    try: a.__dlpack__(stream=c); os._exit(3)\n"
        "    except RuntimeError as error: print(error, flush=True); os._exit(0)\n"
        "assert os.wait()[1] == 0\n",
        "fork with a tensor that waits": waits + "if os.fork() == 0: os._exit(0 if g.other.collect() == 1 else 3)\n"
        "assert os.wait()[1] == 0; g.settle(); assert g.other.collect() == 0\n",
    }
    found = {}
    for name, body in bodies.items():
        if SIMULATED and "fork" in name:  # a forked child has no threads, which the simulated streams are
            continue
        done = subprocess.run([sys.executable, "-c", head + body], capture_output=True, text=True, timeout=60)
        found[name] = done.returncode, (done.stdout + done.stderr)[-160:]
    assert all(code == 0 for code, _ in found.values()), found
    return found


# ---- Times ----


def waiting_tensors():
    """What an exchange costs, in nanoseconds, while the release of many tensors waits."""
    array, kept, found = gpu.array(P), gpu.array(C), {}
    for count in (0, 10, 100) if SIMULATED else (0, 10, 100, 1000):
        gpu.fill(C, kept.address, 1, delay=PENDING if count else 0)
        for _ in range(count):
            gpu.probe.consume(array, C).release_on(C)
        began = time.perf_counter_ns()
        for _ in range(10):
            gpu.probe.consume(array, P).release()
        found[count] = (time.perf_counter_ns() - began) // 10
        gpu.synchronize(C)
        assert gpu.probe.collect() == 0
    return found


def latencies():
    array, on_default, small = gpu.array(P), gpu.array(0), gpu.probe.Array((64,), P)
    column = gpu.probe.Array((4096,), P, strides=(4,), size=4 * 4096)
    clock("__dlpack__, the same stream", lambda: array.__dlpack__(stream=P, **VERSION))
    clock("__dlpack__, stream=-1", lambda: array.__dlpack__(stream=-1, **VERSION))
    clock("__dlpack__, another stream", lambda: array.__dlpack__(stream=C, **VERSION))
    clock("__dlpack__, stream=1", lambda: array.__dlpack__(stream=1, **VERSION))
    clock("__dlpack__, no stream", lambda: array.__dlpack__(**VERSION))
    clock("__dlpack__ of data on stream 1, another stream", lambda: on_default.__dlpack__(stream=C, **VERSION))
    clock("extension(extension), one stream, release", lambda: gpu.other.consume(array, P).release())
    clock("extension(extension), two streams, release", lambda: gpu.other.consume(array, C).release())
    clock("extension(extension), two streams, release_on", lambda: gpu.other.consume(array, C).release_on(C))
    clock("__dlpack__(dl_device=CPU), 64 bytes", lambda: small.__dlpack__(dl_device=CPU))
    clock("__dlpack__(dl_device=CPU), 1 MiB", lambda: array.__dlpack__(dl_device=CPU), 20)
    clock("__dlpack__(dl_device=CPU), each 4th byte of 16 KiB", lambda: column.__dlpack__(dl_device=CPU), 20)
    return f"{len(times)} times"


def latencies_torch():
    torch = importlib.import_module("torch")
    array, on_default = gpu.array(P), gpu.array(0)
    tensor = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    clock("torch.__dlpack__, another stream", lambda: tensor.__dlpack__(stream=C))
    clock("extension(torch), torch's stream", lambda: gpu.probe.consume(tensor, LEGACY).release())
    clock("extension(torch), another stream", lambda: gpu.probe.consume(tensor, C).release())
    clock("torch.from_dlpack(extension), torch's stream", lambda: torch.from_dlpack(on_default))
    clock("torch.from_dlpack(extension), another stream", lambda: torch.from_dlpack(array))
    clock("torch.from_dlpack(torch)", lambda: torch.from_dlpack(tensor))
    clock("torch.Tensor.cpu, 1 MiB", lambda: tensor.cpu(), 20)
    with torch.cuda.stream(torch.cuda.ExternalStream(C)):
        on_side = gpu.array(C)
        clock("torch.from_dlpack(extension), one side stream", lambda: torch.from_dlpack(on_side))


def latencies_cupy():
    cupy = importlib.import_module("cupy")
    array, on_default, of_cupy = gpu.array(P), gpu.array(0), cupy.zeros(SIZE, cupy.uint8)
    clock("cupy.__dlpack__, another stream", lambda: of_cupy.__dlpack__(stream=C))
    clock("extension(cupy), cupy's stream", lambda: gpu.probe.consume(of_cupy, LEGACY).release())
    clock("extension(cupy), another stream", lambda: gpu.probe.consume(of_cupy, C).release())
    clock("cupy.from_dlpack(extension), cupy's stream", lambda: cupy.from_dlpack(on_default))
    clock("cupy.from_dlpack(extension), another stream", lambda: cupy.from_dlpack(array))
    clock("cupy.from_dlpack(cupy)", lambda: cupy.from_dlpack(of_cupy))
    clock("cupy.asnumpy, 1 MiB", lambda: cupy.asnumpy(of_cupy), 20)


def latencies_jax():
    jax = importlib.import_module("jax")
    array, of_jax = gpu.array(P), jax.numpy.zeros(SIZE, jax.numpy.uint8).block_until_ready()
    clock("jax.dlpack.from_dlpack(extension)", lambda: jax.dlpack.from_dlpack(array), 20)
    clock("extension(jax), another stream", lambda: gpu.probe.consume(of_jax, C).release(), 20)


# ---- What libraries accept ----


def accepted():
    """Calls of libraries, by name: what each returns or raises. No result is a failure."""
    array, consume = gpu.array(P, 3), gpu.probe.consume
    calls = {}
    if installed("numpy"):
        numpy = importlib.import_module("numpy")
        calls["numpy, device='cpu'"] = lambda: numpy.from_dlpack(array, device="cpu").sum(dtype=int)
    if installed("torch"):
        torch = importlib.import_module("torch")
        for keywords in ({}, {"device": "cpu"}, {"device": "cuda"}, {"copy": True}):
            calls[f"torch, {keywords}"] = lambda keywords=keywords: torch.from_dlpack(array, **keywords).sum().item()
        pinned = torch.full((SIZE,), 3, dtype=torch.uint8).pin_memory()
        calls["extension(torch, pinned)"] = lambda: consume(pinned, C, device=gpu.probe.PINNED).device
        calls["extension(torch), stream 2"] = lambda: consume(torch.zeros(8, device="cuda"), 2).device
    if installed("cupy"):
        cupy = importlib.import_module("cupy")
        for keywords in ({}, {"copy": True}):
            calls[f"cupy, {keywords}"] = lambda keywords=keywords: cupy.from_dlpack(array, **keywords).sum().item()
        calls["extension(cupy), stream 2"] = lambda: consume(cupy.zeros(8), 2).device
    if installed("jax"):
        jax = importlib.import_module("jax")
        calls["jax"] = lambda: int(jax.dlpack.from_dlpack(array).sum(dtype="uint32"))
        calls["extension(jax)"] = lambda: consume(jax.numpy.zeros(8), C).device
    if installed("numba_cuda"):
        cuda = importlib.import_module("numba.cuda")
        interface = {"options": gpu.probe.ARRAY_INTERFACE_TOO}
        calls["numba.cuda.as_cuda_array"] = lambda: cuda.as_cuda_array(array).copy_to_host().sum().item()
        calls["extension(numba)"] = lambda: consume(cuda.device_array(8, "uint8"), C, **interface).device
    if installed("cuda.core"):
        utilities = importlib.import_module("cuda.core.utils")
        view = utilities.StridedMemoryView
        calls["cuda.core"] = lambda: view.from_dlpack(array, stream_ptr=C).device_id
    for name, call in calls.items():
        try:
            libraries[name] = str(call())
        except Exception as error:
            libraries[name] = f"{type(error).__name__}: {error}"[:200]
        gpu.last_error()
        print(f"RESULT accepted: {name}: {libraries[name]}", flush=True)
    return f"{len(calls)} calls"


def run(part):
    """Runs a part. Returns whether it has failed."""
    began, failed = time.perf_counter(), False
    try:
        found = part()
        assert gpu.violations() == []
    except Exception as error:
        failed, found = True, f"{type(error).__name__}: {error}"
        traceback.print_exc()
        with contextlib.suppress(Exception):
            gpu.last_error()
            gpu.runtime("SetDevice", 0)
            gpu.settle()
            gpu.violations()
    parts[part.__name__] = found
    word = "FAILED" if failed else "RESULT"
    print(f"{word} {part.__name__} ({time.perf_counter() - began:.1f} s): {found}", flush=True)
    gc.collect()
    return failed


def main(path):
    failed = 0
    order = [host_does_not_wait, soak, soak_without_order, captures, threads, waiting_tensors, latencies]
    for name, part in (("torch", latencies_torch), ("cupy", latencies_cupy), ("jax", latencies_jax)):
        order += [part] if installed(name) else []
    for part in [*order, accepted, ends]:
        failed += run(part)
        with open(path, "w") as file:
            json.dump({"parts": parts, "nanoseconds": times, "libraries": libraries}, file, indent=1, default=str)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) != 0)

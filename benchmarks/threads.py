"""Measures how many more exchanges two threads make than one thread; run by `make bench-threads`, without a GIL.

The threads exchange different arrays, or the same one. Where nothing is shared, two threads make twice as many
exchanges. Two threads that exchange the same array wait for each other where they count references to it, and where
they lock it: an exchange table locks the object while it reads it. The first rows show what CPython makes of these two
alone.
"""

import resource
import sys
import threading
import time

import calls
import loop
import numpy

CALLS, SECONDS = 20_000, 2


def throughput(target, makers):
    """Exchanges per second of as many threads as makers, in the best round, and how often a thread waited then, for
    1000 exchanges. Each thread makes its array itself. Rounds are short, and there are many: other programs do not
    disturb all of them."""
    best, until = (0.0, 0.0), time.monotonic() + SECONDS
    while time.monotonic() < until:
        ready, spans = [], []

        def work(make, ready=ready, spans=spans):
            arguments = make()
            ready.append(None)
            while len(ready) < len(makers):  # not a barrier, which wakes one thread after the other
                pass
            waits, begin = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.perf_counter()
            loop.calls(CALLS, False, target, *arguments)
            end, later = time.perf_counter(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            spans.append((begin, end, later - waits))

        threads = [threading.Thread(target=work, args=(make,)) for make in makers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        begins, ends, waits = zip(*spans)
        whole, exchanges = max(ends) - min(begins), CALLS * len(makers)
        if min(ends) - max(begins) > 0.5 * whole:  # otherwise one thread ran after the other
            best = max(best, (exchanges / whole, 1000 * sum(waits) / exchanges))
    return best


def main():
    cases = {
        "f(x) that does nothing": (calls.nothing, calls.Own),
        "f(x) that takes a reference to x": (calls.take_reference, calls.Own),
        "f(x) that locks x": (calls.take_lock, calls.Own),
        "f(own), exchange table, borrowed": (calls.borrow, calls.Own),
        "f(own), exchange table, owned": (calls.consume, calls.Own),
        "f(own), capsule": (calls.consume, calls.Plain),
        "f(own), capsule, README's producer": (calls.consume, calls.Simple),
        "f(numpy)": (calls.consume, lambda: numpy.zeros((3, 4))),
        "np.from_dlpack(own)": (numpy.from_dlpack, calls.Simple),
        "x.__dlpack__()": ("__dlpack__", calls.Simple),
        "return own array": (calls.make, None),
    }
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"throughput of two threads over one, {sys.version.split()[0]}, {'with' if gil else 'without'} a GIL\n")
    heads = ["million/s, one", "different arrays", "waits/1000", "the same array", "waits/1000"]
    print(f"{'':40}{heads[0]:>16}{heads[1]:>18}{heads[2]:>12}{heads[3]:>18}{heads[4]:>12}")
    for name, (target, make) in cases.items():
        own = make if make is None else make()
        apart = (lambda: ()) if make is None else lambda make=make: (make(),)
        one = throughput(target, [apart])[0]
        line = f"{name:40}{one / 1e6:16.2f}"
        for makers in ([apart, apart], [lambda own=own: (own,)] * 2):
            if make is not None or makers[0] is apart:
                two, waits = throughput(target, makers)
                line += f"{two / one:18.2f}{waits:12.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

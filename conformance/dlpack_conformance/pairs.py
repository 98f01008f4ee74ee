"""What a library does with the arrays of another: `python -m dlpack_conformance.pairs PRODUCER CONSUMER`.

An outcome is one of these, some with a reason after a colon:

shared     the values, shape and dtype are equal, and so is the address of the memory
copied     they are equal, in other memory
taken      they are equal, and one of the libraries tells no address
refused    an exception
wrong      the values, the shape or the dtype differ
none       the producer has no such array, or one of the two libraries has no such side
ended      a signal ended the process
"""

import gc
import json
import sys
from pathlib import Path

import _dlpack_conformance as native

from .adapter import Description
from .kit import VERSIONED, data_of, shown, without_frames
from .libraries import load

SHAPES = [(4, 6), (24,), (2, 3, 4), (4, 64)]  # PyAV has no padding in the last
TRIES = 16  # some libraries share memory of some alignments only
VIEWS = ["slice", "transposed", "steps", "backwards"]


def exports(array):
    """Whether the producer exports the array, in one of the forms."""
    for form in {}, VERSIONED:
        try:
            native.take(array, **form)
        except Exception:
            continue
        return True
    return False


class Exchange:
    """Arrays of one library, taken by another."""

    def __init__(self, producer, consumer):
        self.producer, self.consumer = producer, consumer
        common = [dtype for dtype in producer.dtypes if dtype in consumer.dtypes] or producer.dtypes
        self.dtype = next((dtype for dtype in ("float32", "uint8") if dtype in common), common[0])
        self.shape = None

    def steps(self):
        """The names of the steps. The first finds a shape that both libraries have."""
        if self.producer.make is None or self.consumer.from_dlpack is None:
            return ["plain"]
        flags = ["read-only", "writable", "copy=True", "copy=False", "the producer's array is gone"]
        return ["plain", *flags, *VIEWS, *(f"dtype {dtype}" for dtype in self.producer.dtypes)]

    def run(self, step):
        if self.producer.make is None:
            return "none: the library does not produce"
        if self.consumer.from_dlpack is None:
            return "none: the library does not consume"
        if step == "plain":
            return self.plain()
        if self.shape is None:
            self.plain()
        if self.shape is None:
            return "none: no plain array is exchanged"
        if step in VIEWS:
            return self.exchange(self.view(step))
        if step.startswith("dtype "):
            if self.consumer.dtypes_taken and step[6:] not in self.consumer.dtypes_taken:
                return "none: the consumer makes one dtype of all"
            outcome, a, _, _ = self.compare(self.make(step[6:]))
            if outcome.startswith("refused") and not exports(a):
                return "none: the producer does not export it"
            return "taken" if outcome in ("shared", "copied") else outcome
        if step.startswith("copy="):
            return self.exchange(self.make(), copy=step == "copy=True")
        if step in ("read-only", "writable"):
            return self.flagged(step == "read-only")
        return self.outlives()

    def plain(self):
        outcomes = []
        for shape in [*SHAPES, self.producer.shape, self.consumer.shape]:
            outcomes.append(self.exchange(self.make(shape=shape)))
            if outcomes[-1].partition(":")[0] in ("shared", "copied", "taken"):
                self.shape = shape
                return outcomes[-1]
        return next((outcome for outcome in outcomes if not outcome.startswith("none")), outcomes[0])

    def make(self, dtype=None, shape=None, how=None):
        """A function that makes an array."""
        dtype, shape = dtype or self.dtype, shape or self.shape
        return lambda: (how or self.producer.make)(dtype, shape, data_of(dtype, shape))

    def view(self, name):
        return lambda: self.producer.views[name](self.producer.make(self.dtype, self.shape, self.data()))

    def data(self):
        return data_of(self.dtype, self.shape)

    def exchange(self, make, **keywords):
        return self.attempt(make, **keywords)[0]

    def attempt(self, make, **keywords):
        """What compare() returns of several arrays: of the first whose memory is shared, if there is one."""
        kept = []  # so that the next array has another address
        for _ in range(TRIES):
            found = self.compare(make, **keywords)
            if found[0] != "copied" and not (keywords.get("copy") is False and found[0].startswith("refused")):
                break
            kept.append(found)
        return found

    def compare(self, make, **keywords):
        """(the outcome, the producer's array, the consumer's, and what the consumer says of it)."""
        try:
            a = make()
            told, values = Description(*self.producer.describe(a)), self.producer.values(a)
        except Exception as error:
            return f"none: {shown(without_frames(error))}", None, None, None
        try:
            b = self.consumer.from_dlpack(a, **keywords)
            says, got = Description(*self.consumer.describe(b)), self.consumer.values(b)
        except Exception as error:
            return f"refused: {shown(without_frames(error))}", a, None, None
        if says.dtype not in (None, told.dtype):
            outcome = f"wrong: {told.dtype} becomes {says.dtype}"
        elif says.shape is not None and tuple(says.shape) != tuple(told.shape):
            outcome = f"wrong: the shape {tuple(told.shape)} becomes {tuple(says.shape)}"
        elif got != values:
            outcome = "wrong: other values"
        elif told.pointer is None or says.pointer is None:
            outcome = "taken"
        else:
            outcome = "shared" if told.pointer == says.pointer else "copied"
        return outcome, a, b, says

    def flagged(self, readonly):
        if readonly and self.producer.readonly is None:
            return "none: the library has no read-only arrays"
        how = self.producer.readonly if readonly else self.producer.make
        outcome, a, _, says = self.attempt(self.make(how=how))
        if says is None or says.readonly is None or outcome.startswith("wrong"):
            return outcome
        if not readonly and Description(*self.producer.describe(a)).readonly:
            return "none: the library has read-only arrays alone"
        return f"{outcome}: {'read-only' if says.readonly else 'writable'}"

    def outlives(self):
        """Whether the values are right after the producer's array is gone."""
        outcome, a, b, _ = self.attempt(self.make())
        if b is None:
            return outcome
        size = len(self.data())
        del a
        gc.collect()
        others = [bytearray(b"\xa5" * size) for _ in range(64)]  # which get the memory if it was freed
        return outcome if self.consumer.values(b) == self.data() and others else "wrong: other values"


def record_all(pairs, path, done):
    """Runs the steps of all pairs, and appends a line to the file before and after each step."""
    adapters = {}

    def adapter(spec):
        if spec not in adapters:
            try:
                adapters[spec] = load(spec)
            except Exception as error:
                adapters[spec] = None
                write({"spec": spec, "fails": shown(error)})
            else:
                write({"spec": spec, "version": adapters[spec].version()})
        return adapters[spec]

    with open(path, "a") as file:

        def write(line):
            file.write(json.dumps(line) + "\n")
            file.flush()

        for pair in pairs:
            producer, consumer = map(adapter, pair)
            if producer is None or consumer is None:
                continue
            exchange = Exchange(producer, consumer)
            for step in exchange.steps():
                if [*pair, step] not in done:
                    write({"pair": pair, "step": step})
                    write({"pair": pair, "step": step, "outcome": exchange.run(step)})


def main(arguments):
    if len(arguments) == 3 and Path(arguments[0]).suffix == ".json":  # of the command that measures all pairs
        pairs, record, done = arguments
        record_all(json.loads(Path(pairs).read_text()), record, json.loads(done))
        return
    exchange = Exchange(*map(load, arguments))
    for step in exchange.steps():
        print(f"{step + ':':<30}", end=" ", flush=True)
        print(exchange.run(step), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

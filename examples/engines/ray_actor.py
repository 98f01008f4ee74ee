"""Actors of Ray keep arrays of an extension, and share the arrays of Ray's object store without a copy of their own.

    python examples/engines/ray_actor.py

The extension is dlarray (examples/ndarray/dlarray.c). Ray knows NumPy's arrays, not those of dlarray: numpy.from_dlpack
shows it an array of dlarray. Ray copies an array once, into the store, which is memory that all processes of a machine
map. What comes from the store is read-only, and dlarray has it without a copy, and read-only.
"""

import os

import dlarray
import numpy
import ray

LENGTH = 1_000_000  # 8 MB of float64


def mapping(address):
    """The file and the offset in it that a process has at an address: the store is a file in memory."""
    with open("/proc/self/maps") as maps:
        for fields in map(str.split, maps):
            first, last = (int(end, 16) for end in fields[0].split("-"))
            if first <= address < last:
                return fields[3], fields[4], address - first + int(fields[2], 16)


@ray.remote
class Total:
    def __init__(self):
        self.sums = dlarray.zeros(LENGTH)  # stays in this process, at one address

    def add(self, block):
        theirs = dlarray.from_dlpack(block, copy=False)
        assert theirs.readonly and theirs.data_ptr == block.ctypes.data
        sums = numpy.from_dlpack(self.sums)
        sums += numpy.from_dlpack(theirs)
        return os.getpid(), self.sums.data_ptr, theirs.data_ptr, mapping(theirs.data_ptr)

    def result(self):
        return numpy.from_dlpack(self.sums)  # Ray copies it into the store


if __name__ == "__main__":
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}  # no file of a token, no report
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20)
    block = ray.put(numpy.from_dlpack(dlarray.arange(LENGTH, dtype="float64")))  # copied once, into the store
    actors = [Total.remote(), Total.remote()]
    added = ray.get([actor.add.remote(block) for actor in actors * 2])
    for process, sums, theirs, place in added:
        print(f"process {process}: sums are at {sums:#x}; the block is at {theirs:#x}, byte {place[2]} of the store")
    assert len({process for process, _, _, _ in added}) == 2
    assert len({(process, sums) for process, sums, _, _ in added}) == 2, "the sums of an actor have moved"
    assert len({place for _, _, _, place in added}) == 1, "the actors have different copies of the block"

    for actor in actors:
        sums = ray.get(actor.result.remote())
        ours = dlarray.from_dlpack(sums, copy=False)
        assert ours.readonly and ours.data_ptr == sums.ctypes.data and ours[LENGTH - 1] == 2 * (LENGTH - 1)
    print("The two actors have used one copy of the block, and dlarray has made none.")
    ray.shutdown()

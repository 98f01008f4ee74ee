"""The blocks of a Dask array pass through an extension without a copy, in threads and in processes of a local cluster.

    python examples/engines/dask_blocks.py

The extension is ring (examples/table/ring.c): Ring.from_dlpack takes the memory of a block, and ring.mix returns its
result as an array of NumPy, in memory that ring has allocated. Dask copies a block that it sends to another process.
The copy need not be aligned for float64: ring refuses such memory, and numpy.require copies it once more.
"""

import os

import dask.array
import numpy
import ring
from distributed import Client, LocalCluster

BLOCKS, LENGTH = 4, 250_000  # 2 MB of float64 in each block


def aligned(block):
    return numpy.require(block, requirements="A")  # copies only what is not aligned


def mean(a, b):
    return ring.mix(aligned(a), aligned(b))


def place(block):
    """The process that has a block, the address there, and the address at which ring has its memory."""
    ours = numpy.from_dlpack(ring.Ring.from_dlpack(aligned(block), copy=False))
    assert block.ctypes.data == ours.ctypes.data or block.ctypes.data % 8 > 0
    return os.getpid(), block.ctypes.data, ours.ctypes.data


def is_made_by_ring(block):
    return type(block.base).__name__ == "PyCapsule"  # NumPy owns no copy: the memory came by DLPack


def each(client, function, array):
    """The results of a function for all blocks, in the processes that have them."""
    blocks = client.futures_of(array)
    workers = client.who_has(blocks)
    return client.gather([client.submit(function, block, workers=workers[block.key]) for block in blocks])


def try_on(name, **options):
    with LocalCluster(dashboard_address=None, **options) as cluster, Client(cluster) as client:
        x = dask.array.arange(BLOCKS * LENGTH, chunks=LENGTH, dtype="float64")
        x = x.persist()  # each block stays in the process that makes it
        made = each(client, place, x)
        for process, block, ours in made:
            assert block == ours
            print(f"{name}: process {process} made a block at {block:#x}, and ring has its memory at {ours:#x}")

        mixed = dask.array.map_blocks(mean, x, x[::-1], dtype="float64").persist()
        assert (mixed == (BLOCKS * LENGTH - 1) / 2).all().compute()
        assert all(each(client, is_made_by_ring, mixed))
        assert all(block == ours for _, block, ours in each(client, place, mixed))
        print(f"{name}: ring.mix has made {BLOCKS} blocks, and Dask keeps them in the memory of ring")

        copies = 0
        for worker in sorted(client.scheduler_info()["workers"]):
            block_0 = client.futures_of(x)[0]
            process, block, ours = client.submit(place, block_0, workers=[worker], pure=False).result()
            copies += (process, block) != made[0][:2]
            more = "there" if block == ours else f"in an aligned copy at {ours:#x}"
            print(f"{name}: process {process} has block 0 at {block:#x}, ring takes it {more}")
        return copies


if __name__ == "__main__":
    assert try_on("threads", processes=False, n_workers=1, threads_per_worker=2) == 0
    assert try_on("processes", processes=True, n_workers=2, threads_per_worker=1) == 1  # the other process
    print("Without a copy in each process that made a block.")

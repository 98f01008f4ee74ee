"""Two processes of torch.distributed add their numbers in the memory of an extension's objects, by gloo.

    python examples/engines/gloo_sum.py

The extension is samples (examples/growable/samples.c). torch.from_dlpack makes a tensor over the memory of a Samples;
gloo reads and writes there. As long as PyTorch has the tensor, the Samples cannot grow: its memory must not move.
"""

import os
import tempfile

import samples
import torch
from torch import distributed, multiprocessing

PROCESSES, LENGTH = 2, 100_000


def work(rank, store):
    distributed.init_process_group("gloo", f"file://{store}", world_size=PROCESSES, rank=rank)
    ours = samples.Samples()
    for i in range(LENGTH):
        ours.append(i * (rank + 1))  # rank 0: 0, 1, 2, ...; rank 1: 0, 2, 4, ...

    tensor = torch.from_dlpack(ours)
    address = tensor.data_ptr()
    distributed.all_reduce(tensor)
    assert len(ours) == LENGTH and all(ours[i] == 3 * i for i in range(LENGTH))  # the sum, read from the Samples
    again = torch.from_dlpack(ours)
    assert tensor.data_ptr() == again.data_ptr() == address
    print(f"rank {rank}: gloo has written {LENGTH} sums to {address:#x}, the memory of the Samples", flush=True)

    try:
        for _ in range(LENGTH):  # more than there is room for
            ours.append(0)
    except BufferError as error:
        print(f"rank {rank}: append while PyTorch has the memory: {error}", flush=True)
    else:
        raise AssertionError("the memory moved while PyTorch had it")
    del tensor, again
    ours.append(1)
    print(f"rank {rank}: append after PyTorch has released it: {len(ours)} samples", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # on one machine
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, (os.path.join(folder, "store"),), nprocs=PROCESSES)

"""torch.distributed with gloo reduces, sends and receives dlarray's memory in place, in two processes (P9, K4).

Each process runs this file as a program: `python test_gloo.py NAME RANK STORE`.
"""

import datetime
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import time
import weakref

import dlarray
import pytest

LIMIT = 30  # seconds

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch: make test-libraries installs it", allow_module_level=True)


def by_two_processes(scenario):
    """A test in which two processes run the scenario at once, each with its rank."""

    def test(tmp_path):
        command = [sys.executable, __file__, scenario.__name__]
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        said = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        both = [subprocess.Popen([*command, rank, str(tmp_path / "store")], **said) for rank in "01"]
        ends = [(child.communicate(timeout=LIMIT + 10)[0], child.returncode) for child in both]
        if [("done" in out, code) for out, code in ends] != [(True, 0)] * 2:
            pytest.fail("\n".join(f"rank {i} said {out}exit code {code}" for i, (out, code) in enumerate(ends)), False)

    test.__doc__ = scenario.__doc__
    test.scenario = scenario
    return test


@by_two_processes
def test_arrays_and_parts_of_them_are_reduced_in_place_D7_D1(rank):
    for dtype in ("int8", "uint8", "int32", "int64", "float32", "float64"):
        a = dlarray.array([[rank, 1, 2], [3, 4, 10 * rank]], dtype)
        distributed.all_reduce(torch.from_dlpack(a))
        assert a.tolist() == [[1, 2, 4], [6, 8, 10]], dtype
        distributed.all_reduce(torch.from_dlpack(a[1, 1:]))
        assert a.tolist() == [[1, 2, 4], [6, 16, 20]], dtype


@by_two_processes
def test_arrays_are_sent_received_gathered_and_broadcast_in_place(rank):
    matrix = dlarray.zeros((2, 3))
    matrix[rank] = rank + 1
    rows = [torch.from_dlpack(matrix[i]) for i in range(2)]
    distributed.all_gather(rows, rows[rank].clone())
    assert matrix.tolist() == [[1, 1, 1], [2, 2, 2]]
    if rank == 0:
        distributed.send(rows[0], 1)
    else:
        distributed.recv(rows[1], 0)
    assert matrix.tolist() == [[1, 1, 1], [2, 2, 2] if rank == 0 else [1, 1, 1]]
    distributed.broadcast(rows[1], 0)
    assert matrix.tolist() == [[1, 1, 1], [2, 2, 2]]


@by_two_processes
def test_an_array_lives_until_pending_work_has_ended_P9(rank):
    a = dlarray.array([rank, 2.0])
    gone = weakref.ref(a)
    pending = distributed.all_reduce(torch.from_dlpack(a), async_op=True)
    del a
    assert gone() is not None
    pending.wait()
    assert gone().tolist() == [1, 4]
    del pending
    gc.collect()
    ends = time.monotonic() + 10  # a thread of gloo releases the array
    while gone() is not None and time.monotonic() < ends:
        time.sleep(0.01)
    assert gone() is None


if __name__ == "__main__":
    signal.alarm(LIMIT)
    import torch
    from torch import distributed

    name, rank, store = sys.argv[1:]
    limit = datetime.timedelta(seconds=LIMIT)
    distributed.init_process_group("gloo", f"file://{store}", limit, world_size=2, rank=int(rank))
    globals()[name].scenario(int(rank))
    distributed.destroy_process_group()
    print("done")

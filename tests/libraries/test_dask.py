"""Blocks of Dask arrays are exchanged with dlarray in the processes and threads of a local cluster (D, P, K).

The functions that workers call are defined inside the tests, so that Dask sends them by value. A failed assert in a
worker fails the test.
"""

import os

import dlarray
import pytest
from dltensor import ARRAY_API_DTYPES
from optional import numpy

missing = {"reason": "dask: make test-libraries installs it", "exc_type": ModuleNotFoundError}
dask_array = pytest.importorskip("dask.array", **missing)
distributed = pytest.importorskip("distributed", **missing)

LIMIT = 30  # seconds for a task; workers end with the process that started them


@pytest.fixture(scope="module")
def client():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None, death_timeout=LIMIT
    ) as cluster:
        with distributed.Client(cluster, timeout=LIMIT) as client:
            client.wait_for_workers(2, timeout=LIMIT)
            yield client


def computed(client, collection):
    return client.compute(collection).result(timeout=LIMIT)


@pytest.fixture
def share():
    """A function for blocks: imports a block into dlarray and back into NumPy, and asserts that memory is shared."""

    def share(block):
        ours = dlarray.from_dlpack(block)
        again = numpy.from_dlpack(ours)
        assert block.ctypes.data == ours.data_ptr == again.ctypes.data
        assert block.strides == tuple(step * ours.itemsize for step in ours.strides) == again.strides
        assert ours.dtype == block.dtype.name == again.dtype.name
        assert ours.tolist() == block.tolist()
        return again

    return share


@pytest.mark.parametrize("dtype", ARRAY_API_DTYPES)
def test_each_block_is_exchanged_without_a_copy_D7(client, share, dtype):
    x = dask_array.arange(24, chunks=8).reshape(6, 4).rechunk((3, 2)).astype(dtype)
    assert computed(client, x.map_blocks(share, dtype=dtype)).tolist() == computed(client, x).tolist()


VIEWS = {"columns": lambda x: x.T, "steps": lambda x: x[:, ::2], "backwards": lambda x: x[::-1, 1:3]}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_blocks_of_any_layout_are_exchanged_without_a_copy_D5(client, share, view):
    def share_view(block):
        assert not view(block).flags.c_contiguous
        return share(view(block))

    whole = numpy.arange(24.0).reshape(6, 4)
    x = dask_array.arange(24.0).reshape(6, 4)
    shared = x.map_blocks(share_view, dtype=x.dtype, chunks=view(whole).shape)
    assert computed(client, shared).tolist() == view(whole).tolist()


def test_the_workers_are_processes_of_their_own(client):
    asked = [client.submit(os.getpid, workers=worker, pure=False) for worker in client.scheduler_info()["workers"]]
    assert len({os.getpid(), *(future.result(timeout=LIMIT) for future in asked)}) == 3


def test_a_block_from_another_process_is_shared_or_refused_by_its_alignment_C9(client, share):
    """Dask does not copy small arrays out of the message that contains them."""

    def take(block):
        if block.ctypes.data % block.itemsize:
            with pytest.raises(BufferError, match=f"alignment to {block.itemsize} bytes"):
                dlarray.from_dlpack(block)
            assert dlarray.from_dlpack(block, copy=True).tolist() == block.tolist()
            return "refused"
        share(block)
        return "shared"

    arrays = [numpy.arange(n, dtype=dtype) for dtype in ("uint8", "float64") for n in range(1, 9)]
    taken = [client.submit(take, a) for a in arrays]
    answers = [future.result(timeout=LIMIT) for future in taken]
    assert answers[:8] == ["shared"] * 8


def test_an_array_stays_in_the_worker_that_made_it_for_its_next_task(client):
    def make():
        return dlarray.arange(5)

    def change(a):
        a[2] = os.getpid()
        return a

    worker = next(iter(client.scheduler_info()["workers"]))
    made = client.submit(make, workers=worker, pure=False)
    changed = client.submit(change, made, workers=worker, pure=False)
    values, process = client.submit(lambda a: (a.tolist(), os.getpid()), changed, workers=worker).result(timeout=LIMIT)
    assert values == [0, 1, process, 3, 4] and process != os.getpid()

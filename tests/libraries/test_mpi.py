"""mpi4py sends from and receives into dlarray's memory without a copy, between two processes (P, K).

mpi4py calls __dlpack__(max_version=(1, 0), copy=False) of an array without a buffer protocol. Each process runs this
file as a program: `mpiexec -n 2 python -m mpi4py test_mpi.py NAME`.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import weakref

import dlarray
import pytest
from dltensor import ARRAY_API_DTYPES
from open_mpi import OPEN_MPI
from optional import numpy

LIMIT = 30  # seconds

if importlib.util.find_spec("mpi4py") is None:
    pytest.skip("mpi4py: make test-libraries installs it", allow_module_level=True)


@pytest.fixture(autouse=True)
def mpiexec():
    if shutil.which("mpiexec") is None:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without("NOT TESTED with MPI: no mpiexec here; Debian's package openmpi-bin has it")


def by_two_processes(scenario):
    """A test in which two processes run the scenario at once, each with the communicator."""

    def test():
        done = subprocess.run(
            ["mpiexec", "-n", "2", sys.executable, "-m", "mpi4py", __file__, scenario.__name__],
            env={**os.environ, **OPEN_MPI, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            timeout=LIMIT + 10,
            text=True,
        )
        if (done.returncode, done.stdout.count("done")) != (0, 2):
            pytest.fail(f"{done.stdout}{done.stderr}exit code {done.returncode}", pytrace=False)

    test.__doc__ = scenario.__doc__
    test.scenario = scenario
    return test


@by_two_processes
def test_every_dtype_is_sent_and_received_in_place_D7(comm):
    other = 1 - comm.rank
    for dtype in ARRAY_API_DTYPES:
        sent = dlarray.array([[comm.rank, 1, 0], [1, 0, comm.rank]], dtype)
        got = dlarray.zeros((2, 3), dtype)
        seen = numpy.from_dlpack(got)
        comm.Sendrecv(sent, other, recvbuf=got, source=other)
        assert got.tolist() == seen.tolist() == [[other, 1, 0], [1, 0, other]], dtype


@by_two_processes
def test_mpi_uses_the_memory_itself_and_its_dtype_P8(comm):
    from mpi4py import MPI

    a = dlarray.arange(3, dtype="float64")
    memory = MPI.memory(a)
    assert (memory.address, memory.nbytes, memory.readonly) == (a.data_ptr, 24, False)
    comm.Allreduce(MPI.IN_PLACE, a)  # adds numbers of the dtype in the tensor
    assert a.tolist() == [0, 2, 4]
    a.setflags(writeable=False)
    assert MPI.memory(a).readonly


@by_two_processes
def test_parts_of_a_matrix_are_gathered_scattered_and_broadcast_in_place_D1(comm):
    matrix = dlarray.arange(6).reshape(2, 3)
    row = matrix[comm.rank]
    row[...] = comm.rank + 5
    comm.Allgather(row.copy(), matrix)
    assert matrix.tolist() == [[5, 5, 5], [6, 6, 6]]
    comm.Bcast(matrix[0, 1:] if comm.rank == 0 else matrix[1, 1:], root=0)
    assert matrix.tolist() == [[5, 5, 5], [6, 6, 6] if comm.rank == 0 else [6, 5, 5]]
    comm.Scatter(matrix if comm.rank == 0 else None, row, root=0)
    assert row.tolist() == ([5, 5, 5] if comm.rank == 0 else [6, 6, 6])


@by_two_processes
def test_another_process_writes_into_a_window_over_an_array(comm):
    from mpi4py import MPI

    a = dlarray.zeros(4, "int32")
    window = MPI.Win.Create(a, disp_unit=a.itemsize, comm=comm)
    window.Fence()
    window.Put(dlarray.array([7, 8 + comm.rank], "int32"), 1 - comm.rank, target=1)
    window.Fence()
    window.Free()
    assert a.tolist() == [0, 7, 9 - comm.rank, 0]


@by_two_processes
def test_an_array_lives_until_pending_work_has_ended_P9(comm):
    other = 1 - comm.rank
    a, b = dlarray.array([comm.rank, 2.0]), dlarray.zeros(2)
    seen, gone = numpy.from_dlpack(b), weakref.ref(a)
    before = sys.getrefcount(b)
    receiving, sending = comm.Irecv(b, other), comm.Isend(a, other)
    assert sys.getrefcount(b) == before + 1
    del a
    assert gone() is not None
    sending.Wait()
    receiving.Wait()
    assert seen.tolist() == [other, 2]
    del sending, receiving
    assert gone() is None
    assert sys.getrefcount(b) == before


def refused(text, a, call):
    """Asserts that a call is refused with the text, keeps no reference and sends nothing."""
    before = sys.getrefcount(a)
    with pytest.raises(BufferError, match=text):
        call(a)
    assert sys.getrefcount(a) == before


@by_two_processes
def test_read_only_memory_is_sent_and_refused_for_receiving_P3(comm):
    other = 1 - comm.rank
    a, b = dlarray.arange(3), dlarray.zeros(3, "int64")
    a.setflags(writeable=False)
    refused("not writable", a, lambda a: comm.Recv(a, other))
    refused("not writable", a, lambda a: comm.Sendrecv(b, other, recvbuf=a, source=other))
    comm.Sendrecv(a, other, recvbuf=b, source=other)
    assert a.tolist() == b.tolist() == [0, 1, 2]


@by_two_processes
def test_only_compact_memory_is_sent_and_received_D5(comm):
    other = 1 - comm.rank
    matrix, got = dlarray.arange(6).reshape(2, 3), dlarray.zeros((2, 3), "int64")
    for a in (matrix[:, 1], matrix[:, ::2], matrix[0].broadcast_to((2, 3))):
        refused("not contiguous", a, lambda a: comm.Send(a, other))
        refused("not contiguous", a, lambda a: comm.Recv(a, other))
    refused("negative", matrix[::-1], lambda a: comm.Send(a, other))
    comm.Sendrecv(matrix.transpose(), other, recvbuf=got, source=other)  # columns are compact too: sent in memory order
    assert got.tolist() == matrix.tolist()
    comm.Sendrecv(matrix[1:, None], other, recvbuf=got[:1], source=other)
    assert got.tolist() == [[3, 4, 5], [3, 4, 5]]


@by_two_processes
def test_arrays_of_one_element_and_of_none_are_sent_D3(comm):
    other = 1 - comm.rank
    for a in (dlarray.array(7.0), dlarray.zeros(0), dlarray.zeros((0, 2)), dlarray.zeros((3, 0, 2))):
        b = dlarray.zeros(a.shape)
        comm.Sendrecv(a, other, recvbuf=b, source=other)
        assert b.tolist() == a.tolist()


@by_two_processes
def test_numpy_and_mpi_share_one_memory(comm):
    """The target is an array that dlarray imported from NumPy."""
    other = 1 - comm.rank
    theirs = numpy.zeros(3)
    comm.Sendrecv(numpy.full(3, other, float), other, recvbuf=dlarray.from_dlpack(theirs), source=other)
    assert theirs.tolist() == [comm.rank] * 3


if __name__ == "__main__":
    signal.alarm(LIMIT)
    from mpi4py import MPI

    assert MPI.COMM_WORLD.size == 2, f"mpiexec is not that of {MPI.Get_library_version()}"
    globals()[sys.argv[1]].scenario(MPI.COMM_WORLD)
    print("done", flush=True)

"""Two processes of MPI share the work on a picture, and send and receive in the memory of an extension's objects.

    mpiexec -n 2 python -m mpi4py examples/engines/mpi_rows.py

The extension is image (examples/minimal/image.c): an Image has no buffer protocol, so that mpi4py asks it for DLPack.
Rank 0 has the whole picture. Each rank receives its rows into an Image of its own, blurs them, and sends them back.
"""

import image
import numpy
from mpi4py import MPI

HEIGHT, WIDTH = 600, 800  # 1.4 MB

comm = MPI.COMM_WORLD


def rows_of(picture):
    return numpy.from_dlpack(picture)


def address_for_mpi(picture):
    """The address that MPI sends from and receives at."""
    memory = MPI.memory(picture)
    assert (memory.nbytes, memory.readonly) == (rows_of(picture).nbytes, False)
    return memory.address


def say(text):
    print(f"rank {comm.rank}: {text}", flush=True)


def main():
    whole = image.Image(HEIGHT, WIDTH) if comm.rank == 0 else None
    part = image.Image(HEIGHT // comm.size, WIDTH)  # black
    if comm.rank == 0:
        rows_of(whole)[:] = (numpy.arange(HEIGHT * WIDTH * 3) % 251).reshape(HEIGHT, WIDTH, 3)
        expected = rows_of(whole).copy()
        image.blur(expected)  # all of it in one process, to compare

    address = rows_of(part).ctypes.data
    assert address_for_mpi(part) == address
    comm.Scatter(whole, part, root=0)
    assert rows_of(part).any() and address_for_mpi(part) == address
    say(f"MPI has written {HEIGHT // comm.size} rows to {address:#x}, the memory of its Image")
    image.blur(part)

    comm.Gather(part, whole, root=0)
    if comm.rank == 0:
        assert (rows_of(whole) == expected).all() and address_for_mpi(whole) == rows_of(whole).ctypes.data
        say(f"MPI has gathered {HEIGHT} blurred rows at {address_for_mpi(whole):#x}, the memory of the whole Image")

    part.freeze()
    assert MPI.memory(part).readonly
    try:
        comm.Recv(part, source=comm.rank)
    except BufferError as error:
        say(f"MPI does not receive into a frozen Image: {error}")
    else:
        raise AssertionError("MPI has received into read-only memory")


if __name__ == "__main__":
    assert comm.size == 2, f"{comm.size} processes run: mpiexec may be of another MPI than {MPI.Get_library_version()}"
    main()

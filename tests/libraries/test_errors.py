"""The messages of docs/errors.md are those that NumPy, PyTorch and JAX raise, in the versions that the page names."""

import importlib
import platform
import re
import sys
import warnings

import array_libraries  # noqa: F401  sets what the libraries need before their import
import pytest
from error_messages import PAGE, sections

numpy = pytest.importorskip("numpy", exc_type=ModuleNotFoundError, reason="NumPy: not on this machine")
dlarray = importlib.import_module("dlarray")

LIBRARIES = {"NumPy": "numpy", "PyTorch": "torch", "JAX": "jax"}
VERSIONS = dict(re.findall(r"\b(NumPy|PyTorch|JAX) (\d+\.\d+)", PAGE.read_text(encoding="utf-8").split("##")[0]))


class Used:
    """Gives one capsule for ever, which was consumed already."""

    def __init__(self):
        self.capsule = numpy.zeros(2).__dlpack__(max_version=(1, 0))
        dlarray.from_dlpack(self.capsule)

    def __dlpack__(self, **keywords):
        return self.capsule

    def __dlpack_device__(self):
        return 1, 0


class Old:
    def __dlpack__(self, stream=None):
        return numpy.zeros(2).__dlpack__()

    def __dlpack_device__(self):
        return 1, 0


class OnGpu:
    def __dlpack__(self, **keywords):
        raise BufferError("not asked")

    def __dlpack_device__(self):
        return 2, 0


def read_only():
    array = numpy.arange(3.0)
    array.flags.writeable = False
    return array


def field():
    return numpy.zeros(3, [("a", "i1"), ("b", "f4")])["b"]


def numpy_calls():
    return [
        lambda: numpy.from_dlpack([1]),
        lambda: numpy.from_dlpack(numpy.zeros(2).__dlpack__()),
        lambda: numpy.zeros(2, "datetime64[s]").__dlpack__(),
        lambda: numpy.zeros(2, numpy.dtype("f4").newbyteorder()).__dlpack__(),
        lambda: field().__dlpack__(),
        lambda: numpy.zeros(2, "longdouble").__dlpack__(),
        lambda: read_only().__dlpack__(),
        lambda: numpy.zeros(2).__dlpack__(dl_device=(2, 0)),
        lambda: numpy.zeros(2).__dlpack__(stream=1),
        lambda: numpy.from_dlpack(dlarray.zeros(3, "bfloat16")),
        lambda: numpy.from_dlpack(numpy.zeros(2), device="cuda"),
        lambda: numpy.from_dlpack(read_only()).fill(0),
        lambda: numpy.from_dlpack(Used()),
        lambda: numpy.from_dlpack(Old(), copy=False),
    ]


def torch_calls():
    import torch

    gradient, complex_ = torch.zeros(3, requires_grad=True), torch.zeros(3, dtype=torch.complex64)
    return [
        lambda: gradient.__dlpack__(),
        lambda: complex_.conj().__dlpack__(),
        lambda: torch.zeros(3).to_sparse().__dlpack__(),
        lambda: torch.zeros(3, device="meta").__dlpack__(),
        lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.qint8).__dlpack__(),
        lambda: torch.from_dlpack(dlarray.zeros(4, "float6_e2m3fn")),
        lambda: torch.from_dlpack(Used()),
        lambda: torch.zeros(3).__dlpack__(stream=1),
        lambda: gradient.numpy(),
        lambda: torch.from_numpy(read_only()),
        lambda: torch.from_dlpack(OnGpu()),
    ]


def jax_calls():
    import jax
    import jax.numpy as jnp

    def deleted():
        array = jnp.zeros(3)
        array.delete()
        array.__dlpack__()

    return [
        lambda: jnp.from_dlpack([1]),
        lambda: jnp.from_dlpack(numpy.zeros((4, 4))[::2]),
        lambda: jnp.from_dlpack(dlarray.zeros(4, "float6_e2m3fn")),
        lambda: jnp.from_dlpack(numpy.zeros(100, "u1")[1:97].view("f4"), copy=False),
        lambda: jax.jit(lambda x: numpy.from_dlpack(x))(jnp.zeros(3)),
        deleted,
        lambda: jnp.from_dlpack(OnGpu()),
        lambda: numpy.from_dlpack(jnp.zeros(3)).fill(1),
    ]


CALLS = {"NumPy": numpy_calls, "PyTorch": torch_calls, "JAX": jax_calls}


def not_here(name, library):
    """How messages begin that this machine does not raise. test_upstream.py has the end of the process."""
    found = ["Storage size calculation overflowed"]
    if name == "PyTorch" and library.backends.cuda.is_built():
        found.append("Torch not compiled with CUDA enabled")
    if platform.machine() not in ("x86_64", "i686") or sys.platform != "linux":  # a long double has no padding
        found.append("DLPack only supports IEEE floating point types")
    return tuple(found)


def raised(call):
    """The kind and the text of an exception or a warning, or None."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            call()
        except BaseException as error:
            return type(error).__name__, " ".join(str(error).split())
    return told and (type(told[0].message).__name__, " ".join(str(told[0].message).split()))


@pytest.mark.parametrize("name", LIBRARIES)
def test_each_message_of_the_page_is_raised_by_the_library(name):
    library = pytest.importorskip(LIBRARIES[name], reason=f"{name}: not on this machine")
    if not library.__version__.startswith(f"{VERSIONS[name]}."):
        pytest.skip(f"{name} {VERSIONS[name]}: not on this machine")
    found = [said for said in map(raised, CALLS[name]()) if said]
    for kind, message in sections()[f"Messages of {name}"]:
        pattern = re.escape(message).replace(re.escape("..."), ".*")
        if not message.startswith(not_here(name, library)):
            assert any(said_kind == kind and re.match(pattern, said) for said_kind, said in found), message

"""NumPy's own tests of DLPack, with dlarray between NumPy's arrays: numpy.from_dlpack(dlarray.from_dlpack(x))."""

import dlarray
import numpy
import pytest
from numpy._core.tests.test_dlpack import TestDLPack as NumpysTests

# By the end of a test's name: what it raises with dlarray in between, and why that is right.
EXCEPTIONS = {
    "float16]": (BufferError, "float16 is no dtype of the array API; dlarray leaves it out, and refuses it by name"),
}


class TestNumpysOwnSuite(NumpysTests):
    @pytest.fixture(autouse=True)
    def through_dlarray(self, monkeypatch, request):
        direct = numpy.from_dlpack

        def from_dlpack(x, **keywords):
            return direct(dlarray.from_dlpack(x), **keywords)

        monkeypatch.setattr(numpy, "from_dlpack", from_dlpack)
        for name, (raises, reason) in EXCEPTIONS.items():
            if request.node.name.endswith(name):
                request.applymarker(pytest.mark.xfail(raises=raises, reason=reason, strict=True))

"""NumPy's tests of DLPack with dlarray between NumPy's arrays: numpy.from_dlpack(dlarray.from_dlpack(x))."""

import dlarray
import pytest
from optional import numpy

numpy.from_dlpack  # where NumPy is missing, this skips the file
from numpy._core.tests.test_dlpack import TestDLPack as NumpysTests  # noqa: E402


class TestNumpysOwnSuite(NumpysTests):
    @pytest.fixture(autouse=True)
    def through_dlarray(self, monkeypatch):
        direct = numpy.from_dlpack

        def from_dlpack(x, **keywords):
            return direct(dlarray.from_dlpack(x), **keywords)

        monkeypatch.setattr(numpy, "from_dlpack", from_dlpack)

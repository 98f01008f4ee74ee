"""A view becomes an mdspan of NVIDIA's CCCL, as docs/streams.md shows. On the CPU the mdspan reads the tensor (D4)."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import machine
import pytest

CCCL = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "include" / "cccl"
if not (CCCL / "cuda" / "__mdspan" / "dlpack_to_mdspan.h").exists():
    pytest.skip("CCCL: make test-libraries installs it", allow_module_level=True)
CUDA = [include for name, include in machine.runtimes().items() if name.startswith("CUDA")]
if not CUDA:
    pytest.skip("headers of CUDA: not on this machine", allow_module_level=True)
FLAGS = ["-std=c++17", "-isystem", str(CCCL), "-isystem", CUDA[-1]]


def compiler():
    found = [pair for pair in machine.compilers().values() if pair[1] is not None]
    if not found:
        without = pytest.fail if os.environ.get("DLPACK_PY_COMPLETE") else pytest.skip
        without("NOT TESTED with CCCL: no C++ compiler here")
    return found[-1]


def test_the_mdspan_of_the_document_compiles(tmp_path):
    text = (machine.ROOT / "docs" / "streams.md").read_text()
    code = re.search(r"\*\*An mdspan\*\*.*?```cpp\n(.*?)```", text, re.DOTALL)[1]
    source = tmp_path / "mdspan.cpp"
    source.write_text(f"""
        #include "dlpack_cuda.h"
        #include <cuda/mdspan>
        float *first(PyObject *obj, cudaStream_t stream);
        float *first(PyObject *obj, cudaStream_t stream)
        {{
            {code}
            return matrix.data_handle();
        }}
    """)
    done = machine.compile_c(source, *FLAGS, "-c", "-o", str(tmp_path / "mdspan.o"), compiler=compiler())
    assert done.returncode == 0, done.stderr


def test_an_mdspan_has_the_elements_of_the_tensor_D4(tmp_path):
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    source.write_text("""
        #include "dlpack_tensor.h"
        #include <cuda_runtime_api.h>
        #include <cuda/mdspan>
        int main()
        {
            float values[6] = {0, 1, 2, 3, 4, 5};
            const int64_t shape[2] = {2, 2}, strides[2] = {-3, 2};
            const DLTensor t = dlpack_py_cpu_tensor(values + 3, DLPACK_PY_FLOAT32, 2, shape, strides);
            auto m = cuda::to_host_mdspan<float, 2>(t);
            return !(m.extent(1) == 2 && m(0, 0) == 3 && m(0, 1) == 5 && m(1, 0) == 0 && m(1, 1) == 2);
        }
    """)
    done = machine.compile_c(source, *FLAGS, "-o", str(program), compiler=compiler())
    assert done.returncode == 0, done.stderr
    assert subprocess.run([program]).returncode == 0

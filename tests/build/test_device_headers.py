"""dlpack_cuda.h and dlpack_rocm.h compile without a warning with the headers of each runtime on this machine, in each
way to include them. Without these headers an error names them.

DLPACK_PY_MATRIX=all, or =pairs, runs the full matrix; otherwise each value of a dimension is used once.
"""

import itertools
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import machine
import pytest

USES_DEVICE = machine.ROOT / "tests" / "build" / "uses_device.c"
STANDARDS = machine.C_STANDARDS + machine.CXX_STANDARDS
HEADERS = {"CUDA": "dlpack_cuda.h", "HIP": "dlpack_rocm.h"}
RUNTIME_HEADERS = {"CUDA": "cuda_runtime_api.h", "HIP": "hip/hip_runtime_api.h"}
CPU_HEADERS = ["dlpack_copy.h", "dlpack_exchange.h", "dlpack_buffer.h", "dlpack_py.h", "dlpack_tensor.h"]


def kind(runtime):
    return runtime.split()[0]


PLATFORM = {"CUDA": [], "HIP": ["-D__HIP_PLATFORM_AMD__"]}  # dlpack_cuda_array_interface.h includes a header by it
# Ways to include a device header. Other headers may precede it; uses_device.c includes dlpack_py.h after it.
WAYS = {
    "included": lambda runtime: ["-include", HEADERS[kind(runtime)]],
    "array interface": lambda runtime: ["-include", "dlpack_cuda_array_interface.h", *PLATFORM[kind(runtime)]],
    "included after": lambda runtime: ["-include", "dlpack_exchange.h", "-include", HEADERS[kind(runtime)]],
}
FLAVOURS = {
    "Python": [],
    "no Python": ["-DDLPACK_DEVICE_NO_PYTHON"],
    "plain": ["-DDLPACK_PY_PLAIN=1"],
    "at run time": ["-DDLPACK_CUDA_AT_RUN_TIME", "-DDLPACK_ROCM_AT_RUN_TIME"],
}
# Without Python no other header comes before: dlpack_exchange.h needs Python.
TURNS = [turn for turn in itertools.product(WAYS, FLAVOURS) if turn[1] != "no Python" or turn[0] != "included after"]


def runtime_flags(runtime):
    include = machine.runtimes()[runtime]
    return [
        *([] if include == "/usr/include" else ["-isystem", include]),
        *(["-D__HIP_PLATFORM_AMD__"] if kind(runtime) == "HIP" else []),
    ]


def compile_device(source, runtime, way, flavour, *flags, **where):
    python = flavour != "no Python"
    given = [*runtime_flags(runtime), *WAYS[way](runtime), *FLAVOURS[flavour]]
    return machine.compile_c(source, *given, *flags, python=python, **where)


def combinations():
    """Runtimes x standards and compilers x standards. The ways and the flavours alternate: they do not depend on the
    other dimensions."""
    dimensions = list(machine.runtimes()), list(machine.compilers()), STANDARDS
    turns = itertools.cycle(TURNS)
    if os.environ.get("DLPACK_PY_MATRIX"):
        runtimes, compilers, standards = dimensions
        newest = {kind(runtime): runtime for runtime in runtimes}.values()
        chosen = [
            *itertools.product(runtimes, compilers[-1:], standards),
            *itertools.product(newest, compilers[:-1], standards),
        ]
    else:
        length = max(map(len, [*dimensions, TURNS])) if machine.runtimes() else 0
        chosen = itertools.islice(zip(*map(itertools.cycle, dimensions)), length)
    return [(*names, *turn) for names, turn in zip(chosen, turns)]


MISSING = [
    pytest.param(*5 * [None], marks=pytest.mark.skip(reason=f"{name}: `tests/build/machine.py fetch` gets it"), id=name)
    for name in machine.RUNTIMES
    if name not in machine.runtimes()
]


@pytest.mark.parametrize(
    "runtime, compiler, standard, way, flavour",
    [pytest.param(*names, id="/".join(names)) for names in combinations()] + MISSING,
)
def test_no_warning_in_any_combination(tmp_path, runtime, compiler, standard, way, flavour):
    source = USES_DEVICE.with_suffix(".cpp" if standard in machine.CXX_STANDARDS else ".c")
    commands = machine.compilers()[compiler]
    if source.suffix == ".cpp" and commands[1] is None:
        pytest.skip("C++ compiler: not on this machine")
    flags = f"-std={standard}", *machine.how_far(standard, tmp_path)
    done = compile_device(source, runtime, way, flavour, *flags, compiler=commands)
    if done.returncode != 0:
        alone = tmp_path / f"alone{source.suffix}"
        for header, name in [("Python.h", "Python"), (RUNTIME_HEADERS[kind(runtime)], runtime)]:
            alone.write_text(f"#include <{header}>\n")
            given = [*runtime_flags(runtime), f"-std={standard}", "-fsyntax-only"]
            if machine.compile_c(alone, *given, compiler=commands).returncode != 0:
                pytest.skip(f"the headers of {name} do not compile as {standard} with {compiler}")
    assert done.returncode == 0 and done.stderr == "", done.stderr


@pytest.mark.parametrize("platform", HEADERS)
@pytest.mark.parametrize("first", CPU_HEADERS)
def test_a_device_header_after_any_header_works_or_gives_one_error_with_the_fix(tmp_path, platform, first):
    found = [runtime for runtime in machine.runtimes() if kind(runtime) == platform]
    if not found:
        pytest.skip(f"headers of {platform}: not on this machine")
    source = tmp_path / "asks.c"
    source.write_text(f'#include "{first}"\n#include "{HEADERS[platform]}"\n')
    done = machine.compile_c(source, *runtime_flags(found[-1]), "-fsyntax-only")
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert not errors or "#error" in errors[0] and " before dlpack_" in errors[0] and len(errors) <= 2, done.stderr[
        :2000
    ]


def test_the_shared_part_of_the_device_headers_alone_is_one_error(tmp_path):
    source = tmp_path / "asks.c"
    source.write_text('#include "dlpack_device.h"\n')
    done = machine.compile_c(source, "-fsyntax-only")
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "include dlpack_cuda.h or dlpack_rocm.h" in errors[0] and len(errors) <= 2, done.stderr[:2000]


@pytest.mark.parametrize("platform", HEADERS)
def test_a_file_that_finds_the_runtime_at_run_time_compiles_with_the_name_of_its_library(tmp_path, platform):
    found = [runtime for runtime in machine.runtimes() if kind(runtime) == platform]
    if not found:
        pytest.skip(f"headers of {platform}: not on this machine")
    for runtime in found:
        done = compile_device(USES_DEVICE, runtime, "included", "at run time", "-c", "-o", str(tmp_path / "object.o"))
        assert done.returncode == 0 and done.stderr == "", done.stderr
        name = b"libcudart.so.1" if platform == "CUDA" else f"libamdhip64.so.{runtime.split()[1][0]}".encode()
        assert name in (tmp_path / "object.o").read_bytes()


@pytest.mark.parametrize("found", [True, False])
def test_the_runtime_in_the_wheel_of_pytorch_is_found_if_it_has_the_version_of_the_headers(tmp_path, found):
    """PyTorch loads libamdhip64.so. Here this file is the simulated runtime, with a right or a wrong version."""
    folder = Path(os.environ["DLPACK_PY_BUILD_DIR"])
    runtime = next((name for name in machine.runtimes() if kind(name) == "HIP"), None)
    if runtime is None or not (folder / "libsimulated_rocm.so").exists():
        pytest.skip("headers of HIP: not on this machine")
    major = runtime.split()[1].split(".")[0] if found else 99
    source, library, program = tmp_path / "wheel.c", tmp_path / "libamdhip64.so", tmp_path / "program"
    source.write_text(
        "int hipRuntimeGetVersion(int *version);\n"
        f"int hipRuntimeGetVersion(int *version) {{ *version = {major}0000000; return 0; }}\n"
    )
    shared = "-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-rpath,{folder}", str(folder / "libsimulated_rocm.so")
    done = machine.compile_c(source, *shared, "-Wl,-soname,libamdhip64.so", "-o", str(library), python=None)
    assert done.returncode == 0, done.stderr
    flags = "-DDLPACK_ROCM_AT_RUN_TIME", '-DDLPACK_ROCM_LIBRARY="libnowhere.so"', "-Wl,--no-as-needed", str(library)
    paths = f"-Wl,-rpath,{tmp_path}", f"-Wl,-rpath,{folder}", f"-Wl,-rpath-link,{folder}", "-ldl"
    done = compile_device(USES_DEVICE, runtime, "included", "no Python", *flags, *paths, "-o", str(program))
    assert done.returncode == 0, done.stderr
    said = subprocess.run([program], capture_output=True, text=True).stdout
    assert ("there is no libnowhere.so" not in said) == found, said


def test_uses_device_uses_every_function():
    used = set(re.findall(r"DEVICE\((\w+)\)", USES_DEVICE.read_text()))
    for name in ("cuda", "rocm"):
        header = (machine.ROOT / f"dlpack_{name}.h").read_text()
        public = set(re.findall(rf"^dlpack_{name}_(\w+)\(", header, re.MULTILINE))
        assert len(public) > 8 and public - used == set()
    text = USES_DEVICE.read_text()
    header = (machine.ROOT / "dlpack_device.h").read_text()
    public = set(re.findall(r"^dlpack_device_(\w+)\(", header, re.MULTILINE))
    by_others = {"consume", "from_dlpack", "order"}  # called by functions that are used
    assert {name for name in public if f"dlpack_device_{name}(" not in text} == by_others


# How the paragraphs begin in which dlpack_cuda.h and dlpack_rocm.h differ, after the names of CUDA, HIP and ROCm are
# replaced by DEVICE and device.
VENDOR = [
    "Needs the headers and the library of the DEVICE runtime",
    "DLPACK_DEVICE_AT_RUN_TIME do not link the library",
    "#if defined(__has_include) && !defined(DLPACK_DEVICE_API)",
    "#ifdef DLPACK_",  # no file includes both
    "/* The handle of a stream as it crosses the protocol",
    "device out: kDLDEVICE with an id",
    "Returns 0, or -1 with RuntimeError in *error. / static inline int dlpack_device_find_device(",
    "*device = dlp_make_device(1, 0);",
]
NAMES_OF_VENDOR = {
    "cuda": [
        ("kDLCUDA", "kDLDEVICE"),
        ("CUDA", "DEVICE"),
        ("cuda", "device"),
        (r"dlp_make_device\(2,", "dlp_make_device(TYPE,"),
    ],
    "rocm": [
        ("kDLROCM", "kDLDEVICE"),
        ("ROCm|ROCM|HIP", "DEVICE"),
        ("rocm|hip", "device"),
        (r"dlp_make_device\(10,", "dlp_make_device(TYPE,"),
    ],
}


def paragraphs(name):
    """The paragraphs of a header, without the names of its vendor and without its line breaks."""
    text = (machine.ROOT / f"dlpack_{name}.h").read_text()
    for own, shared in NAMES_OF_VENDOR[name]:
        text = re.sub(own, shared, text)
    found = re.split(r"\n(?: \*)?\n", text)
    return [" ".join(re.sub(r"^ \* ?", "", part, flags=re.MULTILINE).split()) for part in found]


def test_what_is_the_same_for_cuda_and_rocm_is_the_same_in_both_headers():
    cuda, rocm = paragraphs("cuda"), paragraphs("rocm")
    differ = [(one, other) for one, other in zip(cuda, rocm) if one != other]
    assert len(cuda) == len(rocm) and len(cuda) - len(differ) > 30
    unknown = [pair for pair in differ if not any(all(text.startswith(start) for text in pair) for start in VENDOR)]
    assert not unknown, "\n\n".join(map("\n".join, unknown))
    assert len(differ) == len(VENDOR)


# One file cannot include the headers of both vendors: both define the same types, with different definitions.
def test_both_device_headers_in_one_program_add_no_symbols(tmp_path):
    newest = {kind(runtime): runtime for runtime in machine.runtimes()}
    if len(newest) < 2:
        pytest.skip("headers of both CUDA and HIP: not on this machine")
    for number, runtime in enumerate(newest.values()):
        flags = ["-c", *(f"-Duse_{name}={name}{number}" for name in ("producer", "consumer", "interface"))]
        done = compile_device(
            USES_DEVICE, runtime, "array interface", "Python", *flags, "-o", str(tmp_path / f"{number}.o")
        )
        assert done.returncode == 0, done.stderr
    subprocess.run(["ld", "-r", "0.o", "1.o", "-o", "both.o"], cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", "-g", "--defined-only", "both.o"], cwd=tmp_path, capture_output=True, text=True)
    names = {line.split()[-1] for line in symbols.stdout.splitlines()}
    assert names == {f"{name}{number}" for name in ("producer", "consumer", "interface") for number in (0, 1)}


def families():
    """The newest compiler of each family."""
    return {re.match(r"[a-z]+", name)[0]: commands for name, commands in machine.compilers().items()}


@pytest.mark.parametrize("family", machine.COMPILERS)
@pytest.mark.parametrize("platform", HEADERS)
@pytest.mark.parametrize("way, flavour", [turn for turn in TURNS if turn[1] in ("Python", "no Python")])
def test_without_the_headers_of_the_runtime_one_error_names_them(tmp_path, family, platform, way, flavour):
    if family not in families():
        pytest.skip(f"{family}: not on this machine")
    source = tmp_path / "asks.c"
    source.write_text('#ifndef DLPACK_DEVICE_NO_PYTHON\n#include "dlpack_py.h"\n#endif\n')
    flags = *WAYS[way](platform), *FLAVOURS[flavour], "-fsyntax-only"
    done = machine.compile_c(source, *flags, python=flavour == "Python", compiler=families()[family])
    if done.returncode == 0:
        pytest.skip(f"<{RUNTIME_HEADERS[platform]}> is on every include path of this machine")
    errors = [line for line in done.stderr.splitlines() if "error:" in line and "fatal error:" not in line]
    assert len(errors) == 1
    assert f"no <{RUNTIME_HEADERS[platform]}> on the include path" in errors[0]


@pytest.mark.parametrize("runtime", [name for name in machine.runtimes() if kind(name) == "HIP"] or ["HIP"])
def test_a_file_for_per_thread_streams_has_names_for_both_default_streams_S3(tmp_path, runtime):
    if runtime not in machine.runtimes():
        pytest.skip("HIP: `tests/build/machine.py fetch` gets it")
    source = tmp_path / "per_thread.c"
    source.write_text(
        textwrap.dedent("""
        #include "dlpack_rocm.h"

        int main(void)
        {
            return dlpack_rocm_stream(NULL) == 2 && dlpack_rocm_stream((hipStream_t)1) == 0 &&
                   dlp_device_handle(0) == (hipStream_t)1 &&
                   dlp_device_handle(2) == (hipStream_t)2 ? 0 : 1;
        }
        """)
    )
    flags = *runtime_flags(runtime), "-DHIP_API_PER_THREAD_DEFAULT_STREAM", "-DDLPACK_DEVICE_NO_PYTHON"
    done = machine.compile_c(source, *flags, "-o", str(tmp_path / "program"), python=None)
    if "#define hipStreamLegacy" in Path(machine.runtimes()[runtime], "hip", "hip_runtime_api.h").read_text():
        assert done.returncode == 0, done.stderr
        assert subprocess.run([tmp_path / "program"]).returncode == 0
    else:
        errors = [line for line in done.stderr.splitlines() if "error: #error" in line]
        assert len(errors) == 1 and "include dlpack_rocm.h in another file" in errors[0]


OLDER = {
    "CUDA": ("#define CUDART_VERSION 11010\n", "needs CUDA 11.2 or newer"),
    "HIP": ("#define HIP_VERSION 50100000\n", "needs HIP 5.2 or newer"),
}


@pytest.mark.parametrize("platform", OLDER)
def test_a_runtime_that_is_too_old_is_one_error(tmp_path, platform):
    text, says = OLDER[platform]
    header = tmp_path / RUNTIME_HEADERS[platform]
    header.parent.mkdir(exist_ok=True)
    header.write_text(text)
    source = tmp_path / "asks.c"
    source.write_text(f'#include "{HEADERS[platform]}"\n')
    done = machine.compile_c(source, f"-I{tmp_path}", "-D__HIP_PLATFORM_AMD__", "-fsyntax-only")
    assert says in next(line for line in done.stderr.splitlines() if "error:" in line)


def test_hip_without_a_platform_is_one_error(tmp_path):
    hip = [runtime for runtime in machine.runtimes() if kind(runtime) == "HIP"]
    if not hip:
        pytest.skip("headers of HIP: not on this machine")
    source = tmp_path / "asks.c"
    source.write_text('#include "dlpack_rocm.h"\n')
    include = machine.runtimes()[hip[-1]]
    done = machine.compile_c(source, *([] if include == "/usr/include" else ["-isystem", include]), "-fsyntax-only")
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "want __HIP_PLATFORM_AMD__ to be defined" in errors[0]
    assert len(errors) == 2 and "stop: No such file" in errors[1]  # this include ends the compilation


def test_headers_for_the_cpu_include_no_header_of_a_runtime(tmp_path):
    for name in RUNTIME_HEADERS.values():
        trap = tmp_path / name
        trap.parent.mkdir(exist_ok=True)
        trap.write_text("#error this was included\n")
        for header in CPU_HEADERS:
            assert name not in (machine.ROOT / header).read_text()  # so no CPU header includes it
    source = tmp_path / "asks_nothing.c"
    source.write_text("".join(f'#include "{header}"\n' for header in CPU_HEADERS))
    done = machine.compile_c(source, "-I", str(tmp_path), "-M")
    assert done.returncode == 0, done.stderr
    assert "dlpack_py.h" in done.stdout
    assert re.search(r"dlpack_(cuda|rocm)\.h|runtime_api\.h", done.stdout) is None


STUB = """
    #include <hip/hip_runtime_api.h>
    hipError_t hipRuntimeGetVersion(int *found) { *found = (HIP_VERSION_MAJOR + OFF) * 10000000; return hipSuccess; }
    hipError_t hipGetDevice(int *device) { *device = 7; return hipSuccess; }
"""
ASKS = """
    #define DLPACK_DEVICE_NO_PYTHON
    #define DLPACK_ROCM_AT_RUN_TIME
    #define DLPACK_ROCM_LIBRARY "libnone_such.so"
    #include "dlpack_rocm.h"
    int ask(void);
    int ask(void) { int d; return DLPACK_DEVICE_CALL(GetDevice, (&d), NULL) < 0 ? -1 : d; }
"""


@pytest.mark.parametrize("off, answer", [(0, 7), (1, -1), (-1, -1)])
def test_a_loaded_runtime_of_another_major_version_is_not_used(tmp_path, off, answer):
    """PyTorch's wheel has loaded libamdhip64.so, whose name tells no version."""
    hip = [runtime for runtime in machine.runtimes() if kind(runtime) == "HIP"]
    if not hip or sys.platform != "linux":
        pytest.skip("headers of HIP on Linux: not on this machine")
    for name, text, flags in (
        ("libamdhip64", STUB, [f"-DOFF={off}", "-Wl,-soname,libamdhip64.so", "-Wno-missing-prototypes"]),
        ("asks", ASKS, ["-ldl"]),
    ):
        (tmp_path / f"{name}.c").write_text(text)
        given = [*runtime_flags(hip[-1]), "-shared", "-fPIC", *flags, "-o", str(tmp_path / f"{name}.so")]
        done = machine.compile_c(tmp_path / f"{name}.c", *given, python=False)
        assert done.returncode == 0, done.stderr
    code = "import ctypes\nctypes.CDLL('./libamdhip64.so')\nprint(ctypes.CDLL('./asks.so').ask())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{answer}\n", done.stderr


INTERFACES = """
    #include "dlpack_cuda%s.h"
    static PyObject *take(PyObject *module, PyObject *x)
    {
        dlpack_py_want want = dlpack_py_want_any();
        dlpack_py_view v;
        (void)module;
        want.options = DLPACK_PY_WANT_ARRAY_INTERFACE_TOO;
        return dlpack_cuda_consume(x, &want, NULL, &v) < 0 ? NULL : PyLong_FromLong(0);
    }
    static PyMethodDef functions[] = {{"take", take, METH_O, NULL}, {NULL, NULL, 0, NULL}};
    static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "takes", NULL, 0, functions, NULL, NULL, NULL, NULL};
    PyMODINIT_FUNC PyInit_takes(void);
    PyMODINIT_FUNC PyInit_takes(void) { return PyModuleDef_Init(&module); }
"""


@pytest.mark.parametrize(
    "header, says", [("", "SystemError: DLPACK_PY_WANT_ARRAY"), ("_array_interface", "AttributeError")]
)
def test_the_option_for_array_interfaces_needs_their_header(tmp_path, header, says):
    cuda = [runtime for runtime in machine.runtimes() if kind(runtime) == "CUDA"]
    if not cuda:
        pytest.skip("headers of CUDA: not on this machine")
    source = tmp_path / "takes.c"
    source.write_text(INTERFACES % header)
    flags = [*runtime_flags(cuda[-1]), "-DDLPACK_CUDA_AT_RUN_TIME", "-shared", "-fPIC", "-ldl"]
    done = machine.compile_c(source, *flags, "-o", str(tmp_path / "takes.so"))
    assert done.returncode == 0, done.stderr
    code = "import takes\ntry:\n    takes.take(3)\nexcept Exception as e:\n    print(type(e).__name__ + ':', e)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert says in done.stdout, done.stderr


def test_array_interfaces_come_before_the_device_header(tmp_path):
    cuda = [runtime for runtime in machine.runtimes() if kind(runtime) == "CUDA"]
    if not cuda:
        pytest.skip("headers of CUDA: not on this machine")
    source = tmp_path / "asks.c"
    source.write_text('#include "dlpack_cuda.h"\n#include "dlpack_cuda_array_interface.h"\n')
    done = machine.compile_c(source, *runtime_flags(cuda[-1]), "-fsyntax-only")
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    assert "include dlpack_cuda_array_interface.h before dlpack_cuda.h" in errors[0] and len(errors) <= 2, done.stderr


GUIDE = """
#include "dlpack_cuda.h"

typedef struct Image {
    PyObject_HEAD
    void *pixels;
    int64_t shape[3], strides[3];
    DLTensor tensor;
    dlpack_py_work_stream pending;
    dlpack_py_view view;
    int32_t device;
    cudaStream_t stream;
} Image;

PyObject *image_make_steal(PyTypeObject *type, dlpack_py_view *v);

CODE
const dlpack_py_exchange *const table = &image_table;
"""


def test_the_code_in_the_guide_to_streams_compiles(tmp_path):
    cuda = [runtime for runtime in machine.runtimes() if kind(runtime) == "CUDA"]
    if not cuda:
        pytest.skip("headers of CUDA: not on this machine")
    text = (machine.ROOT / "docs" / "streams.md").read_text()
    source = tmp_path / "guide.c"
    (code,) = re.findall(r"^```c\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    source.write_text(GUIDE.replace("CODE", code))
    done = machine.compile_c(source, *runtime_flags(cuda[-1]), "-std=c99", "-fsyntax-only")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("how", ["linked", "found at run time", "not found at run time"])
def test_without_a_driver_each_call_fails_with_a_message_and_memory_is_of_the_host(tmp_path, how):
    """Tests the library of the real runtime as far as it works without a device (S9)."""
    runtime, library = next(
        (
            (name, library)
            for name, include in machine.runtimes().items()
            for library in sorted(Path(include).resolve().parent.glob("lib*/libcudart.so"))
        ),
        (None, None),
    )
    if library is None:
        pytest.skip("library of the CUDA runtime: not on this machine")
    program = tmp_path / "program"
    flags = {
        "linked": [str(library), f"-Wl,-rpath,{library.parent}"],
        "found at run time": ["-DDLPACK_CUDA_AT_RUN_TIME", "-ldl"],
        "not found at run time": ["-DDLPACK_CUDA_AT_RUN_TIME", '-DDLPACK_CUDA_LIBRARY="libnowhere.so"', "-ldl"],
    }[how]
    done = compile_device(USES_DEVICE, runtime, "included", "no Python", *flags, "-o", str(program))
    assert done.returncode == 0, done.stderr
    paths = f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run([program], env={**os.environ, "LD_LIBRARY_PATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0
    if "order: done" in done.stdout or "cudaErrorInvalidDevice" in done.stdout:
        pytest.skip("this machine has a driver and a device")
    if how == "not found at run time":
        text = (
            "RuntimeError: cudaGetDevice: there is no libnowhere.so with this function: install the runtime, or import "
            "a library that has loaded it"
        )
        calls = "order", "synchronize", "copy_to_host"
        assert done.stdout.splitlines() == [*(f"{name}: {text}" for name in calls), "find_device: done", "on cpu"]
        return
    error = (
        "RuntimeError: {}: cudaErrorInsufficientDriver, CUDA driver version is insufficient for CUDA runtime version"
    )
    assert done.stdout.splitlines() == [
        f"order: {error.format('cudaGetDevice')}",
        f"synchronize: {error.format('cudaGetDevice')}",
        f"copy_to_host: {error.format('cudaGetDevice')}",
        "find_device: done",
        "on cpu",
    ]

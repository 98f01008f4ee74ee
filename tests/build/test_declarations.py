"""The .pxd files declare what the headers define: all public names, with the same types. tests/libraries/test_cython.py
compiles them with Cython."""

import re

import machine
import public_names
import pytest
from test_header import runtime_flags

NAMES = ["tensor", "py", "exchange", "buffer", "copy", "device", "cuda", "rocm", "cuda_array_interface"]
each_file = pytest.mark.parametrize("name", NAMES)

# Switches of a build, and macros that define functions or entries of a table: Cython cannot use these.
SWITCHES = {"DLPACK_PY_MALLOC", "DLPACK_PY_FREE", "DLPACK_PY_PLAIN", "DLPACK_PY_EXIT_WAIT"}
SWITCHES |= {"dlpack_rocm_array_interface"}  # dlpack_cuda_array_interface.pxd includes dlpack_cuda.pxd
SWITCHES |= {"DLPACK_CUDA_LIBRARY", "DLPACK_ROCM_LIBRARY"}
DEFINING = re.compile(r"DLPACK_\w+_(?:METHODS|DESCRIBED|ARRAY_INTERFACE)|DLPACK_PY_EXCHANGE_API\w*|DLPACK_DEVICE_CALL")
# Structs whose fields are private, and private fields: fields that the header fills, and operations with private types.
OPAQUE = {"dlpack_py_counter", "dlpack_py_embedded", "dlpack_py_exchange"}
PRIVATE = {
    "dlpack_py_view": {"allocated", "strides"},
    "dlpack_py_offer": {"embedded"},
    "dlpack_py_operations": {"make_ready", "copy", "get_work_stream"},
}


class Declarations:
    """What a .pxd file declares: functions, types and constants as text, structs with their fields."""

    def __init__(self, name):
        text = (machine.ROOT / f"dlpack_{name}.pxd").read_text()
        text = re.sub(r",\n {9,}", ", ", re.sub(r" *#.*$", "", text, flags=re.MULTILINE))
        self.functions, self.types, self.constants, self.structs = {}, {}, {}, {}
        fields = None
        for line in text.splitlines():
            if line.startswith(" " * 8):
                fields.append(line.strip())
            elif match := re.fullmatch(r"    ctypedef struct (\w+):", line):
                fields = self.structs.setdefault(match[1], [])
            elif match := re.fullmatch(r"    const (\w+(?: \*)?) ?(\w+(?:, \w+)*)", line):
                self.constants.update((constant, match[1]) for constant in match[2].split(", "))
            elif match := re.fullmatch(r"    ctypedef (.*?(\w+)\)?(?:\(.*)?)", line):
                self.types[re.search(r"\(\*(\w+)\)|(\w+)$", match[1]).group(match[1].count("(*") or 2)] = match[1]
            elif match := re.fullmatch(
                r"    (.*?)(dlpack_\w+|DLPACK_\w+)(\(.*\))(?: noexcept)?(?: nogil)?(?: except -1)?", line
            ):
                self.functions[match[2]] = match[1], match[3]
            else:
                assert line.strip() in ("", "pass") or not line.startswith(" "), line
        for struct in self.structs.values():
            while "pass" in struct:
                struct.remove("pass")

    def names(self):
        return {*self.functions, *self.types, *self.constants, *self.structs}


def in_c(text):
    """Translates a type or parameters of Cython to C."""
    for cython, c in [
        (r"\bobject\b ?", "PyObject *"),
        (r"\btype cls\b", "PyTypeObject *cls"),
        (r"\bbint\b", "int"),
        (r" except -1| noexcept| nogil", ""),
        (r"^\(\)$", "(void)"),
    ]:
        text = re.sub(cython, c, text)
    return text


def field_name(field):
    return re.search(r'"(\w+)"$|\(\*(\w+)\)|(\w+)(?:\[\w+\])?$', field).group(1, 2, 3)


def public(header):
    """The public names of a header, with their lines in public_names.txt."""
    return {
        name: lines
        for name, lines in public_names.names(f"{header}.h").items()
        if name not in SWITCHES and not DEFINING.fullmatch(name)
    }


@each_file
def test_all_public_names_of_the_header_are_declared(name):
    declared = Declarations(name)
    expected = public(name)
    assert expected.keys() - declared.names() == set()
    others = {"DLDevice", "DLDataType", "DLTensor", "DLPackVersion", "DLManagedTensorVersioned"}  # of dlpack.h
    others |= {"cudaStream_t", "hipStream_t"}
    assert declared.names() - expected.keys() - others == set()


@each_file
def test_all_public_fields_of_a_struct_are_declared(name):
    declared = Declarations(name)
    for struct, (_, *fields) in public(name).items():
        if struct in declared.structs and struct not in OPAQUE:
            found = {
                part for field in fields for part in re.findall(r"(?:\(\*)?(\w+)(?:\)\(.*|\[\w+\])?(?:,|$)", field)
            }
            names = {next(filter(None, field_name(field))) for field in declared.structs[struct]}
            assert names == found - PRIVATE.get(struct, set()), struct


@each_file
def test_each_declaration_has_the_types_of_the_header(tmp_path, name):
    """Writes each declaration in C as a pointer to the function or field; another type would give a warning."""
    declared = Declarations(name)
    lines = []
    for function, (result, parameters) in declared.functions.items():
        if function.isupper():  # a macro
            count = parameters.count(",") + 1
            lines.append(f"{result}use_{function} = {function}({', '.join(['1u'] * count)});")
        else:
            lines.append(f"{in_c(result)}(*use_{function}){in_c(parameters)} = {function};")
    for constant, kind in declared.constants.items():
        lines.append(f"const {kind} use_{constant} = {constant};")
    for struct, fields in declared.structs.items():
        lines.append(f"typedef {struct} use_{struct};")
        for field in fields:
            kind = re.sub(r' "\w+"$', "", in_c(field))
            member = next(filter(None, field_name(field)))
            if (struct, member) == ("DLDevice", "device_type"):  # an enum
                kind = f"DLDeviceType {member}"
            place = f"use_{struct}_{member}"
            if "(*" in kind:
                pointer = kind.replace("(*", "(**", 1).replace(f"**{field_name(field)[1]}", f"**{place}")
            elif "[" in kind:
                pointer = re.sub(r"\w+(\[\w+\])$", rf"(*{place})\1", kind)
            else:
                pointer = re.sub(r"(\w+)$", f"*{place}", kind)
            lines.append(f"{pointer} = &((({struct} *)many)->{member});")
    for kind in declared.types.values():
        if "(*" in kind:
            written = in_c(kind)
            other = re.search(r"\(\*(\w+)\)", kind)[1]
            lines.append(f"{written.replace(f'*{other}', f'*use_{other}')} = ({other})0;")
    including = {"device": "cuda"}.get(name, name)
    source = tmp_path / "declared.c"
    source.write_text("\n".join([f'#include "dlpack_{including}.h"', "extern char many[];", *lines, ""]))
    done = machine.compile_c(source, *runtime_flags(f"dlpack_{name}"), "-fsyntax-only")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert len(lines) >= {"tensor": 90, "py": 60, "copy": 4, "cuda_array_interface": 2}.get(name, 7)


@pytest.mark.parametrize(
    "wrong", ["int (*use)(const DLTensor *t) = dlpack_py_size;", "int32_t *use = &(((dlpack_py_view *)many)->flags);"]
)
def test_the_compiler_finds_a_wrong_type(tmp_path, wrong):
    """One case is a function, the other is a field."""
    source = tmp_path / "wrong.c"
    source.write_text(f'#include "dlpack_py.h"\nextern char many[];\n{wrong}\n')
    done = machine.compile_c(source, "-fsyntax-only")
    assert done.returncode != 0 and "use" in done.stderr

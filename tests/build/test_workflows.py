"""The workflows in .github name what the repository has. `make lint` checks their form by the schema of the host."""

import re
import subprocess

import machine
import pytest

FOLDERS = [machine.ROOT / ".github" / "workflows", machine.ROOT / "examples" / "template" / ".github" / "workflows"]
WORKFLOWS = [path for folder in FOLDERS for path in sorted(folder.glob("*.yml"))]
OWN = [path for path in WORKFLOWS if path.parent == FOLDERS[0]]
CI = (FOLDERS[0] / "ci.yml").read_text()
CMAKE = (machine.ROOT / "tests" / "CMakeLists.txt").read_text()


def commands(text):
    """What the steps run: in one line, folded (>-) or as written (|)."""
    for indent, kind, line, block in re.findall(
        r"^( +)(?:- )?run: (>-|\|)?(.*)\n((?:\1   *.*\n|\n)*)", text, re.MULTILINE
    ):
        command = {">-": " ".join(block.split()), "|": re.sub(rf"^{indent} +", "", block, flags=re.MULTILINE)}
        yield re.sub(r"\$\{\{.*?\}\}", "test", command.get(kind, line))


def job(name):
    return re.search(rf"^  {name}:\n((?:    .*\n|\n)*)", CI, re.MULTILINE)[1]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_each_action_is_pinned_by_its_major_version(workflow):
    used = re.findall(r"^ +(?:- )?uses: (\S+)", workflow.read_text(), re.MULTILINE)
    assert used and [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@(?:release/)?v\d+", action)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_each_command_is_a_command_of_bash(workflow):
    text = workflow.read_text()
    found = list(commands(text))
    assert len(found) == len(re.findall(r"^ +(?:- )?run: ", text, re.MULTILINE)) > 0
    for command in found:
        done = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", f"{command}\n{done.stderr}"


@pytest.mark.parametrize("workflow", OWN, ids=lambda path: path.name)
def test_each_target_of_make_and_each_file_in_a_command_exists(workflow):
    makefile = (machine.ROOT / "Makefile").read_text()
    for command in commands(workflow.read_text()):
        for target in re.findall(r"(?:^|[;&] *)make ([\w-]+)", command):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        for path in re.findall(r"(?<![\w/])((?:tests|requirements|\.ci|docs)/[\w./-]+)", command):
            assert (machine.ROOT / path).exists(), path


def test_the_suite_runs_on_each_python_that_is_supported():
    tested = re.search(r"python: \[(.*)\]", job("linux"))[1].replace('"', "").split(", ")
    assert set(machine.PYTHONS) <= set(tested)


def test_with_msvc_the_tests_of_missing_modules_are_left_out_and_no_others():
    """The CMake files leave out modules: a test that imports one is in the list of the job, and so is no other test."""
    lacks = re.search(r'^if\(MSVC\)\n +list\(FILTER sources EXCLUDE REGEX "/\((.*?)\)', CMAKE, re.MULTILINE)[1].split(
        "|"
    )
    examples = (machine.ROOT / "examples" / "CMakeLists.txt").read_text()
    lacks += re.findall(r"^dlpack_py_add_module\((\w+)", examples.split("if(MSVC)\n  return()")[1], re.MULTILINE)
    (command,) = (command for command in commands(job("msvc")) if "pytest" in command)
    left_out = set(re.findall(r"--ignore=(\S+)", command))
    needs = {
        str(path.relative_to(machine.ROOT))
        for folder in re.findall(r" (tests/\w+)(?= )", command)
        for path in (machine.ROOT / folder).glob("test_*.py")
        if re.search(rf"^(?:from|import) (?:.*, )?(?:{'|'.join(lacks)})\b", path.read_text(), re.MULTILINE)
    }
    assert len(lacks) > 5 and left_out == needs


def test_with_mingw_the_same_folders_run_on_windows_and_under_wine():
    text = (machine.ROOT / "tests" / "platforms" / "windows.py").read_text()
    parts = "".join(re.findall(r"^PARTS \+?= .*\n", text, re.MULTILINE))
    wine = {*re.findall(r'"tests/(\w+)"', parts), *re.search(r'in "([\w ]+)"\.split', parts)[1].split()}
    (command,) = (command for command in commands(job("mingw")) if "pytest" in command)
    assert set(re.findall(r" tests/(\w+)", command)) == wine


def test_editors_get_the_widths_of_the_formatters():
    editors = (machine.ROOT / ".editorconfig").read_text().split("[*]")[1].split("\n[")[0]
    indent, columns = (
        int(re.search(rf"^{name} = (\d+)$", editors, re.MULTILINE)[1]) for name in ("indent_size", "max_line_length")
    )
    clang_format = (machine.ROOT / ".clang-format").read_text()
    assert f"\nIndentWidth: {indent}\n" in clang_format and f"\nColumnLimit: {columns}\n" in clang_format
    assert f"line-length = {columns}\n" in (machine.ROOT / "ruff.toml").read_text()

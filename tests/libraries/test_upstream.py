"""What docs/upstream reports of a library comes, in each environment that has one of the versions of the report."""

import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from optional import numpy
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
UPSTREAM = ROOT / "docs" / "upstream"
BUILD = Path(os.environ["DLPACK_PY_BUILD_DIR"]).parent
sys.path.insert(0, str(ROOT / "conformance"))
sys.path.append(str(ROOT / "tests" / "conformance"))  # document


class Report:
    """A file of docs/upstream."""

    def __init__(self, path):
        self.name, self.text = path.stem, path.read_text(encoding="utf-8")
        self.title = self.text.splitlines()[0][2:]
        facts = dict(re.findall(r"^- (\w+): (.+)$", self.text, re.M))
        self.package, self.clause = facts["package"], facts["clause"]
        self.standard = facts["standard"].replace("`", "")
        self.versions = re.split(r", | and ", facts["versions"])
        blocks = {kind: body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", self.text, re.M | re.S)}
        self.code, self.output, self.extension = blocks["python"], blocks[""], blocks.get("cpp")


REPORTS = [Report(path) for path in sorted(UPSTREAM.glob("*.md")) if path.name != "README.md"]


def environments():
    """The interpreters of the environments: (path, folder of its packages)."""
    yield sys.executable, sysconfig.get_path("purelib")
    for python in sorted(BUILD.glob("venv-*/bin/python")):
        packages = list(python.parents[1].glob("lib/python3.*/site-packages"))
        if packages:
            yield str(python), str(packages[0])


def version_in(packages, package):
    """The version of a package in an environment, or None. The environment of this process may have more folders."""
    paths = sys.path if packages == sysconfig.get_path("purelib") else [packages]
    found = next(importlib.metadata.distributions(name=package, path=paths), None)
    return found and found.version.partition("+")[0]


def runs():
    """Each report with each environment in which its package is, or with None."""
    for report in REPORTS:
        found = [
            (report, python, version)
            for python, packages in environments()
            if (version := version_in(packages, report.package))
        ]
        for each in found or [(report, None, None)]:
            yield pytest.param(*each, id=f"{report.name}-{each[2]}")


def built(extension, folder):
    """Compiles the extension of a report, which uses nanobind."""
    import nanobind

    name = re.search(r"NB_MODULE\((\w+)", extension)[1]
    source = folder / f"{name}.cpp"
    source.write_text(extension)
    home = Path(nanobind.include_dir())
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-w", "-fno-strict-aliasing"]
    command += ["-I", sysconfig.get_path("include"), "-isystem", str(home)]
    command += ["-isystem", str(home.parent / "ext" / "robin_map" / "include"), str(source)]
    command += [str(Path(nanobind.source_dir()) / "nb_combined.cpp"), "-o", str(folder / f"{name}.so")]
    subprocess.run(command, check=True)


# NumPy, which some environments lack, comes from the environment of this process.
PRELUDE = "import sys; sys.path += sys.argv[2:]; exec(compile(open(sys.argv[1]).read(), sys.argv[1], 'exec'), {})"


@pytest.mark.skipif(
    (sys.platform, platform.machine(), platform.python_implementation()) != ("linux", "x86_64", "CPython")
    or sys.maxsize < 2**33,
    reason="Linux on x86-64 and CPython: the reports are of these",
)
@pytest.mark.parametrize("report, python, version", runs())
def test_what_a_report_says_comes(report, python, version, tmp_path):
    if python is None:
        pytest.skip(f"{report.package}: a report of docs/upstream needs an environment with it")
    if version not in report.versions:
        pytest.skip(f"{report.package} {version}: a report of docs/upstream is of another version")
    if python == sys.executable and "max_version" in report.code:
        if numpy.lib.NumpyVersion(numpy.__version__) < "2.1.0":
            pytest.skip("NumPy before 2.1 knows no versioned capsules")
    script = tmp_path / "report.py"
    script.write_text(report.code)
    if report.extension:
        built(report.extension, tmp_path)
    ended = subprocess.run(
        [python, "-W", "ignore", "-c", PRELUDE, str(script), str(tmp_path), *filter(None, sys.path)],
        capture_output=True,
        text=True,
        timeout=120 * PATIENCE,
        env={
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "JAX_PLATFORMS": "cpu",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": "",
        },
    )
    came = ended.stdout.splitlines()
    if ended.returncode < 0:
        came.append(signal.Signals(-ended.returncode).name)
    elif ended.returncode:
        came.append(ended.stderr.strip().splitlines()[-1])
    stated = report.output.splitlines()
    came = came[-len(stated) :]  # Warp tells first what it found
    assert len(came) == len(stated), (came, ended.stderr[-1000:])
    for line, text in zip(came, stated):
        assert line in text.split(" or "), ended.stderr[-1000:]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_a_report_rests_on_a_sentence_of_the_standard(report):
    standard = pytest.importorskip("dlpack_conformance.standard", reason="pytest: the suite needs it")
    sentences = [each for each in vars(standard).values() if isinstance(each, standard.Sentence)]
    assert report.standard in [f'{each.source}: "{each.words}"' for each in sentences]
    assert len(re.findall(r"^\*\*(Expected|Suggested change)\.\*\* \S", report.text, re.M)) == 2


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_the_clause_of_a_report_fails_in_the_results_of_its_versions(report):
    pytest.importorskip("dlpack_conformance.standard", reason="pytest: the suite needs it")
    import document

    library = document.PACKAGES.get(report.package, report.package)
    for version in report.versions:
        path = ROOT / "conformance" / "results" / f"{library}-{version}.json"
        tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
        outcomes = {test["outcome"] for name, test in tests.items() if name.partition("[")[0] == report.clause}
        assert "fail" in outcomes, f"{path.name}: {report.clause} has {outcomes}"


def test_the_list_has_each_report():
    listed = re.findall(r"^\| \[(.+?)\]\((.+?)\) \|", (UPSTREAM / "README.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted((report.title, f"{report.name}.md") for report in REPORTS)

"""Arrays in C++ objects whose destructors run as the process or a thread ends (K5)."""

import sysconfig
from pathlib import Path

import machine
import pytest
from lifetime.children import RACE

PLACES = ["keep", "keep_in_function", "keep_on_thread"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    compilers = [pair for pair in machine.compilers().values() if pair[1] is not None]
    if not compilers:
        pytest.skip("C++ compiler: not on this machine")
    folder = tmp_path_factory.mktemp("late_release")
    target = folder / ("late_release" + sysconfig.get_config_var("EXT_SUFFIX"))
    source = Path(__file__).with_name("late_release.cpp")
    done = machine.compile_c(source, "-std=c++11", "-shared", "-pthread", "-o", str(target), compiler=compilers[-1])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def cpp(child, folder):
    return lambda script, **expected: child(
        f"""
import sys
sys.path.append({str(folder)!r})
import late_release
{script}
""",
        **expected,
    )


@pytest.mark.parametrize("keep", PLACES)
@pytest.mark.parametrize("forms", ["['versioned', 'legacy']", "EMBEDDED"])
def test_a_destructor_that_runs_when_the_interpreter_is_gone_leaks_the_owner_K5(cpp, keep, forms):
    cpp(f"""
for form in {forms} * 5:
    late_release.{keep}(capsule(partial(say, "owner died"), form))
probe.settle()
""")


@pytest.mark.parametrize("keep", PLACES)
def test_a_destructor_may_release_what_other_files_and_libraries_exported_K5(cpp, keep):
    cpp(f"""
import dlarray, two_files
for i in range(5):
    late_release.{keep}(dlarray.arange(10))
    late_release.{keep}(dlarray.arange(10).__dlpack__())
    late_release.{keep}(probe.give(two_files.export(Owner(partial(say, "owner died")))))
""")


@pytest.mark.parametrize("keep", PLACES)
@pytest.mark.parametrize("end", ["exit_attached", "exit_detached"])
def test_a_destructor_that_runs_while_the_interpreter_lives_drops_the_owner_K5(cpp, keep, end):
    cpp(
        f"""
for form in FORMS:
    late_release.{keep}(capsule(partial(say, "owner died"), form))
late_release.{end}()
""",
        out="owner died\n" * 4,
    )


@pytest.mark.parametrize("keep", PLACES[:2])
def test_a_destructor_that_runs_on_a_foreign_thread_while_the_interpreter_lives_drops_the_owner_K5(cpp, keep):
    cpp(
        f"""
for form in FORMS:
    late_release.{keep}(elsewhere(capsule, partial(say, "owner died"), form))
late_release.exit_on_thread()
while True:
    time.sleep(0.001)
""",
        out="owner died\n" * 4,
    )


@pytest.mark.parametrize("keep", PLACES[:2])
def test_destructors_that_run_while_the_interpreter_ends_do_no_harm_K5(cpp, keep, tmp_path):
    # Two threads call exit: one may end the process while the other writes the counts of a build with --coverage. The
    # other tests must not read a file that was cut off: GCOV_PREFIX is put before the name of each file written.
    cpp(
        f"""
os.environ["GCOV_PREFIX"] = {str(tmp_path)!r} + f"/{{turn}}"
for form in FORMS * 10:
    late_release.{keep}(capsule(partial(len, ""), form))
late_release.exit_on_thread()
time.sleep(0.0001 * (turn % 20))
""",
        times=RACE,
    )


def test_the_end_of_a_foreign_thread_drops_the_owner_K5(cpp):
    cpp(
        """
for form in FORMS:
    late_release.keep_on_thread(capsule(partial(say, "owner died"), form))
late_release.end_thread()
say("thread ended")
probe.settle()
""",
        out="owner died\n" * 4 + "thread ended\n",
    )

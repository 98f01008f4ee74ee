"""Several files that use the header in one process: each has its own interpreter states, whatever its version (G2)."""

FILES = """
import newer_version, two_files

def all_files(function):
    return [export(function), two_files.export(Owner(function)), two_files.other_export(Owner(function)),
            newer_version.export(Owner(function))]
"""


def test_files_modules_and_versions_share_no_state_G2(child):
    child(
        FILES
        + """
files = [probe.state, two_files.state, two_files.other_state, newer_version.state]
states = [state() for state in files]
assert len(set(states)) == 4 and states == [state() for state in files]
"""
    )


def test_tensors_of_all_files_and_versions_die_on_one_thread_G2(child):
    child(
        FILES
        + """
probe.settle()
died = []
for tensor in all_files(partial(died.append, 1)):
    probe.drop(tensor)
for past in PASTS:
    probe.start(all_files(partial(died.append, 1)), past)
probe.join()
assert len(died) == 16
"""
    )


def test_the_end_waits_for_deleters_of_all_files_and_versions_G2_K5(child):
    child(
        FILES
        + """
probe.settle()
slow = Slow()
for tensor in all_files(slow):
    slow.entered = False
    probe.start([tensor])
    wait_for(lambda: slow.entered)
""",
        out="finalizer ends\n" * 4,
    )


def test_tensors_of_all_files_and_versions_die_after_the_interpreter_G2_K5(child):
    child(
        FILES
        + """
probe.settle()
probe.later(all_files(partial(say, "owner died")), "gone")
probe.later(all_files(partial(say, "owner died")), "exit")
"""
    )

"""The targets of `make fuzz` run the inputs of their corpora once. Each checks what the headers answer."""

import pytest
from fuzz import run


@pytest.mark.parametrize("target", run.TARGETS)
def test_the_headers_answer_each_input_of_the_corpus_as_they_should(target):
    try:
        lines, failed = run.replay(target, run.find_clang())
    except run.Missing as missing:  # names the tool or the library, and says that this machine lacks it
        pytest.skip(str(missing))
    assert not failed, lines


@pytest.mark.parametrize("target", run.TARGETS)
def test_a_corpus_is_small(target):
    sizes = [seed.stat().st_size for seed in (run.HERE / "corpus" / target).iterdir()]
    assert 0 < len(sizes) <= run.MAX_SEEDS and max(sizes) <= run.MAX_BYTES


def test_each_corpus_has_a_target():
    assert {folder.name for folder in (run.HERE / "corpus").iterdir()} == set(run.TARGETS)

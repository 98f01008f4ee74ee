"""The texts of mutants.py are in the headers: `make mutate-streams`, which takes an hour, needs them."""

import pytest
from machine import ROOT
from streams.mutants import MUTANTS


@pytest.mark.parametrize("wrong, file, texts", [(wrong, file, texts) for wrong, file, *texts in MUTANTS], ids=str)
def test_each_mutant_finds_its_texts_once(wrong, file, texts):
    mutant = (ROOT / file).read_text()
    assert len(texts) % 2 == 0
    for text, other in zip(texts[::2], texts[1::2]):
        assert mutant.count(text) == 1, f"{wrong}: {text!r} is there {mutant.count(text)} times"
        mutant = mutant.replace(text, other)
    assert mutant != (ROOT / file).read_text()

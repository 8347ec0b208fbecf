"""Variables that fix the number of proposals."""

import pytest

from turbospark.environment import draft_block


@pytest.mark.parametrize("name", ["TURBOSPARK_DFLASH_DRAFT", "TURBOSPARK_MTP_DRAFT"])
def test_a_number_fixes_the_block_and_names_its_variable(name):
    assert draft_block({name: "5"}) == (name, 5)
    assert draft_block({name: "0"}) == (name, 0)


@pytest.mark.parametrize("text", ["", "auto", "-1", "2.5", " 3", "\u0663"])
def test_anything_else_means_auto(text):
    assert draft_block({"TURBOSPARK_MTP_DRAFT": text}) is None


def test_the_dflash_variable_comes_first():
    assert draft_block({"TURBOSPARK_MTP_DRAFT": "2", "TURBOSPARK_DFLASH_DRAFT": "3"}) == ("TURBOSPARK_DFLASH_DRAFT", 3)

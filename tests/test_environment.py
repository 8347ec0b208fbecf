"""Variables that fix the number of proposals, and folders by variables."""

import pytest

from turbospark.environment import cache_folder, draft_block, home
from turbospark.errors import TurbosparkError


@pytest.mark.parametrize(("name", "kind"), [("TURBOSPARK_DFLASH_DRAFT", "dflash"), ("TURBOSPARK_MTP_DRAFT", "mtp")])
def test_a_number_fixes_the_block_and_names_its_variable(name, kind):
    assert draft_block({name: "5"}) == (name, kind, 5)
    assert draft_block({name: "0"}) == (name, kind, 0)


@pytest.mark.parametrize("text", ["", "auto", "-1", "2.5", " 3", "\u0663"])
def test_anything_else_means_auto(text):
    assert draft_block({"TURBOSPARK_MTP_DRAFT": text}) is None


def test_the_dflash_variable_comes_first():
    both = {"TURBOSPARK_MTP_DRAFT": "2", "TURBOSPARK_DFLASH_DRAFT": "3"}
    assert draft_block(both) == ("TURBOSPARK_DFLASH_DRAFT", "dflash", 3)


def test_a_variable_that_asks_for_proposals_goes_before_one_that_wants_none():
    both = {"TURBOSPARK_MTP_DRAFT": "2", "TURBOSPARK_DFLASH_DRAFT": "0"}
    assert draft_block(both) == ("TURBOSPARK_MTP_DRAFT", "mtp", 2)


@pytest.mark.parametrize(("variable", "folder"), [("TURBOSPARK_HOME", home), ("XDG_CACHE_HOME", cache_folder)])
def test_the_home_of_a_user_nobody_knows_is_refused_by_its_variable(variable, folder):
    with pytest.raises(TurbosparkError, match=f"{variable} is '~nobody-at-all/x'") as caught:
        folder({variable: "~nobody-at-all/x"})
    assert caught.value.code == "no_home"

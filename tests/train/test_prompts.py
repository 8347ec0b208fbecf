"""What conversations begin with."""

import random

from turbospark.train.prompts import HELD_OUT, MAKERS, beginning


def test_held_out_prompts_are_never_given():
    r = random.Random(3)
    MAKERS_WERE = dict(MAKERS)
    try:
        MAKERS["arithmetic"] = lambda r: HELD_OUT["arithmetic"][0]
        given = {beginning(r, {"arithmetic": 1.0}, 0.5)[0] for _ in range(100)}
    finally:
        MAKERS.update(MAKERS_WERE)
    assert "" in given
    assert not given & set(HELD_OUT["arithmetic"])


def test_every_form_of_every_kind_is_whole():
    r = random.Random(4)
    for make in MAKERS.values():
        made = [make(r) for _ in range(500)]
        assert len(set(made)) > 100
        assert not any("{" in words or "  " in words for words in made)
